"""What programs of llm-nano-vm must come to, as data: run by δ, on llm-nano-vm, and through a real container.

The numbers are those of the list of cases that this project began with. A case that llm-nano-vm 0.8.9 gets right says
`theirs=SAME`; one that it gets wrong says what comes of it there, and must not come of it here.
"""

from __future__ import annotations

import dataclasses

SAME = object()
"""llm-nano-vm ends the same way: status, output, steps and calls."""

ERROR = {"error": "boom"}
HANG = {"hang": True}
FAILED = {"status": "failed"}
SUCCESS = {"status": "success"}


@dataclasses.dataclass(frozen=True)
class Case:
    """One program and what comes of it.

    Attributes:
        number, title: Of the case; several may share a number.
        program, context, resumes: What is run.
        script: Names of tools, and `llm`, to what they give, over and over; in place of a value `ERROR` or `HANG`.
        status, output, steps, asked: Here. A step is id, status, output, retries. None for `steps` and `asked`: not told.
        error: What the program's error has in it.
        refused: Codes and paths of what is found before anything runs; then there is nothing else.
        theirs: `SAME`, or some of `status`, `output`, `steps`, `asked`, `recursed` there.
    """

    number: int
    title: str
    program: dict
    theirs: object
    status: str = "success"
    output: object = None
    steps: tuple | None = None
    asked: tuple | None = None
    error: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    script: dict = dataclasses.field(default_factory=dict)
    context: dict = dataclasses.field(default_factory=dict)
    resumes: tuple = ()

    @property
    def name(self):
        return f"{self.number} {self.title}"

    @property
    def job(self):
        """As the peer and `generated_programs.run_here` take it."""
        script = {
            name: [value if value in (ERROR, HANG) else {"value": value} for value in values]
            for name, values in self.script.items()
        }
        return {"program": self.program, "script": script, "context": self.context, "resumes": list(self.resumes)}


def tool(name, **fields):
    return {"id": name, "type": "tool", "tool": name, **fields}


def llm(name="m", **fields):
    return {"id": name, "type": "llm", "prompt": "yes or no?", **fields}


def branch(name, condition, then=None, **fields):
    return {"id": name, "type": "condition", "condition": condition, **({"then": then} if then else {}), **fields}


def parallel(*children, **fields):
    return {"id": "p", "type": "parallel", "parallel_steps": list(children), **fields}


def steps(*rows, **fields):
    return {"steps": list(rows), **fields}


def ok(name, output, retries=0):
    return [name, "success", output, retries]


def failed(name, retries=0):
    return [name, "failed", None, retries]


def skipped(name, retries=0):
    return [name, "skipped", None, retries]


def called(*calls):
    """Calls of tools: a name, or a name and its arguments."""
    return tuple([call, {}] if isinstance(call, str) else list(call) for call in calls)


# --- conditions: a step `s`, then `yes` or `no` ---


def decided(number, title, condition, way, theirs=SAME, *, output="ok", **context):
    program = steps(tool("s"), branch("if", condition, "yes", otherwise="no"), tool("yes"), tool("no"))
    return Case(
        number,
        title,
        program,
        theirs if theirs is SAME or isinstance(theirs, dict) else {"asked": called("s", theirs)},
        output=way,
        steps=(ok("s", output), ok("if", way), ok(way, way)),
        script={"s": [output], "yes": ["yes"], "no": ["no"]},
        context=context,
    )


def no_answer(number, title, condition, *error, **context):
    program = steps(branch("if", condition, "yes"), tool("yes"))
    return Case(
        number, title, program, SAME, status="failed", steps=(failed("if"),), asked=(), error=error, context=context
    )


def unreadable(number, title, condition, theirs, **context):
    return Case(
        number,
        title,
        steps(branch("if", condition, "yes", otherwise="no"), tool("yes"), tool("no")),
        theirs,
        refused=(("steps[0].condition", "bad_condition"),),
        script={"yes": ["yes"], "no": ["no"]},
        context=context,
    )


