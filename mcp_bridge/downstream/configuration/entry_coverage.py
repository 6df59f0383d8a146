"""What of a client's entry the bridge has its like of: its settings of OAuth, and which keys are read or say nothing.

A client that is registered at an authorization server comes back to the address that it was registered with. What is
registered for a client whose address isn't on this machine can't be used by the bridge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettingError, oauth_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.downstream.configuration.known_clients import ClientName

Entry = dict[str, Any]

_COMMON = frozenset({"type", "command", "args", "env", "cwd", "url", "headers", "disabled"})

_HARMLESS = frozenset(
    # What a client shows, or doesn't ask about.
    {"name", "displayName", "title", "description", "icon", "note", "notes", "comment", "_comment", "//", "$comment"}
    | {"icons", "tags", "$schema", "extensionName", "autoApprove", "alwaysAllow", "alwaysLoad", "trust"}
    # Other programs' `type`. The bridge finds out what a server speaks.
    | {"transport", "transportType"}
)

_KEEPS = frozenset(
    {"envFile", "env_file", "sandbox", "sandboxEnabled"}
    | {"includeTools", "excludeTools", "allowedTools", "enabledTools", "disabledTools", "enabled_tools"}
    | {"disabled_tools"}
)
"""What makes a server another one, or hides tools, in some client: whoever writes it for another means it, too."""

_OWN_KEEPS: dict[str, frozenset[str]] = {
    "codex": frozenset({"environment_id", "experimental_environment", "auth", "disabled"}),
    "gemini": frozenset({"tcp", "targetAudience", "targetServiceAccount"}),
    "zed": frozenset({"settings", "remote"}),
}
"""The keys of each client's own that the bridge has no like of, and that matter."""

_HERE = ("experimental_environment", "environment_id")
"""Where Codex has a server run: `local` is here."""

_KNOWN: dict[str, frozenset[str]] = {
    "claude-code": _COMMON | {"timeout", "oauth", "headersHelper", "discoveryCache"},
    "claude-desktop": _COMMON,
    "cursor": _COMMON | {"auth"},
    "vscode": _COMMON | {"oauth", "dev", "gallery", "version", "sandboxEnabled"},
    "codex": frozenset(
        {"command", "args", "env", "env_vars", "cwd", "url", "bearer_token_env_var", "http_headers"}
        | {"env_http_headers", "startup_timeout_sec", "startup_timeout_ms", "tool_timeout_sec", "enabled"}
        | {"enabled_tools", "disabled_tools", "scopes", "oauth", "oauth_resource", "required"}
        | {"supports_parallel_tool_calls", "default_tools_approval_mode", "tools", "startup_readiness"}
        | {"output_token_limit", "tool_input_schema_max_bytes"}
    ),
    "gemini": _COMMON | {"httpUrl", "timeout", "includeTools", "excludeTools", "oauth", "authProviderType"},
    "opencode": _COMMON | {"environment", "enabled", "timeout", "oauth"},
    "zed": _COMMON | {"enabled", "timeout", "source", "oauth"},
    "windsurf": _COMMON | {"serverUrl", "disabledTools"},
}
"""The keys of each client's entries that are read, or that are the client's own affair."""


def keeping_key(client: ClientName, entry: Entry) -> str | None:
    """A key of an entry without which the server would be another one, and which the bridge has no like of; or None."""
    keeps = (_KEEPS | _OWN_KEEPS.get(client, frozenset())) - _KNOWN.get(client, _COMMON)
    if entry.get("enabled") is False and "enabled" not in _KNOWN.get(client, _COMMON):
        return "enabled"
    return next((str(key) for key in _unread(client, entry) if key in keeps), None)


def dropped_keys(client: ClientName, entry: Entry) -> list[str]:
    """The keys of an entry that say something the bridge doesn't read, and that the client has no use for either."""
    return [str(key) for key in _unread(client, entry) if key != "enabled"]


def _unread(client: ClientName, entry: Entry) -> list[str]:
    """The keys that aren't read and say something: nothing, and what is switched off, says nothing."""
    known = _KNOWN.get(client, _COMMON) | _HARMLESS
    here = {key for key in _HERE if client == "codex" and entry.get(key) == "local"}
    return [key for key, value in entry.items() if key not in known and key not in here and value]


