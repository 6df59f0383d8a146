"""Messages that a server sends, decoded within limits, and messages to it, encoded.

What a server sends takes time and memory of everybody: its size, its elements and its notifications are bounded, and
the time is charged to whom it is for. A message above a limit is replaced by an error, or ends the connection.

Loads the MCP SDK: import this module only where a server is connected to.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, Self

import anyio
import anyio.lowlevel
from mcp.shared.message import SessionMessage
from mcp_types import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp_types.methods import parse_server_notification
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic import TypeAdapter, ValidationError

from mcp_bridge import fair_share, large_json
from mcp_bridge.downstream.client.log_tail import logger
from mcp_bridge.downstream.transports.large_parts import LARGE_VALUES, detach, has_tools, is_oversized
from mcp_bridge.downstream.transports.lines import Oversized, answered_id_of, request_id_of
from mcp_bridge.downstream.transports.pending_requests import FIRST_ID, PendingRequests, number_of
from mcp_bridge.offload import off_loop, on_thread
from mcp_bridge.wire.jsonrpc import CONTAINER_WEIGHT, MAX_VALUES, may_hold_surrogates, values_exceed

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_types import LoggingLevel

    from mcp_bridge.downstream.client.log_tail import LogRing

    OnLog = Callable[[LoggingLevel, Any], None]
    """Called with the level and the data of a log message."""

# Maximum blocks of one result, and tools or resources of one listing page: the SDK takes about 15 µs for each.
MAX_BLOCKS = 4_000
MAX_TOOLS_IN_PAGE = 5_000
_LIMITED = {
    "content": MAX_BLOCKS,
    "contents": MAX_BLOCKS,
    "resources": MAX_BLOCKS,
    "resourceTemplates": MAX_BLOCKS,
    "tools": MAX_TOOLS_IN_PAGE,
}

# The charge for a message that isn't an answer, for which the SDK creates a task, and for a line that isn't passed on.
_MESSAGE_SECONDS = 0.0003
_LINE_SECONDS = 0.00003

# Notifications that are shown to people as they arrive: progress, and log messages, of which the severe ones count by
# themselves. A talkative server gets a burst of each kind and then so many a second; dropping the rest costs little.
_MINOR_LEVELS = ("debug", "info", "notice", "warning")
_NOTIFICATION_BURST = 50
_NOTIFICATIONS_PER_SECOND = 20

# How many messages are passed on before others get their turn.
_MESSAGES_PER_TURN = 32

# From JSON-RPC's implementation-defined range; distinguished from a server's own use by the type of its data.
_REPLACED_CODE = -32098

BOM = b"\xef\xbb\xbf"
"""A byte order mark, which a message may not begin with, and which may be ignored (RFC 8259, section 8.1)."""

# How much of a line that is no message is logged.
_LOGGED_BYTES = 64 * 1024


class OversizedResult:
    """Data of the error that replaces an answer above the limit. No peer can send it.

    Attributes:
        size: The answer's size in bytes.
        parts: The exceeded limit if it is on a number of elements (`250000 values`), else empty.
    """

    def __init__(self, size: int, parts: str = "") -> None:
        self.size = size
        self.parts = parts


class UnreadableResult:
    """Data of the error that replaces an answer that is no message. No peer can send it."""


class ReadTransport(Protocol):
    """What a `MessageReader` uses of a transport."""

    tenant: fair_share.Tenant
    log: LogRing
    requests: PendingRequests
    on_log: OnLog

    def take_requester(self, number: object) -> fair_share.Tenant:
        """The tenant that an answer is charged to."""

    async def wait_turn(self) -> None:
        """Wait for the server's turn to be read."""

    async def refuse(self, number: str | int) -> None:
        """Answer a request of the server that is too large to be decoded."""

    async def end_stream(self, reason: str) -> None:
        """End the stream of messages."""


def _is_malformed(message: JSONRPCNotification) -> bool:
    """Whether a notification has parameters that no version of the protocol allows. An unknown one is the SDK's."""
    for version in (LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION):
        try:
            parse_server_notification(message.method, version, message.params)
        except ValidationError:
            continue
        except KeyError:
            pass
        return False
    return True


class _Rate:
    """The limit on the rate of one kind of notification."""

    def __init__(self) -> None:
        self._tokens = float(_NOTIFICATION_BURST)
        self._looked = anyio.current_time()

    def allows_one(self) -> bool:
        """Take one, if there may be one more."""
        now = anyio.current_time()
        self._tokens = min(_NOTIFICATION_BURST, self._tokens + (now - self._looked) * _NOTIFICATIONS_PER_SECOND)
        self._looked = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def no_log(level: LoggingLevel, data: Any) -> None:
    """Take a log message that nobody wants."""


