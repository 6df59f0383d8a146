"""The lifecycle that scripts and programs share: who has an execution, how it is left, and what an error leaves of it."""

import dataclasses

import anyio
import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.idempotency.keys import Key
from mcp_bridge.executions.idempotency.request_identity import Keys
from mcp_bridge.executions.lifecycle import Lifecycle, new_execution
from mcp_bridge.executions.status import effective_status
from mcp_bridge.ledger.log.payloads import ScriptEnd, ScriptStart, ScriptSuspension
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME

pytestmark = pytest.mark.usefixtures("whole_ledgers")

ID = "a" * 16
KIND = {"script": {"code": "x = 1", "servers": None, "timeout": None}, "program": {"program": {"name": "p"}}}
START = ScriptStart("x = 1", "")
ENDED = {"execution": ID, "status": "success"}


@pytest.fixture
async def database(tmp_path):
    async with Database(tmp_path / FILE_NAME) as opened:
        yield opened


@pytest.fixture
def lifecycle(database):
    return Lifecycle(ProgramStore(database), SqliteRecorder(database), Keys(b"k" * 16), "policy")


def row(kind="script", key=None, execution=ID):
    key = None if key is None else Key(key, "agent")
    return new_execution(kind, execution, "me", key, request="r", program="hash", bundle=KIND[kind])


async def started(lifecycle, kind="script", **left):
    """A new execution, left as is said."""
    assert await lifecycle.start(row(kind), {}, lifecycle.entry(START, ID))
    if left:
        said = (ScriptSuspension if left["status"] == "suspended" else ScriptEnd)(left["status"])
        entry = lifecycle.entry(said, ID)
        await lifecycle.leave(ID, entry, **{"record": None} | left)
    return await lifecycle.stored(ID, "me")


async def kinds(lifecycle):
    return [recorded.entry.kind for recorded in await lifecycle.recorder.read(ID)]


@pytest.mark.parametrize("kind", KIND)
async def test_an_execution_is_under_way_from_its_start_until_it_is_left(lifecycle, kind):
    assert lifecycle.under_way(ID) is None
    stored = await started(lifecycle, kind)
    assert (stored.status, effective_status(stored)) == ("running", "running")
    left = lifecycle.under_way(ID)
    await lifecycle.leave(ID, lifecycle.entry(ScriptEnd("success"), ID), status="success", record=ENDED)
    assert left.is_set()
    assert lifecycle.under_way(ID) is None
    stored = await lifecycle.stored(ID, "me")
    assert (stored.status, stored.record) == ("success", ENDED)
    assert await kinds(lifecycle) == ["start", "end"]


async def test_whose_key_is_taken_starts_nothing_and_has_nothing_under_way(lifecycle):
    entry = lifecycle.entry(START, ID)
    assert await lifecycle.start(row(key="k"), {}, entry)
    other = "b" * 16
    assert not await lifecycle.start(row(key="k", execution=other), {}, dataclasses.replace(entry, execution=other))
    assert lifecycle.under_way(other) is None
    assert await lifecycle.store.execution(other) is None


async def test_of_many_who_take_an_execution_one_has_it(lifecycle):
    stored = await started(lifecycle, status="suspended")
    taken = []

    async def take():
        taken.append(await lifecycle.take(stored))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(take)
    assert sorted(taken) == [False] * 7 + [True]
    assert await kinds(lifecycle) == ["start", "suspension", "resume"]


@pytest.mark.parametrize("status", ["running", "success", "cancelled"])
async def test_what_is_not_suspended_is_not_taken_and_stays_as_it_is(lifecycle, status):
    stored = await started(lifecycle, **({} if status == "running" else {"status": status}))
    before = await kinds(lifecycle)
    with pytest.raises(BridgeError, match=f"is not suspended: {status}") as caught:
        async with lifecycle.taken(stored, resumes=True):
            pytest.fail("it was taken")
    said = "Another process runs it" if status == "running" else f"mcp-bridge execution show {ID}"
    assert (caught.value.code, said in caught.value.hint) == ("not_suspended", True)
    assert (await lifecycle.stored(ID, "me"), await kinds(lifecycle)) == (stored, before)


@pytest.mark.parametrize("resumes", [True, False])
async def test_after_an_error_an_execution_is_as_it_was_before_it_was_taken(lifecycle, resumes):
    record = {"waiting": [{"effect": 1}]}
    before = await started(lifecycle, "program", status="suspended", state=b"state", record=record, due=7.0)
    with pytest.raises(ZeroDivisionError):
        async with lifecycle.taken(before, resumes=resumes):
            assert (await lifecycle.stored(ID, "me")).status == "running"
            raise ZeroDivisionError
    after = await lifecycle.stored(ID, "me")
    assert dataclasses.replace(after, changed=before.changed) == before
    assert lifecycle.under_way(ID) is None
    assert await kinds(lifecycle) == ["start", "suspension", *(["resume"] if resumes else [])]


@pytest.mark.parametrize("resumes", [True, False])
async def test_after_an_error_a_lost_execution_is_interrupted_and_its_entries_agree(lifecycle, resumes):
    await started(lifecycle, status="suspended")
    # Somebody took it, to change it by hand, and died.
    owner = "elsewhere:1:1"
    assert await lifecycle.store.take(await lifecycle.stored(ID, "me"), owner)
    lost = await lifecycle.stored(ID, "me")
    assert effective_status(lost) == "interrupted"
    with pytest.raises(ZeroDivisionError):
        async with lifecycle.taken(lost, resumes=resumes):
            raise ZeroDivisionError
    assert (await lifecycle.stored(ID, "me")).status == "interrupted"
    # The fixture verifies the ledger: its last entry says what the row says.
    assert await kinds(lifecycle) == ["start", "suspension", "resume" if resumes else "suspension"]


async def test_what_was_left_meanwhile_is_not_put_back_after_an_error(lifecycle):
    stored = await started(lifecycle, status="suspended")
    end = lifecycle.entry(ScriptEnd("cancelled"), ID)
    with pytest.raises(ZeroDivisionError):
        async with lifecycle.taken(stored, resumes=False):
            await lifecycle.leave(ID, end, status="cancelled", record=ENDED)
            raise ZeroDivisionError
    assert (await lifecycle.stored(ID, "me")).status == "cancelled"


async def test_an_execution_that_can_t_be_written_down_is_under_way_no_more(lifecycle, monkeypatch):
    await started(lifecycle)

    async def refused(*_, **__):
        raise BridgeError("not_recorded", "The disk is full.")

    monkeypatch.setattr(lifecycle.store, "update", refused)
    left = lifecycle.under_way(ID)
    with pytest.raises(BridgeError, match="full"):
        await lifecycle.leave(ID, status="success", record=ENDED)
    assert left.is_set()
    await lifecycle.interrupt(ID)
    assert (await lifecycle.stored(ID, "me")).status == "interrupted"


async def test_an_execution_of_another_principal_is_unknown(lifecycle):
    await started(lifecycle)
    with pytest.raises(BridgeError) as caught:
        await lifecycle.stored(ID, "somebody")
    assert caught.value.code == "unknown_trace"
