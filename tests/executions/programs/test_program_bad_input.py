"""Bad input to programs, by the ways that users have to give it: an error that says what is wrong, and where."""

import json
import uuid

import pytest
from execution_fixtures import Peak, lines, printed
from program_cases import branch, llm, parallel, steps, tool

from mcp_bridge import settings
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.governance import govern, load_governance

TEN_MISTAKES = {
    "naem": "x",
    "max_steps": -1,
    "steps": [
        tool("a", next_step="nowhere"),
        {"id": "a", "type": "llm", "prompt": ""},
        branch("c", "$a = 1", "a"),
        {"id": "w", "type": "sleep"},
        parallel({"id": "x", "type": "condition", "condition": "1"}),
        tool("q", on_error="ignore", args=[]),
    ],
}
FAULTS = [
    ("naem", "unknown_field"),
    ("max_steps", "bad_value"),
    ("steps[1].id", "duplicate_id"),
    ("steps[1].prompt", "bad_value"),
    ("steps[2].condition", "bad_condition"),
    ("steps[3].type", "bad_value"),
    ("steps[4].parallel_steps[0].type", "bad_value"),
    ("steps[5].on_error", "bad_value"),
    ("steps[5].args", "bad_type"),
    ("steps[0].next_step", "unknown_step"),
]

MANY = 10_000

CHAIN = steps(
    *(branch(f"c{number}", "True", f"c{number + 1}") for number in range(MANY)),
    {"id": f"c{MANY}", "type": "tool", "tool": "ok"},
)
"""Conditions that lead to conditions, and at last to a tool."""


def told(error):
    """Code and text of an error of the host's; nothing of Python's in it."""
    text = str(error)
    assert "Traceback" not in text
    assert "object at 0x" not in text
    assert len(text) < 3000
    return error.code, text


async def refusal(call):
    with pytest.raises(BridgeError) as caught:
        await call
    return told(caught.value)


# --- programs ---


async def test_ten_mistakes_are_told_at_once_on_every_way_in(sandboxes, tmp_path):
    async with sandboxes.open(state_dir=tmp_path / "state") as bridge:
        record = await bridge.run(
            f"""
import json, mcp
from mcp import programs
from mcp.sync import programs as blocking
bad = json.loads({json.dumps(json.dumps(TEN_MISTAKES))})
print(json.dumps(await programs.validate(bad)))
print(json.dumps(blocking.validate(bad)))
for call in (lambda: programs.run(bad), lambda: programs.save("bad", bad)):
    try:
        await call()
    except mcp.MCPError as exc:
        print(json.dumps(exc.details["faults"]))
        print(json.dumps([exc.code, str(exc)]))
print(await programs.list())
"""
        )
        *rows, last = lines(record)
        assert last == "(none)"
        rows = [json.loads(row) for row in rows]
        for faults in (rows[0], rows[1], rows[2], rows[4]):
            assert [(fault["path"], fault["code"]) for fault in faults] == FAULTS
        for code, text in (rows[3], rows[5]):
            assert code == "invalid_program"
            for path, _ in FAULTS:
                assert path in text
        with pytest.raises(BridgeError) as caught:
            await bridge.run_program(TEN_MISTAKES)
        assert told(caught.value)[0] == "invalid_program"
        assert [(fault["path"], fault["code"]) for fault in caught.value.details["faults"]] == FAULTS
    (tmp_path / "bad.json").write_text(json.dumps(TEN_MISTAKES))
    with pytest.raises(BridgeError) as caught:
        load_governance({"programs": {"path": ["."]}}, None, tmp_path, tmp_path)
    code, text = told(caught.value)
    assert code == "bad_program"
    assert "bad.json" in text
    assert [(fault["path"], fault["code"]) for fault in caught.value.details["faults"]] == FAULTS


AS_TEXT = {
    "python": """
from mcp import programs
text = '{"steps": [{"id": "w", "type": "wait", "seconds": 0}]}'
print((await programs.run(text)).status)
print(await programs.validate(text))
print(len(await programs.save("kept", text)))
print((await programs.get("kept"))["steps"][0]["id"])
for wrong in ("steps:\\n - id: w", "{'steps': []}"):
    print((await programs.validate(wrong))[0]["code"])
    for call in (lambda: programs.run(wrong), lambda: programs.save("kept", wrong)):
        try:
            await call()
        except Exception as exc:
            print(exc.code, "a program is an object, or the name of a saved one" in str(exc))
""",
    "javascript": """
import { programs } from "mcp";
const text = '{"steps": [{"id": "w", "type": "wait", "seconds": 0}]}';
console.log((await programs.run(text)).status);
console.log(await programs.validate(text));
console.log((await programs.save("kept", text)).length);
console.log((await programs.get("kept")).steps[0].id);
for (const wrong of ["steps:\\n - id: w", "{'steps': []}"]) {
  console.log((await programs.validate(wrong))[0].code);
  for (const call of [() => programs.run(wrong), () => programs.save("kept", wrong)]) {
    try { await call() } catch (error) {
      console.log(error.code, error.message.includes("a program is an object, or the name of a saved one") ? "True" : "False");
    }
  }
}
""",
}


