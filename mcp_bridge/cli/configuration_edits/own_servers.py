"""`mcp-bridge servers add`, `remove` and `import`: servers in the bridge's own configuration."""

from __future__ import annotations

import os
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_bridge import escaping, settings
from mcp_bridge.cli import configuration_loading, exit_statuses, terminal_output, terminal_prompts
from mcp_bridge.cli.configuration_edits.file_edits import ConfigurationFile
from mcp_bridge.cli.configuration_edits.installation_records import Installations
from mcp_bridge.cli.configuration_edits.server_entries import (
    NotTransferableError,
    as_table,
    fixed_problem,
    not_carried_over,
    refuse_bad_name,
)
from mcp_bridge.cli.configuration_edits.take_over import local_servers, refuse_switched_off, servers_elsewhere
from mcp_bridge.downstream.configuration import client_file_reading
from mcp_bridge.downstream.configuration.client_file_reading import all_settings
from mcp_bridge.downstream.configuration.discovery import is_another_bridge, is_the_bridge
from mcp_bridge.downstream.configuration.known_clients import program_of
from mcp_bridge.downstream.configuration.own_entries import spec_from_toml
from mcp_bridge.downstream.http.hidden_credentials import plain_credentials
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.downstream.configuration.known_clients import Client, ClientName
    from mcp_bridge.downstream.configuration.self_reference.addresses import OwnAddress

Table = dict[str, Any]


def add(loaded: settings.Loaded, config: Path | None, name: str, table: Table) -> int:
    """Write a `[servers.NAME]` table; return the exit status.

    Raises:
        BridgeError: `bad_argument`: the name is bad; `bad_config`: the table is invalid; `server_exists`; as
            `ConfigurationFile.write`.
    """
    refuse_bad_name(name)
    path = config or settings.user_file()
    # An error of the file's comes before one of the server's.
    ConfigurationFile(path, "toml")
    spec = spec_from_toml(name, table, "the command line")
    if (wrong := fixed_problem(spec)) is not None:
        raise BridgeError("bad_argument", f"{name!r} can't be added: {wrong}", hint="`mcp-bridge servers add --help`.")
    with Installations(loaded.settings.state_dir).turn():
        file = ConfigurationFile(path, "toml")
        if (existing := file.member("servers", name)) is not None:
            if existing == table:
                terminal_output.echo(escaping.escape_line(f"{file.path} has it already."))
                return exit_statuses.OK
            raise BridgeError(
                "server_exists",
                f"{file.path} has another server of the name {name!r}.",
                hint=f"`mcp-bridge servers remove {name}` removes it.",
            )
        file.set(("servers", name), table)
        status = _written(loaded, file)
    if spec.openapi is not None and not spec.openapi.is_remote and not Path(spec.openapi.location).exists():
        terminal_output.echo(escaping.escape_line(f"There is no {spec.openapi.location} yet."))
    for header in plain_credentials(spec.headers):
        terminal_output.echo(
            escaping.escape_line(
                f"The header {header} is in the file as it is. To keep it apart, put it into the environment and write "
                "${NAME}, or keep it with `mcp-bridge secret set NAME` and write vault://secret/NAME."
            )
        )
    return status


def remove(loaded: settings.Loaded, config: Path | None, name: str) -> int:
    """Remove a `[servers.NAME]` table; return the exit status.

    Raises:
        BridgeError: `server_not_configured`; as `ConfigurationFile.write`.
    """
    path = config or settings.user_file()
    ConfigurationFile(path, "toml")
    with Installations(loaded.settings.state_dir).turn():
        file = ConfigurationFile(path, "toml")
        if file.member("servers", name) is None:
            raise BridgeError(
                "server_not_configured",
                f"{file.path} has no server of the name {name!r}.",
                hint="`mcp-bridge servers list` says which file has it.",
            )
        file.remove(("servers", name))
        return _written(loaded, file)


def import_(
    loaded: settings.Loaded, config: Path | None, client_name: ClientName, names: Sequence[str], *, yes: bool
) -> int:
    """Copy a client's servers, ask, and write them; return the exit status. The client's file stays as it is.

    Raises:
        BridgeError: `server_not_configured`: the client has no such server; `not_asked`; `bad_client_config`; as
            `ConfigurationFile.write`.
    """
    client = program_of(client_name)
    with ExitStack() as held:
        if yes:
            held.enter_context(Installations(loaded.settings.state_dir).turn())
        return _imported(loaded, ConfigurationFile(config or settings.user_file(), "toml"), client, names, yes=yes)


