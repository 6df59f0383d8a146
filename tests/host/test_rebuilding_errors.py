"""Cells that fail in another way when they run again: that is told, and what may truly differ isn't."""

import time

import anyio
import pytest
from servers.specs import faulty

from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.scripts import divergence
from mcp_bridge.executions.sessions import rebuilding

pytestmark = pytest.mark.xdist_group("sessions")

BY_TIME = {
    "another type, line": {
        "python": "import time\nif time.time() > {until}:\n    raise KeyError('late')\ny = 1\nraise ValueError('soon')",
        "javascript": "if (Date.now() / 1000 > {until}) throw new RangeError('late')\n"
        "const y = 1\nthrow new TypeError('soon')",
    },
    "another line": {
        "python": "import time\nif time.time() > {until}:\n    raise ValueError('no')\ny = 1\nraise ValueError('no')",
        "javascript": "if (Date.now() / 1000 > {until}) throw new Error('no')\nconst y = 1\nthrow new Error('no')",
    },
    "another text": {
        "python": "import time\ny = 1\nraise ValueError('late' if time.time() > {until} else 'soon')",
        "javascript": "const y = 1\nthrow new Error(Date.now() / 1000 > {until} ? 'late' : 'soon')",
    },
}


def put_away(bridge):
    bridge._shared.live_sessions.end_all()


@pytest.mark.parametrize("case", BY_TIME)
async def test_a_cell_that_fails_in_another_way_stops_the_rebuilding_with_both_errors(bilingual, case):
    code = BY_TIME[case][bilingual.language]
    async with bilingual.open() as bridge:
        # The sandbox is there: what is left to happen in time is little.
        await bridge.run("1", session="s")
        until = time.time() + 5
        first = await bridge.run(code.replace("{until}", repr(until)), session="s")
        assert first.status == "error"
        await anyio.sleep(until + 0.1 - time.time())
        put_away(bridge.bridge)
        with pytest.raises(BridgeError) as caught:
            await bridge.run("y", session="s")
        error = caught.value
        assert (error.code, error.details["cell"], error.details["what"]) == ("session_lost", 2, "error")
        assert error.details["recorded"] != error.details["actual"]
        assert first.error["type"] in error.details["recorded"]
        stored = await bridge.bridge.lifecycle.stored(first.execution, "local")
        replayed = await bridge.bridge.replay_execution(stored)
        assert (replayed.agrees, replayed.difference.what) == (False, "error")


TOSSED = "import time\nfrom mcp.servers import faulty\nif time.time_ns() >> 12 & 1: await faulty.echo(text='more')"


async def test_a_call_that_the_record_has_not_is_told_as_that(sandboxes, monkeypatch):
    monkeypatch.setattr(divergence, "QUIET_SECONDS", 0.5)
    async with sandboxes.open(faulty()) as bridge:
        # A coin, as a seed would be recorded: until it calls nothing, and then until it does.
        for number in range(100):
            session = f"s{number}"
            first = await bridge.run(TOSSED, session=session)
            if not first.calls:
                break
        assert (first.status, first.calls) == ("success", 0)
        with pytest.raises(BridgeError) as caught:
            for _ in range(100):
                put_away(bridge)
                await bridge.run("1", session=session)
        assert "isn't in the record: faulty.echo with {'text': 'more'}" in caught.value.message
        assert "None" not in caught.value.message


CALLS_LATER = "import time\nfrom mcp.servers import faulty\nif time.time() > {until}: await faulty.echo(text='more')"


@pytest.mark.parametrize("is_dry", [False, True])
async def test_it_is_told_too_where_the_time_for_rebuilding_ends_first_and_is_looked_for_once(
    sandboxes, monkeypatch, is_dry
):
    """More time would not help. A copy for a dry run runs again otherwise if a cell differs, but not for that."""
    again, ran = rebuilding.recorded_cell, []

    async def counted(lifecycle, runner, stored, seconds, *, is_dry, at_pace):
        ran.append(stored.id)
        return await again(lifecycle, runner, stored, seconds, is_dry=is_dry, at_pace=at_pace)

    monkeypatch.setattr(rebuilding, "recorded_cell", counted)
    monkeypatch.setattr(divergence, "QUIET_SECONDS", 1.0 if is_dry else 1000.0)
    sessions = sandboxes.settings.sessions.model_copy(update={"rebuild_seconds": 300.0 if is_dry else 15.0})
    async with sandboxes.open(faulty(), sessions=sessions) as bridge:
        await bridge.run("1", session="warm")
        until = time.time() + 5
        first = await bridge.run(CALLS_LATER.replace("{until}", repr(until)), session="s")
        assert (first.status, first.calls) == ("success", 0)
        await anyio.sleep(until + 0.1 - time.time())
        put_away(bridge)
        with pytest.raises(BridgeError) as caught:
            await bridge.run("1", session="s", dry_run=is_dry)
    assert "isn't in the record: faulty.echo with {'text': 'more'}" in caught.value.message
    assert (caught.value.code, caught.value.details["execution"]) == ("session_lost", first.execution)
    assert ran == [first.execution]


