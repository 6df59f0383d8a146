"""Where programs end otherwise here than on llm-nano-vm 0.8.9, one by one: what, why, and a program that shows it.

`docs/program-language.md` has the same rows as a table for readers.
"""

import dataclasses
from collections.abc import Callable

from generated_programs import run_here

from mcp_bridge.kernel.language.program_parser import InvalidProgramError

COMPARED = ("status", "output", "steps", "asked")


def ours_of(job):
    """What comes of a job here."""
    try:
        return run_here(job)[0]
    except InvalidProgramError as exc:
        return {"refused": [fault.code for fault in exc.faults]}


def compared(result):
    return {name: result.get(name) for name in COMPARED}


# --- what makes two results equal that differ in one thing alone ---


def steps_of(job):
    return {step["id"]: step for step in job["program"]["steps"]}


def children_of(row, job):
    """Ids of the steps inside a parallel step."""
    return {child["id"] for child in steps_of(job).get(row[0], {}).get("parallel_steps", ())}


def without_children(rows, job, *, of_status):
    """Rows without those of the steps inside parallel steps that ended so."""
    left = []
    for row in rows:
        if row[1] == of_status:
            while left and left[-1][0] in children_of(row, job):
                left.pop()
        left.append(row)
    return left


def cut(theirs, ours):
    """Both, as far as the shorter of the two went."""
    rows = min(len(theirs["steps"]), len(ours["steps"]))
    calls = min(len(theirs["asked"]), len(ours["asked"]))
    return [
        {"status": "", "output": None, "steps": it["steps"][:rows], "asked": it["asked"][:calls]}
        for it in (theirs, ours)
    ]


def lost_rows(job, theirs, ours):
    """They forget what the steps of a failed parallel step did."""
    rows = without_children(ours["steps"], job, of_status="failed")
    if (theirs["status"], ours["status"]) == ("stalled", "failed") and children_of(rows[-1], job):
        # What they forgot had changed something.
        return theirs, ours | {"status": "stalled", "steps": rows[:-1]}
    return theirs, ours | {"steps": rows}


def stalled_row(job, theirs, ours):
    """They leave the step that stalled out of the trace."""
    if ours["status"] != "stalled":
        return theirs, ours
    *rows, last = ours["steps"]
    while rows and rows[-1][0] in children_of(last, job):
        rows.pop()
    return theirs, ours | {"steps": rows}


def stalled_pending(job, theirs, ours):
    """They call a step that suspends stalled."""
    if (theirs["status"], ours["status"]) != ("stalled", "suspended"):
        return theirs, ours
    return theirs, ours | {"status": "stalled", "steps": ours["steps"][:-1]}


def counted_steps(job, theirs, ours):
    """They look at budgets before steps in line only, and count anew after a condition that leads to a condition."""
    branching = any(step["type"] == "condition" for step in job["program"]["steps"])
    budget = job["program"].keys() & {"max_steps", "max_tokens"}
    if branching and budget and "budget_exceeded" in {theirs["status"], ours["status"]}:
        return cut(theirs, ours)
    return theirs, ours


def untried(job, theirs, ours):
    """They try again although the tokens are used."""
    if ours["status"] != "budget_exceeded" or not ours["steps"] or ours["steps"][-1][1] != "failed":
        return theirs, ours
    return cut(theirs, ours | {"steps": ours["steps"][:-1]})


def counted_tokens(job, theirs, ours):
    """They forget the tokens of attempts that failed."""
    rows = job["program"]["steps"]
    models = {row["id"] for step in rows for row in (step, *step.get("parallel_steps", ())) if row["type"] == "llm"}
    failed = any(row[0] in models and (row[3] or row[1] != "success") for row in ours["steps"])
    if failed and "max_tokens" in job["program"] and ours["status"] == "budget_exceeded":
        return cut(theirs, ours)
    return theirs, ours


def restarted(job, theirs, ours):
    """Where a condition that another led to has no target, or is skipped, they start from the first step again."""
    steps, rows = steps_of(job), ours["steps"]
    for place in range(1, len(rows)):
        before, row = rows[place - 1], rows[place]
        kinds = [steps.get(name, {}).get("type") for name in (before[0], row[0])]
        if kinds == ["condition"] * 2 and before[2] == row[0] and row[2] is None and row[1] != "failed":
            called = [
                other for other in rows[:place] if steps.get(other[0], {}).get("type") not in {"condition", "parallel"}
            ]
            calls = sum(other[3] + 1 for other in called)
            return cut(theirs, {"steps": rows[: place + 1], "asked": ours["asked"][:calls]})
    return theirs, ours


