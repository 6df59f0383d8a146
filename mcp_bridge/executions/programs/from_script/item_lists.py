"""Lists of outcomes for whose items a script made its calls, one call an item: what a map is `over`.

The work is bounded: a loop of many calls between many lists has more pairs of them than anybody waits for.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.executions.programs.from_script.value_places import escaped, gives, key, parts
from mcp_bridge.kernel.language.references import MISSING, Template, walk
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

    __slots__ = ("_first", "items", "place")

    def __init__(self, place: Place, items: list[Any]) -> None:
        self.place = place
        self.items = items
        self._first: list[set[bytes]] | None = None

    def may_have(self, first: Collection[bytes], second: Collection[bytes]) -> bool:
        """Whether its first item has one of some values, and its second one of others."""
        if self._first is None:
            self._first = [{key(part) for _, part in parts(item)} for item in self.items[:2]]
        return not self._first[0].isdisjoint(first) and not self._first[1].isdisjoint(second)


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
        first, second = {one for one, _ in varying}, {other for _, other in varying}
        known = (one for one in reversed(self._by_length[len(calls)]) if one.place.output.answered < asked)
        for _, one in zip(range(MAX_LISTS), known, strict=False):
            if not self._may_do(1):
                return None
            if not one.may_have(first, second):
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

    def _may_do(self, work: int) -> bool:
        self._work -= work
        self.is_spent = self.is_spent or self._work < 0
        return not self.is_spent


def _varying(values: Sequence[Any]) -> Iterator[tuple[bytes, bytes]]:
    """The keys of what the first and the second have where not all have the same, as `_ItemTemplate` descends."""
    waiting: list[Sequence[Any]] = [values]
    while waiting:
        column = waiting.pop()
        first, keys = column[0], [key(value) for value in column]
        if all(one == keys[0] for one in keys):
            continue
        yield keys[0], keys[1]
        if all(isinstance(value, dict) and value.keys() == first.keys() for value in column):
            waiting += [[value[name] for value in column] for name in first]
        elif all(isinstance(value, list) and len(value) == len(first) for value in column):
            waiting += [[value[number] for value in column] for number in range(len(first))]


class _ItemTemplate:
    """Finds what the arguments of several calls have in common, each call being for one item of a list."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._columns: dict[bytes, Path] = {}
        for path, _ in parts(items[0]):
            column = [walk(item, path, of_step=False) for item in items]
            if not any(part is MISSING for part in column):
                self._columns.setdefault(key(column), path)

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
        if all(key(value) == key(first) for value in values[1:]):
            return escaped(first)
        if (path := self._columns.get(key(values))) is not None:
            return ".".join(("$item", *path))
        if all(isinstance(value, dict) and value.keys() == first.keys() for value in values):
            found: Any = {name: self._of([value[name] for value in values]) for name in first}
            return MISSING if any(part is MISSING for part in found.values()) else found
        if all(isinstance(value, list) and len(value) == len(first) for value in values):
            found = [self._of([value[number] for value in values]) for number in range(len(first))]
            return MISSING if any(part is MISSING for part in found) else found
        return MISSING


def _constant_texts(template: Any) -> Iterator[str]:
    return (part for _, part in parts(template) if isinstance(part, str))


def _mentions_item(template: Any) -> bool:
    return "item" in Template(template).roots


def _within(item: Any, root: str, path: Path) -> Any:
    return walk(item, path, of_step=False) if root == "item" else MISSING
