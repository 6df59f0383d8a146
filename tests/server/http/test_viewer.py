"""The trace viewer of `mcp-bridge serve --transport http`: who sees what, who decides, and who gets nothing."""

import contextlib
import json

import anyio
import anyio.to_thread
import httpx2
import pytest
from bridge_fixtures import DEADLINE_SECONDS, until
from http_bridge import ACCEPT, kept_serving, serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("whole_ledgers")]

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}

NEW = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": NEW,
    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}

PRINCIPALS = {"anna": {}, "ben": {}, "auditor": {"sees_all": True}, "boss": {"approver": True}}

PROXY = """
[authentication.proxy]
header = "X-Client-Subject"
trusted = ["127.0.0.2"]
principals = { "CN=Auditor" = "auditor" }
"""

ASKS = {"name": "asks", "steps": [{"id": "ask", "type": "approval", "message": "May I?"}]}


WITH_VIEWER = {"principals": PRINCIPALS, "http": {"viewer": True, "allowed_origins": ["https://listed.example"]}}


@pytest.fixture
def team(configure):
    """A bridge's `Setup` with these principals, and a token for each."""
    setup = configure(**WITH_VIEWER)
    return setup, {name: token_for(setup, name) for name in PRINCIPALS}


SHARED = pytest.mark.xdist_group("viewer")
"""For tests at one bridge, of which only one has executions."""


@pytest.fixture(scope="module")
def shared_team(configure_for_module):
    """A bridge with these principals that serves, and a token for each."""
    setup = configure_for_module(**WITH_VIEWER)
    with setup.config.open("a") as file:
        file.write(PROXY)
    tokens = {name: token_for(setup, name) for name in PRINCIPALS}
    with kept_serving(setup, "--tools", "programs") as bridge:
        yield bridge, tokens


def token_for(setup, name):
    return setup.command("principal", "add", name).out.strip()


def bearer(token):
    return {"authorization": f"Bearer {token}"}


