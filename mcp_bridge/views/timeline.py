"""What people see of executions: a line of each, and a timeline of what one did. No presentation, no I/O.

The command line and the trace viewer show the same, each in its way.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from mcp_bridge.kernel.events import Outcome, Resume
from mcp_bridge.kernel.machine import IN_DOUBT
from mcp_bridge.ledger.log.payloads import (
    PENDING,
    PLANNED,
    CallDecision,
    CallOutcome,
    CallRef,
    CallSettlement,
    Damaged,
    Denial,
    EffectOutcome,
    EffectSettlement,
    Erased,
    EventDelivery,
    Failure,
    ModelIntent,
    Planned,
    ProgramEnd,
    ProgramStart,
    ProgramSuspension,
    QueuedDecision,
    RequestIntent,
    RequestOutcome,
    RunError,
    ScriptEnd,
    ScriptStart,
    ScriptSuspension,
    StepDecision,
    Success,
    ToolIntent,
    Transition,
    Unknown,
    Violation,
    decoded,
)
from mcp_bridge.policy.secrets.value_references import fill_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.ledger.log.payload_base import Payload
    from mcp_bridge.ledger.log.payloads import Decision, Decoded
    from mcp_bridge.policy.secrets.known_values import Scalar

RowKind = Literal[
    "start",
    "call",  # of a tool
    "model",  # a question to a model
    "request",  # of the bridge itself: a memory, a program, a trace
    "outcome",  # of what had no intent: a wait, an event, an approval
    "denial",
    "transition",
    "suspension",
    "resume",
    "decision",
    "event",  # that was sent to a script
    "violation",
    "erasure",
    "key",
    "clock",
    "loss",
    "end",
]

OPEN = "open"
"""The status of a call of which no outcome is recorded."""


@dataclass(slots=True)
class TimelineRow:
    """One thing that happened: an entry, or the two of a call.

    Attributes:
        kind: What.
        sequences: Places of its entries in the log.
        time: When it began, in seconds since 1970.
        what: A tool's name, a program's, the violation: what names it in few words; others' text.
        step: The path of the program's step, or None.
        status: `ok`, `failed`, `timeout`, `denied`, `pending`, `planned`, `interrupted`, `OPEN`, …; empty where
            there's none.
        seconds: How long it took; None where it has no end, or no length.
        given: What it was given; None where that's nothing.
        value: What it gave, projected.
        error: `code` and `message`, or None.
        usage: Tokens and cost of a model's answer, or None.
        erased: Whether a payload of it is erased.
        damaged: Why a payload of it can't be read; empty if it can.
    """

    kind: RowKind
    sequences: tuple[int, ...]
    time: float
    what: str = ""
    step: str | None = None
    status: str = ""
    seconds: float | None = None
    given: Any = None
    value: Any = None
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    erased: bool = False
    damaged: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """What an execution did in all.

    Attributes:
        calls: Of tools.
        models: Questions to a model.
        failed: Calls and questions that have failed.
        denials, violations, waits: How many.
        tokens: Of models' answers, prompts included.
        cost_usd: Of models' answers, as far as it is known.
        seconds: From the first entry to the last.
    """

    calls: int = 0
    models: int = 0
    failed: int = 0
    denials: int = 0
    violations: int = 0
    waits: int = 0
    tokens: int = 0
    cost_usd: float = 0
    seconds: float = 0


def as_sent(entries: Iterable[Recorded], values: Mapping[str, Scalar | None]) -> list[Recorded]:
    """Entries whose calls and decisions have the arguments that the tool got: for the operator, and never for an agent.

    Args:
        entries: An execution's.
        values: The values behind its references, by their ids.
    """
    return [_as_sent(row, lambda value: fill_in(value, values)) for row in entries]


def _as_sent(row: Recorded, fill: Callable[[Any], Any]) -> Recorded:
    match decoded(row.entry):
        case ToolIntent() | ModelIntent() | RequestIntent() as payload:
            filled: Payload = payload.filled(fill)
        case CallDecision() | StepDecision() | QueuedDecision() | EffectSettlement() | CallSettlement() as payload:
            filled = payload.filled(fill)
        case _:
            return row
    return replace(row, entry=replace(row.entry, payload=filled.encode()))


def timeline(entries: Sequence[Recorded]) -> list[TimelineRow]:
    """What an execution did, in the order in which it began.

    Args:
        entries: All of the execution's, in order.
    """
    return _Timeline().of(entries)


def totals(rows: Sequence[TimelineRow]) -> Totals:
    """What the rows of a timeline come to."""
    asked = [row for row in rows if row.kind in {"call", "model"}]
    usages = [row.usage for row in rows if row.usage]
    ends = [row.time + (row.seconds or 0) for row in rows]
    return Totals(
        calls=sum(row.kind == "call" and row.status != PLANNED for row in rows),
        models=sum(row.kind == "model" for row in rows),
        failed=sum(row.status in {"failed", "timeout", "interrupted"} for row in asked),
        denials=sum(row.kind == "denial" for row in rows),
        violations=sum(row.kind == "violation" for row in rows),
        # One that was settled is recorded once more, since it may go on: that is no other wait.
        waits=sum(row.kind == "suspension" and row.status != "interrupted" for row in rows),
        tokens=sum(int(usage.get("total_tokens") or 0) for usage in usages),
        cost_usd=sum(float(usage.get("cost_usd") or 0) for usage in usages),
        seconds=max(ends) - rows[0].time if rows else 0,
    )


@dataclass(slots=True)
class _Timeline:
    """Rows as they come, and which of them have no outcome yet."""

    rows: list[TimelineRow] = field(default_factory=list)
    unended: dict[Any, list[TimelineRow]] = field(default_factory=dict)
    denied: list[TimelineRow] = field(default_factory=list)
    """Denied program steps. The record doesn't say which effects they are."""

    def of(self, entries: Iterable[Recorded]) -> list[TimelineRow]:
        for recorded in entries:
            payload = decoded(recorded.entry)
            if recorded.entry.kind == "intent":
                self._intent(recorded, payload)
            elif recorded.entry.kind != "outcome" or not self._ends(recorded, payload):
                row = _row(recorded, payload)
                self.rows.append(row)
                if isinstance(payload, Denial):
                    self._denial(row, recorded, payload)
        return self.rows

    def _denial(self, row: TimelineRow, recorded: Recorded, denial: Denial) -> None:
        if recorded.entry.program is not None:
            self.denied.append(row)
        elif denial.call is not None:
            self.unended.setdefault(_pair(denial), []).append(row)

    def _intent(self, recorded: Recorded, payload: Decoded) -> None:
        row = _new_row("call", recorded, payload)
        row.status = OPEN
        match payload:
            case ToolIntent(tool, arguments):
                row.what, row.given = tool, arguments
            case ModelIntent(_, arguments):
                row.kind, row.given = "model", arguments
            case RequestIntent(request):
                row.kind, row.what, row.given = "request", request.name, request.arguments
            case Unknown(_, unknown):
                row.given = unknown
        self.rows.append(row)
        self.unended.setdefault(_pair(payload), []).append(row)

    def _ends(self, recorded: Recorded, payload: Decoded) -> bool:
        """Put an outcome to its intent; whether there was one."""
        # What a denied step's machine is told, is told at once, and in the order of the denials.
        is_denied = isinstance(payload, EffectOutcome) and payload.event.status == "denied"
        pair = _pair(payload)
        waiting = self.unended.get(pair) or (self.denied if is_denied else None)
        if not waiting:
            return False
        # What was in doubt may have been done once more. Where calls have no names, the earlier one ends first.
        row = waiting.pop() if pair is not None and pair[0] in {"effect", "call"} else waiting.pop(0)
        if isinstance(payload, CallOutcome) and payload.call is not None and payload.result.status == PENDING:
            # Its outcome comes later.
            waiting.append(row)
        row.sequences += (recorded.sequence,)
        row.seconds = max(0.0, recorded.time - row.time)
        row.erased = row.erased or isinstance(payload, Erased)
        row.damaged = row.damaged or _damage(payload)
        status, was_denied = row.status, row.kind == "denial"
        _take_outcome(row, payload)
        if was_denied:
            row.status = status
        elif row.erased or row.damaged:
            row.status = ""
        return True


