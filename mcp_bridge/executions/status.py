"""The status of a durable execution: as stored, as effective now, and the errors for an unsuitable one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.storage.schema import ERASED
from mcp_bridge.sandbox.ownership import Owner

if TYPE_CHECKING:
    from mcp_bridge.ledger.storage.execution_store import StoredExecution

RESUMABLE = frozenset({"suspended", "interrupted"})
"""Statuses of an execution that no process works on, and that can be resumed or cancelled."""

UNFINISHED = RESUMABLE | {"running"}

ENDED_BY_ITSELF = frozenset({"success", "error", "exit"})
"""Statuses of a script that has ended by itself."""


def effective_status(stored: StoredExecution) -> str:
    """The effective status: a running execution whose process has died is `interrupted`."""
    lost = stored.status == "running" and not is_under_way(stored.status, stored.owner, is_held=stored.is_held)
    return "interrupted" if lost else stored.status


def was_given_up(stored: StoredExecution) -> bool:
    """Whether an execution was refused, or ended by an error of the bridge without a key by which it could go on."""
    return stored.status == "refused" or (stored.status == "interrupted" and stored.key is None)


def is_under_way(status: str, owner: str, *, is_held: bool) -> bool:
    """Whether a process works on an execution.

    Args:
        status: The execution's stored status.
        owner: The process that the execution's row names.
        is_held: Whether a process of that name uses the store, or that can't be determined.
    """
    known = Owner.parse(owner)
    if status != "running" or known is None:
        return status == "running"
    # A process of another namespace can't be looked up, but its lock can.
    return not known.is_orphaned() if known.is_of_this_host() else is_held


def refuse_erased(stored: StoredExecution) -> None:
    """Refuse a command about an erased execution.

    Raises:
        BridgeError: `erased`.
    """
    if stored.status == ERASED:
        raise BridgeError(
            "erased",
            f"The execution {stored.id} was erased; only its existence is still recorded.",
            execution=stored.id,
        )


RUNNING_APPROVAL_HINT = (
    "A question that its client shows is answered there; without an answer after ten minutes, "
    "`mcp-bridge approvals list` has it."
)
"""What to do about the questions of an execution that is running."""


def not_suspended(execution: str, why: str, hint: str | None = None) -> BridgeError:
    """The error for an execution whose status allows neither to resume nor to change it.

    Args:
        execution: The execution's id.
        why: Its status, or a clause.
        hint: What to do; by default, where a script and a person see how it stands.
    """
    # An agent reads it too, and has no command line.
    hint = hint or (
        "A script sees how it stands with `traces.get` of the module `mcp`, "
        f"a person with `mcp-bridge execution show {execution}`."
    )
    return BridgeError("not_suspended", f"The execution {execution} is not suspended: {why}.", hint=hint)


def require_resumable(stored: StoredExecution) -> str:
    """The effective status of an execution that can be resumed or changed by a person.

    Raises:
        BridgeError: `not_suspended`.
    """
    status = effective_status(stored)
    if status == "running":
        raise not_suspended(
            stored.id, status, f"Another process runs it: end it there, or wait until it ends. {RUNNING_APPROVAL_HINT}"
        )
    if status not in RESUMABLE:
        raise not_suspended(stored.id, status)
    return status
