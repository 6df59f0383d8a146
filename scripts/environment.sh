# shellcheck shell=sh
# To be sourced from the repository's root: the environment in which its tools run.
# The project's own tools and servers come first on the PATH; nothing outside .cache and .venv is touched.

servers=${MCP_BRIDGE_TEST_CACHE:-$PWD/.cache/servers}
PATH="$PWD/.cache/bin:$servers/npm/node_modules/.bin:$servers/mcp-server-git/bin:$servers/mcp-server-time/bin:$PATH"
# Debian keeps runc out of a user's PATH.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
export PATH

# The Python that runs everything: $PYTHON, else the first on the PATH that is new enough.
if [ -z "${PYTHON:-}" ]; then
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            PYTHON=$candidate
            break
        fi
    done
fi
export PYTHON="${PYTHON:-}"

# Hundreds of processes import the same modules here: each module is compiled once, whatever the machine's habit is.
unset PYTHONDONTWRITEBYTECODE
# A user's commands buffer what they print, and so do the tests' commands.
unset PYTHONUNBUFFERED

# A Python that uv fetched for itself would come from no package registry.
export UV_PYTHON_DOWNLOADS=never
# The system's certificates: a company's own root is among them, in uv's bundle it isn't.
export UV_SYSTEM_CERTS=true
if [ -z "${NODE_EXTRA_CA_CERTS:-}" ] && [ -r /etc/ssl/certs/ca-certificates.crt ]; then
    export NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
fi
if [ -n "$PYTHON" ]; then
    eval "$("$PYTHON" -I scripts/registries.py)"
fi