GROUPED = "$a == 1 or ($b == 2 and $c == 3)"
UNGROUPED = "$a == 1 or $b == 2 and $c == 3"

CONDITIONS = [
    decided(1, "an integer equals its number", "$a == 1", "yes", a=1),
    decided(1, "an integer does not equal its text", "$a == '1'", "no", a=1),
    decided(2, "parentheses group", GROUPED, "yes", "no", a=1, b=0, c=0),
    decided(2, "parentheses group what is false", "not ($a == 1 or $b == 2)", "no", "yes", a=0, b=2),
    decided(2, "parentheses come first", "($a == 1 or $b == 2) and $c == 3", "no", a=1, b=2, c=0),
    decided(3, "and binds before or", UNGROUPED, "yes", "no", a=1, b=0, c=0),
    decided(4, "not may follow and", "$x == 1 and not $y", "yes", FAILED, x=1, y=False),
    decided(4, "not may follow and, and be false", "$x == 1 and not $y", "no", FAILED, x=1, y=True),
    unreadable(5, "a strange word is an error", "foo $a == 1", {"asked": called("yes")}, a=1),
    unreadable(5, "a strange sign is an error", "$a == 1;", {"asked": called("yes")}, a=1),
    unreadable(5, "two values side by side are an error", "$a == 1 $b", FAILED, a=1),
    decided(6, "a missing variable equals None", "$missing == None", "yes"),
    decided(6, "a missing field equals None", "$s.output.k.l == None", "yes", output={"k": 1}),
    no_answer(7, "a comparison without an answer fails the step", "$missing > 5", "NoneType > int"),
    no_answer(7, "so does one of a text with a number", "$a < 5", "str < int", a="x"),
    unreadable(8, "a method call is refused", "$a.lower() == 'x'", FAILED, a="X"),
    unreadable(8, "a method call with arguments is refused", "$a.startswith('x')", FAILED, a="x"),
    unreadable(9, "Python is not evaluated", "__import__('os').getpid() > 0", FAILED),
    unreadable(9, "an expression of Python is not evaluated", "[x for x in (1,)]", FAILED),
    decided(9, "what a step gives is not evaluated", "$s.output == 2", "no", output="1 + 1"),
    decided(10, "a step is its raw output", "'ok' in $s", "yes", "no", output="all ok"),
    decided(10, "a reference in a literal is filled in", "'yes' in '$decision'", "yes", "no", decision="yes, do it"),
    decided(11, "paths lead into objects", "$a.b.c == 1", "yes", a={"b": {"c": 1}}),
    decided(11, "no path leads into Python", "$a.__class__ == None", "yes", a={"b": 1}),
    decided(12, "contains looks into its left side", "$t contains 'b'", "yes", "no", t="abc"),
    decided(12, "contains looks into lists", "$t contains 'b'", "yes", FAILED, t=["a", "b"]),
]

# --- interpolation: the argument of a tool `t` ---


def filled(number, title, argument, value, theirs=SAME, **context):
    program = steps(tool("s"), tool("t", args={"a": argument}))
    return Case(
        number,
        title,
        program,
        theirs if theirs is SAME else {"asked": called("s", ("t", {"a": theirs}))},
        output=0,
        steps=(ok("s", {"k": [7, {"m": "x"}]}), ok("t", 0)),
        asked=called("s", ("t", {"a": value})),
        script={"s": [{"k": [7, {"m": "x"}]}], "t": [0]},
        context=context,
    )


DEEP = {"a": {"b": 7}}