def _damage(payload: Decoded) -> str:
    return payload.why if isinstance(payload, Damaged) else ""


def _pair(payload: Decoded) -> tuple[str, Any] | None:
    """What an intent, or a denial, and its outcome have in common."""
    match payload:
        case ToolIntent(effect=int(effect)) | ModelIntent(effect) | EffectOutcome(Outcome(effect)):
            return "effect", effect
        case (
            ToolIntent(call=CallRef(call))
            | CallOutcome(call=CallRef(call))
            | Denial(call=CallRef(call))
            | RequestIntent(call=call)
            | RequestOutcome(call=call)
        ):
            return "call", call
        case ToolIntent(tool) | CallOutcome(tool):
            return "tool", tool
    return None


def _take_outcome(row: TimelineRow, payload: Decoded) -> None:
    """What an outcome says, as attributes of a row."""
    match payload:
        case EffectOutcome(outcome):
            row.status = IN_DOUBT if (outcome.status, outcome.code) == ("pending", IN_DOUBT) else outcome.status
            row.value = outcome.value
            row.usage = None if outcome.usage is None else outcome.usage._asdict()
            if outcome.code or outcome.message:
                row.error = {"code": outcome.code, "message": outcome.message}
        case CallOutcome(result=result) | RequestOutcome(result=result):
            row.status = result.status
            if isinstance(result, Success):
                row.value = result.value
            elif isinstance(result, Failure):
                row.error = {"code": result.code, "message": result.message}
            elif isinstance(result, Planned):
                row.what, row.given = result.tool, result.given
        case Unknown(_, unknown):
            row.value = unknown


