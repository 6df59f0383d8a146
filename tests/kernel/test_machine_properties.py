"""Properties of the machine over generated programs and generated orders of outcomes."""

import json
import re
from collections import Counter
from zlib import crc32

import pytest
from generated_programs import ALL_CONTEXT, Host, Programs, chance
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_bridge.kernel.events import Cancel, IllegalEventError, Outcome, Redo, Resume, Usage
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.state import dump, restore

MOST_EVENTS = 5000
"""Far above what any of these programs takes: each level has a budget of at most 15 steps."""

SEEDS = st.integers(0, 2**32 - 1)
ENDS = {"success", "failed", "budget_exceeded", "stalled", "cancelled"}

thorough = settings(max_examples=300, deadline=None)


class Run:
    """A generated program under a generated host.

    Iterating gives the machine before each event; where the loop's body applies none, the host's next one comes.
    """

    def __init__(self, seed, **kinds):
        self.rng = chance(seed)
        known = {"budgets", "deadlines", "concurrent_programs"}
        self.data = Programs(self.rng, **{name: value for name, value in kinds.items() if name in known}).program()
        self.program = parse(self.data)
        self.host = Host(self.rng, deadlines=kinds.get("deadlines", True), suspends=kinds.get("suspends", True))
        self.machine = Machine(self.program, ALL_CONTEXT)
        self._events = 0
        self.emitted = list(self.machine.effects)

    def __iter__(self):
        for _ in range(MOST_EVENTS):
            if self.machine.ended:
                return
            before = self._events
            yield self.machine
            if self._events == before:
                self.apply(self.host.event(self.machine))
        pytest.fail(f"no end after {MOST_EVENTS} events: {self.data}")

    def apply(self, event):
        self._events += 1
        effects = self.machine.apply(event)
        self.emitted += effects
        return effects

    def end(self):
        for _ in self:
            pass
        return self.machine


# --- every run ends, and each effect is one -----------------------------------------------------------------------------


@thorough
@given(SEEDS)
def test_every_run_ends(seed):
    machine = Run(seed).end()
    assert machine.status in ENDS
    assert machine.awaited() == []
    assert machine.pending == {}
    assert (machine.error is None) == (machine.status == "success")
    assert machine.output is None or machine.status == "success"


@thorough
@given(SEEDS)
def test_each_effect_has_a_number_of_its_own_and_a_path_to_its_step(seed):
    run = Run(seed)
    machine = run.end()
    # One that a person says hasn't happened is wanted again, as it was.
    assert list(dict.fromkeys(effect.id for effect in run.emitted)) == list(range(1, machine.last_effect + 1))
    assert len({repr(effect) for effect in run.emitted}) == machine.last_effect
    cancelled = [number for effect in run.emitted if effect.kind == "cancel" for number in effect.arguments["effects"]]
    assert len(cancelled) == len(set(cancelled))
    for effect in run.emitted:
        step_at(run.data, effect.step)


@thorough
@given(SEEDS)
def test_what_is_awaited_is_what_was_emitted_and_has_neither_ended_nor_been_cancelled(seed):
    run = Run(seed)
    for machine in run:
        awaited = {effect.id: (effect, pending) for effect, pending in machine.awaited()}
        assert set(awaited) == machine.waiting.keys() | machine.deadlines.keys()
        cancelled = {n for effect in run.emitted if effect.kind == "cancel" for n in effect.arguments["effects"]}
        assert not cancelled & awaited.keys()
        assert all(effect in run.emitted for effect, _ in awaited.values())
        assert {number for number, (_, pending) in awaited.items() if pending} == machine.pending.keys()
        waits = [pending for effect, pending in awaited.values() if effect.id not in machine.deadlines]
        assert waits, "a machine that runs waits for something"
        assert machine.status == ("suspended" if all(waits) else "running")


# --- nothing illegal changes anything -----------------------------------------------------------------------------------

NOT_JSON = [float("nan"), float("inf"), {1: 2}, object(), "\ud800", {"\udfff": 1}, b"x", 10**101, {1, 2}]


