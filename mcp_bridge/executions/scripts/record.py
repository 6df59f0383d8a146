"""The record of a script's execution, and its fields for a suspended one."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.escaping import escape_name
from mcp_bridge.executions.in_doubt import settle_command
from mcp_bridge.executions.waits.wake_times import EVENT
from mcp_bridge.kernel.machine import IN_DOUBT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.error_codes import Code
    from mcp_bridge.executions.record import ExecutionRecord, InDoubtCall, WaitingRow
    from mcp_bridge.executions.scripts.call_history import CallHistory, RecordedCall
    from mcp_bridge.ledger.storage.execution_store import StoredExecution
    from mcp_bridge.sandbox.languages import Language

TOOLS: dict[Language, str] = {"python": "run_python", "javascript": "run_javascript"}
"""A script's entry in fields for a program's name: the tool that runs it, by its language."""

SUSPENDED_EXIT_CODE = 5
"""The exit code of a suspended run, as of a suspended program at the command line."""

MAX_CALLS_TOLD = 20
"""Most calls in doubt that an error lists."""

MAX_TOLD_CHARS = 30_000
"""Most characters of a script's output in these fields; its record has all of it."""


def script_fields(stored: StoredExecution, status: str) -> dict[str, Any]:
    """What the record of a kept script has besides the fields that are always there.

    Args:
        stored: The script's execution.
        status: Its effective status.
    """
    record = stored.record or {}
    error = record.get("error") or {}
    fields: dict[str, Any] = {
        "output": record.get("value"),
        "error": error.get("message"),
        "code": error.get("code"),
    }
    if status == "suspended":
        in_doubt_rows = [waiting_row(stored.id, call) for call in error.get("calls", ())]
        fields["waiting"] = in_doubt_rows + record.get("waiting", [])
    fields |= {"dry_run": True} if was_run_dry(stored, status) else {}
    said = {name: record.get(name) for name in ("stdout", "stderr")} | {"traceback": error.get("traceback")}
    fields |= {name: text[:MAX_TOLD_CHARS] for name, text in said.items() if text}
    return fields


def was_run_dry(stored: StoredExecution, status: str) -> bool:
    """Whether a script's end, or what it waits for, is that of a dry run.

    Args:
        stored: The script's execution.
        status: Its effective status.
    """
    # What goes on, or was interrupted then, has the record of its dry run until it ends.
    return "dry_run" in (stored.record or {}) and status not in {"running", "interrupted"}


def waiting_row(execution: str, call: InDoubtCall) -> WaitingRow:
    """What a person has to know of a call in doubt, as a row of what a program waits for.

    Args:
        execution: The execution's id.
        call: A row of the error's.
    """
    return {
        "effect": call["call"],
        "step": call["call"],
        "kind": IN_DOUBT,
        "name": call["tool"],
        "tool": call["tool"],
        "arguments": call["arguments"],
        "since": call["since"],
        "settle": settle_command(execution, call["call"]),
    }


def suspend(
    record: ExecutionRecord,
    doubtful: Sequence[RecordedCall],
    waiting: Sequence[WaitingRow] = (),
    key: str | None = None,
) -> None:
    """Make a record that of a run which waits.

    Args:
        record: Of the run, as it has ended.
        doubtful: The calls in doubt.
        waiting: What it waits for besides, as rows of what a program waits for. One of both at least.
        key: The key that was made for the run, if it had none.
    """
    ended = f" The run itself ended so: {record.error['message']}" if record.error else ""
    record.status, record.exit_code, record.waiting = "suspended", SUSPENDED_EXIT_CODE, list(waiting)
    if record.session is not None:
        # A cell that waits leaves nothing yet: it runs again when it goes on.
        record.session.pop("interrupted", None)
    again = f"Then {resume_instruction(key)}."
    said = [_doubted(doubtful)] if doubtful else []
    said += _awaited(record.execution, waiting)
    if doubtful:
        record.error = BridgeError(
            "in_doubt",
            f"{' '.join(said)}{ended}",
            hint=f"A person finds out and says so: {settle_command(record.execution, doubtful[0].call)}. {again}",
            calls=[call_row(call) for call in doubtful],
        ).record()
        return
    kinds = {row["kind"] for row in waiting} | {inner["kind"] for row in waiting for inner in row.get("waiting", ())}
    asks = "approval" in kinds
    ways = ["`mcp-bridge approvals`, or the viewer, has it whole."] if asks else []
    if "tool" in {row["kind"] for row in waiting}:
        ways.append(f"mcp-bridge execution resume {record.execution} --payload JSON says what it is.")
    if names := [row["name"] for row in waiting if row["kind"] == EVENT]:
        ways.append(send_command(names[0], record.execution) + " brings it.")
    if not asks and kinds & {"wait", EVENT}:
        ways.append("A bridge that serves resumes it automatically.")
    hint = " ".join([*ways, again])
    code: Code = "approval_needed" if asks else "still_waiting"
    record.error = BridgeError(code, f"{' '.join(said)}{ended}", hint=hint).record()


