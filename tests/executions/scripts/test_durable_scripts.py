"""Scripts as executions that last: whatever kills their host, nothing done is done again, and what can go on goes on."""

import asyncio
import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from script_hosts import HEAD, Hosts, ended, make_hosts, make_javascript_hosts, source  # noqa: F401

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.idempotency.request_identity import Keys
from mcp_bridge.executions.lifecycle import Lifecycle
from mcp_bridge.executions.replay import replayed
from mcp_bridge.executions.scripts.lifecycle import Scripts
from mcp_bridge.executions.scripts.settling import cancel_script
from mcp_bridge.executions.status import effective_status
from mcp_bridge.executions.trace_record import to_record
from mcp_bridge.ledger.log.recorder import MemoryRecorder
from mcp_bridge.ledger.storage.execution_store import StoredExecution

pytestmark = pytest.mark.usefixtures("whole_ledgers")


@pytest.fixture
def hosts(make_hosts):
    return make_hosts("hosts")


@pytest.fixture(params=["make_hosts", "make_javascript_hosts"])
def either(request):
    """Hosts of scripts in one of the languages."""
    return request.getfixturevalue(request.param)("hosts")


# --- killed ---

SEQUENTIAL = """
first = await local.once(text="a")
second = await local.again(text="b")
print(first, second, await local.once(text="c"))
"""
GATHERED = """
async def wait(text, seconds):
    return await local.once(text=text, seconds=seconds)
print(await asyncio.gather(wait("a", 0.3), wait("b", 0.05), wait("c", 0.15)))
print(await local.once(text="d"))
"""
RACED = """
names = []
for one in asyncio.as_completed([local.once(text=text, seconds=s) for text, s in (("a", 0.4), ("b", 0), ("c", 0.2))]):
    names.append(await one)
    print(await local.once(text="+".join(names)))
"""
THREADED = """
from concurrent.futures import ThreadPoolExecutor
from mcp.sync.servers import local as blocking
with ThreadPoolExecutor(2) as pool:
    print(list(pool.map(lambda text: blocking.once(text=text), "abc")))
print(await asyncio.to_thread(blocking.once, text="d"))
"""
NESTED = """
async def branch(text):
    first = await local.once(text=text)
    async with asyncio.TaskGroup() as group:
        rest = [group.create_task(local.once(text=f"{text}{number}")) for number in (1, 2)]
    return first, *(one.result() for one in rest)
print(await asyncio.gather(branch("a"), branch("b")))
"""

KILLS = {
    SEQUENTIAL: ["before:once c", "in:once c", "in:again b", "outcome:once a", "after:once a", "end"],
    GATHERED: ["in:once c", "after:once a"],
    RACED: ["before:once once:b+once:c", "after:once once:b"],
    THREADED: ["in:once b", "after:once c"],
    NESTED: ["in:once b", "after:once b2"],
}
SAID = {
    SEQUENTIAL: "once:a again:b once:c\n",
    GATHERED: "['once:a', 'once:b', 'once:c']\nonce:d\n",
    RACED: "once:once:b\nonce:once:b+once:c\nonce:once:b+once:c+once:a\n",
    THREADED: "['once:a', 'once:b', 'once:c']\nonce:d\n",
    NESTED: "[('once:a', 'once:a1', 'once:a2'), ('once:b', 'once:b1', 'once:b2')]\n",
}


@pytest.mark.parametrize("code", KILLS)
def test_whatever_kills_its_host_a_script_goes_on_and_repeats_nothing(make_hosts, code):
    def killed(die):
        hosts = make_hosts(die.replace(":", " "))
        hosts.run(code, die=die)
        assert effective_status(asyncio.run(hosts.stored())) == "interrupted"
        record = hosts.finish(code)
        assert (record["status"], record["stdout"]) == ("success", SAID[code])
        once = [line for line in hosts.done if line.startswith("once")]
        assert len(once) == len(set(once)), "something was done twice"
        assert hosts.run(code) == record
        assert [line for line in hosts.done if line.startswith("once")] == once

    with ThreadPoolExecutor(3) as pool:
        # Each killed host, with those that follow it, by itself.
        list(pool.map(killed, KILLS[code]))


# --- in doubt ---

