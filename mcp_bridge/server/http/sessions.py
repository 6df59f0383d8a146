"""Sessions of MCP over HTTP (protocol versions up to 2025-11-25), by the SDK's manager.

The manager keeps a session with the credential that has opened it: another principal gets 404 for its id, as for one
that doesn't exist. What it lacks are limits for each principal, a refusal with a code, and events that
are kept for each session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from mcp_bridge.server.http.refusals import RefusedRequest, refused
from mcp_bridge.server.http.stream_resumption import ReplayMemory, SessionEvents

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
    from mcp.server.streamable_http import StreamableHTTPServerTransport
    from starlette.types import Receive, Scope, Send

    from mcp_bridge.http_settings import HttpSettings


RETRY_SECONDS = 5
"""When a client that there was no room for may try again: others may have ended their sessions."""


class Sessions(StreamableHTTPSessionManager):
    """The session manager.

    Args:
        server: The MCP server.
        settings: The settings of HTTP.
    """

    def __init__(self, server: Server[Any], settings: HttpSettings) -> None:
        super().__init__(
            server,
            json_response=settings.json_answers,
            session_idle_timeout=settings.session_idle_timeout,
            max_request_body_size=settings.max_body_size,
            max_sessions=settings.max_sessions,
        )
        self._max = settings.max_sessions
        self._max_per_principal = settings.max_sessions_per_principal
        self._memory = ReplayMemory(settings.replay_size)
        self._events: dict[str, SessionEvents] = {}

    @property
    def count(self) -> int:
        """How many sessions are open."""
        return len(self._server_instances)

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, as the SDK's manager does. One that would open a session too many is refused."""
        try:
            await super().handle_request(scope, receive, send)
        except RefusedRequest as refusal:
            await refusal.response()(scope, receive, send)

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        # The SDK's own refusal says neither which limit it is nor what to do.
        owned = sum(owner == requestor for owner in self._session_owners.values())
        if owned >= self._max_per_principal:
            raise _no_room("principal has", self._max_per_principal, "http.max_sessions_per_principal")
        if self.count >= self._max:
            raise _no_room("bridge has", self._max, "http.max_sessions")
        # The SDK would share one store among all sessions, and a session could then ask for another's events.
        owner = requestor["client_id"] if requestor is not None else ""
        self.event_store = None if self.json_response else SessionEvents(self._memory, owner)
        transport = super()._admit_session(requestor)
        if isinstance(self.event_store, SessionEvents) and transport is not None and transport.mcp_session_id:
            self._events[transport.mcp_session_id] = self.event_store
        self.event_store = None
        return transport

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        events = self._events.pop(session_id, None)
        if events is not None:
            events.close()
        await super()._discard_session(session_id, transport)


def _no_room(who: str, most: int, setting: str) -> RefusedRequest:
    return refused(
        503,
        "too_many_clients",
        f"The {who} {most} open sessions, the most that {setting} allows.",
        "End those that aren't used (DELETE), or try again later: without requests they end by themselves.",
        retry_after=str(RETRY_SECONDS),
    )
