"""A program as a graph: its steps, and where each may lead, exactly as the machine's flow has it. Pure.

What leads on depends on how a step was reached: the target of a condition ends the program where any other step would
go on with the next (see `kernel.program_flow`). So the graph is of what can really happen from the first step on: a
step that is reached in both ways has both ways out, each with its label; one that nothing leads to stands alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_bridge.escaping import one_line
from mcp_bridge.kernel.step_types import (
    ApprovalStep,
    ConditionStep,
    EventStep,
    MapStep,
    ModelStep,
    ParallelStep,
    ProgramStep,
    ToolStep,
    WaitStep,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.kernel.step_types import Kind, Step

END, FAILURE = -1, -2
"""Places that are no steps: the program has succeeded, the program has failed."""

MAX_LABEL_CHARS = 48


@dataclass(frozen=True, slots=True)
class Node:
    """A step.

    Attributes:
        id: The step's own; what stands for a map's body, which has none.
        kind: The step's type.
        lines: What is said of it, each on a line of its own: what it does, then what bounds and undoes it.
        undo: The tool that undoes it, or None.
        children: Of a parallel step: what runs at once. Of a map: its body.
        inner: Of a sub-program that is written out: its graph.
    """

    id: str
    kind: Kind
    lines: tuple[str, ...] = ()
    undo: str | None = None
    children: tuple[Node, ...] = ()
    inner: Graph | None = None


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from one step to another.

    Attributes:
        source, target: Places in the list of nodes, or `END` or `FAILURE`.
        label: When it is taken; empty where it always is.
    """

    source: int
    target: int
    label: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """A program.

    Attributes:
        name: Its own.
        nodes: In the order of its steps; the first is where it begins.
        edges: By source, each once.
        unreached: Places of the nodes that nothing leads to.
        lines: Its budgets.
    """

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    unreached: frozenset[int] = field(default_factory=frozenset)
    lines: tuple[str, ...] = ()


def draw(program: Program) -> Graph:
    """The graph of a program. Programs that steps run by name are single nodes; those written out are drawn inside."""
    ways, reached = _ways(program)
    budgets = ("max_steps", "max_stalled_steps", "max_tokens")
    return Graph(
        program.name,
        tuple(_node(step, row) for step, row in zip(program.steps, program.data["steps"], strict=True)),
        tuple(ways),
        frozenset(range(len(program.steps))) - reached,
        tuple(f"{name} {value}" for name in budgets if (value := getattr(program, name)) is not None),
    )


def printable(text: str, limit: int = MAX_LABEL_CHARS) -> str:
    """A text as it may stand in a label: on one line, of bounded length, what can't be seen escaped."""
    return one_line(text, limit)


# --- where steps lead ---


def _ways(program: Program) -> tuple[list[Edge], set[int]]:
    """Every edge of the steps that can be reached, and their places."""
    found: dict[int, dict[bool, list[tuple[str, int, bool]]]] = {}
    waiting = [(0, False)]
    while waiting:
        place, branch = waiting.pop()
        if place < 0 or branch in found.setdefault(place, {}):
            continue
        ways = found[place][branch] = list(_after(program.steps[place], len(program.steps), branch=branch))
        waiting += [(target, as_branch) for _, target, as_branch in ways]
    edges: dict[Edge, None] = {}
    for place in sorted(found):
        ways_of = {branch: [(label, target) for label, target, _ in ways] for branch, ways in found[place].items()}
        for branch in sorted(ways_of):
            other = ways_of.get(not branch)
            for label, target in ways_of[branch]:
                # The same step leads elsewhere when it is reached in the other way: say which is which.
                differs = other is not None and (label, target) not in other
                how = ("as a branch" if branch else "in sequence") if differs else ""
                edges[Edge(place, target, ", ".join(part for part in (label, how) if part))] = None
    return list(edges), set(found)


def _after(step: Step, count: int, *, branch: bool) -> Iterator[tuple[str, int, bool]]:
    """Where a step leads that was or wasn't reached as a branch: label, place, whether that is reached as a branch."""
    approval = step if isinstance(step, ApprovalStep) else None
    asked = "approved" if approval else ""
    if approval and approval.otherwise is None:
        yield "denied", FAILURE, False
    if step.is_terminal and not branch:
        yield asked if approval and approval.otherwise is None else "", END, False
        return
    follow = step.next if step.next is not None else END if branch else step.index + 1
    follow = END if follow >= count else follow
    if isinstance(step, ConditionStep):
        for label, target in (("then", step.then), ("otherwise", step.otherwise)):
            # A target of a target goes on like any other step.
            yield (label, FAILURE, False) if target is None else (label, target, not branch)
        if step.on_error == "skip":
            yield "skipped", follow, False
        return
    yield asked, follow, False
    if approval and approval.otherwise is not None:
        yield "denied", approval.otherwise, True


# --- what is said of steps ---


def _node(step: Step, row: dict[str, Any], name: str = "") -> Node:
    inner = draw(step.program) if isinstance(step, ProgramStep) and step.program_name is None else None
    rows = (
        row["parallel_steps"] if isinstance(step, ParallelStep) else [row["step"]] if isinstance(step, MapStep) else []
    )
    undo = step.compensation if isinstance(step, ToolStep) else None
    return Node(
        id=printable(step.id or name),
        kind=step.kind,
        lines=tuple(_step_lines(step, row)),
        undo=printable(undo.tool) if undo else None,
        children=tuple(_node(child, inside, "each") for child, inside in zip(step.children, rows, strict=True)),
        inner=inner,
    )


def _step_lines(step: Step, row: dict[str, Any]) -> Iterator[str]:
    match step:
        case ToolStep():
            yield printable(step.tool)
        case ModelStep():
            yield f"asks: {_shown(row['prompt'])}"
            if step.allowed_outputs is not None:
                yield f"one of: {printable(', '.join(step.allowed_outputs))}"
        case ConditionStep():
            yield _shown(row["condition"])
        case ApprovalStep():
            yield f"a person: {_shown(row['message'])}"
        case EventStep():
            yield f"event {printable(step.event)}"
        case WaitStep():
            yield f"{_shown(row['seconds'])} s"
        case MapStep():
            yield f"each {printable(step.item_name)} of {_shown(row['over'])}"
        case ProgramStep():
            yield f"program {printable(step.program_name)}" if step.program_name is not None else "written out"
    yield from _bounds(step)


def _bounds(step: Step) -> Iterator[str]:
    if isinstance(step, ParallelStep | MapStep) and step.max_concurrency is not None:
        yield f"at most {step.max_concurrency} concurrently"
    if step.retry.attempts > 1:
        yield f"up to {step.retry.attempts} attempts"
    if step.on_error == "skip":
        yield "skipped on error"
    if step.timeout is not None:
        falls_back = isinstance(step, ModelStep) and step.falls_back
        yield f"within {step.timeout:g} s{', else the first allowed answer' if falls_back else ''}"
    if step.output_key:
        yield f"sets ${printable(step.output_key)}"


def _shown(data: object) -> str:
    return printable(data if isinstance(data, str) else json.dumps(data, ensure_ascii=False))
