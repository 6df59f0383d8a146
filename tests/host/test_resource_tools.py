"""Scripts list and read the resources of servers, by tools that are governed and recorded as any others."""

import json
import re
import sys
from pathlib import Path

import pytest
from execution_fixtures import lines, printed
from http_servers import everything_server as everything_over_http
from http_servers import remote

from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.governance.governance import load_governance

pytest_plugins = ["server_fixtures"]
pytestmark = pytest.mark.usefixtures("no_internal_errors")

RESOURCEFUL = Path(__file__).parents[1] / "support/servers" / "resourceful.py"
URI = "demo://resource/static/document/architecture.md"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

LOOK = {
    "python": """
import base64
from mcp.servers import everything
listed = await everything.list_resources()
print(len(listed["resources"]), len(listed["resource_templates"]), listed["next_cursor"])
print((await everything.read_resource(uri=listed["resources"][0]["uri"]))[:19])
template = listed["resource_templates"][1]["uri_template"]
[block] = await everything.read_resource(template.replace("{resourceId}", "3"))
print(base64.b64decode(block["data"]).decode()[:37])
links = [one for one in await everything.get_resource_links(count=2) if isinstance(one, dict)]
print([type(await everything.read_resource(link["uri"])).__name__ for link in links])
try:
    await everything.read_resource("demo://nowhere")
except mcp.ToolError as error:
    print(error.code, error)
print([name for name in dir(everything) if name.endswith("resource")])
print(await runtime.describe("everything.read_resource", "line"))
""",
    "javascript": """
import { everything } from "mcp/servers";
const listed = await everything.list_resources();
console.log(listed.resources.length, listed.resource_templates.length, listed.next_cursor);
console.log((await everything.read_resource({ uri: listed.resources[0].uri })).slice(0, 19));
const template = listed.resource_templates[1].uri_template;
const [block] = await everything.read_resource(template.replace("{resourceId}", "3"));
console.log(Buffer.from(block.data, "base64").toString().slice(0, 37));
const links = (await everything.get_resource_links({ count: 2 })).filter((one) => one.type === "resource_link");
const read = await Promise.all(links.map((link) => everything.read_resource(link.uri)));
console.log(read.map((one) => (Array.isArray(one) ? "list" : "str")));
try {
  await everything.read_resource("demo://nowhere");
} catch (error) {
  console.log(error.code, error.message);
}
console.log((await runtime.list_tools("everything")).map((tool) => tool.name).filter((name) => name.endsWith("resource")));
console.log(await runtime.describe("everything.read_resource", "line"));
""",
}


def check_look(record):
    said = lines(record)
    assert said[0] in {"7 2 None", "7 2 null"}
    assert said[1:3] == ["# Everything Server", "Resource 3: This is a base64 blob cre"]
    assert sorted(re.findall(r"\w+", said[3])) == ["list", "str"], "a blob and a text"
    missing = "bad_arguments everything.read_resource: MCP error -32602: Resource demo://nowhere not found"
    assert said[4].startswith(missing)
    assert "await everything.list_resources() lists what there is to read." in "\n".join(said[4:])
    assert "read_resource" in said[-2]
    assert "everything.read_resource(" in said[-1]


async def test_a_script_lists_and_reads_them_and_its_record_is_replayed(bilingual, everything_server):
    async with bilingual.open(everything_server) as opened:
        record = await opened.run(LOOK, key="k")
        check_look(record)
        stored = await opened.bridge.lifecycle.stored(record.execution, "local")
        replayed = await opened.bridge.replay_execution(stored)
        assert replayed.agrees, replayed.difference


async def test_a_remote_servers_are_read_as_well(bilingual, everything_server):
    with everything_over_http(everything_server, "streamableHttp") as port:
        check_look(await bilingual.run(LOOK, remote(port, name="everything", type="auto")))


def governed(tmp_path, **policy):
    return load_governance({"policy": policy}, None, tmp_path, tmp_path / "nowhere")


READ = {
    "python": f"""
from mcp.servers import everything
for name, *args in (("read_resource", "{URI}"), ("list_resources",), ("echo", "a")):
    try:
        await getattr(everything, name)(*args)
        print("done")
    except mcp.ToolError as error:
        print(error.code)
""",
    "javascript": f"""
import {{ everything }} from "mcp/servers";
for (const [name, ...args] of [["read_resource", "{URI}"], ["list_resources"], ["echo", "a"]]) {{
  try {{
    await everything[name](...args);
    console.log("done");
  }} catch (error) {{
    console.log(error.code);
  }}
}}
""",
}


@pytest.mark.parametrize(
    ("denied", "said"),
    [
        (["everything.read_resource"], ["denied", "done", "done"]),
        (["everything.*"], ["denied", "denied", "denied"]),
    ],
)
async def test_rules_apply_to_them(bilingual, everything_server, tmp_path, denied, said):
    governance = governed(tmp_path, rules=[{"tools": denied, "effect": "deny"}])
    async with bilingual.open(everything_server, governance=governance) as opened:
        assert lines(await opened.run(READ)) == said


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_dry_run_reads_where_the_servers_hints_are_believed(bilingual, everything_server, tmp_path, trusted):
    governance = governed(tmp_path, trust_hints=["everything"] if trusted else [])
    code = {
        "python": f"from mcp.servers import everything\nawait everything.read_resource('{URI}')",
        "javascript": f"await mcp.servers.everything.read_resource('{URI}')",
    }
    async with bilingual.open(everything_server, governance=governance) as opened:
        record = await opened.run(code, dry_run=True)
        listed = [] if trusted else ["everything.read_resource"]
        assert [row["tool"] for row in record.planned] == listed
        assert record.calls == (1 if trusted else 0)


async def test_a_tool_of_the_servers_own_is_called_by_its_name_and_an_image_is_shown(bilingual):
    contents = {"a:image": [{"uri": "a:image", "blob": PNG, "mimeType": "image/png"}]}
    told = json.dumps(
        {"tools": ["readResource"], "resources": [[{"uri": "a:image", "name": "image"}]], "contents": contents}
    )
    spec = ServerSpec(name="files", command=sys.executable, args=(str(RESOURCEFUL), told))
    record = await bilingual.run(
        {
            "python": "from mcp.servers import files\nprint(await files.readResource())\n"
            "display(await files.read_mcp_resource('a:image'))",
            "javascript": 'import { files } from "mcp/servers";\nconsole.log(await files.readResource());\n'
            "display(await files.read_mcp_resource('a:image'));",
        },
        spec,
    )
    assert printed(record).startswith("its own readResource\n")
    assert [shown["image/png"] for shown in record.displays] == [PNG]
