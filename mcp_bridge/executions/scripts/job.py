"""A script that is to be run, and for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_bridge.executions.scripts.live_output import LiveOutput
    from mcp_bridge.gate.admission import Asker
    from mcp_bridge.ledger.storage.execution_store import Starter, StoredExecution
    from mcp_bridge.models.sampling import Sampler

    Progress = Callable[[float, float | None, str | None], None]
    """Is told what a script reports: how much is done, of how much, and a message."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be run, and for whom. The fields are the arguments of `Bridge.run`."""

    code: str
    servers: Sequence[str] | None = None
    timeout: float | None = None
    progress: Progress | None = None
    notify: Callable[[str], None] | None = None
    asker: Asker | None = None
    sampler: Sampler | None = None
    began: float = 0.0
    starter: Starter = "agent"
    live: LiveOutput | None = None
    news: Callable[[str], None] | None = None

    def of(self, stored: StoredExecution) -> Job:
        """The same caller's, for an execution that somebody else may have begun: what it may do is as it was."""
        kept = stored.bundle
        asked = (self.progress, self.notify, self.asker, self.sampler, self.began, stored.starter)
        return Job(kept["code"], kept["servers"], kept["timeout"], *asked, live=self.live, news=self.news)
