"""When a suspended script can be resumed, by what its record says of its waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.kernel.machine import IN_DOUBT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.executions.record import WaitingRow

EVENT = "event"
"""The kind of a wait for an event."""


def earliest_due(record: Mapping[str, Any] | None) -> float | None:
    """When a suspended script can go on because time has passed, in seconds since 1970; None if it never can.

    Args:
        record: The script's record.
    """
    if record is None or (record.get("error") or {}).get("calls"):
        # With a call in doubt it can't go on before a person has said what became of it.
        return None
    rows: list[WaitingRow] = record.get("waiting", [])
    inner = [of for row in rows for of in row.get("waiting", ())]
    return min((row["due"] for row in [*rows, *inner] if "due" in row and row["kind"] != IN_DOUBT), default=None)


def last_looked(record: Mapping[str, Any] | None) -> int | None:
    """The number of the last event that a suspended script has looked at; None if it waits for no event."""
    rows: list[WaitingRow] = (record or {}).get("waiting", [])
    return min((row["after"] for row in rows if "after" in row), default=None)
