"""Mixed traffic for half an hour, and whether anything grows: `python -m benchmarks.soak --minutes 30`.

One bridge serves scripts in both languages, sessions, waits, files, programs, time-outs, cancellations and crashes on
standard input and output. Beside it, on the same state directory, another serves two principals over HTTP, and bridges
are started whose client vanishes, or that are killed with a container running. `soak_traffic` has the kinds. After each
round of traffic, when all is quiet, the memory, descriptors, threads, tasks and processes of both bridges are counted,
and containers, and SQLite's log. The exit status is 1 if one of them has grown since the warm-up, or if an answer was
none of those that its kind of traffic may get.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from benchmarks.bridge import Bench, client, ours
from benchmarks.measure import Row, load, table
from benchmarks.processes import ProcessMonitor, descendants
from benchmarks.soak_traffic import EXPECTED, IDLE_SECONDS, READ_SECONDS, Traffic, serving_over_http
from mcp_bridge.governance.principal_tokens import TokenStore
from mcp_bridge.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

MINUTES = 30.0

ROUND_SECONDS = 20.0
"""Of traffic, between two quiet moments."""

CALLERS = 3
"""Kinds of traffic at a time."""

WARM_UP = 0.2
"""Of all rounds: the caches fill, and the allocator finds its size."""

LEAST_ROUNDS = 3

PRINCIPALS = ("anna", "ben")
"""Who use the bridge over HTTP."""

HTTP_IDLE_SECONDS = 15
"""After which a client's session over HTTP ends that it has left behind."""

WATCHED_BRIDGE = "benchmarks.workers.watched_bridge"

QUIET_SECONDS = 60.0
"""For what a round has started to be gone."""

STEADY_SECONDS = 1.5
"""Without a change after which it is quiet: longer than a script sleeps whose client has vanished."""


@dataclass(frozen=True)
class Counted:
    """What may not grow.

    Attributes:
        what: For people.
        unit: Of its figures.
        slack: By how much it may be more than after the warm-up: a thread or a connection more or less is no growth.
        share: The same as a part of it.
    """

    what: str
    unit: str
    slack: float
    share: float = 0.0

    def most(self, before: float) -> float:
        """What it may be, after it was so much."""
        return before * (1 + self.share) + self.slack


POOL = int(getattr(Settings(), "pool_max", 0))
"""Containers that a bridge may keep ready, more or fewer of them from one round to the next; 0 without a pool."""

BRIDGES = ("", " over HTTP")
"""How the rows of each bridge are told apart."""

OF_EACH = {
    "rss": Counted("memory of the bridge", "MiB", 8, 0.05),
    "descriptors": Counted("open descriptors", "", 4),
    "threads": Counted("threads", "", 4),
    "tasks": Counted("tasks of the event loop", "", 3),
    "processes": Counted("processes that it has started", "", 1 + 2 * POOL),
}
"""Of each bridge."""

COUNTED = {
    f"{name}{which}": replace(counted, what=f"{counted.what}{which}")
    for which in BRIDGES
    for name, counted in OF_EACH.items()
} | {
    "containers": Counted("containers", "", len(BRIDGES) * POOL),
    "wal": Counted("SQLite's log", "MiB", 4),
}


@dataclass(frozen=True)
class Watched:
    """A bridge that is there from the start to the end.

    Attributes:
        monitor: Of its process.
        tasks: The file with the number of its tasks.
        which: One of `BRIDGES`.
    """

    monitor: ProcessMonitor
    tasks: Path
    which: str

    def sample(self) -> dict[str, float]:
        """What is counted of it, by the names of `COUNTED`."""
        self.monitor.sample()
        process = Path(f"/proc/{self.monitor.pid}")
        found = {
            "rss": self.monitor.status("VmRSS"),
            "descriptors": len(list((process / "fd").iterdir())),
            "threads": len(list((process / "task").iterdir())),
            "tasks": int(self.tasks.read_text()),
            "processes": len(descendants(self.monitor.pid)),
        }
        return {f"{name}{self.which}": value for name, value in found.items()}


def _started_by(watched: Sequence[Watched]) -> int:
    return sum(len(descendants(each.monitor.pid)) for each in watched)


