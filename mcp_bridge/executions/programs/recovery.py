"""Recovery of a program whose process died: its machine applies the entries since its state was last stored.

Every event is recorded when the machine applies it, so a machine that applies the same events in order has the state
that was lost.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

from mcp_bridge.kernel.events import IllegalEventError, Outcome, Redo
from mcp_bridge.ledger.log.payloads import (
    EffectOutcome,
    ModelIntent,
    ProgramStart,
    ProgramSuspension,
    ToolIntent,
    Transition,
    understood,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.kernel.machine import Machine
    from mcp_bridge.ledger.log.entries import Recorded


def state_hash(data: bytes) -> str:
    """SHA-256 of a state, by which a suspension's entry tells which state it left."""
    return hashlib.sha256(data).hexdigest()


def waits_since(machine: Machine, entries: Sequence[Recorded]) -> dict[int, float]:
    """When the waits that a machine awaits were asked for, in seconds since 1970, by their effects.

    Args:
        machine: As its process left it.
        entries: All of the execution's.
    """
    waits = {effect.id for effect, _ in machine.awaited() if effect.kind == "wait"} - machine.deadlines.keys()
    found: dict[int, float] = {}
    for row in entries if waits else ():
        match understood(row):
            case ProgramStart(effects=effects) | EffectOutcome(effects=effects) | Transition(effects=effects):
                found |= dict.fromkeys(waits.intersection(effects or ()), row.time)
    return found


def apply_recorded(machine: Machine, state: bytes, entries: Sequence[Recorded]) -> set[int]:
    """Bring a machine to where its process left it.

    Args:
        machine: Restored from `state`; it is changed.
        state: The state that was last stored.
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
