"""Hosts killed with -9 at every point of a program's execution and at random instants: nothing is lost, nothing done twice.

Each test kills hosts over one program and key, one after the other, until one of them ends it; after each kill the log and
what was really done are looked at (`crash_fixtures.py`). `MCP_BRIDGE_TEST_LONG=1` asks for many more of them.
"""

import collections
import itertools
import json
import sys

import pytest
from crash_fixtures import BOUNDED, LONG, lines, tool
from generated_programs import ALL_CONTEXT, Programs, chance

from mcp_bridge.kernel.language.program_parser import InvalidProgramError, parse
from mcp_bridge.ledger.storage.schema import FILE_NAME

MIN_KILLS = 4
"""Of twelve that are tried. Some come too late: their instant is after the program's end, or their point before the last kill."""

pytestmark = BOUNDED

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


def whole_run(runs, program, context):
    """Of a host that isn't killed: where it comes, with how often, and what it gives."""
    one = runs(program, context)
    log = one.folder / "points"
    record = one.run(points=str(log))
    return collections.Counter(lines(log)), record


def outcomes(record):
    """What became of the steps, without the words for what failed: a person has others."""
    return [{name: value for name, value in row.items() if name not in {"error", "code"}} for row in record["steps"]]


# --- tests


@pytest.mark.parametrize("program", [EVERYTHING, UNDONE], ids=lambda program: program["name"])
def test_a_kill_at_every_named_point_loses_nothing_and_repeats_nothing(runs, program):
    points, wanted = whole_run(runs, program, {"x": "a"})
    assert len(points) >= (28 if program is EVERYTHING else 16)
    for point, count in sorted(points.items()):
        for nth in range(1, count + 1) if LONG else {(count + 1) // 2}:
            one = runs(program, {"x": "a"})
            one.run({"point": point, "nth": nth})
            assert one.kills == 1, (point, nth)
            record = one.finish()
            # A person's word of what comes later is that it has come.
            late = next((row["status"] for row in record["steps"] if row["id"] == "e"), "pending")
            if not one.halves and late == "pending":
                assert outcomes(record) == outcomes(wanted), (point, nth)


@pytest.mark.parametrize("first", range(0, 120 if LONG else 8, 4))
def test_generated_programs_are_killed_at_points_and_instants_until_they_end(runs, first):
    seed, kills = first * 1000, 0
    for _ in range(4):
        program, seed = generated(seed)
        # For whoever looks into a failure.
        print(f"before seed {seed}: {json.dumps(program)}")
        rng = chance(seed)
        points = whole_run(runs, program, ALL_CONTEXT)[0]
        one = runs(program, ALL_CONTEXT)
        for _ in range(3):
            if rng.random() < 0.6:
                (point,) = rng.choices(list(points), list(points.values()))
                one.run({"point": point, "nth": rng.randint(1, points[point])})
            else:
                one.run({"seconds": rng.random() * 0.2})
        one.finish(again=True)
        kills += one.kills
    assert kills >= MIN_KILLS


@pytest.mark.skipif(sys.platform != "linux", reason="the shim is for Linux")
@pytest.mark.parametrize(
    ("operation", "suffix"),
    [("write", "-wal"), ("sync", "-wal"), ("open", "-wal"), ("write", FILE_NAME), ("sync", FILE_NAME)],
)
def test_a_kill_inside_a_transaction_loses_nothing_and_repeats_nothing(runs, operation, suffix):
    killed = 0
    for nth in range(1, 400, 1 if LONG else 17):
        one = runs(EVERYTHING, {"x": "a"})
        one.run({"operation": operation, "suffix": suffix, "nth": nth})
        one.finish()
        if not one.kills:
            break
        killed += 1
    assert killed
