"""How far a ledger had come, in a file beside it: SQLite takes its write-ahead log to end at the first bad checksum.

After a process was killed, the last commits are in that log alone. One changed byte in it, and SQLite goes back to a
commit before it, which looks like any other state: what was done since would be done again. So after each commit, and
before anybody is told of it, the number of entries, their root and the number of other commits are written here.

The record is written after the commit is on the disk, and isn't synced itself. A kill leaves what was written, in the
system's memory. A power cut leaves any earlier record, or a half of one, which counts for nothing then. So a record is
never ahead of a whole ledger, whatever has ended its process: the ledger of a commit that nobody was told of may be
ahead of it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import hashlib
import json
import logging
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.nodes import read_node
from mcp_bridge.ledger.proofs import merkle
from mcp_bridge.ledger.storage import turns
from mcp_bridge.ledger.storage.sealing import damaged
from mcp_bridge.private_files import private_file

if TYPE_CHECKING:
    import sqlite3

logger = logging.getLogger(__name__)

WRITES = "writes"
"""In the table `meta`, the number of commits that have changed something and appended no entry."""

RECORD_BYTES = 512
"""A sector: a power cut leaves the record before or this one, on most disks."""

_LOOK_SECONDS = 0.001

_ACCEPT = "mcp-bridge audit accept-loss"

NOT_AS_FAR = frozenset({"ledger_behind", "ledger_head_damaged"})
"""The codes of a ledger that ends before what it had come to, or of which nobody knows how far that was."""


class Position(NamedTuple):
    """How far a ledger is.

    Attributes:
        origin: The log's name.
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
        """Grows with each commit: by one, or by the number of its entries."""
        return self.size + self.writes


class PositionError(BridgeError):
    """A commit is on the disk, and how far the ledger has come by it can't be written beside it: `not_recorded`."""


class PositionFile:
    """The record beside a ledger's file. Belongs to one thread at a time; several processes may have one each.

    A witness has one as well (`witness_files.WitnessHead`), which says the same in its own words.

    Args:
        ledger: The ledger's file.
        leaves: Whether what is recorded is left as it is, whatever is committed.
    """

    def __init__(self, ledger: Path, *, leaves: bool = False) -> None:
        self._leaves = leaves
        self._accepts = False
        self.path = ledger.with_suffix(".head")
        self._ledger = ledger
        self._fd = -1
        self._known: Position | None = None

    def close(self) -> None:
        """Let the file go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def load(self) -> None:
        """Read what is recorded: nothing, for `check`, where a power cut has left no record, or half of one.

        To be read before the ledger is: others may go on with that meanwhile.

        Raises:
            BridgeError: `ledger_head_damaged`: since the system was started, somebody has changed what was recorded.
                `database_unusable`: it can't be read.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                # Another process may be writing it.
                _lock(fd, fcntl.LOCK_SH)
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
        """What was read or written last."""
        return self._known

    def check(self, connection: sqlite3.Connection) -> None:
        """See that a ledger has come as far as is known.

        Args:
            connection: To its file.

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

        # Of a head that was changed the numbers tell nothing.
        if merkle.root(found.size, read) != found.root:
            raise damaged("its entries are not those that its head was signed for")
        if found.origin != known.origin:
            raise self.behind(f"another log, {found.origin!r:.60}")
        self.check_numbers(found.size, found.writes)
        if merkle.root(known.size, read) != known.root:
            raise self.behind(f"{found.size} entries, and not the same")

    def check_numbers(self, size: int, writes: int) -> None:
        """As `check`, of the same log, by its numbers alone.

        Raises:
            BridgeError: `ledger_behind`.
        """
        if self._known is None:
            return
        if size < self._known.size:
            raise self.behind(f"{size} entries")
        if writes < self._known.writes:
            raise self.behind(f"{size} entries, and lacks later changes of what is beside them")

    def accept(self, connection: sqlite3.Connection) -> Position | None:
        """Have the next commit's position replace what is recorded; how far that was, or None where nobody knows.

        Nobody else reads or writes the record until then: of several who accept a loss at once one has accepted it.

        Args:
            connection: In a transaction that writes, whose commit that is.

        Raises:
            BridgeError: `nothing_is_lost`; `ledger_damaged`.
            OSError: As the system gives it.
        """
        if self._fd < 0:
            self._fd = self._opened()
        _lock(self._fd, fcntl.LOCK_EX)
        try:
            self._take(os.pread(self._fd, RECORD_BYTES, 0))
            self.check(connection)
        except BridgeError as exc:
            if exc.code not in NOT_AS_FAR:
                raise
            self._accepts = True
            return self._known
        raise BridgeError("nothing_is_lost", f"{self._ledger} is as far as {self.path.name} says.")

    def unreadable(self, exc: OSError) -> BridgeError:
        """The error of a record that can't be read."""
        return BridgeError(
            "database_unusable",
            f"{self.path}, which says how far the ledger had come, can't be read: {exc.strerror}.",
            hint="See to what it is, and to its owner and mode.",
        )

    def changed(self) -> BridgeError:
        """The error of a record that somebody has changed."""
        return BridgeError(
            "ledger_head_damaged",
            f"{self.path}, which says how far the ledger had come, was changed.",
            hint="Whether the ledger is whole isn't known: what it no longer knows of would be done again, so"
            " nothing is done. Put the state directory back from a copy. If nothing is missing, or you have"
            f" made sure of what is: {_ACCEPT}.",
        )

    def unwritten(self, exc: OSError) -> BridgeError:
        """The error of a commit that is on the disk, and can't be taken down."""
        return PositionError(
            "not_recorded",
            f"The record of executions is written, and how far it has come can't be, to {self.path}: {exc.strerror}.",
            hint="What was written last stays: look before you ask for it again. See to the disk, and to the owner"
            " and mode of the file. Then start again.",
        )

    def behind(self, found: str) -> BridgeError:
        """The error of a ledger that was further than it is."""
        size = 0 if self._known is None else self._known.size
        restore = ", or move the directory away and restore a backup (mcp-bridge restore FILE)"
        other = restore if found == "nothing" else ""
        return BridgeError(
            "ledger_behind",
            f"{self._ledger} has {found}; it had {size} entries, as {self.path.name} says.",
            hint="Its write-ahead log was changed or removed, or an older copy was put in its place. What it no longer"
            " knows of would be done again, so nothing is done. Keep a copy of the state directory as it is, and put"
            f" the ledger back as it was, with its -wal file{other}. If that can't be had:"
            f" look at what was done since, then {_ACCEPT}.",
            entries=size,
        )

    def advance(self, position: Position) -> None:
        """Take down a commit that is on the disk, unless another process has come further.

        Raises:
            PositionError: `not_recorded`.
        """
        if self._leaves:
            return
        try:
            if self._fd < 0:
                self._fd = self._opened()
            _lock(self._fd, fcntl.LOCK_EX)
            try:
                there = None if self._accepts else _decoded(os.pread(self._fd, RECORD_BYTES, 0))
                if there is None or there.origin != position.origin or there.commits < position.commits:
                    self._write(position)
            finally:
                with suppress(OSError):
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
        except OSError as exc:
            raise self.unwritten(exc) from None
        self._known, self._accepts = position, False

    def _write(self, position: Position) -> None:
        # In one piece: who is killed has written it or hasn't.
        written = os.pwrite(self._fd, _encoded(position), 0)
        if written < RECORD_BYTES:
            raise OSError(errno.EIO, f"only {written} bytes of {RECORD_BYTES} were written")

    def _opened(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            private_file(self.path)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _lock(fd: int, kind: int) -> None:
    deadline = time.monotonic() + turns.BUSY_SECONDS
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_SECONDS)
        except OSError:
            # A file system without locks has one bridge, or is at its users' risk.
            return
        else:
            return


