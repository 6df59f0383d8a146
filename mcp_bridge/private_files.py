"""Files and directories that only this user can read: whose they are, their modes, and keys in them."""

from __future__ import annotations

import errno
import logging
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from mcp_bridge.atomic_files import sync_directory, write_new
from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import has_no_record_locks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

logger = logging.getLogger(__name__)

KEY_BYTES = 32

READ_ONLY_HINT = "Mount it writable, or set MCP_BRIDGE_STATE_DIR to a directory that can be written."
"""For the error about a read-only file system, which no owner and no mode mends."""

LOCKS_HINT = "Put the state directory on a local file system (MCP_BRIDGE_STATE_DIR), or have its locks switched on."

_HINT = "See to the owner and mode of it and of its directory."


_OTHERS = 0o077

_OWN = frozenset(
    {
        *("checkpoint.key", "ledger.sqlite", "master.key", "references.key", "witness.sqlite"),
        *("image-build.lock", ".secrets.json.lock", ".logins.json.lock"),
    }
)
"""Some of what is in a state directory, by which one is known that a version has left open to others."""

_NOBODYS = frozenset({"lost+found"})


def state_directory(path: Path, *, durable: bool = False) -> Path:
    """Make the state directory, or make sure of it: it is this user's, and nobody else can enter it.

    Of one that others can enter, that is taken from them, if it holds nothing or something of ours.

    Args:
        path: The directory.
        durable: Whether its name, if it is new, has to be on the disk when this returns.

    Raises:
        BridgeError: `state_unusable`: it can't be made or read; `state_unsafe`: it is somebody else's, or others can
            enter it and it is to be feared that they have to.
    """
    made = _directory(path, durable=durable)
    try:
        if made.is_symlink() and made.lstat().st_uid not in {os.geteuid(), 0}:
            # Whoever it belongs to may lead it elsewhere at any time.
            raise _unsafe(made, f"is a link of the user id {made.lstat().st_uid}", "Remove it.")
        # Of what is open: what has that name may change meanwhile.
        fd = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _make_private(made, fd)
        finally:
            os.close(fd)
    except OSError as exc:
        raise _unusable(made, exc) from None
    return made


def _make_private(path: Path, fd: int) -> None:
    """Take a directory from everybody else."""
    status = os.fstat(fd)
    _refuse_others(path, status)
    mode = stat.S_IMODE(status.st_mode)
    if not mode & _OTHERS:
        return
    there = set(os.listdir(fd)) - _NOBODYS
    if mode & stat.S_ISVTX or (there and not there & _OWN and not any(name.startswith("probe-") for name in there)):
        raise _unsafe(
            path,
            f"can be entered by others (mode {mode:04o}), and holds what isn't this program's",
            f"Name a directory of its own (state_dir, MCP_BRIDGE_STATE_DIR). If it is meant: chmod 700 {path}",
        )
    try:
        os.fchmod(fd, mode & ~_OTHERS)
    except OSError as exc:
        why = f"can be entered by others (mode {mode:04o}), and that can't be changed: {exc.strerror}"
        raise _unsafe(path, why, f"chmod 700 {path} mends it.") from None
    if stat.S_IMODE(os.fstat(fd).st_mode) & _OTHERS:
        # A file system without modes says yes to everything.
        raise _unsafe(path, f"can be entered by others (mode {mode:04o}), and that can't be changed", _MOVE)
    logger.warning("%s could be entered by others (mode %04o), and can't any more", path, mode)


def private_file(path: Path) -> None:
    """Make sure of a file in the state directory: it is this user's, and nobody else can read or write it.

    By its name: to open and close a file takes the locks away that another part of this process has on it.

    Raises:
        BridgeError: `state_unsafe`.
        OSError: As the system gives it; there is none.
    """
    status = path.stat()
    _refuse_others(path, status)
    mode = stat.S_IMODE(status.st_mode)
    if mode & _OTHERS:
        with suppress(OSError):
            path.chmod(mode & ~_OTHERS)
        if stat.S_IMODE(path.stat().st_mode) & _OTHERS:
            raise _unsafe(path, f"can be read or written by others (mode {mode:04o})", f"chmod 600 {path} mends it.")
        logger.warning("%s could be read or written by others (mode %04o), and can't any more", path, mode)


def private_database(path: Path) -> None:
    """As `private_file`, for a database and what SQLite keeps beside it, which has its mode from it.

    Raises:
        BridgeError: `state_unsafe`.
    """
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        with suppress(FileNotFoundError):
            private_file(path.with_name(name))


