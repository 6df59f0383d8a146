"""OpenAPI documents as tools: what is read of them, what is left out and why, and what a stranger's could do."""

import json
import math

import pytest
import yaml
from openapi_calls import built, compiled, document

from mcp_bridge.downstream.catalog.argument_check import ArgumentCheck, ArgumentError
from mcp_bridge.downstream.catalog.signatures import signature
from mcp_bridge.downstream.catalog.tools import listing_from_wire
from mcp_bridge.downstream.openapi import document_fetching
from mcp_bridge.downstream.openapi.compiled_service import Order
from mcp_bridge.downstream.openapi.document_errors import UnusableDocumentError
from mcp_bridge.downstream.openapi.document_fetching import compile_order
from mcp_bridge.downstream.openapi.document_text import parse

PET = {
    "type": "object",
    "required": ["id", "name"],
    "properties": {
        "id": {"type": "integer", "readOnly": True},
        "name": {"type": "string"},
        "password": {"type": "string", "writeOnly": True},
        "mother": {"$ref": "#/components/schemas/Pet"},
        "age": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "nullable": True},
    },
}


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def form(field):
    """The body of an operation: a form with one field."""
    schema = {"type": "object", "properties": {"f": field}}
    return {"content": {"multipart/form-data": {"schema": schema}}}


def schema_of(service, name):
    return next(tool for tool in service.tools if tool["name"] == name)["inputSchema"]


@pytest.mark.parametrize("version", ["3.0.3", "3.1.1", "3.2.0"])
def test_each_version_is_read(version):
    service = compiled(document({"/pets": {"get": {"operationId": "listPets"}}}, openapi=version))
    assert [tool["name"] for tool in service.tools] == ["listPets"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no mapping"),
        ("[]", "is no mapping"),
        ('{"openapi": ', "is not JSON: line 1"),
        ("a: b: c", "is not YAML: line 1"),
        ("a: *b", "is not YAML: line 1"),
        ("swagger: '2.0'\npaths: {}", "convert it to OpenAPI 3"),
        ("openapi: 4.0.0\npaths: {}", "3.0, 3.1 and 3.2 are supported"),
        ("paths: {}", "it has no openapi"),
        ("openapi: 3.1.0", "has no paths"),
        ("[" * 100_000, "nested deeper than 200 levels"),
        ("a: " + "[" * 1000, "nested deeper than 200 levels"),
        ("!!python/object:os.system x", "is not YAML"),
        ("a: 0x" + "f" * 1001, "a number of more than 1000 digits"),
        ("a: !!float x", "is not YAML"),
        ("[" + "9" * 5000 + "]", "is not JSON: Exceeds the limit"),
    ],
    ids=range(15),
)
def test_what_is_no_document_is_told_with_its_place(text, said):
    assert said in compiled(text, outcome=True).problem


def test_yaml_is_read_as_yaml_1_2():
    text = yaml.safe_dump(document({"/a": {"get": {"operationId": "a", "summary": "x"}}})).replace(
        "summary: x", "summary: no"
    )
    service = compiled(text + "\nx-date: 2020-01-01\nx: {200: a, yes: b}\n")
    assert service.tools[0]["title"] == "no"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *((each, None) for each in ("~", "null", "Null", "NULL", "")),
        *((each, True) for each in ("true", "True", "TRUE")),
        *(("017", 17), ("+1", 1), ("-0", 0), ("0o17", 15), ("0x1F", 31)),
        *((".5", 0.5), ("-.5", -0.5), ("1.", 1.0), ("1e3", 1000.0), ("+12.e3", 12000.0), ("-2E+05", -200_000.0)),
        *((each, math.inf) for each in (".inf", "+.Inf", ".INF")),
        *((each, each) for each in ("1_000", "0b1", "190:20", "0o8", "+0x1f", "1e", ".", "+", "=", ".iNF", "on")),
        *((each, each) for each in ("2020-01-01", "1.2.3", "0x", "nan", "685_230.15")),
        ("!!timestamp 2020-01-01", "2020-01-01"),
        ("!!int '7'", 7),
    ],
)
def test_a_scalar_is_what_the_core_schema_of_yaml_1_2_says(written, value):
    found = parse(f"a: {written}")["a"]
    assert (found, type(found)) == (value, type(value))


