"""Sessions of earlier builds: they are rebuilt and replayed, though what a cell did is refused or made by now."""

import pytest
from servers.specs import faulty

import mcp_bridge.executions.scripts.lifecycle
import mcp_bridge.host.sandbox_run
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.sessions.cell import RENDERING_VERSION
from mcp_bridge.host.request_handlers import Requests
from mcp_bridge.wire.messages import ProgramSave

RENDERING = (mcp_bridge.executions.scripts.lifecycle, "RENDERING_VERSION")
"""Where the version is taken that is stored with an execution."""

pytestmark = pytest.mark.xdist_group("sessions")

KEEPS = """
class Own:
    def method(self): return 1
def plain(): return 1
plain.__name__ = "renamed"
kept = []
for one in (lambda: 1, Own().method, plain):
    try:
        kept.append(await runtime.save_tool(one))
    except TypeError as exc:
        kept.append(str(exc).partition(",")[0])
print(kept)
"""

LAMBDA = "f = lambda: 1\nawait runtime.save_tool(f)"


async def rebuilt(bridge, first):
    """What a session has kept, and its cell's replay, by a bridge that has lost its sandbox."""
    bridge._shared.live_sessions.end_all()
    again = await bridge.run("kept", session="s")
    assert (again.status, again.session["rebuilt"]) == ("success", 1), again.error
    replayed = await bridge.replay_execution(await bridge.lifecycle.stored(first.execution, "local"))
    assert replayed.difference is None
    return again.value


async def test_functions_that_an_earlier_build_has_kept_are_kept_again_when_their_cell_runs_again(
    sandboxes, monkeypatch
):
    remember = Requests._remember
    async with sandboxes.open(faulty()) as bridge:
        with monkeypatch.context() as before:
            before.setattr(
                Requests, "_remember", lambda own, asked, call: remember(own, asked._replace(refusal=None), call)
            )
            first = await bridge.run(KEEPS, session="s")
        assert first.value is None
        assert first.stdout.decode() == "['<lambda>', 'method', 'renamed']\n"
        assert await rebuilt(bridge, first) == "['<lambda>', 'method', 'renamed']"


async def test_functions_that_are_refused_are_refused_again_when_their_cell_runs_again(sandboxes):
    async with sandboxes.open(faulty()) as bridge:
        first = await bridge.run(KEEPS, session="s")
        assert first.stdout.decode().count("save_tool() takes a function that") == 2
        assert await rebuilt(bridge, first) + "\n" == first.stdout.decode()
        assert (await bridge.run(LAMBDA)).error["type"] == "TypeError"


async def test_what_has_no_source_fails_in_the_words_that_are_in_earlier_records(sandboxes):
    async with sandboxes.open(faulty()) as bridge:
        await bridge.run("kept = 1", session="s")
        first = await bridge.run("class Own: pass\nawait runtime.save_tool(Own)", session="s")
        assert first.error["type"] == "OSError"
        said, advice = first.error["message"].split("\n")
        assert said == "source code not available"
        assert advice.startswith("`save_tool` takes a function")
        bridge._shared.live_sessions.end_all()
        assert (await bridge.run("kept", session="s")).session["rebuilt"] == 2


SAVES = {
    "python": "from mcp import programs, MCPError\ntry: kept = await programs.save('p', TEXT)\n"
    "except MCPError as exc: kept = f'{exc.code}: {exc.message}'\nprint(kept)",
    "javascript": "const { programs } = await import('mcp');\nlet kept;\ntry { kept = await programs.save('p', TEXT) }\n"
    "catch (error) { kept = `${error.code}: ${error.message}` }\nconsole.log(kept)",
}


async def test_a_program_as_a_text_is_refused_again_where_it_was_and_saved_again_where_it_was(bilingual, monkeypatch):
    answer = Requests._answer

    async def refuse(own, request, context):
        if isinstance(request, ProgramSave):
            raise BridgeError("bad_params", "program.save: 'program' is no dict[str, typing.Any] but str")
        return await answer(own, request, context)

    text = """'{"name": "p", "steps": [{"id": "a", "type": "condition", "condition": "1 == 1", "then": "end"}]}'"""
    code = SAVES[bilingual.language].replace("TEXT", text)
    async with bilingual.open() as bridge:
        with monkeypatch.context() as before:
            before.setattr(Requests, "_answer", refuse)
            refused = await bridge.run(code, session="refused")
        saved = await bridge.run(code, session="saved")
        assert "bad_params" in refused.stdout.decode()
        assert "bad_params" not in saved.stdout.decode()
        bridge.bridge._shared.live_sessions.end_all()
        for session, first in (("refused", refused), ("saved", saved)):
            again = await bridge.run("kept", session=session)
            assert again.session["rebuilt"] == 1
            assert first.stdout.decode().strip() in again.value


