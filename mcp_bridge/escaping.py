"""Escaping of others' text that people are shown: it can't pass for ours, nor for another's."""

from __future__ import annotations

import re

from mcp_bridge.lookalikes import is_foreign, is_seen, skeleton

# At either end, and next to another: where a space can't be seen, or not how many there are.
_SPACES = re.compile(r"^ +| +$|(?<= ) +")

# Controls but newlines and tabs, what turns text around, line separators, what has no width and joins no letters (as
# U+200C and U+200D do in some languages), and lone surrogates.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def escape_controls(text: str) -> str:
    """A text for a terminal: controls (but newlines and tabs) and what turns text around are escaped."""
    return _CONTROLS.sub(lambda match: _escape(match[0]), text)


def escape_controls_in_json(text: str) -> str:
    """JSON with the same characters in JSON's own escapes: it decodes to the same value."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def escape_line(text: str) -> str:
    """A text for a part of a line: what can't be seen, or turns text around, is escaped, line breaks included."""
    return "".join(char if is_seen(char) else _escape(char) for char in text)


def escape_invisible(text: str) -> str:
    """A text that a person decides about: what can't be seen, or turns text around, is escaped; its lines stay."""
    return "".join(char if is_seen(char) or char == "\n" else _escape(char) for char in text)


def escape_name(name: str) -> str:
    """A name on one line, so that no two names are shown alike.

    What can't be seen is escaped, spaces too where they can't, and in a name that has, or passes for, letters of ASCII
    what passes for others of these.
    """
    escaped = "".join(char if is_seen(char) else _escape(char) for char in name)
    if not name.isascii() and (any(char.isascii() and char.isalpha() for char in name) or skeleton(name).isascii()):
        escaped = "".join(_escape(char) if is_foreign(char) else char for char in escaped)
    return _SPACES.sub(lambda match: r"\x20" * len(match[0]), escaped)


def one_line(text: str, limit: int) -> str:
    """A text on one line, of bounded length, what can't be seen escaped. Not for what a person decides about."""
    text = " ".join(text.split())
    return escape_invisible(text if len(text) <= limit else text[: limit - 1] + "…")


def plain_name(name: str) -> str:
    """A name that a stranger chose: quoted, in ASCII, if it isn't printable."""
    return name if name.isprintable() else ascii(name)


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
