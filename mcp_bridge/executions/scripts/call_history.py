"""What is recorded of a script's calls: what each asked for and was given, and in which order."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.payloads import (
    NOT_DONE,
    PENDING,
    TAKEN_BACK,
    CallOutcome,
    CallRef,
    Failure,
    Request,
    RequestIntent,
    RequestOutcome,
    Resumption,
    ScriptStart,
    ScriptSuspension,
    Success,
    ToolIntent,
    understood,
)
from mcp_bridge.ledger.storage.sealing import damaged
from mcp_bridge.policy.secrets.value_references import equal_by_values
from mcp_bridge.policy.secrets.vault_uris import REFERENCE, REFERENCE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mcp_bridge.error_codes import Code
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.policy.secrets.value_references import Scalar

MAX_ARGUMENT_CHARS = 2000
"""Of a call's arguments that an error names: a model reads it."""


@dataclass(frozen=True, slots=True)
class CallRequest(Request):
    """What a call asks for, to be compared with what it asked for before."""

    def digested(self) -> CallRequest:
        """The request with a digest in place of its arguments, for one that was refused because there is no space."""
        if self.digest is not None:
            return self
        # Nothing is kept of the values, by which they would have the same references again.
        text = REFERENCE.sub(REFERENCE_PREFIX, json.dumps(self.arguments, sort_keys=True))
        digest = hashlib.sha256(text.encode()).hexdigest()
        return replace(self, arguments=None, digest=digest)

    def abridged(self) -> dict[str, Any]:
        """As `encode`, for an error: long arguments are truncated."""
        text = json.dumps(self.arguments, ensure_ascii=False)
        short = len(text) <= MAX_ARGUMENT_CHARS
        return self.encode() | {"arguments": self.arguments if short else f"{text[:MAX_ARGUMENT_CHARS]}…"}

    @classmethod
    def of(cls, request: Request) -> CallRequest:
        """From an entry."""
        return cls(request.kind, request.name, request.arguments, request.raw, request.digest)

    def is_same(self, other: CallRequest, values: Mapping[str, Scalar]) -> bool:
        """Whether both ask for the same, as `equal_by_values` compares it.

        Args:
            other: What is asked for now.
            values: Those behind references in the arguments of both, by their ids.
        """
        if self.digest is not None or other.digest is not None:
            self, other = self.digested(), other.digested()  # noqa: PLW0642  (both as what the one is)
        return equal_by_values(self.encode(), other.encode(), values)


@dataclass(slots=True)
class RecordedCall:
    """A call that was made.

    Attributes:
        call: Its id.
        asked: What for.
        sequence: Of its intent's entry; where there is none, of its outcome's.
        began: When that was recorded, in seconds since 1970.
        outcome: What its outcome's entry says; None of a call in doubt.
        place: In the order of outcomes, from 0.
        ended: When its outcome was recorded.
        offset: How long the run that asked for it had been going, in seconds; at most.
        is_pending: Whether its tool says that its outcome comes later.
    """

    call: str
    asked: CallRequest
    sequence: int
    began: float
    outcome: CallOutcome | RequestOutcome | None = None
    place: int = -1
    ended: float = 0.0
    offset: float = 0.0
    is_pending: bool = False

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(0.0, self.ended - self.began)

    @property
    def is_answered(self) -> bool:
        """Whether the script was given an answer."""
        return self.outcome is not None and self.outcome.result.status != TAKEN_BACK

    def answer(self) -> Any:
        """What the script was given.

        Raises:
            BridgeError: It was given an error.
        """
        match None if self.outcome is None else self.outcome.result:
            case Success(value):
                if self.asked.kind != "tool":
                    return value
                return {"raw": value} if self.asked.raw else {"value": value}
            case Failure(code, message, hint, details):
                if self.asked.raw and details.get("raw") is not None:
                    # Of a tool that says so itself, an error is a result like any other.
                    return {"raw": details["raw"]}
                # As it was recorded.
                error = BridgeError(cast("Code", code), message, hint=hint)
                error.details = {name: value for name, value in details.items() if name != "raw"}
                raise error
        raise ValueError(f"the call {self.call} was given no answer")


class CallHistory:
    """The calls of an execution.

    Args:
        entries: All of the execution's, in order.

    Attributes:
        calls: By id.
        answers: How many outcomes there are: their places are below this.
        held: What the calls asked for that a person was to decide about, by their ids. None of them was made then.
    """

    def __init__(self, entries: Iterable[Recorded] = ()) -> None:
        self.calls: dict[str, RecordedCall] = {}
        self.answers = 0
        self.held: dict[str, CallRequest] = {}
        self._run_began: float | None = None
        for row in entries:
            match understood(row):
                case ScriptStart() | Resumption():
                    self._run_began = row.time
                case ScriptSuspension(held=held):
                    self.held |= {call: CallRequest.of(request) for call, request in held.items()}
                case ToolIntent(call=CallRef(id=call), request=request) | RequestIntent(request, call):
                    # One that may be repeated may have been begun twice, and it counts that it has.
                    if call not in self.calls:
                        self._asked(call, request, row)
                case CallOutcome(call=CallRef(id=call)) | RequestOutcome(call=call) as outcome:
                    self._outcome(call, outcome, row)

    def _asked(self, call: str, request: Request, row: Recorded) -> RecordedCall:
        offset = 0.0 if self._run_began is None else max(0.0, row.time - self._run_began)
        known = RecordedCall(call, CallRequest.of(request), row.sequence, row.time, offset=offset)
        self.calls[call] = known
        return known

    def _outcome(self, call: str, outcome: CallOutcome | RequestOutcome, row: Recorded) -> None:
        status, known = outcome.result.status, self.calls.get(call)
        if status == NOT_DONE:
            if known is not None and known.outcome is None:
                del self.calls[call]
            return
        if known is None:
            if not isinstance(outcome, RequestOutcome) or outcome.has_intent:
                raise damaged(f"the entry {row.sequence} is the outcome of a call that has no intent")
            known = self._asked(call, outcome.request, row)
        if status == PENDING:
            known.is_pending = True
        elif known.outcome is None:
            known.outcome, known.place, known.ended = outcome, self.answers, row.time
            self.answers += 1
        elif status == TAKEN_BACK:
            # Its answer was on its way when the script no longer wanted it.
            known.outcome, known.ended = outcome, row.time

    def doubtful(self) -> list[RecordedCall]:
        """The calls that were about to happen, and of which no outcome is recorded."""
        return [call for call in self.calls.values() if call.outcome is None and not call.is_pending]

    def pending(self) -> list[RecordedCall]:
        """The calls whose outcome comes later, the one that has waited longest first."""
        return [call for call in self.calls.values() if call.outcome is None and call.is_pending]
