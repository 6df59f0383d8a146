"""Servers over HTTP: real ones in both eras, and every fault that one, or what is between, can have."""

import asyncio
import gzip
import json
import os
import re
from collections import Counter

import anyio
import pytest
from downstream_calls import call_tool
from http_servers import CuttingProxy, ScriptedServer, everything_server, remote, sdk_server, serving
from oauth_fixtures import login_store
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from mcp_bridge.downstream.client import supervised_server
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.http.remote_auth import RemoteAccess
from mcp_bridge.errors import BridgeError

# Far above what any of these takes; a test that runs into it hangs.
pytestmark = pytest.mark.timeout(120)
pytest_plugins = ["server_fixtures"]

LONG = os.environ.get("MCP_BRIDGE_TEST_LONG") == "1"


async def text(fleet, tool="act", arguments=None, **options):
    """The text of a call's answer."""
    result = await call_tool(fleet, "remote", tool, arguments, **options)
    return result.content[0].text


async def failure(fleet, tool="act", arguments=None, **options):
    with pytest.raises(BridgeError) as caught:
        await call_tool(fleet, "remote", tool, arguments, **options)
    return caught.value


def shown(error):
    """All that a sandbox or an operator can come to see of an error."""
    return f"{error!s} {error!r} {error.hint} {error.details} {error.private} {error.record()}"


def marked(calls):
    """How often each marker was noted."""
    return Counter(calls.read_text().split()) if calls.exists() else Counter()


# Real servers.


@pytest.mark.parametrize(
    ("mode", "path", "era", "protocol"),
    [
        ("events", "/mcp", "auto", "2026-07-28"),
        ("events", "/mcp", "legacy", "2025-11-25"),
        ("json", "/mcp", "auto", "2026-07-28"),
        ("json", "/mcp", "legacy", "2025-11-25"),
        ("stateless", "/mcp", "2026-07-28", "2026-07-28"),
        ("stateless", "/mcp", "legacy", "2025-11-25"),
        ("sse", "/sse", "auto", "2025-11-25"),
    ],
)
async def test_a_server_made_with_the_sdk_is_called_in_both_eras(tmp_path, mode, path, era, protocol):
    calls = tmp_path / "calls"
    told = []
    with sdk_server(mode, calls) as port:
        async with Fleet([remote(port, path, type="auto", era=era)]) as fleet:
            tools = {tool.name for tool in await fleet.server("remote").tools()}
            assert tools == {"count", "work", "routed", "grow", "headers", "asking"}
            assert fleet.server("remote").status().protocol == protocol
            assert await text(fleet, "count", {"marker": "a", "size": 3 << 20}) == "a" + "." * (3 << 20), "over 1 MiB"
            assert await text(fleet, "work", {"marker": "b", "steps": 3}, tell=told.append) == "b"
            async with asyncio.TaskGroup() as tasks:
                many = [tasks.create_task(text(fleet, "count", {"marker": f"m{number}"})) for number in range(40)]
            assert [task.result() for task in many] == [f"m{number}" for number in range(40)]
    assert marked(calls) == {"a": 1, "b": 1} | {f"m{number}": 1 for number in range(40)}
    if mode == "events":
        assert any("step" in line for line in told)


@pytest.mark.parametrize(("transport", "path"), [("streamableHttp", "/mcp"), ("sse", "/sse")])
async def test_server_everything_is_called_over_both_transports(everything_server_spec, transport, path):
    with everything_server(everything_server_spec, transport) as port:
        async with Fleet([remote(port, path, type="auto")]) as fleet:
            assert len(await fleet.server("remote").tools()) >= 10
            assert await text(fleet, "echo", {"message": "hello"}) == "Echo: hello"
            assert "42" in await text(fleet, "get-sum", {"a": 40, "b": 2})


@pytest.fixture
def everything_server_spec(request):
    return request.getfixturevalue("everything_server")


