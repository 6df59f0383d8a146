"""A supervised server: started on first use, started again after it died, never able to hold up another."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from mcp_bridge.downstream.catalog.aliases import did_you_mean, nearest
from mcp_bridge.downstream.catalog.arguments import ArgumentCheck, ArgumentError, UncheckedError
from mcp_bridge.downstream.catalog.describe import called_as
from mcp_bridge.downstream.client import failures
from mcp_bridge.downstream.client.starting import first_ready, load_sdk
from mcp_bridge.downstream.client.status import ServerStatus, State
from mcp_bridge.errors import BridgeError
from mcp_bridge.fair_share import MAX_WAIT_SECONDS, Party
from mcp_bridge.offload import time_limit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mcp_types import CallToolResult

    from mcp_bridge.downstream.catalog.tools import Listing, ToolInfo
    from mcp_bridge.downstream.client.connection import Connection
    from mcp_bridge.downstream.client.failures import Shown
    from mcp_bridge.downstream.configuration.environment import Environment
    from mcp_bridge.downstream.configuration.spec import ServerSpec

logger = logging.getLogger(__name__)

# A result over this many bytes is refused before it is decoded.
MAX_RESULT_BYTES = 8 * 1024 * 1024

# Room for the envelope around a result.
_ENVELOPE_BYTES = 16 * 1024

# Wait before the second start after a failure; doubled by each further failure.
BACKOFF_BASE = 0.5

# The longest wait between two starts.
BACKOFF_CAP = 30.0

# A server that lived so long, or answered a call, was healthy: its death costs no wait.
HEALTHY_AFTER = 30.0

# What a server may take to answer a ping (or a listing) after one of its calls has timed out. It may have sent so much
# that we are the ones who are late.
LIVENESS_TIMEOUT = 5.0 + MAX_WAIT_SECONDS

# A tool that isn't in a listing older than this is looked for in a new one.
RELIST_AFTER = 5.0

# After a new listing, the pause until the next, as a multiple of what it took: a server may say without end that its
# tools have changed. Of one that lists quickly nobody notices.
RELIST_PAUSE = 5.0
RELIST_PAUSE_CAP = 10.0

# What a new listing may take while a call waits for it; see LIVENESS_TIMEOUT.
RELIST_TIMEOUT = 5.0 + MAX_WAIT_SECONDS


class _Start:
    """One attempt to start a server, shared by everyone who waits for it."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.connection: Connection | None = None
        self.error: BridgeError | None = None


