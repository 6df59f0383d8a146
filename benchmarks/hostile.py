"""A well-behaved script's calls beside hostile ones: `python -m benchmarks.hostile --minutes 30`.

One bridge, as an operator has it: a process that serves MCP on stdio, with real containers, a well-behaved server,
hostile servers and the operator's own tools. A *victim*, a script that calls the well-behaved server and an operator's
tool, one call after the other, is measured alone, then beside containers that only compute (what the processors alone
cost it), then beside everything in `benchmarks.attacks`, then alone again. The exit status is 1 where a goal isn't met.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from mcp.shared.exceptions import MCPError
from mcp_types import ListToolsRequest, ListToolsResult

from benchmarks.attacks import ATTACKS, SERVERS, hostile_server, outcome
from benchmarks.bridge import COMMAND, Bench, client, ours
from benchmarks.measure import Row, load, table
from benchmarks.processes import Hold, ProcessMonitor, bridge_among, descendants, holds
from benchmarks.victim import COMPUTING, PAUSE_SECONDS, VICTIM, Phase, of_any_moment, percentile
from mcp_bridge import settings
from mcp_bridge.host.engine_setup import prepare
from mcp_bridge.ledger.config import LedgerConfig
from mcp_bridge.sandbox.engine import OWNER_LABEL
from mcp_bridge.sandbox.ownership import Owner

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from mcp import Client

    from benchmarks.attacks import Attack

MINUTES = 2.0

GUESTS = 3
"""Hostile scripts at a time."""

ATTACK_SECONDS = 10.0
"""For what an attack can do over and over."""

OWN_SECONDS = 5.0
"""Of an attack's own time beyond that: to make what it sends. One that does nothing but compute is ended after both."""

CALL_SECONDS = 5.0
"""What a hostile server may take for a call."""

RUN_SECONDS = 90.0
"""Bound on a run: an attack that waits for the bridge gives its place to the next one."""

ANSWER_SECONDS = 600.0
"""For an answer of the bridge. Far above what it may take: how long it is silent is what is measured."""

VICTIM_SECONDS = 15.0
"""Of one of the victim's runs; it has one after the other."""

REFUSED_SECONDS = 0.5
"""Before the next run, where the bridge has refused one: no benchmark floods it."""

LEFT_SECONDS = 30.0
"""For everything that was started to be gone."""

MISSED = "Calls that the victim couldn't make while it waited for one are counted, as if it called all the time."

MAX_RATIO = 3.0
"""Of the victim's p99 to its quiet one."""

MAX_RSS = 300
"""MiB of the bridge's process."""

MAX_HOLD = 100.0
"""Milliseconds of its own processor time that the bridge's event loop may work at one thing."""

QUOTAS = {"max_size": 1024, "max_run_size": 128, "max_files_size": 256}
"""MiB in `[ledger]`: of what its file holds, of what a run records, of artifacts and cut outputs."""

OTHER_DISK = 384
"""MiB for what has quotas that no setting names (memories and saved programs, 64 each), SQLite's log, and caches."""

STOP_DISK = 8192
"""MiB of state at which the attacks are ended before their time, so that no disk is filled by a benchmark."""


@dataclass
class AttackStats:
    """One kind of attack, as often as it was made."""

    times: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    silence: float = 0.0
    spans: list[tuple[float, float]] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    memory: float = 0.0
    """MiB of the bridge's process at most, from its beginning on; of whatever was under way as well."""

    def beside(self, began: float, milliseconds: float) -> bool:
        """Whether a call was made while it was under way."""
        return any(start < began + milliseconds / 1000 and began < end for start, end in self.spans)


