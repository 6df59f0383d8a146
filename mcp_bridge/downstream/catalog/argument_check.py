"""Arguments checked against a tool's schema on the host, before its server sees them.

Arguments that can't be checked completely and within bounds are refused (`UncheckedError`), and the call isn't made:
rules decide by the types that a schema promises. The server itself has to check only what can't change the decision of
a rule: `format`; `pattern` (rules see the text itself, and both pattern and text come from untrusted parties, which
could make Python's regex engine run for ever); and names that only `unevaluatedProperties` forbids, where the check
would have to follow references. What depends on that, as `not` a pattern, is the server's to check, too
(`three_valued_keywords`).

An invalid schema is repaired if the invalid part says nothing about types (`required: true` in a property, a null
description) or writes a type in another way (`"type": "int"`). Otherwise the schema can't be used, and its tool can't
be called. The same applies to a part of a schema that refers to another document, if the arguments reach it: nothing
is ever fetched.
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import re
import threading
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from mcp_bridge.downstream.catalog.argument_faults import cut, faults_of
from mcp_bridge.downstream.catalog.flat_schema import FlatSchema, flat_schema
from mcp_bridge.downstream.catalog.schema_faults import LargeSchemaError, schema_faults
from mcp_bridge.downstream.catalog.schema_types import MAX_REFERENCE_CHARS
from mcp_bridge.downstream.catalog.three_valued_keywords import LEFT_OUT, evaluated, note_unknown, three_valued
from mcp_bridge.offload import is_large, on_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from fractions import Fraction

    from jsonschema.protocols import Validator

T = TypeVar("T")

# Steps of a check on the event loop, a few milliseconds. A longer check starts again on a thread.
QUICK_STEPS = 2_000

# Steps of any check, a few seconds on a thread. A check of few values gets the least number, plus so many for each
# value. A schema that refers to itself twice takes exponentially many steps; others take a few for each value.
MAX_STEPS = 500_000
_LEAST_STEPS = 20_000
_STEPS_A_VALUE = 10

# A schema with more text or values is compiled on a thread: validating 1000 characters takes up to 8 ms.
_QUICK_SCHEMA_CHARS = 2_000
_QUICK_SCHEMA_VALUES = 200

_REFERENCE_CHARS_A_STEP = 64

# Characters of argument names that are matched against the expressions of `patternProperties`.
_MATCHED_CHARS = 1000

# How often a schema is repaired and validated again, and how many of its faults are repaired.
_REPAIRS = 4
_FAULTS_REPAIRED = 100

# A nested unbounded repetition can take exponential time. Each further repetition in a row multiplies the time by the
# length of the text.
_UNBOUNDED_IN_A_ROW = 2


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class ArgumentError(ValueError):
    """Arguments that violate the schema or can't be encoded as JSON; the message lists each fault with its path."""


class UncheckedError(ArgumentError):
    """Arguments that can't be checked against the schema, so that nothing is known about them."""


class _TooManyStepsError(Exception):
    """A check exceeded its steps."""


class _Steps(threading.local):
    left = 0
    schema: Any = None


_steps = _Steps()


