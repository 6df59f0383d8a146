"""What code finds in the interpreter besides Python's own: the `mcp` package, names that need no import, and hooks."""

import _thread
import os
import sys

from mcp_bridge.guest import call_ids, not_awaited, output, proxies, runner, runtime
from mcp_bridge.guest.channel import Channel
from mcp_bridge.guest.display import Display
from mcp_bridge.guest.mcp_package import Modules
from mcp_bridge.guest.output import Capture, closed_outputs
from mcp_bridge.guest.proxies import Calls
from mcp_bridge.wire.annotations import Any, Callable
from mcp_bridge.wire.errors import LocalMessageError
from mcp_bridge.wire.messages import ExecutionFinish, ExecutionStart

SITE_PACKAGES = "/opt/site-packages"

SAFE_VALUE_CHARS = 1_000_000
"""A value of this length fits into a frame, whatever its characters."""


class ExecutionEnvironment:
    """The environment of a script, or of a session's cells.

    Args:
        channel: The channel.
        capture: The captured output.
        start: What runs first; a session changes it with each cell.
        prepared: Callbacks for modules that are first imported, besides those of every script.

    Attributes:
        start: What runs.
        calls: Makes the calls.
        shower: Shows objects.
        is_keeping: Whether files are kept just now, at the end.
    """

    def __init__(
        self, channel: Channel, capture: Capture, start: ExecutionStart, prepared: dict[str, Callable[[], None]]
    ) -> None:
        self._channel = channel
        channel.on_host_gone = runner.report_threads
        self._capture = capture
        self.start = start
        self.is_keeping = False
        self._home = os.getpid()
        self._ending = _thread.RLock()
        """Held by the thread that ends a dry run, and never released."""
        self._has_ended = False
        self.calls = Calls(channel)
        self.shower = Display(channel, capture)
        self._prepared = prepared | {
            "ctypes": output.unbuffer_c,
            "threading": call_ids.follow_threads,
            "asyncio": call_ids.follow_tasks,
            "concurrent.futures.thread": call_ids.follow_pools,
            "inspect": proxies.show_asynchronous,
            "warnings": self.calls.unawaited.follow_coroutines,
            "multiprocessing": fork_by_default,
            "matplotlib.figure": self.shower.follow_figures,
            "matplotlib.pyplot": self.shower.follow_pyplot,
        }
        for name in [name for name in self._prepared if name in sys.modules]:
            self._prepared.pop(name)()
        self._modules = self._make_modules()
        if start.has_inputs:
            # Imported late: most operators hand no files in.
            from mcp_bridge.guest.files import inputs

            inputs.fetch_on_open(channel)

    def change_servers(self) -> None:
        """Make the modules anew, for a cell that has other servers than the one before."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self._modules]
        for name in [name for name in sys.modules if name.startswith("mcp.") or name == "mcp"]:
            del sys.modules[name]
        self._modules = self._make_modules()

    def _make_modules(self) -> Modules:
        return Modules(self._channel, self.calls, self.start.servers, self._prepared)

    def names(self) -> dict[str, Any]:
        """The names that need no import."""
        names: dict[str, Any] = {
            "display": runtime.optionally_awaitable(self.shower.display),
            "artifact": self.shower.artifact,
            "progress": runtime.optionally_awaitable(self.shower.progress),
        }
        for name, value in names.items():
            setattr(sys.modules["mcp"], name, value)
        return self._modules.names(self.start.servers, names)

    def hooks(self) -> runner.Hooks:
        """The callbacks around the code."""
        self.shower.max_value = self.start.max_value_bytes
        unawaited = self.calls.unawaited
        hooks = runner.Hooks(
            self._show,
            unawaited.check_awaited,
            unawaited.report_unfinished,
            not_awaited.report_failed_tasks,
            self._advise,
            _repair,
        )
        if not self.start.is_dry:
            return hooks
        # Imported late, with a part of the library: few runs are dry.
        from mcp_bridge.guest.values import dry_run_source, planned_values

        planned_values.prepare(self._end_dry_run)
        return hooks._replace(rewrite=dry_run_source.rewrite)

    def _end_dry_run(self, error: BaseException) -> None:
        """End a dry run at once, on whichever thread: what would catch the error, or be done after it, isn't run.

        The script would go another way with it than the run does, whose call gives a result. Returns in a process that
        the script has forked, which has no channel.

        Args:
            error: Why it ends. It is raised by the caller.
        """
        if os.getpid() != self._home:
            return
        # Another thread that needs such a result stops here.
        self._ending.acquire()
        if self._has_ended:
            # It is needed by what is done at the end.
            return
        self._has_ended = True
        try:
            self.finish(runner.Outcome(1, error=runner.describe(error)))
        finally:
            os._exit(0)

    def _show(self, value: Any) -> str | None:
        return self.shower.show(None if isinstance(value, runtime.AwaitableNone) else value)

    def _advise(self, exc: BaseException) -> None:
        if not self.start.advises:
            return
        # Imported late: most scripts don't fail, and no start should wait for it.
        from mcp_bridge.guest.advice import advice, script_environment

        start = self.start
        kept = (
            [name for name in getattr(sys.modules.get("__main__"), "__dict__", {}) if isinstance(name, str)]
            if start.cell
            else None
        )
        environment = script_environment.ScriptEnvironment(
            start.code.removeprefix(runner.BYTE_ORDER_MARK),
            start.servers,
            self._modules.known_tools,
            SITE_PACKAGES,
            kept,
            runs_both=start.runs_both,
            has_inputs=start.has_inputs,
        )
        advice.add_to(exc, environment)

    def finish(self, outcome: runner.Outcome, interrupted_at: Callable[[], float | None] = lambda: None) -> None:
        """Send an outcome; return when the host has acknowledged it.

        Args:
            outcome: The outcome.
            interrupted_at: Gives when its time was up, by `monotonic`; None while it isn't.
        """
        error = outcome.error
        if error and error["type"] != "NotAwaitedError" and (note := self.calls.unawaited.unawaited_note()):
            error["message"] += f" ({note})"
            error["traceback"] += f"\n({note})"
        # Whatever is wrong with these, it isn't the script's end. A cell whose time is up has little left for them.
        if interrupted_at() is None:
            runner.guarded(self.shower.show_figures)
        self.is_keeping = True
        runner.guarded(lambda: self.shower.keep_left_files(interrupted_at))
        self.is_keeping = False
        if self.start.cell:
            runner.guarded(self._capture.report_replaced)
        self._capture.finish()
        closed = closed_outputs() if self.start.cell else None
        try:
            self._channel.request(ExecutionFinish(outcome.exit_code, outcome.value, error, closed))
        except LocalMessageError:
            # Control characters take six bytes each: a value within the limit may exceed the frame's.
            shown = runner.cut(outcome.value, SAFE_VALUE_CHARS) if outcome.value else None
            self._channel.request(ExecutionFinish(outcome.exit_code, shown, error, closed))


def fork_by_default() -> None:
    """Let processes of `multiprocessing` begin as forks, unless a script says otherwise.

    From Python 3.14 on they begin as a new interpreter, which imports the script's functions from its file. A script
    here has none: its pool would begin processes that fail, for ever.
    """
    import multiprocessing.context

    multiprocessing.context._default_context._default_context = multiprocessing.get_context("fork")  # type: ignore[attr-defined] # noqa: SLF001


def _repair(code: str, exc: SyntaxError) -> Any:
    from mcp_bridge.guest.advice.code_repair import repaired

    return repaired(code, exc)
