"""The SQLite file of a ledger, with one writer: concurrent writes share a transaction, and so an fsync.

Writes are posted in order and are durable when a flush that follows them returns. Once a write has failed nothing is
written any more, and every operation that has to be recorded first fails: what isn't recorded must not happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import sqlite3
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from mcp_bridge.errors import BridgeError, log_failure
from mcp_bridge.fair_share import charge
from mcp_bridge.ledger.log.quota import (
    MAX_QUEUED_BYTES,
    Measured,
    Quota,
    RunUsage,
    free_bytes,
    journal_bytes,
    measure,
)
from mcp_bridge.ledger.log.reading import master_of, open_for_inspection
from mcp_bridge.ledger.log.transaction import Append, Rows, Statement, commit, posted, run
from mcp_bridge.ledger.storage.cell_chains import KnownPrevious
from mcp_bridge.ledger.storage.file_opening import open_to_read, open_to_write
from mcp_bridge.ledger.storage.live_bridges import Presence, is_present, others
from mcp_bridge.ledger.storage.position_file import PositionError
from mcp_bridge.ledger.storage.storage_errors import code_of, identity, moved, not_read, not_written, unusable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from mcp_bridge.ledger.log.entries import Entry
    from mcp_bridge.ledger.log.log import Log
    from mcp_bridge.ledger.log.transaction import Item, Row, Transaction
    from mcp_bridge.ledger.storage.sealing import MasterKey

    _Job: TypeAlias = Callable[[sqlite3.Connection], Any]
    _Settle: TypeAlias = Callable[[Any, Exception | None], None]

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_BATCH = 2000
"""Most statements in one transaction, unless more were posted together."""

MAX_BATCH_BYTES = 8 << 20
"""Most bytes in one transaction, likewise: other writers wait for it, and the write-ahead log grows by it."""

MAX_WAL_BYTES = 32 << 20
"""The size from which on the write-ahead log is emptied as soon as nobody reads."""

RECLAIM_SECONDS = 10.0
"""Pause after an attempt to make room that didn't make enough."""

LARGE_BYTES, BYTE_SECONDS = 4 << 10, 40e-9
"""From LARGE_BYTES on, recording is charged to its principal, at about the time that the writer takes for a byte."""

LAZY_SECONDS = 0.05
"""How long a posted write waits for a flush before it is written anyway, so that few outcomes can be lost."""

_LASTING = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""Errors after which the file's content is unknown."""

MEASURED_BYTES, MEASURED_SECONDS = 64 << 10, 0.25
"""How much is written, and how much time passes, before the file is measured again; it is counted with what was
written since."""

QUIET_SECONDS = 0.03
"""How long after a write the file is measured, unless much was written. Until then, the interpreter is for those who
have waited for the write."""

MAX_TOGETHER = 16
"""Most callers that are released in one turn of the event loop, whose answers are one write to their sandbox."""

QUICK_SECONDS = 0.002
"""If the callers that were released together took longer than this, the next one is released alone."""


