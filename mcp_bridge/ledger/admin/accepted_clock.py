"""A clock that was put back, and that a person has accepted as right."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.entry_encoding import LEDGER
from mcp_bridge.ledger.log.log_payloads import AcceptedClock
from mcp_bridge.ledger.log.payloads import to_entry

if TYPE_CHECKING:
    from mcp_bridge.ledger.log.transaction import Transaction
    from mcp_bridge.ledger.storage.database import Database


async def accept_clock(database: Database, by: str) -> float:
    """Take the clock for right although it is behind the last entry; by how many seconds it is.

    Raises:
        BridgeError: `clock_is_right`: it isn't behind.
    """

    def work(transaction: Transaction) -> float:
        now = time.time_ns() // 1000
        behind = (transaction.log.clock.last - now) / 1e6
        if behind <= 0:
            raise BridgeError("clock_is_right", "The clock is not behind the last entry.")
        was = transaction.log.clock.last / 1e6
        transaction.log.clock.accept(now)
        transaction.append(to_entry(AcceptedClock(was, behind, by), LEDGER))
        return behind

    return await database.transact(work)
