"""Measures clients' MCP requests, and continues the traces that their HTTP headers name.

The SDK makes the span of each request by itself. It is in the trace that the request's `_meta` names, else in the
current one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mcp.server.context import ServerMiddleware
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult
from mcp_types.methods import SPEC_CLIENT_METHODS

from mcp_bridge.telemetry import measurements, tracing

if TYPE_CHECKING:
    from collections.abc import Collection

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext


class RequestTelemetry(ServerMiddleware[Any]):
    """The outermost middleware of the MCP server.

    Args:
        tools: The names of the server's tools: a client may name others.
    """

    def __init__(self, tools: Collection[str]) -> None:
        self._tools = tools

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Answer a request."""
        headers = {} if ctx.request is None else ctx.request.headers
        with tracing.continued(headers):
            if ctx.request_id is None:
                return await call_next(ctx)
            return await self._measured(ctx, call_next)

    async def _measured(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        began, result = time.monotonic(), measurements.OK
        try:
            answer = await call_next(ctx)
            if _is_error(answer):
                result = "tool_error"
        except MCPError as error:
            result = str(error.error.code)
            raise
        except BaseException as error:
            result = measurements.error_type(error)
            raise
        else:
            return answer
        finally:
            method = ctx.method if ctx.method in SPEC_CLIENT_METHODS else "_OTHER"
            name = (ctx.params or {}).get("name") if method == "tools/call" else None
            tool = name if isinstance(name, str) and name in self._tools else None
            measurements.request_ended(method, tool, result, time.monotonic() - began)


def _is_error(answer: HandlerResult) -> bool:
    """Whether a tool's result says that it has failed; the SDK gives it as the model or as it goes over the wire."""
    match answer:
        case CallToolResult(is_error=True) | {"isError": True}:
            return True
    return False
