"""Forms of a service that an OpenAPI document describes: what is a file, and what a nested value becomes."""

import base64
import json
from email import message_from_bytes
from typing import Annotated
from urllib.parse import parse_qsl

import pytest
from downstream_calls import call_tool
from fastapi import FastAPI, File, Form, UploadFile
from http_servers import serving
from openapi_calls import built, compiled, document

from mcp_bridge.downstream.catalog.argument_check import ArgumentCheck, ArgumentError
from mcp_bridge.downstream.catalog.tool_results import convert
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.configuration.spec import OpenApiDocument, ServerSpec
from mcp_bridge.downstream.openapi import bodies

# Far above what any of these takes; a test that runs into it hangs.
pytestmark = pytest.mark.timeout(120)

DATA = b"\x89PNG\x00"
BASE64 = base64.b64encode(DATA).decode()
FILE = {"type": "string", "format": "binary"}
OCTETS = {"type": "string", "contentMediaType": "application/octet-stream"}
NULL = {"type": "null"}


def service(schema, media="multipart/form-data", encoding=None, *, outcome=False, **components):
    """A service with one operation, `x`, which has this body."""
    content = {media: {"schema": schema, "encoding": encoding or {}}}
    operation = {"operationId": "x", "requestBody": {"required": True, "content": content}}
    return compiled(document({"/x": {"post": operation}}, components={"schemas": components}), outcome=outcome)


def parts(found, **arguments):
    """The parts of a body that is built: the name, the file's name, the media type and the content of each."""
    request = built(found, "x", **arguments)
    whole = message_from_bytes(f"content-type: {request.headers['content-type']}\r\n\r\n".encode() + request.content)
    return [
        (
            part.get_param("name", header="content-disposition"),
            part.get_param("filename", header="content-disposition"),
            part.get("content-type"),
            part.get_payload(decode=True),
        )
        for part in whole.get_payload()
    ]


def one(schema, **components):
    return service({"type": "object", "properties": {"f": schema}}, **components)


@pytest.mark.parametrize(
    "schema",
    [
        FILE,
        {"anyOf": [OCTETS, NULL]},
        {"oneOf": [NULL, FILE]},
        {"type": ["string", "null"], "format": "binary"},
        FILE | {"nullable": True},
        {"$ref": "#/components/schemas/File"},
        {"allOf": [{"$ref": "#/components/schemas/File"}], "description": "A picture."},
        {"anyOf": [{"allOf": [{"type": "string"}, {"format": "binary"}]}, NULL]},
    ],
)
def test_a_file_is_one_however_its_schema_says_so(schema):
    found = one(schema, File=FILE)
    assert parts(found, f=BASE64) == [("f", "f", "application/octet-stream", DATA)]
    described = {"data": BASE64, "filename": "a.png", "mime_type": "image/png"}
    assert parts(found, f=described) == [("f", "a.png", "image/png", DATA)]
    schema = found.tools[0]["inputSchema"]
    ArgumentCheck(schema).check({"f": BASE64})
    ArgumentCheck(schema).check({"f": described})
    with pytest.raises(ArgumentError):
        ArgumentCheck(schema).check({"f": {"date": BASE64}})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": FILE},
        {"type": ["array", "null"], "items": OCTETS},
        {"anyOf": [{"type": "array", "items": {"$ref": "#/components/schemas/File"}}, NULL]},
        {"type": "array", "items": {"anyOf": [FILE, NULL]}},
    ],
)
def test_several_files_are_as_many_parts(schema):
    found = one(schema, File=FILE)
    files = [BASE64, {"data": BASE64, "filename": "a.png"}]
    ArgumentCheck(found.tools[0]["inputSchema"]).check({"f": files})
    assert [part[:2] for part in parts(found, f=files)] == [("f", "f"), ("f", "a.png")]
    assert {part[3] for part in parts(found, f=files)} == {DATA}


def test_a_file_or_several_of_them_are_both_taken():
    found = one({"anyOf": [FILE, {"type": "array", "items": FILE}]})
    assert parts(found, f=BASE64) == parts(found, f=[BASE64])


