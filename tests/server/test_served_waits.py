"""A bridge that serves, with scripts that wait: it goes on by itself, also with what another process has left."""

import json
import re
import subprocess

import anyio
import pytest
from bridge_fixtures import COMMAND, DEADLINE_SECONDS, toml
from cli_fixtures import run_here, run_in_thread
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from sandbox_fixtures import RUNTIME, knows_the_sandbox

pytestmark = [pytest.mark.timeout(120)]

CODE = "print('began')\nprint(await runtime.wait_event('go'))"


@pytest.fixture
def served(tmp_path, sandboxes):
    """A configuration and a state directory: a client of a server with them, and a command's output."""
    state = knows_the_sandbox(tmp_path / "state", sandboxes.settings.state_dir)
    config = tmp_path / "config.toml"
    config.write_text(toml({"state_dir": str(state), "runtime": RUNTIME, "client_configs": False, "pool_min": 0}, []))
    environment = {"HOME": str(tmp_path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "MCP_BRIDGE_CONFIG": str(config)}

    class Served:
        def __init__(self):
            self.config = config

        def client(self):
            parameters = StdioServerParameters(command=COMMAND, args=["--config", str(config)], env=environment)
            return Client(stdio_client(parameters))

        def command(self, *words):
            done = run_in_thread(config, *words)
            assert done.code == 0, done
            return done.out

        def process(self, *words):
            """For commands that handle signals."""
            done = subprocess.run(
                [COMMAND, "--config", str(config), *words],
                env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_SECONDS,
            )  # fmt: skip
            assert done.returncode in {0, 5}, done.stderr
            return done.stdout

        def executions(self):
            return json.loads(self.command("execution", "list", "--json"))["executions"]

    return Served()


def text(result):
    return "".join(block.text for block in result.content if hasattr(block, "text"))


async def ended(served, execution):
    with anyio.fail_after(DEADLINE_SECONDS):
        while True:
            (row,) = [row for row in await anyio.to_thread.run_sync(served.executions) if row["id"] == execution]
            if row["status"] not in {"suspended", "running", "interrupted"}:
                return row["status"]
            await anyio.sleep(0.2)


async def test_a_server_goes_on_with_a_script_when_its_event_is_sent_and_the_client_gets_the_result(served):
    async with served.client() as client:
        told = text(await client.call_tool("run_python", {"code": CODE, "idempotency_key": "k"}))
        assert "It waits for the event go" in told
        execution = re.search(r"--execution ([0-9a-f]{16})", told)[1]
        said = await anyio.to_thread.run_sync(served.process, "event", "send", "go", "--payload", '{"n": 1}')
        assert execution[:6] in said
        assert await ended(served, execution) == "success"
        told = text(await client.call_tool("run_python", {"code": CODE, "idempotency_key": "k"}))
        assert "began" in told
        assert "{'n': 1}" in told


async def test_a_server_goes_on_with_what_another_process_has_left(served):
    code = "import time\nawait runtime.sleep_until(time.time() + 5)\nprint('over')"
    await anyio.to_thread.run_sync(served.process, "run", "--key", "k", "-c", code)
    (row,) = await anyio.to_thread.run_sync(served.executions)
    assert row["status"] == "suspended"
    async with served.client():
        assert await ended(served, row["id"]) == "success"
    assert "over" in served.command("execution", "show", row["id"])


async def test_a_server_that_may_not_go_on_by_itself_does_not(served, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(f"resume_waits = false\n{config.read_text()}")
    async with served.client() as client:
        await client.call_tool("run_python", {"code": CODE, "idempotency_key": "k"})
        await anyio.to_thread.run_sync(served.process, "event", "send", "go")
        (row,) = await anyio.to_thread.run_sync(served.executions)
        assert row["status"] == "suspended"
        assert "None" in text(await client.call_tool("run_python", {"code": CODE, "idempotency_key": "k"}))


def test_an_event_that_nobody_waits_for_is_told_and_kept_for_nobody(served):
    sent = run_here(served.config, "event", "send", "go")
    assert (sent.code, "nobody_waits" in sent.err) == (1, True)
    assert "--execution ID" in sent.err
