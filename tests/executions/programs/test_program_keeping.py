"""What becomes of runs whose record can't be kept, whose tools answer oddly, or that several go on with."""

import asyncio
import time
from random import Random

import anyio
import anyio.lowlevel
import pytest
from ledger_looks import decide
from program_tools import Tools, database, driven, service, step  # noqa: F401

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.in_doubt import Settlement
from mcp_bridge.executions.programs import waits
from mcp_bridge.executions.programs.program_run import ProgramRun
from mcp_bridge.executions.programs.sandbox_programs import SandboxPrograms
from mcp_bridge.executions.programs.settle_or_cancel import cancel_program, settle_program
from mcp_bridge.executions.status import effective_status
from mcp_bridge.gate.request_context import RequestContext
from mcp_bridge.kernel.events import Outcome, Resume

pytestmark = pytest.mark.usefixtures("whole_ledgers")

SECONDS = 20
"""For what would otherwise wait for ever."""


async def broken(approved):
    return {"status": "failed", "code": "tool_error", "message": "no file \udcff"}


@pytest.mark.parametrize("undo", [False, True])
async def test_an_outcome_that_no_machine_takes_is_a_failure_and_holds_nobody_up(service, undo):
    first = step("a", compensate={"tool": "broken", "args": {}}) if undo else step("a")
    program = {"steps": [first, step("broken")]}
    tools = Tools(broken=broken)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            programs = service(tasks)
            run = await programs.start(program, {}, None, "me", tools)
            record = await driven(programs, run)
    assert (record["status"], record["steps"][1]["code"]) == ("failed", "bad_outcome")
    assert run.machine.ended


async def test_who_waits_for_a_key_hears_of_a_record_that_can_t_be_written(database, service):
    program = {"steps": [step("a")]}

    async def fail(approved):
        database.post("INSERT INTO nowhere (x) VALUES (?)", (1,))
        return {"value": 1}

    waits = anyio.Event()

    class Request(RequestContext):
        def release_slot(self):
            waits.set()

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            programs = service(tasks)
            run = await programs.start(program, {}, "key", "me", Tools())
            other = asyncio.ensure_future(programs.start(program, {}, "key", "me", Tools(), request=Request()))
            await waits.wait()
            run.effects = Tools(a=fail)
            with pytest.raises(BridgeError, match="nowhere"):
                await driven(programs, run)
            with pytest.raises(BridgeError, match="nowhere"):
                await other


@pytest.mark.parametrize("again", [False, True])
async def test_a_run_that_can_t_be_taken_down_is_nobody_s_and_goes_on_later(service, monkeypatch, again):
    approvals = [{"id": name, "type": "approval", "message": "Go?"} for name in "ab"]

    async def refused(*_):
        raise BridgeError("too_many_references", "There are too many.")

    async with anyio.create_task_group() as tasks:
        programs, tools = service(tasks), Tools()
        run = await programs.start({"steps": approvals}, {}, "k", "me", tools)
        if again:
            record = await driven(programs, run)
            (asked,) = await programs.store.approvals()
            assert await decide(programs.store, asked)
            run = await programs.resume(record["trace_id"], None, "me", tools)
        monkeypatch.setattr(programs.store, "ask", refused)
        with pytest.raises(BridgeError, match="too many"):
            await driven(programs, run)
        assert effective_status(await programs.store.execution(run.execution)) == "interrupted"
        monkeypatch.undo()
        with anyio.fail_after(SECONDS):
            record = await driven(programs, await programs.start({"steps": approvals}, {}, "k", "me", tools))
    assert (record["trace_id"], record["status"]) == (run.execution, "suspended")
    assert [row["step"] for row in record["waiting"]] == ["b" if again else "a"]