def test_a_file_that_may_be_a_text_is_one_in_its_own_form():
    schema = {"anyOf": [FILE, {"type": "string", "format": "uri"}]}
    found = one(schema)
    ArgumentCheck(found.tools[0]["inputSchema"]).check({"f": "https://example.com/a.png"})
    ArgumentCheck(found.tools[0]["inputSchema"]).check({"f": {"data": BASE64}})
    assert parts(found, f="https://example.com/a.png") == [("f", None, None, b"https://example.com/a.png")]
    assert parts(found, f={"data": BASE64}) == [("f", "f", "application/octet-stream", DATA)]


TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
FILES = {"type": "array", "items": FILE}


@pytest.mark.parametrize("either", ["oneOf", "anyOf"])
@pytest.mark.parametrize(
    ("alternatives", "values"),
    [
        ([FILE, TEXT], ["text", BASE64]),
        ([FILE, {"type": "string", "format": "uri"}, NULL], ["https://example.com/a", None]),
        ([FILE, {"type": "string", "format": "byte"}], [BASE64]),
        ([FILE, TEXTS], [["text", BASE64]]),
        ([FILES, TEXTS], [["text", BASE64], [{"data": BASE64}]]),
        ([TEXT, FILES], ["text", [{"data": BASE64}]]),
        ([FILE, {"type": "array", "items": {"oneOf": [FILE, TEXT]}}], [["text", {"data": BASE64}], {"data": BASE64}]),
    ],
)
def test_where_a_text_may_be_only_the_objects_form_is_a_file(either, alternatives, values):
    found = one({either: alternatives})
    schema = found.tools[0]["inputSchema"]
    described = json.dumps(schema)
    assert "oneOf" not in described
    # Beside the object's own, which says what its data is.
    assert described.replace('"data": {"type": "string", "contentEncoding"', "").count("contentEncoding") == 0
    for value in values:
        ArgumentCheck(schema).check({"f": value})
        items = value if isinstance(value, list) else [value] if value is not None else []
        sent = [part for part in parts(found, f=value) if part[0] == "f"]
        assert [(part[1], part[3]) for part in sent] == [
            ("f", DATA) if isinstance(item, dict) else (None, item.encode()) for item in items
        ]


@pytest.mark.parametrize("alternatives", [[FILE, TEXTS], [FILES, TEXT]])
def test_base64_that_could_be_a_text_or_a_file_is_refused_where_only_a_file_may_be(alternatives):
    schema = one({"anyOf": alternatives}).tools[0]["inputSchema"]
    with pytest.raises(ArgumentError):
        ArgumentCheck(schema).check({"f": BASE64 if alternatives[0] == FILE else [BASE64]})


@pytest.mark.parametrize("either", ["oneOf", "anyOf"])
def test_a_file_that_may_be_a_number_is_base64(either):
    found = one({either: [FILE, {"type": "integer", "minimum": 3}], "description": "A file, or its number."})
    schema = found.tools[0]["inputSchema"]
    assert schema["properties"]["f"]["description"] == "A file, or its number."
    for value in (5, BASE64, {"data": BASE64}):
        ArgumentCheck(schema).check({"f": value})
    with pytest.raises(ArgumentError):
        ArgumentCheck(schema).check({"f": 2})
    assert parts(found, f=5) == [("f", None, None, b"5")]
    assert parts(found, f=BASE64) == parts(found, f={"data": BASE64}) == [("f", "f", "application/octet-stream", DATA)]


