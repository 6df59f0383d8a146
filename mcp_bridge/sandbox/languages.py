"""The languages that scripts may be written in."""

from __future__ import annotations

from typing import Literal

Language = Literal["python", "javascript"]

SHOWN: dict[Language, str] = {"python": "Python", "javascript": "JavaScript"}
"""Their names for people."""

JAVASCRIPT_SUFFIXES = frozenset({".js", ".mjs", ".ts", ".mts"})
"""How the names of files end that hold JavaScript, or TypeScript."""


def language_of_file(name: str) -> Language:
    """The language of a script's file, by its name."""
    _, dot, suffix = name.rpartition(".")
    return "javascript" if dot + suffix.lower() in JAVASCRIPT_SUFFIXES else "python"
