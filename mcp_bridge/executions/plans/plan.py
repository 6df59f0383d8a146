"""A plan: what a dry run has listed; how it is shown, put to a person, and compared with the run that follows.

The plan and the run are one execution: it begins with the dry run, is suspended until a person has decided about the
plan, and then goes on with a run from the script's beginning, which reads anew. So an approval is bound to the code,
the servers and the principal, and ends with the execution.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import escape_invisible, escape_line, escape_name
from mcp_bridge.executions.readiness import PLAN
from mcp_bridge.gate.planned_calls import ApprovedCall, ApprovedCalls
from mcp_bridge.ledger.log.payloads import (
    CallOutcome,
    CallRef,
    NoAnswer,
    Planned,
    ScriptSuspension,
    ToolIntent,
    understood,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcp_bridge.errors import ErrorRecord
    from mcp_bridge.executions.record import PlannedRow, WaitingRow
    from mcp_bridge.executions.sessions.cell import Cell
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.ledger.log.payloads import QuestionFields
    from mcp_bridge.ledger.storage.execution_store import Approval

MAX_LISTED = 20
"""Most calls that a notice names."""

MAX_GIVEN_CHARS = 500
"""Most characters of a denied call's arguments that an error has; the question has them whole."""


NOTHING_LISTED = "dry run: it has listed no call"
TOO_LARGE = "dry run: its list is too large to be shown whole, so nobody is asked about it"
"""Notices of dry runs that aren't suspended for a decision."""


def rows(planned: Iterable[Planned]) -> list[PlannedRow]:
    """The rows of a list."""
    return [
        {"number": one.number, "tool": one.tool, "arguments": one.given, "asks": one.asks, "bound": bool(one.listed)}
        for one in planned
    ]


def question(planned: Sequence[Planned], ended: str | None, tool: str) -> QuestionFields:
    """What a person is asked about a list: all calls, with their whole arguments.

    Args:
        planned: The calls.
        ended: How the script ended in its dry run, if not with success.
        tool: The tool that runs it.
    """
    bound = [one for one in planned if one.listed]
    unbound = [one for one in planned if not one.listed]
    told = [
        f"Allow all of these {len(bound)} calls? A dry run of a script has listed them, and made none."
        if len(bound) != 1
        else "Allow this call? A dry run of a script has listed it, and not made it.",
        "The run that follows may make each of them once. Any other call that doesn't only read is asked about.",
    ]
    if unbound:
        told.append(
            "Those under `asked_when_made` aren't part of this decision: they need the results of others,"
            " or are programs, whose steps are decided when they are made."
        )
    if ended is not None:
        # The script's own words, which would write further lines of this text.
        told.append(f"The dry run ended early: {escape_line(ended)}")
    details: dict[str, Any] = {"calls": [_shown(one) for one in bound]}
    if unbound:
        details["asked_when_made"] = [_shown(one) for one in unbound]
    asked: QuestionFields = {
        "message": "\n".join(told),
        "details": details,
        "program": tool,
        "step": PLAN,
        "listed": [one.listed for one in bound],
    }
    if whys := dict.fromkeys(one.why for one in bound if one.asks):
        asked["why"] = " ".join(whys)
    return asked


def _shown(one: Planned) -> dict[str, Any]:
    shown: dict[str, Any] = {"tool": one.tool, "arguments": one.given}
    if one.filled:
        shown["defaults_of_the_tool"] = list(one.filled)
    if one.announced:
        shown["left_to_the_tool"] = one.announced
    return shown


def waiting_row(number: int, since: float, tool: str) -> WaitingRow:
    """The row for what an execution waits for, whose question has this number. `tool` as of `question`."""
    return {"effect": number, "step": PLAN, "kind": "approval", "name": tool, "call": PLAN, "since": since}


def plan_approval(approvals: Iterable[Approval]) -> Approval | None:
    """The question about an execution's plan: the one that was asked last."""
    found = [row for row in approvals if "listed" in row.question]
    return max(found, key=lambda row: row.effect) if found else None


def remaining_approved_calls(asked: QuestionFields, entries: Iterable[Recorded]) -> ApprovedCalls:
    """What is left of an approved plan.

    Args:
        asked: The question that a person has approved.
        entries: The execution's. Of a call that is recorded, and may be made again, the approval isn't used up.
    """
    calls = [
        ApprovedCall.of(call["tool"], call["arguments"], call.get("left_to_the_tool", {}), listed)
        for call, listed in zip(asked["details"]["calls"], asked["listed"], strict=True)
    ]
    begun: dict[str, ToolIntent] = {}
    made: list[ToolIntent] = []
    for row in entries:
        match understood(row):
            case ScriptSuspension(planned=int()):
                # What the dry run read.
                begun, made = {}, []
            case ToolIntent(call=CallRef(id=call)) as intent:
                begun[call] = intent
            case CallOutcome(call=CallRef(id=call), result=result) if call in begun:
                intent = begun.pop(call)
                if not (isinstance(result, NoAnswer) and result.status == "not_done"):
                    made.append(intent)
    for intent in made:
        same = (one for one in calls if one.is_of(intent.tool, intent.given))
        if (used := next(same, None)) is not None:
            calls.remove(used)
    return ApprovedCalls(calls)


def denied(asked: QuestionFields, entries: Iterable[Recorded]) -> BridgeError:
    """The error for a plan that a person has denied: which calls that were, and which of them were made before.

    Args:
        asked: The question.
        entries: The execution's. Where the policy allows the calls, the run may have begun before the decision.
    """
    left = remaining_approved_calls(asked, entries).left
    lines = ["A person has denied the calls that the dry run of this script has listed:"]
    for call in asked["details"]["calls"][:MAX_LISTED]:
        one = next((one for one in left if one.is_of(call["tool"], call["arguments"])), None)
        if one is not None:
            left.remove(one)
        given = escape_invisible(json.dumps(call["arguments"], ensure_ascii=False))[:MAX_GIVEN_CHARS]
        lines.append(f"{escape_name(call['tool'])} {given}" + (" (made before that)" if one is None else ""))
    if len(asked["details"]["calls"]) > MAX_LISTED:
        lines.append(f"… ({len(asked['details']['calls'])} in all)")
    return BridgeError("denied", "\n".join(lines))


def same_code(cell: Cell | None, origin: Cell | None) -> str:
    """What makes the calls of a list: a clause.

    Args:
        cell: The place of what was run dry; None for what is no cell.
        origin: Of a fork's first cell: the cell that it goes on from; else None.
    """
    same = "the same code without dry_run"
    if cell is None:
        return same
    if origin is not None:
        return f"{same}, with session={cell.session!r} and fork={f'{origin.session}@{origin.number}'!r},"
    # A dry run begins no session.
    return f"{same}, as the next cell in the same session," if cell.previous else f"{same}, with the same session,"


def nothing_bound(planned: Sequence[Planned], ended: ErrorRecord | None, again: str) -> ErrorRecord:
    """What is told of a dry run that has listed nothing that could be approved ahead. Arguments as `error`."""
    hint = f"Nothing of it can be approved ahead: run {again.removesuffix(',')}."
    return BridgeError("dry_run", listing(planned, ended), hint=hint).record()


def error(
    execution: str, number: int, planned: Sequence[Planned], ended: ErrorRecord | None, again: str
) -> ErrorRecord:
    """What is told of a suspended dry run: its list, and how it goes on.

    Args:
        execution: Its id.
        number: That of the question about its list.
        planned: The list.
        ended: How the script has ended, if not with success.
        again: As `same_code`.
    """
    asks = any(one.asks for one in planned)
    shown = f"`mcp-bridge approvals show {execution}.{number}`, or the viewer"
    if asks:
        hint = (
            f"A person decides on them as a whole: {shown}. Then {again} makes them. "
            f"A client that can ask its user does so when {again} is run."
        )
    else:
        hint = (
            f"The policy allows them: {again} makes them. "
            f"If a person decides on them as a whole before ({shown}), any other call is asked about."
        )
    return BridgeError("approval_needed" if asks else "dry_run", listing(planned, ended), hint=hint).record()


def listing(planned: Sequence[Planned], ended: ErrorRecord | None) -> str:
    """A list as text, with all arguments."""
    lines = [f"Dry run: {len(planned)} call{'s' if len(planned) != 1 else ''} listed, and not made."]
    for one in planned:
        rest = "" if one.listed else " (decided when it is made)"
        given = escape_invisible(json.dumps(one.given, ensure_ascii=False))
        lines.append(f"{one.number}. {escape_name(one.tool)} {given}{rest}")
    if ended is not None:
        lines.append(f"The dry run ended there: {ended.get('type') or ended['code']}: {ended['message']}")
    return "\n".join(lines)


def unused_notices(approved: ApprovedCalls) -> list[str]:
    """What is told of calls that were approved as a whole, and not made."""
    if not approved.left:
        return []
    names = ", ".join(escape_name(call.tool) for call in approved.left[:MAX_LISTED])
    more = ", …" if len(approved.left) > MAX_LISTED else ""
    return [f"dry run: {len(approved.left)} of the calls that were approved as a whole were not made: {names}{more}"]
