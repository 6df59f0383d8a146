"""What becomes of a request that the bridge's end cuts off."""

import asyncio
import json

import anyio
import pytest
from bridge_fixtures import DEADLINE_SECONDS

from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.http_settings import HttpSettings
from mcp_bridge.server.http.request_admission import Endpoint

CALL = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {}}


class Everybody:
    """An authenticator that takes everybody."""

    authenticates = False

    async def principal(self, _):
        return LOCAL_PRINCIPAL


async def cut_off(method, message, sent=()):
    """What a client has got whose request is ended by the bridge, after the handler has sent this."""
    begun, told = anyio.Event(), []

    async def handler(_, receive, send):
        await receive()
        for part in sent:
            await send(part)
        begun.set()
        await anyio.sleep_forever()

    async def receive():
        return {"type": "http.request", "body": json.dumps(message).encode() if message else b"", "more_body": False}

    async def send(part):
        told.append(part)

    endpoint = Endpoint(handler, Everybody(), HttpSettings())
    asking = asyncio.ensure_future(endpoint({"type": "http", "method": method, "headers": []}, receive, send))
    with anyio.fail_after(DEADLINE_SECONDS):
        await begun.wait()
        endpoint.close()
        await asking
    return told[0]["status"], b"".join(part.get("body", b"") for part in told), told[-1].get("more_body", False)


def error_of(body):
    message = json.loads(body)
    return message["id"], message["error"]["data"]["code"]


STREAM = (
    {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream; charset=utf-8")]},
    {"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True},
)


@pytest.mark.parametrize(
    ("method", "message", "answer"),
    [
        ("POST", CALL, (200, ("a", "cancelled"))),
        # Of these nothing was begun that could be done twice.
        ("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"}, (503, (None, "bridge_ending"))),
        ("GET", None, (503, (None, "bridge_ending"))),
    ],
)
async def test_a_request_that_has_begun_is_told_so_and_any_other_is_refused(method, message, answer):
    status, body, is_open = await cut_off(method, message)
    assert (status, error_of(body), is_open) == (*answer, False)


async def test_a_stream_that_has_begun_ends_with_the_answer():
    status, body, is_open = await cut_off("POST", CALL, STREAM)
    assert (status, is_open) == (200, False)
    *_, last = body.replace(b"\r\n", b"\n").removesuffix(b"\n\n").split(b"\n\n")
    assert last.startswith(b"event: message\ndata: ")
    assert error_of(last.partition(b"data: ")[2]) == ("a", "cancelled")
