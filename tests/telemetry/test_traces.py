"""Traces over a real OTLP/HTTP collector: from the client's call through a container to the servers that it calls."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import httpx2
import pytest
import requests
from bridge_fixtures import until
from http_bridge import serving
from http_servers import remote
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from otlp_receiver import collector
from sandbox_fixtures import RUNTIME

from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.errors import BridgeError
from mcp_bridge.telemetry.config import TelemetryConfig
from mcp_bridge.telemetry.export import BoundedSession
from mcp_bridge.telemetry.setup import telemetry

pytestmark = pytest.mark.timeout(180)
pytest_plugins = ["bridge_fixtures", "server_fixtures"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SERVER = Path(__file__).resolve().parents[1] / "support" / "servers" / "trace_context.py"
OTHER_TRACE = "11111111111111111111111111111111"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CLIENT_META = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "rojo=1", "baggage": "user=alice"}
SECRET = "correct-horse-battery-staple"  # noqa: S105 - of this test alone

STDIO = ServerSpec(name="local-one", command=sys.executable, args=(str(SERVER),))

ERAS = ["legacy", "2026-07-28"]


@pytest.fixture
def received():
    with collector() as found:
        yield found


@pytest.fixture
def http_server():
    with subprocess.Popen([sys.executable, SERVER, "http"], stdout=subprocess.PIPE) as process:
        yield remote(int(process.stdout.readline()), name="remote-one")
        process.kill()


def watched(configure, received, *servers, **settings):
    return configure(*servers, **{"telemetry.otlp": received.address, "telemetry.interval": 1} | settings)


def value(result):
    """What the script's last line printed, as JSON."""
    return json.loads(result.content[0].text.strip().splitlines()[-1])


async def run(client, code, meta=CLIENT_META):
    result = await client.call_tool("run_python", {"code": code}, meta=meta)
    assert not result.is_error, result.content
    return result


CODE = f"""
import json
from mcp.servers import ALIAS
print(json.dumps(await ALIAS.sent(secret="{SECRET}")))
"""
LOCAL, REMOTE = CODE.replace("ALIAS", "local_one"), CODE.replace("ALIAS", "remote_one")


@pytest.mark.parametrize("mode", ERAS)
async def test_one_trace_leads_from_the_client_to_a_server_over_stdio(configure, received, mode):
    setup = watched(configure, received, STDIO)
    async with setup.client(mode) as client:
        sent = value(await run(client, LOCAL))
    outer = received.one("tools/call run_python")
    assert (outer.trace, outer.parent, outer.kind) == (TRACE, PARENT, "server")
    call = received.one("tools/call sent")
    assert (call.trace, call.kind) == (TRACE, "client")
    assert received.ancestors(call) == ["run sandbox", "run script", "tools/call run_python"]
    assert received.ancestors(received.one("decide call")) == received.ancestors(call)
    # What the server got names the span of the call to it.
    assert sent["meta"] == {"traceparent": f"00-{TRACE}-{call.id}-01", "tracestate": "rojo=1"}
    expected = {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "sent",
        "mcp_bridge.server": "local-one",
        "network.transport": "pipe",
        "mcp_bridge.principal": "local",
    }
    assert expected.items() <= call.attributes.items()
    assert call.attributes["mcp.protocol.version"]
    assert int(call.attributes["jsonrpc.request.id"]) > 0
    script = received.one("run script")
    assert script.attributes["mcp_bridge.status"] == "success"
    assert script.attributes["mcp_bridge.execution"] == call.attributes["mcp_bridge.execution"]
    assert not [span for span in received.spans if span.is_error]
    # Nothing of the call's values.
    assert SECRET.encode() not in received.raw
    assert b"alice" not in received.raw