async def test_a_script_may_give_a_program_as_a_text_of_json_and_of_nothing_else(bilingual):
    record = await bilingual.run(AS_TEXT)
    refused = ["not_json", "invalid_program True", "invalid_program True"]
    assert lines(record) == ["success", "valid", "64", "w", *refused, *refused]


async def test_of_a_text_that_is_nearly_json_the_place_of_the_fault_is_told(sandboxes):
    async with sandboxes.open() as bridge:
        for text, place in (('{"steps": [\n{"id": 5 6}]}', "line 2, column 10"), ('{"steps": [', "line 1, column 12")):
            code, says = await refusal(bridge.run_program(text))
            assert code == "invalid_program"
            assert place in says
        _, says = await refusal(bridge.run_program("steps:\n  - id: w"))
        assert "column" not in says


CONDITIONS = {
    "parentheses": (f"{'(' * MANY}True{')' * MANY}", "characters; the limit is"),
    "parentheses within the limit of length": (f"{'(' * 4000}True{')' * 4000}", "nested deeper than"),
    "lists": ("[" * 4000 + "]" * 4000, "nested deeper than"),
    "open parentheses": ("(" * 9000, "nested deeper than"),
    "a word of ten thousand letters": ("a" * MANY, "stands where a value should be"),
    "a megabyte": ("$a == 1 or " * 90_909 + "1", "characters; the limit is"),
    "a megabyte of one text": (f"$a == '{'x' * 999_990}'", "characters; the limit is"),
}


async def test_conditions_that_are_too_deep_or_too_long_are_refused_with_their_place(sandboxes):
    program = steps(*(branch(f"c{n}", text, "c0") for n, (text, _) in enumerate(CONDITIONS.values())))
    async with sandboxes.open() as bridge:
        with pytest.raises(BridgeError) as caught:
            await bridge.run_program(program)
        faults = caught.value.details["faults"]
        assert told(caught.value)[0] == "invalid_program"
        record = await bridge.run(
            f"""
import json
from mcp import programs
print(json.dumps(await programs.validate(json.loads({json.dumps(json.dumps(program))}))))
"""
        )
        assert json.loads(printed(record)) == faults
    for number, (fault, (_, says)) in enumerate(zip(faults, CONDITIONS.values(), strict=True)):
        assert (fault["path"], fault["code"]) == (f"steps[{number}].condition", "bad_condition")
        assert says in fault["message"]
        assert len(fault["message"]) < 300


@pytest.fixture
def governed(sandboxes, tmp_path):
    """The operator's word: tools of this text, and further tables."""

    def make(text="", **tables):
        (tmp_path / "tools").mkdir()
        (tmp_path / "tools" / f"tools_{uuid.uuid4().hex}.py").write_text(text)
        tables = {"tools": {"path": ["tools"], "entry_points": False}, **tables}
        return load_governance(tables, None, tmp_path, sandboxes.settings.state_dir)

    return make


OK = """
import mcp_bridge

@mcp_bridge.tool
def ok(x: object = None) -> str:
    return "ok"
"""


async def test_ten_thousand_nots_and_ten_thousand_conditions_one_after_the_other_are_run(sandboxes, governed):
    nots = steps(branch("if", "not " * 2400 + "True", "ok"), tool("ok"))
    async with sandboxes.open(governance=governed(OK)) as bridge:
        assert (await bridge.run_program(nots))["status"] == "success"
        here = await bridge.run_program(CHAIN)
        record = await bridge.run(
            f"""
from mcp import programs
chain = [{{"id": f"c{{n}}", "type": "condition", "condition": "True", "then": f"c{{n + 1}}"}} for n in range({MANY})]
chain.append({{"id": "c{MANY}", "type": "tool", "tool": "ok"}})
trace = await programs.run({{"steps": chain}})
print(trace.status, trace.output, len(trace.steps))
nested = {{"steps": [{{"id": "a", "type": "tool", "tool": "ok"}}]}}
for _ in range({MANY}):
    nested = {{"steps": [{{"id": "i", "type": "program", "program": nested}}]}}
try:
    await programs.validate(nested)
except Exception as exc:
    print(exc.code, exc.details["faults"][0]["message"])
"""
        )
    assert (here["status"], here["output"], len(here["steps"])) == ("success", "ok", MANY + 1)
    first, second = lines(record)
    assert first == f"success ok {MANY + 1}"
    assert second.startswith("invalid_program nested deeper than")


# --- what isn't JSON, inside ---

