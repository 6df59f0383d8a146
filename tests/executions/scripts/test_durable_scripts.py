"""Scripts as executions that last: whatever kills their host, nothing done is done again, and what can go on goes on.

What holds in both languages is one case with a source in each.
"""

import asyncio
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from memory_recorder import MemoryRecorder
from script_hosts import (  # noqa: F401
    Hosts,
    either,
    ended,
    make_either,
    make_hosts,
    make_javascript_hosts,
    source,
)

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.approvals import with_decisions
from mcp_bridge.executions.idempotency.request_identity import Keys
from mcp_bridge.executions.lifecycle import Lifecycle
from mcp_bridge.executions.replay import replayed
from mcp_bridge.executions.scripts.lifecycle import Scripts
from mcp_bridge.executions.scripts.settle_or_cancel import cancel_script
from mcp_bridge.executions.sessions.cell import RENDERING_VERSION
from mcp_bridge.executions.status import effective_status
from mcp_bridge.executions.trace_record import to_record
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution
from mcp_bridge.ledger.storage.schema import FILE_NAME

pytestmark = pytest.mark.usefixtures("whole_ledgers")


@pytest.fixture
def hosts(make_hosts):
    return make_hosts("hosts")


# --- killed ---

SEQUENTIAL = {
    "python": """
first = await local.once(text="a")
second = await local.again(text="b")
print(first, second, await local.once(text="c"))
""",
    "javascript": """
const first = await local.once({text: "a"});
const second = await local.again({text: "b"});
console.log(first, second, await local.once({text: "c"}));
""",
}
TOGETHER = {
    "python": """
async def wait(text, seconds):
    return await local.once(text=text, seconds=seconds)
print(*await asyncio.gather(wait("a", 0.3), wait("b", 0.05), wait("c", 0.15)))
print(await local.once(text="d"))
""",
    "javascript": """
const wait = (text: string, seconds: number) => local.once({text, seconds});
console.log(...await Promise.all([wait("a", 0.3), wait("b", 0.05), wait("c", 0.15)]));
console.log(await local.once({text: "d"}));
""",
}
RACED = {
    "python": """
names = []
for one in asyncio.as_completed([local.once(text=text, seconds=s) for text, s in (("a", 0.4), ("b", 0), ("c", 0.2))]):
    names.append(await one)
    print(await local.once(text="+".join(names)))
""",
    "javascript": """
const names: string[] = [];
const left = new Map(Object.entries({a: 0.4, b: 0, c: 0.2}).map(
  ([text, seconds]) => [text, local.once({text, seconds}).then((value) => [text, value])]));
while (left.size > 0) {
  const [text, value] = await Promise.race(left.values());
  left.delete(text);
  names.push(value);
  console.log(await local.once({text: names.join("+")}));
}
""",
}
NESTED = {
    "python": """
async def leaf(text):
    return await local.once(text=text) + await local.again(text=f"{text}x")
async def branch(text):
    first = await local.once(text=text, seconds=0.2 if text == "a" else 0)
    async with asyncio.TaskGroup() as group:
        rest = [group.create_task(leaf(f"{text}{number}")) for number in (1, 2)]
    return ",".join([first, *(one.result() for one in rest)])
print(*await asyncio.gather(branch("a"), branch("b")))
""",
    "javascript": """
const leaf = async (text) => await local.once({text}) + await local.again({text: `${text}x`});
async function branch(text) {
  const first = await local.once({text, seconds: text === "a" ? 0.2 : 0});
  return [first, ...await Promise.all([1, 2].map((number) => leaf(text + number)))].join();
}
console.log(...await Promise.all([branch("a"), branch("b")]));
""",
}
THREADED = {
    "python": """
from concurrent.futures import ThreadPoolExecutor
from mcp.sync.servers import local as blocking
with ThreadPoolExecutor(2) as pool:
    print(*pool.map(lambda text: blocking.once(text=text), "abc"))
print(await asyncio.to_thread(blocking.once, text="d"))
""",
    # What happens outside of the order of the code, here.
    "javascript": """
const later = (text) => new Promise((resolve, reject) => setTimeout(
  () => local.once({text}).then(resolve, reject), Math.random() * 200));
console.log(...await Promise.all([later("a"), later("b"), later("c")]));
console.log(await later("d"));
""",
}

