"""Where the values of a call's arguments came from: outcomes of earlier calls, or the script's own text.

A value that the script has written out is the script's. Any other value that an earlier outcome has came from there:
of several the one whose field has the argument's name, else the latest. Values that are everywhere (`true`, small
numbers) count only under the argument's name. A text is taken apart by the script's f-strings.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mcp_bridge.kernel.language.references import MISSING, Template, TextTooLongError, walk
from mcp_bridge.kernel.language.value_texts import written
from mcp_bridge.kernel.values import canonical
from mcp_bridge.policy.secrets.vault_uris import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

MAX_VALUES = 20_000
"""Most values of one outcome that are looked at."""

MAX_TEXT_CHARS = 20_000
"""Longest text that is taken apart."""

MAX_TEXTS = 5000
"""Most texts and numbers of outcomes that are looked for within a text."""

MAX_LISTS = 200
"""Most lists that are tried as those of a map."""

MIN_PART_CHARS = 4
"""Shortest text that is looked for within another, where no f-string says where to look."""

MIN_PART_DIGITS = 3
"""The same for numbers."""

MIN_FIXED_CHARS = 2
"""Fewest fixed characters of an f-string by which its texts are recognised."""

_SMALL = 10
"""Numbers below this are everywhere."""

_NAME = re.compile(r"\w+")
"""A name that a reference can have."""

_GOES_ON = re.compile(r"\w|\.\w")
"""What follows a reference in a text and would be read as a part of it."""

Path: TypeAlias = tuple[str, ...]

Pieces: TypeAlias = "tuple[str | None, ...]"
"""An f-string: its texts, and None for each value between them."""


class MapTemplate(NamedTuple):
    """The arguments of calls that were made for each item of a list.

    Attributes:
        over: The reference to the list.
        args: The arguments of each call, by references to `$item`.
    """

    over: str
    args: dict[str, Any]


class _Output(NamedTuple):
    """The outcome of an earlier call.

    Attributes:
        of: Whose it is.
        root: The path by which it is referred to, from the step's id on.
        answered: The number of its entry: only calls that were made after it can have it.
        value: What it is.
    """

    of: str
    root: Path
    answered: int
    value: Any


class _Place(NamedTuple):
    """A value within an outcome.

    Attributes:
        output: The outcome.
        path: Its place there.
    """

    output: _Output
    path: Path

    @property
    def reference(self) -> str:
        """How a program refers to it."""
        return "$" + ".".join(self.output.root + self.path)

    def rank(self, name: str) -> tuple[bool, int, int]:
        """How likely it is the source of an argument of this name."""
        return _is_named(self.path, name), self.output.answered, -len(self.path)


class ArgumentSources:
    """The values that a script could have known, as far as it has gone.

    Args:
        code: The script.
        taken: The ids of the program's steps.

    Attributes:
        context: What the program's context must give, by name: sensitive values whose source isn't known.
        entered: The calls whose outcomes a reference leads into.
    """

    def __init__(self, code: str, taken: Collection[str]) -> None:
        self._constants, self._f_strings = _of_code(code)
        self._taken = taken
        self.context: dict[str, str] = {}
        self.entered: set[str] = set()
        self._outputs: dict[Path, _Output] = {}
        self._places: dict[bytes, list[_Place]] = defaultdict(list)
        self._texts: dict[str, list[_Place]] = defaultdict(list)
        self._lists: list[tuple[_Place, list[Any]]] = []

    def add(self, of: str, root: Path, answered: int, value: Any, text: str | None = None) -> None:
        """Make an outcome known to the calls after it.

        Args:
            of: A name for the call.
            root: The id of its step, and what follows it in a reference to the outcome.
            answered: The number of its entry.
            value: The outcome.
            text: The text that it is parsed from, or None. An argument with this text isn't made of its parts.
        """
        output = self._outputs[root] = _Output(of, root, answered, value)
        if text is not None:
            self._places[_key(text)].append(_Place(output, ()))
        for path, part in _parts(value):
            place = _Place(output, path)
            self._places[_key(part)].append(place)
            if isinstance(part, list) and len(part) > 1:
                self._lists.append((place, part))
            elif isinstance(part, (str, int, float)) and not isinstance(part, bool):
                self._texts[written(part)].append(place)

    def template(self, arguments: dict[str, Any], asked: int) -> dict[str, Any]:
        """Arguments with references in the place of what came from earlier outcomes.

        Args:
            arguments: As they were recorded.
            asked: The number of the call's entry.
        """
        return {name: self._of(value, name, asked) for name, value in arguments.items()}

    def map_template(self, calls: Sequence[dict[str, Any]], asked: int) -> MapTemplate | None:
        """The arguments of calls, one for each item of a list of an earlier outcome; None if they are no such calls.

        Args:
            calls: The arguments of each, in the order in which the calls were made.
            asked: The number of the first call's entry.
        """
        known = [(place, items) for place, items in self._lists if place.output.answered < asked]
        for place, items in [row for row in reversed(known) if len(row[1]) == len(calls)][:MAX_LISTS]:
            template = _ItemTemplate(items, self._constants).of(list(calls))
            if template is not MISSING and all(
                _gives(template, arguments, functools.partial(_within, item))
                for arguments, item in zip(calls, items, strict=True)
            ):
                self._enter(place)
                return MapTemplate(place.reference, template)
        return None

    def list_lengths(self, asked: int) -> set[int]:
        """How many items the lists have that are known to a call whose entry has this number."""
        return {len(items) for place, items in self._lists if place.output.answered < asked}

    def _of(self, value: Any, name: str, asked: int) -> Any:
        """A template which, filled in, gives the value."""
        if isinstance(value, (dict, list)):
            if value and (place := self._find(value, name, asked)) is not None:
                return self._referred(place, value)
            if isinstance(value, dict):
                return {inner: self._of(part, inner, asked) for inner, part in value.items()}
            return [self._of(part, name, asked) for part in value]
        if (place := self._find(value, name, asked)) is not None:
            return self._referred(place, value)
        return self._text(value, name, asked) if isinstance(value, str) else value

    def _referred(self, place: _Place, value: Any) -> Any:
        if not _gives(place.reference, value, self._look_up):
            return _escaped(value)
        self._enter(place)
        return place.reference

    def _enter(self, place: _Place) -> None:
        if place.path:
            self.entered.add(place.output.of)

    def _look_up(self, root: str, path: Path) -> Any:
        for length in (0, 1):
            if (output := self._outputs.get((root, *path[:length]))) is not None:
                return walk(output.value, path[length:], of_step=True)
        return MISSING

    def _find(self, value: Any, name: str, asked: int) -> _Place | None:
        """The outcome that a value came from."""
        if self._is_written(value):
            return None
        places = [place for place in self._places.get(_key(value), ()) if place.output.answered < asked]
        best = max(places, key=lambda place: place.rank(name), default=None)
        return None if best is None or (_is_everywhere(value) and not _is_named(best.path, name)) else best

    def _is_written(self, value: Any) -> bool:
        """Whether the script has this value as a constant."""
        return not isinstance(value, (dict, list)) and (type(value), value) in self._constants

    def _text(self, text: str, name: str, asked: int) -> str:
        """A template for a text that isn't an outcome as a whole."""
        if REFERENCE.search(text):
            return self._from_context(text, name)
        if self._is_written(text) or len(text) > MAX_TEXT_CHARS:
            return _escaped_text(text)
        for pieces in self._f_strings:
            # Longer ones come first.
            if (values := _split(text, pieces)) is not None:
                between = iter(values)
                parts = [(next(between), True) if piece is None else (piece, False) for piece in pieces]
                break
        else:
            parts = self._cut(text, asked)
        template = "".join(self._part(parts, number, asked) for number in range(len(parts)))
        return template if _gives(template, text, self._look_up) else _escaped_text(text)

    def _part(self, parts: list[tuple[str, bool]], number: int, asked: int) -> str:
        """The part of a text: a reference if it is a value, and what follows wouldn't be read as a part of it."""
        text, is_value = parts[number]
        places = [place for place in self._texts.get(text, ()) if place.output.answered < asked] if is_value else []
        follows = parts[number + 1][0] if number + 1 < len(parts) else ""
        if not places or _GOES_ON.match(follows):
            return _escaped_text(text)
        place = max(places, key=lambda place: place.rank(""))
        self._enter(place)
        return place.reference

    def _cut(self, text: str, asked: int) -> list[tuple[str, bool]]:
        """A text, cut at values of earlier outcomes that are long enough to be told from chance."""
        if len(self._texts) > MAX_TEXTS:
            return [(text, False)]
        known = [
            found
            for found, places in self._texts.items()
            if _is_telling(found) and found in text and any(place.output.answered < asked for place in places)
        ]
        if not known:
            return [(text, False)]
        either = "|".join(re.escape(found) for found in sorted(known, key=len, reverse=True)[:MAX_LISTS])
        pieces = re.split(rf"(?<!\w)({either})(?!\w)", text)
        return [(piece, number % 2 == 1) for number, piece in enumerate(pieces) if piece]

    def _from_context(self, value: str, name: str) -> str:
        """A reference to the context for a sensitive value, which only the script's execution can resolve."""
        plain = re.sub(r"\W", "_", name) or "value"
        number, free = 1, plain
        while free in self._taken or self.context.get(free, value) != value:
            number += 1
            free = f"{plain}_{number}"
        self.context[free] = value
        return f"${free}"


