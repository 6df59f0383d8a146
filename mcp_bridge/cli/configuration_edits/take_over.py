"""Take-over: a client's other servers are moved behind the bridge, and put back when it is removed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_bridge.cli.configuration_edits.client_permissions import lost_protection, why_switched_off
from mcp_bridge.cli.configuration_edits.file_edits import ConfigurationFile
from mcp_bridge.cli.configuration_edits.server_entries import (
    NotTransferableError,
    as_table,
    not_carried_over,
    refuse_unusable,
)
from mcp_bridge.cli.configuration_loading import listed
from mcp_bridge.downstream.configuration import client_file_reading
from mcp_bridge.downstream.configuration.client_file_reading import all_settings, is_group, merged
from mcp_bridge.downstream.configuration.discovery import is_another_bridge, is_the_bridge, is_this_bridge
from mcp_bridge.downstream.configuration.git_root import claude_code_projects
from mcp_bridge.downstream.configuration.own_entries import spec_from_toml
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mcp_bridge.cli.configuration_edits.installation_records import Installation
    from mcp_bridge.downstream.configuration.known_clients import Client
    from mcp_bridge.downstream.configuration.self_reference.addresses import OwnAddress

Table = dict[str, Any]


@dataclass(slots=True)
class Change:
    """The changes that are to be shown and made.

    Attributes:
        file: The client's file.
        config: Our configuration, if it changes.
        record: What is kept of the installation.
        begins: Whether this is the first change, of a file that the bridge wasn't in.
        notes: What else there is to know, one line each.
    """

    file: ConfigurationFile
    record: Installation
    begins: bool = False
    config: ConfigurationFile | None = None
    notes: list[str] = field(default_factory=list)


def move_servers(client: Client, names: list[str], local: Mapping[str, Table], change: Change, config: Path) -> None:
    """Move servers from the client's file into our configuration.

    Args:
        client: The client.
        names: Those that are for every folder.
        local: Those that are for one folder alone, by its key in the client's file.
        change: Gets the changes.
        config: Our configuration.
    """
    own = ConfigurationFile(config, "toml")
    change.record.config = str(config)
    # Each file is edited at the end, once: an edit takes the time of the whole file.
    added: Table = {}
    # Those for every folder first: one for a single folder doesn't take the name of one that is there everywhere.
    servers = servers_path(client, change.file)
    settings = all_settings(client, change.file.path, change.file.content, Path.home(), os.environ)
    gone = {servers: [name for name in names if _move(client, (*servers, name), own, added, change, settings)]}
    for folder, entries in local.items():
        path = _local_path(folder)
        gone[path] = [name for name in entries if _move(client, (*path, name), own, added, change, settings)]
        for name in gone[path]:
            change.record.local.setdefault(folder, {})[name] = entries[name]
            change.notes.append(f"{name!r} was for {folder} alone, and will be there in every folder.")
    change.record.entries |= {name: change.file.member(*servers, name) for name in gone[servers]}
    own.set_all(("servers",), added)
    for path, moved in gone.items():
        change.file.remove_all(path, moved)
    change.config = own


def _move(
    client: Client,
    path: tuple[str, ...],
    own: ConfigurationFile,
    added: Table,
    change: Change,
    settings: Sequence[Table],
) -> bool:
    """Whether one server can be in our configuration; adds it to what is added there, unless it is there."""
    name = path[-1]
    try:
        _refuse_a_part(client, name, change.file)
        table = as_table(client, name, change.file.member(*path), settings)
        refuse_unusable(name, table)
        refuse_switched_off(client, name, table, change.file.content, path[1:2] if path[0] == "projects" else None)
    except NotTransferableError as exc:
        change.notes.append(f"{name!r} stays with {client.title}: {exc}")
        return False
    existing = added.get(name, own.member("servers", name))
    if existing is not None and existing != table:
        change.notes.append(f"{name!r} stays with {client.title}: {own.path} has another server of this name.")
        return False
    if existing is None:
        added[name] = table
        change.record.tables[name] = table
    change.notes += not_carried_over(client, name, change.file.member(*path))
    change.notes += lost_protection(client, name, change.file.member(*path), reduce(merged, settings), own.path)
    return True


def _refuse_a_part(client: Client, name: str, file: ConfigurationFile) -> None:
    """Refuse a server of which another of the user's files has a part, which would be left there alone.

    Raises:
        NotTransferableError: It has.
    """
    contents = client_file_reading.user_contents(client, Path.home(), os.environ, []) if client.merges else []
    for path, content in contents:
        if path != file.path and name in client_file_reading.entries(client, content, path, []):
            raise NotTransferableError(f"{path} has a part of it, too.")


def refuse_switched_off(
    client: Client, name: str, table: Table, content: Mapping[str, Any], folders: Collection[str] | None
) -> None:
    """Refuse a server of Claude Code's that it doesn't start, since our configuration is for every folder.

    Args:
        client: The client; others have no such switch, or one that moves along.
        name: The server's name.
        table: Its table of our configuration.
        content: Claude Code's file.
        folders: The folders that the server is for, as keys in it; None for all.

    Raises:
        NotTransferableError: It doesn't, in one of them.
    """
    if client.name != "claude-code":
        return
    if (wrong := why_switched_off(spec_from_toml(name, table, "the configuration"), content, folders)) is not None:
        raise NotTransferableError(f"it {wrong}.")


def put_back(client: Client, change: Change, address: OwnAddress) -> None:
    """Remove the bridge's entries, and put back the servers that were moved, into a file that has been changed since.

    What only has a bridge's token stays: it may be another bridge's, whose token would be lost.

    Args:
        client: The client.
        change: Gets the changes.
        address: Where this bridge serves over HTTP, if it does.
    """
    file, servers = change.file, servers_path(client, change.file)
    folders = claude_code_projects(Path.cwd()) if client.name == "claude-code" else []
    present = {servers: entries_at(file, servers)}
    present |= {_local_path(folder): _entries_for(file, folder, must_be_whole=False) for folder in folders}
    for path, entries in present.items():
        file.remove_all(path, [name for name, entry in entries.items() if is_this_bridge(entry, address)])
    moved = [(servers, change.record.entries)]
    moved += [(_local_path(folder), entries) for folder, entries in change.record.local.items()]
    for path, entries in moved:
        now = entries_at(file, path)
        change.notes += [
            f"{name!r} is in {file.path} again already, and stays as it is there." for name in entries if name in now
        ]
        file.set_all(path, {name: entry for name, entry in entries.items() if name not in now})


def servers_path(client: Client, file: ConfigurationFile) -> tuple[str, ...]:
    """The keys that lead to the servers, in the format that the file is in."""
    if client.name == "opencode" and is_group(file.member(*client.servers, "servers")):
        return (*client.servers, "servers")
    return client.servers


def _local_path(folder: str) -> tuple[str, ...]:
    """The keys that lead to the servers of one folder in Claude Code's file."""
    return ("projects", folder, "mcpServers")


