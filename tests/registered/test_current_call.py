"""What a registered tool is told of whose call it is."""

import json

import pytest
from execution_fixtures import printed

import mcp_bridge
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.governance.principals import Principal

TOOLS = """
import asyncio
import mcp_bridge

@mcp_bridge.tool
async def as_task() -> list[str]:
    await asyncio.sleep(0)
    return list(await asyncio.create_task(inner()))

async def inner():
    return mcp_bridge.current_call()

@mcp_bridge.tool
def on_a_thread() -> list[str]:
    return list(mcp_bridge.current_call())

@mcp_bridge.tool(thread=False)
def at_once() -> list[str]:
    return list(mcp_bridge.current_call())
"""

SCRIPT = """
import asyncio, json
from mcp import programs
from mcp.servers import local
tools = (local.as_task, local.on_a_thread, local.at_once)
told = await asyncio.gather(*(tool() for tool in tools))
trace = await programs.run({"steps": [{"id": "a", "type": "tool", "tool": "on_a_thread"}]})
print(json.dumps([*told, [trace.output[0], trace.output[1] == trace.trace_id]]))
"""


async def test_a_tool_knows_whose_call_it_is_and_of_which_execution(sandboxes, tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "tools_of_current_call.py").write_text(TOOLS)
    tables = {"tools": {"path": ["tools"], "entry_points": False}}
    governance = load_governance(tables, None, tmp_path, sandboxes.settings.state_dir)
    async with sandboxes.open(governance=governance, state_dir=tmp_path / "state") as bridge:
        for view, name in ((bridge, "local"), (bridge.for_principal(Principal("anna")), "anna")):
            record = await view.run(SCRIPT)
            whose = [name, record.execution]
            assert json.loads(printed(record)) == [whose, whose, whose, [name, True]]


def test_outside_of_a_call_there_is_none():
    with pytest.raises(LookupError):
        mcp_bridge.current_call()
