"""What a supervisor needs of a connection to a server, whichever way the server is spoken to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from mcp_bridge import fair_share
from mcp_bridge.downstream.catalog.tools import Listing
from mcp_bridge.downstream.client.log_tail import logger
from mcp_bridge.offload import detach_from_time_limits

if TYPE_CHECKING:
    from anyio.abc import Process
    from mcp_types import CallToolResult, InputRequiredResult

    from mcp_bridge.downstream.catalog.bound_tool import Listener
    from mcp_bridge.downstream.catalog.resource_tools import ResourceTool
    from mcp_bridge.downstream.client.log_tail import LogRing
    from mcp_bridge.downstream.configuration.spec import ServerSpec


class ConnectionTransport(Protocol):
    """What a supervisor, and errors, need of what a connection is made over.

    Attributes:
        process: The server's process, or None.
        environment: Its environment variables.
        log: What it has printed.
        closed: Set when nothing further will arrive.
        end_reason: Why, or None.
        retired: Why no further request should be made, or None.
        max_message: The largest message that is accepted, in bytes.
        tenant: The server as a tenant that shares the interpreter.
    """

    @property
    def process(self) -> Process | None: ...  # noqa: D102 - above
    @property
    def environment(self) -> dict[str, str]: ...  # noqa: D102
    @property
    def log(self) -> LogRing: ...  # noqa: D102
    @property
    def closed(self) -> anyio.Event: ...  # noqa: D102
    @property
    def end_reason(self) -> str | None: ...  # noqa: D102
    @property
    def retired(self) -> str | None: ...  # noqa: D102
    @property
    def max_message(self) -> int: ...  # noqa: D102
    @property
    def tenant(self) -> fair_share.Tenant: ...  # noqa: D102
    def exit_status(self) -> str | None:
        """How its process ended, or None."""


class ServerConnection(ABC):
    """A started server. `run` is its task; all other members may be used from any task of the event loop.

    Attributes:
        settled: Set once the server is ready or has failed.
        ended: Set once its process has ended.
        failure: Why it never became ready, or None.
        listing: Its tools, once ready.
        stale: Whether the server has announced changes of its tools since the listing.
        pages_listed: How many pages of tools the server has sent.
        stopping: Why the bridge is stopping it, or None.
        death_handled: Whether the supervisor has handled its end.
        last_used: When a request was last made, on the event loop's clock.
    """

    def __init__(self, spec: ServerSpec, alias: str, mode: str, transport: ConnectionTransport) -> None:
        self._spec = spec
        self._alias = alias
        self._scope = anyio.CancelScope()
        self.mode = mode
        self.transport = transport
        self.settled = anyio.Event()
        self.ended = anyio.Event()
        self.failure: BaseException | None = None
        self.listing = Listing(())
        self.listed_at = 0.0
        self.stale = False
        self.pages_listed = 0
        self.stopping: str | None = None
        self.death_handled = False
        self.started_at = anyio.current_time()
        self.last_used = self.started_at
        self.calls_done = 0
        self.in_flight: set[float] = set()

    @property
    def is_remote(self) -> bool:
        """Whether its server is a remote one."""
        return self._spec.is_remote

    @property
    def serves_several(self) -> bool:
        """Whether calls have been made over it for several principals, as far as that is known."""
        return False

    @property
    def usable(self) -> bool:
        """Whether requests can be sent now."""
        transport = self.transport
        is_open = transport.retired is None and not transport.closed.is_set()
        return self._is_ready and self.stopping is None and is_open

    @property
    @abstractmethod
    def _is_ready(self) -> bool: ...

    @property
    @abstractmethod
    def protocol(self) -> str | None:
        """The protocol and its version, once ready."""

    def stop(self, reason: str) -> None:
        """Begin to stop the server; calls in flight fail."""
        self.stopping = self.stopping or reason
        self._scope.cancel()

    async def run(self, idle_timeout: float) -> None:
        """Start the server, serve until it dies, is stopped or was idle, then end its processes. Never raises."""
        # From now on messages are charged to the server, and not to whoever needed it first.
        fair_share.current.set(self.transport.tenant)
        detach_from_time_limits()
        try:
            with self._scope:
                await self._run(idle_timeout)
        except Exception as error:  # noqa: BLE001 - whatever a server makes a library raise is this server's failure
            if not self.settled.is_set():
                self.failure = _innermost(error)
            logger.debug("server %r ended: %r", self._spec.name, error)
        finally:
            self._forget()
            if self.failure is None and not self.settled.is_set():
                self.failure = RuntimeError(self.stopping or "it was stopped")
            self.settled.set()
            self.ended.set()

    @abstractmethod
    async def _run(self, idle_timeout: float) -> None: ...

    async def _closed_or_idle(self, idle_timeout: float) -> None:
        """Wait until the connection is closed, or hasn't been used for so many seconds; 0 or less for no limit."""
        closed = self.transport.closed
        while not closed.is_set():
            if idle_timeout <= 0:
                await closed.wait()
                continue
            left = self.last_used + idle_timeout - anyio.current_time()
            if left <= 0 and not self.in_flight:
                self.stopping = "it was idle"
                return
            with anyio.move_on_after(left if left > 0 else idle_timeout):
                await closed.wait()

    @abstractmethod
    def _forget(self) -> None:
        """Note that no further request can be sent."""

    @abstractmethod
    async def call(
        self, name: str, arguments: dict[str, Any], listener: Listener | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool.

        Args:
            name: The tool's name.
            arguments: Argument values by the schema's names.
            listener: Who it is made for, and who is told what the server says while it works.

        Raises:
            Exception: What `failures.call_failure` knows.
        """

    async def call_resource_tool(
        self, tool: ResourceTool, arguments: dict[str, Any], listener: Listener | None = None
    ) -> CallToolResult | InputRequiredResult:
        """As `call`, for a tool that the bridge has added: only to a server whose connection does this."""
        raise NotImplementedError

    @abstractmethod
    async def ping(self) -> None:
        """Return when the server has given a sign of life."""

    @abstractmethod
    async def relist(self) -> Listing:
        """List the tools again."""


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
