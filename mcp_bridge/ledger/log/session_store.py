"""Principals' sessions, in rows beside the log: which execution is the last cell of each.

A session is a chain of executions, each of which names the one before; a row has its end. Names aren't stored in the
clear: a row has the MAC of the name, and the executions have the name.
"""

from __future__ import annotations

import functools
import json
import time
from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge import fair_share
from mcp_bridge.ledger.log.transaction import RowMac, check_row
from mcp_bridge.ledger.storage.cell_chains import read_chain
from mcp_bridge.ledger.storage.schema import ERASED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from mcp_bridge.ledger.storage.cell_chains import ChainedCell
    from mcp_bridge.ledger.storage.database import Database

CELLS_OF_A_READ = 100
"""Most cells that are read at once: what others read waits for that long."""


class SessionHead(NamedTuple):
    """The end of a session.

    Attributes:
        principal: Whose session it is.
        head: The execution that is the last cell.
        changed: When it was started, in seconds since 1970.
    """

    principal: str
    head: str
    changed: float


class SessionStore:
    """The rows of sessions.

    Args:
        database: Has them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def _name(self, principal: str, session: str) -> str:
        return self._database.master.mac("session", principal, session).hex()

    async def head(self, principal: str, session: str) -> str:
        """The execution that is a session's last cell; empty if there is no such session.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        query = "SELECT * FROM sessions WHERE principal = ? AND name = ?"
        for row in await self._database.read(query, (principal, self._name(principal, session))):
            check_row(self._database.master, "sessions", row)
            return str(row[2])
        return ""

    async def heads(self, principal: str | None) -> list[SessionHead]:
        """The sessions of a principal, or of all, the one used last first.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        query = "SELECT * FROM sessions WHERE coalesce(?, principal) = principal ORDER BY changed DESC, name"
        rows = await self._database.read(query, (principal,))
        for row in rows:
            check_row(self._database.master, "sessions", row)
        return [SessionHead(whose, head, changed) for whose, _, head, changed, _ in rows]

    async def heads_of(self, sessions: Collection[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """The executions that are sessions' last cells; without sessions that there aren't, or that can't go on.

        One whose last cell is erased can't.

        Args:
            sessions: Whose they are, and their names.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        names = {self._name(*session): session for session in sessions}
        query = (
            "SELECT * FROM sessions WHERE name IN (SELECT value FROM json_each(?))"
            " AND NOT EXISTS (SELECT 1 FROM executions WHERE id = head AND status = ?)"
        )
        found = {}
        for row in await self._database.read(query, (json.dumps(list(names)), ERASED)):
            check_row(self._database.master, "sessions", row)
            found[names[row[1]]] = str(row[2])
        return found

    async def chain(self, head: str, most: int) -> list[ChainedCell]:
        """As `read_chain`, in parts: other readers come between."""
        master, known = self._database.master, self._database.known_previous
        found: list[ChainedCell] = []
        while head and len(found) < most:
            await fair_share.turn()
            size = min(CELLS_OF_A_READ, most - len(found))
            work = functools.partial(read_chain, master=master, head=head, most=size, known=known)
            part = await self._database.run_read(work)
            found += part
            head = part[-1].previous if len(part) == size else ""
        return found

    def begin_move(self, principal: str, session: str, before: str, head: str) -> Callable[[], Awaitable[bool]]:
        """Make an execution a session's last cell, in the transaction of what was posted last, without waiting.

        An execution that isn't stored, since its key belongs to another, moves nothing.

        Args:
            principal: Whose session it is.
            session: Its name.
            before: The last cell until now; empty for a session that there isn't.
            head: The execution.

        Returns:
            Waits until it is durable; False if the session has gone on meanwhile, or its last cell was erased, and
            nothing was changed.
        """
        name, now = self._name(principal, session), time.time()
        condition = ("sessions", "principal = ? AND name = ?", (principal, name))
        if before:
            changed = self._database.begin_write(
                "UPDATE sessions SET head = ?, changed = ? WHERE principal = ? AND name = ? AND head = ?"
                " AND EXISTS (SELECT 1 FROM executions WHERE id = ?)"
                " AND NOT EXISTS (SELECT 1 FROM executions WHERE id = ? AND status = ?)",
                (head, now, principal, name, before, head, before, ERASED),
                condition,
            )
        else:
            changed = self._database.begin_write(
                "INSERT INTO sessions (principal, name, head, changed, mac) SELECT ?, ?, ?, ?, ?"
                " WHERE EXISTS (SELECT 1 FROM executions WHERE id = ?) ON CONFLICT DO NOTHING",
                (principal, name, head, now, RowMac("sessions"), head),
            )

        async def moved() -> bool:
            return await changed() == 1

        return moved

    async def remove(self, principal: str, head: str) -> bool:
        """Forget a session; False if there is none. Its cells stay, as executions do.

        Args:
            principal: Whose session it is.
            head: Its last cell: under its name there may be another session by now.
        """
        query = "DELETE FROM sessions WHERE principal = ? AND head = ?"
        return bool(await self._database.write(query, (principal, head)))
