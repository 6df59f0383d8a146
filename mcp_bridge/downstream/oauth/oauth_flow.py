"""The SDK's OAuth providers, driven one request at a time, so that each request and each answer is checked here.

The SDK discovers metadata, registers the client, makes PKCE, state and token requests, and checks `iss`, `state` and
the issuer. Added here: nothing is sent without metadata, without PKCE (S256), or to an address that isn't allowed;
answers are bounded; a token is checked before it is used in a header; no error repeats what a server has sent.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_plus

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth, issuers_match
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, ValidationError

from mcp_bridge.downstream.oauth.endpoints import url_problem
from mcp_bridge.downstream.oauth.login_errors import UnreachableError, login_failed, oauth_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcp.shared.auth import AuthorizationCodeResult

    from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettings
    from mcp_bridge.downstream.oauth.authorization_client import AuthorizationClient
    from mcp_bridge.downstream.oauth.login_record import Login
    from mcp_bridge.errors import BridgeError

# It logs answers of token endpoints, and of the redirect: tokens, codes and states.
logging.getLogger("mcp.client.auth.oauth2").disabled = True

CLIENT_NAME = "mcp-code-bridge"

_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")
"""An access or refresh token (RFC 6749, appendix A.12): what a header can have, and far more than any is long."""

_SCOPES = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+(?: [\x21\x23-\x5b\x5d-\x7e]+)*")
"""RFC 6749, section 3.3."""

_LATEST = "2025-11-25"
"""The protocol version that requests for a token name. It makes the SDK ask for a token for this server alone."""


class FlowError(Exception):
    """A flow that can't go on.

    Attributes:
        reason: Why, in half a sentence.
        hint: What to do about it, or None.
    """

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class MemoryStorage:
    """What a flow has been given: the SDK's `TokenStorage`."""

    def __init__(self, client: OAuthClientInformationFull | None = None, tokens: OAuthToken | None = None) -> None:
        self.client = client
        self.tokens = tokens

    async def get_tokens(self) -> OAuthToken | None:
        """The tokens."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep tokens."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """The client."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep a client."""
        self.client = client_info


class _Selecting(OAuthClientProvider):
    """Of the authorization servers that a server names, the one that is configured."""

    issuer: str | None = None

    def set_issuer(self, issuer: str | None) -> None:
        """Set the configured authorization server. It is asked as well where the server names none (RFC 9728)."""
        self.issuer = self.context.auth_server_url = issuer

    def _select_authorization_server(self, advertised: list[str]) -> str:
        if self.issuer is None:
            return advertised[0]
        for server in advertised:
            if issuers_match(server, self.issuer):
                return server
        raise FlowError("the server names another authorization server than the configured issuer")

    def choose_client_authentication(self) -> None:
        """Authenticate a configured client as the authorization server's metadata says."""
        client, metadata = self.context.client_info, self.context.oauth_metadata
        if client is None or client.client_secret is None or metadata is None:
            return
        # RFC 8414: what isn't said is client_secret_basic.
        methods = metadata.token_endpoint_auth_methods_supported or ["client_secret_basic"]
        is_basic = "client_secret_basic" in methods or "client_secret_post" not in methods
        client.token_endpoint_auth_method = "client_secret_basic" if is_basic else "client_secret_post"


class PersonProvider(_Selecting):
    """The authorization code flow, in which a person logs in.

    Args:
        url: The server's URL.
        settings: How to get tokens, with the client's secret.
        redirect_uri: Where the authorization server sends the person's browser.
        show: Shows the person an address.
        answer: Waits for the parameters of the redirect.
    """

    def __init__(
        self,
        url: str,
        settings: OAuthSettings,
        redirect_uri: str,
        show: Callable[[str], Awaitable[None]],
        answer: Callable[[], Awaitable[AuthorizationCodeResult]],
    ) -> None:
        metadata = OAuthClientMetadata(
            client_name=CLIENT_NAME, redirect_uris=[AnyUrl(redirect_uri)], token_endpoint_auth_method=None
        )
        self.storage = MemoryStorage(client_of(settings))
        self.is_configured = settings.client_id is not None
        self._url = url
        self._show = show
        super().__init__(url, metadata, self.storage, self._checked_show, answer, settings.client_metadata_url)
        self.set_issuer(settings.issuer)

    async def _checked_show(self, address: str) -> None:
        metadata = self.context.oauth_metadata
        assert metadata is not None  # the grant begins with it
        page = str(metadata.authorization_endpoint)
        if problem := url_problem(page.partition("?")[0], self._url):
            raise FlowError(f"the authorization server's login page {problem}")
        # RFC 6749, section 3.1: it has no fragment, and may have parameters of its own, which the SDK's don't replace.
        if "#" in page:
            raise FlowError("the authorization server's login page is not a valid address")
        await self._show(f"{page}&{address.removeprefix(f'{page}?')}" if "?" in page else address)

    async def _perform_authorization_code_grant(self) -> tuple[str, str]:
        metadata = self.context.oauth_metadata
        if metadata is None or "S256" not in (metadata.code_challenge_methods_supported or ()):
            raise FlowError("the authorization server doesn't say that it supports PKCE (S256)")
        if self.is_configured:
            self.choose_client_authentication()
        return await super()._perform_authorization_code_grant()