def _refuse_others(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        why = f"belongs to the user id {status.st_uid}, and this process runs as {os.geteuid()}"
        raise _unsafe(path, why, "Run as that user, or set MCP_BRIDGE_STATE_DIR to a directory of this one.")


_MOVE = "Set MCP_BRIDGE_STATE_DIR to a directory on a file system that keeps modes."


def _unsafe(path: Path, why: str, hint: str) -> BridgeError:
    return BridgeError("state_unsafe", f"{path} {why}.", hint=hint)


def _unusable(path: Path, exc: OSError) -> BridgeError:
    hint = "Set MCP_BRIDGE_STATE_DIR to a directory that can be written."
    return BridgeError(
        "state_unusable",
        f"{path} can't be made: {exc.strerror}.",
        hint=READ_ONLY_HINT if exc.errno == errno.EROFS else hint,
    )


def is_on_read_only(path: Path) -> bool:
    """Whether a file or directory is on a file system that is mounted read-only; False if nobody can tell."""
    with suppress(OSError):
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    return False


def require_writable(path: Path) -> None:
    """Refuse a state directory on a file system that is read-only or has no locks, for work that writes in it.

    Raises:
        BridgeError: `state_unusable`.
    """
    if is_on_read_only(path):
        raise BridgeError("state_unusable", f"{path} is on a read-only file system.", hint=READ_ONLY_HINT)
    if has_no_record_locks(path):
        raise BridgeError("state_unusable", f"{path} is on a file system without file locks.", hint=LOCKS_HINT)


def private_directory(path: Path, *, durable: bool = False) -> Path:
    """Make a directory in the state directory, that only this user can enter.

    Args:
        path: The directory.
        durable: Whether its name, if it is new, has to be on the disk when this returns.

    Raises:
        BridgeError: `state_unusable`.
    """
    return _directory(path, durable=durable)


def _directory(path: Path, *, durable: bool) -> Path:
    try:
        new = [made for made in (path, *path.parents) if not made.exists()]
        # One by one: `parents` would make those above with the mode that the umask leaves.
        for made in reversed(new[1:]):
            made.mkdir(mode=0o700, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        for made in new if durable else ():
            sync_directory(made.parent)
    except OSError as exc:
        raise _unusable(path, exc) from None
    return path


@contextmanager
def opened_regular(path: Path | str, folder: int | None = None) -> Iterator[BufferedReader]:
    """A regular file, opened to be read: through no link, and without waiting for what has become a FIFO.

    Args:
        path: The file.
        folder: The opened folder that it is relative to; None for the working directory.

    Raises:
        OSError: It is no regular file, or can't be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        with os.fdopen(fd, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(fd)


def read_whole(path: Path, most: int) -> bytes:
    """The content of a regular file; links to it are followed, and nothing waits for what is a FIFO.

    Args:
        path: The file.
        most: Most bytes that it may have.

    Raises:
        OSError: It is no regular file, has more bytes, or can't be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return data


def private_key(path: Path, lost: str, *, make: bool = True) -> bytes:
    """The random bytes in a file, which is made with them if it isn't there.

    Args:
        path: The file.
        lost: What is lost with the key, for the error's hint.
        make: Whether it may be made.

    Raises:
        BridgeError: `key_missing`; `key_unusable`: it can't be read or made, or isn't whole.
    """
    if make and not path.exists():
        try:
            # Of several processes that make one at the same time, all read the same.
            with suppress(FileExistsError):
                write_new(path, os.urandom(KEY_BYTES))
        except OSError as exc:
            raise BridgeError("key_unusable", f"{path} can't be made: {exc.strerror}.", hint=_HINT) from None
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        key = read_whole(path, KEY_BYTES)
    except FileNotFoundError:
        raise BridgeError("key_missing", f"There is no {path}.", hint=f"Put it back from a copy. {lost}") from None
    except OSError as exc:
        if exc.errno == errno.EFBIG:
            raise _damaged_key(path, lost) from None
        raise BridgeError("key_unusable", f"{path} can't be read: {exc.strerror}.", hint=_HINT) from None
    if mode & 0o077:
        raise BridgeError(
            "key_unusable",
            f"{path} can be read or written by others (mode {mode:04o}).",
            hint=f"chmod 600 {path} mends it; somebody may have read it.",
        )
    if len(key) != KEY_BYTES:
        raise _damaged_key(path, lost)
    return key


def _damaged_key(path: Path, lost: str) -> BridgeError:
    return BridgeError("key_unusable", f"{path} is damaged.", hint=f"Put it back from a copy. {lost}")
