"""The ledger: how fast entries become durable, and what it takes to prove them and to verify all of them."""

from __future__ import annotations

import itertools
import os
import sqlite3
import statistics
import tempfile
import time
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from benchmarks.measure import Row, interleaved
from benchmarks.worker import worker
from benchmarks.workers.logs import entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.head_file import RECORD_BYTES, Position, PositionFile
from mcp_bridge.ledger.storage.schema import FILE_NAME

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from benchmarks.bridge import Bench

CALLERS = (1, 8, 64)

EACH = {1: 50, 8: 20, 64: 10}
"""Entries of each of so many callers in a sample."""

GROUP = 1000
"""Entries that one caller appends together."""

EXECUTIONS = 32
"""That are under way."""

GROWING_ENTRIES = 20_000
"""So many make SQLite's log as long as it gets by checkpoints of every thousand pages."""

SIZES = (1_000, 10_000, 100_000, 1_000_000)
QUICK_SIZES = 3
"""So many of them; of the million there is a minute of building and minutes of verifying."""

ROUNDS = {1_000: 5, 10_000: 5, 100_000: 3}
"""Verifications of a log of so many entries; one of a longer one."""

MEBIBYTE = 1 << 20

OF_A_MILLION, MOST_MICROSECONDS = ("audit verify", 1_000_000), 30.0
"""What has a goal: 30 seconds for a million entries."""


class Plain:
    """As many bytes as the ledger keeps, without anything: rows of SQLite, and the end of a file."""

    def __init__(self, folder: Path, row_bytes: int) -> None:
        self._row = (os.urandom(row_bytes),)
        self._file = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._connection = sqlite3.connect(folder / "plain.sqlite", isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE rows (sequence INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT")
        self._commit(GROWING_ENTRIES)

    def close(self) -> None:
        self._connection.close()
        os.close(self._file)

    def _commit(self, rows: int) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO rows (data) VALUES (?)", [self._row] * rows)
        self._connection.execute("COMMIT")

    def _append(self, rows: int) -> None:
        os.write(self._file, self._row[0] * rows)
        os.fsync(self._file)

    async def commits(self, count: int, rows: int) -> float:
        """Median microseconds a row of transactions of so many."""
        return await _median(lambda: self._commit(rows), count) / rows

    async def appends(self, count: int, rows: int) -> float:
        """Median microseconds a row of so many written at the end of a file with one fsync."""
        return await _median(lambda: self._append(rows), count) / rows


async def _median(work: Callable[[], None], count: int) -> float:
    """On a thread, as the ledger's writer is; only the work itself is measured."""

    def measured() -> float:
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) * 1e6

    return statistics.median([await anyio.to_thread.run_sync(measured) for _ in range(count)])


@asynccontextmanager
async def ledger_and_plain(bench: Bench) -> AsyncGenerator[tuple[Database, Plain]]:
    """A ledger of its own, in use for a while, and as many plain bytes a row on the same disk."""
    bench.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bench.state_dir) as folder:
        async with Database(Path(folder) / FILE_NAME) as database:
            database.record(*(entry(number % EXECUTIONS) for number in range(GROWING_ENTRIES)))
            ((row_bytes,),) = await database.read(_ROW_BYTES)
            with closing(Plain(Path(folder), row_bytes)) as plain:
                yield database, plain


_ROW_BYTES = """
    SELECT CAST(avg(length(entry) + length(nodes) + length(sealed) + length(execution) + length(kind)) AS INTEGER)
    FROM entries JOIN payloads USING (sequence)
"""


async def ledger(bench: Bench) -> list[Row]:
    """Appending; then proving and verifying, by size."""
    return [*await _appending(bench), *await _by_size(bench)]


async def _appending(bench: Bench) -> list[Row]:
    async with ledger_and_plain(bench) as (database, plain), _heads(bench) as (position, sector):
        recorder = SqliteRecorder(database)
        groups = bench.count(50)

        async def grouped() -> float:
            began = time.perf_counter()
            await recorder.append(*(entry(number % EXECUTIONS) for number in range(GROUP)))
            return (time.perf_counter() - began) / GROUP * 1e6

        measured: dict[str, Callable[[], Awaitable[float]]] = {
            "group": grouped,
            f"rows {GROUP}": lambda: plain.commits(1, GROUP),
            f"file {GROUP}": lambda: plain.appends(1, GROUP),
            "head": lambda: _median(position, bench.count(100)),
            "sector": lambda: _median(sector, bench.count(100)),
        }
        for callers in CALLERS:
            measured |= {
                f"callers {callers}": lambda callers=callers: _callers(recorder, callers, bench),  # type: ignore[misc]
                f"rows {callers}": lambda callers=callers: plain.commits(bench.count(10), callers),  # type: ignore[misc]
                f"file {callers}": lambda callers=callers: plain.appends(bench.count(10), callers),  # type: ignore[misc]
            }
        p50 = await interleaved(groups, measured)
    limit = 20
    note = "Of each: leaf, chain, tree, sealed payload, and the signature of the log's new head once a commit."
    rows = []
    for what, ours, count in (
        (f"ledger entry, {GROUP:,} together", "group", GROUP),
        *((f"ledger entry, {count} caller{'s' * (count > 1)}", f"callers {count}", count) for count in CALLERS),
    ):
        goal: tuple[str, bool | None, str] = ("", None, "")
        if count == GROUP:
            goal = ("≤ 20 µs (50,000/s)", p50[ours] <= limit, note)
        elif count == 1:
            goal = ("≤ 1.5", p50[ours] <= 1.5 * p50["rows 1"], "")
        against = f"SQLite, {count:,} row{'s' * (count > 1)} of as many bytes a commit, FULL"
        rows.append(Row(what, p50[ours], p50[f"rows {count}"], "µs", against, *goal))
        rows.append(Row("ledger …", p50[ours], p50[f"file {count}"], "µs", "the same bytes appended to a file, fsync"))
    note = "How far the ledger has come, beside it: part of each commit."
    head = Row("ledger.head, a commit", p50["head"], p50["sector"], "µs", "512 bytes over the same", note=note)
    return [*rows, head]


