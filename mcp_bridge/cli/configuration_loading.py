"""The configuration as commands read it, and warnings about files that are left out of it."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge import settings
from mcp_bridge.bridge_identity import PORT
from mcp_bridge.downstream.configuration.self_reference.addresses import OwnAddress
from mcp_bridge.downstream.http.request_logging import log_no_requests
from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import escape_line
from mcp_bridge.telemetry.log_format import formatter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mcp_bridge.downstream.configuration.client_file_reading import Problem
    from mcp_bridge.downstream.configuration.discovery import Discovery
    from mcp_bridge.governance.governance import Governance
    from mcp_bridge.workspace.trust import IgnoredFile

NESTED = "MCP_BRIDGE_NESTED"

MAX_LISTED, MAX_LISTED_CHARS = 10, 500
"""Limits on the names of servers that a message lists: their number and characters."""


class Configuration(NamedTuple):
    """The settings, their file, the servers, and the governance if a file has any.

    `ignored_files` are the folder's files that aren't used; `floor` is the user's own file under a folder's; `loaded`
    is the undecoded content of the files; `own_address` is as discovery has taken it.
    """

    settings: settings.Settings
    file: Path | None
    discovery: Discovery
    governance: Governance | None = None
    ignored_files: tuple[IgnoredFile, ...] = ()
    floor: Path | None = None
    loaded: settings.Loaded | None = None
    own_address: OwnAddress = OwnAddress()


def load(file: Path | None, *, folder: bool = True, quiet: bool = False) -> settings.Loaded:
    """Read the configuration alone and set up logging, for commands that need no servers and no operator's tools.

    Args:
        file: The file given by `--config`, or None.
        folder: Whether the folder's file is used; False for commands on files that may be anybody's.
        quiet: Whether to print nothing about the folder's files that are ignored, because the command shows them.

    Raises:
        BridgeError: `bad_config`, `config_missing`, `log_unwritable`.
    """
    loaded = settings.load(file, folder=folder)
    if not quiet:
        warn_ignored_files(loaded.ignored_files)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(loaded.settings.log_format, dated=False))
    logging.basicConfig(level=loaded.settings.log_level.upper(), handlers=[handler])
    if loaded.settings.log_file is not None:
        from mcp_bridge.cli.log_file import log_to

        log_to(loaded.settings.log_file, loaded.settings.log_format)
    if loaded.settings.log_level != "debug":
        # The SDK would log a server's malformed message completely, with any secrets in it.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
    # Whoever sends them: a login, and what is published, too.
    log_no_requests()
    return loaded


def keep_information_off_terminal() -> None:
    """Log what is only for information to `log_file` alone: a command that explains itself shows what it finds."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            handler.addFilter(lambda record: record.levelno != logging.INFO)


_noticed: set[IgnoredFile | Problem] = set()


def _print(text: str) -> None:
    print(f"mcp-bridge: {text}", file=sys.stderr)  # noqa: T201


def warn_ignored_files(files: Iterable[IgnoredFile], say: Callable[[str], None] = _print) -> None:
    """Say, once each, which of the folder's files are ignored: on standard error, whatever the log level."""
    for file in files:
        if file not in _noticed:
            _noticed.add(file)
            some = listed(file.servers)
            servers = f" Left out: {some[:MAX_LISTED_CHARS]}." if some else ""
            say(escape_line(f"{file.code}: {file.message}{servers} {file.hint}"))


def warn_problems(problems: Iterable[Problem], say: Callable[[str], None] = _print) -> None:
    """Say, once each, which of the clients' files can't be read: their servers are missing."""
    for problem in problems:
        if problem not in _noticed:
            _noticed.add(problem)
            where = f"{problem.file}, line {problem.line}" if problem.line else problem.file
            say(escape_line(f"{problem.code}: {where}: {problem.message}"))


def listed(names: Sequence[str]) -> str:
    """The first names of servers for a message, with an ellipsis if there are more."""
    return ", ".join(names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")


def own_address(configured: settings.Settings, port: int = PORT) -> OwnAddress:
    """Where bridges of this configuration serve over HTTP: by default, and now.

    Args:
        configured: The settings.
        port: The port; 0 for any free one.
    """
    from mcp_bridge.ledger.storage.live_bridges import http_ports

    ports = (port, *http_ports(configured.state_dir))
    return OwnAddress(ports, configured.http.path, configured.http.allowed_hosts)


def discover_servers(loaded: settings.Loaded, *, quiet: bool = False, address: OwnAddress | None = None) -> Discovery:
    """Discover the servers.

    Args:
        loaded: The configuration.
        quiet: Whether to print nothing about files that can't be read, because the command shows them.
        address: Where the bridge serves over HTTP; by default `own_address`.

    Raises:
        BridgeError: `bad_config`.
    """
    from mcp_bridge.downstream.configuration.discovery import discover

    own = next((layer for layer in loaded.layers if layer.trusted is None), None)
    folder = next((layer for layer in loaded.layers if layer.trusted is not None), None)
    discovery = discover(
        own.servers if own else {},
        config_file=(own.file if own else None) or "the configuration",
        environ=os.environ,
        cwd=Path.cwd(),
        home=Path.home(),
        clients=loaded.settings.clients,
        allow_self_server=loaded.settings.allow_self_server,
        own_address=address or own_address(loaded.settings),
        folder=folder.servers if folder else {},
        trusted=folder.trusted if folder else None,
        trust=loaded.trust,
        safe_directory=Path.home(),
        for_every_folder=not loaded.named,
    )
    if not quiet:
        warn_ignored_files(discovery.ignored_files)
        warn_problems(discovery.problems)
    return discovery


def folder_servers(loaded: settings.Loaded, discovery: Discovery) -> frozenset[str]:
    """The servers that the folder configures. Empty if a configuration file was given, which then covers them all."""
    return frozenset() if loaded.named else discovery.folder_servers


def configure(file: Path | None, *, quiet: bool = False, port: int = PORT) -> Configuration:
    """Read the configuration, discover the servers, load tools and programs.

    Args:
        file: The file given by `--config`, or None.
        quiet: As `discover_servers`; applies to the folder's ignored files, too.
        port: As `own_address`.

    Raises:
        BridgeError: `bad_config`, `config_missing`, `bad_tools`, `bad_program`.
    """
    loaded = load(file, quiet=quiet)
    address = own_address(loaded.settings, port)
    discovery = discover_servers(loaded, quiet=quiet, address=address)
    governance = None
    if loaded.has_tables:
        # Without tables there is nothing to load, and `serve` must start quickly: the bridge makes an empty one.
        from mcp_bridge.governance.governance import govern

        governance = govern(loaded.layers, loaded.settings.state_dir, folder_servers(loaded, discovery))
    ignored_files = (*loaded.ignored_files, *discovery.ignored_files)
    floor = loaded.layers[0].file if len(loaded.layers) > 1 else None
    return Configuration(loaded.settings, loaded.file, discovery, governance, ignored_files, floor, loaded, address)


def refuse_nesting(configuration: Configuration | settings.Loaded) -> None:
    """Refuse to run inside another bridge, which would start further ones without end.

    Raises:
        BridgeError: `nested_bridge`.
    """
    if os.environ.get(NESTED) and not configuration.settings.allow_self_server:
        raise BridgeError(
            "nested_bridge",
            "This bridge was started by a bridge, as one of its servers.",
            hint="Take it out of the servers, or set MCP_BRIDGE_ALLOW_SELF_SERVER=1.",
        )