class DownstreamServer:
    """One configured server. Made by a `Fleet`, whose task group runs its tasks.

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
        environment: Environment,
        shown: Shown | None,
        on_listing: Callable[[DownstreamServer, Listing], None],
    ) -> None:
        self.spec = spec
        self.alias = alias
        self._spawn = spawn
        self._idle_timeout = idle_timeout
        self._max_result_bytes = max_result_bytes
        self._environment = environment
        self._shown = shown
        self._on_listing = on_listing
        self._connection: Connection | None = None
        self._latest: Connection | None = None
        self._connections: set[Connection] = set()
        self._party: Party | None = None
        self._starting: _Start | None = None
        self._speaks_legacy_only = False
        self._failures = 0
        self._retry_at = 0.0
        self._last_error: BridgeError | None = None
        self._untold: BridgeError | None = None
        self._listing: Listing | None = None
        self._checks: dict[str, tuple[ToolInfo, ArgumentCheck]] = {}
        self._by_name: dict[str, ToolInfo] = {}
        self._by_alias: dict[str, ToolInfo] = {}
        self._relisting: anyio.Event | None = None
        self._relist_at = 0.0
        self._checking_life = False
        self._closed = False
        self._starts = 0

    # State.

    @property
    def listing(self) -> Listing | None:
        """Its last listing in this process's life, or None."""
        return self._listing

    @property
    def stale(self) -> bool:
        """Whether it runs and said that its tools have changed since they were listed."""
        return self._connection is not None and self._connection.usable and self._connection.stale

    @property
    def running(self) -> bool:
        """Whether a call could be sent without starting it."""
        return self._connection is not None and self._connection.usable

    def status(self) -> ServerStatus:
        """What is known of it now."""
        connection = self._connection if self.running else None
        refusal = failures.refusal(self.spec)
        error = refusal or (None if connection else self._last_error)
        process = connection.transport.process if connection else None
        return ServerStatus(
            name=self.spec.name,
            alias=self.alias,
            state=self._state(),
            tool_count=len(self._listing.tools) if self._listing else None,
            error=failures.first_line(error.message) if error else None,
            protocol=connection.protocol if connection else None,
            pid=process.pid if process else None,
            starts=self._starts,
            source=self.spec.source,
            scope=self.spec.scope,
            private=error.private if error else {},
        )

    def _state(self) -> State:
        if self.spec.problem is not None:
            return "misconfigured"
        if not self.spec.enabled:
            return "disabled"
        if self.spec.type != "stdio":
            return "unsupported"
        if self.running:
            return "ready"
        if self._starting is not None:
            return "starting"
        return "failed" if self._failures else "idle"

    def log_tail(self, lines: int = 20) -> list[str]:
        """The last lines its latest process wrote to stderr."""
        return self._latest.transport.log.tail(lines) if self._latest else []

    # Starting.

    async def start(self) -> None:
        """Start it unless it runs.

        Raises:
            BridgeError: `server_start_failed`, or `server_unavailable` for one that can't be started at all, or
                not yet again.
        """
        await self._ready()

    async def start_ahead(self) -> None:
        """Start it for whoever will soon use it: if that fails, they are told why. Never raises for that."""
        self._untold = None
        try:
            await self._ready()
        except BridgeError as error:
            if error.code == "server_start_failed":
                self._untold = error

    async def _ready(self) -> Connection:
        connection = self._connection
        if connection is not None:
            if connection.usable:
                return connection
            self._note_death(connection)
        if self._closed:
            raise failures.error(self.spec, "server_unavailable", f"server {self.spec.name!r} is shut down.")
        refusal = failures.refusal(self.spec)
        if refusal is not None:
            raise refusal
        if self._starting is None:
            wait = self._retry_at - anyio.current_time()
            if wait > 0:
                if self._untold is not None:
                    untold, self._untold = self._untold, None
                    raise failures.again(untold)
                raise failures.backoff(self.spec, wait, self._last_error)
            start = _Start()
            self._spawn(self._start, start)
            self._starting = start
        start = self._starting
        await start.done.wait()
        if start.connection is None:
            assert start.error is not None  # noqa: S101 - one of both is set before `done`
            raise failures.again(start.error)
        return start.connection

    async def _start(self, start: _Start) -> None:
        """Settle `start`, whatever happens; runs apart from callers, so that none of them can cancel it."""
        launched: list[Connection] = []
        try:
            await anyio.to_thread.run_sync(load_sdk)
            with anyio.move_on_after(self.spec.start_timeout):
                era = "legacy" if self._speaks_legacy_only and self.spec.era == "auto" else self.spec.era
                start.connection = await first_ready(self._launch, era, self.spec.start_timeout, launched)
            if start.connection is not None and start.connection.usable:
                self._connection = self._latest = start.connection
                self._speaks_legacy_only = self.spec.era == "auto" and start.connection.mode == "legacy"
                self._last_error = None
                self._adopt(start.connection.listing)
            else:
                start.connection = None
                start.error = failures.start_failure(self.spec, launched, self._shown)
        except BridgeError as error:
            # No fault: the bridge is being shut down in the midst of it.
            start.error = error
        except Exception as error:
            logger.exception("starting server %r failed inside the bridge", self.spec.name)
            start.error = failures.error(
                self.spec, "server_start_failed", f"server {self.spec.name!r} did not start: {error!r}"
            )
        finally:
            for connection in launched:
                if connection is not start.connection:
                    connection.stop("it was not needed")
            if start.connection is None:
                start.error = start.error or failures.error(
                    self.spec, "server_start_failed", f"server {self.spec.name!r} was stopped while it started."
                )
                if not self._closed:
                    failures.log(start.error)
                self._failed(start.error)
            self._starting = None
            start.done.set()

    def _launch(self, mode: str) -> Connection:
        from mcp_bridge.downstream.client.connection import Connection  # noqa: PLC0415 - see `load_sdk`

        # One for all of its processes: a server that dies and comes back is the same one.
        party = self._party = self._party or Party()
        limit = self._max_result_bytes + _ENVELOPE_BYTES
        given = self._environment.of(self.spec)
        connection = Connection(self.spec, self.alias, mode, party, environment=given, max_message=limit)
        self._starts += 1
        self._connections.add(connection)
        self._latest = connection
        self._spawn(self._run, connection)
        return connection

    async def _run(self, connection: Connection) -> None:
        try:
            await connection.run(self._idle_timeout)
        finally:
            self._connections.discard(connection)
            self._note_death(connection)

    def _note_death(self, connection: Connection) -> None:
        """Draw the consequences of a death, once: whoever sees it first, the next caller or the clean-up behind it."""
        if connection is not self._connection or connection.stopping is not None or connection.death_noted:
            return
        connection.death_noted = True
        healthy = connection.calls_done > 0 or anyio.current_time() - connection.started_at >= HEALTHY_AFTER
        error = failures.death(self.spec, connection)
        failures.log(error)
        if healthy:
            self._failures = 0
            self._last_error = error
        elif self._failures == 0:
            # The first early death costs no wait either; only a series of them does.
            self._failures = 1
            self._last_error = error
        else:
            self._failed(error)

    def _failed(self, error: BridgeError) -> None:
        self._failures += 1
        self._last_error = error
        wait = min(BACKOFF_CAP, BACKOFF_BASE * 2 ** min(self._failures - 1, 16))
        self._retry_at = anyio.current_time() + wait

    # Tools.

    async def tools(self) -> tuple[ToolInfo, ...]:
        """Its tools, starting it if need be, listed anew if it said that they changed.

        Raises:
            BridgeError: As `start`.
        """
        connection = await self._ready()
        if connection.stale:
            await self._relist(connection)
        return self._listing.tools if self._listing else ()

    async def find_tool(self, name: str) -> ToolInfo:
        """The tool of this name, or else of this alias.

        Raises:
            BridgeError: `unknown_tool` with the nearest names, or as `start`.
        """
        connection = await self._ready()
        tool = self._by_name.get(name) or self._by_alias.get(name)
        old = anyio.current_time() - connection.listed_at > RELIST_AFTER
        if tool is None and (connection.stale or old):
            await self._relist(connection)
            tool = self._by_name.get(name) or self._by_alias.get(name)
        if tool is None:
            raise self._unknown(name, [*self._by_name, *self._by_alias])
        return tool

    def _unknown(self, name: str, options: Iterable[str]) -> BridgeError:
        close = nearest(name, options)
        hint = did_you_mean(close, list(self._by_name))
        message = f"server {self.spec.name!r} has no tool {name!r}."
        return failures.error(self.spec, "unknown_tool", message, hint=hint, tool=name, nearest=close)

    async def _relist(self, connection: Connection) -> bool:
        """List anew, once however many ask; a server that can't keeps its old listing.

        Returns:
            Whether it was listed for this caller; else what another had begun was waited for.
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
            with time_limit(RELIST_TIMEOUT):
                self._adopt(await connection.relist())
        except Exception as error:  # noqa: BLE001 - the old listing serves; a dead server shows at the next call
            logger.debug("listing %r anew failed: %r", self.spec.name, error)
        finally:
            now = anyio.current_time()
            self._relist_at = now + min(RELIST_PAUSE_CAP, RELIST_PAUSE * (now - began))
            self._relisting = None
            done.set()
        return True

    def _adopt(self, listing: Listing) -> None:
        if listing.notices and (self._listing is None or listing.notices != self._listing.notices):
            # Once, and again when it is another: a server may list without end.
            logger.warning("%s", "; ".join(listing.notices))
        self._listing = listing
        self._by_name = {tool.name: tool for tool in listing.tools}
        self._by_alias = {tool.alias: tool for tool in listing.tools}
        self._on_listing(self, listing)

    # Calling.

    async def listed(self, name: str) -> ToolInfo:
        """The tool of exactly this name, as the server lists it now; starts the server if need be.

        Raises:
            BridgeError: `server_start_failed`, `server_unavailable`, `unknown_tool`.
        """
        return (await self._listed(name))[0]

    async def _listed(self, name: str) -> tuple[ToolInfo, Connection]:
        connection = await self._ready()
        for _ in range(2):
            if not self._is_changing(connection) or await self._relist(connection):
                break
            # What was listed for another call may have been asked for before the last change.
        # Listing anew may have found it dead.
        connection = await self._ready()
        if name not in self._by_name and anyio.current_time() - connection.listed_at > RELIST_AFTER:
            await self._relist(connection)
            connection = await self._ready()
        tool = self._by_name.get(name)
        if tool is None:
            raise self._unknown(name, self._by_name)
        return tool, connection

    def _is_changing(self, connection: Connection) -> bool:
        """Whether it has said that its tools have changed, and they aren't listed yet."""
        return connection.stale or self._relisting is not None

    async def check(self, tool: ToolInfo, arguments: dict[str, Any]) -> None:
        """Return if arguments fit a tool's schema.

        Raises:
            BridgeError: `bad_arguments`, with all that is wrong and the tool's signature; `arguments_unchecked`: they
                can't be held against the schema.
        """
        try:
            await self.argument_check(tool).run(arguments)
        except UncheckedError as error:
            message = f"{self.spec.name}.{tool.name}: the arguments can't be checked, so it isn't called: {error}"
            hint = "Pass less, or have the server's author mend the tool's input schema."
            raise failures.error(self.spec, "arguments_unchecked", message, hint=hint, tool=tool.name) from None
        except ArgumentError as error:
            message = f"{self.spec.name}.{tool.name}: {error}."
            raise failures.error(self.spec, "bad_arguments", message, hint=called_as(tool), tool=tool.name) from None

    async def call_tool(
        self,
        tool: ToolInfo | str,
        arguments: dict[str, Any] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        tell: Callable[[str], None] | None = None,
    ) -> CallToolResult:
        """Call a tool, starting the server if need be.

        Args:
            tool: As it was listed and judged: by another name, or listed otherwise, it isn't called. Or its name alone.
            arguments: By their names in the schema.
            timeout: Seconds the call may take once the server is up (its start has a limit of its own); the
                configured `call_timeout` by default.
            tell: Told the server's progress with it and what the server logs meanwhile, as it says it.

        Returns:
            What the server answered; it may say `is_error`.

        Raises:
            BridgeError: `server_start_failed`, `server_unavailable`, `unknown_tool`, `tool_changed`, `bad_arguments`
                (refused here or by the server), `arguments_unchecked`, `tool_timeout`, `server_died`, `tool_cancelled`
                (the server was stopped meanwhile), `result_too_large`, `bad_result` (not a tool result), `tool_failed`
                (a protocol error as answer).
        """
        listed, connection = await self._listed(tool if isinstance(tool, str) else tool.name)
        if not isinstance(tool, str) and listed != tool:
            raise self._changed(tool)
        arguments = arguments or {}
        await self.check(listed, arguments)
        is_as_listed = self._by_name.get(listed.name) is listed and connection.usable
        if not is_as_listed or self._is_changing(connection):
            # The check may have taken its time.
            now, connection = await self._listed(listed.name)
            if now != listed:
                raise self._changed(listed)
        limit = self.spec.call_timeout if timeout is None else timeout
        return await self._call(connection, listed, arguments, limit, tell)

    def _changed(self, tool: ToolInfo) -> BridgeError:
        message = f"{self.spec.name} lists {tool.name} in another form than when the call was decided."
        hint = "Nothing was called. Call it again."
        return failures.error(self.spec, "tool_changed", message, hint=hint, tool=tool.name)

    def argument_check(self, tool: ToolInfo) -> ArgumentCheck:
        """What holds arguments against a tool's schema, compiled once a listing."""
        known = self._checks.get(tool.name)
        if known is None or known[0] is not tool:
            known = self._checks[tool.name] = (tool, ArgumentCheck(tool.input_schema))
        return known[1]

    async def _call(
        self,
        connection: Connection,
        tool: ToolInfo,
        arguments: dict[str, Any],
        limit: float,
        tell: Callable[[str], None] | None,
    ) -> CallToolResult:
        began = anyio.current_time()
        while began in connection.in_flight:
            began += 1e-9
        connection.in_flight.add(began)
        result: Any = None
        try:
            with time_limit(limit):
                result = await connection.call(tool.name, arguments, tell)
        except Exception as error:  # noqa: BLE001 - each kind gets its code
            raise await failures.call_failure(
                self.spec, connection, tool, error, limit=self._max_result_bytes
            ) from None
        finally:
            connection.in_flight.discard(began)
            connection.last_used = anyio.current_time()
        if result is None:
            self._spawn(self._check_life, connection)
            message = f"{self.spec.name}.{tool.name} gave no answer within {limit:g} s; it was cancelled."
            raise failures.error(self.spec, "tool_timeout", message, tool=tool.name, timeout=limit)
        connection.calls_done += 1
        self._failures = 0
        if not hasattr(result, "is_error"):
            message = f"{self.spec.name}.{tool.name} asks for input from a person, which is not supported."
            raise failures.error(self.spec, "tool_failed", message, tool=tool.name)
        return result  # type: ignore[no-any-return]

    async def _check_life(self, connection: Connection) -> None:
        """After a time-out: end the server if it answers nothing at all, so that the next call gets a fresh one.

        A server that runs one thing at a time may be busy with another call, begun earlier: that call's own
        time-out decides first.
        """
        if self._checking_life or not connection.usable:
            return
        self._checking_life = True
        asked_at = anyio.current_time()
        try:
            while connection.usable:
                with anyio.move_on_after(LIVENESS_TIMEOUT) as scope:
                    await _ignoring_errors(connection.ask_for_life)
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
        """End its processes for good."""
        self._closed = True
        self.stop(reason)

    async def wait_ended(self) -> None:
        """Return when none of its processes is left."""
        for connection in list(self._connections):
            await connection.ended.wait()


async def _ignoring_errors(ask: Callable[[], Awaitable[None]]) -> None:
    """Any answer, an error too, is a sign of life."""
    try:
        await ask()
    except Exception as error:  # noqa: BLE001
        logger.debug("liveness check answered %r", error)
