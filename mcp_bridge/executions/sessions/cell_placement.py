"""Where a cell is in its session: its last cell; or run dry, and not in it yet; or detached, as the session continued.

A cell that is run dry has a place, and isn't in its session until it is run: other cells may come first.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.idempotency.generated_keys import if_generated
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.scripts.record import calls_so_far
from mcp_bridge.executions.scripts.settle_or_cancel import cancel_script
from mcp_bridge.executions.sessions.cell import Cell
from mcp_bridge.executions.sessions.sessions import cancel_waiting_cell
from mcp_bridge.executions.status import not_suspended, was_given_up

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.ledger.log.session_store import SessionStore
    from mcp_bridge.ledger.storage.execution_store import StoredExecution

SESSION_ADVANCED = "its session has continued without it, or has ended"
"""Why a cell that was run dry is cancelled."""


class SessionMovedError(BridgeError):
    """Another bridge has run a cell of the session since its last cell was looked up. `busy`.

    Args:
        session: The session's name.
    """

    def __init__(self, session: str) -> None:
        super().__init__("busy", f"Another bridge has just used the session {session!r}.", hint="Try again.")


class CellPlacement:
    """The places of cells in the sessions of one principal.

    Args:
        lifecycle: The lifecycle of executions.
        principal: Whose sessions they are.
        heads: The last cells of the sessions; None where there are no sessions.
        no_room: Says why there can be no further session, as `Sessions.no_room`.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        principal: str,
        heads: SessionStore | None,
        no_room: Callable[[], Awaitable[BridgeError | None]] | None,
    ) -> None:
        self._no_room = no_room
        self._lifecycle = lifecycle
        self._principal = principal
        self._heads = heads

    async def last(self, cell: Cell) -> str:
        """The last cell of a cell's session; empty where there is no session."""
        return "" if self._heads is None else await self._heads.head(self._principal, cell.session)

    async def session_is_unchanged(self, cell: Cell, last: str, head: str | None) -> bool:
        """Whether the session of a cell that was run dry is where it was.

        Args:
            cell: The cell.
            last: The session's last cell.
            head: As `resume_from_record`.
        """
        if last:
            return last in {cell.previous, head} or await self._was_given_up_there(last, cell)
        # There is none yet: it would be a first cell, or a fork.
        return not cell.previous or await self.origin(cell) is not None

    async def origin(self, cell: Cell) -> Cell | None:
        """The cell of another session that a fork's first cell goes on from; None for any other cell."""
        before = await self._lifecycle.store.execution(cell.previous, self._principal) if cell.previous else None
        origin = None if before is None else Cell.of(before)
        return None if origin is None or origin.session == cell.session else origin

    async def require_room(self, last: str) -> None:
        """Refuse a cell that was run dry, and that would begin a session.

        Args:
            last: The session's last cell.

        Raises:
            BridgeError: `too_many_sessions`.
        """
        if not last and self._no_room is not None and (blocked := await self._no_room()) is not None:
            raise blocked

    async def _was_given_up_there(self, execution: str, cell: Cell) -> bool:
        """Whether an execution was given up at a cell's place, and has done nothing: the next one has the place."""
        stored = await self._lifecycle.store.execution(execution, self._principal)
        if stored is None or not was_given_up(stored) or previous_of(stored) != cell.previous:
            return False
        return not CallHistory(await self._lifecycle.recorder.read(execution)).calls

    async def move(self, cell: Cell, last: str, execution: str) -> None:
        """Make a cell that was run dry its session's last one.

        Raises:
            SessionMovedError: The session has continued meanwhile.
        """
        if last:
            # Which need not be the one before that it was run dry after.
            self._lifecycle.store.hold(execution, execution=last)
        if self._heads is None or not await self._heads.begin_move(self._principal, cell.session, last, execution)():
            raise SessionMovedError(cell.session)

    async def has_made_calls(self, execution: str) -> bool:
        """Whether an execution that began with a dry run has asked for anything since."""
        past = CallHistory(await self._lifecycle.recorder.read(execution))
        return past.after_dry_run and bool(past.calls)

    async def end_moved_cell(self, cell: Cell, known: StoredExecution, *, is_new: bool) -> BridgeError:
        """End a cell whose session is elsewhere; the error that says so.

        Args:
            cell: The cell.
            known: Its execution, as it was read.
            is_new: Whether it was only run dry: nothing of it can be in doubt.
        """
        left = _left(cell.session)
        if is_new:
            # Another request may have cancelled it just now.
            with contextlib.suppress(BridgeError):
                await cancel_script(self._lifecycle, known, SESSION_ADVANCED)
            return not_suspended(known.id, left)
        await cancel_waiting_cell(self._lifecycle, known)
        called = calls_so_far(CallHistory(await self._lifecycle.recorder.read(known.id)))
        shown = f"mcp-bridge execution show {known.id} has how it stands{', and the arguments' if called else ''}."
        is_keyed = known.key is not None and if_generated(known.key) is None
        anew = "Use another key for the remaining work: the run of this one can't be resumed." if is_keyed else ""
        return not_suspended(known.id, f"{left}. {called}".rstrip(" ."), f"{shown} {anew}".rstrip())


async def reason_never_resumed(heads: SessionStore, stored: StoredExecution, history: CallHistory) -> str | None:
    """Why an unfinished cell can't be resumed: a clause; None if it can, isn't a cell, or was only run dry so far.

    Args:
        heads: The last cells of sessions.
        stored: The cell.
        history: Its calls.
    """
    cell = Cell.of(stored)
    if cell is None or (stored.bundle.get("dry_run") and not (history.after_dry_run and history.calls)):
        return None
    last = await heads.head(stored.principal, cell.session)
    return None if last == stored.id else _left(cell.session)


def _left(session: str) -> str:
    return f"its session {session!r} has ended, or has continued without it"


def placement_guard(
    session: str, recorded: Callable[[], Awaitable[None]] | None, moves: Sequence[Callable[[], Awaitable[bool]]]
) -> Callable[[], Awaitable[None]]:
    """Waits until a cell's start is durable, and refuses one whose session has gone on meanwhile."""

    async def is_recorded() -> None:
        if recorded is not None:
            await recorded()
        for has_moved in moves:
            if not await has_moved():
                raise SessionMovedError(session)

    return is_recorded


def previous_of(stored: StoredExecution) -> str | None:
    """The cell before a stored one, empty for a first cell; None if the execution isn't a cell."""
    place = Cell.of(stored)
    return None if place is None else place.previous
