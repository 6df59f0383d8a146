"""Dry runs: what only reads is done, what else is asked for is listed, approved as a whole, and then made."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from execution_fixtures import printed

from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.executions.approvals import approval_requests, decide
from mcp_bridge.governance.governance import load_governance

pytestmark = pytest.mark.usefixtures("whole_ledgers")

RECORDING = Path(__file__).parents[2] / "support" / "servers" / "recording.py"


def tool(name, **annotations):
    schema = {"type": "object", "properties": {"what": {}, "to": {"type": "string"}}}
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema, "annotations": annotations}


TOOLS = [tool("look", readOnlyHint=True), tool("put"), tool("drop", destructiveHint=True), tool("relist")]

ASKS = {"preset": "approve-writes", "trust_hints": ["shop"]}
ALLOWS = {"preset": "open", "trust_hints": ["shop"]}


@dataclass
class Shop:
    """A server that writes down what reaches it, and bridges over it."""

    folder: Path
    sandboxes: object

    def open(self, policy=ASKS, **more):
        tables = {"policy": policy} | more.pop("tables", {})
        spec = ServerSpec(
            name="shop", command=sys.executable, args=(str(RECORDING), str(self.listing), str(self.folder / "calls"))
        )
        governance = load_governance(tables, None, self.folder, self.sandboxes.settings.state_dir)
        return self.sandboxes.open(spec, governance=governance, **more)

    @property
    def listing(self):
        return self.folder / "listing.json"

    def list(self, tools):
        self.listing.write_text(json.dumps(tools))

    @property
    def calls(self):
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def writes(self):
        return [(call["tool"], call["arguments"]) for call in self.calls if call["tool"] != "look"]


@pytest.fixture
def shop(tmp_path, sandboxes):
    made = Shop(tmp_path, sandboxes)
    made.list(TOOLS)
    return made


async def decided(bridge, *, approved=True, principal="local"):
    """Decide on the only open question; the question."""
    (asked,) = [
        row for row in await approval_requests(bridge.programs.store, principal, open_only=True) if row.status == "open"
    ]
    await decide(bridge.programs.store, asked, approved=approved, by="anna", comment=None)
    return asked.question


CODE = """
from mcp.servers import shop
seen = await shop.look(what="stock")
await shop.put(what=seen["what"], to="a")
await shop.put(what=2, to="b")
print("done", seen)
"""

WRITES = [("put", {"what": "stock", "to": "a"}), ("put", {"what": 2, "to": "b"})]


@pytest.mark.parametrize("policy", [ASKS, ALLOWS])
@pytest.mark.parametrize("key", [None, "order-7"])
async def test_what_a_dry_run_lists_is_made_once_a_person_has_approved_it(shop, policy, key):
    async with shop.open(policy) as bridge:
        dry = await bridge.run(CODE, dry_run=True, key=key)
        assert shop.writes == []
        assert [call["tool"] for call in shop.calls] == ["look"]
        assert (dry.status, dry.exit_code, dry.calls) == ("suspended", 0, 1)
        assert dry.stdout == b"done {'what': 'stock'}\n"
        assert [(row["tool"], row["arguments"]) for row in dry.planned] == [
            (f"shop.{name}", arguments) for name, arguments in WRITES
        ]
        assert '1. shop.put {"what": "stock", "to": "a"}\n2. shop.put {"what": 2, "to": "b"}' in dry.error["message"]
        if policy is ASKS:
            waits = await bridge.run(CODE, key=key)
            assert (waits.status, waits.execution) == ("suspended", dry.execution)
            assert shop.writes == []
        asked = await decided(bridge)
        assert asked["details"]["calls"] == [
            {"tool": f"shop.{name}", "arguments": arguments} for name, arguments in WRITES
        ]
        made = await bridge.run(CODE, key=key)
        assert printed(made) == "done {'what': 'stock'}\n"
        assert (made.execution, made.notices) == (
            dry.execution,
            [] if key else [notice for notice in made.notices if "which had waited" in notice],
        )
        assert shop.writes == WRITES
