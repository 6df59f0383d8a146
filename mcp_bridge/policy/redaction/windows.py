"""A regular expression searched for in a long text piece by piece.

`re` holds the interpreter from the beginning of a search to its end: where a text of 16 MB has nothing to find, for a
good part of a second, from whichever thread. So a long text is searched in windows, and others get their turn between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

WINDOW_CHARS = 128 << 10

NARROW_CHARS = 8 << 10
"""For an expression that may take hundreds of steps from each place."""

REACH_CHARS = 1 << 10
"""How far from where a match begins an expression may look. `bounded_regex` allows half of it."""


def matches(regex: re.Pattern[str], text: str, window: int = WINDOW_CHARS) -> Iterator[re.Match[str]]:
    """As `regex.finditer(text)`.

    Args:
        regex: It never looks further than `REACH_CHARS` from where it begins, and matches no empty text.
        text: Of any length.
        window: Characters that are searched at once.
    """
    if len(text) <= window + REACH_CHARS:
        yield from regex.finditer(text)
        return
    at = 0
    while at < len(text):
        border = at + window
        at_next = border
        # What is before `at` is seen by what looks behind, and what is after the window by what looks ahead.
        for match in regex.finditer(text, at, border + REACH_CHARS):
            if match.start() >= border:
                break
            yield match
            at_next = max(border, match.end())
        at = at_next
