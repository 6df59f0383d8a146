"""What the script sees: servers as modules, tools as functions, their errors, the runtime, and nothing it may not."""

import asyncio
import json
import os
import re
import signal

import pytest
from echoing_server import STRING, echoing, tool
from execution_fixtures import lines, printed
from servers.specs import faulty

from mcp_bridge.downstream.configuration.spec import OpenApiDocument, ServerSpec

# --- real servers ---


async def test_five_real_servers_are_called_from_one_script(
    sandboxes, everything_server, filesystem_server, memory_server, git_server, time_server, git_repository
):
    record = await sandboxes.run(
        f"""
import asyncio
from mcp.servers import everything, filesystem, memory, git, time
log, sum_, text, now = await asyncio.gather(
    git.git_log({str(git_repository)!r}),
    everything.get_sum(a=2, b=40),
    filesystem.read_text_file("hello.txt") if False else filesystem.list_allowed_directories(),
    time.get_current_time("Europe/Oslo"),
)
print("First commit" in str(log), "42" in str(sum_), "files" in str(text), now if isinstance(now, str) else now["timezone"])
entity = {{"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}}
await memory.create_entities([entity])
found = await memory.search_nodes(query="Ada")
print(found["entities"][0]["observations"])
""",
        everything_server,
        filesystem_server,
        memory_server,
        git_server,
        time_server,
    )
    out = lines(record)
    assert out[0].startswith("True True True ")
    assert "Europe/Oslo" in printed(record)
    assert out[-1] == "['wrote the first program']"
    assert record.calls == 6


async def test_a_long_operation_of_a_real_server_is_not_the_scripts_time(sandboxes, everything_server):
    record = await sandboxes.run(
        "from mcp.servers import everything\n"
        "print(await everything.trigger_long_running_operation(duration=3, steps=3))",
        everything_server,
        timeout=1,
    )
    assert "completed" in printed(record)
    assert record.script_ms < 1000


async def test_help_and_signatures_of_a_real_tool_are_true(sandboxes, git_server):
    record = await sandboxes.run(
        """
import inspect
from mcp.servers import git
print(inspect.signature(git.git_log))
help(git.git_log)
print(git.git_log.__name__, git.git_log.__module__, callable(git.git_log.raw))
print("git_status" in dir(git), git)
from mcp.servers.git import git_status
print(git_status is git.git_status)
import mcp.servers
print(mcp.servers.__all__, mcp.servers.git is git)
""",
        git_server,
    )
    out = lines(record)
    assert out[0].startswith("(repo_path: str, max_count: int = 10, ")
    assert "Help on function git_log in module mcp.servers.git:" in out
    assert any("commit" in line.lower() for line in out)
    assert out[-4:] == [
        "git_log mcp.servers.git True", "True <MCP server 'git'>", "True", "['git'] True",
    ]  # fmt: skip


# --- arguments and names ---


async def test_positional_order_keywords_and_odd_parameter_names(sandboxes):
    server = echoing(
        tool("send", {"to": STRING, "from": STRING, "a-b": STRING, "a_b": STRING, "self": STRING, "2nd": STRING}, ["from"]),
        tool("none"),
        tool("open", {"x": STRING}, additionalProperties=True),
    )  # fmt: skip
    record = await sandboxes.run(
        """
import inspect, json
from mcp.servers import odd
print(inspect.signature(odd.send))
async def sent(call): print(json.loads(await call)[1])
await sent(odd.send("a", "b"))
await sent(odd.send(from_="f", to="t", self="s", _2nd="2"))
await sent(odd.send(**{"from": "f", "a-b": "dash", "a_b": "line", "2nd": "n"}))
await sent(odd.none())
for args, kwargs in [((), {}), (("1",) * 7, {}), (("1", "2"), {"from_": "3"}), (("1", "2"), {"form": "x"})]:
    try:
        odd.send(*args, **kwargs)
    except TypeError as exc:
        print(exc)
try:
    odd.none(1)
except TypeError as exc:
    print(exc)
""",
        server,
    )
    out = lines(record)
    assert out[0].startswith("(from_: str")
    first = out[0].removeprefix("(").split(": ")[0]
    assert first == "from_"
    assert json.loads(out[1].replace("'", '"')) == {"from": "a", "to": "b"}
    assert json.loads(out[2].replace("'", '"')) == {"from": "f", "to": "t", "self": "s", "2nd": "2"}
    assert json.loads(out[3].replace("'", '"')) == {"from": "f", "a-b": "dash", "a_b": "line", "2nd": "n"}
    assert out[4] == "{}"
    assert "missing required argument: 'from_'" in out[5]
    assert "takes 6 positional arguments but 7 were given" in out[6]
    assert "multiple values for argument 'from_'" in out[7]
    assert "unexpected keyword argument 'form'" in out[8]
    assert "from_" in out[8]
    assert "takes 0 positional arguments but 1" in out[9]


WRONG_CALLS = """
from mcp import MCPError, ToolError
import mcp.sync.servers
from mcp.servers import time, git, odd
async def told(call):
    try:
        print(await call())
    except (TypeError, MCPError) as exc:
        print(type(exc).__name__, "|", exc)
await told(lambda: time.convert_time(source="UTC", target="Asia/Tokyo", time=12))
await told(lambda: time.convert_time(source_timezone="UTC", target_timezone="Asia/Tokyo", time="12:00"))
await told(lambda: git.git_log(path="/x", count="5", max_count="5", limit=[1]))
await told(lambda: git.git_log(7, max_count="5"))
await told(lambda: runtime.call_tool("time", "convert_time", {"source": "UTC", "target": "UTC", "time": 12}))
await told(lambda: odd.many(**{f"x{n}": n for n in range(100)}))
await told(lambda: odd.many("a", "b", first="c", second=object()))
await told(lambda: odd.many(first="vault://ref/aaaaaaaaaaaaaaaa"))
"""


async def test_every_fault_of_a_call_is_told_at_once_with_the_signature(sandboxes, time_server, git_server):
    many = tool("many", {"first": {"type": "integer"}, "second": STRING, "third": STRING}, ["first", "third"])
    record = await sandboxes.run(WRONG_CALLS, time_server, git_server, echoing(many))
    out = lines(record)
    converts = "convert_time(source_timezone: str, time: str, target_timezone: str) -> "
    assert out[0].startswith(
        "TypeError | time.convert_time() got an unexpected keyword argument 'source'; nearest: source_timezone; "
        "got an unexpected keyword argument 'target'; nearest: target_timezone; "
        "missing required arguments: 'source_timezone', 'target_timezone'; time: 12 is not of type 'string'. "
        f"It is {converts}"
    )
    assert "Asia/Tokyo" in printed(record)
    log = next(line for line in out if "git_log() got" in line)
    assert "unexpected keyword argument 'path'; nearest: repo_path" in log
    assert "unexpected keyword argument 'count'" in log
    assert "unexpected keyword argument 'limit'" in log
    assert "missing required argument: 'repo_path'" in log
    assert "max_count: '5' is not" in log
    assert "It is git_log(repo_path: str, max_count: int = 10, " in log
    typed = next(line for line in out if line.startswith("ToolError | git.git_log: "))
    assert "repo_path: 7 is not of type 'string'" in typed
    assert "max_count: '5' is not" in typed
    assert "It is git.git_log(repo_path: str, " in typed
    named = next(line for line in out if line.startswith("ToolError | time.convert_time: "))
    assert named.startswith(
        "ToolError | time.convert_time: there is no parameter 'source' (did you mean source_timezone?); "
        "there is no parameter 'target' (did you mean target_timezone?); time: 12 is not of type 'string'; "
        "arguments: 'source_timezone' is a required property; arguments: 'target_timezone' is a required property. "
        f"It is time.{converts}"
    )
    assert "got 80 more of them" in out[-3]
    assert len(out[-3]) < 4000
    assert "got multiple values for argument 'first'; the value can't be written as JSON: " in out[-2]
    assert "It is many(first: int, third: str, second: str = ...)" in out[-2]
    assert "first: '" not in out[-1], "what is behind a reference isn't known here"


