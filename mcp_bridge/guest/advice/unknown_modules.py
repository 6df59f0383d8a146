"""Advice on servers and modules that a script imports from `mcp`, and that aren't there."""

import sys

from mcp_bridge.guest import runtime
from mcp_bridge.guest.near_names import nearest
from mcp_bridge.guest.proxies import CALLS, LISTS

OF_SDK = frozenset({"client", "server", "shared", "types", "stdio_client", "os", "cli"})
"""Submodules of the SDK's package of the same name."""


def unknown_module(name: str, aliases: list[str], in_runtime: list[str], near_tools: list[str]) -> str:
    """The error message for an unknown module below `mcp`, or an unknown name in one: what to write instead.

    Args:
        name: The full name, such as `mcp.servers.gti`.
        aliases: The servers' aliases.
        in_runtime: The public names of `mcp.runtime`.
        near_tools: For a name in `mcp.tools`, the saved tools that may be meant.
    """
    for prefix in ("mcp.servers.", "mcp.sync.servers."):
        if name.startswith(prefix):
            server, _, tool = name.removeprefix(prefix).partition(".")
            if tool and server in aliases:
                tools = sys.modules[prefix + server].__dict__["__bridge__"]
                return str(tools.unknown(tool))
            if server in CALLS | LISTS and (line := runtime.usage(server, aliases)):
                return f"mcp.servers has no {server!r}; write: {line}"
            return f"no MCP server {server!r}{nearest(server, aliases)}"
    example = aliases[0] if aliases else "NAME"
    parent, _, last = name.rpartition(".")
    if parent == "mcp.runtime":
        return runtime.unknown(last, in_runtime, aliases)
    if parent == "mcp.tools":
        near = f"; nearest: {', '.join(near_tools)}" if near_tools else ""
        return (
            f"no saved tool {last!r}{near}: mcp.tools has what runtime.save_tool kept; "
            f"for a server's tool write: from mcp.servers import {example}"
        )
    if parent in {"mcp", "mcp.sync"} and last in aliases:
        return f"no module {name!r}; write: from {parent}.servers import {last}"
    if parent == "mcp.sync":
        return f"no {name!r}; write: from mcp.sync.servers import {example}"
    if parent == "mcp" and last in in_runtime:
        return f"mcp has no {last!r}, but its runtime; write: from mcp.runtime import {last}"
    if parent == "mcp" and last not in OF_SDK and not last[:1].isupper():
        return f"mcp has no {last!r}, and there is no MCP server of that name{nearest(last, aliases)}"
    if last.endswith("Error"):
        return f"no {name!r}; a call that fails raises ToolError; write: from mcp import ToolError"
    return (
        f"no {name!r}: mcp is the bridge here, not the SDK, and the servers are connected; "
        f"write: from mcp.servers import {example}, then await {example}.TOOL(...)"
    )
