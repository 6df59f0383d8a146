"""The sessions of one principal: which cell comes next, and what the cells before have left.

A session is a chain of script executions, its cells. Each names the one before; a row beside the log has the last.
A cell that has ended by itself is part of the session's namespace, also if it has failed. A cell that was ended from
outside, or that has ended its sandbox, has left nothing: the session goes on from what it was before that cell.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.scripts.settle_or_cancel import cancel_script
from mcp_bridge.executions.sessions.cell import Cell, Turn
from mcp_bridge.executions.status import ENDED_BY_ITSELF, effective_status, was_given_up
from mcp_bridge.ledger.storage.schema import ERASED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.ledger.log.session_store import SessionHead, SessionStore
    from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution

SESSION_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")

POLL_SECONDS = 0.2
"""Interval for checking whether another process has ended a session's cell."""

MAX_CELLS_LOOKED = 2000
"""Cells of a session that are looked at to tell whether it can be rebuilt: as many as a rebuilding looks at by default.
"""


class Sessions:
    """The sessions of one principal.

    Args:
        lifecycle: The lifecycle of executions.
        principal: Whose sessions they are.
        heads: Which cell is the last of each.
        most: How many sessions a principal may have.
        patience: Seconds to wait for a cell that another process runs.
    """

    def __init__(self, lifecycle: Lifecycle, principal: str, heads: SessionStore, most: int, patience: float) -> None:
        self._lifecycle = lifecycle
        self._principal = principal
        self._heads = heads
        self._most = most
        self._patience = patience

    async def turn(self, session: str, fork: str | None = None) -> Turn:
        """The place of the next cell of a session. Waits for a cell that runs.

        Args:
            session: The session's name.
            fork: For a new session, the cell of another one that it goes on from: `name@5`, or `name` for its last.

        Raises:
            BridgeError: `bad_session`; `busy`: another process runs a cell for too long. Of a fork: `unknown_session`,
                `unknown_cell`.
        """
        if not SESSION_NAME.fullmatch(session):
            raise BridgeError(
                "bad_session",
                f"{session!r:.100} can't be the name of a session.",
                hint="Use 1 to 64 letters, digits, dots, hyphens and underscores; not a dot or hyphen first.",
            )
        head = await self._last(session)
        if fork is not None:
            if head is not None and await self._has_begun(head):
                # Perhaps by the same request, whose key has the answer, or whose cell waits.
                exists = BridgeError(
                    "session_exists",
                    f"There is a session {session!r} already, and a fork makes a new one.",
                    hint="Give the fork another name, and leave fork= out in its later calls.",
                )
                return Turn(_place(head).after(head.id), head.id, exists)
            origin = await self.cell(fork)
            place = _place(origin).after(origin.id, session)
            return Turn(place, head.id) if head is not None else Turn(place, "", await self.no_room())
        if head is None:
            return Turn(Cell.first(session), "", await self.no_room())
        place, status = _place(head), effective_status(head)
        if await self._has_done_nothing(head):
            # The next one has its place.
            return Turn(place, head.id)
        blocked = None
        if status == "suspended":
            waits = (head.record or {}).get("error") or {}
            blocked = BridgeError(
                "session_waiting",
                f"The cell {place.number} of the session {session!r} waits. {waits.get('message', '')}".rstrip(),
                hint=f"The same code resumes it. Or: mcp-bridge execution cancel {head.id}, or end the session, "
                f"{ending(session)}.",
                execution=head.id,
            )
        return Turn(place.after(head.id), head.id, blocked)

    async def _has_done_nothing(self, cell: StoredExecution, *also: str) -> bool:
        """Whether a cell was given up (`was_given_up`) before it has asked for anything.

        Args:
            cell: The cell.
            also: Further statuses that count as given up.
        """
        has_ended_so = was_given_up(cell) or effective_status(cell) in also
        return has_ended_so and not CallHistory(await self._lifecycle.recorder.read(cell.id)).calls

    async def _has_begun(self, head: StoredExecution) -> bool:
        """Whether a session has done anything. If not, it may still be made a fork, or another one."""
        # One with a key is interrupted where another is refused: its key would go on with it.
        if not await self._has_done_nothing(head, "interrupted"):
            return True
        place = _place(head)
        before = await self._lifecycle.store.execution(place.previous, self._principal) if place.previous else None
        origin = None if before is None else Cell.of(before)
        return origin is not None and origin.session == place.session

    async def forget_unmade_fork(self, session: str) -> None:
        """Free the name of a fork that was refused before it has done anything."""
        # Not `_last`, which waits: where a cell runs, the session is another request's.
        last = await self._heads.head(self._principal, session)
        head = await self._lifecycle.store.execution(last, self._principal) if last else None
        if head is not None and await self._has_done_nothing(head) and not await self._has_begun(head):
            await self._heads.remove(self._principal, head.id)

    async def no_room(self) -> BridgeError | None:
        """Why there can be no further session; or None."""
        heads = await self._heads.heads(self._principal)
        if len(heads) >= self._most and await self._named(heads) >= self._most:
            return BridgeError(
                "too_many_sessions",
                f"There are {self._most} sessions.",
                hint="End one: await runtime.end_session(name), or mcp-bridge session end NAME.",
            )
        return None

    async def _named(self, heads: Sequence[SessionHead]) -> int:
        """How many sessions have a name by which they could be ended: one whose last cell is erased has none."""
        lasts = [await self._lifecycle.store.execution(row.head, self._principal) for row in heads]
        return sum(last is not None and Cell.of(last) is not None for last in lasts)

    async def _last(self, session: str) -> StoredExecution | None:
        """The last cell of a session, once no process runs it; None if there is no session."""
        with anyio.move_on_after(self._patience):
            while True:
                head = await self._heads.head(self._principal, session)
                if not head:
                    return None
                stored = await self._lifecycle.store.execution(head, self._principal)
                if stored is None or stored.status == ERASED:
                    raise _erased(session, head)
                left = self._lifecycle.under_way(head)
                if left is None and effective_status(stored) != "running":
                    return stored
                await (anyio.sleep(POLL_SECONDS) if left is None else left.wait())
        raise BridgeError(
            "busy", f"Another bridge runs a cell of the session {session!r}.", hint="Try again when it has ended."
        )

    async def cell(self, named: str) -> StoredExecution:
        """A cell of a session: `name@5`, or `name` for the last that has left something.

        Raises:
            BridgeError: `unknown_session`, `unknown_cell`, `session_lost`.
        """
        session, at, text = named.partition("@")
        head = await self._heads.head(self._principal, session) if SESSION_NAME.fullmatch(session) else ""
        if not head:
            raise unknown_session(session)
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0  # noqa: PLR2004
        why, before = "", None
        async for stored in chain(self._lifecycle.store, self._principal, head):
            place, left = Cell.of(stored), left_by(stored)
            if place is None:
                raise BridgeError(
                    "session_lost",
                    f"The session {session!r} can't be forked there: its cell {stored.id} is erased, and with it which"
                    " cells were before.",
                    hint=f"mcp-bridge session show {session} lists the cells that are known. To start over, give "
                    "the new session a name and no fork.",
                )
            if place.number == number if at else left != "nothing":
                if left == "names":
                    return stored
                if not at:
                    # The session has names of it, which a fork from before it would silently be without.
                    earlier = await fork_point(self._lifecycle.store, self._principal, stored)
                    raise SessionLostError(stored, place, why_lost(stored), "", {}, earlier)
                is_lost = left == "lost"
                before = await fork_point(self._lifecycle.store, self._principal, stored)
                why = (
                    f": {why_lost(stored)}" if is_lost else f": it is {effective_status(stored)}, and has left nothing"
                )
                break
        raise BridgeError(
            "unknown_cell",
            f"The session {session!r} has no cell {text or 'that has ended'} to continue from{why}.",
            hint=(f"The last one before it that can be: fork={before!r}. " if before else "")
            + f"mcp-bridge session show {session} lists its cells, and how each has ended.",
        )

    async def are_there(self) -> bool:
        """Whether the principal has any."""
        return bool(await self._heads.heads(self._principal))

    async def listed(self, *, can_rebuild: bool = True) -> list[SessionRow]:
        """As `session_rows`, of the principal."""
        return await session_rows(self._lifecycle.store, self._heads, self._principal, can_rebuild=can_rebuild)

    async def end(self, session: str) -> bool:
        """As `end_session`."""
        return await end_session(self._lifecycle, self._heads, self._principal, session)

    async def end_own(self, cell: str) -> bool:
        """Forget the session of a cell that runs; False if it has ended, whatever has its name by now.

        Args:
            cell: The cell's execution.
        """
        return await self._heads.remove(self._principal, cell)


