"""Hostile scripts that speak the raw channel: nothing illegal reaches a tool, and each attempt is recorded.

A script owns everything in its container, the bridge's own code there included. What it asks of the host counts for
nothing but a request; so here it asks for what no program of its own would ask.
"""

import asyncio
import json
import logging
import time

import anyio
import pytest
from execution_fixtures import Peak, Ticker, lines, printed, until
from hostile_guest import GUEST, PIPELINE, open_desk, tool

from mcp_bridge.executions.client import Client
from mcp_bridge.kernel.events import Resume
from mcp_bridge.kernel.language.program_parser import bundle, parse
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.program_limits import MAX_WORK
from mcp_bridge.ledger.storage.execution_store import SavedProgram

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def _no_internal_errors(caplog):
    """Nothing that comes from a sandbox may be an internal error of the host."""
    yield
    assert [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.ERROR] == []


# --- one program that alone may reserve and capture ---

STEPS = {
    "a step skipped": ("effect(e, 2)", [[]]),
    "two steps in the wrong order": ("effect(e, 2), effect(e, 1)", [[]]),
    "a step again, after it": ("effect(e, 1), effect(e, 1)", [["reserve", "release"]]),
    "the last step again, after it": ("effect(e, 1), effect(e, 2), effect(e, 2)", [["reserve", "capture"]]),
    "a step twice at the same time": ("together(1, 1)", [[], ["reserve"], ["reserve", "release"]]),
    "a step a hundred times at the same time": ("together(*[1] * 100)", [[], ["reserve"], ["reserve", "release"]]),
    "two steps at the same time": ("together(1, 2)", [[], ["reserve"], ["reserve", "release"]]),
    "two steps at the same time, the last first": ("together(2, 1)", [[]]),
    "a number that never was": ("effect(e, 99)", [[]]),
    "number zero": ("effect(e, 0)", [[]]),
    "a negative number": ("effect(e, -1)", [[]]),
    "the lowest number": ("effect(e, -2 ** 63 + 1)", [[]]),
    "the highest number": ("effect(e, 2 ** 63 - 1)", [[]]),
    "an effect that an earlier one made": ("effect(e, 1), effect(e, 2), effect(e, 3)", [["reserve", "capture"]]),
    "called finished at once": ("finish(e)", [[]]),
    "called finished in the middle": ("effect(e, 1), finish(e)", [["reserve", "release"]]),
    "finished with a state of its own": ("effect(e, 1), effect(e, 2), finish(e)", [["reserve", "capture"]]),
    "finished with no state": ("effect(e, 1), effect(e, 2), finish(e, '')", [["reserve", "capture"]]),
    "finished with the state before": ("(t := Twin(s)).take(1), effect(e, 2), t.finish()", [["reserve", "capture"]]),
    "a step after the violation": ("effect(e, 2), effect(e, 1), finish(e)", [[]]),
    "what has to be undone, by itself": ("effect(e, 1), effect(e, 7), effect(e, 2), effect(e, 3)", [["reserve", "release"]]),
}  # fmt: skip


async def test_no_step_is_skipped_repeated_reordered_raced_or_forged(sandboxes, tmp_path):
    attempts = "\n".join(
        f"s = start('payment_pipeline', {{'amount': {amount}}}); e = s['execution']; done.append([e, list(({code},))])"
        for amount, (code, _) in enumerate(STEPS.values(), 1)
    )
    async with open_desk(sandboxes, tmp_path) as desk:
        script = f"""
def together(*which):
    asked = [next(numbers) for _ in which]
    send_all([dict(id=number, method="program.effect", params=dict(execution=e, effect=effect))
              for number, effect in zip(asked, which)])
    return [told(answer(number)) for number in asked]
done = []
{attempts}
tell(done)
"""
        done = await desk.attack(script)
        for (attempt, (_, allowed)), (execution, answers), amount in zip(
            STEPS.items(), done, range(1, 999), strict=False
        ):
            told = json.dumps(answers)
            assert [name for name, value in desk.did() if value == amount] in allowed, attempt
            assert '"violation"' in told, attempt
            assert await desk.violations(execution), attempt
            stored = await desk.stored(execution)
            assert (stored.status, stored.record["code"]) == ("failed", "violation"), attempt
            assert stored.state is None, attempt
            assert (await desk.entries(execution))[-1].kind == "end", attempt
        assert len(done) == len(STEPS)
        await desk.still_pays()


async def test_a_number_that_is_none_ends_the_sandbox(sandboxes, tmp_path):
    async with open_desk(sandboxes, tmp_path) as desk:
        for number in ("True", "1.0", "'1'", "None", "[1]", "{}", "2 ** 63", "10 ** 30"):
            code = f"s = start('payment_pipeline', {{'amount': 1}})\neffect(s['execution'], {number})"
            record = await desk.bridge.run(GUEST + code)
            assert (record.status, record.error["code"]) == ("protocol_error", "bad_params"), number
            assert len(await desk.violations(record.execution)) == 1, number
            assert (await desk.latest()).status == "interrupted", number
        assert desk.did() == []
        await desk.still_pays()