class ArgumentCheck:
    """The compiled schema of one tool. `check` may be called on any thread."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._validator: Validator | None = None
        self._flat: FlatSchema | None = None
        """The schema, once it is compiled, if it is flat."""
        self._unusable: str | None = None

    async def run(self, arguments: dict[str, Any]) -> None:
        """As `check`, on a thread if it takes more than a few milliseconds."""
        if self._flat is not None and not is_large(arguments):
            json_size(arguments)
            if self._flat.accepts(arguments):
                return
        await self._run_bounded(self.check, arguments)

    async def faults_of_part(self, arguments: dict[str, Any]) -> list[str]:
        """The faults of some of a call's arguments. Missing and unknown arguments are no faults here.

        Raises:
            ArgumentError: The arguments can't be checked against the schema.
        """
        return await self._run_bounded(functools.partial(self._faults, partly=True), arguments)

    async def _run_bounded(self, check: Callable[[dict[str, Any], int], T], arguments: dict[str, Any]) -> T:
        if not is_large(arguments) and self._is_ready:
            try:
                return check(arguments, QUICK_STEPS)
            except _TooManyStepsError:
                pass
        return await on_thread(check, arguments, MAX_STEPS)

    @property
    def _is_ready(self) -> bool:
        """Whether the schema is compiled or small enough to be compiled on the event loop."""
        return (
            self._validator is not None
            or self._unusable is not None
            or not is_large(self._schema, chars=_QUICK_SCHEMA_CHARS, values=_QUICK_SCHEMA_VALUES)
        )

    def check(self, arguments: dict[str, Any], steps: int = MAX_STEPS) -> None:
        """Return if the arguments may be sent.

        Args:
            arguments: Argument values by the schema's names.
            steps: How many keywords may be evaluated, weighted by the values each looks through. A check that exceeds
                a number below MAX_STEPS raises `_TooManyStepsError`, which the caller handles. With MAX_STEPS, the
                limit is scaled down for arguments of few values.

        Raises:
            ArgumentError: They violate the schema; the message lists the faults, each with its path.
            UncheckedError: They can't be checked.
        """
        if faults := self._faults(arguments, steps, partly=False):
            raise ArgumentError("; ".join(faults))

    def _faults(self, arguments: dict[str, Any], steps: int, *, partly: bool) -> list[str]:
        json_size(arguments)
        if self._validator is None and self._unusable is None:
            self._compile()
        if self._validator is None:
            raise UncheckedError(f"its schema is not valid: {self._unusable}")
        allowed = min(steps, _LEAST_STEPS + _STEPS_A_VALUE * _values(arguments))
        _steps.left, _steps.schema = allowed, self._schema
        try:
            return faults_of(self._validator, self._schema, arguments, partly=partly)
        except _TooManyStepsError:
            if steps < MAX_STEPS:
                raise
            raise UncheckedError(f"to hold them against its schema takes more than {allowed} steps") from None
        except RecursionError:
            raise UncheckedError("its schema refers to itself without end, or nests too deeply") from None
        except ArgumentError:
            raise
        except ValueError as error:
            # A library's: a reference has a name in the place of a list's index.
            raise UncheckedError(f"its schema refers to what isn't in it: {cut(str(error))}") from None
        except BaseException as error:
            library = type(error).__module__
            if library == "pyo3_runtime":
                # What a RecursionError may become within a map of the library's, which is written in Rust.
                raise UncheckedError("its schema refers to itself without end, or nests too deeply") from None
            if library.startswith(("referencing", "jsonschema")):
                raise UncheckedError(f"its schema refers to what isn't in it: {cut(str(error))}") from None
            raise

    def _compile(self) -> None:
        try:
            self._validator = _compile(self._schema)
            # Only of a schema that is valid, or mended by leaving parts out: what fits all of it fits the rest.
            self._flat = flat_schema(self._schema)
        except UncheckedError as error:
            self._unusable = str(error)
        except RecursionError:
            self._unusable = "it nests too deeply"


def _values(value: Any) -> int:
    count = 0
    stack = [value]
    while stack and count < MAX_STEPS:
        node = stack.pop()
        count += 1
        if isinstance(node, dict):
            stack.extend(node.values())
        elif isinstance(node, (list, tuple)):
            stack.extend(node)
    return count


def json_size(value: Any) -> int:
    """Size of a value as JSON, in bytes.

    Raises:
        ArgumentError: No JSON can carry it: NaN, infinities, lone surrogates, depth, foreign types.
    """
    try:
        return len(_encode(value).encode())
    except RecursionError:
        raise ArgumentError("nested too deeply") from None
    except UnicodeEncodeError:
        raise ArgumentError("a string holds a lone surrogate, which is not Unicode text") from None
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"not JSON: {error}") from None


# --- the schema ---


def _compile(schema: dict[str, Any]) -> Validator:
    """The validator of a schema.

    Raises:
        UncheckedError: The schema is invalid and can't be repaired without guessing about types.
    """
    from jsonschema.validators import Draft202012Validator, validator_for  # noqa: PLC0415 - 100 ms that most commands never need
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # noqa: PLC0415

    if not isinstance(schema.get("$schema", ""), str):
        raise UncheckedError("its $schema is no text")
    kind = validator_for(schema, default=Draft202012Validator)
    valid = _repaired(schema, kind)
    # The registry holds the specifications' own schemas only: nothing is fetched over the network.
    return _bounded(kind)(valid, registry=REGISTRY)


def _repaired(schema: dict[str, Any], kind: Any) -> dict[str, Any]:
    """The schema without its invalid parts, if these say nothing about types; else raises UncheckedError."""
    for _ in range(_REPAIRS):
        try:
            faults = schema_faults(kind, schema, _FAULTS_REPAIRED)
        except LargeSchemaError:
            raise UncheckedError(
                "it is too large for a schema of its dialect; that of 2020-12 has no such limit"
            ) from None
        if not faults:
            return schema
        schema = json.loads(json.dumps(schema))
        for path in faults:
            _repair(schema, path)
    raise UncheckedError("it has too many faults")


# Keywords that say nothing about a value's type, or nothing about a property that a rule could test.
_BOUNDS = frozenset({
    "required", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
    "minContains", "maxContains",
})  # fmt: skip

# Keywords that refuse no value.
_ANNOTATIONS = frozenset({
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment",
    "$id", "$anchor", "$schema", "id", "contentEncoding", "contentMediaType",
})  # fmt: skip

_TYPES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "map": "object",
    "list": "array",
    "tuple": "array",
    "none": "null",
    "nil": "null",
}


def _repair(schema: Any, path: tuple[Any, ...]) -> None:
    """Remove from a schema the invalid part at a path, or the nearest part that contains it.

    Raises:
        UncheckedError: The part may be about types.
    """
    node = schema
    for depth, part in enumerate(path):
        if isinstance(part, str) and isinstance(node, dict):
            if part in _BOUNDS | _ANNOTATIONS and not _is_name(path, depth):
                # Another fault of the same keyword has removed it already.
                node.pop(part, None)
                if part in _BOUNDS:
                    # Its server may know what is meant.
                    node[LEFT_OUT] = True
                return
            if part == "type" and not _is_name(path, depth) and _repair_type(node):
                return
            if part == "items" and isinstance(node.get("items"), list) and not _is_name(path, depth):
                # A tuple, as drafts before 2020-12 define it.
                node["prefixItems"] = node.pop("items")
                return
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            return
    raise UncheckedError(f"{cut('.'.join(map(str, path))) or 'the whole of it'} is no part of a schema")


def _is_name(path: tuple[Any, ...], depth: int) -> bool:
    """Whether a path component is a property name and not a keyword."""
    return depth > 0 and path[depth - 1] in {"properties", "$defs", "definitions", "dependentSchemas", "dependencies"}


def _repair_type(node: dict[str, Any]) -> bool:
    """Rewrite a type in JSON Schema's terms; False if it is unknown."""
    declared = node.get("type")
    if isinstance(declared, str) and declared.lower() == "any":
        del node["type"]
        return True
    names = declared if isinstance(declared, list) else [declared]
    known = {"string", "integer", "number", "boolean", "object", "array", "null"}
    types = []
    for name in names:
        lower = "null" if name is None else name.lower() if isinstance(name, str) else ""
        lower = _TYPES.get(lower, lower)
        if lower not in known:
            return False
        if lower not in types:
            types.append(lower)
    if not types or types == declared or (len(types) == 1 and types[0] == declared):
        return False
    node["type"] = types if len(types) > 1 else types[0]
    return True


