"""`$name` and `$step.output.field`: how programs refer to their context and to what earlier steps gave.

A text that is one reference takes the value as it is; within a longer text a reference is written as Python's `str`
has it, the names of objects in order; one that leads nowhere stays as it is written; `$$` is a dollar sign. Lists and
objects are filled at any depth, values only, never names.

Filling is bounded: a few references to a large value would otherwise make one that no memory holds, and each turn of a
loop one that is deeper.
"""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from mcp_bridge.kernel.values import MAX_DEPTH

NAME = r"\w+(?:\.\w+)*"
PATH = rf"{NAME}(?:\[[0-9]+\](?:\.{NAME})?)*"
"""A reference after its dollar sign where it stands alone, in a condition for one: `$a[0].b` is `$a.0.b`."""

_REFERENCE = re.compile(rf"\$(?:\$|({NAME}))")
WHOLE = re.compile(rf"\$({NAME})")
"""A text that is nothing but a reference."""

MAX_TEXT_CHARS = 4 << 20
"""Longest text that filling may make."""

MAX_FILLED = 8 << 20
"""Most that filling may make in all: characters of texts and names, and one for each value."""

SHORT_CHARS = 200
"""A text, or a condition, of at most so many is short: what is read of some hundreds of them is kept."""

_MAX_INDEX_DIGITS = 9

_Part = str | tuple[str, str, tuple[str, ...]]

MISSING: Any = object()
"""What a lookup gives for a reference that leads nowhere."""

Lookup = Callable[[str, tuple[str, ...]], Any]
"""From a reference's first name and the rest of its path to a normal value, or `MISSING`."""


class TextTooLongError(ValueError):
    """Filling in references made a text beyond `MAX_TEXT_CHARS`, or a value beyond `MAX_FILLED` or `MAX_DEPTH`."""

    def __init__(self, message: str = f"a text of more than {MAX_TEXT_CHARS} characters") -> None:
        super().__init__(f"filling in references made {message}")


def names_of(reference: str) -> tuple[str, ...]:
    """The names and indices of a `PATH` with its dollar sign."""
    return tuple(reference[1:].replace("[", ".").replace("]", "").split("."))


def walk(value: Any, path: tuple[str, ...], *, of_step: bool, compares: bool = False) -> Any:
    """Follow a path into a value: names into objects, numbers into lists.

    `output` stands for the value itself: first in the path of a step, and wherever else no field has that name. In a
    condition, which may ask whether there is such a field, only first in a path.

    Args:
        value: Where to begin.
        path: The names after the first.
        of_step: Whether `value` is a step's output, and not a part of the context.
        compares: Whether a condition asks.

    Returns:
        A value, or `MISSING`.
    """
    is_field = not of_step and isinstance(value, dict) and "output" in value
    if (of_step or compares) and path and path[0] == "output" and not is_field:
        path = path[1:]
    for name in path:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdecimal():
            if len(name) > _MAX_INDEX_DIGITS or (index := int(name)) >= len(value):
                return MISSING
            value = value[index]
        elif compares or name != "output":
            return MISSING
    return value


def written(value: Any) -> str:
    """A value as it stands in a text. Equal values are written alike, in whatever order their names came."""
    return _shown(value) if isinstance(value, (dict, list)) else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "{" + ", ".join([f"{quoted(name)}: {_shown(value[name])}" for name in sorted(value)]) + "}"
    return "[" + ", ".join(map(_shown, value)) + "]" if isinstance(value, list) else str(value)


def quoted(text: str) -> str:
    """A text in quotes, as `repr` has it, but for which characters are escaped: those that every Unicode version would.

    What `repr` escapes beyond them differs between Python's versions, and with it the state's bytes would.
    """
    if text.isascii():
        return repr(text)
    sign = '"' if "'" in text and '"' not in text else "'"
    return sign + _ESCAPED.sub(lambda match: _escape(match[0], sign), text) + sign


_ESCAPED = re.compile(
    r"[\x00-\x1f'\\\x7f-\xa0\xad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u2066-\u206f\u3000\ufeff]"
)


def _escape(character: str, sign: str) -> str:
    if character == "'":
        return character if sign == '"' else "\\'"
    return repr(character)[1:-1]


