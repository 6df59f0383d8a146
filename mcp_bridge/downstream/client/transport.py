"""A child process as an MCP transport: the SDK's stdio transport, with what a supervisor needs besides.

Besides: stderr is always drained, into a bounded ring; a line is never held beyond a limit; what isn't a message
on stdout is noted and passed over; the death of the child itself ends the connection at once, even while a
grandchild holds the pipes open; a write never waits for a server that has stopped reading, except a request's own;
and closing ends the whole process group, with every wait bounded and shielded from cancellation.

Loads the MCP SDK: import it only where a server is started.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections import deque
from contextlib import contextmanager, suppress
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from mcp_bridge import fair_share, large_json
from mcp_bridge.downstream.client.aside import LARGE_VALUES, Outgoing, is_long, set_aside
from mcp_bridge.downstream.client.lines import LineSplitter, Oversized, request_id_of
from mcp_bridge.offload import off_loop, on_thread
from mcp_bridge.wire.jsonrpc import CONTAINER_WEIGHT, MAX_VALUES, may_hold_surrogates, values_exceed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from anyio.abc import ByteReceiveStream, ByteSendStream, Process, TaskGroup

# Kept of a server's stderr (and of what isn't a message on its stdout).
LOG_BYTES = 64 * 1024

# What the process may take to end by itself after its stdin was closed.
EXIT_GRACE = 2.0

# What its group may take to end after SIGTERM, before SIGKILL.
TERMINATE_GRACE = 1.0

# What the event loop may take to see a killed process end; only one in an uninterruptible wait runs this out.
_REAP_GRACE = 1.0

# What a dead child's last output may take to arrive while another process holds its pipes open. The time in which we
# don't listen isn't counted: so not how long, but how much we listen is limited (a pipe holds a mebibyte at the most).
_LAST_OUTPUT_GRACE = 0.3
_LAST_OUTPUT_BYTES = 2 << 20

# How often to look at a process's state where the kernel can't tell us of a change.
_POLL_INTERVAL = 0.02
_EXIT_POLL_INTERVAL = 0.25

# Above this many unwritten bytes a request waits until the server has read some.
_WRITE_HIGH_WATER = 1024 * 1024

# Above this many the server is held to have stopped reading for good.
_WRITE_LIMIT = 64 * 1024 * 1024

_CHUNK = 64 * 1024

# Blocks of one result, and tools of one page of a listing: each takes the SDK some 15 µs.
MAX_BLOCKS = 4_000
MAX_TOOLS_IN_PAGE = 5_000

# What a message that answers nothing is charged: the SDK makes a task of it; and one that isn't handed on.
_MESSAGE_SECONDS = 0.0003
_LINE_SECONDS = 0.00003

# What people are told as it comes. Of a server that talks much it is the first, and so many a second; the rest costs
# little.
_TALK = frozenset({"notifications/message", "notifications/progress"})
_TOLD_AT_ONCE = 50
_TOLD_PER_SECOND = 20

# Messages that are handed on before others get their turn.
_TAKEN_AT_ONCE = 32

# From the range JSON-RPC leaves to implementations; told from a server's own use by the type of its data.
_OVERSIZED_CODE = -32098


class OversizedResult:
    """Data of the error that stands in for an answer over the limit; no peer can send one.

    Attributes:
        size: Its bytes.
        parts: The limit that it is over, if that is one on their number (`250000 values`).
    """

    def __init__(self, size: int, parts: str = "") -> None:
        self.size = size
        self.parts = parts


class LogRing:
    """The last bytes of a log."""

    def __init__(self, limit: int = LOG_BYTES) -> None:
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._forgot = False

    def add(self, chunk: bytes) -> None:
        """Append, forgetting the oldest beyond the limit."""
        self._forgot = self._forgot or len(chunk) > self._limit
        chunk = chunk[-self._limit :]
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size > self._limit:
            oldest, over = self._chunks.popleft(), self._size - self._limit
            self._size -= len(oldest)
            if len(oldest) > over:
                self._chunks.appendleft(oldest[over:])
                self._size += len(oldest) - over
            self._forgot = True

    def text(self) -> str:
        """All that is kept, in whole lines: what the first one began with may have been forgotten."""
        text = b"".join(self._chunks).decode("utf-8", "replace")
        return text.partition("\n")[2] if self._forgot else text

    def tail(self, lines: int = 20, columns: int = 400) -> list[str]:
        """The last lines, each cut to `columns` characters."""
        text = b"".join(self._chunks).decode("utf-8", "replace")
        return [line[:columns] for line in text.splitlines() if line.strip()][-lines:]


class StdioTransport:
    """One child process and the two message streams over its pipes; an async context manager.

    Attributes:
        process: The child, once entered.
        environment: All of its variables.
        log: What it wrote to stderr.
        closed: Set when no further message will come.
        outgoing: Large arguments, which are written in the place of their marks.
        party: The server, among those that share the interpreter.
        received: Bytes that have come.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        max_message: int,
        party: fair_share.Party,
    ) -> None:
        self._argv = list(argv)
        self.environment = dict(env)
        self._cwd = cwd
        self.max_message = max_message
        self._tasks: TaskGroup | None = None
        self._sink: _Sink | None = None
        self.process: Process | None = None
        self.log = LogRing()
        self.closed = anyio.Event()
        self.end_reason: str | None = None
        self.outgoing = Outgoing()
        self.party = party
        self._askers: dict[object, fair_share.Party] = {}
        self.received = 0
        self._has_ended = False
        self._waiting = anyio.CancelScope()
        self._is_listening = False

    async def __aenter__(self) -> tuple[_Messages, _Sink]:
        """Start the child.

        Raises:
            OSError: It can't be started.
            ValueError: NUL bytes in the command, its arguments or its environment.
        """
        process = await anyio.open_process(
            self._argv,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=self.environment,
            cwd=self._cwd,
            start_new_session=True,
        )
        # No await until the task group is entered: a cancellation in the gap would leak the process.
        self.process = process
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        self._tasks = tasks
        assert process.stdin is not None  # noqa: S101 - opened with pipes
        assert process.stdout is not None  # noqa: S101
        assert process.stderr is not None  # noqa: S101
        self._sink = sink = _Sink(self, process.stdin)
        tasks.start_soon(sink.write_loop)
        tasks.start_soon(_drain, process.stderr, self.log)
        tasks.start_soon(self._watch_exit, process)
        return _Messages(self, process.stdout, self.max_message), sink

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the child and everything it started; bounded, whatever they do."""
        process, tasks, sink = self.process, self._tasks, self._sink
        assert process is not None  # noqa: S101 - entered
        assert tasks is not None  # noqa: S101
        assert sink is not None  # noqa: S101
        self.closed.set()
        with anyio.CancelScope(shield=True):
            assert process.stdout is not None  # noqa: S101
            # A server that is stuck writing its last output would never come to read our end of file.
            tasks.start_soon(_drain, process.stdout, None)
            await _close(process.stdin)
            await _wait_exit(process, EXIT_GRACE)
            await _end_group(process)
            await _close(process.stdout)
            await _close(process.stderr)
            _release(process)
        sink.close()
        tasks.cancel_scope.cancel()
        tasks.cancel_scope.shield = True
        await tasks.__aexit__(None, None, None)

    def asked(self, number: str | int) -> None:
        """A request is sent, for the party of this task."""
        whose = fair_share.current.get()
        if isinstance(number, int) and isinstance(whose, fair_share.Party):
            self._askers[number] = whose

    def given_up(self, number: object) -> None:
        """Nobody waits for the answer to a request any more."""
        self._askers.pop(number, None)

    def answered(self, number: object) -> fair_share.Party:
        """For whom an answer is that has come: the server itself, if nobody has asked for it, or no longer."""
        return self._askers.pop(number, self.party)

    async def turn(self) -> None:
        """Wait for the server's turn to be heard.

        Not once its process has ended: what is left of what it has sent is little, and waits nowhere else.
        """
        if not self._has_ended:
            with anyio.CancelScope() as self._waiting:
                await self.party.turn()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """The reader has looked at all that has come."""
        self._is_listening = True
        try:
            yield
        finally:
            self._is_listening = False

    def exit_status(self) -> str | None:
        """How the child ended (`exit code 3`, `signal SIGKILL`), or None while it runs."""
        code = self.process.returncode if self.process else None
        if code is None:
            return None
        if code >= 0:
            return f"exit code {code}"
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"

    async def refuse(self, number: str | int) -> None:
        """Answer a request of the server's that is too large to be looked at."""
        error = ErrorData(code=INVALID_REQUEST, message="The request is too large.")
        if self._sink is not None:
            with suppress(anyio.BrokenResourceError):
                await self._sink.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error)))

    async def end_stream(self, reason: str) -> None:
        """Let the reader see the end of the stream, whoever holds the pipe open."""
        self.end_reason = self.end_reason or reason
        if self.process is not None:
            await _close(self.process.stdout)

    async def _watch_exit(self, process: Process) -> None:
        await _exited(process)
        self._has_ended = True
        self._waiting.cancel()
        await self.end_when_heard("its process ended")

    async def end_when_heard(self, reason: str) -> None:
        """End the stream when the reader has looked at what the child has written last."""
        left = _LAST_OUTPUT_GRACE
        most = self.received + _LAST_OUTPUT_BYTES
        while left > 0 and self.received < most and not self.closed.is_set():
            await anyio.sleep(_POLL_INTERVAL)
            left -= _POLL_INTERVAL if self._is_listening else 0
        await self.end_stream(reason)