@pytest.mark.parametrize(("era", "header"), [("legacy", "None"), ("2026-07-28", "eu")])
async def test_arguments_that_are_headers_too_are_sent_so_in_the_era_that_has_them(tmp_path, era, header):
    with sdk_server("json", tmp_path / "calls") as port:
        async with Fleet([remote(port, era=era)]) as fleet:
            assert await text(fleet, "routed", {"region": "eu"}) == f"eu {header}"
            long = "x" * 5000
            assert (await text(fleet, "routed", {"region": long})).startswith(long)


@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_a_tool_that_a_server_announces_is_listed(tmp_path, era):
    with sdk_server("events", tmp_path / "calls") as port:
        async with Fleet([remote(port, era=era)]) as fleet:
            server = fleet.server("remote")
            assert await text(fleet, "grow") == "announced"
            with anyio.fail_after(30):
                while not server.stale:  # noqa: ASYNC110 - nothing announces it
                    await asyncio.sleep(0.05)
            assert "grown" in {tool.name for tool in await server.tools()}


@pytest.mark.parametrize(
    ("mode", "path", "era"),
    [("events", "/mcp", "legacy"), ("events", "/mcp", "2026-07-28"), ("sse", "/sse", "auto")],
)
async def test_a_call_that_nobody_waits_for_any_more_is_cancelled_at_the_server(tmp_path, mode, path, era):
    calls = tmp_path / "calls"
    with sdk_server(mode, calls) as port:
        async with Fleet([remote(port, path, era=era, type="auto")]) as fleet:
            error = await failure(fleet, "count", {"marker": "slow", "seconds": 60}, timeout=0.5)
            assert error.code == "tool_timeout"
            assert await text(fleet, "count", {"marker": "next"}) == "next", "others go on"
            with anyio.fail_after(30):
                while "slow-cancelled" not in marked(calls):  # noqa: ASYNC110 - a file of another process
                    await asyncio.sleep(0.05)
    assert marked(calls) == {"slow": 1, "slow-cancelled": 1, "next": 1}


@pytest.mark.parametrize(("mode", "path"), [("events", "/mcp"), ("sse", "/sse")])
async def test_a_server_that_asks_its_client_is_answered(tmp_path, mode, path):
    with sdk_server(mode, tmp_path / "calls") as port:
        async with Fleet([remote(port, path, era="legacy", type="auto")]) as fleet:
            assert await text(fleet, "asking") == "List roots not supported"


# What is never sent twice.


async def test_what_a_server_refuses_for_now_is_sent_again_when_it_says(tmp_path):
    async def busy(_request, message, number):
        if message["method"] == "tools/call" and number < 3:
            return Response(status_code=429, headers={"retry-after": "0"})
        return None

    server = ScriptedServer(busy)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        assert await text(fleet) == "done"
    assert len(server.calls) == 3


@pytest.mark.parametrize("wait", ["3600", "Wed, 21 Oct 2099 07:28:00 GMT"])
async def test_a_server_that_wants_to_be_left_alone_for_long_is_not_waited_for(wait):
    async def busy(_request, message, _number):
        limited = Response(status_code=429, headers={"retry-after": wait})
        return limited if message["method"] == "tools/call" else None

    server = ScriptedServer(busy)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        error = await failure(fleet)
    assert error.code == "server_busy"
    assert error.details["retry_in"] > 3000
    assert len(server.calls) == 1


@pytest.mark.parametrize(("wait", "granted"), [(100, 100), (3600, 300)])
async def test_a_server_that_refuses_its_start_for_now_is_left_alone_for_as_long_as_it_says(wait, granted):
    async def busy(_request, _message, _number):
        return Response(status_code=429, headers={"retry-after": str(wait)})

    server = ScriptedServer(busy)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        error = await failure(fleet)
        assert (error.code, error.details["retry_in"]) == ("server_start_failed", wait)
        assert f"It wants to be asked again in {wait} s." in error.message
        seen = len(server.seen)
        error = await failure(fleet)
        assert error.code == "server_unavailable"
        assert granted - 20 < error.details["retry_in"] <= granted
    assert len(server.seen) == seen