KILLS = {
    "one by one": (
        SEQUENTIAL,
        ["before:once c", "in:once c", "in:again b", "outcome:once a", "after:once a", "end"],
        "once:a again:b once:c\n",
    ),
    "together": (TOGETHER, ["in:once c", "after:once a"], "once:a once:b once:c\nonce:d\n"),
    "raced": (
        RACED,
        ["before:once once:b+once:c", "after:once once:b"],
        "once:once:b\nonce:once:b+once:c\nonce:once:b+once:c+once:a\n",
    ),
    "nested": (
        NESTED,
        ["in:once b", "after:once b2", "after:once a1"],
        "once:a,once:a1again:a1x,once:a2again:a2x once:b,once:b1again:b1x,once:b2again:b2x\n",
    ),
    "in threads, or by timers": (
        THREADED,
        ["in:once b", "after:once c", "after:once a"],
        "once:a once:b once:c\nonce:d\n",
    ),
}


@pytest.mark.parametrize("shape", KILLS)
def test_whatever_kills_its_host_a_script_goes_on_and_repeats_nothing(make_either, shape):
    code, points, said = KILLS[shape]

    def killed(die):
        hosts = make_either(die.replace(":", " "))
        hosts.run(code, die=die)
        assert effective_status(asyncio.run(hosts.stored())) == "interrupted"
        record = hosts.finish(code)
        assert (record["status"], record["stdout"]) == ("success", said), record
        once = [line for line in hosts.done if line.startswith("once")]
        assert len(once) == len(set(once)), "something was done twice"
        assert hosts.run(code) == record
        assert [line for line in hosts.done if line.startswith("once")] == once

    with ThreadPoolExecutor(3) as pool:
        # Each killed host, with those that follow it, by itself.
        list(pool.map(killed, points))


@pytest.mark.parametrize("shape", KILLS)
def test_a_replay_of_calls_side_by_side_agrees_and_does_nothing(either, shape):
    record = either.run(KILLS[shape][0])
    assert record["status"] == "success", record
    done = either.done
    replayed = either.replay(record["execution"])
    assert replayed["difference"] is None, replayed
    assert either.done == done


# --- in doubt ---

CAUGHT = {
    "python": """
try:
    print(await local.once(text="a"))
except Exception as exc:
    print(type(exc).__name__, exc.code, exc)
""",
    "javascript": """
try { console.log(await local.once({text: "a"})) } catch (error) { console.log(error.name, error.code, error.message) }
""",
}


async def test_what_may_have_happened_waits_for_a_person_and_a_lost_host_of_another_tool_is_no_doubt(either):
    hosts = either
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


async def test_a_settled_script_can_go_on_at_once(either):
    hosts = either
    hosts.run(SEQUENTIAL, die="before:once c")
    suspended = hosts.run(SEQUENTIAL)
    (call,) = suspended["error"]["calls"]
    ended_so = hosts.settle(suspended["execution"], call["call"], how="not_done", go_on=True)
    assert (ended_so["status"], ended_so["stdout"]) == ("success", "once:a again:b once:c\n")
    assert hosts.done == ["once a", "again b", "once c"]


@pytest.mark.parametrize("key", ["key", None])
async def test_a_call_that_the_time_out_cut_short_is_in_doubt_if_there_is_a_key(either, key):
    hosts = either
    hosts.settings |= {"timeout": 1, "wall_timeout": 2}
    code = {
        "python": "await local.once(text='a', seconds=60)",
        "javascript": "await local.once({text: 'a', seconds: 60})",
    }
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


async def test_a_fork_at_a_call_in_doubt_is_refused_and_says_so_until_that_is_settled(either):
    hosts = either
    hosts.run({"python": "x = 1", "javascript": "var x = 1"}, key=None, session="s")
    code = {"python": "x = await local.once(text='a')", "javascript": "x = await local.once({text: 'a'})"}
    hosts.run(code, session="s", die="in:once a")
    record = hosts.run(code, session="s")
    assert (record["status"], record["error"]["code"]) == ("suspended", "in_doubt")
    look = {"python": "x", "javascript": "x"}
    refused = hosts.run(look, key=None, session="t", fork="s@2")
    assert (refused["code"], "it is suspended, and has left nothing" in refused["message"]) == ("unknown_cell", True)
    # Without a number it is the last one that has left something.
    assert hosts.run(look, key=None, session="t", fork="s")["value"] == "1"
    hosts.settle(record["execution"], how="happened", value="done")
    assert hosts.run(code, session="s")["status"] == "success"
    assert hosts.run(look, key=None, session="u", fork="s@2")["value"] == "'done'"
    assert hosts.done == ["once a"]


