"""A server's resources: which tools list and read them, what these give, and what becomes of the server's own tools."""

import base64
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import anyio
import pytest
from downstream_calls import call_tool
from http_servers import everything_server as everything_over_http
from http_servers import remote, sdk_server
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED

from mcp_bridge.downstream.catalog.catalog import Catalog
from mcp_bridge.downstream.catalog.listing_cache import ListingStore
from mcp_bridge.downstream.catalog.resource_tools import ResourceTool, free_names
from mcp_bridge.downstream.client import mcp_connection, resource_requests, supervised_server
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.downstream.transports import large_parts
from mcp_bridge.errors import BridgeError

pytest_plugins = ["server_fixtures"]
pytestmark = pytest.mark.timeout(120)

SERVER = Path(__file__).parents[1] / "support/servers" / "resourceful.py"
ECHOING = SERVER.with_name("echoing.py")
TEMPLATE = {"uriTemplate": "a:{b}", "name": "t"}
ARCHITECTURE = "demo://resource/static/document/architecture.md"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


def resourceful(*, settings=None, **configuration):
    """The spec of a server that has what it is told, and a template where it isn't told of resources."""
    if not configuration.keys() & {"file", "resources", "templates"}:
        configuration["templates"] = [[TEMPLATE]]
    told = json.dumps(configuration)
    return ServerSpec(name="files", command=sys.executable, args=(str(SERVER), told), **settings or {})


def rows(first, count, **more):
    return [{"uri": f"file:///{number}", "name": str(number), **more} for number in range(first, first + count)]


async def value(fleet, server, tool, arguments=None):
    """What a call of a tool gives, by its name or alias."""
    bound = fleet.server(server).bound(await fleet.server(server).find_tool(tool))
    return (await bound.call(await bound.prepare(arguments or {}))).value


async def failure(fleet, server, tool, arguments=None):
    with pytest.raises(BridgeError) as caught:
        await value(fleet, server, tool, arguments)
    return caught.value


async def names(fleet, server="files"):
    return [tool.name for tool in await fleet.server(server).tools()]


# --- real servers ---


async def check_everything(fleet, server):
    """Check that server-everything's resources can be listed and read."""
    listed = await value(fleet, server, "list_resources")
    assert {"uri": ARCHITECTURE, "name": "architecture.md", "mime_type": "text/markdown"}.items() <= next(
        row for row in listed["resources"] if row["uri"] == ARCHITECTURE
    ).items()
    assert "demo://resource/dynamic/blob/{resourceId}" in [row["uri_template"] for row in listed["resource_templates"]]
    assert listed["next_cursor"] is None
    assert (await value(fleet, server, "read_resource", {"uri": ARCHITECTURE})).startswith("# Everything Server")
    uri = "demo://resource/dynamic/text/7"
    assert "Resource 7: This is a plaintext resource" in await value(fleet, server, "read_resource", {"uri": uri})
    uri = "demo://resource/dynamic/blob/7"
    [block] = await value(fleet, server, "read_resource", {"uri": uri})
    assert (block["type"], block["uri"]) == ("resource", uri)
    assert b"Resource 7: This is a base64 blob" in base64.b64decode(block["data"])
    links = await value(fleet, server, "get_resource_links", {"count": 2})
    for link in (block for block in links if isinstance(block, dict)):
        assert await value(fleet, server, "read_resource", {"uri": link["uri"]})
    unknown = await failure(fleet, server, "read_resource", {"uri": "demo://nowhere"})
    assert (unknown.code, unknown.details["rpc_code"]) == ("bad_arguments", -32602)
    assert "demo://nowhere not found" in unknown.message
    assert unknown.hint == f"await {server}.list_resources() lists what there is to read."


async def test_a_real_servers_resources_are_listed_and_read(everything_server):
    async with Fleet([everything_server]) as fleet:
        await check_everything(fleet, "everything")


