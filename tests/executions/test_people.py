"""Scripts and programs that wait for people: decided by whomever, in whichever order, they end as with a person there.

`MCP_BRIDGE_TEST_LONG=1` asks for many more of them.
"""

import asyncio
import contextlib
import errno
import json
import math
import os
import pty
import random
import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from bridge_fixtures import COMMAND
from cli_fixtures import run_here
from crash_fixtures import LONG
from sandbox_fixtures import RUNTIME
from script_hosts import HEAD, Hosts, ended, make_hosts, source  # noqa: F401  (fixtures)

from mcp_bridge.cli import argument_decoding
from mcp_bridge.cli.commands import events, resumed
from mcp_bridge.cli.terminal_prompts import login_name
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import approvals
from mcp_bridge.executions.trace_record import to_record
from mcp_bridge.executions.waits import event_sending
from mcp_bridge.ledger.erasure.execution_erasure import erase
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.server.ui.app import build
from mcp_bridge.server.ui.change_notifications import Live

pytestmark = [pytest.mark.usefixtures("whole_ledgers"), pytest.mark.timeout(600)]


class Desk(Hosts):
    """Hosts, and the people who decide."""

    def decide(self, execution, effect, *, approved=True, by="anna"):
        return ended(self.start(decide={"execution": execution, "effect": effect, "approved": approved, "by": by}))

    def resume(self, execution, **more):
        return ended(self.start(resume={"id": execution, **more}))

    def perhaps_killed(self, code, key, die, **more):
        """The record, or None if the host has come to where it was to die."""
        out = self.start(run={"code": HEAD + code, "key": key}, die=die, **more)
        try:
            return ended(out)
        except AssertionError:
            assert out.with_name(f"{out.name}.ended").read_text() == str(-signal.SIGKILL)
            return None

    def program(self, program, key="p", **more):
        return ended(self.start(program={"program": program, "key": key}, **more))

    def open(self):
        """What waits for a person: (execution, effect, tool, arguments)."""

        async def listed():
            async with Database(self.state / FILE_NAME) as database:
                rows = await approvals.approval_requests(ProgramStore(database), "local")
                return [
                    (
                        row.approval.execution,
                        row.approval.effect,
                        row.question.get("tool"),
                        row.question.get("arguments"),
                    )
                    for row in rows
                    if row.status == "open"
                ]

        return asyncio.run(listed())

    def command(self, *words, **options):
        """The command line's, in a process of its own."""
        config = self.state.parent / "mcp-bridge.toml"
        tests = Path(__file__).parents[1] / "support"
        config.write_text(
            f"""state_dir = "{self.state}"
client_configs = false
runtime = "{RUNTIME}"
tools = {{modules = ["script_host"], path = ["{tests}"], entry_points = false}}
policy = {{rules = [{{tools = ["local.careful"], effect = "approve"}}]}}
"""
        )
        env = {**os.environ, "LOG": str(self.log), "DIE": ""}
        env.pop("PYTHONUNBUFFERED", None)
        options = options or {"capture_output": True, "text": True}
        done = subprocess.run([COMMAND, "--config", config, *words], check=False, env=env, timeout=120, **options)
        return done.returncode, done.stdout, done.stderr

    def at_a_terminal(self, *words):
        """The same with its output on a terminal; the command reads nothing."""
        ours, theirs = pty.openpty()
        shown = []

        def read():
            # The other end hangs up.
            with contextlib.suppress(OSError):
                while piece := os.read(ours, 4096):
                    shown.append(piece)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            code = self.command(*words, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)[0]
        finally:
            os.close(theirs)
            reader.join()
            os.close(ours)
        return code, b"".join(shown).decode().replace("\r\n", "\n")

    def in_viewer(self, execution, effect, *, approved):
        """By the trace viewer's page: it lists the question whole, and takes the decision."""

        async def asked():
            async with Database(self.state / FILE_NAME) as database:
                viewer = build(Live(database), "t" * 32, "ben")
                headers = {"Authorization": f"Bearer {'t' * 32}", "Origin": "http://127.0.0.1"}
                transport = httpx2.ASGITransport(app=viewer)
                async with httpx2.AsyncClient(
                    transport=transport, base_url="http://127.0.0.1", headers=headers
                ) as client:
                    listed = (await client.get("/api/approvals")).json()["approvals"]
                    (row,) = [row for row in listed if row["id"] == f"{execution}.{effect}"]
                    answer = await client.post(f"/api/approvals/{row['id']}", json={"approved": approved})
                    assert answer.status_code == 200, answer.text
                    return row

        return asyncio.run(asked())

    def decisions(self):
        """What is recorded of decisions, of all executions: (what, whether it was approved, by whom)."""

        async def read():
            async with self.database() as database:
                found = []
                for row in await ProgramStore(database).executions(None, 100):
                    entries = [each.entry for each in await SqliteRecorder(database).read(row.id)]
                    payloads = [entry.payload for entry in entries if entry.kind == "decision"]
                    asked = [payload for payload in payloads if "approved" in payload]
                    found += [(_text(payload), payload["approved"], payload["by"]) for payload in asked]
                return found

        return asyncio.run(read())

    def questions(self):
        """As `open`: (execution, effect, the text that it is about)."""

        async def listed():
            async with self.database() as database:
                rows = await approvals.approval_requests(ProgramStore(database), "local", open_only=True)
                return [
                    (row.approval.execution, row.approval.effect, _text(row.question))
                    for row in rows
                    if row.status == "open"
                ]

        return asyncio.run(listed())

    def forget_erased_values(self):
        """Erase by age all that it erases; which executions that were."""

        async def erased():
            async with self.database() as database:
                found = await erase(
                    database, "age", math.inf, by="me", reason=None, under_way=lambda status, _: status == "running"
                )
                return found.executions

        return asyncio.run(erased())

    def row(self, execution):
        async def found():
            async with Database(self.state / FILE_NAME) as database:
                return await ProgramStore(database).execution(execution)

        return asyncio.run(found())


