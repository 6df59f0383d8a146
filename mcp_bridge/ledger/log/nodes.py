"""The nodes of the log's tree in the file: each is in the row of the last leaf under it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.ledger.proofs.merkle import HASH_BYTES
from mcp_bridge.ledger.storage.sealing import damaged

if TYPE_CHECKING:
    import sqlite3


def read_node(connection: sqlite3.Connection, level: int, index: int) -> bytes:
    """A node of the tree.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    row = connection.execute(
        "SELECT substr(nodes, ?, 32) FROM entries WHERE sequence = ?",
        (HASH_BYTES * level + 1, ((index + 1) << level) - 1),
    ).fetchone()
    if row is None or not isinstance(row[0], bytes) or len(row[0]) != HASH_BYTES:
        raise damaged(f"the entry {((index + 1) << level) - 1} or its hashes are missing")
    node: bytes = row[0]
    return node
