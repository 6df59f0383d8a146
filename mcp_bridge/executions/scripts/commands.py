"""The commands about scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.scripts.settle_or_cancel import cancel_script, give, settle_script
from mcp_bridge.executions.status import not_suspended, require_resumable
from mcp_bridge.executions.trace_record import to_record
from mcp_bridge.executions.waits.event_sending import send_event
from mcp_bridge.executions.waits.taken_events import WAIT_EVENT, event_name, open_event_waits

if TYPE_CHECKING:
    from mcp_bridge.executions.client import Client
    from mcp_bridge.executions.in_doubt import Settlement
    from mcp_bridge.executions.scripts.lifecycle import Scripts
    from mcp_bridge.gate.execution_values import ExecutionValues
    from mcp_bridge.kernel.events import Resume
    from mcp_bridge.ledger.storage.execution_store import StoredExecution


class ScriptCommands:
    """As `lifecycle.Commands`.

    Args:
        scripts: The bridge's scripts.
    """

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self._lifecycle = scripts.lifecycle

    async def resume(self, stored: StoredExecution, event: Resume | None, client: Client) -> dict[str, Any]:
        """As `Commands.resume`; in a sandbox."""
        if event is not None:
            is_given = await self._give(stored, event)
            if not is_given and event.payload is not None:
                raise not_suspended(stored.id, "none of its script's calls waits for a payload")
            stored = await self._again(stored)
        await self._scripts.resume(stored, client)
        return to_record(await self._again(stored))

    async def _give(self, stored: StoredExecution, event: Resume) -> bool:
        """Deliver a payload to the tool or the event that has waited longest; whether there is one.

        Raises:
            BridgeError: As `give` and `send_event`.
        """
        require_resumable(stored)
        history = CallHistory(await self._lifecycle.recorder.read(stored.id))
        waiting = min([*history.pending(), *open_event_waits(history)], key=lambda call: call.sequence, default=None)
        if waiting is None or waiting.asked.name != WAIT_EVENT:
            return await give(self._lifecycle, stored, event, await self._projection(stored))
        await self.send(stored, event_name(waiting), event.payload, event.source)
        return True

    async def send(self, stored: StoredExecution, name: str, payload: Any, source: str) -> None:
        """Send an event to a script: its first wait for that name takes it, now or later.

        Raises:
            BridgeError: As `send_event`.
        """
        projection = await self._projection(stored)
        await send_event(self._lifecycle, stored, name, payload, source, projection)

    async def settle(
        self, stored: StoredExecution, name: str | None, settlement: Settlement, client: Client, *, and_resume: bool
    ) -> dict[str, Any]:
        """As `Commands.settle`."""
        await settle_script(self._lifecycle, stored, name, settlement, await self._projection(stored))
        stored = await self._again(stored)
        return await self.resume(stored, None, client) if and_resume else to_record(stored)

    async def cancel(self, stored: StoredExecution, reason: str) -> dict[str, Any]:
        """As `Commands.cancel`; nothing is undone."""
        await cancel_script(self._lifecycle, stored, await self._scripts.projection().project(reason))
        return to_record(await self._again(stored))

    async def _projection(self, stored: StoredExecution) -> ExecutionValues:
        """What projects what somebody says to a script: with the references that it has for the same values."""
        values = self._scripts.projection()
        values.adopt(await self._lifecycle.store.values(stored.id))
        return values

    async def _again(self, stored: StoredExecution) -> StoredExecution:
        """The execution as it is kept now."""
        return await self._lifecycle.stored(stored.id, stored.principal)