CAUGHT = """
try:
    print(await local.once(text="a"))
except Exception as exc:
    print(type(exc).__name__, exc.code, exc)
"""


async def test_what_may_have_happened_waits_for_a_person_and_a_lost_host_of_another_tool_is_no_doubt(hosts):
    hosts.run(CAUGHT, die="in:once a")
    record = hosts.run(CAUGHT)
    assert (record["status"], record["exit_code"], record["error"]["code"]) == ("suspended", 5, "in_doubt")
    assert [(row["call"], row["tool"], row["arguments"]) for row in record["error"]["calls"]] == [
        ("0#1", "local.once", {"text": "a"})
    ]
    assert f"mcp-bridge execution settle {record['execution']} 0#1" in record["error"]["hint"]
    assert hosts.run(CAUGHT) == record
    shown = to_record(await hosts.stored())
    assert (shown["status"], shown["waiting"][0]["kind"], shown["waiting"][0]["step"]) == (
        "suspended",
        "in_doubt",
        "0#1",
    )
    settled = hosts.settle(record["execution"], how="failed", message="the bank knows nothing")
    assert settled["status"] == "interrupted"
    assert hosts.settle(record["execution"], how="not_done")["code"] == "not_in_doubt"
    last = hosts.run(CAUGHT)
    assert (last["status"], last["stdout"]) == ("success", "ToolError failed the bank knows nothing\n")
    assert hosts.done == ["once a"]
    kinds = [entry.kind for entry in await hosts.entries()]
    assert kinds == ["start", "intent", "resume", "suspension", "decision", "outcome", "suspension", "resume", "end"]


async def test_a_settled_script_can_go_on_at_once(hosts):
    hosts.run(SEQUENTIAL, die="before:once c")
    suspended = hosts.run(SEQUENTIAL)
    ended_so = hosts.settle(suspended["execution"], "0#3", how="not_done", go_on=True)
    assert (ended_so["status"], ended_so["stdout"]) == ("success", SAID[SEQUENTIAL])
    assert hosts.done == ["once a", "again b", "once c"]


@pytest.mark.parametrize("key", ["key", None])
async def test_a_call_that_the_time_out_cut_short_is_in_doubt_if_there_is_a_key(hosts, key):
    hosts.settings |= {"timeout": 1, "wall_timeout": 2}
    code = "await local.once(text='a', seconds=60)"
    record = hosts.run(code, key)
    kept = await hosts.entries()
    if key is None:
        assert (record["status"], record["error"]["code"]) == ("timeout", "wall_timeout")
        assert [entry.payload["status"] for entry in kept if entry.kind == "outcome"] == ["interrupted"]
        return
    assert (record["status"], record["error"]["code"]) == ("suspended", "in_doubt")
    assert "took 2 s" in record["error"]["message"]
    assert [entry.kind for entry in kept] == ["start", "intent", "suspension"]
    hosts.settle(record["execution"], how="happened", value="done")
    assert hosts.run(code, key)["value"] == "'done'"


async def test_what_the_script_itself_gave_up_is_neither_repeated_nor_in_doubt(hosts):
    code = """
try:
    await asyncio.wait_for(local.once(text="slow", seconds=60), 0.2)
except TimeoutError:
    print("late")
print(await local.again(text="b"))
"""
    hosts.run(code, die="before:again b")
    record = hosts.run(code)
    assert (record["status"], record["stdout"]) == ("success", "late\nagain:b\n")
    intents = [entry.payload["arguments"]["text"] for entry in await hosts.entries() if entry.kind == "intent"]
    assert intents == ["slow", "b", "b"]


# --- another way than it went ---


async def test_a_script_that_asks_for_something_else_is_stopped_before_it_does_harm(hosts):
    code = """
import os
await local.once(text="a")
await local.again(text=os.urandom(4).hex())
await local.again(text="c")
"""
    hosts.run(code, die="before:again c")
    record = hosts.run(code)
    assert (record["status"], record["error"]["code"], record["error"]["call"]) == ("error", "divergence", "0#2")
    recorded, asked = record["error"]["recorded"], record["error"]["asked"]
    assert recorded["tool"] == asked["tool"] == "local.again"
    assert recorded["arguments"] != asked["arguments"]
    done = hosts.done
    assert len(done) == 2
    hosts.settings["ledger"] = {"retry_failed": True}
    assert hosts.run(code) == record
    assert hosts.done == done
    assert effective_status(await hosts.stored()) == "suspended"
    assert hosts.cancel(record["execution"])["status"] == "cancelled"
    hosts.settings["ledger"] = {}
    assert hosts.run(code)["status"] == "cancelled"


