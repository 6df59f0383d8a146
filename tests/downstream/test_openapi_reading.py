"""Where a service's document comes from, what it may refer to, and where its calls and credentials go."""

import json
import threading
from dataclasses import replace

import pytest
from http_servers import serving
from openapi_calls import document
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.configuration.discovery import discover
from mcp_bridge.downstream.configuration.own_entries import spec_from_toml
from mcp_bridge.downstream.configuration.spec import OpenApiDocument, ServerSpec
from mcp_bridge.downstream.openapi import connection, document_fetching
from mcp_bridge.downstream.openapi.base_url import base_url_of
from mcp_bridge.downstream.openapi.compiled_service import Service
from mcp_bridge.downstream.openapi.document_errors import UnusableDocumentError
from mcp_bridge.errors import BridgeError

pytestmark = pytest.mark.timeout(120)


def spec(location, **settings):
    credentials = settings.pop("credentials", {})
    found = OpenApiDocument(location=str(location), operations=("*",), credentials=credentials)
    return ServerSpec(**{"name": "api", "type": "openapi", "openapi": found} | settings)


async def tools(configured):
    async with Fleet([configured]) as fleet:
        server = fleet.server("api")
        return [tool.name for tool in await server.tools()], server.listing.notices


async def failure(configured):
    with pytest.raises(BridgeError) as caught:
        await tools(configured)
    return caught.value


GET = {"get": {"operationId": "a"}}


@pytest.mark.parametrize(
    ("location", "settings", "servers", "expected"),
    [
        ("/d.json", {"url": "https://x.example/v1"}, ("https://y.example",), "https://x.example/v1"),
        ("/d.json", {}, ("https://y.example/v1",), "https://y.example/v1"),
        ("/d.json", {}, ("http://127.0.0.1:1/v1",), "http://127.0.0.1:1/v1"),
        ("/d.json", {}, ("http://y.example/v1",), None),
        ("/d.json", {}, ("/v1",), None),
        ("/d.json", {}, (), None),
        ("/d.json", {}, ("https://y.example/?a=b",), None),
        ("/d.json", {}, ("https://user:pw@y.example/",), None),
        ("/d.json", {}, ("file:///etc/passwd",), None),
        ("/d.json", {"headers": {"X-Key": "k"}}, ("https://y.example/v1",), None),
        ("/d.json", {"credentials": {"k": "v"}}, ("https://y.example/v1",), None),
        ("https://x.example/d.json", {}, ("https://x.example/v1",), "https://x.example/v1"),
        ("https://x.example/d.json", {}, ("https://x.example:443/v1",), "https://x.example:443/v1"),
        ("https://x.example/d.json", {}, ("https://evil.example/v1",), None),
        ("https://x.example/d.json", {}, ("http://x.example/v1",), None),
        ("https://x.example/d.json", {}, ("http://169.254.169.254/",), None),
    ],
)
def test_a_document_doesnt_say_where_credentials_go(location, settings, servers, expected):
    service = Service(version="3.1.0", servers=servers)
    if expected is not None:
        assert base_url_of(spec(location, **settings), service) == expected
        return
    with pytest.raises(UnusableDocumentError) as caught:
        base_url_of(spec(location, **settings), service)
    assert "base_url" in caught.value.hint


async def test_a_file_refers_to_files_of_its_own_folder_alone(tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(GET))
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "beside.json").write_text(json.dumps({"get": {"operationId": "beside"}}))
    (folder / "link.json").symlink_to(secret)
    paths = {
        "/a": {"$ref": "beside.json"},
        "/b": {"$ref": "../secret.json"},
        "/c": {"$ref": "link.json"},
        "/d": {"$ref": "file:///etc/passwd"},
        "/e": {"$ref": "http://127.0.0.1:1/x.json"},
        "/f": {"$ref": "missing.json"},
    }
    file = folder / "openapi.json"
    file.write_text(json.dumps(document(paths)))
    names, notices = await tools(spec(file))
    assert names == ["beside"]
    said = "\n".join(notices)
    assert said.count("outside of the document's folder") == 3
    assert "is no file in the document's folder" in said
    assert "can't be read" in said


