"""What `mcp-bridge install` changes in a client's file and in our configuration."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from mcp_bridge import settings
from mcp_bridge.cli import configuration_loading
from mcp_bridge.cli.configuration_edits.client_permissions import why_not_started
from mcp_bridge.cli.configuration_edits.installation_records import Installation, hash_of
from mcp_bridge.cli.configuration_edits.server_entries import bridge_entry, own_command, refuse_bad_name
from mcp_bridge.cli.configuration_edits.take_over import (
    Change,
    entries_at,
    folder_with_bridge,
    local_servers,
    move_servers,
    servers_elsewhere,
    servers_path,
)
from mcp_bridge.downstream.configuration.client_file_reading import all_settings
from mcp_bridge.downstream.configuration.discovery import (
    command_line,
    is_another_bridge,
    is_the_bridge,
    starts_the_bridge,
)
from mcp_bridge.errors import BridgeError
from mcp_bridge.server import tool_description

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mcp_bridge.cli.configuration_edits.file_edits import ConfigurationFile
    from mcp_bridge.downstream.configuration.known_clients import Client, ClientName


_PROGRAM = re.compile(r"mcp[-_](?:code[-_])?bridge(?:[@=\[].*)?")


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Attributes:
        client: The client.
        folder: The folder whose file is meant; None for the user's.
        name: What the bridge is to be called there.
        take_over: Whether to move the client's other servers behind the bridge.
        yes: Whether to skip the question.
        config: The configuration that the bridge is to be started with, or None for the usual.
    """

    client: ClientName
    folder: Path | None
    name: str
    take_over: bool
    yes: bool
    config: Path | None


def planned(
    client: Client, file: ConfigurationFile, kept: Installation | None, request: Request, configured: settings.Settings
) -> Change:
    """The changes of the client's file and of our configuration.

    An entry of the bridge that is there already, with a command or over HTTP, stays as it is, unless the program that
    it starts is gone. If the client wouldn't start any, nothing is changed: what a person has switched off stays off.
    One for this folder alone will do, unless servers are taken over. Another bridge stays the client's: its token is
    for that.

    Args:
        client: The client.
        file: Its file, as it is; it gets the changes.
        kept: What an earlier installation has recorded, or None.
        request: What is asked for.
        configured: The bridge's settings.

    Raises:
        BridgeError: `bad_argument`: the name is bad; `server_exists`; `bad_client_config`: the client wouldn't start
            the bridge; as `move_servers`.
    """
    refuse_bad_name(request.name)
    address = configuration_loading.own_address(configured)
    servers = servers_path(client, file)
    entries = entries_at(file, servers)
    present = [name for name, entry in entries.items() if is_the_bridge(entry, address, os.environ)]
    started = [name for name in present if starts_the_bridge(entries[name])]
    others = [name for name in entries if name not in present and not is_another_bridge(entries[name], os.environ)]
    if kept is None:
        record = Installation(client.name, str(file.target), was_there=file.old is not None or bool(present))
    else:
        record = kept
        if file.old is None or kept.sha256 != hash_of(file.old):
            # What somebody has changed since would be lost, if the file were given back as it was.
            record.original, record.was_there = None, True
    change = Change(file, record, begins=kept is None and not present)
    if request.folder is not None and not file.target.is_relative_to(request.folder.resolve()):
        # Whoever made the folder chose what is written to.
        change.notes.append(f"{file.path} leads out of the folder: {file.target} is changed.")
    command, args = own_command()
    entry = bridge_entry(client.name, command, [*args, *(("--config", str(request.config)) if request.config else ())])
    # What is taken over is gone from every folder, so the bridge has to be in each.
    is_for_one = request.folder is None and not request.take_over and not present
    only = folder_with_bridge(client, file, Path.cwd(), address) if is_for_one else None
    if only is not None:
        change.notes.append(f"{client.title} has the bridge for {only[0]} alone, and no other is added.")
    elif not present:
        if request.name in entries:
            raise BridgeError(
                "server_exists",
                f"{file.path} has another server of the name {request.name!r}.",
                hint="Choose another with --name.",
            )
        file.set((*servers, request.name), entry)
    elif started and not _can_be_started(entries[started[0]]):
        # It was upgraded or moved. What else its entry has is the user's, such as the configuration that it names.
        mended = (
            entry if request.config else bridge_entry(client.name, command, [*args, *_arguments(entries[started[0]])])
        )
        file.set((*servers, started[0]), entries[started[0]] | mended)
    relied_on = only[1] if only is not None else entries_at(file, servers)
    names = [*relied_on] if only is not None else present or [request.name]
    _refuse_if_not_used(client, file, {name: relied_on[name] for name in names}, tool_description.names(configured))
    change.notes += [
        f"{name!r} stays with {client.title}: it is another bridge, with a token for {client.title}."
        for name in entries
        if request.take_over and name not in present and name not in others
    ]
    if request.folder is not None:
        return change
    here, elsewhere = local_servers(client, file, Path.cwd(), address)
    if request.take_over:
        start = entries_at(file, servers)[started[0]] if started else None
        move_servers(client, others, here, change, _configuration(file, start, request.config))
    elif kept_ones := list(dict.fromkeys([*others, *(name for entries in here.values() for name in entries)])):
        change.notes.append(
            f"{client.title} keeps its other servers ({configuration_loading.listed(kept_ones)}) and shows their tools"
            f" to its model; `mcp-bridge install {client.name} --take-over` moves them behind the bridge."
        )
    change.notes += servers_elsewhere(elsewhere, f"install {client.name} --take-over", "moves")
    return change


