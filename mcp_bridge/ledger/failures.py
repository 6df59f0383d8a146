"""What SQLite and the system give as errors, as a reader can use them: what is wrong, and how it is mended."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.sealing import damaged, of_file

if TYPE_CHECKING:
    from pathlib import Path

_PRIMARY = 0xFF
"""The low byte of an extended code is the primary one (sqlite.org/rescode.html)."""

_BUSY = "Another process holds the file: end it, or wait for it; then start again."
_HINTS = {
    sqlite3.SQLITE_FULL: "The disk is full: make room, then start again.",
    sqlite3.SQLITE_READONLY: "The file or its directory can't be written: see to their owner and mode.",
    sqlite3.SQLITE_CANTOPEN: "The file or its directory can't be opened: see to their owner and mode.",
    sqlite3.SQLITE_IOERR: "The disk fails: look at the system's log. Then start again, or go on with a backup.",
    sqlite3.SQLITE_NOTADB: "It is no database: put it elsewhere, and set state_dir, or go on with a backup.",
}


def unusable(path: Path, error: Exception) -> BridgeError:
    """Of a file that can't be opened: `database_busy`, `ledger_damaged`, `database_unusable`."""
    code = code_of(error)
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return BridgeError("database_busy", f"The record of executions, {path}, is in use: {error}.", hint=_BUSY)
    if code == sqlite3.SQLITE_CORRUPT:
        return of_file(path, damaged(f"SQLite finds: {error}"))
    hint = _HINTS.get(code, "See state_dir, and to the owner and mode of what is in it.")
    return BridgeError("database_unusable", f"The record of executions, {path}, can't be used: {error}.", hint=hint)


def not_written(path: Path, error: Exception) -> BridgeError:
    """Of entries that couldn't be written: what the log itself has said, `ledger_damaged`, `not_recorded`."""
    if isinstance(error, BridgeError):
        return of_file(path, error)
    code = code_of(error)
    if code == sqlite3.SQLITE_CORRUPT:
        return of_file(path, damaged(f"SQLite finds: {error}"))
    hint = _BUSY if code == sqlite3.SQLITE_BUSY else _HINTS.get(code, f"Look at {path}. Then start again.")
    return BridgeError("not_recorded", f"The record of executions can't be written: {error}.", hint=hint)


def code_of(error: Exception) -> int:
    """SQLite's primary result code; 0 of an error that isn't SQLite's."""
    # Those that Python's module makes itself have none.
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY
