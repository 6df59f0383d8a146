"""Erasure: an execution's data key is destroyed, and with it everything that was stored of its inputs and outputs.

The log keeps its entries, so that every earlier root and proof holds; an entry says what was erased, when and by whom.
Unreadable payloads are then removed, a few megabytes in a transaction, and their space is returned. No copy of the key
remains in the file: SQLite overwrites what is deleted, and the write-ahead log, which holds old pages, is emptied. The
transaction that destroys the key notes the erasure as unfinished: if this process dies, the next start finishes it.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.erasure import retention
from mcp_bridge.ledger.erasure.session_cells import SessionCells
from mcp_bridge.ledger.log.entry_encoding import LEDGER
from mcp_bridge.ledger.log.log_payloads import Erasure
from mcp_bridge.ledger.log.payloads import to_entry
from mcp_bridge.ledger.storage.blind_indexes import FORGETTABLE, OF_REQUEST, held_execution_mac, subject_macs
from mcp_bridge.ledger.storage.old_references import forget_execution
from mcp_bridge.ledger.storage.schema import ERASED, UNFINISHED
from mcp_bridge.ledger.storage.write_lock import in_turn

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Sequence

    from mcp_bridge.ledger.log.transaction import Transaction
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.sealing import MasterKey

What = Literal["execution", "subject", "age"]

EXECUTIONS_AN_ENTRY = 100
"""In one entry, and in one transaction of an erasure by age."""

CHECKPOINT_SECONDS = 30.0
"""How long to wait for readers of the write-ahead log."""

STEP_BYTES = 1 << 20
"""Bytes of payloads that are removed, and so overwritten, in one transaction."""

KEPT_BYTES = 8 << 20
"""Bytes of what executions keep beside their payloads that one transaction of an erasure by age removes. The journal
grows by them, and others wait for it."""

ROWS_A_STEP = 2000
PAGES_A_STEP = 256
_ROW_BYTES = 200

_INCREMENTAL = 2
"""https://www.sqlite.org/pragma.html#pragma_auto_vacuum"""

_PURGE = (
    (
        "SELECT sequence, length(sealed) FROM payloads JOIN entries USING (sequence) WHERE execution = ? LIMIT ?",
        "DELETE FROM payloads WHERE sequence = ?",
    ),
    ("SELECT id, size FROM pieces WHERE execution = ? LIMIT ?", "DELETE FROM pieces WHERE id = ?"),
)
"""Statements that find rows of an execution with their sizes, and that remove one."""

_KEPT = (
    "SELECT coalesce((SELECT coalesce(length(bundle), 0) + coalesce(length(state), 0) + coalesce(length(record), 0)"
    " FROM executions WHERE id = ?1), 0)"
    " + coalesce((SELECT sum(length(value)) FROM reference_values WHERE execution = ?1), 0)"
)
"""The bytes that `_erase` removes of an execution."""

_POLL_SECONDS = 0.05
_TRY_MS = 100


@dataclass(frozen=True, slots=True)
class Erased:
    """What was erased.

    Attributes:
        executions: Ids of the executions.
        references: How many values behind a reference, in as many executions.
    """

    executions: tuple[str, ...]
    references: int = 0


async def erase(
    database: Database,
    what: What,
    name: str | float,
    *,
    by: str,
    reason: str | None,
    under_way: Callable[[str, str], bool],
) -> Erased:
    """Erase executions. Returns when nothing of them is left in the file.

    Args:
        database: The store.
        what: The kind of `name`.
        name: An execution's id, a subject, or the time (seconds since 1970) before which executions have ended.
        by: Who asks for it.
        reason: Why, or None.
        under_way: Whether an execution of a status and an owner is being executed now.

    Raises:
        BridgeError: `nothing_to_erase`; `execution_running`: nothing is erased then; `erasure_unfinished`: it is done,
            and some of it may remain in the write-ahead log until its readers have ended. As `Database.transact`: after
            a `PositionError` the keys are destroyed, and the next start does the rest.
    """
    erasure = Erasure(what, by, reason, time.time(), ())

    def work(transaction: Transaction) -> Erased:
        chosen = _chosen(transaction, database, what, str(name))
        if running := running_of(transaction, chosen, under_way):
            raise BridgeError(
                "execution_running",
                f"{running[0]} is being executed now.",
                hint="Erase it when it has ended.",
                executions=running,
            )
        if not chosen:
            raise BridgeError("nothing_to_erase", f"There is nothing of {_shown(what, name)} that isn't erased.")
        _erase_all(transaction, chosen, erasure)
        return Erased(tuple(chosen))

    if what == "age":
        erased = await _erase_old(database, float(name), erasure, under_way)
    else:
        erased = await database.transact(work)
    if erased.executions:
        await purge(database, erased.executions)
        await empty_journal(database)
    return erased