LONG = {
    "python": "import time\nprint('head ' * 200)\nprint(time.time_ns(), 'tail ' * 200)",
    "javascript": "console.log('head '.repeat(200))\nconsole.log(process.hrtime.bigint(), 'tail '.repeat(200))",
}


async def test_what_is_told_of_a_long_output_shows_where_it_is_another(bilingual):
    async with bilingual.open() as bridge:
        first = await bridge.run(LONG[bilingual.language], session="s")
        put_away(bridge.bridge)
        with pytest.raises(BridgeError) as caught:
            await bridge.run("1", session="s")
        error = caught.value
        assert (error.code, error.details["what"]) == ("session_lost", "stdout")
        number = first.stdout.decode().split("\n")[1].split()[0]
        was, now = error.details["recorded"], error.details["actual"]
        assert number in was
        assert number not in now
        assert {len(was), len(now)} == {502}
        assert f"was {was!r}, and is {now!r}" in error.message
        assert "\n" not in error.message


ADVISED = {
    "python": "y = 1\nx = 'abc'\nx.length",
    "javascript": "const y = 1\nprint(y)",
}


async def test_advice_is_not_compared_and_a_forgotten_call_is_no_other_failure(bilingual):
    async with bilingual.open() as bridge:
        first = await bridge.run(ADVISED[bilingual.language], session="s")
        assert "\n" in first.error["message"], "the advice"
        forgets = "z = 1\nruntime.search('x')\nraise ValueError('no')"
        if bilingual.language == "javascript":
            forgets = "const z = 1\nthrow new Error('no')"
        second = await bridge.run(forgets, session="s")
        assert (bilingual.language == "python") == ("never awaited" in second.error["message"]), second.error
        put_away(bridge.bridge)
        assert (await bridge.run("y + z", session="s")).value == "2"


async def test_an_error_with_both_advice_and_a_note_on_a_forgotten_call_is_the_same_again(sandboxes):
    async with sandboxes.open(faulty()) as bridge:
        code = "import asyncio\ntask = asyncio.create_task(mcp.servers.faulty.sleep(seconds=0.1))"
        first = await bridge.run(code, session="s")
        assert "no running event loop\n" in first.error["message"], "the advice"
        assert "never awaited" in first.error["message"]
        put_away(bridge)
        assert (await bridge.run("asyncio.__name__", session="s")).value == "'asyncio'"
        stored = await bridge.lifecycle.stored(first.execution, "local")
        assert (await bridge.replay_execution(stored)).difference is None


PLAIN = {
    "python": "class C: pass\ny = 1\nraise KeyError(C())",
    "javascript": "const y = 1\nnull.x",
}


async def test_an_error_without_advice_and_with_an_address_is_the_same_error(bilingual):
    async with bilingual.open() as bridge:
        await bridge.run(PLAIN[bilingual.language], session="s")
        broken = await bridge.run("raise (" if bilingual.language == "python" else "throw (", session="s")
        assert broken.error["code"] == "syntax_error"
        put_away(bridge.bridge)
        assert (await bridge.run("y", session="s")).value == "1"


NODE = "import subprocess\nsubprocess.run(['node', '--version'], check=True, capture_output=True)\n"
"""What is in the one of the two images and not in the other."""


async def test_a_cell_that_fails_otherwise_in_another_image_is_told_and_others_are_rebuilt_there(
    both, prepared, prepared_for_both
):
    async with both.open() as bridge:
        await bridge.run("class C: pass\nx = 1\nraise ValueError(C())", session="plain")
        first = await bridge.run(f"{NODE}y = 1\nraise ValueError('no')", session="needs")
        assert first.error["line"] == 4, first.error
        bridge._shared.live_sessions.end_all()
        bridge.sandboxes.prepared = prepared
        assert (await bridge.run("x", session="plain")).value == "1"
        with pytest.raises(BridgeError) as caught:
            await bridge.run("y", session="needs")
        error = caught.value
        assert (error.code, error.details["cell"], error.details["what"]) == ("session_lost", 1, "error")
        assert "ValueError: no (line 4)" in error.details["recorded"]
        assert "FileNotFoundError: " in error.details["actual"]
        assert "(line 2)" in error.details["actual"]
        assert "Once what ended it now is mended, it is rebuilt." in error.hint
        # The image is put back.
        bridge.sandboxes.prepared = prepared_for_both
        assert (await bridge.run("y", session="needs")).value == "1"
