"""Beside a gateway's store that is made for the same: an execution's state, and what is kept of every step."""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks.ledger import ledger_and_plain
from benchmarks.measure import Row, interleaved
from benchmarks.worker import GATEWAY, peer_python, worker
from benchmarks.workers import work
from benchmarks.workers.logs import PAYLOAD, entry
from mcp_bridge.kernel import state
from mcp_bridge.kernel.language.program_parser import bundle, parse
from mcp_bridge.kernel.machine import Machine
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution
from mcp_bridge.ledger.storage.schema import FILE_NAME

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.bridge import Bench

AT_ONCE = 64

CALLS, ROWS, NEW_ROWS = 20, 200, 0.6
"""Of mixed traffic: calls of a run, rows of an answer, how many of the answers are new."""

EXECUTION = "execution"


def _began() -> tuple[StoredExecution, bytes]:
    """The refund, and its machine's state."""
    program = parse(work.REFUND)
    data = state.dump(Machine(program, work.CONTEXT))
    kept = StoredExecution(
        id=EXECUTION,
        kind="program",
        principal="operator",
        key=None,
        request="0" * 64,
        status="running",
        program=program.hash,
        bundle=bundle(program),
        origin="operator",
        owner="benchmark",
        state=data,
        record=None,
        due=None,
        started=time.time(),
    )
    return kept, data


async def store(bench: Bench) -> list[Row]:
    """A state saved and read; an entry a step, one by one and many at once."""
    execution, data = _began()
    steps, each = bench.count(50), max(1, bench.count(20) // 4)
    async with (
        ledger_and_plain(bench) as (database, plain),
        worker("nano_vm", bench, python=peer_python()) as peer,
    ):
        executions, recorder = ProgramStore(database), SqliteRecorder(database)
        await executions.add(execution)

        async def save_and_get() -> None:
            await executions.update(EXECUTION, status="running", state=data, record=None, due=None)
            found = await executions.execution(EXECUTION)
            assert found is not None
            assert found.state == data

        async def saves() -> float:
            return await _micro(save_and_get, steps)

        async def entries() -> float:
            return await _micro(lambda: recorder.append(entry(0)), steps)

        async def at_once() -> float:
            async def again(number: int) -> None:
                for _ in range(each):
                    await recorder.append(entry(number))

            async def all_of_them() -> None:
                async with anyio.create_task_group() as tasks:
                    for number in range(AT_ONCE):
                        tasks.start_soon(again, number)

            return await _micro(all_of_them, 1) / (AT_ONCE * each)

        def theirs(do: str, synchronous: str, content: Any) -> Callable[[], Awaitable[float]]:
            async def once() -> float:
                told = await peer.ask(do=do, synchronous=synchronous, content=content, seconds=bench.seconds(0.3))
                return float(told["seconds"] / told["times"] * 1e6)

            return once

        measured: dict[str, Callable[[], Awaitable[float]]] = {
            "save": saves,
            "save FULL": theirs("state", "FULL", json.loads(data)),
            "save NORMAL": theirs("state", "NORMAL", json.loads(data)),
            "entry": entries,
            "at once": at_once,
            "envelope FULL": theirs("envelope", "FULL", PAYLOAD),
            "envelope NORMAL": theirs("envelope", "NORMAL", PAYLOAD),
            "commit": lambda: plain.commits(steps, 1),
            "commit at once": lambda: plain.commits(max(1, steps // 5), AT_ONCE),
        }
        p50 = await interleaved(bench.rounds(15), measured)
    full, normal = f"{GATEWAY}'s store, made FULL", f"{GATEWAY}'s store as it comes, no fsync (NORMAL)"
    sealed = "Ours is encrypted and has a MAC, which both are checked when it is read; the peer's is plain."
    chained = "Ours is chained, hashed into the tree, sealed and signed for; the peer's is a plain row."
    alone = "The peer has one commit an envelope, whoever else waits."

    def row(what: str, ours: str, peer: str, against: str, note: str = "") -> Row:
        return Row(what, p50[ours], p50[peer], "µs", against, note=note)

    return [
        row("state of an execution, save and get", "save", "save FULL", full, sealed),
        row("state …", "save", "save NORMAL", normal),
        row("state …", "save", "commit", "SQLite, a row a commit, FULL"),
        row("entry of a step, one by one", "entry", "envelope FULL", full, chained),
        row("entry …", "entry", "envelope NORMAL", normal),
        row("entry …", "entry", "commit", "SQLite, a row a commit, FULL"),
        await _room(bench),
        row(f"entry of a step, {AT_ONCE} at once", "at once", "envelope FULL", full, alone),
        row("entry …", "at once", "envelope NORMAL", normal),
        row("entry …", "at once", "commit at once", f"SQLite, {AT_ONCE} rows a commit, FULL"),
    ]


async def _room(bench: Bench) -> Row:
    """Mixed traffic: calls that answer with rows of a table, four in ten with the same ones again."""
    chosen = random.Random(3)  # noqa: S311
    bench.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    told = 0
    with tempfile.TemporaryDirectory(dir=bench.state_dir) as folder:
        path = Path(folder) / FILE_NAME
        async with Database(path) as database:
            recorder = SqliteRecorder(database)
            for number in range(bench.count(20)):
                rows: list[dict[str, Any]] = []
                for call in range(CALLS):
                    if not rows or chosen.random() < NEW_ROWS:
                        rows = [
                            {"id": chosen.randrange(10**9), "city": "Bern", "due": chosen.random()} for _ in range(ROWS)
                        ]
                    about = {"kind": "tool", "tool": "crm.list", "call": f"0#{call}"}
                    payloads = about | {"arguments": {"page": call}}, about | {"status": "ok", "value": {"rows": rows}}
                    told += sum(len(json.dumps(payload)) for payload in payloads)
                    await recorder.append(Entry("intent", f"{number:032x}", payloads[0]))
                    await recorder.append(Entry("outcome", f"{number:032x}", payloads[1]))
        size = path.stat().st_size
    return Row("mixed traffic, bytes on the disk", size / told, 1.0, "B/B", "as JSON, a byte each", note="0.1.0: 1.08")


async def _micro(call: Callable[[], Awaitable[Any]], times: int) -> float:
    """Microseconds of one of so many, one after the other."""
    began = time.perf_counter()
    for _ in range(times):
        await call()
    return (time.perf_counter() - began) / times * 1e6
