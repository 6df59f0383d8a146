"""Starts a server until it is ready, with a fallback for servers that don't survive the protocol era probe."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.downstream.client.connection_interface import ServerConnection

# The share of the start time-out after which a second process is started that is only spoken to in the old protocol
# era. The first process continues meanwhile, since it may merely be slow.
PROBE_SHARE = 0.5


def load_sdk() -> None:
    """Import the SDK, which takes a second. Run this in a thread so that calls of other servers continue meanwhile."""
    importlib.import_module("mcp_bridge.downstream.client.mcp_connection")


async def first_ready(
    launch: Callable[[str], ServerConnection], era: str, start_timeout: float, launched: list[ServerConnection]
) -> ServerConnection | None:
    """Start a server and wait until it is ready. The caller bounds the wait.

    With era `auto`, a second process joins when the first one fails or is slow, and is only spoken to in the old
    protocol era: some old servers crash or hang on an unknown first message.

    Args:
        launch: Starts a process that is spoken to in the given mode.
        era: `auto`, `legacy` or a modern version.
        start_timeout: Seconds that the caller will wait in total.
        launched: Receives every process started, so that the caller can end those that aren't needed.

    Returns:
        The connection that is ready, or None if all failed.
    """
    launched.append(first := launch(era))
    if era != "auto":
        await first.settled.wait()
        return first if first.failure is None else None
    with anyio.move_on_after(start_timeout * PROBE_SHARE):
        await first.settled.wait()
    if first.settled.is_set():
        if first.failure is None:
            return first
        if isinstance(first.failure, OSError | ValueError | BridgeError) or first.is_remote:
            # The process could not be started, or is refused; a remote server has been spoken to in both eras.
            return None
    launched.append(second := launch("legacy"))
    return await _first_of(first, second)


async def _first_of(*connections: ServerConnection) -> ServerConnection | None:
    """The first connection that becomes ready, or None if all fail."""
    winner: list[ServerConnection] = []
    async with anyio.create_task_group() as tasks:

        async def watch(connection: ServerConnection) -> None:
            await connection.settled.wait()
            if connection.failure is None:
                winner.append(connection)
                tasks.cancel_scope.cancel()

        for connection in connections:
            tasks.start_soon(watch, connection)
    return winner[0] if winner else None
