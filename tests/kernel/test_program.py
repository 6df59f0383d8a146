"""Programs as data: what is read, what is refused and how it is told."""

import itertools
import json
import math
import os
import subprocess
import sys
import tracemalloc
import types
from pathlib import Path

import pytest
from sample_steps import MINIMAL, OWN, SAMPLES, step_of, steps, tool

from mcp_bridge.kernel.language import program_warnings
from mcp_bridge.kernel.language import step_fields as form
from mcp_bridge.kernel.language.format_faults import Fault
from mcp_bridge.kernel.language.program_parser import (
    MAX_BYTES,
    MAX_FAULTS,
    MAX_NESTED_PROGRAMS,
    InvalidProgramError,
    bundle,
    parse,
    unbundle,
)
from mcp_bridge.kernel.language.program_warnings import edges
from mcp_bridge.kernel.retry import BACKOFF_SECONDS, Retry

TOOL = {"id": "a", "type": "tool", "tool": "t"}


def faults(data, resolve=None):
    """Paths and codes of everything that is wrong."""
    with pytest.raises(InvalidProgramError) as caught:
        parse(data, resolve)
    for fault in caught.value.faults:
        assert fault.message
        assert str(fault).encode()
        assert len(str(fault)) < 1000
    return [(fault.path, fault.code) for fault in caught.value.faults]


def messages(data, resolve=None):
    with pytest.raises(InvalidProgramError) as caught:
        parse(data, resolve)
    return [str(fault) for fault in caught.value.faults]


def work(function):
    """How many functions Python called meanwhile: a measure of work that no other process changes."""
    count = 0

    def called(_frame, event, _argument):
        nonlocal count
        if event in {"call", "c_call"}:
            count += 1

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


# --- all mistakes at once ---


def test_ten_mistakes_are_told_at_once_each_with_its_place():
    data = {
        "naem": "x",
        "max_steps": "many",
        "steps": [
            tool("a", next_step="nowhere"),
            {"id": "a", "type": "llm", "prompt": ""},
            {"id": "c", "type": "condition", "condition": "$a = 1", "then": "a"},
            {"type": "tool", "tool": "t"},
            {"id": "w", "type": "sleep"},
            {"id": "p", "type": "parallel", "parallel_steps": [{"id": "x", "type": "condition", "condition": "1"}]},
            {"id": "m", "type": "map", "over": "items", "step": {"type": "tool", "tool": 5}},
            {"id": "r", "type": "program", "program": "absent"},
            {"id": "q", "type": "tool", "tool": "t", "on_error": "ignore", "prompt": "x"},
            {"id": "z", "type": "condition", "condition": "True"},
            7,
            {"id": "u", "type": "program", "program": steps(tool("v", args=[]))},
        ],
    }
    assert faults(data) == [
        ("naem", "unknown_field"),
        ("max_steps", "bad_type"),
        ("steps[1].id", "duplicate_id"),
        ("steps[1].prompt", "bad_value"),
        ("steps[2].condition", "bad_condition"),
        ("steps[3]", "missing_field"),
        ("steps[4].type", "bad_value"),
        ("steps[5].parallel_steps[0].type", "bad_value"),
        ("steps[6].step.tool", "bad_type"),
        ("steps[6].over", "bad_reference"),
        ("steps[7].program", "unknown_program"),
        ("steps[8].on_error", "bad_value"),
        ("steps[8].prompt", "unknown_field"),
        ("steps[9]", "missing_field"),
        ("steps[10]", "bad_type"),
        ("steps[11].program.steps[0].args", "bad_type"),
        ("steps[0].next_step", "unknown_step"),
    ]


def test_messages_say_what_would_be_right():
    data = steps(
        tool("first", next_step="frist", arguments={}),
        {"id": "c", "type": "condition", "condition": "$a == yes", "then": "first", "prompt": "x"},
        {"id": "p", "type": "parallel", "parallel_steps": [tool("x", is_terminal=True)]},
        tool("t", timeout_seconds=0, max_retries=1001, on_error="ignore"),
        naem="n",
    )
    assert messages(data) == [
        "naem: there is no such field; did you mean 'name'?",
        "steps[0].arguments: there is no such field; did you mean 'args'?",
        "steps[1].prompt: this belongs to llm steps; this step is of type condition",
        "steps[1].condition: 'yes' stands where a value should be: a reference is written $yes, a text 'yes'"
        " (at character 7)",
        "steps[2].parallel_steps[0].is_terminal: a step inside another has no flow of its own",
        "steps[3].timeout_seconds: 0 should be a number above 0 and of at most 316224000",
        "steps[3].max_retries: 1001 should be an integer of at least 0 and of at most 1000",
        "steps[3].on_error: 'ignore' should be one of fail, skip, retry",
        "steps[0].next_step: no step 'frist'; did you mean 'first'?",
    ]


@pytest.mark.parametrize(
    ("step", "advice"),
    [
        ({"type": "tool", "name": "t"}, "tool"),
        ({"type": "tool", "tool": "t", "name": "t"}, None),
        ({"type": "tool", "tool": "t", "inputs": {}}, "args"),
        ({"type": "program", "program": "inner", "input": {}}, "context"),
        ({"type": "tool", "tool": "t", "args": {}, "arguments": {}}, None),
        ({"type": "tool", "tool": "t", "parsed": "json"}, "parse"),
        ({"type": "llm", "promt": "?"}, "prompt"),
        ({"type": "wait", "duration": 1}, "seconds"),
        ({"type": "wait", "seconds": 1, "promt": 1}, None),
        ({"type": "map", "over": [], "steps": []}, "step"),
        ({"type": "parallel", "steps": []}, "parallel_steps"),
        ({"type": "condition", "if": "$a", "then": "s"}, "condition"),
    ],
)
def test_of_a_field_that_there_is_not_one_is_named_that_the_step_may_have_and_has_not(step, advice):
    (told,) = [text for text in messages(steps({"id": "s", **step})) if "there is no such field" in text]
    assert told.partition("; ")[2] == (f"did you mean {advice!r}?" if advice else "")


