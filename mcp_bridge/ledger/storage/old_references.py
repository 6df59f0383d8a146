"""Removes what earlier versions left of erased values, once, when a file is opened.

In those versions a reference was a MAC of its value under a key that lay beside the file in the clear,
`references.key`. With that key, a guess of an erased value could be tested on its remaining reference. The key is
destroyed, and so are the references to erased values, with the payloads of the entries that name them. A new entry
repeats what these payloads said, and lists the entries.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from mcp_bridge.atomic_files import sync_directory
from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.deduplication import capture
from mcp_bridge.ledger.log.entry_encoding import LEDGER
from mcp_bridge.ledger.log.log import INSERT_ENTRY, Posted
from mcp_bridge.ledger.log.log_payloads import Erasure
from mcp_bridge.ledger.log.payloads import to_entry
from mcp_bridge.ledger.log.transaction import authenticate, row_mac
from mcp_bridge.ledger.proofs.disclosures import SALT_BYTES
from mcp_bridge.ledger.storage.blind_indexes import FORGETTABLE, held_execution_mac
from mcp_bridge.ledger.storage.schema import ERASED, OLD_REQUESTS, OLD_REQUESTS_GONE, OLD_REQUESTS_LOST, UNFINISHED
from mcp_bridge.private_files import KEY_BYTES, read_whole

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from mcp_bridge.ledger.log.log import Log

logger = logging.getLogger(__name__)

KEY_FILE = "references.key"
"""The key of earlier versions, in the state directory."""

_MAX_KEY_FILE_BYTES = 4096

WITHHELD = b""
"""Replaces a payload that names erased values."""


def forget_erased_values(connection: sqlite3.Connection, log: Log, directory: Path) -> None:
    """Remove, in a write transaction, what remains of erased values.

    Args:
        connection: To the file.
        log: The end of its log.
        directory: The state directory.

    Raises:
        BridgeError: `ledger_damaged`, `key_unusable`.
    """
    do = connection.execute
    known = do("SELECT value FROM meta WHERE name = ?", (OLD_REQUESTS,)).fetchone()
    if known is not None:
        if known[0] == OLD_REQUESTS_GONE and os.path.lexists(directory / KEY_FILE):
            log.begin(connection)
            do("UPDATE meta SET value = ? WHERE name = ?", (_requests(log, directory / KEY_FILE), OLD_REQUESTS))
            log.finish(connection)
        return
    log.begin(connection)
    wrapped = _requests(log, directory / KEY_FILE) if _has_old_requests(connection) else ""
    do("INSERT INTO meta VALUES (?, ?)", (OLD_REQUESTS, wrapped))
    left = 0
    for (execution,) in do("SELECT execution FROM data_keys WHERE wrapped IS NULL").fetchall():
        left += forget_execution(connection, log, execution)
    tokens: list[str] = []
    named: list[int] = []
    for sequence, erased in _named(connection):
        rows = [row for row in erased if _is_there(connection, *row)]
        tokens += [erase_value(connection, log, *row) for row in rows]
        if len(rows) == len(erased):
            named.append(sequence)
    if named:
        _withhold(connection, named)
    if left or tokens or named:
        _tell(connection, log, tokens, named)
    # Also without an entry: the key is destroyed after this commit, which must not be rolled back.
    log.finish(connection)


def _tell(connection: sqlite3.Connection, log: Log, tokens: list[str], named: list[int]) -> None:
    """Append the entry of what was removed, and note that the write-ahead log is to be emptied."""
    sequence = log.checkpoint().size
    erasure = Erasure("reference", "mcp-bridge", None, time.time(), (), references=sorted(tokens), withheld=named)
    entry = to_entry(erasure, LEDGER)
    # A clock that is behind must not fail this: the command that accepts it opens the file, too.
    posted = Posted(entry, capture(entry.payload), max(time.time_ns() // 1000, log.clock.last))
    connection.executemany(INSERT_ENTRY, log.append(connection, [posted]))
    connection.execute("INSERT INTO meta VALUES (?, ?)", (f"{UNFINISHED} {sequence}", json.dumps([])))


def needs_key(connection: sqlite3.Connection) -> bool:
    """Whether a ledger has request MACs under the key that is beside it, and nobody has said that this is lost."""
    given_up = connection.execute("SELECT 1 FROM meta WHERE name = ?", (OLD_REQUESTS_LOST,)).fetchone() is not None
    return not given_up and _has_old_requests(connection)


def _has_old_requests(connection: sqlite3.Connection) -> bool:
    """Whether a ledger is of an earlier version, and has request MACs under a key that isn't in it."""
    (found,) = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM executions WHERE key IS NOT NULL AND request <> '')"
        " AND NOT EXISTS (SELECT 1 FROM meta WHERE name = ? AND value <> ?)",
        (OLD_REQUESTS, OLD_REQUESTS_GONE),
    ).fetchone()
    return bool(found)


