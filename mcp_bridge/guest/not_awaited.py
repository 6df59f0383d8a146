"""Calls that a script wrote without `await`: they never ran, which is an error and not a silent success.

And tasks that nobody has awaited: one that has not ended, and one that has failed, are named on standard error.
"""

import _thread
import sys
import types

from mcp_bridge.guest import call_ids, runner
from mcp_bridge.guest.host_requests import MCPError
from mcp_bridge.wire.annotations import Any, Callable, Coroutine, Generator


class NotAwaitedError(MCPError):
    """A call was created and never awaited, so it was not made. `line` is the line of the call, or None."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message, code="not_awaited")
        self.line = line


NotAwaitedError.__module__ = "mcp"


MAX_FAILED_TASKS = 5
"""Failed tasks that are reported each; the number of further ones is."""


class UnawaitedCalls:
    """Tracks which calls were never awaited."""

    def __init__(self) -> None:
        self._unawaited: dict[int, tuple[str, int | None]] = {}
        self._forgotten: list[tuple[str, int | None]] = []
        self._serial = 0

    def begin(self) -> None:
        """Begin a session's cell: what an earlier one has forgotten isn't its fault."""
        self._unawaited.clear()
        self._forgotten.clear()

    def track(self, work: Coroutine[Any, Any, Any], shown: str, depth: int) -> "PendingCall":
        """A call that starts when it is awaited.

        Args:
            work: Makes the call.
            shown: How the script wrote it, up to the parenthesis.
            depth: The distance to the caller's frame, for its line number.
        """
        self._serial += 1
        serial = self._serial
        frame = sys._getframe(depth)  # noqa: SLF001
        # The caller may be a library, such as a thread pool.
        line = frame.f_lineno if frame.f_code.co_filename == runner.Source.running else None
        self._unawaited[serial] = (shown if _may_await() else f"{IN_THREAD}{shown}", line)
        return PendingCall(work, lambda: self._unawaited.pop(serial, None), shown)

    def check_awaited(self) -> None:
        """Raise an error if a call was never awaited.

        Raises:
            NotAwaitedError: Names the call and its line.
        """
        for _, line in self._unawaited.values():
            raise NotAwaitedError(self.unawaited_note() or "", line)
        for shown, place in self._forgotten:
            raise NotAwaitedError(_not_awaited(shown, place), place)
        # A coroutine in a variable isn't garbage-collected. A script may have emptied the table of modules.
        for value in list(getattr(sys.modules.get("__main__"), "__dict__", {}).values()):
            if type(value) is types.CoroutineType and _is_unstarted(value):
                value.close()
                raise NotAwaitedError(_not_awaited(value.__qualname__, None))

    def follow_coroutines(self) -> None:
        """Make a coroutine that was never awaited an error and not a warning. Called once `warnings` is imported."""
        import warnings

        original = warnings._warn_unawaited_coroutine  # type: ignore[attr-defined]  # noqa: SLF001

        def warn(coroutine: Any) -> None:
            frame = sys._getframe(1)  # noqa: SLF001
            if runner.is_script(getattr(getattr(coroutine, "cr_code", None), "co_filename", "")):
                line = frame.f_lineno if frame.f_code.co_filename == runner.Source.running else None
                self._forgotten.append((coroutine.__qualname__, line))
            else:
                original(coroutine)

        warnings._warn_unawaited_coroutine = warn  # type: ignore[attr-defined]  # noqa: SLF001

    def report_unfinished(self, tasks: Any) -> None:
        """Report tasks that are about to be cancelled because the script has ended."""
        for task in sorted(tasks, key=_in_order):
            print(  # noqa: T201
                f"the task of {_shown(task)}(...) had not ended when the script did, and was cancelled; "
                "keep the task and write: await task",
                file=sys.stderr,
            )

    def unawaited_note(self) -> str | None:
        """One sentence about the first call that was never awaited, or None."""
        for shown, line in self._unawaited.values():
            return _not_awaited(shown, line)
        return None


def report_failed_tasks() -> None:
    """Report each failed task whose exception nobody has retrieved, once, as asyncio does when one is collected.

    A task in a global is never collected: the interpreter ends before.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return
    # Whichever loop they were of, and however they were made.
    failed = [one for one in _tasks(asyncio.tasks) if one._log_traceback]  # noqa: SLF001
    failed.sort(key=_in_order)
    for count, task in enumerate(failed):
        # Retrieves it: it is reported no second time.
        failure = task.exception()
        handler = task.get_loop().get_exception_handler()
        message = "Task exception was never retrieved"
        if handler is not None:
            task.get_loop().call_exception_handler({"message": message, "exception": failure, "task": task})
        # What ends the interpreter has ended the script, too.
        elif isinstance(failure, Exception) and count < MAX_FAILED_TASKS:
            print(  # noqa: T201
                f"{message}: the task of {_shown(task)}(...)\n{runner.describe(failure)['traceback']}", file=sys.stderr
            )
    if len(failed) > MAX_FAILED_TASKS:
        print(f"{len(failed) - MAX_FAILED_TASKS} more tasks have failed", file=sys.stderr)  # noqa: T201


