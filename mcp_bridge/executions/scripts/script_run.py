"""One run of a script: its calls are answered from the record, or made and recorded.

Without an idempotency key, a script is run again only when its sandbox is lost, or for a replay, which makes no calls.

A call that can't be answered now (`script_waiting`) suspends the script. A script without a key is then given one.
"""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.idempotency.generated_keys import generated_key
from mcp_bridge.executions.plans.plan_limits import ListedCalls
from mcp_bridge.executions.reruns.lookups import Lookups
from mcp_bridge.executions.scripts.awaited_programs import AwaitedPrograms
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.scripts.call_recorder import CallRecorder
from mcp_bridge.executions.scripts.held_calls import HeldCall, HeldCalls, hold_call, is_same
from mcp_bridge.executions.scripts.recorded_answers import RecordedAnswers
from mcp_bridge.executions.waits.script_waits import ScriptWaits
from mcp_bridge.executions.waits.taken_events import untaken
from mcp_bridge.gate.planned_calls import PlannedCallError
from mcp_bridge.gate.policy_check import ApprovalNeededError
from mcp_bridge.ledger.log.payloads import Question, QueuedDecision, Violation, to_entry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from mcp_bridge.gate.gate import Gate
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.ledger.log.entries import Entry, Recorded
    from mcp_bridge.ledger.log.payload_base import Payload
    from mcp_bridge.ledger.log.payloads import QuestionFields
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.execution_store import Approval, ProgramStore
    from mcp_bridge.policy.secrets.known_values import Scalar
    from mcp_bridge.wire.messages import ToolCall, WaitEvent, WaitUntil


