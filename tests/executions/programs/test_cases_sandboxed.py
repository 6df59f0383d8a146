"""The cases that programs must get right, through a real container: driven there, decided and done by the host."""

import json
import os
import shutil
import signal
import sys
import uuid

import anyio
import pytest
from execution_fixtures import lines, printed
from generated_programs import run_here
from program_cases import CASES, HANG, llm, parallel, steps, tool

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.programs.replay import replayed_program
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.kernel.events import Resume
from mcp_bridge.ledger.storage.sealed_rows import seal
from mcp_bridge.models.scripted import ScriptedModel
from mcp_bridge.sandbox.orphans import sweep

# --- the table, in one script ---

# Any argument that a case gives; what a case leaves out isn't told.
TOOLS = """
import json
from pathlib import Path
from typing import Any

import anyio
import mcp_bridge

SCRIPTS = json.loads(Path(__file__).with_name("scripts.json").read_text())
now = {}

@mcp_bridge.tool
async def begin(case: str) -> None:
    now.update(script=SCRIPTS[case], calls={}, asked=[])

@mcp_bridge.tool
async def asked() -> list[Any]:
    return now["asked"]

def make(name):
    async def call(a: Any = "-", s: Any = "-", w: Any = "-", x: Any = "-", y: Any = "-", z: Any = "-") -> Any:
        given = {"a": a, "s": s, "w": w, "x": x, "y": y, "z": z}
        now["asked"].append([name, {key: value for key, value in given.items() if value != "-"}])
        number = now["calls"][name] = now["calls"].get(name, -1) + 1
        answers = now["script"][name]
        answer = answers[number % len(answers)]
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]
    return mcp_bridge.tool(name=name)(call)

for name in "abcdemnopqrst":
    make(name)
make("yes")
make("no")
"""

SCRIPT = """
import json
import mcp
from mcp import programs
from mcp.servers import local

for job in json.loads({jobs!r}):
    await local.begin(case=job["name"])
    try:
        trace = await programs.run(job["program"], job["context"])
        for payload in job["resumes"]:
            trace = await programs.resume(trace.trace_id, payload)
        told = {{
            "status": trace.status,
            "output": trace.output,
            "steps": [[row.id, row.status, row.output, row.retries] for row in trace.steps],
            "asked": await local.asked(),
            "error": trace.error,
        }}
    except mcp.MCPError as exc:
        told = {{"code": exc.code, "faults": exc.details.get("faults"), "asked": await local.asked()}}
    print(json.dumps(told))
"""


def answer(told):
    """Of the scripted model, what the case's script says."""
    if told == HANG:
        return {"text": "late", "delay": 3600.0}
    if "error" in told:
        return {"error": "model_failed", "message": told["error"]}
    return {"text": told["value"], "prompt_tokens": 1, "completion_tokens": 2}


def model_answers():
    """What the model is asked for, over all cases in their order."""
    found = []
    for case in CASES.values():
        script = case.job["script"].get("llm")
        if script:
            count = sum(name == "llm" for name, _ in run_here(case.job)[0]["asked"])
            found += [answer(script[number % len(script)]) for number in range(count)]
    return found


def governed(folder, state_dir, text, **tables):
    """The operator's word: tools of this text, and further tables."""
    (folder / "tools").mkdir(exist_ok=True)
    (folder / "tools" / f"tools_{uuid.uuid4().hex}.py").write_text(text)
    return load_governance({"tools": {"path": ["tools"], "entry_points": False}, **tables}, None, folder, state_dir)


@pytest.fixture(scope="module")
def told(module_sandboxes, tmp_path_factory):
    """What came of every case."""
    folder = tmp_path_factory.mktemp("cases")
    (folder / "tools").mkdir()
    scripts = {name: case.job["script"] for name, case in CASES.items()}
    (folder / "tools" / "scripts.json").write_text(json.dumps(scripts))
    model = {"provider": "scripted", "answers": model_answers()}
    governance = governed(folder, module_sandboxes.settings.state_dir, TOOLS, model=model)
    jobs = [
        {"name": name, "program": case.program, "context": case.context, "resumes": list(case.resumes)}
        for name, case in CASES.items()
    ]

    async def run():
        async with module_sandboxes.open(governance=governance, max_calls=100_000) as bridge:
            return lines(await bridge.run(SCRIPT.format(jobs=json.dumps(jobs)), timeout=100))

    return dict(zip(CASES, map(json.loads, anyio.run(run)), strict=True))


