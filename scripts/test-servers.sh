#!/bin/sh
# Install the real MCP servers and clients that the tests use. Idempotent: what is there in the right version stays.
#
#   scripts/test-servers.sh [servers|clients]    one of the two, or both
#
# Into $MCP_BRIDGE_TEST_CACHE, or .cache/servers in the repository. Needs npm (Node 22.19 or later) and uv.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
cache=${MCP_BRIDGE_TEST_CACHE:-$repository/.cache/servers}
mkdir -p "$cache"

node_servers='@modelcontextprotocol/server-everything@2026.8.31
@modelcontextprotocol/server-filesystem@2026.8.31
@modelcontextprotocol/server-memory@2026.8.31'

# Each in an environment of its own: some need an SDK older than others'.
python_servers='mcp-server-git==2026.10.19
mcp-server-time==2026.10.19'

# Claude Code is a binary of some 400 MB: the demonstration doesn't wait for it.
node_clients='@modelcontextprotocol/inspector@2.12.0
@anthropic-ai/claude-code@2.1.330'

# npm_packages DIRECTORY PACKAGES: all in one go, since npm would take what is there already for superfluous. None of
# them needs its install script, and newer npm runs none unasked.
npm_packages() {
    if [ "$(cat "$cache/$1/.installed" 2>/dev/null || true)" != "$2" ]; then
        mkdir -p "$cache/$1"
        # shellcheck disable=SC2086 # one word a package
        npm install --prefix "$cache/$1" --no-audit --no-fund --no-save --ignore-scripts --loglevel=error $2
        printf '%s\n' "$2" >"$cache/$1/.installed"
    fi
}

if [ "${1:-clients}" = clients ]; then
    npm_packages clients "$node_clients"
    [ -z "${1:-}" ] || exit 0
fi

npm_packages npm "$node_servers"
for requirement in $python_servers; do
    name=${requirement%%==*}
    if [ "$(cat "$cache/$name/.installed" 2>/dev/null || true)" != "$requirement" ]; then
        rm -rf "${cache:?}/$name"
        uv venv --quiet "$cache/$name"
        uv pip install --quiet --python "$cache/$name/bin/python" "$requirement"
        printf '%s\n' "$requirement" >"$cache/$name/.installed"
    fi
done

echo "test servers are in $cache"