# What there is in the catalogue is not recorded.
CHANGING = """
from mcp import runtime
await local.once(text="a")
if "extra" in await runtime.describe("local", "line"):
    await local.once(text="b")
"""


# The same under another name: in a task at first, and then without one.
MOVING = """
from mcp import runtime
if "extra" in await runtime.describe("local", "line"):
    await asyncio.create_task(local.once(text="a"))
else:
    await local.once(text="a")
"""


async def test_what_was_done_is_not_done_under_another_name(hosts):
    hosts.run(MOVING, die="end", extra=True)
    record = hosts.run(MOVING, patience=1)
    assert hosts.done == ["once a"]
    error = record["error"]
    assert (record["status"], error["code"], error["call"]) == ("error", "divergence", "0#1")
    assert error["instead_of"].startswith("0.")
    assert error["recorded"]["arguments"] == error["asked"]["arguments"] == {"text": "a"}
    assert "was not asked for: local.once" in error["message"]


async def test_a_call_that_was_made_and_is_not_asked_for_again_is_told(hosts):
    hosts.run(CHANGING, die="end", extra=True)
    record = hosts.run(CHANGING)
    assert (record["status"], record["error"]["code"]) == ("error", "divergence")
    assert (record["error"]["recorded"]["arguments"], record["error"]["asked"]) == ({"text": "b"}, None)


async def test_a_call_more_is_a_difference_for_a_replay_and_nothing_for_a_script_that_goes_on(hosts):
    record = hosts.run(CHANGING, key=None)
    found = hosts.replay(record["execution"], extra=True)
    assert (found["agrees"], found["difference"]["what"], found["difference"]["step"]) == (False, "call", "0#2")
    assert (found["difference"]["expected"], found["difference"]["found"]["arguments"]) == (None, {"text": "b"})
    assert hosts.done == ["once a"]


# --- replay ---

EVERYTHING = """
from mcp import runtime, programs
from mcp.sync.servers import local as blocking
async def tried(call):
    try:
        return await call
    except Exception as exc:
        return type(exc).__name__, exc.code, str(exc)
print(await tried(local.failing(text="a")), await tried(local.forbidden(text="a")), await tried(local.once.raw(text="a")))
print(await tried(runtime.call_tool("local", "nothing")), (await local.card())["number"])
await runtime.save_memory("n", 1 + await runtime.load_memory("n", 0))
print(await runtime.load_memory("n"), await runtime.list_memories())
for one in asyncio.as_completed([local.once(text="b", seconds=0.2), asyncio.to_thread(blocking.again, "c")]):
    print(await one)
trace = await programs.run({"steps": [{"id": "one", "type": "tool", "tool": "once", "args": {"text": "d"}}]})
print(trace.status, trace.output, trace.trace_id)
"the value"
"""


@pytest.mark.parametrize("key", ["key", None])
async def test_a_replay_agrees_and_does_nothing(hosts, key):
    record = hosts.run(EVERYTHING, key)
    assert record["status"] == "success", record["error"]
    done = hosts.done
    entries = await hosts.entries()
    found = hosts.replay(record["execution"])
    assert found["agrees"], (found["difference"]["expected"], found["difference"]["found"])
    assert (found["kind"], found["status"], found["events"]) == ("script", "success", 12)
    assert hosts.done == done == ["failing a", "once a", "card ", "again c", "once b", "once d"]
    assert await hosts.entries() == entries
    assert hosts.replay(record["execution"])["transitions"] == found["transitions"]


DRIVING = """
from mcp_bridge.wire import messages
channel = local.__dict__["__bridge__"]._calls.channel
for ask in (messages.ProgramEffect("0" * 32, 1), messages.ProgramFinish("0" * 32, "0" * 64)):
    try:
        channel.request(ask)
    except Exception as exc:
        print(exc.data["code"])
"""


