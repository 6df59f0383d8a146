"""The identity of this process as a bridge, which it tells bridges alone, so that it knows itself behind itself."""

from __future__ import annotations

import os

NAME = "mcp-code-bridge"
"""What a bridge calls itself, as a server and as a client. A proxy may add to it."""

INSTANCE_KEY = "mcp-code-bridge/instance"
"""Where the `_meta` of a bridge's list of tools has its instance id: this list comes before any call, in both eras of
the protocol, and over any proxy."""

INSTANCE_ID = os.urandom(16).hex()
