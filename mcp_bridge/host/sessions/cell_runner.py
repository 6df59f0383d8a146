"""Runs a cell of a session: in the session's sandbox, or in a new one in which the cells before have run again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.scripts.lifecycle import SandboxRunner
from mcp_bridge.executions.sessions.cell import Cell
from mcp_bridge.executions.sessions.rebuilding import Rebuilding, Rebuilt, ReplayedCell, skipped
from mcp_bridge.executions.status import ENDED_BY_ITSELF
from mcp_bridge.host.sessions.live_sessions import SessionKey
from mcp_bridge.host.sessions.session_sandbox import SessionSandbox

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from mcp_bridge.executions.artifacts import ArtifactWriter
    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.executions.record import CellFields, ExecutionRecord
    from mcp_bridge.executions.scripts.lifecycle import ActiveScript
    from mcp_bridge.executions.scripts.script_job import Job
    from mcp_bridge.host.request_handlers import Requests
    from mcp_bridge.host.sandbox_run import RunLimits, SandboxRun
    from mcp_bridge.host.sandboxes import Sandboxes
    from mcp_bridge.host.sessions.live_sessions import LiveSessions
    from mcp_bridge.sandbox.engine import SandboxProcess
    from mcp_bridge.settings import Settings


_OVERSPENT = (
    "what its cells had left running used more processor time between two of them than idle_processor_seconds allows"
)


class CellHost(SandboxRunner, Protocol):
    """What runs scripts. The bridge."""

    settings: Settings
    sandboxes: Sandboxes

    def start_line(self, active: ActiveScript) -> bytes:
        """The line that starts a cell."""

    def limits_of(self, job: Job) -> RunLimits:
        """The limits of a cell."""

    def run_in(
        self,
        active: ActiveScript,
        artifacts: ArtifactWriter,
        process: SandboxProcess,
        first: bytes,
        limit: RunLimits,
    ) -> tuple[SandboxRun, Requests]:
        """The run of a cell in a sandbox."""


class FinishedCell(NamedTuple):
    """A cell that has run.

    Attributes:
        requests: What answered it.
        record: Its record.
    """

    requests: Requests
    record: ExecutionRecord


class CellRunner:
    """Runs the cells of one principal's sessions.

    Args:
        host: Runs scripts.
        principal: Whose sessions they are.
        lifecycle: The lifecycle of executions.
        live: The idle sessions of the bridge.
        tasks: Runs what reads sandboxes between cells.
    """

    def __init__(
        self, host: CellHost, principal: str, lifecycle: Lifecycle, live: LiveSessions, tasks: TaskGroup
    ) -> None:
        self._host = host
        self._principal = principal
        self._live = live
        self._tasks = tasks
        self._rebuilding = Rebuilding(lifecycle, principal, host, host.settings, self._run_again)

    async def run(self, active: ActiveScript, artifacts: ArtifactWriter, cell: Cell) -> FinishedCell:
        """Run a cell to its end.

        Args:
            active: The cell's script. One that isn't live is replayed, and one that is dry is run, in a sandbox of its
                own.
            artifacts: Where its artifacts go.
            cell: Its place.

        Raises:
            BridgeError: `session_lost`, `session_not_rebuilt`; as `Sandboxes.run`.
        """
        key, is_dry = SessionKey(self._principal, cell.session), active.script.is_dry
        is_live = active.script.live and not is_dry
        is_overspent = is_live and self._live.has_overspent(key)
        taken = await self._live.take(key, cell.previous) if is_live else None
        rebuilt = Rebuilt(taken, [], 0.0)
        if taken is None and cell.previous:
            rebuilt = await (self._copied(active, cell) if is_dry else self._rebuilding.rebuild(active, cell))
        sandbox, run, ran = await self._run_in(rebuilt.sandbox, active, artifacts)
        record = ran.record
        fields: CellFields
        record.session = fields = {"name": cell.session, "cell": cell.number}
        if is_live:
            gone = _OVERSPENT if is_overspent else "its sandbox was gone"
            self._tell(rebuilt, cell, gone, fields, record)
        elif is_dry:
            record.notices += _in_copy(rebuilt, cell)
        is_whole = run.has_finished and record.status in {*ENDED_BY_ITSELF, "timeout"}
        if is_whole and is_live and active.script.divergence_detector.divergence is None:
            if record.status == "timeout":
                fields["interrupted"] = True
            sandbox.head, sandbox.place = active.script.execution, cell
            none_waited = not active.job.head if taken is None else taken.has_no_suspended_cell
            # A generated key is stored until somebody is given what came of its run.
            sandbox.has_no_suspended_cell = none_waited and active.script.key is None
            self._live.put(key, sandbox)
        else:
            await sandbox.close()
            if is_live and record.status not in {*ENDED_BY_ITSELF, "suspended"}:
                # What was rebuilt for this cell can be rebuilt again.
                obstacle = await self._rebuilding.obstacle(cell) if taken is not None else None
                after = (
                    f"{obstacle.message} {obstacle.hint}" if obstacle else "the next call has what was there before it"
                )
                record.notices.append(
                    f"the sandbox of the session {cell.session!r} has ended with this cell, which has left nothing:"
                    f" {after}"
                )
        return ran

    async def _copied(self, active: ActiveScript, cell: Cell) -> Rebuilt[SessionSandbox]:
        """A sandbox that has a session's names, for a dry run: the session's own is left as it is.

        Raises:
            BridgeError: As `Rebuilding.rebuild`.
        """
        try:
            return await self._rebuilding.rebuild(active, cell)
        except BridgeError as exc:
            if exc.code not in {"session_lost", "session_not_rebuilt"}:
                raise
            hint = exc.hint
            if self._live.head(SessionKey(self._principal, cell.session)) == cell.previous:
                hint = "The session is as it was: without dry_run the cell runs in it, each write decided separately."
            raise BridgeError(
                exc.code,
                f"A cell is run dry in a copy of its session, for which the cells before run again. {exc.message}",
                hint=hint,
                **exc.details,
            ) from exc

    @staticmethod
    def _tell(
        rebuilt: Rebuilt[SessionSandbox], cell: Cell, gone: str, fields: CellFields, record: ExecutionRecord
    ) -> None:
        if rebuilt.cells:
            fields["rebuilt"] = len(rebuilt.cells)
            last = Cell.of(rebuilt.cells[-1])
            is_fork = last is not None and last.session != cell.session
            why = f"is a fork of {last.session!r}" if last and is_fork else f"was rebuilt, since {gone}"
            record.notices.append(
                f"the session {cell.session!r} {why}: {_ran_again(rebuilt)}, and"
                f" nothing was done twice{skipped(rebuilt.cells, cell.number)}"
            )
            record.notices += [
                f"run again, {clause}: look whether its names have what you expect" for clause in rebuilt.otherwise
            ]
        elif rebuilt.sandbox is None and cell.number > 1:
            record.notices.append(f"the session {cell.session!r} has no names from before{skipped([], cell.number)}")
        record.notices += rebuilt.unanswered

    async def _run_again(
        self, sandbox: SessionSandbox | None, active: ActiveScript, artifacts: ArtifactWriter
    ) -> ReplayedCell[SessionSandbox]:
        sandbox, run, ran = await self._run_in(sandbox, active, artifacts)
        return ReplayedCell(sandbox, ran.record, has_finished=run.has_finished)

    async def _run_in(
        self, sandbox: SessionSandbox | None, active: ActiveScript, artifacts: ArtifactWriter
    ) -> tuple[SessionSandbox, SandboxRun, FinishedCell]:
        """Run a cell in a session's sandbox, or in a new one. If that fails, the sandbox is ended."""
        try:
            return await self._run_here(sandbox, active, artifacts)
        except BaseException:
            if sandbox is not None:
                sandbox.end()
            raise

    async def _run_here(
        self, sandbox: SessionSandbox | None, active: ActiveScript, artifacts: ArtifactWriter
    ) -> tuple[SessionSandbox, SandboxRun, FinishedCell]:
        host, script, job = self._host, active.script, active.job
        limit = host.limits_of(job)
        first = host.start_line(active)
        # Node's texts have none.
        hash_seed = None if job.cell is None or job.language != "python" else job.cell.hash_seed
        made: list[tuple[SessionSandbox, SandboxRun]] = []

        def make_run(process: SandboxProcess, data: bytes, limits: RunLimits) -> tuple[SandboxRun, Requests]:
            opened = SessionSandbox(process, self._tasks, host.settings.max_output_size)
            run, requests = host.run_in(active, artifacts, opened.cell(script.execution), data, limits)
            made.append((opened, run))
            return run, requests

        if sandbox is None:
            self._live.make_room()
            try:
                ran = await host.sandboxes.run(script.execution, first, limit, make_run, hash_seed, job.packages)
            except BaseException:
                for opened, _ in made:
                    opened.end()
                raise
            for opened, _ in made[:-1]:
                opened.end()
            opened, run = made[-1]
            opened.acknowledgement = run.acknowledgement
            return opened, run, FinishedCell(ran.requests, ran.record)
        first = sandbox.acknowledgement + first
        run, requests = host.run_in(active, artifacts, sandbox.cell(script.execution), first, limit)
        try:
            record = await run.run()
        finally:
            await requests.close()
        sandbox.acknowledgement = run.acknowledgement
        return sandbox, run, FinishedCell(requests, record)


