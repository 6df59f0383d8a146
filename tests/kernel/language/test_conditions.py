"""The condition language: what it means, held against Python's own, and what it refuses. Numbers are those of the cases."""

import builtins
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_driver import run

from mcp_bridge.kernel.language.conditions import MAX_CHARS, MAX_DEPTH, Condition, ConditionError, ConditionSyntaxError
from mcp_bridge.kernel.language.references import MISSING, walk
from mcp_bridge.kernel.language.value_texts import written
from mcp_bridge.kernel.state import dump, restore, trace_rows_with_reasons


def lookup_in(names):
    return lambda root, path: walk(names[root], path, of_step=False) if root in names else MISSING


def holds(text, **names):
    return Condition(text).holds(lookup_in(names))


def refused(text):
    with pytest.raises(ConditionSyntaxError) as caught:
        Condition(text)
    assert 0 <= caught.value.position <= len(text)
    return caught.value


def no_answer(text, **names):
    with pytest.raises(ConditionError) as caught:
        holds(text, **names)
    return str(caught.value)


def branch(condition, output, context=None):
    """Which way a condition goes after the step `s` gave `output`."""
    steps = [
        {"id": "s", "type": "tool", "tool": "t"},
        {"id": "if", "type": "condition", "condition": condition, "then": "yes", "otherwise": "no"},
        {"id": "yes", "type": "tool", "tool": "t"},
        {"id": "no", "type": "tool", "tool": "t"},
    ]
    machine, _ = run({"steps": steps}, {"t": [{"value": output}]}, context)
    return machine.rows[1].output, machine


# --- the cases ---


def test_case_1_an_integer_equals_its_number_and_not_its_text():
    assert holds("$a == 1", a=1)
    assert not holds("$a == '1'", a=1)


@pytest.mark.parametrize(("a", "b", "c"), list(itertools.product([0, 1], [0, 2], [0, 3])))
def test_case_2_parentheses_work(a, b, c):
    assert holds("$a==1 or ($b==2 and $c==3)", a=a, b=b, c=c) is (a == 1 or (b == 2 and c == 3))
    assert holds("($a==1 or $b==2) and $c==3", a=a, b=b, c=c) is ((a == 1 or b == 2) and c == 3)
    assert holds("not ($a==1 or $b==2)", a=a, b=b) is not (a == 1 or b == 2)


@pytest.mark.parametrize(("a", "b", "c"), list(itertools.product([0, 1], repeat=3)))
def test_case_3_and_binds_before_or(a, b, c):
    names = {"a": a, "b": b, "c": c}
    assert holds("$a == 1 or $b == 1 and $c == 1", **names) is bool(a or (b and c))
    assert holds("$a == 1 and $b == 1 or $c == 1", **names) is bool((a and b) or c)


@pytest.mark.parametrize(("x", "y"), list(itertools.product([0, 1], repeat=2)))
def test_case_4_not_may_follow_and(x, y):
    assert holds("$x == 1 and not $y", x=x, y=y) is (x == 1 and not y)
    assert holds("not $x == 1", x=x) is (x != 1)
    assert holds("not not $x", x=x) is bool(x)


def test_case_5_characters_are_never_dropped():
    assert str(refused("foo $a == 1")).startswith("'foo' stands where a value should be")
    assert refused("foo $a == 1").position == 0
    for text in (
        "$a == 1 foo",
        "$a == 1 $b",
        "$a = 1",
        "$a == 1;",
        "$a == 1 && $b",
        "$a ! = 1",
        "$a === 1",
        "$a + 1 == 2",
    ):
        refused(text)


def test_case_6_a_missing_variable_equals_none():
    assert holds("$missing == None")
    assert holds("$a.b.c == None", a={"b": 1})
    assert not holds("$missing")
    assert not holds("$missing == ''")


def test_case_7_a_comparison_that_has_no_answer_fails_the_step_with_a_message():
    assert no_answer("$missing > 5") == "these can't be compared so: NoneType > int"
    _, machine = branch("$missing > 5", 1)
    assert machine.status == "failed"
    row = machine.rows[-1]
    assert (row.id, row.status, row.code) == ("if", "failed", "bad_condition")
    assert row.error == "the condition '$missing > 5' fails: these can't be compared so: NoneType > int"
    assert machine.error == f"step 'if' failed: {row.error}"


