"""Code of which a run waits, or has ended and told nobody: the same code without a key goes on with that run."""

import pytest

from mcp_bridge.executions.idempotency.waiting_code import WaitingCodeCache
from mcp_bridge.executions.waits import script_waits
from mcp_bridge.host import script_activity
from mcp_bridge.telemetry import measurements

WAITS = "print(await runtime.wait_event('go'))"
ADDS = "n += await runtime.wait_event('go')\nn"


@pytest.fixture(autouse=True)
def quick_waits(monkeypatch):
    monkeypatch.setattr(script_waits, "SHORT_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(script_activity, "QUIET_SECONDS", 0.1)


async def executions(bridge):
    return [row.id for row in await bridge.lifecycle.store.executions(None, 100)]


async def entries(bridge):
    return await bridge.database.read("SELECT execution, kind FROM entries ORDER BY sequence")


async def test_what_was_begun_before_the_waiting_run_was_found_leaves_nothing(sandboxes, monkeypatch):
    measured = []
    monkeypatch.setattr(measurements, "run_ended", lambda *ended: measured.append(ended[2]))
    async with sandboxes.open() as bridge:
        first = await bridge.run(WAITS)
        assert first.status == "suspended", first.error
        before = await entries(bridge)
        again = await bridge.run(WAITS)
        assert (again.execution, again.status) == (first.execution, "suspended")
        # Another bridge doesn't know that it waits before it has begun with it.
        monkeypatch.setattr(bridge.scripts, "_waiting_code", WaitingCodeCache())
        again = await bridge.run(WAITS)
        assert (again.execution, again.status) == (first.execution, "suspended")
        assert await executions(bridge) == [first.execution]
        # What was added is of the one that waits: it has looked whether it can go on.
        assert {execution for execution, _ in await entries(bridge)} == {first.execution, "ledger"}
        assert (await entries(bridge))[: len(before)] == before
        for table, column in (("data_keys", "execution"), ("reference_values", "execution")):
            kept = await bridge.database.read(f"SELECT DISTINCT {column} FROM {table}")  # noqa: S608
            assert {row[0] for row in kept} <= {first.execution, "ledger"}
        assert bridge.runs_under_way() == (0, 0)
        assert measured == ["suspended"], "what has never been is no run"
        await bridge.send_event(first.execution, "go", 7, "test", and_resume=False)
        told = await bridge.run(WAITS)
        assert (told.execution, told.stdout) == (first.execution, b"7\n")
        anew = await bridge.run(WAITS)
        assert (anew.status, anew.execution != first.execution) == ("suspended", True)


async def test_a_result_that_nobody_was_given_is_given_once(sandboxes):
    async with sandboxes.open() as bridge:
        first = await bridge.run(WAITS)
        await bridge.send_event(first.execution, "go", 7, "test", and_resume=True)
        told = await bridge.run(WAITS)
        assert (told.execution, told.stdout) == (first.execution, b"7\n")
        assert (await bridge.run(WAITS)).execution != first.execution


async def test_a_cell_that_waited_is_given_although_other_cells_have_run_since(sandboxes):
    async with sandboxes.open() as bridge:
        await bridge.run("n = 1", session="s")
        await bridge.run("n += 1", session="s")
        waits = await bridge.run(ADDS, session="s")
        assert waits.status == "suspended", waits.error
        await bridge.send_event(waits.execution, "go", 40, "test", and_resume=True)
        for number in (4, 5):
            # In the sandbox of the cell that waited.
            assert (await bridge.run("n", session="s")).session["cell"] == number
        told = await bridge.run(ADDS, session="s")
        assert (told.execution, told.value) == (waits.execution, "42")
        assert (await bridge.run("n", session="s")).value == "42"


async def test_in_a_session_in_which_no_cell_has_waited_none_is_looked_for(sandboxes, monkeypatch):
    from mcp_bridge.executions.scripts import lifecycle

    looked = []
    real = lifecycle.suspended_run_of_code

    async def counted(*args):
        looked.append(args)
        return await real(*args)

    monkeypatch.setattr(lifecycle, "suspended_run_of_code", counted)
    async with sandboxes.open() as bridge:
        for text in ("n = 1", "n += 1", "n += 1"):
            await bridge.run(text, session="s")
        assert len(looked) == 1, "the first cell begins a session, and the others are in its sandbox"
        await bridge.run("n", session="s", key="k")
        await bridge.run("n", session="s")
        assert len(looked) == 2, "a cell with a key may have been given to nobody"
        bridge._shared.live_sessions.end_all()
        assert (await bridge.run("n", session="s")).value == "3"
        assert len(looked) == 3, "what was rebuilt may have waited"
