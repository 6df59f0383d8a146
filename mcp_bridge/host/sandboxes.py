"""The containers of one bridge: its engine, image and warm pool, and the start of each script in a container."""

from __future__ import annotations

import contextlib
import functools
import logging
import secrets
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.host import guest_bundle, warm_pool
from mcp_bridge.host.container_removals import Removals
from mcp_bridge.host.engine_setup import Prepared, prepare, prepare_with
from mcp_bridge.host.free_memory import available_memory
from mcp_bridge.host.pool_report import remove_report, report_of, write_report
from mcp_bridge.host.warm_pool import PoolSize, WarmPool, new_hash_seed
from mcp_bridge.sandbox.engine import EXECUTION_LABEL, OWNER_LABEL, STARTED_AHEAD, Limits, SandboxSpec
from mcp_bridge.sandbox.languages import reserved_bytes
from mcp_bridge.sandbox.orphans import sweep
from mcp_bridge.sandbox.ownership import owner_label
from mcp_bridge.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager

    from anyio.abc import TaskGroup

    from mcp_bridge.executions.record import ExecutionRecord
    from mcp_bridge.host.request_handlers import Requests
    from mcp_bridge.host.sandbox_run import RunLimits, SandboxRun
    from mcp_bridge.sandbox.engine import Engine, SandboxProcess
    from mcp_bridge.sandbox.packages.installer import Installer
    from mcp_bridge.sandbox.packages.package_set import PackageSet
    from mcp_bridge.settings import Settings

    MakeRun = Callable[[SandboxProcess, bytes, RunLimits], tuple[SandboxRun, Requests]]
    """Makes a script's run in a container, from the first bytes that the container is sent."""

logger = logging.getLogger(__name__)

GUEST_SILENCE_SECONDS = 120
"""After so long without a word from the host a sandbox ends itself."""

GUEST_WAITING_SECONDS = 2 * warm_pool.MAX_WAITING_SECONDS
"""After so long without an execution a sandbox that was started ahead ends itself."""

HANDOVER_SECONDS = 10.0
"""How long a container from the pool may take to begin its execution, before another takes its place. A few
milliseconds suffice, unless its monitor is gone or the machine stands still."""

MAX_SETS = 64
"""Package sets whose image isn't looked for each time."""

MAX_SET_POOLS = 4
"""Package sets for which a container waits, those used last."""

MAX_HANDOVERS = 3
"""Containers from the pool that may fail one execution before it gets one that is started for it."""


_EMPTIED = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS", "PYTHONINSPECT", "PYTHONPLATLIBDIR"),
    *("PYTHONOPTIMIZE", "PYTHONDEBUG", "PYTHONDEVMODE", "PYTHONVERBOSE", "PYTHONBREAKPOINT", "PYTHONASYNCIODEBUG"),
    *("PYTHONMALLOC", "PYTHONTRACEMALLOC", "PYTHONPROFILEIMPORTTIME", "PYTHONNODEBUGRANGES", "PYTHONINTMAXSTRDIGITS"),
    *("PYTHONUTF8", "PYTHONIOENCODING", "PYTHONCASEOK", "PYTHON_GIL", "PYTHON_JIT"),
)
INTERPRETER = {
    # As -P, which is an error before Python 3.11.
    "PYTHONSAFEPATH": "1",
    # An image's own must not count.
    **dict.fromkeys(_EMPTIED, ""),
}
"""Variables for the interpreter, which is given a hash seed, and so can't ignore variables. The loader removes them."""


class FinishedRun(NamedTuple):
    """A script that has run: its container, the frame upon which that leaves, what answered it, and its record."""

    process: SandboxProcess
    acknowledgement: bytes
    requests: Requests
    record: ExecutionRecord