INTERPOLATION = [
    filled(13, "a whole reference keeps an object", "$d", DEEP, d=DEEP),
    filled(13, "a whole reference keeps a number", "$d", 7, d=7),
    filled(13, "a whole reference keeps nothing", "$d", None, d=None),
    filled(14, "a path within a text", "v=$s.output.k;", "v=[7, {'m': 'x'}];"),
    filled(14, "a path into the context within a text", "v=$d.a.b;", "v=7;", "v=$d.a.b;", d=DEEP),
    filled(15, "a missing reference stays", "$missing", "$missing"),
    filled(15, "a missing path stays within a text", "v=$s.x.y;", "v=$s.x.y;"),
    filled(16, "lists are filled", ["$d", ["<$d>"]], [7, ["<7>"]], ["$d", ["<$d>"]], d=7),
    filled(16, "objects are filled", {"k": {"l": "$d"}}, {"k": {"l": 7}}, {"k": {"l": "$d"}}, d=7),
    filled(17, "two dollars are one", "$$5", "$5", "$$5"),
    filled(17, "two dollars before a name are no reference", "$$d", "$d", "$7", d=7),
    filled(17, "a literal dollar before a reference", "$$$d", "$7", "$$7", d=7),
    filled(18, "ctx reads the context", "$ctx.d", 7, "$ctx.d", d=7),
    filled(18, "ctx leads on", "<$ctx.d.a.b>", "<7>", "<$ctx.d.a.b>", d=DEEP),
    decided(18, "ctx in conditions", "$ctx.d == 7", "yes", "no", d=7),
]

# --- flow ---

ABC = {"a": [1], "b": [2], "c": [3]}


def refused(number, title, program, path, code, theirs):
    return Case(number, title, program, theirs, refused=((path, code),), script=ABC)


FLOW = [
    Case(
        19,
        "a branch's target ends the program",
        steps(branch("if", "True", "a"), tool("a"), tool("b")),
        SAME,
        output=1,
        steps=(ok("if", "a"), ok("a", 1)),
        asked=called("a"),
        script=ABC,
    ),
    Case(
        20,
        "next_step rejoins over many hops",
        steps(
            branch("if", "True", "d"),
            tool("a", next_step="c"),
            tool("b"),
            tool("c", is_terminal=True),
            tool("d", next_step="e"),
            tool("e", next_step="a"),
        ),
        SAME,
        output=3,
        steps=(ok("if", "d"), ok("d", 4), ok("e", 5), ok("a", 1), ok("c", 3)),
        asked=called("d", "e", "a", "c"),
        script=ABC | {"d": [4], "e": [5]},
    ),
    Case(
        21,
        "a condition without a target for the case fails",
        steps(branch("if", "False", "a"), tool("a")),
        {"status": "failed", "asked": ()},
        status="failed",
        steps=(ok("if", None),),
        asked=(),
        error=("'if'", "no target"),
        script=ABC,
    ),
    refused(
        22,
        "an unknown next_step",
        steps(tool("a"), tool("b", next_step="x")),
        "steps[1].next_step",
        "unknown_step",
        FAILED | {"asked": called("a", "b")},
    ),
    refused(
        22,
        "an unknown then",
        steps(tool("a"), branch("if", "True", "x")),
        "steps[1].then",
        "unknown_step",
        FAILED | {"asked": called("a")},
    ),
    refused(
        22,
        "an unknown otherwise",
        steps(tool("a"), branch("if", "False", "a", otherwise="x")),
        "steps[1].otherwise",
        "unknown_step",
        FAILED | {"asked": called("a")},
    ),
    refused(22, "a duplicate id", steps(tool("a"), tool("a")), "steps[1].id", "duplicate_id", SUCCESS),
    refused(22, "an unknown field", steps(tool("a", input={"x": 1})), "steps[0].input", "unknown_field", SUCCESS),
    refused(22, "an unknown field of a program", steps(tool("a"), stpes=[]), "stpes", "unknown_field", SUCCESS),
    Case(
        23,
        "skip goes on",
        steps(tool("a", on_error="skip"), tool("b", args={"x": "$a"})),
        SAME,
        output=2,
        steps=(skipped("a"), ok("b", 2)),
        asked=called("a", ("b", {"x": "$a"})),
        script={"a": [ERROR], "b": [2]},
    ),
    Case(
        24,
        "fail stops the rest",
        steps(tool("a"), tool("b"), tool("c")),
        SAME,
        status="failed",
        steps=(ok("a", 1), failed("b")),
        asked=called("a", "b"),
        error=("'b'", "boom"),
        script=ABC | {"b": [ERROR]},
    ),
]

