"""Effects of which nobody knows whether they have happened: they wait for a person's word, and for nothing else."""

import ast
import json
import re
import signal
import textwrap
import time
import uuid
from pathlib import Path

import anyio
import pytest
from cli_fixtures import DEADLINE_SECONDS
from cli_fixtures import tool as desk_tool
from execution_fixtures import printed, until
from program_host import CARD
from program_hosts import hosts, source, tool

import mcp_bridge
from mcp_bridge.cli import configuration_loading, exit_statuses
from mcp_bridge.executions.in_doubt import Settlement
from mcp_bridge.executions.status import effective_status
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.server import program_tools
from mcp_bridge.wire import messages

pytestmark = pytest.mark.usefixtures("whole_ledgers")

__all__ = ("hosts", "source")

STEPS = [tool("once"), tool("two", "$once.output"), tool("three", "$two.output")]
A = {"x": "a"}

DEATHS = ["before_the_call", "after_the_call", "before_the_outcome", "after_the_outcome"]
"""Points between the record of an intent and that of its outcome; at the last one, that isn't durable yet."""

DONE = {"before_the_call": 0}
"""How often the call has been made when its host dies there; else once."""


async def entries(hosts, execution, *kinds):
    async with Database(hosts.state / FILE_NAME) as database:
        rows = await SqliteRecorder(database).read(execution)
    return [row.entry for row in rows if row.entry.kind in kinds]


def doubts(record):
    return [(row["step"], row["tool"]) for row in record["waiting"] if row["kind"] == "in_doubt"]


# --- host killed ---


@pytest.mark.parametrize("how", ["happened", "failed", "not_done"])
@pytest.mark.parametrize("point", ["", *DEATHS])
async def test_a_call_whose_host_died_waits_for_a_person_and_goes_on_by_what_they_say(hosts, point, how):
    hosts.run(*STEPS, context=A, die_in="two", die_at=point)
    made = DONE.get(point, 1)
    assert effective_status(await hosts.stored()) == "interrupted"
    record = hosts.run(*STEPS, context=A)
    assert (record["status"], doubts(record)) == ("suspended", [("two", "two")])
    assert [row["id"] for row in record["steps"]] == ["once"]
    assert hosts.done.count("two") == made
    word = {"happened": {"value": "told"}, "failed": {"message": "the bank knows nothing"}, "not_done": {}}[how]
    last = hosts.settle(record["trace_id"], how, **word)
    assert hosts.done.count("once") == 1
    match how:
        case "happened":
            assert (last["status"], last["output"]) == ("success", "three:told")
            assert last["steps"][1]["status"] == "success"
        case "failed":
            assert (last["status"], last["code"]) == ("failed", "failed")
            assert "the bank knows nothing" in last["error"]
        case "not_done":
            assert (last["status"], last["output"]) == ("success", "three:two:once:a")
    assert hosts.done.count("two") == made + (how == "not_done")
    assert hosts.run(*STEPS, context=A) == last | {"is_previous_result": True}


async def test_before_its_intent_nothing_has_happened_and_the_call_is_made(hosts):
    hosts.run(*STEPS, context=A, die_in="once", die_at="before_the_intent")
    record = hosts.run(*STEPS, context=A)
    assert (record["status"], hosts.done) == ("success", ["once", "two", "three"])


async def test_an_outcome_is_durable_with_the_next_intent_and_in_doubt_until_then(hosts):
    hosts.run(*STEPS, context=A, die_in="two", die_at="before_the_intent")
    record = hosts.run(*STEPS, context=A)
    assert (record["status"], doubts(record), hosts.done) == ("suspended", [("once", "once")], ["once"])


@pytest.mark.parametrize("point", ["", *DEATHS])
async def test_a_call_that_does_no_harm_twice_is_made_again(hosts, point):
    steps = [tool("once"), tool("again", "$once.output")]
    hosts.run(*steps, context=A, die_in="again", die_at=point)
    record = hosts.run(*steps, context=A)
    assert (record["status"], record["output"]) == ("success", "again:once:a")
    assert hosts.done == ["once", *["again"] * (1 + DONE.get(point, 1))]


