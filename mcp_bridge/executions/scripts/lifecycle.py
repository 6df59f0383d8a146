"""Scripts as durable executions: started, suspended, resumed, finished; one a key.

What a script asks for is recorded by its `ScriptRun`; this module is what is around that.
A run without a key that is suspended is given one (`generated_keys`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import anyio

from mcp_bridge.errors import BridgeError, RunInterruptedError
from mcp_bridge.escaping import escape_name
from mcp_bridge.executions.client import Client
from mcp_bridge.executions.idempotency.generated_keys import (
    assign_generated_key,
    execution_of,
    if_generated,
    names_of_code,
    release_generated_key,
    suspended_run_of_code,
)
from mcp_bridge.executions.idempotency.keyed_requests import KeyedRequest, find_or_start
from mcp_bridge.executions.idempotency.keys import Key, whole_key
from mcp_bridge.executions.idempotency.request_identity import script_macs
from mcp_bridge.executions.idempotency.waiting_code import WaitingCodeCache
from mcp_bridge.executions.in_doubt import calls_in_doubt
from mcp_bridge.executions.lifecycle import SuspendedRunExistsError, new_execution
from mcp_bridge.executions.plans.plan import (
    MAX_LISTED,
    NOTHING_LISTED,
    TOO_LARGE,
    denied,
    nothing_bound,
    plan_approval,
    question,
    remaining_approved_calls,
    rows,
    same_code,
    unused_notices,
    waiting_row,
)
from mcp_bridge.executions.plans.plan import error as plan_error
from mcp_bridge.executions.readiness import PLAN, can_resume, waits_for_plan
from mcp_bridge.executions.record import ExecutionRecord
from mcp_bridge.executions.scripts.answer_order import may_depend_on_pace
from mcp_bridge.executions.scripts.call_history import CallHistory
from mcp_bridge.executions.scripts.held_calls import ask
from mcp_bridge.executions.scripts.lost_sandboxes import (
    KEY_RETAINING_CODES,
    as_lost_unless_waiting,
    is_lost,
    run_with_sandbox_recovery,
)
from mcp_bridge.executions.scripts.record import TOOLS, resume_instruction, suspend
from mcp_bridge.executions.scripts.script_job import Job
from mcp_bridge.executions.scripts.script_run import ScriptRun
from mcp_bridge.executions.scripts.settle_or_cancel import cancel_script
from mcp_bridge.executions.sessions.cell import (
    RENDERING_VERSION,
    Cell,
    is_same_packages,
    require_in_session,
    require_language,
)
from mcp_bridge.executions.sessions.cell_placement import (
    SESSION_ADVANCED,
    CellPlacement,
    SessionMovedError,
    placement_guard,
    previous_of,
)
from mcp_bridge.executions.sessions.sessions import chain, fork_point
from mcp_bridge.executions.status import ENDED_BY_ITSELF, UNFINISHED, effective_status, not_suspended
from mcp_bridge.executions.waits.taken_events import untaken
from mcp_bridge.executions.waits.wake_times import earliest_due, last_looked
from mcp_bridge.ledger.log.payloads import (
    Request,
    RequestIntent,
    RequestOutcome,
    Resumption,
    RunError,
    ScriptEnd,
    ScriptStart,
    ScriptSuspension,
    Success,
    understood,
)
from mcp_bridge.ledger.storage.execution_store import NO_KEY_NAMES, GeneratedKeyNames
from mcp_bridge.policy.secrets.value_references import equal_by_values
from mcp_bridge.telemetry.observed_runs import observed_run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from mcp_bridge.executions.artifacts import ArtifactWriter
    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.executions.record import CellFields, WaitingRow
    from mcp_bridge.executions.scripts.call_history import RecordedCall
    from mcp_bridge.executions.scripts.divergence import Divergence
    from mcp_bridge.gate.execution_values import ExecutionValues
    from mcp_bridge.gate.gate import Gate
    from mcp_bridge.gate.policy_check import Asker
    from mcp_bridge.ledger.log.entries import Recorded
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.log.session_store import SessionStore
    from mcp_bridge.ledger.storage.execution_store import Starter, StoredExecution
    from mcp_bridge.sandbox.packages.package_set import PackageSet
    from mcp_bridge.telemetry.observed_runs import ObservedRun

logger = logging.getLogger(__name__)


class ActiveScript(NamedTuple):
    """An execution that this process owns and runs.

    Attributes:
        script: Answers its calls.
        gate: The gate for its calls.
        job: The script, and the client that it runs for.
        last_record: The record of its last suspension, if it is resumed.
        recorded: Waits until its start is durable, as `Lifecycle.begin`; None if it is.
    """

    script: ScriptRun
    gate: Gate
    job: Job
    last_record: dict[str, Any] | None = None
    recorded: Callable[[], Awaitable[None]] | None = None


class SandboxRunner(Protocol):
    """Runs scripts in sandboxes. The bridge."""

    def servers(self, job: Job) -> list[str] | None:
        """The configured names of the servers that a job was narrowed to; None for all."""

    def require_files(self, job: Job) -> None:
        """Refuse a job that names an input that it can't have.

        Raises:
            BridgeError: `unknown_input`.
        """

    @property
    def max_artifact_size(self) -> int:
        """Most bytes of a run's artifacts together."""

    def artifact_path(self, execution: str, name: str) -> Path:
        """Where an artifact is stored."""

    async def resolve(self, job: Job) -> PackageSet:
        """The package set that a job's requirements stand for.

        Raises:
            BridgeError: As `Installer.resolve`.
        """

    def gate(
        self,
        execution: str,
        client: Client,
        servers: Sequence[str] | None = None,
        recorder: Recorder | None = None,
        *,
        dry_run: bool = False,
    ) -> Gate:
        """The gate for an execution's calls.

        Args:
            execution: Its id.
            client: Who has it run.
            servers: Names or aliases of the servers that it may use; None for all.
            recorder: Records the calls; by default the bridge's.
            dry_run: Whether calls that don't only read are listed, and not made.
        """

    async def sandboxed(self, active: ActiveScript, artifacts: ArtifactWriter | None = None) -> ExecutionRecord:
        """Run a script in a sandbox of its own, to its end.

        The sandbox may have the script before its start is recorded; nothing is taken from the sandbox until it is.

        Args:
            active: The script.
            artifacts: Where its artifacts go; by default they are kept.
        """


