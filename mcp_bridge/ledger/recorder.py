"""Where entries go. The gate knows this interface alone: what makes a record provable can take its place behind it."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from typing import TYPE_CHECKING, Protocol, Self

import anyio
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.entries import Entry, Recorded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

logger = logging.getLogger(__name__)

MAX_BATCH = 1000
"""Entries in one transaction."""


class Recorder(Protocol):
    """Takes entries, in order."""

    async def append(self, *entries: Entry) -> None:
        """Record, and return when they are durable.

        Raises:
            BridgeError: `not_recorded`: they aren't, and what they announce must not happen.
        """

    def post(self, *entries: Entry) -> None:
        """Record before anything that is appended later, without waiting."""

    async def read(self, execution: str) -> list[Recorded]:
        """An execution's entries, in order."""


class MemoryRecorder:
    """Keeps entries for as long as the process lives."""

    def __init__(self) -> None:
        self.entries: list[Recorded] = []

    async def append(self, *entries: Entry) -> None:
        """As `Recorder.append`."""
        self.post(*entries)

    def post(self, *entries: Entry) -> None:
        """As `Recorder.post`."""
        for entry in entries:
            self.entries.append(Recorded(len(self.entries) + 1, time.time(), entry))

    async def read(self, execution: str) -> list[Recorded]:
        """As `Recorder.read`."""
        return [row for row in self.entries if row.entry.execution == execution]


class SqliteRecorder:
    """Keeps entries in a table; whoever waits at the same time shares one transaction, and so one fsync.

    An async context manager. Its writer is one thread at a time; readers use connections of their own.

    Args:
        path: The database file; made with mode 0600 if it isn't there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[tuple[Entry, float]] = []
        self._flushing = False
        self._turn: anyio.Event = anyio.Event()
        self._written = 0
        self._posted = 0
        self._failure: BridgeError | None = None
        self._database: sqlite3.Connection | None = None

    async def __aenter__(self) -> Self:
        self._database = await anyio.to_thread.run_sync(_open, self._path)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self.append()
            except BridgeError:
                logger.exception("the last entries were not recorded")
            if self._database is not None:
                await anyio.to_thread.run_sync(self._database.close)

    async def append(self, *entries: Entry) -> None:
        """As `Recorder.append`."""
        self.post(*entries)
        mine = self._posted
        # What has been announced is finished: a caller that goes away must not take others' entries with it.
        with anyio.CancelScope(shield=True):
            while self._written < mine and self._failure is None:
                if self._flushing:
                    await self._turn.wait()
                else:
                    await self._flush()
        if self._failure is not None:
            raise self._failure
        await anyio.lowlevel.checkpoint_if_cancelled()

    def post(self, *entries: Entry) -> None:
        """As `Recorder.post`."""
        now = time.time()
        self._waiting += [(entry, now) for entry in entries]
        self._posted += len(entries)

    async def read(self, execution: str) -> list[Recorded]:
        """As `Recorder.read`."""
        await self.append()
        return await anyio.to_thread.run_sync(_read, self._path, execution)

    async def _flush(self) -> None:
        batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        self._flushing = True
        try:
            await anyio.to_thread.run_sync(_write, self._database, batch)
            self._written += len(batch)
        except sqlite3.Error as exc:
            # From here on nothing is recorded, and so nothing may happen.
            self._failure = BridgeError(
                "not_recorded",
                f"The record of executions can't be written: {exc}.",
                hint=f"Look at {self._path}: is the disk full, or the file another program's?",
            )
        finally:
            self._flushing = False
            turn, self._turn = self._turn, anyio.Event()
            turn.set()


def _open(path: Path) -> sqlite3.Connection:
    path.touch(mode=0o600, exist_ok=True)
    database = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute(
        "CREATE TABLE IF NOT EXISTS entries (sequence INTEGER PRIMARY KEY, time REAL NOT NULL, execution TEXT NOT NULL,"
        " kind TEXT NOT NULL, step TEXT, policy TEXT NOT NULL, program TEXT, payload TEXT NOT NULL) STRICT"
    )
    database.execute("CREATE INDEX IF NOT EXISTS entries_of_execution ON entries (execution, sequence)")
    return database


def _write(database: sqlite3.Connection | None, batch: Sequence[tuple[Entry, float]]) -> None:
    if database is None:
        raise sqlite3.ProgrammingError("the recorder isn't open")
    rows = [
        (now, entry.execution, entry.kind, entry.step, entry.policy, entry.program, json.dumps(entry.payload))
        for entry, now in batch
    ]
    database.execute("BEGIN IMMEDIATE")
    try:
        database.executemany(
            "INSERT INTO entries (time, execution, kind, step, policy, program, payload) VALUES (?, ?, ?, ?, ?, ?, ?)",
            rows,
        )
        database.execute("COMMIT")
    except sqlite3.Error:
        database.execute("ROLLBACK")
        raise


def _read(path: Path, execution: str) -> list[Recorded]:
    database = sqlite3.connect(path, timeout=30)
    try:
        rows = database.execute(
            "SELECT sequence, time, kind, step, policy, program, payload FROM entries WHERE execution = ?"
            " ORDER BY sequence",
            (execution,),
        ).fetchall()
    finally:
        database.close()
    return [
        Recorded(sequence, when, Entry(kind, execution, json.loads(payload), step, policy, program))
        for sequence, when, kind, step, policy, program, payload in rows
    ]
