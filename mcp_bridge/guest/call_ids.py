"""Names for calls that don't depend on timing: running the same code again gives the same names.

A call's name is its position in the tree of tasks. The main task is `0`, the n-th task that a task creates is
`<task>.<n>`, the n-th thread that it starts is `<task>.t<n>`, and the calls of each are numbered: `0.2#1`. A task
creates others in the order of its code; when they start to run depends on timing.

The position is kept in a context variable, which threads and tasks inherit as asyncio does for all context.
"""

import _thread
import sys
from contextvars import ContextVar, copy_context
from itertools import count

from mcp_bridge.wire.annotations import Any, Callable, Iterator
from mcp_bridge.wire.messages import CallId

MAX_NAME_CHARS = 100
"""The name of a deeper task is replaced by its hash: a call's name is sent with every request."""


class Line:
    """The position of one task or thread in the tree of a script, or of a session's cell.

    Args:
        name: The name.
        cell: The number of the cell; 0 for a script.
    """

    __slots__ = ("_calls", "_tasks", "_threads", "cell", "name")

    def __init__(self, name: str, cell: int = 0) -> None:
        self.name = name if len(name) <= MAX_NAME_CHARS else _shortened(name)
        self.cell = cell
        # `itertools.count` is atomic: threads may share a line, and each number is given once.
        self._calls = count(1)
        self._tasks = count(1)
        self._threads = count(1)

    def call(self) -> CallId:
        """The name of the next call."""
        return CallId(f"{self.name}#{next(self._calls)}")

    def task(self) -> "Line":
        """The line of the next task that this one creates."""
        return Line(f"{self.name}.{next(self._tasks)}", self.cell)

    def thread(self) -> "Line":
        """The line of the next thread that this one starts."""
        return Line(f"{self.name}.t{next(self._threads)}", self.cell)


def _shortened(name: str) -> str:
    import hashlib

    return f"h{hashlib.sha256(name.encode()).hexdigest()[:32]}"


_line: ContextVar[Line] = ContextVar("bridge_line")
_started_in: ContextVar[int] = ContextVar("bridge_started_in")
"""The cell that started a thread which `threading` knows nothing of."""
_unknown = count(1)
_ATTRIBUTE = "_bridge_line"


class Running:
    """What runs.

    Attributes:
        cell: The number of the session's cell that runs, or ran last; 0 for a script.
    """

    cell = 0


def begin_cell(number: int) -> None:
    """Begin a cell: its calls are named as those of a script are, whatever cells before it did."""
    global _unknown  # noqa: PLW0603
    Running.cell = number
    # What an interrupted cell has waited for in vain isn't waited for again.
    _submitted.clear()
    _unknown = count(1)
    _line.set(Line("0", number))


def begin() -> None:
    """Make this thread the main one."""
    _line.set(Line("0"))


def follow_threads() -> None:
    """Give the threads that are started from now on their own lines. Called once `threading` is imported."""
    import threading

    start = threading.Thread.start

    def start_with_line(self: threading.Thread) -> None:
        if not is_of_pool(self):
            self.__dict__[_ATTRIBUTE] = line = current().thread()
            if getattr(sys.flags, "thread_inherit_context", False):
                context = copy_context()
                context.run(_line.set, line)
                return context.run(start, self)
        return start(self)

    _copy_metadata(start, start_with_line)
    threading.Thread.start = start_with_line  # type: ignore[method-assign]


def follow_raw_threads() -> None:
    """Have the threads of `_thread` belong to the cell that starts them, in a session."""
    threading = sys.modules.get("threading")

    def followed(start: Callable[..., Any]) -> Callable[..., Any]:
        def start_in_cell(function: Any, *args: Any, **options: Any) -> Any:
            # What can't be called is for the original to refuse.
            return start(_in_cell(_cell(), function) if callable(function) else function, *args, **options)

        _copy_metadata(start, start_in_cell)
        return start_in_cell

    for name in ("start_new_thread", "start_new", "start_joinable_thread"):
        if (start := getattr(_thread, name, None)) is not None:
            setattr(_thread, name, replacement := followed(start))
            if hasattr(threading, f"_{name}"):
                setattr(threading, f"_{name}", replacement)


def _in_cell(cell: int, function: Any) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        _started_in.set(cell)
        return function(*args, **options)

    return run


def _known_line() -> Line | None:
    """The line of the current task or thread, if it has one already."""
    line = _line.get(None)
    if line is None:
        current_thread = getattr(sys.modules.get("threading"), "current_thread", None)
        line = None if current_thread is None else current_thread().__dict__.get(_ATTRIBUTE)
    return line


def _cell() -> int:
    """The cell that the current task or thread belongs to; `NO_CELL` for one that Python hasn't started."""
    line = _known_line()
    return line.cell if line is not None else _started_in.get(NO_CELL if Running.cell else 0)


NO_CELL = -1


