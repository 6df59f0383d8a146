"""Flat schemas: an object whose properties have simple types, and nothing more is said of them.

Most tools have one. Arguments that fit it are told in some microseconds, where a validator takes a hundred. What
doesn't fit is left to the validator, which says what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
"""The types of which every value fits, as Python decodes JSON. Others that fit, as 1.0 an integer, are left out."""

_DIALECTS = frozenset({
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2020-12/schema",
})  # fmt: skip

_OF_OBJECT = frozenset({"$schema", "type", "properties", "required", "additionalProperties", "title", "description"})
_OF_PROPERTY = frozenset({"type", "anyOf", "title", "description", "default", "examples"})


class FlatSchema(NamedTuple):
    """A flat schema.

    Attributes:
        types: Of each property, the types of its values; None for any.
        required: The properties that must be there.
        is_closed: Whether there may be no others.
    """

    types: Mapping[str, tuple[type, ...] | None]
    required: frozenset[str]
    is_closed: bool

    def accepts(self, arguments: Mapping[str, Any]) -> bool:
        """Whether arguments fit. Some that fit by JSON Schema aren't accepted here.

        Args:
            arguments: JSON.
        """
        for name, value in arguments.items():
            if name not in self.types:
                if self.is_closed:
                    return False
                continue
            types = self.types[name]
            if types is not None and type(value) not in types:
                return False
        return self.required <= arguments.keys()


def flat_schema(schema: Mapping[str, Any]) -> FlatSchema | None:
    """A schema as a flat one; None if it says more.

    Args:
        schema: A valid JSON Schema.
    """
    if not schema.keys() <= _OF_OBJECT or schema.get("type") != "object":
        return None
    if "$schema" in schema and schema["$schema"] not in _DIALECTS:
        return None
    properties, required = schema.get("properties", {}), schema.get("required", [])
    additional = schema.get("additionalProperties", True)
    if not isinstance(properties, dict) or not isinstance(required, list) or additional not in (True, False, {}):
        return None
    types: dict[str, tuple[type, ...] | None] = {}
    for name, described in properties.items():
        if not isinstance(described, dict) or not described.keys() <= _OF_PROPERTY:
            return None
        found = _types_of(described)
        if found == ():
            return None
        types[name] = found
    if not all(isinstance(name, str) for name in required):
        return None
    return FlatSchema(types, frozenset(required), additional is False)


def _types_of(described: Mapping[str, Any]) -> tuple[type, ...] | None:
    """The types of a property's values; None for any; empty if they aren't known here."""
    if "anyOf" not in described:
        return _named(described["type"]) if "type" in described else None
    options = described["anyOf"]
    if "type" in described or not isinstance(options, list):
        return ()
    found: tuple[type, ...] = ()
    for option in options:
        if not isinstance(option, dict) or option.keys() != {"type"}:
            return ()
        found += _named(option["type"])
    return found


def _named(names: Any) -> tuple[type, ...]:
    found: tuple[type, ...] = ()
    for name in names if isinstance(names, list) else [names]:
        if not isinstance(name, str) or name not in _TYPES:
            return ()
        found += _TYPES[name]
    return found