def test_the_error_tells_the_first_fault_and_how_many_more():
    with pytest.raises(InvalidProgramError) as caught:
        parse(steps(tool("a", next_step="x"), tool("b", next_step="y"), tool("c", next_step="z")))
    assert str(caught.value) == "the program is not valid: steps[0].next_step: no step 'x' (and 2 more)"


CODES = {
    "unknown_field": steps(tool("a", nothing=1)),
    "missing_field": steps({"id": "a", "type": "tool"}),
    "bad_type": steps(tool("a", args=5)),
    "bad_value": steps(tool("a", on_error="x")),
    "unknown_step": steps(tool("a", next_step="b")),
    "duplicate_id": steps(TOOL, TOOL),
    "bad_condition": steps({"id": "a", "type": "condition", "condition": "(", "then": "a"}),
    "bad_reference": steps({"id": "a", "type": "wait", "seconds": "soon"}),
    "unknown_program": steps({"id": "a", "type": "program", "program": "x"}),
    "not_json": steps(tool("a", args={"x": math.nan})),
    "too_large": steps(tool("a", args={"x": "y" * MAX_BYTES})),
}


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_a_program_that_gets_it_alone(code):
    assert [found for _, found in faults(CODES[code])] == [code]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (None, ("", "bad_type")),
        ([], ("", "bad_type")),
        ("steps", ("", "bad_type")),
        (5, ("", "bad_type")),
        ({}, ("", "missing_field")),
        ({"steps": None}, ("steps", "bad_type")),
        ({"steps": {}}, ("steps", "bad_type")),
        ({"steps": "ab"}, ("steps", "bad_type")),
        ({"steps": []}, ("steps", "bad_value")),
        ({"steps": [None]}, ("steps[0]", "bad_type")),
        ({"steps": [[]]}, ("steps[0]", "bad_type")),
        ({"steps": [TOOL], "name": None}, ("name", "bad_type")),
        ({"steps": [TOOL], "name": "n" * 201}, ("name", "bad_value")),
        ({"steps": [TOOL], "version": 1}, ("version", "bad_type")),
        ({"steps": [TOOL], "max_steps": -1}, ("max_steps", "bad_value")),
        ({"steps": [TOOL], "max_steps": True}, ("max_steps", "bad_type")),
        ({"steps": [TOOL], "max_tokens": 1.5}, ("max_tokens", "bad_type")),
        ({"steps": [TOOL], "max_stalled_steps": 10**12 + 1}, ("max_stalled_steps", "bad_value")),
        ({"steps": [TOOL], 5: 1}, ("", "not_json")),
        ({"steps": [TOOL], "x": b""}, ("x", "not_json")),
        ({"steps": [TOOL | {"id": "\ud800"}]}, ("steps[0].id", "not_json")),
        ({"steps": [TOOL | {"type": []}]}, ("steps[0].type", "bad_value")),
        ({"steps": [TOOL | {"type": None}]}, ("steps[0].type", "bad_value")),
        ({"steps": [TOOL | {"id": 5}]}, ("steps[0].id", "bad_type")),
        ({"steps": [TOOL | {"id": ""}]}, ("steps[0].id", "bad_value")),
        ({"steps": [TOOL | {"id": None}]}, ("steps[0].id", "bad_type")),
        (
            {"steps": [{"id": "a", "type": "map", "over": [], "step": tool("b", id=None)}]},
            ("steps[0].step.id", "bad_type"),
        ),
    ],
)
def test_whatever_comes_is_refused_with_one_fault_and_no_traceback(data, found):
    assert faults(data) == [found]


def test_a_program_that_contains_itself_is_refused():
    data = steps(TOOL)
    data["steps"].append({"id": "b", "type": "program", "program": data})
    assert [code for _, code in faults(data)] == ["not_json"]


def test_an_index_in_brackets_in_a_text_is_a_warning_where_it_stands():
    program = parse(
        steps(
            tool(
                "a",
                args={"n": ["$b[0].n", "$$b[0]", "$b.0 [0]", "b[0]"]},
                compensate={"tool": "u", "args": {"x": "$a[1]"}},
            ),
            {"id": "c", "type": "condition", "condition": "$a[0] == '$a[0]'", "then": "m"},
            {"id": "m", "type": "map", "over": "$a[0]", "step": {"type": "llm", "prompt": "about $item.x[2]: $index"}},
        )
    )
    assert [str(fault) for fault in program_warnings.warnings(program)] == [
        "steps[0].args.n[0]: the brackets of $b[0] are text here: an index is written $b.0",
        "steps[0].compensate.args.x: the brackets of $a[1] are text here: an index is written $a.1",
        "steps[2].step.prompt: the brackets of $item.x[2] are text here: an index is written $item.x.2",
    ]
    many = parse(steps(tool("a", args={"x": ["$b[0]"] * 1000})))
    assert len(program_warnings.warnings(many)) == 20