@pytest.mark.parametrize(("transport", "path"), [("streamableHttp", "/mcp"), ("sse", "/sse")])
async def test_a_remote_servers_resources_are_listed_and_read(everything_server, transport, path):
    with everything_over_http(everything_server, transport) as port:
        async with Fleet([remote(port, path, type="auto")]) as fleet:
            await check_everything(fleet, "remote")


@pytest.mark.parametrize(
    ("mode", "era"), [("json", "legacy"), ("json", "auto"), ("json", "2026-07-28"), ("events", "2026-07-28")]
)
async def test_resources_are_listed_and_read_in_both_eras(tmp_path, mode, era):
    with sdk_server(f"{mode}+resources", tmp_path / "calls") as port:
        async with Fleet([remote(port, era=era)]) as fleet:
            listed = await value(fleet, "remote", "list_resources")
            assert [row["uri"] for row in listed["resources"]] == ["note://all"]
            assert [row["uri_template"] for row in listed["resource_templates"]] == ["note://{name}/größe"]
            assert await value(fleet, "remote", "read_resource", {"uri": "note://all"}) == "noted"
            # The new era has the URI in a header, too.
            [block] = await value(fleet, "remote", "read_resource", {"uri": "note://a/größe"})
            assert block["data"] == base64.b64encode(b"a").decode()
            assert (await failure(fleet, "remote", "read_resource", {"uri": "note://"})).code == "bad_arguments"


# --- which tools there are ---


async def test_only_a_server_that_has_resources_gets_the_tools():
    tools = json.dumps([{"name": "act", "inputSchema": {"type": "object"}}])
    plain = ServerSpec(name="plain", command=sys.executable, args=(str(ECHOING), tools))
    async with Fleet([resourceful(tools=["act"]), plain]) as fleet:
        assert await names(fleet) == ["act", "list_resources", "read_resource"]
        assert await names(fleet, "plain") == ["act"]


@pytest.mark.parametrize(
    ("configuration", "has"),
    [
        ({"capability": {}}, False),
        ({"capability": {}, "resources": [], "templates": []}, False),
        ({"capability": {"listChanged": False}, "resources": [[]], "templates": None}, False),
        ({"capability": {"listChanged": True, "subscribe": True}, "resources": [], "templates": []}, False),
        ({"capability": {}, "resources": [rows(0, 1)]}, True),
        ({"capability": {}, "resources": [rows(0, 5_000)]}, True),
        ({"capability": {}, "resources": [[], rows(0, 1)]}, True),
        ({"capability": {}, "resources": None, "templates": [[TEMPLATE]]}, True),
        ({"capability": {}, "resources": [[{"uri": 7}]]}, True),
    ],
)
async def test_a_server_that_announces_resources_and_can_have_none_gets_no_tools(tmp_path, configuration, has):
    (tmp_path / "told.json").write_text(json.dumps({"tools": ["act"], **configuration}))
    async with Fleet([resourceful(file=str(tmp_path / "told.json"))]) as fleet:
        assert ("read_resource" in await names(fleet)) == has


@pytest.mark.parametrize("era", ["legacy", "auto", "2026-07-28"])
async def test_a_server_of_the_python_sdk_without_any_gets_no_tools(git_server, era):
    async with Fleet([replace(git_server, era=era)]) as fleet:
        assert not any(isinstance(tool, ResourceTool) for tool in await fleet.server("git").tools())


@pytest.mark.parametrize("announced", [True, False])
async def test_a_resource_that_there_is_since_can_be_read(tmp_path, monkeypatch, announced):
    monkeypatch.setattr(supervised_server, "RELIST_AFTER", 600.0 if announced else 0.0)
    told = tmp_path / "told.json"
    told.write_text(json.dumps({"tools": ["announce"]}))
    async with Fleet([resourceful(file=str(told))]) as fleet:
        assert await names(fleet) == ["announce"]
        listed = rows(0, 1)
        told.write_text(json.dumps({"resources": [listed], "contents": {"file:///0": [{"uri": "a", "text": "one"}]}}))
        if announced:
            assert await value(fleet, "files", "announce") == "its own announce"
        assert await value(fleet, "files", "read_resource", {"uri": "file:///0"}) == "one"


