"""Programs from inside a real container."""

import json

import pytest
from execution_fixtures import printed
from servers.specs import faulty

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import Files
from mcp_bridge.executions.erasure_with_files import erase
from mcp_bridge.ledger.config import LedgerConfig

pytestmark = pytest.mark.usefixtures("whole_ledgers")

PROGRAM = {
    "name": "greet",
    "steps": [
        {"id": "one", "type": "tool", "tool": "faulty.echo", "args": {"text": "$who"}, "output_key": "said"},
        {"id": "which", "type": "condition", "condition": "$said == 'you'", "then": "both", "otherwise": "one"},
        {
            "id": "both",
            "type": "parallel",
            "parallel_steps": [
                {"id": "left", "type": "tool", "tool": "faulty.echo", "args": {"text": "l $said"}},
                {"id": "right", "type": "tool", "tool": "faulty.echo", "args": {"text": "r $one.output"}},
            ],
            "next_step": "last",
        },
        {"id": "last", "type": "tool", "tool": "faulty.echo", "args": {"text": "$left and $right"}},
    ],
}


@pytest.fixture(params=["python", "javascript"])
def language(request):
    return request.param


FROM_INSIDE = {
    "python": f"""
from mcp import programs, sync
import json
def tell(*values): print(json.dumps(values))
program = json.loads({json.dumps(json.dumps(PROGRAM))})
trace = await programs.run(program, context={{"who": "you"}})
tell(trace.status, trace.output, [step.id for step in trace.steps], trace.step("left").output)
trace = sync.programs.run(program, {{"who": "you"}}, idempotency_key="k")
again = sync.programs.run(program, {{"who": "you"}}, idempotency_key="k")
tell(trace.trace_id == again.trace_id, again.status)
print(await programs.validate({{"steps": []}}))
tell(await programs.validate(program), len(await programs.save("greet", program)))
print(await programs.list())
tell((await programs.run("greet", {{"who": "you"}})).ok, (await programs.get("greet"))["name"])
tell(await programs.delete("greet"), await programs.delete("greet"), await programs.list())
failed = await programs.run({{"steps": [{{"id": "a", "type": "tool", "tool": "faulty.echo", "args": {{}}}}]}})
tell(failed.status, failed.ok, failed.code, "'text' is a required property" in failed.error)
try:
    await programs.run("greet")
except Exception as exc:
    tell(exc.code)
""",
    "javascript": f"""
import {{ programs }} from "mcp";
const tell = (...values) => console.log(JSON.stringify(values));
const program = {json.dumps(PROGRAM)};
let trace = await programs.run(program, {{ who: "you" }});
tell(trace.status, trace.output, trace.steps.map((step) => step.id), trace.step("left").output);
trace = await programs.run(program, {{ who: "you" }}, {{ idempotencyKey: "k" }});
const again = await programs.run(program, {{ who: "you" }}, {{ idempotency_key: "k" }});
tell(trace.trace_id === again.trace_id, again.status);
console.log(await programs.validate({{ steps: [] }}));
tell(await programs.validate(program), (await programs.save("greet", program)).length);
console.log(await programs.list());
tell((await programs.run("greet", {{ who: "you" }})).ok, (await programs.get("greet")).name);
tell(await programs.delete("greet"), await programs.delete("greet"), await programs.list());
const failed = await programs.run({{ steps: [{{ id: "a", type: "tool", tool: "faulty.echo", args: {{}} }}] }});
tell(failed.status, failed.ok, failed.code, failed.error.includes("'text' is a required property"));
try {{ await programs.run("greet") }} catch (error) {{ tell(error.code) }}
""",
}


