"""The chains of executions that sessions are: each cell names the one before, and is sealed.

So only a cell that can be read says what it followed. What is erased with a cell is found by rows of `holders`, in
which each cell holds data of the one before; those that earlier versions have left out are added here, once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.transaction import row_mac
from mcp_bridge.ledger.storage.blind_indexes import held_execution_mac
from mcp_bridge.ledger.storage.schema import CELLS_LINKED
from mcp_bridge.ledger.storage.sealed_rows import label_of, open_sealed

if TYPE_CHECKING:
    import sqlite3

    from mcp_bridge.ledger.log.log import Log
    from mcp_bridge.ledger.storage.sealing import MasterKey


MAX_KNOWN_CELLS = 20_000
"""Cells of which it is kept which one is before."""


class KnownPrevious:
    """Which cell is before another, which never changes: those asked for last. Used by several threads."""

    def __init__(self, most: int = MAX_KNOWN_CELLS) -> None:
        self._most = most
        self._known: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, execution: str) -> str | None:
        """The execution that is the cell before; None if that isn't known."""
        with self._lock:
            if execution not in self._known:
                return None
            self._known.move_to_end(execution)
            return self._known[execution]

    def put(self, execution: str, previous: str) -> None:
        """Keep it."""
        with self._lock:
            self._known[execution] = previous
            self._known.move_to_end(execution)
            if len(self._known) > self._most:
                self._known.popitem(last=False)


class ChainedCell(NamedTuple):
    """A cell, without what it did. Its row's MAC isn't checked, which would take all of the row.

    Attributes:
        execution: Its execution.
        previous: The execution that is the cell before; empty for a first one, or if that isn't known any more.
        status: The execution's status.
        has_request: Whether the execution has the MAC of its request, which goes when a value of it is erased.
    """

    execution: str
    previous: str
    status: str
    has_request: bool


def read_cell(connection: sqlite3.Connection, master: MasterKey, execution: str) -> ChainedCell | None:
    """A cell; None if there is no such execution."""
    row = connection.execute(
        "SELECT bundle, wrapped, status, request FROM executions JOIN data_keys ON execution = id WHERE id = ?",
        (execution,),
    ).fetchone()
    if row is None:
        return None
    bundle, wrapped, status, request = row
    try:
        key = None if wrapped is None else master.open(execution, wrapped)
        opened = open_sealed(key, bundle, label_of(execution, "bundle"))
    except BridgeError:
        # What is damaged is told where it is read as a whole.
        opened = None
    place = None if opened is None else opened["bundle"].get("cell")
    return ChainedCell(execution, "" if place is None else place["previous"], status, bool(request))


def link_cells(connection: sqlite3.Connection, log: Log) -> None:
    """Note, in a write transaction, that each cell of an earlier version holds data of the one before. Done once.

    Which cell an erased one has followed isn't known any more.

    Args:
        connection: To the file.
        log: The end of its log.
    """
    do, master = connection.execute, log.master
    if do("SELECT 1 FROM meta WHERE name = ?", (CELLS_LINKED,)).fetchone() is not None:
        return
    log.begin(connection)
    do("INSERT INTO meta VALUES (?, '')", (CELLS_LINKED,))
    scripts = "SELECT id FROM executions JOIN data_keys ON execution = id WHERE kind = 'script' AND wrapped IS NOT NULL"
    for (execution,) in do(scripts).fetchall():
        cell = read_cell(connection, master, execution)
        if cell is not None and cell.previous:
            name = held_execution_mac(master, cell.previous)
            do(
                "INSERT INTO holders (holder, subject, mac) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (execution, name, row_mac(master, "holders", (execution, name))),
            )
    log.finish(connection)


def read_chain(
    connection: sqlite3.Connection, master: MasterKey, head: str, most: int, known: KnownPrevious
) -> list[ChainedCell]:
    """The cells of a session, the last first. Ends with a cell that is erased, which doesn't name the one before.

    Args:
        connection: The store.
        master: Opens cells.
        head: The execution of the last cell.
        most: How many are given.
        known: Cells that need not be opened.
    """
    found: list[ChainedCell] = []
    while head and len(found) < most:
        cell = _known_cell(connection, head, known) or read_cell(connection, master, head)
        if cell is None:
            break
        if cell.previous:
            known.put(head, cell.previous)
        found.append(cell)
        head = cell.previous
    return found


def _known_cell(connection: sqlite3.Connection, execution: str, known: KnownPrevious) -> ChainedCell | None:
    """A cell of which it is known which one is before; None if it isn't, or if the cell has lost its key meanwhile."""
    previous = known.get(execution)
    if previous is None:
        return None
    row = connection.execute(
        "SELECT status, request FROM executions JOIN data_keys ON execution = id WHERE id = ? AND wrapped IS NOT NULL",
        (execution,),
    ).fetchone()
    return None if row is None else ChainedCell(execution, previous, row[0], bool(row[1]))
