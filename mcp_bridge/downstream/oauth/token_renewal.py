"""Access tokens of remote servers, and their renewal: by a person's login, or by the client's own credentials.

A token is replaced before it expires, or once the server has refused it. However many calls ask for that, one request
is made for all of them; across processes, whoever holds the login's lock makes it, and the others find its result in
the store. A refresh token that can be used once is never sent twice: that it is sent is on the disk before, and when no
answer comes that tells what became of it, the person logs in again. Each is taken for one that can be used once, until
the authorization server has left it in use.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import httpx2

from mcp_bridge.downstream.http.retry_times import retry_after
from mcp_bridge.downstream.oauth.authorization_client import authorization_client
from mcp_bridge.downstream.oauth.login_errors import (
    UnreachableError,
    login_command,
    login_needed,
    login_unavailable,
    machine_refused,
    oauth_error,
    rights,
)
from mcp_bridge.downstream.oauth.login_record import keep_login, read_login
from mcp_bridge.downstream.oauth.oauth_flow import (
    FlowError,
    MachineProvider,
    RefreshProvider,
    challenge,
    drive,
    sent_texts,
    token_request,
)
from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine

    from mcp.shared.auth import OAuthToken

    from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettings
    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.downstream.oauth.login_record import Login
    from mcp_bridge.downstream.oauth.login_store import LoginStore

logger = logging.getLogger(__name__)

KEEP_ATTEMPTS = 5
"""How often new tokens are tried to be kept while another process has the store locked, each for as long as it waits.

With the request before, that takes less than other processes wait for the login's lock."""

PAUSE_SECONDS = 5.0
"""After an authorization server gave no token: so long it isn't asked again."""

MAX_PAUSE_SECONDS = 300.0
"""So long at most where its answer says when to ask again."""

REFUSED_PAUSE_SECONDS = 60.0
"""After a server has refused a token that was just made: so long no other is made."""


class TokenSource(Protocol):
    """Gives access tokens for one server."""

    async def token(self) -> str | None:
        """The token for the next request; None to send it without.

        Raises:
            BridgeError: `login_needed`, `login_unavailable`.
        """

    async def replacement(self, refused: str | None, answer: httpx2.Response) -> str:
        """Another token, after the server has refused one, or asked for one.

        Args:
            refused: The token that was sent, or None.
            answer: The server's answer, of which the headers are looked at.

        Raises:
            BridgeError: `login_needed`, `login_unavailable`.
        """

    async def accepted(self, token: str) -> None:
        """Note that the server has taken a token."""

    def refused(self, *, wanted: str | None = None) -> BridgeError:
        """The error for a server that refuses what it has asked for, with what helps.

        Args:
            wanted: If the token is good, and allows too little: the scopes that it asks for, or "" if it doesn't say.
        """

    async def settle(self) -> None:
        """Wait until no token is being made."""


class _Shared:
    """One attempt for all that ask for it, which goes on when they have left."""

    def __init__(self) -> None:
        self._attempt: asyncio.Task[str | BridgeError] | None = None

    async def outcome(self, make: Callable[[], Coroutine[Any, Any, str | BridgeError]]) -> str:
        """The attempt's token: of the one that is under way, or of a new one.

        Args:
            make: Makes an attempt. It returns an error, and raises none: nobody may be there to catch it.

        Raises:
            BridgeError: As the attempt.
        """
        if self._attempt is None or self._attempt.done():
            # Whoever asked may be cancelled. A refresh that is cut off costs the login.
            self._attempt = asyncio.create_task(make())
        outcome = await asyncio.shield(self._attempt)
        if isinstance(outcome, BridgeError):
            # One exception raised in several tasks would mix up their tracebacks.
            raise BridgeError(outcome.code, outcome.message, hint=outcome.hint, **outcome.details)
        return outcome

    async def settle(self) -> None:
        """Wait for the attempt that is under way, if there is one."""
        if self._attempt is not None:
            await asyncio.wait([self._attempt])