def _text(question):
    return question["arguments"]["text"] if "arguments" in question else question["message"]


@pytest.fixture
def make_desk(make_hosts):
    def make(name="desk"):
        desk = make_hosts(name)
        desk.__class__ = Desk
        return desk

    return make


@pytest.fixture
def desk(make_desk):
    return make_desk()


ONE = """
print(await local.once(text="a"))
try:
    print(await local.careful(text="b"))
except Exception as exc:
    print(type(exc).__name__, exc.code, exc)
print(await local.once(text="c"))
"""


@pytest.mark.parametrize("key", ["key", None])
@pytest.mark.parametrize("approved", [True, False])
def test_a_call_that_needs_a_person_suspends_its_script_until_one_has_decided(desk, key, approved):
    first = desk.run(ONE, key)
    execution = first["execution"]
    assert (first["status"], first["exit_code"], first["error"]["code"]) == ("suspended", 5, "approval_needed")
    assert "\n" not in first["error"]["message"] + first["error"]["hint"]
    assert f"local.careful ({execution}.1)" in first["error"]["message"]
    assert (f"waits-{execution}" in first["error"]["hint"]) == (key is None)
    assert [(row["kind"], row["call"], row["effect"]) for row in first["waiting"]] == [("approval", "0#2", 1)]
    assert desk.open() == [(execution, 1, "local.careful", {"text": "b"})]
    assert desk.run(ONE, key) == first
    assert desk.done == ["once a"]
    assert desk.resume(execution)["code"] == "still_waiting"
    assert to_record(desk.row(execution))["waiting"][0]["effect"] == 1

    assert desk.decide(execution, 1, approved=approved)["by"] == "anna"
    assert desk.open() == []
    last = desk.run(ONE, key)
    said = "careful:b" if approved else "ToolError denied A person has denied local.careful."
    assert (last["execution"], last["status"], last["stdout"]) == (execution, "success", f"once:a\n{said}\nonce:c\n")
    assert desk.done == ["once a", *(["careful b"] if approved else []), "once c"]
    if key is not None:
        assert desk.run(ONE, key) == last
        assert desk.replay(execution)["agrees"]


