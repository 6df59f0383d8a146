"""Calls of tools pass the SDK's session by: on the wire, and in what they give, nobody can tell the difference."""

import dataclasses
import json
from contextlib import suppress

import pytest
from downstream_calls import call_tool
from http_servers import remote, sdk_server
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    DiscoverResult,
    Implementation,
    InitializeResult,
    JSONRPCError,
    JSONRPCResponse,
    ServerCapabilities,
)
from mcp_types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from pydantic import ValidationError
from servers.specs import faulty

from mcp_bridge.downstream.catalog.bound_tool import Listener
from mcp_bridge.downstream.client import mcp_connection
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.transports import http_transport, stdio_transport
from mcp_bridge.downstream.transports.pending_requests import FIRST_ID, PendingRequests
from mcp_bridge.errors import BridgeError

pytestmark = pytest.mark.timeout(120)

TEXT = {"content": [{"type": "text", "text": "ok"}]}


def response(number, result=None):
    return JSONRPCResponse(jsonrpc="2.0", id=number, result=result or {})


def failure(number):
    return JSONRPCError(jsonrpc="2.0", id=number, error={"code": -32602, "message": "no", "data": {"why": 1}})


async def test_each_answer_goes_to_its_request_in_any_order_and_with_its_id_as_text():
    requests = PendingRequests()
    (one, first), (two, second) = requests.begin(), requests.begin()
    assert requests.settle(response(str(two), {"n": 2}))
    assert requests.settle(response(one, {"n": 1}))
    assert (await first, await second) == ({"n": 1}, {"n": 2})


async def test_an_error_of_the_server_is_the_requests_error():
    requests = PendingRequests()
    number, answer = requests.begin()
    assert requests.settle(failure(number))
    error = await answer
    assert isinstance(error, MCPError)
    assert (error.code, error.message, error.data) == (-32602, "no", {"why": 1})


async def test_what_the_session_has_asked_is_left_to_the_session():
    requests = PendingRequests()
    requests.begin()
    assert not requests.settle(response(1))
    assert not requests.settle(response("listen-1"))
    assert not requests.progress({"progressToken": 1, "progress": 1})
    assert not requests.progress(None)


async def test_a_second_or_a_late_answer_is_dropped():
    requests = PendingRequests()
    number, answer = requests.begin()
    assert requests.settle(response(number, {"n": 1}))
    assert requests.settle(response(number, {"n": 2}))
    requests.end(number)
    assert requests.settle(response(number, {"n": 3}))
    assert requests.settle(response(FIRST_ID + 1000))
    assert await answer == {"n": 1}


async def test_when_the_connection_ends_nobody_waits_any_longer_and_nobody_begins():
    requests = PendingRequests()
    (one, first), (_, second) = requests.begin(), requests.begin()
    requests.settle(response(one, {"n": 1}))
    requests.close()
    assert await first == {"n": 1}
    error = await second
    assert isinstance(error, MCPError)
    assert error.code == CONNECTION_CLOSED
    with pytest.raises(MCPError, match="Connection closed"):
        requests.begin()


async def test_progress_is_told_to_its_request_alone(caplog):
    told = []
    requests = PendingRequests()
    one, _ = requests.begin(lambda *news: told.append(news))
    other, _ = requests.begin()

    def fails(*_news):
        raise RuntimeError("not now")

    failing, _ = requests.begin(fails)
    assert requests.progress({"progressToken": one, "progress": 1, "total": 4, "message": "begun"})
    assert requests.progress({"progressToken": str(one), "progress": 2.5, "total": "many", "message": 7})
    assert requests.progress({"progressToken": one, "progress": True})
    assert requests.progress({"progressToken": one})
    assert requests.progress({"progressToken": other, "progress": 1})
    assert requests.progress({"progressToken": FIRST_ID + 1000, "progress": 1})
    assert requests.progress({"progressToken": one, "progress": 10**400})
    assert told == [(1.0, 4.0, "begun"), (2.5, None, None)]
    assert requests.progress({"progressToken": one, "progress": 1, "total": -(10**400)})
    assert told[2:] == [(1.0, None, None)]
    assert not caplog.text
    assert requests.progress({"progressToken": failing, "progress": 1})
    assert "was not forwarded" in caplog.text


@pytest.mark.parametrize("era", ["2026-07-28", "legacy"])
@pytest.mark.parametrize("is_told", [False, True], ids=["silent", "told"])
async def test_a_call_is_the_same_message_as_the_sessions_own(git_server, git_repository, monkeypatch, era, is_told):
    written = []
    post = stdio_transport._Sink.post

    def noted(self, data):
        written.append(json.loads(data))
        post(self, data)

    monkeypatch.setattr(stdio_transport._Sink, "post", noted)
    listener = Listener("me", lambda _text, _severity: None) if is_told else None
    arguments = {"repo_path": str(git_repository), "more": {"of": [None, 1.5, "é\U0001f600", {"empty": {}}]}}
    async with Fleet([dataclasses.replace(git_server, era=era)]) as fleet:
        await fleet.server("git").start()
        opened = fleet.servers["git"]._latest
        written.clear()
        ours = await opened.call("git_status", arguments, listener)
        theirs = await call_by_session(opened, "git_status", arguments, is_told=is_told)
    assert ours == theirs
    [direct, session] = [message for message in written if message.get("method") == "tools/call"]
    assert direct["id"] >= FIRST_ID > session["id"]
    for message in (direct, session):
        token = message["params"].get("_meta", {}).pop("progressToken", None)
        assert token == (message["id"] if is_told else None)
        message["id"] = 0
    assert direct == session


