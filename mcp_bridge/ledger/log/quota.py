"""How much may be recorded: by one run, and by all that write to one file. What can't be recorded isn't begun.

What has begun is always recorded: outcomes, ends, a person's decisions, erasures. A part of each limit is kept free for
that, RESERVE_BYTES; while less than that is left for what is under way, a run makes its calls one after the other.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from mcp_bridge.ledger.storage.database import Database

MAX_OUTCOME_BYTES = 8 << 20
"""Of what a call gives, about: what a server's result may have, and a tool's of the operator's."""

RESERVE_BYTES = 64 << 20
"""Over a limit, for outcomes of what had begun below it, for what undoes it, and for ends."""

REPEATS = 4
"""How many times a run's limit it may have recorded, what is kept once counted as often as it was: whoever reads the
record, to go on with the run or to verify it, reads all of that."""

MAX_QUEUED_BYTES = 32 << 20
"""Of what waits to be written. Whoever wants to record more waits until it is."""

FULL, TIDY = 0.9, 0.8
"""Of the quota: over the first, what may be erased is erased until the second."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What a file may take.

    Attributes:
        max_bytes: Of what is in it; None for any.
        max_run_bytes: Of what one run records.
        min_free_bytes: What has to be free on its disk for anything to begin.
    """

    max_bytes: int | None = None
    max_run_bytes: int = 512 << 20
    min_free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """How large a file is.

    Attributes:
        used: Bytes of what is in it, its write-ahead log included.
        unused: Bytes of its pages that are free.
        free: Bytes that are free on its disk.
        gives_back: Whether its unused pages can be given back; not of a file of 0.1.0.
    """

    used: int
    unused: int
    free: int
    gives_back: bool


def journal_bytes(path: Path) -> int:
    """Of a file's write-ahead log."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def measure(connection: sqlite3.Connection, path: Path) -> Measured:
    """See how large a file is.

    Raises:
        sqlite3.Error, OSError: As they come.
    """
    pages, unused, size, mode = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size", "auto_vacuum")
    )
    disk = os.statvfs(path.parent)
    return Measured(
        (pages - unused) * size + journal_bytes(path), unused * size, disk.f_bavail * disk.f_frsize, mode != 0
    )


class Allowance:
    """What a run may record: a script with the programs that it starts, or a program.

    Args:
        database: Where it is recorded.

    Attributes:
        stored: Bytes that have been written of it.
        posted: Bytes that are on their way, all of them counted: what of them is there already isn't known yet.
        told: Bytes that it has recorded, as often as it has.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._limit = database.quota.max_run_bytes
        self.stored = 0
        self.posted = 0
        self.told = 0
        self._under_way = 0
        self._ended = anyio.Event()

    def counts(self, execution: str) -> None:
        """What is recorded of an execution counts from now on."""
        self._database.count(execution, self)

    @asynccontextmanager
    async def room(self, *, undoes: bool = False) -> AsyncGenerator[None]:
        """While something is under way whose outcome will be recorded.

        Args:
            undoes: Whether it undoes something: there is a little more room for that.

        Raises:
            BridgeError: `record_limit`, `ledger_full`: it must not begin. `not_recorded`.
        """
        await self.require(undoes=undoes)
        while self._under_way and self._is_tight():
            await self._ended.wait()
            await self.require(undoes=undoes)
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._ended.set()
            self._ended = anyio.Event()

    async def require(self, *, undoes: bool = False) -> None:
        """As `room`, of what has no large outcome."""
        await self._database.queue_is_short()
        more = RESERVE_BYTES if undoes else 0
        if self._is_over(more):
            # What is on its way may be there already.
            await self._database.flush()
            if self._is_over(more):
                raise BridgeError(
                    "record_limit",
                    f"This run has recorded {self.stored} bytes, {self.told} with what it has repeated; its limit is"
                    f" {self._limit}, and {REPEATS} times that.",
                    hint="This wasn't done. Do it in another run; the operator can raise max_run_size in [ledger].",
                    limit=self._limit,
                    recorded=self.stored,
                )
        await self._database.require_room(more)

    def _is_over(self, more: int) -> bool:
        # A run of which nothing is on its way can say exactly what it has.
        return self.stored + self.posted > self._limit + more or self.told > REPEATS * self._limit + more

    def _is_tight(self) -> bool:
        wanted = (self._under_way + 1) * MAX_OUTCOME_BYTES
        within = self.stored + self.posted + wanted <= self._limit + RESERVE_BYTES
        return not within or not self._database.has_room_for(wanted)