@pytest.mark.parametrize("text", ["$a.lower() == 'x'", "$a.b.c ( )", "$a()", "'x' in $a.keys()", "not $a.strip ('x')"])
def test_case_8_method_calls_are_refused(text):
    message = str(refused(text))
    assert "would be a call" in message
    assert refused(text).position == text.index("$a")


def test_case_9_nothing_is_ever_evaluated(monkeypatch):
    def never(*_args, **_kwargs):
        raise AssertionError("Python was asked to evaluate something")

    for name in ("eval", "exec", "compile", "__import__"):
        monkeypatch.setattr(builtins, name, never)
    try:
        assert holds("$a == 1 and ('x' in $b or not $c > 2.5) and '$a' == '1'", a=1, b="xyz", c=1)
        for text in HOSTILE:
            refused(text)
    finally:
        monkeypatch.undo()


HOSTILE = (
    "__import__('os').system('id')",
    "().__class__",
    "$a == ().__class__",
    "[x for x in $a]",
    "(lambda: 1)()",
    "f'{$a}'",
    "$a if $b else $c",
    "$a := 1",
    "eval('1')",
    "{'a': 1}",
    "$a['b'].__class__() == 1",
    "print",
    "b'x' == $a",
    "$$",
    "$",
    "$.a",
    "'a' 'b'",
    "$a is None",
    "~$a",
    "1_000 == $a",
    "0x10",
    "1e",
    ".5",
    "5.",
    "1.2.3",
    "1a",
    "--1",
    "+1",
    "٣ == 3",
    "١٢",
    "`id`",
    "$(id)",
    "${a}",
    "#",
    "$a == 1 # why",
    "$a == 'x' \\",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_no_condition_is_refused(text):
    refused(text)


def test_case_10_a_bare_step_is_its_raw_output():
    assert branch("'ok' in $s", "all ok")[0] == "yes"
    assert branch("'ok' in $s", "failed")[0] == "no"
    assert branch("$s == 'ok'", "ok")[0] == "yes"
    assert branch("$s", 0)[0] == "no"
    assert branch("$s.k == 1", {"k": 1})[0] == "yes"


def test_case_10_a_text_literal_has_its_references_filled_in():
    assert branch("'yes' in '$s'", "well, yes")[0] == "yes"
    assert branch("'yes' in '$s'", "no")[0] == "no"
    assert branch("'$s.output.k' == '7'", {"k": 7})[0] == "yes"
    assert holds("'$a' == '1'", a=1)
    assert holds("'<$a-$b>' == '<1-x>'", a=1, b="x")
    assert holds("'$missing' == '$missing'")
    assert holds("'$$a' contains 'a'")
    assert holds("'$$' == '$$' and not '$$' == '$$$$'")


def test_case_11_paths_go_into_objects_and_never_into_python():
    assert holds("$a.b.c == 3", a={"b": {"c": 3}})
    assert holds("$a.1.x == 'y'", a=[0, {"x": "y"}])
    for value in ({"b": 1}, [1], "text", 5, True, None, 1.5):
        for name in ("__class__", "__dict__", "keys", "append", "lower", "real", "__len__"):
            assert holds(f"$a.{name} == None", a=value)
            assert holds(f"$a.{name}.__mro__ == None", a=value)


def test_case_12_contains_looks_into_its_left_side():
    assert holds("$t contains 'b'", t="abc")
    assert not holds("'b' contains $t", t="abc")
    assert holds("$t contains 2", t=[1, 2])
    assert holds("$t contains 'k'", t={"k": 0})
    assert "NoneType contains str" in no_answer("$t contains 'b'")


# --- indices ---


def test_an_index_may_be_written_in_brackets():
    rows = [{"n": 61, "of": [[1, 2], [3]]}, {"n": 5}]
    assert holds("$rows[0].n > 60 and $rows[1].n == 5", rows=rows)
    assert holds("$rows[0].of[0][1] == 2 and $rows.0.of[1].0 == 3", rows=rows)
    assert holds("$rows[2] == None and $rows[0][0] == None and $rows[99999999999].n == None", rows=rows)
    assert holds("[$rows[1].n, 6] == [5, 6] and $rows[1].n in[5]", rows=rows)
    assert Condition("$rows[0].n == $other[1]").roots == {"rows", "other"}
    assert branch("$s.output[0].n == 61", rows)[0] == branch("$s[0].n == 61", rows)[0] == "yes"
    assert branch("$ctx.k[1] == 2", 0, {"k": [1, 2]})[0] == "yes"


@pytest.mark.parametrize(
    "text",
    [
        "$a[-1]",
        "$a[b]",
        "$a['b",
        "$a ['b']",
        "$a['b' ]",
        "$a['b']c",
        "$a['b\"]",
        "$a.['b']",
        "$a['b'](1)",
        "$a[0",
        "$a[]",
        "$a[0]b",
        "$a[0.5]",
        "$a [0]",
        "$a[٣]",
        "$a[0](1)",
        "$a[ 0 ]",
    ],
)
def test_no_other_brackets_follow_a_reference(text):
    message = str(refused(text))
    if text.startswith("$a["):
        assert any(
            words in message
            for words in ("is written $name[0]", "nothing joins", "nothing closes", "means nothing", "a call")
        )


# --- names in quotes ---


def test_a_name_that_is_no_word_is_quoted():
    message = {"content-type": {"@id": [1, {"first name": "x"}]}, "$filter": 2, "it's": 3, "": 4, "a.b": 5}
    assert holds("$m['content-type']['@id'][1]['first name'] == 'x'", m=message)
    assert holds("$m[\"content-type\"]['@id'].0 == 1 and $m['content-type'].no == None", m=message)
    assert holds(
        "$m['$filter'] == 2 and $m[\"it's\"] == 3 and $m[''] == 4 and $m['a.b'] == 5 and 2 in[$m['$filter']]", m=message
    )
    assert holds("$['to-addr'] == 'bob' and $['to-addr'] == $[\"to-addr\"]", **{"to-addr": "bob"})
    assert holds("$['m'].x[0] == $m['x'][0] and $['m']['x'] == [1]", m={"x": [1]})
    assert Condition("$['to-addr'].x == $m['content-type']").references == {
        ("to-addr", ("x",)),
        ("m", ("content-type",)),
    }
    assert branch("$s['content-type'] == 1", {"content-type": 1})[0] == "yes"
    assert branch("$['my step'] == 1", 0, {"my step": 1})[0] == "yes"


def test_within_a_quoted_text_brackets_are_text():
    assert holds("'$m[x]' == '1[x]' and \"$m['x']\" == \"1['x']\"", m=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("$to-addr == 'bob'", "$['to-addr']"),
        ("$a.content-type.x==1", "$a['content-type'].x"),
        ("not $a.@id", "$a['@id']"),
        ("$a.it-is", "$a['it-is']"),
        ("$", "$['any name']"),
        ("$['x'", "$['any name']"),
        ("$a[b]", "$name['any name']"),
    ],
)
def test_a_name_that_wants_quotes_is_shown_with_them(text, said):
    assert said in str(refused(text))