class _Messages:
    """The SDK's read stream over the child's stdout."""

    def __init__(self, transport: StdioTransport, stdout: ByteReceiveStream, limit: int) -> None:
        self._transport = transport
        self._stdout = stdout
        self._splitter = LineSplitter(limit)
        self._lines: deque[bytes | Oversized] = deque()
        self._ready: deque[SessionMessage | Exception] = deque()
        self._taken = 0
        self._left = float(_TOLD_AT_ONCE)
        self._looked = anyio.current_time()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while not self._ready:
            if not self._lines:
                await self._transport.turn()
                await self._receive()
                continue
            self._taken += 1
            if self._taken % _TAKEN_AT_ONCE == 0:
                # A chunk may hold hundreds of notifications, each of which costs the SDK a task.
                await anyio.lowlevel.checkpoint()
                await self._transport.turn()
            await self._take(self._lines.popleft())
        return self._ready.popleft()

    async def _receive(self) -> None:
        # Apart from the loop above: what is read last isn't to be kept until something more comes.
        try:
            with self._transport.listening():
                chunk = await self._stdout.receive(_CHUNK)
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            self._transport.closed.set()
            raise StopAsyncIteration from None
        self._transport.received += len(chunk)
        self._lines += self._splitter.feed(chunk)

    async def _take(self, line: bytes | Oversized) -> None:
        if isinstance(line, Oversized):
            self._transport.answered(line.request_id)
            await self._refuse(line.size, line.request_id)
            return
        whose = self._transport.party
        # Whoever has asked for it is charged, when it is known who that is, and doesn't keep others from their answers.
        with fair_share.billed() as bill:
            try:
                whose = await self._take_line(line.strip())
            finally:
                whose.charge(bill.seconds)

    async def _take_line(self, line: bytes) -> fair_share.Party:
        """Hand a line on, if it is a message; who is to be charged for it."""
        if CONTAINER_WEIGHT * len(line) > MAX_VALUES and await on_thread(values_exceed, line, MAX_VALUES):
            # As for a guest's frame: a few bytes are a value, and each takes its time and its memory.
            return await self._refuse_line(line, f"{MAX_VALUES} values")
        if line[:1] == b"{":
            try:
                message, over = await off_loop(line, _parsed, line)
            except RecursionError:
                if request_id_of(line) is not None:
                    return await self._refuse_line(line, f"{large_json.MAX_DEPTH} levels of nesting")
            except ValueError:
                pass
            else:
                return await self._hand_on(message, line, over)
        if line:
            self._transport.log.add(b"(stdout) " + line[:_CHUNK] + b"\n")
        return self._transport.party

    async def _hand_on(self, message: JSONRPCMessage, line: bytes, over: str) -> fair_share.Party:
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            number = _number(message.id)
            if over:
                await self._refuse(len(line), number, parts=over)
            else:
                self._ready.append(SessionMessage(message))
            return self._transport.answered(number)
        party = self._transport.party
        if message.method in _TALK and not self._may_tell():
            party.charge(_LINE_SECONDS)
        elif len(line) >= large_json.LARGE_CHARS:
            # The SDK would look through it on the event loop, and nothing is done with it.
            self._transport.log.add(b"(stdout, not looked at) " + line[:_CHUNK] + b"\n")
            if isinstance(message, JSONRPCRequest):
                await self._transport.refuse(message.id)
        else:
            party.charge(_MESSAGE_SECONDS)
            self._ready.append(SessionMessage(message))
        return party

    def _may_tell(self) -> bool:
        """Whether one more message of those that people are told may go its way."""
        now = anyio.current_time()
        self._left = min(_TOLD_AT_ONCE, self._left + (now - self._looked) * _TOLD_PER_SECOND)
        self._looked = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    async def _refuse_line(self, line: bytes, parts: str) -> fair_share.Party:
        number = request_id_of(line)
        await self._refuse(len(line), number, parts=parts)
        return self._transport.answered(number)

    async def _refuse(self, size: int, request_id: int | None, *, parts: str = "") -> None:
        """Stand in for an answer that is over a limit."""
        if request_id is None:
            await self._transport.end_stream(f"it sent a message of {size} bytes that answers no known call")
            return
        error = ErrorData(code=_OVERSIZED_CODE, message="oversized", data=OversizedResult(size, parts))
        self._ready.append(SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error)))

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def aclose(self) -> None:
        self._ready.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Sink:
    """The SDK's write stream over the child's stdin."""

    def __init__(self, transport: StdioTransport, stdin: ByteSendStream) -> None:
        self._transport = transport
        self._stdin = stdin
        self._outgoing, self._incoming = anyio.create_memory_object_stream[bytes](math.inf)
        self._unwritten = 0
        self._drained = anyio.Event()

    async def send(self, item: SessionMessage, /) -> None:
        """Queue one message; a request also waits its turn when the server reads slowly.

        Raises:
            anyio.BrokenResourceError: The connection has ended.
            ValueError: No JSON can carry the message.
        """
        data = await self._written(item)
        if self._transport.closed.is_set() or self._unwritten > _WRITE_LIMIT:
            raise anyio.BrokenResourceError
        self._unwritten += len(data)
        # Serialised here, in the caller's task, so that what can't be serialised is the caller's error alone.
        self._outgoing.send_nowait(data)
        if isinstance(item.message, JSONRPCRequest):
            while self._unwritten > _WRITE_HIGH_WATER and not self._transport.closed.is_set():
                await self._drained.wait()

    async def _written(self, item: SessionMessage) -> bytes:
        message = item.message
        if isinstance(message, JSONRPCRequest):
            self._transport.asked(message.id)
            params = self._transport.outgoing.whole(message.params or {})
            if params is not None:
                return await on_thread(_request, message, params)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._transport.given_up((message.params or {}).get("requestId"))
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"

    async def write_loop(self) -> None:
        with self._incoming:
            try:
                async for data in self._incoming:
                    await self._stdin.send(data)
                    self._unwritten -= len(data)
                    self._wake()
            except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
                # It may still run with its stdin closed: nothing can be asked of it any more.
                await self._transport.end_when_heard("it closed its standard input")
            finally:
                self._wake()

    def _wake(self) -> None:
        self._drained.set()
        self._drained = anyio.Event()

    def close(self) -> None:
        self._outgoing.close()
        self._incoming.close()

    async def aclose(self) -> None:
        self._outgoing.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _number(request_id: str | int | None) -> int | None:
    """The number of a request of ours; some servers answer it as a text."""
    number = None if request_id is None else coerce_request_id(request_id)
    return number if isinstance(number, int) else None


