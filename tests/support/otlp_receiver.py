"""A collector for tests: takes OTLP over HTTP on loopback, and decodes it with the official protobuf package."""

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PART_BYTES, MAX_PARTS = 1 << 16, 1 << 10
"""An answer without end: 64 MiB."""

KINDS = {1: "internal", 2: "server", 3: "client"}


@dataclass
class Span:
    """One span, as it came over the wire."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    attributes: dict
    is_error: bool
    message: str
    events: int
    scope: str


@dataclass
class Collector:
    """What was received. `status` is what is answered; `raw` the bodies, byte by byte.

    With `endless`, an answer goes on until its connection is cut: `cut` counts those that were.
    """

    spans: list = field(default_factory=list)
    metrics: dict = field(default_factory=dict)
    raw: bytearray = field(default_factory=bytearray)
    headers: list = field(default_factory=list)
    status: int = 200
    endless: bool = False
    cut: int = 0
    requests: int = 0
    address: str = ""

    def named(self, name):
        """The spans with a name."""
        return [span for span in self.spans if span.name == name]

    def one(self, name, seconds=30):
        """The one span with a name; it is waited for."""
        deadline = time.monotonic() + seconds
        while not self.named(name):
            assert time.monotonic() < deadline, sorted({span.name for span in self.spans})
            time.sleep(0.05)
        (span,) = self.named(name)
        return span

    def ancestors(self, span):
        """The names of what a span is in, the nearest first."""
        by_id = {each.id: each for each in self.spans}
        names = []
        while span.parent in by_id:
            span = by_id[span.parent]
            names.append(span.name)
        return names


def _value(value):
    return getattr(value, value.WhichOneof("value"))


def _attributes(pairs):
    return {pair.key: _value(pair.value) for pair in pairs}


@contextmanager
def collector():
    """A collector that listens meanwhile."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            found.requests += 1
            if found.status == 200:
                found.raw += body
                found.headers.append(dict(self.headers))
                {"/v1/traces": _take_spans, "/v1/metrics": _take_metrics}[self.path](found, body)
            self.send_response(found.status)
            if found.status // 100 == 3:
                self.send_header("location", f"{found.address}/elsewhere")
            if found.endless:
                self._send_without_end()
                return
            self.send_header("content-length", "0")
            self.end_headers()

        def _send_without_end(self):
            self.end_headers()
            self.close_connection = True
            try:
                for _ in range(MAX_PARTS):
                    self.wfile.write(bytes(PART_BYTES))
            except OSError:
                found.cut += 1

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _take_spans(found, body):
    for part in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in part.scope_spans:
            for span in scope.spans:
                found.spans.append(
                    Span(
                        span.name,
                        KINDS.get(span.kind, str(span.kind)),
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        _attributes(span.attributes),
                        span.status.code == 2,
                        span.status.message,
                        len(span.events),
                        scope.scope.name,
                    )
                )


def _take_metrics(found, body):
    for part in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        for scope in part.scope_metrics:
            for metric in scope.metrics:
                points = metric.histogram.data_points
                found.metrics[metric.name] = [
                    (_attributes(point.attributes), point.count, point.sum) for point in points
                ]
