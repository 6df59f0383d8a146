"""Records one new call of a script: the only writer of its entries.

A call has an intent, if it has an effect, and one outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import anyio

from mcp_bridge.executions.scripts.call_history import CallRequest
from mcp_bridge.ledger.log.payloads import (
    CANCELLED_BY_SCRIPT,
    NOT_DONE,
    PENDING,
    CallDecision,
    CallOutcome,
    CallRef,
    Denial,
    Failure,
    NoAnswer,
    Planned,
    Question,
    RequestIntent,
    RequestOutcome,
    Success,
)
from mcp_bridge.offload import off_loop

if TYPE_CHECKING:
    from mcp_bridge.downstream.catalog.bound_tool import ToolResult
    from mcp_bridge.errors import BridgeError
    from mcp_bridge.executions.scripts.call_history import RecordedCall
    from mcp_bridge.gate.planned_calls import PlannedCallError
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.ledger.log.payload_base import Payload
    from mcp_bridge.ledger.log.payloads import QuestionFields, Result, ToolIntent

NOT_TAKEN = frozenset({"record_limit", "ledger_full", "too_many_subjects"})
"""Codes of calls that were refused because the ledger has no space for them, or could not say whose data they hold;
their arguments aren't kept either."""

ENTRY_BYTES = 500
"""About what the entry of a call without its arguments takes."""


class CallLog(Protocol):
    """The record of a script's execution."""

    @property
    def execution(self) -> str:
        """The execution's id."""

    @property
    def key(self) -> str | None:
        """The idempotency key by which somebody can go on with the execution, or None."""

    def post(self, payload: Payload) -> None:
        """Record an entry, without waiting."""

    async def append(self, payload: Payload) -> None:
        """Record an entry; when this returns, it is durable."""

    async def project(self, value: Any) -> Any:
        """The value without secrets and sensitive values, as it may be recorded."""

    def keep(self, value: Any) -> None:
        """Store the values behind the references of a value that is recorded next."""

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may be recorded."""

    async def decided(self, call: str, question: QuestionFields) -> bool | None:
        """Whether a person has approved exactly this call; None if nobody has decided."""

    async def decide(self, call: str, question: QuestionFields, *, approved: bool) -> bool | None:
        """Record a decision on an open question. Returns the decision that counts; None without such a question."""

    def left_open(self, call: CallRecorder, question: QuestionFields) -> None:
        """Note that the client's person has gone without an answer."""


