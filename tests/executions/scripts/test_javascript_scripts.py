"""Scripts in JavaScript as durable executions: killed hosts, approvals, doubt, divergence, replays; effects happen once."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from script_hosts import ended, make_javascript_hosts, source  # noqa: F401

from mcp_bridge.executions.programs.from_script import program_from_execution
from mcp_bridge.executions.status import effective_status
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.execution_store import ProgramStore

pytestmark = pytest.mark.usefixtures("whole_ledgers")


@pytest.fixture
def hosts(make_javascript_hosts):
    return make_javascript_hosts("hosts")


SEQUENTIAL = """
const first = await local.once({text: "a"});
const second = await local.again({text: "b"});
console.log(first, second, await local.once({text: "c"}));
"""
TOGETHER = """
const wait = (text: string, seconds: number) => local.once({text, seconds});
console.log(await Promise.all([wait("a", 0.3), wait("b", 0.05), wait("c", 0.15)]));
console.log(await local.once({text: "d"}));
"""
RACED = """
const names: string[] = [];
const left = new Map(Object.entries({a: 0.4, b: 0, c: 0.2}).map(
  ([text, seconds]) => [text, local.once({text, seconds}).then((value) => [text, value])]));
while (left.size > 0) {
  const [text, value] = await Promise.race(left.values());
  left.delete(text);
  names.push(value);
  console.log(await local.once({text: names.join("+")}));
}
"""
NESTED = """
async function branch(text) {
  const first = await local.once({text, seconds: text === "a" ? 0.2 : 0});
  const rest = await Promise.all([1, 2].map(async (number) => {
    const value = await local.once({text: text + number});
    return value + await local.again({text: text + number + "x"});
  }));
  return [first, ...rest].join();
}
console.log((await Promise.all([branch("a"), branch("b")])).join(" "));
"""
TIMERS = """
const later = (text, ms) => new Promise((resolve, reject) => setTimeout(
  () => local.once({text}).then(resolve, reject), ms));
const [a, b] = await Promise.all([later("a", Math.random() * 200), later("b", Math.random() * 200)]);
console.log(a, b, await local.once({text: "c"}));
"""

PROGRAMS = """
import { programs } from "mcp";
const run = (text, seconds) => programs.run(
  { steps: [{ id: "one", type: "tool", tool: "again", args: { text, seconds } }] }).then((trace) => trace.output);
const begun = [["a", run("a", 0.4)], ["b", local.once({ text: "b" })], ["c", run("c", 0.2)], ["d", local.again({ text: "d", seconds: 0.2 })]];
const left = new Map(begun.map(([name, call]) => [name, call.then((value) => [name, value])]));
const names = [];
while (left.size > 0) {
  const [name, value] = await Promise.race(left.values());
  left.delete(name);
  names.push(value);
  await local.again({ text: names.join("+") });
}
console.log(names.sort().join(" "));
"""

KILLS = {
    SEQUENTIAL: ["before:once c", "in:again b", "outcome:once a", "after:once a", "end"],
    TOGETHER: ["in:once c", "after:once a"],
    RACED: ["before:once once:b+once:c", "after:once once:b"],
    NESTED: ["in:once b", "after:once b2", "after:once a1"],
    TIMERS: ["after:once a", "after:once b", "in:once c"],
    PROGRAMS: ["after:once b", "before:again once:b", "end"],
}
SAID = {
    SEQUENTIAL: "once:a again:b once:c\n",
    TOGETHER: "[ 'once:a', 'once:b', 'once:c' ]\nonce:d\n",
    RACED: "once:once:b\nonce:once:b+once:c\nonce:once:b+once:c+once:a\n",
    NESTED: "once:a,once:a1again:a1x,once:a2again:a2x once:b,once:b1again:b1x,once:b2again:b2x\n",
    TIMERS: "once:a once:b once:c\n",
    PROGRAMS: "again:a again:c again:d once:b\n",
}


@pytest.mark.parametrize("code", KILLS)
def test_whatever_kills_its_host_a_script_goes_on_and_repeats_nothing(make_javascript_hosts, code):
    def killed(die):
        hosts = make_javascript_hosts(die.replace(":", " "))
        hosts.run(code, die=die)
        assert effective_status(asyncio.run(hosts.stored())) == "interrupted"
        record = hosts.finish(code)
        assert (record["status"], record["stdout"]) == ("success", SAID[code]), record
        once = [line for line in hosts.done if line.startswith("once")]
        assert len(once) == len(set(once)), "something was done twice"
        assert hosts.run(code) == record
        assert [line for line in hosts.done if line.startswith("once")] == once

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(killed, KILLS[code]))


def test_what_comes_first_of_programs_and_calls_comes_first_in_a_replay_too(hosts):
    for _ in range(3):
        record = hosts.run(PROGRAMS, key=None)
        assert (record["status"], record["stdout"]) == ("success", SAID[PROGRAMS]), record["error"]
        found = hosts.replay(record["execution"])
        assert found["agrees"], found["difference"]


ASKING = """
const first = await local.once({text: "a"});
try {
  console.log(first, await local.careful({text: "b"}));
} catch (error) {
  console.log(first, error.name, error.code);
}
"""


@pytest.mark.parametrize("approved", [True, False])
def test_an_approval_suspends_the_script_and_its_answer_goes_on_with_it(hosts, approved):
    waiting = hosts.run(ASKING)
    assert waiting["status"] == "suspended", waiting
    (row,) = waiting["waiting"]
    assert (row["tool"], row["arguments"]) == ("local.careful", {"text": "b"})
    hosts.start(decide={"execution": waiting["execution"], "effect": row["effect"], "approved": approved, "by": "anna"})
    record = hosts.run(ASKING)
    while record["status"] == "suspended":
        record = hosts.run(ASKING)
    said = "once:a careful:b" if approved else "once:a ToolError denied"
    assert (record["status"], record["stdout"].split("\n")[0]) == ("success", said), record
    assert hosts.done == (["once a", "careful b"] if approved else ["once a"])


def test_a_call_that_the_policy_denies_is_an_error_that_is_recorded_and_has_no_effect(hosts):
    code = """
