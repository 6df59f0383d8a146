"""Where the values of a call's arguments came from: outcomes of earlier calls, or the script's own text.

A value that the script has written out is the script's. Any other value that an earlier outcome has came from there:
of several the one whose field has the argument's name, else the latest. Values that are everywhere (`true`, small
numbers) count only under the argument's name. A text is taken apart by the script's f-strings.
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mcp_bridge.executions.programs.from_script.item_lists import ItemLists
from mcp_bridge.executions.programs.from_script.value_places import (
    GOES_ON,
    MAX_TEXT_CHARS,
    Output,
    Place,
    escaped,
    escaped_text,
    gives,
    is_named,
    key,
    parts,
)
from mcp_bridge.kernel.language.references import MISSING, walk
from mcp_bridge.kernel.language.value_texts import written
from mcp_bridge.policy.secrets.vault_uris import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mcp_bridge.executions.programs.from_script.item_lists import ItemMatch
    from mcp_bridge.executions.programs.from_script.value_places import Path

MAX_TEXTS = 5000
"""Most texts and numbers of outcomes that are looked for within a text."""

MAX_CUTS = 200
"""Most values at which one text is cut, the longest first."""

MAX_PLACES = 200
"""Most places of one value that are compared, the latest ones."""

MAX_COPY_CHARS = 40
"""Most characters of a value in a remark."""

MIN_PART_CHARS = 4
"""Shortest text that is looked for within another, where no f-string says where to look."""

MIN_PART_DIGITS = 3
"""The same for numbers."""

MIN_FIXED_CHARS = 2
"""Fewest fixed characters of an f-string by which its texts are recognised."""

_SMALL = 10
"""Numbers below this are everywhere."""

_WORD = re.compile(r"\w+")

Pieces: TypeAlias = "tuple[str | None, ...]"
"""An f-string: its texts, and None for each value between them."""


class Code(NamedTuple):
    """A script, or a cell.

    Attributes:
        began: The number of its first entry.
        text: What it is.
    """

    began: int
    text: str


class ArgumentSources:
    """The values that a script could have known, as far as it has gone.

    Args:
        codes: The script; or the cells of a session, in order.
        taken: The ids of the program's steps.

    Attributes:
        context: What the program's context must give, by name: sensitive values whose source isn't known.
        entered: The calls whose outcomes a reference leads into.
        copied: What the code has written out, and an earlier cell, or a call before, was given; with its place there.
        lists: The lists of outcomes.
    """

    def __init__(self, codes: Sequence[Code], taken: Collection[str]) -> None:
        self._constants: dict[tuple[type, Any], int] = {}
        """Where each was first written: the number of its code's first entry."""
        self._f_strings: list[Pieces] = []
        for code in codes:
            constants, f_strings = _of_code(code.text)
            self._f_strings += f_strings
            for constant in constants:
                self._constants.setdefault(constant, code.began)
        # Longer ones come first.
        self._f_strings.sort(key=_fixed_chars, reverse=True)
        self._taken = taken
        self._is_one_script = len(codes) == 1
        self.copied: dict[str, str] = {}
        self.lists = ItemLists()
        self.context: dict[str, str] = {}
        self.entered: set[str] = set()
        self._outputs: dict[Path, Output] = {}
        self._places: dict[bytes, list[Place]] = defaultdict(list)
        self._texts: dict[str, list[Place]] = defaultdict(list)
        self._texts_of: dict[str, list[str]] = defaultdict(list)
        """The texts that are telling, by their first word."""

    def add(self, of: str, root: Path, answered: int, value: Any, text: str | None = None) -> None:
        """Make an outcome known to the calls after it.

        Args:
            of: A name for the call.
            root: The id of its step, and what follows it in a reference to the outcome.
            answered: The number of its entry.
            value: The outcome.
            text: The text that it is parsed from, or None. An argument with this text isn't made of its parts.
        """
        output = self._outputs[root] = Output(of, root, answered, value)
        if text is not None:
            self._places[key(text)].append(Place(output, ()))
        for path, part in parts(value):
            place = Place(output, path)
            self._places[key(part)].append(place)
            if isinstance(part, list) and len(part) > 1:
                self.lists.add(place, part)
            elif isinstance(part, (str, int, float)) and not isinstance(part, bool):
                self._add_text(written(part), place)

    def _add_text(self, text: str, place: Place) -> None:
        if text not in self._texts and _is_telling(text):
            self._texts_of[_first_word(text)].append(text)
        self._texts[text].append(place)

    def template(self, arguments: dict[str, Any], asked: int) -> dict[str, Any]:
        """Arguments with references in the place of what came from earlier outcomes.

        Args:
            arguments: As they were recorded.
            asked: The number of the call's entry.
        """
        return {name: self._of(value, name, asked) for name, value in arguments.items()}

    def map_template(self, calls: Sequence[dict[str, Any]], asked: int) -> ItemMatch | None:
        """The arguments of calls, one for each item of a list of an earlier outcome; None if they are no such calls.

        Args:
            calls: The arguments of each, in the order in which the calls were made.
            asked: The number of the first call's entry.
        """
        found = self.lists.of_calls(calls, asked)
        if found is not None:
            # As a whole, too: a text that is a list of JSON has to be parsed.
            self.entered.add(found.place.output.of)
        return found

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

    def _referred(self, place: Place, value: Any) -> Any:
        if not gives(place.reference, value, self._look_up):
            return escaped(value)
        self._enter(place)
        return place.reference

    def _enter(self, place: Place) -> None:
        if place.path:
            self.entered.add(place.output.of)

    def _look_up(self, root: str, path: Path) -> Any:
        for length in (0, 1):
            if (output := self._outputs.get((root, *path[:length]))) is not None:
                return walk(output.value, path[length:], of_step=True)
        return MISSING

    def _find(self, value: Any, name: str, asked: int) -> Place | None:
        """The outcome that a value came from."""
        written_at = self._written_at(value, asked)
        best = _best(self._places.get(key(value), ()), name, asked if written_at is None else written_at)
        if written_at is None:
            return None if best is None or (_is_everywhere(value) and not is_named(best.path, name)) else best
        if best is None and self._is_one_script:
            # The script may have been written with what a call would give it.
            best = _best(self._places.get(key(value), ()), name, asked)
        if best is not None and _is_telling(written(value)):
            self.copied[json.dumps(value)[:MAX_COPY_CHARS]] = best.reference
        return None

    def _written_at(self, value: Any, asked: int) -> int | None:
        """The first entry of the code that has this value as a constant; None if none has it that had begun."""
        if isinstance(value, (dict, list)):
            return None
        began = self._constants.get((type(value), value))
        return began if began is not None and began < asked else None

    def _text(self, text: str, name: str, asked: int) -> str:
        """A template for a text that isn't an outcome as a whole."""
        if REFERENCE.search(text):
            return self._from_context(text, name)
        if self._written_at(text, asked) is not None or len(text) > MAX_TEXT_CHARS:
            return escaped_text(text)
        for pieces in self._f_strings:
            if (values := _split(text, pieces)) is not None:
                between = iter(values)
                pieces_of = [(next(between), True) if piece is None else (piece, False) for piece in pieces]
                break
        else:
            pieces_of = self._cut(text, asked)
        template = "".join(self._part(pieces_of, number, asked) for number in range(len(pieces_of)))
        return template if gives(template, text, self._look_up) else escaped_text(text)

    def _part(self, pieces: Sequence[tuple[str, bool]], number: int, asked: int) -> str:
        """The part of a text: a reference if it is a value, and what follows wouldn't be read as a part of it."""
        text, is_value = pieces[number]
        place = _best(self._texts.get(text, ()), "", asked) if is_value else None
        follows = pieces[number + 1][0] if number + 1 < len(pieces) else ""
        if place is None or GOES_ON.match(follows):
            return escaped_text(text)
        self._enter(place)
        return place.reference

    def _cut(self, text: str, asked: int) -> list[tuple[str, bool]]:
        """A text, cut at values of earlier outcomes that are long enough to be told from chance."""
        if len(self._texts) > MAX_TEXTS:
            return [(text, False)]
        # A value that is in the text between words has its own first word there.
        words = {"", *_WORD.findall(text)}
        known = [
            found
            for word in words
            for found in self._texts_of.get(word, ())
            if found in text and any(place.output.answered < asked for place in self._texts[found])
        ]
        if not known:
            return [(text, False)]
        either = "|".join(re.escape(found) for found in sorted(known, key=lambda one: (-len(one), one))[:MAX_CUTS])
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


def _best(places: Sequence[Place], name: str, asked: int) -> Place | None:
    """Of the places that were known at an entry, the likeliest source of an argument of this name."""
    known = (place for place in reversed(places) if place.output.answered < asked)
    latest = list(itertools.islice(known, MAX_PLACES))
    return max(reversed(latest), key=lambda place: place.rank(name), default=None)


def _first_word(text: str) -> str:
    found = _WORD.search(text)
    return "" if found is None else found[0]


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
        # As the guest runs it.
        tree = ast.parse(code.removeprefix("\ufeff"))
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
    return constants, f_strings


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
