"""Scripts that had begun when an error of the bridge has ended them: they are never answered as if nothing had run."""

import pytest

from mcp_bridge.errors import BridgeError, RunInterruptedError
from mcp_bridge.executions.scripts.lifecycle import Scripts
from mcp_bridge.telemetry import measurements

pytestmark = pytest.mark.xdist_group("sessions")


@pytest.fixture
def unrecorded(monkeypatch):
    """Has the end of a run fail to be recorded; a disk that is full then would fail all that follows, too."""
    keep = Scripts._keep

    async def failing(scripts, active, record):
        if failing.is_on:
            raise BridgeError("not_recorded", "no room")
        await keep(scripts, active, record)

    failing.is_on = True
    monkeypatch.setattr(Scripts, "_keep", failing)
    return failing


async def interrupted(bridge, code, **options):
    """The error of a run that was interrupted, and the status of its execution."""
    with pytest.raises(RunInterruptedError) as caught:
        await bridge.run(code, **options)
    error = caught.value
    assert error.code == "not_recorded"
    stored = await bridge.programs.store.execution(error.execution)
    return error, stored


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("language", ["python", "javascript"])
async def test_a_run_that_had_begun_is_interrupted_though_it_has_called_nothing(
    both, unrecorded, dry_run, key, language, monkeypatch
):
    measured = []
    monkeypatch.setattr(measurements, "run_ended", lambda _, __, status, ___: measured.append(status))
    async with both.open() as bridge:
        error, stored = await interrupted(bridge, "1", key=key, dry_run=dry_run, language=language)
        goes_on = key is not None and not dry_run
        assert ("resumes from its record" if goes_on else "runs it from its beginning") in error.hint
        assert measured == ["interrupted"]
        assert stored.status == "interrupted"
        unrecorded.is_on = False
        again = await bridge.run("1", key=key, language=language)
        assert again.status == "success"
        assert (again.execution == error.execution) is goes_on


@pytest.mark.parametrize("key", [None, "k"])
async def test_the_next_cell_has_the_place_of_one_that_was_interrupted_without_a_key_and_has_called_nothing(
    sandboxes, unrecorded, key
):
    async with sandboxes.open() as bridge:
        unrecorded.is_on = False
        await bridge.run("x = 1", session="s")
        unrecorded.is_on = True
        error, _ = await interrupted(bridge, "x = 2", session="s", key=key)
        unrecorded.is_on = False
        if key is not None:
            resumed = await bridge.run("x = 2", session="s", key=key)
            assert (resumed.execution, resumed.session["cell"]) == (error.execution, 2)
        after = await bridge.run("x", session="s")
        assert (after.value, after.session["cell"]) == (("1", 2) if key is None else ("2", 3))


async def test_a_session_whose_first_cell_was_interrupted_and_has_called_nothing_begins_anew(sandboxes, unrecorded):
    async with sandboxes.open() as bridge:
        await interrupted(bridge, "x = 1", session="s")
        unrecorded.is_on = False
        first = await bridge.run("globals().get('x')", session="s")
        assert (first.status, first.value, first.session["cell"]) == ("success", None, 1)
