"""Containers that killed bridges have left behind are removed when the next one starts.

A bridge that is killed with SIGKILL can't clean up, so the next bridge on the same host does. It removes only
containers that are certainly orphaned: the label is from this host and pid namespace, and no process with that pid and
start time is alive. A label from another host, or one that can't be parsed (from another version or tool), proves
nothing, and its container stays: a leftover container wastes some memory, a wrong removal destroys somebody's work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.engine import OWNER_LABEL
from mcp_bridge.sandbox.ownership import Owner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.sandbox.engine import ContainerInfo, Engine


async def sweep(engine: Engine) -> list[str]:
    """Remove all containers of dead owners on this host.

    Safe to run at any time and by several bridges at once: a container that another sweep has removed is no error.

    Returns:
        The ids of the removed containers.

    Raises:
        BridgeError: `engine_failed`, `no_runtime`: the engine can't list containers. A container that can't be removed
            is left for the next sweep.
    """
    removed: list[str] = []

    async def remove(container_id: str) -> None:
        try:
            await engine.remove(container_id)
        except BridgeError:
            return
        removed.append(container_id)

    async with engine.sweeping():
        containers = await engine.list(OWNER_LABEL)
        # In a thread, because without /proc this runs `ps`.
        orphans = await anyio.to_thread.run_sync(_orphans, containers)
        async with anyio.create_task_group() as group:
            for orphan in orphans:
                group.start_soon(remove, orphan)
    return removed


def _orphans(containers: Sequence[ContainerInfo]) -> list[str]:
    out = []
    for container in containers:
        owner = Owner.parse(container.labels.get(OWNER_LABEL, ""))
        if owner is not None and owner.is_orphaned():
            out.append(container.id)
    return out