class MessageReader(ABC):
    """The SDK's read stream: messages of limited size and number, each charged to whoever it is for."""

    def __init__(self, transport: ReadTransport) -> None:
        self._transport = transport
        self._lines: deque[bytes | Oversized] = deque()
        self._ready: deque[SessionMessage | Exception] = deque()
        self._processed = 0
        self._rates = {kind: _Rate() for kind in ("progress", "logs", "errors")}
        self._has_logged_malformed = False
        self._has_logged_encoding = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while not self._ready:
            if not self._lines:
                await self._transport.wait_turn()
                await self._receive()
                continue
            self._processed += 1
            if self._processed % _MESSAGES_PER_TURN == 0:
                # A chunk may contain hundreds of notifications, each of which costs the SDK a task.
                await anyio.lowlevel.checkpoint()
                await self._transport.wait_turn()
            await self._process_line(self._lines.popleft())
        return self._ready.popleft()

    @abstractmethod
    async def _receive(self) -> None:
        """Wait for the next messages, and append them to the lines or to what is ready.

        Raises:
            StopAsyncIteration: There will be none.
        """

    async def _process_line(self, line: bytes | Oversized) -> None:
        if isinstance(line, Oversized):
            self._transport.take_requester(line.request_id)
            await self._refuse(line.size, line.request_id)
            return
        whose = self._transport.tenant
        # The requester is charged if it is known, and doesn't keep others from their answers.
        with fair_share.billed() as bill:
            try:
                whose = await self._decode_line(line.removeprefix(BOM).strip())
            finally:
                whose.charge(bill.seconds)

    async def _decode_line(self, line: bytes) -> fair_share.Tenant:
        """Pass on a line if it is a message; return the tenant to charge."""
        if CONTAINER_WEIGHT * len(line) > MAX_VALUES and await on_thread(values_exceed, line, MAX_VALUES):
            # As for a guest's frame: a value may take only a few bytes, and each takes time and memory.
            return await self._refuse_line(line, await _answered_id(line), f"{MAX_VALUES} values")
        if line[:1] == b"{":
            try:
                message, over = await off_loop(line, _parsed, line)
            except RecursionError:
                if (number := await _answered_id(line)) is not None:
                    return await self._refuse_line(line, number, f"{large_json.MAX_DEPTH} levels of nesting")
            except ValueError:
                mended = await off_loop(line, _as_utf8, line)
                if mended != line:
                    if not self._has_logged_encoding:
                        # Once and without the answer, which may hold what no log may, and is read.
                        self._has_logged_encoding = True
                        self._transport.log.add(
                            b"(stdout has bytes that are not UTF-8: they are read as \xef\xbf\xbd)\n"
                        )
                    return await self._decode_line(mended)
            else:
                return await self._pass_on(message, line, over)
        if line:
            self._transport.log.add(b"(stdout) " + line[:_LOGGED_BYTES] + b"\n")
        number = request_id_of(line)
        if number is None or number < FIRST_ID:
            # What a server prints may have a small id too: that counts only in an answer.
            number = await off_loop(line, answered_id_of, line)
        if number is None:
            return self._transport.tenant
        # Whoever waits for it would wait for nothing.
        error = ErrorData(code=_REPLACED_CODE, message="unreadable", data=UnreadableResult())
        self._answer(JSONRPCError(jsonrpc="2.0", id=number, error=error))
        return self._transport.take_requester(number)

    async def _pass_on(self, message: JSONRPCMessage, line: bytes, over: str) -> fair_share.Tenant:
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            number = number_of(message.id)
            if over:
                await self._refuse(len(line), number, parts=over)
            else:
                self._answer(message)
            return self._transport.take_requester(number)
        tenant = self._transport.tenant
        rate = self._rate_of(message)
        if rate is not None and not rate.allows_one():
            tenant.charge(_LINE_SECONDS)
        elif message.method == "notifications/progress" and self._transport.requests.progress(message.params):
            tenant.charge(_MESSAGE_SECONDS)
        elif len(line) >= large_json.LARGE_CHARS:
            # The SDK would inspect it on the event loop, and nothing is done with it.
            self._transport.log.add(b"(stdout, not looked at) " + line[:_LOGGED_BYTES] + b"\n")
            if isinstance(message, JSONRPCRequest):
                await self._transport.refuse(message.id)
        elif isinstance(message, JSONRPCNotification) and _is_malformed(message):
            # The SDK would log it, with what it contains, and a traceback.
            tenant.charge(_MESSAGE_SECONDS)
            self._transport.log.add(b"(stdout, malformed) " + line[:_LOGGED_BYTES] + b"\n")
            if not self._has_logged_malformed:
                self._has_logged_malformed = True
                logger.warning("a server sends malformed notifications (%s), which are dropped", message.method)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/message" and message.params:
            # Past the session, whose tasks it would reach after the end of the call that it is about.
            tenant.charge(_MESSAGE_SECONDS)
            try:
                self._transport.on_log(message.params["level"], message.params["data"])
            except Exception:  # noqa: BLE001 - logged
                # The reader is needed by others.
                logger.exception("what a server has logged was not passed on")
        else:
            tenant.charge(_MESSAGE_SECONDS)
            self._ready.append(SessionMessage(message))
        return tenant

    def _answer(self, message: JSONRPCResponse | JSONRPCError) -> None:
        if not self._transport.requests.settle(message):
            self._ready.append(SessionMessage(message))

    def _rate_of(self, message: JSONRPCRequest | JSONRPCNotification) -> _Rate | None:
        """The limit on the rate of a notification that is shown to people; None for any other message."""
        if message.method == "notifications/progress":
            return self._rates["progress"]
        if message.method == "notifications/message":
            return self._rates["logs" if (message.params or {}).get("level") in _MINOR_LEVELS else "errors"]
        return None

    async def _refuse_line(self, line: bytes, number: int | None, parts: str) -> fair_share.Tenant:
        await self._refuse(len(line), number, parts=parts)
        return self._transport.take_requester(number)

    async def _refuse(self, size: int, request_id: int | None, *, parts: str = "") -> None:
        """Pass on an error in place of an answer above a limit."""
        if request_id is None:
            await self._transport.end_stream(f"it sent a message of {size} bytes that answers no known call")
            return
        error = ErrorData(code=_REPLACED_CODE, message="oversized", data=OversizedResult(size, parts))
        self._answer(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))

    async def receive(self) -> SessionMessage | Exception:
        """The next message.

        Raises:
            anyio.EndOfStream: There will be none.
        """
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def aclose(self) -> None:
        """Forget what is ready."""
        self._ready.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def _answered_id(line: bytes) -> int | None:
    """The id of the request that a line answers; its ends show it, as a rule."""
    number = request_id_of(line)
    return await off_loop(line, answered_id_of, line) if number is None else number


