"""The bridge as a whole: one engine, one image, one fleet of servers, and the executions that use them.

The only place that knows of every part. Whatever serves the bridge (an MCP server, a command) enters it once, calls
`run`, and leaves it; leaving ends every container and every server.

A `Bridge` is what one principal has of it; `Bridge.for_principal` gives another's. Servers, the catalog, sandboxes and
the ledger are shared. Everything that is kept or counted is each principal's own.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import logging
import secrets
import time
from collections import OrderedDict
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import anyio

from mcp_bridge.downstream.catalog.catalog import Catalog
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.artifacts import ArtifactWriter, Files
from mcp_bridge.executions.client import Client
from mcp_bridge.executions.erasure_for_room import make_room
from mcp_bridge.executions.erasure_with_files import sweep as sweep_files
from mcp_bridge.executions.memories import Memories
from mcp_bridge.executions.principal_artifacts import OwnFiles
from mcp_bridge.executions.scripts.script_job import Job
from mcp_bridge.executions.status import ENDED_BY_ITSELF
from mcp_bridge.governance.governance import LOCAL, Governance, load_governance, policy_over, refuse_local
from mcp_bridge.governance.log_masking import masked_logs
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL, PRINCIPAL_NAME, Principal, fewer, restricted
from mcp_bridge.governance.search_embedder import search_embedder
from mcp_bridge.governance.server_credentials import login_store, remote_access
from mcp_bridge.governance.server_environment import environment
from mcp_bridge.governance.server_output_masking import shown_output
from mcp_bridge.governance.tool_names import servers_named
from mcp_bridge.host.channel import ChannelLimits, start_line
from mcp_bridge.host.engine_setup import not_enforced, require_descriptors, require_own_image
from mcp_bridge.host.loop_watch import LoopStallMonitor, watched
from mcp_bridge.host.run_queue import RunQueue
from mcp_bridge.host.sandbox_run import MAX_VALUE_BYTES, RunLimits, SandboxRun
from mcp_bridge.host.sandboxes import Sandboxes
from mcp_bridge.host.sessions.live_sessions import LiveSessions, SessionKey
from mcp_bridge.host.upkeep import tidy_at_start, upkeep
from mcp_bridge.inputs.config import inputs_for
from mcp_bridge.kernel.events import Resume
from mcp_bridge.ledger.log.record_limit import Allowance
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.log.session_store import SessionStore
from mcp_bridge.ledger.log.usage_store import UsageStore
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.offload import off_loop, on_thread
from mcp_bridge.policy.rules.budgets import Usages
from mcp_bridge.policy.rules.floor import layered
from mcp_bridge.private_files import require_writable, state_directory
from mcp_bridge.sandbox.engine import SandboxProcess
from mcp_bridge.sandbox.languages import SHOWN
from mcp_bridge.sandbox.ownership import owner_label
from mcp_bridge.telemetry.setup import telemetry
from mcp_bridge.wire import messages

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from contextlib import AbstractContextManager

    from anyio.abc import TaskGroup

    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.executions.client import Progress
    from mcp_bridge.executions.in_doubt import Settlement
    from mcp_bridge.executions.inputs.execution_inputs import ExecutionInputs
    from mcp_bridge.executions.lifecycle import Commands, Lifecycle
    from mcp_bridge.executions.programs.commands import ProgramCommands
    from mcp_bridge.executions.programs.lifecycle import Programs
    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.executions.replay_result import Replayed
    from mcp_bridge.executions.scripts.commands import ScriptCommands
    from mcp_bridge.executions.scripts.lifecycle import ActiveScript, Scripts
    from mcp_bridge.executions.scripts.live_output import LiveOutput
    from mcp_bridge.executions.sessions.cell import Turn
    from mcp_bridge.executions.sessions.sessions import Sessions
    from mcp_bridge.gate.gate import Gate
    from mcp_bridge.gate.policy_check import Asker
    from mcp_bridge.governance.denied_steps import DeniedStep
    from mcp_bridge.host.packages.running_installs import RunningInstalls
    from mcp_bridge.host.request_handlers import Requests
    from mcp_bridge.host.sessions.cell_runner import CellRunner
    from mcp_bridge.inputs.config import InputSource
    from mcp_bridge.kernel.language.program_parser import Program
    from mcp_bridge.ledger.log.quota import Measured
    from mcp_bridge.ledger.log.recorder import Recorder
    from mcp_bridge.ledger.storage.execution_store import Starter, StoredExecution
    from mcp_bridge.models.sampling import Sampler
    from mcp_bridge.policy.rules.call import Origin
    from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot
    from mcp_bridge.sandbox.engine import SandboxProcess
    from mcp_bridge.sandbox.languages import Language
    from mcp_bridge.sandbox.packages.install_settings import InstallSettings
    from mcp_bridge.sandbox.packages.installer import PackageRights
    from mcp_bridge.sandbox.packages.package_set import PackageSet
    from mcp_bridge.settings import Settings

logger = logging.getLogger(__name__)

MAX_CODE_BYTES = 8 << 20

SENDABLE_CHARS = 1 << 20
"""ASCII of this length can be sent to a sandbox, whatever its characters: that needn't be tried before."""

MAX_MOVES = 3
"""How often a cell is begun again because another bridge has used its session meanwhile: each takes a sandbox."""

MAX_IDLE_PRINCIPALS = 1000
"""How many principals' views are kept that nothing uses at the moment."""


