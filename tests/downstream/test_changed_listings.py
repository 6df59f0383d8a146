"""Calls of tools that a server lists otherwise than when they were decided: refused, without being sent."""

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from bridge_fixtures import until
from downstream_calls import call_tool
from http_servers import TOOL, ScriptedServer, remote, serving
from starlette.responses import Response, StreamingResponse

from mcp_bridge.downstream.client import mcp_connection as connection_module
from mcp_bridge.downstream.client import supervised_server as supervisor_module
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.downstream.transports import http_transport
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


@pytest.mark.parametrize("keyword", ["default", "const"])
async def test_a_tool_with_true_where_it_had_1_is_another_one(shop, keyword):
    def pay(value):
        return PAY | {"inputSchema": {"type": "object", "properties": {"amount": {keyword: value}}}}

    shop.lists(pay(1))
    async with Fleet([shop.spec]) as fleet:
        server = fleet.server("shop")
        decided = await server.listed("pay")
        shop.lists(pay(True))  # noqa: FBT003 - JSON
        await announced(server)
        assert (await refused(server.call_tool, decided, {})).code == "tool_changed"
        assert shop.reached == []


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
    monkeypatch.setattr(supervisor_module, "RELIST_AFTER", 600.0)
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


async def test_parameters_that_are_refused_are_so_whether_or_not_the_tools_are_listed_in_the_calls_time(
    shop, monkeypatch
):
    monkeypatch.setattr(supervisor_module, "RELIST_AFTER", 0.0)
    monkeypatch.setattr(supervisor_module, "RELIST_TIMEOUT", 600.0)
    async with Fleet([shop.spec]) as fleet:
        server = fleet.server("shop")
        await server.listed("pay")
        monkeypatch.setattr(server._connection, "_list", lambda _: anyio.sleep(600))
        assert (await refused(call_tool, fleet, "shop", "pay", {"refuse": True}, 2.0)).code == "bad_arguments"
        await call_tool(fleet, "shop", "pay")
        assert shop.reached == ["pay", "pay"]


@pytest.mark.parametrize("is_old", [True, False])
async def test_a_result_that_is_an_error_is_passed_on_and_an_old_listing_is_made_anew(shop, monkeypatch, is_old):
    """A server may say in words that it has the tool no more; whether it hasn't, its listing tells."""
    asked = anyio.Event()
    async with Fleet([shop.spec]) as fleet:
        server = fleet.server("shop")
        await server.listed("pay")
        relist = server._connection.relist

        async def noted():
            asked.set()
            return await relist()

        monkeypatch.setattr(server._connection, "relist", noted)
        monkeypatch.setattr(supervisor_module, "RELIST_AFTER", -1.0 if is_old else 600.0)
        shop.lists()
        result = await call_tool(fleet, "shop", "pay", {"fail": True})
        assert (result.is_error, result.content[0].text) == (True, "Unknown tool: pay")
        if not is_old:
            await anyio.wait_all_tasks_blocked()
            assert not asked.is_set(), "it was listed just now"
            return
        await until(lambda: "pay" not in {tool.name for tool in server.listing.tools})
        assert (await refused(call_tool, fleet, "shop", "pay")).code == "unknown_tool"
        assert shop.reached == ["pay"], "it was called once"


# --- changes that can't be listed ---


@pytest.mark.parametrize("is_silent", [False, True], ids=["with an error", "with a time-out"])
async def test_where_nothing_was_announced_a_listing_that_fails_stops_no_call(shop, monkeypatch, is_silent):
    monkeypatch.setattr(supervisor_module, "RELIST_AFTER", 0.0)
    async with Fleet([shop.spec]) as fleet:
        server = fleet.server("shop")
        await server.listed("pay")
        shop.lists_nothing()
        if is_silent:
            monkeypatch.setattr(supervisor_module, "RELIST_TIMEOUT", 0.05)
            monkeypatch.setattr(server._connection, "_list", lambda _: anyio.sleep(600))
        for find in server.find_tool, server.listed:
            assert (await refused(find, "pya")).code == "unknown_tool"
            server._relist_at = 0.0
        await call_tool(fleet, "shop", "pay")
        assert shop.reached == ["pay"]