class LoginTokens:
    """The tokens of a person's login.

    Args:
        spec: The server.
        store: The logins.
        secret: The secret of a client that is configured, or None.
        tls: As `authorization_client`.
    """

    def __init__(self, spec: ServerSpec, store: LoginStore, secret: str | None, tls: ssl.SSLContext) -> None:
        self._spec = spec
        self._store = store
        self._secret = secret
        self._tls = tls
        self._login: Login | None = None
        self._stamp: object | None = None
        self._is_read = False
        self._shared = _Shared()
        self._pause: tuple[float, BridgeError | None] = (0.0, None)
        self._renewed_at = float("-inf")

    async def token(self) -> str | None:
        """As `TokenSource`."""
        login = await self._current()
        if login is None:
            return None
        if login.is_usable(early=True):
            return login.tokens.access_token
        try:
            return await self._shared.outcome(lambda: self._renew(None))
        except BridgeError:
            # It may still do: it hasn't expired, or says that it has too early.
            if login.is_usable():
                return login.tokens.access_token
            raise

    async def replacement(self, refused: str | None, answer: httpx2.Response) -> str:
        """As `TokenSource`."""
        del answer
        login = await self._read()
        if login is None:
            why = "needs a login" if refused is None else "needs a new login: the last one has ended"
            raise login_needed(self._spec.name, why)
        if login.tokens.access_token != refused and login.is_usable():
            return login.tokens.access_token
        if login.is_usable() and time.monotonic() - self._renewed_at < REFUSED_PAUSE_SECONDS:
            raise self.refused()
        return await self._shared.outcome(lambda: self._renew(refused))

    async def accepted(self, token: str) -> None:
        """As `TokenSource`: one that was refused before isn't any more."""
        if self._login is None or not self._login.refused or self._login.tokens.access_token != token:
            return
        # What can't be kept isn't tried with each request.
        self._login = self._login.model_copy(update={"refused": None})
        with suppress(BridgeError):
            async with self._store.lock(self._spec):
                login = await self._read()
                if login is not None and login.refused and login.tokens.access_token == token:
                    await self._keep(login.model_copy(update={"refused": None}))

    def refused(self, *, wanted: str | None = None) -> BridgeError:
        """As `TokenSource`: a person logs in anew."""
        if wanted is not None:
            return login_needed(self._spec.name, f"needs a login with {rights(wanted)}: add them to its scopes")
        return login_needed(self._spec.name, "needs a new login: it refuses the tokens of the last one")

    async def settle(self) -> None:
        """As `TokenSource`."""
        await self._shared.settle()

    async def _current(self) -> Login | None:
        """The login, which is read anew once another process has written the store."""
        if self._is_read and self._stamp == self._store.stamp():
            return self._login
        return await self._read()

    async def _read(self) -> Login | None:
        # Before the content: what is written in between is read twice.
        stamp = self._store.stamp()
        self._login = await read_login(self._store, self._spec)
        self._stamp, self._is_read = stamp, True
        return self._login

    async def _renew(self, refused: str | None) -> str | BridgeError:
        """Replace the tokens, unless another process already has."""
        try:
            async with self._store.lock(self._spec):
                login = await self._read()
                if login is None:
                    return login_needed(self._spec.name, "needs a new login: the last one has ended")
                if login.tokens.access_token != refused and login.is_usable(early=True):
                    return login.tokens.access_token
                if not login.can_refresh:
                    is_refused = await self._note_refused(refused)
                    return login_needed(self._spec.name, _ended(login, is_refused=is_refused))
                until, error = self._pause
                if error is not None and time.monotonic() < until:
                    return error
                outcome = await self._refresh(login, refused)
                if isinstance(outcome, BridgeError) and outcome.code == "login_needed":
                    await self._note_refused(refused)
                return outcome
        except BridgeError as error:
            return error
        except Exception as error:  # noqa: BLE001  (nobody may be there to see it; its text may have a token in it)
            return login_unavailable(self._spec.name, f"the exchange failed ({type(error).__name__})")

    async def _note_refused(self, refused: str | None) -> bool:
        """Note that the server has refused the last token before its time is over; whether it has."""
        login = self._login
        if login is None or login.tokens.access_token != refused or not login.is_usable():
            return False
        if not login.refused:
            await self._keep_if_possible(login.model_copy(update={"refused": True}))
        return True

    async def _refresh(self, login: Login, refused: str | None) -> str | BridgeError:
        """Send the refresh token. The login's lock is held."""
        provider = RefreshProvider(login, self._secret)
        request = await provider.request()
        await self._keep(login.model_copy(update={"refresh_sent": True}))
        made_at = time.time()
        try:
            async with authorization_client(login.url, self._tls) as client:
                answer = await client.send(request)
        except UnreachableError as error:
            if not error.was_sent:
                await self._store_with_retries(
                    login.model_copy(update={"refresh_sent": False}), "an unused refresh token"
                )
            return self._no_answer(login, error.reason, was_sent=error.was_sent)
        if httpx2.codes.is_success(answer.status_code):
            try:
                tokens = await provider.accept(answer)
            except FlowError as error:
                return self._no_answer(login, error.reason, was_sent=True)
            return await self._accept(login, tokens, made_at)
        why = f"it answered {answer.status_code}"
        if _is_unread(answer):
            await self._store_with_retries(login.model_copy(update={"refresh_sent": False}), "an unused refresh token")
            return self._no_answer(login, why, was_sent=False, wait=retry_after(answer.headers.get("retry-after")))
        is_refusal = httpx2.codes.is_client_error(answer.status_code)
        code = oauth_error(answer.content, sent_texts(request))[0] if is_refusal else ""
        if code == "invalid_client" and self._spec.oauth is not None and self._spec.oauth.client_id is not None:
            # It hasn't looked at the token, which is good once the configuration is.
            await self._store_with_retries(login.model_copy(update={"refresh_sent": False}), "an unused refresh token")
            refusal = "needs another client_secret: its authorization server refuses the client (invalid_client)"
            return self._paused(login_needed(self._spec.name, refusal))
        is_over = code in _FINAL or (answer.status_code in _REFUSES_TOKENS and code not in {"", *_PASSES})
        if not is_over:
            # A gateway's, perhaps, or of a server that failed behind the use of the token.
            may_stay = is_refusal and not login.rotates
            again = f"; if it stays so, log in again: {login_command(self._spec.name)}" if may_stay else ""
            return self._no_answer(login, f"{why} ({code})" if code else f"{why}{again}", was_sent=True)
        tokens = login.tokens.model_copy(update={"refresh_token": None})
        if tokens.access_token == refused:
            # Neither server takes what this login has: it is over, though the token's time isn't.
            tokens = tokens.model_copy(update={"expires_in": 0})
        await self._keep_if_possible(login.model_copy(update={"tokens": tokens, "refresh_sent": False}))
        return login_needed(
            self._spec.name,
            f"needs a new login: its authorization server has ended the last one ({code})",
        )

    async def _accept(self, login: Login, tokens: OAuthToken, made_at: float) -> str:
        is_new = tokens.refresh_token != login.tokens.refresh_token
        renewed = login.model_copy(
            update={
                "tokens": tokens,
                "made_at": made_at,
                # One that was used and stays can be used again. Of a new one, nobody knows.
                "rotates": is_new,
                "refresh_sent": False,
                "refused": None,
            }
        )
        self._renewed_at = time.monotonic()
        # The old refresh token may be worth nothing any more.
        await self._store_with_retries(renewed, "the new tokens")
        return tokens.access_token

    def _no_answer(self, login: Login, why: str, *, was_sent: bool, wait: float | None = None) -> BridgeError:
        if was_sent and login.rotates:
            return login_needed(self._spec.name, f"needs a new login: {_MAYBE_USED} ({why})")
        return self._paused(login_unavailable(self._spec.name, why), wait)

    def _paused(self, error: BridgeError, wait: float | None = None) -> BridgeError:
        """The error, which is the answer to whoever asks next, too, until the pause is over."""
        seconds = max(PAUSE_SECONDS, min(wait or 0.0, MAX_PAUSE_SECONDS))
        self._pause = (time.monotonic() + seconds, error)
        return error

    async def _store_with_retries(self, login: Login, what: str) -> None:
        """Keep what would cost the login if it weren't kept, however busy the store is."""
        for attempt in range(1, KEEP_ATTEMPTS + 1):
            try:
                await self._keep(login)
                break
            except BridgeError as error:
                if error.code != "secrets_file_busy" or attempt == KEEP_ATTEMPTS:
                    logger.warning("%s of server %r could not be kept: %s", what, self._spec.name, error)
                    # It holds in this process, until the store is read again.
                    self._login = login
                    break

    async def _keep(self, login: Login) -> None:
        await keep_login(self._store, self._spec, login)
        self._login, self._stamp = login, self._store.stamp()

    async def _keep_if_possible(self, login: Login) -> None:
        """Keep what is known of a login whose end is told in any case."""
        try:
            await self._keep(login)
        except BridgeError as error:
            logger.warning("that the login to server %r has ended could not be kept: %s", self._spec.name, error)


