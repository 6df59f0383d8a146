"""`run_javascript` as clients see it, and `mcp-bridge run` with JavaScript."""

import json

import pytest
from sandbox_fixtures import knows_the_sandbox

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.languages import language_of_file
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
        assert list(tools["run_javascript"].input_schema["properties"]) == ["code", "session"]
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
        told = "run_javascript takes code, and optionally servers, timeout, idempotency_key, session, fork, dry_run and files."
        assert told in refused.content[0].text
        for arguments in ({"session": "t", "fork": "s@1"}, {"files": [], "servers": [], "timeout": 20}):
            done = await client.call_tool("run_javascript", {"code": "globalThis.x ?? 5", **arguments})
            assert done.content[0].text.startswith("5"), (arguments, done.content[0].text)
        assert (await client.call_tool("run_python", {"code": "6 * 7"})).content[0].text == "42"


async def test_while_it_is_off_the_tool_is_unknown(setup):
    async with setup.client() as client:
        with pytest.raises(Exception, match="the one tool is run_python"):
            await client.call_tool("run_javascript", {"code": "1"})


@pytest.mark.filterwarnings("ignore:open_binary is deprecated:DeprecationWarning")  # of the tokenizer's own import
@pytest.mark.parametrize("languages", [["javascript"], ["python", "javascript"]])
async def test_the_list_of_tools_is_at_most_200_tokens_as_on_the_wire_in_either_language_and_both(configure, languages):
    from bpe_openai import get_encoding

    async with configure(languages=languages).wire() as wire:
        await wire.initialize()
        listed = (await wire.answer(await wire.ask("tools/list")))["result"]
    rendered = json.dumps(listed, separators=(",", ":"), ensure_ascii=False)
    assert len(get_encoding("o200k_base").encode(rendered)) <= 200, rendered


def test_both_tools_together_say_how_a_server_is_called_and_where_the_rest_is_told():
    both = Settings(languages=("python", "javascript"))
    first, second = tool_description.tools(both)
    (alone,) = tool_description.tools(Settings(languages=("javascript",)))
    assert [list(tool.input_schema["properties"]) for tool in (first, second)] == [["code", "session"]] * 2
    for word in ("from mcp.servers import NAME", "await NAME.tool(arg=1)", "runtime.search", "help(runtime)"):
        assert word in first.description
    for word in ('from "mcp/servers"', "NAME.tool({arg: 1})", "runtime.describe"):
        assert word in second.description
        assert word in alone.description
    for word in ("servers=", "timeout=", "idempotency_key="):
        assert word in tool_description.instructions(both, ["git"])


def test_the_instructions_name_the_tools_that_there_are():
    python = tool_description.instructions(Settings(), ["git"])
    assert "run_javascript" not in python
    both = tool_description.instructions(Settings(languages=("python", "javascript")), ["git"])
    assert both.startswith(python + " run_javascript runs JavaScript or TypeScript in the same way.")
    assert len(both) <= 2048, "Claude Code cuts what is longer"
    alone = Settings(languages=("javascript",))
    failed = tool_description.error_instructions(alone, BridgeError("image_build_failed", "There is none."))
    for text in (tool_description.instructions(alone, ["git"]), failed):
        assert "run_javascript" in text
        for of_python in ("run_python", "from mcp.servers", "asyncio"):
            assert of_python not in text
        for of_both in ("session=", "dry_run=true", "runtime.files()"):
            assert of_both in text
        assert len(text) < 2048


def test_the_command_runs_files_by_their_names(configure):
    setup = configure(languages=["python", "javascript"])
    (setup.home / "a.ts").write_text("const x: number = 6;\nconsole.log(x * 7)")
    assert setup.run("run", "a.ts").stdout == b"42\n"
    (setup.home / "big.js").write_text(f"//{'x' * 1_000_000}\nconsole.log(6 * 7)")
    assert setup.run("run", "big.js").stdout == b"42\n"
    (setup.home / "a.cjs").write_text(
        "const path = require('path');\nif (require.main === module) console.log(path.sep);"
    )
    assert setup.run("run", "a.cjs").stdout == b"/\n"
    assert {language_of_file(f"a.{end}") for end in ("js", "mjs", "cjs", "jsx", "ts", "MTS", "cts", "tsx")} == {
        "javascript"
    }
    assert {language_of_file(name) for name in ("a.py", "ajs", "a.txt")} == {"python"}
    assert setup.run("run", "--language", "javascript", "-", stdin=b"console.log(typeof null)").stdout == b"object\n"
    ended = setup.run("run", "--json", "--language", "javascript", "-c", "process.exit(3)")
    assert (ended.returncode, json.loads(ended.stdout)["status"]) == (3, "exit")
    assert setup.run("run", "-c", "print(6 * 7)").stdout == b"42\n"


def test_where_it_is_off_the_command_says_so(setup):
    ended = setup.run("run", "--language", "javascript", "-c", "1")
    assert ended.returncode == 2
    assert b"language_unavailable" in ended.stderr
