"""Work that grows with a value of a guest's or a server's is not done on the event loop, or is done in C."""

import json
import os
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Annotated

import anyio
import anyio.lowlevel
import pytest
from downstream_calls import call_tool
from program_cases import steps
from program_cases import tool as step
from program_tools import Tools, driven
from pydantic import AfterValidator
from registered_fixtures import fault, one, own_declarations  # noqa: F401
from servers.specs import faulty

from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.idempotency.request_identity import Keys
from mcp_bridge.executions.lifecycle import Lifecycle
from mcp_bridge.executions.programs import lifecycle as program_executions
from mcp_bridge.executions.programs import program_run
from mcp_bridge.executions.programs.lifecycle import Programs
from mcp_bridge.host.loop_watch import LoopStall, LoopStallMonitor
from mcp_bridge.kernel import machine as machine_module
from mcp_bridge.kernel import state
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.ledger.log import deduplication
from mcp_bridge.ledger.log.deduplication import Snapshot, split
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.record_limit import Allowance
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.offload import LARGE_VALUES
from mcp_bridge.policy.secrets import value_references
from mcp_bridge.policy.secrets.value_references import MemoryReferences
from mcp_bridge.registered.declaring import tool
from mcp_bridge.sandbox.pipes import PipeWriter
from mcp_bridge.server import app
from mcp_bridge.wire import jsonrpc
from mcp_bridge.wire.errors import WireError

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("own_declarations")]

MANY = 3 * LARGE_VALUES


def noted(monkeypatch, module, name):
    """The threads on which a function of a module is called from now on."""
    threads = []
    function = getattr(module, name)

    def called(*args):
        threads.append(threading.get_ident())
        return function(*args)

    monkeypatch.setattr(module, name, called)
    return threads


async def test_a_large_payload_is_encoded_by_the_thread_that_writes_in_its_place_and_as_it_was(monkeypatch, tmp_path):
    cut = noted(monkeypatch, deduplication, "_encode")
    async with Database(tmp_path / FILE_NAME) as database:
        recorder = SqliteRecorder(database)
        large = {"value": [[n] * 10 for n in range(MANY)], "text": "x" * 2000}
        as_it_was = json.loads(json.dumps(large))
        recorder.post(Entry("outcome", "a", {"n": 1}), Entry("outcome", "a", large), Entry("outcome", "a", {"n": 3}))
        large["value"][0].append("later")
        del large["text"]
        assert database._queued > 2 * MANY
        await database.flush()
        assert database._queued == 0
        assert [row.entry.payload for row in await recorder.read("a")] == [{"n": 1}, as_it_was, {"n": 3}]
    # The small ones at once, the large one elsewhere.
    assert cut.count(threading.get_ident()) == 2
    assert len(set(cut)) == 2


async def test_what_a_run_is_told_to_have_recorded_is_what_its_payloads_have(tmp_path):
    async with Database(tmp_path / FILE_NAME) as database:
        run = Allowance(database)
        run.counts("a")
        payloads = [{"value": list(range(MANY))}, {"value": [n / 7 for n in range(MANY)]}]
        await SqliteRecorder(database).append(*(Entry("outcome", "a", payload) for payload in payloads))
        assert run.logical == sum(len(json.dumps(payload, separators=(",", ":"))) for payload in payloads)
        assert run.posted == 0


@pytest.mark.parametrize(
    "value",
    [[1.5, -0.0, 10**40, True, None], {"1": [], "ä": {}, "\ud800": "\U0001f600"}, [(1, 2)], {1: 2}, ["x" * 5000]],
)
def test_a_snapshot_is_cut_as_the_payload_is(value):
    payload = {"value": value, "content": [{"text": "y" * 3000}]}
    assert Snapshot(payload).split() == split(payload)


