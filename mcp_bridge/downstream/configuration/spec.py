"""The configuration of one downstream server."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.downstream.configuration.env_pass import EnvPass
    from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettings

ServerType = Literal["stdio", "auto", "http", "sse", "openapi"]
Era = Literal["auto", "legacy", "2026-07-28"]
Scope = Literal["config", "folder", "local", "project", "user"]

TYPES: tuple[ServerType, ...] = ("stdio", "auto", "http", "sse", "openapi")
OWN_SCOPES: frozenset[Scope] = frozenset({"config", "folder"})
"""Of our own TOML; the others are of clients' files."""

ERAS: tuple[Era, ...] = ("auto", "legacy", "2026-07-28")

# How long a tool call may take once its server is ready; the default of most MCP clients.
CALL_TIMEOUT = 60.0

# How long from the start of the process to its listing; package runners may have to download packages first.
START_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of a remote server's TLS connection, in PEM.

    Attributes:
        ca_file: Certificate authorities to trust instead of the system's, or None.
        client_cert: The certificate (with its chain) that the bridge shows, or None.
        client_key: Its private key, if that isn't in the same file.
    """

    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The files that are named."""
        return tuple(path for path in (self.ca_file, self.client_cert, self.client_key) if path is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenApiDocument:
    """The document of a service that is no MCP server, and what of it is used.

    Attributes:
        location: The address of the document, or the path of its file; once expanded, an absolute path.
        operations: The operations that are tools: ids, or a method and a path, with `*`, `?` and `[…]`; None for those
            that only read.
        credentials: Credentials by the names of the document's security schemes. A value may contain
            `vault://secret/…`, which is replaced when the document is read.
    """

    location: str
    operations: tuple[str, ...] | None = None
    credentials: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"OpenApiDocument(operations={self.operations!r}, credentials={sorted(self.credentials)})"

    @property
    def is_remote(self) -> bool:
        """Whether it is read over HTTP."""
        return self.location.lower().startswith(("http://", "https://"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """The configuration of one server, with variables expanded.

    `repr` and `str` show no arguments, values of `env`, URL or headers: any of them may contain a secret.

    Attributes:
        name: The name in the configuration.
        type: The transport: a process's standard input and output (`stdio`), streamable HTTP (`http`), HTTP with
            server-sent events as in protocol version 2024-11-05 (`sse`), or `auto`: streamable HTTP, and `sse` where
            the server's answer says that it doesn't speak that. `openapi` is no MCP server: an OpenAPI document says
            what can be called.
        command: The executable, looked up on the PATH of the child's environment.
        args: The command's arguments.
        env: Variables in addition to those passed on from the bridge's environment.
        unset: Variables of the bridge's environment that aren't passed on, whatever `env_pass` says.
        env_pass: Which variables of the bridge's environment are passed on; None for the setting's value.
        cwd: The working directory, or None for the bridge's.
        url: The address of a remote server, whose query may contain a secret; or the one that a service's operations
            are called at, if the configuration has it.
        openapi: The document of a service that is no MCP server, or None.
        headers: The headers of every request to a remote server. A value may contain `vault://secret/…`, which is
            replaced when a connection is opened.
        tls: The files of a remote server's TLS connection; once expanded, as absolute paths.
        oauth: How to get tokens for a remote server, or None if the configuration doesn't say.
        variables: The environment variables that the URL, the headers and the settings of OAuth were expanded from.
        call_timeout: Seconds that one call may take.
        start_timeout: Seconds from the start of the process, or of the first connection, to its listing.
        era: The protocol era to speak; `auto` probes.
        include_tools: Shell patterns (`*`, `?`, `[…]`) of the names of the only tools that there are; None for all.
        exclude_tools: Patterns of tools that there aren't, even if `include_tools` has them.
        enabled: False for a server that is listed and never started.
        source: The configuration file.
        scope: The kind of configuration file; `folder` (our own TOML) and `project` files come with a checkout, which
            others may have written.
        problem: Why the server can't be used as configured, or None.
        unused: Why some of what its client's entry says isn't used, or None.
        may_be_bridge: Whether it may be another bridge: not if it was found in a client's file, which doesn't mean it
            to be a server of ours, and may have a principal's token for the client alone.
        scripts: For a server that comes with a folder, the trusted SHA-256 of each of the folder's files that its
            command names, by path. The server is only started if they still match.
    """

    name: str
    type: ServerType = "stdio"
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    env_pass: EnvPass | None = None
    cwd: str | None = None
    url: str | None = None
    openapi: OpenApiDocument | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: TlsFiles = TlsFiles()
    oauth: OAuthSettings | None = None
    variables: frozenset[str] = frozenset()
    call_timeout: float = CALL_TIMEOUT
    start_timeout: float = START_TIMEOUT
    era: Era = "auto"
    include_tools: tuple[str, ...] | None = None
    exclude_tools: tuple[str, ...] = ()
    enabled: bool = True
    source: str = ""
    scope: Scope = "config"
    problem: str | None = None
    unused: str | None = None
    may_be_bridge: bool = True
    scripts: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"ServerSpec(name={self.name!r}, type={self.type!r}, command={self.command!r}, "
            f"args=<{len(self.args)}>, env={sorted(self.env)}, headers={sorted(self.headers)}, source={self.source!r})"
        )

    __str__ = __repr__

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes it the server that it is, whatever it is called. Entries with the same are one server."""
        env, headers = tuple(sorted(self.env.items())), tuple(sorted(self.headers.items()))
        document = None if self.openapi is None else (self.openapi.location, self.openapi.operations)
        return self.is_remote, self.command, self.args, env, self.unset, self.cwd, self.url, document, headers

    @property
    def is_remote(self) -> bool:
        """Whether it is reached over HTTP, and not started as a process."""
        return self.type != "stdio"

    @property
    def address(self) -> str | None:
        """Where a remote server is: its URL, or else the address of its document."""
        if self.url is None and self.openapi is not None and self.openapi.is_remote:
            return self.openapi.location
        return self.url

    @property
    def comes_with_folder(self) -> bool:
        """Whether its entry comes with a folder, and not from the user."""
        return self.scope in {"folder", "project"}

    def fingerprint(self) -> str:
        """SHA-256, in hex, of everything that determines the server's tools; reveals no secret."""
        identity: list[object] = [
            self.name,
            self.type,
            self.command,
            list(self.args),
            sorted(self.env.items()),
            self.cwd,
            self.url,
            sorted(self.headers.items()),
        ]
        if self.include_tools is not None or self.exclude_tools:
            identity.append([self.include_tools, self.exclude_tools])
        if self.unset:
            identity.append(["unset", *self.unset])
        if self.openapi is not None:
            identity.append([self.openapi.location, self.openapi.operations, sorted(self.openapi.credentials)])
        if self.scripts:
            # A relative command is a different server in a different folder, and after a change of the file.
            identity.append(sorted(self.scripts.items()))
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()
