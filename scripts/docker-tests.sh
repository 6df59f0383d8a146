#!/usr/bin/env bash
# Run the tests with Docker: with the daemon that answers, else with one of our own, as root.
#
#   scripts/docker-tests.sh [PYTEST ARGUMENT...]
#
# A daemon that this script starts has a store and a socket of its own, no bridge and no firewall rules, and is gone
# afterwards with all that it held.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly START_SECONDS=60 # for the daemon to answer
readonly STOP_SECONDS=30  # for the daemon to end after SIGTERM

if ! command -v docker >/dev/null || { ! command -v dockerd >/dev/null && ! docker info >/dev/null 2>&1; }; then
    [ "$(id -u)" = 0 ] || { echo "docker-tests: needs root, to install docker.io" >&2 && exit 2; }
    [ -n "${APT_IS_FRESH:-}" ] || apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 \
        install -y --no-install-recommends --no-upgrade docker.io
fi

daemon='' work=''
clean_up() {
    local code=$? waited=0
    trap - EXIT
    if [ -n "$daemon" ]; then
        kill -TERM "$daemon" 2>/dev/null || true
        while kill -0 "$daemon" 2>/dev/null; do
            [ "$waited" -lt "$STOP_SECONDS" ] || kill -KILL "$daemon" 2>/dev/null || true
            sleep 1
            waited=$((waited + 1))
        done
        wait "$daemon" 2>/dev/null || true
        # A daemon that had to be killed leaves its mounts.
        awk -v under="$work/" 'index($2, under) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r umount || true
        rm -rf --one-file-system "$work" || true
    fi
    exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if ! timeout 20 docker info >/dev/null 2>&1; then
    [ "$(id -u)" = 0 ] || { echo "docker-tests: needs root, to start a Docker daemon" >&2 && exit 2; }
    # Debian's service may have been started by the installation, and failed, or not answer yet: ours is apart.
    work=$(mktemp -d /var/tmp/mcp-bridge-docker.XXXXXX)
    export DOCKER_HOST=unix://$work/socket
    # setsid: a Ctrl-C is for the tests, and the daemon must outlive their clean-up.
    setsid dockerd --host "$DOCKER_HOST" --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" \
        --iptables=false --ip6tables=false --ip-masq=false --bridge=none \
        --storage-driver=overlay2 --exec-opt native.cgroupdriver=cgroupfs >"$work/log" 2>&1 &
    daemon=$!
    for ((second = 0; ; second++)); do
        ! timeout 10 docker info >/dev/null 2>&1 || break
        if [ "$second" -ge "$START_SECONDS" ] || ! kill -0 "$daemon" 2>/dev/null; then
            echo "docker-tests: the daemon does not answer" >&2
            tail -n 20 "$work/log" >&2
            exit 1
        fi
        sleep 1
    done
fi

bash scripts/setup.sh check
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
echo "== the tests with $(docker version --format 'Docker {{.Server.Version}}')"
export MCP_BRIDGE_RUNTIME=docker
.venv/bin/python -m pytest "$@"