INSIDE = """
import asyncio, datetime, decimal, json, mcp
from mcp import programs
from mcp.sync import programs as blocking

class Own:
    pass

circle = {}
circle["again"] = circle
program = {"steps": [{"id": "a", "type": "tool", "tool": "ok", "args": {"x": "$x"}}]}
CONTEXTS = {
    "set": {"x": {1}},
    "datetime": {"x": datetime.datetime(2024, 1, 1)},
    "custom object": {"x": [0, Own()]},
    "bytes": {"x": b"x"},
    "decimal": {"x": decimal.Decimal(1)},
    "function": {"x": print},
    "coroutine": {"x": asyncio.sleep},
    "circle": circle,
    "number as a name": {"x": {1: 2}},
    "None as a name": {None: 2},
    "tuple as a name": {"x": {(1, 2): 3}},
    "NaN": {"x": {"y": [float("nan")]}},
    "infinity": {"x": float("inf")},
    "minus infinity": {"x": float("-inf")},
    "surrogate": {"x": "a\\ud800"},
    "surrogate in a name": {"x": {"\\udfff": 1}},
    "long integer": {"x": 10**200},
    "list": [1],
    "text": "x",
    "10 MB": {"x": "y" * 10_000_000},
    "100 MB": {"x": "y" * 100_000_000},
    "a million values": {"x": [0] * 1_100_000},
}
PROGRAMS = {
    "None": None,
    "number": 7,
    "list": [],
    "set": {"steps": [{"id": "a", "type": "tool", "tool": "ok", "args": {"x": {1}}}]},
    "NaN": {"steps": [{"id": "a", "type": "tool", "tool": "ok", "args": {"x": float("nan")}}]},
    "surrogate": {"steps": [{"id": "a\\ud800", "type": "tool", "tool": "ok"}]},
    "circle": circle,
    "number as a name": {"steps": [{"id": "a", "type": "tool", "tool": "ok", "args": {1: 2}}]},
    "10 MB": {"steps": [{"id": "a", "type": "tool", "tool": "ok", "args": {"x": "y" * 10_000_000}}]},
    "name": "absent",
    "long name": "a" * 1_000_000,
    "surrogate in a name": "\\ud800",
}

async def refusal(call):
    try:
        await call()
    except mcp.MCPError as exc:
        return [exc.code, str(exc)]
    return ["done", ""]

found = {name: await refusal(lambda: programs.run(program, value)) for name, value in CONTEXTS.items()}
print(json.dumps(found))
print(json.dumps({name: await refusal(lambda: programs.run(value)) for name, value in PROGRAMS.items()}))
try:
    blocking.run(program, {"x": {1}})
except mcp.MCPError as exc:
    print(exc.code)
for key in ("", 7, "k" * 1_000_000, "\\ud800"):
    print(*(await refusal(lambda: programs.run(program, {}, key)))[:1])
trace = await programs.run({"steps": [{"id": "w", "type": "wait", "event": "e"}]})
print(*await refusal(lambda: programs.resume(trace.trace_id, {1})))
print(*await refusal(lambda: programs.resume(trace.trace_id, {"x": float("nan")})))
print((await programs.resume(trace.trace_id, {"x": 1})).status)
"""

CONTEXT_ERRORS = {
    "set": ("bad_context", "context.x: a set is no JSON value"),
    "datetime": ("bad_context", "context.x: a datetime is no JSON value"),
    "custom object": ("bad_context", "context.x[1]: a Own is no JSON value"),
    "bytes": ("bad_context", "context.x: a bytes"),
    "decimal": ("bad_context", "context.x: a Decimal"),
    "function": ("bad_context", "context.x: a builtin_function_or_method"),
    "coroutine": ("bad_context", "context.x: a function"),
    "circle": ("bad_context", "nested deeper than"),
    "number as a name": ("bad_context", "context.x: a key is a int"),
    "None as a name": ("bad_context", "context: a key is a NoneType"),
    "tuple as a name": ("bad_context", "context.x: a key is a tuple"),
    "NaN": ("bad_context", "context.x.y[0]: nan is no JSON number"),
    "infinity": ("bad_context", "context.x: inf is no JSON number"),
    "minus infinity": ("bad_context", "context.x: -inf is no JSON number"),
    "surrogate": ("bad_context", "context.x: text with a lone surrogate"),
    "surrogate in a name": ("bad_context", "context.x: text with a lone surrogate"),
    "long integer": ("bad_context", "context.x: an integer of more than 100 digits"),
    "list": ("bad_context", "a list"),
    "text": ("bad_context", "a str"),
    "10 MB": ("context_too_large", "the limit is 4194304"),
    "100 MB": ("frame_too_large", "the limit is"),
    "a million values": ("frame_too_large", "more than 500000 values"),
}
PROGRAM_ERRORS = {
    "None": ("invalid_program", "a program is an object"),
    "number": ("invalid_program", "a program is an object"),
    "list": ("invalid_program", "a program is an object"),
    "set": ("invalid_program", "steps[0].args.x: a set"),
    "NaN": ("invalid_program", "steps[0].args.x: nan"),
    "surrogate": ("invalid_program", "steps[0].id: text with a lone surrogate"),
    "circle": ("invalid_program", "nested deeper than"),
    "number as a name": ("invalid_program", "steps[0].args: a key is a int"),
    "10 MB": ("invalid_program", "the limit is 8388608"),
    "name": ("unknown_program", "'absent'"),
    "long name": ("unknown_program", "aaa"),
    "surrogate in a name": ("invalid_program", "text with a lone surrogate"),
}