async def test_a_wait_that_a_calls_time_does_not_allow_is_not_begun():
    async def busy(_request, message, _number):
        limited = Response(status_code=429, headers={"retry-after": "20"})
        return limited if message["method"] == "tools/call" else None

    server = ScriptedServer(busy)
    async with serving(server.app) as port, Fleet([remote(port, call_timeout=15)]) as fleet:
        error = await failure(fleet)
    assert (error.code, error.details["retry_in"]) == ("server_busy", 20)
    assert "was not called" in str(error)
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"Not Found"),
        (404, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Gone"}}'),
        (404, b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32001,"message":"Session not found"}}'),
        (400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"No valid session ID"}}'),
        (
            400,
            b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}',
        ),
        (400, b"Invalid or missing session ID"),
        (400, b"Session session-1-1 has expired."),
    ],
)
async def test_a_forgotten_session_is_replaced_and_the_call_made_in_the_new_one(status, body):
    async def forgets(request, message, _number):
        if message["method"] == "tools/call" and request.headers["mcp-session-id"] == "session-1-1":
            said = body.replace(b"ID,", b"%d," % message["id"])
            return Response(said, status_code=status, headers={"content-type": "application/json"})
        return None

    server = ScriptedServer(forgets)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        assert await text(fleet) == "done"
    assert server.sessions == 2
    assert len(server.calls) == 2, "one that was refused, and one"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"There is no such customer"}}'),
        (404, b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32001,"message":"The checkout session is closed now"}}'),
        (400, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Paid, and the session is closed"}}'),
        (400, b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"Session 12 was closed"}}'),
        (400, b"The payment was captured, but the checkout session could not be closed"),
        (400, b'{"error":"session limit"}'),
        (429, b'{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"Sent, and no more today"}}'),
    ],
)
async def test_what_may_be_an_answer_to_a_call_is_taken_for_one_and_the_call_not_made_again(status, body):
    async def answers(_request, message, number):
        if message["method"] == "tools/call" and number == 1:
            said = body.replace(b"ID,", b"%d," % message["id"])
            headers = {"content-type": "application/json", "retry-after": "0"}
            return Response(said, status_code=status, headers=headers)
        return None

    server = ScriptedServer(answers)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        error = await failure(fleet)
        assert len(server.calls) == 1
        assert error.code not in {"server_busy", "server_unavailable"}
        # The connection is no worse for it, or another one is made.
        assert await text(fleet) == "done"
    assert len(server.calls) == 2


async def test_calls_under_way_go_on_when_the_session_is_forgotten():
    first = anyio.Event()

    async def forgets(request, message, number):
        if message["method"] == "tools/call" and number == 1:
            await first.wait()
        elif message["method"] == "tools/call" and request.headers["mcp-session-id"] == "session-1-1":
            return Response(status_code=404)
        return None

    server = ScriptedServer(forgets)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet, asyncio.TaskGroup() as tasks:
        early = tasks.create_task(text(fleet))
        while not server.calls:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)
        assert await text(fleet) == "done"
        first.set()
        assert await early == "done"
    assert server.sessions == 2


async def test_a_session_that_is_always_forgotten_is_an_error_after_one_more():
    async def forgets(_request, message, _number):
        return Response(status_code=404) if message["method"] == "tools/call" else None

    server = ScriptedServer(forgets)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        error = await failure(fleet)
    assert error.code == "server_unavailable"
    assert "was not called" in error.message
    assert len(server.calls) == 2


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_call_that_a_gateway_answers_may_have_happened_and_is_not_made_again(status):
    async def broken(_request, message, _number):
        return Response("gone", status_code=status) if message["method"] == "tools/call" else None

    server = ScriptedServer(broken)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        error = await failure(fleet)
    assert error.code == "connection_lost"
    assert "may have happened" in error.message
    assert len(server.calls) == 1


