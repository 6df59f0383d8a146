"""Metrics as Prometheus gets them, from a bridge that serves a client."""

import re
import socket
from types import SimpleNamespace

import anyio
import httpx2
import pytest
from bridge_fixtures import DEADLINE_SECONDS, until
from http_bridge import serving
from mcp import Client
from prometheus_client.parser import text_string_to_metric_families
from servers.specs import faulty

from mcp_bridge.server.http import app
from mcp_bridge.telemetry import measurements

pytestmark = pytest.mark.timeout(180)
pytest_plugins = ["bridge_fixtures", "server_fixtures"]

SECRET = "correct-horse-battery-staple"  # noqa: S105 - of this test alone


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def fetched(port, path="/metrics", **headers):
    response = httpx2.get(f"http://127.0.0.1:{port}{path}", headers=headers, timeout=20, trust_env=False)
    return response.status_code, response.headers["content-type"], response.text


async def scrape(port):
    """The samples, by name and labels: a dictionary of names to lists of labels and value."""
    *_, text = await anyio.to_thread.run_sync(fetched, port)
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def of(samples, name, **labels):
    """The value of the one sample with these labels."""
    ((_, value),) = [row for row in samples.get(name, []) if labels.items() <= row[0].items()]
    return value


async def is_served(port):
    try:
        return await scrape(port)
    except httpx2.TransportError:
        return None


DENY = '\n[[policy.rules]]\ntools = ["everything.get-env"]\neffect = "deny"\n'


async def test_metrics_count_runs_calls_and_what_the_bridge_is_doing(configure):
    port = free_port()
    setup = configure(faulty(), **{"telemetry.listen": f"127.0.0.1:{port}"})
    async with setup.client() as client:
        first = await until(lambda: is_served(port))
        assert of(first, "mcp_bridge_up") == 1
        assert "mcp_bridge_runs_total" not in first
        ended = await client.call_tool("run_python", {"code": "print(40 + 2)"})
        assert not ended.is_error
        assert (await client.call_tool("run_python", {"code": "raise SystemExit(3)"})).is_error
        listed = await client.call_tool("run_python", {"code": "from mcp.servers import faulty\nprint(dir(faulty))"})
        assert not listed.is_error, listed.content
        samples = await scrape(port)
    assert of(samples, "mcp_bridge_runs_total", kind="script", status="success", principal="local") == 2
    assert of(samples, "mcp_bridge_runs_total", kind="script", status="exit", principal="local") == 1
    assert of(samples, "mcp_bridge_run_seconds_count", kind="script") == 3
    assert of(samples, "mcp_bridge_requests_total", method="tools/call", result="ok") == 2
    assert of(samples, "mcp_bridge_requests_total", method="tools/call", result="tool_error") == 1
    assert of(samples, "mcp_bridge_runs_running") == 0
    assert of(samples, "mcp_bridge_runs_queued") == 0
    assert of(samples, "mcp_bridge_ledger_commit_seconds_count") >= 6
    assert of(samples, "mcp_bridge_ledger_bytes") > 0
    assert of(samples, "mcp_bridge_approvals_open") == 0
    assert of(samples, "mcp_bridge_calls_in_doubt") == 0
    assert of(samples, "mcp_bridge_loop_holds_total") >= 0
    assert of(samples, "process_resident_memory_bytes") > 1 << 20
    assert of(samples, "process_open_fds") > 3


HANGS = {"steps": [{"id": "a", "type": "tool", "tool": "faulty.hang", "args": {}}]}
ASKS = {"steps": [{"id": "a", "type": "approval", "message": "Go?"}]}
LATER = "import time\nfrom mcp import runtime\nawait runtime.sleep_until(time.time() + 3600)"