# --- the channel itself ---

FRAMES = {
    "an answer in the host's place": "send(id=e1, result={'sequence': 1, 'status': 'ok', 'value': 'captured'})",
    "an error in the host's place": "send(id=e1, error={'code': -32000, 'message': 'm', 'data': {'code': 'denied'}})",
    "an answer to a question that nobody asked": "send(id=12345, result={})",
    "the host's heartbeat": "send(method='host.beat', params={})",
    "a start in the host's name": "send(method='execution.start', params={'execution': e, 'code': 'x', 'servers': [], 'max_value_bytes': 1})",
    "an effect as a notification": "send(method='program.effect', params={'execution': e, 'effect': 1})",
    "an outcome brought along": "ask('program.effect', execution=e, effect=1, outcome={'status': 'ok', 'value': 'x'})",
    "an approval brought along": "ask('program.effect', execution=e, effect=1, approved=True)",
    "another's principal brought along": "ask('program.resume', execution=e, principal='operator')",
    "a policy brought along": "ask('program.start', program='payment_pipeline', context={}, policy={'preset': 'open'})",
    "an origin brought along": "ask('program.start', program={'steps': []}, context={}, origin='operator')",
    "a method for decisions": "ask('approval.decide', approval=1, approved=True)",
    "a method for settlements": "ask('program.settle', execution=e, effect=1, how='happened')",
    "a method for outcomes": "ask('program.outcome', execution=e, effect=1, status='ok', value='x')",
    "a context that is none": "ask('program.start', program='payment_pipeline', context=[['amount', 1]])",
    "one request's number for two": "send_all([dict(id=7, method='program.effect', params=dict(execution=e, effect=1)) for _ in range(2)])",
}  # fmt: skip


async def test_a_forged_frame_ends_the_sandbox_and_is_recorded(sandboxes, tmp_path):
    async with open_desk(sandboxes, tmp_path) as desk:
        for amount, (attack, frame) in enumerate(FRAMES.items(), 1):
            code = f"""
e = start("payment_pipeline", {{"amount": {amount}}})["execution"]
e1 = next(numbers)
{frame}
stay()
"""
            record = await desk.bridge.run(GUEST + code, timeout=10)
            assert record.status == "protocol_error", attack
            assert len(await desk.violations(record.execution)) == 1, attack
            left = await desk.latest()
            # Cut off before a call, by its own fault, or in mid-call.
            assert left.status in {"interrupted", "failed", "suspended"}, attack
            assert {row["kind"] for row in left.record["waiting"]} == (
                {"in_doubt"} if left.status == "suspended" else set()
            ), attack
            assert [each for each in desk.did() if each[1] == amount] in ([], [["reserve", amount]]), attack
        await desk.still_pays()


async def test_a_requests_number_used_again_is_another_request(sandboxes, tmp_path):
    async with open_desk(sandboxes, tmp_path) as desk:
        execution, first, again, paid = await desk.attack("""
e = start("payment_pipeline", {"amount": 3})["execution"]
number = ask("program.effect", execution=e, effect=1)
first = told(answer(number))
again = told(answer(ask("program.effect", number, execution=e, effect=1)))
number = ask("tool.call", number, server="local", tool="look", arguments={"what": "x"})
tell([e, first, again, told(answer(number))])
""")
        assert (first["status"], again["code"], paid) == ("ok", "violation", {"value": "look x"})
        assert desk.did() == [["reserve", 3], ["release", 3], ["look", "x"]]
        assert await desk.violations(execution)


# --- executions of others ---

OWN = """
import time
from mcp import progress
s = start("payment_pipeline", {"amount": 4})
progress(0, 1, s["execution"])
while not call("memory.load", key="go")["found"]: time.sleep(0.02)
twin = Twin(s)
twin.take(1), twin.take(2)
tell(twin.finish()["status"])
"""

NOT_ITS_OWN = """
tell([
    effect({0!r}, 1), effect({0!r}, 2), finish({0!r}),
    call("program.resume", execution={0!r}, payload={{"approved": True}}),
])
"""


async def test_another_sandboxs_execution_is_out_of_reach_and_goes_on(sandboxes, tmp_path):
    async with open_desk(sandboxes, tmp_path) as desk, asyncio.TaskGroup() as tasks:
        told = []
        honest = tasks.create_task(
            desk.bridge.run(GUEST + OWN, progress=lambda _, __, message: told.append(message), timeout=60)
        )
        await until(lambda: told)
        thief = await desk.bridge.run(GUEST + NOT_ITS_OWN.format(told[0]))
        answers = json.loads(printed(thief))
        assert [answer["code"] for answer in answers] == ["violation", "violation", "violation", "not_suspended"]
        assert len(await desk.violations(thief.execution)) == 3
        assert await desk.violations(told[0]) == []
        assert desk.did() == []
        await desk.bridge.run("from mcp import runtime\nawait runtime.save_memory('go', 1)")
        assert json.loads(printed(await honest)) == "success"
        assert desk.did() == [["reserve", 4], ["capture", 4]]