async def test_a_fetched_document_refers_to_its_own_origin_alone_and_gets_no_credentials_elsewhere():
    seen = []
    paths = {
        "/a": {"$ref": "more.json"},
        "/b": {"$ref": "http://127.0.0.1:1/x.json"},
        "/c": {"$ref": "file:///etc/passwd"},
        "/d": {"$ref": "http://127.0.0.1:99999999/x.json"},
    }

    def answer(request):
        seen.append((request.url.path, request.headers.get("x-key")))
        content = GET if request.url.path == "/more.json" else document(paths)
        return Response(json.dumps(content), media_type="application/json")

    app = Starlette(routes=[Route("/{name}", answer)])
    async with serving(app) as port:
        here = f"http://127.0.0.1:{port}"
        names, notices = await tools(spec(f"{here}/d.json", url="https://api.example.com", headers={"X-Key": "k" * 30}))
        assert names == ["a"]
        assert "\n".join(notices).count("at another address than the document") == 3
        assert seen == [("/d.json", None), ("/more.json", None)]
        seen.clear()
        await tools(spec(f"{here}/d.json", url=here, headers={"X-Key": "k" * 30}))
        assert seen == [("/d.json", "k" * 30), ("/more.json", "k" * 30)]


async def test_what_grows_with_a_document_is_done_on_another_thread(tmp_path, monkeypatch):
    done = []

    def noting(function):
        def noted(*args):
            done.append(threading.current_thread())
            return function(*args)

        return noted

    monkeypatch.setattr(connection, "listing_from_wire", noting(connection.listing_from_wire))
    monkeypatch.setattr(document_fetching, "_decoded", noting(document_fetching._decoded))
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(document({"/a": GET})))
    await tools(spec(file))
    assert len(done) == 2
    assert threading.current_thread() not in done


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Response(status_code=404), "answered 404"),
        (Response(status_code=401), "answered 401"),
        (Response(status_code=302, headers={"location": "http://169.254.169.254/x"}), "isn't followed"),
        (Response(b"x" * 2000), "larger than the"),
        (Response(b"\xff"), "is not UTF-8"),
        (Response(b"x", headers={"content-encoding": "gzip"}), "is sent encoded"),
        (Response(b"{}"), "it has no openapi"),
    ],
    ids=["404", "401", "redirect", "large", "binary", "encoded", "empty"],
)
async def test_a_document_that_cant_be_had_is_told(answer, said, monkeypatch):
    monkeypatch.setattr(document_fetching, "MAX_DOCUMENT_BYTES", 1000)
    async with serving(Starlette(routes=[Route("/{name}", lambda _: answer)])) as port:
        error = await failure(spec(f"http://127.0.0.1:{port}/d.json?key=hidden-in-the-query"))
    assert error.code == "server_start_failed"
    assert said in error.message
    assert "hidden-in-the-query" not in f"{error!r} {error.hint} {error.details} {error.private}"


async def test_a_file_that_isnt_there_is_told(tmp_path):
    error = await failure(spec(tmp_path / "openapi.json"))
    assert "openapi.json can't be read: No such file" in error.message
    assert str(tmp_path) not in f"{error.message} {error.hint} {error.details}"


async def test_a_document_that_changes_has_its_new_tools(tmp_path):
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(document({"/a": GET})))
    async with Fleet([spec(file)]) as fleet:
        server = fleet.server("api")
        assert [tool.name for tool in await server.tools()] == ["a"]
        file.write_text(json.dumps(document({"/a": GET, "/b": {"get": {"operationId": "b"}}})))
        await server._relist(server._connection)
        assert [tool.name for tool in await server.tools()] == ["a", "b"]
        file.write_text("{")
        await server._relist(server._connection)
        assert [tool.name for tool in await server.tools()] == ["a", "b"]


