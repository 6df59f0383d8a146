# shellcheck shell=bash
# To be sourced from the repository's root by scripts that try something on a bare Debian. Needs root, and installs mmdebstrap.
#
#   bare_debian_needs_root        stops with a sentence where this isn't root
#   bare_debian SUITE PACKAGE,…   a fresh copy of a minimal Debian with these packages, at $root; fails where it can't be made
#   as_this_machine FILE [TO]     copy a file of this machine into it, if it is there
#   reaches_registries HOME       this machine's way to the package registries, for the user with this home
#   enter DIRECTORY COMMAND...    run a command in it as root, with the environment $variables; nothing of it outlives the command
#
# The root is entered by pivot_root in namespaces of its own, so that it is a real root to the engine inside, and so that
# every process in it ends with the command. The kernel, its control groups and the network are this machine's.

bare_debian_needs_root() {
    [ "$(id -u)" = 0 ] || { echo "$(basename "$0" .sh): needs root, to build a root file system" >&2 && exit 2; }
}

bare_debian() {
    local suite=$1 packages=$2 sources=() key cache base
    if ! command -v mmdebstrap >/dev/null; then
        apt-get -qq update
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends mmdebstrap
    fi
    work=$(mktemp -d "${TMPDIR:-/var/tmp}/bare-debian.XXXXXX")
    root=$work/root
    trap bare_debian_clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM

    # The base, made once, with the mirrors and proxies that this machine reaches, where it is the same Debian.
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
            "$suite" "$work/base.tar" "${sources[@]}" || return
        mv "$work/base.tar" "$base"
    fi
    mkdir "$root"
    tar -C "$root" -xf "$base"
}

bare_debian_clean_up() {
    if [ -n "${keep:-}" ]; then
        echo "$(basename "$0" .sh): left behind: $root"
    else
        rm -rf --one-file-system "$work"
    fi
}

as_this_machine() {
    if [ -r "$1" ]; then install -D -m 644 "$1" "$root${2:-$1}"; fi
}

reaches_registries() {
    local home=$1 name
    as_this_machine /etc/resolv.conf
    as_this_machine /etc/hosts
    echo '127.0.1.1 bare-debian' >>"$root/etc/hosts"
    as_this_machine /etc/ssl/certs/ca-certificates.crt
    as_this_machine /etc/pip.conf
    as_this_machine "$HOME/.config/pip/pip.conf" "$home/.config/pip/pip.conf"
    as_this_machine "$HOME/.config/uv/uv.toml" "$home/.config/uv/uv.toml"
    as_this_machine "$HOME/.npmrc" "$home/.npmrc"
    as_this_machine /etc/npmrc
    variables=(LANG=C.UTF-8 TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
    for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY \
        PIP_INDEX_URL PIP_TRUSTED_HOST UV_DEFAULT_INDEX UV_INDEX_URL npm_config_registry NPM_CONFIG_REGISTRY; do
        if [ -n "${!name:-}" ]; then variables+=("$name=${!name}"); fi
    done
}

enter() {
    # shellcheck disable=SC2016
    unshare --mount --pid --uts --ipc --fork --kill-child --propagation private bash -euc '
        root=$1 directory=$2
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
        cd "$directory"
        exec "$@"
    ' enter "$root" "$1" env -i "${variables[@]}" "${@:2}" </dev/null
}
