"""What a witness keeps: its key, and for each log the last checkpoint that it has cosigned."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger import turns
from mcp_bridge.ledger.merkle import empty_root
from mcp_bridge.private_files import private_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mcp_bridge.ledger.notes import Checkpoint

KEY_FILE = "witness.key"
"""In the state directory: the private key, PKCS #8 in PEM (RFC 8410)."""

STATE_FILE = "witness.sqlite"
"""In the state directory."""

BUSY_SECONDS = 10.0
"""How long to wait for another process of the same witness."""

MAX_CONFLICTS = 16
"""Kept of one log: one is proof enough, and whoever holds a log's key must not fill the disk."""

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


class Cosigned(NamedTuple):
    """The last checkpoint of a log that was cosigned.

    Attributes:
        size: Its size; 0 if there was none.
        root: Its root; that of the empty tree if there was none.
    """

    size: int
    root: bytes


class WitnessState:
    """The file `witness.sqlite`, made with mode 0600 if it isn't there. For several threads and processes.

    Args:
        path: The file.

    Raises:
        BridgeError: `witness_unusable` (no database, no permission, damaged), `witness_newer` (of a later version: left
            untouched).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._connection = _open(path)
        except (sqlite3.Error, OSError) as exc:
            raise self._unusable(exc) from None

    @contextlib.contextmanager
    def turn(self) -> Iterator[WitnessTurn]:
        """Be the only one who reads and writes; what was written is durable when the turn has ended without an error.

        Raises:
            BridgeError: `witness_unusable`: nothing was changed.
        """
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield WitnessTurn(self._connection)
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.Error as exc:
                raise self._unusable(exc) from None

    def close(self) -> None:
        """Close the file, after the turn that somebody may have."""
        with self._lock:
            self._connection.close()

    def _unusable(self, exc: Exception) -> BridgeError:
        return BridgeError(
            "witness_unusable",
            f"What the witness has cosigned, {self._path}, can't be used: {exc}.",
            hint="Mend the disk, or restore the newest backup. An older one lets a log be rolled back to that time.",
        )


class WitnessTurn:
    """What can be done while nobody else reads or writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def last(self, origin: str) -> Cosigned:
        """The log's last checkpoint."""
        rows = self._connection.execute("SELECT size, root FROM cosigned WHERE origin = ?", (origin,)).fetchall()
        return Cosigned(*rows[0]) if rows else Cosigned(0, empty_root())

    def note(self, origin: str) -> str:
        """The note of the log's last checkpoint; empty if there was none."""
        rows = self._connection.execute("SELECT note FROM cosigned WHERE origin = ?", (origin,)).fetchall()
        return rows[0][0] if rows else ""

    def keep(self, checkpoint: Checkpoint, note: str) -> None:
        """Make it the log's last."""
        self._connection.execute(
            "INSERT INTO cosigned VALUES (?, ?, ?, ?) ON CONFLICT (origin) DO UPDATE SET size = excluded.size, "
            "root = excluded.root, note = excluded.note",
            (checkpoint.origin, checkpoint.size, checkpoint.root, note),
        )

    def keep_conflict(self, checkpoint: Checkpoint, note: str, seconds: int) -> None:
        """Keep a signed checkpoint that contradicts the last: both together prove that the log's holder lied."""
        self._connection.execute(
            "INSERT OR IGNORE INTO conflicts (origin, time, cosigned, refused) SELECT origin, ?, note, ? FROM cosigned "
            "WHERE origin = ? AND (SELECT count(*) FROM conflicts WHERE origin = ?) < ?",
            (seconds, note, checkpoint.origin, checkpoint.origin, MAX_CONFLICTS),
        )

    def is_new(self) -> bool:
        """Whether nothing was ever cosigned."""
        return not self._connection.execute("SELECT EXISTS (SELECT 1 FROM cosigned)").fetchone()[0]


def open_files(state_dir: Path) -> tuple[Ed25519PrivateKey, WitnessState]:
    """The key and the state in a directory, both made if neither is there.

    Raises:
        BridgeError: As WitnessState and private_key. `witness_forgot`: the key is there, and what it has cosigned is
            not. `witness_key_missing`: the other way round.
    """
    key, state = state_dir / KEY_FILE, state_dir / STATE_FILE
    # In this order, and the state is made before the key: another process may be making both.
    if key.exists() and not state.exists():
        raise BridgeError(
            "witness_forgot",
            f"{key} is there, and what it has cosigned, {state}, isn't: every log could be rolled back.",
            hint=f"Restore {STATE_FILE} from its newest backup; or move {KEY_FILE} away, to begin as another witness.",
        )
    opened = WitnessState(state)
    try:
        with opened.turn() as turn:
            if not turn.is_new() and not key.exists():
                raise BridgeError(
                    "witness_key_missing",
                    f"The witness has cosigned checkpoints, and its key, {key}, isn't there.",
                    hint=f"Restore it; or move {STATE_FILE} away too, to begin as another witness.",
                )
        return private_key(key), opened
    except BaseException:
        opened.close()
        raise


def private_key(path: Path) -> Ed25519PrivateKey:
    """The key in a file, which is made with mode 0600 if it isn't there.

    Raises:
        BridgeError: `witness_key_unsafe` (others own it or can read it), `witness_key_unusable`.
    """
    try:
        if not path.exists():
            _make(path)
        # Not through a link, which others may point elsewhere, and not stuck on a pipe.
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
    """Make a key. Linked into its place: of several processes that do so at the same time, all read the same."""
    data = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


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
        turns.use_wal(connection, BUSY_SECONDS)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        # Once more, inside: another process may have been quicker.
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in _TABLES:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection
