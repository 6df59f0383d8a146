"""Hosts killed with -9 at every point of a program's execution and at random instants: nothing is lost, nothing done twice.

Each test kills hosts over one program and key, one after the other, until one of them ends it; after each kill it looks at
the log and at what was really done. `MCP_BRIDGE_LONG_TESTS=1` asks for many more of them.
"""

import collections
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from generated_programs import ALL_CONTEXT, Programs, chance
from ledger_looks import look
from power_cut import shim

from mcp_bridge.bridge.recovery import replay
from mcp_bridge.kernel import state
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.program import InvalidProgramError, parse
from mcp_bridge.ledger.schema import FILE_NAME

HOST = Path(__file__).with_name("crash_points.py")
LONG = bool(os.environ.get("MCP_BRIDGE_LONG_TESTS"))
ENDS = {"success", "failed", "cancelled", "budget_exceeded", "stalled"}
SECONDS = 60.0
"""For one host to end."""


# --- programs


def tamed(node, rng):
    """A generated program with the tools that the hosts have, waits that are short, and no deadlines."""
    if isinstance(node, list):
        return [tamed(item, rng) for item in node]
    if not isinstance(node, dict):
        return node
    node = {name: tamed(value, rng) for name, value in node.items() if name != "timeout_seconds"}
    if isinstance(node.get("tool"), str) and isinstance(node.get("args"), dict):
        tool = "once" if node["tool"].startswith("undo_") else rng.choice(("once", "once", "again", "again", "late"))
        node |= {"args": {"step": node["tool"], **node["args"]}, "tool": tool}
    if node.get("type") == "wait" and "seconds" in node:
        node["seconds"] = 0.01
    if isinstance(node.get("retry"), dict):
        node["retry"] = {"schedule": [0.01]}
    return node


def generated(seed):
    """A program that is valid and calls a tool, and the seed after it."""
    for number in itertools.count(seed):
        rng = chance(number)
        program = tamed(Programs(rng, budgets=False, deadlines=False).program(), rng)
        try:
            parse(program)
        except InvalidProgramError:
            continue
        if '"tool"' in json.dumps(program):
            return program, number + 1
    raise AssertionError


def tool(name, step, x="$x", **fields):
    return {"id": step, "type": "tool", "tool": name, "args": {"step": step, "x": x}, **fields}


EVERYTHING = {
    "name": "everything",
    "steps": [
        tool("once", "a", compensate={"tool": "once", "args": {"step": "undo a"}}),
        {"id": "ask", "type": "approval", "message": "Go on?"},
        {
            "id": "both",
            "type": "parallel",
            "parallel_steps": [tool("once", "b"), tool("again", "c"), tool("once", "d", on_error="skip")],
        },
        {"id": "event", "type": "wait", "event": "paid"},
        tool("late", "e"),
        {"id": "each", "type": "map", "over": [1, 2], "step": {"type": "tool", "tool": "again", "args": {"step": "f"}}},
        tool("once", "g", "$e"),
    ],
}
"""A little of each."""

UNDONE = {
    "name": "undone",
    "steps": [
        tool("once", "a", compensate={"tool": "once", "args": {"step": "undo a", "x": "$a"}}),
        tool("again", "b", compensate={"tool": "again", "args": {"step": "undo b"}}),
        tool("broken", "c", retry={"schedule": [0.01, 0.01]}),
    ],
}


# --- hosts