@pytest.mark.parametrize("policy", [{"on_error": "retry"}, {"on_error": "skip"}, {"retry": {"schedule": [0, 0]}}])
async def test_a_doubt_is_no_failure_no_policy_for_those_applies(hosts, policy):
    steps = [tool("once"), tool("two", **policy)]
    hosts.run(*steps, context=A, die_in="two")
    record = hosts.run(*steps, context=A)
    assert (record["status"], doubts(record)) == ("suspended", [("two", "two")])
    assert hosts.done == ["once", "two"]


async def test_what_a_person_calls_failed_is_tried_again_as_any_failure_is(hosts):
    hosts.run(tool("two", retry={"schedule": [0]}), context=A, die_in="two")
    record = hosts.run(tool("two", retry={"schedule": [0]}), context=A)
    last = hosts.settle(record["trace_id"], "failed", message="no")
    assert (last["status"], last["steps"][0]["retries"]) == ("success", 1)
    assert hosts.done == ["two", "two"]


SHAPES = {
    "in line": [tool("once"), tool("two"), tool("three")],
    "parallel": [{"id": "all", "type": "parallel", "parallel_steps": [tool("once"), tool("two"), tool("three")]}],
    "in turn": [
        {
            "id": "all",
            "type": "parallel",
            "max_concurrency": 1,
            "parallel_steps": [tool("once"), tool("two"), tool("three")],
        }
    ],
    "a map": [
        tool("once"),
        {
            "id": "each",
            "type": "map",
            "over": ["a"],
            "step": {"type": "tool", "tool": "two", "args": {"text": "$item"}},
        },
        tool("three"),
    ],
    "programs": [
        {
            "id": name,
            "type": "program",
            "context": A,
            "program": {"steps": [tool(name, retry={"schedule": [0]})]},
            "timeout_seconds": 600,
        }
        for name in ("once", "two", "three")
    ],
}


@pytest.mark.parametrize("point", ["", "before_the_intent", *DEATHS])
@pytest.mark.parametrize("shape", SHAPES)
async def test_with_a_person_who_looks_everything_is_done_once_wherever_the_host_dies(hosts, shape, point):
    steps = SHAPES[shape]
    hosts.run(*steps, context=A, die_in="two", die_at=point)
    record = hosts.run(*steps, context=A)
    while record["status"] == "suspended":
        row = record["waiting"][0]
        assert row["kind"] == "in_doubt"
        how = "happened" if row["tool"] in hosts.done else "not_done"
        record = hosts.settle(record["trace_id"], how, str(row["effect"]), value="seen")
    assert record["status"] == "success"
    assert sorted(hosts.done) == ["once", "three", "two"]


# --- settling ---


async def test_no_resume_and_no_key_end_a_doubt(hosts):
    hosts.run(*STEPS, context=A, die_in="two")
    execution = (await hosts.stored()).id
    assert hosts.resume(execution, {"paid": 1})["status"] == "suspended"
    for payload in (None, "ok", {"approved": True}):
        assert hosts.resume(execution, payload)["code"] == "still_waiting"
    assert doubts(hosts.run(*STEPS, context=A)) == [("two", "two")]
    assert hosts.done == ["once", "two"]


async def test_a_payload_is_for_the_tool_that_waits_for_it_and_not_for_the_doubt(hosts):
    both = {"id": "both", "type": "parallel", "parallel_steps": [tool("careful"), tool("later")]}
    record = hosts.run(both, context=A)
    assert [row["kind"] for row in record["waiting"]] == ["approval", "tool"]
    execution = record["trace_id"]
    await hosts.decide()
    hosts.resume(execution, die_in="careful")
    record = hosts.resume(execution)
    assert [row["kind"] for row in record["waiting"]] == ["in_doubt", "tool"]
    record = hosts.resume(execution, "paid")
    assert [row["kind"] for row in record["waiting"]] == ["in_doubt"]
    last = hosts.settle(execution, "happened", value="told")
    assert (last["status"], last["output"]) == ("success", {"careful": "told", "later": "paid"})
    assert hosts.done == ["later", "careful"]


