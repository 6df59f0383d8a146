"""The process that serves MCP over HTTP: how it begins, drains and ends, and how much it takes."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import ssl
from datetime import UTC, datetime, timedelta

import anyio
import httpx2
import pytest
from bridge_fixtures import DEADLINE_SECONDS, until
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from http_bridge import ACCEPT, serving
from http_servers import ScriptedServer, remote
from http_servers import serving as serving_app
from mcp import types

from mcp_bridge.ledger.storage.live_bridges import http_ports
from mcp_bridge.server.http.refusals import LOGGED_PER_MINUTE

pytest_plugins = ["server_fixtures"]

pytestmark = [pytest.mark.timeout(170), pytest.mark.usefixtures("whole_ledgers")]

NEW = "2026-07-28"


async def running(bridge, setup):
    """Wait until a script runs in a container."""

    async def runs():
        return bool(await setup.containers(bridge.pid))

    await until(runs)


async def test_where_it_serves_is_in_the_state_directory_while_it_serves(setup):
    async with serving(setup) as bridge:
        async with bridge.client() as client:
            await client.list_tools()
        assert http_ports(setup.state_dir) == (bridge.port,)
        bridge.process.send_signal(signal.SIGTERM)
        assert await bridge.ended() == 0
    assert http_ports(setup.state_dir) == ()


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


@pytest.mark.parametrize("mode", ["legacy", NEW])
@pytest.mark.parametrize("how", ["bound", "second signal", "terminal gone"])
async def test_what_does_not_end_in_time_is_cancelled_and_told_so_and_nothing_stays_behind(configure, how, mode):
    setup = configure(http={"drain_timeout": 1000.0 if how == "second signal" else 1.0})
    async with serving(setup) as bridge, bridge.http() as http, bridge.client(mode) as client:
        runs = anyio.Event()

        async def progress(*_):
            runs.set()

        code = {"code": "import time\nprogress(0, 1)\ntime.sleep(100)"}
        call = asyncio.ensure_future(client.call_tool("run_python", code, progress_callback=progress))
        await runs.wait()
        os.kill(bridge.pid, signal.SIGHUP if how == "terminal gone" else signal.SIGTERM)
        if how == "second signal":

            async def is_draining():
                return (await http.get("/ready")).status_code == 503

            await until(is_draining)
            os.kill(bridge.pid, signal.SIGTERM)
        result = await call
        assert result.is_error
        assert "[cancelled]" in result.content[0].text
        assert "The bridge is being stopped" in result.content[0].text
        assert await bridge.ended() == 0
    await setup.no_container_of(bridge.pid)
    assert b"Traceback" not in bridge.logged


async def test_after_sigterm_what_goes_on_by_itself_ends_and_nothing_further_begins(configure):
    released = anyio.Event()

    async def answer(_, message, __):
        if message["method"] == "tools/call":
            await released.wait()

    server = ScriptedServer(answer)
    code = "import time\nfrom mcp.servers import remote\nawait runtime.sleep_until(time.time() + {})\nprint(await remote.act())"
    async with serving_app(server.app) as port:
        # One goes on by itself at a time.
        setup = configure(remote(port), http={"drain_timeout": 100.0}, max_concurrent=4)

        async def statuses():
            return sorted(row["status"] for row in (await setup.told("execution", "list"))["executions"])

        async with serving(setup) as bridge:
            async with bridge.client(NEW) as client:
                for key, seconds in (("first", 6), ("second", 7)):
                    arguments = {"code": code.format(seconds), "idempotency_key": key}
                    told = (await client.call_tool("run_python", arguments)).content[0].text
                    assert "It waits until" in told, told
            await until(lambda: server.calls)
            os.kill(bridge.pid, signal.SIGTERM)
            async with bridge.http() as http:

                async def is_draining():
                    return (await http.get("/ready")).status_code == 503

                await until(is_draining, every=0.02)
            assert await statuses() == ["running", "suspended"]
            released.set()
            assert await bridge.ended() == 0
        assert await statuses() == ["success", "suspended"]
        assert len(server.calls) == 1
        assert b"Traceback" not in bridge.logged
    await setup.no_container_of(bridge.pid)


CLIENT = {
    "io.modelcontextprotocol/clientInfo": {"name": "a-test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


# --- questions to the client ---


async def test_a_person_behind_the_client_is_asked(configure, git_server, git_repository):
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
    async with serving(setup) as bridge:
        for mode in ("legacy", NEW):
            asked.clear()
            async with bridge.client(mode, elicitation_callback=answer) as client:
                result = await client.call_tool("run_python", {"code": code})
            assert result.content[0].text == "True", result
            assert len(asked) == 1
            assert "git_status" in asked[0]


async def test_an_answer_to_a_question_is_only_taken_with_the_arguments_of_its_call(
    configure, git_server, git_repository
):
    setup = configure(git_server)
    with setup.config.open("a") as file:
        file.write('\n[[policy.rules]]\ntools = ["git.*"]\neffect = "approve"\n')
    code = (
        f"from mcp.servers import git\nprint('clean' in str(await git.git_status(repo_path={str(git_repository)!r})))"
    )
    meta = CLIENT | {
        "io.modelcontextprotocol/protocolVersion": NEW,
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    }
    headers = ACCEPT | {"mcp-protocol-version": NEW, "mcp-method": "tools/call", "mcp-name": "run_python"}

    async with serving(setup) as bridge, bridge.http() as http:

        async def called(arguments, **more):
            params = {"name": "run_python", "arguments": arguments, "_meta": meta, **more}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            text = (await http.post("/mcp", json=body, headers=headers)).text
            data = next(
                (line[5:] for line in text.splitlines() if line.startswith("data:") and "jsonrpc" in line), text
            )
            return json.loads(data)

        asked = (await called({"code": code, "idempotency_key": "k"}))["result"]
        answers = {key: {"action": "accept", "content": {"approve": True}} for key in asked["inputRequests"]}
        more = {"requestState": asked["requestState"], "inputResponses": answers}
        other = await called({"code": "print('OTHER')", "idempotency_key": "k"}, **more)
        assert other["error"]["data"]["code"] == "bad_argument"
        # The call itself still waits, and goes on with its own.
        done = await called({"code": code, "idempotency_key": "k"}, **more)
        assert done["result"]["content"][0]["text"] == "True"


@pytest.mark.parametrize("mode", ["legacy", NEW])
@pytest.mark.parametrize("how", ["the bridge ends", "the client leaves", "the client leaves stdio"])
async def test_a_question_that_nobody_is_left_to_answer_waits_for_anybody_else(
    configure, git_server, git_repository, how, mode
):
    setup = configure(git_server, http={"drain_timeout": 1.0})
    with setup.config.open("a") as file:
        file.write('\n[[policy.rules]]\ntools = ["git.*"]\neffect = "approve"\n')
    asked = anyio.Event()

    async def answer(_, __):
        asked.set()
        await anyio.sleep_forever()

    code = f"from mcp.servers import git\nprint(await git.git_status(repo_path={str(git_repository)!r}))"

    async def waiting():
        return (await setup.told("approvals", "list"))["approvals"]

    async def call(client):
        # The SDK's client has errors of its own for what happens to it here.
        with contextlib.suppress(Exception):
            async with client as connected:
                await connected.call_tool("run_python", {"code": code})

    async with contextlib.AsyncExitStack() as stack:
        over_stdio = how == "the client leaves stdio"
        bridge = setup if over_stdio else await stack.enter_async_context(serving(setup))
        calling = asyncio.ensure_future(call(bridge.client(mode, elicitation_callback=answer)))
        await asked.wait()
        assert await waiting() == []
        if how != "the bridge ends":
            calling.cancel()
            await asyncio.wait([calling])
        # At 2026-07-28 the question was an answer: its client may still come back.
        if how == "the bridge ends" or (mode == NEW and not over_stdio):
            os.kill(bridge.pid, signal.SIGTERM)
            await bridge.ended()
        (question,) = [row["question"] for row in await until(waiting)]
        calling.cancel()
        await asyncio.wait([calling])
    assert question["tool"] == "git.git_status"
    assert question["arguments"] == {"repo_path": str(git_repository)}


# --- descriptors ---


@contextlib.contextmanager
def open_files(soft):
    """Processes that are started meanwhile may have so many files open, and more if they ask for them."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_it_serves_as_many_connections_as_configured_with_a_low_soft_limit(configure):
    setup = configure(http={"max_connections": 400, "max_connections_per_address": 400})
    async with contextlib.AsyncExitStack() as stack:
        with open_files(256):
            bridge = await stack.enter_async_context(serving(setup))
        for _ in range(300):
            await stack.enter_async_context(bridge.connection())
        async with bridge.client() as client:
            assert (await client.call_tool("run_python", {"code": "6 * 7"})).content[0].text == "42"