def oauth_of(client: ClientName, entry: Entry) -> tuple[Entry, str | None]:
    """An entry's settings of OAuth as an `oauth` table of ours, and why some of them can't be used there, or None."""
    read = _READERS.get(client)
    if read is None or not any(key in entry for key in ("url", "httpUrl")):
        return {}, None
    table, left = read(entry)
    table = {key: value for key, value in table.items() if value is not None}
    try:
        oauth_settings(table)
    except OAuthSettingError as error:
        where = error.keys[0] if error.keys else "it"
        return {}, f"its settings of OAuth can't be used: {where} {error.message}"
    return table, left


def _table(entry: Entry, key: str) -> Entry:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


def _rest(table: Entry, known: frozenset[str], key: str) -> str | None:
    """Why a table of a client's can't be used as a whole, or None."""
    names = [str(name) for name, value in table.items() if name not in known and value is not None]
    return f"{key} uses {names[0]}, which the bridge doesn't support." if names else None


def _words(value: Any) -> Any:
    return value.split() if isinstance(value, str) else value


def _claude_code(entry: Entry) -> tuple[Entry, str | None]:
    table = _table(entry, "oauth")
    port = table.get("callbackPort")
    redirect = f"http://localhost:{port}/callback" if port is not None and "clientId" in table else None
    found = {"client_id": table.get("clientId"), "redirect_uri": redirect, "scopes": _words(table.get("scopes"))}
    return found, _rest(table, frozenset({"clientId", "callbackPort", "scopes"}), "oauth")


def _opencode(entry: Entry) -> tuple[Entry, str | None]:
    # `false` has opencode not look for a login by itself. The bridge never does.
    table = _table(entry, "oauth")
    redirect = table.get("redirectUri") or f"http://127.0.0.1:{table.get('callbackPort', 19876)}/mcp/oauth/callback"
    found = {
        "client_id": table.get("clientId"),
        "client_secret": table.get("clientSecret"),
        "scopes": _words(table.get("scope")),
        "redirect_uri": redirect if "clientId" in table else None,
    }
    known = frozenset({"clientId", "clientSecret", "scope", "redirectUri", "callbackPort"})
    return found, _rest(table, known, "oauth")


def _gemini(entry: Entry) -> tuple[Entry, str | None]:
    table = _table(entry, "oauth")
    if table.get("enabled") is False:
        return {}, None
    found = {
        "client_id": table.get("clientId"),
        "client_secret": table.get("clientSecret"),
        "scopes": table.get("scopes"),
        "redirect_uri": table.get("redirectUri") if "clientId" in table else None,
    }
    known = frozenset({"enabled", "clientId", "clientSecret", "scopes", "redirectUri"})
    return found, _rest(table, known, "oauth")


def _codex(entry: Entry) -> tuple[Entry, str | None]:
    left = "it uses oauth_resource, which the bridge doesn't support." if entry.get("oauth_resource") else None
    return {"scopes": entry.get("scopes")}, left or _rest(_table(entry, "oauth"), frozenset(), "oauth")


def _registered(key: str, id_key: str, secret_key: str, title: str) -> Callable[[Entry], tuple[Entry, str | None]]:
    """Reads the entries of a client whose registration comes back to an address of its own."""

    def read(entry: Entry) -> tuple[Entry, str | None]:
        table = _table(entry, key)
        if table.get(id_key) is not None:
            return {}, (
                f"{key} names an application that is registered for {title}, whose logins come back to {title} alone:"
                " register one for an address of this machine, and write it into the oauth table of [servers.NAME]."
            )
        known = frozenset({id_key, secret_key, "scopes"})
        return {"scopes": _words(table.get("scopes"))}, _rest(table, known, key)

    return read


_READERS: dict[str, Callable[[Entry], tuple[Entry, str | None]]] = {
    "claude-code": _claude_code,
    "opencode": _opencode,
    "gemini": _gemini,
    "codex": _codex,
    "cursor": _registered("auth", "CLIENT_ID", "CLIENT_SECRET", "Cursor"),
    "vscode": _registered("oauth", "clientId", "clientSecret", "VS Code"),
    "zed": _registered("oauth", "client_id", "client_secret", "Zed"),
}
