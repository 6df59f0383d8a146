"""Logins to remote servers against a real authorization server, behind which a real MCP server checks each token."""

import asyncio
import json
import stat
import sys
import types
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from oauth_fixtures import (
    SECONDS,
    Visitor,
    authorization_server,  # noqa: F401
    consent,
    logged_in,
    login_store,
    oauth_servers,  # noqa: F401
    protected_server,  # noqa: F401
    server_spec,
)

from mcp_bridge.cli.commands.logins import _state as login_state
from mcp_bridge.downstream.http.remote_auth import RemoteAccess, open_auth
from mcp_bridge.downstream.oauth import authorization_client, token_renewal
from mcp_bridge.downstream.oauth.login_record import keep_login, read_login
from mcp_bridge.downstream.oauth.login_store import LoginStore
from mcp_bridge.downstream.oauth.logout import log_out
from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import locked
from mcp_bridge.governance.server_credentials import login_store as governed_login_store
from mcp_bridge.policy.secrets import secret_stores
from mcp_bridge.policy.secrets.secret_stores import LOGINS_FILE_NAME, SecretFile
from mcp_bridge.settings import Settings

pytestmark = pytest.mark.timeout(180)


TLS = httpx2.create_ssl_context()


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


def access(state):
    return RemoteAccess(lambda _spec, text: text, logins=login_store(state))


@asynccontextmanager
async def connected(spec, state, auth=None):
    """The SDK's client with the bridge's authentication."""
    auth = auth or open_auth(spec, access(state), TLS)
    async with (
        httpx2.AsyncClient(auth=auth, timeout=SECONDS) as http,
        Client(streamable_http_client(spec.url, http_client=http), read_timeout_seconds=SECONDS) as client,
    ):
        yield client


async def whoami(spec, state):
    async with connected(spec, state) as client:
        return (await client.call_tool("whoami", {})).content[0].text


async def status_of(spec, auth):
    """What a request with this authentication is answered. Errors of the flow are raised as they are."""
    accept = {"accept": "text/event-stream"}
    async with (
        httpx2.AsyncClient(auth=auth, timeout=SECONDS) as http,
        http.stream("GET", spec.url, headers=accept) as it,
    ):
        return it.status_code


ACCEPTED = 400
"""What the server answers who has a token, and no session."""


async def error_of(spec, state):
    with pytest.raises(BridgeError) as caught:
        await status_of(spec, open_auth(spec, access(state), TLS))
    return caught.value


async def have_stayed(spec, state):
    """Have the refresh token be one that was used once, and has stayed."""
    login = await read_login(login_store(state), spec)
    await keep_login(login_store(state), spec, login.model_copy(update={"rotates": False}))


async def expire(spec, state):
    """Have the access token's time pass."""
    login = await read_login(login_store(state), spec)
    await keep_login(login_store(state), spec, login.model_copy(update={"made_at": login.made_at - 86400}))
    return login