class MachineProvider(_Selecting, ClientCredentialsOAuthProvider):
    """The client credentials flow, in which the client logs in by itself.

    Args:
        url: The server's URL.
        settings: How to get tokens: the client's id and secret, and the issuer that they are for.
    """

    def __init__(self, url: str, settings: OAuthSettings) -> None:
        self.storage = MemoryStorage()
        ClientCredentialsOAuthProvider.__init__(
            self,
            url,
            self.storage,
            settings.client_id or "",
            settings.client_secret or "",
            issuer=settings.issuer,
        )
        self.set_issuer(settings.issuer)

    async def _perform_authorization(self) -> httpx2.Request:
        self.choose_client_authentication()
        return await super()._perform_authorization()


class RefreshProvider(OAuthClientProvider):
    """The tokens of a login, which are replaced by its refresh token.

    Args:
        login: The login.
        secret: The secret of a client that is configured, or None.
    """

    def __init__(self, login: Login, secret: str | None) -> None:
        self.storage = MemoryStorage(login.client, login.tokens)
        super().__init__(login.url, OAuthClientMetadata(redirect_uris=None), self.storage)
        self.context.client_info = with_secret(login.client, secret)
        self.context.current_tokens = login.tokens
        self.context.oauth_metadata = login.metadata
        self.context.protected_resource_metadata = login.resource
        self.context.auth_server_url = login.issuer
        self.context.protocol_version = _LATEST

    async def request(self) -> httpx2.Request:
        """The request for new tokens."""
        return await self._refresh_token()

    async def accept(self, answer: httpx2.Response) -> OAuthToken:
        """The new tokens. What an answer leaves out stays as it was.

        Raises:
            FlowError: The answer is not what it should be.
        """
        checked_tokens(answer.content)
        if not await self._handle_refresh_response(answer) or self.storage.tokens is None:
            raise FlowError("it has answered something that is no token")
        return self.storage.tokens

    def revocation(self, token: str, kind: str) -> httpx2.Request | None:
        """The request that revokes a token (RFC 7009), or None if the authorization server has no usable endpoint."""
        metadata, client = self.context.oauth_metadata, self.context.client_info
        if metadata is None or metadata.revocation_endpoint is None or client is None:
            return None
        data = {"token": token, "token_type_hint": kind, "client_id": client.client_id or ""}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        data, headers = self.context.prepare_token_auth(data, headers)
        with suppress(httpx2.InvalidURL):
            return httpx2.Request("POST", str(metadata.revocation_endpoint), data=data, headers=headers)
        return None


def client_of(settings: OAuthSettings) -> OAuthClientInformationFull | None:
    """The client that is configured, or None."""
    if settings.client_id is None:
        return None
    return OAuthClientInformationFull(
        client_id=settings.client_id,
        client_secret=settings.client_secret,
        token_endpoint_auth_method="client_secret_basic" if settings.client_secret else "none",
        issuer=settings.issuer,
    )


def with_secret(client: OAuthClientInformationFull, secret: str | None) -> OAuthClientInformationFull:
    """A client with its configured secret, which no login keeps."""
    return client if secret is None else client.model_copy(update={"client_secret": secret})


def checked_tokens(body: bytes) -> OAuthToken:
    """Decode a token response.

    Raises:
        FlowError: It isn't one, or a token can't be sent in a header. Nothing of it is repeated.
    """
    try:
        tokens = OAuthToken.model_validate_json(body)
    except ValidationError:
        raise FlowError("it has answered something that is no token") from None
    for token in (tokens.access_token, tokens.refresh_token):
        if token is not None and not _TOKEN.fullmatch(token):
            raise FlowError("it has answered a token that can't be sent")
    if tokens.expires_in is not None and not 0 <= tokens.expires_in < 1 << 40:
        raise FlowError("it has answered a token with an impossible lifetime")
    return tokens


def challenge(answers: Sequence[httpx2.Response], scopes: Sequence[str]) -> httpx2.Response:
    """The server's demand for a token (RFC 6750, section 3), with the scopes that are configured in place of its own.

    A server that hasn't asked yet may ask for the next request: its metadata is then where RFC 9728 says.
    """
    refused = next((answer for answer in answers if answer.status_code == httpx2.codes.UNAUTHORIZED), None)
    metadata = scope = None
    if refused is not None:
        metadata = extract_field_from_www_auth(refused, "resource_metadata")
        scope = extract_scope_from_www_auth(refused)
    scope = " ".join(scopes) or scope
    fields = []
    if metadata is not None and '"' not in metadata:
        fields.append(f'resource_metadata="{metadata}"')
    if scope is not None and _SCOPES.fullmatch(scope):
        fields.append(f'scope="{scope}"')
    # As bytes: the library encodes texts as ASCII.
    demand = f"Bearer {', '.join(fields)}".encode()
    return httpx2.Response(httpx2.codes.UNAUTHORIZED, headers=[(b"www-authenticate", demand)])


