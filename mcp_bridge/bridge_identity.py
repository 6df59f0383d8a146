"""What a bridge is known by: its name, its default address, what its tokens begin with, and this process's instance id.

The id is told to bridges alone, so that a bridge knows itself behind itself. Standard library only: servers are found
without loading more.
"""

from __future__ import annotations

import os

NAME = "mcp-code-bridge"
"""What a bridge calls itself, as a server and as a client. A proxy may add to it."""

INSTANCE_KEY = "mcp-code-bridge/instance"
"""Where the `_meta` of a bridge's list of tools has its instance id: this list comes before any call, in both eras of
the protocol, and over any proxy."""

INSTANCE_ID = os.urandom(16).hex()

PATH, PORT = "/mcp", 8350
"""Where MCP is served over HTTP by default."""

TOKEN_PREFIX = "mcpb_"  # noqa: S105 - no token
"""What the bearer tokens of principals begin with."""