def test_what_a_quoted_name_leads_to_is_told_as_it_is_written():
    told = why("$s['content-type'].x > 1", {"content-type": {}})
    assert "$s['content-type'] is an empty object, and has no x" in told
    assert "there is no $['my step']" in why("$['my step'] > 1", 0)


# --- why there is no answer ---


def why(condition, output, context=None):
    _, machine = branch(condition, output, context)
    (text,) = machine.reasons.values()
    assert machine.error_with_reason == f"{machine.error}: {text}"
    assert trace_rows_with_reasons(machine)[-1]["why"] == text
    assert dump(machine) == dump(restore(machine.program, dump(machine)))
    assert text not in dump(machine).decode()
    return text


def test_a_comparison_with_nothing_says_what_was_there_instead():
    assert why("$s.0.n > 60", '[{"n": 61}]') == (
        "$s is the text '[{\"n\": 61}]', and has no 0: `parse: json` on that step makes a value of it"
    )
    assert why("$s[0].n > 60", "sixty") == "$s is the text 'sixty', and has no 0"
    assert why("$s[2].n > 60", [1, 2]) == "$s is a list of 2, and has no 2"
    assert why("$s.a.c > 60", {"a": {"b": 1}}) == "$s.a is an object with 'b', and has no c"
    assert why("$s.a.c > 60", {"a": {}}) == "$s.a is an empty object, and has no c"
    assert why("$s.a > 60", {"a": None}) == "$s.a is null"
    assert why("$s.output.a > 60", 5) == "$s.output is 5, and has no a"
    assert why("5 < $nobody", 1) == "there is no $nobody, neither in the context nor as a step that has an output"


