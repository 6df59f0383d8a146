"""Tool listings on disk, so that servers that don't run can be searched and described."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mcp_bridge.atomic_files import write_private
from mcp_bridge.downstream.catalog.tools import ToolInfo, listing_from_wire
from mcp_bridge.errors import BridgeError
from mcp_bridge.large_json import dumps
from mcp_bridge.private_files import state_directory

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

_FORMAT = 1

_encoder = json.JSONEncoder(separators=(",", ":"))

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
            write_private(self._path(key), dumps(content, _encoder).encode())
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