class _ItemTemplate:
    """Finds what the arguments of several calls have in common, each call being for one item of a list."""

    def __init__(self, items: Sequence[Any], constants: Collection[tuple[type, Any]]) -> None:
        self._constants = constants
        self._columns: dict[bytes, Path] = {}
        for path, _ in _parts(items[0]):
            column = [walk(item, path, of_step=False) for item in items]
            if not any(part is MISSING for part in column):
                self._columns.setdefault(_key(column), path)

    def of(self, values: list[Any]) -> Any:
        """The template of these values, one a call; MISSING if there is none that has an item in it.

        A sensitive value that all have in common has to come from the context, which no item knows.
        """
        template = self._of(values)
        if any(REFERENCE.search(text) for text in _constant_texts(template)):
            return MISSING
        return template if template is not MISSING and _mentions_item(template) else MISSING

    def _of(self, values: list[Any]) -> Any:
        first = values[0]
        if all(_key(value) == _key(first) for value in values[1:]):
            return _escaped(first)
        if (path := self._columns.get(_key(values))) is not None:
            return ".".join(("$item", *path))
        if all(isinstance(value, dict) and value.keys() == first.keys() for value in values):
            parts: Any = {name: self._of([value[name] for value in values]) for name in first}
            return MISSING if any(part is MISSING for part in parts.values()) else parts
        if all(isinstance(value, list) and len(value) == len(first) for value in values):
            parts = [self._of([value[number] for value in values]) for number in range(len(first))]
            return MISSING if any(part is MISSING for part in parts) else parts
        return MISSING


