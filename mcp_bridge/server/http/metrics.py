"""Metrics for Prometheus, in its text format: `GET /metrics`.

Imported only where metrics are served: it needs the extra `prometheus`. All labels are from small sets: statuses and
error codes, names from the configuration, principals (up to a bound). No label has a tool's name, an argument or
anything else that a client, a script or a server has chosen.
"""

from __future__ import annotations

import logging
import socket
import time
from typing import TYPE_CHECKING, NamedTuple, Self

import anyio
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response
from starlette.routing import Route

from mcp_bridge import __version__
from mcp_bridge.errors import BridgeError
from mcp_bridge.host.pool_report import report_of
from mcp_bridge.http_settings import METRICS_PATH
from mcp_bridge.server.http.refusals import RefusedRequest, refused
from mcp_bridge.server.http.uvicorn_server import embedded_config, serve_until_cancelled
from mcp_bridge.telemetry import measurements
from mcp_bridge.telemetry.measurements import MAX_PRINCIPALS, BoundedNames
from mcp_bridge.views.ledger_metrics import LedgerFigures, ledger_figures

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from prometheus_client import Metric
    from starlette.requests import Request

    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.host.bridge import Bridge

logger = logging.getLogger(__name__)

FIGURES_SECONDS = 15.0
"""How long the ledger's figures are used: counting them reads every execution's row."""

MAX_CONNECTIONS = 16

_RUN_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_COMMIT_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)


