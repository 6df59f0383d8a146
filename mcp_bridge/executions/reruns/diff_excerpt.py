"""Both sides of a difference as texts that show it, however long they are."""

from __future__ import annotations

LEAD_CHARS = 100
"""Characters before the first difference that are shown of a long side."""

CUT = "…"


def shown_sides(one: str, other: str, most: int) -> tuple[str, str]:
    """Two texts; of one that is longer than allowed, what is around the first difference.

    Args:
        one: The one side.
        other: The other side.
        most: Most characters of each that are shown. Marks where it is cut come on top.
    """
    start = max(0, _common(one, other) - LEAD_CHARS)
    return _around(one, start, most), _around(other, start, most)


def cut(text: str, most: int) -> str:
    """The beginning of a text."""
    return _around(text, 0, most)


def _around(text: str, start: int, most: int) -> str:
    if len(text) <= most:
        return text
    start = min(start, len(text) - most)
    end = start + most
    return f"{CUT if start else ''}{text[start:end]}{CUT if end < len(text) else ''}"


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with in common. By halves: to look at each takes seconds, of megabytes."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