async def test_what_is_required_and_has_a_default_may_be_left_out(sandboxes):
    place = {"element": STRING | {"default": "body"}, "ref": STRING, "wait": {"type": "integer", "default": 5}}
    record = await sandboxes.run(
        """
import inspect, json
from mcp import programs
from mcp.servers import odd
print(inspect.signature(odd.click))
for call in (odd.click("e1"), odd.click(ref="e1", wait=7), odd.click("e1", "head")):
    print(json.loads(await call)[1])
print(await runtime.describe("odd.click"))
step = {"id": "a", "type": "tool", "tool": "odd.click", "args": {"ref": "e2"}}
print((await programs.run({"steps": [step]})).output)
""",
        echoing(tool("click", place, ["element", "ref", "wait"])),
    )
    out = lines(record)
    assert out[0].startswith("(ref: str, element: str = 'body', wait: int = 5) -> ")
    assert [eval(line) for line in out[1:4]] == [  # noqa: S307
        {"ref": "e1", "element": "body", "wait": 5},
        {"ref": "e1", "element": "body", "wait": 7},
        {"ref": "e1", "element": "head", "wait": 5},
    ]
    assert out[4].startswith("await odd.click(ref: str, element: str = 'body', wait: int = 5) -> ")
    assert json.loads(out[-1])[1] == {"ref": "e2", "element": "body", "wait": 5}


async def test_a_tool_is_described_by_the_name_that_clients_write_too(sandboxes):
    record = await sandboxes.run(
        """
for name in ("odd.speak", "mcp__odd__speak", "odd__speak"):
    print(await runtime.describe(name, "line"))
print([len(await runtime.search("speak", limit)) for limit in (1, 0, -1)])
""",
        echoing(tool("speak", {"a": STRING})),
    )
    first, *others, counts = lines(record)
    assert others == [first, first]
    assert counts == "[1, 0, 0]"


async def test_a_wrong_name_is_answered_with_the_right_one_and_what_is_cut_can_be_read(sandboxes, git_server):
    long = "Begins here. " + "It goes on. " * 100 + "It ends here."
    record = await sandboxes.run(
        """
from mcp import MCPError
from mcp.servers import git, odd
dir(git), dir(odd)
for name in ("git_log", "gti.git_log", "git.git_lgo", "git.log", "git.history", "git.xyz", "gti", "odd.nothing", "github.git_log"):
    try:
        print(name, "|", await runtime.describe(name))
    except MCPError as exc:
        print(name, "|", exc.code, exc)
for detail in ("signature", "full"):
    text = await runtime.describe("odd.speak", detail)
    print(detail, "It ends here." in text, text.splitlines()[-1].strip())
""",
        git_server,
        echoing(tool("speak", {"a": STRING}) | {"description": long}),
    )
    out = dict(line.split(" | ", 1) for line in lines(record)[:-2])
    assert out["git_log"] == "unknown_server There is no server 'git_log'. Did you mean git.git_log?"
    assert out["gti.git_log"] == "unknown_server There is no server 'gti'. Did you mean git.git_log?"
    assert out["github.git_log"] == "unknown_server There is no server 'github'. Did you mean git.git_log?"
    assert out["git.git_lgo"].startswith("unknown_tool server 'git' has no tool 'git_lgo'. Did you mean git_log")
    assert "Did you mean git_log" in out["git.log"]
    assert out["git.history"].endswith("Did you mean git_log?")
    assert "There are: git_" in out["git.xyz"]
    assert "git_log" in out["git.xyz"]
    assert "Did you mean git?" in out["gti"]
    assert out["odd.nothing"] == "unknown_tool server 'odd' has no tool 'nothing'. There are: speak."
    assert lines(record)[-2:] == [
        'signature False … all of it: await runtime.describe("odd.speak", "full")',
        'full True As JSON Schema: await runtime.describe("odd.speak", "schema")',
    ]


async def test_aliases_are_injective_and_the_true_names_work_too(sandboxes):
    twins = echoing(
        *map(tool, ["a-b", "a_b", "a_b_2", "class", "123x", "Foo-Bar", "raw", "mro", "_server", "__init__"])
    )
    record = await sandboxes.run(
        """
import json
from mcp.servers import odd, foo_bar, _123x, class_
names = dir(odd)
print(len(names) == len(set(names)) == 10)
reached = {json.loads(await getattr(odd, alias)())[0] for alias in names}
print(sorted(reached))
print(json.loads(await odd["a-b"]())[0], json.loads(await odd.class_())[0])
print(sorted(mcp_servers), LOADED_MCP_SERVERS == tuple(mcp_servers), mcp_foo_bar is foo_bar is mcp_servers["Foo-Bar"])
print(await foo_bar.echo("x"), await _123x.echo("y"), await class_.echo("z"))
""",
        twins,
        faulty(name="Foo-Bar"),
        faulty(name="123x"),
        faulty(name="class"),
    )
    out = lines(record)
    assert out[0] == "True"
    assert out[1] == str(
        sorted(["a-b", "a_b", "a_b_2", "class", "123x", "Foo-Bar", "raw", "mro", "_server", "__init__"])
    )
    assert out[2] == "a-b class"
    assert out[3] == "['123x', 'Foo-Bar', 'class', 'odd'] True True"
    assert out[4] == "x y z"


