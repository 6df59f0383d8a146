"""Entries of servers for another configuration: the bridge's in a client's file, a client's as a table of ours."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_bridge.downstream.configuration.client_entries import EntryContext, EntryError, decode, shape
from mcp_bridge.downstream.configuration.discovery import command_problem, takes_no_login
from mcp_bridge.downstream.configuration.entry_coverage import dropped_keys, keeping_key
from mcp_bridge.downstream.configuration.own_entries import MAX_NAME_CHARS, name_problem, spec_from_toml
from mcp_bridge.downstream.configuration.remote_entries import headers_problem, url_problem
from mcp_bridge.downstream.configuration.self_reference.command_lines import NAMES
from mcp_bridge.downstream.oauth.endpoints import may_carry_tokens
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mcp_bridge.downstream.configuration.known_clients import Client, ClientName, Variables
    from mcp_bridge.downstream.configuration.spec import ServerSpec

Table = dict[str, Any]

START_SECONDS = 60
"""How long a client waits for the bridge to start. Clients wait ten seconds or less, and the first start may have to
build the image."""

CALL_SECONDS = 600
"""How long a client waits for a call: the bound on a whole run (`wall_timeout`)."""

_OURS = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^}]*)?\}")
_EDITOR = re.compile(r"\$\{([^{}]*)\}")
_GEMINI = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_OPENCODE = re.compile(r"\{(env|file):([^{}]+)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class NotTransferableError(Exception):
    """A server can't be in the bridge's configuration. The argument says why, in one sentence without a name."""


def own_command() -> tuple[str, list[str]]:
    """The command that starts this bridge, as a client can start it: with its whole path, and its arguments."""
    called = Path(sys.argv[0])
    name = called.name if called.name in NAMES else "mcp-bridge"
    beside = Path(sys.executable).with_name(name)
    path = called.absolute() if called.name in NAMES and called.is_file() else beside
    if any(part.startswith("archive-v") for part in path.resolve().parts) and (runner := shutil.which("uvx")):
        # Run by uvx from its cache, which uv empties at times.
        return runner, ["mcp-code-bridge"]
    found = shutil.which(name)
    # What is found on the PATH stays when the program is upgraded; the environment behind it may not.
    return (found if found and Path(found).resolve() == path.resolve() else str(path)), []


def refuse_bad_name(name: str) -> None:
    """Refuse a server's name that can't be read or written well.

    Raises:
        BridgeError: `bad_argument`.
    """
    if (wrong := name_problem(name)) is not None:
        shown = name if len(name) <= MAX_NAME_CHARS else f"{name[:20]}…"
        raise BridgeError(
            "bad_argument", f"A server can't be called {shown!r}: {wrong}", hint="Choose a short name, such as git."
        )


def bridge_entry(client: ClientName, command: str, args: list[str]) -> Table:
    """The entry of a client's file that starts the bridge."""
    entry: Table = {"command": command, "args": args}
    match client:
        case "claude-code" | "vscode":
            return {"type": "stdio"} | entry
        case "opencode":
            return {"type": "local", "command": [command, *args], "enabled": True, "timeout": START_SECONDS * 1000}
        case "codex":
            return entry | {"startup_timeout_sec": START_SECONDS, "tool_timeout_sec": CALL_SECONDS}
        case "zed":
            return entry | {"timeout": CALL_SECONDS}
        case _:
            return entry


def as_table(client: Client, name: str, entry: Any, settings: Sequence[Mapping[str, Any]]) -> Table:
    """A client's entry as a `[servers.NAME]` table of our configuration.

    Args:
        client: The client.
        name: The server's name.
        entry: The entry.
        settings: As `EntryContext.settings`.

    Raises:
        NotTransferableError: It is broken, or uses what only its client knows.
    """
    if (wrong := name_problem(name)) is not None:
        raise NotTransferableError(f"{wrong.removesuffix('.')}; give it another in {client.title}.")
    variables = client.variables
    if client.name == "codex" and isinstance(entry, dict) and "url" in entry:
        entry, variables = _codex_remote(entry), "braces"
    try:
        found = shape(client.name, entry, EntryContext(name, settings, {}))
    except EntryError as error:
        raise NotTransferableError(str(error)) from None
    spec = decode(name, found.entry, "", "config")
    # What is said of a login doesn't count where there is none.
    needs_none = spec.is_remote and takes_no_login(replace(spec, url=_OURS.sub("1", spec.url or "")))
    if (wrong := spec.problem or (None if needs_none else found.left)) is not None:
        raise NotTransferableError(wrong)
    if (key := keeping_key(client.name, entry)) is not None:
        raise NotTransferableError(f"it uses {key}, which the bridge doesn't support.")
    if found.unset:
        raise NotTransferableError(f"its env unsets {found.unset[0]}, which the bridge's configuration can't express.")

    def text(value: str) -> str:
        return _in_our_variables(value, variables)

    table: Table = {}
    if spec.is_remote:
        table["url"] = text(spec.url or "")
        table |= {} if spec.type == "auto" else {"type": spec.type}
        table |= {"headers": {key: text(value) for key, value in spec.headers.items()}} if spec.headers else {}
        expanded = {key: text(found.oauth[key]) for key in ("client_id", "client_secret") if key in found.oauth}
        table |= {"oauth": found.oauth | expanded} if found.oauth and not needs_none else {}
    else:
        table["command"] = text(spec.command)
        table |= {"args": [text(arg) for arg in spec.args]} if spec.args else {}
        table |= {"env": {key: text(value) for key, value in spec.env.items()}} if spec.env else {}
        table |= {"cwd": text(spec.cwd)} if spec.cwd is not None else {}
        table |= {"env_pass": list(found.env_pass)} if isinstance(found.env_pass, tuple) else {}
    for key, value in (
        ("call_timeout", found.call_timeout),
        ("start_timeout", found.start_timeout),
        ("include_tools", None if found.include_tools is None else list(found.include_tools)),
        ("exclude_tools", list(found.exclude_tools) or None),
        ("enabled", None if spec.enabled else False),
    ):
        if value is not None:
            table[key] = value
    try:
        spec_from_toml(name, table, "the configuration")
    except BridgeError as exc:
        raise NotTransferableError(exc.message) from None
    return table


