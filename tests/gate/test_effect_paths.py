"""Every path to an effect, and a tool at its end that must not be reached.

`CALL_SITES` says where in the code an effect can happen: nowhere but in the gate. `PATHS` has what leads there: each is
taken with a tool that the policy denies, and nothing comes through.
"""

import ast
import asyncio
import json
import sys
import uuid
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from execution_fixtures import lines, printed

from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.kernel.events import Resume
from mcp_bridge.models.scripted import ScriptedModel

PACKAGE = Path(__file__).resolve().parents[2] / "mcp_bridge"

# --- where effects happen ---

CALL_SITES = {
    "tool.call": {
        "gate/gate.py": {"Gate.call"},  # the one place where a bound tool is called
        "registered/registry.py": {"BoundFunction.called"},
    },
    "call_tool": {"downstream/client/server_calls.py": {"ListedTool.call"}},
    "called": {"registered/registry.py": {"BoundFunction.call", "Registry.call"}},
    "registry.call": {},
    "complete": {
        "gate/model_steps.py": {"ModelSteps.complete", "ModelSteps.answer"},
        "models/planner.py": {"plan"},  # with the `ModelSteps` that the gate has given it
    },
    "make_model": {"gate/model_steps.py": {"ModelSteps.__init__"}},
    "ModelSteps": {"gate/gate.py": {"Gate.model"}},
    "reveal": {"policy/redaction/projection.py": {"Projector._value"}},
    "plaintexts": {
        "gate/model_steps.py": {"ModelSteps._key"},
        "governance/server_credentials.py": {"_reveal"},  # for a remote server, whose entry names them
        "policy/secrets/vault.py": {"Secrets.reveal", "Secrets.hidden"},
    },
    "hidden": {  # those plaintexts that are masked
        "gate/execution_values.py": {"ExecutionValues.described"},  # whether there are any
        "policy/redaction/projection.py": {"Projector.__init__"},
    },
}
"""What makes an effect happen, or reads what it needs, and the functions that may: a new one belongs behind the gate."""


class Sites(ast.NodeVisitor):
    """Where in a module each of `CALL_SITES` stands."""

    def __init__(self):
        self.within = []
        self.found = {name: set() for name in CALL_SITES}

    def _scope(self, node):
        self.within.append(node.name)
        self.generic_visit(node)
        self.within.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _scope  # noqa: N815  (as `ast` calls them)

    def visit_Call(self, node):
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        holder = getattr(function, "value", None)
        holder = getattr(holder, "attr", getattr(holder, "id", ""))
        for wanted in {name, f"{holder.lstrip('_')}.{name}"} & CALL_SITES.keys():
            self.found[wanted].add(".".join(self.within))
        self.generic_visit(node)

    def visit_Attribute(self, node):
        # A function that is passed on is called elsewhere.
        if node.attr in CALL_SITES and node.attr not in {"complete"}:
            self.found[node.attr].add(".".join(self.within))
        self.generic_visit(node)


def test_effects_happen_nowhere_but_behind_the_gate():
    found = {name: {} for name in CALL_SITES}
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE).as_posix()
        if place.startswith("guest/"):
            continue  # in the container: what it asks for comes as a request
        sites = Sites()
        sites.visit(ast.parse(file.read_text()))
        for name, functions in sites.found.items():
            if functions:
                found[name][place] = functions
    assert found == CALL_SITES


# --- a server and a registered tool that write down what reaches them ---

SERVER = """
import json, pathlib, sys
till = pathlib.Path(sys.argv[1])
OBJECT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params") or {}
    if "id" not in message: continue
    body = {"error": {"code": -32601, "message": "Method not found"}}
    if method == "initialize":
        info = {"name": "shop", "version": "1"}
        body = {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}}
    elif method == "tools/list":
        tools = [{"name": name, "description": name, "inputSchema": OBJECT} for name in ("remove", "see", "remove-it")]
        body = {"result": {"tools": tools}}
    elif method == "tools/call":
        with till.open("a") as file: file.write(f"shop.{params['name']}\\n")
        body = {"result": {"content": [{"type": "text", "text": "done"}]}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)
"""

