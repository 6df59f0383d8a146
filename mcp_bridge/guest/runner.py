"""Runs the agent's code as a notebook cell, and reports how it ended."""

import _ast
import builtins
import errno
import os
import sys
import types

from mcp_bridge.wire.annotations import Any, Callable, NamedTuple

BYTE_ORDER_MARK = "\ufeff"

FILENAME = "<script>"
CELL_PREFIX = "<cell "
"""Begins the file name of a session's cell, which has its number."""

USER_DIRECTORIES = ("/workspace/", "/tmp/")  # noqa: S108

CO_COROUTINE = 0x80

VALUE_NAME = "__last_value__"

MAX_MESSAGE = 20_000
MAX_TRACEBACK = 40_000
NOTE_CHARS = 60
MAX_FRAMES = 10_000
"""Most frames of one traceback that are described. Each takes 20 µs, and a recursion without end may have a million."""

_THREADS_SHOWN = 5

LEAST_RECURSION = 1000
"""Python's own default."""


class Outcome(NamedTuple):
    """How the code ended.

    Attributes:
        exit_code: 0; the argument of `sys.exit`; 1 for an uncaught exception.
        value: The text form of the last expression's value, or None.
        error: `type`, `message`, `line` (or None), `traceback`; or None.
    """

    exit_code: int
    value: str | None = None
    error: dict[str, Any] | None = None


class Source:
    """The script's text, in the form of a module loader.

    Args:
        code: The text. A byte order mark is dropped, as Python drops that of a file.
        filename: What its code objects have as their file: in a session, functions of earlier cells are told apart.
    """

    running = FILENAME
    """The file name of the script, or of the cell, that runs."""

    last_line: int | None = None
    """The line of the expression whose value is shown."""

    has_run = False
    """Whether the code has run to its end, and is only waited for threads of it."""

    def __init__(self, code: str, filename: str = FILENAME) -> None:
        self.code = code.removeprefix(BYTE_ORDER_MARK)
        self.filename = Source.running = filename
        Source.last_line = None
        Source.has_run = False

    def get_source(self, name: str) -> str:  # noqa: ARG002
        """The script's text."""
        return self.code

    def register_in_linecache(self) -> None:
        """Register the text for tracebacks and `inspect`: linecache asks no loader for a name in angle brackets."""
        import linecache

        # All lines need a line end, the last too: tracebacks place their carets by it.
        lines = [line + "\n" for line in self.code.split("\n")]
        linecache.cache[self.filename] = (len(self.code), None, lines, self.filename)


def is_script(filename: str) -> bool:
    """Whether a file name is that of the script, or of any cell."""
    return filename == FILENAME or filename.startswith(CELL_PREFIX)


