"""The task that publishes: the newest checkpoint to every target, again and again, and once more at the end.

A target that can't be reached holds up neither the bridge nor the other targets; it is tried again, ever less often.
One that has seen another history is an alarm, which stays in its state until a person has taken it away.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.errors import BridgeError, log_failure
from mcp_bridge.ledger.publish.protocol import CONFLICT, TargetState, alarm_of, checkpoint_of, error_of
from mcp_bridge.ledger.publish.targets import INTERVAL_SECONDS
from mcp_bridge.ledger.publish.to_target import publish

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from mcp_bridge.ledger.publish.protocol import Published, Source
    from mcp_bridge.ledger.publish.targets import Target
    from mcp_bridge.ledger.publish.to_file import FileRead

logger = logging.getLogger(__name__)

MAX_BACK_OFF_SECONDS = 3600.0
"""From one attempt to the next at a target that fails."""

CLOSE_SECONDS = 5.0
"""For the last attempt of all targets, when the bridge ends."""


class Publisher:
    """Publishes one log. `run` is its task, `close` ends it.

    Args:
        targets: Where to, their files absolute.
        source: The log.
        newest: Gives the log's newest signed checkpoint.
        save: Gets a target's state whenever it has changed, and what the target has taken if it has taken something: to
            store both durably. Gives the state as it is kept: other processes publish too, and people look into alarms.
        states: The states that were kept, by target id.
        interval: Seconds from one attempt to the next.
        clock: Gives seconds since 1970, UTC.
    """

    def __init__(
        self,
        targets: Iterable[Target],
        source: Source,
        newest: Callable[[], Awaitable[str]],
        save: Callable[[TargetState, Published | None], Awaitable[TargetState]],
        *,
        states: Mapping[str, TargetState] | None = None,
        interval: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._targets = tuple(targets)
        self._source = source
        self._newest = newest
        self._save = save
        stored = states or {}
        self._states = {target.id: stored.get(target.id, TargetState(target.id)) for target in self._targets}
        self._sent: dict[str, str] = {}
        self._reads: dict[str, FileRead] = {}
        self._interval = interval
        self._clock = clock
        self._closing = anyio.Event()

    @property
    def states(self) -> Mapping[str, TargetState]:
        """The states by target id, as they are now."""
        return self._states

    async def run(self) -> None:
        """Publish until `close` or until it is cancelled, and once more then, for at most CLOSE_SECONDS."""
        try:
            async with anyio.create_task_group() as tasks:
                for target in self._targets:
                    tasks.start_soon(self._serve, target)
                await self._closing.wait()
                tasks.cancel_scope.cancel()
        finally:
            # A bridge that a signal ends is cancelled: what it did last is worth as much as the rest.
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await self.publish_now()

    def close(self) -> None:
        """Have `run` publish once more, and return."""
        self._closing.set()

    async def publish_now(self) -> Mapping[str, TargetState]:
        """One attempt for each target; the states after it."""
        async with anyio.create_task_group() as tasks:
            for target in self._targets:
                tasks.start_soon(self._attempt, target)
        return self._states

    async def _serve(self, target: Target) -> None:
        failures = 0
        while True:
            failures = 0 if await self._attempt(target) else failures + 1
            await anyio.sleep(self._pause(failures))

    def _pause(self, failures: int) -> float:
        """Seconds until the next attempt, after so many failures in a row: after the first, as if there was none."""
        return min(self._interval * 2.0 ** min(max(0, failures - 1), 20), max(self._interval, MAX_BACK_OFF_SECONDS))

    async def _attempt(self, target: Target) -> bool:
        """Publish the newest checkpoint, unless this process has done so already; whether the target holds it."""
        before = self._states[target.id]
        published: Published | None = None
        try:
            note = await self._newest()
            # The first time always: what is here may have been rolled back while no bridge was running.
            if self._sent.get(target.id) == note or not checkpoint_of(note).size:
                return True
            published = await publish(target, note, self._source, self._reads)
        except BridgeError as exc:
            after = self._failed(before, exc)
        except Exception as exc:  # whatever it is: the others, and the bridge, go on
            logger.exception("publishing to the %s failed", target.id)
            failure = BridgeError("internal_error", f"Publishing to the {target.id} failed: {type(exc).__name__}.")
            after = self._failed(before, failure)
        else:
            if before.status not in {"new", "ok"}:
                logger.warning("the %s takes checkpoints again", target.id)
            after = replace(before, status="ok", size=published.size, time=self._clock(), error=None)
            self._sent[target.id] = note
        if published is not None or after != before:
            self._states[target.id] = after
            try:
                self._states[target.id] = await self._save(after, published)
            except Exception as exc:  # noqa: BLE001  (as above)
                log_failure(logger, exc, "the state of publishing to the %s was not kept", target.id)
        return published is not None

    def _failed(self, before: TargetState, exc: BridgeError) -> TargetState:
        error = error_of(exc)
        if exc.code == CONFLICT:
            if before.status != "conflict":
                logger.error("ALARM: %s", exc)
            alarm = alarm_of(exc, self._clock())
            # The first alarm about a size stays: that the target repeats it is nothing new.
            if before.conflict is not None and before.conflict["size"] == alarm["size"]:
                alarm = before.conflict
            return replace(before, status="conflict", error=error, conflict=alarm)
        # Once, not every time.
        logger.log(logging.DEBUG if before.error == error else logging.WARNING, "%s", exc)
        return replace(before, status="failing", error=error)