@pytest.mark.parametrize("era", ["2026-07-28", "legacy"])
@pytest.mark.parametrize("is_told", [False, True], ids=["silent", "told"])
async def test_a_call_over_http_is_the_same_request_as_the_sessions_own(tmp_path, monkeypatch, era, is_told):
    sent = []
    real = http_transport.opened

    def noted(client, method, url, *, headers, content=None, **rest):
        sent.append((method, str(url), dict(headers), content))
        return real(client, method, url, headers=headers, content=content, **rest)

    monkeypatch.setattr(http_transport, "opened", noted)
    listener = Listener("me", lambda _text, _severity: None) if is_told else None
    arguments = {"marker": "é\U0001f600"}
    with sdk_server("events", tmp_path / "calls") as port:
        async with Fleet([remote(port, "/mcp", era=era)]) as fleet:
            await fleet.server("remote").start()
            opened = fleet.servers["remote"]._latest
            sent.clear()
            ours = await opened.call("count", arguments, listener)
            theirs = await call_by_session(opened, "count", arguments, is_told=is_told)
    assert ours == theirs
    [direct, session] = [(*rest, json.loads(body)) for *rest, body in sent if body and b"tools/call" in body]
    assert direct[-1]["id"] >= FIRST_ID > session[-1]["id"]
    assert [list(each[-1]) for each in (direct, session)] == [["jsonrpc", "id", "method", "params"]] * 2
    for message in (direct[-1], session[-1]):
        token = message["params"].get("_meta", {}).pop("progressToken", None)
        assert token == (message["id"] if is_told else None)
        message["id"] = 0
    assert direct == session


async def call_by_session(opened, name, arguments, *, is_told):
    """What the SDK's session makes of the same call."""

    async def progressed(*_):
        pass

    request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
    return await opened._open_client().session.send_request(
        request, mcp_connection._CallResult, progress_callback=progressed if is_told else None
    )


async def test_a_call_that_is_given_up_is_cancelled_as_the_session_does_it(monkeypatch):
    written = []
    post = stdio_transport._Sink.post

    def noted(self, data):
        written.append(json.loads(data))
        post(self, data)

    monkeypatch.setattr(stdio_transport._Sink, "post", noted)
    async with Fleet([faulty("plain", call_timeout=0.3)]) as fleet:
        with pytest.raises(BridgeError, match="no answer within"):
            await call_tool(fleet, "faulty", "hang", {})
        [asked] = [message for message in written if message.get("method") == "tools/call"]
        [given_up] = [message for message in written if message.get("method") == "notifications/cancelled"]
        assert given_up == {
            "jsonrpc": "2.0",
            "method": "notifications/cancelled",
            "params": {"requestId": asked["id"], "reason": "caller cancelled"},
        }
        opened = fleet.servers["faulty"]._latest
        assert opened.transport.requests._pending == {}


class Answering:
    """A dispatcher of the SDK that answers every request alike."""

    def __init__(self, result):
        self.result = result

    async def send_raw_request(self, _method, _params, _opts=None):
        return dict(self.result)


INPUT_REQUIRED = {"resultType": "input_required", "requestState": "x"}
RESULTS = [
    TEXT,
    TEXT | {"resultType": "complete"},
    TEXT | {"isError": True, "resultType": "complete", "_meta": {"a": 1}},
    TEXT | {"structuredContent": {"a": [1]}, "resultType": "complete", "unknown": 1},
    TEXT | {"structuredContent": [1], "resultType": "complete"},
    TEXT | {"resultType": 7},
    TEXT | INPUT_REQUIRED,
    INPUT_REQUIRED,
    {"resultType": "input_required"},
    {"content": "text"},
    {"content": [{"type": "image"}], "resultType": "complete"},
    {},
]


@pytest.mark.parametrize("version", [LATEST_HANDSHAKE_VERSION, "2024-11-05", LATEST_MODERN_VERSION])
@pytest.mark.parametrize("raw", RESULTS, ids=[json.dumps(result)[:60] for result in RESULTS])
async def test_a_result_is_read_as_the_session_reads_it(raw, version):
    session = ClientSession(dispatcher=Answering(raw))
    named = {"capabilities": ServerCapabilities(), "server_info": Implementation(name="x", version="1")}
    if version == LATEST_MODERN_VERSION:
        session.adopt(DiscoverResult(supported_versions=[version], ttl_ms=0, cache_scope="private", **named))
    else:
        session.adopt(InitializeResult(protocol_version=version, **named))
    request = CallToolRequest(params=CallToolRequestParams(name="x", arguments={}))
    theirs = ours = None
    with suppress(ValidationError):
        theirs = await session.send_request(request, mcp_connection._CallResult)
    with suppress(ValidationError):
        ours = mcp_connection._call_result(dict(raw), version)
    assert ours == theirs
    assert type(ours) is type(theirs)
    if ours is not None:
        assert ours.model_fields_set == theirs.model_fields_set
