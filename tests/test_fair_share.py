"""Whoever uses much of the interpreter leaves the most of it to the others, and nobody waits where nobody else is."""

import contextlib
import json
import threading
from types import SimpleNamespace

import anyio
import anyio.lowlevel
import pytest
from execution_fixtures import printed
from servers.specs import faulty

from mcp_bridge import fair_share
from mcp_bridge.downstream.catalog.catalog import Catalog
from mcp_bridge.downstream.catalog.tools import listing_from_wire
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.memories import MEMORY_LOCK_NAME, Memories
from mcp_bridge.fair_share import (
    AT_WORK_SECONDS,
    BURST_SECONDS,
    MAX_DEBT_SECONDS,
    MAX_WAIT_SECONDS,
    SHARE,
    FairShare,
    Tenant,
    billed,
)
from mcp_bridge.file_locks import locked
from mcp_bridge.gate.request_context import NO_REQUEST
from mcp_bridge.host.channel import BYTE_SECONDS, REQUEST_SECONDS, ChannelLimits, HostChannel
from mcp_bridge.host.request_handlers import Requests
from mcp_bridge.offload import LARGE_CHARS, off_loop, on_thread
from mcp_bridge.wire import jsonrpc, messages


@pytest.fixture
def clock(monkeypatch):
    """A clock on which only waiting takes time."""

    class Clock:
        now = 1000.0

        def __call__(self):
            return self.now

    clock = Clock()

    async def sleep(seconds):
        clock.now += max(seconds, 1e-6)
        for task in clock.meanwhile:
            task()
        await anyio.lowlevel.checkpoint()

    clock.meanwhile = []
    monkeypatch.setattr(fair_share.anyio, "sleep", sleep)
    return clock


@pytest.fixture
def shared(clock):
    return FairShare(clock)


async def waited(clock, tenant):
    began = clock.now
    await tenant.turn()
    return clock.now - began


async def test_whoever_is_alone_never_waits(clock, shared):
    tenant = Tenant(shared)
    for _ in range(100):
        tenant.mark_active()
        tenant.charge(5.0)
        assert await waited(clock, tenant) == 0


async def test_whoever_is_over_its_share_waits_while_somebody_else_is_at_work(clock, shared):
    heavy, light = Tenant(shared), Tenant(shared)
    clock.meanwhile = [light.mark_active]
    light.mark_active()
    heavy.charge(BURST_SECONDS)
    assert await waited(clock, heavy) == 0, "so much is everybody's"
    heavy.charge(0.2)
    assert await waited(clock, heavy) == pytest.approx(0.2 / SHARE)
    assert await waited(clock, light) == 0


async def test_it_goes_on_when_the_others_have_gone(clock, shared):
    heavy, light = Tenant(shared), Tenant(shared)
    light.mark_active()
    heavy.charge(BURST_SECONDS + 0.4)
    assert await waited(clock, heavy) <= AT_WORK_SECONDS + 0.2


async def test_it_is_not_kept_waiting_for_ever_nor_for_long_afterwards(clock, shared):
    heavy, light = Tenant(shared), Tenant(shared)
    clock.meanwhile = [light.mark_active]
    light.mark_active()
    heavy.charge(1000.0)
    assert await waited(clock, heavy) == pytest.approx(MAX_WAIT_SECONDS)
    total = 0.0
    while heavy.is_over():
        total += await waited(clock, heavy)
    assert total <= MAX_DEBT_SECONDS / SHARE


async def test_those_that_wait_share_one_share(clock, shared):
    heavy = [Tenant(shared) for _ in range(4)]
    light = Tenant(shared)
    clock.meanwhile = [light.mark_active]
    light.mark_active()
    for each in heavy:
        each.charge(BURST_SECONDS + 1.0)
    waits = 0

    def looks():
        nonlocal waits
        waits = max(waits, shared.waiting.total())

    clock.meanwhile.append(looks)
    began = clock.now
    async with anyio.create_task_group() as tasks:
        # However many of its tasks wait, it is one tenant.
        for _ in range(16):
            for each in heavy:
                tasks.start_soon(each.turn)
    assert waits == len(heavy)
    assert not shared.waiting
    assert clock.now - began >= MAX_WAIT_SECONDS, "what one alone would have to wait for is more"