def holds(found, wanted):
    assert {name: code for name, (code, _) in found.items()} == {name: code for name, (code, _) in wanted.items()}
    for name, (_, text) in found.items():
        assert wanted[name][1] in text
        assert len(text) < 1000, name


async def test_what_is_no_json_is_refused_inside_with_its_place_and_nothing_is_lost_by_it(sandboxes, governed):
    async with sandboxes.open(governance=governed(OK)) as bridge:
        contexts, programs, blocking, *rest = lines(await bridge.run(INSIDE, timeout=60))
    holds(json.loads(contexts), CONTEXT_ERRORS)
    holds(json.loads(programs), PROGRAM_ERRORS)
    assert blocking == "bad_context"
    assert rest[:-3] == ["bad_key", "bad_params", "bad_key", "not_json"]
    assert rest[-3].startswith("bad_value The payload can't be taken: payload: a set")
    assert rest[-2].startswith("bad_value The payload can't be taken: payload.x: nan")
    assert rest[-1] == "success"


async def test_a_context_that_is_no_json_is_refused_by_the_host_with_its_place(sandboxes, governed):
    circle = {}
    circle["again"] = circle
    wrong = {
        "context.x: a set": {"x": {1}},
        "context.x: a object": {"x": object()},
        "context.x[1]: nan": {"x": [0, float("nan")]},
        "context.x: -inf": {"x": float("-inf")},
        "context: a key is a int": {1: 2},
        "context.x: text with a lone surrogate": {"x": "\ud800"},
        "nested deeper than": circle,
        "no object": [1],
    }
    program = steps(tool("ok"))
    async with sandboxes.open(governance=governed(OK)) as bridge:
        for says, context in wrong.items():
            code, text = await refusal(bridge.run_program(program, context))
            assert (code, says in text) == ("bad_context", True), text
        code, text = await refusal(bridge.run_program(program, {"x": "y" * 10_000_000}))
        assert (code, "the limit is 4194304" in text) == ("context_too_large", True)
        assert (await bridge.run_program(program))["status"] == "success"
        assert await bridge.programs.store.executions(None, 10, ["running"]) == []


# --- tools that misbehave ---

BAD_TOOLS = """
import time
import threading

import anyio
import mcp_bridge

def raising(name, error):
    def sync(kind: str = name):
        raise error
    async def unsync(kind: str = name):
        raise error
    mcp_bridge.tool(name=name)(sync)
    mcp_bridge.tool(name=name + "_async")(unsync)

class Untellable(Exception):
    def __str__(self):
        raise RuntimeError("no text")

raising("error", RuntimeError("boom"))
raising("exit", SystemExit(3))
raising("interrupt", KeyboardInterrupt())
raising("base", BaseException("base"))
raising("generator_exit", GeneratorExit())
raising("untellable", Untellable())
raising("long", ValueError("x" * 1_000_000))
raising("surrogate_error", ValueError("a\\ud800"))

def giving(name, value):
    def give():
        return value
    mcp_bridge.tool(name=name)(give)

circle = []
circle.append(circle)
deep = []
for _ in range(1000):
    deep = [deep]
giving("an_object", object())
giving("nan", [float("nan")])
giving("infinity", {"x": float("inf")})
giving("a_circle", circle)
giving("deep", deep)
giving("surrogate", "a\\ud800")
giving("a_function", print)
giving("huge", "x" * 9_000_000)
giving("endless", iter(int, 1))

release = threading.Event()

@mcp_bridge.tool(timeout=0.05)
def hangs():
    release.wait()

@mcp_bridge.tool(timeout=0.05)
async def hangs_async():
    await anyio.sleep_forever()

@mcp_bridge.tool
async def waits():
    await anyio.sleep_forever()

@mcp_bridge.tool
def let_go():
    release.set()

@mcp_bridge.tool
def ok(x: object = None) -> str:
    return "ok"
"""

