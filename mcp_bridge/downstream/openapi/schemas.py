"""Schemas of a document as JSON Schema (2020-12), each with what it refers to. Runs in the compiler's process.

A schema of OpenAPI 3.0 is nearly JSON Schema (`nullable`, `exclusiveMinimum` as a boolean), one of 3.1 is. What a
request may not have (`readOnly`) and an answer doesn't (`writeOnly`) is left out. A schema that is too large is cut:
what fits beyond the limit, the service alone decides (`LEFT_OUT`).
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Literal

from mcp_bridge.downstream.catalog.listing_limits import size_of
from mcp_bridge.downstream.catalog.three_valued_keywords import LEFT_OUT
from mcp_bridge.downstream.openapi.document_references import Node, last_name
from mcp_bridge.downstream.openapi.document_text import DocumentError

if TYPE_CHECKING:
    from mcp_bridge.downstream.openapi.schema_references import Place, SchemaReferences

Direction = Literal["request", "response"]
Json = dict[str, Any]

_MAX_DEPTH = 30
"""Levels of one schema, without references."""

_MAX_PARTS = 200
"""Parts and alternatives of one form that are looked at."""

_MAX_VALUE_BYTES = 48_000
"""The estimated size of a value in a schema: as much as a tool's schemas have."""

_MAX_DESCRIPTION = 600
_MAX_ENUM = 300

_PLAIN = frozenset(
    {"type", "format", "title", "description", "default", "const", "enum", "pattern", "required", "deprecated"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"}
    | {"minItems", "maxItems", "uniqueItems", "minContains", "maxContains", "minProperties", "maxProperties"}
    | {"contentEncoding", "contentMediaType", "dependentRequired"}
)
_ONE = frozenset({"items", "not", "additionalProperties", "if", "then", "else", "contains", "propertyNames"})
_MANY = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})

_ANNOTATIONS = frozenset({"title", "description", "default", "deprecated"})
"""Of the plain ones, those that refuse no value."""

_UNUSED = frozenset({"unevaluatedProperties", "unevaluatedItems", "additionalItems", "dependencies", "$dynamicRef"})
"""Keywords that aren't converted, and refuse values."""

_CONDITIONS = frozenset({"oneOf", "anyOf", "not", "if", "patternProperties", "dependentSchemas", "minProperties"})
"""Keywords that say more of an object than which properties it has."""


class ObjectShape:
    """An object of which nothing more is said than its properties.

    Attributes:
        properties: The schemas, by name.
        required: The names of those that must be there.
        description: Of the object.
    """

    def __init__(self) -> None:
        self.properties: dict[str, Node] = {}
        self.required: list[str] = []
        self.description: str | None = None


class FormShape:
    """What the fields of a form may be, whatever else is said of it.

    Attributes:
        properties: The schemas of each field, by name: of several alternatives, all of them.
        required: The names of those that must be there.
        others: The schema of other fields, or None if nothing is said of them.
    """

    def __init__(self) -> None:
        self.properties: dict[str, list[Node]] = {}
        self.required: list[str] = []
        self.others: Node | None = None