class Scripts:
    """The scripts of one bridge.

    Args:
        lifecycle: The lifecycle of the bridge's executions.
        principal: The scripts' owner.
        runner: Runs them in sandboxes.
        heads: The last cells of the principal's sessions; None where there are no sessions.
        no_room: Says why the principal can have no further session, as `Sessions.no_room`.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        principal: str,
        runner: SandboxRunner,
        heads: SessionStore | None = None,
        no_room: Callable[[], Awaitable[BridgeError | None]] | None = None,
    ) -> None:
        self.lifecycle = lifecycle
        self._heads = heads
        self._placement = CellPlacement(lifecycle, principal, heads, no_room)
        self._waiting_code = WaitingCodeCache()
        self._store = lifecycle.store
        self._principal = principal
        self._runner = runner

    async def run(self, job: Job, key: str | None) -> ExecutionRecord:
        """Run a script, or return the result of its key's run.

        Raises:
            BridgeError: As `find_or_start`; `ledger_full`; as `SandboxRunner.sandboxed`.
        """
        try:
            return await self._run_or_resume(job, key)
        except SuspendedRunExistsError:
            return await self._run_or_resume(job, key, is_looked_for=True)

    async def _run_or_resume(self, job: Job, key: str | None, *, is_looked_for: bool = False) -> ExecutionRecord:
        """As `run`.

        Looks for a suspended run of the same code. Normally inside the transaction of the start: nobody waits for the
        result, and a script that already started in a sandbox has had no effect. Before the start, if one is
        likely, so that repeated requests take no sandboxes; and in a session that may have a suspended cell, since the
        start would cost the session's own sandbox (another bridge may have run the next cell dry).

        Args:
            job: The script.
            key: Its key.
            is_looked_for: Whether to look before the start in any case.

        Raises:
            BridgeError: As `run`. SuspendedRunExistsError: There is one.
        """
        asked = [
            script_macs(self.lifecycle.keys, job.code, session, job.requirements, job.language)
            for session in _sessions(job, key)
        ]
        alike: _RunsOfCode | None = None
        named: Key | None = None
        if key is not None:
            values = self.projection()
            named = await whole_key(Key(key, job.client.starter), values.project, values.values_behind)
        else:
            alike = await self._runs_of_code(job, asked, is_looked_for=is_looked_for)
            if alike.waiting is not None and alike.waiting.key is not None:
                named = Key(alike.waiting.key, job.client.starter)
        requests = [mac for macs in asked for mac in macs]
        unless = NO_KEY_NAMES if alike is None else alike.unless
        request: KeyedRequest[ActiveScript | ExecutionRecord] = _Request(self, job, named, requests, unless)
        result = await find_or_start(self.lifecycle, self._principal, named, request, origin="agent")
        if isinstance(result, ActiveScript):
            result = await self._run(result)
        record = result if isinstance(result, ExecutionRecord) else self.stored_record(result)
        if not isinstance(result, ExecutionRecord) and not job.dry_run and waits_for_plan(result.record or {}):
            record.notices.append(
                "nothing was run: this is the answer of the dry run again, on whose list a person has not decided yet; "
                "once they have, send the same code"
            )
        record.is_previous_result = key is not None and record is not result and record.status not in UNFINISHED
        if named is not None and execution_of(named.text) == record.execution:
            released = await release_generated_key(self._store, record.execution, record.status)
            if released and alike is not None and alike.waiting is not None:
                record.notices.append(
                    f"this is the result of the run {record.execution}, which had been suspended; the next "
                    "call with this code starts a new run"
                )
        if alike is not None and record.status in UNFINISHED:
            self._waiting_code.add(alike.name)
        return record

    def stored_record(self, stored: StoredExecution) -> ExecutionRecord:
        """The record of an execution, as it was stored."""
        record = ExecutionRecord.from_json({"execution": stored.id, **(stored.record or {})})
        # The state directory may have been moved, or restored elsewhere, since.
        record.artifacts = [
            row | {"path": str(self._runner.artifact_path(stored.id, row["name"]))} for row in record.artifacts
        ]
        return record

    async def _runs_of_code(self, job: Job, asked: Sequence[Sequence[str]], *, is_looked_for: bool) -> _RunsOfCode:
        """The runs of a script's code that a request without a key may be for.

        Args:
            job: The script.
            asked: The MACs of the code, for each session that it may be of.
            is_looked_for: As `_run_or_resume`.
        """
        servers = self._runner.servers(job)
        names = names_of_code(asked[0][0], servers, job.files)
        waiting = None
        if job.dry_run:
            await self._withdraw_plans(job, names)
        elif is_looked_for or names[0] in self._waiting_code or not (job.cell is None or job.has_no_suspended_cell):
            is_meant = functools.partial(self._is_of_session, job)
            alike = [name for macs in asked for name in names_of_code(macs[0], servers, job.files)]
            waiting = await suspended_run_of_code(self._store, self._principal, job.client.starter, alike, is_meant)
        else:
            return _RunsOfCode(names[0], None, GeneratedKeyNames(names, job.client.starter))
        if waiting is None:
            self._waiting_code.remove(names[0])
        return _RunsOfCode(names[0], waiting)

    async def _is_of_session(self, job: Job, known: StoredExecution) -> bool:
        """Whether a cell is of the very session that a job continues; True for a job that isn't a cell.

        Forks have the seed of their origin, so one of the same name that has ended looks the same.
        """
        place = Cell.of(known)
        if job.cell is None or place is None:
            return True
        if known.bundle.get("dry_run") and place.previous == job.cell.previous:
            # It would have its place.
            return True
        async for stored in chain(self._store, self._principal, job.head):
            at = Cell.of(stored)
            if stored.id == known.id or at is None or at.number <= place.number:
                return stored.id == known.id
        return False

    async def resume(self, stored: StoredExecution, client: Client) -> ExecutionRecord:
        """Resume an interrupted script, or a suspended one that can proceed.

        Args:
            stored: Its execution, as it was read.
            client: Who has it resumed.

        Raises:
            BridgeError: `not_suspended`, `still_waiting`; as `run`.
        """
        status = effective_status(stored)
        can = status == "interrupted" or (status == "suspended" and await can_resume(self._store, stored))
        record = stored.record or {}
        if not can and status == "suspended" and record.get("waiting"):
            raise BridgeError(
                "still_waiting",
                f"The execution {stored.id} still waits. {record['error']['message']}",
                hint=record["error"].get("hint"),
                waiting=record["waiting"],
            )
        if not can:
            hint = f"mcp-bridge execution show {stored.id} has what came of it, and what it waits for."
            raise not_suspended(stored.id, f"it can't be resumed: {status}", hint)
        if stored.key is None:
            # The programs that it has started would be started anew.
            hint = f"mcp-bridge execution cancel {stored.id} cancels it; mcp-bridge execution show says what it did."
            raise not_suspended(stored.id, "it can't be resumed without an idempotency key", hint)
        active = await self.resume_from_record(stored, client)
        if active is None:
            raise not_suspended(stored.id, "somebody has resumed it")
        return active if isinstance(active, ExecutionRecord) else await self._run(active)

    def projection(self) -> ExecutionValues:
        """What projects values of no execution."""
        return self._runner.gate(secrets.token_hex(8), Client(), ()).values

    async def is_same_code(self, known: StoredExecution, code: str) -> bool:
        """Whether an execution is of the given code, except for values that were erased in its own."""
        values = self.projection()
        was, now = await values.project(known.bundle.get("code")), await values.project(code)
        return equal_by_values(was, now, values.values_behind([was, now]))

    async def is_past_dry_run(self, known: StoredExecution) -> bool:
        """Whether an execution that began with a dry run would go on with the run."""
        history = CallHistory(await self.lifecycle.recorder.read(known.id))
        return history.after_dry_run or waits_for_plan(known.record or {})

    async def start(
        self, job: Job, key: Key | None, request: str, unless: GeneratedKeyNames = NO_KEY_NAMES
    ) -> ActiveScript | None:
        """Start an execution; None if its key has one already.

        Args:
            job: The script.
            key: Its key.
            request: The MAC of what is asked for.
            unless: As `Lifecycle.begin`, for one without a key.
        """
        if job.blocked is not None:
            raise job.blocked
        if job.files is not None:
            self._runner.require_files(job)
        job = await self._with_packages(job)
        execution = secrets.token_hex(8)
        gate = self._runner.gate(execution, job.client, job.servers, dry_run=job.dry_run)
        if gate.allowance is not None:
            await gate.allowance.require()
        # As they are resolved now: another server may have that name by the time that the script goes on.
        servers = None if gate.narrowed_to is None else sorted(gate.narrowed_to)
        code = await gate.values.project(job.code)
        began = ScriptStart(
            code,
            # Of what is shown: another would tell of a value that is erased whether a guess is right.
            hashlib.sha256(code.encode()).hexdigest(),
            servers,
            job.timeout,
            job.client.starter,
            None if key is None else key.text,
            None if job.cell is None else job.cell.ref(await gate.values.project(job.cell.session)),
            job.dry_run,
            None if job.files is None else sorted(job.files),
            None if job.packages is None else job.packages.rows(),
            None if job.language == "python" else job.language,
        )
        bundle = _bundle(job, servers, gate.tools.servers)
        row = new_execution("script", execution, self._principal, key, request=request, program=request, bundle=bundle)
        entry = self.lifecycle.entry(began, execution)
        values, recorded = gate.values.values_behind(code), None
        moves: list[Callable[[], Awaitable[bool]]] = []

        def move() -> None:
            # In the transaction of the start: a cell that is there is erased with the one before, whose names it has,
            # and is its session's last one. A dry run isn't.
            if job.cell is not None and job.cell.previous:
                self._store.hold(execution, execution=job.cell.previous)
            if job.cell is not None and self._heads is not None and not job.dry_run:
                moves.append(self._heads.begin_move(self._principal, job.cell.session, job.head, execution))

        if key is None:
            recorded = await self.lifecycle.begin(row, values, entry, unless)
            move()
        elif not await self.lifecycle.start(row, values, entry, move):
            return None
        if job.cell is not None:
            recorded = placement_guard(job.cell.session, recorded, moves)
        return ActiveScript(self._script(execution, gate, row.key), gate, job, recorded=recorded)

    async def _with_packages(self, job: Job) -> Job:
        """A new script with the package set that it is to have: what it asks for, or that of its session.

        Raises:
            BridgeError: `session_language`, `session_packages`; as `SandboxRunner.resolve`, `PackageSet.require_fit`.
        """
        cell = job.cell
        if cell is not None and cell.previous:
            require_language(job.language, cell)
            require_in_session(job.requirements, cell)
            if cell.packages is not None:
                cell.packages.require_fit()
            return replace(job, packages=cell.packages)
        packages = await self._runner.resolve(job) if job.requirements else None
        first = None if cell is None else replace(cell, packages=packages, language=job.language)
        return replace(job, packages=packages, cell=first)

    async def resume_from_record(
        self, known: StoredExecution, client: Client, head: str | None = None
    ) -> ActiveScript | ExecutionRecord | None:
        """Go on with an execution from its record; None if another was quicker.

        Its record, if it can't go on: something of it may have happened, and nobody knows.

        Args:
            known: The execution, as it was read.
            client: Who has it go on.
            head: Of a dry run of a session's cell: the session's last cell, whose place or the one after it may take;
                None where nobody has looked.

        Raises:
            BridgeError: As `PackageSet.require_fit`: it is left as it was.
        """
        job = Job.from_stored(known, client)
        if job.packages is not None:
            job.packages.require_fit()
        last = "" if job.cell is None else await self._placement.last(job.cell)
        # One that was only run dry so far isn't in its session.
        is_in = job.cell is None or last == known.id
        if job.cell is not None and not is_in:
            is_new = job.dry_run and not await self._placement.has_made_calls(known.id)
            if not (is_new and await self._placement.session_is_unchanged(job.cell, last, head)):
                # The session may have ended while it ran.
                raise await self._placement.end_moved_cell(job.cell, known, is_new=is_new)
            await self._placement.require_room(last)
        if not await self.lifecycle.take(known):
            return None
        try:
            history = await self.lifecycle.recorder.read(known.id)
            calls = CallHistory(history)
            job = replace(job, dry_run=job.dry_run and not calls.after_dry_run)
            gate = self._runner.gate(known.id, job.client, job.servers, dry_run=job.dry_run)
            if gate.allowance is not None:
                gate.allowance.stored = await self._store.recorded_bytes(known.id)
            gate.values.adopt(await self._store.values(known.id))
            gate.adopt(self.lifecycle.usage(history))
            for execution in driven(history):
                # What they have used was of the script's limits.
                gate.adopt(self.lifecycle.usage(await self.lifecycle.recorder.read(execution)), execution)
            # Now: no call passes another that waits for it while it is compared with what is recorded.
            await gate.values.projector()
            if calls.after_dry_run and not await self._take_plan(known.id, gate, history):
                return await self._denied_as_a_whole(known.id, history)
            if job.cell is not None and not is_in and not job.dry_run:
                await self._placement.move(job.cell, last, known.id)
            script = self._script(known.id, gate, known.key, calls)
            # In a dry run there are reads alone, which are made again.
            doubtful = [] if job.dry_run else await calls_in_doubt(script.history, gate)
            if not doubtful:
                return ActiveScript(script, gate, job, known.record)
            record = ExecutionRecord(known.id)
            suspend(record, doubtful, _still_waiting(known.record, script.history), if_generated(known.key))
            await self._suspended(record, script)
        except BaseException as exc:
            await self._interrupt(known.id, known.record)
            if isinstance(exc, SessionMovedError) and job.cell is not None:
                interrupted = await self._store.execution(known.id)
                raise await self._placement.end_moved_cell(job.cell, interrupted or known, is_new=True) from None
            raise
        return record

    async def _take_plan(self, execution: str, gate: Gate, history: Sequence[Recorded]) -> bool:
        """Have what is left of an execution's plan be made without another question, if a person has approved it.

        Returns:
            False if a person has denied it.
        """
        asked = plan_approval(await self._store.approvals(execution))
        if asked is None or asked.decision is None:
            return True
        if asked.decision["approved"]:
            gate.approved = remaining_approved_calls(asked.question, history)
        return bool(asked.decision["approved"])

    async def _denied_as_a_whole(self, execution: str, history: Sequence[Recorded]) -> ExecutionRecord:
        """End an execution whose plan was denied: nothing more of it is run."""
        asked = plan_approval(await self._store.approvals(execution))
        assert asked is not None  # it was denied
        error = denied(asked.question, history)
        refused = _refused(execution, error)
        entry = self.lifecycle.entry(ScriptEnd(refused["status"], error=RunError.of(refused["error"])), execution)
        await self.lifecycle.leave(execution, entry, status=refused["status"], record=refused)
        return ExecutionRecord.from_json(refused)

    async def _withdraw_plans(self, job: Job, names: list[str]) -> None:
        """End what waits after earlier dry runs of the same code: the list that is made now takes its place."""
        for known in await self._store.by_keys(self._principal, names, job.client.starter):
            await self._withdraw_plan(known, "there is a later dry run of the same code")

    async def _suspend_with_plan(self, active: ActiveScript, record: ExecutionRecord) -> bool:
        """Suspend an execution whose dry run has ended, until a person has decided on what it has listed.

        Returns:
            False if it is no dry run, or hasn't ended by itself; or if there is nothing to decide, or too much to be
            shown whole.
        """
        script = active.script
        execution = script.execution
        if not script.is_dry or record.status not in ENDED_BY_ITSELF:
            return False
        calls = CallHistory(await self.lifecycle.recorder.read(execution))
        planned = calls.planned()
        if any(call.has_failed_with("plan_too_large") for call in calls.calls.values()):
            record.notices.append(TOO_LARGE)
            return False
        if not planned:
            record.notices.append(NOTHING_LISTED)
            return False
        ended = None if record.status == "success" else record.error
        record.planned = rows(planned)
        cell = active.job.cell
        again = same_code(cell, None if cell is None else await self._placement.origin(cell))
        if not any(one.listed for one in planned):
            record.error = nothing_bound(planned, ended, again)
            return False
        tool = TOOLS[active.job.language]
        asked = question(planned, None if ended is None else ended["message"], tool)
        number = 1 + max((row.effect for row in await self._store.approvals(execution)), default=0)
        await self._store.ask(execution, number, asked)
        script.generate_key()
        if script.made_now is not None:
            await assign_generated_key(self._store, execution, script.made_now, active.job.client.starter)
        record.waiting = [waiting_row(number, time.time(), tool)]
        record.error = plan_error(execution, number, planned, ended, again)
        record.status, record.exit_code = "suspended", 0
        entry = self.lifecycle.entry(ScriptSuspension("suspended", planned=len(planned)), execution)
        await self.lifecycle.leave(execution, entry, status="suspended", record=record.to_keep())
        return True

    async def cancel_stale_plan(self, execution: str) -> bool:
        """End what waits after the dry run of a cell, if that can't be its session's next one any more.

        Returns:
            Whether it can't be, or waits no more.
        """
        known = await self._store.execution(execution, self._principal)
        cell = None if known is None else Cell.of(known)
        if known is None or cell is None or not waits_for_plan(known.record or {}):
            return True
        if await self._placement.session_is_unchanged(cell, await self._placement.last(cell), None):
            return False
        await self._withdraw_plan(known, SESSION_ADVANCED)
        return True

    async def _withdraw_plan(self, known: StoredExecution, why: str) -> None:
        if effective_status(known) == "suspended" and waits_for_plan(known.record or {}):
            # Somebody may have gone on with it just now.
            with contextlib.suppress(BridgeError):
                await cancel_script(self.lifecycle, known, why)
                await self._release_key(known.id)

    async def _run(self, active: ActiveScript) -> ExecutionRecord:
        with observed_run("script", active.script.execution, self._principal) as observed:
            active.job.client.begun(active.script.execution)
            try:
                record = await self._run_to_record(active, observed)
            except SuspendedRunExistsError:
                # It has never been: there is no such execution.
                observed.is_counted = False
                raise
            observed.status = record.status
        return record

    async def _run_to_record(self, active: ActiveScript, observed: ObservedRun) -> ExecutionRecord:
        async def recovered(lost: ActiveScript, record: ExecutionRecord | None, cause: str) -> ActiveScript | None:
            nonlocal active
            again = await self._recovered(lost, record, cause)
            # What is cancelled from now on is this run, and what it waits for counts.
            active = again or active
            return again

        try:
            active, record = await run_with_sandbox_recovery(active, self._run_once, recovered)
            if (paced := await self._paced(active, record)) is not None:
                active = paced  # what is cancelled from now on
                active, record = await run_with_sandbox_recovery(active, self._run_once, recovered)
            with anyio.CancelScope(shield=True):
                await self._keep(active, record)
        except BaseException as exc:
            execution = active.script.execution
            if isinstance(exc, anyio.get_cancelled_exc_class()) and await self._is_left_waiting(active):
                observed.status = "suspended"
                raise
            script = active.script
            is_moved = isinstance(exc, SessionMovedError)
            had_begun = script.has_begun and not is_moved
            # A generated key counts once it is written down.
            resumes = script.kept_key is not None
            if is_moved or (script.is_dry and isinstance(exc, BridgeError) and not script.history.calls):
                # It has a place no more, or was only to be looked at: its key is for what follows.
                # Released first: who waits for it would take the refusal for what the key gave.
                await self._release_key(execution)
                resumes = False
            if resumes or (had_begun and isinstance(exc, Exception)):
                await self._interrupt(execution, active.last_record)
            else:
                observed.status = await self._refuse(execution, exc)
            if had_begun and isinstance(exc, Exception):
                raise _interrupted(execution, exc, resumes=resumes) from exc
            raise
        return record

    async def _is_left_waiting(self, active: ActiveScript) -> bool:
        """Suspend a run that was cancelled while it waited. False if it waited for nothing, or can't be suspended."""
        script = active.script
        with anyio.CancelScope(shield=True), contextlib.suppress(BridgeError):
            is_active = self.lifecycle.under_way(script.execution) is not None
            if not is_active or script.divergence_detector.divergence is not None or not await script.waiting():
                return False
            script.generate_key()
            record = ExecutionRecord(script.execution, status="suspended")
            await self._rest(active, record)
            return True
        return False

    async def _run_once(self, active: ActiveScript) -> ExecutionRecord:
        record = await self._runner.sandboxed(active)
        script = active.script
        return as_lost_unless_waiting(record, is_waiting=not script.hold.is_empty or bool(script.programs.lent))

    async def _can_run_again(self, active: ActiveScript, record: ExecutionRecord) -> bool:
        script = active.script
        if not is_lost(record) or script.divergence_detector.divergence or script.has_unnamed or script.hold.calls:
            # What waits is asked about now, and goes on when it can.
            return False
        past = CallHistory(await self.lifecycle.recorder.read(script.execution))
        return script.is_dry or not await calls_in_doubt(past, active.gate)

    async def _recovered(self, active: ActiveScript, lost: ExecutionRecord | None, cause: str) -> ActiveScript | None:
        """The same execution, from its record; None if it can't be run again."""
        if lost is not None and not await self._can_run_again(active, lost):
            return None
        return await self._run_again(active, cause, at_pace=active.script.at_pace)

    async def _paced(self, active: ActiveScript, record: ExecutionRecord) -> ActiveScript | None:
        """The same execution, from its record, with answers as late as they came; None if that can't make a difference.

        Where a script has diverged, nothing new was done. Not a session's cell: the sandbox has what that has left.
        """
        script = active.script
        divergence = _divergence(script, record)
        if divergence is None or script.at_pace or script.is_dry or active.job.cell is not None:
            return None
        if not may_depend_on_pace(divergence.what, script.history):
            return None
        return await self._run_again(active, str(divergence.error()), at_pace=True)

    async def _run_again(self, active: ActiveScript, cause: str, *, at_pace: bool) -> ActiveScript:
        execution = active.script.execution
        logger.warning("the execution %s is run again from its record: %s", execution, cause)
        resumption = Resumption(recovered=True, servers=self.lifecycle.servers_digest())
        self.lifecycle.recorder.post(self.lifecycle.entry(resumption, execution))
        history = await self.lifecycle.recorder.read(execution)
        past = CallHistory(history)
        gate, job = active.gate, active.job
        if past.after_dry_run:
            await self._take_plan(execution, gate, history)
        elif job.dry_run:
            # By the rules that count calls, none has been made.
            gate = self._runner.gate(execution, job.client, job.servers, dry_run=True)
            gate.values.adopt(await self._store.values(execution))
            gate.adopt(self.lifecycle.usage(history))
        script = self._script(execution, gate, active.script.kept_key, past, at_pace=at_pace)
        script.has_begun = script.has_begun or active.script.has_begun
        return active._replace(script=script, gate=gate)

    async def _keep(self, active: ActiveScript, record: ExecutionRecord) -> None:
        """Record how a run has ended: it is suspended or interrupted and can be resumed, or it is over."""
        script = active.script
        record.dry_run = script.is_dry
        if (divergence := _divergence(script, record)) is not None:
            record.status, record.exit_code, record.error = "error", 1, divergence.error().record()
            if script.kept_key is not None:
                record.error["hint"] += f" mcp-bridge execution cancel {script.execution} ends it."
                await self._suspended(record, script)
                return
        elif await self._leave_resumable(active, record) or await self._suspend_with_plan(active, record):
            return
        await self._end(active, record)

    async def _leave_resumable(self, active: ActiveScript, record: ExecutionRecord) -> bool:
        """Suspend a run of which something waits or is in doubt; interrupt one whose sandbox was lost.

        Returns:
            Whether it can be resumed by its key.
        """
        script = active.script
        if script.key is None or (record.status in ENDED_BY_ITSELF and not script.programs.lent):
            return False
        await self._rest(active, record)
        if record.status == "suspended":
            return True
        if script.kept_key is None or record.error is None or record.error["code"] not in KEY_RETAINING_CODES:
            return False
        record.error["hint"] = f"Try again: {resume_instruction(if_generated(script.key))}, from its record."
        servers = self.lifecycle.servers_digest()
        why = ScriptSuspension("interrupted", RunError.of(record.error), servers=servers)
        entry = self.lifecycle.entry(why, script.execution)
        # What it waited for before, it waits for still.
        before = active.last_record
        due, after = earliest_due(before), last_looked(before)
        await self.lifecycle.leave(script.execution, entry, status="interrupted", record=before, due=due, after=after)
        return True

    async def _end(self, active: ActiveScript, record: ExecutionRecord) -> None:
        """End a run for good."""
        script = active.script
        if record.session is not None and "interrupted" in record.session:
            stored = await self._store.execution(script.execution)
            forkable = None if stored is None else await fork_point(self._store, self._principal, stored)
            record.notices.append(_told_of_interruption(record.session, active.job.client.starter, forkable))
        record.notices += await self._untaken_events(script)
        unused = None
        if active.gate.approved is not None:
            unused = len(active.gate.approved.left)
            record.notices += unused_notices(active.gate.approved)
        outputs = {}
        for name in ("stdout", "stderr", "value"):
            if (text := getattr(record, name)) is not None:
                outputs[name] = hashlib.sha256(text if isinstance(text, bytes) else text.encode()).hexdigest()
        rebuilt = None if record.session is None else record.session.get("rebuilt")
        kept = [{name: row[name] for name in ("name", "size", "sha256")} for row in record.artifacts]
        end = ScriptEnd(record.status, record.exit_code, RunError.of(record.error), outputs, rebuilt, unused, kept)
        entry = self.lifecycle.entry(end, script.execution)
        if script.is_dry and script.kept_key is not None:
            # It was only a dry run: the key is for the run, which may wait for it.
            await self._release_key(script.execution)
        await self.lifecycle.leave(script.execution, entry, status=record.status, record=record.to_keep())

    async def _untaken_events(self, script: ScriptRun) -> list[str]:
        """What is told of events that were sent to a script, and that it hasn't waited for."""
        if not script.may_have_events:
            return []
        left = untaken(await self.lifecycle.recorder.read(script.execution))
        if not left:
            return []
        names = ", ".join(escape_name(event.name) for event in left[:MAX_LISTED])
        return [f"events that were sent to this run, and that it didn't wait for: {names}"]

    async def _rest(self, active: ActiveScript, record: ExecutionRecord) -> None:
        """Suspend a run that has a key, if something of it is in doubt, or waits."""
        script = active.script
        doubtful: list[RecordedCall] = []
        if record.status not in ENDED_BY_ITSELF and not script.is_dry:
            # Its calls were cut short: nobody knows whether they have happened.
            past = CallHistory(await self.lifecycle.recorder.read(script.execution))
            doubtful = await calls_in_doubt(past, active.gate)
        held = {held.call: held for held in script.programs.lent.values()}
        held |= await script.waiting() if _is_at_rest(record) or is_lost(record) else {}
        if doubtful or held:
            if record.status == "suspended":
                record.error = None
            waiting = await ask(self._store, script.execution, held.values(), TOOLS[active.job.language])
            if script.made_now is not None:
                await assign_generated_key(self._store, script.execution, script.made_now, active.job.client.starter)
            suspend(record, doubtful, waiting, if_generated(script.key))
            await self._suspended(record, script)

    async def _suspended(self, record: ExecutionRecord, script: ScriptRun) -> None:
        held = {call: asked for call, asked in script.history.held.items() if call not in script.history.calls}
        held |= {one.call: one.asked for one in script.hold.calls.values() if one.kind == "approval"}
        # A person decides on these, and the script is to ask for the same when it goes on.
        asked = {call: asked.digested() for call, asked in held.items()}
        kept = record.to_keep()
        due, after = earliest_due(kept), last_looked(kept)
        servers = self.lifecycle.servers_digest()
        suspension = ScriptSuspension("suspended", RunError.of(record.error), asked, servers=servers)
        entry = self.lifecycle.entry(suspension, record.execution)
        await self.lifecycle.leave(record.execution, entry, status="suspended", record=kept, due=due, after=after)

    async def _interrupt(self, execution: str, record: dict[str, Any] | None) -> None:
        """Leave a run that has ended without a record: by its key it can go on, and without one be cancelled.

        Args:
            execution: Its id.
            record: As it was left last: what it waited for, it waits for still.
        """
        # Perhaps it has ended since nothing can be written any more.
        with contextlib.suppress(BridgeError):
            await self.lifecycle.leave(
                execution, status="interrupted", record=record, due=earliest_due(record), after=last_looked(record)
            )

    async def _refuse(self, execution: str, exc: BaseException) -> str:
        """Finish a run that has ended without a record, and can't go on. Its status."""
        refused = _refused(execution, exc)
        status: str = refused["status"]
        if self.lifecycle.under_way(execution) is not None:
            entry = self.lifecycle.entry(ScriptEnd(status), execution)
            with contextlib.suppress(BridgeError):
                await self.lifecycle.leave(execution, entry, status=status, record=refused)
        return status

    async def _release_key(self, execution: str) -> None:
        with anyio.CancelScope(shield=True), contextlib.suppress(BridgeError):
            stored = await self._store.execution(execution, self._principal)
            if stored is not None and stored.key is not None:
                await self._store.release_key(stored)

    def _script(
        self, execution: str, gate: Gate, key: str | None, history: CallHistory | None = None, *, at_pace: bool = False
    ) -> ScriptRun:
        recorder, policy = self.lifecycle.recorder, gate.policy_hash
        return ScriptRun(execution, self._store, recorder, gate, policy, history, key=key, at_pace=at_pace)


