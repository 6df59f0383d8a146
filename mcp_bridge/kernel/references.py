"""`$name` and `$step.output.field`: how programs refer to their context and to what earlier steps gave.

A text that is one reference takes the value as it is; within a longer text a reference is written as Python's `str`
has it; one that leads nowhere stays as it is written; `$$` is a dollar sign. Lists and objects are filled at any depth,
values only, never names.
"""

import re
from collections.abc import Callable
from typing import Any

NAME = r"\w+(?:\.\w+)*"
_REFERENCE = re.compile(rf"\$(?:\$|({NAME}))")
_WHOLE = re.compile(rf"\$({NAME})")

MAX_TEXT_CHARS = 4 << 20
"""Longest text that filling may make: a loop could otherwise double one for ever."""

MISSING: Any = object()
"""What a lookup gives for a reference that leads nowhere."""

Lookup = Callable[[str, tuple[str, ...]], Any]
"""From a reference's first name and the rest of its path to a normal value, or `MISSING`."""


class TextTooLongError(ValueError):
    """Filling in a reference made a text of more than `MAX_TEXT_CHARS` characters."""

    def __init__(self) -> None:
        super().__init__(f"filling in references made a text of more than {MAX_TEXT_CHARS} characters")


def walk(value: Any, path: tuple[str, ...], *, of_step: bool) -> Any:
    """Follow a path into a value: names into objects, numbers into lists.

    `output` stands for the value itself: first in the path of a step, and wherever else no field has that name.

    Args:
        value: Where to begin.
        path: The names after the first.
        of_step: Whether `value` is a step's output, and not a part of the context.

    Returns:
        A value, or `MISSING`.
    """
    if of_step and path and path[0] == "output":
        path = path[1:]
    for name in path:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdecimal():
            if (index := int(name[:9])) >= len(value):
                return MISSING
            value = value[index]
        elif name != "output":
            return MISSING
    return value


class Template:
    """A value with references in it, read once and filled many times.

    Args:
        value: Normal JSON.
    """

    __slots__ = ("_fill", "_value", "roots")

    def __init__(self, value: Any) -> None:
        roots: set[str] = set()
        self._value, self._fill = _compile(value, roots)
        self.roots = frozenset(roots)
        """The first names of its references."""

    def fill(self, lookup: Lookup) -> Any:
        """The value with its references resolved; parts without any are shared, not copied.

        Raises:
            TextTooLongError: It would be a text beyond `MAX_TEXT_CHARS`.
        """
        return self._value if self._fill is None else self._fill(lookup)


_Fill = Callable[[Lookup], Any]


def _compile(value: Any, roots: set[str]) -> tuple[Any, _Fill | None]:
    """Either a constant, or what makes the value."""
    if isinstance(value, str):
        return _compile_text(value, roots)
    if isinstance(value, dict):
        parts = {name: _compile(item, roots) for name, item in value.items()}
        constant = {name: part for name, (part, fill) in parts.items() if fill is None}
        fills = [(name, fill) for name, (_, fill) in parts.items() if fill is not None]
        if not fills:
            return constant, None

        def fill_object(lookup: Lookup) -> Any:
            return constant | {name: fill(lookup) for name, fill in fills}

        return None, fill_object
    if isinstance(value, list):
        items = [_compile(item, roots) for item in value]
        if all(fill is None for _, fill in items):
            return [part for part, _ in items], None
        return None, lambda lookup: [part if fill is None else fill(lookup) for part, fill in items]
    return value, None


def _compile_text(text: str, roots: set[str]) -> tuple[Any, _Fill | None]:
    if "$" not in text:
        return text, None
    if whole := _WHOLE.fullmatch(text):
        root, *rest = whole[1].split(".")
        path = tuple(rest)
        roots.add(root)

        def fill_whole(lookup: Lookup) -> Any:
            value = lookup(root, path)
            return text if value is MISSING else value

        return None, fill_whole
    return _compile_mixed(text, roots)


def _compile_mixed(text: str, roots: set[str]) -> tuple[Any, _Fill | None]:
    parts: list[str | tuple[str, str, tuple[str, ...]]] = []
    end = 0
    for match in _REFERENCE.finditer(text):
        parts.append(text[end : match.start()])
        end = match.end()
        if match[1] is None:
            parts.append("$")
        else:
            root, *rest = match[1].split(".")
            roots.add(root)
            parts.append((match[0], root, tuple(rest)))
    parts.append(text[end:])
    if all(isinstance(part, str) for part in parts):
        return "".join(parts), None  # type: ignore[arg-type]

    def fill_text(lookup: Lookup) -> str:
        pieces: list[str] = []
        size = 0
        for part in parts:
            if isinstance(part, str):
                piece = part
            else:
                written, root, path = part
                value = lookup(root, path)
                piece = written if value is MISSING else str(value)
            size += len(piece)
            if size > MAX_TEXT_CHARS:
                raise TextTooLongError
            pieces.append(piece)
        return "".join(pieces)

    return None, fill_text
