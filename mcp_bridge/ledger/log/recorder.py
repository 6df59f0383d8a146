"""Where entries go. The gate knows this interface alone; behind it is the log that proves them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from mcp_bridge.ledger.log.codec import LEDGER, decode, leaf_hash
from mcp_bridge.ledger.log.entries import TOMBSTONE, Entry, Kind, Recorded
from mcp_bridge.ledger.log.pieces import Payload, Pieces
from mcp_bridge.ledger.storage.sealing import damaged

if TYPE_CHECKING:
    import sqlite3

    from mcp_bridge.ledger.log.codec import Leaf
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.sealing import DataKey


class Recorder(Protocol):
    """Takes entries, in order."""

    async def append(self, *entries: Entry) -> None:
        """Record, and return when they, and all that was posted before, are durable.

        Raises:
            BridgeError: `not_recorded`: they aren't, and what they announce must not happen.
        """

    def post(self, *entries: Entry) -> None:
        """Record before anything that is appended later, without waiting."""

    async def read(self, execution: str) -> list[Recorded]:
        """An execution's entries, in order; of an erased one, with a tombstone in the place of every payload."""


class MemoryRecorder:
    """Keeps entries for as long as the process lives."""

    def __init__(self) -> None:
        self.entries: list[Recorded] = []

    async def append(self, *entries: Entry) -> None:
        """As `Recorder.append`."""
        self.post(*entries)

    def post(self, *entries: Entry) -> None:
        """As `Recorder.post`."""
        for entry in entries:
            self.entries.append(Recorded(len(self.entries), time.time(), entry))

    async def read(self, execution: str) -> list[Recorded]:
        """As `Recorder.read`."""
        return [row for row in self.entries if row.entry.execution == execution]


class SqliteRecorder:
    """Keeps entries in a log that proves them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, *entries: Entry) -> None:
        """As `Recorder.append`."""
        self._database.record(*entries)
        await self._database.flush()

    def post(self, *entries: Entry) -> None:
        """As `Recorder.post`."""
        self._database.record(*entries)

    async def read(self, execution: str) -> list[Recorded]:
        """As `Recorder.read`.

        Raises:
            BridgeError: `ledger_damaged`, `database_unusable`.
        """
        # In the reader's thread: an execution may have recorded as much as it may record.
        return await self._database.look(lambda connection: self._read(connection, execution))

    def _read(self, connection: sqlite3.Connection, execution: str) -> list[Recorded]:
        found: list[Recorded] = []
        pieces: Pieces | None = None
        previous: str | None = None
        for data, kept, sealed, wrapped in connection.execute(_SELECT, (execution,)).fetchall():
            if not found and wrapped is not None:
                pieces = pieces_of(connection, execution, self._database.master.open(execution, wrapped))
            leaf = decode(data)
            # What is done next depends on it: none may be missing between two, and none be another than there was.
            if leaf.previous != previous or leaf_hash(data) != kept:
                raise damaged(f"the entry {leaf.sequence} isn't its own, or doesn't follow the one before it")
            previous = kept.hex()
            payload = payload_of(leaf, sealed, pieces)
            found.append(recorded(leaf, None if payload is None else payload.value()))
        return found


def pieces_of(connection: sqlite3.Connection, execution: str, key: DataKey) -> Pieces:
    """The pieces of an execution's payloads, to be read by a connection."""

    def fetch(name: bytes) -> Any:
        # A changed byte can make bytes text, whatever the table says; of a file of version 1 nothing names a piece.
        query = "SELECT CAST(sealed AS BLOB) FROM pieces WHERE execution = ? AND name = ?"
        row = connection.execute(query, (execution, name)).fetchone()
        return None if row is None else row[0]

    return Pieces(execution, key, fetch)


def recorded(leaf: Leaf, content: dict[str, Any] | None) -> Recorded:
    """An entry and its payload, as they are read; None for one that is erased."""
    content = {"erased": TOMBSTONE} if content is None else content
    kind: Kind = leaf.kind  # type: ignore[assignment]  # `decode` has seen to it
    entry = Entry(kind, leaf.execution, content, leaf.step, leaf.policy, leaf.program)
    return Recorded(leaf.sequence, leaf.time / 1e6, entry)


def payload_of(leaf: Leaf, sealed: bytes | None, pieces: Pieces | None) -> Payload | None:
    """The payload of an entry; None where it is erased.

    Args:
        leaf: The entry.
        sealed: What is kept of its payload.
        pieces: Those of its execution, with its key; None where that is destroyed.

    Raises:
        BridgeError: `ledger_damaged`: it isn't what the entry was made for.
    """
    if leaf.execution != LEDGER:
        if pieces is None:
            return None
        if sealed is None:
            raise damaged(f"the payload of the entry {leaf.sequence} is missing")
        sealed = pieces.key.open(sealed, leaf.commitment.encode())
    elif sealed == b"":
        # Withheld: it named what was erased. That another entry says so is seen when the file is verified.
        return None
    if sealed is None:
        raise damaged(f"the payload of the entry {leaf.sequence} is missing")
    return Payload(sealed, leaf.commitment, leaf.sequence, pieces)


_SELECT = """
    SELECT entry, CAST(substr(nodes, 1, 32) AS BLOB), sealed,
        (SELECT wrapped FROM data_keys WHERE data_keys.execution = entries.execution)
    FROM entries LEFT JOIN payloads USING (sequence) WHERE execution = ? ORDER BY sequence
"""
