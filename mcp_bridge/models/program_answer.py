"""Extracts the program from a model's answer: plain JSON, a fenced block, or JSON surrounded by prose."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

_FENCED = re.compile(r"```[\w-]*[ \t]*\n(.*?)```", re.DOTALL)
_LIKE_AN_OBJECT = re.compile(r'\{\s*["}]')


class NoProgramError(ValueError):
    """The answer contains no JSON object; the message explains the fault to the model."""


def find_program(text: str) -> dict[str, Any]:
    """The JSON object that is the program.

    Of several objects, the last one with `steps` is used, because a model that corrects itself does so later in its
    answer. An object that is cut off or malformed ends the search: a sub-program inside it must not be taken for the
    whole program.

    Raises:
        NoProgramError: There is no such object.
    """
    objects: list[dict[str, Any]] = []
    fault: str | None = None
    for part in (text, *_FENCED.findall(text)):
        try:
            value = _DECODER.decode(part)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            objects.append(value)
        else:
            fault = "the answer is JSON, but no object: a program is an object with 'steps'"
    if not objects and fault is None:
        objects, fault = _among_prose(text)
    programs = [value for value in objects if "steps" in value] or objects
    if not programs:
        raise NoProgramError(fault or "the answer has no JSON object")
    return programs[-1]


def _among_prose(text: str) -> tuple[list[dict[str, Any]], str | None]:
    objects: list[dict[str, Any]] = []
    position = 0
    while match := _LIKE_AN_OBJECT.search(text, position):
        try:
            value, position = _DECODER.raw_decode(text, match.start())
        except RecursionError:
            return objects, "the JSON object is nested too deeply"
        except json.JSONDecodeError as exc:
            start = text.rfind("\n", 0, exc.pos) + 1
            near = text[max(start, exc.pos - 30) : exc.pos + 10]
            return objects, f"the JSON object can't be read: {exc.msg} near {near!r}"
        except ValueError as exc:
            return objects, f"the JSON object can't be read: {exc}"
        objects.append(value)
    return objects, None


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has {twice[:60]!r} more than once")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_no_constant)