@pytest.mark.parametrize("other", [{"type": "object"}, {}])
def test_an_object_that_looks_like_a_file_is_one_and_another_is_not(other):
    found = one({"anyOf": [FILE, other]})
    values = [{"data": BASE64, "filename": "a"}, {"data": BASE64, "more": 1}, {"data": {"id": 1}}, {}]
    for value in values:
        ArgumentCheck(found.tools[0]["inputSchema"]).check({"f": value})
    assert [parts(found, f=value)[0][1:] for value in values] == [
        ("a", "application/octet-stream", DATA),
        (None, "application/json", json.dumps(values[1], separators=(",", ":")).encode()),
        (None, "application/json", b'{"data":{"id":1}}'),
        (None, "application/json", b"{}"),
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"$ref": "#/components/schemas/Link"},
        {"allOf": [{"required": ["url"]}, {"type": "object", "properties": {"url": TEXT}}]},
    ],
)
def test_an_object_that_may_be_a_file_has_its_properties(other):
    link = {"type": "object", "properties": {"url": TEXT, "id": {"readOnly": True}}, "required": ["id", "url"]}
    for schema, wrap in (
        ({"oneOf": [FILE, other]}, lambda value: value),
        ({"type": "array", "items": {"oneOf": [FILE, other]}}, lambda value: [value]),
    ):
        found = one(schema, Link=link)
        check = ArgumentCheck(found.tools[0]["inputSchema"])
        for value in ({"url": "x"}, {"data": BASE64}, BASE64):
            check.check({"f": wrap(value)})
        for value in ({"url": 1}, {"name": "x"}):
            with pytest.raises(ArgumentError):
                check.check({"f": wrap(value)})
        assert parts(found, f=wrap({"url": "x"}))[0][3] == b'{"url":"x"}'


def test_a_type_that_is_no_text_makes_a_file():
    encoding = {"f": {"contentType": "image/png, image/jpeg"}, "g": {"contentType": "text/csv"}}
    found = service({"type": "object", "properties": {"f": {}, "g": {"type": "string"}}}, encoding=encoding)
    assert parts(found, f=BASE64, g="a,b") == [("f", "f", "image/png", DATA), ("g", None, "text/csv", b"a,b")]


@pytest.mark.parametrize(
    ("schema", "media"),
    [
        (TEXT, "*/*"),
        (TEXT | {"enum": ["a,b"]}, "application/octet-stream"),
        (TEXT | {"const": "a,b"}, "image/png"),
        (TEXT | {"pattern": "^a"}, "image/png"),
        (TEXT | {"format": "uuid"}, "image/png"),
        (TEXT | {"contentMediaType": "application/sql"}, "image/png"),
        *((TEXT, f"application/{kind}") for kind in ("x-ndjson", "jwt", "sql", "toml", "javascript", "x-pem-file")),
        *((TEXT, f"application/{kind}") for kind in ("graphql", "yaml", "dpop+jwt")),
    ],
)
def test_a_text_is_none_whatever_type_it_is_sent_with(schema, media):
    found = service({"type": "object", "properties": {"f": schema}}, encoding={"f": {"contentType": media}})
    assert parts(found, f="a,b") == [("f", None, None if "*" in media else media, b"a,b")]


@pytest.mark.parametrize("media", ["image/*", "application/pdf", "application/octet-stream"])
def test_a_text_that_is_sent_with_a_type_of_bytes_is_a_file(media):
    found = service({"type": "object", "properties": {"f": TEXT}}, encoding={"f": {"contentType": media}})
    assert parts(found, f=BASE64)[0][3] == DATA


@pytest.mark.parametrize("items", [{"type": "string"}, {"type": "object"}])
@pytest.mark.parametrize("null", [False, True])
def test_the_items_of_an_array_are_parts(items, null):
    array = {"type": "array", "items": items}
    found = one({"anyOf": [array, NULL]} if null else array)
    values = ["a", "b"] if items["type"] == "string" else [{"a": 1}, {}]
    assert len(parts(found, f=values)) == 2


@pytest.mark.parametrize(
    "more",
    [
        {"additionalProperties": True},
        {"nullable": True},
        {"type": ["object", "null"]},
        {"oneOf": [{"required": ["f"]}, {"properties": {"g": FILE}}]},
    ],
)
def test_a_form_of_which_more_is_said_has_its_files(more):
    found = service({"type": "object", "properties": {"f": {"anyOf": [FILE, NULL]}}} | more)
    body = {"f": BASE64, "note": "x", "tags": ["a", "b"]}
    ArgumentCheck(found.tools[0]["inputSchema"]).check({"body": body})
    assert parts(found, body=body)[0] == ("f", "f", "application/octet-stream", DATA)
    assert [(part[0], part[3]) for part in parts(found, body=body)[1:]] == [
        ("note", b"x"), ("tags", b"a"), ("tags", b"b")
    ]  # fmt: skip
    if "oneOf" in more:
        assert parts(found, body={"g": {"data": BASE64, "filename": "a"}})[0][1] == "a"


