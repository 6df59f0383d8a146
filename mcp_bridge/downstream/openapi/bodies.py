"""Bodies of an operation's requests as arguments of a tool. Runs in the compiler's process.

The properties of an object are arguments by themselves, where nothing more is said of it and no parameter has the name
of one. Any other body is one argument.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.downstream.openapi.compiled_service import BodyPlan, FieldPlan
from mcp_bridge.downstream.openapi.document_parts import MEDIA_TYPE, is_json
from mcp_bridge.downstream.openapi.document_references import Node
from mcp_bridge.downstream.openapi.document_text import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.downstream.openapi.compiled_service import BodyKind
    from mcp_bridge.downstream.openapi.document_parts import Document, Json
    from mcp_bridge.downstream.openapi.schemas import FormShape, ObjectShape, SchemaSet

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
                return self._open_form(media, kind, self._schemas.form_shape(node), entry, is_required=is_required)
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
                fields[name], schema = self._field(kind, node, schema, encoding, name)
            schemas[name] = schema
        if kind != "json" and not shape.properties.keys().isdisjoint(self._properties):
            schema = {"type": "object", "properties": schemas, "additionalProperties": False}
            schema |= {"required": list(shape.required)} if shape.required else {}
            return replace(self._whole(media, kind, is_required, schema), fields=fields)
        self._properties.update(schemas)
        if is_required:
            self._required += [name for name in shape.required if name in schemas]
        return BodyPlan(media_type=media, kind=kind, required=is_required, properties=tuple(schemas), fields=fields)

    def _open_form(self, media: str, kind: BodyKind, shape: FormShape, entry: Json, *, is_required: bool) -> BodyPlan:
        """A form that may have other fields than those that are named, or of which more is said: one argument."""
        encodings = entry.get("encoding")
        fields: dict[str, FieldPlan] = {}
        schemas: Json = {}
        for name, nodes in shape.properties.items():
            encoding = encodings.get(name) if isinstance(encodings, dict) else None
            node = nodes[0] if len(nodes) == 1 else Node({"anyOf": [each.value for each in nodes]}, nodes[0].uri)
            fields[name], schemas[name] = self._field(kind, node, self._schemas.add(node), encoding, name)
        schema: Json = {"type": "object"}
        schema |= {"properties": schemas} if schemas else {}
        schema |= {"required": list(shape.required)} if shape.required else {}
        others = FieldPlan(is_array=True)
        if shape.others is not None:
            others, other = self._field(kind, shape.others, self._schemas.add(shape.others), None, "other fields")
            schema["additionalProperties"] = other
        whole = self._whole(media, kind, is_required, schema)
        return replace(whole, fields=fields, other_fields=others)

    def _field(self, kind: BodyKind, node: Node, schema: Any, encoding: Any, name: str) -> tuple[FieldPlan, Any]:
        """How a property of a form is sent, and its schema: a file's is base64, with or without a name and a type.

        Raises:
            DocumentError: It may be a file or an object, which nobody could tell apart.
        """
        found = {}
        if isinstance(encoding, dict):
            described = self._document.decoded("Encoding", encoding, {"contentType", "style", "explode"})
            found = {"style": described.style, "explode": described.explode, "media_type": described.contentType}
        asked = str(found.get("media_type") or "").partition(",")[0].strip()
        media = asked if MEDIA_TYPE.fullmatch(asked) and "*" not in asked else None
        possible = self._possible(node, asked if kind == "multipart" else None)
        is_file = kind == "multipart" and (possible.file or possible.files)
        if is_file:
            if possible.is_mixed and possible.object:
                raise DocumentError(f"has a form whose {name[:60]!r} may be a file or an object, which look the same")
            schema = _with_file(schema, possible)
        has_style = found.get("style") in _STYLES
        explode = found.get("explode")
        style = found["style"] if has_style else "form"
        plan = FieldPlan(
            style=style,  # type: ignore[arg-type]
            explode=explode if isinstance(explode, bool) else style == "form",
            media_type=media,
            is_file=is_file,
            may_be_text=is_file and possible.is_mixed,
            is_array=possible.array,
            # A style that is written there counts instead of a type.
            as_json=media is not None and is_json(media) and not possible.json_text and not has_style,
        )
        return plan, schema

    def _possible(self, node: Node, media: str | None) -> _Possible:
        """What a property of a form may be.

        Args:
            node: Its schema.
            media: The media type that it is sent with, if that is said; None if it can't be a file.
        """
        looked_at = iter(range(_MAX_ALTERNATIVES))
        found = self._alternatives(node, looked_at)
        arrays = [each for each in found if each.get("type") == "array" or ("type" not in each and "items" in each)]
        items = [
            each
            for array in arrays
            for each in self._alternatives(array.get("items", Node({}, node.uri)), looked_at)
            if each.get("type") != "null"
        ]
        single = [each for each in found if each.get("type") != "null" and each not in arrays]
        values = [*single, *items]
        files = [each for each in values if media is not None and _is_file(each, media)]
        return _Possible(
            file=any(each in files for each in single),
            files=any(each in files for each in items),
            array=bool(arrays),
            null=any(each.get("type") == "null" for each in found),
            is_mixed=bool(files) and len(files) < len(values),
            object=any(each.get("type", "object") == "object" for each in values if each not in files),
            json_text=any(is_json(str(each.get("contentMediaType", ""))) for each in values),
        )

    def _alternatives(self, node: Node, looked_at: Iterator[int]) -> list[Json]:
        """The keywords of a schema for each of the types that a value may have, without references.

        Args:
            node: The schema.
            looked_at: Ends when enough has been looked at: schemas may refer to each other often.
        """
        node = self._document.references.resolved(node)
        if next(looked_at, None) is None or not isinstance(node.value, dict):
            return [{}]
        schema: Json = node.value
        plain = {key: schema[key] for key in _TELLING if key in schema}
        if "items" in plain:
            plain["items"] = Node(plain["items"], node.uri)
        found = [plain | {"type": each} for each in plain["type"]] if isinstance(plain.get("type"), list) else [plain]
        parts = [[part] for part in _list(schema, "allOf")]
        for group in (*parts, _list(schema, "anyOf"), _list(schema, "oneOf")):
            inner = [each for part in group for each in self._alternatives(Node(part, node.uri), looked_at)]
            if inner:
                found = [one | other for other in inner for one in found][:_MAX_ALTERNATIVES]
        if schema.get("nullable") is True:
            found.append({"type": "null"})
        return found


class _Possible(NamedTuple):
    """What a property of a form may be.

    Attributes:
        file: A file.
        files: An array with files.
        array: An array.
        null: Null.
        is_mixed: A file, or something else.
        object: An object that is no file.
        json_text: A text that is JSON already.
    """

    file: bool
    files: bool
    array: bool
    null: bool
    is_mixed: bool
    object: bool
    json_text: bool


_MAX_ALTERNATIVES = 100
"""Of one property, that are looked at. Beyond them, it may be anything."""

_TELLING = ("type", "format", "contentEncoding", "contentMediaType", "items")
"""Keywords that tell a file."""


def _list(schema: Json, key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _with_file(schema: Any, possible: _Possible) -> Json:
    """The schema of a property that may be a file, or an array with files."""
    if possible.is_mixed:
        # What else it may be is as the document has it: a text is a text there, and a file has its own form.
        files = [_FILE_OBJECT, {"type": "array", "items": {"anyOf": [_FILE_OBJECT, {"type": _SIMPLE}]}}]
        return {"anyOf": [*files[: 1 + possible.files], schema]}
    forms: list[Json] = list(_FILE["anyOf"]) if possible.file else []
    forms += [{"type": "array", "items": _FILE}] if possible.files else []
    forms += [{"type": "null"}] if possible.null else []
    out = forms[0] if len(forms) == 1 else {"anyOf": forms}
    return out | ({"description": schema["description"]} if "description" in schema else {})


_FILE_OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "data": {"type": "string", "contentEncoding": "base64"},
        "filename": {"type": "string"},
        "mime_type": {"type": "string"},
    },
    "required": ["data"],
    "additionalProperties": False,
}

_FILE: dict[str, Any] = {"anyOf": [{"type": "string", "contentEncoding": "base64"}, _FILE_OBJECT]}

_SIMPLE = ["string", "number", "boolean"]

_WHOLE: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "binary": {"type": "string", "contentEncoding": "base64", "description": "Base64."},
}


def _is_file(schema: Json, media: str) -> bool:
    """Whether a value is bytes, by its schema or by the media type that it is sent with."""
    if schema.get("type", "string") != "string":
        return False
    if schema.get("format") == "binary" or schema.get("contentEncoding") == "base64":
        return True
    own = schema.get("contentMediaType")
    if isinstance(own, str):
        return _body_kind(own) == "binary"
    return bool(media) and "items" not in schema and _body_kind(media) == "binary"