def token_request(url: str) -> httpx2.Request:
    """The request that a flow gets a token for. It isn't sent."""
    return httpx2.Request("GET", url, headers={"mcp-protocol-version": _LATEST})


async def drive(
    provider: PersonProvider | MachineProvider,
    client: AuthorizationClient,
    request: httpx2.Request,
    asked: httpx2.Response,
) -> OAuthToken:
    """Have the SDK's flow make a token.

    Args:
        provider: The flow.
        client: Sends its requests.
        request: As `token_request`.
        asked: As `challenge`.

    Raises:
        FlowError: The flow can't go on.
        UnreachableError: A server gave no usable answer.
    """
    flow = provider.async_auth_flow(request)
    try:
        outgoing = await flow.__anext__()
        while True:
            if outgoing is request:
                if provider.storage.tokens is not None:
                    return provider.storage.tokens
                answer = asked
            else:
                answer = await _exchange(provider, client, outgoing)
            outgoing = await flow.asend(answer)
    except OAuthFlowError as error:
        raise FlowError(_plain(error)) from None
    except httpx2.InvalidURL:
        raise FlowError("an address that is named for it is not a valid one") from None
    finally:
        await flow.aclose()


async def _exchange(
    provider: PersonProvider | MachineProvider, client: AuthorizationClient, outgoing: httpx2.Request
) -> httpx2.Response:
    """Send one request of a flow, and check its answer before the SDK sees it."""
    if outgoing.method == "GET":
        return await client.send(outgoing)
    metadata = provider.context.oauth_metadata
    if metadata is None:
        raise FlowError("it doesn't say who its authorization server is (RFC 9728, RFC 8414)")
    if outgoing.url == httpx2.URL(str(metadata.token_endpoint)):
        answer = await client.send(outgoing)
        if not httpx2.codes.is_success(answer.status_code):
            raise FlowError(f"the authorization server refuses: {refusal(answer, outgoing)}")
        checked_tokens(answer.content)
        return answer
    endpoint = metadata.registration_endpoint
    if endpoint is None or outgoing.url != httpx2.URL(str(endpoint)):
        raise FlowError(
            "the authorization server doesn't register clients automatically",
            "Register one there, and write its client_id into [servers.NAME.oauth].",
        )
    answer = await client.send(_as_public_client(outgoing, metadata.token_endpoint_auth_methods_supported))
    if not httpx2.codes.is_success(answer.status_code):
        raise FlowError(f"the authorization server doesn't register the bridge: {refusal(answer, outgoing)}")
    return answer


def _as_public_client(registration: httpx2.Request, methods: list[str] | None) -> httpx2.Request:
    """A program on a person's machine keeps no secret (RFC 8252, section 8.4): it registers without, if it can."""
    if "none" not in (methods or ()):
        return registration
    content: dict[str, Any] = json.loads(registration.content) | {"token_endpoint_auth_method": "none"}
    return httpx2.Request(registration.method, registration.url, json=content)


def refusal(answer: httpx2.Response, request: httpx2.Request) -> str:
    """What a refused request was answered, without anything that was sent."""
    return oauth_error(answer.content, sent_texts(request))[1] or f"status {answer.status_code}"


def sent_texts(request: httpx2.Request) -> tuple[str, ...]:
    """What a request to a token endpoint has in it that an answer could repeat, as it is sent and as it was before."""
    parts = re.split(r"[&=]", request.content.decode(errors="replace"))
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        parts += [credentials, *base64.b64decode(credentials).decode(errors="replace").split(":")]
    texts = {text for part in parts for text in (part, unquote(part), unquote_plus(part))}
    return tuple(text for text in texts if len(text) > 8)  # noqa: PLR2004


_REASONS = (
    ("State parameter mismatch", "the answer belongs to another login (state)"),
    ("Authorization response iss mismatch", "the answer is from another authorization server (iss)"),
    ("Authorization response missing iss", "the answer doesn't say which authorization server it is from (iss)"),
    ("Authorization server metadata issuer mismatch", "the authorization server's metadata names another issuer"),
    ("No authorization server metadata", "the configured issuer publishes no metadata"),
    ("Protected resource metadata request failed", "the server doesn't hand out its metadata at the moment"),
    ("Protected resource", "the server's metadata is for another resource"),
    ("No authorization code", "the answer has no code"),
    ("Authorization server registered", "the authorization server has registered the bridge as what it can't be"),
    ("Invalid registration response", "the authorization server's answer to the registration is invalid"),
)
"""What the SDK's errors mean. Their own text may repeat an answer."""


def _plain(error: OAuthFlowError) -> str:
    text = str(error)
    return next((reason for begin, reason in _REASONS if text.startswith(begin)), "the exchange was not completed")


def as_login_failure(server: str, error: FlowError | UnreachableError) -> BridgeError:
    """The error for a person."""
    if isinstance(error, UnreachableError):
        return login_failed(server, f"a server of the login gave no answer: {error.reason}")
    return login_failed(server, error.reason, error.hint)
