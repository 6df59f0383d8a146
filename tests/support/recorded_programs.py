"""Programs that were run and recorded, to be replayed."""

import asyncio

import pytest
from program_tools import Tools, driven, step

from mcp_bridge.executions.idempotency.request_identity import Keys
from mcp_bridge.executions.lifecycle import Lifecycle
from mcp_bridge.executions.programs.lifecycle import Programs
from mcp_bridge.ledger.log.payloads import ModelIntent, ToolIntent, to_entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME

PROGRAM = {
    "name": "p",
    "steps": [
        step("a", args={"n": "$n"}, compensate={"tool": "undo", "args": {"a": "$a"}}),
        {"id": "small", "type": "condition", "condition": "$n < 10", "then": "b", "otherwise": "c"},
        step("b", args={"of": "$a"}, next_step="both"),
        step("c", args={"of": "$a"}, next_step="both"),
        {"id": "both", "type": "parallel", "parallel_steps": [step("d"), step("e", args={"n": "$n"})]},
    ],
}


class Recording(Tools):
    """Tools that record their intents, as the gate does."""

    def __init__(self, recorder, **tools):
        super().__init__(**tools)
        self.recorder = recorder

    async def perform(self, run, effect, request, *, approved=False):
        intents = {
            "tool": ToolIntent(effect.name, effect.arguments, effect=effect.id),
            "llm": ModelIntent(effect.id, effect.arguments),
        }
        if (intent := intents.get(effect.kind)) is not None:
            await self.recorder.append(to_entry(intent, run.execution, effect.step, "", run.program.hash))
        return await super().perform(run, effect, request, approved=approved)


class Tasks:
    """As much of a task group as is needed: a fixture may be ended in another task than it was begun in."""

    def __init__(self):
        self.tasks = []

    def start_soon(self, function, *args):
        self.tasks.append(asyncio.ensure_future(function(*args)))


@pytest.fixture
async def programs(tmp_path):
    tasks = Tasks()
    async with Database(tmp_path / FILE_NAME) as database:
        yield Programs(Lifecycle(ProgramStore(database), SqliteRecorder(database), Keys(b"k" * 16)), {}, tasks)
        await asyncio.gather(*tasks.tasks)


async def ran(programs, program=PROGRAM, context=None, **tools):
    """What is kept of an execution, and its entries."""
    effects = Recording(programs.recorder, **tools)
    record = await driven(programs, await programs.start(program, context or {"n": 5}, None, "me", effects))
    return await kept(programs, record["trace_id"])


async def kept(programs, execution):
    return await programs.lifecycle.stored(execution, "me"), await programs.recorder.read(execution)
