"""Queries over many executions: pages of ids, counts of entries, whether anything has changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.deduplication import payload_of, pieces_of
from mcp_bridge.ledger.log.entries import Entry, Recorded
from mcp_bridge.ledger.log.entry_encoding import decode
from mcp_bridge.ledger.log.payloads import Damaged
from mcp_bridge.ledger.log.recorder import recorded

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Sequence

    from mcp_bridge.ledger.log.deduplication import Pieces
    from mcp_bridge.ledger.log.entry_encoding import Leaf
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.sealing import MasterKey


@dataclass(frozen=True, slots=True)
class EntryCounts:
    """How many entries an execution has.

    Attributes:
        kinds: Their number, by kind.
        last: When the last one was recorded, in seconds since 1970; None if there is none.
    """

    kinds: dict[str, int] = field(default_factory=dict)
    last: float | None = None


async def newest(
    database: Database,
    principal: str | None,
    limit: int,
    *,
    statuses: Collection[str] = (),
    since: float | None = None,
    before: tuple[float, str] | None = None,
) -> list[tuple[str, float]]:
    """Ids of a principal's executions and when they began, the latest first.

    Args:
        database: The store.
        principal: The principal; None for all.
        limit: The page size.
        statuses: Stored statuses to select; empty for any.
        since: Selects those that began then or later, in seconds since 1970.
        before: The last row of the page before: when it began, and its id.
    """
    among = ", ".join("?" * len(statuses)) if statuses else "status"
    began, ident = before or (None, "")
    # Spelled out: an index of principals is used for one alone.
    whose = "" if principal is None else "principal = ? AND "
    rows = await database.read(
        f"SELECT id, started FROM executions WHERE {whose}status IN ({among}) AND started >= ?"  # noqa: S608 - question marks
        " AND (? IS NULL OR started < ? OR (started = ? AND id < ?)) ORDER BY started DESC, id DESC LIMIT ?",
        (*(() if principal is None else (principal,)), *statuses, since or 0.0, began, began, began, ident, limit),
    )
    return [(execution, started) for execution, started in rows]


async def counts(database: Database, executions: Sequence[str]) -> dict[str, EntryCounts]:
    """Count the entries of some executions."""
    marks = ", ".join("?" * len(executions))
    kinds: dict[str, dict[str, int]] = {execution: {} for execution in executions}
    ends: dict[str, int] = {}
    for execution, kind, count, end in await database.read(
        f"SELECT execution, kind, count(*), max(sequence) FROM entries WHERE execution IN ({marks}) GROUP BY 1, 2",  # noqa: S608 - question marks
        executions,
    ):
        kinds[execution][kind] = count
        ends[execution] = max(end, ends.get(execution, 0))
    marks = ", ".join("?" * len(ends))
    rows = await database.read(
        f"SELECT execution, entry FROM entries WHERE sequence IN ({marks})",  # noqa: S608 - question marks
        tuple(ends.values()),
    )
    last = {execution: _time(data) for execution, data in rows}
    return {execution: EntryCounts(by_kind, last.get(execution)) for execution, by_kind in kinds.items()}


def _time(data: bytes) -> float | None:
    try:
        return decode(data).time / 1e6
    except BridgeError:
        return None  # it was changed, as its proof will show


async def entries(database: Database, execution: str, limit: int = -1) -> list[Recorded]:
    """An execution's entries, in order, even if some can't be read: their payloads say so.

    For people who look for what was changed. Whatever resumes an execution uses the recorder, which refuses.

    Args:
        database: The store.
        execution: The execution.
        limit: How many entries at most; negative for all.
    """
    return await database.run_read(lambda connection: _entries(connection, database.master, execution, limit))


def _entries(connection: sqlite3.Connection, master: MasterKey, execution: str, limit: int) -> list[Recorded]:
    rows = connection.execute(
        "SELECT sequence, kind, entry, sealed, wrapped FROM entries LEFT JOIN payloads USING (sequence)"
        " LEFT JOIN data_keys USING (execution) WHERE execution = ? ORDER BY sequence LIMIT ?",
        (execution, limit),
    ).fetchall()
    rows_read: list[Recorded] = []
    pieces: Pieces | None = None
    for number, (sequence, kind, data, sealed, wrapped) in enumerate(rows):
        leaf: Leaf | None = None
        try:
            if number == 0 and wrapped is not None:
                pieces = pieces_of(connection, execution, master.open(execution, wrapped))
            leaf = decode(data)
            payload = payload_of(leaf, sealed, pieces)
            rows_read.append(recorded(leaf, None if payload is None else payload.value()))
        except BridgeError as exc:
            content = Damaged(exc.message).encode()
            when = leaf.time / 1e6 if leaf else rows_read[-1].time if rows_read else 0.0
            rows_read.append(Recorded(sequence, when, Entry(kind, execution, content, leaf.step if leaf else None)))
    return rows_read


async def version(database: Database) -> int:
    """A number that changes whenever any process has written."""
    rows = await database.read("PRAGMA data_version")
    number: int = rows[0][0]
    return number