async def test_what_the_script_itself_gave_up_is_neither_repeated_nor_in_doubt(either):
    hosts = either
    code = {
        "python": """
try:
    await asyncio.wait_for(local.once(text="slow", seconds=60), 0.2)
except TimeoutError as exc:
    print(type(exc).__name__)
print(await local.again(text="b"))
""",
        "javascript": """
try {
  await local.once({text: "slow", seconds: 60}, {signal: AbortSignal.timeout(200)});
} catch (error) {
  console.log(error.name);
}
console.log(await local.again({text: "b"}));
""",
    }
    hosts.run(code, die="before:again b")
    record = hosts.run(code)
    assert (record["status"], record["stdout"]) == ("success", "TimeoutError\nagain:b\n")
    intents = [entry.payload["arguments"]["text"] for entry in await hosts.entries() if entry.kind == "intent"]
    assert intents == ["slow", "b", "b"]


# --- approval and policy ---

ASKING = {
    "python": """
first = await local.once(text="a")
try:
    print(first, await local.careful(text="b"))
except Exception as exc:
    print(first, type(exc).__name__, exc.code)
""",
    "javascript": """
const first = await local.once({text: "a"});
try {
  console.log(first, await local.careful({text: "b"}));
} catch (error) {
  console.log(first, error.name, error.code);
}
""",
}


@pytest.mark.parametrize("approved", [True, False])
def test_an_approval_suspends_the_script_and_its_answer_goes_on_with_it(either, approved):
    hosts = either
    waiting = hosts.run(ASKING)
    assert waiting["status"] == "suspended", waiting
    (row,) = waiting["waiting"]
    assert (row["tool"], row["arguments"]) == ("local.careful", {"text": "b"})
    hosts.decide(waiting, approved=approved)
    record = hosts.run(ASKING)
    said = "once:a careful:b\n" if approved else "once:a ToolError denied\n"
    assert (record["status"], record["stdout"]) == ("success", said), record
    assert hosts.done == (["once a", "careful b"] if approved else ["once a"])


def test_a_call_that_the_policy_denies_is_an_error_that_is_recorded_and_has_no_effect(either):
    hosts = either
    code = {
        "python": """
from mcp import runtime
for call in (lambda: local.forbidden(text="a"), lambda: runtime.call_tool("local", "forbidden", {"text": "b"})):
    try: await call()
    except Exception as exc: print(type(exc).__name__, exc.code, exc.tool)
await local.once(text="c")
await local.forbidden(text="d")
""",
        "javascript": """
for (const call of [() => local.forbidden({text: "a"}), () => runtime.call_tool("local", "forbidden", {text: "b"})]) {
  try { await call() }
  catch (error) { console.log(error.name, error.code, error.tool) }
}

await local.once({text: "c"});
await local.forbidden({text: "d"});
""",
    }
    record = hosts.run(code)
    assert record["status"] == "error", record
    assert record["stdout"] == "ToolError denied forbidden\n" * 2
    line = len(hosts.whole(code).splitlines())
    assert (record["error"]["type"], record["error"]["line"]) == ("ToolError", line)
    assert hosts.done == ["once c"]
    denied = [entry.payload for entry in asyncio.run(hosts.entries()) if entry.kind == "denial"]
    assert [row["tool"] for row in denied] == ["local.forbidden"] * 3
    assert hosts.replay(record["execution"])["difference"] is None
    assert hosts.done == ["once c"]


# --- another way than it went ---


async def calls_of(hosts):
    """The names of the recorded calls, in order."""
    return [entry.payload["call"] for entry in await hosts.entries() if entry.kind == "intent"]


async def test_a_script_that_asks_for_something_else_is_stopped_before_it_does_harm(either):
    hosts = either
    code = {
        "python": """
import os
await local.once(text="a")
await local.again(text=os.urandom(4).hex())
await local.again(text="c")
""",
        "javascript": """
await local.once({text: "a"});
await local.again({text: String(Math.random())});
await local.again({text: "c"});
""",
    }
    hosts.run(code, die="before:again c")
    record = hosts.run(code)
    second = (await calls_of(hosts))[1]
    assert (record["status"], record["error"]["code"], record["error"]["call"]) == ("error", "divergence", second)
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