TOOLS = """
import pathlib
import mcp_bridge
TILL = pathlib.Path({till!r})

def note(name):
    with TILL.open("a") as file: file.write(f"local.{{name}}\\n")
    return "done"

@mcp_bridge.tool
def remove(text: str) -> str:
    return note("remove")

@mcp_bridge.tool
def see(text: str) -> str:
    return note("see")

@mcp_bridge.tool
def fail(text: str) -> str:
    raise ValueError(text)

@mcp_bridge.tool
def later(text: str):
    return mcp_bridge.PENDING
"""

TARGETS = {"a server's tool": "shop.remove", "a registered tool": "local.remove", "its plain name": "remove"}


def step(name, tool, **more):
    return {"id": name, "type": "tool", "tool": tool, "args": {"text": "x"}, **more}


def programs(tool):
    """Programs that come to a call of the tool in every way that a program has; `hit` is the step that makes it."""
    hit = step("hit", tool)
    sub = {"id": "sub", "type": "program"}
    wait = {"id": "wait", "type": "wait", "event": "go"}
    return {
        "step": [hit],
        "branch": [{"id": "c", "type": "condition", "condition": "1 == 1", "then": "hit"}, hit],
        "otherwise": [{"id": "c", "type": "condition", "condition": "1 == 2", "then": "c", "otherwise": "hit"}, hit],
        "next_step": [step("first", "see", next_step="hit"), step("not", "see"), hit],
        "parallel": [{"id": "fan", "type": "parallel", "parallel_steps": [step("a", "see"), hit]}],
        "map": [{"id": "each", "type": "map", "over": ["x"], "step": {**hit, "args": {"text": "$item"}}}],
        "map of programs": [{"id": "m", "type": "map", "over": [1], "step": {"type": "program", "program": {"steps": [hit]}}}],
        "inline program": [{**sub, "program": {"steps": [hit]}}],
        "nested programs": [{**sub, "program": {"steps": [{**sub, "program": {"steps": [{**sub, "program": {"steps": [hit]}}]}}]}}],
        "saved program": [{**sub, "program": "saved"}],
        "operator's program": [{**sub, "program": "operators"}],
        "compensation": [step("first", "see", compensate={"tool": tool, "args": {"text": "x"}}), step("last", "fail")],
        "retry": [{**hit, "retry": {"schedule": [0, 0]}}],
        "skipped": [{**hit, "on_error": "skip"}],
        "timed": [{**hit, "timeout_seconds": 5}],
        "resumed": [wait, hit],
        "resumed tool": [step("wait", "later"), hit],
        "approval step": [{"id": "wait", "type": "approval", "message": "sure?"}, hit],
    }  # fmt: skip


SCRIPTED = {
    "a proxy": "await {server}.remove('x')",
    "a proxy by keyword": "await {server}.remove(text='x')",
    "a proxy's item": "await {server}['remove'](text='x')",
    "a proxy's whole result": "await {server}.remove.raw(text='x')",
    "a blocking proxy": "sync.servers.{server}.remove('x')",
    "a blocking proxy's whole result": "sync.servers.{server}.remove.raw(text='x')",
    "call_tool": "await runtime.call_tool({server!r}, 'remove', {{'text': 'x'}})",
    "call_tool_sync": "runtime.call_tool_sync({server!r}, 'remove', text='x')",
    "the earlier bridge's alias": "await mcp_{server}.remove(text='x')",
    "the earlier bridge's table": "await mcp_servers[{server!r}].remove(text='x')",
    "a saved tool": "await saved_tool(text='x')",
    "a task": "await asyncio.create_task(ran({server}.remove('x')))",
    "a thread": "await asyncio.to_thread(sync.servers.{server}.remove, 'x')",
    "a frame": "Calls(CHANNEL).call_blocking(ToolCall({server!r}, 'remove', {{'text': 'x'}}))",
    "a frame for the whole result": "Calls(CHANNEL).call_blocking(ToolCall({server!r}, 'remove', {{'text': 'x'}}, True))",
}
"""A script's own paths to a tool."""


class Person:
    """Decides as told, and remembers what was asked."""

    def __init__(self, *, answer):
        self.answer, self.asked = answer, []

    async def ask(self, question):
        self.asked.append(question)
        return self.answer