async def test_a_login_lets_the_server_be_called_as_that_person(authorization_server, protected_server, state):
    spec = server_spec(protected_server)
    visitor = Visitor("ada")
    await logged_in(spec, state, visitor)
    assert await whoami(spec, state) == "ada"
    # A public client, a token for this server alone, and a proof of who has asked for it.
    assert authorization_server.events("registered") == [{"event": "registered", "method": "none"}]
    assert len(authorization_server.events("granted", grant="authorization_code", resource=spec.url)) == 1
    asked = parse_qs(urlsplit(visitor.shown).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["resource"] == [spec.url]
    assert urlsplit(asked["redirect_uri"][0]).hostname == "127.0.0.1"
    assert stat.S_IMODE((state / "logins.json").stat().st_mode) == 0o600


async def test_a_server_without_a_login_says_which_command_logs_in(authorization_server, protected_server, state):
    error = await error_of(server_spec(protected_server, name="my server"), state)
    assert error.code == "login_needed"
    assert "mcp-bridge servers login 'my server'" in error.hint
    # Nobody was registered, and no page was opened.
    assert not authorization_server.events("registered")


async def test_an_expired_token_is_replaced_once_for_all_calls(authorization_server, protected_server, state):
    spec = server_spec(protected_server)
    first = await logged_in(spec, state)
    async with connected(spec, state) as client:
        await expire(spec, state)
        answers = await asyncio.gather(*(client.call_tool("whoami", {}) for _ in range(20)))
    assert {answer.content[0].text for answer in answers} == {"somebody"}
    assert len(authorization_server.events("granted", grant="refresh_token", resource=spec.url)) == 1
    now = await read_login(login_store(state), spec)
    assert now.tokens.refresh_token != first.tokens.refresh_token
    assert protected_server.seen().count("whoami") == 20


async def test_a_token_that_the_server_refuses_is_replaced_and_the_call_is_made_once(
    authorization_server, protected_server, state
):
    spec = server_spec(protected_server)
    login = await logged_in(spec, state)
    async with connected(spec, state) as client:
        authorization_server.forget(login.tokens.access_token)
        await client.call_tool("whoami", {})
    assert len(authorization_server.events("granted", grant="refresh_token")) == 1
    assert protected_server.seen().count("whoami") == 1


ELSEWHERE = """
import anyio, sys
from pathlib import Path
sys.path[:0] = {path!r}
from oauth_fixtures import login_store
from test_oauth import TLS, access, server_spec, status_of, open_auth

class Server:
    url = {url!r}

async def main():
    spec = server_spec(Server)
    print("ready", flush=True)
    sys.stdin.readline()
    auth = open_auth(spec, access(Path({state!r})), TLS)
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(status_of, spec, auth)

anyio.run(main)
"""


async def test_processes_that_replace_a_token_at_the_same_time_use_the_refresh_token_once(
    authorization_server, protected_server, state
):
    spec = server_spec(protected_server)
    await logged_in(spec, state)
    await expire(spec, state)
    path = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support"), *sys.path]
    program = ELSEWHERE.format(path=path, url=spec.url, state=str(state))
    others = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        for _ in range(4)
    ]
    for other in others:
        assert await other.stdout.readline() == b"ready\n"
    for other in others:
        other.stdin.write(b"\n")
    assert [await other.wait() for other in others] == [0, 0, 0, 0]
    assert len(authorization_server.events("granted", grant="refresh_token")) == 1
    assert not authorization_server.events("refused")
    assert not authorization_server.events("reused")


async def test_a_login_in_another_process_is_seen_by_a_bridge_that_runs(authorization_server, protected_server, state):
    spec = server_spec(protected_server)
    auth = open_auth(spec, access(state), TLS)
    with pytest.raises(BridgeError, match="login"):
        await status_of(spec, auth)
    await logged_in(spec, state)
    assert await status_of(spec, auth) == ACCEPTED
    await log_out(spec, None, login_store(state), TLS)
    with pytest.raises(BridgeError, match="login"):
        await status_of(spec, auth)


async def test_logging_out_revokes_the_tokens_and_forgets_them(authorization_server, protected_server, state):
    spec = server_spec(protected_server)
    tokens = (await logged_in(spec, state)).tokens
    assert authorization_server.active(tokens.access_token)
    assert authorization_server.active(tokens.refresh_token)
    said = await log_out(spec, None, login_store(state), TLS)
    assert said == f"they are revoked at {authorization_server.url}"
    assert not authorization_server.active(tokens.access_token)
    assert not authorization_server.active(tokens.refresh_token)
    assert tokens.access_token not in (state / "logins.json").read_text()
    assert await log_out(spec, None, login_store(state), TLS) is None
    assert (await error_of(spec, state)).code == "login_needed"


async def test_a_login_whose_token_is_for_another_server_fails_and_leaves_nothing(
    authorization_server, protected_server, state
):
    authorization_server.behave(audience="https://elsewhere.example/mcp")
    with pytest.raises(BridgeError, match="refuses the token") as caught:
        await logged_in(server_spec(protected_server), state)
    assert caught.value.code == "login_failed"
    assert await read_login(login_store(state), server_spec(protected_server)) is None
    assert len(authorization_server.events("revoked", status=200)) == 2