@pytest.mark.parametrize("own", ["read_resource", "readResource", "read-resource", "Read.Resource"])
async def test_a_tool_of_the_server_keeps_its_name_and_ours_gets_another(own):
    contents = {"file:///1": [{"uri": "file:///1", "text": "one"}]}
    async with Fleet([resourceful(tools=[own], contents=contents)]) as fleet:
        assert await names(fleet) == [own, "list_resources", "read_mcp_resource"]
        assert await value(fleet, "files", own) == f"its own {own}"
        assert await value(fleet, "files", "read_mcp_resource", {"uri": "file:///1"}) == "one"


async def test_a_tool_that_is_left_out_does_not_lend_its_name():
    spec = resourceful(tools=["act", "read_resource"], settings={"exclude_tools": ("read_resource",)})
    async with Fleet([spec]) as fleet:
        assert await names(fleet) == ["act", "list_resources", "read_mcp_resource"]


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"include_tools": ("act",)}, ["act"]),
        ({"include_tools": ("read_*",)}, ["read_resource"]),
        ({"exclude_tools": ("*_resource*",)}, ["act"]),
    ],
)
async def test_the_configuration_says_of_them_too_whether_they_are_there(settings, left):
    async with Fleet([resourceful(tools=["act"], settings=settings)]) as fleet:
        assert await names(fleet) == left


@pytest.mark.parametrize("settings", [{"include_tools": ("act",)}, {"exclude_tools": ("*_resource*",)}])
async def test_a_server_is_not_asked_for_resources_that_are_excluded(monkeypatch, settings):
    asked = []

    async def has_any(*_):
        asked.append(True)
        return True

    monkeypatch.setattr(resource_requests, "has_any", has_any)
    async with Fleet([resourceful(tools=["act"], settings=settings)]) as fleet:
        assert await names(fleet) == ["act"]
    assert asked == []


async def test_a_server_that_was_slow_to_list_is_asked_again(monkeypatch):
    monkeypatch.setattr(mcp_connection, "RESOURCES_TIMEOUT", 0.01)
    monkeypatch.setattr(supervised_server, "RELIST_AFTER", 0.0)
    has_any, asked = resource_requests.has_any, []

    async def slow_once(*arguments):
        asked.append(True)
        if len(asked) == 1:
            await anyio.sleep(60)
        monkeypatch.setattr(mcp_connection, "RESOURCES_TIMEOUT", 60)
        return await has_any(*arguments)

    monkeypatch.setattr(resource_requests, "has_any", slow_once)
    async with Fleet([resourceful(tools=["act"], resources=[], templates=[])]) as fleet:
        assert await names(fleet) == ["act", "list_resources", "read_resource"]
        monkeypatch.setattr(mcp_connection, "RESOURCES_TIMEOUT", 60)
        await failure(fleet, "files", "no_such_tool")
        assert await names(fleet) == ["act"]


def test_names_are_found_whatever_a_server_has():
    assert free_names([]) == {"list": "list_resources", "read": "read_resource"}
    taken = ["list_resources", "ListMcpResources", "list_mcp_resources_2", "read"]
    assert free_names(taken) == {"list": "list_mcp_resources_3", "read": "read_resource"}


async def test_a_servers_own_tools_are_listed_as_they_were():
    tools = json.dumps([{"name": "act", "inputSchema": {"type": "object"}}])
    plain = ServerSpec(name="files", command=sys.executable, args=(str(ECHOING), tools))
    listed = []
    for spec in (plain, resourceful(tools=["act"])):
        async with Fleet([spec]) as fleet:
            listed.append((await fleet.server("files").tools())[0])
    assert listed[0] == listed[1]
    # An approved plan has a hash of this.
    assert asdict(listed[1]).keys() == {
        "server", "server_alias", "name", "alias", "title", "description", "input_schema", "output_schema", "annotations",
    }  # fmt: skip


