"""Runs the agent's code as a notebook cell would, and says truly how it ended."""

import _ast
import builtins
import os
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

FILENAME = "<script>"
USER_DIRECTORIES = ("/workspace/", "/tmp/")  # noqa: S108

CO_COROUTINE = 0x80

VALUE_NAME = "__last_value__"

MAX_MESSAGE = 20_000
MAX_TRACEBACK = 40_000


class Outcome(NamedTuple):
    """How the code ended.

    Attributes:
        exit_code: 0; what `sys.exit` gave; 1 for an uncaught exception.
        value: Shown form of the last expression's value, or None.
        error: `type`, `message`, `line` (or None), `traceback`, or None.
    """

    exit_code: int
    value: str | None = None
    error: dict[str, Any] | None = None


class _Source:
    """Gives `linecache`, and so tracebacks and `inspect`, the text of the script."""

    def __init__(self, code: str) -> None:
        self._code = code

    def get_source(self, name: str) -> str:  # noqa: ARG002
        return self._code


def compile_script(code: str) -> types.CodeType:
    """Compile with top-level await; a last expression's value is kept under VALUE_NAME.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError, OverflowError: As `compile` does.
    """
    flags = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(code, FILENAME, "exec", flags | _ast.PyCF_ONLY_AST, dont_inherit=True)
    if tree.body and isinstance(tree.body[-1], _ast.Expr):
        last = tree.body[-1]
        place: Any = {
            "lineno": last.lineno,
            "col_offset": last.col_offset,
            "end_lineno": last.end_lineno,
            "end_col_offset": last.end_col_offset,
        }
        target = _ast.Name(id=VALUE_NAME, ctx=_ast.Store(), **place)
        tree.body[-1] = _ast.Assign(targets=[target], value=last.value, **place)
    compiled: types.CodeType = compile(tree, FILENAME, "exec", flags, dont_inherit=True)
    return compiled


def main_module(code: str, names: dict[str, Any]) -> types.ModuleType:
    """A fresh `__main__` for the script, with the names that need no import."""
    module = types.ModuleType("__main__")
    module.__loader__ = _Source(code)  # type: ignore[assignment]
    module.__dict__.update(names)
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    return module


def run(code: str, names: dict[str, Any], show: Callable[[Any], str | None], before_end: Callable[[], None]) -> Outcome:
    """Run the script to its end.

    Args:
        code: Its text.
        names: Names that need no import.
        show: Makes the shown form of the last value; what it raises is the script's error.
        before_end: Called after the code and before the outcome is known; what it raises is the script's error.
    """
    module = main_module(code, names)
    home = os.getpid()
    try:
        compiled = compile_script(code)
        if compiled.co_flags & CO_COROUTINE:
            _run_async(compiled, module.__dict__)
        else:
            exec(compiled, module.__dict__)  # noqa: S102
        _join_threads()
        before_end()
        value = show(module.__dict__.pop(VALUE_NAME, None))
        outcome = Outcome(0, value)
    except SystemExit as exc:
        _join_threads()
        outcome = _exit_outcome(exc)
    except BaseException as exc:  # noqa: BLE001
        outcome = Outcome(1, error=describe(exc))
    if os.getpid() != home:
        _end_of_fork(outcome)
    _run_exit_functions()
    return outcome


def _run_async(compiled: types.CodeType, namespace: dict[str, Any]) -> None:
    import asyncio

    with asyncio.Runner() as runner:
        runner.run(eval(compiled, namespace))  # noqa: S307


def _join_threads() -> None:
    """Wait for the script's own threads, as the interpreter does at its end."""
    import threading

    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()


def _exit_outcome(exc: SystemExit) -> Outcome:
    if exc.code is None:
        return Outcome(0)
    if isinstance(exc.code, int):
        return Outcome(exc.code & 0xFF)
    print(exc.code, file=sys.stderr)  # noqa: T201  (what the interpreter does)
    return Outcome(1)


def _end_of_fork(outcome: Outcome) -> None:
    """The end of a process that the script forked: it has no channel, and only its exit status speaks."""
    if outcome.error:
        os.write(2, outcome.error["traceback"].encode("utf-8", "backslashreplace"))
    sys.stdout.flush()
    os._exit(outcome.exit_code)


def _run_exit_functions() -> None:
    import atexit

    try:
        atexit._run_exitfuncs()  # noqa: SLF001
    except BaseException as exc:  # noqa: BLE001
        print(describe(exc)["traceback"], file=sys.stderr)  # noqa: T201


def describe(exc: BaseException) -> dict[str, Any]:
    """An exception as `{type, message, line, traceback}`; the traceback shows the user's frames only."""
    try:
        return _describe(exc)
    except BaseException as second:  # noqa: BLE001  (an exception whose own text raises, or no memory left)
        return {
            "type": type(exc).__name__,
            "message": f"(no text: {type(second).__name__})",
            "line": None,
            "traceback": type(exc).__name__,
        }


def _describe(exc: BaseException) -> dict[str, Any]:
    import traceback

    report = traceback.TracebackException.from_exception(exc, compact=True)
    lines: list[int] = []
    _keep_user_frames(report, lines, set())
    line = lines[0] if lines else getattr(exc, "line", None)
    if isinstance(exc, SyntaxError) and exc.filename == FILENAME:
        line = exc.lineno
    return {
        "type": type(exc).__name__,
        "message": cut(_text(exc), MAX_MESSAGE),
        "line": line if isinstance(line, int) else None,
        "traceback": cut("".join(report.format()).rstrip("\n"), MAX_TRACEBACK),
    }


def _text(exc: BaseException) -> str:
    if isinstance(exc, SyntaxError) and exc.msg:
        return exc.msg
    text = str(exc)
    notes = getattr(exc, "__notes__", None)
    return "\n".join([text, *map(str, notes)]) if isinstance(notes, list) else text


def _keep_user_frames(report: Any, lines: list[int], seen: set[int]) -> None:
    """Drop the frames of the runtime and of libraries; `lines` gets the last user line of the outermost report."""
    if report is None or id(report) in seen:
        return
    seen.add(id(report))
    kept = [
        frame for frame in report.stack if frame.filename == FILENAME or frame.filename.startswith(USER_DIRECTORIES)
    ]
    script = [frame.lineno for frame in kept if frame.filename == FILENAME and frame.lineno]
    if not lines:
        lines.extend(script[-1:])
    report.stack[:] = kept
    for other in (report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())):
        _keep_user_frames(other, lines, seen)


def cut(text: str, limit: int) -> str:
    """`text`, or its two ends with a note between them when it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters cut …\n{text[-half:]}"
