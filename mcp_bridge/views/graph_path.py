"""The way that an execution took through its program's graph. Pure.

It is read from the rows of the machine's trace: the machine goes from step to step in their order.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.step_types import ProgramStep
from mcp_bridge.views.graph import END, FAILURE, draw

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mcp_bridge.kernel.language.program_parser import Program

START = -3
"""The place before the first step."""

_UNDO = ".compensate"


@dataclass(frozen=True, slots=True)
class Path:
    """What of a program was done.

    Attributes:
        steps: Places of the steps that were reached, to how each stands: `success`, `failed`, `skipped`, `pending`.
        ways: From a place to the next; `START`, `END` and `FAILURE` are places, too.
        inner: Of steps that run a program which is written out: the same of it, by the steps' places.
    """

    steps: Mapping[int, str] = field(default_factory=dict)
    ways: frozenset[tuple[int, int]] = frozenset()
    inner: Mapping[int, Path] = field(default_factory=dict)


def taken(program: Program, rows: Iterable[Mapping[str, Any]], waiting: Iterable[str], status: str) -> Path:
    """The way that was taken.

    Args:
        program: Which.
        rows: Of the machine's trace: `id` and `status` of each, in their order.
        waiting: The paths of the steps under way.
        status: How the execution stands or has ended.
    """
    told = [(str(row["id"]), str(row["status"])) for row in rows]
    return _taken(program, told, list(waiting), status)


def _taken(program: Program, rows: Sequence[tuple[str, str]], waiting: Sequence[str], status: str) -> Path:
    own = {child.id: step.index for step in program.steps for child in step.children if child.id} | program.index
    steps: dict[int, str] = {}
    moves = [START]
    beneath: dict[int, tuple[list[tuple[str, str]], list[str]]] = {}

    def place_of(path: str) -> int | None:
        head, slash, rest = path.partition("/")
        place = own.get(head.partition("[")[0])
        if place is not None and slash:
            beneath.setdefault(place, ([], []))[1].append(rest)
        return place

    for path, how in rows:
        head, slash, rest = path.partition("/")
        if slash and head in program.index:
            beneath.setdefault(program.index[head], ([], []))[0].append((rest, how))
        elif path in program.index and how != "pending":
            # Rows of steps inside of others come before their step's; what waited comes again when it has ended.
            steps[program.index[path]] = how
            moves.append(program.index[path])
    for path in waiting:
        if not path.endswith(_UNDO) and (place := place_of(path)) is not None:
            steps[place] = "pending"
            moves.append(place)
    if status == "success":
        moves.append(END)
    elif status == "failed":
        moves.append(FAILURE)
    drawn = {(edge.source, edge.target) for edge in draw(program).edges} | {(START, 0)}
    return Path(
        steps,
        frozenset(move for move in itertools.pairwise(moves) if move in drawn),
        {
            place: _taken(step.program, *beneath[place], _inner_status(steps.get(place, "")))
            for place, step in enumerate(program.steps)
            if place in beneath and isinstance(step, ProgramStep) and step.program_name is None
        },
    )


def _inner_status(how: str) -> str:
    return how if how in {"success", "failed"} else ""
