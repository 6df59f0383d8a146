"""The head of a log in the ledger's file: the number of its entries, their root, and the checkpoint that signs both."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge.ledger.storage.sealing import damaged

if TYPE_CHECKING:
    import sqlite3

WRITES = "writes"
"""In the table `meta`, the number of commits that have changed something and appended no entry."""


class Head(NamedTuple):
    """The end of a log, as the ledger's file has it.

    Attributes:
        size: The number of its entries.
        root: The tree's root over them.
        note: The signed checkpoint of these entries.
        vkey: The public key of its signature.
    """

    size: int
    root: bytes
    note: str
    vkey: str


def read_head(connection: sqlite3.Connection) -> Head:
    """The head in the file, which may differ from the one that was signed.

    Raises:
        sqlite3.Error: As SQLite gives it.
        BridgeError: `ledger_damaged`.
    """
    row = connection.execute("SELECT size, root, note, vkey FROM head").fetchone()
    if row is None:
        raise damaged("its head is missing")
    head = Head(*row)
    # A corrupted byte can change the type of a value, whatever the schema says.
    if [type(value) for value in head] != [int, bytes, str, str] or head.size < 0:
        raise damaged("its head is invalid")
    return head


def writes_of(kept: object) -> int:
    """The number of writes in `meta`. A file that was only written by earlier versions has none."""
    return int(kept) if isinstance(kept, str) and kept.isdecimal() and kept.isascii() else 0