async def test_a_program_runs_from_inside(both, language):
    out = printed(await both.run(FROM_INSIDE[language], faulty(), language=language)).splitlines()
    steps = ["one", "which", "left", "right", "both", "last"]
    assert json.loads(out[0]) == ["success", "l you and r you", steps, "l you"]
    assert json.loads(out[1]) == [True, "success"]
    assert out[2] == "steps: a list of 0 should have at least 1"
    assert json.loads(out[3]) == [[], 64]
    assert out[4] == "greet (agent)"
    assert [json.loads(line) for line in out[5:]] == [
        [True, "greet"],
        [True, False, []],
        ["failed", False, "bad_arguments", True],
        ["unknown_program"],
    ]


async def test_json_in_a_text_is_read_where_a_step_says_so_and_a_condition_on_the_text_says_how(sandboxes):
    rows = json.dumps([{"n": 61}, {"n": 5}])
    record = await sandboxes.run(
        f"""
from mcp import programs, traces
def program(**more):
    return {{"steps": [
        {{"id": "count", "type": "tool", "tool": "faulty.echo", "args": {{"text": {rows!r}}}, **more}},
        {{"id": "large", "type": "condition", "condition": "$count[0].n > 60 and $count.1.n < 60", "then": "tell"}},
        {{"id": "tell", "type": "tool", "tool": "faulty.echo", "args": {{"text": "$count.0.n is large"}}}},
    ]}}
trace = await programs.run(program(parse="json"))
print(trace.status, trace.output, trace.step("count").output)
trace = await programs.run(program())
print(trace.error)
print(trace.step("large").error)
print((await traces.get(trace.trace_id)).step("large").error == trace.step("large").error)
print((await programs.run({{"steps": [program(parse="json")["steps"][0] | {{"args": {{"text": "none"}}}}]}})).error)
print((await programs.run({{"steps": [program()["steps"][0] | {{"args": {{"txt": "a", "times": 0}}}}]}})).error)
faults = await programs.validate({{"steps": [{{"id": "a", "type": "tool", "tool": "t", "args": {{"x": "$n[0]"}}}}]}})
print(bool(faults), faults)
print(programs.__doc__)
""",
        faulty(),
    )
    out = printed(record).splitlines()
    assert out[6:8] == [
        "False valid",
        "warning: steps[0].args.x: the brackets of $n[0] are text here: an index is written $n.0",
    ]
    assert out[0] == "success 61 is large [{'n': 61}, {'n': 5}]"
    why = (
        "the condition '$count[0].n > 60 and $count.1.n < 60' fails: these can't be compared so: NoneType > int: $count is "
        """the text '[{"n": 61}, {"n": 5}]', and has no 0: `parse: json` on that step makes a value of it"""
    )
    assert out[1] == f"step 'large' failed: {why}"
    assert out[2] == why
    assert out[3] == "True"
    assert out[4] == "step 'count' failed: the output is no JSON: 'none'"
    assert "there is no parameter 'txt' (did you mean text?); " in out[5]
    assert "'text' is a required property" in out[5]
    assert "times: 0 is less than the minimum of 1" in out[5]
    assert "It is faulty.echo(text: str" in out[5]
    guide = "\n".join(out)
    for sign in ("==", "not in", "contains", "$found[0]", "`local`", '"parse": "json"'):
        assert sign in guide


async def test_what_a_sandbox_has_left_goes_on_in_another_with_its_key(both, language, tmp_path):
    program = {
        "steps": [
            {"id": "one", "type": "tool", "tool": "faulty.echo", "args": {"text": "$who"}},
            {"id": "pause", "type": "wait", "seconds": 2},
            {"id": "last", "type": "tool", "tool": "faulty.echo", "args": {"text": "$one.output again"}},
        ]
    }
    python = f"programs.run({program!r}, {{'who': 'you'}}, idempotency_key='left')"
    javascript = f"programs.run({json.dumps(program)}, {{ who: 'you' }}, {{ idempotencyKey: 'left' }})"
    leave, go_on = {
        "python": (
            f"import asyncio\nfrom mcp import programs\nasyncio.ensure_future({python})\nawait asyncio.sleep(1)",
            f"from mcp import programs\ntrace = await {python}\nprint(trace.status, trace.output, trace.trace_id)",
        ),
        "javascript": (
            f"mcp.{javascript}; setTimeout(() => process.exit(0), 1000)",
            f"const trace = await mcp.{javascript}; console.log(trace.status, trace.output, trace.trace_id)",
        ),
    }[language]
    async with both.open(faulty(), state_dir=tmp_path / "state") as bridge:
        await bridge.run(leave, language=language)
        found = await bridge.programs.store.executions(None, 10)
        (left,) = [row for row in found if row.kind == "program"]
        assert left.status == "interrupted"
        record = await bridge.run(go_on, language=language)
        assert printed(record) == f"success you again {left.id}\n"
        entries = await bridge.programs.recorder.read(left.id)
        assert [row.entry.step for row in entries if row.entry.kind == "intent"] == ["one", "last"]


