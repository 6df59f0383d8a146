"""The process that serves MCP over HTTP: how it begins, drains and ends, and many clients at once."""

import asyncio
import json
import os
import signal
import ssl
from pathlib import Path

import anyio
import httpx2
import pytest
from bridge_fixtures import DEADLINE_SECONDS, until
from http_bridge import ACCEPT, serving
from mcp import Client, types
from mcp.client.streamable_http import streamable_http_client

pytest_plugins = ["server_fixtures"]

pytestmark = [pytest.mark.timeout(170), pytest.mark.usefixtures("whole_ledgers")]

NEW = "2026-07-28"


async def running(bridge, setup):
    """Wait until a script runs in a container."""

    async def runs():
        return bool(await setup.containers(bridge.pid))

    await until(runs)


# --- the end ---


@pytest.mark.parametrize("mode", ["legacy", NEW])
async def test_after_sigterm_running_calls_are_answered_and_new_ones_refused(setup, mode):
    async with serving(setup) as bridge, bridge.client(mode) as client, bridge.http() as http:
        async with anyio.create_task_group() as tasks:
            answers, runs = [], anyio.Event()

            async def progress(*_):
                runs.set()

            async def call():
                code = "import time\nprogress(0, 1)\ntime.sleep(4)\nprint('whole')"
                result = await client.call_tool("run_python", {"code": code}, progress_callback=progress)
                answers.append(result.content[0].text)

            tasks.start_soon(call)
            await runs.wait()
            os.kill(bridge.pid, signal.SIGTERM)

            async def is_draining():
                return (await http.get("/ready")).status_code == 503

            await until(is_draining, every=0.02)
            assert (await http.get("/health")).status_code == 200
            for method in ("initialize", "tools/call"):
                refused = await http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": method}, headers=ACCEPT)
                assert refused.status_code == 503
                assert refused.json()["error"]["data"]["code"] == "bridge_ending"
                assert refused.headers["retry-after"]
        assert answers == ["whole"]
        assert await bridge.ended() == 0
    await setup.no_container_of(bridge.pid)


@pytest.mark.parametrize("how", ["bound", "second signal"])
async def test_what_does_not_end_in_time_is_cancelled_and_nothing_stays_behind(configure, how):
    setup = configure(http={"drain_timeout": 1.0 if how == "bound" else 1000.0})
    async with serving(setup) as bridge, bridge.http() as http:
        body = {"name": "run_python", "arguments": {"code": "import time\ntime.sleep(100)"}}
        body |= {"_meta": {"io.modelcontextprotocol/protocolVersion": NEW} | CLIENT}
        headers = ACCEPT | {"mcp-protocol-version": NEW, "mcp-method": "tools/call", "mcp-name": "run_python"}
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": body}
        call = asyncio.ensure_future(http.post("/mcp", json=request, headers=headers))
        await running(bridge, setup)
        os.kill(bridge.pid, signal.SIGTERM)
        if how == "second signal":

            async def is_draining():
                return (await http.get("/ready")).status_code == 503

            await until(is_draining)
            os.kill(bridge.pid, signal.SIGTERM)
        assert await bridge.ended() == 0
        await asyncio.wait([call])
        assert call.exception() is not None or call.result().status_code == 503
    await setup.no_container_of(bridge.pid)
    assert b"Traceback" not in bridge.logged


CLIENT = {
    "io.modelcontextprotocol/clientInfo": {"name": "a-test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


# --- questions to the client ---


@pytest.mark.parametrize("mode", ["legacy", NEW])
async def test_a_person_behind_the_client_is_asked(configure, git_server, git_repository, mode):
    setup = configure(git_server)
    with setup.config.open("a") as file:
        file.write('\n[[policy.rules]]\ntools = ["git.*"]\neffect = "approve"\n')
    asked = []

    async def answer(_, params):
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"approve": True})

    code = (
        f"from mcp.servers import git\nprint('clean' in str(await git.git_status(repo_path={str(git_repository)!r})))"
    )
    async with serving(setup) as bridge, bridge.client(mode, elicitation_callback=answer) as client:
        result = await client.call_tool("run_python", {"code": code})
    assert result.content[0].text == "True", result
    assert len(asked) == 1
    assert "git_status" in asked[0]


# --- many at once ---


async def test_many_clients_of_many_principals_get_their_own_and_nothing_leaks(configure):
    """Calls that are answered, cancelled and cut, in both eras: markers of others would show in any answer."""
    names = [f"team-{number}" for number in range(5)]
    limits = {"max_sessions_per_principal": 50, "max_connections_per_address": 500}
    setup = configure(principals={name: {} for name in names}, http=limits, max_concurrent=4, max_queued=500)
    tokens = {}
    for name in names:
        told = setup.run("principal", "add", name, "--json")
        tokens[name] = json.loads(told.stdout)["token"]
    wrong, answered, ended = [], [], []
    async with serving(setup) as bridge:

        def descriptors():
            return len(list(Path(f"/proc/{bridge.pid}/fd").iterdir()))

        async def one(number):
            name, mode = names[number % len(names)], ("legacy", NEW)[number % 2]
            mark = f"MARK-{number}-{name}-END"
            headers = {"authorization": f"Bearer {tokens[name]}"}
            heard = []

            async def progress(_done, _total, message):
                heard.append(message or "")

            code = f"progress(1, 2, {mark!r})\nprint({mark!r})\nawait runtime.save_memory('mark', {mark!r})\n"
            slow = code + "import time\ntime.sleep(100)"
            async with httpx2.AsyncClient(headers=headers, timeout=DEADLINE_SECONDS) as http:
                target = streamable_http_client(bridge.url, http_client=http)
                async with Client(target, mode=mode, read_timeout_seconds=2 * DEADLINE_SECONDS) as client:
                    kind = number % 4
                    if kind == 3:
                        with anyio.move_on_after(0.5 + number % 3):
                            await client.call_tool("run_python", {"code": slow}, progress_callback=progress)
                        ended.append(number)
                    else:
                        result = await client.call_tool("run_python", {"code": code}, progress_callback=progress)
                        text = result.content[0].text
                        answered.append(number)
                        if text != mark:
                            wrong.append((number, text))
                    wrong.extend((number, said) for said in heard if "MARK" in said and mark not in said)

        await one(0)
        before = descriptors()
        with anyio.fail_after(150):
            async with anyio.create_task_group() as tasks:
                for number in range(1, 41):
                    tasks.start_soon(one, number)
        assert not wrong
        assert len(answered) == 31
        assert len(ended) == 10
        await setup.no_container_of(bridge.pid)

        async def as_before():
            return descriptors() <= before + 3

        await until(as_before)
        assert b"Traceback" not in bridge.logged
        os.kill(bridge.pid, signal.SIGTERM)
        assert await bridge.ended() == 0
    assert b"MARK" not in bridge.logged


# --- https ---


async def test_it_serves_https_with_a_certificate(setup, tmp_path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-out", str(certificate), "-keyout", str(key))
    await anyio.run_process(["openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", *subject, *files])
    async with serving(setup, "--tls-cert", str(certificate), "--tls-key", str(key)) as bridge:
        assert bridge.url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=certificate)
        async with httpx2.AsyncClient(base_url=bridge.base, verify=trusted, timeout=DEADLINE_SECONDS) as http:
            assert (await http.get("/health")).json() == {"status": "alive"}
        async with bridge.connection() as (reader, writer):
            # Plain HTTP has no answer there.
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with anyio.fail_after(DEADLINE_SECONDS):
                assert b"alive" not in await reader.read()
