"""Arguments as requests: the styles of OpenAPI's table of examples, and what no argument can reach."""

import base64
from urllib.parse import parse_qsl, quote

import pytest
from openapi_calls import BASE, built, compiled, document

COLORS = {
    "empty": "",
    "string": "blue",
    "array": ["blue", "black", "brown"],
    "object": {"R": 100, "G": 200, "B": 150},
}


def parameter(place, style, explode, **more):
    """An operation with one parameter `color`, as the table of OpenAPI 3.1, section 4.8.12.4, has it."""
    path = "/x{color}" if place == "path" else "/x"
    described = {"name": "color", "in": place, "required": place == "path", "style": style, "explode": explode, **more}
    return compiled(document({path: {"get": {"operationId": "x", "parameters": [described | {"schema": {}}]}}}))


@pytest.mark.parametrize(
    ("place", "style", "explode", "array", "object_"),
    [
        ("path", "simple", False, "blue,black,brown", "R,100,G,200,B,150"),
        ("path", "simple", True, "blue,black,brown", "R=100,G=200,B=150"),
        ("path", "label", False, ".blue,black,brown", ".R,100,G,200,B,150"),
        ("path", "label", True, ".blue.black.brown", ".R=100.G=200.B=150"),
        ("path", "matrix", False, ";color=blue,black,brown", ";color=R,100,G,200,B,150"),
        ("path", "matrix", True, ";color=blue;color=black;color=brown", ";R=100;G=200;B=150"),
        ("query", "form", False, "color=blue,black,brown", "color=R,100,G,200,B,150"),
        ("query", "form", True, "color=blue&color=black&color=brown", "R=100&G=200&B=150"),
        ("query", "spaceDelimited", False, "color=blue%20black%20brown", "color=R%20100%20G%20200%20B%20150"),
        ("query", "pipeDelimited", False, "color=blue%7Cblack%7Cbrown", "color=R%7C100%7CG%7C200%7CB%7C150"),
        ("query", "deepObject", True, None, "color[R]=100&color[G]=200&color[B]=150"),
        ("header", "simple", False, "blue,black,brown", "R,100,G,200,B,150"),
        ("header", "simple", True, "blue,black,brown", "R=100,G=200,B=150"),
        ("cookie", "form", False, "color=blue,black,brown", "color=R,100,G,200,B,150"),
    ],
)
def test_arrays_and_objects_are_written_as_the_specification_has_them(place, style, explode, array, object_):
    service = parameter(place, style, explode)
    for value, expected in ((COLORS["array"], array), (COLORS["object"], object_)):
        if expected is None:
            continue
        request = built(service, "x", color=value)
        written = {
            "path": request.url.removeprefix(f"{BASE}/x"),
            "query": request.url.partition("?")[2],
            "header": request.headers.get("color"),
            "cookie": request.headers.get("cookie"),
        }[place]
        assert written == expected


def test_values_are_written_as_json_writes_them():
    service = parameter("query", "form", explode=True)
    for value, written in ((True, "true"), (1.5, "1.5"), (10**20, "100000000000000000000"), ({"a": [1]}, "a=%5B1%5D")):
        expected = written if isinstance(value, dict) else f"color={written}"
        assert built(service, "x", color=value).url == f"{BASE}/x?{expected}"
    assert built(service, "x", color=None).url == f"{BASE}/x"
    assert built(service, "x", color=[]).url == f"{BASE}/x"
    assert built(parameter("query", "form", explode=True, allowReserved=True), "x", color="a/b?c&d=e#f").url == (
        f"{BASE}/x?color=a/b?c%26d%3De%23f"
    )


@pytest.mark.parametrize(
    ("value", "written"), [(5.0, "5"), (-0.0, "0"), (2.0**53 - 1, "9007199254740991"), (1e20, "1e+20"), (0.1, "0.1")]
)
def test_a_whole_number_of_a_float_is_written_as_an_integer(value, written):
    encoded = quote(written)
    assert built(parameter("query", "form", explode=True), "x", color=value).url == f"{BASE}/x?color={encoded}"
    assert built(parameter("query", "form", explode=False), "x", color=[value, 1]).url == f"{BASE}/x?color={encoded},1"
    assert built(parameter("path", "simple", explode=False), "x", color=value).url == f"{BASE}/x{encoded}"
    assert built(parameter("header", "simple", explode=False), "x", color=value).headers["color"] == written
    assert built(parameter("cookie", "form", explode=True), "x", color=value).headers["cookie"] == f"color={encoded}"
    media = {"application/json": {"schema": {"properties": {"lines": {"type": "array"}, "text": {"type": "string"}}}}}
    service = compiled(document({"/x": {"post": {"operationId": "x", "requestBody": {"content": media}}}}))
    body = built(service, "x", lines=[{"count": value}], text="5.0").content
    assert body == f'{{"lines":[{{"count":{written}}}],"text":"5.0"}}'.encode()