def _divergence(script: ScriptRun, record: ExecutionRecord) -> Divergence | None:
    """Where a run has gone another way than its record, or None."""
    detector = script.divergence_detector
    return detector.final_divergence() if record.status in ENDED_BY_ITSELF else detector.divergence


def _bundle(job: Job, servers: list[str] | None, offered: Mapping[str, str]) -> dict[str, Any]:
    """What `Job.from_stored` reads of a script."""
    bundle: dict[str, Any] = {
        "code": job.code,
        "servers": servers,
        "timeout": job.timeout,
        "offered": dict(offered),
        "showing": RENDERING_VERSION,
    }
    if job.cell is not None:
        bundle["cell"] = job.cell.to_bundle()
    elif job.packages is not None:
        bundle["packages"] = job.packages.rows()
    if job.language != "python":
        bundle["language"] = job.language
    if job.dry_run:
        bundle["dry_run"] = True
    if job.files is not None:
        bundle["files"] = sorted(job.files)
    return bundle


class _RunsOfCode(NamedTuple):
    """What is known of runs of the same code.

    Attributes:
        name: The first name of the code.
        waiting: The run that a request without a key is for; None if there is none.
        unless: A new run is started only if none has one of these names.
    """

    name: str
    waiting: StoredExecution | None
    unless: GeneratedKeyNames = NO_KEY_NAMES


