"""Sessions and waits: a cell against a tool that does nothing, a rebuilding against the time that the cells took, and
going on after a wait against the same script without one."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING

from benchmarks.bridge import COMMAND, Bench, client, ours, run_python, without_pool
from benchmarks.measure import Row, interleaved, timed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp import Client

TURNS = 20
CELLS = (10, 50)

CELL_MS = 20
"""For how long the code of a cell computes, when it first runs and when it runs again."""

CELL = f"""
import time
ends = time.perf_counter() + {CELL_MS / 1000}
seen = globals().get('seen', []) + [len(globals())]
while time.perf_counter() < ends: pass
"""
"""A name that grows, and computing."""

WAITING = "import time\nawait runtime.wait_event('go')\nprint('went on')"
"""Suspended until an event is sent, which a payload brings here."""

PLAIN = "print('went on')"


async def waits(bench: Bench) -> list[Row]:
    """A script that is suspended for an event, and goes on in another container, against one that only runs."""
    environment = bench.environment(tables=without_pool())
    suspended, resumed, plain = [], [], []
    async with client([COMMAND, "serve", "--tools", "programs"], environment, log=bench.work / "waits.log") as bridge:
        for number in range(bench.rounds(9)):
            told = ""

            async def begin(key: str = f"w{number}") -> None:
                nonlocal told
                answer = await bridge.call_tool("run_python", {"code": WAITING, "idempotency_key": key})
                told = "\n".join(getattr(block, "text", "") for block in answer.content)

            suspended.append(await timed(begin))
            found = re.search(r"--execution ([0-9a-f]{16})", told)

            async def go_on(trace: str = found[1] if found else "") -> None:
                await bridge.call_tool("resume_program", {"trace_id": trace, "payload": 1})

            resumed.append(await timed(go_on))
            plain.append(await timed(lambda: run_python(bridge, PLAIN)))
    floor = statistics.median(plain)
    what = "the same without a wait"
    return [
        Row("a script, until it is suspended for an event", statistics.median(suspended), floor, "ms", what),
        Row("its event sent, and gone on to its end", statistics.median(resumed), floor, "ms", what),
    ]


async def sessions(bench: Bench) -> list[Row]:
    """A session's turn, and the rebuilding of sessions of ten and of fifty cells."""
    environment = bench.environment(tables=without_pool())
    async with (
        client([COMMAND], environment, log=bench.work / "bridge.log") as bridge,
        client(ours("noop"), environment, log=bench.work / "noop.log") as peer,
    ):

        def turns(work: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[float]]:
            async def once() -> float:
                return statistics.median([await timed(work) for _ in range(bench.count(TURNS))])

            return once

        p50 = await interleaved(
            bench.rounds(15),
            {
                "turn": turns(lambda: run_python(bridge, "pass", session="turns")),
                "call": turns(lambda: peer.call_tool("noop", {})),
            },
        )
        rows = [row for cells in map(bench.count, CELLS) for row in await _rebuilding(bench, bridge, cells)]
    return [
        Row(
            'run_python("pass") in a session',
            p50["turn"],
            p50["call"],
            "ms",
            "no-op tool, SDK",
            "≤ 2",
            p50["turn"] <= 2 * p50["call"],
        ),
        *rows,
    ]


async def _rebuilding(bench: Bench, bridge: Client, cells: int) -> list[Row]:
    """The rebuilding of a session of so many cells: against their code's time, and against the calls that ran them."""
    session = f"of-{cells}"
    took = sum([await timed(lambda: run_python(bridge, CELL, session=session)) for _ in range(cells)])
    rebuilt = []
    for number in range(bench.rounds(5)):
        told = await run_python(bridge, "len(seen)", session=f"fork{number}-{session}", fork=f"{session}@{cells}")
        found = re.search(r"from the record in ([0-9.]+) s", told)
        rebuilt.append(float(found[1]) * 1000 if found else 0.0)
    what, ours = f"rebuilding a session of {cells} cells", statistics.median(rebuilt)
    return [
        Row(what, ours, float(CELL_MS * cells), "ms", f"the time that their code took, {CELL_MS} ms each"),
        Row(what, ours, took, "ms", "the calls that ran its cells, the first container included"),
    ]