async def test_programs_are_kept_within_a_limit(sandboxes, tmp_path, monkeypatch):
    from mcp_bridge.executions.programs import library

    monkeypatch.setattr(library, "MAX_SAVED_CHARS", 400)
    async with sandboxes.open(faulty(), state_dir=tmp_path / "state") as bridge:
        await bridge.programs.library.save(
            "a", {"steps": [{"id": "x", "type": "wait", "seconds": 1}], "description": "d" * 200}, "local"
        )
        await bridge.programs.library.save(
            "a", {"steps": [{"id": "x", "type": "wait", "seconds": 1}], "description": "e" * 200}, "local"
        )
        with pytest.raises(BridgeError) as caught:
            await bridge.programs.library.save(
                "b", {"steps": [{"id": "x", "type": "wait", "seconds": 1}], "description": "f" * 200}, "local"
            )
        assert caught.value.code == "too_many_programs"
        assert [row["name"] for row in await bridge.programs.library.listed("local")] == ["a"]


SUSPENDED = {
    "steps": [
        {"id": "one", "type": "tool", "tool": "faulty.echo", "args": {"text": "a"}},
        {"id": "paid", "type": "wait", "event": "paid"},
        {"id": "last", "type": "tool", "tool": "faulty.echo", "args": {"text": "$one and $__webhook__.by"}},
    ]
}
GOES_ON = {
    "python": f"""
from mcp import programs, traces
import json
def tell(*values): print(json.dumps(values))
trace = await programs.run({SUSPENDED!r})
tell(trace.status, trace.ok, trace.waiting[0]["kind"], trace.step("one").output)
again = await programs.resume(trace.trace_id, {{"by": "anna"}})
tell(again.status, again.output, again.trace_id == trace.trace_id, (await traces.get(trace.trace_id)).output)
for wrong in (trace.trace_id, "0" * 32):
    try:
        await programs.resume(wrong)
    except Exception as exc:
        tell(exc.code)
""",
    "javascript": f"""
import {{ programs, traces }} from "mcp";
const tell = (...values) => console.log(JSON.stringify(values));
const trace = await programs.run({json.dumps(SUSPENDED)});
tell(trace.status, trace.ok, trace.waiting[0].kind, trace.step("one").output);
const again = await programs.resume(trace, {{ by: "anna" }});
tell(again.status, again.output, again.trace_id === trace.trace_id, (await traces.get(trace.trace_id)).output);
for (const wrong of [trace.trace_id, "0".repeat(32)]) {{
  try {{ await programs.resume(wrong) }} catch (error) {{ tell(error.code) }}
}}
""",
}


async def test_a_suspended_program_goes_on_from_inside(both, language):
    out = printed(await both.run(GOES_ON[language], faulty(), language=language)).splitlines()
    assert [json.loads(line) for line in out] == [
        ["suspended", False, "event", "a"],
        ["success", "a and anna", True, "a and anna"],
        ["not_suspended"],
        ["unknown_trace"],
    ]


