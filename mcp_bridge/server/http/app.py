"""MCP over streamable HTTP: the application, and the process that serves it.

`GET /health` says whether the process answers, `GET /ready` whether it takes calls; neither says more, because anybody
may ask. All other paths but the endpoint's, and the viewer's if it is served, are unknown.
"""

from __future__ import annotations

import functools
import logging
import signal
from typing import TYPE_CHECKING, Any

import anyio
from mcp_types import DiscoverResult, InitializeResult
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.routing import Router

from mcp_bridge.errors import BridgeError, log_failure
from mcp_bridge.http_settings import HEALTH_PATH, READY_PATH
from mcp_bridge.server import process_memory
from mcp_bridge.server.app import mcp_server, prepare_ahead, principal_of, server_instructions
from mcp_bridge.server.bridge_supervisor import keep_open
from mcp_bridge.server.ending_signals import terminations
from mcp_bridge.server.http.allowed_hosts import AllowedHosts
from mcp_bridge.server.http.authentication.authenticator import SECOND_LOOK_SECONDS
from mcp_bridge.server.http.certificate import Certificate, Tls
from mcp_bridge.server.http.connections import MAX_HEADER_BYTES, ConnectionLimits
from mcp_bridge.server.http.draining import LOOK_SECONDS, RunningCalls, drain, until_answered
from mcp_bridge.server.http.listener_check import check_listener
from mcp_bridge.server.http.open_files import allow_descriptors, needed_descriptors
from mcp_bridge.server.http.refusals import refused
from mcp_bridge.server.http.request_admission import REVOCATION_SECONDS, Endpoint
from mcp_bridge.server.http.sessions import Sessions, note_begun
from mcp_bridge.server.http.uvicorn_server import EmbeddedServer, embedded_config
from mcp_bridge.server.principal_calls import PrincipalCalls
from mcp_bridge.telemetry.setup import has_prometheus

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Sequence

    import uvicorn
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

    from mcp_bridge.http_settings import HttpSettings
    from mcp_bridge.server.bridge_supervisor import BridgeSupervisor
    from mcp_bridge.server.configuration_reload import Configured, Source
    from mcp_bridge.server.http.authentication.authenticator import Authenticator
    from mcp_bridge.server.http.viewer import HttpViewer

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 30
"""How long an idle connection stays open."""

LAST_SECONDS = 2
"""How long answers that are being sent may take once no call is running any more."""

CONFIGURATION_SECONDS = 1.0
"""How often it is looked for changes of the configuration, besides before each call: the viewer asks no bridge."""

FAILURE_SECONDS = 1.0
"""How often it is looked whether the ledger can still be written."""

EXPOSED_HEADERS = ("Mcp-Session-Id", "Mcp-Protocol-Version", "WWW-Authenticate", "Retry-After")