def plain(value):
    """As JSON: tuples are lists."""
    return json.loads(json.dumps(value))


def in_order(case, calls):
    """Calls of steps that run at once come in any order."""
    tools = [call for call in calls if call[0] != "llm"]
    at_once = any(step["type"] == "parallel" for step in case.program["steps"])
    return sorted(tools, key=json.dumps) if at_once else tools


# One worker's: what they share takes a dozen seconds.
@pytest.mark.xdist_group("cases")
@pytest.mark.parametrize("name", CASES)
def test_case_in_a_container(told, name):
    case, result = CASES[name], told[name]
    if case.refused:
        faults = [(fault["path"], fault["code"]) for fault in result["faults"]]
        assert (result["code"], faults, result["asked"]) == ("invalid_program", list(case.refused), [])
        return
    assert (result["status"], result["output"]) == (case.status, plain(case.output))
    for part in case.error:
        assert part in result["error"]
    ours = plain(run_here(case.job)[0])
    assert result["steps"] == ours["steps"]
    assert in_order(case, result["asked"]) == in_order(case, ours["asked"])


# --- what is no table's business ---

WORK = """
import os
import signal

import anyio
import anyio.lowlevel
import mcp_bridge

LOG = os.path.join(os.path.dirname(__file__), "log")
now = {"under_way": 0, "most": 0, "together": anyio.Event()}

def log(text):
    with open(LOG, "a") as file:
        file.write(text + "\\n")

@mcp_bridge.tool
def pay(order: int = 0) -> str:
    log("pay")
    return mcp_bridge.PENDING

@mcp_bridge.tool(idempotent=True)
def send(what: str = "") -> str:
    log(f"send {what}")
    if os.environ.get("CASE_DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"sent {what}"

@mcp_bridge.tool
async def pair(number: int) -> int:
    now["under_way"] += 1
    now["most"] = max(now["most"], now["under_way"])
    if now["under_way"] == 2:
        now["together"].set()
    await now["together"].wait()
    for _ in range(100):
        await anyio.lowlevel.checkpoint()
    now["under_way"] -= 1
    if not now["under_way"]:
        now["together"] = anyio.Event()
    return now["most"]

@mcp_bridge.tool
def customer() -> dict[str, str]:
    return {"card": "4111 1111 1111 1111", "note": f"the token is {os.environ['CASE_TOKEN']}"}

@mcp_bridge.tool
def danger(order: int = 0) -> str:
    log("danger")
    return "done"

@mcp_bridge.tool
def fail() -> str:
    raise RuntimeError("boom")
"""


@pytest.fixture
def work(sandboxes, tmp_path):
    """Governance over `WORK`, and what its tools have logged."""

    def make(**tables):
        return governed(tmp_path, sandboxes.settings.state_dir, WORK, **tables)

    make.done = lambda: log.read_text().splitlines() if (log := tmp_path / "tools" / "log").exists() else []
    return make


PAID = steps(tool("pay"), tool("send", args={"what": "$__webhook__.what"}), name="paid")


async def test_case_34_max_concurrency_holds_and_is_used(sandboxes, work):
    program = steps(
        parallel(*({**tool(f"c{n}"), "tool": "pair", "args": {"number": n}} for n in range(4)), max_concurrency=2)
    )
    async with sandboxes.open(governance=work()) as bridge:
        code = f"import json\nfrom mcp import programs\nprint(json.dumps((await programs.run({program!r})).output))"
        record = await bridge.run(code)
    assert set(json.loads(printed(record)).values()) == {2}