async def test_search_finds_other_tools_only(tmp_path):
    async with Fleet([resourceful(tools=["read_page"])]) as fleet:
        catalog = Catalog(fleet, tmp_path)
        assert len(await catalog.tools("files")) == 3
        for query in ("read a resource", "list resources", ""):
            hits = (await catalog.search(query)).hits
            assert {hit.tool.name for hit in hits} <= {"read_page"}
        assert (await catalog.bind("files", "read_resource")).info.name == "read_resource"


# --- the cache of listings ---


async def test_a_cached_listing_has_them_and_is_that_of_the_server(tmp_path):
    spec = resourceful(tools=["act", "read_resource"])
    async with Fleet([spec]) as fleet:
        catalog = Catalog(fleet, tmp_path)
        listed = await catalog.tools("files")
    async with Fleet([spec]) as fleet:
        catalog = Catalog(fleet, tmp_path)
        assert await catalog.tools("files") == listed
        assert not fleet.server("files").running
        bound = await catalog.bind("files", "list_resources")
        # Bound from the cache, and no other tool once the server runs.
        assert (await bound.call({})).value["resources"] == []
        assert fleet.server("files").running


async def test_a_listing_that_an_earlier_build_has_cached_is_completed_by_the_server(tmp_path):
    spec = resourceful(tools=["act"])
    async with Fleet([spec]) as fleet:
        await Catalog(fleet, tmp_path).tools("files")
    [file] = (tmp_path / "catalog").glob(f"{spec.fingerprint()}*")
    content = json.loads(file.read_text())
    assert [tool["name"] for tool in content["tools"]] == ["act"], "what an earlier build reads"
    del content["resource_tools"]
    file.write_text(json.dumps(content))
    async with Fleet([spec]) as fleet:
        catalog = Catalog(fleet, tmp_path)
        assert [tool.name for tool in await catalog.tools("files")] == ["act"]
        own = await catalog.bind("files", "act")
        assert (await (await catalog.bind("files", "list_resources")).call({})).value["resources"] == []
        assert (await own.current()).info == own.info
        assert [tool.name for tool in await catalog.tools("files")] == ["act", "list_resources", "read_resource"]


@pytest.mark.parametrize("stored", [{"read": 1, "other": "x"}, {}, {"list": None}, [], "x", None, 7])
async def test_what_a_cached_listing_should_not_have_adds_no_tool(tmp_path, stored):
    store = ListingStore(tmp_path / "catalog")
    store.save("key", ())
    [file] = (tmp_path / "catalog").iterdir()
    file.write_text(json.dumps(json.loads(file.read_text()) | {"resource_tools": stored}))
    assert not store.load("key", "s", "s")


async def test_a_server_cannot_say_that_a_tool_is_one_of_the_bridges(tmp_path):
    tool = {"name": "act", "inputSchema": {"type": "object"}, "method": "read", "resource_tools": {"read": "act"}}
    spec = ServerSpec(name="files", command=sys.executable, args=(str(ECHOING), json.dumps([tool])))
    async with Fleet([spec]) as fleet:
        catalog = Catalog(fleet, tmp_path)
        assert not any(isinstance(each, ResourceTool) for each in await catalog.tools("files"))
        assert (await value(fleet, "files", "act")) == '["act", {}]'


# --- what they give ---


