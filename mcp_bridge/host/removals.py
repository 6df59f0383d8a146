"""Containers whose executions have answered, until they are gone.

An answer doesn't wait for the removal of its container, which can take longer than the execution. But it is counted:
executions wait while too many containers are still to go, so that sustained load doesn't pile them up.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from mcp_bridge.sandbox.engine import SandboxProcess

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.02
"""How long the removal of a container leaves the processors to its answer."""

LEAVE_SECONDS = 2.0
"""How long a container whose result has come may take to end by itself before it is killed."""


class Removals:
    """The containers on their way out.

    Args:
        tasks: Removes them; it must not end before they are gone.
        limit: How many there may be before executions wait.
    """

    def __init__(self, tasks: TaskGroup, limit: int) -> None:
        self._tasks = tasks
        self._limit = limit
        self._gone = anyio.Event()
        self.under_way = 0

    async def room(self) -> None:
        """Wait until there are fewer than the limit."""
        while self.under_way >= self._limit:
            await self._gone.wait()

    def leave(self, process: SandboxProcess) -> None:
        """See a container to its end after its result has come."""
        self._add(process, LEAVE_SECONDS)

    def end(self, process: SandboxProcess) -> None:
        """Kill and remove a container."""
        self._add(process, 0)

    def _add(self, process: SandboxProcess, seconds: float) -> None:
        self.under_way += 1
        self._tasks.start_soon(self._remove, process, seconds)

    async def _remove(self, process: SandboxProcess, seconds: float) -> None:
        try:
            with anyio.CancelScope(shield=True):
                if seconds:
                    await anyio.sleep(PAUSE_SECONDS)
                    await process.stdin.aclose()
                    with anyio.move_on_after(seconds):
                        try:
                            await process.wait()
                        except BridgeError as exc:
                            logger.debug("the container of a finished execution: %s", exc)
                await process.aclose()
        finally:
            self.under_way -= 1
            self._gone.set()
            self._gone = anyio.Event()