async def test_an_execution_that_has_ended_takes_no_more_steps(sandboxes, tmp_path):
    async with open_desk(sandboxes, tmp_path) as desk:
        execution = await desk.attack("""
s = start("payment_pipeline", {"amount": 4})
twin = Twin(s)
twin.take(1), twin.take(2), twin.finish()
tell(s["execution"])
""")
        thief = await desk.bridge.run(GUEST + NOT_ITS_OWN.format(execution))
        codes = [answer["code"] for answer in json.loads(printed(thief))]
        assert codes == ["violation", "violation", "violation", "not_suspended"]
        assert len(await desk.violations(thief.execution)) == 3
        stored = await desk.stored(execution)
        assert (stored.status, stored.record["code"]) == ("success", None)
        assert desk.did() == [["reserve", 4], ["capture", 4]]


async def test_another_principals_execution_is_neither_resumed_nor_seen(sandboxes, tmp_path):
    steps = [{"id": "wait", "type": "wait", "event": "paid"}, tool("look", "after")]
    async with open_desk(sandboxes, tmp_path) as desk:
        programs = desk.bridge.programs
        effects = desk.bridge.programs.effects(desk.bridge.gate("0" * 16, Client()))
        run = await programs.start({"steps": steps}, {}, None, "somebody", effects)
        assert (await programs.keep(run))["status"] in {"running", "interrupted", "suspended"}
        await programs.store.update(
            run.execution, status="suspended", state=(await desk.stored(run.execution)).state, record=None, due=None
        )
        thief = await desk.bridge.run(
            GUEST
            + f"e = {run.execution!r}\n"
            + "tell([call('program.resume', execution=e, payload={'paid': 1}), call('trace.get', trace_id=e), effect(e, 1),"
            " effect(e, 2), finish(e), call('trace.get', trace_id='0' * 32), call('program.resume', execution='0' * 32)])"
        )
        told = json.loads(printed(thief))
        assert [answer["code"] for answer in told] == [
            "unknown_trace", "unknown_trace", "violation", "violation", "violation", "unknown_trace", "unknown_trace",
        ]  # fmt: skip
        # Nothing tells another's execution from one that isn't.
        assert told[1]["message"].replace(run.execution, "") == told[5]["message"].replace("0" * 32, "")
        assert len(await desk.violations(thief.execution)) == 5
        assert (await desk.stored(run.execution)).status == "suspended"
        assert desk.did() == []


# --- a tool that is for one program alone ---

DIRECT = {
    "a proxy": "await local.capture(5)",
    "a proxy by keyword": "await local.capture(amount=5)",
    "a proxy's whole result": "await local.capture.raw(amount=5)",
    "a blocking proxy": "sync.servers.local.capture(amount=5)",
    "a blocking proxy's whole result": "sync.servers.local.capture.raw(amount=5)",
    "by name": "await runtime.call_tool('local', 'capture', {'amount': 5})",
    "by name, blocking": "runtime.call_tool_sync('local', 'capture', amount=5)",
    "by name, in capitals": "await runtime.call_tool('LOCAL', 'capture', amount=5)",
    "the earlier bridge's alias": "await mcp_local.capture(amount=5)",
    "the earlier bridge's table": "await mcp_servers['local'].capture(amount=5)",
    "a server's item": "await local['capture'](amount=5)",
    "a frame": "ok(call('tool.call', server='local', tool='capture', arguments={'amount': 5}))",
    "a frame for the whole result": "ok(call('tool.call', server='local', tool='capture', arguments={'amount': 5}, raw=True))",
    "a program of one step": "await ran({'steps': [CAPTURE]})",
    "a step with the server's name": "await ran({'steps': [CAPTURE | {'tool': 'local.capture'}]})",
    "a step with the server's name in capitals": "await ran({'steps': [CAPTURE | {'tool': 'LOCAL.capture'}]})",
    "a program of the same name": "await ran({'name': 'payment_pipeline', 'steps': [CAPTURE]})",
    "the same program passed along": "await ran(PIPELINE)",
    "the same program with a changed step": "await ran(PIPELINE | {'steps': [*PIPELINE['steps'][:3], CAPTURE]})",
    "saved under another name": "await saved('mine', PIPELINE)",
    "inside of a step": "await ran({'name': 'payment_pipeline', 'steps': [{'id': 'p', 'type': 'program', 'program': PIPELINE, 'context': {'amount': 5}}]})",
    "in a saved program run by a step": "await saved('other', PIPELINE) and 0 or await ran({'steps': [{'id': 'p', 'type': 'program', 'program': 'other', 'context': {'amount': 5}}]})",
    "side by side": "await ran({'steps': [{'id': 'f', 'type': 'parallel', 'parallel_steps': [CAPTURE]}]})",
    "for each of a list": "await ran({'steps': [{'id': 'm', 'type': 'map', 'over': [5], 'step': CAPTURE | {'args': {'amount': '$item'}}}]})",
    "a branch's target": "await ran({'steps': [{'id': 'c', 'type': 'condition', 'condition': '1 == 1', 'then': 'capture'}, CAPTURE]})",
    "tried again and again": "await ran({'steps': [CAPTURE | {'retry': {'schedule': [0, 0, 0]}}]})",
    "what undoes a step": "await ran({'steps': [LOOK | {'compensate': {'tool': 'capture', 'args': {'amount': 5}}}, FAIL]}, 'capture')",
    "beside its program": "beside()",
}  # fmt: skip

