"""Approval requests, and people's decisions about them at the command line or in the trace viewer.

No request of a sandbox or an MCP client leads here: deciding takes a process of this user, the token that the viewer
printed for that user, or a principal that is an approver.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.record import abridged
from mcp_bridge.executions.status import RESUMABLE, UNFINISHED, effective_status, not_suspended, refuse_erased
from mcp_bridge.ledger.log.payloads import Question, QueuedDecision, to_entry
from mcp_bridge.policy.secrets.value_references import fill_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.executions.record import WaitingRow
    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.ledger.log.payloads import QuestionFields
    from mcp_bridge.ledger.storage.execution_store import Approval, ProgramStore, StoredExecution


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A question to a person, and the execution that waits for the decision.

    Attributes:
        approval: The stored question, projected.
        execution: The execution that asks; None if it isn't stored.
        question: The question for the person, with the values behind its references.
    """

    approval: Approval
    execution: StoredExecution | None
    question: QuestionFields

    @property
    def status(self) -> str:
        """`open`, `approved`, `denied`; or `void`: no execution waits for the decision any more, or it is late."""
        row, waits = self.approval, self.execution
        if row.status != "open":
            return row.status
        if waits is None or effective_status(waits) not in UNFINISHED or self._waiting is None:
            return "void"
        return "void" if self.is_late else "open"

    @property
    def takes_effect(self) -> bool:
        """Whether the question is decided, and its execution waits to be resumed with the decision."""
        row, waits = self.approval, self.execution
        return (
            row.status != "open"
            and waits is not None
            and effective_status(waits) in RESUMABLE
            and self._waiting is not None
        )

    @property
    def due(self) -> float | None:
        """When the step that asks times out, in seconds since 1970; None for never."""
        return None if self._waiting is None else self._waiting.get("due")

    @property
    def is_late(self) -> bool:
        """Whether that time has passed."""
        return self.due is not None and self.due <= time.time()

    @property
    def _waiting(self) -> WaitingRow | None:
        """What the execution says of its wait for the decision; None if it waits no longer."""
        record = (self.execution and self.execution.record) or {}
        return next((row for row in record.get("waiting", ()) if row["effect"] == self.approval.effect), None)


async def approval_requests(
    store: ProgramStore, principal: str | None, execution: str | None = None, *, open_only: bool = False
) -> list[ApprovalRequest]:
    """The approval requests of a principal's executions, oldest first.

    Args:
        store: The store of approvals.
        principal: The executions' owner; None for all principals.
        execution: The execution's id; None for all executions.
        open_only: Whether to leave out decided ones. Some of the others may be void.
    """
    rows = await store.approvals(execution, open_only=open_only, principal=principal)
    known = {one: await store.execution(one) for one in dict.fromkeys(row.execution for row in rows)}
    values = {one: await store.values(one) for one in known}
    return [ApprovalRequest(row, known[row.execution], fill_in(row.question, values[row.execution])) for row in rows]


async def requests_to(
    store: ProgramStore, principal: Principal, execution: str | None = None, *, open_only: bool = False
) -> list[ApprovalRequest]:
    """The approval requests that a principal may see: an approver, and one that may see all, those of all principals.

    Args:
        store: The store of approvals.
        principal: Who looks.
        execution: As `approval_requests`.
        open_only: As `approval_requests`.
    """
    whose = None if principal.may_approve or principal.may_see_all else principal.name
    return await approval_requests(store, whose, execution, open_only=open_only)


async def with_decisions(store: ProgramStore, execution: str, waiting: Sequence[WaitingRow]) -> list[WaitingRow]:
    """What an execution waits for, with what a person has decided of it since, and what its programs wait for now.

    Args:
        store: The store of approvals.
        execution: The execution's id.
        waiting: The rows of its record, as it was suspended.
    """
    decided: dict[int | str, str] = {}
    if any(row["kind"] == "approval" for row in waiting):
        decided = {row.effect: row.status for row in await store.approvals(execution) if row.status != "open"}
    found: list[WaitingRow] = []
    for row in waiting:
        if row["kind"] == "approval" and row["effect"] in decided:
            found.append({**row, "decided": decided[row["effect"]]})
        elif "waiting" in row:
            found.append({**row, "waiting": await _awaited_by_program(store, row["execution"], row["waiting"])})
        else:
            found.append(row)
    return found


async def _awaited_by_program(store: ProgramStore, execution: str, waiting: Sequence[WaitingRow]) -> list[WaitingRow]:
    """What a program that a script waits for waits for now: a person may have settled a call, or resumed it, since."""
    program = await store.execution(execution)
    if program is not None and program.record is not None:
        is_suspended = effective_status(program) == "suspended"
        waiting = [abridged(row) for row in program.record["waiting"]] if is_suspended else []
    return await with_decisions(store, execution, waiting)


def require_approver(principal: Principal) -> None:
    """Refuse decisions of a principal that is no approver: of its own executions, too.

    Raises:
        BridgeError: `approver_needed`.
    """
    if not principal.may_approve:
        raise BridgeError(
            "approver_needed",
            "Only an approver decides this.",
            hint="Ask somebody who may: the operator says who does, by `approver = true` in [principals.NAME].",
        )


async def decide(
    store: ProgramStore, question: ApprovalRequest, *, approved: bool, by: str, comment: str | None
) -> dict[str, Any]:
    """Store and record a decision, durably. It takes effect when the execution is resumed.

    Args:
        store: The store of approvals.
        question: The approval request.
        approved: The decision.
        by: Who decides.
        comment: The person's comment, or None.

    Returns:
        The decision: `approved`, `by`, `comment`.

    Raises:
        BridgeError: `already_decided`; `not_suspended`: no execution waits for it, or it has timed out; `erased`.
    """
    row = question.approval
    if question.execution is not None:
        refuse_erased(question.execution)
    if question.status == "void":
        if question.is_late:
            raise BridgeError(
                "not_suspended",
                "The step that asked for this decision has timed out.",
                hint=f"`mcp-bridge execution resume {row.execution}` continues from there.",
            )
        status = "gone" if question.execution is None else effective_status(question.execution)
        raise not_suspended(row.execution, f"nobody waits for this decision any more: it is {status}")
    decision: dict[str, Any] = {"approved": approved, "by": by, "comment": comment}
    # A script's own call has a name, and is of no program.
    of_program = question.execution is not None and question.execution.kind == "program"
    program = question.execution.program if question.execution is not None and of_program else None
    step = row.question.get("step") if of_program else None
    said = QueuedDecision(Question(row.question), approved, by, comment)
    if not await store.decide(row, decision, to_entry(said, row.execution, step, program=program)):
        (now,) = [other for other in await store.approvals(row.execution) if other.id == row.id]
        who = (now.decision or {}).get("by", "somebody")
        raise BridgeError("already_decided", f"This was {now.status} already, by {who}.")
    return decision
