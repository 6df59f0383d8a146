"""Removes containers after their executions have answered.

An answer doesn't wait for the removal of its container, which can take longer than the execution. Nor does the guest
leave before the answer is given: the end of two processes and their namespaces takes the processors. But removals are
counted: executions wait while too many are under way, so that containers don't pile up under sustained load.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from mcp_bridge.sandbox.engine import SandboxProcess

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.02
"""How long a removal waits, so that the answer gets the processors first."""

LEAVE_SECONDS = 2.0
"""How long a container may take to end by itself after its result, before it is killed."""


class Removals:
    """The removals under way.

    Args:
        tasks: The task group that they run in; it must not end before they do.
        limit: The number of removals from which on executions wait.
    """

    def __init__(self, tasks: TaskGroup, limit: int) -> None:
        self._tasks = tasks
        self._limit = limit
        self._gone = anyio.Event()
        self.under_way = 0

    async def room(self) -> None:
        """Wait until fewer than the limit are under way."""
        while self.under_way >= self._limit:
            await self._gone.wait()

    def leave(self, process: SandboxProcess, acknowledgement: bytes) -> None:
        """Remove a container that has delivered its result, once it has ended.

        Args:
            process: The container.
            acknowledgement: The frame upon which its guest leaves.
        """
        self._add(process, acknowledgement)

    def end(self, process: SandboxProcess) -> None:
        """Kill and remove a container."""
        self._add(process, b"")

    def _add(self, process: SandboxProcess, acknowledgement: bytes) -> None:
        self.under_way += 1
        self._tasks.start_soon(self._remove, process, acknowledgement)

    async def _remove(self, process: SandboxProcess, acknowledgement: bytes) -> None:
        try:
            with anyio.CancelScope(shield=True):
                if acknowledgement:
                    await anyio.sleep(PAUSE_SECONDS)
                    with anyio.move_on_after(LEAVE_SECONDS):
                        await _dismiss(process, acknowledgement)
                await process.aclose()
        finally:
            self.under_way -= 1
            self._gone.set()
            self._gone = anyio.Event()


async def _dismiss(process: SandboxProcess, acknowledgement: bytes) -> None:
    """Let a guest leave that has delivered its result, and wait until its container has ended."""
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.send(acknowledgement)
    try:
        await process.wait()
    except BridgeError as exc:
        logger.debug("the container of a finished execution: %s", exc)
