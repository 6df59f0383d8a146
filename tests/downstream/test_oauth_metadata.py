"""Servers that lie about who their authorization server is, and authorization servers that lie about themselves."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.lowlevel
import httpx2
import pytest
from downstream_calls import call_tool
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken
from oauth_fixtures import Visitor, logged_in, login_store

from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettings
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.downstream.http.remote_auth import RemoteAccess, open_auth
from mcp_bridge.downstream.oauth import server_probe
from mcp_bridge.downstream.oauth.endpoints import url_problem
from mcp_bridge.downstream.oauth.login_errors import UnreachableError
from mcp_bridge.downstream.oauth.login_record import Login
from mcp_bridge.downstream.oauth.oauth_flow import FlowError, RefreshProvider
from mcp_bridge.errors import BridgeError

RESOURCE = "/.well-known/oauth-protected-resource/mcp"
ISSUER = "/.well-known/oauth-authorization-server"


class Nobody(Visitor):
    """Nobody is shown a page in these tests."""

    async def show(self, address):
        raise AssertionError(address)


@contextmanager
def lying(changes=None, *, pages=None, challenge=None, cookie=None, forbids=None, streams=True, session=None):
    """A server that is its own authorization server; gives its address, and the paths that were asked for.

    Args:
        changes: What its metadata says otherwise.
        pages: Further answers, by their paths.
        challenge: What it says with status 401, in which `{url}` is its address.
        cookie: One that it sets.
        forbids: What it says to whoever has a token, with status 403; without it, also with 401.
        streams: Whether it looks for a token in a request for a stream of its messages, or has no such stream.
        session: The session that it opens for whoever asks: it wants no token.
    """
    asked, given = [], {} if pages is None else pages

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            asked.append(f"{self.command} {self.path} {self.headers.get('cookie', '')}".rstrip())
            self.rfile.read(int(self.headers.get("content-length", 0)))
            page = given.get(self.path, served.get(self.path))
            body = page if isinstance(page, bytes) else json.dumps(page).encode() if page is not None else b""
            status = 200 if page is not None else 401 if self.path == "/mcp" else 404
            has_token = self.headers.get("authorization", "").startswith("Bearer ")
            status = 403 if status == 401 and has_token and forbids else status
            if status in {401, 403} and self.command == "GET" and not streams:
                status = 405
            if status in {401, 403} and session is not None:
                status = 200
            self.send_response(status)
            if status in {401, 403}:
                self.send_header(
                    "www-authenticate", forbids if status == 403 else (challenge or "Bearer").replace("{url}", url)
                )
            if session is not None and self.command == "POST":
                self.send_header("mcp-session-id", session)
            if cookie is not None:
                self.send_header("set-cookie", cookie)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    changes = changes or {}
    metadata = {
        "issuer": url,
        "authorization_endpoint": f"{url}/authorize",
        "token_endpoint": f"{url}/token",
        "registration_endpoint": f"{url}/register",
        "response_types_supported": ["code"],
        "code_challenge_methods_supported": ["S256"],
    }
    resource = {"resource": f"{url}/mcp", "authorization_servers": [url]}
    served = {
        RESOURCE: resource | {key: value for key, value in changes.items() if key in resource},
        ISSUER: {
            key: value for key, value in (metadata | changes).items() if value is not None and key not in resource
        },
        "/register": {"client_id": "registered", "redirect_uris": ["http://127.0.0.1/callback"]},
    } | given
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield url, asked
    finally:
        server.shutdown()
        server.server_close()


async def refused(url, tmp_path):
    with pytest.raises(BridgeError) as caught:
        await logged_in(ServerSpec(name="liar", type="http", url=f"{url}/mcp"), tmp_path, Nobody())
    assert caught.value.code == "login_failed"
    assert not (tmp_path / "logins.json").exists()
    return caught.value.message


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"resource": "https://elsewhere.example/mcp"}, "for another resource"),
        ({"issuer": "https://elsewhere.example"}, "names another issuer"),
        ({"authorization_servers": ["http://169.254.169.254/latest"]}, "is not encrypted"),
        ({"authorization_servers": ["https://169.254.169.254/latest"]}, "private address"),
        ({"authorization_servers": ["https://10.0.0.1"]}, "private address"),
        ({"authorization_servers": ["http://auth.example.com"]}, "is not encrypted"),
        ({"authorization_endpoint": "http://elsewhere.example/authorize"}, "login page is not encrypted"),
        ({"registration_endpoint": "http://elsewhere.example/register"}, "is not encrypted"),
        ({"authorization_endpoint": "http://127.0.0.1/authorize#fragment"}, "is not a valid address"),
        ({"registration_endpoint": None}, "register clients automatically"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"code_challenge_methods_supported": None}, "PKCE"),
    ],
)
async def test_metadata_that_leads_elsewhere_ends_the_login_before_anybody_is_asked(tmp_path, changes, why):
    with lying(changes) as (url, asked):
        assert why in await refused(url, tmp_path)
    assert not [each for each in asked if "/token" in each or "/authorize" in each]


class Onlooker(Visitor):
    """Notes the login page, and goes no further."""

    async def show(self, address):
        self.shown = address
        raise FlowError("nobody logs in")


async def test_a_login_page_with_parameters_of_its_own_gets_the_logins_beside_them(tmp_path):
    person = Onlooker()
    with (
        lying({"authorization_endpoint": "http://127.0.0.1/authorize?p=policy&state=theirs"}) as (url, _),
        pytest.raises(BridgeError, match="nobody logs in"),
    ):
        await logged_in(ServerSpec(name="liar", type="http", url=f"{url}/mcp"), tmp_path, person)
    asked = parse_qs(urlsplit(person.shown).query)
    assert (asked["p"], asked["response_type"]) == (["policy"], ["code"])
    assert asked["state"][0] == "theirs"
    assert len(asked["state"][1]) > 20


async def test_a_cookie_of_the_server_reaches_no_authorization_server_beside_it(tmp_path):
    with (
        lying(cookie="chosen=by-the-server; Path=/") as (url, asked),
        pytest.raises(BridgeError, match="nobody logs in"),
    ):
        await logged_in(ServerSpec(name="liar", type="http", url=f"{url}/mcp"), tmp_path, Onlooker())
    assert len(asked) >= 3
    assert not [each for each in asked if "chosen" in each]


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (b"{" * 1000, "doesn't say who its authorization server is"),
        (b" " * (1 << 20), "more than 262144 bytes"),
        (b"[" * 100_000, "doesn't say who its authorization server is"),
        (b'{"issuer": "\xff"}', "doesn't say who its authorization server is"),
    ],
)
async def test_metadata_that_is_none_ends_the_login(tmp_path, page, why):
    with lying(pages={ISSUER: page}) as (url, asked):
        assert why in await refused(url, tmp_path)
    assert not [each for each in asked if each.startswith("POST")]


@pytest.mark.parametrize(
    "page", [{"client_id": "x", "token_endpoint_auth_method": "tls_client_auth"}, b"no JSON", {"client_id": ["x"]}]
)
async def test_a_registration_that_is_of_no_use_ends_the_login(tmp_path, page):
    with lying(pages={"/register": page}) as (url, _):
        await refused(url, tmp_path)


@pytest.mark.parametrize("where", ["file:///etc/passwd", "http://169.254.169.254/x", "https://192.168.0.1/x", "x y"])
async def test_a_demand_for_a_token_leads_to_no_address_that_the_server_couldnt_be_at(tmp_path, where):
    with lying(challenge=f'Bearer resource_metadata="{where}"') as (url, _):
        message = await refused(url, tmp_path)
    assert "its address" in message or "no answer" in message


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        ('Bearer resource_metadata="{url}/\xe9"', "register clients automatically"),
        ('Bearer resource_metadata="{url}/\x1b"', "not a valid one"),
        ('Bearer realm="M\xfcller", resource_metadata="file:///x"', "not a valid address"),
        ('Bearer resource_metadata="http://[::1"', "not a valid one"),
        ('Bearer scope="M\xfcller"', "register clients automatically"),
    ],
)
async def test_a_demand_for_a_token_may_have_any_letters(tmp_path, challenge, why):
    with lying({"registration_endpoint": None}, challenge=challenge) as (url, _):
        assert why in await refused(url, tmp_path)


def test_an_address_that_no_request_can_go_to_revokes_nothing():
    here = "https://auth.example.com"
    login = Login(
        server="liar",
        url="https://mcp.example.com",
        client=OAuthClientInformationFull(client_id="bridge", token_endpoint_auth_method="none"),  # noqa: S106
        metadata=OAuthMetadata(
            issuer=here,
            authorization_endpoint=f"{here}/a",
            token_endpoint=f"{here}/t",
            revocation_endpoint=f"{here}/{'r' * 70_000}",
        ),
        tokens=OAuthToken(access_token="a"),  # noqa: S106
        made_at=0,
        rotates=True,
    )
    assert RefreshProvider(login, None).revocation("a", "access_token") is None


@pytest.mark.parametrize(
    ("url", "server", "problem"),
    [
        ("https://auth.example.com/token", "https://mcp.example.com", None),
        ("https://auth.example.com:8443/token", "https://mcp.example.com", None),
        ("http://127.0.0.1:1/token", "http://localhost:2/mcp", None),
        ("http://[::1]:1/token", "http://127.0.0.1/mcp", None),
        ("https://10.1.1.1/token", "https://10.0.0.1/mcp", None),
        ("http://auth.example.com/token", "https://mcp.example.com", "is not encrypted (https)"),
        ("http://auth.example.com/token", "http://127.0.0.1/mcp", "is not encrypted (https)"),
        ("https://localhost/token", "https://mcp.example.com", "leads to this machine"),
        ("https://a.localhost/token", "https://mcp.example.com", "leads to this machine"),
        ("https://127.0.0.1/token", "https://mcp.example.com", "leads to this machine"),
        ("https://[::ffff:127.0.0.1]/token", "https://mcp.example.com", "leads to this machine"),
        ("https://[::127.0.0.1]/token", "https://mcp.example.com", "leads to this machine"),
        ("https://[64:ff9b::127.0.0.1]/token", "https://mcp.example.com", "leads to this machine"),
        ("https://[2002:7f00:1::]/token", "https://mcp.example.com", "leads to this machine"),
        ("https://[64:ff9b::a9fe:a9fe]/token", "https://mcp.example.com", "leads to a private address"),
        ("https://192.0.0.192/token", "https://mcp.example.com", "leads to a private address"),
        ("https://224.0.0.1/token", "https://mcp.example.com", "leads to a private address"),
        ("https://[ff02::1]/token", "https://mcp.example.com", "leads to a private address"),
        ("https://[64:ff9b::8.8.8.8]/token", "https://mcp.example.com", None),
        ("https://localhost./token", "https://mcp.example.com", "leads to this machine"),
        ("https://127.1/token", "https://mcp.example.com", "leads to this machine"),
        ("https://0x7f000001/token", "https://mcp.example.com", "leads to this machine"),
        ("https://2130706433/token", "https://mcp.example.com", "leads to this machine"),
        ("https://127.0.0.1./token", "https://mcp.example.com", "leads to this machine"),
        ("https://2852039166/latest", "https://mcp.example.com", "leads to a private address"),
        ("https://notlocalhost/token", "https://mcp.example.com", None),
        ("https://0.0.0.0/token", "https://mcp.example.com", "leads to a private address"),
        ("https://169.254.169.254/", "https://mcp.example.com", "leads to a private address"),
        ("https://[fe80::1]/", "https://mcp.example.com", "leads to a private address"),
        ("https://user:pw@auth.example.com/", "https://mcp.example.com", "contains a user or password"),
        ("https://169.254.169.254/", "https://10.0.0.1/mcp", "leads to a private address"),
        ("https://10.1.1.1/token", "http://127.0.0.1/mcp", "leads to a private address"),
        ("https://0.0.0.0/token", "https://10.0.0.1/mcp", "leads to a private address"),
        ("javascript:alert(1)", "https://mcp.example.com", "is not a valid address"),
        ("https:///token", "https://mcp.example.com", "is not a valid address"),
        ("https://auth.example.com:99999/", "https://mcp.example.com", "is not a valid address"),
        ("https://auth.example.com/" + "a" * 9000, "https://mcp.example.com", "has more than 8192 characters"),
    ],
)
def test_where_a_request_of_a_login_may_go(url, server, problem):
    assert url_problem(url, server) == problem


# --- what a client that logs in by itself is given, and what comes of it ---

TOKEN = {"access_token": "a-good-token", "token_type": "Bearer"}


def machine(url):
    """A server for which a client logs in by itself."""
    settings = OAuthSettings(client_id="machine", client_secret="s" * 20, issuer=url, grant="client_credentials")
    return ServerSpec(name="liar", type="http", url=f"{url}/mcp", oauth=settings)


async def error_of_machine(url, tmp_path):
    """The error of a call, with what it says to do."""
    access = RemoteAccess(lambda _spec, text: text, logins=login_store(tmp_path))
    async with Fleet([machine(url)], access=access) as fleet:
        with pytest.raises(BridgeError) as caught:
            await call_tool(fleet, "liar", "any", {})
    assert "a-good-token" not in str(caught.value.record())
    return caught.value


@pytest.mark.parametrize(
    ("forbids", "wrong"),
    [(None, "check client_id, issuer and scopes"), ('Bearer error="insufficient_scope"', "add them to scopes")],
)
async def test_nobody_is_told_to_log_in_for_a_client_that_does_so_itself(tmp_path, forbids, wrong):
    with lying(pages={"/token": TOKEN}, forbids=forbids) as (url, _):
        error = await error_of_machine(url, tmp_path)
    assert error.code == "server_unauthorized"
    assert wrong in error.hint
    assert "servers login" not in str(error.record())


LIFETIMES = [-1, 1.5, "soon", 1 << 41, float("nan")]
TOKENS = ["", "a b", "a\r\nX-Other: 1", "a\0", "tök", 5, None, "a" * 200_000]


@pytest.mark.parametrize(
    "answer",
    [
        *(TOKEN | {"expires_in": each} for each in LIFETIMES),
        *(TOKEN | {"access_token": each} for each in TOKENS),
        TOKEN | {"token_type": "mac"},
        TOKEN | {"scope": ["a"]},
        TOKEN | {"refresh_token": {}},
        {"error": "server_error", "error_description": "a-good-token"},
        b"[" * 100_000,
        b'{"access_token": "\xff"}',
        b'{"access_token": "a-good-token", "token_type": "Bearer", "expires_in": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda answer: repr(answer)[:60],
)
async def test_what_is_no_token_is_sent_nowhere_and_said_to_be_none(tmp_path, answer):
    with lying(pages={"/token": answer}) as (url, asked):
        access = RemoteAccess(lambda _spec, text: text, logins=login_store(tmp_path))
        auth = open_auth(machine(url), access, httpx2.create_ssl_context())
        async with httpx2.AsyncClient(auth=auth) as http:
            with pytest.raises(BridgeError) as caught:
                await http.get(f"{url}/mcp")
    assert caught.value.code == "login_unavailable"
    assert "it has answered" in caught.value.message
    assert "a-good-token" not in str(caught.value.record())
    assert len([each for each in asked if each.endswith(" /mcp")]) == 1


class Quick(Visitor):
    """A person who has logged in as soon as the page is shown."""

    async def show(self, address):
        self.shown = parse_qs(urlsplit(address).query)
        answer = {"code": "c", "state": self.shown["state"][0]}
        threading.Thread(target=httpx2.get, args=(self.shown["redirect_uri"][0],), kwargs={"params": answer}).start()


TOKEN_PAGE = {"/token": {"access_token": "t", "token_type": "Bearer"}}


async def test_a_server_that_wants_a_token_for_its_first_message_alone_is_logged_in_to(tmp_path):
    asks = 'Bearer resource_metadata="{url}/custom", scope="read"'
    pages = TOKEN_PAGE | {RESOURCE: None}
    with lying(pages=pages, challenge=asks, streams=False) as (url, asked):
        pages["/custom"] = {"resource": f"{url}/mcp", "authorization_servers": [url]}
        # Found where it says, and not where RFC 9728 would have it.
        person = Quick()
        with pytest.raises(BridgeError, match=r"the server refuses the token \(401\)"):
            await logged_in(ServerSpec(name="liar", type="http", url=f"{url}/mcp"), tmp_path, person)
        assert person.shown["scope"] == ["read"]
        assert asked[:3] == ["GET /mcp", "POST /mcp", "GET /custom"]


async def test_a_server_that_forbids_its_first_message_is_not_logged_in_to(tmp_path):
    forbids = 'Bearer error="insufficient_scope"'
    with (
        lying(pages=TOKEN_PAGE, forbids=forbids, streams=False) as (url, _),
        pytest.raises(BridgeError, match=r"the server refuses the token \(403\)"),
    ):
        await logged_in(ServerSpec(name="liar", type="http", url=f"{url}/mcp"), tmp_path, Quick())


async def test_a_session_that_a_login_has_opened_is_ended(tmp_path):
    with lying(pages=TOKEN_PAGE, streams=False, session="s-1") as (url, asked):
        await logged_in(ServerSpec(name="liar", type="http", url=f"{url}/mcp"), tmp_path, Quick())
        assert [each for each in asked if each.endswith(" /mcp")] == ["GET /mcp", "POST /mcp", "DELETE /mcp"] * 2


async def test_a_login_that_is_interrupted_ends_the_session_that_it_has_opened():
    sent, asked = [], anyio.Event()

    class Client:
        async def send(self, request, **_):
            if request.method == "DELETE":
                asked.set()
                await anyio.lowlevel.checkpoint()
                await anyio.lowlevel.checkpoint()
            sent.append(request)
            return httpx2.Response(200, headers={"mcp-session-id": "s"} if request.method == "POST" else {})

    spec = ServerSpec(name="s", type="http", url="https://example.com/mcp")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server_probe.looked_at, spec, spec.url, {}, Client())
        await asked.wait()
        tasks.cancel_scope.cancel()
    assert [request.method for request in sent] == ["GET", "POST", "DELETE"]


@pytest.mark.parametrize("kind", ["http", "sse"])
@pytest.mark.parametrize("fails", [["GET"], ["POST"], ["GET", "POST"]])
async def test_a_server_that_answers_one_of_two_requests_is_looked_at(kind, fails):
    class Client:
        async def send(self, request, **_):
            if request.method in fails:
                raise UnreachableError(f"no {request.method}", was_sent=True)
            return httpx2.Response(202, headers={"x": request.method})

    spec = ServerSpec(name="s", type=kind, url="https://example.com/mcp")
    looked = server_probe.looked_at(spec, spec.url, {}, Client())
    if fails == ["GET", "POST"] or (kind == "sse" and "GET" in fails):
        with pytest.raises(UnreachableError, match="no GET"):
            await looked
    else:
        [answer] = await looked
        assert answer.headers["x"] not in fails


async def test_a_message_that_is_never_answered_is_waited_for_a_little(monkeypatch):
    monkeypatch.setattr(server_probe, "MESSAGE_SECONDS", 0.01)

    class Client:
        async def send(self, request, **_):
            if request.method == "POST":
                await anyio.sleep_forever()
            return httpx2.Response(405)

    spec = ServerSpec(name="s", type="http", url="https://example.com/mcp")
    assert [each.status_code for each in await server_probe.looked_at(spec, spec.url, {}, Client())] == [405]


async def test_a_configured_header_is_not_sent_beside_ours():
    sent = []

    class Client:
        async def send(self, request, **_):
            sent.append(request)
            return httpx2.Response(200, headers={"mcp-session-id": "theirs"})

    spec = ServerSpec(name="s", type="http", url="https://example.com/mcp")
    names = ("MCP-Protocol-Version", "Content-Type", "Mcp-Session-Id", "Accept", "AUTHORIZATION", "X-Own")
    await server_probe.looked_at(spec, spec.url, dict.fromkeys(names, "mine"), Client(), "token")
    for request in sent:
        fields = [name.lower() for name, _ in request.headers.raw]
        assert len(fields) == len(set(fields))
        theirs = {"x-own"} if request.method != "DELETE" else {"accept", "x-own"}
        assert {name for name, value in request.headers.items() if value == "mine"} == theirs
    assert [request.method for request in sent] == ["GET", "POST", "DELETE"]


@pytest.mark.parametrize("kind", ["openapi", "sse"])
async def test_what_speaks_no_streamable_http_gets_no_message_of_it(tmp_path, kind):
    with lying(pages=TOKEN_PAGE, streams=False) as (url, asked):
        await logged_in(ServerSpec(name="liar", type=kind, url=f"{url}/mcp"), tmp_path, Quick())
        assert "POST /mcp" not in asked