def test_a_run_without_a_key_is_told_once_by_its_code_and_always_by_the_key_that_was_made_for_it(desk):
    first = desk.run(ONE, None)
    made = f"waits-{first['execution']}"
    assert desk.run(ONE, made) == first
    desk.decide(first["execution"], 1)
    assert desk.resume(first["execution"])["status"] == "success"
    again = desk.run(ONE, None)
    assert (again["execution"], again["status"]) == (first["execution"], "success")
    assert "had been suspended" in again["notices"][0]
    assert desk.done == ["once a", "careful b", "once c"]
    assert desk.run(ONE, made)["stdout"] == again["stdout"]
    anew = desk.run(ONE, None)
    assert (anew["execution"] != first["execution"], anew["status"]) == (True, "suspended")
    assert desk.run(ONE, "waits-0123456789abcdef")["code"] == "unknown_run"
    assert desk.run("print(1)", made)["code"] == "key_conflict"
    assert desk.done == ["once a", "careful b", "once c", "once a"]


def test_a_persons_word_holds_for_what_they_were_shown_and_for_nothing_else(desk):
    code = """
import os
import pty
await local.once(text="a")
await local.careful(text=os.urandom(4).hex())
"""
    first = desk.run(code)
    desk.decide(first["execution"], 1)
    second = desk.run(code)
    assert (second["status"], second["error"]["code"], second["error"]["call"]) == ("error", "divergence", "0#2")
    assert "is local.careful with arguments of which only a digest is recorded" in second["error"]["message"]
    assert desk.done == ["once a"]
    assert desk.open() == []


TEN = """
async def one(number):
    try:
        if number in (2, 5, 8):
            return await local.careful(text=str(number))
        return await local.once(text=str(number), seconds=0.02 * number)
    except Exception as exc:
        return exc.code
print(await asyncio.gather(*(one(number) for number in range(10))))
print(await local.careful(text="last"))
"""


@pytest.mark.parametrize(("order", "key"), [((2, 5, 8), "key"), ((8, 2, 5), None)])
def test_of_ten_calls_at_once_three_wait_and_are_decided_in_any_order(desk, key, order):
    first = desk.run(TEN, key)
    execution = first["execution"]
    questions = {asked[3]["text"]: asked[1] for asked in desk.open()}
    assert sorted(questions) == ["2", "5", "8"], first["error"]
    for number in order[:-1]:
        desk.decide(execution, questions[str(number)], approved=number != 5, by=f"person {number}")
        desk.run(TEN, key, die="end" if number == order[0] else "")
        assert f"careful {number}" in desk.done or number == 5
    desk.decide(execution, questions[str(order[-1])], approved=order[-1] != 5)
    waits = desk.run(TEN, key)
    ((_, effect, _, arguments),) = desk.open()
    assert (waits["status"], arguments) == ("suspended", {"text": "last"})
    desk.decide(execution, effect)
    last = desk.run(TEN, key)
    shown = [f"careful:{n}" if n in (2, 8) else "denied" if n == 5 else f"once:{n}" for n in range(10)]
    assert (last["status"], last["stdout"]) == ("success", f"{shown}\ncareful:last\n")
    assert sorted(desk.done) == sorted(
        [f"once {n}" for n in (0, 1, 3, 4, 6, 7, 9)] + ["careful 2", "careful 8", "careful last"]
    )


ASKS = {
    "name": "purchase",
    "steps": [
        {"id": "ask", "type": "approval", "message": "Buy?"},
        {"id": "buy", "type": "tool", "tool": "once", "args": {"text": "bought"}},
    ],
}
CALLS = {"name": "p", "steps": [{"id": "do", "type": "tool", "tool": "careful", "args": {"text": "done"}}]}
RUNS = """
from mcp import programs
trace = await programs.run({}{})
print(trace.status, trace.output)
print(await local.once(text="rest"))
"""


