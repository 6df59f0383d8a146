"""The faults of a JSON Schema, found in time that grows with its size alone.

Its metaschema says what they are. Held against that as a whole, a schema takes half a millisecond for each schema in
it, and a server may list tens of thousands in one tool. Here the keywords of each are looked at by themselves, and the
metaschema is asked only about those that look wrong.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from mcp_bridge.offload import is_large

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_MOST_VALUES = 10_000
"""Values, keys included, in a schema of a dialect that is held against its metaschema as a whole: some seconds."""

_SCHEMA = frozenset({
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
"""Keywords whose value is a schema."""

_SCHEMAS_IN_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMAS_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})

_DEPENDENCIES = "dependencies"
"""Its value has a schema or a list of names for each name."""

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_ANCHOR = re.compile(r"^[A-Za-z_][-A-Za-z0-9._]*$")
_ID = re.compile(r"^[^#]*#?$")


class LargeSchemaError(Exception):
    """The schema is too large to be held against its metaschema."""


def schema_faults(kind: Any, schema: dict[str, Any], most: int) -> list[tuple[Any, ...]]:
    """The paths of a schema's faults.

    Args:
        kind: The class of its validator.
        schema: The schema.
        most: How many are enough.

    Raises:
        LargeSchemaError: It is too large for one of its dialect.
    """
    keywords = _keywords(kind)
    if keywords is None and is_large(schema, chars=sys.maxsize, values=_MOST_VALUES):
        raise LargeSchemaError
    # Formats aren't validated: a regex that Python can't compile would make the whole schema invalid.
    meta = kind(kind.META_SCHEMA)
    parts: Iterable[tuple[tuple[Any, ...], Any]] = [((), schema)] if keywords is None else _doubtful(schema, keywords)
    paths: list[tuple[Any, ...]] = []
    for path, part in parts:
        for error in meta.iter_errors(part):
            paths.append((*path, *error.absolute_path))
            if len(paths) > most:
                return paths
    return paths


@cache
def _keywords(kind: Any) -> frozenset[str] | None:
    """The keywords of a dialect that is known here; None for another one."""
    from jsonschema.validators import Draft7Validator, Draft202012Validator  # noqa: PLC0415 - as in `argument_check`

    if kind is Draft202012Validator:
        return (_SCHEMA - {"additionalItems"}) | _SCHEMAS_IN_LIST | _SCHEMAS_BY_NAME | {_DEPENDENCIES} | _CHECKS.keys()
    return frozenset(Draft7Validator.META_SCHEMA["properties"]) if kind is Draft7Validator else None


def _doubtful(schema: Any, keywords: frozenset[str]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The parts of a schema that may be invalid, each with the path of the schema that it is a part of."""
    takes_list = "additionalItems" in keywords
    # A place is that of the schema around it, and the way from there: a path of each would be long in a deep schema.
    stack: list[tuple[Any, Any]] = [(None, schema)]
    while stack:
        place, node = stack.pop()
        if not isinstance(node, dict):
            if not isinstance(node, bool):
                yield _path(place), node
            continue
        within: list[tuple[Any, Any]] = []
        for keyword, value in node.items():
            if keyword not in keywords:
                continue
            found = _within(keyword, value, takes_list=takes_list)
            if found is None:
                yield _path(place), {keyword: value}
                continue
            within += [((place, (keyword, *way)), inner) for way, inner in found]
            if keyword == _DEPENDENCIES and (wrong := _wrong_lists(value)):
                yield _path(place), {keyword: wrong}
        stack += reversed(within)


def _within(keyword: str, value: Any, *, takes_list: bool) -> Iterable[tuple[tuple[Any, ...], Any]] | None:
    """The schemas in a keyword's value, each with its way; None if the value itself may be invalid."""
    if keyword in _SCHEMAS_BY_NAME or keyword == _DEPENDENCIES:
        if not isinstance(value, dict):
            return None
        is_list = list if keyword == _DEPENDENCIES else ()
        return [((name,), inner) for name, inner in value.items() if not isinstance(inner, is_list)]
    if keyword in _SCHEMAS_IN_LIST or (keyword == "items" and takes_list and isinstance(value, list)):
        return [((index,), inner) for index, inner in enumerate(value)] if isinstance(value, list) and value else None
    if keyword in _SCHEMA:
        return [((), value)] if isinstance(value, (dict, bool)) else None
    check = _CHECKS.get(keyword)
    return () if check is not None and check(value) else None


def _path(place: Any) -> tuple[Any, ...]:
    ways: list[tuple[Any, ...]] = []
    while place is not None:
        place, way = place
        ways.append(way)
    return tuple(part for way in reversed(ways) for part in way)


def _wrong_lists(dependencies: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in dependencies.items() if isinstance(value, list) and not _are_names(value)}


# --- what keywords without a schema in them may have; what isn't surely valid is left to the metaschema ---


def _is_anything(_value: Any) -> bool:
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_step(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_length(value: Any) -> bool:
    return _is_number(value) and value >= 0 and (isinstance(value, int) or value.is_integer())


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value)) and len(set(value)) == len(value)


def _are_names_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_are_names, value.values()))


def _is_type(value: Any) -> bool:
    return value in _TYPES if isinstance(value, str) else _are_names(value) and bool(value) and _TYPES.issuperset(value)


def _is_anchor(value: Any) -> bool:
    return isinstance(value, str) and _ANCHOR.search(value) is not None


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and _ID.search(value) is not None


def _is_vocabulary(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_boolean, value.values()))


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "$id": _is_id,
    "type": _is_type,
    "multipleOf": _is_step,
    "required": _are_names,
    "dependentRequired": _are_names_by_name,
    "$vocabulary": _is_vocabulary,
    **dict.fromkeys(("$anchor", "$dynamicAnchor", "$recursiveAnchor"), _is_anchor),
    **dict.fromkeys(("const", "default"), _is_anything),
    **dict.fromkeys(("enum", "examples"), _is_list),
    **dict.fromkeys(("deprecated", "readOnly", "uniqueItems", "writeOnly"), _is_boolean),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"), _is_number),
    **dict.fromkeys(
        (
            "maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems", "minLength",
            "minProperties",
        ),
        _is_length,
    ),
    **dict.fromkeys(
        (
            "$comment", "$dynamicRef", "$recursiveRef", "$ref", "$schema", "contentEncoding", "contentMediaType",
            "description", "format", "pattern", "title",
        ),
        _is_text,
    ),
}  # fmt: skip
