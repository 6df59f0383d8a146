"""How the figures grow with what there is more of: callers, steps, entries, servers, bytes."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.bridge import COMMAND, Bench, client, ours, run_python
from benchmarks.kernel import MOST_SECONDS, once, once_long
from benchmarks.ledger import verifications
from benchmarks.measure import Row, interleaved, timed
from benchmarks.runtime import UnavailableError, bundle
from benchmarks.start import Server
from benchmarks.sustained import flood
from benchmarks.worker import PEER, peer_python, worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from mcp import Client

CALLERS = (1, 2, 4, 8, 16, 32, 64)
STEPS = (1, 10, 100, 1000, 10_000)
MANY_STEPS = 1000
"""From here on, one run of the peer takes seconds."""

ENTRIES = (1, 10, 100)
"""Fewer than the row `ledger` has, which goes on with the same curve to a million."""

SERVERS = (1, 10, 100, 1000)
PAYLOADS = (1 << 10, 8 << 10, 64 << 10, 512 << 10, 1 << 20, 8 << 20)

CALLER_SECONDS = 2.0

INSIDE = """
import json, time
from mcp.servers import target
text = "x" * {size}
took = []
for _ in range({times}):
    began = time.perf_counter()
    await target.echo(text=text)
    took.append(time.perf_counter() - began)
print(json.dumps(sorted(took)[len(took) // 2] * 1000))
"""

ONE_OF_MANY = "from mcp.servers import {name}\nawait {name}.noop()"


def _some(bench: Bench, points: Sequence[int]) -> Sequence[int]:
    return points[:2] if bench.smoke else points[:-1] if bench.quick else points


async def callers(bench: Bench) -> list[Row]:
    """So many callers of `run_python("pass")`, each the next call after its last."""
    rows, seconds = [], bench.seconds(CALLER_SECONDS)
    async with AsyncExitStack() as stack:
        log = bench.work / "bridge.log"
        bridge = await stack.enter_async_context(client([COMMAND], bench.environment(), log=log, read_timeout=300))
        against, note, alone = "runc run", "", None
        try:
            alone = await stack.enter_async_context(bundle(bench))
            against = f"{alone.name} run, same files and flags"
        except UnavailableError as exc:
            note = f"Not measured here: {exc}."
        for count in _some(bench, CALLERS):

            async def mine(count: int = count) -> float:
                await bench.settled()
                return await flood(lambda: run_python(bridge, "pass"), count, seconds, bench.settled)

            measured: dict[str, Callable[[], Awaitable[float]]] = {"ours": mine}
            if alone is not None:
                measured["peer"] = lambda alone=alone, count=count: flood(alone.run, count, seconds)  # type: ignore[misc]
            p50 = await interleaved(bench.rounds(3), measured, warm_up=0)
            what, curve = f"curve: a container, {count} callers", "concurrent run_python"
            rows.append(Row(what, p50["ours"], p50.get("peer"), "ms", against, note=note, curve=curve, at=count))
    return rows


async def steps(bench: Bench) -> list[Row]:
    """Programs of so many steps in the kernel, by processor time."""
    rows = []
    async with worker("kernel", bench) as mine, worker("nano_vm", bench, python=peer_python()) as peer:
        for count in _some(bench, STEPS):
            program = f"long:{count}"
            if count < MANY_STEPS:
                measured = {
                    "ours": once(mine, "run and hash", program, bench.seconds(0.3)),
                    "peer": once(peer, "run", program, bench.seconds(0.3)),
                }
                p50 = await interleaved(bench.rounds(5), measured)
                ours_, theirs = p50["ours"] / count, p50["peer"] / count
            else:
                most = bench.seconds(MOST_SECONDS)
                theirs = (await once_long(peer, count, most))[1]
                ours_ = statistics.median([(await once_long(mine, count, most))[1] for _ in range(bench.rounds(5))])
            rows.append(Row(f"curve: a step of {count:,}", ours_, theirs, "µs", PEER, curve="steps", at=count))
    return rows


async def entries(bench: Bench) -> list[Row]:
    """Logs of few entries: what verification costs however short the log is."""
    rows = []
    bench.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bench.state_dir) as folder:
        async with worker("logs", bench) as builder:
            for count in _some(bench, ENTRIES):
                await builder.ask(do="grow", folder=folder, size=count)
                rows += [row for row in await verifications(bench, folder, count) if row.curve]
    return rows


async def servers(bench: Bench) -> list[Row]:
    """So many servers in the configuration: the start, and a call of a tool of the last of them."""
    rows = []
    log = bench.work / "bridge.log"
    for count in _some(bench, SERVERS):
        first, every = {"s0": ours("honest")}, {f"s{number}": ours("honest") for number in range(count)}
        async with (
            client([COMMAND], bench.environment(every), log=log) as many,
            client([COMMAND], bench.environment(first), log=log) as one,
        ):
            measured = {
                "start": partial(_start, bench, every),
                "start of one": partial(_start, bench, first),
                "call": partial(_call, bench, many, count),
                "call of one": partial(_call, bench, one, 1),
            }
            p50 = await interleaved(bench.rounds(5), measured)
        for what, key, curve in (
            ("start to tools/list", "start", "servers, start"),
            ("a script that calls one", "call", "servers, call"),
        ):
            mine, peer = p50[key], p50[f"{key} of one"]
            rows.append(Row(f"curve: {what}, {count} servers", mine, peer, "ms", "with one", curve=curve, at=count))
    return rows


async def _start(bench: Bench, configured: Mapping[str, Sequence[str]]) -> float:
    """Milliseconds from a bridge's start to tools/list."""
    began = time.perf_counter()
    server = await Server.start([COMMAND], bench, bench.environment(configured))
    await server.list_tools()
    took = (time.perf_counter() - began) * 1000
    await server.end()
    return took


async def _call(bench: Bench, bridge: Client, count: int) -> float:
    await bench.settled(2 * bench.pool)
    return await timed(lambda: run_python(bridge, ONE_OF_MANY.format(name=f"s{count - 1}")))


async def payloads(bench: Bench) -> list[Row]:
    """A text of so many bytes to a server and back, from a script, and by the SDK's client."""
    rows = []
    environment = bench.environment({"target": ours("honest")})
    async with (
        client([COMMAND], environment, log=bench.work / "bridge.log", read_timeout=300) as bridge,
        client(ours("honest"), environment, log=bench.work / "target.log") as direct,
    ):
        for size in _some(bench, PAYLOADS):
            times = max(1, min(50, (1 << 22) // size))

            async def inside(size: int = size, times: int = times) -> float:
                return float(json.loads(await run_python(bridge, INSIDE.format(size=size, times=times))))

            async def straight(size: int = size, times: int = times) -> float:
                text = "x" * size
                took = [await timed(lambda: direct.call_tool("echo", {"text": text})) for _ in range(times)]
                return statistics.median(took)

            what, curve = f"curve: echo of {size >> 10:,} KiB", "payload bytes"
            try:
                p50 = await interleaved(bench.rounds(5), {"inside": inside, "direct": straight})
            except RuntimeError as exc:
                note = f"The bridge refuses it: {str(exc)[:200]}"
                rows.append(Row(what, None, None, "ms", "SDK client, direct", note=note, curve=curve, at=size))
                continue
            rows.append(Row(what, p50["inside"], p50["direct"], "ms", "SDK client, direct", curve=curve, at=size))
    return rows
