"""Search for bytes in hexadecimal, in any case, with or without separators between the bytes.

`61626364`, `6162 6364`, `61:62:63:64`, `0x61, 0x62, 0x63, 0x64`, also over line breaks: what dumps and fingerprints
look like. An address at each line's beginning isn't passed over.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Generic, TypeVar

from mcp_bridge.policy.redaction.windows import matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BETWEEN = r"[\s:,._-]{0,32}+(?:0[xX])?+"
"""What may stand between two bytes."""

_GAP_AFTER = re.compile(_BETWEEN)
_MOST_BETWEEN = 34
_GAP_BEFORE = re.compile(rf"(?:{_BETWEEN})\Z")

_FIRST_BYTES = 64

_BYTES = re.compile(rf"(?:[0-9a-fA-F]{{2}}{_BETWEEN}){{1,{_FIRST_BYTES}}}+")
_NO_DIGITS = re.compile(r"0[xX]|[^0-9a-fA-F]+")

_RARE = "7654329801"
"""Digits of bytes that are text, by how seldom ordinary text has them."""

T = TypeVar("T")


class HexDigits(Generic[T]):
    """Finds bytes in hexadecimal.

    Bytes are recognised by two of them that stand side by side. What is after these is compared at once, and then all
    byte by byte, no further than it is the same.

    Args:
        texts: The bytes as lower-case digits, at least two different ones, with the data to return for them.
    """

    def __init__(self, texts: Mapping[str, T]) -> None:
        self._at: dict[str, list[tuple[int, str, T]]] = {}
        for digits, about in texts.items():
            place = _place(digits)
            self._at.setdefault(digits[place : place + 4], []).append((place, digits, about))
        by_first: dict[str, list[str]] = {}
        for pair in sorted(self._at):
            by_first.setdefault(pair[:2], []).append(f"{_any_case(pair[2])}{_any_case(pair[3])}")
        by_head: dict[str, list[str]] = {}
        for first, seconds in by_first.items():
            by_head.setdefault(first[0], []).append(f"{_any_case(first[1])}{_BETWEEN}(?:{'|'.join(seconds)})")
        # The rest is a lookahead, so that no two bytes hide others that begin inside them.
        heads = (f"{_any_case(head)}(?={'|'.join(rest)})" for head, rest in by_head.items())
        self._anchors = re.compile("|".join(heads))

    def found(self, text: str) -> Iterator[tuple[int, int, T]]:
        """Where the bytes are in a text: start, end, and the data given for them."""
        if not self._at:
            return
        for match in matches(self._anchors, text):
            start = match.start()
            following = _following(text, start)
            for place, digits, about in self._at[following[:4]]:
                if not following.startswith(digits[place : place + 2 * _FIRST_BYTES]):
                    continue
                end = _same_after(text, start, digits[place:])
                begin = None if end is None else _same_before(text, start, digits[:place])
                if end is not None and begin is not None:
                    yield begin, end, about


def _place(digits: str) -> int:
    """Where to look for bytes: at two different ones, since a run of equal ones may begin anywhere in a text."""
    places = [
        place for place in range(0, len(digits) - 3, 2) if digits[place : place + 2] != digits[place + 2 : place + 4]
    ]
    return min(places, key=lambda place: (_RARE + "abcdef").index(digits[place]), default=0)


def _any_case(digit: str) -> str:
    return digit if digit.isdigit() else f"[{digit}{digit.upper()}]"


def _following(text: str, index: int) -> str:
    """The digits of the first bytes from an index on, in lower case."""
    found = _BYTES.match(text, index)
    return "" if found is None else _NO_DIGITS.sub("", found[0]).lower()


def _gap_end(text: str, index: int) -> int:
    gap = _GAP_AFTER.match(text, index)
    return index if gap is None else gap.end()


def _same_after(text: str, index: int, digits: str) -> int | None:
    """The end of bytes that begin at an index; None if they don't."""
    end = index
    for place in range(0, len(digits), 2):
        start = _gap_end(text, end) if place else index
        end = start + 2
        if text[start:end].lower() != digits[place : place + 2]:
            return None
    return end


def _same_before(text: str, index: int, digits: str) -> int | None:
    """The start of bytes that end before an index, and what separates them from it; None if they don't."""
    start = index
    for place in range(len(digits) - 2, -1, -2):
        gap = _GAP_BEFORE.search(text, max(0, start - _MOST_BETWEEN), start)
        end = start if gap is None else gap.start()
        start = end - 2
        if start < 0 or text[start:end].lower() != digits[place : place + 2]:
            return None
    return start
