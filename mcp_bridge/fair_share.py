"""Fair scheduling: one interpreter serves everybody, and a principal that uses much of it yields to the others.

A *tenant* is an execution, or a server's connection. The work for a tenant is charged to it, in seconds of the
interpreter. It may use some of them at once (`BURST_SECONDS`). A tenant that has used more is *over its share*: while
others are active, all such tenants together get a fraction of the time (`SHARE`), divided among their owners first: a
principal with many executions gets no more of it than one with a single execution. If no others are active, nobody
waits. This is a token bucket for each tenant, filled at the rate of its share.

Work for an execution that makes one call after the other, with values of ordinary size, isn't charged: the rate of its
calls is bounded by the time that each takes.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING
from weakref import WeakSet

import anyio
from anyio.lowlevel import RunVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

SHARE = 0.1
"""The fraction of the interpreter's time for all tenants over their share, while others are active."""

BURST_SECONDS = 0.3
"""How much a tenant may use at once before it is over its share."""

AT_WORK_SECONDS = 1.0
"""How long a tenant counts as active after a request."""

MAX_DEBT_SECONDS = 1.0
"""The maximum debt of a tenant, however much it has used."""

MAX_WAIT_SECONDS = 5.0
"""The longest wait for one turn: somebody may wait for the answer, and a long operation took long only once."""


class FairShare:
    """The tenants of one event loop.

    Args:
        clock: Returns monotonic time in seconds.

    Attributes:
        waiting: The number of tenants that wait for their turn, each with any number of tasks, by their owners.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.waiting: Counter[Hashable] = Counter()
        self._tenants: WeakSet[Tenant] = WeakSet()

    def join(self, tenant: Tenant) -> None:
        """Add a tenant. It is removed when nothing refers to it any more."""
        self._tenants.add(tenant)

    def is_shared(self, tenant: Tenant) -> bool:
        """Whether another tenant is active and not over its share."""
        least = self.clock() - AT_WORK_SECONDS
        return any(each is not tenant and each.at_work > least and not each.is_over() for each in self._tenants)

    def rate(self, owner: Hashable) -> float:
        """The fraction of the time for each waiting tenant of an owner."""
        return SHARE / max(1, len(self.waiting)) / max(1, self.waiting[owner])

    def wait(self, owner: Hashable, count: int) -> None:
        """Count a tenant that begins to wait (1) or has its turn (-1)."""
        self.waiting[owner] += count
        if not self.waiting[owner]:
            del self.waiting[owner]


class Tenant:
    """A tenant for which the bridge works.

    Args:
        shared: The tenants with which it shares; by default those of the running event loop.
        owner: Whose it is; by default nobody else's.
    """

    def __init__(self, shared: FairShare | None = None, *, owner: Hashable = None) -> None:
        self._shared = shared or _of_this_loop()
        self._owner = id(self) if owner is None else owner
        self._credit = BURST_SECONDS
        self._counted = self._shared.clock()
        self._was_alone = False
        """Whether no other was active when its credit was last counted."""
        self._waiting = 0
        self.at_work = -AT_WORK_SECONDS
        self._shared.join(self)

    def mark_active(self) -> None:
        """Mark the tenant as active: it has made a request."""
        self.at_work = self._shared.clock()

    def mark_ended(self) -> None:
        """Mark the tenant as gone: nobody waits for it any more, even if something refers to it still."""
        self.at_work = -AT_WORK_SECONDS

    def charge(self, seconds: float) -> None:
        """Charge work that was done or is about to be done. May be called from any thread."""
        self._credit = max(self._credit - seconds, -MAX_DEBT_SECONDS)

    def is_over(self) -> bool:
        """Whether it has used more than it may use at once."""
        return self._credit < 0

    def has_turn(self) -> bool:
        """Whether `turn` wouldn't wait."""
        if self._credit >= BURST_SECONDS:
            return True
        if (self._credit >= 0 or self._was_alone) and self._shared.clock() - self._counted < _COUNT_SECONDS:
            return True
        return not self._count() or self._credit >= 0

    async def turn(self) -> None:
        """Wait for its turn if it is over its share and others are active."""
        if self.has_turn():
            return
        until = self._shared.clock() + MAX_WAIT_SECONDS
        if not self._waiting:
            self._shared.wait(self._owner, 1)
        self._waiting += 1
        try:
            while self._credit < 0 and (now := self._shared.clock()) < until and self._shared.is_shared(self):
                # Checked at intervals, because the number of other tenants may change.
                await anyio.sleep(min(-self._credit / self._shared.rate(self._owner), until - now, _LOOK_SECONDS))
                self._count()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._shared.wait(self._owner, -1)

    def _count(self) -> bool:
        """Add the credit since the last update, all elapsed time if the tenant is alone; return whether it isn't."""
        now = self._shared.clock()
        is_shared = self._shared.is_shared(self)
        rate = self._shared.rate(self._owner) if is_shared else 1.0
        self._credit = min(BURST_SECONDS, self._credit + (now - self._counted) * rate)
        self._counted = now
        self._was_alone = not is_shared
        return is_shared


class Bill:
    """Accumulates the work of a task that others wait for, too. Such a task doesn't wait for turns.

    Attributes:
        seconds: The accumulated work.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def charge(self, seconds: float) -> None:
        """Add work that was done. May be called from any thread."""
        self.seconds += seconds


_LOOK_SECONDS = 0.1

_COUNT_SECONDS = 0.01
"""A tenant's credit isn't counted again so soon, as long as there is some, or nobody to share with: it is asked for by
every request."""

_shared: RunVar[FairShare] = RunVar("mcp_bridge_fair_share")

current: ContextVar[Tenant | Bill | None] = ContextVar("tenant", default=None)
"""The tenant of the current task; None for the bridge's own work and for its user."""


@contextmanager
def billed(tenant: Tenant | Bill | None = None) -> Iterator[Bill]:
    """A context in which the current task doesn't wait for turns, because others wait for it.

    Args:
        tenant: The tenant to charge at the end. If it isn't known yet, the caller charges the bill's amount.
    """
    bill = Bill()
    before = current.set(bill)
    try:
        yield bill
    finally:
        current.reset(before)
        if tenant is not None:
            tenant.charge(bill.seconds)


async def turn() -> None:
    """Wait for the turn of the current task's tenant."""
    if isinstance(tenant := current.get(), Tenant):
        await tenant.turn()


def charge(seconds: float) -> None:
    """Charge the current task's tenant, if there is one."""
    if (tenant := current.get()) is not None:
        tenant.charge(seconds)


def _of_this_loop() -> FairShare:
    try:
        return _shared.get()
    except LookupError:
        _shared.set(shared := FairShare())
        return shared
