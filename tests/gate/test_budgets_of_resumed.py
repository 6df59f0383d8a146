"""The limits of a program hold whoever goes on with it, and however often: nothing is counted twice, nothing never."""

import textwrap
import uuid

import anyio
import pytest

from mcp_bridge.executions.client import Client
from mcp_bridge.executions.usage import usage_from_history
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.kernel.events import Resume
from mcp_bridge.ledger.log.entries import Entry, Recorded
from mcp_bridge.settings import Settings

pytestmark = pytest.mark.usefixtures("whole_ledgers")

TOOLS = """
import mcp_bridge

@mcp_bridge.tool
def work() -> str:
    return "done"
"""


def rest(number):
    return {"id": f"rest{number}", "type": "wait", "event": "go"}


def call(number):
    return {"id": f"work{number}", "type": "tool", "tool": "work", "args": {}, "on_error": "skip"}


@pytest.fixture
def opened(tmp_path):
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / f"work_{uuid.uuid4().hex}.py").write_text(textwrap.dedent(TOOLS))

    def opened(**tables):
        tables = {"tools": {"path": ["tools"], "entry_points": False}, **tables}
        state = tmp_path / "state"
        return open_bridge(Settings(state_dir=state), [], load_governance(tables, None, tmp_path, state))

    return opened


async def left(bridge, run):
    await run.drive()
    return await bridge.programs.keep(run)


@pytest.mark.parametrize(
    "policy", [{"limits": {"calls": 3}}, {"rules": [{"tools": ["local.work"], "effect": "allow", "max_calls": 3}]}]
)
@pytest.mark.parametrize("gates", [1, 2, 3])
async def test_scripts_that_take_turns_at_a_program_share_its_limit(opened, policy, gates):
    steps = [row for number in range(8) for row in (rest(number), call(number))]
    async with opened(policy=policy) as bridge:
        programs = bridge.programs
        turns = [bridge.programs.effects(bridge.gate(f"script{number}", Client())) for number in range(gates)]
        run = await programs.start({"steps": steps}, {}, None, "local", turns[0])
        record = await left(bridge, run)
        for number in range(8):
            run = await programs.resume(run.execution, Resume(1), "local", turns[number % gates])
            record = await left(bridge, run)
        statuses = [row["status"] for row in record["steps"] if row["id"].startswith("work")]
        assert statuses == ["success"] * 3 + ["skipped"] * 5


async def test_a_policy_that_changes_while_it_serves_begins_no_count_anew(opened, tmp_path):
    steps = [row for number in range(5) for row in (rest(number), call(number))]
    limited = {"rules": [{"tools": ["local.work"], "effect": "allow", "max_calls": 3}]}
    async with opened(policy=limited) as bridge:
        effects = bridge.programs.effects(bridge.gate("0", Client()))
        run = await bridge.programs.start({"steps": steps}, {}, None, "local", effects)
        record = await left(bridge, run)
        for number in range(5):
            more = [{"tools": [f"other{number}.*"], "effect": "deny"}] if number % 2 else []
            changed = load_governance({"policy": {"rules": more + limited["rules"]}}, None, tmp_path, tmp_path)
            bridge.restrict(frozenset({"local"}), changed.snapshot)
            effects = bridge.programs.effects(bridge.gate(str(number + 1), Client()))
            run = await bridge.programs.resume(run.execution, Resume(1), "local", effects)
            record = await left(bridge, run)
        statuses = [row["status"] for row in record["steps"] if row["id"].startswith("work")]
        assert statuses == ["success"] * 3 + ["skipped"] * 2


@pytest.mark.parametrize("steps", [[call(1)], [{"id": "say", "type": "llm", "prompt": "Well?"}]])
async def test_who_goes_on_with_its_own_program_counts_nothing_twice(opened, steps):
    model = {"provider": "scripted", "default_answer": "yes"}
    async with opened(model=model, policy={"limits": {"bytes": 10_000}}) as bridge:
        gate = bridge.gate("script", Client())
        effects = bridge.programs.effects(gate)
        run = await bridge.programs.start({"steps": [*steps, rest(1), rest(2)]}, {}, None, "local", effects)
        record = await left(bridge, run)
        assert record["steps"][0]["status"] == "success"
        before = gate._budget.record()
        assert any(before["usage"].values())
        for _ in range(2):
            run = await bridge.programs.resume(run.execution, Resume(1), "local", effects)
            await left(bridge, run)
        assert gate._budget.record() == before


async def test_a_question_that_was_cut_short_counts_for_whoever_asks_it_again(opened, monkeypatch):
    async with opened(model={"provider": "scripted", "default_answer": "yes"}) as bridge:
        gates = [bridge.gate(f"script{number}", Client()) for number in range(2)]
        program = {"steps": [{"id": "say", "type": "llm", "prompt": "Well? " * 100}]}
        run = await bridge.programs.start(program, {}, None, "local", bridge.programs.effects(gates[0]))
        begun = anyio.Event()

        async def ask(*args, **named):
            begun.set()
            await anyio.sleep_forever()

        monkeypatch.setattr(await gates[0].model(), "answer", ask)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.drive)
            await begun.wait()
            tasks.cancel_scope.cancel()
        await bridge.programs.keep(run)
        run = await bridge.programs.resume(run.execution, None, "local", bridge.programs.effects(gates[1]))
        assert gates[1]._budget.record()["usage"]["model_tokens"] >= 600
        assert (await left(bridge, run))["status"] == "success"


def test_calls_by_the_rules_of_another_policy_are_not_counted():
    intent = {"kind": "tool", "tool": "local.t", "arguments": {}, "effect": 1, "rules": [2]}
    entries = [
        Recorded(number, 0.0, Entry("intent", "x", intent, "s", policy, "p"))
        for number, policy in enumerate(["old", "new", "new"], 1)
    ]
    assert usage_from_history(entries, "new")["made"] == {2: 2}
    assert usage_from_history(entries, "new")["usage"]["calls"] == 3
    assert usage_from_history(entries, "new", {"old": 2})["made"] == {2: 3}, "its rules up to this one are the same"
    assert usage_from_history(entries, "new", {"old": 1})["made"] == {2: 2}
