"""What happened to an execution since its state was taken down: for one whose process died on the way.

Every event is recorded in the moment in which its machine takes it: the machine that takes them again, in their order,
is the machine that was lost.
"""

from __future__ import annotations

import hashlib
import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.events import Cancel, IllegalEventError, Outcome, Redo, Resume, Usage
from mcp_bridge.policy.rules.budgets import Amounts, unanswered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


def spent(entries: Sequence[Recorded], policy: str, alike: Mapping[str, int] = MappingProxyType({})) -> dict[str, Any]:
    """What an execution has used of its limits, as `Budget.adopt` takes it.

    Args:
        entries: All of the execution's.
        policy: The hash of the policy that it goes on under: the rules of another have other numbers.
        alike: From the hashes of other policies to how many of their first rules are that one's first rules, too.
    """
    amounts = [Amounts()]
    made: dict[int, int] = {}
    called: set[int | None] = set()
    asked: dict[int, Amounts] = {}
    for row in entries:
        payload = row.entry.payload
        if row.entry.kind == "intent" and payload["kind"] == "llm":
            # Asked, and asked again: the first question was cut short.
            amounts.append(asked.get(payload["effect"], Amounts()))
            asked[payload["effect"]] = unanswered(payload["arguments"])
        elif row.entry.kind == "intent" and payload["kind"] == "tool":
            called.add(payload.get("effect"))
            amounts.append(Amounts(calls=1, bytes=len(json.dumps(payload.get("sent", payload["arguments"])))))
            for rule in payload.get("rules", ()):
                if row.entry.policy == policy or rule <= alike.get(row.entry.policy, 0):
                    made[rule] = made.get(rule, 0) + 1
        elif row.entry.kind == "outcome" and "effect" in payload:
            usage = payload.get("usage") or {"total_tokens": 0, "cost_usd": 0}
            asked.pop(payload["effect"], None)
            counts = payload["status"] == "ok" and payload["effect"] in called
            size = len(json.dumps(payload.get("value"))) if counts else 0
            amounts.append(
                Amounts(bytes=size, model_tokens=usage["total_tokens"], model_cost_usd=usage["cost_usd"] or 0)
            )
    counted = [amount.counted() for amount in (*amounts, *asked.values())]
    return {"usage": {kind: sum(row[kind] for row in counted) for kind in counted[0]}, "made": made}


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
