"""A shop whose server writes down what reaches it, for dry runs."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.executions.approvals import approval_requests, decide
from mcp_bridge.governance.governance import load_governance

RECORDING = Path(__file__).parent / "servers" / "recording.py"


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
    language: str = "python"

    def run(self, bridge, code, **options):
        """Run a script that is written in both languages."""
        return bridge.run(code[self.language], language=self.language, **options)

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


@pytest.fixture(params=["python", "javascript"])
def either(request, tmp_path, both):
    """A shop for scripts in one of the languages."""
    made = Shop(tmp_path, both, request.param)
    made.list(TOOLS)
    return made


async def decided(bridge, *, approved=True, principal="local"):
    """Decide on the only open question; the question."""
    (asked,) = [
        row for row in await approval_requests(bridge.programs.store, principal, open_only=True) if row.status == "open"
    ]
    await decide(bridge.programs.store, asked, approved=approved, by="anna", comment=None)
    return asked.question