def _new_row(kind: RowKind, recorded: Recorded, payload: Decoded) -> TimelineRow:
    return TimelineRow(
        kind,
        (recorded.sequence,),
        recorded.time,
        step=recorded.entry.step,
        erased=isinstance(payload, Erased),
        damaged=_damage(payload),
    )


def _row(recorded: Recorded, payload: Decoded) -> TimelineRow:
    """The row of an entry that stands alone, which an intent never does."""
    kind: RowKind = recorded.entry.kind  # type: ignore[assignment]
    row = _new_row(kind, recorded, payload)
    match payload:
        case ScriptStart() | ProgramStart():
            row.what = payload.program if isinstance(payload, ProgramStart) else ""
            row.given = payload.facts or None
        case EffectOutcome() | CallOutcome() | RequestOutcome():
            _stand_alone(row, payload)
        case Denial(tool, by):
            row.what, row.status = tool, "denied"
            row.error = {"code": "denied", "message": f"by {by}"}
        case Transition(event):
            row.what = type(event).__name__.lower()
            row.value = event.payload if isinstance(event, Resume) else getattr(event, "reason", None)
        case CallDecision() | StepDecision() | QueuedDecision() | EffectSettlement() | CallSettlement():
            _take_decision(row, payload)
        case EventDelivery(name, value, source):
            row.what, row.value, row.status = name, value, source.lower()
        case Violation(message):
            row.what, row.status = message, "violation"
        case ProgramSuspension() | ScriptSuspension() | ProgramEnd() | ScriptEnd():
            _take_left(row, payload)
        case Erased() | Damaged():
            pass
        case _:
            row.value = payload.encode() or None
    return row


def _stand_alone(row: TimelineRow, payload: EffectOutcome | CallOutcome | RequestOutcome) -> None:
    """An outcome without an intent: the bridge has answered by itself, or refused before there was one."""
    match payload:
        case EffectOutcome(Outcome(effect)):
            row.what = f"effect {effect}"
        case CallOutcome(tool, call):
            row.kind, row.what = "outcome" if call is None else "call", tool
        case RequestOutcome(request):
            row.kind = "call" if request.kind == "tool" else "request"
            row.what, row.given = request.name, request.arguments
    _take_outcome(row, payload)


def _take_decision(row: TimelineRow, said: Decision) -> None:
    value: dict[str, Any] = {"by": said.by}
    match said:
        case EffectSettlement() | CallSettlement():
            row.what, row.status = said.tool, said.how
            row.given = {"arguments": said.arguments} if said.arguments else None
            value |= {"comment": said.comment, "value": said.value}
            if said.how == "failed":
                value["message"] = said.message
        case CallDecision() | StepDecision() | QueuedDecision():
            row.what, row.status = said.question.subject, "approved" if said.approved else "denied"
            row.given = said.question.shown or None
            if isinstance(said, QueuedDecision):
                value["comment"] = said.comment
    row.value = {name: one for name, one in value.items() if one is not None} or None


def _take_left(row: TimelineRow, payload: ProgramSuspension | ScriptSuspension | ProgramEnd | ScriptEnd) -> None:
    row.status = payload.status
    if isinstance(payload, ScriptEnd) and payload.artifacts:
        row.value = {"artifacts": [dict(one) for one in payload.artifacts]}
    match payload:
        case ProgramEnd(error=str(message)) if message:
            row.error = {"code": "", "message": message}
        case (
            ScriptSuspension(error=RunError(str(message)) as error) | ScriptEnd(error=RunError(str(message)) as error)
        ) if message:
            row.error = {"code": error.code or "", "message": message}