# --- retry and what models answer ---

GATED = {"allowed_outputs": ["yes", "no"]}
ASKED = ["llm", "yes or no?"]

RETRY = [
    Case(
        25,
        "max_retries=3 is three calls",
        steps(tool("a", on_error="retry", max_retries=3)),
        SAME,
        status="failed",
        steps=(failed("a", 2),),
        asked=called("a", "a", "a"),
        error=("boom",),
        script={"a": [ERROR]},
    ),
    Case(
        25,
        "the second call may succeed",
        steps(tool("a", on_error="retry", max_retries=2)),
        SAME,
        output=1,
        steps=(ok("a", 1, 1),),
        asked=called("a", "a"),
        script={"a": [ERROR, 1]},
    ),
    Case(
        26,
        "an answer is stripped",
        steps(llm(**GATED)),
        SAME,
        output="yes",
        steps=(ok("m", "yes"),),
        asked=(ASKED,),
        script={"llm": [" yes\n"]},
    ),
    Case(
        26,
        "an answer that is not allowed fails",
        steps(llm(**GATED)),
        SAME,
        status="failed",
        steps=(failed("m"),),
        asked=(ASKED,),
        error=("'YES'", "yes"),
        script={"llm": ["YES"]},
    ),
    Case(
        26,
        "an answer that is not allowed is asked for again",
        steps(llm(on_error="retry", max_retries=2, **GATED)),
        SAME,
        output="no",
        steps=(ok("m", "no", 1),),
        asked=(ASKED, ASKED),
        script={"llm": ["YES", "no"]},
    ),
    Case(
        27,
        "skip gives the first allowed",
        steps(llm(on_error="skip", **GATED)),
        SAME,
        output="yes",
        steps=(ok("m", "yes"),),
        asked=(ASKED,),
        script={"llm": ["perhaps"]},
    ),
    Case(
        28,
        "a time-out fails",
        steps(llm(timeout_seconds=0.05)),
        SAME,
        status="failed",
        steps=(failed("m"),),
        asked=(ASKED,),
        error=("0.05 s",),
        script={"llm": [HANG]},
    ),
    Case(
        28,
        "a time-out falls back to the first allowed",
        steps(llm(timeout_seconds=0.05, on_timeout="fallback", **GATED)),
        SAME,
        output="yes",
        steps=(ok("m", "yes"),),
        asked=(ASKED,),
        script={"llm": [HANG]},
    ),
    Case(
        28,
        "a time-out falls back to an empty text",
        steps(llm(timeout_seconds=0.05, on_timeout="fallback")),
        SAME,
        output="",
        steps=(ok("m", ""),),
        asked=(ASKED,),
        script={"llm": [HANG]},
    ),
]

# --- parallel ---

