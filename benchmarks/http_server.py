"""Clients over HTTP: the bridge as they reach it, against the SDK's own server."""

from __future__ import annotations

import statistics
import subprocess
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from mcp import Client

from benchmarks.bridge import COMMAND, Bench, over_http, run_python
from benchmarks.measure import Row, interleaved, timed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

ERAS = {"2025-11-25": "legacy", "2026-07-28": "2026-07-28"}

CALLS = 20
IN_FLIGHT = 32


@asynccontextmanager
async def bridge_over_http(bench: Bench) -> AsyncGenerator[str]:
    """The bridge, serving over HTTP; its address."""
    command = [COMMAND, "serve", "--transport", "http", "--port", "0"]
    process = await anyio.open_process(command, stderr=subprocess.DEVNULL, env=bench.environment(), cwd=bench.work)
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
