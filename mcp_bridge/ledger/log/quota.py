"""How large a ledger's file is and may become, and what one run has recorded in it.

Beyond each limit RESERVE_BYTES are kept free: what has begun is always recorded, as are outcomes, ends, decisions of
people and erasures.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

_MEASURES = ("page_count", "freelist_count", "page_size", "auto_vacuum")

RESERVE_BYTES = 64 << 20
"""Kept free beyond a limit, for outcomes of calls that began below it, for compensations, and for ends."""

MAX_QUEUED_BYTES = 32 << 20
"""Limit of what is queued to be written. While it is exceeded, new calls wait."""


@dataclass(frozen=True, slots=True)
class Measured:
    """How large a file is.

    Attributes:
        used: Bytes of its content, including its write-ahead log.
        unused: Bytes of its free pages.
        free: Free bytes on its disk.
        gives_back: Whether free pages can be returned to the file system; a file of 0.1.0 can't.
    """

    used: int
    unused: int
    free: int
    gives_back: bool


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of a file.

    Attributes:
        max_bytes: The largest size of its content; None for no limit.
        max_run_bytes: The most that one run may record.
        min_free_bytes: The free space that its disk must have before anything begins.
    """

    max_bytes: int | None = None
    max_run_bytes: int = 512 << 20
    min_free_bytes: int = 0

    def has_room(self, measured: Measured, more: int) -> bool:
        """Whether so many more bytes than were measured fit, the reserve included."""
        return (self.max_bytes is None or measured.used + more <= self.max_bytes + RESERVE_BYTES) and (
            measured.free - more > self.min_free_bytes - RESERVE_BYTES
        )

    def exceeded(self, path: Path, measured: Measured, unmeasured: int, more: int) -> BridgeError | None:
        """The error of new work while a limit is exceeded; None where there is room.

        Args:
            path: The file.
            measured: How large it was.
            unmeasured: Bytes that were written since then.
            more: Bytes by which the limits may be exceeded.
        """
        used, free = measured.used + unmeasured, measured.free - unmeasured
        if self.max_bytes is not None and used > self.max_bytes + more:
            return BridgeError(
                "ledger_full",
                f"The record of executions, {path}, has {used} bytes; its limit is {self.max_bytes}.",
                hint="Nothing new begins. What to do: erase executions (mcp-bridge erase), raise max_size in [ledger],"
                " or put the state directory away whole and begin a new one.",
                used=used,
                limit=self.max_bytes,
            )
        if free < self.min_free_bytes - more:
            return BridgeError(
                "ledger_full",
                f"The disk of {path} has {free} bytes left, and less than {self.min_free_bytes}.",
                hint="Nothing new begins. Make room on the disk, or lower min_free in [ledger].",
                free=free,
                limit=self.min_free_bytes,
            )
        return None


def journal_bytes(path: Path) -> int:
    """The size of a file's write-ahead log."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def measure(connection: sqlite3.Connection, path: Path) -> Measured:
    """Measure a file.

    Raises:
        sqlite3.Error, OSError: As they come.
    """
    pages, unused, size, mode = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in _MEASURES)
    used = (pages - unused) * size + journal_bytes(path)
    return Measured(used, unused * size, free_bytes(path), gives_back=mode != 0)


def free_bytes(path: Path) -> int:
    """The free bytes on a file's disk.

    Raises:
        OSError: As it comes.
    """
    disk = os.statvfs(path.parent)
    return disk.f_bavail * disk.f_frsize


class RunUsage:
    """What a run has recorded: a script with the programs that it starts, or a program.

    Attributes:
        stored: Bytes that were written.
        posted: Bytes that are on their way, all of them counted: which of them are stored already isn't known yet.
        logical: Bytes that it has recorded, what is stored once counted as often as it was recorded.
    """

    def __init__(self) -> None:
        self.stored = 0
        self.posted = 0
        self.logical = 0