async def test_a_script_that_depends_on_how_long_a_call_took_goes_on_at_the_pace_of_its_calls(either):
    hosts = either
    code = {
        "python": """
import asyncio
task, n = asyncio.ensure_future(local.once(text="slow", seconds=1.5)), 0
while not task.done():
    await asyncio.sleep(0.3)
    n += 1
print(await local.once(text="soon" if n == 1 else "late"))
await local.again(text="end")
""",
        "javascript": """
let done = false, n = 0;
local.once({ text: "slow", seconds: 1.5 }).then(() => { done = true; });
while (!done) {
  await new Promise((next) => setTimeout(next, 300));
  n += 1;
}
console.log(await local.once({ text: n === 1 ? "soon" : "late" }));
await local.again({ text: "end" });
""",
    }
    hosts.run(code, die="before:again end")
    record = hosts.run(code)
    assert (record["status"], record["stdout"]) == ("success", "once:late\n"), record["error"]
    assert hosts.done == ["once slow", "once late", "again end"]


# Of what tools a server's functions are made is not recorded, nor which are offered for a name that never is one.
CHANGING = {
    "python": """
await local.once(text="a")
if "extra" in dir(local):
    await local.once(text="b")
""",
    "javascript": """
await local.once({text: "a"});
if ((await local.call().catch((error) => error.message)).includes("extra")) await local.once({text: "b"});
""",
}


# The same under another name: in a task at first, and then without one.
MOVING = {
    "python": """
if "extra" in dir(local):
    await asyncio.create_task(local.once(text="a"))
else:
    await local.once(text="a")
""",
    "javascript": """
if ((await local.call().catch((error) => error.message)).includes("extra")) {
  await Promise.resolve().then(() => local.once({text: "a"}));
} else {
  await local.once({text: "a"});
}
""",
}


async def test_what_was_done_is_not_done_under_another_name(either):
    hosts = either
    hosts.run(MOVING, die="end", extra=True)
    record = hosts.run(MOVING, patience=1)
    assert hosts.done == ["once a"]
    error = record["error"]
    assert (record["status"], error["code"], [error["instead_of"]]) == ("error", "divergence", await calls_of(hosts))
    assert error["call"] != error["instead_of"]
    assert error["recorded"]["arguments"] == error["asked"]["arguments"] == {"text": "a"}
    assert "was not asked for: local.once" in error["message"]


async def test_a_call_that_was_made_and_is_not_asked_for_again_is_told(either):
    hosts = either
    hosts.run(CHANGING, die="end", extra=True)
    record = hosts.run(CHANGING)
    assert (record["status"], record["error"]["code"]) == ("error", "divergence")
    assert (record["error"]["recorded"]["arguments"], record["error"]["asked"]) == ({"text": "b"}, None)


async def test_an_extra_call_fails_a_replay_but_not_a_resume(either):
    hosts = either
    record = hosts.run(CHANGING, key=None)
    found = hosts.replay(record["execution"], extra=True)
    assert (found["agrees"], found["difference"]["what"]) == (False, "call")
    assert found["difference"]["step"] not in await calls_of(hosts)
    assert (found["difference"]["expected"], found["difference"]["found"]["arguments"]) == (None, {"text": "b"})
    assert hosts.done == ["once a"]


# --- replay ---

EVERYTHING = {
    "python": """
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
""",
    # A program is Python's own.
    "javascript": """
const tried = async (call) => {
  try { return await call } catch (error) { return [error.name, error.code, error.message] }
};
console.log(await tried(local.failing({text: "a"})), await tried(local.forbidden({text: "a"})), await tried(local.once.raw({text: "a"})));
console.log(await tried(runtime.call_tool("local", "nothing")), (await local.card()).number);
await runtime.save_memory("n", 1 + await runtime.load_memory("n", 0));
console.log(await runtime.load_memory("n"), await runtime.list_memories());
const tell = async (call) => console.log(await call);
await Promise.all([tell(local.once({text: "b", seconds: 0.2})), tell(local.again({text: "c"}))]);
console.log(await local.once({text: "d"}));
"the value"
""",
}


@pytest.mark.parametrize("key", ["key", None])
async def test_a_replay_agrees_and_does_nothing(either, key):
    hosts = either
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


SEND = """
const frame = (id, method, params) => require("node:fs").writeSync(4, `${JSON.stringify({jsonrpc: "2.0", id, method, params})}\\n`);
"""
"""Sends a frame past our own modules."""