async def test_a_settlement_names_its_doubt_or_there_is_only_one(hosts):
    each = {
        "id": "each",
        "type": "map",
        "over": ["a", "b"],
        "step": {"type": "tool", "tool": "hang", "args": {"text": "$item"}},
    }
    assert hosts.run(each, cancel_after=2) is None
    record = hosts.run(each)
    assert doubts(record) == [("each[0]", "hang"), ("each[1]", "hang")]
    execution = record["trace_id"]
    resumed = await entries(hosts, execution, "resume")
    assert hosts.settle(execution, "happened")["code"] == "ambiguous_id"
    assert hosts.settle(execution, "happened", "each[2]")["code"] == "unknown_doubt"
    assert await entries(hosts, execution, "resume") == resumed, "nothing was settled, and nothing went on"
    assert hosts.run(each) == record
    number = str(record["waiting"][0]["effect"])
    record = hosts.settle(execution, "happened", number, value=1)
    assert doubts(record) == [("each[1]", "hang")]
    last = hosts.settle(execution, "happened", "each[1]", value=2)
    assert (last["status"], last["output"]) == ("success", [1, 2])
    assert hosts.settle(execution, "happened")["code"] == "not_suspended"
    assert sorted(hosts.done) == ["hang", "hang"]


async def test_a_settlement_is_recorded_with_who_and_what_and_then_its_outcome(hosts):
    hosts.run(*STEPS, context=A, die_in="two")
    execution = (await hosts.stored()).id
    hosts.settle(execution, "happened", value=f"paid with {CARD}", go_on=False)
    told = await entries(hosts, execution, "decision", "outcome")
    decision, outcome = told[-2:]
    assert (decision.kind, decision.step, outcome.kind) == ("decision", "two", "outcome")
    said = decision.payload
    assert (said["settled"], said["by"], said["tool"], said["arguments"]) == (
        "happened",
        "anna",
        "two",
        {"text": "once:a"},
    )
    # It is projected as what a tool gives is.
    assert said["value"] == outcome.payload["value"]
    assert outcome.payload["value"].startswith("paid with vault://ref/")
    stored = await hosts.stored()
    assert (stored.status, hosts.done) == ("interrupted", ["once", "two"])
    last = hosts.run(*STEPS, context=A)
    assert last["status"] == "success"
    assert CARD in hosts.log.read_text()
    assert CARD not in str(last)


@pytest.mark.parametrize("point", ["after_a_settlement", "before_it_is_kept", "after_it_is_kept"])
@pytest.mark.parametrize("how", ["happened", "not_done"])
async def test_a_death_while_settling_loses_the_word_or_keeps_it_whole(hosts, point, how):
    hosts.run(*STEPS, context=A, die_in="two")
    execution = (await hosts.stored()).id
    hosts.settle(execution, how, value="told", go_on=False, die_at=point)
    record = hosts.run(*STEPS, context=A)
    if record["status"] == "suspended":
        assert point == "after_a_settlement"
        assert doubts(record) == [("two", "two")]
        record = hosts.settle(execution, how, value="told")
    assert record["status"] == "success"
    assert hosts.done == ["once", "two", *["two"] * (how == "not_done"), "three"]


async def test_a_call_that_is_made_again_may_be_in_doubt_again(hosts):
    hosts.run(*STEPS, context=A, die_in="two")
    execution = (await hosts.stored()).id
    first = hosts.resume(execution)["waiting"][0]["since"]
    between = time.time()
    hosts.settle(execution, "not_done", die_in="two")
    record = hosts.resume(execution)
    assert doubts(record) == [("two", "two")]
    assert first < between < record["waiting"][0]["since"]
    assert hosts.settle(execution, "happened", value="b")["output"] == "three:b"
    assert hosts.done == ["once", "two", "two", "three"]


async def test_a_settlement_that_names_nothing_leaves_what_it_found_out(hosts):
    hosts.run(*STEPS, context=A, die_in="two")
    execution = (await hosts.stored()).id
    assert hosts.settle(execution, "happened", "three")["code"] == "unknown_doubt"
    stored = await hosts.stored()
    assert (stored.status, doubts(stored.record)) == ("suspended", [("two", "two")])
    assert hosts.settle(execution, "happened", "two", value="b")["status"] == "success"


