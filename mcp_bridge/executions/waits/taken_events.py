"""Events that were sent to an execution: which of them a script's waits have taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.ledger.log.payloads import EventDelivery, Success, understood
from mcp_bridge.wire.messages import NAMES, WaitEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.executions.scripts.call_history import RecordedCall
    from mcp_bridge.ledger.log.entries import Recorded

WAIT = "wait"
"""The kind of a script's request that is a wait."""

WAIT_EVENT = NAMES[WaitEvent]

MAX_NAME_CHARS = 200


class SentEvent(NamedTuple):
    """An event that was sent to an execution.

    Attributes:
        sequence: The number of its entry.
        time: When it was sent, in seconds since 1970.
        name: Its name.
        payload: What it brought, projected.
    """

    sequence: int
    time: float
    name: str
    payload: Any


def check_name(name: str) -> None:
    """Refuse what can't be the name of an event.

    Raises:
        BridgeError: `bad_event`.
    """
    if not (0 < len(name) <= MAX_NAME_CHARS and name.isprintable() and name == name.strip()) or name.startswith("-"):
        raise BridgeError(
            "bad_event",
            f"{name[:100]!r} can't be the name of an event.",
            hint=f"Use 1 to {MAX_NAME_CHARS} printable characters, not a hyphen first, nor a space at an end.",
        )


def sensitive_name(name: str) -> BridgeError:
    """The error for an event's name that has a sensitive value: it would not be found by it."""
    return BridgeError(
        "bad_event",
        f"The name {name[:100]!r} has a sensitive value, by which no event can be found.",
        hint="Name the event by a number, and send the value as its payload.",
    )


def untaken(entries: Sequence[Recorded]) -> list[SentEvent]:
    """The events that no wait has taken yet, in the order in which they were sent.

    Args:
        entries: All of a script's execution.
    """
    sent = [
        SentEvent(row.sequence, row.time, said.name, said.payload)
        for row in entries
        if row.entry.kind == EventDelivery.KIND and isinstance(said := understood(row), EventDelivery)
    ]
    if not sent:
        return []
    taken = {number for call in CallHistory(entries).calls.values() if (number := taken_by(call)) is not None}
    return [event for event in sent if event.sequence not in taken]


def taken_by(call: RecordedCall) -> int | None:
    """The number of the event that a wait has taken; None for no wait, and for one that has taken none."""
    result = None if call.outcome is None else call.outcome.result
    if call.asked.kind == WAIT and isinstance(result, Success) and isinstance(result.value, dict):
        number = result.value.get("event")
        return number if type(number) is int else None
    return None


def open_event_waits(history: CallHistory) -> list[RecordedCall]:
    """The waits for events that are not over, the oldest first."""
    return [call for call in history.calls.values() if call.asked.name == WAIT_EVENT and call.outcome is None]


def event_name(call: RecordedCall) -> str:
    """The name of the event that a wait is for; empty if it isn't known any more."""
    arguments = call.asked.arguments
    return str(arguments.get("name", "")) if isinstance(arguments, dict) else ""
