"""Puts a server's access token on each request, and another one when the server refuses it: once a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth

from mcp_bridge.downstream.oauth.login_errors import shown_scopes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from mcp_bridge.downstream.oauth.token_renewal import TokenSource

_FIELD = "Authorization"


class BearerAuth(httpx2.Auth):
    """Authenticates the requests to one server (RFC 6750). Opens no browser, and registers no client.

    A request that was refused had no effect, so it is sent again with another token.

    Args:
        url: Its URL. A request to another origin gets no token.
        tokens: Where tokens come from.
    """

    def __init__(self, url: str, tokens: TokenSource) -> None:
        self._origin = _origin(httpx2.URL(url))
        self._tokens = tokens

    async def settle(self) -> None:
        """Wait until no token is being made: a refresh that is cut off may cost the login."""
        await self._tokens.settle()

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """As `httpx2.Auth`.

        Raises:
            BridgeError: `login_needed`, `login_unavailable`, `server_unauthorized`.
        """
        if _origin(request.url) != self._origin:
            yield request
            return
        token = await self._tokens.token()
        if token is not None:
            request.headers[_FIELD] = f"Bearer {token}"
        answer = yield request
        if answer.status_code == httpx2.codes.UNAUTHORIZED:
            # The client reads the body before it goes on, and the headers say it all.
            answer.stream = _NoBody(answer.stream)
            other = await self._tokens.replacement(token, answer)
            request.headers[_FIELD] = f"Bearer {other}"
            answer = yield request
            if answer.status_code == httpx2.codes.UNAUTHORIZED:
                raise self._tokens.refused()
        elif token is not None and not answer.is_server_error:
            await self._tokens.accepted(token)
        if (
            answer.status_code == httpx2.codes.FORBIDDEN
            and extract_field_from_www_auth(answer, "error") == "insufficient_scope"
        ):
            raise self._tokens.refused(
                wanted=shown_scopes(extract_scope_from_www_auth(answer), request.headers[_FIELD])
            )


class _NoBody(httpx2.AsyncByteStream):
    """An empty body in place of one that nobody needs, however large it is."""

    def __init__(self, stream: httpx2.SyncByteStream | httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        nothing: tuple[bytes, ...] = ()
        for chunk in nothing:
            yield chunk

    async def aclose(self) -> None:
        if isinstance(self._stream, httpx2.AsyncByteStream):
            await self._stream.aclose()


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