DRIVING = {
    "python": """
from mcp_bridge.wire import messages
channel = local.__dict__["__bridge__"].calls.channel
for ask in (messages.ProgramEffect("0" * 32, 1), messages.ProgramFinish("0" * 32, "0" * 64)):
    try:
        channel.request(ask)
    except Exception as exc:
        print(exc.data["code"])
""",
    "javascript": SEND
    + """
frame(1e6, "program.effect", {execution: "0".repeat(32), effect: 1});
frame(1e6 + 1, "program.finish", {execution: "0".repeat(32), state: "0".repeat(64)});
await runtime.list_memories();
await runtime.list_memories();
""",
}


async def test_a_replay_records_nothing_whatever_its_sandbox_asks_for(either):
    hosts = either
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


async def test_a_replay_tells_what_is_not_the_same(either):
    hosts = either
    record = hosts.run(
        {"python": "import os\nprint(os.urandom(4).hex())", "javascript": "console.log(Math.random())"}, key=None
    )
    found = hosts.replay(record["execution"])
    assert (found["agrees"], found["difference"]["what"]) == (False, "stdout")
    assert found["difference"]["expected"] == record["stdout"] != found["difference"]["found"]
    hosts.run(SEQUENTIAL, die="end")
    assert hosts.replay((await hosts.stored()).id)["code"] == "not_replayable"


# --- keys ---


async def test_fifty_callers_in_several_processes_run_it_once_and_get_one_answer(either):
    hosts = either
    asked = {"code": hosts.whole(SEQUENTIAL), "key": "one", "many": 13, "language": hosts.language}
    outs = [hosts.start(run=asked) for _ in range(4)]
    records = [ended(out) for out in outs]
    assert all(record == records[0] for record in records)
    assert (records[0]["status"], hosts.done) == ("success", ["once a", "again b", "once c"])
    assert hosts.run(CAUGHT, "one")["code"] == "key_conflict"
    assert hosts.done == ["once a", "again b", "once c"]


async def test_a_failure_is_told_as_a_failure_and_tried_again_only_where_the_operator_says_so(either):
    hosts = either
    code = {
        "python": "await local.once(text='a')\nraise ValueError('no')",
        "javascript": "await local.once({text: 'a'});\nthrow new RangeError('no');",
    }
    record = hosts.run(code)
    assert (record["status"], record["error"]["message"]) == ("error", "no")
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
        async with Database(hosts.state / FILE_NAME) as database:
            (waits,) = await with_decisions(ProgramStore(database), record["execution"], record["waiting"])
        assert (waits["kind"], waits["waiting"]) == ("program", [])
        record = hosts.run(code)
    assert (record["status"], record["stdout"]) == ("success", "success once:b again:c\n")
    assert [line for line in hosts.done if line.startswith("once")] == ["once a", "once b"]


async def test_memories_and_sensitive_values_are_as_they_were(either):
    hosts = either
    code = {
        "python": """
from mcp import runtime
count = await runtime.load_memory("n", 0) + 1
await runtime.save_memory("n", count)
number = (await local.card())["number"]
await local.again(text="first")
await local.again(text=f"{count} {number}")
print(count, number)
""",
        "javascript": """
const count = await runtime.load_memory("n", 0) + 1;
await runtime.save_memory("n", count);
const { number } = await local.card();
await local.again({text: "first"});
await local.again({text: `${count} ${number}`});
console.log(count, number);
""",
    }
    hosts.run(code, die="after:again first")
    record = hosts.run(code)
    assert record["status"] == "success"
    assert record["stdout"].startswith("1 vault://ref/")
    assert hosts.done == ["card ", "again first", "again 1 4111 1111 1111 1111"]


def test_what_waited_for_the_record_is_made_as_many_at_once_as_is_allowed(either):
    hosts = either
    hosts.settings |= {"max_in_flight": 2}
    code = {
        "python": """
import time
await local.once(text="a")
began = time.monotonic()
await asyncio.gather(*(local.again(text=str(number), seconds=0.3) for number in range(6)))
print(int(time.monotonic() - began > 0.85))
""",
        "javascript": """
await local.once({text: "a"});
const began = performance.now();
await Promise.all([0, 1, 2, 3, 4, 5].map((number) => local.again({text: String(number), seconds: 0.3})));
console.log(+(performance.now() - began > 850));
""",
    }
    hosts.run(code, die="after:once a")
    assert hosts.run(code)["stdout"] == "1\n"


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


