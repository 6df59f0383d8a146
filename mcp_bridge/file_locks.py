"""Advisory locks on whole files (flock). The system releases them when their holder dies, however that happens.

A file that is locked must not be replaced by another of its name: the lock is on the file, not on the name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_POLL_SECONDS = 0.001
"""About as long as a transaction of the ledger takes, the shortest time for which a lock is held."""


WITHOUT_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})
"""Error numbers of a file system that has no locks, or whose server of locks doesn't answer."""


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting; False if another process has it locked.

    Raises:
        OSError: As the system gives it; its file system may have no locks.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def has_no_record_locks(directory: Path) -> bool:
    """Whether a directory is on a file system without the locks that SQLite takes; False if nobody can tell.

    Of a file of its own: to close one takes away the locks that another part of this process has on it.
    """
    try:
        # With a name, for a moment: not every file system has files without one.
        descriptor, name = tempfile.mkstemp(prefix=".locks-", dir=directory)
    except OSError:
        # That says nothing of locks.
        return False
    with suppress(OSError):
        Path(name).unlink()
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in WITHOUT_LOCKS
    finally:
        os.close(descriptor)
    return False


def lock(fd: int, *, seconds: float, shared: bool = False) -> bool:
    """Lock an open file; False if other processes keep it locked for `seconds`.

    Raises:
        OSError: As `try_lock`.
    """
    deadline = time.monotonic() + seconds
    while not try_lock(fd, shared=shared):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def unlock(fd: int) -> None:
    """Release the lock on an open file.

    Raises:
        OSError: The system call failed.
    """
    fcntl.flock(fd, fcntl.LOCK_UN)


@contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[int]:
    """Hold the lock on a file, which is made if it isn't there. Gives its descriptor, to read and write.

    Raises:
        OSError: The system call failed.
    """
    fd = open_locked(path, shared=shared)
    try:
        yield fd
    finally:
        os.close(fd)


def open_locked(path: Path, *, shared: bool = False) -> int:
    """Open a file, which is made if it isn't there, and wait for its lock. Closing the descriptor releases it.

    Raises:
        OSError: The system call failed.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # A file system without locks has one bridge, or is at its users' risk.
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def locked_directory(path: Path) -> Iterator[bool]:
    """Hold the lock on a directory; False, at once, if another process holds it.

    Raises:
        OSError: As the system gives it: the directory can't be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        is_ours = True
        # A file system without locks has one user, or is at its users' risk.
        with suppress(OSError):
            is_ours = try_lock(fd)
        yield is_ours
    finally:
        os.close(fd)
