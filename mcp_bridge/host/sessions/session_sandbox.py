"""The sandbox of a session: one container, in which one cell runs after the other.

Each cell is run by a `SandboxRun` of its own, to which this gives the container's streams for the time of the cell.
What the guest says before it has named the cell's execution, which is random and new, belongs to no cell: it is read,
so that no pipe fills up, and dropped. So nothing that an earlier cell has left can answer for the next one in advance.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import anyio
from anyio.abc import ByteReceiveStream

from mcp_bridge.host.channel import HOST_BEAT_SECONDS
from mcp_bridge.host.sandbox_run import ReportReader
from mcp_bridge.sandbox.pipes import UNREADABLE
from mcp_bridge.wire import jsonrpc, messages
from mcp_bridge.wire.errors import WireError
from mcp_bridge.wire.framing import LineDecoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import ByteSendStream, TaskGroup
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from mcp_bridge.executions.sessions.cell import Cell
    from mcp_bridge.sandbox.engine import ExitStatus, SandboxProcess

logger = logging.getLogger(__name__)

REST_SECONDS = 0.05
"""After so long a session that waits for its next cell is read and kept awake. What it sends before fits into a pipe,
or waits; and many a cell follows the one before at once."""

REPORTS_AHEAD = 16
"""Chunks of process 1's reports that are read before the cell takes them."""

_BEGUN = messages.NAMES[messages.ExecutionBegun].encode()

MAX_BEGUN_BYTES = 256
"""Most bytes of the line that begins a cell: what is longer isn't decoded."""


