"""Errors of SQLite and of the system, translated for a user: what is wrong, and how to mend it."""

from __future__ import annotations

import errno
import resource
import shutil
import sqlite3
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import has_no_record_locks
from mcp_bridge.ledger.storage.sealing import damaged, naming_file
from mcp_bridge.private_files import LOCKS_HINT, is_on_read_only

if TYPE_CHECKING:
    from pathlib import Path

_PRIMARY = 0xFF
"""The low byte of an extended code is the primary one (sqlite.org/rescode.html)."""

_LEAST_BYTES = 64 << 10
"""Two parts of the index of a write-ahead log (sqlite.org/walformat.html, section 2)."""

_FEW_DESCRIPTORS = 32
"""With no more open files than this a process has none left for a ledger and what SQLite makes beside it."""

_OF_LOCKS = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR})
"""What SQLite says where locks fail: where there are none it says that somebody has them, or that the disk fails."""

_BUSY = "Another process holds the file: end it, or wait for it."
_READ_ONLY = "It is on a read-only file system: mount that writable, or name another state_dir."
_RESTART = "Then the bridge has to be restarted."
"""After a failed write, and not where a file can't be opened: that is tried again at the next call."""

_HINTS = {
    sqlite3.SQLITE_FULL: "The disk is full: the operator makes room.",
    sqlite3.SQLITE_READONLY: "The file or its directory can't be written: see to their owner and mode.",
    sqlite3.SQLITE_CANTOPEN: "The file or its directory can't be opened: see to their owner and mode.",
    sqlite3.SQLITE_IOERR: "The disk fails: look at the system's log. If that can't be mended, restore a backup.",
    sqlite3.SQLITE_NOTADB: "It isn't a database: put it elsewhere, and set state_dir, or restore a backup.",
}


def unusable(path: Path, error: Exception) -> BridgeError:
    """The error for a file that can't be opened: `database_busy`, `ledger_damaged`, `database_unusable`."""
    code = code_of(error)
    if lacks_locks(path, error):
        return without_locks(path)
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return BridgeError("database_busy", f"The record of executions, {path}, is in use: {error}.", hint=_BUSY)
    if _is_damage(error):
        return naming_file(path, damaged(f"SQLite finds: {error}"))
    hint = _hint(path, error, "See state_dir, and to the owner and mode of what is in it.")
    return BridgeError("database_unusable", f"The record of executions, {path}, can't be used: {error}.", hint=hint)


def lacks_locks(path: Path, error: Exception) -> bool:
    """Whether SQLite has failed because the file's file system has no locks."""
    return code_of(error) in _OF_LOCKS and has_no_record_locks(path.parent)


def without_locks(path: Path) -> BridgeError:
    """The error for a file whose file system has no locks: `database_unusable`."""
    return BridgeError(
        "database_unusable",
        f"The record of executions, {path}, can't be used: its file system has no file locks.",
        hint=LOCKS_HINT,
    )


def not_read(path: Path, error: Exception) -> BridgeError:
    """The error for rows that couldn't be read: `ledger_damaged`, or `database_unusable`."""
    if _is_damage(error):
        return naming_file(path, damaged(f"SQLite finds: {error}"))
    hint = f"{_hint(path, error, f'Look at {path}.')} {_RESTART}"
    return BridgeError("database_unusable", f"The record of executions, {path}, can't be read: {error}.", hint=hint)


def not_written(path: Path, error: Exception) -> BridgeError:
    """The error for entries that couldn't be written: the log's own, `ledger_damaged`, or `not_recorded`."""
    if isinstance(error, BridgeError):
        return naming_file(path, error)
    code = code_of(error)
    if _is_damage(error):
        return naming_file(path, damaged(f"SQLite finds: {error}"))
    hint = _BUSY if code == sqlite3.SQLITE_BUSY else _hint(path, error, f"Look at {path}.")
    return BridgeError(
        "not_recorded", f"The record of executions can't be written: {error}.", hint=f"{hint} {_RESTART}"
    )


def identity(path: Path) -> tuple[int, int]:
    """What tells the file at a path from another one that is put there: its device and inode.

    Raises:
        BridgeError: `not_recorded`: there is none.
    """
    try:
        status = path.stat()
    except OSError as exc:
        raise moved(path) from exc
    return status.st_dev, status.st_ino


def moved(path: Path) -> BridgeError:
    """The error for a file that is no longer at its path: what is written into it is in nobody's record."""
    hint = "Put the state directory back, or leave it as it is now; then restart the bridge."
    return BridgeError("not_recorded", f"The record of executions was taken away from {path}.", hint=hint)


def is_full(path: Path) -> bool:
    """Whether the disk has no room for the files that SQLite makes beside a database."""
    try:
        return shutil.disk_usage(path.parent).free < _LEAST_BYTES
    except OSError:
        return False


def _is_damage(error: Exception) -> bool:
    """Whether SQLite has found the file damaged, or Python's module a text in it that isn't UTF-8."""
    return code_of(error) == sqlite3.SQLITE_CORRUPT or str(error).startswith("Could not decode to UTF-8")


def _hint(path: Path, error: Exception, otherwise: str) -> str:
    code = code_of(error)
    # Where there is no room for the index of its write-ahead log, SQLite says that the disk fails.
    if getattr(error, "errno", None) == errno.ENOSPC or (
        code in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN} and is_full(path)
    ):
        code = sqlite3.SQLITE_FULL
    elif is_on_read_only(path.parent):
        # Neither its owner nor its mode would be at fault.
        return _READ_ONLY
    elif (limit := _limit_met(path, code)) is not None:
        return limit
    return _HINTS.get(code, otherwise)


def _limit_met(path: Path, code: int) -> str | None:
    """The hint where a limit of the process, of which SQLite says nothing, is the likely cause (getrlimit(2))."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if code == sqlite3.SQLITE_CANTOPEN and 0 <= files <= _FEW_DESCRIPTORS:
        return f"The process may have only {files} open files: raise ulimit -n, or LimitNOFILE of systemd."
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if code not in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL} or most == resource.RLIM_INFINITY:
        return None
    largest = max((file.stat().st_size for file in path.parent.glob(f"{path.name}*")), default=0)
    if most > largest + _LEAST_BYTES:
        return None
    return f"The process may write no file larger than {most} bytes: raise ulimit -f, or LimitFSIZE of systemd."


def code_of(error: Exception) -> int:
    """SQLite's primary result code; 0 for an error that isn't SQLite's."""
    # Errors that Python's module raises itself have no code.
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY
