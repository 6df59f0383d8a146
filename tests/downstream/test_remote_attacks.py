"""Hostile servers over HTTP: what they send to learn a credential, to have a call made twice, or to hold the bridge up."""

import asyncio
import base64
import contextlib
import html
import itertools
import json
import time
from dataclasses import replace
from urllib.parse import quote, unquote

import httpx2
import pytest
from downstream_calls import call_tool
from http_servers import ScriptedServer, remote, serving
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.configuration.oauth_settings import OAuthSettings
from mcp_bridge.downstream.http import http_client, remote_auth
from mcp_bridge.downstream.http.http_client import open_client, opened
from mcp_bridge.downstream.http.remote_auth import RemoteAccess, without_secrets
from mcp_bridge.downstream.oauth.authorization_client import AuthorizationClient
from mcp_bridge.downstream.oauth.login_errors import UnreachableError
from mcp_bridge.downstream.oauth.login_record import Login, keep_login
from mcp_bridge.downstream.oauth.login_store import LoginStore
from mcp_bridge.downstream.transports import http_transport
from mcp_bridge.downstream.transports.http_transport import HttpTransport
from mcp_bridge.errors import BridgeError
from mcp_bridge.fair_share import Tenant
from mcp_bridge.policy.secrets.secret_stores import LOGINS_FILE_NAME, SecretFile

# Far above what any of these takes; a test that runs into it hangs.
pytestmark = pytest.mark.timeout(60)

SECRET = "ghp-7Xq2LmV9sKwT4zRb8NcYdE"  # noqa: S105 - of this test alone


WORDS = "\x1b[31mmcp-bridge: ERROR\n" * 10_000
"""What a server says that wants to be taken for the bridge."""


async def text(fleet, **options):
    result = await call_tool(fleet, "remote", "act", **options)
    return result.content[0].text


async def failure(fleet, **options):
    with pytest.raises(BridgeError) as caught:
        await call_tool(fleet, "remote", "act", **options)
    return caught.value


def shown(error):
    """All that a sandbox or an operator can come to see of an error."""
    return f"{error!s} {error!r} {error.hint} {error.details} {error.private} {error.record()}"


# Credentials.


async def test_an_address_that_a_server_redirects_to_shows_no_credential(caplog):
    caplog.set_level("DEBUG")

    async def elsewhere(request, message, _number):
        if message["method"] != "tools/call":
            return None
        credential = request.headers["authorization"].removeprefix("Bearer ")
        return Response(status_code=307, headers={"location": f"https://elsewhere.example/{credential}/mcp"})

    async with (
        serving(ScriptedServer(elsewhere).app) as port,
        Fleet([remote(port, headers={"Authorization": f"Bearer {SECRET}"})]) as fleet,
    ):
        error = await failure(fleet)
    assert "https://elsewhere.example/[hidden]/mcp" in error.message
    assert SECRET not in shown(error)
    assert SECRET not in caplog.text


async def test_a_redirect_that_ends_the_start_shows_no_credential(caplog):
    async def elsewhere(request, _message, _number):
        credential = request.headers["x-api-key"]
        return Response(status_code=307, headers={"location": f"https://elsewhere.example/{credential}"})

    async with (
        serving(ScriptedServer(elsewhere).app) as port,
        Fleet([remote(port, headers={"X-Api-Key": SECRET})]) as fleet,
    ):
        error = await failure(fleet)
        status = fleet.server("remote").status()
    assert "elsewhere.example" in error.message
    assert SECRET not in f"{shown(error)} {status} {caplog.text}"


async def test_a_credential_is_hidden_that_comes_back_before_its_own_request_is_answered(monkeypatch):
    class Renewed(httpx2.Auth):
        """Another token for each request."""

        number = 0

        def auth_flow(self, request):
            self.number += 1
            request.headers["authorization"] = f"Bearer {SECRET}-{self.number}"
            yield request

    monkeypatch.setattr(http_client, "open_auth", lambda *_: Renewed())
    told = asyncio.Queue()

    async def withhold(request, message, _number):
        if message["method"] == "tools/call":
            await told.put(server.result(message, request.headers["authorization"]))
            await asyncio.sleep(5)

    async def announce(_request):
        async def events():
            yield f"data: {json.dumps(await told.get())}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    server = ScriptedServer(withhold)
    server.get = announce
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        assert await text(fleet) == "Bearer [hidden]"