async def test_a_replay_records_nothing_whatever_its_sandbox_asks_for(hosts):
    record = hosts.run(DRIVING, key=None)
    entries = await hosts.entries()
    assert [entry.kind for entry in entries].count("violation") == 2
    assert hosts.replay(record["execution"])["agrees"]
    assert await hosts.entries() == entries


def left(status, **fields):
    """A script's execution, as it is kept."""
    empty = dict.fromkeys(("key", "state", "record", "due")) | {"request": "", "program": "", "owner": ""}
    bundle = {"code": "1", "servers": ["gone"], "timeout": None}
    known = {"id": "a1", "kind": "script", "principal": "me", "origin": "agent", "started": 0.0, "bundle": bundle}
    return StoredExecution(**empty | known | {"status": status} | fields)


async def test_a_replay_that_can_not_be_says_why_and_what_helps():
    class Runner:
        def gate(self, *_, **__):
            raise BridgeError("unknown_server", "There is no server 'gone'.", server="gone")

    for stored, words in (
        (left("interrupted"), ("mcp-bridge execution cancel",)),
        (left("running", owner="x"), ("under way", "again when it has ended")),
        (left("success", record={"stdout": ""}), ("'gone'", "Configure it again")),
    ):
        with pytest.raises(BridgeError) as caught:
            await replayed(None, MemoryRecorder(), stored, runner=Runner())
        assert caught.value.code == "not_replayable"
        assert all(word in str(caught.value) for word in words), str(caught.value)


async def test_who_can_not_go_on_with_a_script_is_told_the_way_out():
    lifecycle = Lifecycle(None, None, Keys(b"k"))
    scripts = Scripts(lifecycle, "me", None)
    for work, command in (
        (scripts.resume(left("interrupted"), None), "cancel a1"),
        (scripts.resume(left("success"), None), "show a1"),
        (cancel_script(lifecycle, left("success"), "enough"), "show a1"),
    ):
        with pytest.raises(BridgeError) as caught:
            await work
        assert (caught.value.code, f"mcp-bridge execution {command}" in caught.value.hint) == ("not_suspended", True)


async def test_a_replay_tells_what_is_not_the_same(hosts):
    record = hosts.run("import os\nprint(os.urandom(4).hex())", key=None)
    found = hosts.replay(record["execution"])
    assert (found["agrees"], found["difference"]["what"]) == (False, "stdout")
    assert found["difference"]["expected"] == record["stdout"] != found["difference"]["found"]
    hosts.run(SEQUENTIAL, die="end")
    assert hosts.replay((await hosts.stored()).id)["code"] == "not_replayable"


# --- keys ---


async def test_fifty_callers_in_several_processes_run_it_once_and_get_one_answer(hosts):
    asked = {"code": HEAD + SEQUENTIAL, "key": "one", "many": 13}
    outs = [hosts.start(run=asked) for _ in range(4)]
    records = [ended(out) for out in outs]
    assert all(record == records[0] for record in records)
    assert (records[0]["status"], hosts.done) == ("success", ["once a", "again b", "once c"])
    assert hosts.run(CAUGHT, "one")["code"] == "key_conflict"
    assert hosts.done == ["once a", "again b", "once c"]


async def test_a_failure_is_told_as_a_failure_and_tried_again_only_where_the_operator_says_so(hosts):
    code = "await local.once(text='a')\nraise ValueError('no')"
    record = hosts.run(code)
    assert (record["status"], record["error"]["type"]) == ("error", "ValueError")
    assert hosts.run(code) == record
    assert hosts.done == ["once a"]
    hosts.settings["ledger"] = {"retry_failed": True}
    second = hosts.run(code, many=3)
    assert (second["status"], second["execution"] != record["execution"]) == ("error", True)
    assert hosts.done == ["once a"] * 2
    hosts.settings["ledger"] = {}
    assert hosts.run(code) == second


