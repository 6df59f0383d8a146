"""The language of a durable script: recorded, and part of what its key belongs to."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from script_hosts import ended, make_javascript_hosts, source  # noqa: F401

from mcp_bridge.executions.programs.from_script.program_from_script import program_from_execution
from mcp_bridge.executions.status import effective_status
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.execution_store import ProgramStore

pytestmark = pytest.mark.usefixtures("whole_ledgers")


@pytest.fixture
def hosts(make_javascript_hosts):
    return make_javascript_hosts("hosts")


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

PROGRAMS_SAID = "again:a again:c again:d once:b\n"


def test_whatever_kills_its_host_a_script_with_programs_goes_on_and_repeats_nothing(make_javascript_hosts):
    def killed(die):
        hosts = make_javascript_hosts(die.replace(":", " "))
        hosts.run(PROGRAMS, die=die)
        assert effective_status(asyncio.run(hosts.stored())) == "interrupted"
        record = hosts.finish(PROGRAMS)
        assert (record["status"], record["stdout"]) == ("success", PROGRAMS_SAID), record
        once = [line for line in hosts.done if line.startswith("once")]
        assert len(once) == len(set(once)), "something was done twice"
        assert hosts.run(PROGRAMS) == record
        assert [line for line in hosts.done if line.startswith("once")] == once

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(killed, ["after:once b", "before:again once:b", "end"]))


def test_what_comes_first_of_programs_and_calls_comes_first_in_a_replay_too(hosts):
    for _ in range(3):
        record = hosts.run(PROGRAMS, key=None)
        assert (record["status"], record["stdout"]) == ("success", PROGRAMS_SAID), record["error"]
        found = hosts.replay(record["execution"])
        assert found["agrees"], found["difference"]


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
await Promise.all([local.once({text: first, seconds: 1}), local.again({text: "x"})]);
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
