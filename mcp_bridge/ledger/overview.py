"""What a reader of many executions asks the store for: pages of ids, counts of entries, whether anything is new."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mcp_bridge.ledger.database import Database


@dataclass(frozen=True, slots=True)
class Counted:
    """How many entries an execution has.

    Attributes:
        kinds: By their kind.
        last: When the last one was recorded, in seconds since 1970; None without any.
    """

    kinds: dict[str, int] = field(default_factory=dict)
    last: float | None = None

    @property
    def entries(self) -> int:
        """In all."""
        return sum(self.kinds.values())


async def newest(
    database: Database,
    principal: str,
    limit: int,
    *,
    statuses: Collection[str] = (),
    since: float | None = None,
    before: tuple[float, str] | None = None,
) -> list[tuple[str, float]]:
    """Ids of a principal's executions and when they began, the latest first.

    Args:
        database: Has them.
        principal: Whose.
        limit: At most so many.
        statuses: As they are kept; any without some.
        since: Those that began then or later, in seconds since 1970.
        before: Those that come after the one that began then and has this id.
    """
    among = ", ".join("?" * len(statuses)) if statuses else "status"
    began, ident = before or (None, "")
    rows = await database.read(
        f"SELECT id, started FROM executions WHERE principal = ? AND status IN ({among}) AND started >= ?"  # noqa: S608 - question marks
        " AND (? IS NULL OR started < ? OR (started = ? AND id < ?)) ORDER BY started DESC, id DESC LIMIT ?",
        (principal, *statuses, since or 0.0, began, began, began, ident, limit),
    )
    return [(execution, started) for execution, started in rows]


async def counts(database: Database, executions: Sequence[str]) -> dict[str, Counted]:
    """The entries of some executions, counted."""
    marks = ", ".join("?" * len(executions))
    kinds: dict[str, dict[str, int]] = {execution: {} for execution in executions}
    last: dict[str, float] = {}
    for execution, kind, count, when in await database.read(
        f"SELECT execution, kind, count(*), max(time) FROM entries WHERE execution IN ({marks}) GROUP BY 1, 2",  # noqa: S608 - question marks
        executions,
    ):
        kinds[execution][kind] = count
        last[execution] = max(when, last.get(execution, when))
    return {execution: Counted(found, last.get(execution)) for execution, found in kinds.items()}


async def version(database: Database) -> int:
    """A number that is another one when anything has been written since, by whichever process."""
    rows = await database.read("PRAGMA data_version")
    number: int = rows[0][0]
    return number