MISBEHAVIOUR = {
    "error": ("tool_error", "RuntimeError: boom"),
    "exit": ("tool_error", "SystemExit"),
    "interrupt": ("tool_error", "KeyboardInterrupt"),
    "base": ("tool_error", "BaseException: base"),
    "generator_exit": ("tool_error", "GeneratorExit"),
    "untellable": ("tool_error", "Untellable"),
    "long": ("tool_error", "ValueError: xxx"),
    "surrogate_error": ("tool_error", "ValueError: a?"),
    "error_async": ("tool_error", "RuntimeError: boom"),
    "exit_async": ("tool_error", "SystemExit"),
    "interrupt_async": ("tool_error", "KeyboardInterrupt"),
    "base_async": ("tool_error", "BaseException: base"),
    "generator_exit_async": ("tool_error", "GeneratorExit"),
    "an_object": ("bad_tool_result", "object"),
    "nan": ("bad_tool_result", "nan"),
    "infinity": ("bad_tool_result", "inf"),
    "a_circle": ("bad_tool_result", ""),
    "deep": ("bad_tool_result", "deep"),
    "surrogate": ("bad_tool_result", "surrogate"),
    "a_function": ("bad_tool_result", "function"),
    "huge": ("bad_tool_result", "8388608"),
    "endless": ("bad_tool_result", ""),
    "hangs": ("tool_timeout", "0.05 s"),
    "hangs_async": ("tool_timeout", "0.05 s"),
    "waits": ("timeout", "0.05 s"),
    "absent": ("unknown_tool", "absent"),
    "absent.tool": ("unknown_server", "absent"),
}


def one_step(name):
    limit = {"timeout_seconds": 0.05} if name == "waits" else {}
    return steps({"id": "s", "type": "tool", "tool": name, **limit})


async def test_a_tool_that_misbehaves_fails_its_step_and_nothing_else(sandboxes, governed):
    async with sandboxes.open(governance=governed(BAD_TOOLS)) as bridge:
        here = {name: await bridge.run_program(one_step(name)) for name in MISBEHAVIOUR}
        record = await bridge.run(
            f"""
import json
from mcp import programs
for program in json.loads({json.dumps(json.dumps([one_step(name) for name in MISBEHAVIOUR]))}):
    trace = await programs.run(program)
    print(json.dumps([trace.status, trace.steps[0].code, trace.steps[0].error, trace.error]))
every = {{"id": "p", "type": "parallel", "on_error": "skip", "parallel_steps": [
    {{"id": name, "type": "tool", "tool": name}} for name in {[name for name in MISBEHAVIOUR if name != "waits"]!r}
] + [{{"id": "good", "type": "tool", "tool": "ok"}}]}}
trace = await programs.run({{"steps": [every]}})
print(trace.status, {{name: value for name, value in trace.output.items() if value is not None}})
"""
        )
        *inside, last = lines(record)
        assert (await bridge.run_program(one_step("let_go")))["status"] == "success"
    for name, row in zip(MISBEHAVIOUR, map(json.loads, inside), strict=True):
        code, says = MISBEHAVIOUR[name]
        step = here[name]["steps"][0]
        for status, found, text, whole in (
            [here[name]["status"], step["code"], step["error"], here[name]["error"]],
            row,
        ):
            assert (name, status, found) == (name, "failed", code)
            assert says in text
            assert text in whole
            assert "Traceback" not in text
            assert len(text) < 3000
    assert last == "success {'good': 'ok'}"


LARGE = """
import mcp_bridge

@mcp_bridge.tool
def large(letter: str) -> str:
    return letter * 7_000_000
"""


async def test_outputs_that_are_more_together_than_a_message_holds_still_make_a_trace(sandboxes, governed):
    program = steps(*({**tool(letter), "tool": "large", "args": {"letter": letter}} for letter in "abc"))
    async with sandboxes.open(governance=governed(LARGE)) as bridge:
        record = await bridge.run(
            f"""
import mcp
from mcp import programs
trace = await programs.run({program!r})
print(trace.status, len(trace.output), [(row.id, len(row.output)) for row in trace.steps])
try:
    await mcp.traces.get(trace.trace_id)
except mcp.MCPError as exc:
    print(exc.code, "the limit is" in str(exc), "Ask for less" in str(exc))
""",
            timeout=60,
        )
    assert lines(record) == [
        "success 7000000 [('a', 7000000), ('b', 7000000), ('c', 7000000)]",
        "result_too_large True True",
    ]


# --- models that answer rubbish ---

RUBBISH = {
    "no answer": ("", "not_allowed"),
    "another answer": ("maybe", "not_allowed"),
    "nearly the answer": ("Yes.", "not_allowed"),
    "PENDING": ("PENDING", "not_allowed"),
    "a megabyte": ("yes " * 250_000, "not_allowed"),
    "json": ('{"answer": "yes"}', "not_allowed"),
    "control characters": ("yes\x00", "not_allowed"),
    "reference": ("$secret", "not_allowed"),
    "bad answer": ({"error": "model_bad_answer"}, "model_bad_answer"),
    "failure": ({"error": "model_failed"}, "model_failed"),
    "unavailable": ({"error": "model_unavailable"}, "model_unavailable"),
    "timeout": ({"error": "model_timeout"}, "model_timeout"),
}
GATED = {"allowed_outputs": ["yes", "no"]}