@dataclass
class Soak:
    """One measurement.

    Attributes:
        bench: Where.
        minutes: Of attacks.
        guests: Hostile scripts at a time.
        attacks: Which.
        seed: Of their order.
        scale: Of their sizes.
    """

    bench: Bench
    minutes: float = MINUTES
    guests: int = GUESTS
    attacks: Sequence[Attack] = tuple(ATTACKS.values())
    seed: int = 0
    scale: float = 1.0
    made: dict[str, AttackStats] = field(default_factory=dict)
    disk: list[tuple[float, float]] = field(default_factory=list)
    rss: list[tuple[float, float]] = field(default_factory=list)
    held: dict[str, Hold] = field(default_factory=dict)
    stopped: str = ""

    @property
    def quiet_seconds(self) -> float:
        """Of each phase beside the attacks."""
        return min(30.0, max(2.0, self.minutes * 60 / 6))

    @property
    def attack_seconds(self) -> float:
        # Each kind gets its turn, however short the whole is.
        return min(ATTACK_SECONDS, self.minutes * 60 * self.guests / (2 * len(self.attacks)))

    @property
    def state_dir(self) -> Path:
        return self.bench.work / "hostile-state"

    async def measure(self) -> list[Row]:
        """The rows. Everything that was started has been ended, and the state directory removed."""
        self.state_dir.mkdir(mode=0o700)
        # The engine is known already where another benchmark has asked; nothing else of that state is wanted.
        for probed in self.bench.state_dir.glob("*.json"):
            shutil.copy(probed, self.state_dir)
        try:
            await prepare(settings.Settings(state_dir=self.state_dir))
            limit = self.minutes * 60 + 8 * self.quiet_seconds + 3 * ANSWER_SECONDS
            with anyio.fail_after(limit):
                rows, monitor = await self._phases()
                return [*rows, await self._leftovers(monitor)]
        finally:
            shutil.rmtree(self.state_dir, ignore_errors=True)

    def _environment(self) -> dict[str, str]:
        tables = ['structured = "always"', "max_output_chars = 1000000", f"wall_timeout = {RUN_SECONDS}"]
        tables += ["[tools]", 'modules = ["benchmarks.tools"]', "entry_points = false"]
        known = LedgerConfig.model_fields
        tables += ["[ledger]", *(f'{name} = "{size}m"' for name, size in QUOTAS.items() if name in known)]
        for name in SERVERS:
            command = hostile_server(name, self.scale)
            tables += [f"[servers.{name}]", f"command = {json.dumps(command[0])}", f"args = {json.dumps(command[1:])}"]
            tables.append(f"call_timeout = {CALL_SECONDS}")
        environment = self.bench.environment({"good": ours("honest")}, tables="\n".join(tables))
        return environment | {"MCP_BRIDGE_STATE_DIR": str(self.state_dir)}

    async def _phases(self) -> tuple[list[Row], ProcessMonitor]:
        log = self.bench.work / "hostile.log"
        before = set(descendants(os.getpid()))
        async with client(
            [COMMAND], self._environment(), log=log, mode="legacy", read_timeout=ANSWER_SECONDS
        ) as bridge:
            pid = bridge_among(set(descendants(os.getpid())) - before)
            monitor = ProcessMonitor(pid, self.state_dir)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(monitor.watch)
                await self._quiet(bridge, 2.0)
                quiet = await self._quiet(bridge, self.quiet_seconds)
                control = await self._control(bridge)
                idle = monitor.status("VmRSS")
                monitor.forget_peak()
                busy, began = monitor.processor_seconds(), time.monotonic()
                hostile = await self._hostile(bridge, monitor)
                share = (monitor.processor_seconds() - busy) / (time.monotonic() - began)
                peak = max(monitor.status("VmHWM"), *(made.memory for made in self.made.values()))
                after = await self._quiet(bridge, self.quiet_seconds)
                control += await self._control(bridge)
                await anyio.to_thread.run_sync(monitor.sample)
                tasks.cancel_scope.cancel()
        self.disk, self.rss = monitor.disk, monitor.rss
        self.held = holds(log.read_text("utf-8", "replace"))
        rows = self._rows(quiet, after, control, hostile)
        busiest = max((hold.busiest for hold in self.held.values()), default=0)
        note = "Processor time of the loop's own thread, as the bridge has logged it; the causes are below."
        rows.append(Row("event loop, longest hold", busiest, None, "ms", "", "≤ 100", busiest <= MAX_HOLD, note))
        note = f"The bridge's process was at work for {share:.0%} of the time of one processor."
        rows.append(
            Row("host, RSS, highest", peak, idle, "MiB", "before the attacks", "< 300 MiB", peak < MAX_RSS, note)
        )
        most, quota = max(size for _, size in self.disk), sum(QUOTAS.values()) - QUOTAS["max_run_size"] + OTHER_DISK
        note = f"MiB over time: {_thinned(self.disk)}.{self.stopped}"
        met = most <= quota and not self.stopped
        rows.append(Row("state on disk, most", most, quota, "MiB", "its quota", "within it", met, note))
        return rows, monitor

    # The phases.

    async def _quiet(self, bridge: Client, seconds: float) -> Phase:
        async with self._asked(bridge) as phase:
            await self._victim(bridge, phase, time.monotonic() + seconds)
        return phase

    async def _control(self, bridge: Client) -> Phase:
        code = COMPUTING.format(seconds=self.quiet_seconds + 1)
        async with self._asked(bridge) as phase, anyio.create_task_group() as tasks:
            for _ in range(self.guests):
                tasks.start_soon(_run, bridge, code, self.quiet_seconds + 20)
            await self._victim(bridge, phase, time.monotonic() + self.quiet_seconds)
        return phase

    async def _hostile(self, bridge: Client, monitor: ProcessMonitor) -> Phase:
        end = time.monotonic() + self.minutes * 60
        order = self._order()
        async with self._asked(bridge) as phase, anyio.create_task_group() as tasks:
            under_way: dict[object, AttackStats] = {}
            phase.silences = _AttributedSilences(under_way)
            for _ in range(self.guests):
                tasks.start_soon(self._attack, bridge, order, end, under_way, monitor)
            await self._victim(bridge, phase, end)
        for made in self.made.values():
            made.took = [milliseconds for began, milliseconds in phase.calls if made.beside(began, milliseconds)]
        return phase

    def _order(self) -> list[Attack]:
        """A list to take from, over and over: each once, then each again in another order."""
        return random.Random(self.seed).sample(list(self.attacks), len(self.attacks))  # noqa: S311

    async def _attack(
        self,
        bridge: Client,
        order: list[Attack],
        end: float,
        under_way: dict[object, AttackStats],
        monitor: ProcessMonitor,
    ) -> None:
        while time.monotonic() < end and not self.stopped:
            attack = order.pop(0)
            order.append(attack)
            made = self.made.setdefault(attack.name, AttackStats())
            place = object()
            for other in under_way.values():
                other.memory = max(other.memory, monitor.status("VmHWM"))
            monitor.forget_peak()
            under_way[place] = made
            began = time.monotonic()
            try:
                made.ends += await _run(
                    bridge, attack.script(self.attack_seconds, self.scale), self.attack_seconds + OWN_SECONDS
                )
            finally:
                del under_way[place]
                made.times += 1
                made.memory = max(made.memory, monitor.status("VmHWM"))
                made.spans.append((began, time.monotonic()))
                made.longest = max(made.longest, time.monotonic() - began)
            if time.monotonic() - began < REFUSED_SECONDS:
                await anyio.sleep(REFUSED_SECONDS)
            if monitor.disk and monitor.disk[-1][1] > STOP_DISK:
                self.stopped = f" The attacks were ended early: there were {STOP_DISK} MiB on the disk."

    @asynccontextmanager
    async def _asked(self, bridge: Client) -> AsyncGenerator[Phase]:
        """A phase in which the bridge is asked the smallest question, one after the other."""
        phase = Phase()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_ask, bridge, phase)
            yield phase
            tasks.cancel_scope.cancel()

    async def _victim(self, bridge: Client, phase: Phase, end: float) -> None:
        while (left := end - time.monotonic()) > 0 and not self.stopped:
            seconds = min(VICTIM_SECONDS, left)
            result = await _call(bridge, VICTIM.format(seconds=seconds, pause=PAUSE_SECONDS), 120.0)
            phase.runs += 1
            try:
                took, failed = json.loads(result["stdout"])
            except (KeyError, ValueError, TypeError):
                phase.failed.append(f"a run: {result.get('status')} {result.get('error')}")
                await anyio.sleep(REFUSED_SECONDS)
                continue
            phase.failed += failed
            for kind, calls in took.items():
                phase.took[kind] += [milliseconds for _, milliseconds in calls]
                phase.calls += calls

    # What came of it.

    def _rows(self, quiet: Phase, after: Phase, control: Phase, hostile: Phase) -> list[Row]:
        alone, rows = quiet + after, []
        computing = f"beside {self.guests} containers that only compute"
        for kind, what in (("server", "a server's tool"), ("tool", "the operator's tool")):
            p99 = percentile(hostile.took[kind], 0.99)
            base, beside = percentile(alone.took[kind], 0.99), percentile(control.took[kind], 0.99)
            calls = f"{len(hostile.took[kind]):,} calls beside attacks, {len(alone.took[kind]):,} alone."
            rows += [
                Row(f"victim, {what}, p99", p99, base, "ms", "alone", "≤ 3", p99 <= MAX_RATIO * base, calls),
                Row("…", p99, beside, "ms", computing),
                Row("… the control itself", beside, base, "ms", "alone"),
            ]
            # As often as the victim calls when it is alone.
            pause = PAUSE_SECONDS * 1000 + 2 * percentile(alone.took[kind], 0.5)
            ours_, peer = (percentile(of_any_moment(phase.took[kind], pause), 0.99) for phase in (hostile, alone))
            met = ours_ <= MAX_RATIO * peer
            rows.append(Row("… p99 of any moment", ours_, peer, "ms", "alone", "≤ 3", met, MISSED))
            for name, share in (("p50", 0.5), ("p99.9", 0.999), ("the longest", 1.0)):
                ours_, peer = (percentile(phase.took[kind], share) for phase in (hostile, alone))
                rows.append(Row(f"… {name}", ours_, peer, "ms", "alone"))
            first, last = percentile(quiet.took[kind], 0.99), percentile(after.took[kind], 0.99)
            rows.append(Row("… p99 after the attacks", last, first, "ms", "before them"))
        for name, share in (("longest silence", 1.0), ("silence, p99", 0.99)):
            ours_, peer = (percentile(phase.silences, share) for phase in (hostile, control))
            rows.append(Row(f"bridge, {name}", ours_, peer, "ms", computing))
        failed = [*alone.failed, *control.failed, *hostile.failed]
        words = "; ".join(dict.fromkeys(failed))[:1000]
        kinds, every = len(self.made), len(self.attacks)
        rows.append(Row("kinds of attack made", kinds, every, "", "all that there are", "all", kinds == every))
        rows.append(Row("victim, failed calls and runs", len(failed), None, "calls", "", "none", not failed, words))
        return rows

    async def _leftovers(self, monitor: ProcessMonitor) -> Row:
        engine = (await prepare(settings.Settings(state_dir=self.state_dir))).engine

        async def left() -> list[str]:
            rows = [(row, Owner.parse(row.labels.get(OWNER_LABEL, ""))) for row in await engine.list(OWNER_LABEL)]
            containers = [row.name for row, owner in rows if owner is not None and owner.pid == monitor.pid]
            return containers + monitor.left()

        found = await left()
        with anyio.move_on_after(LEFT_SECONDS):
            while found:
                await anyio.sleep(0.2)
                found = await left()
        return Row("containers and processes left", len(found), None, "", "", "none", not found, "; ".join(found))

    def attacks_table(self) -> str:
        """How often each was made, and how it ended."""
        columns = ["attack", "times", "longest run", "longest silence beside it", "victim p99", "victim p50"]
        columns += ["host at most", "how it ended, and was answered"]
        lines = ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for name, made in sorted(self.made.items(), key=lambda item: -percentile(item[1].took, 0.99)):
            ends = ", ".join(f"{code} {count:,}" for code, count in made.ends.most_common())
            p99, p50 = (f"{percentile(made.took, share):,.0f} ms" for share in (0.99, 0.5))
            took = f"{made.longest:.1f} s | {made.silence:,.0f} ms | {p99} | {p50} | {made.memory:,.0f} MiB"
            lines.append(f"| {name} | {made.times} | {took} | {ends} |")
        lines += ["", "| what held the event loop | times | longest | processor time |", "|---|---|---|---|"]
        for cause, hold in sorted(self.held.items(), key=lambda item: -item[1].busiest):
            # From inside out; the package's name is in all of them.
            functions = " < ".join(each.removeprefix("mcp_bridge.") for each in cause.split(" < ")[:5])
            lines.append(f"| {functions} | {hold.times} | {hold.longest:,} ms | {hold.busiest:,} ms |")
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        """For `--json`."""
        attacks = {
            name: {"times": made.times, "longest_s": made.longest, "silence_ms": made.silence, "ends": dict(made.ends)}
            for name, made in self.made.items()
        }
        held = {cause: asdict(hold) for cause, hold in self.held.items()}
        return {"attacks": attacks, "held": held, "disk_mib": self.disk, "rss_mib": self.rss}