def test_keys_are_texts_as_they_are_written():
    # A schema may be called `Null`, and be referred to by that name.
    text = "{200: 1, 1e3: 1, 0x1F: 1, 1.10: 1, Null: 1, True: 1}"
    assert parse(text).keys() == {"200", "1e3", "0x1F", "1.10", "Null", "True"}
    # An alias of a key, and what is merged.
    assert parse("a: &m {&k 5: *k}\nb: {<<: *m, 1.0: 2}") == {"a": {"5": 5}, "b": {"5": 5, "1.0": 2}}


def test_a_bound_without_end_is_none():
    text = yaml.safe_dump(
        document({"/a": {"get": {"operationId": "a", "parameters": [ID | {"in": "query", "schema": {"maximum": 1}}]}}})
    )
    for written in (".inf", ".nan", "1e999"):
        assert schema_of(compiled(text.replace("maximum: 1", f"maximum: {written}")), "a")["properties"] == {"id": {}}


def test_an_operation_is_chosen_by_its_id_whatever_that_is():
    paths = {"/a": {"get": {"operationId": "List all things"}}, "/b": {"get": {"operationId": "GET /a"}}}
    for pattern, names in (
        ("List all things", ["List all things"]),
        ("List *", ["List all things"]),
        ("GET /a", ["List all things", "GET /a"]),
        ("get /b", ["GET /a"]),
    ):
        service = compiled(document(paths), operations=(pattern,))
        assert (list(service.operations), service.notices) == (names, ())


def test_operations_without_an_id_or_with_anothers_are_named_after_their_path():
    service = compiled(
        document(
            {
                "/pets/{id}": {"get": {"parameters": [ID]}, "post": {"operationId": "x", "parameters": [ID]}},
                "/pets-{id}": {"get": {"parameters": [ID]}},
                "/other": {"get": {"operationId": "x"}},
            }
        )
    )
    assert list(service.operations) == ["get_pets_id", "x", "get_pets_id_2", "get_other"]
    assert any("another operation has the operationId 'x'" in notice for notice in service.notices)


ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}


def test_parameters_of_a_path_and_of_the_same_name_in_two_places():
    service = compiled(
        document(
            {
                "/pets/{id}": {
                    "parameters": [ID, {"name": "q", "in": "query", "schema": {"type": "string"}}],
                    "get": {
                        "operationId": "get",
                        "parameters": [
                            {"name": "id", "in": "query", "schema": {"type": "string"}},
                            {"name": "q", "in": "query", "required": True, "schema": {"type": "integer"}},
                        ],
                    },
                }
            }
        )
    )
    schema = schema_of(service, "get")
    assert list(schema["properties"]) == ["id", "q", "id_in_query"]
    assert schema["required"] == ["id", "q"]
    assert schema["properties"]["q"]["type"] == "integer"
    request = built(service, "get", id=1, q=2, id_in_query="x")
    assert request.url == "https://api.example.com/v1/pets/1?q=2&id=x"