async def end_session(lifecycle: Lifecycle, heads: SessionStore, principal: str, session: str) -> bool:
    """Forget a session; False if there is none. Its cells stay in the ledger; one that waits is cancelled.

    Args:
        lifecycle: The lifecycle of executions.
        heads: Which cell is the last of each session.
        principal: Whose session it is.
        session: Its name; or its last cell, since nobody knows its name once that is erased.
    """
    head = await heads.head(principal, session) or session
    while not await heads.remove(principal, head):
        now = await heads.head(principal, session)
        if not await _is_same(lifecycle.store, principal, session, head, now):
            # It has ended meanwhile. What has its name by now is another.
            return head != session
        head = now
    stored = await lifecycle.store.execution(head, principal)
    if stored is not None:
        await cancel_waiting_cell(lifecycle, stored)
    return True


async def _is_same(store: ProgramStore, principal: str, session: str, before: str, head: str) -> bool:
    """Whether a session that has a last cell now is the one that had another last cell before.

    A fork has its origin's seed, so it is the same only if it goes on from that cell, or has the place of one that was
    refused.
    """
    known = await store.execution(before, principal) if before else None
    was = None if known is None else Cell.of(known)
    if known is None or was is None:
        return False
    async for stored in chain(store, principal, head):
        place = Cell.of(stored)
        if stored.id == before or place is None or place.session != session or place.number < was.number:
            return stored.id == before
        if place == was:
            return effective_status(known) == "refused"
    return False


