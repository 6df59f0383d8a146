"""The command line. `mcp-bridge` alone serves MCP on standard input and output."""

from __future__ import annotations

import gc
import sys

from mcp_bridge.cli import interrupts
from mcp_bridge.cli.streams import hold_streams


def main() -> None:
    """The entry point of `mcp-bridge` and `mcp-code-bridge`."""
    interrupts.end_at_once()
    hold_streams()
    arguments = sys.argv[1:]
    if arguments in ([], ["serve"]):
        # The path that MCP clients run and wait for: it skips the option parser, an eighth of the whole start.
        # Garbage collections would scan what is imported again and again, and find nothing. `server.process_memory`
        # enables them before anything is served.
        gc.disable()
        from mcp_bridge.cli.commands.serve import serve

        sys.exit(serve(None, bare=not arguments))
    from mcp_bridge.cli.app import app

    interrupts.raise_again()
    app()
