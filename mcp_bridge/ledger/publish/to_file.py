"""Checkpoints in a file on other storage: one note after the other, with an empty line between two.

The file only grows, and others may be able to add to it. So every note in it that a key of the log has signed has to be
the log's, wherever it stands, and what is anything else is passed over: what a crash has left of a note, for instance.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import stat
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import anyio

from mcp_bridge.atomic_files import sync_directory
from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import WITHOUT_LOCKS, lock
from mcp_bridge.ledger.proofs.note_files import CarriedOver
from mcp_bridge.ledger.proofs.notes import MAX_SIGNATURES, keyring, parse_checkpoint
from mcp_bridge.ledger.proofs.signing import ID_BYTES, MARK, SIGNATURE_BYTES, decode_base64
from mcp_bridge.ledger.publish.protocol import Published, checkpoint_of, conflict, rolled_back
from mcp_bridge.ledger.publish.storage_thread import run_in_loop, run_on_storage_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, Sequence
    from pathlib import Path

    from mcp_bridge.ledger.proofs.notes import Checkpoint
    from mcp_bridge.ledger.proofs.signing import Verifier
    from mcp_bridge.ledger.publish.protocol import Source
    from mcp_bridge.ledger.publish.targets import Target

logger = logging.getLogger(__name__)

CHUNK_BYTES = 256 << 10
"""Notes of a file that are read and compared with the log at once."""

LOCK_SECONDS = 2.0
"""How long to wait for another bridge that writes into the file."""

_READING_SHARE = 0.8
"""Share of a target's time-out for reading and comparing; the rest is for the write."""

_TAIL_BYTES = 4096
_HEAD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class FileRead:
    """How far a process has compared a file with the log; it continues from there.

    That is enough. What was read agreed with the log that had `held`'s root, so it agrees with every log that has it.

    Attributes:
        file: The file's device and inode.
        offset: The position, in bytes.
        tail: The content before it.
        carried: The content that may still become a note.
        held: The largest checkpoint that a key of the log has signed.
        foreign: Whether there is a note of another log.
    """

    file: tuple[int, int]
    offset: int = 0
    tail: bytes = b""
    carried: CarriedOver = CarriedOver()  # noqa: RUF009 - a tuple
    held: Checkpoint | None = None
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class _Log:
    """The log that a file is compared with, for the thread that reads the file.

    Attributes:
        origin: The log's name.
        keys: Its current and former keys, by name and id.
        roots: As `Source.roots`.
    """

    origin: str
    keys: Mapping[tuple[str, bytes], Verifier]
    roots: Callable[[Sequence[int]], Sequence[bytes | None]]


async def publish_to_file(
    target: Target, note: str, source: Source, reads: MutableMapping[str, FileRead] | None = None
) -> Published:
    """Append a note to a file, if all checkpoints there that the log's keys have signed agree with the log.

    Args:
        target: Names the file.
        note: The log's signed checkpoint.
        source: The log.
        reads: How far this process has read each file, by target id; updated. Without it the whole file is read.

    Raises:
        BridgeError: As `publish`.
    """
    assert target.file is not None  # the caller's choice

    loop = asyncio.get_running_loop()

    def roots(sizes: Sequence[int]) -> Sequence[bytes | None]:
        return run_in_loop(loop, source.roots(sizes))

    log = _Log(checkpoint_of(note).origin, keyring(await source.keys()), roots)
    # A rotation's checkpoint is signed by the old key, too. That signature detects a log that was rolled back to before
    # the rotation, and doesn't know the new key.
    notes = [*await source.rotations(), note]
    work = functools.partial(
        _add, target, target.file, notes, log, source.last(target.id), {} if reads is None else reads
    )
    try:
        with anyio.fail_after(target.timeout):
            # Storage that hangs keeps its thread; the bridge continues, and can exit.
            size = await run_on_storage_thread(target.file, work)
    except TimeoutError:
        raise _unusable(target, f"it has not answered in {target.timeout:g} s") from None
    except OSError as exc:
        raise _unusable(target, exc.strerror or str(exc)) from None
    return Published(target.id, size, note)


async def look_at_file(target: Target, source: Source) -> int:
    """The size of the largest checkpoint in a file, after comparing all of them with the log; 0 if there is none.

    Nothing is written, and no lock is taken: what is being written is looked at as far as it has come.

    Args:
        target: Names the file.
        source: The log.

    Raises:
        BridgeError: As `publish`.
    """
    assert target.file is not None  # the caller's choice

    loop = asyncio.get_running_loop()

    def roots(sizes: Sequence[int]) -> Sequence[bytes | None]:
        return run_in_loop(loop, source.roots(sizes))

    checkpoint = checkpoint_of(await source.newest())
    log = _Log(checkpoint.origin, keyring(await source.keys()), roots)
    work = functools.partial(_look, target, target.file, log, checkpoint, source.last(target.id))
    try:
        with anyio.fail_after(target.timeout):
            return await run_on_storage_thread(target.file, work)
    except TimeoutError:
        raise _unusable(target, f"it has not answered in {target.timeout:g} s") from None
    except OSError as exc:
        raise _unusable(target, exc.strerror or str(exc)) from None


def _look(target: Target, path: Path, log: _Log, checkpoint: Checkpoint, taken: int) -> int:
    deadline = time.monotonic() + target.timeout * _READING_SHARE
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        _may_begin(target, path, taken)
        return 0
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise _a_link(target) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _unusable(target, "it is no regular file")
        held = _held(target, fd, log, checkpoint, {}, deadline)
    finally:
        os.close(fd)
    if held < taken:
        raise _lost(target, taken, f"holds none over {held}" if held else "holds none")
    return held


def _add(
    target: Target, path: Path, notes: Sequence[str], log: _Log, taken: int, reads: MutableMapping[str, FileRead]
) -> int:
    deadline = time.monotonic() + target.timeout * _READING_SHARE
    checkpoint = checkpoint_of(notes[-1])
    fd = _open(target, path, taken)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _unusable(target, "it is no regular file")
        _lock(target, fd)
        held = _held(target, fd, log, checkpoint, reads, deadline)
        if held < taken:
            raise _lost(target, taken, f"holds none over {held}" if held else "holds none")
        if held >= checkpoint.size:
            return held
        new = [note for note in notes if held < checkpoint_of(note).size <= checkpoint.size]
        size = os.fstat(fd).st_size
        end = os.pread(fd, 2, max(0, size - 2))
        # An earlier version ended the file with an empty line.
        gap = "" if not size or end == b"\n\n" else "\n" if end.endswith(b"\n") else "\n\n"
        _write_all(fd, (gap + "\n".join(new)).encode())
        os.fsync(fd)
        return checkpoint.size
    finally:
        os.close(fd)


def _open(target: Target, path: Path, taken: int) -> int:
    """Open the file; create it if it never existed. Doesn't follow a link, which others may redirect."""
    flags = os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            _may_begin(target, path, taken)
        try:
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            # Another bridge was quicker.
            return os.open(path, flags)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise _a_link(target) from None
        raise
    with contextlib.suppress(OSError):
        # Some network file systems don't support it.
        sync_directory(path.parent)
    return fd


def _may_begin(target: Target, path: Path, taken: int) -> None:
    """Check that a file that isn't there may be begun.

    Raises:
        BridgeError: `publish_file_lost`; `publish_file_unusable`: its folder isn't there either.
    """
    if taken:
        raise _lost(target, taken, "isn't there")
    if not path.parent.is_dir():
        raise _unusable(target, f"there is no folder {path.parent}", "Mount its storage, or correct the path.")


def _held(
    target: Target,
    fd: int,
    log: _Log,
    checkpoint: Checkpoint,
    reads: MutableMapping[str, FileRead],
    deadline: float,
) -> int:
    """The size of the file's largest checkpoint that the log has signed; 0 if there is none.

    Raises:
        BridgeError: An alarm; `publish_file_foreign`; `publish_file_unusable`: there was no time to read all of it.
    """
    read = _resumed(fd, reads.get(target.id))
    if read.held is not None:
        _check(target, log, checkpoint, replace(read, held=None), [_Note(read.held, "", signed=True)])
    while True:
        data = os.pread(fd, CHUNK_BYTES, read.offset)
        notes, carried = read.carried.and_then(data)
        # The file's end may be a complete note. It is read again when more follows.
        parsed, foreign = _parsed(log, notes if data else carried.last())
        read = replace(
            _check(target, log, checkpoint, read, parsed),
            offset=read.offset + len(data),
            tail=(read.tail + data)[-_TAIL_BYTES:],
            carried=carried if data else read.carried,
            foreign=read.foreign or foreign,
        )
        reads[target.id] = read
        if not data:
            break
        if time.monotonic() > deadline:
            raise _unusable(
                target,
                f"{read.offset} of its {os.fstat(fd).st_size} bytes were compared with the log, and there was "
                "no time for more",
                "The next attempt continues from there. If it comes often, set a longer `timeout` or name "
                "another file.",
            )
    if read.held is not None:
        return read.held.size
    head, begin = os.pread(fd, _HEAD_BYTES, 0), f"{log.origin}\n".encode()
    # Perhaps a first note that a crash has truncated.
    if read.foreign or not (head.startswith(begin) or begin.startswith(head)):
        raise _foreign(target)
    return 0


def _resumed(fd: int, read: FileRead | None) -> FileRead:
    """How far the file was read, if it is still the same file."""
    status = os.fstat(fd)
    file = (status.st_dev, status.st_ino)
    if read is not None and read.file == file:
        begin = read.offset - len(read.tail)
        if os.pread(fd, len(read.tail), begin) == read.tail:
            return read
    return FileRead(file)


class _Note(NamedTuple):
    """A note of the log's name.

    Attributes:
        checkpoint: Its checkpoint.
        text: The note.
        signed: Whether a key of the log has signed it; None if that is unknown.
    """

    checkpoint: Checkpoint
    text: str
    signed: bool | None = None


