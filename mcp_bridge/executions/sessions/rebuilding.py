"""A session whose sandbox is gone is rebuilt: its cells run again, each against its record, without effects."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import anyio
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import ArtifactWriter
from mcp_bridge.executions.client import Client
from mcp_bridge.executions.reruns.diff_excerpt import cut, shown_sides
from mcp_bridge.executions.reruns.error_comparison import is_same_error, without_addresses
from mcp_bridge.executions.scripts.answer_order import may_depend_on_pace
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.scripts.divergence import other_tools
from mcp_bridge.executions.scripts.lifecycle import ActiveScript
from mcp_bridge.executions.scripts.lost_sandboxes import KEY_RETAINING_CODES
from mcp_bridge.executions.scripts.record import calls_so_far
from mcp_bridge.executions.scripts.replay import ReadingRecorder, difference, difference_at
from mcp_bridge.executions.scripts.script_job import Job
from mcp_bridge.executions.scripts.script_run import ScriptRun
from mcp_bridge.executions.sessions.cell import Cell, is_of_this_rendering
from mcp_bridge.executions.sessions.sessions import (
    SessionLostError,
    chain,
    ending,
    fork_point,
    left_by,
    lost_at,
    why_lost,
)
from mcp_bridge.executions.status import effective_status
from mcp_bridge.governance.tool_names import split

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcp_bridge.errors import ErrorRecord
    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.executions.replay_result import Difference
    from mcp_bridge.executions.scripts.lifecycle import SandboxRunner
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.ledger.storage.execution_store import StoredExecution
    from mcp_bridge.settings import Settings

logger = logging.getLogger(__name__)

MAX_LOOKED = 4
"""How many cells are looked at, for each that may run again: many may have left nothing."""

UNANSWERED = frozenset({"cancelled", "interrupted"})
"""Statuses of cells that were not answered: their client had gone, or their bridge had died."""

MAX_UNANSWERED = 5
"""How many of those cells, the last ones, have their calls listed in the next cell's notices."""

MAX_SIDE_CHARS = 500
"""Most characters of each side of a difference in its message."""

_COMPARED = ("status", "exit_code", "stdout", "value")
"""The fields of a cell's record that are compared whole. Standard error isn't: progress bars and log lines have the
time in them, and say nothing of what the cell has left."""

_SHOWN = frozenset({"stdout", "value"})
"""Those that another build of the guest may have shown otherwise, of the same values. They are compared last."""

_LIMITS = {
    "timeout": "Try again when the machine is less busy. The operator can raise max_timeout.",
    "out_of_memory": "The operator can raise memory.",
    "output_limit": "The operator can raise max_output_size.",
    "call_limit": "The operator can raise max_calls and max_call_size.",
}
"""What to do about a cell that had ended by itself, and that a limit ends when it runs again, by its status then."""


class RecordedCell(NamedTuple):
    """A cell that is to run again.

    Attributes:
        stored: Its execution.
        place: Its place.
        entries: Its entries.
        active: The script, with its record, and with a gate that makes no call.
    """

    stored: StoredExecution
    place: Cell
    entries: list[Recorded]
    active: ActiveScript

    def difference(self, now: ExecutionRecord) -> Difference | None:
        """The first difference between the cell's record and what it has done now."""
        values = self.active.gate.values
        was, script = self.stored.record or {}, self.active.script
        return difference(self.entries, was, script, now, values.values_behind, without_addresses, _COMPARED)

    def replay_blocker(self) -> BridgeError | None:
        """Why the cell could not do the same, if that is what its servers are now; else None."""
        script = self.active.script
        # One that could not list its tools before either was found so in the record.
        for server, why in script.divergence_detector.unlisted.items():
            return not_rebuilt_without(self.stored, server, f"which can't list its tools: {why}")
        for call in script.history.calls.values():
            if call.asked.kind == "tool":
                try:
                    split(call.asked.name, self.active.gate.tools.servers)
                except BridgeError as exc:
                    return not_rebuilt_without(self.stored, exc.details["server"], "which isn't configured")
        return None

    def diverged(self, found: Difference, error: ErrorRecord | None) -> BridgeError:
        """The error for a cell that hasn't done what it did.

        Args:
            found: The difference.
            error: The error with which it has ended now; or None.
        """
        if (replay_blocker := self.replay_blocker()) is not None:
            return replay_blocker
        divergence_detector = self.active.script.divergence_detector
        if (parted := divergence_detector.divergence or divergence_detector.suspected) is not None:
            error = parted.error().record()
        return diverged(self.stored, found, error, divergence_detector.changed_servers)

    def is_of_other_rendering(self, found: Difference, error: ErrorRecord | None) -> bool:
        """Whether a difference may be in how the guest shows values and errors: another version of it ran the cell.

        Args:
            found: The difference.
            error: The error with which the cell has ended now; or None.
        """
        if is_of_this_rendering(self.stored):
            return False
        was = (self.stored.record or {}).get("error")
        if found.what != "error" or was is None or error is None:
            return found.what in _SHOWN
        return is_same_error(was, error, self.active.gate.values.values_behind, is_same_version=False)


