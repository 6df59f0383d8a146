"""The files of a witness: its key, and for each log the last checkpoint that it has cosigned.

How much it has cosigned is written outside of its database, too, before a cosignature leaves (`witness_head`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
from typing import TYPE_CHECKING

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcp_bridge.atomic_files import write_new
from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.proofs.merkle import empty_root
from mcp_bridge.ledger.storage import write_lock
from mcp_bridge.ledger.storage.storage_errors import code_of
from mcp_bridge.ledger.witness.witness_head import KEY_FILE, Cosigned, WitnessHead
from mcp_bridge.private_files import private_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcp_bridge.ledger.proofs.notes import Checkpoint

STATE_FILE = "witness.sqlite"
"""File of the state in the state directory."""

MAX_LOOKED_OVER_BYTES = 64 << 20
"""A state up to this size is checked by SQLite before it is used. It has room for notes and conflicts of many logs."""

BUSY_SECONDS = 10.0
"""How long to wait for another process of the same witness."""

MAX_CONFLICTS = 16
"""Most conflicts that are stored for one log: one is enough as a proof, and a log's holder must not fill the disk."""

_MAX_KEY_BYTES = 4096
_VERSION = 1

_TABLES = (
    """
    CREATE TABLE cosigned (
        origin TEXT PRIMARY KEY, size INTEGER NOT NULL CHECK (size >= 0),
        root BLOB NOT NULL CHECK (length(root) = 32), note TEXT NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE conflicts (
        id INTEGER PRIMARY KEY, origin TEXT NOT NULL, time INTEGER NOT NULL, cosigned TEXT NOT NULL,
        refused TEXT NOT NULL, UNIQUE (origin, refused)
    ) STRICT
    """,
    """
    CREATE TRIGGER never_back BEFORE UPDATE ON cosigned WHEN NEW.size < OLD.size OR NEW.origin <> OLD.origin
    BEGIN SELECT RAISE(ABORT, 'a witness never goes back'); END
    """,
    """
    CREATE TRIGGER never_forgotten BEFORE DELETE ON cosigned
    BEGIN SELECT RAISE(ABORT, 'a witness never forgets'); END
    """,
)


class WitnessState:
    """The file `witness.sqlite`, created with mode 0600 if it is missing. Safe for several threads and processes.

    Args:
        path: The file.

    Raises:
        BridgeError: `witness_unusable` (no database, no permission, damaged), `witness_newer` (of a later version: left
            untouched).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._head: WitnessHead | None = None
        try:
            self._connection = _open(path)
        except (sqlite3.Error, OSError) as exc:
            raise unusable(self._path, exc) from None

    def hold_against(self, head: WitnessHead) -> None:
        """From now on, compare the state with the measure at the start of every turn, and record it at the end.

        Raises:
            BridgeError: `witness_behind`, `witness_unusable`.
        """
        self._head = head
        with self.turn() as turn:
            # Also if there was none: an earlier version wrote the state.
            turn.changed = True

    @contextlib.contextmanager
    def turn(self) -> Iterator[WitnessTurn]:
        """Exclusive access to the state. Changes are durable when the turn has ended without an error.

        Raises:
            BridgeError: `witness_unusable`: nothing was changed, or nobody may be told of it; `witness_behind`.
        """
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    turn = WitnessTurn(self._connection)
                    if self._head is not None:
                        self._head.check_position(self._head.position(turn.known, turn.conflicts))
                    yield turn
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as exc:
                raise unusable(self._path, exc) from None
            if self._head is not None and turn.changed:
                self._head.advance(self._head.position(turn.known, turn.conflicts))

    def close(self) -> None:
        """Close the file, after a turn in progress."""
        with self._lock:
            self._connection.close()
            if self._head is not None:
                self._head.close()


class WitnessTurn:
    """Exclusive access to the state.

    Attributes:
        known: For each log, the last checkpoint that was cosigned. Read without an index, which may be damaged.
        conflicts: The number of stored conflicts.
        changed: Whether anything was added.

    Raises:
        BridgeError: `witness_unusable`.
        sqlite3.Error: As SQLite gives it.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.known, self.conflicts = _known(connection)
        self.changed = False

    def last(self, origin: str) -> Cosigned:
        """The last cosigned checkpoint of a log."""
        return self.known.get(origin, Cosigned(0, empty_root()))

    def note(self, origin: str) -> str:
        """The note of a log's last cosigned checkpoint; empty if there is none."""
        rows = self._connection.execute("SELECT note FROM cosigned WHERE origin = ?", (origin,)).fetchall()
        return rows[0][0] if rows else ""

    def keep(self, checkpoint: Checkpoint, note: str) -> None:
        """Store a log's last cosigned checkpoint."""
        self._connection.execute(
            "INSERT INTO cosigned VALUES (?, ?, ?, ?) ON CONFLICT (origin) DO UPDATE SET size = excluded.size, "
            "root = excluded.root, note = excluded.note",
            (checkpoint.origin, checkpoint.size, checkpoint.root, note),
        )
        self.known[checkpoint.origin] = Cosigned(checkpoint.size, checkpoint.root)
        self.changed = True

    def keep_conflict(self, checkpoint: Checkpoint, note: str, seconds: int) -> None:
        """Store a signed checkpoint that contradicts the last: both together prove that the log has forked."""
        made = self._connection.execute(
            "INSERT OR IGNORE INTO conflicts (origin, time, cosigned, refused) SELECT origin, ?, note, ? FROM cosigned "
            "WHERE origin = ? AND (SELECT count(*) FROM conflicts WHERE origin = ?) < ?",
            (seconds, note, checkpoint.origin, checkpoint.origin, MAX_CONFLICTS),
        ).rowcount
        self.conflicts += made
        self.changed = self.changed or made > 0