class _AttributedSilences(list[float]):
    """Silences, each put down to the attacks that were under way."""

    def __init__(self, under_way: dict[object, AttackStats]) -> None:
        super().__init__()
        self._under_way = under_way

    def append(self, silence: float) -> None:
        super().append(silence)
        for made in self._under_way.values():
            made.silence = max(made.silence, silence)


def _thinned(samples: Sequence[tuple[float, float]]) -> str:
    """At most ten of them, in words."""
    some = samples[:: max(1, len(samples) // 9)]
    return ", ".join(f"{size:,.0f} at {seconds:.0f} s" for seconds, size in some)


async def _ask(bridge: Client, phase: Phase) -> None:
    while True:
        began = time.perf_counter()
        await bridge.session.send_request(ListToolsRequest(params=None), ListToolsResult)
        phase.silences.append((time.perf_counter() - began) * 1000)
        await anyio.sleep(0.02)


async def _call(bridge: Client, code: str, seconds: float) -> dict[str, Any]:
    """The record of a run."""
    try:
        result = await bridge.call_tool("run_python", {"code": code, "timeout": seconds})
    except MCPError as exc:
        return {"status": "no answer", "error": {"code": type(exc).__name__, "message": str(exc)}}
    return result.structured_content or {"status": "no record"}


async def _run(bridge: Client, code: str, seconds: float) -> Counter[str]:
    return outcome(await _call(bridge, code, seconds))


async def hostile(bench: Bench) -> list[Row]:
    """For `python -m benchmarks hostile`."""
    soak = Soak(bench, minutes=bench.seconds(MINUTES * 60) / 60, scale=0.02 if bench.smoke else 1.0)
    rows = await soak.measure()
    print(soak.attacks_table(), file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of attacks (default 2)")
    parser.add_argument("--guests", type=int, default=GUESTS, help="hostile scripts at a time (default 3)")
    parser.add_argument("--attack", action="append", default=[], metavar="WORDS", help="only those with these words")
    parser.add_argument("--scale", type=float, default=1.0, help="of their sizes, 0 to 1")
    parser.add_argument("--seed", type=int, default=0, help="of their order")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--log", type=Path, help="where the bridge's log is copied to")
    arguments = parser.parse_args()
    attacks = [
        each for each in ATTACKS.values() if not arguments.attack or any(w in each.name for w in arguments.attack)
    ]
    if not attacks:
        parser.error(f"no attack is called so; there are: {'; '.join(ATTACKS)}")
    with tempfile.TemporaryDirectory(prefix="mcp-bridge-bench-") as work:
        known = os.environ.get("MCP_BRIDGE_STATE_DIR")
        bench = Bench(state_dir=Path(known) if known else Path(work) / "state", work=Path(work), quick=False)
        soak = Soak(bench, arguments.minutes, arguments.guests, attacks, arguments.seed, arguments.scale)
        before = load()
        try:
            rows = anyio.run(soak.measure)
        finally:
            if arguments.log and (Path(work) / "hostile.log").exists():
                shutil.copy(Path(work) / "hostile.log", arguments.log)
    if arguments.json:
        print(json.dumps({"rows": [row.record() for row in rows], **soak.record(), "load": before}))
    else:
        print(table(rows))
        print(soak.attacks_table())
        print(f"\n{before} before, {os.getloadavg()[0]:.1f} after")
    sys.exit(any(row.met is False for row in rows))


if __name__ == "__main__":
    main()
