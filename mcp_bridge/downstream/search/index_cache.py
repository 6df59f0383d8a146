"""Indexes on disk, each named by a hash of its tools: a bridge that starts again doesn't index again."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from mcp_bridge.atomic_files import write_private
from mcp_bridge.errors import BridgeError
from mcp_bridge.private_files import read_whole, state_directory

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

# A larger file wasn't written by the bridge.
_FILE_BYTES = 256 << 20

# Each set of servers has an index of its own; those that were written last are kept.
_KEPT = 4

_SUFFIX = ".bin"


class IndexStore:
    """Files in the state directory's `catalog`. What is in them is checked by who reads it.

    Args:
        directory: The directory.
        kind: What their names begin with.
    """

    def __init__(self, directory: Path, kind: str = "index") -> None:
        self._directory = directory
        self._prefix = f"{kind}-"

    def load(self, key: str) -> bytes | None:
        """The bytes stored under `key`, or None."""
        path = self._path(key)
        try:
            return read_whole(path, _FILE_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("cannot read the tool index %s: %r", path, error)
            return None

    def save(self, key: str, data: bytes) -> None:
        """Write bytes under `key`, and remove the oldest files; a write error is logged and otherwise ignored."""
        try:
            state_directory(self._directory.parent)
            self._directory.mkdir(exist_ok=True, mode=0o700)
            write_private(self._path(key), data)
            paths = self._directory.glob(f"{self._prefix}*{_SUFFIX}")
            for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns, reverse=True)[_KEPT:]:
                path.unlink(missing_ok=True)
        except (OSError, BridgeError) as error:
            logger.warning("cannot keep the tool index in %s: %r", self._directory, error)

    def discard(self, key: str) -> None:
        """Remove what is stored under `key`, which turned out to be no index."""
        path = self._path(key)
        logger.warning("the tool index %s is damaged or of another version: it is made again", path)
        with suppress(OSError):
            path.unlink()

    def _path(self, key: str) -> Path:
        return self._directory / f"{self._prefix}{key}{_SUFFIX}"
