"""A bridge that serves resumes suspended executions automatically: when their time has come, or their event is there.

For a program of a script that hasn't ended, it resumes the script.

Only those that ran last under the same policy and with the same servers, secrets and files: a state directory may
be shared by bridges with other configurations, whose executions this one must not give other servers, or other rights;
and a principal may have lost its table, and would have everybody's rights without it. And only those that ran since
the log was last restored from a backup, or has lost entries: what the others have done by then isn't known, and would
be done again. Others wait until somebody resumes them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.readiness import can_resume
from mcp_bridge.executions.status import RESUMABLE, UNFINISHED, effective_status
from mcp_bridge.ledger.log.payloads import ProgramSuspension, Resumption, ScriptSuspension, decoded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.ledger.storage.execution_store import StoredExecution

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Interval for looking for executions that can go on."""

LOOK_SHARE = 0.02
"""Most of the time that is spent on looking: of many executions it takes longer, and is done more rarely."""

MAX_LOOKED = 100
"""Most due executions that are looked at together."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 300.0
"""How long an execution that could not go on, or is due again at once, is left alone: twice as long each time."""

MAX_PAUSES = 10_000
"""Most executions that are left alone at once; beyond that all are tried again."""


class _Pause(NamedTuple):
    """An execution that is left alone, as long as nothing changes.

    Attributes:
        until: On the monotonic clock.
        seconds: For how long.
        due: Since when it could go on, in seconds since 1970, by the store. Another time ends the pause.
    """

    until: float
    seconds: float
    due: float


class _GoingOn(NamedTuple):
    """An execution that goes on.

    Attributes:
        stored: The execution, as it was read before.
        scope: In which it does.
    """

    stored: StoredExecution
    scope: anyio.CancelScope


class Owner(Protocol):
    """What a bridge has of the owner of an execution. The bridge."""

    @property
    def lifecycle(self) -> Lifecycle:
        """The lifecycle of the bridge's executions."""

    async def resume_execution(self, execution: str) -> object:
        """Go on with an execution."""


