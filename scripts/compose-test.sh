#!/usr/bin/env bash
# Tries examples/compose: types the commands of its README with podman-compose, and calls run_python as a client.
#
#   scripts/compose-test.sh
#
# No image can be pulled everywhere: the image that it begins from is a bare Debian. Needs root, podman and podman-compose.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/bare-debian.sh
. scripts/bare-debian.sh

readonly BASE=localhost/mcp-bridge-compose-base IMAGE=localhost/mcp-code-bridge-server
readonly PROJECT=mcp-bridge-compose-test

bare_debian_needs_root
bare_debian bookworm ca-certificates,passwd,python3,python3-venv

# --- the image: this checkout, by this machine's way to the registries ------------------------------------------------

reaches_registries /root
make -s wheel
install -D -m 644 -t "$root/packages" dist/*.whl
arguments=()
for variable in "${variables[@]}"; do
    case $variable in HOME=* | PATH=* | LANG=* | TERM=*) ;; *) arguments+=(--env "$variable") ;; esac
done
tar -C "$root" -c . | podman import --quiet - "$BASE" >/dev/null

# crun refuses some hosts' control groups, and podman's own limits are above some hosts'.
cat >"$work/containers.conf" <<'END'
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
END
export CONTAINERS_CONF=$work/containers.conf

export PYTHONPATH=$PWD/tests/support
python=$PWD/.venv/bin/python client=$PWD/scripts/compose_client.py
cp -r examples/compose "$work/compose"
cd "$work/compose"
# The image is built below, on this machine's network: old versions would build it again at each command.
sed -i '/^    build:/d' compose.yaml

docker() {
    shift
    case $1 in
    build)
        podman build --quiet --network host --isolation chroot "${arguments[@]}" --build-arg BASE="$BASE" \
            --build-arg PACKAGE="/$(cd "$root" && echo packages/*.whl)" --tag "$IMAGE" .
        ;;
    *) podman-compose -p "$PROJECT" "$@" ;;
    esac
}

clean_up() {
    (cd "$work/compose" && docker compose down -v) >/dev/null 2>&1 || true
    podman rmi --force "$IMAGE" "$BASE" >/dev/null 2>&1 || true
    bare_debian_clean_up
}
trap clean_up EXIT

# --- the commands of the page -----------------------------------------------------------------------------------------

tokens=()
while IFS= read -r command; do
    [ -n "$command" ] || continue
    echo "== $command"
    if [ "$command" = "docker compose down" ]; then
        # Just before the bridge ends: what a client gets from it.
        for token in "${tokens[@]}"; do
            "$python" "$client" http://127.0.0.1:8350/mcp "$token"
        done
        "$python" "$client" http://127.0.0.1:8350/mcp mcpb_wrong && exit 1
    fi
    output=$(eval "$command" </dev/null) || { echo "compose-test: failed: $command" >&2 && exit 1; }
    case $command in
    *" principal add "*) tokens+=("$(grep -o 'mcpb_[^[:space:]]*' <<<"$output")") ;;
    *) echo "$output" ;;
    esac
done < <("$python" -c 'from pages import blocks; print(*blocks("examples/compose/README.md", "sh"), sep="")')

[ "${#tokens[@]}" = 2 ]
[ -z "$(podman ps -aq --filter "label=io.podman.compose.project=$PROJECT")" ]
echo "compose-test: passed"