def test_more_connections_than_there_may_be_descriptors_are_refused_at_the_start(configure):
    setup = configure(http={"max_connections": 10_000_000})
    refused = setup.run("serve", "--transport", "http", "--port", "0")
    assert refused.returncode == 4
    said = refused.stderr.decode()
    assert said.startswith("mcp-bridge: too_few_descriptors: ")
    assert "LimitNOFILE" in said
    assert "http.max_connections, now 10000000" in said


async def test_an_address_has_no_more_connections_than_its_own_limit(configure):
    setup = configure(http={"max_connections_per_address": 3})
    async with serving(setup) as bridge, contextlib.AsyncExitStack() as stack:
        head = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"

        async def asked(address):
            reader, writer = await asyncio.open_connection("127.0.0.1", bridge.port, local_addr=(address, 0))
            stack.callback(writer.close)
            writer.write(head)
            with anyio.fail_after(DEADLINE_SECONDS):
                return int((await reader.readuntil(b"\r\n\r\n")).split()[1]), writer

        first = [await asked("127.0.0.1") for _ in range(3)]
        assert [status for status, _ in first] == [200] * 3
        assert (await asked("127.0.0.1"))[0] == 503
        # Others have their own.
        assert (await asked("127.0.0.2"))[0] == 200
        first[0][1].close()

        async def is_free():
            return (await asked("127.0.0.1"))[0] == 200

        await until(is_free)


