"""A code-execution bridge for MCP: one tool, `run_python`, in front of all other servers.

For the operator's own tools: `@mcp_bridge.tool`, `mcp_bridge.PENDING` and `mcp_bridge.current_call` (see
`mcp_bridge.registered`).
"""

from mcp_bridge._version import __version__

# This file is also sent to the container, where every import adds to the start: the constant is defined here instead of
# importing `typing`, and names of the host's modules are imported on first use.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from mcp_bridge.registered.current_call import current_call
    from mcp_bridge.registered.declaring import tool
    from mcp_bridge.registered.pending import PENDING

__all__ = ["PENDING", "__version__", "current_call", "tool"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "tool":
            from mcp_bridge.registered.declaring import tool as found  # noqa: PLC0415
        elif name == "PENDING":
            from mcp_bridge.registered.pending import PENDING as found  # noqa: N811, PLC0415
        elif name == "current_call":
            from mcp_bridge.registered.current_call import current_call as found  # noqa: PLC0415
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found
