"""Compacting a ledger's file while nobody else uses it: needed for a file of 0.1.0.

A file that a later version has made returns free pages by itself, a few at a time (`erasure.give_back`).
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.erasure.execution_erasure import empty_journal
from mcp_bridge.ledger.storage import live_bridges
from mcp_bridge.ledger.storage.vacuum import FREE_SPACE_FACTOR, vacuum

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_bridge.ledger.log.quota import Measured
    from mcp_bridge.ledger.storage.database import Database


async def compact(database: Database, owner: str) -> tuple[Measured, Measured]:
    """Compact a ledger's file. Gives its size before and after.

    Args:
        database: The ledger.
        owner: This process's label: no other process may use the file meanwhile.

    Raises:
        BridgeError: `ledger_in_use`, `disk_full`: nothing is changed. `erasure_unfinished`, as `empty_journal`.
    """
    if live_bridges.others(database.path.parent, owner):
        raise BridgeError(
            "ledger_in_use",
            f"Other processes use {database.path}, and would wait for longer than they can.",
            hint="End every bridge that uses this state directory, then try again.",
        )
    before = await database.measure()
    require_free(database.path, before.used)
    await database.run_outside_transaction(lambda connection: vacuum(connection, database.path))
    await empty_journal(database)
    return before, await database.measure()


def require_free(path: Path, used: int) -> None:
    """Check that there is room for a file to be compacted.

    Raises:
        BridgeError: `disk_full`.
    """
    free = shutil.disk_usage(path.parent).free
    if free < FREE_SPACE_FACTOR * used:
        raise BridgeError(
            "disk_full",
            f"Rewriting {path} takes {int(FREE_SPACE_FACTOR * used)} bytes for a while, and {free} are free.",
            hint="Make room on the disk, or erase more first.",
        )
