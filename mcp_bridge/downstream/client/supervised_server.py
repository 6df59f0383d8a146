"""A supervised server: started on first use, restarted after its death, listed again, unable to block other servers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from mcp_bridge.downstream.client import server_errors
from mcp_bridge.downstream.client.server_status import ServerStatus, State
from mcp_bridge.downstream.client.starting import first_ready, load_sdk
from mcp_bridge.downstream.client.transport_choice import TransportChoice
from mcp_bridge.downstream.configuration.remote_entries import shown_url
from mcp_bridge.errors import BridgeError
from mcp_bridge.fair_share import MAX_WAIT_SECONDS, Tenant
from mcp_bridge.near_names import did_you_mean, nearest
from mcp_bridge.offload import time_limit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mcp_bridge.downstream.catalog.argument_check import ArgumentCheck
    from mcp_bridge.downstream.catalog.tools import Listing, ToolInfo
    from mcp_bridge.downstream.client.connection_interface import ServerConnection
    from mcp_bridge.downstream.client.server_errors import MaskOutput
    from mcp_bridge.downstream.configuration.inherited_environment import InheritedEnvironment
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.downstream.http.remote_auth import RemoteAccess

logger = logging.getLogger(__name__)

# A larger result is refused before it is decoded.
MAX_RESULT_BYTES = 8 * 1024 * 1024

# Extra bytes for the message around a result.
_ENVELOPE_BYTES = 16 * 1024

# The wait before the second start after a failure; each further failure doubles it.
BACKOFF_BASE = 0.5

# The longest wait between two starts.
BACKOFF_CAP = 30.0

# The longest wait that a server is granted which refuses its start for now (429), and says for how long.
RETRY_AFTER_CAP = 300.0

# A server that lived this long, or answered a call, counts as healthy: after its death there is no wait.
HEALTHY_AFTER = 30.0

# How long a server may take to answer a ping or a listing after one of its calls timed out. If it has sent much, the
# delay may be on our side.
LIVENESS_TIMEOUT = 5.0 + MAX_WAIT_SECONDS

# A tool that isn't known, or whose parameters the server refuses, is looked for in a new listing if the last one is
# older than this.
RELIST_AFTER = 5.0

# How many characters of what was left out of a listing the error for an unknown tool shows.
_SHOWN_NOTICES = 1000

# The pause after a listing, as a multiple of its duration, and its maximum: a server may announce changes of its tools
# without end. With a server that lists quickly the pause isn't noticeable.
RELIST_PAUSE = 5.0
RELIST_PAUSE_CAP = 10.0

# How long a new listing may take while a call waits for it; see LIVENESS_TIMEOUT.
RELIST_TIMEOUT = 5.0 + MAX_WAIT_SECONDS


class _Start:
    """One attempt to start a server, shared by all who wait for it."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.connection: ServerConnection | None = None
        self.error: BridgeError | None = None


