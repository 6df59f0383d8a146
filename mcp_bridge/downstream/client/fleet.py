"""All configured servers, and the task group in which their tasks run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self

import anyio

from mcp_bridge.downstream.catalog.aliases import assign
from mcp_bridge.downstream.client.server_calls import DownstreamServer
from mcp_bridge.downstream.client.supervised_server import MAX_RESULT_BYTES, SupervisedServer
from mcp_bridge.downstream.configuration.inherited_environment import InheritedEnvironment
from mcp_bridge.downstream.http.remote_auth import RemoteAccess, without_secrets
from mcp_bridge.errors import BridgeError, log_failure
from mcp_bridge.near_names import nearest
from mcp_bridge.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType

    from anyio.abc import TaskGroup

    from mcp_bridge.downstream.catalog.tools import Listing
    from mcp_bridge.downstream.client.server_errors import MaskOutput
    from mcp_bridge.downstream.client.server_status import ServerStatus
    from mcp_bridge.downstream.configuration.spec import ServerSpec

logger = logging.getLogger(__name__)

# Longer than the sum of the transports' bounded waits; expires only if one of these is broken.
_CLOSE_TIMEOUT = 10.0


class Fleet:
    """The supervised servers. An async context manager; enter and exit it in the same task.

    Attributes:
        servers: Servers by configured name.
        missing: One sentence for each configuration file that is ignored.
    """

    def __init__(
        self,
        specs: Iterable[ServerSpec],
        *,
        idle_timeout: float = 0.0,
        max_result_bytes: int = MAX_RESULT_BYTES,
        environment: InheritedEnvironment | None = None,
        access: RemoteAccess | None = None,
        mask_output: MaskOutput | None = None,
        missing: tuple[str, ...] = (),
    ) -> None:
        """Configure the servers. A server is started on first use.

        Args:
            specs: The servers' configurations.
            idle_timeout: Seconds after which an unused server is stopped; 0 for never.
            max_result_bytes: The maximum size of a result, in bytes of JSON.
            environment: The environment that servers are given; by default everything but the bridge's own variables.
            access: What remote servers' connections are authenticated with; by default nothing but static headers.
            mask_output: Masks secrets in a server's output so that errors may quote it; None if errors quote none.
            missing: One sentence for each configuration file that is ignored, for errors about unknown servers.
        """
        specs = list(specs)
        environment = environment or InheritedEnvironment()
        access = access or RemoteAccess(without_secrets)
        aliases = assign((spec.name for spec in specs), lower=True)
        self._tasks: TaskGroup | None = None
        self._closed = False
        self.missing = missing
        self._listeners: list[Callable[[SupervisedServer, Listing], None]] = []
        self.servers = {
            spec.name: DownstreamServer(
                spec,
                aliases[spec.name],
                spawn=self._spawn,
                idle_timeout=idle_timeout,
                max_result_bytes=max_result_bytes,
                environment=environment,
                access=access,
                mask_output=mask_output,
                on_listing=self._on_listing,
            )
            for spec in specs
        }
        self._by_alias = {server.alias: server for server in self.servers.values()}

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End all servers and their processes. Bounded in time; completes even if the caller is cancelled."""
        tasks, self._tasks = self._tasks, None
        self._closed = True
        if tasks is None:
            return
        with anyio.CancelScope(shield=True):
            for server in self.servers.values():
                server.close("the bridge is shutting down")
            with anyio.move_on_after(_CLOSE_TIMEOUT):
                for server in self.servers.values():
                    await server.wait_ended()
        tasks.cancel_scope.cancel()
        tasks.cancel_scope.shield = True
        await tasks.__aexit__(None, None, None)

    def server(self, name: str) -> DownstreamServer:
        """The server with this name, or else with this alias.

        Raises:
            BridgeError: `unknown_server`, with the nearest names.
        """
        server = self.servers.get(name) or self._by_alias.get(name)
        if server is None:
            close = nearest(name, [*self.servers, *self._by_alias])
            if close:
                hint = f"Did you mean {', '.join(close)}?"
            else:
                hint = f"Servers: {', '.join(sorted(self.servers))}." if self.servers else "None is configured."
            hint = " ".join([hint, *self.missing])
            raise BridgeError("unknown_server", f"There is no server {name!r}.", hint=hint, server=name, nearest=close)
        return server

    def statuses(self) -> list[ServerStatus]:
        """The status of every server, sorted by name."""
        return [self.servers[name].status() for name in sorted(self.servers)]

    def add_listener(self, listener: Callable[[SupervisedServer, Listing], None]) -> None:
        """Register a callback for every listing of a server."""
        self._listeners.append(listener)

    def start_soon(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run a background task in the fleet's task group.

        Raises:
            BridgeError: `server_unavailable`: the fleet isn't running.
        """
        self._spawn(function, *args)

    def _on_listing(self, server: SupervisedServer, listing: Listing) -> None:
        for listener in self._listeners:
            listener(server, listing)

    def _spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        if self._tasks is None:
            raise BridgeError("server_unavailable", "The bridge's servers are not running: it is shut down.")
        self._tasks.start_soon(_contained, function, *args)


async def _contained(function: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Run one server's task. An exception in it must not end the task group, and with it the other servers."""
    tracing.detach()
    try:
        await function(*args)
    except Exception as exc:  # noqa: BLE001
        log_failure(logger, exc, "a server's task failed")
