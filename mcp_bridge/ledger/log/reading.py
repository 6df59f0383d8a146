"""Reads a log from its file, entry by entry, over a read-only connection in one snapshot.

The file may come from a stranger, so nothing in it is trusted. The columns beside an entry's bytes are checked against
the bytes. The tables are checked before any query, since a view in place of a table could run for ever.
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import shutil
import sqlite3
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.keys.master_key_sources import master_key
from mcp_bridge.ledger.log.deduplication import payload_of, pieces_of
from mcp_bridge.ledger.log.entry_encoding import LEDGER, decode, leaf_hash
from mcp_bridge.ledger.log.key_history import keys_of
from mcp_bridge.ledger.log.log_payloads import KeyEvent
from mcp_bridge.ledger.log.nodes import read_node
from mcp_bridge.ledger.proofs import merkle
from mcp_bridge.ledger.proofs.export_format import (
    BATCH_ENTRIES,
    BATCH_LEVEL,
    MAX_LINE_BYTES,
    ReadEntry,
    VerifiedBatch,
    checkpoint_line,
    entry_line,
    header_line,
)
from mcp_bridge.ledger.proofs.notes import merged
from mcp_bridge.ledger.storage.log_head import read_head
from mcp_bridge.ledger.storage.position_file import PositionFile
from mcp_bridge.ledger.storage.schema import MIGRATIONS, refuse_newer
from mcp_bridge.ledger.storage.sealing import damaged, naming_file, wrong_master_key
from mcp_bridge.ledger.storage.storage_errors import is_full, lacks_locks, without_locks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mcp_bridge.ledger.log.deduplication import Pieces
    from mcp_bridge.ledger.proofs.export_format import EntryBatch, Line
    from mcp_bridge.ledger.proofs.signing import Verifier
    from mcp_bridge.ledger.storage.sealing import MasterKey

logger = logging.getLogger(__name__)

MAX_EXECUTIONS_REMEMBERED = 16
"""Executions whose key and recently read pieces are cached."""

STEPS, STEPS_PER_BYTE = 10_000_000, 10
"""The limit of SQLite's instructions for reading a file, and what each of its bytes adds: many times what verification
takes. Without it, pages that refer to each other could be followed for ever."""

_STEPS_BETWEEN_LOOKS = 100_000

MAX_ESCAPED_BYTES = 6
"""The most that one byte of a text becomes in JSON: a control character is `\\u0000`."""

ENTRY_BYTES = MAX_LINE_BYTES // MAX_ESCAPED_BYTES
"""A payload of at most so many bytes fits into a line of an export, whatever is in it."""

INDEX_BYTES = 32 << 10
"""The size of a block of a write-ahead log's index (sqlite.org/walformat.html, section 2)."""

MAX_SCHEMA_ROWS = 1000

SchemaRow = tuple[str, str, str, str | None]
"""A row of SQLite's schema table: type, name, table, SQL."""