DIRECTLY = f"""
from mcp import programs, runtime, sync, MCPError
from mcp.servers import local
PIPELINE = {PIPELINE!r}
CAPTURE, LOOK, FAIL = {tool("capture", "capture", value=5)!r}, {tool("look", "look")!r}, {tool("fail", "fail")!r}

class Refused(Exception): pass

def ok(answer):
    if "code" in answer: raise Refused(answer["code"])

async def ran(program, step=None):
    trace = await programs.run(program, {{"amount": 5}})
    codes = [row.code for row in trace.steps if step is None or step in str(row.error)]
    if "denied" in codes: raise Refused("denied")
    raise Refused(f"{{trace.status}} {{trace.code}} {{trace.error}} {{trace.steps}}")

async def saved(name, program):
    await programs.save(name, program)
    try: await ran(name)
    except Refused as exc:
        if str(exc) != "denied": raise
    else: raise Refused("it worked")
    return await ran(name) if name == "mine" else True

def beside():
    s = start("payment_pipeline", {{"amount": 6}})
    ok(effect(s["execution"], 1))
    ok(call("tool.call", server="local", tool="capture", arguments={{"amount": 6}}))

found = {{}}
"""


async def test_a_tool_for_one_program_is_reached_by_no_other_path(sandboxes, tmp_path):
    attempts = "".join(
        f"try:\n    {code}\n    found[{name!r}] = 'it worked'\nexcept (MCPError, Refused) as exc:\n    found[{name!r}] = getattr(exc, 'code', str(exc))\n"
        for name, code in DIRECT.items()
    )
    async with open_desk(sandboxes, tmp_path) as desk:
        record = await desk.bridge.run(GUEST + DIRECTLY + attempts + "tell(found)")
        # Other steps under the operator's name are not even begun.
        others = ("a program of the same name", "the same program with a changed step", "inside of a step")
        named = dict.fromkeys(others, "reserved_name")
        assert json.loads(printed(record)) == dict.fromkeys(DIRECT, "denied") | named
        assert ["capture", 5] not in desk.did()
        assert ["reserve", 5] not in desk.did()
        denials = await desk.entries(record.execution, "denial")
        assert len(denials) == sum(code.startswith(("await local", "await mcp_", "await runtime", "sync", "runtime", "ok", "beside")) for code in DIRECT.values())  # fmt: skip
        said = {"tool": "local.capture", "by": "rule 1"}
        assert all(said.items() <= entry.payload.items() for entry in denials)
        await desk.still_pays()


async def test_the_operators_programs_name_is_the_operators(sandboxes, tmp_path):
    thief = {"name": "payment_pipeline", "steps": [tool("capture", "capture", value=9)]}
    async with open_desk(sandboxes, tmp_path) as desk:
        # As if the agent had saved it before the operator had a program of that name.
        planted = parse(thief)
        await desk.bridge.programs.store.save_program(
            "local", SavedProgram("payment_pipeline", planted.hash, bundle(planted), time.time())
        )
        told = await desk.attack(f"""
from mcp import programs
def code(answer): return answer.get("code") or answer
found = [
    code(call("program.save", name="payment_pipeline", program={thief!r})),
    code(call("program.delete", name="payment_pipeline")),
    call("program.get", name="payment_pipeline")["program"] == {PIPELINE!r},
    [row["owner"] for row in call("program.list")["programs"] if row["name"] == "payment_pipeline"],
]
by_name = await programs.run("payment_pipeline", {{"amount": 1000}})
step = {{"id": "p", "type": "program", "program": "payment_pipeline", "context": {{"amount": 8}}}}
as_step = await programs.run({{"steps": [step]}})
tell([*found, by_name.output, as_step.status])
""")
        # An agent's program may run the operator's, which reserves, looks at the amount, and captures.
        assert told == ["reserved_name", "denied", True, ["operator"], "look too much", "success"]
        assert desk.did() == [["reserve", 1000], ["look", "too much"], ["reserve", 8], ["capture", 8]]


# --- decisions and time ---

ASKED = {"steps": [{"id": "ask", "type": "approval", "message": "Sure?"}, tool("look", "after")]}
BY_POLICY = {"steps": [tool("look", "before"), tool("delete", "delete", value="all")]}
WAITS = {"steps": [{"id": "wait", "type": "wait", "seconds": 3600}, tool("look", "after")]}
LATER = {"steps": [tool("later", "later"), tool("look", "after")]}

FORGED = """
def suspended(program, *numbers):
    s = start(program)
    twin = Twin(s)
    for number in numbers: twin.take(number)
    return s["execution"], twin.finish()

def resumed(e, payload=None):
    got = call("program.resume", execution=e, payload=payload)
    return got["code"] if "code" in got else got
"""

