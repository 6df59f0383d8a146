"""The viewer's server: files, data, and changes as they come."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mcp_bridge.server.ui.api import Api
from mcp_bridge.server.ui.guard import Guard
from mcp_bridge.views.overview import Overview

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from mcp_bridge.server.ui.live import Live

STATIC = Path(__file__).parent / "static"

PAGES = ("/", "/executions/{id}", "/approvals")
"""All are the same file: its script looks at the address."""

MAX_CONNECTIONS = 256

GOODBYE_SECONDS = 1
"""For answers under way when the viewer ends."""


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def url(self, token: str) -> str:
        """To open: the token is behind the `#`, which no browser sends anywhere."""
        host = socket.gethostname() if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 - it is compared
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/#token={token}"


def build(live: Live, principal: str, token: str, by: str) -> ASGIApp:
    """The viewer as an ASGI application.

    Args:
        live: Tells of changes to a database, which has the executions.
        principal: Whose executions are shown.
        token: Has to come with every request for data.
        by: Whose the decisions are that are made there.
    """

    @contextlib.asynccontextmanager
    async def watching(_: Starlette) -> AsyncGenerator[None]:
        async with anyio.create_task_group() as tasks:
            # Before there is a page: whatever changes after it is told.
            await live.look()
            tasks.start_soon(live.watch)
            yield
            tasks.cancel_scope.cancel()

    async def page(_: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    async def unknown(_: Request, __: Exception) -> Response:
        return JSONResponse({"error": {"code": "unknown_path", "message": "There is nothing here."}}, 404)

    app = Starlette(
        routes=[
            *(Route(path, page, methods=["GET"]) for path in PAGES),
            *Api(Overview(live.database, principal), live, by).routes(),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        lifespan=watching,
        exception_handlers={404: unknown},
    )
    return Guard(app, token)


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it: the database has to be closed in order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def serve(app: ASGIApp, live: Live, listener: socket.socket) -> None:
    """Serve until cancelled, or until the server has failed, which it logs.

    Args:
        app: The viewer.
        live: Its, to be ended: streams of changes would never end by themselves.
        listener: Listens.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=GOODBYE_SECONDS,
    )
    server = _Server(config)
    async with anyio.create_task_group() as tasks:

        async def serving() -> None:
            with anyio.CancelScope(shield=True):
                await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()

        tasks.start_soon(serving)
        try:
            await anyio.sleep_forever()
        finally:
            live.end()
            server.should_exit = True
