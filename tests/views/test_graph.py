"""Programs as graphs: where steps lead, as the machine has it; Mermaid and SVG, whatever the program says."""

import json
import os
import re
import subprocess
import sys
import textwrap
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.kernel.events import Outcome
from mcp_bridge.kernel.language.program_parser import parse
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.views.graph import END, FAILURE, draw, printable
from mcp_bridge.views.graph_mermaid import mermaid
from mcp_bridge.views.graph_svg import svg

SVG = "{http://www.w3.org/2000/svg}"


def tool(name, **fields):
    return {"id": name, "type": "tool", "tool": f"x.{name}", **fields}


def condition(name, then=None, otherwise=None, **fields):
    return {"id": name, "type": "condition", "condition": "$last == 1", "then": then, "otherwise": otherwise, **fields}


def edges(*steps):
    """The ways of a program, by the ids of its steps."""
    names = {END: "success", FAILURE: "failure"} | {index: step["id"] for index, step in enumerate(steps)}
    graph = draw(parse({"steps": list(steps)}))
    return {(names[edge.source], names[edge.target], edge.label) for edge in graph.edges}


EVERYTHING = {
    "name": "everything",
    "max_steps": 50,
    "max_tokens": 1000,
    "steps": [
        {
            "id": "ask", "type": "llm", "prompt": "Is $ctx.text fine?\nSay yes or no.", "allowed_outputs": ["yes", "no"],
            "timeout_seconds": 5, "on_timeout": "fallback", "output_key": "said",
        },
        condition("check", "charge", "refuse", condition="$said == 'yes'"),
        tool("charge", retry={"max_attempts": 3}, compensate={"tool": "bank.refund"}, next_step="fan"),
        {"id": "fan", "type": "parallel", "max_concurrency": 2, "parallel_steps": [tool(f"p{n}", on_error="skip") for n in range(6)]},
        {"id": "each", "type": "map", "over": "$items", "as": "row", "step": {"type": "tool", "tool": "db.write", "compensate": {"tool": "db.drop"}}},
        {"id": "in", "type": "program", "program": {"name": "inner", "steps": [
            {"id": "w", "type": "wait", "event": "paid"},
            condition("c", "w", condition="$w"),
        ]}},
        {"id": "named", "type": "program", "program": "other"},
        {"id": "nap", "type": "wait", "seconds": 60},
        {"id": "person", "type": "approval", "message": "Really pay $amount?", "otherwise": "refuse"},
        condition("again", "fan", "done", on_error="skip"),
        tool("done", is_terminal=True),
        tool("refuse", is_terminal=True),
        tool("lost"),
    ],
}  # fmt: skip

OTHER = parse({"name": "other", "steps": [tool("z")]})


@pytest.fixture
def everything():
    return draw(parse(EVERYTHING, {"other": OTHER}.get))


# --- where steps lead ---


@pytest.mark.parametrize(
    ("steps", "ways"),
    [
        ([tool("a"), tool("b")], {("a", "b", ""), ("b", "success", "")}),
        ([tool("a", is_terminal=True), tool("b")], {("a", "success", "")}),
        ([tool("a", next_step="c"), tool("b"), tool("c")], {("a", "c", ""), ("c", "success", "")}),
        # The target of a condition ends the program, unless it has a next step.
        (
            [condition("a", "b", "c"), tool("b"), tool("c", next_step="d"), tool("d")],
            {("a", "b", "then"), ("a", "c", "otherwise"), ("b", "success", ""), ("c", "d", ""), ("d", "success", "")},
        ),
        # The same step, reached in both ways.
        (
            [tool("a"), condition("b", "a", "c"), tool("c")],
            {
                ("a", "b", "in sequence"), ("a", "success", "as a branch"),
                ("b", "a", "then"), ("b", "c", "otherwise"), ("c", "success", ""),
            },
        ),
        # A condition's target that is a condition: what that one leads to goes on in the order of the list.
        (
            [condition("a", "b", "b"), condition("b", "c", "c"), tool("c"), tool("d")],
            {("a", "b", "then"), ("a", "b", "otherwise"), ("b", "c", "then"), ("b", "c", "otherwise"),
             ("c", "d", ""), ("d", "success", "")},
        ),
        ([condition("a", "b"), tool("b")], {("a", "b", "then"), ("a", "failure", "otherwise"), ("b", "success", "")}),
        (
            [condition("a", "c", "c", on_error="skip"), tool("b"), tool("c")],
            {("a", "c", "then"), ("a", "c", "otherwise"), ("a", "b", "skipped"), ("b", "c", ""),
             ("c", "success", "")},
        ),
        ([{"id": "a", "type": "approval", "message": "?"}], {("a", "success", "approved"), ("a", "failure", "denied")}),
        (
            [{"id": "a", "type": "approval", "message": "?", "otherwise": "c"}, tool("b"), tool("c")],
            {("a", "b", "approved"), ("a", "c", "denied"), ("b", "c", ""), ("c", "success", "")},
        ),
    ],
)  # fmt: skip
def test_each_way_is_one_that_the_machine_takes(steps, ways):
    assert edges(*steps) == ways


def test_a_step_that_nothing_leads_to_is_told_apart(everything):
    assert [everything.nodes[place].id for place in everything.unreached] == ["lost"]
    assert not [edge for edge in everything.edges if edge.source in everything.unreached]


def test_a_step_says_what_it_does_and_what_bounds_and_undoes_it(everything):
    nodes = {node.id: node for node in everything.nodes}
    assert nodes["ask"].lines == (
        "asks: Is $ctx.text fine? Say yes or no.",
        "one of: yes, no",
        "within 5 s, else the first allowed answer",
        "sets $said",
    )
    assert (nodes["charge"].lines, nodes["charge"].undo) == (("x.charge", "up to 3 attempts"), "bank.refund")
    assert [child.id for child in nodes["fan"].children] == ["p0", "p1", "p2", "p3", "p4", "p5"]
    assert nodes["fan"].children[0].lines == ("x.p0", "skipped on error")
    assert nodes["each"].lines == ("each row of $items",)
    assert [(child.id, child.undo) for child in nodes["each"].children] == [("each", "db.drop")]
    assert [node.id for node in nodes["in"].inner.nodes] == ["w", "c"]
    assert (nodes["named"].inner, nodes["named"].lines) == (None, ("program other",))
    assert nodes["person"].lines == ("a person: Really pay $amount?",)
    assert everything.lines == ("max_steps 50", "max_tokens 1000")


ids = st.sampled_from([f"s{number}" for number in range(6)])
targets = st.none() | ids
flows = st.fixed_dictionaries({"is_terminal": st.booleans(), "next_step": targets})
kinds = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("tool"),
            "tool": st.just("x"),
            "output_key": st.just("last"),
            "on_error": st.sampled_from(["fail", "skip"]),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("condition"),
            "condition": st.sampled_from(["$last == 1", "$last != 1", "$last < $nothing", "$last"]),
            "then": targets,
            "otherwise": targets,
            "on_error": st.sampled_from(["fail", "skip"]),
        }
    ),
    st.fixed_dictionaries({"type": st.just("approval"), "message": st.just("?"), "otherwise": targets}),
)


@given(
    steps=st.lists(st.tuples(kinds, flows), min_size=6, max_size=6),
    outcomes=st.lists(st.sampled_from(["zero", "one", "fails"]), min_size=25, max_size=25),
)
def test_the_machine_never_goes_a_way_that_is_not_drawn(steps, outcomes):
    rows = [{"id": f"s{number}", **kind, **flow} for number, (kind, flow) in enumerate(steps)]
    for row in rows:
        if row["type"] == "condition" and row["then"] is None and row["otherwise"] is None:
            row["then"] = "s0"
    program = parse({"steps": rows, "max_steps": 20})
    machine = Machine(program, {"last": 0})
    waiting, drawn = list(machine.effects), {(edge.source, edge.target) for edge in draw(program).edges}
    while waiting:
        effect, outcome = waiting.pop(0), outcomes.pop()
        if effect.kind == "approval":
            waiting += machine.apply(Outcome(effect.id, "ok", {"approved": outcome == "one"}))
        elif outcome == "fails":
            waiting += machine.apply(Outcome(effect.id, "failed", code="x", message="x"))
        else:
            waiting += machine.apply(Outcome(effect.id, "ok", int(outcome == "one")))
    places = [program.index[row.id] for row in machine.rows]
    for source, target in zip(places, places[1:], strict=False):
        assert (source, target) in drawn
    if machine.status == "success":
        assert (places[-1], END) in drawn
    elif machine.level.ending[1] in {"no_target", "denied"}:
        assert (places[-1], FAILURE) in drawn


# --- Mermaid ---

_QUOTED = r'"(?:[^"#;&<>`{}\[\]|\\:%@~^$]|\$(?!\$)|\#\d+;|<br/>|</?b>)*"'
_ID = r"n\w*"
_LINES = re.compile(
    rf"""%%[ ][\w ,.\-/=+()$!?*']*|flowchart[ ]TD|\s+direction[ ]TB|\s+end|\s+classDef[ ]\w+[ ][\w:#,\- ]+"""
    rf"""|\s+class[ ]{_ID}[ ]\w+|\s+subgraph[ ]{_ID}[ ]\[{_QUOTED}\]"""
    rf"""|\s+{_ID}(?:\[{_QUOTED}\]|\(\[{_QUOTED}\]\)|\{{\{{{_QUOTED}\}}\}}|\[/{_QUOTED}/\]|>{_QUOTED}\]|\[\[{_QUOTED}\]\]|\(+{_QUOTED}\)+)"""
    rf"""|\s+{_ID}[ ](?:-->|-\.->)(?:\|{_QUOTED}\|)?[ ]{_ID}""",
    re.VERBOSE,
)