class SessionSandbox:
    """A container of a session.

    Args:
        process: The container. It is closed when the session is.
        tasks: Runs what reads the container between cells.
        max_idle_bytes: Most bytes that it may send between two cells, and again before it begins the next one.

    Attributes:
        head: The execution of the last cell whose names it has; empty before the first.
        place: The place of that cell; None before the first.
        has_no_suspended_cell: As `Turn.has_no_suspended_cell`: all cells of the session have run in it, without a key
            and without a wait.
        acknowledgement: What the guest is sent before the next cell, upon which it leaves the last one behind.
        has_overspent: Whether it was ended for the processor time that it used between two cells.
    """

    def __init__(self, process: SandboxProcess, tasks: TaskGroup, max_idle_bytes: int) -> None:
        self.process = process
        self.head = ""
        self.place: Cell | None = None
        self.has_no_suspended_cell = False
        self.acknowledgement = b""
        self._tasks = tasks
        self.max_idle_bytes = max_idle_bytes
        self.decoder = LineDecoder()
        self._reports: MemoryObjectSendStream[bytes] | None = None
        """Takes process 1's reports while a cell runs."""
        self._taken: MemoryObjectReceiveStream[bytes] | None = None
        """Its other end."""
        self._resting: asyncio.TimerHandle | None = None
        """Begins the rest, if it hasn't begun."""
        self._idle: anyio.CancelScope | None = None
        self._rested = anyio.Event()
        self._spending: _Spending | None = None
        """What it uses while it waits."""
        self.has_overspent = False
        self._life = anyio.CancelScope()
        self._over = anyio.Event()
        self.has_ended = False
        """Whether the container has ended, or has to be."""
        tasks.start_soon(self._live)

    def cell(self, execution: str) -> CellProcess:
        """The container, as the run of a cell sees it. The session must not be idle."""
        send, receive = anyio.create_memory_object_stream[bytes](REPORTS_AHEAD)
        self._end_reports()
        self._reports, self._taken = send, receive
        if self.has_ended:
            send.close()
        return CellProcess(self, execution, receive)

    def rest(self, seconds: float, processor: float, expired: Callable[[], None]) -> None:
        """Wait for the next cell.

        Args:
            seconds: How long.
            processor: How much processor time what runs in the container may use meanwhile, in seconds.
            expired: Called when either is used up, or the container has ended meanwhile: it is closed then.
        """
        self._end_reports()
        self._resting = asyncio.get_running_loop().call_later(
            REST_SECONDS, self._begin_rest, seconds, processor, expired
        )

    def _begin_rest(self, seconds: float, processor: float, expired: Callable[[], None]) -> None:
        self._resting = None
        self._idle = anyio.CancelScope()
        self._rested = anyio.Event()
        self._tasks.start_soon(self._rest, self._idle, seconds, processor, expired)

    def _end_reports(self) -> None:
        """Nobody takes process 1's reports any more: they are read, and dropped."""
        for stream in (self._reports, self._taken):
            if stream is not None:
                stream.close()
        self._reports = self._taken = None

    async def wake(self) -> bool:
        """End the wait; False if the container has ended."""
        self._stay_awake()
        if self._idle is not None:
            self._idle.cancel()
            await self._rested.wait()
            self._idle = None
        return not self.has_ended and not self.process.has_ended()

    def _stay_awake(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    async def close(self) -> None:
        """Kill and remove the container. Idempotent."""
        self.end()
        with anyio.CancelScope(shield=True):
            await self._over.wait()

    def end(self) -> None:
        """As `close`, without waiting."""
        self.has_ended = True
        self._stay_awake()
        if self._idle is not None:
            self._idle.cancel()
        self._life.cancel()

    async def _live(self) -> None:
        """Hand on process 1's reports, until the container is closed."""
        try:
            with self._life:
                try:
                    async for chunk in self.process.stderr:
                        if self._spending is not None:
                            self._spending.feed(chunk)
                        if self._reports is not None:
                            # When the cell has ended, nobody takes them.
                            with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                                await self._reports.send(chunk)
                except UNREADABLE as exc:
                    logger.debug("the reports of a session's sandbox ended: %s", exc)
                if self._reports is not None:
                    self._reports.close()
                await anyio.sleep_forever()
        finally:
            self.has_ended = True
            self._stay_awake()
            self._end_reports()
            if self._idle is not None:
                self._idle.cancel()
            with anyio.CancelScope(shield=True):
                await self.process.aclose()
            self._over.set()

    async def _rest(
        self, scope: anyio.CancelScope, seconds: float, processor: float, expired: Callable[[], None]
    ) -> None:
        is_over = True
        try:
            with scope:
                async with anyio.create_task_group() as tasks:
                    self._spending = _Spending(processor, tasks.cancel_scope)
                    tasks.start_soon(self._beat)
                    with anyio.move_on_after(seconds):
                        await self._drop()
                    tasks.cancel_scope.cancel()
            is_over = not scope.cancel_called
        finally:
            if self._spending is not None:
                self.has_overspent = is_over and self._spending.is_over
                self._spending = None
            if is_over:
                self.end()
            self._rested.set()
        if is_over:
            expired()

    async def _drop(self) -> None:
        """Read what the guest sends between two cells; returns when it ends, or sends too much."""
        size = 0
        try:
            while size <= self.max_idle_bytes:
                chunk = await self.process.stdout.receive()
                size += len(chunk)
                self.decoder.feed(chunk)
        except (anyio.EndOfStream, *UNREADABLE, WireError) as exc:
            logger.debug("a session's sandbox ended between two cells: %s", exc)

    async def _beat(self) -> None:
        line = jsonrpc.encode(messages.notification(messages.HostBeat()))
        while True:
            await anyio.sleep(HOST_BEAT_SECONDS)
            # A line as short as this is written whole, or not at all.
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                try:
                    await self.process.stdin.send(line)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return


class _Spending:
    """The processor time that a sandbox uses between two cells, as process 1 reports it every few seconds.

    Args:
        most: How much it may be, in seconds.
        scope: Cancelled when it is more.

    Attributes:
        is_over: Whether it is more.
    """

    def __init__(self, most: float, scope: anyio.CancelScope) -> None:
        self._most = most
        self._scope = scope
        self._reader = ReportReader()
        self._least: float | None = None
        """The first report's, as what was used before may be the cell's. What writes others there can only lower it."""
        self.is_over = False

    def feed(self, chunk: bytes) -> None:
        """Read reports."""
        for report, _ in self._reader.feed(chunk):
            if isinstance(report, messages.InitBeat):
                self._least = report.processor if self._least is None else min(self._least, report.processor)
                if report.processor - self._least > self._most:
                    self.is_over = True
                    self._scope.cancel()


class CellProcess:
    """A session's container for the time of one cell. As `SandboxProcess`."""

    def __init__(self, sandbox: SessionSandbox, execution: str, reports: MemoryObjectReceiveStream[bytes]) -> None:
        self._process = sandbox.process
        self.stdout: ByteReceiveStream = _CellFrames(sandbox, execution)
        self.stderr = _Reports(reports)

    @property
    def stdin(self) -> ByteSendStream:
        """As `SandboxProcess.stdin`."""
        return self._process.stdin

    async def container_id(self) -> str:
        """As `SandboxProcess.container_id`."""
        return await self._process.container_id()

    async def wait(self) -> ExitStatus:
        """As `SandboxProcess.wait`."""
        return await self._process.wait()

    def has_ended(self) -> bool:
        """As `SandboxProcess.has_ended`."""
        return self._process.has_ended()

    async def aclose(self) -> None:
        """As `SandboxProcess.aclose`: of the whole session."""
        await self._process.aclose()


class _CellFrames(ByteReceiveStream):
    """A cell's frames, whole lines only: from the one on in which the guest names the cell's execution."""

    def __init__(self, sandbox: SessionSandbox, execution: str) -> None:
        self._sandbox = sandbox
        self._execution = execution
        self._has_begun = False
        self._before = 0
        """Bytes before the cell's begin."""
        self._violation: WireError | None = None

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """As the container's standard output. May return more than `max_bytes`: a line isn't divided.

        Raises:
            WireError: A line is too long, or too much comes before the cell's begin.
        """
        if self._violation is not None:
            # Whoever has read ahead wasn't there to be told.
            raise self._violation
        try:
            return await self._frames(max_bytes)
        except WireError as exc:
            self._violation = exc
            raise

    async def _frames(self, max_bytes: int) -> bytes:
        sandbox = self._sandbox
        while True:
            chunk = await sandbox.process.stdout.receive(max_bytes)
            lines = sandbox.decoder.feed(chunk)
            if not self._has_begun:
                lines = self._from_begin(lines, len(chunk))
            if lines:
                return b"\n".join((*lines, b""))

    def _from_begin(self, lines: list[bytes], size: int) -> list[bytes]:
        for number, line in enumerate(lines):
            # What an earlier cell has left may send lines as long as it likes, on which no time is spent.
            if len(line) <= MAX_BEGUN_BYTES and _BEGUN in line and self._is_begin(line):
                self._has_begun = True
                return lines[number:]
        self._before += size
        if self._before > self._sandbox.max_idle_bytes:
            raise WireError("bad_frame", f"{self._before} bytes came before the cell's begin")
        return []

    def _is_begin(self, line: bytes) -> bool:
        try:
            message = jsonrpc.decode(line)
        except WireError:
            return False
        return (
            isinstance(message, jsonrpc.Notification)
            and message.method.encode() == _BEGUN
            and message.params.get("execution") == self._execution
        )

    async def aclose(self) -> None:
        """The container is closed with its session."""


class _Reports(ByteReceiveStream):
    """Process 1's reports during a cell."""

    def __init__(self, reports: MemoryObjectReceiveStream[bytes]) -> None:
        self._reports = reports

    async def receive(self, max_bytes: int = 65536) -> bytes:  # noqa: ARG002
        return await self._reports.receive()

    async def aclose(self) -> None:
        self._reports.close()