async def test_what_nobody_doubts_can_t_be_settled(hosts):
    record = hosts.run(tool("later"), context=A, key=None)
    assert hosts.settle(record["trace_id"], "happened")["code"] == "not_in_doubt"
    assert hosts.resume(record["trace_id"], "b")["status"] == "success"


# --- approvals ---


@pytest.mark.parametrize("point", ["", *DEATHS])
async def test_an_approved_call_that_may_have_happened_is_in_doubt_and_approved_still(hosts, point):
    steps = [tool("once"), tool("careful")]
    record = hosts.run(*steps, context=A, key=None)
    assert record["waiting"][0]["kind"] == "approval"
    assert hosts.settle(record["trace_id"], "happened")["code"] == "not_in_doubt"
    await hosts.decide()
    if point in {"before_the_outcome", "after_the_outcome"}:
        point = "after_the_call"
    hosts.resume(record["trace_id"], die_in="careful", die_at=point)
    record = hosts.resume(record["trace_id"])
    assert (record["status"], doubts(record)) == ("suspended", [("careful", "careful")])
    last = hosts.settle(record["trace_id"], "not_done")
    assert (last["status"], last["output"]) == ("success", "careful:a")
    assert hosts.done == ["once", *["careful"] * (1 + DONE.get(point, 1))]


async def test_an_approved_call_that_is_cancelled_in_mid_call_is_in_doubt_at_once(hosts):
    record = hosts.run(tool("careful_hang"), context=A, key=None)
    await hosts.decide()
    hosts.resume(record["trace_id"], cancel_after=1)
    stored = await hosts.stored()
    assert (stored.status, doubts(stored.record)) == ("suspended", [("careful_hang", "careful_hang")])
    assert hosts.settle(stored.id, "happened", value="b")["output"] == "b"


# --- hosts that live ---


@pytest.mark.parametrize("wrapped", [False, True])
async def test_what_is_cancelled_in_mid_call_is_in_doubt(hosts, wrapped):
    step = tool("hang")
    if wrapped:
        step = {"id": "inner", "type": "program", "program": {"steps": [tool("hang", "b")]}}
    hosts.run(tool("once"), step, context=A, cancel_after=2)
    stored = await hosts.stored()
    path = "inner/hang" if wrapped else "hang"
    assert (stored.status, doubts(stored.record)) == ("suspended", [(path, "hang")])
    row = stored.record["waiting"][0]
    assert row["settle"].startswith(f"mcp-bridge execution settle {stored.id} {row['effect']} ")
    last = hosts.settle(stored.id, "happened", value="told")
    assert (last["status"], last["output"]) == ("success", "told")
    assert hosts.done == ["once", "hang"]


async def test_what_is_cancelled_in_mid_call_and_does_no_harm_twice_is_made_again(hosts):
    hosts.run(tool("hang_again"), context=A, cancel_after=1)
    assert (await hosts.stored()).status == "interrupted"
    record = hosts.run(tool("hang_again"), context=A)
    assert (record["status"], record["output"]) == ("success", "hang_again:a")
    assert hosts.done == ["hang_again"] * 2


async def test_a_timeout_of_the_step_is_its_outcome_and_no_doubt(hosts):
    record = hosts.run(tool("hang", timeout_seconds=0.2), context=A)
    assert (record["status"], record["code"]) == ("failed", "timeout")


async def test_a_call_that_its_group_wants_no_more_is_as_it_was(hosts):
    both = {"id": "both", "type": "parallel", "timeout_seconds": 0.5, "parallel_steps": [tool("hang")]}
    record = hosts.run(both, context=A)
    assert (record["status"], record["waiting"]) == ("failed", [])
    (_, outcome) = await entries(hosts, record["trace_id"], "outcome")
    assert (outcome.payload["code"], outcome.payload["effects"]) == ("interrupted", None)


# --- ends ---

UNDONE = tool("once", compensate={"tool": "undo", "args": {"text": "$once.output"}})


