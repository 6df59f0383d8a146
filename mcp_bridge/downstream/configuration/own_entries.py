"""Entries of servers in our own TOML, `[servers.NAME]`, decoded strictly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mcp_bridge.downstream.configuration.env_pass import env_pass
from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettingError, oauth_settings
from mcp_bridge.downstream.configuration.spec import (
    CALL_TIMEOUT,
    ERAS,
    START_TIMEOUT,
    TYPES,
    Era,
    OpenApiDocument,
    ServerSpec,
    ServerType,
    TlsFiles,
)
from mcp_bridge.errors import BridgeError
from mcp_bridge.lookalikes import is_seen
from mcp_bridge.near_names import nearest
from mcp_bridge.toml_files.line_numbers import line_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mcp_bridge.downstream.configuration.env_pass import EnvPass
    from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettings


MAX_NAME_CHARS = 128
"""Length limit of a name that a command writes into the configuration."""


def name_problem(name: str) -> str | None:
    """Why a command doesn't give a server this name, in one sentence; or None."""
    if not name.strip():
        return "its name is empty."
    if len(name) > MAX_NAME_CHARS:
        return f"its name has more than {MAX_NAME_CHARS} characters."
    if not all(is_seen(char) for char in name):
        return "its name contains a line break or another character that can't be seen."
    if name != name.strip():
        return "its name begins or ends with a space."
    return None


def _error(file: str, message: str, hint: str | None, *path: str) -> BridgeError:
    line = line_of(file, "servers", *path)
    where = f"{file}, line {line}" if line else file
    key = ".".join(("servers", *path))
    return BridgeError("bad_config", f"{where}: {key} {message}", hint=hint, file=file, line=line, key=key)


class _Table:
    """Decodes one `[servers.NAME]` table key by key; every error names the key's path, the file and the line."""

    def __init__(self, name: str, table: Mapping[str, Any], file: str) -> None:
        self._name = name
        self._table = table
        self._file = file

    def error(self, key: str, message: str, hint: str | None = None) -> BridgeError:
        return _error(self._file, message, hint or f"Write {key} = {_EXAMPLES[key]}.", self._name, key)

    def path(self, key: str) -> str | None:
        text = self.text(key)
        if text == "":
            raise self.error(key, "is empty.")
        return text

    def oauth(self) -> OAuthSettings | None:
        table = self._table.get("oauth")
        if table is None:
            return None
        try:
            return oauth_settings(table)
        except OAuthSettingError as error:
            raise _error(self._file, error.message, error.hint, self._name, "oauth", *error.keys) from None

    def document(self) -> OpenApiDocument | None:
        location = self.path("openapi")
        if location is None:
            return None
        operations = self.texts("operations") if "operations" in self._table else None
        return OpenApiDocument(location=location, operations=operations, credentials=self.mapping("credentials"))

    def refuse_unknown(self, known: tuple[str, ...]) -> None:
        for key in self._table:
            if key not in known:
                meant = _MEANT.get(key.replace("-", "_").lower())
                close = [meant] if meant else nearest(key, known, count=1)
                hint = f"Did you mean {close[0]}?" if close else f"Known keys: {', '.join(known)}."
                raise self.error(key, "is not a known key.", hint)

    def text(self, key: str) -> str | None:
        value = self._table.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, "must be a string.")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "must be an array of strings.")
        return tuple(value)

    def mapping(self, key: str) -> dict[str, str]:
        value = self._table.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise self.error(key, "must be a table of strings.")
        return value

    def seconds(self, key: str, default: float) -> float:
        value = self._table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self.error(key, "must be a number of seconds above 0.")
        return float(value)

    def choice(self, key: str, options: tuple[str, ...], default: str) -> str:
        value = self._table.get(key, default)
        if value not in options:
            raise self.error(key, f"must be one of {', '.join(options)}.")
        return str(value)

    def variables(self, key: str) -> EnvPass | None:
        try:
            return env_pass(self._table[key]) if key in self._table else None
        except ValueError as error:
            raise self.error(key, f"{error}.") from None

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._table.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false.")
        return value


