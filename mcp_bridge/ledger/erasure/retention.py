"""Which executions' payloads may be erased by age, or to make room: those that have ended, and that nobody needs.

An execution that is suspended or interrupted is kept, however long it waits, and so is what it may still ask for.
What a session is rebuilt from is kept, too: see `session_cells`.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Literal

from mcp_bridge.ledger.storage.blind_indexes import held_execution_mac
from mcp_bridge.ledger.storage.schema import ERASED

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection

    from mcp_bridge.ledger.log.transaction import Transaction
    from mcp_bridge.ledger.storage.database import Database

EXECUTIONS_AT_ONCE = 50
"""Erased before the free room is measured again."""

_DAY_SECONDS = 24 * 3600.0

_ENDED = "status <> ? AND (status NOT IN ('running', 'suspended', 'interrupted') OR (kind = 'script' AND key IS NULL))"
"""Selects ended executions: those that can't be resumed. A script without a key can't, once its process has died. The
parameter is ERASED."""

_OLD = (
    f"SELECT changed, id FROM executions WHERE {_ENDED} AND changed < ? AND (changed, id) > (?, ?)"  # noqa: S608
    " ORDER BY changed, id LIMIT ?"
)


def cutoff(days: Literal["forever"] | float) -> float | None:
    """The time, in seconds since 1970, before which something is too old to be kept; None if it is kept forever."""
    return None if days == "forever" else time.time() - days * _DAY_SECONDS


def ended_before(
    connection: sqlite3.Connection, before: float, after: tuple[float, str], limit: int
) -> list[tuple[float, str]]:
    """Executions that have ended before a time, the oldest first, with the times of their ends.

    Args:
        connection: The store.
        before: In seconds since 1970.
        after: The last one that was returned before, to go on behind it.
        limit: How many to return.
    """
    return connection.execute(_OLD, (ERASED, before, *after, limit)).fetchall()


async def has_ended_before(database: Database, before: float, after: tuple[float, str] = (-1.0, "")) -> bool:
    """Whether `ended_before` would return any. Needs no transaction."""
    return bool(await database.read(_OLD, (ERASED, before, *after, 1)))


def has_ended(transaction: Transaction, execution: str) -> bool:
    """Whether an execution has ended, and isn't erased."""
    query = f"SELECT 1 FROM executions WHERE id = ? AND {_ENDED}"  # noqa: S608 - a constant
    return transaction.connection.execute(query, (execution, ERASED)).fetchone() is not None


def is_needed(transaction: Transaction, execution: str) -> bool:
    """Whether an execution that can be resumed has started this one, or read of it, and may ask for its result."""
    rows = transaction.connection.execute(
        "SELECT 1 FROM holders JOIN executions ON id = holder WHERE subject = ?"
        " AND status IN ('running', 'suspended', 'interrupted') AND (kind = 'program' OR key IS NOT NULL) LIMIT 1",
        (held_execution_mac(transaction.log.master, execution),),
    )
    return rows.fetchone() is not None


async def candidates_for_room(database: Database, large: int, kept: Collection[str]) -> list[str]:
    """Ended executions, to make room: one with more than `large` bytes if there is any, otherwise the oldest ones.

    Args:
        database: The store.
        large: In bytes.
        kept: Executions that are left out.
    """
    left_out = json.dumps(sorted(kept))
    is_candidate = f"({_ENDED}) AND id NOT IN (SELECT value FROM json_each(?))"  # noqa: S608 - constants
    found = await database.read(
        # The sum is made by an index alone.
        "SELECT id FROM (SELECT execution, sum(size) AS total FROM pieces GROUP BY execution HAVING total > ?)"  # noqa: S608
        f" JOIN executions ON id = execution WHERE {is_candidate} ORDER BY changed LIMIT 1",
        (large, ERASED, left_out),
    )
    if not found:
        query = f"SELECT id FROM executions WHERE {is_candidate} ORDER BY changed LIMIT {EXECUTIONS_AT_ONCE}"  # noqa: S608
        found = await database.read(query, (ERASED, left_out))
    return [execution for (execution,) in found]


async def unfinished_executions(database: Database) -> set[str]:
    """Ids of the executions that run or can be resumed."""
    query = f"SELECT id FROM executions WHERE NOT ({_ENDED})"  # noqa: S608 - a constant
    return {execution for (execution,) in await database.read(query, ("",))}