@dataclasses.dataclass
class Difference:
    """One way in which the two are not the same.

    Attributes:
        there, here: What either does.
        why: The reason.
        program, script, context, resumes: Of the job that shows it; a script has names of tools and what they give.
        theirs, ours: What comes of it on each side: some of `COMPARED`, `recursed`, or `refused` with codes.
        level: Makes two results equal that differ in this alone; None where no generated program has it.
    """

    there: str
    here: str
    why: str
    program: dict
    theirs: dict
    ours: dict
    script: dict = dataclasses.field(default_factory=dict)
    context: dict = dataclasses.field(default_factory=dict)
    resumes: list = dataclasses.field(default_factory=list)
    level: Callable | None = None

    @property
    def job(self):
        script = {
            name: [
                value if isinstance(value, dict) and value.keys() & {"error", "value", "hang"} else {"value": value}
                for value in values
            ]
            for name, values in self.script.items()
        }
        job = {"program": self.program, "script": script, "context": self.context, "resumes": self.resumes}
        # What never ends there is given up.
        return job | {"patience": 0.5 if "crash" in self.theirs else 60}


def tool(name, **fields):
    return {"id": name, "type": "tool", "tool": name, **fields}


def steps(*rows, **fields):
    return {"steps": list(rows), **fields}


def branch(name, text, then, **fields):
    return {"id": name, "type": "condition", "condition": text, "then": then, **fields}


def parallel(*children, **fields):
    return {"id": "p", "type": "parallel", "parallel_steps": list(children), **fields}


def asked(*names):
    return {"asked": [[name, {}] for name in names]}


FAILED = {"status": "failed"}
ERROR = {"error": "boom"}
GIVEN = {"k": 1, "output": 5, "l": [7, 8]}


def filled(there, here, why, text, theirs, ours, context=None):
    """A difference in how an argument is filled in, after a step `s`."""
    return Difference(
        there,
        here,
        why,
        steps(tool("s"), tool("t", args={"a": text})),
        {"asked": [["s", {}], ["t", {"a": theirs}]]},
        {"asked": [["s", {}], ["t", {"a": ours}]]},
        script={"s": [GIVEN], "t": [0]},
        context=context or {},
    )


def decided(there, here, why, text, theirs, ours, context=None, output=0):
    """A difference in which way a condition goes, after a step `s`."""
    program = steps(tool("s"), branch("if", text, "yes", otherwise="no"), tool("yes"), tool("no"))
    sides = [asked("s", side) if isinstance(side, str) else side for side in (theirs, ours)]
    return Difference(
        there, here, why, program, *sides, script={"s": [output], "yes": [1], "no": [1]}, context=context or {}
    )


def refused(there, here, why, program, theirs, *codes, script=None):
    """A program that is refused here before anything runs."""
    return Difference(
        there, here, why, program, theirs, {"refused": list(codes)}, script=script or {"a": [1], "b": [2]}
    )


