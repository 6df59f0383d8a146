"""Configuration files of clients whose servers the bridge doesn't read: where they are, and the servers that they list.

`mcp-bridge doctor` shows them, so that a user who misses a server learns where it is configured. Only files in the home
directory are read: those in a folder require trust.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_bridge.downstream.configuration.self_reference import runs_the_bridge
from mcp_bridge.workspace.content import read_regular, why

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BYTES = 16 << 20
"""Size limit of a file; settings that include histories are smaller."""

_FILES = (
    ("Claude Desktop", ".config/Claude/claude_desktop_config.json", "mcpServers"),
    ("Claude Desktop", "Library/Application Support/Claude/claude_desktop_config.json", "mcpServers"),
    ("Codex", ".codex/config.toml", "mcp_servers"),
    ("Cursor", ".cursor/mcp.json", "mcpServers"),
    ("Gemini CLI", ".gemini/settings.json", "mcpServers"),
    ("opencode", ".config/opencode/opencode.json", "mcp"),
    ("opencode", ".config/opencode/opencode.jsonc", "mcp"),
    ("VS Code", ".config/Code/User/mcp.json", "servers"),
    ("VS Code", "Library/Application Support/Code/User/mcp.json", "servers"),
    ("Windsurf", ".codeium/windsurf/mcp_config.json", "mcpServers"),
    ("Zed", ".config/zed/settings.json", "context_servers"),
)
"""Clients, their files in the home directory, and the keys of their servers."""

_WITH_COMMENTS = frozenset({"opencode", "VS Code", "Zed"})
"""Clients whose files may extend JSON, for example by comments: a file that isn't JSON is not reported as invalid."""


@dataclass(frozen=True, slots=True)
class OtherClient:
    """A configuration file of another client.

    Attributes:
        client: The client's name.
        file: The file's path.
        servers: The names of its servers, without this bridge.
        problem: What is wrong with the file, or None.
    """

    client: str
    file: Path
    servers: tuple[str, ...] = ()
    problem: str | None = None


def other_clients(home: Path) -> list[OtherClient]:
    """The other clients' files that list servers or can't be read."""
    clients = []
    for client, place, key in _FILES:
        file = home / place
        try:
            data = read_regular(file, _MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as exc:
            clients.append(OtherClient(client, file, problem=f"can't be read: {why(exc)}"))
            continue
        try:
            servers = _servers(data, client, file.suffix == ".toml", key)
        except (ValueError, RecursionError) as exc:
            clients.append(OtherClient(client, file, problem=f"isn't valid: {exc}"))
            continue
        if servers:
            clients.append(OtherClient(client, file, servers))
    return clients


def _servers(data: bytes, client: str, toml: bool, key: str) -> tuple[str, ...]:  # noqa: FBT001
    """The names of the servers in a file.

    Raises:
        ValueError: The file is invalid.
    """
    text = data.decode("utf-8-sig")
    table: Any
    if toml:
        table = tomllib.loads(text)
    elif client in _WITH_COMMENTS:
        try:
            table = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
        except ValueError:
            return ()
    else:
        table = json.loads(text)
    servers = table.get(key) if isinstance(table, dict) else None
    if not isinstance(servers, dict):
        return ()
    return tuple(str(name) for name, entry in servers.items() if not _is_the_bridge(entry))


def _is_the_bridge(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    command, args = entry.get("command"), entry.get("args", [])
    words = [*(command if isinstance(command, list) else [command]), *(args if isinstance(args, list) else [])]
    return bool(words) and all(isinstance(word, str) for word in words) and runs_the_bridge(words[0], words[1:])