def illegal_events(machine, ended):
    """Events that no machine in this state may take, with the code of the refusal; `ended`: effects that have."""
    for number in (0, -1, machine.last_effect + 1, *ended):
        yield Outcome(number, "ok", 1), "unknown_effect"
        yield Outcome(number, "pending"), "unknown_effect"
        yield Redo(number), "not_in_doubt"
        yield Resume(1, effect=number), "not_pending"
    if not machine.can_resume:
        yield Resume(1), "not_pending"
    yield Cancel("\ud800"), "bad_value"
    for effect, pending in machine.awaited():
        if machine.pending.get(effect.id) != "in_doubt":
            yield Redo(effect.id), "not_in_doubt"
        if effect.id in machine.deadlines:
            for status in ("failed", "timeout", "denied"):
                yield Outcome(effect.id, status), "bad_value"
            yield Resume(1, effect=effect.id), "not_pending"
        else:
            yield from illegal_outcomes(effect)
            yield from (
                illegal_when_pending(machine, effect) if pending else [(Resume(1, effect=effect.id), "not_pending")]
            )


BAD_USAGE = [
    Usage(-1),
    Usage(1.5),
    Usage(total_tokens=10**16),
    Usage(prompt_tokens=True),
    Usage(cost_usd=float("nan")),
    Usage(cost_usd="1"),
    Usage(cost_usd=-0.5),
]


def illegal_outcomes(effect):
    number = effect.id
    for value in NOT_JSON:
        yield Outcome(number, "ok", value), "bad_value"
    yield Outcome(number, "failed", message="\ud800"), "bad_value"
    yield Outcome(number, "failed", code="\udc00"), "bad_value"
    for usage in BAD_USAGE:
        yield Outcome(number, "timeout", usage=usage), "bad_value"
    if effect.kind == "llm":
        yield Outcome(number, "pending"), "bad_value"
        for value in (None, 5, ["yes"]):
            yield Outcome(number, "ok", value), "bad_value"
    if effect.kind == "approval":
        for value in (True, {}, {"approved": 1}, {"approved": None}, "approved"):
            yield Outcome(number, "ok", value), "bad_value"


def illegal_when_pending(machine, effect):
    number = effect.id
    if (code := machine.pending[number]) != "in_doubt":
        # A call that turns out to wait for something else is in doubt no more.
        yield Outcome(number, "pending", code="approval"), "already_pending"
    if effect.kind in {"tool", "event"} and code not in {"approval", "in_doubt"}:
        yield Outcome(number, "pending"), "already_pending"
        yield Resume(float("nan"), effect=number), "bad_value"
        yield Resume(1, "\ud800", effect=number), "bad_value"
    else:
        yield Resume(1, effect=number), "not_resumable"


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_an_illegal_event_is_refused_and_changes_nothing(seed):
    run = Run(seed)
    for machine in run:
        before, awaited = dump(machine), machine.awaited()
        ended = {effect.id for effect in run.emitted} - {effect.id for effect, _ in awaited}
        for event, code in illegal_events(machine, sorted(ended)[-3:]):
            with pytest.raises(IllegalEventError) as caught:
                machine.apply(event)
            assert caught.value.code == code, event
            assert str(caught.value)
            assert (dump(machine), machine.awaited()) == (before, awaited), event


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_when_it_has_ended_every_event_is_illegal(seed):
    run = Run(seed)
    machine = run.end()
    before = dump(machine)
    for event in (Cancel(), Resume(), *(Outcome(effect.id, "ok", "x") for effect in run.emitted)):
        with pytest.raises(IllegalEventError) as caught:
            machine.apply(event)
        assert caught.value.code == "ended"
        assert dump(machine) == before


# --- budgets --------------------------------------------------------------------------------------------------------------


def levels(data, state):
    """Programs and their states, at every depth, in a dumped machine."""

    def inside(step, task):
        if task.get("inner"):
            yield from levels(step["program"], task["inner"])
        for child in task.get("tasks", {}).values():
            yield from inside(step.get("step", {}), child)

    yield data, state
    if state["task"] and not state["task"]["undo"]:
        yield from inside(data["steps"][state["position"]], state["task"])


