"""Runs a cell of a session: in the session's sandbox, or in a new one in which the cells before have run again."""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import ArtifactWriter, Files
from mcp_bridge.executions.scripts.lifecycle import SandboxRunner
from mcp_bridge.executions.scripts.lost_sandboxes import UNSPENT_CODES
from mcp_bridge.executions.scripts.run import OWN_END
from mcp_bridge.executions.sessions.cell import Cell
from mcp_bridge.executions.sessions.rebuilding import (
    cells_to_rebuild,
    diverged,
    lost_at,
    recorded_cell,
    skipped,
)
from mcp_bridge.host.sessions.live_sessions import SessionKey
from mcp_bridge.host.sessions.session_sandbox import SessionSandbox

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.executions.record import CellFields, ExecutionRecord
    from mcp_bridge.executions.scripts.job import Job
    from mcp_bridge.executions.scripts.lifecycle import ActiveScript
    from mcp_bridge.host.request_handlers import Requests
    from mcp_bridge.host.sandbox_run import RunLimits, SandboxRun
    from mcp_bridge.host.sandboxes import Sandboxes
    from mcp_bridge.host.sessions.live_sessions import LiveSessions
    from mcp_bridge.ledger.storage.execution_store import StoredExecution
    from mcp_bridge.sandbox.engine import SandboxProcess
    from mcp_bridge.settings import Settings

logger = logging.getLogger(__name__)


class CellHost(SandboxRunner, Protocol):
    """What runs scripts. The bridge."""

    settings: Settings
    sandboxes: Sandboxes

    def cell_line(self, execution: str, job: Job, *, replays: bool) -> bytes:
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


class Ran(NamedTuple):
    """A cell that has run.

    Attributes:
        requests: What answered it.
        record: Its record.
    """

    requests: Requests
    record: ExecutionRecord


