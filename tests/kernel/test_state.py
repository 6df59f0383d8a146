"""States as bytes: canonical, whole, and refused when they are anything else."""

import json

import pytest
import rfc8785
from generated_programs import ALL_CONTEXT, Host, Programs, chance
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_bridge.kernel.events import IllegalEventError, Outcome, Usage
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.state import VERSION, StateError, dump, restore, row_json

SEEDS = st.integers(0, 2**32 - 1)
often = settings(max_examples=150, deadline=None)


def tool(name, **fields):
    return {"id": name, "type": "tool", "tool": name, **fields}


def states(seed, most=40):
    """Machines at every point of a generated run, and the program."""
    rng = chance(seed)
    program = parse(Programs(rng).program())
    machine, host = Machine(program, ALL_CONTEXT), Host(rng)
    for _ in range(most):
        yield program, machine
        if machine.ended:
            return
        machine.apply(host.event(machine))


def refused(program, data):
    with pytest.raises(StateError) as caught:
        restore(program, data)
    assert str(caught.value)
    assert len(str(caught.value)) <= 300
    return caught.value.code


def small(value):
    """With integers that RFC 8785 knows, ours being longer."""
    if isinstance(value, dict):
        return {name: small(item) for name, item in value.items()}
    if isinstance(value, list):
        return [small(item) for item in value]
    return str(value) if type(value) is int and abs(value) >= 2**53 else value


# --- round trips ----------------------------------------------------------------------------------------------------------


@often
@given(SEEDS)
def test_what_is_read_back_is_the_machine_that_was_written_down(seed):
    for program, machine in states(seed):
        data = dump(machine)
        other = restore(program, data)
        assert dump(other) == data
        assert other.effects == []
        for name in ("status", "ended", "output", "error", "tokens", "rows", "pending", "last_effect", "can_resume"):
            assert getattr(other, name) == getattr(machine, name), name
        assert other.awaited() == machine.awaited()
        for number in machine.waiting:
            assert other.programs_of(number) == machine.programs_of(number)


@often
@given(SEEDS)
def test_the_order_in_which_effects_became_pending_is_kept(seed):
    for program, machine in states(seed):
        assert list(restore(program, dump(machine)).pending.items()) == list(machine.pending.items())


def test_a_state_may_be_as_large_as_what_went_into_it():
    program = parse({"steps": [tool("a"), tool("b", args={"x": "$a"})]})
    machine = Machine(program)
    machine.apply(Outcome(1, "ok", ["x" * 1000] * 5000))
    assert restore(program, dump(machine)).awaited() == machine.awaited()


# --- canonical bytes ------------------------------------------------------------------------------------------------------


@often
@given(SEEDS)
def test_a_state_is_written_as_rfc_8785_has_it(seed):
    for _, machine in states(seed):
        data = dump(machine)
        value = json.loads(data)
        assert rfc8785.dumps(small(value)) == rfc8785.dumps(small(json.loads(rfc8785.dumps(small(value)))))
        if small(value) == value:
            assert rfc8785.dumps(value) == data


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        -0.0,
        1e21,
        1e-7,
        0.1 + 0.2,
        "\u20ac\U0001f600\ufb33",
        {"\ufb33": 1, "\U0001f600": 2, "\r": 3, "1": 4},
        '\x00\x1f\x7f/\\"',
    ],
)
def test_what_writers_of_json_differ_in_is_as_rfc_8785_has_it(value):
    program = parse({"steps": [tool("a", args={"x": "$v"})]})
    data = dump(Machine(program, {"v": value}))
    assert data == rfc8785.dumps(json.loads(data))
    assert rfc8785.dumps({"x": value}) in data


def test_usage_is_canonical_too():
    program = parse({"steps": [{"id": "m", "type": "llm", "prompt": "?", "on_error": "retry"}]})
    for first, second in ((0.0, 2.0), (0.5, 0.5), (1e-7, 0.1)):
        machine = Machine(program)
        machine.apply(Outcome(1, "failed", usage=Usage(1, 2, 3, first)))
        machine.apply(Outcome(2, "ok"))
        machine.apply(Outcome(3, "ok", "x", usage=Usage(1, 2, 3, second)))
        data = dump(machine)
        assert data == rfc8785.dumps(json.loads(data))


