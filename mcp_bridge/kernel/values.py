"""JSON values: what may enter a state, and their one encoding (RFC 8785, JSON Canonicalization Scheme).

A value is *normal* when its canonical text parses to the same value: `1.0` becomes `1`, a tuple a list. Everything that
enters a machine is made normal once; from there on values are shared and never changed in place.

One extension: RFC 8785 knows only numbers that fit a 64-bit float. Integers beyond 2**53 (identifiers, as a rule) keep
all of their digits here, where the RFC would have them rounded or written as strings.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 48
"""Deepest nesting of arrays and objects in a value. The channel carries 64, and wraps values in its own."""

MAX_INTEGER = 10**100
"""Integers are below this: Python reads longer ones in quadratic time, and refuses some."""

_LEAST, _SMALL = -(1 << 60), 1 << 60
"""Integers between these are compared in no time."""

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_EXPONENT = re.compile("[0-9]e[-+]")
_BEYOND_BMP = re.compile(rb"[\xf0-\xf4]")
_SHOWN_CHARS = 60
_ES6_DECIMAL_FROM, _ES6_DECIMAL_BELOW = 1e-6, 1e21


def _encoder() -> Callable[[Any], str]:
    """What `_ENCODER.encode` does, without making the C encoder anew for each value, where there is one."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return _ENCODER.encode
    quote = json.encoder.encode_basestring
    chunks = make(None, _ENCODER.default, quote, None, ":", ",", True, False, False)  # noqa: FBT003 - positional
    return lambda value: "".join(chunks(value, 0))


_encoded = _encoder()


class ValueFaultError(ValueError):
    """Something that isn't JSON, or too deep.

    Attributes:
        path: Where, such as `items[3].price`; empty for the value itself.
        reason: What is wrong with it.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason


def normal(value: Any, path: str = "") -> Any:
    """A copy of `value` in normal form, made of str, int, float, bool, None, list and dict alone.

    Args:
        value: Anything. Tuples are taken for lists, as JSON encoders do.
        path: Of the value, for errors.

    Raises:
        ValueFaultError: A type that JSON doesn't have, a key that isn't text, NaN or an infinity, text with a lone
            surrogate, an integer of over 100 digits, nesting beyond `MAX_DEPTH`.
    """
    kind = type(value)
    if value is None or kind is bool or (kind is str and value.isascii()):
        return value
    try:
        return _normal_object(value, MAX_DEPTH) if kind is dict else _normal(value, MAX_DEPTH)
    except ValueFaultError as exc:
        raise ValueFaultError(_place(value, path, MAX_DEPTH), exc.reason) from None


def _normal(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is dict:
        return _normal_object(value, depth)
    if kind is list or kind is tuple:
        return _normal_list(value, depth)
    if kind is str:
        return value if value.isascii() else _text(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        if -MAX_INTEGER < value < MAX_INTEGER:
            return value
        raise ValueFaultError("", "an integer of more than 100 digits")
    if kind is float:
        return _number(value)
    return _normal(_plain(value), depth)


# Most items of objects and lists are what these two take at once: a call for each would cost more than all else.


def _normal_object(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    if not depth:
        raise ValueFaultError("", _TOO_DEEP)
    copied = value.copy()
    for name, item in value.items():
        if type(name) is not str:
            return _normal_object({_key(name): item for name, item in value.items()}, depth)
        if not name.isascii():
            _text(name)
        kind = type(item)
        if (kind is str and item.isascii()) or kind is bool or (kind is int and _LEAST < item < _SMALL):
            continue
        copied[name] = _normal(item, depth - 1)
    return copied


def _normal_list(value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
    if not depth:
        raise ValueFaultError("", _TOO_DEEP)
    copied = list(value)
    for place, item in enumerate(value):
        kind = type(item)
        if (kind is str and item.isascii()) or (kind is int and _LEAST < item < _SMALL):
            continue
        copied[place] = _normal(item, depth - 1)
    return copied


def _plain(value: Any) -> Any:
    """The plain value of an instance of a subclass: an enum's member, a named tuple, a counter."""
    for base, plain in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if isinstance(value, base):
            return plain(value)  # type: ignore[arg-type]
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return list(value)
    raise ValueFaultError("", f"a {type(value).__name__} is no JSON value")


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueFaultError("", f"a key is a {type(name).__name__}, and JSON's are text")
    return _text(str.__str__(name))


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueFaultError("", "text with a lone surrogate, which no UTF-8 can carry") from None
    return value


def _place(value: Any, path: str, depth: int) -> str:
    """The path of the fault that `_normal` has met. Without a fault no paths are made."""
    children: Any = ()
    if depth and isinstance(value, dict):
        children = value.items()
    elif depth and isinstance(value, (list, tuple)):
        children = enumerate(value)
    for name, item in children:
        if isinstance(value, dict):
            try:
                shown = _key(name)[:_SHOWN_CHARS]
            except ValueFaultError:
                return path
            place = f"{path}.{shown}" if path else shown
        else:
            place = f"{path}[{name}]"
        try:
            _normal(item, depth - 1)
        except ValueFaultError:
            return _place(item, place, depth - 1)
    return path


def _number(value: float) -> int | float:
    if not math.isfinite(value):
        raise ValueFaultError("", f"{value} is no JSON number")
    if value.is_integer() and abs(value) < _ES6_DECIMAL_BELOW:
        return int(es6_number(value))
    return value


def es6_number(value: float) -> str:
    """A finite number as ECMAScript writes it, as RFC 8785 (section 3.2.2.3) demands."""
    if value == 0:
        return "0"
    mantissa, _, exponent_text = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The value is 0.DIGITS times ten to the power of `point`.
    point = len(whole.lstrip("0")) or len(fraction.lstrip("0")) - len(fraction)
    point += int(exponent_text or 0)
    digits = digits.rstrip("0")
    count = len(digits)
    if _ES6_DECIMAL_FROM <= abs(value) < _ES6_DECIMAL_BELOW:
        if point <= 0:
            text = "0." + "0" * -point + digits
        elif count <= point:
            text = digits + "0" * (point - count)
        else:
            text = digits[:point] + "." + digits[point:]
    else:
        text = digits[0] + ("." + digits[1:] if count > 1 else "") + f"e{point - 1:+d}"
    return "-" + text if value < 0 else text


def canonical(value: Any) -> bytes:
    """A normal value's canonical bytes: equal values, and no others, have equal bytes."""
    text = _encoded(value)
    data = text.encode()
    # The standard library's encoder is many times faster than ours. It differs from the RFC in small and large
    # fractions, and in the order of keys beyond the Basic Multilingual Plane.
    if ("e-" in text or "e+" in text) and _EXPONENT.search(text):
        return _canonical(value).encode()
    return data if len(data) == len(text) or not _BEYOND_BMP.search(data) else _canonical(value).encode()


def _canonical(value: Any) -> str:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{_encoded(name)}:{_canonical(value[name])}" for name in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, float):
        return es6_number(value)
    return _encoded(value)


def digest(value: Any) -> str:
    """SHA-256 of a normal value's canonical bytes, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


def same(one: Any, other: Any) -> bool:
    """Whether two normal values are the same in JSON, where 1 isn't true as it is in Python."""
    if one is other:
        return True
    if type(one) is not type(other) or one != other:
        return False
    return not isinstance(one, (dict, list)) or canonical(one) == canonical(other)