@cache
def _bounded(kind: Any) -> Any:
    from jsonschema.validators import extend  # noqa: PLC0415

    ours: dict[str, Any] = dict(three_valued(kind.VALIDATORS))
    # Keywords that match property names by regular expressions.
    for name in ("patternProperties", "additionalProperties"):
        if name in kind.VALIDATORS:
            ours[name] = _with_safe_expressions(kind.VALIDATORS[name])
    for name in ("unevaluatedProperties", "unevaluatedItems"):
        if name in kind.VALIDATORS:
            ours[name] = _unevaluated(kind.VALIDATORS[name])
    for name in {"$ref", "$dynamicRef"} & kind.VALIDATORS.keys():
        ours[name] = _short_reference(kind.VALIDATORS[name])
    if "uniqueItems" in kind.VALIDATORS:
        ours["uniqueItems"] = _unique
    # The second is what draft 3 calls it.
    ours |= dict.fromkeys({"multipleOf", "divisibleBy"} & kind.VALIDATORS.keys(), _multiple_of)
    return extend(kind, {name: _counted(keyword) for name, keyword in (kind.VALIDATORS | ours).items()})


def _counted(keyword: Any) -> Any:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _spend(1 + (_length(value) + _length(instance)) // 16)
        for error in keyword(validator, value, instance, schema) or ():
            # The error message includes the whole invalid value.
            _spend(1 + _length(instance) // 4)
            yield error

    return counted


def _spend(steps: int) -> None:
    _steps.left -= steps
    if _steps.left < 0:
        raise _TooManyStepsError


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value) // 256
    return len(value) if isinstance(value, (list, dict)) else 0


def _short_reference(keyword: Any) -> Any:
    def followed(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(value, str):
            if len(value) > MAX_REFERENCE_CHARS:
                raise UncheckedError(f"its schema has a reference of more than {MAX_REFERENCE_CHARS} characters")
            # All of its text is looked at each time.
            _spend(len(value) // _REFERENCE_CHARS_A_STEP)
        yield from keyword(validator, value, instance, schema) or ()

    return followed


def _with_safe_expressions(keyword: Any) -> Any:
    def safely(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, dict) and instance:
            own = schema.get("patternProperties")
            expressions = list(own) if isinstance(own, dict) else []
            _require_safe(expressions, instance)
        yield from keyword(validator, value, instance, schema) or ()

    return safely


def _unevaluated(keyword: Any) -> Any:
    def bounded(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not isinstance(instance, (dict, list)) or not instance:
            return
        expressions, keywords = _expressions_in(_steps.schema)
        if not keywords.isdisjoint(("$ref", "$dynamicRef", "$recursiveRef")):
            # References that it follows aren't counted there, and may recurse in exponentially many ways.
            if value is False:
                note_unknown()
            if isinstance(value, bool):
                return
            raise UncheckedError("its schema combines unevaluatedProperties or unevaluatedItems with references")
        if isinstance(instance, dict):
            _require_safe(expressions, instance)
        errors, is_unknown = evaluated(keyword(validator, value, instance, schema) or ())
        if is_unknown:
            note_unknown()
        # It takes what may fit for what fits, so that more is evaluated; of an `if`, one branch only.
        is_open = is_unknown and "if" in keywords
        if is_open and errors and value is not False:
            is_open = not evaluated(otherwise(validator, value, instance, schema), most=1)[0]
        if not is_open:
            yield from errors

    def otherwise(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        """The errors if the server finds that the value doesn't fit the `if`."""
        if not evaluated(validator.descend(instance, schema.get("if", True)))[1]:
            raise UncheckedError(
                "its schema combines unevaluatedProperties or unevaluatedItems with an if that only the server "
                "can decide"
            )
        yield from keyword(validator, value, instance, schema | {"if": False}) or ()
        yield from validator.descend(instance, schema.get("else", True))

    return bounded


def _require_safe(expressions: Sequence[str], instance: dict[str, Any]) -> None:
    """Count the steps of matching names by regular expressions.

    Raises:
        UncheckedError: Python's engine may take exponential time for one of them, or can't compile it.
    """
    for expression in expressions:
        if not _is_safe(expression):
            raise UncheckedError(f"its schema tells names by the expression {cut(repr(expression))}")
    if expressions and max(map(len, instance)) > _MATCHED_CHARS:
        raise UncheckedError(f"a name in them has more than {_MATCHED_CHARS} characters")
    _spend(len(expressions) * len(instance))


def _expressions_in(schema: Any) -> tuple[list[str], set[str]]:
    """The regular expressions that match property names anywhere in a schema, and all of its keywords and names."""
    expressions: set[str] = set()
    keywords: set[str] = set()
    stack = [schema]
    while stack:
        node = stack.pop()
        _spend(1)
        if isinstance(node, dict):
            keywords |= node.keys()
            own = node.get("patternProperties")
            if isinstance(own, dict):
                expressions |= own.keys()
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return sorted(expressions), keywords


@cache
def _parser() -> Any:
    # Only this parser agrees with `re` about an expression. It isn't public, so unknown constructs count as unsafe.
    return importlib.import_module("re._parser")


@lru_cache(maxsize=1000)
def _is_safe(expression: str) -> bool:
    """Whether a search takes at most cubic time in the length of a name."""
    if expression in {".*", "^.*$", "^(.*)$", ".+", "^.+$", ""}:
        return True
    if len(expression) > _MATCHED_CHARS:
        return False
    try:
        re.compile(expression)
        tree = _parser().parse(expression)
    except (re.error, OverflowError, RecursionError):
        return False
    return _unbounded(tree) <= _UNBOUNDED_IN_A_ROW


_MANY = 1000


def _unbounded(items: Any) -> int:
    """The number of unbounded repetitions in a row; _MANY for a construct not known to be safe."""
    count = 0
    for op, argument in items:
        match str(op):
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" | "AT":
                pass
            case "SUBPATTERN":
                count += _unbounded(argument[-1])
            case "BRANCH":
                count += sum(max(_unbounded(branch), 0) for branch in argument[1])
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, item = argument
                simple = len(item) == 1 and str(item[0][0]) in {"LITERAL", "NOT_LITERAL", "ANY", "IN"}
                if simple:
                    count += str(most) == "MAXREPEAT" or most - least > 1
                elif str(most) != "MAXREPEAT" and most <= 1:
                    count += 1 + _unbounded(item)
                else:
                    return _MANY
            case _:
                return _MANY
    return min(count, _MANY)


def _unique(validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    """The keyword `uniqueItems` in linear time: jsonschema compares all pairs if the items are objects."""
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415 - as in `_compile`

    if value is True and validator.is_type(instance, "array"):
        seen = set()
        for item in instance:
            text = json.dumps(_comparable(item), sort_keys=True)
            _spend(1 + len(text) // 256)
            if text in seen:
                yield ValidationError("has non-unique elements")
                return
            seen.add(text)


def _multiple_of(validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    """The keyword `multipleOf` of the numbers as JSON writes them: in binary, 19.99 is no multiple of 0.01."""
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415 - as in `_compile`

    if not validator.is_type(instance, "number"):
        return
    step, number = _exact(value), _exact(instance)
    if step is None or number is None:
        note_unknown()
    elif number % step:
        yield ValidationError(f"{instance!r} is not a multiple of {value!r}")


def _exact(number: float) -> Fraction | None:
    """A number as its digits say; None for an infinity, as Python reads 1e999."""
    from fractions import Fraction  # noqa: PLC0415 - with `decimal`, which few schemas need

    if isinstance(number, int):
        return Fraction(number)
    return Fraction(repr(number)) if math.isfinite(number) else None


def _comparable(value: Any) -> Any:
    """The value, normalised so that equal values are equal JSON: 1 equals 1.0, and 1 differs from true."""
    if isinstance(value, dict):
        return {name: _comparable(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_comparable(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