def test_a_plain_body_is_arguments_and_another_is_one():
    def body(schema, **more):
        return {"requestBody": {"content": {"application/json": {"schema": schema}}, **more}}

    service = compiled(
        document(
            {
                "/a": {"post": {"operationId": "plain", **body({"$ref": "#/components/schemas/Pet"}, required=True)}},
                "/b": {"post": {"operationId": "choice", **body({"oneOf": [{"type": "string"}, {"type": "integer"}]})}},
                "/c/{name}": {
                    "post": {
                        "operationId": "clash",
                        "parameters": [{**ID, "name": "name"}],
                        **body({"$ref": "#/components/schemas/Pet"}),
                    }
                },
                "/d": {
                    "post": {
                        "operationId": "both",
                        **body(
                            {
                                "allOf": [
                                    {"$ref": "#/components/schemas/Pet"},
                                    {"type": "object", "properties": {"owner": {"type": "string"}}},
                                ]
                            }
                        ),
                    }
                },
            },
            components={"schemas": {"Pet": PET}},
        )
    )
    plain = schema_of(service, "plain")
    assert list(plain["properties"]) == ["name", "password", "mother", "age"]
    assert plain["required"] == ["name"]
    assert plain["properties"]["age"] == {"type": ["integer", "null"], "exclusiveMinimum": 0}
    # A schema that contains itself is a definition.
    assert plain["properties"]["mother"] == {"$ref": "#/$defs/Pet"}
    assert "id" not in plain["$defs"]["Pet"]["properties"]
    check = ArgumentCheck(plain)
    check.check({"name": "Rex", "mother": {"name": "Eve", "mother": {"name": "x"}}})
    with pytest.raises(ArgumentError):
        check.check({"name": "Rex", "mother": {"name": 1}})
    assert list(schema_of(service, "choice")["properties"]) == ["body"]
    assert list(schema_of(service, "clash")["properties"]) == ["name", "body"]
    assert "owner" in schema_of(service, "both")["properties"]
    assert built(service, "plain", name="Rex", age=None).content == b'{"name":"Rex","age":null}'
    assert built(service, "choice", body=1).content == b"1"
    assert built(service, "choice").content is None


PATCHES = [
    *("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"),
    "application/strategic-merge-patch+json",
]


def patching(kinds, schema, **more):
    content = {kind: {"schema": schema} for kind in kinds}
    operation = {"operationId": "x", "requestBody": {"required": True, "content": content}} | more
    schemas = {"Patch": {"type": "object", "description": "A patch."}}
    return compiled(document({"/x": {"patch": operation}}, components={"schemas": schemas}))


def test_an_object_is_no_json_patch_and_another_kind_of_patch_can_be_chosen():
    service = patching(PATCHES, {"$ref": "#/components/schemas/Patch"})
    kinds = schema_of(service, "x")["properties"]["content_type"]["enum"]
    assert kinds == ["application/merge-patch+json", "application/strategic-merge-patch+json"]
    for chosen, sent in (({}, kinds[0]), ({"content_type": kinds[1]}, kinds[1])):
        request = built(service, "x", body={"spec": {"replicas": 3}}, **chosen)
        assert (request.headers["content-type"], request.content) == (sent, b'{"spec":{"replicas":3}}')


def test_a_patch_that_may_be_a_list_can_be_a_json_patch():
    service = patching(PATCHES, {})
    kinds = schema_of(service, "x")["properties"]["content_type"]["enum"]
    assert kinds == [*PATCHES[2:], "application/json-patch+json"]
    operations = [{"op": "remove", "path": "/a"}]
    request = built(service, "x", body=operations, content_type=kinds[2])
    assert request.headers["content-type"] == "application/json-patch+json"


def test_what_a_media_type_has_after_it_changes_nothing_of_how_it_is_chosen():
    kinds = [f"{kind}; charset=utf-8" for kind in PATCHES[1:3]]
    service = patching(kinds, {"$ref": "#/components/schemas/Patch"})
    assert "content_type" not in schema_of(service, "x")["properties"]
    assert built(service, "x", body={}).headers["content-type"] == kinds[1]
    service = patching(["application/json; charset=utf-8", PATCHES[2]], {"type": "object"})
    assert "content_type" not in schema_of(service, "x")["properties"]


def test_no_body_is_sent_as_a_type_that_its_document_does_not_have():
    service = patching(PATCHES[2:], {"$ref": "#/components/schemas/Patch"})
    for kind in ("text/html", "application/merge-patch+json\r\nX-Evil: 1", None, []):
        with pytest.raises(ValueError, match="content_type: is none of application/merge-patch"):
            built(service, "x", body={}, content_type=kind)


