"""The executions that a principal may see: found, listed, and each with how far it has come.

Nothing here gives anything of another principal: what isn't this one's is unknown.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.approvals import requests_to, with_decisions
from mcp_bridge.executions.programs.recovery import apply_recorded
from mcp_bridge.executions.record import Status as ScriptStatus
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.sessions.cell import Cell
from mcp_bridge.executions.sessions.cell_placement import reason_never_resumed
from mcp_bridge.executions.sessions.sessions import MAX_CELLS_LOOKED, chain, session_rows
from mcp_bridge.executions.status import RESUMABLE, effective_status
from mcp_bridge.executions.trace_record import to_record
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.kernel import state
from mcp_bridge.kernel.events import Status as ProgramStatus
from mcp_bridge.kernel.language import program_parser as programs
from mcp_bridge.ledger.audit import execution_queries
from mcp_bridge.ledger.log.entries import TOMBSTONE
from mcp_bridge.ledger.log.payloads import ScriptStart, start_of
from mcp_bridge.ledger.log.session_store import SessionStore
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import ERASED
from mcp_bridge.views.timeline import as_sent, timeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.executions.approvals import ApprovalRequest
    from mcp_bridge.executions.sessions.sessions import SessionRow
    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.ledger.audit.execution_queries import EntryCounts
    from mcp_bridge.ledger.audit.viewer_proofs import Evidence
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.ledger.storage.execution_store import StoredExecution
    from mcp_bridge.policy.secrets.known_values import Scalar
    from mcp_bridge.sandbox.languages import Language
    from mcp_bridge.views.timeline import TimelineRow

MAX_SEARCHED = 1000
"""Executions that one search looks at; the next goes on from there."""

_BATCH = 100

_FAILURES = (frozenset(get_args(ProgramStatus)) | frozenset(get_args(ScriptStatus))) - {
    "running",
    "suspended",
    "success",
    "cancelled",
}

STATUSES: Mapping[str, frozenset[str]] = {
    "running": frozenset({"running"}),
    "suspended": frozenset({"suspended"}),
    # One whose process has died is still down as running.
    "interrupted": frozenset({"interrupted", "running"}),
    "success": frozenset({"success"}),
    "failed": _FAILURES,
    "cancelled": frozenset({"cancelled"}),
    ERASED: frozenset({ERASED}),
}
"""What can be asked for, and how it is kept: a script fails in more ways than one."""

ENDED = _FAILURES | {"success", "cancelled", ERASED}


@dataclass(frozen=True, slots=True)
class Asking:
    """Which executions somebody wants to see.

    Attributes:
        words: Each is in the id's beginning, or in the name, the tools, the code, the principal or the session.
        statuses: One of these, of STATUSES; any without some.
        kinds: `script` or `program`; any without some.
        since: Began then or later, in seconds since 1970.
    """

    words: tuple[str, ...] = ()
    statuses: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    since: float | None = None

    def wants(self, row: StoredExecution) -> bool:
        """Whether an execution is among them."""
        if self.kinds and row.kind not in self.kinds:
            return False
        status = effective_status(row)
        if self.statuses and not any(
            status == asked or status in STATUSES[asked] - {"running"} for asked in self.statuses
        ):
            return False
        text = searched_text(row) if self.words else ""
        return all(row.id.startswith(word) or word in text for word in self.words)


@dataclass(frozen=True, slots=True)
class Page:
    """Some executions, the latest first.

    Attributes:
        rows: They, each with its entries counted.
        before: Where the next page begins; None after the last one.
        searched: Executions that were looked at for them.
    """

    rows: list[tuple[StoredExecution, EntryCounts]] = field(default_factory=list)
    before: tuple[float, str] | None = None
    searched: int = 0


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session in a list.

    Attributes:
        row: The session, whose name is as it was recorded.
        language: What its cells are written in; None if its last cell is erased.
        origin: The cell that it was forked from, as it was recorded; None if it is no fork, or if that isn't known.
    """

    row: SessionRow
    language: Language | None
    origin: StoredExecution | None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an execution of a program has come.

    Attributes:
        steps: Rows of the machine's trace.
        waiting: Paths of the steps under way.
    """

    steps: Sequence[dict[str, Any]] = ()
    waiting: Sequence[str] = ()


class _Looked(NamedTuple):
    """What was read last.

    Attributes:
        at: Of which execution, and at which version of the store.
        entries: Its entries.
        rows: Its timeline.
    """

    at: tuple[str, int] | None
    entries: list[Recorded]
    rows: list[TimelineRow]


def _laid_out(at: tuple[str, int], read: Sequence[Recorded], values: Mapping[str, Scalar | None]) -> _Looked:
    entries = as_sent(read, values)
    return _Looked(at, entries, timeline(entries))


class Overview:
    """The executions that one principal may see.

    Args:
        database: Has them.
        principal: Who looks: one that may see all sees those of all principals, another its own.
    """

    def __init__(self, database: Database, principal: Principal) -> None:
        self.store = ProgramStore(database)
        self.database = database
        self.principal = principal
        self._whose = None if principal.may_see_all else principal.name
        self._looked = _Looked(None, [], [])
        self._origins: dict[str, str] = {}

    async def page(self, asking: Asking, before: tuple[float, str] | None, limit: int) -> Page:
        """Executions that somebody wants to see.

        Args:
            asking: Which.
            before: A page's, for the next one.
            limit: At most so many.
        """
        statuses = sorted(set[str]().union(*(STATUSES[status] for status in asking.statuses)))
        rows: list[StoredExecution] = []
        searched = 0
        more = True
        while more and len(rows) < limit and searched < MAX_SEARCHED:
            found = await execution_queries.newest(
                self.database, self._whose, _BATCH, statuses=statuses, since=asking.since, before=before
            )
            more = len(found) == _BATCH
            for ident, started in found:
                if len(rows) == limit:
                    more = True
                    break
                searched, before = searched + 1, (started, ident)
                row = await self.store.execution(ident)
                if row is not None and asking.wants(row := await self.as_recorded(row)):
                    rows.append(row)
        counted = await execution_queries.counts(self.database, [row.id for row in rows])
        return Page(
            [(await self.with_decisions(row), counted[row.id]) for row in rows], before if more else None, searched
        )

    async def execution(self, ident: str) -> StoredExecution:
        """An execution that this principal may see.

        Raises:
            BridgeError: `unknown_trace`.
        """
        found = await self.store.execution(ident, self._whose)
        if found is None:
            raise BridgeError("unknown_trace", "There is no such execution.")
        return await self.as_recorded(found)

    async def with_decisions(self, row: StoredExecution) -> StoredExecution:
        """An execution with what a person has decided of what it waits for."""
        waiting = record_of(row)["waiting"]
        if not row.record or not waiting:
            return row
        now = await with_decisions(self.store, row.id, waiting)
        return dataclasses.replace(row, record={**row.record, "waiting": now})

    async def is_left_behind(self, row: StoredExecution) -> bool:
        """Whether an unfinished cell can't be resumed any more, since its session has ended or continued without it."""
        if row.kind != "script" or effective_status(row) not in RESUMABLE:
            return False
        # As it was stored: what is shown of its session is projected.
        stored = await self.store.execution(row.id, row.principal)
        try:
            history = await anyio.to_thread.run_sync(CallHistory, await self.entries(row))
        except BridgeError:
            # Its timeline says what is damaged.
            return False
        heads = SessionStore(self.database)
        return stored is not None and await reason_never_resumed(heads, stored, history) is not None

    async def as_recorded(self, row: StoredExecution) -> StoredExecution:
        """A script with its code and session as recorded: projected, as what is kept to be run again isn't."""
        if row.kind != "script" or not row.bundle:
            return row
        start = start_of(await execution_queries.entries(self.database, row.id, limit=1))
        shown: dict[str, Any] = {"code": ""}
        if isinstance(start, ScriptStart):
            shown = {"code": start.code, "language": start.language or "python"}
            if (cell := start.cell) is not None:
                shown["cell"] = Cell(cell.session, cell.number, cell.previous or "", cell.seed).to_bundle()
        return dataclasses.replace(row, bundle=shown)

    async def sessions(self, *, can_rebuild: bool) -> list[ListedSession]:
        """The sessions that the principal may see, the one used last first.

        Args:
            can_rebuild: Whether sessions are rebuilt.
        """
        rows = await session_rows(self.store, SessionStore(self.database), self._whose, can_rebuild=can_rebuild)
        listed = []
        origins: dict[str, str] = {}
        left = MAX_CELLS_LOOKED
        for row in rows:
            stored = await self.store.execution(row.execution)
            last = None if stored is None else await self.as_recorded(stored)
            place = None if last is None else Cell.of(last)
            found = self._origins.get(row.execution)
            # Those for which nothing is left, at the next look: whole cells are read, in the bridge's own process.
            if found is None and left > 0:
                found, looked = await self._origin(row)
                left -= looked
            if found is not None:
                origins[row.execution] = found
            origin = await self.store.execution(found, self._whose) if found else None
            listed.append(
                ListedSession(
                    row._replace(name="" if place is None else place.session),
                    None if last is None else language_of(last),
                    None if origin is None else await self.as_recorded(origin),
                )
            )
        self._origins = origins
        return listed

    async def _origin(self, row: SessionRow) -> tuple[str, int]:
        """The execution of the cell that a session was forked from, and how many cells were read to find it.

        It is empty for a session that is no fork, or if it isn't known.
        """
        looked = 0
        async for stored in chain(self.store, row.principal, row.execution, MAX_CELLS_LOOKED):
            looked += 1
            place = Cell.of(stored)
            if place is None:
                # Erased, and with it which session it was of.
                break
            if place.session != row.name:
                return stored.id, looked
            # A session goes on, and where it has begun stays.
            if (known := self._origins.get(stored.id)) is not None:
                return known, looked
        return "", looked

    async def entries(self, execution: StoredExecution) -> list[Recorded]:
        """An execution's entries, in order; those that can't be read say so."""
        return (await self._look(execution)).entries

    async def rows(self, execution: StoredExecution) -> list[TimelineRow]:
        """An execution's timeline."""
        return (await self._look(execution)).rows

    async def _look(self, execution: StoredExecution) -> _Looked:
        # One look of a page asks for it more than once.
        wanted = execution.id, await execution_queries.version(self.database)
        if self._looked.at != wanted:
            read = await execution_queries.entries(self.database, execution.id)
            values = await self.store.values(execution.id)
            # Thousands of entries take a second, in a bridge's own process.
            self._looked = await anyio.to_thread.run_sync(_laid_out, wanted, read, values)
        return self._looked

    async def evidence(self, execution: StoredExecution, sequences: Sequence[int]) -> Evidence:
        """What shows that entries of an execution are in the log; those that aren't its own are left out."""
        from mcp_bridge.ledger.audit.viewer_proofs import gather  # noqa: PLC0415  (for the viewer alone)

        path, master = self.database.path, self.database.master
        return await anyio.to_thread.run_sync(gather, path, master, execution.id, sequences)

    async def questions(self, *, open_only: bool = False) -> list[ApprovalRequest]:
        """The questions to a person that the principal may see, or those that nobody has decided, oldest first."""
        rows = await requests_to(self.store, self.principal, open_only=open_only)
        return [row for row in rows if row.execution is not None]

    async def question(self, execution: str, effect: int) -> ApprovalRequest:
        """A question to a person.

        Raises:
            BridgeError: `unknown_trace`, `unknown_approval`.
        """
        for row in await requests_to(self.store, self.principal, execution):
            if row.approval.effect == effect and row.execution is not None:
                return row
        # An approver sees the questions of executions that it may not see otherwise, and not that these exist.
        if await self.store.execution(execution, self._whose) is None:
            raise BridgeError("unknown_trace", "There is no such execution.")
        raise BridgeError("unknown_approval", "The execution has asked no such question.")


