"""Opening the file: its version, its journal, its keys, and the first entry of a log that begins."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.codec import LEDGER
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.key_history import KeyEvent
from mcp_bridge.ledger.log.log import INSERT_ENTRY, INSERT_PAYLOAD, Log, Posted
from mcp_bridge.ledger.proofs.merkle import empty_root
from mcp_bridge.ledger.proofs.notes import open_checkpoint
from mcp_bridge.ledger.proofs.signing import Signer, Verifier
from mcp_bridge.ledger.storage import turns
from mcp_bridge.ledger.storage.compacting import compact_small
from mcp_bridge.ledger.storage.failures import code_of
from mcp_bridge.ledger.storage.forgetting import forget_old, old_requests, remove_key
from mcp_bridge.ledger.storage.position import PositionFile, position_of, read_head
from mcp_bridge.ledger.storage.restoring import is_unfinished, tidy_up
from mcp_bridge.ledger.storage.schema import MIGRATIONS, migrate
from mcp_bridge.ledger.storage.sealing import damaged, master_key, of_file, wrong_master
from mcp_bridge.private_files import private_database, private_key, sync_directory, write_private

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_bridge.ledger.storage.position import Position
    from mcp_bridge.ledger.storage.sealing import MasterKey

KEY_FILE = "checkpoint.key"
"""In the state directory."""

NEXT_KEY_FILE = "checkpoint.key.next"
"""The key that takes the other's place; that, as soon as the log says so."""

PUBLIC_KEY_FILE = "checkpoint.pub"
"""The public key of KEY_FILE, on one line: who only verifies need not have the private one."""

_MAX_PUBLIC_KEY_BYTES = 1024

ORIGIN = "mcp-code-bridge"

MAX_JOURNAL_BYTES = 16 << 20
"""Of the write-ahead log, once what is in it has been written into the file."""

ALWAYS_LOOKED_OVER_BYTES = 8 << 20
"""A file up to this size is looked over whenever the first process opens it, which takes some 20 ms at most."""

MAX_LOOKED_OVER_BYTES = 1 << 30
"""A file up to this size, after a process was killed that used it: that takes 3 to 5 s, and more from a slow disk. Of a
larger one everything is looked over but what `_BULK` names."""

_BULK = ("payloads", "pieces")
"""Tables that take the most room, and tell nobody what has been done: what isn't found in them is an error."""

_CHECKS_TABLES = (3, 33)
"""The version of SQLite that can look over one table (sqlite.org/pragma.html#pragma_integrity_check)."""

_LOST = (
    "Without it the log can't go on as the same signer's. If it is lost for good: mcp-bridge audit rotate-key --lost."
)


def open_to_write(
    path: Path, master: str | Sequence[str], *, alone: bool = False, accepting: bool = False
) -> tuple[sqlite3.Connection, Log]:
    """The connection that writes, and the end of its log, whose `position` is to be closed with it.

    Args:
        path: The file; made with mode 0600 if it isn't there.
        master: Where the master key is, as `sealing.master_key` takes it.
        alone: As `look_first`.
        accepting: Whether the log may end before what it had come to. That is for whoever takes it down.

    Raises:
        sqlite3.Error, OSError: As they come.
        BridgeError: `database_newer`, `key_missing`, `key_unusable`, `ledger_damaged`, `ledger_behind`,
            `ledger_head_damaged`, ….
    """
    tidy_up(path.parent)
    position = PositionFile(path)
    if not accepting:
        position.load()
    look_first(path, position, alone=alone, accepting=accepting)
    connection = connect(path, master)
    try:
        log, found = _log(connection, path.parent, master, position)
        if not accepting:
            if found is not None:
                position.advance(found)
            # Only now: what is needed of it is in the file, which nobody takes for whole without.
            remove_key(path.parent)
        # `transaction.run` waits in its own way.
        connection.execute("PRAGMA busy_timeout = 0")
    except BaseException:
        position.close()
        connection.close()
        raise
    return connection, log