class AutomaticResumption:
    """Goes on with due executions.

    Args:
        lifecycle: The lifecycle of the bridge's executions.
        owner_of: Gives the view of an execution's owner; raises BridgeError if it is nobody any more.
        most: How many go on at once.
        refresh: Applies what has changed in the configuration.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        owner_of: Callable[[StoredExecution], Owner],
        most: int,
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self._lifecycle = lifecycle
        self._owner_of = owner_of
        self._most = most
        self._refresh = refresh
        self._under_way: set[str] = set()
        """What was found due, and is looked at or goes on."""
        self._going_on: dict[str, _GoingOn] = {}
        self._is_stopped = False
        self._pauses: dict[str, _Pause] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._under_way

    def stop(self) -> None:
        """Go on with nothing further. What is under way goes on to its end."""
        self._is_stopped = True

    async def run(self) -> None:
        """Go on with what is due, until this is cancelled, or is stopped and nothing is under way.

        Once nothing can be recorded any more it stops by itself.
        """
        reported = ""
        async with anyio.create_task_group() as tasks:
            while not (self._is_stopped and self.is_idle):
                began = time.monotonic()
                try:
                    await self.cancel_for_removed_principals()
                    await self.look(tasks)
                    reported = ""
                except BridgeError as exc:
                    # The calls that can't be recorded because of it fail with that error.
                    if str(exc) != reported:
                        reported = str(exc)
                        logger.warning("executions that wait could not be looked at: %s", exc)
                    if self._lifecycle.store.failure is not None:
                        self.stop()
                await anyio.sleep(max(LOOK_SECONDS, (time.monotonic() - began) / LOOK_SHARE))

    async def cancel_for_removed_principals(self) -> None:
        """Cancel what goes on for principals whose table is gone from the configuration."""
        if not self._going_on:
            return
        await self._refresh()
        for execution, going_on in self._going_on.items():
            try:
                self._owner_of(going_on.stored)
            except BridgeError as exc:
                if exc.code == "not_a_principal":
                    logger.warning("the execution %s is cancelled: its principal no longer exists", execution)
                    going_on.scope.cancel()

    async def look(self, tasks: TaskGroup) -> None:
        """Begin to go on with what is due, as far as there is room.

        Args:
            tasks: In which they go on.

        Raises:
            BridgeError: As `ProgramStore.due`.
        """
        if len(self._pauses) > MAX_PAUSES:
            self._pauses.clear()
        now = time.monotonic()
        for execution, due in await self._lifecycle.store.due(MAX_LOOKED + len(self._pauses)):
            if self._is_stopped or len(self._under_way) >= self._most:
                return
            pause = self._pauses.get(execution)
            if execution not in self._under_way and (pause is None or pause.until <= now or pause.due != due):
                self._under_way.add(execution)
                tasks.start_soon(self._go_on, execution)

    async def _go_on(self, execution: str) -> None:
        try:
            await self._resume(execution)
            await self._pause(execution)
        except BridgeError as exc:
            logger.info("the execution %s could not be resumed: %s", execution, exc)
            with contextlib.suppress(BridgeError):
                await self._pause(execution)
        except Exception:
            # A fault of ours must not end the others.
            logger.exception("resuming the execution %s failed", execution)
            with contextlib.suppress(BridgeError):
                await self._pause(execution)
        finally:
            self._under_way.discard(execution)

    async def _resume(self, execution: str) -> None:
        store = self._lifecycle.store
        stored = await store.execution(execution)
        if stored is None or effective_status(stored) not in RESUMABLE:
            return
        if stored.status == "suspended" and not await can_resume(store, stored):
            return
        if stored.kind == "program" and await self._is_of_unfinished_script(execution):
            return
        await self._refresh()
        owner = self._owner_of(stored)
        if not _is_alike(await self._lifecycle.recorder.read(execution), owner, await store.last_loss()):
            return
        if self._is_stopped:
            return
        logger.info("resuming the execution %s, whose wait is over", execution)
        with anyio.CancelScope() as scope:
            self._going_on[execution] = _GoingOn(stored, scope)
            try:
                await owner.resume_execution(execution)
            finally:
                del self._going_on[execution]

    async def _is_of_unfinished_script(self, program: str) -> bool:
        store = self._lifecycle.store
        holders = [await store.execution(holder) for holder in await store.holders(program)]
        return any(holder is not None and effective_status(holder) in UNFINISHED for holder in holders)

    async def _pause(self, execution: str) -> None:
        """Leave an execution alone for a while if it is due all the same."""
        left = await self._lifecycle.store.execution(execution)
        before = self._pauses.pop(execution, None)
        if left is None or left.due is None or left.due > time.time():
            return
        seconds = FIRST_PAUSE_SECONDS
        if before is not None and effective_status(left) in RESUMABLE:
            seconds = min(before.seconds * 2, LONGEST_PAUSE_SECONDS)
        self._pauses[execution] = _Pause(time.monotonic() + seconds, seconds, left.due)


def _is_alike(entries: list[Recorded], owner: Owner, lost: int) -> bool:
    """Whether an execution ran last after the entry `lost`, and under the policy and with the grants of now."""
    for row in reversed(entries):
        said = decoded(row.entry)
        # What a person has said of it in between is under no policy, and ran nothing.
        if isinstance(said, ScriptSuspension | ProgramSuspension | Resumption) and row.entry.policy:
            now = owner.lifecycle.policy_hash, owner.lifecycle.servers_digest()
            return said.servers is not None and (row.entry.policy, said.servers) == now and row.sequence > lost
    return False


def at_once(max_concurrent: int) -> int:
    """How many executions may go on by themselves at once: most places are for who asks.

    Args:
        max_concurrent: How many scripts may run at once.
    """
    return max(1, max_concurrent // 4)