def _constant_texts(template: Any) -> Iterator[str]:
    return (part for _, part in _parts(template) if isinstance(part, str))


def _mentions_item(template: Any) -> bool:
    return "item" in Template(template).roots


def _within(item: Any, root: str, path: Path) -> Any:
    return walk(item, path, of_step=False) if root == "item" else MISSING


def _gives(template: Any, value: Any, look_up: Callable[[str, Path], Any]) -> bool:
    """Whether a template, filled in, is the value."""
    try:
        return _key(Template(template).fill(look_up)) == _key(value)
    except TextTooLongError:
        return False


def _key(value: Any) -> bytes:
    """Equal for equal values; texts and numbers are never equal."""
    return canonical(value)


def _escaped_text(text: str) -> str:
    return text.replace("$", "$$")


def _escaped(value: Any) -> Any:
    """A template without references for a value."""
    if isinstance(value, str):
        return _escaped_text(value)
    if isinstance(value, dict):
        return {name: _escaped(part) for name, part in value.items()}
    return [_escaped(part) for part in value] if isinstance(value, list) else value


def _parts(value: Any) -> Iterator[tuple[Path, Any]]:
    """The values in a value that a reference can lead to, with their places, the value itself first."""
    waiting: list[tuple[Path, Any]] = [((), value)]
    for _ in range(MAX_VALUES):
        if not waiting:
            return
        path, part = waiting.pop()
        yield path, part
        named: Iterable[tuple[str, Any]] = ()
        if isinstance(part, dict):
            named = ((name, inner) for name, inner in part.items() if _NAME.fullmatch(name))
        elif isinstance(part, list):
            named = ((str(number), inner) for number, inner in enumerate(part))
        waiting += [((*path, name), inner) for name, inner in named][::-1]