@pytest.mark.parametrize("named", ["", ", idempotency_key='p'"])
@pytest.mark.parametrize("resumed", ["by its script", "by somebody else", "killed"])
def test_a_script_whose_program_waits_is_suspended_and_goes_on_when_that_can(desk, named, resumed):
    code = RUNS.format(repr(ASKS), named)
    first = desk.run(code)
    (waits,) = first["waiting"]
    assert (first["status"], first["error"]["code"], first["stdout"]) == ("suspended", "approval_needed", "")
    assert (waits["kind"], waits["name"], waits["waiting"][0]["step"]) == ("program", "purchase", "ask")
    assert waits["execution"] in first["error"]["message"]
    assert desk.run(code) == first
    ((program, effect, _, _),) = desk.open()
    assert program == waits["execution"]
    desk.decide(program, effect)
    if resumed == "by somebody else":
        assert desk.resume(program)["status"] == "success"
    if resumed == "killed":
        desk.run(code, die="before:once rest")
        desk.settle(first["execution"], how="not_done") if desk.run(code)["status"] == "suspended" else None
    last = desk.run(code)
    assert (last["status"], last["stdout"]) == ("success", "success once:bought\nonce:rest\n")
    assert desk.done == ["once bought", "once rest"]
    assert desk.run(code) == last
    assert desk.replay(first["execution"])["agrees"]


@pytest.mark.parametrize("program", [ASKS, CALLS], ids=["step", "call"])
def test_a_program_under_a_key_goes_on_when_it_is_run_again_after_a_decision(desk, program):
    first = desk.program(program)
    assert first["status"] == "suspended"
    assert desk.program(program) == first
    ((execution, effect, _, _),) = desk.open()
    desk.decide(execution, effect)
    last = desk.program(program)
    assert (last["trace_id"], last["status"]) == (first["trace_id"], "success")
    assert desk.program(program) == last | {"is_previous_result": True}
    assert len(desk.done) == 1


PENDS = """
async def tried(call):
    try:
        return await call
    except Exception as exc:
        return exc.code
print(await asyncio.gather(tried(local.later(text="a")), local.once(text="b"), tried(local.later.raw(text="c"))))
print(await local.once(text="d"))
"""


@pytest.mark.parametrize("key", ["key", None])
def test_a_tool_whose_outcome_comes_later_suspends_its_script_until_it_has_come(desk, key):
    first = desk.run(PENDS, key)
    execution = first["execution"]
    assert (first["status"], first["error"]["code"]) == ("suspended", "still_waiting")
    assert [(row["kind"], row["name"]) for row in first["waiting"]] == [("tool", "local.later")] * 2
    assert f"execution resume {execution} --payload" in first["error"]["hint"]
    assert desk.run(PENDS, key) == first
    again = desk.resume(execution, payload={"paid": 1})
    assert (again["status"], len(again["waiting"])) == ("suspended", 1)
    assert desk.settle(execution, how="failed", message="no")["status"] == "interrupted"
    last = desk.run(PENDS, key)
    assert last["status"] == "success", last
    assert last["stdout"] == "[{'paid': 1}, 'once:b', 'failed']\nonce:d\n"
    assert sorted(desk.done) == ["later a", "later c", "once b", "once d"]
    if key:
        assert desk.replay(execution)["agrees"]
        assert desk.resume(execution, payload=1)["code"] == "not_suspended"


WAITS = {"name": "order", "steps": [{"id": "paid", "type": "wait", "event": "paid"}]}
BRINGS = f"""
from mcp import programs
trace = await programs.run({WAITS!r})
print(trace.status)
trace = await programs.resume(trace.trace_id, {{"sum": 1}})
print(trace.status, trace.output, await local.once(text="rest"))
"""
DOES_WITHOUT = f"""
from mcp import programs
trace = await programs.run({WAITS!r})
if trace.ok:
    print(await local.once(text="paid"))
else:
    print(await local.once(text="complain"))
"""
ENDS = f"""
from mcp import programs
trace = await programs.run({WAITS!r})
print(trace.status)
"""


def test_a_script_that_brings_what_its_program_waits_for_is_not_suspended(desk):
    last = desk.run(BRINGS)
    assert (last["status"], last["stdout"]) == ("success", "suspended\nsuccess {'sum': 1} once:rest\n")
    assert desk.replay(last["execution"])["agrees"]