async def test_a_token_that_is_for_another_server_later_is_refused(authorization_server, protected_server, state):
    spec = server_spec(protected_server)
    await logged_in(spec, state)
    authorization_server.behave(audience="https://elsewhere.example/mcp")
    await expire(spec, state)
    error = await error_of(spec, state)
    assert error.code == "login_needed"
    assert "refuses" in error.message
    # It isn't asked for ever more tokens.
    assert len(authorization_server.events("granted", grant="refresh_token")) == 1


def changed(**values):
    """Changes parameters of the address that a browser is sent to; None takes one away."""

    def change(address):
        given = {name: value[0] for name, value in parse_qs(urlsplit(address).query).items()} | values
        query = urlencode({name: value for name, value in given.items() if value is not None})
        return urlsplit(address)._replace(query=query).geturl()

    return change


@pytest.mark.parametrize("value", ["stolen", "", None])
async def test_an_answer_with_another_state_doesnt_end_the_login(authorization_server, protected_server, state, value):
    class Victim(Visitor):
        def _visit(self, address):
            self.sent_to = consent(address, follow_back=False)
            self.refused = httpx2.get(changed(state=value)(self.sent_to), timeout=SECONDS)
            httpx2.get(self.sent_to, timeout=SECONDS)

    victim = Victim()
    await logged_in(server_spec(protected_server), state, victim)
    assert victim.refused.status_code == 400


@pytest.mark.parametrize("value", ["https://attacker.example", None])
async def test_an_answer_from_another_authorization_server_is_refused(
    authorization_server, protected_server, state, value
):
    with pytest.raises(BridgeError, match=r"\(iss\)") as caught:
        await logged_in(server_spec(protected_server), state, Visitor(change=changed(iss=value)))
    assert caught.value.code == "login_failed"
    assert not authorization_server.events("granted")
    assert not (state / "logins.json").exists()


async def test_an_answer_can_be_pasted(authorization_server, protected_server, state):
    spec = server_spec(protected_server)
    await logged_in(spec, state, Visitor("grace", pastes=True))
    assert await whoami(spec, state) == "grace"


async def test_a_person_who_refuses_is_believed(authorization_server, protected_server, state):
    refused = changed(code=None, error="access_denied", error_description="not today")
    with pytest.raises(BridgeError, match=r"access_denied \(not today\)"):
        await logged_in(server_spec(protected_server), state, Visitor(change=refused))


HOW = {
    "down": "503",
    "silent": "has not answered",
    "huge": "more than 262144 bytes",
    "html": "no token",
    "echo": "invalid_grant",
    "lost": "connection broke",
    "failed": "504",
}


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(authorization_client, "REQUEST_SECONDS", 2.0)


@pytest.mark.parametrize("how", HOW)
async def test_a_login_fails_when_the_token_endpoint_does_and_tells_nothing_that_was_sent(
    authorization_server, protected_server, state, hasty, how
):
    authorization_server.behave(token=how)
    visitor = Visitor()
    with pytest.raises(BridgeError) as caught:
        await logged_in(server_spec(protected_server), state, visitor)
    assert caught.value.code == "login_failed"
    assert HOW[how] in caught.value.message
    code = parse_qs(urlsplit(visitor.sent_to).query)["code"][0]
    assert code not in str(caught.value.record())
    assert not (state / "logins.json").exists()


