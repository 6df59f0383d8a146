"""The record of a program under way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mcp_bridge.executions import in_doubt
from mcp_bridge.executions.programs.waits import due
from mcp_bridge.kernel import state
from mcp_bridge.kernel.machine import APPROVAL, IN_DOUBT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.executions.programs.program_run import ProgramRun
    from mcp_bridge.executions.record import WaitingRow
    from mcp_bridge.kernel.events import Effect


def run_record(run: ProgramRun) -> dict[str, Any]:
    """The record of a program's execution as it stands.

    Args:
        run: The program under way.
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
        "error": machine.error_with_reason,
        "code": ending[1] if ending and machine.error else None,
        "steps": state.trace_rows_with_reasons(machine),
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


def _waiting(run: ProgramRun, effect: Effect) -> WaitingRow:
    row: WaitingRow = {"effect": effect.id, "step": effect.step, "kind": effect.kind, "name": effect.name}
    if effect.kind == "wait":
        row["due"] = due(effect, run.asked.get(effect.id))
    if effect.kind in {"approval", "event"} and effect.timeout is not None:
        row["due"] = time.time() + effect.timeout
    if effect.kind == "approval":
        row["question"] = {**effect.arguments, "step": effect.step, "program": run.program.name}
    elif run.machine.pending[effect.id] == IN_DOUBT:
        doubt = run.doubts[effect.id]
        row["kind"], row["tool"] = IN_DOUBT, doubt["tool"]
        row["arguments"], row["since"] = doubt["arguments"], doubt["since"]
        row["settle"] = in_doubt.settle_command(run.execution, effect.id)
    elif run.machine.pending[effect.id] == APPROVAL:
        row["kind"] = "approval"
        asked = run.questions.get(effect.id) or {"tool": effect.name, "arguments": effect.arguments}
        row["question"] = {**asked, "step": effect.step, "program": run.program.name}
    return row


def unmentioned_failures(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Failures that a record's error doesn't mention, of sub-steps and of compensations: the steps, and their errors.

    Args:
        record: Of an execution that has an error.
    """
    return [
        (row["id"], ": ".join(filter(None, (row["error"], row.get("why")))))
        for row in record["steps"]
        if row["status"] == "failed" and row.get("error") and row["error"] not in record["error"]
    ]