def _tasks(library: Any) -> list[Any]:
    """All tasks that there are, also those that have ended, which `asyncio.all_tasks` leaves out."""
    # Their weak set has another name in 3.11.
    known = getattr(library, "_scheduled_tasks", getattr(library, "_all_tasks", None))
    if sys.version_info < (3, 14) and known is not None:
        return list(known)
    import gc

    return [one for one in gc.get_objects() if type(one) in {library.Task, library._PyTask}]  # noqa: SLF001


def _in_order(task: Any) -> tuple[Any, ...]:
    # By names alone it would depend on timing: a replay has the same standard error.
    return call_ids.position(task), len(task.get_name()), task.get_name(), _shown(task)


def _shown(task: Any) -> str:
    """How the script wrote a task's coroutine, up to the parenthesis."""
    coroutine = task.get_coro()
    return coroutine.shown if isinstance(coroutine, PendingCall) else getattr(coroutine, "__qualname__", "?")


def _is_unstarted(coroutine: Any) -> bool:
    return coroutine.cr_frame is not None and not coroutine.cr_suspended and not coroutine.cr_running


IN_THREAD = "in a thread, "

_MAIN_THREAD = _thread.get_ident()
"""The thread that imports this, and runs the script; a fork keeps its number."""


def _may_await() -> bool:
    """Whether a call can be awaited here; False in a thread without an event loop."""
    if _thread.get_ident() == _MAIN_THREAD:
        return True
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None  # noqa: SLF001


def _not_awaited(shown: str, line: int | None) -> str:
    where = "" if line is None else f"line {line}: "
    told = f"{where}{shown}(...) was never awaited, so it never ran; write: "
    if shown.startswith(IN_THREAD):
        name = shown.removeprefix(IN_THREAD)
        module = name.partition(".")[0]
        return told + (f"{name}_sync(...)" if module == "runtime" else f"from mcp.sync.servers import {module}")
    return told + ("await asyncio.gather(...)" if _is_gathered(line) else f"await {shown}(...)")


def _is_gathered(line: int | None) -> bool:
    """Whether the line passes a call that isn't awaited to a gathering function."""
    source = getattr(sys.modules.get("__main__"), "__loader__", None)
    if line is None or not isinstance(source, runner.Source):
        return False
    text = source.code.split("\n")[line - 1 : line]
    return any("asyncio.gather(" in one and "await" not in one for one in text)


class PendingCall(Coroutine[Any, Any, Any]):
    """The coroutine of a call (for `await`, `asyncio.gather`, `create_task`) that records when it is started."""

    def __init__(self, inner: Coroutine[Any, Any, Any], started: Callable[[], Any], shown: str) -> None:
        self._inner = inner
        self._started = started
        self.shown = shown

    def __repr__(self) -> str:
        return f"<{self.shown}(...), not awaited>"

    def send(self, value: Any) -> Any:
        """See `Coroutine.send`."""
        self._started()
        return self._inner.send(value)

    def throw(self, *args: Any) -> Any:
        """See `Coroutine.throw`."""
        self._started()
        return self._inner.throw(*args)

    def close(self) -> None:
        """See `Coroutine.close`. A call that is closed explicitly was not forgotten."""
        self._started()
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        # A generator, which keeps this object alive (so that __del__ doesn't close it) while it is awaited.
        self._started()
        return (yield from self._inner.__await__())

    def __del__(self) -> None:
        # Closing an unstarted coroutine suppresses the interpreter's own warning, which is less precise than ours.
        self._inner.close()
