"""Servers over HTTP for tests: real ones as processes, scripted ones in the test's own loop, and a proxy that cuts."""

import asyncio
import json
import math
import os
import random
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mcp_bridge.downstream.configuration.spec import ServerSpec

OVER_HTTP = Path(__file__).resolve().parent / "servers" / "over_http.py"
START_SECONDS = 30


@contextmanager
def sdk_server(mode, calls, port=0):
    """A server made with the Python SDK, in one of the modes of `over_http.py`; its port."""
    command = [sys.executable, str(OVER_HTTP), mode, str(calls), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def everything_server(spec, transport):
    """server-everything of npm over `streamableHttp` or `sse`; its port.

    Args:
        spec: Its spec over stdio.
        transport: What it is told on its command line.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [spec.command, spec.args[0], transport]
    env = {**os.environ, "PORT": str(port)}
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_SECONDS
            while not listens(port):
                assert process.poll() is None, "it has ended"
                assert time.monotonic() < deadline, "it doesn't listen"
                time.sleep(0.05)
            yield port
        finally:
            process.kill()


def listens(port):
    """Whether somebody listens on a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def remote(port, path="/mcp", *, name="remote", **settings):
    """The spec of a server on this machine."""
    return ServerSpec(**{"name": name, "type": "http", "url": f"http://127.0.0.1:{port}{path}"} | settings)


@asynccontextmanager
async def serving(app, **options):
    """Serve an application in this loop; its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1, **options)
    )
    # Signals are the test's.
    server.capture_signals = contextmanager(lambda: iter([None]))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:
        assert not task.done(), "it doesn't serve"
        await asyncio.sleep(0.01)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        server.force_exit = True
        await task
        listening.close()


TOOL = {"name": "act", "description": "Act.", "inputSchema": {"type": "object"}}


class ScriptedServer:
    """A server of the old era that answers `tools/call` as the test says.

    Args:
        answer: Called with the request, the JSON-RPC message and the number of the call; returns a response, or None
            for the ordinary result.
        session: The id of its session; None for none.

    Attributes:
        calls: The messages of the calls that reached it.
        seen: All requests: method, path and headers.
        tools: What it lists.
        capabilities: What it says that it has.
    """

    def __init__(self, answer=None, *, session="session-1", path="/mcp"):
        self._answer = answer
        self._session = session
        self._sessions = 0
        self.calls = []
        self.seen = []
        self.get = None
        self.tools = [TOOL]
        self.capabilities = {"tools": {}}
        self.app = Starlette(routes=[Route("/{path:path}", self._handle, methods=["GET", "POST", "DELETE"])])
        self.path = path

    @property
    def sessions(self):
        """How many sessions were opened."""
        return self._sessions

    def result(self, message, text="done"):
        """The ordinary answer to a call."""
        return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": text}]}}

    async def _handle(self, request):
        self.seen.append((request.method, request.url.path, dict(request.headers)))
        if request.method != "POST":
            return (self.get and await self.get(request)) or Response(status_code=405)
        message = json.loads(await request.body())
        if "id" not in message:
            return Response(status_code=202)
        if message["method"] == "tools/call":
            self.calls.append(message)
        answer = self._answer and await self._answer(request, message, len(self.calls))
        if answer is not None:
            return answer
        match message["method"]:
            case "initialize":
                self._sessions += 1
                result = {"protocolVersion": "2025-11-25", "capabilities": self.capabilities} | {
                    "serverInfo": {"name": "scripted", "version": "1"}
                }
                headers = {"mcp-session-id": f"{self._session}-{self._sessions}"} if self._session else {}
                return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result}, headers=headers)
            case "tools/list":
                return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": self.tools}})
            case "tools/call":
                return JSONResponse(self.result(message))
        error = {"code": -32601, "message": "Method not found"}
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error}, status_code=200)


class CuttingProxy:
    """A TCP proxy that cuts each connection after a random number of bytes, in either direction.

    Args:
        port: The port that it connects to.
        seed: For the numbers.
        least: The least bytes of a connection.
        most: The most bytes of a connection; drawn evenly by order of magnitude, so that any part may be cut.
    """

    def __init__(self, port, seed, least, most):
        self._port = port
        self._random = random.Random(seed)  # noqa: S311
        self._range = (math.log10(least), math.log10(most))
        self.cuts = 0
        self.is_cutting = False

    async def _serve(self, reader, writer):
        # None until it is cutting: connections from before are cut, too.
        left = [None]
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        ways = [
            asyncio.create_task(self._pass(reader, back, left)),
            asyncio.create_task(self._pass(there, writer, left)),
        ]
        try:
            # Half-closed connections end as whole ones: HTTP has no use for them.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for each in (writer, back):
                each.transport.abort()

    async def _pass(self, reader, writer, left):
        try:
            while data := await reader.read(1 << 16):
                if self.is_cutting and left[0] is None:
                    left[0] = int(10 ** self._random.uniform(*self._range))
                writer.write(data[: left[0]])
                await writer.drain()
                if left[0] is not None:
                    left[0] -= len(data)
                    if left[0] <= 0:
                        self.cuts += 1
                        return
        except OSError:
            return

    @asynccontextmanager
    async def listening(self):
        """Listen; the port."""
        tasks = set()

        def accept(reader, writer):
            # Not given to asyncio as a coroutine, which would report its cancellation as an error.
            tasks.add(asyncio.create_task(self._serve(reader, writer)))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