class Ledger:
    """A file's log, in one snapshot.

    Args:
        connection: A connection in a transaction.
        master: Opens payloads; None to leave them sealed.

    Attributes:
        origin: The log's origin.
        size: The number of its entries.
        note: The signed checkpoint of all entries.
        vkey: The public key of its signature.
    """

    def __init__(self, connection: sqlite3.Connection, master: MasterKey | None) -> None:
        self.connection = connection
        self.master = master
        self.size, _, self.note, self.vkey = read_head(connection)
        named = connection.execute("SELECT value FROM meta WHERE name = 'origin'").fetchone()
        if named is None or not isinstance(named[0], str):
            raise damaged("its name is missing")
        self.origin: str = named[0]
        self._pieces: dict[str, Pieces | None] = {}

    def node(self, level: int, index: int) -> bytes:
        """As `merkle.NodeReader`."""
        return read_node(self.connection, level, index)

    def entry(self, sequence: int) -> ReadEntry:
        """The entry with this number.

        Raises:
            BridgeError: `unknown_entry`; `ledger_damaged`.
        """
        if not 0 <= sequence < self.size:
            raise unknown_entry(sequence, self.size)
        row = self.connection.execute(f"{_SELECT} WHERE sequence = ?", (sequence,)).fetchone()
        if row is None:
            raise damaged(f"the entry {sequence} is missing")
        # Only a reader of all entries can tell whether the hashes beside an entry are its own.
        return self._read(*row)._replace(nodes=b"")

    def signing_keys(self) -> list[Verifier]:
        """The public keys that the log was signed with, in the order in which its entries name them.

        Raises:
            BridgeError: `ledger_damaged`, `bad_entry`, `bad_key`.
        """
        rows = self.connection.execute(
            "SELECT sequence FROM entries WHERE execution = ? AND kind = 'key' ORDER BY sequence", (LEDGER,)
        )
        return keys_of(
            (sequence, KeyEvent.from_bytes(self.entry(sequence).payload or b"")) for (sequence,) in rows.fetchall()
        )

    def read(self, first: int, end: int) -> Iterator[ReadEntry]:
        """The entries that there are from one number up to another, in their order, with the hashes beside them.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        for row in self.connection.execute(_BATCH, (first, end - 1)):
            yield self._read(*row)

    def entries(self, frontier: merkle.Frontier | None = None, end: int | None = None) -> Iterator[ReadEntry]:
        """All entries, in their order; or those from a frontier on, which is moved along, up to `end`.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        frontier = frontier or merkle.Frontier()
        # What is before the first number and beyond the last one is read, too.
        first, last = frontier.size or _LEAST, _MOST if end is None else end - 1
        for row in self.connection.execute(_BATCH, (first, last)):
            if row[0] != frontier.size:
                raise damaged(f"the entry {frontier.size} is missing")
            found = self._read(*row)
            if frontier.append(leaf_hash(found.data)) != row[4]:
                raise damaged(f"the hashes next to the entry {row[0]} don't match it")
            yield found
        if end is None and frontier.size != self.size:
            raise damaged(f"it has {frontier.size} entries, and its head is of {self.size}")

    def _read(
        self, sequence: int, execution: str, kind: str, data: bytes, nodes: bytes, sealed: bytes | None
    ) -> ReadEntry:
        leaf = decode(data)
        if (leaf.sequence, leaf.execution, leaf.kind) != (sequence, execution, kind):
            raise damaged(f"the columns next to the entry {sequence} don't match it")
        if self.master is None and execution != LEDGER:
            return ReadEntry(leaf, data, None, None, nodes)
        payload = payload_of(leaf, sealed, self._pieces_of(execution))
        if payload is None:
            return ReadEntry(leaf, data, None, None, nodes)
        return ReadEntry(leaf, data, payload.data, payload.salt, nodes)

    def _pieces_of(self, execution: str) -> Pieces | None:
        if execution == LEDGER or self.master is None:
            return None
        if execution not in self._pieces:
            if len(self._pieces) > MAX_EXECUTIONS_REMEMBERED:
                self._pieces.clear()
            row = self.connection.execute("SELECT wrapped FROM data_keys WHERE execution = ?", (execution,)).fetchone()
            if row is None:
                raise damaged(f"the key of {execution} is missing")
            key = None if row[0] is None else self.master.open(execution, row[0])
            self._pieces[execution] = None if key is None else pieces_of(self.connection, execution, key)
        return self._pieces[execution]

    def lines(self, *, payloads: bool) -> Iterator[bytes]:
        """The lines of an export.

        Args:
            payloads: Whether to include all readable payloads, and not just those about the log itself.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        yield header_line(self.origin, self.size)
        for found in self.entries():
            if payloads or found.leaf.execution == LEDGER:
                yield entry_line(found.data, found.payload, found.salt)
            else:
                yield entry_line(found.data)
        for note in self.checkpoints():
            yield checkpoint_line(note)

    def checked_lines(
        self,
        see: Callable[[ReadEntry], None],
        batches: Iterable[EntryBatch | None] = (),
        accept: Callable[[EntryBatch], None] | None = None,
    ) -> Iterator[Line]:
        """The lines of an export with all readable payloads, for `verify_export`, its entries as they were read.

        Args:
            see: Called with every entry on the way, but for those of a batch that is accepted.
            batches: The first batches, if somebody else has checked them; None for one that is to be read here.
            accept: Called with every batch that is accepted.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        yield header_line(self.origin, self.size)
        frontier = merkle.Frontier()
        for batch in batches:
            before, end = frontier.copy(), frontier.size + BATCH_ENTRIES
            if batch is not None and frontier.append_subtree(BATCH_LEVEL, batch.root) == batch.above:
                accepted = functools.partial(accept, batch) if accept is not None else _accept_without_note
                yield VerifiedBatch(batch, accepted, functools.partial(self._checked, see, before, end))
            else:
                frontier = before
                yield from self._checked(see, frontier, end)
                if frontier.size < end:
                    break
        yield from self._checked(see, frontier, None)
        for note in self.checkpoints():
            yield checkpoint_line(note)

    def _checked(
        self, see: Callable[[ReadEntry], None], frontier: merkle.Frontier, end: int | None
    ) -> Iterator[bytes | ReadEntry]:
        for found in self.entries(frontier, end):
            see(found)
            if found.payload is not None and len(found.payload) > ENTRY_BYTES:
                line = entry_line(found.data, found.payload, found.salt)
                # No export has such a line, and verification reports it.
                yield line if len(line) > MAX_LINE_BYTES else found
            else:
                yield found

    def checkpoints(self) -> Iterator[str]:
        """The stored checkpoints by their sizes, each with all its signatures, and the checkpoint of all entries.

        Checkpoints that rotated a key, and those that witnesses have cosigned, are stored.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        rows = self.connection.execute(
            "SELECT size, note FROM checkpoints WHERE size < ? ORDER BY size, rowid", (self.size,)
        )
        for _, kept in itertools.groupby(rows, key=lambda row: row[0]):
            yield _merged("a checkpoint that it keeps", [_text(note) for _, note in kept])
        yield self.head_note()

    def head_note(self) -> str:
        """The checkpoint of all entries, with all its signatures."""
        kept = self.connection.execute("SELECT note FROM checkpoints WHERE size = ? ORDER BY rowid", (self.size,))
        return _merged("its head", [*(_text(note) for (note,) in kept), self.note])


# A corrupted byte can turn bytes into text, whatever the schema says.
_SELECT = """
    SELECT sequence, execution, kind, CAST(entry AS BLOB), CAST(nodes AS BLOB), CAST(sealed AS BLOB)
    FROM entries LEFT JOIN payloads USING (sequence)
