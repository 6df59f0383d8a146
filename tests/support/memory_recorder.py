"""A recorder without a file."""

import time

from mcp_bridge.ledger.log.entries import Entry, Recorded


class MemoryRecorder:
    """Keeps entries for as long as the process lives."""

    def __init__(self) -> None:
        self.entries: list[Recorded] = []

    async def append(self, *entries: Entry) -> None:
        self.post(*entries)

    def post(self, *entries: Entry) -> None:
        for entry in entries:
            self.entries.append(Recorded(len(self.entries), time.time(), entry))

    async def read(self, execution: str) -> list[Recorded]:
        return [row for row in self.entries if row.entry.execution == execution]