async def test_case_39_a_second_resume_is_an_error(sandboxes, work):
    async with sandboxes.open(governance=work()) as bridge:
        record = await bridge.run(
            f"""
import mcp
from mcp import programs
trace = await programs.run({PAID!r})
print(trace.status, [row["step"] for row in trace.waiting])
trace = await programs.resume(trace.trace_id, {{"what": "it"}})
print(trace.status, trace.output)
for wrong in (trace.trace_id, "0" * 32):
    try:
        await programs.resume(wrong, {{"what": "more"}})
    except mcp.MCPError as exc:
        print(exc.code, wrong in str(exc))
"""
        )
    assert lines(record) == ["suspended ['pay']", "success sent it", "not_suspended True", "unknown_trace True"]
    assert work.done() == ["pay", "send it"]


async def test_case_40_a_suspended_program_stays_what_it_was(sandboxes, work):
    other = steps(tool("pay"), tool("danger"))
    async with sandboxes.open(governance=work()) as bridge:
        record = await bridge.run(
            f"""
from mcp import programs
await programs.save("mine", {PAID!r})
trace = await programs.run("mine")
await programs.save("mine", {other!r})
print((await programs.resume(trace.trace_id, {{"what": "it"}})).output)
print((await programs.run("mine")).trace_id)
"""
        )
        output, trace_id = lines(record)
        assert (output, work.done()) == ("sent it", ["pay", "send it", "pay"])
        # A row whose program is another than its state's: somebody with the key has changed the database.
        changed = seal(trace_id, "bundle", {"key": None, "bundle": {"program": PAID, "uses": []}})
        await bridge.programs.store._database.write(
            "UPDATE executions SET bundle = ? WHERE id = ?",
            (changed, trace_id),
            ("executions", "id = ?", (trace_id,)),
        )
        with pytest.raises(BridgeError, match="the state belongs to the program") as caught:
            await bridge.resume_execution(trace_id, Resume({"what": "it"}))
        assert caught.value.code == "bad_state"
        inside = await bridge.run(
            f"""
import mcp
from mcp import programs
try:
    await programs.resume({trace_id!r}, {{"what": "it"}})
except mcp.MCPError as exc:
    print(exc.code)
print((await mcp.traces.get({trace_id!r})).status)
"""
        )
        assert lines(inside) == ["bad_state", "suspended"]
    assert work.done() == ["pay", "send it", "pay"]


HOST = """
import sys
from pathlib import Path

import anyio

from mcp_bridge.governance.governance import load_governance
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.settings import Settings

folder, state_dir, runtime, trace_id = sys.argv[1:]

async def main():
    tables = {"tools": {"path": ["tools"], "entry_points": False}}
    governance = load_governance(tables, None, Path(folder), Path(state_dir))
    async with open_bridge(Settings(state_dir=Path(state_dir), runtime=runtime), (), governance) as bridge:
        code = f"from mcp import programs; print(await programs.resume({trace_id!r}, {{'what': 'it'}}))"
        print(await bridge.run(code))

anyio.run(main)
"""


async def test_case_41_a_host_killed_in_mid_resume_loses_nothing(sandboxes, work, tmp_path):
    # A state directory of its own, in which the killed host leaves what it can't tidy up; the probe's result is known.
    state_dir, runtime = tmp_path / "state", sandboxes.settings.runtime
    unknown = shutil.ignore_patterns("run", "files", "*.sqlite*", "*.key", "*.pub", "ledger.head")
    shutil.copytree(sandboxes.settings.state_dir, state_dir, symlinks=True, ignore=unknown)
    async with sandboxes.open(governance=work(), state_dir=state_dir) as bridge:
        trace_id = printed(
            await bridge.run(f"from mcp import programs\nprint((await programs.run({PAID!r})).trace_id)")
        ).strip()
        host = await anyio.run_process(
            [sys.executable, "-c", HOST, str(tmp_path), str(state_dir), runtime, trace_id],
            env={**os.environ, "CASE_DIES": "1"},
            check=False,
        )
        assert host.returncode == -signal.SIGKILL, host.stderr.decode()
        assert work.done() == ["pay", "send it"]
        record = await bridge.run(
            f"""
import mcp
from mcp import programs
print((await mcp.traces.get({trace_id!r})).status)
trace = await programs.resume({trace_id!r})
print(trace.status, trace.output, [(row.id, row.status) for row in trace.steps])
"""
        )
        assert lines(record) == ["interrupted", "success sent it [('pay', 'pending'), ('send', 'success')]"]
        # It is marked as safe to repeat, and nobody knows whether it had happened.
        assert work.done() == ["pay", "send it", "send it"]
        engine = sandboxes.prepared.engine
        await sweep(engine)