def _room_beside(value: Any, room: int, depth: int = MAX_DEPTH) -> int:
    """What is left of `room` characters and values after this one; below zero, and counted no further, if it is none.

    Raises:
        TextTooLongError: It is nested deeper than `depth`.
    """
    if isinstance(value, str):
        return room - len(value) - 1
    if isinstance(value, (dict, list)):
        if not depth:
            raise TextTooLongError(f"a value nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict):
            room -= sum(map(len, value))
        for item in value.values() if isinstance(value, dict) else value:
            # Most are small: a call for each would cost more than all else.
            kind = type(item)
            if kind is int or kind is str or kind is bool:
                room -= len(item) + 1 if kind is str else 1
            else:
                room = _room_beside(item, room, depth - 1)
            if room < 0:
                break
    return room - 1


def measured(value: Any) -> tuple[int, int]:
    """Characters of a value's texts and names, and how many values there are in it."""
    characters = count = 0
    waiting = [value]
    while waiting:
        each = waiting.pop()
        count += 1
        if isinstance(each, str):
            characters += len(each)
        elif isinstance(each, dict):
            characters += sum(map(len, each))
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return characters, count


class Template:
    """A value with references in it. It is filled from its text each time: what is read of it is kept only if short.

    A program may have a million references. Read, each takes a hundred times the memory of its text.

    Args:
        value: Normal JSON.
    """

    __slots__ = ("_is_constant", "_value")

    def __init__(self, value: Any) -> None:
        self._value = value
        self._is_constant = not any("$" in text for text in _texts(value))

    @property
    def roots(self) -> frozenset[str]:
        """The first names of its references."""
        parts = (part for text in _texts(self._value) if "$" in text for part in _parts(text))
        return frozenset(part[1] for part in parts if not isinstance(part, str))

    def fill(self, lookup: Lookup) -> Any:
        """The value with its references resolved; parts without any are shared, not copied.

        Raises:
            TextTooLongError: It would be larger or deeper than values may be.
        """
        if self._is_constant:
            return self._value
        value = _filled(self._value, lookup)
        if _room_beside(value, MAX_FILLED) < 0:
            raise TextTooLongError(f"a value of more than {MAX_FILLED} characters and values")
        return value


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value, names aside."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _filled(value: Any, lookup: Lookup) -> Any:
    if isinstance(value, str):
        return _filled_text(value, lookup) if "$" in value else value
    if not isinstance(value, (dict, list)):
        return value
    changed = {}
    for place, item in value.items() if isinstance(value, dict) else enumerate(value):
        kind = type(item)
        # Most are these, and a call for each would cost more than all else.
        if kind is int or (kind is str and "$" not in item):
            continue
        if (new := _filled(item, lookup)) is not item:
            changed[place] = new
    if not changed:
        return value
    if isinstance(value, dict):
        return value | changed
    return [changed.get(place, item) for place, item in enumerate(value)]


def _filled_text(text: str, lookup: Lookup) -> Any:
    pieces: list[str] = []
    size = 0
    for part in _short_parts(text) if len(text) <= SHORT_CHARS else _parts(text):
        if isinstance(part, str):
            piece = part
        else:
            reference, root, path = part
            value = lookup(root, path)
            if reference == text:
                return text if value is MISSING else value
            piece = _piece(value, reference)
        size += len(piece)
        if size > MAX_TEXT_CHARS:
            raise TextTooLongError
        pieces.append(piece)
    return "".join(pieces)


def _parts(text: str) -> Iterator[_Part]:
    """What a text consists of: text, and references with their first names and the rest of their paths."""
    end = 0
    for match in _REFERENCE.finditer(text):
        if end < match.start():
            yield text[end : match.start()]
        end = match.end()
        if match[1] is None:
            yield "$"
        else:
            root, *rest = match[1].split(".")
            yield match[0], root, tuple(rest)
    if end < len(text):
        yield text[end:]


@functools.lru_cache(maxsize=512)
def _short_parts(text: str) -> tuple[_Part, ...]:
    return tuple(_parts(text))


def _piece(value: Any, reference: str) -> str:
    if value is MISSING:
        return reference
    # Before it is written: what is shared many times over is small only until then.
    if isinstance(value, (dict, list)) and _room_beside(value, MAX_TEXT_CHARS) < 0:
        raise TextTooLongError
    return written(value)
