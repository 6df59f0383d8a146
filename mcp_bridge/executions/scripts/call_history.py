"""The recorded calls of a script: their requests and answers, and the order of the answers."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.payloads import (
    CANCELLED_BY_SCRIPT,
    LOOKUP,
    NOT_DONE,
    PENDING,
    CallOutcome,
    CallRef,
    Failure,
    Planned,
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
    from mcp_bridge.policy.secrets.known_values import Scalar

MAX_ARGUMENT_CHARS = 2000
"""Most characters of a call's arguments in an error, which a model reads."""


@dataclass(frozen=True, slots=True)
class CallRequest(Request):
    """The request of a call, which is compared with the recorded one."""

    def digested(self) -> CallRequest:
        """The request with a digest in place of its arguments, for a call that was refused for lack of space."""
        if self.digest is not None:
            return self
        # The values aren't stored, so the same values would get other references the next time.
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
        """Whether two requests are the same, as `equal_by_values` compares them.

        Args:
            other: The request of this run.
            values: The values behind the references in the arguments of both, by the references' ids.
        """
        if self.kind == other.kind == "wait":
            # Computed from the clock, the end of a wait is another one each time: the first one counts.
            self, other = self._without_end(), other._without_end()  # noqa: PLW0642
        if self.digest is not None or other.digest is not None:
            self, other = self.digested(), other.digested()  # noqa: PLW0642  (both as what the one is)
        return equal_by_values(self.encode(), other.encode(), values)

    def _without_end(self) -> CallRequest:
        if not isinstance(self.arguments, dict):
            return self
        return replace(self, arguments={name: value for name, value in self.arguments.items() if name != "until"})


@dataclass(slots=True)
class RecordedCall:
    """A recorded call.

    Attributes:
        call: Its id.
        asked: Its request.
        sequence: The number of its intent's entry; without an intent, of its outcome's.
        began: When that entry was recorded, in seconds since 1970.
        outcome: Its recorded outcome; None for a call in doubt.
        place: Its place in the order of outcomes, from 0.
        answered: The number of its outcome's entry; 0 without one.
        ended: When its outcome was recorded, in seconds since 1970.
        offset: Seconds from the start of the run until the call was made; an upper bound.
        is_pending: Whether the tool announced that its outcome comes later.
    """

    call: str
    asked: CallRequest
    sequence: int
    began: float
    outcome: CallOutcome | RequestOutcome | None = None
    place: int = -1
    answered: int = 0
    ended: float = 0.0
    offset: float = 0.0
    is_pending: bool = False

    @property
    def seconds(self) -> float:
        """Seconds from the intent to the outcome."""
        return max(0.0, self.ended - self.began)

    @property
    def is_answered(self) -> bool:
        """Whether the script was given an answer."""
        return self.outcome is not None and self.outcome.result.status != CANCELLED_BY_SCRIPT

    def has_failed_with(self, code: str) -> bool:
        """Whether the script was given an error with this code."""
        result = None if self.outcome is None else self.outcome.result
        return isinstance(result, Failure) and result.code == code

    def answer(self) -> Any:
        """The answer that the script was given.

        Raises:
            BridgeError: The script was given this error.
        """
        match None if self.outcome is None else self.outcome.result:
            case Success(value):
                if self.asked.kind != "tool":
                    return value
                return {"raw": value} if self.asked.raw else {"value": value}
            case Failure(code, message, hint, details):
                if self.asked.raw and details.get("raw") is not None:
                    # An error that the tool itself returned is a result like any other.
                    return {"raw": details["raw"]}
                # As it was recorded.
                error = BridgeError(cast("Code", code), message, hint=hint)
                error.details = {name: value for name, value in details.items() if name != "raw"}
                raise error
            case Planned(number):
                return {"planned": number}
        raise ValueError(f"the call {self.call} was given no answer")


class CallHistory:
    """The calls of an execution.

    Args:
        entries: All of the execution's, in order.

    Attributes:
        calls: By id.
        answers: The number of outcomes.
        lookups: What the script has looked up. None of them is a call.
        held: The requests that a person was asked about, by the calls' ids. None of these calls was made then.
        taken_back: The requests that the script took back before they were begun, by the calls' ids.
        language: What the script is written in.
        after_dry_run: Whether a dry run was before these calls. What it did isn't among them: the run reads anew.
    """

    def __init__(self, entries: Iterable[Recorded] = ()) -> None:
        self.calls: dict[str, RecordedCall] = {}
        self.answers = 0
        self.lookups: list[RecordedCall] = []
        self.held: dict[str, CallRequest] = {}
        self.taken_back: dict[str, CallRequest] = {}
        self.language = "python"
        self.after_dry_run = False
        self._run_began: float | None = None
        is_dry = has_listed = False
        for row in entries:
            match understood(row):
                case ScriptStart(dry_run=is_dry, language=language):
                    self._run_began = row.time
                    self.language = language or "python"
                case Resumption():
                    self._run_began = row.time
                    if is_dry and not self.after_dry_run and (has_listed or not self._has_had_pending()):
                        # It has done nothing that is to be repeated: it is run anew, or the run begins. Except where
                        # somebody was to bring an outcome: that comes once.
                        self.after_dry_run = has_listed
                        self.calls, self.answers, self.held, self.lookups, self.taken_back = {}, 0, {}, [], {}
                case ScriptSuspension(planned=int()):
                    has_listed = True
                case ScriptSuspension(held=held):
                    self.held |= {call: CallRequest.of(request) for call, request in held.items()}
                case ToolIntent(call=CallRef(id=call), request=request) | RequestIntent(request, call):
                    # A repeatable call may have been begun twice. The first intent counts.
                    if call not in self.calls:
                        self._asked(call, request, row)
                case RequestOutcome(request, call) as outcome if request.kind == LOOKUP:
                    asked = CallRequest.of(request)
                    self.lookups.append(RecordedCall(call, asked, row.sequence, row.time, outcome))
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
            if status == CANCELLED_BY_SCRIPT:
                self.taken_back[call] = CallRequest.of(outcome.request)
                return
            known = self._asked(call, outcome.request, row)
        if status == PENDING:
            known.is_pending = True
        elif known.outcome is None:
            known.outcome, known.place, known.ended = outcome, self.answers, row.time
            known.answered = row.sequence
            self.answers += 1
        elif status == CANCELLED_BY_SCRIPT:
            # The script cancelled it when its answer was already on the way.
            known.outcome, known.ended = outcome, row.time

    @property
    def is_empty(self) -> bool:
        """Whether nothing is recorded that the script has asked for."""
        return not (self.calls or self.held or self.taken_back or self.lookups)

    def asked(self, call: str) -> CallRequest | None:
        """What is known to have been asked for by a call's id; None if nothing is."""
        if (known := self.calls.get(call)) is not None:
            return known.asked
        # That a person was asked about it counts as recorded: they may have decided.
        return self.held.get(call) or self.taken_back.get(call)

    def _has_had_pending(self) -> bool:
        return any(call.is_pending for call in self.calls.values())

    def planned(self) -> list[Planned]:
        """The calls that a dry run has listed, in the order of the list."""
        results = [call.outcome.result for call in self.calls.values() if call.outcome is not None]
        return sorted((one for one in results if isinstance(one, Planned)), key=lambda one: one.number)

    def doubtful(self) -> list[RecordedCall]:
        """The calls that have an intent and no outcome."""
        return [call for call in self.calls.values() if call.outcome is None and not call.is_pending]

    def pending(self) -> list[RecordedCall]:
        """The calls whose outcome comes later, the oldest first."""
        return [call for call in self.calls.values() if call.outcome is None and call.is_pending]
