"""Which processes use a store: each has a file locked for as long as it lives.

A process is told by its id where ids can be looked up. A container's neighbours can't look up each other's, nor can a
bridge in a new container those of the one that it replaces; a lock they see all the same, as they do those of SQLite's
write-ahead log, which has its users on one machine. The system takes the lock away when its process ends, however.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.private_files import private_directory

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "owners"
"""In the state directory."""


class Presence:
    """A process that uses a store, until `leave`.

    Args:
        directory: The state directory.
        owner: What the process calls itself.

    Raises:
        BridgeError: `state_unusable`.
    """

    def __init__(self, directory: Path, owner: str) -> None:
        self._path = _path(directory, owner)
        private_directory(self._path.parent)
        try:
            self._fd = _locked(self._path)
            # Of those who were killed.
            for other in self._path.parent.iterdir():
                if other != self._path:
                    _is_locked(other)
        except OSError as exc:
            raise BridgeError(
                "state_unusable",
                f"{exc.filename or self._path} can't be used: {exc.strerror}.",
                hint="See to the owner and mode of what is in the state directory.",
            ) from None

    def leave(self) -> None:
        """The process no longer uses it."""
        try:
            # Of the same process there may be another; what isn't removed now is removed by the next who comes.
            with suppress(OSError):
                _remove_unlocked(self._path, self._fd)
        finally:
            os.close(self._fd)


def is_present(directory: Path, owner: str) -> bool:
    """Whether a process that calls itself so uses the store; also, where there is no telling.

    Args:
        directory: The state directory.
        owner: What it calls itself.
    """
    return _is_locked(_path(directory, owner))


def others(directory: Path, owner: str) -> bool:
    """Whether another process uses a store.

    Args:
        directory: The state directory.
        owner: What this one calls itself.
    """
    own = _path(directory, owner)
    return own.parent.is_dir() and any(_is_locked(path) for path in own.parent.iterdir() if path != own)


def _path(directory: Path, owner: str) -> Path:
    return directory / FOLDER / hashlib.sha256(owner.encode(errors="surrogatepass")).hexdigest()[:32]


def _locked(path: Path) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Whoever looks has it for an instant. On a file system without locks nobody can be taken for gone.
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_SH)
            if _is_at(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        # Somebody has looked before there was a lock, and removed it.
        os.close(fd)


def _is_locked(path: Path) -> bool:
    """Whether anybody has a file locked; it is removed if not."""
    while True:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            if _remove_unlocked(path, fd):
                return False
        except OSError:
            return True
        finally:
            os.close(fd)
        # It was removed, and made by somebody else, before it was looked at.


def _remove_unlocked(path: Path, fd: int) -> bool:
    """Remove a file that nobody else has locked; False if another is in its place by now.

    Raises:
        OSError: Somebody has it locked; or as the system gives it.
    """
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Who has the only lock of what is at a path is the only one who may remove it.
    if not _is_at(path, fd):
        return False
    path.unlink()
    return True


def _is_at(path: Path, fd: int) -> bool:
    """Whether a file that is open is the one at a path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
