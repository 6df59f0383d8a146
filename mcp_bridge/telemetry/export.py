"""Traces and metrics, sent to a collector over OTLP/HTTP by the SDK of OpenTelemetry.

Imported only where a collector is configured: it needs the extra `otel`. Spans and metrics are queued in memory, within
bounds, and sent by threads of the SDK; nothing of a call waits for a collector. While one can't be reached, what
doesn't fit into the queue is dropped, and one warning is logged.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import requests
from opentelemetry import metrics, propagate, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Status
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mcp_bridge._version import __version__
from mcp_bridge.telemetry import measurements, tracing
from mcp_bridge.telemetry.otel_metrics import OtelMetrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.telemetry.config import TelemetryConfig

logger = logging.getLogger(__name__)

MAX_VALUE_CHARS = 256
"""Most characters of an attribute, and of a span's name: a client may name a tool that there isn't."""

MAX_QUEUED_SPANS = 2048
"""Ended spans that wait to be sent; further ones are dropped."""

MAX_BATCH = 512

SEND_SECONDS = 5.0
"""How long one transmission may take, with its attempts."""

FLUSH_SECONDS = 2.0
"""How long the end of a bridge waits for the last spans and metrics to be sent."""

MAX_ANSWER_BYTES = 4096
"""Longest answer of a collector that is read, so that its connection can be used again."""

SCHEDULE_MILLIS = 1000.0
"""The longest that an ended span waits to be sent."""


_PROBLEMS: tuple[tuple[type[Exception], str], ...] = (
    (requests.exceptions.SSLError, "its certificate isn't trusted, or it has no TLS"),
    (requests.exceptions.ProxyError, "the proxy doesn't connect to it"),
    (requests.exceptions.Timeout, "it doesn't answer in time"),
)
"""In words that have nothing of an answer or an address in them."""


class BoundedSession(requests.Session):
    """Reads no answer that is long or without a length, and takes no redirect for a transmission.

    What is at the collector's address may send without end, and the SDK would keep all of it.

    Attributes:
        problem: Why the last request has failed, to follow the collector's address; empty if it hasn't.
    """

    def __init__(self) -> None:
        super().__init__()
        self.problem = ""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """As `Session.send`."""
        try:
            answer = super().send(request, **(kwargs | {"stream": True}))
        except requests.exceptions.RequestException as exc:
            self.problem = next((said for kind, said in _PROBLEMS if isinstance(exc, kind)), "it can't be reached")
            raise
        is_taken = answer.ok and not answer.is_redirect
        self.problem = "" if is_taken else f"it answers {answer.status_code} to {request.path_url}"
        length = answer.headers.get("content-length", "")
        if not (length.isdecimal() and len(length) <= len(str(MAX_ANSWER_BYTES)) and int(length) <= MAX_ANSWER_BYTES):
            answer.close()
        elif answer.raw is not None:
            answer.raw.read(MAX_ANSWER_BYTES)
        if answer.is_redirect:
            raise requests.exceptions.TooManyRedirects("a collector's redirect isn't followed")
        return answer


class _Reachability:
    """Logs that a collector doesn't take something: once, and again after it has.

    Args:
        what: What is sent: some collectors take traces alone.
        address: The collector's address.
        session: What sends it.
    """

    def __init__(self, what: str, address: str, session: BoundedSession) -> None:
        self._what = what
        self._address = address
        self._session = session
        self._is_failing = False

    def note(self, *, sent: bool) -> None:
        if not sent and not self._is_failing:
            why = f": {self._session.problem}" if self._session.problem else ""
            logger.warning("no %s can be sent to the OpenTelemetry collector %s%s", self._what, self._address, why)
        elif sent and self._is_failing:
            logger.warning("%s can be sent to the OpenTelemetry collector %s again", self._what, self._address)
        self._is_failing = not sent


class SafeSpanExporter(SpanExporter):
    """Passes spans on without what may quote a value, and tells whether they were sent.

    The MCP SDK gives its spans an error's message as their status, which a tool or a client may have written.
    """

    def __init__(self, exporter: SpanExporter, reachability: _Reachability | None = None) -> None:
        self._exporter = exporter
        self._reachability = reachability

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """As `SpanExporter.export`."""
        result = self._exporter.export([_without_messages(span) for span in spans])
        if self._reachability is not None:
            self._reachability.note(sent=result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """As `SpanExporter.shutdown`."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """As `SpanExporter.force_flush`."""
        return self._exporter.force_flush(timeout_millis)


def _without_messages(span: ReadableSpan) -> ReadableSpan:
    if span.status.description is None and len(span.name) <= MAX_VALUE_CHARS:
        return span
    return ReadableSpan(
        name=span.name[:MAX_VALUE_CHARS],
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=span.attributes,
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


class _NotedMetricExporter(MetricExporter):
    """Passes metrics on, and tells whether they were sent."""

    def __init__(self, exporter: OTLPMetricExporter, reachability: _Reachability) -> None:
        super().__init__()
        self._exporter = exporter
        self._reachability = reachability

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> MetricExportResult:
        result = self._exporter.export(metrics_data, timeout_millis, **kwargs)
        self._reachability.note(sent=result is MetricExportResult.SUCCESS)
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        self._exporter.shutdown(timeout_millis, **kwargs)


def resource() -> Resource:
    """What the spans and metrics are of; `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` add to it."""
    name = os.environ.get("OTEL_SERVICE_NAME") or "mcp-code-bridge"
    return Resource.create({SERVICE_NAME: name, SERVICE_VERSION: __version__})


def tracer_provider(sample: float = 1.0) -> TracerProvider:
    """A tracer provider whose spans have bounded attributes and no events: an exception's text may quote values.

    Args:
        sample: The fraction of traces that begin here and are recorded.
    """
    return TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(sample)),
        resource=resource(),
        shutdown_on_exit=False,
        span_limits=SpanLimits(max_events=0, max_span_attributes=32, max_span_attribute_length=MAX_VALUE_CHARS),
    )


class _Exporting(NamedTuple):
    traces: TracerProvider
    metrics: MeterProvider | None


_exporting: _Exporting | None = None


def start(config: TelemetryConfig, address: str) -> None:
    """Send traces and metrics from now on, in the whole process; once begun, other settings need a new process.

    Args:
        config: The settings.
        address: The collector's address.
    """
    global _exporting  # noqa: PLW0603 - the SDK's providers are the process's
    if _exporting is not None:
        return
    # The SDK logs each failure and each span that it drops; one warning of ours says as much.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    base = address.rstrip("/")
    session = BoundedSession()
    spans = OTLPSpanExporter(endpoint=f"{base}/v1/traces", timeout=SEND_SECONDS, session=session)
    traces = tracer_provider(config.sample)
    traces.add_span_processor(
        BatchSpanProcessor(
            SafeSpanExporter(spans, _Reachability("traces", address, session)),
            max_queue_size=MAX_QUEUED_SPANS,
            schedule_delay_millis=SCHEDULE_MILLIS,
            max_export_batch_size=MAX_BATCH,
        )
    )
    trace.set_tracer_provider(traces)
    # Without baggage: a client's would go to every server.
    propagate.set_global_textmap(TraceContextTextMapPropagator())
    tracing.enable(traces.get_tracer("mcp_bridge", __version__))
    _exporting = _Exporting(traces, _metrics(config.interval, base, address) if config.interval else None)


def _metrics(interval: float, base: str, address: str) -> MeterProvider:
    session = BoundedSession()
    otlp = OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=SEND_SECONDS, session=session)
    exporter = _NotedMetricExporter(otlp, _Reachability("metrics", address, session))
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=interval * 1000)
    meters = MeterProvider([reader], resource=resource(), shutdown_on_exit=False)
    metrics.set_meter_provider(meters)
    measurements.add(OtelMetrics(meters.get_meter("mcp_bridge", __version__)))
    return meters


def flush() -> None:
    """Send what is queued, and return after `FLUSH_SECONDS` at the latest."""
    if (exporting := _exporting) is None:
        return

    def work() -> None:
        exporting.traces.force_flush()
        if exporting.metrics is not None:
            exporting.metrics.force_flush()

    # A daemon thread: an unreachable collector doesn't hold up the end of the process.
    thread = threading.Thread(target=work, name="telemetry flush", daemon=True)
    thread.start()
    thread.join(FLUSH_SECONDS)
