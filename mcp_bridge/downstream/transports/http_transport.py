"""A remote server as an MCP transport: streamable HTTP (protocol versions from 2025-03-26 on, both eras).

Our own, beside the SDK's: there one failed connection ends all calls, a JSON answer has no bound, the status and its
`Retry-After` are lost, and a server that forgets a session stays forgotten. The differences that matter:

- Every request has its own task and its own failure (`RemoteFailure`), which says whether it may have happened.
- A request is sent again only if it certainly hasn't reached the server, or the server has refused it unread (429). A
  stream that breaks is resumed with `Last-Event-ID`, which repeats nothing; without an event's id the call is in doubt.
- Every message passes the limits that one from a process's output passes (`transport.MessageReader`).

Loads the MCP SDK: import this module only where a server is connected to.
"""

from __future__ import annotations

import functools
import logging
import random
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from time import thread_time
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.to_thread
import httpx2
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    encode_header_value,
    mcp_param_headers,
)
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_bridge import fair_share
from mcp_bridge.downstream.client.log_tail import LogRing
from mcp_bridge.downstream.http.hidden_credentials import HiddenCredentials
from mcp_bridge.downstream.http.http_client import (
    GATEWAY_STATUSES,
    Attempt,
    Pace,
    RemoteFailure,
    RequestFailedError,
    failure_of,
    is_encoded,
    open_client,
    opened,
    refusal,
    renew_headers,
)
from mcp_bridge.downstream.http.retries import sent_until_read
from mcp_bridge.downstream.oauth.authenticated_requests import BearerAuth
from mcp_bridge.downstream.transports.large_parts import is_oversized
from mcp_bridge.downstream.transports.lines import Oversized
from mcp_bridge.downstream.transports.pending_requests import PendingRequests, connection_closed, given_up
from mcp_bridge.downstream.transports.server_messages import BOM, MessageReader, encoded, encoded_large, no_log
from mcp_bridge.errors import BridgeError
from mcp_bridge.offload import is_large, off_loop, on_thread
from mcp_bridge.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.downstream.http.remote_auth import RemoteAccess
    from mcp_bridge.downstream.transports.pending_requests import Progressed
    from mcp_bridge.downstream.transports.server_messages import OnLog

logger = logging.getLogger(__name__)

_SESSION_HEADER = "mcp-session-id"
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,1024}")

_EVENT_ID = re.compile(r"[\x20-\x7e]{1,1024}")
"""Event ids that are sent back: a header's value."""

_LAST_EVENT_HEADER = "last-event-id"

# How often in succession a broken stream may fail to be resumed.
_RESUME_FAILURES = 6

# The wait before a broken stream is resumed: unless the server says, and its bounds.
_RESUME_WAIT = 0.5
_MIN_RESUME_WAIT = 0.05
_MAX_RESUME_WAIT = 30.0

# How long the server may take to end a response whose answer has arrived, before its connection is given up.
_END_GRACE = 1.0

# How long the end of a connection waits for a token that is being replaced; that takes less than a second.
_REFRESH_TIMEOUT = 5.0

# How long a message that has no answer may take, and the end of the session.
_MESSAGE_TIMEOUT = 10.0
_DELETE_TIMEOUT = 2.0

# How much of the body of a refusal is read: a JSON-RPC error.
_REFUSAL_BYTES = 64 * 1024

# Answers to the server's own requests that are under way. Above that none is given: a server that takes none would pile
# them up.
_MAX_ANSWERS = 16

# Messages that wait to be processed. Senders wait above that.
_INBOX = 8

# The charge for a line of a stream of events, whatever it is.
_LINE_SECONDS = 1e-6

# A server's stream for messages that answer nothing: the longest wait between two attempts to open it.
_STREAM_WAIT_CAP = 60.0


@dataclass(frozen=True, slots=True)
class _Reached:
    """In the inbox behind messages: set once they are processed."""

    event: anyio.Event