async def test_a_credential_is_hidden_however_json_writes_it():
    credential = f'{SECRET}"\\/é'

    async def repeat(request, message, _number):
        if message["method"] != "tools/call":
            return None
        said = request.headers["x-api-key"]
        plain, escaped = json.dumps(said, ensure_ascii=False), json.dumps(said)
        body = json.dumps(server.result(message, "@")).replace('"@"', f"{plain[:-1]} {escaped[1:]}")
        return Response(body, media_type="application/json")

    server = ScriptedServer(repeat)
    async with serving(server.app) as port, Fleet([remote(port, headers={"X-Api-Key": credential})]) as fleet:
        assert await text(fleet) == "[hidden] [hidden]"


@pytest.mark.parametrize(
    "written",
    [
        lambda text: "".join(f"\\u{ord(letter):04X}" for letter in text),
        lambda text: json.dumps(text)[1:-1].replace("=", "\\u003d").replace("&", "\\u0026").replace("/", "\\/"),
        lambda text: json.dumps(json.dumps({"a": text}).replace("=", "\\u003d"))[1:-1],
        lambda text: quote(text, safe=""),
        lambda text: f"/login?next={quote(quote(text, safe=''), safe='')}",
        lambda text: html.escape(text).replace("=", "&#61;").replace("/", "&#x2F;"),
        lambda text: json.dumps(html.escape(text))[1:-1].replace("&", "\\u0026"),
        lambda text: json.dumps(text)[1:-1].rstrip("="),
    ],
    ids=["codes", "some-codes", "json-in-json", "address", "address-in-address", "html", "html-in-json", "no-padding"],
)
async def test_a_credential_is_hidden_whatever_escapes_its_server_writes_it_with(written):
    credential = f"{SECRET}/+&<=="

    async def repeat(request, message, _number):
        if message["method"] != "tools/call":
            return None
        body = json.dumps(server.result(message, "@")).replace("@", f"C:\\\\x \\n{written(credential)}\\n")
        return Response(body, media_type="application/json")

    server = ScriptedServer(repeat)
    async with serving(server.app) as port, Fleet([remote(port, headers={"X-Api-Key": credential})]) as fleet:
        said = await text(fleet)
    assert said.startswith("C:\\x \n")
    assert "[hidden]" in said
    assert "ghp" not in unquote(unquote(html.unescape(said)))


@pytest.mark.parametrize("header", ["Authorization", "X-Forwarded-Authorization"])
async def test_a_password_is_hidden_by_itself_unless_it_can_be_guessed(header):
    async def repeat(_request, message, _number):
        said = f"1234 {SECRET} me:{SECRET}"
        return JSONResponse(server.result(message, said)) if message["method"] == "tools/call" else None

    server = ScriptedServer(repeat)
    async with serving(server.app) as port:
        for password, told in ((SECRET, "1234 [hidden] [hidden]"), ("1234", f"1234 {SECRET} me:{SECRET}")):
            basic = base64.b64encode(f"me:{password}".encode()).decode()
            async with Fleet([remote(port, headers={header: f"Basic {basic}"})]) as fleet:
                assert await text(fleet) == told


async def test_an_address_that_is_cut_ends_with_no_part_of_a_credential():
    async def elsewhere(request, message, _number):
        if message["method"] != "tools/call":
            return None
        start = "https://elsewhere.example/" + "a" * (300 - 26 - 10)
        return Response(status_code=307, headers={"location": f"{start}{request.headers['x-api-key']}"})

    server = ScriptedServer(elsewhere)
    async with serving(server.app) as port, Fleet([remote(port, headers={"X-Api-Key": SECRET})]) as fleet:
        error = await failure(fleet)
    assert "aaa[hidden]" in error.message
    assert SECRET[:4] not in shown(error)


async def test_what_is_sent_to_this_machine_passes_no_proxy(monkeypatch):
    seen = []

    async def proxy(reader, writer):
        seen.append(await reader.read(1 << 16))
        writer.close()

    listening = await asyncio.start_server(proxy, "127.0.0.1", 0)
    there = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, there)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with (
        listening,
        serving(ScriptedServer().app) as port,
        Fleet([remote(port, headers={"Authorization": f"Bearer {SECRET}"})]) as fleet,
    ):
        assert await text(fleet) == "done"
    assert seen == []


