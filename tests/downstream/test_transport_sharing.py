"""What a server sends is charged to who it is for, and whoever waits for its turn keeps nobody from an answer."""

import asyncio
import json
import threading

import anyio
import pytest
from downstream_calls import call_tool
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from servers.specs import faulty

from mcp_bridge import fair_share, large_json
from mcp_bridge.downstream.catalog.tool_results import convert
from mcp_bridge.downstream.client import supervised_server
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.transports import server_messages
from mcp_bridge.downstream.transports.server_messages import MAX_BLOCKS, OversizedResult
from mcp_bridge.downstream.transports.stdio_transport import StdioTransport, _OutputMessages
from mcp_bridge.fair_share import MAX_WAIT_SECONDS, FairShare, Tenant
from mcp_bridge.offload import on_thread, time_limit

pytestmark = pytest.mark.timeout(120)

LIMIT = 1 << 20
LARGE = "x" * large_json.LARGE_CHARS
CHANGED = {"method": "notifications/tools/list_changed"}


class Stdout:
    """A child's output that has come."""

    def __init__(self, *chunks):
        self.chunks = list(chunks)

    async def receive(self, _size):
        if not self.chunks:
            raise anyio.EndOfStream
        return self.chunks.pop(0)


def line(**message):
    return json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n"


class Heard:
    """A transport whose child has written some chunks, and what has been charged."""

    def __init__(self, monkeypatch, *chunks):
        self.charged = {}

        def charge(tenant, seconds):
            self.charged[tenant] = self.charged.get(tenant, 0.0) + seconds

        monkeypatch.setattr(Tenant, "charge", charge)
        self.server = Tenant(FairShare())
        self.transport = StdioTransport(["true"], env={}, cwd=None, max_message=LIMIT, tenant=self.server)
        self.logs = []
        self.transport.on_log = lambda level, data: self.logs.append(data)
        self.messages = _OutputMessages(self.transport, Stdout(*chunks), LIMIT)

    def asks(self, *numbers):
        """A tenant that has sent requests."""
        tenant = Tenant(FairShare())
        token = fair_share.current.set(tenant)
        for number in numbers:
            self.transport.track_request(number)
        fair_share.current.reset(token)
        return tenant

    async def all(self):
        return [each.message async for each in self.messages]


async def test_an_answer_is_charged_to_who_asked_and_what_answers_nothing_to_the_server(monkeypatch):
    result = {"content": [{"type": "text", "text": LARGE}]}
    one = Heard(
        monkeypatch,
        line(id=1, result=result),
        line(id=2, error={"code": -1, "message": LARGE}),
        line(id="3", result=result),
        line(result=result, id=4, jsonrpc="2.0"),
        line(method="notifications/cancelled", params={"reason": LARGE}),
        line(**CHANGED),
        line(id=9, error={"code": -1, "message": "small"}),
    )
    askers = [one.asks(number) for number in (1, 2, 3, 4)]
    heard = await one.all()
    kinds = [JSONRPCResponse, JSONRPCError, JSONRPCResponse, JSONRPCResponse, JSONRPCNotification, JSONRPCError]
    assert [type(message) for message in heard] == kinds
    assert all(one.charged[tenant] > 0 for tenant in askers)
    assert one.charged[one.server] > 0
    assert one.transport._askers == {}


async def test_of_a_server_that_talks_much_people_are_told_some_and_the_rest_costs_little(monkeypatch):
    monkeypatch.setattr(server_messages, "_NOTIFICATIONS_PER_SECOND", 0)
    note = line(method="notifications/message", params={"level": "info", "data": "x"})
    one = Heard(monkeypatch, note * 1000)
    assert await one.all() == []
    assert len(one.logs) == server_messages._NOTIFICATION_BURST
    little = one.charged[one.server]
    one = Heard(monkeypatch, line(**CHANGED) * 1000)
    assert len(await one.all()) == 1000
    assert one.charged[one.server] >= 5 * little


async def test_an_error_as_an_answer_is_not_charged_to_the_server(monkeypatch):
    one = Heard(monkeypatch, line(id=1, error={"code": -1, "message": "no"}) * 500)
    one.asks(1)
    assert len(await one.all()) == 500
    assert one.charged.get(one.server, 0.0) == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        line(id=7, result={"content": [{"type": "text", "text": "x" * 2 * LIMIT}]}),
        line(id=7, result={"content": [[]] * 200_000}),
        line(id="7", result={"content": [{"type": "text", "text": "x"}] * (MAX_BLOCKS + 1)}),
        line(id=7, result=json.loads("[" * 300 + "]" * 300)),
    ],
    ids=["bytes", "values", "blocks, its id as a text", "nesting"],
)
async def test_an_answer_that_is_refused_is_an_answer_to_who_asked(monkeypatch, answer):
    one = Heard(monkeypatch, answer)
    one.asks(7)
    (refused,) = await one.all()
    assert (type(refused), refused.id) == (JSONRPCError, 7)
    assert isinstance(refused.error.data, OversizedResult)
    assert one.transport._askers == {}


