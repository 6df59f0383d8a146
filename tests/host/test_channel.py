"""The host's end of the channel, and who ends a sandbox that rests, at moments that no real guest can be brought to."""

import time
from types import SimpleNamespace

import anyio
import anyio.lowlevel
import pytest

from mcp_bridge import fair_share
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.scripts.held_calls import HeldCalls
from mcp_bridge.host import sandbox_run, script_activity
from mcp_bridge.host.channel import ChannelLimits, HostChannel
from mcp_bridge.host.sandbox_run import RunLimits, SandboxRun
from mcp_bridge.wire import jsonrpc, messages

LIMITS = ChannelLimits(1, 100, 10**6)


def frame(message, number=None):
    if number is None:
        return jsonrpc.encode(messages.notification(message))
    method = messages.NAMES[type(message)]
    return jsonrpc.encode(jsonrpc.Request(number, method, messages.encode_params(message)))


def call(number, tool="held"):
    return frame(messages.ToolCall("s", tool, {}), number)


FINISH = frame(messages.ExecutionFinish(0), 9)


class Guest:
    """Both ends of a guest's pipes: `say` is read at once."""

    def __init__(self):
        self._send, self._receive = anyio.create_memory_object_stream(100)
        self.heard = b""
        self.stdin = self.stdout = self.stderr = self

    def say(self, *frames):
        for each in frames:
            self._send.send_nowait(each)

    async def receive(self, _size=0):
        return await self._receive.receive()

    async def send(self, data):
        await anyio.lowlevel.checkpoint()
        self.heard += data

    async def aclose(self):
        pass

    async def wait(self):
        await anyio.sleep_forever()

    def __aiter__(self):
        return self

    async def __anext__(self):
        await anyio.sleep_forever()


@pytest.fixture
def guest():
    made = Guest()
    with made._send, made._receive:
        yield made


class Waiting:
    """As `Requests`: each call waits for what nobody can give, until it is taken back."""

    principal = "local"
    only_waits = False

    def __init__(self):
        self.hold = HeldCalls()
        self.rested = self.hold.begun

    async def answer(self, request, context):
        def let_go():
            self.hold.remove(request.tool)

        context.release_slot()
        self.hold.add(SimpleNamespace(call=request.tool))
        context.on_cancel(let_go)
        try:
            await anyio.sleep_forever()
        finally:
            if context.is_cancelled:
                let_go()

    def begun(self):
        pass

    async def cancelled_before_start(self, request, context):
        pass

    async def divergence(self):
        await anyio.sleep_forever()

    async def on_hold(self):
        await self.rested()


async def run(guest, requests, recorded=None, live=None):
    limits = RunLimits(60, 60, 60, 1 << 20, LIMITS)
    with anyio.fail_after(30):
        return await SandboxRun(guest, "e", b"", limits, requests, None, time.monotonic(), live, recorded).run()


class Told:
    """As `Requests` and `LiveOutput`: takes down what it is asked for, and told."""

    principal = "local"

    def __init__(self):
        self.taken = []

    async def answer(self, request, context):
        self.taken.append(type(request).__name__)

    def printed(self):
        self.taken.append("printed")

    async def follow(self, *_args):
        await anyio.sleep_forever()

    async def project(self, value):
        return value

    def begun(self):
        pass

    async def cancelled_before_start(self, request, context):
        pass

    async def divergence(self):
        await anyio.sleep_forever()

    on_hold = divergence


SAID = (frame(messages.GuestReady("3.11")), frame(messages.ExecutionBegun()), call(1))


async def test_nothing_that_a_sandbox_sends_is_taken_before_its_start_is_recorded(guest):
    requests, durable = Told(), anyio.Event()
    guest.say(*SAID, frame(messages.OutputWrite("stdout", "text")), FINISH)
    records = []

    async def runs():
        records.append(await run(guest, requests, durable.wait, requests))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runs)
        await anyio.wait_all_tasks_blocked()
        assert requests.taken == []
        durable.set()
    assert records[0].status == "success"
    assert set(requests.taken) == {"ToolCall", "printed"}


async def test_a_script_whose_start_cant_be_recorded_never_ran(guest):
    async def fails():
        await anyio.wait_all_tasks_blocked()
        raise BridgeError("not_recorded", "The disk is full.")

    requests = Told()
    guest.say(*SAID, FINISH)
    with pytest.raises(BridgeError) as caught:
        await run(guest, requests, fails, requests)
    assert caught.value.code == "not_recorded"
    assert requests.taken == []