async def refused_tokens(port, spec, settings, tmp_path):
    """The error of a request whose token couldn't be made."""
    spec = replace(spec, oauth=settings)
    store = LoginStore(SecretFile(tmp_path, LOGINS_FILE_NAME, "log in anew"), tmp_path)
    there = f"http://127.0.0.1:{port}"
    login = Login(
        server=spec.name,
        url=spec.url,
        client=OAuthClientInformationFull(client_id="bridge", token_endpoint_auth_method="none"),  # noqa: S106
        metadata=OAuthMetadata(issuer=there, authorization_endpoint=f"{there}/a", token_endpoint=f"{there}/token"),
        tokens=OAuthToken(access_token="a", refresh_token=PERCENT_SECRET, expires_in=1),  # noqa: S106
        made_at=0,
        rotates=True,
    )
    await keep_login(store, spec, login)
    access = RemoteAccess(lambda _spec, text: text, logins=store)
    auth = remote_auth.open_auth(spec, access, httpx2.create_ssl_context())
    async with httpx2.AsyncClient(auth=auth) as client:
        with pytest.raises(BridgeError) as caught:
            await client.get(spec.url)
    return caught.value


PERCENT_SECRET = f"{SECRET}/+="


@pytest.mark.parametrize("grant", ["authorization_code", "client_credentials"])
@pytest.mark.parametrize("key", ["error", "error_description"])
async def test_an_authorization_server_that_repeats_a_secret_has_it_in_no_error(tmp_path, grant, key):
    asked = []

    async def answer(request):
        if "oauth-protected-resource" in request.url.path:
            return JSONResponse({"resource": f"{there}/mcp", "authorization_servers": [there]})
        if "well-known" in request.url.path:
            return JSONResponse(
                {"issuer": there, "authorization_endpoint": f"{there}/a", "token_endpoint": f"{there}/token"}
            )
        if request.url.path == "/token":
            asked.append(await request.body())
            return JSONResponse({"error": "invalid_grant"} | {key: f"no {PERCENT_SECRET} here"}, status_code=400)
        return Response(status_code=401)

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    async with serving(app) as port:
        there = f"http://127.0.0.1:{port}"
        settings = None
        if grant == "client_credentials":
            settings = OAuthSettings(client_id="m", client_secret=PERCENT_SECRET, issuer=there, grant=grant)
        error = await refused_tokens(port, remote(port), settings, tmp_path)
    assert len(asked) == 1
    assert error.code == ("login_needed" if settings is None else "login_unavailable")
    assert SECRET not in shown(error)


# What is never sent twice, or too late.


async def test_a_call_that_nobody_waits_for_isnt_sent_again_when_the_server_takes_requests_again():
    async def busy(_request, message, number):
        if message["method"] == "tools/call" and number == 1:
            refused.set()
            return Response(status_code=429, headers={"retry-after": "1"})
        return None

    refused = asyncio.Event()
    server = ScriptedServer(busy)

    async def held(scope, receive, send):
        """As the server, which takes no cancellation."""
        if scope["type"] == "http" and scope["method"] == "POST":
            message = await receive()
            if b"notifications/cancelled" in message["body"]:
                await asyncio.sleep(10)

            async def again():
                return message

            await server.app(scope, again, send)
        else:
            await server.app(scope, receive, send)

    async with serving(held) as port, Fleet([remote(port)]) as fleet:
        call = asyncio.create_task(call_tool(fleet, "remote", "act"))
        await refused.wait()
        await asyncio.sleep(0.2)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        await asyncio.sleep(2)
        assert len(server.calls) == 1


async def test_an_answer_of_a_tool_that_speaks_of_a_session_isnt_a_reason_to_call_it_again():
    async def refuse(_request, message, _number):
        if message["method"] != "tools/call":
            return None
        error = {"code": -32000, "message": "The session is booked, but its room is not."}
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error}, status_code=400)

    server = ScriptedServer(refuse)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        error = await failure(fleet)
    assert error.code == "tool_failed"
    assert "its room is not" in error.message
    assert len(server.calls) == 1
    assert server.sessions == 1


# What is without end.