def _imported(
    loaded: settings.Loaded, file: ConfigurationFile, client: Client, names: Sequence[str], *, yes: bool
) -> int:
    """As `import_`, into a configuration. With `yes` the turn is taken, else it is once a person has said so."""
    theirs = ConfigurationFile(client.user_path(Path.home(), os.environ), client.syntax)
    entries, only_for, notes = _entries_of(client, theirs, configuration_loading.own_address(loaded.settings), names)
    if missing := [name for name in names if name not in entries]:
        raise BridgeError(
            "server_not_configured",
            f"{theirs.path} has no server of the name {missing[0]!r}.",
            hint=f"Name some of: {', '.join(entries)}."
            if entries
            else "`mcp-bridge doctor` says which clients have any.",
        )
    added: Table = {}
    settings = all_settings(client, theirs.path, theirs.content, Path.home(), os.environ)
    for name in names or entries:
        try:
            table = as_table(client, name, entries[name], settings)
            only = [only_for[name]] if name in only_for else None
            refuse_switched_off(client, name, table, theirs.content, only)
        except NotTransferableError as exc:
            notes.append(f"{name!r} is left out: {exc}")
            continue
        existing = added.get(name, file.member("servers", name))
        if existing is None:
            added[name] = table
            notes += not_carried_over(client, name, entries[name])
            if name in only_for:
                notes.append(f"{name!r} is for {only_for[name]} alone, and will be there in every folder.")
        elif existing != table:
            notes.append(f"{name!r} is left out: {file.path} has another server of this name.")
    file.set_all(("servers",), added)
    for line in (*file.diff(), *notes):
        terminal_output.echo(escaping.escape_line(line))
    if not file.is_changed:
        terminal_output.echo(escaping.escape_line(f"There is nothing to import from {theirs.path}."))
        return exit_statuses.OK
    refusal = BridgeError(
        "not_asked",
        "Nothing was written: there is no terminal to ask in.",
        hint=f"Write `mcp-bridge servers import {client.name} --yes`.",
    )
    if not yes and not terminal_prompts.confirm("Write this?", refusal):
        terminal_output.echo_err("mcp-bridge: nothing was written.")
        return exit_statuses.REFUSED
    # What only the user could read in the client's file stays so.
    mode = theirs.target.stat().st_mode & 0o777 if file.old is not None else 0o600
    with nullcontext() if yes else Installations(loaded.settings.state_dir).turn():
        return _written(loaded, file, mode=mode, shown=True)


def _entries_of(
    client: Client, theirs: ConfigurationFile, address: OwnAddress, names: Sequence[str]
) -> tuple[Table, dict[str, str], list[str]]:
    """A client's entries that can be copied.

    Args:
        client: The client.
        theirs: Its file.
        address: Where this bridge serves over HTTP, if it does.
        names: Those that are asked for by name. Another bridge is copied only so: its token was given to the client.

    Returns:
        The entries by name; the folder that an entry is for, if that is this one alone; and what else there is to know.
    """
    problems: list[client_file_reading.Problem] = []
    contents = client_file_reading.user_contents(client, Path.home(), os.environ, problems)
    found = client_file_reading.user_entries(client, contents, problems)
    entries = {
        name: entry
        for name, (entry, _) in found.items()
        if not is_the_bridge(entry, address, os.environ) and (name in names or not is_another_bridge(entry, os.environ))
    }
    here, elsewhere = local_servers(client, theirs, Path.cwd(), address, names)
    notes = servers_elsewhere(elsewhere, f"servers import {client.name}", "copies")
    only_for: dict[str, str] = {}
    for folder, local in here.items():
        for name, entry in local.items():
            if name not in entries:
                entries[name], only_for[name] = entry, folder
            elif entries[name] != entry:
                notes.append(f"{name!r} of {folder} alone is left out: there is another of this name for every folder.")
    return entries, only_for, notes


def _written(loaded: settings.Loaded, file: ConfigurationFile, *, mode: int | None = None, shown: bool = False) -> int:
    installations = Installations(loaded.settings.state_dir)
    installations.prepare()
    for line in () if shown else file.diff():
        terminal_output.echo(escaping.escape_line(line))
    file.write(installations.backups, mode=mode)
    terminal_output.echo(escaping.escape_line(f"Written: {file.path}."))
    return exit_statuses.OK
