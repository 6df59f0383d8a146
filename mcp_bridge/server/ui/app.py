"""The viewer's web server: static files, data, and change notifications."""

from __future__ import annotations

import contextlib
import html
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.server.http.uvicorn_server import embedded_config, serve_until_cancelled
from mcp_bridge.server.ui.api import Api, Viewer
from mcp_bridge.server.ui.guard import Guard

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from mcp_bridge.server.ui.change_notifications import Live

STATIC = Path(__file__).parent / "static"

_ABSOLUTE = re.compile(r'(href|src)="/')

PAGES = ("/", "/executions/{id}", "/sessions", "/approvals")
"""All pages are the same file, whose script reads the URL."""

MAX_CONNECTIONS = 256

GOODBYE_SECONDS = 1
"""How long open responses may take when the viewer ends."""


class Address(NamedTuple):
    """The address to listen at."""

    host: str
    port: int

    def url(self, token: str) -> str:
        """The URL to open: the token is in the fragment, which browsers don't send."""
        host = socket.gethostname() if self.host in {"0.0.0.0", "::"} else self.host  # noqa: S104 - it is compared
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{self.port}/#token={token}"


def build(live: Live, token: str, by: str, *, can_rebuild: bool = True) -> ASGIApp:
    """The viewer for whoever has started it, as an ASGI application: it sees and decides everything.

    Args:
        live: Notifies of changes to the database that has the executions.
        token: The token that every request for data must have.
        by: The name recorded with decisions.
        can_rebuild: Whether sessions are rebuilt.
    """
    viewer = Viewer(LOCAL_PRINCIPAL, by)

    @contextlib.asynccontextmanager
    async def watching(_: Starlette) -> AsyncGenerator[None]:
        async with anyio.create_task_group() as tasks:
            # Before the first page is served, so that no later change is missed.
            await live.look()
            tasks.start_soon(live.watch)
            yield
            tasks.cancel_scope.cancel()

    return Guard(_pages(live, lambda _: viewer, watching, can_rebuild=can_rebuild), token)


def build_for_principals(live: Live, viewer_of: Callable[[Request], Viewer], *, can_rebuild: bool = True) -> ASGIApp:
    """The viewer for principals, as a part of another ASGI application, mounted under any path (`root_path`).

    That application checks the Host header and authenticates every request under `/api/` before it comes here; pages
    and scripts tell nothing. It runs `live.watch`, and calls `live.end` at its end. A principal sees its own
    executions, or all if it may; an approver sees and decides all questions.

    Args:
        live: Notifies of changes to the database that has the executions.
        viewer_of: Tells who a request under `/api/` is from.
        can_rebuild: Whether sessions are rebuilt.
    """
    return Guard(_pages(live, viewer_of, can_rebuild=can_rebuild), None)


def _pages(
    live: Live,
    viewer_of: Callable[[Request], Viewer],
    lifespan: Callable[[Starlette], AbstractAsyncContextManager[None]] | None = None,
    *,
    can_rebuild: bool,
) -> Starlette:
    async def page(request: Request) -> Response:
        root = html.escape(request.scope.get("root_path", ""), quote=True)
        text = await anyio.to_thread.run_sync((STATIC / "index.html").read_text)
        return HTMLResponse(_ABSOLUTE.sub(rf'\1="{root}/', text))

    async def unknown(_: Request, __: Exception) -> Response:
        return JSONResponse({"error": {"code": "unknown_path", "message": "There is nothing here."}}, 404)

    async def refused(_: Request, exc: Exception) -> Response:
        message = "Nothing here takes a request of this method."
        headers = exc.headers if isinstance(exc, HTTPException) else None
        return JSONResponse({"error": {"code": "bad_request", "message": message}}, 405, headers)

    return Starlette(
        routes=[
            *(Route(path, page, methods=["GET"]) for path in PAGES),
            *Api(live, viewer_of, can_rebuild=can_rebuild).routes(),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        lifespan=lifespan,
        exception_handlers={404: unknown, 405: refused},
    )


async def serve(app: ASGIApp, live: Live, listener: socket.socket) -> None:
    """Serve until cancelled, or until the server has failed, which it logs.

    Args:
        app: The viewer.
        live: Its notifications, which must be ended: their streams would never end by themselves.
        listener: The listening socket.
    """
    config = embedded_config(
        app,
        lifespan="on",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=GOODBYE_SECONDS,
    )
    await serve_until_cancelled(config, listener, live.end)
