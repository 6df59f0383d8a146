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
            text = (EXAMPLES / example).read_text()
            place.write_text(text.replace("https://bridge.example.com/mcp", bridge.url))
            other = setup.home / f"{client}.toml"
            settings = setup.config.read_text().replace("client_configs = false", f'client_configs = ["{client}"]')
            other.write_text(settings)
            command = ("--config", str(other), "run", "-c", CODE)

            def run(command=command):
                return setup.run(*command, config=False, env={"BRIDGE_TOKEN": token, "XDG_CONFIG_HOME": ""})

            done = await on_blocking_thread(run)
            assert done.stdout.decode().strip() == "42", (client, done.stdout, done.stderr)
            place.unlink()
