"""Locates where a script failed: the expression as a syntax tree, and the values in it."""

import _ast
import sys
import traceback
import types
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from mcp_bridge.guest.runner import FILENAME, Source

OURS = "<bridge>"
"""Prefix of the file names of the bridge's own code."""

MAX_TEXT_CHARS = 200
"""Maximum characters of an expression that is quoted in advice."""


def kind(node: Any) -> str:
    """The name of a node's type; empty for None."""
    return type(node).__name__ if isinstance(node, _ast.AST) else ""


def walk(tree: Any) -> Iterator[Any]:
    """All nodes of a tree, in any order. Avoids importing `ast`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            waiting += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, _ast.AST)]


def parse(code: str, mode: str = "exec") -> Any:
    """The syntax tree of a text; None if it doesn't compile."""
    flags = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | _ast.PyCF_ONLY_AST
    try:
        return compile(code, FILENAME, mode, flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None


class Failure(NamedTuple):
    """The failed expression of the script, and its frame.

    Attributes:
        frame: The script's innermost frame.
        node: The expression; None if the interpreter doesn't report it.
        source: The expression's text in parentheses, from which the node was parsed.
        files: The file names of inner frames, without directories and suffix.
        last_file, last_function: File and function of the innermost frame of all.
        is_innermost: Whether the script's frame is the innermost of all.
        is_innermost_user_frame: Whether all inner frames are the bridge's own.
    """

    frame: types.FrameType
    node: Any
    source: bytes
    files: frozenset[str]
    last_file: str
    last_function: str
    is_innermost: bool
    is_innermost_user_frame: bool

    @property
    def text(self) -> str:
        """The expression as written; `…` if it is long or has several lines."""
        if self.node is None or self.node.lineno != self.node.end_lineno or self.node.lineno != 1:
            return "…"
        text = self.source[self.node.col_offset : self.node.end_col_offset].decode("utf-8", "replace")
        return text if len(text) <= MAX_TEXT_CHARS else "…"

    def of(self, node: Any) -> "Failure":
        """Another expression of the same text."""
        return self._replace(node=node)

    def inner(self, name: str) -> "Failure":
        """A child node of the expression."""
        return self.of(getattr(self.node, name, None))

    def value(self) -> Any:
        """The value of a name, or of an item with a constant key; None if evaluation would run code."""
        node = self.node
        match kind(node):
            case "Name":
                if node.id in self.frame.f_locals:
                    return self.frame.f_locals[node.id]
                return self.frame.f_globals.get(node.id)
            case "Attribute":
                base = self.inner("value").value()
                return base.__dict__.get(node.attr) if isinstance(base, types.ModuleType) else None
            case "Subscript" if kind(node.slice) == "Constant":
                base, key = self.inner("value").value(), node.slice.value
                # Use the type's own method: a class of the script's may do anything.
                if issubclass(type(base), dict) and isinstance(key, str):
                    return dict.get(base, key)
                if (
                    issubclass(type(base), list)
                    and type(key) is int
                    and -list.__len__(base) <= key < list.__len__(base)
                ):
                    return list.__getitem__(base, key)
        return None


def failure(exc: BaseException, code: str) -> Failure | None:
    """Where in the script an exception was raised; None if outside of it."""
    innermost: types.TracebackType | None = None
    frames: list[types.CodeType] = []
    step = exc.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == Source.running:
            innermost, frames = step, []
        else:
            frames.append(step.tb_frame.f_code)
        step = step.tb_next
    if innermost is None:
        return None
    source = _source(innermost, code)
    tree = parse(source.decode("utf-8", "replace"), "eval") if source else None
    last = frames[-1] if frames else innermost.tb_frame.f_code
    return Failure(
        innermost.tb_frame,
        tree.body if tree is not None else None,
        source,
        frozenset(_stem(one.co_filename) for one in frames),
        _stem(last.co_filename),
        last.co_name,
        not frames,
        all(one.co_filename.startswith(OURS) for one in frames),
    )


def files_of(exc: BaseException) -> set[str]:
    """The file names of all frames of an exception, without directories and suffix."""
    found, step = set(), exc.__traceback__
    while step is not None:
        found.add(_stem(step.tb_frame.f_code.co_filename))
        step = step.tb_next
    return found


def _stem(filename: str) -> str:
    # A module of the library may have become a package since.
    return "pathlib" if "/pathlib/" in filename else filename.rpartition("/")[2].removesuffix(".py")


def _source(step: types.TracebackType, code: str) -> bytes:
    """The text of the expression that a frame was executing, in parentheses, so that it may span lines."""
    where = next(islice(step.tb_frame.f_code.co_positions(), step.tb_lasti // 2, None), (None,) * 4)
    first, last, start, end = where
    if first is None or last is None or start is None or end is None:
        return b""
    lines = [line.encode() for line in code.split("\n")[first - 1 : last]]
    if not lines:
        return b""
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"(" + b"\n".join(lines) + b")"


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A suggestion in the words of later Python versions."""
    if sys.version_info >= (3, 12) and hasattr(traceback, "_compute_suggestion_error"):
        return None
    import difflib

    close = difflib.get_close_matches(name, [one for one in known if not one.startswith("_")], n=1, cutoff=0.7)
    return f"Did you mean: {close[0]!r}?" if close else None
