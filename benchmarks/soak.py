"""Mixed traffic for half an hour, and whether anything grows: `python -m benchmarks.soak --minutes 30`.

One bridge serves scripts, programs, time-outs, cancellations and crashes. Beside it, on the same state directory,
bridges are started whose client vanishes, and others that are killed with a container running. After each round of
traffic, when all is quiet, the bridge's memory, descriptors, threads, tasks, processes and containers are counted, and
SQLite's log. The exit status is 1 if one of them has grown since the warm-up, or if an answer was none of those that
its kind of traffic may get.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from mcp.shared.exceptions import MCPError

from benchmarks.bridge import COMMAND, Bench, client, ours
from benchmarks.measure import Row, load, table
from benchmarks.processes import ProcessMonitor, descendants
from benchmarks.start import Server
from mcp_bridge.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp import Client

MINUTES = 30.0

ROUND_SECONDS = 20.0
"""Of traffic, between two quiet moments."""

CALLERS = 3
"""Kinds of traffic at a time."""

WARM_UP = 0.2
"""Of all rounds: the caches fill, and the allocator finds its size."""

LEAST_ROUNDS = 3

READ_SECONDS = 240.0
"""For an answer of the bridge."""

QUIET_SECONDS = 60.0
"""For what a round has started to be gone."""

STEADY_SECONDS = 1.0
"""Without a change after which it is quiet."""

SCRIPT = """
import asyncio
from mcp.servers import good, local
echoed = await asyncio.gather(*(good.echo(text="t" * {size}) for _ in range(8)))
for number in range(8):
    await local.audit(step=f"s{{number}}")
