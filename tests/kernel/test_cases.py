"""The cases that programs must get right, run by δ; what is said of llm-nano-vm is held against llm-nano-vm."""

import json
import re
from pathlib import Path

import anyio
import pytest
from generated_programs import run_here
from kernel_driver import Script, drive
from program_cases import CASES, NEEDED, SAME, llm, parallel, steps, tool
from program_tools import Tools, driven

from mcp_bridge.executions.idempotency.request_identity import Keys
from mcp_bridge.executions.lifecycle import Lifecycle
from mcp_bridge.executions.programs.lifecycle import Programs
from mcp_bridge.executions.programs.replay import replayed_program
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import IllegalEventError, Outcome, Resume
from mcp_bridge.kernel.language.program_parser import InvalidProgramError, parse
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME

pytestmark = pytest.mark.usefixtures("whole_ledgers")

COMPARED = ("status", "output", "steps", "asked")


def plain(value):
    """As JSON: tuples are lists."""
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    case = CASES[name]
    if case.refused:
        with pytest.raises(InvalidProgramError) as caught:
            parse(case.program)
        assert [(fault.path, fault.code) for fault in caught.value.faults] == list(case.refused)
        return
    ours = run_here(case.job)[0]
    assert (ours["status"], ours["output"]) == (case.status, case.output)
    for told in ("steps", "asked"):
        if getattr(case, told) is not None:
            assert plain(ours[told]) == plain(getattr(case, told))
    for part in case.error:
        assert part in ours["error"]
    assert case.error or ours["error"] is None


@pytest.mark.parametrize("name", CASES)
def test_llm_nano_vm_does_as_the_case_says(nano_vm, name):
    case = CASES[name]
    theirs = nano_vm.ask(case.job)
    if case.theirs is SAME:
        ours = run_here(case.job)[0]
        assert {told: theirs[told] for told in COMPARED} == {told: plain(ours[told]) for told in COMPARED}
    elif "recursed" in case.theirs:
        assert "recursion depth" in theirs["error"]
    else:
        assert {told: theirs[told] for told in case.theirs} == plain(case.theirs)


def test_every_number_has_a_case_here_and_in_a_container():
    here = Path(__file__)
    for module in (here, here.parents[1] / "executions/programs/test_cases_sandboxed.py"):
        found = {int(number) for number in re.findall(r"def test_case_(\d+)_", module.read_text())}
        assert found | {case.number for case in CASES.values()} == NEEDED


def test_no_two_cases_have_one_name():
    assert len({case.name for case in CASES.values()}) == len(CASES) > 80


# --- what is no table's business ---


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_case_34_max_concurrency_bounds_what_is_under_way(limit):
    children = [tool(name) for name in "abcde"]
    machine = Machine(parse(steps(parallel(*children, max_concurrency=limit))))
    most, ended = 0, 0
    while not machine.ended:
        under_way = [effect for effect, _ in machine.awaited()]
        most = max(most, len(under_way))
        machine.apply(Outcome(under_way[-1].id, "ok", ended))
        ended += 1
    assert (most, ended) == (limit, len(children))


def suspended(*rows):
    script = Script({"a": [{"value": "PENDING"}], "b": [{"value": 2}]})
    return drive(Machine(parse(steps(*rows))), script), script


def test_case_39_a_second_resume_is_an_error_and_changes_nothing(nano_vm):
    machine, script = suspended(tool("a"), tool("b"))
    for outcome in [script.outcome(effect) for effect in machine.apply(Resume(7))]:
        machine.apply(outcome)
    before = state.dump(machine)
    with pytest.raises(IllegalEventError) as caught:
        machine.apply(Resume(7))
    assert caught.value.code == "ended"
    assert state.dump(machine) == before
    job = {"program": steps(tool("a"), tool("b")), "script": {"a": [{"value": "PENDING"}], "b": [{"value": 2}]}}
    theirs = nano_vm.ask(job | {"context": {}, "resumes": [7], "again": 1})
    assert theirs["again"] == ["ResumeError"]


def test_case_40_a_state_goes_on_with_its_own_program_only():
    machine, _ = suspended(tool("a"), tool("b"))
    data = state.dump(machine)
    with pytest.raises(state.StateError) as caught:
        state.restore(parse(steps(tool("a"), tool("b"), tool("c"))), data)
    assert caught.value.code == "other_program"
    assert state.dump(state.restore(parse(steps(tool("a"), tool("b"))), data)) == data