def test_integers_of_any_size_keep_their_digits():
    program = parse({"steps": [tool("a", args={"x": "$v"})]})
    machine = Machine(program, {"v": 2**53 + 1})
    assert b"9007199254740993" in dump(machine)
    assert restore(program, dump(machine)).awaited()[0][0].arguments == {"x": 2**53 + 1}


def test_equal_machines_have_equal_bytes_however_they_came_about():
    program = parse({"steps": [tool("a", args={"x": "$o"}), tool("b")]})
    one, other = Machine(program, {"o": {"b": 1, "a": 2.0}}), Machine(program, {"o": {"a": 2, "b": 1.0}})
    assert dump(one) == dump(other)
    one.apply(Outcome(1, "ok", (1, 2.0)))
    other.apply(Outcome(1, "ok", [1.0, 2]))
    assert dump(one) == dump(other)


def test_a_row_is_told_without_what_is_empty():
    program = parse({"steps": [tool("a", on_error="skip"), tool("b"), {"id": "m", "type": "llm", "prompt": "?"}]})
    machine = Machine(program)
    machine.apply(Outcome(1, "failed", code="c", message="m"))
    machine.apply(Outcome(2, "ok"))
    machine.apply(Outcome(3, "ok", "x", usage=Usage(1, 2, 3)))
    assert [row_json(row) for row in machine.rows] == [
        {"id": "a", "status": "skipped", "error": "m", "code": "c"},
        {"id": "b", "status": "success", "output": None},
        {
            "id": "m",
            "status": "success",
            "output": "x",
            "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "cost_usd": 0},
        },
    ]


# --- what is refused ------------------------------------------------------------------------------------------------------

PROGRAM = parse({
    "steps": [
        tool("u", compensate={"tool": "undo"}),
        {
            "id": "p",
            "type": "program",
            "timeout_seconds": 9,
            "program": {
                "steps": [
                    {
                        "id": "m",
                        "type": "map",
                        "over": [1, 2, 3],
                        "step": {"type": "llm", "prompt": "?", "on_error": "retry"},
                        "timeout_seconds": 5,
                    }
                ]
            },
        },
    ]
})  # fmt: skip


def busy():
    """A machine with levels, groups, deadlines, usage, an attempt to come and something to undo."""
    machine = Machine(PROGRAM, {"k": 1})
    machine.apply(Outcome(1, "ok", "done"))
    machine.apply(Outcome(5, "failed", usage=Usage(1, 2, 3)))
    machine.apply(Outcome(6, "ok", "x", usage=Usage(1, 2, 3)))
    return machine


def test_the_state_of_another_program_is_refused():
    other = parse(PROGRAM.data | {"name": "other"})
    assert refused(other, dump(busy())) == "other_program"


def test_a_program_that_runs_another_by_name_is_another_when_that_one_has_changed():
    step = {"id": "p", "type": "program", "program": "n"}
    one, two = (parse({"steps": [step]}, {"n": parse({"steps": [tool(name)]})}.get) for name in "ab")
    assert refused(two, dump(Machine(one))) == "other_program"


@pytest.mark.parametrize("version", [VERSION + 1, 0, -1, 1.5, True, str(VERSION), None, [VERSION]])
def test_a_state_of_another_version_is_refused(version):
    state = json.loads(dump(busy()))
    assert refused(PROGRAM, rfc8785.dumps(state | {"version": version})) == "other_version"


LOOP = parse(
    {
        "steps": [tool("a", on_error="skip"), tool("b", args={"x": "$a"}, next_step="a")],
    }
)


@pytest.mark.parametrize(("version", "given"), [(1, 5), (2, "$a")])
def test_a_state_goes_on_by_the_rules_that_it_was_begun_with(version, given):
    machine = Machine(LOOP, {}, version)
    for outcome in (Outcome(1, "ok", 5), Outcome(2, "ok"), Outcome(3, "failed")):
        data = dump(machine)
        assert json.loads(data)["version"] == version
        machine = restore(LOOP, data)
        machine.apply(outcome)
    ((effect, _),) = machine.awaited()
    assert (effect.step, effect.arguments) == ("b", {"x": given})


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"null", b"5", b'"text"', b"{", b"\xff\xfe", b"NaN", b"[" * 200_000, b'{"version":1}',
        b'{"version":"1","program":5}', b'{"version":[],"program":{}}', b"9" * 5000,
    ],
)  # fmt: skip
def test_what_is_no_state_is_refused(data):
    assert refused(PROGRAM, data) in {"bad_state", "other_version"}


