"""What is told of a script's execution that is kept: as of a program's, and what a person has to say of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.bridge.doubts import settled_with
from mcp_bridge.errors import BridgeError
from mcp_bridge.kernel.machine import IN_DOUBT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.bridge.record import ExecutionRecord
    from mcp_bridge.bridge.script_past import PastCall
    from mcp_bridge.ledger.store import StoredExecution

NAME = "run_python"
"""In the place of a program's name."""

SUSPENDED_EXIT_CODE = 5
"""Of a run that waits for a person, as the command line has it for programs."""

MAX_CALLS_TOLD = 20
"""Calls in doubt that an error names one by one."""

MAX_TOLD_CHARS = 30_000
"""Of what a script has printed: all of it is in its record."""


def told_script(stored: StoredExecution, status: str) -> dict[str, Any]:
    """The record of a kept script, with the fields of a program's.

    Args:
        stored: It.
        status: As it stands now.
    """
    record = stored.record or {}
    error = record.get("error") or {}
    told = {
        "trace_id": stored.id,
        "program": NAME,
        "status": status,
        "output": record.get("value"),
        "error": error.get("message"),
        "code": error.get("code"),
        "steps": [],
        "waiting": [waiting_row(stored.id, call) for call in error.get("calls", ())] if status == "suspended" else [],
    }
    for name in ("stdout", "stderr"):
        if text := record.get(name):
            told[name] = text[:MAX_TOLD_CHARS]
    return told


def waiting_row(execution: str, call: dict[str, Any]) -> dict[str, Any]:
    """What a person has to know of a call in doubt, as a row of what a program waits for.

    Args:
        execution: Whose.
        call: A row of the error's.
    """
    place = call["call"]
    known = {"effect": place, "step": place, "kind": IN_DOUBT, "name": call["tool"], "tool": call["tool"]}
    settle = settled_with(execution, place)
    return known | {"arguments": call["arguments"], "since": call["since"], "settle": settle}


def suspend(record: ExecutionRecord, doubts: Sequence[PastCall]) -> None:
    """Make a record that of a run which waits for a person.

    Args:
        record: Of the run, as it has ended.
        doubts: What may have happened. At least one.
    """
    named = ", ".join(f"{call.asked.name} (call {call.call})" for call in doubts[:MAX_CALLS_TOLD])
    ended = f" The run itself ended so: {record.error['message']}" if record.error else ""
    record.status, record.exit_code = "suspended", SUSPENDED_EXIT_CODE
    record.error = BridgeError(
        IN_DOUBT,
        f"Nobody has seen whether this has happened: {named}{', …' if len(doubts) > MAX_CALLS_TOLD else ''}.{ended}",
        hint=f"A person finds out and says so: {settled_with(record.execution, doubts[0].call)}."
        " Then the same code with the same key goes on.",
        calls=[call_row(call) for call in doubts],
    ).record()


def call_row(call: PastCall) -> dict[str, Any]:
    """A call in doubt, as a record names it."""
    return {
        "call": call.call,
        "tool": call.asked.name,
        "arguments": call.asked.told()["arguments"],
        "since": call.began,
    }