def _events(*events, end=b""):
    async def stream():
        for event in events:
            yield event
        if end is None:
            raise ConnectionResetError

    return StreamingResponse(stream(), media_type="text/event-stream")


async def test_a_stream_that_ends_without_an_event_id_leaves_the_call_in_doubt():
    async def breaks(_request, message, _number):
        return _events(b": nothing\n\n") if message["method"] == "tools/call" else None

    server = ScriptedServer(breaks)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        error = await failure(fleet)
    assert error.code == "connection_lost"
    assert len(server.calls) == 1


async def test_a_stream_that_ends_is_resumed_from_its_last_event():
    asked = []

    async def breaks(_request, message, _number):
        return _events(b"id: e1\nretry: 20\ndata:\n\n") if message["method"] == "tools/call" else None

    async def resumes(request):
        last = request.headers.get("last-event-id")
        if last is None:
            return None
        asked.append(last)
        if len(asked) == 1:
            return Response(status_code=503)
        if len(asked) == 2:
            return _events(b"id: e2\ndata:\n\n")
        answer = json.dumps(server.result(server.calls[0], "late")).encode()
        return _events(b"id: e3\ndata: " + answer + b"\n\n")

    server = ScriptedServer(breaks)
    server.get = resumes
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        assert await text(fleet) == "late"
    assert asked == ["e1", "e1", "e2"]
    assert len(server.calls) == 1


async def test_a_stream_that_the_server_does_not_resume_leaves_the_call_in_doubt():
    async def breaks(_request, message, _number):
        return _events(b"id: e1\nretry: 20\ndata:\n\n") if message["method"] == "tools/call" else None

    server = ScriptedServer(breaks)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        assert (await failure(fleet)).code == "connection_lost"
    assert len(server.calls) == 1


async def test_a_call_whose_login_ends_before_its_stream_is_resumed_is_in_doubt(tmp_path):
    async def breaks(_request, message, _number):
        return _events(b"id: e1\nretry: 20\ndata:\n\n") if message["method"] == "tools/call" else None

    async def wants_a_login(request):
        return Response(status_code=401) if "last-event-id" in request.headers else None

    server = ScriptedServer(breaks)
    server.get = wants_a_login
    access = RemoteAccess(lambda _spec, text: text, logins=login_store(tmp_path))
    async with serving(server.app) as port, Fleet([remote(port)], access=access) as fleet:
        assert (await failure(fleet)).code == "connection_lost"
    assert len(server.calls) == 1


async def test_a_call_that_was_certainly_not_sent_is_made_when_the_server_is_back(tmp_path):
    calls = tmp_path / "calls"
    with sdk_server("events", calls) as port:
        fleet = Fleet([remote(port, era="legacy")])
        await fleet.__aenter__()
        assert await text(fleet, "count", {"marker": "a"}) == "a"
    try:
        error = await failure(fleet, "count", {"marker": "b"})
        assert error.code in {"server_start_failed", "server_unavailable"}
        assert "connection refused" in error.message
        with sdk_server("events", calls, port):
            with anyio.fail_after(30):
                while (error := await _tried(fleet, "count", {"marker": "c"})) is not None:
                    assert error.code in {"server_unavailable", "server_start_failed"}
                    await asyncio.sleep(0.2)
    finally:
        await fleet.aclose()
    assert marked(calls) == {"a": 1, "c": 1}


async def _tried(fleet, tool, arguments):
    try:
        await call_tool(fleet, "remote", tool, arguments)
    except BridgeError as error:
        return error
    return None


CUTS = [
    ("events", "/mcp", "legacy"),
    ("events", "/mcp", "2026-07-28"),
    ("json", "/mcp", "legacy"),
    ("sse", "/sse", "auto"),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("mode", "path", "era"), CUTS)
