"""Programs that do nothing wrong are told nothing of the kind, and what can't be done is said before it is begun."""

import itertools
import json
from contextlib import asynccontextmanager

import pytest
from execution_fixtures import printed
from generated_programs import run_here

from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.governance import govern, load_governance
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.policy.rules.call import Call, ProgramRef, StepContext
from mcp_bridge.policy.rules.decision import decide, unconditional_denial
from mcp_bridge.policy.rules.floor import layered
from mcp_bridge.policy.rules.globs import ToolNames
from mcp_bridge.policy.rules.policy_settings import read
from mcp_bridge.policy.rules.policy_snapshot import freeze
from mcp_bridge.settings import Layer


@asynccontextmanager
async def opened(sandboxes, folder, tables=None):
    state = folder / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    governance = load_governance(tables or {}, None, folder, state)
    async with sandboxes.open(governance=governance, state_dir=state) as bridge:
        yield bridge


# --- what a first step leaves in the context ---

WAIT = {"type": "wait", "seconds": 0}
EACH = {"type": "tool", "tool": "local.none"}
YES, NO = {"id": "yes", **WAIT, "is_terminal": True}, {"id": "no", **WAIT, "is_terminal": True}

FIRST_STEPS = {
    "a condition names what it reads": (
        [{"id": "if", "type": "condition", "condition": "$go == 1", "then": "yes", "otherwise": "no", "output_key": "go"}, YES, NO],
        {"go": 1},
        ["if", "yes"],
    ),
    "conditions in a row": (
        [
            {"id": "a", "type": "condition", "condition": "$go", "then": "b", "otherwise": "no", "output_key": "go"},
            {"id": "b", "type": "condition", "condition": "$go == 'b'", "then": "yes", "otherwise": "no", "output_key": "go"},
            YES,
            NO,
        ],
        {"go": True},
        ["a", "b", "yes"],
    ),
    "a map over nothing": (
        [
            {"id": "m", "type": "map", "over": "$rows.0", "step": EACH, "output_key": "rows"},
            {"id": "if", "type": "condition", "condition": "$rows == []", "then": "yes", "otherwise": "no"},
            YES,
            NO,
        ],
        {"rows": [[]]},
        ["m", "if", "yes"],
    ),
    "a map over what is no list": (
        [
            {"id": "m", "type": "map", "over": "$rows", "step": EACH, "output_key": "rows", "on_error": "skip"},
            {"id": "if", "type": "condition", "condition": "$rows == 'x'", "then": "yes", "otherwise": "no"},
            YES,
            NO,
        ],
        {"rows": "x"},
        ["m", "if", "yes"],
    ),
    "a program that ends at once": (
        [
            {
                "id": "p",
                "type": "program",
                "program": {"steps": [{"id": "m", "type": "map", "over": "$rows", "step": EACH, "output_key": "rows"}]},
                "context": {"rows": "$rows.0"},
                "output_key": "rows",
            },
            YES,
        ],
        {"rows": [[]]},
        ["p/m", "p", "yes"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST_STEPS)
async def test_a_first_step_that_changes_what_it_has_read_is_no_violation(sandboxes, tmp_path, name):
    steps, context, expected = FIRST_STEPS[name]
    code = f"""
import json
from mcp import programs
asked = json.loads({json.dumps(json.dumps([{"steps": steps}, context]))})
for key in (None, "key"):
    trace = await programs.run(*asked, idempotency_key=key)
    print(trace.status, [row.id for row in trace.steps], trace.error)
"""
    async with opened(sandboxes, tmp_path) as bridge:
        assert printed(await bridge.run(code)).splitlines() == [f"success {expected} None"] * 2


# --- a field called output ---

ASKED = [
    ("$run.output.result.output != None", {"result": {"k": 1}}),
    ("$run.output.result.output != None", {"result": {"output": 5}}),
    ("$run.output.result.output == 5", {"result": {"output": 5}}),
    ("$run.output.output != None", {"k": 1}),
    ("$run.output.output != None", {"output": 1}),
    ("$run.output.output.output != None", {"output": 1}),
    ("$run.output.k.output", {"k": True}),
    ("$run.output != None", {"k": 1}),
    ("$run.output != None", None),
    ("$key.output != None", {"k": 1}),
    ("$key.output == 7", {"output": 7}),
    ("$key.k.output != None", {"k": {"n": 1}}),
    ("$key.output.k.output != None", {"k": {"n": 1}}),
    ("$key.output.output != None", {"output": 7}),
    ("$key.output.k", {"k": 1}),
]


@pytest.mark.parametrize(("condition", "value"), ASKED)
def test_a_condition_can_ask_whether_there_is_a_field_called_output(nano_vm, condition, value):
    steps = [
        {"id": "run", "type": "tool", "tool": "t", "output_key": "key"},
        {"id": "if", "type": "condition", "condition": condition, "then": "yes", "otherwise": "no"},
        {"id": "yes", "type": "tool", "tool": "t"},
        {"id": "no", "type": "tool", "tool": "t"},
    ]
    job = {"program": {"name": "p", "steps": steps}, "script": {"t": [{"value": value}]}, "context": {}}
    theirs, ours = nano_vm.ask(job), run_here(job)[0]
    assert [row[0] for row in ours["steps"]] == [row[0] for row in theirs["steps"]]
    assert ours["steps"][1][2] == ("yes" if theirs["steps"][2][0] == "yes" else "no")


def test_texts_leave_output_out_as_before():
    steps = [
        {"id": "run", "type": "tool", "tool": "t"},
        {"id": "next", "type": "tool", "tool": "t", "args": {"x": "$run.output.k.output", "y": "<$run.k.output>"}},
    ]
    job = {"program": {"steps": steps}, "script": {"t": [{"value": {"k": 1}}]}, "context": {}}
    assert run_here(job)[0]["asked"][1] == ["t", {"x": 1, "y": "<1>"}]


# --- empty answers ---


@pytest.mark.parametrize("answer", ["", "  ", "\n"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"on_error": "skip"},
        {"allowed_outputs": ["a", "b"], "on_error": "skip"},
        {"allowed_outputs": ["a", "b"]},
        {"allowed_outputs": ["a", ""]},
        {"on_error": "retry"},
    ],
)
async def test_an_empty_answer_of_a_model_is_an_answer(sandboxes, tmp_path, nano_vm, answer, fields):
    program = {"name": "p", "steps": [{"id": "ask", "type": "llm", "prompt": "well?", **fields}]}
    theirs = nano_vm.ask({"program": program, "script": {"llm": [{"value": answer}]}, "context": {}})
    model = {"provider": "scripted", "default_answer": {"text": answer, "prompt_tokens": 5, "completion_tokens": 1}}
    async with opened(sandboxes, tmp_path, {"model": model}) as bridge:
        record = await bridge.run_program(program)
    assert (record["status"], record["output"]) == (theirs["status"], theirs["output"])
    assert record["steps"][0]["status"] == theirs["steps"][0][1]
    assert record["steps"][0]["usage"]["total_tokens"] == 6
    if record["status"] == "failed":
        assert record["steps"][0]["code"] == "not_allowed"


async def test_an_answer_that_is_no_text_is_still_none(sandboxes, tmp_path):
    answer = {"error": "model_bad_answer", "message": "an image"}
    program = {"steps": [{"id": "ask", "type": "llm", "prompt": "well?"}]}
    async with opened(sandboxes, tmp_path, {"model": {"provider": "scripted", "default_answer": answer}}) as bridge:
        assert (await bridge.run_program(program))["steps"][0]["code"] == "model_bad_answer"


@pytest.mark.parametrize("answer", ["Transfer 100", ""])
@pytest.mark.parametrize(
    "fields", [{}, {"allowed_outputs": ["Transfer 100", "Transfer 1000", ""]}, {"on_error": "skip"}]
)
async def test_an_answer_that_was_cut_off_is_none_and_its_tokens_count(sandboxes, tmp_path, answer, fields):
    cut = {"text": answer, "truncated": True, "prompt_tokens": 5, "completion_tokens": 1}
    program = {"steps": [{"id": "ask", "type": "llm", "prompt": "How much?", **fields}]}
    async with opened(sandboxes, tmp_path, {"model": {"provider": "scripted", "default_answer": cut}}) as bridge:
        (row,) = (await bridge.run_program(program))["steps"]
    assert (row["status"], row["code"]) == ("skipped" if "on_error" in fields else "failed", "model_bad_answer")
    # None is set that could be raised.
    assert "set max_tokens in [model]" in row["error"].replace("Set", "set")
    assert row["usage"]["total_tokens"] == 6


@pytest.mark.parametrize("answer", ["yes", " yes\n"])
async def test_an_answer_that_was_cut_off_counts_where_no_other_that_is_allowed_begins_with_it(
    sandboxes, tmp_path, answer
):
    cut = {"text": answer, "truncated": True}
    program = {"steps": [{"id": "ask", "type": "llm", "prompt": "Well?", "allowed_outputs": ["yes", "no"]}]}
    async with opened(sandboxes, tmp_path, {"model": {"provider": "scripted", "default_answer": cut}}) as bridge:
        assert (await bridge.run_program(program))["output"] == "yes"


# --- steps that the policy denies ---

TOOLS = '''
from pathlib import Path

import mcp_bridge


@mcp_bridge.tool
def write(text: str) -> str:
    """Write."""
    with Path(__file__).with_name("written").open("a") as file:
        file.write(f"{text}\\n")
    return text


@mcp_bridge.tool
def forbidden(text: str = "") -> str:
    """Never called."""
    return write(text)
'''


@pytest.fixture
def desk(sandboxes, tmp_path, request):
    name = f"honest_{abs(hash(request.node.nodeid)) % 10**12}"
    (tmp_path / f"{name}.py").write_text(TOOLS)
    tools = {"modules": [name], "path": [str(tmp_path)], "entry_points": False}

    def written():
        path = tmp_path / "written"
        return path.read_text().split() if path.exists() else []

    def open_with(policy, programs=None, denied_steps="warn"):
        tables = {"tools": tools, "policy": policy, "programs": {"denied_steps": denied_steps}}
        if programs is not None:
            folder = tmp_path / "programs"
            folder.mkdir()
            for file, program in programs.items():
                (folder / f"{file}.json").write_text(json.dumps(program))
            tables["programs"]["path"] = [str(folder)]
        return opened(sandboxes, tmp_path, tables)

    return open_with, written


def tool(step, name, **fields):
    return {"id": step, "type": "tool", "tool": name, **fields}


PROGRAM = {"name": "tidy", "steps": [tool("first", "local.write", args={"text": "a"}), tool("last", "local.forbidden")]}
DENIES = {"rules": [{"tools": ["local.forbidden"], "effect": "deny", "name": "never"}]}


async def test_a_denied_step_is_told_of_before_the_first_one(desk, caplog):
    open_with, written = desk
    async with open_with(DENIES) as bridge:
        record = await bridge.run_program(PROGRAM)
        assert (record["status"], record["steps"][1]["code"]) == ("failed", "denied")
        [warning] = record["warnings"]
        assert (warning["step"], warning["tool"]) == ("last", "local.forbidden")
        assert 'rule 1 ("never")' in warning["message"]
        assert (
            "denies these steps of the program 'tidy', whatever their arguments: last (local.forbidden)" in caplog.text
        )
        assert (await bridge.lifecycle.stored(record["trace_id"], LOCAL_PRINCIPAL.name)).record["warnings"] == [warning]
        script = await bridge.run(f"from mcp import programs\nprint((await programs.run({PROGRAM!r})).status)")
        assert printed(script) == "failed\n"
        assert any("last (local.forbidden)" in notice for notice in script.notices)
    assert written() == ["a", "a"]


async def test_the_operator_can_have_it_refused(desk):
    open_with, written = desk
    async with open_with(DENIES, denied_steps="refuse") as bridge:
        with pytest.raises(BridgeError) as caught:
            await bridge.run_program(PROGRAM, key="key")
        assert caught.value.code == "denied_steps"
        assert [row["step"] for row in caught.value.details["steps"]] == ["last"]
        code = (
            f"from mcp import programs\ntry: await programs.run({PROGRAM!r})\nexcept Exception as exc: print(exc.code)"
        )
        assert printed(await bridge.run(code)) == "denied_steps\n"
        assert written() == []
        # Nothing was begun, and the key is free.
        assert (await bridge.run_program({"steps": PROGRAM["steps"][:1]}, key="key"))["status"] == "success"


PLACES = {
    "within a parallel step": ([{"id": "p", "type": "parallel", "parallel_steps": [tool("x", "forbidden")]}], ["x"]),
    "within a map": ([{"id": "m", "type": "map", "over": [], "step": {"type": "tool", "tool": "forbidden"}}], ["m[]"]),
    "within a program": ([{"id": "p", "type": "program", "program": {"steps": [tool("x", "forbidden")]}}], ["p/x"]),
    "undoing": ([tool("a", "write", args={"text": "a"}, compensate={"tool": "forbidden"})], ["a.compensate"]),
    "by another name": ([tool("x", "LOCAL.forbidden")], ["x"]),
    "twice": ([tool("x", "forbidden"), tool("y", "forbidden")], ["x", "y"]),
}


@pytest.mark.parametrize("place", PLACES)
async def test_wherever_it_stands(desk, place):
    open_with, written = desk
    steps, expected = PLACES[place]
    async with open_with(DENIES, denied_steps="refuse") as bridge:
        with pytest.raises(BridgeError) as caught:
            await bridge.run_program({"steps": steps})
        assert [row["step"] for row in caught.value.details["steps"]] == expected
    assert written() == []


@pytest.mark.parametrize(
    ("own", "folders", "refuses"),
    [
        ("warn", "warn", False),
        ("refuse", "warn", True),
        ("warn", "refuse", True),
        (None, "refuse", True),
        ("refuse", None, True),
    ],
)
def test_a_folder_makes_that_no_laxer(tmp_path, own, folders, refuses):
    layers = [
        Layer(None, tmp_path, {}, {} if said is None else {"programs": {"denied_steps": said}})
        for said in (own, folders)
    ]
    assert govern(layers, tmp_path).refuses_denied_steps is refuses


def test_another_word_for_it_is_an_error(tmp_path):
    with pytest.raises(BridgeError, match=r"programs\.denied_steps: must be 'warn' or 'refuse'") as caught:
        load_governance({"programs": {"denied_steps": "maybe"}}, None, tmp_path, tmp_path)
    assert caught.value.code == "bad_program"


async def test_what_only_an_operators_program_may_do_is_denied_to_others(desk):
    open_with, written = desk
    own = {"name": "own", "steps": [tool("x", "forbidden", args={"text": "mine"})]}
    rules = {"rules": [{"tools": ["local.forbidden"], "effect": "program", "programs": ["own"]}]}
    async with open_with(rules, {"own": own}, denied_steps="refuse") as bridge:
        with pytest.raises(BridgeError, match="x \\(forbidden\\)"):
            await bridge.run_program({"steps": own["steps"]})
        assert (await bridge.run_program("own"))["status"] == "success"
        around = {"steps": [{"id": "p", "type": "program", "program": "own"}]}
        assert (await bridge.run_program(around))["status"] == "success"
    assert written() == ["mine", "mine"]


NAMES = ToolNames("s", "t", "s", "t")
STEPS = [
    StepContext((ProgramRef("agent", "0" * 64),), "x"),
    StepContext((ProgramRef("operator", "0" * 64),), "x"),
    StepContext((ProgramRef("operator", "1" * 64),), "x"),
]
ARGUMENTS = [{}, {"a": 1}, {"a": 2}, {"a": None}, {"a": "x"}, {"b": [1]}]
HINTS = [None, {}, {"readOnlyHint": True}]

RULES = [
    {"tools": ["s.t"], "effect": "deny"},
    {"tools": ["s.*"], "effect": "deny", "when": "$a == 1"},
    {"tools": ["other.*"], "effect": "deny"},
    {"tools": ["s.t"], "effect": "allow"},
    {"tools": ["S.T"], "effect": "allow"},
    {"tools": ["S.T"], "effect": "allow", "max_calls": 1},
    {"tools": ["s.t"], "effect": "allow", "when": "$a == 1"},
    {"tools": ["s.t"], "effect": "approve"},
    {"tools": ["s.*"], "effect": "approve", "when": "$a > 1"},
    {"tools": ["s.?"], "effect": "program", "programs": ["0" * 64]},
]


def policies():
    for preset in ("open", "read-only", "locked"):
        for first in (None, *RULES):
            for second in (None, *RULES):
                rules = [rule for rule in (first, second) if rule is not None]
                try:
                    yield freeze(read({"preset": preset, "rules": rules, "trust_hints": ["s"]}), {})
                except BridgeError:
                    continue  # the two contradict each other


def test_what_is_denied_in_any_case_is_denied_with_all_arguments():
    said = 0
    alone = list(policies())
    for snapshot in [*alone, *(layered(alone[number], alone[-number]) for number in range(1, len(alone), 7))]:
        for hints, step in itertools.product(HINTS, STEPS):
            denial = unconditional_denial(
                snapshot, Call(NAMES, hints=hints or {}, step=step, complete=False), knows_hints=hints is not None
            )
            if denial is None:
                continue
            said += 1
            assert snapshot.may_deny
            for arguments in ARGUMENTS:
                for known in HINTS[1:] if hints is None else [hints]:
                    assert decide(snapshot, Call(NAMES, arguments, known, step)).effect == "deny", (snapshot, hints)
    assert said > 100
