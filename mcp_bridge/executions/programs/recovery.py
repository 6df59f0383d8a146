"""What happened to an execution since its state was taken down: for one whose process died on the way.

Every event is recorded in the moment in which its machine takes it: the machine that takes them again, in their order,
is the machine that was lost.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.events import Cancel, IllegalEventError, Outcome, Redo, Resume, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.kernel.events import Event
    from mcp_bridge.kernel.machine import Machine
    from mcp_bridge.ledger.log.entries import Recorded


def state_hash(data: bytes) -> str:
    """SHA-256 of a state, by which a suspension's entry tells which state it left."""
    return hashlib.sha256(data).hexdigest()


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as an entry's payload."""
    told: dict[str, Any] = {"effect": outcome.effect, "status": outcome.status}
    if outcome.status == "ok":
        told["value"] = outcome.value
    else:
        told["code"], told["message"] = outcome.code, outcome.message
    if outcome.usage is not None:
        told["usage"] = outcome.usage._asdict()
    return told


def event_json(event: Resume | Cancel | Redo) -> dict[str, Any]:
    """An event that is no outcome, as an entry's payload."""
    return {"event": type(event).__name__.lower(), **event._asdict()}


def replay(machine: Machine, state: bytes, entries: Sequence[Recorded]) -> set[int]:
    """Bring a machine to where its process left it.

    Args:
        machine: Restored from `state`; it is changed.
        state: What was taken down last.
        entries: All of the execution's.

    Returns:
        The effects that were about to happen, and of which no outcome is recorded.
    """
    taken_down = state_hash(state)
    began = max(
        (
            number
            for number, row in enumerate(entries, 1)
            if row.entry.kind == "suspension" and row.entry.payload.get("state") == taken_down
        ),
        default=0,
    )
    doubtful: set[int] = set()
    for number, row in enumerate(entries, 1):
        kind, payload = row.entry.kind, row.entry.payload
        if kind == "intent" and "effect" in payload:
            doubtful.add(payload["effect"])
        event = event_of(kind, payload)
        if isinstance(event, Outcome | Redo):
            doubtful.discard(event.effect)
        if event is not None and number > began:
            try:
                machine.apply(event)
            except IllegalEventError:
                # It came when it was no longer wanted.
                continue
    return doubtful & machine.waiting.keys()


def event_of(kind: str, payload: dict[str, Any]) -> Event | None:
    """The event that an entry tells of, or None."""
    if kind == "outcome" and "effect" in payload:
        usage = payload.get("usage")
        return Outcome(
            payload["effect"],
            payload["status"],
            payload.get("value"),
            payload.get("code", ""),
            payload.get("message", ""),
            None if usage is None else Usage(**usage),
        )
    if kind == "transition" and payload["event"] == "resume":
        return Resume(payload["payload"], payload["source"], payload["effect"])
    if kind == "transition" and payload["event"] == "cancel":
        return Cancel(payload["reason"])
    if kind == "transition" and payload["event"] == "redo":
        return Redo(payload["effect"])
    return None
