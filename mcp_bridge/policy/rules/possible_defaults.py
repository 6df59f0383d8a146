"""Defaults that a schema may have for what isn't there, and that aren't put in, since they may hold or not.

Whether the branch of an `if` holds, or which of several alternatives, is for the server to say; some keywords nobody
fills in from, as far as is known. So a rule takes the value of such a name for unknown. The schema is a half-trusted
server's word: the work is bounded, and where it is cut, and where a reference leads out of the document, there may be
a default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.policy.rules.schema_defaults import certain_parts, resolved, target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_SCHEMAS = 2_000
"""How many subschemas are looked at for one name."""

_HERE = ("if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies")
"""Keywords whose schemas are of the same value."""

_DYNAMIC = ("$dynamicRef", "$recursiveRef")

_MEMBERS = ("patternProperties", "additionalProperties", "unevaluatedProperties")
_MEMBERS_BY_PATTERN = ("patternProperties",)
"""Those of them that may tell of what isn't there: the others don't name what they are of."""

_ITEMS = ("prefixItems", "items", "additionalItems", "unevaluatedItems", "contains")
"""Keywords whose schemas are of some of the values within an object, or a list."""

_BY_NAMES = frozenset({"dependentSchemas", "dependencies", "patternProperties"})
"""Keywords that have schemas by names; the others have one, or a list of them."""


class _PossibleError(Exception):
    """There may be a default: what leads to it isn't followed."""


def may_have_default(root: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    """Whether a schema may have a default for a place where nothing is, other than those that `with_defaults` puts in.

    Args:
        root: JSON Schema of a tool's arguments.
        path: The names that lead to the place; all but the last lead to something.
    """
    search = _Search(root)
    places: list[tuple[Any, bool]] = [(root, True)]
    try:
        for number, name in enumerate(path, start=1):
            members = _MEMBERS_BY_PATTERN if number == len(path) else _MEMBERS
            inner = [
                each for schema, certain in places for each in search.inner(schema, name, members, certain=certain)
            ]
            # As in a condition, where `output` may be the value itself.
            places = [*inner, *(places if name == "output" else ())]
        return any(search.has_default(schema, certain=certain) for schema, certain in places)
    except _PossibleError:
        return True


class _Search:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._schemas = 0

    def inner(self, schema: Any, name: str, members: tuple[str, ...], *, certain: bool) -> Iterator[tuple[Any, bool]]:
        """The schemas of what has this name in a value, and whether each is followed by what puts in defaults.

        `members` are the keywords that are looked at for members of objects, besides `properties`.
        """
        kinds = ("object", "array") if name.isdecimal() else ("object",)
        known: set[int] = set()
        for kind in kinds if certain else ():
            known.update(id(part) for part in certain_parts(self._root, schema, kind, self._count))
        for part in self._parts(schema):
            is_known = id(part) in known
            properties = part.get("properties")
            if isinstance(properties, dict) and name in properties:
                yield properties[name], is_known
            for keyword in (*members, *(_ITEMS if name.isdecimal() else ())):
                for each in _schemas_of(part, keyword):
                    self._count()
                    yield each, is_known and each is part.get("items")

    def has_default(self, schema: Any, *, certain: bool) -> bool:
        """Whether a schema has a default that isn't put in. One of null is the same as nothing to a rule."""
        if certain and any("default" in part for part in resolved(self._root, schema)):
            # It is settled, be it null: nobody asks what else is said of the value.
            return False
        return any(part.get("default") is not None for part in self._parts(schema))

    def _parts(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """A schema, and all that may be said of the same value."""
        waiting, seen = [schema], set[int]()
        while waiting:
            part = waiting.pop()
            self._count()
            if isinstance(part, dict) and id(part) not in seen:
                seen.add(id(part))
                yield part
                waiting += self._beside(part)

    def _count(self) -> None:
        self._schemas += 1
        if self._schemas > _MAX_SCHEMAS:
            raise _PossibleError

    def _beside(self, part: Mapping[str, Any]) -> list[Any]:
        if any(word in part for word in _DYNAMIC):
            raise _PossibleError
        found = [each for word in _HERE for each in _schemas_of(part, word)]
        if "$ref" in part:
            referred = target(self._root, part["$ref"])
            if referred is None:
                raise _PossibleError
            found.append(referred)
        return found


def _schemas_of(part: Mapping[str, Any], keyword: str) -> list[Any]:
    held = part.get(keyword)
    if isinstance(held, dict):
        return list(held.values()) if keyword in _BY_NAMES else [held]
    return held if isinstance(held, list) else []
