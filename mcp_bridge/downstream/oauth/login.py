"""Logging in to a remote server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qs, urlsplit

import anyio

from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettings
from mcp_bridge.downstream.oauth.authorization_client import authorization_client
from mcp_bridge.downstream.oauth.endpoints import may_carry_tokens
from mcp_bridge.downstream.oauth.login_errors import UnreachableError, login_failed
from mcp_bridge.downstream.oauth.login_record import Login, keep_login
from mcp_bridge.downstream.oauth.logout import revoke
from mcp_bridge.downstream.oauth.oauth_flow import (
    FlowError,
    PersonProvider,
    as_login_failure,
    challenge,
    drive,
    token_request,
)
from mcp_bridge.downstream.oauth.redirects import receive_redirect
from mcp_bridge.downstream.oauth.server_probe import looked_at, refuses_token

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Mapping

    from mcp.shared.auth import AuthorizationCodeResult

    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.downstream.oauth.authorization_client import AuthorizationClient
    from mcp_bridge.downstream.oauth.login_store import LoginStore
    from mcp_bridge.downstream.oauth.redirects import RedirectReceiver

LOGIN_SECONDS = 600.0
"""For a person to log in: they may have to look up a password, and confirm it on another device."""


class Person(Protocol):
    """Who logs in."""

    async def show(self, address: str) -> None:
        """Show the address of the login page."""

    async def paste(self, state: str) -> AuthorizationCodeResult:
        """Wait for the address that the browser was sent to, copied by hand. Never returns where nobody can.

        Raises:
            FlowError: As `redirects.read_answer`.
        """


def login_problem(spec: ServerSpec) -> str | None:
    """Why nobody can log in to a server, to follow its name; or None."""
    if spec.problem is not None:
        return f"is misconfigured: {spec.problem}"
    if not spec.is_remote or spec.url is None:
        return "is started as a process, and takes its credentials from env"
    if any(name.lower() == "authorization" for name in spec.headers):
        return "has its own Authorization in headers"
    if not may_carry_tokens(spec.url):
        return "is reached without TLS (https), which no token is sent over"
    if spec.oauth is not None and spec.oauth.grant == "client_credentials":
        return "has a client that logs in automatically (client_credentials)"
    return None


async def log_in(
    spec: ServerSpec,
    settings: OAuthSettings | None,
    headers: Mapping[str, str],
    store: LoginStore,
    person: Person,
    tls: ssl.SSLContext,
) -> Login:
    """Log in to a remote server as a person, and keep the login.

    Args:
        spec: The server.
        settings: How to get tokens, with the client's secret; None for the defaults.
        headers: The configured headers of the server's requests, with their values. Sent to the server alone.
        store: Where the login is kept.
        person: Who logs in.
        tls: As `authorization_client`.

    Raises:
        BridgeError: `login_failed`; as the store. Nothing has changed then.
    """
    problem = login_problem(spec)
    if problem is not None or spec.url is None:
        raise login_failed(spec.name, f"it {problem}")
    settings = settings or OAuthSettings()
    async with authorization_client(spec.url, tls) as client:
        try:
            with anyio.fail_after(LOGIN_SECONDS):
                login = await _flow(spec, spec.url, settings, headers, client, person)
        except TimeoutError:
            raise login_failed(spec.name, f"nobody has logged in within {LOGIN_SECONDS:g} s") from None
        except (FlowError, UnreachableError) as error:
            raise as_login_failure(spec.name, error) from None
        try:
            await _try_out(spec, spec.url, headers, client, login)
            async with store.lock(spec):
                await keep_login(store, spec, login)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await revoke(client, login, settings.client_secret)
            raise
    return login


async def _flow(
    spec: ServerSpec,
    url: str,
    settings: OAuthSettings,
    headers: Mapping[str, str],
    client: AuthorizationClient,
    person: Person,
) -> Login:
    async with receive_redirect(settings.redirect_uri) as receiver:
        state = ""

        async def show(address: str) -> None:
            nonlocal state
            # The last one: the login page's address may have parameters of its own before it.
            state = parse_qs(urlsplit(address).query)["state"][-1]
            await person.show(address)

        async def answer() -> AuthorizationCodeResult:
            return await _first(receiver, person, state)

        provider = PersonProvider(url, settings, receiver.redirect_uri, show, answer)
        asked = challenge(await looked_at(spec, url, headers, client), settings.scopes)
        made_at = time.time()
        tokens = await drive(provider, client, token_request(url), asked)
    context = provider.context
    if context.oauth_metadata is None or context.client_info is None:
        raise FlowError("the exchange was not completed")
    registered = context.client_info
    return Login(
        server=spec.name,
        url=url,
        client=registered.model_copy(update={"client_secret": None}) if provider.is_configured else registered,
        metadata=context.oauth_metadata,
        resource=context.protected_resource_metadata,
        tokens=tokens,
        made_at=made_at,
        # A public client's refresh tokens are, unless they are bound to it (RFC 9700, section 4.14.2). Of another's,
        # nobody knows before one was used.
        rotates=True,
    )


async def _first(receiver: RedirectReceiver, person: Person, state: str) -> AuthorizationCodeResult:
    """The answer from the browser, or the one that the person has copied: whichever comes first."""
    outcome: AuthorizationCodeResult | FlowError | None = None

    async def take(wait: Callable[[str], Awaitable[AuthorizationCodeResult]]) -> None:
        nonlocal outcome
        try:
            outcome = await wait(state)
        except FlowError as error:
            outcome = error
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, receiver.wait)
        tasks.start_soon(take, person.paste)
    if outcome is None or isinstance(outcome, Exception):
        raise outcome or FlowError("no answer has come")
    return outcome


async def _try_out(
    spec: ServerSpec, url: str, headers: Mapping[str, str], client: AuthorizationClient, login: Login
) -> None:
    """Have the server look at the token.

    Raises:
        BridgeError: `login_failed`: it refuses it.
    """
    try:
        answers = await looked_at(spec, url, headers, client, login.tokens.access_token)
    except UnreachableError as error:
        raise login_failed(spec.name, f"the server gave no answer: {error.reason}") from None
    if refusal := next((answer for answer in answers if refuses_token(answer)), None):
        raise login_failed(
            spec.name,
            f"the server refuses the token ({refusal.status_code})",
            "Its authorization server may give tokens for another server, or too few scopes:"
            f" see scopes in [servers.{spec.name}.oauth].",
        )
