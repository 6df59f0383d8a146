"""The published JSON Schema and the validator are one: whatever the one accepts, the other does."""

import copy
import random
from collections import Counter

import pytest
from jsonschema import Draft202012Validator
from sample_steps import MINIMAL, OWN, SAMPLES, step_of, steps

from mcp_bridge.kernel.language import step_fields as form
from mcp_bridge.kernel.language.program_parser import MAX_NESTED_PROGRAMS, InvalidProgramError, parse
from mcp_bridge.kernel.language.program_schema import json_schema

SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
NOT_OF_FORM = {
    "unknown_step",
    "duplicate_id",
    "bad_condition",
    "bad_reference",
    "unknown_program",
    "program_cycle",
    "too_large",
}
"""What no schema can say."""


def faults(data):
    try:
        parse(data)
    except InvalidProgramError as exc:
        return [fault for fault in exc.faults if fault.code not in NOT_OF_FORM]
    return []


def agree(data):
    """Whether a program is right in form, on which both have to agree."""
    found = faults(data)
    accepted = VALIDATOR.is_valid(data)
    assert accepted is (not found), (data, found, [error.message for error in VALIDATOR.iter_errors(data)])
    return accepted


def test_it_is_a_schema():
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == Draft202012Validator.META_SCHEMA["$id"]


def test_making_it_changes_nothing_that_the_validator_reads():
    before = copy.deepcopy((form.FIELDS, form.PROGRAM, form.TYPES))
    fragments = [copy.deepcopy(form.step_fragment(kind)) for kind in form.TYPES]
    assert json_schema() == json_schema() == SCHEMA
    assert before == (form.FIELDS, form.PROGRAM, form.TYPES)
    assert [form.step_fragment(kind) for kind in form.TYPES] == fragments


@pytest.mark.parametrize(("kind", "name"), OWN)
def test_each_field_of_each_type_takes_the_same_values(kind, name):
    right, wrong = SAMPLES[name]
    for value in right + wrong:
        agree(steps(step_of(kind, **{name: value})))
    assert all(agree(steps(step_of(kind, **{name: value}))) for value in right)


@pytest.mark.parametrize("kind", form.TYPES)
def test_each_field_of_any_other_type_does_too(kind):
    for name, (right, wrong) in SAMPLES.items():
        for value in right + wrong:
            agree(steps(step_of(kind, **{name: value})))
            if kind in form.PARALLEL_TYPES:
                agree(steps(step_of("parallel", parallel_steps=[step_of(kind, **{name: value})])))
            if kind in form.MAP_TYPES:
                agree(steps(step_of("map", step=step_of(kind, **{name: value}))))


@pytest.mark.parametrize("name", form.PROGRAM)
def test_the_fields_of_a_program_do_too(name):
    for value in (
        None,
        "",
        "x",
        "x" * 200,
        "x" * 201,
        0,
        1,
        1.0,
        -0.0,
        1.5,
        -1,
        True,
        [],
        {},
        10**12,
        10**12 + 1,
        1e12,
    ):
        agree(steps(step_of("tool")) | {name: value})


@pytest.mark.parametrize("value", [None, True, 0, "", "x", [], {}, [1], [None], {"steps": []}, {"steps": None}])
def test_whatever_else_comes_is_refused_by_both(value):
    assert not agree(value)


def test_programs_written_out_inside_programs_are_part_of_it():
    data = steps(step_of("tool"))
    for _ in range(MAX_NESTED_PROGRAMS + 2):
        data = steps(step_of("program", program=data))
        assert agree(data)
    inner = steps(step_of("map", step=step_of("program", program=steps(step_of("tool", tool=1)))))
    assert not agree(steps(step_of("program", program=inner)))


# --- near-valid programs ---

