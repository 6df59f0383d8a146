"""What a ledger holds, in numbers, for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.status import is_under_way
from mcp_bridge.executions.trace_record import to_record
from mcp_bridge.kernel.machine import IN_DOUBT
from mcp_bridge.ledger.storage.execution_store import ProgramStore

if TYPE_CHECKING:
    from mcp_bridge.ledger.log.quota import Measured
    from mcp_bridge.ledger.storage.database import Database

MAX_SUSPENDED = 200
"""Suspended executions, the latest, that calls in doubt are looked for in: each record has to be decrypted."""


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    """What a ledger holds.

    Attributes:
        entries: The log's size.
        file: How large the file is.
        unfinished: Executions that have not ended, by principal and status.
        open_approvals: Calls and steps that wait for a person's decision.
        in_doubt: Calls in doubt of the latest suspended executions; None if their records can't be read.
    """

    entries: int
    file: Measured
    unfinished: dict[tuple[str, str], int]
    open_approvals: int
    in_doubt: int | None


async def ledger_figures(database: Database) -> LedgerFigures:
    """Count what a ledger holds. Its time grows with the number of executions: don't ask often.

    Raises:
        BridgeError: `not_recorded`, `database_unusable`.
    """
    ((entries,),) = await database.read("SELECT coalesce(max(sequence) + 1, 0) FROM entries")
    rows = await database.read(
        "SELECT principal, status, owner, count(*) FROM executions"
        " WHERE status IN ('running', 'suspended', 'interrupted') GROUP BY 1, 2, 3"
    )
    unfinished = Counter[tuple[str, str]]()
    for principal, status, owner, count in rows:
        # One whose process has died is still stored as running.
        is_lost = status == "running" and not is_under_way(status, owner, is_held=database.is_present(owner))
        unfinished[principal, "interrupted" if is_lost else status] += count
    ((open_approvals,),) = await database.read("SELECT count(*) FROM approvals WHERE status = 'open'")
    return LedgerFigures(
        entries,
        database.measured,
        dict(unfinished),
        open_approvals,
        await _in_doubt(database),
    )


async def _in_doubt(database: Database) -> int | None:
    try:
        suspended = await ProgramStore(database).executions(None, MAX_SUSPENDED, {"suspended"})
        waiting = [row for stored in suspended for row in to_record(stored).get("waiting", ())]
    except BridgeError:
        # A damaged row is for `mcp-bridge audit`, and no reason for having no metrics.
        return None
    return len([row for row in waiting if row["kind"] == IN_DOUBT])