@pytest.mark.parametrize("last", [FINISH, frame(messages.RequestCancel(1))], ids=["finishes", "takes back"])
async def test_what_comes_once_a_script_is_being_suspended_takes_back_nothing_of_what_it_waits_for(
    guest, monkeypatch, last
):
    monkeypatch.setattr(script_activity, "QUIET_SECONDS", 0.0)
    requests, rests = Waiting(), anyio.Event()
    requests.rested = rests.wait
    end = SandboxRun._end

    def ends_late(self, *args):
        # In the same turn of the loop: it has been received when the sandbox is ended.
        guest.say(last)
        end(self, *args)

    monkeypatch.setattr(SandboxRun, "_end", ends_late)
    guest.say(frame(messages.GuestReady("3.11")), call(1))
    records = []

    async def runs():
        records.append(await run(guest, requests))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runs)
        await requests.hold.begun()
        await anyio.wait_all_tasks_blocked()
        rests.set()
    assert (records[0].status, list(requests.hold.calls)) == ("suspended", ["held"])


@pytest.mark.parametrize("is_over_at_once", [True, False])
async def test_a_script_that_is_over_at_once_is_run_without_a_task_that_watches_it(guest, monkeypatch, is_over_at_once):
    seen = []

    class Watched(SandboxRun):
        async def _hold_limits(self):
            seen.append("limits")
            await super()._hold_limits()

        async def _read_reports(self):
            seen.append("reports")
            await super()._read_reports()

    monkeypatch.setattr(sandbox_run, "WATCH_SECONDS", 3600.0 if is_over_at_once else 0.0)
    limits = RunLimits(60, 60, 60, 1 << 20, LIMITS)
    told = Told()
    told.on_hold = told.divergence = anyio.sleep_forever
    made = Watched(guest, "e", b"script", limits, told, None, time.monotonic())
    records = []

    async def runs():
        records.append(await made.run())

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runs)
            if not is_over_at_once:
                while len(seen) < 2:
                    await anyio.lowlevel.checkpoint()
            guest.say(frame(messages.GuestReady("3.11")), frame(messages.ExecutionBegun()), FINISH)
    assert records[0].status == "success"
    assert seen == ([] if is_over_at_once else ["reports", "limits"])


async def test_a_guest_is_told_to_leave_by_whoever_removes_its_container(guest):
    guest.say(frame(messages.GuestReady("3.11")), frame(messages.ExecutionBegun()), FINISH)
    limits = RunLimits(60, 60, 60, 1 << 20, LIMITS)
    made = SandboxRun(guest, "e", b"script", limits, Told(), None, time.monotonic())
    assert made.acknowledgement == b""
    with anyio.fail_after(30):
        assert (await made.run()).status == "success"
    assert jsonrpc.decode(made.acknowledgement) == jsonrpc.Response(9, {})
    assert made.acknowledgement not in guest.heard


async def test_whoever_waits_for_a_call_to_wait_is_told_while_one_does():
    hold, one, seen = HeldCalls(), SimpleNamespace(call="one"), []

    async def watch():
        await hold.begun()
        seen.append(list(hold.calls))

    async def remove():
        hold.remove("one")

    hold.add(one)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        tasks.start_soon(remove)
    assert seen == [["one"]]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await anyio.wait_all_tasks_blocked()
        hold.add(one)
        hold.remove("one")
        await anyio.wait_all_tasks_blocked()
        assert len(seen) == 1
        hold.add(one)
    assert seen == [["one"]] * 2


def channel(guest, answer):
    return HostChannel(guest, guest, LIMITS, answer, lambda _: None, lambda _: None)


async def test_a_request_that_is_taken_back_while_it_waits_for_a_place_is_not_worked_on_any_more(guest):
    go, release, aside, inside = (anyio.Event() for _ in range(4))

    async def answer(request, context):
        if request.tool == "first":
            context.release_slot()
            aside.set()
            await go.wait()
            await context.reacquire_slot()
        else:
            inside.set()
            await release.wait()
        return {"value": 1}

    served = channel(guest, answer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.serve)
        guest.say(call(1, "first"))
        await aside.wait()
        guest.say(call(2, "second"))
        await inside.wait()
        go.set()
        await anyio.wait_all_tasks_blocked()
        assert served.quiet_seconds == 0
        guest.say(frame(messages.RequestCancel(1)))
        await anyio.wait_all_tasks_blocked()
        release.set()
        with anyio.fail_after(30):
            while not served.quiet_seconds:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_who_stops_serving_pays_for_nothing_more(guest):
    with anyio.CancelScope() as scope:
        scope.cancel()
        await channel(guest, None).serve()
    assert fair_share.current.get() is None


async def test_who_is_no_longer_served_keeps_nobody_waiting(guest):
    served = channel(guest, None)
    served._tenant.mark_active()
    other = fair_share.Tenant()
    other.charge(fair_share.BURST_SECONDS + 1.0)
    assert not other.has_turn()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await served.serve()
    assert other.has_turn()
