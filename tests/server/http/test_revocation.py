"""What a principal has running when it is revoked: it ends, in both eras, and the record says what became of it."""

import asyncio
import contextlib
import json

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx2
import pytest
from bridge_fixtures import DEADLINE_SECONDS, until
from http_bridge import ACCEPT, serving
from http_servers import ScriptedServer, remote
from http_servers import serving as serving_app
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from starlette.requests import HTTPConnection

from mcp_bridge.governance.principal_tokens import TokenStore
from mcp_bridge.governance.principals import Principal
from mcp_bridge.server.http import app
from mcp_bridge.server.http.authentication.authentication_settings import Authentication
from mcp_bridge.server.http.authentication.authenticator import LOOK_SECONDS, SECOND_LOOK_SECONDS, Authenticator
from mcp_bridge.server.principal_calls import PrincipalCalls

pytestmark = [pytest.mark.timeout(170), pytest.mark.usefixtures("whole_ledgers")]

NEW = "2026-07-28"

TABLES = "[principals.anna]\napprover = true\n[principals.ben]\n"

CALLS = "from mcp.sync.servers import remote\nprint(remote.act())"


@pytest.fixture
async def hanging():
    """A server whose calls are answered once the test lets them, with the port that it listens at."""
    released = anyio.Event()

    async def answer(_, message, __):
        if message["method"] == "tools/call":
            await released.wait()

    server = ScriptedServer(answer)
    async with serving_app(server.app) as port:
        server.port = port
        server.released = released
        yield server
        released.set()


def token_of(setup, name):
    return setup.command("principal", "add", name, "--json").json["token"]


@contextlib.asynccontextmanager
async def client_of(bridge, token, mode, **options):
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=DEADLINE_SECONDS) as http,
        Client(streamable_http_client(bridge.url, http_client=http), mode=mode, **options) as client,
    ):
        yield client


def take_away(setup, how):
    """Revoke the only token of anna, or take her table out."""
    if how == "token":
        setup.command("principal", "revoke", "anna")
    else:
        text = setup.config.read_text()
        setup.config.write_text(text.replace("[principals.anna]\napprover = true\n", ""))


async def executions(setup):
    return {row["id"]: row for row in (await setup.told("execution", "list"))["executions"]}


@pytest.mark.parametrize("mode", ["legacy", NEW])
@pytest.mark.parametrize("how", ["token", "table"])
async def test_what_runs_of_a_revoked_principal_is_cancelled_and_what_waits_does_not_start(
    configure, hanging, mode, how
):
    setup = configure(remote(hanging.port), max_concurrent=1)
    with setup.config.open("a") as file:
        file.write(TABLES)
    anna, ben = token_of(setup, "anna"), token_of(setup, "ben")
    async with serving(setup) as bridge:

        async def call(code, **arguments):
            # The SDK's client has errors of its own for what happens to it here.
            with contextlib.suppress(Exception):
                async with client_of(bridge, anna, mode) as client:
                    await client.call_tool("run_python", {"code": code} | arguments)

        calls = [asyncio.ensure_future(call(CALLS, idempotency_key="k"))]
        await until(lambda: len(hanging.calls) == 1)
        calls.append(asyncio.ensure_future(call(f"{CALLS}\n# waits")))

        async def both_are_there():
            return len(await executions(setup)) == 2

        await until(both_are_there)
        await anyio.to_thread.run_sync(take_away, setup, how)

        async def none_runs():
            return "running" not in {row["status"] for row in (await executions(setup)).values()}

        await until(none_runs)
        await setup.no_container_of(bridge.pid)
        statuses = {row["status"]: ident for ident, row in (await executions(setup)).items()}
        assert set(statuses) == {"interrupted", "cancelled"}, statuses
        # Another's run has the place now.
        async with client_of(bridge, ben, mode) as client:
            assert (await client.call_tool("run_python", {"code": "6 * 7"})).content[0].text == "42"
        assert len(hanging.calls) == 1
        for one in calls:
            one.cancel()
        await asyncio.wait(calls)
        assert b"Traceback" not in bridge.logged
    hanging.released.set()
    if how == "table":
        # Without its restrictions it doesn't go on, whoever says so.
        refused = setup.run("execution", "resume", statuses["interrupted"], "--json")
        assert (refused.returncode, b"not_a_principal" in refused.stdout + refused.stderr) == (1, True), refused
        with setup.config.open("a") as file:
            file.write("[principals.anna]\napprover = true\n")
    # The call that was under way is in doubt, and isn't made again; the script that waited has done nothing.
    resumed = json.loads(setup.run("execution", "resume", statuses["interrupted"], "--json").stdout)
    assert (resumed["status"], resumed["code"], resumed["waiting"][0]["tool"]) == (
        "suspended",
        "in_doubt",
        "remote.act",
    )
    shown = await setup.told("execution", "show", statuses["cancelled"])
    assert [row["kind"] for row in shown["timeline"]] == ["start", "end"]
    assert len(hanging.calls) == 1