def record_of(row: StoredExecution) -> dict[str, Any]:
    """What is told of an execution; of one that is erased, and of a script's, with no steps."""
    if row.status == ERASED:
        return {"steps": [], "waiting": []}
    record = to_record(row)
    if row.kind == "script":
        # What it has printed, too, and its error with where it happened.
        return {**(row.record or {}), "steps": [], "waiting": record["waiting"]}
    return record


def name_of(row: StoredExecution) -> str:
    """What an execution is called by: its program's name, or the first line of its script that does something."""
    if row.status == ERASED or not row.bundle:
        return TOMBSTONE
    if row.kind == "program":
        return str(record_of(row)["program"])
    lines = [line.strip() for line in str(source_of(row) or "").split("\n") if line.strip()]
    return next((line for line in lines if not line.startswith(_PREAMBLE)), lines[0] if lines else "script")


_PREAMBLE = ("#", "//", "import ", "from ")


def source_of(row: StoredExecution) -> Any:
    """The script's code, or the program; None once it is erased."""
    return row.bundle.get("code" if row.kind == "script" else "program")


def language_of(row: StoredExecution) -> Language | None:
    """What a script is written in, as `Overview.as_recorded` gives it; None for a program, and once it is erased."""
    return row.bundle.get("language") if row.kind == "script" else None


