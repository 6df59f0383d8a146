"""The machine by its behaviour: what each type and field of a step asks for, and what comes of each outcome.

Numbers are those of the cases.
"""

import pytest

from mcp_bridge.kernel.events import Cancel, IllegalEventError, Outcome, Redo, Resume, Usage
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.program_limits import MAX_ITEMS
from mcp_bridge.kernel.state import dump, restore
from mcp_bridge.kernel.step_types import DEFAULT_MAX_STEPS


class Play:
    """A machine, and short words for what happens to its effects: those are named by their paths."""

    def __init__(self, *steps, context=None, resolve=None, **fields):
        self.machine = Machine(parse({"steps": list(steps), **fields}, resolve), context)

    @property
    def asked(self):
        """Paths of the effects that are awaited, deadlines left out, in their order."""
        return [effect.step for effect, _ in self.machine.awaited() if effect.name != "timeout"]

    @property
    def emitted(self):
        """What the last event asks for: kind, path and name, or what a `cancel` is of."""
        return [
            (effect.kind, effect.step, effect.name or effect.arguments.get("effects"))
            for effect in self.machine.effects
        ]

    @property
    def rows(self):
        return [
            (row.id, row.status, row.error if row.status in {"failed", "skipped"} and row.error else row.output)
            for row in self.machine.rows
        ]

    @property
    def trace(self):
        return [f"{row.id} {row.status}" for row in self.machine.rows]

    @property
    def end(self):
        return self.machine.status, self.machine.output

    def effect(self, path=None, *, deadline=False):
        found = [effect for effect, _ in self.machine.awaited() if (effect.name == "timeout") is deadline]
        found = [effect for effect in found if path in {None, effect.step}]
        assert len(found) == 1, (path, found)
        return found[0]

    def _apply(self, path, *args, **fields):
        self.machine.apply(Outcome(self.effect(path).id, *args, **fields))
        return self

    def ok(self, value=None, path=None, usage=None):
        return self._apply(path, "ok", value, usage=usage)

    def fail(self, path=None, code="tool_error", message="boom", usage=None):
        return self._apply(path, "failed", None, code, message, usage)

    def deny(self, path=None):
        return self._apply(path, "denied", None, "denied", "no")

    def late(self, path=None, usage=None):
        return self._apply(path, "timeout", usage=usage)

    def pend(self, path=None, code=""):
        return self._apply(path, "pending", code=code)

    def fire(self, path=None):
        """Let the time of a group or nested program pass."""
        self.machine.apply(Outcome(self.effect(path, deadline=True).id, "ok"))
        return self

    def resume(self, payload=None, source="WEBHOOK", effect=None):
        self.machine.apply(Resume(payload, source, effect))
        return self

    def cancel(self, reason="cancelled"):
        self.machine.apply(Cancel(reason))
        return self

    def refuses(self, event):
        before = dump(self.machine)
        with pytest.raises(IllegalEventError) as caught:
            self.machine.apply(event)
        assert dump(self.machine) == before
        return caught.value.code


def tool(name, **fields):
    return {"id": name, "type": "tool", "tool": f"{name}_tool", **fields}


def llm(name, **fields):
    return {"id": name, "type": "llm", "prompt": "?", **fields}


def branch(name, text, then=None, **fields):
    return {"id": name, "type": "condition", "condition": text, **({"then": then} if then else {}), **fields}


def parallel(name, *children, **fields):
    return {"id": name, "type": "parallel", "parallel_steps": list(children), **fields}


def each(name, over, body, **fields):
    return {"id": name, "type": "map", "over": over, "step": body, **fields}


def inner(name, *steps, **fields):
    own = {key: fields.pop(key) for key in ("max_steps", "max_tokens", "max_stalled_steps") if key in fields}
    return {
        "id": name,
        "type": "program",
        "program": {"name": f"{name}_program", "steps": list(steps), **own},
        **fields,
    }


def undoable(name, **fields):
    return tool(name, compensate={"tool": f"undo_{name}", "args": {"of": f"${name}"}}, **fields)


BODY = {"type": "tool", "tool": "t", "args": {"x": "$item", "i": "$index"}}
SPENT = Usage(1, 2, 3, 0.5)


# --- tools ----------------------------------------------------------------------------------------------------------------


def test_a_tool_step_asks_for_its_tool_and_gives_its_value():
    play = Play(tool("a", args={"x": "$n", "y": [1]}, timeout_seconds=2.5), context={"n": 5})
    effect = play.effect()
    assert effect == (1, "tool", "a", 1, "a_tool", {"x": 5, "y": [1]}, 2.5)
    assert (play.machine.status, play.machine.output, play.machine.error) == ("running", None, None)
    assert play.ok({"k": 1}).end == ("success", {"k": 1})
    assert play.rows == [("a", "success", {"k": 1})]
    assert (play.machine.effects, play.machine.awaited(), play.machine.ended) == ([], [], True)


def test_a_tool_without_arguments_gets_none():
    assert Play(tool("a")).effect().arguments == {}
    assert Play(tool("a")).effect().timeout is None


@pytest.mark.parametrize("value", [None, 0, "", [], {}, False, 1.5, "text"])
def test_any_json_value_is_an_output(value):
    play = Play(tool("a"), tool("b", args={"x": "$a"})).ok(value)
    assert play.effect().arguments == {"x": value}
    assert play.rows == [("a", "success", value)]


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        (lambda play: play.fail(), "tool_error", "boom"),
        (lambda play: play._apply(None, "failed"), "failed", "the effect failed"),
        (lambda play: play.deny(), "denied", "no"),
        (lambda play: play._apply(None, "denied"), "denied", "the effect failed"),
        (lambda play: play.late(), "timeout", "timed out after 2.5 s"),
        (lambda play: play._apply(None, "timeout", None, "slow", "too slow"), "slow", "too slow"),
    ],
)
def test_case_24_a_failure_ends_the_program_and_says_why(how, code, message):
    play = Play(tool("a", timeout_seconds=2.5), tool("b"))
    how(play)
    assert play.end == ("failed", None)
    assert play.machine.error == f"step 'a' failed: {message}"
    assert play.machine.rows == [("a", "failed", None, message, code, 0, None)]
    assert play.asked == []


def test_case_23_a_failure_may_be_skipped():
    play = Play(tool("a", on_error="skip"), tool("b", args={"x": "$a"})).fail()
    assert play.effect().arguments == {"x": "$a"}
    assert play.ok(2).end == ("success", 2)
    assert play.machine.rows[0] == ("a", "skipped", None, "boom", "tool_error", 0, None)


def test_what_was_skipped_last_is_not_the_output():
    assert Play(tool("a"), tool("b", on_error="skip")).ok(1).fail().end == ("success", 1)


def test_a_time_out_without_a_limit_says_so():
    assert Play(tool("a")).late().machine.error == "step 'a' failed: timed out"


# --- attempts -------------------------------------------------------------------------------------------------------------


def waits(play):
    """Attempts fail until none is left: how long is waited before each."""
    found = []
    while not play.machine.ended:
        play.fail()
        if play.asked:
            effect = play.effect()
            assert (effect.kind, effect.name, effect.timeout) == ("wait", "retry", None)
            found.append(effect.arguments["seconds"])
            play.ok()
    return found


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"on_error": "skip"}, []),
        ({"max_retries": 5}, []),
        ({"on_error": "retry"}, [1, 2]),
        ({"on_error": "retry", "max_retries": 0}, []),
        ({"on_error": "retry", "max_retries": 1}, []),
        ({"on_error": "retry", "max_retries": 7}, [1, 2, 4, 8, 16, 30]),
        ({"retry": {}}, [1, 2]),
        ({"retry": {"max_attempts": 1}}, []),
        ({"retry": {"max_attempts": 4, "delay_seconds": 0.5, "multiplier": 3}}, [0.5, 1.5, 4.5]),
        ({"retry": {"max_attempts": 4, "delay_seconds": 5, "max_delay_seconds": 7}}, [5, 7, 7]),
        ({"retry": {"max_attempts": 3, "delay_seconds": 0}}, [0, 0]),
        ({"retry": {"schedule": [3, 0, 0.25]}}, [3, 0, 0.25]),
        ({"retry": {"schedule": [3]}, "on_error": "retry", "max_retries": 9}, [3]),
    ],
)
def test_case_25_attempts_and_the_waits_before_them(fields, expected):
    play = Play(tool("a", **fields))
    assert waits(play) == expected
    assert [row.retries for row in play.machine.rows] == [len(expected)]


def test_another_attempt_is_another_effect_of_the_same_step():
    play = Play(tool("a", on_error="retry", args={"x": "$n"}), context={"n": 1}).fail()
    assert play.effect()[:5] == (2, "wait", "a", 1, "retry")
    play.ok()
    assert play.effect() == (3, "tool", "a", 2, "a_tool", {"x": 1}, None)
    assert play.ok("at last").end == ("success", "at last")
    assert play.machine.rows == [("a", "success", "at last", None, None, 1, None)]


def test_attempts_may_end_in_a_skip():
    play = Play(tool("a", retry={"schedule": [1]}, on_error="skip"), tool("b")).fail().ok().fail()
    assert (play.trace, play.asked) == (["a skipped"], ["b"])
    assert play.machine.rows[0].retries == 1


@pytest.mark.parametrize("code", ["denied", "cancelled", "violation", "interrupted"])
def test_what_another_attempt_cannot_mend_is_not_tried_again(code):
    assert Play(tool("a", on_error="retry")).fail(code=code).trace == ["a failed"]


def test_a_time_out_is_tried_again():
    play = Play(tool("a", on_error="retry", timeout_seconds=1)).late().ok()
    assert (play.effect().attempt, play.effect().timeout) == (2, 1)


