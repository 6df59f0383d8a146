"""One run of a script in a sandbox, from its container's start to the record of how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.record import ExecutionRecord, Status
from mcp_bridge.executions.scripts.limited_output import OutputLimitError, Outputs
from mcp_bridge.host.channel import ChannelLimits, HostChannel, TooManyRequestsError
from mcp_bridge.host.script_activity import ScriptActivity
from mcp_bridge.host.script_clock import ScriptClock
from mcp_bridge.sandbox.pipes import UNREADABLE
from mcp_bridge.wire import jsonrpc, messages, sandbox_exits
from mcp_bridge.wire.errors import WireError
from mcp_bridge.wire.framing import LineDecoder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from mcp_bridge.error_codes import Code
    from mcp_bridge.errors import ErrorRecord
    from mcp_bridge.executions.client import Progress
    from mcp_bridge.executions.scripts.live_output import LiveOutput
    from mcp_bridge.host.request_handlers import Requests
    from mcp_bridge.sandbox.engine import ExitStatus, SandboxProcess

logger = logging.getLogger(__name__)

WATCH_SECONDS = 0.02
"""After so long a run is watched: its limits are of more, and most scripts are over by then. All that a watcher waits
for is still there to be seen."""

SILENCE_SECONDS = 60.0
"""A sandbox says every five seconds that it lives; after so long without, it is taken for lost."""

CLOCK_STEP_SECONDS = 0.05
"""How late a time-out may be noticed when the script's clock stood still in between."""

EXIT_AFTER_CLOSE_SECONDS = 5.0
"""How long a container whose channel has closed may take to end by itself before it is killed."""

WIND_DOWN_SECONDS = 2.5
"""How long a container whose time is up may take to tell what was printed and to end, before it is killed. Process 1
gives a guest that is stuck one second."""

INTERRUPTIONS = 8
INTERRUPTION_SECONDS = 0.5
"""How often a cell is interrupted, and the time that it has for what it does then, before its session is given up."""

LATE_REPORT_SECONDS = 0.5
"""How long to look for what process 1 has said, where the end of that may never come."""

MAX_REPORT_BYTES = 1 << 20
"""Longest line of process 1's: a piece of output of a pipe's size takes a tenth of it."""

OOM_SECONDS = 3.0
"""How long a process that the kernel kills for memory may take to end. What process 1 has told of before isn't why its
sandbox has ended."""

MAX_LEFTOVER_BYTES = 4 << 20
"""Most that process 1 may report as output: two pipes and two reads of them, in base64, are a tenth of it."""

MAX_VALUE_BYTES = 8 << 20
"""Longest shown form of the last value that the guest may send."""

MAX_LINE = 10_000_000
MAX_PROGRESS_CHARS = 500
MAX_ERROR_CHARS = 50_000
"""Longest text of an error, and of its traceback, that a guest's account may have; the guest itself keeps to less."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Bounds on one run, in seconds and bytes.

    Attributes:
        timeout: The script's own time.
        wall: The whole, from the guest's start.
        start: Until the guest answers.
        output: What it may print.
        channel: What it may ask.
    """

    timeout: float
    wall: float
    start: float
    output: int
    channel: ChannelLimits


@dataclass(slots=True)
class _Ending:
    """Why the host ended a run, when it did."""

    status: Status
    code: Code
    message: str
    hint: str | None = None


