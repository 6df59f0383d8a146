"""What people see of executions: a line of each, and a timeline of what one did. No presentation, no I/O.

The command line and the trace viewer show the same, each in its way.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from mcp_bridge.executions.scripts.call_history import PENDING
from mcp_bridge.kernel.machine import IN_DOUBT
from mcp_bridge.ledger.audit.overview import DAMAGED
from mcp_bridge.ledger.log.entries import TOMBSTONE
from mcp_bridge.policy.secrets.references import fill_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.policy.secrets.references import Scalar

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
    "violation",
    "erasure",
    "key",
    "clock",
    "loss",
    "end",
]

UNDER_WAY = "open"
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
        status: `ok`, `failed`, `timeout`, `denied`, `pending`, `interrupted`, `UNDER_WAY`, …; empty where there's none.
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
    return [_as_sent(row, values) if row.entry.kind in {"intent", "decision"} else row for row in entries]


def _as_sent(row: Recorded, values: Mapping[str, Scalar | None]) -> Recorded:
    payload = dict(row.entry.payload)
    if "sent" in payload:
        payload["arguments"] = payload.pop("sent")
    for name in ("arguments", "details", "message"):
        if name in payload:
            payload[name] = fill_in(payload[name], values)
    return replace(row, entry=replace(row.entry, payload=payload))


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
        calls=sum(row.kind == "call" for row in rows),
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


_CALLS: dict[str, RowKind] = {"tool": "call", "llm": "model"}


@dataclass(slots=True)
class _Timeline:
    """Rows as they come, and which of them have no outcome yet."""

    rows: list[TimelineRow] = field(default_factory=list)
    unended: dict[Any, list[TimelineRow]] = field(default_factory=dict)
    denied: list[TimelineRow] = field(default_factory=list)
    """Of steps of programs: which effect theirs is isn't recorded."""

    def of(self, entries: Iterable[Recorded]) -> list[TimelineRow]:
        for recorded in entries:
            if recorded.entry.kind == "intent":
                self._intent(recorded)
            elif recorded.entry.kind != "outcome" or not self._ends(recorded):
                self.rows.append(_row(recorded))
                if recorded.entry.kind == "denial":
                    self._denial(recorded)
        return self.rows

    def _denial(self, recorded: Recorded) -> None:
        if recorded.entry.program is not None:
            self.denied.append(self.rows[-1])
        elif "call" in recorded.entry.payload:
            self.unended.setdefault(_pair(recorded.entry.payload), []).append(self.rows[-1])

    def _intent(self, recorded: Recorded) -> None:
        payload = recorded.entry.payload
        row = TimelineRow(
            _CALLS.get(str(payload.get("kind", "tool")), "request"),
            (recorded.sequence,),
            recorded.time,
            what=str(payload.get("tool", "")),
            step=recorded.entry.step,
            status=UNDER_WAY,
            given=payload.get("arguments"),
            erased=is_erased(recorded),
            damaged=_damage(recorded),
        )
        self.rows.append(row)
        self.unended.setdefault(_pair(payload), []).append(row)

    def _ends(self, recorded: Recorded) -> bool:
        """Put an outcome to its intent; whether there was one."""
        payload = recorded.entry.payload
        # What a denied step's machine is told, is told at once, and in the order of the denials.
        waiting = self.denied if payload.get("status") == "denied" else None
        waiting = self.unended.get(_pair(payload)) or waiting
        if not waiting:
            return False
        # What was in doubt may have been done once more. Where calls have no names, the earlier one ends first.
        row = waiting.pop(0) if "effect" not in payload and "call" not in payload else waiting.pop()
        if payload.get("status") == PENDING and "call" in payload:
            # Its outcome comes later.
            waiting.append(row)
        row.sequences += (recorded.sequence,)
        row.seconds = max(0.0, recorded.time - row.time)
        row.erased = row.erased or is_erased(recorded)
        row.damaged = row.damaged or _damage(recorded)
        _take_outcome(row, payload)
        return True


