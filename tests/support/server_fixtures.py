"""The real servers that tests talk to, as specs; `scripts/test-servers.sh` installs them.

A test module asks for them with `pytest_plugins = ["server_fixtures"]`.
"""

import os
import shutil
from pathlib import Path

import pytest

from mcp_bridge.downstream.configuration.spec import ServerSpec

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("MCP_BRIDGE_TEST_CACHE", REPOSITORY / ".cache" / "servers"))


def cached(relative):
    """A path in the cache; the test fails, and does not skip, where it isn't there."""
    path = CACHE / relative
    if not path.exists():
        pytest.fail(f"{path} is missing: run scripts/test-servers.sh first", pytrace=False)
    return path


def _npm(name, script, *args, **settings):
    script = cached(f"npm/node_modules/@modelcontextprotocol/{script}/dist/index.js")
    node = shutil.which("node") or pytest.fail("node is not on the PATH", pytrace=False)
    return ServerSpec(name=name, command=node, args=(str(script), *args), **settings)


@pytest.fixture(scope="session")
def everything_server():
    return _npm("everything", "server-everything", "stdio")


@pytest.fixture
def filesystem_server(tmp_path):
    root = tmp_path / "files"
    root.mkdir()
    (root / "hello.txt").write_text("hello from a file\n")
    return _npm("filesystem", "server-filesystem", str(root), cwd=str(root))


@pytest.fixture
def memory_server(tmp_path):
    return _npm("memory", "server-memory", env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")})


@pytest.fixture(scope="session")
def git_server():
    return ServerSpec(name="git", command=str(cached("mcp-server-git/bin/mcp-server-git")))


@pytest.fixture(scope="session")
def time_server():
    command = str(cached("mcp-server-time/bin/mcp-server-time"))
    return ServerSpec(name="time", command=command, args=("--local-timezone", "Europe/Oslo"))


@pytest.fixture
def git_repository(tmp_path):
    """A repository with one commit."""
    import subprocess

    root = tmp_path / "repository"
    root.mkdir()
    (root / "a.txt").write_text("a\n")
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "a.txt"], [*identity, "commit", "-q", "-m", "First commit"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root