async def _erase_old(
    database: Database, before: float, erasure: Erasure, under_way: Callable[[str, str], bool]
) -> Erased:
    """Erase by age, in parts: others write in between."""
    cells = SessionCells(database, since=before)
    erased: list[str] = []
    last = (-1.0, "")
    while True:

        def work(
            transaction: Transaction, after: tuple[float, str] = last
        ) -> tuple[tuple[float, str] | None, list[str]]:
            rows = retention.ended_before(transaction.connection, before, after, EXECUTIONS_AN_ENTRY)
            found = [execution for _, execution in rows]
            spared = {*running_of(transaction, found, under_way), *cells.kept(transaction.connection)}
            chosen = [one for one in found if one not in spared and not retention.is_needed(transaction, one)]
            now = _at_once(transaction, chosen)
            _erase_all(transaction, now, erasure)
            if len(now) < len(chosen):
                return rows[found.index(now[-1])], now
            return rows[-1] if len(rows) == EXECUTIONS_AN_ENTRY else None, now

        if not await retention.has_ended_before(database, before, last):
            # No transaction for nothing.
            return Erased(tuple(erased))
        await cells.read()
        reached, chosen = await database.transact(work)
        erased += chosen
        if reached is None:
            return Erased(tuple(erased))
        last = reached


async def erase_ended(
    database: Database,
    chosen: Sequence[str],
    *,
    by: str,
    under_way: Callable[[str, str], bool],
    cells: SessionCells | None = None,
) -> Erased:
    """Erase those of some executions that have ended and aren't needed by one that can be resumed.

    If they have kept much, only the first of them are erased.

    Args:
        database: The store.
        chosen: The executions' ids.
        by: Who asks for it.
        under_way: As `erase`.
        cells: Those that are kept; None for none.

    Raises:
        BridgeError: As `Database.transact`.
    """
    erasure = Erasure("age", by, None, time.time(), ())

    def work(transaction: Transaction) -> list[str]:
        found = [one for one in chosen if retention.has_ended(transaction, one)]
        spared = {*running_of(transaction, found, under_way)}
        if cells is not None:
            spared |= cells.kept(transaction.connection)
        going = [one for one in found if one not in spared and not retention.is_needed(transaction, one)]
        going = _at_once(transaction, going)
        _erase_all(transaction, going, erasure)
        return going

    erased = await database.transact(work)
    await purge(database, erased)
    return Erased(tuple(erased))


async def finish(database: Database, remove: Callable[[str], None], seconds: float | None = None) -> None:
    """Finish erasures of this process, or of one that has died.

    Args:
        database: The store.
        remove: Removes the files of an execution; called again for files that are gone.
        seconds: As `empty_journal`.

    Raises:
        BridgeError: `erasure_unfinished`.
        OSError: As `remove`.
    """
    rows = await database.read("SELECT name, value FROM meta WHERE name LIKE ?", (f"{UNFINISHED} %",))
    if not rows:
        return
    for _, value in rows:
        executions = json.loads(value)
        for execution in executions:
            # There may be many files.
            await anyio.to_thread.run_sync(remove, execution)
        await purge(database, executions)
    await give_back(database)
    await empty_journal(database, seconds)
    for name, _ in rows:
        await database.write("DELETE FROM meta WHERE name = ?", (name,))


async def purge(database: Database, executions: Iterable[str]) -> None:
    """Remove the payloads of executions whose keys are destroyed, a few at a time: others write in between.

    Raises:
        BridgeError: As `Database.transact`.
    """
    left = list(executions)
    while left:
        await database.transact(lambda transaction: _purge_some(transaction, left))


def _purge_some(transaction: Transaction, left: list[str]) -> None:
    do = transaction.connection.execute
    room = STEP_BYTES
    while left and room > 0:
        for find, remove in _PURGE:
            for row, size in do(find, (left[-1], ROWS_A_STEP)).fetchall():
                do(remove, (row,))
                room -= size + _ROW_BYTES
                if room <= 0:
                    return
        if not any(do(find, (left[-1], 1)).fetchone() for find, _ in _PURGE):
            left.pop()
            room -= _ROW_BYTES


async def give_back(database: Database) -> None:
    """Return the file's free pages to the file system, a few at a time. A file of 0.1.0 can't return any.

    Raises:
        BridgeError: As `Database.transact`.
    """
    while await database.run_outside_transaction(_give_back_some):
        pass


def _give_back_some(connection: sqlite3.Connection) -> bool:
    """Return some pages; whether there are more."""

    def unused() -> int:
        return int(connection.execute("PRAGMA freelist_count").fetchone()[0])

    if connection.execute("PRAGMA auto_vacuum").fetchone()[0] != _INCREMENTAL or not (before := unused()):
        return False
    # `executescript` runs a statement to its end; `execute` would take one step, and return one page.
    in_turn(lambda: connection.executescript(f"PRAGMA incremental_vacuum({PAGES_A_STEP})"))
    return 0 < unused() < before


async def empty_journal(database: Database, seconds: float | None = None) -> None:
    """Move the write-ahead log into the database's file, and truncate it.

    Args:
        database: The store.
        seconds: How long to wait for its readers; CHECKPOINT_SECONDS by default.

    Raises:
        BridgeError: `erasure_unfinished`.
    """
    deadline = time.monotonic() + (CHECKPOINT_SECONDS if seconds is None else seconds)
    while await database.run_outside_transaction(_truncate):
        if time.monotonic() > deadline:
            raise BridgeError(
                "erasure_unfinished",
                "The erasure is done, but a reader of the file keeps its journal from being emptied.",
                hint="It is emptied at the next start of the bridge, or by the next `mcp-bridge erase`.",
            )
        await anyio.sleep(_POLL_SECONDS)


