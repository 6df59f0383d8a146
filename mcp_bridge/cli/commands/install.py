"""`mcp-bridge install CLIENT`: the bridge's entry in a client's file, and the client's servers behind the bridge."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from mcp_bridge import escaping, settings
from mcp_bridge.cli import exit_statuses, terminal_output, terminal_prompts
from mcp_bridge.cli.configuration_edits.file_edits import ConfigurationFile
from mcp_bridge.cli.configuration_edits.installation_records import Installation, Installations, hash_of
from mcp_bridge.cli.configuration_edits.planned_changes import planned
from mcp_bridge.cli.configuration_edits.take_over import Change, put_back
from mcp_bridge.cli.configuration_loading import own_address
from mcp_bridge.downstream.configuration.known_clients import CLIENTS, program_of
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.cli.configuration_edits.planned_changes import Request
    from mcp_bridge.downstream.configuration.known_clients import Client


GEMINI_TRUST = (
    "Gemini CLI starts it only in folders that you trust there (`/permissions trust`): in any other, `gemini mcp list` "
    "shows it as Disabled."
)


def install(loaded: settings.Loaded, request: Request) -> int:
    """Show the change of a client's file, ask, and make it; return the exit status.

    Raises:
        BridgeError: `bad_argument`, `bad_client_config`, `client_file_changed`, `server_exists`, `not_asked`,
            `state_unusable`, `state_unsafe`.
    """
    client = program_of(request.client)
    if request.take_over and request.folder is not None:
        raise BridgeError(
            "bad_argument",
            "A folder's file is for everybody who has the folder, and its servers stay in it.",
            hint=f"Write `mcp-bridge install {client.name} --take-over` for your own servers.",
        )
    installations = Installations(loaded.settings.state_dir)
    with _Turn(installations, request) as turn:
        file = ConfigurationFile(_file_of(client, request.folder), client.syntax)
        change = planned(client, file, installations.load(file.target), request, loaded.settings)
        if not _show(change):
            terminal_output.echo(
                escaping.escape_line(f"{client.title} has the bridge already: {file.path} stays as it is.")
            )
            return exit_statuses.OK
        if not request.yes and not _confirm("Write this?", f"mcp-bridge install {client.name} --yes"):
            terminal_output.echo_err("mcp-bridge: nothing was written.")
            return exit_statuses.REFUSED
        turn.take_for(change)
        if change.config is not None and change.config.is_changed:
            # First: a server that is in both places is one for the bridge, and one that is in neither would be lost.
            source_mode = 0o600 if file.old is None else file.target.stat().st_mode & 0o777
            change.config.write(installations.backups, mode=source_mode if change.config.old else 0o600)
        # Before the client's file loses its servers, which our configuration may have had already.
        installations.save(change.record)
        # A folder's new file is for everybody who has the folder.
        mode = 0o644 if request.folder is not None and file.old is None else None
        backup = file.write(installations.backups, mode=mode)
        if change.begins and backup is not None:
            change.record.original = str(backup)
        change.record.sha256 = hash_of(file.new)
        installations.save(change.record)
    terminal_output.echo(escaping.escape_line(f"Written: {file.path}. Restart {client.title}."))
    if client.name == "gemini" and file.member("security", "folderTrust", "enabled") is not False:
        terminal_output.echo(GEMINI_TRUST)
    _name_backup(backup)
    return exit_statuses.OK


def uninstall(loaded: settings.Loaded, request: Request) -> int:
    """Show what takes an installation back, ask, and do it; return the exit status.

    Raises:
        BridgeError: As `install`.
    """
    client = program_of(request.client)
    installations = Installations(loaded.settings.state_dir)
    with _Turn(installations, request) as turn:
        file = ConfigurationFile(_file_of(client, request.folder), client.syntax)
        kept = installations.load(file.target)
        change = Change(file, kept or Installation(client.name, str(file.target)))
        original = change.record.original_bytes(file.old)
        if original is not None:
            file.replace(original)
        else:
            put_back(client, change, own_address(loaded.settings))
        heirs = _take_back_tables(change, installations)
        if not _show(change):
            if kept is not None:
                turn.take_for(change)
                _forget(installations, file.target, heirs)
            said = f"{client.title} doesn't have the bridge: {file.path} stays as it is."
            terminal_output.echo(escaping.escape_line(said))
            return exit_statuses.OK
        hint = f"mcp-bridge install {client.name} --uninstall --yes"
        if not request.yes and not _confirm("Write this?", hint):
            terminal_output.echo_err("mcp-bridge: nothing was written.")
            return exit_statuses.REFUSED
        turn.take_for(change)
        backup = None
        if original is not None and not change.record.was_there:
            file.remove_file()
        else:
            backup = file.write(installations.backups)
        if change.config is not None and change.config.is_changed:
            change.config.write(installations.backups)
        _forget(installations, file.target, heirs)
    terminal_output.echo(escaping.escape_line(f"Taken back: {file.path}. Restart {client.title}."))
    _name_backup(backup)
    return exit_statuses.OK


class _Turn:
    """The turn among the commands that change these files: from the beginning, or once a person has said yes.

    Args:
        installations: The records.
        request: What is asked for. Nobody is asked with `yes`.
    """

    def __init__(self, installations: Installations, request: Request) -> None:
        self._installations = installations
        self._is_first = request.yes
        self._seen: list[Installation] = []
        self._held = ExitStack()

    def __enter__(self) -> Self:
        if self._is_first:
            self._held.enter_context(self._installations.turn())
        else:
            self._seen = self._installations.all([])
        return self

    def take_for(self, change: Change) -> None:
        """Take the turn, unless it is taken.

        Raises:
            BridgeError: `client_file_changed`: another program has changed what the change was planned from.
        """
        if self._is_first:
            return
        self._held.enter_context(self._installations.turn())
        for file in (change.file, change.config):
            if file is not None:
                file.refuse_change()
        if self._installations.all([]) != self._seen:
            raise BridgeError(
                "client_file_changed",
                "Another command has installed the bridge, or taken it back, meanwhile; nothing was written.",
                hint="Run the command again.",
            )

    def __exit__(self, *_: object) -> None:
        self._held.close()


def _take_back_tables(change: Change, installations: Installations) -> list[Installation]:
    """Remove from our configuration what was moved there, unless another client's installation relies on it.

    Returns:
        The records of such clients, to be saved: the last of them takes the servers along.
    """
    heirs: dict[str, Installation] = {}
    if not change.record.tables or change.record.config is None:
        return []
    config = change.config = ConfigurationFile(Path(change.record.config), "toml")
    others = installations.others(change.file.target, config.path, change.notes)
    gone: list[str] = []
    for name, table in change.record.tables.items():
        now = config.member("servers", name)
        if now is not None and now != table:
            change.notes.append(f"{name!r} stays in {config.path}, too: it has been changed there.")
        elif now is not None and (heir := next((other for other in others if other.has(name)), None)) is not None:
            heir.tables[name] = table
            heirs[heir.file] = heir
            change.notes.append(f"{name!r} stays in {config.path}: {CLIENTS[heir.client].title} relies on it.")
        elif now is not None:
            gone.append(name)
    config.remove_all(("servers",), gone)
    return list(heirs.values())


def _forget(installations: Installations, file: Path, heirs: list[Installation]) -> None:
    """Remove the record of an installation, after what it leaves to others is kept."""
    for heir in heirs:
        installations.save(heir)
    installations.forget(file)


def _file_of(client: Client, folder: Path | None) -> Path:
    if folder is None:
        return client.user_path(Path.home(), os.environ)
    path = client.project_path(folder)
    if path is None:
        with_files = ", ".join(other.name for other in CLIENTS.values() if other.project_files)
        raise BridgeError(
            "bad_argument",
            f"{client.title} has no file for a folder.",
            hint=f"Write `mcp-bridge install {client.name}`. --project is for {with_files}.",
        )
    return path


def _show(change: Change) -> bool:
    """Print the changes, and whether there are any."""
    files = [file for file in (change.file, change.config) if file is not None and file.is_changed]
    for file in files:
        for line in file.diff():
            terminal_output.echo(escaping.escape_line(line))
    for note in change.notes:
        terminal_output.echo(escaping.escape_line(note))
    return bool(files)


def _name_backup(backup: Path | None) -> None:
    if backup is not None:
        terminal_output.echo(escaping.escape_line(f"As it was: {backup}"))


def _confirm(question: str, command: str) -> bool:
    refusal = BridgeError(
        "not_asked", "Nothing was written: there is no terminal to ask in.", hint=f"Write `{command}`."
    )
    return terminal_prompts.confirm(question, refusal)