def test_integral_floats_are_integers_as_in_json_schema():
    program = parse(steps(tool("a", max_retries=2.0, on_error="retry"), max_steps=5.0))
    assert program.max_steps == 5
    assert program.steps[0].retry.attempts == 2
    assert program.hash == parse(steps(tool("a", max_retries=2, on_error="retry"), max_steps=5)).hash


# --- each field of each type ---


def test_the_samples_are_of_all_types_and_fields():
    assert MINIMAL.keys() == form.TYPES.keys()
    assert SAMPLES.keys() | {"id", "type"} == form.FIELDS.keys()


@pytest.mark.parametrize("kind", form.TYPES)
def test_a_step_needs_what_its_type_requires_and_no_more(kind):
    parsed = parse(steps(step_of(kind))).steps[0]
    assert (parsed.id, parsed.kind, parsed.index, parsed.next, parsed.timeout) == ("s", kind, 0, None, None)
    for name in form.TYPES[kind].required:
        data = step_of(kind)
        del data[name]
        assert ("steps[0]", "missing_field") in faults(steps(data))


@pytest.mark.parametrize(("kind", "name"), OWN)
def test_each_field_takes_what_is_right_and_nothing_else(kind, name):
    right, wrong = SAMPLES[name]
    for value in right:
        parse(steps(step_of(kind, **{name: value})))
    for value in wrong:
        found = faults(steps(step_of(kind, **{name: value})))
        assert all(path.startswith(f"steps[0].{name}") or path == "steps[0]" for path, _ in found)


@pytest.mark.parametrize("kind", form.TYPES)
def test_fields_of_other_types_may_stay_at_null_or_their_default_only(kind):
    own = {"id", "type", *form.TYPES[kind].required, *form.TYPES[kind].optional}
    for name, (_, default) in form.FIELDS.items():
        if name in own:
            continue
        parse(steps(step_of(kind, **{name: default})))
        parse(steps(step_of(kind, **{name: None})))
        other = next((value for value in SAMPLES[name][0] if value not in (None, default)), "x")
        assert (f"steps[0].{name}", "unknown_field") in faults(steps(step_of(kind, **{name: other})))


@pytest.mark.parametrize("kind", form.PARALLEL_TYPES)
def test_steps_inside_a_parallel_step_have_their_own_fields_and_no_flow(kind):
    for name in form.TYPES[kind].required + form.TYPES[kind].optional:
        for value in SAMPLES[name][0]:
            data = steps({"id": "p", "type": "parallel", "parallel_steps": [step_of(kind, **{name: value})]})
            if name in {"is_terminal", "next_step"} and value:
                assert (f"steps[0].parallel_steps[0].{name}", "unknown_field") in faults(data)
            else:
                assert parse(data).steps[0].children[0].kind == kind


@pytest.mark.parametrize("kind", form.TYPES)
def test_only_some_types_may_stand_inside_another(kind):
    inside = {"id": "p", "type": "parallel", "parallel_steps": [step_of(kind)]}
    body = {"id": "m", "type": "map", "over": [], "step": step_of(kind)}
    for place, data, allowed in (
        ("parallel_steps[0]", inside, form.PARALLEL_TYPES),
        ("step", body, form.MAP_TYPES),
    ):
        if kind in allowed:
            parse(steps(data))
        else:
            assert faults(steps(data))[0] == (f"steps[0].{place}.type", "bad_value")


@pytest.mark.parametrize(
    "fields",
    [
        {"seconds": 1, "event": "e"},
        {"seconds": None, "event": None},
        {"seconds": None},
    ],
)
def test_a_wait_is_for_one_thing(fields):
    assert len(faults(steps(step_of("wait", **fields)))) == 1
    assert parse(steps({"id": "s", "type": "wait", "event": "e"})).steps[0].event == "e"
    parse(steps({"id": "s", "type": "wait", "event": "e", "seconds": None}))


def test_a_condition_has_a_target():
    assert faults(steps({"id": "s", "type": "condition", "condition": "True"})) == [("steps[0]", "missing_field")]
    assert faults(steps(step_of("condition", then=None))) == [("steps[0]", "missing_field")]
    parse(steps(step_of("condition", then=None, otherwise="s")))


def test_ids_are_unique_over_steps_and_the_steps_inside_parallel_steps():
    data = steps(
        tool("a"),
        {"id": "p", "type": "parallel", "parallel_steps": [tool("a"), tool("b"), tool("b")]},
        tool("p"),
    )
    assert faults(data) == [
        ("steps[1].parallel_steps[0].id", "duplicate_id"),
        ("steps[1].parallel_steps[2].id", "duplicate_id"),
        ("steps[2].id", "duplicate_id"),
    ]


def test_the_body_of_a_map_and_an_inner_program_have_ids_of_their_own():
    parse(
        steps(
            {"id": "m", "type": "map", "over": [], "step": tool("m")},
            {"id": "p", "type": "program", "program": steps(tool("m"), tool("p"))},
        )
    )


def test_steps_inside_a_parallel_step_are_no_targets():
    data = steps({"id": "p", "type": "parallel", "parallel_steps": [tool("x")], "next_step": "x"})
    assert faults(data) == [("steps[0].next_step", "unknown_step")]