def test_a_kind_of_patch_is_chosen_by_a_name_that_no_other_argument_has():
    taken = {"name": "content_type", "in": "query", "schema": {"type": "string"}}
    fields = {"type": "object", "properties": {"content_type_": {"type": "string"}, "": {"type": "string"}}}
    service = patching(PATCHES[2:], fields, parameters=[taken])
    assert list(schema_of(service, "x")["properties"]) == ["content_type", "content_type_", "", "content_type__"]
    request = built(service, "x", content_type="a", content_type_="b", content_type__=PATCHES[3], **{"": "c"})
    assert request.headers["content-type"] == PATCHES[3]
    assert (request.url.partition("?")[2], request.content) == ("content_type=a", b'{"content_type_":"b","":"c"}')


@pytest.mark.parametrize("kinds", [["application/json", *PATCHES], PATCHES[:2], ["application/json", "text/json"]])
def test_there_is_no_choice_where_json_means_json_or_there_is_one_kind(kinds):
    service = patching(kinds, {"type": "object", "properties": {"": {"type": "string"}}})
    assert list(schema_of(service, "x")["properties"]) == [""]
    sent = built(service, "x", **{"": "text/plain"}).headers["content-type"]
    assert sent == next(kind for kind in kinds if kind.endswith("json"))


def test_parts_of_another_multipart_than_a_form_are_not_sent_as_bytes():
    service = patching(["multipart/related", "application/octet-stream"], {"type": "string", "format": "binary"})
    assert built(service, "x", body="eA==").headers["content-type"] == "application/octet-stream"


def test_what_an_answer_has_is_the_tools_result():
    answer = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}}}
    service = compiled(
        document(
            {"/a": {"get": {"operationId": "a", "responses": {200: answer, 404: {"description": "x"}}}}},
            components={"schemas": {"Pet": PET}},
        )
    )
    output = service.tools[0]["outputSchema"]
    assert list(output["properties"]) == ["id", "name", "mother", "age"]
    assert output["$defs"].keys() == {"Pet"}


WITH_A = {"schema": {"type": "object", "properties": {"a": {}}}}


@pytest.mark.parametrize(
    ("responses", "returns"),
    [
        ({}, "Any"),
        ({"200": {"description": "x"}}, "Any"),
        ({"200": {"content": {"application/json": {}}}}, "Any"),
        ({"200": {"content": {"*/*": {}}}}, "Any"),
        ({"200": {"content": {"application/json": WITH_A}}}, "dict(a?: Any)"),
        ({"200": {"content": {"application/json": WITH_A, "application/pdf": {}}}}, "dict(a?: Any) | list"),
        (
            {"200": {"content": {"application/json": WITH_A}}, "201": {"content": {"Text/CSV": {}}}},
            "dict(a?: Any) | str",
        ),
        ({"200": {"content": {"image/png": {}}}}, "str | list | None"),
    ],
)
def test_what_an_operation_returns_is_what_its_answers_become(responses, returns):
    service = compiled(document({"/a": {"get": {"operationId": "a", "responses": responses}}}))
    (tool,) = listing_from_wire("petstore", "petstore", service.tools).tools
    assert signature(tool).returns == returns


