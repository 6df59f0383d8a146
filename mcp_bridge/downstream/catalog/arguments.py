"""Arguments checked against a tool's schema on the host, before its server sees them.

What isn't checked isn't called: rules decide by the types that a schema promises, so a call whose arguments can't be
held against their schema, whole and within bounds, is refused (`UncheckedError`). Left to the server is what no rule
could come to another end by: `format`, `pattern` (rules see the text itself; pattern and text would both come from
parties that are not trusted, and Python's engine can be made to run for ever), and which names may not be there, where
only `unevaluatedProperties` says so and references are to be followed for it.

A schema that is not valid is mended where what is wrong says nothing about types (`required: true` in a property, a
description that is null), or is another way to write a type (`"type": "int"`). Else it checks nothing, so its tool
can't be called. The same goes for a part of a schema that refers to another document, where the arguments reach it:
nothing is ever fetched.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import threading
from collections import Counter
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from mcp_bridge.downstream.catalog.aliases import nearest
from mcp_bridge.downstream.catalog.schema_types import object_shape
from mcp_bridge.offload import is_large, on_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jsonschema.protocols import Validator

T = TypeVar("T")

# Steps of a check on the event loop, some milliseconds of it. One that takes more begins anew on a thread.
QUICK_STEPS = 2_000

# Steps of any check, some seconds on a thread; and of one of a few values, with so many more for each value. A schema
# that refers to itself twice takes exponentially many, and one that doesn't a few for each value.
MAX_STEPS = 500_000
_LEAST_STEPS = 20_000
_STEPS_A_VALUE = 10

# A schema of more text or values is compiled on a thread: to see whether it is valid takes 8 ms for 1000 characters.
_QUICK_SCHEMA_CHARS = 2_000
_QUICK_SCHEMA_VALUES = 200

# Names in arguments that are held against expressions of `patternProperties`, in characters.
_MATCHED_CHARS = 1000

# How often a schema is mended and looked at again, and how many faults of it are mended.
_MENDINGS = 4
_FAULTS_MENDED = 100

# How many faults one message names, how many of one kind at one place (rows of a list are one), and in how many
# characters. Whoever calls reads all of them: a fault that isn't told costs another call.
_FAULTS_NAMED = 20
_FAULTS_ALIKE = 3
_FAULTS_CHARS = 2_000

# Beside so many, what can't be looked at any more makes no difference.
_FAULTS_ENOUGH = 3

# Faults that are looked at; wrong names that are told, and names among which what was meant is looked for.
_FAULTS_SEEN = 200
_NAMES_TOLD = 10
_NAMES_MEANT = 200

# How much of an offending value a message shows.
_VALUE_SHOWN = 80

# A repetition without an upper bound inside of another can take exponential time; of several in a row each makes the
# time longer by a factor of the text's length.
_UNBOUNDED_IN_A_ROW = 2


class ArgumentError(ValueError):
    """Arguments that break the schema, or that no JSON can carry; the text names each fault with its path."""


class UncheckedError(ArgumentError):
    """Arguments that can't be held against the schema, so that nobody knows what they are."""


class _TooManyStepsError(Exception):
    """A check took too long."""


class _Steps(threading.local):
    left = 0
    schema: Any = None


_steps = _Steps()


