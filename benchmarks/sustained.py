"""Containers a second, each used once, from its start to its removal."""

from __future__ import annotations

import os
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio

from benchmarks.bridge import COMMAND, Bench, client, run_python
from benchmarks.measure import Row, interleaved
from benchmarks.runtime import UnavailableError, bundle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

WHAT = "3 a container, one after the other, each used once"

MOST_MILLISECONDS = 50.0

SECONDS = 6.0
"""Of one sample: a pool's containers that were ready at its start are few among those of a sample."""


async def sustained(bench: Bench) -> list[Row]:
    """`run_python("pass")` of as many callers as keep the processors busy, beside as many of `runc run`."""
    callers = 2 * (os.cpu_count() or 1)
    seconds = bench.seconds(SECONDS)
    async with AsyncExitStack() as stack:
        bridge = await stack.enter_async_context(
            client([COMMAND], bench.environment(), log=bench.work / "bridge.log", read_timeout=120)
        )

        async def ours() -> float:
            await bench.settled()
            return await flood(lambda: run_python(bridge, "pass"), callers, seconds, bench.settled)

        measured: dict[str, Callable[[], Awaitable[float]]] = {"ours": ours}
        against, note = "runc run", f"{callers} callers; until all containers of the sample are gone."
        try:
            alone = await stack.enter_async_context(bundle(bench))
        except UnavailableError as exc:
            note = f"{note} Not measured here: {exc}."
        else:
            against = f"{alone.name} run, same files and flags"
            measured["peer"] = lambda: flood(alone.run, callers, seconds)
        p50 = await interleaved(bench.rounds(5), measured)
    mine, peer = p50["ours"], p50.get("peer")
    met = mine <= MOST_MILLISECONDS and (peer is None or mine <= peer / 0.8)
    return [Row(WHAT, mine, peer, "ms", against, "≤ 50 ms (20/s), ≤ 1.25", met, note)]


async def flood(
    once: Callable[[], Awaitable[object]],
    callers: int,
    seconds: float,
    settled: Callable[[], Awaitable[float]] | None = None,
) -> float:
    """Milliseconds each, while so many do it over and over, until what the last have left is settled.

    Args:
        once: What is done.
        callers: How many do it.
        seconds: For how long.
        settled: Waits until nothing changes any more, and returns since when, by `time.perf_counter`.
    """
    began = time.perf_counter()
    done = 0

    async def again() -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await once()
            done += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(callers):
            tasks.start_soon(again)
    ended = time.perf_counter() if settled is None else await settled()
    return (ended - began) / done * 1000