class Database:
    """An open file. An async context manager.

    Args:
        path: The file; made with mode 0600 if it doesn't exist. Its keys are beside it.
        master: The source of the master key, as `master_key_sources.master_key` takes it.
        owner: This process's label as an owner of executions; empty if it owns none.
        quota: The file's limits.
        reading: Whether the file is only read, and left unchanged.

    Attributes:
        is_new: Whether this process created the file's log.
        reclaim: A callback, to be set, that makes room when the file is full.
        known_previous: Cells of sessions of which it is known which one is before.

    Raises (on entering):
        BridgeError: `database_unusable` (no database, no permission), `database_busy` (another process holds it),
            `ledger_damaged`, `ledger_behind`, `ledger_head_damaged` (it isn't the recorded end),
            `database_newer` (of a later version: left untouched), `key_missing`, `key_unusable`,
            `state_unusable`.
    """

    def __init__(
        self,
        path: Path,
        master: str | Sequence[str] = "file",
        owner: str = "",
        quota: Quota | None = None,
        *,
        reading: bool = False,
    ) -> None:
        self._reading = reading
        self._master: MasterKey | None = None
        self._place = contextlib.ExitStack()
        self._path = path
        self._source = master
        self._owner = owner
        self._presence: Presence | None = None
        self._log: Log | None = None
        self._writer: _Worker | None = None
        self._reader: _Worker | None = None
        self.known_previous = KnownPrevious()
        self._posted: list[Item] = []
        self._count_posted = 0
        self._count_written = 0
        self._writing = False
        self._together = 1
        """How many callers are released at once."""
        self._waiting: list[tuple[int, asyncio.Future[BridgeError | None]]] = []
        self._lazily: asyncio.TimerHandle | None = None
        self._failure: BridgeError | None = None
        self._is_told = False
        """Whether a caller was told that the clock went back."""
        self._identity = (0, 0)
        """The file's device and inode, once it is open."""
        self.quota = quota or Quota()
        self.is_new = False
        self.reclaim: Callable[[], Awaitable[None]] | None = None
        self._reclaiming = anyio.Lock()
        self._reclaimed = -math.inf
        self._runs: WeakValueDictionary[str, RunUsage] = WeakValueDictionary()
        self._queued = 0
        self._measured = Measured(0, 0, 0, gives_back=True)
        self._measured_at = -math.inf
        self._measuring = False
        self._later: asyncio.TimerHandle | None = None
        """The measuring that is due."""
        self._unmeasured = 0
        """Bytes written since the file was measured."""

    async def __aenter__(self) -> Self:
        try:
            await _to_its_end(self._open())
        except asyncio.CancelledError:
            await _to_its_end(self._close())
            raise
        return self

    async def _open(self) -> None:
        try:
            if self._reading:
                opened = await anyio.to_thread.run_sync(self._place.enter_context, open_for_inspection(self._path))
                self._master = await anyio.to_thread.run_sync(master_of, opened, self._path.parent, self._source)
                self._reader = _Worker(opened, "reader")
                return
            writer, self._log, reader = await anyio.to_thread.run_sync(
                _open_both, self._path, self._source, self._owner
            )
            for resource in (writer, reader, self.log.position):
                self._place.callback(resource.close)
            self._master = self.log.master
            self._measured = measure(writer, self._path)
            self._identity = identity(self._path)
            self.is_new = self.log.is_new
        except BaseException as exc:
            self._place.close()
            if isinstance(exc, sqlite3.Error | OSError | UnicodeDecodeError):
                raise unusable(self._path, exc) from None
            raise
        self._writer, self._reader = _Worker(writer, "writer"), _Worker(reader, "reader")
        if self._owner:
            try:
                self._presence = Presence(self._path.parent, self._owner)
            except BaseException:
                await self._close()
                raise

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await _to_its_end(self._close())

    async def _close(self) -> None:
        is_told = self._is_told
        try:
            await self.flush()
        except BridgeError as failure:
            if is_told:
                # Whoever wanted to begin something has the reason; entries of others may have waited with theirs.
                lost = self._count_posted - self._count_written
                logger.warning("the last entries were not recorded (%d): %s", lost, failure.code)
            else:
                log_failure(logger, failure, "the last entries were not recorded")
        # Later callers would wait for threads that have ended.
        self._failure = self._failure or BridgeError("not_recorded", "The record of executions is closed.")
        for timer in (self._lazily, self._later):
            if timer is not None:
                timer.cancel()
        for worker in (self._writer, self._reader):
            if worker is not None:
                await worker.close()
        if self._log is not None:
            self._log.position.close()
        self._place.close()
        if self._presence is not None:
            self._presence.leave()

    @property
    def failure(self) -> BridgeError | None:
        """Why nothing is written any more, for as long as the file is open; None while writes succeed."""
        return self._failure

    @property
    def path(self) -> Path:
        """The file's path."""
        return self._path

    @property
    def log(self) -> Log:
        """The end of its log. It belongs to the writer's thread, except what never changes: origin and keys."""
        assert self._log is not None  # it is open
        return self._log

    @property
    def master(self) -> MasterKey:
        """The key that wraps all other keys."""
        assert self._master is not None  # it is open
        return self._master

    @property
    def old_requests(self) -> bytes | None:
        """The key of the request MACs that version 0.1.0 stored; None if there are none."""
        return self.log.old_requests

    def is_present(self, owner: str) -> bool:
        """Whether the process with this label uses the store, or may use it. Callable from any thread."""
        return is_present(self._path.parent, owner)

    def post(self, statement: str, parameters: Sequence[Any], row: Row | None = None) -> None:
        """Write before anything that is posted later, without waiting.

        Args:
            statement: SQL.
            parameters: Its parameters.
            row: The row that it writes, if the table's rows have MACs.

        Raises:
            BridgeError: `bad_text`: a text isn't valid Unicode; nothing is posted.
        """
        self._post(Statement(statement, parameters, row))

    def post_rows(self, statement: str, parameters: Callable[[], Iterator[Sequence[Any]]], size: int) -> None:
        """Write rows before anything that is posted later, without waiting. As `Rows`."""
        self._add(Rows(statement, parameters, size))

    def record(self, *entries: Entry) -> None:
        """Append entries to the log before anything that is posted later, without waiting.

        Raises:
            BridgeError: As `post`.
        """
        for entry in entries:
            _check_texts((entry.execution, entry.step, entry.policy, entry.program))
        self._add(*(Append(posted(entry)) for entry in entries))

    # --- size and quota ---

    def count(self, execution: str, run: RunUsage) -> None:
        """Count what is recorded of an execution towards a run's limit."""
        self._runs[execution] = run

    @property
    def measured(self) -> Measured:
        """The file's size as this process last saw it."""
        return self._measured

    async def measure(self) -> Measured:
        """Measure the file now."""
        by = self.run_read if self._reading else self.run_outside_transaction
        self._take_measure(await by(lambda connection: measure(connection, self._path)))
        return self._measured

    async def wait_for_queue(self) -> None:
        """Wait until the queue of writes is short.

        Raises:
            BridgeError: As `flush`.
        """
        while self._queued > MAX_QUEUED_BYTES:
            await self.flush()

    async def require_room(self, more: int = 0) -> None:
        """Check that the quota allows new work, after making room if that is possible.

        Args:
            more: Bytes by which the quota may be exceeded.

        Raises:
            BridgeError: `ledger_full`; as `flush`.
        """
        self._see_free_space()
        if self._full(more) is None:
            return
        await self.measure()
        if self._full(more) is not None and self.reclaim is not None:
            async with self._reclaiming:
                # Another caller may have made room meanwhile.
                if self._full(more) is not None and time.monotonic() - self._reclaimed > RECLAIM_SECONDS:
                    await self.reclaim()
                    await self.measure()
                    if self._full(more) is not None:
                        self._reclaimed = time.monotonic()
        if (error := self._full(more)) is not None:
            raise error

    def has_room_for(self, size: int) -> bool:
        """Whether `size` more bytes fit into the quota and its reserve."""
        return self.quota.has_room(self._measured, self._unmeasured + self._queued + size)

    def _see_free_space(self) -> None:
        """Look at the disk again: others fill it, too, and the last measure may be hours old (it follows a write)."""
        # A directory that is gone is found by the write.
        with contextlib.suppress(OSError):
            self._measured = replace(self._measured, free=free_bytes(self._path))

    def _full(self, more: int) -> BridgeError | None:
        return self.quota.exceeded(self._path, self._measured, self._unmeasured, more)

    def _post(self, statement: Statement) -> None:
        _check_texts(statement.parameters)
        self._add(statement)

    def _refuse_to_write(self) -> None:
        if self._reading:
            raise BridgeError(
                "database_unusable",
                f"The record of executions, {self._path}, can only be read where it is.",
                hint="Its directory can't be written, or it isn't what it had come to: see `mcp-bridge audit verify`.",
            )

    def _add(self, *items: Item) -> None:
        self._refuse_to_write()
        if self._failure is None:
            self._posted += items
            for item in items:
                self._queued += item.size
                if item.size > LARGE_BYTES:
                    charge(item.size * BYTE_SECONDS)
                if isinstance(item, Append) and (run := self._runs.get(item.posted.execution)) is not None:
                    run.posted += item.size
                    run.logical += item.size
            self._count_posted += len(items)
            if self._lazily is None:
                self._lazily = asyncio.get_running_loop().call_later(LAZY_SECONDS, self._write_lazily)

    def _write_lazily(self) -> None:
        """Write items that were posted without a flush."""
        self._lazily = None
        if self._failure is None and self._count_written < self._count_posted:
            self._want()

    def _want(self) -> asyncio.Future[BridgeError | None]:
        """Request that all posted items are written. Items posted without an await in between stay together."""
        written: asyncio.Future[BridgeError | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._count_posted, written))
        if not self._writing:
            self._write()
        return written

    async def flush(self) -> None:
        """Wait until everything posted so far is durable.

        Raises:
            BridgeError: `not_recorded`: it could not be written.
        """
        failure = self._failure
        if failure is None and self._count_written < self._count_posted:
            # Its own result: a later write may fail.
            failure = await self._want()
        if failure is not None:
            self._is_told = self._is_told or failure.code == "clock_went_back"
            raise failure

    async def write(
        self,
        statement: str,
        parameters: Sequence[Any],
        row: Row | None = None,
        *entries: Entry,
        otherwise: Sequence[tuple[str, Sequence[Any]]] = (),
    ) -> int:
        """Post a statement and flush. Returns the number of rows that it changed.

        Args:
            statement: SQL.
            parameters: Its parameters.
            row: The row that it writes, if the table's rows have MACs.
            entries: Appended to the log in the same transaction, if the statement changes anything.
            otherwise: Statements, with parameters, that run in the same transaction if it doesn't.

        Raises:
            BridgeError: As `post`, `flush`.
        """
        return await self.begin_write(statement, parameters, row, *entries, otherwise=otherwise)()

    def begin_write(
        self,
        statement: str,
        parameters: Sequence[Any],
        row: Row | None = None,
        *entries: Entry,
        otherwise: Sequence[tuple[str, Sequence[Any]]] = (),
    ) -> Callable[[], Awaitable[int]]:
        """As `write`, without waiting. It is written once somebody waits for it, or after LAZY_SECONDS.

        Until then the caller has the interpreter to itself, which the writer's thread would share.

        Returns:
            A function that waits until it is durable, and returns and raises what `write` does. It may be called more
            than once.

        Raises:
            BridgeError: As `post`.
        """
        made = Statement(statement, parameters, row, otherwise)
        self._post(made)
        self._add(*(Append(posted(entry), made) for entry in entries))
        # After a failure nothing is posted.
        failure, last = self._failure, self._count_posted

        async def changed() -> int:
            if failure is not None:
                self._is_told = self._is_told or failure.code == "clock_went_back"
                raise failure
            # A later write may fail when this one is on the disk.
            if self._count_written < last:
                await self.flush()
            return made.changed

        return changed

    async def transact(self, work: Callable[[Transaction], T]) -> T:
        """Run work in a transaction of its own, in the writer's thread. Returns its result.

        Raises:
            BridgeError: As `flush` and the work; `not_recorded`, `bad_text`. The transaction is rolled back then, and
                other writes go on; after a `PositionError` it is committed, and nothing is written any more.
        """
        log = self.log
        return await self.run_outside_transaction(lambda connection: run(connection, log, work))

    async def run_outside_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work outside of any transaction, in the writer's thread. Returns its result.

        Raises:
            BridgeError: As `transact`.
        """
        self._refuse_to_write()
        await self.flush()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(result: T, error: Exception | None) -> None:
            failure = None if error is None else not_written(self._path, error)
            if isinstance(error, UnicodeEncodeError):
                failure = BridgeError("bad_text", "A text holds a lone surrogate: it is no Unicode.")
            if isinstance(error, PositionError) or (error is not None and code_of(error) in _LASTING):
                self._failure = self._failure or failure
            if done.done():
                return
            if failure is None:
                done.set_result(result)
            else:
                done.set_exception(failure)

        def require_and_work(connection: sqlite3.Connection) -> T:
            self._require_file()
            return work(connection)

        assert self._writer is not None  # it is open
        self._writer.do(require_and_work, settle)
        return await done

    async def read(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, after everything posted is written.

        Raises:
            BridgeError: As `post`, `flush`; `database_unusable`.
        """
        _check_texts(parameters)
        return await self.run_read(lambda connection: connection.execute(query, parameters).fetchall())

    async def run_read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work with the read-only connection, after everything posted is written. Returns its result.

        Raises:
            BridgeError: As `flush` and the work; `ledger_damaged`, `database_unusable`.
        """
        await self.flush()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(found: T, error: Exception | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(found)
            elif isinstance(error, BridgeError):
                done.set_exception(error)
            else:
                done.set_exception(not_read(self._path, error))

        assert self._reader is not None  # it is open
        self._reader.do(work, settle)
        return await done

    def _write(self) -> None:
        """Write batches until nobody waits."""
        size = len(self._posted)
        if size > MAX_BATCH or self._queued > MAX_BATCH_BYTES:
            # Items that were posted together are never split: they are one transaction.
            ends = [end - self._count_written for end, _ in self._waiting]
            most = self._fitting()
            size = max((end for end in ends if end <= most), default=ends[0])
        batch, self._posted = self._posted[:size], self._posted[size:]
        self._writing = True

        def settle(stored: dict[str, int] | None, error: Exception | None) -> None:
            self._writing = False
            self._queued -= sum(item.size for item in batch)
            if error is None and stored is not None:
                self._count_written += len(batch)
                self._settle(batch, stored)
            elif error is not None:
                self._failure = not_written(self._path, error)
            waiting, self._waiting = self._waiting, []
            go_on = []
            for count, written in waiting:
                if self._failure is None and count > self._count_written:
                    self._waiting.append((count, written))
                else:
                    go_on.append(written)
            self._let_go(go_on, self._failure)
            if self._waiting:
                self._write()
            # After the next batch, and after the waiters for this one are woken.
            self._measure_if_due()

        assert self._writer is not None  # it is open
        log = self.log

        def work(connection: sqlite3.Connection) -> dict[str, int]:
            self._require_file()
            return commit(connection, log, batch)

        self._writer.do(work, settle)

    def _require_file(self) -> None:
        """Refuse to write into a file that was removed, moved or replaced: it would take the entries.

        Raises:
            BridgeError: `not_recorded`.
        """
        if identity(self._path) != self._identity:
            raise moved(self._path)

    def _let_go(self, waiting: list[asyncio.Future[BridgeError | None]], failure: BridgeError | None) -> None:
        """Wake callers whose entries are durable, or failed: some now, the others in later turns of the event loop.

        What they do next may take long (a check of large arguments), and sharing a transaction has brought them
        together. As long as it doesn't, more and more of them are woken at once.
        """
        loop = asyncio.get_running_loop()
        for written in waiting[: self._together]:
            if not written.done():
                written.set_result(failure)
        if len(waiting) > 1:
            # The woken callers run first.
            loop.call_soon(self._let_others_go, waiting[self._together :], failure, loop.time())

    def _let_others_go(
        self, left: list[asyncio.Future[BridgeError | None]], failure: BridgeError | None, began: float
    ) -> None:
        is_quick = asyncio.get_running_loop().time() - began < QUICK_SECONDS
        self._together = min(2 * self._together, MAX_TOGETHER) if is_quick else 1
        if left:
            self._let_go(left, failure)

    def _measure_if_due(self) -> None:
        """Have the file measured in the writer's thread, after many writes or some time."""
        if self._measuring or self._failure is not None:
            return
        if self._unmeasured >= MEASURED_BYTES:
            self._begin_to_measure()
        elif self._later is None and time.monotonic() - self._measured_at >= MEASURED_SECONDS:
            self._later = asyncio.get_running_loop().call_later(QUIET_SECONDS, self._begin_to_measure)

    def _begin_to_measure(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._measuring or self._failure is not None:
            return
        self._measuring, self._measured_at = True, time.monotonic()

        def work(connection: sqlite3.Connection) -> Measured:
            if journal_bytes(self._path) > MAX_WAL_BYTES:
                # Readers are not waited for: while there are any, the next call tries again.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return measure(connection, self._path)

        def settle(found: Measured | None, error: Exception | None) -> None:
            self._measuring = False
            if error is not None:
                self._failure = self._failure or not_written(self._path, error)
            elif found is not None:
                self._take_measure(found)

        assert self._writer is not None  # it is open
        self._writer.do(work, settle)

    def _take_measure(self, found: Measured) -> None:
        self._measured, self._measured_at, self._unmeasured = found, time.monotonic(), 0

    def _fitting(self) -> int:
        """The number of items, from the first, that fit into one transaction."""
        size = 0
        for number, item in enumerate(self._posted[:MAX_BATCH]):
            size += item.size
            if size > MAX_BATCH_BYTES:
                return max(number, 1)
        return MAX_BATCH

    def _settle(self, batch: Sequence[Item], stored: Mapping[str, int]) -> None:
        """Account for a batch that was written."""
        self._unmeasured += sum(stored.values())
        for item in batch:
            if isinstance(item, Append) and (run := self._runs.get(item.posted.execution)) is not None:
                run.posted -= item.size
                run.logical += item.posted.bytes - item.size
        for execution, size in stored.items():
            if (run := self._runs.get(execution)) is not None:
                run.stored += size


def _open_both(
    path: Path, master: str | Sequence[str], owner: str
) -> tuple[sqlite3.Connection, Log, sqlite3.Connection]:
    writer, log = open_to_write(path, master, alone=not others(path.parent, owner))
    try:
        return writer, log, open_to_read(path)
    except BaseException:
        log.position.close()
        writer.close()
        raise


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Run work to its end even if the waiting task is cancelled, and raise the cancellation after it.

    A cancel scope's shield protects against scopes only. A task's own `cancel` would leave a thread behind that opens
    a file, and nobody to close it.
    """
    with anyio.CancelScope(shield=True):
        task, cancelled = asyncio.create_task(work), None
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as exc:
                cancelled = exc
    if cancelled is not None:
        # The error of the work, if any, is kept as the cause.
        raise cancelled from task.exception()
    task.result()


class _Worker:
    """A thread with a connection. It lives as long as the file: a thread pool's hand-over costs as much as a commit."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[_Job, _Settle] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"mcp-bridge-{name}", daemon=True)
        self._thread.start()

    def do(self, job: _Job, settle: _Settle) -> None:
        """Queue a job. `settle` gets its result or its error, in the event loop."""
        self._work.put((job, settle))

    async def close(self) -> None:
        """End the thread after its last job, and close the connection."""
        self._work.put(None)
        await anyio.to_thread.run_sync(self._thread.join)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            job, settle = work
            result, failure = None, None
            try:
                result = job(self._connection)
            except Exception as error:  # noqa: BLE001  (the waiter gets it, and this thread goes on)
                failure = error
            # The loop may be closed by now; then nobody waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(settle, result, failure)
        self._connection.close()


def _check_texts(parameters: Sequence[Any]) -> None:
    """Refuse invalid texts before they are posted: in the writer they would fail other callers' items."""
    for text in parameters:
        if isinstance(text, str) and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise BridgeError("bad_text", f"{text[:100]!r} holds a lone surrogate: it is no Unicode.") from None
