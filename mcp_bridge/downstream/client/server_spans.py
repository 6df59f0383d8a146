"""The span of a request to a server, and the trace context that it takes along.

Names and attributes are those of the semantic conventions for MCP clients.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mcp.shared.exceptions import MCPError

from mcp_bridge.telemetry import tracing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span

    from mcp_bridge.downstream.configuration.spec import ServerSpec


_NO_SPAN: AbstractContextManager[None] = nullcontext()


def server_span(
    tool: str, spec: ServerSpec, version: str, method: str = "tools/call"
) -> AbstractContextManager[Span | None]:
    """The span of a request for a tool's call as a context manager; it gives None if nothing is traced.

    Args:
        tool: The tool's name.
        spec: The server.
        version: The protocol version of its connection.
        method: The request.
    """
    return _server_span(tool, spec, version, method) if tracing.is_enabled() else _NO_SPAN


def with_trace_context(params: dict[str, Any]) -> dict[str, Any]:
    """A request's parameters, with the current trace context in their `_meta` (SEP-414) if there is one."""
    if not tracing.is_enabled():
        return params
    return params | {"_meta": {**params.get("_meta", {}), **tracing.carrier()}}


@contextmanager
def _server_span(tool: str, spec: ServerSpec, version: str, method: str) -> Iterator[Span | None]:
    attributes: dict[str, str | int] = {
        "mcp.method.name": method,
        "mcp.protocol.version": version,
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "mcp_bridge.server": spec.name,
        "network.transport": "tcp" if spec.is_remote else "pipe",
    }
    if spec.url is not None:
        # The origin alone: some services have a credential in the path.
        parts = urlsplit(spec.url)
        attributes |= {"network.protocol.name": "http", "server.address": parts.hostname or ""}
        attributes["server.port"] = parts.port or (443 if parts.scheme == "https" else 80)
    with tracing.span(f"{method} {tool}", "client", attributes) as span:
        try:
            yield span
        except MCPError as error:
            if span is not None:
                code = str(error.error.code)
                span.set_attribute("rpc.response.status_code", code)
                tracing.failed(span, code)
            raise
