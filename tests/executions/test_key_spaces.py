"""Idempotency keys of agents and of operators are others, and what a script was not given nobody gives its programs."""

import dataclasses
import json
import textwrap
import uuid
from pathlib import Path

import pytest
from execution_fixtures import printed

from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.kernel.events import Resume
from mcp_bridge.ledger.storage.execution_store import ProgramStore

pytestmark = [pytest.mark.usefixtures("whole_ledgers"), pytest.mark.timeout(120)]

TOOLS = """
from pathlib import Path
import mcp_bridge

PAID = Path(__file__).with_suffix(".paid")

def note(name):
    with PAID.open("a") as file:
        file.write(name + chr(10))
    return name

@mcp_bridge.tool
def pay(name: str) -> str:
    return note(name)

@mcp_bridge.tool
def book(name: str) -> str:
    return note(name)
"""

ORDER = {
    "name": "order",
    "steps": [{"id": "pay", "type": "tool", "tool": "pay", "args": {"name": "$name"}, "on_error": "skip"}],
}
"""The operator's: it alone may pay, and what it is denied it skips."""

ASKED = {
    "name": "asked",
    "steps": [
        {"id": "ask", "type": "approval", "message": "Book?"},
        {"id": "book", "type": "tool", "tool": "book", "args": {"name": "$name"}, "on_error": "skip"},
    ],
}

MAPPED = {
    "name": "mapped",
    "steps": [
        {"id": "ask", "type": "approval", "message": "Book?"},
        {
            "id": "all",
            "type": "map",
            "over": "$names",
            "as": "name",
            "step": {"id": "one", "type": "program", "program": "booked", "context": {"name": "$name"}},
        },
    ],
}

BOOKED = {
    "name": "booked",
    "steps": [{"id": "book", "type": "tool", "tool": "book", "args": {"name": "$name"}, "on_error": "skip"}],
}

RULES = {"rules": [{"tools": ["local.pay"], "effect": "program", "programs": ["order"]}]}

INLINE = f"""
from mcp import programs
trace = await programs.run({ORDER!r}, {{"name": "a"}}, idempotency_key="order-7")
print(trace.status, [step.status for step in trace.steps])
"""

NAMED = """
from mcp import programs
trace = await programs.run("order", {"name": "a"}, idempotency_key="order-7")
print(trace.status, [step.status for step in trace.steps])
"""


class Desk:
    """Tools of the operator's, and what they have done."""

    def __init__(self, folder: Path, state: Path) -> None:
        (folder / "tools").mkdir()
        (folder / "programs").mkdir()
        module = folder / "tools" / f"desk_{uuid.uuid4().hex}.py"
        module.write_text(textwrap.dedent(TOOLS))
        self._paid = module.with_suffix(".paid")
        for program in (ORDER, ASKED, BOOKED, MAPPED):
            (folder / "programs" / f"{program['name']}.json").write_text(json.dumps(program))
        tables = {
            "tools": {"path": ["tools"], "entry_points": False},
            "programs": {"path": ["programs"]},
            "policy": RULES,
        }
        self.governance = load_governance(tables, None, folder, state)

    def did(self):
        return self._paid.read_text().splitlines() if self._paid.exists() else []


@pytest.fixture
def desk(tmp_path, sandboxes):
    return Desk(tmp_path, sandboxes.settings.state_dir)


@pytest.fixture
def kept_as_before(monkeypatch):
    """While it is on, executions are kept as version 0.1.0 kept them: all keys in one space."""
    add = ProgramStore.add

    async def one_space(self, execution, *arguments, **named):
        return await add(self, dataclasses.replace(execution, key_space=""), *arguments, **named)

    monkeypatch.setattr(ProgramStore, "add", one_space)
    return lambda: monkeypatch.setattr(ProgramStore, "add", add)


# --- keys of programs


@pytest.mark.parametrize(("code", "servers"), [(INLINE, None), (NAMED, [])], ids=["inline", "by name, narrowed"])
async def test_an_agent_cannot_spend_an_operators_key(sandboxes, desk, tmp_path, code, servers):
    async with sandboxes.open(governance=desk.governance, state_dir=tmp_path / "state") as bridge:
        assert printed(await bridge.run(code, servers=servers)) == "success ['skipped']\n"
        assert desk.did() == []
        asked = ("order", {"name": "a"}, "order-7")
        first = await bridge.run_program(*asked, starter="operator")
        assert [step["status"] for step in first["steps"]] == ["success"]
        assert desk.did() == ["a"]
        # Each is told of its own, as often as it asks, and nothing is done again.
        assert await bridge.run_program(*asked, starter="operator") == first | {"is_previous_result": True}
        assert printed(await bridge.run(code, servers=servers)) == "success ['skipped']\n"
        assert desk.did() == ["a"]


