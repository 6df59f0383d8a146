"""Fifteen real servers behind the bridge, from the entries that Claude Code takes, with the environment that a person has."""

import json
import shutil
import subprocess

import anyio
import pytest
from bridge_fixtures import DEADLINE_SECONDS
from server_fixtures import CACHE, cached

from mcp_bridge.governance.tool_names import servers_named

pytestmark = pytest.mark.timeout(300)

EXPORTED = {
    "BRAVE_API_KEY": "exported-brave-key",
    "EVERART_API_KEY": "exported-everart-key",
    "GITLAB_PERSONAL_ACCESS_TOKEN": "exported-gitlab-token",
    "GOOGLE_MAPS_API_KEY": "exported-maps-key",
    "PERPLEXITY_API_KEY": "exported-perplexity-key",
    "SLACK_BOT_TOKEN": "exported-slack-token",
    "SLACK_TEAM_ID": "T0123456",
    "TAVILY_API_KEY": "exported-tavily-key",
    "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
    "NO_PROXY": "localhost,127.0.0.1",
}
"""In the shell that the client is started from, and in no entry."""

NEEDS_WHAT_IS_EXPORTED = {"brave-search", "everart", "gitlab", "google-maps", "perplexity", "slack"}
"""Those that end at once without their variables."""

MANY = {
    "brave-search": "@modelcontextprotocol/server-brave-search",
    "everart": "@modelcontextprotocol/server-everart",
    "github": "@modelcontextprotocol/server-github",
    "gitlab": "@modelcontextprotocol/server-gitlab",
    "google-maps": "@modelcontextprotocol/server-google-maps",
    "perplexity": "@perplexity-ai/mcp-server",
    "postgres": "@modelcontextprotocol/server-postgres",
    "sequential-thinking": "@modelcontextprotocol/server-sequential-thinking",
    "slack": "@modelcontextprotocol/server-slack",
    "tavily": "tavily-mcp",
}


def script_of(place, package):
    """The script that a package's command is."""
    folder = cached(f"{place}/node_modules/{package}")
    command = json.loads((folder / "package.json").read_text())["bin"]
    return str(folder / (command if isinstance(command, str) else next(iter(command.values()))))


@pytest.fixture
def person(configure):
    """A bridge for somebody with fifteen servers in Claude Code."""
    setup = configure(client_configs=True)
    node = shutil.which("node") or pytest.fail("node is not on the PATH", pytrace=False)
    entries = {name: {"command": node, "args": [script_of("many", package)]} for name, package in MANY.items()}
    entries["postgres"]["args"].append("postgresql://localhost/nothing")
    official = "@modelcontextprotocol/server-"
    for name, args in (("everything", ["stdio"]), ("filesystem", [str(setup.home)]), ("memory", [])):
        entries[name] = {"type": "stdio", "command": node, "args": [script_of("npm", official + name), *args]}
    entries["memory"]["env"] = {"MEMORY_FILE_PATH": "${HOME}/memory.jsonl"}
    for name in ("git", "time"):
        entries[name] = {"command": str(cached(f"mcp-server-{name}/bin/mcp-server-{name}"))}
    (setup.home / ".claude.json").write_text(json.dumps({"mcpServers": entries}))
    setup.env |= EXPORTED
    return setup, entries


def started(setup, state, **env):
    """The rows of a list of them all, started, without what was listed before."""
    ended = setup.run(
        "servers", "list", "--start", "--json", env={"MCP_BRIDGE_STATE_DIR": str(state), **env}, timeout=250
    )
    text = ended.stdout.decode() + ended.stderr.decode()
    assert not [value for value in EXPORTED.values() if value.startswith("exported") and value in text]
    return {row["name"]: row for row in json.loads(ended.stdout)["servers"]}


def test_every_server_starts_as_in_the_client_and_not_with_less(person, tmp_path):
    setup, entries = person
    assert len(entries) >= 15
    rows = started(setup, tmp_path / "state")
    assert {name: row["state"] for name, row in rows.items()} == dict.fromkeys(entries, "ready"), rows
    assert all(row["tools"] for row in rows.values())
    rows = started(setup, tmp_path / "other", MCP_BRIDGE_ENV_PASS="minimal")  # noqa: S106
    assert {name for name, row in rows.items() if row["state"] == "failed"} == NEEDS_WHAT_IS_EXPORTED