async def test_no_call_is_made_twice_or_lost_without_an_error_when_connections_are_cut(
    tmp_path, monkeypatch, mode, path, era
):
    monkeypatch.setattr(supervised_server, "BACKOFF_CAP", 0.1)
    calls, number, limit = tmp_path / "calls", 1000 if LONG else 40, 10.0
    answered, ended, failed = set(), set(), Counter()

    async def one(marker):
        for _ in range(50):
            try:
                # Its start, the call and the start of another connection have their limits.
                with anyio.fail_after(limit + 60):
                    answer = await text(fleet, "count", {"marker": marker, "size": 2000}, timeout=limit)
            except BridgeError as error:
                failed[error.code] += 1
                if error.code not in {"server_unavailable", "server_start_failed"}:
                    ended.add(marker)
                    return
                # These say that nothing was called, so that whoever called may call again.
                await asyncio.sleep(error.details.get("retry_in", 0.05))
            else:
                assert answer == marker + "." * 2000
                answered.add(marker)
                ended.add(marker)
                return
        ended.add(marker)

    with sdk_server(mode, calls) as port:
        # The one stream of the old transport carries all that a call needs.
        least, most = (500, 20_000) if mode == "sse" else (1, 30_000)
        proxy = CuttingProxy(port, f"{mode} {era}", least, most)
        async with (
            proxy.listening() as cut,
            Fleet([remote(cut, path, era=era, type="sse" if mode == "sse" else "http", start_timeout=5)]) as fleet,
        ):
            await fleet.server("remote").start()
            proxy.is_cutting = True
            limiter = anyio.CapacityLimiter(16 if LONG else 4)

            async def limited(marker):
                async with limiter:
                    await one(marker)

            async with anyio.create_task_group() as tasks:
                for index in range(number):
                    tasks.start_soon(limited, f"call{index}")
    made = marked(calls)
    assert max(made.values()) == 1, "no call twice"
    assert answered <= made.keys(), "no answer without a call"
    assert len(ended) == number, "every call has ended"
    assert proxy.cuts >= number / 20
    assert answered
    assert failed.keys() <= {
        "connection_lost",
        "server_unavailable",
        "server_start_failed",
        "tool_timeout",
        "bad_result",
    }


# What is refused.


@pytest.mark.parametrize(
    "where",
    [
        "http://127.0.0.1:9/admin",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]:9/",
        "https://elsewhere.example.com/mcp?token=the-secret",
        "file:///etc/passwd",
        "//elsewhere.example.com/mcp",
    ],
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_origin_is_not_followed(status, where):
    async def redirects(_request, message, _number):
        return RedirectResponse(where, status_code=status) if message["method"] == "tools/call" else None

    server = ScriptedServer(redirects)
    async with (
        serving(server.app) as port,
        Fleet([remote(port, headers={"Authorization": "Bearer the-secret"})]) as fleet,
    ):
        error = await failure(fleet)
    if status == 303:
        # See Other: the request was done.
        assert (error.code, "The call may have happened." in error.message) == ("connection_lost", True)
        assert len(server.calls) == 1
    else:
        assert error.code == "server_unavailable"
        assert error.details["reason"] == "redirected" or "can't be reached" in error.message
    assert "the-secret" not in shown(error)
    assert len(server.calls) <= 2


async def test_credentials_and_calls_stay_with_the_origin_that_they_are_for():
    other = ScriptedServer()

    async def redirects(request, _message, _number):
        return RedirectResponse(f"http://127.0.0.1:{elsewhere}/mcp", status_code=307)

    async with serving(other.app) as elsewhere:
        server = ScriptedServer(redirects)
        async with serving(server.app) as port, Fleet([remote(port, headers={"X-Api-Key": "the-secret"})]) as fleet:
            error = await failure(fleet)
    assert error.code == "server_start_failed"
    assert f"redirects to http://127.0.0.1:{elsewhere}/mcp" in error.message
    assert other.seen == []