def test_a_result_of_the_name_result_isnt_taken_for_a_wrapped_one():
    schema = {"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}
    answer = {"description": "", "content": {"application/json": {"schema": schema}}}
    service = compiled(document({"/a": {"get": {"operationId": "a", "responses": {"200": answer}}}}))
    assert "required" not in service.tools[0]["outputSchema"]


@pytest.mark.parametrize(
    ("path", "operation", "said"),
    [
        ("/../admin", {}, "leads out of the service's address"),
        ("/a/%2e%2E/b", {}, "leads out of the service's address"),
        ("/a%2f..%2fb", {}, "leads out of the service's address"),
        ("//evil.example.com/a", {}, None),
        ("a", {}, "a path starts with /"),
        ("/a?b={id}", {}, "a query that isn't the same for every call"),
        ("/a?", {}, "a query that isn't the same for every call"),
        ("/a?b=c#d", {}, "a query that isn't the same for every call"),
        ("/a?b=c d", {}, "a query that isn't the same for every call"),
        ("/a?b=c", {"parameters": [{"name": "b", "in": "query"}]}, "'b' in the query of its path, too"),
        ("/a?key=c", {}, "only the configuration may set"),
        ("/a#b", {}, "contains no #"),
        ("/a\\b", {}, "contains no #"),
        ("/{id}", {}, "has no parameter for {id}"),
        ("/a", {"parameters": {}}, "parameters that are no list"),
        ("/a", {"parameters": [{"in": "query"}]}, "invalid Parameter: name"),
        ("/a", {"parameters": [{"name": "x", "in": "body"}]}, "invalid Parameter: in"),
        ("/a", {"parameters": [{"$ref": "#/nowhere"}]}, "refers to '#/nowhere', which isn't there"),
        ("/a", {"parameters": [{"$ref": "https://evil.example.com/x.json#/a"}]}, "is elsewhere"),
        ("/a", {"parameters": [{"name": "x", "in": "query", "style": "simple"}]}, "style 'simple'"),
        ("/a", {"parameters": [{"name": "a b", "in": "header"}]}, "no header may be called"),
        ("/a", {"parameters": [{"name": "X-Up\r\nHost", "in": "header"}]}, "no header may be called"),
        ("/a", {"parameters": [{"name": "x", "in": "querystring"}]}, "the whole query"),
        ("/a", {"parameters": [{"name": "Connection", "in": "header", "required": True}]}, "only the configuration"),
        ("/a", {"requestBody": {"content": {"x": {}}}}, "no valid media type"),
        ("/a", {"requestBody": {"content": {"multipart/related": {}}}}, "a request body of multipart/related"),
        ("/a", {"requestBody": {"content": {"Multipart/*": {}}}}, "a request body of Multipart/*"),
        ("/a", {"servers": [{"url": "https://evil.example.com"}]}, "at another address (https://evil.example.com)"),
    ],
)
def test_an_operation_that_cant_be_sent_as_described_is_left_out_with_the_reason(path, operation, said):
    text = document(
        {path: {"get": {"operationId": "bad", **operation}}, "/good": {"get": {"operationId": "good"}}},
        components={"securitySchemes": {"k": {"type": "apiKey", "in": "query", "name": "key"}}},
    )
    service = compiled(text)
    if said is None:
        assert built(service, "bad").url == "https://api.example.com/v1//evil.example.com/a"
        return
    assert list(service.operations) == ["good"]
    assert said in " ".join(service.notices)


REGION = {"region": {"default": "eu"}}
ROOT = [{"url": "https://api.example.com/v1"}, {"url": "https://{region}.example.com", "variables": REGION}]


@pytest.mark.parametrize("base_url", [None, "https://proxy.example.com/api"])
def test_an_operation_at_the_documents_own_addresses_moves_with_them(base_url):
    elsewhere = [{"url": "https://uploads.example.com"}]
    paths = {
        "/same": {"servers": ROOT, "get": {"operationId": "same"}},
        "/more": {"get": {"operationId": "more", "servers": [*elsewhere, *reversed(ROOT)]}},
        "/uploads": {"get": {"operationId": "uploads", "servers": elsewhere}},
        "/region": {"get": {"operationId": "region", "servers": ROOT[1:]}},
    }
    service = compiled(document(paths, servers=ROOT), base_url=base_url)
    assert list(service.operations) == ["same", "more"]
    assert sorted(notice.rpartition("(")[2].rstrip(")") for notice in service.notices) == [
        "https://eu.example.com",
        "https://uploads.example.com",
    ]


def test_a_reference_that_never_ends_is_left_out():
    parameters = {"a": {"$ref": "#/components/parameters/b"}, "b": {"$ref": "#/components/parameters/a"}}
    operation = {"operationId": "bad", "parameters": [{"$ref": "#/components/parameters/a"}]}
    service = compiled(document({"/a": {"get": operation}}, components={"parameters": parameters}))
    assert "refers to itself" in " ".join(service.notices)


def test_aliases_of_aliases_cost_no_more_than_they_are():
    lines = ["openapi: 3.1.0", "x-0: &a0 {type: object, properties: {x: {type: string}}}"]
    for number in range(1, 60):
        before = f"*a{number - 1}"
        lines.append(f"x-{number}: &a{number} {{type: object, properties: {{a: {before}, b: {before}, c: {before}}}}}")
    lines += [
        "paths:",
        "  /a:",
        "    post:",
        "      operationId: a",
        "      requestBody: {content: {application/json: {schema: *a59}}}",
    ]
    service = compiled("\n".join(lines))
    assert len(json.dumps(service.tools)) < 200_000


@pytest.mark.parametrize("value", ["*a20", "&z [*z]", "&z {z: *z}"])
@pytest.mark.parametrize("keyword", ["default", "const", "enum"])
def test_a_value_that_is_there_too_often_is_left_out(keyword, value):
    lines = ["openapi: 3.1.0", "x-0: &a0 [x, y]"]
    lines += [f"x-{number}: &a{number} [*a{number - 1}, *a{number - 1}]" for number in range(1, 21)]
    lines.append(f"paths: {{/a: {{get: {{parameters: [{{name: x, in: query, schema: {{{keyword}: {value}}}}}]}}}}}}")
    (tool,) = compiled("\n".join(lines)).tools
    assert keyword not in tool["inputSchema"]["properties"]["x"]


def test_schemas_are_cut_where_all_tools_together_would_be_too_large():
    schema = {
        "type": "object",
        "properties": {f"property_{n}": {"type": "string", "description": "x" * 500} for n in range(80)},
    }
    paths = {
        f"/p{number}": {
            "post": {"operationId": f"op{number}", "requestBody": {"content": {"application/json": {"schema": schema}}}}
        }
        for number in range(1000)
    }
    service = compiled(document(paths))
    assert len(service.tools) == 1000
    assert len(json.dumps(service.tools)) < 5 << 20


LONG = {"type": "string", "enum": [f"v{number}" for number in range(301)]}
"""An enumeration of which the values are left out."""

DEEP = {"type": "string", "pattern": "x"}
for _ in range(40):
    DEEP = {"type": "array", "items": DEEP}


def deep(value):
    for _ in range(40):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"type": "string", "not": LONG}, ["hello", "v1"], [1]),
        ({"oneOf": [LONG, {"type": "string", "maxLength": 2}]}, ["hello", "v1"], [1]),
        ({"oneOf": [LONG, {"$ref": "#/components/schemas/Lost"}]}, ["v1", 1], []),
        ({"oneOf": [{"$ref": "#/components/schemas/Lost"}, {"const": "a"}, {"maxLength": 1}]}, ["abc"], ["a"]),
        ({"oneOf": [{"$ref": "#/components/schemas/Long"}, {"$ref": "#/components/schemas/Long"}]}, ["hello"], [1]),
        ({"oneOf": [DEEP, {"type": "array"}]}, [deep("x")], [1]),
        ({"if": LONG, "then": {"minLength": 3}, "else": {"maxLength": 6}}, ["ab", "abcdefg", "v12"], []),
        (
            {"oneOf": [{"$ref": "#/components/schemas/Named", "required": [name]} for name in ("a", "b")]},
            [{"a": 1}, {"b": 1}],
            [1],
        ),
        (
            {"oneOf": [{"properties": {name: {}}, "unevaluatedProperties": False} for name in ("a", "b")]},
            [{"a": 1}, {"b": 1}],
            [],
        ),
        ({"not": {"items": [{"type": "string"}]}}, [["a"], [1]], []),
    ],
)
def test_what_is_left_out_of_a_schema_refuses_nothing(schema, taken, refused):
    body = {"content": {"application/json": {"schema": {"type": "array", "items": schema}}}, "required": True}
    schemas = {"Lost": {"type": "array", "items": {"$ref": "#/nowhere"}}, "Long": LONG, "Named": {"type": "object"}}
    service = compiled(
        document({"/a": {"post": {"operationId": "a", "requestBody": body}}}, components={"schemas": schemas})
    )
    check = ArgumentCheck(schema_of(service, "a"))
    for value in taken:
        check.check({"body": [value]})
    for value in refused:
        with pytest.raises(ArgumentError):
            check.check({"body": [value]})


