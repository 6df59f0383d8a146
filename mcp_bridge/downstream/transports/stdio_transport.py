"""A child process as an MCP transport: the SDK's stdio transport, extended for supervision.

The differences: stderr is always drained, into a bounded ring. A line above the limit is never held in memory. Output
on stdout that isn't a message is logged and ignored. The child's death ends the connection at once, even if a
grandchild holds the pipes open. Only a request waits for a server that has stopped reading; other writes don't. Closing
ends the whole process group, with every wait bounded and shielded from cancellation.

Loads the MCP SDK: import this module only where a server is started.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from contextlib import contextmanager, suppress
from subprocess import PIPE
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
)

from mcp_bridge import fair_share
from mcp_bridge.downstream.client.log_tail import LogRing
from mcp_bridge.downstream.transports.large_parts import is_oversized
from mcp_bridge.downstream.transports.lines import LineSplitter
from mcp_bridge.downstream.transports.pending_requests import PendingRequests, connection_closed, given_up
from mcp_bridge.downstream.transports.server_messages import MessageReader, encoded, encoded_large, no_log
from mcp_bridge.offload import on_thread
from mcp_bridge.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from anyio.abc import ByteReceiveStream, ByteSendStream, Process, TaskGroup

    from mcp_bridge.downstream.transports.pending_requests import Progressed
    from mcp_bridge.downstream.transports.server_messages import OnLog

# How long the process may take to exit by itself after its stdin was closed.
EXIT_GRACE = 2.0

# How long its process group may take to end after SIGTERM, before SIGKILL.
TERMINATE_GRACE = 1.0

# How long the event loop may take to notice a killed process's end; only a process in uninterruptible sleep exceeds it.
_REAP_GRACE = 1.0

# How long a dead child's last output may take to arrive while another process holds its pipes open. Time in which we
# don't read isn't counted, so the output itself is limited too (a pipe holds one mebibyte at most).
_LAST_OUTPUT_GRACE = 0.3
_LAST_OUTPUT_BYTES = 2 << 20

# How often to poll a process's state where the kernel can't notify us.
_POLL_INTERVAL = 0.02
_EXIT_POLL_INTERVAL = 0.25

# Above so many unwritten bytes a request waits until the server has read some.
_WRITE_HIGH_WATER = 1024 * 1024

# Above so many unwritten bytes the server counts as having stopped reading for good.
_WRITE_LIMIT = 64 * 1024 * 1024

_CHUNK = 64 * 1024

# Bytes of messages that are written as one.
_WRITE_TOGETHER = 64 * 1024


class StdioTransport:
    """One child process and the two message streams over its pipes; an async context manager.

    Attributes:
        process: The child, once entered.
        environment: All of its environment variables.
        log: Its stderr output.
        closed: Set when no further message will arrive.
        requests: The requests that don't pass the SDK's session.
        tenant: The server as a tenant that shares the interpreter.
        received: The number of bytes received.
        on_log: Called with the level and the data of each log message.
        retired: None: a process is used until it ends.
    """

    retired: str | None = None

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        max_message: int,
        tenant: fair_share.Tenant,
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
        self.requests = PendingRequests()
        self.tenant = tenant
        self._askers: dict[object, fair_share.Tenant] = {}
        self.received = 0
        self.on_log: OnLog = no_log
        self._has_ended = False
        self._waiting = anyio.CancelScope()
        self._is_reading = False

    async def __aenter__(self) -> tuple[_OutputMessages, _Sink]:
        """Start the child.

        Raises:
            OSError: It can't be started.
            ValueError: The command, its arguments or its environment contain NUL bytes.
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
        # No await until the task group is entered: a cancellation in between would leak the process.
        self.process = process
        tasks = anyio.create_task_group()
        await tasks.__aenter__()
        self._tasks = tasks
        assert process.stdin is not None  # opened with pipes
        assert process.stdout is not None
        assert process.stderr is not None
        self._sink = sink = _Sink(self, process.stdin)
        tasks.start_soon(sink.write_loop)
        tasks.start_soon(_drain, process.stderr, self.log)
        tasks.start_soon(self._watch_exit, process)
        return _OutputMessages(self, process.stdout, self.max_message), sink

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the child and everything that it started. Bounded in time, whatever they do."""
        process, tasks, sink = self.process, self._tasks, self._sink
        assert process is not None  # entered
        assert tasks is not None
        assert sink is not None
        self.close()
        with anyio.CancelScope(shield=True):
            assert process.stdout is not None
            # A server blocked in writing its last output would never read our end of file.
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

    def close(self) -> None:
        """Note that no further message will arrive."""
        self.closed.set()
        self.requests.close()

    async def request(
        self, method: str, params: dict[str, Any], progressed: Progressed | None = None
    ) -> dict[str, Any]:
        """Send a request past the SDK's session, and wait for its result. If cancelled, the server is told so.

        Args:
            method: The method.
            params: Its parameters, by their names on the wire.
            progressed: As in `PendingRequests.begin`.

        Raises:
            MCPError: The server answered with an error, or the connection has ended.
            ValueError: The parameters can't be encoded as JSON.
        """
        assert self._sink is not None  # entered
        number, answer = self.requests.begin(progressed)
        tracing.note_request_id(number)
        is_sent = False
        try:
            if progressed is not None:
                params = params | {"_meta": {**params.get("_meta", {}), "progressToken": number}}
            body = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            data = await on_thread(encoded_large, body, "\n") if is_oversized(params) else encoded(body) + b"\n"
            await anyio.lowlevel.checkpoint_if_cancelled()
            self.track_request(number)
            is_sent = True
            try:
                await self._sink.request(data)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                raise connection_closed() from None
            outcome = await answer
        except anyio.get_cancelled_exc_class():
            if is_sent:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    self._sink.post(encoded(given_up(number)) + b"\n")
            raise
        finally:
            self.requests.end(number)
            self.forget_request(number)
        if isinstance(outcome, MCPError):
            raise outcome
        return outcome

    def track_request(self, number: str | int) -> None:
        """Register a request that is sent for the current task's tenant."""
        whose = fair_share.current.get()
        if isinstance(number, int) and isinstance(whose, fair_share.Tenant):
            self._askers[number] = whose

    def forget_request(self, number: object) -> None:
        """Unregister a request whose answer nobody waits for any more."""
        self._askers.pop(number, None)

    def take_requester(self, number: object) -> fair_share.Tenant:
        """The tenant that an answer is charged to: the server itself if nobody waits for it."""
        return self._askers.pop(number, self.tenant)

    async def wait_turn(self) -> None:
        """Wait for the server's turn to be read.

        Doesn't wait once its process has ended: the remaining output is small, and waits nowhere else.
        """
        if not self._has_ended:
            with anyio.CancelScope() as self._waiting:
                await self.tenant.turn()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The context in which the reader has processed all received bytes."""
        self._is_reading = True
        try:
            yield
        finally:
            self._is_reading = False

    def exit_status(self) -> str | None:
        """How the child ended (`exit code 3`, `signal SIGKILL`), or None while it is running."""
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
        """Answer a request of the server that is too large to be decoded."""
        error = ErrorData(code=INVALID_REQUEST, message="The request is too large.")
        if self._sink is not None:
            with suppress(anyio.BrokenResourceError):
                await self._sink.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=error)))

    async def end_stream(self, reason: str) -> None:
        """Signal the end of the stream to the reader, even if a process holds the pipe open."""
        self.end_reason = self.end_reason or reason
        if self.process is not None:
            await _close(self.process.stdout)

    async def _watch_exit(self, process: Process) -> None:
        await _exited(process)
        self._has_ended = True
        self._waiting.cancel()
        await self.end_when_drained("its process ended")

    async def end_when_drained(self, reason: str) -> None:
        """End the stream after the reader has processed the child's last output."""
        left = _LAST_OUTPUT_GRACE
        most = self.received + _LAST_OUTPUT_BYTES
        while left > 0 and self.received < most and not self.closed.is_set():
            await anyio.sleep(_POLL_INTERVAL)
            left -= _POLL_INTERVAL if self._is_reading else 0
        await self.end_stream(reason)