def local_servers(
    client: Client, file: ConfigurationFile, cwd: Path, address: OwnAddress, names: Collection[str] = ()
) -> tuple[dict[str, Table], dict[str, Table]]:
    """The entries of Claude Code's local scope, each for one folder alone, without bridges: what it adds by default.

    Args:
        client: The client; others have no such scope.
        file: Its file.
        cwd: The working directory.
        address: Where this bridge serves over HTTP, if it does.
        names: Those that are asked for by name, which may be another bridge.

    Returns:
        Those of the working directory, and those of other folders: by the folder's key in the file, and by name.

    Raises:
        BridgeError: `bad_client_config`: those of the working directory aren't objects.
    """
    projects = file.member("projects") if client.name == "claude-code" else None
    here: dict[str, Table] = {}
    elsewhere: dict[str, Table] = {}
    keys = claude_code_projects(cwd)
    for folder in projects if isinstance(projects, dict) else ():
        found = {
            name: entry
            for name, entry in _entries_for(file, folder, must_be_whole=folder in keys).items()
            if not is_the_bridge(entry, address, os.environ)
            and (name in names or not is_another_bridge(entry, os.environ))
        }
        if found:
            (here if folder in keys else elsewhere)[folder] = found
    return here, elsewhere


def folder_with_bridge(
    client: Client, file: ConfigurationFile, cwd: Path, address: OwnAddress
) -> tuple[str, dict[str, Any]] | None:
    """The folder for which Claude Code's local scope has entries of this bridge that count in the working directory.

    Raises:
        BridgeError: As `local_servers`.
    """
    for folder in claude_code_projects(cwd) if client.name == "claude-code" else ():
        entries = _entries_for(file, folder, must_be_whole=True).items()
        if found := {name: entry for name, entry in entries if is_the_bridge(entry, address, os.environ)}:
            return folder, found
    return None


def _entries_for(file: ConfigurationFile, folder: str, *, must_be_whole: bool) -> dict[str, Any]:
    """The entries of one folder in Claude Code's file; none, if they are broken and needn't be whole.

    Raises:
        BridgeError: `bad_client_config`: they aren't an object, and must be.
    """
    path = _local_path(folder)
    return entries_at(file, path) if must_be_whole or isinstance(file.member(*path), dict) else {}


def servers_elsewhere(elsewhere: Mapping[str, Table], command: str, does: str) -> list[str]:
    """What is said of servers of other folders, which a command leaves where they are."""
    folders = [f"{folder} ({listed(list(entries))})" for folder, entries in elsewhere.items()]
    if not folders:
        return []
    said = f"Claude Code has servers for other folders alone, which stay there: {listed(folders)}."
    return [f"{said} `mcp-bridge {command}` {does} those of the folder that it is run in."]


def entries_at(file: ConfigurationFile, path: tuple[str, ...]) -> dict[str, Any]:
    """The entries of a client's file that are at these keys, by name.

    Raises:
        BridgeError: `bad_client_config`: they aren't an object.
    """
    found = file.member(*path)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BridgeError(
            "bad_client_config",
            f"{file.path}: {'.'.join(path)} is not an object. Nothing was written.",
            hint="Mend it, for its client.",
            file=str(file.path),
        )
    return dict(found)
