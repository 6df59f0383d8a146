"""The log continues with another signing key: rotated, or replaced because it is lost."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcp_bridge.atomic_files import write_private
from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.audit.proving import checkpoint
from mcp_bridge.ledger.keys.signing_key_files import NEXT_KEY_FILE, own_vkey, take_next_key
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.entry_encoding import LEDGER
from mcp_bridge.ledger.log.key_history import MAX_KEYS
from mcp_bridge.ledger.log.log import Log, Posted
from mcp_bridge.ledger.log.log_payloads import KeyEvent
from mcp_bridge.ledger.log.reading import master_of, open_ledger
from mcp_bridge.ledger.log.transaction import run
from mcp_bridge.ledger.proofs.notes import add_signature, checkpoint_text
from mcp_bridge.ledger.proofs.signing import Signer
from mcp_bridge.ledger.storage.file_opening import check_before_open, connect, write_entries
from mcp_bridge.ledger.storage.log_head import read_head
from mcp_bridge.ledger.storage.position_file import POSITION_ERROR_CODES, PositionFile
from mcp_bridge.ledger.storage.storage_errors import unusable
from mcp_bridge.private_files import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_bridge.ledger.log.transaction import Transaction
    from mcp_bridge.ledger.storage.database import Database


async def rotate_key(database: Database) -> str:
    """Sign with a new key from here on. The old one signs for it, so that who trusts the old trusts the new.

    Returns:
        The new key's verifier key.

    Raises:
        BridgeError: `key_unusable`, `too_many_keys`, `not_recorded`. The old key goes on then, unless it is
            `PositionError`, or the new one, which the log is signed with, can't be put in its place: that is done at
            the next start.
    """
    directory = database.path.parent

    def work(transaction: Transaction) -> str:
        log, old = transaction.log, transaction.log.signer
        (count,) = transaction.connection.execute("SELECT count(*) FROM entries WHERE kind = 'key'").fetchone()
        if count >= MAX_KEYS:
            raise BridgeError(
                "too_many_keys",
                f"The log has had {count} keys, the most that verifiers accept.",
                hint="To continue with another key, move the state directory away: another log begins.",
            )
        # Whoever has rotated the key before may not have come to that, and the next one takes the name.
        take_next_key(transaction.connection, directory)
        seed, new = _new_key(log.origin)
        _write_next(directory, seed)
        _append(transaction, KeyEvent("rotated", new.vkey, old.vkey))
        note = log.sign()
        note = add_signature(note, new.sign(checkpoint_text(log.checkpoint())))
        stored = (log.checkpoint().size, note)
        transaction.connection.execute("INSERT INTO checkpoints (size, note) VALUES (?, ?)", stored)
        transaction.authenticate(("checkpoints", "size = ? AND note = ?", stored))
        log.signer = new
        return new.vkey

    vkey = await database.transact(work)
    await database.transact(lambda transaction: take_next_key(transaction.connection, directory))
    return vkey


def replace_lost_key(path: Path, master: str | Sequence[str]) -> str:
    """Go on with a new key where the old one is lost: who trusts the old has to be told of the new by other means.

    Returns:
        The new key's verifier key.

    Raises:
        BridgeError: `key_unusable`, `key_missing` (of the master key), `ledger_damaged`, `database_unusable`,
            `database_busy`; `ledger_behind`, `ledger_head_damaged`: the key is here by which that can be accepted.
    """
    directory = path.parent
    with open_ledger(path) as ledger:
        # It is there, and one of ours: opened to be written, it would be made.
        origin = ledger.origin
        # The entry names the key that was lost: not one that a changed byte has made.
        checkpoint(ledger)
        own = master_of(ledger.connection, directory, master)
    seed, new = _new_key(origin)
    position = PositionFile(path)

    def work(transaction: Transaction) -> None:
        old = read_head(transaction.connection).vkey
        take_next_key(transaction.connection, directory)
        _write_next(directory, seed)
        # No clock is accepted without the key.
        _append(transaction, KeyEvent("lost", new.vkey, old), log.clock.last)

    try:
        try:
            position.load()
            check_before_open(path, position)
        except BridgeError as exc:
            if exc.code not in POSITION_ERROR_CODES or _has_key(path):
                raise
            # To accept a loss takes a key: that can be had first, and the loss is still to be accepted then.
            position = PositionFile(path, leaves=True)
        log = Log(own, origin, new, lambda _: new, position)
        with closing(position), closing(connect(path)) as connection:
            run(connection, log, work)
            run(connection, log, lambda transaction: take_next_key(transaction.connection, directory))
    except (sqlite3.Error, OSError) as exc:
        raise unusable(path, exc) from None
    return new.vkey


def _has_key(path: Path) -> bool:
    try:
        own_vkey(path)
    except BridgeError as exc:
        if exc.code not in {"key_missing", "key_unusable"}:
            raise
        return False
    return True


def _new_key(origin: str) -> tuple[bytes, Signer]:
    seed = os.urandom(KEY_BYTES)
    return seed, Signer(origin, Ed25519PrivateKey.from_private_bytes(seed))


def _write_next(directory: Path, seed: bytes) -> None:
    """Have a new key on the disk before anything says that it is used."""
    try:
        write_private(directory / NEXT_KEY_FILE, seed, durable=True)
    except OSError as exc:
        raise BridgeError("key_unusable", f"{directory / NEXT_KEY_FILE} can't be made: {exc.strerror}.") from None


def _append(transaction: Transaction, event: KeyEvent, not_before: int = 0) -> None:
    entry = Posted(Entry("key", LEDGER), (event.to_bytes(),), max(time.time_ns() // 1000, not_before))
    write_entries(transaction.connection, transaction.log, [entry])