async def test_a_listing_that_ends_with_the_call_that_asked_for_it_is_made_for_the_next(shop, monkeypatch):
    async with Fleet([shop.spec]) as fleet:
        server = fleet.server("shop")
        await server.listed("pay")
        shop.lists(PAY, MORE)
        await announced(server)
        monkeypatch.setattr(server._connection, "_list", lambda _: anyio.sleep(600))
        found = []
        async with anyio.create_task_group() as tasks:
            first = anyio.CancelScope()

            async def ends():
                with first:
                    await server.find_tool("other")

            async def waits():
                found.append((await server.find_tool("more")).name)

            tasks.start_soon(ends)
            await until(lambda: server._relisting is not None)
            tasks.start_soon(waits)
            await anyio.wait_all_tasks_blocked()
            monkeypatch.undo()
            monkeypatch.setattr(supervisor_module, "RELIST_PAUSE", 0.0)
            first.cancel()
        assert found == ["more"]


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


# --- announcements over HTTP, in a session ---

MORE = {"name": "more", "inputSchema": {"type": "object"}}
CHANGED = json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


class Announcing(ScriptedServer):
    """A server whose stream of announcements a test opens, and ends."""

    def __init__(self):
        super().__init__()
        self.capabilities = {"tools": {"listChanged": True}}
        self.get = self._announce
        self.opened = 0
        self.refuses = []
        """Statuses of the next attempts to open it."""
        self.holds = anyio.Event()
        self.holds.set()
        self.tell = asyncio.Queue()
        """The next parts of the stream; None ends it."""

    async def _announce(self, _request):
        await self.holds.wait()
        if self.refuses:
            return Response(status_code=self.refuses.pop(0))
        self.opened += 1

        async def events():
            yield b":\n\n"
            while (part := await self.tell.get()) is not None:
                yield part

        return StreamingResponse(events(), media_type="text/event-stream")


@asynccontextmanager
async def listens(server, **settings):
    async with serving(server.app) as port, Fleet([remote(port, era="legacy", **settings)]) as fleet:
        try:
            yield fleet.server("remote")
        finally:
            server.holds.set()
            server.tell.put_nowait(None)


async def names(server):
    return [tool.name for tool in await server.tools()]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(http_transport, "_RESUME_WAIT", 0.02)


@pytest.mark.parametrize(
    ("part", "refuses"),
    [(None, []), (None, [500, 401, 404]), (b"data: " + b"x" * 4_000_000 + b"\n\n", [])],
    ids=["ended", "refused for some time", "too large an event"],
)
async def test_a_change_while_the_stream_of_announcements_was_away_is_listed(quick, monkeypatch, part, refuses):
    monkeypatch.setattr(supervisor_module, "_ENVELOPE_BYTES", -(7 << 20))
    server = Announcing()
    async with listens(server) as listed:
        assert await names(listed) == ["act"]
        assert not listed.stale
        server.refuses, server.tools = refuses, [TOOL, MORE]
        server.tell.put_nowait(part)
        await until(lambda: listed.stale)
        assert await names(listed) == ["act", "more"]
        assert server.opened == 2
        server.tools = [TOOL]
        server.tell.put_nowait(f"data: {CHANGED}\n\n".encode())
        await until(lambda: listed.stale)
        assert await names(listed) == ["act"]


async def test_the_stream_is_opened_again_once_there_is_a_token_again(quick, monkeypatch):
    server = Announcing()
    async with listens(server) as listed:
        assert await names(listed) == ["act"]
        transport = listed._connection.transport
        fetch, failed = transport.fetch, []

        def without_token(method, *args, **options):
            if method == "GET" and len(failed) < 2:
                failed.append(method)
                raise BridgeError("server_unavailable", "The token endpoint is away.") if failed[1:] else ValueError
            return fetch(method, *args, **options)

        monkeypatch.setattr(transport, "fetch", without_token)
        server.tools = [TOOL, MORE]
        server.tell.put_nowait(None)
        await until(lambda: listed.stale)
        assert await names(listed) == ["act", "more"]
        assert len(failed) == 2


async def test_a_change_before_the_stream_was_opened_is_listed(monkeypatch):
    monkeypatch.setattr(connection_module, "STREAM_TIMEOUT", 0.05)
    server = Announcing()
    server.holds = anyio.Event()
    async with listens(server) as listed:
        assert await names(listed) == ["act"]
        server.tools = [TOOL, MORE]
        assert not listed.stale
        server.holds.set()
        await until(lambda: listed.stale)
        assert await names(listed) == ["act", "more"]


async def test_a_server_without_such_a_stream_is_asked_for_it_once(quick, monkeypatch):
    read, returned = http_transport.HttpTransport.read_announcements, anyio.Event()

    async def watched(*args):
        await read(*args)
        returned.set()

    monkeypatch.setattr(http_transport.HttpTransport, "read_announcements", watched)
    server = Announcing()
    server.refuses = [405]
    async with listens(server) as listed:
        assert await names(listed) == ["act"]
        await returned.wait()
        assert [method for method, _, _ in server.seen].count("GET") == 1
        assert not listed.stale
