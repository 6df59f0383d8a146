"""Decisions about what waits for a person, made where the person is: at the command line, or in the trace viewer.

Nothing that a sandbox or an MCP client can ask for leads here: only who can start a process as this user can decide, or
has the token that the viewer printed for that user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.status import UNFINISHED, effective_status, not_suspended, refuse_erased
from mcp_bridge.ledger.log.payloads import Question, QueuedDecision, to_entry
from mcp_bridge.policy.secrets.value_references import fill_in

if TYPE_CHECKING:
    from mcp_bridge.ledger.log.payloads import QuestionFields
    from mcp_bridge.ledger.storage.execution_store import Approval, ProgramStore, StoredExecution


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the execution that waits for its answer.

    Attributes:
        approval: The question, as it is kept: projected.
        execution: Who asks; None for one that the record doesn't have.
        question: The question, for the person: with the values behind references.
    """

    approval: Approval
    execution: StoredExecution | None
    question: QuestionFields

    @property
    def status(self) -> str:
        """`open`, `approved`, `denied`; or `void`: nobody waits for the answer any more."""
        row, waits = self.approval, self.execution
        if row.status != "open":
            return row.status
        if waits is None or effective_status(waits) not in UNFINISHED:
            return "void"
        awaited = {waiting["effect"] for waiting in (waits.record or {}).get("waiting", ())}
        return "open" if row.effect in awaited else "void"


async def asked(
    store: ProgramStore, principal: str, execution: str | None = None, *, open_only: bool = False
) -> list[Asked]:
    """Every question of a principal's executions, or of one of them; oldest first.

    Args:
        store: Has them.
        principal: Whose executions.
        execution: Only its.
        open_only: Only those that nobody has decided; some of them may be void.
    """
    rows = await store.approvals(execution, open_only=open_only)
    known = {one: await store.execution(one) for one in dict.fromkeys(row.execution for row in rows)}
    values = {one: await store.values(one) for one in known}
    requests = [Asked(row, known[row.execution], fill_in(row.question, values[row.execution])) for row in rows]
    return [row for row in requests if row.execution is None or row.execution.principal == principal]


async def decide(
    store: ProgramStore, question: Asked, *, approved: bool, by: str, comment: str | None
) -> dict[str, Any]:
    """Take down and record a decision, durably. It has its effect when the execution is resumed.

    Args:
        store: Has the question.
        question: Which.
        approved: The decision.
        by: Who decides.
        comment: Why, or None.

    Returns:
        The decision: `approved`, `by`, `comment`.

    Raises:
        BridgeError: `already_decided`; `not_suspended`: nobody waits for it; `erased`.
    """
    row = question.approval
    if question.execution is not None:
        refuse_erased(question.execution)
    if question.status == "void":
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
