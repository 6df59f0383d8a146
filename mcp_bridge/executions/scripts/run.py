"""One run of a script: recorded calls are answered from the record, and new calls are made and recorded.

A script that is resumed runs again from its beginning and repeats its calls with the same ids
(`wire.messages.CallId`). A recorded call gets its recorded answer, in the recorded order, and isn't made again. A
script that makes another call under a recorded id has diverged: it is stopped before it does harm. Without an
idempotency key, a script is run again only when its sandbox is lost, or for a replay, which makes no calls.

A call that can't be answered now (`script_waiting`) suspends the script. A script without a key is then given one.
"""

from __future__ import annotations

import functools
import math
import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.idempotency.runs_without_key import generated_key
from mcp_bridge.executions.plans.plan import MAX_PLANNED, MAX_PLANNED_BYTES, plan_bytes, too_large
from mcp_bridge.executions.scripts.answer_order import AnswerOrder
from mcp_bridge.executions.scripts.call_history import CallHistory, CallRequest
from mcp_bridge.executions.scripts.call_recorder import CallRecorder
from mcp_bridge.executions.scripts.divergence import Divergence, RecordedCourse
from mcp_bridge.executions.scripts.held_calls import HeldCall, Hold, is_same
from mcp_bridge.executions.status import UNFINISHED
from mcp_bridge.executions.waits.events import untaken
from mcp_bridge.executions.waits.script_waits import ScriptWaits
from mcp_bridge.gate.planned_calls import PlannedCallError
from mcp_bridge.gate.policy_check import ApprovalNeededError
from mcp_bridge.ledger.log.payloads import Question, QueuedDecision, Violation, to_entry
from mcp_bridge.offload import off_loop
from mcp_bridge.wire.messages import NAMES, ProgramResume

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from mcp_bridge.gate.gate import Gate
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.ledger.log.entries import Entry, Recorded
    from mcp_bridge.ledger.log.payload_base import Payload
    from mcp_bridge.ledger.log.payloads import QuestionFields
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.execution_store import Approval, ProgramStore
    from mcp_bridge.policy.secrets.value_references import Scalar
    from mcp_bridge.wire.messages import ToolCall, WaitEvent, WaitUntil

OWN_END = frozenset({"success", "error", "exit"})
"""Statuses of a script that ended by itself."""

