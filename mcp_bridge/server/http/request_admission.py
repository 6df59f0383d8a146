"""An endpoint for principals: who asks, how much, how fast; then what answers, such as the SDK's transports.

A request is authenticated before its body is read. For MCP, the SDK's transports decide by the protocol version which
era it is of: up to 2025-11-25 it belongs to a session; from 2026-07-28 on it stands alone.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import mcp_types as types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from mcp_bridge.server.app import PRINCIPAL_KEY
from mcp_bridge.server.http.body_room import Body, BodyRoom
from mcp_bridge.server.http.draining import ending, refuse_new_work
from mcp_bridge.server.http.rate_limits import RateLimits
from mcp_bridge.server.http.refusals import RETRY_SECONDS, Ended, RefusedRequest, refused
from mcp_bridge.server.messages.decoding import UnreadableMessage, decode
from mcp_bridge.server.questions import CALL_KEY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.http_settings import HttpSettings
    from mcp_bridge.server.http.authentication.authenticator import Authenticator
    from mcp_bridge.server.questions import Questions

logger = logging.getLogger(__name__)

MAX_RATES = 10_000
"""Principals whose rate is remembered."""

REVOCATION_SECONDS = 1.0
"""After how long it is looked whether the credential of a request is still good."""

MAX_DISCARDED_BYTES, DISCARD_SECONDS = 16 << 20, 1.0
"""How much of a refused request is read, and for how long, before it is answered."""


@dataclass(slots=True)
class _Revocation:
    """The revocation state of a request's credential.

    Attributes:
        is_over: Whether it was revoked.
        principal_is_gone: Whether nobody is its principal any more, so that all that ran for it was cancelled.
    """

    is_over: bool = False
    principal_is_gone: bool = False


class Endpoint:
    """The endpoint as an ASGI application.

    Args:
        handler: Handles a request whose principal is known, at `PRINCIPAL_KEY` of its scope, and whose body is there.
        authenticator: Tells who a request is from.
        settings: The settings of HTTP.
        on_revoked: Called with a principal whose credential has ended, before its request is cancelled; tells whether
            all that runs for it has ended.
    """

    def __init__(
        self,
        handler: ASGIApp,
        authenticator: Authenticator,
        settings: HttpSettings,
        on_revoked: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        self._handler = handler
        self._authenticator = authenticator
        self._settings = settings
        self._on_revoked = on_revoked
        self._rates = RateLimits(MAX_RATES)
        self._ended = RateLimits(MAX_RATES)
        self._room = BodyRoom(settings.max_body_size)
        self._posts = 0
        self.draining = False
        """Whether calls and sessions are refused that begin now."""
        self.closed = False
        """Whether all requests are refused, because the sessions have ended."""
        self._scopes: set[anyio.CancelScope] = set()
        """Of the requests that are being handled."""

    @property
    def is_idle(self) -> bool:
        """Whether no POST request is in progress."""
        return not self._posts

    def close(self) -> None:
        """End all requests that are being handled, and refuse further ones."""
        self.closed = True
        for scope in self._scopes:
            scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        started = finished = is_stream = False

        async def watched(message: Message) -> None:
            nonlocal started, finished, is_stream
            started = True
            is_stream = is_stream or _begins_stream(message)
            finished = finished or (message["type"] == "http.response.body" and not message.get("more_body", False))
            await send(message)

        is_post = scope["method"] == "POST"
        self._posts += is_post
        try:
            await self._handle(scope, receive, watched)
            if not started:
                # Its credential has ended before it was answered: this refuses it.
                await self._authenticator.principal(HTTPConnection(scope))
            elif not finished:
                # A stream whose credential has ended: without an end, it would look like a broken connection.
                await watched({"type": "http.response.body", "body": b"", "more_body": False})
        except RefusedRequest as exc:
            # Any other answer that has begun can only be cut, which uvicorn does.
            if not started:
                await self._refusal(exc)(scope, receive, send)
            elif is_stream and not finished and isinstance(exc, Ended):
                await watched({"type": "http.response.body", "body": exc.event(), "more_body": False})
        except Exception:
            if finished:
                # The SDK answers a notification before it hands it on, and its session may have been ended meanwhile.
                logger.debug("a request failed after it was answered", exc_info=True)
                return
            # The client is told no more than that.
            logger.exception("a request could not be handled")
            if started:
                raise
            fault = refused(500, "internal_error", "The bridge met an internal error; its log has the details.")
            await self._refusal(fault)(scope, receive, send)
        finally:
            self._posts -= is_post

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self.closed:
                raise ending()
            principal = await self.admit(HTTPConnection(scope))
        except RefusedRequest:
            await _discard(receive)
            raise
        with Body(self._room, principal.name) as room:
            body = await self._body(scope, receive, room)
            if self.draining and scope["method"] == "POST":
                refuse_new_work(body)
            scope[PRINCIPAL_KEY] = principal
            # The SDK compares the user with the one that has opened the session.
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal.name, scopes=[]))
            await self._pass_on(scope, body, room, receive, send)

    async def admit(self, connection: HTTPConnection) -> Principal:
        """Whose request it is, which counts against its rate.

        Raises:
            RefusedRequest: It isn't authenticated, or there were too many.
        """
        principal = await self._authenticator.principal(connection)
        self._admit(principal, connection.scope["method"])
        return principal

    def _refusal(self, refusal: RefusedRequest) -> Response:
        """The response to a request that is refused."""
        return refusal.response()

    def _admit(self, principal: Principal, method: str) -> None:
        """Count a request against the principal's rate.

        Raises:
            RefusedRequest: There were too many.
        """
        # DELETE ends a session, and is counted by itself: who asks for too much has to be able to ask for less.
        rates = self._ended if method == "DELETE" else self._rates
        self._count(principal, principal.limits.requests_per_minute, rates)

    def _count(self, principal: Principal, rate: int | None, rates: RateLimits) -> None:
        if rate is not None and (wait := rates.take(principal.name, rate)):
            message = f"At most {rate} requests a minute are answered."
            raise refused(429, "too_many_requests", message, retry_after=str(math.ceil(wait)))

    async def _body(self, scope: Scope, receive: Receive, room: Body) -> bytes:
        """The request's body. Only that of POST means anything, and others have none.

        Raises:
            RefusedRequest: It is too large, too slow, incomplete, or there is no room for it.
        """
        limit = self._settings.max_body_size if scope["method"] == "POST" else 0
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared[:20]) > limit:
            await _discard(receive)
            raise _too_large(limit)
        parts: list[bytes] = []
        refusal: RefusedRequest | None = None
        is_last = False
        try:
            with anyio.fail_after(self._settings.read_timeout):
                while not is_last:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise refused(400, "bad_request", "The request ended before its body was complete.")
                    part = message.get("body", b"")
                    is_last = not message.get("more_body", False)
                    is_too_large = room.size + len(part) > limit
                    if is_too_large or not room.take(len(part)):
                        refusal = _too_large(limit) if is_too_large else _no_room()
                        break
                    parts.append(part)
        except TimeoutError:
            raise refused(
                408, "request_timeout", f"The request took longer than {self._settings.read_timeout:g} s to arrive."
            ) from None
        if refusal is not None:
            # Not within the time for the body: the refusal is decided.
            if not is_last:
                await _discard(receive)
            raise refusal
        return b"".join(parts)

    async def _pass_on(self, scope: Scope, body: bytes, room: Body, receive: Receive, send: Send) -> None:
        """Hand a request to the handler, until its client's credential ends.

        A client that disconnects cancels it, unless it belongs to a session.
        """
        given = False

        async def replay() -> Message:
            nonlocal given
            if not given:
                given = True
                room.hand_on()
                return {"type": "http.request", "body": body, "more_body": False}
            return await receive()

        answered = False
        calls: list[Questions] = []
        scope[CALL_KEY] = calls
        revocation = _Revocation()
        async with anyio.create_task_group() as tasks:
            self._scopes.add(tasks.cancel_scope)
            try:
                if self._authenticator.authenticates:
                    tasks.start_soon(self._cancel_when_revoked, scope, tasks.cancel_scope, revocation)
                if self._settings.json_answers and scope["method"] == "POST" and not _has_session(scope):
                    # The SDK doesn't watch the connection while it makes an answer of JSON.
                    tasks.start_soon(_cancel_when_disconnected, receive, tasks.cancel_scope)
                await self._handler(scope, replay, send)
                answered = True
            finally:
                self._scopes.discard(tasks.cancel_scope)
            tasks.cancel_scope.cancel()
        if answered:
            return
        request_id = _request_id(body)
        execution = calls[0].execution if calls else None
        if revocation.is_over and request_id is not None:
            goes_on = _has_session(scope) and not revocation.principal_is_gone
            # A session's stream can be resumed, with another token.
            if not goes_on or self._settings.json_answers:
                why = "The token was revoked, or its principal's table is gone."
                raise Ended(request_id, why, execution=execution, goes_on=goes_on)
        elif self.closed:
            if request_id is None:
                raise ending()
            raise Ended(request_id, "The bridge is being stopped.", execution=execution)

    async def _cancel_when_revoked(self, scope: Scope, tasks: anyio.CancelScope, revocation: _Revocation) -> None:
        # The credential was good a moment ago, and most requests take no longer.
        await anyio.sleep(REVOCATION_SECONDS)
        request = HTTPConnection(scope)
        # A client that is told of an expired token sends a call again that has been running: it was begun in time.
        await (self._authenticator.revoked if scope["method"] == "POST" else self._authenticator.ended)(request)
        revocation.is_over = True
        if self._on_revoked is not None:
            revocation.principal_is_gone = await self._on_revoked(scope[PRINCIPAL_KEY].name)
        tasks.cancel()


def _request_id(body: bytes) -> types.RequestId | None:
    """The id of a request that has been begun; None if the body is none."""
    try:
        message = decode(body).message
    except UnreadableMessage:
        return None
    return message.id if isinstance(message, types.JSONRPCRequest) else None


async def _discard(receive: Receive) -> None:
    """Read the rest of a refused request's body, within bounds.

    A connection that is closed with unread bytes is reset, and the client may lose the answer.
    """
    size = 0
    with anyio.move_on_after(DISCARD_SECONDS):
        while size < MAX_DISCARDED_BYTES:
            message = await receive()
            size += len(message.get("body", b""))
            if message["type"] != "http.request" or not message.get("more_body", False):
                return


async def _cancel_when_disconnected(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _begins_stream(message: Message) -> bool:
    return Headers(raw=message.get("headers", ())).get("content-type", "").startswith("text/event-stream")


def _has_session(scope: Scope) -> bool:
    """Whether a request belongs to a session. One of 2026-07-28 stands alone, whatever its client has left of one."""
    headers = Headers(scope=scope)
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    return MCP_SESSION_ID_HEADER in headers and version not in MODERN_PROTOCOL_VERSIONS


def _no_room() -> RefusedRequest:
    message = "Too many large requests are in progress."
    return refused(503, "too_many_requests", message, retry_after=str(RETRY_SECONDS))


def _too_large(limit: int) -> RefusedRequest:
    message = f"The request has more than {limit} bytes." if limit else "Only a POST request may have a body."
    return refused(413, "request_too_large", message)