def give_up_key(connection: sqlite3.Connection) -> None:
    """Note, in a write transaction, that the key of earlier versions is lost for good."""
    connection.execute("INSERT INTO meta VALUES (?, '') ON CONFLICT DO NOTHING", (OLD_REQUESTS_LOST,))


def forget_execution(connection: sqlite3.Connection, log: Log, execution: str) -> int:
    """Remove what rows tell about an execution whose key is destroyed. Gives how many rows did.

    Executions that hold data of it are found by its subjects from now on, whose names are removed here.
    """
    do, master = connection.execute, log.master
    subjects = do(
        "SELECT subject FROM data_keys WHERE execution = ?1 AND substr(subject, 1, 1) = ?2"
        " UNION SELECT subject FROM holders WHERE holder = ?1 AND substr(subject, 1, 1) = ?2",
        (execution, FORGETTABLE),
    ).fetchall()
    holders = do(
        "SELECT holder FROM holders JOIN data_keys ON execution = holder"
        " WHERE holders.subject = ? AND wrapped IS NOT NULL",
        (held_execution_mac(master, execution),),
    ).fetchall()
    for (holder,) in holders:
        for (subject,) in subjects:
            do(
                "INSERT INTO holders (holder, subject, mac) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (holder, subject, row_mac(master, "holders", (holder, subject))),
            )
    if subjects:
        do(
            "UPDATE data_keys SET wrapped = NULL, subject = '', mac = ?"
            " WHERE execution = ? AND substr(subject, 1, 1) = ?",
            (master.mac("data_keys", execution, "", None), execution, FORGETTABLE),
        )
        do("DELETE FROM holders WHERE holder = ? AND substr(subject, 1, 1) = ?", (execution, FORGETTABLE))
    told = len(subjects)
    told += do("DELETE FROM reference_values WHERE execution = ? AND erased IS NULL", (execution,)).rowcount
    told += do("UPDATE reference_values SET execution = '', id = erased WHERE execution = ?", (execution,)).rowcount
    changed = do(
        "UPDATE executions SET request = '', program = CASE kind WHEN 'script' THEN '' ELSE program END"
        " WHERE id = ? AND status = ? AND (request <> '' OR (kind = 'script' AND program <> ''))",
        (execution, ERASED),
    ).rowcount
    if changed:
        authenticate(connection, master, ("executions", "id = ?", (execution,)))
    return told + changed


def erase_value(connection: sqlite3.Connection, log: Log, execution: str, name: str) -> str:
    """Erase the value behind a reference. Gives the token that names both in the entry of the erasure.

    The reference's id stays as long as its execution, whose states and payloads contain it: an erased reference has to
    be told from one that never existed.
    """
    token = log.master.erasure_token(execution, name)
    connection.execute(
        "UPDATE reference_values SET value = NULL, erased = ? WHERE execution = ? AND id = ?", (token, execution, name)
    )
    return token