async def test_unknown_names_are_errors_that_name_the_nearest(sandboxes):
    record = await sandboxes.run(
        """
from mcp import runtime, MCPError, ToolError
def told(action):
    try:
        action()
    except Exception as exc:
        print(type(exc).__name__, getattr(exc, "code", ""), "|", exc)
    else:
        print("no error")
def imported(text): return lambda: exec(text, {})
from mcp.servers import faulty
from mcp.sync.servers import faulty as blocking
told(imported("from mcp.servers import faluty"))
told(imported("import mcp.servers.nothing_like_it"))
told(imported("import mcp.sync.servers.faluty"))
told(lambda: faulty.ehco)
told(imported("from mcp.servers.faulty import ehco"))
told(lambda: blocking.echo(txt="a"))
told(lambda: blocking.echo(7))
told(lambda: blocking.echo("a", times=0))
told(lambda: runtime.call_tool_sync("faluty", "echo", {"text": "a"}))
told(lambda: runtime.call_tool_sync("faulty", "ehco", {"text": "a"}))
told(lambda: runtime.call_tool_sync("faulty", "echo", {"txt": "a"}))
told(lambda: runtime.call_tool_sync(7, "echo"))
told(lambda: runtime.call_tool_sync("faulty", None))
told(lambda: runtime.call_tool_sync(7, "echo", {}))
told(lambda: runtime.call_tool_sync("faulty", 7, {}))
told(lambda: runtime.describe_sync("faulty.ehco"))
told(lambda: runtime.describe_sync("faluty"))
told(lambda: runtime.describe_sync("faulty", detail="everything"))
told(lambda: runtime.search_sync(7))
told(lambda: runtime.list_tools_sync("x" * 100_000))
told(lambda: runtime.describe_sync("." * 100_000))
told(imported("from mcp.servers import faulty; faulty['ehco']"))
""",
        faulty(),
    )
    out = lines(record)
    assert "no error" not in out
    kinds = [line.split(" |")[0].split() for line in out]
    assert out[0].startswith(("ImportError", "ModuleNotFoundError"))
    for place in (0, 2):
        assert "nearest: faulty" in out[place], out[place]
    assert "nothing_like_it" in out[1]
    for place in (3, 21):
        assert "ehco" in out[place]
        assert "nearest: echo" in out[place]
    assert "ehco" in out[4]
    assert out[5].startswith("TypeError")
    assert "text" in out[5]
    assert kinds[6][0] == kinds[7][0] == "ToolError"
    assert "text" in out[6]
    assert "times" in out[7]
    assert [kind[1] for kind in kinds[8:11]] == ["unknown_server", "unknown_tool", kinds[6][1]]
    assert "faulty" in out[8]
    assert "echo" in out[9]
    for place in range(11, 15):
        assert out[place].startswith("TypeError  | call_tool() takes a server, a tool and a dict; write: "), out[place]
    assert [kind[1] for kind in kinds[15:17]] == ["unknown_tool", "unknown_server"]
    assert "signature" in out[17]
    assert kinds[18][1] == "bad_params"
    assert [kind[1] for kind in kinds[19:21]] == ["bad_request", "bad_request"]


async def test_a_wrong_name_is_answered_with_each_right_one_once_and_where_there_is_none_with_the_reason(
    bilingual, tmp_path
):
    document = tmp_path / "document.json"
    paths = {"/pets": {"post": {"operationId": "make_pet"}}}
    document.write_text(json.dumps({"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": paths}))
    service = ServerSpec(
        name="petstore", type="openapi", url="http://127.0.0.1:9", openapi=OpenApiDocument(location=str(document))
    )
    code = {
        "python": """
from mcp.servers import odd, petstore
for server in (odd, petstore):
    try:
        server.get_cases
    except AttributeError as exc:
        print(exc)
""",
        "javascript": """
import { odd, petstore } from 'mcp/servers';
for (const server of [odd, petstore]) {
  await server.get_cases().catch((error) => console.log(error.message));
}
""",
    }
    tools = [tool("get-case"), tool("remove-everything")]
    first, second = lines(await bilingual.run(code, echoing(*tools), service))
    assert first.endswith("nearest: get_case")
    assert "'petstore' has no tool 'get_cases'. It has no tools: server 'petstore': 1 operations that may" in second


async def test_a_script_without_servers_is_told_so(sandboxes):
    record = await sandboxes.run("""
from mcp import runtime
print(list(runtime.discovered_servers()), LOADED_MCP_SERVERS, mcp_servers)
print(runtime.capability_summary())
try:
    from mcp.servers import git
except ImportError as exc:
    print(exc)
""")
    assert lines(record)[0] == "[] () {}"
    assert "none configured" in lines(record)[1]
    assert "git" in lines(record)[-1]


# --- results and errors of tools ---


async def test_results_are_unwrapped_and_raw_gives_the_whole(sandboxes, everything_server):
    record = await sandboxes.run(
        """
from mcp.servers import everything
plain = await everything.echo("hi")
whole = await everything.echo.raw("hi")
print(type(plain).__name__, "hi" in plain, sorted(whole), whole["content"][0]["type"])
weather = await everything.get_structured_content("New York")
print(type(weather).__name__, sorted(weather))
image = await everything.get_tiny_image()
print(type(image).__name__)
from mcp.sync.servers import everything as blocking
print(blocking.echo("hi") == plain, blocking.echo.raw("hi")["content"] == whole["content"])
""",
        everything_server,
    )
    out = lines(record)
    assert out[0].startswith("str True ['content'")
    assert out[0].endswith("text")
    assert out[1].startswith("dict ['conditions'")
    assert out[2] == "list"
    assert out[3] == "True True"


async def test_an_error_has_the_structured_content_of_the_tool_s_answer(bilingual):
    code = {
        "python": """
from mcp import ToolError
from mcp.servers import faulty
try:
    await faulty.refuse()
except ToolError as exc:
    print(exc.details["structuredContent"]["why"], exc.details["content"][0]["text"], sorted(exc.details))
""",
        "javascript": """
import { faulty } from 'mcp/servers';
try {
  await faulty.refuse();
} catch ({ details }) {
  console.log(details.structuredContent.why, details.content[0].text, JSON.stringify(Object.keys(details).sort()));
}
""",
    }
    record = await bilingual.run(code, faulty("says-why", "stubborn"))
    line = record.stdout.decode().replace('"', "'").replace("','", "', '")
    assert line == "stubborn no, I will not ['content', 'structuredContent']\n", record.error


async def test_a_tool_that_reports_an_error_raises_it_with_its_fields(sandboxes):
    record = await sandboxes.run(
        """
from mcp import ToolError, MCPError
import mcp.runtime
from mcp.servers import faulty
from mcp.sync.servers import faulty as blocking
try:
    await faulty.refuse()
except ToolError as exc:
    print(exc, exc.server, exc.tool, exc.code, exc.message, exc.details["content"][0]["text"])
    print(isinstance(exc, MCPError), mcp.runtime.ToolError is ToolError)
try:
    blocking.refuse()
except ToolError as exc:
    print(exc)
print((await faulty.refuse.raw())["isError"])
await faulty.refuse()
""",
        faulty(),
    )
    assert record.stdout.decode().splitlines() == [
        "no, I will not faulty refuse tool_error no, I will not no, I will not",
        "True True",
        "no, I will not",
        "True",
    ]
    assert record.status == "error"
    assert (record.error["type"], record.error["message"], record.error["line"]) == ("ToolError", "no, I will not", 16)
    assert "proxies" not in record.error["traceback"]


# --- calls that nobody awaits ---

