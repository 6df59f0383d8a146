"""Opens what `[telemetry]` configures, for as long as a bridge is open."""

from __future__ import annotations

import importlib.util
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio.to_thread

from mcp_bridge.errors import BridgeError, extra_hint

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from mcp_bridge.telemetry.config import TelemetryConfig


@asynccontextmanager
async def telemetry(config: TelemetryConfig) -> AsyncGenerator[None]:
    """Send traces and metrics to the configured collector meanwhile, if there is one.

    Raises:
        BridgeError: `telemetry_missing`: the libraries aren't installed.
    """
    if (config.listen is not None or config.over_http) and not has_prometheus():
        setting = "telemetry.over_http" if config.over_http else "telemetry.listen"
        raise _missing(setting, "prometheus_client", "prometheus")
    if config.otlp is None:
        yield
        return
    try:
        # The libraries take a second to load.
        flush = await anyio.to_thread.run_sync(_start, config, config.otlp)
    except ImportError as exc:
        raise _missing("telemetry.otlp", str(exc.name), "otel") from None
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(flush)


def _start(config: TelemetryConfig, address: str) -> Callable[[], None]:
    """Send traces and metrics from now on; returns what waits until what there is has been sent."""
    from mcp_bridge.telemetry import export  # noqa: PLC0415 - an extra

    export.start(config, address)
    return export.flush


def has_prometheus() -> bool:
    """Whether the library for Prometheus is installed."""
    return importlib.util.find_spec("prometheus_client") is not None


def _missing(setting: str, library: str, extra: str) -> BridgeError:
    return BridgeError(
        "telemetry_missing",
        f"{setting} is set, and the library {library} isn't installed.",
        hint=extra_hint(extra),
    )
