"""The waits of one run of a script.

A short wait is waited out while the script keeps its sandbox. While a longer one is under way, the script's other calls
go on; once the script has come to rest, it is suspended, and its sandbox ended. When it goes on, the wait is asked for
again, with the time that was recorded at first, and is over at once or waits on.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.scripts.held_calls import HeldCall, HoldsCalls, park_call
from mcp_bridge.executions.waits.taken_events import WAIT, check_name, sensitive_name, untaken
from mcp_bridge.ledger.log.payloads import EventDelivery
from mcp_bridge.policy.secrets.value_references import fill_in
from mcp_bridge.wire.messages import WaitUntil

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.executions.scripts.call_history import CallHistory
    from mcp_bridge.executions.scripts.call_recorder import CallRecorder
    from mcp_bridge.executions.waits.taken_events import SentEvent
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.policy.secrets.known_values import Scalar
    from mcp_bridge.wire.messages import WaitEvent

CLOCK_SECONDS = 5.0
"""How long to wait without looking at the clock: somebody may set it, and it goes on while the machine is asleep."""

SHORT_WAIT_SECONDS = 2.0
"""What is left of a wait is waited out in place when it is no more than this: a new sandbox would take as long."""

LOOK_SECONDS = 0.25
"""Interval for checking whether another process has sent an event that a running script waits for."""

MAX_WAITS = 1000
"""Most waits of one execution: each may run the script once more."""

MAX_AHEAD_SECONDS = 366 * 24 * 3600.0
"""How far away the end of a wait may be."""


class WaitingRun(HoldsCalls, Protocol):
    """The run whose waits these are."""

    history: CallHistory

    async def entries(self) -> list[Recorded]:
        """The execution's entries, with the values behind their references known."""

    async def last_event(self) -> int:
        """The number of the last event that was sent to the execution; -1 without any."""

    def values_behind(self, value: Any) -> Mapping[str, Scalar]:
        """The sensitive values that a recorded value refers to, by the ids of their references."""


@dataclass(eq=False, slots=True)
class _Ticket:
    """A wait for an event.

    Attributes:
        until: When it is over, in seconds since 1970.
        event: The event that it has been given.
        arrived: Set when there is one.
    """

    until: float
    event: SentEvent | None = None
    arrived: anyio.Event = field(default_factory=anyio.Event)