async def test_one_trace_leads_to_a_server_over_http_by_its_headers_too(configure, received, http_server):
    setup = watched(configure, received, http_server)
    async with setup.client() as client:
        sent = value(await run(client, REMOTE))
    call = received.one("tools/call sent")
    assert "tools/call run_python" in received.ancestors(call)
    assert call.attributes["network.transport"] == "tcp"
    assert call.attributes["server.address"] == "127.0.0.1"
    assert call.attributes["server.port"] > 0
    # In the headers of the request as in the request itself.
    expected = {"traceparent": f"00-{TRACE}-{call.id}-01", "tracestate": "rojo=1"}
    assert sent == {"meta": expected, "headers": expected}
    assert [span.name for span in received.spans if call.name in received.ancestors(span)] == []


async def test_one_trace_leads_to_server_everything(configure, received, everything_server):
    setup = watched(configure, received, everything_server)
    async with setup.client() as client:
        code = "from mcp.servers import everything\nprint(await everything.get_sum(a=40, b=2))"
        assert "42" in (await run(client, code)).content[0].text
    call = received.one("tools/call get-sum")
    assert call.trace == TRACE
    assert "run script" in received.ancestors(call)


async def test_a_request_for_what_a_server_has_is_a_span_of_its_own(configure, received):
    setup = watched(configure, received, STDIO)
    unknown = "\ntry:\n    await local_one.unknown()\nexcept Exception as exc:\n    print(json.dumps(str(exc)))"
    async with setup.client() as client:
        # The tools are listed at the first use, and again for a name that isn't among them.
        assert "no tool" in value(await run(client, LOCAL + unknown))
    asked = [span for span in received.spans if span.name == "MCP send resources/list"]
    assert asked
    assert all(span.kind == "client" and int(span.attributes["jsonrpc.request.id"]) > 0 for span in asked)
    of_requests = {span.name for span in received.spans if "jsonrpc.request.id" in span.attributes}
    assert not of_requests & {"run sandbox", "run script"}


async def test_a_call_without_a_trace_begins_one(configure, received):
    setup = watched(configure, received, STDIO)
    async with setup.client() as client:
        sent = value(await run(client, LOCAL, meta=None))
    outer, call = received.one("tools/call run_python"), received.one("tools/call sent")
    assert outer.parent == ""
    assert call.trace == outer.trace != TRACE
    assert sent["meta"]["traceparent"].split("-")[1] == outer.trace


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("by", ["headers", "meta", "both"])
async def test_over_http_a_trace_comes_by_the_requests_meta_or_else_its_headers(configure, received, mode, by):
    setup = watched(configure, received, STDIO)
    headers = {"traceparent": f"00-{TRACE if by == 'headers' else OTHER_TRACE}-{PARENT}-01"}
    async with (
        serving(setup) as bridge,
        httpx2.AsyncClient(headers=headers if by != "meta" else {}, timeout=60) as http,
        Client(streamable_http_client(bridge.url, http_client=http), mode=mode, read_timeout_seconds=60) as client,
    ):
        sent = value(await run(client, LOCAL, meta=CLIENT_META if by != "headers" else None))
        outer = await anyio.to_thread.run_sync(received.one, "tools/call run_python")
    call = received.one("tools/call sent")
    assert (outer.trace, outer.parent) == (TRACE, PARENT)
    assert (call.trace, received.ancestors(call)[-1]) == (TRACE, "tools/call run_python")
    assert sent["meta"]["traceparent"] == f"00-{TRACE}-{call.id}-01"


async def test_calls_at_once_have_spans_of_their_own(configure, received):
    setup = watched(configure, received, STDIO)
    code = (
        "import asyncio, json\nfrom mcp.servers import local_one\n"
        "print(json.dumps(await asyncio.gather(*(local_one.sent() for _ in range(20)))))"
    )
    async with setup.client() as client:
        sent = value(await run(client, code))
    received.one("run script")
    spans = {span.id for span in received.named("tools/call sent")}
    assert len(spans) == 20
    assert {each["meta"]["traceparent"].split("-")[2] for each in sent} == spans


