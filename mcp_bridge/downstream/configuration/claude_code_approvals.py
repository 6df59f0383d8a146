"""Which of a project's servers the user has approved in Claude Code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_bridge.downstream.configuration import client_file_reading

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_bridge.downstream.configuration.client_file_reading import Problem


@dataclass(frozen=True, slots=True)
class ClaudeCodeApprovals:
    """The user's decisions in Claude Code about a project's servers. Claude Code stores names, without the commands.

    Attributes:
        every: Whether all servers are approved.
        names: The approved servers.
        refused: The servers that are never used.
    """

    every: bool
    names: frozenset[str]
    refused: frozenset[str]

    def allow(self, name: str) -> bool:
        """Whether a server of the project is approved."""
        return (self.every or name in self.names) and name not in self.refused


def claude_code_approvals(
    local: Sequence[Mapping[str, Any]], settings: Path, problems: list[Problem]
) -> ClaudeCodeApprovals:
    """The approvals in the project's parts of `~/.claude.json` and, for all projects, in `settings.json`.

    The latter counts if the user has accepted the folder in Claude Code, which starts none of its servers before.
    """
    general = client_file_reading.read(settings, "json", problems)
    accepted = any(part.get("hasTrustDialogAccepted") is True for part in local)
    sources = [*local, *([general] if accepted else [])]
    return ClaudeCodeApprovals(
        any(source.get("enableAllProjectMcpServers") is True for source in sources),
        frozenset().union(*(_names(source, "enabledMcpjsonServers") for source in sources)),
        frozenset().union(*(_names(source, "disabledMcpjsonServers") for source in [*local, general])),
    )


def _names(container: Mapping[str, Any], key: str) -> frozenset[str]:
    value = container.get(key)
    return frozenset(name for name in value if isinstance(name, str)) if isinstance(value, list) else frozenset()
