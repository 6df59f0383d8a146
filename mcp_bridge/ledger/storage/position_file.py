"""The position of a ledger's last commit, in `ledger.head` next to it: shows a rollback of the write-ahead log.

SQLite takes its write-ahead log to end at the first bad checksum. After a kill, the last commits are in that log alone:
if one byte of it changes, SQLite goes back to an earlier commit, which looks like any other state, and what was done
since would be done again. So after each commit, and before it is acknowledged, the number of entries, their root and
the number of other commits are written here.

The record is written after the commit is on the disk, and isn't synced itself. After a kill it is whole. After a power
cut it may be an earlier one, or torn and ignored. So a record is never ahead of an intact ledger; a ledger may be ahead
of its record by a commit that wasn't acknowledged.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import hashlib
import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import lock, unlock
from mcp_bridge.ledger.log.nodes import read_node
from mcp_bridge.ledger.proofs import merkle
from mcp_bridge.ledger.storage import write_lock
from mcp_bridge.ledger.storage.log_head import WRITES, read_head, writes_of
from mcp_bridge.ledger.storage.sealing import damaged
from mcp_bridge.private_files import private_file

if TYPE_CHECKING:
    import sqlite3

logger = logging.getLogger(__name__)

RECORD_BYTES = 512
"""One sector: on most disks a power cut leaves either the old record or the new one."""

_encode = json.JSONEncoder(separators=(",", ":")).encode

_ACCEPT = "mcp-bridge audit accept-loss"

POSITION_ERROR_CODES = frozenset({"ledger_behind", "ledger_head_damaged"})
"""Error codes of a ledger that ends before its recorded position, or whose recorded position is damaged."""


class Position(NamedTuple):
    """The position of a commit.

    Attributes:
        origin: The name of the log.
        size: The number of its entries.
        root: The tree's root over them.
        writes: The number of commits that appended none.
    """

    origin: str
    size: int
    root: bytes
    writes: int

    @property
    def commits(self) -> int:
        """Grows with each commit, by one or by the number of its entries."""
        return self.size + self.writes


class PositionError(BridgeError):
    """A commit is on the disk, and its position couldn't be recorded: `not_recorded`."""


