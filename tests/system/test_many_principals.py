"""Twenty principals with several clients each on one bridge: no marker of one reaches another, by any way out.

`MCP_BRIDGE_TEST_LONG=1` asks for ten clients each.
"""

import json
import re
from collections import defaultdict

import anyio
import mcp_types as types
import pytest
from crash_fixtures import LONG
from mcp import Client
from mcp_clients import build_server
from servers.specs import faulty

from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.principals import Principal
from mcp_bridge.server import resources

PRINCIPALS, CLIENTS = 20, 10 if LONG else 4

MARKER = re.compile(r"mark-(\d\d)-")

CODE = """
from mcp.sync import programs
from mcp.sync.servers import faulty
mark = MARK
progress(1, 2, mark)
runtime.save_memory_sync("last", mark)
open("a.txt", "w").write(mark)
artifact("a.txt")
programs.save("mine", {"name": "mine", "description": mark, "steps": [{"id": "s", "type": "wait", "event": mark}]})
faulty.talk()
print(faulty.echo(mark), runtime.load_memory_sync("last"), [row["description"] for row in programs.list()])
try:
    faulty.refuse(**{mark: 1})
except Exception as exc:
    print(exc)
if FAILS:
    raise ValueError(mark)
"""


def leaks(principal, seen):
    """Markers of others in what a principal has seen."""
    return {found for found in MARKER.findall(seen) if int(found) != principal}


@pytest.mark.timeout(600)
async def test_no_marker_of_one_principal_is_seen_by_another(sandboxes):
    seen = defaultdict(list)
    executions = defaultdict(set)

    async with sandboxes.open(faulty("talkative"), bounded=False, max_concurrent=4, max_queued=CLIENTS) as bridge:

        async def client(principal, number):
            view = bridge.for_principal(Principal(f"p{principal:02}"))
            told = seen[principal]

            async def progress(*values):
                told.append(repr(values))

            async with Client(build_server(view)) as session:
                code = CODE.replace("MARK", repr(f"mark-{principal:02}-{number}")).replace(
                    "FAILS", str(number % 3 == 0)
                )
                arguments = {"code": code, "idempotency_key": f"key {number}"}
                if number % 4 == 1:
                    # It goes away while it waits or runs; what it has begun is nobody else's.
                    with anyio.move_on_after(0.05 * number):
                        await session.call_tool("run_python", arguments, progress_callback=progress)
                result = await session.call_tool("run_python", arguments, progress_callback=progress)
                told.append(result.model_dump_json())
                executions[principal].update(re.findall(r"artifact://([0-9a-f]{16})/", told[-1]))
                for row in (await session.list_resources()).resources:
                    told.append(row.model_dump_json())
                    told.append((await session.read_resource(row.uri)).model_dump_json())
                assert isinstance(result, types.CallToolResult)

        async with anyio.create_task_group() as tasks:
            for number in range(CLIENTS):
                for principal in range(PRINCIPALS):
                    tasks.start_soon(client, principal, number)

        found = {principal: leaks(principal, "\n".join(texts)) for principal, texts in seen.items()}
        assert len(found) == PRINCIPALS
        assert sum(map(len, found.values())) == 0, found
        # What was looked through has their own markers: in answers, errors, resources and progress.
        for principal, texts in seen.items():
            whole = "\n".join(texts)
            assert {f"mark-{principal:02}-{number}" for number in range(CLIENTS)} <= set(
                re.findall(r"mark-\d\d-\d", whole)
            )
            assert "ValueError" in whole
            assert "program://mine" in whole
            assert len(executions[principal]) >= 1
        # Ids of one lead another nowhere.
        stranger = bridge.for_principal(Principal("stranger"))
        for ids in executions.values():
            for execution in list(ids)[:2]:
                for uri in (f"trace://{execution}", f"artifact://{execution}/a.txt"):
                    with pytest.raises(BridgeError, match="There is no"):
                        await resources.read(stranger, uri)
        assert json.dumps([str(row.uri) for row in (await resources.listed(stranger)).resources]).count("://") == 1