def compile_script(
    code: str,
    repair: Callable[[str, SyntaxError], Any],
    filename: str = FILENAME,
    rewrite: Callable[[Any], None] | None = None,
) -> types.CodeType:
    """Compile with top-level await; the last expression's value is assigned to VALUE_NAME.

    Args:
        code: The script's text.
        repair: As `Hooks.repair`.
        filename: As `Source`.
        rewrite: As `Hooks.rewrite`.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError, OverflowError: As `compile`.
    """
    flags = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        tree = compile(code, filename, "exec", flags | _ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as exc:
        tree = repair(code, exc)
        if tree is None:
            raise
    if rewrite is not None:
        rewrite(tree)
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = tree.body[-1]
        Source.last_line = last.lineno
        place: Any = {
            "lineno": last.lineno,
            "col_offset": last.col_offset,
            "end_lineno": last.end_lineno,
            "end_col_offset": last.end_col_offset,
        }
        target = _ast.Name(id=VALUE_NAME, ctx=_ast.Store(), **place)
        tree.body[-1] = _ast.Assign(targets=[target], value=last.value, **place)
    compiled: types.CodeType = compile(tree, filename, "exec", flags, dont_inherit=True)
    return compiled


def main_module(source: Source, names: dict[str, Any]) -> types.ModuleType:
    """A new `__main__` module for the script, with the names that need no import."""
    module = types.ModuleType("__main__")
    module.__loader__ = source  # type: ignore[assignment]
    module.__dict__.update(names)
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return module


class Hooks(NamedTuple):
    """Callbacks around a script. Exceptions of the first three count as the script's error.

    Attributes:
        show: Returns the text form of the last value.
        before_end: Called after the code, before the outcome is determined.
        left: Called with the unfinished tasks before they are cancelled.
        ended: Called once tasks and threads have ended, before `before_end`, and after a failure too.
        advise: Called with an exception of the script, to add notes to it.
        repair: Called with code that doesn't compile, and the error. Returns the syntax tree of the code that was
            meant, if that is plain (code in a fence, or indented as a whole), or None.
        rewrite: Called with the syntax tree, which it may change; None where nobody does.
    """

    show: Callable[[Any], str | None]
    before_end: Callable[[], None]
    left: Callable[[set[Any]], None]
    ended: Callable[[], None]
    advise: Callable[[BaseException], None]
    repair: Callable[[str, SyntaxError], Any]
    rewrite: Callable[[Any], None] | None = None


def run(source: Source, names: dict[str, Any], hooks: Hooks) -> Outcome:
    """Run the script to its end.

    Args:
        source: The script's text.
        names: The names that need no import.
        hooks: The callbacks.
    """
    module = main_module(source, names)
    home = os.getpid()

    def work() -> None:
        _execute(compile_script(source.code, hooks.repair, rewrite=hooks.rewrite), module.__dict__, hooks.left)

    outcome = guarded(work, hooks.advise)
    if os.getpid() != home:
        end_of_fork(outcome)
    # As at the interpreter's exit, threads continue after an exception too.
    ended = guarded(_end_threads)
    guarded(hooks.ended)
    if outcome == SUCCESS:
        outcome = ended if ended != SUCCESS else guarded(hooks.before_end)
    if outcome == SUCCESS:
        outcome = shown(hooks, module.__dict__.pop(VALUE_NAME, None))
    else:
        # Open figures are shown of a failure, too: functions at exit close them.
        guarded(lambda: hooks.show(None))
    _run_exit_functions()
    return outcome


SUCCESS = Outcome(0)


def guarded(action: Callable[[], str | None], advise: Callable[[BaseException], None] | None = None) -> Outcome:
    """Run an action of the script; return its outcome, with the text that it returns as the value."""
    try:
        return Outcome(0, action())
    except SystemExit as exc:
        return _exit_outcome(exc)
    except BaseException as exc:  # noqa: BLE001
        if advise is not None:
            try:
                advise(exc)
            except BaseException:  # noqa: BLE001, S110  (no memory left, or objects that resist: the error stands alone)
                pass
        return Outcome(1, error=describe(exc))


def shown(hooks: Hooks, value: Any) -> Outcome:
    """The outcome of code that has ended well: the text form of its value. What fails at that is at its line."""
    outcome = guarded(lambda: hooks.show(value))
    # The exception stays as it is: the class of the script may take no attribute.
    if outcome.error is not None and outcome.error["line"] is None:
        outcome.error["line"] = Source.last_line
    return outcome


def _execute(compiled: types.CodeType, namespace: dict[str, Any], left: Callable[[set[Any]], None]) -> None:
    if compiled.co_flags & CO_COROUTINE:
        import asyncio

        with asyncio.Runner() as runner:
            runner.run(eval(compiled, namespace))  # noqa: S307
            left(asyncio.all_tasks(runner.get_loop()))
    else:
        exec(compiled, namespace)  # noqa: S102


def _end_threads() -> None:
    """Wait for the script's own threads, as the interpreter does at exit.

    Uses the interpreter's own function, which also stops the idle threads of executors that were not shut down.
    """
    if (threading := sys.modules.get("threading")) is not None:
        Source.has_run = True
        try:
            threading._shutdown()  # noqa: SLF001
        finally:
            Source.has_run = False


def report_threads() -> None:
    """Say on standard error that threads of the script still run, if its time is up while it is waited for them."""
    threading = sys.modules.get("threading")
    if threading is None or not Source.has_run:
        return
    own = threading.main_thread()
    names = [str(thread.name) for thread in threading.enumerate() if not thread.daemon and thread is not own]
    if names:
        shown = ", ".join(names[:_THREADS_SHOWN]) + (", …" if len(names) > _THREADS_SHOWN else "")
        said = f"The code has run to its end, but {len(names)} of its threads still run: {shown}"
        os.write(2, f"{said}; let them end, or start them with daemon=True\n".encode(errors="backslashreplace"))


def _exit_outcome(exc: SystemExit) -> Outcome:
    if exc.code is None:
        return Outcome(0)
    if isinstance(exc.code, int):
        return Outcome(exc.code & 0xFF)
    _print_error(exc.code)  # as the interpreter does
    return Outcome(1)


def _print_error(what: Any) -> None:
    """Print to the original standard error, whatever the script has assigned to `sys.stderr`."""
    try:
        print(what, file=sys.stderr or sys.__stderr__, flush=True)
    except BaseException:  # noqa: BLE001, S110
        pass


def end_of_fork(outcome: Outcome) -> None:
    """End a process that the script forked: it has no channel, and reports only its exit status."""
    try:
        if outcome.error:
            os.write(2, outcome.error["traceback"].encode("utf-8") + b"\n")
        sys.stdout.flush()
    finally:
        os._exit(outcome.exit_code)


def _run_exit_functions() -> None:
    import atexit

    try:
        atexit._run_exitfuncs()  # noqa: SLF001
    except BaseException as exc:  # noqa: BLE001
        _print_error(describe(exc)["traceback"])


def describe(exc: BaseException) -> dict[str, Any]:
    """An exception as `{type, message, line, traceback}`; the traceback contains the user's frames only.

    `out_of_memory` is present and true if the interpreter, a library or the system reported a lack of memory.
    """
    limit = sys.getrecursionlimit()
    # A script may have lowered it to less than an import takes.
    sys.setrecursionlimit(max(limit, LEAST_RECURSION))
    try:
        try:
            told = _describe(exc)
        except Exception:  # noqa: BLE001  (the library looks for similar names, and some that it meets are no text)
            told = _describe_plainly(exc)
    except BaseException as second:  # noqa: BLE001  (no memory left, or a script that has sabotaged the library)
        told = _describe_without_library(exc, second)
    finally:
        sys.setrecursionlimit(limit)
    return told | ({"out_of_memory": True} if _for_memory(exc) else {})


def _for_memory(exc: BaseException) -> bool:
    # Uses type(): the script's class may override `__class__`, or compute its `errno`.
    if issubclass(type(exc), OSError):
        return bool(OSError.__dict__["errno"].__get__(exc) == errno.ENOMEM)
    return issubclass(type(exc), MemoryError)


def _describe(exc: BaseException) -> dict[str, Any]:
    import traceback

    source = getattr(sys.modules.get("__main__"), "__loader__", None)
    if isinstance(source, Source):
        source.register_in_linecache()
    if isinstance(exc, SyntaxError) and exc.filename == Source.running and exc.text is None and exc.lineno:
        # Python knows the line of what its parser refuses alone.
        import linecache

        exc.text = linecache.getline(exc.filename, exc.lineno) or None
    message = cut(printable(_text(exc)), MAX_MESSAGE)
    _shorten_tracebacks(exc)
    report = traceback.TracebackException.from_exception(exc, compact=True)
    lines: list[int] = []
    _keep_user_frames(report, lines)
    line = lines[0] if lines else getattr(exc, "line", None)
    if isinstance(exc, SyntaxError) and exc.filename == Source.running:
        line = exc.lineno
    return {
        "type": _name(exc),
        "message": message,
        "line": line if isinstance(line, int) else None,
        "traceback": cut(printable("".join(report.format()).rstrip("\n")), MAX_TRACEBACK),
    }


def _shorten_tracebacks(exc: BaseException) -> None:
    """Take the middle out of a traceback that is too long to be described in time, and of those of its causes."""
    import contextlib

    seen: set[int] = set()
    waiting: list[BaseException | None] = [exc]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        steps: list[types.TracebackType] = []
        step = one.__traceback__
        while step is not None:
            steps.append(step)
            step = step.tb_next
        if (left := len(steps) - MAX_FRAMES) > 0:
            half = MAX_FRAMES // 2
            steps[half - 1].tb_next = steps[-half]
            # The script may have put anything in place of the notes.
            with contextlib.suppress(TypeError):
                BaseException.add_note(one, f"({left} calls in the middle are left out of the traceback)")
        waiting += [one.__cause__, one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ())]


