"""Clients over HTTP: the bridge as one reaches it, and as 200 do, against the SDK's own server."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from mcp import Client

from benchmarks.bridge import COMMAND, REPOSITORY, Bench, over_http, run_python, without_pool
from benchmarks.measure import Row, interleaved, timed
from mcp_bridge.governance.principal_tokens import TokenStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

ERAS = {"2025-11-25": "legacy", "2026-07-28": "2026-07-28"}

CALLS = 20
IN_FLIGHT = 32

CLIENTS, PRINCIPALS = 200, 20
SECONDS = 5.0
"""How long all clients ask in a sample."""


@asynccontextmanager
async def bridge_over_http(bench: Bench, tables: str = "") -> AsyncGenerator[str]:
    """The bridge, serving over HTTP; its address."""
    command = [COMMAND, "serve", "--transport", "http", "--port", "0"]
    environment = bench.environment(tables=tables)
    process = await anyio.open_process(command, stderr=subprocess.DEVNULL, env=environment, cwd=bench.work)
    try:
        assert process.stdout is not None
        yield (await process.stdout.receive()).decode().split()[-1]
    finally:
        process.terminate()
        await process.wait()
        await process.aclose()


async def http_server(bench: Bench) -> list[Row]:
    """A request that does nothing, and `run_python`, in both eras."""
    rows = []
    async with bridge_over_http(bench) as ours, over_http("noop") as theirs:
        for era, mode in ERAS.items():
            async with AsyncExitStack() as stack:
                bridge = await stack.enter_async_context(Client(ours, mode=mode, read_timeout_seconds=60))
                peer = await stack.enter_async_context(Client(theirs, mode=mode, read_timeout_seconds=60))
                rows += await _era(bench, era, bridge, peer)
    return rows


async def _era(bench: Bench, era: str, bridge: Client, peer: Client) -> list[Row]:
    def listed(client: Client) -> Callable[[], Awaitable[float]]:
        async def once() -> float:
            return statistics.median([await timed(client.list_tools) for _ in range(CALLS)])

        return once

    def rate(client: Client) -> Callable[[], Awaitable[float]]:
        async def once() -> float:
            """Milliseconds a request, with many at once."""
            began = time.perf_counter()
            for _ in range(CALLS // 4):
                async with anyio.create_task_group() as tasks:
                    for _ in range(IN_FLIGHT):
                        tasks.start_soon(client.list_tools)
            return (time.perf_counter() - began) * 1000 / (CALLS // 4 * IN_FLIGHT)

        return once

    async def run() -> float:
        await bench.settled()
        return await timed(lambda: run_python(bridge, "pass"))

    async def call() -> float:
        return statistics.median([await timed(lambda: peer.call_tool("noop", {})) for _ in range(CALLS)])

    p50 = await interleaved(
        bench.rounds(15),
        {
            "list": listed(bridge),
            "peer's list": listed(peer),
            "rate": rate(bridge),
            "peer's rate": rate(peer),
            "run": run,
            "call": call,
        },
    )
    return [
        Row(f"no-op (tools/list) over HTTP, {era}", p50["list"], p50["peer's list"], "ms", "tools/list, SDK"),
        Row(f"… {IN_FLIGHT} at once, a request", p50["rate"], p50["peer's rate"], "ms", "tools/list, SDK"),
        Row(f'run_python("pass") over HTTP, {era}', p50["run"], p50["call"], "ms", "no-op tool, SDK"),
    ]


async def team(bench: Bench) -> list[Row]:
    """200 clients of 20 principals at once, against as many of the SDK's server, which knows nobody."""
    # Whoever has a token there lets nobody in without one.
    own = dataclasses.replace(bench, state_dir=bench.work / "team-state")
    own.state_dir.mkdir(mode=0o700)
    for probed in bench.state_dir.glob("*.json"):
        shutil.copy(probed, own.state_dir)
    store = TokenStore(own.state_dir)
    names = [f"team-{number}" for number in range(PRINCIPALS)]
    tokens = [store.add(name, restricted=True).text for name in names]
    tables = "\n".join([without_pool(), *(f"[principals.{name}]" for name in names)])
    p99: dict[str, list[float]] = {"ours": [], "peer": []}
    async with bridge_over_http(own, tables) as ours, over_http("noop") as theirs:

        def asked(who: str, url: str, tokens: list[str]) -> Callable[[], Awaitable[float]]:
            async def once() -> float:
                """Milliseconds a request, with all at once."""
                arguments = [url, str(CLIENTS), str(bench.seconds(SECONDS)), *tokens]
                done = await anyio.run_process(
                    [sys.executable, "-m", "benchmarks.workers.http_clients", *arguments],
                    env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                )
                found = json.loads(done.stdout)
                p99[who].append(found["p99"])
                return float(found["seconds"] * 1000 / found["requests"])

            return once

        p50 = await interleaved(
            bench.rounds(5), {"ours": asked("ours", ours, tokens), "peer": asked("peer", theirs, [])}
        )
    against, note = (
        "tools/list, SDK",
        f"Ours knows {PRINCIPALS} principals by their tokens; the SDK's server knows nobody.",
    )
    tail = {who: statistics.median(values[1:] or values) for who, values in p99.items()}
    return [
        Row(
            f"tools/list, {CLIENTS} clients at once over HTTP, a request",
            p50["ours"],
            p50["peer"],
            "ms",
            against,
            note=note,
        ),
        Row("… p99", tail["ours"], tail["peer"], "ms", against, note=note),
    ]