# --- what the log has ---


async def test_a_configuration_that_cannot_be_used_is_in_the_log_file_and_in_the_logs_form(configure, tmp_path):
    log = tmp_path / "bridge.log"
    settings = {"telemetry.over_http": True, "log_format": "json", "log_file": str(log)}
    setup = configure(**settings, principals={"anna": {"sees_all": True}})
    anna = setup.command("principal", "add", "anna", "--json").json["token"]
    text = setup.config.read_text()
    async with serving(setup) as bridge, bridge.http(authorization=f"Bearer {anna}") as http:

        async def current(wanted):
            said = (await http.get("/metrics")).text
            return f"mcp_bridge_configuration_current {wanted}.0\n" in said

        assert await until(lambda: current(1))
        for end, is_current in (("[principals", 0), ("", 1)):
            setup.config.write_text(text + end)
            assert await until(lambda wanted=is_current: current(wanted))
        for lines in (log.read_text(), bridge.logged.decode()):
            records = [json.loads(line) for line in lines.splitlines()]
            told = [record for record in records if "can't be used" in record["message"]]
            assert [(record["level"], record["message"][:11]) for record in told] == [("error", "bad_config:")]


async def test_refused_requests_are_logged_with_address_and_code_and_no_more_often_than_so(configure):
    setup = configure(http={"max_body_size": 1000}, principals={"anna": {"requests_per_minute": 3}})
    anna = setup.command("principal", "add", "anna", "--json").json["token"]
    mine = {"authorization": f"Bearer {anna}"} | ACCEPT
    async with serving(setup) as bridge, bridge.http() as http:
        answer = await http.get("/health", headers={"host": "elsewhere.example"})
        assert (answer.status_code, "http.allowed_hosts" in answer.text) == (421, True)
        await http.get("/health", headers={"origin": "https://elsewhere.example"})
        await http.post("/mcp", headers=mine, content=b"x" * 2000)
        await http.get("/mcp", headers=mine | {"mcp-session-id": "0" * 32})
        for _ in range(3):
            await http.get("/mcp", headers=mine)
        for _ in range(30):
            assert (await http.get("/mcp")).status_code == 401
        await http.get("/favicon.ico")

        def logged(code):
            return bridge.logged.count(f"a request from 127.0.0.1 is refused ({code})".encode())

        for code in ("421 bad_host", "403 bad_origin", "413 request_too_large", "404 unknown_http_session"):
            await until(lambda code=code: logged(code) == 1)
        await until(lambda: logged("429 too_many_requests") >= 1)
        assert LOGGED_PER_MINUTE <= logged("401 credentials_needed") < 30
        assert b"unknown_path" not in bridge.logged
        assert anna.encode() not in bridge.logged


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


def write_pair(folder, names, start, days):
    """A certificate of this address for so many days, as cert.pem and key.pem of those names."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    began = datetime.now(UTC) + timedelta(days=start)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(began + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    certificate = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for path, content in zip(names, (certificate, private), strict=True):
        (folder / path).write_bytes(content)
    return made.serial_number


async def served(bridge):
    """The serial number of the certificate that a new connection gets."""
    pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", bridge.port))
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


async def test_a_certificate_that_is_renewed_is_served_and_one_that_cannot_be_used_is_not(setup, tmp_path):
    files = ("cert.pem", "key.pem")
    first = write_pair(tmp_path, files, -3, 1)
    command = ("--tls-cert", str(tmp_path / files[0]), "--tls-key", str(tmp_path / files[1]))
    async with serving(setup, *command) as bridge:
        assert await served(bridge) == first
        await until(lambda: bridge.logged.count(b"has expired on") == 1)
        # A key of another certificate, and half a certificate.
        write_pair(tmp_path, ("other.pem", files[1]), -1, 9)
        await until(lambda: bridge.logged.count(b"can't be used, so the certificate of before is served") == 1)
        assert await served(bridge) == first
        (tmp_path / files[0]).write_bytes((tmp_path / files[0]).read_bytes()[:200])
        await until(lambda: bridge.logged.count(b"can't be used, so the certificate of before is served") == 2)
        assert await served(bridge) == first
        second = write_pair(tmp_path, files, 2, 9)

        async def is_renewed():
            return await served(bridge) == second

        await until(is_renewed)
        await until(lambda: bridge.logged.count(b"isn't valid before") == 1)
        assert bridge.logged.count(b"has expired on") == 1


async def test_plain_http_beyond_this_machine_is_warned_of_where_there_are_tokens(configure):
    setup = configure(principals={"anna": {}})
    async with serving(setup, "--host", "0.0.0.0") as bridge:  # noqa: S104
        await until(lambda: b"plain HTTP beyond this machine" in bridge.logged)
    async with serving(setup) as bridge, bridge.http() as http:
        assert (await http.get("/health")).status_code == 200
        assert b"plain HTTP" not in bridge.logged
