"""Others' text, as it may be shown to a person: it can't pass for ours."""

from __future__ import annotations


def escaped(text: str) -> str:
    """A text in which what can't be seen, or turns text around, is escaped; its lines stay."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape", "surrogatepass").decode("ascii")
        for char in text
    )


def one_line(text: str, limit: int) -> str:
    """A text on one line, of bounded length, what can't be seen escaped."""
    text = " ".join(text.split())
    return escaped(text if len(text) <= limit else text[: limit - 1] + "…")