def _ran_again(rebuilt: Rebuilt[SessionSandbox]) -> str:
    """What was done for a sandbox: a clause."""
    were = "1 cell was" if len(rebuilt.cells) == 1 else f"{len(rebuilt.cells)} cells were"
    return f"{were} run again from the record in {rebuilt.seconds:.2f} s"


def _in_copy(copied: Rebuilt[SessionSandbox], cell: Cell) -> list[str]:
    """What is told of a dry run."""
    if not cell.previous:
        return [f"dry run: no session {cell.session!r} has begun with it"]
    if not copied.cells:
        return [f"dry run: nothing of it is left in the session {cell.session!r}"]
    last = Cell.of(copied.cells[-1])
    # A session without a cell of its own that has left anything has one before this all the same.
    is_fork = last is not None and last.session != cell.session and copied.cells[-1].id == cell.previous
    told = (
        f"dry run: it was in a copy of the session {last.session if last and is_fork else cell.session!r},"
        f" for which {_ran_again(copied)};"
        + (f" no session {cell.session!r} has begun with it" if is_fork else " the session is as it was")
    )
    if not copied.as_written:
        return [told]
    which = "it has" if len(copied.as_written) == 1 else "the cells before have"
    unnoticed = (
        f"dry run: a cell before shows its own text, or a place in it, so what {which} defined doesn't notice a result"
        " that isn't there"
    )
    return [told, unnoticed]