NOT_AWAITED = {
    "from mcp.servers import faulty\n\nfaulty.echo('a')\nprint('on')": (3, "faulty.echo"),
    "from mcp.servers import faulty\nx = [faulty.echo.raw('a')\n for _ in range(2)]": (2, "faulty.echo.raw"),
    "from mcp.servers import faulty\nasync def f():\n    faulty.echo('a')\nawait f()": (3, "faulty.echo"),
    "from mcp import runtime\nruntime.call_tool('faulty', 'echo', {'text': 'a'})\n1": (2, "runtime.call_tool"),
    "import asyncio\nfrom mcp.servers import faulty\nasync def main():\n    await faulty.echo('a')\n    faulty.echo('b')\nasyncio.run(main())": (5, "faulty.echo"),
    "from mcp.servers import faulty\nfaulty.echo('a')\nimport sys\nsys.exit(0)": (2, "faulty.echo"),
}  # fmt: skip

AWAITED = [
    "import asyncio\nfrom mcp.servers import faulty\nprint(await asyncio.gather(faulty.echo('a'), faulty.echo('b')))",
    "import asyncio\nfrom mcp.servers import faulty\nt = asyncio.create_task(faulty.echo('a'))\nprint(await t)",
    "import asyncio\nfrom mcp.servers import faulty\nt = asyncio.ensure_future(faulty.echo('a'))\nprint(await t)",
    "import asyncio\nfrom mcp.servers import faulty\nasync with asyncio.TaskGroup() as g:\n    t = g.create_task(faulty.echo('a'))\nprint(t.result())",
    "import asyncio\nfrom mcp.servers import faulty\nprint(await asyncio.wait_for(faulty.echo('a'), 20))",
    "import asyncio\nfrom mcp.servers import faulty\nfor c in asyncio.as_completed([faulty.echo('a')]): print(await c)",
    "import asyncio\nfrom mcp.servers import faulty\nprint(await asyncio.shield(faulty.echo('a')))",
    "import asyncio\nfrom mcp.servers import faulty\nc = faulty.echo('a'); print(asyncio.iscoroutine(c) and 'a'); c.close()",
    "import asyncio\nfrom mcp.servers import faulty\nt = asyncio.create_task(faulty.hang())\nawait asyncio.sleep(0.05)\nprint('a')",
    "import asyncio\nfrom mcp.servers import faulty\nasync def f(): return await faulty.echo('a')\nprint(asyncio.run(f()))",
    "from mcp.servers import faulty\nawait faulty.echo('a')\nprint('a')\ntry:\n    faulty.echo(nonsense=1)\nexcept TypeError: pass",
]  # fmt: skip


async def test_a_call_that_is_never_awaited_is_an_error_that_names_its_line(sandboxes):
    async with sandboxes.open(faulty()) as bridge:
        for code, (line, shown) in NOT_AWAITED.items():
            record = await bridge.run(code)
            assert record.status == "error", code
            assert record.error["type"] == "NotAwaitedError"
            assert record.error["line"] == line, code
            assert f"line {line}: {shown}(...) was never awaited" in record.error["message"]
        record = await bridge.run("from mcp.servers import faulty\nfaulty.echo('a')\n1 / 0")
        assert record.error["type"] == "ZeroDivisionError"
        assert "line 2: faulty.echo(...) was never awaited" in record.error["message"]


async def test_a_call_that_was_handed_to_asyncio_is_not_taken_for_forgotten(sandboxes):
    async with sandboxes.open(faulty()) as bridge:
        for code in AWAITED:
            record = await bridge.run(code)
            assert record.status == "success", (code, record.error)
            assert "a" in record.stdout.decode(), code
            assert b"never" not in record.stderr, code


# --- cancelling ---


async def test_a_call_that_is_cancelled_is_cancelled_at_the_server(bilingual):
    code = {
        "python": """
import asyncio
from mcp.servers import faulty
await faulty.echo("started")
for _ in range(3):
    try:
        await asyncio.wait_for(faulty.hang(), 0.2)
    except TimeoutError:
        print("timed out")
while len(__import__("json").loads(await faulty.cancelled())) < 3:
    await asyncio.sleep(0.05)
print(await faulty.echo("goes on"))
""",
        "javascript": """
import { faulty } from "mcp/servers";
await faulty.echo({ text: "started" });
const soon = () => ({ signal: AbortSignal.timeout(200) });
for (const call of [() => faulty.hang(soon()), () => faulty.hang.raw({}, soon()), () => runtime.call_tool("faulty", "hang", {}, soon())]) {
  try { await call() } catch (error) { if (error.name === "TimeoutError") console.log("timed out") }
}
try { await faulty.echo({ text: "never" }, { signal: AbortSignal.abort() }) } catch (error) { if (error.name !== "AbortError") throw error }
while (JSON.parse(await faulty.cancelled()).length < 3) await new Promise((done) => setTimeout(done, 50));
console.log(await faulty.echo({ text: "goes on" }));
""",
    }
    record = await bilingual.run(code, faulty())
    assert lines(record) == ["timed out"] * 3 + ["goes on"]


# --- the runtime ---


async def test_every_runtime_function_works_in_both_forms(sandboxes, git_server, tmp_path):
    async with sandboxes.open(git_server, faulty(), state_dir=tmp_path) as bridge:
        record = await bridge.run("""
import inspect
from mcp import runtime
names = [name for name in runtime.__all__ if not name.endswith("_sync") and callable(getattr(runtime, name))]
both = [name for name in names if hasattr(runtime, name + "_sync")]
for name in both:
    f = getattr(runtime, name)
    assert inspect.signature(f) == inspect.signature(getattr(runtime, name + "_sync")), name
    assert f.__doc__, name
print(sorted(names))
def same(a, b):
    assert str(a) == str(b), (a, b)
    return a
print(runtime.discovered_servers())
print(same(await runtime.list_servers(), runtime.list_servers_sync()) == ["git", "faulty"] or runtime.list_servers_sync())
print(len(same(await runtime.list_tools("faulty"), runtime.list_tools_sync("faulty"))))
print([row["alias"] for row in same(await runtime.search("commit history", limit=3), runtime.search_sync("commit history", limit=3))] if False else "git_log" in str(await runtime.search("commit log")))
print(same(await runtime.describe("git.git_log", "line"), runtime.describe_sync("git.git_log", "line")))
print(same(await runtime.describe("git.git_log"), runtime.describe_sync("git.git_log", "signature")))
print(sorted(same(await runtime.describe("GIT.Git_Log", "schema"), runtime.describe_sync("git.git_log", detail="schema"))))
print(len(str(same(await runtime.describe_server("git"), runtime.describe_server_sync("git"))).splitlines()) > 5)
print(same(await runtime.query_tool_docs("git", "git_log"), runtime.query_tool_docs_sync("git", "git_log"))[0]["name"])
print(len(await runtime.query_tool_docs("faulty", detail="full")))
print([row["name"] for row in same(await runtime.search_tool_docs("git log"), runtime.search_tool_docs_sync("git log"))][:1])
print(list(await runtime.search_tool_docs("git nonsenseword")))
print({row["name"]: (row["status"], row["tools"] is not None) for row in runtime.list_loaded_server_metadata()})
print(await runtime.call_tool("faulty", "echo", {"text": "a"}), runtime.call_tool_sync("faulty", "echo", text="b"))
print("git" in runtime.capability_summary())
print(runtime.search_sync("echo text", 1))
try:
    await runtime.call_tool("faulty", "refuse")
except runtime.MCPError as exc:
    print(type(exc).__name__)
""")
    out = lines(record)
    prior = {
        "discovered_servers", "list_servers", "list_tools", "call_tool", "describe_server",
        "list_loaded_server_metadata", "query_tool_docs", "search_tool_docs", "capability_summary", "MCPError",
        "save_tool", "save_memory", "load_memory", "update_memory", "delete_memory", "list_memories",
    }  # fmt: skip
    assert prior | {"search", "describe"} <= set(json.loads(out[0].replace("'", '"')))
    text = "\n".join(out)
    assert "git_log" in text
    assert "def git_log(" in text or "git_log(" in text
    assert "a b" in out
    assert "[]" in out
    assert out[-1] == "ToolError"


