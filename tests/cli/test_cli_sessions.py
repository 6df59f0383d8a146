"""`mcp-bridge session`: what the operator sees of sessions is what is recorded of them."""

import json

import anyio
import pytest
from typer.testing import CliRunner

from mcp_bridge.cli.app import app
from mcp_bridge.governance.governance import load_governance

pytestmark = pytest.mark.xdist_group("sessions")

ADDRESS = "anna@example.com"


async def test_a_sensitive_value_in_a_cell_is_shown_as_a_reference_and_each_cell_with_what_it_has_left(
    sandboxes, tmp_path
):
    config = tmp_path / "mcp-bridge.toml"
    config.write_text(f'state_dir = "{sandboxes.settings.state_dir}"\nclient_configs = false\n')
    governance = load_governance({"projection": {"patterns": ["email"]}}, None, tmp_path, tmp_path)
    async with sandboxes.open(governance=governance) as bridge:
        await bridge.run(f"x = {ADDRESS!r}", session="shown")
        await bridge.run("import os; os._exit(1)", session="shown")
        await bridge.run("while True: pass", session="shown", timeout=1)

    async def run(*words):
        done = await anyio.to_thread.run_sync(CliRunner().invoke, app, ["--config", str(config), "session", *words])
        assert done.exit_code == 0, done.output
        return done.stdout

    try:
        table, told = await run("show", "shown"), json.loads(await run("show", "shown", "--json"))
        assert ADDRESS not in table + json.dumps(told)
        assert told["cells"][0]["code"].startswith("x = 'vault://ref/")
        assert [cell["left"] for cell in told["cells"]] == ["names", "nothing", "lost"]
        heading, *rows = table.splitlines()
        assert heading.split()[:4] == ["cell", "id", "status", "left"]
        assert [row.split()[3] for row in rows] == ["names", "nothing", "lost"]
        assert {row["name"]: row["state"] for row in json.loads(await run("list", "--json"))["sessions"]} == {
            "shown": "lost"
        }
    finally:
        await run("end", "shown")


async def test_a_session_whose_name_is_erased_is_ended_by_the_cell_that_the_list_shows(sandboxes, tmp_path):
    config = tmp_path / "mcp-bridge.toml"
    config.write_text(f'state_dir = "{sandboxes.settings.state_dir}"\nclient_configs = false\n')
    async with sandboxes.open() as bridge:
        cell = await bridge.run("x = 1", session="forgotten")

    async def run(*words, code=0):
        done = await anyio.to_thread.run_sync(CliRunner().invoke, app, ["--config", str(config), *words])
        assert done.exit_code == code, done.output
        return done.output

    await run("erase", "--execution", cell.execution)
    (row,) = [row for row in (await run("session", "list")).splitlines() if row.startswith("(erased)")]
    shown = row.split()[-1]
    assert len(shown) < len(cell.execution)
    assert "unknown_session" in await run("session", "end", shown, "--principal", "another", code=2)
    await run("session", "end", shown)
    assert "(erased)" not in await run("session", "list")
    assert "unknown_session" in await run("session", "end", shown, code=2)
    assert "unknown_session" in await run("session", "show", "nobody", code=2)
