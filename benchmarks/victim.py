"""The script whose calls are measured beside others', and what it has seen of one time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PAUSE_SECONDS = 0.01
"""Between two turns of the victim."""

VICTIM = """
import asyncio, json, time
from mcp.servers import good, local
END, took, failed = time.monotonic() + {seconds}, {{"server": [], "tool": []}}, []
while time.monotonic() < END:
    for name, call in (("server", lambda: good.echo(text="t")), ("tool", lambda: local.audit(step="s"))):
        began = time.monotonic()
        try: await call()
        except Exception as exc: failed.append(repr(exc)[:200])
        took[name].append((round(began, 4), round((time.monotonic() - began) * 1000, 2)))
    await asyncio.sleep({pause})
print(json.dumps([took, failed[:20]]))
"""

COMPUTING = """
import time
END = time.monotonic() + {seconds}
while time.monotonic() < END: pass
"""


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so much of them is at most; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def of_any_moment(took: Sequence[float], pause: float) -> list[float]:
    """Milliseconds that calls would have taken that were begun all the time, one each `pause`.

    A script that calls one by one makes a single call while the bridge is silent for a minute, and so 99 of 100 of its
    calls may be quick: those that it couldn't make meanwhile are added (Tene, "How NOT to measure latency").
    """
    out: list[float] = []
    for each in took:
        out.append(each)
        missed = each - pause
        while missed >= pause:
            out.append(missed)
            missed -= pause
    return out


@dataclass
class Phase:
    """What the victim saw of one time.

    Attributes:
        took: Milliseconds of its calls, by their kind.
        calls: When each call began, by the machine's monotonic clock, and its milliseconds.
        silences: Milliseconds that the bridge took to answer the smallest question of a client.
        failed: Calls and runs of the victim's that failed, in words.
        runs: How many runs it had.
    """

    took: dict[str, list[float]] = field(default_factory=lambda: {"server": [], "tool": []})
    calls: list[tuple[float, float]] = field(default_factory=list)
    silences: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    runs: int = 0

    def __add__(self, other: Phase) -> Phase:
        took = {kind: self.took[kind] + other.took[kind] for kind in self.took}
        return Phase(
            took,
            self.calls + other.calls,
            self.silences + other.silences,
            self.failed + other.failed,
            self.runs + other.runs,
        )