async def test_a_key_that_no_request_may_have_is_refused_as_in_earlier_builds(sandboxes):
    code = "from mcp import MCPError\ntry: await runtime.save_memory('k' * LENGTH, 1)\n"
    code += "except MCPError as exc: kept = f'{exc.code}: {exc.message}'"
    async with sandboxes.open(faulty()) as bridge:
        for length, told in (
            (5000, "bad_request: memory.save: 'key' has 5000 characters; the limit is 4096."),
            (2000, "bad_request: 'key' has 2000 characters; the limit is 1000."),
        ):
            record = await bridge.run(code.replace("LENGTH", str(length)) + "\nkept")
            assert told in record.value


FAILING = {
    "line": {
        "python": "import asyncio\nimport mcp.servers.faulty as faulty\nawait asyncio.gather(\n    faulty.echo(txt='no'))",
        "javascript": "import { faulty } from 'mcp/servers';\nconst calls = [1, 2].map(() =>\n"
        "  faulty.echo({ txt: 'no' }));\nawait Promise.all(calls);",
    },
    "text": {
        "python": "kept = 1\nawait runtime.search(5)",
        "javascript": "let kept = 1;\nawait runtime.search(5)",
    },
    "own": {
        "python": "kept = 1\nraise ValueError('as it is')",
        "javascript": "let kept = 1;\nthrow new RangeError('as it is')",
    },
}
EARLIER = {
    "line": {"line": 1},
    "text": {"message": "catalog.search: 'query' is no str but int", "line": 1},
    "own": {"message": "as it was", "line": 1},
}
"""What an earlier version has recorded of the error."""


@pytest.mark.parametrize("what", FAILING)
@pytest.mark.parametrize("is_earlier", [True, False], ids=["earlier", "same"])
async def test_an_earlier_version_may_have_named_another_line_and_worded_the_bridges_own_errors_otherwise(
    bilingual, monkeypatch, what, is_earlier
):
    told = mcp_bridge.host.sandbox_run._script_error
    async with bilingual.open(faulty()) as runs:
        with monkeypatch.context() as before:
            before.setattr(mcp_bridge.host.sandbox_run, "_script_error", lambda claimed: told(claimed) | EARLIER[what])
            if is_earlier:
                before.setattr(*RENDERING, 1)
            first = [await runs.run(FAILING[what], **place) for place in ({"session": "s"}, {})]
        is_same = is_earlier and what != "own"
        for record in first:
            assert record.error["line"] == 1
            replayed = await runs.bridge.replay_execution(await runs.bridge.lifecycle.stored(record.execution, "local"))
            assert (replayed.difference is None) == is_same
        runs.bridge._shared.live_sessions.end_all()
        if is_same:
            again = await runs.run({"python": "1", "javascript": "1"}, session="s")
            assert (again.status, again.session["rebuilt"]) == ("success", 1)
            assert any("the error of the cell 1, of another version, was" in notice for notice in again.notices)
        else:
            with pytest.raises(BridgeError) as refused:
                await runs.run({"python": "1", "javascript": "1"}, session="s")
            assert (refused.value.code, refused.value.details["what"]) == ("session_lost", "error")


async def test_notes_of_the_guest_that_another_version_words_otherwise_are_no_difference(sandboxes, monkeypatch):
    code = "import sys, time\nfor line in LINES: print(line.format(time.time_ns()), file=sys.stderr)"
    notes = ["[not handed in: a{}: it is a link]", "save_tool: 'f' is kept, but uses {} of this script"]
    async with sandboxes.open(faulty()) as bridge:
        for lines, version, field in (
            (notes, 0, None),
            (notes, RENDERING_VERSION, "stderr"),
            ([*notes, "own {}"], 0, "stderr"),
            (["own, [not kept: {}]"], 0, "stderr"),
        ):
            with monkeypatch.context() as before:
                before.setattr(*RENDERING, version)
                record = await bridge.run(code.replace("LINES", repr(lines)))
            assert record.status == "success", record.error
            replayed = await bridge.replay_execution(await bridge.lifecycle.stored(record.execution, "local"))
            assert (replayed.difference and replayed.difference.what) == field, (lines, version)
