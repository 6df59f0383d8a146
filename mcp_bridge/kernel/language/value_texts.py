"""Values as texts: as a template writes them into a text, and as messages quote them. Equal values have equal texts."""

from __future__ import annotations

import re
from typing import Any


def written(value: Any) -> str:
    """A value as it is written within a text. Equal values are written alike, in whatever order their names came."""
    return _shown(value) if isinstance(value, (dict, list)) else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "{" + ", ".join([f"{quoted(name)}: {_shown(value[name])}" for name in sorted(value)]) + "}"
    return "[" + ", ".join(map(_shown, value)) + "]" if isinstance(value, list) else str(value)


def quoted(text: str) -> str:
    """A text in quotes, as `repr` writes it, but with a fixed set of characters that are escaped.

    The set of `repr` depends on the Unicode version of Python. The state's bytes, which have such texts, must not.
    """
    if text.isascii():
        return repr(text)
    sign = '"' if "'" in text and '"' not in text else "'"
    return sign + _ESCAPED.sub(lambda match: _escape(match[0], sign), text) + sign


_ESCAPED = re.compile(
    r"[\x00-\x1f'\\\x7f-\xa0\xad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u2066-\u206f\u3000\ufeff]"
)


def _escape(character: str, sign: str) -> str:
    if character == "'":
        return character if sign == '"' else "\\'"
    return repr(character)[1:-1]
