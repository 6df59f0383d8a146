"""Finds the line of a key in a TOML file, which the standard library's parser doesn't report.

Standard library only: all layers of the host import it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from mcp_bridge.toml_files import reader as toml_reader

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_LINE = re.compile(rf"""\s*(\[\[?)?\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*[=\]]""")
_Path = tuple[str | int, ...]
_QUOTES = re.compile(r'"""|' + "'''")


def line_of(file: str | Path, *path: str | int) -> int | None:
    """The line number of a key, counted from 1.

    Args:
        file: A file of valid TOML; for an unreadable one, None is returned.
        path: The key with its enclosing tables: `"servers", "git", "command"`; with an index for arrays of tables:
            `"policy", "rules", 1, "when"`.

    Returns:
        The first line of the key or of anything in it; else of the innermost enclosing table in the file; else None.
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
    """The names in a table header, with the current index after each array of tables."""
    here: _Path = ()
    for part in parts:
        here = (*here, part)
        if here in last:
            here = (*here, last[here])
    return here


def _parts(dotted: str) -> tuple[str, ...]:
    try:
        table = toml_reader.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return ()
    parts = []
    while isinstance(table, dict):
        [(key, table)] = table.items()
        parts.append(key)
    return tuple(parts)