class OwnInstructions:
    """Has the instructions name the servers of the principal that asks, as a middleware of the MCP server.

    Args:
        supervisor: Has the bridge, which may be opened later than the server.
    """

    def __init__(self, supervisor: BridgeSupervisor) -> None:
        self._supervisor = supervisor

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Handle a message."""
        answer = await call_next(ctx)
        if ctx.method not in {"initialize", "server/discover"}:
            return answer
        said = server_instructions(self._supervisor, principal_of(ctx))
        if isinstance(answer, dict):
            return answer | {"instructions": said}
        if isinstance(answer, (InitializeResult, DiscoverResult)):
            return answer.model_copy(update={"instructions": said})
        return answer


class HttpApp:
    """The ASGI application.

    Args:
        endpoint: The MCP endpoint.
        settings: The settings of HTTP.
        documents: For clients that want to authenticate; anybody may read them, web pages too.
        is_ready: Tells whether calls are taken.
        viewer: The trace viewer, if it is served.
        metrics: Gives the route of the metrics, if they are served. It authenticates by itself.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        settings: HttpSettings,
        documents: Sequence[Route],
        is_ready: Callable[[], bool],
        viewer: HttpViewer | None = None,
        metrics: Callable[[], Route | None] = lambda: None,
    ) -> None:
        self._public = {route.path for route in documents}
        self._documents = CORSMiddleware(
            Router(documents), allow_origins=("*",), allow_headers=("*",), allow_private_network=True
        )
        self._metrics = metrics
        self._path = settings.path
        self._hosts = AllowedHosts(settings.allowed_hosts, settings.allowed_origins)
        self._is_ready = is_ready
        self._viewer = viewer
        self._endpoint: ASGIApp = endpoint
        if self._hosts.origins:
            self._endpoint = CORSMiddleware(
                endpoint,
                allow_origins=self._hosts.origins,
                allow_methods=("GET", "POST", "DELETE"),
                allow_headers=("*",),
                expose_headers=EXPOSED_HEADERS,
                # A page of the internet may be listed, and the bridge be in a private network.
                allow_private_network=True,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI connection."""
        headers = dict(scope["headers"])
        if scope["path"][:8].lower().startswith(("http://", "https://")):
            scope, headers[b"host"] = _in_origin_form(scope)
        host, origin = headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin")
        size = len(scope["raw_path"]) + sum(len(name) + len(value) for name, value in scope["headers"])
        if size > MAX_HEADER_BYTES:
            # uvicorn bounds what it waits for alone: a head that arrives at once may be larger.
            answer: ASGIApp = refused(431, "request_too_large", "The request's headers are too large.").response()
        elif not self._hosts.accepts_host(host):
            answer = _BAD_HOST.response()
        elif scope["path"] in self._public:
            answer = self._documents
        elif origin is not None and not self._hosts.accepts_origin(origin.decode("latin-1"), host):
            answer = refused(403, "bad_origin", "Web pages of this origin may not use this server.").response()
        elif scope["path"] == self._path:
            answer = self._endpoint
        elif (metrics := self._metrics()) is not None and scope["path"] == metrics.path:
            answer = Router([metrics])
        elif self._viewer is not None and self._viewer.has(scope["path"]):
            answer = self._viewer
        elif scope["method"] in {"GET", "HEAD"} and scope["path"] == HEALTH_PATH:
            answer = _status(200, "alive")
        elif scope["method"] in {"GET", "HEAD"} and scope["path"] == READY_PATH:
            answer = _status(200, "ready") if self._is_ready() else _status(503, "not ready")
        else:
            answer = refused(404, "unknown_path", "There is nothing here.").response()
        await answer(scope, receive, send)


def _in_origin_form(scope: Scope) -> tuple[Scope, bytes]:
    """A request whose target is a whole address, and that address's host (RFC 9112, section 3.2.2).

    The host counts instead of the header's.
    """
    host, _, raw_path = scope["raw_path"].partition(b"://")[2].partition(b"/")
    path = scope["path"].partition("://")[2].partition("/")[2]
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    headers = [(b"host", host), *others]
    return {**scope, "path": f"/{path}", "raw_path": b"/" + raw_path, "headers": headers}, host


_BAD_HOST = refused(
    421,
    "bad_host",
    "The Host header is not this server's.",
    "Use its address or a name that it has; the operator adds others to http.allowed_hosts.",
)


def _status(status: int, word: str) -> JSONResponse:
    return JSONResponse({"status": word}, status, {"cache-control": "no-store"})


class _Server(EmbeddedServer):
    """The server of the endpoint, whose certificate may change while it serves.

    Args:
        config: Its configuration.
        tls: The files of the certificate, or None for plain HTTP.
    """

    def __init__(self, config: uvicorn.Config, tls: Tls | None) -> None:
        super().__init__(config)
        self.certificate = None if tls is None else Certificate(tls)
        if self.certificate is not None:
            config.load()
            self.certificate.serve_with(config.ssl)


async def serve_http(
    source: Source,
    first: Configured | BridgeError,
    listener: socket.socket,
    settings: HttpSettings,
    authenticator: Authenticator,
    *,
    programs: bool = False,
    tls: Tls | None = None,
    listening: Callable[[], None] = lambda: None,
) -> BridgeError | None:
    """Serve until SIGTERM, SIGHUP or SIGINT, or until nothing can be recorded any more; then finish the running calls.

    Everything that was started is ended.

    A second signal ends running calls at once, and so does `drain_timeout`.

    Args:
        source: The configuration's files.
        first: The configuration if it was already read, or the error.
        listener: The listening socket.
        settings: The settings of HTTP.
        authenticator: Tells who a request is from.
        programs: As `mcp_server`.
        tls: The files of the certificate, or None for plain HTTP.
        listening: Called once requests are answered.

    Returns:
        The error because of which nothing could be run at the end, or None.

    Raises:
        BridgeError: `authentication_needed`, `too_few_descriptors`.
    """
    process_memory.configure_interpreter()
    if not isinstance(first, BridgeError):
        allow_descriptors(
            needed_descriptors(first),
            f"Raise it (LimitNOFILE of systemd), or set http.max_connections, now {settings.max_connections}, lower.",
        )
    if not logger.isEnabledFor(logging.DEBUG):
        # Anybody could fill the log with requests that are none.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    check_listener(listener, authenticator)
    # Nothing is delayed for a client's first request: a server over HTTP is started before its clients.
    begun = anyio.Event()
    begun.set()
    async with keep_open(source, first, functools.partial(prepare_ahead, begun)) as supervisor:
        own_calls = PrincipalCalls()
        server = mcp_server(supervisor, begun, programs=programs, calls=own_calls)
        calls = RunningCalls()
        server.middleware += [calls, note_begun, OwnInstructions(supervisor)]
        # What is said in their stead names no server.
        server.instructions = server_instructions(supervisor, None)
        sessions = Sessions(server, settings)
        end_calls = functools.partial(_cancel_calls_without_principal, supervisor, own_calls, authenticator)
        endpoint = Endpoint(sessions.handle_request, authenticator, settings, end_calls)
        viewer = _viewer(authenticator, settings)
        supervisor.on_principals(authenticator.restrict)

        def is_ready() -> bool:
            return supervisor.opened.is_set() and supervisor.failure is None and not endpoint.draining

        limits = ConnectionLimits(
            settings.max_connections,
            settings.max_connections_per_address,
            settings.read_timeout,
            settings.write_timeout,
        )
        metrics = _metrics(first, supervisor, endpoint, limits, sessions)
        app = HttpApp(endpoint, settings, authenticator.routes(), is_ready, viewer, metrics)
        web = _Server(_configuration(app, limits, tls), tls)
        with anyio.open_signal_receiver(*terminations(), signal.SIGINT) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(process_memory.release_memory)
                tasks.start_soon(limits.watch)
                tasks.start_soon(_watch_configuration, supervisor)
                tasks.start_soon(_watch_principals, supervisor, own_calls, authenticator)
                if viewer is not None:
                    tasks.start_soon(_keep_viewer, viewer, supervisor)
                async with sessions.run():
                    tasks.start_soon(_serve, web, listener, tasks.cancel_scope)
                    while not web.started:  # noqa: ASYNC110 - uvicorn has no event for it
                        await anyio.sleep(LOOK_SECONDS)
                    listening()
                    await _until_leaving(signals, supervisor)
                    endpoint.draining = True
                    supervisor.drain()

                    def is_idle() -> bool:
                        return endpoint.is_idle and not supervisor.is_going_on

                    await drain(calls, is_idle, settings.drain_timeout, signals)
                    own_calls.end_all()
                    await until_answered(calls, lambda: endpoint.is_idle)
                    endpoint.close()
                    if viewer is not None:
                        viewer.end()
                # Streams have ended with their sessions.
                web.should_exit = True
                await anyio.sleep_forever()
        return supervisor.error or supervisor.failure


async def _until_leaving(signals: AsyncIterator[signal.Signals], supervisor: BridgeSupervisor) -> None:
    """Wait for a signal; or until nothing can be recorded any more, so that nothing is done until it is started again.

    Whoever has started it, such as systemd, starts it again; what was wrong may be mended by then.
    """
    async with anyio.create_task_group() as tasks:

        async def until_failed() -> None:
            while (failure := supervisor.failure) is None:  # noqa: ASYNC110 - it may be of a bridge yet to be opened
                await anyio.sleep(FAILURE_SECONDS)
            log_failure(logger, failure, "leaving, since nothing can be recorded any more")
            tasks.cancel_scope.cancel()

        tasks.start_soon(until_failed)
        logger.info("%s: leaving", (await anext(signals)).name)
        tasks.cancel_scope.cancel()


def _metrics(
    first: Configured | BridgeError,
    supervisor: BridgeSupervisor,
    endpoint: Endpoint,
    limits: ConnectionLimits,
    sessions: Sessions,
) -> Callable[[], Route | None]:
    """Gives the route of the metrics, if the configuration has them served here. It authenticates by itself.

    Without the library the bridge isn't opened, and says why; once it is installed, they are served.
    """
    routes: list[Route] = []

    def route() -> Route | None:
        if routes:
            return routes[0]
        if isinstance(first, BridgeError) or not first.settings.telemetry.over_http or not has_prometheus():
            return None
        from mcp_bridge.server.http.metrics import HttpClients, Metrics  # noqa: PLC0415 - an extra

        def clients() -> HttpClients:
            return HttpClients(len(limits.open), sessions.count)

        routes.append(Metrics(lambda: supervisor.current, clients).start().route(endpoint.admit))
        return routes[0]

    # From the start on, and not from the first time that somebody asks.
    route()
    return route


def _viewer(authenticator: Authenticator, settings: HttpSettings) -> HttpViewer | None:
    if not settings.viewer:
        return None
    from mcp_bridge.server.http.viewer import HttpViewer  # noqa: PLC0415 - most bridges serve none

    return HttpViewer(authenticator, settings)


async def _watch_configuration(supervisor: BridgeSupervisor) -> None:
    while True:
        await anyio.sleep(CONFIGURATION_SECONDS)
        await supervisor.look()


async def _cancel_calls_without_principal(
    supervisor: BridgeSupervisor, calls: PrincipalCalls, authenticator: Authenticator, name: str
) -> bool:
    """End what runs for a principal that nobody can authenticate as any more, whichever request has begun it.

    All at once: what waits for a place must not get that of what ends.

    Returns:
        Whether nothing runs for it now.
    """
    if name not in calls.principals:
        return True
    if await authenticator.knows(name):
        return False
    await anyio.sleep(SECOND_LOOK_SECONDS)
    await supervisor.look()
    is_nobody = not await authenticator.knows(name)
    if is_nobody:
        logger.warning(
            "the calls of %s are ended: it has no token any more, or no table, or it can't be verified", name
        )
        calls.end(name)
    return is_nobody


async def _watch_principals(supervisor: BridgeSupervisor, calls: PrincipalCalls, authenticator: Authenticator) -> None:
    while True:
        await anyio.sleep(REVOCATION_SECONDS)
        for name in calls.principals:
            await _cancel_calls_without_principal(supervisor, calls, authenticator, name)


async def _keep_viewer(viewer: HttpViewer, supervisor: BridgeSupervisor) -> None:
    await supervisor.opened.wait()
    bridge = supervisor.current
    assert bridge is not None  # it is open, and closed after the last request
    await viewer.keep(bridge.database, can_rebuild=bridge.settings.sessions.rebuild)


def _configuration(app: ASGIApp, limits: ConnectionLimits, tls: Tls | None) -> uvicorn.Config:
    return embedded_config(
        app,
        http=limits.protocol(),
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=LAST_SECONDS,
        ssl_certfile=tls and str(tls.certificate),
        ssl_keyfile=str(tls.key) if tls and tls.key else None,
    )


async def _serve(web: _Server, listener: socket.socket, scope: anyio.CancelScope) -> None:
    """Serve until `should_exit`, and then end everything."""
    async with anyio.create_task_group() as tasks:
        if web.certificate is not None:
            tasks.start_soon(web.certificate.watch)
        with anyio.CancelScope(shield=True):
            await web.serve(sockets=[listener])
        tasks.cancel_scope.cancel()
    scope.cancel()
