"""Compacts a ledger's file, and makes it able to return free pages from then on."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING

from mcp_bridge.ledger.log.quota import measure

if TYPE_CHECKING:
    from pathlib import Path

AT_ONCE_BYTES = 16 << 20
"""A file up to this size is compacted when it is opened, which takes a second at most."""

FREE_SPACE_FACTOR = 2.5
"""How many times the file's content has to be free: SQLite writes it into a temporary file, then into the journal."""


def compact_small(connection: sqlite3.Connection, path: Path) -> None:
    """Compact a small file of 0.1.0 that is being opened. A failure doesn't keep it from being opened."""
    found = measure(connection, path)
    if found.gives_back or found.used + found.unused > AT_ONCE_BYTES or found.free < FREE_SPACE_FACTOR * found.used:
        return
    # If another process uses the file, this can wait.
    with suppress(sqlite3.Error):
        vacuum(connection, path)


def vacuum(connection: sqlite3.Connection, path: Path) -> None:
    """Rewrite the file.

    Raises:
        sqlite3.Error: As SQLite raises it; then nothing is changed.
    """
    # In the file's own directory: the default one may be small, in memory, or readable by others.
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
