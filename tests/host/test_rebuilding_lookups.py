"""What a script has looked up is in its record: sessions are rebuilt, and runs go on, whatever is there by then."""

import shutil
import sys

import pytest
from execution_fixtures import printed
from servers.specs import FAULTY, faulty

from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.errors import BridgeError
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


def startable(path):
    """The spec of a server that starts only while there is a file."""
    args = ("-c", 'test -e "$0" && exec "$@"', str(path), sys.executable, str(FAULTY))
    return ServerSpec(name="faulty", command="/bin/sh", args=args)


AWAY = {
    "caught": {
        "python": "try: await mcp.servers.faulty.echo(text='a')\nexcept Exception as exc: print(exc.code)",
        "javascript": "try { await mcp.servers.faulty.echo({text: 'a'}) } catch (error) { console.log(error.code) }",
    },
    "uncaught": {
        "python": "await mcp.servers.faulty.echo(text='a')",
        "javascript": "await mcp.servers.faulty.echo({text: 'a'})",
    },
}


@pytest.mark.parametrize("case", AWAY)
async def test_a_server_that_did_not_start_does_not_start_again_for_the_cell_that_found_it_so(
    bilingual, tmp_path, case
):
    spec = startable(tmp_path / "up")
    async with bilingual.open(spec) as bridge:
        first = await bridge.run(AWAY[case][bilingual.language], session="s")
        assert "server_start_failed" in first.stdout.decode() or "did not start" in first.error["message"]
    (tmp_path / "up").touch()
    async with bilingual.open(spec) as bridge:
        assert (await bridge.run("1", session="s")).value == "1"
        replayed = await bridge.bridge.replay_execution(await bridge.bridge.lifecycle.stored(first.execution, "local"))
        assert replayed.difference is None
        call = {"python": "await mcp.servers.faulty.echo(text='b')"}
        call["javascript"] = "await mcp.servers.faulty.echo({text: 'b'})"
        assert (await bridge.run(call[bilingual.language], session="s")).value == "'b'"


@pytest.mark.parametrize("servers", [None, ["faulty"]])
async def test_a_session_whose_server_is_not_there_is_rebuilt_once_it_is(sandboxes, tmp_path, servers):
    (tmp_path / "up").touch()
    async with sandboxes.open(startable(tmp_path / "up")) as bridge:
        printed(await bridge.run("x = await mcp.servers.faulty.echo(text='a')", session="s", servers=servers))
    (tmp_path / "up").unlink()
    shutil.rmtree(sandboxes.settings.state_dir / "catalog")
    for specs, why in (
        ([startable(tmp_path / "up")], "which can't list its tools: server 'faulty' did not start"),
        ([], "'faulty', which isn't configured"),
    ):
        async with sandboxes.open(*specs) as bridge:
            with pytest.raises(BridgeError) as caught:
                await bridge.run("x", session="s")
            assert caught.value.code == "session_not_rebuilt"
            assert why in caught.value.message
            assert [row["state"] for row in await bridge.listed_sessions()] == ["idle"]
    (tmp_path / "up").touch()
    async with sandboxes.open(startable(tmp_path / "up")) as bridge:
        assert (await bridge.run("x", session="s")).value == "'a'"


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


async def test_a_tool_is_there_again_after_a_probe_for_a_name_that_is_spelled_otherwise(sandboxes):
    """A name that no tool has says nothing about the tools: Python compares names exactly."""
    probe = "from mcp.servers import faulty\nread = getattr(faulty, 'Echo', None)\n"
    waits = "from mcp import runtime\nprint(read, await runtime.wait_event('go'))\n"
    code = f"{probe}{waits}print(await faulty.echo(text='a'))"
    async with sandboxes.open(faulty()) as bridge:
        await bridge.run(f"{probe}print(sorted(dir(faulty)))", session="s")
        first = await bridge.run(code, key="k")
        assert first.status == "suspended"
        await bridge.send_event(first.execution, "go", 7, "OPERATOR", and_resume=False)
        assert printed(await bridge.run(code, key="k")) == "None 7\na\n"
    async with sandboxes.open(faulty()) as bridge:
        assert (await bridge.run("read", session="s")).session["rebuilt"] == 1