def not_carried_over(client: Client, name: str, entry: Any) -> list[str]:
    """What to say of the keys of a client's entry that its table of ours doesn't have."""
    keys = dropped_keys(client.name, entry) if isinstance(entry, dict) else []
    return [f"of {name!r}, {', '.join(keys)} {'is' if len(keys) == 1 else 'are'} not carried over."] if keys else []


def refuse_unusable(name: str, table: Table) -> None:
    """Refuse a `[servers.NAME]` table that the bridge can't use, whatever its variables are.

    Raises:
        NotTransferableError: It is misconfigured.
    """
    if (wrong := fixed_problem(spec_from_toml(name, table, "the configuration"))) is not None:
        raise NotTransferableError(wrong)


def fixed_problem(spec: ServerSpec) -> str | None:
    """Why an entry of ours can't be used whatever its variables are, or None."""
    document = spec.openapi.location if spec.openapi is not None and spec.openapi.is_remote else None
    for key, url in (("url" if spec.openapi is None else "base_url", spec.url), ("openapi", document)):
        # A variable may be the number of a port. An address that begins with one may be any.
        if url and not _OURS.match(url) and (wrong := url_problem(_OURS.sub("1", url))) is not None:
            return wrong.replace("url", key, 1)
    if spec.oauth is not None and spec.url and not _OURS.match(spec.url) and not may_carry_tokens(spec.url):
        return "oauth needs a url that begins with https://."
    return command_problem(spec, os.environ) or headers_problem(spec.headers)


def _codex_remote(entry: Table) -> Table:
    """A remote entry of Codex's whose headers name variables as our configuration does."""
    headers = {**(entry.get("http_headers") or {})}
    if any(_OURS.search(str(value)) for value in headers.values()):
        raise NotTransferableError("a header has ${…} as it is, which the bridge would expand.")
    # Codex leaves out a header whose variable isn't set; an empty one says as much.
    headers |= {key: f"${{{variable}:-}}" for key, variable in (entry.get("env_http_headers") or {}).items()}
    if isinstance(variable := entry.get("bearer_token_env_var"), str):
        headers["Authorization"] = f"Bearer ${{{variable}}}"
    kept = {key: value for key, value in entry.items() if key not in {"env_http_headers", "bearer_token_env_var"}}
    return kept | {"http_headers": headers}


def _in_our_variables(text: str, variables: Variables) -> str:
    """A text that our configuration expands as its client expands this one.

    Raises:
        NotTransferableError: There is none.
    """
    return _TRANSLATIONS[variables](text)


def _literal(text: str) -> str:
    if _OURS.search(text):
        raise NotTransferableError("it has ${…} as it is, which the bridge would expand.")
    return text


def _editor(text: str) -> str:
    known = {"userHome": "${HOME}", "pathSeparator": "/", "/": "/"}

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name in known:
            return known[name]
        if name.startswith("env:") and _VARIABLE.fullmatch(name.removeprefix("env:")):
            return f"${{{name.removeprefix('env:')}}}"
        raise NotTransferableError(f"it uses {match.group()}, which only the client knows.")

    return _EDITOR.sub(value, text)


def _windsurf(text: str) -> str:
    rest = re.sub(r"\$\{env:[A-Za-z_][A-Za-z0-9_]*\}", "", text)
    _literal(rest)
    return re.sub(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}", r"${\1}", text)


def _gemini(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        # Without a value it stays, as a name: a default can't have a brace.
        name = match[1] or match[2]
        return f"${{{name}:-${name}}}"

    return _GEMINI.sub(value, text)


def _opencode(text: str) -> str:
    _literal(text)

    def value(match: re.Match[str]) -> str:
        kind, name = match.groups()
        if kind == "file" or not _VARIABLE.fullmatch(name):
            raise NotTransferableError(f"it uses {match.group()}, which only the client reads.")
        return f"${{{name}:-}}"

    return _OPENCODE.sub(value, text)


_TRANSLATIONS: dict[Variables, Callable[[str], str]] = {
    "none": _literal,
    "braces": lambda text: text,
    "gemini": _gemini,
    "editor": _editor,
    "windsurf": _windsurf,
    "opencode": _opencode,
}
