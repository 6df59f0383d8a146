"""How many files and connections a bridge may have open while it serves over HTTP."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.server.configuration_reload import Configured

SANDBOX_DESCRIPTORS, SERVER_DESCRIPTORS, OTHER_DESCRIPTORS = 16, 16, 256
"""Files and connections that may be open for each sandbox, for each server, and for all else but clients."""


def needed_descriptors(configured: Configured) -> int:
    """The most descriptors that a bridge has open while it serves, at its limits."""
    settings = configured.settings
    idle = max(settings.pool_min, settings.pool_max) + settings.sessions.max_idle_together
    sandboxes = settings.max_concurrent + idle
    return (
        settings.http.max_connections
        + sandboxes * SANDBOX_DESCRIPTORS
        + len(configured.specs) * SERVER_DESCRIPTORS
        + OTHER_DESCRIPTORS
    )


def allow_descriptors(needed: int, hint: str) -> None:
    """Raise the process's soft limit on open files to what it needs, if that is more (RLIMIT_NOFILE, getrlimit(2)).

    At its limit a process accepts no connection, and starts no sandbox.

    Args:
        needed: The most descriptors that it has open at once.
        hint: What to do where the hard limit is lower.

    Raises:
        BridgeError: `too_few_descriptors`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        message = f"The bridge may need {needed} open files and connections, and the hard limit (ulimit -Hn) is {hard}."
        raise BridgeError("too_few_descriptors", message, hint=hint, needed=needed, limit=hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