def _configuration(file: ConfigurationFile, entry: Any, asked: Path | None) -> Path:
    """The configuration of the bridge that the client starts: servers that were moved to another would be lost.

    Args:
        file: The client's file.
        entry: The entry that was there; None if the bridge is added, or is reached over HTTP.
        asked: That of `--config`.

    Raises:
        BridgeError: `bad_client_config`.
    """
    if entry is None:
        return asked or settings.user_file()
    words = [*_arguments(entry), ""]
    named = next((words[at + 1] for at, word in enumerate(words) if word == "--config"), None)
    named = next((word.partition("=")[2] for word in words if word.startswith("--config=")), named)
    used = settings.user_file() if named is None else Path(named)
    if used.is_absolute() and (asked is None or asked.resolve() == used.resolve()):
        return used
    said = f"with {named}" if named is not None else "without --config"
    raise BridgeError(
        "bad_client_config",
        f"{file.path} starts the bridge {said}, so the servers can't be moved to"
        f" {asked or 'its configuration: that path depends on the folder'}. Nothing was written.",
        hint="Write the whole path of the configuration into that entry, and run the command again.",
        file=str(file.path),
    )


def _refuse_if_not_used(
    client: Client, file: ConfigurationFile, entries: Mapping[str, Any], tools: Collection[str]
) -> None:
    """Refuse to rely on entries of the bridge that the client doesn't start, or of whose tools it shows none.

    Raises:
        BridgeError: `bad_client_config`.
    """
    settings = all_settings(client, file.path, file.content, Path.home(), os.environ)
    reasons = [why_not_started(client, name, entry, settings, tools) for name, entry in entries.items()]
    if None not in reasons:
        raise BridgeError(
            "bad_client_config",
            f"{file.path}: {client.title} wouldn't use the bridge: {reasons[0]}. Nothing was written.",
            hint=f"Allow {next(iter(entries))!r} there, and run the command again.",
            file=str(file.path),
        )


def _can_be_started(entry: Any) -> bool:
    """Whether the program of the bridge's entry is still there."""
    return shutil.which(command_line(entry)[0]) is not None


def _arguments(entry: Any) -> list[str]:
    """What the bridge's entry starts the bridge with; nothing where that is in a text for a shell."""
    words = command_line(entry)
    places = [
        at
        for at, word in enumerate(words)
        if not word.startswith("-") and _PROGRAM.fullmatch(PurePath(word).name) and words[at - 1 : at] != ["--config"]
    ]
    # What a package runner is told comes before the program.
    return words[places[-1] + 1 :] if places else []