DIFFERENCES = {
    # --- texts and arguments ---
    "dollars": filled(
        "`$$name` is a dollar and the value of `name`",
        "`$$` is a dollar sign: `$$name` is the text `$name`",
        "a price must be writable",
        "$$user",
        "$u",
        "$user",
        {"user": "u"},
    ),
    "nested arguments": filled(
        "References are filled in where an argument is a text",
        "References are filled in at any depth of lists and objects",
        "arguments are seldom flat",
        ["$s.k", {"b": "<$s.k>"}],
        ["$s.k", {"b": "<$s.k>"}],
        [1, {"b": "<1>"}],
    ),
    "ctx": filled(
        "`$ctx.name` stays as it is written",
        "`$ctx.name` reads the context",
        "one meaning in all places",
        "$ctx.user",
        "$ctx.user",
        "u",
        {"user": "u"},
    ),
    "paths into the context": filled(
        "`$name.field` of the context is known to conditions only",
        "It is known to texts and arguments, too",
        "one meaning in all places",
        "<$user.name>",
        "<$user.name>",
        "<u>",
        {"user": {"name": "u"}},
    ),
    "indices": filled(
        "Paths lead into objects",
        "They lead into lists, too: `$step.items.0`",
        "there is no other way to reach them",
        "$s.l.1",
        "$s.l.1",
        8,
    ),
    "a field called output": filled(
        "In texts and arguments, `output` is left out of a path wherever it stands",
        "It is left out as the first name after a step's, and where no field has that name: a field called `output` can be reached",
        "one meaning in both places",
        "$s.output.output",
        GIVEN,
        5,
    ),
    "objects in texts": filled(
        "An object within a text has its names in the order in which they came",
        "It has them in alphabetical order",
        "equal states make equal texts, also after they were written down and read back",
        "<$user>",
        "<{'b': 1, 'a': 2}>",
        "<{'a': 2, 'b': 1}>",
        {"user": {"b": 1, "a": 2}},
    ),
    "floats without a fraction": filled(
        "`2.0` stays a float",
        "`2.0` is `2`, in states and in texts",
        "RFC 8785 has one number 2",
        "<$user>",
        "<2.0>",
        "<2>",
        {"user": 2.0},
    ),
    "skipped this time": Difference(
        "A step that is skipped has the output of an earlier turn of its loop",
        "It has none",
        "a call must not be made with what belongs to another turn",
        steps(tool("a", on_error="skip"), tool("b", args={"a": "$a"}, next_step="a"), max_steps=4),
        {"asked": [["a", {}], ["b", {"a": 1}], ["a", {}], ["b", {"a": 1}]]},
        {"asked": [["a", {}], ["b", {"a": 1}], ["a", {}], ["b", {"a": "$a"}]]},
        script={"a": [1, ERROR], "b": [0]},
    ),
    # --- conditions ---
    "parentheses": decided(
        "Parentheses are dropped",
        "They group",
        "conditions mean what they say",
        "$a == 1 or ($b == 2 and $c == 3)",
        "no",
        "yes",
        {"a": 1},
    ),
    "precedence": decided(
        "`and` and `or` are worked from left to right",
        "`and` binds before `or`, as in Python",
        "Python's precedence is what people expect",
        "$a == 1 or $b == 2 and $c == 3",
        "no",
        "yes",
        {"a": 1},
    ),
    "not after and": decided(
        "`not` after `and` or `or` is an error",
        "It negates",
        "conditions mean what they say",
        "$a == 1 and not $b",
        FAILED,
        "yes",
        {"a": 1},
    ),
    "strange characters": decided(
        "Characters that mean nothing are dropped",
        "They are refused before anything runs",
        "a typing error must not change a decision",
        "foo $a == 1",
        "yes",
        {"refused": ["bad_condition"]},
        {"a": 1},
    ),
    "the raw output": decided(
        "In a condition, `$step` is an object with the field `output`",
        "It is the step's output",
        "their own documentation recommends both forms",
        "'ok' in $s",
        "no",
        "yes",
        output="all ok",
    ),
    "paths from a step": decided(
        "In a condition, a path from a step begins with `output`",
        "It may: `$step.field` is `$step.output.field`",
        "their own documentation recommends both forms",
        "$s.k == 1",
        "no",
        "yes",
        output={"k": 1},
    ),
    "references in literals": decided(
        "`'$name'` in a condition is that text",
        "References within a quoted text are filled in",
        "their own documentation recommends both forms",
        "'yes' in '$s'",
        "no",
        "yes",
        output="oh yes",
    ),
    "contains": decided(
        "`a contains b` looks for `a` in `b`",
        "It looks for `b` in `a`",
        "the word says which contains which",
        "$t contains 'b'",
        "no",
        "yes",
        {"t": "abc"},
    ),
    "lists": decided(
        "A list in a condition is an error",
        "`$a in [1, 2]`",
        "there is no other way to reach them",
        "$a in [1, 2]",
        FAILED,
        "yes",
        {"a": 1},
    ),
    "small literals": decided(
        "`true`, `false` and `null` are dropped",
        "They are JSON's; `True`, `False` and `None` are the same",
        "a typing error must not change a decision",
        "$a == true",
        FAILED,
        "yes",
        {"a": True},
    ),
    "condition tried again": Difference(
        "A condition that fails is tried again with `on_error: retry`",
        "It never is",
        "nothing can have changed",
        steps(branch("if", "$a > 1", "if", on_error="retry")),
        {"status": "failed", "steps": [["if", "failed", None, 2]]},
        {"status": "failed", "steps": [["if", "failed", None, 0]]},
    ),
    # --- what is found before anything runs ---
    "unknown target": refused(
        "`next_step`, `then` or `otherwise` without a step fails when it is reached",
        "It is refused before anything runs",
        "mistakes are found before anything has an effect",
        steps(tool("a", next_step="x"), tool("b")),
        FAILED,
        "unknown_step",
    ),
    "duplicate id": refused(
        "Of two steps with one id, targets find the last",
        "They are refused before anything runs",
        "mistakes are found before anything has an effect",
        steps(tool("a"), tool("a")),
        {"status": "success"},
        "duplicate_id",
    ),
    "unknown field": refused(
        "An unknown field is ignored",
        "It is refused before anything runs",
        "mistakes are found before anything has an effect",
        steps(tool("a", arg={"x": 1})),
        {"status": "success"},
        "unknown_field",
    ),
    "another type's field": refused(
        "A field of another type of step is ignored",
        "It is refused before anything runs, unless it has its default value",
        "mistakes are found before anything has an effect",
        steps(tool("a", prompt="x")),
        {"status": "success"},
        "unknown_field",
    ),
    "flow inside a parallel step": refused(
        "`next_step` and `is_terminal` of a step inside another are ignored",
        "They are refused before anything runs",
        "mistakes are found before anything has an effect",
        steps(parallel(tool("a", is_terminal=True))),
        {"status": "success"},
        "unknown_field",
    ),
    "types": refused(
        '`"3"` is taken for a number',
        "It is refused before anything runs",
        "mistakes are found before anything has an effect",
        steps(tool("a", max_retries="3")),
        {"status": "success"},
        "bad_type",
    ),
    "empty names": refused(
        "An empty name of a step is no target",
        "It is refused before anything runs",
        "mistakes are found before anything has an effect",
        steps(tool("a", next_step="")),
        {"status": "success"},
        "bad_value",
    ),
    "negative budgets": refused(
        "A negative budget is exceeded at once",
        "It is refused before anything runs",
        "mistakes are found before anything has an effect",
        steps(tool("a"), max_steps=-1),
        {"status": "budget_exceeded"},
        "bad_value",
    ),
    "no time at all": refused(
        "A time-out of zero passes at once",
        "It is refused before anything runs",
        "a limit of zero is a mistake",
        steps({"id": "m", "type": "llm", "prompt": "?", "timeout_seconds": 0}),
        FAILED,
        "bad_value",
        script={"llm": [{"hang": True}]},
    ),
    "no concurrency": refused(
        "`max_concurrency: 0` waits for ever",
        "It is refused before anything runs",
        "every run ends",
        steps(parallel(tool("a"), max_concurrency=0)),
        {"crash": "TimeoutError: "},
        "bad_value",
    ),
    "no attempt": refused(
        "A negative `max_retries` is one attempt",
        "It is refused before anything runs",
        "a negative number is a mistake",
        steps(tool("a", on_error="retry", max_retries=-1)),
        FAILED | asked("a"),
        "bad_value",
        script={"a": [ERROR]},
    ),
    "long conditions": refused(
        "A condition may have any length",
        "It has at most 10,000 characters, and 50 levels of parentheses",
        "work on what an agent writes is bounded",
        steps(branch("if", f"$x != '{'x' * 10_000}'", "a"), tool("a")),
        {"status": "success"} | asked("a"),
        "bad_condition",
    ),
    # --- steps ---
    "time-outs of tools": Difference(
        "`timeout_seconds` of a tool's step is ignored",
        "Every step may have one",
        "a tool that hangs must not hold up a program for ever",
        steps(tool("a", timeout_seconds=1)),
        {"status": "success", "output": 1},
        {"status": "failed"},
        script={"a": [{"value": 1, "hang": True}]},
    ),
    # --- parallel steps ---
    "a sub-step's on_error": Difference(
        "`on_error` of a step inside a parallel step is ignored",
        "It is honoured",
        "a step means the same wherever it stands",
        steps(parallel(tool("a", on_error="skip"), tool("b"))),
        FAILED,
        {"status": "success", "output": {"a": None, "b": 1}},
        script={"a": [ERROR], "b": [1]},
    ),
    "a sub-step's retries": Difference(
        "Retries of a step inside a parallel step are ignored",
        "They are made",
        "a step means the same wherever it stands",
        steps(parallel(tool("a", on_error="retry", max_retries=2))),
        FAILED | asked("a"),
        {"status": "success", "output": {"a": 1}} | asked("a", "a"),
        script={"a": [ERROR, 1]},
    ),
    "a sub-step's output_key": Difference(
        "`output_key` of a step inside a parallel step is ignored",
        "It is honoured",
        "a step means the same wherever it stands",
        steps(parallel(tool("a", output_key="x")), tool("b", args={"x": "$x"})),
        {"asked": [["a", {}], ["b", {"x": "$x"}]]},
        {"asked": [["a", {}], ["b", {"x": 1}]]},
        script={"a": [1], "b": [2]},
    ),
    "what had succeeded": Difference(
        "Another attempt of a parallel step runs all of its steps again",
        "It runs those that have failed",
        "no effect happens twice",
        steps(parallel(tool("a"), tool("b"), on_error="retry")),
        {"status": "success"} | asked("a", "b", "a", "b"),
        {"status": "success"} | asked("a", "b", "b"),
        script={"a": [1], "b": [ERROR, 2]},
    ),
    "lost rows": Difference(
        "Of a parallel step that has failed, the trace has one row",
        "It has the rows of its steps, with the outputs of those that succeeded",
        "what has happened is known",
        steps(parallel(tool("a"), tool("b"))),
        {"steps": [["p", "failed", None, 0]]},
        {"steps": [["a", "success", 1, 0], ["b", "failed", None, 0], ["p", "failed", None, 0]]},
        script={"a": [1], "b": [ERROR]},
        level=lost_rows,
    ),
    "pending inside": Difference(
        "`PENDING` from a tool inside a parallel step is its output",
        "It suspends the program",
        "what has happened is known",
        steps(parallel(tool("a"), tool("b"))),
        {"status": "success", "output": {"a": "PENDING", "b": 1}},
        {"status": "suspended", "output": None},
        script={"a": ["PENDING"], "b": [1]},
    ),
    # --- budgets ---
    "attempts beyond the tokens": Difference(
        "Another attempt is made although `max_tokens` are used",
        "It isn't",
        "a budget is a bound",
        steps({"id": "m", "type": "llm", "prompt": "?", "on_error": "retry"}, max_tokens=3),
        {"status": "success", "asked": [["llm", "?"], ["llm", "?"]]},
        {"status": "budget_exceeded", "asked": [["llm", "?"]]},
        script={"llm": [ERROR, "yes"]},
        level=untried,
    ),
    "counted steps": Difference(
        "`max_steps` and `max_tokens` are looked at before steps that are reached in line",
        "They are looked at before each step, a condition's target included",
        "a budget is a bound",
        steps(branch("if", "True", "a"), tool("a"), max_steps=1),
        {"status": "success"} | asked("a"),
        {"status": "budget_exceeded"} | asked(),
        script={"a": [1]},
        level=counted_steps,
    ),
    "counted anew": Difference(
        "Where a condition leads to a condition, steps are counted anew, from the rows of the trace",
        "One count from the start to the end, which the steps inside parallel steps are not part of",
        "a budget is a bound",
        steps(
            parallel(tool("a"), tool("b")), branch("c", "True", "d"), branch("d", "True", "e"), tool("e"), max_steps=5
        ),
        {"status": "budget_exceeded"} | asked("a", "b"),
        {"status": "success"} | asked("a", "b", "e"),
        script={"a": [1], "b": [2], "e": [3]},
    ),
    "loops": Difference(
        "A loop of conditions without a budget ends in an error of Python's; others never end",
        "Without `max_steps`, a program may execute 10,000 steps and as many as it has",
        "every run ends",
        steps(branch("a", "True", "a")),
        {"recursed": True},
        {"status": "budget_exceeded"},
    ),
    "counted tokens": Difference(
        "Tokens of attempts that failed aren't counted",
        "They are",
        "a budget is a bound",
        steps(
            {"id": "m", "type": "llm", "prompt": "?", "allowed_outputs": ["yes"], "on_error": "retry"},
            tool("a"),
            max_tokens=4,
        ),
        {"status": "success"},
        {"status": "budget_exceeded"},
        script={"llm": ["no", "yes"], "a": [1]},
        level=counted_tokens,
    ),
    # --- stalled ---
    "stalled row": Difference(
        "The step at which a program stalls isn't in the trace",
        "It is",
        "it has run",
        steps(tool("a", next_step="a"), max_stalled_steps=1),
        {"status": "stalled", "steps": [["a", "success", 1, 0]]},
        {"status": "stalled", "steps": [["a", "success", 1, 0], ["a", "success", 1, 0]]},
        script={"a": [1]},
        level=stalled_row,
    ),
    "stalled pending": Difference(
        "A step that suspends may be called stalled",
        "It suspends",
        "a suspended program waits for somebody",
        steps(tool("a"), max_stalled_steps=0),
        {"status": "stalled"},
        {"status": "suspended"},
        script={"a": ["PENDING"]},
        level=stalled_pending,
    ),
    "equal outputs": Difference(
        "Outputs are compared as texts",
        'They are compared as values: `1` is not `"1"`',
        "1 is not '1'",
        steps(tool("a", next_step="a"), max_stalled_steps=1, max_steps=4),
        {"status": "stalled"},
        {"status": "budget_exceeded"},
        script={"a": [1, "1"]},
    ),
    "stalling conditions": Difference(
        "Conditions that lead to each other never stall",
        "They do",
        "every run ends",
        steps(branch("a", "True", "b"), branch("b", "True", "a"), max_stalled_steps=1, max_steps=20),
        {"status": "budget_exceeded"},
        {"status": "stalled"},
    ),
    # --- flow ---
    "no target": Difference(
        "A condition that another led to, and that has no target for the case, starts the program again",
        "The program fails, as after any condition without a target",
        "a condition must not begin the program again",
        steps(tool("a"), branch("c", "True", "d"), branch("d", "False", "a"), max_steps=6),
        {"status": "budget_exceeded"},
        {"status": "failed"} | asked("a"),
        script={"a": [1]},
        level=restarted,
    ),
    "skipped target": Difference(
        "A condition that another led to, and that is skipped, starts the program again",
        "It ends the program, as any target does",
        "a condition must not begin the program again",
        steps(tool("a"), branch("c", "True", "d"), branch("d", "$x > 1", "a", on_error="skip"), max_steps=6),
        {"status": "budget_exceeded"},
        {"status": "success"} | asked("a"),
        script={"a": [1]},
        level=restarted,
    ),
    # --- resumes ---
    "next_step after a resume": Difference(
        "After a resume the next step of the list follows",
        "`next_step` follows",
        "a resume changes nothing in the flow",
        steps(tool("a", next_step="c"), tool("b"), tool("c")),
        asked("a", "b", "c"),
        asked("a", "c"),
        script={"a": ["PENDING"], "b": [1], "c": [1]},
        resumes=[1],
    ),
    "is_terminal after a resume": Difference(
        "After a resume `is_terminal` is forgotten",
        "The program ends",
        "a resume changes nothing in the flow",
        steps(tool("a", is_terminal=True), tool("b")),
        asked("a", "b"),
        {"status": "success"} | asked("a"),
        script={"a": ["PENDING"], "b": [1]},
        resumes=[1],
    ),
    "a branch after a resume": Difference(
        "After a resume the branch is forgotten: the next step of the list follows",
        "The branch ends the program, as it would have",
        "a resume changes nothing in the flow",
        steps(branch("if", "True", "a"), tool("a"), tool("b")),
        asked("a", "b"),
        {"status": "success"} | asked("a"),
        script={"a": ["PENDING"], "b": [1]},
        resumes=[1],
    ),
    "counted after a resume": Difference(
        "After a resume the rows of the trace count as steps, those inside parallel steps, too",
        "Steps are counted as before",
        "a budget is a bound",
        steps(parallel(tool("a"), tool("b")), tool("w"), tool("c"), max_steps=4),
        {"status": "budget_exceeded"} | asked("a", "b", "w"),
        {"status": "success"} | asked("a", "b", "w", "c"),
        script={"a": [1], "b": [2], "w": ["PENDING"], "c": [3]},
        resumes=[1],
    ),
    "the payload": Difference(
        "A resume's payload is `$__webhook__`",
        "It is also the output of the step that waited for it, whose row stays `pending`",
        "there is no other way to reach them",
        steps(tool("a", output_key="x"), tool("b", args={"a": "$a", "x": "$x", "w": "$__webhook__"})),
        {"asked": [["a", {}], ["b", {"a": "$a", "x": "$x", "w": 7}]]},
        {"asked": [["a", {}], ["b", {"a": 7, "x": 7, "w": 7}]]},
        script={"a": ["PENDING"], "b": [1]},
        resumes=[7],
    ),
}
