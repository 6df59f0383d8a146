"""What principals have used, in rows beside the log: kept across restarts and erasures.

The entries alone would not do: an erased execution's can't be read any more, and reading all of them at each start
would take longer with every call that was ever made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mcp_bridge.ledger.log.transaction import check_row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

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

    async def used(self, principal: str) -> dict[str, int]:
        """What a principal has used by now, over all bridges and restarts.

        Raises:
            BridgeError: `ledger_damaged`; as `Database.read`.
        """
        rows = await self._database.read("SELECT * FROM usages WHERE principal = ?", (principal,))
        for row in rows:
            check_row(self._database.master, "usages", row)
        return {} if not rows else dict(zip(KINDS, rows[0][1:-1], strict=True))

    def add(self, principal: str, more: Mapping[Kind, int]) -> None:
        """Add to a principal's usage, durable with whatever is recorded next.

        Raises:
            BridgeError: As `Database.post`.
        """
        self._database.post(_ADD, _parameters(principal, more), ("usages", "principal = ?", (principal,)))

    def claim(
        self, principal: str, more: Mapping[Kind, int], limits: Mapping[Kind, int], *, regardless: bool
    ) -> Callable[[], Awaitable[bool]]:
        """As `add`, if the sums exceed none of the limits: in one transaction, however many processes add.

        Args:
            principal: The principal.
            more: The amounts, which by themselves exceed no limit.
            limits: The limits of what is added.
            regardless: Whether they are added in any case.

        Returns:
            A function that waits until that is durable, and says whether no limit is exceeded. It raises as
            `Database.flush`.

        Raises:
            BridgeError: As `Database.post`.
        """
        parameters = _parameters(principal, more)
        changed = self._database.begin_write(
            _CLAIM,
            (*parameters, *(min(limits.get(kind, _NO_LIMIT), _NO_LIMIT) for kind in KINDS)),
            ("usages", "principal = ?", (principal,)),
            otherwise=[(_ADD, parameters)] if regardless else (),
        )

        async def is_within() -> bool:
            return await changed() == 1

        return is_within


def _parameters(principal: str, more: Mapping[Kind, int]) -> tuple[str | int, ...]:
    return (principal, *(more.get(kind, 0) for kind in KINDS))


_NO_LIMIT = 2**63 - 1

_ADD = (
    "INSERT INTO usages (principal, calls, bytes, model_tokens, model_cost_usd) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (principal) DO UPDATE SET calls = calls + excluded.calls, bytes = bytes + excluded.bytes,"
    " model_tokens = model_tokens + excluded.model_tokens,"
    " model_cost_usd = model_cost_usd + excluded.model_cost_usd"
)

_CLAIM = _ADD + (
    " WHERE calls + excluded.calls <= ? AND bytes + excluded.bytes <= ?"
    " AND model_tokens + excluded.model_tokens <= ? AND model_cost_usd + excluded.model_cost_usd <= ?"
)