# --- retries ---


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({}, []),
        ({"on_error": "skip", "max_retries": 5}, []),
        ({"on_error": "retry"}, [1, 2]),
        ({"on_error": "retry", "max_retries": 0}, []),
        ({"on_error": "retry", "max_retries": 8}, [1, 2, 4, 8, 16, 30, 30]),
        ({"retry": {}}, [1, 2]),
        ({"retry": {"schedule": [5, 0, 0.5]}, "on_error": "skip"}, [5, 0, 0.5]),
        ({"retry": {"max_attempts": 5, "delay_seconds": 0.5, "multiplier": 4, "max_delay_seconds": 9}}, [0.5, 2, 8, 9]),
        ({"retry": {"max_attempts": 3, "delay_seconds": 0}}, [0, 0]),
        ({"retry": {"max_attempts": 3, "delay_seconds": 50, "multiplier": 1}}, [30, 30]),
    ],
)
def test_retries_wait_as_the_step_says(fields, waits):
    retry = parse(steps(tool("a", **fields))).steps[0].retry
    assert [retry.seconds(attempt) for attempt in range(1, retry.attempts)] == waits
    assert all(type(retry.seconds(attempt)) is type(wait) for attempt, wait in enumerate(waits, 1))


def test_long_exponential_waits_end_at_the_longest_without_an_overflow():
    for multiplier in (2, 1.5, 1000, 1000.5):
        assert Retry(1000, (), 1, multiplier).seconds(999) == BACKOFF_SECONDS
    assert Retry(1000, (), 0, 1000.5).seconds(999) == 0
    assert Retry(1000, (), 0.1, 1).seconds(999) == 0.1


# --- programs in programs ---


def by_name(**programs):
    return programs.get


def run_step(name, program):
    return {"id": name, "type": "program", "program": program}


def test_programs_are_found_by_name():
    inner = parse(steps(tool("x")))
    outer = parse(steps(run_step("p", "inner"), run_step("q", "inner")), by_name(inner=inner))
    assert [step.program for step in outer.steps] == [inner, inner]
    assert outer.uses == {"inner": inner}
    assert outer.nested == 1


def test_a_name_is_looked_up_once_so_that_it_means_one_program_throughout():
    made = []

    def resolve(name):
        made.append(name)
        return parse(steps(tool(f"x{len(made)}")))

    data = steps(run_step("a", "p"), run_step("b", steps(run_step("c", "p"))), run_step("d", "p"))
    program = parse(data, resolve)
    assert made == ["p"]
    assert len({program.steps[0].program, program.steps[1].program.steps[0].program, program.steps[2].program}) == 1


def test_programs_may_be_written_out_and_their_faults_have_full_paths():
    inner = steps(tool("x", next_step="y"), run_step("z", steps({"id": "q", "type": "llm", "prompt": 5})))
    assert faults(steps(tool("a"), run_step("p", inner))) == [
        ("steps[1].program.steps[1].program.steps[0].prompt", "bad_type"),
        ("steps[1].program.steps[0].next_step", "unknown_step"),
    ]
    assert faults(steps(run_step("p", {}))) == [("steps[0].program", "missing_field")]


def test_a_program_that_cannot_be_read_where_it_is_named_is_a_fault_there():
    def resolve(name):
        return parse(steps(tool("x", next_step="y")))

    assert faults(steps(run_step("p", "broken")), resolve) == [("steps[0].program", "unknown_step")]
    assert messages(steps(run_step("p", "broken")), resolve) == [
        "steps[0].program: the program 'broken' can't be run: steps[0].next_step: no step 'y'"
    ]


def test_cycles_are_told_by_whoever_reads_programs_by_name():
    sources = {"a": steps(run_step("s", "b")), "b": steps(run_step("s", "a"))}
    under_way = []

    def resolve(name):
        if name in under_way:
            cycle = " → ".join([*under_way[under_way.index(name) :], name])
            raise InvalidProgramError([Fault("", "program_cycle", f"{cycle} runs itself")])
        under_way.append(name)
        try:
            return parse(sources[name], resolve)
        finally:
            under_way.pop()

    assert faults(steps(run_step("p", "a")), resolve) == [("steps[0].program", "program_cycle")]
    assert "a → b → a runs itself" in messages(steps(run_step("p", "a")), resolve)[0]


def nested(depth):
    data = steps(tool("x"))
    for _ in range(depth):
        data = steps(run_step("p", data))
    return data


def test_inline_programs_nest_to_a_bound():
    assert parse(nested(MAX_NESTED_PROGRAMS)).nested == MAX_NESTED_PROGRAMS
    path = ".".join(["steps[0].program"] * (MAX_NESTED_PROGRAMS + 1))
    assert faults(nested(MAX_NESTED_PROGRAMS + 1)) == [(path, "too_large")]
    assert [code for _, code in faults(nested(1000))] == ["not_json"]