"""
_BATCH = f"{_SELECT} WHERE sequence BETWEEN ? AND ? ORDER BY sequence"

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
"""The numbers that a row can have."""


def _accept_without_note() -> None:
    pass


def _text(value: object) -> str:
    # A corrupted byte can turn text into bytes, whatever the schema says.
    if not isinstance(value, str):
        raise damaged("a checkpoint that was kept is no text")
    return value


def _merged(what: str, kept: Sequence[str]) -> str:
    """Merge the stored notes of one size."""
    if len(kept) == 1:
        # Verification checks it.
        return kept[0]
    try:
        return merged(kept)
    except BridgeError as exc:
        raise damaged(f"{what} can't be taken: {exc.message.rstrip('.')}") from None


def unknown_entry(sequence: int, size: int) -> BridgeError:
    """The error for an entry that a log doesn't have."""
    return BridgeError("unknown_entry", f"The log has no entry {str(sequence)[:30]}: it has {size}, from 0.")


def require(path: Path) -> None:
    """Check that a ledger exists.

    Raises:
        BridgeError: `database_unusable`.
    """
    if not path.is_file():
        raise _no_ledger(f"There is no ledger {path}.")


def _no_ledger(message: str) -> BridgeError:
    hint = "It begins with the first run. Is state_dir the one that is meant?"
    return BridgeError("database_unusable", message, hint=hint, begun=False)


def _not_begun(path: Path) -> BridgeError:
    return _no_ledger(f"No log has begun in {path}: who made the file was ended before it could.")


