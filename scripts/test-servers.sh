#!/bin/sh
# Install the real MCP servers and clients that the tests use. Idempotent: what is there in the right version stays.
#
#   scripts/test-servers.sh [servers|clients]    one of the two, or both; more servers come with the clients
#
# Into $MCP_BRIDGE_TEST_CACHE, or .cache/servers in the repository. Needs npm (Node 22.19 or later) and uv.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
cache=${MCP_BRIDGE_TEST_CACHE:-$repository/.cache/servers}
mkdir -p "$cache"

locks=$repository/requirements

# node_packages DIRECTORY LOCK: exactly what the lock names, by its hash. None of them needs its install script, and newer
# npm runs none unasked.
node_packages() {
    want=$(cat "$locks/$2/package.json" "$locks/$2/package-lock.json" | cksum)
    if [ "$(cat "$cache/$1/.installed" 2>/dev/null || true)" != "$want" ]; then
        mkdir -p "$cache/$1"
        cp "$locks/$2/package.json" "$locks/$2/package-lock.json" "$cache/$1/"
        npm ci --prefix "$cache/$1" --no-audit --no-fund --ignore-scripts --loglevel=error
        printf '%s\n' "$want" >"$cache/$1/.installed"
    fi
}

# The clients are 1.2 GB, nearly all of it programs for this kind of machine (Codex and Claude Code 400 MB each, opencode 180):
# the demonstration doesn't wait for them. Of opencode it is the program for any x86-64 Linux: its own package brings two.
if [ "${1:-clients}" = clients ]; then
    node_packages clients node-clients
    # Servers that are started all at once, by tests alone.
    node_packages many node-many-servers
    # An authorization server, for logins.
    node_packages oauth node-oauth
    # The official conformance suite of MCP.
    node_packages conformance node-conformance
    [ -z "${1:-}" ] || exit 0
fi

node_packages npm node-servers
# Each in an environment of its own: some need an SDK older than others'.
for name in mcp-server-git mcp-server-time; do
    want=$(cksum <"$locks/$name.txt")
    if [ "$(cat "$cache/$name/.installed" 2>/dev/null || true)" != "$want" ]; then
        rm -rf "${cache:?}/$name"
        uv venv --quiet "$cache/$name"
        uv pip install --quiet --python "$cache/$name/bin/python" --require-hashes --no-build -r "$locks/$name.txt"
        printf '%s\n' "$want" >"$cache/$name/.installed"
    fi
done

echo "test servers are in $cache"
