"""What a script has looked up is in its record: sessions are rebuilt, and runs go on, whatever is there by then."""

import pytest
from execution_fixtures import printed
from servers.specs import faulty

from mcp_bridge.executions.reruns import lookups

pytestmark = pytest.mark.xdist_group("sessions")

ALL = {
    "python": """
from mcp import runtime
print(runtime.discovered_servers(), runtime.discovered_servers(detailed=True))
print(await runtime.search('echo'))
print(await runtime.list_tools('faulty'))
print(await runtime.list_tools())
print(await runtime.list_loaded_server_metadata())
print(await runtime.describe('faulty'))
print(await runtime.describe('faulty.echo', 'full'), await runtime.describe('faulty.echo', 'schema'))
try:
    await runtime.describe('faulty.ech')
except Exception as exc:
    print(exc)
y = 1
""",
    "javascript": """
import { runtime } from "mcp";
console.log(runtime.discovered_servers(), runtime.discovered_servers(true))
console.log(await runtime.search('echo'))
console.log(await runtime.list_tools('faulty'))
console.log(await runtime.list_tools())
console.log(await runtime.describe('faulty'))
console.log(await runtime.describe('faulty.echo'), await runtime.describe('faulty.echo', 'schema'))
try {
  await runtime.describe('faulty.ech')
} catch (error) {
  console.log(error.message)
}
const y = 1
""",
}


async def test_a_session_is_rebuilt_after_its_servers_have_changed_and_none_is_asked(bilingual):
    """Also not those that have failed: what they were found to be is in what was printed."""
    async with bilingual.open(faulty()) as bridge:
        told = printed(await bridge.run(ALL[bilingual.language], session="s"))
    assert "The tool echo" in told
    now = faulty("twins", name="first"), faulty("twins"), faulty(name="other")
    async with bilingual.open(*now) as bridge:
        record = await bridge.run("y", session="s")
        assert (record.value, record.session["rebuilt"]) == ("1", 1)
        assert {status.tool_count for status in bridge.bridge.catalog.servers()} == {None}
        # The next cell has those of now.
        listed = {
            "python": "list(runtime.discovered_servers())",
            "javascript": 'import { runtime as now } from "mcp"\nnow.discovered_servers()',
        }[bilingual.language]
        assert "other" in (await bridge.run(listed, session="s")).value
        replayed = await bridge.bridge.replay_execution(await bridge.bridge.lifecycle.stored(record.execution, "local"))
        assert replayed.difference is None


async def test_a_cell_that_has_read_an_output_is_rebuilt_without_it(bilingual):
    async with bilingual.open() as bridge:
        first = await bridge.run("print('x')" if bilingual.language == "python" else "console.log('x')")
        files = bridge.bridge.files
        files.save_output(first.execution, "stdout.txt", b"what was printed")
        code = {
            "python": "from mcp import runtime\ny = await runtime.output('ID')\nprint(y)",
            "javascript": 'import { runtime } from "mcp";\nconst y = await runtime.output("ID")\nconsole.log(y)',
        }[bilingual.language].replace("ID", first.execution)
        assert printed(await bridge.run(code, session="s")) == "what was printed\n"
        files.remove(first.execution)
        bridge.bridge._shared.live_sessions.end_all()
        assert "what was printed" in (await bridge.run("y", session="s")).value


async def test_a_cell_that_found_no_room_for_an_artifact_finds_none_again(sandboxes, monkeypatch):
    code = "open('a', 'w').write('x')\ntry:\n    artifact('a')\nexcept Exception as exc:\n    print(exc.code)\ny = 1"
    async with sandboxes.open() as bridge:
        with monkeypatch.context() as patched:
            patched.setattr(bridge.files, "take", lambda size: False)
            assert printed(await bridge.run(code, session="s")) == "files_full\n"
        bridge._shared.live_sessions.end_all()
        assert (await bridge.run("y", session="s")).value == "1"


async def test_a_run_that_goes_on_is_told_what_it_was_told(bilingual):
    code = {
        "python": "from mcp import runtime\nprint(runtime.discovered_servers(), await runtime.search('echo'))\n"
        "print(await runtime.wait_event('go'))",
        "javascript": 'import { runtime } from "mcp";\n'
        "console.log(runtime.discovered_servers(), await runtime.search('echo'));\n"
        "console.log(await runtime.wait_event('go'));",
    }[bilingual.language]
    async with bilingual.open(faulty()) as bridge:
        first = await bridge.run(code, key="k")
        assert first.status == "suspended"
        told = first.stdout
        assert b"echo" in told
    async with bilingual.open(faulty("twins", name="other")) as bridge:
        await bridge.bridge.send_event(first.execution, "go", 7, "OPERATOR", and_resume=False)
        record = await bridge.run(code, key="k")
        assert printed(record) == f"{told.decode()}7\n"


async def test_what_is_looked_up_beyond_the_limit_is_not_recorded_and_looked_up_again(sandboxes, monkeypatch):
    monkeypatch.setattr(lookups, "MAX_KEPT_BYTES", 3000)
    async with sandboxes.open(faulty()) as bridge:
        code = "from mcp import runtime\nfor _ in range(20): await runtime.describe('faulty.echo')\ny = 1"
        record = await bridge.run(code, session="s")
        recorded = await bridge.lifecycle.recorder.read(record.execution)
        assert 2 < len(recorded) < 8
        bridge._shared.live_sessions.end_all()
        assert (await bridge.run("y", session="s")).value == "1"
