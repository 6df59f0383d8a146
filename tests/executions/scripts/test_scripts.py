"""How scripts are kept: what goes on, what has ended, and what is found by which key, however a sandbox ends.

The sandbox is a fake, which ends as it is told to: a real one can't be ended at exactly these moments.
"""

import contextlib
from types import SimpleNamespace

import anyio
import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions import approvals
from mcp_bridge.executions.idempotency.generated_keys import generated_key
from mcp_bridge.executions.idempotency.request_identity import Keys
from mcp_bridge.executions.in_doubt import Settlement
from mcp_bridge.executions.lifecycle import Lifecycle
from mcp_bridge.executions.record import ExecutionRecord
from mcp_bridge.executions.scripts.call_history import CallRequest, RecordedCall
from mcp_bridge.executions.scripts.divergence import Divergence
from mcp_bridge.executions.scripts.held_calls import HeldCall
from mcp_bridge.executions.scripts.lifecycle import Scripts
from mcp_bridge.executions.scripts.lost_sandboxes import MAX_LOST
from mcp_bridge.executions.scripts.record import suspend
from mcp_bridge.executions.scripts.script_job import Job
from mcp_bridge.executions.scripts.settle_or_cancel import cancel_script, settle_script
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.sandbox.ownership import owner_label

JOB = Job("x = 1")
CALL = "0#2"
PAY = {"kind": "tool", "tool": "local.pay", "arguments": {}}


class Gate:
    """Lets everything pass as it is."""

    allowance = narrowed_to = approved = None
    is_dry = False
    policy_hash = ""

    def __init__(self):
        self.values = self
        self.tools = SimpleNamespace(servers={})

    async def project(self, value):
        return value

    def values_behind(self, value):
        return {}

    def keep(self, *_):
        pass

    def adopt(self, *_):
        pass

    async def projector(self):
        pass

    async def is_idempotent(self, *_):
        return False

    def room(self):
        return contextlib.nullcontext()


class Sandboxes:
    """Sandboxes that end as they are told to, one after the other; after those, each with success."""

    max_artifact_size = 0

    def __init__(self, recorder):
        self.ends = []
        self.ran = []
        self._recorder = recorder

    def servers(self, job):
        return None

    def gate(self, execution, client, servers=None, recorder=None, *, dry_run=False):
        return Gate()

    async def sandboxed(self, begun, artifacts=None):
        script, record = begun.script, ExecutionRecord(begun.script.execution)
        self.ran.append(script.execution)
        match self.ends.pop(0) if self.ends else "success":
            case "success":
                return record
            case "held":
                if script.key is None:
                    script.key = script.made_now = generated_key(script.execution)
                question = {"tool": "local.pay", "arguments": {}, "announced": {}, "filled": [], "why": "it is final"}
                held = HeldCall(CALL, CallRequest("tool", "local.pay", {}), "approval", 0.0, question, {})
                script.hold.add(held)
                record.status = "suspended"
                record.error = BridgeError("still_waiting", "The script waits.").record()
            case "rest":
                record.status = "suspended"
                record.error = BridgeError("still_waiting", "The script waits.").record()
            case "divergence":
                script.divergence_detector.divergence = Divergence(CALL, None, CallRequest("tool", "local.other", {}))
            case "doubt":
                self._recorder.post(Entry("intent", script.execution, PAY | {"call": CALL}))
                record.status, record.error = "timeout", BridgeError("wall_timeout", "Its time is up.").record()
            case status, code:
                record.status, record.error = status, BridgeError(code, "It has ended.").record()
        return record


class Desk:
    """Scripts over a ledger of their own."""

    def __init__(self, database, **options):
        self.store, self.recorder = ProgramStore(database), SqliteRecorder(database)
        self.lifecycle = Lifecycle(self.store, self.recorder, Keys(b"k" * 32), **options)
        self.sandboxes = Sandboxes(self.recorder)
        self.scripts = Scripts(self.lifecycle, LOCAL_PRINCIPAL.name, self.sandboxes)

    async def run(self, *ends, key=None):
        self.sandboxes.ends[:] = ends
        with anyio.fail_after(30):
            return await self.scripts.run(JOB, key)

    async def approve(self, execution):
        (question,) = await approvals.approval_requests(self.store, LOCAL_PRINCIPAL.name, execution, open_only=True)
        await approvals.decide(self.store, question, approved=True, by="anna", comment=None)

    async def status(self, execution):
        return (await self.store.execution(execution)).status


@pytest.fixture
async def open_desk(tmp_path):
    state = tmp_path / "state"
    state.mkdir(mode=0o700)

    @contextlib.asynccontextmanager
    async def opened(**options):
        async with Database(state / FILE_NAME, "file", owner_label()) as database:
            yield Desk(database, **options)

    return opened