@pytest.mark.parametrize("how", HOW)
async def test_a_refresh_token_is_never_used_twice_when_the_token_endpoint_fails(
    authorization_server, protected_server, state, hasty, monkeypatch, how
):
    monkeypatch.setattr(token_renewal, "PAUSE_SECONDS", 0.0)
    spec = server_spec(protected_server)
    await logged_in(spec, state)
    login = await expire(spec, state)
    authorization_server.behave(token=how)
    error = await error_of(spec, state)
    assert error.code == ("login_unavailable" if how == "down" else "login_needed")
    assert login.tokens.refresh_token not in str(error.record())
    authorization_server.behave(token="")
    if how == "down":
        # It said when to try again, and did nothing.
        assert await status_of(spec, open_auth(spec, access(state), TLS)) == ACCEPTED
    else:
        again = await error_of(spec, state)
        assert again.code == "login_needed"
        assert not authorization_server.events("refused", grant="refresh_token")
        if how in {"lost", "failed", "silent"}:
            # What is said is why, at once and later.
            assert HOW[how] in error.message
            assert "which may be of use once, was sent" in error.message
            assert "which may be of use once, was sent" in again.message
    assert not authorization_server.events("reused")
    # The way out.
    await logged_in(spec, state)
    assert await status_of(spec, open_auth(spec, access(state), TLS)) == ACCEPTED


async def test_a_token_that_hasnt_expired_is_used_while_the_authorization_server_is_down(
    authorization_server, protected_server, state
):
    spec = server_spec(protected_server)
    login = await logged_in(spec, state)
    # It expires soon: another would be better.
    soon = login.model_copy(update={"made_at": login.made_at - 3590})
    await keep_login(login_store(state), spec, soon)
    authorization_server.behave(token="down")  # noqa: S106
    assert await status_of(spec, open_auth(spec, access(state), TLS)) == ACCEPTED
    assert authorization_server.events("token", how="down")


class LockedWhileTokensCome(SecretFile):
    """A store that another process has locked from when new tokens are to be kept: for some writes, or for good."""

    def __init__(self, state, writes):
        super().__init__(state, LOGINS_FILE_NAME, "log in anew")
        self.refused, self._writes, self._state = 0, writes, state
        self._sent = False

    def set(self, secret_id, plaintext):
        if not self._sent:
            self._sent = True
            return super().set(secret_id, plaintext)
        if self.refused == self._writes:
            return super().set(secret_id, plaintext)
        with locked(self._state / f".{LOGINS_FILE_NAME}.lock"):
            try:
                return super().set(secret_id, plaintext)
            except BridgeError:
                self.refused += 1
                raise


@pytest.mark.parametrize("writes", [2, 1_000])
async def test_a_store_that_is_locked_when_the_new_tokens_come_costs_no_call(
    authorization_server, protected_server, state, monkeypatch, writes
):
    spec = server_spec(protected_server)
    await logged_in(spec, state)
    await expire(spec, state)
    monkeypatch.setattr(secret_stores, "LOCK_SECONDS", 0.05)
    store = LockedWhileTokensCome(state, writes)
    auth = open_auth(spec, RemoteAccess(lambda _spec, text: text, logins=LoginStore(store, state)), TLS)
    assert await status_of(spec, auth) == ACCEPTED
    assert await status_of(spec, auth) == ACCEPTED
    assert store.refused == min(writes, token_renewal.KEEP_ATTEMPTS)
    assert len(authorization_server.events("granted", grant="refresh_token")) == 1
    kept = await read_login(login_store(state), spec)
    assert kept.refresh_sent == (writes > token_renewal.KEEP_ATTEMPTS)


async def test_a_call_that_is_cancelled_doesnt_cut_off_the_refresh(
    authorization_server, protected_server, state, monkeypatch
):
    spec = server_spec(protected_server)
    await logged_in(spec, state)
    await expire(spec, state)
    auth = open_auth(spec, access(state), TLS)
    begun, refresh = anyio.Event(), token_renewal.LoginTokens._refresh

    async def noted(self, *arguments):
        begun.set()
        return await refresh(self, *arguments)

    monkeypatch.setattr(token_renewal.LoginTokens, "_refresh", noted)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(status_of, spec, auth)
        await begun.wait()
        tasks.cancel_scope.cancel()
    # As the end of a connection does.
    await auth.settle()
    login = await read_login(login_store(state), spec)
    assert login.is_usable()
    assert not login.refresh_sent
    assert await status_of(spec, auth) == ACCEPTED
    assert len(authorization_server.events("granted", grant="refresh_token")) == 1