async def test_case_42_concurrent_resumes_run_once(sandboxes, work):
    resume = """
import asyncio
import mcp
from mcp import programs

async def once():
    try:
        return (await programs.resume({!r}, {{"what": "it"}})).status
    except mcp.MCPError as exc:
        return exc.code

print(*await asyncio.gather(*(once() for _ in range(5))))
"""
    async with sandboxes.open(governance=work()) as bridge:
        begun = await bridge.run(f"from mcp import programs\nprint((await programs.run({PAID!r})).trace_id)")
        code = resume.format(printed(begun).strip())
        found = []

        async def one():
            found.extend(printed(await bridge.run(code)).split())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one)
            tasks.start_soon(one)
    assert sorted(found) == ["not_suspended"] * 9 + ["success"]
    assert work.done() == ["pay", "send it"]


async def roots(bridge, *contexts):
    """The hashes of the transitions of a program, run in one script with each of the contexts."""
    program = steps(
        {"id": "if", "type": "condition", "condition": "$n < 10", "then": "a", "otherwise": "b"},
        {**tool("a"), "tool": "send", "args": {"what": "$what"}},
        {**tool("b"), "tool": "send", "args": {"what": "$what"}},
    )
    runs = f"for context in {contexts!r}: print((await programs.run({program!r}, context)).trace_id)"
    found = []
    for trace_id in lines(await bridge.run(f"from mcp import programs\n{runs}")):
        stored = await bridge.lifecycle.stored(trace_id, "local")
        replayed = replayed_program(stored, await bridge.programs.recorder.read(trace_id))
        assert replayed.agrees
        found.append(replayed.transitions)
    return found


async def test_case_43_the_same_run_has_the_same_root(sandboxes, work):
    governance = work()
    async with sandboxes.open(governance=governance) as bridge:
        first, again = await roots(bridge, {"n": 5, "what": "it"}, {"n": 5, "what": "it"})
    async with sandboxes.open(governance=governance) as bridge:
        assert {first, again} == {*(await roots(bridge, {"n": 5, "what": "it"}))}


async def test_case_44_another_branch_or_output_has_another_root(sandboxes, work):
    async with sandboxes.open(governance=work()) as bridge:
        contexts = [{"n": 5, "what": "it"}, {"n": 50, "what": "it"}, {"n": 5, "what": "that"}]
        assert len(set(await roots(bridge, *contexts))) == len(contexts)