def remove_key(directory: Path) -> None:
    """Destroy the reference key of earlier versions, which isn't needed any more.

    Raises:
        BridgeError: `key_unusable`.
    """
    path = directory / KEY_FILE
    try:
        with suppress(FileNotFoundError):
            if stat.S_ISREG(path.lstat().st_mode):
                fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    os.write(fd, bytes(os.fstat(fd).st_size))
                    os.fsync(fd)
                finally:
                    os.close(fd)
            path.unlink()
            sync_directory(directory)
    except OSError as exc:
        raise BridgeError(
            "key_unusable",
            f"{path} can't be removed: {exc.strerror}. Values that were erased could be guessed by it.",
            hint="Remove it: nothing uses it any more.",
        ) from None


def old_requests(connection: sqlite3.Connection, log: Log) -> bytes | None:
    """The key of the request MACs of earlier versions; None if there are none.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    (wrapped,) = connection.execute("SELECT value FROM meta WHERE name = ?", (OLD_REQUESTS,)).fetchone() or ("",)
    return log.master.unwrap(wrapped, OLD_REQUESTS) if wrapped not in {"", OLD_REQUESTS_GONE} else None


def _requests(log: Log, path: Path) -> str:
    """The wrapped key of request MACs, which is derived from the key in a file."""
    try:
        key = read_whole(path, _MAX_KEY_FILE_BYTES)
    except FileNotFoundError:
        logger.warning(
            "%s is missing. Without it, idempotency keys of an earlier version can't be matched with their "
            "requests: requests that use one are refused. Put it back, then start again",
            path,
        )
        return OLD_REQUESTS_GONE
    except OSError as exc:
        raise BridgeError("key_unusable", f"{path} can't be read: {exc.strerror}.") from None
    if len(key) != KEY_BYTES:
        # The file would be removed, and with it what is left of the key.
        hint = "Put the right one back. If it is lost for good, remove it: what is asked for under old keys is refused."
        raise BridgeError("key_unusable", f"{path} has {len(key)} bytes, and is no key.", hint=hint)
    return log.master.wrap(hmac.digest(key, b"requests", "sha256"), OLD_REQUESTS).hex()


def _named(connection: sqlite3.Connection) -> list[tuple[int, list[tuple[str, str]]]]:
    """The entries that name erased references: their numbers, and executions with the references' ids.

    References of executions that are erased themselves are left out.
    """
    found = []
    for sequence, kept in connection.execute(
        "SELECT sequence, CAST(sealed AS BLOB) FROM entries JOIN payloads USING (sequence)"
        " WHERE execution = ? AND kind = 'erasure'",
        (LEDGER,),
    ).fetchall():
        try:
            erasure = Erasure.decode(json.loads(kept[SALT_BYTES:]))
        except (ValueError, KeyError, TypeError, AttributeError):
            # It was changed, as verification says.
            continue
        if (name := erasure.reference) is not None and erasure.holders is not None:
            erased = [(execution, name) for execution in erasure.holders if not _is_erased(connection, execution)]
            found.append((sequence, erased))
    return found


def _is_erased(connection: sqlite3.Connection, execution: str) -> bool:
    query = "SELECT 1 FROM data_keys WHERE execution = ? AND wrapped IS NULL"
    return connection.execute(query, (execution,)).fetchone() is not None


def _is_there(connection: sqlite3.Connection, execution: str, name: str) -> bool:
    # If it is missing, somebody has removed it: its entry keeps its payload, by which verification finds that.
    query = "SELECT 1 FROM reference_values WHERE execution = ? AND id = ?"
    return connection.execute(query, (execution, name)).fetchone() is not None


def _withhold(connection: sqlite3.Connection, sequences: list[int]) -> None:
    """Replace payloads by WITHHELD, which a trigger forbids otherwise."""
    ((name, statement),) = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND name = 'payloads_are_not_changed'"
    ).fetchall()
    connection.execute(f"DROP TRIGGER {name}")
    connection.executemany(
        "UPDATE payloads SET sealed = ? WHERE sequence = ?", [(WITHHELD, sequence) for sequence in sequences]
    )
    connection.execute(statement)
    # The new entry takes over their unfinished erasures.
    connection.executemany("DELETE FROM meta WHERE name = ?", [(f"{UNFINISHED} {sequence}",) for sequence in sequences])
