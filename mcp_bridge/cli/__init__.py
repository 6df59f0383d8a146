"""The command line. `mcp-bridge` alone serves MCP on standard input and output."""

from __future__ import annotations

import gc
import os
import sys

from mcp_bridge.cli import process_start
from mcp_bridge.cli.streams import hold_streams


def main() -> None:
    """The entry point of `mcp-bridge` and `mcp-code-bridge`."""
    process_start.end_at_sigint()
    hold_streams()
    arguments = sys.argv[1:]
    if process_start.is_folder_gone():
        from mcp_bridge.cli import exit_statuses
        from mcp_bridge.errors import BridgeError

        gone = BridgeError("bad_argument", "The folder that you are in is gone.", hint="Change to another: cd ~.")
        if arguments and "serve" not in arguments:
            sys.exit(exit_statuses.print_error(gone, exit_statuses.USAGE))
        # A client can't change it, and would see its connection closed.
        os.chdir("/")
    # Garbage collections would scan what is imported again and again, and find nothing.
    gc.disable()
    if arguments in ([], ["serve"]):
        # The path that MCP clients run and wait for: it skips the option parser, an eighth of the whole start.
        # `server.process_memory` enables collections before anything is served.
        from mcp_bridge.cli.commands.serve import serve

        sys.exit(serve(None, bare=not arguments))
    from mcp_bridge.cli.app import app

    gc.freeze()
    gc.enable()
    process_start.raise_at_sigint()
    app()