def test_a_parameter_with_content_is_json():
    described = {"name": "filter", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}}
    service = compiled(document({"/x": {"get": {"operationId": "x", "parameters": [described]}}}))
    assert built(service, "x", filter={"a": 1}).url == f"{BASE}/x?filter=%7B%22a%22%3A1%7D"


SCHEMES = {
    "q": {"type": "apiKey", "in": "query", "name": "key"},
    "h": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "c": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "b": {"type": "http", "scheme": "basic"},
    "o": {"type": "oauth2", "flows": {}},
}


def test_a_query_of_the_path_is_there_with_each_call():
    id_ = {"name": "id", "in": "path", "required": True, "schema": {}}
    object_ = {"name": "o", "in": "query", "schema": {"type": "object"}}
    service = compiled(document({"/a/{id}?beta=true&x=%2f": {"get": {"parameters": [id_, object_]}}}))
    (name,) = service.operations
    assert service.tools[0]["description"] == "GET /a/{id}?beta=true&x=%2f"
    assert built(service, name, id=1).url == f"{BASE}/a/1?beta=true&x=%2f"
    assert built(service, name, id=1, o={"y": 2}).url == f"{BASE}/a/1?beta=true&x=%2f&y=2"
    with pytest.raises(ValueError, match="another parameter is called so"):
        built(service, name, id=1, o={"Beta": "false"})


def secured(security, parameters=()):
    operation = {"operationId": "x", "security": security, "parameters": list(parameters)}
    return compiled(document({"/x": {"get": operation}}, components={"securitySchemes": SCHEMES}))


def test_the_first_alternative_that_can_be_satisfied_as_a_whole_is_sent():
    service = secured([{"q": [], "h": []}, {"c": []}, {"b": []}])
    assert built(service, "x", credentials={"h": "H", "c": "C", "b": "u:p"}).headers["cookie"] == "sid=C"
    both = built(service, "x", credentials={"h": "H", "q": "Q&x=1", "c": "C"})
    assert both.url == f"{BASE}/x?key=Q%26x%3D1"
    assert both.headers["x-key"] == "H"
    assert "cookie" not in both.headers
    assert (
        built(service, "x", credentials={"b": "u:p"}).headers["authorization"]
        == "Basic " + base64.b64encode(b"u:p").decode()
    )
    assert built(secured([{"o": ["read"]}]), "x", credentials={"o": "T"}).headers["authorization"] == "Bearer T"
    assert built(secured([]), "x", credentials={"o": "T"}).headers.keys() == {"accept"}


@pytest.mark.parametrize(
    "described",
    [
        {"name": "key", "in": "query"},
        {"name": "x-key", "in": "header"},
        {"name": "sid", "in": "cookie"},
        {"name": "Authorization", "in": "header"},
        {"name": "COOKIE", "in": "header"},
        {"name": "Content-Length", "in": "header"},
        {"name": "Transfer-Encoding", "in": "header"},
        {"name": "Host", "in": "header"},
    ],
)
def test_what_carries_credentials_or_frames_the_message_is_no_argument(described):
    service = secured([{"q": []}], [described])
    assert service.operations["x"].parameters == ()
    assert service.tools[0]["inputSchema"]["properties"] == {}


@pytest.mark.parametrize("name", ["Host", "Transfer-Encoding", "X\r\nY", "a b", "", 1])
def test_a_document_has_no_message_framed_by_a_credential(name):
    schemes = {
        "k": {"type": "apiKey", "in": "header", "name": name},
        "c": {"type": "apiKey", "in": "cookie", "name": name},
    }
    service = compiled(document({"/x": {"get": {}}}, components={"securitySchemes": schemes}))
    assert service.schemes == {}


def test_an_object_in_the_query_cant_have_a_member_of_a_credentials_name():
    service = secured([{"q": []}], [{"name": "more", "in": "query", "schema": {"type": "object"}}])
    with pytest.raises(ValueError, match="may not have a member 'key'"):
        built(service, "x", credentials={"q": "Q"}, more={"key": "mine"})


def names_of(request):
    return [name for name, _ in parse_qsl(request.url.partition("?")[2] or request.content.decode())]


