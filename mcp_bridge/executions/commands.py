"""The commands about a stored execution of either kind, and the client that an execution runs for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.executions.in_doubt import Settlement
    from mcp_bridge.executions.scripts.live_output import LiveOutput
    from mcp_bridge.gate.policy_check import Asker
    from mcp_bridge.kernel.events import Resume
    from mcp_bridge.ledger.storage.execution_store import Starter, StoredExecution
    from mcp_bridge.models.sampling import Sampler

    Progress = Callable[[float, float | None, str | None], None]
    """Called with what a script reports: how much is done, of how much, and a message."""


@dataclass(frozen=True, slots=True)
class Client:
    """Who has an execution started or resumed: asks a person and a model for it, and follows its course.

    Attributes:
        starter: Whether it is an agent or the operator. Their idempotency keys are apart.
        began: When the request came, on the monotonic clock.
        asker: Asks a person; without one, what needs approval is suspended.
        sampler: Asks the client's model.
        notify: Called with a sentence about what takes time before the start.
        progress: Called with what the script reports.
        live: Gets what the script prints while it runs.
        news: Called with what servers say while they work on its calls: their progress, and what they log.
    """

    starter: Starter = "agent"
    began: float = 0.0
    asker: Asker | None = None
    sampler: Sampler | None = None
    notify: Callable[[str], None] | None = None
    progress: Progress | None = None
    live: LiveOutput | None = None
    news: Callable[[str], None] | None = None


class Commands(Protocol):
    """The commands about executions of one kind. Each gives the execution's record, as `to_record`."""

    async def resume(self, stored: StoredExecution, event: Resume | None, client: Client) -> dict[str, Any]:
        """Go on with an execution.

        Args:
            stored: The execution, as it was read.
            event: What it waits for; None if that is a decision or time, or if its process has died.
            client: Who has it resumed.

        Raises:
            BridgeError: `erased`, `not_suspended`, `still_waiting`, `bad_value`; as the run.
        """

    async def settle(
        self, stored: StoredExecution, name: str | None, settlement: Settlement, client: Client, *, and_resume: bool
    ) -> dict[str, Any]:
        """Settle a call in doubt by a person's word.

        Args:
            stored: As it was read.
            name: The step's path or the effect's number, or a script's call; None if only one is in doubt.
            settlement: The person's word.
            client: Who has it resumed.
            and_resume: Whether to resume the execution at once.

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