PARALLEL = [
    Case(
        29,
        "outputs are an object, and known by name",
        steps(parallel(tool("a"), tool("b")), tool("c", args={"x": "$a", "y": "$p.output.b", "z": "$p"})),
        SAME,
        output=3,
        steps=(ok("a", 1), ok("b", 2), ok("p", {"a": 1, "b": 2}), ok("c", 3)),
        asked=called("a", "b", ("c", {"x": 1, "y": 2, "z": {"a": 1, "b": 2}})),
        script=ABC,
    ),
    Case(
        30,
        "a failure names the failed",
        steps(parallel(tool("a"), tool("b"), tool("c")), tool("d")),
        FAILED | {"asked": called("a", "b", "c")},
        status="failed",
        steps=(failed("a"), ok("b", 2), failed("c"), failed("p")),
        asked=called("a", "b", "c"),
        error=("'p'", "a, c"),
        script=ABC | {"a": [ERROR], "c": [ERROR], "d": [4]},
    ),
    Case(
        31,
        "skip gives None",
        steps(parallel(tool("a"), tool("b"), on_error="skip")),
        SAME,
        output={"a": None, "b": 2},
        steps=(skipped("a"), ok("b", 2), ok("p", {"a": None, "b": 2})),
        asked=called("a", "b"),
        script=ABC | {"a": [ERROR]},
    ),
    Case(
        32,
        "a sub-step's own on_error",
        steps(parallel(tool("a", on_error="skip"), tool("b"))),
        FAILED,
        output={"a": None, "b": 2},
        steps=(skipped("a"), ok("b", 2), ok("p", {"a": None, "b": 2})),
        script=ABC | {"a": [ERROR]},
    ),
    Case(
        32,
        "a sub-step's own retries",
        steps(parallel(tool("a", on_error="retry", max_retries=2))),
        FAILED | {"asked": called("a")},
        output={"a": 1},
        steps=(ok("a", 1, 1), ok("p", {"a": 1})),
        asked=called("a", "a"),
        script={"a": [ERROR, 1]},
    ),
    Case(
        32,
        "a sub-step's own output_key",
        steps(parallel(tool("a", output_key="x")), tool("b", args={"x": "$x"})),
        {"asked": called("a", ("b", {"x": "$x"}))},
        output=2,
        steps=(ok("a", 1), ok("p", {"a": 1}), ok("b", 2)),
        asked=called("a", ("b", {"x": 1})),
        script=ABC,
    ),
    Case(
        33,
        "sub-results survive a failure",
        steps(parallel(tool("a"), tool("b"))),
        {"status": "failed", "steps": (failed("p"),)},
        status="failed",
        steps=(ok("a", 1), failed("b"), failed("p")),
        error=("b",),
        script=ABC | {"b": [ERROR]},
    ),
    Case(
        33,
        "sub-results are not made again",
        steps(parallel(tool("a"), tool("b"), on_error="retry", max_retries=2)),
        {"asked": called("a", "b", "a", "b")},
        output={"a": 1, "b": 2},
        steps=(ok("a", 1), ok("b", 2), ok("p", {"a": 1, "b": 2}, 1)),
        asked=called("a", "b", "b"),
        script=ABC | {"b": [ERROR, 2]},
    ),
    Case(
        33,
        "PENDING in a sub-step suspends",
        steps(parallel(tool("a"), tool("b")), tool("c")),
        SUCCESS | {"asked": called("a", "b", "c")},
        status="suspended",
        steps=(),
        asked=called("a", "b"),
        script=ABC | {"a": ["PENDING"]},
    ),
    Case(
        33,
        "a sub-step that was suspended is resumed",
        steps(parallel(tool("a"), tool("b")), tool("c", args={"x": "$a"})),
        {"asked": called("a", "b", ("c", {"x": "PENDING"}))},
        output=3,
        steps=(ok("a", 7), ok("b", 2), ok("p", {"a": 7, "b": 2}), ok("c", 3)),
        asked=called("a", "b", ("c", {"x": 7})),
        script=ABC | {"a": ["PENDING"]},
        resumes=(7,),
    ),
    Case(
        34,
        "max_concurrency changes nothing in what comes of it",
        steps(parallel(tool("a"), tool("b"), tool("c"), max_concurrency=1)),
        SAME,
        output={"a": 1, "b": 2, "c": 3},
        steps=(ok("a", 1), ok("b", 2), ok("c", 3), ok("p", {"a": 1, "b": 2, "c": 3})),
        asked=called("a", "b", "c"),
        script=ABC,
    ),
]

# --- budgets ---