class SessionSandbox(Protocol):
    """The sandbox of a session.

    Attributes:
        head: The execution of the cell that it has run last.
    """

    head: str

    def end(self) -> None:
        """Have it ended."""


S = TypeVar("S", bound=SessionSandbox)


class ReplayedCell(NamedTuple, Generic[S]):
    """A cell that has run again.

    Attributes:
        sandbox: The sandbox in which it has.
        record: Its record.
        has_finished: Whether it has ended by itself.
    """

    sandbox: S
    record: ExecutionRecord
    has_finished: bool


class Rebuilt(NamedTuple, Generic[S]):
    """A sandbox that has the names of a session.

    Attributes:
        sandbox: The sandbox; None if no cell has left anything.
        cells: The cells that have run again.
        seconds: How long that took.
        as_written: Of a copy for a dry run: the executions of cells that have run without looks at values.
        otherwise: What cells of another build of the guest have shown otherwise: a clause for each.
        unanswered: What the cells just before that were not answered had called: a sentence or two for each.
    """

    sandbox: S | None
    cells: list[StoredExecution]
    seconds: float
    as_written: frozenset[str] = frozenset()
    otherwise: tuple[str, ...] = ()
    unanswered: tuple[str, ...] = ()


@dataclass(slots=True)
class _Progress:
    """How far a rebuilding has come.

    Attributes:
        otherwise: A clause on each cell that another build of the guest has shown otherwise, by its execution.
        cell: The cell that runs again.
        paced: The executions of cells whose calls are answered as late as they were.
        parted: What a cell has done otherwise whose calls were answered immediately; or None.
    """

    otherwise: dict[str, str] = field(default_factory=dict)
    cell: RecordedCell | None = None
    paced: set[str] = field(default_factory=set)
    parted: BridgeError | None = None

    def may_depend_on_pace(self, error: BridgeError) -> bool:
        """Whether the cell that runs may have done something else because its calls were answered immediately.

        If so, it is one of `paced` from then on.

        Args:
            error: What it has done otherwise.
        """
        cell = self.cell
        if cell is None or "what" not in error.details or cell.stored.id in self.paced:
            return False
        if not may_depend_on_pace(error.details["what"], cell.active.script.history):
            return False
        self.paced.add(cell.stored.id)
        self.parted = self.parted or error
        return True

    def require_no_divergence(self) -> None:
        """Refuse a cell that was ended while it waited for a call that isn't in its record: it needs no more time.

        Raises:
            BridgeError: As `Rebuilding.rebuild`.
        """
        if self.parted is not None:
            raise self.parted
        if self.cell is None or (parted := self.cell.active.script.divergence_detector.suspected) is None:
            return
        raise self.cell.diverged(difference_at(parted, self.cell.entries, self.cell.active.script.history), None)


class RunIn(Protocol[S]):
    """Runs a cell in a session's sandbox, or in a new one. If that fails, the sandbox is ended."""

    async def __call__(self, sandbox: S | None, active: ActiveScript, artifacts: ArtifactWriter, /) -> ReplayedCell[S]:
        """Run it."""