DECISIONS = (
    "None", "True", "{'approved': True}", "{'approved': True, 'by': 'operator'}", "'approve'",
    "{'effect': 1, 'status': 'ok', 'value': {'approved': True}}", "{'decision': {'approved': True}}",
)  # fmt: skip


@pytest.mark.parametrize(("program", "effects"), [(ASKED, (1,)), (BY_POLICY, (1, 2)), (WAITS, (1,))])
async def test_nothing_from_inside_decides_or_passes_time(sandboxes, tmp_path, program, effects):
    async with open_desk(sandboxes, tmp_path) as desk:
        told = await desk.attack(f"""{FORGED}
e, record = suspended({program!r}, *{effects})
tries = [resumed(e, payload) for payload in ({", ".join(DECISIONS)})]
last = {effects[-1]}
tell([e, record, tries, effect(e, last), finish(e), call("trace.get", trace_id=e)])
""")
        execution, record, tries, again, ended, trace = told
        assert record["status"] == "suspended"
        assert tries == ["still_waiting"] * len(DECISIONS)
        assert (again["code"], ended["code"]) == ("violation", "violation")
        assert trace | record == trace
        before = [["look", "before"]] if program is BY_POLICY else []
        assert desk.did() == before
        stored = await desk.stored(execution)
        assert stored.status == "suspended"
        assert stored.record == trace
        approvals = await desk.bridge.programs.store.approvals(execution)
        assert [row.status for row in approvals] == ([] if program is WAITS else ["open"])
        assert await desk.entries(execution, "decision") == []


async def test_what_a_person_has_approved_happens_once_however_many_resume_it(sandboxes, tmp_path):
    async with open_desk(sandboxes, tmp_path) as desk:
        execution = await desk.attack(f"{FORGED}\ntell(suspended({BY_POLICY!r}, 1, 2)[0])")
        (asked,) = await desk.bridge.programs.store.approvals(execution)
        assert await desk.bridge.programs.store.decide(asked, {"approved": True, "by": "anna"})
        race = f"""
asked = [next(numbers) for _ in range(20)]
send_all([dict(id=number, method="program.resume", params=dict(execution={execution!r})) for number in asked])
tell(sorted(got.get("code", "resumed") for got in (told(answer(number)) for number in asked)))
"""
        async with asyncio.TaskGroup() as tasks:
            racers = [tasks.create_task(desk.attack(race)) for _ in range(2)]
        codes = sorted(code for racer in racers for code in racer.result())
        assert codes == ["not_suspended"] * 39 + ["resumed"]
        assert desk.did() == [["look", "before"], ["delete", "all"]]
        stored = await desk.stored(execution)
        assert stored.status != "suspended"


async def test_a_tools_later_answer_is_taken_once(sandboxes, tmp_path):
    async with open_desk(sandboxes, tmp_path) as desk:
        execution = await desk.attack(f"{FORGED}\ntell(suspended({LATER!r}, 1)[0])")
        race = f"""
asked = [next(numbers) for _ in range(20)]
send_all([dict(id=number, method="program.resume", params=dict(execution={execution!r}, payload=number)) for number in asked])
got = [told(answer(number)) for number in asked]
(mine,) = [each for each in got if "code" not in each]
twin = Twin(mine)
twin.take(2)
tell([twin.finish()["status"], sorted({{each.get("code") for each in got if "code" in each}})])
"""
        assert await desk.attack(race) == ["success", ["not_suspended"]]
        assert desk.did() == [["later", "later"], ["look", "after"]]


# --- what the guest leaves out, and how it ends ---

UNDONE = {
    "steps": [
        tool("look", "first", compensate={"tool": "look", "args": {"what": "undone"}}),
        tool("fail", "second"),
    ]
}
LEAVES = {
    "after a violation": ("effect(e, 1); send(id=next(numbers), method='program.effect', params=dict(execution=e, effect=9)); os._exit(3)", "failed", "violation"),
    "when something is to be undone": ("effect(e, 1); effect(e, 2); os._exit(3)", "failed", "tool_error"),
    "with a frame that is none": ("effect(e, 1); effect(e, 2); raw(b'{}\\n')", "failed", "tool_error"),
    "by its end": ("effect(e, 1); effect(e, 2)", "failed", "tool_error"),
}  # fmt: skip


@pytest.mark.parametrize("attack", LEAVES)
async def test_what_has_to_be_undone_is_undone_without_the_guest(sandboxes, tmp_path, attack):
    code, status, error = LEAVES[attack]
    async with open_desk(sandboxes, tmp_path) as desk:
        await desk.bridge.run(GUEST + f"e = start({UNDONE!r})['execution']\n{code}")
        stored = await desk.latest()
        assert (stored.status, stored.record["code"]) == (status, error)
        assert desk.did()[-1] == ["look", "undone"]
        assert desk.did().count(["look", "undone"]) == 1
        assert desk.did()[0] == ["look", "first"]
        assert stored.record["steps"][-1]["id"] == "first.compensate"


