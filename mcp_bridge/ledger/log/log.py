"""Appends to the log, on the writing connection: entries become leaves, payloads are sealed, the head is signed.

All of this happens in the transaction that stores it. So sequence numbers, chains and the tree continue those of the
file, whichever process wrote last.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.clock import LogClock
from mcp_bridge.ledger.log.deduplication import Snapshot, label_of, manifest, pack
from mcp_bridge.ledger.log.entry_encoding import LEDGER, MAX_ENTRY_BYTES, decode, encode_fields, fitting, leaf_hash
from mcp_bridge.ledger.log.nodes import read_node
from mcp_bridge.ledger.proofs.disclosures import SALT_BYTES, commitment
from mcp_bridge.ledger.proofs.merkle import HASH_BYTES, Frontier
from mcp_bridge.ledger.proofs.notes import Checkpoint, sign_checkpoint
from mcp_bridge.ledger.storage.log_head import WRITES, read_head, writes_of
from mcp_bridge.ledger.storage.position_file import Position
from mcp_bridge.ledger.storage.sealing import NONCE_BYTES, damaged

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Sequence

    from mcp_bridge.ledger.log.deduplication import Parts
    from mcp_bridge.ledger.log.entries import Entry
    from mcp_bridge.ledger.proofs.signing import Signer
    from mcp_bridge.ledger.storage.position_file import PositionFile
    from mcp_bridge.ledger.storage.sealing import DataKey, MasterKey

MAX_REMEMBERED = 10_000
"""Executions whose last entry and data key are cached."""

INSERT_ENTRY = "INSERT INTO appended (sequence, execution, kind, entry, nodes, sealed) VALUES (?, ?, ?, ?, ?, ?)"
"""Inserts an entry with its payload, on a connection of `prepare_to_append`. An erased execution's payload is NULL."""

INSERT_KEY = "INSERT INTO data_keys (execution, subject, wrapped, mac) VALUES (?, ?, ?, ?)"

_APPENDED = (
    # Its columns are of no type: values come to the tables as they were given.
    "CREATE TEMP VIEW appended (sequence, execution, kind, entry, nodes, sealed) AS SELECT 0, 0, 0, 0, 0, 0",
    """CREATE TEMP TRIGGER append INSTEAD OF INSERT ON appended BEGIN
        INSERT INTO entries (sequence, execution, kind, entry, nodes)
            VALUES (NEW.sequence, NEW.execution, NEW.kind, NEW.entry, NEW.nodes);
        INSERT INTO payloads (sequence, sealed) SELECT NEW.sequence, NEW.sealed WHERE NEW.sealed IS NOT NULL;
    END""",
)

_COUNT_WRITE = (
    "INSERT INTO meta (name, value) VALUES (?, '1')"
    " ON CONFLICT (name) DO UPDATE SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT)"
)

_INSERT_PIECE = "INSERT INTO pieces (execution, name, size, sealed) VALUES (?, ?, ?, ?)"
_FIND_PIECE = "SELECT 1 FROM pieces WHERE execution = ? AND name = ?"

MAX_NAMES_REMEMBERED = 1000
"""How many names of an execution's pieces are cached; others are looked up."""


class Posted:
    """An entry that is queued to be appended.

    Attributes:
        time: When it was posted, in microseconds since 1970.
        execution, kind, step, policy, program: As in the entry. The entry isn't kept: its payload would be here twice.
        size: The approximate size of its payload in bytes, as counted when it was posted.
    """

    __slots__ = ("_bytes", "_parts", "_snapshot", "execution", "kind", "policy", "program", "size", "step", "time")

    def __init__(self, entry: Entry, payload: Parts | Snapshot, time: int) -> None:
        self.time = time
        self.execution: str = entry.execution
        self.kind: str = entry.kind
        self.step = entry.step
        self.policy = entry.policy
        self.program = entry.program
        self._parts: Parts | None = None
        self._snapshot: Snapshot | None = None
        self._bytes = 0
        if isinstance(payload, Snapshot):
            self._snapshot = payload
            self.size = payload.size
        else:
            self._parts = payload
            self.size = self._bytes = len(payload[0]) if len(payload) == 1 else sum(map(len, payload))

    @property
    def payload(self) -> Parts:
        """The payload's bytes, in parts. A large payload is encoded at the first access."""
        if self._parts is None:
            assert self._snapshot is not None  # one of them is there
            self._parts, self._snapshot = self._snapshot.split(), None
            self._bytes = sum(map(len, self._parts))
        return self._parts

    @property
    def bytes(self) -> int:
        """The payload's exact size. The payload is encoded for it."""
        if self._parts is None:
            _ = self.payload
        return self._bytes


@dataclass(slots=True)
class _Execution:
    previous: str | None
    key: DataKey | None
    pieces: set[bytes] = field(default_factory=set)
    """Names of stored pieces."""


