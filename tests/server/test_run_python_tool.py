"""`run_python` as clients see it: the SDK's own, in both eras, over stdio and HTTP, of bridges that the tests share."""

import asyncio
import base64
import re
import struct
import zlib
from pathlib import Path

import anyio
import mcp_types as types
import pytest
from bridge_fixtures import OVER_BOTH
from mcp.shared.exceptions import MCPError

from mcp_bridge.bridge_identity import INSTANCE_KEY, NAME, VIA_KEY
from mcp_bridge.downstream.configuration.spec import ServerSpec

pytest_plugins = ["kept_clients"]

pytestmark = [
    OVER_BOTH,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("run_python"),
]

ERAS = ["legacy", "2026-07-28"]
RECORD = "mcp-code-bridge/record"


@pytest.fixture(scope="module")
def kept_setup(configure_for_module, everything_server, git_server, time_server):
    off = ServerSpec(name="off", command="false", enabled=False)
    return lambda: configure_for_module(everything_server, git_server, time_server, off)


async def run(client, code, **arguments):
    return await client.call_tool("run_python", {"code": code, **arguments})


def text(result):
    """The text of the first block, which every answer has."""
    assert isinstance(result.content[0], types.TextContent)
    return result.content[0].text


# --- the tool ---


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28", "auto"])
async def test_in_either_era_there_is_one_tool_and_it_runs_python(connect, mode):
    client, _ = await connect(mode)
    listed = await client.list_tools()
    assert [tool.name for tool in listed.tools] == ["run_python"]
    result = await run(client, "print('hello')\nprint()\nprint('world')\n6 * 7")
    assert not result.is_error
    assert text(result) == "hello\n\nworld\n42"
    assert len(result.content) == 1


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_that_defers_tools_is_told_what_the_tool_is_for_and_not_to_defer_it(connect, mode):
    client, _ = await connect(mode)
    told = client.instructions
    (tool,) = (await client.list_tools()).tools
    assert tool.meta == {"anthropic/alwaysLoad": True}
    assert told.startswith("These MCP servers are behind it: everything, git, time. run_python ")
    for word in ("await NAME.tool(", "dir(NAME)", "runtime.search", "save_memory", "save_tool", "display(", "gather"):
        assert word in told, word
    assert len(told) <= 2048, "Claude Code cuts what is longer"


async def test_what_the_tool_says_of_itself_is_true(connect):
    """Each promise of the description and the instructions, in one script."""
    client, _ = await connect()
    kept = await run(
        client, "await runtime.save_memory('told', {'a': 1})\ndef f(): return 5\nawait runtime.save_tool(f)"
    )
    assert not kept.is_error
    result = await run(
        client,
        """
import asyncio, json
from mcp.servers import git, everything
from mcp import ToolError
from mcp.tools import f
print("git_log" in dir(git), f(), await runtime.load_memory("told"), sorted(runtime.discovered_servers()))
print(await asyncio.gather(everything.echo(message="a"), everything.echo(message="b")))
print(isinstance(await everything.echo(message='{"a": 1}'), str), "git_log" in str(await runtime.search("commit log")))
print("repo_path" in await runtime.describe("git.git_log"))
try:
    await git.git_log(repo_path="/nowhere")
except ToolError as exc:
    print(exc.server)
try:
    import numpy
except ImportError:
    print("standard library only")
help(mcp.programs)
""",
    )
    said = text(result).splitlines()
    assert said[0] == "True 5 {'a': 1} ['everything', 'git', 'time']"
    assert said[1] == "['Echo: a', 'Echo: b']"
    assert said[2:6] == ["True True", "True", "git", "standard library only"]
    assert not result.is_error


async def test_an_unknown_tool_is_a_protocol_error_and_the_server_goes_on(connect):
    client, _ = await connect()
    with pytest.raises(MCPError, match="run_python"):
        await client.call_tool("run_pyhton", {"code": "1"})
    assert text(await run(client, "1 + 1")) == "2"


# --- how a script ends ---


async def test_each_way_to_end_is_told_as_what_it_is(connect):
    client, setup = await connect()
    pid = setup.server_pid()
    quiet = await run(client, "x = 1")
    assert not quiet.is_error
    assert text(quiet) == "(no output)"

    failed = await run(client, "def f():\n    return {}['key']\nprint('before')\nf()")
    assert failed.is_error
    # What some versions of Python write below a line that is a call as a whole.
    assert re.sub(r"\n +~\^+$", "", text(failed), count=1, flags=re.MULTILINE) == (
        "before\nTraceback (most recent call last):\n"
        '  File "<script>", line 4, in <module>\n    f()\n'
        "  File \"<script>\", line 2, in f\n    return {}['key']\n           ~~^^^^^^^\nKeyError: 'key'"
    )
    assert failed.structured_content["status"] == "error"
    assert failed.structured_content["error"]["type"] == "KeyError"
    assert failed.structured_content["error"]["line"] == 2

    left = await run(client, "import sys\nprint('bye')\nsys.exit(3)")
    assert left.is_error
    assert text(left).startswith("bye\n")
    assert "3" in text(left)
    assert "Traceback" not in text(left)
    assert (left.structured_content["status"], left.structured_content["exit_code"]) == ("exit", 3)

    fine = await run(client, "import sys\nsys.exit(0)")
    assert not fine.is_error
    assert fine.structured_content["status"] == "success"

    late = await run(client, "print('started')\nwhile True: pass", timeout=0.5)
    assert late.is_error
    assert text(late).startswith("started\n[script_timeout] ")
    assert (late.structured_content["status"], late.structured_content["exit_code"]) == ("timeout", 124)

    both = await run(client, "import sys\nprint('out')\nprint('err', file=sys.stderr)")
    assert text(both) == "out\n[stderr]\nerr"
    await setup.no_container_of(pid)


