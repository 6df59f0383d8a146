"""Others' text, as it may be shown to a person: it can't pass for ours."""

from __future__ import annotations

import re

# Default_Ignorable_Code_Point, from Unicode's DerivedCoreProperties.txt: what a font shows as nothing at all. Python
# has no such property, and takes the letters and marks among them for printable.
_IGNORABLE = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def escaped(text: str) -> str:
    """A text in which what can't be seen, or turns text around, is escaped; its lines stay."""
    return "".join(
        char if _is_seen(char) or char == "\n" else char.encode("unicode_escape", "surrogatepass").decode("ascii")
        for char in text
    )


def _is_seen(char: str) -> bool:
    return char.isprintable() and not _IGNORABLE.match(char)


def one_line(text: str, limit: int) -> str:
    """A text on one line, of bounded length, what can't be seen escaped."""
    text = " ".join(text.split())
    return escaped(text if len(text) <= limit else text[: limit - 1] + "…")