@asynccontextmanager
async def shop(sandboxes, folder, policy, *, model=None, target="remove"):
    """A bridge over the server and the registered tools; `bridge.reached()` has every call that came through."""
    till = folder / "till"
    (folder / "server.py").write_text(SERVER)
    for name in ("tools", "programs"):
        (folder / name).mkdir()
    (folder / "tools" / f"shop_{uuid.uuid4().hex}.py").write_text(TOOLS.format(till=str(till)))
    (folder / "programs" / "operators.json").write_text(json.dumps({"steps": [step("hit", target)]}))
    tables = {
        "tools": {"path": ["tools"], "entry_points": False},
        "programs": {"path": ["programs"]},
        "policy": policy,
    }
    if model is not None:
        tables["model"] = model
    governance = load_governance(tables, None, folder, folder / "state")
    spec = ServerSpec(name="shop", command=sys.executable, args=(str(folder / "server.py"), str(till)))
    async with sandboxes.open(spec, governance=governance, state_dir=folder / "state") as bridge:
        bridge.reached = lambda: till.read_text().split() if till.exists() else []
        yield bridge


HEAD = """
import asyncio, gc, json
from mcp import programs, runtime, sync, MCPError
from mcp_bridge.guest.channel import Channel
from mcp_bridge.guest.proxies import Calls
from mcp_bridge.wire.messages import ToolCall
CHANNEL = next(each for each in gc.get_objects() if isinstance(each, Channel))
async def ran(pending): return await pending
found = {}
"""


def attempts(paths):
    return "".join(
        f"try:\n    found[{name!r}] = ['reached', str({code})]\nexcept MCPError as exc:\n    found[{name!r}] = [exc.code, str(exc), exc.details]\n"
        for name, code in paths.items()
    )


async def by_script(bridge, server, **options):
    """What each of a script's paths gave."""
    saving = f"from mcp.servers import {server}\nasync def saved_tool(text):\n    from mcp.servers import {server}\n    return await {server}.remove(text)\nawait runtime.save_tool(saved_tool)\n"
    await bridge.run(f"from mcp import runtime\n{saving}")
    paths = {name: code.format(server=server) for name, code in SCRIPTED.items()}
    code = f"{HEAD}from mcp.servers import {server}\nfrom mcp.tools import saved_tool\n{attempts(paths)}print(json.dumps(found))"
    return json.loads(printed(await bridge.run(code, **options)))


async def every_path_waits(bridge, server):
    """By each of a script's paths, alone, the call waits for a person."""
    head = f"{HEAD}from mcp.servers import {server}\n"
    saving = f"async def saved_tool(text):\n    from mcp.servers import {server}\n    return await {server}.remove(text)\nawait runtime.save_tool(saved_tool)\n"
    await bridge.run(head + saving)

    async def waits(path):
        record = await bridge.run(f"{head}from mcp.tools import saved_tool\n{path.format(server=server)}")
        assert (record.status, record.error["code"]) == ("suspended", "approval_needed"), (path, record)
        assert [row["tool"] for row in record.waiting] == [f"{server}.remove"]

    await asyncio.gather(*map(waits, SCRIPTED.values()))


def told_of(record, name):
    """The row of the step that makes the call."""
    called = "first.compensate" if name == "compensation" else "each[0]" if name == "map" else "hit"
    return next(row for row in record["steps"] if row["id"].endswith(called))


RULES = {
    "rules": [
        {"tools": ["*.see"], "effect": "allow", "name": "secret rule of seeing"},
        {"tools": ["*.remove"], "effect": "deny", "name": "no removals", "reason": "Ask Anna."},
        {"tools": ["*.never"], "effect": "deny", "when": "$amount > 12345"},
    ]
}


def check_denial(code, message, details, tool):
    assert code == "denied"
    assert message == f'The operator\'s policy denies {tool}, by rule 2 ("no removals"). Ask Anna.'
    assert set(details) <= {"tool", "rule"}
    for hidden in ("secret rule", "12345", "never", "allow"):
        assert hidden not in f"{message} {details}"


@pytest.mark.parametrize("server", ["shop", "local"])
async def test_a_denied_tool_is_reached_by_no_path_of_a_script(sandboxes, tmp_path, server):
    async with shop(sandboxes, tmp_path, RULES) as bridge:
        found = await by_script(bridge, server)
        assert found.keys() == SCRIPTED.keys()
        for name, (code, message, details) in found.items():
            assert code == "denied", name
            check_denial(code, message, details, f"{server}.remove")
        assert bridge.reached() == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("way", ["from inside", "without a sandbox"])