async def test_a_run_that_could_not_be_kept_leaves_no_deadline_behind(database, service):
    group = {"id": "g", "type": "parallel", "parallel_steps": [step("a")], "timeout_seconds": 3600}
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            programs = service(tasks)
            database.post("INSERT INTO nowhere (x) VALUES (?)", (1,))
            with pytest.raises(BridgeError, match="nowhere"):
                await programs.start({"steps": [group]}, {}, None, "me", Tools())
    assert not programs.lifecycle._active


async def test_a_cancellation_of_what_had_ended_unrecorded_gives_how_it_ended(service):
    program = {"steps": [{"id": "w", "type": "wait", "event": "e"}, step("a")]}
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            programs, tools = service(tasks), Tools()
            record = await driven(programs, await programs.start(program, {}, None, "me", tools))
            suspended = await programs.lifecycle.stored(record["trace_id"], "me")
            run = await programs.resume(record["trace_id"], Resume(1), "me", tools)
            assert (await driven(programs, run))["status"] == "success"
            # As after a death between the last outcome and what is kept.
            await programs.store.update(
                suspended.id, status="suspended", state=suspended.state, record=suspended.record, due=None
            )
            run = await cancel_program(programs, suspended.id, "enough", "me", tools)
            assert (await driven(programs, run))["status"] == "success"
    assert tools.done == ["e", "a"]


async def test_decisions_are_settled_though_one_takes_so_long_that_the_others_are_wanted_no_more(service, monkeypatch):
    seen, resumed = [], []

    async def slow(approved):
        if not approved:
            return {"status": "pending", "code": "approval", "message": "ask"}
        (deadline,) = resumed[0].machine.deadlines
        resumed[0]._pass(deadline)
        return {"value": 1}

    group = {
        "id": "g",
        "type": "parallel",
        "parallel_steps": [step("a"), step("b")],
        "timeout_seconds": 3600,
        "on_error": "skip",
    }
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            programs, tools = service(tasks), Tools(a=slow, b=slow)
            record = await driven(programs, await programs.start({"steps": [group]}, {}, None, "me", tools))
            assert record["status"] == "suspended"
            for asked in await programs.store.approvals():
                assert await decide(programs.store, asked)

            begin = ProgramRun.settle

            async def settle(run, number, decision):
                seen.append(number)
                resumed.append(run)
                await begin(run, number, decision)

            monkeypatch.setattr(ProgramRun, "settle", settle)
            run = await programs.resume(record["trace_id"], None, "me", tools)
            assert (await driven(programs, run))["status"] == "success"
    assert len(seen) == 1


async def test_of_two_that_have_read_a_suspended_execution_the_slower_is_refused(service):
    program = {"steps": [{"id": name, "type": "wait", "event": name} for name in ("one", "two")]}
    async with anyio.create_task_group() as tasks:
        programs, tools = service(tasks), Tools()
        record = await driven(programs, await programs.start(program, {}, None, "me", tools))
        early = await programs.lifecycle.stored(record["trace_id"], "me")
        run = await programs.resume(record["trace_id"], Resume(1), "me", tools)
        assert (await driven(programs, run))["status"] == "suspended"
        assert not await programs.store.take(early, early.owner)
        assert await programs.store.take(await programs.lifecycle.stored(record["trace_id"], "me"), early.owner)


async def test_a_person_s_comment_and_a_reason_are_shown_without_what_is_sensitive(service):
    program = {
        "steps": [{"id": "ask", "type": "approval", "message": "Go?"}, {"id": "w", "type": "wait", "event": "e"}]
    }
    async with anyio.create_task_group() as tasks:
        programs, tools = service(tasks), Tools()
        record = await driven(programs, await programs.start(program, {}, None, "me", tools))
        (asked,) = await programs.store.approvals()
        await decide(programs.store, asked, comment="card 4111")
        record = await driven(programs, await programs.resume(record["trace_id"], None, "me", tools))
        assert record["steps"][0]["output"]["comment"] == "card vault"
        record = await driven(programs, await cancel_program(programs, record["trace_id"], "card 4111", "me", tools))
        assert "card vault" in record["error"]
        stored = await programs.lifecycle.stored(record["trace_id"], "me")
        rows = await programs.recorder.read(record["trace_id"])
    assert "4111" not in str(stored.record)
    assert rows[-1].entry.kind == "end"
    # What the person wrote is in the entry of the decision, as it was written, and in nothing that follows from it.
    assert "4111" not in str([row for row in rows if row.entry.kind != "decision"])