def test_a_wait_for_another_attempt_that_fails_is_the_end_of_attempts():
    play = Play(tool("a", retry={"max_attempts": 1000})).fail().fail(code="internal_error", message="no clock")
    assert play.machine.rows == [("a", "failed", None, "no clock", "internal_error", 0, None)]
    assert Play(llm("m", on_error="retry", on_timeout="fallback")).fail().late().end == ("failed", None)
    assert Play(tool("a", on_error="retry")).fail()._apply(None, "denied").trace == ["a failed"]


def test_a_wait_for_another_attempt_may_be_long():
    play = Play(tool("a", retry={"schedule": [86400]})).fail().pend()
    assert play.machine.status == "suspended"
    assert play.refuses(Resume()) == "not_pending"
    assert play.refuses(Resume(effect=2)) == "not_resumable"
    assert play.trace == []
    assert play.ok().effect().attempt == 2


# --- models ---------------------------------------------------------------------------------------------------------------


def test_a_model_step_asks_with_its_prompt():
    play = Play(
        llm("m", prompt="Is $n ok?", system="Be $n.", allowed_outputs=["yes", "no"], timeout_seconds=9),
        context={"n": 1},
    )
    expected = {"prompt": "Is 1 ok?", "system": "Be 1.", "allowed_outputs": ["yes", "no"]}
    assert play.effect() == (1, "llm", "m", 1, "", expected, 9)


@pytest.mark.parametrize("system", [None, ""])
def test_a_model_step_without_more_asks_with_its_prompt_alone(system):
    assert Play(llm("m", system=system)).effect().arguments == {"prompt": "?"}


@pytest.mark.parametrize(("answer", "output"), [("yes", "yes"), (" yes\n", "yes"), ("no", "no")])
def test_case_26_an_answer_is_one_of_those_allowed(answer, output):
    assert Play(llm("m", allowed_outputs=["yes", "no"])).ok(answer).end == ("success", output)


@pytest.mark.parametrize("answer", ["YES", "", "yes.", "yes no", "PENDING"])
def test_case_26_an_answer_that_is_not_allowed_fails(answer):
    play = Play(llm("m", allowed_outputs=["yes", "no"])).ok(answer)
    message = f"the model's answer {answer!r} is none of 'yes', 'no'"
    assert play.machine.rows == [("m", "failed", None, message, "not_allowed", 0, None)]


def test_a_long_answer_that_is_not_allowed_is_not_told_whole():
    error = Play(llm("m", allowed_outputs=["yes"])).ok("x" * 10_000).machine.rows[0].error
    assert error == f"the model's answer {'x' * 200!r} is none of 'yes'"


def test_without_a_list_any_text_is_an_answer_as_it_is():
    assert Play(llm("m")).ok(" free \n").end == ("success", " free \n")


def test_what_a_model_says_never_suspends():
    assert Play(llm("m")).ok("PENDING").end == ("success", "PENDING")
    assert Play(llm("m")).refuses(Outcome(1, "pending")) == "bad_value"


def test_case_27_skip_takes_the_first_that_is_allowed():
    play = Play(llm("m", allowed_outputs=["no", "yes"], on_error="skip")).ok("maybe", usage=SPENT)
    assert play.machine.rows == [("m", "success", "no", None, None, 0, SPENT)]
    assert Play(llm("m", allowed_outputs=["no"], on_error="skip")).fail().trace == ["m skipped"]


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, ("failed", None)),
        ({"on_timeout": "fail"}, ("failed", None)),
        ({"on_timeout": "fallback"}, ("success", "")),
        ({"on_timeout": "fallback", "allowed_outputs": ["b", "a"]}, ("success", "b")),
        ({"on_timeout": "fallback", "on_error": "retry"}, ("success", "")),
        ({"on_error": "skip"}, ("success", None)),
    ],
)
def test_case_28_what_a_time_out_of_a_model_gives(fields, end):
    assert Play(llm("m", **fields)).late().end == end


def test_what_is_not_allowed_is_asked_again():
    play = Play(llm("m", allowed_outputs=["yes"], on_error="retry")).ok("hm", usage=SPENT).ok().ok("yes", usage=SPENT)
    assert play.machine.rows == [("m", "success", "yes", None, None, 1, Usage(2, 4, 6, 1))]


# --- usage ----------------------------------------------------------------------------------------------------------------


def test_usage_is_counted_however_an_answer_ended():
    play = Play(llm("a", on_error="skip"), llm("b", on_timeout="fallback"), llm("c"), tool("d"))
    play.fail(usage=SPENT).late(usage=SPENT).ok("x", usage=SPENT).ok(1)
    assert play.machine.tokens == 9
    assert [row.usage for row in play.machine.rows] == [SPENT, SPENT, SPENT, None]


def test_usage_of_nested_programs_counts_in_all_that_they_run_in():
    play = Play(inner("p", inner("q", llm("m"))), llm("n"))
    play.ok("x", "p/q/m", usage=SPENT).ok("x", usage=Usage(total_tokens=4))
    assert play.machine.tokens == 7
    assert [(row.id, row.usage) for row in play.machine.rows if row.usage] == [
        ("p/q/m", SPENT),
        ("n", Usage(total_tokens=4)),
    ]


def test_usage_is_written_as_the_number_that_it_is():
    play = Play(llm("a", on_error="retry")).fail(usage=Usage(cost_usd=2.0)).ok().ok("x", usage=Usage(1, cost_usd=0.0))
    assert repr(play.machine.rows[0].usage) == repr(Usage(1, 0, 0, 2))


# --- conditions and flow --------------------------------------------------------------------------------------------------


def run_to_end(play, value="v"):
    while play.asked:
        play.ok(value, play.asked[0])
    return play.trace


def flow(*steps, **context):
    play = Play(*steps, context=context)
    return [row.split()[0] for row in run_to_end(play)], play.machine.status


def test_case_19_the_target_of_a_condition_ends_the_program():
    steps = [branch("if", "$x", "yes", otherwise="no"), tool("between"), tool("yes"), tool("no")]
    assert flow(*steps, x=1) == (["if", "yes"], "success")
    assert flow(*steps, x=0) == (["if", "no"], "success")


def test_the_row_of_a_condition_tells_where_it_led():
    play = Play(branch("if", "$x", "a", otherwise="b"), tool("a"), tool("b"), context={"x": 1})
    assert play.rows == [("if", "success", "a")]
    assert Play(branch("if", "False", "a"), tool("a")).rows == [("if", "success", None)]


def test_case_20_next_step_rejoins_over_many_hops():
    steps = [
        branch("if", "True", "x"),
        tool("never"),
        tool("x", next_step="z"),
        tool("y"),
        tool("z", next_step="y2"),
        tool("y2", next_step="end"),
        tool("end"),
    ]
    assert flow(*steps) == (["if", "x", "z", "y2", "end"], "success")


def test_what_next_step_leads_to_goes_on_in_the_order_of_the_list():
    play = Play(branch("if", "True", "c"), tool("a"), tool("b"), tool("c", next_step="a"), max_steps=6)
    assert [row.split()[0] for row in run_to_end(play)] == ["if", "c", "a", "b", "c", "a"]


@pytest.mark.parametrize("condition", ["False", "$missing", "$n > 1"])
def test_case_21_a_condition_without_a_target_for_its_case_fails(condition):
    play = Play(branch("if", condition, "a"), tool("a"), context={"n": 1})
    assert play.end == ("failed", None)
    assert play.machine.error == "step 'if': the condition has no target for this case"
    assert play.machine.level.ending[1] == "no_target"


def test_a_condition_that_leads_to_a_condition_leaves_its_target_in_line():
    steps = [branch("c", "True", "d"), branch("d", "True", "x"), tool("a"), tool("x"), tool("y")]
    assert flow(*steps) == (["c", "d", "x", "y"], "success")
    steps = [branch("c", "True", "d"), branch("d", "True", "e"), branch("e", "True", "x"), tool("x"), tool("y")]
    assert flow(*steps) == (["c", "d", "e", "x"], "success")


def test_is_terminal_ends_the_program_in_line():
    assert flow(tool("a", is_terminal=True), tool("b")) == (["a"], "success")
    assert flow(tool("a", is_terminal=True, next_step="b"), tool("b")) == (["a"], "success")


def test_in_a_branch_next_step_counts_more_than_is_terminal():
    assert flow(branch("if", "True", "a"), tool("a", is_terminal=True, next_step="c"), tool("b"), tool("c"))[0] == [
        "if",
        "a",
        "c",
    ]


def test_a_skipped_step_is_followed_like_any_other():
    for target, expected in ((tool("a", on_error="skip"), []), (tool("a", on_error="skip", next_step="c"), ["c"])):
        play = Play(branch("if", "True", "a"), target, tool("b"), tool("c")).fail()
        assert play.asked == expected


def test_case_7_a_condition_that_has_no_answer_fails_or_is_skipped():
    text = "$missing > 5"
    play = Play(branch("if", text, "a"), tool("a"))
    message = "the condition '$missing > 5' fails: these can't be compared so: NoneType > int"
    assert play.machine.rows == [("if", "failed", None, message, "bad_condition", 0, None)]
    assert Play(branch("if", text, "b", on_error="skip"), tool("a"), tool("b")).asked == ["a"]
    assert Play(branch("if", text, "a", on_error="skip", next_step="b"), tool("a"), tool("b")).asked == ["b"]
    assert Play(branch("if", text, "a", on_error="skip", is_terminal=True), tool("a")).end == ("success", None)


def test_a_condition_reads_the_context_before_steps_and_texts_the_other_way_round():
    steps = [tool("a"), branch("if", "$a == 'context'", "b"), tool("b", args={"x": "$a"})]
    play = Play(*steps, context={"a": "context"}).ok("step")
    assert (play.asked, play.effect().arguments) == (["b"], {"x": "step"})


