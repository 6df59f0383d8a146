"""Plots of the scaling curves: `python -m benchmarks.plots [--into docs/benchmarks]`, from the history's newest runs.

SVG without scripts or dependencies: both axes logarithmic, ours beside the peer's.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import history
from benchmarks.bridge import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FOLDER = REPOSITORY / "docs/benchmarks"

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 36, 58, 52

OURS, PEER = "#0b62a3", "#c2570c"

FILE_NAMES = {
    "concurrent run_python": "callers",
    "steps": "steps",
    "audit verify, entries": "entries-verify",
    "verify_export, entries": "entries-export",
    "servers, start": "servers-start",
    "servers, call": "servers-call",
    "payload bytes": "payloads",
}
"""The curves that have a plot, with the names of their files."""

TITLES = {
    "concurrent run_python": ("A container for run_python, by concurrent callers", "callers", "ms a container"),
    "steps": ("A step of a program in the kernel, by the program's length", "steps", "µs of processor time a step"),
    "audit verify, entries": ("audit verify, by the log's length", "entries", "µs an entry"),
    "verify_export, entries": ("Verification of an export, by the log's length", "entries", "µs an entry"),
    "servers, start": ("Start to tools/list, by configured servers", "servers", "ms"),
    "servers, call": ("A script that calls one server's tool, by configured servers", "servers", "ms"),
    "payload bytes": ("A text to a server's tool and back, from a script", "bytes", "ms a call"),
}
"""A plot's title, and what its axes are of."""


@dataclass
class Curve:
    """Points of one run or of several, the newest of each.

    Attributes:
        ours: The figure by what is on the x axis.
        peer: The peer's.
        against: What the peer is.
    """

    ours: dict[float, float] = field(default_factory=dict)
    peer: dict[float, float] = field(default_factory=dict)
    against: str = ""


def curves(runs: Iterable[dict[str, Any]]) -> dict[str, Curve]:
    """The curves of runs, the oldest first: a later point replaces an earlier one."""
    found: dict[str, Curve] = {}
    for run in runs:
        for row in run["rows"]:
            name, at = row.get("curve"), row.get("at")
            if not name or at is None:
                continue
            curve = found.setdefault(name, Curve())
            for points, value in ((curve.ours, row["ours"]), (curve.peer, row["peer"])):
                if value is not None:
                    points[at] = value
            curve.against = row["against"] if row["peer"] is not None else curve.against
    return found


def svg(title: str, x_label: str, y_label: str, curve: Curve) -> str:
    """A plot.

    Raises:
        ValueError: The curve has no point, or one that isn't positive.
    """
    xs = sorted({*curve.ours, *curve.peer})
    ys = [*curve.ours.values(), *curve.peer.values()]
    if not xs or min(*xs, *ys) <= 0:
        raise ValueError("a curve has positive points")
    across, up = _Axis(xs, LEFT, WIDTH - RIGHT), _Axis(ys, HEIGHT - BOTTOM, TOP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="11" role="img" aria-label="{escape(title)}">'
    )
    parts = [
        head,
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(LEFT, 20, title, weight="bold", size=13),
    ]
    for value in across.ticks():
        x = across.place(value)
        parts.append(_line((x, TOP), (x, HEIGHT - BOTTOM)))
        parts.append(_text(x, HEIGHT - BOTTOM + 16, _number(value), anchor="middle"))
    for value in up.ticks():
        y = up.place(value)
        parts.append(_line((LEFT, y), (WIDTH - RIGHT, y)))
        parts.append(_text(LEFT - 8, y + 4, _number(value), anchor="end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x_label, anchor="middle"))
    parts.append(_text(LEFT, TOP - 8, y_label))
    legend = ((curve.ours, OURS, "mcp-code-bridge"), (curve.peer, PEER, curve.against))
    for number, (points, colour, name) in enumerate(legend):
        if not points:
            continue
        places = [(across.place(x), up.place(points[x])) for x in sorted(points)]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        parts.append(_text(LEFT + 190 * number, 36, f"● {name}", colour=colour))
    return "\n".join([*parts, "</svg>\n"])


class _Axis:
    """A logarithmic axis between two places."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        # Whole decades, so that every axis has at least two ticks.
        self._low = math.floor(math.log10(min(values)) + 1e-9)
        self._high = max(math.ceil(math.log10(max(values)) - 1e-9), self._low + 1)
        self._first, self._last = first, last

    def place(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        return [10.0**exponent for exponent in range(self._low, self._high + 1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    return f'<path d="M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}" stroke="#ddd"/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    weight: str = "normal",
    size: int = 11,
    colour: str = "#333",
) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" font-size="{size}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


def write(found: dict[str, Curve], into: Path) -> list[Path]:
    """Write a file for each curve that is known here; their paths."""
    into.mkdir(parents=True, exist_ok=True)
    written = []
    for name, curve in found.items():
        if name in FILE_NAMES:
            path = into / f"{FILE_NAMES[name]}.svg"
            path.write_text(svg(*TITLES[name], curve), "utf-8")
            written.append(path)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__)
    parser.add_argument("--into", type=Path, default=FOLDER, help="a folder (default docs/benchmarks)")
    parser.add_argument("--quick", action="store_true", help="of the quick runs")
    parser.add_argument("--history", type=Path, default=history.FILE, metavar="FILE", help="where the runs are")
    arguments = parser.parse_args()
    written = write(curves(history.runs(arguments.history, quick=arguments.quick)), arguments.into)
    if not written:
        sys.exit(f"{arguments.history} has no curve; `make bench` adds them.")
    print("\n".join(map(str, written)))


if __name__ == "__main__":
    main()