def test_claude_code_takes_the_same_entries(person):
    setup, entries = person
    ended = subprocess.run(
        [shutil.which("node"), str(CACHE / "clients/node_modules/@anthropic-ai/claude-code/cli-wrapper.cjs"), "mcp", "list"],
        capture_output=True, text=True, env=setup.env, cwd=setup.home, stdin=subprocess.DEVNULL, timeout=200, check=True,
    )  # fmt: skip
    connected = {line.partition(":")[0] for line in ended.stdout.splitlines() if line.endswith("Connected")}
    assert connected == set(entries), ended.stdout


USE_ALL = """
import asyncio
from mcp.servers import (
    {aliases},  # the lot
)
servers = [{aliases}]
for _ in range(600):
    ready = sorted(row["name"] for row in runtime.list_loaded_server_metadata() if row["status"] == "ready")
    if len(ready) == len(servers):
        break
    await asyncio.sleep(0.1)
print(ready)  # none has been asked for anything
print(sum(len(dir(server)) > 0 for server in servers))
print((await time.get_current_time("Asia/Tokyo"))["timezone"])
await everything.trigger_long_running_operation(duration=2, steps=4)
"""


async def test_a_script_that_uses_all_of_them_finds_them_started_side_by_side(person):
    setup, entries = person
    heard = []

    async def note(_progress, _total, message):
        heard.append(message)

    aliases = ", ".join(name.replace("-", "_") for name in entries)
    with anyio.fail_after(3 * DEADLINE_SECONDS):
        async with setup.client() as client:
            code = USE_ALL.format(aliases=aliases)
            result = await client.call_tool("run_python", {"code": code, "timeout": 120}, progress_callback=note)
    [text] = [block.text for block in result.content]
    lines = text.splitlines()
    assert not result.is_error, text
    assert lines[0] == str(sorted(entries))
    assert lines[1] == str(len(entries))
    assert lines[2] == "Asia/Tokyo"
    assert any("everything.trigger-long-running-operation: 3/4" in str(message) for message in heard), heard


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from mcp.servers import git, time as t", ["git", "time"]),
        ("from mcp.servers import (  # two\n    git,  # one\n    sequential_thinking,\n)", ["git", "sequential-thinking"]),
        ("import mcp.servers.git\nfrom mcp.sync.servers import time; print(1)", ["git", "time"]),
        ("from mcp.servers.git import git_log", ["git"]),
        ("await mcp_time.now(); mcp_servers['sequential-thinking']", ["time", "sequential-thinking"]),
        ("import time\nimport git\nprint('git.git_log', runtime)", []),
        ("from mcp.servers import no_such, *", []),
        ("from mcp.servers import (" + "git," * 100_000, ["git"]),
        ("not python {{{ from mcp.servers import\ngit", []),
    ],
)  # fmt: skip
def test_the_servers_that_a_script_names_are_told_by_a_look_at_it(code, found):
    allowed = {name: name.replace("-", "_") for name in ("git", "time", "sequential-thinking")}
    assert servers_named(code, allowed) == found


def test_what_the_servers_lack_is_in_their_errors(person):
    setup, _ = person
    for name in EXPORTED:
        del setup.env[name]
    code = """
from mcp.servers import slack
try:
    await slack.slack_list_channels()
except Exception as error:
    print(error)
"""
    text = setup.run("run", "-c", code).stdout.decode()
    assert "server 'slack' did not start: it ended with exit code 1 before it was ready. It printed:" in text
    assert "SLACK_BOT_TOKEN" in text


def test_whoever_looks_for_a_server_of_a_broken_file_is_told_once_that_it_is_broken(configure):
    setup = configure(client_configs=True)
    (setup.home / ".mcp.json").write_text('{"servers": {"git": {"command": "uvx"}}}')
    key = '"servers" is VS Code\'s key'
    for code in ("from mcp.servers import git", "await runtime.describe('git')"):
        record = json.loads(setup.run("run", "--json", "-c", code).stdout)
        assert record["status"] == "error"
        [notice] = [notice for notice in record.get("notices", []) if "Servers of .mcp.json are missing" in notice]
        assert key in notice
    assert "notices" not in json.loads(setup.run("run", "--json", "-c", "nothing_of_that_name").stdout)
    refused = setup.run("run", "--server", "git", "-c", "1")
    assert refused.stderr.decode().count(key) == 2, "as the file is read, and where the server is missing"