def _parsed(log: _Log, notes: Sequence[bytes]) -> tuple[list[_Note], bool]:
    """The notes with the log's name, and whether there are others."""
    parsed = []
    for data in notes:
        note = data.decode(errors="replace")
        with contextlib.suppress(BridgeError):
            checkpoint = parse_checkpoint(note.partition("\n\n")[0] + "\n")
            if checkpoint.origin == log.origin:
                parsed.append(_Note(checkpoint, note))
    return parsed, len(parsed) < len(notes)


def _check(target: Target, log: _Log, checkpoint: Checkpoint, read: FileRead, notes: Sequence[_Note]) -> FileRead:
    """Compare notes with the log; returns the largest that its keys have signed.

    That one follows another which is larger is no sign of anything: genuine notes can be copied.
    """
    if read.held is None:
        _check_begun(target, log, notes)
    # The checkpoints read so far agree with the log.
    notes = [note for note in notes if note.checkpoint != read.held]
    sizes = sorted({note.checkpoint.size for note in notes})
    roots = dict(zip(sizes, log.roots(sizes), strict=True)) if sizes else {}
    others = [note for note in notes if note.checkpoint.root != roots[note.checkpoint.size]]
    signed = [note.checkpoint for note in others if _is_signed(log, note)]
    if len(signed) < len(others):
        logger.warning(
            "the %s holds %d checkpoints under this log's name that are not of it, and that none of its keys has "
            "signed: they are passed over",
            target.id,
            len(others) - len(signed),
        )
    for one in signed:
        if roots[one.size] is not None:
            raise conflict(
                target,
                f"The first {one.size} entries of the log {one.origin} are not those whose checkpoint the {target.id} "
                "holds: the log was rewritten.",
                one.size,
            )
    if signed:
        raise rolled_back(target, max(one.size for one in signed), checkpoint)
    held = read.held
    for note in sorted(notes, key=lambda note: note.checkpoint.size, reverse=True):
        if held is not None and note.checkpoint.size <= held.size:
            break
        if note.checkpoint.root == roots[note.checkpoint.size] and _is_signed(log, note):
            held = note.checkpoint
            break
    return replace(read, held=held)


def _check_begun(target: Target, log: _Log, notes: Sequence[_Note]) -> None:
    """Raise an alarm if the file's first note under the log's name is by a key that the log doesn't name.

    The log's word for what its keys are is that of whoever has rewritten it; nobody who only adds can be first.
    """
    for note in notes:
        if _is_signed(log, note):
            return
        names = {(name, signature[:ID_BYTES]) for name, signature in _signatures(note)}
        # A note without signatures was truncated by a crash.
        if names and names.isdisjoint(log.keys):
            raise conflict(
                target,
                f"The {target.id} was begun under the name of the log {log.origin} by a key that this log doesn't "
                "name: it is another log.",
                note.checkpoint.size,
            )


def _is_signed(log: _Log, note: _Note) -> bool:
    """Whether a note has a valid signature by a key of the log. An invalid one may be appended, and is ignored."""
    if note.signed is not None:
        return note.signed
    text = note.text.partition("\n\n")[0] + "\n"
    for name, signature in _signatures(note):
        key = log.keys.get((name, signature[:ID_BYTES]))
        with contextlib.suppress(BridgeError):
            # A replaced key isn't valid for later checkpoints: somebody who has it can't cause an alarm.
            if key is not None and key.may_sign(note.checkpoint.size):
                key.verify(text, signature[ID_BYTES:])
                return True
    return False


def _signatures(note: _Note) -> list[tuple[str, bytes]]:
    """The signatures of a note: the keys' names, and the bytes.

    Invalid ones are ignored: a crash may have truncated them, or somebody may have appended them.
    """
    signatures = []
    for line in note.text.partition("\n\n")[2].split("\n")[:MAX_SIGNATURES]:
        name, _, encoded = line.removeprefix(MARK).partition(" ")
        signature = decode_base64(encoded)
        if line.startswith(MARK) and signature is not None and len(signature) >= ID_BYTES + SIGNATURE_BYTES:
            signatures.append((name, signature))
    return signatures


def _lock(target: Target, fd: int) -> None:
    try:
        if not lock(fd, seconds=LOCK_SECONDS):
            raise _unusable(target, "another process keeps it locked")
    except OSError as exc:
        # A file system without locks: a single appending write still doesn't tear another note.
        if exc.errno not in WITHOUT_LOCKS:
            raise


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _unusable(
    target: Target, why: str, hint: str = "Is the storage there, with room, and may this user write to it?"
) -> BridgeError:
    return BridgeError("publish_file_unusable", f"The {target.id} can't be used: {why}.", hint=hint, target=target.id)


def _a_link(target: Target) -> BridgeError:
    return _unusable(target, "it is a symbolic link", "Name the file that it points to.")


def _foreign(target: Target) -> BridgeError:
    return BridgeError(
        "publish_file_foreign",
        f"The {target.id} holds something else than checkpoints of this log.",
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