BAD_REQUESTS = [
    ({"code": ""}, "empty_code", ["code"]),
    ({"code": " \n\t"}, "empty_code", ["code"]),
    ({"code": "1", "timeout": 0}, "bad_timeout", ["0", "120"]),
    ({"code": "1", "timeout": -1}, "bad_timeout", ["-1"]),
    ({"code": "1", "timeout": 100000}, "bad_timeout", ["100000", "120", "max_timeout"]),
    ({"code": "1", "servers": ["tmie"]}, "unknown_server", ["'tmie'", "Did you mean time?"]),
    ({"code": "1", "tiemout": 3}, "bad_arguments", ["tiemout"]),
    ({"code": 1}, "bad_arguments", ["code"]),
    ({"code": None}, "bad_arguments", ["code"]),
    ({}, "bad_arguments", ["code"]),
    ({"code": "1", "timeout": "5"}, "bad_arguments", ["timeout"]),
    ({"code": "1", "timeout": True}, "bad_arguments", ["timeout"]),
    ({"code": "1", "servers": "time"}, "bad_arguments", ["servers"]),
    ({"code": "1", "servers": [1]}, "bad_arguments", ["servers.0"]),
]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_bad_request_names_its_code_and_what_is_wrong(connect, mode):
    client, _ = await connect(mode)
    for arguments, code, words in BAD_REQUESTS:
        result = await client.call_tool("run_python", arguments)
        assert result.is_error, arguments
        assert text(result).startswith(f"[{code}] "), text(result)
        assert all(word in text(result) for word in words), text(result)
        assert "pydantic" not in text(result)
        assert result.structured_content["error"]["code"] == code
    assert text(await run(client, "'still here'")) == "'still here'"


async def test_a_syntax_error_shows_line_and_caret(connect):
    client, _ = await connect()
    result = await run(client, "a = 1\nb = (2\nc = 3 3\n")
    assert result.is_error
    assert 'File "<script>", line 2' in text(result)
    assert "    b = (2\n        ^\n" in text(result)
    assert "SyntaxError: '(' was never closed" in text(result)
    assert result.structured_content["error"]["code"] == "syntax_error"
    assert result.structured_content["error"]["line"] == 2


async def test_a_script_can_read_its_own_source(connect):
    client, _ = await connect()
    result = await run(client, "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f), end='')")
    assert text(result) == "def f():\n    return 1"


async def test_servers_are_called_and_can_be_narrowed_but_not_widened(connect):
    client, _ = await connect()
    called = "from mcp.servers import time\n(await time.get_current_time('Asia/Tokyo'))['timezone']"
    result = await run(client, called)
    assert text(result) == "'Asia/Tokyo'"
    assert result.structured_content["calls"] == 1
    narrowed = "from mcp import runtime\n[row for row in runtime.discovered_servers()]"
    result = await run(client, narrowed, servers=["git"])
    assert "git" in text(result)
    assert "time" not in text(result)
    result = await run(client, "from mcp.servers import time\nawait time.get_current_time('UTC')", servers=["git"])
    assert result.is_error
    result = await run(client, "1", servers=["off"])
    assert text(result).startswith("[unknown_server]")
    result = await run(client, "1", servers=[])
    assert text(result) == "1"


# --- what programs get, and what the model pays for ---


@pytest.mark.parametrize("mode", ERAS)
async def test_the_record_is_structured_content_unless_the_client_shows_that_to_the_model(connect, mode):
    client, _ = await connect(mode)
    result = await run(client, "print('x')\n5")
    record = result.structured_content
    assert (record["status"], record["exit_code"], record["stdout"], record["value"]) == ("success", 0, "x\n", "5")
    assert record["duration_ms"] >= record["start_ms"] > 0
    assert RECORD not in (result.meta or {})
    client, _ = await connect(mode, client_info=types.Implementation(name="claude-code", version="2.1"))
    result = await run(client, "print('x')\n5")
    assert result.structured_content is None
    assert result.meta[RECORD]["status"] == "success"
    assert text(result) == "x\n5"
    refused = await run(client, "")
    assert refused.is_error
    assert refused.structured_content is None, "it would be shown instead of the text"
    assert text(refused).startswith("[empty_code]")


