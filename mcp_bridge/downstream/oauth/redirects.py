"""The answer of an authorization server to a login: an address that it sends the person's browser to.

A receiver listens on loopback for the browser (RFC 8252, section 7.3). Where the browser is on another machine, the
person copies the address.
"""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qs, urlsplit

import anyio
from anyio.abc import SocketAttribute
from mcp.shared.auth import AuthorizationCodeResult

from mcp_bridge.downstream.oauth.login_errors import shown_error
from mcp_bridge.downstream.oauth.oauth_flow import FlowError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import Listener, SocketStream

DEFAULT_PATH = "/callback"

MAX_ANSWER_CHARS = 16 << 10
"""Of an address with its code and state, or of a request's head."""

_READ_SECONDS = 10.0
"""For the head of one request. A browser on this machine sends it at once."""

_CONNECTIONS = 16
"""Browsers open a few connections. Others wait."""

_MAX_PARAMETERS = 50

_PAGE = """<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>mcp-bridge</title>
<p style="font: 1.1rem system-ui; margin: 3rem">{}</p>
"""


Answer: TypeAlias = AuthorizationCodeResult
"""What an authorization server answers to a login: a code."""


class NotThisLoginError(Exception):
    """An answer that doesn't belong to this login."""


def read_answer(text: str, state: str) -> AuthorizationCodeResult:
    """Decode the address of a redirect, or its query.

    Args:
        text: The address.
        state: The state of this login.

    Raises:
        NotThisLoginError: It has no state, or another.
        FlowError: The authorization server has refused the login, or there is no code.
    """
    text = text.strip()
    if len(text) > MAX_ANSWER_CHARS:
        raise NotThisLoginError
    try:
        query = urlsplit(text).query if "?" in text else text
        values = parse_qs(query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
    except ValueError:
        raise NotThisLoginError from None
    # No parameter comes twice (RFC 6749, section 3.1): of two states one could be anybody's.
    given = {name: found[0] for name, found in values.items() if len(found) == 1}
    if not secrets.compare_digest(given.get("state", "").encode(), state.encode()):
        raise NotThisLoginError
    if "error" in given:
        shown = shown_error(dict(given), (state,))[1]
        raise FlowError(f"the authorization server refuses: {shown or 'it gives no reason'}")
    if not given.get("code"):
        raise FlowError("the answer has no code")
    return AuthorizationCodeResult(code=given["code"], state=given["state"], iss=given.get("iss"))


class RedirectReceiver:
    """Receives the redirect of one login. Made by `receive_redirect`.

    Attributes:
        redirect_uri: Where the browser is to be sent.
    """

    def __init__(self, listener: Listener[SocketStream], redirect_uri: str) -> None:
        self.redirect_uri = redirect_uri
        self._listener = listener
        self._path = urlsplit(redirect_uri).path or "/"
        self._connections = anyio.CapacityLimiter(_CONNECTIONS)
        self._state: str | None = None
        self._answered = anyio.Event()
        self._outcome: AuthorizationCodeResult | FlowError | None = None

    async def wait(self, state: str) -> AuthorizationCodeResult:
        """Wait for the answer to the login with this state. Other requests are refused, and change nothing.

        Raises:
            FlowError: As `read_answer`.
        """
        self._state = state
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._listener.serve, self._handle)
            await self._answered.wait()
            tasks.cancel_scope.cancel()
        if isinstance(self._outcome, AuthorizationCodeResult):
            return self._outcome
        raise self._outcome or FlowError("no answer has come")

    async def _handle(self, stream: SocketStream) -> None:
        async with stream, self._connections:
            with anyio.move_on_after(_READ_SECONDS):
                try:
                    await self._respond(stream)
                except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                    return

    async def _respond(self, stream: SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head and len(head) <= MAX_ANSWER_CHARS:
            head += await stream.receive(4096)
        method, _, rest = head.partition(b"\r\n")[0].decode("ascii", errors="replace").partition(" ")
        target = rest.partition(" ")[0]
        if method != "GET" or target.partition("?")[0] != self._path:
            await _send(stream, "404 Not Found", "There is nothing here.")
            return
        outcome: AuthorizationCodeResult | FlowError
        try:
            outcome = read_answer(target, self._state or "")
        except NotThisLoginError:
            await _send(stream, "400 Bad Request", "This answer belongs to no login that is under way.")
            return
        except FlowError as error:
            outcome = error
            await _send(stream, "200 OK", "The login was refused. You can close this page.")
        else:
            await _send(stream, "200 OK", "You are logged in once the terminal says so. You can close this page.")
        if not self._answered.is_set():
            self._outcome = outcome
            self._answered.set()


async def _send(stream: SocketStream, status: str, text: str) -> None:
    body = _PAGE.format(text).encode()
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
        "cache-control: no-store\r\nreferrer-policy: no-referrer\r\ncontent-security-policy: default-src 'none';"
        " style-src 'unsafe-inline'\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
    )
    await stream.send(head.encode() + body)


@asynccontextmanager
async def receive_redirect(configured: str | None) -> AsyncIterator[RedirectReceiver]:
    """Listen for a redirect on loopback.

    Args:
        configured: The redirect URI that a client is registered with, or None for a free port.

    Raises:
        FlowError: The port is taken.
    """
    parts = urlsplit(configured or f"http://127.0.0.1:0{DEFAULT_PATH}")
    host = parts.hostname or "127.0.0.1"
    address = "127.0.0.1" if host == "localhost" else host
    try:
        listener = await anyio.create_tcp_listener(local_host=address, local_port=parts.port or 0)
    except OSError as exc:
        raise FlowError(f"{address}:{parts.port} can't be listened on: {exc.strerror}") from None
    async with listener:
        port = listener.extra(SocketAttribute.local_port)  # noqa: S610  (no database here)
        shown = f"[{host}]" if ":" in host else host
        yield RedirectReceiver(listener.listeners[0], f"http://{shown}:{port}{parts.path or DEFAULT_PATH}")
