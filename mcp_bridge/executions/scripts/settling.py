"""A person's word about a script that can't go on by itself: what became of a call, or that it is over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import in_doubt as doubts
from mcp_bridge.executions.programs.record import standing
from mcp_bridge.executions.record import ExecutionRecord
from mcp_bridge.executions.scripts.call_history import Past
from mcp_bridge.executions.scripts.held_calls import if_made
from mcp_bridge.executions.scripts.record import call_row, suspend
from mcp_bridge.kernel.values import ValueFaultError, normal
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.payloads import NOT_DONE
from mcp_bridge.sandbox.owner import owner_label

if TYPE_CHECKING:
    from mcp_bridge.executions.in_doubt import Settlement
    from mcp_bridge.executions.scripts.call_history import PastCall
    from mcp_bridge.gate.execution_values import ExecutionValues
    from mcp_bridge.kernel.events import Resume
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.store import ProgramStore, StoredExecution


async def settle_script(
    store: ProgramStore,
    recorder: Recorder,
    stored: StoredExecution,
    asked: str | None,
    settlement: Settlement,
    projection: ExecutionValues,
) -> None:
    """End a doubt by a person's word. When none is left, the execution can go on.

    Args:
        store: Keeps it.
        recorder: Has its record.
        stored: The script's execution, as it was read.
        asked: The call's id; None if only one is in doubt.
        settlement: The person's word.
        projection: What a person says is no tool's result, and is recorded all the same.

    Raises:
        BridgeError: `not_suspended`, `not_in_doubt`, `unknown_doubt`, `ambiguous_id`.
    """
    await _take(store, stored)
    status, record = standing(stored), stored.record
    try:
        past = Past(await recorder.read(stored.id))
        kept = ((record or {}).get("error") or {}).get("calls", ())
        open_calls = [call for call in past.doubtful() if call.call in {row["call"] for row in kept}]
        doubts_left = len(open_calls)
        # What a tool will have given, a person may know, too.
        open_calls += past.pending()
        rows: dict[Any, dict[str, Any]] = {
            call.call: call_row(call) | {"effect": call.call, "step": call.call} for call in open_calls
        }
        picked = doubts.pick(rows, asked, stored.id)
        call = past.calls[picked["effect"]]
        decision = await projection.project(settlement.decision(picked))
        outcome = await projection.project(_outcome(call, settlement))
        store.store_values(stored.id, projection.values_behind([decision, outcome]))
        left = [other for other in open_calls[:doubts_left] if other is not call]
        status, record = _left(stored, left, call.call)
        recorder.post(
            Entry("decision", stored.id, decision | {"call": call.call}),
            Entry("outcome", stored.id, outcome),
        )
    finally:
        with anyio.CancelScope(shield=True):
            if status != stored.status:
                recorder.post(Entry("suspension", stored.id, {"status": status}))
            await store.update(stored.id, status=status, state=None, record=record, due=None)


def _outcome(call: PastCall, settlement: Settlement) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": call.asked.kind, "tool": call.asked.name, "call": call.call}
    match settlement.how:
        case "happened":
            return _answer(call, settlement.value)
        case "failed":
            return told | {"status": "failed", "code": "failed", "message": settlement.message}
        case "not_done":
            return told | {"status": NOT_DONE}


def _left(stored: StoredExecution, doubts: list[PastCall], answered: str) -> tuple[str, dict[str, Any] | None]:
    """How a script stands when one of its calls has been answered: its status, and its record.

    Args:
        stored: The execution, as it was.
        doubts: What is in doubt still.
        answered: The call's id.
    """
    record = ExecutionRecord.from_json({"execution": stored.id, **(stored.record or {})})
    record.error = None
    record.waiting = [row for row in record.waiting if row["call"] != answered]
    if doubts:
        suspend(record, doubts, record.waiting, if_made(stored.key))
        return "suspended", record.to_json()
    # What else it waits for is still to be decided, whoever goes on with it meanwhile.
    return "interrupted", record.to_json() if record.waiting else None


async def give(
    store: ProgramStore,
    recorder: Recorder,
    stored: StoredExecution,
    event: Resume,
    projection: ExecutionValues,
) -> bool:
    """Give a script what its tool has said comes later: to the call that has waited longest. Then it can go on.

    Args:
        store: Keeps it.
        recorder: Has its record.
        stored: The script's execution, as it was read.
        event: What has come.
        projection: As `settle_script`.

    Returns:
        Whether a call waits for it.

    Raises:
        BridgeError: `not_suspended`, `bad_value`.
    """
    await _take(store, stored)
    status, record = standing(stored), stored.record
    try:
        waiting = Past(await recorder.read(stored.id)).pending()
        if not waiting:
            return False
        call = waiting[0]
        try:
            payload = normal(event.payload, "payload")
        except ValueFaultError as exc:
            raise BridgeError("bad_value", f"The execution can't be resumed so: {exc}.") from None
        outcome = _answer(call, await projection.project(payload)) | {"source": event.source}
        store.store_values(stored.id, projection.values_behind(outcome))
        doubts = ((record or {}).get("error") or {}).get("calls", ())
        if not doubts:
            status, record = _left(stored, [], call.call)
        elif record is not None:
            record = record | {"waiting": [row for row in record.get("waiting", ()) if row["call"] != call.call]}
        recorder.post(Entry("outcome", stored.id, outcome))
    finally:
        with anyio.CancelScope(shield=True):
            if status != stored.status:
                recorder.post(Entry("suspension", stored.id, {"status": status}))
            await store.update(stored.id, status=status, state=None, record=record, due=None)
    return True


def _answer(call: PastCall, value: Any) -> dict[str, Any]:
    """The outcome of a call that has given a value, by somebody's word."""
    if call.asked.raw:
        value = {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}
    return {"kind": call.asked.kind, "tool": call.asked.name, "call": call.call, "status": "ok", "value": value}


async def cancel_script(store: ProgramStore, recorder: Recorder, stored: StoredExecution, reason: str) -> None:
    """End a script that is suspended or interrupted. Nothing of it is done again; its key gives that it is cancelled.

    Args:
        store: Keeps it.
        recorder: Has its record.
        stored: The script's execution, as it was read.
        reason: Why, without anything sensitive.

    Raises:
        BridgeError: `not_suspended`.
    """
    await _take(store, stored)
    error = BridgeError("cancelled", f"The run was cancelled: {reason}").record()
    kept = stored.record or {"execution": stored.id, "stdout": "", "stderr": ""}
    record = kept | {"status": "cancelled", "exit_code": 1, "error": error, "waiting": []}
    with anyio.CancelScope(shield=True):
        recorder.post(
            Entry("end", stored.id, {"status": "cancelled", "error": error["message"], "code": error["code"]})
        )
        await store.update(stored.id, status="cancelled", state=None, record=record, due=None)


async def _take(store: ProgramStore, stored: StoredExecution) -> None:
    status = standing(stored)
    if status not in {"suspended", "interrupted"}:
        raise BridgeError(
            "not_suspended",
            f"The execution {stored.id} is not suspended: {status}.",
            hint=f"mcp-bridge execution show {stored.id} has how it stands.",
        )
    with anyio.CancelScope(shield=True):
        if not await store.take(stored, owner_label()):
            raise BridgeError(
                "not_suspended",
                f"The execution {stored.id} has just been changed by somebody else.",
                hint=f"mcp-bridge execution show {stored.id} has how it stands.",
            )
