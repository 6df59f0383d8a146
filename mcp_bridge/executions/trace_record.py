"""The record of a stored execution of either kind, for `programs.trace`, MCP clients and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.executions.scripts.record import TOOLS, script_fields
from mcp_bridge.executions.status import effective_status
from mcp_bridge.ledger.log.entries import TOMBSTONE
from mcp_bridge.ledger.storage.schema import ERASED

if TYPE_CHECKING:
    from mcp_bridge.ledger.storage.execution_store import StoredExecution


def to_record(stored: StoredExecution) -> dict[str, Any]:
    """The record of an execution as of its last suspension or end; a minimal one before that."""
    status = effective_status(stored)
    if status == ERASED:
        return _bare(stored.id, TOMBSTONE, ERASED) | {"output": TOMBSTONE}
    if stored.kind == "script":
        tool = TOOLS[stored.bundle.get("language", "python")]
        return _bare(stored.id, tool, status) | script_fields(stored, status)
    record = stored.record or _bare(stored.id, stored.bundle["program"].get("name", "unnamed"), status)
    # A resumed execution no longer waits for what its record says.
    return record | {"status": status, "waiting": []} if stored.status == "running" else record


def _bare(execution: str, program: str, status: str) -> dict[str, Any]:
    known = {"trace_id": execution, "program": program, "status": status}
    return known | {"output": None, "error": None, "code": None, "steps": [], "waiting": []}
