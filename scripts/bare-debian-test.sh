#!/usr/bin/env bash
# Do the README's two commands work on a bare Debian? Builds one, enters it, and runs them there, each twice.
#
#   scripts/bare-debian-test.sh [--suite NAME] [--sudoer] [--no-test] [--keep] [PYTEST ARGUMENT...]
#
#   --sudoer    run them as a user with sudo, not as root
#   --no-test   `make demo` only
#   --keep      leave the root behind, to look at
#
# The arguments go to `make test`; without any it runs all the tests. Needs root, and installs mmdebstrap.
# The Debian is a minimal one with python3, git, make and certificates: no container engine, no uv, no pip, no Node.
# It is entered by pivot_root in namespaces of its own, so that it is a real root to the engine inside, and so that
# every process in it ends with this script. The kernel, its control groups and the network are this machine's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly QUICK=30 # seconds that a second set-up, or a second demo, may take on a slow machine
suite=bookworm user=root with_test=yes keep=
while [ $# != 0 ]; do
    case $1 in
    --suite) suite=$2 && shift 2 ;;
    --sudoer) user=tester && shift ;;
    --no-test) with_test= && shift ;;
    --keep) keep=yes && shift ;;
    *) break ;;
    esac
done

[ "$(id -u)" = 0 ] || { echo "bare-debian-test: needs root, to build a root file system" >&2 && exit 2; }
if ! command -v mmdebstrap >/dev/null; then
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends mmdebstrap
fi

work=$(mktemp -d "${TMPDIR:-/var/tmp}/bare-debian.XXXXXX")
root=$work/root
clean_up() {
    if [ -n "$keep" ]; then
        echo "bare-debian-test: left behind: $root"
    else
        rm -rf --one-file-system "$work"
    fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- the base, made once -----------------------------------------------------------------------------------------

packages=python3,git,make,ca-certificates
if [ "$user" != root ]; then
    packages+=,sudo
fi
# The mirrors and proxies that this machine reaches, where it is the same Debian.
sources=()
if grep -qs "^VERSION_CODENAME=$suite$" /etc/os-release && [ -e /etc/apt/sources.list.d/debian.sources ]; then
    sources=(/etc/apt/sources.list.d/debian.sources)
fi
apt-config dump | grep -E '^Acquire::(https?::|Check-)' >"$work/apt.conf" || true
key=$(cat "$work/apt.conf" "${sources[@]}" - <<<"$suite $packages" | git hash-object --stdin | cut -c 1-12)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/mcp-code-bridge
base=$cache/bare-$suite-$key.tar
if [ ! -e "$base" ]; then
    echo "== a bare Debian $suite, into $base"
    mkdir -p "$cache"
    mmdebstrap --quiet --variant=minbase --include="$packages" --aptopt="$work/apt.conf" \
        "$suite" "$work/base.tar" "${sources[@]}"
    mv "$work/base.tar" "$base"
fi

# --- a fresh copy, with this machine's way to the registries, and a clone ------------------------------------------

mkdir "$root"
tar -C "$root" -xf "$base"
if [ "$user" = root ]; then home=/root; else home=/home/$user; fi
copy() { # copy FILE [TO]: if it is there
    if [ -r "$1" ]; then install -D -m 644 "$1" "$root${2:-$1}"; fi
}
copy /etc/resolv.conf
copy /etc/hosts
echo '127.0.1.1 bare-debian' >>"$root/etc/hosts"
copy /etc/ssl/certs/ca-certificates.crt
copy /etc/pip.conf
copy "$HOME/.config/pip/pip.conf" "$home/.config/pip/pip.conf"
copy "$HOME/.config/uv/uv.toml" "$home/.config/uv/uv.toml"
copy "$HOME/.npmrc" "$home/.npmrc"
copy /etc/npmrc

variables=(CI=true HOME="$home" USER="$user" LANG=C.UTF-8 TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY \
    PIP_INDEX_URL PIP_TRUSTED_HOST UV_DEFAULT_INDEX UV_INDEX_URL npm_config_registry NPM_CONFIG_REGISTRY; do
    if [ -n "${!name:-}" ]; then variables+=("$name=${!name}"); fi
done

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

# enter COMMAND...: in the root, alone with it, in the checkout.
enter() {
    # shellcheck disable=SC2016
    unshare --mount --pid --uts --ipc --fork --kill-child --propagation private bash -euc '
        root=$1 checkout=$2
        shift 2
        mount --bind "$root" "$root"
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount --rbind /dev "$root/dev"
        mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
        mount -t tmpfs -o mode=755 tmpfs "$root/run"
        mkdir "$root/.old"
        cd "$root"
        pivot_root . .old
        umount -l /.old
        rmdir /.old
        hostname bare-debian
        cd "$checkout"
        exec "$@"
    ' enter "$root" "$checkout" env -i "${variables[@]}" "${as_user[@]}" "$@" </dev/null
}

# timed WHAT COMMAND...: run it in the root; its seconds are left in $took.
timed() {
    local what=$1 before=$SECONDS
    shift
    echo "== $what"
    enter "$@" || { echo "bare-debian-test: failed: $what" >&2 && exit 1; }
    took=$((SECONDS - before))
    echo "== $what: $took s"
    times+=("$(printf '%4d s  %s' "$took" "$what")")
}

quick() {
    [ "$took" -le "$QUICK" ] || { echo "bare-debian-test: took $took s, more than $QUICK: $1" >&2 && exit 1; }
}

times=()
for program in podman docker runc crun uv pip3 node npm; do
    if enter sh -c "command -v $program"; then
        echo "bare-debian-test: not bare: has $program" >&2
        exit 1
    fi
done

timed "make demo, on a bare machine, as $user" make demo
timed "make demo, again" make demo
quick "the second make demo"
if [ -n "$with_test" ]; then
    timed "make test ARGS='$*'" make test ARGS="$*"
    timed "the set-up of make test, again" make setup-test
    quick "the second set-up of make test"
fi
printf '%s\n' "== on a bare Debian $suite, as $user:" "${times[@]}"