class SandboxRun:
    """Runs one script in one sandbox.

    Args:
        process: The started container; it is ours until `run` returns, and then the caller's to close.
        execution: The id of the script's execution.
        first: The first bytes for the guest: itself, if it isn't there yet, and the frame that says what to run.
        limits: Bounds.
        requests: Answers what the script asks.
        progress: Told what the script reports.
        began: When the request came, by `time.monotonic`.
        live: Tells what the script prints while it runs.
        recorded: Waits until the execution's start is durable, which may raise BridgeError `not_recorded`; None if it
            is. Nothing that the sandbox sends is read before.
        is_cell: Whether it is a cell of a session, whose sandbox goes on: it is interrupted when its time is up.

    Attributes:
        has_finished: Whether the guest has sent the script's result, also one that came after its time was up.
        is_unrecorded: Whether its start could not be written.
    """

    def __init__(
        self,
        process: SandboxProcess,
        execution: str,
        first: bytes,
        limits: RunLimits,
        requests: Requests,
        progress: Progress | None,
        began: float,
        live: LiveOutput | None = None,
        recorded: Callable[[], Awaitable[None]] | None = None,
        *,
        is_cell: bool = False,
    ) -> None:
        self.has_finished = False
        self.is_unrecorded = False
        self._is_cell = is_cell
        self._process = process
        self._execution = execution
        self._first = first
        self._limits = limits
        self._progress = progress
        self._live = live
        self._recorded = recorded
        self._requests = requests
        # A session's sandbox has run other cells.
        self._clock = ScriptClock(time.monotonic, None if is_cell else 0.0)
        self._outputs = Outputs(limits.output)
        self._is_heard = anyio.Event()
        """The guest is listened to: its start is recorded."""
        self._ready = anyio.Event()
        self._exited: messages.InitExited | None = None
        self._reported = anyio.Event()
        """Nothing more comes from process 1."""
        self._leftovers: list[messages.OutputWrite] = []
        self._leftover_size = 0
        self._last_beat = time.monotonic()
        self._oom_kills: deque[tuple[float, int]] = deque(maxlen=2)
        """When process 1 has told how many processes the kernel had killed for memory, and how many."""
        self._earlier_oom_kills = 0
        """How many of them can't be why the sandbox has ended."""
        self._ending: _Ending | None = None
        self._is_closed = False
        """Whether the guest's end was closed without a result."""
        self._exit_status: ExitStatus | None = None
        self._never_ran: BridgeError | None = None
        self._silence: str | None = None
        """For how long nothing was heard, if that is why it is given up."""
        self._lost: str | None = None
        """How something else than the script has ended the sandbox."""
        self._scope = anyio.CancelScope()
        self._tasks: TaskGroup | None = None
        """What belongs to the run, while it is under way."""
        self._watchers = anyio.CancelScope()
        self._is_watched = False
        self._began = began
        self._ready_at: float | None = None
        self._channel = HostChannel(
            process.stdin,
            process.stdout,
            limits.channel,
            requests.answer,
            self._notified,
            self._waits,
            requests.cancelled_before_start,
            self._closed,
            requests.principal,
        )
        self._activity = ScriptActivity(self._channel, requests)

    async def run(self, unwatched: anyio.Event | None = None) -> ExecutionRecord:
        """Run to the end. When it returns, the script has ended or must be killed: close the process.

        Args:
            unwatched: Set once nobody else reads from the container; None if nobody does.

        Raises:
            BridgeError: The script never ran: `sandbox_start_failed`, or as `SandboxProcess.wait`. Its start isn't
                recorded, and what it did counts for nothing: `not_recorded`.
        """
        finish: messages.ExecutionFinish | None = None
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            later = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._watch)
            try:
                with self._scope:
                    self._channel.start(self._first)
                    # It may have the guest's modules in it, which an idle bridge has once already.
                    self._first = b""
                    if await self._is_recorded():
                        if unwatched is not None and not unwatched.is_set():
                            await unwatched.wait()
                        finish = await self._served()
                if self._is_watched:
                    self._watchers.cancel()
                self.has_finished = finish is not None
                if self._ending is not None and self._ending.status == "timeout" and not self.has_finished:
                    with anyio.move_on_after(WIND_DOWN_SECONDS):
                        await self._reported.wait()
            finally:
                later.cancel()
                self._tasks = None
            if self._is_watched:
                tasks.cancel_scope.cancel()
        self._take_leftovers()
        if self._never_ran is not None and self._ending is None:
            raise self._never_ran
        return self._record(finish)

    async def _is_recorded(self) -> bool:
        """Wait until the start is recorded, while the guest begins with the script. False if it can't be."""
        if self._recorded is None:
            self._is_heard.set()
            return True
        try:
            await self._recorded()
        except BridgeError as exc:
            self._never_ran = exc
            self.is_unrecorded = True
            return False
        # Nothing was to be heard until now.
        self._last_beat = time.monotonic()
        self._is_heard.set()
        return True

    def _watch(self) -> None:
        """Begin to hold the limits and to read process 1's reports. What is over at once has no need of a task each."""
        if not self._is_watched and self._tasks is not None:
            self._is_watched = True
            self._tasks.start_soon(self._read_reports)
            self._tasks.start_soon(self._hold_limits)

    async def _hold_limits(self) -> None:
        """All that holds the limits, until the run has ended."""
        with self._watchers:
            async with anyio.create_task_group() as watchers:
                for watcher in (
                    self._watch_start,
                    self._watch_clock,
                    self._watch_silence,
                    self._watch_engine,
                    self._watch_hold,
                    self._watch_divergence,
                    self._channel.beat,
                ):
                    watchers.start_soon(watcher)
                if self._live is not None:
                    watchers.start_soon(self._live.follow, self._outputs, self._requests.project)

    async def _served(self) -> messages.ExecutionFinish | None:
        """Answer the guest, within all limits, until it has sent its result, or is ended: None."""
        try:
            return await self._channel.serve()
        except WireError as exc:
            self._end("protocol_error", exc.code, f"The sandbox sent what is no message: {exc}.", exc.excerpt)
        except TooManyRequestsError as exc:
            hint = "Make fewer and smaller calls, or have the operator raise max_calls or max_call_size."
            self._end("call_limit", "too_many_calls", str(exc), hint)
        except OutputLimitError as exc:
            self._over_output(exc)
        return None

    @property
    def acknowledgement(self) -> bytes:
        """As `HostChannel.acknowledgement`."""
        return self._channel.acknowledgement

    @property
    def has_begun(self) -> bool:
        """Whether the guest has said that it has the script. Until then nothing that the script may do was heard."""
        return self._ready.is_set()

    # --- what comes from the guest ---

    def _notified(self, message: Any) -> None:
        match message:
            case messages.ExecutionBegun():
                if not self._ready.is_set():
                    self._ready_at = self._last_beat = time.monotonic()
                    self._clock.start()
                    self._ready.set()
                    self._requests.begun()
            case messages.OutputWrite():
                self._outputs.write(message)
                if self._live is not None:
                    self._live.printed()
            case messages.OutputDisplay():
                self._outputs.display(message)
            case messages.CallTaken():
                self._requests.taken(message.call)
            case messages.ActivityReport():
                self._activity.told(message)
            case messages.ProgressReport():
                if self._progress:
                    text = message.message[:MAX_PROGRESS_CHARS] if message.message else None
                    self._progress(message.done, message.total, text)

    def _waits(self, change: int) -> None:
        if change > 0:
            self._clock.pause()
        else:
            self._clock.resume()

    async def _read_reports(self) -> None:
        """Process 1's reports. What else comes there is the engine's, which keeps the tail of it."""
        reader = ReportReader()
        try:
            async for chunk in self._process.stderr:
                for report, size in reader.feed(chunk):
                    self._take(report, size)
        except UNREADABLE as exc:
            logger.debug("process 1's reports ended: %s", exc)
        self._reported.set()

    def _take(self, report: Any, size: int) -> None:
        match report:
            case messages.InitBeat():
                self._last_beat = time.monotonic()
                self._oom_kills.append((self._last_beat, report.oom_kills))
                self._clock.computed(report.processor)
            case messages.InitExited():
                self._exited = report
            case messages.OutputWrite():
                # It follows what is still on its way in the channel.
                self._leftover_size += size
                if self._leftover_size <= MAX_LEFTOVER_BYTES:
                    self._leftovers.append(report)

    def _take_leftovers(self) -> None:
        """What the guest had printed and didn't live to send."""
        if self._ending is None or self._ending.status == "timeout":
            try:
                for message in self._leftovers:
                    self._outputs.write(message)
            except WireError as exc:
                logger.debug("invalid output message from process 1: %s", exc)
            except OutputLimitError as exc:
                if self._ending is None:
                    self._over_output(exc)

    # --- what ends it ---

    def _end(self, status: Status, code: Code, message: str, hint: str | None = None) -> None:
        if self._ending is None:
            self._ending = _Ending(status, code, message, hint)
        self._scope.cancel()

    def _over_output(self, exc: OutputLimitError) -> None:
        self._end(
            "output_limit",
            "output_limit",
            f"{exc} and was ended.",
            "Print less, or keep a file with artifact(path).",
        )

    async def _time_is_up(self, code: Code, message: str, hint: str | None = None) -> None:
        """End the guest by the end of its input, so that process 1 tells what was printed; then by force."""
        if self._ending is not None:
            return
        self._ending = _Ending("timeout", code, message, hint)
        if self._is_cell:
            await self._interrupt(BridgeError(code, message))
        self._channel.refuse()
        await self._process.stdin.aclose()
        await anyio.sleep(WIND_DOWN_SECONDS)
        self._scope.cancel()

    async def _interrupt(self, error: BridgeError) -> None:
        """Interrupt a cell. If it ends by that, this is cancelled; else its sandbox has to be ended."""
        for _ in range(INTERRUPTIONS):
            self._channel.interrupt(self._execution, error)
            await anyio.sleep(INTERRUPTION_SECONDS)

    async def _watch_start(self) -> None:
        await self._is_heard.wait()
        with anyio.move_on_after(self._limits.start):
            await self._ready.wait()
            return
        if not self._is_closed:
            self._end(
                "timeout", "sandbox_start_timeout", f"The sandbox did not answer within {self._limits.start:g} s."
            )

    async def _watch_clock(self) -> None:
        await self._ready.wait()
        began = time.monotonic()
        while True:
            # While effects come to their end without it, no script runs.
            script = CLOCK_STEP_SECONDS if self._is_closed else self._limits.timeout - self._clock.seconds
            wall = self._limits.wall - (time.monotonic() - began)
            if script <= 0:
                await self._time_is_up(
                    "script_timeout",
                    f"The script ran for {self._limits.timeout:g} s, its limit (waiting for tools not counted).",
                    "Ask for more with timeout=, or do less.",
                )
            elif wall <= 0:
                await self._time_is_up(
                    "wall_timeout", f"The run took {self._limits.wall:g} s, the bound on a whole run."
                )
            await anyio.sleep(max(CLOCK_STEP_SECONDS, min(script, wall)))

    async def _watch_silence(self) -> None:
        await self._ready.wait()
        while True:
            quiet = time.monotonic() - max(self._last_beat, self._channel.heard_at)
            if self._is_closed:
                return
            if quiet > SILENCE_SECONDS:
                self._silence = f"Nothing was heard from the sandbox for {quiet:.0f} s."
                self._channel.hang_up()
                return
            await anyio.sleep(SILENCE_SECONDS - quiet + 1)

    async def _watch_engine(self) -> None:
        """End the channel when the engine has lost sight of the container: its client may hold it open."""
        with contextlib.suppress(BridgeError):
            if (await self._process.wait()).code is None:
                self._channel.hang_up()

    async def _watch_hold(self) -> None:
        """End a script that waits for what nobody can give it now, once it has come to rest."""
        await self._activity.wait_until_idle()
        self._end("suspended", "still_waiting", "The script waits.")

    async def _watch_divergence(self) -> None:
        """End a script that goes another way than it had."""
        error = await self._requests.divergence()
        self._end("error", error.code, error.message, error.hint)

    async def _closed(self) -> bool:
        """The channel closed without a result: find out why, and whether its effects are to come to their end."""
        self._is_closed = True
        self._watch()
        horizon = time.monotonic() - OOM_SECONDS
        self._earlier_oom_kills = max([0, *(kills for told_at, kills in self._oom_kills if told_at < horizon)])
        self._clock.pause()
        if self._silence is not None:
            return True
        try:
            self._exit_status = await self._engine_exit()
            self._require_start(self._exit_status)
        except BridgeError as exc:
            self._never_ran = exc
            return False
        self._lost = self._external_cause(self._exit_status)
        return self._lost is not None

    async def _engine_exit(self) -> ExitStatus | None:
        """What the engine says of its end, when process 1 has said all; None if it goes on.

        Raises:
            BridgeError: The engine never ran the container.
        """
        status = None
        with anyio.move_on_after(EXIT_AFTER_CLOSE_SECONDS):
            status = await self._process.wait()
            with anyio.move_on_after(EXIT_AFTER_CLOSE_SECONDS if status.code is not None else LATE_REPORT_SECONDS):
                await self._reported.wait()
        return status

    def _external_cause(self, ended: ExitStatus | None) -> str | None:
        """What, other than the script, has ended the sandbox; None if the script did, or may have."""
        said = self._exited
        if said is not None:
            if said.signal == signal.SIGKILL and said.oom_kills > self._earlier_oom_kills and said.limit_hits == 0:
                return "the machine was out of memory, and its kernel killed the interpreter"
            return _SAID[sandbox_exits.HOST_SILENT] if said.code == sandbox_exits.HOST_SILENT else None
        # Process 1 always says how the guest has ended, and nothing in the sandbox can end process 1.
        if ended is None:
            # Process 1 keeps its standard error open for as long as it lives.
            return "its first process has ended, and how isn't known" if self._reported.is_set() else None
        if self._was_out_of_memory(ended):
            return None
        if ended.code is None:
            return f"it {ended.lost or _ENGINE_CLIENT_LOST}"
        if ended.code > 128:  # noqa: PLR2004
            return f"its first process was ended by {_signal_name(ended.code - 128)}, and by whom isn't known"
        if ended.code in _LOST_BY_ENGINE:
            return f"the engine has lost it, and its client has left with status {ended.code}"
        return None

    def _was_out_of_memory(self, ended: ExitStatus) -> bool:
        """Whether the kernel has killed process 1 because the sandbox had used up its memory."""
        return ended.oom_killed and (ended.oom_kills is None or ended.oom_kills > self._earlier_oom_kills)

    def _require_start(self, ended: ExitStatus | None) -> None:
        """Tell an OCI runtime that broke down inside the container from a script that left without a word."""
        if self._ready.is_set() or self._exited or ended is None or ended.oom_killed or ended.code in _SPOKEN_BY_STATUS:
            return
        how = f"ended with status {ended.code}" if ended.code is not None else ended.lost or _ENGINE_CLIENT_LOST
        raise BridgeError(
            "sandbox_start_failed",
            f"The sandbox {how} before the script began.",
            hint="Try again; if it stays so, run `mcp-bridge doctor`.",
        )

    # --- the record ---

    def _record(self, finish: messages.ExecutionFinish | None) -> ExecutionRecord:
        now = time.monotonic()
        record = ExecutionRecord(
            execution=self._execution,
            stdout=self._outputs.stream("stdout"),
            stderr=self._outputs.stream("stderr"),
            displays=self._outputs.displays,
            duration_ms=(now - self._began) * 1000,
            script_ms=self._clock.seconds * 1000,
            start_ms=((self._ready_at or now) - self._began) * 1000,
        )
        if finish is not None and self._ending is None:
            _finished(record, finish)
        elif self._ending is not None:
            ending = self._ending
            record.status = ending.status
            record.exit_code = 124 if ending.status == "timeout" else 137
            record.error = BridgeError(ending.code, ending.message, hint=ending.hint).record()
        elif self._silence is not None:
            record.status, record.exit_code = "channel_closed", 137
            record.error = BridgeError("sandbox_silent", self._silence).record()
        elif self._lost is not None:
            record.status, record.exit_code = "sandbox_lost", 137
            message = f"The sandbox has ended, and not by the script's doing: {self._lost}."
            record.error = BridgeError("sandbox_lost", message).record()
        else:
            self._died(record, self._exit_status)
        is_lost = finish is None and record.status not in _GOES_ON
        if is_lost and self._exited is not None and self._exited.left_files > 0:
            record.notices.append(_files_lost(self._exited.left_files, is_cell=self._is_cell))
        return record

    def _died(self, record: ExecutionRecord, exit_status: ExitStatus | None) -> None:
        """The container ended by itself, without a result."""
        said = self._exited
        code = said.code if said else exit_status.code if exit_status else None
        number = said.signal if said else code - 128 if code is not None and code > 128 else 0  # noqa: PLR2004
        # Process 1 counts the kernel's kills; the engine can only infer them from how process 1 itself ended.
        if said is not None and said.oom_kills >= 0:
            killed_for_memory = said.oom_kills > self._earlier_oom_kills
        else:
            killed_for_memory = exit_status is not None and self._was_out_of_memory(exit_status)
        # Only process 1's word may be forged, and only by the script that it is about.
        record.exit_code = (code or 137) & 0xFF or 137
        if killed_for_memory and (number == signal.SIGKILL or code is None):
            record.status = "out_of_memory"
            record.error = _out_of_memory("The kernel killed the script: it used more memory than the sandbox has.")
            return
        record.status = "killed"
        if number:
            error = BridgeError("interpreter_killed", f"The interpreter was ended by {_signal_name(number)}.")
        elif code in _SAID:
            record.status, error = "channel_closed", BridgeError("channel_closed", _SAID[code])
        elif code == sandbox_exits.OLD_PYTHON:
            error = BridgeError(
                "image_python_too_old", "The image's Python is older than 3.11.", hint="Configure another image."
            )
        elif code is None:
            record.status = "channel_closed"
            error = BridgeError("channel_closed", "The script closed its channel to the bridge and continued.")
        else:
            error = BridgeError(
                "interpreter_exited",
                f"The interpreter left with status {code} before the script's end"
                " (os._exit, or process.reallyExit in JavaScript?).",
            )
            record.exit_code = code & 0xFF or 1
        record.error = error.record()


