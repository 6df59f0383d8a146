"""MCP over HTTP: which requests are answered, with what status, and what hostile or slow clients get."""

import asyncio
import base64
import contextlib
import itertools
import json
import sys
import tracemalloc
from types import SimpleNamespace

import anyio
import anyio.lowlevel
import httpx2
import mcp_types as types
import pytest
from bridge_fixtures import DEADLINE_SECONDS, until
from http_bridge import ACCEPT, kept_serving, serving
from http_servers import ScriptedServer, remote
from http_servers import serving as serving_app
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.server import _streamable_http_modern
from mcp.server.streamable_http import GET_STREAM_KEY
from sse_starlette.sse import EventSourceResponse

from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.server.http.rate_limits import client_site
from mcp_bridge.server.http.sessions import SessionRequests, note_begun
from mcp_bridge.server.http.stream_resumption import ReplayMemory, SessionEvents

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("whole_ledgers"), pytest.mark.xdist_group("endpoint")]

OLD, NEW = "2025-11-25", "2026-07-28"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "a-test", "version": "1"}},
}
META = {
    "io.modelcontextprotocol/protocolVersion": NEW,
    "io.modelcontextprotocol/clientInfo": {"name": "a-test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def modern(method, named=None, **params):
    """A request of 2026-07-28: its body, and its headers."""
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params | {"_meta": META}}
    headers = ACCEPT | {"mcp-protocol-version": NEW, "mcp-method": method}
    return body, headers | ({"mcp-name": named} if named else {})


def run(code):
    return modern("tools/call", "run_python", name="run_python", arguments={"code": code})


async def opened(http, **headers):
    """Open a session; the headers of its requests."""
    answer = await http.post("/mcp", json=INITIALIZE, headers=ACCEPT | headers)
    assert answer.status_code == 200, answer.text
    session = ACCEPT | {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": OLD}
    accepted = await http.post(
        "/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=session | headers
    )
    assert accepted.status_code == 202
    return session | headers


@pytest.fixture(scope="module")
def http_bridge(configure_for_module):
    """A bridge that answers with events, which tests leave as it was but for sessions of their own."""
    setup = configure_for_module(
        # A browser leaves the usual port out.
        http={"allowed_hosts": ["bridge.example.org"], "allowed_origins": ["https://app.example.org:443"]}
    )
    with kept_serving(setup) as bridge:
        yield bridge


@pytest.fixture(scope="module")
def json_bridge(configure_for_module):
    """A bridge that answers with JSON."""
    setup = configure_for_module(http={"json_answers": True})
    with kept_serving(setup) as bridge:
        yield bridge


@pytest.fixture(params=[False, True], ids=["events", "json"])
def json_answers(request):
    return request.param


@pytest.fixture
def answering(request, json_answers):
    """A bridge that answers with JSON, or with events."""
    return request.getfixturevalue("json_bridge" if json_answers else "http_bridge")


def code_of(answer):
    """The code of an error of the bridge's."""
    return answer.json()["error"]["data"]["code"]


# --- which requests are answered ---


async def test_it_says_that_it_is_alive_and_ready_and_of_other_paths_nothing(setup):
    async with serving(setup) as bridge, bridge.http() as http:
        assert (await http.get("/health")).json() == {"status": "alive"}

        async def ready():
            return (await http.get("/ready")).status_code == 200

        await until(ready)
        for path in ("/", "/mcp/", "/%2e%2e/etc/passwd", "/metrics", "/.well-known/x"):
            answer = await http.get(path)
            assert (answer.status_code, code_of(answer)) == (404, "unknown_path"), path
        assert (await http.put("/health")).status_code == 404


async def test_a_bridge_that_cannot_be_opened_is_alive_and_not_ready_and_says_why_to_callers(configure):
    setup = configure()
    (setup.state_dir / FILE_NAME).write_bytes(b"no ledger" * 1000)
    async with serving(setup) as bridge, bridge.http() as http:
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/ready")).status_code == 503
        body, headers = run("1")
        result = (await http.post("/mcp", json=body, headers=headers)).json()["result"]
        assert result["isError"]
        assert "Nothing was run" in result["content"][0]["text"]


async def test_both_eras_are_answered_with_events_or_with_json_as_configured(answering, json_answers):
    for mode in ("legacy", NEW, "auto"):
        async with answering.client(mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["run_python"]
            result = await client.call_tool("run_python", {"code": "print('hi')\n6 * 7"})
            assert result.content[0].text == "hi\n42"
    async with answering.http() as http:
        session = await opened(http)
        answer = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=session)
        kind = "application/json" if json_answers else "text/event-stream"
        assert answer.headers["content-type"].startswith(kind)


HOSTS = [
    ("127.0.0.1", 200),
    ("127.0.0.1:1", 200),
    ("[::1]:8350", 200),
    ("localhost:8350", 200),
    ("LOCALHOST", 200),
    ("bridge.example.org", 200),
    ("evil.example.org", 421),
    ("localhost.evil.example.org", 421),
    ("127.0.0.1.evil.example.org", 421),
    ("127.0.0.1@evil.example.org", 421),
    ("evil.example.org#127.0.0.1", 421),
    ("127.0.0.1:8350:8350", 421),
    ("localhost:evil", 421),
    ("", 421),
    ("\xff", 421),
]


async def test_names_that_are_not_its_own_are_refused(http_bridge):
    for host, status in HOSTS:
        async with http_bridge.connection() as (reader, writer):
            head = f"GET /health HTTP/1.1\r\nConnection: close\r\nHost: {host}\r\n\r\n"
            writer.write(head.encode("latin-1"))
            said = await asyncio.wait_for(reader.read(), DEADLINE_SECONDS)
        # h11 refuses what isn't a header at all.
        assert int(said.split()[1]) in ({421, 400} if status == 421 else {status}), host


ORIGINS = [
    (None, 200),
    ("http://127.0.0.1:PORT", 200),
    ("https://127.0.0.1:PORT", 200),
    ("https://app.example.org", 200),
    ("http://127.0.0.1:1", 403),
    ("http://localhost:PORT", 403),
    ("https://evil.example.org", 403),
    ("https://app.example.org.evil.example.org", 403),
    ("null", 403),
    ("file://", 403),
]


TARGETS = [
    ("http://127.0.0.1/health", "bridge.example.org", 200),
    ("http://bridge.example.org:8350/health?x=//", "localhost", 200),
    ("https://localhost/health", "evil.example.org", 200),
    ("HTTP://localhost/health", "evil.example.org", 200),
    ("Https://evil.example.org/health", "localhost", 421),
    ("http://evil.example.org/health", "localhost", 421),
    ("http:///health", "localhost", 421),
    ("http://localhost", "localhost", 404),
]


async def test_a_target_may_be_a_whole_address_whose_host_counts(http_bridge):
    for target, host, status in TARGETS:
        reader, writer = await asyncio.open_connection("127.0.0.1", http_bridge.port)
        writer.write(f"GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
        with anyio.fail_after(DEADLINE_SECONDS):
            assert int((await reader.read()).split()[1]) == status, target
        writer.close()


async def test_pages_of_other_origins_are_refused(http_bridge):
    async with http_bridge.http() as http:
        for origin, status in ORIGINS:
            await asked_by_a_page(http_bridge, http, origin, status)


async def asked_by_a_page(http_bridge, http, origin, status):
    given = {} if origin is None else {"origin": origin.replace("PORT", str(http_bridge.port))}
    answer = await http.post("/mcp", json=INITIALIZE, headers=ACCEPT | given)
    assert answer.status_code == status
    listed = origin == "https://app.example.org"
    assert ("access-control-allow-origin" in answer.headers) == listed
    if listed:
        exposed = answer.headers["access-control-expose-headers"].lower()
        assert "mcp-session-id" in exposed
        asked = {"access-control-request-method": "POST", "access-control-request-headers": "mcp-session-id"}
        # A page of the internet asks so before it reaches a private network.
        private = {"access-control-request-private-network": "true"}
        preflight = await http.options("/mcp", headers=given | asked | private)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-private-network"] == "true"
        assert preflight.headers["access-control-allow-origin"] == origin


# --- what is no request ---

NOT_A_REQUEST = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"1e999999",
    b"[1]",
    b'{"jsonrpc":"2.0"}',
    b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":7}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_python","arguments":"x"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":[]}}',
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"\\ud800"}}',
    b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}',
    b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"jsonrpc":"2.0","id":1,"result":{}}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}',
    b"\xff\xfe{}",
    b"\x00",
    b'{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"\\ud800"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///etc/passwd"}}',
]


