"""What principals have used, in rows beside the log: kept across restarts and erasures.

The entries alone would not do: an erased execution's can't be read any more, and reading all of them at each start
would take longer with every call that was ever made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mcp_bridge.ledger.log.transaction import check_row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.ledger.storage.database import Database

Kind = Literal["calls", "bytes", "model_tokens", "model_cost_usd"]

KINDS: tuple[Kind, ...] = ("calls", "bytes", "model_tokens", "model_cost_usd")
"""The columns, after the principal's name. Costs are in billionths of a dollar."""


class UsageStore:
    """The rows of principals' usage.

    Args:
        database: Has them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> dict[str, dict[str, int]]:
        """What each principal has used, over all bridges and restarts.

        Raises:
            BridgeError: `ledger_damaged`.
        """
        rows = await self._database.read("SELECT * FROM usages")
        for row in rows:
            check_row(self._database.master, "usages", row)
        return {row[0]: dict(zip(KINDS, row[1:-1], strict=True)) for row in rows}

    def add(self, principal: str, more: Mapping[Kind, int]) -> None:
        """Add to a principal's usage, durable with whatever is recorded next.

        Raises:
            BridgeError: As `Database.post`.
        """
        self._database.post(
            "INSERT INTO usages (principal, calls, bytes, model_tokens, model_cost_usd) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (principal) DO UPDATE SET calls = calls + excluded.calls, bytes = bytes + excluded.bytes,"
            " model_tokens = model_tokens + excluded.model_tokens,"
            " model_cost_usd = model_cost_usd + excluded.model_cost_usd",
            (principal, *(more.get(kind, 0) for kind in KINDS)),
            ("usages", "principal = ?", (principal,)),
        )