ODD = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2.0,
    -0.0,
    0.5,
    1000,
    1001,
    1001.0,
    10**12,
    10**12 + 1,
    1e12,
    1e300,
    form.MAX_SECONDS,
    form.MAX_SECONDS + 0.5,
    "",
    "$",
    "$a",
    "fail",
    "skip",
    "fallback",
    "item",
    "x" * 200,
    "x" * 201,
    [],
    {},
    [None],
    ["x"],
    [[]],
    {"x": 1},
    {"tool": "t"},
    {"schedule": [1], "multiplier": 2},
    {"id": "n", "type": "tool", "tool": "t"},
    {"steps": [{"id": "n", "type": "wait", "event": "e"}]},
]
NAMES = [*form.FIELDS, *form.PROGRAM, "schedule", "max_attempts", "x", "Type", "id "]


class Near:
    """Makes programs that are valid, or a few changes away from that."""

    def __init__(self, seed):
        self._random = random.Random(seed)  # noqa: S311 - the same again for the same seed

    def program(self):
        data = self._valid(depth=0)
        for _ in range(self._random.choice([0, 1, 1, 1, 2, 3])):
            self._change(data)
        return data

    def _valid(self, depth):
        count = self._random.choice([1, 1, 2])
        data = steps(*(self._step(self._random.choice(list(form.TYPES)), depth) for _ in range(count)))
        if self._random.random() < 0.3:
            data["max_steps"] = self._random.choice([0, 5, 7.0, None])
        return data

    def _step(self, kind, depth):
        step = step_of(kind) | {"id": f"s{self._random.randrange(100)}"}
        names = form.TYPES[kind].required + form.TYPES[kind].optional
        for name in self._random.sample(names, self._random.randrange(min(4, len(names) + 1))):
            step[name] = self._random.choice(SAMPLES[name][0])
        if kind == "wait":
            step.pop(self._random.choice(["seconds", "event"]), None)
            step |= {} if step.get("seconds") is not None else {"event": "e"}
        if kind == "parallel" and depth < 2:
            step["parallel_steps"] = [self._inside(form.PARALLEL_TYPES, depth) for _ in range(2)]
        if kind == "map" and depth < 2:
            step["step"] = self._inside(form.MAP_TYPES, depth)
        if kind == "program" and depth < 2:
            step["program"] = self._valid(depth + 1)
        if self._random.random() < 0.2:
            step = {name: default for name, (_, default) in form.FIELDS.items()} | step
        return copy.deepcopy(step)

    def _inside(self, kinds, depth):
        step = self._step(self._random.choice(kinds), depth + 1)
        for name in ("next_step", "is_terminal"):
            step.pop(name, None)
        return step

    def _change(self, data):
        holder = self._random.choice(list(containers(data)))
        if isinstance(holder, dict):
            action = self._random.randrange(5)
            if action == 0 and holder:
                del holder[self._random.choice(list(holder))]
            elif action <= 2 or not holder:
                holder[self._random.choice(NAMES)] = self._odd()
            else:
                name = self._random.choice(list(holder))
                holder[name] = self._like(holder[name])
        elif holder and self._random.random() < 0.7:
            place = self._random.randrange(len(holder))
            holder[place] = self._like(holder[place])
        elif holder and self._random.random() < 0.5:
            del holder[self._random.randrange(len(holder))]
        else:
            holder.append(self._odd())

    def _odd(self):
        return copy.deepcopy(self._random.choice(ODD))

    def _like(self, value):
        """Something else, or the same in other words."""
        if type(value) is int and self._random.random() < 0.5:
            return self._random.choice([float(value), bool(value), str(value), value + 0.5, -value])
        return self._odd()


def containers(value):
    if isinstance(value, (dict, list)):
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers(item)


@pytest.mark.parametrize("first", range(0, 3000, 500))
def test_both_accept_the_same_near_valid_programs(first):
    found = Counter(agree(Near(seed).program()) for seed in range(first, first + 500))
    assert min(found[True], found[False]) > 100


def test_the_samples_that_programs_are_made_from_are_valid():
    for kind in MINIMAL:
        assert agree(steps(step_of(kind)))
