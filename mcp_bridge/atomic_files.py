"""Files that are written whole or not at all, whatever ends the process or the machine meanwhile.

Each is for this user alone (mode 0600). None is made through a link that has its name. And how to see that a file was
replaced (`stamp`).
"""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO


def create_private(path: Path) -> BinaryIO:
    """Make a file and open it to be written.

    Raises:
        FileExistsError: Something has its name.
        OSError: The system call failed.
    """
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb")


def write_private(path: Path, data: bytes, *, durable: bool = False, temporary: Path | None = None) -> None:
    """Write a file, in the place of one that has its name.

    Args:
        path: The file.
        data: Its content.
        durable: Whether it has to be on the disk when this returns.
        temporary: Its name until it is whole, for a writer that holds a lock: what has that name was left by one that
            died, and is removed. A name of its own by default.

    Raises:
        OSError: The file can't be written; nothing is left of the new file.
    """
    if temporary is None:
        temporary = _temporary(path)
    else:
        temporary.unlink(missing_ok=True)
    try:
        _write(temporary, data, durable=durable)
        temporary.replace(path)
        if durable:
            sync_directory(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_new(path: Path, data: bytes) -> None:
    """Write a file that isn't there yet. It is on the disk when this returns.

    Of several processes that do so at the same time one succeeds, and the others can read what it has written.

    Raises:
        FileExistsError: Something has its name.
        OSError: The file can't be written; nothing is left of the new file.
    """
    temporary = _temporary(path)
    try:
        _write(temporary, data, durable=True)
        # A link alone: on a file system without links, a process that dies or reads in between would leave or find an
        # empty file.
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def rename_noreplace(old: Path, new: Path) -> None:
    """Rename a file within a file system. What has the new name already is never replaced.

    Raises:
        FileExistsError: Something has the new name.
        OSError: The rename failed. The file has one of the two names.
    """
    try:
        os.link(old, new)
    except OSError as exc:
        if exc.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}:
            raise
        # A file system without links, that of a memory stick for instance.
        create_private(new).close()
        old.replace(new)
    else:
        old.unlink()


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk.

    Raises:
        OSError: The system call failed.
    """
    _sync(path, os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Have a regular file's content on the disk. Its name is its directory's.

    Raises:
        OSError: It is no regular file, or the system call failed.
    """
    # Without waiting for what has become a FIFO.
    _sync(path, os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, regular=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name[:100]}.{os.getpid()}.{time.monotonic_ns()}")


def _write(path: Path, data: bytes, *, durable: bool) -> None:
    with create_private(path) as file:
        # Whatever the umask is.
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _sync(path: Path, flags: int, *, regular: bool = False) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        if regular and not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
        os.fsync(fd)
    finally:
        os.close(fd)


def stamp(path: Path) -> object:
    """A value that differs after a file was modified, replaced or removed."""
    try:
        status = path.stat()
    except OSError as exc:
        return exc.errno
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