def look_first(path: Path, position: PositionFile, *, alone: bool = False, accepting: bool = False) -> None:
    """See that a file is as it was left, before anything that writes opens it: that would leave it otherwise.

    The last connection to leave writes the log of changes into the file, whatever it found there; the one that looks
    can't, neither does it undo what was cut off.

    Args:
        path: The file, which need not be there.
        position: How far its log had come.
        alone: Whether no other process uses it. It is looked over then: an index that was damaged finds nothing of
            what has been done.
        accepting: As `open_to_write`: one may begin in the place of one that is gone.

    Raises:
        sqlite3.Error: It is damaged, or no database.
        BridgeError: `database_newer`, `ledger_behind`, `ledger_damaged`, `ledger_missing`, `restore_unfinished`.
    """
    # In this order: who begins a log makes its file before its keys, and a restore puts it in its place at last.
    has_key, is_restored = path.with_name(KEY_FILE).exists(), is_unfinished(path.parent)
    if not _size(path):
        # SQLite would make one, and remove the log of changes; the log would answer for the other, and nobody be told.
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
                " --keys for keys that aren't in it). To begin anew, move the directory away whole.",
            )
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as reader:
            refuse_newer(reader, path)
            position.check(reader)
            if alone:
                _look_over(reader, path)
    except BridgeError as exc:
        raise of_file(path, exc) from None
    except sqlite3.Error as exc:
        # Who only reads may lack what who writes has (a journal's right, a turn); that one finds out.
        if code_of(exc) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise


def _look_over(connection: sqlite3.Connection, path: Path) -> None:
    """Have SQLite look at the structure of a small file, and of a larger one whose last process was killed."""
    size, left = (_size(path.with_name(f"{path.name}{suffix}")) for suffix in ("", "-wal"))
    if size + left <= (MAX_LOOKED_OVER_BYTES if left else ALWAYS_LOOKED_OVER_BYTES):
        checks = ["1"]
    elif left and sqlite3.sqlite_version_info >= _CHECKS_TABLES:
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        # By the schema's own word, which may be damaged.
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
    """As `open_to_write`, without the log's keys: of a new file's log there is nothing yet."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    private_database(path)
    connection = sqlite3.connect(path, timeout=turns.BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        refuse_newer(connection, path)
        if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
            # It is too late when there is a table.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        turns.use_wal(connection, turns.BUSY_SECONDS)
        # What a large transaction has made of the journal isn't kept when it is written into the file.
        connection.execute(f"PRAGMA journal_size_limit = {MAX_JOURNAL_BYTES}")
        connection.execute("PRAGMA synchronous = FULL")
        # What is deleted is overwritten: the key of an execution that is erased must be nowhere.
        connection.execute("PRAGMA secure_delete = ON")
        if master is not None:
            migrate(connection)
            # Another process may have been quicker, and of a later version.
            refuse_newer(connection, path)
            compact_small(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def refuse_newer(connection: sqlite3.Connection, path: Path) -> None:
    """Leave a file of a later version alone.

    Raises:
        BridgeError: `database_newer`.
    """
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise BridgeError(
            "database_newer",
            f"{path} was written by a later version of this program.",
            hint="Use that version, or another state_dir.",
        )


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that can't write."""
    connection = sqlite3.connect(path, timeout=turns.BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _log(
    connection: sqlite3.Connection, directory: Path, source: str | Sequence[str], position: PositionFile
) -> tuple[Log, Position | None]:
    # Not under the lock that keeps others from writing: a command may take its time.
    master = master_key(source, directory, make=False) if _is_begun(connection) else None
    # The key's file, and the head that says which key it is, change under that lock, and are read under it.
    turns.take_first_turn(connection)
    try:
        position.check(connection)
        if is_new := not _is_begun(connection):
            _begin(connection, directory, source, position)
        log = _continued(connection, directory, master or master_key(source, directory, make=False), position)
        log.is_new = is_new
        forget_old(connection, log, directory)
        log.old_requests = old_requests(connection, log)
        # Here: outside, what is read of it may be of two commits.
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
    if meta.get("master") != master.check:
        raise wrong_master()
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
    _keep_public_key(directory, vkey)
    return Log(master, origin, signer, load, position)


def own_signer(directory: Path, origin: str, vkey: str) -> Signer:
    """The key that the log is signed with.

    Raises:
        BridgeError: `key_missing`, `key_unusable`.
    """
    with suppress(BridgeError):
        # Whoever rotated the key may not have lived to put it in its place, or is about to.
        following = _loaded(directory / NEXT_KEY_FILE, origin)
        if following.vkey == vkey:
            return following
    signer = _loaded(directory / KEY_FILE, origin)
    if signer.vkey != vkey:
        raise BridgeError(
            "key_unusable",
            f"{directory / KEY_FILE} is not the key that the log is signed with, {vkey}.",
            hint=f"Put it back. {_LOST}",
        )
    return signer


def _loaded(path: Path, origin: str, *, make: bool = False) -> Signer:
    return Signer(origin, Ed25519PrivateKey.from_private_bytes(private_key(path, _LOST, make=make)))


def own_vkey(path: Path) -> str:
    """The public key of the private one that is beside a file.

    Raises:
        BridgeError: `key_missing`, `key_unusable`; as `reading.open_ledger`.
    """
    from mcp_bridge.ledger.log.reading import open_ledger  # noqa: PLC0415  (it imports this module)

    for again in (True, False):
        with open_ledger(path) as ledger:
            try:
                return own_signer(path.parent, ledger.origin, ledger.vkey).vkey
            except BridgeError:
                # Who only reads has no lock: the key may have been rotated since the head was read.
                if not again:
                    raise
    raise AssertionError


def require_end(path: Path) -> None:
    """See that there is a log, if there was one.

    Raises:
        BridgeError: `ledger_behind`, `ledger_head_damaged`.
    """
    from mcp_bridge.ledger.log.reading import open_ledger  # noqa: PLC0415  (it imports this module)

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
        # What else is wrong, whoever looks at it next says.


def known_vkey(path: Path) -> str:
    """The public key to verify a file with: that of the private one beside it, or what stands in PUBLIC_KEY_FILE.

    Raises:
        BridgeError: As `own_vkey`.
    """
    from mcp_bridge.ledger.log.reading import open_ledger  # noqa: PLC0415  (it imports this module)

    try:
        return own_vkey(path)
    except BridgeError as exc:
        if exc.code != "key_missing":
            raise
        with open_ledger(path) as ledger:
            vkey = _public_key(path.parent)
            if vkey is not None and vkey != ledger.vkey:
                raise BridgeError(
                    "key_unusable",
                    f"{path.parent / PUBLIC_KEY_FILE} is not the key that the log is signed with, {ledger.vkey}.",
                    hint="Name the key that you trust with --key.",
                ) from None
        if vkey is None:
            hint = f"{exc.hint} To verify, the public key is enough: name it with --key."
            raise BridgeError(exc.code, exc.message, hint=hint) from None
        return vkey


def _public_key(directory: Path) -> str | None:
    """What stands in PUBLIC_KEY_FILE; None where that isn't there, or is no key."""
    try:
        with (directory / PUBLIC_KEY_FILE).open("rb") as file:
            text = file.read(_MAX_PUBLIC_KEY_BYTES).decode(errors="replace").strip()
        return Verifier.parse(text).vkey
    except (OSError, BridgeError):
        return None


def _keep_public_key(directory: Path, vkey: str) -> None:
    """Have the public key on its own, too. Nothing but verifying elsewhere needs it: without it all goes on."""
    if _public_key(directory) != vkey:
        with suppress(OSError):
            write_private(directory / PUBLIC_KEY_FILE, f"{vkey}\n".encode())


def take_next_key(connection: sqlite3.Connection, directory: Path) -> None:
    """Put the next key in the other's place, if it is the one that the log is signed with.

    Args:
        connection: In a transaction that writes: nobody else makes another next key meanwhile.
        directory: The state directory.

    Raises:
        BridgeError: `key_unusable`, `ledger_damaged`.
    """
    named = connection.execute("SELECT value FROM meta WHERE name = 'origin'").fetchone()
    if named is None or not isinstance(named[0], str):
        raise damaged("its name is missing")
    (origin,), vkey = named, read_head(connection).vkey
    try:
        following = _loaded(directory / NEXT_KEY_FILE, origin)
    except BridgeError:
        # There is none, or it was never used.
        return
    if following.vkey != vkey:
        return
    try:
        (directory / NEXT_KEY_FILE).replace(directory / KEY_FILE)
        sync_directory(directory)
    except OSError as exc:
        raise BridgeError(
            "key_unusable", f"{directory / NEXT_KEY_FILE} can't be renamed: {exc.strerror}.", hint="Rename it."
        ) from None
    _keep_public_key(directory, vkey)


def _begin(
    connection: sqlite3.Connection, directory: Path, source: str | Sequence[str], position: PositionFile
) -> None:
    """Begin a log. The keys are on the disk before anything is that needs them."""
    master = master_key(source, directory, make=True)
    origin = f"{ORIGIN}/{secrets.token_hex(8)}"
    signer = _loaded(directory / KEY_FILE, origin, make=True)
    connection.executemany("INSERT INTO meta VALUES (?, ?)", (("origin", origin), ("master", master.check)))
    connection.execute("INSERT INTO head VALUES (1, 0, ?, '', ?)", (empty_root(), signer.vkey))
    log = Log(master, origin, signer, lambda _: signer, position)
    log.begin(connection)
    event = KeyEvent("made", signer.vkey)
    write_entries(connection, log, [Posted(Entry("key", LEDGER), (event.encode(),), time.time_ns() // 1000)])
    log.finish(connection)


def write_entries(connection: sqlite3.Connection, log: Log, posted: Sequence[Posted]) -> None:
    """Append entries, one by one."""
    entries, payloads = log.append(connection, posted)
    connection.executemany(INSERT_ENTRY, entries)
    connection.executemany(INSERT_PAYLOAD, payloads)