async def test_a_redirect_within_the_origin_keeps_the_message():
    async def redirects(request, _message, _number):
        if request.url.path == "/mcp":
            return RedirectResponse("/mcp/", status_code=307)
        return None

    server = ScriptedServer(redirects)
    async with serving(server.app) as port, Fleet([remote(port, headers={"X-Api-Key": "mine"})]) as fleet:
        assert await text(fleet) == "done"
    assert {headers["x-api-key"] for _, _, headers in server.seen} == {"mine"}


async def test_a_server_that_redirects_in_a_circle_is_an_error():
    async def redirects(_request, _message, _number):
        return RedirectResponse("/mcp", status_code=308)

    server = ScriptedServer(redirects)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        assert "redirects more than 5 times" in (await failure(fleet)).message


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_wants_other_credentials_is_an_error_that_shows_none(status, caplog):
    caplog.set_level("DEBUG")

    async def refuses(_request, _message, _number):
        return Response("Bearer the-secret is wrong", status_code=status)

    server = ScriptedServer(refuses)
    headers = {"Authorization": "Bearer the-secret"}
    async with serving(server.app) as port, Fleet([remote(port, "/mcp?key=the-secret", headers=headers)]) as fleet:
        error = await failure(fleet)
        status = fleet.server("remote").status()
    assert error.code == "server_unauthorized"
    assert "the-secret" not in shown(error)
    assert "the-secret" not in f"{status}"
    assert "the-secret" not in caplog.text


@pytest.mark.parametrize("status", [403, 422, 500])
async def test_what_a_server_says_with_a_refusal_is_told_on_a_line_without_credentials(status):
    token, path, key = "sec-9fK2vLq8XwZ4mR7bT1yN", "a-part-that-nobody-may-know", "a-key-that-is-long-enough"

    async def refuses(_request, message, _number):
        said = f"Bearer {token}:\nnot for\u202e /{path} and {key}" + "." * 2000
        return Response(said, status_code=status) if message["method"] == "tools/call" else None

    server = ScriptedServer(refuses)
    headers = {"Authorization": f"Bearer {token}"}
    async with serving(server.app) as port, Fleet([remote(port, f"/{path}?key={key}", headers=headers)]) as fleet:
        error = await failure(fleet)
    assert f" {status} " in error.message
    assert ("The call may have happened." in error.message) == (status in {403, 500})
    assert "Nothing was called" not in error.message, "it may have done a part"
    assert "It says: Bearer [hidden]: not for\\u202e /[hidden] and [hidden]..." in error.message
    assert len(error.message) < 1000


@pytest.mark.parametrize(
    ("answer", "code", "part"),
    [
        (Response(status_code=202), "bad_result", "without a result"),
        (Response("<html>", media_type="text/html"), "bad_result", "neither JSON nor an event stream"),
        (JSONResponse([]), "bad_result", "isn't one to the request"),
        (JSONResponse({"jsonrpc": "2.0", "id": 999, "result": {}}), "bad_result", "isn't one to the request"),
        (Response("{", media_type="application/json"), "bad_result", "isn't one to the request"),
        (
            Response(
                gzip.compress(b"." * (64 << 20)), media_type="application/json", headers={"content-encoding": "gzip"}
            ),
            "bad_result",
            "encoded answer",
        ),
        (Response("." * (200 << 10), media_type="application/json"), "result_too_large", "the limit is 100000"),
        (
            Response("data: " + "." * (200 << 10), media_type="text/event-stream"),
            "result_too_large",
            "the limit is 100000",
        ),
        (Response("no", status_code=409), "tool_failed", "answered 409 Conflict"),
        (Response("no", status_code=413), "tool_failed", "answered 413"),
        (
            JSONResponse(
                {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "wrong"}}, status_code=400
            ),
            "bad_arguments",
            "wrong",
        ),
    ],
)
async def test_an_answer_that_is_none_is_an_error_and_the_next_call_works(answer, code, part):
    async def answers(_request, message, number):
        return answer if message["method"] == "tools/call" and number == 1 else None

    server = ScriptedServer(answers)
    async with serving(server.app) as port, Fleet([remote(port)], max_result_bytes=100_000) as fleet:
        error = await failure(fleet)
        assert (error.code, part in error.message) == (code, True), error
        assert await text(fleet) == "done"
    assert len(server.calls) == 2