def _long_list(result: Any) -> str:
    """The limit that an answer is over, of which the SDK makes objects on the event loop."""
    if not isinstance(result, dict):
        return ""
    for name, limit in (("content", MAX_BLOCKS), ("tools", MAX_TOOLS_IN_PAGE)):
        found = result.get(name)
        if isinstance(found, list) and len(found) > limit:
            return f"{limit} {name}"
    return ""


# What pydantic's reader says of it.
_TOO_DEEP = "recursion limit exceeded"

_decoder = json.JSONDecoder()
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _parsed(line: bytes) -> tuple[JSONRPCMessage, str]:
    """A message, and the limit that it is over. Of an answer, what is too large for the SDK is aside.

    Raises:
        ValueError: It is none.
        RecursionError: It nests too deep.
    """
    if len(line) < large_json.LARGE_CHARS:
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError as exc:
            if _TOO_DEEP in str(exc):
                raise RecursionError from None
            raise
        return message, _long_list(message.result) if isinstance(message, JSONRPCResponse) else ""
    read = large_json.loads(line, _decoder)
    if may_hold_surrogates(line):
        # As for a short one: text that no UTF-8 can carry.
        large_json.dumps(read, _encoder).encode()
    message = jsonrpc_message_adapter.validate_python(read, by_name=False)
    over = ""
    if isinstance(message, JSONRPCResponse):
        over = _long_list(message.result)
        message.result = set_aside(message.result)
        if not over and is_long(message.result):
            over = f"{LARGE_VALUES} values beside its content"
    return message, over


