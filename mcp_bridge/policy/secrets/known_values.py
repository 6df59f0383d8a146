"""Values that an execution's tools were given in place of references, found in a text wherever they stand.

A pattern finds a value by its shape and by what is beside it: no card number is a part of a longer word. A tool may
give back a value in one, though, as it was asked to: `"x" + card`. So what a tool was given is looked for as it is. An
encoded value isn't found, save as JSON escapes it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from mcp_bridge.policy.redaction.windows import matches

if TYPE_CHECKING:
    from collections.abc import Iterator

Scalar: TypeAlias = str | int | float

GRAM = 8
"""Characters by which a value is recognised. Of a shorter one any text may have the characters by chance."""

MAX_SHAPES = 64
"""Places and lengths of values that have one anchor; further ones aren't looked for. Each costs time at the anchor."""

_MAX_HEADS = 1000
"""Beginnings of anchors, two characters each, that are searched for; if there are more, their first characters are."""


class Found(NamedTuple):
    """A value in a text, from `start` up to `end`."""

    start: int
    end: int
    value: Scalar


class _Shape(NamedTuple):
    """The values with the same anchor at the same place, and of one length: by what stands in a text."""

    place: int
    length: int
    values: dict[str, Scalar]


class KnownValues:
    """Finds values in texts, in time linear in the text whatever their number.

    A value is recognised by an anchor: eight characters of it, which begin with no letter where they needn't.
    `find` may be called while another thread adds or removes.
    """

    def __init__(self) -> None:
        self._shapes: dict[str, tuple[_Shape, ...]] = {}
        self._heads: set[str] = set()
        self._scan: re.Pattern[str] | None = None

    def add(self, value: Scalar) -> None:
        """Look for a value from now on."""
        for text in _written(value):
            place = _place(text)
            anchor = text[place : place + GRAM]
            shapes = self._shapes.get(anchor, ())
            known = next((each for each in shapes if (each.place, each.length) == (place, len(text))), None)
            if known is not None:
                known.values.setdefault(text, value)
            elif len(shapes) < MAX_SHAPES:
                self._shapes[anchor] = (*shapes, _Shape(place, len(text), {text: value}))
                if anchor[:2] not in self._heads:
                    self._heads.add(anchor[:2])
                    self._scan = None

    def remove(self, value: Scalar) -> None:
        """Look for a value no longer."""
        for text in _written(value):
            place = _place(text)
            for shape in self._shapes.get(text[place : place + GRAM], ()):
                if (shape.place, shape.length) == (place, len(text)) and shape.values.get(text) == value:
                    del shape.values[text]

    def find(self, text: str) -> Iterator[Found]:
        """Everything in a text that is a value; one may overlap another."""
        if not self._shapes:
            return
        scan = self._scan
        if scan is None:
            scan = self._scan = _scan(self._heads.copy())
        for match in matches(scan, text):
            at = match.start()
            for place, length, values in self._shapes.get(text[at : at + GRAM], ()):
                start = at - place
                if start >= 0 and (value := values.get(text[start : start + length])) is not None:
                    yield Found(start, start + length, value)


def _written(value: Scalar) -> set[str]:
    """How a value stands in a text, and in JSON; nothing if that is too short to be told."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) < GRAM:
        return set()
    return {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def _place(text: str) -> int:
    """Where a value's anchor is: letters are frequent in any text."""
    return next((at for at in range(len(text) - GRAM + 1) if not (text[at].isalpha() or text[at].isspace())), 0)


def _scan(heads: set[str]) -> re.Pattern[str]:
    """Finds where an anchor may begin; a lookahead, so that none hides another."""
    if len(heads) > _MAX_HEADS:
        return re.compile(f"[{re.escape(''.join(sorted({head[0] for head in heads})))}]")
    seconds: dict[str, list[str]] = {}
    for head in sorted(heads):
        seconds.setdefault(head[0], []).append(head[1])
    return re.compile(
        "|".join(f"{re.escape(head)}(?=[{re.escape(''.join(after))}])" for head, after in seconds.items())
    )
