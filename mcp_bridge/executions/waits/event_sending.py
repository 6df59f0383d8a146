"""Sends events to executions: to a script, which takes it when it waits for it, or to a program that waits for it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.programs.lifecycle import MAX_CONTEXT_BYTES
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.status import UNFINISHED, effective_status, not_suspended, refuse_erased
from mcp_bridge.executions.waits.taken_events import check_name, event_name, open_event_waits, sensitive_name, untaken
from mcp_bridge.executions.waits.wake_times import EVENT
from mcp_bridge.kernel.values import ValueFaultError, normal
from mcp_bridge.ledger.log.payloads import EventDelivery
from mcp_bridge.offload import is_over, off_loop

if TYPE_CHECKING:
    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.gate.execution_values import ExecutionValues
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution

MAX_KEPT = 100
"""Most events of one execution that nobody has taken yet."""

MAX_LOOKED = 10_000
"""Most unfinished executions that are looked at to find those that wait for an event."""


async def send_event(
    lifecycle: Lifecycle,
    stored: StoredExecution,
    name: str,
    payload: Any,
    source: str,
    projection: ExecutionValues,
) -> None:
    """Record that an event was sent to a script that has not ended. When this returns, it is durable.

    Args:
        lifecycle: The lifecycle of executions.
        stored: The script's execution, as it was read.
        name: The event's name.
        payload: What it brings, as JSON.
        source: As `EventDelivery.source`.
        projection: Replaces sensitive values by the execution's references.

    Raises:
        BridgeError: `bad_event`, `bad_value`, `payload_too_large`, `too_many_events`, `erased`; `not_suspended`: it has
            ended; `not_recorded`.
    """
    check_name(name)
    refuse_erased(stored)
    status = effective_status(stored)
    if status not in UNFINISHED:
        raise not_suspended(stored.id, f"it has ended: {status}")
    payload = await checked_payload(payload)
    entries = await lifecycle.recorder.read(stored.id)
    if len(untaken(entries)) >= MAX_KEPT:
        raise BridgeError(
            "too_many_events",
            f"{MAX_KEPT} events that were sent to the execution {stored.id} have not been waited for.",
            hint=f"mcp-bridge execution show {stored.id} has them.",
        )
    if await projection.project(name) != name:
        raise sensitive_name(name)
    said = EventDelivery(name, await projection.project(payload), source)
    lifecycle.store.store_values(stored.id, projection.values_behind(said.payload))
    if not await lifecycle.store.send(stored.id, lifecycle.entry(said, stored.id)):
        raise not_suspended(stored.id, "it has ended just now, without the event")


async def checked_payload(payload: Any) -> Any:
    """An event's payload in normal form.

    Raises:
        BridgeError: `bad_value`, `payload_too_large`.
    """
    try:
        payload = await off_loop(payload, normal, payload, "payload")
    except ValueFaultError as exc:
        raise BridgeError("bad_value", f"The event can't bring this: {exc}.") from None
    if await off_loop(payload, is_over, payload, MAX_CONTEXT_BYTES):
        raise BridgeError("payload_too_large", f"The payload is too large; the limit is {MAX_CONTEXT_BYTES} bytes.")
    return payload


def awaited_effect(stored: StoredExecution, name: str) -> int:
    """The effect by which a program waits for an event.

    Raises:
        BridgeError: `erased`, `not_suspended`.
    """
    refuse_erased(stored)
    rows = [row for row in (stored.record or {}).get("waiting", ()) if row["kind"] == EVENT and row["name"] == name]
    for row in rows:
        if row.get("due", math.inf) > time.time():
            effect: int = row["effect"]
            return effect
    if rows:
        # It would go on without the payload.
        hint = f"mcp-bridge execution resume {stored.id} resumes it without the event."
        raise not_suspended(stored.id, f"its time for the event {name[:100]!r} is over", hint)
    raise not_suspended(stored.id, f"it doesn't wait for the event {name[:100]!r}")


async def wake_scripts(store: ProgramStore, program: str) -> None:
    """Have the scripts that wait for a program looked at, now that it has gone on."""
    for holder in await store.holders(program):
        await store.make_due(holder)


class Awaiting(NamedTuple):
    """An execution that waits for an event.

    Attributes:
        id: Its id.
        principal: Its owner.
    """

    id: str
    principal: str


async def executions_awaiting(store: ProgramStore, recorder: Recorder, principal: str, name: str) -> list[Awaiting]:
    """A principal's executions that wait for an event: suspended for it, or scripts that run or were interrupted.

    Args:
        store: The executions.
        recorder: Reads their entries.
        principal: Whose.
        name: The event's name.

    Raises:
        BridgeError: `bad_event`; `nobody_waits`.
    """
    check_name(name)
    found = []
    for stored in reversed(await store.executions(principal, MAX_LOOKED, sorted(UNFINISHED))):
        if stored.status == "suspended" or stored.kind == "program":
            rows = (stored.record or {}).get("waiting", ())
            names = {row["name"] for row in rows if row["kind"] == EVENT}
        else:
            history = CallHistory(await recorder.read(stored.id))
            names = {event_name(call) for call in open_event_waits(history)}
        if name in names:
            found.append(Awaiting(stored.id, stored.principal))
    if not found:
        raise BridgeError(
            "nobody_waits",
            f"Nothing of the principal {principal} waits for the event {name!r}, so it was not sent.",
            hint=(
                "`mcp-bridge execution list` lists what waits, and whose it is: another principal's gets it with "
                "--principal NAME. With --execution ID it is stored for that script."
            ),
        )
    return found