async def test_a_model_that_answers_rubbish_fails_its_step(sandboxes, governed):
    answers = [answer for answer, _ in RUBBISH.values()]
    model = {"provider": "scripted", "answers": answers * 2}
    async with sandboxes.open(governance=governed(OK, model=model)) as bridge:
        record = await bridge.run(
            f"""
import json
from mcp import programs
for _ in range({len(answers)}):
    trace = await programs.run({steps(llm(**GATED), tool("ok"))!r})
    print(json.dumps([trace.status, trace.code, trace.error, len(trace.steps)]))
for _ in range({len(answers)}):
    trace = await programs.run({steps(llm(), tool("ok", args={"x": "$m"}))!r})
    print(trace.status)
trace = await programs.run({steps(llm())!r})
print(trace.code, trace.error)
"""
        )
    rows = lines(record)
    count = len(RUBBISH)
    for (_, code), row in zip(RUBBISH.values(), rows, strict=False):
        status, found, text, ran = json.loads(row)
        assert (status, found, ran) == ("failed", code, 1)
        assert len(text) < 1000
    # Where any answer is allowed, text is text.
    assert rows[count : 2 * count] == ["success"] * 8 + ["failed"] * 4
    assert rows[-1].startswith("model_failed")
    assert "no more answers" in rows[-1]


PLANS = {
    "prose": "I'd rather not.",
    "broken": '{"steps": [',
    "no program": '{"answer": 42}',
    "mistakes": json.dumps(TEN_MISTAKES),
    "a bomb": "[" * 100_000,
    "unknown": {"error": "model_bad_answer"},
}


@pytest.mark.parametrize("name", PLANS)
async def test_a_planner_that_gets_rubbish_gives_up_after_a_few_attempts_and_says_why(sandboxes, governed, name):
    model = {"provider": "scripted", "default_answer": PLANS[name]}
    async with sandboxes.open(governance=governed(OK, model=model)) as bridge:
        code, text = await refusal(bridge.plan_program("pay the bill"))
    assert code == "plan_failed"
    assert "3 attempt(s)" in text
    assert name != "mistakes" or "10 fault(s), the first: naem: there is no such field" in text


@pytest.mark.parametrize("intent", ["", "   ", "x" * 30_000])
async def test_an_intent_that_says_nothing_or_too_much_is_refused(sandboxes, governed, intent):
    model = {"provider": "scripted", "default_answer": "{}"}
    async with sandboxes.open(governance=governed(OK, model=model)) as bridge:
        assert (await refusal(bridge.plan_program(intent)))[0] == "bad_intent"


# --- secrets ---


async def test_a_secret_that_is_missing_or_not_granted_fails_the_step_by_its_name(sandboxes, governed, monkeypatch):
    monkeypatch.setenv("BAD_INPUT_OTHER", "0123456789-other")
    monkeypatch.delenv("BAD_INPUT_ABSENT", raising=False)
    secrets = {
        "absent": {"env": "BAD_INPUT_ABSENT", "tools": ["local.ok"]},
        "other": {"env": "BAD_INPUT_OTHER", "tools": ["other.*"]},
    }
    wanted = {"absent": "secret_missing", "other": "secret_denied", "unknown": "secret_missing"}
    async with sandboxes.open(governance=governed(OK, secrets=secrets)) as bridge:
        for name, code in wanted.items():
            program = steps(tool("ok", args={"x": f"vault://secret/{name}"}))
            record = await bridge.run_program(program)
            assert (record["status"], record["code"]) == ("failed", code)
            assert repr(name) in record["error"]
            assert "0123456789" not in json.dumps(record)
            inside = await bridge.run(
                f"""
from mcp import programs
trace = await programs.run({program!r})
print(trace.code, {name!r} in trace.error, "0123456789" in repr(trace))
"""
            )
            assert printed(inside) == f"{code} True False\n"


# --- the configuration: policy, programs ---

