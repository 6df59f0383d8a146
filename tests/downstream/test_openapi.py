"""Services that an OpenAPI document describes: each operation is a tool, and each call a request that was meant."""

import base64
import json
from contextlib import asynccontextmanager

import pytest
from downstream_calls import call_tool
from http_servers import serving
from petstore_service import PNG, Petstore
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mcp_bridge.downstream.catalog import describe
from mcp_bridge.downstream.catalog.tool_results import convert
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.configuration.spec import OpenApiDocument, ServerSpec
from mcp_bridge.downstream.http import retries
from mcp_bridge.downstream.http.http_client import Attempt, failure_of
from mcp_bridge.downstream.http.remote_auth import RemoteAccess
from mcp_bridge.errors import BridgeError

# Far above what any of these takes; a test that runs into it hangs.
pytestmark = pytest.mark.timeout(120)

SECRET = "sec-9fK2vLq8XwZ4mR7bT1yN/+="  # noqa: S105 - of this test alone


def openapi(location, *, operations=("*",), credentials=None, **settings):
    """The spec of a service."""
    document = OpenApiDocument(location=str(location), operations=operations, credentials=credentials or {})
    return ServerSpec(**{"name": "petstore", "type": "openapi", "openapi": document} | settings)


@asynccontextmanager
async def petstore(*, operations=("*",), credentials=None, **settings):
    """A fleet of the service alone, and the service."""
    service = Petstore()
    async with serving(service.app) as port:
        spec = openapi(
            f"http://127.0.0.1:{port}/openapi.json", operations=operations, credentials=credentials, **settings
        )
        async with Fleet(
            [spec], access=RemoteAccess(lambda _, text: text.replace("vault://secret/key", SECRET))
        ) as fleet:
            service.port = port
            yield fleet, service


async def value(fleet, tool, /, **arguments):
    """What a script gets."""
    result = await call_tool(fleet, "petstore", tool, arguments)
    assert not result.is_error, result
    return convert(result)["value"]


async def failure(fleet, tool, /, **arguments):
    with pytest.raises(BridgeError) as caught:
        found = await fleet.server("petstore").listed(tool)
        await fleet.server("petstore").bound(found).call(arguments)
    return caught.value


async def listed(fleet):
    return {tool.name: tool for tool in await fleet.server("petstore").tools()}


async def test_the_document_of_a_service_becomes_tools_with_its_signatures():
    async with petstore() as (fleet, _):
        tools = await listed(fleet)
    assert describe.line(tools["get_pet"]) == "petstore.get_pet(id) — Find a pet by its id"
    assert describe.line(tools["create_pet"]).startswith("petstore.create_pet(name, tags=[], parent=...)")
    assert tools["get_pet"].output_schema["properties"]["name"]["type"] == "string"
    assert "GET /pets/{id}" in tools["get_pet"].description
    assert tools["get_pet"].annotations["readOnlyHint"] is True
    assert tools["delete_pet"].annotations["destructiveHint"] is True
    assert tools["create_pet"].annotations["readOnlyHint"] is False


async def test_operations_are_called():
    async with petstore() as (fleet, service):
        assert await value(fleet, "get_pet", id=1) == {"id": 1, "name": "Rex", "tags": ["dog"], "parent": None}
        assert [pet["name"] for pet in await value(fleet, "list_pets", tag=["cat", "fox"], limit=5)] == ["Tom"]
        made = await value(fleet, "create_pet", name="Ada", parent={"name": "Eve"})
        assert (made["id"], made["parent"]["name"]) == (3, "Eve")
        assert await value(fleet, "delete_pet", id=3) is None
        assert await value(fleet, "login", user="a&b=c", tags=["x", "y z"]) == {"user": "a&b=c", "tags": ["x", "y z"]}
        assert service.paths("GET") == ["/pets/1", "/pets?tag=cat&tag=fox&limit=5"]


async def test_files_go_both_ways():
    async with petstore() as (fleet, _):
        data = base64.b64encode(PNG).decode()
        told = await value(fleet, "add_photo", id=1, photo=data, caption="of Rex")
        assert told == {"name": "photo", "type": "application/octet-stream", "size": len(PNG), "caption": "of Rex"}
        named = {"data": data, "filename": "Rex ü.png", "mime_type": "image/png"}
        told = await value(fleet, "add_photo", id=1, photo=named)
        assert (told["name"], told["type"]) == ("Rex ü.png", "image/png")
        assert await value(fleet, "get_photo", id=1) == [{"type": "image", "mime_type": "image/png", "data": data}]