async def test_a_reference_in_the_program_itself_is_good_in_the_process_that_goes_on(service):
    tools = Tools()
    reference = tools.references.put("4111 1111")
    program = {"steps": [{"id": "w", "type": "wait", "event": "e"}, step("a", args={"text": f"{reference}"})]}
    async with anyio.create_task_group() as tasks:
        programs = service(tasks)
        record = await driven(programs, await programs.start(program, {}, None, "me", tools))
        assert list((await programs.store.values(record["trace_id"])).values()) == ["4111 1111"]


async def test_one_run_that_fails_to_be_kept_leaves_the_others_of_its_sandbox_kept(service, monkeypatch):
    program = {"steps": [step("a")]}
    async with anyio.create_task_group() as tasks:
        programs = service(tasks)
        session = SandboxPrograms(programs, "script", "me", Tools(), None)
        began = [await session.start(program, {}, None) for _ in range(3)]
        keep = programs.keep

        async def odd(run, **how):
            if run.execution == began[0]["execution"]:
                raise RuntimeError("odd")
            return await keep(run, **how)

        monkeypatch.setattr(programs, "keep", odd)
        await session.close()
        for one in began[1:]:
            stored = await programs.lifecycle.stored(one["execution"], "me")
            assert stored.status == "interrupted"


async def test_what_a_sandbox_has_under_way_is_bounded_together(service, monkeypatch):
    monkeypatch.setattr("mcp_bridge.executions.programs.memory_bound.MAX_HELD_BYTES", 24_000)
    program, large = {"steps": [step("a")]}, {"text": "x" * 9_000}
    async with anyio.create_task_group() as tasks:
        session = SandboxPrograms(service(tasks), "script", "me", Tools(), None)
        first = await session.start(program, large, None)
        await session.start(program, large, None)
        with pytest.raises(BridgeError, match="take 0 MiB of the 0") as caught:
            await session.start(program, large, None)
        assert caught.value.code == "too_many_programs"
        # What has been left makes room, and one alone may be as large as a program and its context may be.
        await session.leave(first["execution"])
        third = await session.start(program, large, None)
        await session.close()
        session = SandboxPrograms(service(tasks), "script", "me", Tools(), None)
        await session.start(program, {"text": "x" * 30_000}, None)
        with pytest.raises(BridgeError, match="take 0 MiB"):
            await session.resume(third["execution"], None)
        await session.close()


@pytest.mark.parametrize("how", ["close", "leave"])
async def test_a_run_of_which_undoing_fails_is_nobody_s_and_leaves_no_deadline_behind(service, monkeypatch, how):
    slow = {"id": "g", "type": "parallel", "timeout_seconds": 3600, "parallel_steps": [step("a")]}
    async with anyio.create_task_group() as tasks:
        programs = service(tasks)
        session = SandboxPrograms(programs, "script", "me", Tools(), None)
        execution = (await session.start({"steps": [slow]}, {}, "key"))["execution"]
        run = session._runs[execution]
        assert run._deadlines

        async def fails(_):
            raise RuntimeError("it can't be undone")

        with monkeypatch.context() as patch:
            patch.setattr(ProgramRun, "wind_down", fails)
            if how == "close":
                await session.close()
            else:
                with pytest.raises(RuntimeError):
                    await session.leave(execution)
        assert not run._deadlines
        assert (await programs.lifecycle.stored(execution, "me")).status == "interrupted"
        with anyio.fail_after(SECONDS):
            again = await programs.start({"steps": [slow]}, {}, "key", "me", Tools())
            assert (await driven(programs, again))["status"] == "success"
        assert again.execution == execution


