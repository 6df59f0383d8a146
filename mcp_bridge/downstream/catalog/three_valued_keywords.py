"""Keywords of JSON Schema that combine subschemas, where whether a value fits one may be unknown.

What the host leaves to the server (`pattern`, `format`) makes a value's fit unknown, unless another keyword refuses it.
`jsonschema` knows two answers only: with "unknown" taken for "fits", `not`, `if` and `oneOf` would refuse calls that
the server takes. These here refuse what is refused whichever way the server decides.

Keywords that ask all of their subschemas (`allOf`, `properties`, `$ref`) need nothing: what is unknown below is noted
for the schema above.
"""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Keyword = Callable[[Any, Any, Any, Any], Iterator[Any]]

LEFT_OUT = "x-left-out"
"""A keyword of ours, in a schema of which something is left out: whether a value fits it is unknown."""


class _Evaluation(threading.local):
    is_unknown = False


_evaluation = _Evaluation()


def note_unknown() -> None:
    """Note, for the schema that is being evaluated, that only the server can tell whether the value fits."""
    _evaluation.is_unknown = True


def evaluated(errors: Iterable[Any], most: int | None = None) -> tuple[list[Any], bool]:
    """The errors of a subschema, and whether anything was unknown: it isn't noted for the schema above.

    Args:
        errors: As they are found.
        most: How many are asked for.
    """
    before, _evaluation.is_unknown = _evaluation.is_unknown, False
    try:
        return list(islice(errors, most)), _evaluation.is_unknown
    finally:
        _evaluation.is_unknown = before


def three_valued(keywords: Mapping[str, Any]) -> dict[str, Keyword]:
    """Those of a dialect's keywords that have to be replaced."""
    ours: dict[str, Keyword] = {"not": _not, "if": _if, "anyOf": _any_of, "oneOf": _one_of}
    # Its bounds came with these.
    ours["contains"] = _contains if "unevaluatedItems" in keywords else _contains_any
    ours = {name: keyword for name, keyword in ours.items() if name in keywords}
    return ours | {"pattern": _pattern, "format": _unknown, LEFT_OUT: _unknown}


def _unknown(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> Iterator[Any]:
    # Formats of numbers exist, too: `int32`.
    note_unknown()
    return iter(())


def _pattern(validator: Any, _value: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string"):
        note_unknown()
    return iter(())


def _fits(validator: Any, instance: Any, schema: Any) -> bool | None:
    """Whether a value fits a schema; None if that is unknown."""
    errors, is_unknown = evaluated(validator.descend(instance, schema), most=1)
    return False if errors else None if is_unknown else True


def _not(validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    fits = _fits(validator, instance, value)
    if fits:
        yield _error(f"{instance!r} should not be valid under {value!r}")
    elif fits is None:
        note_unknown()


def _if(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    def branch(name: str) -> Iterator[Any]:
        yield from validator.descend(instance, schema.get(name, True), schema_path=name)

    fits = _fits(validator, instance, value)
    if fits is not None:
        yield from branch("then" if fits else "else")
        return
    note_unknown()
    otherwise, _ = evaluated(branch("else"), most=1)
    if otherwise:
        yield from branch("then")


def _any_of(validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    faults: list[Any] = []
    is_any_unknown = False
    for index, option in enumerate(value):
        errors, is_unknown = evaluated(validator.descend(instance, option, schema_path=index))
        if not errors and not is_unknown:
            return
        is_any_unknown = is_any_unknown or not errors
        faults += errors
    if is_any_unknown:
        note_unknown()
    else:
        yield _error(f"{instance!r} is not valid under any of the given schemas", faults)


def _one_of(validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    faults: list[Any] = []
    fitting: list[Any] = []
    is_any_unknown = False
    for index, option in enumerate(value):
        most = 1 if fitting or is_any_unknown else None
        errors, is_unknown = evaluated(validator.descend(instance, option, schema_path=index), most)
        faults += errors
        if not errors and is_unknown:
            is_any_unknown = True
        elif not errors:
            fitting.append(option)
    if len(fitting) > 1:
        yield _error(f"{instance!r} is valid under each of {', '.join(map(repr, fitting))}")
    elif is_any_unknown:
        note_unknown()
    elif not fitting:
        yield _error(f"{instance!r} is not valid under any of the given schemas", faults)


def _contains(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "array"):
        return
    least, most = schema.get("minContains", 1), schema.get("maxContains", len(instance))
    fits = [_fits(validator, item, value) for item in instance]
    certain, possible = fits.count(True), len(fits) - fits.count(False)
    if certain > most:
        yield _error(f"Too many items match the given schema (expected at most {most})")
    elif possible < least:
        yield _error(f"Too few items match the given schema (expected at least {least} but only {possible} matched)")
    elif certain < least or possible > most:
        note_unknown()


def _contains_any(validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    yield from _contains(validator, value, instance, {})


def _error(message: str, context: list[Any] | None = None) -> Any:
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415 - 100 ms that most commands never need

    return ValidationError(message, context=context or ())