async def test_what_a_response_says_beside_its_body_is_in_the_raw_result():
    async with petstore() as (fleet, _):
        result = await call_tool(fleet, "petstore", "create_pet", {"name": "Ada"})
        http = convert(result)["raw"]["_meta"]["mcp-code-bridge/http"]
    assert (http["status"], http["headers"]["location"]) == (201, "/pets/3")


async def test_only_operations_that_read_are_tools_unless_others_are_named():
    async with petstore(operations=None) as (fleet, _):
        tools = await listed(fleet)
        notices = fleet.server("petstore").listing.notices
    assert "get_pet" in tools
    assert tools.keys().isdisjoint({"create_pet", "replace_pet", "delete_pet", "login"})
    assert any("5 operations that may change something are left out" in notice for notice in notices)


async def test_a_service_without_a_tool_says_why():
    async with petstore(operations=("nothing",)) as (fleet, _):
        for name in ("get_pet", "x"):
            with pytest.raises(BridgeError) as caught:
                await fleet.server("petstore").find_tool(name)
            assert caught.value.code == "unknown_tool"
            assert "It has no tools: server 'petstore': no operation matches 'nothing'" in caught.value.hint


async def test_a_query_has_a_body_and_only_reads():
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    query = {
        "operationId": "find",
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "Found", "content": {"application/json": {"schema": {}}}}},
    }
    document = {"openapi": "3.2.0", "info": {"title": "x", "version": "1"}, "paths": {"/pets": {"query": query}}}

    async def found(request):
        return JSONResponse([request.method, await request.json()])

    async def described(_):
        return JSONResponse(document)

    app = Starlette(routes=[Route("/openapi.json", described), Route("/pets", found, methods=["QUERY"])])
    async with serving(app) as port:
        base = f"http://127.0.0.1:{port}"
        # Without operations in the entry: what only reads.
        async with Fleet([openapi(f"{base}/openapi.json", operations=None, url=base)]) as fleet:
            assert (await listed(fleet))["find"].annotations["readOnlyHint"] is True
            assert await value(fleet, "find", name="Rex") == ["QUERY", {"name": "Rex"}]


async def test_operations_are_named_by_their_ids_or_their_paths():
    async with petstore(operations=("get_*", "DELETE /pets/*", "nothing")) as (fleet, _):
        tools = await listed(fleet)
        notices = fleet.server("petstore").listing.notices
    assert sorted(tools) == ["delete_pet", "get_pet", "get_photo"]
    assert any("no operation matches 'nothing'" in notice for notice in notices)


@pytest.mark.parametrize(
    "text",
    ["..", ".", "../pets", "a/../../b", "%2e%2e/x", "..%2f..", "%252e%252e%252fx", "..\\x", "..;/x", "a\x00b", ""],
)
async def test_an_argument_of_a_path_leads_to_no_other_path(text):
    async with petstore() as (fleet, service):
        error = await failure(fleet, "echo", text=text)
        assert error.code == "bad_arguments"
        assert service.paths() == []


@pytest.mark.parametrize("text", ["a?b=c#d", "a;b=c,d", "a b é", "{id}", "%41", "x&y=z+1", "😀"])
async def test_an_argument_arrives_as_it_is(text):
    async with petstore() as (fleet, service):
        assert await value(fleet, "echo", text=text) == f"{text} None"
        await value(fleet, "list_pets", tag=[text], limit=3)
        told = json.loads(service.queries[-1])
    assert told == [["tag", text], ["limit", "3"]]


async def test_a_cookie_is_one_cookie():
    async with petstore() as (fleet, service):
        await value(fleet, "echo", text="x", mood="a; session=b")
        assert service.seen[-1][2]["cookie"] == "mood=a%3B%20session%3Db"


@pytest.mark.parametrize("trace", ["a\r\nX-Admin: 1", "a\nb", "a\x00", " a", "日本"])
async def test_a_header_is_one_header(trace):
    async with petstore() as (fleet, service):
        error = await failure(fleet, "list_pets", **{"x-trace": trace})
        assert error.code == "bad_arguments"
        assert service.paths() == []