def test_the_last_output_of_a_step_that_ran_again_counts():
    play = Play(tool("a"), branch("if", "$a == 3", "end", otherwise="a"), tool("end", args={"x": "$a"}))
    # A branch ends the program unless it has next_step: `a` has none.
    assert play.ok(1).asked == ["a"]
    assert play.ok(3).end == ("success", 3)
    play = Play(tool("a", next_step="if"), branch("if", "$a == 3", "end", otherwise="a"), tool("end", args={"x": "$a"}))
    assert play.ok(1).ok(2).ok(3).effect().arguments == {"x": 3}


def test_the_output_is_that_of_the_step_that_succeeded_last():
    assert Play(tool("a"), branch("if", "True", "b"), tool("b", on_error="skip")).ok(1).fail().end == ("success", "b")
    assert Play(branch("if", "$x > 1", "a", on_error="skip", is_terminal=True), tool("a")).end == ("success", None)
    assert Play(tool("a"), tool("b")).ok(1).fail().end == ("failed", None)


# --- output_key -----------------------------------------------------------------------------------------------------------


def test_output_key_puts_the_output_into_the_context():
    play = Play(tool("a", output_key="x"), tool("b", args={"x": "$x", "c": "$ctx.x", "a": "$a"}), context={"x": 0}).ok(
        7
    )
    assert play.effect().arguments == {"x": 7, "c": 7, "a": 7}


@pytest.mark.parametrize(
    ("step", "value"),
    [
        (branch("s", "True", "b", output_key="x"), "b"),
        (llm("s", output_key="x"), "v"),
        (parallel("s", tool("k"), output_key="x"), {"k": "v"}),
        (each("s", [1], BODY, output_key="x"), ["v"]),
        (inner("s", tool("k"), output_key="x"), "v"),
        ({"id": "s", "type": "wait", "seconds": 1, "output_key": "x"}, "v"),
        ({"id": "s", "type": "wait", "event": "e", "output_key": "x"}, "v"),
    ],
)
def test_every_type_of_step_has_an_output_key(step, value):
    play = Play(step, tool("b", args={"x": "$x", "s": "$s"}))
    while play.asked != ["b"]:
        play.ok("v", play.asked[0])
    assert play.effect().arguments == {"x": value, "s": value}


def test_what_failed_or_was_skipped_has_no_output():
    play = Play(
        tool("a", output_key="x", on_error="skip"), tool("b", args={"x": "$x", "a": "$a"}), context={"x": 0}
    ).fail()
    assert play.effect().arguments == {"x": 0, "a": "$a"}


def test_a_step_that_is_skipped_has_no_output_of_an_earlier_turn():
    step = tool("a", output_key="x", on_error="skip")
    play = Play(step, tool("b", args={"a": "$a", "x": "$x"}, next_step="a")).ok(1)
    assert play.effect().arguments == {"a": 1, "x": 1}
    play.ok().fail()
    # The context is its author's: a default there is common.
    assert play.effect().arguments == {"a": "$a", "x": 1}
    play.ok().ok(2)
    assert play.effect().arguments == {"a": 2, "x": 2}


def test_a_condition_sees_nothing_of_a_step_that_is_skipped():
    play = Play(
        tool("a", on_error="skip"), branch("c", "$a == 1", "b", otherwise="z"), tool("b", next_step="a"), tool("z")
    )
    assert play.ok(1).asked == ["b"]
    assert play.ok().fail().asked == ["z"]


def test_what_a_skipped_parallel_step_and_its_failures_gave_is_of_an_earlier_turn():
    group = parallel("p", tool("a"), tool("b"), timeout_seconds=5, on_error="skip")
    play = Play(group, tool("z", args={"p": "$p", "a": "$a", "b": "$b"}, next_step="p")).ok(1, "a").ok(2, "b").ok()
    play.ok(3, "a").fire()
    assert play.trace[-3:] == ["a success", "b failed", "p skipped"]
    assert play.effect().arguments == {"p": "$p", "a": 3, "b": "$b"}


def test_an_output_that_goes_is_a_change_and_one_that_is_gone_is_none():
    play = Play(tool("a", on_error="skip", next_step="a"), max_stalled_steps=2).ok(1).ok(1).fail().fail()
    assert play.asked == ["a"]
    assert play.fail().machine.status == "stalled"


# --- parallel -------------------------------------------------------------------------------------------------------------


def test_case_29_the_outputs_of_a_parallel_step_are_an_object_and_have_names():
    play = Play(
        parallel("p", tool("a", args={"x": "$n"}), llm("b")),
        tool("c", args={"p": "$p", "b": "$p.b", "a": "$a"}),
        context={"n": 1},
    )
    assert play.emitted == [("tool", "a", "a_tool"), ("llm", "b", None)]
    play.ok("two", "b").ok(1, "a")
    assert play.effect().arguments == {"p": {"a": 1, "b": "two"}, "b": "two", "a": 1}
    assert play.trace == ["a success", "b success", "p success"]


def test_case_30_a_failure_in_a_parallel_step_names_what_failed():
    play = Play(parallel("p", tool("a"), tool("b"), tool("c"))).fail("a").ok(1, "b")
    assert play.asked == ["c"]
    play.fail("c")
    assert play.machine.error == "step 'p' failed: sub-steps failed: a, c"
    assert play.machine.rows[-1] == ("p", "failed", None, "sub-steps failed: a, c", "sub_steps_failed", 0, None)


def test_case_31_a_parallel_step_that_skips_gives_none_for_what_failed():
    play = Play(parallel("p", tool("a"), tool("b"), on_error="skip"), tool("c", args={"a": "$a"}))
    play.fail("a").ok(2, "b")
    assert play.effect().arguments == {"a": None}
    assert play.rows == [("a", "skipped", "boom"), ("b", "success", 2), ("p", "success", {"a": None, "b": 2})]


def test_case_32_sub_steps_have_their_own_on_error_retries_and_output_keys():
    children = tool("a", on_error="skip"), tool("b", on_error="retry", max_retries=2), tool("c", output_key="x")
    play = Play(parallel("p", *children), tool("d", args={"x": "$x"}))
    play.fail("a").fail("b").ok(3, "c").ok(None, "b").ok(2, "b")
    assert play.effect().arguments == {"x": 3}
    assert [(row.id, row.status, row.retries) for row in play.machine.rows] == [
        ("a", "skipped", 0),
        ("b", "success", 1),
        ("c", "success", 0),
        ("p", "success", 0),
    ]


def test_case_33_what_succeeded_beside_a_failure_is_told_and_has_its_output():
    play = Play(parallel("p", tool("a"), tool("b")), tool("c", args={"a": "$a"})).ok(1, "a").fail("b")
    assert play.rows[:2] == [("a", "success", 1), ("b", "failed", "boom")]


def test_case_33_a_sub_step_that_is_pending_suspends_when_nothing_else_is_under_way():
    play = Play(parallel("p", tool("a"), tool("b")), tool("c")).ok("PENDING", "a")
    assert play.machine.status == "running"
    assert play.ok(2, "b").machine.status == "suspended"
    assert play.trace == []
    play.resume("paid")
    assert play.rows == [("a", "success", "paid"), ("b", "success", 2), ("p", "success", {"a": "paid", "b": 2})]
    assert play.asked == ["c"]


def test_case_34_max_concurrency_bounds_what_is_under_way():
    play = Play(parallel("p", *(tool(name) for name in "abcde"), max_concurrency=2))
    assert play.asked == ["a", "b"]
    assert play.ok(1, "b").asked == ["a", "c"]
    assert play.fail("a").asked == ["c", "d"]
    assert play.ok(1, "c").ok(1, "d").asked == ["e"]
    assert play.ok(1).trace == ["a failed", "b success", "c success", "d success", "e success", "p failed"]


def test_a_parallel_step_that_is_tried_again_keeps_what_had_succeeded():
    play = Play(parallel("p", tool("a"), tool("b"), tool("c", on_error="skip"), on_error="retry"))
    play.ok(1, "a").fail("c").fail("b")
    assert play.asked == ["p"]
    assert play.effect().arguments == {"seconds": 1}
    assert play.ok().asked == ["b"]
    assert play.ok(2).end == ("success", {"a": 1, "b": 2, "c": None})
    assert [(row.id, row.retries) for row in play.machine.rows] == [("a", 0), ("b", 0), ("c", 0), ("p", 1)]


def test_sub_steps_that_fail_at_once_let_the_others_run():
    play = Play(parallel("p", tool("a", args={"x": "$big$big"}), tool("b")), context={"big": "x" * (3 << 20)})
    assert play.asked == ["b"]
    assert play.ok(1).trace == ["a failed", "b success", "p failed"]
    assert play.machine.rows[0].code == "too_large"


# --- map ------------------------------------------------------------------------------------------------------------------


def test_a_map_step_runs_its_body_for_each_item():
    play = Play(each("m", "$items", BODY), tool("b", args={"m": "$m"}), context={"items": ["x", {"k": 1}]})
    assert [effect[2:6] for effect in play.machine.effects] == [
        ("m[0]", 1, "t", {"x": "x", "i": 0}),
        ("m[1]", 1, "t", {"x": {"k": 1}, "i": 1}),
    ]
    play.ok("second", "m[1]").ok("first", "m[0]")
    assert play.effect().arguments == {"m": ["first", "second"]}
    assert play.trace == ["m[0] success", "m[1] success", "m success"]


def test_the_items_may_be_written_out_with_references_and_have_a_name():
    body = {"type": "llm", "prompt": "$it.k $index $item"}
    play = Play(each("m", ["$n", {"k": "$n"}], body, **{"as": "it"}), context={"n": 5, "item": "outer"})
    assert [effect.arguments["prompt"] for effect in play.machine.effects] == ["$it.k 0 outer", "5 1 outer"]


