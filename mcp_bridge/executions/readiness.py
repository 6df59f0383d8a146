"""Whether a suspended execution can be resumed: an approval was decided, a time-out is due, or a program has ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.approvals import approval_requests, decide
from mcp_bridge.executions.status import effective_status
from mcp_bridge.executions.waits.wake_times import EVENT
from mcp_bridge.kernel.machine import IN_DOUBT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.executions.record import WaitingRow
    from mcp_bridge.gate.policy_check import Asker
    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution

PROGRAM = "program"
"""The kind of a script's wait for a program that it has started; the other kinds are those of a program's steps."""

PLAN = "dry run"
"""A plan's name among what an execution waits for."""


def waits_for_plan(record: Mapping[str, Any]) -> bool:
    """Whether an execution is suspended after its dry run, by its record."""
    return bool(record.get("planned")) and any(row["step"] == PLAN for row in record.get("waiting", ()))


async def can_resume(store: ProgramStore, stored: StoredExecution) -> bool:
    """Whether a suspended execution would make progress if it were resumed now.

    One decision of several is enough: the other questions are asked again. A script with a call in doubt can't be
    resumed.

    Args:
        store: Has the questions.
        stored: The execution, as it was read.
    """
    record = stored.record or {}
    error = record.get("error") or {}
    if stored.kind == "script" and error.get("code") == "input_changed":
        # Whoever asks has put the file back, or is told again that it is another one.
        return True
    if stored.kind == "script" and error.get("calls"):
        return False
    if waits_for_plan(record) and not any(row["asks"] for row in record["planned"]):
        # The policy allows what its dry run has listed: a person may decide on it, and needn't.
        return True
    rows: list[WaitingRow] = record.get("waiting", [])
    decided: set[int | str] = set()
    if any(row["kind"] == "approval" for row in rows):
        decided = {row.effect for row in await store.approvals(stored.id) if row.decision is not None}
    for row in rows:
        if row["kind"] == "approval" and row["effect"] in decided:
            return True
        if await _is_over(store, stored.id, row):
            return True
    return False


async def _is_over(store: ProgramStore, execution: str, row: WaitingRow) -> bool:
    """Whether what an execution waits for has come about, or its time-out; an approval is the caller's business."""
    due = row.get("due")
    if row["kind"] != IN_DOUBT and due is not None and due <= time.time():
        return True
    if row["kind"] == EVENT and "after" in row:
        return await store.last_event(execution) > row["after"]
    if row["kind"] == PROGRAM:
        program = await store.execution(row["execution"])
        return program is None or effective_status(program) != "suspended" or await can_resume(store, program)
    return False


async def can_resume_with_answers(store: ProgramStore, stored: StoredExecution, asker: Asker | None) -> bool:
    """As `can_resume`; if it can't, ask a person its open questions first.

    Args:
        store: Has the questions.
        stored: The execution, as it was read.
        asker: Asks a person, or None.
    """
    if await can_resume(store, stored):
        return True
    if asker is None or not await _asked_now(store, stored, asker):
        return False
    return await can_resume(store, stored)


async def _asked_now(store: ProgramStore, stored: StoredExecution, asker: Asker) -> bool:
    """Ask a person the open questions of an execution and of the programs that it waits for; whether any is decided."""
    is_decided = False
    for question in await approval_requests(store, stored.principal, stored.id, open_only=True):
        if question.status != "open":
            continue
        answer = await asker.ask(question.question | {"origin": stored.origin})
        if answer is None:
            continue
        try:
            await decide(store, question, approved=answer, by="client", comment=None)
        except BridgeError as exc:
            # Somebody else was quicker.
            if exc.code != "already_decided":
                raise
        is_decided = True
    for row in (stored.record or {}).get("waiting", ()):
        if row["kind"] == PROGRAM and (program := await store.execution(row["execution"])) is not None:
            is_decided = await _asked_now(store, program, asker) or is_decided
    return is_decided