_KEYS = (
    "type",
    "command",
    "args",
    "env",
    "env_pass",
    "cwd",
    "url",
    "openapi",
    "base_url",
    "operations",
    "credentials",
    "headers",
    "ca_file",
    "client_cert",
    "client_key",
    "oauth",
    "call_timeout",
    "start_timeout",
    "era",
    "include_tools",
    "exclude_tools",
    "enabled",
)


_REMOTE_KEYS = ("headers", "ca_file", "client_cert", "client_key", "oauth")


_STDIO_KEYS = ("args", "env", "env_pass", "cwd")


_OPENAPI_KEYS = ("base_url", "operations", "credentials")


_EXAMPLES = {
    "type": '"stdio"',
    "command": '"uvx"',
    "args": '["mcp-server-git"]',
    "env": '{ GITHUB_TOKEN = "${GITHUB_TOKEN}" }',
    "env_pass": '["KUBECONFIG", "SSL_CERT_*"]',
    "cwd": '"/home/me/project"',
    "url": '"https://mcp.example.com/mcp"',
    "openapi": '"https://api.example.com/openapi.json"',
    "base_url": '"https://api.example.com/v1"',
    "operations": '["getPet", "GET /pets/*"]',
    "credentials": '{ api_key = "vault://secret/petstore" }',
    "headers": '{ Authorization = "Bearer ${TOKEN}" }',
    "ca_file": '"/etc/ssl/company.pem"',
    "client_cert": '"/home/me/.certs/me.pem"',
    "client_key": '"/home/me/.certs/me.key"',
    "call_timeout": "60",
    "start_timeout": "30",
    "era": '"auto"',
    "include_tools": '["read_*"]',
    "exclude_tools": '["delete_repository"]',
    "enabled": "true",
}
"""Example values by key, in TOML."""


_MEANT = {
    **dict.fromkeys(("bin", "cmd", "exe", "exec", "executable", "program"), "command"),
    **dict.fromkeys(("argv", "arguments", "parameters", "params"), "args"),
    **dict.fromkeys(("dir", "directory", "folder", "workdir", "working_dir", "working_directory"), "cwd"),
    **dict.fromkeys(("environ", "environment", "envs", "variables"), "env"),
    **dict.fromkeys(("env_vars", "inherit", "inherit_env", "pass_env"), "env_pass"),
    **dict.fromkeys(("address", "endpoint", "httpurl", "serverurl", "uri"), "url"),
    **dict.fromkeys(("http_headers",), "headers"),
    **dict.fromkeys(("openapi_spec", "openapi_url", "schema", "spec", "swagger"), "openapi"),
    **dict.fromkeys(("baseurl", "api_url", "server_url"), "base_url"),
    **dict.fromkeys(("operation_ids", "endpoints", "include_operations"), "operations"),
    **dict.fromkeys(("api_key", "security", "securityschemes", "security_schemes"), "credentials"),
    **dict.fromkeys(("ca", "ca_cert", "cacert", "cafile", "ca_bundle"), "ca_file"),
    **dict.fromkeys(("cert", "certificate", "client_certificate"), "client_cert"),
    **dict.fromkeys(("auth", "authorization"), "oauth"),
    **dict.fromkeys(("kind", "transport"), "type"),
    **dict.fromkeys(("request_timeout", "timeout", "tool_timeout", "tool_timeout_sec"), "call_timeout"),
    **dict.fromkeys(("startup_timeout", "startup_timeout_sec"), "start_timeout"),
    **dict.fromkeys(("active", "disabled"), "enabled"),
    **dict.fromkeys(("protocol", "protocol_version"), "era"),
    **dict.fromkeys(("allowed_tools", "enabled_tools", "includetools", "tools"), "include_tools"),
    **dict.fromkeys(("denied_tools", "disabled_tools", "disabledtools", "excludetools"), "exclude_tools"),
}
"""Keys that other clients and people use. By its letters alone, `cmd` would be nearest to `cwd`."""