async def test_a_program_and_a_script_share_no_key(sandboxes, tmp_path):
    async with sandboxes.open(state_dir=tmp_path) as bridge:
        program = {"steps": [{"id": "rest", "type": "wait", "seconds": 0}]}
        assert (await bridge.run_program(program, key="one"))["status"] == "success"
        with pytest.raises(BridgeError) as caught:
            await bridge.run("1", key="one")
        assert caught.value.code == "key_conflict"
        for bad in ("", "a\nb", "x" * 1001):
            with pytest.raises(BridgeError) as caught:
                await bridge.run("1", key=bad)
            assert caught.value.code == "bad_key"


# --- what a script has besides calls ---


@pytest.mark.parametrize("die", ["in:once b", "before:again c"])
async def test_a_program_that_a_script_runs_is_joined_when_the_script_is_run_again(either, die):
    hosts = either
    code = {
        "python": """
from mcp import programs
steps = [{"id": x, "type": "tool", "tool": "once", "args": {"text": x}} for x in ("a", "b")]
trace = await programs.run({"name": "p", "steps": steps})
print(trace.status, trace.output, await local.again(text="c"))
""",
        "javascript": """
import { programs } from "mcp";
const steps = ["a", "b"].map((text) => ({ id: text, type: "tool", tool: "once", args: { text } }));
const trace = await programs.run({ name: "p", steps });
console.log(trace.status, trace.output, await local.again({ text: "c" }));
""",
    }
    hosts.run(code, die=die)
    record = hosts.run(code)
    if die == "in:once b":
        (waits,) = record["waiting"]
        assert (record["status"], record["error"]["code"], record["stdout"]) == ("suspended", "still_waiting", "")
        assert (waits["kind"], waits["waiting"][0]["kind"]) == ("program", "in_doubt")
        assert hosts.run(code) == record
        hosts.settle(waits["execution"], how="happened", value="once:b")
        record = hosts.run(code)
    assert (record["status"], record["stdout"]) == ("success", "success once:b again:c\n")
    assert [line for line in hosts.done if line.startswith("once")] == ["once a", "once b"]


async def test_memories_and_sensitive_values_are_as_they_were(hosts):
    code = """
from mcp import runtime
count = await runtime.load_memory("n", 0) + 1
await runtime.save_memory("n", count)
number = (await local.card())["number"]
await local.again(text="first")
await local.again(text=f"{count} {number}")
print(count, number)
"""
    hosts.run(code, die="after:again first")
    record = hosts.run(code)
    assert record["status"] == "success"
    assert record["stdout"].startswith("1 vault://ref/")
    assert hosts.done == ["card ", "again first", "again 1 4111 1111 1111 1111"]


def test_what_waited_for_the_record_is_made_as_many_at_once_as_is_allowed(hosts):
    hosts.settings |= {"max_in_flight": 2}
    code = """
import time
await local.once(text="a")
began = time.monotonic()
await asyncio.gather(*(local.again(text=str(number), seconds=0.3) for number in range(6)))
print(time.monotonic() - began > 0.85)
"""
    hosts.run(code, die="after:once a")
    assert hosts.run(code)["stdout"] == "True\n"


LEFT = {
    "python": """
from mcp import programs
program = {"steps": [{"id": x, "type": "tool", "tool": "again", "args": {"text": x, "seconds": 1.0}} for x in "ab"]}
try:
    await asyncio.wait_for(programs.run(program, idempotency_key="k"), 1.5)
except TimeoutError:
    print("late")
trace = await programs.run(program, idempotency_key="k")
print(trace.status, trace.output)
await local.again(text="c")
""",
    "javascript": """
import { programs } from "mcp";
const step = (text) => ({ id: text, type: "tool", tool: "again", args: { text, seconds: 1 } });
const run = (signal?: AbortSignal) => programs.run({ steps: [step("a"), step("b")] }, {}, { idempotencyKey: "k", signal });
try {
  await run(AbortSignal.timeout(1500));
} catch (error) {
  console.log(error.name === "TimeoutError" ? "late" : error);
}
const trace = await run();
console.log(trace.status, trace.output);
await local.again({ text: "c" });
""",
}


@pytest.mark.parametrize("key", ["key", None])
async def test_a_program_that_took_too_long_goes_on_when_the_script_tries_again(either, key):
    hosts = either
    hosts.settings |= {"wall_timeout": 30, "timeout": 30}
    record = hosts.run(LEFT, key)
    assert (record["status"], record["stdout"]) == ("success", "late\nsuccess again:b\n")
    assert hosts.done == ["again a", "again b", "again c"]
    assert hosts.replay(record["execution"])["agrees"]


