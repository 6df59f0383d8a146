"""An MCP server that answers with the trace context that it was sent: `trace_context.py [http]`.

Over HTTP its port on loopback is the first line that it prints.
"""

import socket
import sys

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

mcp = MCPServer("trace-context")


@mcp.tool()
async def sent(ctx: Context, secret: str = "") -> dict[str, dict[str, str]]:
    """What of W3C Trace Context came in the request's `_meta`, and in its headers."""
    await ctx.info("called")
    names = ("traceparent", "tracestate", "baggage")
    meta = ctx.request_context.meta or {}
    headers = getattr(ctx.request_context.request, "headers", {})
    return {
        "meta": {name: meta[name] for name in names if name in meta},
        "headers": {name: headers[name] for name in names if name in headers},
    }


@mcp.tool()
async def fails(secret: str) -> str:
    """An error that quotes its argument."""
    raise ValueError(f"wrong: {secret}")


if sys.argv[1:] == ["http"]:
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(mcp.streamable_http_app(), log_level="critical")).run(sockets=[listening])
else:
    mcp.run("stdio")
