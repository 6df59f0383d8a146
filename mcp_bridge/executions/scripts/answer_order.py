"""The order of replayed answers: a script that runs again gets its recorded answers in the order in which it got them.

Each answer waits for the one before: until that was given, and the guest has said that its caller has it.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.executions.scripts.call_history import CallHistory, RecordedCall
    from mcp_bridge.executions.scripts.divergence import DivergenceDetector
    from mcp_bridge.gate.request_context import RequestContext

GRACE_SECONDS = 2.0
"""How much longer than in the recorded run a recorded answer waits for the answers before it."""

TAKEN_SECONDS = 1.0
"""How long to wait for the guest to confirm that an answer has reached its caller."""

SETTLE_SECONDS = 0.02
"""How much of the recorded time between two answers is waited again: tasks and threads proceed in it, as they did."""


MAX_PACED_SECONDS = 60.0
"""How long the calls of a script may have taken together for it to run again at their pace."""


def may_depend_on_pace(what: str, history: CallHistory) -> bool:
    """Whether a run may have done something else because its calls were answered immediately.

    Args:
        what: What it has done otherwise, as of `Difference` or `Divergence`.
        history: Its recorded calls.
    """
    took = sum(call.seconds for call in history.calls.values() if call.is_answered)
    return what != "input" and 0.0 < took <= MAX_PACED_SECONDS


class _Given:
    """The recorded answer that was given last."""

    def __init__(self, call: str, ended: float) -> None:
        self.call = call
        self.ended = ended
        self.taken = anyio.Event()
        self.taken_at = 0.0
        if not call:
            self.taken.set()


class AnswerOrder:
    """Gives the recorded answers of one run, in the recorded order.

    Args:
        detector: What the run repeats of its record.
        at_pace: Whether each answer comes as late after its call as it came.
    """

    def __init__(self, detector: DivergenceDetector, *, at_pace: bool = False) -> None:
        self._detector = detector
        self._at_pace = at_pace
        self._next = 0
        """The place of the next recorded answer to give."""
        self._given: set[int] = set()
        self._turns: dict[int, anyio.Event] = {}
        self._last = _Given("", 0.0)

    async def answer(self, known: RecordedCall, request: RequestContext) -> Any:
        """The recorded answer to a call, when it is its turn.

        Args:
            known: The recorded call, which has an outcome.
            request: The request that repeats it.

        Raises:
            BridgeError: The recorded answer; `interrupted`: the script cancelled the call.
        """
        request.release_slot()
        if not known.is_answered:
            # The script cancelled it and will cancel it again; the others don't wait for that.
            self.give(known.place)
            await anyio.sleep(known.seconds + GRACE_SECONDS)
            raise BridgeError(
                "interrupted", "The script cancelled this call when it first ran: the call may have happened."
            )
        try:
            if self._at_pace:
                await anyio.sleep(known.seconds)
            await self.turn(known.place, known.seconds + GRACE_SECONDS, known.ended)
            self._last = _Given(known.call, known.ended)
            return known.answer()
        finally:
            # Also if the call is cancelled meanwhile.
            self.give(known.place)

    async def turn(self, place: int, patience: float, ended: float = math.inf) -> None:
        """Wait until all answers before a place were given and taken, or their calls weren't repeated in time.

        Args:
            place: The place.
            patience: Seconds.
            ended: When the answer at this place was recorded, in seconds since 1970.
        """
        if self._next < place:
            turn = self._turns.setdefault(place, anyio.Event())
            with anyio.move_on_after(patience):
                await turn.wait()
            # The others don't wait for what this call has waited for.
            self._advance(place)
        last = self._last
        with anyio.move_on_after(TAKEN_SECONDS):
            await last.taken.wait()
        # The script had this time after the previous answer before this one came.
        pause = min(ended - last.ended, SETTLE_SECONDS) - (time.monotonic() - last.taken_at)
        if pause > 0:
            await anyio.sleep(pause)

    def taken(self, call: str) -> None:
        """The guest reports that the answer to a call has reached its caller."""
        if call == self._last.call:
            self._last.taken_at = time.monotonic()
            self._last.taken.set()

    def give(self, place: int) -> None:
        """Note that the answer at a place was given, or won't be: those after it don't wait for it."""
        self._given.add(place)
        self._detector.moved()
        self._advance(self._next)

    def _advance(self, place: int) -> None:
        self._next = max(self._next, place)
        while self._next in self._given:
            self._next += 1
        for waiting in [waiting for waiting in self._turns if waiting <= self._next]:
            self._turns.pop(waiting).set()
