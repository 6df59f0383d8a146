"""Lists of outcomes for whose items a script made its calls, one call an item: what a map is `over`.

The work is bounded: a loop of many calls between many lists has more pairs of them than anybody waits for.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.executions.programs.from_script.value_places import (
    GOES_ON,
    MAX_TEXT_CHARS,
    escaped,
    escaped_text,
    gives,
    key,
    parts,
)
from mcp_bridge.kernel.language.references import MISSING, Template, walk
from mcp_bridge.kernel.language.value_texts import written
from mcp_bridge.policy.secrets.vault_uris import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from mcp_bridge.executions.programs.from_script.value_places import Path, Place

MAX_LISTS = 200
"""Most lists that are tried as those of a map, the latest first."""

MAX_WORK = 5_000_000
"""Most work for one program: about as many microseconds. A list that is passed over counts as 1."""

_CALL_WORK = 4
"""For each of some calls, once a list of their number is looked for."""

_TRY_WORK = 40
"""For each of some calls, when a list is tried."""


_TEXT_WORK = 2
"""For each value of a list's first two items, when it is looked for within texts."""

MAX_MARKS = 200
"""Most values of an item that are looked for within one text."""

_FIRST_MARK = 0xE000
"""Characters from this on (of Unicode's private use area), seldom in texts, each stand for a value of an item there."""

_MARK = re.compile(f"([{chr(_FIRST_MARK)}-{chr(_FIRST_MARK + MAX_MARKS)}])")


class ItemMatch(NamedTuple):
    """Calls that were made for each item of a list.

    Attributes:
        place: Where the list is.
        args: The arguments of each call, by references to `$item`.
    """

    place: Place
    args: dict[str, Any]


class _List:
    """A list of an outcome."""

    __slots__ = ("_first", "_written", "items", "place")

    def __init__(self, place: Place, items: list[Any]) -> None:
        self.place = place
        self.items = items
        self._first: list[set[bytes]] | None = None
        self._written: list[set[str]] | None = None

    def may_have(self, first: Collection[bytes], second: Collection[bytes]) -> bool:
        """Whether its first item has one of some values, and its second one of others."""
        if self._first is None:
            self._first = [{key(part) for _, part in parts(item)} for item in self.items[:2]]
        return not self._first[0].isdisjoint(first) and not self._first[1].isdisjoint(second)

    @property
    def written(self) -> list[set[str]]:
        """The values of its first and of its second item, as they are written within texts."""
        if self._written is None:
            self._written = [
                {written(part) for _, part in parts(item) if _is_written(part)} - {""} for item in self.items[:2]
            ]
        return self._written


class ItemLists:
    """The lists of the outcomes that a script has had.

    Attributes:
        is_spent: Whether there was more to look at than is looked at.
    """

    def __init__(self) -> None:
        self._by_length: dict[int, list[_List]] = defaultdict(list)
        self._earliest: dict[int, int] = {}
        self._work = MAX_WORK
        self.is_spent = False

    def add(self, place: Place, items: list[Any]) -> None:
        """Make a list known, which has two items or more."""
        length = len(items)
        self._by_length[length].append(_List(place, items))
        self._earliest[length] = min(place.output.answered, self._earliest.get(length, place.output.answered))

    def lengths(self, asked: int) -> list[int]:
        """How many items the lists have that are known to a call whose entry has this number, the most first."""
        return sorted((length for length, answered in self._earliest.items() if answered < asked), reverse=True)

    def of_calls(self, calls: Sequence[dict[str, Any]], asked: int) -> ItemMatch | None:
        """The list for whose items calls were made; None if there is none.

        Args:
            calls: The arguments of each, in the order in which the calls were made; two or more.
            asked: The number of the first call's entry.
        """
        if not self._may_do(_CALL_WORK * len(calls)):
            return None
        # An item is only told by a value that isn't the same in all calls.
        varying = list(_varying(calls))
        first, second = {key(one) for one, _ in varying}, {key(other) for _, other in varying}
        alone = [
            (calls[0][name], calls[1].get(name))
            for name, value in calls[0].items()
            if not isinstance(value, (dict, list)) and any(key(call.get(name)) != key(value) for call in calls)
        ]
        known = (one for one in reversed(self._by_length[len(calls)]) if one.place.output.answered < asked)
        for _, one in zip(range(MAX_LISTS), known, strict=False):
            if not self._may_do(1):
                return None
            if not all(self._may_give(one, *pair) for pair in alone) or not (alone or one.may_have(first, second)):
                continue
            if not self._may_do(_TRY_WORK * len(calls)):
                return None
            template = _ItemTemplate(one.items).of(list(calls))
            if template is not MISSING and all(
                gives(template, arguments, functools.partial(_within, item))
                for arguments, item in zip(calls, one.items, strict=True)
            ):
                return ItemMatch(one.place, template)
        return None

    def _may_give(self, known: _List, first: Any, second: Any) -> bool:
        """Whether a list may give an argument of the first two calls: its items have it, or a part of its text."""
        if known.may_have({key(first)}, {key(second)}):
            return True
        if not all(isinstance(text, str) and len(text) <= MAX_TEXT_CHARS for text in (first, second)):
            return False
        return self._may_do(_TEXT_WORK * sum(map(len, known.written))) and all(
            any(part in text for part in of_item) for of_item, text in zip(known.written, (first, second), strict=True)
        )

    def _may_do(self, work: int) -> bool:
        self._work -= work
        self.is_spent = self.is_spent or self._work < 0
        return not self.is_spent