async def test_a_principal_with_many_executions_gets_no_more_than_one_with_a_single_one(clock, shared):
    many = [Tenant(shared, owner="many") for _ in range(9)]
    single, light = Tenant(shared, owner="single"), Tenant(shared)
    clock.meanwhile = [light.mark_active]
    light.mark_active()
    for each in (*many, single):
        each.charge(BURST_SECONDS + 0.1)
    ended = {}

    async def one(tenant):
        await tenant.turn()
        ended[tenant] = clock.now

    began = clock.now
    async with anyio.create_task_group() as tasks:
        for each in (*many, single):
            tasks.start_soon(one, each)
        await anyio.lowlevel.checkpoint()
        assert shared.rate("single") == pytest.approx(SHARE / 2)
        assert shared.rate("many") == pytest.approx(SHARE / 2 / 9)
    assert ended[single] < min(ended[each] for each in many)
    assert ended[single] > began


async def test_two_that_are_over_their_share_do_not_wait_for_each_other(clock, shared):
    one, other = Tenant(shared), Tenant(shared)
    for each in (one, other):
        each.mark_active()
        each.charge(BURST_SECONDS + 1.0)
    assert await waited(clock, one) == 0


async def test_a_party_that_nobody_knows_any_more_is_nobody(clock, shared):
    heavy, gone = Tenant(shared), Tenant(shared)
    gone.mark_active()
    heavy.charge(BURST_SECONDS + 1.0)
    assert shared.is_shared(heavy)
    del gone
    assert not shared.is_shared(heavy)


async def test_a_party_that_has_ended_is_nobody_while_it_is_still_known(clock, shared):
    heavy, ended = Tenant(shared), Tenant(shared)
    ended.mark_active()
    heavy.charge(BURST_SECONDS + 1.0)
    assert shared.is_shared(heavy)
    ended.mark_ended()
    assert not shared.is_shared(heavy)
    assert await waited(clock, heavy) == 0


async def test_work_on_a_thread_is_charged_to_whom_it_is_done_for(monkeypatch):
    charged = []
    tenant = Tenant(FairShare())
    monkeypatch.setattr(tenant, "charge", charged.append)
    token = fair_share.current.set(tenant)
    try:
        assert await on_thread(sum, [1, 2]) == 3
        assert await off_loop("x", len, "x") == 1
        assert len(charged) == 1, "what is done at once isn't"
        with pytest.raises(ZeroDivisionError):
            await off_loop("x" * (LARGE_CHARS + 1), divmod, 1, 0)
        assert len(charged) == 2
        fair_share.charge(3.0)
        other = Tenant(FairShare())
        with billed(other):
            fair_share.charge(BURST_SECONDS + 1.0)
            assert await on_thread(sum, [1, 2]) == 3, "it doesn't wait"
        assert other.is_over()
        assert charged[2:] == [3.0]
    finally:
        fair_share.current.reset(token)
    assert await on_thread(sum, [1, 2]) == 3
    assert len(charged) == 3


async def test_what_others_wait_for_is_not_done_behind_those_that_are_over_their_share():
    shared = FairShare()
    heavy = Tenant(shared)
    let_go, begun = threading.Event(), anyio.Event()

    def mark_active():
        anyio.from_thread.run_sync(begun.set)
        return let_go.wait(60)

    async def occupies():
        fair_share.current.set(heavy)
        heavy.charge(BURST_SECONDS + 1.0)
        assert await on_thread(mark_active)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(occupies)
        await begun.wait()
        with anyio.fail_after(60), billed(heavy):
            assert await on_thread(sum, [1, 2]) == 3
        let_go.set()