def test_a_script_that_left_a_program_leaves_it_again(hosts):
    hosts.run(LEFT, die="before:again c")
    assert hosts.run(LEFT)["stdout"] == "late\nsuccess again:b\n"
    assert hosts.done == ["again a", "again b", "again c"]


@pytest.mark.parametrize(
    "change", ["save_memory('n', n + 1)", "update_memory('n', {'n': n + 1})", "delete_memory('n')"]
)
def test_what_is_kept_is_changed_once_whatever_was_recorded_of_it(hosts, change):
    code = f"""
from mcp import runtime
n = await runtime.load_memory("n", 0)
n = n["n"] if isinstance(n, dict) else n
await runtime.{change}
print(n, await runtime.load_memory("n"))
"""
    kept = None if "delete" in change else {"n": 8} if "update" in change else 8
    hosts.run(
        f"from mcp import runtime\nawait runtime.save_memory('n', {7 if 'update' not in change else {'n': 7}})", "0"
    )
    hosts.run(code, die="kept:n")
    assert hosts.run(code)["stdout"] == f"7 {kept}\n"


async def test_what_was_used_of_the_limits_before_the_death_counts_after_it(hosts):
    code = "for n in range(45): await local.once(text=str(n))"
    hosts.run(code, die="after:once 29")
    record = hosts.run(code)
    assert (record["status"], "limit on tool calls" in record["error"]["message"]) == ("error", True)
    assert len(hosts.done) == len(set(hosts.done)) == 40


async def test_every_script_is_an_execution_with_its_entries(hosts):
    code = """
print(await local.once(text="a"))
try:
    await local.forbidden(text="b")
except Exception as exc:
    print(exc.code)
7
"""
    record = hosts.run(code, key=None)
    stored = await hosts.stored()
    assert (stored.id, stored.kind, stored.status, stored.record) == (record["execution"], "script", "success", record)
    assert stored.bundle == {"code": HEAD + code, "servers": None, "timeout": None}
    assert to_record(stored)["output"] == "7"
    rows = {entry.kind: entry.payload for entry in await hosts.entries()}
    assert (rows["start"]["code"], rows["intent"]["call"]) == (HEAD + code, "0#1")
    assert (rows["denial"]["call"], rows["denial"]["tool"]) == ("0#2", "local.forbidden")
    outcomes = [entry.payload for entry in await hosts.entries() if entry.kind == "outcome"]
    assert [(row["call"], row["status"], row.get("value", row.get("code"))) for row in outcomes] == [
        ("0#1", "ok", "once:a"),
        ("0#2", "failed", "denied"),
    ]
    assert rows["end"] == {
        "status": "success",
        "exit_code": 0,
        "error": None,
        "code": None,
        "stdout": hashlib.sha256(record["stdout"].encode()).hexdigest(),
        "stderr": hashlib.sha256(b"").hexdigest(),
        "value": hashlib.sha256(b"7").hexdigest(),
    }


async def test_a_name_that_is_used_twice_or_missing_is_a_violation(hosts):
    code = """
from mcp_bridge.wire import jsonrpc, messages
channel = local.__dict__["__bridge__"]._calls.channel
def call(text, name):
    try:
        return channel.request(messages.ToolCall("local", "once", {"text": text}, call=name))
    except Exception as exc:
        return exc.data["code"]
print(call("a", "0.9#1"), call("b", "0.9#1"), call("c", "0.8#1"))
body = {"server": "local", "tool": "once", "arguments": {"text": "d"}}
import queue
answers = queue.SimpleQueue()
channel._waiting[10**6] = answers.put
channel._write(jsonrpc.encode(jsonrpc.Request(10**6, "tool.call", body)))
print(answers.get().data["code"])
"""
    record = hosts.run(code)
    assert record["stdout"] == "{'value': 'once:a'} violation {'value': 'once:c'}\nviolation\n"
    assert hosts.done == ["once a", "once c"]
    assert [entry.kind for entry in await hosts.entries()].count("violation") == 2
