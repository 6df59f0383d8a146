"""Programs driven without a sandbox, with tools of a test."""

import anyio
import anyio.lowlevel
import pytest

from mcp_bridge.executions.idempotency.request_identity import Keys
from mcp_bridge.executions.lifecycle import Lifecycle
from mcp_bridge.executions.programs.lifecycle import Programs
from mcp_bridge.kernel.events import Outcome
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.policy.secrets.value_references import MemoryReferences


class Tools:
    """Effects: each tool is a coroutine function by its name, and gives an outcome's fields."""

    servers = None

    def __init__(self, **tools):
        self.tools = tools
        self.done = []
        self.references = MemoryReferences()

    async def perform(self, run, effect, request, *, approved=False):
        self.done.append(effect.name)
        if effect.kind != "tool":
            return Outcome(effect.id, "ok" if effect.kind == "wait" else "pending")
        told = await self.tools[effect.name](approved) if effect.name in self.tools else {"value": effect.name}
        return Outcome(**{"effect": effect.id, "status": "ok"} | told)

    async def project(self, value):
        if isinstance(value, dict):
            return {name: await self.project(inner) for name, inner in value.items()}
        return value.replace("4111", "vault") if isinstance(value, str) else value

    def values_behind(self, value):
        return self.references.values_behind(value)

    def adopt(self, execution, values, spent):
        self.references.adopt(values)

    def records(self, execution):
        """No run is counted here."""

    async def repeatable(self, run, effect):
        return False


@pytest.fixture
async def database(tmp_path):
    async with Database(tmp_path / FILE_NAME) as opened:
        yield opened


@pytest.fixture
def service(database):
    return lambda tasks: Programs(
        Lifecycle(ProgramStore(database), SqliteRecorder(database), Keys(b"k" * 16)), {}, tasks
    )


def step(name, **fields):
    return {"id": name, "type": "tool", "tool": name, **fields}


async def driven(service, run):
    try:
        await run.drive()
    finally:
        with anyio.CancelScope(shield=True):
            record = await service.keep(run)
    return record
