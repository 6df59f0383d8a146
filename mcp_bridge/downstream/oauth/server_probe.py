"""Requests without an effect that show whether a server demands a token, or takes the one that it is sent."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
    sent = {**headers, **dict(token_request(url).headers)}
    sent |= {"authorization": f"Bearer {token}"} if token is not None else {}
    sent = {name: value for name, value in sent.items() if name.lower() != "host"}
    stream = sent | {"accept": "text/event-stream"}
    first = await client.send(httpx2.Request("GET", url, headers=stream), with_body=False)
    is_told = first.status_code == httpx2.codes.UNAUTHORIZED or (token is not None and refuses_token(first))
    # Of a service that speaks no MCP, nobody knows what such a message would do; server-sent events have no such one.
    if is_told or spec.type in {"openapi", "sse"}:
        return [first]
    answers = [first]
    with suppress(UnreachableError):
        answers.append(await _initialized(url, sent, client))
    return answers


async def _initialized(url: str, headers: dict[str, str], client: AuthorizationClient) -> httpx2.Response:
    """The answer to `initialize`. A session that it has opened is ended."""
    parameters: dict[str, Any] = {
        "protocolVersion": headers[_VERSION],
        "capabilities": {},
        "clientInfo": {"name": NAME, "version": __version__},
    }
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": parameters}
    accepted = headers | {"accept": "application/json, text/event-stream"}
    answer = await client.send(httpx2.Request("POST", url, headers=accepted, json=message), with_body=False)
    if session := answer.headers.get(_SESSION):
        with suppress(UnreachableError):
            await client.send(httpx2.Request("DELETE", url, headers=headers | {_SESSION: session}), with_body=False)
    return answer


def refuses_token(answer: httpx2.Response) -> bool:
    """Whether an answer demands a token, or another one."""
    # A server may forbid this request for reasons of its own, and then says nothing of tokens (RFC 6750, section 3).
    is_forbidden = answer.status_code == httpx2.codes.FORBIDDEN and "www-authenticate" in answer.headers
    return answer.status_code == httpx2.codes.UNAUTHORIZED or is_forbidden