async def ended_sessions(
    store: ProgramStore, heads: SessionStore, known: Mapping[tuple[str, str], str]
) -> list[tuple[str, str]]:
    """Those of some sessions that have ended, or have gone on elsewhere by more than a cell.

    Args:
        store: The executions.
        heads: Which cell is the last of each.
        known: Whose each is and its name, with the execution that was its last cell.

    Raises:
        BridgeError: `ledger_damaged`.
    """
    now = await heads.heads_of(known)
    found = []
    for session, last in known.items():
        if (head := now.get(session)) == last:
            continue
        stored = await store.execution(head, session[0]) if head else None
        place = None if stored is None else Cell.of(stored)
        # One that goes on from that cell may have been refused: the next one has its place.
        if place is None or place.previous != last:
            found.append(session)
    return found


async def cancel_waiting_cell(lifecycle: Lifecycle, stored: StoredExecution) -> None:
    """Cancel a cell that waits, and never goes on: its session has ended.

    One with a call in doubt is left for a person who knows what became of that.
    """
    if stored.status == "suspended" and not ((stored.record or {}).get("error") or {}).get("calls"):
        # Somebody may have just gone on with it.
        with suppress(BridgeError):
            await cancel_script(lifecycle, stored, "its session has ended")


State: TypeAlias = Literal["running", "waiting", "lost", "idle"]


class SessionRow(NamedTuple):
    """A session in a list.

    Attributes:
        name: Its name; empty if its last cell is erased, which alone had it.
        principal: Whose it is.
        cells: The number of its last cell.
        state: `running`: a cell runs; `lost`: by the record it can't be rebuilt, so that the next cell is refused where
            no sandbox has it; `waiting`: its last cell waits; `idle`: the next cell can run.
        execution: Its last cell.
        changed: When that began, in seconds since 1970.
    """

    name: str
    principal: str
    cells: int
    state: State
    execution: str
    changed: float


async def session_rows(
    store: ProgramStore, heads: SessionStore, principal: str | None, *, can_rebuild: bool = True
) -> list[SessionRow]:
    """The sessions of a principal, or of all, the one used last first.

    Args:
        store: The executions.
        heads: Which cell is the last of each.
        principal: The principal; None for all.
        can_rebuild: Whether sessions are rebuilt.
    """
    rows = []
    async for head, place, stored in named_sessions(store, heads, principal):
        state: State = "lost"
        if stored is not None and place is not None:
            state = await _state(store, heads, stored, can_rebuild=can_rebuild)
        name, cells = ("", 0) if place is None else (place.session, place.number)
        rows.append(SessionRow(name, head.principal, cells, state, head.head, head.changed))
    return rows


async def named_sessions(
    store: ProgramStore, heads: SessionStore, principal: str | None
) -> AsyncIterator[tuple[SessionHead, Cell | None, StoredExecution | None]]:
    """The sessions of a principal, or of all, the one used last first: each with its last cell, if that is there."""
    for head in await heads.heads(principal):
        stored = await store.execution(head.head)
        yield head, None if stored is None else Cell.of(stored), stored


async def _state(store: ProgramStore, heads: SessionStore, head: StoredExecution, *, can_rebuild: bool) -> State:
    status = effective_status(head)
    if status == "running":
        return "running"
    if ((head.record or {}).get("error") or {}).get("code") == "session_lost":
        # It was tried.
        return "lost"
    cells = await heads.chain(head.id, MAX_CELLS_LOOKED)
    if not can_rebuild and any(cell.status in ENDED_BY_ITSELF for cell in cells):
        return "lost"
    for cell in cells:
        # Whether it is lost is in its row alone, or else in the record, which may be large.
        if cell.status == ERASED:
            return "lost"
        if cell.status == "timeout" or (cell.status in ENDED_BY_ITSELF and not cell.has_request):
            stored = await store.execution(cell.execution)
            if stored is not None and left_by(stored) == "lost":
                return "lost"
    return "waiting" if status == "suspended" else "idle"


def unknown_session(session: str) -> BridgeError:
    """The error for a session that there isn't."""
    return BridgeError(
        "unknown_session",
        f"There is no session {session!r:.100}.",
        hint="await runtime.sessions(), or mcp-bridge session list, has those that there are.",
    )


def left_by(stored: StoredExecution) -> Literal["names", "nothing", "lost"]:
    """What a cell has left in its session: names; nothing; or what can't be had again."""
    record = stored.record or {}
    if stored.status == ERASED or record.get("session", {}).get("interrupted"):
        return "lost"
    if stored.status not in ENDED_BY_ITSELF or (record.get("error") or {}).get("code") in {
        "divergence",
        "input_changed",
    }:
        return "nothing"
    # Emptied where a value is erased: its code, or what its calls gave, isn't what it was.
    return "names" if stored.request else "lost"


def why_lost(stored: StoredExecution) -> str:
    """Why what a cell has left can't be had again: a clause."""
    if stored.status == ERASED:
        return "it is erased"
    if not (stored.record or {}).get("session", {}).get("interrupted"):
        return "a value of it is erased"
    return "it was interrupted when its time was up, and what it had done by then can't be done again"