MANY = {
    "steps": [
        {
            "id": "each",
            "type": "map",
            "over": "$items",
            "step": {"id": "e", "type": "tool", "tool": "faulty.echo", "args": {"text": "$item"}},
        }
    ]
}
WAITS = {"steps": [{"id": "ask", "type": "approval", "message": "May I?"}]}
LITTLE = {
    "python": f"""
from mcp import programs
trace = await programs.run({MANY!r}, {{"items": ["x" * 1000] * 100}})
assert len(trace.steps) == 101 and len(trace.steps[0].output) == 1000
text = repr(trace)
print(len(text) < 10_000, "81 more in .steps" in text)
text = repr(await programs.run({WAITS!r}))
print("suspended" in text and "waits for a person at ask: May I?" in text)
try:
    trace.step("eahc")
except KeyError as exc:
    print(str(exc)[:60])
""",
    "javascript": f"""
import {{ inspect }} from "node:util";
import {{ run }} from "mcp/programs";
const trace = await run({json.dumps(MANY)}, {{ items: Array(100).fill("x".repeat(1000)) }});
if (trace.steps.length !== 101 || trace.steps[0].output.length !== 1000) throw new Error("not all");
const text = inspect(trace);
console.log(text.length < 10_000 ? "True" : text.length, text.includes("81 more in .steps") ? "True" : text);
const waits = inspect(await run({json.dumps(WAITS)}));
console.log(waits.includes("suspended") && waits.includes("waits for a person at ask: May I?") ? "True" : waits);
try {{ trace.step("eahc") }} catch (error) {{ console.log(error.message.slice(0, 60)) }}
""",
}


async def test_a_trace_shows_little_of_itself(both, language, tmp_path):
    async with both.open(faulty(), state_dir=tmp_path / "state") as bridge:
        record = await bridge.run(LITTLE[language], language=language)
        assert printed(record).splitlines()[:2] == ["True True", "True"]
        assert "no step 'eahc' has run" in printed(record)


async def test_a_script_is_erased_with_whom_its_programs_and_calls_were_about(sandboxes, tmp_path):
    program = {"steps": [{"id": "one", "type": "tool", "tool": "faulty.echo", "args": {"text": "for $who"}}]}
    codes = {
        "runs": f"from mcp import programs\nawait programs.run({program!r}, {{'who': 'anna'}})",
        "refused": "from mcp import programs\ntry: await programs.run({'steps': []}, {'who': 'anna'})\nexcept Exception: pass",
        "calls": "from mcp.servers import faulty\nawait faulty.echo(text='anna')",
        "reads": "from mcp import traces\nprint((await traces.get('TRACE')).output)",
        "reads another's": "from mcp import traces\nprint((await traces.get('OTHER')).output)",
        "has nothing": "print('anna')",
    }
    ledger = LedgerConfig(subject_fields=("who", "text"))
    async with sandboxes.open(faulty(), state_dir=tmp_path / "state", ledger=ledger) as bridge:
        store, files = bridge.programs.store, Files(tmp_path / "state")
        await bridge.run(f"from mcp import programs\nawait programs.run({program!r}, {{'who': 'ben'}})")
        traces = {"OTHER": next(row.id for row in await store.executions(None, 9) if row.kind == "program")}
        ran = {"runs": (await bridge.run(codes["runs"])).execution}
        traces["TRACE"] = next(
            row.id for row in await store.executions(None, 9) if row.kind == "program" and row.id != traces["OTHER"]
        )
        for name, code in codes.items():
            if name not in ran:
                told = code.replace("TRACE", traces["TRACE"]).replace("OTHER", traces["OTHER"])
                ran[name] = (await bridge.run(told)).execution
        erased = await erase(bridge._database, files, "subject", "anna", by="me", reason=None)
        names = {execution: name for name, execution in ran.items()}
        assert {names.get(execution, "the program") for execution in erased.executions} == {
            "runs", "refused", "calls", "reads", "the program"
        }  # fmt: skip
        erased = await erase(bridge._database, files, "execution", traces["OTHER"], by="me", reason=None)
        # The program, the script that ran it, and the one that has read of it.
        assert len(erased.executions) == 3
        assert ran["reads another's"] in erased.executions