def test_a_comparison_of_two_kinds_says_what_each_is():
    assert why("$s > 60", "61") == "$s is the text '61': `parse: json` on that step makes a value of it"
    assert why("$s > 60", "many") == "$s is the text 'many'"
    assert why("$s < $limit", [1], {"limit": True}) == "$s is a list of 1; $limit is true"
    assert why("$s contains 'x'", 1.5) == "$s is 1.5"
    many = why("$s > 1", {f"name {number}": 0 for number in range(1000)})
    assert many.endswith("'name 9', …")
    assert len(why("$s > 1", "x" * 1_000_000)) < 100
    assert len(why(f"$s{'.0' * 4000} > 1", 1)) < 100


def counted(condition, output, context=None):
    taken, machine = branch(condition, output, context)
    rows = trace_rows_with_reasons(machine)
    assert all(row["status"] == "success" for row in rows)
    text = "; ".join(row["why"] for row in rows if "why" in row)
    assert dump(machine) == dump(restore(machine.program, dump(machine)))
    assert "counts as" not in dump(machine).decode()
    return taken, text


def test_an_equality_with_nothing_is_false_and_says_so():
    text = '[{"state": "paid"}]'
    assert counted("$s.0.state == 'paid'", text) == (
        "no",
        f"$s.0.state counts as None: $s is the text '{text}', and has no 0: `parse: json` on that step makes a value of it",
    )
    assert counted("$s.state == 'paid'", {"status": "paid"}) == (
        "no", "$s.state counts as None: $s is an object with 'status', and has no state"
    )  # fmt: skip
    nobody = "$nobody counts as None: there is no $nobody, neither in the context nor as a step that has an output"
    for condition, taken in [
        ("$nobody == 'x'", "no"),
        ("'x' != $nobody", "yes"),
        ("$nobody in ['x', 'y']", "no"),
        ("$nobody not in ['x']", "yes"),
        ("$s contains $nobody", "no"),
        ("$nobody == 'x' or $nobody == 'y'", "no"),
        ("not $nobody == $s", "yes"),
    ]:
        assert counted(condition, ["a"]) == (taken, nobody), condition
    assert len(counted(f"$s{'.0' * 4000} == 1", 1)[1]) < 1000


def test_who_asks_whether_something_is_there_is_told_nothing_of_it():
    for condition in (
        "$nobody == None",
        "None != $s.a",
        "$nobody",
        "not $s.a",
        "$nobody and $nobody.name == 'x'",
        "$nobody == None or $nobody.name == 'x'",
        "$s.b == 'x'",
        "'$nobody' == 'x'",
    ):
        assert counted(condition, {"b": None})[1] == "", condition


def test_comparisons_of_literals_alone_have_nothing_to_say():
    _, machine = branch("1 > 'a'", 1)
    assert (machine.reasons, machine.error_with_reason) == ({}, machine.error)


def test_what_a_condition_says_inside_of_another_program_is_told_with_all_of_it():
    inner = {"steps": [{"id": "if", "type": "condition", "condition": "$rows[0] > 1", "then": "if"}]}
    step = {"id": "inner", "type": "program", "program": inner, "context": {"rows": "[2]"}}
    machine, _ = run({"steps": [step]})
    assert machine.error_with_reason.startswith(
        "step 'inner' failed: the program 'unnamed' ended as failed: step 'if' failed:"
    )
    assert machine.error_with_reason.endswith(
        "$rows is the text '[2]', and has no 0: the context has to have the value itself, and not its text"
    )


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_what_a_condition_says_inside_of_a_map_s_program_is_told_with_the_item_s_row(on_error):
    inner = {"steps": [{"id": "if", "type": "condition", "condition": "$n > 1", "then": "if"}]}
    step = {"type": "program", "program": inner, "context": {"n": "$item"}, "on_error": on_error}
    machine, _ = run({"steps": [{"id": "each", "type": "map", "over": ["x", None], "step": step}]})
    rows = {row["id"]: row.get("why") for row in trace_rows_with_reasons(machine)}
    assert rows == {
        "each[0]/if": "$n is the text 'x'",
        "each[0]": None,
        "each[1]/if": "$n is null",
        "each[1]": None,
        "each": None,
    }


TOOL = {"type": "tool", "tool": "t"}
PARALLEL = {"type": "parallel", "parallel_steps": [{"id": "a", **TOOL}]}
OF_THAT_STEP = "`parse: json` on that step makes a value of it"
OF_PAYLOAD = "the payload of a resume has to be the value itself, and not its text"
OF_CONTEXT = "the context has to have the value itself, and not its text"


