"""Reads TOML within a bounded time: files of folders are read before anybody has trusted them.

The standard library's parser takes time in the square of a key's parts: 41 s for one key of 32,000.

Standard library only: all layers of the host import it.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

MAX_KEY_PARTS = 32
"""How many parts a dotted key may have. With so many, 1 MiB takes the parser 2 s at most."""

_MAX_NUMBER_CHARS = 1000
"""How long a number in another base than ten may be; Python limits those of base ten itself."""

# In the parser's order, possessive and matching what isn't closed, so that each character is looked at once.
_SKIPPED = r"""#[^\n]*+|""\"(?:[^"\\]|\\.|"(?!""))*+(?:""\""{0,2})?|'''(?:[^']|'(?!''))*+(?:'''(?:'{0,2}))?"""
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?)"""
_KEY = rf"""{_PART}(?P<parts>(?:[ \t]*+\.[ \t]*+{_PART})*+)"""
_TOKEN = re.compile(rf"{_SKIPPED}|(?P<number>0[xob][0-9a-fA-F_]{{{_MAX_NUMBER_CHARS},}}+)|{_KEY}", re.DOTALL)
_NEXT_PART = re.compile(rf"[ \t]*+\.[ \t]*+{_PART}", re.DOTALL)


def loads(text: str) -> dict[str, Any]:
    """Decode TOML.

    Raises:
        tomllib.TOMLDecodeError: It is invalid, has a key of more than 32 parts, or a number of thousands of digits.
        RecursionError: It is nested too deeply.
    """
    for match in _TOKEN.finditer(text):
        if match["number"] is not None:
            raise _refused(text, match.start(), "A number is too long")
        parts = match["parts"]
        # A part after the first has at least two characters.
        if parts and len(parts) >= 2 * MAX_KEY_PARTS and len(_NEXT_PART.findall(parts)) >= MAX_KEY_PARTS:
            raise _refused(text, match.start(), f"A key has more than {MAX_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise _RefusedError("A number is too long") from None


class _RefusedError(tomllib.TOMLDecodeError):
    """What this reader refuses. From Python 3.14 on the parser's own error wants the whole document."""

    def __init__(self, reason: str) -> None:
        ValueError.__init__(self, reason)


def _refused(text: str, at: int, reason: str) -> tomllib.TOMLDecodeError:
    line = text.count("\n", 0, at) + 1
    return _RefusedError(f"{reason} (at line {line}, column {at - text.rfind(chr(10), 0, at)})")
