"""Tool listings on disk, so that servers that don't run can be searched and described."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from mcp_bridge.downstream.catalog.tools import ToolInfo, listing_from_wire
from mcp_bridge.errors import BridgeError
from mcp_bridge.private_files import state_directory

logger = logging.getLogger(__name__)

_FORMAT = 1

# A larger file is none of ours.
_FILE_BYTES = 64 * 1024 * 1024


class ListingStore:
    """One file a server, named by a hash of its configuration; any fault of a file only means that it isn't there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, key: str, server: str, server_alias: str) -> tuple[ToolInfo, ...] | None:
        """The tools stored under `key`, or None. A file that can't be understood is deleted."""
        path = self._path(key)
        try:
            return listing_from_wire(server, server_alias, _read(path)).tools
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            logger.warning("discarding the cached listing %s: %r", path, error)
            with suppress(OSError):
                path.unlink()
            return None

    def size(self, key: str) -> int:
        """Bytes of what is stored under `key`; 0 for nothing."""
        try:
            return self._path(key).stat().st_size
        except OSError:
            return 0

    def save(self, key: str, tools: tuple[ToolInfo, ...]) -> None:
        """Replace what is stored under `key`; a disk that refuses is logged and otherwise ignored."""
        content = {"format": _FORMAT, "tools": [_wire(tool) for tool in tools]}
        try:
            state_directory(self._directory.parent)
            self._directory.mkdir(exist_ok=True, mode=0o700)
            # mkstemp makes it 0600: descriptions may tell of private systems.
            descriptor, temporary = tempfile.mkstemp(dir=self._directory, prefix=".", suffix=".tmp")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    json.dump(content, file, separators=(",", ":"))
                Path(temporary).replace(self._path(key))
            except BaseException:
                with suppress(OSError):
                    Path(temporary).unlink()
                raise
        except (OSError, ValueError, BridgeError) as error:
            logger.warning("cannot cache a listing in %s: %r", self._directory, error)

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}.json"


def _read(path: Path) -> list[Any]:
    if path.stat().st_size > _FILE_BYTES:
        raise ValueError("too large")
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["format"] != _FORMAT or not isinstance(content["tools"], list):
        raise ValueError("another format")
    return content["tools"]


def _wire(tool: ToolInfo) -> dict[str, Any]:
    wire: dict[str, Any] = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
    if tool.title is not None:
        wire["title"] = tool.title
    if tool.output_schema is not None:
        wire["outputSchema"] = tool.output_schema
    if tool.annotations:
        wire["annotations"] = tool.annotations
    return wire
