"""Sessions of MCP over HTTP (protocol versions up to 2025-11-25), by the SDK's manager.

The manager keeps a session with the credential that has opened it: another principal gets 404 for its id, as for one
that doesn't exist. What it lacks are limits and a fair share for each principal, refusals with a code, events that are
kept for each session, and a refusal of a request under the id of another that isn't answered yet: one would get the
other's answer. It also ends a session while a call of it goes on without its connection, and begins one for an
`initialize` that it refuses.
"""

from __future__ import annotations

import collections
import functools
import logging
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import mcp_types as types
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context
from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    LAST_EVENT_ID_HEADER,
    MCP_SESSION_ID_HEADER,
    EventStore,
    check_accept_headers,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.requests import Request

from mcp_bridge.offload import off_loop
from mcp_bridge.server.http.refusals import RefusedRequest, Unreadable, refused
from mcp_bridge.server.http.stream_resumption import ReplayMemory, SessionEvents, is_answer
from mcp_bridge.server.messages.decoding import BYTE_ORDER_MARK, UnreadableMessage, decode

if TYPE_CHECKING:
    from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp.server.streamable_http import EventCallback, StreamableHTTPServerTransport
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mcp_bridge.http_settings import HttpSettings

logger = logging.getLogger(__name__)

_METHODS = ("GET", "POST", "DELETE")

_BEGIN = "mcp_bridge.begin"
"""What notes that a session's request was handed on, in the scope of its POST (ASGI)."""

_SHOWN_FAULTS, _SHOWN_CHARS = 5, 200

RETRY_SECONDS = 5
"""When a client that there was no room for may try again: others may have ended their sessions."""


@dataclass(slots=True, eq=False)
class _Request:
    """A request of a session.

    Attributes:
        is_begun: Whether its message was handed on.
        is_answered: Whether there is its answer, sent or not.
        over: Set when nothing more is sent for it.
    """

    is_begun: bool = False
    is_answered: bool = False
    over: anyio.Event = field(default_factory=anyio.Event)


