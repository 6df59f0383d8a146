"""JSON values: what may enter a state, and the one way to write them down (RFC 8785, JSON Canonicalization Scheme).

A value is *normal* when it is what its canonical text reads back as: `1.0` is `1`, a tuple is a list. Everything that
enters a machine is made normal once; from there on values are shared and never changed in place.

One extension: RFC 8785 knows only numbers that fit a 64-bit float. Integers beyond 2**53 (identifiers, as a rule) keep
all of their digits here, where the RFC would have them rounded or written as strings.
"""

import hashlib
import json
import math
import re
from typing import Any

MAX_DEPTH = 48
"""Deepest nesting of arrays and objects in a value. The channel carries 64, and wraps values in its own."""

MAX_INTEGER = 10**100
"""Integers are below this: Python reads longer ones in quadratic time, and refuses some."""

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_BEYOND_BMP = re.compile(rb"[\xf0-\xf4]")
_ES6_DECIMAL_FROM, _ES6_DECIMAL_BELOW = 1e-6, 1e21


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
        value: Anything. Tuples are taken for lists, as JSON writers do.
        path: What errors call it.

    Raises:
        ValueFaultError: A type that JSON doesn't have, a key that is no text, NaN or an infinity, text with a lone
            surrogate, an integer of over 100 digits, nesting beyond `MAX_DEPTH`.
    """
    return _normal(value, path, MAX_DEPTH)


def _normal(value: Any, path: str, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value, path)
    if value is None or kind is bool:
        return value
    if kind is int:
        if -MAX_INTEGER < value < MAX_INTEGER:
            return value
        raise ValueFaultError(path, "an integer of more than 100 digits")
    if kind is dict:
        if not depth:
            raise ValueFaultError(path, f"nested deeper than {MAX_DEPTH} levels")
        return {_key(name, path): _normal(item, _child(path, name), depth - 1) for name, item in value.items()}
    if kind is list or kind is tuple:
        if not depth:
            raise ValueFaultError(path, f"nested deeper than {MAX_DEPTH} levels")
        return [_normal(item, f"{path}[{index}]", depth - 1) for index, item in enumerate(value)]
    if kind is float:
        return _number(value, path)
    return _of_subclass(value, path, depth)


def _of_subclass(value: Any, path: str, depth: int) -> Any:
    """An enum's member, a named tuple, a counter: what they are beneath."""
    for base, plain in ((str, str.__str__), (int, int.__int__), (float, float.__float__)):
        if isinstance(value, base):
            return _normal(plain(value), path, depth)  # type: ignore[arg-type]
    if isinstance(value, dict):
        return _normal(dict(value), path, depth)
    if isinstance(value, (list, tuple)):
        return _normal(list(value), path, depth)
    raise ValueFaultError(path, f"a {type(value).__name__} is no JSON value")


def _key(name: Any, path: str) -> str:
    if type(name) is str and name.isascii():
        return name
    if not isinstance(name, str):
        raise ValueFaultError(path, f"a key is a {type(name).__name__}, and JSON's are text")
    return _text(str.__str__(name), path)


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueFaultError(path, "text with a lone surrogate, which no UTF-8 can carry") from None
    return value


def _child(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _number(value: float, path: str) -> int | float:
    if not math.isfinite(value):
        raise ValueFaultError(path, f"{value} is no JSON number")
    if value.is_integer() and abs(value) < _ES6_DECIMAL_BELOW:
        return int(es6_number(value))
    return value


def es6_number(value: float) -> str:
    """A finite number as ECMAScript writes it, which RFC 8785 (section 3.2.2.3) asks for."""
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
    text = _ENCODER.encode(value)
    data = text.encode()
    # The standard library's encoder differs from the RFC in small and large fractions and in the order of keys
    # beyond the Basic Multilingual Plane, and is many times faster than one of our own.
    if "e-" in text or "e+" in text or _BEYOND_BMP.search(data):
        return _canonical(value).encode()
    return data


def _canonical(value: Any) -> str:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{_ENCODER.encode(name)}:{_canonical(value[name])}" for name in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if isinstance(value, float):
        return es6_number(value)
    return _ENCODER.encode(value)


def digest(value: Any) -> str:
    """SHA-256 of a normal value's canonical bytes, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


def same(one: Any, other: Any) -> bool:
    """Whether two normal values are one: to Python, but not to JSON, `1 == True`."""
    if one is other:
        return True
    if type(one) is not type(other) or one != other:
        return False
    return not isinstance(one, (dict, list)) or canonical(one) == canonical(other)