def _is_named(path: Path, name: str) -> bool:
    """Whether the field at the end of a path has the name of an argument, or one that ends with the other."""
    field = next((part for part in reversed(path) if not part.isdecimal()), "")
    one, other = (re.sub(r"[\W_]", "", text).lower() for text in (field, name))
    return min(len(one), len(other)) > 1 and (one.endswith(other) or other.endswith(one))


def _is_everywhere(value: Any) -> bool:
    """Whether a value is found so often that an equal one tells nothing."""
    if isinstance(value, str):
        return len(value) < 2  # noqa: PLR2004  (a character)
    if isinstance(value, (bool, type(None))):
        return True
    return isinstance(value, (int, float)) and abs(value) < _SMALL


def _is_telling(text: str) -> bool:
    """Whether a value is long enough to be looked for within a text."""
    return len(text) >= (MIN_PART_DIGITS if text.isdecimal() else MIN_PART_CHARS)


def _of_code(code: str) -> tuple[set[tuple[type, Any]], list[Pieces]]:
    """The constants of a script, with their types, and its f-strings. Nothing of code that can't be parsed."""
    constants: set[tuple[type, Any]] = set()
    f_strings: list[Pieces] = []
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return constants, f_strings
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = tuple(str(part.value) if isinstance(part, ast.Constant) else None for part in node.values)
            if _fixed_chars(pieces) >= MIN_FIXED_CHARS:
                f_strings.append(pieces)
        elif isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float)):
            constants.add((type(node.value), node.value))
            if not isinstance(node.value, (str, bool)):
                constants.add((type(node.value), -node.value))
    return constants, sorted(f_strings, key=_fixed_chars, reverse=True)


def _fixed_chars(pieces: Pieces) -> int:
    """The characters of an f-string that are in each text that it makes."""
    return sum(len(piece) for piece in pieces if piece)


def _split(text: str, pieces: Pieces) -> list[str] | None:
    """The values that an f-string would have for this text, each as short as it can be; None if it isn't of it."""
    values: list[str] = []
    at = 0
    for number, piece in enumerate(pieces):
        if piece is None:
            fixed = next((later for later in pieces[number + 1 :]), "")
            is_end = number + 1 == len(pieces)
            end = len(text) if is_end else text.find(fixed, at) if fixed else -1
            if number + 2 == len(pieces) and fixed and text.endswith(fixed):
                # The last text of an f-string ends the whole.
                end = len(text) - len(fixed)
            if end < at:
                return None
            values.append(text[at:end])
            at = end
        elif text.startswith(piece, at):
            at += len(piece)
        else:
            return None
    return values if at == len(text) and values else None