class Post:
    """A request under way.

    Attributes:
        number: Its JSON-RPC id.
        scope: What ends it.
        modern: Whether it was sent in a protocol version without sessions.
        is_answered: Whether its answer has been passed on.
        attempt: What is known of the attempt to send it.
        last_event: The id of the last event of its stream, or None.
        resume_wait: Seconds to wait before its stream is resumed.
    """

    __slots__ = ("attempt", "is_answered", "last_event", "modern", "number", "resume_wait", "scope")

    def __init__(self, number: str | int, *, modern: bool) -> None:
        self.number = number
        self.scope = anyio.CancelScope()
        self.modern = modern
        self.is_answered = False
        self.attempt = Attempt()
        self.last_event: str | None = None
        self.resume_wait = _RESUME_WAIT

    def answered(self) -> None:
        """Note that the answer has been passed on; the rest of the response has a moment to arrive."""
        self.is_answered = True
        self.scope.deadline = min(self.scope.deadline, anyio.current_time() + _END_GRACE)


class HttpTransport:
    """A connection to a remote server and its two message streams; an async context manager.

    It has the attributes of `StdioTransport`, and these:

    Attributes:
        retired: Why no further request should be made on this connection, or None. Those under way go on.
        retirement: Set with `retired`.
        tool_headers: The arguments of each tool that are sent as headers, too: `x_mcp_header_map` by the tool's name.
        has_asked_for_announcements: Set once the server has answered for the first time whether it announces anything.
        on_listening: Called when its announcements begin to be read; what it has announced before is lost.
    """

    process = None

    def __init__(self, spec: ServerSpec, access: RemoteAccess, *, max_message: int, tenant: fair_share.Tenant) -> None:
        assert spec.url is not None  # decoded
        self.url = spec.url
        self._address = httpx2.URL(spec.url)
        self._spec = spec
        self._access = access
        self.max_message = max_message
        self.tenant = tenant
        self.environment: dict[str, str] = {}
        self.log = LogRing()
        self.closed = anyio.Event()
        self.end_reason: str | None = None
        self.requests = PendingRequests()
        self.received = 0
        self.retired: str | None = None
        self.retirement = anyio.Event()
        self.tool_headers: dict[str, dict[Any, Any]] = {}
        self.has_asked_for_announcements = anyio.Event()
        self.on_listening: Callable[[], None] = _ignore_listening
        self.on_log: OnLog = no_log
        self.session: str | None = None
        self.version: str | None = None
        self.posts: dict[object, Post] = {}
        self._hidden = HiddenCredentials(spec, access)
        self._answering = 0
        self._askers: dict[object, fair_share.Tenant] = {}
        self._client: httpx2.AsyncClient | None = None
        self._tasks: TaskGroup | None = None
        self._send: MemoryObjectSendStream[InboxItem] | None = None
        self._inbox: MemoryObjectReceiveStream[InboxItem] | None = None

    async def __aenter__(self) -> tuple[_Messages, _Requests]:
        """Open the client; nothing is sent yet.

        Raises:
            BridgeError: As `open_client`.
        """
        self._client = await anyio.to_thread.run_sync(open_client, self._spec, self._access)
        # Before the request is sent: what it is authenticated with may come back before its response.
        self._client.event_hooks["request"].append(self._hidden.note_request)
        self._send, self._inbox = anyio.create_memory_object_stream[InboxItem](_INBOX)
        self._tasks = await anyio.create_task_group().__aenter__()
        try:
            await self.started()
        except BaseException as error:
            # The context manager isn't entered, so nobody leaves it.
            await self.__aexit__(type(error), error, None)
            raise
        return _Messages(self, self._inbox), _Requests(self)

    async def started(self) -> None:
        """Do what comes before the first message."""

    async def __aexit__(self, *_: object) -> None:
        """End the session and all requests. Bounded in time."""
        assert self._client is not None  # entered
        assert self._tasks is not None
        assert self._send is not None
        assert self._inbox is not None
        self.close()
        self._send.close()
        self._tasks.cancel_scope.cancel()
        self._tasks.cancel_scope.shield = True
        await self._tasks.__aexit__(None, None, None)
        self._inbox.close()
        with anyio.move_on_after(_DELETE_TIMEOUT, shield=True):
            await self.end_session()
        if isinstance(self._client.auth, BearerAuth):
            with anyio.move_on_after(_REFRESH_TIMEOUT, shield=True):
                await self._client.auth.settle()
        with anyio.move_on_after(_DELETE_TIMEOUT, shield=True):
            await self._client.aclose()

    def close(self) -> None:
        """Note that no further message will be passed on."""
        self.closed.set()
        self.requests.close()

    async def end_session(self) -> None:
        """Tell the server that the session is over, if there is one."""
        if self.session is not None:
            # Whatever becomes of it, of the authentication too: the connection is closed.
            with suppress(Exception):
                async with self.fetch("DELETE", Attempt()):
                    pass

    # What the message reader and the connection need, as of `StdioTransport`.

    def take_requester(self, number: object) -> fair_share.Tenant:
        """As `StdioTransport.take_requester`: the answer to a request is being passed on."""
        if (post := self.posts.get(number)) is not None:
            post.answered()
        return self._askers.pop(number, self.tenant)

    async def wait_turn(self) -> None:
        """Wait for the server's turn to be read."""
        await self.tenant.turn()

    def exit_status(self) -> str | None:
        """A remote server has none."""
        return None

    async def refuse(self, number: str | int) -> None:
        """Answer a request of the server that is too large to be decoded."""
        error = ErrorData(code=INVALID_REQUEST, message="The request is too large.")
        self.answer(JSONRPCError(jsonrpc="2.0", id=number, error=error))

    async def end_stream(self, reason: str) -> None:
        """End the connection: no further message is passed on."""
        self.end_reason = self.end_reason or reason
        if self._send is not None:
            self._send.close()

    def retire(self, reason: str) -> None:
        """Have further requests made on another connection."""
        if self.retired is None:
            self.retired = reason
            self.retirement.set()

    # Sending.

    @property
    def post_address(self) -> httpx2.URL:
        """Where messages to the server go."""
        return self._address

    def start(self, function: Any, *args: Any) -> None:
        """Run a task of this connection."""
        assert self._tasks is not None  # entered
        self._tasks.start_soon(function, *args)

    async def request(
        self, method: str, params: dict[str, Any], progressed: Progressed | None = None
    ) -> dict[str, Any]:
        """As `StdioTransport.request`. The answer comes to the task of the request's exchange.

        Raises:
            MCPError: The server answered with an error, the request failed, or the connection has ended.
            ValueError: The parameters can't be encoded as JSON.
        """
        number, answer = self.requests.begin(progressed)
        tracing.note_request_id(number)
        is_sent = False
        try:
            if progressed is not None:
                params = params | {"_meta": {**params.get("_meta", {}), "progressToken": number}}
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            # In the task of whoever asks; the exchange is a task of its own.
            headers = tracing.carrier() | self._headers_of(method, params)
            body = await on_thread(encoded_large, message) if is_oversized(params) else encoded(message)
            await anyio.lowlevel.checkpoint_if_cancelled()
            if self.closed.is_set():
                raise connection_closed()
            post = self.track(number)
            is_sent = True
            self.start(functools.partial(self.exchange, post, body, headers, opens=False))
            outcome = await answer
        except anyio.get_cancelled_exc_class():
            if is_sent:
                self.cancel(JSONRPCNotification(**given_up(number)))
            raise
        finally:
            self.requests.end(number)
        if isinstance(outcome, MCPError):
            raise outcome
        return outcome

    def _headers_of(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        """What a request that doesn't pass the session has in headers, too, from protocol version 2026-07-28 on."""
        if self.version not in MODERN_PROTOCOL_VERSIONS:
            return {}
        headers = {MCP_METHOD_HEADER: method}
        if isinstance(name := params.get("uri" if method == "resources/read" else "name"), str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
            if named := self.tool_headers.get(name):
                headers |= mcp_param_headers(named, params.get("arguments") or {})
        return headers

    def fetch(
        self,
        method: str,
        attempt: Attempt,
        *,
        url: httpx2.URL | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AbstractAsyncContextManager[httpx2.Response]:
        """As `http_client.opened`, with the headers of the session."""
        assert self._client is not None  # entered
        ours = {"accept": "application/json, text/event-stream"}
        if content is not None:
            ours["content-type"] = "application/json"
        if self.session is not None:
            ours[_SESSION_HEADER] = self.session
        if self.version is not None:
            ours[MCP_PROTOCOL_VERSION_HEADER] = self.version
        sent = ours | dict(headers or {})
        return opened(
            self._client,
            method,
            url or self._address,
            headers=sent,
            content=content,
            attempt=attempt,
            hide=self._hidden.hide_text,
            tenant=self.tenant,
        )

    def track(self, number: str | int) -> Post:
        """Register a request that is about to be sent."""
        whose = fair_share.current.get()
        if isinstance(whose, fair_share.Tenant):
            self._askers[number] = whose
        post = self.posts[number] = Post(number, modern=self.version in MODERN_PROTOCOL_VERSIONS)
        return post

    async def exchange(self, post: Post, body: bytes, headers: Mapping[str, str], *, opens: bool) -> None:
        """Have a request answered, or replaced by an error. A task of its own.

        Args:
            post: The request.
            body: Its JSON.
            headers: Its own headers.
            opens: Whether its answer opens a session.
        """

        async def send() -> RemoteFailure | BridgeError:
            assert self._client is not None  # entered
            sent = self._client.headers.raw
            post.attempt = Attempt()
            try:
                return await self.attempt(post, body, headers, opens=opens)
            except (RequestFailedError, BridgeError) as error:
                if not _wants_credentials(error):
                    raise
                is_renewed = await renew_headers(self._client, self._spec, self._access, sent)
                if not is_renewed or post.attempt.sent:
                    # A 403 may be a tool's own answer: the call isn't sent again, and others have the new headers.
                    raise
            post.attempt = Attempt()
            return await self.attempt(post, body, headers, opens=opens)

        failure: RemoteFailure | BridgeError
        try:
            with post.scope:
                try:
                    failure = await sent_until_read(send)
                except RequestFailedError as error:
                    failure = error.failure
                except BridgeError as error:
                    failure = error
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return
                except Exception as error:  # noqa: BLE001 - of the authentication, which is another's code
                    logger.debug("a request to %r failed: %s", self._spec.name, type(error).__name__)
                    failure = failure_of(error, post.attempt)
                if isinstance(failure, RemoteFailure) and failure.kind in {"session", "unsent"}:
                    self.retire(f"it {failure.reason}")
                if not post.is_answered:
                    await self.settle(post, failure)
        finally:
            self.posts.pop(post.number, None)
            self._askers.pop(post.number, None)

    async def settle(self, post: Post, failure: RemoteFailure | BridgeError) -> None:
        """Have a request fail, unless a message before this was its answer."""
        assert self._send is not None  # entered
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            reached = anyio.Event()
            await self._send.send(_Failed(post, failure, reached))
            await reached.wait()

    async def attempt(
        self, post: Post, body: bytes, headers: Mapping[str, str], *, opens: bool
    ) -> RemoteFailure | BridgeError:
        """Send a request and pass on what comes back; return why it is unanswered, if it is.

        Raises:
            RequestFailedError: There was no response, or a refusal.
        """
        async with self.fetch("POST", post.attempt, url=self.post_address, content=body, headers=headers) as response:
            if response.status_code == HTTPStatus.ACCEPTED:
                return RemoteFailure("bad_answer", "accepted the request without a result", response.status_code)
            if not response.is_success:
                return await self.refused(response, post)
            if opens and (session := response.headers.get(_SESSION_HEADER)) is not None:
                if not _SESSION_ID.fullmatch(session):
                    return RemoteFailure("bad_answer", "gave a session id that no header may have")
                self.session = session
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if is_encoded(response):
                return RemoteFailure("bad_answer", "sent an encoded answer, which it wasn't asked for")
            if kind == "application/json":
                return await self._read_json(response, post)
            if kind != "text/event-stream":
                return RemoteFailure("bad_answer", "answered something that is neither JSON nor an event stream")
            broken = await self._read_events(response, post)
        return await self._resume(post, broken)

    @property
    def in_session(self) -> bool:
        """Whether requests name a session."""
        return self.session is not None

    async def refused(self, response: httpx2.Response, post: Post) -> RemoteFailure | BridgeError:
        """Pass on the JSON-RPC error of a response that is no success.

        Raises:
            RequestFailedError: There is none.
        """
        body = await start_of_body(response)
        message = _json_error(body)
        # An error with the request's own id is an answer to it, whatever the status is: it may have happened.
        is_answer = message is not None and message.id == post.number
        said = body.decode("utf-8", "replace") if message is None else message.error.message
        failure = refusal(response, said, in_session=self.in_session, is_answer=is_answer)
        if self.in_session and failure.kind == "refused" and "session" in said.lower():
            # Perhaps it doesn't know the session. This request isn't sent again; others get a new one.
            self.retire(f"it {failure.reason}")
        if failure.kind in {"refused", "lost"} and message is not None:
            # Servers leave the id out if they refuse a request unread.
            message = JSONRPCError(jsonrpc="2.0", id=post.number, error=message.error)
            await self.pass_on(message.model_dump_json(by_alias=True, exclude_unset=True).encode())
            await self._flush()
        told = said.encode("utf-8", "replace")
        raise RequestFailedError(replace(failure, said=await off_loop(told, self._hidden.shown, told)))

    async def _read_json(self, response: httpx2.Response, post: Post) -> RemoteFailure:
        body = bytearray()
        try:
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > self.max_message:
                    await self.pass_on(Oversized(len(body), _integer(post.number)))
                    return RemoteFailure("bad_answer", "sent an answer that is too large")
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            return failure_of(error, post.attempt)
        await self.pass_on(bytes(body))
        return RemoteFailure("bad_answer", "sent an answer that isn't one to the request")

    async def _read_events(self, response: httpx2.Response, post: Post) -> RemoteFailure:
        """Pass on the messages of a stream until it ends; return why a request is unanswered then, if it is."""
        try:
            async for event in self.events(response):
                if event.id and _EVENT_ID.fullmatch(event.id):
                    post.last_event = event.id
                if event.retry is not None:
                    post.resume_wait = _wait_asked_for(event.retry, _MIN_RESUME_WAIT)
                if event.event == "message" and event.data:
                    await self.pass_on(event.data.encode("utf-8", "surrogatepass"))
        except httpx2.SSEError:
            await self.pass_on(Oversized(self.max_message + 1, _integer(post.number)))
            post.last_event = None
            return RemoteFailure("bad_answer", "sent an answer that is too large")
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            return failure_of(error, post.attempt)
        return RemoteFailure("lost", "ended the stream without an answer")

    async def events(self, response: httpx2.Response) -> AsyncIterator[httpx2.ServerSentEvent]:
        """The events of a response."""
        # A stream of events is UTF-8, whatever its content type says.
        response.encoding = "utf-8"
        response.stream = _ChargedLines(response.stream, self.tenant)
        pace = Pace()
        async for event in httpx2.EventSource(response, max_event_size=self.max_message):
            yield event
            await pace.give_way()

    async def _resume(self, post: Post, broken: RemoteFailure) -> RemoteFailure:
        """Go on with a stream that ended before its answer; return why the request is unanswered, if it is."""
        failures = 0
        while True:
            await self._flush()
            if post.is_answered or post.last_event is None:
                return broken
            await anyio.sleep(post.resume_wait)
            before = post.last_event
            attempt = Attempt()
            try:
                async with self.fetch("GET", attempt, headers=_resuming(before)) as response:
                    if response.status_code in {HTTPStatus.TOO_MANY_REQUESTS, *GATEWAY_STATUSES}:
                        failures += 1
                    elif not response.is_success or not is_stream(response):
                        return broken
                    else:
                        failures = 0
                        # The request itself was sent before, whatever becomes of this one.
                        attempt.sent = True
                        broken = await self._read_events(response, post)
            except RequestFailedError as error:
                failures += 1
                if error.failure.lasting:
                    return broken
            except BridgeError as error:
                # Of the authentication, whose errors say that nothing was called; the request itself was sent before.
                failures += 1
                if error.code != "login_unavailable":
                    return broken
            if failures > _RESUME_FAILURES:
                return broken
            if failures:
                await anyio.sleep(_RESUME_WAIT * 2 ** (failures - 1) * random.uniform(0.5, 1))  # noqa: S311

    async def pass_on(self, item: bytes | Oversized) -> None:
        """Have a message processed. Credentials that the server repeats are hidden in it."""
        assert self._send is not None  # entered
        if isinstance(item, bytes) and is_large(item):
            item = await on_thread(self._hidden.hide, item)
        elif isinstance(item, bytes):
            # One of many escapes takes milliseconds, and a server may send it without end.
            began = thread_time()
            item = self._hidden.hide(item)
            self.tenant.charge(thread_time() - began)
        await self._send.send(item)

    async def _flush(self) -> None:
        """Return when all messages so far are processed."""
        assert self._send is not None  # entered
        reached = anyio.Event()
        await self._send.send(_Reached(reached))
        await reached.wait()

    async def tell(self, message: JSONRPCNotification | JSONRPCResponse | JSONRPCError) -> bool:
        """Send a message that has no answer; whether the server has accepted it."""
        body = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        with anyio.move_on_after(_MESSAGE_TIMEOUT):
            try:
                async with self.fetch("POST", Attempt(), url=self.post_address, content=body) as response:
                    return bool(response.is_success)
            except (RequestFailedError, BridgeError) as error:
                logger.debug("server %r didn't take a message: %s", self._spec.name, error)
            except Exception as error:  # noqa: BLE001 - of the authentication
                logger.debug("server %r didn't take a message: %s", self._spec.name, type(error).__name__)
        return False

    def answer(self, message: JSONRPCResponse | JSONRPCError) -> None:
        """Answer a request of the server's, unless it takes its answers too slowly."""
        if self._answering >= _MAX_ANSWERS:
            logger.debug("server %r asks for more than it takes answers to", self._spec.name)
            return
        self._answering += 1
        self.start(self._answer, message)

    async def _answer(self, message: JSONRPCResponse | JSONRPCError) -> None:
        try:
            await self.tell(message)
        finally:
            self._answering -= 1

    def cancel(self, notification: JSONRPCNotification) -> None:
        """Give up a request: by its connection where there are no sessions, else by a message."""
        number = (notification.params or {}).get("requestId")
        self._askers.pop(number, None)
        post = self.posts.get(number)
        if post is None:
            return
        # Before the server is told, which takes its time: a request that waits to be sent again might be, meanwhile.
        post.scope.cancel()
        if not post.modern and post.attempt.sent:
            self.start(self.tell, notification)

    # Messages that answer nothing.

    async def read_announcements(self) -> None:
        """Read the session's stream of messages that answer nothing, if the server has one.

        It is opened again whatever ends it: else what is announced afterwards would be missed for good.
        """
        failures, last, has_opened = 0, None, False
        while self.retired is None:
            wait, began = _RESUME_WAIT, anyio.current_time()
            try:
                async with self.fetch("GET", Attempt(), headers=_resuming(last)) as response:
                    if response.is_success and is_stream(response):
                        has_opened = True
                        self.on_listening()
                        self.has_asked_for_announcements.set()
                        async for event in self.events(response):
                            failures = 0
                            if event.id and _EVENT_ID.fullmatch(event.id):
                                last = event.id
                            if event.retry is not None:
                                wait = _wait_asked_for(event.retry, _RESUME_WAIT)
                            if event.event == "message" and event.data:
                                await self.pass_on(event.data.encode("utf-8", "surrogatepass"))
                    elif not has_opened and response.status_code not in {
                        HTTPStatus.TOO_MANY_REQUESTS,
                        *GATEWAY_STATUSES,
                    }:
                        # It has none.
                        return
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return
            except httpx2.SSEError:
                # It would be sent again.
                last = None
            except (RequestFailedError, BridgeError, httpx2.HTTPError, httpx2.StreamError, OSError):
                pass
            except Exception as error:  # noqa: BLE001 - of the authentication
                logger.debug("the stream of server %r ended: %s", self._spec.name, type(error).__name__)
            finally:
                self.has_asked_for_announcements.set()
            failures = 1 if anyio.current_time() - began > _STREAM_WAIT_CAP else failures + 1
            await anyio.sleep(min(_STREAM_WAIT_CAP, wait * 2 ** min(failures - 1, 16)) * random.uniform(0.5, 1))  # noqa: S311


@dataclass(frozen=True, slots=True)
class _Failed:
    """In the inbox behind all messages of a request: it fails, unless one of them was its answer."""

    post: Post
    failure: RemoteFailure | BridgeError
    reached: anyio.Event


InboxItem = bytes | Oversized | _Failed | _Reached


class _Messages(MessageReader):
    """The SDK's read stream, fed from the responses."""

    def __init__(self, transport: HttpTransport, inbox: MemoryObjectReceiveStream[InboxItem]) -> None:
        super().__init__(transport)
        self._http = transport
        self._inbox = inbox

    async def _receive(self) -> None:
        while True:
            try:
                item = await self._inbox.receive()
            except (anyio.EndOfStream, anyio.ClosedResourceError):
                self._http.close()
                raise StopAsyncIteration from None
            if isinstance(item, _Reached):
                item.event.set()
            elif isinstance(item, _Failed):
                item.reached.set()
                if not item.post.is_answered:
                    self._fail(item)
                    return
            else:
                self._http.received += len(item) if isinstance(item, bytes) else item.size
                self._lines.append(item)
                return

    def _fail(self, item: _Failed) -> None:
        item.post.answered()
        code = CONNECTION_CLOSED
        if isinstance(item.failure, RemoteFailure) and item.failure.status == HTTPStatus.NOT_FOUND:
            # How a server says without JSON-RPC that it doesn't know a method; what the SDK negotiates by.
            code = METHOD_NOT_FOUND
        error = ErrorData(code=code, message=str(item.failure), data=item.failure)
        self._answer(JSONRPCError(jsonrpc="2.0", id=item.post.number, error=error))


class _Requests:
    """The SDK's write stream: each request becomes a task."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._is_closed = False

    async def send(self, item: SessionMessage, /) -> None:
        """Send one message. Returns before a request is answered, and after a notification is.

        Raises:
            anyio.BrokenResourceError: The connection has ended.
            ValueError: The message can't be encoded as JSON.
        """
        transport, message = self._transport, item.message
        if self._is_closed:
            raise anyio.ClosedResourceError
        if transport.closed.is_set():
            raise anyio.BrokenResourceError
        if isinstance(message, JSONRPCRequest):
            self._request(message, item.metadata)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            transport.cancel(message)
        elif isinstance(message, JSONRPCNotification):
            # Before what follows it: a server may refuse requests until it has been told that the client is ready.
            is_taken = await transport.tell(message)
            if is_taken and message.method == "notifications/initialized" and transport.session is not None:
                transport.start(transport.read_announcements)
        else:
            transport.answer(message)

    def _request(self, message: JSONRPCRequest, metadata: object) -> None:
        transport = self._transport
        opens = message.method == "initialize"
        # In the task of whoever asks; the exchange is a task of its own.
        headers = tracing.carrier()
        if isinstance(metadata, ClientMessageMetadata) and metadata.headers is not None:
            headers |= metadata.headers
        if opens:
            # What a failed probe was sent with doesn't belong to the handshake.
            transport.version = None
            headers.pop(MCP_PROTOCOL_VERSION_HEADER, None)
        else:
            transport.version = headers.get(MCP_PROTOCOL_VERSION_HEADER, transport.version)
        body = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        post = transport.track(message.id)
        transport.start(functools.partial(transport.exchange, post, body, headers, opens=opens))

    async def aclose(self) -> None:
        self._is_closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _ChargedLines(httpx2.AsyncByteStream):
    """A stream of events whose lines are charged to its server: it may send comments, of which nobody is told."""

    def __init__(self, stream: httpx2.SyncByteStream | httpx2.AsyncByteStream, tenant: fair_share.Tenant) -> None:
        assert isinstance(stream, httpx2.AsyncByteStream)  # of an asynchronous client
        self._stream = stream
        self._tenant = tenant

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            self._tenant.charge(_LINE_SECONDS * (chunk.count(b"\n") + chunk.count(b"\r")))
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _ignore_listening() -> None:
    """Do nothing."""


def _resuming(last_event: str | None) -> dict[str, str]:
    headers = {"accept": "text/event-stream", "cache-control": "no-store"}
    return headers if last_event is None else {**headers, _LAST_EVENT_HEADER: last_event}


def _wants_credentials(error: RequestFailedError | BridgeError) -> bool:
    """Whether a request was refused because of what it was authenticated with."""
    if isinstance(error, BridgeError):
        return error.code == "login_needed"
    return error.failure.kind == "unauthorized"


def is_stream(response: httpx2.Response) -> bool:
    """Whether a response is a stream of events."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "text/event-stream" and not is_encoded(response)


async def start_of_body(response: httpx2.Response) -> bytes:
    """The body of a refusal; empty if it is too large, encoded or broken off."""
    if is_encoded(response):
        return b""
    body = bytearray()
    with suppress(httpx2.HTTPError, httpx2.StreamError, OSError), anyio.move_on_after(_MESSAGE_TIMEOUT):
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > _REFUSAL_BYTES:
                return b""
        return bytes(body.removeprefix(BOM).strip())
    return b""


def _json_error(body: bytes) -> JSONRPCError | None:
    """The JSON-RPC error that a refusal's body is, or None."""
    if body[:1] != b"{":
        return None
    try:
        message = jsonrpc_message_adapter.validate_json(body, by_name=False)
    except ValueError:
        return None
    return message if isinstance(message, JSONRPCError) else None


def _wait_asked_for(milliseconds: int, least: float) -> float:
    """The seconds of a `retry` field, which may have thousands of digits."""
    return max(least, min(milliseconds, 1000 * _MAX_RESUME_WAIT) / 1000)


def _integer(number: str | int) -> int | None:
    return number if isinstance(number, int) else None