async def asks(http, token):
    """Run a program that waits for a person; its id."""
    headers = ACCEPT | bearer(token)
    opened = await http.post("/mcp", json=INITIALIZE, headers=headers)
    assert opened.status_code == 200, opened.text
    headers |= {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    params = {"name": "run_program", "arguments": {"program": ASKS}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    answer = await http.post("/mcp", json=call, headers=headers)
    messages = [
        json.loads(line[5:]) for line in answer.text.splitlines() if line.startswith("data:") and line[5:].strip()
    ]
    record = messages[-1]["result"]["structuredContent"]
    assert record["status"] == "suspended", record
    return record["trace_id"]


async def is_open(http):
    async def opened():
        return (await http.get("/ready")).status_code == 200

    await until(opened)


def code_of(answer):
    return answer.json()["error"]["code"]


@SHARED
async def test_each_principal_sees_what_it_may_and_approvers_decide(shared_team):
    bridge, tokens = shared_team
    async with bridge.http() as http:
        await is_open(http)
        bens = await asks(http, tokens["ben"])
        one = f"/ui/api/executions/{bens}"

        async def asked(name, path, method="GET", **options):
            headers = {"origin": bridge.base} | bearer(tokens[name])
            return await http.request(method, path, headers=headers, **options)

        for name, sees in (("anna", False), ("ben", True), ("auditor", True), ("boss", False)):
            listed = (await asked(name, "/ui/api/executions")).json()["executions"]
            assert [row["id"] for row in listed] == ([bens] if sees else []), name
            for path in (one, f"{one}/entries", f"{one}/graph", f"{one}/proofs?sequence=0"):
                assert (await asked(name, path)).status_code == (200 if sees else 404), (name, path)
        unknown = await asked("anna", f"/ui/api/executions/{'0' * len(bens)}")
        assert (await asked("anna", one)).text == unknown.text

        (waiting,) = (await asked("boss", "/ui/api/approvals")).json()["approvals"]
        question, yes = f"/ui/api/approvals/{waiting['id']}", {"json": {"approved": True}}
        assert code_of(await asked("anna", question, "POST", **yes)) == "unknown_trace"
        for name in ("ben", "auditor"):
            assert code_of(await asked(name, question, "POST", **yes)) == "approver_needed"
        assert (await asked("boss", "/ui/api/approvals?count")).json()["open"] == 1
        decided = await asked("boss", question, "POST", **yes)
        assert (decided.status_code, decided.json()["status"], decided.json()["by"]) == (200, "approved", "boss")
        again = await asked("boss", question, "POST", **yes)
        assert (again.status_code, code_of(again)) == (409, "already_decided")
        assert b"Traceback" not in bridge.logged
        assert not any(token.encode() in bridge.logged for token in tokens.values())


async def test_what_a_change_takes_from_a_principal_is_gone_while_it_serves(team):
    setup, tokens = team
    before = setup.config.read_text()
    assert "approver = true" in before
    assert "sees_all = true" in before
    async with serving(setup, "--tools", "programs") as bridge, bridge.http() as http:
        await is_open(http)
        bens = await asks(http, tokens["ben"])

        async def asked(name, path, method="GET", **options):
            headers = {"origin": bridge.base} | bearer(tokens[name])
            return await http.request(method, path, headers=headers, **options)

        (waiting,) = (await asked("boss", "/ui/api/approvals")).json()["approvals"]
        question, yes = f"/ui/api/approvals/{waiting['id']}", {"json": {"approved": True}}
        assert len((await asked("auditor", "/ui/api/executions")).json()["executions"]) == 1

        # Without a call: the viewer asks no bridge.
        setup.config.write_text(before.replace("approver = true", "").replace("sees_all = true", ""))

        async def is_applied():
            return not (await asked("auditor", "/ui/api/executions")).json()["executions"]

        await until(is_applied)
        refused = await asked("boss", question, "POST", **yes)
        assert (refused.status_code, code_of(refused)) == (404, "unknown_trace")

        # What it adds holds from the next start on.
        more = setup.config.read_text().replace(
            "[principals.anna]", "[principals.anna]\napprover = true\nsees_all = true"
        )
        assert more.count("approver") == 1
        setup.config.write_text(more)
        await asks(http, tokens["ben"])
        assert (await asked("anna", "/ui/api/executions")).json()["executions"] == []

        # And what was taken is given back as it was.
        setup.config.write_text(before)
        await asks(http, tokens["ben"])
        assert (await asked("boss", question, "POST", **yes)).status_code == 200
        assert (await asked("ben", f"/ui/api/executions/{bens}")).status_code == 200
        assert b"Traceback" not in bridge.logged


@SHARED
async def test_pages_are_everybodys_and_hold_nothing_and_strangers_and_other_origins_get_no_data(shared_team):
    bridge, tokens = shared_team
    data = "/ui/api/executions"
    async with bridge.http() as http:
        await is_open(http)
        moved = await http.get("/ui")
        assert (moved.status_code, moved.headers["location"]) == (307, "/ui/")
        for path in ("/ui/", "/ui/approvals", "/ui/executions/x"):
            page = await http.get(path)
            assert page.status_code == 200
            assert '"/ui/static/main.js"' in page.text
            assert "default-src 'none'" in page.headers["content-security-policy"]
        assert (await http.get("/ui/static/main.js")).status_code == 200
        for path in ("/ui/static/../api.py", "/ui/nothing", "/ui//api/executions", "/uix"):
            assert (await http.get(path)).status_code == 404

        for path in (data, "/ui/api/events", "/ui/api/pools", "/ui/api/nothing", "/ui/api/%65vents"):
            for headers, code in (({}, "credentials_needed"), (bearer("mcpb_wrong"), None)):
                answer = await http.get(path, headers=headers)
                assert answer.status_code in ({401} if code else {401, 429}), path
                assert code is None or code_of(answer) == code
        assert "Bearer" in (await http.get(data)).headers["www-authenticate"]

        good = bearer(tokens["boss"])
        assert (await http.get(data, headers=good)).status_code == 200
        for headers in (
            {"origin": "https://evil.example"},
            # It may use MCP, and isn't the viewer's page.
            {"origin": "https://listed.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            assert (await http.get(data, headers=good | headers)).status_code == 403, headers
            assert "access-control-allow-origin" not in (await http.get(data, headers=good | headers)).headers
        # A change says which page it is from.
        change = await http.post("/ui/api/approvals/x.1", json={"approved": True}, headers=good)
        assert (change.status_code, code_of(change)) == (403, "bad_origin")
        assert (await http.get(data, headers=good | {"host": "evil.example"})).status_code == 421
        large = await http.post("/ui/api/approvals/x.1", content=b" " * (65 << 10), headers=good)
        assert (large.status_code, code_of(large)) == (413, "request_too_large")


@SHARED
async def test_a_proxys_client_certificate_needs_no_token_and_only_the_viewers_own_page_uses_it(shared_team):
    bridge, _ = shared_team
    transport = httpx2.AsyncHTTPTransport(local_address="127.0.0.2")
    async with httpx2.AsyncClient(base_url=bridge.base, timeout=DEADLINE_SECONDS, transport=transport) as http:
        await is_open(http)
        subject = {"x-client-subject": "CN=Auditor"}
        assert (await http.get("/ui/api/executions", headers=subject)).status_code == 200
        assert (await http.get("/ui/api/executions")).status_code == 401
        for header in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
            assert (await http.get("/ui/api/executions", headers=subject | header)).status_code == 403


async def test_a_token_that_is_revoked_ends_the_pages_stream_and_a_principal_has_no_more_than_its_places(team):
    setup, tokens = team
    async with serving(setup) as bridge, contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(bridge.http())
        await is_open(http)

        async def listening(name):
            client = await stack.enter_async_context(bridge.http())
            request = client.stream("GET", "/ui/api/events", headers=bearer(tokens[name]))
            return await stack.enter_async_context(request)

        annas = [await listening("anna") for _ in range(12)]
        assert [stream.status_code for stream in annas] == [200] * 12
        assert (await http.get("/ui/api/executions", headers=bearer(tokens["anna"]))).status_code == 429
        bens = await listening("ben")
        assert bens.status_code == 200

        setup.command("principal", "revoke", "anna")
        with anyio.fail_after(DEADLINE_SECONDS):
            for stream in annas:
                # Ended, and not cut.
                assert b"data: open" in await stream.aread()
        assert not bens.is_closed
        assert (await http.get("/ui/api/executions", headers=bearer(tokens["anna"]))).status_code == 401
        assert (await http.get("/ui/api/executions", headers=bearer(tokens["ben"]))).status_code == 200

        # Its end ends the others, and isn't held up by them.
        bridge.process.terminate()
        with anyio.fail_after(DEADLINE_SECONDS):
            await bens.aread()
        assert await bridge.ended() == 0
        assert b"Traceback" not in bridge.logged


async def test_without_principals_nothing_is_shown_and_without_the_setting_there_is_no_viewer(configure):
    setup = configure(http={"viewer": True})
    async with serving(setup) as bridge, bridge.http() as http:
        await is_open(http)
        answer = await http.get("/ui/api/executions")
        assert (answer.status_code, code_of(answer)) == (403, "authentication_needed")
        token = token_for(setup, "anna")
        assert (await http.get("/ui/api/executions")).status_code == 401
        assert (await http.get("/ui/api/executions", headers=bearer(token))).json()["executions"] == []
        for method, path in (("PUT", "/ui/api/executions"), ("POST", "/ui/"), ("POST", "/ui/static/x.js")):
            refused = await http.request(method, path, headers={"origin": bridge.base} | bearer(token))
            assert (refused.status_code, code_of(refused)) == (405, "bad_request"), path
    async with serving(configure()) as bridge, bridge.http() as http:
        for path in ("/ui", "/ui/", "/ui/api/executions"):
            assert (await http.get(path)).status_code == 404
    wrong = configure(http={"viewer": True, "path": "/ui/mcp"}).run("serve", "--transport", "http", "--port", "0")
    assert wrong.returncode == 2
    assert "viewer" in wrong.stderr.decode()


async def test_a_pool_is_counted_by_the_viewer_for_who_sees_all_and_by_doctor(configure):
    setup = configure(principals=PRINCIPALS, http={"viewer": True}, pool_max=1)
    tokens = {name: token_for(setup, name) for name in ("anna", "auditor")}
    async with serving(setup) as bridge, bridge.http() as http:
        await is_open(http)

        async def pools(name):
            answer = await http.get("/ui/api/pools", headers={"origin": bridge.base} | bearer(tokens[name]))
            assert answer.status_code == 200, answer.text
            return answer.json()["pools"]

        async def is_counted():
            return await pools("auditor")

        call = {"name": "run_python", "arguments": {"code": "1"}, "_meta": META}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        headers = ACCEPT | bearer(tokens["anna"]) | {"mcp-protocol-version": NEW, "mcp-method": "tools/call"}
        assert (await http.post("/mcp", json=body, headers=headers | {"mcp-name": "run_python"})).status_code == 200
        (row,) = await until(is_counted)
        assert {"hits", "misses", "waits", "lost", "target", "ceiling"} <= row.keys()
        assert await pools("anna") == []
        said = await anyio.to_thread.run_sync(lambda: setup.run("doctor"))
        assert f"The bridge of process {bridge.pid} has" in " ".join(said.stdout.decode().split())
