"""The `[telemetry]` table of the configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mcp_bridge.configured_values import ConfiguredTable


class TelemetryConfig(ConfiguredTable):
    """Where traces and metrics go. Nothing goes anywhere by default.

    Attributes:
        otlp: The address of a collector that takes OTLP over HTTP, without `/v1/traces`. Headers for it, such as a
            token, are read from the standard variable `OTEL_EXPORTER_OTLP_HEADERS`.
        sample: The fraction of traces that begin here and are sent; a client's trace is sent if the client sends it.
        interval: Seconds between two transmissions of metrics to the collector; 0 for traces alone.
        over_http: Whether a bridge that serves MCP over HTTP gives Prometheus its metrics there, too: to principals
            that may see all.
        listen: The loopback address `HOST:PORT` at which a bridge that serves MCP gives Prometheus its metrics.
    """

    otlp: Annotated[
        str | None,
        Field(pattern=r"^https?://[^@\s?#]+$", description="OpenTelemetry collector for traces and metrics"),
    ] = None
    sample: Annotated[float, Field(ge=0, le=1, description="Fraction of traces that are sent")] = 1.0
    interval: Annotated[
        float,
        Field(ge=0, allow_inf_nan=False, description="Seconds between two transmissions of metrics; 0 for none"),
    ] = 60.0
    over_http: Annotated[
        bool, Field(strict=True, description="Serve metrics alongside MCP over HTTP, to principals that may see all")
    ] = False
    listen: Annotated[
        str | None,
        Field(
            pattern=r"^(127\.0\.0\.1|localhost):\d{1,5}$",
            description="Loopback address HOST:PORT that serves metrics to Prometheus",
        ),
    ] = None
