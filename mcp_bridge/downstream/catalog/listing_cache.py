"""A cache of tool listings on disk, for search and description of servers that aren't running."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mcp_bridge.atomic_files import write_private
from mcp_bridge.downstream.catalog.resource_tools import ResourceTool, resource_tools
from mcp_bridge.downstream.catalog.tools import ToolInfo, listing_from_wire
from mcp_bridge.errors import BridgeError
from mcp_bridge.large_json import dumps
from mcp_bridge.private_files import read_whole, state_directory

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

_FORMAT = 1

_encoder = json.JSONEncoder(separators=(",", ":"))

# Larger files weren't written by the bridge.
_FILE_BYTES = 64 * 1024 * 1024


class ListingStore:
    """One file for each server, named by the hash of its configuration. An invalid file counts as missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, key: str, server: str, server_alias: str) -> tuple[ToolInfo, ...] | None:
        """The tools stored under `key`, or None. An invalid file is deleted."""
        path = self._path(key)
        try:
            content = _read(path)
            own = listing_from_wire(server, server_alias, content["tools"]).tools
            return (*own, *resource_tools(server, server_alias, content.get("resource_tools", {})))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            logger.warning("discarding the cached listing %s: %r", path, error)
            with suppress(OSError):
                path.unlink()
            return None

    def size(self, key: str) -> int:
        """The size of the file stored under `key`, in bytes; 0 if there is none."""
        try:
            return self._path(key).stat().st_size
        except OSError:
            return 0

    def save(self, key: str, tools: tuple[ToolInfo, ...]) -> None:
        """Replace the tools stored under `key`; a write error is logged and otherwise ignored."""
        added = {tool.method: tool.name for tool in tools if isinstance(tool, ResourceTool)}
        content = {
            "format": _FORMAT,
            "tools": [_wire(tool) for tool in tools if not isinstance(tool, ResourceTool)],
            # The names alone, and apart: an earlier build reads the server's own tools, and nothing else.
            **({"resource_tools": added} if added else {}),
        }
        try:
            state_directory(self._directory.parent)
            self._directory.mkdir(exist_ok=True, mode=0o700)
            write_private(self._path(key), dumps(content, _encoder).encode())
        except (OSError, ValueError, BridgeError) as error:
            logger.warning("cannot cache a listing in %s: %r", self._directory, error)

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}.json"


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(read_whole(path, _FILE_BYTES))
    if content["format"] != _FORMAT or not isinstance(content["tools"], list):
        raise ValueError("another format")
    return content


def _wire(tool: ToolInfo) -> dict[str, Any]:
    wire: dict[str, Any] = {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
    if tool.title is not None:
        wire["title"] = tool.title
    if tool.output_schema is not None:
        wire["outputSchema"] = tool.output_schema
    if tool.annotations:
        wire["annotations"] = tool.annotations
    return wire