VERSIONS = [None, OLD, NEW, "1999-01-01", "\xff", "x" * 5000]


async def test_what_is_no_request_has_no_500_and_leaves_a_working_server(http_bridge):
    async with http_bridge.http() as http:
        session = await opened(http)
        for version, body in itertools.product(VERSIONS, NOT_A_REQUEST):
            given = {} if version is None else {b"mcp-protocol-version": version.encode("latin-1")}
            for headers in (ACCEPT, session, ACCEPT | {"mcp-session-id": "no-such"}):
                raw = {name.encode(): value.encode() for name, value in headers.items()} | given
                with anyio.fail_after(20):
                    answer = await http.post("/mcp", content=body, headers=list(raw.items()))
                assert answer.status_code < 500, (body[:80], headers, answer.text)
                assert "Traceback" not in answer.text
                assert "site-packages" not in answer.text
        body, headers = run("6 * 7")
        assert (await http.post("/mcp", json=body, headers=headers)).json()["result"]["content"][0]["text"] == "42"
    assert b"Traceback" not in http_bridge.logged


METHODS = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW"]


async def test_other_methods_have_no_500(http_bridge):
    async with http_bridge.http() as http:
        headers = ({}, ACCEPT, {"mcp-protocol-version": NEW}, {"last-event-id": "1-2"}, {"mcp-session-id": "x"})
        for method, given in itertools.product(METHODS, headers):
            answer = await http.request(method, "/mcp", headers=given)
            assert 400 <= answer.status_code < 500, (method, given)


NOT_HTTP = [
    b"rubbish\r\n\r\n",
    b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
]


async def test_what_is_no_http_is_refused_and_the_connection_closed(http_bridge):
    for sent in NOT_HTTP:
        async with http_bridge.connection() as (reader, writer):
            with contextlib.suppress(ConnectionError):
                writer.write(sent)
                writer.write_eof()
                said = await asyncio.wait_for(reader.read(), DEADLINE_SECONDS)
                assert said == b"" or 400 <= int(said.split()[1]) < 500 or b"HTTP/1.1 505" in said, (sent[:80], said)
    assert b"Traceback" not in http_bridge.logged