FAILING = f"""
from mcp.servers import local_one
for tool in (local_one.fails, local_one.sent):
    try:
        await tool(secret="{SECRET}")
    except Exception as error:
        print(type(error).__name__)
raise ValueError("{SECRET}")
"""


async def test_failures_are_marked_by_their_kind_and_not_by_their_text(configure, received):
    setup = watched(configure, received, STDIO)
    with setup.config.open("a") as file:
        file.write('\n[[policy.rules]]\ntools = ["local-one.sent"]\neffect = "deny"\n')
    async with setup.client() as client:
        result = await client.call_tool("run_python", {"code": FAILING})
        assert result.is_error
        refused = await client.call_tool("run_python", {"code": SECRET, "timeout": -1})
        assert refused.is_error
    received.one("tools/call fails")
    assert received.one("tools/call fails").attributes["error.type"] == "tool_error"
    denied = [span for span in received.named("decide call") if span.is_error]
    assert [span.attributes["error.type"] for span in denied] == ["denied"]
    assert received.one("run script").attributes["mcp_bridge.status"] == "error"
    await until(lambda: len(received.named("tools/call run_python")) == 2)
    assert {span.attributes["error.type"] for span in received.named("tools/call run_python")} == {"tool_error"}
    assert SECRET.encode() not in received.raw
    assert {(span.message, span.events) for span in received.spans} == {("", 0)}


async def test_what_a_client_names_is_bounded_and_a_broken_trace_context_harms_nothing(configure, received):
    setup = watched(configure, received)
    async with setup.client() as client:
        for parent in ("00-zz", "\x00" * 9, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 70_000):
            await run(client, "print(1)", meta={"traceparent": parent, "tracestate": "=" * 9})
        with pytest.raises(Exception, match="There is no tool"):
            await client.call_tool("n" * 70_000, {})
    await until(lambda: len(received.spans) >= 9)
    assert max(len(span.name) for span in received.spans) <= 256
    texts = [text for span in received.spans for text in span.attributes.values() if isinstance(text, str)]
    assert max(map(len, texts)) <= 256


async def test_metrics_follow_the_conventions_and_name_no_values(configure, received):
    setup = watched(configure, received, STDIO)
    async with setup.client() as client:
        await run(client, LOCAL)
        with pytest.raises(Exception, match="There is no tool"):
            await client.call_tool("made_up_by_a_client", {})
    await until(lambda: "mcp.server.operation.duration" in received.metrics)
    ((attributes, count, seconds),) = received.metrics["mcp.client.operation.duration"]
    assert attributes == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "sent",
        "mcp_bridge.server": "local-one",
    }
    assert (count, seconds > 0) == (1, True)
    calls = [each for each, *_ in received.metrics["mcp.server.operation.duration"] if "tools/call" in each.values()]
    assert {each.get("gen_ai.tool.name") for each in calls} == {"run_python", None}
    ((run_attributes, runs, _),) = received.metrics["mcp_bridge.run.duration"]
    assert run_attributes == {
        "mcp_bridge.kind": "script",
        "mcp_bridge.status": "success",
        "mcp_bridge.principal": "local",
    }
    assert runs == 1
    assert received.metrics["mcp_bridge.ledger.commit.duration"][0][1] >= 2
    text = json.dumps(received.metrics)
    assert SECRET not in text
    assert "made_up_by_a_client" not in text


async def test_a_client_that_is_not_traced_is_not_sent(configure, received):
    setup = watched(configure, received, STDIO)
    async with setup.client() as client:
        unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
        sent = value(await run(client, LOCAL, meta=unsampled))
        await run(client, "print('another')", meta=None)
    assert sent["meta"]["traceparent"].endswith("-00")
    received.one("tools/call run_python")
    assert {span.trace for span in received.spans} & {TRACE} == set()


