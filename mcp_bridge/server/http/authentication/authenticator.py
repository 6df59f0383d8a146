"""Who a request over HTTP is from: a token of ours, an access token of an authorization server, or a proxy's word.

A request is from a principal or refused; nothing here falls back to another. Where nothing is configured, and no token
was ever made, everybody is whoever started the bridge, which serves loopback alone then.

No part of a credential is in a log, an error or an answer, and none is passed on to a server.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread
from starlette.responses import JSONResponse
from starlette.routing import Route

from mcp_bridge.bridge_identity import TOKEN_PREFIX
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.principal_tokens import TokenRecord, TokenStore, find
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL, Principal, load_principals, restricted
from mcp_bridge.server.http.authentication.access_tokens import AccessTokens, BadAccessTokenError
from mcp_bridge.server.http.authentication.authentication_settings import MAX_VALUE_CHARS, load_authentication
from mcp_bridge.server.http.authentication.signing_keys import KeysUnavailableError, SigningKeys, UnknownKeyError
from mcp_bridge.server.http.authentication.wrong_credentials import WrongCredentials
from mcp_bridge.server.http.rate_limits import RateLimits
from mcp_bridge.server.http.refusals import LOGGED_PER_MINUTE, EndedToken, Unauthenticated, UnknownSigningKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from starlette.requests import HTTPConnection, Request

    from mcp_bridge.error_codes import Code
    from mcp_bridge.server.http.authentication.authentication_settings import (
        Authentication,
        OAuthResource,
        TrustedProxy,
    )
    from mcp_bridge.settings import Layer

logger = logging.getLogger(__name__)

MAX_TOKEN_CHARS = 16 << 10
"""Access tokens with many claims have a few KiB."""

LOOK_SECONDS = 1.0
"""How long the stream of a token that was revoked may go on."""

SECOND_LOOK_SECONDS = 0.2
"""How long a credential or a table must be missing before what goes on with it is ended: somebody may be about to
put a file of the configuration, or that of the tokens, in the place of another."""

WELL_KNOWN = "/.well-known/oauth-protected-resource"

_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)
"""RFC 6750, section 2.1."""

_CREDENTIAL = "mcp_bridge.credential"

MAX_REASONS = 100
"""Why an access token is refused, of which there are some thirty: each is logged `LOGGED_PER_MINUTE` times a minute."""


@dataclass(slots=True)
class _Credential:
    """What a request was authenticated by.

    Attributes:
        principal: Whose it is.
        token: The id of a token of ours, or None.
        expires: When it ends, in seconds since the epoch, or None. One that is replaced may get an earlier end.
    """

    principal: Principal
    token: str | None = None
    expires: float | None = None


class Authenticator:
    """Tells who a request is from.

    Args:
        principals: The configured principals, by name.
        tokens: The tokens of principals.
        config: Who else is believed.
        clock: The time, in seconds since the epoch.
    """

    def __init__(
        self,
        principals: Mapping[str, Principal],
        tokens: TokenStore,
        config: Authentication,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._configured = self._principals = principals
        self._added: Mapping[str, Principal] = {}
        self._tokens = tokens
        self._oauth = config.oauth
        self._proxy = config.proxy
        self._clock = clock
        self._access_tokens = _access_tokens(config.oauth) if config.oauth else None
        self._wrong_credentials = WrongCredentials()
        self._problems = RateLimits(1)
        self._reasons = RateLimits(MAX_REASONS)
        self._required = bool(principals or config.oauth or config.proxy)
        self._stamp: object | None = None
        self._records: dict[str, TokenRecord] = {}
        self._reading = anyio.Lock()

    @property
    def authenticates(self) -> bool:
        """Whether principals are told apart; otherwise everybody is `LOCAL_PRINCIPAL`. Never goes back to False."""
        self._required = self._required or self._tokens.stamp() is not None
        return self._required

    def restrict(self, principals: Mapping[str, Principal]) -> None:
        """Believe nobody any more who has lost its table, and give nobody more than both its tables allow.

        Args:
            principals: The principals as they are configured now, by name.
        """
        self._principals = {
            name: restricted(start, principals[name]) for name, start in self._configured.items() if name in principals
        }
        # A table that has come takes something from who had everybody's rights, and admits nobody.
        self._added = {name: now for name, now in principals.items() if name not in self._configured}

    async def principal(self, request: HTTPConnection) -> Principal:
        """The principal that a request is from. Its body isn't looked at.

        Raises:
            Unauthenticated: It is from nobody that is known.
        """
        if not self.authenticates:
            request.scope[_CREDENTIAL] = _Credential(LOCAL_PRINCIPAL)
            return LOCAL_PRINCIPAL
        try:
            credential = await self._credential(request)
        except EndedToken:
            raise
        except Unauthenticated as refusal:
            # Nothing else is a guess: none were sent, they are good and not enough, or they can't be verified now.
            if refusal.error.code == "bad_token" or isinstance(refusal, UnknownSigningKey):
                raise self._wrong_credentials.count(request, refusal) from None
            raise
        request.scope[_CREDENTIAL] = credential
        return credential.principal

    async def ended(self, request: HTTPConnection) -> None:
        """Wait until the credential that `principal` has found in a request is revoked or expires, or is of nobody."""
        await _until(self._has_ended, request)

    async def revoked(self, request: HTTPConnection) -> None:
        """As `ended`, but for one that merely expires: it was good when what goes on was begun."""
        await _until(self._was_revoked, request)

    async def _has_ended(self, credential: _Credential) -> bool:
        return await self._was_revoked(credential) or self._has_expired(credential)

    def _has_expired(self, credential: _Credential) -> bool:
        return credential.expires is not None and self._clock() >= credential.expires

    async def _was_revoked(self, credential: _Credential) -> bool:
        if self._has_lost_table(credential.principal.name):
            return True
        if credential.token is None:
            return False
        try:
            record = (await self._current()).get(credential.token)
        except BridgeError:
            return True
        if record is None:
            # Those that have expired are forgotten at the next change.
            return not self._has_expired(credential)
        credential.expires = record.expires
        return False

    async def knows(self, name: str) -> bool:
        """Whether anybody could still authenticate as a principal, by a token that there is or by another's word."""
        if name == LOCAL_PRINCIPAL.name:
            # Whose requests came before there were principals.
            return True
        has_table = name in self._principals
        if has_table and any(
            names is None or name in names.values()
            for names in (each.principals for each in (self._oauth, self._proxy) if each is not None)
        ):
            return True
        if self._has_lost_table(name):
            return False
        try:
            tokens = await self._current()
        except BridgeError as exc:
            self._log_unverifiable(exc)
            return False
        return any(
            record.principal == name and (has_table or not record.restricted) and not record.has_expired(self._clock())
            for record in tokens.values()
        )

    def routes(self) -> list[Route]:
        """The bridge's metadata as a protected resource (RFC 9728), for whoever looks for the authorization server."""
        if self._oauth is None:
            return []
        document = {
            "resource": self._oauth.address,
            "authorization_servers": [self._oauth.issuer],
            "bearer_methods_supported": ["header"],
            **({"scopes_supported": list(self._oauth.scopes)} if self._oauth.scopes else {}),
        }

        async def metadata(_: Request) -> JSONResponse:
            # Public, and meant for clients in browsers, too.
            return JSONResponse(document, headers={"access-control-allow-origin": "*"})

        # At the root as well: some clients look only there.
        paths = dict.fromkeys((unquote(urlsplit(_metadata_url(self._oauth)).path), WELL_KNOWN))
        return [_literal_route(path, metadata) for path in paths]

    async def _credential(self, request: HTTPConnection) -> _Credential:
        """What a request comes with; all of it has to name the same principal.

        Raises:
            Unauthenticated: Nothing, or it isn't good.
        """
        presented = self._presented(request)
        by_proxy = self._by_proxy(request)
        if presented is None:
            if by_proxy is None:
                raise self._refusal(
                    401, "credentials_needed", "This bridge wants to know who asks.", "Send a bearer token."
                )
            return by_proxy
        credential = await self._by_bearer(presented)
        if by_proxy is not None and by_proxy.principal.name != credential.principal.name:
            raise self._refusal(400, "bad_credentials", "The token and the client certificate are not the same one's.")
        return credential

    def _presented(self, request: HTTPConnection) -> str | None:
        """The bearer token; None if there is none, or credentials of another kind alone."""
        values = request.headers.getlist("authorization")
        if len(values) > 1:
            raise self._refusal(400, "bad_credentials", "There is more than one Authorization header.")
        if not values or not values[0].lower().startswith("bearer"):
            return None
        if len(values[0]) > MAX_TOKEN_CHARS:
            raise self._bad_token()
        parts = _BEARER.fullmatch(values[0])
        if parts is None:
            raise self._bad_token()
        return parts[1]

    async def _by_bearer(self, text: str) -> _Credential:
        if text.startswith(TOKEN_PREFIX):
            return await self._by_token(text)
        if self._access_tokens is None:
            raise self._bad_token()
        return await self._by_access_token(text, self._access_tokens)

    async def _by_token(self, text: str) -> _Credential:
        try:
            tokens = await self._current()
        except BridgeError as exc:
            self._log_unverifiable(exc)
            raise self._unavailable() from None
        found = find(tokens, text, self._clock())
        if found is None:
            raise self._bad_token(has_ended=find(tokens, text, 0.0) is not None)
        token, record = found
        principal = self._principals.get(record.principal)
        if principal is None and (record.restricted or self._has_lost_table(record.principal)):
            self._log_problem(
                f"the token {token} is refused: the configuration in use has no "
                f"[principals.{record.principal}]; if the file has it by now, restart the bridge"
            )
            raise self._bad_token()
        if principal is None:
            principal = Principal(record.principal)
            if (added := self._added.get(record.principal)) is not None:
                principal = restricted(principal, added)
        return _Credential(principal, token, record.expires)

    async def _by_access_token(self, text: str, access_tokens: AccessTokens) -> _Credential:
        assert self._oauth is not None  # there are access tokens
        try:
            said = await access_tokens.verify(text)
        except BadAccessTokenError as exc:
            # Anybody can send thousands.
            if not self._reasons.take(str(exc), LOGGED_PER_MINUTE):
                logger.info("an access token is refused: %s", exc)
            raise self._bad_token(has_ended=exc.has_ended) from None
        except UnknownKeyError as exc:
            refusal = self._unavailable(exc.retry_after)
            raise UnknownSigningKey(refusal.status, refusal.error, **refusal.headers) from None
        except KeysUnavailableError as exc:
            raise self._unavailable(exc.retry_after) from None
        if not said.scopes.issuperset(self._oauth.scopes):
            raise self._refusal(
                403,
                "insufficient_scope",
                f"The token needs the scopes: {' '.join(self._oauth.scopes)}.",
                error="insufficient_scope",
            )
        return _Credential(self._mapped(said.value, self._oauth.principals), expires=said.expires)

    def _has_lost_table(self, name: str) -> bool:
        """Whether a principal's table was there at the start, and is no more: without it, it would have more rights."""
        return name in self._configured and name not in self._principals

    def _by_proxy(self, request: HTTPConnection) -> _Credential | None:
        """What a trusted proxy says of the client's certificate; None if nothing."""
        if self._proxy is None or not _is_from(request, self._proxy):
            return None
        values = request.headers.getlist(self._proxy.header)
        if len(values) > 1:
            raise self._refusal(400, "bad_credentials", f"There is more than one {self._proxy.header} header.")
        if not values or not values[0]:
            return None
        try:
            # The framework reads headers as Latin-1, and a proxy may write a subject as it is, in UTF-8.
            said = values[0].encode("latin-1").decode()
        except UnicodeDecodeError:
            said = values[0]
        return _Credential(self._mapped(said, self._proxy.principals))

    def _mapped(self, value: str | None, names: Mapping[str, str] | None) -> Principal:
        """The principal that is called so elsewhere.

        Raises:
            Unauthenticated: 403: there is none.
        """
        name = None
        if value is not None and len(value) <= MAX_VALUE_CHARS:
            name = value if names is None else names.get(value)
        principal = self._principals.get(name) if name else None
        if principal is None:
            raise self._refusal(403, "not_a_principal", "You aren't a principal of this bridge.")
        return principal

    async def _current(self) -> Mapping[str, TokenRecord]:
        """The tokens as they are on the disk now.

        Raises:
            BridgeError: As `TokenStore.read`.
        """
        if self._tokens.stamp() != self._stamp:
            async with self._reading:
                # Before it is read: what is written meanwhile is seen at the next look.
                stamp = self._tokens.stamp()
                if stamp != self._stamp:
                    self._records = await anyio.to_thread.run_sync(self._tokens.read)
                    self._stamp = stamp
        return self._records

    def _log_unverifiable(self, error: BridgeError) -> None:
        self._log_problem(f"no token can be verified: {error.code}: {error}")

    def _log_problem(self, problem: str) -> None:
        """Log what the operator has to mend, at most once a minute: requests could fill the disk with it."""
        if not self._problems.take("", 1):
            logger.error("%s", problem)

    def _bad_token(self, *, has_ended: bool = False) -> Unauthenticated:
        # In words nothing tells a wrong one from an expired or a revoked one.
        refusal = self._refusal(401, "bad_token", "The token isn't good, or not any more.", error="invalid_token")
        return EndedToken(refusal.status, refusal.error, **refusal.headers) if has_ended else refusal

    def _unavailable(self, retry_after: float = 0.0) -> Unauthenticated:
        error = BridgeError("authentication_unavailable", "Credentials can't be verified now.", hint="Try again.")
        return Unauthenticated(503, error, retry_after=str(max(1, math.ceil(retry_after))))

    def _refusal(
        self, status: int, code: Code, message: str, hint: str | None = None, *, error: str | None = None
    ) -> Unauthenticated:
        refused = BridgeError(code, message, hint=hint)
        if status not in {401, 403}:
            return Unauthenticated(status, refused)
        return Unauthenticated(status, refused, www_authenticate=self._challenge(error))

    def _challenge(self, error: str | None) -> str:
        """The value of `WWW-Authenticate` (RFC 6750, section 3; RFC 9728, section 5.1)."""
        said = {"realm": "mcp-code-bridge"}
        if error is not None:
            said["error"] = error
        if self._oauth is not None:
            if self._oauth.scopes:
                said["scope"] = " ".join(self._oauth.scopes)
            said["resource_metadata"] = _metadata_url(self._oauth)
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in said.items())