class _Request(NamedTuple):
    """As `KeyedRequest`."""

    scripts: Scripts
    job: Job
    key: Key | None
    requests: Sequence[str]
    unless: GeneratedKeyNames

    @property
    def asker(self) -> Asker | None:
        # A dry run makes nothing, whatever a person says.
        return None if self.job.dry_run else self.job.client.asker

    async def start(self) -> ActiveScript | ExecutionRecord | None:
        return await self.scripts.start(self.job, self.key, self.requests[0], self.unless)

    async def resume(self, known: StoredExecution) -> ActiveScript | ExecutionRecord | None:
        if self.job.dry_run and await self.scripts.is_past_dry_run(known):
            return self.scripts.stored_record(known)
        head = None if self.job.cell is None or self.job.cell.previous != previous_of(known) else self.job.head
        return await self.scripts.resume_from_record(known, self.job.client, head)

    async def is_same(self, known: StoredExecution) -> bool:
        if self.job.dry_run and not known.bundle.get("dry_run"):
            return False
        if known.request:
            return known.request in self.requests
        # Forgotten, with a value that was written out in it.
        place, cell = Cell.of(known), self.job.cell
        is_same_session = (place and place.session) == (cell and cell.session)
        is_same_language = known.bundle.get("language", "python") == self.job.language
        return (
            known.kind == "script"
            and is_same_session
            and is_same_language
            and is_same_packages(self.job.requirements, known)
            and await self.scripts.is_same_code(known, self.job.code)
        )

    async def may_be_operators(self, known: StoredExecution) -> bool:
        # With the same servers and files the same was allowed.
        servers = None if self.job.servers is None else list(self.job.servers)
        files = None if self.job.files is None else sorted(self.job.files)
        return bool(known.bundle["servers"] == servers and known.bundle.get("files") == files)


