"""Where entries go. The gate knows this interface alone; behind it is the log that proves them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Protocol

from mcp_bridge.ledger.codec import LEDGER, decode
from mcp_bridge.ledger.disclosures import SALT_BYTES, commitment
from mcp_bridge.ledger.entries import TOMBSTONE, Entry, Kind, Recorded
from mcp_bridge.ledger.sealing import damaged

if TYPE_CHECKING:
    from mcp_bridge.ledger.codec import Leaf
    from mcp_bridge.ledger.database import Database
    from mcp_bridge.ledger.sealing import DataKey


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
        rows = await self._database.read(_SELECT, (execution,))
        if not rows:
            return []
        wrapped = rows[0][2]
        key = None if wrapped is None else self._database.master.open(execution, wrapped)
        found = []
        for data, sealed, _ in rows:
            leaf = decode(data)
            found.append(recorded(leaf, payload_of(leaf, sealed, key)))
        return found


def recorded(leaf: Leaf, payload: tuple[bytes, bytes] | None) -> Recorded:
    """An entry and its payload, as they are read."""
    content: dict[str, Any] = {"erased": TOMBSTONE} if payload is None else json.loads(payload[1])
    kind: Kind = leaf.kind  # type: ignore[assignment]  # `decode` has seen to it
    entry = Entry(kind, leaf.execution, content, leaf.step, leaf.policy, leaf.program)
    return Recorded(leaf.sequence, leaf.time / 1e6, entry)


def payload_of(leaf: Leaf, sealed: bytes | None, key: DataKey | None) -> tuple[bytes, bytes] | None:
    """The salt and the payload of an entry; None where it is erased.

    Raises:
        BridgeError: `ledger_damaged`: it isn't what the entry was made for.
    """
    if leaf.execution != LEDGER:
        if key is None:
            return None
        if sealed is None:
            raise damaged(f"the payload of the entry {leaf.sequence} is missing")
        sealed = key.open(sealed, leaf.commitment.encode())
    if sealed is None:
        raise damaged(f"the payload of the entry {leaf.sequence} is missing")
    salt, payload = sealed[:SALT_BYTES], sealed[SALT_BYTES:]
    if commitment(payload, salt) != leaf.commitment:
        raise damaged(f"the payload of the entry {leaf.sequence} is not the one that it was made for")
    return salt, payload


_SELECT = """
    SELECT entry, sealed, (SELECT wrapped FROM data_keys WHERE data_keys.execution = entries.execution)
    FROM entries LEFT JOIN payloads USING (sequence) WHERE execution = ? ORDER BY sequence
"""
