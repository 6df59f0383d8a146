"""Decodes and encodes JSON of many values in short steps, and compares it.

The standard library's decoder and encoder hold the interpreter lock until they are done, in any thread: a hundred
milliseconds for the largest message, during which nothing else is answered. Here they process a part at a time. The
result is identical; the work takes several times as long.
"""

from __future__ import annotations

import codecs
import json
import marshal
import re
from json.decoder import JSONDecodeError
from typing import TYPE_CHECKING, Any, Protocol

from mcp_bridge.offload import is_deep, is_large

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Scan = Callable[[str, int], tuple[Any, int]]


class Decoder(Protocol):
    """A `json.JSONDecoder`, or what decodes as one; it also has `scan_once`."""

    def decode(self, s: str, /) -> Any:
        """As `json.JSONDecoder.decode`."""


class Encoder(Protocol):
    """A `json.JSONEncoder`, or what encodes as one."""

    item_separator: str

    def encode(self, o: Any, /) -> str:
        """As `json.JSONEncoder.encode`."""


LARGE_CHARS = 128 << 10
"""A shorter text is decoded in one step, which takes about a millisecond."""

_PART_BYTES = 64 << 10
"""How many bytes of UTF-8 are decoded in one step."""

_STEP_CHARS = 256
"""An array or object that ends within this many characters is decoded in one step."""

_STEP_VALUES = 500
"""How many values are encoded in one step."""

MAX_DEPTH = 200
"""The maximum nesting of decoded values, including the outermost. Equals pydantic's limit for a server's short message:
values are encoded again later, by recursive encoders with a part of the stack already in use."""

_PLAIN_MARSHAL = 2
"""The version of Python's marshal format in which equal values have equal bytes: it knows no references."""

_SPACES = re.compile(r"[ \t\n\r]*+")


def compact_encoder() -> Callable[[Any], str]:
    """What `json.JSONEncoder(separators=(",", ":")).encode` does, in half the time for a small value.

    The standard library makes its C encoder anew for each value. A value that contains itself is a `RecursionError`.
    """
    encoder = json.JSONEncoder(separators=(",", ":"))
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    quote = json.encoder.encode_basestring_ascii
    chunks = make(None, encoder.default, quote, None, ":", ",", False, False, True)  # noqa: FBT003 - positional
    return lambda value: "".join(chunks(value, 0))


def _past_spaces(text: str, at: int) -> int:
    match = _SPACES.match(text, at)
    assert match is not None  # it matches nothing, too
    return match.end()


def loads(data: bytes, decoder: Decoder) -> Any:
    """Decode a JSON document.

    Args:
        data: A JSON document in UTF-8.
        decoder: Its hooks for numbers and constants are used; those for objects aren't.

    Raises:
        ValueError: As `decoder.decode` and the hooks; or the data isn't UTF-8.
        RecursionError: It is nested too deeply.
    """
    if len(data) < LARGE_CHARS:
        return decoder.decode(data.decode())
    text = _text(data)
    # Public, but missing in the type stubs.
    scan: Scan = decoder.scan_once  # type: ignore[attr-defined]
    value, end = _Reader(text, scan).read(_past_spaces(text, 0))
    end = _past_spaces(text, end)
    if end != len(text):
        raise JSONDecodeError("Extra data", text, end)
    return value


def _text(data: bytes) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    decoded = [decoder.decode(data[start : start + _PART_BYTES]) for start in range(0, len(data), _PART_BYTES)]
    return "".join((*decoded, decoder.decode(b"", final=True)))


def _too_deep() -> RecursionError:
    return RecursionError(f"arrays and objects nest deeper than {MAX_DEPTH} levels")


