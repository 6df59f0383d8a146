"""What records can be exchanged without a change to the gate: each keeps the same of the same."""

import uuid

import pytest
from memory_recorder import MemoryRecorder

from mcp_bridge.governance.governance import load_governance
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.settings import Settings

ENTRIES = [
    Entry("start", "a", {"program": "p"}, None, "policy", "hash"),
    Entry("intent", "b", {"arguments": {"x": [1, 2.5, None, "é"]}}, "step", "policy"),
    Entry("outcome", "a", {"status": "ok"}, "step", "policy", "hash"),
]

TOOLS = """
import mcp_bridge

@mcp_bridge.tool
def work(x: int) -> int:
    return x + 1

@mcp_bridge.tool
def forbidden() -> None:
    raise AssertionError
"""

PROGRAM = {
    "steps": [
        {"id": "one", "type": "tool", "tool": "work", "args": {"x": "$n"}},
        {"id": "two", "type": "tool", "tool": "forbidden", "on_error": "skip"},
        {"id": "three", "type": "tool", "tool": "work", "args": {"x": "$one"}},
    ]
}


@pytest.fixture(params=["memory", "sqlite"])
async def recorder(request, tmp_path):
    if request.param == "memory":
        yield MemoryRecorder()
        return
    async with Database(tmp_path / "file") as database:
        yield SqliteRecorder(database)


async def test_entries_are_read_as_they_were_recorded_in_their_order(recorder):
    recorder.post(ENTRIES[0])
    await recorder.append(ENTRIES[1], ENTRIES[2])
    rows = await recorder.read("a")
    assert [row.entry for row in rows] == [ENTRIES[0], ENTRIES[2]]
    # A log that proves its entries begins with one of its own.
    first = 0 if isinstance(recorder, MemoryRecorder) else 1
    assert [row.sequence for row in rows] == [first, first + 2]
    assert rows[0].time <= rows[1].time
    assert [row.entry for row in await recorder.read("b")] == [ENTRIES[1]]
    assert await recorder.read("nobody") == []


async def test_the_gate_tells_any_recorder_the_same(recorder, tmp_path):
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / f"tools_{uuid.uuid4().hex}.py").write_text(TOOLS)
    policy = {"rules": [{"tools": ["local.forbidden"], "effect": "deny"}]}
    tables = {"tools": {"path": ["tools"], "entry_points": False}, "policy": policy}
    governance = load_governance(tables, None, tmp_path, tmp_path / "state")
    async with open_bridge(Settings(state_dir=tmp_path / "state"), (), governance) as bridge:
        keeper, bridge.programs.recorder = bridge.programs.recorder, recorder
        bridge.programs.lifecycle.recorder = recorder
        record = await bridge.run_program(PROGRAM, {"n": 1})
        assert (record["status"], record["output"]) == ("success", 3)
        rows = [row.entry for row in await recorder.read(record["trace_id"])]
        # The start is recorded by whoever keeps the execution, together with it.
        assert [row.entry.kind for row in await keeper.read(record["trace_id"])] == ["start"]
    assert [entry.kind for entry in rows] == [
        "intent", "outcome", "denial", "outcome", "intent", "outcome", "end",
    ]  # fmt: skip
    assert {entry.policy for entry in rows} == {governance.snapshot.hash}
    assert {entry.execution for entry in rows} == {record["trace_id"]}
    assert [entry.payload["value"] for entry in rows if entry.payload.get("status") == "ok"] == [2, 3]