def _sessions(job: Job, key: str | None) -> list[str | None]:
    """What identifies the session of a script in requests for it, the first for a new one; None for a script alone."""
    cell = job.cell
    if cell is None:
        return [None]
    if key is not None:
        # The same request is the same after a session has begun anew.
        return [cell.session]
    own, begun_dry = f"{cell.session}/{cell.seed}", f"{cell.session}/"
    if job.dry_run:
        # Nobody knows the seed of a session that is yet to begin.
        return [own if cell.previous else begun_dry]
    return [own, begun_dry] if cell.number <= 2 else [own]  # noqa: PLR2004  (the first cell, and one after it)


def _told_of_interruption(cell: CellFields, starter: Starter, forkable: str | None) -> str:
    """What is told of a cell that was interrupted at its time-out: what becomes of its session.

    Args:
        cell: The cell.
        starter: Who has started it.
        forkable: The last cell before it that a fork can continue from, or None.
    """
    name = cell["name"]
    if starter == "agent":
        return (
            f"the cell was interrupted, and the session {name!r} continues; if its "
            "sandbox is lost, it can't be rebuilt past this cell"
        )
    way = f"to start over, end it: mcp-bridge session end {name}"
    if forkable:
        way = f"to go on from before it, fork it: --session NAME --fork {forkable}"
    return (
        f"the cell was interrupted, and a command's sandbox ends with the command: the session {name!r} can't be"
        f" rebuilt past this cell; {way}"
    )


