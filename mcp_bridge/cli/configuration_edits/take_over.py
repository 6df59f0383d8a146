"""Take-over: a client's other servers are moved behind the bridge, and put back when it is removed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_bridge.cli.configuration_edits.file_edits import ConfigurationFile
from mcp_bridge.cli.configuration_edits.server_entries import NotTransferableError, as_table
from mcp_bridge.downstream.configuration.client_file_reading import is_group
from mcp_bridge.downstream.configuration.discovery import starts_the_bridge
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_bridge.cli.configuration_edits.installation_records import Installation
    from mcp_bridge.downstream.configuration.known_clients import Client


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


def move_servers(client: Client, names: list[str], servers: tuple[str, ...], change: Change, config: Path) -> None:
    """Move servers from the client's file into our configuration."""
    own = ConfigurationFile(config, "toml")
    change.record.config = str(config)
    for name in names:
        entry = change.file.member(*servers, name)
        try:
            table = as_table(client, name, entry, change.file.content)
        except NotTransferableError as exc:
            change.notes.append(f"{name!r} stays with {client.title}: {exc}")
            continue
        existing = own.member("servers", name)
        if existing is not None and existing != table:
            change.notes.append(f"{name!r} stays with {client.title}: {config} has another server of this name.")
            continue
        if existing is None:
            own.set(("servers", name), table)
            change.record.tables[name] = table
        change.record.entries[name] = entry
        change.file.remove((*servers, name))
    change.config = own


def put_back(client: Client, change: Change) -> None:
    """Remove the bridge's entry, and put back the servers that were moved, into a file that has been changed since."""
    file, servers = change.file, servers_path(client, change.file)
    entries = entries_of(client, file)
    for name, entry in entries.items():
        if starts_the_bridge(entry):
            file.remove((*servers, name))
    for name, entry in change.record.entries.items():
        if name in entries:
            change.notes.append(f"{name!r} is in {file.path} again already, and stays as it is there.")
        else:
            file.set((*servers, name), entry)


def servers_path(client: Client, file: ConfigurationFile) -> tuple[str, ...]:
    """The keys that lead to the servers, in the format that the file is in."""
    if client.name == "opencode" and is_group(file.member(*client.servers, "servers")):
        return (*client.servers, "servers")
    return client.servers


def entries_of(client: Client, file: ConfigurationFile) -> dict[str, Any]:
    """The entries of a client's file by name.

    Raises:
        BridgeError: `bad_client_config`: they aren't an object.
    """
    servers = servers_path(client, file)
    found = file.member(*servers)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BridgeError(
            "bad_client_config",
            f"{file.path}: {'.'.join(servers)} is not an object. Nothing was written.",
            hint="Mend it, for its client.",
            file=str(file.path),
        )
    return dict(found)
