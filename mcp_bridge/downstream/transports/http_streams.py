"""The streams of an HTTP transport that the SDK's session reads messages from and writes requests to."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

import anyio
from mcp.shared.inbound import (
    MCP_PROTOCOL_VERSION_HEADER,
)
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
)

from mcp_bridge.downstream.http.http_client import (
    Attempt,
    RemoteFailure,
)
from mcp_bridge.downstream.transports.lines import Oversized
from mcp_bridge.downstream.transports.messages import MessageReader
from mcp_bridge.telemetry import tracing

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream

    from mcp_bridge.downstream.transports.http_transport import HttpTransport
    from mcp_bridge.errors import BridgeError

# The wait before a broken stream is resumed, unless the server says.
RESUME_WAIT = 0.5

# How long the server may take to end a response whose answer has arrived, before its connection is given up.
END_GRACE = 1.0


@dataclass(frozen=True, slots=True)
class Reached:
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
        self.resume_wait = RESUME_WAIT

    def answered(self) -> None:
        """Note that the answer has been passed on; the rest of the response has a moment to arrive."""
        self.is_answered = True
        self.scope.deadline = min(self.scope.deadline, anyio.current_time() + END_GRACE)


@dataclass(frozen=True, slots=True)
class Failed:
    """In the inbox behind all messages of a request: it fails, unless one of them was its answer."""

    post: Post
    failure: RemoteFailure | BridgeError
    reached: anyio.Event


InboxItem = bytes | Oversized | Failed | Reached


class HttpMessages(MessageReader):
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
            if isinstance(item, Reached):
                item.event.set()
            elif isinstance(item, Failed):
                item.reached.set()
                if not item.post.is_answered:
                    self._fail(item)
                    return
            else:
                self._http.received += len(item) if isinstance(item, bytes) else item.size
                self._lines.append(item)
                return

    def _fail(self, item: Failed) -> None:
        item.post.answered()
        code = CONNECTION_CLOSED
        if isinstance(item.failure, RemoteFailure) and item.failure.status == HTTPStatus.NOT_FOUND:
            # How a server says without JSON-RPC that it doesn't know a method; what the SDK negotiates by.
            code = METHOD_NOT_FOUND
        error = ErrorData(code=code, message=str(item.failure), data=item.failure)
        self._answer(JSONRPCError(jsonrpc="2.0", id=item.post.number, error=error))


class HttpRequests:
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
        """Take no more requests. The transport goes on."""
        self._is_closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