def _request(message: JSONRPCRequest, params: dict[str, Any]) -> bytes:
    body = {"jsonrpc": "2.0", "id": message.id, "method": message.method, "params": params}
    return large_json.dumps(body, _encoder).encode() + b"\n"


async def _drain(stream: ByteReceiveStream, log: LogRing | None) -> None:
    with suppress(
        anyio.EndOfStream,
        anyio.ClosedResourceError,
        anyio.BrokenResourceError,
        anyio.BusyResourceError,
        OSError,
    ):
        while True:
            chunk = await stream.receive(_CHUNK)
            if log is not None:
                log.add(chunk)


async def _close(stream: Any) -> None:
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await stream.aclose()


async def _exited(process: Process) -> None:
    """Return when the child itself has ended, whoever holds its pipes (`process.wait` waits for those too)."""
    if hasattr(os, "pidfd_open"):
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            descriptor = -1  # gone already, or a kernel without it
        if descriptor >= 0:
            try:
                await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)
    while process.returncode is None:  # noqa: ASYNC110 - nothing announces it
        await anyio.sleep(_EXIT_POLL_INTERVAL)


async def _wait_exit(process: Process, seconds: float) -> bool:
    deadline = anyio.current_time() + seconds
    while process.returncode is None:
        if anyio.current_time() >= deadline:
            return False
        await anyio.sleep(_POLL_INTERVAL)
    return True


async def _end_group(process: Process) -> None:
    """SIGTERM, then SIGKILL, to whatever is left of the child's process group.

    The group's id is the child's pid, and stays reserved while a member lives. Processes that made a session of
    their own are out of reach.
    """
    if not _signal_group(process.pid, signal.SIGTERM):
        return
    deadline = anyio.current_time() + TERMINATE_GRACE
    while _group_lives(process):
        if anyio.current_time() >= deadline:
            _signal_group(process.pid, signal.SIGKILL)
            await _wait_exit(process, _REAP_GRACE)
            return
        await anyio.sleep(_POLL_INTERVAL)


def _group_lives(process: Process) -> bool:
    return _signal_group(process.pid, 0)


def _signal_group(group: int, number: int) -> bool:
    """Whether the group exists. macOS answers EPERM for zombies: that proves nothing, so it counts as existing."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _release(process: Process) -> None:
    """Close asyncio's subprocess transport, which stays open, and warns, while a survivor holds a pipe."""
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    close = getattr(transport, "close", None)
    if callable(close):
        with suppress(PermissionError):
            close()
