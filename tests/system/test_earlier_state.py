"""What an earlier build has left of sessions, and of scripts that wait, goes on: `golden/sessions.py` says how it was made."""

import runpy
import zipfile
from pathlib import Path

import pytest
from ledger_looks import look

from mcp_bridge.executions.approvals import approval_requests, decide
from mcp_bridge.governance.governance import load_governance

GOLDEN = Path(__file__).parents[1] / "golden" / "sessions-2026-11-23.zip"

TOOLS = runpy.run_path(str(GOLDEN.with_name("sessions.py")))["TOOLS"]


@pytest.fixture
def earlier(tmp_path):
    """The folder with the state directory, and the tools of then."""
    (tmp_path / "state").mkdir(mode=0o700)
    with zipfile.ZipFile(GOLDEN) as archive:
        archive.extractall(tmp_path / "state")
    for path in (tmp_path / "state").iterdir():
        path.chmod(0o600)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "tools_of_earlier_state.py").write_text(TOOLS)
    return tmp_path


async def approve(bridge):
    """Approve what is asked. Gives the executions."""
    store = bridge.programs.store
    asked = await approval_requests(store, "local")
    for question in asked:
        await decide(store, question, approved=True, by="anna", comment=None)
    return {question.approval.execution for question in asked}


async def test_sessions_and_waiting_scripts_of_an_earlier_build_go_on(sandboxes, earlier):
    state, calls = earlier / "state", earlier / "tools" / "tools_of_earlier_state.calls"
    look(state)
    tables = {
        "tools": {"path": ["tools"], "entry_points": False},
        "policy": {"rules": [{"tools": ["local.order"], "effect": "approve"}]},
    }
    governance = load_governance(tables, None, earlier, state)
    async with sandboxes.open(governance=governance, state_dir=state) as bridge:
        executions = {stored.id: stored for stored in await bridge.programs.store.executions(None, 100)}
        assert sorted(stored.status for stored in executions.values()) == [
            "error",
            *["success"] * 2,
            *["suspended"] * 3,
        ]
        for stored in executions.values():
            if stored.status != "suspended":
                assert (await bridge.replay_execution(stored)).difference is None
        record = await bridge.run("print(seen[1:], a, twice(4), type(seen[0]).__name__)", session="tour")
        assert record.stdout == b"[42] {'did': 'first'} 8 float\n", record.error
        record = await bridge.run("print(seen[1:], a)", session="again", fork="tour@2")
        assert record.stdout == b"[42] {'did': 'first'}\n", record.error
        assert not calls.exists(), "nothing is done twice"
        for execution in await approve(bridge):
            await bridge.resume_execution(execution)
        record = await bridge.run("print(seen[1:])", session="other")
        assert record.stdout == b"['ordered chair']\n", record.error
        assert sorted(calls.read_text().splitlines()) == ["order chair", "order desk"]
        (waiting,) = await bridge.programs.store.executions(None, 100, ["suspended"])
        await bridge.send_event(waiting.id, "paid", {"by": 7}, "OPERATOR", and_resume=True)
        ended = await bridge.programs.store.execution(waiting.id)
        assert ended.status == "success"
        assert "{'by': 7}" in str(ended.record)
        assert sorted(calls.read_text().splitlines()) == ["order chair", "order desk"]
    look(state)
