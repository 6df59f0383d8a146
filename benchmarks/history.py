"""What runs of the benchmarks have measured: `python -m benchmarks.history [NAME...] [--last 3] [--quick] [--json]`.

Every run adds a line to a file, and the last runs of each row are shown as medians with their spread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.bridge import CACHE, REPOSITORY
from benchmarks.measure import columns, shown
from mcp_bridge import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FILE = CACHE / "bench/history.jsonl"
"""One run a line, the newest last."""

LAST = 3


def record(rows: Iterable[dict[str, Any]], loads: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """A run, with what has to be known to compare it with another."""
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--exclude=*"]
    described = subprocess.run(git, capture_output=True, text=True, check=False)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "commit": described.stdout.strip(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "quick": quick,
        "load": list(loads),
        "rows": list(rows),
    }


def keep(run: dict[str, Any], file: Path) -> None:
    """Add a run to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as history:
        history.write(json.dumps(run, ensure_ascii=False) + "\n")


def runs(file: Path, *, quick: bool = False) -> list[dict[str, Any]]:
    """All that a file has, the oldest first.

    Args:
        file: It need not be there.
        quick: Only the quick ones, whose figures are not compared with the others'.

    Raises:
        ValueError: A line is no run.
    """
    if not file.exists():
        return []
    found = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    if not all(isinstance(run, dict) and isinstance(run.get("rows"), list) for run in found):
        raise ValueError(f"{file} has a line that is no run of the benchmarks")
    return [run for run in found if run.get("quick", False) == quick]


class Identity(NamedTuple):
    """What makes two rows of two runs the same row."""

    benchmark: str
    what: str
    against: str
    unit: str


@dataclass(frozen=True)
class Spread:
    """A figure of several runs."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread | None:
        """None where no run has the figure."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None


@dataclass(frozen=True)
class Summary:
    """A row over its last runs.

    Attributes:
        identity: Which.
        times: Of how many runs.
        ours: The bridge's.
        peer: The peer's.
        ratio: Of each run's two figures, which were taken in turns.
        goal: As the newest run has it.
        met: In how many of them the goal was met; None without a goal.
    """

    identity: Identity
    times: int
    ours: Spread | None
    peer: Spread | None
    ratio: Spread | None
    goal: str
    met: int | None


def summaries(of: Iterable[dict[str, Any]], last: int = LAST, names: Iterable[str] = ()) -> list[Summary]:
    """Each row over the last runs that have it, in the order of the newest.

    Args:
        of: The runs, the oldest first.
        last: Of how many runs.
        names: Of which benchmarks; none for all.
    """
    wanted = set(names)
    found: dict[Identity, list[dict[str, Any]]] = {}
    for run in of:
        # Rows of one benchmark that say the same, such as several continuations, are told apart by their order.
        seen: dict[Identity, int] = {}
        for row in run["rows"]:
            if row.get("failed") or (wanted and row["benchmark"] not in wanted):
                continue
            identity = Identity(row["benchmark"], row["what"], row["against"], row["unit"])
            seen[identity] = number = seen.get(identity, 0) + 1
            if number > 1:
                identity = identity._replace(what=f"{row['what']} ({number})")
            found.setdefault(identity, []).append(row)
    return [_summary(identity, rows[-last:]) for identity, rows in found.items()]


def _summary(identity: Identity, rows: Sequence[dict[str, Any]]) -> Summary:
    ours, peer, ratio = (Spread.of([row[key] for row in rows]) for key in ("ours", "peer", "ratio"))
    judged = [row["met"] for row in rows if row["met"] is not None]
    return Summary(identity, len(rows), ours, peer, ratio, rows[-1]["goal"], sum(judged) if judged else None)


def table(found: Sequence[Summary]) -> str:
    """As Markdown: medians, and in brackets the least and the most."""
    cells = [("what", "ours", "peer", "ratio", "against", "goal", "met")]
    for row in found:
        unit = row.identity.unit
        ratio = f"{row.ratio.median:.2f} ({row.ratio.least:.2f} to {row.ratio.most:.2f})" if row.ratio else ""
        met = "" if row.met is None else f"{row.met} of {row.times}"
        figures = (_figure(row.ours, unit), _figure(row.peer, unit))
        cells.append((row.identity.what, *figures, ratio, row.identity.against, row.goal, met))
    return columns(cells)


def _figure(value: Spread | None, unit: str) -> str:
    if value is None:
        return "-"
    least, most = (shown(each, unit).removesuffix(f" {unit}") for each in (value.least, value.most))
    return f"{shown(value.median, unit)} ({least} to {most})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of benchmarks; all by default")
    parser.add_argument("--last", type=int, default=LAST, help=f"how many runs of each row (default {LAST})")
    parser.add_argument("--quick", action="store_true", help="of the quick runs")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--history", type=Path, default=FILE, metavar="FILE", help="another than that of `make bench`")
    arguments = parser.parse_args()
    if arguments.last < 1:
        parser.error("--last is at least 1")
    try:
        kept = runs(arguments.history, quick=arguments.quick)
    except ValueError as exc:
        sys.exit(f"{arguments.history}: {exc}")
    found = summaries(kept, arguments.last, arguments.names)
    if not found:
        sys.exit(f"{arguments.history} has no such run; `make bench` adds one.")
    if arguments.json:
        print(json.dumps([_record(row) for row in found], ensure_ascii=False))
        return
    print(table(found))
    print(f"\nMedians of at most {arguments.last} runs of each row, with the least and the most. The last runs:")
    for run in kept[-arguments.last :]:
        print(f"- {run['time']}, {run['commit'] or run['version']}, {run['cpus']} CPUs, {run['system']}")


def _record(row: Summary) -> dict[str, Any]:
    figures = {
        name: vars(value) if value else None for name in ("ours", "peer", "ratio") for value in [getattr(row, name)]
    }
    return {**row.identity._asdict(), **figures, "goal": row.goal, "met": row.met, "runs": row.times}


if __name__ == "__main__":
    main()
