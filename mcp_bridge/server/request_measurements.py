"""Measures clients' MCP requests. The SDK makes their spans by itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mcp.server.context import ServerMiddleware
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult
from mcp_types.methods import SPEC_CLIENT_METHODS

from mcp_bridge.telemetry import measurements

if TYPE_CHECKING:
    from collections.abc import Collection

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext


class RequestMeasurements(ServerMiddleware[Any]):
    """Tells `measurements` of each request.

    Args:
        tools: The names of the server's tools: a client may name others.
    """

    def __init__(self, tools: Collection[str]) -> None:
        self._tools = tools

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Answer a request, and measure that."""
        if ctx.request_id is None:
            return await call_next(ctx)
        began, result = time.monotonic(), measurements.OK
        try:
            answer = await call_next(ctx)
            if isinstance(answer, CallToolResult) and answer.is_error:
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