def is_erased(recorded: Recorded) -> bool:
    """Whether an entry's payload can't be read any more."""
    return recorded.entry.payload == {"erased": TOMBSTONE}


def _damage(recorded: Recorded) -> str:
    payload = recorded.entry.payload
    return str(payload[DAMAGED]) if payload.keys() == {DAMAGED} else ""


def _pair(payload: dict[str, Any]) -> Any:
    """What an intent and its outcome have in common."""
    for name in ("effect", "call", "tool"):
        if payload.get(name) is not None:
            return name, payload[name]
    return None


def _take_outcome(row: TimelineRow, payload: dict[str, Any]) -> None:
    if row.kind != "denial":
        row.status = "" if row.erased or row.damaged else _status(payload)
    row.value = payload.get("value")
    row.usage = payload.get("usage")
    if payload.get("code") or payload.get("message"):
        row.error = {"code": payload.get("code") or "", "message": payload.get("message") or ""}


def _status(payload: dict[str, Any]) -> str:
    status = str(payload.get("status", ""))
    return IN_DOUBT if status == "pending" and payload.get("code") == IN_DOUBT else status


def _row(recorded: Recorded) -> TimelineRow:
    entry, payload = recorded.entry, recorded.entry.payload
    kind: RowKind = entry.kind  # type: ignore[assignment]  # an intent is a call
    if kind == "outcome" and "call" in payload:
        # Without an intent: it was refused before it began, or the bridge has answered by itself.
        kind = _CALLS.get(str(payload.get("kind")), "request")
    row = TimelineRow(
        kind,
        (recorded.sequence,),
        recorded.time,
        step=entry.step,
        erased=is_erased(recorded),
        damaged=_damage(recorded),
    )
    if not row.erased and not row.damaged:
        for name, value in _told(entry.kind, payload):
            setattr(row, name, value)
    return row


def _told(kind: str, payload: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What an entry that stands alone says, as attributes of its row."""
    match kind:
        case "start":
            yield "what", str(payload.get("program") or payload.get("kind") or "")
            yield "given", {name: value for name, value in payload.items() if name not in {"program", "code"}} or None
        case "outcome":
            yield "status", _status(payload)
            yield "what", f"effect {payload['effect']}" if "effect" in payload else str(payload.get("tool", ""))
            yield "given", payload.get("arguments")
            yield "value", payload.get("value")
            yield "usage", payload.get("usage")
            if payload.get("code") or payload.get("message"):
                yield "error", {"code": payload.get("code") or "", "message": payload.get("message") or ""}
        case "denial":
            yield "what", str(payload.get("tool", ""))
            yield "status", "denied"
            yield "error", {"code": "denied", "message": f"by {payload.get('by', 'the policy')}"}
        case "transition":
            yield "what", str(payload.get("event", ""))
            yield "value", payload.get("payload", payload.get("reason"))
        case "decision":
            yield "what", str(payload.get("tool") or payload.get("message") or "")
            decided = "approved" if payload.get("approved") else "denied"
            yield "status", str(payload.get("settled") or decided)
            question = {name: payload[name] for name in ("arguments", "details", "why") if payload.get(name)}
            yield "given", question or None
            names = ("by", "comment", *(("value", "message") if "settled" in payload else ()))
            yield "value", {name: payload[name] for name in names if payload.get(name) is not None} or None
        case "violation":
            yield "what", str(payload.get("message", ""))
            yield "status", "violation"
        case "end" | "suspension":
            yield "status", str(payload.get("status", ""))
            error = payload.get("error")
            if isinstance(error, dict):
                yield "error", {"code": error.get("code") or "", "message": error.get("message") or ""}
            elif error:
                yield "error", {"code": payload.get("code") or "", "message": error}
        case _:
            yield "value", payload or None
