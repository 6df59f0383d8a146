"""The guest of a session: runs one cell after the other in one namespace.

A cell's tasks are cancelled at its end, and its threads are waited for, as at a script's end; but the event loop, the
threads of pools, daemon threads and all objects stay. What is left of a cell can make no call once the cell has ended,
so the calls of the next one are its own.
"""

import _thread
import builtins
import os
import signal
import sys
import threading
from contextvars import copy_context
from time import monotonic, sleep
from types import FrameType, ModuleType

from mcp_bridge.guest import call_ids, runner
from mcp_bridge.guest.channel import Channel
from mcp_bridge.guest.execution_environment import ExecutionEnvironment
from mcp_bridge.guest.output import Capture
from mcp_bridge.guest.session import randomness
from mcp_bridge.wire.annotations import Any
from mcp_bridge.wire.messages import ExecutionBegun, ExecutionStart

DELIVERIES = 40
DELIVERY_SECONDS = 0.01
"""How often an interruption is tried, until the host sends the next one."""


class Session:
    """Runs cells.

    Args:
        channel: The channel.
        capture: The captured output.
        first: The first cell.
    """

    def __init__(self, channel: Channel, capture: Capture, first: ExecutionStart) -> None:
        self._channel = channel
        self._capture = capture
        self._running: str | None = None
        """The cell's execution, while its own code runs."""
        self._interrupted_at: float | None = None
        """When the cell was first interrupted."""
        self._is_delivered = True
        """Whether the last interruption was raised."""
        self._main = threading.get_ident()
        self._sources: dict[str, runner.Source] = {}
        """The texts of the cells, by their file names."""
        self._loop: Any = None
        """The `asyncio.Runner` of all cells, once there is one."""
        call_ids.begin()
        call_ids.follow_raw_threads()
        prepared = {"linecache": self._register_sources} | randomness.begin(bytes.fromhex(first.seed or ""))
        self._environment = ExecutionEnvironment(channel, capture, first, prepared)
        self._module = ModuleType("__main__")
        self._module.__dict__["__builtins__"] = builtins
        self._module.__dict__.update(self._environment.names())
        sys.modules["__main__"] = self._module
        signal.signal(signal.SIGINT, self._on_interrupt)

    def run(self, start: ExecutionStart) -> None:
        """Run a cell and send its outcome; return when the host has acknowledged it."""
        self._capture.begin_cell()
        call_ids.begin_cell(start.cell)
        self._channel.replays = start.replays
        self._channel.is_between = False
        self._interrupted_at = None
        self._channel.notify(ExecutionBegun(start.execution))
        environment = self._environment
        had, environment.start = environment.start.servers, start
        if start.servers != had:
            environment.change_servers()
            self._module.__dict__.update(environment.names())
        environment.calls.begin_cell(start.listings or {})
        environment.shower.begin()
        source = runner.Source(start.code, f"{runner.CELL_PREFIX}{start.cell}>")
        self._sources[source.filename] = source
        self._module.__loader__ = source  # type: ignore[assignment]
        if "linecache" in sys.modules:
            source.register_in_linecache()
        environment.finish(self._outcome(source, environment.hooks(), start.execution), lambda: self._interrupted_at)
        self._channel.end_cell()

    def _outcome(self, source: runner.Source, hooks: runner.Hooks, execution: str) -> runner.Outcome:
        """Run a cell's code. An interruption ends it wherever it is."""
        try:
            self._running = execution
            try:
                outcome = self._run(source, hooks)
            finally:
                self._running = None
        except BaseException as exc:  # noqa: BLE001  (an interruption in the moment in which an error was described)
            outcome = runner.Outcome(1, error=runner.describe(exc))
        return outcome

    def _run(self, source: runner.Source, hooks: runner.Hooks) -> runner.Outcome:
        names, home = self._module.__dict__, os.getpid()
        outcome = runner.guarded(
            lambda: self._execute(
                runner.compile_script(source.code, hooks.repair, source.filename, hooks.rewrite), hooks
            ),
            hooks.advise,
        )
        if os.getpid() != home:
            runner.end_of_fork(outcome)
        ended = runner.guarded(self._end_tasks_and_threads)
        runner.guarded(hooks.ended)
        if outcome == runner.SUCCESS:
            outcome = ended if ended != runner.SUCCESS else runner.guarded(hooks.before_end)
        value = names.pop(runner.VALUE_NAME, None)
        if outcome == runner.SUCCESS:
            outcome = runner.shown(hooks, value)
        return outcome

    def _execute(self, compiled: Any, hooks: runner.Hooks) -> None:
        if not compiled.co_flags & runner.CO_COROUTINE:
            exec(compiled, self._module.__dict__)  # noqa: S102
            return
        import asyncio

        if self._loop is None:
            self._loop = asyncio.Runner()
        work = eval(compiled, self._module.__dict__)  # noqa: S307
        self._loop.run(work, context=copy_context())
        hooks.left(asyncio.all_tasks(self._loop.get_loop()))

    def _end_tasks_and_threads(self) -> None:
        """Cancel the tasks of the session's event loop, and wait for threads and for work in pools."""
        if self._loop is not None:
            from asyncio import runners

            runners._cancel_all_tasks(self._loop.get_loop())  # type: ignore[attr-defined]  # noqa: SLF001
        call_ids.wait_for_pools()
        runner.Source.has_run = True
        try:
            for thread in threading.enumerate():
                if thread.daemon or thread.ident == self._main or call_ids.is_of_pool(thread):
                    continue
                # Those of a cell that was interrupted may never end.
                if not call_ids.is_of_earlier_cell(thread):
                    thread.join()
        except KeyboardInterrupt:
            runner.report_threads()
            raise
        finally:
            runner.Source.has_run = False

    def _register_sources(self) -> None:
        for source in self._sources.values():
            source.register_in_linecache()

    def interrupt(self, execution: str) -> None:
        """Interrupt a cell, if it runs. Called by the thread that reads, which may be the main one."""
        if self._interrupted_at is None and self._environment.start.execution == execution:
            self._interrupted_at = monotonic()
            if self._environment.is_keeping:
                # The host doesn't answer what it was asked before: the next files may still be kept.
                self._channel.refuse_waiting("the cell's time is up", "script_timeout")
        if self._running == execution:
            # Not by `threading`, by which the script's threads are counted.
            _thread.start_new_thread(self._deliver, (execution,))

    def _deliver(self, execution: str) -> None:
        """Send the main thread the signal until it is where it can be interrupted."""
        self._is_delivered = False
        for _ in range(DELIVERIES):
            if self._is_delivered or self._running != execution:
                return
            # To the main thread itself: it may wait in a system call.
            signal.pthread_kill(self._main, signal.SIGINT)
            sleep(DELIVERY_SECONDS)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._running is not None and not self._is_delivered and not _is_in_channel(frame):
            self._is_delivered = True
            raise KeyboardInterrupt("the cell's time is up")


def _is_in_channel(frame: FrameType | None) -> bool:
    """Whether the main thread writes or reads a frame: that isn't left half done."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename in OURS and code.co_name not in WAITING:
            return True
        frame = frame.f_back
    return False


OURS = ("<bridge>/mcp_bridge.guest.channel", "<bridge>/mcp_bridge.guest.output")
WAITING = ("request", "request_async", "wait_for_answer")
"""The functions of these modules that wait for the host, and can be interrupted."""