def test_an_item_comes_before_a_step_and_a_name_of_the_context():
    play = Play(tool("item"), each("m", [7], BODY), context={"item": "context", "index": "context"}).ok("step")
    assert play.effect().arguments == {"x": 7, "i": 0}


def test_no_items_give_an_empty_list():
    assert Play(each("m", [], BODY)).end == ("success", [])


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "is 'None'"),
        ({"a": 1}, "is \"{'a': 1}\""),
        ("text", "is 'text'"),
        ([0] * (MAX_ITEMS + 1), f"has {MAX_ITEMS + 1} items"),
    ],
)
def test_what_is_no_list_or_too_long_fails(value, told):
    play = Play(each("m", "$x", BODY, on_error="retry"), context={"x": value})
    message = f"'over' {told}, and is no list of at most {MAX_ITEMS}"
    assert play.machine.rows == [("m", "failed", None, message, "bad_value", 0, None)]
    assert Play(each("m", "$x", BODY, on_error="skip"), tool("b"), context={"x": value}).asked == ["b"]
    assert Play(each("m", "$nowhere", BODY)).machine.rows[0].error.startswith("'over' is '$nowhere'")


def test_a_list_may_be_as_long_as_the_limit():
    play = Play(each("m", "$x", BODY, max_concurrency=3), context={"x": [0] * MAX_ITEMS})
    assert play.asked == ["m[0]", "m[1]", "m[2]"]


def test_map_with_max_concurrency_starts_an_item_when_one_has_ended():
    play = Play(each("m", [10, 20, 30, 40], BODY, max_concurrency=2))
    assert play.ok("b", "m[1]").asked == ["m[0]", "m[2]"]
    assert play.ok("c", "m[2]").asked == ["m[0]", "m[3]"]
    assert play.ok("d", "m[3]").ok("a", "m[0]").end == ("success", ["a", "b", "c", "d"])


def test_a_failed_item_fails_the_map_or_is_none():
    play = Play(each("m", [1, 2], BODY)).fail("m[0]").ok(2, "m[1]")
    assert play.machine.error == "step 'm' failed: sub-steps failed: m[0]"
    assert Play(each("m", [1, 2], BODY, on_error="skip")).fail("m[0]").ok(2, "m[1]").end == ("success", [None, 2])
    body = BODY | {"on_error": "skip"}
    assert Play(each("m", [1, 2], body)).fail("m[0]").ok(2, "m[1]").end == ("success", [None, 2])


def test_items_are_tried_again_each_for_itself_and_only_those_that_failed():
    play = Play(each("m", [1, 2], BODY | {"on_error": "retry", "max_retries": 2}, retry={"max_attempts": 2}))
    play.fail("m[1]").ok(1, "m[0]").ok(None, "m[1]").fail("m[1]")
    assert play.asked == ["m"]
    assert play.ok().asked == ["m[1]"]
    assert play.ok(2).end == ("success", [1, 2])


def test_output_key_in_a_body_is_that_of_the_last_item_that_succeeded():
    play = Play(each("m", [1, 2, 3], BODY | {"output_key": "x", "on_error": "skip"}), tool("b", args={"x": "$x"}))
    play.fail("m[2]")
    play.ok("two", "m[1]").ok("one", "m[0]")
    assert play.effect().arguments == {"x": "two"}


def test_a_map_over_programs_knows_item_and_index_in_their_context_only():
    body = {
        "type": "program",
        "program": {"steps": [tool("a", args={"v": "$v", "item": "$item"})]},
        "context": {"v": "$item-$index"},
    }
    play = Play(each("m", ["x", "y"], body))
    assert [(effect.step, effect.arguments) for effect in play.machine.effects] == [
        ("m[0]/a", {"v": "x-0", "item": "$item"}),
        ("m[1]/a", {"v": "y-1", "item": "$item"}),
    ]
    assert play.ok(2, "m[1]/a").ok(1, "m[0]/a").end == ("success", [1, 2])
    assert play.trace == ["m[1]/a success", "m[0]/a success", "m[0] success", "m[1] success", "m success"]


# --- programs in programs -------------------------------------------------------------------------------------------------


def test_a_nested_program_has_a_context_of_its_own_and_gives_its_output():
    play = Play(
        inner("p", tool("a", args={"x": "$x", "n": "$n"}), context={"x": "$n"}),
        tool("b", args={"p": "$p", "a": "$a"}),
        context={"n": 1},
    )
    assert play.effect()[2:6] == ("p/a", 1, "a_tool", {"x": 1, "n": "$n"})
    play.ok("out")
    assert play.effect().arguments == {"p": "out", "a": "$a"}
    assert play.trace == ["p/a success", "p success"]


def test_programs_are_run_by_name_and_nest():
    named = {"low": parse({"steps": [tool("t")]})}
    named["mid"] = parse({"steps": [{"id": "l", "type": "program", "program": "low"}]}, named.get)
    play = Play({"id": "m", "type": "program", "program": "mid"}, resolve=named.get)
    assert play.asked == ["m/l/t"]
    assert [(name, program.hash) for name, program in play.machine.programs_of(1)] == [
        (None, play.machine.program.hash),
        ("mid", named["mid"].hash),
        ("low", named["low"].hash),
    ]
    assert play.ok(1).trace == ["m/l/t success", "m/l success", "m success"]


def test_what_is_written_out_in_a_step_is_a_part_of_its_program():
    play = Play(inner("p", tool("a")))
    assert play.machine.programs_of(1) == [(None, play.machine.program)]


@pytest.mark.parametrize(
    ("nested", "how", "code", "told"),
    [
        (inner("p", tool("a")), lambda play: play.fail(), "tool_error", "failed: step 'a' failed: boom"),
        (inner("p", tool("a", next_step="a"), max_steps=1), lambda play: play.ok(), "budget_exceeded", "budget_exceeded: max_steps=1 exceeded after 1 step(s)"),
        (inner("p", tool("a", next_step="a"), max_stalled_steps=0), lambda play: play.ok(), "stalled", "stalled: max_stalled_steps=0 exceeded: 0 consecutive step(s) changed nothing"),
        (inner("p", branch("a", "False", "a")), lambda play: play, "no_target", "failed: step 'a': the condition has no target for this case"),
    ],
)  # fmt: skip
def test_however_a_nested_program_ends_badly_its_step_fails_with_its_code(nested, how, code, told):
    play = Play(nested)
    how(play)
    assert play.machine.status == "failed"
    row = play.machine.rows[-1]
    assert (row.id, row.status, row.code, row.error) == (
        "p",
        "failed",
        code,
        f"the program 'p_program' ended as {told}",
    )
    play = Play(nested | {"on_error": "skip"}, tool("b"))
    how(play)
    assert play.asked == ["b"]


def test_a_nested_program_is_tried_again_from_its_start():
    play = Play(inner("p", tool("a"), tool("b", args={"a": "$a"}), retry={"max_attempts": 2}))
    play.ok(1).fail()
    assert (play.asked, play.effect().name) == (["p"], "retry")
    play.ok()
    assert play.asked == ["p/a"]
    play.ok(2)
    assert play.effect().arguments == {"a": 2}
    assert play.ok(3).machine.rows[-1] == ("p", "success", 3, None, None, 1, None)


def test_a_context_that_grows_too_large_fails_its_step():
    play = Play(
        inner("p", tool("a"), context={"x": "$big$big"}, on_error="skip"), tool("b"), context={"big": "x" * (3 << 20)}
    )
    assert (play.asked, play.machine.rows[0].code) == (["b"], "too_large")


@pytest.mark.parametrize(
    ("over", "fields"),
    [
        ("$t", {"retry": {"max_attempts": 3}}),
        ("$['a-b']", {"timeout_seconds": 9}),
        (["$t", "$t"], {"on_error": "skip"}),
    ],
)
def test_a_list_to_go_over_that_is_too_large_fails_its_step(over, fields):
    play = Play(tool("t"), each("m", over, BODY, **fields), tool("b"), context={"a-b": ["x" * (8 << 20)]})
    play.ok([["x" * (8 << 20)]])
    row = play.machine.rows[1]
    assert (row.id, row.code, row.retries) == ("m", "too_large", 0)
    assert "more than 8388608 characters and values" in row.error
    assert (play.asked, play.machine.status) == (["b"], "running") if "on_error" in fields else ([], "failed")
    restore(play.machine.program, dump(play.machine))


def test_a_list_to_go_over_that_is_too_large_at_the_start_fails_the_program():
    play = Play(each("m", ["$big"] * 3, BODY), context={"big": "x" * (3 << 20)})
    assert (play.machine.rows[0].code, play.machine.status) == ("too_large", "failed")


# --- approvals ------------------------------------------------------------------------------------------------------------


def approval(name="ask", **fields):
    return {"id": name, "type": "approval", "message": "Pay $n?", **fields}


def test_an_approval_asks_a_person():
    play = Play(approval(details={"n": ["$n"]}, timeout_seconds=60), context={"n": 5})
    assert play.effect() == (1, "approval", "ask", 1, "", {"message": "Pay 5?", "details": {"n": [5]}}, 60)
    assert Play(approval(message="$o"), context={"o": {"b": 1, "a": [None]}}).effect().arguments == {
        "message": "{'a': [None], 'b': 1}",
        "details": None,
    }


def test_what_is_approved_goes_on_with_the_decision_as_its_output():
    play = Play(approval(output_key="d"), tool("a", args={"by": "$ask.by", "d": "$d"})).ok(
        {"approved": True, "by": "x"}
    )
    assert play.effect().arguments == {"by": "x", "d": {"approved": True, "by": "x"}}