async def test_a_call_that_waits_for_its_clients_answer_ends_with_its_principal_and_leaves_the_question(
    configure, hanging
):
    """No request is open then: what else the script does would go on unseen."""
    setup = configure(remote(hanging.port))
    with setup.config.open("a") as file:
        file.write(f'{TABLES}[[policy.rules]]\ntools = ["remote.*"]\neffect = "approve"\n')
    anna, asked = token_of(setup, "anna"), anyio.Event()

    async def answer(_, __):
        asked.set()
        await anyio.sleep_forever()

    code = "import asyncio\nfrom mcp.servers import remote\nawait asyncio.gather(remote.act(), asyncio.sleep(500))"
    async with serving(setup) as bridge:

        async def call():
            with contextlib.suppress(Exception):
                async with client_of(bridge, anna, NEW, elicitation_callback=answer) as client:
                    await client.call_tool("run_python", {"code": code})

        calling = asyncio.ensure_future(call())
        await asked.wait()
        assert await setup.containers(bridge.pid)
        await anyio.to_thread.run_sync(take_away, setup, "token")
        await setup.no_container_of(bridge.pid)
        calling.cancel()
        await asyncio.wait([calling])

        async def waits():
            return [row["status"] for row in (await executions(setup)).values()] == ["suspended"]

        await until(waits)
        assert b"Traceback" not in bridge.logged
    listed = (await setup.told("approvals", "list"))["approvals"]
    assert [row["question"]["tool"] for row in listed] == ["remote.act"]
    assert hanging.calls == []


async def test_a_principal_that_has_another_token_keeps_what_runs_in_its_session(configure, hanging):
    setup = configure(remote(hanging.port))
    with setup.config.open("a") as file:
        file.write(TABLES)
    anna = token_of(setup, "anna")
    async with serving(setup) as bridge:

        async def call():
            with contextlib.suppress(Exception):
                async with client_of(bridge, anna, "legacy") as client:
                    await client.call_tool("run_python", {"code": CALLS})

        calling = asyncio.ensure_future(call())
        await until(lambda: len(hanging.calls) == 1)
        new = (await setup.told("principal", "rotate", "anna"))["token"]
        await asyncio.wait([calling])
        async with client_of(bridge, new, "legacy") as client:
            assert (await client.call_tool("run_python", {"code": "6 * 7"})).content[0].text == "42"
        hanging.released.set()

        async def has_ended():
            return {row["status"] for row in (await executions(setup)).values()} == {"success"}

        await until(has_ended)