async def _until(is_over: Callable[[_Credential], Awaitable[bool]], request: HTTPConnection) -> None:
    """Wait until this is so of a request's credential, and still so at a second look."""
    credential: _Credential = request.scope[_CREDENTIAL]
    while True:
        if await is_over(credential):
            await anyio.sleep(SECOND_LOOK_SECONDS)
            if await is_over(credential):
                return
        await anyio.sleep(LOOK_SECONDS)


def _access_tokens(oauth: OAuthResource) -> AccessTokens:
    return AccessTokens(oauth, SigningKeys(oauth.issuer, oauth.jwks_uri, oauth.algorithms))


def _literal_route(path: str, answer: Callable[[Request], Awaitable[JSONResponse]]) -> Route:
    """A route of this path alone: Starlette would take what is in braces for a pattern."""
    route = Route("/", answer, methods=["GET"])
    route.path, route.path_regex = path, re.compile(re.escape(path) + r"\Z")
    return route


def _metadata_url(oauth: OAuthResource) -> str:
    """Where the metadata of the bridge is (RFC 9728, section 3.1)."""
    parts = urlsplit(oauth.address)
    return f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{parts.path.rstrip('/')}"


def _is_from(request: HTTPConnection, proxy: TrustedProxy) -> bool:
    """Whether the connection itself comes from the proxy. What headers say of addresses is anybody's word."""
    if request.client is None:
        return False
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address.version == network.version and address in network for network in proxy.trusted)


def open_authenticator(layers: Sequence[Layer], state_dir: Path) -> Authenticator:
    """The authenticator of a bridge. Blocks.

    Args:
        layers: As `settings.Loaded.layers`.
        state_dir: The state directory.

    Raises:
        BridgeError: `bad_config`; the tokens can't be read, as `TokenStore.read`.
    """
    principals = load_principals(layers)
    config = load_authentication(layers, principals)
    tokens = TokenStore(state_dir)
    for record in tokens.read().values():
        if record.principal not in principals:
            # Not refused here: the other principals' tokens are good.
            level = logging.ERROR if record.restricted else logging.DEBUG
            logger.log(level, "there is a token of %s, and no [principals.%s]", record.principal, record.principal)
    return Authenticator(principals, tokens, config)
