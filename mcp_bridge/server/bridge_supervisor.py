"""Keeps a bridge open for a server that stays up with any configuration, or the error if it can't be opened.

If a server exits, its client only shows the user that the connection was closed. So the server always answers its
client. If the bridge couldn't be opened, every call tries again: after the error is fixed, the next call works.
"""

from __future__ import annotations

import importlib
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.offload import on_blocking_thread, on_thread
from mcp_bridge.server.configuration_reload import INTERNAL_ERROR, ConfigurationReload, configured, for_the_agent
from mcp_bridge.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping

    from mcp_bridge.executions.waits.automatic_resumption import AutomaticResumption
    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.host.bridge import Bridge
    from mcp_bridge.server.configuration_reload import Configured, Source

logger = logging.getLogger(__name__)

FIRST_SECONDS = 3.0
"""How long the server delays its first answer to the client, which then includes the list of servers."""

CALL_SECONDS = 50.0
"""How long a call waits for the bridge to be opened; clients time out after sixty seconds."""

NOT_OPEN_YET = BridgeError(
    "not_open_yet",
    "The bridge is still being opened, so nothing was run.",
    hint="Call again; if that lasts, another process may hold its ledger: see its log, or `mcp-bridge doctor`.",
)

FIX_HINT = "Nothing was run. Tell your user; once it is mended, the next call works, and nothing has to be restarted."


