"""Getting a server ready, whichever protocol era it survives being asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.downstream.client.connection import Connection

# Of the start time-out: what the era probe may take before a second process is tried that speaks the old era only.
# The first one goes on meanwhile, since it may merely be slow.
PROBE_SHARE = 0.5


def load_sdk() -> None:
    """Import what takes a second; to be run in a thread, so that other servers' calls go on meanwhile."""
    importlib.import_module("mcp_bridge.downstream.client.connection")


async def first_ready(
    launch: Callable[[str], Connection], era: str, start_timeout: float, launched: list[Connection]
) -> Connection | None:
    """Start a server and wait until it is ready. The caller bounds the wait.

    With era `auto` a second process, which is spoken to in the old era only, joins when the first one fails or is
    slow: some old servers crash or hang on a first message they don't know.

    Args:
        launch: Starts a process to be spoken to in the given mode.
        era: `auto`, `legacy` or a modern version.
        start_timeout: What the caller will wait altogether, in seconds.
        launched: Gets every process started, so that the caller can end those that were not needed.

    Returns:
        The ready one, or None when all failed.
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
        if isinstance(first.failure, OSError | ValueError):
            return None  # it could not even be started
    launched.append(second := launch("legacy"))
    return await _first_of(first, second)


async def _first_of(*connections: Connection) -> Connection | None:
    """The first that gets ready, or None when all have failed."""
    winner: list[Connection] = []
    async with anyio.create_task_group() as tasks:

        async def watch(connection: Connection) -> None:
            await connection.settled.wait()
            if connection.failure is None:
                winner.append(connection)
                tasks.cancel_scope.cancel()

        for connection in connections:
            tasks.start_soon(watch, connection)
    return winner[0] if winner else None
