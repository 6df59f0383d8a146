"""Calls of tools that a server lists otherwise than when they were decided: refused, without being sent."""

import json
import sys
from pathlib import Path

import anyio
import pytest
from bridge_fixtures import until
from downstream_calls import call_tool

from mcp_bridge.downstream.client import supervised_server as supervisor_module
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.errors import BridgeError

pytestmark = pytest.mark.timeout(60)

SERVER = Path(__file__).parents[1] / "support/servers" / "recording.py"
RELIST = {"name": "relist", "inputSchema": {"type": "object"}}
PAY = {"name": "pay", "inputSchema": {"type": "object", "properties": {"amount": {}}}}
CAREFUL = PAY | {"annotations": {"destructiveHint": True}}


class Shop:
    """A server that lists what a test says."""

    def __init__(self, folder):
        self._folder = folder
        args = (str(SERVER), str(folder / "listing.json"), str(folder / "calls.jsonl"))
        self.spec = ServerSpec(name="shop", command=sys.executable, args=args)
        self.lists(PAY)

    def lists(self, *tools):
        (self._folder / "listing.json").write_text(json.dumps([*tools, RELIST]))

    def lists_nothing(self):
        (self._folder / "listing.json").write_text("null")

    @property
    def reached(self):
        file = self._folder / "calls.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [row["tool"] for row in rows if row["tool"] != "relist"]


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path)


async def refused(work, *args):
    with pytest.raises(BridgeError) as caught:
        await work(*args)
    return caught.value


async def announced(server):
    await server.call_tool(await server.listed("relist"), {})
    await until(lambda: server.stale)


async def test_a_tool_that_changes_between_the_decision_and_the_call_is_not_called(shop):
    async with Fleet([shop.spec]) as fleet:
        server = fleet.server("shop")
        decided = await server.listed("pay")
        shop.lists(CAREFUL)
        await announced(server)
        error = await refused(server.call_tool, decided, {"amount": 1})
        assert (error.code, error.details["tool"]) == ("tool_changed", "pay")
        assert "Nothing was called" in error.hint
        assert "It is shop.pay(amount: Any = ...)" in error.hint
        assert shop.reached == []
        await server.call_tool(await server.listed("pay"), {"amount": 1})
        assert shop.reached == ["pay"]


async def test_a_tool_that_changes_while_the_server_is_started_again_is_not_called(shop):
    async with Fleet([shop.spec]) as fleet:
        server = fleet.server("shop")
        decided = await server.listed("pay")
        server.stop()
        await server.wait_ended()
        shop.lists(CAREFUL)
        assert (await refused(server.call_tool, decided, {"amount": 1})).code == "tool_changed"
        assert shop.reached == []


# --- changes that nobody announces ---


@pytest.mark.parametrize(("tools", "code"), [([], "unknown_tool"), ([CAREFUL], "tool_changed")])
async def test_parameters_that_a_server_refuses_have_its_tools_listed_anew(shop, monkeypatch, tools, code):
    monkeypatch.setattr(supervisor_module, "RELIST_AFTER", 0.0)
    async with Fleet([shop.spec]) as fleet:
        server = fleet.server("shop")
        await server.listed("pay")
        shop.lists(*tools)
        error = await refused(call_tool, fleet, "shop", "pay", {"refuse": True})
        assert (error.code, shop.reached) == (code, ["pay"])
        assert ("pay" in {tool.name for tool in server.listing.tools}) is bool(tools)


async def test_parameters_of_a_tool_that_is_as_it_was_are_bad(shop, monkeypatch):
    asked = 0
    async with Fleet([shop.spec]) as fleet:
        server = fleet.server("shop")
        await server.listed("pay")
        relist = server._connection.relist

        async def counted():
            nonlocal asked
            asked += 1
            return await relist()

        monkeypatch.setattr(server._connection, "relist", counted)
        assert (await refused(call_tool, fleet, "shop", "pay", {"refuse": True})).code == "bad_arguments"
        assert asked == 0, "it was listed just now"
        server._connection.listed_at = anyio.current_time() - supervisor_module.RELIST_AFTER - 1
        for _ in range(3):
            assert (await refused(call_tool, fleet, "shop", "pay", {"refuse": True})).code == "bad_arguments"
        assert asked == 1
        assert shop.reached == ["pay"] * 4


# --- changes that can't be listed ---


async def test_where_announced_changes_can_not_be_listed_nothing_is_called(shop):
    async with Fleet([shop.spec]) as fleet:
        server = fleet.server("shop")
        decided = await server.listed("pay")
        shop.lists_nothing()
        await announced(server)
        for work in (server.listed, "pay"), (server.call_tool, decided, {}), (server.find_tool, "new"):
            error = await refused(*work)
            assert (error.code, error.details["reason"]) == ("server_unavailable", "unlisted")
            assert "the list is away" in str(error)
            server._relist_at = 0.0
        assert [tool.name for tool in await server.tools()] == ["pay", "relist"], "for descriptions the old ones serve"
        server._relist_at = 0.0
        assert shop.reached == []
        shop.lists(PAY)
        await call_tool(fleet, "shop", "pay")
        assert shop.reached == ["pay"]


async def test_a_listing_that_takes_too_long_is_none(shop, monkeypatch):
    monkeypatch.setattr(supervisor_module, "RELIST_TIMEOUT", 0.05)
    async with Fleet([shop.spec]) as fleet:
        server = fleet.server("shop")
        await server.listed("pay")
        await announced(server)
        monkeypatch.setattr(server._connection, "relist", lambda: anyio.sleep(600))
        error = await refused(call_tool, fleet, "shop", "pay")
        assert (error.code, error.details["reason"]) == ("server_unavailable", "unlisted")
        assert shop.reached == []