NASTY = [
    "end", "graph", "subgraph", "click", "style", "default", "call", "o", "x", "a--b", "-->", "--x", "a:::b", "a & b",
    '"', '"]', "]]", "}}", "|", "`code`", "%%{init: {}}%%", "%% note", "a;b", "#35;", "style x:#1;", "&quot;", "<b>",
    "<script>alert(1)</script>", "$$x$$", "\\", "~~~", "@{ shape: x }", "漢字", "é", "\u202egnp", "\x1b[2J", "a\nb", "🎉",
]  # fmt: skip

texts = st.sampled_from(NASTY) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


def program_of(words):
    """A program in every place of which stands one of some texts."""
    one, two, three = words
    return parse(
        {
            "name": three,
            "steps": [
                {"id": "1" + one, "type": "tool", "tool": two, "output_key": three, "compensate": {"tool": one}},
                {"id": "2" + two, "type": "llm", "prompt": one, "allowed_outputs": [two, three]},
                {"id": "3" + one, "type": "approval", "message": two, "otherwise": "1" + one},
                {"id": "4" + two, "type": "map", "over": [one], "as": two, "step": {"type": "tool", "tool": three}},
                {
                    "id": "5" + two,
                    "type": "parallel",
                    "parallel_steps": [{"id": "6" + one, "type": "tool", "tool": two}],
                },
                {
                    "id": "7" + one,
                    "type": "program",
                    "program": {"name": two, "steps": [{"id": one, "type": "wait", "event": two}]},
                },
            ],
        }
    )


def assert_mermaid(text):
    for line in text.splitlines():
        assert _LINES.fullmatch(line), line


@pytest.mark.parametrize("word", NASTY)
def test_no_text_is_anything_but_a_label_in_mermaid(word):
    drawn = mermaid(draw(program_of((word, word, word))))
    assert_mermaid(drawn)
    plain = re.sub(r"#(\d+);", lambda match: chr(int(match[1])), drawn)
    assert printable("1" + word) in plain.replace("\u200b", "")


@given(words=st.tuples(texts, texts, texts))
def test_whatever_a_program_says_mermaid_gets_labels_and_nothing_else(words):
    assert_mermaid(mermaid(draw(program_of(words))))


def test_mermaid_shows_every_part_of_a_program(everything):
    drawn = mermaid(everything)
    assert_mermaid(drawn)
    for line in (
        'n1 -->|"then"| n2',
        'n1 -->|"otherwise"| n11',
        'n2 -.->|"undone by"| n2_undo',
        'subgraph n3 ["fan (parallel) - at most 2 concurrently"]',
        'subgraph n4 ["each (map) - each row of $items"]',
        'subgraph n5 ["in (program) - written out"]',
        'n5_1 -->|"otherwise"| n5_failed',
        'n8 -->|"denied"| n11',
        'n9 -->|"skipped"| n10',
        "n10 --> ndone",
        "class n12 unreached",
    ):
        assert line in drawn, line
    assert drawn.count("subgraph") == len(re.findall(r"^\s+end$", drawn, re.MULTILINE)) == 3


# --- SVG ---


def boxes(element, x=0.0, y=0.0):
    """Every shape and text with its absolute place, as (element, left, top, right, bottom)."""
    if moved := re.fullmatch(r"translate\(([\d.-]+) ([\d.-]+)\)", element.get("transform", "")):
        x, y = x + float(moved[1]), y + float(moved[2])
    if element.tag == SVG + "rect" and "%" not in element.get("width"):
        yield element, x, y, x + float(element.get("width")), y + float(element.get("height"))
    elif element.tag in {SVG + "polygon", SVG + "path"}:
        numbers = element.get("points") or element.get("d")
        if "L" not in numbers:
            pairs = [tuple(map(float, pair)) for pair in re.findall(r"(-?[\d.]+)[ ,](-?[\d.]+)", numbers)]
            xs, ys = zip(*pairs, strict=True)
            yield element, x + min(xs), y + min(ys), x + max(xs), y + max(ys)
    elif element.tag == SVG + "text":
        width = 7.3 * len(element.text or "")
        left = {"middle": width / 2, "start": 0, "end": width}[element.get("text-anchor")]
        at, base = x + float(element.get("x")), y + float(element.get("y"))
        yield element, at - left, base - 10, at - left + width, base + 3
    for child in element:
        yield from boxes(child, x, y)