class SupervisedServer:
    """A server that is started, watched, listed and ended; `server_calls.DownstreamServer` calls its tools.

    Attributes:
        spec: Its configuration.
        alias: Its Python identifier.
    """

    def __init__(
        self,
        spec: ServerSpec,
        alias: str,
        *,
        spawn: Callable[..., None],
        idle_timeout: float,
        max_result_bytes: int,
        environment: InheritedEnvironment,
        access: RemoteAccess,
        mask_output: MaskOutput | None,
        on_listing: Callable[[SupervisedServer, Listing], None],
    ) -> None:
        self.spec = spec
        self.alias = alias
        self._spawn = spawn
        self._idle_timeout = idle_timeout
        self._max_result_bytes = max_result_bytes
        self._environment = environment
        self._access = access
        self._mask_output = mask_output
        self._on_listing = on_listing
        self._connection: ServerConnection | None = None
        self._latest: ServerConnection | None = None
        self._connections: set[ServerConnection] = set()
        self._tenant: Tenant | None = None
        self._starting: _Start | None = None
        self._choice = TransportChoice(spec)
        self._failures = 0
        self._retry_at = 0.0
        self._last_error: BridgeError | None = None
        self._unreported: BridgeError | None = None
        self._listing: Listing | None = None
        self._checks: dict[str, tuple[ToolInfo, ArgumentCheck]] = {}
        self._by_name: dict[str, ToolInfo] = {}
        self._by_alias: dict[str, ToolInfo] = {}
        self._relisting: anyio.Event | None = None
        self._relist_at = 0.0
        self._not_listed: str | None = None
        """Why the last attempt to list again has failed, or None."""
        self._checking_life = False
        self._closed = False
        self._starts = 0

    # State.

    @property
    def listing(self) -> Listing | None:
        """The last listing in this process, or None."""
        return self._listing

    @property
    def stale(self) -> bool:
        """Whether the running server has announced changes of its tools since the listing."""
        return self._connection is not None and self._connection.usable and self._connection.stale

    @property
    def running(self) -> bool:
        """Whether a call could be sent without starting the server."""
        return self._connection is not None and self._connection.usable

    def status(self) -> ServerStatus:
        """The current status."""
        connection = self._connection if self.running else None
        configuration_error = self.configuration_error()
        error = configuration_error or (None if connection else self._last_error)
        process = connection.transport.process if connection else None
        return ServerStatus(
            name=self.spec.name,
            alias=self.alias,
            state=self._state(),
            tool_count=len(self._listing.tools) if self._listing else None,
            error=server_errors.first_line(error.message) if error else None,
            protocol=connection.protocol if connection else None,
            pid=process.pid if process else None,
            starts=self._starts,
            source=self.spec.source,
            scope=self.spec.scope,
            url=None if self.spec.address is None else shown_url(self.spec.address),
            private=error.private if error else {},
        )

    def _state(self) -> State:
        if not self.spec.enabled:
            return "disabled"
        if self.spec.problem is not None:
            return "misconfigured"
        if self.running:
            return "ready"
        if self._starting is not None:
            return "starting"
        return "failed" if self._failures else "idle"

    def log_tail(self, lines: int = 20) -> list[str]:
        """The first and the last lines that are kept of what its latest process wrote to stderr."""
        return self._latest.transport.log.tail(lines) if self._latest else []

    # Starting.

    async def start(self) -> None:
        """Start the server unless it is running.

        Raises:
            BridgeError: `server_start_failed`, or `server_unavailable` if it can't be started as configured or its
                backoff hasn't passed.
        """
        await self._ready()

    async def start_ahead(self) -> None:
        """Start the server in advance. A failure isn't raised: the next use of the server reports it."""
        try:
            await self._ready()
        except BridgeError as error:
            if error.code == "server_start_failed":
                self._unreported = error

    async def _ready(self) -> ServerConnection:
        connection = self._connection
        if connection is not None:
            if connection.usable:
                return connection
            self._handle_death(connection)
        if self._closed:
            raise server_errors.error(self.spec, "server_unavailable", f"server {self.spec.name!r} is shut down.")
        configuration_error = self.configuration_error()
        if configuration_error is not None:
            raise configuration_error
        if self._starting is None:
            wait = self._retry_at - anyio.current_time()
            if wait > 0:
                if self._unreported is not None:
                    untold, self._unreported = self._unreported, None
                    raise server_errors.copy_to_raise(untold)
                raise server_errors.backoff(self.spec, wait, self._last_error)
            # Whoever asks now is told of this start, so nobody must be told of the one before.
            self._unreported = None
            start = _Start()
            self._spawn(self._start, start)
            self._starting = start
        start = self._starting
        await start.done.wait()
        if start.connection is None:
            assert start.error is not None  # one of both is set before `done`
            raise server_errors.copy_to_raise(start.error)
        return start.connection

    def configuration_error(self) -> BridgeError | None:
        """Why it can't be started as configured, or None."""
        return server_errors.configuration_error(self.spec, self._environment)

    async def _start(self, start: _Start) -> None:
        """Settle `start` in any case. Runs in its own task, so that no caller can cancel it."""
        launched: list[ServerConnection] = []
        try:
            await anyio.to_thread.run_sync(load_sdk)
            with anyio.move_on_after(self.spec.start_timeout):
                era = self._choice.era
                start.connection = await first_ready(self._launch, era, self.spec.start_timeout, launched)
                if start.connection is None and self._choice.try_other(launched):
                    start.connection = await first_ready(self._launch, era, self.spec.start_timeout, launched)
            if start.connection is not None and start.connection.usable:
                self._connection = self._latest = start.connection
                self._choice.learn(start.connection)
                self._last_error = None
                self._set_listing(start.connection.listing)
            else:
                start.connection = None
                relevant_attempts = self._choice.relevant_attempts(launched)
                start.error = server_errors.start_failure(self.spec, relevant_attempts, self._mask_output)
        except BridgeError as error:
            # Not a failure: the bridge is shutting down.
            start.error = error
        except Exception as error:
            logger.exception("starting server %r failed inside the bridge", self.spec.name)
            start.error = server_errors.error(
                self.spec, "server_start_failed", f"server {self.spec.name!r} did not start: {error!r}"
            )
        finally:
            for connection in launched:
                if connection is not start.connection:
                    connection.stop("it was not needed")
            if start.connection is None:
                start.error = start.error or server_errors.error(
                    self.spec, "server_start_failed", f"server {self.spec.name!r} was stopped while it started."
                )
                if not self._closed:
                    server_errors.log(start.error)
                self._record_failure(start.error)
            self._starting = None
            start.done.set()

    def _launch(self, mode: str) -> ServerConnection:
        # All processes of a server share one tenant.
        tenant = self._tenant = self._tenant or Tenant()
        limit = self._max_result_bytes + _ENVELOPE_BYTES
        connection = self._made(mode, tenant, limit)
        self._starts += 1
        self._connections.add(connection)
        self._latest = connection
        self._spawn(self._run, connection)
        return connection

    def _made(self, mode: str, tenant: Tenant, limit: int) -> ServerConnection:
        if self.spec.openapi is not None:
            from mcp_bridge.downstream.openapi.connection import OpenApiConnection  # noqa: PLC0415 - see `load_sdk`

            return OpenApiConnection(self.spec, self.alias, tenant, max_message=limit, access=self._access)
        from mcp_bridge.downstream.client.mcp_connection import Connection  # noqa: PLC0415 - see `load_sdk`

        environment = self._environment.of(self.spec)
        return Connection(
            self.spec,
            self.alias,
            self._choice.mode(mode),
            tenant,
            environment=environment,
            max_message=limit,
            access=self._access,
            kind=self._choice.kind,
        )

    async def _run(self, connection: ServerConnection) -> None:
        try:
            await connection.run(self._idle_timeout)
        finally:
            self._connections.discard(connection)
            self._handle_death(connection)

    def _handle_death(self, connection: ServerConnection) -> None:
        """Handle the death of a process once, whether the next caller or the clean-up notices it first."""
        if connection is not self._connection or connection.stopping is not None or connection.death_handled:
            return
        if connection.transport.retired is not None:
            # Another one is made in its place; if that fails, it is a failure.
            return
        connection.death_handled = True
        healthy = connection.calls_done > 0 or anyio.current_time() - connection.started_at >= HEALTHY_AFTER
        error = server_errors.death(self.spec, connection, mask_output=self._mask_output)
        server_errors.log(error)
        if healthy:
            self._failures = 0
            self._last_error = error
        elif self._failures == 0:
            # The first early death costs no wait; only repeated ones do.
            self._failures = 1
            self._last_error = error
        else:
            self._record_failure(error)

    def _record_failure(self, error: BridgeError) -> None:
        self._failures += 1
        self._last_error = error
        wait = min(BACKOFF_CAP, BACKOFF_BASE * 2 ** min(self._failures - 1, 16))
        wait = max(wait, min(RETRY_AFTER_CAP, error.details.get("retry_in", 0.0)))
        if error.code in server_errors.LOGIN_CODES:
            # A person may log in at any time, and expects the next call to work.
            wait = BACKOFF_BASE
        self._retry_at = anyio.current_time() + wait

    # Tools.

    async def tools(self) -> tuple[ToolInfo, ...]:
        """The server's tools. Starts the server if necessary, and lists again if it has announced changes.

        Raises:
            BridgeError: As `start`.
        """
        connection = await self._ready()
        if connection.stale:
            await self._relist(connection)
        return self._listing.tools if self._listing else ()

    async def find_tool(self, name: str) -> ToolInfo:
        """The tool with this name, or else with this alias.

        Raises:
            BridgeError: `unknown_tool` with the nearest names, or as `listed`.
        """
        connection = await self._ready()
        tool = self._by_name.get(name) or self._by_alias.get(name)
        if tool is None and (self._has_unlisted_changes(connection) or self._is_due(connection)):
            if not await self._relist(connection):
                await self._list_changes(connection)
            tool = self._by_name.get(name) or self._by_alias.get(name)
            if tool is None:
                self._check_listed(connection)
        if tool is None:
            raise self._unknown(name, [*self._by_name, *self._by_alias])
        return tool

    def _unknown(self, name: str, options: Iterable[str]) -> BridgeError:
        # A tool whose alias is near is named once.
        near = nearest(name, options)
        close = list(dict.fromkeys(self._by_alias[one].name if one in self._by_alias else one for one in near))
        hint = did_you_mean(close, list(self._by_name))
        if not self._by_name and self._listing is not None and self._listing.notices:
            hint = f"It has no tools: {'; '.join(self._listing.notices)[:_SHOWN_NOTICES]}."
        message = f"server {self.spec.name!r} has no tool {name!r}."
        return server_errors.error(self.spec, "unknown_tool", message, hint=hint, tool=name, nearest=close)

    async def _relist(self, connection: ServerConnection) -> bool:
        """List again, once for all callers. If that fails, the old listing stays, and announced changes are unlisted.

        Returns:
            Whether this call made the listing; False if it waited for one that another had begun.
        """
        if self._relisting is not None:
            await self._relisting.wait()
            return False
        self._relisting = done = anyio.Event()
        began = anyio.current_time()
        try:
            if (wait := self._relist_at - began) > 0:
                await anyio.sleep(wait)
                began = anyio.current_time()
            self._not_listed = "the call that had asked for them ended first"
            listing = None
            with time_limit(RELIST_TIMEOUT):
                listing = await connection.relist()
            if listing is None:
                self._not_listed = f"it gave no answer within {RELIST_TIMEOUT:g} s"
            else:
                self._set_listing(listing)
                self._not_listed = None
        except Exception as error:  # noqa: BLE001 - whoever is about to call a tool is told (`_check_listed`)
            self._not_listed = server_errors.not_listed(error)
            logger.debug("listing %r again failed: %r", self.spec.name, error)
        finally:
            now = anyio.current_time()
            self._relist_at = now + min(RELIST_PAUSE_CAP, RELIST_PAUSE * (now - began))
            self._relisting = None
            done.set()
        return True

    async def _list_changes(self, connection: ServerConnection) -> None:
        """List what the server has announced, or wait until it is listed."""
        for _ in range(2):
            if not self._has_unlisted_changes(connection) or await self._relist(connection):
                return
            # A listing begun for another call may have been requested before the last change, or ended with that call.

    def _is_due(self, connection: ServerConnection) -> bool:
        """Whether the listing is so old that a change that nobody has announced is looked for, on an occasion."""
        return anyio.current_time() - connection.listed_at > RELIST_AFTER

    def _check_listed(self, connection: ServerConnection) -> None:
        """Return unless the tools are known to be other ones by now, and couldn't be listed.

        Raises:
            BridgeError: `server_unavailable`: what would be called isn't known.
        """
        if connection.usable and connection.stale and self._not_listed is not None:
            message = (
                f"server {self.spec.name!r} may have other tools by now, and did not list them: {self._not_listed}."
            )
            hint = "Nothing was called. Try again."
            raise server_errors.error(self.spec, "server_unavailable", message, hint=hint, reason="unlisted")

    def _set_listing(self, listing: Listing) -> None:
        if listing.notices and (self._listing is None or listing.notices != self._listing.notices):
            # Log a notice once, and again when it changes: a server may list without end.
            logger.warning("%s", "; ".join(listing.notices))
        self._listing = listing
        self._by_name = {tool.name: tool for tool in listing.tools}
        self._by_alias = {tool.alias: tool for tool in listing.tools}
        self._on_listing(self, listing)

    async def listed(self, name: str) -> ToolInfo:
        """The tool with exactly this name in the current listing. Starts the server if necessary.

        Raises:
            BridgeError: `server_start_failed`, `server_unavailable`, `unknown_tool`.
        """
        return (await self._listed(name))[0]

    async def _listed(self, name: str) -> tuple[ToolInfo, ServerConnection]:
        connection = await self._ready()
        await self._list_changes(connection)
        # The new listing may have found that the process has died.
        connection = await self._ready()
        self._check_listed(connection)
        if name not in self._by_name and self._is_due(connection):
            await self._relist(connection)
            connection = await self._ready()
            self._check_listed(connection)
        tool = self._by_name.get(name)
        if tool is None:
            raise self._unknown(name, self._by_name)
        return tool, connection

    def _has_unlisted_changes(self, connection: ServerConnection) -> bool:
        """Whether the server has announced changes that aren't listed yet."""
        return connection.stale or self._relisting is not None

    async def _check_liveness(self, connection: ServerConnection) -> None:
        """After a time-out: end the server if it answers nothing at all, so that the next call gets a fresh process.

        A server that handles one request at a time may be busy with an earlier call: that call's own time-out then
        decides.
        """
        if self._checking_life or not connection.usable:
            return
        self._checking_life = True
        asked_at = anyio.current_time()
        try:
            while connection.usable:
                with anyio.move_on_after(LIVENESS_TIMEOUT) as scope:
                    await _ignoring_errors(connection.ping)
                if not scope.cancelled_caught:
                    return
                if not any(began < asked_at for began in connection.in_flight):
                    connection.stop("it no longer answered")
                    return
        finally:
            self._checking_life = False

    # Ending.

    def stop(self, reason: str = "it was stopped") -> None:
        """End its processes; the next use starts it again."""
        for connection in self._connections:
            connection.stop(reason)

    def close(self, reason: str) -> None:
        """End its processes permanently."""
        self._closed = True
        self.stop(reason)

    async def wait_ended(self) -> None:
        """Return when all of its processes have ended."""
        for connection in list(self._connections):
            await connection.ended.wait()


async def _ignoring_errors(ask: Callable[[], Awaitable[None]]) -> None:
    """Await a request and ignore its errors: an error is a sign of life, too."""
    try:
        await ask()
    except Exception as error:  # noqa: BLE001
        logger.debug("liveness check answered %r", error)