def test_what_is_denied_fails_or_goes_the_other_way():
    play = Play(approval(), tool("a")).ok({"approved": False})
    assert play.machine.rows == [("ask", "failed", None, "the approval was denied", "denied", 0, None)]
    play = Play(approval(otherwise="c"), tool("a"), tool("b"), tool("c"), tool("d")).ok({"approved": False, "by": "x"})
    assert (play.trace, play.asked) == (["ask success"], ["c"])
    assert play.ok(1).end == ("success", 1), "the target of a denial ends the program like a condition's"


def test_the_target_of_a_denial_may_rejoin():
    play = Play(approval(otherwise="c"), tool("a"), tool("b"), tool("c", next_step="b")).ok({"approved": False}).ok()
    assert play.asked == ["b"]
    play = Play(approval(otherwise="d", next_step="b"), tool("a"), tool("b"), tool("d")).ok({"approved": True})
    assert play.asked == ["b"]


def test_an_approval_may_take_long_and_a_resume_never_decides_it():
    play = Play(approval(otherwise="a"), tool("a")).pend()
    assert (play.machine.status, play.machine.can_resume, play.trace) == ("suspended", False, [])
    assert play.refuses(Resume({"approved": True})) == "not_pending"
    assert play.refuses(Resume({"approved": True}, effect=1)) == "not_resumable"
    assert play.refuses(Outcome(1, "ok", {"approved": "yes"})) == "bad_value"
    assert play.ok({"approved": True}).asked == ["a"]


def test_an_approval_that_takes_too_long_fails():
    play = Play(approval(timeout_seconds=60), tool("a")).late()
    assert play.machine.error == "step 'ask' failed: timed out after 60 s"


# --- waits and events -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "filled"), [(0, 0), (1.5, 1.5), ("$n", 7), ("$a.n.0", 2)])
def test_a_wait_lets_time_pass(seconds, filled):
    play = Play({"id": "w", "type": "wait", "seconds": seconds}, tool("b"), context={"n": 7, "a": {"n": [2]}})
    assert play.effect() == (1, "wait", "w", 1, "wait", {"seconds": filled}, None)
    assert play.ok().asked == ["b"]


@pytest.mark.parametrize("value", ["5", None, -1, True, [1], 10 * 366 * 86400 + 1, {"b": 1, "a": "é"}])
def test_a_time_that_is_no_number_of_seconds_fails(value):
    play = Play({"id": "w", "type": "wait", "seconds": "$n"}, context={"n": value})
    assert (play.machine.rows[0].code, play.machine.status) == ("bad_value", "failed")
    shown = "{'a': 'é', 'b': 1}" if isinstance(value, dict) else str(value)
    assert play.machine.rows[0].error.startswith(f"'seconds' is {shown!r}, and no number from 0 to")
    play = Play({"id": "w", "type": "wait", "seconds": "$n", "on_error": "skip"}, tool("b"), context={"n": value})
    assert play.asked == ["b"]


def test_a_long_wait_suspends_and_only_its_time_ends_it():
    play = Play({"id": "w", "type": "wait", "seconds": 86400}, tool("b")).pend()
    assert (play.machine.status, play.machine.can_resume) == ("suspended", False)
    assert play.refuses(Resume(effect=1)) == "not_resumable"
    assert play.ok().asked == ["b"]


def test_an_event_waits_to_be_resumed():
    play = Play(
        {"id": "w", "type": "wait", "event": "paid", "timeout_seconds": 9, "output_key": "x"},
        tool("b", args={"w": "$w", "x": "$x", "h": "$__webhook__.k", "s": "$__webhook_source__"}),
    )
    assert play.effect() == (1, "event", "w", 1, "paid", {}, 9)
    assert play.refuses(Resume({"k": 1})) == "not_pending"
    assert play.pend().machine.status == "suspended"
    play.resume({"k": 1}, "OPERATOR")
    assert play.effect().arguments == {"w": {"k": 1}, "x": {"k": 1}, "h": 1, "s": "OPERATOR"}
    assert play.trace == ["w success"]


def test_an_event_that_does_not_come_in_time_fails_or_is_skipped():
    wait = {"id": "w", "type": "wait", "event": "paid", "timeout_seconds": 9}
    assert Play(wait).pend().late().machine.error == "step 'w' failed: timed out after 9 s"
    assert Play(wait | {"on_error": "skip"}, tool("b")).pend().late().asked == ["b"]


# --- suspended ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [lambda play: play.ok("PENDING"), lambda play: play.pend()])
def test_case_39_a_tool_that_is_pending_suspends_and_a_resume_brings_its_output(how):
    play = Play(
        tool("a", output_key="x"),
        tool("b", args={"a": "$a", "x": "$x", "h": "$__webhook__", "s": "$__webhook_source__"}),
    )
    how(play)
    assert play.machine.status == "suspended"
    assert play.rows == [("a", "pending", "PENDING")]
    assert play.machine.awaited()[0][1] is True
    play.resume({"k": 1}, "TIMER")
    assert play.effect().arguments == {"a": {"k": 1}, "x": {"k": 1}, "h": {"k": 1}, "s": "TIMER"}
    assert play.refuses(Resume(2)) == "not_pending"
    assert play.refuses(Resume(2, effect=1)) == "not_pending"
    assert play.ok(5).end == ("success", 5)
    assert play.trace == ["a pending", "b success"]


def test_a_pending_effect_may_also_end_by_an_outcome():
    assert Play(tool("a")).pend().ok(1).rows == [("a", "pending", "PENDING"), ("a", "success", 1)]
    assert Play(tool("a")).pend().fail().trace == ["a pending", "a failed"]
    assert Play(tool("a", on_error="retry")).pend().fail().ok().asked == ["a"]
    assert Play(tool("a")).ok("PENDING").refuses(Outcome(1, "ok", "PENDING")) == "already_pending"


def test_case_40_a_resume_honours_next_step_is_terminal_and_the_branch():
    assert Play(tool("a", next_step="c"), tool("b"), tool("c")).pend().resume().asked == ["c"]
    assert Play(tool("a", is_terminal=True), tool("b")).pend().resume(1).machine.status == "success"
    assert Play(branch("if", "True", "a"), tool("a"), tool("b")).pend().resume().machine.status == "success"


def test_what_was_resumed_is_not_the_output_of_the_program():
    # As in llm-nano-vm: the output is that of the step that succeeded, and this one stays pending in the trace.
    assert Play(tool("a"), tool("b")).ok(1).pend().resume(2).end == ("success", 1)


@pytest.mark.parametrize("inner", [[tool("p")], [tool("a"), tool("p")]])
def test_what_was_resumed_is_the_output_of_the_step_that_runs_the_program(inner):
    steps = {"type": "program", "program": {"steps": inner}}
    play = Play({"id": "in", **steps}, tool("z", args={"v": ["$in", "$in.k"]}))
    if len(inner) > 1:
        play.ok("a", "in/a")
    play.pend().resume({"k": 5})
    assert play.effect().arguments == {"v": [{"k": 5}, 5]}
    assert play.trace[-2:] == ["in/p pending", "in success"]
    assert play.ok(7).end == ("success", 7)


def test_what_was_resumed_is_the_output_of_a_program_in_a_map():
    step = {"type": "program", "program": {"steps": [tool("p")]}}
    play = Play({"id": "m", "type": "map", "over": [1, 2], "step": step}).pend("m[1]/p").pend("m[0]/p")
    assert play.resume("second").resume("first").end == ("success", ["first", "second"])


def test_the_one_that_waited_longest_is_resumed_first():
    play = Play(parallel("p", tool("a"), tool("b"), tool("c"))).pend("b").pend("a").ok(3, "c")
    assert play.machine.status == "suspended"
    play.resume("for b").resume("for a")
    assert play.end == ("success", {"a": "for a", "b": "for b", "c": 3})


def test_a_resume_may_say_which():
    play = Play(parallel("p", tool("a"), tool("b"))).pend("b").pend("a")
    assert play.refuses(Resume(1, effect=99)) == "not_pending"
    play.resume("for a", effect=1)
    assert play.asked == ["b"]


def test_a_call_that_waits_for_a_person_is_not_resumed_and_leaves_no_row():
    play = Play(tool("a"), tool("b")).pend(code="approval")
    assert (play.machine.status, play.machine.can_resume, play.trace) == ("suspended", False, [])
    assert play.refuses(Resume(1, effect=1)) == "not_resumable"
    assert play.refuses(Outcome(1, "pending", code="approval")) == "already_pending"
    assert play.ok("done").rows == [("a", "success", "done")]
    assert Play(tool("a")).pend(code="approval").deny().machine.rows[0].code == "denied"


def test_a_call_that_a_person_allowed_may_then_be_pending_itself():
    play = Play(tool("a"), tool("b")).pend(code="approval").pend()
    assert (play.machine.can_resume, play.trace) == (True, ["a pending"])
    assert play.refuses(Outcome(1, "pending")) == "already_pending"
    assert play.resume(1).asked == ["b"]


def test_a_call_in_doubt_is_not_resumed_leaves_no_row_and_ends_as_a_person_says():
    play = Play(tool("a", on_error="retry"), tool("b")).pend(code="in_doubt")
    assert (play.machine.status, play.machine.can_resume, play.trace) == ("suspended", False, [])
    assert play.refuses(Resume(1, effect=1)) == "not_resumable"
    assert play.refuses(Resume(1)) == "not_pending"
    assert play.refuses(Outcome(1, "pending", code="in_doubt")) == "already_pending"
    assert play.ok("done").rows == [("a", "success", "done")]
    failed = Play(tool("a", on_error="retry")).pend(code="in_doubt").fail(code="failed")
    assert failed.emitted == [("wait", "a", "retry")]
    pending = Play(tool("a")).pend(code="in_doubt").pend()
    assert (pending.machine.can_resume, pending.trace) == (True, ["a pending"])
    assert pending.refuses(Redo(1)) == "not_in_doubt"