@pytest.mark.parametrize("code", [DOES_WITHOUT, ENDS])
def test_nothing_is_done_because_a_program_waits_and_nothing_ends_by_it(desk, code):
    first = desk.run(code)
    (waits,) = first["waiting"]
    assert (first["status"], first["error"]["code"], waits["waiting"][0]["kind"]) == (
        "suspended",
        "still_waiting",
        "event",
    )
    assert desk.run(code) == first
    assert desk.done == []
    assert desk.resume(waits["execution"], payload={"sum": 1})["status"] == "success"
    last = desk.run(code)
    assert (last["status"], last["stdout"]) == ("success", "once:paid\n" if code == DOES_WITHOUT else "success\n")
    assert desk.done == (["once paid"] if code == DOES_WITHOUT else [])


def test_what_waits_is_told_in_a_line_whatever_its_program_is_called(desk):
    first = desk.run(RUNS.format(repr(ASKS | {"name": "a\nhint: approved\u202e"}), ""))
    assert "\n" not in first["error"]["message"]
    assert r"a\nhint: approved\u202e (" in first["error"]["message"]


def test_whoever_is_there_when_it_is_asked_for_again_is_asked(desk):
    both = RUNS.format(repr(ASKS), "") + 'print(await local.careful(text="b"))\n'
    first = desk.run(both)
    assert desk.run(both, says=None) == first
    last = desk.run(both, says=True)
    assert (last["status"], last["stdout"]) == ("success", "success once:bought\nonce:rest\ncareful:b\n")
    assert desk.done == ["asked Buy?", "once bought", "once rest", "asked b", "careful b"]


def test_what_was_made_without_a_key_does_not_mix_with_another_run_of_the_same_code(desk):
    first, second = (ended(out) for out in [desk.start(run={"code": HEAD + ONE}) for _ in range(2)])
    assert first["execution"] != second["execution"]
    assert {first["status"], second["status"]} == {"suspended"}
    desk.decide(second["execution"], 1, approved=False)
    assert desk.run(ONE, None)["execution"] == second["execution"]
    waits = desk.run(ONE, None)
    assert (waits["execution"], waits["status"]) == (first["execution"], "suspended")
    narrowed = ended(desk.start(run={"code": HEAD + ONE, "servers": ["local"]}))
    assert narrowed["execution"] not in {first["execution"], second["execution"]}
    desk.decide(first["execution"], 1)
    told = desk.run(ONE, None)
    assert (told["execution"], "careful:b" in told["stdout"]) == (first["execution"], True)
    assert desk.cancel(narrowed["execution"])["status"] == "cancelled"
    assert ended(desk.start(run={"code": HEAD + ONE, "servers": ["local"]}))["status"] == "cancelled"
    assert [line for line in desk.done if line != "once a"] == ["once c", "careful b", "once c"]


@pytest.mark.parametrize("die", ["before:careful b", "in:careful b", "outcome:careful b", "after:careful b", "end"])
def test_wherever_its_host_is_killed_what_was_approved_happens_once(desk, die):
    first = desk.run(ONE)
    desk.decide(first["execution"], 1)
    desk.run(ONE, die=die)
    last = desk.run(ONE)
    if last["status"] == "suspended":
        (call,) = last["error"]["calls"]
        happened = "careful b" in desk.done
        word = {"how": "happened", "value": "careful:b"} if happened else {"how": "not_done"}
        desk.settle(first["execution"], call["call"], **word)
        last = desk.run(ONE)
    assert (last["status"], last["stdout"]) == ("success", "once:a\ncareful:b\nonce:c\n")
    assert desk.done == ["once a", "careful b", "once c"]


def test_the_command_line_lists_shows_and_decides_it_and_goes_on(desk):
    first = desk.run(ONE, None)
    execution = first["execution"]
    ident = f"{execution[:6]}.1"
    code, listed, _ = desk.command("approvals", "list")
    assert code == 0
    assert ident in listed
    assert "local.careful" in listed
    assert "run_python (agent's): 0#2" in listed
    _, shown, _ = desk.command("approvals", "show", ident)
    assert '"text": "b"' in shown
    _, shown, _ = desk.command("execution", "show", execution)
    assert f"approvals show {ident}" in shown
    code, _, errors = desk.command("execution", "resume", execution)
    assert (code, "still_waiting" in errors, execution in errors) == (5, True, True), errors
    code, _, errors = desk.command("approvals", "approve", ident, "--resume")
    assert (code, desk.done) == (0, ["once a", "careful b", "once c"]), errors
    assert desk.run(ONE, None)["stdout"] == "once:a\ncareful:b\nonce:c\n"
    code, _, errors = desk.command("approvals", "deny", ident)
    assert (code, "already_decided" in errors) == (4, True), errors