async def test_a_guest_that_dies_in_the_middle_leaves_an_execution_to_go_on_with(sandboxes, tmp_path):
    async with open_desk(sandboxes, tmp_path) as desk:
        await desk.bridge.run(
            GUEST + "s = start('payment_pipeline', {'amount': 5})\neffect(s['execution'], 1)\nos._exit(3)"
        )
        stored = await desk.latest()
        assert stored.status == "interrupted"
        assert desk.did() == [["reserve", 5]]
        ended = await desk.bridge.resume_execution(stored.id)
        assert ended["status"] == "success"
        assert desk.did() == [["reserve", 5], ["capture", 5]]


DEADLINE = {
    "steps": [
        {
            "id": "both",
            "type": "parallel",
            "timeout_seconds": 0.2,
            "parallel_steps": [tool("hang", "slow"), tool("look", "late"), tool("look", "later")],
        }
    ]
}
"""Effect 1 is the deadline; 2, 3 and 4 are the steps."""


async def test_a_deadline_passes_although_the_guest_does_not_ask_for_it(sandboxes, tmp_path):
    async with open_desk(sandboxes, tmp_path) as desk:
        answers = await desk.attack(f"""
e = start({DEADLINE!r})["execution"]
tell([e, effect(e, 2), effect(e, 3), effect(e, 3), effect(e, 4)])
""")
        execution, *answers = answers
        # What the guest asked for before it could know is no violation; asking once more is.
        assert [answer["code"] for answer in answers] == [
            "effect_cancelled",
            "effect_cancelled",
            "violation",
            "violation",
        ]
        assert desk.did() == [["hang", "slow"]]
        assert len(await desk.violations(execution)) == 1
        assert (await desk.stored(execution)).record["code"] == "violation"


async def test_an_honest_guest_is_told_of_a_deadline_that_passes_before_its_steps_begin(sandboxes, tmp_path):
    async with open_desk(sandboxes, tmp_path, max_in_flight=1) as desk:
        record = await desk.bridge.run(f"""
from mcp import programs
trace = await programs.run({DEADLINE!r})
print(trace.status, trace.code, [step.code for step in trace.steps])
""")
        assert printed(record) == "failed timeout ['timeout', 'timeout', 'timeout', 'timeout']\n"
        stored = await desk.latest()
        assert (stored.status, stored.record["code"]) == ("failed", "timeout")
        assert await desk.violations(stored.id) == []


async def test_a_steps_own_time_is_not_the_guests_to_give(sandboxes, tmp_path):
    program = {"steps": [tool("hang", "slow", timeout_seconds=0.2)]}
    async with open_desk(sandboxes, tmp_path) as desk:
        told = await desk.attack(f"e = start({program!r})['execution']\ntell(effect(e, 1))")
        assert told["status"] == "timeout"
        assert desk.did() == [["hang", "slow"]]


async def test_a_deadline_that_nobody_waits_for_holds_up_nothing(sandboxes, tmp_path):
    program = {"steps": [{**DEADLINE["steps"][0], "timeout_seconds": 3600}]}
    later, asked = (
        {"steps": [{"id": "sub", "type": "program", "program": inner, "timeout_seconds": 3600}]}
        for inner in (LATER, ASKED)
    )
    with anyio.fail_after(60):
        async with open_desk(sandboxes, tmp_path) as desk:
            told = await desk.attack(f"""{FORGED}
start({program!r})
suspended({later!r}, 2)
tell(resumed(suspended({asked!r}, 2)[0]))
""")
            assert told == "still_waiting"
            rows = await desk.bridge.programs.store.executions(None, 3)
            assert sorted(row.status for row in rows) == ["interrupted", "suspended", "suspended"]


FANNED = {
    "steps": [
        {
            "id": "fan",
            "type": "parallel",
            "max_concurrency": 2,
            "parallel_steps": [tool("look", name) for name in ("a", "b", "c", "d")],
        },
        {
            "id": "each",
            "type": "map",
            "over": ["e", "f"],
            "max_concurrency": 1,
            "step": tool("look", "x", value="$item"),
        },
    ]
}


async def test_no_more_happens_at_once_than_the_program_says(sandboxes, tmp_path):
    async with open_desk(sandboxes, tmp_path) as desk:
        found = await desk.attack(f"""
found = []
for ahead in range(1, 7):
    e = start({FANNED!r})["execution"]
    for number in range(1, ahead): effect(e, number)
    # Two may be under way in the first step, one in the second: the next number is one too many.
    found.append([e, effect(e, ahead + (2 if ahead < 4 else 1))])
tell(found)
""")
        for execution, answer in found:
            assert answer["code"] == "violation"
            assert await desk.violations(execution)
        assert desk.did().count(["look", "f"]) == 0
        # Each run was asked in order up to its jump.
        assert [value for _, value in desk.did()] == [name for ahead in range(1, 7) for name in "abcdef"[: ahead - 1]]


# --- a guest with another kernel ---