@pytest.mark.parametrize("trace", ["é", "Grüße", "\xa3\xff"])
async def test_a_header_has_letters_of_latin_1(trace):
    async with petstore() as (fleet, service):
        await value(fleet, "list_pets", **{"x-trace": trace})
        assert service.seen[-1][2]["x-trace"] == trace
        assert len(service.paths()) == 1


def test_a_character_that_cannot_be_sent_says_nothing_of_whether_a_server_can_be_reached():
    failed = failure_of(UnicodeEncodeError("ascii", "é", 0, 1, "not in range"), Attempt())
    assert (failed.kind, failed.lasting) == ("refused", True)


async def test_a_status_from_400_on_is_the_tools_error():
    async with petstore() as (fleet, service):
        error = await failure(fleet, "get_pet", id=9)
        assert (error.code, str(error)) == ("tool_error", 'HTTP 404 Not Found: {"detail":"no pet 9"}')
        service.answers = [Response(b"x" * 100_000, 500, media_type="text/plain")]
        error = await failure(fleet, "get_pet", id=1)
        assert error.code == "tool_error"
        assert len(str(error)) < 10_000
        service.answers = [Response(b"\x00\x01", 503, media_type="application/octet-stream")]
        assert "2 bytes of application/octet-stream" in str(await failure(fleet, "get_pet", id=1))
    assert len(service.paths()) == 3


async def test_a_script_reads_the_status_and_the_body_of_a_refusal():
    headers = {"retry-after": "7", "x-request-id": "r-1"}
    answers = [
        (JSONResponse({"detail": [1]}, 422, headers), {"body": {"detail": [1]}, "retry_in": 7, "request_id": "r-1"}),
        (Response("no", 400, media_type="text/plain"), {"body": "no"}),
        (Response("{", 400, media_type="application/json"), {"body": "{"}),
        (Response(json.dumps(["x" * 100_000]), 400, media_type="application/json"), {"body": f'["{"x" * 7998}…'}),
        (Response(b"\x00\x01", 409, media_type="application/octet-stream"), {}),
        (Response(status_code=404), {}),
        (JSONResponse({"sent": SECRET}, 403), {"body": {"sent": "[hidden]"}}),
    ]
    async with petstore(credentials={"key": "vault://secret/key"}) as (fleet, service):
        for answer, told in answers:
            service.answers = [answer]
            details = (await failure(fleet, "get_pet", id=1)).details
            found = {name: details[name] for name in ("body", "retry_in", "request_id") if name in details}
            assert (details["status"], found) == (answer.status_code, told)


async def test_a_refusal_for_the_time_being_is_waited_for_and_nothing_else_is_sent_twice(monkeypatch):
    monkeypatch.setattr(retries, "MAX_BUSY_WAIT", 30)
    async with petstore() as (fleet, service):
        service.answers = [Response(status_code=429, headers={"retry-after": "0"})]
        await value(fleet, "create_pet", name="Ada")
        assert service.paths("POST") == ["/pets", "/pets"]
        service.answers = [Response("slow\u202e\ndown", status_code=429, headers={"retry-after": "3600"})]
        error = await failure(fleet, "create_pet", name="Ada")
        assert (error.code, error.details["retry_in"]) == ("server_busy", 3600)
        assert "asked again in 3600 s. It says: slow\\u202e down" in error.message
        before = len(service.paths("POST"))
        for wait in ("9" * 20, "Fri, 31 Dec 9999 23:59:59 GMT"):
            service.answers = [Response(status_code=429, headers={"retry-after": wait})]
            assert (await failure(fleet, "create_pet", name="Ada")).details["retry_in"] == 10**9
        assert len(service.paths("POST")) == before + 2
        service.answers = [Response(status_code=503, headers={"retry-after": "0"})]
        assert (await failure(fleet, "create_pet", name="Ada")).code == "connection_lost"
        assert len(service.paths("POST")) == 6


async def test_a_wait_that_a_calls_time_does_not_allow_is_not_begun():
    async with petstore(call_timeout=15) as (fleet, service):
        service.answers = [Response(status_code=429, headers={"retry-after": "20"})]
        error = await failure(fleet, "create_pet", name="Ada")
        assert (error.code, error.details["retry_in"]) == ("server_busy", 20)
        assert service.paths("POST") == ["/pets"]