_RESUMABLE = frozenset({"event", "tool"})
"""What a program can wait for that its script may deliver, with `programs.resume`."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


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
        live: Whether new calls are made; in a replay a new call is a divergence.

    Attributes:
        course: What this run repeats of the record, and where it diverges from it.
        answers: Gives the recorded answers, in the recorded order.
        has_unnamed: Whether a call without an id was made, which the record can't answer again.
        hold: The calls that can't be answered now.
        waits: Its waits for times and events.
        lent: The calls of suspended programs whose record the script was given, by the programs' ids.
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
    ) -> None:
        self.execution = execution
        self.key = key
        self.live = live
        self.history = history or CallHistory()
        self.has_unnamed = False
        self.hold = Hold()
        self.made_now: str | None = None
        self.lent: dict[str, HeldCall] = {}
        self.waits = ScriptWaits(self)
        self._left_open: list[tuple[CallRecorder, QuestionFields]] = []
        """The calls about which a client's person was asked, who has gone without an answer."""
        self._all_returned = anyio.Event()
        self._is_first = history is None
        self._store = store
        self._recorder = recorder
        self._gate = gate
        self._policy_hash = policy_hash
        self.course = RecordedCourse(execution, self.history)
        self.answers = AnswerOrder(self.course)
        self._is_caught_up = not self.history.calls
        self._programs: dict[str, tuple[CallRecorder, CallRequest]] = {}
        """The calls of programs that are under way or in `lent`, by the programs' executions."""
        listed = self.history.planned()
        self._listed = len(listed)
        """How many calls its dry run has listed."""
        self._listed_bytes = sum(plan_bytes(one.given) for one in listed)

    @property
    def is_dry(self) -> bool:
        """Whether it is a dry run: it may only read, and what else it asks for is listed."""
        return self._gate.is_dry

    @property
    def may_have_events(self) -> bool:
        """Whether events may have been sent to it: it has waited, or been suspended."""
        return self.live and (not self._is_first or self.waits.has_waited)

    # --- requests of the sandbox ---

    async def call(self, server: str, asked: ToolCall, request: RequestContext) -> dict[str, Any]:
        """Answer a tool call: from the record, or by calling the tool and recording the outcome.

        Args:
            server: The server's configured name.
            asked: The script's request.
            request: The context of the request.

        Raises:
            BridgeError: `violation`: the call's id was used before in this run, or is missing; the call's own error.
        """
        name = f"{server}.{asked.tool}"
        call = CallRecorder(self, asked.call, "tool", name, asked.arguments, request, raw=asked.raw)
        if (answer := await self._answered_already(call)) is not None:
            return answer  # type: ignore[no-any-return]
        if call.is_pending:
            # It was made, in another run.
            await self._wait(call, request, "tool")
        try:
            tool = await self._gate.tools.catalog.bind(server, asked.tool)
            result = await self._gate.call(tool, asked.arguments, call, raw=asked.raw)
        except PlannedCallError as exc:
            return await self._planned(call, exc)
        except ApprovalNeededError as exc:
            if call.call is None:
                raise
            await self._wait(call, request, "approval", question=exc.question)
        except BridgeError as exc:
            await call.failed(exc)
            raw = exc.details.pop("raw", None)
            if asked.raw and raw is not None:
                # An error that the tool itself returned is a result like any other.
                return {"raw": raw}
            raise
        except BaseException:
            call.cut_off()
            raise
        call.returned(result)
        if call.is_pending:
            await self._wait(call, request, "tool")
        return {"raw": result.raw} if asked.raw else {"value": result.value}

    async def list_program(self, call: CallRecorder) -> Any:
        """List the start of a program, or that one is to go on, in a dry run. No approval of the list covers its steps.

        Raises:
            BridgeError: As `call`; `plan_too_large`.
        """
        if (answer := await self._answered_already(call)) is not None:
            return answer
        asked = await call.asked()
        return await self._planned(call, PlannedCallError({"tool": call.name, "arguments": asked.arguments}))

    async def _planned(self, call: CallRecorder, planned: PlannedCallError) -> dict[str, Any]:
        """List a call of a dry run. What is given for its result stands for it in the arguments of other calls.

        Raises:
            BridgeError: `plan_too_large`.
        """
        asks = planned.question
        size = await off_loop(asks["arguments"], plan_bytes, asks["arguments"])
        if self._listed >= MAX_PLANNED or self._listed_bytes + size > MAX_PLANNED_BYTES:
            error = too_large()
            await call.failed(error)
            raise error
        self._listed += 1
        self._listed_bytes += size
        return await call.planned(self._listed, planned)

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
        if call.kind == "program" and self._waits(answer.get("record")):
            return await self._program_waits(call, asked, answer, call.request)
        if call.kind == "program" and "record" not in answer and "execution" in answer:
            # The program is under way now: its record will be the call's outcome.
            self._programs[answer["execution"]] = call, asked
            call.drives_program(asked)
        else:
            call.succeeded_with(answer, asked)
        return answer

    def cancelled_before_start(self, call: str) -> None:
        """The script cancelled a call before it was begun. For the record, the call was repeated."""
        self.course.made.add(call)
        self.course.repeated(call)
        if (known := self.history.calls.get(call)) is not None and known.outcome is not None:
            self.answers.give(known.place)

    async def _answered_already(self, call: CallRecorder) -> Any:
        """The recorded answer to a call, or None if the call is to be made now.

        Raises:
            BridgeError: `violation`; the recorded answer.
        """
        if call.call is None or call.call in self.course.made:
            self._check_unnamed(call.call)
            return None
        self.course.begin(call.call)
        if self.course.divergence is not None:
            await anyio.sleep_forever()
        known = self.history.calls.get(call.call)
        # A call that a person was asked about counts as recorded: they may have decided.
        before = self.history.held.get(call.call) if known is None else known.asked
        if before is not None:
            now = await call.asked()
            values = self._gate.values.values_behind([before.arguments, now.arguments])
            await self.course.compare(call.call, before, now, values)
        if known is not None:
            self.course.repeated(call.call)
            if known.outcome is not None:
                return await self.answers.answer(known, call.request)
        if not self.live:
            if known is None:
                await self.course.leave(Divergence(call.call, None, await call.asked()))
            await anyio.sleep_forever()  # as then: its answer never came
        if not self._is_caught_up:
            await self._catch_up(call)
        await self._returned(call)
        await call.request.reacquire_slot()
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

    def generate_key(self) -> None:
        """Give a run without a key one, by which it can be resumed."""
        if self.key is None:
            self.key = self.made_now = generated_key(self.execution)

    async def _asked_of(self, call: str, question: Mapping[str, Any]) -> list[Approval]:
        """The question that a person was asked already about exactly this call: one, or none."""
        if self._is_first:
            return []
        asked = {**question, "call": call}
        return [row for row in await self._store.approvals(self.execution) if is_same(row.question, asked)]

    # --- calls that can't be answered now ---

    async def _wait(
        self,
        call: CallRecorder,
        request: RequestContext,
        kind: Literal["approval", "tool", "program"],
        question: QuestionFields | None = None,
        program: Mapping[str, Any] = _NOTHING,
    ) -> NoReturn:
        """Hold a call without an answer until the script, which is suspended for it, is ended, or cancels the call.

        Args:
            call: The call.
            request: The request that is held: the call's own, or the one that reported the end of its program.
            kind: As `HeldCall.kind`, like `question` and `program`.
            question: What a person is asked.
            program: The program's record.
        """
        asked = await call.asked()
        assert call.call is not None  # noqa: S101 - without a name it isn't held
        name = call.call
        self.generate_key()

        def let_go() -> None:
            # The script goes on without it.
            self._let_go(name)
            if not call.has_ended:
                call.abandoned(asked)

        request.release_slot()
        request.effect_ended()
        self.hold.add(HeldCall(name, asked, kind, time.time(), question or {}, program))
        request.on_cancel(let_go)
        try:
            await anyio.sleep_forever()
        finally:
            if request.is_cancelled and name in self.hold.calls:
                let_go()
        raise AssertionError

    def _let_go(self, name: str) -> None:
        self.hold.remove(name)
        if self.hold.is_empty and not self.lent and self.made_now is not None:
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

    async def parked(self, call: CallRecorder, held: HeldCall, pause: Callable[[], Awaitable[None]]) -> None:
        """As `WaitingRun.parked`."""
        self.generate_key()
        call.request.release_slot()
        self.hold.park(held)
        try:
            await pause()
        except BaseException:
            # When its sandbox is ended, the script is suspended for it.
            if call.request.is_cancelled:
                self._let_go(held.call)
            raise
        self._let_go(held.call)
        await call.request.reacquire_slot()

    # --- programs that it drives ---

    @property
    def kept_key(self) -> str | None:
        """The script's key, if it is stored, so that a later request with it resumes the script; else None."""
        return None if self.made_now is not None else self.key

    def _waits(self, record: Any) -> bool:
        """Whether the script waits for a program instead of getting its record: it has a key, and resumes later."""
        return self.key is not None and isinstance(record, dict) and record["status"] in UNFINISHED

    async def program_ended(self, execution: str, record: dict[str, Any], request: RequestContext) -> None:
        """The sandbox has driven a program until it ended or was suspended.

        Args:
            execution: The program's execution.
            record: Its record.
            request: The request that reported it.
        """
        if (found := self._programs.pop(execution, None)) is None:
            return
        call, asked = found
        if self._waits(record):
            await self._program_waits(call, asked, {"record": record}, request)
        else:
            call.succeeded_with({"record": record}, asked)

    async def _program_waits(
        self, call: CallRecorder, asked: CallRequest, answer: dict[str, Any], request: RequestContext
    ) -> dict[str, Any]:
        """Answer the call of a program that was suspended: not at all, unless the script may deliver what it waits for.

        In that case the script gets the program's record, and the call is in `lent` until the script's next call. That
        call may resume the program. If it is any other call, or the script ends, the script is suspended for its
        program: nothing that it does because the program is suspended takes effect.
        """
        record = answer["record"]
        if not any(row["kind"] in _RESUMABLE for row in record["waiting"]):
            await self._wait(call, request, "program", program=record)
        execution = record["trace_id"]
        assert call.call is not None  # noqa: S101 - without a name it has no key
        self._programs[execution] = call, asked
        self.lent[execution] = HeldCall(call.call, asked, "program", time.time(), {}, record)
        return answer

    async def _returned(self, call: CallRecorder) -> None:
        """Wait until `lent` has no program but the one that a call resumes."""
        if call.kind == "program" and call.name == NAMES[ProgramResume] and call.arguments["execution"] in self.lent:
            held = self.lent.pop(call.arguments["execution"])
            lender, asked = self._programs.pop(call.arguments["execution"])
            lender.succeeded_with({"record": held.program}, asked)
            self.hold.remove(held.call)
            self._all_returned.set()
        while self.lent:
            for held in self.lent.values():
                self.hold.add(held)
            if self._all_returned.is_set():
                # One event for all waiters: replacing it would leave earlier waiters waiting.
                self._all_returned = anyio.Event()
            call.request.release_slot()
            await self._all_returned.wait()

    def program_left(self, execution: str) -> None:
        """The script no longer waits for a program that its sandbox was driving."""
        if (found := self._programs.pop(execution, None)) is not None:
            call, asked = found
            call.abandoned(asked)

    # --- replaying ---

    async def _catch_up(self, call: CallRecorder) -> None:
        """Wait until this run has repeated all recorded calls, and was given their answers.

        Args:
            call: A call that isn't recorded, or has no recorded outcome.
        """
        call.request.release_slot()
        await self.course.all_repeated(call.call or "", call.asked)
        # All are repeated, and answered one after the other: none is waited for in vain.
        await self.answers.turn(self.history.answers, math.inf)
        if self.course.divergence is not None:
            await anyio.sleep_forever()
        self._is_caught_up = True
        await call.request.reacquire_slot()