TALKING = """
print("before")
print(await local.careful(text="b"))
print("after")
"""


@pytest.mark.parametrize("session", [None, "cells"])
@pytest.mark.parametrize("way", ["approve", "resume", "event"])
def test_a_script_that_goes_on_at_a_command_prints_what_run_prints(desk, way, session):
    execution = desk.run(TALKING + "\nawait runtime.wait_event('e')" * (way == "event"), session=session)["execution"]
    ident = f"{execution[:6]}.1"
    if way == "approve":
        code, printed, errors = desk.command("approvals", "approve", ident, "--resume")
        assert printed.endswith("\nbefore\ncareful:b\nafter\n"), printed
    else:
        assert desk.command("approvals", "approve", ident)[0] == 0
        if way == "event":
            # It waits again, and has printed by then what `run` prints then.
            code, printed, errors = desk.command("execution", "resume", execution)
            assert (code, printed) == (5, "before\ncareful:b\nafter\n"), errors
            assert "event send e --execution" in errors
            code, printed, errors = desk.command("event", "send", "e", "--resume")
            assert printed.startswith(f"sent to {execution[:6]}, which is success\n"), printed
            assert printed.endswith("before\ncareful:b\nafter\n"), printed
        else:
            code, printed, errors = desk.command("execution", "resume", execution)
            assert printed == "before\ncareful:b\nafter\n"
    assert code == 0, errors
    assert f"mcp-bridge: run_python: success, execution {execution[:6]}\n" in errors


def test_a_script_that_fails_when_it_goes_on_says_where_and_its_exit_status_is_its_own(desk):
    code = TALKING + "import sys; print('x' * 40_000); 1 / 0 if len(sys.argv) < 9 else None"
    execution = desk.run(code)["execution"]
    desk.decide(execution, 1)
    status, printed, errors = desk.command("execution", "resume", execution)
    assert (status, printed) == (1, "before\ncareful:b\nafter\n" + "x" * 40_000 + "\n")
    assert "Traceback" in errors
    assert "ZeroDivisionError" in errors
    assert "Traceback" in desk.command("execution", "show", execution)[1]
    left = desk.run(TALKING + "import sys; sys.exit(7)", key="left")["execution"]
    desk.decide(left, 1)
    status, printed, _ = desk.command("execution", "resume", left, "--json")
    record = json.loads(printed)
    run = record["run"]
    assert (status, record["status"], run["status"], run["exit_code"]) == (7, "exit", "exit", 7)
    assert (record["trace_id"], run["execution"], run["stdout"]) == (left, left, "before\ncareful:b\nafter\n")
    assert record["error"] == run["error"]["message"]


def test_an_event_that_is_sent_to_a_script_that_cant_go_on_yet_is_no_failure(desk):
    execution = desk.run(TALKING)["execution"]
    code, printed, errors = desk.command("event", "send", "e", "--execution", execution, "--resume")
    assert (code, printed) == (0, f"sent to {execution[:6]}, which is suspended\n"), errors


