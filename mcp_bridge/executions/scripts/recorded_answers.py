"""The earlier calls of a script that is run again are answered from its record, and aren't made again.

Such a script runs from its beginning and repeats its calls with the same ids (`wire.messages.CallId`). A recorded call
gets its recorded answer, in the recorded order. A script that makes another call under a recorded id has diverged: it
is stopped before it does harm. A new call waits until all recorded ones are repeated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.executions.scripts.answer_order import AnswerOrder
from mcp_bridge.executions.scripts.divergence import DivergenceDetector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp_bridge.executions.scripts.call_history import CallHistory
    from mcp_bridge.executions.scripts.call_recorder import CallRecorder
    from mcp_bridge.policy.secrets.known_values import Scalar


class RecordedAnswers:
    """Answers the recorded calls of one run.

    Args:
        execution: The execution's id.
        history: The recorded calls.
        values_behind: Gives the sensitive values that projected arguments refer to, by the ids of their references.
        live: Whether new calls are made; in a replay the script has to take a new call back.
        at_pace: As of `AnswerOrder`.

    Attributes:
        divergence_detector: What the run repeats of the record, and where it diverges from it.
        order: Gives the recorded answers, in the recorded order.
    """

    def __init__(
        self,
        execution: str,
        history: CallHistory,
        values_behind: Callable[[Any], Mapping[str, Scalar]],
        *,
        live: bool,
        at_pace: bool = False,
    ) -> None:
        self.divergence_detector = DivergenceDetector(execution, history)
        self.order = AnswerOrder(self.divergence_detector, at_pace=at_pace)
        self._history = history
        self._values_behind = values_behind
        self._live = live
        self._is_caught_up = not history.calls

    async def answer(self, call: CallRecorder, name: str) -> Any:
        """The recorded answer to a call; None if the call is to be made now, since all recorded ones are repeated.

        Args:
            call: The call.
            name: Its id, which this run hasn't used yet.

        Raises:
            BridgeError: The recorded answer.
        """
        self.divergence_detector.begin(name)
        if self.divergence_detector.divergence is not None:
            await anyio.sleep_forever()
        known = self._history.calls.get(name)
        if (before := self._history.asked(name)) is not None:
            now = await call.asked()
            values = self._values_behind([before.arguments, now.arguments])
            await self.divergence_detector.compare(name, before, now, values)
        if known is not None:
            self.divergence_detector.repeated(name)
            if known.outcome is not None:
                return await self.order.answer(known, call.request)
        if not self._live:
            # Others go on meanwhile.
            call.request.release_slot()
            if before is None:
                try:
                    await self.divergence_detector.wait_for_cancellation(name, call.asked)
                finally:
                    if call.request.is_cancelled:
                        self.divergence_detector.call_cancelled(name)
            await anyio.sleep_forever()  # as then: its answer never came
        if not self._is_caught_up:
            await self._catch_up(call, name)
        return None

    def cancelled_before_start(self, call: str) -> None:
        """The script cancelled a call before it was begun. For the record, the call was repeated."""
        self.divergence_detector.made.add(call)
        self.divergence_detector.repeated(call)
        if (known := self._history.calls.get(call)) is not None and known.outcome is not None:
            self.order.give(known.place)

    async def _catch_up(self, call: CallRecorder, name: str) -> None:
        """Wait until this run has repeated all recorded calls, and was given their answers.

        Args:
            call: A call that isn't recorded, or has no recorded outcome.
            name: Its id.
        """
        call.request.release_slot()
        await self.divergence_detector.all_repeated(name, call.asked)
        # All are repeated, and answered one after the other: none is waited for in vain.
        await self.order.turn(self._history.answers, math.inf)
        if self.divergence_detector.divergence is not None:
            await anyio.sleep_forever()
        self._is_caught_up = True
        await call.request.reacquire_slot()