_SAID = {
    sandbox_exits.CHANNEL_CLOSED: (
        "The script closed its channel to the bridge (did it close descriptors it didn't open?)."
    ),
    sandbox_exits.HOST_GONE: "The channel to the sandbox was closed.",
    sandbox_exits.HOST_SILENT: "The sandbox heard nothing from the bridge for too long and ended itself.",
    sandbox_exits.BAD_FRAME: "The sandbox could not read what the bridge sent.",
    sandbox_exits.NO_BUNDLE: "The sandbox's standard input ended before the runtime had arrived.",
}
_GOES_ON = frozenset({"suspended", "sandbox_lost"})
"""How a run ends that is run again, with its files."""


def _files_lost(count: int, *, is_cell: bool) -> str:
    of_earlier = ", except what earlier cells had left there, which is saved" if is_cell else ""
    return (
        f"{count} file{'' if count == 1 else 's'} in /workspace/out were lost with the sandbox{of_earlier}: "
        f"they are saved when a {'cell' if is_cell else 'script'} ends by itself, and artifact(path) saves one "
        "immediately"
    )


_SPOKEN_BY_STATUS = {*_SAID, sandbox_exits.OLD_PYTHON}

_ENGINE_CLIENT_LOST = "was lost by its engine (its client was killed, or its monitor)"

