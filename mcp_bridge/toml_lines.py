"""Where in a TOML file a key is: the reader of the standard library doesn't say.

Standard library only: every host layer may import it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_LINE = re.compile(rf"""\s*(\[\[?)?\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*[=\]]""")
_Path = tuple[str | int, ...]
_QUOTES = re.compile(r'"""|' + "'''")


def line_of(file: str | Path, *path: str | int) -> int | None:
    """The line, counted from 1, that a key is on.

    Args:
        file: A file of valid TOML; one that can't be read has no lines.
        path: The key with the tables it is in: `"servers", "git", "command"`; in an array of tables, with its index:
            `"policy", "rules", 1, "when"`.

    Returns:
        The first line of that key or of anything in it; without one, of the innermost table around it that the file
        names; None where there is none either.
    """
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
    header: _Path = ()
    last: dict[_Path, int] = {}
    around: tuple[int, int] | None = None
    inside: str | None = None
    for number, text in enumerate(lines, 1):
        match = None if inside else _LINE.match(text)
        for quotes in _QUOTES.findall(text):
            inside = None if inside == quotes else inside or quotes
        if match is None:
            continue
        parts = _parts(match[2])
        here = _within_arrays(parts, last) if match[1] else header + parts
        if match[1] == "[[":
            array = here[:-1] if here and isinstance(here[-1], int) else here
            last[array] = last.get(array, -1) + 1
            here = (*array, last[array])
        if match[1]:
            header = here
        if here[: len(path)] == path:
            return number
        if here == path[: len(here)] and (around is None or len(here) > around[0]):
            around = len(here), number
    return around[1] if around else None


def _within_arrays(parts: tuple[str, ...], last: dict[_Path, int]) -> _Path:
    """A header's names, with the index of the table that each array of tables on the way is at."""
    here: _Path = ()
    for part in parts:
        here = (*here, part)
        if here in last:
            here = (*here, last[here])
    return here


def _parts(dotted: str) -> tuple[str, ...]:
    try:
        table = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    parts = []
    while isinstance(table, dict):
        [(key, table)] = table.items()
        parts.append(key)
    return tuple(parts)
