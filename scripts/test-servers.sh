#!/bin/sh
# Install the real MCP servers that the tests talk to. Idempotent: what is there in the right version stays.
#
#   scripts/test-servers.sh            into $MCP_BRIDGE_TEST_CACHE, or .cache/servers in the repository
#
# Needs npm (Node 20 or later) and uv.
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

if [ "$(cat "$cache/npm/.installed" 2>/dev/null || true)" != "$node_servers" ]; then
    mkdir -p "$cache/npm"
    # shellcheck disable=SC2086 # one word a server
    npm install --prefix "$cache/npm" --no-audit --no-fund --no-save --loglevel=error $node_servers
    printf '%s\n' "$node_servers" >"$cache/npm/.installed"
fi

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