KERNELS = {
    "conditions always hold": "from mcp_bridge.kernel.language.conditions import Condition\nCondition.holds = lambda self, lookup: True",
    "nothing is too much": "from mcp_bridge.kernel import values, machine\nMachine = machine.Machine\nold = Machine.__init__\ndef init(self, program, context=None): old(self, program, (context or {}) | {'amount': 5})\nMachine.__init__ = init",
    "outcomes are what it likes": "from mcp_bridge.kernel.machine import Machine\nold = Machine.apply\nMachine.apply = lambda self, event: old(self, event._replace(value='free of charge'))",
    "every step is the last": "from mcp_bridge.kernel.machine import Machine\nold = Machine.apply\ndef apply(self, event):\n    effects = old(self, event)\n    self.level.context['amount'] = 1\n    return effects\nMachine.apply = apply",
}  # fmt: skip


@pytest.mark.parametrize("attack", KERNELS)
async def test_another_kernel_in_the_guest_changes_nothing_but_its_own_end(sandboxes, tmp_path, attack):
    async with open_desk(sandboxes, tmp_path) as desk:
        record = await desk.bridge.run(f"""
{KERNELS[attack]}
from mcp import programs, MCPError
try:
    print(await programs.run("payment_pipeline", {{"amount": 1000}}))
except MCPError as exc:
    print(exc.code)
""")
        assert lines(record) == ["violation"]
        # On the host the amount is too much, whatever the guest makes of it: the second effect is not the capture.
        assert desk.did() == [["reserve", 1000], ["look", "too much"]]
        stored = await desk.latest()
        assert (stored.status, stored.record["code"]) == ("failed", "violation")
        assert await desk.violations(stored.id) == ["the sandbox's state of the program is not the host's"]
        await desk.still_pays()


# --- taking requests back ---


async def test_a_step_that_is_taken_back_is_not_made_again(sandboxes, tmp_path):
    program = {"steps": [tool("hang", "slow", retry={"schedule": [0, 0, 0]})]}
    async with open_desk(sandboxes, tmp_path) as desk:
        async with asyncio.TaskGroup() as tasks:
            attack = tasks.create_task(
                desk.attack(f"""
e = start({program!r})["execution"]
number = ask("program.effect", execution=e, effect=1)
while not call("memory.load", key="began")["found"]: time.sleep(0.02)
send(method="request.cancel", params={{"id": number}})
while not call("memory.load", key="ended")["found"]: time.sleep(0.02)
tell([e, [effect(e, number).get("code") for number in (2, 3)]])
""")
            )
            await until(desk.did)
            await desk.bridge.run("from mcp import runtime\nawait runtime.save_memory('began', 1)")
            began = (await desk.latest()).id

            async def ended():
                return await desk.entries(began, "outcome")

            await until(ended)
            await desk.bridge.run("from mcp import runtime\nawait runtime.save_memory('ended', 1)")
        execution, codes = attack.result()
        assert codes == ["violation", "violation"]
        assert desk.did() == [["hang", "slow"]]
        record = (await desk.stored(execution)).record
        assert (record["status"], record["code"]) == ("failed", "violation")
        # It was in doubt, until the violation ended the program.
        assert [row["tool"] for row in record["unresolved"]] == ["hang"]


@pytest.mark.parametrize("taken_back", ["program.start", "program.resume", "program.finish"])
async def test_a_request_that_is_taken_back_leaves_nothing_under_way_for_ever(sandboxes, tmp_path, taken_back):
    prepare = f"{FORGED}\nprogram = {LATER!r}\n"
    if taken_back == "program.start":
        prepare += "ask_it = lambda key: ask('program.start', program=program, context={}, idempotency_key=key)\n"
    elif taken_back == "program.resume":
        prepare += "ask_it = lambda key: ask('program.resume', execution=suspended(program, 1)[0], payload=1)\n"
    else:
        prepare += """
def ask_it(key):
    twin = Twin(start(program, key=key))
    twin.take(1)
    return ask("program.finish", execution=twin.execution, state=hashlib.sha256(twin.state.dump(twin.machine)).hexdigest())
"""
    async with open_desk(sandboxes, tmp_path) as desk:
        await desk.attack(f"""{prepare}
for turn in range(20):
    number = ask_it(f"key-{{turn}}")
    for _ in range(turn * 20): pass
    send(method="request.cancel", params={{"id": number}})
tell(0)
""")
        found = await desk.bridge.programs.store.executions(None, 100)
        rows = [row for row in found if row.kind == "program"]
        assert {row.status for row in rows} <= {"interrupted", "suspended"}
        for row in rows[:3]:
            with anyio.fail_after(20):
                assert (await desk.bridge.resume_execution(row.id, Resume(1)))["status"] in {"success", "suspended"}


# --- floods ---

VICTIM = """
import asyncio
from mcp import programs
from mcp.servers import local
for number in range(5):
    assert await local.look(f"v{number}") == f"look v{number}"
    assert (await programs.run("payment_pipeline", {"amount": 300 + number})).ok
print("unharmed")
"""

