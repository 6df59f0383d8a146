"""Entries that are lost, and whose loss is recorded: a person has accepted it, or restored a backup.

They are lost when the file was damaged or put back, or aren't in the backup that was restored.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.keys.signing_key_files import own_signer
from mcp_bridge.ledger.log.entry_encoding import LEDGER
from mcp_bridge.ledger.log.log import Log, Posted
from mcp_bridge.ledger.log.log_payloads import AcceptedLoss
from mcp_bridge.ledger.log.payloads import to_entry
from mcp_bridge.ledger.log.reading import master_of, open_ledger
from mcp_bridge.ledger.log.transaction import posted, run
from mcp_bridge.ledger.storage import old_references
from mcp_bridge.ledger.storage.file_opening import check_before_open, connect, open_to_write, write_entries
from mcp_bridge.ledger.storage.position_file import POSITION_ERROR_CODES, PositionFile
from mcp_bridge.ledger.storage.storage_errors import unusable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_bridge.ledger.log.transaction import Transaction


def accept_loss(path: Path, master: str | Sequence[str], by: str) -> Loss:
    """Go on with a ledger that ends before what it had come to, or of which nobody knows how far that was.

    Args:
        path: The file; one begins where there is none.
        master: Where the master key is.
        by: Who accepts it.

    Raises:
        BridgeError: `nothing_is_lost`; as `open_to_write`.
    """
    try:
        if not _is_behind(path, position := PositionFile(path)):
            raise BridgeError("nothing_is_lost", f"{path} is as far as {position.path.name} says.")
        connection, log = open_to_write(path, master, accepting=True)
        with closing(connection), closing(log.position):

            def work(transaction: Transaction) -> Loss:
                had = log.position.accept(transaction.connection)
                has = log.checkpoint().size
                before = (None, None, None) if had is None else (had.size, had.root.hex(), had.origin)
                _append_loss(transaction, posted(to_entry(AcceptedLoss(has, by, *before), LEDGER)))
                return Loss(None if had is None else had.size, has)

            return run(connection, log, work)
    except (sqlite3.Error, OSError) as exc:
        raise unusable(path, exc) from None


def record_restore(
    path: Path, master: str | Sequence[str], by: str, made: float | None, *, old_key_is_lost: bool = False
) -> int:
    """Have a ledger that was restored say so, before it is in its place; the number of the entry.

    Args:
        path: The file, with its keys beside it, which nobody uses yet. It has no journal when this returns.
        master: Where the master key is.
        by: Who restores it.
        made: When its backup was made, in seconds since 1970; None where nobody knows.
        old_key_is_lost: Whether the key of an earlier version is lost for good: no later backup asks for it then.

    Raises:
        BridgeError: `key_missing`, `key_unusable`, `ledger_damaged`, `database_unusable`.
    """

    def work(transaction: Transaction) -> int:
        if old_key_is_lost:
            old_references.give_up_key(transaction.connection)
        has = transaction.log.checkpoint().size
        _append_loss(transaction, posted(to_entry(AcceptedLoss(has, by, restored=True, made=made), LEDGER)))
        return has

    try:
        with open_ledger(path) as ledger:
            own = master_of(ledger.connection, path.parent, master)
            signer = own_signer(path.parent, ledger.origin, ledger.vkey)
        # Its position is recorded when it is opened, in its place.
        log = Log(own, signer.name, signer, lambda _: signer, PositionFile(path, leaves=True))
        with closing(connect(path)) as connection:
            loss_entry = run(connection, log, work)
            # The file alone is put in its place. Who closes a connection isn't told what can't be written into it.
            connection.execute("PRAGMA journal_mode = DELETE")
            return loss_entry
    except (sqlite3.Error, OSError) as exc:
        raise unusable(path, exc) from None


class Loss(NamedTuple):
    """What was accepted as lost.

    Attributes:
        had: How many entries the log had; None where that isn't known.
        has: How many it has.
    """

    had: int | None
    has: int


def is_behind(path: Path) -> bool:
    """Whether a ledger ends before what it had come to, or nobody knows. What else is wrong, who opens it finds out."""
    with suppress(BridgeError, sqlite3.Error, OSError):
        return _is_behind(path, PositionFile(path))
    return False


def _is_behind(path: Path, position: PositionFile) -> bool:
    try:
        position.load()
        check_before_open(path, position)
    except BridgeError as exc:
        if exc.code not in POSITION_ERROR_CODES:
            raise
        return True
    return False


def _append_loss(transaction: Transaction, entry: Posted) -> None:
    # No clock is accepted before the loss is.
    entry.time = max(entry.time, transaction.log.clock.last)
    write_entries(transaction.connection, transaction.log, [entry])
