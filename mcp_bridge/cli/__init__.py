"""The command line. `mcp-bridge` alone serves MCP on standard input and output."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point of `mcp-bridge` and `mcp-code-bridge`."""
    arguments = sys.argv[1:]
    if arguments in ([], ["serve"]):
        # What clients run, and wait for: it needs no option parser, which costs an eighth of the whole start.
        from mcp_bridge.cli.serve import serve  # noqa: PLC0415

        sys.exit(serve(None, bare=not arguments))
    from mcp_bridge.cli.app import app  # noqa: PLC0415

    app()