class ArgumentCheck:
    """The compiled schema of one tool. `check` may be called on any thread."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._validator: Validator | None = None
        self._unusable: str | None = None

    async def run(self, arguments: dict[str, Any]) -> None:
        """As `check`, on a thread where it takes more than some milliseconds."""
        await self._quickly(self.check, arguments)

    async def faults_of_part(self, arguments: dict[str, Any]) -> list[str]:
        """What is wrong with some of the arguments of a call, whatever else is missing or has no parameter.

        Raises:
            ArgumentError: They can't be held against the schema.
        """
        return await self._quickly(functools.partial(self._faults, partly=True), arguments)

    async def _quickly(self, check: Callable[[dict[str, Any], int], T], arguments: dict[str, Any]) -> T:
        if not is_large(arguments) and self._is_ready:
            try:
                return check(arguments, QUICK_STEPS)
            except _TooManyStepsError:
                pass
        return await on_thread(check, arguments, MAX_STEPS)

    @property
    def _is_ready(self) -> bool:
        """Whether nothing takes long before the check itself."""
        return (
            self._validator is not None
            or self._unusable is not None
            or not is_large(self._schema, chars=_QUICK_SCHEMA_CHARS, values=_QUICK_SCHEMA_VALUES)
        )

    def check(self, arguments: dict[str, Any], steps: int = MAX_STEPS) -> None:
        """Return if the arguments may be sent.

        Args:
            arguments: By their names in the schema.
            steps: Keywords that are looked at, each with what it looks through; with fewer than MAX_STEPS, a check that
                takes more is not made, which the caller has to deal with. Of MAX_STEPS a few values get a part.

        Raises:
            ArgumentError: They may not; the message lists the faults, each with its path.
            UncheckedError: Nobody knows whether they may.
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
            return _faults(self._validator, self._schema, arguments, partly=partly)
        except _TooManyStepsError:
            if steps < MAX_STEPS:
                raise
            raise UncheckedError(f"to hold them against its schema takes more than {allowed} steps") from None
        except RecursionError:
            raise UncheckedError("its schema refers to itself without end, or nests too deeply") from None
        except UncheckedError:
            raise
        except Exception as error:
            if type(error).__module__.startswith(("referencing", "jsonschema")):
                raise UncheckedError(f"its schema refers to what isn't in it: {_cut(str(error))}") from None
            raise

    def _compile(self) -> None:
        try:
            self._validator = _compile(self._schema)
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
    """Bytes of the value as JSON.

    Raises:
        ArgumentError: No JSON can carry it: NaN, infinities, lone surrogates, depth, foreign types.
    """
    try:
        return len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
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
        UncheckedError: It isn't valid, and can't be mended without a guess at what it says of types.
    """
    from jsonschema.validators import Draft202012Validator, validator_for  # noqa: PLC0415 - 100 ms that most commands never need
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # noqa: PLC0415

    kind = validator_for(schema, default=Draft202012Validator)
    valid = _mended(schema, kind)
    # A registry with the specifications' own schemas only: nothing is fetched over the network.
    return _bounded(kind)(valid, registry=REGISTRY)


def _mended(schema: dict[str, Any], kind: Any) -> dict[str, Any]:
    """The schema without what is not valid in it, if that says nothing about types; else UncheckedError."""
    # Formats aren't looked at: an expression that Python can't read would make a whole schema count for nothing.
    meta = kind(kind.META_SCHEMA)
    for _ in range(_MENDINGS):
        faults = _schema_faults(meta, schema)
        if not faults:
            return schema
        schema = json.loads(json.dumps(schema))
        for path in faults:
            _mend(schema, path)
    raise UncheckedError("it has too many faults")


def _schema_faults(meta: Any, schema: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for error in meta.iter_errors(schema):
        found.append(tuple(error.absolute_path))
        if len(found) > _FAULTS_MENDED:
            break
    return found


# What says nothing about the type of a value, or what is true of it in a way that a rule could ask about.
_HARMLESS = frozenset({
    "required", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "pattern", "format", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
    "minContains", "maxContains", "title", "description", "default", "examples", "example", "deprecated",
    "readOnly", "writeOnly", "$comment", "$id", "$anchor", "$schema", "id", "contentEncoding",
    "contentMediaType",
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


def _mend(schema: Any, path: tuple[Any, ...]) -> None:
    """Take out of a schema what is wrong at a path, or within it.

    Raises:
        UncheckedError: It may be about types.
    """
    node = schema
    for depth, part in enumerate(path):
        if isinstance(part, str) and isinstance(node, dict):
            if part in _HARMLESS and not _is_name(path, depth):
                # Gone already, where two faults are of one keyword.
                node.pop(part, None)
                return
            if part == "type" and not _is_name(path, depth) and _mend_type(node):
                return
            if part == "items" and isinstance(node.get("items"), list) and not _is_name(path, depth):
                # A tuple, as drafts before 2020-12 write it.
                node["prefixItems"] = node.pop("items")
                return
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            return
    raise UncheckedError(f"{_cut('.'.join(map(str, path))) or 'the whole of it'} is no part of a schema")


def _is_name(path: tuple[Any, ...], depth: int) -> bool:
    """Whether a part of a path is the name of a property and no keyword."""
    return depth > 0 and path[depth - 1] in {"properties", "$defs", "definitions", "dependentSchemas"}


def _mend_type(node: dict[str, Any]) -> bool:
    """Write a type as JSON Schema does; False if it is none that is known."""
    given = node.get("type")
    if isinstance(given, str) and given.lower() == "any":
        del node["type"]
        return True
    names = given if isinstance(given, list) else [given]
    known = {"string", "integer", "number", "boolean", "object", "array", "null"}
    found = []
    for name in names:
        lower = "null" if name is None else name.lower() if isinstance(name, str) else ""
        lower = _TYPES.get(lower, lower)
        if lower not in known:
            return False
        if lower not in found:
            found.append(lower)
    if not found or found == given or (len(found) == 1 and found[0] == given):
        return False
    node["type"] = found if len(found) > 1 else found[0]
    return True


@cache
def _bounded(kind: Any) -> Any:
    from jsonschema.validators import extend  # noqa: PLC0415

    def nothing(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> Iterator[Any]:
        return iter(())

    ours: dict[str, Any] = {"pattern": nothing, "format": nothing}
    # What looks at the names of properties through expressions.
    for name in ("patternProperties", "additionalProperties"):
        if name in kind.VALIDATORS:
            ours[name] = _with_safe_expressions(kind.VALIDATORS[name])
    for name in ("unevaluatedProperties", "unevaluatedItems"):
        if name in kind.VALIDATORS:
            ours[name] = _unevaluated(kind.VALIDATORS[name])
    if "uniqueItems" in kind.VALIDATORS:
        ours["uniqueItems"] = _unique
    return extend(kind, {name: _counted(keyword) for name, keyword in (kind.VALIDATORS | ours).items()})


def _counted(keyword: Any) -> Any:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _take(1 + (_length(value) + _length(instance)) // 16)
        for error in keyword(validator, value, instance, schema) or ():
            # Its message holds the whole of what is wrong.
            _take(1 + _length(instance) // 4)
            yield error

    return counted


def _take(steps: int) -> None:
    _steps.left -= steps
    if _steps.left < 0:
        raise _TooManyStepsError


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value) // 256
    return len(value) if isinstance(value, (list, dict)) else 0


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
        expressions, references = _found_in(_steps.schema)
        if references:
            # What follows them isn't counted there, and may come back to itself in ever more ways.
            if isinstance(value, bool):
                return
            raise UncheckedError("its schema has a schema for what is unevaluated beside references")
        if isinstance(instance, dict):
            _require_safe(expressions, instance)
        yield from keyword(validator, value, instance, schema) or ()

    return bounded


def _require_safe(expressions: Sequence[str], instance: dict[str, Any]) -> None:
    """Take the steps for telling names by expressions.

    Raises:
        UncheckedError: One of them could take Python's engine for ever, or isn't known to it.
    """
    for expression in expressions:
        if not _is_safe(expression):
            raise UncheckedError(f"its schema tells names by the expression {_cut(repr(expression))}")
    if expressions and max(map(len, instance)) > _MATCHED_CHARS:
        raise UncheckedError(f"a name in them has more than {_MATCHED_CHARS} characters")
    _take(len(expressions) * len(instance))


def _found_in(schema: Any) -> tuple[list[str], bool]:
    """The expressions by which a schema tells names, wherever they are in it, and whether it has references."""
    found: set[str] = set()
    stack, references = [schema], False
    while stack:
        node = stack.pop()
        _take(1)
        if isinstance(node, dict):
            references = references or not node.keys().isdisjoint(("$ref", "$dynamicRef", "$recursiveRef"))
            own = node.get("patternProperties")
            if isinstance(own, dict):
                found |= own.keys()
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return sorted(found), references


@cache
def _parser() -> Any:
    # The one parser that agrees with `re` on what an expression means. It isn't public: what isn't known is unsafe.
    return importlib.import_module("re._parser")


@lru_cache(maxsize=1000)
def _is_safe(expression: str) -> bool:
    """Whether a search takes no more than cubic time in a name."""
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
    """Repetitions of many in a row; _MANY for what isn't known to be safe."""
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
    """As the keyword, in linear time: jsonschema compares each with each where they are objects."""
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415

    if value is True and validator.is_type(instance, "array"):
        seen = set()
        for item in instance:
            text = json.dumps(_comparable(item), sort_keys=True)
            _take(1 + len(text) // 256)
            if text in seen:
                yield ValidationError("has non-unique elements")
                return
            seen.add(text)


def _comparable(value: Any) -> Any:
    """The value so that equal ones are the same JSON: 1 and 1.0 are equal, and 1 and true are not."""
    if isinstance(value, dict):
        return {name: _comparable(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_comparable(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


# --- what is told ---


def _faults(validator: Validator, schema: dict[str, Any], arguments: dict[str, Any], *, partly: bool) -> list[str]:
    found: list[str] = []
    alike: Counter[tuple[Any, ...]] = Counter()
    try:
        for count, error in enumerate(validator.iter_errors(arguments)):
            if partly and not error.absolute_path and error.validator in _OF_THE_WHOLE:
                continue
            if len(found) >= _FAULTS_NAMED or count >= _FAULTS_SEEN or sum(map(len, found)) > _FAULTS_CHARS:
                found.append("…")
                break
            # Two names that are missing at one place are two faults; rows that lack the same one are alike.
            missing = str(error.message) if error.validator in _NAMING else ""
            kind = (*(part for part in error.absolute_path if isinstance(part, str)), error.validator, missing)
            alike[kind] += 1
            if alike[kind] > _FAULTS_ALIKE:
                continue
            told = _fault(error)
            found = [*told, *found] if kind == _NO_PARAMETER else [*found, *told]
    except Exception:
        if len(found) < _FAULTS_ENOUGH:
            raise
        found.append("…")
    if found and not partly and _NO_PARAMETER not in alike:
        found = [*_without_parameter(schema, arguments), *found]
    if found and found[-1] != "…" and any(number > _FAULTS_ALIKE for number in alike.values()):
        found.append("…")
    return found


_OF_THE_WHOLE = frozenset({"required", "additionalProperties", "unevaluatedProperties", "minProperties"})
_NO_PARAMETER = ("additionalProperties", "")
_NAMING = frozenset({"required", "dependentRequired"})


def _fault(error: Any) -> list[str]:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    if error.validator == "additionalProperties" and "patternProperties" not in error.schema:
        known = error.schema.get("properties")
        told = _unknown(error.instance, known if isinstance(known, dict) else {}, "name" if path else "parameter")
        return [f"{_cut(path.lstrip('.'))}: {text}" for text in told] if path else told
    return [f"{_cut(path.lstrip('.')) or 'arguments'}: {_told(error)}"]


def _without_parameter(schema: dict[str, Any], arguments: dict[str, Any]) -> list[str]:
    """The names that no parameter has. A schema may allow them: they are told where something else is wrong."""
    shape = object_shape(schema)
    if shape.extra is not None or "patternProperties" in schema:
        return []
    return _unknown(arguments, shape.properties, "parameter")


def _unknown(given: dict[str, Any], known: dict[str, Any], what: str) -> list[str]:
    free = [name for name in known if name not in given][:_NAMES_MEANT]
    found: list[str] = []
    for number, name in enumerate(name for name in given if name not in known):
        if number == _NAMES_TOLD:
            return [*found, "…"]
        close = nearest(name, free, count=1)
        meant = f" (did you mean {_cut(close[0])}?)" if close else ""
        found.append(f"there is no {what} {_cut(repr(name))}{meant}")
    return found


def _told(error: Any) -> str:
    """The validator's message, without the whole of a long value at its head."""
    message = str(error.message)
    shown = repr(error.instance)
    if len(shown) > _VALUE_SHOWN and message.startswith(shown):
        return f"{shown[:_VALUE_SHOWN]}…{_cut(message[len(shown) :])}"
    return _cut(message)


def _cut(message: str) -> str:
    return message if len(message) <= 4 * _VALUE_SHOWN else f"{message[: 4 * _VALUE_SHOWN]}…"
