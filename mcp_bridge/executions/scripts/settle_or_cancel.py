"""A person's commands about a suspended script: settle a call, deliver an announced outcome, cancel."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import in_doubt
from mcp_bridge.executions.idempotency.generated_keys import if_generated
from mcp_bridge.executions.record import ExecutionRecord
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.scripts.record import call_row, suspend, tools_in_doubt
from mcp_bridge.executions.status import effective_status
from mcp_bridge.executions.waits.wake_times import earliest_due, last_looked
from mcp_bridge.kernel.values import ValueFaultError, normal
from mcp_bridge.ledger.log.payloads import (
    NOT_DONE,
    CallOutcome,
    CallRef,
    CallSettlement,
    Failure,
    NoAnswer,
    RunError,
    ScriptEnd,
    Success,
    to_entry,
)

if TYPE_CHECKING:
    from mcp_bridge.executions.in_doubt import Settlement
    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.executions.record import InDoubtRow
    from mcp_bridge.executions.scripts.call_history import RecordedCall
    from mcp_bridge.gate.execution_values import ExecutionValues
    from mcp_bridge.kernel.events import Resume
    from mcp_bridge.ledger.log.payloads import Result
    from mcp_bridge.ledger.storage.execution_store import StoredExecution


async def settle_script(
    lifecycle: Lifecycle,
    stored: StoredExecution,
    name: str | None,
    settlement: Settlement,
    projection: ExecutionValues,
) -> None:
    """Settle a call in doubt by a person's statement. When no other is in doubt, the execution can be resumed.

    Args:
        lifecycle: The lifecycle of the bridge's executions.
        stored: The script's execution, as it was read.
        name: The call's id; None if only one is in doubt.
        settlement: The person's statement.
        projection: Replaces sensitive values in the statement by references.

    Raises:
        BridgeError: `not_suspended`, `not_in_doubt`, `unknown_doubt`, `ambiguous_id`.
    """
    async with lifecycle.taken(stored, resumes=False):
        history = CallHistory(await lifecycle.recorder.read(stored.id))
        doubtful = _calls_in_doubt(stored)
        open_calls = [call for call in history.doubtful() if call.call in doubtful]
        doubtful_count = len(open_calls)
        # A person may also know the outcome that a tool has announced.
        open_calls += history.pending()
        rows = {call.call: _in_doubt_row(call) for call in open_calls}
        picked = in_doubt.find_doubt(rows, name, stored.id)
        call = history.calls[picked["effect"]]
        # Sensitive values in a person's statement are replaced as in a tool's result.
        fields = await projection.project(settlement._asdict() | {"arguments": picked["arguments"]})
        said = CallSettlement(call.call, picked["tool"], **fields)
        outcome = CallOutcome(call.asked.name, CallRef(call.call), _result(call, said))
        lifecycle.store.store_values(stored.id, projection.values_behind([fields, outcome.encode()]))
        left = [other for other in open_calls[:doubtful_count] if other is not call]
        status, record = _left(stored, left, call.call)
        decided, ended = to_entry(said, stored.id), to_entry(outcome, stored.id)
        changed = lifecycle.suspension(stored, status)
        due, after = earliest_due(record), last_looked(record)
        await lifecycle.leave(stored.id, decided, ended, *changed, status=status, record=record, due=due, after=after)


def _in_doubt_row(call: RecordedCall) -> InDoubtRow[str]:
    row = call_row(call)
    return {
        "effect": call.call,
        "step": call.call,
        "tool": row["tool"],
        "arguments": row["arguments"],
        "since": row["since"],
    }


def _calls_in_doubt(stored: StoredExecution) -> set[str]:
    error = (stored.record or {}).get("error") or {}
    return {row["call"] for row in error.get("calls", ())}


def _result(call: RecordedCall, said: CallSettlement) -> Result:
    match said.how:
        case "happened":
            return _success(call, said.value)
        case "failed":
            return Failure("failed", said.message)
        case "not_done":
            return NoAnswer(NOT_DONE)


def _left(stored: StoredExecution, doubtful: list[RecordedCall], answered: str) -> tuple[str, dict[str, Any] | None]:
    """The status and the record of a script when one of its calls has been answered.

    Args:
        stored: The execution, as it was.
        doubtful: The calls that are still in doubt.
        answered: The call's id.
    """
    record = ExecutionRecord.from_json({"execution": stored.id, **(stored.record or {})})
    record.error = None
    record.waiting = [row for row in record.waiting if row["call"] != answered]
    if doubtful:
        suspend(record, doubtful, record.waiting, if_generated(stored.key))
        return "suspended", record.to_json()
    # Its other questions stay open, even if it is resumed meanwhile.
    return "interrupted", record.to_json() if record.waiting else None


async def give(lifecycle: Lifecycle, stored: StoredExecution, event: Resume, projection: ExecutionValues) -> bool:
    """Deliver the outcome that a tool has announced to the script's call that has waited longest.

    Args:
        lifecycle: The lifecycle of the bridge's executions.
        stored: The script's execution, as it was read.
        event: The outcome.
        projection: As in `settle_script`.

    Returns:
        Whether a call waited for it.

    Raises:
        BridgeError: `not_suspended`, `bad_value`.
    """
    async with lifecycle.taken(stored, resumes=False):
        waiting = CallHistory(await lifecycle.recorder.read(stored.id)).pending()
        if not waiting:
            await lifecycle.restore(stored, resumed=False)
            return False
        call = waiting[0]
        try:
            payload = normal(event.payload, "payload")
        except ValueFaultError as exc:
            raise BridgeError("bad_value", f"The execution can't be resumed so: {exc}.") from None
        result = _success(call, await projection.project(payload))
        outcome = CallOutcome(call.asked.name, CallRef(call.call), result, event.source)
        lifecycle.store.store_values(stored.id, projection.values_behind(result.value))
        status, record = effective_status(stored), stored.record
        if not _calls_in_doubt(stored):
            status, record = _left(stored, [], call.call)
        elif record is not None:
            record = record | {"waiting": [row for row in record.get("waiting", ()) if row["call"] != call.call]}
        entries = to_entry(outcome, stored.id), *lifecycle.suspension(stored, status)
        due, after = earliest_due(record), last_looked(record)
        await lifecycle.leave(stored.id, *entries, status=status, record=record, due=due, after=after)
    return True


def _success(call: RecordedCall, value: Any) -> Success:
    """The result of a call with a value that a person or a client supplied."""
    if call.asked.raw:
        value = {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}
    return Success(value)


async def cancel_script(lifecycle: Lifecycle, stored: StoredExecution, reason: str) -> None:
    """Cancel a script that is suspended or interrupted. Nothing is undone. Its key belongs to the cancelled record.

    Args:
        lifecycle: The lifecycle of the bridge's executions.
        stored: The script's execution, as it was read.
        reason: The reason, without sensitive values.

    Raises:
        BridgeError: `not_suspended`.
    """
    async with lifecycle.taken(stored, resumes=False):
        doubt = tools_in_doubt(CallHistory(await lifecycle.recorder.read(stored.id)))
        # What is in doubt stays so: nobody is asked about it any more.
        said = f"{reason.rstrip('.')}. {doubt}" if doubt else reason
        error = BridgeError("cancelled", f"The run was cancelled: {said}").record()
        last_record = stored.record or {"execution": stored.id, "stdout": "", "stderr": ""}
        record = last_record | {"status": "cancelled", "exit_code": 1, "error": error, "waiting": []}
        end = ScriptEnd("cancelled", error=RunError.of(error))
        await lifecycle.leave(stored.id, to_entry(end, stored.id), status="cancelled", record=record)