POLICIES = {
    "unknown key": ("prest = 'open'", 2, "there is no such key"),
    "unknown key of a limit": ("[policy.limits]\ncall = 1", 3, "there is no such key"),
    "unknown key of a rule": (
        "[[policy.rules]]\ntools = ['a.b']\neffect = 'deny'\nwhy = 'x'",
        5,
        "there is no such key",
    ),
    "unknown preset": ("preset = 'closed'", 2, "'open', 'read-only'"),
    "unknown effect": ("[[policy.rules]]\ntools = ['a.b']\neffect = 'refuse'", 4, "'deny', 'allow'"),
    "no tools": ("[[policy.rules]]\neffect = 'deny'", 2, "has no 'tools'"),
    "no table": ("rules = [1]", 2, "must be an array of tables"),
    "no condition": ("[[policy.rules]]\ntools = ['a.b']\neffect = 'allow'\nwhen = '$a = 1'", 5, "not a condition"),
    "long condition": (f"[[policy.rules]]\ntools = ['a.b']\neffect = 'allow'\nwhen = '{'(' * 9000}'", 5, "deeper"),
    "negative limit": ("[policy.limits]\ncalls = -1", 3, "greater than or equal to 0"),
    "infinite cost": ("[policy.limits]\nmodel_cost_usd = inf", 3, ""),
    "nan cost": ("[policy.limits]\nmodel_cost_usd = nan", 3, ""),
    "bad glob": ("[[policy.rules]]\ntools = ['github']\neffect = 'deny'", 3, "github"),
    "both": (
        "[[policy.rules]]\ntools = ['a.b']\neffect = 'allow'\n[[policy.rules]]\ntools = ['a.b']\neffect = 'approve'",
        7,
        "'approve', and rule 1 is 'allow' for the same tools",
    ),
    "bounded denial": ("[[policy.rules]]\ntools = ['a.b']\neffect = 'deny'\nmax_calls = 1", 5, "lets no calls through"),
    "program without programs": ("[[policy.rules]]\ntools = ['a.b']\neffect = 'program'", 2, "needs the programs"),
    "programs of another effect": (
        "[[policy.rules]]\ntools = ['a.b']\neffect = 'allow'\nprograms = ['p']",
        5,
        "only the effect 'program' takes programs",
    ),
    "unknown program": (
        "[[policy.rules]]\ntools = ['a.b']\neffect = 'program'\nprograms = ['p']",
        5,
        "there is no program 'p'",
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_cannot_be_meant_is_refused_with_file_line_and_key(tmp_path, name):
    text, line, says = POLICIES[name]
    file = tmp_path / "bridge.toml"
    file.write_text(f"[policy]\n{text}\n")
    loaded = settings.load(file, environ={})
    with pytest.raises(BridgeError) as caught:
        govern(loaded.layers, tmp_path)
    code, shown = told(caught.value)
    assert code == "bad_config"
    assert f"{file}, line {line}: policy" in shown
    assert says in shown
    assert caught.value.details["line"] == line


GOOD = "steps:\n- {id: a, type: tool, tool: ok}\n"
LOL = "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30))
MERGED = "".join(f"- &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 10)}], k{n}: 1}}\n" for n in range(1, 30))
TEXTS = f"a: &t {'x' * 100_000}\nb: [{', '.join(['*t'] * 1000)}]\n"
CHAINED = "- &a0 []\n" + "".join(f"- &a{n} [*a{n - 1}]\n" for n in range(1, 5000))

FILES = {
    "empty.yaml": ("", "a program is an object"),
    "empty.json": ("", "Expecting value"),
    "empty.toml": ("", "'steps' is missing"),
    "comment.yaml": ("# nothing\n", "a program is an object"),
    "list.yaml": ("- 1\n", "a program is an object"),
    "text.json": ('"steps"', "a program is an object"),
    "bomb.yaml": (f"- &a0 lol\n{LOL}", "written out it has more than 8388608"),
    "merge_bomb.yaml": (f"- &m0 {{a: 1}}\n{MERGED}", "written out it has more than 8388608"),
    "text_bomb.yaml": (TEXTS, "line 2: with its aliases written out it has more than 8388608"),
    "chain.yaml": (CHAINED, "nested deeper than 64 levels with its aliases"),
    "circle.yaml": ("steps: &s [*s]\n", "line 1: an alias stands inside of what it stands for"),
    "circle_in_a_name.yaml": ("&s {*s : 1}\n", "an alias stands inside"),
    "brackets.yaml": ("[" * 100_000, "line 1: nested deeper than 64 levels"),
    "dashes.yaml": ("- " * 100_000, "line 1: nested deeper than 64 levels"),
    "braces.yaml": ("{a: " * 100_000, "line 1: nested deeper than 64 levels"),
    "questions.yaml": ("? " * 100_000, "nested deeper than 64 levels"),
    "brackets.json": ("[" * 100_000, "nests too deeply"),
    "brackets.toml": ("a = " + "[" * 100_000, "nests too deeply"),
    "twice.yaml": (GOOD + "steps: []\n", "line 3: 'steps' is there twice"),
    "twice_inside.yaml": ("steps:\n- id: a\n  type: tool\n  id: b\n", "line 4: 'id' is there twice"),
    "twice.json": ('{"steps": [{"id": "a", "type": "tool", "tool": "ok", "id": "b"}]}', "'id' is there twice"),
    "twice.toml": ("name = 'a'\nname = 'b'\n", "Cannot overwrite a value"),
    "python.yaml": ("!!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
    "own_tag.yaml": ("steps: !mine []\n", "could not determine a constructor"),
    "binary.yaml": ("steps: [{id: a, type: tool, tool: ok, args: {x: !!binary aGk=}}]\n", "args.x: a bytes"),
    "date.yaml": ("steps: [{id: a, type: tool, tool: ok, args: {x: !!timestamp 2024-01-01}}]\n", "args.x: a date"),
    "date.toml": ("name = 2024-01-01\nsteps = []\n", "name: a date"),
    "set.yaml": ("steps: !!set {a: null}\n", "steps: a set"),
    "number_as_a_name.yaml": ("1: 2\n", "a key is a int"),
    "list_as_a_name.yaml": ("? [a]\n: 1\n", "unhashable key"),
    "nan.yaml": ("max_steps: .nan\nsteps: []\n", "max_steps: nan"),
    "nan.json": ('{"max_steps": NaN, "steps": []}', "max_steps: nan"),
    "infinity.json": ('{"max_steps": 1e999, "steps": []}', "max_steps: inf"),
    "long_number.json": ('{"max_steps": ' + "9" * 5000 + "}", "4300 digits"),
    "long_number.yaml": ("max_steps: " + "9" * 5000 + "\n", "4300 digits"),
    "two.yaml": (f"{GOOD}---\n{GOOD}", "expected a single document"),
    "no_anchor.yaml": ("steps: *absent\n", "found undefined alias"),
    "broken.yaml": ("steps: [", "not YAML"),
    "tab.yaml": ("steps:\n\t- a\n", "cannot start any token"),
    "broken.json": ('{"steps": [', "Expecting value"),
    "broken.toml": ("steps = ", "Invalid value"),
    "surrogate.json": ('{"name": "\\ud800", "steps": []}', "name: text with a lone surrogate"),
    "control.yaml": ("name: \x01\n", "not YAML"),
    "words.yaml": ("steps: [{id: true, type: tool, tool: ok}]\n", "id: true should be a text"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_program_file_that_is_none_is_named_with_what_is_wrong(tmp_path, name):
    text, says = FILES[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(BridgeError) as caught:
        load_governance({"programs": {"path": ["."]}}, None, tmp_path, tmp_path)
    code, shown = told(caught.value)
    assert code == "bad_program"
    assert name in shown
    assert says in shown


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("latin.yaml", "name: \u00e9".encode("latin-1"), "is not UTF-8 text"),
        ("binary.json", bytes(range(256)), "is not UTF-8 text"),
        ("null.yaml", b"name: \0", "not YAML"),
    ],
)
def test_a_program_file_that_is_no_text_is_named(tmp_path, name, data, says):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BridgeError, match=says) as caught:
        load_governance({"programs": {"path": ["."]}}, None, tmp_path, tmp_path)
    assert caught.value.code == "bad_program"


@pytest.mark.parametrize("name", ["large.yaml", "large.json", "large.toml"])
def test_a_program_file_of_a_hundred_megabytes_is_refused_unread(tmp_path, name):
    with (tmp_path / name).open("wb") as file:
        file.truncate(100 << 20)
    peak = Peak()
    with pytest.raises(BridgeError, match=f"{name} has more than 8388608 bytes"):
        load_governance({"programs": {"path": ["."]}}, None, tmp_path, tmp_path)
    assert peak.growth < 20 << 20


def test_anchors_and_aliases_of_ordinary_size_are_fine(tmp_path):
    (tmp_path / "shared.yaml").write_text(
        "steps:\n"
        "- &first {id: a, type: tool, tool: ok, args: &args {x: [1, 2]}}\n"
        "- {id: b, type: tool, tool: ok, args: *args}\n"
        "- {<<: *first, id: c}\n"
    )
    found = load_governance({"programs": {"path": ["."]}}, None, tmp_path, tmp_path).programs["shared"]
    assert [row["args"] for row in found.data["steps"]] == [{"x": [1, 2]}] * 3
    assert [step.id for step in found.steps] == ["a", "b", "c"]


def test_words_that_yaml_1_1_took_for_booleans_are_text(tmp_path):
    (tmp_path / "words.yaml").write_text(
        "steps:\n- {id: on, type: llm, prompt: sure?, allowed_outputs: [yes, no, off, y]}\n- {id: n, type: tool, tool: ok}\n"
    )
    found = load_governance({"programs": {"path": ["."]}}, None, tmp_path, tmp_path).programs["words"]
    assert [step.id for step in found.steps] == ["on", "n"]
    assert found.steps[0].allowed_outputs == ("yes", "no", "off", "y")


def test_two_files_of_one_name_and_programs_that_run_each_other_are_refused(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(steps({"id": "x", "type": "program", "program": "b"})))
    (tmp_path / "b.json").write_text(json.dumps(steps({"id": "x", "type": "program", "program": "a"})))
    with pytest.raises(BridgeError, match="programs run each other without end: a → b → a"):
        load_governance({"programs": {"path": ["."]}}, None, tmp_path, tmp_path)
    (tmp_path / "a.json").write_text(json.dumps(steps(tool("ok"), name="b")))
    with pytest.raises(BridgeError, match="are both called 'b'"):
        load_governance({"programs": {"path": ["."]}}, None, tmp_path, tmp_path)