class Rebuilding(Generic[S]):
    """Rebuilds the sessions of one principal.

    Args:
        lifecycle: The lifecycle of executions.
        principal: Whose sessions they are.
        runner: Runs scripts.
        settings: With the limits.
        run_in: Runs a cell.
    """

    def __init__(
        self, lifecycle: Lifecycle, principal: str, runner: SandboxRunner, settings: Settings, run_in: RunIn[S]
    ) -> None:
        self._lifecycle = lifecycle
        self._principal = principal
        self._runner = runner
        self._settings = settings
        self._run_in = run_in

    async def rebuild(self, active: ActiveScript, cell: Cell) -> Rebuilt[S]:
        """Run the cells before a cell again, in a new sandbox.

        Args:
            active: The cell that is about to begin.
            cell: Its place.

        Raises:
            BridgeError: `session_lost`, `session_not_rebuilt`; as `RunIn`.
        """
        try:
            return await self._rebuild(active, cell)
        except SessionLostError as exc:
            raise await self._told(exc, cell) from None

    async def obstacle(self, cell: Cell) -> BridgeError | None:
        """Why the cells before a cell can't be rebuilt, as far as their records say; None if they don't."""
        try:
            await self._cells_before(cell)
        except SessionLostError as exc:
            return await self._told(exc, cell)
        except BridgeError as exc:
            return exc
        return None

    async def _told(self, lost: SessionLostError, cell: Cell) -> SessionLostError:
        before = await self._lifecycle.store.execution(cell.previous, self._principal)
        origin = None if before is None else Cell.of(before)
        earlier = await fork_point(self._lifecycle.store, self._principal, lost.stored)
        return lost.told(earlier, cell.session, is_made=origin is None or origin.session == cell.session)

    async def _cells_before(
        self, cell: Cell, *, is_dry: bool = False
    ) -> tuple[list[StoredExecution], list[StoredExecution]]:
        """As `cells_to_rebuild`, unless nothing is rebuilt here."""
        limits = self._settings.sessions
        cells, left = await cells_to_rebuild(self._lifecycle, self._principal, cell.previous, limits.rebuild_cells)
        if cells and not limits.rebuild:
            raise BridgeError(
                "session_not_rebuilt",
                "Sessions aren't rebuilt here."
                if is_dry
                else f"The sandbox of the session {cell.session!r} is gone, and sessions aren't rebuilt here.",
                hint="The operator can set rebuild in [sessions]. To start over, end the session,"
                f" {ending(cell.session)}.",
            )
        return cells, left

    async def _rebuild(self, active: ActiveScript, cell: Cell) -> Rebuilt[S]:
        limits, began = self._settings.sessions, time.monotonic()
        cells, left = await self._cells_before(cell, is_dry=active.script.is_dry)
        sandbox: S | None = None
        as_written = frozenset[str]()
        progress = _Progress()
        with anyio.move_on_after(limits.rebuild_seconds) as scope:
            if active.script.is_dry:
                sandbox, as_written = await self._copy(active, cell, cells, progress)
            else:
                sandbox = await self._run_all(active, cell, cells, progress)
        if scope.cancelled_caught:
            progress.require_no_divergence()
            raise BridgeError(
                "session_not_rebuilt",
                f"To run the cells of the session {cell.session!r} again takes more than"
                f" {limits.rebuild_seconds:g} s, the limit.",
                hint="The operator can raise rebuild_seconds in [sessions]. Or fork it at an earlier cell.",
            )
        if cells:
            logger.info("the session of %s was rebuilt: %d cells", active.script.execution, len(cells))
        seconds, unanswered = time.monotonic() - began, await self._calls_of(left)
        return Rebuilt(sandbox, cells, seconds, as_written, tuple(progress.otherwise.values()), tuple(unanswered))

    async def _calls_of(self, left: Sequence[StoredExecution]) -> list[str]:
        """What cells that were not answered have called. `left` as of `cells_to_rebuild`."""
        found = []
        for stored in left[-MAX_UNANSWERED:]:
            place = Cell.of(stored)
            called = calls_so_far(CallHistory(await self._lifecycle.recorder.read(stored.id)))
            if place is not None and called:
                shown = f"`mcp-bridge execution show {stored.id}` has more"
                found.append(f"the cell {place.number} was {effective_status(stored)}. {called} {shown}")
        return found

    async def _copy(
        self, active: ActiveScript, cell: Cell, cells: Sequence[StoredExecution], progress: _Progress
    ) -> tuple[S | None, frozenset[str]]:
        """Run cells again for a dry run, which may call what they define: they look at values as its own code does.

        A cell whose output or error shows its own text, or a column of it, does something else then. It runs as it was
        written; and if that isn't enough, all of them do.

        Args:
            active: The cell that is about to begin.
            cell: Its place.
            cells: The cells.
            progress: As for `_run_all`.

        Returns:
            The sandbox, and the executions of those that have run as they were written.
        """
        as_written = frozenset[str]()
        everything = frozenset(stored.id for stored in cells)
        while True:
            try:
                return await self._run_all(active, cell, cells, progress, everything - as_written), as_written
            except BridgeError as exc:
                # With both sides: it hasn't done the same.
                if "what" not in exc.details or as_written == everything or _is_new_call(exc):
                    raise
                as_written = everything if as_written else frozenset({str(exc.details["execution"])})

    async def _run_all(
        self,
        active: ActiveScript,
        cell: Cell,
        cells: Sequence[StoredExecution],
        progress: _Progress,
        looking: frozenset[str] = frozenset(),
    ) -> S | None:
        """Run cells against their records; returns their sandbox, None without any.

        Their calls are answered immediately. Where a cell does something else then, perhaps since a timer of it was
        faster than a call, all of them run again, that one with its calls answered as late as they were.

        Args:
            active: The cell that is about to begin.
            cell: Its place.
            cells: The cells.
            progress: Is told how far it has come.
            looking: The executions of those that look at values as the code of a dry run does.
        """
        while True:
            try:
                return await self._run_each(active, cell, cells, progress, looking)
            except BridgeError as exc:
                if not progress.may_depend_on_pace(exc):
                    raise

    async def _run_each(
        self,
        active: ActiveScript,
        cell: Cell,
        cells: Sequence[StoredExecution],
        progress: _Progress,
        looking: frozenset[str],
    ) -> S | None:
        sandbox: S | None = None
        done = False
        try:
            for number, stored in enumerate(cells, start=1):
                if active.job.client.notify is not None:
                    active.job.client.notify(f"rebuilding the session {cell.session}: cell {number} of {len(cells)}")
                sandbox = await self._run_again(sandbox, stored, progress, is_dry=stored.id in looking)
            done = True
        finally:
            if not done and sandbox is not None:
                sandbox.end()
        return sandbox

    async def _run_again(self, sandbox: S | None, stored: StoredExecution, progress: _Progress, *, is_dry: bool) -> S:
        """Run a cell against its record; returns its sandbox.

        Args:
            sandbox: The sandbox of the cells before; None for the first one.
            stored: The cell's execution.
            progress: As for `_run_all`.
            is_dry: Whether it looks at values: a dry run follows, which may call what the cell defines.

        Raises:
            BridgeError: `session_lost`: it didn't do the same, with both sides; `session_not_rebuilt`: a limit has
                ended it, or a server isn't there; `sandbox_start_failed`: its sandbox was lost meanwhile, or not there
                in time.
        """
        # With more time than it had: the machine may be busier now.
        limit, at_pace = self._settings.max_timeout, stored.id in progress.paced
        again = await recorded_cell(self._lifecycle, self._runner, stored, limit, is_dry=is_dry, at_pace=at_pace)
        progress.cell = again
        artifacts = ArtifactWriter(None, stored.id, self._runner.max_artifact_size)
        sandbox, record, has_finished = await self._run_in(sandbox, again.active, artifacts)
        if (error := record.error) is not None and error["code"] in KEY_RETAINING_CODES:
            sandbox.end()
            # Not the cell's doing: the whole is tried again.
            raise BridgeError("sandbox_start_failed", f"While a session was rebuilt: {error['message']}")
        if record.status in _LIMITS and again.active.script.divergence_detector.suspected is None:
            sandbox.end()
            # It had ended by itself, so there is less for it now than there was: another time there may be enough.
            told = record.error["message"] if record.error is not None else record.status
            raise BridgeError(
                "session_not_rebuilt",
                f"The cell {again.place.number} of the session {again.place.session!r} ({stored.id}), run again, was"
                f" ended at a limit of now: {told}",
                hint=f"{_LIMITS[record.status]} Or fork it at an earlier cell.",
            )
        try:
            await record.project(again.active.gate.values)
            # It may take seconds, of a large record.
            found = await anyio.to_thread.run_sync(again.difference, record)
        except BaseException:
            # Of a first cell nobody else knows of it.
            sandbox.end()
            raise
        if found is not None and again.is_of_other_rendering(found, record.error):
            was, now = map(_in_one_line, _sides(found))
            sides = f"was {was}, and is {now}"
            progress.otherwise[stored.id] = (
                f"the {found.what} of the cell {again.place.number}, of another version, {sides}"
            )
            found = None
        if found is None and has_finished:
            sandbox.head = stored.id
            return sandbox
        sandbox.end()
        if found is None:
            raise lost_at(stored, f"run again, it ended its sandbox: {record.status}")
        raise again.diverged(found, record.error)


async def cells_to_rebuild(
    lifecycle: Lifecycle, principal: str, head: str, most: int
) -> tuple[list[StoredExecution], list[StoredExecution]]:
    """The cells that the namespace of a session consists of, and those after them that were not answered.

    Both the first one first, without their codes and records.

    Args:
        lifecycle: The lifecycle of executions.
        principal: Whose session it is.
        head: The execution of its last cell.
        most: How many there may be.

    Raises:
        BridgeError: `session_lost`: a cell has left what can't be had again; `session_not_rebuilt`: there are more.
    """
    found: list[StoredExecution] = []
    unanswered: list[StoredExecution] = []
    lost: StoredExecution | None = None
    looked = 0
    async for stored in chain(lifecycle.store, principal, head):
        looked += 1
        match left_by(stored):
            case "names":
                # Codes and records, of which one is large, are read again one by one.
                found.append(_bare(stored))
            case "nothing" if not found and effective_status(stored) in UNANSWERED:
                unanswered.append(_bare(stored))
            case "lost":
                # The first one counts: from there on it is lost.
                lost = stored
        if len(found) > most or looked > MAX_LOOKED * most:
            raise BridgeError(
                "session_not_rebuilt",
                f"More than {most} cells would have to run again, the limit."
                if len(found) > most
                else f"The session has more than {MAX_LOOKED * most} cells, the limit.",
                hint="The operator can raise rebuild_cells in [sessions]. Or fork it at an earlier cell, or end it.",
            )
    if lost is not None:
        raise lost_at(lost, why_lost(lost))
    return found[::-1], unanswered[::-1]