async def test_discovery_needs_every_word_only_where_it_says_so(sandboxes, git_server):
    record = await sandboxes.run(
        """
from mcp import runtime
print(len(runtime.search_tool_docs_sync("git branch")) > 0, len(runtime.search_tool_docs_sync("git zzz")))
print(len(runtime.search_sync("branch zzz")) > 0)
""",
        git_server,
    )
    assert lines(record) == ["True 0", "True"]


async def test_search_sees_servers_that_nobody_has_started(sandboxes, git_server, time_server, tmp_path):
    async with sandboxes.open(git_server, time_server, faulty("dead", name="broken"), state_dir=tmp_path) as bridge:
        record = await bridge.run("""
from mcp import runtime
print({row["status"] for row in runtime.list_loaded_server_metadata()})
print(runtime.search_sync("convert time between zones", 1)[0]["name"])
""")
    out = lines(record)
    assert "running" not in out[0]
    assert out[1:] == ["time.convert_time"]
    assert b"broken" in record.stderr


async def test_servers_that_are_left_out_do_not_exist_for_the_script(sandboxes, git_server):
    async with sandboxes.open(git_server, faulty(), faulty(name="secret")) as bridge:
        record = await bridge.run(
            """
from mcp import runtime, MCPError
print(list(runtime.discovered_servers()), LOADED_MCP_SERVERS, sorted(mcp_servers), "mcp_secret" in globals())
print([row["name"] for row in runtime.list_loaded_server_metadata()])
print({match["server"] for match in runtime.search_sync("", 100)})
def told(action):
    try:
        print("no error", action())
    except Exception as exc:
        print(type(exc).__name__, getattr(exc, "code", None), exc)
told(lambda: exec("from mcp.servers import secret"))
told(lambda: exec("from mcp.sync.servers import secret"))
told(lambda: runtime.call_tool_sync("secret", "echo", {"text": "a"}))
told(lambda: runtime.call_tool_sync("SECRET", "echo", {"text": "a"}))
told(lambda: runtime.describe_sync("secret"))
told(lambda: runtime.describe_sync("secret.echo"))
told(lambda: runtime.list_tools_sync("secret"))
told(lambda: runtime.query_tool_docs_sync("secret"))
import mcp_bridge.guest.proxies as p
from mcp.servers import faulty
calls = faulty.__dict__["__bridge__"].calls
told(lambda: p.ServerModule("x", "secret", "secret", calls, blocking=True).echo("a"))
print(await faulty.echo("mine"))
""",
            servers=["faulty"],
        )
        none = await bridge.run("from mcp import runtime\nprint(list(runtime.discovered_servers()))", servers=[])
        assert bridge.fleet.servers["secret"].running is False
    out = lines(record)
    assert out[0] == "['faulty'] ('faulty',) ['faulty'] False"
    assert out[1:3] == ["['faulty']", "{'faulty'}"]
    assert "no error" not in "".join(out)
    assert [line.split()[1] for line in out[5:12]] == ["unknown_server"] * 7
    assert out[-1] == "mine"
    assert "git" not in "".join(out)
    assert lines(none) == ["[]"]


async def test_servers_that_are_left_out_do_not_exist_for_javascript_either(both, git_server):
    code = """
console.log(String([...await runtime.list_servers()]), String(Object.keys(mcp.servers)));
console.log(String([...new Set((await runtime.search("", 100)).map(({ server }) => server))]));
const told = async (action) => {
  try { console.log("no error", await action()) } catch (error) { console.log(error.code ?? error.name, error.message) }
};
await told(() => import("mcp/servers").then(({ secret }) => secret.echo("a")));
await told(() => mcp.servers.secret.echo("a"));
await told(() => runtime.call_tool("secret", "echo", { text: "a" }));
await told(() => runtime.call_tool("SECRET", "echo", { text: "a" }));
await told(() => runtime.describe("secret"));
await told(() => runtime.describe("secret.echo"));
await told(() => runtime.list_tools("secret"));
console.log(await mcp.servers.faulty.echo("mine"));
"""
    async with both.open(git_server, faulty(), faulty(name="secret")) as bridge:
        record = await bridge.run(code, language="javascript", servers=["faulty"])
        none = await bridge.run("[...await runtime.list_servers()]", language="javascript", servers=[])
        imported = 'import { secret } from "mcp/servers";'
        missing = await bridge.run(imported, language="javascript", servers=["faulty"])
        assert bridge.fleet.servers["secret"].running is False
    out = lines(record)
    assert out[:2] == ["faulty faulty", "faulty"]
    assert [line.split()[0] for line in out[2:4]] == ["TypeError"] * 2
    assert [line.split()[0] for line in out[4:9]] == ["unknown_server"] * 5
    assert out[-1] == "mine"
    assert "git" not in "".join(out)
    assert (none.value, missing.status) == ("[]", "error")


async def test_a_server_with_a_thousand_tools(sandboxes):
    record = await sandboxes.run(
        """
from mcp.servers import faulty
from mcp import runtime
print(len(dir(faulty)), await faulty.tool_0900("x"))
print(len(runtime.list_tools_sync("faulty")), runtime.search_sync("tool_0777", 1)[0]["tool"])
print(len(runtime.describe_sync("faulty", "line").splitlines()))
""",
        faulty("many", 989),
    )
    out = lines(record)
    assert out[0] == "1000 called tool_0900"
    assert out[1] == "1000 tool_0777"
    assert int(out[2]) >= 1000


# --- servers that fail ---


