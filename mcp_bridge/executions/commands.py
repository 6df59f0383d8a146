"""What a person, or a client for one, can have done with an execution that is kept, whatever its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mcp_bridge.executions.in_doubt import Settlement
    from mcp_bridge.executions.scripts.job import Job
    from mcp_bridge.kernel.events import Resume
    from mcp_bridge.ledger.storage.execution_store import StoredExecution


class Commands(Protocol):
    """The commands about executions of one kind. Each gives the execution's record, as `to_record`."""

    async def resume(self, stored: StoredExecution, event: Resume | None, caller: Job) -> dict[str, Any]:
        """Go on with an execution.

        Args:
            stored: As it was read.
            event: What it waits for; None if that is a decision or time, or if its process has died.
            caller: Who asks; the code is not looked at.

        Raises:
            BridgeError: `erased`, `not_suspended`, `still_waiting`, `bad_value`; as the run.
        """

    async def settle(
        self, stored: StoredExecution, asked: str | None, settlement: Settlement, caller: Job, *, go_on: bool
    ) -> dict[str, Any]:
        """Settle a call in doubt by a person's word.

        Args:
            stored: As it was read.
            asked: The step's path or the effect's number, or a script's call; None if only one is in doubt.
            settlement: The person's word.
            caller: As `resume`.
            go_on: Whether to go on with the execution at once.

        Raises:
            BridgeError: `erased`, `not_suspended`, `not_in_doubt`, `unknown_doubt`, `ambiguous_id`, `bad_value`.
        """

    async def cancel(self, stored: StoredExecution, reason: str) -> dict[str, Any]:
        """Cancel an execution that is suspended or interrupted.

        Args:
            stored: As it was read.
            reason: Why; a secret in it is not kept.

        Raises:
            BridgeError: `erased`, `not_suspended`.
        """
