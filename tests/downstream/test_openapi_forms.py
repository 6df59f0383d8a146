"""Forms of a service that an OpenAPI document describes: what is a file, and what a nested value becomes."""

import base64
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


def test_a_file_that_may_be_an_object_leaves_the_operation_out():
    found = service(
        {"type": "object", "properties": {"f": {"anyOf": [FILE, {"type": "object"}]}}}, outcome=True
    ).service
    assert found.tools == []
    assert "may be a file or an object" in found.notices[0]


def test_a_type_that_is_no_text_makes_a_file():
    encoding = {"f": {"contentType": "image/png, image/jpeg"}, "g": {"contentType": "text/csv"}}
    found = service({"type": "object", "properties": {"f": {}, "g": {"type": "string"}}}, encoding=encoding)
    assert parts(found, f=BASE64, g="a,b") == [("f", "f", "image/png", DATA), ("g", None, "text/csv", b"a,b")]


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


def test_a_form_that_is_no_object_is_left_out():
    assert "a form that is no object" in service({"type": "array"}, outcome=True).service.notices[0]


def test_schemas_that_refer_to_each_other_often_are_looked_at_for_a_while():
    many = {"anyOf": [{"$ref": "#/components/schemas/Many"}] * 30}
    assert service({"type": "object", "properties": {"f": {"$ref": "#/components/schemas/Many"}}}, Many=many)
    assert service({"$ref": "#/components/schemas/Many"}, Many=many)


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