async def test_who_asks_again_with_a_key_while_another_ends_the_run_gets_its_record(service, monkeypatch):
    program = {"steps": [step("a")]}
    async with anyio.create_task_group() as tasks:
        programs, tools = service(tasks), Tools()
        await programs.keep(await programs.start(program, {}, "key", "me", tools))
        by_key = programs.store.by_key
        early = [await by_key("me", "key", "agent")]
        record = await driven(programs, await programs.start(program, {}, "key", "me", tools))

        async def late(principal, key, space=""):
            return early.pop() if early else await by_key(principal, key, space)

        monkeypatch.setattr(programs.store, "by_key", late)
        known = await programs.start(program, {}, "key", "me", tools)
        assert (early, known.record, tools.done) == ([], record, ["a"])


@pytest.mark.parametrize("seed", range(5))
async def test_clients_that_come_and_go_with_one_key_do_nothing_twice(service, seed):
    random = Random(seed)  # noqa: S311 - for moments, not for secrets
    steps = [
        {
            "id": f"p{number}",
            "type": "parallel",
            "parallel_steps": [step(f"{x}{number}", on_error="skip") for x in "ab"],
        }
        for number in range(4)
    ]
    begun = []

    class Begun(Tools):
        async def perform(self, run, effect, request, *, approved=False):
            run.begins(effect.id)
            begun.append((run.execution, effect.id))
            for _ in range(random.randrange(20)):
                await anyio.lowlevel.checkpoint()
            return Outcome(effect.id, "ok", effect.id)

    async def client(programs):
        with anyio.CancelScope() as scope:
            asyncio.get_running_loop().call_later(random.random() / 50, scope.cancel)
            run = await programs.start({"steps": steps}, {}, "key", "me", Begun())
            if isinstance(run, ProgramRun):
                await driven(programs, run)

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            programs = service(tasks)
            async with anyio.create_task_group() as clients:
                for _ in range(12):
                    clients.start_soon(client, programs)
            run = await programs.start({"steps": steps}, {}, "key", "me", Begun())
            record = await driven(programs, run) if isinstance(run, ProgramRun) else run.record
            while record["status"] == "suspended":
                # Some were cut off in mid-call.
                doubt = str(record["waiting"][0]["effect"])
                happened = Settlement("happened", "anna", "it was done")
                run = await settle_program(programs, record["trace_id"], doubt, happened, "me", Begun())
                record = await driven(programs, run)
    assert record["status"] == "success"
    assert len(begun) == len(set(begun)) == 8
    assert not programs.lifecycle._active


async def test_a_context_that_is_shown_to_nobody_begins_nothing(service):
    class Oversized(Tools):
        async def project(self, value):
            return "[REDACTED_OVERSIZE]"

    async with anyio.create_task_group() as tasks:
        with pytest.raises(BridgeError) as caught:
            await service(tasks).start({"steps": [step("a")]}, {"a": 1}, "key", "me", Oversized())
    assert caught.value.code == "context_too_large"


async def test_a_call_that_is_withdrawn_in_the_turn_in_which_it_is_begun_is_not_made(service):
    group = {
        "id": "both",
        "type": "parallel",
        "timeout_seconds": 3600,
        "on_error": "skip",
        "parallel_steps": [step("a"), step("b")],
    }

    async def passes(approved):
        # Both calls have been begun, and the second's task has not run yet.
        run._pass(1)
        return {"value": 1}

    async with anyio.create_task_group() as tasks:
        programs, tools = service(tasks), Tools(a=passes)
        run = await programs.start({"steps": [group]}, {}, None, "me", tools)
        record = await driven(programs, run)
    assert (record["status"], tools.done) == ("success", ["a"])
    entries = [row.entry for row in await programs.recorder.read(run.execution)]
    # The deadline's outcome, and that of the call that it came too late for; nothing of the other.
    assert [entry.payload["effects"] is None for entry in entries if entry.kind == "outcome"] == [False, True]


