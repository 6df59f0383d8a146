"""What a schema says within a type: the descriptions of its fields, its items and its values, and what it needs.

Schemas are untrusted data, as in `schema_types`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from mcp_bridge.downstream.catalog.schema_types import alternatives, needed_text, resolve

# Bounds on the search for descriptions: depth, and nodes that are visited in the document.
_DEPTH = 20
_NODES = 5_000


@dataclass(slots=True)
class NestedDocumentation:
    """The descriptions within types of one schema document, in the schema's order.

    Attributes:
        root: The document.
        chars: How many characters of them are collected.
        texts: Each with its place: `items[].content`, `place.city`, `sort = 'asc'`.
        is_cut: Whether descriptions are left out.
    """

    root: Any
    chars: int
    texts: list[tuple[str, str]] = field(default_factory=list)
    is_cut: bool = False
    _nodes: int = 0
    _merged: list[int] = field(default_factory=lambda: [0])

    def add(self, schema: Any, place: str) -> None:
        """Collect what is within a type; its own description, or that of what it refers to, is left out."""
        self.texts, self.is_cut = [], False
        self._visit(schema, place, 0, (), is_own=True)

    def _visit(self, schema: Any, place: str, depth: int, refs: tuple[str, ...], *, is_own: bool) -> None:
        self._nodes += 1
        if not isinstance(schema, dict):
            return
        if self._nodes > _NODES or depth > _DEPTH:
            self.is_cut = True
            return
        about = schema.get("description")
        if not is_own:
            self._add(place, about)
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in refs:
            is_own = is_own and "description" not in schema
            self._visit(resolve(self.root, reference), place, depth, (*refs, reference), is_own=is_own)
        own = {name: schema[name] for name in schema if name != "$ref"}
        for keyword, ways in alternatives(own, self.root, self._merged):
            self._add(place, needed_text(keyword, ways))
        for inner, where in _within(schema, place):
            if self.is_cut:
                return
            self._visit(inner, where, depth + 1, refs, is_own=False)

    def _add(self, place: str, text: Any) -> None:
        if not isinstance(text, str) or not text.strip() or (place, text.strip()) in self.texts:
            return
        self.chars -= len(place) + len(text)
        if self.chars < 0:
            self.is_cut = True
        else:
            self.texts.append((place, text.strip()))


def _within(schema: dict[str, Any], place: str) -> list[tuple[Any, str]]:
    """The schemas within a schema, with their places."""
    found: list[tuple[Any, str]] = []
    properties = schema.get("properties")
    if isinstance(properties, dict):
        found += [(inner, f"{place}.{name}") for name, inner in islice(properties.items(), _NODES)]
    for keyword in ("prefixItems", "items"):
        items = schema.get(keyword)
        found += [(inner, f"{place}[]") for inner in (items[:_NODES] if isinstance(items, list) else [items])]
    found.append((schema.get("additionalProperties"), f"{place}.*"))
    for keyword in ("allOf", "anyOf", "oneOf"):
        options = schema.get(keyword)
        for option in options[:_NODES] if isinstance(options, list) else ():
            is_value = isinstance(option, dict) and isinstance(option.get("const"), (str, int))
            found.append((option, f"{place} = {option['const']!r}" if is_value else place))
    return found