async def test_a_doubt_can_be_cancelled_and_is_down_as_unresolved(hosts):
    hosts.run(UNDONE, tool("two"), context=A, die_in="two")
    execution = (await hosts.stored()).id
    record = hosts.cancel(execution)
    assert (record["status"], hosts.done) == ("cancelled", ["once", "two", "undo"])
    (row,) = record["unresolved"]
    assert (row["step"], row["tool"], row["arguments"]) == ("two", "two", {"text": "a"})
    (end,) = await entries(hosts, execution, "end")
    assert end.payload["unresolved"] == record["unresolved"]


async def test_a_compensation_whose_host_died_is_in_doubt_and_what_was_unresolved_stays_so(hosts):
    hosts.run(UNDONE, tool("two"), context=A, die_in="two")
    execution = (await hosts.stored()).id
    hosts.resume(execution)
    hosts.cancel(execution, die_in="undo")
    record = hosts.resume(execution)
    assert (record["status"], doubts(record)) == ("suspended", [("once.compensate", "undo")])
    last = hosts.settle(execution, "happened")
    assert (last["status"], last["steps"][-1]["status"]) == ("cancelled", "success")
    assert [row["step"] for row in last["unresolved"]] == ["two"]
    assert hosts.done == ["once", "two", "undo"]


async def test_what_is_told_of_a_doubt_shows_nothing_sensitive(hosts):
    steps = [{"id": "card", "type": "tool", "tool": "card"}, tool("two", "$card.output.number")]
    hosts.run(*steps, die_in="two")
    assert f"two {CARD}" in hosts.log.read_text()
    record = hosts.run(*steps)
    assert record["waiting"][0]["arguments"]["text"].startswith("vault://ref/")
    assert CARD not in str(await entries(hosts, record["trace_id"], "start", "intent", "outcome", "suspension"))


# --- who cannot settle ---


def test_only_the_command_line_leads_to_a_settlement():
    root = Path(mcp_bridge.__file__).parent
    makers, callers = set(), set()
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Settlement":
                makers.add(name)
            if isinstance(node, ast.Attribute) and node.attr == "settle_execution":
                callers.add(name)
    assert makers == callers == {"cli/commands/executions.py"}


def test_no_request_of_a_sandbox_and_no_tool_is_about_doubts():
    names = [*messages.METHODS, *program_tools.NAMES]
    fields = [field for kind in messages.METHODS.values() for field in getattr(kind, "_fields", ())]
    assert not [name for name in (*names, *fields) if re.search(r"settle|doubt|redo|happened", name)]


@pytest.fixture
def doomed(desk):
    """The id of an execution in doubt."""
    desk.write("programs/doomed.json", {"name": "doomed", "steps": [desk_tool("look"), desk_tool("crash")]})
    process = desk.process("program", "run", "doomed", "--key", "k", "--context", '{"name": "a"}')
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == -signal.SIGKILL
    return desk.run("execution", "list", "--json").json["executions"][0]["id"]


async def test_a_client_that_drives_programs_sees_a_doubt_and_cannot_settle_it(desk, doomed, connect):
    ident = doomed
    configuration = configuration_loading.configure(desk.config)
    async with (
        open_bridge(configuration.settings, [], configuration.governance) as bridge,
        connect(bridge, programs=True) as client,
    ):
        # Its key is the operator's, who has begun it: a client's own key of that name would be another.
        ran = (await client.call_tool("resume_program", {"trace_id": ident})).structured_content
        assert (ran["trace_id"], ran["status"]) == (ident, "suspended")
        (row,) = ran["waiting"]
        assert (row["kind"], row["tool"], row["arguments"]) == ("in_doubt", "crash", {"name": "a"})
        assert f"execution settle {ident}" in row["settle"]
        for payload in ({"how": "happened"}, {"approved": True}, "PENDING", None, {"event": "redo", "effect": 2}):
            told = {"trace_id": ident, "payload": payload}
            answer = (await client.call_tool("resume_program", told)).structured_content
            assert answer["code"] == "still_waiting"
            assert answer["waiting"] == ran["waiting"]
        assert (await client.call_tool("get_trace", {"trace_id": ident})).structured_content["waiting"] == [row]


