"""What people see of an execution: its timeline, what it comes to, and the way through its program."""

import itertools
from xml.etree import ElementTree as ET

import pytest

from mcp_bridge.kernel.events import Outcome
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.kernel.state import row_json
from mcp_bridge.ledger.log.entries import TOMBSTONE, Entry, Recorded
from mcp_bridge.ledger.log.payloads import Damaged
from mcp_bridge.views.graph import END, FAILURE, draw
from mcp_bridge.views.graph_path import START, Path, taken
from mcp_bridge.views.graph_svg import svg
from mcp_bridge.views.timeline import OPEN, timeline, totals

SVG = "{http://www.w3.org/2000/svg}"


def recorded(*entries):
    """Entries, a second apart: kind, payload, and perhaps a step."""
    return [
        Recorded(10 + number, 100.0 + number, Entry(kind, "x", payload, *step, program="hash"))
        for number, (kind, payload, *step) in enumerate(entries)
    ]


def intent(effect, tool="a.b", step="s", **fields):
    return ("intent", {"kind": "tool", "tool": tool, "arguments": {"n": effect}, "effect": effect, **fields}, step)


def outcome(effect, status="ok", **fields):
    return ("outcome", {"effect": effect, "status": status, **fields})


def shown(rows):
    return [(row.kind, row.what, row.status, row.sequences, row.seconds) for row in rows]


def test_a_call_and_its_outcome_are_one_row_whatever_came_between():
    rows = timeline(recorded(("start", {"program": "p"}), intent(1), intent(2), outcome(2, value=5), outcome(1, "failed", code="c", message="m"), ("end", {"status": "failed"})))  # fmt: skip
    assert shown(rows) == [
        ("start", "p", "", (10,), None),
        ("call", "a.b", "failed", (11, 14), 3.0),
        ("call", "a.b", "ok", (12, 13), 1.0),
        ("end", "", "failed", (15,), None),
    ]
    assert (rows[1].error, rows[2].value, rows[2].given, rows[2].step) == (
        {"code": "c", "message": "m"},
        5,
        {"n": 2},
        "s",
    )


def test_a_scripts_calls_of_one_tool_end_in_their_order():
    calls = [("intent", {"kind": "tool", "tool": "a.b", "arguments": {"n": number}}) for number in (1, 2)]
    ends = [("outcome", {"tool": "a.b", "status": status}) for status in ("ok", "failed")]
    rows = timeline(recorded(*calls, *ends))
    assert [(row.given["n"], row.status, row.sequences) for row in rows] == [
        (1, "ok", (10, 12)),
        (2, "failed", (11, 13)),
    ]


def test_a_call_without_an_outcome_is_under_way():
    (row,) = timeline(recorded(intent(1)))
    assert (row.status, row.seconds) == (OPEN, None)


def test_a_doubt_its_settlement_and_the_call_that_was_made_after_it():
    settled = (
        "decision",
        {"effect": 1, "tool": "a.b", "arguments": {}, "settled": "not_done", "by": "anna", "comment": None},
        "s",
    )
    rows = timeline(recorded(intent(1), outcome(1, "pending", code="in_doubt", message="?"), settled, ("transition", {"event": "redo", "effect": 1}), intent(1), outcome(1, value=1)))  # fmt: skip
    assert [(row.kind, row.status, row.sequences) for row in rows] == [
        ("call", "in_doubt", (10, 11)), ("decision", "not_done", (12,)), ("transition", "", (13,)), ("call", "ok", (14, 15)),
    ]  # fmt: skip
    assert rows[1].value == {"by": "anna"}


def test_an_intent_that_was_repeated_has_the_later_outcome():
    rows = timeline(recorded(intent(1), ("resume", {"recovered": True}), intent(1), outcome(1, value=1)))
    assert [(row.kind, row.status) for row in rows] == [("call", OPEN), ("resume", ""), ("call", "ok")]


def test_a_denial_has_what_its_machine_was_told():
    rows = timeline(
        recorded(("denial", {"tool": "a.b", "by": "rule 1"}, "s"), outcome(1, "denied", code="denied", message="no"))
    )
    assert shown(rows) == [("denial", "a.b", "denied", (10, 11), 1.0)]


def test_a_decision_says_what_was_asked_and_who_said_what():
    payload = {"message": "Go?", "details": {"a": 1}, "step": "s", "approved": False, "by": "anna", "comment": "no"}
    (row,) = timeline(recorded(("decision", payload, "s")))
    assert (row.what, row.status, row.given, row.value) == (
        "Go?",
        "denied",
        {"details": {"a": 1}},
        {"by": "anna", "comment": "no"},
    )