@pytest.mark.parametrize(
    ("step", "condition", "output", "advice"),
    [
        (TOOL, "$s > 1", "[2]", OF_THAT_STEP),
        (TOOL, "$s.output > 1", "[2]", OF_THAT_STEP),
        (TOOL, "$s.rows > 1", {"rows": "[2]"}, ""),
        ({**TOOL, "output_key": "rows"}, "$rows > 1", "[2]", "`parse: json` on the step 's' makes a value of it"),
        ({**TOOL, "parse": "json"}, "$s > 1", '"[2]"', ""),
        (PARALLEL, "$a > 1", "[2]", OF_THAT_STEP),
        (PARALLEL, "$s.a > 1", "[2]", "`parse: json` on the step 'a' makes a value of it"),
        (
            {"type": "map", "over": [0], "step": TOOL},
            "$s[0] > 1",
            "[2]",
            "`parse: json` on the `step` of 's' makes a value of it",
        ),
        ({"type": "wait", "event": "e"}, "$s > 1", None, OF_PAYLOAD),
        ({"type": "wait", "event": "e"}, "$__webhook__ > 1", None, OF_PAYLOAD),
        (TOOL, "$x > 1", None, OF_CONTEXT),
        (TOOL, "$ctx.x > 1", None, OF_CONTEXT),
    ],
)
def test_what_is_advised_for_the_text_of_a_value_makes_a_value_of_it(step, condition, output, advice):
    steps = [{"id": "s", **step}, {"id": "if", "type": "condition", "condition": condition, "then": "if"}]
    machine, _ = run({"steps": steps}, {"t": [{"value": output}]}, {"x": "[2]"}, resumes=["[2]"])
    assert trace_rows_with_reasons(machine)[-1]["why"].partition("the text '[2]'")[1:] == (
        "the text '[2]'",
        advice and f": {advice}",
    )


BODY = {"type": "tool", "tool": "t"}


@pytest.mark.parametrize("on_error", ["fail", "skip"])
@pytest.mark.parametrize(
    ("step", "context", "text"),
    [
        ({"type": "map", "over": "$x", "step": BODY}, {"x": {}}, "$x is an empty object"),
        (
            {"type": "map", "over": "$x", "step": BODY},
            {"x": "[1]"},
            "$x is the text '[1]': the context has to have the value itself, and not its text",
        ),
        (
            {"type": "map", "over": "$nope", "step": BODY},
            {},
            "there is no $nope, neither in the context nor as a step that has an output",
        ),
        (
            {"type": "map", "over": "$['no-pe'].x", "step": BODY},
            {},
            "there is no $['no-pe'], neither in the context nor as a step that has an output",
        ),
        ({"type": "wait", "seconds": "$x['a-b']"}, {"x": {"a-b": "y"}}, "$x['a-b'] is the text 'y'"),
        ({"type": "map", "over": "$x[0].y", "step": BODY}, {"x": [{"y": None}]}, "$x.0.y is null"),
        ({"type": "map", "over": "$x.z", "step": BODY}, {"x": {"y": 1}}, "$x is an object with 'y', and has no z"),
        ({"type": "wait", "seconds": "$x"}, {"x": True}, "$x is true"),
        ({"type": "wait", "seconds": "$ctx.x"}, {"x": "True"}, "$ctx.x is the text 'True'"),
        (
            {"type": "wait", "seconds": "$nope.x"},
            {},
            "there is no $nope, neither in the context nor as a step that has an output",
        ),
    ],
)
def test_what_is_no_list_to_go_over_or_no_time_to_wait_is_told_with_its_type(step, context, text, on_error):
    machine, _ = run({"steps": [{"id": "s", "on_error": on_error, **step}]}, {}, context)
    (row,) = trace_rows_with_reasons(machine)
    assert row["why"] == text
    assert machine.error_with_reason == (f"{machine.error}: {text}" if on_error == "fail" else None)
    assert text not in dump(machine).decode()


def test_a_list_that_is_too_long_is_told_as_that_alone():
    machine, _ = run({"steps": [{"id": "s", "type": "map", "over": "$x", "step": BODY}]}, {}, {"x": [0] * 20_000})
    assert "has 20000 items" in machine.error
    assert machine.error_with_reason == machine.error