def test_an_event_reaches_all_waiters_even_if_one_result_is_unreadable(monkeypatch, tmp_path):
    sent = []

    class Owner:
        async def send_event(self, ident, *_, **__):
            sent.append(ident)
            return {"trace_id": ident, "program": "p", "status": "success", "output": ident, "steps": [], "waiting": []}

    async def awaiting(*_):
        return [SimpleNamespace(id="first"), SimpleNamespace(id="second")]

    async def stored(_, ident):
        return SimpleNamespace(id=ident)

    async def unreadable(_, record, before):
        if before.id == "first":
            raise BridgeError("not_recorded", "no")
        # What was printed by then: each is told as it ends.
        sent.append(len(told))
        return resumed.ResumedExecution(record, before.id)

    told = []
    fake = SimpleNamespace(
        programs=SimpleNamespace(store=None), lifecycle=SimpleNamespace(recorder=None), for_owner=lambda _: Owner()
    )
    monkeypatch.setattr(events, "refuse_without_ledger", lambda *_: None)
    monkeypatch.setattr(events, "run_with_bridge", lambda _, work: asyncio.run(work(fake)))
    monkeypatch.setattr(events, "_print_one", lambda one, _: told.append(one.ident))
    monkeypatch.setattr(event_sending, "executions_awaiting", awaiting)
    monkeypatch.setattr(argument_decoding, "execution", stored)
    monkeypatch.setattr(resumed, "resumed_execution", unreadable)
    config = tmp_path / "mcp-bridge.toml"
    config.write_text(f'state_dir = "{tmp_path}/state"\nclient_configs = false\n')
    assert run_here(config, "event", "send", "e").code == 0
    assert (sent, told) == (["first", "second", 1], ["first", "second"])

    def unprintable(one, _):
        told.append(one.ident)
        raise OSError(errno.ENOSPC, "No space left on device")

    # The others get it though nothing can be printed any more.
    sent.clear()
    told.clear()
    monkeypatch.setattr(events, "_print_one", unprintable)
    ended = run_here(config, "event", "send", "e")
    assert (sent, told) == (["first", "second", 1], ["first"])
    assert ended.code != 0
    assert "output_unwritable" in ended.err


CONTROLLING = (
    TALKING
    + """
import sys
print("\\x1b]52;c;cm0=\\x07\\tone\\x9b2J")
print("\\x1b[2Jtwo", file=sys.stderr)
"""
)


def test_a_script_that_goes_on_at_a_command_doesnt_control_the_terminal(desk):
    execution = desk.run(CONTROLLING)["execution"]
    code, shown = desk.at_a_terminal("approvals", "approve", f"{execution[:6]}.1", "--resume")
    assert code == 0, shown
    assert "\nbefore\ncareful:b\nafter\n\\x1b]52;c;cm0=\\x07" in shown
    assert "one\\x9b2J\n" in shown
    assert "\\x1b[2Jtwo\n" in shown
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
    # A pipe gets what was printed.
    second = desk.run(CONTROLLING, key="piped")["execution"]
    desk.decide(second, 1)
    _, printed, errors = desk.command("execution", "resume", second)
    assert "\x1b]52;c;cm0=\x07\tone\x9b2J\n" in printed
    assert "\x1b[2Jtwo\n" in errors


def test_what_waits_is_erased_by_no_age_and_what_nobody_was_told_of_is_run_anew_when_it_is_gone(desk):
    first = desk.run(ONE, None)
    assert desk.forget_erased_values() == ()
    assert desk.run(ONE, None) == first
    desk.decide(first["execution"], 1)
    assert desk.resume(first["execution"])["status"] == "success"
    desk.command("erase", "--execution", first["execution"])
    anew = desk.run(ONE, None)
    assert (anew["execution"] != first["execution"], anew["status"]) == (True, "suspended")
    assert desk.run(ONE, f"waits-{first['execution']}")["code"] == "erased"


# --- made at random ---

TRIED = """
from mcp import programs
async def tried(call):
    try:
        return await call
    except Exception as exc:
        return exc.code
async def ran(program):
    trace = await programs.run(program)
    return trace.status, trace.output
"""


