"""A ledger that can't be written any more while a bridge serves over HTTP: what its calls are answered, and how it ends.

The kernel refuses the bridge's process to write any file further (prlimit(2)), as a full disk does.
"""

import asyncio
import json
import resource

import anyio
import pytest
from bridge_fixtures import COMMAND, DEADLINE_SECONDS, until
from http_bridge import serving
from http_servers import ScriptedServer, remote
from http_servers import serving as serving_app

pytestmark = [pytest.mark.timeout(120)]

CODE = "from mcp.servers import remote\nprint(await remote.act())"
PROGRAM = {"name": "one", "steps": [{"id": "act", "type": "tool", "tool": "remote.act"}]}


def fill_the_disk(pid):
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, 1))


class Filling:
    """A server at whose first call the disk of a bridge is full, or becomes so when it is let go on.

    Attributes:
        pid: Of the bridge.
        server: The server.
        goes_on: When its calls are answered.
    """

    def __init__(self):
        self.pid = None
        self.goes_on = anyio.Event()
        self.server = ScriptedServer(self._answer)

    async def _answer(self, _, message, __):
        if message["method"] == "tools/call":
            fill_the_disk(self.pid)
            await self.goes_on.wait()


@pytest.fixture
async def filling():
    one = Filling()
    async with serving_app(one.server.app) as one.port:
        yield one


async def call(bridge, tool, arguments, mode="legacy"):
    async with bridge.client(mode) as client:
        return await client.call_tool(tool, arguments)


@pytest.mark.parametrize(
    ("arguments", "again"),
    [
        ({}, "runs it from its beginning"),
        ({"idempotency_key": "k"}, "resumes from its record"),
        ({"session": "s"}, "runs it from its beginning"),
    ],
    ids=["no key", "key", "session"],
)
async def test_a_call_whose_end_cannot_be_recorded_is_told_that_it_had_begun(configure, filling, arguments, again):
    filling.goes_on.set()
    async with serving(configure(remote(filling.port))) as bridge:
        filling.pid = bridge.pid
        result = await call(bridge, "run_python", {"code": CODE, **arguments})
        told = result.structured_content
        assert result.is_error
        assert (told["status"], told["error"]["code"]) == ("interrupted", "not_recorded")
        assert len(filling.server.calls) == 1
        text = result.content[0].text
        for words in ("had begun: what it had done stays done", f"execution {told['execution']} ", again):
            assert words in text


async def test_a_program_whose_end_cannot_be_recorded_is_told_that_it_had_begun(configure, filling):
    filling.goes_on.set()
    async with serving(configure(remote(filling.port)), "--tools", "programs") as bridge:
        filling.pid = bridge.pid
        told = (await call(bridge, "run_program", {"program": PROGRAM})).structured_content
        assert (told["status"], told["code"]) == ("interrupted", "not_recorded")
        assert "had begun: what it had done stays done" in told["error"]
        assert f"execution resume {told['trace_id']}` resumes it" in told["error"]
        assert "its idempotency key, if it has one" in told["error"]


@pytest.mark.parametrize(
    "command", [("run", "-c", CODE), ("program", "run", "program.json")], ids=["script", "program"]
)
async def test_a_command_whose_run_cannot_be_recorded_to_its_end_says_that_it_had_begun(configure, filling, command):
    filling.goes_on.set()
    setup = configure(remote(filling.port))
    (setup.home / "program.json").write_text(json.dumps(PROGRAM))
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        "--config",
        str(setup.config),
        *command,
        "--json",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=setup.env,
        cwd=setup.home,
    )
    filling.pid = process.pid
    with anyio.fail_after(DEADLINE_SECONDS):
        told = json.loads((await process.communicate())[0])
    assert (told["status"], told["exit_code"], told["error"]["code"]) == ("interrupted", 1, "not_recorded")
    assert f"The execution {told['execution']} had begun" in told["error"]["message"]
    assert process.returncode == 1


async def test_a_bridge_that_can_record_nothing_any_more_is_not_ready_and_ends_with_an_error(configure, filling):
    setup = configure(remote(filling.port), http={"viewer": True}, **{"telemetry.over_http": True})
    async with serving(setup) as bridge, bridge.http() as http, anyio.create_task_group() as tasks:
        filling.pid = bridge.pid
        assert (await http.get("/ready")).status_code == 200
        assert "mcp_bridge_up 1.0" in (await http.get("/metrics")).text

        async def call_slowly():
            # The bridge is there until it is answered.
            result = await call(bridge, "run_python", {"code": CODE})
            assert result.structured_content["status"] == "interrupted"

        tasks.start_soon(call_slowly)
        await until(lambda: filling.server.calls)
        refused = await call(bridge, "run_python", {"code": "print(1)"})
        # It never ran.
        assert refused.structured_content["status"] == "refused"
        assert "execution" not in refused.structured_content

        async def is_not_ready():
            return (await http.get("/ready")).status_code == 503

        await until(is_not_ready)
        assert "mcp_bridge_up 0.0" in (await http.get("/metrics")).text
        # Looks at the ledger that each have an interval of a second, of which each says at most once what is wrong.
        await anyio.sleep(3)
        filling.goes_on.set()
        assert await bridge.ended() == 3
        assert bridge.logged.count(b"nothing can be recorded any more") == 1
        for look in (b"executions that wait could not be looked at", b"changes of executions could not be looked for"):
            assert bridge.logged.count(look) <= 1
        assert b"Traceback" not in bridge.logged