@pytest.fixture
def stuck(monkeypatch):
    """A tenant whose turn never comes."""
    tenant = Tenant(FairShare())

    async def turn(self):
        if self is tenant:
            await anyio.sleep_forever()

    monkeypatch.setattr(Tenant, "turn", turn)
    monkeypatch.setattr(Tenant, "has_turn", lambda self: self is not tenant)
    return tenant


async def beside(tenant, do):
    """What comes of something, while a tenant has begun the same."""

    async def begins():
        fair_share.current.set(tenant)
        await do()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(begins)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        with anyio.fail_after(60):
            result = await do()
        tasks.cancel_scope.cancel()
    return result


@pytest.mark.parametrize(
    "message",
    [
        messages.ToolCall("faulty", "echo", {}),
        messages.OutputWrite("stdout", "x"),
        messages.MemorySave("key", "x" * (LARGE_CHARS + 1)),
    ],
    ids=["request", "notification", "large"],
)
async def test_a_script_that_is_held_up_uses_none_of_its_own_time_and_has_not_come_to_rest(stuck, message):
    frame = messages.notification(message)
    if not isinstance(message, messages.OutputWrite):
        frame = jsonrpc.Request(1, *frame)
    chunks = [jsonrpc.encode(frame)]

    class Stdout:
        async def receive(self):
            return chunks.pop() if chunks else await anyio.sleep_forever()

    waits = []
    limits = ChannelLimits(in_flight=1, total=9, size=1 << 20)
    channel = HostChannel(None, Stdout(), limits, None, None, waits.append)
    channel._tenant = stuck
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.serve)
        with anyio.fail_after(60):
            while sum(waits) == 0:  # noqa: ASYNC110 - nothing announces it
                await anyio.sleep(0.01)
        await anyio.sleep(0.05)
        assert channel.quiet_seconds == 0.0
        assert sum(waits) == 1
        tasks.cancel_scope.cancel()
    assert sum(waits) == 0


async def test_who_waits_for_its_turn_keeps_nobody_from_a_memory(stuck, tmp_path):
    memories = Memories(tmp_path)
    gate = SimpleNamespace(tools=SimpleNamespace(catalog=None, servers={}), values=None)
    requests = Requests("local", memories, None, None, gate, None, None, _Script())

    class Call:
        async def announce(self):
            pass

    assert await beside(stuck, lambda: requests._remember(messages.MemoryList(""), Call())) == {"keys": []}
    # Nor does a memory that waits for another process keep anybody from large work.
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            with locked(tmp_path / MEMORY_LOCK_NAME):
                tasks.start_soon(requests._remember, messages.MemorySave("key", 1, call="0#2"), Call())
                await anyio.sleep(0.05)
                assert await on_thread(sum, [1, 2]) == 3


async def test_who_waits_for_its_turn_keeps_nobody_from_searching(stuck):
    async with Fleet([]) as fleet:
        catalog = Catalog(fleet)
        tools = [{"name": f"tool_{number}", "inputSchema": {"type": "object"}} for number in range(300)]
        catalog.add_local(SimpleNamespace(listing=lambda: listing_from_wire("local", "local", tools)))
        found = await beside(stuck, lambda: catalog.search("tool_7"))
    assert found.hits


class _Script:
    """A script of which nothing is recorded."""

    execution = "x"
    programs = SimpleNamespace(ended=None, left=None)


async def test_an_error_from_a_thread_keeps_nothing_alive():
    import gc
    import weakref

    class Large(str):
        __slots__ = ("__weakref__",)

    def refuses(value):
        raise ValueError(len(value))

    value = Large("x" * (LARGE_CHARS + 1))
    seen = weakref.ref(value)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            await off_loop(value, refuses, value)
        del value
        # The thread lets go of it a moment after its result is there.
        with anyio.fail_after(60):
            while seen() is not None:  # noqa: ASYNC110 - nothing announces it
                await anyio.sleep(0.01)
    finally:
        gc.enable()