async def test_a_server_killed_in_mid_call_fails_that_call_and_works_for_the_next(bilingual, time_server):
    started = asyncio.Event()
    async with bilingual.open(faulty(), time_server) as bridge:
        pids = []

        def told(_done, _total, message):
            pids.append(int(message))
            started.set()

        task = asyncio.create_task(
            bridge.run(
                {
                    "python": """
import asyncio, time
from mcp import ToolError
from mcp.servers import faulty
pid = await faulty.pid()
call = asyncio.create_task(faulty.hang())
await asyncio.sleep(0.1)
progress(1, 1, pid)
began = time.monotonic()
try:
    await call
except ToolError as exc:
    print(exc.server, exc.tool, exc.code)
print(int(time.monotonic() - began < 10))
print(await faulty.echo("again"), int(await faulty.pid() != pid))
""",
                    "javascript": """
const { faulty } = mcp.servers;
const pid = await faulty.pid();
const call = faulty.hang();
await new Promise((done) => setTimeout(done, 100));
progress(1, 1, pid);
const began = performance.now();
try { await call } catch (error) { console.log(error.server, error.tool, error.code) }
console.log(+(performance.now() - began < 10_000));
console.log(await faulty.echo("again"), +(await faulty.pid() !== pid));
""",
                },
                progress=told,
            )
        )
        await asyncio.wait_for(started.wait(), 30)
        os.kill(pids[0], signal.SIGKILL)
        record = await task
    out = lines(record)
    assert out[0].startswith("faulty hang ")
    assert out[1:] == ["1", "again 1"]


async def test_dead_slow_and_chatty_servers_do_not_hold_up_another(sandboxes):
    record = await sandboxes.run(
        """
import asyncio, time
from mcp import MCPError
from mcp.servers import good, dead, silent, chatty, garbage
await good.echo("started")
async def failing(server):
    try:
        await server.echo("x")
    except MCPError as exc:
        return exc.code
async def asked(server):
    return await asyncio.to_thread(lambda: asyncio.run(failing(server)))
slow = [asyncio.create_task(asked(server)) for server in (dead, silent)]
loud = asyncio.create_task(chatty.shout(5_000_000))
began = time.monotonic()
for n in range(50):
    await good.echo(str(n))
print(time.monotonic() - began < 5)
print(await garbage.echo("through the noise"))
print(await loud)
print(await asyncio.gather(*slow))
""",
        faulty(name="good"),
        faulty("dead", name="dead"),
        faulty("silent", name="silent", start_timeout=6.0),
        faulty(name="chatty"),
        faulty("garbage", name="garbage"),
        timeout=30,
    )
    out = lines(record)
    assert out[:3] == ["True", "through the noise", "shouted"]
    assert "None" not in out[3]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1\nruntime.save_memory('k', 1)\nprint('saved')", "await runtime.save_memory(...)"),
        ("found = runtime.search('x')\nprint(found)", "await runtime.search(...)"),
        ("async def main():\n    print('never')\nmain()", "await main(...)"),
    ],
)
async def test_what_was_never_awaited_is_an_error_and_not_a_success(sandboxes, code, said):
    record = await sandboxes.run(code)
    assert record.status == "error"
    assert record.error["type"] == "NotAwaitedError"
    assert said in record.error["message"]


async def test_names_of_the_earlier_bridge_answer_with_and_without_await(sandboxes, git_server):
    record = await sandboxes.run(
        """
print(runtime.discovered_servers(detailed=True)[0]["name"], (await runtime.discovered_servers_sync())[0])
print(runtime.describe_server("git")["tools"][0]["name"] == (await runtime.describe_server("git"))["tools"][0]["name"])
print((await runtime.capability_summary()) == runtime.capability_summary_sync())
print(await runtime.update_memory("count", lambda old: (old or 0) + 1) >= 1, mcp.runtime is runtime)
await runtime.delete_memory("count")
""",
        git_server,
    )
    assert lines(record) == ["git git", "True", "True", "True True"]


async def test_a_search_says_once_and_on_stderr_what_it_could_not_look_into(sandboxes, tmp_path):
    async with sandboxes.open(faulty("dead", name="broken"), state_dir=tmp_path) as bridge:
        record = await bridge.run("for _ in range(3): await runtime.search('anything')")
    assert record.stdout == b""
    assert record.stderr.count(b"broken") == 1


async def test_a_script_sees_its_own_source(sandboxes):
    record = await sandboxes.run(
        "import inspect, traceback\ndef f():\n    1 / 0\nprint(inspect.getsource(f))\n"
        "try: f()\nexcept ZeroDivisionError: traceback.print_exc()"
    )
    assert "    1 / 0" in printed(record)
    assert record.stderr.decode().count("    1 / 0") == 1


async def test_running_a_loop_inside_the_loop_says_what_to_write(sandboxes):
    record = await sandboxes.run("import asyncio\nasync def main(): pass\nawait main()\nasyncio.run(main())")
    assert "await main()" in record.error["message"]
    assert "await main()" in record.error["traceback"]


async def test_an_artifact_with_an_odd_name_is_read_by_its_uri(sandboxes, tmp_path):
    async with sandboxes.open(state_dir=tmp_path) as bridge:
        record = await bridge.run(
            "open('/tmp/a', 'w').write('x')\nprint(artifact('/tmp/a', 'my report #1 50%.csv'))\n"
            "try: artifact('/tmp/a', 'a\u202eb')\nexcept mcp.MCPError as exc: print(exc.code)"
        )
        uri, code = lines(record)
        assert " " not in uri
        assert "#" not in uri
        assert bridge.files.read(uri).data == b"x"
        assert code == "bad_artifact_name"


async def test_help_and_inspect_show_what_is_to_be_awaited(sandboxes, git_server):
    record = await sandboxes.run(
        """
import inspect
from mcp import programs, runtime
from mcp.servers import git
from mcp.sync.servers import git as blocking
for awaited in (runtime.search, runtime.call_tool, git.git_log, git.git_log.raw, programs.run):
    print(inspect.iscoroutinefunction(awaited))
for plain in (runtime.search_sync, runtime.call_tool_sync, runtime.discovered_servers, blocking.git_log, print):
    print(inspect.iscoroutinefunction(plain))
help(runtime.search)
help(runtime.call_tool)
help(runtime.search_sync)
help(git.git_log)
""",
        git_server,
    )
    out = lines(record)
    assert out[:10] == ["True"] * 5 + ["False"] * 5
    # Later versions of Python give each parameter of a long signature a line.
    shown = re.sub(r"\(\s+", "(", re.sub(r"\s+", " ", " ".join(out[10:])))
    for signature in (
        "async search(query: str = ''",
        "async call_tool(server: str = ..., tool: str = ...",
        " search(query: str",
        "async git_log(repo_path: str",
    ):
        assert signature in shown


