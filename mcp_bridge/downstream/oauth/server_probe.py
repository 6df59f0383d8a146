"""Requests without an effect that show whether a server demands a token, or takes the one that it is sent."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import httpx2

from mcp_bridge._version import __version__
from mcp_bridge.bridge_identity import NAME
from mcp_bridge.downstream.oauth.login_errors import UnreachableError
from mcp_bridge.downstream.oauth.oauth_flow import token_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.downstream.oauth.authorization_client import AuthorizationClient

_SESSION = "mcp-session-id"

_VERSION = "mcp-protocol-version"

MESSAGE_SECONDS = 5.0
"""For the first message, and for the end of its session. What they tell is of use, and not needed."""


async def looked_at(
    spec: ServerSpec, url: str, headers: Mapping[str, str], client: AuthorizationClient, token: str | None = None
) -> list[httpx2.Response]:
    """What a server answers: to a request for a stream of its messages and, if that says nothing of tokens, to another.

    Some servers have no such stream, and refuse a request for one before they look for a token. They demand it of the
    first message, `initialize`.

    Args:
        spec: The server.
        url: Its URL.
        headers: The configured headers of its requests, with their values.
        client: Sends the requests.
        token: The access token to send, or None.

    Raises:
        UnreachableError: The server gave no answer.
    """
    # In small letters: of two that differ in that alone, both would be sent.
    sent = {name.lower(): value for name, value in headers.items()} | dict(token_request(url).headers)
    sent |= {"authorization": f"Bearer {token}"} if token is not None else {}
    sent = {name: value for name, value in sent.items() if name not in {"host", "content-type", _SESSION}}
    stream = sent | {"accept": "text/event-stream"}
    # Of a service that speaks no MCP, nobody knows what such a message would do; server-sent events have no such one.
    is_asked_once = spec.type in {"openapi", "sse"}
    answers = []
    failure: UnreachableError | None = None
    try:
        first = await client.send(httpx2.Request("GET", url, headers=stream), with_body=False)
    except UnreachableError as error:
        if is_asked_once:
            raise
        # Some answer such a request only when there is a message for its stream.
        failure = error
    else:
        is_told = first.status_code == httpx2.codes.UNAUTHORIZED or (token is not None and refuses_token(first))
        if is_told or is_asked_once:
            return [first]
        answers.append(first)
    with suppress(UnreachableError, TimeoutError):
        answers.append(await _initialized(url, sent, client))
    if failure is not None and not answers:
        raise failure
    return answers


async def _initialized(url: str, headers: dict[str, str], client: AuthorizationClient) -> httpx2.Response:
    """The answer to `initialize`. A session that it has opened is ended.

    Raises:
        UnreachableError: There is no answer.
        TimeoutError: There is none in time.
    """
    parameters: dict[str, Any] = {
        "protocolVersion": headers[_VERSION],
        "capabilities": {},
        "clientInfo": {"name": NAME, "version": __version__},
    }
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": parameters}
    accepted = headers | {"accept": "application/json, text/event-stream"}
    request = httpx2.Request("POST", url, headers=accepted, json=message)
    with anyio.fail_after(MESSAGE_SECONDS):
        answer = await client.send(request, with_body=False)
    if session := answer.headers.get(_SESSION):
        # Whoever interrupts the login leaves no session behind.
        with suppress(UnreachableError), anyio.move_on_after(MESSAGE_SECONDS, shield=True):
            await client.send(httpx2.Request("DELETE", url, headers=headers | {_SESSION: session}), with_body=False)
    return answer


def refuses_token(answer: httpx2.Response) -> bool:
    """Whether an answer demands a token, or another one."""
    # A server may forbid this request for reasons of its own, and then says nothing of tokens (RFC 6750, section 3).
    is_forbidden = answer.status_code == httpx2.codes.FORBIDDEN and "www-authenticate" in answer.headers
    return answer.status_code == httpx2.codes.UNAUTHORIZED or is_forbidden
