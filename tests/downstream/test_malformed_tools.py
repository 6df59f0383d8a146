"""A malformed entry in a server's list of tools costs nothing but itself; a list that is none is said to be."""

import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from bridge_fixtures import until
from downstream_calls import call_tool
from http_servers import ScriptedServer, remote, serving
from mcp_types import ListToolsResult
from servers.specs import faulty

from mcp_bridge.downstream.catalog.listing_limits import BoundedListing
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.client.listed_tools import add_page
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.downstream.transports import large_parts
from mcp_bridge.errors import BridgeError

pytestmark = pytest.mark.timeout(60)

RECORDING = Path(__file__).parents[1] / "support/servers" / "recording.py"
OBJECT = {"type": "object"}
GOOD = {"name": "good", "inputSchema": OBJECT}
RELIST = {"name": "relist", "inputSchema": OBJECT}
NAMED = {"properties": {"a": {"type": "string"}}}

# What the schema of each one's arguments becomes.
MENDED = {
    "absent": ({}, OBJECT),
    "null": ({"inputSchema": None}, OBJECT),
    "true": ({"inputSchema": True}, OBJECT),
    "empty": ({"inputSchema": {}}, OBJECT),
    "typeless": ({"inputSchema": NAMED}, NAMED | OBJECT),
    "null-type": ({"inputSchema": NAMED | {"type": None}}, NAMED | OBJECT),
    "types": ({"inputSchema": {"type": ["object", "null"]}}, OBJECT),
}
NO_OBJECT = "it is left out, since its inputSchema is not one of an object"
UNUSED = "what it has as {} is malformed, and not used"
TASK = "it is left out, since it can only be called as a task, which the bridge doesn't do"
# Whether each one is there nevertheless, and what is told of it.
FAULTY = {
    "false": ({"inputSchema": False}, False, NO_OBJECT),
    "text": ({"inputSchema": "object"}, False, NO_OBJECT),
    "string": ({"inputSchema": {"type": "string"}}, False, NO_OBJECT),
    "description": ({"inputSchema": OBJECT, "description": 7}, True, UNUSED.format("description")),
    "hints": (
        {"inputSchema": {}, "annotations": {"readOnlyHint": "perhaps"}, "icons": 1},
        True,
        UNUSED.format("annotations and icons"),
    ),
    "task": ({"inputSchema": OBJECT, "execution": {"taskSupport": "required"}}, False, TASK),
}
NAMELESS = [{"inputSchema": OBJECT}, {"name": 7, "inputSchema": OBJECT}, {"name": "", "inputSchema": OBJECT}, "good"]


@asynccontextmanager
async def listing(tools, tmp_path, transport):
    """A server of the name `s` that lists these tools."""
    if transport == "http":
        scripted = ScriptedServer()
        scripted.tools = tools
        async with serving(scripted.app) as port, Fleet([remote(port, name="s")]) as fleet:
            yield fleet
        return
    file = tmp_path / "listing.json"
    file.write_text(json.dumps(tools))
    args = (str(RECORDING), str(file), str(tmp_path / "calls.jsonl"))
    async with Fleet([ServerSpec(name="s", command=sys.executable, args=args)]) as fleet:
        yield fleet