class Log:
    """The writer's view of the file's log. One thread uses it.

    Args:
        master: Opens and makes data keys.
        origin: The log's origin.
        signer: Signs its checkpoints.
        reload: Returns the signer of a verifier key, after another process has rotated the key.
        position: The recorded position of the log.
    """

    def __init__(
        self, master: MasterKey, origin: str, signer: Signer, reload: Callable[[str], Signer], position: PositionFile
    ) -> None:
        self.master = master
        self.origin = origin
        self.signer = signer
        self.position = position
        self._reload = reload
        self.is_new = False
        """Whether this process created the log."""
        self.old_requests: bytes | None = None
        """As `old_references.old_requests`."""
        self._version = -1
        self._frontier = Frontier()
        self._root = b""
        """The root hash of the entries that are committed, or about to be."""
        self.clock = LogClock()
        self._executions: OrderedDict[str, _Execution] = OrderedDict()
        self._changed = False
        self._wrote = False
        self._writes = 0
        self._before = 0
        self.stored: Counter[str] = Counter()
        """Bytes that were written for each execution since `begin`."""

    def forget(self) -> None:
        """Drop the cached state, after the transaction since `begin` was rolled back."""
        self._version = -1

    def begin(self, connection: sqlite3.Connection) -> None:
        """In a write transaction: reload the state if another connection has written since the last one.

        Raises:
            BridgeError: `ledger_damaged`, `ledger_behind`, `key_missing`, `key_unusable`.
        """
        self._changed = self._wrote = False
        self._before = connection.total_changes
        self.stored.clear()
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            # Only here: within a transaction, the last entry of an execution may not be in the file yet.
            while len(self._executions) > MAX_REMEMBERED:
                self._executions.popitem(last=False)
            return
        self._executions.clear()
        size, root, _, vkey = read_head(connection)
        writes = connection.execute("SELECT value FROM meta WHERE name = ?", (WRITES,)).fetchone()
        self._writes = writes_of(writes and writes[0])
        self._frontier = frontier_of(connection, size)
        if self._frontier.root() != root:
            raise damaged("its entries are not those that its head was signed for")
        self._root = root
        self.clock.last = _time_of(connection, size - 1) if size else 0
        self.position.check_numbers(size, self._writes)
        if vkey != self.signer.vkey:
            self.signer = self._reload(vkey)
        self._version = version

    def append(self, connection: sqlite3.Connection, posted: Sequence[Posted]) -> list[tuple[Any, ...]]:
        """The rows for INSERT_ENTRY. New pieces of payloads are inserted here.

        Raises:
            BridgeError: `clock_went_back`; `bad_entry`.
        """
        rows: list[tuple[Any, ...]] = []
        # In one call: each call releases the interpreter's lock, and waits for a busy event loop to get it back.
        salts = os.urandom(SALT_BYTES * len(posted))
        nonces = os.urandom(NONCE_BYTES * len(posted))
        for number, one in enumerate(posted):
            execution, parts = one.execution, one.payload
            known = self._known(connection, execution)
            salt = salts[SALT_BYTES * number : SALT_BYTES * (number + 1)]
            sequence = self._frontier.size
            committed = commitment(parts, salt)
            data = encode_fields(
                committed,
                execution,
                one.kind,
                one.policy,
                known.previous,
                one.program,
                sequence,
                None if one.step is None else fitting(one.step),
                self.clock.next(one.time),
            )
            if len(data) > MAX_ENTRY_BYTES:
                raise BridgeError("bad_entry", f"An entry of {execution} has {len(data)} bytes.")
            nodes = self._frontier.append(leaf_hash(data))
            known.previous = nodes[:HASH_BYTES].hex()
            size = len(data) + len(nodes)
            # It stays None for an execution that is erased already.
            sealed: bytes | None = None
            if known.key is not None:
                plain = parts[0]
                if len(parts) > 1:
                    plain, new = self._in_pieces(connection, one, known, known.key)
                    size += new
                nonce = nonces[NONCE_BYTES * number : NONCE_BYTES * (number + 1)]
                sealed = known.key.seal(salt + plain, committed.encode(), nonce)
                size += len(sealed)
            elif execution == LEDGER:
                sealed = salt + b"".join(parts)
            rows.append((sequence, execution, one.kind, data, nodes, sealed))
            self.stored[execution] += size
        self._changed = self._changed or bool(rows)
        return rows

    def _in_pieces(
        self, connection: sqlite3.Connection, one: Posted, known: _Execution, key: DataKey
    ) -> tuple[bytes, int]:
        """Insert the pieces of a payload that aren't stored yet. Returns the manifest, and the bytes inserted."""
        names: list[bytes] = []
        size = 0
        for piece in one.payload[1::2]:
            name = key.name(piece)
            names.append(name)
            if name in known.pieces:
                continue
            if connection.execute(_FIND_PIECE, (one.execution, name)).fetchone() is None:
                sealed = key.seal(pack(piece), label_of(one.execution, name))
                connection.execute(_INSERT_PIECE, (one.execution, name, len(sealed), sealed))
                size += len(sealed)
            if len(known.pieces) >= MAX_NAMES_REMEMBERED:
                known.pieces.clear()
            known.pieces.add(name)
        return manifest(one.payload, names), size

    def finish(self, connection: sqlite3.Connection) -> None:
        """Sign the log with what was appended since `begin`, and count what was written without an entry."""
        if self._changed:
            checkpoint = self.checkpoint()
            self._root = checkpoint.root
            connection.execute(
                "UPDATE head SET size = ?, root = ?, note = ?, vkey = ?",
                (checkpoint.size, checkpoint.root, sign_checkpoint(checkpoint, self.signer), self.signer.vkey),
            )
            self._wrote = True
        elif connection.total_changes > self._before:
            self._wrote = True
            connection.execute(_COUNT_WRITE, (WRITES,))
            self._writes += 1

    def committed(self) -> None:
        """Record the committed position outside the file, before the commit is reported to anybody.

        Raises:
            PositionError: The commit is on disk, but nothing may depend on it or be written after it.
        """
        if self._wrote:
            self.position.advance(Position(self.origin, self._frontier.size, self._root, self._writes))

    def checkpoint(self) -> Checkpoint:
        """The checkpoint of the log's current state."""
        return Checkpoint(self.origin, self._frontier.size, self._frontier.root())

    def sign(self) -> str:
        """The checkpoint as a signed note."""
        return sign_checkpoint(self.checkpoint(), self.signer)

    def seal(self, connection: sqlite3.Connection, execution: str, data: bytes, label: bytes) -> bytes | None:
        """Encrypt data under an execution's key; None if the execution is erased."""
        key = self._known(connection, execution).key
        if key is None:
            return None
        self.stored[execution] += len(data)
        return key.seal(data, label)

    def _known(self, connection: sqlite3.Connection, execution: str) -> _Execution:
        known = self._executions.get(execution)
        if known is not None:
            self._executions.move_to_end(execution)
            return known
        last = connection.execute(
            "SELECT sequence, entry, substr(nodes, 1, 32) FROM entries WHERE execution = ?"
            " ORDER BY sequence DESC LIMIT 1",
            (execution,),
        ).fetchone()
        kept = connection.execute("SELECT wrapped FROM data_keys WHERE execution = ?", (execution,)).fetchone()
        if execution == LEDGER:
            key = None
        elif kept is None:
            key = self.new_key(connection, execution, "")
        else:
            key = None if kept[0] is None else self.master.open(execution, kept[0])
        known = _Execution(_hash_of(*last).hex() if last else None, key)
        self._executions[execution] = known
        return known

    def new_key(self, connection: sqlite3.Connection, execution: str, subject: str) -> DataKey:
        """Create an execution's data key."""
        key, row = self.master.new_row(execution, subject)
        connection.execute(INSERT_KEY, row)
        return key

    def first_key(self, execution: str) -> bytes:
        """Create the data key of a new execution. Returns its wrapped form, which the caller stores."""
        key, wrapped = self.master.new(execution)
        self._executions[execution] = _Execution(None, key)
        return wrapped

    def erased(self, execution: str) -> None:
        """Forget an execution's key, which this transaction has destroyed."""
        self._executions.pop(execution, None)