def test_case_41_a_resume_that_was_cut_off_can_be_made_again():
    machine, _ = suspended(tool("a"), tool("b"))
    before = state.dump(machine)
    machine.apply(Resume(7))
    cut_off = state.dump(machine)
    again = state.restore(machine.program, before)
    assert [effect.name for effect in again.apply(Resume(7))] == ["b"]
    assert state.dump(again) == cut_off
    # And from where it was cut off it goes on, with the effect that it waited for.
    later = state.restore(machine.program, cut_off)
    assert [(effect.name, pending) for effect, pending in later.awaited()] == [("b", False)]
    later.apply(Outcome(later.awaited()[0][0].id, "ok", 2))
    assert (later.status, later.output) == ("success", 2)


def test_case_42_of_two_resumes_one_is_taken(nano_vm):
    machine, _ = suspended(tool("a"), tool("b"))
    assert [effect.name for effect in machine.apply(Resume(1))] == ["b"]
    with pytest.raises(IllegalEventError) as caught:
        machine.apply(Resume(2))
    assert caught.value.code == "not_pending"
    assert [effect.name for effect, _ in machine.awaited()] == ["b"]
    job = {"program": steps(tool("a"), tool("b")), "script": {"a": [{"value": "PENDING"}], "b": [{"value": 2}]}}
    theirs = nano_vm.ask(job | {"context": {}, "again": 2})
    assert sorted(theirs["again"]) == ["ResumeError", "success"]


BRANCHES = steps(
    tool("a", args={"n": "$n"}),
    {"id": "if", "type": "condition", "condition": "$n < 10", "then": "b", "otherwise": "c"},
    tool("b"),
    tool("c"),
)


async def root_of(tmp_path, n, **outputs):
    """The hash of an execution's transitions, as `replay` tells it: in a store and a process's life of its own."""
    effects = Tools(**{name: lambda _, value=value: answer(value) for name, value in outputs.items()})
    tmp_path.mkdir()
    async with Database(tmp_path / FILE_NAME) as database, anyio.create_task_group() as tasks:
        programs = Programs(Lifecycle(ProgramStore(database), SqliteRecorder(database), Keys(b"k" * 16)), {}, tasks)
        run = await programs.start(BRANCHES, {"n": n}, None, "me", effects)
        await driven(programs, run)
        replayed = replayed_program(
            await programs.lifecycle.stored(run.execution, "me"), await programs.recorder.read(run.execution)
        )
    assert replayed.agrees
    return replayed.transitions


async def answer(value):
    return {"value": value}


async def test_case_43_the_same_run_has_the_same_root(tmp_path):
    first = await root_of(tmp_path / "a", 5, a=[1, {"x": 2.5}], b="done")
    assert await root_of(tmp_path / "b", 5, a=[1, {"x": 2.5}], b="done") == first


async def test_case_44_another_branch_or_output_has_another_root(tmp_path):
    runs = [
        (5, {"b": "done"}),
        (50, {"c": "done"}),
        (5, {"b": "done "}),
        (5, {"a": 1, "b": "done"}),
        (6, {"b": "done"}),
    ]
    roots = [await root_of(tmp_path / str(number), n, **outputs) for number, (n, outputs) in enumerate(runs)]
    assert len(set(roots)) == len(runs)


def test_case_47_a_model_is_asked_with_what_the_outcome_was_projected_to():
    reference = "vault://ref/0123456789abcdef"
    program = steps(tool("a"), llm(prompt="Is $a good?", system="You see $a."))
    machine = Machine(parse(program))
    (effect,) = machine.apply(Outcome(1, "ok", reference))
    assert effect.arguments == {"prompt": f"Is {reference} good?", "system": f"You see {reference}."}


@pytest.mark.parametrize(
    "rows",
    [
        [tool("a", on_error="retry", max_retries=5)],
        [tool("a", retry={"schedule": [0, 0]})],
        [parallel(tool("a", on_error="retry", max_retries=5))],
        [{"id": "each", "type": "map", "over": [1], "step": {"type": "tool", "tool": "a", "on_error": "retry"}}],
        [{"id": "inner", "type": "program", "program": steps(tool("a", on_error="retry"))}],
    ],
)
def test_case_52_what_was_denied_is_not_tried_again_and_stops_the_rest(rows):
    machine = Machine(parse(steps(*rows, tool("b"))))
    ((effect, _),) = machine.awaited()
    assert machine.apply(Outcome(effect.id, "denied", None, "denied", "rule 1 denies it")) == []
    assert machine.status == "failed"
    assert "denied" in {row.code for row in machine.rows}
    assert "rule 1 denies it" in " ".join(row.error or "" for row in machine.rows)
