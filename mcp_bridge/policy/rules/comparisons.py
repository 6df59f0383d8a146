"""How rules compare: as conditions of programs do, but what can't be known, or has an unexpected type, has no answer.

A rule is for a call that somebody else has written. There `"true" == True` isn't an honest "no": a server may well take
the text for the boolean. So values of two kinds are never compared, and neither is what the policy doesn't see.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NoReturn

from mcp_bridge.kernel.language.conditions import ConditionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Unknown:
    """A text that the policy doesn't see whole: a secret is in it, or a reference behind which no value is.

    Nothing is compared with it but a text that is written alike. Whatever else is asked of it raises `ConditionError`.

    Attributes:
        text: The text, references to values resolved, the others as they are written.
        pieces: The parts of it that are known.
    """

    __slots__ = ("pieces", "text")

    def __init__(self, text: str, pieces: tuple[str, ...] = ()) -> None:
        self.text = text
        self.pieces = pieces

    def __bool__(self) -> bool:
        raise ConditionError("whether it is empty isn't known")

    def __str__(self) -> str:
        raise ConditionError("a secret is no part of a text that is compared")

    __repr__ = object.__repr__


class UndeclaredList(list[Any]):
    """A list in the place of an argument whose schema announces none."""


def kind_of(value: Any) -> str:
    """The JSON type of a value; every number is a `number`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, (str, Unknown)):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _no_answer(why: str) -> NoReturn:
    raise ConditionError(why)


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are the same as JSON.

    Raises:
        ConditionError: They are of two kinds, neither being null; or they differ only in what isn't known.
    """
    if one is None or other is None:
        return one is other
    kind = kind_of(one)
    if kind != kind_of(other):
        _no_answer(f"a value of the type {kind} is compared with one of the type {kind_of(other)}")
    if isinstance(one, Unknown) or isinstance(other, Unknown):
        return _written_alike(one, other)
    if kind == "array":
        return len(one) == len(other) and _all_equal(zip(one, other, strict=True))
    if kind == "object":
        return one.keys() == other.keys() and _all_equal((one[name], other[name]) for name in one)
    return bool(one == other)


def _written_alike(one: Any, other: Any) -> bool:
    texts = [value.text if isinstance(value, Unknown) else value for value in (one, other)]
    if texts[0] == texts[1]:
        return True
    _no_answer("a part of the text isn't known")


def _all_equal(pairs: Any) -> bool:
    """Whether all are; a pair that differs answers for those that can't be compared."""
    doubt: ConditionError | None = None
    for one, other in pairs:
        try:
            if not _equal(one, other):
                return False
        except ConditionError as exc:
            doubt = exc
    if doubt is not None:
        raise doubt
    return True


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, Unknown):
        if isinstance(part, str) and any(part in piece for piece in whole.pieces):
            return True
        _no_answer("a part of the text isn't known")
    if isinstance(whole, str):
        return _text_contains(whole, part)
    if isinstance(whole, list):
        return _list_contains(whole, part)
    if isinstance(whole, dict) and isinstance(part, str) and part in whole:
        return True
    _no_answer(f"a value of the type {kind_of(whole)} is asked for what it contains")


def _text_contains(whole: str, part: Any) -> bool:
    if not isinstance(part, str):
        _no_answer(f"a text is asked for a value of the type {kind_of(part)}")
    return part in whole


def _list_contains(whole: list[Any], part: Any) -> bool:
    doubt: ConditionError | None = None
    for item in whole:
        try:
            if _equal(item, part):
                return True
        except ConditionError as exc:
            doubt = doubt or exc
    if isinstance(whole, UndeclaredList):
        _no_answer("a list stands where its tool announces none")
    if doubt is not None and (isinstance(part, Unknown) or not _has_kind(whole, part)):
        raise doubt
    return False


def _has_kind(whole: list[Any], part: Any) -> bool:
    """Whether a list has comparable values of a kind, and what is of other kinds is just something else."""
    kinds = {kind_of(item) for item in whole}
    return kind_of(part) in kinds and not any(isinstance(item, Unknown) for item in whole)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def ordered(one: Any, other: Any) -> bool:
        kinds = kind_of(one), kind_of(other)
        if kinds not in {("number", "number"), ("string", "string")} or Unknown in {type(one), type(other)}:
            _no_answer(f"a value of the type {kinds[0]} and one of the type {kinds[1]} have no order")
        return compare(one, other)

    return ordered


_BOOLEAN_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "0", "1"})


def truth(value: Any) -> bool:
    """Whether a value counts as true, as in Python.

    Raises:
        ConditionError: It is a text that a lenient server reads as a boolean, perhaps as the other one.
    """
    if isinstance(value, str) and value.strip().casefold() in _BOOLEAN_WORDS:
        _no_answer("a text stands where a boolean is asked for")
    return bool(value)


STRICT: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": _equal,
    "!=": lambda one, other: not _equal(one, other),
    ">": _ordered(operator.gt),
    ">=": _ordered(operator.ge),
    "<": _ordered(operator.lt),
    "<=": _ordered(operator.le),
    "in": lambda part, whole: _contains(whole, part),
    "not in": lambda part, whole: not _contains(whole, part),
    "contains": _contains,
}
"""The comparisons of rules' conditions, by their signs."""