# --- each operator ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 == 1.0", True),
        ("1 == True", True),
        ("'a' != 'b'", True),
        ("2 > 1", True),
        ("1 > 1", False),
        ("1 >= 1", True),
        ("1 < 1", False),
        ("-1 < 0", True),
        ("1 <= 1", True),
        ("'a' < 'b'", True),
        ("[1, 2] < [1, 3]", True),
        ("1 in [1, 2]", True),
        ("1 in []", False),
        ("3 not in [1, 2,]", True),
        ("'a' not in 'abc'", False),
        ("[1] in [[1], 2]", True),
        ("[$a, 'x', 1.5, None, [true]] == [7, 'x', 1.5, None, [1]]", True),
        ("True and true", True),
        ("False or false or null == None", True),
        ("not None", True),
        ("1e3 == 1000 and -2.5E-1 == -0.25", True),
        ('"it\'s" == "it\'s"', True),
        ("'say \"x\"' != 'x'", True),
        ("''", False),
        ("' '", True),
        ("[]", False),
        ("0.0", False),
        ("(((1)))", True),
        ("$a==7and$a==7", None),
        ("$a>6", True),
        ("not($a)", False),
        ("$a in[7]", True),
        ("\n$a\t==\u00a07\r\n", True),
    ],
)
def test_operators_and_literals(text, expected):
    if expected is None:
        refused(text)
    else:
        assert holds(text, a=7) is expected


@pytest.mark.parametrize("sign", ["==", "!=", ">", ">=", "<", "<=", "in", "not in", "contains"])
def test_comparisons_are_not_chained(sign):
    refused(f"1 {sign} 2 {sign} 3")
    assert "can't be chained" in str(refused("1 < $a < 3"))
    assert refused("1 < $a < 3").position == 7


@pytest.mark.parametrize("word", ["and", "or", "not", "in", "contains"])
def test_words_are_no_references_and_references_may_have_their_names(word):
    assert holds(f"${word} == 1 and '{word}' == '{word}'", **{word: 1})
    refused(word)
    refused(f"1 {word}")
    if word != "not":
        refused(f"{word} 1")


def test_names_may_be_any_words():
    assert holds("$größe == 1 and $_x.ключ == 2 and $__webhook__.a_1", größe=1, _x={"ключ": 2}, __webhook__={"a_1": 3})


def test_what_follows_a_reference_ends_it():
    assert holds("$a.b", a={"b": 1})
    assert refused("$a. == 1").position == 2
    assert refused("$a-1 == 0").position == 2


def test_evaluation_stops_where_the_answer_is_known():
    assert holds("True or $missing > 5")
    assert not holds("False and $missing > 5")
    no_answer("False or $missing > 5")
    no_answer("True and $missing > 5")


def test_references_are_known_before_anything_is_looked_up():
    assert Condition("$a.b == 1 or '$c and $d.e' in [$f, '$$g']").roots == {"a", "c", "d", "f"}


def test_a_text_that_would_be_too_long_has_no_answer():
    assert "more than" in no_answer("'$a$a' == 'x'", a="x" * (3 << 20))


# --- against Python ---

NAMES = {
    "zero": 0,
    "one": 1,
    "half": 0.5,
    "minus": -2,
    "yes": True,
    "no": False,
    "none": None,
    "empty": "",
    "a": "a",
    "abc": "abc",
    "list": [1, "a", None],
    "lists": [[1], [], "abc"],
    "obj": {"a": 1, "abc": {"a": [1]}},
    "nothing": {},
}


def at(value, name):
    return value.get(name) if isinstance(value, dict) else None


LEAVES = st.one_of(
    st.sampled_from(sorted(NAMES)).map(lambda name: (f"${name}", name)),
    st.builds(
        lambda name, field: (f"${name}.{field}", f"at({name}, {field!r})"),
        st.sampled_from(sorted(NAMES)),
        st.sampled_from(["a", "abc", "x"]),
    ),
    st.just(("$missing", "none")),
    st.integers(-3, 3).map(lambda number: (str(number), str(number))),
    st.sampled_from(["0.5", "1e1", "-2.0", "True", "False", "None"]).map(lambda text: (text, text)),
    st.sampled_from(["", "a", "b", "abc", " ", "and", "not $"]).map(lambda text: (f"'{text}'", repr(text))),
    st.sampled_from(sorted(NAMES)).map(lambda name: (f'"<${name}>"', f"'<' + written({name}) + '>'")),
)
SIGNS = ("==", "!=", ">", ">=", "<", "<=", "in", "not in", "contains")
OR, AND, NOT, COMPARISON, OPERAND = range(5)


