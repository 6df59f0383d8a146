"""Hosts of programs that die or meet faults, over one state directory; what must hold is checked after each."""

import collections
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ledger_looks import look
from power_cut import shim

from mcp_bridge.executions.programs.recovery import apply_recorded
from mcp_bridge.kernel import state
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.machine import Machine

HOST = Path(__file__).with_name("crash_points.py")
LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))
"""Whether many more kills and cuts are wanted."""

BOUNDED = pytest.mark.timeout(7200 if LONG else 180)

ENDS = {"success", "failed", "cancelled", "budget_exceeded", "stalled"}
SECONDS = 60.0
"""For one host to end."""


def tool(name, step, x="$x", **fields):
    return {"id": step, "type": "tool", "tool": name, "args": {"step": step, "x": x}, **fields}


class Runs:
    """Hosts over one state directory, one program and one key.

    Attributes:
        kills: How many have been killed.
    """

    def __init__(self, source, folder, program, context):
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir(parents=True)
        self.effects, self.acknowledged = folder / "effects", folder / "told"
        self.effects.touch()
        self.acknowledged.touch()
        self.program, self.context = program, context
        self._source = source
        self._started = 0
        self._before = None
        self._settled = set()
        self.kills = 0

    def start(self, kill=None, **more):
        self._started += 1
        out = self.folder / f"out{self._started}"
        job = {
            "state": str(self.state),
            "program": self.program,
            "context": self.context,
            "key": "key",
            "out": str(out),
            "effects": str(self.effects),
            "acknowledged": str(self.acknowledged),
            "kill": kill,
            **more,
        }
        self._source.write(json.dumps(job) + "\n")
        self._source.flush()
        return out

    def run(self, kill=None, **more):
        """What a host has given; None of one that was killed. What must hold is checked."""
        told = ended(self.start(kill, **more))
        self.kills += told is None
        self.check()
        return told

    def check(self):
        """Hold the log against what was done, and against what it was before."""
        known = self._before
        found = self._before = look(self.state, known.vkey, [known.note]) if known and known.vkey else look(self.state)
        rows = found.rows
        executions = {name: row for name, row in found.executions.items() if row.key == "key"}
        assert known is None or rows[: len(known.rows)] == known.rows, "an entry that was there is gone"
        done = lines(self.effects)
        intents = {(row.entry.execution, row.entry.payload.get("effect")) for row in rows if row.entry.kind == "intent"}
        assert all((row["execution"], row["effect"]) in intents for row in done), "done without an intent"
        begun = collections.Counter(
            (row["execution"], row["effect"], row["step"])
            for row in done
            if row["did"] == "begin" and row["tool"] != "again"
        )
        assert all(count == 1 for count in begun.values()), "done twice"
        # What may be repeated isn't, either, when its outcome has been recorded.
        for key, count in self._settled:
            assert count == _count(done, key), "repeated though its outcome was recorded"
        ended_effects = {
            (row.entry.execution, row.entry.payload["effect"])
            for row in rows
            # One that waits for a person may be made after that.
            if row.entry.kind == "outcome"
            and "effect" in row.entry.payload
            and not (row.entry.payload["status"] == "pending" and row.entry.payload.get("code"))
        }
        self._settled = {(effect, _count(done, effect)) for effect in ended_effects}
        assert len(executions) <= 1, "one key, two executions"
        for record in lines(self.acknowledged):
            assert record["status"] in ENDS | {"suspended"}, record
            assert [record["trace_id"]] == list(executions), "what was acknowledged is gone"
            if record["status"] != "suspended":
                assert executions[record["trace_id"]].record == record

    @property
    def halves(self):
        """Whether an effect was begun and never ended: what a person says of that is that it failed."""
        did = collections.Counter(row["did"] for row in lines(self.effects))
        return did["begin"] != did["end"]

    def finish(self, *, again=False):
        """Without kills: its end, the same that the log gives, and the same for whoever asks `again`."""
        record = self.run()
        assert record is not None
        assert record.get("status") in ENDS, record
        if again:
            assert self.run() == record
        found = look(self.state)
        (kept,) = (row for row in found.executions.values() if row.key == "key")
        assert (kept.status, kept.state) == (record["status"], None)
        machine = Machine(parse(self.program), self.context)
        apply_recorded(machine, state.dump(machine), [row for row in found.rows if row.entry.execution == kept.id])
        assert machine.ended
        # Why a condition failed is told by the process that has seen it, and isn't in the state.
        steps = [{name: value for name, value in row.items() if name != "why"} for row in record["steps"]]
        assert [state.row_json(row) for row in machine.rows] == steps
        assert (machine.status, machine.output) == (record["status"], record["output"])
        assert (record["error"] or "").startswith(machine.error or "")
        assert bool(record["error"]) == bool(machine.error)
        return record


def _count(done, key):
    return sum((row["execution"], row["effect"]) == key and row["did"] == "begin" for row in done)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def ended(out):
    """What a host has given at its end; None of one that was killed."""
    mark = out.with_name(out.name + ".ended")
    deadline = time.monotonic() + SECONDS
    while not mark.exists():
        assert time.monotonic() < deadline, "the host doesn't end"
        time.sleep(0.003)
    code = int(mark.read_text())
    assert code in {0, -signal.SIGKILL}, out.read_text()
    return json.loads(out.read_text()) if code == 0 else None


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    environment = os.environ
    if sys.platform == "linux":
        environment = environment | shim.environment(tmp_path_factory.getbasetemp())
    with subprocess.Popen([sys.executable, str(HOST)], stdin=subprocess.PIPE, text=True, env=environment) as process:
        yield process.stdin
        process.stdin.close()


@pytest.fixture
def runs(source, tmp_path, record_property):
    made = []

    def make(program, context):
        made.append(Runs(source, tmp_path / f"{len(made)}", program, context))
        return made[-1]

    yield make
    record_property("kills", sum(one.kills for one in made))