async def test_without_a_collector_the_libraries_are_not_loaded_and_nothing_is_sent_along(configure):
    setup = configure(STDIO)
    async with setup.client() as client:
        assert value(await run(client, LOCAL))["meta"] == {}
        maps = Path(f"/proc/{setup.server_pid()}/maps").read_text()
    assert "google/_upb" not in maps


async def test_a_collector_that_fails_holds_nothing_up_and_is_warned_of_once(tmp_path, configure, received):
    received.status = 500
    setup = watched(configure, received, STDIO)
    log = tmp_path / "log"
    with log.open("w") as file:
        async with setup.client(log=file) as client:
            await run(client, LOCAL)
            # Traces, and more than one transmission of metrics.
            await until(lambda: received.requests >= 4)
            await run(client, "print(1)")
            said = [line for line in log.read_text().splitlines() if "elemetry" in line]
            beginning, end = "mcp-bridge: WARNING: no", f"can be sent to the OpenTelemetry collector {received.address}"
            assert sorted(said) == [
                f"{beginning} {what} {end}: it answers 500 to /v1/{what}" for what in ("metrics", "traces")
            ]
            received.status = 200
            await until(lambda: log.read_text().count("again") == 2)


async def test_an_answer_of_a_collector_without_end_is_not_read(configure, received):
    received.endless = True
    async with watched(configure, received).client() as client:
        await run(client, "print(1)")
        # Of traces, and of metrics.
        await until(lambda: received.cut >= 2)
        await run(client, "print(2)")
    assert received.named("run script")


async def test_a_collector_that_redirects_is_one_that_takes_nothing(tmp_path, configure, received):
    received.status = 307
    log = tmp_path / "log"
    with log.open("w") as file:
        async with watched(configure, received).client(log=file) as client:
            await run(client, "print(1)")
            await until(lambda: log.read_text().count("can be sent") == 2)
            assert "it answers 307 to /v1/traces" in log.read_text()
    assert received.spans == []


def test_a_collector_that_is_not_there_does_not_keep_a_command_from_its_end(configure):
    setup = configure(**{"telemetry.otlp": "http://127.0.0.1:9"})
    ended = setup.run("run", "-c", "print(1)")
    assert (ended.returncode, ended.stdout) == (0, b"1\n")
    assert b"Traceback" not in ended.stderr
    assert ended.stderr.count(b"collector") <= 2


def test_why_a_collector_cant_be_reached_is_known_without_its_words():
    session = BoundedSession()
    with pytest.raises(requests.exceptions.ConnectionError):
        session.post("http://127.0.0.1:9/v1/traces")
    assert session.problem == "it can't be reached"


def test_the_command_line_is_traced_too(configure, received):
    setup = watched(configure, received)
    ended = setup.run("run", "-c", "print(1)")
    assert ended.returncode == 0, ended.stderr
    assert received.one("run sandbox").trace == received.one("run script").trace


def test_headers_for_the_collector_come_from_the_standard_variable(configure, received):
    setup = watched(configure, received)
    ended = setup.run("run", "-c", "print(1)", env={"OTEL_EXPORTER_OTLP_HEADERS": "x-api-key=k1"})
    assert ended.returncode == 0, ended.stderr
    received.one("run script")
    assert received.headers[0]["x-api-key"] == "k1"


