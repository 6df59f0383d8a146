"""The commands about programs. They are driven on the host, without a sandbox: nothing of a program is code."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from mcp_bridge.executions.client import Client
from mcp_bridge.executions.programs.settle_or_cancel import cancel_program, settle_program
from mcp_bridge.executions.status import UNFINISHED
from mcp_bridge.executions.trace_record import to_record
from mcp_bridge.ledger.storage.execution_store import StoredExecution

if TYPE_CHECKING:
    from mcp_bridge.executions.in_doubt import Settlement
    from mcp_bridge.executions.programs.effects import ProgramEffects
    from mcp_bridge.executions.programs.lifecycle import Programs
    from mcp_bridge.executions.scripts.lifecycle import SandboxRunner
    from mcp_bridge.kernel.events import Resume


class ProgramCommands:
    """As `lifecycle.Commands`, and `start`.

    Args:
        programs: The bridge's programs.
        principal: Whose executions they are.
        runner: Makes the gates.
    """

    def __init__(self, programs: Programs, principal: str, runner: SandboxRunner) -> None:
        self._programs = programs
        self._principal = principal
        self._runner = runner

    async def start(self, program: Any, context: dict[str, Any], key: str | None, client: Client) -> dict[str, Any]:
        """Start a program, or give the record of the execution that has its key: if it has ended, as a previous result.

        Raises:
            BridgeError: As `Programs.start`.
        """
        run = await self._programs.start(
            program, context, key, self._principal, self._effects(client), client.starter, client.asker
        )
        if isinstance(run, StoredExecution):
            previous = {} if run.status in UNFINISHED else {"is_previous_result": True}
            return to_record(run) | previous
        client.begun(run.execution)
        return await self._programs.drive(run)

    async def resume(self, stored: StoredExecution, event: Resume | None, client: Client) -> dict[str, Any]:
        """As `Commands.resume`."""
        run = await self._programs.resume(stored.id, event, self._principal, self._effects(client))
        client.begun(run.execution)
        return await self._programs.drive(run)

    async def settle(
        self, stored: StoredExecution, name: str | None, settlement: Settlement, client: Client, *, and_resume: bool
    ) -> dict[str, Any]:
        """As `Commands.settle`."""
        run = await settle_program(self._programs, stored.id, name, settlement, self._principal, self._effects(client))
        return await (self._programs.drive(run) if and_resume else self._programs.keep(run))

    async def cancel(self, stored: StoredExecution, reason: str) -> dict[str, Any]:
        """As `Commands.cancel`; what its steps want undone is undone."""
        run = await cancel_program(self._programs, stored.id, reason, self._principal, self._effects(Client()))
        return await self._programs.drive(run)

    def _effects(self, client: Client) -> ProgramEffects:
        return self._programs.effects(self._runner.gate(secrets.token_hex(8), client))
