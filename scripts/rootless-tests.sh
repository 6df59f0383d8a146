#!/usr/bin/env bash
# Run the tests as an unprivileged user, rootless. Needs root, to make that user and to become it.
#
#   scripts/rootless-tests.sh [--remove] [PYTEST ARGUMENT...]
#
#   --remove    remove the user and its home afterwards; without it the second run is quick
#
# The user can't read a checkout in /root, nor a Python there: it gets a copy, and an environment made with the
# system's Python. It has no systemd session, as in a container or a cron job. No process or container stays behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly USER_NAME=mcpbridge
readonly STOP_SECONDS=10 # for the user's processes to end after SIGTERM
remove=
if [ "${1:-}" = --remove ]; then
    remove=yes
    shift
fi

stop() {
    printf 'rootless-tests: %s\n' "$*" >&2
    exit 2
}
[ "$(id -u)" = 0 ] || stop "needs root; for the user that you are, run: make test"

missing=()
for package in podman runc crun uidmap slirp4netns fuse-overlayfs; do
    program=$package
    [ "$package" != uidmap ] || program=newuidmap
    command -v "$program" >/dev/null || missing+=("$package")
done
if [ ${#missing[@]} != 0 ]; then
    [ -n "${APT_IS_FRESH:-}" ] || apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 \
        install -y --no-install-recommends --no-upgrade "${missing[@]}"
fi

# --- the user -------------------------------------------------------------------------------------------------------

if ! id "$USER_NAME" >/dev/null 2>&1; then
    useradd --create-home --shell /usr/sbin/nologin --comment "tests of mcp-code-bridge" "$USER_NAME"
fi
for kind in uid gid; do
    if ! grep -qs "^$USER_NAME:" "/etc/sub$kind"; then
        usermod "--add-sub${kind}s" 100000-165535 "$USER_NAME"
    fi
done
uid=$(id -u "$USER_NAME")
home=$(getent passwd "$USER_NAME" | cut -d : -f 6)
checkout=$home/checkout
# The same path each time: Podman remembers it.
runtime=/tmp/mcp-bridge-rootless-$uid

# as_user COMMAND...: without PAM, so that no session and no login is recorded.
as_user() {
    local name environment=()
    while IFS='=' read -r name _; do
        case $name in
        # The machine's way to its package registries, and the driver that is tested.
        PIP_* | UV_* | MCP_BRIDGE_RUNTIME | SSL_CERT_FILE | REQUESTS_CA_BUNDLE | *_proxy | *_PROXY | CI) environment+=("$name=${!name}") ;;
        esac
    done < <(env)
    setpriv --reuid "$USER_NAME" --regid "$USER_NAME" --init-groups --reset-env \
        env "HOME=$home" "PATH=/usr/local/bin:/usr/bin:/bin" LANG=C.UTF-8 "XDG_RUNTIME_DIR=$runtime" \
        "${environment[@]}" "$@"
}

processes() { # the ids of the user's processes
    local status
    for status in /proc/[0-9]*/status; do
        if grep -qs "^Uid:[[:space:]]*${uid}[[:space:]]" "$status"; then
            basename "$(dirname "$status")"
        fi
    done
}

clean_up() {
    local code=$? pid waited=0
    trap - EXIT
    cd /
    # shellcheck disable=SC2016
    as_user sh -c 'left=$(podman ps --all --quiet --filter label=mcp-bridge.owner) &&
        [ -z "$left" ] || { echo "left behind: $left" >&2; podman rm --force $left >/dev/null; }' 2>&1 | tail -n 3 || true
    # Podman's own pause process among them: it holds the user namespace.
    while [ -n "$(processes)" ] && [ "$waited" -le "$STOP_SECONDS" ]; do
        for pid in $(processes); do
            kill "$([ "$waited" -lt "$STOP_SECONDS" ] && echo -TERM || echo -KILL)" "$pid" 2>/dev/null || true
        done
        sleep 1
        waited=$((waited + 1))
    done
    rm -rf --one-file-system "$runtime"
    if [ -n "$remove" ]; then
        userdel --remove "$USER_NAME" 2>/dev/null || true
    fi
    exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

install -d -m 700 -o "$USER_NAME" -g "$USER_NAME" "$runtime" "$home/.config" "$home/.config/containers"
if [ ! -e "$home/.config/containers/storage.conf" ]; then
    # Without it Podman takes vfs, which copies the image for each container.
    printf '[storage]\ndriver = "overlay"\n' >"$home/.config/containers/storage.conf"
fi

# --- its copy of the checkout -----------------------------------------------------------------------------------------

install -d -m 755 -o "$USER_NAME" -g "$USER_NAME" "$checkout" "$checkout/.cache" "$checkout/.cache/bin"
find "$checkout" -mindepth 1 -maxdepth 1 ! -name .venv ! -name .cache -exec rm -rf --one-file-system {} +
git ls-files -z --cached --others --exclude-standard |
    while IFS= read -r -d '' file; do [ -e "$file" ] && printf '%s\0' "$file"; done |
    tar --create --no-recursion --null --files-from - |
    tar --extract --directory "$checkout" --no-same-owner
chown -R "$USER_NAME:$USER_NAME" "$checkout"

# Our uv serves the user as well, if it is a program that can be copied.
if [ ! -e "$checkout/.cache/bin/uv" ] && uv=$(uv python find >/dev/null 2>&1 && command -v uv); then
    case $(head -c 2 "$uv") in
    '#!') uv=$(find "$(dirname "$(dirname "$uv")")" -type f -name uv -perm -u+x -size +1M 2>/dev/null | head -n 1) ;;
    esac
    [ -z "$uv" ] || install -m 755 "$uv" "$checkout/.cache/bin/uv"
fi

# --- the tests --------------------------------------------------------------------------------------------------------

cd "$checkout"
as_user bash scripts/setup.sh check
echo "== the tests as $USER_NAME, with $(as_user podman --version)"
as_user bash -c '. scripts/environment.sh && exec .venv/bin/python -m pytest "$@"' pytest "$@"