def _as_utf8(line: bytes) -> bytes:
    """A line with replacement characters in place of what isn't UTF-8, as clients read it."""
    return line.decode("utf-8", "replace").encode()


def _exceeded_limit(result: Any) -> str:
    """The exceeded limit on elements for which the SDK creates objects on the event loop; empty if none is exceeded."""
    if not isinstance(result, dict):
        return ""
    for name, limit in _LIMITED.items():
        items = result.get(name)
        if isinstance(items, list) and len(items) > limit:
            return f"{limit} {name}"
    return ""


# Pydantic's error message for excessive nesting.
_TOO_DEEP = "recursion limit exceeded"

_decoder = json.JSONDecoder()
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# As the SDK encodes a message.
_body: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


def _parsed(line: bytes) -> tuple[JSONRPCMessage, str]:
    """A message, and the limit that it exceeds, if any. An answer's large parts, and its tools, are detached.

    Raises:
        ValueError: It is not a message.
        RecursionError: It is nested too deeply.
    """
    if len(line) < large_json.LARGE_CHARS:
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError as exc:
            if _TOO_DEEP in str(exc):
                raise RecursionError from None
            raise
        if not isinstance(message, JSONRPCResponse):
            return message, ""
        over = _exceeded_limit(message.result)
        if has_tools(message.result):
            message.result = detach(message.result)
        return message, over
    read = large_json.loads(line, _decoder)
    if may_hold_surrogates(line):
        # As for a short line: text that UTF-8 can't encode.
        large_json.dumps(read, _encoder).encode()
    message = jsonrpc_message_adapter.validate_python(read, by_name=False)
    over = ""
    if isinstance(message, JSONRPCResponse):
        over = _exceeded_limit(message.result)
        message.result = detach(message.result)
        if not over and is_oversized(message.result):
            over = f"{LARGE_VALUES} values besides its content"
    return message, over


def encoded(message: dict[str, Any]) -> bytes:
    """A message as JSON.

    Raises:
        ValueError: It can't be encoded.
    """
    return _body.dump_json(message)


def encoded_large(message: dict[str, Any], end: str = "") -> bytes:
    """As `encoded`, for a message of any size, with an end: other threads run meanwhile."""
    return f"{large_json.dumps(message, _encoder)}{end}".encode()