@pytest.mark.parametrize("padding", [10, 1 << 20], ids=["small", "large"])
async def test_a_content_block_of_an_unknown_type_costs_nothing_but_itself(padding):
    async def later(_request, message, _number):
        if message["method"] != "tools/call":
            return None
        link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
        blocks = [{"type": "text", "text": "x" * padding}, {"type": "weird", "x": 1}, link]
        return JSONResponse(server.result(message) | {"result": {"content": blocks}})

    server = ScriptedServer(later)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        first, second, third = (await call_tool(fleet, "remote", "act")).content
    assert (first.text, third.name) == ("x" * padding, "a")
    assert second.text == "[a content block of the type 'weird' is left out: the bridge doesn't know it]"


async def test_malformed_notifications_are_dropped_and_logged_once_without_what_they_contain(caplog):
    async def answers(_request, message, _number):
        if message["method"] != "tools/call":
            return None
        broken = [
            {"method": "notifications/progress", "params": {"progress": "MARK", "progressToken": {"MARK": 1}}},
            {"method": "notifications/message", "params": {"level": "MARK", "data": "MARK"}},
            {"method": "notifications/tools/list_changed", "params": "MARK"},
            {"method": "notifications/message", "params": {"level": "info", "data": "said"}},
        ]
        events = [b"data: " + json.dumps({"jsonrpc": "2.0", **each}).encode() + b"\n\n" for each in broken * 3]
        return _events(*events, b"data: " + json.dumps(server.result(message)).encode() + b"\n\n")

    told = []
    server = ScriptedServer(answers)
    with caplog.at_level("INFO"):
        async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
            assert await text(fleet, tell=told.append) == "done"
    assert told == ["said"] * 3
    logged = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line for line in logged if "malformed" in line] == [
        "a server sends malformed notifications (notifications/progress), which are dropped"
    ]
    assert "MARK" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_listing_that_is_slow_and_without_end_says_so():
    async def pages(_request, message, _number):
        if message["method"] != "tools/list":
            return None
        if len(server.seen) > 20:
            await asyncio.sleep(60)
        page = {"tools": [], "nextCursor": str(len(server.seen))}
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": page})

    server = ScriptedServer(pages)
    async with serving(server.app) as port, Fleet([remote(port, start_timeout=5)]) as fleet:
        error = await failure(fleet)
    assert error.code == "server_start_failed"
    assert re.search(r"its list of tools had \d+ pages after 5 s, and no end", str(error))


async def test_an_answer_without_end_is_an_error_in_bounded_memory():
    async def endless(_request, message, _number):
        async def stream():
            while True:
                # Sending suspends nobody once the client has gone.
                await asyncio.sleep(0)
                yield b" " * 65536

        return StreamingResponse(stream(), media_type="application/json") if message["method"] == "tools/call" else None

    server = ScriptedServer(endless)
    async with serving(server.app) as port, Fleet([remote(port)], max_result_bytes=1_000_000) as fleet:
        assert (await failure(fleet)).code == "result_too_large"


async def test_a_server_that_says_nothing_is_given_up_at_the_time_limit_of_the_call():
    gone = anyio.Event()

    async def silent(request, message, _number):
        if message["method"] != "tools/call":
            return None
        while not await request.is_disconnected():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.02)
        gone.set()
        return Response()

    server = ScriptedServer(silent)
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        assert (await failure(fleet, timeout=0.5)).code == "tool_timeout"
        with anyio.fail_after(10):
            await gone.wait()
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("http://127.0.0.1:1/mcp", "connection refused"),
        ("http://nowhere.invalid/mcp", "host name isn't known"),
    ],
)
async def test_a_server_that_can_not_be_reached_says_why(url, part):
    async with Fleet([remote(1, url=url + "?key=the-secret")]) as fleet:
        error = await failure(fleet)
    assert error.code == "server_start_failed"
    assert part in error.message
    assert "the-secret" not in shown(error)


