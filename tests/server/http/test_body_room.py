"""The room for the bodies of requests: what one principal sends or has running takes no other's place."""

import asyncio
import json

import anyio
import pytest
from bridge_fixtures import DEADLINE_SECONDS, until

from mcp_bridge.governance.principals import Principal
from mcp_bridge.http_settings import HttpSettings
from mcp_bridge.server.app import PRINCIPAL_KEY
from mcp_bridge.server.http.body_room import MAX_ARRIVING_BYTES, MAX_BYTES_PER_PRINCIPAL, Body, BodyRoom
from mcp_bridge.server.http.request_admission import Endpoint

MIB = 1 << 20


def fill(body, part=MIB):
    """Let a body grow until there is no room; its size."""
    while body.take(part):
        pass
    return body.size


def test_one_alone_gets_half_two_a_third_each_and_some_is_always_free():
    room = BodyRoom(10 * MIB)
    names = [f"p{number}" for number in range(20)]
    sizes = {name: fill(Body(room, name), 1 << 10) for name in names}
    assert sizes["p0"] == MAX_ARRIVING_BYTES // 2
    assert sizes["p1"] == MAX_ARRIVING_BYTES // 4
    assert all(sizes[name] for name in names[:10]), sizes

    room, sizes = BodyRoom(10 * MIB), {}
    bodies = [Body(room, "anna"), Body(room, "ben")]
    # Both ask in turn: neither gets more than the other.
    while [body.take(MIB) for body in bodies].count(True):
        pass
    assert [body.size for body in bodies] == [MAX_ARRIVING_BYTES // 3 // MIB * MIB] * 2


def test_what_one_principal_has_is_given_back_whole_and_more_requests_give_it_no_more():
    room = BodyRoom(10 * MIB)
    with Body(room, "anna") as first, Body(room, "anna") as second:
        assert fill(first) == MAX_ARRIVING_BYTES // 2
        assert fill(second) == 0
        first.hand_on()
        first.hand_on()
        assert room.arriving == 0
        # What runs is counted for its principal alone.
        assert fill(second) == MAX_BYTES_PER_PRINCIPAL - first.size
        second.hand_on()
        with Body(room, "anna") as third, Body(room, "ben") as other:
            assert not third.take(1)
            assert fill(other) == MAX_ARRIVING_BYTES // 2
    with Body(room, "anna") as again:
        assert fill(again) == MAX_ARRIVING_BYTES // 2
    assert room.arriving == 0


def test_a_body_as_large_as_the_setting_has_room():
    room = BodyRoom(300 * MIB)
    with Body(room, "anna") as body:
        assert fill(body) == 300 * MIB


class ByHeader:
    """Believes what a request says."""

    authenticates = False

    async def principal(self, request):
        return Principal(request.headers["x-principal"])


class Running:
    """What answers a request once it is let."""

    def __init__(self):
        self.count = 0
        self.end = anyio.Event()

    async def __call__(self, scope, receive, send):
        assert scope[PRINCIPAL_KEY].name
        while (await receive())["more_body"]:
            pass
        self.count += 1
        await self.end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def asked(endpoint, name, size, method="POST"):
    """The status of a request, and its answer."""
    parts = [{"type": "http.request", "body": b"x" * size, "more_body": False}]
    told = []

    async def receive():
        return parts.pop() if parts else await anyio.sleep_forever()

    async def send(message):
        told.append(message)

    scope = {"type": "http", "method": method, "path": "/mcp", "query_string": b""}
    await endpoint({**scope, "headers": [(b"x-principal", name.encode())]}, receive, send)
    return told[0]["status"], b"".join(message.get("body", b"") for message in told)


@pytest.mark.timeout(60)
async def test_calls_that_run_take_no_room_of_others_and_are_bounded_for_each():
    running = Running()
    endpoint = Endpoint(running, ByHeader(), HttpSettings())
    calls = [asyncio.ensure_future(asked(endpoint, name, 9 * MIB)) for name in ("anna", "ben") for _ in range(7)]

    def all_run():
        return running.count == len(calls)

    await until(all_run)
    status, body = await asked(endpoint, "anna", 9 * MIB)
    assert (status, json.loads(body)["error"]["data"]["code"]) == (503, "too_many_requests")
    # A small one, and those of others, have room.
    more = [asyncio.ensure_future(asked(endpoint, name, size)) for name, size in (("anna", 1000), ("cleo", 9 * MIB))]
    calls += more
    await until(all_run)
    running.end.set()
    with anyio.fail_after(DEADLINE_SECONDS):
        assert {status for status, _ in await asyncio.gather(*calls)} == {200}
    assert (await asked(endpoint, "anna", 9 * MIB))[0] == 200


async def test_what_is_too_large_is_told_so_though_its_rest_takes_longer_than_bodies_may():
    endpoint = Endpoint(Running(), ByHeader(), HttpSettings(read_timeout=0.05))
    arriving = [{"type": "http.request", "body": b"x", "more_body": True}]
    told = []

    async def receive():
        if not arriving:
            await anyio.sleep_forever()
        return arriving.pop()

    async def send(message):
        told.append(message)

    scope = {"type": "http", "method": "GET", "path": "/mcp", "query_string": b""}
    await endpoint({**scope, "headers": [(b"x-principal", b"anna")]}, receive, send)
    assert told[0]["status"] == 413


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_only_a_post_request_has_a_body(method):
    running = Running()
    running.end.set()
    endpoint = Endpoint(running, ByHeader(), HttpSettings())
    status, body = await asked(endpoint, "anna", 1, method)
    assert (status, json.loads(body)["error"]["data"]["code"]) == (413, "request_too_large")
    assert running.count == 0
    assert (await asked(endpoint, "anna", 0, method))[0] == 200
