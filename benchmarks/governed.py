"""Row 7: steps of programs that a script in a container drives, each governed, and durable before it is taken."""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.bridge import COMMAND, Bench, client, run_python
from benchmarks.measure import Row, interleaved
from benchmarks.registered import bridge_with_tools, disk_of
from benchmarks.worker import GATEWAY, PEER, peer_python, worker
from benchmarks.workers import work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.registered import Disk
    from benchmarks.worker import Worker
    from mcp_bridge.host.bridge import Bridge

IN_FLIGHT = 32

EACH = 100
"""Steps of each of the programs in flight."""

ALONE = 1000
"""Steps of the one program alone."""

ENTRIES_A_STEP = 2
"""Intent and outcome."""

TABLES = """
[tools]
modules = ["benchmarks.tools"]
entry_points = false
"""

INSIDE = """
import asyncio, json, time
from mcp import programs

def program(steps):
    rows = [{{"id": f"s{{n}}", "type": "tool", "tool": "audit", "args": {{"step": f"s{{n}}"}}}} for n in range(steps)]
    return {{"name": "long", "steps": rows}}

async def timed(program, width):
    began = time.perf_counter()
    traces = await asyncio.gather(*(programs.run(program) for _ in range(width)))
    took = time.perf_counter() - began
    assert {{trace.status for trace in traces}} == {{"success"}}, traces[0]
    return took / sum(len(trace.steps) for trace in traces) * 1e6

await programs.run(program(20))
alone = await timed(program({alone}), 1)
print(json.dumps([alone, await timed(program({each}), {width})]))
"""


async def governed(bench: Bench) -> list[Row]:
    """One program alone, 32 in flight, and programs that are run without a container."""
    with disk_of(bench) as disk:
        async with worker("nano_vm", bench, python=peer_python()) as peer:
            return [*await _driven(bench, peer, disk), *await _in_process(bench, peer)]


async def _driven(bench: Bench, peer: Worker, disk: Disk) -> list[Row]:
    # Their sizes say what is measured: fewer steps would be a measure of starts and ends.
    alone, each = (20, 2) if bench.smoke else (ALONE, EACH)
    code = INSIDE.format(alone=alone, each=each, width=IN_FLIGHT)
    wide: dict[str, list[float]] = {"inside": [], "peer": [], "disk": []}
    environment = bench.environment(tables=TABLES)
    async with client([COMMAND], environment, log=bench.work / "bridge.log") as bridge:

        async def inside() -> float:
            one, many = json.loads(await run_python(bridge, code))
            wide["inside"].append(many)
            await bench.settled()
            return float(one)

        async def in_memory() -> float:
            wide["peer"].append(await _together(peer, each, IN_FLIGHT, bench))
            return await _together(peer, alone, 1, bench)

        async def on_disk() -> float:
            batch = await disk.commits(bench.count(100), ENTRIES_A_STEP * IN_FLIGHT)
            wide["disk"].append(batch / IN_FLIGHT)
            return await disk.commits(bench.count(500), ENTRIES_A_STEP)

        measured = {"inside": inside, "peer": in_memory, "disk": on_disk}
        p50 = await interleaved(bench.rounds(10), measured)
    many = {key: statistics.median(values[1:]) for key, values in wide.items()}
    memory = f"{PEER}, in memory, no sandbox"
    commit = "SQLite, {} entries a commit, FULL"
    note = f"{alone:,} steps in one program, timed inside the container; intent and outcome of each are recorded."
    several = f"{IN_FLIGHT} programs of {each} steps, timed inside the container."
    goal, wide_goal = "≤ 667 µs (1,500/s)", "≤ 200 µs (5,000/s)"

    def row(what: str, ours: float, against: float, name: str, goal: str, limit: float, note: str = "") -> Row:
        return Row(what, ours, against, "µs", name, goal, ours <= limit if goal else None, note)

    return [
        row("7 governed step, alone", p50["inside"], p50["disk"], commit.format(ENTRIES_A_STEP), goal, 667, note),
        row("7 …", p50["inside"], p50["peer"], memory, "", 0),
        row(
            f"7 governed step, {IN_FLIGHT} programs",
            many["inside"],
            many["disk"],
            commit.format(ENTRIES_A_STEP * IN_FLIGHT),
            wide_goal,
            200,
            several,
        ),
        row("7 …", many["inside"], many["peer"], memory, "", 0),
    ]


async def _together(peer: Worker, steps: int, width: int, bench: Bench) -> float:
    """Microseconds a step on llm-nano-vm, by the clock."""
    told = await peer.ask(do="together", program=f"long:{steps}", width=width, seconds=bench.seconds(0.5))
    return float(told["seconds"] / told["steps"] * 1e6)


async def _in_process(bench: Bench, peer: Worker) -> list[Row]:
    """The refund, as a gateway runs it for a client, with all that it keeps."""
    async with bridge_with_tools(bench) as bridge:
        count = bench.count(50)

        async def ours() -> float:
            began = time.perf_counter()
            for _ in range(count):
                await _refund(bridge)
            return (time.perf_counter() - began) / count * 1e6

        async def theirs() -> float:
            told = await peer.ask(do="gateway", program="refund", seconds=bench.seconds(0.3))
            return float(told["seconds"] / told["times"] * 1e6)

        measured: dict[str, Callable[[], Awaitable[float]]] = {"ours": ours, "peer": theirs}
        p50 = await interleaved(bench.rounds(15), measured)
    note = (
        "4 steps. Ours: each intent is on the disk (synchronous=FULL) before its call, the record before the answer. "
        f"{GATEWAY}: eight commits after the end of the program (synchronous=NORMAL: no fsync)."
    )
    return [Row("7 refund, in process, kept", p50["ours"], p50["peer"], "µs", f"{GATEWAY}, its handlers", note=note)]


async def _refund(bridge: Bridge) -> None:
    record = await bridge.run_program(work.REFUND_WITHOUT_CONTEXT)
    assert record["status"] == "success", record