async def test_an_outcome_that_comes_when_its_deadline_has_passed_has_no_number(service):
    group = {
        "id": "both",
        "type": "parallel",
        "timeout_seconds": 3600,
        "on_error": "skip",
        "parallel_steps": [step("a")],
    }
    program = {"steps": [group, step("b")]}
    begun, passed = anyio.Event(), anyio.Event()

    async def at_once(approved):
        return {"value": 1}

    async def late(approved):
        # As a call that can't be cancelled any more, and ends at that moment.
        begun.set()
        with anyio.CancelScope(shield=True):
            await passed.wait()
        return {"value": 1}

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            programs, answered = service(tasks), {}
            run = await programs.start(program, {}, None, "me", Tools(a=late, b=at_once))

            async def pass_the_deadline():
                await begun.wait()
                run._pass(1)
                answered["deadline"] = await run.effect(1)
                passed.set()

            tasks.start_soon(pass_the_deadline)
            with pytest.raises(BridgeError) as caught:
                await run.effect(2)
            assert caught.value.code == "effect_cancelled"
            following = next(effect.id for effect, _ in run.machine.awaited())
            answered["b"] = await run.effect(following)
            await programs.keep(run)
    # The guest applies outcomes in the order of their numbers, and waits for each.
    assert [answer["sequence"] for answer in answered.values()] == [1, 2]
    entries = [row.entry for row in await programs.recorder.read(run.execution)]
    assert [entry.payload["effects"] is None for entry in entries if entry.kind == "outcome"] == [False, True, False]


@pytest.mark.parametrize("step_", [
    {"id": "pause", "type": "wait", "seconds": 8},
    step("a", retry={"schedule": [8]}),
])  # fmt: skip
async def test_a_wait_that_was_cut_short_goes_on_for_what_is_left_of_it(service, monkeypatch, step_):
    async def fails(approved):
        return {"status": "failed", "code": "tool_error", "message": "no"}

    async with anyio.create_task_group() as tasks:
        programs, tools = service(tasks), Tools(a=fails)
        run = await programs.start({"steps": [step_]}, {}, None, "me", tools)
        if step_["type"] == "tool":
            await run.effect(1)
        # Its process is gone.
        await programs.lifecycle.interrupt(run.execution)
        resumed = await programs.resume(run.execution, None, "me", tools)
    ((effect, _),) = resumed.machine.awaited()
    entries = await programs.recorder.read(run.execution)
    began = next(row.time for row in entries if effect.id in row.entry.payload["effects"])
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(waits.anyio, "sleep", sleep)
    # Six seconds later; when it is over; and by a clock that was set back.
    for passed in (6, 9, -5):
        monkeypatch.setattr(waits.time, "time", lambda passed=passed: began + passed)
        assert (await waits.wait(effect, resumed.asked[effect.id])).status == "ok"
    assert slept == pytest.approx([2, 0, 8])
    monkeypatch.undo()


async def test_a_long_wait_whose_process_died_before_it_was_kept_is_due_when_it_was(service):
    async with anyio.create_task_group() as tasks:
        programs, tools = service(tasks), Tools()
        run = await programs.start({"steps": [{"id": "p", "type": "wait", "seconds": 3600}]}, {}, None, "me", tools)
        await programs.lifecycle.interrupt(run.execution)
        resumed = await programs.resume(run.execution, None, "me", tools)
        assert list(resumed.asked) == [1]
        resumed.asked[1] -= 60
        resumed.machine.apply(Outcome(1, "pending"))
        (waiting,) = (await programs.keep(resumed))["waiting"]
    assert waiting["due"] == resumed.asked[1] + 3600