async def test_a_large_state_is_written_down_off_the_loop(monkeypatch, tmp_path):
    threads = [noted(monkeypatch, module, "canonical") for module in (program_run, program_executions)]
    async with Database(tmp_path / FILE_NAME) as database, anyio.create_task_group() as tasks:
        service = Programs(Lifecycle(ProgramStore(database), SqliteRecorder(database), Keys(b"k" * 16)), {}, tasks)
        for thread in threads:
            thread.clear()
        ended = await service.start(steps(step("a")), {"x": list(range(MANY))}, "one", "me", Tools())
        assert (await driven(service, ended))["status"] == "success"
        asks = {"id": "b", "type": "approval", "message": "may it?"}
        left = await service.start(steps(asks), {"x": list(range(MANY))}, "two", "me", Tools())
        assert (await driven(service, left))["status"] == "suspended"
        kept = await service.lifecycle.stored(left.execution, "me")
        assert kept.state == state.dump(left.machine)
    assert all(threads)
    assert threading.get_ident() not in threads[0] + threads[1]


@pytest.mark.parametrize("text", ["[" + "[], " * 10_000 + "[]]", "no JSON " * 10_000], ids=["JSON", "none"])
async def test_a_large_text_is_parsed_off_the_loop_and_once(monkeypatch, tmp_path, text):
    threads, on_loop = [noted(monkeypatch, module, "parsed") for module in (program_run, machine_module)]

    async def give(_):
        return {"value": text}

    async with Database(tmp_path / FILE_NAME) as database, anyio.create_task_group() as tasks:
        service = Programs(Lifecycle(ProgramStore(database), SqliteRecorder(database), Keys(b"k" * 16)), {}, tasks)
        program = steps(step("a", parse="json"), step("b"))
        ended = await service.start(program, {}, "one", "me", Tools(a=give))
        record = await driven(service, ended)
    first = record["steps"][0]
    assert first.get("output", first.get("code")) == (json.loads(text) if text[0] == "[" else "not_json")
    assert on_loop == []
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_the_tree_of_a_state_stays_as_it_is_when_the_machine_goes_on():
    machine = Machine(parse(steps(step("a"))), {"x": 1})
    tree, before = state.tree(machine), state.dump(machine)
    machine.level.context["y"] = machine.level.outputs["a"] = 2
    assert state.canonical(tree) == before


async def test_large_arguments_and_results_of_an_operators_tool_are_checked_off_the_loop():
    threads = []

    def seen(value):
        threads.append(threading.get_ident())
        return value

    @tool
    async def echo(values: Annotated[list[int], AfterValidator(seen)]) -> list[int]:
        threads.append(threading.get_ident())
        return values

    found = one(echo)
    assert (await found.call("echo", {"values": [1]})).value == [1]
    # Small ones at once, and the tool itself always on the loop.
    assert set(threads) == {threading.get_ident()}
    threads.clear()
    assert len((await found.call("echo", {"values": list(range(MANY))})).value) == MANY
    assert threads[-1] == threading.get_ident() not in threads[:-1]


async def test_of_very_many_faults_the_first_are_named():
    @tool
    async def echo(values: list[int]) -> None:
        raise AssertionError

    error = await fault(one(echo), "echo", {"values": ["x"] * MANY})
    assert error.code == "bad_arguments"
    assert error.message.count("values[") == 3
    assert "values[2]" in error.message
    assert error.message.endswith("….")


async def test_others_get_their_turn_while_a_large_frame_is_written_to_a_quick_reader(monkeypatch):
    reading, writing = os.pipe()
    turns, parts, written = 0, [], False

    def taken_at_once(descriptor, data):
        assert descriptor == writing
        parts.append(min(len(data), 1 << 16))
        return parts[-1]

    async def victim():
        nonlocal turns
        while not written:
            turns += 1
            await anyio.lowlevel.checkpoint()

    writer = PipeWriter(writing)
    monkeypatch.setattr(os, "write", taken_at_once)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(victim)
        await writer.send(bytes(16 << 20))
        written = True
    monkeypatch.undo()
    await writer.aclose()
    os.close(reading)
    assert sum(parts) == 16 << 20
    assert turns >= len(parts) - 1


