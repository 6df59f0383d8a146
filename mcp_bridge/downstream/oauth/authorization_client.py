"""Requests to authorization servers: bounded in time and size, and only to addresses that a login may go to."""

from __future__ import annotations

from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING

import anyio
import httpx2

from mcp_bridge.downstream.http.no_proxy import unproxied
from mcp_bridge.downstream.http.response_heads import HeadBound
from mcp_bridge.downstream.oauth.endpoints import url_problem
from mcp_bridge.downstream.oauth.login_errors import UnreachableError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

MAX_ANSWER_BYTES = 256 << 10
"""Metadata and tokens are a few KiB."""

REQUEST_SECONDS = 20.0
"""For one request, from its start to its answer's end. An authorization server needs less than a second."""

_HEADERS = frozenset({b"content-type", b"mcp-session-id", b"retry-after", b"www-authenticate"})
"""What is looked at of an answer's headers."""

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


class AuthorizationClient:
    """Sends the requests of one server's logins.

    Args:
        server_url: The server that tokens are for.
        client: The client to send with. It has neither credentials nor cookies of the server.
    """

    def __init__(self, server_url: str, client: httpx2.AsyncClient) -> None:
        self._server_url = server_url
        self._client = client

    async def send(self, request: httpx2.Request, *, with_body: bool = True) -> httpx2.Response:
        """Send a request, and return its answer, which is in memory.

        Args:
            request: The request.
            with_body: Whether the answer's body is read. Without, the connection is closed after the headers.

        Raises:
            UnreachableError: There is no answer in time, it is too large, or the address isn't allowed.
        """
        if problem := url_problem(str(request.url), self._server_url):
            raise UnreachableError(f"its address {problem}", was_sent=False)
        request.headers["Accept-Encoding"] = "identity"
        request.extensions = {**request.extensions, "trace": HeadBound().trace}
        # An error's own text may repeat what was sent.
        try:
            with anyio.fail_after(REQUEST_SECONDS):
                answer = await self._client.send(request, stream=True, auth=None, follow_redirects=False)
                try:
                    body = await _body(answer) if with_body else b""
                finally:
                    await answer.aclose()
        except TimeoutError:
            raise UnreachableError(f"it has not answered in {REQUEST_SECONDS:g} s", was_sent=True) from None
        except _NOT_SENT as exc:
            raise UnreachableError(f"it can't be reached ({type(exc).__name__})", was_sent=False) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as exc:
            raise UnreachableError(f"the connection broke ({type(exc).__name__})", was_sent=True) from None
        # As bytes: a `realm` may have letters that the library encodes in no text.
        headers = [(name, value) for name, value in answer.headers.raw if name.lower() in _HEADERS]
        whole = httpx2.Response(answer.status_code, headers=headers, content=body, request=request)
        if request.method == "GET":
            # The SDK follows a redirect within the origin. What has a token or a code in it goes nowhere else.
            whole.next_request = answer.next_request
        return whole


async def _body(answer: httpx2.Response) -> bytes:
    parts, size = [], 0
    async for part in answer.aiter_raw():
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise UnreachableError(f"its answer has more than {MAX_ANSWER_BYTES} bytes", was_sent=True)
        parts.append(part)
    return b"".join(parts)


@asynccontextmanager
async def authorization_client(server_url: str, tls: ssl.SSLContext) -> AsyncIterator[AuthorizationClient]:
    """Open a client for the logins of one server.

    Args:
        server_url: The server's URL.
        tls: How certificates are verified.
    """
    async with httpx2.AsyncClient(
        timeout=REQUEST_SECONDS,
        follow_redirects=False,
        verify=tls,
        # The server's own requests are sent with it, too: it could set one for its neighbour, the authorization server.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        mounts=unproxied(server_url),
    ) as client:
        yield AuthorizationClient(server_url, client)
