r"""Finds texts in bytes where they are written with escapes: as of JSON, of addresses and forms, or of HTML.

Servers write the same text in many ways (`=` as `\u003d`, `%3D` or `&#61;`), also one way inside of another. So the
escapes are decoded, layer by layer, and what is found is traced back to the bytes as they came.
"""

from __future__ import annotations

import html
import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_CODED = rb"\\+u00[0-9A-Fa-f]{2}|%[0-9A-Fa-f]{2}|&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,8});"
"""A character by its number or its name. JSON in a text of JSON has more backslashes before it. What is more than
Latin-1 stays as it is: few credentials have it, and some texts have little else.
"""

_CODED_ALONE = re.compile(_CODED)
_ESCAPE = re.compile(_CODED + rb"|\\+")

_BACKSLASH = b"\xff"
"""Stands for a backslash that an escape stands for, while the other ones are taken out: no byte of UTF-8."""

_LAYERS = 3
"""How many layers of escapes are decoded: an address in HTML in JSON has as many."""


def unescaped(text: bytes) -> bytes:
    """The text with one layer of its escapes decoded, and without the backslashes that are before other characters.

    Not what any format makes of it: for comparisons alone.
    """
    if b"\\u" in text or b"%" in text or b"&" in text:
        text = _CODED_ALONE.sub(lambda match: _decoded(match[0]), text)
    # A large text has many, and most are before a quotation mark or an `n`.
    return text.replace(b"\\", b"").replace(_BACKSLASH, b"\\")


def replaced(text: bytes, wanted: Collection[bytes], replacement: bytes) -> bytes:
    """The text with a replacement for each of the wanted texts, however it is written."""
    spans = sorted(_spans(text, wanted))
    if not spans:
        return text
    out: list[bytes] = []
    end = 0
    for start, stop in spans:
        if start >= end:
            out += [text[end:start], replacement]
        end = max(end, stop)
    return b"".join([*out, text[end:]])


def _spans(text: bytes, wanted: Collection[bytes]) -> Iterator[tuple[int, int]]:
    layers = [text]
    while wanted:
        found = [span for each in wanted for span in _found(layers[-1], each)]
        if found:
            indices = sorted({index for span in found for index in span})
            places = indices
            for layer in reversed(layers[:-1]):
                places = _places(layer, places)
            place_of = dict(zip(indices, places, strict=True))
            yield from ((place_of[start], place_of[stop]) for start, stop in found)
        decoded = unescaped(layers[-1])
        if len(layers) > _LAYERS or decoded == layers[-1]:
            return
        layers.append(decoded)


def _found(text: bytes, wanted: bytes) -> Iterator[tuple[int, int]]:
    start = text.find(wanted)
    while start >= 0:
        yield start, start + len(wanted)
        start = text.find(wanted, start + len(wanted))


def _places(text: bytes, indices: list[int]) -> list[int]:
    """Where places of `unescaped(text)`, in ascending order, are in the text."""
    found: list[int] = []
    at = index = 0
    for match in _ESCAPE.finditer(text):
        if len(found) == len(indices):
            break
        # An escape belongs to what follows it: a backslash that stayed would escape the replacement.
        before = index + match.start() - at
        while len(found) < len(indices) and indices[len(found)] <= before:
            found.append(at + indices[len(found)] - index)
        at, index = match.end(), before + len(_decoded(match[0]))
    return found + [at + each - index for each in indices[len(found) :]]


@lru_cache(maxsize=4096)
def _decoded(escape: bytes) -> bytes:
    if escape[:1] == b"%":
        decoded = bytes.fromhex(escape[1:].decode())
    elif escape[:1] == b"&":
        decoded = html.unescape(escape.decode()).encode()
    else:
        number = escape.lstrip(b"\\")[1:]
        decoded = chr(int(number, 16)).encode() if number else b""
    return decoded.replace(b"\\", _BACKSLASH)