def _varying(values: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """What the first and the second have where not all have the same, as `_ItemTemplate` descends."""
    waiting: list[Sequence[Any]] = [values]
    while waiting:
        column = waiting.pop()
        first, keys = column[0], [key(value) for value in column]
        if all(one == keys[0] for one in keys):
            continue
        yield column[0], column[1]
        if all(isinstance(value, dict) and value.keys() == first.keys() for value in column):
            waiting += [[value[name] for value in column] for name in first]
        elif all(isinstance(value, list) and len(value) == len(first) for value in column):
            waiting += [[value[number] for value in column] for number in range(len(first))]


class _ItemTemplate:
    """Finds what the arguments of several calls have in common, each call being for one item of a list."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._columns: dict[bytes, Path] = {}
        self._written: list[tuple[list[str], Path]] = []
        """What is written of the items within texts: a text of each, and its place in them."""
        for path, _ in parts(items[0]):
            column = [walk(item, path, of_step=False) for item in items]
            if any(part is MISSING for part in column):
                continue
            self._columns.setdefault(key(column), path)
            if all(map(_is_written, column)):
                self._written.append(([written(part) for part in column], path))

    def of(self, values: list[dict[str, Any]]) -> Any:
        """The template of these arguments, those of a call each; MISSING if there is none that has an item in it.

        A sensitive value that all have in common has to come from the context, which no item knows.
        """
        # Not as a whole: a step's `args` are an object, though the items may have the same fields.
        template = self._of_objects(values)
        if any(REFERENCE.search(text) for text in _constant_texts(template)):
            return MISSING
        return template if template is not MISSING and _mentions_item(template) else MISSING

    def _of(self, values: list[Any]) -> Any:
        first = values[0]
        if all(key(value) == key(first) for value in values[1:]):
            return escaped(first)
        if (path := self._columns.get(key(values))) is not None:
            return ".".join(("$item", *path))
        if all(isinstance(value, dict) for value in values):
            return self._of_objects(values)
        if all(isinstance(value, list) and len(value) == len(first) for value in values):
            found = [self._of([value[number] for value in values]) for number in range(len(first))]
            return MISSING if any(part is MISSING for part in found) else found
        if all(isinstance(value, str) and len(value) <= MAX_TEXT_CHARS for value in values):
            return self._of_texts(values)
        return MISSING

    def _of_objects(self, values: list[dict[str, Any]]) -> Any:
        first = values[0]
        if any(value.keys() != first.keys() for value in values):
            return MISSING
        found = {name: self._of([value[name] for value in values]) for name in first}
        return MISSING if any(part is MISSING for part in found.values()) else found

    def _of_texts(self, values: list[str]) -> Any:
        """The template of texts that differ in what they have of the items alone."""
        if any(map(_MARK.search, values)):
            return MISSING
        within = [
            (texts, path) for texts, path in self._written if all(map(str.__contains__, values, texts)) and all(texts)
        ]
        # A short one may be a part of a longer one.
        within.sort(key=lambda one: -sum(map(len, one[0])))
        paths: list[Path] = []
        for texts, path in within[:MAX_MARKS]:
            mark = chr(_FIRST_MARK + len(paths))
            marked = [
                re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", mark, value)
                for text, value in zip(texts, values, strict=True)
            ]
            if all(mark in value for value in marked):
                values = marked
                paths.append(path)
        if any(value != values[0] for value in values):
            return MISSING
        template = ""
        pieces = _MARK.split(values[0])
        for number, piece in enumerate(pieces):
            if number % 2 == 0:
                template += escaped_text(piece)
            elif GOES_ON.match(pieces[number + 1]):
                return MISSING
            else:
                template += "$" + ".".join(("item", *paths[ord(piece) - _FIRST_MARK]))
        return template


def _is_written(value: Any) -> bool:
    """Whether a value is looked for within texts."""
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _constant_texts(template: Any) -> Iterator[str]:
    return (part for _, part in parts(template) if isinstance(part, str))


def _mentions_item(template: Any) -> bool:
    return "item" in Template(template).roots


def _within(item: Any, root: str, path: Path) -> Any:
    return walk(item, path, of_step=False) if root == "item" else MISSING
