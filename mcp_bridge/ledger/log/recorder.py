"""Where entries are recorded. The gate knows this interface alone; the log behind it proves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from mcp_bridge.ledger.log.deduplication import payload_of, pieces_of
from mcp_bridge.ledger.log.entries import Entry, Kind, Recorded
from mcp_bridge.ledger.log.entry_encoding import decode, leaf_hash
from mcp_bridge.ledger.log.payloads import Erased
from mcp_bridge.ledger.storage.sealing import damaged

if TYPE_CHECKING:
    import sqlite3

    from mcp_bridge.ledger.log.deduplication import Pieces
    from mcp_bridge.ledger.log.entry_encoding import Leaf
    from mcp_bridge.ledger.storage.database import Database


class Recorder(Protocol):
    """Takes entries, in order."""

    async def append(self, *entries: Entry) -> None:
        """Record entries. Returns when they, and all entries posted before, are durable.

        Raises:
            BridgeError: `not_recorded`: they aren't, and what they announce must not happen.
        """

    def post(self, *entries: Entry) -> None:
        """Record entries before any that are appended later, without waiting."""

    async def read(self, execution: str) -> list[Recorded]:
        """An execution's entries, in order. If it is erased, a tombstone replaces every payload."""


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
        # In the reader's thread: there may be as much as a run may record.
        return await self._database.run_read(lambda connection: self._read(connection, execution))

    def _read(self, connection: sqlite3.Connection, execution: str) -> list[Recorded]:
        found: list[Recorded] = []
        pieces: Pieces | None = None
        previous: str | None = None
        for data, kept, sealed, wrapped in connection.execute(_SELECT, (execution,)).fetchall():
            if not found and wrapped is not None:
                pieces = pieces_of(connection, execution, self._database.master.open(execution, wrapped))
            leaf = decode(data)
            # What is done next depends on the entries: none may be missing or changed.
            if leaf.previous != previous or leaf_hash(data) != kept:
                raise damaged(f"the entry {leaf.sequence} isn't its own, or doesn't follow the one before it")
            previous = kept.hex()
            payload = payload_of(leaf, sealed, pieces)
            found.append(recorded(leaf, None if payload is None else payload.value()))
        return found


def recorded(leaf: Leaf, content: dict[str, Any] | None) -> Recorded:
    """An entry with its payload as it is read; `content` is None for an erased one."""
    content = Erased().encode() if content is None else content
    kind: Kind = leaf.kind  # type: ignore[assignment]  # `decode` has seen to it
    entry = Entry(kind, leaf.execution, content, leaf.step, leaf.policy, leaf.program)
    return Recorded(leaf.sequence, leaf.time / 1e6, entry)


_SELECT = """
    SELECT entry, CAST(substr(nodes, 1, 32) AS BLOB), sealed,
        (SELECT wrapped FROM data_keys WHERE data_keys.execution = entries.execution)
    FROM entries LEFT JOIN payloads USING (sequence) WHERE execution = ? ORDER BY sequence
"""