def png():
    """A black pixel."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("mode", ERAS)
async def test_an_image_shown_is_an_image_block_and_an_artifact_is_a_resource(connect, mode, transport):
    content = bytes(range(256)) * 3000
    client, _ = await connect(mode)
    result = await run(client, f"print('a picture:')\ndisplay({png()!r})")
    assert text(result) == "a picture:"
    assert [(block.type, block.mime_type) for block in result.content[1:]] == [("image", "image/png")]
    assert base64.b64decode(result.content[1].data) == png()
    path = "/workspace/some file.bin"
    code = f"open({path!r}, 'wb').write(bytes(range(256)) * 3000)\nartifact({path!r})"
    result = await run(client, code)
    (row,) = result.structured_content["artifacts"]
    assert row["size"] == len(content)
    assert row["uri"] in text(result)
    if transport == "stdio":
        assert Path(row["path"]).read_bytes() == content
    else:
        assert "path" not in row, "the client may be on another machine"
    read = await client.read_resource(row["uri"])
    assert base64.b64decode(read.contents[0].blob) == content
    for uri, said in (
        ("artifact://0000000000000000/x", "no artifact"),
        ("artifact://../../etc/passwd", "no artifact"),
        ("file:///etc/passwd", "no resource"),
    ):
        with pytest.raises(MCPError, match=said):
            await client.read_resource(uri)


# --- progress and cancellation ---


async def test_a_long_run_gives_signs_of_life_that_strictly_rise(connect):
    seen = []

    async def note(progress, total, message):
        seen.append((progress, total, message))

    client, _ = await connect()
    code = "import time\ntime.sleep(10.5)"
    result = await client.call_tool("run_python", {"code": code}, progress_callback=note)
    assert not result.is_error
    assert len(seen) >= 2
    assert all(before[0] < after[0] for before, after in zip(seen, seen[1:], strict=False))


@pytest.mark.parametrize("mode", ERAS)
async def test_a_scripts_own_progress_arrives_in_order_and_strictly_rises(connect, mode):
    seen = []

    async def note(progress, total, message):
        seen.append((progress, total, message))

    code = """
import time
for done, message in ((1, "one"), (2, "two"), (2, "two again"), (1, "back"), (3, "three")):
    progress(done, 3, message)
    time.sleep(0.3)
"""
    client, _ = await connect(mode)
    await client.call_tool("run_python", {"code": code}, progress_callback=note)
    mine = [row for row in seen if row[1] == 3]
    assert [row[2] for row in mine] == ["one", "two", "two again", "back", "three"]
    values = [row[0] for row in seen]
    assert all(before < after for before, after in zip(values, values[1:], strict=False)), values


@pytest.mark.parametrize("mode", ERAS)
async def test_a_cancelled_call_leaves_no_container_and_a_working_server(connect, mode):
    running = anyio.Event()

    async def note(_progress, _total, message):
        if message == "running":
            running.set()

    client, setup = await connect(mode)
    pid = setup.server_pid()
    # Of an earlier test.
    await setup.no_container_of(pid)

    async def forever():
        code = "progress(1, 2, 'running')\nwhile True: pass"
        await client.call_tool("run_python", {"code": code, "timeout": 100}, progress_callback=note)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(forever)
        with anyio.fail_after(30):
            await running.wait()
        assert len(await setup.containers(pid)) == 1
        tasks.cancel_scope.cancel()
    await setup.no_container_of(pid, 15)
    assert text(await run(client, "'alive'")) == "'alive'"


# --- number ---


async def test_twenty_runs_at_once_keep_their_outputs_apart(connect):
    client, setup = await connect()
    pid = setup.server_pid()
    codes = [f"for i in range(200): print({number}, i)\n{number}" for number in range(20)]
    results = await asyncio.gather(*(run(client, code) for code in codes))
    for number, result in enumerate(results):
        assert text(result) == "\n".join(f"{number} {i}" for i in range(200)) + f"\n{number}"
    await setup.no_container_of(pid, 20)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_call_that_has_come_through_this_bridge_or_through_too_many_runs_nothing(connect, mode):
    named = types.Implementation(name=f"{NAME} in a proxy", version="1")
    client, _ = await connect(mode, client_info=named)
    own = (await client.list_tools()).meta[INSTANCE_KEY]

    async def said(via):
        return (await client.call_tool("run_python", {"code": "6 * 7"}, meta={VIA_KEY: via})).content[0].text

    first, third = "1" * 32, "3" * 32
    back = await said([[first, "team"], [own, "home"], [third, "team"]])
    assert "[bridge_cycle]" in back
    assert "The way is: 'home' -> 'team'" in back
    assert "through 8 bridges, which is the most" in await said([[f"{count:032x}", f"b{count}"] for count in range(8)])
    # Others' bridges, and whatever isn't in that form.
    no_ids = [[f"x{own[1:]}", "home"], [own + "0", "home"], [own.upper() + "é", "home"]]
    for via in ([[first, "team"]], [[own]], [own, 3, None], "x", {own: own}, [[[], {}]], [], no_ids * 3):
        assert await said(via) == "42", via
