"""Others' text, as it may be shown to a person: it can't pass for ours, nor for another's."""

from __future__ import annotations

import re

# Default_Ignorable_Code_Point, from Unicode's DerivedCoreProperties.txt: what a font shows as nothing at all. Python
# has no such property, and takes the letters and marks among them for printable. And blanks that are no spaces to it.
_IGNORABLE = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

# At either end, and next to another: where a space can't be seen, or not how many there are.
_SPACES = re.compile(r"^ +| +$|(?<= ) +")


def escaped(text: str) -> str:
    """A text in which what can't be seen, or turns text around, is escaped; its lines stay."""
    return "".join(char if is_seen(char) or char == "\n" else _escape(char) for char in text)


def is_seen(char: str) -> bool:
    """Whether a character shows that it is there; a space counts as one that does."""
    return char.isprintable() and not _IGNORABLE.match(char)


def exactly(name: str) -> str:
    """A name on one line, so that no two names are shown alike.

    What can't be seen is escaped, spaces too where they can't, and in a name that has, or passes for, letters of ASCII
    what passes for others of these.
    """
    from mcp_bridge.governance.lookalikes import is_foreign, skeleton  # noqa: PLC0415  (it imports this module)

    shown = "".join(char if is_seen(char) else _escape(char) for char in name)
    if not name.isascii() and (any(char.isascii() and char.isalpha() for char in name) or skeleton(name).isascii()):
        shown = "".join(_escape(char) if is_foreign(char) else char for char in shown)
    return _SPACES.sub(lambda found: r"\x20" * len(found[0]), shown)


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


def one_line(text: str, limit: int) -> str:
    """A text on one line, of bounded length, what can't be seen escaped. Not for what a person decides about."""
    text = " ".join(text.split())
    return escaped(text if len(text) <= limit else text[: limit - 1] + "…")