def bracketed(node, level):
    return node[1:] if node[0] >= level else (f"({node[1]})", f"({node[2]})")


def joined(word, level, parts):
    ours, python = zip(*(bracketed(part, level + 1) for part in parts), strict=True)
    return (level, f" {word} ".join(ours), f" {word} ".join(python))


def negated(node):
    ours, python = bracketed(node, NOT)
    return (NOT, f"not {ours}", f"not {python}")


def compared(sign, left, right):
    (one, python_one), (other, python_other) = bracketed(left, OPERAND), bracketed(right, OPERAND)
    python = f"{python_other} in {python_one}" if sign == "contains" else f"{python_one} {sign} {python_other}"
    return (COMPARISON, f"{one} {sign} {other}", python)


def listed(parts):
    ours, python = zip(*(bracketed(part, OPERAND) for part in parts), strict=True) if parts else ((), ())
    return (OPERAND, f"[{', '.join(ours)}]", f"[{', '.join(python)}]")


def leaf(pair):
    ours, python = pair
    return (OPERAND, ours, f"({python})" if "+" in python else python)


EXPRESSIONS = st.recursive(
    LEAVES.map(leaf),
    lambda inner: st.one_of(
        st.builds(joined, st.just("or"), st.just(OR), st.lists(inner, min_size=2, max_size=3)),
        st.builds(joined, st.just("and"), st.just(AND), st.lists(inner, min_size=2, max_size=3)),
        st.builds(negated, inner),
        st.builds(compared, st.sampled_from(SIGNS), inner, inner),
        st.builds(listed, st.lists(inner, max_size=2)),
    ),
    max_leaves=8,
)


@settings(max_examples=800)
@given(EXPRESSIONS)
def test_conditions_mean_what_they_mean_in_python(expression):
    _, ours, python = expression
    try:
        expected = bool(eval(python, {"at": at, "written": written, **NAMES}))  # noqa: S307 - the reference
    except TypeError:
        no_answer(ours, **NAMES)
    else:
        assert holds(ours, **NAMES) is expected


def outcome(text, names):
    """What reading and asking a condition gives: a bool or an error."""
    try:
        return Condition(text).holds(lookup_in(names))
    except (ConditionSyntaxError, ConditionError) as exc:
        return exc


PIECES = [*"$ab. 10'\"()[],=!<>-\n\x00é", " and ", " or ", "not ", " in ", " == ", "$a", "'b'"]


@settings(max_examples=400)
@given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join) | st.text(max_size=40))
def test_any_text_is_read_or_refused_with_a_position(text):
    found = outcome(text, {"a": "b", "b": 1})
    if isinstance(found, ConditionSyntaxError):
        assert 0 <= found.position <= len(text)
        assert str(found).endswith(f"(at character {found.position + 1})")
    elif not isinstance(found, ConditionError):
        assert type(found) is bool