@pytest.mark.parametrize("member", ["amount", "AMOUNT", "amount[]", "amount[0]", " amount"])
def test_a_member_of_an_object_takes_no_other_parameters_place(member):
    # What a rule or a person has seen as `amount` is what the service reads.
    free = {"type": "object", "additionalProperties": True}
    parameters = [
        {"name": "amount", "in": "query", "schema": {"type": "integer"}},
        {"name": "more", "in": "query", "schema": free},
    ]
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}, "more": free}}
    form = {"content": {"application/x-www-form-urlencoded": {"schema": schema}}}
    anything = {"content": {"application/x-www-form-urlencoded": {"schema": free}}}
    service = compiled(
        document(
            {
                "/q": {"get": {"operationId": "q", "parameters": parameters}},
                "/f": {"post": {"operationId": "f", "requestBody": form}},
                "/a": {"post": {"operationId": "a", "requestBody": anything}},
            }
        )
    )
    for arguments in ({"amount": 5, "more": {member: 1000}}, {"more": {member: 1000}}):
        for operation in ("q", "f"):
            with pytest.raises(ValueError, match="another parameter is called so"):
                built(service, operation, **arguments)
    with pytest.raises(ValueError, match="another parameter is called so"):
        built(service, "a", body={"amount": 5, "more": {member: 1000}})
    for operation in ("q", "f"):
        assert names_of(built(service, operation, amount=5, more={"more": 1, "other": 2})) == [
            "amount",
            "more",
            "other",
        ]


def test_a_deep_object_takes_no_other_parameters_place():
    parameters = [
        {"name": "filter[amount]", "in": "query", "schema": {"type": "integer"}},
        {"name": "filter", "in": "query", "style": "deepObject", "explode": True, "schema": {"type": "object"}},
    ]
    service = compiled(document({"/q": {"get": {"operationId": "q", "parameters": parameters}}}))
    with pytest.raises(ValueError, match="another parameter is called so"):
        built(service, "q", **{"filter[amount]": 5, "filter": {"amount": 1000}})
    allowed = built(service, "q", **{"filter[amount]": 5, "filter": {"other": 1}})
    assert names_of(allowed) == ["filter[amount]", "filter[other]"]


def test_what_is_kept_of_reserved_characters_ends_no_parameter():
    # Some servers take a semicolon for an ampersand.
    service = parameter("query", "form", explode=True, allowReserved=True)
    assert built(service, "x", color="a;amount=1").url == f"{BASE}/x?color=a%3Bamount%3D1"


@pytest.mark.parametrize("style", ["simple", "label", "matrix"])
@pytest.mark.parametrize("value", ["..", "%2e%2e", [".."], {"..": "x"}, {"x": "../y"}, ["a", "..\\b"], ""])
def test_no_style_of_a_path_leads_elsewhere(style, value):
    with pytest.raises(ValueError, match="color:"):
        built(parameter("path", style, explode=False), "x", color=value)


def test_a_templates_own_dots_and_a_value_make_no_parent():
    described = {"name": "ext", "in": "path", "required": True, "schema": {"type": "string"}}
    service = compiled(document({"/a/.{ext}/b": {"get": {"operationId": "x", "parameters": [described]}}}))
    assert built(service, "x", ext="x").url == f"{BASE}/a/.x/b"
    with pytest.raises(ValueError, match="ext"):
        built(service, "x", ext=".")


def test_a_style_and_several_values_make_no_parent():
    service = parameter("path", "label", explode=True)
    assert built(service, "x", color=["", "y"]).url == f"{BASE}/x..y"
    described = {"name": "c", "in": "path", "required": True, "style": "label", "explode": True, "schema": {}}
    service = compiled(document({"/a/{c}": {"get": {"operationId": "x", "parameters": [described]}}}))
    with pytest.raises(ValueError, match="leads to another path"):
        built(service, "x", c=["", "/admin"])


def test_an_argument_isnt_a_template():
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in ("a", "b")]
    service = compiled(document({"/{a}/{b}": {"get": {"operationId": "x", "parameters": parameters}}}))
    assert built(service, "x", a="{b}", b="secret").url == f"{BASE}/%7Bb%7D/secret"


LINES = "a\r\nX: 1\tb"


@pytest.mark.parametrize("style", ["form", "deepObject"])
def test_a_value_of_several_lines_is_encoded_in_a_query_a_form_and_a_cookie(style):
    service = parameter("query", style, explode=True)
    for value in (LINES, [LINES], {"b": LINES}):
        if style == "form" or isinstance(value, dict):
            [(_, read)] = parse_qsl(built(service, "x", color=value).url.partition("?")[2])
            assert read == LINES
    assert built(parameter("cookie", "form", explode=False), "x", color=LINES).headers["cookie"] == (
        "color=a%0D%0AX%3A%201%09b"
    )
    schema = {"type": "object", "properties": {"message": {"type": "string"}}}
    content = {"requestBody": {"content": {"application/x-www-form-urlencoded": {"schema": schema}}}}
    form = compiled(document({"/x": {"post": {"operationId": "x", **content}}}))
    assert parse_qsl(built(form, "x", message=LINES).content.decode()) == [("message", LINES)]