BUDGETS = [
    Case(
        35,
        "max_steps",
        steps(tool("a"), tool("b"), tool("c"), max_steps=2),
        SAME,
        status="budget_exceeded",
        steps=(ok("a", 1), ok("b", 2)),
        asked=called("a", "b"),
        error=("max_steps=2",),
        script=ABC,
    ),
    Case(
        36,
        "a branch's target counts",
        steps(branch("if", "True", "a"), tool("a"), max_steps=1),
        SUCCESS | {"asked": called("a")},
        status="budget_exceeded",
        steps=(ok("if", "a"),),
        asked=(),
        error=("max_steps=1",),
        script=ABC,
    ),
    Case(
        37,
        "max_tokens",
        steps(llm("m"), tool("a"), max_tokens=3),
        SAME,
        status="budget_exceeded",
        steps=(ok("m", "yes"),),
        asked=(ASKED,),
        error=("max_tokens=3", "3 tokens"),
        script=ABC | {"llm": ["yes"]},
    ),
    Case(
        38,
        "a loop that changes nothing stalls",
        steps(tool("a", next_step="a"), max_stalled_steps=2),
        {"status": "stalled", "asked": called("a", "a", "a")},
        status="stalled",
        steps=(ok("a", 1), ok("a", 1), ok("a", 1)),
        asked=called("a", "a", "a"),
        error=("max_stalled_steps=2",),
        script=ABC,
    ),
    Case(
        38,
        "a loop without a budget ends",
        steps(branch("if", "True", "if")),
        {"recursed": True},
        status="budget_exceeded",
        steps=(ok("if", "if"),) * 10_001,
        error=("max_steps=10001",),
    ),
]

# --- suspending and resuming ---

PAUSE = ["a", "pending", "PENDING", 0]


def resumed(number, title, rows, theirs, *, here, asked, output, script=None):
    return Case(
        number,
        title,
        steps(*rows),
        theirs,
        output=output,
        steps=here,
        asked=asked,
        script=script or {"a": ["PENDING"], "b": [2], "c": [3]},
        resumes=({"paid": 7},),
    )


SUSPENSION = [
    Case(
        39,
        "PENDING suspends",
        steps(tool("a"), tool("b")),
        SAME,
        status="suspended",
        steps=(PAUSE,),
        asked=called("a"),
        script={"a": ["PENDING"], "b": [2]},
    ),
    resumed(
        39,
        "a resume exposes the payload and its source",
        [tool("a"), tool("b", args={"w": "$__webhook__", "s": "$__webhook_source__"})],
        SAME,
        here=(PAUSE, ok("b", 2)),
        asked=called("a", ("b", {"w": {"paid": 7}, "s": "WEBHOOK"})),
        output=2,
    ),
    resumed(
        39,
        "conditions see the payload",
        [tool("a"), branch("if", "$__webhook__.paid == 7", "b", otherwise="c"), tool("b"), tool("c")],
        SAME,
        here=(PAUSE, ok("if", "b"), ok("b", 2)),
        asked=called("a", "b"),
        output=2,
    ),
    resumed(
        40,
        "a resume honours next_step",
        [tool("a", next_step="c"), tool("b"), tool("c")],
        {"asked": called("a", "b", "c")},
        here=(PAUSE, ok("c", 3)),
        asked=called("a", "c"),
        output=3,
    ),
    resumed(
        40,
        "a resume honours is_terminal",
        [tool("a", is_terminal=True), tool("b")],
        {"asked": called("a", "b")},
        here=(PAUSE,),
        asked=called("a"),
        output=None,
    ),
    resumed(
        40,
        "a resume honours the branch it was in",
        [branch("if", "True", "a"), tool("a"), tool("b")],
        {"asked": called("a", "b")},
        here=(ok("if", "a"), PAUSE),
        asked=called("a"),
        output="a",
    ),
]

CASES = {case.name: case for case in (*CONDITIONS, *INTERPOLATION, *FLOW, *RETRY, *PARALLEL, *BUDGETS, *SUSPENSION)}

NEEDED = {*range(1, 45), 47, 52}
"""The numbers that programs are about: each has a case here, or a test of its own."""
