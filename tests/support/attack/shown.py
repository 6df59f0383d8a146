"""What a person was shown, read back from the text of the question."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import Any

CUT = object()
"""In the place of arguments that weren't shown whole."""

_FIRST = re.compile(r"Allow the call of (.*)\?\n?")
_ESCAPE = re.compile(r"\\(\\|u[0-9a-f]{4}|x[0-9a-f]{2}|U[0-9a-f]{8}|.)", re.DOTALL)


@dataclass
class Shown:
    """A question.

    Attributes:
        tool: Whose call was to be allowed; or a step's message.
        arguments: With what; `CUT` if the text doesn't say.
        approved: Whether the person has allowed it.
        used: Whether a call has been made by it.
    """

    tool: str
    arguments: Any
    approved: bool
    used: bool = False


def read_message(message: str, *, approved: bool) -> Shown:
    """A question as its text says it; nothing else of the bridge's is believed."""
    found = _FIRST.match(message)
    if found is None:
        # A step's question: its message, line by line behind a sign, and what there is to know.
        said = message.splitlines()[1:]
        quoted = list(itertools.takewhile(lambda line: line.startswith("> "), said))
        tool, rest = "\n".join(line[2:] for line in quoted), "\n".join(said[len(quoted) :])
    else:
        tool, rest = _ESCAPE.sub(_unescaped, found[1]), message[found.end() :]
    if not rest.startswith("{"):
        return Shown(tool, {}, approved)
    try:
        # Signs that can't be seen are written as Python writes them, which JSON only partly knows.
        arguments, _ = json.JSONDecoder().raw_decode(_ESCAPE.sub(_as_json, rest))
    except ValueError:
        return Shown(tool, CUT, approved)
    return Shown(tool, arguments, approved)


def _as_json(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xU" and len(code) > 1:
        return json.dumps(chr(int(code[1:], 16)))[1:-1]
    return match[0]


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if code[0] in "uxU" and len(code) > 1 else match[0]