async def test_a_denied_tool_is_reached_by_no_path_of_a_program(sandboxes, tmp_path, target, way):
    tool = TARGETS[target]
    named = tool if "." in tool else f"local.{tool}"
    table = programs(tool)
    async with shop(sandboxes, tmp_path, RULES, target=tool) as bridge:
        await bridge.programs.library.save("saved", {"steps": [step("hit", tool)]}, "local")
        if way == "from inside":
            code = f"""
from mcp import programs, traces
import json
found = {{}}
for name, steps in {table!r}.items():
    trace = await programs.run({{"steps": steps}})
    if trace.status == "suspended" and name != "approval step":
        trace = await programs.resume(trace.trace_id, "go")
    found[name] = trace.trace_id
found["by name"] = (await programs.run("operators")).trace_id
print(json.dumps(found))
"""
            ids = json.loads(printed(await bridge.run(code)))
            records = {name: (await bridge.lifecycle.stored(trace, "local")).record for name, trace in ids.items()}
        else:
            records = {}
            for name, steps in table.items():
                records[name] = await bridge.run_program({"steps": steps})
                if records[name]["status"] == "suspended" and name != "approval step":
                    records[name] = await bridge.resume_execution(records[name]["trace_id"], Resume("go"))
            records["by name"] = await bridge.run_program("operators")
        suspended = records["approval step"]
        (asked,) = await bridge.programs.store.approvals(suspended["trace_id"])
        assert await bridge.programs.store.decide(asked, {"approved": True, "by": "anna"})
        records["approval step"] = await bridge.resume_execution(suspended["trace_id"])
        for name, record in records.items():
            row = told_of(record, name)
            assert row["status"] in {"failed", "skipped"}, name
            check_denial(row["code"], row["error"], {}, named)
            assert row.get("retries", 0) == 0, name
            entries = await bridge.programs.recorder.read(record["trace_id"])
            denials = [each.entry for each in entries if each.entry.kind == "denial"]
            # A compensation is tried as often as any: each time it is denied.
            assert {json.dumps(each.payload) for each in denials} == {
                json.dumps({"tool": named, "by": 'rule 2 ("no removals")'})
            }, name
        assert set(bridge.reached()) <= {"local.see"}


OTHER_POLICIES = {
    "for another program": ({"rules": [{"tools": ["*.remove"], "effect": "program", "programs": ["0" * 64]}]}, "denied"),
    "locked": ({"preset": "locked", "rules": [{"tools": ["*.see", "local.later", "local.fail"], "effect": "allow"}]}, "denied"),
    "read-only": ({"preset": "read-only", "rules": [{"tools": ["*.see", "local.later", "local.fail"], "effect": "allow"}]}, "denied"),
    "used up": ({"limits": {"calls": 0}}, "budget_calls"),
    "no bytes left": ({"limits": {"bytes": 3}}, "budget_bytes"),
    "used up by the principal": ({"limits": {"principal": {"calls": 0}}}, "budget_calls"),
    "for a person": ({"rules": [{"tools": ["*.remove"], "effect": "approve"}]}, "approval_needed"),
}  # fmt: skip


@pytest.mark.parametrize("policy", OTHER_POLICIES)
async def test_no_path_leads_past_any_other_rule(sandboxes, tmp_path, policy):
    rules, code = OTHER_POLICIES[policy]
    async with shop(sandboxes, tmp_path, rules, target="shop.remove") as bridge:
        for server in ("shop", "local"):
            if code == "approval_needed":
                await every_path_waits(bridge, server)
                continue
            assert {row[0] for row in (await by_script(bridge, server)).values()} == {code}
        await bridge.programs.library.save("saved", {"steps": [step("hit", "shop.remove")]}, "local")
        for name, steps in programs("shop.remove").items():
            record = await bridge.run_program({"steps": steps})
            if record["status"] == "suspended" and any(row["kind"] in {"event", "tool"} for row in record["waiting"]):
                record = await bridge.resume_execution(record["trace_id"], Resume("go"))
            if code == "approval_needed" and name != "approval step":
                assert record["status"] == "suspended", name
                assert [row["question"]["tool"] for row in record["waiting"]] == ["shop.remove"], name
            elif name != "skipped":
                assert record["status"] != "success", name
        assert {name for name in bridge.reached() if name.endswith("remove")} == set()