# Each counter would have another metric, which says when it began.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Events:
    """An `Observer` that counts for Prometheus.

    Args:
        registry: Takes the metrics.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"mcp_bridge_{name}", what, labels, registry=registry)

        def seconds(name: str, what: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"mcp_bridge_{name}_seconds", what, labels, buckets=buckets, registry=registry)

        self._requests = counter("requests", "MCP requests of clients", "method", "result")
        self._request_time = seconds("request", "Time to answer an MCP request", _RUN_BUCKETS, "method")
        self._runs = counter("runs", "Runs of executions that have ended", "kind", "status", "principal")
        self._run_time = seconds("run", "Time of a run, waiting included", _RUN_BUCKETS, "kind")
        self._calls = counter("calls", "Calls to tools, refused ones included", "server", "result")
        self._call_time = seconds("call", "Time of a call that was made", _CALL_BUCKETS, "server")
        self._models = counter("model_requests", "Questions to models", "provider", "model", "result")
        self._model_time = seconds("model_request", "Time of a model's answer", _RUN_BUCKETS, "provider", "model")
        self._tokens = counter("model_tokens", "Tokens of models", "provider", "model", "type")
        self._commits = seconds("ledger_commit", "Time until a transaction is on disk", _COMMIT_BUCKETS)
        self._principal = BoundedNames(MAX_PRINCIPALS)

    def request_ended(self, method: str, tool: str | None, result: str, seconds: float) -> None:  # noqa: ARG002
        """As `Observer.request_ended`."""
        self._requests.labels(method, result).inc()
        self._request_time.labels(method).observe(seconds)

    def run_ended(self, kind: str, principal: str, status: str, seconds: float) -> None:
        """As `Observer.run_ended`."""
        self._runs.labels(kind, status, self._principal(principal)).inc()
        self._run_time.labels(kind).observe(seconds)

    def call_ended(self, server: str, tool: str, result: str, seconds: float | None) -> None:  # noqa: ARG002
        """As `Observer.call_ended`."""
        self._calls.labels(server, result).inc()
        if seconds is not None:
            self._call_time.labels(server).observe(seconds)

    def model_answered(
        self, provider: str, model: str, result: str, seconds: float, tokens: tuple[int, int] | None
    ) -> None:
        """As `Observer.model_answered`."""
        self._models.labels(provider, model, result).inc()
        self._model_time.labels(provider, model).observe(seconds)
        for kind, count in zip(("input", "output"), tokens or (), strict=False):
            self._tokens.labels(provider, model, kind).inc(count)

    def committed(self, seconds: float) -> None:
        """As `Observer.committed`."""
        self._commits.observe(seconds)


class HttpClients(NamedTuple):
    """The clients that a bridge has over HTTP now."""

    connections: int
    sessions: int


class State(Collector):
    """What a bridge is doing now.

    Args:
        clients: Counts its clients over HTTP; None if it serves none.

    Attributes:
        bridge: The bridge; None while there is none.
        figures: What its ledger holds, as it was counted last.
    """

    def __init__(self, clients: Callable[[], HttpClients] | None = None) -> None:
        self._clients = clients
        self.bridge: Bridge | None = None
        self.figures: LedgerFigures | None = None

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        yield _gauge("info", "The version that runs", 1, version=__version__)
        is_up = self.bridge is not None and self.bridge.database.failure is None
        yield _gauge("up", "Whether the bridge is open, and its ledger can be written", is_up)
        if self._clients is not None:
            clients = self._clients()
            yield _gauge("http_connections", "Connections of clients over HTTP", clients.connections)
            yield _gauge("http_sessions", "Sessions of clients over HTTP", clients.sessions)
        if (bridge := self.bridge) is None:
            return
        what = "Whether the files of the configuration say what is in force"
        yield _gauge("configuration_current", what, bridge.has_current_configuration)
        running, waiting = bridge.runs_under_way()
        yield _gauge("runs_running", "Scripts that run", running)
        yield _gauge("runs_queued", "Scripts that wait for a place", waiting)
        yield _gauge("sessions_idle", "Sessions that keep a sandbox between two cells", bridge.idle_sessions())
        yield from _of_servers(bridge)
        yield from _of_pool(bridge)
        watch = bridge.loop_watch
        yield _counter("loop_holds", "Turns of the event loop that took too long", watch.count)
        yield _gauge("loop_longest_hold_seconds", "The longest turn of the event loop so far", watch.longest)
        if self.figures is not None:
            yield from _of_ledger(self.figures)


def _gauge(name: str, what: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(f"mcp_bridge_{name}", what, labels=list(labels))
    family.add_metric(list(labels.values()), float(value))
    return family


def _counter(name: str, what: str, value: float) -> Metric:
    return CounterMetricFamily(f"mcp_bridge_{name}", what, value=float(value))


def _of_servers(bridge: Bridge) -> Iterator[Metric]:
    ready = GaugeMetricFamily("mcp_bridge_server_ready", "Whether a server runs", labels=["server"])
    failed = GaugeMetricFamily("mcp_bridge_server_failed", "Whether a server's last start failed", labels=["server"])
    starts = CounterMetricFamily("mcp_bridge_server_starts", "Starts of a server", labels=["server"])
    for status in bridge.fleet.statuses():
        ready.add_metric([status.name], float(status.state == "ready"))
        failed.add_metric([status.name], float(status.state == "failed"))
        starts.add_metric([status.name], float(status.starts))
    yield from (ready, failed, starts)


def _of_pool(bridge: Bridge) -> Iterator[Metric]:
    if not (pools := bridge.sandboxes.pools):
        return
    report = report_of(pools)
    containers = GaugeMetricFamily("mcp_bridge_pool_containers", "Containers started ahead", labels=["state"])
    for state, count in (("ready", report.ready), ("starting", report.starting), ("target", report.target)):
        containers.add_metric([state], count)
    yield containers
    executions = CounterMetricFamily("mcp_bridge_pool_executions", "Executions that wanted one", labels=["result"])
    for result, count in (("hit", report.hits), ("wait", report.waits), ("miss", report.misses)):
        executions.add_metric([result], count)
    yield executions
    yield _counter("pool_lost", "Containers that ended before their execution", report.lost)
    yield _counter("pool_retired", "Containers that were given up unused", report.retired)
    yield _gauge("pool_age_seconds", "How long containers had waited (median)", report.age)


def _of_ledger(figures: LedgerFigures) -> Iterator[Metric]:
    yield _gauge("ledger_entries", "Entries of the log", figures.entries)
    yield _gauge("ledger_bytes", "Size of the ledger's content", figures.file.used)
    yield _gauge("ledger_unused_bytes", "Free pages of the ledger's file", figures.file.unused)
    yield _gauge("ledger_disk_free_bytes", "Free space on the ledger's disk", figures.file.free)
    yield _gauge("approvals_open", "Calls and steps that wait for a person's decision", figures.open_approvals)
    if figures.in_doubt is not None:
        yield _gauge("calls_in_doubt", "Calls with an unknown outcome", figures.in_doubt)
    unfinished = GaugeMetricFamily(
        "mcp_bridge_executions_unfinished", "Executions that have not ended", labels=["principal", "status"]
    )
    # The busiest first, so that a bound leaves out those with the fewest.
    shown, others = BoundedNames(MAX_PRINCIPALS), dict[tuple[str, str], int]()
    for (principal, status), count in sorted(figures.unfinished.items(), key=lambda row: -row[1]):
        label = shown(principal), status
        others[label] = others.get(label, 0) + count
    for label, count in others.items():
        unfinished.add_metric(label, count)
    yield unfinished


class Metrics:
    """The metrics of one bridge. Events are counted from `start` to `close`; as a context manager, meanwhile.

    Args:
        bridge: Gives the bridge, or None while there is none.
        clients: As `State`.
    """

    def __init__(self, bridge: Callable[[], Bridge | None], clients: Callable[[], HttpClients] | None = None) -> None:
        self._bridge = bridge
        self._registry = CollectorRegistry()
        self._events = Events(self._registry)
        self._state = State(clients)
        self._registry.register(self._state)
        ProcessCollector(registry=self._registry)
        self._counting = anyio.Lock()
        self._counted_at = 0.0

    def start(self) -> Self:
        """Count from now on."""
        measurements.add(self._events)
        return self

    def close(self) -> None:
        """Count no more."""
        measurements.remove(self._events)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def text(self) -> bytes:
        """The metrics in Prometheus' text format 0.0.4."""
        async with self._counting:
            bridge = self._state.bridge = self._bridge()
            if bridge is not None and (
                self._state.figures is None or time.monotonic() - self._counted_at > FIGURES_SECONDS
            ):
                try:
                    self._state.figures = await ledger_figures(bridge.database)
                except BridgeError as exc:
                    self._state.figures = None
                    logger.debug("the ledger's figures can't be had: %s", exc)
                self._counted_at = time.monotonic()
            return generate_latest(self._registry)

    def route(self, admit: Callable[[Request], Awaitable[Principal]] | None = None) -> Route:
        """The route `/metrics`.

        Args:
            admit: Tells who asks, or refuses the request: all principals are named, so whoever asks must be allowed to
                see all. None where anybody who can reach it may ask.
        """

        async def metrics(request: Request) -> Response:
            if admit is not None:
                try:
                    principal = await admit(request)
                    if not principal.may_see_all:
                        raise refused(403, "metrics_denied", "Only principals that may see all may read the metrics.")
                except RefusedRequest as exc:
                    return exc.response()
            return Response(await self.text(), headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

        return Route(METRICS_PATH, metrics, methods=["GET"])


async def serve_metrics_of(bridge: Bridge, address: str) -> None:
    """Serve a bridge's metrics, without authentication, until cancelled.

    An address that can't be listened on costs the metrics and nothing else: several clients may each have started a
    bridge.

    Args:
        bridge: The bridge.
        address: The loopback address, `HOST:PORT`.
    """
    host, _, port = address.rpartition(":")
    try:
        listener = socket.create_server((host, int(port)), backlog=MAX_CONNECTIONS)
    except (OSError, OverflowError) as exc:
        logger.warning("metrics are not served: %s (telemetry.listen) can't be listened on: %s", address, exc)
        return
    with listener, Metrics(lambda: bridge) as metrics:
        # A page whose name resolves to this machine has another Host header.
        app = Starlette(
            routes=[metrics.route()],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1"])],
        )
        config = embedded_config(
            app,
            lifespan="off",
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
        )
        await serve_until_cancelled(config, listener)
