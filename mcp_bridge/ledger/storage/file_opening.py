"""Opening the file: its version, its journal, its keys, and the first entry of a log that begins."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import has_no_record_locks
from mcp_bridge.ledger.keys.master_key_sources import master_key
from mcp_bridge.ledger.keys.signing_key_files import (
    KEY_FILE,
    keep_public_key,
    load_signer,
    own_signer,
    take_next_key,
)
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.entry_encoding import LEDGER
from mcp_bridge.ledger.log.log import INSERT_ENTRY, Log, Posted, prepare_to_append
from mcp_bridge.ledger.log.log_payloads import KeyEvent
from mcp_bridge.ledger.log.reading import check_master, open_ledger
from mcp_bridge.ledger.proofs.merkle import empty_root
from mcp_bridge.ledger.proofs.notes import open_checkpoint
from mcp_bridge.ledger.proofs.signing import Verifier
from mcp_bridge.ledger.storage import write_lock
from mcp_bridge.ledger.storage.cell_chains import link_cells
from mcp_bridge.ledger.storage.log_head import read_head
from mcp_bridge.ledger.storage.old_references import forget_erased_values, old_requests, remove_key
from mcp_bridge.ledger.storage.position_file import PositionFile, position_of
from mcp_bridge.ledger.storage.restore_staging import is_unfinished, tidy_up
from mcp_bridge.ledger.storage.schema import migrate, refuse_newer
from mcp_bridge.ledger.storage.sealing import damaged, naming_file
from mcp_bridge.ledger.storage.storage_errors import code_of, without_locks
from mcp_bridge.ledger.storage.vacuum import compact_small
from mcp_bridge.private_files import private_database

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_bridge.ledger.proofs.signing import Signer
    from mcp_bridge.ledger.storage.position_file import Position
    from mcp_bridge.ledger.storage.sealing import MasterKey

ORIGIN = "mcp-code-bridge"

MAX_JOURNAL_BYTES = 16 << 20
"""The largest write-ahead log that is left once its content is in the file."""

ALWAYS_CHECKED_BYTES = 8 << 20
"""A file up to this size is checked whenever the first process opens it, which takes 20 ms at most."""

MAX_LOOKED_OVER_BYTES = 1 << 30
"""A file up to this size is checked whole if the last process that used it was killed: that takes 3 to 5 s, longer on
a slow disk. In a larger file the tables in `_BULK` are left out."""

_BULK = ("payloads", "pieces")
"""The largest tables. Nothing is decided by what they lack: a row that is missing there is an error."""

_CHECKS_TABLES = (3, 33)
"""The version of SQLite that can check one table (sqlite.org/pragma.html#pragma_integrity_check)."""


def open_to_write(
    path: Path, master: str | Sequence[str], *, alone: bool = False, accepting: bool = False
) -> tuple[sqlite3.Connection, Log]:
    """The writing connection, and the end of its log. The caller closes the log's `position` with the connection.

    Args:
        path: The file; made with mode 0600 if it doesn't exist.
        master: The source of the master key, as `master_key_sources.master_key` takes it.
        alone: As `check_before_open`.
        accepting: Whether the log may end before its recorded position: the caller records that loss.

    Raises:
        sqlite3.Error, OSError: As they are raised.
        BridgeError: `database_newer`, `key_missing`, `key_unusable`, `ledger_damaged`, `ledger_behind`,
            `ledger_head_damaged`, ….
    """
    if has_no_record_locks(path.parent):
        # SQLite would wait for another process to let it go.
        raise without_locks(path)
    tidy_up(path.parent)
    position = PositionFile(path)
    if not accepting:
        position.load()
    check_before_open(path, position, alone=alone, accepting=accepting)
    connection = connect(path, master)
    try:
        log, found = _log(connection, path.parent, master, position)
        if not accepting:
            if found is not None:
                position.advance(found)
            # Only now: what is needed of the old key is in the file.
            remove_key(path.parent)
        # `transaction.run` has its own way of waiting.
        connection.execute("PRAGMA busy_timeout = 0")
    except BaseException:
        position.close()
        connection.close()
        raise
    return connection, log


def check_before_open(path: Path, position: PositionFile, *, alone: bool = False, accepting: bool = False) -> None:
    """Check a file before a writing connection opens it, which would change it.

    The last writing connection to close moves the write-ahead log into the file, whatever its content. A read-only
    connection can't do that, nor can it truncate the log.

    Args:
        path: The file, which need not exist.
        position: The recorded position of its log.
        alone: Whether no other process uses it. Its structure is checked then: a damaged index doesn't find what was
            done.
        accepting: As `open_to_write`: a new log may begin in the place of a missing one.

    Raises:
        sqlite3.Error: It is damaged, or isn't a database.
        BridgeError: `database_newer`, `ledger_behind`, `ledger_damaged`, `ledger_missing`, `restore_unfinished`.
    """
    # In this order: a new log's file is made before its keys, and a restore moves it into place last.
    has_key, is_restored = path.with_name(KEY_FILE).exists(), is_unfinished(path.parent)
    if not _size(path):
        # SQLite would make a file and remove the write-ahead log: a new log would silently replace the lost one.
        if is_restored:
            raise BridgeError(
                "restore_unfinished",
                f"A backup is being restored into {path.parent}, or was until somebody ended that.",
                hint="If it was ended, restore it again: mcp-bridge restore FILE.",
            )
        if position.known is not None:
            raise position.behind("nothing")
        if has_key and not accepting:
            raise BridgeError(
                "ledger_missing",
                f"There is {path.with_name(KEY_FILE)}, and the ledger that it signs, {path}, is gone or empty.",
                hint="Put it back; or move the directory away, and restore a backup (mcp-bridge restore FILE, with"
                " --keys for keys that aren't in it). To start over, move the whole directory away.",
            )
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as reader:
            refuse_newer(reader, path)
            position.check(reader)
            if alone:
                _look_over(reader, path)
    except BridgeError as exc:
        raise naming_file(path, exc) from None
    except sqlite3.Error as exc:
        # Other errors concern the read-only connection; a writing one finds out for itself.
        if code_of(exc) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise


def _look_over(connection: sqlite3.Connection, path: Path) -> None:
    """Let SQLite check the structure of a small file, and of a larger one whose last process was killed."""
    size, left = (_size(path.with_name(f"{path.name}{suffix}")) for suffix in ("", "-wal"))
    if size + left <= (MAX_LOOKED_OVER_BYTES if left else ALWAYS_CHECKED_BYTES):
        checks = ["1"]
    elif left and sqlite3.sqlite_version_info >= _CHECKS_TABLES:
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        # The schema itself may be damaged.
        names = {name for (name,) in tables if isinstance(name, str) and name.isidentifier()}
        checks = [f"'{name}'" for name in sorted(names.difference(_BULK))]
    else:
        return
    for check in checks:
        (verdict,) = connection.execute(f"PRAGMA integrity_check({check})").fetchone()
        if verdict != "ok":
            raise damaged(f"SQLite finds: {verdict}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def connect(path: Path, master: str | Sequence[str] | None = None) -> sqlite3.Connection:
    """As `open_to_write`, without the log's keys: a new file has no log yet."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    private_database(path)
    connection = sqlite3.connect(path, timeout=write_lock.BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        refuse_newer(connection, path)
        if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
            # It can't be changed once there is a table.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        write_lock.use_wal(connection, write_lock.BUSY_SECONDS)
        # A journal that a large transaction has grown is truncated.
        connection.execute(f"PRAGMA journal_size_limit = {MAX_JOURNAL_BYTES}")
        connection.execute("PRAGMA synchronous = FULL")
        # Deleted content is overwritten: no copy of an erased execution's key may remain.
        connection.execute("PRAGMA secure_delete = ON")
        if master is not None:
            migrate(connection)
            # A process of a later version may have been quicker.
            refuse_newer(connection, path)
            compact_small(connection, path)
        prepare_to_append(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    """A read-only connection."""
    connection = sqlite3.connect(path, timeout=write_lock.BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _log(
    connection: sqlite3.Connection, directory: Path, source: str | Sequence[str], position: PositionFile
) -> tuple[Log, Position | None]:
    # Before the write lock is taken: a key command may take long.
    master = master_key(source, directory, make=False) if _is_begun(connection) else None
    # The key's file and the head that names the key change under the write lock, and are read under it.
    write_lock.take_first_turn(connection)
    try:
        position.check(connection)
        if is_new := not _is_begun(connection):
            _begin(connection, directory, source, position)
        log = _continued(connection, directory, master or master_key(source, directory, make=False), position)
        log.is_new = is_new
        forget_erased_values(connection, log, directory)
        link_cells(connection, log)
        log.old_requests = old_requests(connection, log)
        # Within the transaction: what is read belongs to one commit.
        found = position_of(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return log, found


def _is_begun(connection: sqlite3.Connection) -> bool:
    found: int = connection.execute("SELECT count(*) FROM meta").fetchone()[0]
    return found > 0


def _continued(connection: sqlite3.Connection, directory: Path, master: MasterKey, position: PositionFile) -> Log:
    meta = dict(connection.execute("SELECT name, value FROM meta"))
    check_master(connection, master)
    origin = meta.get("origin", "")
    _, _, note, vkey = read_head(connection)
    try:
        checkpoint, _ = open_checkpoint(note, [Verifier.parse(vkey)])
    except BridgeError as exc:
        raise damaged(f"its head can't be taken: {exc.message}") from None
    if checkpoint.origin != origin:
        raise damaged("its head is another log's")

    def load(wanted: str) -> Signer:
        return own_signer(directory, origin, wanted)

    take_next_key(connection, directory)
    signer = load(vkey)
    keep_public_key(directory, vkey)
    return Log(master, origin, signer, load, position)


def require_end(path: Path) -> None:
    """Check that there is a log if a position was recorded.

    Raises:
        BridgeError: `ledger_behind`, `ledger_head_damaged`.
    """
    position = PositionFile(path)
    position.load()
    if position.known is None:
        return
    try:
        with open_ledger(path):
            return
    except BridgeError as exc:
        if exc.details.get("begun") is False:
            raise position.behind("nothing") from None
        # Other errors are reported by whatever reads the ledger next.


def _begin(
    connection: sqlite3.Connection, directory: Path, source: str | Sequence[str], position: PositionFile
) -> None:
    """Begin a log. Its keys are on the disk before anything that needs them."""
    master = master_key(source, directory, make=True)
    origin = f"{ORIGIN}/{secrets.token_hex(8)}"
    signer = load_signer(directory / KEY_FILE, origin, make=True)
    connection.executemany("INSERT INTO meta VALUES (?, ?)", (("origin", origin), ("master", master.check)))
    connection.execute("INSERT INTO head VALUES (1, 0, ?, '', ?)", (empty_root(), signer.vkey))
    log = Log(master, origin, signer, lambda _: signer, position)
    log.begin(connection)
    event = KeyEvent("made", signer.vkey)
    write_entries(connection, log, [Posted(Entry("key", LEDGER), (event.to_bytes(),), time.time_ns() // 1000)])
    log.finish(connection)


def write_entries(connection: sqlite3.Connection, log: Log, posted: Sequence[Posted]) -> None:
    """Append entries, one by one."""
    connection.executemany(INSERT_ENTRY, log.append(connection, posted))
