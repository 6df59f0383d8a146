"""Where entries go. The gate knows this interface alone: what makes a record provable can take its place behind it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Protocol

from mcp_bridge.ledger.entries import Entry, Recorded

if TYPE_CHECKING:
    from mcp_bridge.ledger.database import Database


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
        """An execution's entries, in order."""


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
            self.entries.append(Recorded(len(self.entries) + 1, time.time(), entry))

    async def read(self, execution: str) -> list[Recorded]:
        """As `Recorder.read`."""
        return [row for row in self.entries if row.entry.execution == execution]


class SqliteRecorder:
    """Keeps entries in a table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, *entries: Entry) -> None:
        """As `Recorder.append`."""
        self.post(*entries)
        await self._database.flush()

    def post(self, *entries: Entry) -> None:
        """As `Recorder.post`."""
        for entry in entries:
            payload = json.dumps(entry.payload)
            row = (time.time(), entry.execution, entry.kind, entry.step, entry.policy, entry.program, payload)
            self._database.post(_INSERT, row)

    async def read(self, execution: str) -> list[Recorded]:
        """As `Recorder.read`."""
        return [
            Recorded(sequence, when, Entry(kind, execution, json.loads(payload), step, policy, program))
            for sequence, when, kind, step, policy, program, payload in await self._database.read(_SELECT, (execution,))
        ]


_INSERT = "INSERT INTO entries (time, execution, kind, step, policy, program, payload) VALUES (?, ?, ?, ?, ?, ?, ?)"
_SELECT = (
    "SELECT sequence, time, kind, step, policy, program, payload FROM entries WHERE execution = ? ORDER BY sequence"
)