def test_a_server_behind_the_bridge_cannot_settle_by_running_the_command(desk, doomed, monkeypatch):
    ident = doomed
    monkeypatch.setenv("MCP_BRIDGE_NESTED", "1")
    desk.says("execution", "settle", ident, "--happened", code=exit_statuses.REFUSED, words=["nested_bridge"])
    monkeypatch.delenv("MCP_BRIDGE_NESTED")
    assert desk.run("execution", "show", ident, "--json").json["status"] == "interrupted"


# --- sandboxes ---

TOOLS = """
from pathlib import Path
import anyio
import mcp_bridge

@mcp_bridge.tool
async def pay(file: str) -> str:
    with Path(file).open("a") as log:
        log.write("paid\\n")
    await anyio.sleep_forever()

@mcp_bridge.tool
def look(file: str) -> bool:
    return Path(file).exists()
"""

LEAVING = {
    "its script ends": "pass",
    "its script is killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "its time is up": "while True: pass",
}


@pytest.mark.parametrize("leaving", LEAVING)
async def test_a_sandbox_that_goes_in_mid_call_leaves_a_doubt(sandboxes, tmp_path, leaving):
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / f"bank_{uuid.uuid4().hex}.py").write_text(textwrap.dedent(TOOLS))
    tables = {"tools": {"path": ["tools"], "entry_points": False}}
    governance = load_governance(tables, None, tmp_path, tmp_path / "state")
    paid = tmp_path / "paid"
    program = {"name": "p", "steps": [{"id": "pay", "type": "tool", "tool": "pay", "args": {"file": str(paid)}}]}
    async with sandboxes.open(governance=governance, state_dir=tmp_path / "state", wall_timeout=5) as bridge:
        script = f"""
import asyncio
from mcp import programs
from mcp.servers import local
asyncio.ensure_future(programs.run({program!r}, {{}}, idempotency_key="k"))
while not await local.look(file={str(paid)!r}):
    await asyncio.sleep(0.05)
{LEAVING[leaving]}
"""
        await bridge.run(script, timeout=3)

        async def left():
            found = await bridge.programs.store.executions(None, 10)
            (stored,) = [row for row in found if row.kind == "program"]
            return stored if stored.status != "running" else None

        stored = await until(left)
        assert (stored.status, stored.record["waiting"][0]["kind"]) == ("suspended", "in_doubt")
        script = f"""
from mcp import programs, traces
trace = await programs.run({program!r}, {{}}, idempotency_key="k")
print(trace)
for payload in (None, "paid"):
    try:
        await programs.resume(trace.trace_id, payload)
    except Exception as exc:
        print(exc.code)
"""
        shown = printed(await bridge.run(script))
        assert "waits for a person's word on whether pay has happened at pay" in shown
        assert shown.splitlines()[-2:] == ["still_waiting"] * 2
        settled = await bridge.settle_execution(
            stored.id, "pay", Settlement("happened", "anna", "receipt"), and_resume=True
        )
        assert (settled["status"], settled["output"]) == ("success", "receipt")
        assert paid.read_text() == "paid\n"


async def test_a_client_that_takes_its_request_back_in_mid_call_leaves_a_doubt(desk, connect):
    desk.write("programs/meeting.json", {"name": "meeting", "steps": [desk_tool("look"), desk_tool("meet")]})
    configuration = configuration_loading.configure(desk.config)
    async with (
        open_bridge(configuration.settings, [], configuration.governance) as bridge,
        connect(bridge, programs=True) as client,
    ):
        place = anyio.Path(desk.folder / "met")
        async with anyio.create_task_group() as tasks:
            arguments = {"program": "meeting", "context": {"name": str(place)}}
            tasks.start_soon(client.call_tool, "run_program", arguments)
            await until(place.exists)
            tasks.cancel_scope.cancel()

        async def left():
            found = await bridge.programs.store.executions(None, 10)
            (stored,) = [row for row in found if row.kind == "program"]
            return stored if stored.status != "running" else None

        stored = await until(left)
        assert json.dumps(stored.record["waiting"]).count("in_doubt") == 1
        assert stored.status == "suspended"