@pytest.mark.parametrize(
    ("tool", "arguments", "kind", "status"),
    [
        ("run_python", {"code": "import time\ntime.sleep(60)"}, "script", "cancelled"),
        ("run_python", {"code": LATER}, "script", "suspended"),
        ("run_program", {"program": HANGS}, "program", "interrupted"),
        ("run_program", {"program": ASKS}, "program", "suspended"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_run_counts_with_the_status_that_its_record_has(configure, tool, arguments, kind, status):
    port = free_port()
    setup = configure(faulty(), **{"telemetry.listen": f"127.0.0.1:{port}"})
    serve = setup.parameters()
    serve.args += ["serve", "--tools", "programs"]
    async with Client(serve, mode="legacy", read_timeout_seconds=DEADLINE_SECONDS) as client:
        await until(lambda: is_served(port))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, tool, arguments)
            await until(lambda: runs(port) if status == "suspended" else recorded(setup))
            tasks.cancel_scope.cancel()
        counted = await until(lambda: runs(port))
    [row] = await recorded(setup)
    assert counted == [{"kind": kind, "status": row["status"], "principal": "local"}]
    assert row["status"] == status


async def recorded(setup):
    return (await setup.told("execution", "list"))["executions"]


async def runs(port):
    return [labels for labels, _ in (await scrape(port)).get("mcp_bridge_runs_total", [])]


async def test_labels_have_nothing_that_a_client_or_a_script_has_chosen(configure, everything_server):
    port = free_port()
    setup = configure(everything_server, **{"telemetry.listen": f"127.0.0.1:{port}"})
    with setup.config.open("a") as file:
        file.write(DENY)
    code = (
        "from mcp.servers import everything\n"
        f"print(await everything.echo(message='{SECRET}'))\n"
        "try:\n    await everything.get_env()\nexcept Exception as error:\n    print(type(error).__name__)\n"
    )
    async with setup.client() as client:
        ended = await client.call_tool("run_python", {"code": code, "idempotency_key": SECRET})
        assert not ended.is_error, ended.content
        with pytest.raises(Exception, match="There is no tool"):
            await client.call_tool(SECRET, {})
        *_, text = await anyio.to_thread.run_sync(fetched, port)
        samples = await scrape(port)
    assert SECRET not in text
    assert of(samples, "mcp_bridge_calls_total", server="everything", result="ok") == 1
    assert of(samples, "mcp_bridge_calls_total", server="everything", result="denied") == 1
    assert of(samples, "mcp_bridge_call_seconds_count", server="everything") == 1
    assert of(samples, "mcp_bridge_server_ready", server="everything") == 1
    assert "get-env" not in text
    labels = {label for rows in samples.values() for row, _ in rows for label in row}
    assert labels <= {"method", "result", "kind", "status", "principal", "server", "le", "version", "state"}


async def test_the_endpoint_gives_metrics_alone_and_only_under_this_machines_names(configure):
    port = free_port()
    setup = configure(**{"telemetry.listen": f"127.0.0.1:{port}"})

    def status(path, **headers):
        return fetched(port, path, **headers)[0]

    async with setup.client():
        await until(lambda: is_served(port))
        assert await anyio.to_thread.run_sync(lambda: status("/")) == 404
        assert await anyio.to_thread.run_sync(lambda: status("/metrics", Host="evil.example")) == 400
        _, kind, text = await anyio.to_thread.run_sync(fetched, port)
        assert kind.startswith("text/plain; version=0.0.4")
        assert "# TYPE mcp_bridge_up gauge" in text
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 5)


async def test_a_second_bridge_at_the_same_address_serves_without_metrics(tmp_path, configure):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        setup = configure(**{"telemetry.listen": f"127.0.0.1:{port}"})
        log = tmp_path / "log"
        with log.open("w") as file:
            async with setup.client(log=file) as client:
                ended = await client.call_tool("run_python", {"code": "print(1)"})
                assert not ended.is_error
    assert len(re.findall(r"metrics are not served: 127\.0\.0\.1:\d+ \(telemetry\.listen\)", log.read_text())) == 1


def test_a_command_serves_no_metrics(configure):
    port = free_port()
    setup = configure(**{"telemetry.listen": f"127.0.0.1:{port}"})
    assert setup.run("run", "-c", "print(1)").returncode == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 5)


async def test_over_http_metrics_are_for_principals_that_may_see_all(configure):
    setup = configure(**{"telemetry.over_http": True})
    with setup.config.open("a") as file:
        file.write("\n[principals.anna]\n[principals.prometheus]\nsees_all = true\n")
    tokens = {name: setup.run("principal", "add", name).stdout.decode().strip() for name in ("anna", "prometheus")}
    async with serving(setup) as bridge, bridge.http() as http:

        async def asked(token=None):
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            return await http.get("/metrics", headers=headers)

        async def is_open():
            return "mcp_bridge_up 1.0" in (await asked(tokens["prometheus"])).text

        await until(is_open)
        metrics = await asked(tokens["prometheus"])
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        for token, status in ((None, 401), ("wrong", 401), (tokens["anna"], 403)):
            answer = await asked(token)
            assert answer.status_code == status
            assert "mcp_bridge" not in answer.text


async def test_over_http_metrics_are_held_to_the_origins_and_the_rate_of_requests(configure):
    setup = configure(**{"telemetry.over_http": True})
    with setup.config.open("a") as file:
        file.write("\n[principals.prometheus]\nsees_all = true\nrequests_per_minute = 2\n")
    token = setup.run("principal", "add", "prometheus").stdout.decode().strip()
    async with serving(setup) as bridge, bridge.http() as http:

        async def status(**headers):
            answer = await http.get("/metrics", headers={"authorization": f"Bearer {token}"} | headers)
            return answer.status_code

        assert await status(origin="https://evil.example") == 403
        assert [await status(), await status(origin=str(http.base_url).rstrip("/")), await status()] == [200, 200, 429]


async def test_over_http_there_are_no_metrics_unless_they_are_asked_for(configure):
    async with serving(configure()) as bridge, bridge.http() as http:
        assert (await http.get("/metrics")).status_code == 404


async def test_over_http_metrics_count_runs_by_principal(configure):
    setup = configure(**{"telemetry.over_http": True})
    async with serving(setup) as bridge, bridge.client() as client, bridge.http() as http:
        ended = await client.call_tool("run_python", {"code": "print(1)"})
        assert not ended.is_error, ended.content
        text = (await http.get("/metrics")).text
    assert 'mcp_bridge_runs_total{kind="script",principal="local",status="success"} 1.0' in text


def test_metrics_are_served_over_http_once_their_library_is_installed(monkeypatch):
    telemetry = SimpleNamespace(over_http=True)
    first = SimpleNamespace(settings=SimpleNamespace(telemetry=telemetry))
    nothing = SimpleNamespace(current=None, admit=None)
    monkeypatch.setattr(app, "has_prometheus", lambda: False)
    route = app._metrics(first, nothing, nothing, nothing, nothing)
    assert route() is None
    monkeypatch.setattr(app, "has_prometheus", lambda: True)
    added = []
    monkeypatch.setattr(measurements, "add", added.append)
    assert route().path == "/metrics"
    # They are counted once.
    assert route() is route()
    assert len(added) == 1