async def test_an_authorization_server_that_has_ended_a_login_is_not_asked_again(
    authorization_server, protected_server, state
):
    spec = server_spec(protected_server)
    login = await logged_in(spec, state)
    httpx2.post(
        f"{authorization_server.url}/token/revocation",
        data={"token": login.tokens.refresh_token, "client_id": login.client.client_id},
    ).raise_for_status()
    await expire(spec, state)
    for _ in range(3):
        error = await error_of(spec, state)
        assert error.code == "login_needed"
    assert len(authorization_server.events("refused", grant="refresh_token")) == 1


@pytest.mark.parametrize("how", ["ended", "silent"])
async def test_a_refused_login_that_cant_be_renewed_counts_as_ended_though_its_time_isnt_over(
    authorization_server, protected_server, state, hasty, how
):
    spec = server_spec(protected_server)
    login = await logged_in(spec, state)
    if how == "silent":
        authorization_server.behave(token=how)
    else:
        httpx2.post(
            f"{authorization_server.url}/token/revocation",
            data={"token": login.tokens.refresh_token, "client_id": login.client.client_id},
        ).raise_for_status()
    assert login_state(spec, login) == "logged in"
    for _ in range(2):
        flow = open_auth(spec, access(state), TLS).async_auth_flow(httpx2.Request("GET", spec.url))
        with pytest.raises(BridgeError) as caught:
            await flow.__anext__()
            await flow.asend(httpx2.Response(401))
        assert caught.value.code == "login_needed"
    told = "ended" if how == "ended" else "refused when last used"
    assert login_state(spec, await read_login(login_store(state), spec)) == told


@pytest.mark.parametrize("is_locked", [False, True])
async def test_a_login_that_cant_be_renewed_is_tried_again_after_a_refusal(
    authorization_server, protected_server, state, monkeypatch, is_locked
):
    """A server may refuse a good token once: while it starts, or behind a proxy that fails."""
    spec = server_spec(protected_server)
    login = await logged_in(spec, state)
    tokens = login.tokens.model_copy(update={"refresh_token": None})
    await keep_login(login_store(state), spec, login.model_copy(update={"tokens": tokens}))
    monkeypatch.setattr(secret_stores, "LOCK_SECONDS", 0.05)
    with locked(state / f".{LOGINS_FILE_NAME}.lock") if is_locked else nullcontext():
        flow = open_auth(spec, access(state), TLS).async_auth_flow(httpx2.Request("GET", spec.url))
        with pytest.raises(BridgeError, match="refuses the token of the last one") as caught:
            await flow.__anext__()
            await flow.asend(httpx2.Response(401))
        assert caught.value.code == "login_needed"
    told = "logged in" if is_locked else "refused when last used"
    assert login_state(spec, await read_login(login_store(state), spec)) == told
    assert await status_of(spec, open_auth(spec, access(state), TLS)) == ACCEPTED
    assert login_state(spec, await read_login(login_store(state), spec)) == "logged in"


async def test_a_server_that_wants_more_rights_is_told_by_their_names(authorization_server, protected_server, state):
    spec = server_spec(protected_server)
    login = await logged_in(spec, state)
    token = login.tokens.access_token

    async def told(more):
        flow = open_auth(spec, access(state), TLS).async_auth_flow(httpx2.Request("GET", spec.url))
        await flow.__anext__()
        asked = {"www-authenticate": f'Bearer error="insufficient_scope"{more}'}
        with pytest.raises(BridgeError) as caught:
            await flow.asend(httpx2.Response(403, headers=asked))
        return str(caught.value)

    assert "with more rights (admin files:write): add them" in await told(', scope="admin files:write"')
    for nothing in ("", f', scope="admin {token[:20]}"', f', scope="{"x" * 300}"'):
        assert "with more rights: add them" in await told(nothing)


