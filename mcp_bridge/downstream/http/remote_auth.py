"""How the bridge authenticates itself to a remote server.

Static headers are resolved when a connection is opened, and OAuth is an `httpx2.Auth` that runs beside each request.
Neither is kept after the connection, and neither is in a log, an error or the ledger. `hidden_credentials` takes them
out of what a server answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mcp_bridge.downstream.oauth.endpoints import may_carry_tokens
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    import ssl

    import httpx2

    from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettings
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.downstream.oauth.login_store import LoginStore

SECRET_SCHEME = "vault://"  # noqa: S105 - a scheme, no secret
"""What references to secrets begin with."""


IsHidden = Callable[[str], bool]
"""Whether a credential is hidden in what its server answers: one that can be guessed would be confirmed by that."""

ResolveSecrets = Callable[["ServerSpec", str], str]
"""Replaces each `vault://secret/…` in a text of a server's entry. May block: call it on a thread.

Raises:
    BridgeError: `secret_missing`, `secret_denied`.
"""


_LONG = 20
"""Characters of a credential that nobody guesses."""


def _is_long(credential: str) -> bool:
    return len(credential) >= _LONG


@dataclass(frozen=True, slots=True)
class RemoteAccess:
    """What connections to remote servers are authenticated with.

    Attributes:
        resolve: Replaces the references to secrets in an entry's headers and settings.
        logins: The user's logins; None for none.
        is_hidden: Whether a credential is hidden where its server repeats it.
    """

    resolve: ResolveSecrets
    logins: LoginStore | None = None
    is_hidden: IsHidden = _is_long

    def oauth_settings(self, spec: ServerSpec) -> OAuthSettings | None:
        """How to get tokens for a server, with the client's secret. May block.

        Raises:
            BridgeError: `secret_missing`, `secret_denied`.
        """
        settings = spec.oauth
        if settings is None or settings.client_secret is None:
            return settings
        return replace(settings, client_secret=self.resolve(spec, settings.client_secret))


def without_secrets(spec: ServerSpec, text: str) -> str:
    """As `ResolveSecrets`, where there are no secrets.

    Raises:
        BridgeError: `secret_missing`.
    """
    if SECRET_SCHEME in text:
        message = f"There are no secrets that the server {spec.name!r} could be given."
        raise BridgeError("secret_missing", message, server=spec.name)
    return text


def open_auth(spec: ServerSpec, access: RemoteAccess, tls: ssl.SSLContext) -> httpx2.Auth | None:
    """What adds credentials to each request to a server; None if its static headers are all that there is.

    Called on a worker thread, once for each connection: it may block. The requests of its flow (metadata, tokens) are
    sent by clients of its own, which know nothing of the server's static headers. A `BridgeError` that is raised here
    or in the flow is what the caller of a tool gets.

    Args:
        spec: The server's configuration, with variables expanded.
        access: What connections are authenticated with.
        tls: How certificates are verified.

    Raises:
        BridgeError: `secret_missing`, `secret_denied`.
    """
    if spec.url is None or not may_carry_tokens(spec.url) or has_own_authorization(spec):
        return None
    if spec.openapi is not None and spec.oauth is None:
        # Not every API that answers 401 means a login.
        return None
    # The SDK is loaded by the first connection, not by the start of the bridge.
    from mcp_bridge.downstream.oauth.authenticated_requests import BearerAuth  # noqa: PLC0415
    from mcp_bridge.downstream.oauth.token_renewal import LoginTokens, MachineTokens  # noqa: PLC0415

    settings = access.oauth_settings(spec)
    if settings is not None and settings.grant == "client_credentials":
        return BearerAuth(spec.url, MachineTokens(spec, settings, tls))
    if access.logins is None:
        return None
    secret = settings.client_secret if settings else None
    return BearerAuth(spec.url, LoginTokens(spec, access.logins, secret, tls))


def has_own_authorization(spec: ServerSpec) -> bool:
    """Whether a server's headers have credentials already."""
    return any(name.lower() == "authorization" for name in spec.headers)
