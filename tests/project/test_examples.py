"""Every example runs, as its first lines say."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from http_servers import listens
from kept_files import kept_files
from oauth_fixtures import (
    authorization_server,  # noqa: F401
    consent,
    oauth_servers,  # noqa: F401
    protected_server,  # noqa: F401
)
from server_fixtures import CACHE, cached

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
BRIDGE = Path(sys.executable).with_name("mcp-bridge")


@pytest.fixture
def environment(tmp_path):
    for server in ("mcp-server-git/bin/mcp-server-git", "npm/node_modules/.bin/mcp-server-filesystem"):
        cached(server)
    servers = [CACHE / "npm/node_modules/.bin", CACHE / "mcp-server-git/bin", CACHE / "mcp-server-time/bin"]
    path = os.pathsep.join([str(BRIDGE.parent), *map(str, servers), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MCP_BRIDGE_")}
    return kept | {"PATH": path, "MCP_BRIDGE_CLIENT_CONFIGS": "false"}


def run(*command, environment, cwd=None, code=0):
    result = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == code, result.stderr
    return result.stdout


@pytest.fixture
def repository(tmp_path, git_repository):
    for name, value in (("user.name", "Example"), ("user.email", "example@example.org")):
        subprocess.run(["git", "-C", str(git_repository), "config", name, value], check=True)
    return git_repository


def test_hello_says_hello_and_shows_its_last_value(environment):
    printed = run("mcp-bridge", "run", str(EXAMPLES / "hello.py"), environment=environment)
    assert printed.startswith("hello from Python 3.")
    assert printed.endswith("{'answer': 42}\n")


def test_the_workflow_writes_and_commits_a_changelog(environment, repository):
    config = EXAMPLES / "workflow" / "mcp-bridge.toml"
    script = EXAMPLES / "workflow" / "changelog.py"
    printed = run(
        *("mcp-bridge", "--config", str(config), "run", str(script)),
        environment=environment | {"WORKFLOW_DIR": str(repository)},
    )
    assert printed.splitlines() == ["1 commits found", "1 lines staged in CHANGES.md", "Changes committed successfully"]
    subjects = run("git", "-C", str(repository), "log", "--format=%s", environment=environment)
    assert subjects.splitlines() == ["Write the changelog", "First commit"]
    assert (repository / "CHANGES.md").read_text() == "# Changes\n\n- First commit\n"


@pytest.fixture
def three_servers(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    config = tmp_path / "three.toml"
    config.write_text(
        "client_configs = false\n"
        '[servers.everything]\ncommand = "mcp-server-everything"\n'
        '[servers.time]\ncommand = "mcp-server-time"\nargs = ["--local-timezone", "UTC"]\n'
        f'[servers.filesystem]\ncommand = "mcp-server-filesystem"\nargs = [{json.dumps(str(files))}]\n'
    )
    return config


def test_thirty_tools_answer_in_parallel(environment, three_servers):
    printed = run(
        *("mcp-bridge", "--config", str(three_servers), "run", str(EXAMPLES / "thirty_tools.py")),
        environment=environment,
    )
    lines = printed.splitlines()
    assert lines[0] == "30 results"
    assert len(lines[1].split(", ")) == 6
    assert lines[2:] == ["56", "True"]


def test_the_smoke_test_passes_with_a_server_that_answers(environment, three_servers, tmp_path):
    printed = run(str(EXAMPLES / "ci/smoke.sh"), str(three_servers), environment=environment, cwd=tmp_path)
    assert printed == "the time server answers\n"
    assert json.loads((tmp_path / "doctor.json").read_text())["ok"] is True
    assert json.loads((tmp_path / "record.json").read_text())["stdout"] == "ok\n"


def test_the_smoke_test_fails_with_a_server_that_does_not(environment, three_servers, tmp_path):
    three_servers.write_text(three_servers.read_text().replace("mcp-server-time", "no-such-server"))
    run(str(EXAMPLES / "ci/smoke.sh"), str(three_servers), environment=environment, cwd=tmp_path, code=1)


def test_a_session_outlives_its_processes_and_is_forked(environment, three_servers, tmp_path):
    own = environment | {"MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")}
    printed = run(str(EXAMPLES / "sessions/survive.sh"), str(three_servers), environment=own)
    first, again, after, fork, _, *cells, ended, forks = printed.splitlines()
    assert first == again == after
    assert first.startswith("drawn [")
    assert fork == first.replace("]", ", 0]")
    assert [cell.split()[2] for cell in cells] == ["success", "success", "killed", "success"]
    assert (ended, forks) == ("The session survivor has ended.", "The session fork has ended.")


def test_a_person_logs_in_to_a_remote_server_and_a_script_calls_it(
    environment,
    tmp_path,
    authorization_server,
    protected_server,
):
    folder = EXAMPLES / "remote_login"
    bridge = [str(BRIDGE), "--config", str(folder / "mcp-bridge.toml")]
    environment |= {"GUARDED_URL": protected_server.url, "MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")}
    login = subprocess.Popen(
        [*bridge, "servers", "login", "guarded"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        consent(next(line.strip() for line in login.stdout if line.startswith("  http")), user="ada")
        assert "Logged in to guarded" in login.communicate(timeout=120)[0]
    finally:
        login.kill()
        login.communicate()
    printed = run(*bridge, "run", str(folder / "whoami.py"), environment=environment)
    assert printed == "the server knows me as ada\n"
    printed = run(*bridge, "servers", "logout", "guarded", environment=environment)
    assert f"revoked at {authorization_server.url}" in printed


def test_a_service_without_an_mcp_server_is_called_from_inside(environment, tmp_path):
    folder = EXAMPLES / "openapi"
    environment |= {"PETSTORE_KEY": "key-4kQ9vT2mX7pL1zR8", "MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = [sys.executable, "-m", "uvicorn", "--app-dir", str(folder), "service:app", "--port", str(port)]
    with subprocess.Popen(serve, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as service:
        try:
            environment |= {"PETSTORE_URL": f"http://127.0.0.1:{port}"}
            deadline = time.monotonic() + 60
            while not listens(port):
                assert service.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            bridge = [str(BRIDGE), "--config", str(folder / "mcp-bridge.toml")]
            printed = run(*bridge, "run", str(folder / "pets.py"), environment=environment)
        finally:
            service.kill()
    lines = printed.splitlines()
    assert lines[0] == "Rex, and Ada is number 3"
    assert "404" in lines[1]
    assert "there is no pet 99" in lines[1]
    assert lines[2] == "False"
    kept = kept_files(tmp_path / "state")
    assert kept
    assert not [path for path, data in kept.items() if b"key-4kQ9vT2mX7pL1zR8" in data]
