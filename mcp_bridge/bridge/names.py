"""Names of servers and tools as scripts and programs write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.downstream.aliases import derive, nearest
from mcp_bridge.errors import BridgeError
from mcp_bridge.policy.globs import ToolNames

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.downstream.tools import ToolInfo


PRINCIPAL = "local"
"""Whose executions are those of a bridge that one person has started."""


def tool_names(tool: ToolInfo) -> ToolNames:
    """A tool's names, for the policy."""
    return ToolNames(
        tool.server, tool.name, tool.server_alias, tool.alias, derive(tool.server, lower=True), derive(tool.name)
    )


def resolve(name: str, allowed: Mapping[str, str]) -> str:
    """A configured name from a name or an alias.

    Raises:
        BridgeError: `unknown_server`, with the nearest names; it doesn't tell of servers outside `allowed`.
    """
    if name in allowed:
        return name
    folded = name.casefold()
    for configured, alias in allowed.items():
        if folded in {alias.casefold(), configured.casefold()}:
            return configured
    known: Sequence[str] = [*allowed, *allowed.values()]
    close = nearest(name, known)
    if close:
        hint = f"Did you mean {', '.join(dict.fromkeys(close))}?"
    else:
        hint = f"Servers: {', '.join(sorted(allowed))}." if allowed else "None is configured."
    raise BridgeError(
        "unknown_server", f"There is no server {name[:100]!r}.", hint=hint, server=name[:100], nearest=close
    )


def split(name: str, allowed: Mapping[str, str]) -> tuple[str, str]:
    """`git.git_log` into server and tool, the tool empty for a server alone.

    A server's own name may hold dots: the longest that fits wins.

    Raises:
        BridgeError: As `resolve`.
    """
    for cut in [len(name), *(index for index in range(len(name) - 1, 0, -1) if name[index] == ".")]:
        try:
            return resolve(name[:cut], allowed), name[cut + 1 :]
        except BridgeError:
            continue
    return resolve(name.partition(".")[0], allowed), ""