def test_named_programs_nest_to_the_same_bound():
    program = parse(steps(tool("x")))
    for depth in range(1, MAX_NESTED_PROGRAMS + 1):
        program = parse(steps(run_step("p", "inner")), by_name(inner=program))
        assert program.nested == depth
    assert faults(steps(run_step("p", "inner")), by_name(inner=program)) == [("steps[0].program", "too_large")]
    half = parse(nested(MAX_NESTED_PROGRAMS // 2))
    data = steps(run_step("p", "half"))
    for _ in range(MAX_NESTED_PROGRAMS // 2):
        data = steps(run_step("p", data))
    assert [code for _, code in faults(data, by_name(half=half))] == ["too_large"]


def test_tools_are_those_of_all_steps_and_of_what_undoes_them():
    inner = parse(steps(tool("x", tool="deep")))
    program = parse(
        steps(
            tool("a", tool="one", compensate={"tool": "undo"}),
            {"id": "p", "type": "parallel", "parallel_steps": [tool("b", tool="two", compensate={"tool": "back"})]},
            {"id": "m", "type": "map", "over": [], "step": tool("c", tool="three")},
            {"id": "n", "type": "map", "over": [], "step": run_step("d", "inner")},
            {"id": "l", "type": "llm", "prompt": "p"},
        ),
        by_name(inner=inner),
    )
    assert program.tools() == {"one", "undo", "two", "back", "three", "deep"}


def test_programs_that_share_programs_are_looked_at_once_each():
    program = parse(steps(tool("x", tool="deep")))
    for _ in range(MAX_NESTED_PROGRAMS):
        program = parse(steps(*(run_step(f"s{place}", "inner") for place in range(30))), by_name(inner=program))
    assert program.tools() == {"deep"}
    assert work(program.tools) < 10_000
    assert work(lambda: bundle(program)) < 10_000


def test_a_bundle_brings_along_what_is_run_by_name():
    deep = parse(steps(tool("x")))
    middle = parse(steps(run_step("m", "deep")), by_name(deep=deep))
    data = steps(run_step("p", "middle"), run_step("q", steps(run_step("r", "deep"))))
    program = parse(data, by_name(middle=middle, deep=deep))
    told = json.loads(json.dumps(bundle(program)))
    assert [name for name, _ in told["uses"]] == ["deep", "middle"]
    assert unbundle(told).hash == program.hash


# --- warnings ---


def test_a_map_whose_item_has_the_name_of_its_number_is_warned_of():
    body = {"type": "tool", "tool": "t", "args": {"x": "$index"}}
    lost = {"id": "m", "type": "map", "over": [1], "as": "index", "step": body}
    inner = {"type": "program", "program": {"steps": [lost]}}
    steps = [
        lost,
        {**lost, "id": "n", "as": "it"},
        {"id": "p", **inner},
        {**lost, "id": "q", "as": "it", "step": inner},
    ]
    found = program_warnings.warnings(parse({"steps": steps}))
    assert [fault.path for fault in found] == [
        "steps[0].as",
        "steps[2].program.steps[0].as",
        "steps[3].step.program.steps[0].as",
    ]
    assert "the number of the item" in found[0].message


@pytest.mark.parametrize(("name", "is_warned_of"), [("a-b", True), ("it.x", True), ("a b", True), ("é_1", False)])
def test_a_name_that_no_reference_in_a_text_has_is_warned_of(name, is_warned_of):
    each = {"id": "m", "type": "map", "over": "$all", "as": name, "step": TOOL | {"args": {"x": "$['a-b']"}}}
    found = program_warnings.warnings(parse(steps(tool("a", output_key=name), each)))
    paths = [fault.path for fault in found if "no reference in a text" in fault.message]
    assert paths == (["steps[0].output_key", "steps[1].as"] if is_warned_of else [])


def test_what_undoes_a_step_inside_another_is_warned_of_the_output_that_there_is_not_yet():
    def undone(name, **fields):
        undo = {"tool": "u", "args": {"x": [f"${name}.id", "$item"]}}
        return {"type": "tool", "tool": "t", "compensate": undo, **fields}

    def each(name, body, **fields):
        return {"id": name, "type": "map", "over": [1], "step": body, **fields}

    rows = [
        each("m", undone("m")),
        each("n", undone("n", id="one")),
        each("o", undone("one", id="one")),
        each("p", undone("p"), **{"as": "p"}),
        {"id": "q", "type": "parallel", "parallel_steps": [undone("q", id="r"), undone("s", id="s")]},
    ]
    found = program_warnings.warnings(parse({"steps": rows}))
    assert [str(fault) for fault in found] == [
        "steps[0].step.compensate.args: $m has no output when these are filled in: "
        "give this step an 'id', and refer to that",
        "steps[1].step.compensate.args: $n has no output when these are filled in: $one is what is undone",
        "steps[4].parallel_steps[0].compensate.args: $q has no output when these are filled in: $r is what is undone",
    ]


def test_a_field_that_has_no_effect_or_no_reference_to_it_is_warned_of():
    whole = tool("whole", on_error="fail", max_retries=3)
    each = {"id": "m", "type": "map", "over": "$all", "as": "$it", "step": TOOL | {"id": "x"}}
    fan = {"id": "f", "type": "parallel", "parallel_steps": [tool("g", max_retries=2)]}
    program = parse(
        steps(
            whole,
            tool("a", max_retries=3, next_step="c", is_terminal=True),
            tool("b", on_error="retry", max_retries=5),
            tool("c", max_retries=4, retry={"schedule": [1]}, output_key="a.b"),
            each,
            fan,
            {"id": "p", "type": "program", "program": {"steps": [tool("q", max_retries=5, on_error="skip")]}},
        )
    )
    found = {fault.path: fault.message for fault in program_warnings.warnings(program) if fault.code == "bad_value"}
    assert list(found) == [
        "steps[1].max_retries",
        "steps[1].is_terminal",
        "steps[3].max_retries",
        "steps[3].output_key",
        "steps[4].as",
        "steps[4].step.id",
        "steps[5].parallel_steps[0].max_retries",
        "steps[6].program.steps[0].max_retries",
    ]
    assert "on_error: retry" in found["steps[1].max_retries"]
    assert "'retry' says" in found["steps[3].max_retries"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"version": 1.0}, "version: 1 should be a text of at most 200 characters: write it in quotes"),
        ({"steps": [{"id": 1, "type": "tool", "tool": "t"}]}, "steps[0].id: 1 should be a text of at least 1 character(s) and of at most 200 characters: write it in quotes"),
        ({"steps": [TOOL | {"id": "a", "output_key": 1}]}, "steps[0].output_key: 1 should be a text of at least 1 character(s) and of at most 200 characters: write it in quotes"),
        ({"steps": [{"id": "w", "type": "wait", "seconds": "5"}]}, "steps[0].seconds: '5' is neither a number nor a reference such as '$pause'"),
        ({"steps": [{"id": "m", "type": "map", "over": "x", "step": TOOL}]}, "steps[0].over: 'x' is no reference such as '$items'"),
        ({"steps": [{"id": "a", "type": "approval", "message": "m", "max_retries": 2}]}, "steps[0].max_retries: this belongs to tool, llm, condition, parallel, map and program steps; this step is of type approval"),
    ],
)  # fmt: skip
def test_one_mistake_is_one_fault_that_says_what_to_write(fault, said):
    with pytest.raises(InvalidProgramError) as caught:
        parse({"steps": [TOOL | {"id": "a"}]} | fault)
    assert [str(row) for row in caught.value.faults] == [said]


