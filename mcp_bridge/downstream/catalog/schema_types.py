"""Renders JSON Schemas as short Python type annotations.

Schemas are untrusted data: cyclic, huge, or with members of the wrong types. No function here raises because of that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

# Bounds on one rendering: depth, number of visited nodes, characters.
_DEPTH = 6
_FLAT_DEPTH = 2
_NODES = 300
_LENGTH = 160
_OBJECT_FIELDS = 12
_LITERALS = 12
_MERGED = 50

# Maximum properties of one object; no signature shows as many.
_PROPERTIES = 1_000

# Visited nodes for one document: 200 parameters that refer to the same large type would visit 100,000.
_ALL_NODES = 5_000

_SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_ANY = "Any"


@dataclass(slots=True)
class ObjectShape:
    """The parameters that an object schema defines.

    Attributes:
        properties: Property schemas in the schema's order; any JSON value is possible here.
        required: Names of required properties.
        extra: The schema of additional properties if the schema allows them explicitly, else None.
    """

    properties: dict[str, Any] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    extra: Any = None


def object_shape(root: dict[str, Any]) -> ObjectShape:
    """Collect properties through `$ref` and `allOf`; of `anyOf` and `oneOf`, all properties and the common required."""
    shape = ObjectShape()
    _gather(root, root, shape, [0])
    shape.required &= set(shape.properties)
    return shape


def _gather(schema: Any, root: dict[str, Any], shape: ObjectShape, count: list[int]) -> None:
    count[0] += 1
    if not isinstance(schema, dict) or count[0] > _MERGED:
        return
    reference = schema.get("$ref")
    if isinstance(reference, str):
        _gather(resolve(root, reference), root, shape, count)
    _gather_own(schema, shape)
    for part in _list(schema.get("allOf")):
        _gather(part, root, shape, count)
    for options in (_list(schema.get("anyOf")), _list(schema.get("oneOf"))):
        shapes = [ObjectShape() for _ in options]
        for option, part in zip(shapes, options, strict=True):
            _gather(part, root, option, count)
            for name, value in islice(option.properties.items(), _PROPERTIES):
                shape.properties.setdefault(name, value)
        if shapes:
            shape.required |= set.intersection(*(option.required for option in shapes))


def _gather_own(schema: dict[str, Any], shape: ObjectShape) -> None:
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name, value in islice(properties.items(), _PROPERTIES):
            shape.properties.setdefault(str(name), value)
    for name in _list(schema.get("required"))[:_PROPERTIES]:
        if isinstance(name, str):
            shape.required.add(name)
            shape.properties.setdefault(name, True)
    extra = schema.get("additionalProperties")
    if extra is True or (isinstance(extra, dict) and shape.extra is None):
        shape.extra = extra


def resolve(root: Any, reference: str) -> Any:
    """The target of a reference inside the document, or None. Other documents are never fetched."""
    if not reference.startswith("#"):
        return None
    node = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(key)
        elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


class TypeRenderer:
    """Renders the types of one schema document."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._nodes = 0
        self._all_nodes = 0

    def render(self, schema: Any) -> str:
        """The annotation for a schema of the document (`list[str]`, `Literal['a', 'b'] | None`), limited in length."""
        for depth in (_DEPTH, _FLAT_DEPTH):
            if self._all_nodes > _ALL_NODES:
                break
            self._nodes = 0
            text = self._render(schema, depth, ())
            if len(text) <= _LENGTH:
                return text
        return self._bare(schema)

    def _bare(self, schema: Any) -> str:
        kind = schema.get("type") if isinstance(schema, dict) else None
        return {"object": "dict", "array": "list"}.get(kind, _SIMPLE.get(kind, _ANY)) if isinstance(kind, str) else _ANY

    def _render(self, schema: Any, depth: int, refs: tuple[str, ...]) -> str:
        self._nodes += 1
        self._all_nodes += 1
        if not isinstance(schema, dict) or self._nodes > _NODES:
            return _ANY
        parts = self._parts(schema, depth, refs)
        if schema.get("nullable") is True:
            parts.append("None")
        return _union(parts)

    def _parts(self, schema: dict[str, Any], depth: int, refs: tuple[str, ...]) -> list[str]:
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference in refs or depth <= 0:
                return [self._bare(resolve(self._root, reference))]
            return [self._render(resolve(self._root, reference), depth, (*refs, reference))]
        if "const" in schema:
            return [_literal([schema["const"]])]
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return [_literal(schema["enum"])]
        for key in ("anyOf", "oneOf"):
            options = _list(schema.get(key))
            if options:
                return [self._render(option, depth - 1, refs) for option in options] if depth > 0 else [_ANY]
        if _list(schema.get("allOf")) and "type" not in schema:
            return self._all_of(schema["allOf"], depth, refs)
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return [self._typed(kind, schema, depth, refs) for kind in kinds] or [_ANY]
        if kinds is None:
            kinds = "object" if "properties" in schema else "array" if "items" in schema else None
        return [self._typed(kinds, schema, depth, refs)]

    def _all_of(self, options: list[Any], depth: int, refs: tuple[str, ...]) -> list[str]:
        """A single option usually wraps a `$ref`; of several, the first that is not `Any` is used."""
        rendered = [self._render(option, depth - 1, refs) for option in options] if depth > 0 else []
        return [next((text for text in rendered if text != _ANY), _ANY)]

    def _typed(self, kind: Any, schema: dict[str, Any], depth: int, refs: tuple[str, ...]) -> str:
        if kind == "array":
            return self._array(schema, depth, refs)
        if kind == "object":
            return self._object(schema, depth, refs)
        return _SIMPLE.get(kind, _ANY) if isinstance(kind, str) else _ANY

    def _array(self, schema: dict[str, Any], depth: int, refs: tuple[str, ...]) -> str:
        items = schema.get("prefixItems", schema.get("items"))
        if depth <= 0 or items is None or isinstance(items, bool):
            return "list"
        if isinstance(items, list):
            inner = _union([self._render(item, depth - 1, refs) for item in items])
        else:
            inner = self._render(items, depth - 1, refs)
        return "list" if inner == _ANY else f"list[{inner}]"

    def _object(self, schema: dict[str, Any], depth: int, refs: tuple[str, ...]) -> str:
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            if depth <= 0 or len(properties) > _OBJECT_FIELDS:
                return "dict"
            required = _list(schema.get("required"))
            fields = [
                f"{name}{'' if name in required else '?'}: {self._render(value, depth - 1, refs)}"
                for name, value in properties.items()
            ]
            return f"dict({', '.join(fields)})"
        values = schema.get("additionalProperties")
        if isinstance(values, dict) and values and depth > 0:
            inner = self._render(values, depth - 1, refs)
            return "dict" if inner == _ANY else f"dict[str, {inner}]"
        return "dict"


def _literal(values: list[Any]) -> str:
    plain = [value for value in values if value is None or isinstance(value, (str, int, bool))]
    literals = [repr(value) for value in plain]
    if len(plain) == len(values) <= _LITERALS and sum(map(len, literals)) <= _LENGTH:
        some = [repr(value) for value in plain if value is not None]
        parts = [f"Literal[{', '.join(some)}]"] if some else []
        return _union([*parts, *(["None"] if None in plain else [])])
    names = {
        "str": "str",
        "int": "int",
        "bool": "bool",
        "float": "float",
        "NoneType": "None",
        "dict": "dict",
        "list": "list",
    }
    return _union([names.get(type(value).__name__, _ANY) for value in values])


def _union(parts: list[str]) -> str:
    flat = list(dict.fromkeys(option for part in parts for option in _split(part)))
    if not flat or _ANY in flat:
        return _ANY
    if "None" in flat:
        flat.remove("None")
        flat.append("None")
    return " | ".join(flat)


def _split(union: str) -> list[str]:
    """Split a union into its options, ignoring separators in brackets and quotes."""
    return [union] if any(mark in union for mark in "[('\"") else union.split(" | ")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