async def test_a_stream_that_names_an_address_of_another_origin_is_refused():
    other = ScriptedServer()

    async def names(_request):
        return _events(f"event: endpoint\ndata: http://127.0.0.1:{elsewhere}/message\n\n".encode())

    server = ScriptedServer()
    server.get = names
    async with (
        serving(other.app) as elsewhere,
        serving(server.app) as port,
        Fleet([remote(port, "/sse", type="sse")]) as fleet,
    ):
        error = await failure(fleet)
    assert "an address of messages that isn't its own" in error.message
    assert other.seen == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_byte_order_mark_before_a_message_is_ignored(stream):
    async def marked_answers(_request, message, _number):
        body = b"\xef\xbb\xbf" + json.dumps(answers_of[message["method"]] | {"id": message["id"]}).encode()
        if stream:
            return _events(b"data: " + body + b"\n\n")
        return Response(body, media_type="application/json")

    server = ScriptedServer(marked_answers)
    opened = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "x", "version": "1"},
    }
    done = {"content": [{"type": "text", "text": "done"}]}
    results = {"initialize": opened, "tools/list": {"tools": server.tools}, "tools/call": done}
    answers_of = {method: {"jsonrpc": "2.0", "result": result} for method, result in results.items()}
    answers_of["server/discover"] = {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}}
    async with serving(server.app) as port, Fleet([remote(port)]) as fleet:
        assert await text(fleet) == "done"


async def test_a_byte_order_mark_before_a_refusal_is_ignored():
    refusal = {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "wrong"}}

    async def refuses(_request, message, _number):
        body = b"\xef\xbb\xbf" + json.dumps(refusal).encode()
        return Response(body, 400, media_type="application/json") if message["method"] == "tools/call" else None

    async with serving(ScriptedServer(refuses).app) as port, Fleet([remote(port)]) as fleet:
        error = await failure(fleet)
    assert (error.code, "wrong" in error.message) == ("bad_arguments", True)


@pytest.mark.parametrize(
    ("answer", "get", "part"),
    [
        # What it has said to the first message is the reason, and not that it has no stream.
        (Response("<html>", media_type="text/html"), None, "neither JSON nor an event stream"),
        (Response("{", media_type="application/json"), None, "isn't one to the request"),
        (Response("{", media_type="application/json"), Response("<html>", media_type="text/html"), "isn't one to the"),
        (Response("no", status_code=404), None, "answered 404"),
        # It has a stream, if that is one.
        (Response("no", status_code=405), Response("<html>", media_type="text/html"), "event stream"),
    ],
)
async def test_why_a_server_speaks_neither_transport_is_why_the_first_one_failed(answer, get, part):
    async def answers(_request, _message, _number):
        return answer

    async def streams(_request):
        return get

    server = ScriptedServer(answers)
    server.get = streams
    async with serving(server.app) as port, Fleet([remote(port, type="auto")]) as fleet:
        error = await failure(fleet)
        assert (error.code, part in error.message) == ("server_start_failed", True), error
    # The other one was tried.
    assert "GET" in {method for method, _, _ in server.seen}


@pytest.mark.parametrize("address", ["http://[bad", "http://ho\u017ft/x", "http://elsewhere.example/messages"])
async def test_an_address_of_messages_that_is_none_of_the_servers_is_its_fault_and_not_the_entrys(address):
    async def names(_request):
        return Response(f"event: endpoint\ndata: {address}\n\n", media_type="text/event-stream")

    server = ScriptedServer(path="/sse")
    server.get = names
    async with serving(server.app) as port, Fleet([remote(port, "/sse", type="sse")]) as fleet:
        with pytest.raises(BridgeError) as caught:
            await fleet.server("remote").tools()
    assert "named an address of messages that isn't its own" in str(caught.value)