async def test_a_registered_client_logs_in_with_its_secret_which_no_login_keeps(
    authorization_server, protected_server, state
):
    secret = "secret-of-the-registered-app-4711"  # noqa: S105
    oauth = {"client_id": "registered-app", "client_secret": "vault://secret/app", "issuer": authorization_server.url}
    spec = server_spec(protected_server, oauth=oauth)
    given = replace(spec, oauth=replace(spec.oauth, client_secret=secret))
    await logged_in(given, state)
    assert not authorization_server.events("registered")
    assert secret not in (state / "logins.json").read_text()
    await expire(spec, state)
    resolving = RemoteAccess(lambda _spec, text: text.replace("vault://secret/app", secret), logins=login_store(state))
    assert await status_of(spec, open_auth(spec, resolving, TLS)) == ACCEPTED
    assert len(authorization_server.events("granted", grant="refresh_token", client="registered-app")) == 1
    said = await log_out(given, given.oauth, login_store(state), TLS)
    assert said.startswith("they are revoked")


@pytest.mark.parametrize("rotates", [True, False])
@pytest.mark.parametrize("how", ["lost", "failed"])
async def test_a_refresh_token_is_sent_again_only_once_it_is_known_to_stay(
    authorization_server, protected_server, state, monkeypatch, how, rotates
):
    monkeypatch.setattr(token_renewal, "PAUSE_SECONDS", 0.0)
    authorization_server.behave(rotates=rotates)
    oauth = {
        "client_id": "registered-app",
        "client_secret": "secret-of-the-registered-app-4711",
        "issuer": authorization_server.url,
    }
    spec = server_spec(protected_server, oauth=oauth)
    # Of a client with a secret, it isn't known before a token was used.
    await logged_in(spec, state)
    await expire(spec, state)
    authorization_server.behave(token=how)
    assert (await error_of(spec, state)).code == "login_needed"
    authorization_server.behave(token="")
    assert (await error_of(spec, state)).code == "login_needed"
    await logged_in(spec, state)
    await expire(spec, state)
    assert await status_of(spec, open_auth(spec, access(state), TLS)) == ACCEPTED
    await expire(spec, state)
    authorization_server.behave(token=how)
    assert (await error_of(spec, state)).code == ("login_needed" if rotates else "login_unavailable")
    authorization_server.behave(token="")
    if rotates:
        assert (await error_of(spec, state)).code == "login_needed"
    else:
        assert await status_of(spec, open_auth(spec, access(state), TLS)) == ACCEPTED
    assert not authorization_server.events("reused")


@pytest.mark.parametrize("how", ["moved", "forbidden", "passing"])
async def test_only_a_refusal_of_the_authorization_servers_own_ends_a_login_for_good(
    authorization_server, protected_server, state, monkeypatch, how
):
    monkeypatch.setattr(token_renewal, "PAUSE_SECONDS", 0.0)
    spec = server_spec(protected_server)
    await logged_in(spec, state)
    await expire(spec, state)
    await have_stayed(spec, state)
    authorization_server.behave(token=how)
    error = await error_of(spec, state)
    assert error.code == "login_unavailable"
    # It may stay so, and then there is a way out.
    assert ("log in again" in error.message) == (how == "forbidden")
    authorization_server.behave(token="")
    assert await status_of(spec, open_auth(spec, access(state), TLS)) == ACCEPTED


async def test_a_refusal_in_words_of_its_own_ends_a_login(authorization_server, protected_server, state):
    spec = server_spec(protected_server)
    await logged_in(spec, state)
    await expire(spec, state)
    await have_stayed(spec, state)
    authorization_server.behave(token="stale")  # noqa: S106
    error = await error_of(spec, state)
    assert (error.code, "invalid_token" in error.message) == ("login_needed", True)


@pytest.mark.parametrize("is_configured", [True, False])
async def test_a_client_that_is_refused_keeps_its_login_if_its_secret_can_be_corrected(
    authorization_server, protected_server, state, is_configured
):
    oauth = {
        "client_id": "registered-app",
        "client_secret": "secret-of-the-registered-app-4711",
        "issuer": authorization_server.url,
    }
    spec = server_spec(protected_server, oauth=oauth) if is_configured else server_spec(protected_server)
    await logged_in(spec, state)
    await expire(spec, state)
    authorization_server.behave(token="stranger")  # noqa: S106
    auth = open_auth(spec, access(state), TLS)
    for _ in range(2):
        with pytest.raises(BridgeError, match="invalid_client" if is_configured else "new login") as caught:
            await status_of(spec, auth)
        assert caught.value.code == "login_needed"
    assert len(authorization_server.events("token", how="stranger")) == 1
    assert ("client_secret" in caught.value.message) == is_configured
    authorization_server.behave(token="")
    if is_configured:
        assert await status_of(spec, open_auth(spec, access(state), TLS)) == ACCEPTED
    else:
        assert (await error_of(spec, state)).code == "login_needed"


