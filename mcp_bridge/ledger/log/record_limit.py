"""How much one run may record. A call whose outcome couldn't be recorded isn't begun.

While less than RESERVE_BYTES is left for the outcomes of calls under way, a run makes its calls one after the other.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.quota import RESERVE_BYTES, RunUsage

if TYPE_CHECKING:
    from types import TracebackType

    from mcp_bridge.ledger.storage.database import Database

MAX_OUTCOME_BYTES = 8 << 20
"""About the largest outcome of a call, by a server or by a tool of the operator's."""

REPEATS = 4
"""How many times its limit a run may have recorded if repeated content is counted each time. Whoever reads the record,
to resume the run or to verify it, reads all of that."""


class Allowance(RunUsage):
    """What a run may record.

    Args:
        database: Where it is recorded.
    """

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._limit = database.quota.max_run_bytes
        self._under_way = 0
        self._ended: anyio.Event | None = None
        """Set when a call has ended, if another waits for that."""

    def counts(self, execution: str) -> None:
        """Count what is recorded of an execution from now on."""
        self._database.count(execution, self)

    def room(self, *, undoes: bool = False) -> Room:
        """Hold room for the outcome of a call while it is under way.

        Args:
            undoes: Whether it is a compensation, which has RESERVE_BYTES more.

        Raises (on entering):
            BridgeError: `record_limit`, `ledger_full`: the call must not begin. `not_recorded`.
        """
        return Room(self, undoes=undoes)

    async def begin(self, *, undoes: bool) -> None:
        """Take room for an outcome, as `room` does; `end` gives it back."""
        await self.require(undoes=undoes)
        while self._under_way and self._is_tight():
            if self._ended is None:
                self._ended = anyio.Event()
            await self._ended.wait()
            await self.require(undoes=undoes)
        self._under_way += 1

    def end(self) -> None:
        """Give back the room for an outcome."""
        self._under_way -= 1
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    async def require(self, *, undoes: bool = False) -> None:
        """As `room`, for what has no large outcome."""
        await self._database.wait_for_queue()
        more = RESERVE_BYTES if undoes else 0
        if self._is_over(more):
            # What is on its way may repeat what is stored already.
            await self._database.flush()
            if self._is_over(more):
                raise BridgeError(
                    "record_limit",
                    f"This run has recorded {self.stored} bytes, {self.logical} with what it has repeated; its limit is"
                    f" {self._limit}, and {REPEATS} times that.",
                    hint="This wasn't done. Do it in another run; the operator can raise max_run_size in [ledger].",
                    limit=self._limit,
                    recorded=self.stored,
                )
        await self._database.require_room(more)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more can be recorded at once, of what need not be: the reserve is for outcomes."""
        return not self._is_over(-size) and self._database.has_room_for(size + RESERVE_BYTES)

    def _is_over(self, more: int) -> bool:
        # Exact once nothing is on its way.
        return self.stored + self.posted > self._limit + more or self.logical > REPEATS * self._limit + more

    def _is_tight(self) -> bool:
        wanted = (self._under_way + 1) * MAX_OUTCOME_BYTES
        within = self.stored + self.posted + wanted <= self._limit + RESERVE_BYTES
        return not within or not self._database.has_room_for(wanted)


class Room(AbstractAsyncContextManager[None]):
    """Room for the outcome of one call, see `Allowance.room`. A class, since each call has one."""

    __slots__ = ("_allowance", "_undoes")

    def __init__(self, allowance: Allowance, *, undoes: bool) -> None:
        self._allowance = allowance
        self._undoes = undoes

    async def __aenter__(self) -> None:
        await self._allowance.begin(undoes=self._undoes)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._allowance.end()
