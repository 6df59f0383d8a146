"""`run_javascript` as clients see it, and `mcp-bridge run` with JavaScript."""

import json

import pytest
from sandbox_fixtures import knows_the_sandbox

from mcp_bridge.errors import BridgeError
from mcp_bridge.server import tool_description
from mcp_bridge.settings import Settings


@pytest.fixture
def bridge_state_dir(tmp_path, both):
    return knows_the_sandbox(tmp_path / "bridge-state", both.settings.state_dir)


async def test_there_is_a_second_tool_that_runs_javascript(configure):
    setup = configure(languages=["python", "javascript"])
    async with setup.client() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["run_python", "run_javascript"]
        assert list(tools["run_javascript"].input_schema["properties"]) == [
            "code",
            "servers",
            "timeout",
            "idempotency_key",
            "session",
        ]
        result = await client.call_tool("run_javascript", {"code": "const x: number = 42;\nconsole.log('a');\nx"})
        assert not result.is_error
        assert result.content[0].text == "a\n42"
        failed = await client.call_tool("run_javascript", {"code": "nope"})
        assert failed.is_error
        assert "ReferenceError: nope is not defined" in failed.content[0].text
        once = {"code": "console.log(Math.random())", "idempotency_key": "k"}
        first, second = [await client.call_tool("run_javascript", once) for _ in range(2)]
        assert second.content[0].text.startswith(first.content[0].text.split("\n")[0])
        await client.call_tool("run_javascript", {"code": "let x = 5", "session": "s"})
        assert (await client.call_tool("run_javascript", {"code": "x", "session": "s"})).content[0].text == "5"
        refused = await client.call_tool("run_python", {"code": "1", "session": "s"})
        assert "session_language" in refused.content[0].text
        planned = await client.call_tool("run_javascript", {"code": "1", "dry_run": True})
        assert planned.content[0].text == "1\n[dry run: it has listed no call]"
        refused = await client.call_tool("run_javascript", {"code": 1})
        assert "bad_arguments" in refused.content[0].text
        assert (await client.call_tool("run_python", {"code": "6 * 7"})).content[0].text == "42"


async def test_while_it_is_off_the_tool_is_unknown(setup):
    async with setup.client() as client:
        with pytest.raises(Exception, match="the one tool is run_python"):
            await client.call_tool("run_javascript", {"code": "1"})


def test_its_entry_costs_no_more_than_that_of_python():
    settings = Settings(languages=("python", "javascript"))
    sizes = [len(tool.model_dump_json(exclude_none=True, by_alias=True)) for tool in tool_description.tools(settings)]
    assert sizes[1] <= sizes[0] * 1.05, sizes
    assert tool_description.tools(Settings()) == tool_description.tools(settings)[:1]


def test_the_instructions_name_the_tools_that_there_are():
    python = tool_description.instructions(Settings(), ["git"])
    assert "run_javascript" not in python
    both = tool_description.instructions(Settings(languages=("python", "javascript")), ["git"])
    assert both == python + " run_javascript runs JavaScript or TypeScript in the same way."
    alone = Settings(languages=("javascript",))
    failed = tool_description.error_instructions(alone, BridgeError("image_build_failed", "There is none."))
    for text in (tool_description.instructions(alone, ["git"]), failed):
        assert "run_javascript" in text
        for of_python in ("run_python", "from mcp.servers", "asyncio", "dry_run"):
            assert of_python not in text
        assert len(text) < 2048


def test_the_command_runs_files_by_their_names(configure):
    setup = configure(languages=["python", "javascript"])
    (setup.home / "a.ts").write_text("const x: number = 6;\nconsole.log(x * 7)")
    assert setup.run("run", "a.ts").stdout == b"42\n"
    assert setup.run("run", "--language", "javascript", "-", stdin=b"console.log(typeof null)").stdout == b"object\n"
    ended = setup.run("run", "--json", "--language", "javascript", "-c", "process.exit(3)")
    assert (ended.returncode, json.loads(ended.stdout)["status"]) == (3, "exit")
    assert setup.run("run", "-c", "print(6 * 7)").stdout == b"42\n"


def test_where_it_is_off_the_command_says_so(setup):
    ended = setup.run("run", "--language", "javascript", "-c", "1")
    assert ended.returncode == 2
    assert b"language_unavailable" in ended.stderr