class SessionLostError(BridgeError):
    """A cell can't run again, so what goes on from it can't be rebuilt. `session_lost`.

    Args:
        stored: The cell.
        place: Its place.
        why: The reason: a clause.
        mend: How it can be rebuilt all the same: a sentence; or nothing.
        sides: Both sides, of a difference.
        fork_point: As the function of that name has it.
        fork: The session that goes on from the cell, if that isn't its own.
        is_made: Whether that session has cells of its own.
    """

    def __init__(
        self,
        stored: StoredExecution,
        place: Cell,
        why: str,
        mend: str,
        sides: dict[str, Any],
        fork_point: str | None = None,
        fork: str | None = None,
        *,
        is_made: bool = True,
    ) -> None:
        self.stored = stored
        self._of = (place, why, mend, sides)
        name = place.session
        lost, reason = fork or name, why.removesuffix(".")
        which = f"its cell {place.number}" if fork is None else f"the cell {place.number} of {name!r}"
        earlier = f"A new session can continue from before it: fork={fork_point!r}." if fork_point else ""
        if is_made:
            message = (
                f"Without its sandbox, the session {lost!r} is lost from {which} ({stored.id}) on."
                f" It can't be rebuilt past that cell: {reason}."
            )
            anew = f"To start over, end it, {ending(lost)}."
        else:
            message = (
                f"The session {lost!r} can't be forked: it needs what {which} ({stored.id}) left behind, which "
                f"can't be rebuilt: {reason}."
            )
            anew = f"The session {name!r} is as it was, and the name {lost!r} is free."
        hint = " ".join(filter(None, ["Nothing was done twice.", mend, earlier, anew]))
        super().__init__(
            "session_lost", message, hint=hint, session=name, cell=place.number, execution=stored.id, **sides
        )

    def told(self, fork_point: str | None, session: str, *, is_made: bool) -> SessionLostError:
        """The same, with what a fork can continue from, where a session goes on that may not be the cell's own."""
        fork = None if session == self._of[0].session else session
        return SessionLostError(self.stored, *self._of, fork_point, fork, is_made=fork is None or is_made)


async def fork_point(store: ProgramStore, principal: str, stored: StoredExecution) -> str | None:
    """The last cell before a cell that a fork can continue from, as `fork=` takes it; None without any.

    Args:
        store: The executions.
        principal: Whose session it is.
        stored: The cell.
    """
    place = Cell.of(stored)
    found: Cell | None = None
    async for earlier in chain(store, principal, "" if place is None else place.previous, MAX_CELLS_LOOKED):
        match left_by(earlier):
            case "lost":
                # No fork of what comes after it can be made.
                found = None
            case "names":
                found = found or Cell.of(earlier)
    return None if found is None else f"{found.session}@{found.number}"


def ending(session: str) -> str:
    """How a session is ended that runs no further cell: a clause."""
    name = session or "NAME"
    return f"from a script outside of it: await runtime.end_session({name!r}); or mcp-bridge session end {name}"


def lost_at(stored: StoredExecution, why: str, mend: str = "", **sides: Any) -> BridgeError:
    """The error for a session that can't be rebuilt past a cell.

    Args:
        stored: The cell.
        why: The reason: a clause.
        mend: How it can be rebuilt all the same: a sentence; or nothing.
        sides: Both sides, of a difference.
    """
    place = Cell.of(stored)
    if place is not None:
        return SessionLostError(stored, place, why, mend, sides)
    return BridgeError(
        "session_lost",
        f"Without its sandbox, the session is lost: a cell of it ({stored.id}) can't run again: {why}.",
        hint=f"To start over, end the session, {ending('')}.",
        **sides,
    )


async def chain(
    store: ProgramStore, principal: str, head: str, most: int | None = None
) -> AsyncIterator[StoredExecution]:
    """The cells of a session, the last first. Ends with a cell that is erased, which doesn't name the one before.

    Args:
        store: The executions.
        principal: Whose session it is.
        head: The execution of the last cell.
        most: How many are given; None for all.
    """
    while head and (most is None or most > 0):
        most = None if most is None else most - 1
        stored = await store.execution(head, principal)
        if stored is None:
            return
        yield stored
        place = Cell.of(stored)
        head = "" if place is None else place.previous


def _place(stored: StoredExecution) -> Cell:
    place = Cell.of(stored)
    if place is None:
        raise _erased("", stored.id)
    return place


def _erased(session: str, execution: str) -> BridgeError:
    return BridgeError(
        "session_lost",
        f"The last cell of the session {session!r}, {execution}, is erased: what it has left can't be had again.",
        hint=f"To start over, end the session, {ending(session)}.",
    )
