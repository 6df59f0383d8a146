"""The `[http]` table of the configuration: how MCP is served over HTTP."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from mcp_bridge.bridge_identity import PATH
from mcp_bridge.configured_values import ConfiguredTable, Size

VIEWER_PATH = "/ui"
"""The path of the trace viewer."""

HEALTH_PATH, READY_PATH, METRICS_PATH = "/health", "/ready", "/metrics"
"""Paths of what monitors ask for."""

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


class HttpSettings(ConfiguredTable):
    """How `mcp-bridge serve --transport http` serves. Sizes are bytes, times are seconds.

    Attributes:
        path: The path of the MCP endpoint.
        viewer: Whether the trace viewer is served, too, under `VIEWER_PATH`, to principals. Off by default: an
            approver's token, which an agent's client may have, then decides.
        allowed_hosts: Values of the Host header besides IP addresses, `localhost` and this machine's name: the names
            under which clients reach the bridge, such as those of a proxy.
        allowed_origins: Origins of web pages that may use the bridge from a browser, as `https://example.org`.
        json_answers: Whether requests are answered with JSON alone. There is no progress and no question to the client
            then, and nothing to resume.
        max_body_size: Of one request.
        max_connections: Open connections in total.
        max_connections_per_address: Open connections from one IP address. All clients behind a proxy have its address.
        max_sessions: Open sessions of all clients (protocol versions up to 2025-11-25).
        max_sessions_per_principal: Open sessions of one principal.
        session_idle_timeout: A session ends after this time without a request or a running call.
        replay_size: Events of one session that are kept for a client that resumes a broken stream.
        read_timeout: How long a request may take to arrive.
        write_timeout: How long a client may go without reading its answer.
        drain_timeout: How long running calls may take to finish after SIGTERM.
    """

    path: Annotated[
        str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)+$", max_length=200, description="Path of the MCP endpoint")
    ] = PATH
    viewer: Annotated[bool, Field(description=f"Serve the trace viewer to principals, at {VIEWER_PATH}/")] = False
    allowed_hosts: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=253)], ...],
        Field(description="Names by which clients reach it, besides localhost, this machine's name and IP addresses"),
    ] = ()
    allowed_origins: Annotated[
        tuple[Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9._\-\[\]:]+$", max_length=300)], ...],
        Field(description="Web pages that may use it from a browser, as https://example.org"),
    ] = ()
    json_answers: Annotated[
        bool, Field(description="Answer with JSON alone: no progress, no questions, nothing to resume")
    ] = False
    max_body_size: Annotated[Size, Field(description="Most that one request may have")] = 10 << 20
    max_connections: Annotated[int, Field(ge=1, description="Open connections")] = 1024
    max_connections_per_address: Annotated[
        int, Field(ge=1, description="Open connections of one IP address, such as a proxy's")
    ] = 512
    max_sessions: Annotated[int, Field(ge=1, description="Open sessions")] = 1000
    max_sessions_per_principal: Annotated[int, Field(ge=1, description="Open sessions of one principal")] = 250
    session_idle_timeout: Annotated[
        Seconds, Field(description="Until a session without requests or running calls ends")
    ] = 1800.0
    replay_size: Annotated[Size, Field(description="Kept of a session's events for a client that resumes a stream")] = (
        1 << 20
    )
    read_timeout: Annotated[Seconds, Field(description="How long a request may take to arrive")] = 30.0
    write_timeout: Annotated[Seconds, Field(description="How long a client may go without reading its answer")] = 30.0
    drain_timeout: Annotated[Seconds, Field(description="How long running calls may continue after SIGTERM")] = 20.0

    @model_validator(mode="after")
    def _paths_differ(self) -> Self:
        if self.path in {HEALTH_PATH, READY_PATH, METRICS_PATH}:
            raise ValueError(f"path: {self.path} has something else; name another")
        if self.viewer and f"{self.path}/".startswith(f"{VIEWER_PATH}/"):
            raise ValueError(f"path: {self.path} is the viewer's; name another, or set viewer = false")
        return self