@dataclass
class Soak:
    """One soak.

    Attributes:
        bench: Where.
        minutes: Of traffic.
        rounds: Exactly so many, each with every kind once; None for as many as the minutes have.
        seed: Of the traffic's order.
        samples: What was counted after each round.
        outcomes: How each kind of traffic has ended.
        unexpected: Those that it may not end with.
    """

    bench: Bench
    minutes: float = MINUTES
    rounds: int | None = None
    seed: int = 0
    samples: list[dict[str, float]] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    unexpected: Counter[str] = field(default_factory=Counter)

    @property
    def state_dir(self) -> Path:
        return self.bench.work / "soak-state"

    async def measure(self) -> list[Row]:
        """The rows. Everything that was started has been ended, and the state directory removed."""
        self.state_dir.mkdir(mode=0o700)
        # What is known of the engine needn't be found out again.
        for probed in self.bench.state_dir.glob("*.json"):
            shutil.copy(probed, self.state_dir)
        environment, log = self._environment(), self.bench.work / "soak.log"
        tokens = [TokenStore(self.state_dir).add(name, restricted=True).text for name in PRINCIPALS]
        counts = {what: self.bench.work / f"tasks{number}" for number, what in enumerate(BRIDGES)}
        stdio, http = ([sys.executable, "-m", WATCHED_BRIDGE, str(file)] for file in counts.values())
        try:
            before = set(descendants(os.getpid()))
            async with (
                client(stdio, environment, log=log, mode="legacy", read_timeout=READ_SECONDS) as bridge,
                serving_over_http(http, self.bench, environment, log) as (http_pid, url),
            ):
                started = {pid for pid in set(descendants(os.getpid())) - before if _parent(pid) == os.getpid()}
                (pid,) = started - {http_pid}
                watched = [
                    Watched(ProcessMonitor(pid, self.state_dir), file, what)
                    for pid, (what, file) in zip((pid, http_pid), counts.items(), strict=True)
                ]
                await self._rounds(Traffic(self.bench, environment, bridge, url, tokens), watched)
                for each in watched:
                    await anyio.to_thread.run_sync(each.monitor.sample)
            return [*self.rows(), await self._leftovers(watched)]
        finally:
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(self.state_dir, ignore_errors=True))

    def _environment(self) -> dict[str, str]:
        tables = ['structured = "always"', "wall_timeout = 120", 'languages = ["python", "javascript"]']
        tables += ["[tools]", 'modules = ["benchmarks.tools"]', "entry_points = false"]
        tables += ["[sessions]", f"idle_timeout = {IDLE_SECONDS}"]
        # What a client has left behind would otherwise be there for half an hour, which is the whole soak.
        tables += ["[http]", f"session_idle_timeout = {HTTP_IDLE_SECONDS}"]
        tables += [f"[principals.{name}]" for name in PRINCIPALS]
        environment = self.bench.environment({"good": ours("honest")}, tables="\n".join(tables))
        return environment | {"MCP_BRIDGE_STATE_DIR": str(self.state_dir)}

    # The traffic.

    async def _rounds(self, traffic: Traffic, watched: Sequence[Watched]) -> None:
        kinds = traffic.kinds()
        order = random.Random(self.seed)  # noqa: S311
        end = time.monotonic() + self.minutes * 60
        while len(self.samples) < self.rounds if self.rounds is not None else self._goes_on(end):
            todo = order.sample(list(kinds), len(kinds))
            until = time.monotonic() if self.rounds is not None else min(end, time.monotonic() + ROUND_SECONDS)
            async with anyio.create_task_group() as group:
                for _ in range(CALLERS):
                    group.start_soon(self._traffic, kinds, todo, until)
            await self._quiet(watched)
            self.samples.append(await anyio.to_thread.run_sync(self._sample, watched))

    def _goes_on(self, end: float) -> bool:
        return time.monotonic() < end or len(self.samples) < LEAST_ROUNDS

    async def _traffic(self, kinds: dict[str, Callable[[], Awaitable[str]]], todo: list[str], until: float) -> None:
        """Each kind once, and then over and over until the round is over."""
        while todo:
            name = todo.pop()
            if time.monotonic() < until:
                todo.insert(0, name)
            ended = await kinds[name]()
            self.outcomes[f"{name}: {ended}"] += 1
            if ended not in EXPECTED[name]:
                self.unexpected[f"{name}: {ended}"] += 1

    # What is counted.

    async def _quiet(self, watched: Sequence[Watched]) -> None:
        """Wait until the number of processes and containers doesn't change any more."""
        last, since = (-1, -1), anyio.current_time()
        with anyio.move_on_after(QUIET_SECONDS):
            while anyio.current_time() - since < STEADY_SECONDS:
                found = await anyio.to_thread.run_sync(lambda: (_started_by(watched), self._containers()))
                if found != last:
                    last, since = found, anyio.current_time()
                await anyio.sleep(0.1)

    def _containers(self) -> int:
        return Bench(self.state_dir, self.bench.work, quick=False).containers()

    def _sample(self, watched: Sequence[Watched]) -> dict[str, float]:
        return {name: value for each in watched for name, value in each.sample().items()} | {
            "containers": self._containers(),
            "wal": sum(file.stat().st_size for file in self.state_dir.glob("*-wal")) / (1 << 20),
        }

    def rows(self) -> list[Row]:
        """What may not grow: the first third after the warm-up beside the last."""
        rest = self.samples[max(1, round(len(self.samples) * WARM_UP)) :]
        part = max(1, len(rest) // 3)
        rows = []
        for name, counted in COUNTED.items():
            first, last = (statistics.median(sample[name] for sample in some) for some in (rest[:part], rest[-part:]))
            most = counted.most(first)
            shown = [sample[name] for sample in self.samples]
            note = f"{counted.what}, by round: {', '.join(f'{value:,.4g}' for value in _thinned(shown))}."
            goal = f"≤ {most:,.4g} {counted.unit}".strip()
            rows.append(Row(counted.what, last, first, counted.unit, "after the warm-up", goal, last <= most, note))
        count = float(sum(self.unexpected.values()))
        note = ", ".join(f"{name} ({times})" for name, times in sorted(self.outcomes.items()))
        of_all = float(sum(self.outcomes.values()))
        rows.append(Row("unexpected answers", count, of_all, "", "all answers", "none", not count, note))
        return rows

    async def _leftovers(self, watched: Sequence[Watched]) -> Row:
        """What is still there after the bridges have ended."""

        def left_over() -> list[str]:
            return [left for each in watched for left in each.monitor.left()] + ["a container"] * self._containers()

        left = left_over()
        with anyio.move_on_after(QUIET_SECONDS):
            while left:
                await anyio.sleep(0.2)
                left = left_over()
        note = "; ".join(left[:20])
        return Row("left behind", float(len(left)), None, "", "", "nothing", not left, note)

    def record(self) -> dict[str, Any]:
        """For `--json`."""
        return {"samples": self.samples, "outcomes": self.outcomes, "unexpected": self.unexpected}


def _parent(pid: int) -> int:
    try:
        found = re.search(r"^PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _thinned(values: list[float]) -> list[float]:
    """At most a dozen, the last among them."""
    step = max(1, len(values) // 11)
    return [*values[:-1:step], values[-1]] if values else []


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"of traffic (default {MINUTES:g})")
    parser.add_argument("--seed", type=int, default=0, help="of its order")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--log", type=Path, help="where the bridge's log is copied to")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mcp-bridge-bench-") as work:
        known = os.environ.get("MCP_BRIDGE_STATE_DIR")
        bench = Bench(state_dir=Path(known) if known else Path(work) / "state", work=Path(work), quick=False)
        soak, before = Soak(bench, arguments.minutes, seed=arguments.seed), load()
        try:
            rows = anyio.run(soak.measure)
        finally:
            if arguments.log and (Path(work) / "soak.log").exists():
                shutil.copy(Path(work) / "soak.log", arguments.log)
    if arguments.json:
        print(json.dumps({"rows": [row.record() for row in rows], **soak.record(), "load": before}))
    else:
        print(table(rows))
        print(f"\n{len(soak.samples)} rounds; {before} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(any(row.met is False for row in rows))


if __name__ == "__main__":
    main()
