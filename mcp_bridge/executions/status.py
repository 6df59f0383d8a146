"""The status of a durable execution: as it is kept, as it is now, and the errors for one that is another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.storage.schema import ERASED
from mcp_bridge.sandbox.ownership import Owner

if TYPE_CHECKING:
    from mcp_bridge.ledger.storage.execution_store import StoredExecution

RESUMABLE = frozenset({"suspended", "interrupted"})
"""Statuses of an execution that nobody works on, and that can go on or be cancelled."""

UNFINISHED = RESUMABLE | {"running"}


def effective_status(stored: StoredExecution) -> str:
    """The status as it is now: a running execution whose process has died is `interrupted`."""
    lost = stored.status == "running" and not is_under_way(stored.status, stored.owner, is_held=stored.is_held)
    return "interrupted" if lost else stored.status


def is_under_way(status: str, owner: str, *, is_held: bool) -> bool:
    """Whether a process works on an execution.

    Args:
        status: The execution's kept status.
        owner: The process, as the execution's row names it.
        is_held: Whether a process of that name uses the store, or nobody can tell.
    """
    known = Owner.parse(owner)
    if status != "running" or known is None:
        return status == "running"
    # A process of another namespace can't be looked up; its lock can.
    return not known.is_orphaned() if known.is_of_this_host() else is_held


def refuse_erased(stored: StoredExecution) -> None:
    """An execution whose data is gone can't go on, and nothing can be decided about it.

    Raises:
        BridgeError: `erased`.
    """
    if stored.status == ERASED:
        raise BridgeError(
            "erased",
            f"The execution {stored.id} is erased: that it was there is all that is kept.",
            execution=stored.id,
        )


def not_suspended(execution: str, why: str, hint: str | None = None) -> BridgeError:
    """The error for an execution that can't go on, or that can't be changed, as it stands.

    Args:
        execution: Its id.
        why: Its status, or a clause.
        hint: What to do; by default, where to look.
    """
    hint = hint or f"mcp-bridge execution show {execution} has how it stands."
    return BridgeError("not_suspended", f"The execution {execution} is not suspended: {why}.", hint=hint)


def require_resumable(stored: StoredExecution) -> str:
    """The effective status of an execution that can go on or be changed by hand.

    Raises:
        BridgeError: `not_suspended`.
    """
    status = effective_status(stored)
    if status not in RESUMABLE:
        raise not_suspended(stored.id, status)
    return status