@thorough
@given(SEEDS)
def test_budgets_are_never_passed(seed):
    run = Run(seed)
    emitted = list(run.machine.effects)
    for machine in run:
        found = list(levels(run.data, json.loads(dump(machine))["level"]))
        for program, level in found:
            assert level["steps"] <= program["max_steps"]
            assert level["stalled"] <= program.get("max_stalled_steps", level["stalled"])
        for effect in emitted:
            if effect.kind in {"tool", "llm"} and not effect.step.endswith(".compensate"):
                assert machine.tokens < run.data.get("max_tokens", 10**9), "a step began without a budget"
        emitted = run.apply(run.host.event(machine))
    own = {step["id"] for step in run.data["steps"]}
    ended = [row for row in run.machine.rows if row.id in own and row.status != "pending"]
    assert len(ended) <= run.data["max_steps"]


@thorough
@given(SEEDS)
def test_tokens_are_those_of_every_answer_whatever_became_of_it(seed):
    run = Run(seed)
    spent, cost = 0, Counter()
    for machine in run:
        event = run.host.event(machine)
        if isinstance(event, Outcome) and event.usage is not None:
            spent += event.usage.total_tokens
            cost[machine.waiting[event.effect].path] += 1
        run.apply(event)
        assert run.machine.tokens == spent
    told = Counter()
    for row in run.machine.rows:
        if row.usage is not None:
            assert row.usage.total_tokens == 3 * row.usage.prompt_tokens
            told[row.id] += row.usage.prompt_tokens
    assert all(told[path] <= cost[path] for path in told)


# --- what is undone -------------------------------------------------------------------------------------------------------


def step_at(data, path):
    """The step that a path leads to; a compensation's is the step that it undoes."""
    head, _, rest = path.partition("/")
    name, slot = re.fullmatch(r"([abc]\d+(?:_\d+)?)(\[\d+\])?(?:\.compensate)?", head).groups()
    steps = {step["id"]: step for step in data["steps"]}
    steps |= {child["id"]: child for step in data["steps"] for child in step.get("parallel_steps", ())}
    step = steps[name]["step"] if slot else steps[name]
    return step_at(step["program"], rest) if rest else step


def to_undo(data, rows):
    """What is still to be undone after these rows, last first; fails if something was undone that had not been done."""
    done = []
    for row in rows:
        if row.id.endswith(".compensate"):
            name = row.id.removesuffix(".compensate")
            assert done, f"{name} was undone twice, or never done"
            yield name, done.pop()
        elif row.status == "success" and "compensate" in step_at(data, row.id):
            done.append(row.id)
    yield None, done


@thorough
@given(SEEDS, st.booleans())
def test_exactly_what_was_done_is_undone_in_reverse(seed, cancelled):
    # What was suspended has its row before its output; programs beside each other undo beside each other.
    run = Run(seed, suspends=False, concurrent_programs=False)
    at = run.rng.randrange(12) if cancelled else -1
    for number, machine in enumerate(run):
        if number == at:
            machine.apply(Cancel())
            if machine.ended:
                break
    *undone, (_, left) = to_undo(run.data, run.machine.rows)
    assert all(name == done for name, done in undone)
    if run.machine.status != "success":
        assert left == []


@thorough
@given(SEEDS)
def test_also_beside_each_other_each_is_undone_once_and_only_if_it_was_done(seed):
    run = Run(seed, suspends=False)
    run.end()
    done = Counter()
    for row in run.machine.rows:
        if row.id.endswith(".compensate"):
            done[row.id.removesuffix(".compensate")] -= 1
        elif row.status == "success" and "compensate" in step_at(run.data, row.id):
            done[row.id] += 1
        assert min(done.values(), default=0) >= 0
    if run.machine.status != "success":
        assert not any(done.values())


# --- cancelling -----------------------------------------------------------------------------------------------------------


