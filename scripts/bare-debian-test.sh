#!/usr/bin/env bash
# Do the README's two commands work on a bare Debian? Builds one, enters it, and runs them there, each twice.
#
#   scripts/bare-debian-test.sh [--suite NAME | --newest] [--sudoer] [--no-test] [--keep] [PYTEST ARGUMENT...]
#
#   --newest    Debian's unstable suite, for its Python; where that can't be installed today, say so and try nothing
#   --sudoer    run them as a user with sudo, not as root
#   --no-test   `make demo` only
#   --keep      leave the root behind, to look at
#
# The arguments go to `make test`; without any it runs all the tests. Needs root, and installs mmdebstrap.
# The Debian is a minimal one with python3, git, make and certificates: no container engine, no uv, no pip, no Node.
# scripts/bare-debian.sh says how it is entered.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/bare-debian.sh
. scripts/bare-debian.sh

readonly processes='import multiprocessing
with multiprocessing.Pool(2) as pool:
    print(pool.map(abs, [-1, -2]))'
readonly QUICK=30 # seconds that a second set-up, or a second demo, may take on a slow machine
suite=bookworm user=root with_test=yes keep=
while [ $# != 0 ]; do
    case $1 in
    --suite) suite=$2 && shift 2 ;;
    --newest) suite=sid && shift ;;
    --sudoer) user=tester && shift ;;
    --no-test) with_test= && shift ;;
    --keep) keep=yes && shift ;;
    *) break ;;
    esac
done

bare_debian_needs_root
not_today() {
    [ "$suite" = sid ] || { echo "bare-debian-test: no Debian $suite could be made" >&2 && exit 1; }
    echo "bare-debian-test: NOT TRIED: Debian $suite, which changes every day, can't be installed today" >&2
    exit 0
}

packages=python3,git,make,ca-certificates
if [ "$user" = root ]; then
    home=/root
else
    home=/home/$user
    packages+=,sudo
fi
bare_debian "$suite" "$packages" || not_today

# --- this machine's way to the registries, and a clone ---------------------------------------------------------------

reaches_registries "$home"
variables+=(CI=true HOME="$home" USER="$user")
checkout=$home/mcp-code-bridge
git clone --quiet --no-hardlinks . "$root$checkout"
# What is not committed yet is tested too; in a clean checkout there is nothing of the kind.
git ls-files -z --deleted | (cd "$root$checkout" && xargs -0 -r rm -f)
git ls-files -z --modified --others --exclude-standard |
    tar --null --files-from - --ignore-failed-read --warning=no-failed-read -c | tar -C "$root$checkout" --no-same-owner -x
git -C "$root$checkout" add -A

as_user=()
if [ "$user" != root ]; then
    chroot "$root" useradd --create-home --shell /bin/bash "$user"
    echo "$user ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/$user"
    chroot "$root" chown -R "$user:$user" "$home"
    as_user=(setpriv --reuid "$user" --regid "$user" --init-groups --inh-caps=-all)
fi

# there COMMAND...: in the root, alone with it, in the checkout.
there() { enter "$checkout" "${as_user[@]}" "$@"; }

# timed WHAT COMMAND...: run it there; its seconds are left in $took.
timed() {
    local what=$1 before=$SECONDS
    shift
    echo "== $what"
    there "$@" || { echo "bare-debian-test: failed: $what" >&2 && exit 1; }
    took=$((SECONDS - before))
    echo "== $what: $took s"
    times+=("$(printf '%4d s  %s' "$took" "$what")")
}

quick() {
    [ "$took" -le "$QUICK" ] || { echo "bare-debian-test: took $took s, more than $QUICK: $1" >&2 && exit 1; }
}

if [ "$suite" = sid ]; then
    enter / sh -c 'apt-get -qq update && apt-get -qq install --simulate python3-venv podman' >/dev/null || not_today
fi

times=()
for program in podman docker runc crun uv pip3 node npm; do
    if there sh -c "command -v $program"; then
        echo "bare-debian-test: not bare: has $program" >&2
        exit 1
    fi
done

timed "make demo, on a bare machine, as $user" make demo
timed "make demo, again" make demo
quick "the second make demo"
# The demo has taken an OCI runtime alone. Podman's flags have other meanings in later versions: of the scratch
# directories, for example, in which processes share their locks.
timed "a script's processes, with podman" env MCP_BRIDGE_RUNTIME=podman .venv/bin/mcp-bridge run -c "$processes"
if [ -n "$with_test" ]; then
    timed "make test ARGS='$*'" make test ARGS="$*"
    timed "the set-up of make test, again" make setup-test
    quick "the second set-up of make test"
fi
printf '%s\n' "== on a bare Debian $suite, as $user:" "${times[@]}"