async def test_a_list_of_many_pages_is_given_in_parts(monkeypatch):
    monkeypatch.setattr(resource_requests, "MAX_RESOURCES_LISTED", 5)
    monkeypatch.setattr(resource_requests, "MAX_PAGES_LISTED", 3)
    pages = [rows(0, 2), rows(2, 2), rows(4, 2), rows(6, 1), [], [], rows(7, 1)]
    templates = [[{"uriTemplate": "file:///{name}", "name": "t", "description": "d"}]]
    async with Fleet([resourceful(resources=pages, templates=templates)]) as fleet:
        cursor, listed, found = None, [], []
        while True:
            part = await value(fleet, "files", "list_resources", {"cursor": cursor} if cursor else {})
            listed.append(len(part["resources"]))
            found += [row["name"] for row in part["resources"]]
            if (cursor := part["next_cursor"]) is None:
                break
        assert listed == [6, 1, 1], "six reach the limit of five; three pages; the rest"
        assert found == [str(number) for number in range(8)]
        assert part["resource_templates"] == [{"uri_template": "file:///{name}", "name": "t", "description": "d"}]


async def test_a_page_that_does_not_fit_beside_others_is_left_to_the_next_call(monkeypatch):
    monkeypatch.setattr(resource_requests, "MAX_BYTES_LISTED", 2_000)
    pages = [rows(0, 3, description="x" * 1_500), rows(3, 1, description="y" * 1_500)]
    async with Fleet([resourceful(resources=pages, templates=None)]) as fleet:
        first = await value(fleet, "files", "list_resources")
        assert [row["name"] for row in first["resources"]] == ["0", "1", "2"], "one page there is in any case"
        second = await value(fleet, "files", "list_resources", {"cursor": first["next_cursor"]})
        assert [row["name"] for row in second["resources"]] == ["3"]
        assert second["next_cursor"] is None


async def test_what_is_listed_before_a_page_that_fails_is_given():
    pages = [rows(0, 2), [{"uri": 7}]]
    async with Fleet([resourceful(resources=pages, templates=None)]) as fleet:
        first = await value(fleet, "files", "list_resources")
        assert [row["name"] for row in first["resources"]] == ["0", "1"]
        await failure(fleet, "files", "list_resources", {"cursor": first["next_cursor"]})


async def test_a_server_that_ends_in_the_middle_of_a_list_is_no_short_list(monkeypatch):
    page, asked = resource_requests._page, []

    async def ends(*arguments):
        asked.append(True)
        if len(asked) > 1:
            raise MCPError(code=CONNECTION_CLOSED, message="Connection closed")
        return await page(*arguments)

    async with Fleet([resourceful(resources=[rows(0, 2), rows(2, 2)], templates=None)]) as fleet:
        await names(fleet)
        monkeypatch.setattr(resource_requests, "_page", ends)
        # Of a process that has ended it would be `server_died`.
        assert (await failure(fleet, "files", "list_resources")).message == "files.list_resources: Connection closed"


async def test_a_list_without_end_is_an_error():
    async with Fleet([resourceful(resources=[rows(0, 1), rows(1, 1)], loops=True)]) as fleet:
        endless = await failure(fleet, "files", "list_resources")
        assert (endless.code, endless.message) == (
            "tool_failed",
            "files.list_resources: it lists its resources without end",
        )


@pytest.mark.parametrize("cursor", ["", "5", "tools:1", "resources", "templates:" + "x" * 20_000])
async def test_a_cursor_is_one_that_the_last_call_gave(cursor):
    async with Fleet([resourceful(resources=[rows(0, 1)], templates=[])]) as fleet:
        if cursor == "resources":
            assert (await value(fleet, "files", "list_resources", {"cursor": cursor}))["next_cursor"] is None
        else:
            wrong = await failure(fleet, "files", "list_resources", {"cursor": cursor})
            assert wrong.code == "bad_arguments"


async def test_a_server_may_know_one_of_the_lists():
    for resources, templates in (([rows(0, 1)], None), (None, [[TEMPLATE]])):
        async with Fleet([resourceful(resources=resources, templates=templates)]) as fleet:
            listed = await value(fleet, "files", "list_resources")
            assert bool(listed["resources"]) == bool(resources)
            assert bool(listed["resource_templates"]) == bool(templates)