def is_begun(connection: sqlite3.Connection) -> bool:
    """Whether a file has any part of a log. A process may have been killed before it created one."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    return any(
        connection.execute(f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT 1)").fetchone()[0]  # noqa: S608
        for table in ("meta", "head", "entries")
        if table in tables
    )


@contextmanager
def open_ledger(path: Path, master: MasterKey | None = None) -> Iterator[Ledger]:
    """Open a file's log to read it.

    Args:
        path: The file.
        master: Opens payloads; None to leave them sealed.

    Raises:
        BridgeError: `database_unusable` (the file is missing, or isn't a ledger), `database_newer`, `ledger_damaged`,
            `key_unusable` (another ledger's master key).
    """
    require(path)
    try:
        with (
            _readable(path) as readable,
            closing(_connected(readable)) as opened,
        ):
            refuse_newer(opened, path)
            opened.execute("BEGIN")
            _check_tables(opened)
            if not is_begun(opened):
                raise _not_begun(path)
            if master is not None:
                # Otherwise each payload would look damaged.
                check_master(opened, master)
            yield Ledger(opened, master)
    except BridgeError as exc:
        raise naming_file(path, exc) from None
    except (sqlite3.Error, UnicodeDecodeError) as exc:
        if path.with_name(f"{path.name}-journal").exists():
            # A new file has a rollback journal until it has its write-ahead log, and is empty until then.
            raise _not_begun(path) from None
        if lacks_locks(path, exc):
            raise without_locks(path) from None
        endless = getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT
        why = "it takes longer than any ledger of its size" if endless else str(exc)
        raise BridgeError(
            "database_unusable", f"The record of executions, {path}, can't be read: {why}.", hint="Restore a backup."
        ) from None


@contextmanager
def open_own_ledger(path: Path, master: MasterKey | None = None) -> Iterator[Ledger]:
    """As `open_ledger`, for the bridge's own ledger, with a warning if it is behind its recorded position."""
    position = PositionFile(path)
    is_loaded = _warned(position.load)
    with open_ledger(path, master) as ledger:
        if is_loaded:
            _warned(lambda: position.check(ledger.connection))
        yield ledger


def _warned(check: Callable[[], None]) -> bool:
    """Whether a check of the recorded position succeeds; its error is a warning.

    Nothing is decided by an inspection, and it must work before a loss is accepted.
    """
    try:
        check()
    except BridgeError as exc:
        logger.warning("%s", exc)
        return False
    return True


def open_snapshot(path: Path) -> sqlite3.Connection:
    """Another connection to a file that `open_ledger` has opened and checked, with a snapshot of its own.

    Raises:
        sqlite3.Error: As SQLite gives it.
    """
    connection = _connected(path)
    connection.execute("BEGIN")
    return connection


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(_uri(path), uri=True, isolation_level=None)
    _limit(connection, path)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


@contextmanager
def open_for_inspection(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to inspect the bridge's own ledger, even if it is behind its recorded position; for any thread.

    Raises:
        sqlite3.Error: As SQLite raises it.
        BridgeError: `database_unusable`, `database_newer`, `ledger_damaged`.
    """
    require(path)
    position = PositionFile(path)
    with _readable(path) as readable:
        uri = _uri(readable)
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)) as opened:
            refuse_newer(opened, path)
            _check_tables(opened)
            if not is_begun(opened):
                raise _not_begun(path)
            if _warned(position.load):
                _warned(lambda: position.check(opened))
            yield opened


def master_of(connection: sqlite3.Connection, directory: Path, source: str | Sequence[str]) -> MasterKey:
    """The master key of an existing ledger.

    Raises:
        BridgeError: `key_missing`, `key_unusable`.
    """
    master = master_key(source, directory, make=False)
    check_master(connection, master)
    return master


def check_master(connection: sqlite3.Connection, master: MasterKey) -> None:
    """Check that it is the ledger's master key.

    Raises:
        BridgeError: `key_unusable`.
    """
    (check,) = connection.execute("SELECT value FROM meta WHERE name = 'master'").fetchone() or ("",)
    if check != master.check:
        raise wrong_master_key()


def _limit(connection: sqlite3.Connection, path: Path) -> None:
    size = path.stat().st_size
    with suppress(FileNotFoundError):
        size += path.with_name(f"{path.name}-wal").stat().st_size
    looks = iter(range((STEPS + STEPS_PER_BYTE * size) // _STEPS_BETWEEN_LOOKS))
    connection.set_progress_handler(lambda: next(looks, None) is None, _STEPS_BETWEEN_LOOKS)


def _check_tables(connection: sqlite3.Connection) -> None:
    """Check the tables. Reading depends on nothing else in the schema; `verify_file` checks the rest."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    found = read_schema(connection)
    for row in expected_schema(max(version, 1)):
        # An empty schema isn't damage: no log has begun.
        if found and row[0] == "table" and row not in found:
            raise damaged(f"the table {row[1]} is missing or changed")


def read_schema(connection: sqlite3.Connection) -> list[SchemaRow]:
    """The tables, indexes and triggers of a file."""
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchmany(MAX_SCHEMA_ROWS)


@functools.cache
def expected_schema(version: int) -> list[SchemaRow]:
    """As `read_schema`, for an unchanged file of that version."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        for migration in MIGRATIONS[: max(version, 0)]:
            for statement in migration:
                fresh.execute(statement)
        return read_schema(fresh)


@contextmanager
def _readable(path: Path) -> Iterator[Path]:
    """The file, or a copy if SQLite can't read it in place, because its write-ahead log's index can't be created.

    Nobody writes to such a file: a writer would have created that index.
    """
    journal = path.with_name(f"{path.name}-wal")
    if _has_index(path) or not _size(journal):
        yield path
        return
    with TemporaryDirectory(prefix="mcp-bridge-") as folder:
        try:
            for original in (path, journal):
                shutil.copyfile(original, Path(folder) / original.name)
        except OSError as exc:
            raise BridgeError(
                "database_unusable",
                f"The record of executions, {path}, can't be read where it is, nor be copied: {exc.strerror}.",
                hint="See to the owner and mode of what is there, and to the room for temporary files.",
            ) from None
        yield Path(folder) / path.name


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _has_index(path: Path) -> bool:
    """Whether the index of a file's write-ahead log exists, or can be created."""
    can_be_made = os.access(path.parent, os.W_OK) and not is_full(path)
    return can_be_made or _size(path.with_name(f"{path.name}-shm")) >= INDEX_BYTES


def _uri(path: Path) -> str:
    # Without a journal, in a directory that isn't writable, SQLite reads a file only if told that it is immutable.
    still = not _size(path.with_name(f"{path.name}-wal")) and (
        not os.access(path.parent, os.W_OK) or not _has_index(path)
    )
    return f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if still else ''}"