@pytest.mark.parametrize("how", ["down", "busy"])
async def test_a_store_that_is_locked_when_nothing_was_used_costs_no_login(
    authorization_server, protected_server, state, monkeypatch, how
):
    monkeypatch.setattr(secret_stores, "LOCK_SECONDS", 0.05)
    spec = server_spec(protected_server)
    await logged_in(spec, state)
    await expire(spec, state)
    authorization_server.behave(token=how)
    store = LockedWhileTokensCome(state, 2)
    auth = open_auth(spec, RemoteAccess(lambda _spec, text: text, logins=LoginStore(store, state)), TLS)
    with pytest.raises(BridgeError) as caught:
        await status_of(spec, auth)
    assert caught.value.code == "login_unavailable"
    assert store.refused == 2
    assert not (await read_login(login_store(state), spec)).refresh_sent
    authorization_server.behave(token="")
    assert await status_of(spec, open_auth(spec, access(state), TLS)) == ACCEPTED


async def test_an_authorization_server_is_left_alone_for_as_long_as_it_says(
    authorization_server, protected_server, state, monkeypatch
):
    monkeypatch.setattr(token_renewal, "PAUSE_SECONDS", 0.0)
    spec = server_spec(protected_server)
    await logged_in(spec, state)
    await expire(spec, state)
    authorization_server.behave(token="busy")  # noqa: S106
    auth = open_auth(spec, access(state), TLS)
    for _ in range(3):
        with pytest.raises(BridgeError, match="it answered 429") as caught:
            await status_of(spec, auth)
        assert caught.value.code == "login_unavailable"
    assert len(authorization_server.events("token", how="busy")) == 1
    # Not for as long as it likes.
    monkeypatch.setattr(token_renewal, "MAX_PAUSE_SECONDS", 0.0)
    authorization_server.behave(token="busy")  # noqa: S106
    auth = open_auth(spec, access(state), TLS)
    for _ in range(2):
        with pytest.raises(BridgeError):
            await status_of(spec, auth)
    assert len(authorization_server.events("token", how="busy")) == 3


async def test_a_secret_goes_to_no_other_authorization_server_than_the_configured_one(
    authorization_server, protected_server, state
):
    oauth = {"client_id": "registered-app", "client_secret": "s", "issuer": "https://auth.example.com"}
    with pytest.raises(BridgeError, match="another authorization server"):
        await logged_in(server_spec(protected_server, oauth=oauth), state)
    machine = server_spec(protected_server, oauth={**oauth, "grant": "client_credentials"})
    error = await error_of(machine, state)
    assert (error.code, "another authorization server" in error.message) == ("login_unavailable", True)


async def test_a_client_identified_by_its_document_isnt_registered(authorization_server, protected_server, state):
    document = "https://client.example/mcp-bridge.json"
    spec = server_spec(protected_server, oauth={"client_metadata_url": document})
    visitor = Visitor()
    await logged_in(spec, state, visitor)
    assert parse_qs(urlsplit(visitor.shown).query)["client_id"] == [document]
    assert not authorization_server.events("registered")
    assert await status_of(spec, open_auth(spec, access(state), TLS)) == ACCEPTED