def test_a_call_in_doubt_that_has_not_happened_is_wanted_again_as_it_was():
    play = Play(tool("a", args={"x": 1}), tool("b"))
    first, began = play.effect(), dump(play.machine)
    assert play.refuses(Redo(1)) == "not_in_doubt"
    play.pend(code="approval")
    assert play.refuses(Redo(1)) == "not_in_doubt"
    play.pend(code="in_doubt")
    assert play.machine.apply(Redo(1)) == [first]
    assert (play.machine.status, dump(play.machine)) == ("running", began)
    assert play.refuses(Redo(1)) == "not_in_doubt"
    assert play.pend(code="in_doubt").pend(code="approval").ok("done").asked == ["b"]


@pytest.mark.parametrize(
    "step", [{"id": "a", "type": "wait", "seconds": 1}, {"id": "a", "type": "wait", "event": "e"}, llm("a"),
             {"id": "a", "type": "approval", "message": "?"}],
)  # fmt: skip
def test_only_a_tool_s_call_is_ever_in_doubt(step):
    assert Play(step).refuses(Outcome(1, "pending", code="in_doubt")) == "bad_value"


def test_a_doubt_in_a_group_or_a_compensation_waits_there_and_can_be_cancelled():
    play = Play(parallel("p", tool("a"), tool("b"), timeout_seconds=9)).pend("a", code="in_doubt")
    assert play.machine.status == "running"
    play.ok(1, "b")
    assert play.machine.status == "suspended"
    assert Play(parallel("p", tool("a"), tool("b"), timeout_seconds=9)).pend("a", code="in_doubt").fire().trace == [
        "a failed", "b failed", "p failed",
    ]  # fmt: skip
    undo = {"tool": "undo", "args": {}}
    play = Play(tool("a", compensate=undo), tool("b")).ok().pend(code="in_doubt").cancel()
    assert play.asked == ["a.compensate"]
    play.pend(code="in_doubt")
    assert (play.machine.status, play.machine.ended) == ("suspended", False)
    assert play.ok().machine.status == "cancelled"


def test_what_waits_inside_a_nested_program_is_resumed_there():
    play = Play(inner("p", tool("a"), tool("b", args={"h": "$__webhook__"})), tool("c", args={"h": "$__webhook__"}))
    play.pend("p/a").resume(7)
    assert play.effect().arguments == {"h": 7}
    assert play.ok(1).effect().arguments == {"h": "$__webhook__"}
    assert play.trace == ["p/a pending", "p/b success", "p success"]


def test_with_something_under_way_it_is_not_suspended():
    play = Play(parallel("p", tool("a"), llm("b"))).pend("a")
    assert play.machine.status == "running"
    assert play.ok("x", "b").machine.status == "suspended"


def test_a_deadline_alone_keeps_nothing_running():
    assert Play(parallel("p", tool("a"), timeout_seconds=5)).pend("a").machine.status == "suspended"


# --- deadlines of groups and nested programs ------------------------------------------------------------------------------


def test_a_group_has_a_deadline_that_is_taken_back_when_it_ends():
    play = Play(parallel("p", tool("a"), tool("b"), timeout_seconds=5), tool("c"))
    assert play.machine.effects[0] == (1, "wait", "p", 1, "timeout", {"seconds": 5}, None)
    play.ok(1, "a").ok(2, "b")
    assert play.emitted == [("cancel", "p", [1]), ("tool", "c", "c_tool")]
    assert play.refuses(Outcome(1, "ok")) == "unknown_effect"


@pytest.mark.parametrize(
    ("step", "paths"),
    [
        (parallel("p", tool("a"), tool("b", on_error="retry"), timeout_seconds=5), ["a", "b"]),
        (each("p", [1, 2, 3], BODY, max_concurrency=2, timeout_seconds=5), ["p[0]", "p[1]"]),
        (inner("p", parallel("q", tool("a"), tool("b")), timeout_seconds=5), ["p/a", "p/b"]),
    ],
)
def test_when_its_time_has_passed_all_beneath_it_is_cancelled(step, paths):
    play = Play(step, tool("z"))
    assert play.asked == paths
    numbers = [play.effect(path).id for path in paths]
    play.fire()
    assert [(kind, what) for kind, _, what in play.emitted] == [("cancel", [number]) for number in numbers]
    assert play.machine.status == "failed"
    row = play.machine.rows[-1]
    assert (row.id, row.code) == ("p", "timeout")
    assert "timed out after 5 s" in row.error
    for number in numbers:
        assert play.refuses(Outcome(number, "ok", 1)) == "ended"


def test_what_was_not_started_when_the_time_passed_has_failed_too():
    play = Play(each("p", [1, 2, 3], BODY, max_concurrency=1, timeout_seconds=5)).ok("done", "p[0]").fire()
    assert play.trace == ["p[0] success", "p[1] failed", "p[2] failed", "p failed"]
    assert {row.code for row in play.machine.rows[1:]} == {"timeout"}


def test_a_deadline_is_for_all_attempts_together_and_none_follows_it():
    play = Play(parallel("p", tool("a"), on_error="retry", timeout_seconds=5), tool("z")).fail("a").ok(None, "p")
    assert [effect.kind for effect in play.machine.effects] == ["tool"], "no second deadline"
    assert play.fire().machine.status == "failed"
    play = Play(inner("p", tool("a"), on_error="skip", retry={}, timeout_seconds=5), tool("z")).fire()
    assert (play.trace, play.asked) == (["p/a failed", "p skipped"], ["z"])


def test_a_deadline_that_passes_between_attempts_ends_them():
    play = Play(parallel("p", tool("a"), tool("b"), on_error="retry", timeout_seconds=5)).ok(1, "a").fail("b")
    play.fire()
    assert play.trace == ["a success", "b failed", "p failed"]
    assert play.machine.rows[-1].code == "timeout"


def test_nothing_but_passing_happens_to_a_deadline():
    play = Play(parallel("p", tool("a"), timeout_seconds=5))
    for status in ("failed", "timeout", "denied"):
        assert play.refuses(Outcome(1, status)) == "bad_value"
    before = dump(play.machine)
    assert play.machine.apply(Outcome(1, "pending")) == [], "a host may put it off"
    assert dump(play.machine) == before


def test_a_deadline_inside_a_deadline_ends_the_inner_one_only():
    play = Play(inner("p", parallel("q", tool("a"), timeout_seconds=1, on_error="skip"), tool("b"), timeout_seconds=9))
    play.fire("p/q")
    assert play.asked == ["p/b"]
    assert play.ok(1).end == ("success", 1)


# --- compensation ---------------------------------------------------------------------------------------------------------


def test_what_was_done_is_undone_last_first_when_the_program_fails():
    play = Play(undoable("a"), undoable("b"), tool("c")).ok("A").ok("B").fail()
    assert play.machine.status == "running"
    assert play.effect() == (4, "tool", "b.compensate", 1, "undo_b", {"of": "B"}, None)
    play.ok("gone")
    assert play.effect()[2:6] == ("a.compensate", 1, "undo_a", {"of": "A"})
    assert play.ok().end == ("failed", None)
    assert play.machine.error == "step 'c' failed: boom"
    assert play.trace == ["a success", "b success", "c failed", "b.compensate success", "a.compensate success"]


def test_nothing_is_undone_when_the_program_succeeds():
    assert Play(undoable("a"), tool("b")).ok().ok(2).end == ("success", 2)


def test_what_failed_or_was_skipped_itself_is_not_undone():
    assert Play(undoable("a", on_error="skip"), undoable("b")).fail().fail().trace == ["a skipped", "b failed"]


@pytest.mark.parametrize("end", [
    lambda: Play(undoable("a", next_step="a"), max_steps=1).ok(1),
    lambda: Play(undoable("a", next_step="a"), max_stalled_steps=1).ok(1).ok(1),
    lambda: Play(undoable("a"), tool("b")).ok(1).cancel(),
    lambda: Play(undoable("a"), branch("if", "False", "a")).ok(1),
    lambda: Play(undoable("a"), llm("m"), tool("b"), max_tokens=3).ok(1).ok("x", usage=SPENT),
])  # fmt: skip
def test_it_is_undone_however_the_program_ends_badly(end):
    play = end()
    while play.asked:
        assert play.asked == ["a.compensate"]
        play.ok()
    assert play.machine.status in {"budget_exceeded", "stalled", "cancelled", "failed"}


def test_its_arguments_are_those_of_the_moment_when_it_was_done():
    steps = [
        tool("a", args={"n": "$n"}, compensate={"tool": "undo", "args": {"was": "$n", "of": "$a.id"}}),
        tool("b", output_key="n"),
        tool("c"),
    ]
    play = Play(*steps, context={"n": 1}).ok({"id": 7}).ok(2).fail()
    assert play.effect().arguments == {"was": 1, "of": 7}
    assert Play(tool("a", compensate={"tool": "undo"}), tool("b")).ok(1).fail().effect().arguments == {}


def test_its_own_output_is_known_to_it_also_by_its_key():
    step = tool("a", output_key="n", compensate={"tool": "undo", "args": {"n": "$n"}})
    assert Play(step, tool("b"), context={"n": 0}).ok(5).fail().effect().arguments == {"n": 5}


