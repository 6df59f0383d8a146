"""Programs that scripts drive, and whose steps are under way when their time has passed."""

import json

import pytest
from execution_fixtures import printed
from hostile_guest import open_desk, tool
from script_hosts import either, make_either, make_hosts, make_javascript_hosts, source  # noqa: F401

from mcp_bridge.executions.replay import replayed

pytestmark = pytest.mark.usefixtures("whole_ledgers")

HANGS = {"steps": [tool("look", "first"), tool("hang", "slow")]}
WAITS = {"steps": [{"id": "pause", "type": "wait", "seconds": 25}]}
DEADLINES = {
    "calls of a parallel step": {"type": "parallel", "parallel_steps": [tool("hang", "slow"), tool("look", "quick")]},
    "calls of a map": {"type": "map", "over": ["a", "b"], "step": {"type": "tool", "tool": "hang", "args": {"what": "$item"}}},
    "a call of a program": {"type": "program", "program": HANGS},
    "calls of programs in a map": {"type": "map", "over": [1, 2], "step": {"type": "program", "program": HANGS}},
    "a wait in a program": {"type": "program", "program": WAITS},
    "a call in a program in a program": {
        "type": "program",
        "program": {"steps": [{"id": "sub", "type": "program", "program": HANGS}]},
    },
    "a wait to try again": {
        "type": "map",
        "over": ["a"],
        "step": {
            "type": "tool",
            "tool": "fail",
            "args": {"what": "$item"},
            "on_error": "retry",
            "retry": {"max_attempts": 3, "delay_seconds": 25},
        },
    },
}  # fmt: skip


def late(step, on_error):
    """A program whose one step takes too long."""
    return {"steps": [{"id": "late", "timeout_seconds": 0.5, "on_error": on_error, **step}, tool("look", "last")]}


SCRIPTS = {
    "python": """
import asyncio, json
from mcp import programs, sync
jobs = json.loads({jobs!r})
for trace in await asyncio.gather(*map(programs.run, jobs)):
    steps = [[step.id, step.status, step.code] for step in trace.steps]
    print(json.dumps([trace.trace_id, trace.status, trace.code, steps]))
print(sync.programs.run(jobs[0]).status)
""",
    "javascript": """
import {{ programs }} from "mcp";
const jobs = JSON.parse({jobs!r});
for (const trace of await Promise.all(jobs.map((job) => programs.run(job)))) {{
  const steps = trace.steps.map((step) => [step.id, step.status, step.code]);
  console.log(JSON.stringify([trace.trace_id, trace.status, trace.code, steps]));
}}
console.log((await programs.run(jobs[0])).status);
""",
}


@pytest.mark.parametrize("language", SCRIPTS)
async def test_a_script_is_told_what_a_program_does_whose_time_passes_while_a_step_is_under_way(
    both, tmp_path, language
):
    jobs = [late(step, on_error) for step in DEADLINES.values() for on_error in ("skip", "fail")]
    async with open_desk(both, tmp_path, languages=["python", "javascript"]) as desk:
        record = await desk.bridge.run(SCRIPTS[language].format(jobs=json.dumps(jobs)), language=language)
        *told, again = printed(record).splitlines()
        assert again == "success"
        store, recorder = desk.bridge.programs.store, desk.bridge.programs.recorder
        left = {row.id: row for row in await store.executions(None, 100) if row.kind == "program"}
        assert len(left) == len(jobs) + 1
        for job, line in zip(jobs, told, strict=True):
            execution, status, code, rows = json.loads(line)
            fails = job["steps"][0]["on_error"] == "fail"
            end = ["late", "failed", "timeout"] if fails else ["last", "success", None]
            assert (status, code, rows[-1]) == (("failed", "timeout") if fails else ("success", None)) + (end,), job
            # The host's machine has come to the same.
            known = left[execution].record
            assert (known["status"], known["code"]) == (status, code)
            assert rows == [[row["id"], row["status"], row.get("code")] for row in known["steps"]]
        for row in left.values():
            assert row.status in {"success", "failed"}
            assert await desk.violations(row.id) == []
            assert (await replayed(store, recorder, row)).difference is None


KEPT = {
    "python": """
from mcp import programs
trace = await programs.run({program})
print(trace.status, [step.status for step in trace.steps], await local.careful(text="a"))
""",
    "javascript": """
import {{ programs }} from "mcp";
const trace = await programs.run({program});
console.log(trace.status, JSON.stringify(trace.steps.map((step) => step.status)), await local.careful({{ text: "a" }}));
""",
}


async def test_a_script_that_goes_on_is_given_again_what_a_program_did_whose_time_had_passed(either):
    program = {
        "steps": [
            {"id": "p", "type": "program", "program": WAITS, "timeout_seconds": 0.5, "on_error": "skip"},
            {"id": "z", "type": "tool", "tool": "again", "args": {"text": "z"}},
        ]
    }
    code = KEPT[either.language].format(program=json.dumps(program))
    waiting = either.run(code)
    assert waiting["status"] == "suspended", waiting
    either.decide(waiting)
    record = either.run(code)
    assert record["status"] == "success"
    assert record["stdout"].replace("'", '"').replace(", ", ",") == 'success ["failed","skipped","success"] careful:a\n'
    assert either.done == ["again z", "careful a"]
    assert either.replay(record["execution"])["agrees"]
