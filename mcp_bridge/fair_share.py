"""Whose turn it is: one interpreter serves everybody, and who uses much of it leaves the most of it to the others.

A *party* is an execution, or a server's connection. What is done for it is charged, in seconds of the interpreter. It
may use some of them as it likes (`BURST_SECONDS`); whoever has used more is *over its share* and goes on at a share of
the time (`SHARE`, of all such parties together) while somebody else is at work. Where nobody else is, nobody waits.
This is a token bucket a party, filled at the rate of its share.

Work for an execution that calls one thing after the other, with values of ordinary size, isn't charged: how often it
calls is bounded by how quickly it is answered.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING
from weakref import WeakSet

import anyio
from anyio.lowlevel import RunVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHARE = 0.1
"""Of the time of the interpreter, for all that are over their share, while others are at work."""

BURST_SECONDS = 0.3
"""What a party may use at once, before it is over its share."""

AT_WORK_SECONDS = 1.0
"""How long somebody counts as being at work who has asked for something."""

MAX_DEBT_SECONDS = 1.0
"""What a party is over its share at the most, however much it has used."""

MAX_WAIT_SECONDS = 5.0
"""The longest wait for one turn: an answer may be waited for, and what took long took it once."""


class FairShare:
    """The parties of one event loop.

    Args:
        clock: Seconds, monotonic.

    Attributes:
        waiting: How many parties wait for their turn, with however many tasks.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.waiting = 0
        self._parties: WeakSet[Party] = WeakSet()

    def join(self, party: Party) -> None:
        """A party is there, for as long as somebody knows it."""
        self._parties.add(party)

    def is_shared(self, party: Party) -> bool:
        """Whether somebody else is at work who is not over its share."""
        least = self.clock() - AT_WORK_SECONDS
        return any(each is not party and each.at_work > least and not each.is_over() for each in self._parties)

    def rate(self) -> float:
        """What each party of those that wait is given of the time."""
        return SHARE / max(1, self.waiting)


class Party:
    """Somebody for whom the bridge works.

    Args:
        shared: With whom it shares; those of the running event loop by default.
    """

    def __init__(self, shared: FairShare | None = None) -> None:
        self._shared = shared or _of_this_loop()
        self._left = BURST_SECONDS
        self._counted = self._shared.clock()
        self._waiting = 0
        self.at_work = -AT_WORK_SECONDS
        self._shared.join(self)

    def works(self) -> None:
        """It has asked for something."""
        self.at_work = self._shared.clock()

    def charge(self, seconds: float) -> None:
        """Something has been done for it, or is about to be. From any thread."""
        self._left = max(self._left - seconds, -MAX_DEBT_SECONDS)

    def is_over(self) -> bool:
        """Whether it has used more than it may use at once."""
        return self._left < 0

    async def turn(self) -> None:
        """Wait for its turn, if it is over its share and others are at work."""
        if self._left >= BURST_SECONDS:
            return
        self._count()
        if self._left >= 0 or not self._shared.is_shared(self):
            return
        until = self._shared.clock() + MAX_WAIT_SECONDS
        self._shared.waiting += not self._waiting
        self._waiting += 1
        try:
            while self._left < 0 and (now := self._shared.clock()) < until and self._shared.is_shared(self):
                # Looked at again now and then: the others may have gone, or more have come.
                await anyio.sleep(min(-self._left / self._shared.rate(), until - now, _LOOK_SECONDS))
                self._count()
        finally:
            self._waiting -= 1
            self._shared.waiting -= not self._waiting

    def _count(self) -> None:
        """Add what it has been given since that was last looked at: everything, where it was alone."""
        now = self._shared.clock()
        rate = self._shared.rate() if self._shared.is_shared(self) else 1.0
        self._left = min(BURST_SECONDS, self._left + (now - self._counted) * rate)
        self._counted = now


class Bill:
    """What is done in a task that somebody else waits for, too: it is added up, and no turn is waited for.

    Attributes:
        seconds: What it has come to.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def charge(self, seconds: float) -> None:
        """Something has been done. From any thread."""
        self.seconds += seconds


_LOOK_SECONDS = 0.1

_shared: RunVar[FairShare] = RunVar("mcp_bridge_fair_share")

current: ContextVar[Party | Bill | None] = ContextVar("party", default=None)
"""For whom this task works; None for the bridge itself and for whoever runs it."""


@contextmanager
def billed(party: Party | Bill | None = None) -> Iterator[Bill]:
    """Let this task not wait for its turn within: others wait for what it does.

    Args:
        party: Who is charged for it at the end. Where it isn't known yet, the bill says of what.
    """
    bill = Bill()
    before = current.set(bill)
    try:
        yield bill
    finally:
        current.reset(before)
        if party is not None:
            party.charge(bill.seconds)


async def turn() -> None:
    """Wait for the turn of the party of this task."""
    if isinstance(party := current.get(), Party):
        await party.turn()


def charge(seconds: float) -> None:
    """Charge the party of this task, if there is one."""
    if (party := current.get()) is not None:
        party.charge(seconds)


def _of_this_loop() -> FairShare:
    try:
        return _shared.get()
    except LookupError:
        _shared.set(shared := FairShare())
        return shared