class Written:
    """A script made at random, and what it comes to with people who say no to what ends in `no`."""

    def __init__(self, rng, key):
        self._rng = rng
        # Without a key a script is told that its program waits.
        self._kinds = ("once", "once", "careful", "careful", "later", *(("asking", "calling", "event") if key else ()))
        self._count = 0
        self.done, self.asked, self.steps = [], [], []
        lines, self.printed = [TRIED], []
        for _ in range(rng.randint(2, 3)):
            parts = [self._one() for _ in range(rng.choice((1, 1, 3, 5)))]
            lines.append(f"print(await asyncio.gather({', '.join(code for code, _ in parts)}))\n")
            self.printed.append(f"{[value for _, value in parts]}\n")
        self.code = "".join(lines)

    def _one(self):
        self._count += 1
        text = f"s{self._count}"
        kind = self._rng.choice(self._kinds)
        denied = kind in {"careful", "asking", "calling"} and self._rng.random() < 0.3
        text += "no" if denied else ""
        if kind in {"careful", "asking", "calling"}:
            self.asked.append((text, not denied))
        if kind in {"once", "careful", "later"}:
            if not denied:
                self.done.append(f"{kind} {text}")
            if kind == "once":
                self.steps.append(text)
            value = {"once": f"once:{text}", "careful": "denied" if denied else f"careful:{text}", "later": {"came": 1}}
            return f"tried(local.{kind}(text={text!r}))", value[kind]
        tool = {"id": "do", "type": "tool", "tool": "careful" if kind == "calling" else "again", "args": {"text": text}}
        before = {"asking": {"type": "approval", "message": text}, "event": {"type": "wait", "event": text}}.get(kind)
        program = {"name": kind, "steps": [*([{"id": "ask", **before}] if before else []), tool]}
        if denied:
            return f"ran({program})", ("failed", None)
        self.done.append(f"{tool['tool']} {text}")
        return f"ran({program})", ("success", f"{tool['tool']}:{text}")


def goes_on(desk, rng, written, key, record):
    """Let somebody bring some of what the script waits for; who can't be found may have been another's."""
    for call in (record.get("error") or {}).get("calls", ()):
        text = call["arguments"]["text"]
        name = call["tool"].removeprefix("local.")
        value = {"came": 1} if name == "later" else f"{name}:{text}"
        word = {"how": "happened", "value": value} if f"{name} {text}" in desk.done else {"how": "not_done"}
        desk.settle(record["execution"], call["call"], **word)
    questions = desk.questions()
    rng.shuffle(questions)
    for execution, effect, text in questions[: rng.randint(1, 3)]:
        approved = not text.endswith("no")
        match rng.choice(("command", "viewer", "host")):
            case "command":
                words = ("approvals", "approve" if approved else "deny", f"{execution}.{effect}")
                assert desk.command(*words)[0] == 0
            case "viewer":
                shown = desk.in_viewer(execution, effect, approved=approved)
                assert text in str(shown["details"] or shown["message"])
            case _:
                desk.decide(execution, effect, approved=approved)
    for row in record.get("waiting", ()):
        if row["kind"] == "tool":
            desk.settle(record["execution"], row["call"], how="happened", value={"came": 1})
        elif row["kind"] == "program" and any(of["kind"] == "event" for of in row["waiting"]) and rng.random() < 0.7:
            assert desk.resume(row["execution"], payload=1)["status"] == "success"


@pytest.mark.parametrize("seed", range(150 if LONG else 6))
def test_whatever_waits_for_people_ends_as_with_a_person_there_and_does_everything_once(make_desk, seed):
    rng = random.Random(seed)  # noqa: S311
    desk, key = make_desk(), rng.choice(("key", "key", None))
    written = Written(rng, key)
    for turn in range(40):
        deaths = ["end", *(f"in:once {text}" for text in written.steps)]
        # A run without a key is lost with its host, until it was suspended.
        die = rng.choice(deaths) if rng.random() < 0.3 and (key or turn) else ""
        says = {"says": "each"} if rng.random() < 0.15 else {}
        record = desk.perhaps_killed(written.code, key, die, **says)
        if record is None:
            continue
        if record["status"] != "suspended":
            break
        goes_on(desk, rng, written, key, record)
    assert (record["status"], record["stdout"]) == ("success", "".join(written.printed)), record
    done = [line for line in desk.done if not line.startswith(("again", "asked"))]
    assert Counter(done) == Counter(line for line in written.done if not line.startswith("again"))
    assert {line for line in written.done if line.startswith("again")} <= set(desk.done)
    decided = desk.decisions()
    assert Counter(row[:2] for row in decided) == Counter(written.asked)
    assert {by for *_, by in decided} <= {"anna", "ben", "client", login_name()}
