"""The bridge as a whole: one engine, one image, one fleet of servers, and the executions that use them.

The only place that knows of every part. Whatever serves the bridge (an MCP server, a command) enters it once, calls
`run`, and leaves it; leaving ends every container and every server.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from mcp_bridge.downstream.catalog.catalog import Catalog
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import ArtifactWriter, Files, Memories
from mcp_bridge.executions.commands import Client
from mcp_bridge.executions.retention import keep_tidy, make_room, tidy
from mcp_bridge.executions.retention import sweep as sweep_files
from mcp_bridge.executions.scripts.job import Job
from mcp_bridge.governance.governance import LOCAL, Governance, load_governance, refuse_local
from mcp_bridge.governance.server_credentials import remote_access
from mcp_bridge.governance.server_environment import environment, shown_output
from mcp_bridge.governance.tool_names import PRINCIPAL, resolve, servers_named
from mcp_bridge.host import guest_bundle, warm_pool
from mcp_bridge.host.channel import ChannelLimits, start_line
from mcp_bridge.host.engine_setup import Prepared, not_enforced, prepare
from mcp_bridge.host.log_masking import masked_logs
from mcp_bridge.host.loop_watch import LoopWatch, watched
from mcp_bridge.host.memory import available_memory
from mcp_bridge.host.pool_report import remove_report, report_of, write_report
from mcp_bridge.host.removals import Removals
from mcp_bridge.host.sandbox_run import MAX_VALUE_BYTES, RunLimits, SandboxRun
from mcp_bridge.host.warm_pool import PoolSize, WarmPool
from mcp_bridge.ledger.log.allowance import Allowance
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.offload import off_loop
from mcp_bridge.policy.rules.snapshot import layered
from mcp_bridge.private_files import state_directory
from mcp_bridge.sandbox.engine import EXECUTION_LABEL, OWNER_LABEL, STARTED_AHEAD, Limits, SandboxProcess, SandboxSpec
from mcp_bridge.sandbox.ownership import owner_label, sweep
from mcp_bridge.wire import messages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from anyio.abc import TaskGroup

    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.executions.commands import Commands, Progress
    from mcp_bridge.executions.in_doubt import Settlement
    from mcp_bridge.executions.lifecycle import Lifecycle
    from mcp_bridge.executions.programs.commands import ProgramCommands
    from mcp_bridge.executions.programs.lifecycle import Programs
    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.executions.replay_result import Replayed
    from mcp_bridge.executions.scripts.commands import ScriptCommands
    from mcp_bridge.executions.scripts.lifecycle import ActiveScript, Scripts
    from mcp_bridge.executions.scripts.live_output import LiveOutput
    from mcp_bridge.gate.gate import Gate
    from mcp_bridge.gate.policy_check import Asker
    from mcp_bridge.governance.denied_steps import DeniedStep
    from mcp_bridge.host.request_handlers import Requests
    from mcp_bridge.kernel.events import Resume
    from mcp_bridge.kernel.program_parser import Program
    from mcp_bridge.ledger.log.file_size import Measured
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.publish.publish_loop import Publisher
    from mcp_bridge.ledger.storage.execution_store import Starter, StoredExecution
    from mcp_bridge.models.sampling import Sampler
    from mcp_bridge.policy.rules.budgets import Usages
    from mcp_bridge.policy.rules.call import Origin
    from mcp_bridge.policy.rules.snapshot import PolicySnapshot
    from mcp_bridge.sandbox.engine import Engine, SandboxProcess
    from mcp_bridge.settings import Settings

logger = logging.getLogger(__name__)

GUEST_SILENCE_SECONDS = 120
"""After so long without a word from the host a sandbox ends itself."""

GUEST_WAITING_SECONDS = 2 * warm_pool.MAX_WAITING_SECONDS
"""After so long without an execution a sandbox that was started ahead ends itself."""

HANDOVER_SECONDS = 10.0
"""How long a container from the pool may take to begin its execution, before another takes its place. A few
milliseconds suffice, unless its monitor is gone or the machine stands still."""

MAX_HANDOVERS = 3
"""Containers from the pool that may fail one execution before it gets one that is started for it."""

MAX_CODE_BYTES = 8 << 20


class _Ran(NamedTuple):
    """A script that has run: its container, what answered it, and its record."""

    process: SandboxProcess
    requests: Requests
    record: ExecutionRecord


class Bridge:
    """Runs scripts. An async context manager, made by `open_bridge`."""

    def __init__(
        self, settings: Settings, fleet: Fleet, tasks: TaskGroup, database: Database, governance: Governance
    ) -> None:
        self.settings = settings
        self.fleet = fleet
        self.catalog = Catalog(fleet, settings.state_dir)
        self.files = Files(settings.state_dir, settings.ledger.max_files_size)
        self._memories = Memories(settings.state_dir)
        self.loop_watch = LoopWatch()
        """What has held up this bridge's event loop."""
        self._tasks = tasks
        self._governance = governance
        self._began_under = governance.snapshot
        self._were_in_force: dict[str, int] = {}
        """As `usage_from_history` has similar policies: every policy of this bridge lies over the first one."""
        self._withdrawn: frozenset[str] = frozenset()
        """The servers that have been taken out of the configuration since, `LOCAL` among them."""
        self._database = database
        self.catalog.add_local(governance.registry)
        self._places = anyio.Semaphore(settings.max_concurrent)
        self._removals = Removals(tasks, settings.max_concurrent)
        self._admitted = 0
        """Scripts that run or wait for a place."""
        self.pool: WarmPool | None = None
        """The containers that are started ahead; None for a bridge that has none, or has started none yet."""
        self._has_pool = False
        self._told: list[Callable[[str], None]] = []
        """Who wants to know what takes time while the engine and the image are found."""
        self._preparing = anyio.Lock()
        self._prepared: Prepared | None = None

    def restrict(self, servers: AbstractSet[str], policy: PolicySnapshot) -> None:
        """From now on hold what begins to what the configuration has become, too: never to less than at the start.

        Args:
            servers: The names of the servers that there still are; `LOCAL` for the operator's own tools.
            policy: What decides, by the configuration as it is.
        """
        self._withdrawn = frozenset({*self.fleet.servers, LOCAL}) - servers
        started = self._began_under
        snapshot = started if policy.hash == started.hash else layered(started, policy)
        self._governance = replace(self._governance, snapshot=snapshot)
        self._were_in_force |= dict.fromkeys((started.hash, snapshot.hash), started.count)
        self.lifecycle.policy_hash, self.lifecycle.similar_policies = snapshot.hash, self._were_in_force

    def measured(self) -> Measured:
        """How large the ledger is."""
        return self._database.measured

    @functools.cached_property
    def lifecycle(self) -> Lifecycle:
        """That of the bridge's executions."""
        from mcp_bridge.executions.idempotency.request_identity import Keys
        from mcp_bridge.executions.lifecycle import Lifecycle

        return Lifecycle(
            ProgramStore(self._database),
            SqliteRecorder(self._database),
            Keys(self._database.master.requests, self._database.old_requests),
            self._governance.snapshot.hash,
            retry_failed=self.settings.ledger.retry_failed,
        )

    @functools.cached_property
    def programs(self) -> Programs:
        """The bridge's programs."""
        from mcp_bridge.executions.programs.lifecycle import ProgramRules, Programs

        rules = ProgramRules(
            self._denied_steps, self._governance.refuses_denied_steps, self.settings.ledger.subject_fields
        )
        return Programs(self.lifecycle, self._governance.programs, self._tasks, rules)

    async def _denied_steps(self, program: Program, origin: Origin) -> list[DeniedStep]:
        from mcp_bridge.governance.denied_steps import denied_steps

        # On a thread where it is large: each step is held against all rules.
        return await off_loop(
            program.data, denied_steps, program, origin, self._governance, self.catalog, self._narrow(None)
        )

    @functools.cached_property
    def scripts(self) -> Scripts:
        """The bridge's scripts."""
        from mcp_bridge.executions.scripts.lifecycle import Scripts

        return Scripts(self.lifecycle, PRINCIPAL, self)

    @functools.cached_property
    def _usages(self) -> Usages:
        from mcp_bridge.policy.rules.budgets import Usages

        return Usages()

    async def prepare(self, notify: Callable[[str], None] | None = None) -> Prepared:
        """Find the engine and the image, building it if need be. The first call works, later ones are free.

        Args:
            notify: Told in a sentence what takes time.

        Raises:
            BridgeError: No working sandbox: `no_runtime`, `image_missing`, `image_build_failed`, `disk_full`, ….
        """
        if self._prepared is None:
            if notify is not None:
                self._told.append(notify)
            try:
                async with self._preparing:
                    if self._prepared is None:
                        self._prepared = await prepare(self.settings, self._tell)
                        self._tasks.start_soon(self._sweep, self._prepared.engine)
            finally:
                if notify is not None:
                    self._told.remove(notify)
        self._start_pool(self._prepared)
        return self._prepared

    def _tell(self, text: str) -> None:
        for notify in self._told:
            notify(text)

    def _start_pool(self, prepared: Prepared) -> None:
        settings = self.settings
        if self.pool is not None or not self._has_pool or not settings.pool_max:
            return
        self.pool = pool = WarmPool(
            lambda: prepared.engine.start(self._spec(STARTED_AHEAD, prepared)),
            guest_bundle.bundle(prepared.image.magic),
            PoolSize(settings.pool_min, max(settings.pool_min, settings.pool_max)),
            settings.sandbox_start_timeout,
            lambda: available_memory() > settings.memory,
            lambda: write_report(settings.state_dir, report_of(pool)),
        )
        self._tasks.start_soon(self.pool.run)

    async def start_ahead(self) -> None:
        """As `prepare`, and from now on have containers started before there is an execution for them.

        Raises:
            BridgeError: As `prepare`.
        """
        try:
            prepared = await self.prepare()
            # Compiled once in a process, and not on the loop.
            await anyio.to_thread.run_sync(guest_bundle.bundle, prepared.image.magic)
        finally:
            # Where there is no engine yet, a later `prepare` may find one.
            self._has_pool = True
        self._start_pool(prepared)

    def stop_pool(self) -> None:
        """Remove the containers that wait, and start no more."""
        self._has_pool = False
        if self.pool is not None:
            self.pool.close()
            remove_report(self.settings.state_dir)

    async def run(
        self,
        code: str,
        *,
        servers: Sequence[str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        key: str | None = None,
        starter: Starter = "agent",
        progress: Progress | None = None,
        notify: Callable[[str], None] | None = None,
        asker: Asker | None = None,
        sampler: Sampler | None = None,
        live: LiveOutput | None = None,
        news: Callable[[str], None] | None = None,
    ) -> ExecutionRecord:
        """Run a script in a fresh sandbox.

        Args:
            code: Python source.
            servers: Names or aliases of the servers it may use; all by default.
            timeout: Seconds of its own time.
            key: Idempotency key: it runs once, whoever asks for it how often; who asks later gets what it gave. One
                whose process has died, or for which something has come about that it waits for, goes on. Without
                one, what waits of the same code goes on.
            starter: Who asks. The keys of agents are others than those of operators.
            progress: Told what the script reports.
            notify: Told what takes time before it starts.
            asker: Asks a person; without one, what needs approval is suspended.
            sampler: Asks the client's model.
            live: Tells what the script prints while it runs.
            news: Told what servers say while they work on its calls: their progress, and what they log.

        Raises:
            BridgeError: It never ran. Bad requests: `empty_code`, `code_too_large`, `bad_code`, `bad_timeout`,
                `unknown_server`, `bad_key`, `key_conflict`, `unknown_run`. Too many: `busy`. No working sandbox: as
                `prepare` and `SandboxProcess.wait`.
        """
        client = Client(starter, time.monotonic(), asker, sampler, notify, progress, live, news)
        job = Job(code, servers, timeout, client)
        self._check(code, timeout)
        self._start_line("", job)
        with self._admit():
            return await self.scripts.run(job, key)

    @contextlib.contextmanager
    def _admit(self) -> Iterator[None]:
        """Count a script that runs or waits for a place.

        Raises:
            BridgeError: `busy`: too many wait already.
        """
        settings = self.settings
        if self._admitted >= settings.max_concurrent + settings.max_queued:
            raise BridgeError(
                "busy",
                f"{settings.max_concurrent} runs are under way, and {settings.max_queued} wait.",
                hint="Try again when some have ended.",
                waiting=settings.max_queued,
            )
        self._admitted += 1
        try:
            with self.pool.execution() if self.pool is not None else contextlib.nullcontext():
                yield
        finally:
            self._admitted -= 1

    def gate(
        self, execution: str, client: Client, servers: Sequence[str] | None = None, recorder: Recorder | None = None
    ) -> Gate:
        """As `SandboxRunner.gate`."""
        from mcp_bridge.gate.allowed_tools import AllowedTools
        from mcp_bridge.gate.execution_values import ExecutionValues
        from mcp_bridge.gate.gate import Gate

        governance = self._governance
        # A replay keeps nothing: it makes no call.
        store = None if recorder else self.lifecycle.store.store_values
        allowance = Allowance(self._database)
        allowance.counts(execution)
        return Gate(
            PRINCIPAL,
            governance,
            AllowedTools(self.catalog, self._narrow(servers), governance.registry.tools),
            ExecutionValues(governance.vault, governance.patterns, store),
            self._usages,
            client.asker,
            client.sampler,
            allowance,
            client.news,
            narrowed=servers is not None,
        )

    def servers(self, job: Job) -> list[str] | None:
        """As `SandboxRunner.servers`."""
        return None if job.servers is None else sorted(self._narrow(job.servers))

    @property
    def max_artifact_size(self) -> int:
        """As `SandboxRunner.max_artifact_size`."""
        return self.settings.max_artifact_size

    async def sandboxed(self, active: ActiveScript, artifacts: ArtifactWriter | None = None) -> ExecutionRecord:
        """As `SandboxRunner.sandboxed`."""
        if artifacts is None:
            artifacts = ArtifactWriter(self.files, active.script.execution, self.max_artifact_size)
        try:
            return await self._sandboxed(active, artifacts)
        finally:
            artifacts.abort()

    async def _sandboxed(self, active: ActiveScript, artifacts: ArtifactWriter) -> ExecutionRecord:
        script, gate, job, _ = active
        execution = script.execution
        limit = self._check(job.code, job.timeout)
        async with self._places:
            allowed = self._narrow(job.servers)
            if script.live and not script.history.calls:
                # While its sandbox starts: one after the other, each would take the second that it is first used in.
                self.catalog.start_ahead(servers_named(job.code, allowed))
            prepared = await self.prepare(job.client.notify)
            await self._removals.room()
            replays = bool(script.history.calls) or not script.live
            first = self._start_line(execution, job, replays=replays)
            process, requests, record = await self._in_container(prepared, first, limit, active, artifacts)
            if record.status in {"success", "error", "exit"} and script.divergence is None:
                # The answer doesn't wait for the container's removal; leaving the bridge does.
                self._removals.leave(process)
            else:
                await process.aclose()
            await record.project(gate.values)
            if record.status in {"protocol_error", "call_limit"} and record.error and script.live:
                self.programs.record_violation(execution, record.error["message"])
            if artifacts.written:
                # Nothing that is answered may be lost.
                await anyio.to_thread.run_sync(artifacts.sync)
            record.calls = requests.calls
            record.notices += requests.notices
            if _looked_for_a_server(record):
                record.notices += self.fleet.missing
            record.artifacts = artifacts.written
            record.limits_not_enforced = not_enforced(prepared.report)
            if not prepared.report.choice.seccomp:
                record.notices.append("no seccomp profile holds this sandbox; see mcp-bridge doctor")
            return record

    async def _in_container(
        self, prepared: Prepared, first: bytes, limit: RunLimits, active: ActiveScript, artifacts: ArtifactWriter
    ) -> _Ran:
        """Run a script in a container from the pool, or in one that is started for it."""
        for _ in range(MAX_HANDOVERS):
            warm = await self.pool.take() if self.pool is not None else None
            if warm is None:
                break
            runner, requests = self._runner(warm, first, replace(limit, start=HANDOVER_SECONDS), active, artifacts)
            try:
                record = await runner.run()
            except BridgeError:
                if runner.has_begun:
                    await warm.aclose()
                    raise
            except BaseException:
                await warm.aclose()
                raise
            else:
                if runner.has_begun:
                    return _Ran(warm, requests, record)
            finally:
                await requests.close()
            # Nothing of the script was heard, so it has had no effect: another container may begin it.
            logger.info(
                "a container that was started ahead was lost before its execution %s began", active.script.execution
            )
            self._removals.end(warm)
        process = await prepared.engine.start(self._spec(active.script.execution, prepared))
        runner, requests = self._runner(
            process, guest_bundle.bundle(prepared.image.magic) + first, limit, active, artifacts
        )
        try:
            return _Ran(process, requests, await runner.run())
        except BaseException:
            await process.aclose()
            raise
        finally:
            await requests.close()

    def _runner(
        self, process: SandboxProcess, first: bytes, limit: RunLimits, active: ActiveScript, artifacts: ArtifactWriter
    ) -> tuple[SandboxRun, Requests]:
        from mcp_bridge.host.request_handlers import Requests

        script, gate, job, _ = active
        requests = Requests(
            self._memories, self.files, artifacts, gate, self.programs.effects(gate), self.programs, script
        )
        client = job.client
        run = SandboxRun(process, script.execution, first, limit, requests, client.progress, client.began, client.live)
        return run, requests

    def _start_line(self, execution: str, job: Job, *, replays: bool = False) -> bytes:
        servers = [{"name": name, "alias": alias} for name, alias in self._narrow(job.servers).items()]
        return start_line(messages.ExecutionStart(execution, job.code, servers, MAX_VALUE_BYTES, replays))

    async def run_program(
        self,
        program: Any,
        context: dict[str, Any] | None = None,
        key: str | None = None,
        *,
        starter: Starter = "agent",
        asker: Asker | None = None,
        sampler: Sampler | None = None,
    ) -> dict[str, Any]:
        """Run a program without a sandbox: nothing of it is code.

        Args:
            program: An object, or the name of one.
            context: Names and values.
            key: Idempotency key.
            starter: As `run`.
            asker: As `run`.
            sampler: As `run`.

        Returns:
            Its record, as `messages.TraceGet` has it.

        Raises:
            BridgeError: It was not started: as `Programs.start`.
        """
        client = Client(starter, asker=asker, sampler=sampler)
        return await self._program_commands.start(program, context or {}, key, client)

    async def resume_execution(
        self,
        execution: str,
        event: Resume | None = None,
        *,
        asker: Asker | None = None,
        sampler: Sampler | None = None,
    ) -> dict[str, Any]:
        """Go on with an execution: a program without a sandbox, a script in one.

        Args:
            execution: Its id.
            event: As `Commands.resume`.
            asker: As `run`.
            sampler: As `run`.

        Raises:
            BridgeError: `unknown_trace`; as `Commands.resume`.
        """
        stored = await self.lifecycle.stored(execution, PRINCIPAL)
        client = Client(began=time.monotonic(), asker=asker, sampler=sampler)
        return await self._commands(stored).resume(stored, event, client)

    async def cancel_execution(self, execution: str, reason: str) -> dict[str, Any]:
        """Cancel an execution that is suspended or interrupted; what a program's steps want undone is undone.

        Raises:
            BridgeError: `unknown_trace`; as `Commands.cancel`.
        """
        stored = await self.lifecycle.stored(execution, PRINCIPAL)
        return await self._commands(stored).cancel(stored, reason)

    async def settle_execution(
        self, execution: str, name: str | None, settlement: Settlement, *, and_resume: bool, asker: Asker | None = None
    ) -> dict[str, Any]:
        """Settle a call in doubt by a person's word. Only the command line leads here.

        Args:
            execution: Its id.
            name: As `Commands.settle`.
            settlement: The person's word.
            and_resume: Whether to resume the execution at once.
            asker: As `run`.

        Raises:
            BridgeError: `unknown_trace`; as `Commands.settle`.
        """
        stored = await self.lifecycle.stored(execution, PRINCIPAL)
        client = Client(began=time.monotonic(), asker=asker)
        return await self._commands(stored).settle(stored, name, settlement, client, and_resume=and_resume)

    def _commands(self, stored: StoredExecution) -> Commands:
        return self._script_commands if stored.kind == "script" else self._program_commands

    @functools.cached_property
    def _program_commands(self) -> ProgramCommands:
        from mcp_bridge.executions.programs.commands import ProgramCommands

        return ProgramCommands(self.programs, PRINCIPAL, self)

    @functools.cached_property
    def _script_commands(self) -> ScriptCommands:
        from mcp_bridge.executions.scripts.commands import ScriptCommands

        return ScriptCommands(self.scripts)

    async def replay_execution(self, stored: StoredExecution, other: Program | None = None) -> Replayed:
        """Run an execution against its record, with no effects.

        Raises:
            BridgeError: As `replayed`.
        """
        from mcp_bridge.executions.replay import replayed

        return await replayed(self.lifecycle.store, self.lifecycle.recorder, stored, other, self)

    async def plan_program(self, intent: str) -> dict[str, Any]:
        """Have the configured model write a program.

        Raises:
            BridgeError: As `plan_program`.
        """
        from mcp_bridge.executions.programs.planning import plan_program

        gate = self.gate(secrets.token_hex(8), Client())
        return await self.programs.library.plan(intent, PRINCIPAL, functools.partial(plan_program, gate))

    def _check(self, code: str, timeout: float | None) -> RunLimits:
        settings = self.settings
        if not code.strip():
            raise BridgeError("empty_code", "There is no code to run.", hint="Pass Python source in 'code'.")
        if len(code) > MAX_CODE_BYTES:
            raise BridgeError("code_too_large", f"The code has {len(code)} characters; the limit is {MAX_CODE_BYTES}.")
        seconds = settings.timeout if timeout is None else timeout
        if not 0 < seconds <= settings.max_timeout:
            raise BridgeError(
                "bad_timeout",
                f"timeout is {seconds:g}; it must be over 0 and at most {settings.max_timeout:g} seconds.",
                hint="The operator can raise max_timeout." if seconds > 0 else None,
                maximum=settings.max_timeout,
            )
        return RunLimits(
            timeout=seconds,
            wall=max(settings.wall_timeout, seconds),
            start=settings.sandbox_start_timeout,
            output=settings.max_output_size,
            channel=ChannelLimits(settings.max_in_flight, settings.max_calls, settings.max_call_size),
        )

    def aliases(self) -> list[str]:
        """What scripts call the servers that there are."""
        return list(self._narrow(None).values())

    def _narrow(self, servers: Sequence[str] | None) -> dict[str, str]:
        """Configured names with aliases; the argument can only leave servers out."""
        everything = {
            name: server.alias
            for name, server in self.fleet.servers.items()
            if server.spec.enabled and name not in self._withdrawn
        }
        if self._governance.registry.tools and LOCAL not in self._withdrawn:
            everything[LOCAL] = LOCAL
        if servers is None:
            return everything
        try:
            return {(name := resolve(asked, everything)): everything[name] for asked in servers}
        except BridgeError as exc:
            if exc.code == "unknown_server" and self.fleet.missing:
                exc.hint = " ".join([exc.hint or "", *self.fleet.missing]).strip()
            raise

    def _spec(self, execution: str, prepared: Prepared) -> SandboxSpec:
        from mcp_bridge.sandbox.image.store import ENVIRONMENT

        settings = self.settings
        user = settings.container_user
        # What no control group holds, process 1 holds by rlimits.
        enforced = prepared.report.choice.enforced
        words = (
            0 if enforced.memory else settings.memory,
            0 if enforced.pids else settings.pids,
            GUEST_SILENCE_SECONDS,
            GUEST_WAITING_SECONDS,
        )
        return SandboxSpec(
            image=prepared.image.reference,
            # Not the execution's: it may have another, when it is run again.
            name=f"mcp-bridge-{secrets.token_hex(8)}",
            argv=["python3", "-I", "-S", "-E", "-c", guest_bundle.loader(), *map(str, words)],
            limits=Limits(
                memory=settings.memory,
                pids=settings.pids,
                cpus=settings.cpus,
                tmp=settings.tmp_size,
                workspace=settings.workspace_size,
            ),
            user=user if ":" in user else f"{user}:{user}",
            labels={OWNER_LABEL: owner_label(), EXECUTION_LABEL: execution},
            environment=ENVIRONMENT,
        )

    async def _sweep(self, engine: Engine) -> None:
        """Remove what bridges that are gone left behind."""
        try:
            for container in await sweep(engine):
                logger.warning("removed the container %s of a bridge that is gone", container)
            await sweep_files(self._database, self.files, self.settings.ledger)
        except (BridgeError, OSError) as exc:
            logger.warning("the sweep for left-over containers failed: %s", exc)


def _looked_for_a_server(record: ExecutionRecord) -> bool:
    """Whether a script has failed for a name that may be a server's."""
    message = str((record.error or {}).get("message", "")).lower()
    return "no mcp server" in message or "there is no server" in message


@asynccontextmanager
async def open_bridge(
    settings: Settings,
    specs: Sequence[ServerSpec],
    governance: Governance | None = None,
    *,
    missing: tuple[str, ...] = (),
) -> AsyncGenerator[Bridge]:
    """A bridge over these servers. Leaving it ends every container and server, even under cancellation.

    Args:
        settings: The settings.
        specs: The servers.
        governance: The operator's word; by default that of an empty configuration.
        missing: As `Discovery.missing`.

    Raises:
        BridgeError: `database_unusable`, `database_busy`, `database_newer`, `ledger_damaged`, `key_missing`,
            `key_unusable`, `keyring_missing`, `state_unusable`.
    """
    state_directory(settings.state_dir, durable=True)
    if governance is None:
        governance = load_governance({}, None, Path.cwd(), settings.state_dir)
    refuse_local(governance, specs)
    with masked_logs(governance.vault), watched() as watch:
        async with Database(
            settings.state_dir / FILE_NAME, settings.ledger.master_key, owner_label(), settings.ledger.quota
        ) as database:
            # What fails does so before there is a task group: out of one, an error comes as one of a group.
            files = Files(settings.state_dir, settings.ledger.max_files_size)
            if database.is_new:
                logger.warning("a ledger begins in %s. %s", settings.state_dir, settings.ledger.retention())
            await tidy(database, files, settings.ledger)
            database.reclaim = functools.partial(make_room, database, files, settings.ledger)
            publishing = await _publishing(database, settings, governance.base)
            async with (
                Fleet(
                    specs,
                    idle_timeout=settings.runtime_idle_timeout,
                    environment=environment(settings, governance),
                    access=remote_access(governance),
                    mask_output=shown_output(governance),
                    missing=missing,
                ) as fleet,
                anyio.create_task_group() as tasks,
                _looked_after(database, files, settings, publishing, tasks),
            ):
                # The tasks remove containers whose answers are given: they finish, whatever else is cancelled.
                bridge = Bridge(settings, fleet, tasks, database, governance)
                bridge.loop_watch = watch
                try:
                    yield bridge
                finally:
                    bridge.stop_pool()


async def _publishing(database: Database, settings: Settings, base: Path) -> Publisher | None:
    if not settings.ledger.publish:
        return None
    from mcp_bridge.host.publishing import publisher  # rarely needed

    return await publisher(database, settings.ledger, base)


@asynccontextmanager
async def _looked_after(
    database: Database, files: Files, settings: Settings, publishing: Publisher | None, tasks: TaskGroup
) -> AsyncGenerator[None]:
    """What is to be done while a bridge works: its log's checkpoints are published, and what is too old is erased."""
    if publishing is not None:
        tasks.start_soon(publishing.run)
    tidying = anyio.CancelScope()

    async def look_for_what_is_old() -> None:
        with tidying:
            await keep_tidy(database, files, settings.ledger)

    tasks.start_soon(look_for_what_is_old)
    try:
        yield
    finally:
        tidying.cancel()
        if publishing is not None:
            publishing.close()
