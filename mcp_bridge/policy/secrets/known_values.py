"""Values that an execution's tools were given in place of references, found in what comes back, wherever they stand.

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

MAX_CHARS = 4 << 10
"""Longer values aren't looked for: a private key of 4,096 bits has 3,300 characters."""

MAX_SHAPES = 32
"""Places and lengths of values that have one anchor; further ones aren't looked for. Each costs time at the anchor."""

_MAX_HEADS = 1000
"""Beginnings of anchors, two characters each, that are searched for; if there are more, their first characters are."""


class Found(NamedTuple):
    """A value in a text, from `start` up to `end`.

    Attributes:
        start: Where it begins.
        end: Where it ends.
        reference: The id of a reference to it; None if it stands there as JSON escapes it: that is another text.
    """

    start: int
    end: int
    reference: str | None


class _Shape(NamedTuple):
    """The values with the same anchor at the same place, and of one length.

    Attributes:
        place: Where the anchor is in them.
        length: How many characters they have.
        tails: By their last characters: by what stands in a text, the ids of references to it; none if it is escaped.
    """

    place: int
    length: int
    tails: dict[str, dict[str, tuple[str | None, ...]]]


class KnownValues:
    """Finds values in texts. Its work for a text doesn't grow with the number of values.

    A value is recognised by an anchor: eight characters of it, which begin with no letter where they needn't. `find`
    may be called while another thread adds or removes; those two are called by one thread at a time.
    """

    def __init__(self) -> None:
        self._shapes: dict[str, tuple[_Shape, ...]] = {}
        self._heads: set[str] = set()
        self._scan: tuple[int, re.Pattern[str]] | None = None
        """For how many heads the expression was made, and the expression."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to look for."""
        return not self._shapes

    def add(self, reference: str, value: Scalar) -> None:
        """Look for the value behind a reference from now on."""
        for text, name in _written(reference, value):
            place = _place(text)
            anchor = text[place : place + GRAM]
            shapes = self._shapes.get(anchor, ())
            shape = next((each for each in shapes if (each.place, each.length) == (place, len(text))), None)
            if shape is None:
                if len(shapes) >= MAX_SHAPES:
                    continue
                shape = _Shape(place, len(text), {})
                self._shapes[anchor] = (*shapes, shape)
                self._heads.add(anchor[:2])
            among = shape.tails.setdefault(text[-GRAM:], {})
            names = among.get(text, ())
            if name not in names:
                among[text] = (*names, name)

    def remove(self, reference: str, value: Scalar) -> None:
        """Look for the value no longer, unless another reference has it, too."""
        for text, name in _written(reference, value):
            place = _place(text)
            anchor = text[place : place + GRAM]
            for shape in self._shapes.get(anchor, ()):
                names = shape.tails.get(text[-GRAM:], {}).get(text, ())
                if (shape.place, shape.length) != (place, len(text)) or name not in names:
                    continue
                self._put(anchor, shape, text, tuple(other for other in names if other != name))

    def _put(self, anchor: str, shape: _Shape, text: str, names: tuple[str | None, ...]) -> None:
        """Have a text stand for these references, and keep nothing of one that stands for none."""
        among = shape.tails[text[-GRAM:]]
        if names:
            among[text] = names
            return
        del among[text]
        if not among:
            del shape.tails[text[-GRAM:]]
        if not shape.tails:
            self._shapes[anchor] = tuple(each for each in self._shapes[anchor] if each is not shape)
        if not self._shapes[anchor]:
            del self._shapes[anchor]

    def find(self, text: str) -> Iterator[Found]:
        """Everything in a text that is a value; one may overlap another."""
        if not self._shapes:
            return
        # Heads only become more. What another thread adds meanwhile is looked for by the next call.
        count, scan = self._scan or (0, None)
        if scan is None or count != len(self._heads):
            heads = self._heads.copy()
            scan = _scan(heads)
            self._scan = len(heads), scan
        for match in matches(scan, text):
            at = match.start()
            for place, length, tails in self._shapes.get(text[at : at + GRAM], ()):
                start, end = at - place, at - place + length
                among = tails.get(text[end - GRAM : end]) if start >= 0 else None
                if among is not None and (names := among.get(text[start:end])):
                    yield Found(start, end, names[0])


def _written(reference: str, value: Scalar) -> Iterator[tuple[str, str | None]]:
    """How a value stands in a text, with the reference's id, and in JSON; nothing if it is too short or too long."""
    text = value if isinstance(value, str) else repr(value)
    if GRAM <= len(text) <= MAX_CHARS:
        yield text, reference
        for escaped in {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]} - {text}:
            yield escaped, None


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
