"""References in texts, lists and objects. Numbers are those of the cases."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_driver import run

from mcp_bridge.kernel.language.references import (
    MAX_FILLED,
    MAX_TEXT_CHARS,
    MISSING,
    Template,
    TextTooLongError,
    lone,
    walk,
)
from mcp_bridge.kernel.language.value_texts import written
from mcp_bridge.kernel.values import MAX_DEPTH, normal

DATA = {"a": {"b": 5, "c": [1, {"d": "x"}]}, "t": "text", "n": None, "f": 1.5, "yes": True, "output": "odd"}

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
).map(normal)


def lookup_in(names):
    return lambda root, path: walk(names[root], path, of_step=False) if root in names else MISSING


def fill(value, **names):
    return Template(value).fill(lookup_in(names or DATA))


def asked(args, output=None, context=None):
    """The arguments that a tool gets after a step `s` that gave `output`."""
    steps = [{"id": "s", "type": "tool", "tool": "first"}, {"id": "u", "type": "tool", "tool": "second", "args": args}]
    script = {"first": [{"value": output}], "second": [{"value": 0}]}
    return run({"steps": steps}, script, context)[1][-1][1]


# --- the cases ---


@pytest.mark.parametrize("value", [{"a": {"b": 1}}, [1, [2]], 5, 1.5, True, None, "text", ""])
def test_case_13_a_whole_reference_keeps_its_type(value):
    assert asked({"x": "$s"}, value) == {"x": value}
    assert asked({"x": "$s.output"}, value) == {"x": value}
    assert asked({"x": "$d"}, context={"d": value}) == {"x": value}
    assert type(asked({"x": "$s"}, value)["x"]) is type(value)


def test_case_14_a_reference_within_a_text_is_written_there():
    assert asked({"x": "v=$d.a.b;"}, context={"d": {"a": {"b": 7}}}) == {"x": "v=7;"}
    assert asked({"x": "v=$s.a.b;"}, {"a": {"b": None}}) == {"x": "v=None;"}
    assert fill("$t$t $yes/$f") == "texttext True/1.5"
    assert fill("$t ") == "text "
    assert fill(" $a.b") == " 5"


def test_case_15_a_reference_that_leads_nowhere_stays_as_it_is_written():
    args = {"x": "$missing", "y": "v=$missing.a;", "z": "$s.no", "w": "$s.k.no.more!"}
    assert asked(args, {"k": 1}) == args


def test_case_16_lists_and_objects_are_filled_at_any_depth():
    args = {"a": [["$s.k", {"b": ["x$s.k", 1, None]}], "$t"], "c": {"d": {"e": "$s"}}}
    assert asked(args, {"k": 3}, {"t": [True]}) == {
        "a": [[3, {"b": ["x3", 1, None]}], [True]],
        "c": {"d": {"e": {"k": 3}}},
    }


def test_case_16_names_of_objects_are_never_filled():
    assert fill({"$t": "$t", "a$t": 1}) == {"$t": "text", "a$t": 1}


def test_case_17_two_dollars_are_one():
    assert fill("$$") == "$"
    assert fill("$$t") == "$t"
    assert fill("$$$t") == "$text"
    assert fill("$$$$t$$") == "$$t$"
    assert fill("costs $$5, $t") == "costs $5, text"
    assert fill(["$$t", {"k": "$$"}]) == ["$t", {"k": "$"}]


def test_case_17_a_dollar_that_begins_no_name_stays():
    for text in ("$", "a$", "$ t", "$.t", "$-", "100$!", "$\n"):
        assert fill(text) == text


def test_case_18_ctx_reads_the_context():
    context = {"k": {"n": [1]}, "s": "not me"}
    assert asked({"x": "$ctx.k.n", "y": "<$ctx.k.n.0>", "z": "$ctx.s", "w": "$s"}, "step", context) == {
        "x": [1],
        "y": "<1>",
        "z": "not me",
        "w": "step",
    }
    assert asked({"x": "$ctx"}, None, context) == {"x": context}
    assert asked({"x": "$ctx.no"}, None, context) == {"x": "$ctx.no"}


def test_case_18_what_has_the_name_ctx_comes_before_the_context():
    assert asked({"x": "$ctx"}, None, {"ctx": 1}) == {"x": 1}


def test_steps_come_before_the_context():
    assert asked({"x": "$s", "y": "$s.k"}, {"k": 1}, {"s": {"k": 2}}) == {"x": {"k": 1}, "y": 1}


# --- names in quotes ---


@pytest.mark.parametrize("text", ["$d['a']", "$d['x-y']", '<$d["x-y"]>', "$['d']"])
def test_in_templates_brackets_stay_text_as_recorded_programs_have_them(text):
    assert asked({"x": text}, context={"d": 5}) == {"x": text.replace("$d", "5")}


def test_where_a_reference_stands_alone_its_names_may_be_quoted():
    steps = [
        {
            "id": "m",
            "type": "map",
            "over": "$s['my rows'][1]",
            "step": {"type": "tool", "tool": "t", "args": {"x": "$item"}},
        },
        {"id": "w", "type": "wait", "seconds": "$['a-b']['c'].d"},
    ]
    output = {"my rows": [0, [1, 2]]}
    program = {"steps": [{"id": "s", "type": "tool", "tool": "first"}, *steps]}
    machine, calls = run(program, {"first": [{"value": output}], "t": [{"value": 0}] * 2}, {"a-b": {"c": {"d": 0}}})
    assert machine.status == "success"
    assert [each for each in calls if each[0] == "t"] == [["t", {"x": 1}], ["t", {"x": 2}]]


def test_a_quoted_name_that_leads_nowhere_is_named_as_it_is_written():
    program = {"steps": [{"id": "w", "type": "wait", "seconds": "$['a-b']"}]}
    assert "'seconds' is \"$['a-b']\"" in run(program, {})[0].error


def test_what_a_lone_reference_gives_is_bounded_as_in_a_template():
    with pytest.raises(TextTooLongError):
        lone("$['a-b']").fill(lookup_in({"a-b": ["x" * MAX_FILLED]}))


# --- paths ---


@pytest.mark.parametrize(
    ("path", "of_step", "expected"),
    [
        ("", False, DATA),
        ("a.b", False, 5),
        ("a.c.1.d", False, "x"),
        ("a.c.0", False, 1),
        ("a.c.2", False, MISSING),
        ("a.c.-1", False, MISSING),
        ("a.c.x", False, MISSING),
        ("a.c.000", False, 1),
        ("a.c.\u0660", False, MISSING),
        ("a.c.0000000001", False, MISSING),
        ("a.c.9999999999999999999999", False, MISSING),
        ("t.0", False, MISSING),
        ("t.x", False, MISSING),
        ("n", False, None),
        ("n.x", False, MISSING),
        ("a.keys", False, MISSING),
        ("a.__class__", False, MISSING),
        ("output", False, "odd"),
        ("output", True, DATA),
        ("output.output", True, "odd"),
        ("output.a.b", True, 5),
        ("a.b", True, 5),
        ("a.output.b", False, 5),
        ("a.output.output", False, DATA["a"]),
        ("t.output", False, "text"),
    ],
)
def test_paths_lead_into_objects_and_lists(path, of_step, expected):
    found = walk(DATA, tuple(path.split(".")) if path else (), of_step=of_step)
    assert found is expected or found == expected


def test_output_stands_for_the_value_itself_whatever_that_is():
    for value in (5, [1], {"k": 1}, None, "x"):
        assert asked({"x": "$s.output", "y": "[$s.output]"}, value) == {"x": value, "y": f"[{value}]"}
    assert asked({"x": "$s.output", "y": "$s.output.output"}, {"output": 1}) == {"x": {"output": 1}, "y": 1}


def test_names_may_be_of_any_script_and_begin_with_digits():
    assert asked({"x": "$größe.ключ", "y": "$1 $_"}, context={"größe": {"ключ": 1}, "1": 2, "_": 3}) == {
        "x": 1,
        "y": "2 3",
    }


def test_a_reference_ends_where_no_name_goes_on():
    assert fill("$a.b.") == "5."
    assert fill("$a.b, $a-b $t's ($a.b)") == "5, {'b': 5, 'c': [1, {'d': 'x'}]}-b text's (5)"


# --- what stays ---


@given(JSON.filter(lambda value: "$" not in repr(value)))
def test_what_has_no_reference_stays_itself(value):
    assert Template(value).fill(lambda *_: pytest.fail("nothing is to be looked up")) == value


@given(JSON)
def test_a_whole_reference_is_the_value_and_not_a_copy(value):
    assert fill("$x", x=value) is value
    assert fill(["$x", "$y"], x=value) == [value, "$y"]


@given(TEXT, TEXT, JSON)
def test_within_a_text_a_value_is_written_as_python_does(before, after, value):
    text = f"{before.replace('$', '$$')}$x {after.replace('$', '$$')}"
    assert fill(text, x=value) == f"{before}{written(value)} {after}"


@given(TEXT, JSON)
def test_doubling_the_dollars_of_a_text_keeps_it_as_it_is(text, value):
    assert fill(text.replace("$", "$$"), x=value) == text


FIELD = st.sampled_from(["$a", "$a.b", "$a.c", "$n", "$t", "$none", "$a.c.1.d", "$$a", "$a$t", "x $a", "plain"])


@given(st.dictionaries(TEXT, FIELD | JSON, max_size=10))
def test_small_objects_are_filled_as_large_ones_are(fields):
    more = {f"another {number}": number for number in range(20)}
    small, large = fill(fields), fill({**fields, **more})
    assert small == {name: large[name] for name in fields}
    assert list(small) == list(fields)


def test_small_objects_are_bounded_as_large_ones_are():
    names = {"long": "x" * MAX_TEXT_CHARS, "deep": json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)}
    assert fill({"one": "$long"}, **names) == {"one": names["long"]}
    for fields in ({"one": "$long", "two": "$long"}, {"one": "$deep"}):
        with pytest.raises(TextTooLongError):
            fill(fields, **names)


def test_a_template_that_is_filled_twice_gives_values_of_their_own():
    template = Template({"a": ["$x", {"b": 1}], "c": {"d": "$x"}})
    first, second = template.fill(lookup_in({"x": 1})), template.fill(lookup_in({"x": 2}))
    assert first == {"a": [1, {"b": 1}], "c": {"d": 1}}
    assert second == {"a": [2, {"b": 1}], "c": {"d": 2}}


def test_first_names_are_known_before_anything_is_looked_up():
    assert Template({"a": ["$x.y", "$$z"], "b": "<$w.$v>$$u", "$t": 1}).roots == {"x", "w", "v"}


@given(st.permutations(["a", "b", "c"]), st.permutations(["x", "é", "1"]))
def test_equal_objects_are_written_alike_whatever_the_order_of_their_names(outer, inner):
    value = {name: [{key: 1 for key in inner}] for name in outer}  # noqa: C420 - objects of their own
    assert fill("<$v>", v=value) == f"<{ {name: [{'1': 1, 'x': 1, 'é': 1}] for name in 'abc'} }>"


# --- bounds ---


def test_a_text_is_bounded_however_many_references_it_has():
    half = "x" * (MAX_TEXT_CHARS // 2)
    assert len(fill("$h$h", h=half)) == MAX_TEXT_CHARS
    for text in ("$h$h.", ".$h$h", "$h$h$h", "$h" * 1000):
        with pytest.raises(TextTooLongError, match=f"a text of more than {MAX_TEXT_CHARS} characters"):
            fill(text, h=half)


def test_a_value_is_bounded_in_all_and_not_only_each_text():
    text = "x" * (1 << 20)
    assert fill(["$t"] * 7, t=text) == [text] * 7
    with pytest.raises(TextTooLongError, match=f"a value of more than {MAX_FILLED} characters and values"):
        fill(["$t"] * 8, t=text)
    with pytest.raises(TextTooLongError):
        fill({"k": ["$t"] * 100_000}, t=text)
    with pytest.raises(TextTooLongError):
        fill(["$t"] * 20, t={"k" * (1 << 20): None})


def explosion(levels):
    """Small while its parts are shared, and of ten to the power of `levels` parts when written down."""
    value = "x"
    for _ in range(levels):
        value = [value] * 10
    return value


@pytest.mark.parametrize("text", ["$x", "v=$x", "$x.0 $x.1"])
def test_a_value_that_explodes_when_it_is_written_is_refused_before_it_is(text):
    assert fill(text, x=explosion(3))
    with pytest.raises(TextTooLongError):
        fill({"deep": [text]}, x=explosion(40))


def test_programs_in_programs_cannot_blow_a_value_up():
    program = {"steps": [{"id": "t", "type": "tool", "tool": "t", "args": {"x": "$x"}}]}
    for _ in range(7):
        inner = {"id": "p", "type": "program", "program": program, "context": {"x": ["$x"] * 100}}
        program = {"steps": [inner]}
    machine, calls = run(program, {"t": [{"value": 1}]}, {"x": "y"})
    assert (machine.status, calls) == ("failed", [])
    assert "too_large" in {row.code for row in machine.rows}


def test_depth_is_bounded():
    value = "x"
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert fill(["$v"], v=value) == [value]
    with pytest.raises(TextTooLongError, match=f"a value nested deeper than {MAX_DEPTH} levels"):
        fill({"a": ["$v"]}, v=value)


def test_a_step_whose_text_would_be_too_long_fails_and_is_not_tried_again():
    steps = [{"id": "s", "type": "tool", "tool": "t", "args": {"x": "$x$x"}, "on_error": "retry"}]
    machine, calls = run({"steps": steps}, {"t": [{"value": 1}]}, {"x": "x" * (3 << 20)})
    assert (machine.status, calls) == ("failed", [])
    assert [(row.code, row.retries) for row in machine.rows] == [("too_large", 0)]


@pytest.mark.timeout(300)
def test_reading_a_template_takes_time_in_proportion_to_its_length():
    for text in ("$" * 1_000_001, "$a." * 300_000, "$" + "a" * 1_000_000, "$" + "a." * 500_000, "$a" * 300_000):
        found = Template(text).fill(lookup_in({"b": 1}))
        assert re.sub(r"\$\$", "$", text) == found
