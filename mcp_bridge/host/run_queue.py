"""The queue of runs: so many run concurrently, so many more of each principal wait; further ones are refused as `busy`.

A free place goes to the principal that has the fewest runs under way; among equals, to the one that got its last place
the longest ago. So a principal that asks for many runs waits behind its own, and not in front of others'.
"""

from __future__ import annotations

import itertools
from collections import deque
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from mcp_bridge.governance.principals import PrincipalLimits


class RunQueue:
    """Limits how many scripts run and wait in one bridge.

    Args:
        max_concurrent: Most scripts that run at once.
        max_queued: Most scripts of one principal that wait.
    """

    def __init__(self, max_concurrent: int, max_queued: int) -> None:
        self.max_concurrent = max_concurrent
        self.max_queued = max_queued
        self.running = 0
        """How many scripts run."""
        self._lanes: dict[str, Lane] = {}
        """Those of the principals that have runs waiting."""
        self._turns = itertools.count()

    @property
    def waiting(self) -> int:
        """How many scripts wait for a place."""
        return sum(len(lane.waiting) for lane in self._lanes.values())

    def lane(self, principal: str, limits: PrincipalLimits) -> Lane:
        """The lane of a principal."""
        return Lane(self, principal, limits)

    def add(self, lane: Lane) -> None:
        """A lane has a run that waits."""
        self._lanes[lane.principal] = lane
        self.give()

    def end(self) -> None:
        """A run has left its place."""
        self.running -= 1
        self.give()

    def give(self) -> None:
        """Give the free places to runs that wait."""
        while self.running < self.max_concurrent:
            ready = [lane for lane in self._lanes.values() if lane.may_run]
            if not ready:
                return
            lane = min(ready, key=lambda lane: (lane.running, lane.last_turn))
            self.running += 1
            lane.start(next(self._turns))
            if not lane.waiting:
                del self._lanes[lane.principal]

    def withdraw(self, lane: Lane) -> None:
        """A lane has no run any more that waits."""
        self._lanes.pop(lane.principal, None)


class Lane:
    """One principal's runs in the queue.

    Args:
        queue: The queue.
        principal: The principal's name.
        limits: The principal's own limits.

    Attributes:
        principal: The principal's name.
        limits: The principal's own limits; may be changed.
        waiting: An event for each run that waits for a place, in order; set when it has one.
        running: How many have a place.
        last_turn: When the last one got it: the larger, the later.
    """

    def __init__(self, queue: RunQueue, principal: str, limits: PrincipalLimits) -> None:
        self._queue = queue
        self.principal = principal
        self.limits = limits
        self.waiting: deque[anyio.Event] = deque()
        self.running = 0
        self.last_turn = -1
        self._admitted = 0

    @property
    def max_concurrent(self) -> int:
        """Most scripts of the principal that run at once."""
        own, all_together = self.limits.max_concurrent, self._queue.max_concurrent
        return all_together if own is None else min(own, all_together)

    @property
    def max_queued(self) -> int:
        """Most scripts of the principal that wait."""
        own, each = self.limits.max_queued, self._queue.max_queued
        return each if own is None else min(own, each)

    @property
    def may_run(self) -> bool:
        """Whether the principal's own limit lets another run begin."""
        return bool(self.waiting) and self.running < self.max_concurrent

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a script that runs or waits.

        Raises:
            BridgeError: `busy`: too many of the principal wait already.
        """
        if self._admitted >= self.max_concurrent + self.max_queued:
            raise BridgeError(
                "busy",
                _occupied(self.max_concurrent, self.max_queued),
                hint="Try again when some have ended.",
                waiting=self.max_queued,
            )
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """Wait for a place, and hold it."""
        turn = anyio.Event()
        self.waiting.append(turn)
        self._queue.add(self)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._leave()
            else:
                self.waiting.remove(turn)
                if not self.waiting:
                    self._queue.withdraw(self)
            raise
        try:
            yield
        finally:
            self._leave()

    def start(self, turn: int) -> None:
        """Give the first that waits a place."""
        self.running += 1
        self.last_turn = turn
        self.waiting.popleft().set()

    def _leave(self) -> None:
        self.running -= 1
        self._queue.end()


def _occupied(running: int, waiting: int) -> str:
    runs = "1 run is" if running == 1 else f"{running} runs are"
    if not waiting:
        return f"{runs} under way, and none may wait."
    return f"{runs} under way, and {waiting} {'waits' if waiting == 1 else 'wait'}."
