"""`mcp-bridge serve`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from mcp_bridge.cli import common
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from pathlib import Path


def serve(config: Path | None, *, programs: bool = False) -> int:
    """Serve MCP on standard input and output until it ends; the exit status.

    Args:
        config: The configuration file that was named.
        programs: Offer tools for programs beside run_python.
    """
    try:
        configuration = common.configure(config)
        common.refuse_nesting(configuration)
    except BridgeError as exc:
        return common.complain(exc)
    import anyio  # noqa: PLC0415

    from mcp_bridge.server.app import serve_stdio  # noqa: PLC0415  (the SDK takes most of a second)

    specs = list(configuration.discovery.servers.values())
    try:
        serving = functools.partial(serve_stdio, programs=programs, missing=configuration.discovery.missing)
        anyio.run(serving, configuration.settings, specs, configuration.governance)
    except BridgeError as exc:
        return common.complain(exc)
    return common.OK
