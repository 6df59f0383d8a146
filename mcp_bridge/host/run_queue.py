"""The queue of runs: so many run at once, so many more wait, and any further one is refused as `busy`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Iterator


class RunQueue:
    """Limits how many scripts run and wait in one bridge.

    Args:
        max_concurrent: Most scripts that run at once.
        max_queued: Most scripts that wait.

    Attributes:
        place: To be held while a script runs.
    """

    def __init__(self, max_concurrent: int, max_queued: int) -> None:
        self.place = anyio.Semaphore(max_concurrent)
        self._max_concurrent = max_concurrent
        self._max_queued = max_queued
        self._admitted = 0

    @property
    def running(self) -> int:
        """How many scripts run."""
        return self._max_concurrent - self.place.value

    @property
    def waiting(self) -> int:
        """How many scripts wait for a place."""
        return max(0, self._admitted - self.running)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a script that runs or waits.

        Raises:
            BridgeError: `busy`: too many wait already.
        """
        if self._admitted >= self._max_concurrent + self._max_queued:
            raise BridgeError(
                "busy",
                f"{self._max_concurrent} runs are under way, and {self._max_queued} wait.",
                hint="Try again when some have ended.",
                waiting=self._max_queued,
            )
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1