class CallRecorder:
    """Records one call of a script. As `callers.Caller`.

    Args:
        log: The record of the script's execution.
        call: The call's id; None if the guest sent none.
        kind: As `CallRequest.kind`, like `name`.
        name: The name of what is called.
        arguments: As the script gave them, not projected.
        request: The context of the call's request.
        raw: Whether the script wants the whole result.

    Attributes:
        known: The recorded call, if it has an intent and no outcome.
        has_ended: Whether its outcome is recorded.
        is_pending: Whether the tool announced that its outcome comes later.
    """

    __slots__ = (
        "_asked",
        "_has_intent",
        "_log",
        "_tool",
        "arguments",
        "call",
        "has_ended",
        "is_pending",
        "kind",
        "known",
        "name",
        "raw",
        "request",
    )

    program = None
    step = None
    approved = None

    def __init__(
        self,
        log: CallLog,
        call: str | None,
        kind: str,
        name: str,
        arguments: Any,
        request: RequestContext,
        *,
        raw: bool = False,
    ) -> None:
        self._log = log
        self.call = call
        self.kind = kind
        self.name = name
        self.arguments = arguments
        self.request = request
        self.raw = raw
        self.known: RecordedCall | None = None
        self.has_ended = False
        self.is_pending = False
        self._asked: CallRequest | None = None
        self._tool: str | None = None
        """The exact name of the tool that is about to be called."""
        self._has_intent = False
        """Whether the arguments are in an intent that isn't a tool call's."""

    @property
    def execution(self) -> str:
        """As `Caller.execution`."""
        return self._log.execution

    async def asked(self) -> CallRequest:
        """The call's request, projected."""
        if self._asked is None:
            self._asked = CallRequest(self.kind, self.name, await self._log.project(self.arguments), self.raw)
        return self._asked

    # --- entries that the gate has written ---

    async def decided(self, question: QuestionFields) -> bool | None:
        """As `Caller.decided`."""
        return None if self.call is None else await self._log.decided(self.call, question)

    async def decide(self, question: QuestionFields, *, approved: bool) -> bool:
        """As `Caller.decide`."""
        counts = None if self.call is None else await self._log.decide(self.call, question, approved=approved)
        if counts is not None:
            return counts
        ref = self._ref(question["tool"])
        await self._log.append(CallDecision(Question(question), approved, "client", ref))
        return approved

    def left_open(self, question: QuestionFields) -> None:
        """As `Caller.left_open`."""
        if self.call is not None and not self.request.is_cancelled:
            self._log.left_open(self, question)

    async def deny(self, tool: str, decider: str) -> None:
        """As `Caller.deny`."""
        await self._log.append(Denial(tool, decider, self._ref(tool)))

    async def begin(self, intent: ToolIntent, *, is_repeatable: bool) -> None:  # noqa: ARG002
        """As `Caller.begin`. Whether a call in doubt is repeatable is determined when the script is resumed."""
        self._tool = intent.tool
        try:
            await self._log.append(intent.called_by(self._ref(intent.tool)))
        except BaseException:
            # It was announced, and isn't made.
            self._end(self._of_tool(NoAnswer(NOT_DONE)))
            raise
        if self.call is not None:
            self.request.on_cancel(self.cancelled)

    # --- intents that aren't tool calls' ---

    async def announce(self) -> int | None:
        """Record the intent of something other than a tool call; when this returns, it is durable.

        Returns:
            The call's earlier intent if it may have happened; None for a new call.
        """
        if self.call is None:
            return None
        await self._log.append(self._announced(await self.asked(), self.call))
        return None if self.known is None else self.known.sequence

    def restore_request(self) -> None:
        """Take the request as it is recorded, with its intent: the call was made before, and goes on."""
        if self.known is not None:
            self._asked, self._has_intent = self.known.asked, True

    def drives_program(self, asked: CallRequest) -> None:
        """Record, unless `announce` did, that the script drives a program, whose outcome may never come."""
        if self.call is not None and not self._has_intent:
            self._log.post(self._announced(asked, self.call))

    def _announced(self, asked: CallRequest, call: str) -> RequestIntent:
        self._has_intent = True
        self._log.keep(asked.arguments)
        return RequestIntent(asked, call)

    # --- the outcome ---

    def returned(self, result: ToolResult) -> None:
        """Record a tool's result."""
        if result.is_pending and self.call is not None:
            if not self.has_ended:
                # The script is suspended, and gets the outcome later.
                self.is_pending = True
                self._write(self._of_tool(NoAnswer(PENDING)))
            return
        self._end(self._of_tool(Success(result.raw if self.raw else result.value, result.is_pending)))

    async def succeeded(self, value: Any) -> None:
        """Record the answer to a call that isn't a tool call."""
        self.succeeded_with(value, await self.asked())

    def succeeded_with(self, value: Any, asked: CallRequest) -> None:
        """As `succeeded`, for arguments that are projected already."""
        self._end(self._of_asked(asked, Success(value)))

    async def planned(self, number: int, error: PlannedCallError) -> dict[str, Any]:
        """Record that a dry run has listed the call. Returns the answer to the script."""
        asks = error.question
        planned = Planned(
            number,
            asks["tool"],
            asks["arguments"],
            asks.get("filled", ()),
            asks.get("announced", {}),
            asks.get("why", ""),
            error.listed,
            error.asks,
        )
        self._log.keep([planned.given, planned.announced])
        self._end(self._of_asked(await self.asked(), planned))
        return {"planned": number}

    async def failed(self, error: BridgeError) -> None:
        """Record that the call failed or was refused; when the script is run again, the call is refused again."""
        if self._tool is not None:
            self._end(self._of_tool(Failure.of(error, raw=self.raw)))
        elif self.call is not None and not self.has_ended:
            asked = await self.asked()
            self._end(self._of_asked(asked.digested() if error.code in NOT_TAKEN else asked, Failure.of(error)))

    async def cut_off(self, *, is_held: bool) -> None:
        """Record that a tool call was cut off: by the end of its sandbox, by its cancellation, or by an internal error.

        It is in doubt if the sandbox ended, and the execution can be resumed.

        Args:
            is_held: Whether it is noted whose data its arguments are.
        """
        if self._tool is None:
            if is_held and self.request.is_cancelled:
                await self.record_cancelled_before_intent()
        elif self._log.key is None or self.request.is_cancelled:
            self._end(self._of_tool(NoAnswer(CANCELLED_BY_SCRIPT)))

    async def record_cancelled_before_intent(self) -> None:
        """Record that the script took the call back, or left it at its end, before its intent: it has had no effect.

        A digest of its arguments is enough to know it again. Where there is no room, nothing is recorded.
        """
        if self.call is None or self.has_ended:
            return
        with anyio.CancelScope(shield=True):
            asked = await self.asked()
            asked = await off_loop(asked.arguments, asked.digested)
        if self._log.has_room(ENTRY_BYTES):
            self._end(self._of_asked(asked, NoAnswer(CANCELLED_BY_SCRIPT)))

    def cancelled(self) -> None:
        """Record that the script cancelled a tool call, whatever became of it."""
        self.has_ended = True
        self._log.post(self._of_tool(NoAnswer(CANCELLED_BY_SCRIPT)))

    def abandoned(self, asked: CallRequest) -> None:
        """As `cancelled`, for a held call, or a program that the script no longer waits for."""
        self.has_ended = True
        self._log.post(self._of_asked(asked, NoAnswer(CANCELLED_BY_SCRIPT)))

    def _end(self, outcome: CallOutcome | RequestOutcome) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._write(outcome)

    def _write(self, outcome: CallOutcome | RequestOutcome) -> None:
        given = None
        match outcome.result:
            case Success(value):
                given = value
            case Failure(details=details):
                given = details
        self._log.keep([outcome.request.arguments if isinstance(outcome, RequestOutcome) else None, given])
        self._log.post(outcome)

    def _of_tool(self, result: Result) -> CallOutcome:
        """The outcome of a tool call, whose request is in the intent."""
        tool = self._tool or self.name
        return CallOutcome(tool, self._ref(tool), result)

    def _of_asked(self, asked: CallRequest, result: Result) -> RequestOutcome:
        """Any other outcome, with the request unless an intent has it."""
        assert self.call is not None  # of what has no name, only a tool's call is recorded
        return RequestOutcome(asked, self.call, result, self._has_intent)

    def _ref(self, tool: str) -> CallRef | None:
        """The call's id, as the entries of a tool call have it."""
        return None if self.call is None else CallRef(self.call, None if self.name == tool else self.name, self.raw)