class _Reader:
    """Decodes one text. Not recursive: `_open` is the stack of enclosing arrays and objects."""

    def __init__(self, text: str, scan: Scan) -> None:
        self._text = text
        self._scan = scan
        self._names: dict[str, str] = {}

    def read(self, at: int) -> tuple[Any, int]:
        """The value that begins at a position, and the position after it."""
        text = self._text
        open_: list[tuple[Any, str | None]] = []
        while True:
            # A value begins here.
            name: str | None
            value, end = self._step(at, MAX_DEPTH - len(open_))
            if end < 0:
                if len(open_) >= MAX_DEPTH:
                    raise _too_deep()
                at = _past_spaces(text, at + 1)
                closing = "}" if type(value) is dict else "]"
                if text[at : at + 1] != closing:
                    name = None
                    if type(value) is dict:
                        name, at = self._name(at)
                    open_.append((value, name))
                    continue
                end = at + 1
            # A value ends here, and perhaps its enclosing ones.
            while open_:
                parent, name = open_[-1]
                if name is None:
                    parent.append(value)
                    closing = "]"
                else:
                    parent[name] = value
                    closing = "}"
                at = _past_spaces(text, end)
                mark = text[at : at + 1]
                if mark == ",":
                    at = _past_spaces(text, at + 1)
                    if name is not None:
                        name, at = self._name(at)
                        open_[-1] = parent, name
                    break
                if mark != closing:
                    raise JSONDecodeError("Expecting ',' delimiter", text, at)
                open_.pop()
                value, end = parent, at + 1
            else:
                return value, end

    def _step(self, at: int, levels: int) -> tuple[Any, int]:
        """A complete value and its end; or an empty array or object and -1, if it must be decoded in parts.

        Raises:
            RecursionError: The value is nested deeper than `levels`.
        """
        first = self._text[at : at + 1]
        if first in ("[", "{") and first:
            try:
                value, end = self._scan(self._text[at : at + _STEP_CHARS], 0)
            except (StopIteration, ValueError, RecursionError):
                # The value continues, or its error is found in a later step.
                return ([] if first == "[" else {}), -1
            if end > 2 * levels and is_deep(value, levels):
                raise _too_deep()
            return value, at + end
        try:
            return self._scan(self._text, at)
        except StopIteration as exc:
            raise JSONDecodeError("Expecting value", self._text, exc.value) from None

    def _name(self, at: int) -> tuple[str, int]:
        text = self._text
        if text[at : at + 1] != '"':
            raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        name, at = self._scan(text, at)
        at = _past_spaces(text, at)
        if text[at : at + 1] != ":":
            raise JSONDecodeError("Expecting ':' delimiter", text, at)
        # Equal names share one object, as in the standard library: there may be a hundred thousand rows.
        return self._names.setdefault(name, name), _past_spaces(text, at + 1)


def dumps(value: Any, encoder: Encoder) -> str:
    """Encode a value.

    Args:
        value: A value of JSON's types.
        encoder: An encoder without indentation and without sorted keys.

    Raises:
        ValueError, TypeError: As `encoder.encode`.
        RecursionError: It is nested too deeply.
    """
    return "".join(_parts(value, encoder)) if is_large(value, chars=LARGE_CHARS) else encoder.encode(value)


def is_same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON, where neither `true` nor `1.0` is `1`, as they are in Python.

    Args:
        one: A value of JSON's types.
        other: Another one.

    Raises:
        RecursionError: They are nested too deeply.
    """
    if one is other:
        return True
    if one != other:
        return False
    # Many times faster than JSON's encoder, but it tells the order of keys, too.
    if marshal.dumps(one, _PLAIN_MARSHAL) == marshal.dumps(other, _PLAIN_MARSHAL):
        return True
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _parts(value: Any, encoder: Encoder) -> Iterator[str]:
    if not isinstance(value, (dict, list, tuple)) or not is_large(value, chars=LARGE_CHARS, values=_STEP_VALUES):
        yield encoder.encode(value)
        return
    between = ""
    if isinstance(value, dict):
        yield "{"
        members = list(value.items())
        for start in range(0, len(members), _STEP_VALUES):
            some = dict(members[start : start + _STEP_VALUES])
            if is_large(some, chars=LARGE_CHARS, values=2 * _STEP_VALUES + 2):
                for name, member in some.items():
                    yield between + encoder.encode({name: 0})[1:-2]
                    yield from _parts(member, encoder)
                    between = encoder.item_separator
            else:
                yield between + encoder.encode(some)[1:-1]
                between = encoder.item_separator
        yield "}"
        return
    yield "["
    for start in range(0, len(value), _STEP_VALUES):
        several = value[start : start + _STEP_VALUES]
        if is_large(several, chars=LARGE_CHARS, values=_STEP_VALUES + 1):
            for member in several:
                if between:
                    yield between
                yield from _parts(member, encoder)
                between = encoder.item_separator
        else:
            yield between + encoder.encode(several)[1:-1]
            between = encoder.item_separator
    yield "]"
