"""Making a ledger's file as small as what is in it, and able to give pages back from then on: for one of 0.1.0.

A file that a later version has begun gives pages back by itself, a few at a time (`erasure.give_back`).
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.quota import measure
from mcp_bridge.ledger.storage import presence

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_bridge.ledger.log.quota import Measured
    from mcp_bridge.ledger.storage.database import Database

AT_ONCE_BYTES = 16 << 20
"""A file up to this size is compacted when it is opened: that takes a second at most."""

TIMES_FREE = 2.5
"""How many times what is in the file has to be free: SQLite writes it into a file beside, then into the journal."""


async def compact(database: Database, owner: str) -> tuple[Measured, Measured]:
    """Write a file anew; how large it was and is.

    Args:
        database: It.
        owner: What this process calls itself: nobody else may use the file meanwhile.

    Raises:
        BridgeError: `ledger_in_use`, `disk_full`: nothing is changed. `erasure_unfinished`, as `empty_journal`.
    """
    from mcp_bridge.ledger.storage.erasure import empty_journal  # noqa: PLC0415  (it is opened by what imports this)

    if presence.others(database.path.parent, owner):
        raise BridgeError(
            "ledger_in_use",
            f"Other processes use {database.path}, and would wait for longer than they can.",
            hint="End every bridge that uses this state directory, then try again.",
        )
    before = await database.measure()
    require_free(database.path, before.used)
    await database.outside(lambda connection: vacuum(connection, database.path))
    await empty_journal(database)
    return before, await database.measure()


def require_free(path: Path, used: int) -> None:
    """See that there is room for a file to be written anew.

    Raises:
        BridgeError: `disk_full`.
    """
    free = shutil.disk_usage(path.parent).free
    if free < TIMES_FREE * used:
        raise BridgeError(
            "disk_full",
            f"Writing {path} anew takes {int(TIMES_FREE * used)} bytes for a while, and {free} are free.",
            hint="Make room on the disk, or erase more first.",
        )


def compact_small(connection: sqlite3.Connection, path: Path) -> None:
    """Compact a small file of 0.1.0 that is being opened. What keeps it from that keeps nobody from working with it."""
    found = measure(connection, path)
    if found.gives_back or found.used + found.unused > AT_ONCE_BYTES or found.free < TIMES_FREE * found.used:
        return
    # Busy: another process uses it, and this can wait.
    with suppress(sqlite3.Error):
        vacuum(connection, path)


def vacuum(connection: sqlite3.Connection, path: Path) -> None:
    """Write the file anew.

    Raises:
        sqlite3.Error: As it comes: nothing is changed then.
    """
    # Where the file is: what is elsewhere may be small, in memory, or others' to read.
    before = os.environ.get("SQLITE_TMPDIR")
    os.environ["SQLITE_TMPDIR"] = str(path.parent)
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("VACUUM")
    finally:
        if before is None:
            del os.environ["SQLITE_TMPDIR"]
        else:
            os.environ["SQLITE_TMPDIR"] = before
