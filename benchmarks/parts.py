"""What the parts of a recorded call cost at least: the floor under every figure of a call.

Each is measured back to back, and after a pause as a call has one while it waits for the disk, a container or a
server. After it, processors have slept and their caches are cold.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.bridge import Bench, client, ours
from benchmarks.measure import Row

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

PAUSE_SECONDS = 0.001
"""About as long as a call of a script is under way."""

PAGE_BYTES, PAGES = 4096, 256

ROW_BYTES, ROWS = 200, 20_000

PAGES_A_COMMIT = 4
"""Of the ledger, for one entry: the entry's, its index's, its payload's, and the head's."""

MESSAGE = b"x" * 100
"""As long as a checkpoint is, and a frame of the channel."""

ECHO = "import os\nwhile data := os.read(0, 1 << 16): os.write(1, data)"


async def parts(bench: Bench) -> list[Row]:
    """Every part: microseconds after a pause, against those back to back."""
    bench.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    count = bench.count(500)
    rows = []
    with tempfile.TemporaryDirectory(dir=bench.state_dir) as name, ExitStack() as stack:
        folder = Path(name)
        key = Ed25519PrivateKey.generate()
        computed: dict[str, Callable[[], object]] = {
            "write and fsync of 4 KiB": stack.enter_context(_synced(folder)),
            "a commit of one page, SQLite": stack.enter_context(_commits(folder, 1)),
            f"a commit of {PAGES_A_COMMIT} pages, SQLite": stack.enter_context(_commits(folder, PAGES_A_COMMIT)),
            "an Ed25519 signature": lambda: key.sign(MESSAGE),
        }
        for what, work in computed.items():
            rows.append(await _row(what, _timed(work), count))
    with _worker() as handed_over:
        rows.append(await _row("to a thread and back to the event loop", handed_over, count))
    async with _echo() as echoed:
        rows.append(await _row("to another process and back, by two pipes", echoed, count))
    async with client(ours("noop"), bench.environment(), log=bench.work / "noop.log") as peer:

        async def call() -> float:
            began = time.perf_counter()
            await peer.call_tool("noop", {})
            return (time.perf_counter() - began) * 1e6

        rows.append(await _row("a no-op tool by the SDK's client and server", call, count))
    return rows


async def _row(what: str, once: Callable[[], Awaitable[float]], count: int) -> Row:
    """Medians of microseconds, in turns of a few: other work on the machine meets both alike."""
    warm: list[float] = []
    cold: list[float] = []
    few = min(count, 20)
    for _ in range(max(1, count // few)):
        warm += [await once() for _ in range(few)]
        for _ in range(few):
            await asyncio.sleep(PAUSE_SECONDS)
            cold.append(await once())
    return Row(f"part: {what}", statistics.median(cold), statistics.median(warm), "µs", "the same back to back")


def _timed(work: Callable[[], object]) -> Callable[[], Awaitable[float]]:
    async def once() -> float:
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) * 1e6

    return once


@contextmanager
def _synced(folder: Path) -> Generator[Callable[[], None]]:
    """Writes a page of a file that doesn't grow, and waits until it is on the disk."""
    file = os.open(folder / "plain", os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(file, bytes(PAGES * PAGE_BYTES), 0)
    number = 0

    def write() -> None:
        nonlocal number
        number += 1
        os.pwrite(file, bytes(PAGE_BYTES), number % PAGES * PAGE_BYTES)
        os.fsync(file)

    try:
        yield write
    finally:
        os.close(file)


@contextmanager
def _commits(folder: Path, pages: int) -> Generator[Callable[[], None]]:
    """Commits a row of each of so many tables, as durably as the ledger does."""
    inserts = [f"INSERT INTO rows{number} (data) VALUES (?)" for number in range(pages)]  # noqa: S608 - of its own
    with closing(sqlite3.connect(folder / f"{pages}.sqlite", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN")
        for number, insert in enumerate(inserts):
            connection.execute(f"CREATE TABLE rows{number} (number INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT")
            connection.executemany(insert, ((os.urandom(ROW_BYTES),) for _ in range(ROWS)))
        connection.execute("COMMIT")

        def commit() -> None:
            connection.execute("BEGIN IMMEDIATE")
            for insert in inserts:
                connection.execute(insert, (bytes(ROW_BYTES),))
            connection.execute("COMMIT")

        yield commit


@contextmanager
def _worker() -> Generator[Callable[[], Awaitable[float]]]:
    """Hands a job over to a waiting thread, as the ledger's writer gets its own."""
    loop = asyncio.get_running_loop()
    jobs: queue.SimpleQueue[asyncio.Future[None] | None] = queue.SimpleQueue()

    def run() -> None:
        while (job := jobs.get()) is not None:
            loop.call_soon_threadsafe(job.set_result, None)

    async def once() -> float:
        began = time.perf_counter()
        done: asyncio.Future[None] = loop.create_future()
        jobs.put(done)
        await done
        return (time.perf_counter() - began) * 1e6

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield once
    finally:
        jobs.put(None)
        thread.join()


@asynccontextmanager
async def _echo() -> AsyncGenerator[Callable[[], Awaitable[float]]]:
    """Sends a message to a process of its own that answers with the same."""
    loop = asyncio.get_running_loop()
    with subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: ASYNC220
        assert process.stdin is not None
        assert process.stdout is not None
        write, read = process.stdin.fileno(), process.stdout.fileno()
        answered: asyncio.Future[None] = loop.create_future()

        def take() -> None:
            os.read(read, 1 << 16)
            answered.set_result(None)

        async def once() -> float:
            nonlocal answered
            began = time.perf_counter()
            answered = loop.create_future()
            os.write(write, MESSAGE)
            await answered
            return (time.perf_counter() - began) * 1e6

        loop.add_reader(read, take)
        try:
            # Its start isn't measured.
            await once()
            yield once
        finally:
            loop.remove_reader(read)
            process.stdin.close()