def assert_picture(text):
    root = ET.fromstring(text)  # noqa: S314  (our own)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg", "title", "desc", "defs", "marker", "path", "rect", "g", "polygon", "text",
    }  # fmt: skip
    for element in root.iter():
        assert not [name for name in element.attrib if name.startswith("on") or "href" in name]
        assert set(re.findall(r"url\([^)]*\)", " ".join(element.attrib.values()))) <= {"url(#arrow)"}
    width, height = float(root.get("width")), float(root.get("height"))
    for element, left, top, right, bottom in boxes(root):
        assert left >= 0, ET.tostring(element)
        assert top >= 0, ET.tostring(element)
        assert right <= width, ET.tostring(element)
        assert bottom <= height, ET.tostring(element)
    return root


@given(words=st.tuples(texts, texts, texts))
def test_whatever_a_program_says_the_picture_is_xml_with_nothing_active_in_it(words):
    program = program_of(words)
    root = assert_picture(svg(draw(program)))
    told = {element.text for element in root.iter(SVG + "text")}
    for step in program.steps:
        assert f"{printable(step.id)} ({step.kind})" in told


def test_the_picture_shows_every_part_of_a_program(everything):
    told = {element.text for element in assert_picture(svg(everything)).iter(SVG + "text")}
    assert told >= {
        "everything · max_steps 50 · max_tokens 1000", "ask (llm)", "up to 3 attempts", "undone by bank.refund",
        "p5 (tool)", "each row of $items", "db.write", "undone by db.drop", "inner", "program other", "then", "otherwise",
        "approved", "denied", "as a branch", "in sequence", "success", "failure", "lost (tool)",
    }  # fmt: skip


def test_steps_do_not_lie_on_each_other(everything):
    root = assert_picture(svg(everything))
    column = [child for child in root.find(SVG + "g") if child.tag == SVG + "g"]
    spans = []
    for group in column:
        around = [row[1:] for row in boxes(group, 0, 0)]
        spans.append((min(row[1] for row in around), max(row[3] for row in around)))
    assert len(spans) == len(everything.nodes) + 2
    assert all(above[1] < below[0] for above, below in zip(spans, spans[1:], strict=False))


def test_a_label_beside_narrow_steps_is_within_the_picture():
    ways = [("s1", "s1"), ("s1", "s0"), ("s4", "s1"), ("s4", "s4"), ("s0", "s5"), ("s2", "s3")]
    rows = [condition(f"s{number}", then, otherwise) for number, (then, otherwise) in enumerate(ways)]
    assert_picture(svg(draw(parse({"steps": rows}))))


@given(steps=st.lists(st.tuples(targets, targets), min_size=6, max_size=6))
def test_two_ways_share_a_lane_only_where_they_lead_to_the_same_step(steps):
    rows = [condition(f"s{number}", then or "s0", otherwise) for number, (then, otherwise) in enumerate(steps)]
    root = assert_picture(svg(draw(parse({"steps": rows}))))
    upright = {}
    for path in root.iter(SVG + "path"):
        drawn = re.fullmatch(r"M[\d.]+ [\d.-]+H[\d.]+Q([\d.-]+) ([\d.-]+) .*V.*Q[\d.-]+ ([\d.-]+) .*", path.get("d"))
        if drawn:
            x, out, into = map(float, drawn.groups())
            upright.setdefault(x, set()).add((min(out, into), max(out, into), into))
    for lines in upright.values():
        for low, high, into in lines:
            for other_low, other_high, other_into in lines:
                assert into == other_into or high < other_low or other_high < low


def test_the_same_program_gives_the_same_bytes_in_every_process():
    code = textwrap.dedent("""
        import json, sys
        from mcp_bridge.views.graph import draw
        from mcp_bridge.views.graph_mermaid import mermaid
        from mcp_bridge.views.graph_svg import svg
        from mcp_bridge.kernel.language.program_parser import parse
        graph = draw(parse(json.load(sys.stdin)))
        sys.stdout.buffer.write((mermaid(graph) + svg(graph)).encode())
    """)
    program = json.dumps(EVERYTHING | {"steps": [step for step in EVERYTHING["steps"] if step["id"] != "named"]})
    drawn = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=program.encode(),
            capture_output=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(drawn) == 1


def test_a_long_program_is_drawn_too():
    steps = [
        tool(f"t{number}") if number % 3 else condition(f"t{number}", f"t{number // 2}", f"t{number + 1}")
        for number in range(3000)
    ]
    graph = draw(parse({"steps": steps}))
    assert len(graph.nodes) == 3000
    assert mermaid(graph).count("\n") > 6000
    assert ET.fromstring(svg(graph)).tag == SVG + "svg"  # noqa: S314
