"""`examples/clients`: an entry for a bridge that the client starts is what `install` writes, and one over HTTP is called."""

import json
import tomllib
from pathlib import Path

import pytest
from bridge_fixtures import COMMAND
from http_bridge import serving

from mcp_bridge.offload import on_blocking_thread

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/clients"
FILES = {
    "claude-code": ("claude-code.json", ".mcp.json", ".claude.json"),
    "cursor": ("cursor.json", ".cursor/mcp.json", ".cursor/mcp.json"),
    "vscode": ("vscode.json", ".vscode/mcp.json", ".config/Code/User/mcp.json"),
    "codex": ("codex.toml", ".codex/config.toml", ".codex/config.toml"),
}
"""Of each client: its example, a folder's file, and the user's."""

CODE = "from mcp.servers import team_bridge\nprint((await team_bridge.run_python(code='print(6 * 7)'))['stdout'])"


def entries(path):
    text = path.read_text()
    read = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    (table,) = read.values()
    return table


@pytest.mark.parametrize("client", FILES)
def test_an_example_has_the_entry_that_install_writes(client, setup):
    example, folders, _ = FILES[client]
    folder = setup.home / "project"
    folder.mkdir()
    done = setup.run("install", client, "--project", "--yes", config=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    written = entries(folder / folders)["bridge"]
    assert written.pop("command") == COMMAND
    expected = entries(EXAMPLES / example)["bridge"]
    assert expected.pop("command") == Path(COMMAND).name
    assert written == expected


@pytest.mark.timeout(240)
async def test_an_examples_entry_over_http_reaches_a_bridge_with_a_token(configure):
    setup = configure()
    with setup.config.open("a") as file:
        file.write("\n[principals.anna]\n")
    token = setup.run("principal", "add", "anna").stdout.decode().strip()
    async with serving(setup) as bridge:
        for client, (example, _, users) in FILES.items():
            place = setup.home / users
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text((EXAMPLES / example).read_text())
            other = setup.home / f"{client}.toml"
            other.write_text(setup.config.read_text())

            def run(*command, config=("--config", str(other))):
                variables = {"BRIDGE_TOKEN": token, "XDG_CONFIG_HOME": ""}
                return setup.run(*config, *command, config=False, env=variables)

            # Another bridge is a server of this one only where the operator names it.
            copied = await on_blocking_thread(run, "servers", "import", client, "team-bridge", "--yes")
            assert copied.returncode == 0, (client, copied.stdout, copied.stderr)
            assert "https://bridge.example.com/mcp" in other.read_text()
            other.write_text(other.read_text().replace("https://bridge.example.com/mcp", bridge.url))
            done = await on_blocking_thread(run, "run", "-c", CODE)
            assert done.stdout.decode().strip() == "42", (client, done.stdout, done.stderr)
            place.unlink()
