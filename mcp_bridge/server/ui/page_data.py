"""The data of the viewer's pages as JSON: untrusted text is passed as text, with bounded length."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mcp_bridge.escaping import escape_name
from mcp_bridge.executions.scripts.record import was_run_dry
from mcp_bridge.executions.sessions.cell import Cell
from mcp_bridge.executions.sessions.sessions import left_by
from mcp_bridge.executions.status import effective_status
from mcp_bridge.sandbox.languages import SHOWN
from mcp_bridge.views.overview import ENDED, language_of, name_of, progress, record_of, source_of
from mcp_bridge.views.timeline import OPEN, totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.executions.approvals import ApprovalRequest
    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.ledger.audit.execution_queries import EntryCounts
    from mcp_bridge.ledger.audit.viewer_proofs import Evidence
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.ledger.storage.execution_store import StoredExecution
    from mcp_bridge.views.overview import ListedSession
    from mcp_bridge.views.timeline import TimelineRow

MAX_SHOWN_CHARS = 4000
"""Maximum length of a value before all of it is requested."""

MAX_WHOLE_CHARS = 8 << 20

MAX_PRINTED_CHARS = 200_000
"""Maximum length of a result or of output: the whole text is in the file that the agent was told of."""

MAX_NAME_CHARS = 500

MAX_CELL_CHARS = 300
"""Maximum length of the code and of the output of a session's earlier cells."""

MAX_STEPS = 1000
"""Maximum rows of a program's trace."""


def summary(row: StoredExecution, counted: EntryCounts) -> dict[str, Any]:
    """An execution's row in the list."""
    status = effective_status(row)
    ended = counted.last if status in ENDED else None
    return {
        "id": row.id,
        "principal": row.principal,
        "kind": row.kind,
        "name": _name(name_of(row)),
        "origin": row.origin,
        "status": status,
        "started": row.started,
        "seconds": None if ended is None else max(0.0, ended - row.started),
        # What is asked of a tool, a model or the bridge itself: which of them, only the sealed payloads say.
        "requests": counted.kinds.get("intent", 0),
        "denials": counted.kinds.get("denial", 0),
        "violations": counted.kinds.get("violation", 0),
        "waiting": [_waiting(waits) for waits in record_of(row)["waiting"][:10]],
    }


def listed_session(listed: ListedSession) -> dict[str, Any]:
    """A session's row in the list; its last cell's page has the cells before."""
    row, origin = listed.row, listed.origin
    place = None if origin is None else Cell.of(origin)
    return row._asdict() | {
        "language": None if listed.language is None else SHOWN.get(listed.language, listed.language),
        "origin": None
        if origin is None
        else {
            "execution": origin.id,
            "name": "" if place is None else place.session,
            "cell": None if place is None else place.number,
        },
    }


_WAITING = ("effect", "step", "kind", "name", "due", "since", "tool", "decided", "execution")


def _waiting(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: row.get(name) for name in _WAITING if name != "execution" or name in row}
    # A program that waits no more.
    return shown | ({"is_over": not row["waiting"]} if "execution" in row else {})


def session(row: StoredExecution, before: Sequence[StoredExecution]) -> dict[str, Any] | None:
    """What the page of a session's cell says of the session; None for other executions.

    Args:
        row: The cell.
        before: The cells before it, the last first.
    """
    place = Cell.of(row)
    if place is None:
        return None
    of_record = (row.record or {}).get("session", {})
    return {
        "name": place.session,
        "cell": place.number,
        "rebuilt": of_record.get("rebuilt", 0),
        "interrupted": bool(of_record.get("interrupted")),
        "before": [_cell(each) for each in reversed(before)],
    }


def _cell(row: StoredExecution) -> dict[str, Any]:
    place, record = Cell.of(row), row.record or {}
    shown = record.get("value") or record.get("stdout") or (record.get("error") or {}).get("message")
    return {
        "id": row.id,
        "cell": None if place is None else place.number,
        "status": effective_status(row),
        "rebuilt": record.get("session", {}).get("rebuilt", 0),
        "left": left_by(row),
        "source": clipped(source_of(row), MAX_CELL_CHARS),
        "output": clipped(shown, MAX_CELL_CHARS),
    }


def execution(
    row: StoredExecution,
    entries: Sequence[Recorded],
    rows: Sequence[TimelineRow],
    counted: EntryCounts,
    before: Sequence[StoredExecution] = (),
    *,
    left_behind: bool = False,
) -> dict[str, Any]:
    """An execution's page without its timeline.

    Args:
        row: The execution.
        entries: Its entries.
        rows: Its timeline.
        counted: How many it has of each kind.
        before: Of a session's cell, the cells before it, the last first.
        left_behind: Whether it is a cell that its session has left behind.
    """
    record = record_of(row)
    steps = list(progress(row, entries).steps)
    return summary(row, counted) | {
        "key": row.key,
        "program_hash": row.program if row.kind == "program" else "",
        "session": session(row, before),
        "left_behind": left_behind,
        "unresolved": [{"step": one["step"], "tool": one["tool"]} for one in record.get("unresolved", ())],
        "dry_run": was_run_dry(row, effective_status(row)),
        "totals": asdict(totals(rows)),
        "steps": [_step(step) for step in steps[-MAX_STEPS:]],
        "steps_left_out": max(0, len(steps) - MAX_STEPS),
        "results": [[label, clipped(record[name], MAX_PRINTED_CHARS)] for name, label in _RESULTS if record.get(name)],
        "error": _error(record),
        "source": clipped(source_of(row), MAX_WHOLE_CHARS),
        "language": None if (language := language_of(row)) is None else SHOWN.get(language, language),
    }