class PositionFile:
    """The position recorded beside a ledger's file. One thread at a time uses it; each process has its own.

    A witness has one, too (`ledger.witness.witness_head`), with its own error messages.

    Args:
        ledger: The ledger's file.
        leaves: Whether the recorded position is left as it is, whatever is committed.
    """

    def __init__(self, ledger: Path, *, leaves: bool = False) -> None:
        self._leaves = leaves
        self._accepts = False
        self.path = ledger.with_suffix(".head")
        self._ledger = ledger
        self._fd = -1
        self._known: Position | None = None
        self._written: tuple[bytes, Position] | None = None
        """The record that this process has written last, and its position."""

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def load(self) -> None:
        """Read the recorded position: none if a power cut has left no record, or a torn one.

        Read it before the ledger: other processes may commit meanwhile.

        Raises:
            BridgeError: `ledger_head_damaged`: the record was changed since the system was started.
                `database_unusable`: it can't be read.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                # Another process may be writing it.
                _lock(fd, shared=True)
                data = os.read(fd, RECORD_BYTES)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return
        except OSError as exc:
            raise self.unreadable(exc) from None
        self._take(data)

    def _take(self, data: bytes) -> None:
        self._known = _decoded(data)
        if self._known is None and data:
            boot = boot_id()
            if boot and f'"boot":"{boot}"'.encode() in data:
                raise self.changed()
            logger.warning("%s can't be read, as after a power cut; it counts for nothing", self.path)

    @property
    def known(self) -> Position | None:
        """The position that was read or written last; None if there is none."""
        return self._known

    def check(self, connection: sqlite3.Connection) -> None:
        """Check that a ledger is not behind the recorded position.

        Args:
            connection: To the ledger's file.

        Raises:
            BridgeError: `ledger_behind`; `ledger_damaged`.
        """
        known = self._known
        if known is None:
            return
        found = position_of(connection)
        if found is None:
            raise self.behind("nothing")

        def read(level: int, index: int) -> bytes:
            return read_node(connection, level, index)

        # If its head was changed, its numbers mean nothing.
        if merkle.root(found.size, read) != found.root:
            raise damaged("its entries are not those that its head was signed for")
        if found.origin != known.origin:
            raise self.behind(f"another log, {found.origin!r:.60}")
        self.check_numbers(found.size, found.writes)
        if merkle.root(known.size, read) != known.root:
            raise self.behind(f"{found.size} entries, and not the same")

    def check_numbers(self, size: int, writes: int) -> None:
        """As `check`, for the same log, by its numbers alone.

        Raises:
            BridgeError: `ledger_behind`.
        """
        if self._known is None:
            return
        if size < self._known.size:
            raise self.behind(f"{size} entries")
        if writes < self._known.writes:
            raise self.behind(f"{size} entries, and lacks later changes of the tables next to them")

    def accept(self, connection: sqlite3.Connection) -> Position | None:
        """Let the next commit's position replace a later one that is recorded. Gives that one; None if it is unknown.

        The record stays locked until then: of several processes that accept a loss at once, one does.

        Args:
            connection: In the write transaction of that commit.

        Raises:
            BridgeError: `nothing_is_lost`; `ledger_damaged`.
            OSError: As the system gives it.
        """
        if self._fd < 0:
            self._fd = self._opened()
        _lock(self._fd)
        try:
            self._take(os.pread(self._fd, RECORD_BYTES, 0))
            self.check(connection)
        except BridgeError as exc:
            if exc.code not in POSITION_ERROR_CODES:
                raise
            self._accepts = True
            return self._known
        raise BridgeError("nothing_is_lost", f"{self._ledger} is as far as {self.path.name} says.")

    def unreadable(self, exc: OSError) -> BridgeError:
        """The error for a record that can't be read."""
        return BridgeError(
            "database_unusable",
            f"{self.path}, which says how far the ledger had come, can't be read: {exc.strerror}.",
            hint="See to what it is, and to its owner and mode.",
        )

    def changed(self) -> BridgeError:
        """The error for a record that was changed."""
        return BridgeError(
            "ledger_head_damaged",
            f"{self.path}, which says how far the ledger had come, was changed.",
            hint="The ledger may have lost entries, and effects that it no longer records would be repeated, so "
            "nothing is done. Restore the state directory from a copy. If nothing is missing, or you have "
            f"made sure of what is: {_ACCEPT}.",
        )

    def unwritten(self, exc: OSError) -> BridgeError:
        """The error for a commit whose position can't be recorded."""
        return PositionError(
            "not_recorded",
            f"The ledger was written, but its position can't be recorded in {self.path}: {exc.strerror}.",
            hint="The last entries are written: look before you repeat a request. See to the disk, and to the owner"
            " and mode of the file. Then start again.",
        )

    def behind(self, found: str) -> BridgeError:
        """The error for a ledger that is behind its recorded position."""
        size = 0 if self._known is None else self._known.size
        restore = ", or move the directory away and restore a backup (mcp-bridge restore FILE)"
        other = restore if found == "nothing" else ""
        return BridgeError(
            "ledger_behind",
            f"{self._ledger} has {found}; it had {size} entries, as {self.path.name} says.",
            hint="Its write-ahead log was changed or removed, or an older copy was put in its place. Effects that "
            "it no longer records would be repeated, so nothing is done. Keep a copy of the state directory "
            f"as it is, and restore the ledger as it was, with its -wal file{other}. If that can't be had: "
            f"look at what was done since, then {_ACCEPT}.",
            entries=size,
        )

    def advance(self, position: Position) -> None:
        """Record the position of a commit that is on the disk, unless another process has recorded a later one.

        Raises:
            PositionError: `not_recorded`.
        """
        if self._leaves:
            return
        try:
            if self._fd < 0:
                self._fd = self._opened()
            _lock(self._fd)
            try:
                if self._accepts or self._is_later(position, os.pread(self._fd, RECORD_BYTES, 0)):
                    self._write(position)
            finally:
                with suppress(OSError):
                    unlock(self._fd)
        except OSError as exc:
            raise self.unwritten(exc) from None
        self._known, self._accepts = position, False

    def _is_later(self, position: Position, record: bytes) -> bool:
        """Whether a position replaces the recorded one."""
        there = self._written[1] if self._written and record == self._written[0] else _decoded(record)
        return there is None or there.origin != position.origin or there.commits < position.commits

    def _write(self, position: Position) -> None:
        record = _encoded(position)
        # In one system call: a kill leaves it written or not.
        written = os.pwrite(self._fd, record, 0)
        if written < RECORD_BYTES:
            raise OSError(errno.EIO, f"only {written} bytes of {RECORD_BYTES} were written")
        self._written = record, position

    def _opened(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            private_file(self.path)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _lock(fd: int, *, shared: bool = False) -> None:
    try:
        is_ours = lock(fd, seconds=write_lock.BUSY_SECONDS, shared=shared)
    except OSError:
        # A file system without locks has one bridge, or is at its users' risk.
        return
    if not is_ours:
        raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))


def position_of(connection: sqlite3.Connection) -> Position | None:
    """The position of a ledger's last commit, from its file; None if no log has begun.

    Raises:
        sqlite3.Error: As SQLite gives it.
        BridgeError: `ledger_damaged`.
    """
    tables = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('meta', 'head')"
    if connection.execute(tables).fetchone()[0] < 2:  # noqa: PLR2004
        return None
    kept = dict(connection.execute("SELECT name, value FROM meta"))
    if "origin" not in kept:
        return None
    head, origin = read_head(connection), kept["origin"]
    if not isinstance(origin, str):
        raise damaged("its name is invalid")
    return Position(origin, head.size, head.root, writes_of(kept.get(WRITES)))


def _encoded(position: Position) -> bytes:
    origin, size, root, writes = position
    text = f'{_beginning(origin)},"size":{size},"root":"{root.hex()}","writes":{writes}}}'.encode()
    lines = b"%b\n%b\n" % (text, hashlib.sha256(text).hexdigest().encode())
    return lines.ljust(RECORD_BYTES - 1) + b"\n"


@functools.lru_cache(maxsize=8)
def _beginning(origin: str) -> str:
    """What all records of a log begin with while the system runs: most of what there is to encode."""
    return _encode({"boot": boot_id(), "origin": origin})[:-1]


def _decoded(data: bytes) -> Position | None:
    """The position that `_encoded` wrote; None for anything else."""
    text, _, rest = data.partition(b"\n")
    if rest[:64] != hashlib.sha256(text).hexdigest().encode():
        return None
    try:
        found = json.loads(text)
        position = Position(found["origin"], found["size"], bytes.fromhex(found["root"]), found["writes"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return position if [type(value) for value in position] == [str, int, bytes, int] else None


@functools.cache
def boot_id() -> str:
    """An id of this start of the system; empty if the system has none."""
    if sys.platform == "darwin":
        found, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", found, ctypes.byref(size), None, 0)
        return found.value.decode("ascii", "replace")
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return ""
