"""What is told of an execution of a program: while it is under way, and from what is kept of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import in_doubt
from mcp_bridge.executions.scripts.record import told_script
from mcp_bridge.kernel import state
from mcp_bridge.kernel.machine import APPROVAL, IN_DOUBT
from mcp_bridge.ledger.log.entries import TOMBSTONE
from mcp_bridge.ledger.storage.schema import ERASED
from mcp_bridge.sandbox.owner import Owner

if TYPE_CHECKING:
    from mcp_bridge.executions.programs.run import ProgramRun
    from mcp_bridge.kernel.events import Effect
    from mcp_bridge.ledger.storage.store import StoredExecution


def run_record(run: ProgramRun) -> dict[str, Any]:
    """What is told of an execution.

    Args:
        run: It.
    """
    machine = run.machine
    ending = machine.level.ending
    waiting = [_waiting(run, effect) for effect, pending in machine.awaited() if pending]
    known = {(row["effect"], row["kind"]): row for row in run.waited if row["kind"] != IN_DOUBT}
    record: dict[str, Any] = {
        "trace_id": run.execution,
        "program": run.program.name,
        "status": machine.status,
        "output": machine.output,
        "error": machine.told_error,
        "code": ending[1] if ending and machine.error else None,
        "steps": state.told_rows(machine),
        "waiting": [known.get((row["effect"], row["kind"]), row) for row in waiting],
    }
    if run.warnings:
        record["warnings"] = run.warnings
    if run.unresolved:
        record["unresolved"] = list(map(dict, run.unresolved))
    if run.violated:
        record |= {"status": "failed", "error": f"violation: {run.violated}", "code": "violation"}
    elif machine.status == "running":
        record["status"] = "interrupted"
    return record


def _waiting(run: ProgramRun, effect: Effect) -> dict[str, Any]:
    row: dict[str, Any] = {"effect": effect.id, "step": effect.step, "kind": effect.kind, "name": effect.name}
    if effect.kind == "wait":
        row["due"] = time.time() + effect.arguments["seconds"]
    if effect.kind in {"approval", "event"} and effect.timeout is not None:
        row["due"] = time.time() + effect.timeout
    if effect.kind == "approval":
        row["question"] = {**effect.arguments, "step": effect.step, "program": run.program.name}
    elif run.machine.pending[effect.id] == IN_DOUBT:
        row |= {"kind": IN_DOUBT, **run.doubts[effect.id]}
        row["settle"] = in_doubt.settled_with(run.execution, effect.id)
    elif run.machine.pending[effect.id] == APPROVAL:
        row["kind"] = "approval"
        asked = run.questions.get(effect.id) or {"tool": effect.name, "arguments": effect.arguments}
        row["question"] = {**asked, "step": effect.step, "program": run.program.name}
    return row


def standing(stored: StoredExecution) -> str:
    """The status of an execution as it is now: one whose process has died is `interrupted`, whatever was taken down."""
    lost = stored.status == "running" and not is_under_way(stored.status, stored.owner, is_held=stored.is_held)
    return "interrupted" if lost else stored.status


def is_under_way(status: str, owner: str, *, is_held: bool) -> bool:
    """Whether a process has an execution in hand.

    Args:
        status: The execution's.
        owner: The process, as the execution has it.
        is_held: Whether a process that calls itself so uses the store, or nobody can tell.
    """
    known = Owner.parse(owner)
    if status != "running" or known is None:
        return status == "running"
    # A process of another namespace can't be looked up; its lock can.
    return not known.is_orphaned() if known.is_of_this_host() else is_held


def refuse_erased(stored: StoredExecution) -> None:
    """An execution whose data is gone can't go on, and nothing can be decided about it.

    Raises:
        BridgeError: `erased`.
    """
    if stored.status == ERASED:
        raise BridgeError(
            "erased",
            f"The execution {stored.id} is erased: that it was there is all that is kept.",
            execution=stored.id,
        )


def told(stored: StoredExecution) -> dict[str, Any]:
    """The record of an execution that is kept: as it was last left, or a bare one where it never was."""
    if stored.status == ERASED:
        return {
            "trace_id": stored.id,
            "program": TOMBSTONE,
            "status": ERASED,
            "output": TOMBSTONE,
            "error": None,
            "code": None,
            "steps": [],
            "waiting": [],
        }
    if stored.kind == "script":
        return told_script(stored, standing(stored))
    if stored.record is not None and stored.status == "running":
        # What it waited for has come since.
        return stored.record | {"status": standing(stored), "waiting": []}
    return stored.record or {
        "trace_id": stored.id,
        "program": stored.bundle["program"].get("name", "unnamed"),
        "status": standing(stored),
        "output": None,
        "error": None,
        "code": None,
        "steps": [],
        "waiting": [],
    }
