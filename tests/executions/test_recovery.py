"""What is left of a program whose host died: nothing done is done again, and what can go on goes on."""

import json
import time

import anyio
import pytest
from program_host import CARD
from program_hosts import ended, hosts, source, tool  # noqa: F401

from mcp_bridge.executions.status import effective_status
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore

pytestmark = pytest.mark.usefixtures("whole_ledgers")


async def test_a_run_again_with_the_key_goes_on_where_its_host_died(hosts):
    steps = [tool("once"), tool("again", "$once.output"), tool("two", "$again.output")]
    hosts.run(*steps, context={"x": "a"}, die_in="again")
    assert effective_status(await hosts.stored()) == "interrupted"
    record = hosts.run(*steps, context={"x": "a"})
    assert (record["status"], record["output"]) == ("success", "two:again:once:a")
    assert [row["status"] for row in record["steps"]] == ["success"] * 3
    assert hosts.done == ["once", "again", "again", "two"]
    assert hosts.run(*steps, context={"x": "a"}) == record | {"is_previous_result": True}
    assert hosts.done == ["once", "again", "again", "two"]


async def test_a_death_in_mid_resume_keeps_the_payload_and_what_followed(hosts):
    steps = [tool("once"), tool("later"), tool("again", "$__webhook__.paid"), tool("three", "$again.output")]
    record = hosts.run(*steps, context={"x": "a"}, key=None)
    assert record["status"] == "suspended"
    hosts.resume(record["trace_id"], {"paid": "yes"}, die_in="three")
    doubtful = hosts.resume(record["trace_id"])
    assert [(row["id"], row["status"]) for row in doubtful["steps"]] == [
        ("once", "success"),
        ("later", "pending"),
        ("again", "success"),
    ]
    assert doubtful["steps"][2]["output"] == "again:yes"
    assert (doubtful["status"], doubtful["waiting"][0]["arguments"]) == ("suspended", {"text": "again:yes"})
    last = hosts.settle(record["trace_id"], "happened", value="three:again:yes")
    assert (last["status"], last["output"]) == ("success", "three:again:yes")
    assert hosts.done == ["once", "later", "again", "three"]
    assert hosts.resume(record["trace_id"])["code"] == "not_suspended"


async def test_a_payload_given_after_the_death_is_for_what_waits_then(hosts):
    steps = [
        tool("later", output_key="first"),
        tool("again", "$first"),
        {"id": "more", "type": "wait", "event": "more"},
    ]
    record = hosts.run(*steps, context={"x": "a"}, key=None)
    hosts.resume(record["trace_id"], "one", die_in="again")
    suspended = hosts.resume(record["trace_id"])
    assert suspended["status"] == "suspended"
    last = hosts.resume(record["trace_id"], "two")
    assert (last["status"], last["output"]) == ("success", "two")


async def test_many_processes_with_one_key_run_once(hosts):
    program = {"steps": [tool("once"), {"id": "rest", "type": "wait", "seconds": 0.3}, tool("two")]}
    outs = [hosts.start(run={"program": program, "context": {"x": "a"}, "key": "one"}) for _ in range(5)]
    records = [ended(out) for out in outs]
    assert hosts.done == ["once", "two"]
    # One of them has run it, and the others are given its result.
    assert sorted("is_previous_result" in record for record in records) == [False, True, True, True, True]
    (first,) = {json.dumps(record | {"is_previous_result": True}, sort_keys=True) for record in records}
    assert json.loads(first)["status"] == "success"


async def test_many_processes_resume_once(hosts):
    record = hosts.run(tool("later"), tool("two"), context={"x": "a"}, key=None)
    outs = [hosts.start(resume={"id": record["trace_id"], "payload": number}) for number in range(1, 5)]
    assert sorted(row.get("status", row.get("code")) for row in map(ended, outs)) == ["not_suspended"] * 3 + ["success"]
    assert hosts.done == ["later", "two"]