async def test_a_request_of_the_servers_own_is_no_answer_whatever_its_number(monkeypatch):
    one = Heard(monkeypatch, line(id=7, method="ping"), line(id=7, result={}))
    asker = one.asks(7)
    heard = await one.all()
    assert [type(message) for message in heard] == [JSONRPCRequest, JSONRPCResponse]
    assert asker not in one.charged or one.charged[asker] == 0.0
    assert one.charged[one.server] > 0
    assert one.transport._askers == {}


async def test_what_has_been_heard_is_handed_on_before_the_rest_waits_for_its_turn(monkeypatch):
    one = Heard(monkeypatch, line(id=1, result={}) + line(**CHANGED) * 200)
    turns = 0

    async def turn(_tenant):
        nonlocal turns
        turns += 1
        if turns > 1:
            await anyio.sleep_forever()

    monkeypatch.setattr(Tenant, "turn", turn)
    assert (await one.messages.receive()).message.id == 1
    heard = 1
    with anyio.move_on_after(1):
        while True:
            await one.messages.receive()
            heard += 1
    assert 1 < heard < 100, "it waits again long before the end"


def test_no_server_is_taken_for_dead_before_its_answer_could_be_heard():
    assert min(supervised_server.LIVENESS_TIMEOUT, supervised_server.RELIST_TIMEOUT) > MAX_WAIT_SECONDS


# --- with a real server ---


@pytest.fixture
def waits(monkeypatch):
    """Has a tenant wait for its turn, for what it is told to."""
    how = {}
    turn = Tenant.turn

    async def waited(self):
        await (how[self]() if self in how else turn(self))

    monkeypatch.setattr(Tenant, "turn", waited)
    return how


async def test_what_a_server_has_answered_before_its_end_is_heard_although_it_has_to_wait(waits):
    async with Fleet([faulty("last")]) as fleet:
        await call_tool(fleet, "faulty", "pid", {})
        server = fleet.servers["faulty"]
        seconds = [5, 5, 5]
        waits[server._tenant] = lambda: anyio.sleep(seconds.pop() if seconds else 0)
        assert convert(await call_tool(fleet, "faulty", "last", {}))["value"] == "the last"


@pytest.fixture
def skips(monkeypatch):
    """Has the event loop's clock skip seconds, as often as it is called."""
    loop = None
    skipped = 0.0

    def skip(seconds):
        nonlocal loop, skipped
        if loop is None:
            loop = asyncio.get_running_loop()
            time = loop.time
            monkeypatch.setattr(loop, "time", lambda: time() + skipped)
        skipped += seconds

    return skip


@pytest.mark.parametrize("text", ["small", "x" * 400_000])
async def test_the_wait_for_a_turn_counts_against_no_time_limit(waits, skips, text):
    async with Fleet([faulty("plain", call_timeout=60)]) as fleet:
        await call_tool(fleet, "faulty", "pid", {})
        whose = Tenant()

        async def wait():
            skips(100)
            await anyio.sleep(0.01)

        waits[whose] = wait
        token = fair_share.current.set(whose)
        try:
            with time_limit(60) as step:
                assert convert(await call_tool(fleet, "faulty", "echo", {"text": text}))["value"] == text
                assert await on_thread(len, text) == len(text)
            assert not step.cancelled_caught
            # What isn't ours to do counts.
            with time_limit(60) as step:
                skips(100)
                await anyio.sleep(30)
            assert step.cancelled_caught
        finally:
            fair_share.current.reset(token)


async def test_a_time_limit_stands_still_while_anything_of_ours_is_under_way_and_no_longer(skips):
    let_go = threading.Event()

    async def work():
        assert await on_thread(let_go.wait, 60)

    with time_limit(30) as limit:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            tasks.start_soon(work)
            await anyio.sleep(0.01)
            skips(100)
            await anyio.sleep(0.01)
            let_go.set()
        assert not limit.cancel_called
        assert anyio.current_time() < limit.deadline <= anyio.current_time() + 30


async def test_a_listing_that_others_wait_for_waits_for_nobodys_turn(waits):
    async with Fleet([faulty("plain")]) as fleet:
        await call_tool(fleet, "faulty", "pid", {})
        whose = Tenant()
        waits[whose] = anyio.sleep_forever
        token = fair_share.current.set(whose)
        try:
            with anyio.fail_after(60):
                await call_tool(fleet, "faulty", "grow", {})
                assert "grown_0" in {tool.name for tool in await fleet.server("faulty").tools()}
        finally:
            fair_share.current.reset(token)


async def test_a_request_that_is_too_large_to_be_looked_at_is_refused():
    async with Fleet([faulty("asks")]) as fleet:
        answer = json.loads(convert(await call_tool(fleet, "faulty", "asks", {}))["value"])
    assert answer["error"]["message"] == "The request is too large."
