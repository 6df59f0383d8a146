"""References between schemas, and which schemas inherit from others. Runs in the compiler's process.

JSON Schema says two things of OpenAPI in other words. What is beside a reference counts from 3.1 on: both are parts of
`allOf`. And of a schema with a `discriminator`, a value is one of the schemas derived from it (3.1, section 4.8.25): of
those that it lists, or that its mapping or their own `allOf` name. To a derived schema, its parent is no such choice,
but the base of it: what the parent says without the derived schemas. Else each would be defined by the other, without
end.
"""

from __future__ import annotations

import re
from collections import deque
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from mcp_bridge.downstream.openapi.document_references import Node
from mcp_bridge.downstream.openapi.document_text import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.downstream.openapi.document_references import References

Json = dict[str, Any]
Place = tuple[str, str]
"""A document's URI, and a place in it."""

_AS_BASE = "x-mcp-bridge-as-base"
"""Beside a reference to a parent: only the base is meant. In a document, it would mean the same."""

_MAX_CHAIN = 50
"""References in a row, each to the next."""

_MAX_DERIVED = 100
"""Of one schema. Where there are more, it may have any further properties."""

_ANNOTATIONS = frozenset(
    {"title", "summary", "description", "default", "deprecated", "example", "examples", "externalDocs", "xml"}
    | {"readOnly", "writeOnly", "nullable", "$comment", "$id", "$anchor", "$defs", _AS_BASE}
)
"""Keywords beside a reference that refuse no value."""