_LOST_BY_ENGINE = frozenset({125, 126, 127})
"""How an engine's client ends that has failed itself."""


class ReportReader:
    """Decodes process 1's reports. What is none, of an engine or of a script that writes there, is left out."""

    def __init__(self) -> None:
        self._decoder = LineDecoder(MAX_REPORT_BYTES)

    def feed(self, chunk: bytes) -> list[tuple[Any, int]]:
        """The reports that a chunk ends, each with how many bytes its line has."""
        try:
            lines = self._decoder.feed(chunk)
        except WireError:
            # Nothing of ours is so long. Read on: a full pipe would hold up process 1.
            self._decoder = LineDecoder(MAX_REPORT_BYTES)
            return []
        return [(report, len(line)) for line in lines if (report := _report(line)) is not None]


def _report(line: bytes) -> Any:
    if not line.startswith(b"{"):
        return None
    try:
        message = jsonrpc.decode(line)
        if not isinstance(message, jsonrpc.Notification):
            return None
        return messages.decode_params(messages.method_params(message.method), message.params)
    except WireError:
        return None


def _signal_name(number: int) -> str:
    if number in set(signal.Signals):
        return f"{signal.Signals(number).name} (signal {number})"
    return f"signal {number}"


def _finished(record: ExecutionRecord, finish: messages.ExecutionFinish) -> None:
    record.exit_code = finish.exit_code & 0xFF
    record.value = finish.value and finish.value[:MAX_VALUE_BYTES]
    closed = finish.closed or ()
    record.notices += [_output_closed(fd, name) for fd, name in ((1, "output"), (2, "error")) if fd in closed]
    if finish.error is not None:
        record.status = "error"
        record.exit_code = record.exit_code or 1
        record.error = _script_error(finish.error)
        if finish.error.get("out_of_memory") is True:
            record.status = "out_of_memory"
            record.error["code"] = "out_of_memory"
            record.error["hint"] = _MEMORY_HINT
    elif record.exit_code:
        record.status = "exit"
        record.error = BridgeError("exit", f"The script left with exit status {record.exit_code}.").record()


def _output_closed(fd: int, name: str) -> str:
    return (
        f"descriptor {fd}, standard {name}, is closed: what cells of this session print there isn't received; "
        "begin another: await runtime.end_session()"
    )


def _script_error(claimed: dict[str, Any]) -> ErrorRecord:
    """The guest's account of an exception, taken field by field."""
    line = claimed.get("line")
    name = str(claimed.get("type", "Exception"))[:200]
    return {
        "code": "syntax_error" if name in {"SyntaxError", "IndentationError", "TabError"} else "script_error",
        "type": name,
        "message": str(claimed.get("message", ""))[:MAX_ERROR_CHARS],
        "line": line if type(line) is int and 0 < line <= MAX_LINE else None,
        "traceback": str(claimed.get("traceback", ""))[:MAX_ERROR_CHARS],
    }


def _out_of_memory(message: str) -> ErrorRecord:
    return BridgeError("out_of_memory", message, hint=_MEMORY_HINT).record()


_MEMORY_HINT = "Work in smaller parts, or raise memory in the configuration."