def test_a_form_of_any_files_has_files():
    found = service({"type": "object", "additionalProperties": FILE})
    assert parts(found, body={"a": BASE64}) == [("a", "a", "application/octet-stream", DATA)]


@pytest.mark.parametrize("media", ["multipart/form-data", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("schema", [TEXT, FILE, FILES])
def test_a_form_that_is_no_object_may_have_any_fields(media, schema):
    found = service(schema, media)
    assert found.tools[0]["inputSchema"]["properties"]["body"] == {"type": "object"}
    assert b"x" in built(found, "x", body={"a": "x"}).content


@pytest.mark.parametrize(
    "wrong", [FILE, {"$ref": "#/nowhere"}, {"type": "object", "properties": {"f": {"$ref": "#/nowhere"}}}]
)
def test_where_one_media_type_cannot_be_sent_another_is(wrong):
    content = {"multipart/form-data": {"schema": wrong}, "application/octet-stream": {"schema": FILE}}
    paths = {"/x": {"post": {"operationId": "x", "requestBody": {"required": True, "content": content}}}}
    found = compiled(document(paths))
    schema = found.tools[0]["inputSchema"]
    assert (list(schema["properties"]), schema["required"]) == (["body"], ["body"])
    request = built(found, "x", body=BASE64)
    assert (request.headers["content-type"], request.content) == ("application/octet-stream", DATA)
    del content["application/octet-stream"]
    if wrong is not FILE:
        assert "isn't there" in compiled(document(paths)).notices[0]


def test_alternatives_of_a_form_have_the_references_of_their_own_documents():
    def other(kind):
        schema = {"type": "object", "properties": {"f": {"$ref": "#/F"}}}
        return json.dumps({"S": schema, "F": {"type": kind}})

    content = {"multipart/form-data": {"schema": {"oneOf": [{"$ref": "a.json#/S"}, {"$ref": "b.json#/S"}]}}}
    paths = {"/x": {"post": {"operationId": "x", "requestBody": {"required": True, "content": content}}}}
    more = {"file:///docs/a.json": other("integer"), "file:///docs/b.json": other("boolean")}
    check = ArgumentCheck(compiled(document(paths), more=more).tools[0]["inputSchema"])
    for value in (1, True):
        check.check({"body": {"f": value}})
    with pytest.raises(ArgumentError):
        check.check({"body": {"f": "text"}})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"f": TEXT}, "required": ["f", "g"], "oneOf": [{"properties": {"g": TEXT}}, {}]},
        {"allOf": [{"required": ["f", "g"]}, {"properties": {"f": TEXT, "g": TEXT}}], "minProperties": 1},
    ],
)
def test_fields_that_must_be_there_are_those_of_any_part(schema):
    body = service(schema).tools[0]["inputSchema"]["properties"]["body"]
    assert body["required"] == ["f", "g"]


def test_schemas_that_refer_to_each_other_often_are_looked_at_for_a_while():
    many = {"anyOf": [{"$ref": "#/components/schemas/Many"}] * 30}
    assert service({"type": "object", "properties": {"f": {"$ref": "#/components/schemas/Many"}}}, Many=many)
    assert service({"$ref": "#/components/schemas/Many"}, Many=many)