def test_a_reference_where_none_is_filled_in_is_warned_of():
    undone = tool("a", tool="pay.$how", args={"event": "$n", "tool": "$n"}, compensate={"tool": "$undo", "args": {}})
    asked = {"id": "l", "type": "llm", "prompt": "$n", "allowed_outputs": ["$5", "yes", "$n.name"]}
    waits = {"steps": [{"id": "w", "type": "wait", "event": "paid-$n"}]}
    each = {"id": "m", "type": "map", "over": "$all", "step": {"type": "program", "program": waits}}
    both = {"id": "b", "type": "parallel", "parallel_steps": [{**asked, "id": "k"}]}
    program = parse(steps(undone, asked, each, both, {"id": "v", "type": "wait", "event": "$5"}))
    found = program_warnings.warnings(program)
    assert [(fault.path, fault.message.split(" is text here")[0]) for fault in found] == [
        ("steps[0].tool", "$how"),
        ("steps[0].compensate.tool", "$undo"),
        ("steps[1].allowed_outputs[2]", "$n.name"),
        ("steps[2].step.program.steps[0].event", "$n"),
        ("steps[3].parallel_steps[0].allowed_outputs[2]", "$n.name"),
    ]
    assert {fault.code for fault in found} == {"reference_in_text"}


def test_a_reference_to_a_step_that_runs_at_the_same_time_is_warned_of():
    left = TOOL | {"id": "left", "args": {"x": ["$before", "$left_over", "$$right", "$left"]}}
    right = TOOL | {
        "id": "right",
        "args": {"x": [{"y": "of $left.name"}]},
        "compensate": {"tool": "t", "args": {"z": "$right"}},
    }
    asked = {"id": "asked", "type": "llm", "prompt": "$ctx.left $before", "system": "$both.left"}
    both = {"id": "both", "type": "parallel", "max_concurrency": 1, "parallel_steps": [left, right, asked]}
    after = TOOL | {"id": "after", "args": {"x": "$left and $both.right"}}
    inner = {"id": "inner", "type": "program", "program": steps(both)}
    found = program_warnings.warnings(parse(steps(TOOL | {"id": "before"}, inner, both, after)))
    lost = [("[1].args", "left"), ("[2].system", "both")]
    assert [(fault.path, fault.message) for fault in found] == [
        (f"{place}.parallel_steps{where}", f"${name} has no output before all steps of 'both' have ended")
        for place in ("steps[1].program.steps[0]", "steps[2]")
        for where, name in lost
    ]


def test_an_id_that_can_be_taken_for_a_path_is_warned_of():
    odd = ["m[0]", "i/h", "charge.compensate", "a b", "two\nlines", "\x1b[2J"]
    inner = {"steps": [TOOL | {"id": "x.y"}, TOOL | {"id": "look-once"}]}
    fan = {"id": "fan", "type": "parallel", "parallel_steps": [TOOL | {"id": "l/r"}, TOOL | {"id": "left"}]}
    steps = [*(TOOL | {"id": name} for name in odd), fan, {"id": "in", "type": "program", "program": inner}]
    found = program_warnings.warnings(parse({"steps": steps}))
    assert [fault.path for fault in found] == [
        *(f"steps[{index}].id" for index in range(len(odd))),
        f"steps[{len(odd)}].parallel_steps[0].id",
        f"steps[{len(odd) + 1}].program.steps[0].id",
    ]
    assert {fault.code for fault in found} == {"bad_value"}
    assert all(fault.message.isprintable() for fault in found)
    assert "'two\\nlines' reads like a path of steps, or several words: it can't be referenced" in found[4].message
    many = parse({"steps": [TOOL | {"id": f"a.{number}"} for number in range(50)]})
    assert len(program_warnings.warnings(many)) == 20


def test_steps_that_nothing_leads_to_are_warned_of():
    program = parse(
        steps(
            tool("a", next_step="d"),
            tool("b", next_step="c"),
            tool("c"),
            {"id": "d", "type": "condition", "condition": "$a", "then": "e"},
            tool("e", is_terminal=True),
            tool("f"),
        )
    )
    assert [(fault.path, fault.code) for fault in program_warnings.warnings(program)] == [
        ("steps[1]", "unreachable"),
        ("steps[2]", "unreachable"),
        ("steps[5]", "unreachable"),
    ]
    assert "'b'" in program_warnings.warnings(program)[0].message