print(sum(map(len, echoed)))
"""

PROGRAM = """
from mcp import programs
steps = [{"id": f"s{n}", "type": "tool", "tool": "audit", "args": {"step": f"s{n}"}} for n in range(10)]
print((await programs.run({"name": "soaked", "steps": steps})).status)
"""

ENDLESS = "while True: pass"
ASLEEP = "import time\ntime.sleep(60)"
CRASH = "import os\nos.kill(os.getpid(), 9)"
FAULT = "def deep(n): return deep(n + 1)\ndeep(0)"

NO_ANSWER = "no answer"


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

COUNTED = {
    "rss": Counted("memory of the bridge", "MiB", 8, 0.05),
    "descriptors": Counted("open descriptors", "", 4),
    "threads": Counted("threads", "", 4),
    "tasks": Counted("tasks of the event loop", "", 3),
    "processes": Counted("processes that it has started", "", 1 + 2 * POOL),
    "containers": Counted("containers", "", POOL),
    "wal": Counted("SQLite's log", "MiB", 4),
}


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
        tasks = self.bench.work / "tasks"
        command = [sys.executable, "-m", "benchmarks.workers.watched_bridge", str(tasks)]
        log = self.bench.work / "soak.log"
        try:
            before = set(descendants(os.getpid()))
            async with client(
                command, self._environment(), log=log, mode="legacy", read_timeout=READ_SECONDS
            ) as bridge:
                (pid,) = [each for each in set(descendants(os.getpid())) - before if _parent(each) == os.getpid()]
                monitor = ProcessMonitor(pid, self.state_dir)
                await self._rounds(bridge, monitor, tasks)
                await anyio.to_thread.run_sync(monitor.sample)
            return [*self.rows(), await self._leftovers(monitor)]
        finally:
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(self.state_dir, ignore_errors=True))

    def _environment(self) -> dict[str, str]:
        tables = ['structured = "always"', "wall_timeout = 120", "[tools]"]
        tables += ['modules = ["benchmarks.tools"]', "entry_points = false"]
        environment = self.bench.environment({"good": ours("honest")}, tables="\n".join(tables))
        return environment | {"MCP_BRIDGE_STATE_DIR": str(self.state_dir)}

    # The traffic.

    async def _rounds(self, bridge: Client, monitor: ProcessMonitor, tasks: Path) -> None:
        kinds: dict[str, Callable[[], Awaitable[str]]] = {
            "run": lambda: _run(bridge, SCRIPT.format(size=1000)),
            "large run": lambda: _run(bridge, SCRIPT.format(size=200_000)),
            "program": lambda: _run(bridge, PROGRAM),
            "time-out": lambda: _run(bridge, ENDLESS, 0.5),
            "cancellation": lambda: self._cancelled(bridge),
            "crash": lambda: _run(bridge, CRASH),
            "fault": lambda: _run(bridge, FAULT),
            "client that vanishes": lambda: self._second(kill=False),
            "kill -9 and restart": lambda: self._second(kill=True),
        }
        order = random.Random(self.seed)  # noqa: S311
        end = time.monotonic() + self.minutes * 60
        while len(self.samples) < self.rounds if self.rounds is not None else self._goes_on(end):
            todo = order.sample(list(kinds), len(kinds))
            until = time.monotonic() if self.rounds is not None else min(end, time.monotonic() + ROUND_SECONDS)
            async with anyio.create_task_group() as group:
                for _ in range(CALLERS):
                    group.start_soon(self._traffic, kinds, todo, until)
            await self._quiet(monitor)
            self.samples.append(await anyio.to_thread.run_sync(self._sample, monitor, tasks))

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

    async def _cancelled(self, bridge: Client) -> str:
        with anyio.move_on_after(random.uniform(0.1, 1.0)):  # noqa: S311
            return await _run(bridge, ASLEEP)
        return "cancelled"

    async def _second(self, *, kill: bool) -> str:
        """Another bridge on the same state, which is ended while its script runs; then one that starts after it."""
        environment = self._environment()
        first = await Server.start([COMMAND], self.bench, environment)
        await first.list_tools()
        await first.tell("tools/call", id=99, params={"name": "run_python", "arguments": {"code": ASLEEP}})
        # At any moment: before its container is there, while it starts, while it runs.
        await anyio.sleep(random.uniform(0.0, 1.0))  # noqa: S311
        if kill:
            first.process.kill()
            await first.process.wait()
            await first.process.aclose()
        else:
            await first.end()
        second = await Server.start([COMMAND], self.bench, environment)
        await second.list_tools()
        answer = await second.ask("tools/call", name="run_python", arguments={"code": "print(6 * 7)"})
        await second.end()
        return str(_status(answer.get("result", {}).get("structuredContent")))

    # What is counted.

    async def _quiet(self, monitor: ProcessMonitor) -> None:
        """Wait until the number of processes and containers doesn't change any more."""
        last, since = (-1, -1), anyio.current_time()
        with anyio.move_on_after(QUIET_SECONDS):
            while anyio.current_time() - since < STEADY_SECONDS:
                found = await anyio.to_thread.run_sync(lambda: (len(descendants(monitor.pid)), self._containers()))
                if found != last:
                    last, since = found, anyio.current_time()
                await anyio.sleep(0.1)

    def _containers(self) -> int:
        return Bench(self.state_dir, self.bench.work, quick=False).containers()

    def _sample(self, monitor: ProcessMonitor, tasks: Path) -> dict[str, float]:
        monitor.sample()
        process = Path(f"/proc/{monitor.pid}")
        return {
            "rss": monitor.status("VmRSS"),
            "descriptors": len(list((process / "fd").iterdir())),
            "threads": len(list((process / "task").iterdir())),
            "tasks": int(tasks.read_text()),
            "processes": len(descendants(monitor.pid)),
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

    async def _leftovers(self, monitor: ProcessMonitor) -> Row:
        """What is still there after the bridge has ended."""

        def left_over() -> list[str]:
            return monitor.left() + ["a container"] * self._containers()

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


EXPECTED = {
    "run": {"success"},
    "large run": {"success"},
    "program": {"success"},
    "time-out": {"timeout"},
    "cancellation": {"cancelled"},
    "crash": {"killed"},
    "fault": {"error"},
    "client that vanishes": {"success"},
    "kill -9 and restart": {"success"},
}


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


async def _run(bridge: Client, code: str, seconds: float = 60.0) -> str:
    try:
        result = await bridge.call_tool("run_python", {"code": code, "timeout": seconds})
    except MCPError as exc:
        return f"{NO_ANSWER}: {exc}"
    return _status(result.structured_content)


def _status(record: dict[str, Any] | None) -> str:
    """A record's status; of one that was refused, why."""
    if not record:
        return "no record"
    status = str(record.get("status"))
    return status if status != "refused" else f"refused: {(record.get('error') or {}).get('code')}"


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