CHANGES = {
    "save": ({"python": "save_memory('n', n + 1)", "javascript": "save_memory('n', n + 1)"}, 7, 8),
    "update": ({"python": "update_memory('n', {'n': n + 1})", "javascript": "update_memory('n', {n: n + 1})"}, {"n": 7}, {"n": 8}),
    "apply": ({"python": "update_memory('n', lambda old: old + 1)", "javascript": "update_memory('n', (old) => old + 1)"}, 7, 8),
    "delete": ({"python": "delete_memory('n')", "javascript": "delete_memory('n')"}, 7, None),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_kept_is_changed_once_whatever_was_recorded_of_it(either, change):
    hosts = either
    changes, before, after = CHANGES[change]
    code = {
        "python": f"""
from mcp import runtime
import json
n = await runtime.load_memory("n", 0)
n = n["n"] if isinstance(n, dict) else n
await runtime.{changes["python"]}
print(json.dumps([n, await runtime.load_memory("n")]))
""",
        "javascript": f"""
const found = await runtime.load_memory("n", 0);
const n = found.n ?? found;
await runtime.{changes["javascript"]};
console.log(JSON.stringify([n, await runtime.load_memory("n")]));
""",
    }
    set_up = f"await runtime.save_memory('n', {json.dumps(before)})"
    hosts.run({"python": f"from mcp import runtime\n{set_up}", "javascript": set_up}, "0")
    hosts.run(code, die="kept:n")
    assert json.loads(hosts.run(code)["stdout"]) == [7, after]


async def test_what_was_used_of_the_limits_before_the_death_counts_after_it(either):
    hosts = either
    code = {
        "python": "for n in range(45): await local.once(text=str(n))",
        "javascript": "for (let n = 0; n < 45; n++) await local.once({text: String(n)})",
    }
    hosts.run(code, die="after:once 29")
    record = hosts.run(code)
    assert (record["status"], "limit on tool calls" in record["error"]["message"]) == ("error", True)
    assert len(hosts.done) == len(set(hosts.done)) == 40


async def test_every_script_is_an_execution_with_its_entries(either):
    hosts = either
    code = {
        "python": """
print(await local.once(text="a"))
try:
    await local.forbidden(text="b")
except Exception as exc:
    print(exc.code)
7
""",
        "javascript": """
console.log(await local.once({text: "a"}));
try { await local.forbidden({text: "b"}) } catch (error) { console.log(error.code) }
7
""",
    }
    record = hosts.run(code, key=None)
    stored = await hosts.stored()
    assert (stored.id, stored.kind, stored.status, stored.record) == (record["execution"], "script", "success", record)
    more = {} if hosts.language == "python" else {"language": hosts.language}
    offered = {"local": "local"}
    common = {"servers": None, "timeout": None, "offered": offered, "showing": RENDERING_VERSION}
    assert stored.bundle == {"code": hosts.whole(code)} | common | more
    assert to_record(stored)["output"] == "7"
    rows = {entry.kind: entry.payload for entry in await hosts.entries()}
    assert (rows["start"]["code"], rows["intent"]["call"]) == (hosts.whole(code), "0#1")
    assert rows["start"].get("language", "python") == hosts.language
    denied = rows["denial"]["call"]
    assert (denied != "0#1", rows["denial"]["tool"]) == (True, "local.forbidden")
    outcomes = [entry.payload for entry in await hosts.entries() if entry.kind == "outcome"]
    assert [(row["call"], row["status"], row.get("value", row.get("code"))) for row in outcomes] == [
        ("0#1", "ok", "once:a"),
        (denied, "failed", "denied"),
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


async def test_a_name_that_is_used_twice_or_missing_is_a_violation(either):
    hosts = either
    code = {
        "python": """
from mcp_bridge.wire import jsonrpc, messages
channel = local.__dict__["__bridge__"].calls.channel
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
""",
        "javascript": SEND
        + """
let id = 1e6;
const call = (text, more) => frame(++id, "tool.call", {server: "local", tool: "once", arguments: {text}, ...more});
call("a", {call: "0.9#1"});
call("b", {call: "0.9#1"});
call("c", {call: "0.8#1"});
call("d", {});
await local.again({text: "e"});
await local.again({text: "f"});
""",
    }
    record = hosts.run(code)
    if hosts.language == "python":
        assert record["stdout"] == "{'value': 'once:a'} violation {'value': 'once:c'}\nviolation\n"
    assert record["status"] == "success"
    assert [line for line in hosts.done if line.startswith("once")] == ["once a", "once c"]
    assert [entry.kind for entry in await hosts.entries()].count("violation") == 2