def test_a_compensation_is_tried_three_times_and_one_that_fails_stops_none_of_the_others():
    play = Play(undoable("a"), undoable("b"), tool("c")).ok().ok().fail()
    play.fail()
    assert (play.effect().name, play.effect().arguments) == ("retry", {"seconds": 1})
    play.ok().fail()
    assert play.effect().arguments == {"seconds": 2}
    play.ok().fail("b.compensate")
    assert play.asked == ["a.compensate"]
    assert play.ok().machine.error == "step 'c' failed: boom"
    assert play.machine.rows[-2] == ("b.compensate", "failed", None, "boom", "tool_error", 2, None)


def test_a_compensation_that_is_denied_is_not_tried_again():
    play = Play(undoable("a"), tool("b")).ok().fail().deny()
    assert (play.machine.status, play.trace[-1]) == ("failed", "a.compensate failed")


def test_a_compensation_may_be_pending():
    play = Play(undoable("a"), tool("b")).ok().fail().ok("PENDING")
    assert (play.machine.status, play.trace[-1]) == ("suspended", "b failed")
    assert play.resume(1).trace[-1] == "a.compensate success"
    assert play.machine.status == "failed"


def test_a_step_that_ran_again_is_undone_each_time():
    play = Play(undoable("a", next_step="if"), branch("if", "$a == 2", "end", otherwise="a"), tool("end"))
    play.ok(1).ok(2).fail()
    assert play.effect().arguments == {"of": 2}
    assert play.ok().effect().arguments == {"of": 1}


def test_what_was_suspended_is_undone_by_what_it_was_resumed_with():
    assert Play(undoable("a"), tool("b")).pend().resume("paid").fail().effect().arguments == {"of": "paid"}


def test_arguments_that_grow_too_large_fail_the_compensation_alone():
    steps = [tool("a", compensate={"tool": "undo", "args": {"x": "$big$big"}}), undoable("b"), tool("c")]
    play = Play(*steps, context={"big": "x" * (3 << 20)}).ok().ok().fail().ok()
    assert play.trace[-2:] == ["b.compensate success", "a.compensate failed"]
    assert (play.machine.rows[-1].code, play.machine.status) == ("too_large", "failed")


def test_what_was_done_in_a_group_is_undone_also_if_the_group_failed():
    play = Play(parallel("p", undoable("a"), undoable("b"), tool("c"))).ok(2, "b").ok(1, "a").fail("c")
    assert play.effect()[2:6] == ("b.compensate", 1, "undo_b", {"of": 2})
    assert play.ok().asked == ["a.compensate"]


def test_what_was_done_in_a_group_is_undone_also_if_it_ends_between_attempts():
    for end in (lambda play: play.cancel(), lambda play: play.fire("p"), lambda play: play.fail("p")):
        play = Play(parallel("p", undoable("a"), tool("b"), on_error="retry", timeout_seconds=9)).ok(1, "a").fail("b")
        assert (play.asked, play.effect("p").name) == (["p"], "retry")
        end(play)
        assert play.effect().name == "undo_a"
        play.ok()
        assert play.trace == ["a success", "b failed", "p failed", "a.compensate success"]


def test_the_items_of_a_map_are_undone_each_with_its_own_item():
    body = BODY | {"compensate": {"tool": "undo", "args": {"item": "$item", "i": "$index"}}}
    play = Play(each("m", ["x", "y"], body), tool("z")).ok(1, "m[0]").ok(2, "m[1]").fail()
    assert play.effect()[2:6] == ("m[1].compensate", 1, "undo", {"item": "y", "i": 1})
    assert play.ok().effect()[2:6] == ("m[0].compensate", 1, "undo", {"item": "x", "i": 0})


def test_what_an_item_gave_is_known_to_its_compensation_by_the_id_of_the_body():
    body = BODY | {"id": "one", "compensate": {"tool": "undo", "args": {"of": "$one.id", "item": "$item"}}}
    play = (
        Play(each("m", ["x", "y"], body), tool("z", args={"one": "$one"})).ok({"id": 1}, "m[0]").ok({"id": 2}, "m[1]")
    )
    assert play.effect().arguments == {"one": "$one"}
    assert play.fail().effect().arguments == {"of": 2, "item": "y"}
    assert play.ok().effect().arguments == {"of": 1, "item": "x"}


def test_a_nested_program_that_fails_undoes_its_own_before_its_step_fails():
    play = Play(undoable("a"), inner("p", undoable("b"), tool("c"), on_error="skip"), tool("d")).ok().ok().fail()
    assert play.asked == ["p/b.compensate"]
    assert play.ok().asked == ["d"]
    assert play.trace == ["a success", "p/b success", "p/c failed", "p/b.compensate success", "p skipped"]
    play.fail()
    assert play.asked == ["a.compensate"]


def test_what_a_nested_program_did_well_is_undone_with_what_it_is_a_part_of():
    play = Play(undoable("a"), inner("p", undoable("b"), undoable("c")), tool("d")).ok().ok().ok("C").fail()
    assert play.effect()[2:6] == ("p/c.compensate", 1, "undo_c", {"of": "C"})
    assert play.ok().asked == ["p/b.compensate"]
    assert play.ok().asked == ["a.compensate"]


def test_a_nested_program_undoes_what_it_did_before_it_is_tried_again():
    play = Play(inner("p", undoable("b"), tool("c"), retry={"max_attempts": 2})).ok().fail()
    assert play.asked == ["p/b.compensate"]
    assert (play.ok().asked, play.effect().name) == (["p"], "retry")
    assert play.ok().asked == ["p/b"]


def test_a_deadline_waits_for_what_has_to_be_undone():
    play = Play(inner("p", undoable("b"), tool("c"), timeout_seconds=5, on_error="skip"), tool("d")).ok().fire()
    assert (play.asked, play.trace) == (["p/b.compensate"], ["p/b success", "p/c failed"])
    assert play.ok().asked == ["d"]
    assert play.machine.rows[-1].code == "timeout"


# --- cancelling -----------------------------------------------------------------------------------------------------------


def test_a_cancel_takes_back_what_is_under_way():
    play = Play(parallel("p", tool("a"), tool("b"), tool("c", on_error="retry"))).ok(1, "a").fail("c")
    play.cancel("enough")
    assert play.emitted == [("cancel", "b", [2]), ("cancel", "c", [4])]
    assert (play.machine.status, play.machine.error) == ("cancelled", "enough")
    assert play.trace == ["a success", "b failed", "c failed", "p failed"]
    assert {row.code for row in play.machine.rows[1:3]} == {"cancelled"}
    assert play.refuses(Cancel()) == "ended"


@pytest.mark.parametrize("step", [
    tool("a", on_error="skip"), tool("a", on_error="retry"), llm("a", on_timeout="fallback"), approval("a", otherwise="b"),
    {"id": "a", "type": "wait", "event": "e"}, inner("a", tool("x"), on_error="skip", retry={}),
    each("a", [1], BODY, on_error="skip"), parallel("a", tool("x"), on_error="skip"),
])  # fmt: skip
def test_after_a_cancel_nothing_is_skipped_tried_again_or_gone_on_with(step):
    play = Play(step, tool("b"))
    if play.effect().kind != "llm":
        play.pend()
    assert play.cancel().machine.status == "cancelled"
    assert (play.asked, play.machine.pending) == ([], {})


def test_a_cancel_undoes_at_every_depth_before_it_ends():
    play = Play(undoable("a"), inner("p", undoable("b"), inner("q", undoable("c"), tool("d")))).ok().ok().ok()
    play.cancel()
    assert play.emitted == [("cancel", "p/q/d", [4]), ("tool", "p/q/c.compensate", "undo_c")]
    assert play.ok().asked == ["p/b.compensate"]
    assert play.ok().asked == ["a.compensate"]
    assert play.ok().end == ("cancelled", None)


def test_programs_beside_each_other_undo_beside_each_other():
    body = {"type": "program", "program": {"steps": [undoable("b"), tool("c")]}}
    play = Play(each("m", [1, 2], body), tool("z")).ok(1, "m[0]/b").ok(2, "m[1]/b").cancel()
    assert play.asked == ["m[0]/b.compensate", "m[1]/b.compensate"]
    assert play.ok(None, "m[1]/b.compensate").machine.status == "running"
    assert play.ok().machine.status == "cancelled"


def test_a_cancel_of_what_is_winding_down_changes_nothing():
    play = Play(undoable("a"), tool("b")).ok().fail()
    before = dump(play.machine)
    assert play.cancel("late").machine.effects == []
    assert dump(play.machine) == before
    assert play.ok().machine.error == "step 'b' failed: boom"


def test_a_cancel_says_why():
    assert Play(tool("a")).cancel().machine.error == "cancelled"
    assert Play(tool("a")).refuses(Cancel("\ud800")) == "bad_value"


# --- budgets --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "ran"), [(0, 0), (1, 1), (2, 2), (3, 3)])
def test_case_35_max_steps_bounds_the_steps(limit, ran):
    play = Play(tool("a"), tool("b"), tool("c"), max_steps=limit)
    assert len(run_to_end(play)) == ran
    if limit < 3:
        assert play.machine.status == "budget_exceeded"
        assert play.machine.error == f"max_steps={limit} exceeded after {limit} step(s)"
    else:
        assert play.machine.status == "success"


def test_case_36_conditions_and_their_targets_count_and_sub_steps_do_not():
    assert Play(branch("if", "True", "a"), tool("a"), max_steps=1).machine.status == "budget_exceeded"
    assert Play(branch("if", "True", "a"), tool("a"), max_steps=2).asked == ["a"]
    play = Play(
        parallel("p", tool("a"), tool("b")), each("m", [1, 2], BODY), inner("q", tool("x"), tool("y")), max_steps=3
    )
    run_to_end(play)
    assert play.machine.status == "success"


