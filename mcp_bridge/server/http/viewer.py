"""The trace viewer alongside MCP, for the same principals: its pages hold nothing, and its API authenticates.

A browser sends no bearer token by itself: a page asks for it, or takes it from the address's fragment, and sends it
with its requests. A proxy, though, may know a browser by its certificate, which goes with every page's requests: so the
API answers pages of its own origin alone (`server.ui.guard`).

Without authentication nothing is shown: every user of this machine would see all, and approve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse

from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.http_settings import VIEWER_PATH
from mcp_bridge.server.app import PRINCIPAL_KEY
from mcp_bridge.server.http.rate_limits import VIEWER_REQUESTS_AT_A_TIME, VIEWER_REQUESTS_PER_MINUTE, ConcurrencyLimit
from mcp_bridge.server.http.refusals import RETRY_SECONDS, RefusalResponse, RefusedRequest, refused
from mcp_bridge.server.http.request_admission import Endpoint
from mcp_bridge.server.ui.api import MAX_BODY_BYTES, Viewer
from mcp_bridge.server.ui.app import build_for_principals
from mcp_bridge.server.ui.change_notifications import Live
from mcp_bridge.server.ui.guard import API

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from mcp_bridge.governance.principals import Principal
    from mcp_bridge.http_settings import HttpSettings
    from mcp_bridge.ledger.storage.database import Database
    from mcp_bridge.server.http.authentication.authenticator import Authenticator


class HttpViewer:
    """The viewer as an ASGI application under `VIEWER_PATH`.

    Args:
        authenticator: Tells who a request is from.
        settings: The settings of HTTP.
    """

    def __init__(self, authenticator: Authenticator, settings: HttpSettings) -> None:
        bounds = {"max_body_size": min(settings.max_body_size, MAX_BODY_BYTES), "json_answers": False}
        self._api = _ViewerApi(self._answer, authenticator, settings.model_copy(update=bounds))
        self._pages: ASGIApp | None = None
        self._live: Live | None = None
        self._requests = ConcurrencyLimit(VIEWER_REQUESTS_AT_A_TIME)

    def has(self, path: str) -> bool:
        """Whether a path is the viewer's."""
        return path == VIEWER_PATH or path.startswith(f"{VIEWER_PATH}/")

    async def keep(self, database: Database, *, can_rebuild: bool) -> None:
        """Answer requests from this database, which is open until no request is left. Runs until cancelled.

        Args:
            database: Has the executions.
            can_rebuild: Whether sessions are rebuilt.
        """
        self._live = Live(database)
        await self._live.look()
        self._pages = build_for_principals(self._live, _viewer_of, can_rebuild=can_rebuild)
        await self._live.watch()

    def end(self) -> None:
        """End the streams of all pages."""
        if self._live is not None:
            self._live.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI connection."""
        answer: ASGIApp
        if scope["path"] == VIEWER_PATH:
            # A browser takes the fragment along.
            answer = RedirectResponse(f"{VIEWER_PATH}/")
        elif self._pages is None:
            answer = _response(
                refused(503, "not_open_yet", "The bridge is not open yet.", retry_after=str(RETRY_SECONDS))
            )
        elif scope["path"].startswith(VIEWER_PATH + API):
            answer = self._api
        else:
            answer = self._pages
        await answer({**scope, "root_path": VIEWER_PATH}, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of the API whose principal is known."""
        assert self._pages is not None  # else it would not have come here
        name = scope[PRINCIPAL_KEY].name
        if not self._requests.has_room(name):
            message = f"At most {VIEWER_REQUESTS_AT_A_TIME} requests of a principal are answered at a time."
            refusal = refused(429, "too_many_requests", message, retry_after=str(RETRY_SECONDS))
            await _response(refusal)(scope, receive, send)
            return
        with self._requests.one(name):
            await self._pages(scope, receive, send)


class _ViewerApi(Endpoint):
    def _refusal(self, refusal: RefusedRequest) -> Response:
        return _response(refusal)

    def _admit(self, principal: Principal, method: str) -> None:
        del method
        if principal.name == LOCAL_PRINCIPAL.name:
            message = "This viewer is for principals, and there are none. Use `mcp-bridge ui`."
            raise refused(403, "authentication_needed", message)
        self._count(principal, VIEWER_REQUESTS_PER_MINUTE, self._rates)


def _viewer_of(request: Request) -> Viewer:
    # A request that was not authenticated has none, and fails.
    principal: Principal = request.scope[PRINCIPAL_KEY]
    return Viewer(principal, principal.name)


def _response(refusal: RefusedRequest) -> Response:
    """A refusal as the viewer's pages read it. It ends the connection, whose body may not have been read."""
    return RefusalResponse(refusal, {"error": {"code": refusal.error.code, "message": str(refusal.error)}})