LONG = "x" * (large_parts.LARGE_CHARS + 1)


async def test_contents_are_given_as_in_the_results_of_tools():
    contents = {
        "a:text": [{"uri": "a:text", "text": "one"}],
        "a:json": [{"uri": "a:json", "text": '{"a": 1}', "mimeType": "application/json"}],
        "a:image": [{"uri": "a:image", "blob": PNG, "mimeType": "image/png"}],
        "a:none": [],
        "a:two": [{"uri": "a:two/1", "text": "one"}, {"uri": "a:two/2", "blob": PNG, "mimeType": "image/png"}],
        "a:broken": [{"uri": "a:broken"}],
    }
    async with Fleet([resourceful(contents=contents)]) as fleet:

        async def read(uri):
            return await value(fleet, "files", "read_resource", {"uri": uri})

        image = {"type": "resource", "mime_type": "image/png", "data": PNG}
        assert await read("a:text") == "one"
        assert await read("a:json") == '{"a": 1}'
        assert await read("a:image") == [image | {"uri": "a:image"}]
        assert await read("a:none") is None
        one = {"type": "resource", "uri": "a:two/1", "mime_type": None, "text": "one"}
        assert await read("a:two") == [one, image | {"uri": "a:two/2"}]
        assert (await failure(fleet, "files", "read_resource", {"uri": "a:broken"})).code == "bad_result"
        unknown = await failure(fleet, "files", "read_resource", {"uri": "a:other"})
        assert (unknown.code, unknown.details["rpc_code"]) == ("bad_arguments", -32002), "as in the other era"


async def test_large_resources_and_long_lists_arrive_whole(tmp_path):
    listing = rows(0, 3_000)
    contents = {"a:long": [{"uri": "a:long", "text": LONG}], "a:many": [{"uri": "a:many", "text": "t"}] * 3_000}
    (tmp_path / "told.json").write_text(json.dumps({"resources": [listing], "contents": contents}))
    async with Fleet([resourceful(file=str(tmp_path / "told.json"))]) as fleet:
        assert await value(fleet, "files", "read_resource", {"uri": "a:long"}) == LONG
        assert len(await value(fleet, "files", "read_resource", {"uri": "a:many"})) == 3_000
        assert len((await value(fleet, "files", "list_resources"))["resources"]) == 3_000


async def test_too_many_contents_are_refused(tmp_path):
    contents = {"a:many": [{"uri": "a", "text": ""}] * 4_001}
    (tmp_path / "told.json").write_text(json.dumps({"templates": [[TEMPLATE]], "contents": contents}))
    async with Fleet([resourceful(file=str(tmp_path / "told.json"))]) as fleet:
        refused = await failure(fleet, "files", "read_resource", {"uri": "a:many"})
        assert (refused.code, refused.details["limit"]) == ("result_too_large", "4000 contents")


async def test_a_resource_above_the_limit_is_refused_and_the_server_lives():
    contents = {"a:long": [{"uri": "a:long", "text": "x" * 50_000}], "a:short": [{"uri": "a:short", "text": "s"}]}
    async with Fleet([resourceful(contents=contents)], max_result_bytes=10_000) as fleet:
        refused = await failure(fleet, "files", "read_resource", {"uri": "a:long"})
        assert (refused.code, refused.details["limit"]) == ("result_too_large", 10_000)
        assert await value(fleet, "files", "read_resource", {"uri": "a:short"}) == "s"


async def test_arguments_are_checked_as_those_of_any_tool():
    async with Fleet([resourceful(tools=["act"])]) as fleet:
        missing = await failure(fleet, "files", "read_resource", {"url": "a:b"})
        assert missing.code == "bad_arguments"
        assert missing.hint == "It is files.read_resource(uri: str) -> str | list | None."
        assert (await call_tool(fleet, "files", "list_resources")).structured_content["next_cursor"] is None