async def test_case_47_what_a_model_is_asked_is_projected_and_a_deleted_program_leaves_its_record(
    sandboxes, work, monkeypatch
):
    monkeypatch.setenv("CASE_TOKEN", "s3cret-0123456789")
    asked = []
    complete = ScriptedModel.complete

    async def listen(self, messages, **options):
        asked.extend(message.text for message in messages)
        return await complete(self, messages, **options)

    monkeypatch.setattr(ScriptedModel, "complete", listen)
    program = steps(
        {**tool("a"), "tool": "customer"},
        llm(prompt="Charge $a.card? $a.note; $note", system="You see $a."),
    )
    governance = work(
        secrets={"token": {"env": "CASE_TOKEN", "tools": []}},
        model={"provider": "scripted", "default_answer": "yes"},
    )
    async with sandboxes.open(governance=governance) as bridge:
        record = await bridge.run(
            f"""
import mcp
from mcp import programs
await programs.save("ask", {program!r})
trace = await programs.run("ask", {{"note": "or 4111-1111-1111-1111"}})
print(trace.status, await programs.delete("ask"), await programs.delete("ask"))
print(len((await mcp.traces.get(trace.trace_id)).steps), trace.trace_id)
"""
        )
        first, second = lines(record)
        assert first == "success True False"
        count, trace_id = second.split()
        assert count == "2"
        kinds = [row.entry.kind for row in await bridge.programs.recorder.read(trace_id)]
        assert kinds[0] == "start"
        assert kinds[-1] == "end"
        assert kinds.count("intent") == kinds.count("outcome") == 2
    assert len(asked) == 2
    for text in asked:
        assert "4111" not in text
        assert "s3cret" not in text
        assert "vault://ref/" in text
        assert "vault://secret/token" in text


DENIED = """
import mcp
from mcp import programs, runtime
from mcp.servers import local
from mcp.sync.servers import local as blocking

async def called(call):
    try:
        answer = call()
        await answer if hasattr(answer, "__await__") else answer
    except mcp.MCPError as exc:
        return exc.code
    return "done"

print(*[
    await called(lambda: local.danger(order=1)),
    await called(lambda: local.danger.raw(order=1)),
    await called(lambda: blocking.danger(order=1)),
    await called(lambda: runtime.call_tool("local", "danger", {"order": 1})),
])

danger = {"id": "d", "type": "tool", "tool": "danger"}
inner = {"steps": [danger]}
PROGRAMS = {
    "step": [danger],
    "full name": [{**danger, "tool": "local.danger"}],
    "retry": [{**danger, "on_error": "retry"}],
    "branch": [{"id": "if", "type": "condition", "condition": "True", "then": "d"}, danger],
    "parallel": [{"id": "p", "type": "parallel", "parallel_steps": [danger]}],
    "map": [{"id": "m", "type": "map", "over": [1, 2], "step": {**danger, "args": {"order": "$item"}}}],
    "inner program": [{"id": "i", "type": "program", "program": inner}],
    "saved program": [{"id": "i", "type": "program", "program": "mine"}],
    "operator's program": [{"id": "i", "type": "program", "program": "ours"}],
    "compensation": [
        {"id": "s", "type": "tool", "tool": "send", "compensate": {"tool": "danger"}},
        {"id": "f", "type": "tool", "tool": "fail"},
    ],
    "resume": [{"id": "pay", "type": "tool", "tool": "pay"}, danger],
}
await programs.save("mine", inner)
for name, steps in PROGRAMS.items():
    trace = await programs.run({"steps": steps})
    if trace.status == "suspended":
        trace = await programs.resume(trace.trace_id, 1)
    print(name, trace.status, "denied" in {row.code for row in trace.steps}, sep=": ")
for name in ("mine", "ours"):
    trace = await programs.run(name)
    print(name, trace.status, trace.code, sep=": ")
try:
    await local.dangr()
except Exception as exc:
    print(type(exc).__name__)
"""


async def test_case_52_a_denied_tool_is_denied_on_every_path(sandboxes, work, tmp_path):
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "ours.json").write_text(json.dumps(steps(tool("danger"))))
    governance = work(
        policy={"rules": [{"tools": ["local.danger"], "effect": "deny", "name": "no danger"}]},
        programs={"path": ["programs"]},
    )
    async with sandboxes.open(governance=governance) as bridge:
        direct, *through, last = lines(await bridge.run(DENIED))
        assert direct.split() == ["denied"] * 4
        assert [line.split(": ")[1:] for line in through[:-2]] == [["failed", "True"]] * 11
        assert through[-2:] == ["mine: failed: denied", "ours: failed: denied"]
        # What isn't there is told apart from what is denied.
        assert last == "AttributeError"
        host = await bridge.run_program(steps(tool("danger")))
        assert (host["status"], host["code"]) == ("failed", "denied")
    assert "danger" not in work.done()
