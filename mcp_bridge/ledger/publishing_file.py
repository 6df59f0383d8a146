"""Checkpoints in a file on other storage: one note after the other, each followed by an empty line.

The file only grows. What a crash has left of a note stays there, and is passed over by whoever reads the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import stat
import time
from typing import TYPE_CHECKING

import anyio
import anyio.from_thread
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.notes import parse_checkpoint
from mcp_bridge.ledger.publishing import Published, checkpoint_of, conflict, rolled_back

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mcp_bridge.ledger.notes import Checkpoint
    from mcp_bridge.ledger.publishing import Source
    from mcp_bridge.ledger.targets import Target

    _RootAt = Callable[[int], bytes | None]

TAIL_BYTES = 1 << 20
"""Of a file's end that is searched for its last note."""

LOCK_SECONDS = 2.0
"""How long to wait for another bridge that writes into the file."""

_LOCK_POLL_SECONDS = 0.02
_MARK = "\u2014 "
_UNGAPPED = re.compile(r"^(\u2014 .*\n)(?=[^\u2014\n])", re.MULTILINE)
_GAP = re.compile(r"\n{2,}")


def notes_in(text: str) -> list[str]:
    """The notes of a file, in their order; what is no whole note is left out, and no signature is looked at."""
    notes = []
    before = ""
    # Notes that somebody has put one after the other need no gap between.
    text = _UNGAPPED.sub(r"\1\n", text)
    for block in _GAP.split(text.strip("\n")):
        if block.startswith(_MARK) and before:
            notes.append(f"{before}\n\n{block}\n")
            before = ""
        else:
            # A text whose signatures never came is dropped with this.
            before = block
    return notes


async def publish_to_file(target: Target, note: str, source: Source) -> Published:
    """Add a note to a file, if the file's last one is of the same log, and its beginning.

    Raises:
        BridgeError: As `publish`.
    """
    assert target.file is not None  # noqa: S101 - the caller's choice

    def root_at(size: int) -> bytes | None:
        return anyio.from_thread.run(source.root_at, size)

    work = functools.partial(_add, target, target.file, note, root_at, source.last(target.id))
    try:
        with anyio.fail_after(target.timeout):
            # A storage that hangs keeps its thread; the bridge goes on.
            size = await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    except TimeoutError:
        raise _unusable(target, f"it has not answered in {target.timeout:g} s") from None
    except OSError as exc:
        raise _unusable(target, exc.strerror or str(exc)) from None
    return Published(target.id, size, note)


def _add(target: Target, path: Path, note: str, root_at: _RootAt, taken: int) -> int:
    checkpoint = checkpoint_of(note)
    flags = os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        if taken:
            raise _lost(target, taken, "isn't there") from None
        fd = os.open(path, flags | os.O_CREAT, 0o644)
        _sync_directory(path.parent)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _unusable(target, "it is no regular file")
        _lock(target, fd)
        size = os.fstat(fd).st_size
        # A first character may be cut in its middle: it is replaced, in a note that is cut as well.
        tail = os.pread(fd, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode(errors="replace")
        held = _check(target, tail, checkpoint, root_at, taken)
        if held >= checkpoint.size:
            return held
        gap = "" if not tail or tail.endswith("\n\n") else "\n" if tail.endswith("\n") else "\n\n"
        _write_all(fd, f"{gap}{note}\n".encode())
        os.fsync(fd)
        return checkpoint.size
    finally:
        os.close(fd)


def _check(target: Target, tail: str, checkpoint: Checkpoint, root_at: _RootAt, taken: int) -> int:
    """The size of the file's last checkpoint, which belongs to this log; 0 where the file has none."""
    notes = notes_in(tail)
    if not notes:
        begun = tail.startswith(checkpoint.origin) or checkpoint.origin.startswith(tail)
        if not begun or len(tail) == TAIL_BYTES:
            raise _foreign(target)
        if taken:
            raise _lost(target, taken, "is empty")
        return 0
    try:
        last = parse_checkpoint(notes[-1].partition("\n\n")[0] + "\n")
    except BridgeError:
        raise _foreign(target) from None
    if last.origin != checkpoint.origin:
        raise _foreign(target)
    root = root_at(last.size)
    if root is None:
        raise rolled_back(target, last.size, checkpoint)
    if root != last.root:
        raise conflict(
            target,
            f"The first {last.size} entries of the log {last.origin} are not those whose checkpoint the {target.id} "
            "holds: the log was rewritten.",
            last.size,
        )
    if last.size < taken:
        raise _lost(target, taken, f"ends with one of {last.size}")
    return last.size


def _lock(target: Target, fd: int) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise _unusable(target, "another process keeps it locked") from None
            time.sleep(_LOCK_POLL_SECONDS)
        except OSError as exc:
            # A file system without locks: one write that appends still can't tear another's note.
            if exc.errno not in {errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL}:
                raise
            return
        else:
            return


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Some file systems of others can't.
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


def _unusable(target: Target, why: str) -> BridgeError:
    return BridgeError(
        "publish_file_unusable",
        f"No checkpoint can be added to the {target.id}: {why}.",
        hint="Is the storage there, with room, and may this user write to it?",
        target=target.id,
    )


def _foreign(target: Target) -> BridgeError:
    return BridgeError(
        "publish_file_foreign",
        f"The {target.id} doesn't end with a checkpoint of this log.",
        hint="Name another file: each log has its own. Nothing was written.",
        target=target.id,
    )


def _lost(target: Target, taken: int, what: str) -> BridgeError:
    return BridgeError(
        "publish_file_lost",
        f"The {target.id} has held a checkpoint of {taken} entries, and it {what}.",
        hint="Is the storage mounted? If the file is lost, put a copy there, or name another file.",
        target=target.id,
        size=taken,
    )