def test_nothing_is_warned_of_where_some_way_leads_to_every_step():
    program = parse(
        steps(
            {"id": "a", "type": "approval", "message": "m", "otherwise": "z", "next_step": "c"},
            tool("z"),
            {"id": "c", "type": "condition", "condition": "$a", "otherwise": "z", "on_error": "skip"},
            tool("e"),
        )
    )
    assert program_warnings.warnings(program) == ()
    assert edges(program.steps[0], 4) == [("", 2), ("denied", 1)]
    assert edges(program.steps[2], 4) == [("otherwise", 1), ("skipped", 3)]
    assert edges(program.steps[3], 4) == [("", -1)]


# --- the hash ---

GOLDEN = {
    "name": "größe 😀",
    "steps": [
        {"id": "a", "type": "tool", "tool": "t", "args": {"b": [1, 2.5, None, 1e-7], "a": {"\ufb33": True, "😀": "x"}}},
        {"id": "p", "type": "program", "program": "inner", "context": {"k": "$a.output"}},
    ],
    "max_steps": 9,
}
GOLDEN_HASH = "db363779ec58b20c175a4bb86efda8c200237d34063b837e76444a14c4fab588"


def golden():
    return parse(GOLDEN, by_name(inner=parse(steps(tool("x")))))


def test_the_hash_is_the_same_for_ever():
    assert golden().hash == GOLDEN_HASH


def shuffled(value, turn):
    if isinstance(value, dict):
        names = list(value)
        names = names[turn % len(names) :] + names[: turn % len(names)] if names else names
        return {name: shuffled(value[name], turn) for name in reversed(names)}
    return [shuffled(item, turn) for item in value] if isinstance(value, list) else value


def test_the_hash_does_not_depend_on_the_order_of_names_or_on_how_numbers_were_written():
    for turn in range(4):
        assert parse(shuffled(GOLDEN, turn), by_name(inner=parse(steps(tool("x"))))).hash == GOLDEN_HASH
    again = json.loads(json.dumps(GOLDEN).replace("9", "9.0").replace("1e-07", "0.0000001"))
    assert parse(again, by_name(inner=parse(steps(tool("x"))))).hash == GOLDEN_HASH