async def test_text_that_holds_json_is_text_and_answers_as_the_object_would(sandboxes):
    record = await sandboxes.run(
        """
import copy, json, pickle
from mcp.servers import faulty, odd
now = await faulty.echo('{"timezone": "Europe/Oslo"}')
print(isinstance(now, str), now == str(now), type(str(now)) is str, now[0], json.loads(now)["timezone"])
print(now["timezone"], now.get("nothing", 7), "timezone" in now.keys(), len(now) == len(str(now)))
print(type(pickle.loads(pickle.dumps(now))) is str, type(copy.copy(now)) is str)
print(json.dumps([now]) == json.dumps([str(now)]), json.loads(await odd.echo(text=now))[1]["text"] == now)
for wrong in (lambda: now["nothing"], lambda: now.append, lambda: now[1.5]):
    try:
        wrong()
    except Exception as exc:
        print(type(exc).__name__, exc)
rows = await odd.echo(text="[")
try:
    rows["text"]
except TypeError as exc:
    print(exc)
""",
        faulty(),
        echoing(tool("echo", {"text": STRING})),
    )
    assert lines(record) == [
        "True True True { Europe/Oslo",
        "Europe/Oslo 7 True True",
        "True True",
        "True True",
        "KeyError 'nothing'",
        "AttributeError 'str' object has no attribute 'append'",
        "TypeError string indices must be integers, not 'float'",
        "string indices must be integers, not 'str': this text holds a JSON array; write json.loads(text)[0]['text'], "
        "with import json",
    ]


TOLD_BY_EXPRESSIONS = [
    tool(
        name,
        inputSchema={"type": "object", "properties": {"path": STRING}, "patternProperties": {expression: {}}},
    )
    for name, expression in (("read", "^x-"), ("any", ".*"))
]


async def test_a_dict_is_taken_for_all_arguments_only_where_it_can_mean_nothing_else(sandboxes):
    record = await sandboxes.run(
        """
import json
from mcp.servers import odd
async def sent(call): print(json.loads(await call)[1])
await sent(odd.text({"text": "a", "more": 1}))
await sent(odd.text(params={"text": "a"}))
await sent(odd.rows({"rows": [{"a": 1}]}))
await sent(odd.any({"value": 1}))
await sent(odd.object({"value": {"b": 2}}))
await sent(odd.named(args={"args": {"c": 3}}))
await sent(odd.extra(params={"x": "d"}))
try:
    await odd.text({"text": "a", "nothing": 1})
except Exception as exc:
    print(type(exc).__name__)
""",
        echoing(
            tool("text", {"text": STRING, "more": {"type": "integer"}}, ["text"]),
            tool("rows", {"rows": {"type": "array", "items": {"type": "object", "properties": {"a": {}}}}}, ["rows"]),
            tool("any", {"value": {}}, ["value"]),
            tool("object", {"value": {"type": "object"}}, ["value"]),
            tool("named", {"args": {"type": "object"}}, ["args"]),
            tool(
                "extra",
                inputSchema={"type": "object", "properties": {"x": STRING}, "additionalProperties": True},
            ),
        ),
    )
    assert lines(record) == [
        "{'text': 'a', 'more': 1}",
        "{'text': 'a'}",
        "{'rows': [{'a': 1}]}",
        "{'value': {'value': 1}}",
        "{'value': {'value': {'b': 2}}}",
        "{'args': {'args': {'c': 3}}}",
        "{'params': {'x': 'd'}}",
        "ToolError",
    ]


async def test_pattern_properties_accept_matching_names_and_suggest_the_nearest_for_others(sandboxes):
    record = await sandboxes.run(
        """
import json
from mcp.servers import odd
async def sent(call): print(json.loads(await call)[1])
await sent(odd.read("a", **{"x-a": "b"}))
await sent(odd.read({"path": "a"}))
await sent(odd.read({"path": "a", "x-a": "b"}))
await sent(odd.read(arguments={"path": "a"}))
await sent(odd.any(arguments={"path": "a"}))
await sent(odd.any({"path": "a"}))
for wrong in (lambda: odd.read(pth="a"), lambda: odd.read({"pth": "a"})):
    try:
        await wrong()
    except Exception as exc:
        print(type(exc).__name__, exc)
""",
        echoing(*TOLD_BY_EXPRESSIONS),
    )
    assert lines(record) == [
        "{'path': 'a', 'x-a': 'b'}",
        "{'path': 'a'}",
        "{'path': 'a', 'x-a': 'b'}",
        "{'path': 'a'}",
        "{'arguments': {'path': 'a'}}",
        "{'path': 'a'}",
        "TypeError odd.read() got an unexpected keyword argument 'pth'; nearest: path; other names begin with 'x-'. "
        "It is read(path: str = ..., **more) -> str | list | None",
        "ToolError odd.read: path: {'pth': 'a'} is not of type 'string'. "
        "It is odd.read(path: str = ..., **kwargs: Any) -> str | list | None.",
    ]


async def test_in_javascript_names_that_an_expression_tells_are_taken_and_others_told_with_the_nearest(both):
    async with both.open(echoing(*TOLD_BY_EXPRESSIONS)) as bridge:
        record = await bridge.run(
            """
import { odd } from "mcp/servers";
const sent = async (call) => console.log(JSON.stringify(JSON.parse(await call)[1]));
await sent(odd.read({ path: "a", "x-a": "b" }));
await sent(odd.read("a", { "x-a": "b" }));
await sent(odd.any({ path: "a", more: 1 }));
for (const wrong of [() => odd.read({ pth: "a" }), () => odd.read("a", { timeout: 5 })]) {
  try { await wrong(); } catch (error) { console.log(error.message); }
}
""",
            language="javascript",
        )
    assert lines(record) == [
        '{"path":"a","x-a":"b"}',
        '{"path":"a","x-a":"b"}',
        '{"path":"a","more":1}',
        "odd.read() got an unexpected argument 'pth'; nearest: path; other names begin with 'x-'. It is "
        "read({path?: string, ...})",
        "odd.read() got an unexpected argument 'timeout'; other names begin with 'x-'; after its arguments a call takes "
        "{ signal } alone: { signal: AbortSignal.timeout(5000) }. It is read({path?: string, ...})",
    ]


async def test_objects_that_resist_take_no_harm_from_advice(sandboxes):
    async with sandboxes.open() as bridge:
        for code, said in {
            "class E(Exception):\n    __notes__ = 7\nraise E('mine')": "mine",
            "class E(TypeError):\n    def __str__(self): raise ValueError\nraise E": "E",
            "class E(KeyError):\n    def __getattribute__(self, name): 1 / 0\nraise E('x')": "E",
            "raise ExceptionGroup('several', [KeyError('a'), NameError('b')])": "several",
            "import builtins\nbuiltins.compile = None\nnothing": "nothing",
        }.items():
            record = await bridge.run(code)
            assert record.status == "error", code
            assert said in record.error["traceback"], (code, record.error)


# --- failed tasks ---

NEVER_RETRIEVED = "Task exception was never retrieved: the task of "

KEPT_TASKS = {
    "a call of a tool, in a global": """
import asyncio
from mcp.servers import faulty
async def work(): await faulty.refuse()
async def main():
    global task
    task = asyncio.create_task(work())
    await asyncio.wait([task])
await main()
""",
    "in a list": """
import asyncio
async def work(): raise ValueError("no, I will not")
tasks = [asyncio.create_task(work())]
await asyncio.wait(tasks)
""",
    "by asyncio.run": """
import asyncio
async def work(): raise ValueError("no, I will not")
async def main():
    global task
    task = asyncio.create_task(work())
    await asyncio.wait([task])
asyncio.run(main())
""",
}


