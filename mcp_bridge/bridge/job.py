"""A script that is to be run, and for whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_bridge.bridge.admission import Asker
    from mcp_bridge.bridge.execution import Progress
    from mcp_bridge.bridge.live import LiveOutput
    from mcp_bridge.ledger.store import Starter, StoredExecution
    from mcp_bridge.models.sampling import Sampler


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
        asked = (self.progress, self.notify, self.asker, self.sampler, self.began, stored.starter, self.live)
        return Job(kept["code"], kept["servers"], kept["timeout"], *asked, self.news)
