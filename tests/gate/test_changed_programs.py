"""The operator's programs whose files have changed while executions wait."""

import json
import textwrap
import uuid

import pytest

from mcp_bridge.governance.governance import load_governance
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.kernel.events import Resume
from mcp_bridge.settings import Settings

pytestmark = pytest.mark.usefixtures("whole_ledgers")

TOOLS = """
import mcp_bridge

@mcp_bridge.tool
def pay() -> str:
    return "paid"
"""
PAYER = {
    "description": "Pays.",
    "steps": [{"id": "go", "type": "wait", "event": "go"}, {"id": "pay", "type": "tool", "tool": "pay"}],
}
OUTER = {"name": "outer", "steps": [{"id": "run", "type": "program", "program": "payer"}]}


@pytest.fixture
def opened(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "programs").mkdir()
    (tmp_path / "tools" / f"pay_{uuid.uuid4().hex}.py").write_text(textwrap.dedent(TOOLS))
    (tmp_path / "programs" / "outer.json").write_text(json.dumps(OUTER))

    def opened(payer, *more):
        (tmp_path / "programs" / "payer.json").write_text(json.dumps(payer))
        rule = {"tools": ["local.pay"], "effect": "program", "programs": ["payer", *more]}
        tables = {
            "tools": {"path": ["tools"], "entry_points": False},
            "programs": {"path": ["programs"]},
            "policy": {"rules": [rule]},
        }
        state = tmp_path / "state"
        return open_bridge(Settings(state_dir=state), [], load_governance(tables, None, tmp_path, state))

    return opened


@pytest.mark.parametrize("named", [True, False])
async def test_a_denial_says_that_the_file_has_changed_and_what_helps(opened, named):
    payer = PAYER | ({"name": "payer"} if named else {})
    async with opened(payer) as bridge:
        records = [await bridge.run_program("payer") for _ in range(3)]
    execution, listed, restored = (record["trace_id"] for record in records)
    async with opened(payer | {"description": "Pays what is due."}) as bridge:
        record = await bridge.resume_execution(execution, Resume())
        denied = (await bridge.programs.store.execution(execution)).program
    assert (record["status"], record["code"]) == ("failed", "denied")
    assert "which the operator has changed or removed since this execution began" in record["error"]
    assert f"restores the program's file, or lists {denied} in the rule's programs" in record["error"]
    assert ("If the rule is for it" in record["error"]) is not named
    async with opened(payer | {"description": "Pays what is due."}, denied) as bridge:
        assert (await bridge.resume_execution(listed, Resume()))["output"] == "paid"
    async with opened(payer) as bridge:
        assert (await bridge.resume_execution(restored, Resume()))["output"] == "paid"


async def test_a_program_that_another_runs_may_have_changed(opened):
    async with opened(PAYER) as bridge:
        execution = (await bridge.run_program("outer"))["trace_id"]
    async with opened(PAYER | {"description": "Pays what is due."}) as bridge:
        record = await bridge.resume_execution(execution, Resume())
    assert "which isn't the operator's of that name. The program 'payer' in it" in record["error"]
    assert "restores the program's file" not in record["error"]


async def test_a_saved_program_that_keeps_an_earlier_one_of_the_operator_s_is_told_to_be_saved_again(opened):
    saved = {"name": "mine", "steps": [{"id": "run", "type": "program", "program": "payer"}]}
    at_once = PAYER | {"steps": PAYER["steps"][1:]}
    async with opened(at_once) as bridge:
        await bridge.programs.library.save("mine", saved, LOCAL_PRINCIPAL.name)
    async with opened(at_once | {"description": "Pays what is due."}) as bridge:
        # Nothing has changed since this execution began.
        record = await bridge.run_program("mine")
        assert "since this execution began" not in record["error"]
        assert record["error"].endswith("save a program that includes it again first.")
        await bridge.programs.library.save("mine", saved, LOCAL_PRINCIPAL.name)
        assert (await bridge.run_program("mine"))["output"] == "paid"


async def test_a_program_of_the_agent_s_with_the_name_of_a_later_file_isn_t_told_to_be_put_back(opened, tmp_path):
    outer = {"steps": [{"id": "run", "type": "program", "program": "helper"}]}
    async with opened(PAYER) as bridge:
        helper = PAYER | {"name": "helper", "description": "Mine."}
        await bridge.programs.library.save("helper", helper, LOCAL_PRINCIPAL.name)
        execution = (await bridge.run_program(outer))["trace_id"]
    (tmp_path / "programs" / "helper.json").write_text(json.dumps(PAYER | {"name": "helper"}))
    async with opened(PAYER, "helper") as bridge:
        record = await bridge.resume_execution(execution, Resume())
    assert "isn't the operator's of that name" in record["error"]
    assert "restores the program's file" not in record["error"]


async def test_another_program_is_told_nothing_of_a_change(opened, tmp_path):
    (tmp_path / "programs" / "other.json").write_text(json.dumps(PAYER | {"name": "other"}))
    async with opened(PAYER) as bridge:
        same, edited = [(await bridge.run_program("other"))["trace_id"] for _ in range(2)]
        record = await bridge.resume_execution(same, Resume())
    assert record["error"].endswith("by rule 1: it may not be called as a step of this program.")
    (tmp_path / "programs" / "other.json").write_text(json.dumps(PAYER | {"name": "other", "description": "Else."}))
    async with opened(PAYER) as bridge:
        record = await bridge.resume_execution(edited, Resume())
    assert record["error"].endswith("by rule 1: it may not be called as a step of this program.")
