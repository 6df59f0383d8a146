"""Which processes use a store: each holds a lock on a file for as long as it lives.

Process ids wouldn't do: containers don't see each other's, and a bridge in a new container doesn't see those of the one
that it replaces. Locks are visible to all of them, as are those of SQLite's write-ahead log, whose users are on one
machine. The system releases the lock when the process ends, however that happens.

The file of a bridge that serves over HTTP has its port, by which other commands know its address.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import open_locked, try_lock
from mcp_bridge.private_files import private_directory

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "owners"
"""In the state directory."""

_PORT_DIGITS = 5
_PORTS = range(1, 1 << 16)


class Presence:
    """Marks this process as a user of a store, until `leave`.

    Args:
        directory: The state directory.
        owner: The process's label.

    Raises:
        BridgeError: `state_unusable`.
    """

    def __init__(self, directory: Path, owner: str) -> None:
        self._path = _path(directory, owner)
        private_directory(self._path.parent)
        try:
            self._fd = _locked(self._path)
            # Files of processes that were killed are removed.
            for other in self._path.parent.iterdir():
                if other != self._path:
                    _is_locked(other)
        except OSError as exc:
            raise BridgeError(
                "state_unusable",
                f"{exc.filename or self._path} can't be used: {exc.strerror}.",
                hint="See to the owner and mode of what is in the state directory.",
            ) from None

    def serve_at(self, port: int) -> None:
        """Record that this process serves MCP over HTTP at a port, for `http_ports`."""
        # What can't be written is missing there; the bridge serves all the same.
        with suppress(OSError):
            self._path.write_text(str(port), encoding="ascii")

    def leave(self) -> None:
        """Mark the process as gone."""
        try:
            # The same process may have another one. What isn't removed now, the next process removes.
            with suppress(OSError):
                if try_lock(self._fd):
                    _removed(self._path, self._fd)
        finally:
            os.close(self._fd)


def is_present(directory: Path, owner: str) -> bool:
    """Whether the process of a label uses the store. True also if that can't be found out.

    Args:
        directory: The state directory.
        owner: The label.
    """
    return _is_locked(_path(directory, owner))


def others(directory: Path, owner: str) -> bool:
    """Whether another process uses the store.

    Args:
        directory: The state directory.
        owner: This process's label.
    """
    own = _path(directory, owner)
    return own.parent.is_dir() and any(_is_locked(path) for path in own.parent.iterdir() if path != own)


def http_ports(directory: Path) -> tuple[int, ...]:
    """The ports at which the processes that use the store serve MCP over HTTP now."""
    return tuple(port for path in _files(directory) if (port := _port(path)) is not None)


def serves_since_before(directory: Path, seconds: float) -> bool:
    """Whether a process that uses the store has begun to serve MCP over HTTP before a time, and still does."""
    with suppress(OSError):
        # It has written its port once.
        return any(path.stat().st_mtime < seconds for path in _files(directory) if _port(path) is not None)
    return False


def _files(directory: Path) -> list[Path]:
    try:
        return sorted((directory / FOLDER).iterdir())
    except OSError:
        # No bridge was ever here, or it is somebody else's.
        return []


def _port(path: Path) -> int | None:
    """The port in a file that a process has locked. No file is removed: commands that change nothing ask, too."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        # Its bridge has just ended.
        return None
    try:
        text = os.read(fd, _PORT_DIGITS + 1)
        is_live = not try_lock(fd)
    except OSError:
        return None
    finally:
        os.close(fd)
    port = int(text) if is_live and text.isdigit() and len(text) <= _PORT_DIGITS else 0
    return port if port in _PORTS else None


def _path(directory: Path, owner: str) -> Path:
    return directory / FOLDER / hashlib.sha256(owner.encode(errors="surrogatepass")).hexdigest()[:32]


def _locked(path: Path) -> int:
    while True:
        # A process that checks holds it for an instant. Without locks, no process is ever taken for gone.
        fd = open_locked(path, shared=True)
        try:
            if _is_at(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        # Another process checked before there was a lock, and removed the file.
        os.close(fd)


def _is_locked(path: Path) -> bool:
    """Whether any process has a file locked. The file is removed if none has."""
    while True:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            if not try_lock(fd):
                return True
            if _removed(path, fd):
                return False
        except OSError:
            return True
        finally:
            os.close(fd)
        # It was removed and made again before it was checked.


def _removed(path: Path, fd: int) -> bool:
    """Remove a file that this process alone has locked; False if another is in its place by now.

    Raises:
        OSError: As the system gives it.
    """
    # Only the holder of the exclusive lock on the file that has the name may remove it.
    if not _is_at(path, fd):
        return False
    path.unlink()
    return True


def _is_at(path: Path, fd: int) -> bool:
    """Whether an open file is the one that has the name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