@pytest.mark.parametrize("code", KEPT_TASKS.values(), ids=KEPT_TASKS)
async def test_a_task_that_failed_and_that_nobody_asked_is_named_at_the_end_of_a_success(sandboxes, code):
    record = await sandboxes.run(code, faulty())
    assert record.status == "success"
    told = record.stderr.decode()
    assert told.startswith(f"{NEVER_RETRIEVED}work(...)\nTraceback (most recent call last):\n")
    assert told.endswith("no, I will not\n")
    assert "mcp_bridge" not in told


async def test_only_tasks_that_nobody_asked_are_named_few_of_many_and_as_the_loops_handler_has_it(sandboxes):
    many = """
import asyncio
async def work(number): raise ValueError(number)
tasks = [asyncio.create_task(work(number)) for number in range(12)]
await asyncio.wait(tasks)
tasks[0].exception()
try:
    await tasks[1]
except ValueError:
    pass
await asyncio.gather(work(12), return_exceptions=True)
"""
    told = (await sandboxes.run(many)).stderr.decode()
    assert re.findall(r"^ValueError: (\d+)$", told, re.MULTILINE) == ["2", "3", "4", "5", "6"]
    assert told.endswith("5 more tasks have failed\n")
    nested = """
import asyncio
async def work(number): raise ValueError(number)
async def start(number, seconds):
    await asyncio.sleep(seconds)
    kept.extend(asyncio.create_task(work(number + n), name="same") for n in range(6))
kept = []
await asyncio.gather(start(0, 0.05), start(6, 0))
await asyncio.wait(kept)
"""
    told = (await sandboxes.run(nested)).stderr.decode()
    assert re.findall(r"^ValueError: (\d+)$", told, re.MULTILINE) == ["0", "1", "2", "3", "4"]
    left = """
import asyncio
def named(number):
    async def one(): await asyncio.sleep(9)
    one.__qualname__ = f"one_{number}"
    return one()
kept = [asyncio.create_task(named(number), name="same") for number in range(12)]
await asyncio.sleep(0)
"""
    told = (await sandboxes.run(left)).stderr.decode()
    assert re.findall(r"the task of one_(\d+)\(", told) == [str(number) for number in range(12)]
    handled = """
import asyncio
asyncio.get_running_loop().set_exception_handler(lambda loop, about: print(about["message"], about["exception"]))
async def work(): raise ValueError(1)
task = asyncio.create_task(work())
await asyncio.wait([task])
"""
    record = await sandboxes.run(handled)
    assert (printed(record), record.stderr) == ("Task exception was never retrieved 1\n", b"")


async def test_a_dict_whose_keys_become_one_name_is_an_error_of_its_call_and_other_keys_are_sent(sandboxes):
    code = """
import datetime
from mcp.servers import echoing
for value in ({1: 1, "1": 2}, [{"x": ({True: 1, "true": datetime.date(2020, 1, 1)},)}], {None: 1, "null": 2}):
    try:
        await echoing.echo(value=value)
    except Exception as error:
        print(error.code, error)
print(await echoing.echo(value={1: 1, "2": 2, True: 1, 1.5: {}}))
import enum
class Number(enum.IntEnum): ONE = 1
class Text(str): pass
print(await echoing.echo(value=[Number.ONE, Text("text"), {"x": Number.ONE}]))
"""
    anything = echoing(tool("echo", {"value": {}}), name="echoing")
    out = lines(await sandboxes.run(code, anything))
    assert [line.split(" ")[0] for line in out[:3]] == ["not_json"] * 3
    assert "a dict has the keys 1 and '1', which are one name in JSON" in out[0]
    assert json.loads(out[-1]) == ["echo", {"value": [1, "text", {"x": 1}]}]


async def test_what_fails_in_showing_the_last_value_has_its_line_and_a_way_out(sandboxes):
    record = await sandboxes.run("x = 1\n\n10**5000")
    assert (record.status, record.error["line"]) == ("error", 3)
    assert "sys.set_int_max_str_digits(0)" in record.error["message"]
    assert "hex(" in record.error["message"]


async def test_what_an_object_raises_when_it_is_shown_is_left_as_it_is(sandboxes):
    code = """
class Stubborn(Exception):
    line = property(lambda self: None)
class Value:
    def __repr__(self): raise Stubborn("mine")
Value()
"""
    error = (await sandboxes.run(code)).error
    assert (error["type"], error["message"]) == ("Stubborn", "mine")
    frozen = """
class Stubborn(Exception):
    def __setattr__(self, name, value): raise TypeError(name)
exec(compile("def shown(self): raise Stubborn('mine')", "elsewhere", "exec"))
type("Value", (), {"__repr__": shown})()
"""
    error = (await sandboxes.run(frozen)).error
    assert (error["type"], error["message"], error["line"]) == ("Stubborn", "mine", 5)


async def test_a_byte_order_mark_before_code_is_dropped(sandboxes):
    record = await sandboxes.run("\ufeffprint(6 * 7)\n1/0")
    assert (record.stdout, record.error["type"], record.error["line"]) == (b"42\n", "ZeroDivisionError", 2)
    assert (await sandboxes.run("\ufeff6*7")).value == "42"
    failed = await sandboxes.run("\ufeffimport json\njson.loads({'a': 1})")
    assert "without `json.loads`" in failed.error["message"]


async def test_wrong_arguments_of_the_runtime_are_told_by_the_names_that_scripts_use(sandboxes):
    record = await sandboxes.run(
        """
from mcp.servers import faulty
async def told(call):
    try: return await call()
    except Exception as error: return f"{type(error).__name__}: {error}"
print(await told(lambda: runtime.search(5)))
print(await told(lambda: runtime.wait_event()))
print(await told(lambda: runtime.sleep_until()))
try: runtime.describe_sync(5)
except mcp.MCPError as error: print(error.code, error)
""",
        faulty(),
    )
    assert lines(record) == [
        "MCPError: runtime.search(): 'query' is str, not int",
        "TypeError: runtime.wait_event(): missing a required argument: 'name'."
        " It is wait_event(name: str, timeout: float | None = None)",
        "TypeError: runtime.sleep_until(): missing a required argument: 'when'. It is sleep_until(when: Any)",
        "bad_params runtime.describe_sync(): 'name' is str, not int",
    ]


async def test_a_tool_is_described_by_its_function_and_help_shows_functions_and_no_methods(sandboxes):
    record = await sandboxes.run(
        """
from mcp.servers import faulty
import contextlib, io
for one in (faulty.echo, faulty.echo.raw): print(await runtime.describe(one, "line"))
print("text" in str(await runtime.describe(faulty.echo, "schema")))
shown = io.StringIO()
with contextlib.redirect_stdout(shown): help(runtime)
print("_Functions" in shown.getvalue(), "wait_event(name: str, timeout" in shown.getvalue())
""",
        faulty(),
    )
    line = "faulty.echo(text, times=1) — The tool echo"
    assert lines(record) == [line, line, "True", "False True"]