def test_a_value_of_several_lines_is_refused_in_a_header_a_path_and_a_members_name():
    for place, style in (("header", "simple"), ("path", "simple"), ("path", "label"), ("path", "matrix")):
        for value in (LINES, [LINES], {"b": LINES}):
            with pytest.raises(ValueError, match=r"color: contains a (line break|control character)"):
                built(parameter(place, style, explode=False), "x", color=value)
    for style in ("form", "deepObject"):
        with pytest.raises(ValueError, match="name of a member contains a control character"):
            built(parameter("query", style, explode=True), "x", color={"a\n": "b"})


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_what_no_part_of_an_address_may_have_is_refused(value):
    with pytest.raises(ValueError, match="can't be sent there"):
        built(parameter("query", "form", explode=True), "x", color=value)


@pytest.mark.parametrize(
    ("place", "style", "explode", "value", "separator"),
    [
        ("header", "simple", False, ["a", "b,c"], ","),
        ("header", "simple", True, {"a": "b,c"}, ","),
        ("header", "simple", True, {"a=b": "c"}, "="),
        ("header", "simple", False, {"a,b": "c"}, ","),
        ("query", "spaceDelimited", False, ["a", "b c"], " "),
        ("query", "pipeDelimited", False, {"a": "b|c"}, "|"),
        ("path", "label", True, ["a", "b.c"], "."),
    ],
)
def test_an_item_cant_be_read_as_two(place, style, explode, value, separator):
    service = parameter(place, style, explode)
    with pytest.raises(ValueError, match=f"color: an item contains '[{separator}]', which separates"):
        built(service, "x", color=value)
    # Where it is encoded, or there is only one, it is sent.
    assert built(parameter("query", "form", explode=False), "x", color=["a", "b,c"]).url.endswith("?color=a,b%2Cc")
    assert built(parameter("header", "simple", explode=False), "x", color="b,c").headers["color"] == "b,c"
    assert built(parameter("path", "label", explode=True), "x", color="1.5").url == f"{BASE}/x.1.5"
    assert built(parameter("path", "label", explode=True), "x", color=1.5).url == f"{BASE}/x.1.5"
    signed = built(parameter("header", "simple", explode=True), "x", color={"sig": "YWJj=="})
    assert signed.headers["color"] == "sig=YWJj=="
    reserved = parameter("query", "form", explode=False, allowReserved=True)
    with pytest.raises(ValueError, match="an item contains ','"):
        built(reserved, "x", color=["a", "b,c"])


def test_a_form_and_a_text_and_bytes():
    def body(media, schema):
        content = {"requestBody": {"required": True, "content": {media: {"schema": schema}}}}
        return compiled(document({"/x": {"post": {"operationId": "x", **content}}}))

    form = body("application/x-www-form-urlencoded", {"type": "object", "properties": {"a": {}, "b": {}}})
    request = built(form, "x", a="x&y=z", b={"deep": [1]})
    assert request.content == b"a=x%26y%3Dz&b=%7B%22deep%22%3A%5B1%5D%7D"
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert built(body("text/plain", {}), "x", body="grüße").content == "grüße".encode()
    assert built(body("application/octet-stream", {}), "x", body="AAE=").content == b"\x00\x01"
    with pytest.raises(ValueError, match="has to be base64"):
        built(body("application/octet-stream", {}), "x", body="not base64!")


def test_a_files_name_and_type_stay_in_their_part():
    schema = {"type": "object", "properties": {"f": {"type": "string", "format": "binary"}}}
    content = {"requestBody": {"content": {"multipart/form-data": {"schema": schema}}}}
    service = compiled(document({"/x": {"post": {"operationId": "x", **content}}}))
    with pytest.raises(ValueError, match=r"its filename contains '\\r', which"):
        built(service, "x", f={"data": "AAE=", "filename": "a\r\nX: 1"})
    with pytest.raises(ValueError, match="its filename has more than 255 characters"):
        built(service, "x", f={"data": "AAE=", "filename": "a" * 256})
    with pytest.raises(ValueError, match="mime_type"):
        built(service, "x", f={"data": "AAE=", "mime_type": "text/plain\r\nX: 1"})
    content = built(service, "x", f={"data": "AAE=", "filename": 'a"; x="b'}).content
    assert b'filename="a%22; x=%22b"' in content