def _bare(stored: StoredExecution) -> StoredExecution:
    return replace(stored, bundle={"cell": stored.bundle["cell"]}, record=None)


def diverged(
    stored: StoredExecution, found: Difference, error: ErrorRecord | None, changed_servers: Iterable[str] = ()
) -> BridgeError:
    """The error for a cell that hasn't done what it did, with both sides.

    Args:
        stored: The cell.
        found: The difference.
        error: The error with which it has ended now; or None.
        changed_servers: The servers that list other tools than it has called.
    """
    expected, actual = _sides(found)
    sides = {"what": found.what, "recorded": expected, "actual": actual}
    expected, actual = _in_one_line(expected), _in_one_line(actual)
    if found.what == "input" and error is not None:
        why = f"its input isn't what it was (input_changed). {error['message']}"
        return lost_at(stored, why, "With the file put back, it is rebuilt.", **sides)
    ended = f"; it ended so: {_in_one_line(cut(error['message'], MAX_SIDE_CHARS))}" if error is not None else ""
    if found.step and found.found is None:
        why = f"its call {found.step} was {expected}, and was not made{ended}"
    elif found.step and found.expected is None:
        # It may be that of a thread that had not come to it before.
        why = f"its call {found.step} isn't in the record: {_named(found.found, actual)}"
    elif found.step:
        why = f"its call {found.step} was {expected}, and is {actual}"
    else:
        why = f"its {found.what} was {expected}, and is {actual}{ended if found.what == 'status' else ''}"
    if changed := other_tools(sorted(changed_servers)):
        why += f". {changed}"
    # Perhaps by a server that can't be started at the moment, or a setting.
    is_failure = found.what == "error" or (ended and ended in why)
    mend = "Once what ended it now is mended, it is rebuilt." if is_failure else ""
    return lost_at(stored, f"run again, it did not do the same: {why}", mend, **sides)


