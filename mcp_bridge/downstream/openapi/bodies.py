"""Bodies of an operation's requests as arguments of a tool. Runs in the compiler's process.

The properties of an object are arguments by themselves, where nothing more is said of it and no parameter has the name
of one. Any other body is one argument.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.downstream.openapi.compiled_service import BodyPlan, FieldPlan, is_json
from mcp_bridge.downstream.openapi.document_parts import MEDIA_TYPE
from mcp_bridge.downstream.openapi.document_references import Node
from mcp_bridge.downstream.openapi.document_text import DocumentError
from mcp_bridge.downstream.openapi.schemas import FormShape

if TYPE_CHECKING:
    from mcp_bridge.downstream.openapi.compiled_service import BodyKind
    from mcp_bridge.downstream.openapi.document_parts import Document, Json
    from mcp_bridge.downstream.openapi.schema_references import Place
    from mcp_bridge.downstream.openapi.schemas import ObjectShape, SchemaSet

_STYLES = frozenset({"form", "spaceDelimited", "pipeDelimited", "deepObject"})

_TEXTS = frozenset(
    f"application/{kind}"
    for kind in (
        *(
            "csv",
            "ecmascript",
            "graphql",
            "javascript",
            "json-seq",
            "jsonl",
            "jsonlines",
            "jwt",
            "n-quads",
            "n-triples",
        ),
        *("ndjson", "node", "pem-certificate-chain", "sdp", "sparql-query", "sparql-update", "sql", "toml", "trig"),
        *("typescript", "x-javascript", "x-jsonlines", "x-ndjson", "x-pem-file", "x-python", "x-sh", "x-sql"),
        *("x-subrip", "x-tex", "x-toml", "x-typescript", "x-yaml", "xml-dtd", "xquery"),
    )
)
"""Types that are text, though nothing in their names says so."""


def _type_of(media: str) -> str:
    """A media type without parameters, in lower case."""
    return media.partition(";")[0].strip().lower()


def _body_kind(media: str) -> BodyKind:
    kind = _type_of(media)
    if is_json(kind):
        return "json"
    if kind == "application/x-www-form-urlencoded":
        return "form"
    if kind == "multipart/form-data":
        return "multipart"
    if kind.startswith("text/") or kind.endswith(("/xml", "+xml", "/yaml", "+yaml", "+jwt")) or kind in _TEXTS:
        return "text"
    return "binary"


_KINDS: tuple[BodyKind, ...] = ("json", "form", "multipart", "text", "binary")
"""Kinds of bodies, the preferred first."""

_JSON_PATCH = "application/json-patch+json"
"""A list of operations (RFC 6902), whatever schema a document gives it beside other kinds of patches."""


def _preference(media: str) -> tuple[int, bool, bool]:
    """A key that sorts media types, the preferred first."""
    kind = _type_of(media)
    return _KINDS.index(_body_kind(media)), kind != "application/json", kind == _JSON_PATCH


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
        self._known: dict[tuple[Place, bool], list[Json]] = {}

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
        usable.sort(key=_preference)
        problem: DocumentError | None = None
        # What is no object can't be a form: that is one of any fields only where there is nothing else.
        for is_any_form, media in itertools.product((False, True), usable):
            entry = content[media] if isinstance(content[media], dict) else {}
            try:
                plan = self._sent_as(media, entry, is_required=bool(described.required), is_any_form=is_any_form)
                return self._with_choice(plan, [media, *(each for each in usable if each != media)], content)
            except DocumentError as error:
                problem = problem or error
        raise problem or DocumentError("has a request body that can't be sent")

    def _with_choice(self, plan: BodyPlan, usable: list[str], content: Json) -> BodyPlan:
        """The body with an argument for its media type, where that says what JSON means: a kind of patch, for example.

        Args:
            plan: The body.
            usable: The media types, the chosen one first.
            content: What the document says of each.
        """
        chosen, *others = usable
        if plan.kind != "json" or "*" in chosen or _type_of(chosen) == "application/json":
            return plan
        names = [chosen]
        for media in others:
            if _body_kind(media) != "json" or "*" in media or content[media] != content[chosen]:
                continue
            if _type_of(media) != _JSON_PATCH or self._may_be_array(content[media]):
                names.append(media)
        if len(names) == 1:
            return plan
        argument = self._free("content_type")
        self._properties[argument] = {"type": "string", "enum": names, "default": chosen}
        return replace(plan, media_type_argument=argument, media_types=tuple(names))

    def _may_be_array(self, entry: Any) -> bool:
        schema = entry.get("schema", {}) if isinstance(entry, dict) else {}
        found = self._any_of([Node(schema, self._node.uri)], _LookedAt())
        return any(each.get("type", "array") == "array" for each in found)

    def _sent_as(self, media: str, entry: Json, *, is_required: bool, is_any_form: bool) -> BodyPlan:
        """The body as one media type. Nothing is added to the arguments if it can't be sent so.

        Args:
            media: The type.
            entry: What the document says of it.
            is_required: Whether there is always a body.
            is_any_form: Whether a form that is no object may have any fields.

        Raises:
            DocumentError: It can't be sent.
        """
        kind = _body_kind(media)
        node = Node(entry.get("schema", {}), self._node.uri)
        if media.lower().startswith("multipart/") and kind != "multipart":
            raise DocumentError(f"has a request body of {media[:60]}, which isn't supported")
        if "*" in media:
            media = "application/octet-stream"
        if kind in {"text", "binary"}:
            return self._whole(media, kind, is_required, _WHOLE[kind])
        shape = self._schemas.object_shape(node)
        if shape is None or not shape.properties.keys().isdisjoint(self._properties):
            if kind == "json":
                return self._whole(media, kind, is_required, self._schemas.add(node))
            if shape is None:
                form = self._schemas.form_shape(node)
                if form is None and not is_any_form:
                    raise DocumentError("has a form that is no object")
                return self._open_form(media, kind, form or FormShape(), entry, is_required=is_required)
        return self._fields(media, kind, shape, entry, is_required=is_required)

    def _whole(self, media: str, kind: BodyKind, is_required: bool, schema: Any) -> BodyPlan:  # noqa: FBT001
        name = self._free("body")
        self._properties[name] = schema
        if is_required:
            self._required.append(name)
        return BodyPlan(media_type=media, kind=kind, required=is_required, argument=name)

    def _free(self, name: str) -> str:
        while name in self._properties:
            name += "_"
        return name

    def _fields(self, media: str, kind: BodyKind, shape: ObjectShape, entry: Json, *, is_required: bool) -> BodyPlan:
        fields: dict[str, FieldPlan] = {}
        schemas: Json = {}
        encodings = entry.get("encoding")
        for name, node in shape.properties.items():
            if kind == "json":
                schemas[name] = self._schemas.add(node)
                continue
            encoding = encodings.get(name) if isinstance(encodings, dict) else None
            fields[name], schemas[name] = self._field(kind, [node], encoding)
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
            fields[name], schemas[name] = self._field(kind, nodes, encoding)
        schema: Json = {"type": "object"}
        schema |= {"properties": schemas} if schemas else {}
        schema |= {"required": list(shape.required)} if shape.required else {}
        others = FieldPlan(is_array=True)
        if shape.others is not None:
            others, other = self._field(kind, [shape.others], None)
            schema["additionalProperties"] = other
        whole = self._whole(media, kind, is_required, schema)
        return replace(whole, fields=fields, other_fields=others)

    def _field(self, kind: BodyKind, nodes: list[Node], encoding: Any) -> tuple[FieldPlan, Any]:
        """How a property of a form is sent, and its schema: a file's is base64, with or without a name and a type.

        Args:
            kind: The kind of the form.
            nodes: The property's schemas, any of which may count. Each may be of a document of its own.
            encoding: What the form says of how the property is sent.
        """
        found = {}
        if isinstance(encoding, dict):
            described = self._document.decoded("Encoding", encoding, {"contentType", "style", "explode"})
            found = {"style": described.style, "explode": described.explode, "media_type": described.contentType}
        asked = str(found.get("media_type") or "").partition(",")[0].strip()
        media = asked if MEDIA_TYPE.fullmatch(asked) and "*" not in asked else None
        possible = self._possible(nodes, asked if kind == "multipart" else None)
        is_file = bool(possible.is_file or possible.has_files)
        if is_file:
            schema = self._with_file(nodes[0], possible)
        else:
            schemas = [self._schemas.add(node) for node in nodes]
            schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        has_style = found.get("style") in _STYLES
        explode = found.get("explode")
        style = found["style"] if has_style else "form"
        # A style that is written there counts instead of a type.
        as_json = media is not None and is_json(media) and not has_style and not is_file
        plan = FieldPlan(
            style=style,  # type: ignore[arg-type]
            explode=explode if isinstance(explode, bool) else style == "form",
            media_type=media,
            is_file=is_file,
            may_be_text=is_file and possible.may_be("string"),
            may_be_object=is_file and possible.may_be("object"),
            is_array=possible.is_array,
            as_json=as_json and not possible.is_json_text(),
            may_be_json_text=as_json and possible.is_text(),
        )
        return plan, schema

    def _possible(self, nodes: list[Node], media: str | None) -> _Possible:
        """What a property of a form may be.

        Args:
            nodes: Its schemas.
            media: The media type that it is sent with, if that is said; None if it can't be a file.
        """
        looked_at = _LookedAt()
        found = self._any_of(nodes, looked_at)
        arrays = [each for each in found if each.get("type") == "array" or ("type" not in each and "items" in each)]
        single = [each for each in found if each.get("type") != "null" and each not in arrays]
        inner = [array.get("items", Node({}, nodes[0].uri)) for array in arrays]
        items = [each for each in self._any_of(inner, looked_at) if each.get("type") != "null"]
        return _Possible(
            is_file=media is not None and any(_is_file(each, media) for each in single),
            has_files=media is not None and any(_is_file(each, media) for each in items),
            is_array=bool(arrays),
            is_null=any(each.get("type") == "null" for each in found),
            others=[each for each in single if media is None or not _is_file(each, media)],
            other_items=[each for each in items if media is None or not _is_file(each, media)],
        )

    def _with_file(self, node: Node, possible: _Possible) -> Json:
        """The schema of a property that may be a file, or an array with files.

        Where it may be a text, too, only an object is a file. What else it may be is one alternative among others, by
        what tells it: the document's own ones say that of two that fit, none does (`oneOf`), and have the files.
        """
        files: list[Json] = [_FILE_OBJECT] if possible.may_be("string") else list(_FILE["anyOf"])
        forms = (files if possible.is_file else []) + self._described(possible.others, node.uri)
        if possible.is_array:
            items = (files if possible.has_files else []) + self._described(possible.other_items, node.uri)
            forms.append({"type": "array", "items": _one_of_them(items)})
        if possible.is_null:
            forms.append({"type": "null"})
        out = _one_of_them(forms)
        said = node.value if isinstance(node.value, dict) else {}
        described = {key: value for key, value in said.items() if key == "description"}
        return out | (self._schemas.add(Node(described, node.uri)) if described else {})

    def _described(self, alternatives: list[Json], uri: str) -> list[Json]:
        """Alternatives that are no files as schemas, each once."""
        found: list[Json] = []
        for each in alternatives:
            said = {key: value for key, value in each.items() if key in _SAID}
            if said.get("format") in ("binary", "byte"):
                # They would make a file of it. (It may be of any type.)
                del said["format"]
            schema = self._schemas.add(Node(said, uri))
            if objects := each.get(_OBJECTS):
                schema |= {"allOf": [self._schemas.add(node) for node in objects]}
            if schema not in found:
                found.append(schema)
        return found

    def _any_of(self, nodes: list[Node], looked_at: _LookedAt) -> list[Json]:
        """The alternatives of several schemas, any of which may count."""
        found: list[Json] = []
        for node in nodes:
            if looked_at.is_enough or len(found) >= _MAX_ALTERNATIVES:
                # Of the others, nothing is known.
                return found if {} in found else [*found, {}]
            found += self._alternatives(node, looked_at)
        return found

    def _alternatives(self, node: Node, looked_at: _LookedAt) -> list[Json]:
        """The keywords of a schema for each of the types that a value may have, without references.

        Args:
            node: The schema.
            looked_at: What has been looked at so far: schemas may refer to each other often.
        """
        node = self._document.schemas.written(node)
        target = self._document.schemas.target(node)
        if target is None:
            return self._own_alternatives(node, looked_at)
        if (known := self._known.get(target)) is not None:
            return known
        # Where it leads to itself, it may be anything.
        self._known[target] = [{}]
        try:
            found = self._own_alternatives(self._document.schemas.resolved(node), looked_at)
        finally:
            del self._known[target]
        if not looked_at.is_enough:
            # Else, another property may find out more.
            self._known[target] = found
        return found

    def _own_alternatives(self, node: Node, looked_at: _LookedAt) -> list[Json]:
        looked_at.number += 1
        if looked_at.is_enough or not isinstance(node.value, dict):
            return [{}]
        schema: Json = node.value
        plain = {key: value for key, value in schema.items() if key in _FILE_KEYWORDS}
        if "items" in plain:
            plain["items"] = Node(plain["items"], node.uri)
        if of_object := {key: value for key, value in schema.items() if key in {"properties", "required"}}:
            plain[_OBJECTS] = [Node(of_object, node.uri)]
        types = plain.get("type")
        found = [plain | {"type": each} for each in types[:_MAX_ALTERNATIVES]] if isinstance(types, list) else [plain]
        parts = ([part] for part in _list(schema, "allOf"))
        for group in itertools.chain(parts, (_list(schema, "anyOf"), _list(schema, "oneOf"))):
            if looked_at.is_enough:
                return [{}]
            inner = self._any_of([Node(part, node.uri) for part in group[: _MAX_ALTERNATIVES + 1]], looked_at)
            if inner:
                pairs = itertools.product(inner, found)
                found = [_both(one, other) for other, one in itertools.islice(pairs, _MAX_ALTERNATIVES)]
                found += [{}] if next(pairs, None) is not None else []
        if schema.get("nullable") is True:
            found.append({"type": "null"})
        return found


class _LookedAt:
    """How many schemas have been looked at for one property."""

    def __init__(self) -> None:
        self.number = 0

    @property
    def is_enough(self) -> bool:
        """Whether no more are looked at."""
        return self.number > _MAX_ALTERNATIVES


class _Possible(NamedTuple):
    """What a property of a form may be.

    Attributes:
        is_file: A file.
        has_files: An array with files.
        is_array: An array.
        is_null: Null.
        others: What else it may be: the keywords of each alternative.
        other_items: Likewise, of the items of an array.
    """

    is_file: bool
    has_files: bool
    is_array: bool
    is_null: bool
    others: list[Json]
    other_items: list[Json]

    def may_be(self, kind: str) -> bool:
        """Whether it, or an item of it, may be of this type, and no file."""
        return any(each.get("type", kind) == kind for each in (*self.others, *self.other_items))

    def is_text(self) -> bool:
        """Whether it, and each item of it, is a text."""
        values = [*self.others, *self.other_items]
        return bool(values) and all(each.get("type") == "string" for each in values)

    def is_json_text(self) -> bool:
        """Whether it is, or has, a text that is JSON by the schema."""
        return any(is_json(str(each.get("contentMediaType", ""))) for each in (*self.others, *self.other_items))


_MAX_ALTERNATIVES = 100
"""Of one property, that are looked at. Beyond them, it may be anything."""

_SAID = frozenset({"type", "format", "enum", "const", "pattern", "minimum", "maximum", "minLength", "maxLength"})
"""Keywords that are kept of what may be a file, too."""

_FILE_KEYWORDS = _SAID | {"contentEncoding", "contentMediaType", "items"}
"""Keywords that tell a file."""


_OBJECTS = "objects"
"""Of an alternative, what is said of it as an object: a list of schemas, all of which count."""


def _both(one: Json, other: Json) -> Json:
    objects = [*one.get(_OBJECTS, ()), *other.get(_OBJECTS, ())]
    return one | other | ({_OBJECTS: objects} if objects else {})


def _list(schema: Json, key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _one_of_them(schemas: list[Json]) -> Json:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


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
    if "format" in schema or not _OF_A_TEXT.isdisjoint(schema):
        return False
    own = schema.get("contentMediaType")
    if not isinstance(own, str):
        own = media if "items" not in schema else ""
    # Of `*/*`, a text is one too.
    return bool(own) and own not in {"*/*", "application/*"} and _body_kind(own) == "binary"


_OF_A_TEXT = frozenset({"enum", "const", "pattern"})
"""Keywords that only a text has. A file's `format` is looked at before."""