@pytest.mark.parametrize("components", [
    {"Many": {"type": [f"t{number}" for number in range(100)], "anyOf": [{"format": f"f{n}"} for n in range(3000)]}},
    {"Many": {"anyOf": [{"$ref": "#/components/schemas/Many"}] * 3 + [TEXT]}},
])  # fmt: skip
def test_a_property_takes_no_more_work_than_its_share(components, monkeypatch):
    """Alternatives are looked at once for all properties with the same reference, or up to a number for each."""
    looked_at = 0
    real = bodies.Body._own_alternatives

    def counted(*arguments):
        nonlocal looked_at
        looked_at += 1
        found = real(*arguments)
        assert len(found) <= bodies._MAX_ALTERNATIVES + 2
        return found

    monkeypatch.setattr(bodies.Body, "_own_alternatives", counted)
    fields = {f"f{number}": {"$ref": "#/components/schemas/Many"} for number in range(50)}
    assert service({"type": "object", "properties": fields}, **components).tools
    assert 0 < looked_at < 50 * (bodies._MAX_ALTERNATIVES + 2)
    if "type" not in components["Many"]:
        assert looked_at < 50


@pytest.mark.parametrize("media", ["application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_text_that_is_json_already_stays_as_it_is(media):
    schema = {"type": "object", "properties": {"f": {"type": ["string", "null"]}, "g": {}}}
    found = service(schema, media, {name: {"contentType": "application/json"} for name in "fg"})

    def sent(**arguments):
        if media == "multipart/form-data":
            return parts(found, **arguments)[0][3].decode()
        return parse_qsl(built(found, "x", **arguments).content.decode())[0][1]

    assert [sent(f=value) for value in ('{"a":1}', "x", "NaN", "")] == ['{"a":1}', '"x"', '"NaN"', '""']
    assert sent(g='{"a":1}') == json.dumps('{"a":1}')


def test_a_part_of_json_is_json():
    encoding = {name: {"contentType": "application/json"} for name in "abc"}
    properties = {
        "a": {"type": "string"},
        "b": {"type": "object"},
        "c": {"type": "string", "contentMediaType": "application/json"},
    }
    found = service({"type": "object", "properties": properties}, encoding=encoding)
    sent = parts(found, a="x", b={"y": 1}, c='{"z":1}')
    assert [part[2:] for part in sent] == [
        ("application/json", b'"x"'), ("application/json", b'{"y":1}'), ("application/json", b'{"z":1}')
    ]  # fmt: skip
    form = service({"type": "object", "properties": properties}, "application/x-www-form-urlencoded", encoding)
    assert parse_qsl(built(form, "x", a="x", b={"y": 1}).content.decode()) == [("a", '"x"'), ("b", '{"y":1}')]


@pytest.mark.parametrize("media", ["application/x-www-form-urlencoded", "multipart/form-data"])
def test_deep_objects_of_a_form_are_written_as_deep_as_they_are(media):
    deep = {"style": "deepObject", "explode": True}
    properties = {"card": {"type": "object"}, "items": {"type": "array", "items": {"type": "object"}}, "expand": {}}
    found = service({"type": "object", "properties": properties}, media, dict.fromkeys(properties, deep))
    arguments = {
        "card": {"number": "42", "addr": {"city": "X&Y", "zip": None}},
        "items": [{"price": "p1", "taxes": ["a", "b"]}, {"price": "p2"}],
        "expand": ["a", "b"],
    }
    if media == "multipart/form-data":
        pairs = [(name, data.decode()) for name, _, _, data in parts(found, **arguments)]
    else:
        content = built(found, "x", **arguments).content.decode()
        assert "card[addr][city]=X%26Y&items[0][price]=p1" in content
        pairs = parse_qsl(content)
    assert pairs == [
        ("card[number]", "42"), ("card[addr][city]", "X&Y"),
        ("items[0][price]", "p1"), ("items[0][taxes][0]", "a"), ("items[0][taxes][1]", "b"), ("items[1][price]", "p2"),
        ("expand[0]", "a"), ("expand[1]", "b"),
    ]  # fmt: skip


@pytest.mark.parametrize("media", ["application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_deep_object_of_a_form_takes_no_other_fields_place(media):
    properties = {"card": {"type": "object"}, "card[id]": {"type": "string"}}
    found = service({"type": "object", "properties": properties}, media, {"card": {"style": "deepObject"}})
    with pytest.raises(ValueError, match="another parameter is called so"):
        built(found, "x", card={"id": "1"})


@pytest.mark.parametrize("media", ["application/x-www-form-urlencoded", "multipart/form-data"])
@pytest.mark.parametrize("other", ["amount[]", "Amount", "amount [0]"])
def test_a_field_that_is_not_described_is_not_read_as_one_that_is(media, other):
    """A rule has decided about `amount`, and a service may read the other as it."""
    properties = {"amount": {"type": "integer"}}
    found = service({"type": "object", "properties": properties, "additionalProperties": True}, media)
    assert b"note" in built(found, "x", body={"amount": 1, "note": "x"}).content
    with pytest.raises(ValueError, match="another parameter is called so"):
        built(found, "x", body={"amount": 1, other: 5})


@pytest.mark.parametrize("media", ["application/x-www-form-urlencoded", "multipart/form-data"])
@pytest.mark.parametrize("style", ["deepObject", "form"])
def test_a_value_that_is_nested_too_deeply_is_refused(media, style):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    found = service({"type": "object", "properties": {"f": {}}}, media, {"f": {"style": style}})
    with pytest.raises(ValueError, match="f: has more than 50 levels" if style == "deepObject" else "nested too"):
        built(found, "x", f=deep)
    if style == "deepObject":
        fitting = 1
        for _ in range(50):
            fitting = {"a": fitting}
        assert built(found, "x", f=fitting)
        with pytest.raises(ValueError, match="levels"):
            built(found, "x", f={"a": fitting})


def test_deep_arrays_of_a_query_are_written_as_deep_as_they_are():
    described = {"name": "f", "in": "query", "style": "deepObject", "schema": {}}
    found = compiled(document({"/x": {"get": {"operationId": "x", "parameters": [described]}}}))
    assert built(found, "x", f={"a": [1, 2], "b": [{"c": 3}]}).url.partition("?")[2] == "f[a]=1&f[a]=2&f[b][0][c]=3"
    assert built(found, "x", f=[1, 2]).url.partition("?")[2] == "f[0]=1&f[1]=2"


async def test_fastapi_gets_the_files_that_its_document_asks_for():
    app = FastAPI()

    @app.post("/upload", operation_id="upload")
    async def upload(
        f: UploadFile | None = None,
        more: list[UploadFile] | None = None,
        each: Annotated[list[UploadFile], File()] = [],  # noqa: B006 - as FastAPI has it
        note: Annotated[str | None, Form()] = None,
        tags: Annotated[list[str] | None, Form()] = None,
    ) -> dict:
        return {
            "f": None if f is None else [f.filename, (await f.read()).hex()],
            "more": None if more is None else [[file.filename, (await file.read()).hex()] for file in more],
            "each": [file.filename for file in each],
            "note": note,
            "tags": tags,
        }

    async with serving(app) as port:
        location = OpenApiDocument(location=f"http://127.0.0.1:{port}/openapi.json", operations=("*",))
        async with Fleet([ServerSpec(name="petstore", type="openapi", openapi=location)]) as fleet:

            async def told(**arguments):
                result = await call_tool(fleet, "petstore", "upload", arguments)
                assert not result.is_error, result
                return convert(result)["value"]

            named = {"data": BASE64, "filename": "b.png"}
            whole = await told(f=named, more=[BASE64, named], each=[named], note="x", tags=["a", "b"])
            assert whole == {
                "f": ["b.png", DATA.hex()], "more": [["more", DATA.hex()], ["b.png", DATA.hex()]],
                "each": ["b.png"], "note": "x", "tags": ["a", "b"],
            }  # fmt: skip
            nothing = {"f": None, "more": None, "each": [], "note": None, "tags": None}
            assert await told(f=None, more=None, note=None, tags=None) == nothing


def test_a_field_that_is_a_whole_number_is_written_as_an_integer():
    fields = {"n": {"type": "integer"}, "all": {"type": "array", "items": {"type": "number"}}}
    schema = {"type": "object", "properties": fields}
    sent = parts(service(schema), n=10 / 2, all=[2.0, 2.5])
    assert sent == [("n", None, None, b"5"), ("all", None, None, b"2"), ("all", None, None, b"2.5")]
    assert built(service(schema, "application/x-www-form-urlencoded"), "x", n=10 / 2, all=[2.0]).content == b"n=5&all=2"