class ScriptWaits:
    """The waits of one run.

    Args:
        run: The run.

    Attributes:
        seen: The number of the last event that was looked at; -1 for none.
    """

    def __init__(self, run: WaitingRun) -> None:
        self.seen = -1
        self._run = run
        self._made = sum(call.asked.kind == WAIT for call in run.history.calls.values())
        self._kept: dict[str, deque[SentEvent]] = {}
        """The events that nobody has taken, by their names."""
        self._given: set[int] = set()
        """The events that this run has given to waits."""
        self._tickets: dict[str, list[_Ticket]] = {}
        """The waits for events that wait, by the events' names, the oldest first."""
        self._looking = anyio.Lock()
        self._looked = -math.inf

    @property
    def has_waited(self) -> bool:
        """Whether the script has waited for anything."""
        return self._made > 0

    @staticmethod
    def arguments(wanted: WaitUntil | WaitEvent) -> dict[str, Any]:
        """The arguments of a wait as they are recorded: with the time at which it is over."""
        if isinstance(wanted, WaitUntil):
            return {"until": wanted.until}
        return {"name": wanted.name} | ({} if wanted.timeout is None else {"until": time.time() + wanted.timeout})

    async def over(self, call: CallRecorder, wanted: WaitUntil | WaitEvent) -> dict[str, Any]:
        """Wait for what a script waits for.

        Args:
            call: The wait, as it is recorded.
            wanted: What it waits for.

        Returns:
            The answer: of an event, `value`, and the number of its entry, `event`.

        Raises:
            BridgeError: `bad_wait`, `bad_event`, `too_many_waits`; `event_timeout`; `violation`: it has no name.
        """
        if call.call is None:
            raise BridgeError("violation", "This is no call of a script: a wait has no name.")
        if call.known is not None:
            call.restore_request()
            arguments = self._first_asked(call.known.asked.arguments, call.arguments)
        else:
            arguments = call.arguments
            self._check(arguments)
            if "name" in arguments and (await call.asked()).arguments["name"] != arguments["name"]:
                raise sensitive_name(arguments["name"])
            await call.announce()
        asked = await call.asked()
        call.request.on_cancel(lambda: call.abandoned(asked))
        until = float(arguments.get("until", math.inf))
        try:
            if isinstance(wanted, WaitUntil):
                await self._until(call, until)
                return {}
            event = await self._event(call, wanted.name, until)
        except BaseException:
            if call.request.is_cancelled and not call.has_ended:
                call.abandoned(asked)
            raise

        def taken_back() -> None:
            # The script has cancelled it while its answer was on the way: the event is there for another wait.
            call.abandoned(asked)
            self._give_back(event)

        call.request.on_cancel(taken_back)
        return {"value": event.payload, "event": event.sequence}

    def _first_asked(self, recorded: Any, now: dict[str, Any]) -> dict[str, Any]:
        """The arguments that count: those of the first time, since the same code may compute another time now.

        The recorded time may be a reference, where the operator's patterns find numbers like it; an erased one is gone.
        """
        known: dict[str, Any] = fill_in(recorded, self._run.values_behind(recorded))
        return now if isinstance(known.get("until"), str) else known

    def _check(self, arguments: dict[str, Any]) -> None:
        until = arguments.get("until", 0.0)
        if not math.isfinite(until) or until > time.time() + MAX_AHEAD_SECONDS:
            raise BridgeError(
                "bad_wait",
                "The end of this wait is too far away.",
                hint=f"A wait is of at most {MAX_AHEAD_SECONDS / 86400:.0f} days.",
            )
        if "name" in arguments:
            check_name(arguments["name"])
        self._made += 1
        if self._made > MAX_WAITS:
            raise BridgeError(
                "too_many_waits",
                f"This script has waited {MAX_WAITS} times, the limit.",
                hint="Each wait may run the script again from its beginning: continue in a new script.",
            )

    async def _until(self, call: CallRecorder, until: float) -> None:
        while (left := until - time.time()) > 0:
            if left <= SHORT_WAIT_SECONDS:
                await anyio.sleep(left)
                return
            held = HeldCall(call.call or "", await call.asked(), "wait", time.time(), {}, {}, due=until)

            async def pause() -> None:
                while (left := until - time.time() - SHORT_WAIT_SECONDS) > 0:  # noqa: ASYNC110 - the clock sets none
                    await anyio.sleep(min(left, CLOCK_SECONDS))

            await park_call(self._run, call, held, pause)

    async def _event(self, call: CallRecorder, name: str, until: float) -> SentEvent:
        ticket = _Ticket(until)
        self._tickets.setdefault(name, []).append(ticket)
        due = None if math.isinf(until) else until

        async def pause() -> None:
            while ticket.event is None and ticket.until - time.time() > SHORT_WAIT_SECONDS:
                await self._arrived(ticket)

        try:
            await self._look()
            while ticket.event is None:
                if (left := until - time.time()) <= 0:
                    # One that was sent in time counts, also if nobody was there to take it.
                    await self._look()
                    if ticket.event is None:
                        raise BridgeError("event_timeout", f"The event {name!r} didn't come in time.")
                elif left <= SHORT_WAIT_SECONDS:
                    await self._arrived(ticket, left)
                else:
                    held = HeldCall(call.call or "", await call.asked(), "event", time.time(), {}, {}, name, due)
                    await park_call(self._run, call, held, pause)
        except BaseException:
            if ticket.event is not None:
                self._give_back(ticket.event)
            raise
        finally:
            if ticket in self._tickets[name]:
                self._tickets[name].remove(ticket)
        return ticket.event

    def looked(self, held: HeldCall, kept: list[SentEvent]) -> int:
        """The number of the last event that is nothing to a wait which was parked when the sandbox was ended.

        Args:
            held: The wait.
            kept: The events that no wait has taken, by the record.
        """
        until = math.inf if held.due is None else held.due
        first = next((one for one in kept if one.name == held.event and one.time <= until), None)
        return self.seen if first is None else min(self.seen, first.sequence - 1)

    async def _arrived(self, ticket: _Ticket, most: float = LOOK_SECONDS) -> None:
        """Wait a moment for an event."""
        with anyio.move_on_after(min(most, LOOK_SECONDS)):
            await ticket.arrived.wait()
            return
        if time.monotonic() - self._looked >= LOOK_SECONDS / 2:
            await self._look()

    async def _look(self) -> None:
        """Give out the events that have come since."""
        async with self._looking:
            self._looked = time.monotonic()
            if await self._run.last_event() > self.seen:
                entries = await self._run.entries()
                for event in untaken(entries):
                    if event.sequence > self.seen:
                        self._kept.setdefault(event.name, deque()).append(event)
                self.seen = max(row.sequence for row in entries if row.entry.kind == EventDelivery.KIND)
            for name in list(self._kept):
                self._give_out(name)

    def _give_out(self, name: str) -> None:
        kept = self._kept.get(name, deque())
        for event in list(kept):
            ticket = next((one for one in self._tickets.get(name, ()) if event.time <= one.until), None)
            if ticket is not None:
                self._tickets[name].remove(ticket)
                kept.remove(event)
                self._given.add(event.sequence)
                ticket.event = event
                ticket.arrived.set()

    def _give_back(self, event: SentEvent) -> None:
        if event.sequence in self._given:
            self._given.discard(event.sequence)
            self._kept.setdefault(event.name, deque()).appendleft(event)
            self._give_out(event.name)
