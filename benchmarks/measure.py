"""Interleaved timing, and rows of the table."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence


@dataclass
class Row:
    """One figure.

    Attributes:
        what: What was measured.
        ours: The bridge's median, or None.
        peer: The peer's or the limit's median, or None.
        unit: Of both.
        against: What the peer is.
        goal: In words, "" for none.
        met: Whether the goal is met; None where there is none, or where it belongs to a later stage.
        note: Anything a reader must know, such as why something could not be measured.
        curve: The scaling curve that it is a point of, "" for none.
        at: Where on it: how many, or how much, of what the curve is about.
        failed: Whether the benchmark itself has failed.
    """

    what: str
    ours: float | None
    peer: float | None
    unit: str
    against: str = ""
    goal: str = ""
    met: bool | None = None
    note: str = ""
    curve: str = ""
    at: float | None = None
    failed: bool = False

    @property
    def ratio(self) -> float | None:
        """Ours to the peer's."""
        return self.ours / self.peer if self.ours is not None and self.peer else None

    def record(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self) | {"ratio": self.ratio}


async def interleaved(
    rounds: int, measured: Mapping[str, Callable[[], Awaitable[float]]], *, warm_up: int = 1
) -> dict[str, float]:
    """Medians of each, measured in turn (A B A B …), so that a change of the machine's load meets all alike."""
    samples: dict[str, list[float]] = {name: [] for name in measured}
    for number in range(warm_up + rounds):
        for name, once in measured.items():
            sample = await once()
            if number >= warm_up:
                samples[name].append(sample)
    return {name: statistics.median(values) for name, values in samples.items()}


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds that `work` takes."""
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


def load() -> str:
    """The machine, in words: other work on it is part of every figure."""
    return f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, with their notes below it."""
    cells = [("what", "ours p50", "peer p50", "ratio", "against", "goal", "met")]
    notes: list[str] = []
    for row in rows:
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
        met = {None: "", True: "yes", False: "NO"}[row.met]
        mark = ""
        if row.note:
            if row.note not in notes:
                notes.append(row.note)
            mark = f" [{notes.index(row.note) + 1}]"
        ours, peer = shown(row.ours, row.unit), shown(row.peer, row.unit)
        cells.append((row.what + mark, ours, peer, ratio, row.against, row.goal, met))
    return "\n".join([columns(cells), "", *(f"[{number}] {note}" for number, note in enumerate(notes, 1))])


def columns(cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are aligned as text, too; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def shown(value: float | None, unit: str) -> str:
    """A figure with its unit, in as many digits as mean something."""
    if value is None:
        return "-"
    digits = 0 if value >= 1000 or unit == "tokens" else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {unit}"
