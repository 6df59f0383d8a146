"""The forms that a text takes when it is encoded, and one step back from any of them.

Two kinds. What changes every character of a text (base64, hexadecimal) gives a handful of literal forms that can be
searched for. What escapes some characters and leaves others, in ways that can be mixed and nested (JSON, Python, URLs,
HTML), is undone instead: `decoded` takes one layer off whatever escapes there are.
"""

from __future__ import annotations

import base64
import html
import json
import re
import sys
from array import array
from bisect import bisect_right
from functools import cached_property, lru_cache
from typing import NamedTuple

from mcp_bridge.policy.redaction.windows import matches

MAX_LAYERS = 5
"""Most layers of escapes that are decoded. JSON in JSON in a URL has three."""

# A plus may have become a space a layer above.
_B64 = "A-Za-z0-9+/=_ -"

# Lines of base64 are 64 or 76 characters long (RFC 7468, RFC 2045).
_WRAPPED = f"[{_B64}]{{60}}"

_HEX = "[0-9a-fA-F]"
_NEXT = f"%[89abAB]{_HEX}"

# Each alternative begins with a literal character: so the search for the next one is a scan for six characters.
_ESCAPE = re.compile(
    # JSON (RFC 8259 section 7), JavaScript, Python: a surrogate pair is one character.
    rf"\\u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}|\\u{_HEX}{{4}}|\\U00(?:0{_HEX}|10){_HEX}{{4}}"
    # Bytes, as Python and C write them.
    rf"|\\x{_HEX}{{2}}|\\[0-3][0-7]{{2}}|\\[\\\"'/nrtbfav0]"
    # URLs (RFC 3986 section 2.1): a sequence of UTF-8 is one character. A plus is a space in forms.
    rf"|%[cCdD]{_HEX}{_NEXT}|%[eE]{_HEX}{_NEXT}{_NEXT}|%[fF][0-4]{_NEXT}{_NEXT}{_NEXT}|%{_HEX}{{2}}|\+"
    # HTML.
    rf"|&(?:\#[0-9]{{1,7}}|\#[xX]{_HEX}{{1,6}}|[A-Za-z][A-Za-z0-9]{{1,31}});"
    # A line break inside base64.
    rf"|\r\n(?<={_WRAPPED}\r\n)(?=[{_B64}])|\n(?<={_WRAPPED}\n)(?=[{_B64}])"
)

_NAMED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}


@lru_cache(maxsize=4096)
def _meaning(escape: str) -> str:
    first, second = escape[0], escape[1:2]
    if first == "\\":
        if second in "uUx":
            if len(escape) == len(r"\ud83d\ude00"):
                pair = chr(int(escape[2:6], 16)) + chr(int(escape[8:], 16))
                return pair.encode("utf-16", "surrogatepass").decode("utf-16")
            return chr(int(escape[2:], 16))  # noqa: FURB166  (base 0 wants 0x)
        if len(escape) == len(r"\303"):
            return chr(int(escape[1:], 8))
        return _NAMED.get(second, second)
    if first == "%":
        data = bytes.fromhex(escape.replace("%", ""))
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return data.decode("latin-1")
    if second == "#":
        # Taken literally: a browser maps some of these numbers to other characters, and drops others.
        number = int(escape[3:-1], 16) if escape[2] in "xX" else int(escape[2:-1])
        return chr(number) if number <= sys.maxunicode else ""
    if first == "&":
        return html.unescape(escape)
    return " " if first == "+" else ""


class Layer:
    """A text with one layer of escapes decoded, and the positions of its characters in the text below.

    Args:
        text: The text.
        below: The text below; None for the lowest.
    """

    def __init__(self, text: str, below: str | None = None) -> None:
        self.text = text
        self._below = below

    @cached_property
    def _escapes(self) -> tuple[array[int], array[int], array[int], array[int]]:
        # Computed only after a match, and compact: a hostile text may consist of escapes alone.
        starts, ends, below_starts, below_ends = array("I"), array("I"), array("I"), array("I")
        shift = 0
        for match in matches(_ESCAPE, self._below or ""):
            start, end = match.span()
            starts.append(start - shift)
            shift += end - start - len(_meaning(match[0]))
            ends.append(end - shift)
            below_starts.append(start)
            below_ends.append(end)
        return starts, ends, below_starts, below_ends

    def start_below(self, index: int) -> int:
        """Where the character at `index` starts in the text below; at the end of the text, where that one ends."""
        starts, ends, below_starts, below_ends = self._escapes
        before = bisect_right(ends, index)
        if before < len(starts) and starts[before] <= index:
            return below_starts[before]
        return index + (below_ends[before - 1] - ends[before - 1] if before else 0)

    def end_below(self, index: int) -> int:
        """Where the character before `index` ends in the text below."""
        starts, ends, _, below_ends = self._escapes
        last = index - 1
        before = bisect_right(ends, last)
        if before < len(starts) and starts[before] <= last:
            return below_ends[before]
        return self.start_below(last) + 1


