"""`$name` and `$step.output.field`: how programs refer to their context and to the outputs of earlier steps.

A text that is one reference becomes the value itself. Within a longer text the value is written as Python's `str`
writes it, the names of objects in order. A reference that leads nowhere stays as it is; `$$` is a dollar sign. Lists
and objects are filled at any depth: their values, never their names.

Filling is bounded: otherwise a few references to a large value would make one that fits no memory, and each turn of a
loop a deeper one.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mcp_bridge.kernel.language.value_texts import written
from mcp_bridge.kernel.values import MAX_DEPTH

NAME = r"\w+(?:\.\w+)*"
QUOTED = r"""\[(?:'[^']*'|"[^"]*")\]"""
PATH = rf"(?:{NAME}|{QUOTED}(?:\.{NAME})?)(?:(?:\[[0-9]+\]|{QUOTED})(?:\.{NAME})?)*"
"""A reference after its dollar sign where it stands alone, as in a condition: `$a[0].b` is `$a.0.b`.

A name that isn't made of letters, digits and `_` alone is quoted there: `$['to-addr']`, `$a['content-type'].b`. In a
template such a quoted name is text, as an index in brackets is: programs that are recorded have such texts.
"""

WORD = re.compile(r"\w+")
"""A name, as a reference in a text has it."""

_NAMES = re.compile(r"""\[([0-9]+)\]|\['([^']*)'\]|\["([^"]*)"\]|(\w+)""")

_REFERENCE = re.compile(rf"\$(?:\$|({NAME}))")
WHOLE = re.compile(rf"\$({NAME})")
"""A text that is one reference, as templates have it."""

MAX_TEXT_CHARS = 4 << 20
"""Longest text that filling may make."""

MAX_FILLED = 8 << 20
"""Largest value that filling may make: characters of texts and names, and one for each value."""

SHORT_CHARS = 200
"""Longest text, or condition, of which the parsed form is cached."""

STANDALONE = re.compile(rf"\${PATH}")
"""A text that is one reference, written as `over`, `seconds` and conditions may have it."""

_TOO_LARGE = f"a value of more than {MAX_FILLED} characters and values"

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
    return tuple(match[match.lastindex or 0] for match in _NAMES.finditer(reference))


def written_path(names: Iterable[str]) -> str:
    """A reference as a condition has it, from its names: those are quoted that couldn't stand there otherwise."""
    text = ""
    for name in names:
        if WORD.fullmatch(name):
            text += f".{name}" if text else name
        else:
            text += f'["{name}"]' if "'" in name else f"['{name}']"
    return f"${text}"


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


def _room_beside(value: Any, room: int, depth: int = MAX_DEPTH) -> int:
    """What is left of `room` (characters and values) beside this value; below zero if it is too large.

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
            # Most items are small, and a call for each would cost more than all else.
            kind = type(item)
            if kind is int or kind is str or kind is bool:
                room -= len(item) + 1 if kind is str else 1
            else:
                room = _room_beside(item, room, depth - 1)
            if room < 0:
                break
    return room - 1


def measured(value: Any) -> tuple[int, int]:
    """The size of a value: characters of its texts and names, and the number of values in it."""
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


_Fields = tuple[tuple[str, str, tuple[str, ...]], ...]
"""Fields that are one reference each: the field's name, the reference's first name, and the rest of its path."""

_UNREAD: _Fields = (("", "", ()),)

_FEW_FIELDS = 8
"""Most fields of an object that is kept as `_Fields`."""


class Template:
    """A value with references in it.

    Its texts are parsed each time that it is filled; only short ones are cached, and the fields of small objects. A
    program may have a million references, and each takes a hundred times the memory of its text when it is parsed.

    Args:
        value: Normal JSON.
    """

    __slots__ = ("_fields", "_value")

    def __init__(self, value: Any) -> None:
        self._value = value
        self._fields: _Fields | None = _UNREAD if any("$" in text for text in _texts(value)) else None
        """See `_fields_of`, when it is first filled; `_UNREAD` until then, and None where it has no reference."""

    @property
    def roots(self) -> frozenset[str]:
        """The first names of its references."""
        parts = (part for text in _texts(self._value) if "$" in text for part in _parts(text))
        return frozenset(part[1] for part in parts if not isinstance(part, str))

    @property
    def reference(self) -> tuple[str, tuple[str, ...]] | None:
        """First name and path of the one reference that the value is; None for any other value."""
        parts = list(_parts(self._value)) if isinstance(self._value, str) else []
        return (parts[0][1], parts[0][2]) if len(parts) == 1 and not isinstance(parts[0], str) else None

    @property
    def whole_references(self) -> frozenset[str]:
        """Its texts that are one reference each."""
        return frozenset(text for text in _texts(self._value) if WHOLE.fullmatch(text))

    def lone_reference(self, field: str) -> str | None:
        """The text of a field, if the value is an object and that text is one reference."""
        text = self._value.get(field) if isinstance(self._value, dict) else None
        return text if isinstance(text, str) and WHOLE.fullmatch(text) else None

    def fill(self, lookup: Lookup) -> Any:
        """The value with its references resolved; parts without any are shared, not copied.

        Raises:
            TextTooLongError: It would be larger or deeper than values may be.
        """
        fields, value = self._fields, self._value
        if fields is None:
            return value
        if fields is _UNREAD:
            fields = self._fields = _fields_of(value)
        if fields:
            filled = value.copy()
            characters, is_flat = 0, True
            for name, root, path in fields:
                item = lookup(root, path)
                if item is not MISSING:
                    filled[name] = item
                    kind = type(item)
                    if kind is str:
                        characters += len(item)
                    elif kind is dict or kind is list:
                        is_flat = False
            # A few short names and texts don't matter beside what is looked at here.
            is_small = is_flat and characters <= MAX_TEXT_CHARS
        else:
            filled = _filled(value, lookup)
            is_small = type(filled) is str and len(filled) <= MAX_TEXT_CHARS
        if not is_small and _room_beside(filled, MAX_FILLED) < 0:
            raise TextTooLongError(_TOO_LARGE)
        return filled


class LoneReference(Template):
    """A reference that stands alone, with names in quotes: `$a['content-type']`, which is text in other templates."""

    __slots__ = ()

    @property
    def roots(self) -> frozenset[str]:
        """As `Template.roots`."""
        return frozenset({self.reference[0]})

    @property
    def reference(self) -> tuple[str, tuple[str, ...]]:
        """As `Template.reference`."""
        root, *path = names_of(self._value)
        return root, tuple(path)

    def fill(self, lookup: Lookup) -> Any:
        """The value; or the text, if it leads nowhere."""
        value = lookup(*self.reference)
        if value is MISSING:
            return self._value
        if _room_beside(value, MAX_FILLED) < 0:
            raise TextTooLongError(_TOO_LARGE)
        return value


def lone(value: Any) -> Template:
    """The template of what may be a text that is one reference, as `STANDALONE` has it, or any other value.

    Its indices are those of templates: `$a[0]` becomes `$a.0`.
    """
    if not isinstance(value, str) or not STANDALONE.fullmatch(value):
        return Template(value)
    names = names_of(value)
    return Template("$" + ".".join(names)) if all(map(WORD.fullmatch, names)) else LoneReference(value)


def _fields_of(value: Any) -> _Fields:
    """The references of a small flat object whose texts are one reference each, or have none; else nothing."""
    if type(value) is not dict or len(value) > _FEW_FIELDS:
        return ()
    found = []
    for name, item in value.items():
        if isinstance(item, (dict, list)) or len(name) > SHORT_CHARS:
            return ()
        if isinstance(item, str):
            if len(item) > SHORT_CHARS:
                return ()
            if "$" in item:
                first, *more = _short_parts(item)
                if more or isinstance(first, str):
                    return ()
                found.append((name, first[1], first[2]))
    return tuple(found)


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
    kind = type(value)
    if kind is str:
        return _filled_text(value, lookup) if "$" in value else value
    if kind is not dict and kind is not list:
        return value
    changed = {}
    for place, item in value.items() if isinstance(value, dict) else enumerate(value):
        kind = type(item)
        # Most items are these, and a call for each would cost more than all else.
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
            piece = value if type(value) is str else _piece(value, reference)
        size += len(piece)
        if size > MAX_TEXT_CHARS:
            raise TextTooLongError
        pieces.append(piece)
    return "".join(pieces)


def _parts(text: str) -> Iterator[_Part]:
    """The parts of a text: texts, and references with their first names and the rest of their paths."""
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
    # Before it is written: a value that has one part many times is small in memory, and large as a text.
    if isinstance(value, (dict, list)) and _room_beside(value, MAX_TEXT_CHARS) < 0:
        raise TextTooLongError
    return written(value)