@asynccontextmanager
async def _heads(bench: Bench) -> AsyncGenerator[tuple[Callable[[], None], Callable[[], None]]]:
    """What takes down how far a ledger has come, and what writes as many bytes to as many files."""
    with tempfile.TemporaryDirectory(dir=bench.state_dir) as folder:
        numbers = itertools.count(1)
        with closing(PositionFile(Path(folder) / FILE_NAME)) as file, (Path(folder) / "sector").open("wb", 0) as other:

            def position() -> None:
                file.advance(Position("log", next(numbers), bytes(32), 0))

            def sector() -> None:
                os.pwrite(other.fileno(), bytes(RECORD_BYTES), 0)

            yield position, sector


async def _callers(recorder: SqliteRecorder, callers: int, bench: Bench) -> float:
    """Microseconds an entry, while so many append one after the other."""
    each = bench.count(EACH[callers])

    async def again(execution: int) -> None:
        for _ in range(each):
            await recorder.append(entry(execution))

    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(callers):
            tasks.start_soon(again, number)
    return (time.perf_counter() - began) / (callers * each) * 1e6


async def _by_size(bench: Bench) -> list[Row]:
    sizes = SIZES[:1] if bench.smoke else SIZES[:QUICK_SIZES] if bench.quick else SIZES
    proving, verifying = [], []
    bench.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bench.state_dir) as folder:
        async with worker("logs", bench) as builder:
            for size in sizes:
                await builder.ask(do="grow", folder=folder, size=size)
                told = await builder.ask(do="prove", folder=folder, count=bench.count(500))
                proving += _proving(size, told)
                verifying += await verifications(bench, folder, size)
    return proving + verifying


def _proving(size: int, told: dict[str, float]) -> list[Row]:
    entries = f"{size:,} entries"
    note = "`prove` is everything, as a file: the entry, its payload opened, hashes, checkpoint."

    def row(what: str, key: str, goal: str = "", note: str = "") -> Row:
        met = told[key] < 1000 if goal else None
        return Row(f"{what}, {entries}", told[key], told["reads"], "µs", "its rows read by their keys", goal, met, note)

    return [
        row("inclusion proof", "inclusion", "< 1 ms"),
        row("consistency proof", "consistency"),
        row("audit prove", "prove", note=note),
    ]


async def verifications(bench: Bench, folder: str, size: int) -> list[Row]:
    """Each by a process of its own, which has verified nothing before."""
    measured = {name: _in_own_process(bench, folder, name) for name in ("file", "export", "rows", "lines", "nothing")}
    rounds = 1 if bench.smoke else ROUNDS.get(size, 1)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in measured}
    for _ in range(rounds):
        for name, once in measured.items():
            samples[name].append(await once())
    p50 = {
        name: {key: statistics.median(told[key] for told in found) for key in ("seconds", "peak")}
        for name, found in samples.items()
    }
    rows = []
    for what, name, peer, against in (
        ("audit verify", "file", "rows", "its rows read, SHA-256 of each"),
        ("verify_export", "export", "lines", "its lines read, SHA-256 of each"),
    ):
        ours, limit = (p50[each]["seconds"] / size * 1e6 for each in (name, peer))
        peak, start = (p50[each]["peak"] / MEBIBYTE for each in (name, "nothing"))
        goal, met = ("≤ 30 µs (30 s)", ours <= MOST_MICROSECONDS) if (what, size) == OF_A_MILLION else ("", None)
        rows.append(
            Row(
                f"{what}, an entry of {size:,}",
                ours,
                limit,
                "µs",
                against,
                goal,
                met,
                curve=f"{what}, entries",
                at=size,
            )
        )
        rows.append(Row(f"{what} …, peak memory", peak, start, "MiB", "the same process, without verifying"))
    return rows


def _in_own_process(bench: Bench, folder: str, name: str) -> Callable[[], Awaitable[dict[str, float]]]:
    async def once() -> dict[str, float]:
        async with worker("logs", bench) as process:
            return await process.ask(do=name, folder=folder)

    return once
