"""Steps that read what they are given as JSON: on both sides alike, within bounds, and with a failure that says what it was."""

import json

import pytest
from kernel_driver import run
from recorded_programs import Recording, kept, programs, ran  # noqa: F401  (a fixture)

from mcp_bridge.executions.programs.replay import replayed_program
from mcp_bridge.kernel.events import Outcome, Resume
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.state import dump, restore

FOUND = {"id": "found", "type": "tool", "tool": "find", "parse": "json"}
ASKED = {"id": "asked", "type": "llm", "prompt": "how many?", "parse": "json"}


def ended(step, *answers, **fields):
    """The machine of one step after these answers of its tool or model, and how often each was asked."""
    machine, asked = run({"steps": [step | fields]}, {step.get("tool", "llm"): list(answers)})
    return machine, len(asked)


def row_of(step, *answers, **fields):
    machine, _ = ended(step, *answers, **fields)
    return machine.rows[-1]


@pytest.mark.parametrize("step", [FOUND, ASKED], ids=["tool", "llm"])
def test_the_output_is_the_value_of_the_text(step):
    row = row_of(step, {"value": ' [{"n": 61.0}]\n'})
    assert (row.status, row.output) == ("success", [{"n": 61}])


@pytest.mark.parametrize("value", [[1], {"a": None}, 5, True, None])
def test_what_is_no_text_stays_as_it_is(value):
    row = row_of(FOUND, {"value": value})
    assert (row.status, row.output) == ("success", value)


@pytest.mark.parametrize("step", [FOUND, ASKED], ids=["tool", "llm"])
def test_a_text_that_is_no_json_fails_the_step_and_is_shown(step):
    machine, _ = ended(step, {"value": "No repository at 'x'" + "!" * 1000})
    row = machine.rows[-1]
    assert (row.status, row.code) == ("failed", "not_json")
    assert row.error.startswith("the output is no JSON: \"No repository at 'x'!")
    assert row.error.endswith("… (1020 characters)")
    assert len(row.error) < 300
    assert machine.error == f"step {step['id']!r} failed: {row.error}"


def test_without_parse_a_text_stays_a_text():
    step = {name: value for name, value in FOUND.items() if name != "parse"}
    assert row_of(step, {"value": "[1]"}).output == "[1]"
    assert row_of(step | {"parse": None}, {"value": "[1]"}).output == "[1]"


def test_on_error_and_retries_apply():
    row = row_of(FOUND, {"value": "busy"}, on_error="skip")
    assert (row.status, row.code) == ("skipped", "not_json")
    machine, calls = ended(ASKED, {"value": "Sixty-one."}, {"value": "```json\n61\n```"}, on_error="retry")
    assert (machine.status, machine.output, calls) == ("success", 61, 2)


def test_the_answers_that_are_allowed_are_looked_at_first():
    assert row_of(ASKED, {"value": " 2 "}, allowed_outputs=["1", "2"]).output == 2
    assert row_of(ASKED, {"value": "3"}, allowed_outputs=["1", "2"]).code == "not_allowed"
    assert row_of(ASKED, {"value": "3"}, allowed_outputs=["1", "2"], on_error="skip").output == 1


@pytest.mark.parametrize(("allowed", "output"), [(["1"], 1), (None, "")])
def test_a_fallback_is_read_and_an_empty_one_stays_empty(allowed, output):
    step = ASKED | {"timeout_seconds": 1, "on_timeout": "fallback", "allowed_outputs": allowed}
    machine = Machine(parse({"steps": [step]}))
    machine.apply(Outcome(1, "timeout"))
    assert (machine.status, machine.output) == ("success", output)


def test_a_step_that_failed_so_is_not_undone():
    undone = FOUND | {"compensate": {"tool": "undo"}}
    machine, asked = run({"steps": [undone]}, {"find": [{"value": "busy"}], "undo": [{"value": 1}]})
    assert (machine.status, [name for name, _ in asked]) == ("failed", ["find"])


def test_a_payload_is_taken_as_it_is():
    machine, _ = run({"steps": [FOUND]}, {"find": [{"value": "PENDING"}]}, resumes=["[1]"])
    assert machine.level.outputs == {"found": "[1]"}
    machine = Machine(parse({"steps": [FOUND]}))
    machine.apply(Outcome(1, "pending"))
    machine.apply(Resume([1]))
    assert machine.level.outputs == {"found": [1]}


def test_steps_within_others_parse_too():
    body = {"type": "tool", "tool": "find", "parse": "json"}
    program = {
        "steps": [
            {"id": "both", "type": "parallel", "parallel_steps": [FOUND, ASKED]},
            {"id": "each", "type": "map", "over": "$found[0].rows", "step": body},
            {
                "id": "if",
                "type": "condition",
                "condition": "$each[0][0].rows[1] == 2 and $asked.n == 1",
                "then": "last",
            },
            {"id": "last", "type": "tool", "tool": "tell", "args": {"n": "$each.0.0.rows"}},
        ]
    }
    script = {"find": [{"value": '[{"rows": [1, 2]}]'}], "llm": [{"value": '{"n": 1}'}], "tell": [{"value": "told"}]}
    machine, asked = run(program, script)
    assert (machine.status, machine.output) == ("success", "told")
    assert asked[-1] == ["tell", {"n": [1, 2]}]


def test_a_state_holds_the_value_and_reads_back():
    program = parse({"steps": [FOUND, {"id": "pause", "type": "wait", "event": "e"}]})
    machine = Machine(program)
    machine.apply(Outcome(1, "ok", '{"z": 1, "a": [2.50, "é"]}'))
    assert json.loads(dump(machine))["level"]["outputs"] == {"found": {"a": [2.5, "é"], "z": 1}}
    assert dump(restore(program, dump(machine))) == dump(machine)


@pytest.mark.parametrize("text", ['[{"n": 61}]', '{"n": 61}', "sixty"], ids=["read", "no answer", "no JSON"])
async def test_a_record_follows_from_the_program_whatever_the_text_was(programs, text):
    async def find(_):
        return {"status": "ok", "value": text}

    steps = [FOUND, {"id": "if", "type": "condition", "condition": "$found[0].n > 60", "then": "last"}]
    program = {"name": "p", "steps": [*steps, {"id": "last", "type": "tool", "tool": "find"}]}
    stored, entries = await ran(programs, program, {}, find=find)
    result = replayed_program(stored, entries)
    assert (result.difference, result.agrees) == (None, True)
    assert stored.status == ("success" if text.startswith("[") else "failed")
    if text.startswith("{"):
        assert stored.record["steps"][-1]["why"] == "$found is an object with 'n', and has no 0"
        assert stored.record["error"].endswith("NoneType > int: $found is an object with 'n', and has no 0")