async def test_the_key_of_a_lost_run_still_belongs_to_its_program(hosts):
    hosts.run(tool("once"), context={"x": "a"}, die_in="once")
    assert hosts.run(tool("once"), context={"x": "b"})["code"] == "key_conflict"
    assert hosts.run(tool("two"), context={"x": "a"})["code"] == "key_conflict"


async def test_a_sensitive_value_is_known_to_the_process_that_goes_on(hosts):
    card = {"id": "card", "type": "tool", "tool": "card"}
    steps = [card, tool("later", "wait"), tool("two", "$card.output.number")]
    record = hosts.run(*steps, key=None)
    reference = record["steps"][0]["output"]["number"]
    assert reference.startswith("vault://ref/")
    hosts.resume(record["trace_id"], f"again {CARD}", die_in="two")
    assert f"two {CARD}" in hosts.log.read_text()
    hosts.resume(record["trace_id"])
    stored = await hosts.stored()
    assert stored.record["steps"][1]["status"] == "pending"
    async with Database(hosts.state / "ledger.sqlite") as database:
        text = str(await SqliteRecorder(database).read(stored.id))
        assert f"again {reference}" in text
        assert CARD not in text
        assert list((await ProgramStore(database).values(stored.id)).values()) == [CARD]


WAITS = [{"type": "approval", "message": "Go on?"}, {"type": "wait", "event": "paid"}]


@pytest.mark.parametrize("waits", WAITS)
async def test_what_nobody_answers_in_time_times_out_although_it_is_suspended(hosts, waits):
    steps = [{"id": "ask", **waits, "timeout_seconds": 0.3}, tool("two")]
    record = hosts.run(*steps, context={"x": "a"}, key=None)
    assert record["status"] == "suspended"
    await anyio.sleep(max(0, record["waiting"][0]["due"] - time.time()))
    last = hosts.resume(record["trace_id"])
    assert (last["status"], last["steps"][0]["code"], hosts.done) == ("failed", "timeout", [])


async def test_a_reference_that_leads_nowhere_is_named_where_an_argument_is_refused(hosts):
    record = hosts.run(tool("number"), context={"xx": 1}, key=None)
    assert record["code"] == "bad_arguments"
    assert "Nothing is behind $x: neither in the context nor in an output." in record["error"]
    record = hosts.run(tool("number"), context={"x": "a"}, key=None)
    assert record["code"] == "bad_arguments"
    assert "Nothing is behind" not in record["error"]
    record = hosts.run(tool("refuse"), context={"xx": 1}, key=None)
    assert record["code"] == "tool_error"
    assert "there is no $x (Nothing is behind $x: neither in the context nor in an output.)" in record["error"]
    record = hosts.run(tool("number", text="$$x"), context={"xx": 1}, key=None)
    assert record["code"] == "bad_arguments"
    assert "Nothing is behind" not in record["error"], "it is a text, and no reference"


async def test_a_reference_alone_where_a_text_is_wanted_is_told_to_be_the_value_itself(hosts):
    told = "$x alone is the value itself; within a longer text it is written out."
    record = hosts.run(tool("two"), context={"x": ["a"]}, key=None)
    assert (record["code"], told in record["error"]) == ("bad_arguments", True)
    assert hosts.run(tool("two", text="$x."), context={"x": ["a"]}, key=None)["output"] == "two:['a']."


async def test_an_approved_call_that_is_pending_is_not_made_again_by_what_it_waits_for(hosts):
    record = hosts.run(tool("careful_later"), tool("two", "$careful_later.output"), context={"x": "a"}, key=None)
    await hosts.decide()
    record = hosts.resume(record["trace_id"])
    assert (record["status"], record["waiting"][0]["kind"]) == ("suspended", "tool")
    assert hosts.resume(record["trace_id"])["code"] == "still_waiting"
    last = hosts.resume(record["trace_id"], "paid")
    assert (last["status"], last["output"]) == ("success", "two:paid")
    assert hosts.done == ["careful_later", "two"]