# --- hostile texts, each to be answered at once ---


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "text",
    [
        "$a == 1 or " * 100_000 + "$a",
        "'" + "x" * 1_000_000 + "'",
        "(" * 1_000_000,
        " " * 1_000_000,
        "\x00" * 1_000_000,
        "$" + "a." * 500_000,
    ],
    ids=["or", "text", "brackets", "spaces", "nuls", "path"],
)
def test_a_condition_of_a_megabyte_is_refused_for_its_length(text):
    assert str(refused(text)).startswith(f"the condition has {len(text)} characters; the limit is {MAX_CHARS}")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "text",
    [
        "$" + "a" * (MAX_CHARS - 1),
        "$" + "a." * (MAX_CHARS // 2 - 1) + "a",
        "$" + "a." * (MAX_CHARS // 2 - 1) + ".",
        "$a" + " " * (MAX_CHARS - 2),
        "$a " * (MAX_CHARS // 3),
        "'" * (MAX_CHARS - 1),
        '"' + "'" * (MAX_CHARS - 1),
        "1" * MAX_CHARS,
        "1" * (MAX_CHARS - 1) + "x",
        "1." + "1" * (MAX_CHARS - 3) + "x",
        "1e" + "1" * (MAX_CHARS - 3) + "x",
        "-" * MAX_CHARS,
        "not " * (MAX_CHARS // 4),
        "(" * MAX_CHARS,
        "[" * MAX_CHARS,
        ")" * MAX_CHARS,
        "=" * MAX_CHARS,
        "x" * MAX_CHARS,
        "[" + "1," * (MAX_CHARS // 2 - 1),
    ],
    ids=range(19),
)
def test_texts_that_make_careless_readers_backtrack_are_answered_at_once(text):
    assert len(text) <= MAX_CHARS
    assert len(str(outcome(text, {}))) < 300


def test_ten_thousand_parentheses_are_refused_where_they_get_too_deep():
    assert refused("(" * 5_000 + ")" * 5_000).position == MAX_DEPTH
    assert refused("[" * 5_000 + "]" * 5_000).position == MAX_DEPTH
    assert str(refused("(" * 10_000 + "$a" + ")" * 10_000)).startswith("the condition has 20002 characters")
    assert holds("(" * MAX_DEPTH + "$a" + ")" * MAX_DEPTH, a=1)
    assert holds("[" * MAX_DEPTH + "]" * MAX_DEPTH)


def test_ten_thousand_nots_are_a_loop_and_no_recursion():
    count = (MAX_CHARS - 2) // 4
    for text, expected in (("not " * count + "$a", count % 2 == 0), ("not " * (count - 1) + "$a", count % 2 == 1)):
        assert holds(text, a=1) is expected
    assert str(refused("not " * 10_000 + "$a")).startswith("the condition has 40002 characters")


def test_long_chains_are_loops_and_no_recursion():
    count = MAX_CHARS // 12
    assert not holds(" or ".join(["$a == 1"] * count), a=0)
    assert holds(" and ".join(["$a == 1"] * count), a=1)


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("", 0, "the condition is empty"),
        (" \n ", 0, "the condition is empty"),
        ("$a ==", 5, "the condition ends where a value should be"),
        ("$a == 1 and", 11, "the condition ends where a value should be"),
        ("($a == 1", 0, "nothing closes this '('"),
        ("$a in [1, 2", 6, "nothing closes this '['"),
        ("($a == 1]", 8, "')' should be where ']' is"),
        ("[1 2]", 3, "']' should be where '2' is"),
        ("[,]", 1, "',' stands where a value should be"),
        ("()", 1, "')' stands where a value should be"),
        ("$a == 'x", 6, "nothing closes this '"),
        ('$a == "x', 6, 'nothing closes this "'),
        ("$a = 1", 3, "'=' is no comparison: equality is '=='"),
        ("$a == yes", 6, "'yes' stands where a value should be: a reference is written $yes, a text 'yes'"),
        ("$a == 1 $b", 8, "nothing joins '$b' to what comes before"),
        ("$a == 1 & $b", 8, "'&' means nothing in a condition: write 'and'"),
        ("$a | $b", 3, "'|' means nothing in a condition: write 'or'"),
        ("$a && $b", 3, "'&&' means nothing in a condition: write 'and'"),
        ("$a||$b", 2, "'||' means nothing in a condition: write 'or'"),
        ("$a!b == 1", 2, "'!' is no part of a name, unless it is quoted"),
        ("$R&D == 1", 2, "'&' is no part of a name, unless it is quoted: $['R&D']"),
        ("!$a", 0, "'!' means nothing in a condition: write 'not'"),
        (
            "$a is None",
            3,
            "nothing joins 'is' to what comes before: equality is written == (such as $name == None), its opposite !=",
        ),
        ("$a == 'it's'", 11, "nothing closes this ': a text that has a ' in it stands between two \""),
        ("\x00", 0, "'\\x00' means nothing in a condition"),
        ("$a == \ud800", 6, "'\\ud800' means nothing in a condition"),
        ("$a == not $b", 6, "'not' stands where a value should be"),
        ("1" * 81, 0, "a number of too many digits"),
        ("$a == 1e999", 6, "a number too large for a 64-bit float"),
        ("$a == -1e999", 6, "a number too large for a 64-bit float"),
        ("$a.b.c() == 1", 0, "$a.b.c(…) would be a call: conditions call nothing"),
    ],
)
def test_errors_say_what_and_where(text, position, message):
    error = refused(text)
    assert error.position == position
    assert str(error).startswith(message)
    assert str(error).endswith(f"(at character {position + 1})")


def test_messages_show_little_of_a_long_word():
    assert len(str(refused("x" * 9_000))) < 200