@pytest.mark.parametrize("limits", [{"calls": 3}, {"principal": {"calls": 3}}])
async def test_what_steps_did_is_undone_beyond_a_limit_by_one_call_each(sandboxes, tmp_path, limits):
    undone = {"compensate": {"tool": "remove", "args": {"text": "x"}}}
    failing = {"compensate": {"tool": "fail", "args": {"text": "x"}}}
    steps = [step("a", "see", **undone), step("b", "see", **failing), step("c", "see", **undone), step("d", "see")]
    async with shop(sandboxes, tmp_path, {"limits": limits}, target="remove") as bridge:
        record = await bridge.run_program({"steps": steps})
        assert [(row["id"], row["status"], row.get("code")) for row in record["steps"]] == [
            *[(name, "success", None) for name in "abc"],
            ("d", "failed", "budget_calls"),
            ("c.compensate", "success", None),
            ("b.compensate", "failed", "budget_calls"),
            ("a.compensate", "success", None),
        ]
        reached = [name.removeprefix("local.") for name in bridge.reached()]
        assert (reached.count("see"), reached.count("remove")) == (3, 2)
        if "principal" in limits:
            record = await bridge.run_program({"steps": [step("a", "see", **undone)]})
            assert record["steps"][0]["code"] == "budget_calls", "what has been undone is counted"


async def test_what_a_person_denies_does_not_happen_and_what_one_approves_happens_once(sandboxes, tmp_path):
    rules = {"rules": [{"tools": ["*.remove"], "effect": "approve"}]}
    async with shop(sandboxes, tmp_path, rules, target="shop.remove") as bridge:
        await bridge.programs.library.save("saved", {"steps": [step("hit", "shop.remove")]}, "local")
        person = Person(answer=False)
        found = await by_script(bridge, "shop", asker=person)
        assert {row[0] for row in found.values()} == {"denied"}
        assert len(person.asked) == len(SCRIPTED)
        for name, steps in programs("shop.remove").items():
            if name in {"resumed", "resumed tool", "approval step"}:
                continue
            record = await bridge.run_program({"steps": steps}, asker=person)
            assert record["status"] == ("success" if name == "skipped" else "failed"), name
        assert "shop.remove" not in bridge.reached()
        record = await bridge.run_program({"steps": [step("hit", "shop.remove")]}, key="once")
        (asked,) = await bridge.programs.store.approvals(record["trace_id"])
        assert bridge.reached().count("shop.remove") == 0
        assert await bridge.programs.store.decide(asked, {"approved": True, "by": "anna"})
        assert (await bridge.resume_execution(record["trace_id"]))["status"] == "success"
        again = await bridge.run_program({"steps": [step("hit", "shop.remove")]}, key="once")
        assert again["trace_id"] == record["trace_id"]
        assert bridge.reached().count("shop.remove") == 1


NARROWED = """
from mcp import programs, runtime, sync, MCPError
found = []
for tool in ("shop.remove", "SHOP.remove", "remove", "local.remove"):
    for steps in (
        [{"id": "hit", "type": "tool", "tool": tool, "args": {"text": "x"}}],
        [{"id": "see", "type": "tool", "tool": SEE, "args": {"text": "x"},
          "compensate": {"tool": tool, "args": {"text": "x"}}},
         {"id": "bad", "type": "tool", "tool": "no.such"}],
        [{"id": "m", "type": "map", "over": ["x"], "step": {"type": "tool", "tool": tool, "args": {"text": "$item"}}}],
        [{"id": "p", "type": "program", "program": "operators"}],
    ):
        trace = await programs.run({"steps": steps})
        found += [row.code for row in trace.steps if row.code]
    server, _, name = tool.rpartition(".")
    try:
        await runtime.call_tool(server or "local", name, text="x")
    except MCPError as exc:
        found.append(exc.code)
print(*sorted(set(found)))
"""


@pytest.mark.parametrize(
    ("servers", "see", "reachable"), [(["local"], "see", "local."), (["shop"], "shop.see", "shop.")]
)
async def test_a_program_reaches_no_server_that_its_script_may_not_use(sandboxes, tmp_path, servers, see, reachable):
    other = "shop.remove" if servers == ["local"] else "remove"
    async with shop(sandboxes, tmp_path, {}, target=other) as bridge:
        record = await bridge.run(f"SEE = {see!r}\n{NARROWED}", servers=servers)
        assert "unknown_server" in lines(record)[0]
        reached = bridge.reached()
        assert reached
        assert all(name.startswith(reachable) for name in reached), reached