class Shared:
    """What all principals of a bridge share.

    Args:
        settings: The settings.
        fleet: The servers.
        tasks: Runs what outlives a request.
        database: The ledger.
        governance: The operator's word: for everybody.
        loop_watch: What has held up this bridge's event loop.
        usages: What principals have used; by default nothing, and it isn't kept.
    """

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        tasks: TaskGroup,
        database: Database,
        governance: Governance,
        loop_watch: LoopStallMonitor | None = None,
        usages: Usages | None = None,
    ) -> None:
        self.settings = settings
        self.fleet = fleet
        self.tasks = tasks
        self.database = database
        self.governance = governance
        self.restricted_to: PolicySnapshot | None = None
        """What the configuration's policy has become since the start."""
        self.principals: Mapping[str, Principal] = governance.principals
        """What the configuration's principals have become since the start."""
        self.install = settings.install
        """What of the configuration's `[install]` there is now."""
        self.has_current_configuration = True
        self.loop_watch = loop_watch or LoopStallMonitor()
        self.catalog = Catalog(fleet, settings.state_dir, search_embedder(settings.search))
        self.catalog.add_local(governance.registry)
        self.files = Files(settings.state_dir, settings.ledger.max_files_size)
        self.usages = usages or Usages()
        self.queue = RunQueue(settings.max_concurrent, settings.max_queued)
        self.sandboxes = Sandboxes(settings, tasks, self._sweep_files)
        self.live_sessions = LiveSessions(settings, tasks, self._ended_sessions)
        self.withdrawn: frozenset[str] = frozenset()
        """The servers that have been taken out of the configuration since, `LOCAL` among them."""
        self.inputs: Mapping[str, InputSource] = governance.inputs
        """The inputs of the start that the configuration still has, unchanged."""
        self.views: WeakValueDictionary[str, Bridge] = WeakValueDictionary()
        """All principals' views that anything uses, or that are kept for later."""
        self.kept: OrderedDict[str, Bridge] = OrderedDict()
        """The views that are kept, the one that was asked for last at the end."""

    def admits_without_table(self, name: str) -> bool:
        """Whether a principal may have everybody's rights: it has a good token that was made while it had no table.

        Raises:
            BridgeError: As `TokenStore.read`.
        """
        from mcp_bridge.governance.principal_tokens import TokenStore

        now = time.time()
        return any(
            record.principal == name and not record.restricted and not record.has_expired(now)
            for record in TokenStore(self.settings.state_dir).read().values()
        )

    async def _ended_sessions(self, known: Mapping[tuple[str, str], str]) -> list[tuple[str, str]]:
        from mcp_bridge.executions.sessions.sessions import ended_sessions

        return await ended_sessions(ProgramStore(self.database), SessionStore(self.database), known)

    async def _sweep_files(self) -> None:
        await sweep_files(self.database, self.files, self.settings.ledger)


