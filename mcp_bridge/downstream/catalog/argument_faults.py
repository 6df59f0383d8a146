"""What is wrong with arguments that violate a tool's schema, in the words of a message, each fault with its path."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from mcp_bridge.downstream.catalog.schema_types import needed_text, object_shape, referred, required_names, resolve
from mcp_bridge.near_names import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jsonschema.protocols import Validator

# How many faults a message lists, how many of one kind at one place (the rows of a list are one place), and in how many
# characters. The caller sees all of them at once: each fault that isn't listed costs another call.
_FAULTS_NAMED = 20
_FAULTS_ALIKE = 3
_FAULTS_CHARS = 2_000

# With so many faults found, parts of the arguments that can't be checked make no difference.
_FAULTS_ENOUGH = 3

# How many faults are inspected, how many wrong names are listed, and how many known names are searched for near ones.
_FAULTS_SEEN = 200
_NAMES_TOLD = 10
_NAMES_MEANT = 200

# How many parts of an alternative are looked through for the constant that tells it apart.
_PARTS_SEEN = 50

# How many characters of an offending value a message shows.
_VALUE_SHOWN = 80


def faults_of(validator: Validator, schema: dict[str, Any], arguments: dict[str, Any], *, partly: bool) -> list[str]:
    """The faults of arguments, of which some may be left out for others; empty if there are none.

    Args:
        validator: Of the schema.
        schema: The tool's schema.
        arguments: Argument values by the schema's names.
        partly: Whether these are some of a call's: missing and unknown ones are no faults.
    """
    faults: list[str] = []
    alike: Counter[tuple[Any, ...]] = Counter()
    try:
        for count, error in enumerate(_meant(validator.iter_errors(arguments), schema)):
            if partly and not error.absolute_path and error.validator in _OF_OBJECTS:
                continue
            if partly and not error.absolute_path and _missing_ways(error, schema):
                continue
            if len(faults) >= _FAULTS_NAMED or count >= _FAULTS_SEEN or sum(map(len, faults)) > _FAULTS_CHARS:
                faults.append("…")
                break
            # Two missing names at one place are two faults; rows of a list that lack the same name are alike.
            missing = str(error.message) if error.validator in _NAMING else ""
            kind = (*(part for part in error.absolute_path if isinstance(part, str)), error.validator, missing)
            alike[kind] += 1
            if alike[kind] > _FAULTS_ALIKE:
                continue
            messages = _fault(error, schema)
            faults = [*messages, *faults] if kind == _NO_PARAMETER else [*faults, *messages]
    except Exception:
        if len(faults) < _FAULTS_ENOUGH:
            raise
        faults.append("…")
    if faults and not partly and _NO_PARAMETER not in alike:
        faults = [*_without_parameter(schema, arguments), *faults]
    if faults and faults[-1] != "…" and any(number > _FAULTS_ALIKE for number in alike.values()):
        faults.append("…")
    return faults


_OF_OBJECTS = frozenset({"required", "additionalProperties", "unevaluatedProperties", "minProperties"})
_NO_PARAMETER = ("additionalProperties", "")
_NAMING = frozenset({"required", "dependentRequired"})


def _fault(error: Any, schema: dict[str, Any]) -> list[str]:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    place = cut(path.lstrip(".")) or "arguments"
    if error.validator == "additionalProperties":
        messages = _unexpected(error, "name" if path else "parameter")
        return [f"{place}: {text}" for text in messages] if path else messages
    if missing := _missing_ways(error, schema):
        return [f"{place}: {needed_text(error.validator, missing)}"]
    if error.context and (faults := _faults_of_way(error, schema)):
        return [message for fault in _meant(faults[:_FAULTS_ALIKE], schema) for message in _fault(fault, schema)]
    if len(ways := _ways_at_once(error, schema)) > 1:
        return [f"{place}: {needed_text('oneOf', ways).replace('give one', 'give only one')}"]
    return [f"{place}: {_message(error)}"]


def _meant(errors: Iterable[Any], schema: dict[str, Any]) -> Iterator[Any]:
    """Faults, with those of the option that is meant in place of each union that has one."""
    for error in errors:
        if faults := _faults_of_constant(error, schema):
            yield from _meant(faults, schema)
        else:
            yield error


def _faults_of_constant(error: Any, schema: dict[str, Any]) -> list[Any]:
    """The faults of the one option of a union whose constant (`kind: "dog"`) is there; empty if there is none."""
    if error.validator not in {"anyOf", "oneOf"} or not isinstance(error.instance, dict):
        return []
    faults: dict[int, list[Any]] = {}
    others: dict[int, set[str]] = {}
    for fault in error.context:
        option = fault.relative_schema_path[0]
        faults.setdefault(option, []).append(fault)
        if len(fault.relative_path) == 1 and _constant({fault.validator: fault.validator_value}):
            others.setdefault(option, set()).add(fault.relative_path[0])
    # What is no object, as null, isn't meant either.
    meant = [
        option
        for option, those in faults.items()
        if option not in others and not any(each.validator == "type" and not each.relative_path for each in those)
    ]
    if not others or len(meant) != 1:
        return []
    option = error.validator_value[meant[0]]
    there = {name for names in others.values() for name in names if _has_constant(option, schema, name, error.instance)}
    return faults[meant[0]] if all(there & names for names in others.values()) else []


def _has_constant(option: Any, schema: dict[str, Any], name: str, instance: dict[str, Any]) -> bool:
    """Whether a schema allows for a name only the one value that an object has."""
    parts = [option]
    # What is found in a part is looked through after it.
    for part in islice(parts, _PARTS_SEEN):
        if not isinstance(part, dict):
            continue
        properties, of_all = part.get("properties"), part.get("allOf")
        if isinstance(properties, dict) and _constant(referred(schema, properties.get(name))) == [instance[name]]:
            return True
        parts += [resolve(schema, part["$ref"])] if isinstance(part.get("$ref"), str) else []
        parts += of_all if isinstance(of_all, list) else []
    return False


def _constant(schema: Any) -> list[Any]:
    """The one value that a schema allows, in a list; empty if it isn't one."""
    if not isinstance(schema, dict):
        return []
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) and len(values) == 1 else []