class _OutputMessages(MessageReader):
    """The messages on the child's stdout."""

    def __init__(self, transport: StdioTransport, stdout: ByteReceiveStream, limit: int) -> None:
        super().__init__(transport)
        self._stdio = transport
        self._stdout = stdout
        self._splitter = LineSplitter(limit)

    async def _receive(self) -> None:
        # Separate from the loop, so that the last chunk isn't kept alive until the next one arrives.
        try:
            with self._stdio.reading():
                chunk = await self._stdout.receive(_CHUNK)
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            self._stdio.close()
            raise StopAsyncIteration from None
        self._stdio.received += len(chunk)
        self._lines += self._splitter.feed(chunk)


class _Sink:
    """The SDK's write stream, written to the child's stdin."""

    def __init__(self, transport: StdioTransport, stdin: ByteSendStream) -> None:
        self._transport = transport
        self._stdin = stdin
        self._queue: deque[bytes] = deque()
        self._has_more = anyio.Event()
        self._is_closed = False
        self._is_broken = False
        """Whether nothing is written any more."""
        self._unwritten = 0
        self._drained: anyio.Event | None = None
        """Set when something was written, if somebody waits for that."""

    async def send(self, item: SessionMessage, /) -> None:
        """Queue one message; a request also waits while the server reads slowly.

        Raises:
            anyio.BrokenResourceError: The connection has ended.
            ValueError: The message can't be encoded as JSON.
        """
        # Serialised here, in the caller's task, so that a serialisation error reaches only the caller.
        data = self._encoded(item)
        if isinstance(item.message, JSONRPCRequest):
            await self.request(data)
        else:
            self.post(data)

    async def request(self, data: bytes) -> None:
        """Queue an encoded request, and wait while the server reads slowly.

        Raises:
            BrokenResourceError, ClosedResourceError: As `post`.
        """
        self.post(data)
        while self._unwritten > _WRITE_HIGH_WATER and not self._transport.closed.is_set():
            if self._drained is None:
                self._drained = anyio.Event()
            await self._drained.wait()

    def post(self, data: bytes) -> None:
        """Queue an encoded message.

        Raises:
            BrokenResourceError, ClosedResourceError: The connection has ended.
        """
        if self._is_closed:
            raise anyio.ClosedResourceError
        if self._is_broken or self._transport.closed.is_set() or self._unwritten > _WRITE_LIMIT:
            raise anyio.BrokenResourceError
        self._unwritten += len(data)
        self._queue.append(data)
        self._has_more.set()

    def _encoded(self, item: SessionMessage) -> bytes:
        message = item.message
        if isinstance(message, JSONRPCRequest):
            self._transport.track_request(message.id)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._transport.forget_request((message.params or {}).get("requestId"))
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"

    async def write_loop(self) -> None:
        try:
            while self._queue or not self._is_closed:
                if not self._queue:
                    self._has_more = anyio.Event()
                    await self._has_more.wait()
                    continue
                data = self._together()
                await self._stdin.send(data)
                self._unwritten -= len(data)
                self._wake()
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
            # The child may still run with its stdin closed: no request can reach it any more.
            self._is_broken = True
            await self._transport.end_when_drained("it closed its standard input")
        finally:
            self._is_broken = True
            self._wake()

    def _together(self) -> bytes:
        """The next messages, as many as are written as one: each write wakes the server."""
        parts = [self._queue.popleft()]
        size = len(parts[0])
        while self._queue and size + len(self._queue[0]) <= _WRITE_TOGETHER:
            parts.append(self._queue.popleft())
            size += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wake(self) -> None:
        if self._drained is not None:
            self._drained.set()
            self._drained = None

    def close(self) -> None:
        self._queue.clear()
        self._is_closed = True
        self._has_more.set()

    async def aclose(self) -> None:
        # What is queued is still written.
        self._is_closed = True
        self._has_more.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


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
    """Return when the child itself has exited, even if its pipes are open (`process.wait` waits for those too)."""
    if hasattr(os, "pidfd_open"):
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            descriptor = -1  # The process has exited, or the kernel lacks pidfd_open.
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
    """Send SIGTERM, then SIGKILL, to what is left of the child's process group.

    The group's id is the child's pid, and stays reserved while a member lives. Processes that started a session of
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
    """Whether the group exists. macOS answers EPERM for zombies, which proves nothing, so that counts as existing."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _release(process: Process) -> None:
    """Close asyncio's subprocess transport, which stays open and warns while a survivor holds a pipe."""
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    close = getattr(transport, "close", None)
    if callable(close):
        with suppress(PermissionError):
            close()