class Bridge:
    """What one principal has of a bridge: runs its scripts, and goes on with its executions.

    Args:
        shared: What all principals share.
        principal: Whose view it is.

    Attributes:
        settings: The settings.
        fleet: The servers.
        catalog: Their tools.
        sandboxes: The containers that scripts run in.
        files: The artifacts and cut outputs of all principals.
    """

    def __init__(self, shared: Shared, principal: Principal = LOCAL_PRINCIPAL) -> None:
        self._shared = shared
        self.principal = principal
        self.settings = shared.settings
        self.fleet = shared.fleet
        self.catalog = shared.catalog
        self.sandboxes = shared.sandboxes
        self.files = shared.files
        self._database = shared.database
        self._own = principal
        """The principal as this view was made: what it gets later is never more."""
        self._lane = shared.queue.lane(principal.name, principal.limits)
        self._memories = Memories(shared.settings.state_dir, principal.name)
        self._were_in_force: dict[str, int] = {}
        """As `usage_from_history` has similar policies: every policy of this bridge lies over the first one."""
        self._governance = self._governed()
        self._began_under = policy_over(shared.governance.snapshot, principal.policy, shared.governance.programs)
        shared.views[principal.name] = self

    def for_principal(self, principal: Principal) -> Bridge:
        """A principal's view of the bridge: one object as long as anything uses it.

        What the principal has become since the view was made, or since the start if the configuration had a table for
        it or has one now, holds from now on, but never allows more calls or secrets than it did then.

        Raises:
            BridgeError: `bad_config`: its policy names a program that there isn't, or isn't valid; `not_a_principal`:
                its table has been taken out of the configuration.
        """
        start = self._shared.governance.principals.get(principal.name)
        now = self._shared.principals.get(principal.name)
        if start is None:
            return self._view(principal, principal if now is None else restricted(principal, now))
        if now is None:
            raise BridgeError("not_a_principal", "You aren't a principal of this bridge.")
        return self._view(start, restricted(principal, now))

    def _view(self, start: Principal, principal: Principal) -> Bridge:
        """The view of a principal, which is made as the principal was at the start."""
        shared = self._shared
        view = shared.views.get(principal.name)
        if view is None:
            if not PRINCIPAL_NAME.fullmatch(principal.name):
                raise ValueError(f"{principal.name!r} is no name for a principal")
            view = Bridge(shared, start)
        if view.principal != principal:
            view.change(principal)
        if principal.name != LOCAL_PRINCIPAL.name:
            shared.kept[principal.name] = view
            shared.kept.move_to_end(principal.name)
            if len(shared.kept) > MAX_IDLE_PRINCIPALS:
                shared.kept.popitem(last=False)
        return view

    def for_owner(self, execution: StoredExecution, *, resumes: bool = True) -> Bridge:
        """The view of an execution's principal, by its configuration: for the operator, who goes on with anybody's.

        Args:
            execution: The execution.
            resumes: Whether anything may be done in it. Without that, it is looked at or ended, whoever its principal
                is by now.

        Raises:
            BridgeError: As `for_principal`; `not_a_principal` also for one that never had a table here, and has no
                good token that was made without one: it may have had a table that restricted it.
        """
        name = execution.principal
        if name == LOCAL_PRINCIPAL.name:
            return self.for_principal(LOCAL_PRINCIPAL)
        shared = self._shared
        if not resumes:
            owner = shared.governance.principals.get(name, Principal(name))
            return self._view(owner, owner)
        has_table = name in shared.principals
        if not has_table and (name in shared.governance.principals or not shared.admits_without_table(name)):
            raise BridgeError(
                "not_a_principal",
                f"{name} is no longer a principal of this bridge, so its executions can't be resumed: it has "
                "no [principals] table, and no valid token that was made without one.",
                hint=f"Write [principals.{name}] into your configuration, with what it may do"
                + ("; or cancel it." if execution.kind == "script" else ": cancelling it may undo its steps."),
            )
        return self.for_principal(Principal(name))

    def change(self, principal: Principal) -> None:
        """From now on hold what begins to what the principal has become, too.

        Raises:
            BridgeError: As `for_principal`. Nothing is changed.
        """
        before, self.principal = self.principal, principal
        try:
            self._apply(self._governed())
        except BridgeError:
            self.principal = before
            raise
        self._lane.limits = principal.limits

    def restrict(
        self,
        servers: AbstractSet[str],
        policy: PolicySnapshot,
        principals: Mapping[str, Principal] | None = None,
        inputs: Mapping[str, InputSource] | None = None,
        install: InstallSettings | None = None,
    ) -> None:
        """From now on hold what begins to what the configuration has become, too: never to less than at the start.

        It holds for all principals.

        Args:
            servers: The names of the servers that there still are; `LOCAL` for the operator's own tools.
            policy: What decides, by the configuration as it is.
            principals: The principals that there still are, by name; None for those of the start.
            inputs: The inputs that there are by the configuration as it is; None for those of the start.
            install: What scripts may still have installed; None for what that was at the start.
        """
        shared = self._shared
        shared.install = install or shared.settings.install
        started = shared.governance.inputs
        shared.inputs = (
            started
            if inputs is None
            else {name: source for name, source in started.items() if inputs.get(name) == source}
        )
        shared.principals = shared.governance.principals if principals is None else principals
        shared.withdrawn = frozenset({*self.fleet.servers, LOCAL}) - servers
        shared.restricted_to = None if policy.hash == shared.governance.snapshot.hash else policy
        for view in list(shared.views.values()):
            view._apply(view._governed())  # noqa: SLF001 - of the same class

    def _governed(self) -> Governance:
        """The operator's word for this principal: the policies of the start, and over them those of now."""
        everybody, programs = self._shared.governance, self._shared.governance.programs
        snapshot = policy_over(everybody.snapshot, self._own.policy, programs)
        if self._shared.restricted_to is not None:
            snapshot = layered(snapshot, self._shared.restricted_to)
        if self.principal.policy != self._own.policy:
            snapshot = policy_over(snapshot, self.principal.policy, programs)
        return replace(everybody, snapshot=snapshot)

    def _apply(self, governance: Governance) -> None:
        started, snapshot = self._began_under, governance.snapshot
        self._governance = governance
        self._were_in_force |= dict.fromkeys((started.hash, snapshot.hash), started.count)
        self.lifecycle.policy_hash, self.lifecycle.similar_policies = snapshot.hash, self._were_in_force

    @property
    def _usable_secrets(self) -> frozenset[str] | None:
        """The secrets that both the principal of the start and that of now may use; None for all."""
        return fewer(self._own.secrets, self.principal.secrets)

    @property
    def _usable_servers(self) -> frozenset[str] | None:
        """The servers that both the principal of the start and that of now may use; None for all."""
        return fewer(self._own.servers, self.principal.servers)

    @property
    def _inputs(self) -> dict[str, InputSource]:
        """The inputs that both the principal of the start and that of now may read."""
        return inputs_for(self._shared.inputs, fewer(self._own.files, self.principal.files))

    @property
    def loop_watch(self) -> LoopStallMonitor:
        """What has held up this bridge's event loop."""
        return self._shared.loop_watch

    @functools.cached_property
    def own_files(self) -> OwnFiles:
        """The principal's artifacts, and its answers' outputs that were cut."""
        return OwnFiles(self.files, self.lifecycle.store, self.principal.name)

    @property
    def has_current_configuration(self) -> bool:
        """Whether the configuration's files say what is in force: not after a change that waits for the next start."""
        return self._shared.has_current_configuration

    @has_current_configuration.setter
    def has_current_configuration(self, value: bool) -> None:
        self._shared.has_current_configuration = value

    @property
    def database(self) -> Database:
        """The ledger's file."""
        return self._database

    def runs_under_way(self) -> tuple[int, int]:
        """How many scripts run, and how many wait for a place."""
        return self._shared.queue.running, self._shared.queue.waiting

    def idle_sessions(self) -> int:
        """How many sessions of all principals keep a sandbox between two cells."""
        return len(self._shared.live_sessions.idle)

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
            servers_digest=self._servers_digest,
        )

    @functools.cached_property
    def programs(self) -> Programs:
        """The bridge's programs."""
        from mcp_bridge.executions.programs.lifecycle import ProgramRules, Programs

        rules = ProgramRules(
            self._denied_steps, self._governance.refuses_denied_steps, self.settings.ledger.subject_fields
        )
        return Programs(self.lifecycle, self._governance.programs, self._shared.tasks, rules)

    async def _denied_steps(self, program: Program, origin: Origin) -> list[DeniedStep]:
        from mcp_bridge.governance.denied_steps import denied_steps

        # On a thread where it is large: each step is checked against all rules.
        return await off_loop(
            program.data, denied_steps, program, origin, self._governance, self.catalog, self._narrow(None)
        )

    @functools.cached_property
    def scripts(self) -> Scripts:
        """The bridge's scripts."""
        from mcp_bridge.executions.scripts.lifecycle import Scripts

        return Scripts(
            self.lifecycle,
            self.principal.name,
            self,
            SessionStore(self._database),
            self.sessions.no_room,
        )

    @functools.cached_property
    def sessions(self) -> Sessions:
        """The principal's sessions."""
        from mcp_bridge.executions.sessions.sessions import Sessions

        settings = self.settings
        heads, most = SessionStore(self._database), settings.sessions.max_sessions
        return Sessions(self.lifecycle, self.principal.name, heads, most, settings.wall_timeout)

    @functools.cached_property
    def _cells(self) -> CellRunner:
        from mcp_bridge.host.sessions.cell_runner import CellRunner

        shared = self._shared
        return CellRunner(self, self.principal.name, self.lifecycle, shared.live_sessions, shared.tasks)

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
        on_server_message: Callable[[str], None] | None = None,
        on_begun: Callable[[str], None] | None = None,
        session: str | None = None,
        fork: str | None = None,
        dry_run: bool = False,
        files: Sequence[str] | None = None,
        packages: Sequence[str] = (),
        language: Language = "python",
        is_expected: bool = False,
    ) -> ExecutionRecord:
        """Run a script in a fresh sandbox, or as a session's next cell.

        Args:
            code: Its source.
            servers: Names or aliases of the servers it may use; all by default.
            timeout: Seconds of its own time.
            key: Idempotency key: the script runs once; later callers get the same result. An interrupted run, or a
                suspended one that can proceed, is resumed. Without a key, a suspended run of the same code is
                resumed.
            starter: Who asks. The keys of agents are others than those of operators.
            progress: Told what the script reports.
            notify: Told what takes time before it starts.
            asker: Asks a person; without one, what needs approval is suspended.
            sampler: Asks the client's model.
            live: Tells what the script prints while it runs.
            on_server_message: Told what servers say while they work on its calls: their progress, and what they log.
            on_begun: Told the id of the execution that runs.
            session: The name of the session that it is a cell of; None for a script of its own.
            fork: For a new session, the cell of another that it goes on from: `name@5`, or `name` for its last one.
            dry_run: Whether it is only to read: other calls are listed, for a person to approve as a whole, and not
                made. The same code without it then goes on.
            files: Names of the inputs that it may read; all by default.
            packages: Requirements of packages that its sandbox is to have, from the operator's list.
            language: What it is written in.
            is_expected: Whether this is within `expected`.

        Raises:
            RunInterruptedError: It had begun, and was ended by an error of the bridge.
            BridgeError: It never ran. Bad requests: `language_unavailable`, `empty_code`, `code_too_large`, `bad_code`,
                `bad_timeout`, `unknown_server`, `unknown_input`, `bad_key`, `key_conflict`, `unknown_run`,
                `bad_arguments`, `bad_package`, `package_refused`. Without its packages: as `Installer.resolve` and
                `Installer.fetch`. Too many: `busy`. No working sandbox: as `Sandboxes.prepare` and
                `SandboxProcess.wait`. Of a session: as `Sessions.turn` and `CellRunner.run`; `session_waiting`.
        """
        client = Client(
            starter, time.monotonic(), self._asker(asker), sampler, notify, progress, live, on_server_message, on_begun
        )
        names = None if files is None else list(dict.fromkeys(files))
        self._require_language(language)
        if language != "python":
            _require_python(language, packages=packages)
        required = await self._required(packages)
        job = Job(
            code,
            servers,
            timeout,
            client,
            dry_run=dry_run,
            files=names,
            requirements=required,
            language=language,
        )
        self._check(code, timeout)
        if servers is not None or not code.isascii() or len(code) > SENDABLE_CHARS:
            self._start_line("", job)
        if session is None and fork is not None:
            raise BridgeError("bad_arguments", "fork= needs session=, the name of the new session.")
        with self._lane.admitted(), nullcontext() if is_expected else self.expected(session, packages):
            if session is None:
                return await self.scripts.run(job, key)
            name = SessionKey(self.principal.name, session)
            async with self._shared.live_sessions.turn(name):
                return await self._run_cell(job, key, name, fork)

    def expected(self, session: object, packages: object) -> AbstractContextManager[None]:
        """Tell the pool of a script for as long as it waits or runs.

        Args:
            session: The session that it is of, if any. It may be wrong, as `packages` may.
            packages: The packages that it asks for.
        """
        # A session of which nothing is here may be new.
        is_pooled = not packages and (not session or not self._shared.live_sessions.has(session))
        return self.sandboxes.expected(is_pooled=is_pooled)

    async def _required(self, packages: Sequence[str]) -> tuple[str, ...]:
        """Requirements of packages in their normal form, all of which may be asked for.

        Raises:
            BridgeError: `bad_package`, `package_refused`.
        """
        if not packages:
            return ()
        await _import_installer()
        from mcp_bridge.sandbox.packages.requirements import parse_requirements

        requirements = parse_requirements(packages)
        self.package_rights.require(requirements)
        return tuple(map(str, requirements))

    @property
    def package_rights(self) -> PackageRights:
        """The packages that the principal's scripts may ask for."""
        return self._package_rights(self._shared.install, self.principal)

    def _package_rights(self, now: InstallSettings, principal: Principal) -> PackageRights:
        from mcp_bridge.sandbox.packages.allow_list import AllowList
        from mcp_bridge.sandbox.packages.installer import PackageRights

        start = self.settings.install
        lists = [AllowList(allow) for allow in dict.fromkeys((start.allow, now.allow))]
        own = dict.fromkeys(one for one in (self._own.packages, principal.packages) if one is not None)
        narrower = [AllowList(packages, f"principals.{principal.name}", "packages") for packages in own]
        only_listed = "listed" in {start.dependencies, now.dependencies}
        return PackageRights((*lists, *narrower), tuple(lists) if only_listed else ())

    async def resolve(self, job: Job) -> PackageSet:
        """As `SandboxRunner.resolve`."""
        await _import_installer()
        from mcp_bridge.sandbox.packages.requirements import parse_requirements

        notify = job.client.notify
        require_own_image(self.settings)
        prepared = await self.sandboxes.prepare(notify)
        requirements = parse_requirements(job.requirements)
        return await self.sandboxes.installer.resolve(
            requirements, self.package_rights, prepared.image.packages, notify
        )

    def _require_language(self, language: Language) -> None:
        if language not in self.settings.languages:
            raise BridgeError(
                "language_unavailable",
                f"{SHOWN[language]} doesn't run here: the operator's setting `languages` doesn't have it.",
                hint=f'The operator adds "{language}" to it.',
            )

    async def _run_cell(self, job: Job, key: str | None, name: SessionKey, fork: str | None) -> ExecutionRecord:
        """As `run`, for a session whose turn it is."""
        from mcp_bridge.executions.sessions.cell_placement import SessionMovedError

        live = self._shared.live_sessions
        # A dry run takes nothing, so it wouldn't find that another bridge has gone on with the session.
        turn = None if fork or job.dry_run else live.next_turn(name)
        moves = 0
        try:
            while True:
                cell, head, blocked, has_no_suspended_cell = turn or await self._turn(job, name, fork)
                begun = replace(job, cell=cell, head=head, blocked=blocked, has_no_suspended_cell=has_no_suspended_cell)
                try:
                    record = await self.scripts.run(begun, key)
                except SessionMovedError:
                    # It has never begun, so it is begun again where the session is now.
                    if (moves := moves + 1) > MAX_MOVES:
                        raise
                    turn = None
                else:
                    break
        except BridgeError:
            if fork is not None:
                with anyio.CancelScope(shield=True), suppress(BridgeError):
                    await self.sessions.forget_unmade_fork(name.name)
            await self._end_unless_kept(name)
            raise
        except BaseException:
            # Cancelled: what the cell has left counts for nothing, so it isn't there either.
            if not job.dry_run:
                live.end(name)
            raise
        if job.dry_run:
            if record.waiting:
                live.keep_plan(name, record.execution)
            return record
        await self._withdraw_plans(name)
        if record.status != "success":
            await self._end_unless_kept(name)
        return record

    async def _turn(self, job: Job, name: SessionKey, fork: str | None) -> Turn:
        """As `Sessions.turn`. A new session has the hash seed of a container that is ready, if one is."""
        turn = await self.sessions.turn(name.name, fork)
        ready = None if self.sandboxes.pool is None or job.requirements else self.sandboxes.pool.hash_seed
        if ready is None or turn.cell.previous or turn.head:
            return turn
        return turn._replace(cell=turn.cell.with_hash_seed(ready))

    async def _withdraw_plans(self, name: SessionKey) -> None:
        """End what waits after dry runs of cells that can't be a session's next one any more."""
        plans = self._shared.live_sessions.plans
        waiting = plans.get(name, set())
        # What was done has an answer, whatever becomes of these.
        with suppress(BridgeError):
            for execution in list(waiting):
                if await self.scripts.cancel_stale_plan(execution):
                    waiting.discard(execution)
        if name in plans and not waiting:
            del plans[name]

    async def _end_unless_kept(self, name: SessionKey) -> None:
        """End a session's sandbox if by the record its last cell has left nothing, or waits: it runs again then."""
        from mcp_bridge.executions.sessions.sessions import left_by

        live = self._shared.live_sessions
        if not (head := live.head(name)):
            return
        stored = None
        with anyio.CancelScope(shield=True), suppress(BridgeError):
            stored = await self.lifecycle.store.execution(head)
        if stored is None or left_by(stored) == "nothing":
            live.end(name)

    @asynccontextmanager
    async def _turn_of(self, stored: StoredExecution) -> AsyncGenerator[None]:
        """While an execution goes on: the turn of the session that it is a cell of, if it is one."""
        from mcp_bridge.executions.sessions.cell import Cell

        cell = Cell.of(stored) if stored.kind == "script" else None
        if cell is None:
            yield
            return
        name = SessionKey(self.principal.name, cell.session)
        async with self._shared.live_sessions.turn(name):
            try:
                yield
            finally:
                await self._end_unless_kept(name)
            await self._withdraw_plans(name)

    async def listed_sessions(self) -> list[dict[str, Any]]:
        """The principal's sessions, as `messages.SessionList` has them; `ready` is one that has a sandbox here."""
        live = self._shared.live_sessions
        rows = []
        for row in await self.sessions.listed(can_rebuild=self.settings.sessions.rebuild):
            key = SessionKey(self.principal.name, row.name)
            state: str = "running" if live.is_running(key) else row.state
            if state in {"idle", "lost"} and key in live.idle:
                state = "ready"
            rows.append(
                {
                    "name": row.name,
                    "cells": row.cells,
                    "state": state,
                    "execution": row.execution,
                    "changed": row.changed,
                }
            )
        return rows

    def end_sessions(self) -> None:
        """End the sandboxes of all principals' idle sessions: the bridge ends."""
        self._shared.live_sessions.end_all()

    async def end_session(self, session: str, cell: str | None = None) -> bool:
        """Forget a session, and end its sandbox; False if there is none. Its cells stay in the ledger.

        Args:
            session: As `executions.sessions.sessions.end_session`.
            cell: The execution of the session's cell that runs and ends its own session; None for anybody else.
        """
        name = SessionKey(self.principal.name, session)
        self._shared.live_sessions.drop(name)
        has_ended = await (self.sessions.end(session) if cell is None else self.sessions.end_own(cell))
        await self._withdraw_plans(name)
        return has_ended

    def gate(
        self,
        execution: str,
        client: Client,
        servers: Sequence[str] | None = None,
        recorder: Recorder | None = None,
        *,
        dry_run: bool = False,
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
            self.principal.name,
            governance,
            AllowedTools(self.catalog, self._narrow(servers), governance.registry.tools),
            ExecutionValues(governance.vault, governance.patterns, store, self._usable_secrets),
            self._shared.usages,
            client.asker,
            client.sampler,
            allowance,
            client.on_server_message,
            narrowed=servers is not None,
            is_dry=dry_run,
        )

    def servers(self, job: Job) -> list[str] | None:
        """As `SandboxRunner.servers`."""
        return None if job.servers is None else sorted(self._narrow(job.servers))

    def require_files(self, job: Job) -> None:
        """As `SandboxRunner.require_files`."""
        from mcp_bridge.executions.inputs.execution_inputs import narrowed

        narrowed(self._inputs, job.files)

    def _inputs_of(self, job: Job) -> dict[str, InputSource]:
        """The inputs that a job may read. What is there no more is missing when it is asked for."""
        return {name: source for name, source in self._inputs.items() if job.files is None or name in job.files}

    @property
    def max_artifact_size(self) -> int:
        """As `SandboxRunner.max_artifact_size`."""
        return self.settings.max_artifact_size

    def artifact_path(self, execution: str, name: str) -> Path:
        """As `SandboxRunner.artifact_path`."""
        return self.files.path(execution, name)

    def _servers_digest(self) -> str:
        specs = (self.fleet.servers[name].spec for name in self._narrow(None) if name in self.fleet.servers)
        grants = {"secrets": self._usable_secrets, "files": fewer(self._own.files, self.principal.files)}
        fewer_than_all = {kind: sorted(names) for kind, names in grants.items() if names is not None}
        given = [*sorted(spec.fingerprint() for spec in specs), json.dumps(fewer_than_all) if fewer_than_all else ""]
        return hashlib.sha256("".join(given).encode()).hexdigest()

    async def sandboxed(self, active: ActiveScript, artifacts: ArtifactWriter | None = None) -> ExecutionRecord:
        """As `SandboxRunner.sandboxed`."""
        if active.script.is_dry and active.script.live:
            thrown_away = ArtifactWriter(None, active.script.execution, self.max_artifact_size)
            record = await self._sandboxed(active, thrown_away)
            if record.artifacts:
                record.notices.append(f"dry run: artifacts that were not kept: {len(record.artifacts)}")
                record.artifacts = []
            return record
        if artifacts is None:
            artifacts = ArtifactWriter(self.files, active.script.execution, self.max_artifact_size)
        try:
            return await self._sandboxed(active, artifacts)
        finally:
            artifacts.abort()

    async def _sandboxed(self, active: ActiveScript, artifacts: ArtifactWriter) -> ExecutionRecord:
        script, gate, job, *_ = active
        execution = script.execution
        self._require_language(job.language)
        limit = self.limits_of(job)
        if job.packages is not None:
            # Before it takes a place: it may have to be built.
            await self.sandboxes.prepare_with(job.packages, job.client.notify)
        async with self._lane.place():
            allowed = self._narrow(job.servers)
            if script.live and not script.history.calls:
                # While its sandbox starts: one after the other, each would take the second that it is first used in.
                self.catalog.start_ahead(servers_named(job.code, allowed))
            prepared = await self.sandboxes.prepare(job.client.notify)
            await self.sandboxes.removals.room()
            if job.cell is not None:
                requests, record = await self._cells.run(active, artifacts, job.cell)
            else:
                first = self.start_line(active)
                make_run = functools.partial(self.run_in, active, artifacts)
                process, acknowledgement, requests, record = await self.sandboxes.run(
                    execution, first, limit, make_run, packages=job.packages
                )
                if record.status in ENDED_BY_ITSELF and script.divergence_detector.divergence is None:
                    # The answer doesn't wait for the container's removal; leaving the bridge does.
                    self.sandboxes.removals.leave(process, acknowledgement)
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
                record.notices += self._missing_servers
            if script.live and self.settings.install.allow:
                record.notices += await self._package_advice(record, job.client.starter)
            record.artifacts = artifacts.written
            record.limits_not_enforced = not_enforced(prepared.report)
            if not prepared.report.choice.seccomp:
                record.notices.append("no seccomp profile holds this sandbox; see mcp-bridge doctor")
            return record

    def run_in(
        self, active: ActiveScript, artifacts: ArtifactWriter, process: SandboxProcess, first: bytes, limit: RunLimits
    ) -> tuple[SandboxRun, Requests]:
        """As `CellHost.run_in`, for any script."""
        from mcp_bridge.executions.plans.dry_memories import DryMemories
        from mcp_bridge.host.request_handlers import Requests

        script, gate, job, _, recorded = active
        inputs = self._inputs_of(job)
        requests = Requests(
            self.principal.name,
            DryMemories(self.settings.state_dir, self.principal.name) if script.is_dry else self._memories,
            self.own_files,
            artifacts,
            gate,
            self.programs.effects(gate),
            self.programs,
            script,
            self,
            None if job.cell is None else job.cell.session,
            _as_inputs(inputs) if inputs else None,
            self._running_installs(job),
        )
        client = job.client
        run = SandboxRun(
            process,
            script.execution,
            first,
            limit,
            requests,
            client.progress,
            client.began,
            client.live,
            recorded,
            is_cell=job.cell is not None,
        )
        return run, requests

    def _running_installs(self, job: Job) -> Callable[[], Awaitable[RunningInstalls]] | None:
        """Makes what installs the packages that a script asks for while it runs: by the rights that it began with."""
        prepared = self.sandboxes.prepared
        if prepared is None:
            return None
        install, principal, image = self._shared.install, self.principal, prepared.image

        async def make() -> RunningInstalls:
            await _import_installer()
            from mcp_bridge.host.guest_bundle import HOST_MAGIC
            from mcp_bridge.host.packages.running_installs import RunningInstalls

            return RunningInstalls(
                self.sandboxes.installer,
                self._package_rights(install, principal),
                [*(() if job.packages is None else job.packages.pins), *image.packages],
                job.client.notify,
                is_same_python=image.magic == HOST_MAGIC,
            )

        return make

    async def _package_advice(self, record: ExecutionRecord, starter: Starter) -> list[str]:
        """What to do about a module that a script has not found."""
        if record.error is None or record.error.get("type") not in {"ModuleNotFoundError", "ImportError"}:
            return []
        await _import_installer()
        from mcp_bridge.host.packages.missing_modules import advice

        cache, profile = self.sandboxes.installer.cache, self.settings.profile
        found = await anyio.to_thread.run_sync(
            advice, record, self.package_rights, cache, profile, starter, self.aliases()
        )
        return [] if found is None else [found]

    def limits_of(self, job: Job) -> RunLimits:
        """As `CellHost.limits_of`, for any script."""
        return self._check(job.code, job.timeout)

    def start_line(self, active: ActiveScript) -> bytes:
        """As `CellHost.start_line`, for any script."""
        script = active.script
        replays = bool(script.history.calls) or not script.live
        # It asks for them again, and is told where one is there no more.
        had_inputs = any(call.asked.kind == "input" for call in script.history.calls.values())
        has_record = replays or bool(script.history.held)
        return self._start_line(
            script.execution,
            active.job,
            replays=replays,
            has_record=has_record,
            had_inputs=had_inputs,
            advises=script.live,
        )

    def _start_line(
        self,
        execution: str,
        job: Job,
        *,
        replays: bool = False,
        has_record: bool = False,
        had_inputs: bool = False,
        advises: bool = True,
    ) -> bytes:
        # Those that a stored script was told of, and may have printed. A call of one that is gone is refused.
        offered = self._narrow(job.servers) if job.offered is None else job.offered
        servers = [{"name": name, "alias": alias} for name, alias in offered.items()]
        seed, number = (None, 0) if job.cell is None else (job.cell.seed, job.cell.number)
        # A session's cells share a sandbox, and each may have inputs.
        has_inputs = had_inputs or bool(self._inputs_of(job) if job.cell is None else self._inputs)
        # Python needs to know neither.
        language, memory = (None, None) if job.language == "python" else (job.language, self.settings.memory)
        start = messages.ExecutionStart(
            execution, job.code, servers, MAX_VALUE_BYTES, replays, seed, number, has_inputs, language, memory
        )
        if len(self.settings.languages) > 1:
            start = start._replace(runs_both=True)
        if job.dry_run:
            start = start._replace(is_dry=True)
        if job.cell is not None and not has_record:
            start = start._replace(listings={row["name"]: self.catalog.mark(row["name"]) for row in servers})
        if not advises:
            start = start._replace(advises=False)
        return start_line(start)

    async def run_program(
        self,
        program: Any,
        context: dict[str, Any] | None = None,
        key: str | None = None,
        *,
        starter: Starter = "agent",
        asker: Asker | None = None,
        sampler: Sampler | None = None,
        on_begun: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Run a program without a sandbox: nothing of it is code.

        Args:
            program: An object, or the name of one.
            context: Names and values.
            key: Idempotency key.
            starter: As `run`.
            asker: As `run`.
            sampler: As `run`.
            on_begun: As `run`.

        Returns:
            Its record, as `messages.TraceGet` has it.

        Raises:
            RunInterruptedError: As `run`.
            BridgeError: It was not started: as `Programs.start`.
        """
        client = Client(starter, asker=self._asker(asker), sampler=sampler, on_begun=on_begun)
        return await self._program_commands.start(program, context or {}, key, client)

    async def resume_execution(
        self,
        execution: str,
        event: Resume | None = None,
        *,
        asker: Asker | None = None,
        sampler: Sampler | None = None,
        on_begun: Callable[[str], None] | None = None,
    ) -> dict[str, Any]:
        """Go on with an execution: a program without a sandbox, a script in one.

        Args:
            execution: Its id.
            event: As `Commands.resume`.
            asker: As `run`.
            sampler: As `run`.
            on_begun: As `run`.

        Raises:
            RunInterruptedError: As `run`.
            BridgeError: `unknown_trace`; as `Commands.resume`.
        """
        stored = await self.lifecycle.stored(execution, self.principal.name)
        client = Client(began=time.monotonic(), asker=self._asker(asker), sampler=sampler, on_begun=on_begun)
        async with self._turn_of(stored):
            return await self._commands(stored).resume(stored, event, client)

    async def send_event(
        self, execution: str, name: str, payload: Any, source: str, *, and_resume: bool, asker: Asker | None = None
    ) -> dict[str, Any]:
        """Send an event to an execution. Only the command line leads here.

        A program that waits for it takes it and goes on at once. For a script it is kept until a wait takes it.

        Args:
            execution: Its id.
            name: The event's name.
            payload: What it brings, as JSON.
            source: As `Resume.source`.
            and_resume: Whether to go on with a script at once, if it can.
            asker: As `run`.

        Raises:
            BridgeError: `unknown_trace`; `not_suspended`: it has ended, or is a program that doesn't wait for it; as
                `sending.send_event` and `Commands.resume`.
        """
        from mcp_bridge.executions.readiness import can_resume
        from mcp_bridge.executions.trace_record import to_record
        from mcp_bridge.executions.waits.event_sending import awaited_effect, wake_scripts

        stored = await self.lifecycle.stored(execution, self.principal.name)
        if stored.kind == "program":
            record = await self.resume_execution(
                stored.id, Resume(payload, source, awaited_effect(stored, name)), asker=asker
            )
            await wake_scripts(self.lifecycle.store, stored.id)
            return record
        await self._script_commands.send(stored, name, payload, source)
        stored = await self.lifecycle.stored(execution, self.principal.name)
        if and_resume and await can_resume(self.lifecycle.store, stored):
            return await self.resume_execution(stored.id, asker=asker)
        return to_record(stored)

    async def cancel_execution(self, execution: str, reason: str) -> dict[str, Any]:
        """Cancel an execution that is suspended or interrupted; what a program's steps want undone is undone.

        Raises:
            BridgeError: `unknown_trace`; as `Commands.cancel`.
        """
        stored = await self.lifecycle.stored(execution, self.principal.name)
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
        stored = await self.lifecycle.stored(execution, self.principal.name)
        client = Client(began=time.monotonic(), asker=asker)
        async with self._turn_of(stored):
            return await self._commands(stored).settle(stored, name, settlement, client, and_resume=and_resume)

    def _asker(self, asker: Asker | None) -> Asker | None:
        """Who is asked at the client of a principal: nobody, if the principal is no approver.

        One who isn't an approver any more when the answer comes is the asker's to find out.
        """
        return asker if self.principal.may_approve else None

    def _commands(self, stored: StoredExecution) -> Commands:
        return self._script_commands if stored.kind == "script" else self._program_commands

    @functools.cached_property
    def _program_commands(self) -> ProgramCommands:
        from mcp_bridge.executions.programs.commands import ProgramCommands

        return ProgramCommands(self.programs, self.principal.name, self)

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
        return await self.programs.library.plan(intent, self.principal.name, functools.partial(plan_program, gate))

    def _check(self, code: str, timeout: float | None) -> RunLimits:
        settings = self.settings
        if not code.strip():
            raise BridgeError("empty_code", "There is no code to run.", hint="Pass the source in 'code'.")
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
        from mcp_bridge.gate.allowed_tools import narrowed

        everything = {
            name: server.alias
            for name, server in self.fleet.servers.items()
            if server.spec.enabled and name not in self._shared.withdrawn
        }
        if self._governance.registry.tools and LOCAL not in self._shared.withdrawn:
            everything[LOCAL] = LOCAL
        if (usable := self._usable_servers) is not None:
            everything = {name: alias for name, alias in everything.items() if name in usable}
        return narrowed(everything, servers, self._missing_servers)

    @property
    def _missing_servers(self) -> Sequence[str]:
        """What to say of servers that couldn't be read; nothing to a principal that has been given some by name."""
        return self.fleet.missing if self._usable_servers is None else ()


def _require_python(language: Language, **asked: object) -> None:
    """Refuse what scripts in another language don't have.

    Args:
        language: That language.
        asked: What was asked for, by the argument's name.

    Raises:
        BridgeError: `language_unavailable`.
    """
    if names := [name for name, value in asked.items() if value]:
        raise BridgeError(
            "language_unavailable",
            f"{names[0]}= is for scripts in Python alone, and this is {SHOWN[language]}.",
            hint=f"Leave {' and '.join(f'{name}=' for name in names)} out, or write it in Python.",
        )


async def _import_installer() -> None:
    """Import what packages take, a mebibyte that few scripts need, on a thread: it takes longer than an answer may."""
    for name in ("sandbox.packages.installer", "host.packages.missing_modules", "host.packages.running_installs"):
        await on_thread(importlib.import_module, f"mcp_bridge.{name}")


def _as_inputs(sources: Mapping[str, InputSource]) -> ExecutionInputs:
    from mcp_bridge.executions.inputs.execution_inputs import ExecutionInputs

    return ExecutionInputs(sources)


def _looked_for_a_server(record: ExecutionRecord) -> bool:
    """Whether a script has failed for a name that may be a server's."""
    message = "" if record.error is None else record.error["message"].lower()
    return "no mcp server" in message or "there is no server" in message


def _warn_of_unknown_names(governance: Governance, servers: AbstractSet[str], install: InstallSettings) -> None:
    """Log each name in a principal's table that isn't there: whoever misspells one gives nothing by it."""
    for principal in governance.principals.values():
        table = f"principals.{principal.name}"
        for name in sorted((principal.servers or frozenset()) - servers):
            logger.warning("%s.servers: there is no server %r, now", table, name)
        for name in sorted((principal.secrets or frozenset()) - governance.vault.names):
            logger.warning("%s.secrets: there is no %r in [secrets]", table, name)
        for name in sorted((principal.files or frozenset()) - governance.inputs.keys()):
            logger.warning("%s.files: there is no %r in [files]", table, name)
        if principal.packages:
            from mcp_bridge.sandbox.packages.allow_list import AllowList  # rarely needed

            listed, own = AllowList(install.allow), AllowList(principal.packages)
            for name in sorted(own.names - listed.names):
                logger.warning("%s.packages: there is no %r in install.allow", table, name)


@asynccontextmanager
async def open_bridge(
    settings: Settings,
    specs: Sequence[ServerSpec],
    governance: Governance | None = None,
    *,
    missing: tuple[str, ...] = (),
    ledger: Path | None = None,
) -> AsyncGenerator[Bridge]:
    """A bridge over these servers. Leaving it ends every container and server, even under cancellation.

    Args:
        settings: The settings.
        specs: The servers.
        governance: The operator's word; by default that of an empty configuration.
        missing: As `Discovery.missing`.
        ledger: The directory of the ledger and its keys; by default the state directory.

    Raises:
        BridgeError: `database_unusable`, `database_busy`, `database_newer`, `ledger_damaged`, `key_missing`,
            `key_unusable`, `keyring_missing`, `state_unusable`, `telemetry_missing`, `too_few_descriptors`.
    """
    # Before the ledger is opened, of which SQLite would say that it can't be.
    require_descriptors()
    require_writable(state_directory(settings.state_dir, durable=True))
    if governance is None:
        governance = load_governance({}, None, Path.cwd(), settings.state_dir)
    refuse_local(governance, specs)
    with masked_logs(governance.vault), watched() as watch:
        async with (
            telemetry(settings.telemetry),
            Database(
                (ledger or settings.state_dir) / FILE_NAME,
                settings.ledger.master_key,
                owner_label(),
                settings.ledger.quota,
            ) as database,
        ):
            # What fails does so before there is a task group: out of one, an error comes as one of a group.
            files = Files(settings.state_dir, settings.ledger.max_files_size)
            if database.is_new and ledger is None:
                logger.warning("a ledger begins in %s. %s", settings.state_dir, settings.ledger.retention())
            is_tidy = await tidy_at_start(database, files, settings.ledger)
            database.reclaim = functools.partial(make_room, database, files, settings.ledger)
            kept = UsageStore(database)
            usages = Usages(await kept.load(), kept, unkept={LOCAL_PRINCIPAL.name})
            publisher = None
            if settings.ledger.publish:
                from mcp_bridge.ledger.publish.open_publisher import open_publisher  # rarely needed

                publisher = await open_publisher(database, settings.ledger, governance.base)
            async with (
                Fleet(
                    specs,
                    idle_timeout=settings.runtime_idle_timeout,
                    environment=environment(settings, governance),
                    access=remote_access(governance, login_store(settings)),
                    mask_output=shown_output(governance),
                    missing=missing,
                ) as fleet,
                anyio.create_task_group() as tasks,
                upkeep(database, files, settings.ledger, publisher, tasks, is_tidy=is_tidy),
            ):
                _warn_of_unknown_names(governance, {*fleet.servers, LOCAL}, settings.install)
                # The tasks remove containers whose answers are given: they finish, whatever else is cancelled.
                bridge = Bridge(Shared(settings, fleet, tasks, database, governance, watch, usages))
                try:
                    yield bridge
                finally:
                    bridge.sandboxes.stop_pool()
                    bridge.end_sessions()