def _is_at_rest(record: ExecutionRecord) -> bool:
    """Whether a run has ended as one does while calls of it wait: by itself, or because the whole took too long.

    A script that has computed for too long has failed, whatever else of it waits: it would do so again.
    """
    if record.status == "timeout":
        return record.error is None or record.error["code"] != "script_timeout"
    return record.status == "suspended"


def _still_waiting(record: dict[str, Any] | None, history: CallHistory) -> list[WaitingRow]:
    """What a run waited for and waits for still, when it can't go on for another reason."""
    rows: list[WaitingRow] = [row for row in (record or {}).get("waiting", []) if row["step"] != PLAN]
    return [row for row in rows if row["call"] not in history.calls or history.calls[row["call"]].outcome is None]


def _refused(execution: str, exc: BaseException) -> dict[str, Any]:
    ended = {"execution": execution, "exit_code": 1}
    if isinstance(exc, BridgeError):
        return ended | {"status": "refused", "error": exc.record()}
    if isinstance(exc, Exception):
        return ended | {"status": "refused", "error": {"code": "internal_error", "message": ""}}
    return ended | {"status": "cancelled"}


def _interrupted(execution: str, exc: Exception, *, resumes: bool) -> RunInterruptedError:
    """The error for a script that had begun, and was ended by another error; `resumes` if its key resumes it."""
    if not isinstance(exc, BridgeError):
        logger.error("running the execution %s failed", execution, exc_info=exc)
        exc = BridgeError("internal_error", "The bridge met an internal error; its log has the details.")
    again = (
        "Asked for again with the same idempotency key, it resumes from its record."
        if resumes
        else f"Asking again runs it from its beginning: `mcp-bridge execution show {execution}` has what it did."
    )
    return RunInterruptedError(execution, exc, again)


def driven(history: Iterable[Recorded]) -> list[str]:
    """The programs that a script has driven to where they couldn't go on; not those whose record it was only given.

    Args:
        history: The script's entries.
    """
    begun: set[str] = set()
    ended: dict[str, None] = {}
    for row in history:
        match understood(row):
            case RequestIntent(Request("program"), call):
                begun.add(call)
            case RequestOutcome(Request("program"), call, Success({"record": {"trace_id": execution}})) if (
                call in begun
            ):
                ended[execution] = None
            case _:
                pass
    return list(ended)