for (const call of [() => local.forbidden({text: "a"}), () => runtime.call_tool("local", "forbidden", {text: "b"})]) {
  try { await call() } catch (error) { console.log(error.name, error.code, error.tool) }
}
await local.once({text: "c"});
await local.forbidden({text: "d"});
"""
    record = hosts.run(code)
    assert record["status"] == "error", record
    assert record["stdout"] == "ToolError denied forbidden\n" * 2
    assert (record["error"]["type"], record["error"]["line"]) == ("ToolError", 7)
    assert hosts.done == ["once c"]
    denied = [entry.payload for entry in asyncio.run(hosts.entries()) if entry.kind == "denial"]
    assert [row["tool"] for row in denied] == ["local.forbidden"] * 3
    assert hosts.replay(record["execution"])["difference"] is None
    assert hosts.done == ["once c"]


def test_a_script_that_does_not_do_the_same_again_is_told(hosts):
    record = hosts.run("await local.once({text: String(Math.random())});")
    assert record["status"] == "success"
    replayed = hosts.replay(record["execution"])
    assert replayed["difference"] is not None
    assert len(hosts.done) == 1


def test_a_script_that_goes_another_way_is_stopped_before_it_does_harm(hosts):
    code = """
await local.once({text: "a"});
await local.once({text: String(Math.random())});
await local.once({text: "c"});
"""
    hosts.run(code, die="end")
    assert len(hosts.done) == 3
    record = hosts.run(code, patience=0.5)
    assert record["error"]["code"] == "divergence"
    assert len(hosts.done) == 3


def test_a_call_in_doubt_waits_for_a_person(hosts):
    code = 'console.log(await local.once({text: "a"}));'
    hosts.run(code, die="in:once a")
    record = hosts.run(code)
    assert record["status"] == "suspended"
    assert hosts.done == ["once a"]
    (call,) = record["error"]["calls"]
    hosts.settle(record["execution"], call["call"], how="happened", value="looked up")
    assert hosts.run(code)["stdout"] == "looked up\n"
    assert hosts.done == ["once a"]


def test_a_replay_agrees_and_does_nothing(hosts):
    for number, code in enumerate([SEQUENTIAL, TOGETHER, RACED, NESTED, TIMERS]):
        record = hosts.run(code, key=f"k{number}")
        assert record["status"] == "success", record
        done = hosts.done
        replayed = hosts.replay(record["execution"])
        assert replayed["difference"] is None, replayed
        assert hosts.done == done


def test_the_language_is_recorded_and_part_of_the_requests_identity(hosts):
    code = "1 + 1"
    hosts.head = ""
    assert hosts.run(code)["value"] == "2"
    start = next(entry for entry in asyncio.run(hosts.entries()) if entry.kind == "start")
    assert start.payload["language"] == "javascript"
    hosts.language = "python"
    refused = hosts.run(code)
    assert refused["code"] == "key_conflict", refused
    assert hosts.run(code, key="another")["value"] == "2"


def test_the_same_text_without_a_key_goes_on_with_no_run_of_the_other_language(hosts):
    hosts.head = ""
    code = "await mcp.servers.local.careful('x')"
    waiting = hosts.run(code, key=None)
    assert waiting["status"] == "suspended"
    hosts.language = "python"
    other = hosts.run(code, key=None)
    assert other["status"] == "suspended"
    assert other["execution"] != waiting["execution"]


def test_what_waits_goes_on_only_where_its_language_is_allowed(hosts):
    code = 'console.log(await local.careful({text: "a"}));'
    waiting = hosts.run(code)
    assert waiting["status"] == "suspended"
    hosts.decide(waiting)
    both, hosts.settings["languages"] = hosts.settings["languages"], ["python"]
    for _ in range(2):
        assert ended(hosts.start(resume={"id": waiting["execution"]}))["code"] == "language_unavailable"
    assert hosts.done == []
    hosts.settings["languages"] = both
    assert hosts.run(code)["stdout"] == "careful:a\n"
    assert hosts.done == ["careful a"]


def test_a_program_made_from_a_script_in_javascript_makes_its_calls(hosts):
    code = """
const first = await local.once({text: "a"});
await Promise.all([local.once({text: first}), local.again({text: "x"})]);
"""
    record = hosts.run(code)
    assert record["status"] == "success", record

    async def derive():
        async with hosts.database() as database:
            store = ProgramStore(database)
            stored = await store.execution(record["execution"])
            return await program_from_execution(store, SqliteRecorder(database), stored)

    made = asyncio.run(derive())
    first, together = made.data["steps"]
    assert (first["tool"], first["args"]) == ("once", {"text": "a"})
    assert [step["tool"] for step in together["parallel_steps"]] == ["once", "again"]
    assert made.remarks == []
    done = hosts.done
    again = ended(hosts.start(program={"program": made.data, "context": {}, "key": "p"}))
    assert again["status"] == "success", again
    assert sorted(hosts.done[len(done) :]) == sorted(done)