class SessionRequests:
    """A session's requests that are in progress, by their ids: by these the SDK finds the stream of an answer.

    Args:
        idle_timeout: After how many seconds without a request the session ends; None for never.

    Attributes:
        streams: How many streams are open that ask for nothing: the session's own, and resumed ones.
        used_at: When the last one came or was over.
        transport: What the session ends by.
    """

    def __init__(self, idle_timeout: float | None = None) -> None:
        self.streams = 0
        self.used_at = anyio.current_time()
        self.transport: StreamableHTTPServerTransport | None = None
        self._idle_timeout = idle_timeout
        self._in_progress = 0
        self._taken: dict[str, _Request] = {}

    @property
    def is_awaited(self) -> bool:
        """Whether an answer is awaited. A call goes on without its connection."""
        return not all(request.is_answered for request in self._taken.values())

    def answered(self, stream_id: str) -> None:
        """Note that there is the answer to a request."""
        self.used_at = anyio.current_time()
        key = _key(stream_id)
        request = self._taken.get(key)
        if request is not None:
            request.is_answered = True
            if request.over.is_set():
                del self._taken[key]
        self._keep_open()

    async def handle(self, handler: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a request handled.

        Raises:
            RefusedRequest: It can't be read, is a batch, or has the id of another that isn't answered, or none.
        """
        is_stream = scope["method"] == "GET"
        self.streams += is_stream
        self._in_progress += 1
        self.used_at = anyio.current_time()
        try:
            await self._handle(handler, scope, receive, send)
        finally:
            self.streams -= is_stream
            self._in_progress -= 1
            self.used_at = anyio.current_time()
            self._keep_open()

    def _keep_open(self) -> None:
        """Have the session stay open for a call without a connection, and be idle once that is answered.

        The SDK's transport counts connections alone; its client may be on the way back to the answer.
        """
        idle = self.transport.idle_scope if self.transport is not None else None
        if idle is None or self._idle_timeout is None or self._in_progress:
            return
        idle.deadline = math.inf if self.is_awaited else anyio.current_time() + self._idle_timeout

    async def _handle(self, handler: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await handler(scope, receive, send)
            return
        message, again = await _read(receive)
        key = _key(message.id) if isinstance(message, types.JSONRPCRequest) else None
        if key is None:
            await handler(scope, again, send)
            return
        request = await self._take(key)
        try:
            await handler({**scope, _BEGIN: functools.partial(self._begin, key, request)}, again, send)
        finally:
            # A call goes on without its connection, unless that was cut before.
            if request.is_answered or not request.is_begun:
                del self._taken[key]
            request.over.set()

    def _begin(self, key: str, request: _Request) -> None:
        request.is_begun = True
        # Its connection may have been cut in this moment.
        self._taken.setdefault(key, request)
        self._keep_open()

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
        requests: The session's requests.
    """

    def __init__(self, requests: SessionRequests) -> None:
        self._requests = requests

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        """Note an answer. Its event has no id."""
        if is_answer(message):
            self._requests.answered(stream_id)
        return ""

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> None:
        """Send nothing."""


async def _read(receive: Receive) -> tuple[types.JSONRPCMessage, Receive]:
    """The message of a request, and what receives the request once more.

    Raises:
        RefusedRequest: As `_decoded`.
    """
    given = [await receive()]
    while given[-1]["type"] == "http.request" and given[-1].get("more_body", False):
        given.append(await receive())
    body = b"".join(part.get("body", b"") for part in given)
    # What can't be read is looked at once more, character by character.
    message, read = await off_loop(body, _decoded, body)
    if read is not body:
        given = [{"type": "http.request", "body": read, "more_body": False}]
    given.reverse()

    async def again() -> Message:
        return given.pop() if given else await receive()

    return message, again


async def _readable_id(scope: Scope, receive: Receive) -> types.RequestId | None:
    """The id of a request that is refused; None if there is none to be seen."""
    if scope["method"] != "POST":
        return None
    try:
        message, _ = await _read(receive)
    except Unreadable as refusal:
        return refusal.request_id
    return message.id if isinstance(message, types.JSONRPCRequest) else None


async def note_begun(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Note that a request of a session was handed on, as a middleware of the MCP server."""
    if ctx.request is not None and ctx.request_id is not None and (begin := ctx.request.scope.get(_BEGIN)) is not None:
        begin()
    return await call_next(ctx)


async def _opening(scope: Scope, receive: Receive, *, json_answers: bool) -> Receive:
    """Check that a request without a session opens one; what receives it once more.

    The SDK would open one first, for which another's may have to end, and name it in its refusal.

    Raises:
        RefusedRequest: It doesn't; as `_decoded`.
    """
    if scope["method"] not in _METHODS:
        raise refused(405, "bad_request", "There is no such method here.", allow=", ".join(_METHODS))
    if scope["method"] == "POST":
        message, again = await _read(receive)
        if isinstance(message, types.JSONRPCRequest) and message.method == "initialize":
            _check_opening(message, Request(scope), json_answers=json_answers)
            return again
    raise refused(
        400,
        "bad_request",
        "The request names no session, and doesn't open one.",
        "Send initialize first, and then the header Mcp-Session-Id that its answer has; or, from 2026-07-28 on, the "
        "header MCP-Protocol-Version.",
    )


def _check_opening(message: types.JSONRPCRequest, request: Request, *, json_answers: bool) -> None:
    """Check what the SDK would refuse once there is a session for it.

    Raises:
        RefusedRequest: It would.
    """
    takes_json, takes_events = check_accept_headers(request)
    if not (takes_json and (json_answers or takes_events)):
        kinds = "application/json" if json_answers else "application/json and text/event-stream"
        raise refused(406, "bad_request", f"The header Accept has to have {kinds}.")
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise refused(415, "bad_request", "The header Content-Type has to be application/json.")
    try:
        types.InitializeRequestParams.model_validate(message.params or {}, by_name=False)
    except ValidationError as exc:
        where = ", ".join(".".join(map(str, fault["loc"])) for fault in exc.errors(include_url=False)[:_SHOWN_FAULTS])
        said = f"The parameters of initialize are missing or wrong: {where[:_SHOWN_CHARS]}."
        raise Unreadable(UnreadableMessage(types.INVALID_PARAMS, said, message.id)) from None


def _decoded(body: bytes) -> tuple[types.JSONRPCMessage, bytes]:
    """The message of a body, and the bytes that others may read for it: these, unless something had to be replaced.

    Raises:
        RefusedRequest: It can't be read; or it is a batch; or its id is none, for which the SDK would take it for a
            notification.
    """
    try:
        message, is_replaced = decode(body)
    except UnreadableMessage as exc:
        raise Unreadable(exc) from None
    if is_replaced:
        return message, message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    return message, body.removeprefix(BYTE_ORDER_MARK) if body.startswith(BYTE_ORDER_MARK) else body


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


class _Session(NamedTuple):
    """An open session.

    Attributes:
        owner: The name of its principal.
        requests: Its requests.
        events: What is kept of its streams, where they can be resumed.
    """

    owner: str
    requests: SessionRequests
    events: SessionEvents | None


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
        self._sessions: dict[str, _Session] = {}

    @property
    def count(self) -> int:
        """How many sessions are open."""
        return len(self._server_instances)

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, as the SDK's manager does. One that would open a session too many is refused."""
        try:
            _check_version(Headers(scope=scope))
            await super().handle_request(scope, receive, send)
        except RefusedRequest as refusal:
            await refusal.response()(scope, receive, send)

    async def _handle_stateful_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The SDK's own refusal has the same status, and no code.
        headers = Headers(scope=scope)
        session_id = headers.get(MCP_SESSION_ID_HEADER)
        event_id = headers.get(LAST_EVENT_ID_HEADER) if scope["method"] == "GET" else None
        if session_id is None:
            receive = await _opening(scope, receive, json_answers=self.json_response)
        elif not self._is_open(session_id, scope.get("user")):
            raise _unknown_session(await _readable_id(scope, receive), resumes=event_id is not None)
        else:
            self._check_resumed(session_id, event_id)
        await super()._handle_stateful_request(scope, receive, send)

    def _check_resumed(self, session_id: str, event_id: str | None) -> None:
        """Check that a stream can be resumed after this event.

        The SDK would answer with an empty stream: its client would ask again, forever. 404 would end the session.

        Raises:
            RefusedRequest: It can't.
        """
        session = self._sessions.get(session_id)
        if event_id is None or session is None:
            return
        if session.events is None or not session.events.is_known(event_id):
            raise refused(
                400,
                "events_lost",
                "There is no stream with this event (Last-Event-ID) in the session, or its events aren't kept (any "
                "longer: http.replay_size). If its request was sent, it was begun.",
                "Don't resume it. The session itself continues.",
            )

    def _is_open(self, session_id: str, user: object) -> bool:
        transport = self._server_instances.get(session_id)
        if transport is None or transport.is_terminated:
            return False
        if transport.idle_scope is not None and transport.idle_scope.cancel_called:
            return False
        requestor = authorization_context(user) if isinstance(user, AuthenticatedUser) else None
        return requestor == self._session_owners.get(session_id)

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        # The SDK's own refusal says neither which limit it is nor what to do.
        owner = requestor["client_id"] if requestor is not None else ""
        counts = collections.Counter(session.owner for session in self._sessions.values())
        if counts[owner] >= self._max_per_principal:
            raise _no_room("principal has", self._max_per_principal, "http.max_sessions_per_principal")
        if self.count >= self._max and not self._make_room(owner, counts):
            raise _no_room("bridge has", self._max, "http.max_sessions")
        # The SDK would share one store among all sessions, and a session could then ask for another's events.
        requests = SessionRequests(self.session_idle_timeout)
        events = None if self.json_response else SessionEvents(self._memory, owner, requests.answered)
        self.event_store = events or _Answers(requests)
        transport = super()._admit_session(requestor)
        self.event_store = None
        if transport is not None and transport.mcp_session_id:
            requests.transport = transport
            self._sessions[transport.mcp_session_id] = _Session(owner, requests, events)
            handler = functools.partial(requests.handle, transport.handle_request)
            transport.handle_request = handler  # type: ignore[method-assign]
        return transport

    def _make_room(self, owner: str, counts: collections.Counter[str]) -> bool:
        """End a session of whoever has the most, unless they wouldn't have more than this owner then.

        It is the one without a request for the longest; those that keep a stream open come last, and what has a call
        isn't ended. So each principal has a share, though nothing is set aside for those who don't come.

        Returns:
            Whether there is room.
        """
        for greedy, most in counts.most_common():
            if most - 1 < counts[owner] + 1:
                return False
            unused = [
                (session.requests.streams > 0, session.requests.used_at, session_id)
                for session_id, session in self._sessions.items()
                if session.owner == greedy and not session.requests.is_awaited
            ]
            if unused:
                self._end(min(unused)[-1])
                logger.info("ended a session of %r, who has %d of %d: %r has none left", greedy, most, self._max, owner)
                return True
        return False

    def _end(self, session_id: str) -> None:
        """End a session at once. Its streams are closed in a moment."""
        transport = self._server_instances.pop(session_id)
        self._session_owners.pop(session_id, None)
        self._forget(session_id)
        if self._task_group is not None:
            self._task_group.start_soon(transport.terminate)

    def _forget(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None and session.events is not None:
            session.events.close()

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        self._forget(session_id)
        await super()._discard_session(session_id, transport)


def _check_version(headers: Headers) -> None:
    """Check that a request of a session is of a known version: the SDK would take any other for one of a new era.

    Raises:
        RefusedRequest: It isn't.
    """
    version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
    if version is not None and MCP_SESSION_ID_HEADER in headers and version not in KNOWN_PROTOCOL_VERSIONS:
        raise refused(
            400,
            "bad_argument",
            f"MCP-Protocol-Version {version[:40]!r} is unknown. Known are {', '.join(KNOWN_PROTOCOL_VERSIONS)}.",
            "Send the version that the answer to initialize has.",
        )


def _no_room(who: str, most: int, setting: str) -> RefusedRequest:
    return refused(
        503,
        "too_many_clients",
        f"The {who} {most} open sessions, the most that {setting} allows.",
        "End those that aren't used (DELETE), or try again later: without requests they end by themselves.",
        retry_after=str(RETRY_SECONDS),
    )


def _unknown_session(request_id: types.RequestId | None, *, resumes: bool) -> RefusedRequest:
    what = "Its calls may have happened." if resumes else "The request was not begun."
    refusal = refused(
        404,
        "unknown_http_session",
        f"There is no such session, or it has ended. {what}",
        "Begin another: send initialize without the header Mcp-Session-Id.",
    )
    refusal.request_id = request_id
    return refusal