@pytest.mark.parametrize("payload", [{"erased": TOMBSTONE}, Damaged("it was changed").encode()])
def test_what_cannot_be_read_says_why_and_nothing_else(payload):
    kinds = ("start", "intent", "outcome", "denial", "decision", "transition", "violation", "suspension", "end")
    rows = timeline(recorded(*((kind, payload) for kind in kinds)))
    assert [row.kind for row in rows] == ["start", "call", *kinds[3:]]
    for row in rows:
        assert (row.erased, row.damaged) == (("erased" in payload), payload.get("damaged", ""))
        assert (row.what, row.given, row.value, row.error) == ("", None, None, None)
    assert sorted(itertools.chain(*(row.sequences for row in rows))) == list(range(10, 19))


def test_totals_count_what_happened():
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "cost_usd": 0.25}
    question = ("intent", {"kind": "llm", "effect": 3, "arguments": {"prompt": "?"}}, "m")
    rows = timeline(recorded(intent(1), outcome(1), intent(2), outcome(2, "timeout"), question, outcome(3, value="!", usage=usage), ("denial", {"tool": "x", "by": "rule 1"}), ("violation", {"message": "v"}), ("suspension", {"status": "suspended"})))  # fmt: skip
    found = totals(rows)
    assert (found.calls, found.models, found.failed, found.denials, found.violations, found.waits) == (2, 1, 1, 1, 1, 1)
    assert (found.tokens, found.cost_usd, found.seconds) == (7, 0.25, 8.0)
    assert totals([]).seconds == 0


# --- the way through a program


def tool(name, **fields):
    return {"id": name, "type": "tool", "tool": name, **fields}


LOOP = [
    tool("a", output_key="x"),
    {"id": "c", "type": "condition", "condition": "$x == 1", "then": "b", "otherwise": "d"},
    tool("b", next_step="a"),
    tool("d", next_step="e"),
    {"id": "e", "type": "parallel", "parallel_steps": [tool("e1"), tool("e2")]},
    {
        "id": "n",
        "type": "program",
        "program": {"name": "inner", "steps": [tool("i"), tool("j", is_terminal=True), tool("k")]},
    },
    tool("z"),
]


def run(steps, *values):
    """The program, and the machine after as many outcomes."""
    program = parse({"name": "p", "steps": steps})
    machine = Machine(program, {})
    waiting = list(machine.effects)
    for value in values:
        effect = waiting.pop(0)
        status = "failed" if value == "fails" else "ok"
        waiting += machine.apply(Outcome(effect.id, status, value if status == "ok" else None, "x", "x"))
    way = [effect.step for effect, _ in machine.awaited()]
    return program, taken(program, map(row_json, machine.rows), way, machine.status)


def test_the_way_is_that_of_the_machine():
    program, path = run(LOOP, 1, 0, 2, 0, 0, 0, 0, 0, 0)
    place = program.index
    assert path.steps == dict.fromkeys(range(7), "success")
    names = ("a", "c", "b", "a", "c", "d", "e", "n", "z")
    assert path.ways == {(START, 0), *itertools.pairwise(place[name] for name in names), (place["z"], END)}
    assert path.inner[place["n"]].ways == {(START, 0), (0, 1), (1, END)}
    assert path.inner[place["n"]].steps == {0: "success", 1: "success"}


def test_what_waits_and_what_failed_stand_out():
    program, path = run(LOOP, 2, 0, 0)
    assert path.steps == {0: "success", 1: "success", 3: "success", 4: "pending"}
    assert (3, 4) in path.ways
    program, path = run(LOOP, 2, "fails")
    assert path.steps[program.index["d"]] == "failed"
    assert path.ways == {(START, 0), (0, 1), (1, 3)}
    _, path = run([{"id": "c", "type": "condition", "condition": "1 == 2", "then": "b"}, tool("b")])
    assert path.ways == {(START, 0), (0, FAILURE)}


def test_the_picture_marks_the_way_and_is_the_same_without_one():
    program, path = run(LOOP, 2, 0, 0)
    graph = draw(program)
    plain, marked = (ET.fromstring(svg(graph, way)) for way in (None, path))  # noqa: S314 - our own
    assert (plain.get("width"), plain.get("height")) != (None, None)
    texts = [text.text for text in marked.iter(f"{SVG}text")]
    assert "a (tool) ✓" in texts
    assert "e (parallel) …" in texts
    assert "b (tool)" in texts
    bold = [line for line in marked.iter(f"{SVG}path") if line.get("marker-end") == "url(#taken)"]
    assert len(bold) == len(path.ways)
    assert not [line for line in plain.iter(f"{SVG}path") if line.get("marker-end") == "url(#taken)"]
    assert svg(graph) == svg(graph, None) != svg(graph, Path())