async def test_a_machine_logs_in_by_itself_and_again_once_its_token_has_expired(
    authorization_server, protected_server, state
):
    oauth = {
        "client_id": "machine",
        "client_secret": "secret-of-the-machine-client-0815",
        "issuer": authorization_server.url,
        "grant": "client_credentials",
    }
    authorization_server.behave(ttl=4)
    spec = server_spec(protected_server, oauth=oauth)
    auth = open_auth(spec, access(state), TLS)
    assert await status_of(spec, auth) == ACCEPTED
    # On a busy machine a token can expire on its way, and another is granted.
    granted = authorization_server.events("granted", grant="client_credentials")
    assert granted
    assert granted == authorization_server.events("granted", grant="client_credentials", resource=spec.url)
    await anyio.sleep(4.1)
    assert await status_of(spec, auth) == ACCEPTED
    assert len(authorization_server.events("granted", grant="client_credentials")) > len(granted)
    assert not state.exists()


async def test_a_login_is_for_one_url_one_name_and_one_configuration(authorization_server, protected_server, state):
    spec = server_spec(protected_server)
    await logged_in(spec, state)
    others = [
        replace(spec, name="other"),
        replace(spec, url=spec.url + "/"),
        replace(spec, scope="folder", source="/somewhere/mcp-bridge.toml"),
        replace(spec, scope="project", source="/somewhere/.mcp.json"),
    ]
    for other in others:
        assert await read_login(login_store(state), other) is None
    for other in (others[0], *others[2:]):
        assert (await error_of(other, state)).code == "login_needed"
    # A record in another's place isn't believed either.
    store = login_store(state)
    await store.put(others[1], await store.get(spec))
    assert await read_login(store, others[1]) is None


async def test_a_login_that_cant_be_read_counts_as_none(authorization_server, protected_server, state):
    spec = server_spec(protected_server)
    await logged_in(spec, state)
    for text in ("{}", "not JSON", json.dumps({"format": 2})):
        await login_store(state).put(spec, text)
        assert (await error_of(spec, state)).code == "login_needed"


async def test_a_request_to_another_origin_gets_no_token(authorization_server, protected_server, state):
    spec = server_spec(protected_server)
    await logged_in(spec, state)
    seen = []
    flow = open_auth(spec, access(state), TLS).async_auth_flow(httpx2.Request("GET", "http://127.0.0.1:9/mcp"))
    seen.append((await flow.__anext__()).headers.get("authorization"))
    await flow.aclose()
    flow = open_auth(spec, access(state), TLS).async_auth_flow(httpx2.Request("GET", spec.url))
    seen.append((await flow.__anext__()).headers.get("authorization", "")[:7])
    await flow.aclose()
    assert seen == [None, "Bearer "]


class Endless(httpx2.AsyncByteStream):
    closed = False

    async def __aiter__(self):
        while True:
            yield b"x"

    async def aclose(self):
        self.closed = True


async def test_the_body_of_a_refusal_isnt_read(authorization_server, protected_server, state):
    spec = server_spec(protected_server)
    await logged_in(spec, state)
    flow = open_auth(spec, access(state), TLS).async_auth_flow(httpx2.Request("POST", spec.url, content=b"{}"))
    await flow.__anext__()
    endless = Endless()
    refused = httpx2.Response(401, stream=endless)
    await flow.asend(refused)
    assert await refused.aread() == b""
    assert endless.closed
    await flow.aclose()


async def test_logins_can_be_kept_in_the_systems_keyring(authorization_server, protected_server, state, monkeypatch):
    kept = {}
    keyring = types.ModuleType("keyring")
    keyring.get_password = lambda service, name: kept.get((service, name))
    keyring.set_password = lambda service, name, value: kept.__setitem__((service, name), value)
    keyring.delete_password = lambda service, name: kept.pop((service, name))
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    store = governed_login_store(Settings(state_dir=state, logins="keyring"))
    spec = server_spec(protected_server)
    auth = open_auth(spec, RemoteAccess(lambda _spec, text: text, logins=store), TLS)
    with pytest.raises(BridgeError, match="needs a login"):
        await status_of(spec, auth)
    await logged_in(spec, state, store=store)
    assert [service for service, _ in kept] == ["mcp-bridge"]
    assert not (state / "logins.json").exists()
    # Nothing tells of a change there: it is looked at once the server asks.
    assert await status_of(spec, auth) == ACCEPTED
    await log_out(spec, None, store, TLS)
    assert not kept
