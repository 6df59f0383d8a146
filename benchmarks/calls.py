"""Rows 1, 2 and 4: run_python itself, and the calls made from inside."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
from mcp import Client

from benchmarks.bridge import CACHE, COMMAND, Bench, client, ours, over_http, run_python, service, without_pool
from benchmarks.measure import Row, interleaved, timed
from benchmarks.processes import bridge_among, descendants, processor_ms, runs
from benchmarks.runtime import UnavailableError, bundle, prepared_engine, sandbox_argv

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from mcp_bridge.host.engine_setup import Prepared

IN_FLIGHT = 32

INSIDE = """
import asyncio, json, time
from mcp.servers import target
async def one():
    began = time.perf_counter()
    await target.{tool}({arguments})
    return time.perf_counter() - began
for _ in range(20):
    await one()
alone = sorted([await one() for _ in range({count})])
began = time.perf_counter()
for _ in range({count} // {width}):
    await asyncio.gather(*(one() for _ in range({width})))
rate = {count} // {width} * {width} / (time.perf_counter() - began)
print(json.dumps([alone[len(alone) // 2] * 1000, rate]))
"""


async def noop(bench: Bench) -> list[Row]:
    """Row 1: run_python("pass") against a tool that does nothing."""
    async with (
        client([COMMAND], bench.environment(), log=bench.work / "bridge.log") as bridge,
        client(ours("noop"), bench.environment(), log=bench.work / "noop.log") as peer,
    ):

        async def run() -> float:
            await bench.settled()
            return await timed(lambda: run_python(bridge, "pass"))

        async def call() -> float:
            return statistics.median([await timed(lambda: peer.call_tool("noop", {})) for _ in range(20)])

        async def first() -> float:
            await bench.settled()
            return await timed(lambda: peer.call_tool("noop", {}))

        async def computed() -> float:
            await bench.settled()
            return await processor_ms(bridge_pid, lambda: run_python(bridge, "pass"))

        async def peer_computed() -> float:
            await bench.settled()
            return await processor_ms(peer_pid, lambda: peer.call_tool("noop", {}))

        children = descendants(os.getpid())
        bridge_pid = bridge_among(children)
        (peer_pid,) = [pid for pid in children if runs(pid, "benchmarks.servers.noop")]
        work = {"run": run, "first": first, "call": call, "computed": computed, "peer computed": peer_computed}
        p50 = await interleaved(bench.rounds(25), work)
    note = "" if bench.pool else "No pool in this version: a container is started in every call."
    met = p50["run"] <= 2.5 * p50["call"]
    what = '1 run_python("pass") on stdio'
    return [
        Row(what, p50["run"], p50["call"], "ms", "no-op tool, SDK", "≤ 2.5", met, note),
        Row("1 …", p50["run"], p50["first"], "ms", "no-op tool, SDK, after the same pause"),
        Row("1 … processor time", p50["computed"], p50["peer computed"], "ms", "no-op tool's server, the same"),
    ]


async def cold(bench: Bench) -> list[Row]:
    """Row 2: a call of run_python, with nothing kept ready, against the runtime alone and the engine's `run`."""
    prepared, config = await prepared_engine(bench)
    environment = bench.environment(tables=without_pool())
    async with AsyncExitStack() as stack:
        bridge = await stack.enter_async_context(client([COMMAND], environment, log=bench.work / "bridge.log"))

        async def call() -> float:
            await bench.settled(0)
            return await timed(lambda: run_python(bridge, "pass"))

        async def to_the_end() -> float:
            async def work() -> None:
                await run_python(bridge, "pass")
                await bench.settled(0)

            await bench.settled(0)
            return await timed(work)

        def engine(arguments: Callable[[], list[str]]) -> Callable[[], Awaitable[float]]:
            async def once() -> float:
                await bench.settled(0)
                return await timed(lambda: anyio.run_process(arguments(), stdin=subprocess.DEVNULL))

            return once

        measured = {
            "call": call,
            "same": engine(lambda: sandbox_argv(prepared, config, bench)),
            "network": engine(lambda: _bare(prepared, "--network=none")),
            "gone": to_the_end,
            "bare": engine(lambda: _bare(prepared)),
        }
        alone, reason = "runc run", ""
        try:
            one = await stack.enter_async_context(bundle(bench))
        except UnavailableError as exc:
            reason = f"Not measured here: {exc}."
        else:
            alone, measured["runtime"] = f"{one.name} run, same files and flags", one.run
        p50: dict[str, float | None] = {**await interleaved(bench.rounds(20), measured)}
    name = prepared.report.choice.engine
    runtime = prepared.report.choice.oci_runtime or "default runtime"

    def row(what: str, ours_: str, peer: str, against: str, limit: float | None = None, note: str = "") -> Row:
        mine, theirs = p50[ours_], p50.get(peer)
        met = mine <= limit * theirs if limit and mine is not None and theirs is not None else None
        return Row(what, mine, theirs, "ms", against, f"≤ {limit}" if limit else "", met, note)

    needed = (
        f"`{name} run --rm IMAGE python3 -c pass` and only what this host needs to start anything: {runtime}, ulimits."
    )
    return [
        row("2 cold run_python, to the answer", "call", "runtime", alone, 1.25, reason),
        row("2 … until its container is gone", "gone", "runtime", alone, None, reason),
        row("2 … to the answer", "call", "same", f"{name} run, the sandbox's flags"),
        row("2 … to the answer", "call", "network", f"{name} run, bare, --network=none", None, needed),
        row("2 … to the answer", "call", "bare", f"{name} run, bare (with a network)"),
        row("2 … until its container is gone", "gone", "same", f"{name} run, the sandbox's flags"),
    ]


def _bare(prepared: Prepared, *flags: str) -> list[str]:
    choice = prepared.report.choice
    ulimits = (f"--ulimit=nofile={choice.nofile_max}", f"--ulimit=nproc={choice.nproc_max}")
    return [*choice.command, "run", "--rm", *ulimits, *flags, prepared.image.reference, "python3", "-c", "pass"]


async def proxied(bench: Bench) -> list[Row]:
    """Row 4: a call from inside against the SDK's client calling the same server."""
    rows = await _proxied(bench, "no-op of the SDK", ours("noop"), "noop", {})
    async with over_http("noop") as url:
        rows += await _proxied(bench, "no-op of the SDK over HTTP", url, "noop", {})
    script = CACHE / "servers/npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
    node = shutil.which("node")
    if node is None or not script.exists():
        note = "server-everything or node is not installed here; scripts/test-servers.sh installs them."
        rows.append(Row("4 proxied call, server-everything", None, None, "ms", note=note))
        return rows
    everything = [node, str(script), "stdio"]
    return rows + await _proxied(bench, "server-everything echo", everything, "echo", {"message": "hi"})


async def openapi(bench: Bench) -> list[Row]:
    """An operation of a service that OpenAPI describes, called from inside, against httpx2 directly."""
    rates: dict[str, list[float]] = {"inside": [], "direct": []}
    count = 320
    code = INSIDE.format(tool="get_thing", arguments="id=1", count=count, width=IN_FLIGHT)
    async with AsyncExitStack() as stack:
        base = await stack.enter_async_context(service())
        tables = f'[servers.target]\nopenapi = "{base}/openapi.json"\nbase_url = "{base}"\n'
        environment = bench.environment(tables=tables)
        bridge = await stack.enter_async_context(client([COMMAND], environment, log=bench.work / "bridge.log"))
        direct = await stack.enter_async_context(httpx2.AsyncClient(base_url=base))

        async def ask() -> None:
            (await direct.get("/things/1")).json()

        async def inside() -> float:
            alone, rate = json.loads(await run_python(bridge, code))
            rates["inside"].append(rate)
            await bench.settled()
            return float(alone)

        async def straight() -> float:
            alone, rate = await _direct(ask, count)
            rates["direct"].append(rate)
            return alone

        p50 = await interleaved(bench.rounds(15), {"inside": inside, "direct": straight})
    per_call = {key: 1000 / statistics.median(values[1:]) for key, values in rates.items()}
    note = "Every call is an entry of the signed log, on the disk before it is made."
    return [
        Row("OpenAPI call, one by one", p50["inside"], p50["direct"], "ms", "httpx2, direct", note=note),
        Row(f"… ms a call at {IN_FLIGHT} in flight", per_call["inside"], per_call["direct"], "ms", "httpx2, direct"),
    ]


async def _proxied(bench: Bench, name: str, server: list[str] | str, tool: str, arguments: dict[str, Any]) -> list[Row]:
    """The rows of one server: a command line, or an address."""
    count = 320
    code = INSIDE.format(
        tool=tool,
        arguments=", ".join(f"{key}={value!r}" for key, value in arguments.items()),
        count=count,
        width=IN_FLIGHT,
    )
    rates: dict[str, list[float]] = {"inside": [], "direct": []}
    environment = bench.environment({"target": server})
    async with AsyncExitStack() as stack:
        bridge = await stack.enter_async_context(client([COMMAND], environment, log=bench.work / "bridge.log"))
        if isinstance(server, str):
            direct = await stack.enter_async_context(Client(server, read_timeout_seconds=60))
        else:
            direct = await stack.enter_async_context(client(server, environment, log=bench.work / "target.log"))

        async def inside() -> float:
            alone, rate = json.loads(await run_python(bridge, code))
            rates["inside"].append(rate)
            await bench.settled()
            return float(alone)

        async def straight() -> float:
            alone, rate = await _direct(lambda: direct.call_tool(tool, arguments), count)
            rates["direct"].append(rate)
            return alone

        p50 = await interleaved(bench.rounds(15), {"inside": inside, "direct": straight})
    note = "Every call is an entry of the signed log, on the disk before it is made."
    met = p50["inside"] <= 1.25 * p50["direct"]
    against = "SDK client, direct"
    # Of rates the peer's comes first, so that here too a ratio over one means that ours is the slower.
    per_call = {key: 1000 / statistics.median(values[1:]) for key, values in rates.items()}
    wide = per_call["inside"] <= per_call["direct"]
    both = f"ms a call at {IN_FLIGHT} in flight"
    return [
        Row(f"4 proxied call, {name}, one by one", p50["inside"], p50["direct"], "ms", against, "≤ 1.25", met, note),
        Row(f"4 … {both}", per_call["inside"], per_call["direct"], "ms", against, "≤ 1.0", wide),
    ]


async def _direct(one: Callable[[], Coroutine[Any, Any, object]], count: int) -> tuple[float, float]:
    """The median of calls one by one, in milliseconds, and calls a second with many in flight."""
    for _ in range(20):
        await one()
    alone = statistics.median([await timed(one) for _ in range(count)])
    began = time.perf_counter()
    for _ in range(count // IN_FLIGHT):
        async with anyio.create_task_group() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.start_soon(one)
    return alone, count // IN_FLIGHT * IN_FLIGHT / (time.perf_counter() - began)