async def test_an_agent_cannot_spend_an_operators_key_through_the_tools_for_programs(sandboxes, desk, tmp_path):
    async with sandboxes.open(governance=desk.governance, state_dir=tmp_path / "state") as bridge:
        denied = await bridge.run_program(ORDER, {"name": "a"}, "order-7")
        assert [step["status"] for step in denied["steps"]] == ["skipped"]
        await bridge.run_program("order", {"name": "a"}, "order-7", starter="operator")
        assert desk.did() == ["a"]


async def test_a_key_of_the_same_steps_from_a_file_is_not_that_of_the_operators_program(sandboxes, desk, tmp_path):
    async with sandboxes.open(governance=desk.governance, state_dir=tmp_path / "state") as bridge:
        await bridge.run_program(ORDER, {"name": "a"}, "order-7", starter="operator")
        with pytest.raises(BridgeError, match="belongs to another program") as caught:
            await bridge.run_program("order", {"name": "a"}, "order-7", starter="operator")
        assert caught.value.code == "key_conflict"
        assert desk.did() == []


async def test_a_script_cannot_give_the_key_that_another_call_of_a_script_will_have(sandboxes, desk, tmp_path):
    code = """
from mcp import programs, runtime
trace = await programs.run("order", {"name": "a"})
print(trace.trace_id)
"""
    async with sandboxes.open(governance=desk.governance, state_dir=tmp_path / "state") as bridge:
        record = await bridge.run(code, key="one")
        own = printed(record).strip()
        (call,) = [
            row.entry.payload["call"]
            for row in await bridge.programs.recorder.read(record.execution)
            if row.entry.kind == "outcome" and row.entry.payload["kind"] == "program"
        ]
        other = await bridge.run_program("order", {"name": "a"}, f"{record.execution}/{call}")
        assert other["trace_id"] != own
    assert desk.did() == ["a", "a"]


# --- keys of scripts

PAY = """
try:
    from mcp.servers import local
    print(await local.book(name="a"))
except Exception:
    print("no")
"""


async def test_an_agent_cannot_spend_the_key_of_an_operators_script(sandboxes, desk, tmp_path):
    async with sandboxes.open(governance=desk.governance, state_dir=tmp_path / "state") as bridge:
        assert printed(await bridge.run(PAY, servers=[], key="order-7")) == "no\n"
        assert desk.did() == []
        assert printed(await bridge.run(PAY, key="order-7", starter="operator")) == "a\n"
        assert printed(await bridge.run(PAY, key="order-7", starter="operator")) == "a\n"
        assert printed(await bridge.run(PAY, servers=[], key="order-7")) == "no\n"
    assert desk.did() == ["a"]


async def test_what_is_begun_in_a_sandbox_is_an_agents_whoever_has_the_script_run(sandboxes, desk, tmp_path):
    async with sandboxes.open(governance=desk.governance, state_dir=tmp_path / "state") as bridge:
        assert printed(await bridge.run(INLINE, key="script", starter="operator")) == "success ['skipped']\n"
        await bridge.run_program("order", {"name": "a"}, "order-7", starter="operator")
    assert desk.did() == ["a"]


# --- keys that version 0.1.0 has kept


async def test_a_key_of_an_older_version_is_found_by_either_and_nothing_is_done_again(
    sandboxes, desk, tmp_path, kept_as_before
):
    async with sandboxes.open(governance=desk.governance, state_dir=tmp_path / "state") as bridge:
        asked = ("order", {"name": "a"}, "order-7")
        first = await bridge.run_program(*asked)
        script = printed(await bridge.run(PAY, key="script"))
        kept_as_before()
        for starter in ("operator", "agent"):
            assert await bridge.run_program(*asked, starter=starter) == first | {"is_previous_result": True}
            assert printed(await bridge.run(PAY, key="script", starter=starter)) == script
    assert desk.did() == ["a", "a"]


@pytest.mark.parametrize(("code", "servers"), [(INLINE, None), (NAMED, [])], ids=["inline", "by name, narrowed"])
async def test_what_an_agent_did_under_a_key_of_an_older_version_is_not_taken_for_an_operators(
    sandboxes, desk, tmp_path, kept_as_before, code, servers
):
    async with sandboxes.open(governance=desk.governance, state_dir=tmp_path / "state") as bridge:
        printed(await bridge.run(code, servers=servers))
        printed(await bridge.run(PAY, servers=servers, key="script"))
        did = desk.did()
        kept_as_before()
        with pytest.raises(BridgeError) as caught:
            await bridge.run_program("order", {"name": "a"}, "order-7", starter="operator")
        assert caught.value.code == "key_conflict"
        if servers is not None:
            with pytest.raises(BridgeError, match="perhaps by an agent") as caught:
                await bridge.run(PAY, key="script", starter="operator")
            assert caught.value.code == "key_conflict"
        # To the agent it is what it was.
        assert printed(await bridge.run(code, servers=servers)) == "success ['skipped']\n"
    assert desk.did() == did


