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
    from collections.abc import Iterable

    from mcp_bridge.downstream.configuration.discovery import Discovery, Problem
    from mcp_bridge.governance.governance import Governance
    from mcp_bridge.workspace.trust import PassedOver

OK, FAILED, USAGE, NO_SANDBOX, REFUSED, SUSPENDED, TIMED_OUT, INTERRUPTED = 0, 1, 2, 3, 4, 5, 124, 130

USAGE_CODES = frozenset(
    {
        "ambiguous_id",
        "backup_exists",
        "bad_argument",
        "bad_code",
        "bad_config",
        "bad_context",
        "bad_identity",
        "bad_key",
        "bad_passphrase",
        "bad_program",
        "bad_recipient",
        "bad_secret",
        "bad_timeout",
        "bad_tools",
        "code_too_large",
        "config_missing",
        "context_too_large",
        "empty_code",
        "invalid_program",
        "key_conflict",
        "log_unwritable",
        "nothing_to_trust",
        "reserved_name",
        "restore_exists",
        "script_missing",
        "secret_elsewhere",
        "unknown_approval",
        "unknown_entry",
        "unknown_run",
        "unknown_doubt",
        "unknown_profile",
        "unknown_program",
        "unknown_secret",
        "unknown_server",
        "unknown_step",
        "unknown_tool",
        "unknown_trace",
        "usage",
    }
)
REFUSED_CODES = frozenset({"already_decided", "bridge_at_work", "denied", "nested_bridge", "not_asked"})

NESTED = "MCP_BRIDGE_NESTED"

MAX_NAMED, MAX_NAMED_CHARS = 10, 500
"""Servers, and their names' characters, in the line that says that they are left out."""


_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Text of others for a terminal: controls (but newlines and tabs) and what turns text around are escaped."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def escaped_json(text: str) -> str:
    """JSON with the same in JSON's own escapes: the same value to whoever reads it."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """Text of others within a line: whatever shows as nothing, as another line or as something else is escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode("ascii")
        for char in text
    )


class _Formatter(logging.Formatter):
    """A log for a terminal: servers and scripts have their words in it."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class Configuration(NamedTuple):
    """The settings, the file they came from, the servers, and the operator's word if there is any in a file.

    `passed_over` has the folder's files that take no part; `floor` is the user's own file beneath a folder's;
    `loaded` is what the files say, undecoded.
    """

    settings: settings.Settings
    file: Path | None
    discovery: Discovery
    governance: Governance | None = None
    passed_over: tuple[PassedOver, ...] = ()
    floor: Path | None = None
    loaded: settings.Loaded | None = None


def load(file: Path | None, *, folder: bool = True, quiet: bool = False) -> settings.Loaded:
    """Read the configuration alone, and begin to log: for commands that need neither servers nor the operator's tools.

    Args:
        file: The file that was named.
        folder: Whether the folder's file has a say: not where the command is about somebody's file.
        quiet: Say nothing of the folder's files that take no part: the command shows them itself.

    Raises:
        BridgeError: `bad_config`, `config_missing`, `log_unwritable`.
    """
    loaded = settings.load(file, folder=folder)
    if not quiet:
        notice(loaded.passed_over)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("mcp-bridge: %(levelname)s: %(message)s"))
    logging.basicConfig(level=loaded.settings.log_level.upper(), handlers=[handler])
    if loaded.settings.log_file is not None:
        from mcp_bridge.cli.log_file import log_to  # noqa: PLC0415  (few have one)

        log_to(loaded.settings.log_file)
    if loaded.settings.log_level != "debug":
        # A server's broken line is that server's: the SDK would log it whole, with whatever is in it.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
    return loaded


_noticed: set[PassedOver | Problem] = set()


def notice(files: Iterable[PassedOver]) -> None:
    """Say on standard error, once each, which of the folder's files take no part: whatever is logged."""
    for file in files:
        if file not in _noticed:
            _noticed.add(file)
            some = ", ".join(file.servers[:MAX_NAMED]) + (", …" if len(file.servers) > MAX_NAMED else "")
            servers = f" Left out: {some[:MAX_NAMED_CHARS]}." if some else ""
            print(one_line(f"mcp-bridge: {file.code}: {file.message}{servers} {file.hint}"), file=sys.stderr)  # noqa: T201


def notice_problems(problems: Iterable[Problem]) -> None:
    """Say on standard error, once each, which of the clients' files can't be read: their servers are missing."""
    for problem in problems:
        if problem not in _noticed:
            _noticed.add(problem)
            where = f"{problem.file}, line {problem.line}" if problem.line else problem.file
            print(one_line(f"mcp-bridge: {problem.code}: {where}: {problem.message}"), file=sys.stderr)  # noqa: T201


def discovered(loaded: settings.Loaded, *, quiet: bool = False) -> Discovery:
    """Find the servers.

    Args:
        loaded: The configuration.
        quiet: Say nothing of files that can't be read: the command shows them itself.

    Raises:
        BridgeError: `bad_config`.
    """
    from mcp_bridge.downstream.configuration.discovery import discover  # noqa: PLC0415  (`version` and `--help` need none of it)

    own = next((layer for layer in loaded.layers if layer.trusted is None), None)
    folder = next((layer for layer in loaded.layers if layer.trusted is not None), None)
    found = discover(
        own.servers if own else {},
        config_file=(own.file if own else None) or "the configuration",
        environ=os.environ,
        cwd=Path.cwd(),
        home=Path.home(),
        client_configs=loaded.settings.client_configs,
        allow_self_server=loaded.settings.allow_self_server,
        folder=folder.servers if folder else {},
        trusted=folder.trusted if folder else None,
        trust=loaded.trust,
        shelter=Path.home(),
        everywhere=not loaded.named,
    )
    if not quiet:
        notice(found.passed_over)
        notice_problems(found.problems)
    return found


def strangers(loaded: settings.Loaded, found: Discovery) -> frozenset[str]:
    """The servers that the folder configures, where that makes a difference: a file that was named means them all."""
    return frozenset() if loaded.named else found.strangers


def configure(file: Path | None, *, quiet: bool = False) -> Configuration:
    """Read the configuration, find the servers, load tools and programs.

    Args:
        file: The file that was named.
        quiet: As `discovered`; also of the folder's files that take no part.

    Raises:
        BridgeError: `bad_config`, `config_missing`, `bad_tools`, `bad_program`.
    """
    loaded = load(file, quiet=quiet)
    found = discovered(loaded, quiet=quiet)
    governance = None
    if loaded.has_tables:
        # Where no file says anything, the bridge makes an empty one when it needs it: not on the way of `serve`.
        from mcp_bridge.governance.governance import govern  # noqa: PLC0415

        governance = govern(loaded.layers, loaded.settings.state_dir, strangers(loaded, found))
    passed_over = (*loaded.passed_over, *found.passed_over)
    floor = loaded.layers[0].file if len(loaded.layers) > 1 else None
    return Configuration(loaded.settings, loaded.file, found, governance, passed_over, floor, loaded)


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