@pytest.mark.parametrize("wait", ["-5", "soon", "", "nan", "1e3", "3, 5", "Wed, 21 Oct 99999 07:28:00 GMT", "\xb2"])
async def test_a_wait_that_is_none_is_the_bridges_own(wait, monkeypatch):
    monkeypatch.setattr(retries, "_BUSY_WAIT", 0.001)
    async with petstore() as (fleet, service):
        service.answers = [Response(status_code=429, headers={"retry-after": wait}) for _ in range(9)]
        error = await failure(fleet, "create_pet", name="Ada")
        assert error.code == "server_busy"
        assert "retry_in" not in error.details
        assert len(service.paths("POST")) == 5


@pytest.mark.parametrize("status", [408, 502, 503, 504, 524])
async def test_a_gateways_status_says_that_the_call_may_have_happened_unless_it_only_reads(status):
    async with petstore() as (fleet, service):
        for tool, arguments in (
            ("create_pet", {"name": "Ada"}),
            ("delete_pet", {"id": 1}),
            ("replace_pet", {"path_id": 1, "name": "x"}),
        ):
            service.answers = [JSONResponse({"detail": "the upstream is slow"}, status)]
            error = await failure(fleet, tool, **arguments)
            assert error.code == "connection_lost", error
            assert f"answered HTTP {status}" in str(error)
            assert "the upstream is slow" in str(error)
            assert str(error).endswith("The call may have happened.")
        service.answers = [JSONResponse({"detail": "later"}, status)]
        assert (await failure(fleet, "get_pet", id=1)).code == "tool_error"
        for own in (500, 501):
            service.answers = [JSONResponse({"detail": "mine"}, own)]
            assert (await failure(fleet, "create_pet", name="Ada")).code == "tool_error"
    assert len(service.paths()) == 6, "nothing is sent twice"


async def test_a_connection_that_breaks_after_the_request_says_that_the_call_may_have_happened():
    async def breaking(_):
        async def body():
            yield b'{"id": '
            raise OSError("broken off")

        return StreamingResponse(body(), 201, media_type="application/json")

    async with petstore() as (fleet, service):
        service.answers = [breaking]
        error = await failure(fleet, "create_pet", name="Ada")
        assert (error.code, "The call may have happened." in str(error)) == ("connection_lost", True)
    assert service.paths("POST") == ["/pets"]


async def test_the_operators_credentials_are_missing_or_wrong():
    async with petstore(credentials={"key": "vault://secret/key"}) as (fleet, service):
        service.answers = [JSONResponse({"detail": "wrong password", "sent": SECRET}, 401)]
        error = await failure(fleet, "get_pet", id=1)
        assert error.code == "server_unauthorized"
        assert error.message == (
            "server 'petstore' answered 401 Unauthorized: it wants other credentials. "
            'It says: {"detail":"wrong password","sent":"[hidden]"}'
        )
        service.answers = [JSONResponse({"detail": "not yours"}, 403)]
        assert "not yours" in str(await failure(fleet, "get_pet", id=1))


@pytest.mark.parametrize(
    "of", [{"credentials": {"key": "vault://secret/key"}}, {"headers": {"X-Team": "vault://secret/key"}}]
)
async def test_a_secret_that_is_gone_hides_no_answer_of_the_service(monkeypatch, of):
    def gone(spec, _):
        raise BridgeError("secret_missing", "There is no secret 'key'.", server=spec.name)

    async with petstore(**of) as (fleet, service):
        await value(fleet, "headers")
        monkeypatch.setattr(RemoteAccess, "resolve", lambda _, spec, text: gone(spec, text))
        service.answers = [JSONResponse({"detail": "wrong password"}, 401)]
        error = await failure(fleet, "headers")
    assert (error.code, "wrong password" in error.message) == ("server_unauthorized", True)


async def test_secrets_that_are_replaced_are_sent_with_the_call_after_one_that_was_refused(monkeypatch):
    async with petstore(credentials={"key": "vault://secret/key"}, headers={"X-Team": "vault://secret/key"}) as (
        fleet,
        service,
    ):
        await value(fleet, "headers")
        monkeypatch.setitem(globals(), "SECRET", SECRET[::-1])
        service.answers = [JSONResponse({"detail": "expired"}, 401)]
        assert (await failure(fleet, "headers")).code == "server_unauthorized"
        assert service.paths("GET") == ["/headers"] * 2, "not sent again: 401 may be the operation's own answer"
        assert SECRET not in json.dumps(await value(fleet, "headers"))
    *_, (_, _, before), (_, _, after) = service.seen
    assert (before["x-key"], before["x-team"]) == (SECRET[::-1], SECRET[::-1])
    assert (after["x-key"], after["x-team"]) == (SECRET, SECRET)


