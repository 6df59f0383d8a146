"""Search for many literal texts in one pass."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mcp_bridge.policy.redaction.windows import matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GRAM = 4
"""Characters by which a text is recognised; texts must have at least as many."""

_FREQUENT = " etaoinsrhldcumfpgwybvk"
"""Characters of ordinary text, the commonest first."""

_MARGIN = 4

T = TypeVar("T")


class Literals(Generic[T]):
    """Finds candidates for any of a set of texts.

    An alternation of hundreds of texts costs as much at each character as it has different beginnings. So each text is
    recognised by four characters out of it, its anchor, chosen so that all anchors begin with one of few characters,
    and seldom ones: nearly all of a text is then passed over by the search for a set of characters. What an anchor is
    found for is left to compare.

    Args:
        texts: The texts, each of at least GRAM characters, with the data to return for it.
    """

    def __init__(self, texts: Mapping[str, T]) -> None:
        self._at: dict[str, list[tuple[int, str, T]]] = {}
        heads = _heads(texts)
        for text, about in texts.items():
            place = min(place for place in _places(text) if text[place] in heads)
            self._at.setdefault(text[place : place + GRAM], []).append((place, text, about))
        by_head: dict[str, dict[str, Any]] = {}
        for gram in sorted(self._at):
            node: dict[str, Any] = by_head
            for char in gram:
                node = node.setdefault(char, {})
        # The rest of an anchor is a lookahead, so that no anchor hides another that begins inside it.
        self._anchors = re.compile("|".join(f"{re.escape(head)}(?={_tree(rest)})" for head, rest in by_head.items()))

    def candidates(self, text: str) -> Iterator[tuple[int, int, str, T]]:
        """Everything that may be one of the texts, as `(position, place, literal, about)`.

        At `position` in `text` is the anchor that `literal` has at `place`; the rest may differ.
        """
        if not self._at:
            return
        for match in matches(self._anchors, text):
            position = match.start()
            for place, literal, about in self._at[text[position : position + GRAM]]:
                yield position, place, literal, about


def _places(text: str) -> range:
    """The possible positions of an anchor: not at the edges, where characters may be part of a neighbour's escape."""
    last = len(text) - GRAM
    margin = min(_MARGIN, last // 2)
    return range(margin, last - margin + 1)


def _heads(texts: Mapping[str, T]) -> set[str]:
    """A few rare characters, one of which every text has where an anchor may be (a greedy hitting set)."""
    left = {text: {text[place] for place in _places(text)} for text in texts}
    heads: set[str] = set()
    while left:
        counts: dict[str, float] = {}
        for chars in left.values():
            for char in chars:
                counts[char] = counts.get(char, 0) + 1
        best = max(sorted(counts), key=lambda char: counts[char] / _frequency(char))
        heads.add(best)
        left = {text: chars for text, chars in left.items() if best not in chars}
    return heads


def _frequency(char: str) -> float:
    place = _FREQUENT.find(char)
    return 1 if place < 0 else 2 + (len(_FREQUENT) - place) / 2


def _tree(node: dict[str, Any]) -> str:
    branches = [re.escape(char) + _tree(rest) for char, rest in node.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""
