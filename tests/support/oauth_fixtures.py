"""A real authorization server (npm's oidc-provider), an MCP server that wants its tokens, and a person who logs in.

A test module asks for them with `pytest_plugins = ["oauth_fixtures"]`.
"""

import contextlib
import json
import queue
import re
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urljoin

import anyio
import httpx2
import pytest
from server_fixtures import cached

from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettings
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.downstream.oauth.login import log_in
from mcp_bridge.downstream.oauth.login_store import LoginStore
from mcp_bridge.downstream.oauth.redirects import read_answer
from mcp_bridge.policy.secrets.secret_stores import LOGINS_FILE_NAME, SecretFile

HERE = Path(__file__).parent / "oauth"

SECONDS = 60
"""For anything here: far more than it takes on a busy machine."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Process:
    """A server in a process of its own, and the lines that it has written."""

    def __init__(self, *command):
        self.lines = []
        self._new = queue.Queue()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.wait_for(lambda line: line == "ready")
        except BaseException:
            self.stop()
            raise

    def _read(self):
        for line in self._process.stdout:
            self._new.put(line.rstrip("\n"))
        self._new.put(None)

    def seen(self):
        """All lines so far."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.lines.append(self._new.get_nowait())
        return self.lines

    def wait_for(self, wanted):
        """Wait until a line is there, from now on."""
        deadline = time.monotonic() + SECONDS
        while True:
            line = self._new.get(timeout=max(0.0, deadline - time.monotonic()))
            assert line is not None, f"{self._process.args[:2]} has ended"
            self.lines.append(line)
            if wanted(line):
                return line

    def stop(self):
        self._process.kill()
        self._process.wait(SECONDS)
        self._process.stdout.close()


class AuthorizationServer(Process):
    def __init__(self):
        self.port, self.secret = free_port(), secrets.token_hex(16)
        self.url = f"http://127.0.0.1:{self.port}"
        node = shutil.which("node") or pytest.fail("node is not on the PATH", pytrace=False)
        package = cached("oauth/node_modules/oidc-provider")
        super().__init__(node, str(HERE / "authorization_server.mjs"), str(self.port), str(package), self.secret)

    def behave(self, **behaviour):
        httpx2.post(f"{self.url}/control", json=behaviour, timeout=SECONDS).raise_for_status()

    def forget(self, token):
        """Have an access token end, and its login go on."""
        httpx2.post(f"{self.url}/forget", content=token, timeout=SECONDS).raise_for_status()

    def events(self, event, **details):
        """What has happened, of one kind."""
        # The line of what was answered may still be on its way.
        httpx2.post(f"{self.url}/control", json={}, timeout=SECONDS)
        found = [json.loads(line) for line in self.seen() if line.startswith("{")]
        return [each for each in found if each["event"] == event and details.items() <= each.items()]

    def active(self, token):
        """What it says of a token (RFC 7662)."""
        answer = httpx2.post(
            f"{self.url}/token/introspection", data={"token": token}, auth=("resource", self.secret), timeout=SECONDS
        )
        return answer.json()["active"]


class ProtectedServer(Process):
    def __init__(self, authorization_server):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        script = str(HERE / "protected_server.py")
        super().__init__(sys.executable, script, str(self.port), authorization_server.url, authorization_server.secret)


@pytest.fixture(scope="module")
def oauth_servers():
    """Both servers, for all tests of a module."""
    authorization = AuthorizationServer()
    try:
        protected = ProtectedServer(authorization)
        yield authorization, protected
        protected.stop()
    finally:
        authorization.stop()


@pytest.fixture
def authorization_server(oauth_servers):
    server, _ = oauth_servers
    server.behave(ttl=3600, audience=None, token="", format="opaque", rotates=True)
    server.events("")
    server.lines.clear()
    return server


@pytest.fixture
def protected_server(oauth_servers):
    _, server = oauth_servers
    server.seen().clear()
    return server


def consent(address, *, user="somebody", follow_back=True):
    """Log in and consent as a browser does; gives the address that the authorization server sends to at the end."""
    with httpx2.Client(timeout=SECONDS) as browser:
        for _ in range(20):
            answer = browser.get(address)
            if answer.status_code == 200 and (prompt := re.search(r'name="prompt" value="(\w+)"', answer.text)):
                action = re.search(r'action="([^"]+)"', answer.text)[1]
                form = {"prompt": prompt[1], "login": user, "password": "x"}
                answer = browser.post(urljoin(address, action), data=form)
            assert answer.is_redirect, (answer.status_code, answer.text[:500])
            address = urljoin(str(answer.url), answer.headers["location"])
            if "/callback?" in address or "error=" in address:
                if follow_back:
                    browser.get(address)
                return address
    raise AssertionError("the login goes round in circles")


class Visitor:
    """A person who follows the address in a browser on this machine.

    `change` makes another address of the one that the browser is sent to.
    """

    def __init__(self, user="somebody", change=None, *, pastes=False):
        self.user, self.change, self.pastes = user, change, pastes
        self.shown = None
        self.sent_to = None
        self._came = anyio.Event()

    async def show(self, address):
        self.shown = address
        threading.Thread(target=self._visit, args=(address,), daemon=True).start()

    def _visit(self, address):
        sent_to = consent(address, user=self.user, follow_back=False)
        self.sent_to = self.change(sent_to) if self.change else sent_to
        if not self.pastes:
            with contextlib.suppress(httpx2.HTTPError):
                httpx2.get(self.sent_to, timeout=SECONDS)

    async def paste(self, state):
        if not self.pastes:
            await anyio.sleep_forever()
        while self.sent_to is None:  # noqa: ASYNC110  (another thread sets it)
            await anyio.sleep(0.01)
        return read_answer(self.sent_to, state)


def server_spec(protected_server, **settings):
    oauth = settings.pop("oauth", None)
    return ServerSpec(
        name=settings.pop("name", "guarded"),
        type="http",
        url=protected_server.url,
        oauth=OAuthSettings(**oauth) if oauth is not None else None,
        **settings,
    )


def login_store(state):
    return LoginStore(SecretFile(state, LOGINS_FILE_NAME, "log in anew"), state)


async def logged_in(spec, state, person=None, store=None):
    """Log in as a person; gives the login."""
    tls = httpx2.create_ssl_context()
    return await log_in(spec, spec.oauth, spec.headers, store or login_store(state), person or Visitor(), tls)
