"""Sessions of MCP over HTTP (protocol versions up to 2025-11-25), by the SDK's manager.

The manager keeps a session with the credential that has opened it: another principal gets 404 for its id, as for one
that doesn't exist. What it lacks are limits for each principal, a refusal with a code, events that are kept for each
session, and a refusal of a request under the id of another that isn't answered yet: one would get the other's answer.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import pydantic_core
from mcp.server.streamable_http import GET_STREAM_KEY, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.dispatcher import as_request_id, coerce_request_id

from mcp_bridge.server.http.refusals import RefusedRequest, refused
from mcp_bridge.server.http.stream_resumption import ReplayMemory, SessionEvents, is_answer

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http import EventCallback, StreamableHTTPServerTransport
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mcp_bridge.http_settings import HttpSettings


RETRY_SECONDS = 5
"""When a client that there was no room for may try again: others may have ended their sessions."""


@dataclass(slots=True, eq=False)
class _Request:
    """A request of a session.

    Attributes:
        status: The status of its answer, or 0 if its connection or credential ended before.
        is_answered: Whether there is its answer, sent or not.
        over: Set when nothing more is sent for it.
    """

    status: int = 0
    is_answered: bool = False
    over: anyio.Event = field(default_factory=anyio.Event)


class RequestIds:
    """The ids of a session's requests that are in progress. By these the SDK finds the stream of an answer."""

    def __init__(self) -> None:
        self._taken: dict[str, _Request] = {}

    def answered(self, stream_id: str) -> None:
        """Note that there is the answer to a request."""
        key = _key(stream_id)
        request = self._taken.get(key)
        if request is not None:
            request.is_answered = True
            if request.over.is_set():
                del self._taken[key]

    async def handle(self, handler: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request handled.

        Raises:
            RefusedRequest: It has the id of another that isn't answered.
        """
        if scope["method"] != "POST":
            await handler(scope, receive, send)
            return
        given = [await receive()]
        while given[-1]["type"] == "http.request" and given[-1].get("more_body", False):
            given.append(await receive())
        key = _id_of(b"".join(message.get("body", b"") for message in given))
        given.reverse()

        async def again() -> Message:
            return given.pop() if given else await receive()

        if key is None:
            await handler(scope, again, send)
            return
        request = await self._take(key)

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = message["status"]
            await send(message)

        try:
            await handler(scope, again, watched)
        finally:
            # A call goes on without its connection. What has any other status was never handed on.
            if request.is_answered or request.status not in {0, 200}:
                del self._taken[key]
            request.over.set()

    async def _take(self, key: str) -> _Request:
        if key == GET_STREAM_KEY:
            raise _in_use(key)
        while (other := self._taken.get(key)) is not None:
            if not other.is_answered:
                raise _in_use(key)
            # Its client may have the answer already, while the SDK is about to close the stream with this id.
            await other.over.wait()
        request = self._taken[key] = _Request()
        return request


class _Answers(EventStore):
    """Keeps no events, as where answers are JSON and nothing is resumed; says when a request is answered.

    Args:
        ids: The ids of the session's requests.
    """

    def __init__(self, ids: RequestIds) -> None:
        self._ids = ids

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        """Note an answer. Its event has no id."""
        if is_answer(message):
            self._ids.answered(stream_id)
        return ""

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> None:
        """Send nothing."""


def _id_of(body: bytes) -> str | None:
    """The id of a request; None for any other message, and for what is none."""
    try:
        message = pydantic_core.from_json(body)
    except ValueError:
        return None
    if not isinstance(message, dict) or "method" not in message:
        return None
    number = as_request_id(message.get("id"))
    return None if number is None else _key(number)


def _key(request_id: str | int) -> str:
    """What the SDK takes for one id: 7 and "7"."""
    return str(coerce_request_id(request_id))


def _in_use(key: str) -> RefusedRequest:
    return refused(
        409,
        "request_id_in_use",
        f"The session has a request with the id {key[:100]!r} that isn't answered yet. This one was not begun.",
        "Give each request of a session an id of its own.",
    )


class Sessions(StreamableHTTPSessionManager):
    """The session manager.

    Args:
        server: The MCP server.
        settings: The settings of HTTP.
    """

    def __init__(self, server: Server[Any], settings: HttpSettings) -> None:
        super().__init__(
            server,
            json_response=settings.json_answers,
            session_idle_timeout=settings.session_idle_timeout,
            max_request_body_size=settings.max_body_size,
            max_sessions=settings.max_sessions,
        )
        self._max = settings.max_sessions
        self._max_per_principal = settings.max_sessions_per_principal
        self._memory = ReplayMemory(settings.replay_size)
        self._events: dict[str, SessionEvents] = {}

    @property
    def count(self) -> int:
        """How many sessions are open."""
        return len(self._server_instances)

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, as the SDK's manager does. One that would open a session too many is refused."""
        try:
            await super().handle_request(scope, receive, send)
        except RefusedRequest as refusal:
            await refusal.response()(scope, receive, send)

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        # The SDK's own refusal says neither which limit it is nor what to do.
        owned = sum(owner == requestor for owner in self._session_owners.values())
        if owned >= self._max_per_principal:
            raise _no_room("principal has", self._max_per_principal, "http.max_sessions_per_principal")
        if self.count >= self._max:
            raise _no_room("bridge has", self._max, "http.max_sessions")
        # The SDK would share one store among all sessions, and a session could then ask for another's events.
        owner = requestor["client_id"] if requestor is not None else ""
        ids = RequestIds()
        events = None if self.json_response else SessionEvents(self._memory, owner, ids.answered)
        self.event_store = events or _Answers(ids)
        transport = super()._admit_session(requestor)
        self.event_store = None
        if transport is not None and transport.mcp_session_id:
            if events is not None:
                self._events[transport.mcp_session_id] = events
            handler = functools.partial(ids.handle, transport.handle_request)
            transport.handle_request = handler  # type: ignore[method-assign]
        return transport

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        events = self._events.pop(session_id, None)
        if events is not None:
            events.close()
        await super()._discard_session(session_id, transport)


def _no_room(who: str, most: int, setting: str) -> RefusedRequest:
    return refused(
        503,
        "too_many_clients",
        f"The {who} {most} open sessions, the most that {setting} allows.",
        "End those that aren't used (DELETE), or try again later: without requests they end by themselves.",
        retry_after=str(RETRY_SECONDS),
    )
