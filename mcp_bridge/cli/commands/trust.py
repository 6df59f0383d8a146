"""`mcp-bridge trust`: shows what a folder's files would do, and records the user's trust in exactly this content."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge import escaping, settings
from mcp_bridge.cli import exit_statuses, terminal_output, terminal_prompts
from mcp_bridge.cli.command_runner import print_json
from mcp_bridge.downstream.configuration import client_file_reading
from mcp_bridge.downstream.configuration.client_entries import EntryContext, EntryError, decode, shape
from mcp_bridge.downstream.configuration.discovery import entries_beneath, folder_table, missing_servers_problem
from mcp_bridge.downstream.configuration.known_clients import CLIENTS
from mcp_bridge.downstream.configuration.remote_entries import shown_origin
from mcp_bridge.errors import BridgeError
from mcp_bridge.workspace.folder_content import (
    CLIENT_FILES,
    CONFIG_NAME,
    ENTRIES,
    MAX_FILE_BYTES,
    PROJECT_NAME,
    SERVERS_DIRECTORY,
    Content,
    content_of,
    folder_of,
    listing_files,
    read_regular,
    real_folder,
    why,
)
from mcp_bridge.workspace.trust import TrustStore, trusted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcp_bridge.downstream.configuration.known_clients import Client


def _client_of(name: str) -> Client:
    """The client that a file in a folder is of."""
    known = (client for client in CLIENTS.values() if name in client.project_files)
    return next(known, CLIENTS["directories"])


_EFFECTS = {
    "tools": "imports into the bridge's process, which runs as you",
    "programs": "adds to the operator's programs",
    "policy": "decides what is called; rules of your own stay in force, as a floor",
    "secrets": "gives secrets to tools",
    "files": "hands files of the folder to scripts",
    "projection": "says what is sensitive",
    "model": "says which model is asked",
    "ledger": "says what is kept, and how",
}


class _FileSummary(NamedTuple):
    """What a file says.

    Attributes:
        table: What is used of it.
        servers: The servers of a client's file as they are written: nothing in them is expanded or left out.
        settings: What a client's file says of servers beside them.
    """

    table: Mapping[str, Any]
    servers: Mapping[str, _Server]
    settings: Mapping[str, Any] = MappingProxyType({})


class _Server(NamedTuple):
    """A server that a file has.

    Attributes:
        whole: Its entry with what it changes a part of. Of that, nothing is in it that may be a secret.
        part: What the file itself says of it.
        does: What the bridge does with it: what it starts, or connects to.
        changes: Whether there is an entry that it changes a part of.
    """

    whole: Any
    part: Any
    does: _ServerAction
    changes: bool = False


class _ServerAction(NamedTuple):
    """What the bridge does with a server, and the keys of its entry that this tells."""

    text: str
    keys: frozenset[str] = frozenset()


class _TrustRequest(NamedTuple):
    """A file that can be trusted, and what it says."""

    content: Content
    said: _FileSummary


def trust(loaded: settings.Loaded, folder: Path, *, yes: bool, as_json: bool) -> int:
    """Show what a folder's files would do, ask, and record trust; return the exit status.

    Args:
        loaded: The user's own configuration.
        folder: The folder.
        yes: Whether to skip the question.
        as_json: Whether to print the trusted content as JSON.

    Raises:
        BridgeError: `bad_argument`, `nothing_to_trust`, `bad_config`, `folder_too_large`, `not_asked`,
            `trust_unusable`, `state_unusable`.
    """
    here = real_folder(folder)
    if not here.is_dir():
        raise BridgeError("bad_argument", f"{folder} is no folder.", hint="Write `mcp-bridge trust FOLDER`.")
    requests = _requests(here, loaded)
    show = terminal_output.echo_err if as_json else terminal_output.echo
    for row in requests:
        for line in _described(row, loaded):
            show(line)
    new = [row for row in requests if not loaded.trust.is_trusted(row.content)]
    if new and not yes and not _confirm():
        terminal_output.echo_err("mcp-bridge: nothing was trusted.")
        return exit_statuses.REFUSED
    for row in new:
        # Record the content that was shown, even if the files have changed since.
        loaded.trust.record(row.content)
    if as_json:
        rows = [{"file": str(row.content.file), "sha256": row.content.hash, "new": row in new} for row in requests]
        print_json({"status": "trusted", "files": rows})
    else:
        files = ", ".join(str(row.content.file) for row in requests)
        show(escaping.escape_line(f"{'Trusted' if new else 'Trusted already'}, exactly as shown: {files}"))
    return exit_statuses.OK


def _requests(here: Path, loaded: settings.Loaded) -> list[_TrustRequest]:
    """The files of a folder that can be trusted: at least one.

    Raises:
        BridgeError: As `trust`.
    """
    clients = [CLIENTS[client] for client in loaded.settings.clients]
    read = [str(path.relative_to(here)) for client in clients for path in client.project_paths(here)]
    requests = _looked_at(here, (CONFIG_NAME, *read), loaded.trust)
    if not requests:
        raise _no_file(here, clients, read)
    for reason in (why_empty for row in requests if (why_empty := _why_empty(row))):
        if len(requests) == 1:
            raise BridgeError("nothing_to_trust", reason, hint="Then run `mcp-bridge trust` again.")
        terminal_output.echo_err(escaping.escape_line(f"mcp-bridge: nothing_to_trust: {reason}"))
    requests = [row for row in requests if _why_empty(row) is None]
    for row in requests:
        loaded.trust.refuse_within(row.content.file)
    return requests


def _no_file(here: Path, clients: Sequence[Client], read: Sequence[str]) -> BridgeError:
    """The error for a folder without a file that is read."""
    listing = [str(path.relative_to(here)) for path in listing_files(here / SERVERS_DIRECTORY)]
    unread = [name for name in (*CLIENT_FILES, *listing) if name not in read and (here / name).is_file()]
    hint = "Name the folder that has one: `mcp-bridge trust FOLDER`."
    if unread:
        owner = _client_of(unread[0]).name
        hint = f"It has {unread[0]}, which is read if client_configs in your configuration names {owner!r}."
    names = [CONFIG_NAME, *(name for client in clients for name in client.project_files)]
    none = f"{here} has neither {', '.join(names[:-1])} nor {names[-1]}" if clients else f"{here} has no {CONFIG_NAME}"
    return BridgeError("nothing_to_trust", f"{none}.", hint=hint)


def _looked_at(folder: Path, names: tuple[str, ...], store: TrustStore) -> list[_TrustRequest]:
    """The files of a folder, of which one may change a part of what those after it have: they are trusted together."""
    requests: list[_TrustRequest] = []
    for name in reversed(names):
        if (request := _look(folder, name, store)) is not None:
            requests.insert(0, request)
            store = store.assuming(request.content)
    return requests


def _look(folder: Path, name: str, store: TrustStore) -> _TrustRequest | None:
    """A validated file with everything that it would make the bridge load; None if a client's says nothing."""
    file = folder / name
    try:
        data = read_regular(file, MAX_FILE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise BridgeError("bad_config", f"{file} can't be read: {why(exc)}.", file=str(file)) from None
    said = _parsed(data, file, name, store)
    if name not in {CONFIG_NAME, PROJECT_NAME} and not said.servers and not said.settings:
        return None
    return _TrustRequest(content_of(file, data, said.table), said)


def _parsed(data: bytes, file: Path, name: str, store: TrustStore) -> _FileSummary:
    """What a folder's file says.

    Raises:
        BridgeError: `bad_config`.
    """
    if name == CONFIG_NAME:
        table = settings.checked(data, file)
        tables = table.get("servers", {})
        return _FileSummary(
            table, {key: _Server(entry, entry, _own_entry_action(entry)) for key, entry in tables.items()}
        )
    client = _client_of(name)
    problems: list[client_file_reading.Problem] = []
    content = client_file_reading.parse(data, file, client.syntax, problems)
    entries = client_file_reading.entries(client, content, file, problems)
    if problems:
        raise BridgeError("bad_config", f"{file}: {problems[0].message}", file=str(file), line=problems[0].line)
    beneath = entries_beneath(client, file, environ=os.environ, home=Path.home(), trust=store)
    servers: dict[str, _Server] = {}
    for server, part in entries.items():
        whole = client_file_reading.merged(_without_secrets(beneath.get(server)), part)
        servers[server] = _Server(whole, part, _does(client, server, whole), server in beneath)
    said = client_file_reading.folder_settings(client, content)
    return _FileSummary(folder_table(client, content, file, beneath), servers, said)


_PLAIN = frozenset({"type", "cwd", "bearer_token_env_var", "env_vars", "enabled_tools", "disabled_tools"})
"""Keys of an entry whose values are no secrets."""


def _without_secrets(entry: Any) -> Any:
    """An entry that is beneath a folder's, with `…` for what may be a secret: it is in a file of the user's."""
    return {key: _shown(key, value) for key, value in entry.items()} if isinstance(entry, dict) else entry


def _shown(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return dict.fromkeys(value, "…")
    if key in _PLAIN or not isinstance(value, (str, list)):
        return value
    if isinstance(value, list):
        # opencode has all words of the command line there.
        kept = value[:1] if key == "command" else []
        return [*kept, "…"] if len(value) > len(kept) else kept
    if key == "command":
        program, space, _ = value.partition(" ")
        return f"{program}{space}…" if space else program
    return f"{shown_origin(value)}/…" if key == "url" and value.startswith(("https://", "http://")) else "…"


def _name_of(file: Path) -> str:
    """A file's name in its folder."""
    return str(file.relative_to(folder_of(file)))


def _why_empty(request: _TrustRequest) -> str | None:
    """Why a `.mcp.json` contains nothing to trust; None for any other file."""
    if request.content.file.name != PROJECT_NAME:
        return None
    written = json.loads(request.content.data.decode("utf-8-sig"))
    return None if "mcpServers" in written else f"{request.content.file}: {missing_servers_problem(written)}"


def _described(request: _TrustRequest, loaded: settings.Loaded) -> Iterator[str]:
    """What a file would do, one line each; its content can't add or hide lines."""
    content, (table, servers, said) = request
    link = f", a link to {content.file.resolve()}" if content.file.is_symlink() else ""
    yield escaping.escape_line(f"{content.file}{link}")
    yield f"  sha256 {content.hash}, {len(content.data)} bytes"
    own = {name for layer in loaded.layers for name in layer.servers}
    for name, server in servers.items():
        yield from _server(name, server, taken=name in own)
    yield from _settings("", said)
    for name, value in table.items():
        if name in _EFFECTS and isinstance(value, dict):
            yield f"  [{name}] {_EFFECTS[name]}:"
            yield from _settings(f"{name}.", value)
        elif name not in {"servers", "mcpServers", ENTRIES}:
            yield from _settings("", {name: value})
    if content.files:
        yield "  files that it would have the bridge load or start; what these load in turn isn't looked at:"
    for path, hashed in content.files.items():
        displayed = Path(path).relative_to(content.folder) if Path(path).is_relative_to(content.folder) else path
        yield escaping.escape_line(f"    {displayed}  {hashed}")


def _server(name: str, server: _Server, *, taken: bool) -> Iterator[str]:
    yield escaping.escape_line(f"  server {json.dumps(name, ensure_ascii=False)} {server.does.text}")
    if taken:
        yield "    not started: you have configured a server of this name yourself"
    whole, part = (
        {"command": entry} if not isinstance(entry, dict) else entry for entry in (server.whole, server.part)
    )
    for key, value in whole.items():
        lines = _settings("  ", {key: value})
        if key not in part:
            yield from (f"{line} (yours)" for line in lines)
        elif key not in server.does.keys:
            yield from lines
    if server.changes:
        yield "    changes a part of a server that is there without it: (yours) and … are of your file or one you trust"


_TARGET = ("type", "command", "args", "url", "httpUrl", "serverUrl")
"""The keys of an entry that say what is started or connected to, in any client's file."""


def _does(client: Client, name: str, entry: Any) -> _ServerAction:
    """What the bridge does with an entry of a client's, by what it reads of it."""
    told = {key: entry[key] for key in _TARGET if key in entry} if isinstance(entry, dict) else entry
    try:
        spec = decode(name, shape(client.name, told, EntryContext(name, (), {})).entry, "", "project")
    except EntryError as error:
        return _ServerAction(f"isn't used: {error}")
    if spec.problem is not None:
        return _ServerAction(f"isn't used: {spec.problem}")
    if spec.is_remote:
        return _ServerAction(f"connects to: {spec.url}")
    # Zed's older shape has the whole command in one table, with its environment.
    keys = frozenset() if isinstance(entry["command"], dict) else _COMMAND
    return _ServerAction(f"starts, as you: {shlex.join((spec.command, *spec.args))}", keys)


_COMMAND = frozenset({"command", "args"})


def _own_entry_action(entry: Any) -> _ServerAction:
    """What the bridge does with an entry of its own configuration, which is checked later."""
    table = entry if isinstance(entry, dict) else {"command": entry}
    if "command" in table:
        args = table.get("args", [])
        words = [table["command"], *(args if isinstance(args, list) else [args])]
        return _ServerAction(f"starts, as you: {shlex.join(map(str, words))}", _COMMAND)
    return _ServerAction(f"connects to: {table.get('url', table.get('openapi'))}")


def _settings(prefix: str, table: Mapping[str, Any]) -> Iterator[str]:
    for name, value in table.items():
        rows = [(f"{name}[{number}]", item) for number, item in enumerate(value, 1)] if name == "rules" else []
        for shown, item in rows or [(name, value)]:
            yield escaping.escape_line(f"    {prefix}{shown} = {json.dumps(item, ensure_ascii=False, default=str)}")


def _confirm() -> bool:
    """Ask for confirmation.

    Raises:
        BridgeError: `not_asked`: there is nobody to ask.
    """
    refusal = BridgeError(
        "not_asked",
        "Nothing was trusted: there is no terminal to ask in.",
        hint="Run it in a terminal, or with --yes once you have looked at what is there.",
    )
    return terminal_prompts.confirm("Trust exactly this content? A changed byte asks again.", refusal)


def revoke(loaded: settings.Loaded, folder: Path) -> int:
    """Revoke trust in a folder's files; return the exit status.

    Raises:
        BridgeError: `not_trusted`, `trust_unusable`.
    """
    here = real_folder(folder)
    named = [here / name for name in (CONFIG_NAME, *CLIENT_FILES)]
    # Of a directory, also those that are gone.
    others = [entry.file for entry in loaded.trust.entries() if folder_of(entry.file) == here]
    files = [file for file in dict.fromkeys((*named, *others)) if loaded.trust.revoke(file)]
    if not files:
        raise BridgeError("not_trusted", f"Nothing in {here} was trusted.", hint="`mcp-bridge trust --list`.")
    terminal_output.echo(escaping.escape_line(f"No longer trusted: {', '.join(map(str, files))}"))
    return exit_statuses.OK


def list_trusted(loaded: settings.Loaded, *, as_json: bool) -> int:
    """Print what is trusted, and whether it has changed; return the exit status."""
    rows: list[dict[str, Any]] = [
        {"file": str(entry.file), "sha256": entry.hash, "since": entry.time, "state": _state(loaded.trust, entry.file)}
        for entry in loaded.trust.entries()
    ]
    if as_json:
        print_json({"trusted": rows})
    elif not rows:
        terminal_output.echo("No folder's files are trusted.")
    else:
        cells = [
            (escaping.escape_line(row["file"]), terminal_output.moment(row["since"]), row["state"]) for row in rows
        ]
        terminal_output.table(("file", "trusted", "now"), cells)
    return exit_statuses.OK


def _state(store: TrustStore, file: Path) -> str:
    def parse(data: bytes) -> dict[str, Any]:
        return dict(_parsed(data, file, _name_of(file), store).table)

    try:
        found = trusted(file, store, parse)
    except BridgeError as exc:
        return exc.code
    if found is None:
        return "gone"
    return "trusted" if isinstance(found, tuple) else found.code.removesuffix("_file")