def test_what_is_beyond_the_size_of_a_tool_refuses_nothing():
    named = {
        name: {"type": "object", "required": ["type"], "properties": {"type": {"enum": [name]}}}
        for name in ("First", "Second")
    }
    large = {"type": "object", "properties": {f"property_{n}": {"type": "string"} for n in range(2_000)}}
    # What is referred to first takes all of the size.
    properties = {
        "large": {"$ref": "#/components/schemas/Large"},
        "rule": {"oneOf": [{"$ref": f"#/components/schemas/{name}"} for name in named]},
    }
    body = {"content": {"application/json": {"schema": {"type": "object", "properties": properties}}}}
    paths = {"/a": {"post": {"operationId": "a", "requestBody": body}}}
    service = compiled(document(paths, components={"schemas": named | {"Large": large}}))
    ArgumentCheck(schema_of(service, "a")).check({"rule": {"type": "First"}})


def test_only_the_first_five_thousand_operations_are_kept():
    service = compiled(document({f"/p{number}": {"get": {"operationId": f"op{number}"}} for number in range(6000)}))
    assert len(service.tools) == 5000
    assert any("6000 operations, of which 5000 are kept" in notice for notice in service.notices)


def test_documents_refer_to_each_other():
    main = document({"/a": {"$ref": "paths/a.yaml#/item"}})
    outcome = compiled(main, outcome=True, uri="file:///docs/main.json")
    assert outcome.missing == ("file:///docs/paths/a.yaml",)
    more = {
        "file:///docs/paths/a.yaml": "item: {get: {operationId: a, parameters: [{$ref: '../parameters.yaml#/limit'}]}}",
        "file:///docs/parameters.yaml": "limit: {name: limit, in: query, schema: {type: integer}}",
    }
    service = compiled(main, uri="file:///docs/main.json", more=more)
    assert built(service, "a", limit=3).url.endswith("/a?limit=3")


