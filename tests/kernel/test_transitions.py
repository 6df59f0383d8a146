"""Every cell of the machine's tables: what a legal event leads to, and that an illegal one raises and changes nothing."""

import itertools

import pytest
from generated_programs import ALL_CONTEXT, Host, Programs, chance

from mcp_bridge.kernel.events import Cancel, IllegalEventError, Outcome, Redo, Resume
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.machine import EFFECTS, EVENTS, PENDABLE, RESUMABLE, TASKS, Machine, Refusal
from mcp_bridge.kernel.state import dump, restore

STEPS = {
    "tool": {"type": "tool", "tool": "t"},
    "llm": {"type": "llm", "prompt": "?"},
    "wait": {"type": "wait", "seconds": 5},
    "event": {"type": "wait", "event": "e"},
    "approval": {"type": "approval", "message": "?"},
}
VALUES = {"llm": "yes", "approval": {"approved": True}}

SIGNALS = {
    "ok": lambda number, kind: Outcome(number, "ok", VALUES.get(kind)),
    "failed": lambda number, _: Outcome(number, "failed"),
    "timeout": lambda number, _: Outcome(number, "timeout"),
    "denied": lambda number, _: Outcome(number, "denied"),
    "pending": lambda number, _: Outcome(number, "pending"),
    "approval": lambda number, _: Outcome(number, "pending", code="approval"),
    "in_doubt": lambda number, _: Outcome(number, "pending", code="in_doubt"),
    "resume": lambda number, _: Resume(1, effect=number),
    "redo": lambda number, _: Redo(number),
}
PENDING = {"suspended": "pending", "held": "pending", "approval": "approval", "in_doubt": "in_doubt"}
"""The signal that leads to each pending state."""


def machine_of(*steps):
    return Machine(parse({"steps": list(steps)}))


def snapshot(machine):
    return dump(machine), machine.awaited(), list(machine.effects), dict(machine.reasons)


def refused(machine, event):
    """The code of the refusal, which has changed nothing."""
    before = snapshot(machine)
    with pytest.raises(IllegalEventError) as caught:
        machine.apply(event)
    assert snapshot(machine) == before
    return caught.value.code


# --- effects ----------------------------------------------------------------------------------------------------------


def can_be(kind, state):
    if state in {"unknown", "awaited"}:
        return True
    if state == "deadline":
        return kind == "wait"
    if PENDING[state] not in PENDABLE[kind]:
        return False
    return state not in {"suspended", "held"} or (kind in RESUMABLE) == (state == "suspended")


def effect_in(state, kind):
    """A machine with an effect in this state, and the effect's number."""
    if state == "deadline":
        branch = {"id": "b", "type": "tool", "tool": "t"}
        return machine_of({"id": "p", "type": "parallel", "parallel_steps": [branch], "timeout_seconds": 5}), 1
    machine = machine_of({"id": "s", **STEPS[kind]})
    if state in PENDING:
        machine.apply(SIGNALS[PENDING[state]](1, kind))
    return machine, 2 if state == "unknown" else 1


CELLS = [
    (state, kind, signal)
    for state, kind in itertools.product(EFFECTS, PENDABLE)
    if can_be(kind, state)
    for signal in EFFECTS[state]
]


def test_the_table_of_effects_has_every_cell_and_every_state_occurs():
    assert all(row.keys() == SIGNALS.keys() for row in EFFECTS.values())
    assert {state for state, _, _ in CELLS} == EFFECTS.keys()
    assert PENDABLE.keys() == STEPS.keys()


@pytest.mark.parametrize(("state", "kind", "signal"), CELLS)
def test_an_effect_does_what_the_table_says(state, kind, signal):
    machine, number = effect_in(state, kind)
    assert machine._state_of(number) == state
    event, action = SIGNALS[signal](number, kind), EFFECTS[state][signal]
    never_pending = state not in {"unknown", "deadline"} and signal in PENDING.values() and signal not in PENDABLE[kind]
    if never_pending:
        assert refused(machine, event) == "bad_value"
        return
    if isinstance(action, Refusal):
        assert refused(machine, event) == action.code
        return
    machine.apply(event)
    after = {"settle": "unknown", "resume": "unknown", "expire": "unknown", "redo": "awaited", "ignore": state}
    if action == "suspend":
        pending = "suspended" if kind in RESUMABLE else "held"
        assert machine._state_of(number) == (pending if signal == "pending" else signal)
    else:
        assert machine._state_of(number) == after[action]


