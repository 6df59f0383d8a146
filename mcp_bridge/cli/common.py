"""What the commands share: configuration, exit codes, and errors on standard error."""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge import settings
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.bridge.governance import Governance
    from mcp_bridge.downstream.discovery import Discovery

OK, FAILED, USAGE, NO_SANDBOX, REFUSED, SUSPENDED, TIMED_OUT, INTERRUPTED = 0, 1, 2, 3, 4, 5, 124, 130

USAGE_CODES = frozenset(
    {
        "ambiguous_id",
        "backup_exists",
        "bad_argument",
        "bad_code",
        "bad_config",
        "bad_context",
        "bad_key",
        "bad_program",
        "bad_secret",
        "bad_timeout",
        "bad_tools",
        "code_too_large",
        "config_missing",
        "context_too_large",
        "empty_code",
        "invalid_program",
        "key_conflict",
        "reserved_name",
        "script_missing",
        "secret_elsewhere",
        "unknown_approval",
        "unknown_entry",
        "unknown_doubt",
        "unknown_profile",
        "unknown_program",
        "unknown_secret",
        "unknown_server",
        "unknown_step",
        "unknown_tool",
        "unknown_trace",
    }
)
REFUSED_CODES = frozenset({"already_decided", "denied", "nested_bridge"})

NESTED = "MCP_BRIDGE_NESTED"


_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Text of others for a terminal: controls (but newlines and tabs) and what turns text around are escaped."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def escaped_json(text: str) -> str:
    """JSON with the same in JSON's own escapes: the same value to whoever reads it."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class _Formatter(logging.Formatter):
    """A log for a terminal: servers and scripts have their words in it."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class Configuration(NamedTuple):
    """The settings, the file they came from, the servers, and the operator's word if the file has any."""

    settings: settings.Settings
    file: Path | None
    discovery: Discovery
    governance: Governance | None = None


def load(file: Path | None) -> settings.Loaded:
    """Read the configuration alone, and begin to log: for commands that need neither servers nor the operator's tools.

    Raises:
        BridgeError: `bad_config`, `config_missing`.
    """
    loaded = settings.load(file)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("mcp-bridge: %(levelname)s: %(message)s"))
    logging.basicConfig(level=loaded.settings.log_level.upper(), handlers=[handler])
    if loaded.settings.log_level != "debug":
        # A server's broken line is that server's: the SDK would log it whole, with whatever is in it.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
    return loaded


def base_of(loaded: settings.Loaded) -> Path:
    """The folder that paths in the configuration are relative to."""
    return loaded.file.absolute().parent if loaded.file else Path.cwd()


def configure(file: Path | None) -> Configuration:
    """Read the configuration, find the servers, load tools and programs.

    Raises:
        BridgeError: `bad_config`, `config_missing`, `bad_tools`, `bad_program`.
    """
    from mcp_bridge.downstream.discovery import discover  # noqa: PLC0415  (`version` and `--help` need none of it)

    loaded = load(file)
    found = discover(
        loaded.servers,
        config_file=loaded.file or "the configuration",
        environ=os.environ,
        cwd=Path.cwd(),
        home=Path.home(),
        client_configs=loaded.settings.client_configs,
        allow_self_server=loaded.settings.allow_self_server,
    )
    governance = None
    if loaded.tables and loaded.file:
        # Where the file says nothing of it, the bridge makes an empty one when it needs it: not on the way of `serve`.
        from mcp_bridge.bridge.governance import load_governance  # noqa: PLC0415

        governance = load_governance(loaded.tables, loaded.file, base_of(loaded), loaded.settings.state_dir)
    return Configuration(loaded.settings, loaded.file, found, governance)


def refuse_nesting(configuration: Configuration | settings.Loaded) -> None:
    """A bridge started by a bridge would start itself for ever.

    Raises:
        BridgeError: `nested_bridge`.
    """
    if os.environ.get(NESTED) and not configuration.settings.allow_self_server:
        raise BridgeError(
            "nested_bridge",
            "This bridge was started by a bridge, as one of its servers.",
            hint="Take it out of the servers, or set MCP_BRIDGE_ALLOW_SELF_SERVER=1.",
        )


def exit_code(error: BridgeError, other: int = NO_SANDBOX) -> int:
    """The exit status that stands for an error; `other` for what is no fault of the command line's."""
    if error.code in USAGE_CODES:
        return USAGE
    if error.code == "still_waiting":
        return SUSPENDED
    return REFUSED if error.code in REFUSED_CODES else other


def complain(error: BridgeError, other: int = NO_SANDBOX) -> int:
    """Say an error on standard error; its exit status."""
    print(printable(f"mcp-bridge: {error.code}: {error}"), file=sys.stderr)  # noqa: T201
    return exit_code(error, other)
