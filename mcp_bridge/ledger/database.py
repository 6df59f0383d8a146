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
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import anyio
import anyio.to_thread

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    _Job: TypeAlias = Callable[[sqlite3.Connection], Any]
    _Settle: TypeAlias = Callable[[Any, Exception | None], None]

logger = logging.getLogger(__name__)

FILE_NAME = "executions.sqlite"
"""In the state directory."""

MAX_BATCH = 2000
"""Statements in one transaction."""

QUICK_SECONDS = 0.002
"""For callers who went on together: if it took them longer, the next goes alone."""

BUSY_SECONDS = 30.0
"""How long to wait for another process that is writing."""

_RETRY_SECONDS = 0.01

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
        self._writer: _Worker | None = None
        self._reader: _Worker | None = None
        self._posted: list[_Statement] = []
        self._count_posted = 0
        self._count_written = 0
        self._writing = False
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._failure: BridgeError | None = None

    async def __aenter__(self) -> Self:
        try:
            writer, reader = await anyio.to_thread.run_sync(_open_both, self._path)
        except (sqlite3.Error, OSError) as exc:
            raise BridgeError(
                "database_unusable",
                f"The record of executions, {self._path}, can't be used: {exc}.",
                hint="Move the file away to begin a new one.",
            ) from None
        self._writer, self._reader = _Worker(writer, "writer"), _Worker(reader, "reader")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self.flush()
            except BridgeError:
                logger.exception("the last entries were not recorded")
            # Whoever comes now would wait for threads that have ended.
            self._failure = self._failure or BridgeError("not_recorded", "The record of executions is closed.")
            for worker in (self._writer, self._reader):
                if worker is not None:
                    await worker.close()

    def post(self, statement: str, parameters: Sequence[Any]) -> None:
        """Write before anything that is posted later, without waiting.

        Raises:
            BridgeError: `bad_text`: a text that is no Unicode; nothing is posted.
        """
        self._post(_Statement(statement, parameters))

    def _post(self, statement: _Statement) -> None:
        _check_texts(statement.parameters)
        if self._failure is None:
            self._posted.append(statement)
            self._count_posted += 1

    async def flush(self) -> None:
        """Return when everything that has been posted is durable.

        Raises:
            BridgeError: `not_recorded`: it isn't.
        """
        if self._failure is None and self._count_written < self._count_posted:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((self._count_posted, written))
            if not self._writing:
                self._write()
            await written
        if self._failure is not None:
            raise self._failure

    async def write(self, statement: str, parameters: Sequence[Any]) -> int:
        """Post and flush; how many rows it has changed.

        Raises:
            BridgeError: As `post`, `flush`.
        """
        posted = _Statement(statement, parameters, counted=True)
        self._post(posted)
        await self.flush()
        return posted.changed

    async def read(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, everything posted included.

        Raises:
            BridgeError: As `post`, `flush`; `database_unusable`.
        """
        _check_texts(parameters)
        await self.flush()
        rows: asyncio.Future[list[tuple[Any, ...]]] = asyncio.get_running_loop().create_future()

        def settle(found: list[tuple[Any, ...]], error: Exception | None) -> None:
            if rows.done():
                return
            if error is None:
                rows.set_result(found)
            else:
                rows.set_exception(
                    BridgeError("database_unusable", f"The record of executions, {self._path}, can't be read: {error}.")
                )

        assert self._reader is not None  # noqa: S101 - it is open
        self._reader.do(lambda connection: connection.execute(query, parameters).fetchall(), settle)
        return await rows

    def _write(self) -> None:
        """Have a batch written, and after it the next, for as long as somebody waits."""
        batch, self._posted = self._posted[:MAX_BATCH], self._posted[MAX_BATCH:]
        self._writing = True

        def settle(_: object, error: Exception | None) -> None:
            self._writing = False
            if error is None:
                self._count_written += len(batch)
            else:
                self._failure = BridgeError(
                    "not_recorded",
                    f"The record of executions can't be written: {error}.",
                    hint=f"Look at {self._path}: is the disk full? Then start the bridge again.",
                )
            waiting, self._waiting = self._waiting, []
            durable = []
            for count, written in waiting:
                if self._failure is None and count > self._count_written:
                    self._waiting.append((count, written))
                else:
                    durable.append(written)
            _let_go(durable)
            if self._waiting:
                self._write()

        assert self._writer is not None  # noqa: S101 - it is open
        self._writer.do(lambda connection: _execute(connection, batch), settle)


def _let_go(waiting: list[asyncio.Future[None]], count: int = 1) -> None:
    """Let callers go on whose entries are durable: `count` now, and the others in later turns of the event loop.

    What they do next may take its time (a check of large arguments), and they were brought together by sharing a
    transaction. While it doesn't, more and more go at once.
    """
    loop = asyncio.get_running_loop()
    for written in waiting[:count]:
        if not written.done():
            written.set_result(None)
    if left := waiting[count:]:
        began = loop.time()
        # The callers' turn comes first, this one's after it.
        loop.call_soon(lambda: _let_go(left, 2 * count if loop.time() - began < QUICK_SECONDS else 1))


def _open_both(path: Path) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    writer = _open(path)
    try:
        return writer, _open_to_read(path)
    except BaseException:
        writer.close()
        raise


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
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        _migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Change the journal's mode, which SQLite doesn't wait for when several processes begin one file at once."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # The low byte is the primary code (sqlite.org/rescode.html).
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return


def _open_to_read(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only = ON")
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


class _Worker:
    """A thread with a connection. One that lives as long as the file: a hop to a pool's costs as much as a commit."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[_Job, _Settle] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"mcp-bridge-{name}", daemon=True)
        self._thread.start()

    def do(self, job: _Job, settle: _Settle) -> None:
        """Have a job done after those before it; `settle` gets its result or its error, in the event loop."""
        self._work.put((job, settle))

    async def close(self) -> None:
        """End the thread, when all is done, and close the connection."""
        self._work.put(None)
        await anyio.to_thread.run_sync(self._thread.join)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            job, settle = work
            result, failure = None, None
            try:
                result = job(self._connection)
            except Exception as error:  # noqa: BLE001  (whatever it is: somebody waits for it, and this thread goes on)
                failure = error
            # The loop may have been closed under us: nobody waits then.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(settle, result, failure)
        self._connection.close()


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
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _check_texts(parameters: Sequence[Any]) -> None:
    """Here and not in the thread: a caller's bad text must not fail what others have posted."""
    for text in parameters:
        if isinstance(text, str) and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise BridgeError("bad_text", f"{text[:100]!r} holds a lone surrogate: it is no Unicode.") from None


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
