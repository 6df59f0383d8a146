"""What happened to an execution since its state was taken down: for one whose process died on the way.

Every event is recorded in the moment in which its machine takes it: the machine that takes them again, in their order,
is the machine that was lost.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.events import Cancel, IllegalEventError, Outcome, Redo, Resume, Usage
from mcp_bridge.ledger.log.payloads import (
    EffectOutcome,
    ModelIntent,
    ProgramSuspension,
    ToolIntent,
    Transition,
    understood,
)
from mcp_bridge.policy.rules.budgets import Amounts, cut_short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.kernel.machine import Machine
    from mcp_bridge.ledger.log.entries import Recorded


def state_hash(data: bytes) -> str:
    """SHA-256 of a state, by which a suspension's entry tells which state it left."""
    return hashlib.sha256(data).hexdigest()


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
    history = [understood(row) for row in entries]
    began = max(
        (
            number
            for number, payload in enumerate(history)
            if isinstance(payload, ProgramSuspension) and payload.state == taken_down
        ),
        default=-1,
    )
    doubtful: set[int] = set()
    for number, payload in enumerate(history):
        match payload:
            case ToolIntent(effect=int(effect)) | ModelIntent(effect=effect):
                doubtful.add(effect)
            case EffectOutcome(event) | Transition(event):
                if isinstance(event, Outcome | Redo):
                    doubtful.discard(event.effect)
                if number > began:
                    # What came when it was no longer wanted was refused then, too.
                    with suppress(IllegalEventError):
                        machine.apply(event)
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
        match understood(row):
            case ModelIntent(effect, arguments):
                # Asked, and asked again: the first question was cut short.
                amounts.append(asked.get(effect, Amounts()))
                asked[effect] = cut_short(arguments)
            case ToolIntent() as intent:
                called.add(intent.effect)
                amounts.append(Amounts(calls=1, bytes=len(json.dumps(intent.given))))
                for rule in intent.rules:
                    if row.entry.policy == policy or rule <= alike.get(row.entry.policy, 0):
                        made[rule] = made.get(rule, 0) + 1
            case EffectOutcome(outcome):
                usage = outcome.usage or Usage()
                asked.pop(outcome.effect, None)
                counts = outcome.status == "ok" and outcome.effect in called
                size = len(json.dumps(outcome.value)) if counts else 0
                amounts.append(Amounts(bytes=size, model_tokens=usage.total_tokens, model_cost_usd=usage.cost_usd or 0))
    counted = [amount.counted() for amount in (*amounts, *asked.values())]
    return {"usage": {kind: sum(row[kind] for row in counted) for kind in counted[0]}, "made": made}