class Head(NamedTuple):
    """What a ledger's file says of the end of its log.

    Attributes:
        size: The number of its entries.
        root: The tree's root over them.
        note: The signed checkpoint of them.
        vkey: The key that it is signed with.
    """

    size: int
    root: bytes
    note: str
    vkey: str


def read_head(connection: sqlite3.Connection) -> Head:
    """The head as it stands in the file, which may be another than was signed.

    Raises:
        sqlite3.Error: As SQLite gives it.
        BridgeError: `ledger_damaged`.
    """
    row = connection.execute("SELECT size, root, note, vkey FROM head").fetchone()
    if row is None:
        raise damaged("its head is missing")
    head = Head(*row)
    # A changed byte can make a column's value one of another type, whatever the table says.
    if [type(value) for value in head] != [int, bytes, str, str] or head.size < 0:
        raise damaged("its head is none")
    return head


def position_of(connection: sqlite3.Connection) -> Position | None:
    """How far a ledger is, as its file says; None where nothing was begun.

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
        raise damaged("its name is none")
    return Position(origin, head.size, head.root, writes_of(kept.get(WRITES)))


def writes_of(kept: object) -> int:
    """The number of writes as `meta` has it. A file that nobody has written to since has none."""
    return int(kept) if isinstance(kept, str) and kept.isdecimal() and kept.isascii() else 0


def _encoded(position: Position) -> bytes:
    text = json.dumps(
        {
            "boot": boot_id(),
            "origin": position.origin,
            "size": position.size,
            "root": position.root.hex(),
            "writes": position.writes,
        },
        separators=(",", ":"),
    )
    lines = f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n"
    return lines.ljust(RECORD_BYTES - 1).encode() + b"\n"


def _decoded(data: bytes) -> Position | None:
    """What `_encoded` has made; None of anything else."""
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
    """What tells this start of the system from the one before; empty where nothing does."""
    if sys.platform == "darwin":
        found, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", found, ctypes.byref(size), None, 0)
        return found.value.decode("ascii", "replace")
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return ""
