"""One SQLite file, one writer: whoever writes at the same time shares a transaction, and so an fsync.

Writes are posted in order and are durable when a flush that follows them returns. Once a write has failed nothing is
written any more, and everything that wants to be recorded first fails: what isn't recorded must not happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import queue
import sqlite3
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel
import anyio.to_thread

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

logger = logging.getLogger(__name__)

MAX_BATCH = 2000
"""Statements in one transaction."""

BUSY_SECONDS = 30.0
"""How long to wait for another process that is writing."""

MIGRATIONS = (
    """
    CREATE TABLE entries (
        sequence INTEGER PRIMARY KEY, time REAL NOT NULL, execution TEXT NOT NULL, kind TEXT NOT NULL, step TEXT,
        policy TEXT NOT NULL, program TEXT, payload TEXT NOT NULL
    ) STRICT;
    CREATE INDEX entries_of_execution ON entries (execution, sequence);
    CREATE TABLE programs (
        principal TEXT NOT NULL, name TEXT NOT NULL, hash TEXT NOT NULL, data TEXT NOT NULL, saved REAL NOT NULL,
        PRIMARY KEY (principal, name)
    ) STRICT;
    CREATE TABLE executions (
        id TEXT PRIMARY KEY, principal TEXT NOT NULL, key TEXT, request TEXT NOT NULL, status TEXT NOT NULL,
        program TEXT NOT NULL, bundle TEXT NOT NULL, origin TEXT NOT NULL, owner TEXT NOT NULL, state BLOB,
        record TEXT, due REAL, started REAL NOT NULL, changed REAL NOT NULL
    ) STRICT;
    CREATE TABLE reference_values (
        execution TEXT NOT NULL, id TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (execution, id)
    ) STRICT;
    CREATE UNIQUE INDEX executions_by_key ON executions (principal, key) WHERE key IS NOT NULL;
    CREATE INDEX executions_by_time ON executions (principal, started);
    CREATE TABLE approvals (
        id INTEGER PRIMARY KEY, execution TEXT NOT NULL, effect INTEGER NOT NULL, asked REAL NOT NULL,
        question TEXT NOT NULL, status TEXT NOT NULL, decided REAL, decision TEXT, UNIQUE (execution, effect)
    ) STRICT
    """,
)
"""What takes the file from each version to the next. A migration and its record are one transaction."""


ROWS = (64, 16, 4)
"""Numbers of rows that are inserted by one statement, where so many of them follow each other."""


@dataclass(slots=True)
class _Statement:
    text: str
    parameters: Sequence[Any]
    changed: int = 0
    counted: bool = False


class Database:
    """An open file. An async context manager.

    Args:
        path: The file; made with mode 0600 if it isn't there.

    Raises (on entering):
        BridgeError: `database_unusable` (no database, no permission, damaged), `database_newer` (of a later version:
            left untouched).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: _Writer | None = None
        self._posted: list[_Statement] = []
        self._count_posted = 0
        self._count_written = 0
        self._flushing = False
        self._turn = anyio.Event()
        self._failure: BridgeError | None = None

    async def __aenter__(self) -> Self:
        try:
            connection = await anyio.to_thread.run_sync(_open, self._path)
        except (sqlite3.Error, OSError) as exc:
            raise _unusable(self._path, exc) from None
        self._writer = _Writer(connection)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self.flush()
            except BridgeError:
                logger.exception("the last entries were not recorded")
            if self._writer is not None:
                await self._writer.close()

    def post(self, statement: str, parameters: Sequence[Any]) -> None:
        """Write before anything that is posted later, without waiting."""
        self._post(_Statement(statement, parameters))

    def _post(self, statement: _Statement) -> None:
        self._posted.append(statement)
        self._count_posted += 1

    async def flush(self) -> None:
        """Return when everything that has been posted is durable.

        Raises:
            BridgeError: `not_recorded`: it isn't.
        """
        mine = self._count_posted
        # Others' statements are in the same batch: a caller that goes away must not take them with it.
        with anyio.CancelScope(shield=True):
            while self._count_written < mine and self._failure is None:
                if self._flushing:
                    await self._turn.wait()
                else:
                    await self._write()
        if self._failure is not None:
            raise self._failure
        await anyio.lowlevel.checkpoint_if_cancelled()

    async def write(self, statement: str, parameters: Sequence[Any]) -> int:
        """Post and flush; how many rows it has changed.

        Raises:
            BridgeError: As `flush`.
        """
        posted = _Statement(statement, parameters, counted=True)
        self._post(posted)
        await self.flush()
        return posted.changed

    async def read(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, everything posted included.

        Raises:
            BridgeError: As `flush`; `database_unusable`: the file is damaged, or has gone.
        """
        await self.flush()
        try:
            return await anyio.to_thread.run_sync(_read, self._path, query, parameters)
        except sqlite3.Error as exc:
            raise _unusable(self._path, exc) from None

    async def _write(self) -> None:
        batch, self._posted = self._posted[:MAX_BATCH], self._posted[MAX_BATCH:]
        self._flushing = True
        try:
            if self._writer is None:
                raise sqlite3.ProgrammingError("the database isn't open")
            await self._writer.write(batch)
            self._count_written += len(batch)
        except sqlite3.Error as exc:
            self._failure = BridgeError(
                "not_recorded",
                f"The record of executions can't be written: {exc}.",
                hint=f"Look at {self._path}: is the disk full?",
            )
        finally:
            self._flushing = False
            turn, self._turn = self._turn, anyio.Event()
            turn.set()


def _unusable(path: Path, exc: Exception) -> BridgeError:
    return BridgeError(
        "database_unusable",
        f"The record of executions, {path}, can't be used: {exc}.",
        hint="Move the file away to begin a new one.",
    )


def _open(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise BridgeError(
                "database_newer",
                f"{path} was written by a later version of this program.",
                hint="Use that version, or another state_dir.",
            )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Once more, inside: another process may have been quicker.
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        for migration in MIGRATIONS[version:]:
            for statement in migration.split(";"):
                connection.execute(statement)
        if version < len(MIGRATIONS):
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


class _Writer:
    """The thread that writes. One that lives as long as the file: a hop to a pool's costs as much as a commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[list[_Statement], asyncio.Future[None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mcp-bridge-database", daemon=True)
        self._thread.start()

    async def write(self, batch: list[_Statement]) -> None:
        """One transaction, to its end.

        Raises:
            sqlite3.Error: It was rolled back.
        """
        done: asyncio.Future[None] = self._loop.create_future()
        self._work.put((batch, done))
        await done

    async def close(self) -> None:
        """End the thread and close the file."""
        self._work.put(None)
        await anyio.to_thread.run_sync(self._thread.join)

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            batch, done = job
            try:
                _execute(self._connection, batch)
                self._settle(done, None)
            except sqlite3.Error as exc:
                self._settle(done, exc)
        self._connection.close()

    def _settle(self, done: asyncio.Future[None], error: sqlite3.Error | None) -> None:
        def settle() -> None:
            if not done.done():
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

        # The loop may have been closed under us: nobody waits then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(settle)


def _execute(connection: sqlite3.Connection, batch: list[_Statement]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        at = 0
        while at < len(batch):
            statement = batch[at]
            count = _alike(batch, at)
            if count == 1:
                statement.changed = connection.execute(statement.text, statement.parameters).rowcount
            else:
                rows = batch[at : at + count]
                connection.execute(_of_rows(statement.text, count), [value for row in rows for value in row.parameters])
            at += count
        connection.execute("COMMIT")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _alike(batch: list[_Statement], at: int) -> int:
    """How many statements from a place on are made as one.

    Every statement by itself gives up the interpreter's lock, and waits for a busy event loop to get it back.
    """
    text = batch[at].text
    if not text.endswith(")") or " VALUES " not in text:
        return 1
    for count in ROWS:
        rows = batch[at : at + count]
        if len(rows) == count and all(row.text == text and not row.counted for row in rows):
            return count
    return 1


@functools.cache
def _of_rows(insert: str, count: int) -> str:
    head, _, values = insert.partition(" VALUES ")
    return f"{head} VALUES {', '.join([values] * count)}"


def _read(path: Path, query: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS)
    try:
        return connection.execute(query, parameters).fetchall()
    finally:
        connection.close()