class _Attempt:
    """One attempt to open the bridge: `error` says why it failed, once it is `over`."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.error: BridgeError | None = None


class BridgeSupervisor:
    """Created by `keep_open`."""

    def __init__(
        self,
        source: Source,
        first: Configured | BridgeError,
        ahead: Callable[[Bridge], Coroutine[Any, Any, None]],
    ) -> None:
        self._source = source
        self._first = first
        self._ahead = ahead
        self.settings = Settings()
        """The bridge's settings; the defaults until the configuration is read."""
        self._bridge: Bridge | None = None
        self._attempt = _Attempt()
        self._wanted = anyio.Event()
        self.opened = anyio.Event()
        """Set once there is a bridge."""
        self._left = anyio.Event()
        self._reload = ConfigurationReload(source)
        self._resumption: AutomaticResumption | None = None
        self._is_draining = False

    @property
    def current(self) -> Bridge | None:
        """The bridge, if it is open."""
        return self._bridge

    @property
    def failure(self) -> BridgeError | None:
        """Why the open bridge can record nothing any more, and so does nothing; or None."""
        return None if self._bridge is None else self._bridge.database.failure

    @property
    def error(self) -> BridgeError | None:
        """Why there is no bridge, or None."""
        return self._attempt.error

    async def bridge(self) -> Bridge:
        """The bridge, for a call.

        Raises:
            BridgeError: There is none: as `Source.configure` and `open_bridge`; `not_open_yet`, `internal_error`.
        """
        if self._bridge is not None:
            await self._reload.apply(self._bridge)
            return self._bridge
        if self.error is not None:
            # Concurrent calls share one attempt.
            self._attempt = _Attempt()
            self._wanted.set()
        # A later call may begin another attempt before this one hears of its own.
        attempt = self._attempt
        with anyio.move_on_after(CALL_SECONDS):
            await attempt.over.wait()
        if self._bridge is None:
            # Without the traceback of earlier raises, which would grow with every call.
            raise (attempt.error or NOT_OPEN_YET).with_traceback(None)
        return self._bridge

    async def look(self) -> None:
        """Apply what has changed in the configuration, as each call does."""
        if self._bridge is not None:
            await self._reload.apply(self._bridge)

    def on_principals(self, changed: Callable[[Mapping[str, Principal]], None]) -> None:
        """Have somebody told of the principals that remain, each time that the configuration has changed."""
        self._reload.principals_changed = changed

    def configuration_changes(self) -> list[str]:
        """Changes of the configuration to mention in the next answer; each is returned once."""
        return self._reload.take_changes()

    async def first(self) -> None:
        """Wait for the first attempt, at most as long as a client can be kept waiting."""
        with anyio.move_on_after(FIRST_SECONDS):
            await self._attempt.over.wait()

    async def keep(self) -> None:
        """Open the bridge whenever a call needs one and there is none, until `leave`."""
        configured_bridge = self._first
        while not self._left.is_set():
            await self._open(configured_bridge)
            await self._wanted.wait()
            self._wanted = anyio.Event()
            if not self._left.is_set():
                configured_bridge = await on_blocking_thread(configured, self._source)

    def drain(self) -> None:
        """Go on with no further execution by itself. What is under way goes on to its end, or until `leave`."""
        self._is_draining = True
        if self._resumption is not None:
            self._resumption.stop()

    @property
    def is_going_on(self) -> bool:
        """Whether an execution goes on that no request has asked for."""
        return self._resumption is not None and not self._resumption.is_idle

    def leave(self) -> None:
        """Close the bridge once it has no calls in progress."""
        self._left.set()
        self._wanted.set()

    async def _open(self, outcome: Configured | BridgeError) -> None:
        if isinstance(outcome, BridgeError):
            self._failed(outcome)
            return
        self.settings = outcome.settings
        try:
            async with (
                open_bridge(outcome.settings, outcome.specs, outcome.governance, missing=outcome.missing) as bridge,
                anyio.create_task_group() as tasks,
            ):
                self._bridge = bridge
                self.opened.set()
                self._attempt.over.set()
                tasks.start_soon(self._ahead, bridge)
                if bridge.settings.resume_waits:
                    tasks.start_soon(self._go_on_with_due, bridge)
                if bridge.settings.telemetry.listen is not None:
                    from mcp_bridge.server.http.metrics import serve_metrics_of  # noqa: PLC0415 - an extra

                    tasks.start_soon(serve_metrics_of, bridge, bridge.settings.telemetry.listen)
                await self._left.wait()
                tasks.cancel_scope.cancel()
        except Exception as exc:
            if self._bridge is not None:
                raise
            if not isinstance(exc, BridgeError):
                logger.exception("the bridge could not be opened")
            self._failed(exc if isinstance(exc, BridgeError) else INTERNAL_ERROR)

    async def _go_on_with_due(self, bridge: Bridge) -> None:
        """Go on with executions whose wait is over, as their owners are by the configuration now."""
        await anyio.sleep(FIRST_LOOK_SECONDS)
        await on_thread(importlib.import_module, "mcp_bridge.executions.waits.automatic_resumption")
        from mcp_bridge.executions.waits.automatic_resumption import AutomaticResumption, at_once  # noqa: PLC0415 - imported on the thread

        if self._is_draining:
            return
        most = at_once(bridge.settings.max_concurrent)
        self._resumption = AutomaticResumption(bridge.lifecycle, bridge.for_owner, most, self.look)
        try:
            await self._resumption.run()
        finally:
            self._resumption = None

    def _failed(self, error: BridgeError) -> None:
        self._source.report_error(error)
        described = for_the_agent(error)
        hint = f"{described.hint} {FIX_HINT}" if described.hint else FIX_HINT
        self._attempt.error = BridgeError(described.code, described.message, hint=hint, **described.details)
        self._attempt.over.set()


FIRST_LOOK_SECONDS = 3.0
"""How long scripts whose wait is over are left alone, for a client that begins to use the bridge."""


@asynccontextmanager
async def keep_open(
    source: Source, first: Configured | BridgeError, ahead: Callable[[Bridge], Coroutine[Any, Any, None]]
) -> AsyncGenerator[BridgeSupervisor]:
    """Keep a bridge open. On exit, all containers and servers are ended, even under cancellation.

    Args:
        source: The configuration's files.
        first: The configuration if it was already read, or the error.
        ahead: Called with a newly opened bridge, before the first call waits for it.
    """
    supervisor = BridgeSupervisor(source, first, ahead)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.keep)
        await supervisor.first()
        try:
            yield supervisor
        finally:
            supervisor.leave()
