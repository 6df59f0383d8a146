"""The client that an execution runs for: who has it started or resumed, and what may be asked of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_bridge.executions.scripts.live_output import LiveOutput
    from mcp_bridge.gate.policy_check import Asker
    from mcp_bridge.ledger.storage.execution_store import Starter
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
        on_server_message: Called with what servers say while they work on its calls: their progress, and what they log.
        on_begun: Called with the id of the execution that runs for it, once that is known.
    """

    starter: Starter = "agent"
    began: float = 0.0
    asker: Asker | None = None
    sampler: Sampler | None = None
    notify: Callable[[str], None] | None = None
    progress: Progress | None = None
    live: LiveOutput | None = None
    on_server_message: Callable[[str], None] | None = None
    on_begun: Callable[[str], None] | None = None

    def begun(self, execution: str) -> None:
        """Tell the id of the execution that runs for it."""
        if self.on_begun is not None:
            self.on_begun(execution)
