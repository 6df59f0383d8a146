"""Row 6, and llm-nano-vm's own scenarios: the kernel against its ExecutionVM, both in memory, each in a process.

Both run the same programs with the same tools, plain functions that do next to nothing, and the same model, which
answers at once. Neither governs or keeps anything. llm-nano-vm hashes the outputs after every step; our kernel hashes
nothing, so it is measured with the hash that host and guest compare at the end too. All figures are processor time.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks.measure import Row, interleaved
from benchmarks.worker import PEER, Worker, peer_python, worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.bridge import Bench

LONG = (30, 1000, 10_000)

MOST_SECONDS = 15.0
"""For one run of a long program: llm-nano-vm would take minutes for the longest."""

TEN_TIMES = "≤ 0.1 (10 times)"

KERNEL_ALONE = "Transitions and trace alone."
WITH_HASH = "With SHA-256 of the final state, trace included. The peer hashes the outputs after every step."


async def kernel(bench: Bench) -> list[Row]:
    """Programs a second, steps of long programs, replays."""
    async with worker("kernel", bench) as ours, worker("nano_vm", bench, python=peer_python()) as peer:
        return [
            *await _programs(bench, ours, peer),
            *await _replays(bench, ours, peer),
            *await _long(bench, ours, peer),
        ]


def once(process: Worker, do: str, program: str, seconds: float) -> Callable[[], Awaitable[float]]:
    """Microseconds a time."""

    async def measure() -> float:
        told = await process.ask(do=do, program=program, seconds=seconds)
        return float(told["seconds"] / told["times"] * 1e6)

    return measure


async def _programs(bench: Bench, ours: Worker, peer: Worker) -> list[Row]:
    rows = []
    for program, what, goal in (
        ("refund", "6 refund, 4 steps", TEN_TIMES),
        ("refund_by_model", "6 refund, 4 steps, one a model's", TEN_TIMES),
        ("parallel", "6 parallel, 10 wide", ""),
    ):
        seconds = bench.seconds(0.3)
        measured = {
            "alone": once(ours, "run", program, seconds),
            "peer": once(peer, "run", program, seconds),
            "hashed": once(ours, "run and hash", program, seconds),
        }
        p50 = await interleaved(bench.rounds(15), measured)
        for key, name, note in (("alone", what, KERNEL_ALONE), ("hashed", "6 … with the state's hash", WITH_HASH)):
            met = p50[key] <= 0.1 * p50["peer"] if goal else None
            rows.append(Row(name, p50[key], p50["peer"], "µs", PEER, goal, met, note))
    return rows


async def _replays(bench: Bench, ours: Worker, peer: Worker) -> list[Row]:
    seconds = bench.seconds(0.3)
    measured = {
        "rebuild": once(ours, "rebuild", "refund", seconds),
        "peer": once(peer, "run twice", "refund", seconds),
        "twice": once(ours, "run twice", "refund", seconds),
    }
    p50 = await interleaved(bench.rounds(15), measured)
    theirs = (
        "The peer's “replay equivalence”: the program is run twice, tools and all, and both traces' hashes compared."
    )
    mine = f"{theirs} Ours calls nothing: it rebuilds the state from the entries of its record and compares its hash."
    return [
        Row("6 replay: state from its record", p50["rebuild"], p50["peer"], "µs", f"{PEER}, run twice", note=mine),
        Row("6 … or run twice and compared", p50["twice"], p50["peer"], "µs", f"{PEER}, run twice", note=theirs),
    ]


async def _long(bench: Bench, ours: Worker, peer: Worker) -> list[Row]:
    rows = []
    short, *others = LONG
    measured = {
        "ours": once(ours, "run and hash", f"long:{short}", bench.seconds(0.3)),
        "peer": once(peer, "run", f"long:{short}", bench.seconds(0.3)),
    }
    p50 = await interleaved(bench.rounds(15), measured)
    shortest = p50["ours"] / short
    note = "A step, with the state's hash at the end."
    rows.append(Row(f"6 a step of {short}", shortest, p50["peer"] / short, "µs", PEER, note=note))
    for steps in others:
        most = bench.seconds(MOST_SECONDS)
        reached, theirs = await once_long(peer, steps, most)
        # Often enough for a median where it is quick; the peer takes its time.
        mine = statistics.median([(await once_long(ours, steps, most))[1] for _ in range(bench.rounds(5))])
        if reached < steps:
            note = f"The peer was stopped after {most:g} s, at step {reached:,}: its mean up to there."
        # Linear: a step of the longest costs what a step of the shortest does, give or take what is done once.
        goal, met = ("linear", mine <= 1.5 * shortest) if steps == LONG[-1] else ("", None)
        rows.append(Row(f"6 a step of {steps:,}", mine, theirs, "µs", PEER, goal, met, note))
    return rows


async def once_long(process: Worker, steps: int, seconds: float) -> tuple[int, float]:
    """How many steps it made in this time, and microseconds a step."""
    told = await process.ask(do="long", program=f"long:{steps}", seconds=seconds)
    return told["steps"], told["seconds"] / told["steps"] * 1e6