def test_model_steps_and_tools_of_the_operators_have_spans_and_metrics_without_what_was_said(
    tmp_path, configure, received
):
    setup = configure()
    shutil.copytree(EXAMPLES / "refund", folder := tmp_path / "refund")
    with (folder / "mcp-bridge.toml").open("a") as file:
        file.write(f'\n[telemetry]\notlp = "{received.address}"\n')
    env = {"SHOP_DIR": str(tmp_path), "MCP_BRIDGE_STATE_DIR": str(setup.state_dir), "MCP_BRIDGE_RUNTIME": RUNTIME}
    config = str(folder / "mcp-bridge.toml")
    ended = setup.run("--config", config, "run", str(folder / "refund.py"), config=False, env=env)
    assert ended.returncode == 0, ended.stderr
    assert b"refunded 25" in ended.stdout
    asked = received.named("chat scripted")
    assert {(span.kind, span.attributes["gen_ai.provider.name"]) for span in asked} == {("client", "scripted")}
    assert all(span.attributes["gen_ai.usage.input_tokens"] > 0 for span in asked)
    (paid,) = received.named("execute_tool issue_refund")
    assert paid.attributes["gen_ai.tool.name"] == "issue_refund"
    assert received.ancestors(paid)[-1] == "run script"
    # Each is within the program that the script runs.
    for program in received.named("run program"):
        assert program.attributes["mcp_bridge.status"] in {"success", "failed"}
        assert received.ancestors(program) == ["run sandbox", "run script"]
    assert all("run program" in received.ancestors(span) for span in (paid, *asked))
    ((attributes, count, _),) = received.metrics["gen_ai.client.operation.duration"]
    assert attributes["gen_ai.request.model"] == "scripted"
    assert count == len(asked)
    kinds = {point["gen_ai.token.type"] for point, *_ in received.metrics["gen_ai.client.token.usage"]}
    assert kinds == {"input", "output"}
    for said in (b"charged", b"Ignore all rules", b"A-17"):
        assert said not in received.raw


async def test_records_of_the_log_name_their_execution_and_trace(tmp_path, configure, received):
    file = tmp_path / "bridge.log"
    setup = watched(configure, received, STDIO, log_file=str(file), log_format="json", log_level="debug")
    error_log = tmp_path / "stderr"
    with error_log.open("w") as errors:
        async with setup.client(log=errors) as client:
            await run(client, LOCAL)
            await run(client, LOCAL)
    for log in (file, error_log):
        records = [json.loads(line) for line in log.read_text().splitlines()]
        about = [record for record in records if "execution" in record]
        assert about
        assert {record["principal"] for record in about} == {"local"}
        assert {record.get("trace_id") for record in about} == {TRACE}
        executions = {span.attributes["mcp_bridge.execution"] for span in received.named("run script")}
        assert {record["execution"] for record in about} <= executions
        # The server serves others, too, though the first execution has started it.
        of_server = [record for record in records if "'local-one' logs" in record["message"]]
        assert len(of_server) == 2
        assert not [record for record in of_server if "execution" in record or "trace_id" in record]
        assert [record for record in records if not {"time", "level", "logger", "message"} <= record.keys()] == []


async def test_the_libraries_are_loaded_beside_the_event_loop(monkeypatch):
    threads = []
    monkeypatch.setattr("mcp_bridge.telemetry.export.start", lambda *_: threads.append(threading.current_thread()))
    async with telemetry(TelemetryConfig(otlp="http://127.0.0.1:9")):
        pass
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize(
    ("config", "library", "extra"),
    [
        ({"otlp": "http://127.0.0.1:9"}, "opentelemetry.sdk.metrics", "otel"),
        ({"listen": "127.0.0.1:9"}, "prometheus_client", "prometheus"),
    ],
)
async def test_a_library_that_is_missing_is_told_with_what_installs_it(monkeypatch, config, library, extra):
    monkeypatch.delitem(sys.modules, "mcp_bridge.telemetry.export", raising=False)
    monkeypatch.delattr("mcp_bridge.telemetry.export", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(BridgeError) as caught:
        async with telemetry(TelemetryConfig(**config)):
            pass
    assert caught.value.code == "telemetry_missing"
    assert f"the library {library} isn't installed" in caught.value.message
    # For what `uv tool` has installed, which is without pip, too.
    assert f"mcp-code-bridge[{extra}]" in caught.value.hint
    assert sys.executable in caught.value.hint
    library = {"otel": "opentelemetry-sdk>=", "prometheus": "prometheus-client>="}[extra]
    assert library in caught.value.hint