def test_references_in_a_large_value_are_found_without_a_walk_through_it(monkeypatch):
    kept = MemoryReferences()
    uris = [kept.put(f"value {number}") for number in range(3)]
    value = {"x": [*range(MANY), f"ä{uris[0]}x", {uris[1]: 1.5}], "y": uris[2][:-1]}
    found = kept.values_behind(value)
    assert sorted(found.values()) == ["value 0", "value 1"]

    def walked(value):
        raise AssertionError

    monkeypatch.setattr(value_references, "leaves", walked)
    assert kept.values_behind(value) == found


@pytest.mark.parametrize(
    ("element", "most"),
    [
        (b"1", 490_000),
        (b'"a,[{."', 490_000),
        (b"true", 490_000),
        (b"1.5", 245_000),
        (b"1e9", 245_000),
        (b"{}", 120_000),
    ],
)
def test_a_frame_may_have_half_a_million_plain_values_and_fewer_of_larger_ones(element, most):
    def frame(count):
        return b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":[' + b",".join([element] * count) + b"]}}"

    assert len(jsonrpc.decode(frame(most)).params["x"]) == most
    with pytest.raises(WireError) as caught:
        jsonrpc.decode(frame(most + 15_000))
    assert caught.value.code == "frame_too_large"


async def test_a_server_whose_listing_is_too_large_is_told_its_size_and_the_limit():
    async with Fleet([faulty("values")]) as fleet:
        with pytest.raises(BridgeError) as caught:
            await call_tool(fleet, "faulty", "echo", {})
    assert caught.value.code == "server_start_failed"
    assert "its listing is too large: an answer has" in caught.value.message
    assert "more than 500000 values" in caught.value.message


def test_what_holds_the_loop_much_longer_than_before_is_logged_within_the_minute(caplog):
    caplog.set_level("INFO", "mcp_bridge")
    watch = LoopStallMonitor(clock=lambda: 0.0)
    for busy in (0.05, 0.05, 0.06, 0.3, 0.3, 5.0, 4.0):
        watch._note(LoopStall(6.0, busy, "somebody"))
    assert [int(record.args[1]) for record in caplog.records] == [50, 300, 5000]


def test_what_the_first_call_needs_is_imported_ahead_on_a_thread_and_not_collected_again():
    code = """
import gc, sys, threading
from types import SimpleNamespace
import anyio
from mcp_bridge.server import app

first = {}

class Finder:
    def find_spec(self, name, path=None, target=None):
        first.setdefault(name, threading.current_thread() is threading.main_thread())

async def prepare():
    return None

sys.meta_path.insert(0, Finder())
async def main():
    begun = anyio.Event()
    begun.set()
    await app.prepare_ahead(begun, SimpleNamespace(sandboxes=SimpleNamespace(start_ahead=prepare), fleet=SimpleNamespace(servers={"a": 1})))

anyio.run(main)
needed = ["mcp_bridge.sandbox.open_driver", "mcp_bridge.gate.gate", "mcp_bridge.kernel.machine", "jsonschema.validators"]
assert all(name in sys.modules for name in needed)
assert not any(first.get(name) for name in needed), first
assert gc.get_freeze_count() > 10_000
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_nothing_is_prepared_before_the_client_has_been_told_the_tools(monkeypatch):
    monkeypatch.setattr(app, "BEGIN_SECONDS", 60.0)
    monkeypatch.setattr(app.gc, "freeze", lambda: None)
    begun, started = anyio.Event(), []

    async def start_ahead():
        started.append(begun.is_set())

    bridge = SimpleNamespace(sandboxes=SimpleNamespace(start_ahead=start_ahead), fleet=SimpleNamespace(servers={}))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app.prepare_ahead, begun, bridge)
        await anyio.wait_all_tasks_blocked()
        assert not started
        begun.set()
    assert started == [True]
