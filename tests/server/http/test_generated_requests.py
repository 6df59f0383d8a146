"""Generated requests, most of them wrong somewhere: each has an answer that isn't a 500, and the bridge goes on.

`MCP_BRIDGE_TEST_LONG=1` asks for many more of them, and `MCP_BRIDGE_TEST_SEED=NUMBER` for others.
"""

import json
import os
import random

import anyio
import pytest
from bridge_fixtures import DEADLINE_SECONDS
from http_bridge import ACCEPT, serving

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("whole_ledgers")]

LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))
SEED = int(os.environ.get("MCP_BRIDGE_TEST_SEED", "0"))
REQUESTS = 5000 if LONG else 250

OLD, NEW = "2025-11-25", "2026-07-28"
CLIENT = {"name": "t", "version": "1"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": OLD, "capabilities": {}, "clientInfo": CLIENT},
}
META = {
    "io.modelcontextprotocol/protocolVersion": NEW,
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
METHODS = [
    "initialize", "ping", "tools/list", "tools/call", "resources/list", "resources/read", "resources/templates/list",
    "resources/subscribe", "prompts/get", "completion/complete", "logging/setLevel", "notifications/cancelled",
    "notifications/progress", "server/discover", "tasks/get", "sampling/createMessage", "nothing",
]  # fmt: skip
VALUES = [
    None, True, -1, 1.5, 1e308, 10**40, "", "\0", "\ud800", "né", "../..", "A" * 5000, [], {}, [[]], {"a": None},
    "run_python", "1", "artifact://x/y", "output://zz/stdout", "sessions://all", "artifact://../../../etc/passwd",
]  # fmt: skip
KEYS = ["name", "arguments", "uri", "_meta", "cursor", "protocolVersion", "capabilities", "requestId", "requestState"]
ARGUMENTS = ["code", "timeout", "servers", "session", "fork", "files", "packages", "idempotency_key", "dry_run", "x"]
HEADERS = [
    "accept",
    "content-type",
    "mcp-session-id",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "last-event-id",
]
HEADERS += ["origin", "content-encoding", "authorization", "traceparent", "expect", "range", "upgrade", "mcp-param-x"]
SAID = [
    "",
    "x",
    "\xff\xfe",
    "*/*",
    "application/json; charset=utf-16",
    "gzip",
    "2099-01-01",
    "A" * 3000,
    "-1",
    "null",
    ";,",
]
SENT = ["POST", "POST", "POST", "POST", "PUT", "OPTIONS", "HEAD", "PATCH", "TRACE", "DELETE"]
"""No GET: a session's own stream has no end."""


def value(rng):
    if rng.random() < 0.8:
        return rng.choice(VALUES)
    return {rng.choice(KEYS): value(rng) for _ in range(rng.randint(0, 3))}


def message(rng):
    made = {"jsonrpc": "2.0", "id": rng.randint(1, 10**6), "method": rng.choice(METHODS), "params": {}}
    if made["method"] == "tools/call":
        made["params"] = {"name": "run_python", "arguments": {"code": "1"}}
    if rng.random() < 0.5:
        made["params"]["_meta"] = dict(META)
    for _ in range(rng.randint(0, 3)):
        params = made["params"] if isinstance(made.get("params"), dict) else {}
        arguments = params.get("arguments")
        kind = rng.random()
        if kind < 0.25:
            made[rng.choice([*made, "result", "error"])] = value(rng)
        elif kind < 0.7:
            params[rng.choice(KEYS)] = value(rng)
        elif kind < 0.9 and isinstance(arguments, dict):
            arguments[rng.choice(ARGUMENTS)] = value(rng)
        elif isinstance(params.get("_meta"), dict):
            params["_meta"][rng.choice([*META, "progressToken", "traceparent"])] = value(rng)
    return made


def body(rng, made):
    data = json.dumps(made, ensure_ascii=rng.random() < 0.8).encode("utf-8", "surrogatepass")
    changes = [
        lambda: data[: rng.randint(0, len(data))],
        lambda: b"\xef\xbb\xbf" + data,
        lambda: b"[" + data + b"]",
        lambda: data.decode("utf-8", "replace").encode("utf-16"),
        lambda: b"[" * rng.choice([10, 1000, 100_000]),
        lambda: data.replace(b"1", b"NaN"),
        lambda: rng.randbytes(60),
        lambda: data.replace(b'"id"', b'"id": 1, "id"', 1),
    ]
    return rng.choice(changes)() if rng.random() < 0.15 else data


def headers(rng, made, session):
    if rng.random() < 0.6:
        given = ACCEPT | {"mcp-session-id": session, "mcp-protocol-version": OLD}
    else:
        method = made["method"] if isinstance(made.get("method"), str) else "x"
        given = ACCEPT | {"mcp-protocol-version": NEW, "mcp-method": method}
    if rng.random() < 0.3:
        given |= {rng.choice(HEADERS): rng.choice(SAID)}
    return [(name.encode(), text.encode("latin-1", "replace").replace(b"\0", b"")) for name, text in given.items()]


async def test_generated_requests_have_no_500_and_leave_a_working_server(setup):
    rng = random.Random(SEED)  # noqa: S311
    statuses = set()
    async with serving(setup) as bridge, bridge.http() as http:

        async def session():
            answer = await http.post("/mcp", json=INITIALIZE, headers=ACCEPT)
            assert answer.status_code == 200, answer.text
            return answer.headers["mcp-session-id"]

        current = await session()
        for number in range(REQUESTS):
            made, how = message(rng), rng.choice(SENT)
            sent, given = body(rng, made), headers(rng, made, current)
            with anyio.fail_after(DEADLINE_SECONDS):
                answer = await http.request(how, "/mcp", content=sent, headers=given)
            statuses.add(answer.status_code)
            assert answer.status_code < 500, (number, how, given, sent[:300], answer.text)
            assert "-32603" not in answer.text, (number, how, given, sent[:300], answer.text)
            assert "Traceback" not in answer.text
            if how == "DELETE":
                current = await session()
        assert {200, 400, 404} <= statuses
        async with bridge.client() as client:
            assert (await client.call_tool("run_python", {"code": "6 * 7"})).content[0].text == "42"
    assert b"Traceback" not in bridge.logged