@pytest.mark.parametrize(
    ("tool", "scheme", "place"),
    [
        ("headers", "key", "headers"),
        ("by_query", "query_key", "query"),
        ("by_bearer", "token", "authorization"),
    ],
)
async def test_credentials_are_sent_where_the_document_says_and_hidden_where_they_come_back(tool, scheme, place):
    async with petstore(credentials={scheme: "vault://secret/key"}) as (fleet, service):
        answer = json.dumps(await value(fleet, tool))
        _, path, headers = service.seen[-1]
        plain = await value(fleet, "echo", text="x", mood="y")
    sent = {"headers": headers.get("x-key"), "query": path, "authorization": headers.get("authorization")}[place]
    assert {"headers": SECRET, "query": "/by_query?api_key=sec-9fK2vLq8XwZ4mR7bT1yN%2F%2B%3D"}.get(
        place, f"Bearer {SECRET}"
    ) == sent
    assert SECRET not in answer
    assert "[hidden]" in answer
    # An operation that doesn't ask for it doesn't get it.
    assert plain == "x y"
    assert SECRET not in str(service.seen[-1])


async def test_a_user_and_password_are_sent_as_basic_authentication():
    async with petstore(credentials={"user": "me:vault://secret/key"}) as (fleet, service):
        await value(fleet, "by_basic")
        encoded = base64.b64encode(f"me:{SECRET}".encode()).decode()
        assert service.seen[-1][2]["authorization"] == f"Basic {encoded}"
        for said in (f"me:{SECRET}", SECRET, encoded):
            for status in (400, 401):
                service.answers = [JSONResponse({"sent": said}, status)]
                error = await failure(fleet, "by_basic")
                assert "[hidden]" in str(error)
                assert said not in f"{error} {error.details}"


@pytest.mark.parametrize("status", [200, 400, 401, 422])
async def test_a_credential_is_hidden_however_an_answer_writes_it(status):
    codes = "".join(f"\\u{ord(letter):04x}" for letter in SECRET)
    for written in (SECRET.replace("=", "\\u003d"), SECRET.replace("+", "\\u002B").replace("/", "\\/"), codes):
        async with petstore(credentials={"key": "vault://secret/key"}) as (fleet, service):
            body = f'{{"sent": "{written}", "{written}": ["a\\u003d"]}}'
            service.answers = [Response(body, status, media_type="application/json")]
            if status < 400:
                assert await value(fleet, "get_pet", id=1) == {"sent": "[hidden]", "[hidden]": ["a="]}
                continue
            error = await failure(fleet, "get_pet", id=1)
            told = f"{error} {error.details}"
            assert "[hidden]" in told
            assert "sec-" not in told
            assert "u0073" not in told
            if status != 401:
                assert error.details["body"] == {"sent": "[hidden]", "[hidden]": ["a="]}


async def test_a_credential_is_hidden_in_every_encoding_of_a_text():
    async with petstore(credentials={"key": "vault://secret/key"}) as (fleet, service):
        for charset in ("utf-16", "utf-32-be", "latin-1"):
            for status in (200, 400):
                service.answers = [
                    Response(SECRET.encode(charset), status, media_type=f"text/plain; charset={charset}")
                ]
                if status == 200:
                    assert await value(fleet, "get_pet", id=1) == "[hidden]"
                else:
                    assert (await failure(fleet, "get_pet", id=1)).details["body"] == "[hidden]"


async def test_a_refusals_body_is_in_an_error_as_text_and_as_a_value_alone():
    async with petstore() as (fleet, service):
        service.answers = [JSONResponse({"why": "because"}, 422)]
        error = await failure(fleet, "get_pet", id=1)
    assert error.details["body"] == {"why": "because"}
    assert str(error.details["raw"]).count("because") == 1


async def test_a_credential_for_no_scheme_is_the_configurations_fault():
    async with petstore(credentials={"keys": "x"}) as (fleet, _):
        with pytest.raises(BridgeError, match=r"credentials\.keys is no security scheme of its document") as caught:
            await fleet.server("petstore").tools()
    assert caught.value.code == "server_unavailable"