_MAYBE_USED = (
    "its refresh token, which may be of use once, was sent to its authorization server, and no usable answer came"
)

_REFUSES_TOKENS = frozenset({httpx2.codes.BAD_REQUEST, httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN})

_PASSES = frozenset({"temporarily_unavailable", "server_error", "slow_down", "rate_limited", "too_many_requests"})
"""Codes after which the same token may be taken. Some servers have codes of their own for one that is over."""

_FINAL = frozenset(
    {"invalid_grant", "invalid_request", "invalid_client", "unauthorized_client", "unsupported_grant_type"}
    | {"invalid_scope", "invalid_target", "access_denied", "login_required", "interaction_required"}
    | {"consent_required"}
)
"""What a token endpoint answers that gives no token for this login again: OAuth's own codes (RFC 6749, section 5.2;
RFC 8707, section 2), and OpenID Connect's for what a person has to do."""


def _is_unread(answer: httpx2.Response) -> bool:
    """Whether an answer says that the request wasn't read, and may be sent again.

    A 503 says so only with the time at which to (RFC 9110, section 15.6.4): without, it may be a gateway's.
    """
    status = answer.status_code
    return status in _UNREAD or (status == httpx2.codes.SERVICE_UNAVAILABLE and "retry-after" in answer.headers)


