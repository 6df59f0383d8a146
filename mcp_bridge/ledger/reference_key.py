"""The key of references and requests: equal values have equal references, and a key fits what it was given for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger import presence
from mcp_bridge.private_files import KEY_BYTES, private_key, write_private

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from mcp_bridge.ledger.database import Database

FILE_NAME = "references.key"
"""In the state directory."""

_LOST = (
    "Without it idempotency keys fit no request that they were given for, and suspended programs can't be told their"
    " sensitive values. If it is lost for good: mcp-bridge audit rotate-key --references."
)


def is_needed(connection: sqlite3.Connection) -> bool:
    """Whether anything that a ledger holds was made with the key."""
    (found,) = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM executions WHERE key IS NOT NULL)"
        " OR EXISTS (SELECT 1 FROM reference_values WHERE value IS NOT NULL)"
    ).fetchone()
    return bool(found)


async def require(directory: Path, database: Database) -> None:
    """See that the key is there; it is made only if nothing that a ledger holds was made with one.

    Raises:
        BridgeError: `key_missing`, `key_unusable`; as `Database.look`.
    """
    make = not (directory / FILE_NAME).exists() and not await database.look(is_needed)
    private_key(directory / FILE_NAME, _LOST, make=make)


def read(directory: Path) -> bytes:
    """The key, which is made if it isn't there: `require` is asked before, where there may be a ledger that needs it.

    Raises:
        BridgeError: `key_unusable`.
    """
    return private_key(directory / FILE_NAME, _LOST)


def renew(directory: Path, owner: str) -> None:
    """Begin anew with another key, in the place of one that is lost, or that somebody may have read.

    Args:
        directory: The state directory.
        owner: What this process calls itself: nobody else may use the directory meanwhile.

    Raises:
        BridgeError: `ledger_in_use`, `key_unusable`: nothing is changed.
    """
    if presence.others(directory, owner):
        raise BridgeError(
            "ledger_in_use",
            f"Other processes use {directory}, and would go on with the key that they have.",
            hint="End every bridge that uses this state directory, then try again.",
        )
    try:
        write_private(directory / FILE_NAME, os.urandom(KEY_BYTES), durable=True)
    except OSError as exc:
        raise BridgeError("key_unusable", f"{directory / FILE_NAME} can't be made: {exc.strerror}.") from None