async def test_an_agent_cant_set_what_carries_credentials():
    async with petstore(headers={"X-Trace": "ours"}, credentials={"query_key": "k" * 30}) as (fleet, service):
        tools = await listed(fleet)
        assert list(tools["list_pets"].input_schema["properties"]) == ["tag", "limit"]
        assert list(tools["by_query"].input_schema["properties"]) == []
        await value(fleet, "list_pets")
        assert service.seen[-1][2].get("x-trace") is None or service.seen[-1][2]["x-trace"] == "ours"


async def test_cookies_of_a_login_stay_with_nobody():
    async with petstore() as (fleet, service):
        await value(fleet, "login", user="me")
        await value(fleet, "headers")
        assert "cookie" not in service.seen[-1][2]


async def test_redirects_are_followed_to_the_same_origin_alone():
    async with petstore() as (fleet, service):
        assert (await value(fleet, "away", to="/pets/1"))["name"] == "Rex"
        before = len(service.seen)
        error = await failure(fleet, "away", to="http://169.254.169.254/latest")
        assert (error.code, error.details["reason"]) == ("server_unavailable", "redirected")
        assert "write its address as base_url" in str(error)
        assert len(service.seen) == before + 1
        service.answers = [Response(status_code=303, headers={"location": "/pets/1"})]
        done = await value(fleet, "create_pet", name="Ada")
        assert (done["status"], done["headers"]["location"]) == (303, "/pets/1")


async def test_a_call_that_takes_too_long_is_given_up():
    async with petstore() as (fleet, _):
        with pytest.raises(BridgeError) as caught:
            await call_tool(fleet, "petstore", "slow", {}, timeout=0.3)
        assert caught.value.code == "tool_timeout"
        # The others go on.
        assert (await value(fleet, "get_pet", id=1))["id"] == 1


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Response(b"{", media_type="application/json"), "bad_result"),
        (Response(b"[NaN]", media_type="application/json"), "bad_result"),
        (Response(b"[1e999]", media_type="application/json"), "bad_result"),
        (Response(b'["\\ud800"]', media_type="application/json"), "bad_result"),
        (Response(b"[" * 5000 + b"]" * 5000, media_type="application/json"), "result_too_large"),
        (Response(b"[" + b"1," * 600_000 + b"1]", media_type="application/json"), "result_too_large"),
        (Response(b"x" * (9 << 20), media_type="text/plain"), "result_too_large"),
        (Response(b"x", headers={"content-encoding": "gzip"}, media_type="text/plain"), "bad_result"),
    ],
    ids=["not-json", "nan", "infinity", "surrogate", "deep", "many", "large", "encoded"],
)
async def test_an_answer_beyond_what_is_read_is_an_error(answer, code):
    async with petstore() as (fleet, service):
        service.answers = [answer]
        assert (await failure(fleet, "get_pet", id=1)).code == code
        assert (await value(fleet, "get_pet", id=1))["id"] == 1


async def test_a_text_and_an_unknown_type_arrive():
    async with petstore() as (fleet, service):
        service.answers = [Response("grüße".encode("latin-1"), media_type="text/plain; charset=latin-1")]
        assert await value(fleet, "get_pet", id=1) == "grüße"
        service.answers = [Response(b"plain", headers={"content-encoding": ""}, media_type="text/plain")]
        assert await value(fleet, "get_pet", id=1) == "plain"
        service.answers = [Response(b"\x00\x01", media_type="application/zip")]
        (file,) = await value(fleet, "get_pet", id=1)
        assert (file["mime_type"], file["data"]) == ("application/zip", "AAE=")
        service.answers = [Response(b"null", media_type="application/json")]
        assert await value(fleet, "get_pet", id=1) is None


@pytest.mark.parametrize("charset", ["idna", "punycode", "undefined", "unicode_escape", "utf-7", "zlib", "nonsense"])
async def test_an_encoding_that_is_not_texts_is_not_used(charset):
    # They raise errors, make lone surrogates, or take hours for a text of some mebibytes.
    body = b"\\ud800 +2AA- xn--a\xff"
    async with petstore() as (fleet, service):
        service.answers = [Response(body, media_type=f"text/plain; charset={charset}")]
        assert await value(fleet, "get_pet", id=1) == body.decode("utf-8", "replace")
        service.answers = [Response(body, 418, media_type=f"text/plain; charset={charset}")]
        error = await failure(fleet, "get_pet", id=1)
        assert body.decode("utf-8", "replace") in str(error)
