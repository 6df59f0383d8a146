"""Erasure: the key of an execution is destroyed, and with it everything that was kept of what it was given and gave.

The log keeps its entries, so that every root and proof of before holds; an entry says what was erased, when and by
whom. Nothing of the key is left in the file: SQLite overwrites what is deleted, and the write-ahead log, which holds
pages as they were, is emptied. That is taken down as unfinished business in the same transaction, and finished at the
next start if this process doesn't live to do it.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.beside import UNFINISHED
from mcp_bridge.ledger.codec import LEDGER
from mcp_bridge.ledger.entries import Entry
from mcp_bridge.ledger.store import ERASED

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable

    from mcp_bridge.ledger.database import Database
    from mcp_bridge.ledger.transaction import Transaction

What = Literal["execution", "subject", "reference", "age"]

EXECUTIONS_AN_ENTRY = 1000

CHECKPOINT_SECONDS = 30.0
"""How long to wait for those who read the write-ahead log."""

_POLL_SECONDS = 0.05
_TRY_MS = 500


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
    """Erase, and return when nothing of it is left in the file.

    Args:
        database: The store.
        what: Of what kind `name` is.
        name: An execution's id, a subject, a reference's id, or the time (seconds since 1970) before which executions
            have ended.
        by: Who wants it.
        reason: Why, or None.
        under_way: Whether an execution of a status and an owner is being executed now.

    Raises:
        BridgeError: `nothing_to_erase`; `execution_running`: nothing is erased then; `erasure_unfinished`: it is done,
            and something of it may still be in the write-ahead log until whoever reads it has ended.
    """
    told = {"what": what, "by": by, "reason": reason, "at": time.time()}

    def work(transaction: Transaction) -> Erased:
        if what == "reference":
            return _erase_reference(transaction, str(name), told, under_way)
        chosen = _chosen(transaction, database, what, name)
        running = [row[0] for row in _standing(transaction, chosen) if under_way(row[1], row[2])]
        if running and what == "age":
            chosen = [one for one in chosen if one not in set(running)]
        elif running:
            raise BridgeError(
                "execution_running",
                f"{running[0]} is being executed now.",
                hint="Erase it when it has ended.",
                executions=running,
            )
        if not chosen:
            if what == "age":
                return Erased(())
            raise BridgeError("nothing_to_erase", f"There is nothing of {_shown(what, name)} that isn't erased.")
        for execution in chosen:
            _erase(transaction, execution)
        for at in range(0, len(chosen), EXECUTIONS_AN_ENTRY):
            _append(transaction, {**told, "executions": chosen[at : at + EXECUTIONS_AN_ENTRY]})
        return Erased(tuple(chosen))

    erased = await database.transact(work)
    if erased.executions or erased.references:
        await empty_journal(database)
    return erased


async def finish(database: Database, remove: Callable[[str], None], seconds: float | None = None) -> None:
    """Do what is left to do of erasures, by this process or by one that is gone.

    Args:
        database: The store.
        remove: Removes the files of an execution; those that aren't there any more, too.
        seconds: As `empty_journal`.

    Raises:
        BridgeError: `erasure_unfinished`.
        OSError: As `remove`.
    """
    rows = await database.read("SELECT name, value FROM meta WHERE name LIKE ?", (f"{UNFINISHED} %",))
    if not rows:
        return
    for _, value in rows:
        for execution in json.loads(value):
            remove(execution)
    await empty_journal(database, seconds)
    for name, _ in rows:
        await database.write("DELETE FROM meta WHERE name = ?", (name,))


async def empty_journal(database: Database, seconds: float | None = None) -> None:
    """Have everything in the database's file itself, and nothing in its write-ahead log.

    Args:
        database: The store.
        seconds: How long to wait for those who read it; CHECKPOINT_SECONDS by default.

    Raises:
        BridgeError: `erasure_unfinished`.
    """
    deadline = time.monotonic() + (CHECKPOINT_SECONDS if seconds is None else seconds)
    while await database.outside(_truncate):
        if time.monotonic() > deadline:
            raise BridgeError(
                "erasure_unfinished",
                "The erasure is done, but somebody who reads the file keeps its journal from being emptied.",
                hint="It is emptied at the next start of the bridge, or by the next `mcp-bridge erase`.",
            )
        await anyio.sleep(_POLL_SECONDS)


def _truncate(connection: sqlite3.Connection) -> bool:
    """Whether somebody was in the way."""
    # While it waits, nobody can write, in this process or another.
    connection.execute(f"PRAGMA busy_timeout = {_TRY_MS}")
    try:
        # https://www.sqlite.org/pragma.html#pragma_wal_checkpoint: the first column is 1 if it was blocked.
        blocked: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    finally:
        # The writer's: it waits in a way of its own (`turns`).
        connection.execute("PRAGMA busy_timeout = 0")
    return bool(blocked)


def _chosen(transaction: Transaction, database: Database, what: What, name: str | float) -> list[str]:
    if what == "execution":
        query, value = "execution = ?", name
    elif what == "subject":
        query, value = "subject = ?", database.master.subject(str(name))
    else:
        # What can go on hasn't ended.
        ended = "status NOT IN ('running', 'suspended', 'interrupted')"
        query, value = f"execution IN (SELECT id FROM executions WHERE changed < ? AND {ended})", name  # noqa: S608
    rows = transaction.connection.execute(
        f"SELECT execution FROM data_keys WHERE wrapped IS NOT NULL AND {query} ORDER BY execution",  # noqa: S608
        (value,),
    )
    return [execution for (execution,) in rows]


def _standing(transaction: Transaction, executions: Iterable[str]) -> list[tuple[str, str, str]]:
    found = []
    for execution in executions:
        query = "SELECT id, status, owner FROM executions WHERE id = ?"
        found += transaction.connection.execute(query, (execution,)).fetchall()
    return found


def _erase(transaction: Transaction, execution: str) -> None:
    do = transaction.connection.execute
    (subject,) = do("SELECT subject FROM data_keys WHERE execution = ?", (execution,)).fetchone()
    mac = transaction.log.master.mac("data_keys", execution, subject, None)
    do("UPDATE data_keys SET wrapped = NULL, mac = ? WHERE execution = ?", (mac, execution))
    do("DELETE FROM payloads WHERE sequence IN (SELECT sequence FROM entries WHERE execution = ?)", (execution,))
    do("UPDATE reference_values SET value = NULL WHERE execution = ?", (execution,))
    do("UPDATE approvals SET question = NULL, decision = NULL WHERE execution = ?", (execution,))
    do(
        # Its key stays used: what was done under it isn't done again. A MAC of what was asked for, which a script has
        # in the place of a program's hash, too, would tell who has the key whether a guess is right.
        "UPDATE executions SET status = ?, request = '', program = CASE kind WHEN 'script' THEN '' ELSE program END,"
        " bundle = NULL, state = NULL, record = NULL, due = NULL, changed = ? WHERE id = ?",
        (ERASED, time.time(), execution),
    )
    transaction.authenticate(("executions", "id = ?", (execution,)))
    transaction.authenticate(("approvals", "execution = ?", (execution,)))
    transaction.log.erased(execution)


def _erase_reference(
    transaction: Transaction, reference: str, told: dict[str, Any], under_way: Callable[[str, str], bool]
) -> Erased:
    rows = transaction.connection.execute(
        "SELECT execution FROM reference_values WHERE id = ? AND value IS NOT NULL", (reference,)
    ).fetchall()
    holders = [execution for (execution,) in rows]
    if not holders:
        raise BridgeError("nothing_to_erase", f"Nothing is kept behind the reference {reference!r:.80}.")
    running = [row[0] for row in _standing(transaction, holders) if under_way(row[1], row[2])]
    if running:
        raise BridgeError(
            "execution_running",
            f"{running[0]} is being executed now, and knows the value.",
            hint="Erase it when it has ended.",
            executions=running,
        )
    transaction.connection.execute("UPDATE reference_values SET value = NULL WHERE id = ?", (reference,))
    erasure = {**told, "reference": reference, "holders": sorted(holders), "executions": []}
    _append(transaction, erasure)
    return Erased((), len(holders))


def _append(transaction: Transaction, erasure: dict[str, Any]) -> None:
    """Append an entry, and take down what is left to do when the transaction is done."""
    sequence = transaction.log.checkpoint().size
    transaction.append(Entry("erasure", LEDGER, erasure))
    transaction.connection.execute(
        "INSERT INTO meta VALUES (?, ?)", (f"{UNFINISHED} {sequence}", json.dumps(erasure["executions"]))
    )


def _shown(what: str, name: str | float) -> str:
    return f"the {what} {name!r:.80}"
