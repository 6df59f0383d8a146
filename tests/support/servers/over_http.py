"""An MCP server over HTTP, made with the SDK, that counts how often each call reaches its tool.

`over_http.py MODE CALLS [PORT]`: MODE is `events` (answers are event streams that can be resumed), `json`, `stateless` or `sse` (the
transport of protocol version 2024-11-05; nothing is answered before the client is ready), each with `+resources` behind it for a server that has some. CALLS is a file to which the marker of each call is appended, as a line,
before the tool answers. The port that it listens on is the first line that it prints.
"""

import asyncio
import os
import socket
import sys
import warnings
from typing import Annotated

import uvicorn
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.streamable_http import EventMessage, EventStore
from mcp_types import INVALID_REQUEST
from pydantic import Field

mode, calls, *rest = sys.argv[1:]
mode, *more = mode.split("+")


class Events(EventStore):
    """The events of every stream, to be sent again."""

    def __init__(self):
        self.kept = []

    async def store_event(self, stream_id, message):
        self.kept.append((stream_id, message))
        return str(len(self.kept) - 1)

    async def replay_events_after(self, last_event_id, send_callback):
        at = int(last_event_id)
        if at >= len(self.kept):
            return None
        stream = self.kept[at][0]
        for number in range(at + 1, len(self.kept)):
            if self.kept[number][0] == stream and self.kept[number][1] is not None:
                await send_callback(EventMessage(self.kept[number][1], str(number)))
        return stream


ready = set()


async def refused_until_ready(ctx, call_next):
    """Answer nothing before the client has said that it is ready, as servers of the time of this transport do."""
    session = ctx.request.query_params["session_id"]
    if ctx.method == "notifications/initialized":
        ready.add(session)
    elif ctx.method not in {"initialize", "ping"} and ctx.request_id is not None and session not in ready:
        raise MCPError(INVALID_REQUEST, "Received request before initialization was complete")
    return await call_next(ctx)


mcp = MCPServer("over-http", middleware=[refused_until_ready] if mode == "sse" else [])


def note(marker):
    file = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{marker}\n".encode())
    os.close(file)


@mcp.tool()
async def count(marker: str, size: int = 0, seconds: float = 0.0) -> str:
    """Note that the call has happened, and answer with its marker and some more text."""
    note(marker)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(f"{marker}-cancelled")
        raise
    return marker + "." * size


@mcp.tool()
async def work(marker: str, steps: int, ctx: Context) -> str:
    """Report progress, and answer with the marker."""
    note(marker)
    for step in range(steps):
        await ctx.report_progress(step, steps, f"step {step}")
        await asyncio.sleep(0.01)
    return marker


@mcp.tool()
async def routed(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})], ctx: Context) -> str:
    """What the header that an argument is sent as says."""
    return f"{region} {ctx.headers.get('mcp-param-region')}"


@mcp.tool()
async def grow(ctx: Context) -> str:
    """Have one tool more, and announce it."""

    @mcp.tool()
    def grown() -> str:
        return "grown"

    # The new era's subscriptions, and the old era's stream of the session.
    await ctx.notify_tools_changed()
    if ctx.session.protocol_version != "2026-07-28":
        await ctx.session.send_tool_list_changed()
    return "announced"


@mcp.tool()
async def asking(ctx: Context) -> str:
    """Ask the client whether it is there, and for its folders; why it has none to tell."""
    await ctx.session.send_ping()
    with warnings.catch_warnings(action="ignore"):
        try:
            return str(await ctx.session.list_roots())
        except MCPError as error:
            return error.error.message


@mcp.tool()
async def headers(ctx: Context) -> dict[str, str]:
    """The headers of the request."""
    return dict(ctx.headers)


if "resources" in more:

    @mcp.resource("note://all", mime_type="text/plain")
    async def note_of_all() -> str:
        """What there is to note."""
        return "noted"

    @mcp.resource("note://{name}/größe", mime_type="application/octet-stream")
    async def note_of_one(name: str) -> bytes:
        """A note's size."""
        return name.encode()


if mode == "sse":
    app = mcp.sse_app()
else:
    app = mcp.streamable_http_app(
        json_response=mode == "json",
        stateless_http=mode == "stateless",
        event_store=Events() if mode == "events" else None,
        retry_interval=50 if mode == "events" else None,
        max_request_body_size=32 << 20,
    )

# With the protocol named, asyncio sets TCP_NODELAY on its connections.
listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listening.bind(("127.0.0.1", int(rest[0]) if rest else 0))
listening.listen()
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