LOST = ("sandbox_lost", "sandbox_lost")
UNSTARTED = ("timeout", "sandbox_start_timeout")


@pytest.mark.parametrize("ends", [[UNSTARTED], [LOST] * (MAX_LOST + 1), ["divergence"]], ids=["start", "lost", "other"])
@pytest.mark.parametrize("explicit", [False, True])
async def test_a_run_that_can_go_on_is_found_by_its_code_however_its_sandbox_has_ended(open_desk, ends, explicit):
    async with open_desk() as desk:
        first = await desk.run("held")
        key = generated_key(first.execution) if explicit else None
        await desk.approve(first.execution)
        cut = await desk.run(*ends, key=key)
        assert cut.execution == first.execution
        assert not any("starts a new run" in notice for notice in cut.notices)
        assert await desk.status(first.execution) == ("suspended" if ends == ["divergence"] else "interrupted")
        if ends != ["divergence"]:
            assert generated_key(first.execution) in cut.error["hint"]
        again = await desk.run()
        assert again.execution == first.execution
        assert set(desk.sandboxes.ran) == {first.execution}


async def test_a_run_that_does_otherwise_is_told_so_until_somebody_ends_it(open_desk):
    async with open_desk() as desk:
        first = await desk.run("held")
        await desk.approve(first.execution)
        other = await desk.run("divergence")
        assert f"execution cancel {first.execution}" in other.error["hint"]
        assert (await desk.run()).error == other.error
        await cancel_script(desk.lifecycle, await desk.store.execution(first.execution), "enough")
        assert (await desk.run()).status == "cancelled"
        anew = await desk.run()
        assert (anew.status, anew.execution != first.execution) == ("success", True)


@pytest.mark.parametrize("explicit", [False, True])
async def test_once_its_end_has_been_told_by_either_key_the_same_code_is_run_anew(open_desk, explicit):
    async with open_desk() as desk:
        first = await desk.run("held")
        made = generated_key(first.execution)
        await desk.approve(first.execution)
        told = await desk.run(key=made if explicit else None)
        assert (told.execution, told.status) == (first.execution, "success")
        assert any("starts a new run" in notice for notice in told.notices) == (not explicit)
        assert (await desk.run()).execution != first.execution
        assert (await desk.run(key=made)).execution == first.execution


@pytest.mark.parametrize("explicit", [False, True])
async def test_a_failure_is_told_by_the_key_that_was_made_for_it_and_not_tried_again(open_desk, explicit):
    async with open_desk(retry_failed=True) as desk:
        first = await desk.run("held")
        made = generated_key(first.execution)
        await desk.approve(first.execution)
        told = await desk.run(("error", "script_error"), key=made if explicit else None)
        assert (told.execution, told.status) == (first.execution, "error")
        assert (await desk.run(key=made)).status == "error"
        assert desk.sandboxes.ran == [first.execution] * 2


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_run_that_was_ended_for_waiting_and_waits_no_longer_is_run_again_at_once(open_desk, key):
    async with open_desk() as desk:
        record = await desk.run("rest", key=key)
        assert (record.status, await desk.status(record.execution)) == ("success", "success")
        assert desk.sandboxes.ran == [record.execution] * 2
        record = await desk.run(*["rest"] * (MAX_LOST + 1), key=key and "another")
        ended = await desk.status(record.execution)
        assert (record.status, ended) == ("sandbox_lost", "interrupted" if key else "sandbox_lost")


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_call_in_doubt_is_told_with_the_key_by_which_the_run_goes_on(open_desk, key):
    async with open_desk() as desk:
        first = await desk.run("held", key=key)
        await desk.approve(first.execution)
        told = [await desk.run("doubt", key=key)]
        # As after the death of its process.
        await desk.store.update(first.execution, status="interrupted", state=None, record=None, due=None)
        told.append(await desk.run(key=key))
        desk.recorder.post(Entry("intent", first.execution, PAY | {"call": "0#3"}))
        await desk.store.update(first.execution, status="interrupted", state=None, record=None, due=None)
        told.append(await desk.run(key=key))
        word = Settlement("not_done", "anna", None, "")
        stored = await desk.store.execution(first.execution)
        await settle_script(desk.lifecycle, stored, CALL, word, Gate())
        told.append(await desk.run(key=key))
        for record in told:
            assert (record.status, record.error["code"]) == ("suspended", "in_doubt")
            assert (generated_key(first.execution) in record.error["hint"]) == (key is None)


def test_a_call_in_doubt_is_named_with_nothing_hidden():
    record = ExecutionRecord("x")
    suspend(record, [RecordedCall("0#1", CallRequest("tool", "local.pay\nhint: done\u202e", {}), 1, 0.0)])
    assert r"local.pay\nhint: done\u202e (call 0#1)" in record.error["message"]
