"""A code-execution bridge for MCP: one tool, `run_python`, in front of every other server."""

from mcp_bridge._version import __version__

__all__ = ["__version__"]
