"""The cells that sessions are rebuilt from, which limits of age and size leave as long as their session may continue.

Only a session's row says which execution is its last cell, and only a cell says which one was before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge.ledger.storage.cell_chains import read_cell
from mcp_bridge.ledger.storage.schema import ERASED

if TYPE_CHECKING:
    import sqlite3

    from mcp_bridge.ledger.storage.database import Database

CELLS_A_STEP = 100
"""Cells that are opened before other readers get their turn."""

_HEADS = (
    "SELECT head, max(sessions.changed, executions.changed) AS used, status IN ('running', 'suspended', 'interrupted')"
    " AND key IS NOT NULL AS waits FROM sessions JOIN executions ON id = head WHERE status <> ?"
    " ORDER BY waits DESC, used DESC"
)
"""The last cells of sessions, with when each was used and whether it can still go on. The parameter is ERASED."""

_SIZE = (
    "SELECT (SELECT coalesce(sum(size), 0) FROM pieces WHERE pieces.execution = executions.id)"
    " + coalesce(length(bundle), 0) + coalesce(length(record), 0) FROM executions WHERE id = ?"
)


class _Cell(NamedTuple):
    """A cell.

    Attributes:
        previous: The execution that is the cell before; empty for a first one, or if that isn't known any more.
        size: About how many bytes are kept of it.
    """

    previous: str
    size: int


class SessionCells:
    """The cells of listed sessions. Of one that waits all are kept, and of one that doesn't those within limits.

    Args:
        database: The store.
        since: A session that was last used before isn't kept; in seconds since 1970.
        most: Sessions whose cells have more bytes than this, together with those that are kept already, aren't kept.
            Those that wait come first, and then those used last.
    """

    def __init__(self, database: Database, *, since: float = 0.0, most: float = float("inf")) -> None:
        self._database = database
        self._since = since
        self._most = most
        self._cells: dict[str, _Cell] = {}

    async def read(self) -> None:
        """Read the cells, some at a time: `kept` then only has to read those that came since.

        Raises:
            BridgeError: As `Database.run_read`.
        """
        while not await self._database.run_read(self._read_some):
            pass

    def _read_some(self, connection: sqlite3.Connection) -> bool:
        """Read some cells; whether that were all."""
        most = len(self._cells) + CELLS_A_STEP
        for head, _, _ in self._heads(connection):
            cell = head
            while cell:
                if len(self._cells) >= most:
                    return False
                cell = self._cell(connection, cell).previous
        return True

    def kept(self, connection: sqlite3.Connection) -> set[str]:
        """The executions to be kept.

        Args:
            connection: The store. In a transaction, no session goes on meanwhile.
        """
        found: set[str] = set()
        left = self._most
        for head, _, _ in self._heads(connection):
            cells: dict[str, int] = {}
            cell = head
            # A fork has cells of its origin.
            while cell and cell not in found:
                known = self._cell(connection, cell)
                cells[cell] = known.size
                cell = known.previous
            size = sum(cells.values())
            if size <= left:
                left -= size
                found.update(cells)
        return found

    def _heads(self, connection: sqlite3.Connection) -> list[tuple[str, float, int]]:
        rows = connection.execute(_HEADS, (ERASED,)).fetchall()
        return [(head, used, waits) for head, used, waits in rows if waits or used >= self._since]

    def _cell(self, connection: sqlite3.Connection, execution: str) -> _Cell:
        if execution not in self._cells:
            self._cells[execution] = self._open(connection, execution)
        return self._cells[execution]

    def _open(self, connection: sqlite3.Connection, execution: str) -> _Cell:
        found = read_cell(connection, self._database.master, execution)
        if found is None:
            return _Cell("", 0)
        return _Cell(found.previous, connection.execute(_SIZE, (execution,)).fetchone()[0])