async def test_requests_of_a_server_without_end_hold_up_nobody():
    """The bridge answers each ping; the server takes no answer."""
    waiting = most = 0

    async def flood(_request):
        async def events():
            for number in range(30_000):
                yield f'data: {{"jsonrpc": "2.0", "id": {number}, "method": "ping"}}\n\n'
            await asyncio.sleep(20)

        return StreamingResponse(events(), media_type="text/event-stream")

    hostile = ScriptedServer()
    hostile.get = flood

    async def takes_no_answer(scope, receive, send):
        nonlocal waiting, most
        if scope["type"] == "http" and scope["method"] == "POST":
            message = await receive()
            if b'"result"' in message["body"]:
                waiting += 1
                most = max(most, waiting)
                await asyncio.sleep(20)

            async def again():
                return message

            await hostile.app(scope, again, send)
        else:
            await hostile.app(scope, receive, send)

    good = ScriptedServer()
    async with (
        serving(takes_no_answer) as bad_port,
        serving(good.app) as port,
        Fleet([remote(bad_port, name="hostile"), remote(port)]) as fleet,
    ):
        await fleet.server("hostile").tools()
        await fleet.server("remote").tools()
        slowest = 0.0
        ends = time.monotonic() + 5
        while time.monotonic() < ends:
            began = time.monotonic()
            await text(fleet)
            slowest = max(slowest, time.monotonic() - began)
        tasks = len(asyncio.all_tasks())
    assert most <= 50
    assert tasks < 500
    assert slowest < 2


async def test_a_server_pays_for_what_is_looked_at_of_its_messages(monkeypatch):
    """Messages full of escapes, in which credentials are looked for, hold up the others no longer than its share."""
    charged = []
    monkeypatch.setattr(Tenant, "charge", lambda _self, seconds: charged.append(seconds))
    clock = itertools.count()
    monkeypatch.setattr(http_transport, "thread_time", lambda: next(clock))

    async def answer(_request, message, _number):
        if message["method"] != "tools/call":
            return None
        said = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "%41" * 99}}
        events = [said] * 5 + [server.result(message)]
        return Response("".join(f"data: {json.dumps(each)}\n\n" for each in events), media_type="text/event-stream")

    server = ScriptedServer(answer)
    async with serving(server.app) as port, Fleet([remote(port, headers={"X-Api-Key": SECRET})]) as fleet:
        await fleet.server("remote").tools()
        charged.clear()
        assert await text(fleet) == "done"
    # One of the patched clock's seconds for each.
    assert charged.count(1) == 6