def run(code, token, *, progress=False):
    """A call of 2026-07-28: its body, and its headers."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": NEW,
        "io.modelcontextprotocol/clientInfo": {"name": "a-test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    } | ({"progressToken": 1} if progress else {})
    params = {"name": "run_python", "arguments": {"code": code}, "_meta": meta}
    headers = {"mcp-protocol-version": NEW, "mcp-method": "tools/call", "mcp-name": "run_python"}
    body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    return {"json": body, "headers": ACCEPT | headers | {"authorization": f"Bearer {token}"}}


async def status_of(http, token):
    """The status of a short request."""
    return (await http.post("/mcp", **run("1", token))).status_code


@pytest.mark.parametrize("mode", ["legacy", NEW])
async def test_a_call_whose_token_expires_meanwhile_goes_on_and_is_answered(configure, hanging, mode):
    """A client that got 401 would take another token, and have everything done again."""
    setup = configure(remote(hanging.port))
    with setup.config.open("a") as file:
        file.write(TABLES)
    brief = token_of(setup, "anna")
    async with serving(setup) as bridge, bridge.http() as http, client_of(bridge, brief, mode) as client:
        # Else the client asks for the list once it has the answer.
        await client.list_tools()
        calling = asyncio.ensure_future(client.call_tool("run_python", {"code": CALLS}))
        await until(lambda: hanging.calls)
        await anyio.to_thread.run_sync(setup.command, "principal", "rotate", "anna", "--grace", "5s")

        async def has_expired():
            return await status_of(http, brief) == 401

        await until(has_expired)
        # A change forgets what has expired, which isn't revoked by that.
        token_of(setup, "ben")
        await anyio.sleep(2 * (LOOK_SECONDS + SECOND_LOOK_SECONDS))
        hanging.released.set()
        assert "done" in (await calling).content[0].text
        assert len(hanging.calls) == 1


@pytest.mark.parametrize("progress", [False, True], ids=["nothing sent", "stream begun"])
async def test_a_call_that_had_begun_when_its_token_was_revoked_is_told_so_and_gets_no_401(
    configure, hanging, progress
):
    setup = configure(remote(hanging.port))
    with setup.config.open("a") as file:
        file.write(TABLES)
    anna, other = token_of(setup, "anna"), token_of(setup, "anna")
    async with serving(setup) as bridge, bridge.http() as http:
        code = f"progress(0, 1)\n{CALLS}" if progress else CALLS
        posting = asyncio.ensure_future(http.post("/mcp", **run(code, anna, progress=progress)))
        await until(lambda: hanging.calls)
        await anyio.to_thread.run_sync(setup.command, "principal", "revoke", "anna", "--token", anna.split("_")[1])
        answer = await posting
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream" if progress else "application/json")
        told = json.loads(answer.text.rpartition("data: ")[2]) if progress else answer.json()
        assert (told["id"], told["error"]["data"]["code"]) == (7, "cancelled")
        assert f"The call (execution {told['error']['data']['execution']}) had begun" in told["error"]["message"]
        assert "had begun, and was cancelled" in told["error"]["message"]
        assert (await status_of(http, anna), await status_of(http, other)) == (401, 200)
        assert b"Traceback" not in bridge.logged


@pytest.mark.parametrize("how", ["revoked", "expired"])
@pytest.mark.parametrize("mode", ["legacy", NEW])
async def test_a_call_that_had_begun_when_its_principals_only_token_ended_is_told_so(configure, hanging, mode, how):
    setup = configure(remote(hanging.port))
    with setup.config.open("a") as file:
        file.write(TABLES)
    async with serving(setup) as bridge:
        ends = ("--expires", "15s") if how == "expired" else ()
        anna = (await setup.told("principal", "add", "anna", *ends))["token"]

        async def said():
            async def progress(*_):
                pass

            async with client_of(bridge, anna, mode) as client:
                await client.list_tools()
                code = f"progress(0, 1)\n{CALLS}"
                try:
                    result = await client.call_tool("run_python", {"code": code}, progress_callback=progress)
                except MCPError as exc:
                    return str(exc)
                assert result.is_error
                return result.content[0].text

        calling = asyncio.ensure_future(said())
        await until(lambda: hanging.calls)
        if how == "revoked":
            await anyio.to_thread.run_sync(take_away, setup, "token")
        assert "had begun, and was cancelled" in await calling
        assert b"Traceback" not in bridge.logged


async def test_a_sessions_call_that_goes_on_when_its_token_is_revoked_is_not_taken_for_refused(configure, hanging):
    setup = configure(remote(hanging.port), http={"json_answers": True})
    with setup.config.open("a") as file:
        file.write(TABLES)
    anna = token_of(setup, "anna")
    token_of(setup, "anna")
    async with serving(setup) as bridge:

        async def call():
            async with client_of(bridge, anna, "legacy") as client:
                with pytest.raises(MCPError, match="had begun, and continues"):
                    await client.call_tool("run_python", {"code": CALLS})

        calling = asyncio.ensure_future(call())
        await until(lambda: hanging.calls)
        await anyio.to_thread.run_sync(setup.command, "principal", "revoke", "anna", "--token", anna.split("_")[1])
        await calling
        hanging.released.set()

        async def has_succeeded():
            return [row["status"] for row in (await executions(setup)).values()] == ["success"]

        await until(has_succeeded)


@pytest.mark.parametrize("is_back", [True, False])
async def test_a_principal_that_is_missing_for_a_moment_keeps_its_calls(is_back):
    """An editor has the configuration half-written: the second look finds it whole."""
    known = []

    class Looked:
        async def look(self):
            known.append(is_back)

        async def knows(self, name):
            return any(known)

    looked, calls = Looked(), PrincipalCalls()

    async def work():
        await app._cancel_calls_without_principal(looked, calls, looked, "anna")
        await anyio.lowlevel.checkpoint()
        return "done"

    assert await calls.run("anna", work) == ("done" if is_back else None)
    assert known == [is_back]


@pytest.mark.parametrize("how", ["token", "table"])
async def test_a_request_goes_on_while_its_credential_is_missing_for_a_moment(monkeypatch, tmp_path, how):
    """A request of 2026-07-28 ends with its credential: the second look decides."""
    anna = Principal("anna")
    tokens = TokenStore(tmp_path)
    made = tokens.add("anna", restricted=True)
    file = next(path for path in tmp_path.iterdir() if made.id in path.read_text())
    whole = file.read_bytes()
    asked = Authenticator({"anna": anna}, tokens, Authentication())
    scope = {"type": "http", "headers": [(b"authorization", f"Bearer {made.text}".encode())], "client": None}
    request = HTTPConnection(scope)
    assert await asked.principal(request) == anna
    steps = ["away", "back", "away", "still away"]
    real = asked._was_revoked

    async def look(credential):
        step = steps.pop(0)
        if how == "table":
            asked.restrict({"anna": anna} if step == "back" else {})
        else:
            file.write_bytes(whole if step == "back" else whole[:-9])
        return await real(credential)

    monkeypatch.setattr(asked, "_was_revoked", look)
    with anyio.fail_after(DEADLINE_SECONDS):
        await asked.ended(request)
    assert steps == []


@pytest.mark.parametrize("mode", ["legacy", NEW])
async def test_a_configuration_that_is_being_written_neither_refuses_nor_ends_a_request(configure, mode):
    """An editor writes it again and again, in two steps, and at times replaces it; requests come meanwhile, and run."""
    setup = configure()
    with setup.config.open("a") as file:
        file.write(TABLES)
    anna, text = token_of(setup, "anna"), setup.config.read_text()
    written = 0
    async with serving(setup) as bridge, client_of(bridge, anna, mode) as client:

        async def write():
            nonlocal written
            while True:
                with setup.config.open("w") as file:
                    await anyio.sleep(0.1)
                    file.write(text)
                await anyio.sleep(0.2)
                setup.config.unlink()
                await anyio.sleep(0.1)
                setup.config.write_text(text)
                await anyio.sleep(0.2)
                written += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            for _ in range(2):
                answer = await client.call_tool("run_python", {"code": "import time\ntime.sleep(3)\nprint(42)"})
                assert answer.content[0].text.strip() == "42"
            while written < 10:
                assert (await client.list_tools()).tools
                answer = await client.call_tool("run_python", {"code": "6 * 7"})
                assert answer.content[0].text == "42"
            tasks.cancel_scope.cancel()
