"""A listing is bounded while it arrives, and what is made of it takes bounded work."""

import json
from collections import Counter

import anyio
import anyio.lowlevel
import pytest
from downstream_calls import call_tool
from servers.specs import faulty

from mcp_bridge import near_names
from mcp_bridge.downstream.catalog import aliases, describe
from mcp_bridge.downstream.catalog.aliases import assign
from mcp_bridge.downstream.catalog.catalog import Catalog
from mcp_bridge.downstream.catalog.listing_limits import (
    MAX_LISTING_BYTES,
    MAX_TOOL_BYTES,
    MAX_TOOLS,
    BoundedListing,
    size_of,
)
from mcp_bridge.downstream.catalog.schema_types import BRIEF, WHOLE, TypeRenderer, object_shape
from mcp_bridge.downstream.catalog.tools import listing_from_wire
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.transports import server_messages
from mcp_bridge.errors import BridgeError
from mcp_bridge.near_names import nearest

pytestmark = pytest.mark.timeout(120)


def tool(name, **fields):
    return {"name": name, "inputSchema": {"type": "object"}} | fields


# --- what is kept ---


def test_a_tool_that_is_too_large_is_left_out_and_named():
    gathered = BoundedListing()
    gathered.add([tool("small"), tool("large", description="x" * MAX_TOOL_BYTES), tool("n" * 501), tool("last")])
    assert [kept["name"] for kept in gathered.tools] == ["small", "last"]
    assert not gathered.full
    [notice] = gathered.notices("s")
    assert "lists 2 tools that are left out" in notice
    assert "'large'" in notice
    assert len(notice) < 500


def test_pages_without_end_are_kept_to_a_number_of_bytes():
    gathered = BoundedListing()
    pages = 0
    while not gathered.full:
        gathered.add(tool(f"t{pages}_{number}", description="x" * 200_000) for number in range(10))
        pages += 1
    assert gathered.size <= MAX_LISTING_BYTES
    assert len(gathered.tools) == pytest.approx(MAX_LISTING_BYTES / 200_000, rel=0.1)
    assert "cut after" in gathered.notices("s")[-1]


def test_the_rest_of_a_page_is_not_looked_at_once_there_is_no_room():
    looked_at = 0

    def endless():
        nonlocal looked_at
        while True:
            looked_at += 1
            yield tool(f"t{looked_at}")

    gathered = BoundedListing()
    gathered.add(endless())
    assert len(gathered.tools) == MAX_TOOLS
    assert looked_at == MAX_TOOLS + 1
    gathered = BoundedListing()
    gathered.add(tool("x", description="x" * MAX_TOOL_BYTES) for _ in iter(int, 1))
    assert gathered.full
    assert gathered.tools == []


def test_the_size_of_a_value_is_about_that_of_its_json():
    value = {"a": ["text" * 100, {"b": [1, 2, 3]}], "c" * 50: None}
    assert size_of(value, 10_000) == pytest.approx(len(json.dumps(value)), rel=0.3)
    # It looks no further than the limit.
    assert size_of(["x"] * 1_000_000, 10) < 20


# --- a server's own ---


@pytest.mark.parametrize("mode", ["fat", "flood", "values"])
async def test_a_server_whose_listing_is_a_flood_is_bounded_and_serves_what_is_kept(mode, caplog):
    caplog.set_level("WARNING", "mcp_bridge")
    async with Fleet([faulty(mode)]) as fleet:
        server = fleet.server("faulty")
        if mode == "values":
            # One page of more values than anybody reads: there is no listing, and so no server.
            with pytest.raises(BridgeError) as caught:
                await server.start()
            assert caught.value.code == "server_start_failed"
            return
        await server.start()
        kept = server.listing.tools
        assert sum(size_of(info.record(), MAX_LISTING_BYTES) for info in kept) <= 2 * MAX_LISTING_BYTES
        assert server.listing.notices
        assert any("'faulty' lists" in record.getMessage() for record in caplog.records)
        with pytest.raises(BridgeError) as caught:
            await call_tool(fleet, "faulty", "fat", {"force": "true"})
        assert caught.value.code == "unknown_tool"
        result = await call_tool(fleet, "faulty", "echo", {"text": "hello"})
        assert result.content[0].text == "hello"


async def test_a_result_of_too_many_values_is_refused_and_the_server_goes_on():
    async with Fleet([faulty("values-result")]) as fleet:
        with pytest.raises(BridgeError) as caught:
            await call_tool(fleet, "faulty", "many", {})
        assert caught.value.code == "result_too_large"
        assert "values" in caught.value.message
        pid = (await call_tool(fleet, "faulty", "pid", {})).content[0].text
        assert (await call_tool(fleet, "faulty", "pid", {})).content[0].text == pid


