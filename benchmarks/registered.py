"""Row 5: a call of one of the operator's own tools, through the gate, with what must be on the disk before it.

From the host, and from a script in a container, timed there.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import statistics
import tempfile
import time
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from benchmarks.measure import Row, interleaved, timed
from benchmarks.tools import TABLES
from mcp_bridge import settings
from mcp_bridge.executions.client import Client
from mcp_bridge.executions.scripts.script_run import ScriptRun
from mcp_bridge.gate.request_context import NO_REQUEST
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.server.process_memory import configure_interpreter
from mcp_bridge.wire.messages import ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from benchmarks.bridge import Bench
    from mcp_bridge.host.bridge import Bridge

IN_FLIGHT = 32

ARGUMENTS = {"step": "s1"}

SCRIPT = """
import asyncio, json, time
from mcp import runtime
from mcp.servers import local

async def one():
    began = time.perf_counter()
    await local.audit(**{arguments})
    return time.perf_counter() - began

async def several():
    for _ in range({count} // 10):
        await one()

def median(samples):
    return sorted(samples)[len(samples) // 2] * 1e6

for _ in range(20):
    await one()
alone = median([await one() for _ in range({count})])
began = time.perf_counter()
await asyncio.gather(*(several() for _ in range({width})))
wide = (time.perf_counter() - began) / ({count} // 10 * {width}) * 1e6

async def bare():
    began = time.perf_counter()
    # Answered by the host; recorded with what comes next, until there is no more room for lookups.
    runtime.list_loaded_server_metadata()
    return time.perf_counter() - began

print(json.dumps([alone, wide, median([await bare() for _ in range({count})])]))
"""

PAGE_BYTES = 4096

PAGES = 256

GROWING_ENTRIES = 20_000
"""So many in one transaction make the log as long as it gets by checkpoints of every thousand pages."""

SCHEMA = """
CREATE TABLE entries (
    sequence INTEGER PRIMARY KEY, time REAL NOT NULL, execution TEXT NOT NULL, kind TEXT NOT NULL, step TEXT,
    policy TEXT NOT NULL, program TEXT, payload TEXT NOT NULL
) STRICT;
CREATE INDEX entries_of_execution ON entries (execution, sequence);
"""
"""An entry as a plain row of text: no hash, no signature, nothing encrypted."""

INSERT = "INSERT INTO entries (time, execution, kind, step, policy, program, payload) VALUES (?, ?, ?, ?, ?, ?, ?)"

ENTRY = (
    0.0,
    "0123456789abcdef",
    "intent",
    None,
    "0" * 64,
    None,
    json.dumps({"kind": "tool", "tool": "local.audit", "arguments": ARGUMENTS}),
)


@asynccontextmanager
async def bridge_with_tools(bench: Bench) -> AsyncGenerator[Bridge]:
    """A bridge in this process, with `benchmarks.tools` registered."""
    # As a process that serves does.
    configure_interpreter()
    configured = settings.Settings(state_dir=bench.state_dir, max_calls=1_000_000)
    governance = load_governance(TABLES, None, Path.cwd(), bench.state_dir)
    async with open_bridge(configured, [], governance) as bridge:
        yield bridge


class Disk:
    """What has to be paid for durability here: fsyncs, and commits of SQLite with the recorder's settings.

    Nothing is measured that grows a file, which costs one more write of the file system's journal: the log of a
    database that is in use is written over from its start.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder / "pages", os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._descriptor, bytes(PAGE_BYTES * PAGES), 0)
        self._connection = sqlite3.connect(folder / "entries.sqlite", isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(SCHEMA)
        self._transaction(GROWING_ENTRIES)

    def close(self) -> None:
        self._connection.close()
        os.close(self._descriptor)

    def _transaction(self, entries: int) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for _ in range(entries):
            self._connection.execute(INSERT, ENTRY)
        self._connection.execute("COMMIT")

    def _write(self) -> None:
        os.pwrite(self._descriptor, bytes(PAGE_BYTES), random.randrange(PAGES) * PAGE_BYTES)  # noqa: S311
        os.fsync(self._descriptor)

    async def fsync(self, count: int) -> float:
        """Median microseconds of a page's write and its fsync."""
        return await _median(self._write, count)

    async def commits(self, count: int, entries: int) -> float:
        """Median microseconds of a transaction of so many entries."""
        return await _median(lambda: self._transaction(entries), count)


async def _median(work: Callable[[], None], count: int) -> float:
    """Each on its way to a thread and back, as the recorder's are; only the work itself is measured."""

    def measured() -> float:
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) * 1e6

    return statistics.median([await anyio.to_thread.run_sync(measured) for _ in range(count)])


@contextmanager
def disk_of(bench: Bench) -> Generator[Disk]:
    """The disk that the state directory is on."""
    bench.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bench.state_dir) as folder, closing(Disk(Path(folder))) as disk:
        yield disk


async def _of_nobody(_: object) -> None:
    """As `Session.holds`, without `subject_fields`."""


async def registered(bench: Bench) -> list[Row]:
    """One by one, and 32 in flight, from the host."""
    wide = bench.count(50)
    with disk_of(bench) as disk:
        async with bridge_with_tools(bench) as bridge:
            # What a script's calls go through.
            gate = bridge.gate("benchmark", Client())
            script = ScriptRun("benchmark", bridge.programs.store, bridge.programs.recorder, gate, gate.policy_hash)

            def call(tool: str) -> Awaitable[object]:
                return script.call("local", ToolCall("local", tool, ARGUMENTS), NO_REQUEST, _of_nobody)

            registry = bridge._governance.registry  # noqa: SLF001
            singly: dict[str, Callable[[], Awaitable[float]]] = {
                "alone": lambda: _micro(lambda: call("audit")),
                "commit": lambda: disk.commits(1, 1),
                "fsync": lambda: disk.fsync(1),
                "ungoverned": lambda: _micro(lambda: registry.call("audit", ARGUMENTS)),
                "alone, thread": lambda: _micro(lambda: call("audit_on_thread")),
            }
            p50 = await interleaved(bench.count(2000), singly, warm_up=bench.count(100))
            together: dict[str, Callable[[], Awaitable[float]]] = {
                "wide": lambda: _together(lambda: call("audit"), wide),
                "batch": lambda: disk.commits(wide, 2 * IN_FLIGHT),
                "wide, thread": lambda: _together(lambda: call("audit_on_thread"), wide),
            }
            p50 |= await interleaved(bench.rounds(15), together)
            p50 |= await _scripted(bench, bridge, disk)
    p50["batch"] /= IN_FLIGHT
    one, many = "SQLite, an entry a commit, FULL", f"SQLite, {2 * IN_FLIGHT} entries a commit, FULL"
    note = "The intent is durable before the call; the outcome with the next intent, or with the answer."

    def row(what: str, ours: str, peer: str, against: str, limit: float | None, goal: str = "", note: str = "") -> Row:
        return Row(what, p50[ours], p50[peer], "µs", against, goal, p50[ours] <= limit if limit else None, note)

    return [
        row("5 registered tool, one by one", "alone", "commit", one, 500, "≤ 500 µs", note),
        row("5 …", "alone", "fsync", "write and fsync of 4 KiB", None),
        row("5 …", "alone", "ungoverned", "the tool, without gate and record", None),
        row("5 … a plain function, on a thread", "alone, thread", "commit", one, 500, "≤ 500 µs"),
        row(f"5 … a call, {IN_FLIGHT} in flight", "wide", "batch", many, 200, "≤ 200 µs (5,000/s)"),
        row("5 … plain functions, on threads", "wide, thread", "batch", many, 200, "≤ 200 µs (5,000/s)"),
        row(
            "5 … by a script in a container, one by one",
            "script",
            "script, fsync",
            "write and fsync of 4 KiB",
            2 * p50["script, fsync"] + 250,
            "≤ 2 x the fsync + 250 µs",
        ),
        row(f"5 … by a script, {IN_FLIGHT} in flight", "script, wide", "batch", many, 125, "≤ 125 µs (8,000/s)"),
        row("5 … a lookup of a script, answered by the host", "script, bare", "script, fsync", "the fsync", None),
    ]


async def _scripted(bench: Bench, bridge: Bridge, disk: Disk) -> dict[str, float]:
    """Microseconds a call of a script, as it sees them, with an fsync beside each of its runs."""
    code = SCRIPT.format(arguments=ARGUMENTS, count=bench.count(500), width=IN_FLIGHT)
    measured: dict[str, list[float]] = {"script": [], "script, wide": [], "script, bare": []}

    async def run() -> float:
        record = await bridge.run(code, timeout=60)
        if record.status != "success":
            raise RuntimeError(record.error)
        for samples, value in zip(measured.values(), json.loads(record.stdout), strict=True):
            samples.append(value)
        return measured["script"][-1]

    p50 = await interleaved(bench.rounds(15), {"script": run, "script, fsync": lambda: disk.fsync(bench.count(100))})
    return p50 | {name: statistics.median(samples[1:]) for name, samples in measured.items()}


async def _micro(call: Callable[[], Awaitable[Any]]) -> float:
    return await timed(call) * 1000


async def _together(call: Callable[[], Awaitable[Any]], each: int) -> float:
    """Microseconds a call, while so many tasks call one after the other."""

    async def again() -> None:
        for _ in range(each):
            await call()

    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.start_soon(again)
    return (time.perf_counter() - began) / (IN_FLIGHT * each) * 1e6