def _describe_plainly(exc: BaseException) -> dict[str, Any]:
    """The exception without its causes, and without a suggestion."""
    import traceback

    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if _is_users(frame.filename)]
    name, message = _name(exc), cut(printable(_text(exc)), MAX_MESSAGE)
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames), f"{name}: {message}"]
    return {
        "type": name,
        "message": message,
        "line": next((frame.lineno for frame in reversed(frames) if frame.filename == Source.running), None),
        "traceback": cut(printable("".join(lines)), MAX_TRACEBACK),
    }


def _describe_without_library(exc: BaseException, second: BaseException) -> dict[str, Any]:
    """The exception by its text, or by why it has none."""
    name = _name(exc)
    try:
        message = cut(printable(_text(exc)), MAX_MESSAGE)
    except BaseException:  # noqa: BLE001  (as in `describe`)
        message = f"(no text: {_name(second)})"
    return {"type": name, "message": message, "line": None, "traceback": f"{name}: {message}"}


def _name(exc: BaseException) -> str:
    # Not through an attribute, which a metaclass may override.
    return printable(type.__dict__["__name__"].__get__(type(exc)))


def _text(exc: BaseException) -> str:
    try:
        text = str(exc.msg) if isinstance(exc, SyntaxError) and exc.msg else str(exc)
        notes = getattr(exc, "__notes__", None)
        return "\n".join([text, *map(str, notes)]) if isinstance(notes, list) else text
    except Exception:  # noqa: BLE001  (the script's own __str__; these are the traceback's words for it)
        return "<exception str() failed>"


def _is_users(filename: str) -> bool:
    return is_script(filename) or filename.startswith(USER_DIRECTORIES)


def _keep_user_frames(report: Any, lines: list[int]) -> None:
    """Remove frames of the runtime and of libraries; append the last user line of the outermost report to `lines`."""
    seen: set[int] = set()
    waiting = [report]
    # Not recursive: a chain of causes may exceed the recursion limit.
    while waiting:
        report = waiting.pop()
        if report is None or id(report) in seen:
            continue
        seen.add(id(report))
        kept = [frame for frame in report.stack if _is_users(frame.filename)]
        script = [frame.lineno for frame in kept if frame.filename == Source.running and frame.lineno]
        if not lines:
            lines.extend(script[-1:])
        report.stack[:] = kept
        waiting += reversed([report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())])


def printable(text: str) -> str:
    """`text` without lone surrogates, which frames can't contain."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def cut(text: str, limit: int) -> str:
    """`text`; if longer than `limit` characters, its two ends with a note between them."""
    if len(text) <= limit:
        return text
    half = (limit - NOTE_CHARS) // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters cut …\n{text[-half:]}"