def listed(server):
    return {tool.name: tool.input_schema for tool in server.listing.tools}


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_tool_whose_arguments_are_surely_an_object_is_there(transport, tmp_path):
    tools = [GOOD, *({"name": name, **tool} for name, (tool, _) in MENDED.items())]
    async with listing(tools, tmp_path, transport) as fleet:
        for name in ("good", *MENDED):
            await call_tool(fleet, "s", name, {"a": "x"})
        assert listed(fleet.server("s")) == {"good": OBJECT} | {name: schema for name, (_, schema) in MENDED.items()}
        assert fleet.server("s").listing.notices == ()


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_tool_that_is_malformed_is_left_out_alone_or_what_is_malformed_of_it(transport, tmp_path, caplog):
    tools = [*({"name": name, **tool} for name, (tool, *_) in FAULTY.items()), *NAMELESS, GOOD]
    async with listing(tools, tmp_path, transport) as fleet:
        await call_tool(fleet, "s", "good")
        server = fleet.server("s")
        there = [name for name, (_, is_there, _) in FAULTY.items() if is_there]
        assert listed(server) == dict.fromkeys([*there, "good"], OBJECT)
        told = [f"server 's', tool {name!r}: {wrong}" for name, (*_, wrong) in FAULTY.items()]
        told.append("server 's' lists tools without a name, which are left out: 4")
        assert sorted(server.listing.notices) == sorted(told)
        [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert warning == "; ".join(server.listing.notices)


async def test_a_malformed_tool_that_a_server_announces_costs_nothing_but_itself(tmp_path):
    async with listing([RELIST], tmp_path, "stdio") as fleet:
        server = fleet.server("s")
        tools = [{"name": "t", "inputSchema": 7}, {"name": "bare"}, RELIST]
        await call_tool(fleet, "s", "relist", {"tools": tools})
        await until(lambda: server.stale)
        assert [tool.name for tool in await server.tools()] == ["bare", "relist"]
        assert NO_OBJECT in server.listing.notices[0]


def add(tools, version="2025-11-25", **settings):
    gathered = BoundedListing()
    page = ListToolsResult.model_validate(large_parts.detach({"tools": tools}), by_name=False)
    add_page(gathered, page, ServerSpec(name="s", **settings), version)
    return gathered


def test_of_many_malformed_tools_some_are_named():
    gathered = add([{"name": f"t{number}" * 100, "inputSchema": 7} for number in range(500)])
    notices = gathered.notices("s")
    assert len(notices) == 11
    assert notices[-1] == "server 's' has 490 more tools with such faults"
    assert max(map(len, notices)) < 200


def test_nothing_is_told_of_a_tool_that_the_configuration_excludes():
    assert add([{"name": "t", "inputSchema": 7}], exclude_tools=("t",)).notices("s") == []


def test_only_a_tool_that_needs_tasks_in_a_version_that_has_them_is_left_out():
    tool = GOOD | {"execution": {"taskSupport": "required"}}
    assert [each["name"] for each in add([tool], "2026-07-28").tools] == ["good"]
    assert [each["name"] for each in add([GOOD | {"execution": {"taskSupport": "optional"}}]).tools] == ["good"]


async def test_the_everything_servers_tool_that_is_only_called_as_a_task_is_not_there(everything_server):
    async with Fleet([everything_server]) as fleet:
        server = fleet.server("everything")
        await server.start()
        assert "simulate-research-query" not in listed(server)
        assert any(f"'simulate-research-query': {TASK}" in notice for notice in server.listing.notices)


SECRET = "hunter2-of-the-server"  # noqa: S105 - invented


@pytest.mark.parametrize("mask", [lambda *args: args[-1].replace(SECRET, "***"), None])
@pytest.mark.parametrize(
    ("mode", "told", "quoted"),
    [
        (
            "no-initialize",
            "it answered something that is no InitializeResult of the protocol (serverInfo: model_type)",
            "",
        ),
        ("no-list", "it answered something that is no ListToolsResult of the protocol (tools: list_type)", ""),
        ("refuses-list", "it answered with the error -32603", ": no licence for ***"),
    ],
)
async def test_an_answer_that_keeps_a_server_from_starting_is_named(mode, told, quoted, mask):
    async with Fleet([faulty(mode, SECRET)], mask_output=mask) as fleet:
        with pytest.raises(BridgeError) as caught:
            await fleet.server("faulty").start()
    error = caught.value
    assert (error.code, SECRET in str(error)) == ("server_start_failed", False)
    assert error.message.startswith(f"server 'faulty' did not start: {told}{quoted if mask else ''}.")
    assert error.private.get("answer") == (f"no licence for {SECRET}" if quoted else None), "the operator's"


async def test_a_list_of_a_remote_server_that_is_none_is_named():
    scripted = ScriptedServer()
    scripted.tools = 7
    async with serving(scripted.app) as port, Fleet([remote(port)]) as fleet:
        with pytest.raises(BridgeError) as caught:
            await fleet.server("remote").start()
    assert "no ListToolsResult of the protocol (tools: list_type)." in caught.value.message