class Runs:
    """Hosts over one state directory, one program and one key.

    Attributes:
        kills: How many have been killed.
    """

    def __init__(self, source, folder, program, context):
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir(parents=True)
        self.effects, self.acknowledged = folder / "effects", folder / "acknowledged"
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
        rows, executions = found.rows, found.executions
        assert known is None or rows[: len(known.rows)] == known.rows, "an entry that was there is gone"
        done = lines(self.effects)
        intents = {(row.entry.execution, row.entry.payload.get("effect")) for row in rows if row.entry.kind == "intent"}
        assert all((row["execution"], row["effect"]) in intents for row in done), "done without an intent"
        begun = collections.Counter(
            (row["execution"], row["effect"]) for row in done if row["did"] == "begin" and row["tool"] != "again"
        )
        assert all(count == 1 for count in begun.values()), "done twice"
        # What may be repeated isn't, either, when its outcome has been recorded.
        for key, count in self._settled:
            assert count == _count(done, key), "repeated though its outcome was recorded"
        self._settled = {
            (
                (row.entry.execution, row.entry.payload["effect"]),
                _count(done, (row.entry.execution, row.entry.payload["effect"])),
            )
            for row in rows
            if row.entry.kind == "outcome" and "effect" in row.entry.payload
        }
        assert len(executions) <= 1, "one key, two executions"
        for record in lines(self.acknowledged):
            assert record["status"] in ENDS | {"suspended"}, record
            assert [record["trace_id"]] == list(executions), "what was acknowledged is gone"
            if record["status"] != "suspended":
                assert executions[record["trace_id"]].record == record

    def finish(self):
        """Without kills: its end, the same for whoever asks again, and the same that the log gives."""
        record = self.run()
        assert record is not None
        assert record.get("status") in ENDS, record
        assert self.run() == record
        found = look(self.state)
        (kept,) = found.executions.values()
        assert (kept.status, kept.state) == (record["status"], None)
        machine = Machine(parse(self.program), self.context)
        replay(machine, state.dump(machine), found.rows)
        assert machine.ended
        assert [state.row_json(row) for row in machine.rows] == record["steps"]
        assert (machine.status, machine.output, machine.error) == (record["status"], record["output"], record["error"])
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


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    environment = os.environ
    if sys.platform == "linux":
        environment = environment | shim.environment(tmp_path_factory.getbasetemp())
    with subprocess.Popen([sys.executable, str(HOST)], stdin=subprocess.PIPE, text=True, env=environment) as process:
        yield process.stdin
        process.stdin.close()


@pytest.fixture
def runs(source, tmp_path):
    numbers = itertools.count()
    return lambda program, context: Runs(source, tmp_path / f"{next(numbers)}", program, context)


def points_of(runs, program, context):
    """Where a host that isn't killed comes, with how often."""
    one = runs(program, context)
    log = one.folder / "points"
    one.run(points=str(log))
    one.finish()
    return collections.Counter(lines(log))


# --- tests


@pytest.mark.parametrize("program", [EVERYTHING, UNDONE], ids=lambda program: program["name"])
def test_a_kill_at_every_named_point_loses_nothing_and_repeats_nothing(runs, program):
    points = points_of(runs, program, {"x": "a"})
    assert len(points) >= (27 if program is EVERYTHING else 15)
    for point, count in sorted(points.items()):
        for nth in range(1, count + 1) if LONG else {(count + 1) // 2}:
            one = runs(program, {"x": "a"})
            one.run({"point": point, "nth": nth})
            assert one.kills == 1, (point, nth)
            one.finish()


@pytest.mark.parametrize("first", range(0, 400 if LONG else 20, 4))
def test_generated_programs_are_killed_at_points_and_instants_until_they_end(runs, first):
    seed = first * 1000
    for _ in range(4):
        program, seed = generated(seed)
        rng = chance(seed)
        points = [point for point, count in points_of(runs, program, ALL_CONTEXT).items() for _ in range(count)]
        one = runs(program, ALL_CONTEXT)
        for _ in range(3):
            if rng.random() < 0.6:
                one.run({"point": rng.choice(points), "nth": rng.randint(1, 2)})
            else:
                one.run({"seconds": rng.random() * 0.2})
        one.finish()


@pytest.mark.skipif(sys.platform != "linux", reason="the shim is for Linux")
@pytest.mark.parametrize(
    ("operation", "suffix"),
    [("write", "-wal"), ("sync", "-wal"), ("open", "-wal"), ("write", FILE_NAME), ("sync", FILE_NAME)],
)
def test_a_kill_inside_a_transaction_loses_nothing_and_repeats_nothing(runs, operation, suffix):
    killed = 0
    for nth in range(1, 200, 1 if LONG else 7):
        one = runs(EVERYTHING, {"x": "a"})
        one.run({"operation": operation, "suffix": suffix, "nth": nth})
        one.finish()
        if not one.kills:
            break
        killed += 1
    assert killed
