#!/usr/bin/env bash
# A new user's way by the words of docs/install.md: install, add to Claude Code, call, break the configuration, mend it,
# upgrade, uninstall; on a bare Debian, as a user with no rights. Then: is anything left that the page doesn't name?
#
#   scripts/newcomer-test.sh [--suite NAME] [--root] [--keep]
#
#   --root    go it as root
#   --keep    leave the root behind, to look at
#
# Needs root, and installs mmdebstrap. Claude Code is the one that the tests have from npm, and there is no other model
# than one on loopback (tests/support/newcomer_model.py). The version to upgrade from is this one under a lower number.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/bare-debian.sh
. scripts/bare-debian.sh

readonly OLDER=0.0.9
suite=bookworm user=ada home=/home/ada keep=
while [ $# != 0 ]; do
    case $1 in
    --suite) suite=$2 && shift 2 ;;
    --root) user=root home=/root && shift ;;
    --keep) keep=yes && shift ;;
    *) echo "newcomer-test: unknown: $1" >&2 && exit 2 ;;
    esac
done
bare_debian_needs_root

scripts/setup.sh test
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
bare_debian "$suite" python3,git,make,ca-certificates,sudo
[ "$user" = root ] || chroot "$root" useradd --create-home --shell /bin/bash "$user"
readonly PARTS=$root/opt/newcomer
reaches_registries "$home"

# --- the wheels ----------------------------------------------------------------------------------------------------

build() { # build DIRECTORY: its wheel
    uv build --quiet --wheel --build-constraints requirements/build.txt --out-dir "$PARTS/wheels" "$1"
}
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' mcp_bridge/_version.py)
build .
mkdir "$work/older"
git ls-files -z --cached --others --exclude-standard -- mcp_bridge sandbox_image README.md LICENSE pyproject.toml |
    tar --null --files-from - --ignore-failed-read -c | tar -C "$work/older" -x
sed -i "s/$version/$OLDER/" "$work/older/mcp_bridge/_version.py"
build "$work/older"

# --- what is there before ------------------------------------------------------------------------------------------

install -m 644 docs/install.md "$PARTS"
install -m 644 scripts/newcomer.py "$PARTS"
# What npm has installed here is a program of its own, which needs no Node.
claude=("${MCP_BRIDGE_TEST_CACHE:-.cache/servers}"/clients/node_modules/@anthropic-ai/claude-code-linux-*/claude)
install -m 755 "${claude[0]}" "$root/usr/local/bin/claude"
chroot "$root" chown -R "$user:$user" "$home"

coproc MODEL { .venv/bin/python tests/support/newcomer_model.py; }
read -r model <&"${MODEL[0]}" || { echo "newcomer-test: tests/support/newcomer_model.py didn't start" >&2 && exit 1; }
# How this machine reaches PyPI, as environment.sh has found it out; no Python but Debian's.
[ -z "${SSL_CERT_FILE:-}" ] || as_this_machine "$SSL_CERT_FILE"
for name in UV_SYSTEM_CERTS UV_PYTHON_DOWNLOADS UV_DEFAULT_INDEX UV_INDEX_URL UV_INSECURE_HOST SSL_CERT_FILE; do
    if [ -n "${!name:-}" ]; then variables+=("$name=${!name}"); fi
done
enter / python3 /opt/newcomer/newcomer.py --user "$user" --model "$model" --older "$OLDER" --newer "$version"