async def test_a_document_that_takes_more_than_it_may_ends_its_own_process(monkeypatch):
    # What it would take to read it is as much as its text: a bomb of merge keys.
    lines = ["openapi: 3.1.0", "a0: &a0 {k0: 1, j0: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], k{n}: 1}}" for n in range(1, 30)]
    order = Order(server="x", main="file:///x", documents={"file:///x": "\n".join([*lines, "paths: {}"])})
    monkeypatch.setattr(
        document_fetching,
        "_LOADER",
        document_fetching._LOADER.replace(
            "main()",
            "import mcp_bridge.downstream.openapi.compiler as c\nc.MEMORY_BYTES = 300 << 20\nc.CPU_SECONDS = 3\nmain()",
        ),
    )
    with pytest.raises(UnusableDocumentError, match="more memory or time"):
        await compile_order(order)


async def test_the_compilers_process_gives_the_same_as_in_this_one():
    text = json.dumps(document({"/pets/{id}": {"get": {"operationId": "get", "parameters": [ID]}}}))
    order = Order(
        server="x",
        main="https://api.example.com/openapi.json",
        documents={"https://api.example.com/openapi.json": text},
    )
    assert (await compile_order(order)).service == compiled(text, uri=order.main, operations=None)


def test_what_each_call_or_the_bridge_itself_looks_at_is_bounded():
    """The document may be a stranger's: it is compiled elsewhere, but what comes of it isn't."""
    keys = {f"k{number}": {"type": "apiKey", "in": "query", "name": f"q{number}"} for number in range(5000)}
    keys["x" * 5000] = keys["k0"]
    wanted = [{"unknown": []}, {"k0": [], "unknown": []}, *({name: []} for name in keys)]
    service = compiled(
        document(
            {"/x": {"get": {"operationId": "x", "security": wanted}}}, components={"securitySchemes": keys | {"o": 1}}
        )
    )
    assert len(service.schemes) == 200
    assert max(map(len, service.schemes)) < 10
    assert len(service.operations["x"].security) == 100
    assert built(service, "x", credentials={"k7": "K"}).url.endswith("/x?q7=K")

    elsewhere = {f"/{number}": {"$ref": f"part{number}.json"} for number in range(1001)}
    outcome = compiled(document(elsewhere), outcome=True)
    assert outcome.problem == "refers to more than 1000 other documents"
    assert outcome.missing == ()