class Clock:
    """The time of day, which only the test moves."""

    def __init__(self, monkeypatch):
        self.now = self.began = time.time()
        monkeypatch.setattr(time, "time", lambda: self.now)

    def pass_(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


class Waiting(Tools):
    """Waits as they are, without sleeping."""

    async def perform(self, run, effect, request, *, approved=False):
        if effect.kind == "wait":
            return await waits.wait(effect, run.asked.get(effect.id))
        return await super().perform(run, effect, request, approved=approved)


async def test_a_wait_s_time_begins_when_it_is_asked_for_whatever_else_goes_on(service, clock):
    async def fails(approved):
        return {"status": "failed", "code": "tool_error", "message": "no"}

    async def slow(approved):
        await asked.wait()
        clock.pass_(600)
        return {"value": 1}

    class Asking(Waiting):
        async def perform(self, run, effect, request, *, approved=False):
            outcome = await super().perform(run, effect, request, approved=approved)
            if effect.kind == "wait":
                asked.set()
            return outcome

    asked = anyio.Event()
    steps = [step("a", retry={"schedule": [3600]}), step("b")]
    program = {"steps": [{"id": "g", "type": "parallel", "parallel_steps": steps}]}
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            programs = service(tasks)
            run = await programs.start(program, {}, None, "me", Asking(a=fails, b=slow))
            (waiting,) = (await driven(programs, run))["waiting"]
    assert (waiting["kind"], waiting["due"]) == ("wait", clock.began + 3600)


async def test_a_long_wait_that_is_over_when_its_run_goes_on_needs_no_second_resume(service, clock):
    async with anyio.create_task_group() as tasks:
        programs, tools = service(tasks), Waiting()
        run = await programs.start({"steps": [{"id": "p", "type": "wait", "seconds": 3600}]}, {}, None, "me", tools)
        assert (await run.effect(1))["status"] == "pending"
        # Its process is gone before the suspension was stored.
        await programs.lifecycle.interrupt(run.execution)
        clock.pass_(4000)
        record = await driven(programs, await programs.resume(run.execution, None, "me", tools))
    assert record["status"] == "success"


@pytest.mark.parametrize("seconds", [25, 3600])
@pytest.mark.parametrize("passed", [0, 100])
async def test_a_wait_s_own_time_limit_holds_after_an_interruption(service, clock, monkeypatch, seconds, passed):
    slept = []

    async def sleep(left):
        slept.append(left)

    monkeypatch.setattr(waits.anyio, "sleep", sleep)
    late = {"id": "p", "type": "wait", "seconds": seconds, "timeout_seconds": 20, "on_error": "skip"}
    async with anyio.create_task_group() as tasks:
        programs, tools = service(tasks), Waiting()
        run = await programs.start({"steps": [late]}, {}, None, "me", tools)
        await programs.lifecycle.interrupt(run.execution)
        clock.pass_(passed)
        record = await driven(programs, await programs.resume(run.execution, None, "me", tools))
    assert (record["status"], record["steps"][0]["code"]) == ("success", "timeout")
    assert slept == [pytest.approx(max(0, 20 - passed), abs=0.1)]


async def test_a_long_wait_with_a_shorter_time_limit_that_is_long_too_times_out_by_then(service, clock):
    late = {"id": "p", "type": "wait", "seconds": 3600, "timeout_seconds": 60, "on_error": "skip"}
    async with anyio.create_task_group() as tasks:
        programs, tools = service(tasks), Waiting()
        record = await driven(programs, await programs.start({"steps": [late]}, {}, None, "me", tools))
        assert record["waiting"][0]["due"] == clock.began + 60
        clock.pass_(60)
        record = await driven(programs, await programs.resume(record["trace_id"], None, "me", tools))
    assert (record["status"], record["steps"][-1]["code"]) == ("success", "timeout")
