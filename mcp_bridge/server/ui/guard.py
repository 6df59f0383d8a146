"""Access control for the viewer, and restrictions on what browsers may do with its responses.

All users of the machine, and all web pages in the user's browser, can reach a loopback port. So `mcp-bridge ui` gives
no response without the token, which no other page has and no browser sends by itself; none under a host name that isn't
the machine's (DNS rebinding); and no change by another page. Over HTTP, requests have been authenticated before.
"""

from __future__ import annotations

import hmac
import json
from typing import TYPE_CHECKING

from mcp_bridge.server.http.allowed_hosts import AllowedHosts

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from mcp_bridge.error_codes import Code

API = "/api/"

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

_CLEARING = {"clear-site-data": '"cache", "storage"'}
"""Sent for a service worker's script: the viewer has none, so another program has left one at this port. Browsers fetch
a newer version at the next visits, and then clear everything that was left.
Not sent with other responses, because it would clear the page's token."""


class Guard:
    """An ASGI application in front of the viewer's.

    Args:
        app: The viewer.
        token: The token that every request for data must have; None if hosts and requests were checked before.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        self._hosts = AllowedHosts((), ())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        is_data = scope["path"].removeprefix(scope.get("root_path", "")).startswith(API)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                added = _HEADERS | (_CLEARING if b"service-worker" in headers else {})
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in added.items() if name.encode() not in names),
                ]
            await send(message)

        refusal = self._refusal(scope, headers, is_data=is_data)
        if refusal is None:
            await self._app(scope, receive, guarded)
            return
        status, code, message = refusal
        body = json.dumps({"error": {"code": code, "message": message}}).encode()
        length = str(len(body)).encode()
        sent = [(b"content-type", b"application/json"), (b"content-length", length)]
        await guarded({"type": "http.response.start", "status": status, "headers": sent})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope, headers: dict[bytes, str], *, is_data: bool) -> tuple[int, Code, str] | None:
        host = headers.get(b"host", "")
        if self._token is not None and not self._hosts.accepts_host(host):
            return 403, "bad_host", "This address is not the viewer's."
        if not is_data:
            return None
        ours = {f"{scheme}://{host}" for scheme in ("http", "https")}
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", "same-origin")
        if (origin is not None and origin not in ours) or site not in {"same-origin", "none"}:
            return 403, "bad_origin", "Another page asks for this."
        if scope["method"] not in {"GET", "HEAD"} and origin is None:
            return 403, "bad_origin", "A change has to say which page asks for it."
        if self._token is None:
            return None
        # Not a cookie, which would be sent to, and could be set by, every port of the host.
        kind, _, token = headers.get(b"authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")
        if kind.lower() != "bearer" or not hmac.compare_digest(given, self._token):
            return 401, "token_needed", "The token that `mcp-bridge ui` has printed has to come with this."
        return None
