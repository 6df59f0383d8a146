"""Sessions, forks, files, packages, dry runs and waits as an MCP client asks for them, of a bridge that is a process, over each transport."""

import json
import re

import anyio
import anyio.to_thread
import pytest
from bridge_fixtures import OVER_BOTH
from package_index import wheel
from sandbox_fixtures import knows_the_sandbox
from servers.specs import faulty

pytestmark = [OVER_BOTH, pytest.mark.xdist_group("images"), pytest.mark.timeout(300)]


@pytest.fixture
def bridge_state_dir(tmp_path, both):
    """An image with both languages."""
    return knows_the_sandbox(tmp_path / "bridge-state", both.settings.state_dir)


@pytest.fixture
def setup(configure, tmp_path, index):
    index.add(wheel("shop"))
    for name in ("notes", "secrets"):
        (tmp_path / name).write_text(f"the {name}")
    setup = configure(
        languages=["python", "javascript"],
        install={"allow": ["shop"]},
        files={name: str(tmp_path / name) for name in ("notes", "secrets")},
        sessions={"max_sessions": 4},
    )
    setup.env["UV_DEFAULT_INDEX"] = f"{index.url}/simple"
    return setup


def text(result):
    return "\n".join(getattr(block, "text", "") for block in result.content)


class Tool:
    """One tool of a connected client."""

    def __init__(self, client, name):
        self._client, self._name = client, name

    async def gives(self, code, **arguments):
        """What a call that succeeds answers."""
        result = await self._client.call_tool(self._name, {"code": code, **arguments})
        assert not result.is_error, text(result)
        return text(result)

    async def refused(self, code, **arguments):
        """The text of a call that fails."""
        result = await self._client.call_tool(self._name, {"code": code, **arguments})
        assert result.is_error, text(result)
        return text(result)


async def test_a_client_has_sessions_forks_files_and_packages(setup):
    async with setup.client() as client:
        python = Tool(client, "run_python")
        first = "import shop, random\nseen = [shop.version, random.random()]\nseen[0]"
        # Of several cells, only the first has to say which packages there are.
        assert await python.gives(first, session="s", packages=["shop==1.0"]) == "'1.0'"
        code = "seen.append(open('/workspace/in/notes').read()); seen[0], seen[2]"
        assert await python.gives(code, session="s", files=["notes"]) == "('1.0', 'the notes')"
        not_given = "open('/workspace/in/secrets')"
        assert "secrets" in await python.refused(not_given, session="s", files=["notes"])
        drawn = await python.gives("seen.append('later'); seen[1]", session="s")
        assert await python.gives("len(seen)", session="s") == "4"
        assert "session_packages" in await python.refused("1", session="s", packages=["shop==2.0"])
        assert "package_refused" in await python.refused("1", session="t", packages=["other"])
        assert "unknown_input" in await python.refused("1", session="s", files=["nobody"])

        # A fork goes on from an earlier cell, in another sandbox, with what that one had.
        forked = await python.gives("seen", session="t", fork="s@2")
        assert forked.splitlines()[0] == f"['1.0', {drawn}, 'the notes']"
        assert "2 cells were run again" in forked
        assert await python.gives("seen.append('t'); shop.version, len(seen)", session="t") == "('1.0', 4)"
        assert await python.gives("seen[-1]", session="s") == "'later'"
        assert "session_exists" in await python.refused("1", session="t", fork="s@1")
        assert "unknown_cell" in await python.refused("1", session="u", fork="s@99")
        assert "unknown_session" in await python.refused("1", session="u", fork="nobody")

        listed = json.loads((await client.read_resource("sessions://all")).contents[0].text)
        assert sorted(row["name"] for row in listed["sessions"]) == ["s", "t"]

    # The next process has the same sessions, and rebuilds them, with their packages and inputs.
    async with setup.client() as client:
        python = Tool(client, "run_python")
        again = await python.gives("seen, shop.version", session="s")
        assert again.splitlines()[0] == f"(['1.0', {drawn}, 'the notes', 'later'], '1.0')"
        assert await python.gives("await runtime.end_session('t')") == "True"


async def test_so_has_one_of_javascript(setup):
    async with setup.client() as client:
        javascript = Tool(client, "run_javascript")
        assert await javascript.gives("const seen = [Math.random()]; seen.length", session="j") == "1"
        read = "const fs = await import('node:fs'); seen.push(fs.readFileSync(await runtime.input('notes'), 'utf8')); seen[1]"
        assert await javascript.gives(read, session="j", files=["notes"]) == "'the notes'"
        drawn = await javascript.gives("seen.push('later'); seen[0]", session="j")
        forked = await javascript.gives("console.log(JSON.stringify(seen))", session="k", fork="j@2")
        assert json.loads(forked.splitlines()[0]) == [float(drawn), "the notes"]
        assert "session_language" in await Tool(client, "run_python").refused("1", session="l", fork="j@1")
    async with setup.client() as client:
        again = await Tool(client, "run_javascript").gives("seen.length", session="j")
        assert again.splitlines()[0] == "3"


WAITS = {
    "run_python": "print('began')\nprint(await runtime.wait_event('go'))",
    "run_javascript": "console.log('began'); console.log(await runtime.wait_event('go'))",
}
CALLS = {
    "run_python": "from mcp.servers import faulty\nprint(await faulty.echo(text='made'))",
    "run_javascript": 'import { faulty } from "mcp/servers"; console.log(await faulty.echo({ text: "made" }))',
}


@pytest.mark.parametrize("name", ["run_python", "run_javascript"])
async def test_a_client_has_dry_runs_and_waits(configure, name):
    setup = configure(faulty(), languages=["python", "javascript"])
    async with setup.client() as client:
        tool = Tool(client, name)
        dry = await tool.gives(CALLS[name], dry_run=True)
        assert '1. faulty.echo {"text": "made"}' in dry
        assert "made" in (await tool.gives(CALLS[name])).splitlines()[0]
        dry = await tool.gives(CALLS[name], session="d", dry_run=True)
        assert '1. faulty.echo {"text": "made"}' in dry
        assert "the same code without dry_run, with the same session, makes them" in dry
        assert "made" in (await tool.gives(CALLS[name], session="d")).splitlines()[0]

        told = await tool.refused(WAITS[name], session="w")
        execution = re.search(r"--execution ([0-9a-f]{16})", told)[1]
        assert "session_waiting" in await tool.refused("1", session="w")
        send = ("event", "send", "go", "--execution", execution, "--payload", '"came"')
        sent = await anyio.to_thread.run_sync(lambda: setup.run(*send))
        assert sent.returncode == 0, sent.stderr
        # The bridge may go on with it by itself first: the result is the same.
        with anyio.fail_after(60):
            while "came" not in (said := text(await client.call_tool(name, {"code": WAITS[name], "session": "w"}))):
                assert "still_waiting" in said or "session" in said, said
                await anyio.sleep(0.2)
        assert said.splitlines()[:2] == ["began", "came"]