def decoded(text: str) -> Layer | None:
    """Decode the outermost layer of escapes; None if there is none.

    Bytes that are escaped one by one and aren't UTF-8 become the characters of the same numbers (Latin-1).
    """
    pieces: list[str] = []
    done = 0
    for match in matches(_ESCAPE, text):
        pieces += (text[done : match.start()], _meaning(match[0]))
        done = match.end()
    return Layer("".join((*pieces, text[done:])), text) if pieces else None


def readings(text: str) -> set[str]:
    """The text, and what it becomes when escapes that it happens to contain are decoded.

    A password may hold `%41`. Where it is escaped for JSON, taking that off takes off the other too. The characters
    that its UTF-8 bytes are in Latin-1 are read in the same way, since escaped bytes become those.
    """
    texts = set()
    # A plus is decoded as a space before other escapes if those have several layers.
    for start in {form for each in (text, text.replace("+", " ")) for form in (each, each.encode().decode("latin-1"))}:
        texts.add(start)
        layer = decoded(start)
        for _ in range(MAX_LAYERS):
            if layer is None:
                break
            texts.add(layer.text)
            layer = decoded(layer.text)
    return texts


class EncodedForm(NamedTuple):
    """A part of base64 or base32 that a text's bytes produce at a given alignment.

    Attributes:
        text: The characters that depend on these bytes alone.
        before: How many characters before hold some bits of the first byte, at most.
        after: How many characters after hold some bits of the last byte, at most.
    """

    text: str
    before: int
    after: int


def base64_forms(text: str) -> set[EncodedForm]:
    """The text in base64, at each of the three places it can have in a group of bytes, in both alphabets (RFC 4648).

    Also its UTF-16 in base64, and its base64 in base64, as secrets of Kubernetes hold passwords of registries.
    """
    forms = {form for data in _serialised(text) | _utf16(text) for form in _in_base64(data)}
    inner = {form for data in _serialised(text) for form in _in_base64(data) if " " not in form.text}
    return forms | {
        EncodedForm(outer.text, outer.before + 2 * form.before, outer.after + 2 * form.after)
        for form in inner
        for outer in _in_base64(form.text.encode())
    }


def _in_base64(data: bytes) -> set[EncodedForm]:
    forms = set()
    for offset in range(3):
        # Characters with bits of preceding bytes are left out, and an incomplete last one.
        bits = 8 * (offset + len(data))
        whole = base64.b64encode(bytes(offset) + data)[-(-8 * offset // 6) : bits // 6].decode()
        # In a form, a plus is decoded as a space.
        for form in (whole, whole.replace("+", "-").replace("/", "_"), whole.replace("+", " ")):
            forms.add(EncodedForm(form, int(offset > 0), int(bits % 6 > 0)))
    return forms


def base64_alone(text: str) -> set[str]:
    """The text's base64 where nothing else is encoded with it, in both alphabets, without padding."""
    whole = {base64.b64encode(data).decode().rstrip("=") for data in _serialised(text)}
    return whole | {each.replace("+", "-").replace("/", "_") for each in whole}


def base32_forms(text: str) -> set[EncodedForm]:
    """The text in base32 (RFC 4648), at each of the five places it can have in a group of bytes, in either case."""
    forms = set()
    for data in _serialised(text):
        for offset in range(5):
            bits = 8 * (offset + len(data))
            whole = base64.b32encode(bytes(offset) + data)[-(-8 * offset // 5) : bits // 5].decode()
            for form in (whole, whole.lower()):
                forms.add(EncodedForm(form, int(offset > 0), int(bits % 5 > 0)))
    return forms


def hex_forms(text: str) -> set[str]:
    """The text, and its UTF-16, in hexadecimal, in lower case."""
    return {data.hex() for data in _serialised(text) | _utf16(text)}


def shuffled_forms(text: str) -> set[str]:
    """The text backwards, and its bytes in UTF-16, of which each is read as a character."""
    forms = {text[::-1]} | {data.decode("latin-1") for data in _utf16(text)}
    return forms | {form.replace("+", " ") for form in forms}


def _serialised(text: str) -> set[bytes]:
    """The bytes of a text, and of its JSON form, for JSON that is then encoded as a whole, such as a token."""
    return {form.encode() for form in (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])}


def _utf16(text: str) -> set[bytes]:
    """The bytes of a text in UTF-16; where they are the same in either byte order but for the ends, without these."""
    little, big = text.encode("utf-16-le"), text.encode("utf-16-be")
    return {little[:-1]} if little[:-1] == big[1:] else {little, big}
