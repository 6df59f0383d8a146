"""The sessions that have a sandbox at the moment, idle between two cells, and the queues before them.

An idle session costs a container's memory, and a bounded processor time of what its cells have left running. It is put
away after a time, and earlier where there are too many or memory is short, the one used longest ago first; and when
another process has ended it. A session that was put away is rebuilt when it is used.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.sessions.cell import Turn
from mcp_bridge.host.free_memory import available_memory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from mcp_bridge.host.sessions.session_sandbox import SessionSandbox
    from mcp_bridge.settings import Settings


logger = logging.getLogger(__name__)

WATCH_SECONDS = 2.0
"""Interval for checking whether another process has ended a session that is idle here."""


MAX_PLANS = 1000
"""Most sessions of which it is remembered that a dry run of theirs waits; the list of another is refused when it is
made, if the session has gone on."""


class SessionKey(NamedTuple):
    """Whose session it is, and its name."""

    principal: str
    name: str


class _Queue:
    """The cells of one session: one runs, others wait in order."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.cells = 0


class LiveSessions:
    """The idle sessions of one bridge.

    Args:
        settings: The settings.
        tasks: Runs what looks for sessions that have ended.
        ended: Those of some sessions, each with its last cell here, that have ended.

    Attributes:
        plans: The executions that wait after dry runs of a session's next cell.
    """

    def __init__(
        self,
        settings: Settings,
        tasks: TaskGroup,
        ended: Callable[[Mapping[tuple[str, str], str]], Awaitable[Sequence[tuple[str, str]]]],
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        self._ended = ended
        self._watch: asyncio.TimerHandle | None = None
        """The next look for sessions that have ended."""
        self._idle: OrderedDict[SessionKey, SessionSandbox] = OrderedDict()
        """Those used last at the end."""
        self._queues: dict[SessionKey, _Queue] = {}
        self._dropped: set[SessionKey] = set()
        """The sessions that have ended while a cell of theirs ran."""
        self.plans: dict[SessionKey, set[str]] = {}
        self._overspent: set[SessionKey] = set()
        """The sessions that were put away for the processor time they used, until their next cell."""

    @property
    def idle(self) -> list[SessionKey]:
        """The sessions that have an idle sandbox."""
        return list(self._idle)

    def has(self, name: object) -> bool:
        """Whether anybody's session of a name has a sandbox, or a cell that runs or waits for its turn."""
        return any(key.name == name for key in chain(self._idle, self._queues))

    def is_running(self, key: SessionKey) -> bool:
        """Whether a cell of a session runs, or waits for its turn."""
        return key in self._queues

    @asynccontextmanager
    async def turn(self, key: SessionKey) -> AsyncGenerator[None]:
        """Wait for a session's cells that came before.

        Raises:
            BridgeError: `busy`: too many wait already.
        """
        queue = self._queues.setdefault(key, _Queue())
        most = self._settings.sessions.max_waiting
        if queue.cells > most:
            raise BridgeError(
                "busy",
                f"A cell of the session {key.name!r} runs, and {most} wait.",
                hint="Try again when some have ended. What need not wait can run in another session, or in none.",
                waiting=most,
            )
        queue.cells += 1
        try:
            async with queue.lock:
                try:
                    yield
                finally:
                    self._dropped.discard(key)
        finally:
            queue.cells -= 1
            if not queue.cells:
                del self._queues[key]

    def next_turn(self, key: SessionKey) -> Turn | None:
        """The next cell of a session that has an idle sandbox here; None where there is none.

        As the sandbox has it: another bridge may have run a cell since, which is found when the cell begins.
        """
        sandbox = self._idle.get(key)
        if sandbox is None or sandbox.place is None:
            return None
        has_no_suspended_cell = sandbox.has_no_suspended_cell and key not in self.plans
        return Turn(
            sandbox.place.after(sandbox.head, key.name), sandbox.head, has_no_suspended_cell=has_no_suspended_cell
        )

    async def take(self, key: SessionKey, head: str) -> SessionSandbox | None:
        """The sandbox of a session, whose names are those after a cell; None if there is none that has them.

        Args:
            key: The session.
            head: The cell's execution.
        """
        sandbox = self._idle.pop(key, None)
        if sandbox is None:
            return None
        try:
            is_there = await sandbox.wake()
        except BaseException:
            # Cancelled: nobody else knows of it any more.
            sandbox.end()
            raise
        if is_there and sandbox.head == head:
            return sandbox
        # Another bridge has run a cell meanwhile, or it has begun anew.
        await sandbox.close()
        return None

    def head(self, key: SessionKey) -> str:
        """The last cell whose names a session's idle sandbox has; empty where there is none."""
        sandbox = self._idle.get(key)
        return "" if sandbox is None else sandbox.head

    def keep_plan(self, key: SessionKey, execution: str) -> None:
        """Remember an execution that waits after a dry run of a session's next cell."""
        self.plans.setdefault(key, set()).add(execution)
        if len(self.plans) > MAX_PLANS:
            del self.plans[next(iter(self.plans))]

    def put(self, key: SessionKey, sandbox: SessionSandbox) -> None:
        """Keep a sandbox for the session's next cell."""
        if key in self._dropped:
            sandbox.end()
            return
        self._idle[key] = sandbox

        def expired() -> None:
            if self._idle.get(key) is sandbox:
                del self._idle[key]
                if sandbox.has_overspent:
                    self._overspent.add(key)

        limits = self._settings.sessions
        sandbox.rest(limits.idle_timeout, limits.idle_processor_seconds, expired)
        self._limit(key.principal)
        if self._watch is None:
            self._look_later()

    def has_overspent(self, key: SessionKey) -> bool:
        """Whether a session's sandbox was put away for the processor time that it used. Told once."""
        if key not in self._overspent:
            return False
        self._overspent.remove(key)
        return True

    def _look_later(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._look)

    def _look(self) -> None:
        if self._idle:
            self._tasks.start_soon(self._end_ended)
        else:
            self._watch = None

    async def _end_ended(self) -> None:
        await self._end_once()
        # Only now: one look isn't begun beside another.
        self._watch = None
        if self._idle:
            self._look_later()

    async def _end_once(self) -> None:
        """Put away sessions that another process has ended. One with a cell under way is found when that has ended."""
        looked: dict[tuple[str, str], str] = {
            key: sandbox.head for key, sandbox in self._idle.items() if not self.is_running(key)
        }
        try:
            ended = await self._ended(looked)
        except BridgeError as exc:
            logger.debug("can't find out whether sessions have ended: %s", exc)
            return
        for session in ended:
            key = SessionKey(*session)
            if not self.is_running(key) and self.head(key) == looked[key]:
                self.end(key)

    def _limit(self, principal: str) -> None:
        """Put away what is over the limits, but not what has just been used."""
        limits = self._settings.sessions
        own = [key for key in self._idle if key.principal == principal]
        for key in own[: max(0, len(own) - limits.max_idle)]:
            self.end(key)
        for key in list(self._idle)[: max(0, len(self._idle) - limits.max_idle_together)]:
            self.end(key)

    def make_room(self) -> None:
        """Put away idle sessions where a sandbox that starts now would find no memory."""
        while self._idle and available_memory() < self._settings.memory:
            self.end(next(iter(self._idle)))
            # What it frees is seen later.
            return

    def end(self, key: SessionKey) -> bool:
        """Put away a session's sandbox, if it is idle; whether it was."""
        sandbox = self._idle.pop(key, None)
        if sandbox is not None:
            sandbox.end()
        return sandbox is not None

    def drop(self, key: SessionKey) -> None:
        """Put away a session's sandbox, now or when the cell under way has ended: the session has ended."""
        self._overspent.discard(key)
        if not self.end(key) and key in self._queues:
            self._dropped.add(key)

    def end_all(self) -> None:
        """Put away all: the bridge ends."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for key in list(self._idle):
            self.end(key)