def test_every_state_that_was_cut_short_is_refused():
    data = dump(busy())
    for length in range(len(data)):
        refused(PROGRAM, data[:length])


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data + b"\n",
        lambda data: data.replace(b'":', b'": '),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: json.dumps(dict(reversed(json.loads(data).items())), separators=(",", ":")).encode(),
        lambda data: data.replace(b'"k":1', b'"k":1.0'),
        lambda data: data.replace(b'"k":1', b'"k":NaN'),
        lambda data: data.replace(b'"k":1', b'"k":1,"k":1'),
        lambda data: data.replace(b'"k"', b'"\\u006b"'),
        lambda data: data.replace(b'{"k":1}', b'{"k":1,"k\\ud800":1}'),
    ],
)
def test_bytes_that_mean_the_same_and_are_not_canonical_are_refused(change):
    data = dump(busy())
    assert change(data) != data
    assert refused(PROGRAM, change(data)) == "bad_state"


def places(value, path=()):
    yield path
    if isinstance(value, (dict, list)):
        for name in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[name], (*path, name))


def changed(value, path, new):
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], new) if path[1:] else new
    return copy


def free(path):
    """Whether a place may hold any JSON value."""
    named = {"context", "outputs", "last_output", "output", "arguments", "results"}
    return bool(named & set(path)) or "items" in path[:-1]


def test_a_value_of_another_type_is_refused_wherever_it_stands():
    state = json.loads(dump(busy()))
    found = [path for path in places(state) if not free(path)]
    assert len(found) > 80
    for path in found:
        value = state
        for name in path:
            value = value[name]
        for new in (None, True, -1, 10**30, 1.5, "odd", [], [[]], {}, {"odd": 1}):
            if type(new) is not type(value):
                bad = changed(state, path, new)
                try:
                    machine = restore(PROGRAM, dumped(bad))
                except StateError:
                    continue
                # What is optional may be missing.
                assert new is None or value is None or (type(value), type(new)) == (int, float), (path, value, new)
                lives(machine)


def dumped(state):
    return (
        rfc8785.dumps(small(state))
        if small(state) == state
        else json.dumps(state, sort_keys=True, separators=(",", ":")).encode()
    )


def lives(machine):
    """Whatever it is, it takes events or refuses them."""
    host = Host(chance(0))
    for _ in range(100):
        if machine.ended:
            return
        try:
            machine.apply(host.event(machine))
        except IllegalEventError:
            return


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("last_effect",), 2),
        (("pending",), [[99, ""]]),
        (("pending",), [[2, ""]]),
        (("pending",), [[4, 5]]),
        (("level", "status"), "asleep"),
        (("level", "status"), "success"),
        (("level", "task"), None),
        (("level", "position"), -1),
        (("level", "position"), 2),
        (("level", "position"), 0),
        (("level", "undo"), [["u", "undo"]]),
        (("level", "ending"), ["asleep", "", None]),
        (("level", "task", "phase"), "asleep"),
        (("level", "task", "deadline", "id"), 3),
        (("level", "task", "inner", "task", "tasks", "9"), {}),
        (("level", "task", "inner", "task", "results", "9"), {"id": "x", "status": "success", "output": 1}),
        (("level", "task", "inner", "task", "items"), [1]),
        (("rows", 0, "status"), "asleep"),
        (("rows", 0, "odd"), 1),
        (("odd",), 1),
    ],
)
def test_what_no_machine_can_be_in_is_refused(path, value):
    assert refused(PROGRAM, dumped(changed(json.loads(dump(busy())), path, value))) == "bad_state"


@often
@given(SEEDS, st.data())
def test_bytes_with_a_fault_in_them_are_refused_or_are_another_state(seed, data):
    *_, (program, machine) = states(seed, most=6)
    whole = bytearray(dump(machine))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    try:
        other = restore(program, bytes(whole))
    except StateError:
        return
    assert dump(other) == bytes(whole)