class _Rebuilt(NamedTuple):
    """A sandbox that has the names of a session.

    Attributes:
        sandbox: The sandbox; None if no cell has left anything.
        cells: The cells that have run again.
        seconds: How long that took.
    """

    sandbox: SessionSandbox | None
    cells: list[StoredExecution]
    seconds: float


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
        self._lifecycle = lifecycle
        self._live = live
        self._tasks = tasks

    async def run(self, active: ActiveScript, artifacts: ArtifactWriter, cell: Cell) -> Ran:
        """Run a cell to its end.

        Args:
            active: The cell's script. One that isn't live is replayed, in a sandbox of its own.
            artifacts: Where its artifacts go.
            cell: Its place.

        Raises:
            BridgeError: `session_lost`, `session_not_rebuilt`; as `Sandboxes.run`.
        """
        key, is_live = SessionKey(self._principal, cell.session), active.script.live
        sandbox = await self._live.take(key, cell.previous) if is_live else None
        rebuilt = _Rebuilt(sandbox, [], 0.0)
        if sandbox is None and cell.previous:
            rebuilt = await self._rebuild(active, cell)
        sandbox, run, ran = await self._run_in(rebuilt.sandbox, active, artifacts)
        record = ran.record
        fields: CellFields
        record.session = fields = {"name": cell.session, "cell": cell.number}
        if is_live:
            self._tell(rebuilt, cell, fields, record)
        is_whole = run.has_finished and record.status in {*OWN_END, "timeout"}
        if is_whole and is_live and active.script.course.divergence is None:
            if record.status == "timeout":
                fields["interrupted"] = True
            sandbox.head, sandbox.place = active.script.execution, cell
            self._live.put(key, sandbox)
        else:
            await sandbox.close()
            if is_live and record.status not in {*OWN_END, "suspended"}:
                record.notices.append(
                    f"the sandbox of the session {cell.session!r} has ended with this cell, which has left nothing: "
                    "the next call has what was there before it"
                )
        return ran

    @staticmethod
    def _tell(rebuilt: _Rebuilt, cell: Cell, fields: CellFields, record: ExecutionRecord) -> None:
        if rebuilt.cells:
            fields["rebuilt"] = len(rebuilt.cells)
            times = "1 cell was" if len(rebuilt.cells) == 1 else f"{len(rebuilt.cells)} cells were"
            last = Cell.of(rebuilt.cells[-1])
            is_fork = last is not None and last.session != cell.session
            why = f"is a fork of {last.session!r}" if last and is_fork else "was rebuilt, since its sandbox was gone"
            record.notices.append(
                f"the session {cell.session!r} {why}: {times} run again from the record in {rebuilt.seconds:.2f} s, and"
                f" nothing was done twice{skipped(rebuilt.cells, cell.number)}"
            )
        elif rebuilt.sandbox is None and cell.number > 1:
            record.notices.append(f"the session {cell.session!r} has no names from before{skipped([], cell.number)}")

    async def _rebuild(self, active: ActiveScript, cell: Cell) -> _Rebuilt:
        """Run the cells before a cell again, in a new sandbox.

        Raises:
            BridgeError: As `run`.
        """
        limits, began = self._host.settings.sessions, time.monotonic()
        cells = await cells_to_rebuild(self._lifecycle, self._principal, cell.previous, limits.rebuild_cells)
        if cells and not limits.rebuild:
            raise BridgeError(
                "session_not_rebuilt",
                f"The sandbox of the session {cell.session!r} is gone, and sessions aren't rebuilt here.",
                hint="The operator can set rebuild in [sessions]. To begin anew: await runtime.end_session(name).",
            )
        sandbox: SessionSandbox | None = None
        done = False
        try:
            with anyio.move_on_after(limits.rebuild_seconds) as scope:
                for number, stored in enumerate(cells, start=1):
                    if active.job.client.notify is not None:
                        active.job.client.notify(
                            f"rebuilding the session {cell.session}: cell {number} of {len(cells)}"
                        )
                    sandbox = await self._run_again(sandbox, stored)
            if scope.cancelled_caught:
                raise BridgeError(
                    "session_not_rebuilt",
                    f"To run the cells of the session {cell.session!r} again takes more than"
                    f" {limits.rebuild_seconds:g} s, the limit.",
                    hint="The operator can raise rebuild_seconds in [sessions]. Or fork it at an earlier cell.",
                )
            done = True
        finally:
            if not done and sandbox is not None:
                sandbox.end()
        if cells:
            logger.info("the session of %s was rebuilt: %d cells", active.script.execution, len(cells))
        return _Rebuilt(sandbox, cells, time.monotonic() - began)

    async def _run_again(self, sandbox: SessionSandbox | None, stored: StoredExecution) -> SessionSandbox:
        """Run a cell against its record; returns its sandbox.

        Raises:
            BridgeError: `session_lost`: it didn't do the same, with both sides; `session_not_rebuilt`: it took too
                long; `sandbox_start_failed`: its sandbox was lost meanwhile, or not there in time.
        """
        # With more time than it had: the machine may be busier now.
        again = await recorded_cell(self._lifecycle, self._host, stored, self._host.settings.max_timeout)
        with tempfile.TemporaryDirectory(prefix="mcp-bridge-rebuilding-") as folder:
            artifacts = ArtifactWriter(Files(Path(folder)), stored.id, self._host.max_artifact_size)
            try:
                sandbox, run, ran = await self._run_in(sandbox, again.active, artifacts)
            finally:
                artifacts.abort()
        if (error := ran.record.error) is not None and error["code"] in UNSPENT_CODES:
            sandbox.end()
            # Not the cell's doing: the whole is tried again.
            raise BridgeError("sandbox_start_failed", f"While a session was rebuilt: {error['message']}")
        if ran.record.status == "timeout":
            sandbox.end()
            # It had ended by itself, so the machine is slower now: another time it may be in time.
            raise BridgeError(
                "session_not_rebuilt",
                f"To run the cell {again.place.number} of the session {again.place.session!r} ({stored.id}) again takes"
                f" more than {self._host.settings.max_timeout:g} s, the limit.",
                hint="Try again when the machine is less busy. The operator can raise max_timeout."
                " Or fork it at an earlier cell.",
            )
        try:
            await ran.record.project(again.active.gate.values)
            # It may take seconds, of a large record.
            found = await anyio.to_thread.run_sync(again.difference, ran.record)
        except BaseException:
            # Of a first cell nobody else knows of it.
            sandbox.end()
            raise
        if found is None and run.has_finished:
            sandbox.head = stored.id
            return sandbox
        sandbox.end()
        if found is None:
            raise lost_at(stored, f"run again, it ended its sandbox: {ran.record.status}")
        raise diverged(stored, found, ran.record.error)

    async def _run_in(
        self, sandbox: SessionSandbox | None, active: ActiveScript, artifacts: ArtifactWriter
    ) -> tuple[SessionSandbox, SandboxRun, Ran]:
        """Run a cell in a session's sandbox, or in a new one. If that fails, the sandbox is ended."""
        try:
            return await self._run_here(sandbox, active, artifacts)
        except BaseException:
            if sandbox is not None:
                sandbox.end()
            raise

    async def _run_here(
        self, sandbox: SessionSandbox | None, active: ActiveScript, artifacts: ArtifactWriter
    ) -> tuple[SessionSandbox, SandboxRun, Ran]:
        host, script, job = self._host, active.script, active.job
        limit = host.limits_of(job)
        first = host.cell_line(script.execution, job, replays=bool(script.history.calls) or not script.live)
        hash_seed = None if job.cell is None else job.cell.hash_seed
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
            return opened, run, Ran(ran.requests, ran.record)
        first = sandbox.acknowledgement + first
        run, requests = host.run_in(active, artifacts, sandbox.cell(script.execution), first, limit)
        try:
            record = await run.run()
        finally:
            await requests.close()
        sandbox.acknowledgement = run.acknowledgement
        return sandbox, run, Ran(requests, record)