_RESULTS = (
    ("output", "Output"),
    ("stdout", "Printed"),
    ("stderr", "Printed to standard error"),
    ("value", "Value of the last expression"),
)
"""Fields of the records of programs and scripts."""


def _error(record: dict[str, Any]) -> dict[str, Any] | None:
    error = record.get("error")
    if isinstance(error, dict):
        text = error.get("traceback") or error.get("message")
        return {"code": str(error.get("code") or ""), "message": clipped(str(text), MAX_PRINTED_CHARS)}
    return {"code": str(record.get("code") or ""), "message": clipped(str(error), MAX_PRINTED_CHARS)} if error else None


def _step(step: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": step["id"],
        "status": step["status"],
        "retries": step.get("retries", 0),
        "output": clipped(step.get("output")),
        "error": clipped(step.get("error")),
        "code": step.get("code"),
    }


def timeline_page(
    rows: Sequence[TimelineRow], *, offset: int, limit: int, status: str, whole: int | None = None
) -> dict[str, Any]:
    """A page of timeline rows.

    Args:
        rows: All rows of the execution's timeline.
        offset: The index of the first row.
        limit: The maximum number of rows.
        status: The execution's effective status, which says what is with calls without an outcome.
        whole: An entry; if given, only its row is returned, uncut.
    """
    some = rows[offset : offset + limit] if whole is None else [row for row in rows if whole in row.sequences]
    most = MAX_SHOWN_CHARS if whole is None else MAX_WHOLE_CHARS
    return {
        "rows": [_row(row, most, status) for row in some],
        "total": len(rows),
        "entries": len({sequence for row in rows for sequence in row.sequences}),
        "began": rows[0].time if rows else None,
        "ended": max((row.time + (row.seconds or 0) for row in rows), default=None),
    }


def _row(row: TimelineRow, most: int, execution: str) -> dict[str, Any]:
    status = row.status
    if status == OPEN and execution != "running":
        is_wait = row.kind == "request" and row.what.startswith("wait.")
        status = "waiting" if is_wait and execution == "suspended" else "no outcome"
    return {
        "kind": row.kind,
        "sequences": row.sequences,
        "time": row.time,
        "seconds": row.seconds,
        "what": _name(row.what),
        "step": row.step,
        "status": status,
        "given": clipped(row.given, most),
        "value": clipped(row.value, most),
        "error": row.error and {"code": str(row.error["code"]), "message": clipped(str(row.error["message"]), most)},
        "usage": row.usage,
        "erased": row.erased,
        "damaged": row.damaged,
    }


def _name(text: str) -> str:
    return text if len(text) <= MAX_NAME_CHARS else text[: MAX_NAME_CHARS - 1] + "…"


def clipped(value: Any, most: int = MAX_SHOWN_CHARS) -> dict[str, Any] | None:
    """A value as text, possibly cut. Texts are unchanged, everything else is JSON.

    Returns:
        `text`, `cut` (whether its end was cut) and `left_out` (how many characters were cut, in Python's units, which
        differ from JavaScript's). None for None.
    """
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    return {"text": text[:most], "cut": len(text) > most, "left_out": max(0, len(text) - most)}


def proofs(evidence: Evidence) -> dict[str, Any]:
    """Entries with their proofs. Bytes are base64, because they must arrive unchanged."""
    return {
        "checkpoint": evidence.note,
        "vkey": evidence.vkey,
        "proofs": [
            {
                "sequence": entry.sequence,
                "entry": _base64(entry.data),
                "hashes": [_base64(node) for node in entry.hashes],
                "payload": _base64(entry.payload),
                "salt": _base64(entry.salt),
                "fault": entry.fault,
            }
            for entry in evidence.entries
        ],
    }


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def question(row: ApprovalRequest, principal: Principal) -> dict[str, Any]:
    """A question to a person, uncut: what isn't seen must not be approved.

    Args:
        row: The question.
        principal: Who sees it: an approver sees questions of executions that it doesn't see.
    """
    approval, asks = row.approval, row.question
    decision = approval.decision or {}
    is_call = "tool" in asks
    return {
        "id": f"{approval.execution}.{approval.effect}",
        "execution": approval.execution,
        "listed": len(asks["listed"]) if "listed" in asks else None,
        "status": row.status,
        "asked": approval.asked,
        "program": escape_name(str(asks.get("program") or "")),
        "origin": row.execution.origin if row.execution else "",
        "principal": row.execution.principal if row.execution else "",
        "visible": row.execution is not None and (principal.may_see_all or row.execution.principal == principal.name),
        "due": row.due,
        "takes_effect": row.takes_effect,
        "step": escape_name(str(asks.get("step") or "")),
        "tool": escape_name(str(asks["tool"])) if is_call else None,
        **_parts(row),
        "filled": escape_name(", ".join(asks.get("filled") or ())),
        "why": str(asks.get("why") or ""),
        "decided": approval.decided,
        "by": str(decision.get("by") or ""),
        "comment": str(decision.get("comment") or ""),
    }


def _parts(row: ApprovalRequest) -> dict[str, dict[str, Any] | None]:
    """The values that a question is about."""
    asks = row.question
    is_call = "tool" in asks
    return {
        "message": None if is_call else clipped(asks.get("message", ""), MAX_WHOLE_CHARS),
        "details": clipped(asks.get("arguments" if is_call else "details") or None, MAX_WHOLE_CHARS),
        "announced": clipped(asks.get("announced") or None, MAX_WHOLE_CHARS),
    }


def is_uncut(row: ApprovalRequest) -> bool:
    """Whether a question is displayed completely."""
    parts = _parts(row)
    return not any(part["cut"] for part in parts.values() if part is not None)