@pytest.mark.parametrize(
    ("method", "answer", "why"),
    [
        ("initialize", {"error": {"code": -32000, "message": WORDS}}, "it answered with the error -32000: "),
        ("tools/list", {"error": {"code": -32603, "message": WORDS}}, "it answered with the error -32603: "),
        (
            "initialize",
            {"result": {"protocolVersion": WORDS, "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}},
            "Unsupported protocol version",
        ),
    ],
    ids=["refused", "unlisted", "version"],
)
async def test_what_a_server_says_instead_of_starting_is_told_on_a_line_and_cut(method, answer, why):
    async def refuse(_request, message, _number):
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"]} | answer) if message["method"] == method else None

    async with serving(ScriptedServer(refuse).app) as port, Fleet([remote(port)]) as fleet:
        error = await failure(fleet)
    assert error.code == "server_start_failed"
    assert why in error.message
    assert error.message.isprintable()
    assert len(error.message) < 400


async def test_cookies_are_bounded():
    async def set_many(_request, message, number):
        if message["method"] != "tools/call":
            return None
        answer = JSONResponse(server.result(message))
        for each in range(20):
            answer.set_cookie(f"c{number}-{each}", "x" * 500)
        return answer

    server = ScriptedServer(set_many)
    async with serving(server.app, h11_max_incomplete_event_size=1 << 20) as port, Fleet([remote(port)]) as fleet:
        for _ in range(30):
            await text(fleet)
    longest = max(len(headers.get("cookie", "")) for _, _, headers in server.seen)
    assert 0 < longest < 32 << 10


class Chunks(httpx2.AsyncByteStream):
    """Chunks of which each is there at once."""

    def __init__(self, chunks):
        self._chunks = chunks

    async def __aiter__(self):
        for chunk in self._chunks:
            yield chunk


@pytest.mark.parametrize(
    ("kind", "chunks"),
    [("application/json", [b" "] * 500_000), ("text/event-stream", [b"retry:1\n\n" * 100_000])],
)
async def test_what_a_server_sends_in_small_parts_lets_others_have_their_turn(kind, chunks):
    turns = 0

    async def others():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    def answer(_request):
        return httpx2.Response(200, headers={"content-type": kind}, stream=Chunks(chunks))

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    task = asyncio.create_task(others())
    began = time.monotonic()
    async with (
        client,
        http_client.opened(
            client, "GET", "http://127.0.0.1/", headers={}, attempt=http_client.Attempt(), hide=str
        ) as response,
    ):
        begun = turns
        if kind == "application/json":
            async for _ in response.aiter_raw():
                pass
        else:
            transport = HttpTransport(remote(1), RemoteAccess(without_secrets), max_message=1 << 23, tenant=Tenant())
            async for _ in transport.events(response):
                pass
        had = turns - begun
    task.cancel()
    assert had > 5
    assert (time.monotonic() - began) / had < 0.1


async def test_a_stream_that_tells_nothing_is_charged_to_its_server_which_waits_for_its_turn():
    class Noting(Tenant):
        charged = turns = 0

        def charge(self, seconds):
            self.charged += seconds

        async def turn(self):
            self.turns += 1

    def answer(_request):
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Chunks([b":\n\r\n"] * 100))

    tenant = Noting()
    async with (
        httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client,
        http_client.opened(
            client, "GET", "http://127.0.0.1/", headers={}, attempt=http_client.Attempt(), hide=str, tenant=tenant
        ) as response,
    ):
        transport = HttpTransport(remote(1), RemoteAccess(without_secrets), max_message=1 << 23, tenant=tenant)
        assert [event async for event in transport.events(response)] == []
    assert tenant.charged == pytest.approx(100 * http_client.CHUNK_SECONDS + 300 * http_transport._LINE_SECONDS)
    assert tenant.turns == 100


@contextlib.asynccontextmanager
async def early_hints(few=0):
    """A server that sends interim responses without end, or a few and then its response; its port."""
    hint = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"

    connections = set()

    async def answer(reader, writer):
        connections.add(asyncio.current_task())
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(hint * few)
                while not few:
                    writer.write(hint * 100)
                    await writer.drain()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            # Not closed: that would wait for a client that reads no more.
            writer.transport.abort()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        # A transport is gone after the loop's next turn.
        await asyncio.sleep(0)


async def test_what_comes_before_a_response_is_bounded():
    async with early_hints() as port, open_client(remote(port), RemoteAccess(without_secrets)) as client:
        attempt = http_client.Attempt()
        with pytest.raises(http_client.RequestFailedError) as caught:
            async with opened(client, "GET", remote(port).url, headers={}, attempt=attempt, hide=str):
                pass
        assert caught.value.failure.kind == "lost"
        request = httpx2.Request("GET", remote(port).url)
        with pytest.raises(UnreachableError, match="the connection broke"):
            await AuthorizationClient(remote(port).url, client).send(request)
    async with early_hints(1000) as port, open_client(remote(port), RemoteAccess(without_secrets)) as client:
        # Of one connection, each response may have as much before it.
        for _ in range(5):
            async with opened(
                client, "GET", remote(port).url, headers={}, attempt=http_client.Attempt(), hide=str
            ) as response:
                assert await response.aread() == b"{}"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
            "broke off its answer: what it sent isn't HTTP, or isn't whole",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "didn't answer: what it sent isn't HTTP, or isn't whole"),
        (b"", "didn't answer: it closed the connection, or doesn't speak HTTP"),
    ],
)
async def test_a_part_of_an_answer_is_told_from_none(sent, reason):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with open_client(remote(port), RemoteAccess(without_secrets)) as client:
            attempt = http_client.Attempt()
            with pytest.raises((http_client.RequestFailedError, httpx2.HTTPError)) as caught:
                async with opened(client, "GET", remote(port).url, headers={}, attempt=attempt, hide=str) as response:
                    await response.aread()
    error = caught.value
    failure = (
        error.failure if isinstance(error, http_client.RequestFailedError) else http_client.failure_of(error, attempt)
    )
    assert (failure.kind, failure.reason) == ("lost", reason)


async def test_a_wait_of_a_thousand_digits_is_as_long_as_any():
    async def answer(_request, message, _number):
        if message["method"] != "tools/call":
            return None
        events = f"retry: {'9' * 4000}\ndata: {json.dumps(server.result(message))}\n\n"
        return Response(events, media_type="text/event-stream")

    server = ScriptedServer(answer)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        assert await text(fleet) == "done"