async def test_a_request_that_fails_is_not_kept_by_its_error(tmp_path):
    import gc
    import weakref

    class Large(str):
        __slots__ = ("__weakref__",)

    script = _Script()
    script.hold = SimpleNamespace(calls=())
    gate = SimpleNamespace(tools=SimpleNamespace(catalog=None, servers={}), values=None)
    requests = Requests("local", Memories(tmp_path), None, None, gate, None, None, script)
    request = messages.MemorySave("key", Large("x" * 100), call="0#2")
    seen = weakref.ref(request.value)

    async def refuses(request, context):
        raise BridgeError("bad_request", "no")

    requests._answer = refuses
    gc.disable()
    try:
        with contextlib.suppress(BridgeError):
            await requests.answer(request, NO_REQUEST)
        del request
        assert seen() is None
    finally:
        gc.enable()


# --- who is charged, with real parts ---

SEQUENTIAL = """
from mcp.servers import faulty
for number in range(60): await faulty.echo(text=str(number))
"""

FLOOD = """
import asyncio
from mcp.servers import faulty
await asyncio.gather(*(faulty.echo(text=str(number)) for number in range(60)))
"""

LARGE = """
from mcp.servers import faulty
await faulty.echo(text="x" * 3_000_000)
"""


@pytest.fixture
def charges(monkeypatch):
    """Seconds, by tenant, in the order in which they were charged first."""
    found = {}
    charge = Tenant.charge

    def noted(self, seconds):
        found[self] = found.get(self, 0.0) + seconds
        charge(self, seconds)

    monkeypatch.setattr(Tenant, "charge", noted)
    return found


async def test_floods_and_large_values_are_charged_and_one_call_after_the_other_is_not(sandboxes, charges):
    async with sandboxes.open(faulty("plain")) as bridge:
        used = {}
        for name, code in (("sequential", SEQUENTIAL), ("flood", FLOOD), ("large", LARGE)):
            charges.clear()
            printed(await bridge.run(code, timeout=60))
            used[name] = max(charges.values())
    # How many of them are under way at once is the machine's business; that some are isn't.
    assert used["flood"] > used["sequential"] + 10 * REQUEST_SECONDS, used
    # More than its bytes at the intake: what is done with it, too.
    assert used["large"] > 1.01 * 3_000_000 * BYTE_SECONDS, used


async def test_a_server_is_one_party_in_all_of_its_lives(sandboxes, monkeypatch):
    made = []
    init = Tenant.__init__

    def noted(self, shared=None, **whose):
        made.append(self)
        init(self, shared, **whose)

    async with sandboxes.open(faulty("plain")) as bridge:
        code = "from mcp.servers import faulty\nprint(len(str(await faulty.echo(text='1'))))"
        printed(await bridge.run(code, timeout=60))
        server = bridge.fleet.servers["faulty"]
        first = server._tenant
        assert first is not None
        server.stop()
        await server.wait_ended()
        monkeypatch.setattr(Tenant, "__init__", noted)
        printed(await bridge.run(code, timeout=60))
        assert server._tenant is first
        # Of the execution alone.
        assert len(made) == 1


async def test_a_result_is_charged_to_who_has_asked_for_it(sandboxes, charges):
    async with sandboxes.open(faulty("plain")) as bridge:
        code = "from mcp.servers import faulty\nprint(len(str(await faulty.echo(text='x' * 2_000_000))))"
        assert int(printed(await bridge.run(code, timeout=60))) >= 2_000_000
        server = bridge.fleet.servers["faulty"]
        assert charges.get(server._tenant, 0.0) < max(charges.values()) / 10, json.dumps(list(charges.values()))
        connection = server._latest
        assert connection is not None
        assert connection.transport._askers == {}
