"""Bodies of an operation's requests as arguments of a tool. Runs in the compiler's process.

The properties of an object are arguments by themselves, where nothing more is said of it and no parameter has the name
of one. Any other body is one argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.downstream.openapi.compiled_service import BodyPlan, FieldPlan
from mcp_bridge.downstream.openapi.document_parts import MEDIA_TYPE, is_json
from mcp_bridge.downstream.openapi.document_references import Node
from mcp_bridge.downstream.openapi.document_text import DocumentError

if TYPE_CHECKING:
    from mcp_bridge.downstream.openapi.compiled_service import BodyKind
    from mcp_bridge.downstream.openapi.document_parts import Document, Json
    from mcp_bridge.downstream.openapi.schemas import ObjectShape, SchemaSet

_STYLES = frozenset({"form", "spaceDelimited", "pipeDelimited", "deepObject"})


def _body_kind(media: str) -> BodyKind:
    kind = media.partition(";")[0].strip().lower()
    if is_json(kind):
        return "json"
    if kind == "application/x-www-form-urlencoded":
        return "form"
    if kind == "multipart/form-data":
        return "multipart"
    if kind.startswith("text/") or kind.endswith(("/xml", "+xml", "/yaml", "+yaml", "/graphql")):
        return "text"
    return "binary"


_KINDS: tuple[BodyKind, ...] = ("json", "form", "multipart", "text", "binary")
"""Kinds of bodies, the preferred first."""


class Body:
    """The body of an operation, which adds its arguments to those of the parameters."""

    def __init__(
        self, document: Document, schemas: SchemaSet, node: Node, properties: Json, required: list[str]
    ) -> None:
        self._document = document
        self._schemas = schemas
        self._node = document.references.resolved(node)
        self._properties = properties
        self._required = required

    def plan(self) -> BodyPlan | None:
        """The body; None if the document says nothing of it. Adds its arguments."""
        value = self._node.value
        described = self._document.decoded("RequestBody", value, {"required"}, unused="content")
        content = value.get("content")
        if not isinstance(content, dict) or not content:
            return None
        usable = [str(media) for media in content if MEDIA_TYPE.fullmatch(str(media))]
        if not usable:
            raise DocumentError("has a request body of no valid media type")
        media = min(usable, key=lambda each: (_KINDS.index(_body_kind(each)), each != "application/json"))
        kind = _body_kind(media)
        entry = content[media] if isinstance(content[media], dict) else {}
        node = Node(entry.get("schema", {}), self._node.uri)
        is_required = bool(described.required)
        if "*" in media:
            media = "application/octet-stream"
        if kind in {"text", "binary"}:
            return self._whole(media, kind, is_required, _WHOLE[kind])
        shape = self._schemas.object_shape(node)
        if shape is None or not shape.properties.keys().isdisjoint(self._properties):
            if kind == "json":
                return self._whole(media, kind, is_required, self._schemas.add(node))
            if shape is None:
                # A form of any fields.
                return self._whole(media, kind, is_required, {"type": "object"})
        return self._fields(media, kind, shape, entry, is_required=is_required)

    def _whole(self, media: str, kind: BodyKind, is_required: bool, schema: Any) -> BodyPlan:  # noqa: FBT001
        name = self._free("body")
        self._properties[name] = schema
        if is_required:
            self._required.append(name)
        return BodyPlan(media_type=media, kind=kind, required=is_required, argument=name)

    def _free(self, name: str) -> str:
        while name in self._properties:
            name += "_in_body" if name != "body" else "_"
        return name

    def _fields(self, media: str, kind: BodyKind, shape: ObjectShape, entry: Json, *, is_required: bool) -> BodyPlan:
        fields: dict[str, FieldPlan] = {}
        schemas: Json = {}
        encodings = entry.get("encoding")
        for name, node in shape.properties.items():
            schema = self._schemas.add(node)
            if kind != "json":
                encoding = encodings.get(name) if isinstance(encodings, dict) else None
                fields[name], schema = self._field(kind, node, schema, encoding)
            schemas[name] = schema
        if kind != "json" and not shape.properties.keys().isdisjoint(self._properties):
            schema = {"type": "object", "properties": schemas, "additionalProperties": False}
            schema |= {"required": list(shape.required)} if shape.required else {}
            whole = self._whole(media, kind, is_required, schema)
            return BodyPlan(media_type=media, kind=kind, required=is_required, argument=whole.argument, fields=fields)
        self._properties.update(schemas)
        if is_required:
            self._required += [name for name in shape.required if name in schemas]
        return BodyPlan(media_type=media, kind=kind, required=is_required, properties=tuple(schemas), fields=fields)

    def _field(self, kind: BodyKind, node: Node, schema: Any, encoding: Any) -> tuple[FieldPlan, Any]:
        """How a property of a form is sent, and its schema: a file's is base64, with or without a name and a type."""
        raw = self._document.references.resolved(node).value
        raw = raw if isinstance(raw, dict) else {}
        is_array = raw.get("type") == "array"
        item = raw
        if is_array:
            inner = self._document.references.resolved(Node(raw.get("items", {}), node.uri)).value
            item = inner if isinstance(inner, dict) else {}
        found = {}
        if isinstance(encoding, dict):
            described = self._document.decoded("Encoding", encoding, {"contentType", "style", "explode"})
            found = {"style": described.style, "explode": described.explode, "media_type": described.contentType}
        media = str(found.get("media_type") or "").partition(",")[0].strip() or None
        if media is not None and (not MEDIA_TYPE.fullmatch(media) or "*" in media):
            media = None
        is_file = kind == "multipart" and _is_file(item)
        if is_file:
            described_by = {"description": schema["description"]} if "description" in schema else {}
            schema = {"type": "array", "items": _FILE} if is_array else _FILE | described_by
        style = found.get("style") if found.get("style") in _STYLES else "form"
        explode = found.get("explode")
        plan = FieldPlan(
            style=style,  # type: ignore[arg-type]
            explode=explode if isinstance(explode, bool) else style == "form",
            media_type=media,
            is_file=is_file,
            is_array=is_array,
        )
        return plan, schema


_FILE: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "contentEncoding": "base64"},
        {
            "type": "object",
            "properties": {
                "data": {"type": "string", "contentEncoding": "base64"},
                "filename": {"type": "string"},
                "mime_type": {"type": "string"},
            },
            "required": ["data"],
            "additionalProperties": False,
        },
    ]
}

_WHOLE: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "binary": {"type": "string", "contentEncoding": "base64", "description": "Base64."},
}


def _is_file(schema: Json) -> bool:
    if schema.get("type", "string") != "string":
        return False
    if schema.get("format") == "binary" or schema.get("contentEncoding") == "base64":
        return True
    media = schema.get("contentMediaType")
    return isinstance(media, str) and not media.startswith("text/") and not is_json(media)