async def test_a_server_that_says_without_end_that_its_tools_change_is_not_listed_without_end(monkeypatch):
    async with Fleet([faulty("changing")]) as fleet:
        server = fleet.server("faulty")
        await server.start()
        # As if it were slow to list: a pause five times as long follows.
        server._relist_at = anyio.current_time() + 3600
        asked = 0
        relist = server._connection.relist

        async def counted():
            nonlocal asked
            asked += 1
            return await relist()

        monkeypatch.setattr(server._connection, "relist", counted)
        with anyio.move_on_after(1) as scope:
            while True:
                server._connection.stale = True
                await server.tools()
        assert scope.cancelled_caught
        assert asked == 0
        assert server._relisting is None
        server._relist_at = 0.0
        await server.tools()
        assert asked == 1


async def test_others_get_their_turn_in_a_flood_of_notifications(monkeypatch):
    turns, at_turn = 0, Counter()
    parsed = server_messages._parsed

    def counted(line):
        at_turn[turns] += 1
        return parsed(line)

    monkeypatch.setattr(server_messages, "_parsed", counted)
    async with Fleet([faulty("noisy")]) as fleet:
        await fleet.server("faulty").start()

        async def victim():
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(victim)
            await call_tool(fleet, "faulty", "noise", {})
            tasks.cancel_scope.cancel()
    assert sum(at_turn.values()) > 20_000
    # A chunk holds hundreds of them.
    assert max(at_turn.values()) <= 2 * 32


async def test_a_result_of_too_many_blocks_is_refused():
    async with Fleet([faulty("noisy")]) as fleet:
        with pytest.raises(BridgeError) as caught:
            await call_tool(fleet, "faulty", "blocks", {})
        assert caught.value.code == "result_too_large"
        assert "4000 content" in caught.value.message


# --- what is made of it ---


class EntryCounts(set):
    """Counts what is looked up."""

    lookups = 0

    def __contains__(self, name):
        EntryCounts.lookups += 1
        return super().__contains__(name)


def test_names_that_all_become_the_same_are_told_apart_in_linear_time(monkeypatch):
    monkeypatch.setattr(aliases, "set", EntryCounts, raising=False)
    EntryCounts.lookups = 0
    same = ["x" + "".join("-" if number >> bit & 1 else "." for bit in range(11)) for number in range(2000)]
    found = assign(same)
    assert {alias[:12] for alias in found.values()} == {"x___________"}
    assert len(set(found.values())) == 2000
    assert EntryCounts.lookups < 10 * 2000


def test_the_search_for_near_names_looks_at_a_bounded_number_of_bounded_names():
    asked = 0

    def endless():
        nonlocal asked
        while True:
            asked += 1
            yield f"{'ab' * 50}{asked}"

    assert len(nearest("ba" * 50, endless())) == 3
    assert asked == near_names._OPTIONS
    assert nearest("x" * 1_000_000, ["x" * 1_000_000]) == []
    assert nearest("git_statsu", ["git_status", "git_log", "y" * 100_000]) == ["git_status"]


def test_a_schema_of_many_properties_is_looked_at_in_part():
    schema = {
        "properties": {f"p{number}": {"type": "string"} for number in range(100_000)},
        "required": ["p1"] * 100_000,
    }
    assert len(object_shape(schema).properties) <= 1000
    [info] = listing_from_wire("s", "s", [tool("t", inputSchema=schema)]).tools
    row = describe.proxy_row(info)
    assert len(row["params"]) == 200
    assert row["params"][0]["name"] == "p1"


def test_parameters_that_all_refer_to_a_large_type_share_a_bound():
    large = {"type": "object", "properties": {f"f{n}": {"anyOf": [{"const": m} for m in range(20)]} for n in range(12)}}
    for bounds in (BRIEF, WHOLE):
        renderer = TypeRenderer({"$defs": {"large": large}}, bounds)
        for _ in range(200):
            renderer.render({"$ref": "#/$defs/large"})
        for visited, each in zip(renderer._all_nodes, bounds, strict=True):
            assert visited < each.document_nodes + each.nodes + 1


async def test_others_get_their_turn_while_thousands_of_tools_are_indexed(tmp_path):
    async with Fleet([faulty("many", 3000)]) as fleet:
        catalog = Catalog(fleet, tmp_path)
        await fleet.server("faulty").start()
        turns = 0

        async def victim():
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(victim)
            await anyio.lowlevel.checkpoint()
            began = turns
            found = await catalog.search("tool", 5)
            assert len(found.hits) == 5
            assert turns > began + 5
            tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            while not list((tmp_path / "catalog").glob("*.json")):  # noqa: ASYNC110 - written behind our back
                await anyio.sleep(0.01)
    async with Fleet([faulty("many", 3000)]) as fleet:
        catalog = Catalog(fleet, tmp_path)
        assert len(await catalog.tools("faulty")) > 3000
        assert not fleet.server("faulty").running