class SchemaSet:
    """The schemas of one tool's arguments, or of its results, which share their definitions.

    Args:
        references: Resolves references.
        direction: Whether they are of a request or of a response.
        limit: Their size in characters, about.
    """

    def __init__(self, references: SchemaReferences, direction: Direction, limit: int) -> None:
        self._references = references
        self._hidden = "readOnly" if direction == "request" else "writeOnly"
        # Answers are validated against no schema.
        self._left_out: Json = {LEFT_OUT: True} if direction == "request" else {}
        self._left = limit
        self._names: dict[tuple[Place, bool], str] = {}
        self._hidden_in: dict[int, frozenset[str]] = {}
        self._waiting: deque[tuple[str, Node]] = deque()
        self._definitions: Json = {}

    def add(self, node: Node) -> Any:
        """A schema, converted. What it refers to is added by `definitions`."""
        return self._converted(node, 0)

    def definitions(self) -> Json:
        """The definitions that the schemas refer to, for `$defs`."""
        while self._waiting:
            name, node = self._waiting.popleft()
            try:
                self._definitions[name] = self._converted(node, 0)
            except DocumentError:
                # Of half of a document's schemas, no operation depends on each part.
                self._definitions[name] = dict(self._left_out)
        return self._definitions

    def _converted(self, node: Node, depth: int) -> Any:
        schema = node.value
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._left <= 0:
            return dict(self._left_out)
        self._left -= 8
        node = self._references.written(node)
        schema = node.value
        if (target := self._references.target(node)) is not None:
            return self._reference(target, node, schema, depth)
        return self._with_null(self._keywords(node, schema, depth), schema)

    def _reference(self, target: tuple[Place, bool], node: Node, schema: Json, depth: int) -> Any:
        name = self._names.get(target)
        if name is None:
            found = self._references.followed(node)
            (_, place), is_base = target
            name = self._free_name((last_name(place) or "Schema") + ("_base" if is_base else ""))
            self._names[target] = name
            self._waiting.append((name, found))
        out: Json = {"$ref": f"#/$defs/{name}"}
        # In 3.0 they are ignored, and nobody writes them to have them ignored.
        beside = {key: value for key, value in schema.items() if key in {"description", "default", "deprecated"}}
        out |= self._keywords(Node(beside, node.uri), beside, depth)
        if not schema.keys().isdisjoint((_PLAIN | _ONE | _MANY | _NAMED | _UNUSED) - _ANNOTATIONS):
            out |= self._left_out
        self._left -= len(name) + 16
        return self._with_null(out, schema)

    def _free_name(self, wanted: str) -> str:
        # Letters that are the same in a pointer and in a URI.
        base = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in wanted)[:80] or "Schema"
        taken = set(self._names.values())
        name, number = base, 1
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        return name

    def _keywords(self, node: Node, schema: Json, depth: int) -> Json:
        out: Json = {}
        for key, value in schema.items():
            if isinstance(value, float) and not math.isfinite(value):
                # A bound that is none (`maximum: .inf`). JSON has no such number.
                continue
            if key in _PLAIN and _is_excessive(value):
                out |= {} if key in _ANNOTATIONS else self._left_out
            elif key in _PLAIN:
                out[key] = self._plain(key, value)
                self._left -= len(key) + 6 + (len(value) if isinstance(value, str) else 0)
            elif key in _ONE:
                if key == "items" and isinstance(value, list):
                    out |= self._left_out
                    continue
                out[key] = self._converted(Node(value, node.uri), depth + 1)
            elif key in _MANY and isinstance(value, list) and value:
                out[key] = [self._converted(Node(each, node.uri), depth + 1) for each in value]
            elif key in _NAMED and isinstance(value, dict):
                out[key] = {
                    str(name): self._converted(Node(each, node.uri), depth + 1)
                    for name, each in value.items()
                    if not self._is_hidden(Node(each, node.uri))
                }
                self._left -= sum(len(str(name)) + 6 for name in value)
            elif key in _UNUSED:
                out |= self._left_out
        self._require_what_is_there(out, node)
        return self._mended(out)

    def _plain(self, key: str, value: Any) -> Any:
        if key == "description" and isinstance(value, str) and len(value) > _MAX_DESCRIPTION:
            return f"{value[:_MAX_DESCRIPTION].rstrip()}…"
        if key in {"enum", "required"} and isinstance(value, list):
            self._left -= sum(len(each) + 3 if isinstance(each, str) else 4 for each in value)
        elif isinstance(value, (dict, list)):
            self._left -= len(str(value))
        return value

    def _require_what_is_there(self, out: Json, node: Node) -> None:
        """Require nothing that isn't there in this direction. One part may require the properties of another."""
        parts = [part for part in (out, *out.get("allOf", ())) if isinstance(part, dict) and part.get("required")]
        hidden = self._hidden_names(node) if parts else frozenset()
        for part in parts:
            if isinstance(required := part["required"], list):
                part["required"] = [name for name in required if isinstance(name, str) and name not in hidden]
            if not isinstance(required, list) or not part["required"]:
                del part["required"]

    def _hidden_names(self, node: Node) -> frozenset[str]:
        """The properties of an object and of its parts that aren't there in this direction."""
        found: frozenset[str] = frozenset()
        waiting = deque([node])
        for _ in range(_MAX_PARTS):
            if not waiting:
                break
            try:
                here = self._references.resolved(waiting.popleft())
            except DocumentError:
                continue
            schema = here.value if isinstance(here.value, dict) else {}
            if isinstance(properties := schema.get("properties"), dict):
                if id(properties) not in self._hidden_in:
                    names = [name for name, each in properties.items() if self._is_hidden(Node(each, here.uri))]
                    self._hidden_in[id(properties)] = frozenset(names)
                found |= self._hidden_in[id(properties)]
            parts = schema.get("allOf")
            waiting += [Node(part, here.uri) for part in (parts if isinstance(parts, list) else ())]
        return found

    def _mended(self, out: Json) -> Json:
        """The keywords in JSON Schema's terms, without what can't be met."""
        for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(out.get(name), bool):
                exclusive = out.pop(name)
                if exclusive and bound in out:
                    out[name] = out.pop(bound)
        if isinstance(enum := out.get("enum"), list) and len(enum) > _MAX_ENUM:
            del out["enum"]
            out |= self._left_out
        # In 3.0, `format`, of any type here, says what is a file; as JSON, a file is its base64.
        if out.get("format") in ("binary", "byte") and out.get("type") == "string":
            del out["format"]
            out["contentEncoding"] = "base64"
        return out

    def _with_null(self, out: Json, schema: Json) -> Json:
        if schema.get("nullable") is not True:
            return out
        kind = out.get("type")
        if isinstance(kind, str):
            out["type"] = [kind, "null"]
            if isinstance(out.get("enum"), list) and None not in out["enum"]:
                out["enum"] = [*out["enum"], None]
            return out
        return {"anyOf": [out, {"type": "null"}]} if out else out

    def _is_hidden(self, node: Node) -> bool:
        """Whether a property isn't there in this direction."""
        return self._references.is_said(self._hidden, node)

    def object_shape(self, node: Node) -> ObjectShape | None:
        """The properties of a schema that is an object and says nothing more of it; else None.

        Raises:
            DocumentError: A reference leads nowhere.
        """
        shape = ObjectShape()
        return shape if self._gather(node, shape, 0) and shape.properties else None

    def _gather(self, node: Node, shape: ObjectShape, depth: int) -> bool:
        node = self._references.resolved(node)
        schema = node.value
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or schema.get("type", "object") != "object":
            return False
        if schema.get("nullable") is True or not _CONDITIONS.isdisjoint(schema):
            return False
        if schema.get("additionalProperties", False) is not False:
            return False
        properties, required, parts = schema.get("properties", {}), schema.get("required", []), schema.get("allOf", [])
        if not isinstance(properties, dict) or not isinstance(required, list) or not isinstance(parts, list):
            return False
        shape.description = shape.description or schema.get("description")
        for part in parts:
            if not self._gather(Node(part, node.uri), shape, depth + 1):
                return False
        for name, each in properties.items():
            property_ = Node(each, node.uri)
            if self._is_hidden(property_):
                continue
            if name in shape.properties and shape.properties[name] != property_:
                # Both of them count.
                return False
            shape.properties[str(name)] = property_
        shape.required += [name for name in required if isinstance(name, str) and name not in shape.required]
        return True

    def form_shape(self, node: Node) -> FormShape | None:
        """What the fields of a form may be: of all its parts and alternatives. None if it is no object.

        Raises:
            DocumentError: A reference leads nowhere.
        """
        shape = FormShape()
        waiting = deque([(node, True)])
        for number in range(_MAX_PARTS):
            if not waiting:
                break
            here, is_certain = waiting.popleft()
            here = self._references.resolved(here)
            schema = here.value if isinstance(here.value, dict) else {}
            kinds = schema.get("type", "object")
            if number == 0 and "object" not in (kinds if isinstance(kinds, list) else [kinds]):
                return None
            self._add_fields(shape, schema, here.uri, is_certain=is_certain)
            for key in ("allOf", "anyOf", "oneOf", "then", "else"):
                parts = schema.get(key, [])
                certain = is_certain and key == "allOf"
                waiting += [(Node(part, here.uri), certain) for part in (parts if isinstance(parts, list) else [parts])]
        # The properties may be those of a later part.
        shape.required = [name for name in dict.fromkeys(shape.required) if name in shape.properties]
        return shape

    def _add_fields(self, shape: FormShape, schema: Json, uri: str, *, is_certain: bool) -> None:
        properties, required = schema.get("properties"), schema.get("required")
        for name, each in properties.items() if isinstance(properties, dict) else ():
            node = Node(each, uri)
            known = shape.properties.get(str(name), [])
            if node not in known and not self._is_hidden(node):
                shape.properties[str(name)] = [*known, node]
        if is_certain and isinstance(required, list):
            shape.required += [name for name in required if isinstance(name, str)]
        if isinstance(others := schema.get("additionalProperties"), dict) and others:
            shape.others = shape.others or Node(others, uri)


def _is_excessive(value: Any) -> bool:
    """Whether a value, a default for example, is larger than a tool's schemas, or nested deeper than one.

    By aliases of YAML it may be a part of itself, or be there more often than could be counted.
    """
    if not isinstance(value, (dict, list)):
        return False
    if size_of(value, _MAX_VALUE_BYTES) > _MAX_VALUE_BYTES:
        return True
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner = (node.values() if isinstance(node, dict) else node for node in level)
        level = [each for each in itertools.chain.from_iterable(inner) if isinstance(each, (dict, list))]
        if not level:
            return False
    return True