class ScriptRun:
    """One run of a script's execution: answers the requests of its sandbox.

    Args:
        execution: The execution's id.
        store: The executions.
        recorder: Takes the entries.
        gate: Decides and makes its tool calls.
        policy_hash: Of the policy in force.
        history: The calls that are recorded already.
        key: Its idempotency key, or None.
        live: Whether new calls are made; in a replay the script has to take a new call back.
        at_pace: Whether recorded answers come as late as they came, instead of immediately.

    Attributes:
        divergence_detector: What this run repeats of the record, and where it diverges from it.
        answers: Gives the recorded answers, in the recorded order.
        has_unnamed: Whether a call without an id was made, which the record can't answer again.
        lookups: Answers what it looks up.
        hold: The calls that can't be answered now.
        programs: The programs that it drives.
        waits: Its waits for times and events.
        has_begun: Whether a sandbox has run any of it, also in an earlier run.
        made_now: The key that was generated in this run, because the script waits and had none; or None.
    """

    def __init__(
        self,
        execution: str,
        store: ProgramStore,
        recorder: Recorder,
        gate: Gate,
        policy_hash: str,
        history: CallHistory | None = None,
        *,
        key: str | None = None,
        live: bool = True,
        at_pace: bool = False,
    ) -> None:
        self.execution = execution
        self.key = key
        self.live = live
        self.at_pace = at_pace
        self.history = history or CallHistory()
        self.has_begun = bool(self.history.calls)
        self.has_unnamed = False
        self.hold = HeldCalls()
        self.made_now: str | None = None
        self.lookups = Lookups(self, self.history.lookups)
        self.programs = AwaitedPrograms(self)
        self.waits = ScriptWaits(self)
        self._left_open: list[tuple[CallRecorder, QuestionFields]] = []
        """The calls about which a client's person was asked, who has gone without an answer."""
        self._is_first = history is None
        self._store = store
        self._recorder = recorder
        self._gate = gate
        self._policy_hash = policy_hash
        self._recorded = RecordedAnswers(execution, self.history, self.values_behind, live=live, at_pace=at_pace)
        self.divergence_detector, self.answers = self._recorded.divergence_detector, self._recorded.order
        self._listed = ListedCalls(self.history.planned())

    @property
    def is_dry(self) -> bool:
        """Whether it is a dry run: it may only read, and what else it asks for is listed."""
        return self._gate.is_dry

    @property
    def may_have_events(self) -> bool:
        """Whether events may have been sent to it: it has waited, or been suspended."""
        return self.live and (not self._is_first or self.waits.has_waited)

    # --- requests of the sandbox ---

    async def call(
        self, server: str, asked: ToolCall, request: RequestContext, holds: Callable[[Any], Awaitable[None]]
    ) -> dict[str, Any]:
        """Answer a tool call: from the record, or by calling the tool and recording the outcome.

        Args:
            server: The server's configured name.
            asked: The script's request.
            request: The context of the request.
            holds: As `Session.holds`, for a new call.

        Raises:
            BridgeError: `violation`: the call's id was used before in this run, or is missing; the call's own error.
        """
        call = self.recorder(server, asked, request)
        if (answer := await self._answered_already(call)) is not None:
            return answer  # type: ignore[no-any-return]
        if call.is_pending:
            # It was made, in another run.
            await hold_call(self, call, request, "tool")
        is_held = False
        try:
            await holds(asked.arguments)
            is_held = True
            tool = await self._gate.tools.catalog.bind(server, asked.tool)
            result = await self._gate.call(tool, asked.arguments, call, raw=asked.raw)
        except PlannedCallError as exc:
            return await self._listed.add(call, exc)
        except ApprovalNeededError as exc:
            if call.call is None:
                raise
            await hold_call(self, call, request, "approval", question=exc.question)
        except BridgeError as exc:
            await call.failed(exc)
            raw = exc.details.pop("raw", None)
            if asked.raw and raw is not None:
                # An error that the tool itself returned is a result like any other.
                return {"raw": raw}
            raise
        except BaseException:
            await call.cut_off(is_held=is_held)
            raise
        call.returned(result)
        if call.is_pending:
            await hold_call(self, call, request, "tool")
        return {"raw": result.raw} if asked.raw else {"value": result.value}

    def recorder(self, server: str, asked: ToolCall, request: RequestContext) -> CallRecorder:
        """What records a tool call; the arguments are those of `call`."""
        return CallRecorder(self, asked.call, "tool", f"{server}.{asked.tool}", asked.arguments, request, raw=asked.raw)

    async def list_program(self, call: CallRecorder, holds: Callable[[], Awaitable[None]]) -> Any:
        """List the start of a program, or that one is to go on, in a dry run. No approval of the list covers its steps.

        Args:
            call: The call.
            holds: As `Session.holds`, for what is listed.

        Raises:
            BridgeError: As `call`; `plan_too_large`.
        """
        if (answer := await self._answered_already(call)) is not None:
            return answer
        try:
            await holds()
        except BridgeError as exc:
            await call.failed(exc)
            raise
        asked = await call.asked()
        return await self._listed.add(call, PlannedCallError({"tool": call.name, "arguments": asked.arguments}))

    async def answer(self, call: CallRecorder, do: Callable[[], Awaitable[Any]]) -> Any:
        """Answer any other call: from the record, or by `do`, recording the outcome.

        Args:
            call: The call.
            do: Makes it.

        Raises:
            BridgeError: As `call`.
        """
        if (answer := await self._answered_already(call)) is not None:
            return answer
        if call.call is None:
            return await do()
        try:
            if call.kind == "memory":
                async with self._gate.room():
                    answer = await do()
                    await call.succeeded(answer)
                return answer
            # It may wait for other calls of this run, which need a slot themselves.
            async with self._gate.room():
                pass
            answer = await do()
        except BridgeError as exc:
            await call.failed(exc)
            raise
        asked = await call.asked()
        if call.kind == "program":
            return await self.programs.answered(call, asked, answer)
        call.succeeded_with(answer, asked)
        return answer

    async def cancelled_before_start(self, call: str, made: CallRecorder | None = None) -> None:
        """The script has taken back a call, or left it at its end, before it was looked at.

        Args:
            call: Its id.
            made: Records it, as far as it is noted whose data its arguments are; None for a call that isn't a tool's.
        """
        is_new = self.live and call not in self.divergence_detector.made and call not in self.history.calls
        self._recorded.cancelled_before_start(call)
        if is_new and made is not None:
            await made.record_cancelled_before_intent()

    async def _answered_already(self, call: CallRecorder) -> Any:
        """The recorded answer to a call, or None if the call is to be made now.

        Raises:
            BridgeError: `violation`; the recorded answer.
        """
        if call.call is None or call.call in self.divergence_detector.made:
            self._check_unnamed(call.call)
            return None
        if (answer := await self._recorded.answer(call, call.call)) is not None:
            return answer
        await self.programs.returned(call)
        await call.request.reacquire_slot()
        known = self.history.calls.get(call.call)
        call.known, call.is_pending = known, known is not None and known.is_pending
        return None

    def _check_unnamed(self, call: str | None) -> None:
        if call is None and self.key is None and self.live and not self.is_dry:
            self.has_unnamed = True
            return
        message = "a call has no name" if call is None else f"two calls have the name {call}"
        if self.live:
            self.post(Violation(message))
        raise BridgeError("violation", f"This is no call of a script: {message}.")

    # --- its record, as `CallLog` ---

    def post(self, payload: Payload) -> None:
        """As `CallLog.post`."""
        self._recorder.post(self._entry(payload))

    async def append(self, payload: Payload) -> None:
        """As `CallLog.append`."""
        await self._recorder.append(self._entry(payload))

    def _entry(self, payload: Payload) -> Entry:
        return to_entry(payload, self.execution, None, self._policy_hash)

    async def project(self, value: Any) -> Any:
        """As `CallLog.project`."""
        return await self._gate.values.project(value)

    def keep(self, value: Any) -> None:
        """As `CallLog.keep`."""
        self._gate.values.keep(self.execution, value)

    def has_room(self, size: int) -> bool:
        """As `LookupLog.has_room`."""
        return self._gate.allowance is None or self._gate.allowance.has_room(size)

    async def decided(self, call: str, question: Mapping[str, Any]) -> bool | None:
        """As `CallLog.decided`."""
        for row in await self._asked_of(call, question):
            if row.decision is not None:
                return bool(row.decision["approved"])
        return None

    async def decide(self, call: str, question: Mapping[str, Any], *, approved: bool) -> bool | None:
        """As `CallLog.decide`."""
        for row in await self._asked_of(call, question):
            decision = {"approved": approved, "by": "client", "comment": None}
            entry = self._entry(QueuedDecision(Question(row.question), approved, "client"))
            return approved if await self._store.decide(row, decision, entry) else await self.decided(call, question)
        return None

    def left_open(self, call: CallRecorder, question: QuestionFields) -> None:
        """As `CallLog.left_open`."""
        self._left_open.append((call, question))

    async def waiting(self) -> dict[str, HeldCall]:
        """The calls for which an ended run can be suspended, by their ids.

        That is those that are held, and those about which a client's person was asked, who has gone.
        """
        left = {
            call.call: HeldCall(call.call, await call.asked(), "approval", time.time(), question, {})
            for call, question in self._left_open
            if call.call is not None
        }
        parked = dict(self.hold.parked)
        if any(one.kind == "event" for one in parked.values()):
            # An event may have come in the moment in which the sandbox was ended.
            kept = untaken(await self._recorder.read(self.execution))
            parked = {name: replace(one, after=self.waits.looked(one, kept)) for name, one in parked.items()}
        return left | self.hold.calls | parked

    async def _asked_of(self, call: str, question: Mapping[str, Any]) -> list[Approval]:
        """The question that a person was asked already about exactly this call: one, or none."""
        if self._is_first:
            return []
        asked = {**question, "call": call}
        return [row for row in await self._store.approvals(self.execution) if is_same(row.question, asked)]

    # --- the key by which it can be resumed; as `HoldsCalls` ---

    @property
    def kept_key(self) -> str | None:
        """The script's key, if it is stored, so that a later request with it resumes the script; else None."""
        return None if self.made_now is not None else self.key

    def generate_key(self) -> None:
        """As `HoldsCalls.generate_key`."""
        if self.key is None:
            self.key = self.made_now = generated_key(self.execution)

    def release(self, call: str) -> None:
        """As `HoldsCalls.release`."""
        self.hold.remove(call)
        if self.hold.is_empty and not self.programs.lent and self.made_now is not None:
            self.key = self.made_now = None

    # --- waits for times and events, as `WaitingRun` ---

    async def wait(self, call: CallRecorder, wanted: WaitUntil | WaitEvent) -> Any:
        """Answer a wait, when it is over.

        Raises:
            BridgeError: As `call` and `ScriptWaits.over`.
        """
        return await self.answer(call, functools.partial(self.waits.over, call, wanted))

    async def entries(self) -> list[Recorded]:
        """As `WaitingRun.entries`."""
        entries = await self._recorder.read(self.execution)
        # Who has sent an event has made references of its own.
        self._gate.values.adopt(await self._store.values(self.execution))
        return entries

    async def last_event(self) -> int:
        """As `WaitingRun.last_event`."""
        return await self._store.last_event(self.execution)

    def values_behind(self, value: Any) -> Mapping[str, Scalar]:
        """As `WaitingRun.values_behind`."""
        return self._gate.values.values_behind(value)