def prepare_to_append(connection: sqlite3.Connection) -> None:
    """Let a writing connection insert an entry and its payload by one statement.

    For each statement the interpreter's lock is released several times, and a busy event loop gives it back late.
    The view is the connection's own, and not in the file.

    Raises:
        sqlite3.Error: As SQLite raises it.
    """
    for statement in _APPENDED:
        connection.execute(statement)


def frontier_of(connection: sqlite3.Connection, size: int) -> Frontier:
    """The frontier of the log's first entries.

    Raises:
        BridgeError: `ledger_damaged`.
    """

    def read(level: int, index: int) -> bytes:
        return read_node(connection, level, index)

    return Frontier(size, read)


def _time_of(connection: sqlite3.Connection, sequence: int) -> int:
    """The time of an entry, checked against its stored hash."""
    row = connection.execute(
        "SELECT entry, substr(nodes, 1, 32) FROM entries WHERE sequence = ?", (sequence,)
    ).fetchone()
    if row is None:
        raise damaged(f"the entry {sequence} is missing")
    _hash_of(sequence, *row)
    return decode(row[0]).time


def _hash_of(sequence: int, entry: bytes, kept: bytes) -> bytes:
    """An entry's hash, checked against the stored one: nothing is chained to an entry that was changed."""
    # A changed byte can turn bytes into text, whatever the schema says.
    found = leaf_hash(entry) if isinstance(entry, bytes) else None
    if found is None or found != kept:
        raise damaged(f"the entry {sequence} is not the one that its hash was made of")
    return found
