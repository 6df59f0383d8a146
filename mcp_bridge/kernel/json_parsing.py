"""Texts that are parsed as JSON: the outputs of steps with `parse: json`."""

import json
from collections.abc import Callable
from typing import Any

from mcp_bridge.kernel.values import normal

Read = Callable[[str], Any]
"""Parses a text as `parsed` does."""

MAX_PARSED_CHARS = 1 << 20
"""Longest text that is parsed as JSON."""

_FENCE, _SPACE = "```", " \t\r\n"


class NotJSONError(ValueError):
    """A text that isn't JSON, or is too long."""


def parsed(text: str) -> Any:
    """The value of a JSON text (RFC 8259), in normal form. A code block of Markdown stands for its content.

    The result is the same on every version of Python. So the error doesn't say what is wrong: parsers differ in that.

    Raises:
        NotJSONError: The text isn't JSON, has NaN, an infinity or another value without a normal form, or is longer
            than `MAX_PARSED_CHARS`.
    """
    if len(text) > MAX_PARSED_CHARS:
        raise NotJSONError
    stripped = text.strip(_SPACE)
    if stripped.startswith(_FENCE) and stripped.endswith(_FENCE) and len(stripped) > 2 * len(_FENCE):
        language, _, body = stripped[len(_FENCE) : -len(_FENCE)].partition("\n")
        stripped = body if language.strip(_SPACE) in {"", "json"} else stripped
    try:
        return normal(json.loads(stripped, parse_constant=_no_constant))
    except (ValueError, RecursionError):
        raise NotJSONError from None


def _no_constant(name: str) -> Any:
    raise ValueError(name)