# --- a script that was given some servers only

START = """
from mcp import programs
trace = await programs.run({program}, {context}, idempotency_key={key!r})
print(trace.trace_id, trace.status)
"""


async def _started(bridge, program, context, key=None, **options):
    record = await bridge.run(START.format(program=repr(program), context=repr(context), key=key), **options)
    execution, status = printed(record).split()
    assert status == "suspended"
    return execution


async def _approve(bridge, execution):
    from mcp_bridge.executions.approvals import approval_requests, decide

    (row,) = await approval_requests(bridge.programs.store, "local", execution, open_only=True)
    await decide(bridge.programs.store, row, approved=True, by="anna", comment=None)


@pytest.mark.parametrize(
    ("program", "context"),
    [(ASKED, {"name": "a"}), ("asked", {"name": "a"}), (MAPPED, {"names": ["a", "b"]})],
    ids=["inline", "by name", "nested in a map"],
)
async def test_a_program_that_a_narrowed_script_has_begun_stays_narrowed_whoever_goes_on_with_it(
    sandboxes, desk, tmp_path, program, context
):
    state = {"governance": desk.governance, "state_dir": tmp_path / "state"}
    async with sandboxes.open(**state) as bridge:
        execution = await _started(bridge, program, context, servers=[])
    async with sandboxes.open(**state) as bridge:
        await _approve(bridge, execution)
        record = await bridge.resume_execution(execution, Resume(None))
        assert record["status"] == "success"
    assert desk.did() == []


async def test_a_program_that_was_narrowed_stays_so_after_a_death_and_with_its_key(sandboxes, desk, tmp_path):
    state = {"governance": desk.governance, "state_dir": tmp_path / "state"}
    code = START.format(program=repr(ASKED), context={"name": "a"}, key="key")
    async with sandboxes.open(**state) as bridge:
        died = await _started(bridge, ASKED, {"name": "a"}, "key", servers=[])
        await _approve(bridge, died)
        # As if its process had died while it went on.
        await bridge.programs.store.update(died, status="interrupted", **await _kept(bridge, died))
    async with sandboxes.open(**state) as bridge:
        assert printed(await bridge.run(code)) == f"{died} success\n"
    assert desk.did() == []


async def test_what_undoes_a_narrowed_programs_steps_is_narrowed_too(sandboxes, desk, tmp_path):
    undone = {
        "name": "undone",
        "steps": [
            {
                "id": "book",
                "type": "tool",
                "tool": "book",
                "args": {"name": "$name"},
                "compensate": {"tool": "time.forget", "args": {"name": "$name"}},
            },
            ASKED["steps"][0],
        ],
    }
    async with sandboxes.open(governance=desk.governance, state_dir=tmp_path / "state") as bridge:
        execution = await _started(bridge, undone, {"name": "a"}, servers=["local"])
        record = await bridge.cancel_execution(execution, "enough")
        assert "There is no server 'time'." in json.dumps(record), record
    assert desk.did() == ["a"]


async def _kept(bridge, execution):
    stored = await bridge.programs.store.execution(execution)
    return {"state": stored.state, "record": stored.record, "due": None}


@pytest.mark.parametrize("starter", ["operator", "agent"])
async def test_a_narrowed_script_cannot_spend_what_has_more_servers_by_going_on_with_it(
    sandboxes, desk, tmp_path, starter
):
    resume = """
from mcp import programs
try:
    print((await programs.resume({!r})).status)
except Exception as exc:
    print(exc.code)
"""
    async with sandboxes.open(governance=desk.governance, state_dir=tmp_path / "state") as bridge:
        begun = await bridge.run_program("asked", {"name": "a"}, "order-7", starter=starter)
        await _approve(bridge, begun["trace_id"])
        assert printed(await bridge.run(resume.format(begun["trace_id"]), servers=[])) == "narrowed\n"
        assert desk.did() == []
        done = await bridge.run_program("asked", {"name": "a"}, "order-7", starter=starter)
        assert (done["trace_id"], done["status"]) == (begun["trace_id"], "success")
    assert desk.did() == ["a"]


async def test_a_script_that_goes_on_has_the_servers_that_it_was_given_and_none_that_is_called_so_now(
    sandboxes, desk, tmp_path
):
    async with sandboxes.open(governance=desk.governance, state_dir=tmp_path / "state") as bridge:
        record = await bridge.run("print(1)", servers=["LOCAL"], key="one")
        stored = await bridge.programs.store.execution(record.execution)
        assert stored.bundle["servers"] == ["local"]