async def test_a_text_that_was_cut_in_two_costs_a_document_nothing():
    """Half of an emoji, as JSON escapes it, can't be written as UTF-8."""
    text = r"""{"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": {"/x": {"get": {
        "operationId": "x", "description": "cut \ud83d, late \uDE00, whole \ud83d\ude00, plain \\ud83d",
        "parameters": [{"name": "a", "in": "query", "schema": {"enum": ["\ud83d"]}}]}}}}"""
    uri = "file:///docs/openapi.json"
    order = Order(server="petstore", main=uri, documents={uri: text}, refused={}, operations=("*",))
    (tool,) = (await compile_order(order)).service.tools
    assert tool["description"].startswith("cut \ufffd, late \ufffd, whole \U0001f600, plain \\ud83d")
    assert tool["inputSchema"]["properties"]["a"]["enum"] == ["\ufffd"]


@pytest.mark.parametrize(
    "text",
    [
        '{"swagger": "\\u001b[2J\\n"}',
        json.dumps(document({}, servers=[{"url": "/", "variables": {"\n\x1b[31mmcp-bridge: ERROR": {}}}])),
        "openapi: 3.1.0\n\x00",
    ],
)
def test_what_is_wrong_with_a_document_has_no_line_of_its_own(text):
    assert compiled(text, outcome=True).problem.isprintable()


@pytest.mark.parametrize(
    "parts",
    [
        {"components": {"securitySchemes": {"k": {"type": {}}}}},
        {"components": {"securitySchemes": {"k": {"type": "apiKey", "name": "x", "in": []}}}},
        {"paths": {"/bad": {"get": {"servers": {"url": "/"}}}}},
        {"paths": {"/bad": {"get": {"parameters": [{"$ref": "http://[::1"}]}}}},
        {"x-example": {"$ref": "http://[::1"}},
        {"paths": {"/a": {"get": {"parameters": [{"name": "x", "in": "query", "schema": {"format": {}}}]}}}},
        {
            "paths": {
                "/a": {"post": {"requestBody": form({"oneOf": [{"format": "binary"}, {"format": [], "enum": []}]})}}
            }
        },
        {"paths": {"/a": {"get": {"parameters": [{"name": "x", "in": "query", "schema": {"default": nested(500)}}]}}}},
        {"paths": {"/a": {"get": {"parameters": [{"name": "x", "in": "query", "schema": {"const": nested(500)}}]}}}},
    ],
    ids=range(9),
)
async def test_a_malformed_part_costs_a_document_nothing_else(parts):
    text = document({"/good": {"get": {"operationId": "good"}}, **parts.pop("paths", {})}, **parts)
    order = Order(server="s", main="file:///a", documents={"file:///a": json.dumps(text)}, operations=("*",))
    outcome = await compile_order(order)
    assert outcome.service is not None
    assert "good" in outcome.service.operations


def test_a_notice_has_no_line_of_the_documents_own():
    service = compiled(document({"/a\n\x1b[31mmcp-bridge: ERROR": {"get": {}}, "/b": {"get": {}}}))
    (notice,) = service.notices
    assert notice.isprintable()
    assert r"/a\n\x1b[31mmcp-bridge" in notice