def _check_keys(reader: _Table, kind: ServerType, table: Mapping[str, Any]) -> None:
    """Check that a table has the keys that a server of its type needs, and none that mean nothing for it.

    Raises:
        BridgeError: `bad_config`.
    """
    if kind == "stdio":
        if not table.get("command"):
            raise reader.error(
                "command", "is missing.", 'Give the executable that starts the server, such as command = "uvx".'
            )
        if "url" in table:
            raise reader.error("url", "has no meaning for a stdio server.", 'Set type = "http".')
        if unused := [key for key in (*_REMOTE_KEYS, *_OPENAPI_KEYS) if key in table]:
            hint = "Give the server's url, or leave it out."
            raise reader.error(unused[0], "has no meaning for a stdio server.", hint)
        return
    needed = "openapi" if kind == "openapi" else "url"
    if not table.get(needed):
        raise reader.error(needed, f"is missing for a server of type {kind}.")
    if "command" in table:
        hint = f'Leave it out, or set type = "stdio" and leave out {needed}.'
        raise reader.error("command", f"has no meaning for a server of type {kind}.", hint)
    if unused := [key for key in _STDIO_KEYS if key in table]:
        hint = f"Leave it out: nothing is started for a server with {'an' if needed == 'openapi' else 'a'} {needed}."
        raise reader.error(unused[0], f"has no meaning for a server of type {kind}.", hint)
    if kind == "openapi" and "url" in table:
        raise reader.error("url", "has no meaning for a server of type openapi.", "Write base_url.")
    if kind != "openapi" and (unused := [key for key in ("openapi", *_OPENAPI_KEYS) if key in table]):
        raise reader.error(unused[0], f"has no meaning for a server of type {kind}.", "Give openapi, and not url.")
    if "client_key" in table and "client_cert" not in table:
        raise reader.error("client_cert", "is missing for client_key.")


def spec_from_toml(name: str, table: Mapping[str, Any], file: str | Path) -> ServerSpec:
    """Decode one `[servers.NAME]` table.

    Args:
        name: The table's name.
        table: The decoded TOML table. Variables in it are not expanded.
        file: The configuration file, for error messages.

    Returns:
        The configuration, with `${VAR}` not yet expanded.

    Raises:
        BridgeError: `bad_config`: an unknown key (the hint names the nearest known key), a value of the wrong type,
            or a server with neither a command, a URL nor an OpenAPI document.
    """
    if not isinstance(table, dict):
        raise _error(str(file), "must be a table.", f"Write [servers.{name}].", name)
    reader = _Table(name, table, str(file))
    reader.refuse_unknown(_KEYS)
    default = "openapi" if "openapi" in table else "auto" if "url" in table else "stdio"
    kind = cast("ServerType", reader.choice("type", TYPES, default))
    command, url = reader.text("command"), reader.text("url")
    _check_keys(reader, kind, table)
    return ServerSpec(
        name=name,
        type=kind,
        command=command or "",
        args=reader.texts("args"),
        env=reader.mapping("env"),
        env_pass=reader.variables("env_pass"),
        cwd=reader.text("cwd"),
        url=reader.text("base_url") if kind == "openapi" else url,
        openapi=reader.document(),
        headers=reader.mapping("headers"),
        tls=TlsFiles(reader.path("ca_file"), reader.path("client_cert"), reader.path("client_key")),
        oauth=reader.oauth(),
        call_timeout=reader.seconds("call_timeout", CALL_TIMEOUT),
        start_timeout=reader.seconds("start_timeout", START_TIMEOUT),
        era=cast("Era", reader.choice("era", ERAS, "auto")),
        include_tools=reader.texts("include_tools") if "include_tools" in table else None,
        exclude_tools=reader.texts("exclude_tools"),
        enabled=reader.flag("enabled", default=True),
        source=str(file),
    )
