"""A bridge that serves goes on with scripts whose wait is over, and with no others."""

import sys
import time
from pathlib import Path

import anyio
import pytest
from execution_fixtures import until

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.erasure_with_files import erase
from mcp_bridge.executions.waits import event_sending, script_waits
from mcp_bridge.executions.waits.automatic_resumption import AutomaticResumption, at_once
from mcp_bridge.executions.waits.event_sending import executions_awaiting
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.governance.principal_tokens import TokenStore
from mcp_bridge.governance.principals import Principal
from mcp_bridge.host import script_activity
from mcp_bridge.ledger.admin.recorded_losses import record_restore
from mcp_bridge.ledger.storage.schema import FILE_NAME

WAIT = "print(await runtime.wait_event('go'))"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(script_waits, "SHORT_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(script_activity, "QUIET_SECONDS", 0.1)


async def nothing():
    pass


def goes_on(bridge, most=2):
    return AutomaticResumption(bridge.lifecycle, bridge.for_owner, most, nothing)


async def look_once(going_on):
    """Go on with what is due, to its end."""
    async with anyio.create_task_group() as tasks:
        await going_on.look(tasks)


async def no_containers(sandboxes):
    return not await sandboxes.containers()


async def status(bridge, execution):
    return (await bridge.lifecycle.stored(execution, bridge.principal.name)).status


async def test_a_due_script_goes_on_and_its_client_gets_its_result_by_the_key(sandboxes):
    code = "import time\nawait runtime.sleep_until(time.time() + 0.5)\nprint('over')"
    async with sandboxes.open() as bridge:
        record = await bridge.run(code, key="k")
        assert record.status == "suspended"
        going_on = goes_on(bridge)
        await look_once(going_on)
        assert await status(bridge, record.execution) == "suspended"
        await anyio.sleep(max(0.0, record.waiting[0]["due"] - time.time()) + 0.01)
        await look_once(going_on)
        assert await status(bridge, record.execution) == "success"
        given = await bridge.run(code, key="k")
        assert (given.is_previous_result, given.stdout) == (True, b"over\n")


async def test_a_time_that_is_taken_for_a_sensitive_number_is_waited_for(sandboxes, tmp_path):
    state = sandboxes.settings.state_dir
    patterns = {"projection": {"patterns": [], "custom": {"account": "[0-9]{10}"}}}
    governance = load_governance(patterns, None, tmp_path, state)
    code = (
        "import asyncio, time\ngot = await asyncio.gather(runtime.sleep_until(time.time() + 1),"
        " runtime.wait_event('go', timeout=1), return_exceptions=True)\nprint([str(one) for one in got])"
    )
    async with sandboxes.open(governance=governance) as bridge:
        record = await bridge.run(code, key="k")
        assert record.status == "suspended"
        await anyio.sleep(max(0.0, max(row["due"] for row in record.waiting) - time.time()) + 0.01)
        record = await bridge.run(code, key="k")
        assert record.stdout == b"['None', \"The event 'go' didn't come in time.\"]\n", record
        told = str([row.entry.payload for row in await bridge.lifecycle.recorder.read(record.execution)])
        assert str(int(time.time()))[:6] not in told


async def test_an_event_wakes_its_script_and_another_event_does_not(sandboxes):
    async with sandboxes.open() as bridge:
        record = await bridge.run(WAIT, key="k")
        going_on = goes_on(bridge)
        await bridge.send_event(record.execution, "other", 1, "OPERATOR", and_resume=False)
        await look_once(going_on)
        assert await status(bridge, record.execution) == "suspended"
        await bridge.send_event(record.execution, "go", 2, "OPERATOR", and_resume=False)
        await look_once(going_on)
        assert await status(bridge, record.execution) == "success"


async def test_an_event_that_is_sent_while_the_script_runs_is_taken_there_or_makes_it_due(sandboxes):
    async with sandboxes.open() as bridge, anyio.create_task_group() as tasks:
        records = []

        async def run():
            records.append(await bridge.run(WAIT, key="k"))

        tasks.start_soon(run)
        store = bridge.lifecycle.store
        (row,) = await until(lambda: store.executions(None, 1, ["running"]))
        await bridge.send_event(row.id, "go", "early", "OPERATOR", and_resume=False)
        await until(lambda: records)
        if records[0].status == "suspended":
            assert [execution for execution, _ in await store.due(10)] == [row.id]
            await look_once(goes_on(bridge))
        assert await status(bridge, row.id) == "success"


async def test_of_two_bridges_one_goes_on(sandboxes):
    async with sandboxes.open() as one:
        record = await one.run(WAIT, key="k")
        await one.send_event(record.execution, "go", 2, "OPERATOR", and_resume=False)
        async with sandboxes.open() as other:
            async with anyio.create_task_group() as tasks:
                for bridge in (one, other):
                    await goes_on(bridge).look(tasks)
            await until(lambda: no_containers(sandboxes))
        assert await status(one, record.execution) == "success"
        kinds = [row.entry.kind for row in await one.lifecycle.recorder.read(record.execution)]
        assert kinds.count("resume") == 1


async def test_a_script_that_waits_for_a_person_as_well_is_left_to_the_person(sandboxes, caplog):
    async with sandboxes.open() as bridge:
        record = await bridge.run(WAIT, key="k")
        await bridge.cancel_execution(record.execution, "enough")
        await look_once(goes_on(bridge))
        assert await status(bridge, record.execution) == "cancelled"
        assert await bridge.lifecycle.store.due(10) == []
    assert not [row for row in caplog.records if row.levelname == "ERROR"]


@pytest.mark.parametrize("ends", ["the bridge", "the command line"])
async def test_a_cell_that_waits_is_cancelled_with_its_session(sandboxes, ends, tmp_path):
    async with sandboxes.open() as bridge:
        await bridge.run("x = 1", session="s")
        record = await bridge.run(f"x = 2\n{WAIT}", session="s")
        assert record.status == "suspended"
        if ends == "the bridge":
            assert await bridge.end_session("s")
        else:
            config = tmp_path / "config.toml"
            config.write_text(f"state_dir = {str(bridge.settings.state_dir)!r}\n")
            command = [
                str(Path(sys.executable).with_name("mcp-bridge")),
                "session",
                "end",
                "s",
                "--config",
                str(config),
            ]
            ended = await anyio.run_process(command, check=False)
            assert ended.returncode == 0, ended
        assert await status(bridge, record.execution) == "cancelled"
        assert (await bridge.run("'x' in globals()", session="s")).value == "False"


async def test_a_cell_that_came_to_wait_after_its_session_had_ended_is_cancelled_when_it_is_due(sandboxes):
    async with sandboxes.open() as bridge:
        record = await bridge.run(f"await runtime.end_session()\n{WAIT}", session="s")
        assert record.status == "suspended"
        await bridge.send_event(record.execution, "go", 1, "OPERATOR", and_resume=False)
        await look_once(goes_on(bridge))
        assert await status(bridge, record.execution) == "cancelled"


async def test_a_script_is_left_alone_under_another_policy(sandboxes):
    async with sandboxes.open() as bridge:
        record = await bridge.run(WAIT, key="k")
        await bridge.send_event(record.execution, "go", 2, "OPERATOR", and_resume=False)
        before = bridge.lifecycle.policy_hash
        bridge.lifecycle.policy_hash = "another"
        going_on = goes_on(bridge)
        await look_once(going_on)
        assert await status(bridge, record.execution) == "suspended"
        bridge.lifecycle.policy_hash = before
        # It is left alone for a while, until something changes.
        await look_once(going_on)
        assert await status(bridge, record.execution) == "suspended"
        await bridge.send_event(record.execution, "more", 2, "OPERATOR", and_resume=False)
        await look_once(going_on)
        assert await status(bridge, record.execution) == "success"


async def test_a_script_is_left_alone_by_a_bridge_with_other_servers(sandboxes, monkeypatch):
    async with sandboxes.open() as bridge:
        record = await bridge.run(WAIT, key="k")
        await bridge.send_event(record.execution, "go", 2, "OPERATOR", and_resume=False)
        monkeypatch.setattr(bridge.lifecycle, "servers_digest", lambda: "0" * 64)
        await look_once(goes_on(bridge))
        assert await status(bridge, record.execution) == "suspended"


@pytest.mark.parametrize("table", [{"secrets": []}, {"files": []}], ids=["secrets", "files"])
async def test_a_script_is_left_alone_whose_principal_has_more_without_its_table(sandboxes, tmp_path, table):
    def opened(**principals):
        state = sandboxes.settings.state_dir
        return sandboxes.open(governance=load_governance({"principals": principals}, None, tmp_path, state))

    async with opened(anna=table) as bridge:
        anna = bridge.for_principal(Principal("anna"))
        record = await anna.run(WAIT, key="k")
        await anna.send_event(record.execution, "go", 2, "OPERATOR", and_resume=False)
    # Who is still somebody, by a token that gives everybody's rights.
    TokenStore(sandboxes.settings.state_dir).add("anna", restricted=False)
    async with opened() as bridge:
        await look_once(goes_on(bridge))
        assert await status(bridge.for_principal(Principal("anna")), record.execution) == "suspended"
    async with opened(anna=table) as bridge:
        await look_once(goes_on(bridge))
        assert await status(bridge.for_principal(Principal("anna")), record.execution) == "success"


async def test_what_was_suspended_before_the_log_was_restored_is_left_to_a_person(sandboxes):
    path = sandboxes.settings.state_dir / FILE_NAME
    async with sandboxes.open() as bridge:
        record = await bridge.run(f"{WAIT}\n{WAIT}", key="k")
        await bridge.send_event(record.execution, "go", 1, "OPERATOR", and_resume=False)
    record_restore(path, sandboxes.settings.ledger.master_key, "somebody", None)
    async with sandboxes.open() as bridge:
        # Perhaps it has gone on since the backup was made.
        await look_once(goes_on(bridge))
        await bridge.send_event(record.execution, "other", 2, "OPERATOR", and_resume=False)
        await look_once(goes_on(bridge))
        kinds = [row.entry.kind for row in await bridge.lifecycle.recorder.read(record.execution)]
        assert "resume" not in kinds
        await bridge.resume_execution(record.execution)
        await bridge.send_event(record.execution, "go", 3, "OPERATOR", and_resume=False)
        await look_once(goes_on(bridge))
        assert await status(bridge, record.execution) == "success"


async def test_a_script_that_can_not_go_on_for_a_fault_of_ours_is_left_alone_for_a_while(sandboxes, monkeypatch):
    tried = 0

    async def fails(*_):
        nonlocal tried
        tried += 1
        raise ZeroDivisionError

    async with sandboxes.open() as bridge:
        record = await bridge.run(WAIT, key="k")
        await bridge.send_event(record.execution, "go", 2, "OPERATOR", and_resume=False)
        monkeypatch.setattr(type(bridge), "resume_execution", fails)
        going_on = goes_on(bridge)
        for _ in range(3):
            await look_once(going_on)
        assert tried == 1


async def test_an_owner_who_is_nobody_any_more_does_not_go_on(sandboxes):
    async with sandboxes.open() as bridge:
        record = await bridge.run(WAIT, key="k")
        await bridge.send_event(record.execution, "go", 2, "OPERATOR", and_resume=False)

        def nobody(_):
            raise BridgeError("not_a_principal", "You aren't a principal of this bridge.")

        await look_once(AutomaticResumption(bridge.lifecycle, nobody, 2, nothing))
        assert await status(bridge, record.execution) == "suspended"


LONG = f"{WAIT}\nimport asyncio\nawait asyncio.sleep(300)"


async def has_gone_on(bridge, execution):
    """Whether a script of `LONG` has its event, and runs."""
    entries = await bridge.lifecycle.recorder.read(execution)
    return any(row.entry.kind == "outcome" for row in entries)


async def test_an_owner_who_becomes_nobody_while_a_script_goes_on_has_it_cancelled(sandboxes):
    async with sandboxes.open() as bridge:
        record = await bridge.run(LONG, key="k")
        await bridge.send_event(record.execution, "go", 2, "OPERATOR", and_resume=False)
        lost = []

        def owner(_):
            if lost:
                raise BridgeError(lost[0], "You aren't a principal of this bridge.")
            return bridge

        going_on = AutomaticResumption(bridge.lifecycle, owner, 2, nothing)
        async with anyio.create_task_group() as tasks:
            await going_on.look(tasks)
            await until(lambda: has_gone_on(bridge, record.execution))
            await going_on.cancel_for_removed_principals()
            lost.append("bad_config")
            await going_on.cancel_for_removed_principals()
            assert not going_on.is_idle
            lost[0] = "not_a_principal"
            await going_on.cancel_for_removed_principals()
        assert going_on.is_idle
        assert await status(bridge, record.execution) == "interrupted"
        await until(lambda: no_containers(sandboxes))


async def test_once_stopped_it_waits_for_what_is_under_way_and_begins_nothing(sandboxes):
    async with sandboxes.open() as bridge:
        records = [await bridge.run(f"{WAIT}\n{number}", key=f"k{number}") for number in range(2)]
        for record in records:
            await bridge.send_event(record.execution, "go", 2, "OPERATOR", and_resume=False)
        begun, release = anyio.Event(), anyio.Event()

        class Slow:
            lifecycle = bridge.lifecycle

            async def resume_execution(self, execution):
                begun.set()
                await release.wait()
                return await bridge.resume_execution(execution)

        going_on = AutomaticResumption(bridge.lifecycle, lambda _: Slow(), 1, nothing)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(going_on.run)
            await begun.wait()
            going_on.stop()
            assert not going_on.is_idle
            release.set()
        # It has ended by itself.
        assert going_on.is_idle
        assert sorted([await status(bridge, record.execution) for record in records]) == ["success", "suspended"]


async def test_no_more_go_on_at_once_than_may(sandboxes):
    async with sandboxes.open() as bridge:
        for number in range(3):
            record = await bridge.run(f"{WAIT}\n{number}", key=f"k{number}")
            await bridge.send_event(record.execution, "go", 2, "OPERATOR", and_resume=False)
        going_on = goes_on(bridge, most=2)
        await look_once(going_on)
        assert len(await bridge.lifecycle.store.due(10)) == 1
        await look_once(going_on)
        assert await bridge.lifecycle.store.due(10) == []
    assert [at_once(number) for number in (1, 4, 8, 100)] == [1, 1, 2, 25]


async def test_a_script_whose_run_was_cut_off_is_due_still(sandboxes):
    code = "import time\nawait runtime.sleep_until(time.time() + 0.4)\nawait asyncio.sleep(30)"
    async with sandboxes.open() as bridge:
        record = await bridge.run(f"import asyncio\n{code}", key="k")
        assert record.status == "suspended"
        await anyio.sleep(max(0.0, record.waiting[0]["due"] - time.time()) + 0.01)
        async with anyio.create_task_group() as tasks:
            await goes_on(bridge).look(tasks)

            async def is_running():
                entries = await bridge.lifecycle.recorder.read(record.execution)
                return any(row.entry.kind == "outcome" for row in entries)

            await until(is_running)
            tasks.cancel_scope.cancel()
        assert await status(bridge, record.execution) == "interrupted"
        assert [execution for execution, _ in await bridge.lifecycle.store.due(10)] == [record.execution]


async def test_an_event_reaches_no_other_principals_script(sandboxes):
    async with sandboxes.open() as bridge:
        record = await bridge.run(WAIT, key="k")
        anna = bridge.for_principal(Principal("anna"))
        with pytest.raises(BridgeError) as caught:
            await anna.send_event(record.execution, "go", 1, "OPERATOR", and_resume=False)
        assert caught.value.code == "unknown_trace"
        store, recorder = bridge.lifecycle.store, bridge.lifecycle.recorder
        with pytest.raises(BridgeError) as caught:
            await executions_awaiting(store, recorder, "anna", "go")
        assert caught.value.code == "nobody_waits"
        assert [row.id for row in await executions_awaiting(store, recorder, "local", "go")] == [record.execution]


async def test_events_that_nobody_takes_are_bounded(sandboxes, monkeypatch):
    monkeypatch.setattr(event_sending, "MAX_KEPT", 3)
    async with sandboxes.open() as bridge:
        record = await bridge.run(WAIT, key="k")
        for _ in range(3):
            await bridge.send_event(record.execution, "other", 1, "OPERATOR", and_resume=False)
        with pytest.raises(BridgeError) as caught:
            await bridge.send_event(record.execution, "go", 1, "OPERATOR", and_resume=False)
        assert caught.value.code == "too_many_events"


async def test_a_script_waits_so_often_and_no_more(sandboxes, monkeypatch):
    monkeypatch.setattr(script_waits, "MAX_WAITS", 3)
    code = "from mcp import MCPError\nfor _ in range(3): await runtime.sleep_until(0)\n"
    async with sandboxes.open() as bridge:
        record = await bridge.run(
            f"{code}try:\n    await runtime.sleep_until(0)\nexcept MCPError as exc:\n    print(exc.code)"
        )
        assert record.stdout == b"too_many_waits\n"


STEPS = [
    {"id": "w", "type": "wait", "seconds": 31},
    {"id": "a", "type": "approval", "message": "go?"},
    {"id": "e", "type": "wait", "event": "go"},
]


async def put_forward(bridge, execution, monkeypatch, seconds=40.0):
    """Let the machine's clock go on, as while it is asleep."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)


async def test_a_program_whose_time_has_come_goes_on_and_one_whose_time_has_not_does_not(sandboxes, monkeypatch):
    async with sandboxes.open() as bridge:
        record = await bridge.run_program({"name": "p", "steps": STEPS})
        assert [row["kind"] for row in record["waiting"]] == ["wait"]
        going_on = goes_on(bridge)
        await look_once(going_on)
        assert (await bridge.lifecycle.stored(record["trace_id"], "local")).record["waiting"] == record["waiting"]
        await put_forward(bridge, record["trace_id"], monkeypatch)
        await look_once(going_on)
        stored = await bridge.lifecycle.stored(record["trace_id"], "local")
        # What needs a person waits again.
        assert [row["kind"] for row in stored.record["waiting"]] == ["approval"]


async def test_a_program_is_left_alone_by_a_bridge_with_other_servers(sandboxes, monkeypatch):
    async with sandboxes.open() as bridge:
        record = await bridge.run_program({"name": "p", "steps": STEPS[:1]})
        await put_forward(bridge, record["trace_id"], monkeypatch)
        monkeypatch.setattr(bridge.lifecycle, "servers_digest", lambda: "0" * 64)
        await look_once(goes_on(bridge))
        assert await status(bridge, record["trace_id"]) == "suspended"


async def test_a_program_of_a_script_that_waits_for_it_goes_on_by_its_script(sandboxes, monkeypatch):
    code = (
        "from mcp import programs\n"
        f"trace = await programs.run({{'name': 'p', 'steps': {STEPS[:1]!r}}})\nprint(trace.status)"
    )
    async with sandboxes.open() as bridge:
        record = await bridge.run(code, key="k")
        assert record.status == "suspended", record
        (program,) = [row["execution"] for row in record.waiting]
        await put_forward(bridge, program, monkeypatch)
        await look_once(goes_on(bridge, most=4))
        assert await status(bridge, record.execution) == "success"
        kinds = [row.entry.kind for row in await bridge.lifecycle.recorder.read(program)]
        assert (await status(bridge, program), kinds.count("resume")) == ("success", 1)
        assert (await bridge.run(code, key="k")).stdout == b"success\n"


async def test_what_somebody_with_other_servers_has_gone_on_with_is_theirs(sandboxes):
    code = f"{WAIT}\ntry:\n    await runtime.wait_event('more', timeout=3600)\nexcept Exception: pass"
    async with sandboxes.open() as bridge:
        record = await bridge.run(code, key="k")
        await bridge.send_event(record.execution, "go", 1, "OPERATOR", and_resume=False)
        before = bridge.lifecycle.servers_digest
        bridge.lifecycle.servers_digest = lambda: "0" * 64
        await bridge.resume_execution(record.execution)
        bridge.lifecycle.servers_digest = before
        await bridge.send_event(record.execution, "more", 1, "OPERATOR", and_resume=False)
        await look_once(goes_on(bridge))
        assert await status(bridge, record.execution) == "suspended"
        # Nor is it of the first ones when it was cut off there.
        bridge.lifecycle.servers_digest = lambda: "0" * 64
        stored = await bridge.lifecycle.stored(record.execution, "local")
        assert await bridge.lifecycle.take(stored)
        await bridge.lifecycle.interrupt(record.execution)
        bridge.lifecycle.servers_digest = before
        await look_once(goes_on(bridge))
        assert await status(bridge, record.execution) == "interrupted"


async def test_an_event_that_is_sent_as_its_script_ends_is_refused_and_not_recorded(sandboxes, monkeypatch):
    async with sandboxes.open() as bridge:
        record = await bridge.run(f"{WAIT}\nawait runtime.wait_event('more')", key="k")
        checked = event_sending.checked_payload

        async def ends(payload):
            # Its status was looked at before.
            await bridge.cancel_execution(record.execution, "enough")
            return await checked(payload)

        monkeypatch.setattr(event_sending, "checked_payload", ends)
        with pytest.raises(BridgeError) as caught:
            await bridge.send_event(record.execution, "go", 1, "OPERATOR", and_resume=False)
        assert caught.value.code == "not_suspended"
        kinds = [row.entry.kind for row in await bridge.lifecycle.recorder.read(record.execution)]
        assert "event" not in kinds
        assert await bridge.lifecycle.store.due(10) == []


async def test_events_that_a_script_did_not_wait_for_are_told_in_its_record(sandboxes):
    async with sandboxes.open() as bridge:
        record = await bridge.run(WAIT, key="k")
        for name in ("other", "go", "go"):
            await bridge.send_event(record.execution, name, 1, "OPERATOR", and_resume=False)
        record = await bridge.run(WAIT, key="k")
        assert record.notices == ["events that were sent to this run, and that it didn't wait for: other, go"]


@pytest.mark.parametrize("hours", [-5, 5])
async def test_a_clock_that_is_set_while_a_script_waits_is_believed(sandboxes, monkeypatch, hours):
    real = time.time
    code = "import time\nawait runtime.sleep_until(time.time() + 3600)\nprint('over')"
    async with sandboxes.open() as bridge:
        record = await bridge.run(code, key="k")
        going_on = goes_on(bridge)
        monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
        for _ in range(2):
            await look_once(going_on)
        assert await status(bridge, record.execution) == ("success" if hours > 0 else "suspended")
        if hours < 0:
            # An event, and the right time, are found all the same.
            monkeypatch.setattr(time, "time", lambda: real() + 3601)
            await look_once(going_on)
            assert await status(bridge, record.execution) == "success"


async def test_a_wait_in_place_is_over_when_the_clock_says_so(sandboxes, monkeypatch):
    # Something else keeps the sandbox.
    real, waits = time.time, anyio.Event()
    monkeypatch.setattr(script_waits, "CLOCK_SECONDS", 0.05)
    parked = script_waits.ScriptWaits._until

    async def noted(self, call, until):
        waits.set()
        await parked(self, call, until)

    monkeypatch.setattr(script_waits.ScriptWaits, "_until", noted)
    code = (
        "import asyncio, time\nwait = asyncio.ensure_future(runtime.sleep_until(time.time() + 3600))\n"
        "while not wait.done(): await asyncio.sleep(0.05)\nprint('over')"
    )
    async with sandboxes.open() as bridge, anyio.create_task_group() as tasks:
        records = []

        async def run():
            records.append(await bridge.run(code, key="k"))

        tasks.start_soon(run)
        await waits.wait()
        monkeypatch.setattr(time, "time", lambda: real() + 3700)
        await until(lambda: records)
        assert (records[0].status, records[0].stdout) == ("success", b"over\n")


async def test_an_erased_script_that_waited_is_gone_and_nobody_goes_on_with_it(sandboxes, caplog):
    async with sandboxes.open() as bridge:
        record = await bridge.run(f"'pink-elephant'\n{WAIT}", key="k")
        await bridge.send_event(record.execution, "go", "pink-elephant", "OPERATOR", and_resume=False)
        await erase(bridge.database, bridge.files, "execution", record.execution, by="anna", reason=None)
        assert await bridge.lifecycle.store.due(10) == []
        for _ in range(2):
            await look_once(goes_on(bridge))
        for refused in (
            bridge.send_event(record.execution, "go", 1, "OPERATOR", and_resume=True),
            bridge.resume_execution(record.execution),
            bridge.cancel_execution(record.execution, "enough"),
        ):
            with pytest.raises(BridgeError) as caught:
                await refused
            assert caught.value.code in {"erased", "not_suspended"}, caught.value
        assert await status(bridge, record.execution) == "erased"
        entries = await bridge.lifecycle.recorder.read(record.execution)
        assert "pink" not in str([row.entry.payload for row in entries])
    assert not [row for row in caplog.records if row.levelname in {"ERROR", "CRITICAL"}]
    assert b"pink-elephant" not in (sandboxes.settings.state_dir / FILE_NAME).read_bytes()