_LISTS = ("oneOf", "anyOf")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class SchemaReferences:
    """Resolves references of schemas. What it gives is JSON Schema, but for single keywords.

    Args:
        references: Resolves any reference.
        is_30: Whether the document is of OpenAPI 3.0, where what is beside a reference is ignored.
    """

    def __init__(self, references: References, *, is_30: bool) -> None:
        self._references = references
        self._is_30 = is_30
        self._known: dict[tuple[Place, bool], Node] = {}
        self._has_base: dict[Place, bool] = {}

    def written(self, node: Node) -> Node:
        """A schema that is a reference, with annotations at most; or another one, with its derived schemas listed."""
        node = self._with_what_is_beside(node)
        return node if _reference(node.value) is not None else self._with_derived(node, None)

    def target(self, node: Node) -> tuple[Place, bool] | None:
        """What a reference leads to, and whether only the base of that is meant; None if the schema is none."""
        reference = _reference(node.value)
        if reference is None:
            return None
        place = self._references.target(reference, node.uri)
        if _AS_BASE not in node.value:
            return place, False
        if place not in self._has_base:
            found = self._references.look_up(reference, node.uri).value
            is_parent = self._is_parent(found, place) or any(
                self._is_parent(each, None) for each in _list(found, "allOf")
            )
            self._has_base[place] = is_parent or _other_name_of(found) is not None
        return place, self._has_base[place]

    def followed(self, node: Node) -> Node:
        """What a reference leads to.

        Raises:
            DocumentError: It leads nowhere.
        """
        target = self.target(node)
        if target is None:
            return node
        if target not in self._known:
            place, is_base = target
            found = self._with_what_is_beside(self._references.look_up(node.value["$ref"], node.uri))
            if is_base and _reference(found.value) is not None:
                found = Node(found.value | {_AS_BASE: True}, found.uri)
            elif (parts := _list(found.value, "allOf")) and (is_base or self._inherits(found, place)):
                parts = [_as_base(part) for part in parts]
                if is_base:
                    parts = [self._with_derived(Node(part, found.uri), None, is_base=True).value for part in parts]
                found = Node(found.value | {"allOf": parts}, found.uri)
            self._known[target] = self._with_derived(found, place, is_base=is_base)
        return self._known[target]

    def resolved(self, node: Node) -> Node:
        """What a schema stands for that may be a reference.

        Raises:
            DocumentError: It leads nowhere, or to itself.
        """
        for _ in range(_MAX_CHAIN):
            node = self.written(node)
            if _reference(node.value) is None:
                return node
            node = self.followed(node)
        raise DocumentError("refers to itself")

    def is_said(self, keyword: str, node: Node) -> bool:
        """Whether a keyword is true of a schema: by what is beside a reference, or by what that leads to."""
        try:
            for _ in range(_MAX_CHAIN):
                reference = _reference(node.value)
                is_ignored = reference is not None and self._is_30
                if not is_ignored and isinstance(node.value, dict) and node.value.get(keyword) is True:
                    return True
                if reference is None:
                    break
                node = self._references.look_up(reference, node.uri)
        except DocumentError:
            pass
        return False

    def _with_what_is_beside(self, node: Node) -> Node:
        if self._is_30 or _reference(node.value) is None:
            return node
        value: Json = node.value
        counting = {key: each for key, each in value.items() if key != "$ref" and _says_more(key)}
        if counting.keys() <= {"type"}:
            # What it leads to has a type of its own.
            return node
        others = {key: each for key, each in value.items() if key not in counting and key not in {"$ref", _AS_BASE}}
        reference = {key: value[key] for key in ("$ref", _AS_BASE) if key in value}
        parts = _list(counting, "allOf")
        counting.pop("allOf", None)
        return Node(others | {"allOf": [reference, *parts, *([counting] if counting else [])]}, node.uri)

    def _is_parent(self, value: Any, place: Place | None) -> bool:
        """Whether a schema has derived schemas: it says so, or lists a schema that inherits from it."""
        if not isinstance(value, dict):
            return False
        if isinstance(value.get("discriminator"), dict):
            return True
        if place is None or (derived := self._derived.get(place)) is None:
            return False
        return any(self._place(Node(each, place[0])) in derived for each in _listed(value))

    def _inherits(self, node: Node, place: Place) -> bool:
        """Whether a schema adds something to its parts, or its only part names it as a derived schema."""
        other = _other_name_of(node.value)
        if other is None:
            return True
        parent = self._place(Node(other, node.uri))
        if parent is None:
            return False
        return place in self._named_by(self._references.look_up(_address(parent), node.uri), parent)

    def _with_derived(self, node: Node, place: Place | None, *, is_base: bool = False) -> Node:
        """A schema without what JSON Schema has no word for: its discriminator.

        Args:
            node: The schema, which is no reference.
            place: Where it is, or None if nothing refers to it.
            is_base: Whether only its base is meant.
        """
        if not self._is_parent(node.value, place):
            return node
        own = {key: each for key, each in node.value.items() if key != "discriminator" and key not in _LISTS}
        listed = _listed(node.value)
        derived = [] if is_base or listed else self._derived_of(node, place)
        if not is_base and not listed and not derived:
            return Node(own, node.uri)
        if len(derived) > _MAX_DERIVED:
            return Node(own | {"additionalProperties": True}, node.uri)
        if own.get("additionalProperties") is False:
            # It would refuse what each derived schema adds. This is what is meant, and which only the service checks.
            own["unevaluatedProperties"] = own.pop("additionalProperties")
        if is_base:
            return Node(own, node.uri)
        if listed:
            # Which one counts is said by a property: that two of them fit is no fault.
            return Node(own | {"anyOf": listed}, node.uri)
        # The service may take the parent itself.
        base = own if place is None else {"$ref": _address(place), _AS_BASE: True}
        told = {key: own[key] for key in ("title", "description", "nullable") if key in own}
        choice = [*({"$ref": _address(each), _AS_BASE: True} for each in derived), base]
        return Node(told | {"anyOf": choice}, node.uri)

    def _derived_of(self, node: Node, place: Place | None) -> list[Place]:
        """Where the schemas derived from one are, and those derived from them; if they are too many, not all."""
        found: dict[Place, None] = {}
        waiting = deque([(node, place)])
        while waiting and len(found) <= _MAX_DERIVED:
            here, where = waiting.popleft()
            for child in self._named_by(here, where):
                if len(found) > _MAX_DERIVED:
                    break
                if child != place and child not in found:
                    found[child] = None
                    waiting.append((self._references.look_up(_address(child), here.uri), child))
        return list(found)

    def _named_by(self, node: Node, place: Place | None) -> Iterator[Place]:
        """Where the schemas are that one names as derived from it, or that name it as their parent."""
        if self._is_parent(node.value, place):
            named: list[Any] = [*_listed(node.value), *_mapped(node.value)]
            for each in named:
                if (child := self._place(Node(each, node.uri))) is not None:
                    yield child
        if place is not None:
            yield from self._derived.get(place, ())

    def _place(self, node: Node) -> Place | None:
        """Where a reference leads, or a schema's name; None if nothing is there."""
        reference = node.value if isinstance(node.value, str) else _reference(node.value)
        by_name = isinstance(node.value, str) and _NAME.fullmatch(node.value)
        for each in (f"#/components/schemas/{reference}" if by_name else None, reference):
            if each is not None:
                try:
                    self._references.look_up(each, node.uri)
                    return self._references.target(each, node.uri)
                except DocumentError:
                    continue
        return None

    @cached_property
    def _derived(self) -> dict[Place, dict[Place, None]]:
        """Where the schemas are whose `allOf` names another and that add something to it, by that other's place."""
        found: dict[Place, dict[Place, None]] = {}
        for uri, document in self._references.documents.items():
            components = document.get("components") if isinstance(document, dict) else None
            schemas = components.get("schemas") if isinstance(components, dict) else None
            for name, schema in schemas.items() if isinstance(schemas, dict) else ():
                child = (uri, f"/components/schemas/{quote(name.replace('~', '~0').replace('/', '~1'))}")
                value = self._with_what_is_beside(Node(schema, uri)).value
                for part in _list(value, "allOf") if _other_name_of(value) is None else ():
                    if (reference := _reference(part)) is not None:
                        with suppress(DocumentError):
                            found.setdefault(self._references.target(reference, uri), {})[child] = None
        return found


def _reference(value: Any) -> str | None:
    reference = value.get("$ref") if isinstance(value, dict) else None
    return reference if isinstance(reference, str) else None


def _says_more(key: str) -> bool:
    return key not in _ANNOTATIONS and not key.startswith("x-")


def _other_name_of(value: Any) -> Json | None:
    """What a schema only is another name of: a reference with annotations, by itself or as the only part."""
    if _reference(value) is not None:
        return value  # type: ignore[no-any-return]
    parts = _list(value, "allOf")
    is_other = len(parts) == 1 and not any(map(_says_more, value.keys() - {"allOf", "type"}))
    return parts[0] if is_other and _reference(parts[0]) is not None else None


def _as_base(part: Any) -> Any:
    if _reference(part) is not None:
        return part | {_AS_BASE: True}
    parts = _list(part, "allOf")
    return part | {"allOf": [_as_base(each) for each in parts]} if parts else part


def _address(place: Place) -> str:
    return "#".join(place)


def _list(value: Any, key: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []


def _listed(value: Json) -> list[Any]:
    return [each for key in _LISTS for each in _list(value, key)]


def _mapped(value: Json) -> list[Any]:
    discriminator = value.get("discriminator")
    mapping = discriminator.get("mapping") if isinstance(discriminator, dict) else None
    return [each for each in mapping.values() if isinstance(each, str)] if isinstance(mapping, dict) else []