async def test_a_denial_is_no_not_found(sandboxes, tmp_path):
    async with shop(sandboxes, tmp_path, RULES) as bridge:
        found = {}
        for tool in ("shop.remove", "shop.remov", "nowhere.remove", "local.remove", "local.remov"):
            record = await bridge.run_program({"steps": [step("hit", tool)]})
            found[tool] = record["steps"][0]["code"]
        assert found == {
            "shop.remove": "denied",
            "shop.remov": "unknown_tool",
            "nowhere.remove": "unknown_server",
            "local.remove": "denied",
            "local.remov": "unknown_tool",
        }


async def test_a_step_that_leaves_out_the_server_is_told_the_tools_whole_name(sandboxes, tmp_path):
    async with shop(sandboxes, tmp_path, RULES) as bridge:
        await bridge.run_program({"steps": [step("look", "shop.see")]})
        for name in ("remove-it", "remove_it"):
            (row,) = (await bridge.run_program({"steps": [step("hit", name)]}))["steps"]
            assert row["error"] == f"There is no tool {name!r}. Did you mean shop.{name}?"
        program = {"steps": [step("hit", "remove-it")]}
        code = f"from mcp import programs\nprint((await programs.run({program!r})).steps[0].error)"
        assert "shop" not in printed(await bridge.run(code, servers=["local"]))


async def test_a_planned_program_has_no_more_rights_than_another(sandboxes, tmp_path):
    plan = json.dumps({"steps": [step("hit", "shop.remove")]})
    model = {"provider": "scripted", "default_answer": plan}
    async with shop(sandboxes, tmp_path, RULES, model=model) as bridge:
        planned = await bridge.plan_program("remove everything")
        assert planned["steps"][0]["tool"] == "shop.remove"
        record = await bridge.run_program(planned)
        assert record["steps"][0]["code"] == "denied"
        script = "from mcp import programs\ntrace = await programs.run(await programs.plan('remove everything'))\nprint(trace.code, trace.steps[0].code)"
        assert printed(await bridge.run(script)) == "denied denied\n"
        assert bridge.reached() == []


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"model_tokens": 0}, "budget_tokens"),
        ({"principal": {"model_tokens": 1}}, "budget_tokens"),
        ({"model_cost_usd": 0.0}, "budget_cost"),
    ],
)
async def test_no_path_to_the_model_leads_past_its_limits(sandboxes, tmp_path, limits, code, monkeypatch):
    asked = []
    complete = ScriptedModel.complete

    async def counted(self, messages, **options):
        asked.append(messages)
        return await complete(self, messages, **options)

    monkeypatch.setattr(ScriptedModel, "complete", counted)
    answer = {"text": "yes", "prompt_tokens": 5, "completion_tokens": 5, "cost_usd": 0.5}
    model = {"provider": "scripted", "default_answer": answer}
    ask = {"id": "ask", "type": "llm", "prompt": "Shall we?"}
    async with shop(sandboxes, tmp_path, {"limits": limits}, model=model) as bridge:
        for steps in (
            [ask],
            [{"id": "f", "type": "parallel", "parallel_steps": [ask]}],
            [{"id": "m", "type": "map", "over": [1, 2], "step": ask}],
            [{"id": "p", "type": "program", "program": {"steps": [ask]}}],
            [{**ask, "retry": {"schedule": [0, 0]}}],
        ):
            record = await bridge.run_program({"steps": steps})
            rows = [row for row in record["steps"] if row["id"].endswith("ask") or "[" in row["id"]]
            assert {row["code"] for row in rows} == {code}
        with pytest.raises(BridgeError) as caught:
            await bridge.plan_program("do it")
        assert caught.value.code == code
        # A price shows only afterwards: with none left one answer of each execution may be paid for, and is refused.
        assert len(asked) <= (8 if code == "budget_cost" else 0)


async def test_a_resumed_run_is_held_to_the_policy_that_is_in_force(sandboxes, tmp_path):
    program = {"steps": [{"id": "wait", "type": "wait", "event": "go"}, step("hit", "remove")]}
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    async with shop(sandboxes, tmp_path / "before", {}) as bridge:
        trace = (await bridge.run_program(program))["trace_id"]
    (tmp_path / "before" / "state").rename(tmp_path / "after" / "state")
    async with shop(sandboxes, tmp_path / "after", RULES) as bridge:
        record = await bridge.resume_execution(trace, Resume("go"))
        check_denial(record["steps"][-1]["code"], record["steps"][-1]["error"], {}, "local.remove")
        assert bridge.reached() == []
