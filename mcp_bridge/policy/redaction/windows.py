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
"""Window for an expression that may take hundreds of steps from each position."""

REACH_CHARS = 1 << 10
"""How far an expression may look from the start of a match. `bounded_regex` allows half of it."""


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
        # Lookbehinds see the text before `at`, and lookaheads the text after the window.
        for match in regex.finditer(text, at, border + REACH_CHARS):
            if match.start() >= border:
                break
            yield match
            at_next = max(border, match.end())
        at = at_next
