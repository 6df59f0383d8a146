"""`mcp-bridge servers login|logout|status`, as a person types them, against a real authorization server."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from oauth_fixtures import (
    SECONDS,
    authorization_server,  # noqa: F401
    consent,
    oauth_servers,  # noqa: F401
    protected_server,  # noqa: F401
)

COMMAND = str(Path(sys.executable).parent / "mcp-bridge")

ADDRESS = re.compile(r"^  (http\S+)$", re.MULTILINE)


class User:
    def __init__(self, folder, url, table=""):
        self.folder = folder
        self.state = folder / "state"
        self.config = folder / "mine.toml"
        self.config.write_text(f'client_configs = false\n[servers.guarded]\nurl = "{url}"\n{table}\n')
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "MCP_BRIDGE_STATE_DIR": str(self.state),
            "MCP_BRIDGE_CONFIG": str(self.config),
        }

    def run(self, *arguments, code=0):
        done = subprocess.run(
            [COMMAND, "servers", *arguments],
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def status(self, code=0):
        return json.loads(self.run("status", "guarded", "--json", code=code).stdout)["logins"][0]

    def log_in(self, *options, pastes=False, wait_for=None, **env):
        """Log in; gives what was printed, and the arguments of the processes meanwhile."""
        login = subprocess.Popen(
            [COMMAND, "servers", "login", "guarded", *options],
            env=self.env | env,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        watchdog = threading.Timer(SECONDS, login.kill)
        watchdog.start()
        try:
            printed = ""
            while not (match := ADDRESS.search(printed)):
                line = login.stdout.readline()
                assert line, (printed, login.stderr.read())
                printed += line
            address = match[1]
            # Until the line after it, which says what to do.
            printed += login.stdout.readline() + (login.stdout.readline() if pastes else "")
            deadline = time.monotonic() + SECONDS
            while wait_for is not None and not wait_for.exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
            sent_to = consent(address, user="ada", follow_back=not pastes)
            seen = arguments_of_all_processes()
            # A wrong one first: it is said, and the right one is taken after it.
            out, err = login.communicate(f"http://127.0.0.1:1/callback?code=x&state=y\n{sent_to}\n" if pastes else "")
        finally:
            watchdog.cancel()
            login.kill()
            login.wait()
        assert login.returncode == 0, (out, err)
        return address, printed + out + err, seen


def arguments_of_all_processes():
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(process.read_bytes())
        except OSError:
            continue
    return b"\n".join(found)


@pytest.fixture
def user(tmp_path, protected_server):
    return User(tmp_path, protected_server.url)


def test_a_person_logs_in_looks_and_logs_out(user, authorization_server):
    assert user.status(code=1)["state"] == "none"
    address, said, seen = user.log_in()
    assert f"Logged in to guarded at {authorization_server.url}." in said
    row = user.status()
    assert (row["state"], row["issuer"], row["renewable"]) == ("logged in", authorization_server.url, True)
    assert "tools" in row["scopes"]
    kept = json.loads((user.state / "logins.json").read_text())["secrets"].values()
    tokens = json.loads(next(iter(kept)))["tokens"]
    shown = said + user.run("status").stdout
    for token in (tokens["access_token"], tokens["refresh_token"]):
        assert token not in shown
        assert token.encode() not in seen
    # Who sees the address could answer in the person's place.
    assert address.encode() not in seen
    assert "they are revoked" in user.run("logout", "guarded").stdout
    assert not authorization_server.active(tokens["refresh_token"])
    assert user.status(code=1)["state"] == "none"
    assert "There was no login" in user.run("logout", "guarded").stdout


def test_the_log_has_no_query_of_an_address(tmp_path, protected_server):
    user = User(tmp_path, f"{protected_server.url}?key=s3cret-of-mine")
    log = tmp_path / "log"
    user.config.write_text(f'log_level = "info"\nlog_file = "{log}"\n{user.config.read_text()}')
    _, said, _ = user.log_in()
    ended = user.run("logout", "guarded")
    assert "s3cret-of-mine" not in said + ended.stdout + ended.stderr + log.read_text()


def test_without_a_browser_the_address_is_pasted(user):
    _, said, _ = user.log_in("--no-browser", pastes=True)
    assert "paste that page's address" in said
    assert "that address doesn't belong to this login" in said
    assert "Logged in to guarded" in said


def test_a_browser_gets_the_address_through_a_file_of_this_user(user, tmp_path):
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/arguments.new\nmv {tmp_path}/arguments.new {tmp_path}/arguments\n'
    )
    browser.chmod(0o700)
    address, said, _ = user.log_in(BROWSER=f"{browser} %s", DISPLAY=":99", wait_for=tmp_path / "arguments")
    assert "the page that the browser has opened" in said
    argument = (tmp_path / "arguments").read_text()
    assert argument.startswith(f"file://{user.state}/ui-")
    assert "state=" in address
    assert "state=" not in argument
    assert not list(user.state.glob("ui-*"))


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('headers = { Authorization = "Bearer abc" }', "its own Authorization"),
        (
            '[servers.guarded.oauth]\ngrant = "client_credentials"\nclient_id = "a"\nclient_secret = "b"\n'
            'issuer = "https://auth.example.com"',
            "logs in automatically",
        ),
    ],
)
def test_nobody_logs_in_where_that_has_no_meaning(tmp_path, protected_server, table, why):
    user = User(tmp_path, protected_server.url, table)
    assert why in user.run("login", "guarded", code=1).stderr
    assert not user.state.exists()


def test_nobody_logs_in_to_a_process(tmp_path):
    user = User(tmp_path, "https://mcp.example.com/mcp", '[servers.local]\ncommand = "true"')
    said = user.run("login", "local", code=1).stderr
    assert "login_failed" in said
    assert "is started as a process, and takes its credentials from env" in said


def test_a_server_that_isnt_there_is_named(user):
    assert "unknown_server" in user.run("login", "gaurded", code=2).stderr


def test_a_server_without_tls_gets_no_login(tmp_path):
    user = User(tmp_path, "http://mcp.example.com/mcp")
    assert "without TLS" in user.run("login", "guarded", code=1).stderr


def test_a_login_that_nobody_hears_of_leaves_nothing(user, authorization_server):
    authorization_server.behave(audience="https://elsewhere.example")
    login = subprocess.Popen(
        [COMMAND, "servers", "login", "guarded"],
        env=user.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    consent(next(match[1] for line in login.stdout if (match := ADDRESS.match(line))))
    _, err = login.communicate(timeout=SECONDS)
    assert login.returncode == 1
    assert "login_failed" in err
    assert not (user.state / "logins.json").exists()


@pytest.mark.parametrize("command", ["login", "logout"])
def test_a_folders_server_gets_no_variable_by_a_login_that_it_wouldnt_get_by_a_call(tmp_path, command):
    seen = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, dict(self.headers)))
            self.send_error(404)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/mcp"
    user = User(tmp_path, "http://127.0.0.1:1/mcp")
    user.config.write_text('[secrets.github]\nenv = "GITHUB_SECRET"\n')
    folder = tmp_path / "checkout"
    folder.mkdir()
    entry = {"type": "http", "url": f"{url}?${{GITHUB_SECRET}}", "headers": {"X-Key": "${GITHUB_SECRET}"}}
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"docs": entry}}))
    (tmp_path / ".claude.json").write_text(
        json.dumps({"projects": {str(folder): {"enabledMcpjsonServers": ["docs"], "hasTrustDialogAccepted": True}}})
    )
    user.folder = folder
    user.env["GITHUB_SECRET"] = "ghp-of-the-user-alone"  # noqa: S105
    try:
        if command == "login":
            refused = user.run("login", "docs", "--no-browser", code=1)
            assert "may not have the variable GITHUB_SECRET" in refused.stderr
        else:
            assert "no login" in user.run("logout", "docs").stdout
    finally:
        server.shutdown()
        server.server_close()
    assert seen == []