_UNREAD = frozenset({httpx2.codes.TOO_EARLY, httpx2.codes.TOO_MANY_REQUESTS})


def _ended(login: Login, *, is_refused: bool) -> str:
    if login.refresh_sent:
        return f"needs a new login: {_MAYBE_USED}"
    if is_refused:
        return "needs a new login: it refuses the token of the last one, which can't be renewed"
    return "needs a new login: the last one has expired"


class MachineTokens:
    """The tokens of a client that logs in by itself. They are kept in memory alone.

    Args:
        spec: The server.
        settings: How to get tokens: the client's id and secret, and the issuer that they are for.
        tls: As `authorization_client`.
    """

    def __init__(self, spec: ServerSpec, settings: OAuthSettings, tls: ssl.SSLContext) -> None:
        self._spec = spec
        self._url = spec.url or ""
        self._settings = settings
        self._tls = tls
        self._tokens: OAuthToken | None = None
        self._made_at = 0.0
        self._renewed_at = float("-inf")
        self._shared = _Shared()
        self._pause: tuple[float, str] = (0.0, "")

    async def token(self) -> str | None:
        """As `TokenSource`: None before the server has asked for a token."""
        if self._tokens is None or self._is_usable():
            return self._tokens.access_token if self._tokens else None
        return await self._shared.outcome(lambda: self._make(challenge([], self._settings.scopes)))

    async def replacement(self, refused: str | None, answer: httpx2.Response) -> str:
        """As `TokenSource`."""
        if self._tokens is not None and self._tokens.access_token != refused and self._is_usable():
            return self._tokens.access_token
        if refused is not None and self._is_usable() and time.monotonic() - self._renewed_at < REFUSED_PAUSE_SECONDS:
            raise self.refused()
        return await self._shared.outcome(lambda: self._make(challenge([answer], self._settings.scopes)))

    async def accepted(self, token: str) -> None:
        """As `TokenSource`."""

    def refused(self, *, wanted: str | None = None) -> BridgeError:
        """As `TokenSource`: the configuration is wrong, or the server."""
        return machine_refused(self._spec.name, wanted=wanted)

    async def settle(self) -> None:
        """As `TokenSource`."""
        await self._shared.settle()

    def _is_usable(self) -> bool:
        lifetime = self._tokens.expires_in if self._tokens else None
        return lifetime is None or time.time() < self._made_at + 0.8 * lifetime

    async def _make(self, asked: httpx2.Response) -> str | BridgeError:
        until, why = self._pause
        if time.monotonic() < until:
            return login_unavailable(self._spec.name, why)
        made_at = time.time()
        try:
            async with authorization_client(self._url, self._tls) as client:
                provider = MachineProvider(self._url, self._settings)
                tokens = await drive(provider, client, token_request(self._url), asked)
        except (UnreachableError, FlowError) as error:
            self._pause = (time.monotonic() + PAUSE_SECONDS, error.reason)
            return login_unavailable(self._spec.name, error.reason)
        except Exception as error:  # noqa: BLE001  (as in LoginTokens)
            return login_unavailable(self._spec.name, f"the exchange failed ({type(error).__name__})")
        self._tokens, self._made_at, self._renewed_at = tokens, made_at, time.monotonic()
        return tokens.access_token