@pytest.mark.parametrize(("state", "kind"), sorted({(state, kind) for state, kind, _ in CELLS}))
def test_an_effect_is_in_the_same_state_when_its_machine_is_restored(state, kind):
    machine, number = effect_in(state, kind)
    assert restore(machine.program, dump(machine))._state_of(number) == state


# --- the execution ----------------------------------------------------------------------------------------------------


def execution_in(state):
    """A machine in this state, which waits for effect 2 unless it has ended."""
    machine = machine_of(
        {"id": "a", "type": "tool", "tool": "t", "compensate": {"tool": "u"}}, {"id": "b", "type": "tool", "tool": "t"}
    )
    machine.apply(Outcome(1, "ok"))
    if state == "running":
        return machine, 2
    machine.apply(Outcome(2, "failed"))
    if state == "ended":
        machine.apply(Outcome(3, "ok"))
    return machine, 3


def prepared(state, kind):
    """A machine in this state that waits for such an event, and the event."""
    machine, number = execution_in(state)
    code = "in_doubt" if kind is Redo else ""
    if kind in {Resume, Redo} and state != "ended":
        machine.apply(Outcome(number, "pending", code=code))
    return machine, {Outcome: Outcome(number, "ok"), Resume: Resume(1), Redo: Redo(number), Cancel: Cancel()}[kind]


@pytest.mark.parametrize("state", EVENTS)
@pytest.mark.parametrize("kind", EVENTS["running"])
def test_an_execution_does_what_the_table_says(state, kind):
    machine, event = prepared(state, kind)
    assert (machine.ended, machine.level.ending is None) == (state == "ended", state == "running")
    action = EVENTS[state].get(kind)
    if action is None:
        assert refused(machine, event) == "ended"
    elif action == "disregard":
        before = dump(machine)
        assert machine.apply(event) == []
        assert dump(machine) == before
    else:
        before = dump(machine)
        machine.apply(event)
        assert dump(machine) != before


@pytest.mark.parametrize("state", EVENTS)
def test_an_event_with_a_text_that_no_utf8_can_carry_is_illegal_in_every_state(state):
    machine, _ = execution_in(state)
    assert refused(machine, Cancel("\ud800")) == ("ended" if state == "ended" else "bad_value")


# --- tasks ------------------------------------------------------------------------------------------------------------


def task_in(phase):
    machine = machine_of({"id": "a", "type": "tool", "tool": "t", "retry": {"max_attempts": 2}, "timeout_seconds": 9})
    if phase == "backoff":
        machine.apply(Outcome(1, "failed", code="first"))
    return machine, machine.last_effect


@pytest.mark.parametrize(
    ("phase", "status"), [(phase, status) for phase, row in TASKS.items() for status in row]
)  # fmt: skip
def test_a_task_does_what_the_table_says(phase, status):
    machine, number = task_in(phase)
    task = machine.level.task
    assert task.phase == phase
    machine.apply(Outcome(number, status, code="" if status == "ok" else f"was_{status}"))
    match TASKS[phase][status]:
        case "complete":
            assert machine.status == "success"
        case "retry":
            assert (task.phase, task.attempt, machine.effects[0].kind) == ("run", 2, "tool")
        case "fail" | "time_out":
            assert (task.phase, task.attempt, machine.effects[0].name) == ("backoff", 1, "retry")
        case "give_up":
            assert (machine.status, task.attempt, machine.rows[-1].code) == ("failed", 1, f"was_{status}")


@pytest.mark.parametrize("code", ["denied", "cancelled", "violation", "interrupted"])
def test_a_failure_that_is_final_is_not_tried_again(code):
    machine, number = task_in("run")
    machine.apply(Outcome(number, "failed", code=code))
    assert (machine.status, machine.rows[-1].code) == ("failed", code)


@pytest.mark.parametrize("seed", range(150))
def test_no_task_that_waits_for_an_effect_is_aborted(seed):
    rng = chance(seed)
    machine, host = Machine(parse(Programs(rng).program()), ALL_CONTEXT), Host(rng)
    while not machine.ended:
        assert all(TASKS[task.phase] for task in machine.waiting.values())
        machine.apply(host.event(machine))