def open_files(state_dir: Path) -> tuple[Ed25519PrivateKey, WitnessState]:
    """The key and the state in a directory; both are created if both are missing.

    Raises:
        BridgeError: As WitnessState and private_key. `witness_forgot`: the key is there, and what it has cosigned is
            not. `witness_key_missing`: the other way round. `witness_behind`: what it has cosigned isn't all there.
            `witness_head_damaged`: nobody knows whether it is.
    """
    key, state = state_dir / KEY_FILE, state_dir / STATE_FILE
    # In this order, and the state is created before the key: another process may be creating both.
    head = None
    if key.exists():
        head = WitnessHead(state, private_key(key))
        # Read before the state, which other processes may change meanwhile.
        head.load()
        _look_first(key, state, head)
    opened = WitnessState(state)
    try:
        with opened.turn() as turn:
            if turn.known and not key.exists():
                raise BridgeError(
                    "witness_key_missing",
                    f"The witness has cosigned checkpoints, and its key, {key}, isn't there.",
                    hint=f"Restore it; or move {STATE_FILE} away too, to begin as another witness.",
                )
        own = private_key(key)
        opened.hold_against(head or WitnessHead(state, own))
    except BaseException:
        opened.close()
        raise
    return own, opened


def _look_first(key: Path, state: Path, head: WitnessHead) -> None:
    """Check that the state is as it was left, before it is opened for writing, which would change it.

    Raises:
        BridgeError: As `open_files`.
    """
    forgot = BridgeError(
        "witness_forgot",
        f"{key} is there, and what it has cosigned, {state}, isn't: every log could be rolled back.",
        hint=f"Put {STATE_FILE} back as it was; or move {KEY_FILE} away, to begin as another witness.",
    )
    if not state.exists():
        raise forgot
    try:
        with contextlib.closing(sqlite3.connect(f"{state.absolute().as_uri()}?mode=ro", uri=True)) as reader:
            reader.execute("BEGIN")
            if not reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                raise forgot
            head.check_position(head.position(*_known(reader)))
            if state.stat().st_size <= MAX_LOOKED_OVER_BYTES:
                (verdict,) = reader.execute("PRAGMA integrity_check(1)").fetchone()
                if verdict != "ok":
                    raise unusable(state, verdict)
    except sqlite3.Error as exc:
        # A reader may lack rights that the writer has (on a journal, or a lock); the writer reports errors.
        if code_of(exc) in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise unusable(state, exc) from None


def unusable(path: Path, why: object) -> BridgeError:
    """The error for a state that can't be used."""
    return BridgeError(
        "witness_unusable",
        f"What the witness has cosigned, {path}, can't be used: {why}.",
        hint="Mend the disk, or put the file back as it was, with its -wal file. A copy that knows less is refused.",
    )


def _known(connection: sqlite3.Connection) -> tuple[dict[str, Cosigned], int]:
    known: dict[str, Cosigned] = {}
    for origin, size, root in connection.execute("SELECT origin, size, root FROM cosigned NOT INDEXED"):
        # In a damaged file a value can have another type than the table declares, and a row can occur twice.
        if [type(value) for value in (origin, size, root)] != [str, int, bytes] or origin in known:
            raise sqlite3.DatabaseError("a row of it is damaged")
        known[origin] = Cosigned(size, root)
    return known, connection.execute("SELECT count(*) FROM conflicts NOT INDEXED").fetchone()[0]


def private_key(path: Path) -> Ed25519PrivateKey:
    """The key in a file, which is created with mode 0600 if it is missing.

    Raises:
        BridgeError: `witness_key_unsafe` (others own it or can read it), `witness_key_unusable`.
    """
    try:
        if not path.exists():
            _make(path)
        # Don't follow a link, which others may redirect, and don't block on a pipe.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise BridgeError(
                    "witness_key_unsafe",
                    f"{path} is not a file that this user alone can read.",
                    hint=f"chmod 600 {path}; make a new key, if somebody may have read this one.",
                )
            data = file.read(_MAX_KEY_BYTES)
    except OSError as exc:
        raise BridgeError("witness_key_unusable", f"{path} can't be made or read: {exc.strerror}.") from None
    try:
        key = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise BridgeError(
            "witness_key_unusable", f"{path} holds no Ed25519 key in PEM.", hint="Restore it from a backup."
        )
    return key


def _make(path: Path) -> None:
    data = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with contextlib.suppress(FileExistsError):
        # If several processes create one at the same time, all read the same.
        write_new(path, data)


def _open(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    private_database(path)
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] > _VERSION:
            raise BridgeError(
                "witness_newer",
                f"{path} was written by a later version of this program.",
                hint="Use that version, or another state_dir.",
            )
        write_lock.use_wal(connection, BUSY_SECONDS)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        # Checked again under the lock: another process may have been quicker.
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection
