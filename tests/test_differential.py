"""Generated programs here and on llm-nano-vm 0.8.9: equal, but for what this table names."""

import dataclasses
from collections import Counter
from collections.abc import Callable

import pytest
from generated_programs import CONTEXT, NanoVM, PeerJobs, run_here

from mcp_bridge.kernel.program import InvalidProgramError

COMPARED = ("status", "output", "steps", "asked")


@pytest.fixture(scope="module")
def nano_vm():
    peer = NanoVM()
    yield peer
    peer.close()


# --- what is different, and why -------------------------------------------------------------------------------------------


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


def counted_tokens(job, theirs, ours):
    """They forget the tokens of attempts that failed."""
    failed = any(
        steps_of(job).get(row[0], {}).get("type") == "llm" and (row[3] or row[1] != "success") for row in ours["steps"]
    )
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
        what: Theirs; ours.
        why: The case, or the reason.
        program, script, context, resumes: Of the job that shows it; a script has names of tools and what they give.
        theirs, ours: What comes of it on each side: some of `COMPARED`, `recursed`, or `refused` with codes.
        level: Makes two results equal that differ in this alone; None where no generated program has it.
    """

    what: str
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
                value if isinstance(value, dict) and value.keys() & {"error", "value"} else {"value": value}
                for value in values
            ]
            for name, values in self.script.items()
        }
        return {"program": self.program, "script": script, "context": self.context, "resumes": self.resumes}


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


def filled(what, why, text, theirs, ours, context=None):
    """A difference in how an argument is filled in, after a step `s`."""
    return Difference(
        what,
        why,
        steps(tool("s"), tool("t", args={"a": text})),
        {"asked": [["s", {}], ["t", {"a": theirs}]]},
        {"asked": [["s", {}], ["t", {"a": ours}]]},
        script={"s": [GIVEN], "t": [0]},
        context=context or {},
    )


def decided(what, why, text, theirs, ours, context=None, output=0):
    """A difference in which way a condition goes, after a step `s`."""
    program = steps(tool("s"), branch("if", text, "yes", otherwise="no"), tool("yes"), tool("no"))
    sides = [asked("s", side) if isinstance(side, str) else side for side in (theirs, ours)]
    return Difference(what, why, program, *sides, script={"s": [output], "yes": [1], "no": [1]}, context=context or {})


def refused(what, why, program, theirs, *codes, script=None):
    """A program that is refused here before anything runs."""
    return Difference(what, why, program, theirs, {"refused": list(codes)}, script=script or {"a": [1], "b": [2]})


DIFFERENCES = {
    # --- texts and arguments ---
    "dollars": filled(
        "`$$name` is a dollar and a reference; `$$` is a dollar", "case 17", "$$user", "$u", "$user", {"user": "u"}
    ),
    "nested arguments": filled(
        "Only texts at the top are filled in; at any depth",
        "case 16",
        ["$s.k", {"b": "<$s.k>"}],
        ["$s.k", {"b": "<$s.k>"}],
        [1, {"b": "<1>"}],
    ),
    "ctx": filled("There is no `$ctx`; it is the context", "case 18", "$ctx.user", "$ctx.user", "u", {"user": "u"}),
    "paths into the context": filled(
        "In conditions only; in texts, too", "case 18", "<$user.name>", "<$user.name>", "<u>", {"user": {"name": "u"}}
    ),
    "indices": filled("Paths lead into objects; into lists, too", "addition", "$s.l.1", "$s.l.1", 8),
    "a field called output": filled(
        "In texts `output` is skipped wherever it stands; only where no field has that name, as in conditions",
        "one meaning in both places",
        "$s.output.output",
        GIVEN,
        5,
    ),
    "objects in texts": filled(
        "Names stand as they came; in order",
        "equal states make equal texts, also after they were written down and read back",
        "<$user>",
        "<{'b': 1, 'a': 2}>",
        "<{'a': 2, 'b': 1}>",
        {"user": {"b": 1, "a": 2}},
    ),
    "floats without a fraction": filled(
        "They stay floats; they are integers", "RFC 8785 has one number 2", "<$user>", "<2.0>", "<2>", {"user": 2.0}
    ),
    # --- conditions ---
    "parentheses": decided(
        "They are dropped; they group", "case 2", "$a == 1 or ($b == 2 and $c == 3)", "no", "yes", {"a": 1}
    ),
    "precedence": decided(
        "`and` and `or` from left to right; `and` first",
        "case 3",
        "$a == 1 or $b == 2 and $c == 3",
        "no",
        "yes",
        {"a": 1},
    ),
    "not after and": decided("It is an error; it negates", "case 4", "$a == 1 and not $b", FAILED, "yes", {"a": 1}),
    "strange characters": decided(
        "They are dropped; they are refused", "case 5", "foo $a == 1", "yes", {"refused": ["bad_condition"]}, {"a": 1}
    ),
    "the raw output": decided(
        "A bare step is an object with `output`; its output", "case 10", "'ok' in $s", "no", "yes", output="all ok"
    ),
    "paths from a step": decided(
        "They begin with `output`; they may", "case 10", "$s.k == 1", "no", "yes", output={"k": 1}
    ),
    "references in literals": decided(
        "They stay; they are filled in", "case 10", "'yes' in '$s'", "no", "yes", output="oh yes"
    ),
    "contains": decided("Looks into its right side; its left", "case 12", "$t contains 'b'", "no", "yes", {"t": "abc"}),
    "lists": decided("There are none; there are", "addition", "$a in [1, 2]", FAILED, "yes", {"a": 1}),
    "small literals": decided(
        "`true` is dropped; `true`, `false` and `null` are JSON's", "case 5", "$a == true", FAILED, "yes", {"a": True}
    ),
    "condition tried again": Difference(
        "A condition with on_error=retry is tried again; the same values give the same answer",
        "nothing can have changed",
        steps(branch("if", "$a > 1", "if", on_error="retry")),
        {"status": "failed", "steps": [["if", "failed", None, 2]]},
        {"status": "failed", "steps": [["if", "failed", None, 0]]},
    ),
    # --- what is found before anything runs ---
    "unknown target": refused(
        "It fails when it gets there; refused",
        "case 22",
        steps(tool("a", next_step="x"), tool("b")),
        FAILED,
        "unknown_step",
    ),
    "duplicate id": refused(
        "The last one counts; refused", "case 22", steps(tool("a"), tool("a")), {"status": "success"}, "duplicate_id"
    ),
    "unknown field": refused(
        "It is ignored; refused", "case 22", steps(tool("a", arg={"x": 1})), {"status": "success"}, "unknown_field"
    ),
    "another type's field": refused(
        "It is ignored; refused, unless it has its default value",
        "case 22",
        steps(tool("a", prompt="x")),
        {"status": "success"},
        "unknown_field",
    ),
    "flow inside a parallel step": refused(
        "It is ignored; refused",
        "case 22",
        steps(parallel(tool("a", is_terminal=True))),
        {"status": "success"},
        "unknown_field",
    ),
    "types": refused(
        "Text is taken for a number; refused",
        "case 22",
        steps(tool("a", max_retries="3")),
        {"status": "success"},
        "bad_type",
    ),
    "empty names": refused(
        "An empty target is none; refused",
        "case 22",
        steps(tool("a", next_step="")),
        {"status": "success"},
        "bad_value",
    ),
    "negative budgets": refused(
        "They are exceeded at once; refused",
        "case 22",
        steps(tool("a"), max_steps=-1),
        {"status": "budget_exceeded"},
        "bad_value",
    ),
    # --- parallel steps ---
    "a sub-step's on_error": Difference(
        "It is ignored; honoured",
        "case 32",
        steps(parallel(tool("a", on_error="skip"), tool("b"))),
        FAILED,
        {"status": "success", "output": {"a": None, "b": 1}},
        script={"a": [ERROR], "b": [1]},
    ),
    "a sub-step's retries": Difference(
        "They are ignored; honoured",
        "case 32",
        steps(parallel(tool("a", on_error="retry", max_retries=2))),
        FAILED | asked("a"),
        {"status": "success", "output": {"a": 1}} | asked("a", "a"),
        script={"a": [ERROR, 1]},
    ),
    "a sub-step's output_key": Difference(
        "It is ignored; honoured",
        "case 32",
        steps(parallel(tool("a", output_key="x")), tool("b", args={"x": "$x"})),
        {"asked": [["a", {}], ["b", {"x": "$x"}]]},
        {"asked": [["a", {}], ["b", {"x": 1}]]},
        script={"a": [1], "b": [2]},
    ),
    "what had succeeded": Difference(
        "Another attempt repeats what had succeeded; it doesn't",
        "case 33: no effect happens twice",
        steps(parallel(tool("a"), tool("b"), on_error="retry")),
        {"status": "success"} | asked("a", "b", "a", "b"),
        {"status": "success"} | asked("a", "b", "b"),
        script={"a": [1], "b": [ERROR, 2]},
    ),
    "lost rows": Difference(
        "What the steps of a failed parallel step did is forgotten; told",
        "case 33",
        steps(parallel(tool("a"), tool("b"))),
        {"steps": [["p", "failed", None, 0]]},
        {"steps": [["a", "success", 1, 0], ["b", "failed", None, 0], ["p", "failed", None, 0]]},
        script={"a": [1], "b": [ERROR]},
        level=lost_rows,
    ),
    "pending inside": Difference(
        "PENDING is the output; it suspends",
        "case 33",
        steps(parallel(tool("a"), tool("b"))),
        {"status": "success", "output": {"a": "PENDING", "b": 1}},
        {"status": "suspended", "output": None},
        script={"a": ["PENDING"], "b": [1]},
    ),
    # --- budgets ---
    "counted steps": Difference(
        "Budgets are looked at before steps in line; before each step",
        "case 36",
        steps(branch("if", "True", "a"), tool("a"), max_steps=1),
        {"status": "success"} | asked("a"),
        {"status": "budget_exceeded"} | asked(),
        script={"a": [1]},
        level=counted_steps,
    ),
    "counted anew": Difference(
        "From a condition to a condition a run of its own begins, whose steps are the rows so far; one count",
        "case 36",
        steps(
            parallel(tool("a"), tool("b")), branch("c", "True", "d"), branch("d", "True", "e"), tool("e"), max_steps=5
        ),
        {"status": "budget_exceeded"} | asked("a", "b"),
        {"status": "success"} | asked("a", "b", "e"),
        script={"a": [1], "b": [2], "e": [3]},
    ),
    "loops": Difference(
        "A loop without a budget has no end; ends as budget_exceeded",
        "case 38",
        steps(branch("a", "True", "a")),
        {"recursed": True},
        {"status": "budget_exceeded"},
    ),
    "counted tokens": Difference(
        "Tokens of failed attempts are forgotten; counted",
        "case 37",
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
        "The step that stalled is not in the trace; it is",
        "it has run",
        steps(tool("a", next_step="a"), max_stalled_steps=1),
        {"status": "stalled", "steps": [["a", "success", 1, 0]]},
        {"status": "stalled", "steps": [["a", "success", 1, 0], ["a", "success", 1, 0]]},
        script={"a": [1]},
        level=stalled_row,
    ),
    "stalled pending": Difference(
        "A step that suspends may be called stalled; suspends",
        "case 39",
        steps(tool("a"), max_stalled_steps=0),
        {"status": "stalled"},
        {"status": "suspended"},
        script={"a": ["PENDING"]},
        level=stalled_pending,
    ),
    "equal outputs": Difference(
        "Outputs are compared as text; as values",
        "1 is not '1'",
        steps(tool("a", next_step="a"), max_stalled_steps=1, max_steps=4),
        {"status": "stalled"},
        {"status": "budget_exceeded"},
        script={"a": [1, "1"]},
    ),
    "stalling conditions": Difference(
        "Conditions that lead to each other never stall; they do",
        "case 38",
        steps(branch("a", "True", "b"), branch("b", "True", "a"), max_stalled_steps=1, max_steps=20),
        {"status": "budget_exceeded"},
        {"status": "stalled"},
    ),
    # --- flow ---
    "no target": Difference(
        "A condition that another led to, and that has no target, starts the program again; fails",
        "case 21",
        steps(tool("a"), branch("c", "True", "d"), branch("d", "False", "a"), max_steps=6),
        {"status": "budget_exceeded"},
        {"status": "failed"} | asked("a"),
        script={"a": [1]},
        level=restarted,
    ),
    "skipped target": Difference(
        "A condition that another led to, and that is skipped, starts the program again; ends it like any target",
        "case 19",
        steps(tool("a"), branch("c", "True", "d"), branch("d", "$x > 1", "a", on_error="skip"), max_steps=6),
        {"status": "budget_exceeded"},
        {"status": "success"} | asked("a"),
        script={"a": [1]},
        level=restarted,
    ),
    # --- resumes ---
    "next_step after a resume": Difference(
        "The next step in the list; next_step",
        "case 40",
        steps(tool("a", next_step="c"), tool("b"), tool("c")),
        asked("a", "b", "c"),
        asked("a", "c"),
        script={"a": ["PENDING"], "b": [1], "c": [1]},
        resumes=[1],
    ),
    "is_terminal after a resume": Difference(
        "The next step in the list; the end",
        "case 40",
        steps(tool("a", is_terminal=True), tool("b")),
        asked("a", "b"),
        {"status": "success"} | asked("a"),
        script={"a": ["PENDING"], "b": [1]},
        resumes=[1],
    ),
    "a branch after a resume": Difference(
        "The next step in the list; the end of the branch",
        "case 40",
        steps(branch("if", "True", "a"), tool("a"), tool("b")),
        asked("a", "b"),
        {"status": "success"} | asked("a"),
        script={"a": ["PENDING"], "b": [1]},
        resumes=[1],
    ),
    "the payload": Difference(
        "It is `$__webhook__` only; also the output of the step that waited for it",
        "addition",
        steps(tool("a", output_key="x"), tool("b", args={"a": "$a", "x": "$x", "w": "$__webhook__"})),
        {"asked": [["a", {}], ["b", {"a": "$a", "x": "$x", "w": 7}]]},
        {"asked": [["a", {}], ["b", {"a": 7, "x": 7, "w": 7}]]},
        script={"a": ["PENDING"], "b": [1]},
        resumes=[7],
    ),
}


def ours_of(job):
    try:
        return run_here(job)[0]
    except InvalidProgramError as exc:
        return {"refused": [fault.code for fault in exc.faults]}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_each_difference_shows_on_both_sides(nano_vm, name):
    difference = DIFFERENCES[name]
    theirs, ours = nano_vm.ask(difference.job), ours_of(difference.job)
    theirs["recursed"] = "recursion depth" in str(theirs.get("error")) or theirs.get("crash") == "RecursionError"
    assert theirs | difference.theirs == theirs
    assert ours | difference.ours == ours
    assert difference.theirs != difference.ours


@pytest.mark.parametrize("name", [name for name, difference in DIFFERENCES.items() if difference.level])
def test_what_makes_up_for_a_difference_does(nano_vm, name):
    difference = DIFFERENCES[name]
    theirs, ours = difference.level(difference.job, nano_vm.ask(difference.job), ours_of(difference.job))
    assert compared(theirs) == compared(ours)


# --- generated programs ---------------------------------------------------------------------------------------------------

JOBS = 4000
BATCH = 500


def compared(result):
    return {name: result.get(name) for name in COMPARED}


@pytest.mark.parametrize("first", range(0, JOBS, BATCH))
def test_generated_programs_end_alike(nano_vm, first):
    equal = Counter()
    for seed in range(first, first + BATCH):
        job = PeerJobs(seed).job()
        theirs, ours = nano_vm.ask(job), ours_of(job)
        equal[ours["status"]] += compared(theirs) == compared(ours)
        for difference in DIFFERENCES.values():
            if difference.level and compared(theirs) != compared(ours):
                theirs, ours = difference.level(job, theirs, ours)
        assert compared(theirs) == compared(ours), f"seed {seed}: {job}"
    # Differences are the exception, and all ways to end are among what is equal.
    assert equal.total() > 0.85 * BATCH
    assert {"success", "failed", "suspended", "budget_exceeded"} <= equal.keys()


def test_the_generator_gives_the_same_job_for_the_same_seed():
    assert PeerJobs(7).job() == PeerJobs(7).job()
    assert PeerJobs(7).job() != PeerJobs(8).job()
    assert PeerJobs(7).job()["context"] == CONTEXT
