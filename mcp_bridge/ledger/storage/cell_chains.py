"""The chains of executions that sessions are: each cell names the one before, and is sealed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.storage.sealed_rows import label_of, open_sealed

if TYPE_CHECKING:
    import sqlite3

    from mcp_bridge.ledger.storage.sealing import MasterKey


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


def read_chain(connection: sqlite3.Connection, master: MasterKey, head: str, most: int) -> list[ChainedCell]:
    """The cells of a session, the last first. Ends with a cell that is erased, which doesn't name the one before.

    Args:
        connection: The store.
        master: Opens cells.
        head: The execution of the last cell.
        most: How many are given.
    """
    found: list[ChainedCell] = []
    while head and len(found) < most and (cell := read_cell(connection, master, head)) is not None:
        found.append(cell)
        head = cell.previous
    return found