def not_rebuilt_without(stored: StoredExecution, server: str, why: str) -> BridgeError:
    """The error for a session whose cell can't run again as long as one of its servers isn't there.

    Args:
        stored: The cell.
        server: The server.
        why: What is wrong with it: a clause.
    """
    place = Cell.of(stored)
    which = "A cell of the session" if place is None else f"The cell {place.number} of the session {place.session!r}"
    named: dict[str, Any] = {} if place is None else {"session": place.session, "cell": place.number}
    return BridgeError(
        "session_not_rebuilt",
        f"{which} ({stored.id}) can't run again without the server {server!r}, {why.strip().removesuffix('.')}.",
        hint="Nothing was done twice. Once the server is there again, the session is rebuilt. Or fork it at an earlier"
        " cell.",
        execution=stored.id,
        **named,
    )


def _is_new_call(error: BridgeError) -> bool:
    """Whether a cell has diverged by a call that its record has not."""
    return error.details["what"] == "call" and bool(error.details["recorded"] == repr(None))


def _named(asked: object, shown: str) -> str:
    """A request by what it asks for, as a script writes it."""
    if not isinstance(asked, dict) or not isinstance(asked.get("tool"), str):
        return shown
    return f"{asked['tool']} with {cut(repr(asked.get('arguments')), MAX_SIDE_CHARS)}"


def _sides(found: Difference) -> tuple[str, str]:
    """Both sides of a difference, as its message shows them."""
    was, now = (value if isinstance(value, str) else repr(value) for value in (found.expected, found.found))
    return shown_sides(was, now, MAX_SIDE_CHARS)


def _in_one_line(text: str) -> str:
    """A text within a sentence: what has line breaks, or blanks at its ends, is quoted."""
    return repr(text) if text != text.strip() or len(text.splitlines()) > 1 else text


async def recorded_cell(
    lifecycle: Lifecycle,
    runner: SandboxRunner,
    stored: StoredExecution,
    seconds: float,
    *,
    is_dry: bool = False,
    at_pace: bool = False,
) -> RecordedCell:
    """A cell as it is to run again.

    Args:
        lifecycle: The lifecycle of executions.
        runner: Runs it.
        stored: Its execution, as `cells_to_rebuild` has it.
        seconds: The time that it may take.
        is_dry: Whether what it defines is to look at values as the code of a dry run does.
        at_pace: Whether its calls are answered as late as they were.

    Raises:
        BridgeError: `session_not_rebuilt`: a server that it was given isn't configured any more; `session_lost`: it was
            erased meanwhile.
    """
    known = await lifecycle.stored(stored.id, stored.principal)
    place = Cell.of(known)
    if place is None or left_by(known) != "names":
        raise lost_at(stored, why_lost(known))
    stored = known
    entries = await lifecycle.recorder.read(stored.id)
    job = replace(Job.from_stored(stored, Client(began=time.monotonic())), timeout=seconds, dry_run=is_dry)
    reading = ReadingRecorder(lifecycle.recorder)
    try:
        gate = runner.gate(stored.id, job.client, job.servers, reading)
    except BridgeError as exc:
        if exc.code != "unknown_server":
            raise
        raise not_rebuilt_without(stored, exc.details["server"], "which isn't configured") from None
    gate.values.adopt(await lifecycle.store.values(stored.id))
    history = CallHistory(entries)
    script = ScriptRun(stored.id, lifecycle.store, reading, gate, "", history, live=False, at_pace=at_pace)
    return RecordedCell(stored, place, entries, ActiveScript(script, gate, job))


def skipped(cells: Sequence[StoredExecution], last: int) -> str:
    """A clause about the cells that have left nothing, for a notice; empty for none.

    Args:
        cells: The cells that were rebuilt.
        last: The number of the cell that begins.
    """
    numbers = {place.number for stored in cells if (place := Cell.of(stored)) is not None}
    without = [str(number) for number in range(1, last) if number not in numbers]
    if not without:
        return ""
    which = f"the cell {without[0]}" if len(without) == 1 else f"the cells {', '.join(without)}"
    return f"; without {which}, which did not end by itself and left nothing"