def searched_text(row: StoredExecution) -> str:
    """What a search looks at, in small letters: the name, the tools that a program calls, a script's code and session.

    And whose it is, of others than the one user of a bridge without principals.
    """
    words = [] if row.principal == LOCAL_PRINCIPAL.name else [row.principal]
    if row.kind == "script":
        place = Cell.of(row)
        return "\n".join([*words, str(source_of(row) or ""), *([place.session] if place else [])]).lower()
    words.append(name_of(row))
    stack: list[Any] = [row.bundle]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            words += [str(node[name]) for name in ("name", "tool") if isinstance(node.get(name), str)]
            stack += node.values()
        elif isinstance(node, list):
            stack += node
    return "\n".join(words).lower()


def progress(row: StoredExecution, entries: Sequence[Recorded]) -> Progress:
    """How far an execution has come: as it was left, or, of one under way, as its entries tell."""
    record = record_of(row)
    if row.state is not None and row.status == "running":
        try:
            machine = state.restore(programs.unbundle(row.bundle), row.state)
            apply_recorded(machine, row.state, entries)
        except (BridgeError, ValueError, KeyError, TypeError):
            # It is erased, or of another version: the last stored record must do.
            pass
        else:
            rows = [state.row_json(result) for result in machine.rows]
            return Progress(rows, [effect.step for effect, _ in machine.awaited()])
    return Progress(record["steps"], [waiting["step"] for waiting in record["waiting"]])
