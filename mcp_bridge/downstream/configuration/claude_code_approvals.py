"""Which servers the user has approved in Claude Code, and which the user has switched off or denied there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.downstream.configuration.spec import ServerSpec


@dataclass(frozen=True, slots=True)
class ClaudeCodeApprovals:
    """The user's decisions in Claude Code about a project's servers. Claude Code stores names, without the commands.

    Attributes:
        every: Whether all servers are approved.
        names: The approved servers.
        refused: The project's servers that are never used.
        switched_off: The servers that are switched off for the project, wherever they are configured.
    """

    every: bool
    names: frozenset[str]
    refused: frozenset[str]
    switched_off: frozenset[str]

    def allow(self, name: str) -> bool:
        """Whether a server of the project is approved."""
        return (self.every or name in self.names) and name not in self.refused


def claude_code_approvals(local: Sequence[Mapping[str, Any]], general: Mapping[str, Any]) -> ClaudeCodeApprovals:
    """The approvals in the project's parts of `~/.claude.json` and, for all projects, in `settings.json`.

    The latter counts if the user has accepted the folder in Claude Code, which starts none of its servers before.
    """
    accepted = any(part.get("hasTrustDialogAccepted") is True for part in local)
    sources = [*local, *([general] if accepted else [])]
    return ClaudeCodeApprovals(
        any(source.get("enableAllProjectMcpServers") is True for source in sources),
        frozenset().union(*(_names(source, "enabledMcpjsonServers") for source in sources)),
        frozenset().union(*(_names(source, "disabledMcpjsonServers") for source in [*local, general])),
        frozenset().union(*(_names(part, "disabledMcpServers") for part in local)),
    )


def folders_without(projects: Mapping[str, Any], name: str) -> list[str]:
    """The folders, as keys of `projects` in Claude Code's file, for which a server is switched off (`/mcp`)."""
    parts = ((folder, part) for folder, part in projects.items() if isinstance(part, dict))
    return [folder for folder, part in parts if name in _names(part, "disabledMcpServers")]


@dataclass(frozen=True, slots=True)
class Denials:
    """What `deniedMcpServers` of the user's settings denies, whichever file has the server.

    Attributes:
        rows: Its rows: each has a name, a command with all its arguments, or an address with stars.
    """

    rows: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Denials:
        """Those of the settings' content."""
        rows = settings.get("deniedMcpServers")
        return cls(tuple(row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ())

    def deny(self, spec: ServerSpec) -> bool:
        """Whether a server is denied."""
        words = [spec.command, *spec.args]
        return any(
            row.get("serverName") == spec.name
            or (not spec.is_remote and row.get("serverCommand") == words)
            or (spec.url is not None and _fits(spec.url, row.get("serverUrl")))
            for row in self.rows
        )


def _fits(url: str, pattern: Any) -> bool:
    return isinstance(pattern, str) and fnmatchcase(url, re.sub(r"([?\[])", r"[\1]", pattern))


def _names(container: Mapping[str, Any], key: str) -> frozenset[str]:
    value = container.get(key)
    return frozenset(name for name in value if isinstance(name, str)) if isinstance(value, list) else frozenset()