def resume_instruction(key: str | None) -> str:
    """How whoever asks again goes on with a run.

    Args:
        key: The key that was made for the run, if it had none.
    """
    return (
        f"the same code resumes it, with no key or with the key {key}"
        if key
        else "the same code with the same key resumes it"
    )


def _doubted(doubtful: Sequence[RecordedCall]) -> str:
    named = _listed([f"{escape_name(call.asked.name)} (call {call.call})" for call in doubtful])
    return f"Nobody has seen whether this has happened: {named}."


def tools_in_doubt(history: CallHistory) -> str:
    """A sentence that names the tools' calls of which nobody knows whether they have happened; empty for none.

    Args:
        history: The calls of a run that never goes on.
    """
    doubtful = [call for call in history.doubtful() if call.asked.kind == "tool"]
    return _doubted(doubtful) if doubtful else ""


def calls_so_far(history: CallHistory) -> str:
    """What is known of the tools that a run has called which never goes on: sentences; nothing, if it has called none.

    Args:
        history: Its calls.
    """
    calls = [call for call in history.calls.values() if call.asked.kind == "tool"]
    answered = [f"{escape_name(call.asked.name)} (call {call.call})" for call in calls if call.is_answered]
    # Also what was under way when the run was cancelled.
    doubtful = [call for call in calls if not call.is_answered]
    said = [f"These calls of it were answered: {_listed(answered)}."] if answered else []
    return " ".join([*said, *([_doubted(doubtful)] if doubtful else [])])


def _awaited(execution: str, waiting: Sequence[WaitingRow]) -> list[str]:
    """A sentence for each kind of what is waited for."""
    by_kind: dict[str, list[str]] = {}
    for row in waiting:
        match row["kind"]:
            case "approval":
                named = f"{escape_name(row['tool'])} ({execution}.{row['effect']})"
                by_kind.setdefault("A person has to decide on", []).append(named)
            case "program":
                inner = ", ".join(
                    f"{of['kind']} at {escape_name(of['step'])}" for of in row["waiting"][:MAX_CALLS_TOLD]
                )
                text = f"{escape_name(row['name'])} ({row['execution']}{f': {inner}' if inner else ''})"
                by_kind.setdefault("It waits for the program", []).append(text)
            case "wait":
                by_kind.setdefault("It waits until", []).append(f"{moment(row['due'])} (call {row['call']})")
            case "event":
                until = f", until {moment(row['due'])}" if "due" in row else ""
                named = f"{escape_name(row['name'])} (call {row['call']}{until})"
                by_kind.setdefault("It waits for the event", []).append(named)
            case _:
                by_kind.setdefault("It waits for the outcome of", []).append(
                    f"{escape_name(row['name'])} (call {row['call']})"
                )
    return [f"{what} {_listed(names)}." for what, names in by_kind.items()]


def moment(time: float) -> str:
    """A time in seconds since 1970 as people read it, in UTC."""
    return datetime.fromtimestamp(time, UTC).isoformat(" ", timespec="seconds").replace("+00:00", " UTC")


def send_command(event: str, execution: str) -> str:
    """The command that sends an event to an execution."""
    return f"mcp-bridge event send {shlex.quote(escape_name(event))} --execution {execution} --payload JSON"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:MAX_CALLS_TOLD])}{', …' if len(names) > MAX_CALLS_TOLD else ''}"


def call_row(call: RecordedCall) -> InDoubtCall:
    """A call in doubt, as a record names it."""
    return {
        "call": call.call,
        "tool": call.asked.name,
        "arguments": call.asked.abridged()["arguments"],
        "since": call.began,
    }