async def test_the_document_of_a_folders_entry_is_one_trusted_file(tmp_path):
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(document({"/a": GET, "/b": {"$ref": "more.json"}})))
    (tmp_path / "more.json").write_text(json.dumps({"get": {"operationId": "b"}}))
    (tmp_path / "other.json").write_text("{}")
    from mcp_bridge.workspace.folder_content import content_of

    table = {"servers": {"api": {"openapi": "openapi.json", "operations": ["*"]}}}
    whole = content_of(tmp_path / "mcp-bridge.toml", b"", table)
    assert list(whole.files) == [str(file)]
    found = discover(
        {}, config_file="c", environ={}, cwd=tmp_path, home=tmp_path, clients=(), folder=table["servers"], trusted=whole
    ).servers["api"]
    names, notices = await tools(found)
    assert names == ["a"]
    assert "has to be one file" in "\n".join(notices)
    file.write_text(file.read_text() + " ")
    assert "isn't what was trusted any more" in (await failure(found)).message
    outside = replace(found.openapi, location="/etc/passwd")
    table = {"api": {"openapi": outside.location}}
    problem = (
        discover({}, config_file="c", environ={}, cwd=tmp_path, home=tmp_path, clients=(), folder=table, trusted=whole)
        .servers["api"]
        .problem
    )
    assert problem == "passwd is not in the folder of the configuration."


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"base_url": "https://x.example"}, "command is missing"),
        ({"openapi": ""}, "openapi is missing for a server of type openapi"),
        ({"openapi": "a.json", "url": "https://x.example"}, "Write base_url"),
        ({"openapi": "a.json", "command": "x"}, "has no meaning for a server of type openapi"),
        ({"openapi": "a.json", "args": ["x"]}, "has no meaning for a server of type openapi"),
        ({"url": "https://x.example", "operations": ["*"]}, "has no meaning for a server of type auto"),
        ({"openapi": "a.json", "operations": "*"}, "must be an array of strings"),
        ({"openapi": "a.json", "credentials": ["k"]}, "must be a table of strings"),
        ({"openapi": "a.json", "operation_ids": ["a"]}, "Did you mean operations?"),
    ],
)
def test_an_entry_that_cant_be_meant_is_refused(table, said, tmp_path):
    with pytest.raises(BridgeError) as caught:
        spec_from_toml("api", table, tmp_path / "c.toml")
    assert caught.value.code == "bad_config"
    assert said in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"openapi": "ftp://x"}, None),
        ({"openapi": "https://x/a b.json"}, "openapi contains a space or a control character."),
        (
            {"openapi": "https://u:p@x/a.json"},
            "openapi contains a user or password: write them into headers, as Authorization.",
        ),
        ({"openapi": "a.json", "base_url": "x"}, "base_url doesn't begin with https:// or http://."),
        ({"openapi": "a.json", "base_url": "https://x/?k=v"}, "base_url contains a query (?…)."),
        ({"openapi": "a.json", "oauth": {}}, "oauth needs a base_url."),
        ({"openapi": "a.json", "headers": {"Host": "x"}}, "headers.Host is set by the bridge itself: leave it out."),
        (
            {"openapi": "${NOWHERE}/a.json"},
            "openapi uses ${NOWHERE}, which is not set in the environment and has no default.",
        ),
        (
            {"openapi": "a.json", "credentials": {"k": "${NOWHERE}"}},
            "credentials.k uses ${NOWHERE}, which is not set in the environment and has no default.",
        ),
    ],
)
def test_an_entry_that_cant_be_used_says_why(table, problem, tmp_path):
    found = discover(
        {"api": table}, config_file=tmp_path / "c.toml", environ={}, cwd=tmp_path, home=tmp_path, clients=()
    ).servers["api"]
    assert found.problem == problem