@pytest.mark.parametrize("seed", ["0", "1", "4294967295"])
def test_the_hash_is_the_same_in_every_process(seed):
    root = Path(__file__).parents[2]
    code = "import test_program; print(test_program.golden().hash)"
    path = os.pathsep.join([str(root), str(root / "tests/support")])
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([path, *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == GOLDEN_HASH


def test_another_program_has_another_hash():
    variants = [
        steps(tool("a")),
        steps(tool("b")),
        steps(tool("a", tool="u")),
        steps(tool("a"), tool("b")),
        steps(tool("b"), tool("a")),
        steps(tool("a"), name="x"),
        steps(tool("a", args={"x": 1})),
        steps(tool("a", args={"x": True})),
        steps(tool("a", args={"x": "1"})),
    ]
    assert len({parse(data).hash for data in variants}) == len(variants)


@pytest.mark.parametrize(
    "outer",
    [
        steps(run_step("p", "inner")),
        steps({"id": "m", "type": "map", "over": [], "step": run_step("b", "inner")}),
        steps(run_step("p", steps(run_step("q", "inner")))),
        steps(
            run_step(
                "p", steps(run_step("q", steps({"id": "m", "type": "map", "over": [], "step": run_step("b", "inner")})))
            )
        ),
    ],
    ids=["named", "in a map", "in a program", "deep"],
)
def test_the_hash_changes_when_a_program_that_is_used_changes(outer):
    one, other = parse(steps(tool("x"))), parse(steps(tool("y")))
    assert parse(outer, by_name(inner=one)).hash != parse(outer, by_name(inner=other)).hash
    assert parse(outer, by_name(inner=one)).hash == parse(outer, by_name(inner=parse(steps(tool("x"))))).hash


def test_what_was_handed_over_may_change_afterwards():
    data = steps(tool("a", args={"x": [1]}))
    program = parse(data)
    before = program.hash
    data["steps"][0]["args"]["x"].append(2)
    data["steps"].append(tool("b"))
    assert len(program.steps) == 1
    assert parse(program.data).hash == before


# --- size ---


def line(count, **fields):
    return steps(*(tool(f"s{number}", **fields) for number in range(count)))


def conditions(count):
    rows = [
        {"id": f"s{number}", "type": "condition", "condition": "$a == 1", "then": f"s{number + 1}"}
        for number in range(count)
    ]
    return steps(*rows, tool(f"s{count}"))


def lost(count):
    return steps(*(tool(f"s{number}", next_step=f"x{number}") for number in range(count)))


def read(data):
    """What is wrong with it."""
    try:
        parse(data)
    except InvalidProgramError as exc:
        return exc.faults
    return ()


@pytest.mark.parametrize(
    "make",
    [
        line,
        conditions,
        lost,
        lambda count: steps(*[TOOL] * count),
        lambda count: steps(*range(count)),
        lambda count: steps(tool("a", **{f"f{number}": 1 for number in range(count)})),
        lambda count: steps(tool("a", args={f"f{number}": "$x.y" for number in range(count)})),
        lambda count: steps({"id": "p", "type": "parallel", "parallel_steps": line(count)["steps"]}),
        lambda count: steps(*(run_step(f"s{number}", steps(TOOL)) for number in range(count))),
    ],
    ids=["line", "conditions", "lost", "duplicates", "numbers", "fields", "arguments", "parallel", "inner"],
)
def test_reading_takes_work_in_proportion_to_the_size(make):
    small, large = make(1_000), make(4_000)
    assert work(lambda: read(large)) < 5 * work(lambda: read(small))


def test_ten_thousand_and_a_hundred_thousand_steps_are_read():
    assert len(parse(line(10_000)).steps) == 10_000
    program = parse(line(100_000))
    assert program.index["s99999"] == 99_999
    assert faults(line(100_001)) == [("steps", "bad_value")]


def test_ten_thousand_conditions_that_lead_to_each_other_are_read():
    program = parse(conditions(10_000))
    assert program.steps[9_999].then == 10_000
    assert program_warnings.warnings(program) == ()


def test_a_program_of_more_than_its_bytes_is_refused():
    assert faults(steps(tool("a", args={"x": "é" * (MAX_BYTES // 2)}))) == [("", "too_large")]
    parse(steps(tool("a", args={"x": "é" * (MAX_BYTES // 2 - 100)})))


def test_faults_are_told_to_a_bound_and_no_further():
    for data in (lost(5_000), steps(*range(5_000)), steps(tool("a", **{f"f{number}": 1 for number in range(5_000)}))):
        assert len(faults(data)) == MAX_FAULTS


def test_faults_show_little_of_what_is_long():
    long = "x" * 1_000_000
    for data in (
        steps(tool("a", **{long: 1})),
        steps(tool("a", on_error=long)),
        steps(tool("a", next_step="nowhere" + long)),
        steps(tool(long)),
        steps({"id": "a", "type": long}),
        steps({"id": "a", "type": [long]}),
        steps({"id": "a", "type": "program", "program": long}),
        steps({"id": "a", "type": "wait", "seconds": long}),
        steps(tool("a", args={"x": [{long: math.nan}]})),
        steps({"id": "a", "type": "condition", "condition": long, "then": "a"}),
    ):
        faults(data)


# --- programs of llm-nano-vm, as its own models write them down ---

THEIRS = [
    steps(TOOL),
    steps(
        tool("a", args={"x": "$y", "z": [1]}, on_error="retry", max_retries=5, output_key="k", next_step="b"), tool("b")
    ),
    steps({"id": "m", "type": "llm", "prompt": "p", "system": "s", "allowed_outputs": ["yes"], "timeout_seconds": 2.5}),
    steps({"id": "m", "type": "llm", "prompt": "p", "on_timeout": "fallback", "timeout_seconds": 3}),
    steps({"id": "c", "type": "condition", "condition": "$a == 1", "then": "b"}, tool("b", is_terminal=True)),
    steps({"id": "c", "type": "condition", "condition": "$a == 1", "otherwise": "c", "on_error": "skip"}),
    steps(
        {
            "id": "p",
            "type": "parallel",
            "parallel_steps": [tool("a"), {"id": "m", "type": "llm", "prompt": "p"}],
            "max_concurrency": 2,
            "on_error": "skip",
        },
        name="n",
        description="d",
        version="2",
        max_steps=5,
        max_tokens=6,
        max_stalled_steps=7,
    ),
]


@pytest.mark.parametrize("number", range(len(THEIRS)))
def test_whole_records_as_llm_nano_vm_dumps_them_are_read(nano_vm, number):
    ours = parse(THEIRS[number])
    for dumped in nano_vm.ask({"dump": THEIRS[number]})["dumps"]:
        assert len(dumped["steps"][0]) == 19
        read = parse(dumped)
        assert [summary(step) for step in read.steps] == [summary(step) for step in ours.steps]
        assert (read.max_steps, read.max_tokens, read.max_stalled_steps) == (
            ours.max_steps,
            ours.max_tokens,
            ours.max_stalled_steps,
        )
        assert (read.name, read.description, read.version) == (ours.name, ours.description, ours.version)


def summary(step):
    """Everything of a step that can be compared."""
    plain = {}
    for name in [name for kind in type(step).__mro__ for name in getattr(kind, "__slots__", ())]:
        value = getattr(step, name)
        if name == "branches":
            value = [summary(branch) for branch in value]
        elif hasattr(value, "fill"):
            value = value.fill(lambda root, path: [root, *path])
        elif hasattr(value, "holds"):
            value = value.text
        assert not isinstance(value, types.FunctionType)
        plain[name] = value
    return plain | {"is_terminal": bool(step.is_terminal)}


def test_every_type_is_also_there_with_all_fields_of_all_types_at_null():
    for kind, explicit in itertools.product(form.TYPES, [True, False]):
        blank = (
            dict.fromkeys(form.FIELDS) if explicit else {name: default for name, (_, default) in form.FIELDS.items()}
        )
        own = {name: SAMPLES[name][0][-1] for name in (*form.TYPES[kind].required, *form.TYPES[kind].optional)}
        parse(steps(blank | own | step_of(kind)))


@pytest.mark.parametrize(
    "step",
    [
        {"type": "llm", "prompt": "$a " * 50_000},
        {"type": "tool", "tool": "t", "args": {"x": ["$a"] * 50_000}},
        {"type": "condition", "condition": " or ".join(["$a"] * 1600), "then": "s0"},
    ],
    ids=["a text", "arguments", "conditions"],
)
def test_what_is_read_of_a_program_takes_little_more_memory_than_its_text(step):
    # Read as far as it goes, each reference would take some 300 bytes.
    count = 100 if step["type"] == "condition" else 1
    data = {"steps": [{"id": f"s{number}", **step} for number in range(count)]}
    size = len(json.dumps(data))
    parse(data)
    tracemalloc.start()
    try:
        program = parse(data)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert program.steps
    assert held < 5 * size