@thorough
@given(SEEDS, st.integers(0, 30))
def test_it_can_be_cancelled_at_any_point_and_ends(seed, at):
    run = Run(seed)
    for number, machine in enumerate(run):
        if number != at:
            continue
        winding_down = machine.level.ending
        run.apply(Cancel("enough"))
        for effect, _ in machine.awaited():
            assert effect.step.endswith(".compensate") or winding_down, effect
        if winding_down is None:
            assert machine.level.ending == ("cancelled", "cancelled", "enough")
        before = dump(machine)
        if not machine.ended:
            assert machine.apply(Cancel("again")) == []
            assert dump(machine) == before
        expected = winding_down[0] if winding_down else "cancelled"
        run.end()
        assert machine.status == expected
        assert machine.error == ("enough" if winding_down is None else winding_down[2])
        return


# --- order ----------------------------------------------------------------------------------------------------------------


def answer(effect):
    """An outcome that depends on nothing but the step and the attempt."""
    rng = chance(crc32(f"{effect.kind}{effect.name}{effect.step}{effect.attempt}".encode()))
    return Host(rng, suspends=False).outcome(effect)


def run_in_order(program, rng):
    machine = Machine(program, ALL_CONTEXT)
    while not machine.ended:
        waiting = [effect for effect, _ in machine.awaited() if effect.id not in machine.deadlines]
        machine.apply(answer(rng.choice(waiting) if rng else waiting[0]))
    return machine


@thorough
@given(SEEDS, SEEDS)
def test_the_order_in_which_outcomes_come_does_not_matter(seed, order):
    made = Programs(chance(seed), budgets=False, concurrent_programs=False)
    program = parse(made.program())
    expected = run_in_order(program, None)
    assert dump(run_in_order(program, chance(order))) == dump(expected)


@thorough
@given(SEEDS, SEEDS)
def test_programs_beside_each_other_end_alike_in_whatever_order_their_outcomes_come(seed, order):
    program = parse(Programs(chance(seed), budgets=False).program())
    found = []
    for rng in (None, chance(order)):
        machine = run_in_order(program, rng)
        found.append(
            (machine.status, machine.output, machine.error, sorted(map(repr, machine.rows)), machine.last_effect)
        )
    assert found[0] == found[1]


# --- the state is all there is --------------------------------------------------------------------------------------------


@thorough
@given(SEEDS)
def test_a_machine_that_is_written_down_and_read_back_at_every_point_goes_on_as_one_that_is_not(seed):
    run = Run(seed)
    other = Machine(run.program, ALL_CONTEXT)
    for machine in run:
        assert other.awaited() == machine.awaited()
        event = run.host.event(machine)
        assert run.apply(event) == other.apply(event)
        data = dump(other)
        assert data == dump(run.machine)
        other = restore(run.program, data)
    assert (other.status, other.output, other.error, other.rows) == (
        run.machine.status, run.machine.output, run.machine.error, run.machine.rows,
    )  # fmt: skip


def backwards(value):
    """Equal, with names in another order."""
    if isinstance(value, dict):
        return {name: backwards(value[name]) for name in reversed(value)}
    return [backwards(item) for item in value] if isinstance(value, list) else value


@thorough
@given(SEEDS)
def test_the_order_of_names_in_values_and_programs_changes_no_byte(seed):
    run = Run(seed)
    other = Machine(parse(backwards(run.data)), backwards(ALL_CONTEXT))
    for machine in run:
        event = run.host.event(machine)
        run.apply(event)
        other.apply(
            event._replace(**{n: backwards(getattr(event, n)) for n in ("value", "payload") if hasattr(event, n)})
        )
        assert dump(other) == dump(run.machine)


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_values_that_came_in_are_never_changed(seed):
    context = json.loads(json.dumps(ALL_CONTEXT))
    rng = chance(seed)
    data = Programs(rng).program()
    before = json.dumps([context, data])
    machine, host, given_events = Machine(parse(data), context), Host(rng), []
    while not machine.ended:
        event = host.event(machine)
        given_events.append((event, repr(event)))
        machine.apply(event)
    assert json.dumps([context, data]) == before
    assert all(repr(event) == shown for event, shown in given_events)