class Sandboxes:
    """Starts the containers of one bridge.

    Args:
        settings: The settings.
        tasks: In which the pool and the removals run.
        sweep_files: Removes files that have passed their retention time; called once, beside the sweep for containers.

    Attributes:
        pool: The containers of the configured image that are started ahead; None for a bridge that has none, or has
            started none yet.
        removals: The containers that are being removed.
    """

    def __init__(self, settings: Settings, tasks: TaskGroup, sweep_files: Callable[[], Awaitable[None]]) -> None:
        self._settings = settings
        self._tasks = tasks
        self._sweep_files = sweep_files
        self.pool: WarmPool | None = None
        self.removals = Removals(tasks, settings.max_concurrent)
        self._has_pool = False
        self._told: list[Callable[[str], None]] = []
        """Called with what takes time while the engine and the image are found."""
        self._preparing = anyio.Lock()
        self.prepared: Prepared | None = None
        """The engine and the image, once they are found."""
        self._with_sets: OrderedDict[str, Prepared] = OrderedDict()
        """The same with the images of package sets, by the sets' digests; the one used last at the end."""
        self._set_pools: OrderedDict[str, WarmPool] = OrderedDict()
        """The pools of these images, of one container each while it is used; likewise."""

    async def prepare(self, notify: Callable[[str], None] | None = None) -> Prepared:
        """Find the engine and the image, building it if need be. The first call works, later ones are free.

        Args:
            notify: Told in a sentence what takes time.

        Raises:
            BridgeError: No working sandbox: `no_runtime`, `image_missing`, `image_build_failed`, `disk_full`, ….
        """
        if self.prepared is None:
            if notify is not None:
                self._told.append(notify)
            try:
                async with self._preparing:
                    if self.prepared is None:
                        self.prepared = await prepare(self._settings, self._tell)
                        self._tasks.start_soon(self._sweep, self.prepared.engine)
            finally:
                if notify is not None:
                    self._told.remove(notify)
        self._start_pool(self.prepared)
        return self.prepared

    @functools.cached_property
    def installer(self) -> Installer:
        """Resolves and fetches the packages that scripts ask for."""
        from mcp_bridge.sandbox.packages.installer import Installer

        return Installer(self._settings.state_dir, self._settings.install)

    async def prepare_with(self, packages: PackageSet | None, notify: Callable[[str], None] | None = None) -> Prepared:
        """As `prepare`, with an image that has a package set; None for none.

        Raises:
            BridgeError: As `PackageSet.require_fit`, `prepare` and `engine_setup.prepare_with`.
        """
        prepared = await self.prepare(notify)
        if packages is None or not packages.packages:
            return prepared
        packages.require_fit()
        if (known := self._with_sets.get(packages.digest)) is None:
            # Its image may need the place of others, and one on which a container waits is in use.
            for digest in list(self._set_pools):
                await self._close_pool(digest)
            known, removed = await prepare_with(self._settings, prepared, packages, self.installer, notify)
            for digest in removed:
                self._with_sets.pop(digest, None)
        else:
            self.installer.cache.image_used(packages.digest)
        self._with_sets[packages.digest] = known
        self._with_sets.move_to_end(packages.digest)
        if len(self._with_sets) > MAX_SETS:
            self._with_sets.popitem(last=False)
        return known

    async def _close_pool(self, digest: str) -> None:
        """Remove the container that waits on the image of a package set."""
        if (pool := self._set_pools.pop(digest, None)) is not None:
            pool.close()
            await pool.ended.wait()

    def _bundle(self, prepared: Prepared) -> bytes:
        return guest_bundle.bundle(prepared.image.magic, javascript="javascript" in self._settings.languages)

    def _tell(self, text: str) -> None:
        for notify in self._told:
            notify(text)

    def _start_pool(self, prepared: Prepared) -> None:
        settings = self._settings
        if self.pool is not None or not self._has_pool or not settings.pool_max:
            return
        self.pool = self._new_pool(prepared, PoolSize(settings.pool_min, max(settings.pool_min, settings.pool_max)))

    def _new_pool(self, prepared: Prepared, size: PoolSize) -> WarmPool:
        settings = self._settings
        pool = WarmPool(
            lambda hash_seed: prepared.engine.start(self.spec(STARTED_AHEAD, prepared, hash_seed)),
            self._bundle(prepared),
            size,
            settings.sandbox_start_timeout,
            lambda: available_memory() > settings.memory,
            lambda: write_report(settings.state_dir, report_of(self.pools)),
        )
        self._tasks.start_soon(self._keep_pool, pool)
        return pool

    @property
    def pools(self) -> list[WarmPool]:
        """The pools of all images."""
        return [*([] if self.pool is None else [self.pool]), *self._set_pools.values()]

    def _pool_of(self, packages: PackageSet | None, prepared: Prepared) -> WarmPool | None:
        """The pool of an image. That of a package set is made when it is asked for, and keeps nothing when idle."""
        if packages is None or not packages.packages or self.pool is None:
            return self.pool
        if not self._has_pool:
            # The bridge ends: nobody would close another.
            return None
        pool = self._set_pools.pop(packages.digest, None) or self._new_pool(prepared, PoolSize(0, 1))
        self._set_pools[packages.digest] = pool
        if len(self._set_pools) > MAX_SET_POOLS:
            self._set_pools.popitem(last=False)[1].close()
        return pool

    async def _keep_pool(self, pool: WarmPool) -> None:
        # The first execution may have started it.
        tracing.detach()
        await pool.run()

    async def start_ahead(self) -> None:
        """As `prepare`, and from now on have containers started before there is an execution for them.

        Raises:
            BridgeError: As `prepare`.
        """
        try:
            prepared = await self.prepare()
            # Compiled once in a process, and not on the loop.
            await anyio.to_thread.run_sync(self._bundle, prepared)
        finally:
            # Where there is no engine yet, a later `prepare` may find one.
            self._has_pool = True
        self._start_pool(prepared)

    def stop_pool(self) -> None:
        """Remove the containers that wait, and start no more."""
        self._has_pool = False
        for pool in self.pools:
            pool.close()
        if self.pool is not None:
            remove_report(self._settings.state_dir)

    def expected(self, *, is_pooled: bool) -> AbstractContextManager[None]:
        """Tell the pool of a script for as long as it waits or runs.

        Args:
            is_pooled: Whether it may take a container from the pool.
        """
        return self.pool.execution(is_pooled=is_pooled) if self.pool is not None else contextlib.nullcontext()

    async def run(
        self,
        execution: str,
        first: bytes,
        limit: RunLimits,
        make_run: MakeRun,
        hash_seed: int | None = None,
        packages: PackageSet | None = None,
    ) -> FinishedRun:
        """Run a script in a container from the pool, or in one that is started for it.

        Args:
            execution: Its execution's id.
            first: The line that starts it.
            limit: Its limits.
            make_run: Makes its run in a container.
            hash_seed: What the hashes of texts come from, by which sets are ordered: one that waits has it, or one is
                started for it. None for any.
            packages: The package set that its container has; it is started for it. None for none.

        Raises:
            BridgeError: As `prepare` and `SandboxProcess.wait`.
        """
        prepared = await self.prepare_with(packages)
        pool = self._pool_of(packages, prepared)
        # The configured image's was told when the script was expected.
        is_told = pool is None or pool is self.pool
        with contextlib.nullcontext() if is_told or pool is None else pool.execution(is_pooled=False):
            return await self._run_in(pool, prepared, execution, first, limit, make_run, hash_seed, packages)

    async def _run_in(
        self,
        pool: WarmPool | None,
        prepared: Prepared,
        execution: str,
        first: bytes,
        limit: RunLimits,
        make_run: MakeRun,
        hash_seed: int | None,
        packages: PackageSet | None,
    ) -> FinishedRun:
        """As `run`, with a pool."""
        for _ in range(MAX_HANDOVERS):
            warm = None if pool is None else await pool.take(hash_seed)
            if warm is None:
                break
            process = warm.process
            run, requests = make_run(process, first, replace(limit, start=HANDOVER_SECONDS))
            try:
                with tracing.span("run sandbox", attributes={"mcp_bridge.sandbox.was_ready": True}):
                    record = await run.run(warm.unwatched)
            except BridgeError:
                if run.has_begun or run.is_unrecorded:
                    await process.aclose()
                    raise
            except BaseException:
                await process.aclose()
                raise
            else:
                if run.has_begun:
                    return FinishedRun(process, run.acknowledgement, requests, record)
            finally:
                await requests.close()
            # Nothing of the script was heard, so it has had no effect: another container may begin it.
            logger.info("a container that was started ahead was lost before its execution %s began", execution)
            self.removals.end(process)
        start = functools.partial(self._run_started, execution, first, limit, make_run, hash_seed)
        try:
            return await start(prepared)
        except BridgeError as exc:
            if exc.code != "image_missing" or packages is None:
                raise
        # Somebody has removed it since it was looked for, so nothing has run: it is made again.
        self._with_sets.pop(packages.digest, None)
        await self._close_pool(packages.digest)
        return await start(await self.prepare_with(packages))

    async def _run_started(
        self,
        execution: str,
        first: bytes,
        limit: RunLimits,
        make_run: MakeRun,
        hash_seed: int | None,
        prepared: Prepared,
    ) -> FinishedRun:
        """Run a script in a container that is started for it. As `run`."""
        with tracing.span("start sandbox"):
            process = await prepared.engine.start(self.spec(execution, prepared, hash_seed))
        run, requests = make_run(process, self._bundle(prepared) + first, limit)
        try:
            with tracing.span("run sandbox", attributes={"mcp_bridge.sandbox.was_ready": False}):
                record = await run.run()
                return FinishedRun(process, run.acknowledgement, requests, record)
        except BaseException:
            await process.aclose()
            raise
        finally:
            await requests.close()

    def spec(self, execution: str, prepared: Prepared, hash_seed: int | None = None) -> SandboxSpec:
        """The container for an execution, or with `STARTED_AHEAD` for one that isn't known yet.

        Args:
            execution: The execution's id.
            prepared: The engine and the image.
            hash_seed: As `run`.
        """
        from mcp_bridge.sandbox.image.store import ENVIRONMENT

        settings = self._settings
        user = settings.container_user
        reserved = reserved_bytes(settings.languages)
        # What no control group holds, process 1 holds by rlimits.
        enforced = prepared.report.choice.enforced
        words = (
            0 if enforced.memory else settings.memory,
            0 if enforced.pids else settings.pids,
            GUEST_SILENCE_SECONDS,
            GUEST_WAITING_SECONDS,
            reserved,
        )
        seed = new_hash_seed() if hash_seed is None else hash_seed
        return SandboxSpec(
            image=prepared.image.reference,
            # Not the execution's: it may have another, when it is run again.
            name=f"mcp-bridge-{secrets.token_hex(8)}",
            argv=["python3", "-s", "-S", "-c", guest_bundle.loader(), *map(str, words)],
            limits=Limits(
                memory=settings.memory,
                reserved=reserved,
                pids=settings.pids,
                cpus=settings.cpus,
                tmp=settings.tmp_size,
                workspace=settings.workspace_size,
            ),
            user=user if ":" in user else f"{user}:{user}",
            labels={OWNER_LABEL: owner_label(), EXECUTION_LABEL: execution},
            environment={**ENVIRONMENT, **INTERPRETER, "PYTHONHASHSEED": str(seed)},
        )

    async def _sweep(self, engine: Engine) -> None:
        """Remove what bridges that are gone left behind."""
        tracing.detach()
        try:
            for container in await sweep(engine):
                logger.warning("removed the container %s of a bridge that is gone", container)
            await self._sweep_files()
        except (BridgeError, OSError) as exc:
            if not isinstance(exc, BridgeError) or exc.code != "clock_went_back":
                logger.warning("the sweep for left-over containers failed: %s", exc)
            # Else whoever begins something is told.
