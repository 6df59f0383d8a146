"""What a bridge is known by: its name, its default address, what its tokens begin with, and this process's instance id.

The id is told to bridges alone, so that a bridge knows itself behind itself. Standard library only: servers are found
without loading more.
"""

from __future__ import annotations

import os
import re
from contextvars import ContextVar

NAME = "mcp-code-bridge"
"""What a bridge calls itself, as a server and as a client. A proxy may add to it."""

INSTANCE_KEY = "mcp-code-bridge/instance"
"""Where the `_meta` of a bridge's list of tools has its instance id: this list comes before any call, in both eras of
the protocol, and over any proxy."""

INSTANCE_ID = os.urandom(16).hex()

VIA_KEY = "mcp-code-bridge/via"
"""Where the `_meta` of a bridge's call to a bridge has the bridges that it has come through, the first one first: of
each its instance id, and what it calls the next one. In both eras of the protocol, and over any transport."""

MAX_BRIDGES = 8
"""A call comes through no more bridges. What is between them may take the marks away, or a bridge may be an older one:
then nothing of a cycle is seen."""

via: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("mcp_bridge_via", default=())
"""The bridges that the call has come through for which the current task works, as at `VIA_KEY`."""

_ID = re.compile(r"[0-9a-f]{32}")

_MAX_NAME_CHARS = 64


def decode_via(given: object) -> tuple[tuple[str, str], ...]:
    """What a call's `_meta` has at `VIA_KEY`. What isn't in its form has come through no bridge of this version."""
    if not isinstance(given, list):
        return ()
    rows = [row for row in given[: MAX_BRIDGES + 1] if isinstance(row, list) and len(row) == len(("id", "server"))]
    return tuple(
        # It is passed on: half a surrogate pair can't be.
        (instance, server[:_MAX_NAME_CHARS].encode(errors="replace").decode())
        for instance, server in rows
        if isinstance(instance, str) and isinstance(server, str) and _ID.fullmatch(instance)
    )


PATH, PORT = "/mcp", 8350
"""Where MCP is served over HTTP by default."""

TOKEN_PREFIX = "mcpb_"  # noqa: S105 - no token
"""What the bearer tokens of principals begin with."""
