"""Files and directories that only this user can read, written so that neither a crash nor a power cut leaves a half."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY_BYTES = 32

_HINT = "See to the owner and mode of it and of its directory."


def private_directory(path: Path, *, durable: bool = False) -> Path:
    """Make a directory that only this user can enter.

    Args:
        path: The directory.
        durable: Whether its name, if it is new, has to be on the disk when this returns.

    Raises:
        BridgeError: `state_unusable`.
    """
    new = [made for made in (path, *path.parents) if durable and not made.exists()]
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for made in new:
            sync_directory(made.parent)
    except OSError as exc:
        raise BridgeError(
            "state_unusable",
            f"{path} can't be made: {exc.strerror}.",
            hint="Set MCP_BRIDGE_STATE_DIR to a directory that can be written.",
        ) from None
    return path


def write_private(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a file for this user alone, whole or not at all.

    Args:
        path: The file.
        data: What it shall hold.
        durable: Whether it has to be on the disk when this returns.

    Raises:
        OSError: As the system gives it; nothing is left of the new file.
    """
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.{time.monotonic_ns()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(fd)
        temporary.replace(path)
        if durable:
            sync_directory(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Have a file, which is made if it isn't there, to oneself among all processes; its descriptor, to read and write.

    Raises:
        OSError: As the system gives it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # A file system without locks has one bridge, or is at its users' risk.
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk.

    Raises:
        OSError: As the system gives it.
    """
    _sync(path, os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Have what is in a file on the disk. Its name is its directory's.

    Raises:
        OSError: As the system gives it.
    """
    _sync(path, os.O_NOFOLLOW)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def private_key(path: Path, lost: str, *, make: bool = True) -> bytes:
    """The random bytes in a file, which is made with them if it isn't there.

    Args:
        path: The file.
        lost: What is lost with the key, for the error's hint.
        make: Whether it may be made.

    Raises:
        BridgeError: `key_missing`; `key_unusable`: it can't be read or made, or isn't whole.
    """
    with suppress(FileExistsError):
        # Linked into its place: of several processes that make one at the same time, all read the same.
        fresh = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
        try:
            if make and not path.exists():
                write_private(fresh, os.urandom(KEY_BYTES), durable=True)
                os.link(fresh, path)
                sync_directory(path.parent)
        except OSError as exc:
            if isinstance(exc, FileExistsError):
                raise
            raise BridgeError("key_unusable", f"{path} can't be made: {exc.strerror}.", hint=_HINT) from None
        finally:
            fresh.unlink(missing_ok=True)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        key = path.read_bytes()
    except FileNotFoundError:
        raise BridgeError("key_missing", f"There is no {path}.", hint=f"Put it back from a copy. {lost}") from None
    except OSError as exc:
        raise BridgeError("key_unusable", f"{path} can't be read: {exc.strerror}.", hint=_HINT) from None
    if mode & 0o077:
        raise BridgeError(
            "key_unusable",
            f"{path} can be read or written by others (mode {mode:04o}).",
            hint=f"chmod 600 {path} mends it; somebody may have read it.",
        )
    if len(key) != KEY_BYTES:
        raise BridgeError("key_unusable", f"{path} is damaged.", hint=f"Put it back from a copy. {lost}")
    return key