def _truncate(connection: sqlite3.Connection) -> bool:
    """Try to truncate the write-ahead log; whether a reader was in the way."""
    # A short wait: meanwhile nobody can write, in this process or another.
    connection.execute(f"PRAGMA busy_timeout = {_TRY_MS}")
    try:
        # https://www.sqlite.org/pragma.html#pragma_wal_checkpoint: the first column is 1 if it was blocked.
        blocked: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        # The writer has its own way of waiting (`in_turn`).
        connection.execute("PRAGMA busy_timeout = 0")
    return bool(blocked)


def _chosen(transaction: Transaction, database: Database, what: What, name: str) -> list[str]:
    do, master = transaction.connection.execute, database.master
    # Erased ones as well: executions that hold data of them may not be erased.
    if what == "execution":
        rows = do("SELECT execution FROM data_keys WHERE execution = ?", (name,))
    else:
        query = (
            "SELECT execution FROM data_keys WHERE subject IN (?1, ?2)"
            " UNION SELECT holder FROM holders WHERE subject IN (?1, ?2)"
        )
        rows = do(query, subject_macs(master, name))
    found = _with_holders(transaction, master, [execution for (execution,) in rows])
    is_there = "SELECT 1 FROM data_keys WHERE execution = ? AND wrapped IS NOT NULL"
    return sorted(one for one in found if do(is_there, (one,)).fetchone())


def _with_holders(transaction: Transaction, master: MasterKey, executions: Iterable[str]) -> set[str]:
    """Executions, and those that hold data of them: a script holds the results of its programs."""
    found: set[str] = set()
    left = list(executions)
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            rows = transaction.connection.execute(
                "SELECT holder FROM holders WHERE subject = ?", (held_execution_mac(master, one),)
            )
            left += [holder for (holder,) in rows]
    return found


def _at_once(transaction: Transaction, executions: list[str]) -> list[str]:
    """The first of some executions: as many as `KEPT_BYTES` lets one transaction erase, and at least one."""
    left = KEPT_BYTES
    for number, execution in enumerate(executions):
        (kept,) = transaction.connection.execute(_KEPT, (execution,)).fetchone()
        left -= kept
        if left < 0 and number:
            return executions[:number]
    return executions


def running_of(transaction: Transaction, executions: Iterable[str], under_way: Callable[[str, str], bool]) -> list[str]:
    """Those of some executions that are being executed now."""
    found = []
    for execution in executions:
        query = "SELECT id, status, owner FROM executions WHERE id = ?"
        rows = transaction.connection.execute(query, (execution,)).fetchall()
        found += [ident for ident, status, owner in rows if under_way(status, owner)]
    return found


def _erase_all(transaction: Transaction, executions: Sequence[str], erasure: Erasure) -> None:
    for execution in executions:
        _erase(transaction, execution)
    for at in range(0, len(executions), EXECUTIONS_AN_ENTRY):
        append_erasure(transaction, replace(erasure, executions=executions[at : at + EXECUTIONS_AN_ENTRY]))


def _erase(transaction: Transaction, execution: str) -> None:
    do = transaction.connection.execute
    (subject,) = do("SELECT subject FROM data_keys WHERE execution = ?", (execution,)).fetchone()
    mac = transaction.log.master.mac("data_keys", execution, subject, None)
    do("UPDATE data_keys SET wrapped = NULL, mac = ? WHERE execution = ?", (mac, execution))
    do("UPDATE approvals SET question = NULL, decision = NULL WHERE execution = ?", (execution,))
    do(
        # Its idempotency key stays used, unless it contains an erased value: what was done under it isn't done again.
        # Request MACs would let who has their key test guesses: `forget_execution` removes them.
        "UPDATE executions SET status = ?, key = CASE WHEN substr(key, 1, 1) IN (?, ?) THEN NULL ELSE key END,"
        " bundle = NULL, state = NULL, record = NULL, due = NULL, changed = ? WHERE id = ?",
        (ERASED, FORGETTABLE, OF_REQUEST, time.time(), execution),
    )
    forget_execution(transaction.connection, transaction.log, execution)
    transaction.authenticate(("executions", "id = ?", (execution,)))
    transaction.authenticate(("approvals", "execution = ?", (execution,)))
    transaction.log.erased(execution)


def append_erasure(transaction: Transaction, erasure: Erasure) -> None:
    """Append an entry, and note what is to be done after the transaction."""
    sequence = transaction.log.checkpoint().size
    transaction.append(to_entry(erasure, LEDGER))
    transaction.connection.execute(
        "INSERT INTO meta VALUES (?, ?)", (f"{UNFINISHED} {sequence}", json.dumps(list(erasure.executions)))
    )


def _shown(what: str, name: str | float) -> str:
    return f"the {what} {name!r:.80}"