def current() -> Line:
    """The line of the current task or thread."""
    # A thread that wasn't started by `threading` is numbered by its first call.
    line = _known_line() or Line(f"t{next(_unknown)}", _cell())
    _line.set(line)
    return line


def follow_tasks() -> None:
    """Give the tasks of every event loop their own lines. Called once asyncio is imported."""
    import asyncio
    from asyncio import base_events, events

    create: Callable[..., Any] = base_events.BaseEventLoop.create_task

    def create_with_line(self: Any, coro: Any, **options: Any) -> Any:
        context = options.get("context")
        if context is None:
            context = copy_context()
            context.run(_line.set, current().task())
            return marked(context.run(create, self, coro, **options), context)
        # The task of `asyncio.run` continues its caller's line: the caller is blocked meanwhile.
        if events._get_running_loop() is not None:  # noqa: SLF001
            try:
                context.run(_line.set, current().task())
            except RuntimeError:
                pass  # The context is entered already: the line is shared.
        return marked(create(self, coro, **options), context)

    def marked(task: Any, context: Any) -> Any:
        try:
            setattr(task, _ATTRIBUTE, context.get(_line))
        except Exception:  # noqa: BLE001, S110  (what a factory of the script makes need not take it)
            pass
        return task

    _copy_metadata(create, create_with_line)
    base_events.BaseEventLoop.create_task = create_with_line  # type: ignore[method-assign]
    completed = asyncio.as_completed
    _copy_metadata(completed, as_completed := _as_completed(completed))
    asyncio.as_completed = asyncio.tasks.as_completed = as_completed


def position(task: Any) -> list[tuple[int, str]]:
    """A task's place in the tree, to sort by: tasks of the same name and of a set come in the order of the code."""
    line = getattr(task, _ATTRIBUTE, None)
    # Last if it isn't known.
    name = line.name if isinstance(line, Line) else "~" * MAX_NAME_CHARS
    return [(len(part), part) for part in name.split(".")]


def _as_completed(original: Callable[..., Any]) -> Callable[..., Any]:
    """`asyncio.as_completed` with tasks created in order; the original creates them in the order of a set."""
    import asyncio

    def tasks(awaitables: Any) -> list[Any]:
        return [asyncio.ensure_future(one) for one in dict.fromkeys(awaitables)]

    if sys.version_info >= (3, 13):

        def as_completed(fs: Any, *, timeout: float | None = None) -> Any:
            return original(fs if asyncio.isfuture(fs) or asyncio.iscoroutine(fs) else tasks(fs), timeout=timeout)

    else:

        def as_completed(fs: Any, *, timeout: float | None = None) -> Iterator[Any]:
            # A generator like the original: nothing starts before the first item is requested.
            known = fs if asyncio.isfuture(fs) or asyncio.iscoroutine(fs) else tasks(fs)
            yield from original(known, timeout=timeout)

    return as_completed


def follow_pools() -> None:
    """Give work in thread pools its own lines, since its thread depends on timing. Called after the import."""
    from concurrent.futures.thread import ThreadPoolExecutor

    submit = ThreadPoolExecutor.submit

    def submit_with_line(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        line = current().task()
        future = submit(self, _on_line, line, fn, args, kwargs)
        if line.cell and line.cell == Running.cell:
            _submitted.add(future)
            future.add_done_callback(_submitted.discard)
        return future

    _copy_metadata(submit, submit_with_line)
    ThreadPoolExecutor.submit = submit_with_line  # type: ignore[method-assign]


def _on_line(line: Line, function: Any, args: Any, kwargs: Any) -> Any:
    token = _line.set(line)
    try:
        return function(*args, **kwargs)
    finally:
        _line.reset(token)


_submitted: set[Any] = set()
"""The work that the cell under way has given to thread pools and that isn't done, as futures."""


def wait_for_pools() -> None:
    """Wait for what a session's cell has given to thread pools, and for what that gives to them in turn."""
    # One that is done is discarded a moment later.
    while under_way := [future for future in _submitted.copy() if not future.done()]:
        from concurrent.futures import wait

        wait(under_way)


def is_of_earlier_cell(thread: Any) -> bool:
    """Whether a thread was started by a cell that has ended, which waited for it until it was interrupted."""
    line = thread.__dict__.get(_ATTRIBUTE)
    return line is not None and line.cell != Running.cell


def is_of_pool(thread: Any) -> bool:
    """Whether a thread is a thread pool's."""
    # Whether a pool starts another thread depends on timing, too.
    pools = sys.modules.get("concurrent.futures.thread")
    return pools is not None and getattr(thread, "_target", None) is getattr(pools, "_worker", pools)


def _copy_metadata(original: Any, replacement: Any) -> None:
    """Copy metadata as `functools.wraps`, which isn't imported yet."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(replacement, name, getattr(original, name))
    replacement.__wrapped__ = original