def _ways(error: Any, schema: dict[str, Any]) -> dict[int, list[str]]:
    """The names that each option of a union of objects requires, by its number; empty if the fault is another."""
    if error.validator not in {"anyOf", "oneOf"} or not isinstance(error.instance, dict):
        return {}
    options = error.validator_value
    ways = dict(enumerate(required_names(options, schema)))
    # What is no object, as null, isn't meant.
    return {number: way for number, way in ways.items() if "object" in _types(options[number])}


def _types(schema: Any) -> Any:
    return schema.get("type", "object") if isinstance(schema, dict) else "object"


def _missing_ways(error: Any, schema: dict[str, Any]) -> list[list[str]]:
    """The names that are missing for each option of a union; empty if they are all there for one."""
    missing = [[name for name in way if name not in error.instance] for way in _ways(error, schema).values()]
    return missing if all(missing) else []


def _faults_of_way(error: Any, schema: dict[str, Any]) -> list[Any]:
    """The faults of the option of a union whose names are there; of several, of that with the fewest."""
    ways = _ways(error, schema).items()
    faults: dict[int, list[Any]] = {number: [] for number, way in ways if way and error.instance.keys() >= set(way)}
    for fault in error.context:
        faults.get(fault.relative_schema_path[0], []).append(fault)
    return min(faults.values(), key=len, default=[])


def _ways_at_once(error: Any, schema: dict[str, Any]) -> list[list[str]]:
    """The names by which arguments fit several options of a union that allows one."""
    there = [way for way in _ways(error, schema).values() if error.instance.keys() >= set(way)]
    common = set.intersection(*map(set, there)) if there else set()
    ours = [[name for name in way if name not in common] for way in there]
    return ours if all(ours) else []


def _without_parameter(schema: dict[str, Any], arguments: dict[str, Any]) -> list[str]:
    """Names that aren't parameters. A schema may allow them: they are only listed beside another fault."""
    shape = object_shape(schema)
    if shape.extra is not None:
        return []
    beginnings = tuple(shape.beginnings)
    others = (name for name in arguments if not name.startswith(beginnings))
    return _unknown(others, arguments, shape.properties, "parameter")


def _unexpected(error: Any, what: str) -> list[str]:
    """The names that an object may not have, by the keywords of its own schema."""
    known, patterns = (error.schema.get(keyword) or {} for keyword in ("properties", "patternProperties"))
    # The validator has matched them, too.
    others = (name for name in error.instance if not any(re.search(pattern, name) for pattern in patterns))
    messages = _unknown(others, error.instance, known, what)
    if not patterns:
        return messages
    shown = [cut(repr(pattern)) for pattern in islice(patterns, _NAMES_TOLD)]
    return [*messages, f"other names match {' or '.join([*shown, *(['…'] if len(patterns) > len(shown) else [])])}"]


def _unknown(names: Iterable[str], arguments: dict[str, Any], known: dict[str, Any], what: str) -> list[str]:
    free = [name for name in known if name not in arguments][:_NAMES_MEANT]
    messages: list[str] = []
    for number, name in enumerate(name for name in names if name not in known):
        if number == _NAMES_TOLD:
            return [*messages, "…"]
        close = nearest(name, free, count=1)
        meant = f" (did you mean {cut(close[0])}?)" if close else ""
        messages.append(f"there is no {what} {cut(repr(name))}{meant}")
    return messages


def _message(error: Any) -> str:
    """The validator's message, with a long value at its beginning shortened."""
    message = str(error.message)
    value = repr(error.instance)
    if len(value) > _VALUE_SHOWN and message.startswith(value):
        return f"{value[:_VALUE_SHOWN]}…{cut(message[len(value) :])}"
    return cut(message)


def cut(message: str) -> str:
    """A text that others wrote, shortened."""
    return message if len(message) <= 4 * _VALUE_SHOWN else f"{message[: 4 * _VALUE_SHOWN]}…"
