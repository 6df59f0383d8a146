"""Logging out of a remote server: its login is forgotten, and the tokens are revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2

from mcp_bridge.downstream.oauth.authorization_client import authorization_client
from mcp_bridge.downstream.oauth.login_errors import UnreachableError
from mcp_bridge.downstream.oauth.login_record import read_login
from mcp_bridge.downstream.oauth.oauth_flow import RefreshProvider

if TYPE_CHECKING:
    import ssl

    from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettings
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.downstream.oauth.authorization_client import AuthorizationClient
    from mcp_bridge.downstream.oauth.login_record import Login
    from mcp_bridge.downstream.oauth.login_store import LoginStore


async def log_out(
    spec: ServerSpec,
    settings: OAuthSettings | None,
    store: LoginStore,
    tls: ssl.SSLContext,
) -> str | None:
    """Forget a server's login, and have its tokens revoked where the authorization server does that (RFC 7009).

    Args:
        spec: The server.
        settings: How its tokens were got, with the client's secret; None for the defaults.
        store: Where the login is kept.
        tls: As `authorization_client`.

    Returns:
        What became of the tokens, in half a sentence; None if there was no login.

    Raises:
        BridgeError: As the store; `login_unavailable`: another process keeps the login.
    """
    async with store.lock(spec):
        login = await read_login(store, spec)
        # One that can't be read goes, too.
        await store.remove(spec)
    if login is None:
        return None
    async with authorization_client(login.url, tls) as client:
        return await revoke(client, login, settings.client_secret if settings else None)


async def revoke(client: AuthorizationClient, login: Login, secret: str | None) -> str:
    """Have a login's tokens revoked where the authorization server does that (RFC 7009).

    Args:
        client: Sends the requests.
        login: The login.
        secret: The client's secret, if one is configured.

    Returns:
        What became of the tokens, in half a sentence.
    """
    provider = RefreshProvider(login, secret)
    tokens = [(login.tokens.refresh_token, "refresh_token"), (login.tokens.access_token, "access_token")]
    for token, kind in tokens:
        request = provider.revocation(token, kind) if token is not None else None
        if token is None:
            continue
        if request is None:
            return f"{login.issuer} has no way to revoke its tokens"
        try:
            answer = await client.send(request)
        except UnreachableError as error:
            return f"they could not be revoked at {login.issuer}: {error.reason}"
        if not httpx2.codes.is_success(answer.status_code):
            return f"they could not be revoked at {login.issuer}: status {answer.status_code}"
    return f"they are revoked at {login.issuer}"
