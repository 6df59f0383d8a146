"""One call of a script, from the moment in which it is new to the script's record: the writer of its entries.

A call has an intent, if something is about to happen, and one outcome. Nobody else writes either of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from mcp_bridge.executions.scripts.call_history import CallRequest
from mcp_bridge.ledger.log.payloads import (
    NOT_DONE,
    PENDING,
    TAKEN_BACK,
    CallDecision,
    CallOutcome,
    CallRef,
    Denial,
    Failure,
    NoAnswer,
    Question,
    RequestIntent,
    RequestOutcome,
    Success,
)

if TYPE_CHECKING:
    from mcp_bridge.downstream.catalog.bound_tool import ToolResult
    from mcp_bridge.errors import BridgeError
    from mcp_bridge.executions.scripts.call_history import RecordedCall
    from mcp_bridge.gate.request_context import RequestContext
    from mcp_bridge.ledger.log.payloads import Payload, QuestionFields, Result, ToolIntent

NOT_TAKEN = frozenset({"record_limit", "ledger_full"})
"""Codes of calls for which there was no room in the record: nor is there for what they were given."""


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
        """A value as it may be recorded."""

    def keep(self, value: Any) -> None:
        """Keep the values behind the references in a value that is recorded next."""

    async def decided(self, call: str, question: QuestionFields) -> bool | None:
        """Whether a person has approved of exactly this call; None if nobody has decided."""

    async def decide(self, call: str, question: QuestionFields, *, approved: bool) -> bool | None:
        """Record a decision on an open question; what counts, or None if there is no such question."""


class CallRecorder:
    """Records one call of a script. As `callers.Caller`.

    Args:
        log: The record of the script's execution.
        call: The call's id; None from a guest that gives none.
        kind: As `CallRequest.kind`, like `name`.
        name: What is called.
        arguments: As the script gave them, not projected.
        request: The request that the call came by.
        raw: Whether the whole result is wanted.

    Attributes:
        known: What is recorded of the call already, if its outcome isn't.
        has_ended: Whether its outcome is recorded.
        is_pending: Whether its tool says that its outcome comes later.
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
        """Whether the arguments are recorded with an intent, of something else than a tool's call."""

    @property
    def execution(self) -> str:
        """As `Caller.execution`."""
        return self._log.execution

    async def asked(self) -> CallRequest:
        """What the call asks for, projected."""
        if self._asked is None:
            self._asked = CallRequest(self.kind, self.name, await self._log.project(self.arguments), self.raw)
        return self._asked

    # --- what the gate has recorded ---

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

    async def deny(self, tool: str, decider: str) -> None:
        """As `Caller.deny`."""
        await self._log.append(Denial(tool, decider, self._ref(tool)))

    async def begin(self, intent: ToolIntent, *, is_repeatable: bool) -> None:  # noqa: ARG002
        """As `Caller.begin`. Whether a call in doubt is repeatable is asked when somebody goes on with the script."""
        self._tool = intent.tool
        try:
            await self._log.append(intent.called_by(self._ref(intent.tool)))
        except BaseException:
            # It has been announced, and won't be made.
            self._end(self._of_tool(NoAnswer(NOT_DONE)))
            raise
        if self.call is not None:
            self.request.on_cancel(self.cancelled)

    # --- what else is about to happen ---

    async def announce(self) -> int | None:
        """Record that something else than a tool's call is about to happen; when this returns, that is durable.

        Returns:
            The entry in which that was recorded before, of a call that may have happened; None of a new one.
        """
        if self.call is None:
            return None
        await self._log.append(self._announced(await self.asked(), self.call))
        return None if self.known is None else self.known.sequence

    def drives_program(self, asked: CallRequest) -> None:
        """Record, unless `announce` has, that the script has a program of which the outcome may never come."""
        if self.call is not None and not self._has_intent:
            self._log.post(self._announced(asked, self.call))

    def _announced(self, asked: CallRequest, call: str) -> RequestIntent:
        self._has_intent = True
        self._log.keep(asked.arguments)
        return RequestIntent(asked, call)

    # --- the outcome ---

    def returned(self, result: ToolResult) -> None:
        """The tool has given a result."""
        if result.is_pending and self.call is not None:
            if not self.has_ended:
                # Its script is suspended, and gets what comes later.
                self.is_pending = True
                self._write(self._of_tool(NoAnswer(PENDING)))
            return
        self._end(self._of_tool(Success(result.raw if self.raw else result.value, result.is_pending)))

    async def succeeded(self, value: Any) -> None:
        """Something else than a tool has given an answer."""
        self.succeeded_with(value, await self.asked())

    def succeeded_with(self, value: Any, asked: CallRequest) -> None:
        """As `succeeded`, of a call whose arguments are projected already."""
        self._end(self._of_asked(asked, Success(value)))

    async def failed(self, error: BridgeError) -> None:
        """The call has failed, or was refused: whoever runs the script again is to be refused as well."""
        if self._tool is not None:
            self._end(self._of_tool(Failure.of(error, raw=self.raw)))
        elif self.call is not None and not self.has_ended:
            asked = await self.asked()
            self._end(self._of_asked(asked.digested() if error.code in NOT_TAKEN else asked, Failure.of(error)))

    def cut_off(self) -> None:
        """A tool's call was cut off: by the end of its sandbox, because the script no longer wants it, or by a fault.

        It is in doubt if it was cut off by the end of its sandbox, and somebody can go on with the execution.
        """
        if self._tool is not None and (self._log.key is None or self.request.is_cancelled):
            self._end(self._of_tool(NoAnswer(TAKEN_BACK)))

    def cancelled(self) -> None:
        """The script has cancelled a tool's call. Whatever has come of it, the script has done without."""
        self.has_ended = True
        self._log.post(self._of_tool(NoAnswer(TAKEN_BACK)))

    def abandoned(self, asked: CallRequest) -> None:
        """As `cancelled`, of a call that was held, or of a program that the script waits for no longer."""
        self.has_ended = True
        self._log.post(self._of_asked(asked, NoAnswer(TAKEN_BACK)))

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
        """The outcome of a tool's call: what was asked for is in the intent."""
        tool = self._tool or self.name
        return CallOutcome(tool, self._ref(tool), result)

    def _of_asked(self, asked: CallRequest, result: Result) -> RequestOutcome:
        """Any other outcome, with what was asked for, unless that is in an intent."""
        assert self.call is not None  # noqa: S101 - of what has no name, only a tool's call is recorded
        return RequestOutcome(asked, self.call, result, self._has_intent)

    def _ref(self, tool: str) -> CallRef | None:
        """The call, as the entries of a tool's call name it."""
        return None if self.call is None else CallRef(self.call, None if self.name == tool else self.name, self.raw)
