"""Programs as MCP tools on stdio: `run_program` here and of nano-vm-mcp."""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks.bridge import COMMAND, Bench, client
from benchmarks.governed import TABLES
from benchmarks.measure import Row, interleaved, timed
from benchmarks.worker import GATEWAY, peer_environment, peer_python, worker
from benchmarks.workers import work

if TYPE_CHECKING:
    from mcp import Client

IN_FLIGHT = 32

ARGUMENTS = {"program": work.REFUND_WITHOUT_CONTEXT}

NOTE = (
    "The refund of 4 steps. Ours has each intent on the disk before its call; the peer, whose launcher here gives its "
    "programs the tools that its server can't register, commits without fsync at the end."
)


async def gateway(bench: Bench) -> list[Row]:
    """One by one, and 32 at once."""
    ours_command = [COMMAND, "serve", "--tools", "programs"]
    peer_command = [peer_python(), "-m", "benchmarks.workers.nano_vm_server"]
    count = bench.count(100)
    wide: dict[str, list[float]] = {"ours": [], "peer": [], "same": []}
    async with (
        client(ours_command, bench.environment(tables=TABLES), log=bench.work / "bridge.log") as mine,
        client(peer_command, peer_environment(bench), log=bench.work / "peer.log", mode="legacy") as theirs,
        worker("nano_vm_client", bench, python=peer_python()) as their_client,
    ):

        async def ours() -> float:
            alone, together = await _calls(mine, count)
            wide["ours"].append(together)
            return alone

        async def same_client() -> float:
            alone, together = await _calls(theirs, count)
            wide["same"].append(together)
            return alone

        async def own_client() -> float:
            told = await their_client.ask(count=count, width=IN_FLIGHT)
            wide["peer"].append(told["together"])
            return float(statistics.median(told["alone"]))

        measured = {"ours": ours, "peer": own_client, "same": same_client}
        p50 = await interleaved(bench.rounds(10), measured)
    many = {key: statistics.median(values[-bench.rounds(10) :]) for key, values in wide.items()}
    together = f"gateway, {IN_FLIGHT} at once, a call"
    return [
        Row("gateway on stdio, run_program", p50["ours"], p50["peer"], "ms", f"{GATEWAY}, its SDK's client", note=NOTE),
        Row("gateway …", p50["ours"], p50["same"], "ms", f"{GATEWAY}, the same client"),
        Row(together, many["ours"], many["peer"], "ms", f"{GATEWAY}, its SDK's client"),
        Row(together, many["ours"], many["same"], "ms", f"{GATEWAY}, the same client"),
    ]


async def _calls(connected: Client, count: int) -> tuple[float, float]:
    """Milliseconds of a call, one by one and of so many at once."""

    async def call() -> None:
        result: Any = await connected.call_tool("run_program", ARGUMENTS)
        told = json.loads(result.content[0].text)
        assert told["status"] in {"success", "TraceStatus.SUCCESS"}, told

    await call()
    alone = statistics.median([await timed(call) for _ in range(count)])
    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.start_soon(call)
    return alone, (time.perf_counter() - began) * 1000 / IN_FLIGHT