ENDLESS = {"max_steps": 10**12, "steps": [{"id": "a", "type": "condition", "condition": "1 == 1", "then": "a"}]}
COMPARES = {
    "max_steps": 10**12,
    "steps": [{"id": "a", "type": "condition", "condition": "$x == $y and '$x' != 'b'", "then": "a", "otherwise": "a"}],
}
ITEM = {"type": "tool", "tool": "look", "args": {"what": "a $x"}}
FANS = {"steps": [{"id": "m", "type": "map", "over": list(range(10_000)), "step": ITEM}]}
FANS_OF_FANS = {
    "steps": [{"id": "m", "type": "map", "over": list(range(10_000)), "step": {"type": "program", "program": FANS}}]
}
LOOPS_OF_LOOPS = {"steps": [{"id": "m", "type": "map", "over": list(range(10_000)), "step": {"type": "program", "on_error": "skip", "program": ENDLESS}}]}  # fmt: skip

EFFECT = "dict(id=next(numbers), method='program.effect', params=dict(execution=e, effect=1))"
START = "dict(id=next(numbers), method='program.start', params=dict(program='payment_pipeline', context={'amount': 5}))"
FLOODS = {
    "10,000 effects": (f"e = start('payment_pipeline', {{'amount': 5}})['execution']\nsend_all([{EFFECT} for _ in range(10_500)])\nanswer(FIRST + 10_500)", {}),
    "20,000 programs": (f"send_all([{START} for _ in range(20_000)])\nstay()", {"max_calls": 1000}),
    "large contexts": ("for _ in range(10): start({'steps': [{'id': 'a', 'type': 'wait', 'event': 'e'}]}, {'x': 'y' * 4_100_000})\nassert start('payment_pipeline', {'x': 'y' * 4_200_000})['code'] == 'context_too_large'", {}),
    "contexts that nest": ("for depth in (40, 60): start('payment_pipeline', {'x': json.loads('[' * depth + ']' * depth)})", {}),
    "a loop without end": (f"start({ENDLESS!r})", {}),
    "a loop that compares large values": (f"start({COMPARES!r}, {{'x': [1] * 200_000, 'y': [1] * 200_000}})", {}),
    "a loop without end for each of many": (f"start({LOOPS_OF_LOOPS!r})", {}),
    "large arguments for each of many": (f"finish(start({FANS!r}, {{'x': 'y' * 4_000_000}})['execution'])", {}),
    "many for each of many": (f"start({FANS_OF_FANS!r}, {{'x': 'y'}})", {}),
}  # fmt: skip


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_harms_nobody_else(sandboxes, tmp_path, flood):
    code, settings = FLOODS[flood]
    async with open_desk(sandboxes, tmp_path, **settings) as desk:
        peak, ticker = Peak(), Ticker()
        async with ticker.watch(), asyncio.TaskGroup() as tasks:
            victim = tasks.create_task(desk.bridge.run(VICTIM, timeout=60))
            hostile = tasks.create_task(desk.bridge.run(GUEST + code, timeout=20))
        assert printed(victim.result()) == "unharmed\n"
        record = hostile.result()
        assert record.status in {"success", "timeout", "call_limit"}, (record.status, record.error)
        if record.status == "call_limit":
            assert await desk.violations(record.execution)
        assert peak.growth < 600 * MEGABYTE
        assert ticker.longest < 3
        assert [each for each in desk.did() if each[0] == "capture" and each[1] < 300] == []
        await desk.still_pays()


@pytest.mark.parametrize("program", [ENDLESS, LOOPS_OF_LOOPS, FANS_OF_FANS])
def test_no_transition_does_more_than_it_may(program):
    machine = Machine(parse(program), {"x": "y"})
    assert len(machine.waiting) <= MAX_WORK
    assert machine.status in {"budget_exceeded", "failed", "running", "success"}
    if program is ENDLESS:
        assert machine.level.ending[1] == "too_much_at_once"


def test_what_a_program_may_do_at_once_suffices_for_the_largest_list():
    body = {"type": "program", "program": {"steps": [{"id": "c", "type": "condition", "condition": "1 == 1", "then": "t"}, tool("look", "t")]}}  # fmt: skip
    machine = Machine(parse({"steps": [{"id": "m", "type": "map", "over": list(range(10_000)), "step": body}]}))
    assert len(machine.waiting) == 10_000


# --- honest programs beside their own ---

TIMED = {
    "steps": [
        {
            "id": "sub",
            "type": "program",
            "timeout_seconds": 3600,
            "program": {"steps": [tool("look", "a"), tool("look", "b")]},
        }
    ]
}


@pytest.mark.parametrize(("key", "calls"), [("None", 12), ("'one'", 2)])
async def test_requests_that_only_wait_leave_room_for_those_that_they_wait_for(sandboxes, tmp_path, key, calls):
    async with open_desk(sandboxes, tmp_path, max_in_flight=2) as desk:
        record = await desk.bridge.run(f"""
import asyncio
from mcp import programs
traces = await asyncio.gather(*(programs.run({TIMED!r}, idempotency_key={key}) for _ in range(6)))
print({{trace.status for trace in traces}}, len({{trace.trace_id for trace in traces}}))
""")
        assert printed(record) == f"{{'success'}} {calls // 2}\n"
        assert len(desk.did()) == calls