@pytest.mark.parametrize(
    ("version", "lengths"),
    [
        ("1.1", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
        ("1.1", "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n"),
        ("1.1", "Content-Length: 5\r\nX: y\r\nTRANSFER-ENCODING:  Chunked\r\n"),
        ("1.0", "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n"),
    ],
)
async def test_a_request_with_two_lengths_is_refused_with_all_that_follows(http_bridge, version, lengths):
    """A proxy may go by the other one: what is a body to it must not be another's request here."""
    request = f"POST /mcp HTTP/{version}\r\nHost: localhost\r\n{lengths}\r\n0\r\n\r\n"
    async with http_bridge.connection() as (reader, writer):
        writer.write(f"{request}GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        said = await asyncio.wait_for(reader.read(), DEADLINE_SECONDS)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert said.count(b"HTTP/1.1") == 1
    assert b"Traceback" not in http_bridge.logged


# --- bounds ---


async def test_a_body_over_the_limit_is_refused_declared_or_not(configure):
    setup = configure(http={"max_body_size": "64k"})
    async with serving(setup) as bridge, bridge.http() as http:

        async def chunks():
            for _ in range(100):
                yield b" " * 1024

        for content in (b" " * 100_000, chunks()):
            answer = await http.post("/mcp", content=content, headers=ACCEPT)
            assert (answer.status_code, code_of(answer)) == (413, "request_too_large")
        body, headers = run("1")
        body["params"]["arguments"]["code"] = "6 * 7" + " " * 50_000
        assert (await http.post("/mcp", json=body, headers=headers)).json()["result"]["content"][0]["text"] == "42"


async def test_a_client_that_sends_slowly_is_cut(configure):
    setup = configure(http={"read_timeout": 1.0})
    async with serving(setup) as bridge:
        beginnings = {
            b"": 408,
            b"POST /mcp HT": 408,
            b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX:": 408,
            b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{": 408,
        }

        async def slow(beginning, status):
            async with bridge.connection() as (reader, writer):
                writer.write(beginning)
                said = asyncio.ensure_future(reader.readline())
                # A byte now and then doesn't extend the time.
                while not said.done():
                    with contextlib.suppress(ConnectionError):
                        writer.write(b"x" if beginning else b"")
                        await writer.drain()
                    await anyio.sleep(0.2)
                assert int((await said).split()[1]) == status, beginning

        with anyio.fail_after(DEADLINE_SECONDS):
            async with anyio.create_task_group() as tasks:
                for beginning, status in beginnings.items():
                    tasks.start_soon(slow, beginning, status)


async def test_a_client_that_does_not_read_is_cut_and_holds_up_nobody(configure):
    setup = configure(http={"write_timeout": 1.0}, max_output_chars=8_000_000)
    async with serving(setup) as bridge:
        body, headers = run("print('x' * 6_000_000)")
        content = json.dumps(body).encode()
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        async with bridge.connection() as (_, writer):
            transport = writer.transport
            transport.pause_reading()
            writer.write(
                f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n{head}\r\n".encode()
                + content
            )
            await writer.drain()
            # The server cuts the connection, of which nothing arrives here before something is read.
            await until(lambda: b"CUT" in _connections(bridge, transport), every=0.2)
        async with bridge.client() as client:
            assert (await client.call_tool("run_python", {"code": "1 + 1"})).content[0].text == "2"


def _connections(bridge, transport):
    """CUT once the server has no connection any more from this one's address."""
    from pathlib import Path

    port = transport.get_extra_info("sockname")[1]
    wanted = f":{bridge.port:04X} 0100007F:{port:04X} 01"
    return b"" if any(wanted in line for line in Path("/proc/net/tcp").read_text().splitlines()) else b"CUT"


@pytest.mark.parametrize(
    ("host", "site"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "no address"),
    ],
)
def test_who_has_a_site_of_ipv6_has_no_more_connections_than_who_has_an_address(host, site):
    assert client_site(host) == site


async def test_connections_are_bounded_and_free_again_when_they_end(configure):
    setup = configure(http={"max_connections": 4})
    async with serving(setup) as bridge:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(4):
                await stack.enter_async_context(bridge.connection())
            async with bridge.connection() as (reader, _):
                said = await asyncio.wait_for(reader.read(), DEADLINE_SECONDS)
                assert said.startswith(b"HTTP/1.1 503 ")

        async def answers():
            try:
                async with bridge.http() as http:
                    return (await http.get("/health")).status_code == 200
            except httpx2.TransportError:
                return False

        await until(answers)


async def test_sessions_are_bounded_end_when_idle_and_when_deleted(configure):
    setup = configure(http={"max_sessions_per_principal": 2, "session_idle_timeout": 2.0})
    async with serving(setup) as bridge, bridge.http() as http:
        first, second = await opened(http), await opened(http)
        assert first["mcp-session-id"] != second["mcp-session-id"]
        none_left = await http.post("/mcp", json=INITIALIZE, headers=ACCEPT)
        assert (none_left.status_code, code_of(none_left)) == (503, "too_many_clients")
        assert "max_sessions_per_principal" in none_left.text
        assert (await http.delete("/mcp", headers=first)).status_code == 200
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        ended = await http.post("/mcp", json=listing, headers=first)
        assert (ended.status_code, code_of(ended)) == (404, "unknown_http_session")
        third = await opened(http)

        async def forgotten():
            await anyio.sleep(2.2)
            answer = await http.post("/mcp", json=listing, headers=third)
            return answer.status_code == 404 and code_of(answer) == "unknown_http_session"

        await until(forgotten)


async def test_a_session_that_there_is_not_is_refused_with_a_code_and_clients_begin_another(answering):
    bridge = answering
    async with bridge.http() as http:
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        unknown = ACCEPT | {"mcp-session-id": "0" * 32, "mcp-protocol-version": OLD}
        for method, body in (("POST", listing), ("POST", INITIALIZE), ("GET", None), ("DELETE", None)):
            answer = await http.request(method, "/mcp", json=body, headers=unknown)
            assert (answer.status_code, code_of(answer)) == (404, "unknown_http_session"), method
            assert types.JSONRPCError.model_validate(answer.json()).error.code == types.INVALID_REQUEST
            assert answer.json()["id"] == (None if body is None else body["id"])
            assert "send initialize" in answer.json()["error"]["message"]
        # A request of 2026-07-28 stands alone, whatever its client has left of a session.
        body, headers = modern("tools/list")
        assert (await http.post("/mcp", json=body, headers=headers | {"mcp-session-id": "0" * 32})).status_code == 200
        # The SDK's client is told why, and its next session works.
        sessions = []

        async def note(answer):
            sessions.append(answer.headers.get("mcp-session-id"))

        async with httpx2.AsyncClient(timeout=DEADLINE_SECONDS, event_hooks={"response": [note]}) as noted:
            async with Client(streamable_http_client(bridge.url, http_client=noted), mode="legacy") as client:
                assert (await http.delete("/mcp", headers=ACCEPT | {"mcp-session-id": sessions[0]})).status_code == 200
                with pytest.raises(MCPError, match="send initialize") as error:
                    await client.list_tools()
                assert error.value.error.data == {"code": "unknown_http_session"}
            async with Client(streamable_http_client(bridge.url, http_client=noted), mode="legacy") as client:
                assert (await client.list_tools()).tools


async def test_an_initialize_that_is_refused_opens_no_session_and_ends_nobodys(configure, json_answers):
    setup = configure(http={"max_sessions": 2, "json_answers": json_answers}, principals={"anna": {}, "bert": {}})
    anna, bert = ({"authorization": f"Bearer {made(setup, name)}"} for name in ("anna", "bert"))
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    async with serving(setup) as bridge, bridge.http() as http:
        sessions = [await opened(http, **anna) for _ in range(2)]
        for body, given, status in (
            (INITIALIZE, {"accept": "text/html"}, 406),
            (INITIALIZE, {"accept": "text/event-stream"}, 406),
            (INITIALIZE, {"content-type": "text/plain"}, 415),
            (INITIALIZE | {"params": {}}, {}, 400),
            ({"jsonrpc": "2.0", "id": 1, "method": "initialize"}, {}, 400),
        ):
            failed = await http.post("/mcp", json=body, headers=ACCEPT | bert | given)
            assert (failed.status_code, "mcp-session-id" in failed.headers) == (status, False), failed.text
            if status == 400:
                error = failed.json()
                assert (error["id"], error["error"]["code"]) == (body["id"], -32602)
                assert "protocolVersion" in error["error"]["message"]
        for session in sessions:
            assert (await http.post("/mcp", json=ping, headers=session)).status_code == 200
        # One that isn't does.
        await opened(http, **bert)


async def test_a_request_that_is_cut_before_it_is_handed_on_is_not_awaited():
    requests = SessionRequests()

    async def receive():
        return {"type": "http.request", "body": json.dumps(INITIALIZE).encode(), "more_body": False}

    async def send(_):
        pass

    async def handler(scope, _, send):
        # The stream of an answer begins before the message is handed on.
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["is_handed_on"]:
            context = SimpleNamespace(request=SimpleNamespace(scope=scope), request_id=INITIALIZE["id"])
            await note_begun(context, answer)
        came.set()
        await anyio.sleep_forever()

    async def answer(_):
        pass

    for is_handed_on in (False, True):
        came = anyio.Event()
        async with anyio.create_task_group() as tasks:
            scope = {"type": "http", "method": "POST", "is_handed_on": is_handed_on}
            tasks.start_soon(requests.handle, handler, scope, receive, send)
            await came.wait()
            assert requests.is_awaited
            tasks.cancel_scope.cancel()
        assert requests.is_awaited == is_handed_on
    before = requests.used_at
    requests.answered(str(INITIALIZE["id"]))
    assert not requests.is_awaited
    # Its client may be on the way back to the answer.
    assert requests.used_at > before


async def test_what_opens_no_session_is_refused_and_ends_nobodys(configure):
    setup = configure(http={"max_sessions": 2}, principals={"anna": {}, "bert": {}})
    anna, bert = ({"authorization": f"Bearer {made(setup, name)}"} for name in ("anna", "bert"))
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    async with serving(setup) as bridge, bridge.http() as http:
        sessions = [await opened(http, **anna) for _ in range(2)]
        for method, body, status in (
            *((each, None, 400) for each in ("GET", "DELETE")),
            *((each, None, 405) for each in ("HEAD", "PUT", "TRACE", "OPTIONS")),
            *(("POST", each, 400) for each in (ping, {"jsonrpc": "2.0", "method": "notifications/initialized"})),
        ):
            answer = await http.request(method, "/mcp", json=body, headers=ACCEPT | bert)
            assert (answer.status_code, "mcp-session-id" in answer.headers) == (status, False), method
            assert (answer.headers.get("allow") == "GET, POST, DELETE") == (status == 405)
        for session in sessions:
            assert (await http.post("/mcp", json=ping, headers=session)).status_code == 200


async def test_sessions_of_all_are_bounded_and_who_comes_too_late_is_told_when_to_try_again(configure):
    async with serving(configure(http={"max_sessions": 1})) as bridge, bridge.http() as http:
        first = await opened(http)
        none_left = await http.post("/mcp", json=INITIALIZE, headers=ACCEPT)
        assert (none_left.status_code, code_of(none_left)) == (503, "too_many_clients")
        assert int(none_left.headers["retry-after"]) > 0
        assert "http.max_sessions allows" in none_left.text
        # Who has a session goes on with it.
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert (await http.post("/mcp", json=listing, headers=first)).status_code == 200
        assert (await http.delete("/mcp", headers=first)).status_code == 200
        await opened(http)


async def test_who_has_the_most_sessions_makes_room_for_another_principal(configure):
    setup = configure(http={"max_sessions": 4}, principals={"anna": {}, "bert": {}, "carl": {}})
    anna, bert, carl = ({"authorization": f"Bearer {made(setup, name)}"} for name in ("anna", "bert", "carl"))
    async with serving(setup) as bridge, bridge.http() as http:
        working, listening, unused, used = [await opened(http, **anna) for _ in range(4)]
        await begun(http, working, "import time\nprogress(0, 1, 'running')\ntime.sleep(100)", number=9)
        async with http.stream("GET", "/mcp", headers=listening) as stream:
            assert stream.status_code == 200

            async def is_open(session):
                body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
                answer = await http.post("/mcp", json=body, headers=session)
                assert answer.status_code == 200 or code_of(answer) == "unknown_http_session", answer.text
                return answer.status_code == 200

            async def has_none_left(headers):
                answer = await http.post("/mcp", json=INITIALIZE, headers=ACCEPT | headers)
                return (answer.status_code, code_of(answer)) == (503, "too_many_clients")

            assert await has_none_left(anna)
            assert await is_open(used)
            # What was used the longest ago goes first.
            first = await opened(http, **bert)
            assert not await is_open(unused)
            assert await is_open(used)
            second = await opened(http, **bert)
            assert not await is_open(used)
            # Now both have as many, and neither gets more.
            assert await has_none_left(anna)
            assert await has_none_left(bert)
            assert await is_open(working)
            assert await is_open(listening)
            assert await is_open(first)
            # Of a third, what only listens ends; what has a call doesn't.
            await begun(http, first, "import time\nprogress(0, 1, 'running')\ntime.sleep(100)", number=9)
            await begun(http, second, "import time\nprogress(0, 1, 'running')\ntime.sleep(100)", number=9)
            await opened(http, **carl)
            with anyio.fail_after(DEADLINE_SECONDS):
                async for _ in stream.aiter_bytes():
                    pass
        assert not await is_open(listening)
        assert await is_open(working)


@pytest.mark.parametrize(("method", "streams"), [("POST", 0), ("GET", 1)])
async def test_a_request_that_is_answered_and_not_over_yet_is_no_open_stream(method, streams):
    requests, answered, over = SessionRequests(), anyio.Event(), anyio.Event()

    async def receive():
        return {"type": "http.request", "body": json.dumps(INITIALIZE).encode(), "more_body": False}

    async def send(_):
        pass

    async def handler(_, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        requests.answered("0")
        answered.set()
        await over.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(requests.handle, handler, {"type": "http", "method": method}, receive, send)
        await answered.wait()
        # Its client may have gone on, and another may need room.
        assert (requests.streams, requests.is_awaited) == (streams, False)
        over.set()
    assert (requests.streams, requests.is_awaited) == (0, False)


@pytest.mark.parametrize("number", [None, 1.5, True, [1], {}])
async def test_a_request_whose_id_is_none_is_refused_and_not_taken_for_a_notification(answering, number):
    async with answering.http() as http:
        session = await opened(http)
        modern_call, headers = run("1")
        for body, given in ((call("1", number), session), (INITIALIZE | {"id": number}, ACCEPT)):
            answer = await http.post("/mcp", json=body, headers=given)
            assert (answer.status_code, code_of(answer)) == (400, "bad_argument")
            assert answer.json()["error"]["code"] == -32600
        assert (await http.post("/mcp", json=modern_call | {"id": number}, headers=headers)).status_code == 400
        if number is None:
            # Of a notification it is none, as some serializers write it.
            said = {"jsonrpc": "2.0", "id": None, "method": "notifications/initialized"}
            assert (await http.post("/mcp", json=said, headers=session)).status_code == 202


async def test_a_batch_and_an_unknown_version_are_refused_in_plain_words(answering):
    async with answering.http() as http:
        session = await opened(http)
        batch = await http.post("/mcp", json=[call("1", 3)], headers=session | {"mcp-protocol-version": "2025-03-26"})
        unknown = await http.post("/mcp", json=call("1", 3), headers=session | {"mcp-protocol-version": "1999-01-01"})
        for answer, said in ((batch, "Batches"), (unknown, "Known are 2024-11-05, 2025-03-26")):
            assert (answer.status_code, code_of(answer)) == (400, "bad_argument")
            assert said in answer.json()["error"]["message"]
            assert "pydantic" not in answer.text


UNREADABLE = {
    "a huge integer": (b'{"jsonrpc":"2.0","id":2,"method":"ping","params":{"x":' + b"9" * 5000 + b"}}", -32700, 2),
    "deep": (b'{"jsonrpc":"2.0","id":2,"method":"ping","params":{"x":' + b"[" * 3000 + b"]" * 3000 + b"}}", -32700, 2),
    "not UTF-8": (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":{"x":"\xff"}}', -32700, "a"),
    "a surrogate": (b'{"jsonrpc":"2.0","id":2,"method":"ping","params":{"x":"\\ud83d"}}', -32600, 2),
    "no JSON": (b"{not json", -32700, None),
    "nothing": (b"", -32700, None),
    "no message": (b"{}", -32600, None),
    "params as a list": (b'{"jsonrpc":"2.0","id":2,"method":"ping","params":[1]}', -32600, 2),
}


async def test_what_cannot_be_read_is_refused_with_its_id_and_half_an_emoji_is_told_to_the_model(answering):
    half = (
        b'{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_python","arguments":{"code":"\\ud83d"}}}'
    )
    async with answering.http() as http:
        session = await opened(http)
        for name, (body, code, number) in UNREADABLE.items():
            answer = await http.post("/mcp", content=body, headers=session)
            assert answer.status_code == 400, name
            assert (answer.json()["error"]["code"], answer.json()["id"]) == (code, number), name
            modern_answer = await http.post("/mcp", content=body, headers=run("1")[1])
            assert modern_answer.status_code == 400, name
        told = await http.post("/mcp", content=half, headers=session)
        assert (told.status_code, told.json()["id"], told.json()["result"]["isError"]) == (200, 2, True)
        assert told.json()["result"]["content"][0]["text"].startswith("[bad_text] ")
        body, headers = run("\ud83d")
        told = await http.post("/mcp", content=json.dumps(body), headers=headers)
        assert told.json()["result"]["content"][0]["text"].startswith("[bad_code] ")
        # An answer with one counts, and so does a message after a byte order mark.
        said = b'\xef\xbb\xbf{"jsonrpc":"2.0","id":99,"result":{"x":"\\ud83d"}}'
        assert (await http.post("/mcp", content=said, headers=session)).status_code == 202


# --- streams ---


def events(text):
    """The events of a stream: their ids, and their messages."""
    found = []
    for part in text.replace("\r\n", "\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in part.splitlines() if ": " in line and not line.startswith(":"))
        if "id" in fields:
            found.append((fields["id"], json.loads(fields["data"]) if fields.get("data") else None))
    return found


async def begun(http, session, code, number=5):
    """Call run_python, and break the connection at the first event; the event's id."""
    params = {"name": "run_python", "arguments": {"code": code}, "_meta": {"progressToken": 1}}
    body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    async with http.stream("POST", "/mcp", json=body, headers=session) as answer:
        text = ""
        async for part in answer.aiter_text():
            text += part
            if found := events(text):
                return found[0][0]
    raise AssertionError(text)


async def test_a_broken_stream_is_resumed_and_nothing_is_lost_or_done_twice(http_bridge):
    async with http_bridge.http() as http:
        session = await opened(http)
        code = "import time\nfor n in range(5):\n    progress(n, 5, f'part {n}')\n    time.sleep(0.2)\nprint('done')"
        last = await begun(http, session, code)
        seen = []
        # Resumed at once, in the midst, and after the end.
        for cut in (1, 2, 100):
            async with http.stream("GET", "/mcp", headers=session | {"last-event-id": last}) as answer:
                text = ""
                async for part in answer.aiter_text():
                    text += part
                    if len(events(text)) >= cut:
                        break
            found = events(text)
            seen += found[:cut]
            last = seen[-1][0]
        told = [message["params"]["message"] for _, message in seen if message.get("method", "").endswith("progress")]
        assert [one for one in told if one.startswith("part")] == [f"part {n}" for n in range(5)]
        answers = [message["result"] for _, message in seen if "result" in message]
        assert [answer["content"][0]["text"] for answer in answers] == ["done"]
        assert len({one for one, _ in seen}) == len(seen)


async def test_events_are_their_sessions_own(http_bridge):
    async with http_bridge.http() as http:
        mine, other = await opened(http), await opened(http)
        last = await begun(http, mine, "print('mine' + 'MARK')\nprogress(1, 2, 'MARK')")
        number, _, event = last.partition("-")
        for guess in (last, f"{number}-0", f"{number}-{int(event) - 1}", "1-1", "0-0", "x", "9" * 400, "-", "1"):
            with anyio.move_on_after(1):
                async with http.stream("GET", "/mcp", headers=other | {"last-event-id": guess}) as answer:
                    assert answer.status_code in (200, 400)
                    assert "MARK" not in "".join([part async for part in answer.aiter_text()])
        async with http.stream("GET", "/mcp", headers=mine | {"last-event-id": last}) as answer:
            assert "mineMARK" in "".join([part async for part in answer.aiter_text()])


async def test_of_many_events_the_newest_are_kept(configure):
    setup = configure(http={"replay_size": "64k"}, max_output_chars=5000)
    async with serving(setup) as bridge, bridge.http() as http:
        session = await opened(http)
        first = await begun(http, session, "for n in range(3):\n    progress(n, 3, 'x' * 3000)\nprint('last')")
        for number in range(6, 30):
            params = {"name": "run_python", "arguments": {"code": "print('y' * 4000)"}}
            body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            assert "yyyy" in (await http.post("/mcp", json=body, headers=session)).text
        async with http.stream("GET", "/mcp", headers=session | {"last-event-id": first}) as answer:
            text = "".join([part async for part in answer.aiter_text()])
        # The call was made; its client is told so, and which execution has what it gave.
        [(_, lost)] = events(text)
        assert (lost["id"], lost["error"]["data"]["code"]) == (5, "events_lost")
        assert lost["error"]["data"]["execution"] in lost["error"]["message"]
        shown = json.loads(setup.run("execution", "show", lost["error"]["data"]["execution"], "--json").stdout)
        assert shown["status"] == "success"


async def test_an_answer_larger_than_what_is_kept_is_resumed_before_and_after_there_is_one(http_bridge):
    code = (
        "import time\nprogress(1, 2, "
        "'begun')\ntime.sleep(0.5)\nb'\\x89PNG\\r\\n\\x1a\\n\\0\\0\\0\\rIHDR\\0\\0\\0\\1\\0\\0\\0\\1' + "
        "bytes(1_999_984)"
    )
    async with http_bridge.http() as http:
        session = await opened(http)
        last = await begun(http, session, code)
        for _ in range(2):
            async with http.stream("GET", "/mcp", headers=session | {"last-event-id": last}) as answer:
                found = events("".join([part async for part in answer.aiter_text()]))
            content = found[-1][1]["result"]["content"]
            assert [len(block["data"]) for block in content if block["type"] == "image"] == [2666680]
            # Small answers after it don't take its place.
            assert "42" in (await http.post("/mcp", json=call("42", 6), headers=session)).text


async def test_a_dropped_answer_leaves_an_error_for_who_waits_and_who_comes_later():
    memory = ReplayMemory(10_000, total=50_000)
    kept = SessionEvents(memory)
    told = []

    async def keep(event):
        told.append(event.message)

    def answer(number, size):
        return types.JSONRPCResponse(jsonrpc="2.0", id=number, result={"content": "x" * size})

    begun = [await kept.store_event(str(number), None) for number in range(3)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kept.replay_events_after, begun[0], keep)
        await anyio.lowlevel.checkpoint()
        # More than all sessions may keep: gone at once.
        await kept.store_event("0", answer(0, 100_000))
    for number in (1, 2):
        # Of two large ones, the newer is kept.
        await kept.store_event(str(number), answer(number, 20_000))
        await kept.replay_events_after(begun[number], keep)
    await kept.replay_events_after(begun[1], keep)
    assert [(message.id, isinstance(message, types.JSONRPCResponse)) for message in told] == [
        (0, False),
        (1, True),
        (2, True),
        (1, False),
    ]
    assert kept.is_known(begun[0])


async def test_what_is_no_event_of_the_session_is_refused_and_a_client_gives_up(answering):
    async with answering.http() as http:
        session = await opened(http)
        for nonsense in ("1-999", "x", "-", "", "0-0", "1-2-3"):
            answer = await http.get("/mcp", headers=session | {"last-event-id": nonsense})
            assert (answer.status_code, code_of(answer)) == (400, "events_lost"), nonsense
        assert (await http.post("/mcp", json=call("1", 4), headers=session)).status_code == 200


# --- cancellation ---


async def test_requests_that_are_never_answered_are_forgotten():
    """What a client cancels gets no answer; its ids are as long as the client likes."""
    events = SessionEvents(ReplayMemory(1 << 20))
    own = await events.store_event(GET_STREAM_KEY, None)
    tracemalloc.start()
    try:
        for number in range(3000):
            await events.store_event(f"{number:010000}", None)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 5 << 20

    # The session's own stream is still resumed, and so is the newest of them.
    said = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/message")
    answer = types.JSONRPCResponse(jsonrpc="2.0", id=f"{2999:010000}", result={})
    newest = await events.store_event(f"{3000:010000}", None)
    await events.store_event(f"{3000:010000}", said)
    await events.store_event(f"{3000:010000}", answer)
    await events.store_event(GET_STREAM_KEY, said)
    told = []

    async def keep(event):
        told.append(event.message)

    await events.replay_events_after(newest, keep)
    assert told == [said, answer]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(events.replay_events_after, own, keep)
        with anyio.fail_after(DEADLINE_SECONDS):
            while len(told) < 3:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert told[2] == said


async def test_who_keeps_the_most_events_is_who_loses_them():
    """A principal with many sessions doesn't cost another what it resumes with."""
    memory = ReplayMemory(1 << 20, total=1 << 20)
    said = types.JSONRPCNotification(jsonrpc="2.0", method="notifications/message")
    bens = SessionEvents(memory, "ben")
    begun = await bens.store_event(GET_STREAM_KEY, None)
    await bens.store_event(GET_STREAM_KEY, said)
    for _ in range(20):
        annas = SessionEvents(memory, "anna")
        for _ in range(200):
            await annas.store_event(GET_STREAM_KEY, said)
    told = []

    async def keep(event):
        told.append(event.message)

    async def replayed(events, after):
        told.clear()
        with anyio.move_on_after(0):
            await events.replay_events_after(after, keep)
        return told

    assert await replayed(bens, begun) == [said]
    assert 0 < len(await replayed(annas, "1-1")) <= 200
    # What has gone is room for others.
    annas.close()
    bens.close()
    assert await replayed(bens, begun) == []


SIGN_OF_LIFE_SECONDS = 15
"""As docs/http.md has it, for proxies. The SDK sets it, and takes no other."""

LIVELY = """
import sse_starlette.sse
from mcp.server import _streamable_http_modern
sse_starlette.sse.EventSourceResponse.DEFAULT_PING_INTERVAL = _streamable_http_modern._SSE_PING_INTERVAL = 0.1
from mcp_bridge.cli import main
main()
"""


async def test_a_stream_without_events_has_a_sign_of_life(configure):
    assert EventSourceResponse.DEFAULT_PING_INTERVAL == SIGN_OF_LIFE_SECONDS
    assert _streamable_http_modern._SSE_PING_INTERVAL == SIGN_OF_LIFE_SECONDS
    async with serving(configure(), command=(sys.executable, "-c", LIVELY)) as bridge, bridge.http() as http:

        async def is_told(method, headers, body=None):
            async with http.stream(method, "/mcp", json=body, headers=headers) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith(":"):
                        return True
            return False

        assert await is_told("GET", await opened(http)), "the stream of a session"
        body, headers = run("import time\ntime.sleep(100)")
        assert await is_told("POST", headers, body), "the answer to a call"


async def test_a_client_of_2026_that_disconnects_cancels_its_call(answering):
    bridge, setup = answering, answering.setup
    # Of an earlier test.
    await setup.no_container_of(bridge.pid)
    async with bridge.http() as http:
        body, headers = run("import time\ntime.sleep(100)")
        call = asyncio.ensure_future(http.post("/mcp", json=body, headers=headers))

        async def runs():
            return bool(await setup.containers(bridge.pid))

        await until(runs)
        call.cancel()
        await asyncio.wait([call])
        await setup.no_container_of(bridge.pid)


async def test_a_call_of_a_session_goes_on_without_its_connection_until_it_is_cancelled(http_bridge):
    setup = http_bridge.setup
    # Of an earlier test.
    await setup.no_container_of(http_bridge.pid)
    async with http_bridge.http() as http:
        session = await opened(http)
        last = await begun(http, session, "import time\nprogress(0, 1, 'running')\ntime.sleep(100)", number=9)

        async def runs():
            return len(await setup.containers(http_bridge.pid))

        await until(runs)
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}
        assert (await http.post("/mcp", json=cancelled, headers=session)).status_code == 202
        # The stream ends with the protocol's answer to what was cancelled.
        async with http.stream("GET", "/mcp", headers=session | {"last-event-id": last}) as answer:
            found = events("".join([part async for part in answer.aiter_text()]))
        assert found[-1][1]["error"]["code"] == -32800
        await setup.no_container_of(http_bridge.pid)


async def test_a_session_is_not_idle_while_a_call_goes_on_without_its_connection(configure):
    released = anyio.Event()

    async def answer(_, message, __):
        if message["method"] == "tools/call":
            await released.wait()

    server = ScriptedServer(answer)
    async with serving_app(server.app) as port:
        setup = configure(remote(port), http={"session_idle_timeout": 0.5})
        async with serving(setup) as bridge, bridge.http() as http:
            session = await opened(http)
            code = "from mcp.servers import remote\nprogress(0, 1, 'running')\nprint(await remote.act())"
            resuming = session | {"last-event-id": await begun(http, session, code)}
            await until(lambda: server.calls)
            # More than it may be idle, and half a second more than its end would take.
            await anyio.sleep(1)
            async with http.stream("GET", "/mcp", headers=resuming) as answer:
                assert answer.status_code == 200, await answer.aread()
                released.set()
                found = events("".join([part async for part in answer.aiter_text()]))
            assert "done" in found[-1][1]["result"]["content"][0]["text"]

            async def is_over():
                return (await http.get("/mcp", headers=resuming)).status_code == 404

            # Each look is a request, too.
            await until(is_over, every=1)
            ended = await http.get("/mcp", headers=resuming)
            assert (code_of(ended), "may have happened" in ended.text) == ("unknown_http_session", True)


# --- ids ---


def call(code, number):
    params = {"name": "run_python", "arguments": {"code": code}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


async def test_a_request_under_the_id_of_one_in_progress_is_refused_and_takes_nothing_from_it(answering):
    bridge, setup = answering, answering.setup
    # Of an earlier test.
    await setup.no_container_of(bridge.pid)
    async with bridge.http() as http:
        session, other = await opened(http), await opened(http)
        first = asyncio.ensure_future(http.post("/mcp", json=call("import time\ntime.sleep(100)", 7), headers=session))

        async def runs():
            return bool(await setup.containers(bridge.pid))

        await until(runs)
        # The protocol's libraries take "7" for 7; the last is what the SDK calls the session's own stream.
        for number in (7, "7", GET_STREAM_KEY):
            for body in (call("print('second')", number), {"jsonrpc": "2.0", "id": number, "method": "ping"}):
                answer = await http.post("/mcp", json=body, headers=session)
                assert (answer.status_code, code_of(answer)) == (409, "request_id_in_use"), body
                assert "an id of its own" in answer.json()["error"]["message"]
        # Other sessions have ids of their own, and so has a client's answer.
        assert "another" in (await http.post("/mcp", json=call("print('another')", 7), headers=other)).text
        said = {"jsonrpc": "2.0", "id": 7, "result": {}}
        assert (await http.post("/mcp", json=said, headers=session)).status_code == 202
        assert not first.done()
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        assert (await http.post("/mcp", json=cancelled, headers=session)).status_code == 202
        assert "-32800" in (await first).text
        # Whoever counts none of its requests has each of them answered, one after the other.
        for number in range(20):
            answer = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 7, "method": "ping"}, headers=session)
            assert (answer.status_code, '"result"' in answer.text) == (200, True), number
        assert "third" in (await http.post("/mcp", json=call("print('third')", 7), headers=session)).text


async def test_an_id_stays_taken_without_its_connection_until_there_is_the_answer(http_bridge):
    async with http_bridge.http() as http:
        session = await opened(http)
        last = await begun(http, session, "import time\nprogress(0, 1, 'running')\ntime.sleep(100)", number=9)
        answer = await http.post("/mcp", json=call("print('second')", 9), headers=session)
        assert (answer.status_code, code_of(answer)) == (409, "request_id_in_use")
        cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}
        assert (await http.post("/mcp", json=cancelled, headers=session)).status_code == 202
        async with http.stream("GET", "/mcp", headers=session | {"last-event-id": last}) as resumed:
            assert "-32800" in "".join([part async for part in resumed.aiter_text()])
        assert "third" in (await http.post("/mcp", json=call("print('third')", 9), headers=session)).text


async def test_requests_of_2026_have_answers_of_their_own_whatever_their_ids(answering):
    async with answering.http() as http:
        asked = [run(f"print('answer', {number})") for number in range(4)]
        answers = await asyncio.gather(*(http.post("/mcp", json=body, headers=headers) for body, headers in asked))
        for number, answer in enumerate(answers):
            assert f"answer {number}" in answer.text


# --- principals ---


def made(setup, name):
    """A new token of a principal."""
    return setup.command("principal", "add", name, "--json").json["token"]


@pytest.fixture(scope="module")
def team_bridge(configure_for_module):
    """A bridge for principals: each test has its own of them."""
    principals = {"anna": {"requests_per_minute": 30}, "bert": {}, "carl": {}, "dora": {}}
    with kept_serving(configure_for_module(principals=principals)) as bridge:
        yield bridge


async def test_without_a_token_nothing_is_answered_but_health(team_bridge):
    bridge = team_bridge
    async with bridge.http() as http:
        assert (await http.get("/health")).status_code == 200
        for headers in (ACCEPT, ACCEPT | {"authorization": "Bearer x"}, ACCEPT | {"authorization": "Basic eDp5"}):
            for answer in (
                await http.post("/mcp", json=INITIALIZE, headers=headers),
                await http.get("/mcp", headers=headers),
            ):
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"].startswith("Bearer ")
        large = await http.post("/mcp", content=b" " * 3_000_000, headers=ACCEPT)
        assert large.status_code == 401
        token = made(bridge.setup, "carl")
        session = await opened(http, authorization=f"Bearer {token}")
        assert session
    assert token.encode() not in bridge.logged


async def test_a_principal_has_its_own_sessions_calls_and_resources(team_bridge):
    anna, bert = ({"authorization": f"Bearer {made(team_bridge.setup, name)}"} for name in ("anna", "bert"))
    async with team_bridge.http() as http:
        session = await opened(http, **anna)
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        for stolen in (session | bert, session | bert | {"last-event-id": "1-2"}):
            assert (await http.post("/mcp", json=listing, headers=stolen)).status_code == 404
            assert (await http.get("/mcp", headers=stolen)).status_code == 404
            assert (await http.delete("/mcp", headers=stolen)).status_code == 404
        assert (await http.post("/mcp", json=listing, headers=session)).status_code == 200

        body, headers = run(
            "await runtime.save_memory('m', 'MARK')\nopen('a.txt', 'w').write('MARK')\nartifact('a.txt')"
        )
        answer = (await http.post("/mcp", json=body, headers=headers | anna)).json()["result"]
        assert not answer["isError"], answer
        assert "artifact://" in json.dumps(answer)
        assert "/files/" not in json.dumps(answer), "the client may be on another machine"
        body, headers = modern("resources/list")
        mine = (await http.post("/mcp", json=body, headers=headers | anna)).json()["result"]
        uris = [one["uri"] for one in mine["resources"] if one["uri"].startswith("artifact:")]
        assert len(uris) == 1
        assert mine["cacheScope"] == "private"
        theirs = (await http.post("/mcp", json=body, headers=headers | bert)).text
        assert uris[0] not in theirs
        body, headers = modern("resources/read", uris[0], uri=uris[0])
        assert (
            "MARK"
            in base64.b64decode(
                (await http.post("/mcp", json=body, headers=headers | anna))
                .json()["result"]["contents"][0]
                .get("blob", "")
            ).decode()
            + (await http.post("/mcp", json=body, headers=headers | anna)).text
        )
        stolen = await http.post("/mcp", json=body, headers=headers | bert)
        assert stolen.status_code == 400
        assert "MARK" not in stolen.text
        body, headers = run("print(await runtime.load_memory('m'))")
        assert "MARK" not in (await http.post("/mcp", json=body, headers=headers | bert)).text

        for _ in range(30):
            answer = await http.post("/mcp", json=body, headers=headers | anna | {"mcp-method": "x"})
        assert (answer.status_code, code_of(answer)) == (429, "too_many_requests")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await http.post("/mcp", json=body, headers=headers | bert)).status_code == 200


async def test_a_token_that_is_revoked_ends_its_streams(team_bridge):
    setup = team_bridge.setup
    dora = {"authorization": f"Bearer {made(setup, 'dora')}"}
    async with team_bridge.http() as http:
        session = await opened(http, **dora)
        with contextlib.suppress(httpx2.TransportError):
            async with http.stream("GET", "/mcp", headers=session) as answer:
                assert answer.status_code == 200
                setup.command("principal", "revoke", "dora")
                with anyio.fail_after(DEADLINE_SECONDS):
                    async for _ in answer.aiter_bytes():
                        pass
        assert (await http.get("/mcp", headers=session)).status_code == 401