def test_case_37_max_tokens_bounds_what_models_take():
    play = Play(llm("a"), llm("b"), llm("c"), max_tokens=6).ok("x", usage=SPENT).ok("x", usage=SPENT)
    assert (play.machine.status, play.asked) == ("budget_exceeded", [])
    assert play.machine.error == "max_tokens=6 exceeded: 6 tokens consumed"
    assert Play(llm("a"), llm("b"), max_tokens=7).ok("x", usage=SPENT).ok("x", usage=SPENT).machine.status == "success"
    assert Play(tool("a"), max_tokens=0).machine.status == "budget_exceeded"


def test_the_last_step_may_take_what_is_left_and_more():
    assert Play(llm("a"), max_tokens=2).ok("x", usage=SPENT).end == ("success", "x")


def test_a_budget_of_tokens_bounds_nested_programs_and_ends_both():
    play = Play(inner("p", llm("a"), llm("b"), on_error="retry"), max_tokens=3).ok("x", usage=SPENT)
    assert play.machine.rows[-1].code == "budget_exceeded"
    play = Play(inner("p", llm("a"), llm("b")), max_tokens=3).ok("x", usage=SPENT)
    assert play.machine.status == "budget_exceeded"
    assert play.machine.error == "max_tokens=3 exceeded: 3 tokens consumed"


def test_the_budget_of_a_nested_program_is_its_own():
    play = Play(inner("p", llm("a"), llm("b"), max_tokens=3, on_error="skip"), llm("c")).ok("x", usage=SPENT)
    assert (play.asked, play.machine.rows[-1].code) == (["c"], "budget_exceeded")


@pytest.mark.parametrize("step", [
    parallel("p", llm("a"), llm("b"), llm("c"), max_concurrency=1),
    each("p", [1, 2, 3], {"type": "llm", "prompt": "?"}, max_concurrency=1),
    each("p", [1, 2, 3], {"type": "program", "program": {"steps": [llm("x")]}}, max_concurrency=1),
])  # fmt: skip
def test_no_model_is_asked_in_a_group_when_the_budget_is_used_up(step):
    play = Play(step, max_tokens=4)
    for _ in range(2):
        play.ok("x", play.asked[0], usage=SPENT)
    assert (play.asked, play.machine.status) == ([], "budget_exceeded")
    assert play.machine.error == "max_tokens=4 exceeded: 6 tokens consumed"
    own = [row for row in play.machine.rows if "/" not in row.id]
    assert [row.status for row in own] == ["success", "success", "failed", "failed"]
    assert {row.code for row in own[2:]} == {"budget_exceeded"}


def test_a_group_that_skips_what_fails_skips_what_has_no_budget():
    play = Play(parallel("p", llm("a"), llm("b"), max_concurrency=1, on_error="skip"), max_tokens=3).ok(
        "x", usage=SPENT
    )
    assert play.end == ("success", {"a": "x", "b": None})


def test_no_model_is_asked_again_when_the_budget_is_used_up():
    play = Play(llm("a", allowed_outputs=["yes"], retry={"max_attempts": 1000}), max_tokens=4)
    play.ok("no", usage=SPENT).ok().ok("no", usage=SPENT)
    assert (play.asked, play.machine.status) == ([], "budget_exceeded")
    assert play.machine.rows == [
        ("a", "failed", None, "max_tokens=4 exceeded: 6 tokens consumed", "budget_exceeded", 1, Usage(2, 4, 6, 1))
    ]


def test_a_group_that_is_tried_again_without_a_budget_keeps_what_was_done():
    play = (
        Play(parallel("p", undoable("a"), llm("b"), on_error="retry"), max_tokens=3).ok(1, "a").fail("b", usage=SPENT)
    )
    assert play.asked == ["a.compensate"]
    assert play.ok().machine.status == "budget_exceeded"


def test_what_has_to_be_undone_needs_no_budget():
    play = Play(undoable("a"), llm("m"), tool("b"), max_tokens=3, max_steps=2).ok().ok("x", usage=SPENT)
    assert play.asked == ["a.compensate"]
    assert play.fail().ok().ok().machine.status == "budget_exceeded"


def test_case_38_loops_have_a_bound_by_default():
    play = Play(branch("a", "True", "b"), branch("b", "True", "a"))
    assert play.machine.status == "budget_exceeded"
    assert len(play.trace) == DEFAULT_MAX_STEPS + 2


def test_loops_in_loops_that_ask_for_nothing_end_soon():
    program = {"steps": [branch("a", "True", "a")]}
    for _ in range(5):
        program = {"steps": [{"id": "p", "type": "program", "program": program, "on_error": "skip", "next_step": "p"}]}
    play = Play(*program["steps"], max_steps=10**12)
    assert (play.machine.status, play.machine.awaited()) == ("budget_exceeded", [])
    assert "in a row without an effect to wait for" in play.machine.error
    play = Play(branch("a", "True", "a"), max_steps=10**12)
    assert play.machine.status == "budget_exceeded"


def test_maps_in_maps_cannot_ask_for_everything_at_once():
    body = {"type": "program", "program": {"steps": [each("n", "$x", BODY)]}, "context": {"x": "$x"}}
    play = Play(each("m", "$x", body), context={"x": [0] * MAX_ITEMS})
    assert len(play.machine.waiting) < 10 * MAX_ITEMS


# --- stalls ---------------------------------------------------------------------------------------------------------------


def test_case_38_a_step_that_changes_nothing_again_and_again_stalls():
    play = Play(tool("a", next_step="a"), max_stalled_steps=2).ok(1).ok(1)
    assert play.asked == ["a"]
    assert play.ok(1).machine.status == "stalled"
    assert play.machine.error == "max_stalled_steps=2 exceeded: 2 consecutive step(s) changed nothing"
    assert len(play.trace) == 3


def test_what_changes_something_begins_the_count_anew():
    play = Play(tool("a", next_step="a"), max_stalled_steps=2)
    for value in (1, 1, 2, 2, 1, True, 1, "1"):
        play.ok(value)
        assert play.asked == ["a"], value
    assert play.ok("1").ok("1").machine.status == "stalled"


def test_equal_objects_change_nothing_whatever_the_order_of_their_names():
    play = Play(tool("a", next_step="a"), max_stalled_steps=1).ok({"a": 1, "b": 2}).ok({"b": 2, "a": 1})
    assert play.machine.status == "stalled"


def test_skipped_steps_change_nothing():
    play = Play(tool("a", on_error="skip", next_step="a"), max_stalled_steps=2).fail().fail()
    assert play.asked == ["a"]
    assert play.fail().machine.status == "stalled"


def test_without_a_bound_nothing_stalls():
    play = Play(tool("a", next_step="a"), max_steps=20)
    run_to_end(play)
    assert play.machine.status == "budget_exceeded"


def test_a_sub_step_that_changes_something_counts_for_the_program():
    play = Play(parallel("p", tool("a"), next_step="p"), max_stalled_steps=1).ok(1).ok(2)
    assert play.asked == ["a"]
    assert play.ok(2).machine.status == "stalled"


# --- what goes in ---------------------------------------------------------------------------------------------------------


def test_a_context_that_is_not_json_is_refused():
    program = parse({"steps": [tool("a")]})
    for value, where in (({"x": float("nan")}, "context.x"), ({"x": [object()]}, "context.x[0]"), ({1: 2}, "context")):
        with pytest.raises(ValueError, match="context") as caught:
            Machine(program, value)
        assert caught.value.path == where


def test_the_context_is_not_shared_with_whoever_gave_it():
    context = {"n": [1]}
    play = Play(tool("a", args={"n": "$n"}), tool("b", args={"n": "$n"}), context=context)
    context["n"].append(2)
    assert play.effect().arguments == {"n": [1]}
    value = {"k": [1]}
    play.ok(value)
    value["k"].append(2)
    assert play.machine.level.outputs == {"a": {"k": [1]}}


def test_effects_are_numbered_through_everything():
    play = Play(parallel("p", tool("a", on_error="retry"), tool("b"), timeout_seconds=5), tool("c"))
    assert [effect.id for effect in play.machine.effects] == [1, 2, 3]
    assert [effect.id for effect in play.fail("a").machine.effects] == [4]
    assert [effect.id for effect in play.ok(None, "a").machine.effects] == [5]
    play.ok(1, "a").ok(2, "b")
    assert [effect.id for effect in play.machine.effects] == [6, 7]
    assert play.machine.last_effect == 7


def test_outcomes_of_what_was_never_asked_or_has_ended_are_refused():
    play = Play(tool("a"), tool("b"))
    for number in (0, -1, 2, 99):
        assert play.refuses(Outcome(number, "ok", 1)) == "unknown_effect"
    play.ok(1)
    assert play.refuses(Outcome(1, "ok", 1)) == "unknown_effect"


@pytest.mark.parametrize("name", ["a\U0001fae8", "é'\""])
def test_messages_quote_texts_alike_on_every_python(name):
    steps = [tool(name, on_error="skip", args={"x": "<$l>"}), branch("c", f"'{chr(0x1FAE8)}' > 1", "c")]
    play = Play(*steps, context={"l": [chr(0x1FAE8), "\u200d"]})
    assert play.effect().arguments == {"x": f"<['{chr(0x1FAE8)}', '\\u200d']>"}
    play.fail()
    assert play.machine.rows[-1].error.startswith(f"the condition \"'{chr(0x1FAE8)}' > 1\" fails")
    play = Play(llm("m", allowed_outputs=[chr(0x1FAE8)])).ok(f"{chr(0x1FAE8)}'")
    assert play.machine.rows[0].error == f"the model's answer \"{chr(0x1FAE8)}'\" is none of '{chr(0x1FAE8)}'"
    assert Play(tool(name)).fail().machine.error == f"step {name!r} failed: boom".replace("\\U0001fae8", chr(0x1FAE8))
