"""`mcp-bridge install` and `mcp-bridge servers add|remove|import`: files that people and other programs write, too."""

import json
import os
import shlex
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from bridge_fixtures import COMMAND, DEADLINE_SECONDS
from clients.conversation import program
from typer.testing import CliRunner

from mcp_bridge.cli import terminal_prompts
from mcp_bridge.cli.app import app
from mcp_bridge.cli.commands import install
from mcp_bridge.cli.configuration_edits import file_edits
from mcp_bridge.downstream.configuration import jsonc
from mcp_bridge.downstream.configuration.client_file_reading import loads
from mcp_bridge.downstream.configuration.discovery import discover, starts_the_bridge
from mcp_bridge.downstream.configuration.known_clients import CLIENTS, PROGRAMS
from mcp_bridge.file_locks import try_lock
from mcp_bridge.ledger.storage.live_bridges import Presence

pytest_plugins = ["bridge_fixtures"]
pytestmark = pytest.mark.timeout(300)

BUSY = {
    "json": '{"theme":"dark",\n      "mcpServers": {"git": {"command":   "uvx", "args": ["mcp-server-git"],\n'
    '   "env": {"TOKEN": "s3cret-of-mine"}}}, "x": [1,2 , 3]}\n',
    "commented json": '{\n\t// mine\n\t"mcpServers": {\n\t\t"git": {"command": "uvx", "args": ["mcp-server-git"], '
    '"env": {"TOKEN": "s3cret-of-mine"}} // why\n\t}\n}\n',
    "toml": '# mine\nmodel = "x"   # why\n\n[mcp_servers.git]\ncommand = "uvx"  # the runner\n'
    'args = ["mcp-server-git"]\nenv = { TOKEN = "s3cret-of-mine" }\n\n[profiles.a]\nmodel = "y"\n',
}
"""Files as people have them, with a server and a secret."""


def busy(client):
    syntax = CLIENTS[client].syntax
    if client == "opencode":
        entry = '{"type": "local", "command": ["uvx", "mcp-server-git"], "environment": {"TOKEN": "s3cret-of-mine"},}'
        return f'{{\n  // mine\n  "mcp": {{\n    "git": {entry}, // why\n  }},\n}}\n'
    text = BUSY["commented json" if syntax == "jsonc" else syntax]
    return text.replace("mcpServers", CLIENTS[client].servers[0])


@pytest.fixture
def user(tmp_path, monkeypatch):
    return User(tmp_path, monkeypatch)


class User:
    """Somebody with a home directory of their own, in a folder."""

    def __init__(self, tmp_path, monkeypatch):
        self.home, self.folder = tmp_path / "home", tmp_path / "folder"
        for path in (self.home, self.folder):
            path.mkdir()
        self.config = self.home / ".config/mcp-bridge/config.toml"
        self.env = {
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "XDG_STATE_HOME": str(self.home / ".state"),
            "PATH": f"{Path(COMMAND).parent}{os.pathsep}{os.environ['PATH']}",
            "CODEX_HOME": "",
            "CLAUDE_CONFIG_DIR": "",
            "GEMINI_CLI_HOME": "",
        }
        for name, value in self.env.items():
            monkeypatch.setenv(name, value)
        for name in [name for name in os.environ if name.startswith("MCP_BRIDGE_")]:
            monkeypatch.delenv(name)
        monkeypatch.chdir(self.folder)
        # Not that of another checkout.
        monkeypatch.setattr("sys.argv", [COMMAND])

    def run(self, line):
        ended = CliRunner().invoke(app, shlex.split(line))
        assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
        return ended

    def done(self, line):
        ended = self.run(line)
        assert ended.exit_code == 0, ended.output
        return ended.output

    def file(self, client, text=None, mode=0o640):
        path = CLIENTS[client].user_path(self.home, self.env)
        if text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            path.chmod(mode)
        return path

    def servers(self, client, path=None):
        content = loads((path or self.file(client)).read_bytes(), CLIENTS[client].syntax)
        return content.get(CLIENTS[client].servers[0], {})

    def found(self, *clients):
        own = tomllib.loads(self.config.read_text()).get("servers", {}) if self.config.exists() else {}
        return discover(
            own, config_file=self.config, environ={"HOME": str(self.home)}, cwd=self.folder, home=self.home,
            clients=clients,
        )  # fmt: skip


# --- the entry ---


def test_servers_in_an_inline_table_stay_there_and_the_bridge_joins_them(user):
    text = (
        "model = 'x' # mine\nmcp_servers = { git = { command = 'x', env = { A = 'b' } } } # mine, too\n[other]\na = 1\n"
    )
    path = user.file("codex", text)
    before = user.servers("codex")
    user.done("install codex --yes")
    assert user.servers("codex") == before | {"bridge": user.servers("codex")["bridge"]}
    assert path.read_text().count("# mine") == 2
    assert path.read_text().endswith("[other]\na = 1\n")
    user.done("install codex --take-over --yes")
    assert set(user.servers("codex")) == {"bridge"}
    user.done("install codex --uninstall --yes")
    assert path.read_text() == text


def test_a_number_of_toml_that_is_none_is_left_as_it_is(user):
    text = "[mine]\nlimit = nan\nmost = [inf, nan]\n"
    path = user.file("codex", text)
    user.done("install codex --yes")
    assert path.read_text().startswith(text)
    user.done("install codex --uninstall --yes")
    assert path.read_text() == text


@pytest.mark.parametrize("client", PROGRAMS)
def test_the_entry_is_shown_and_written_into_a_new_file_and_twice_is_once(user, client):
    said = user.done(f"install {client} --yes")
    path = user.file(client)
    assert f"+++ {path}" in said
    assert f"Restart {CLIENTS[client].title}." in said
    [(name, entry)] = user.servers(client).items()
    assert (name, starts_the_bridge(entry)) == ("bridge", True)
    assert COMMAND in json.dumps(entry)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    [skipped] = user.found(client).skipped
    assert skipped.is_self
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert "has the bridge already" in user.done(f"install {client} --yes")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert "Taken back" in user.done(f"install {client} --uninstall --yes")
    assert not path.exists(), "it wasn't there before"
    assert "doesn't have the bridge" in user.done(f"install {client} --uninstall --yes")


@pytest.mark.parametrize("client", PROGRAMS)
def test_what_else_is_in_the_file_stays_as_it_is_and_it_can_be_taken_back(user, client):
    path = user.file(client, busy(client))
    said = user.done(f"install {client} --yes")
    changed = path.read_text()
    removed = [line for line in busy(client).splitlines() if line not in changed.splitlines()]
    assert len(removed) <= 1, "at most the line that has the entry, or a comma, added"
    assert set(user.servers(client)) == {"git", "bridge"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert "s3cret-of-mine" not in said
    assert "keeps its other servers (git)" in said
    [backup] = (user.home / ".state/mcp-bridge/client-setup/backups").iterdir()
    assert backup.read_text() == busy(client)
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    user.done(f"install {client} --uninstall --yes")
    assert path.read_text() == busy(client)


@pytest.mark.parametrize("client", PROGRAMS)
def test_it_can_be_taken_back_out_of_a_file_that_was_changed_since(user, client):
    path = user.file(client, busy(client))
    user.done(f"install {client} --take-over --yes")
    change = "\n[profiles.b]\nmodel = 'z'\n" if client == "codex" else ""
    path.write_text(path.read_text().rstrip() + change + "\n\n")
    user.done(f"install {client} --uninstall --yes")
    assert set(user.servers(client)) == {"git"}
    assert loads(path.read_bytes(), CLIENTS[client].syntax) == loads(
        (busy(client) + change).encode(), CLIENTS[client].syntax
    )
    assert ("mine" in path.read_text()) == ("mine" in busy(client))


@pytest.mark.parametrize("client", [name for name in PROGRAMS if CLIENTS[name].project_files])
def test_the_file_of_a_folder(user, client):
    user.done(f"install {client} --project --yes")
    path = CLIENTS[client].project_path(user.folder)
    assert set(user.servers(client, path)) == {"bridge"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert not user.file(client).exists()
    user.done(f"install {client} --project --uninstall --yes")
    assert not path.exists()


def test_what_a_folder_has_stays_with_its_client(user):
    ended = user.run("install cursor --project --take-over --yes")
    assert (ended.exit_code, "bad_argument" in ended.output) == (2, True)
    ended = user.run("install windsurf --project --yes")
    assert "Windsurf has no file for a folder" in ended.output


def test_what_is_no_program_has_no_file_to_write_to(user):
    for line in ("install directories --yes", "install directories --uninstall --yes", "servers import directories"):
        ended = user.run(line)
        assert (ended.exit_code, "client_configs that names 'directories'" in ended.output) == (2, True)
    assert not list(user.home.glob("MCPs"))


def test_only_programs_are_offered(user):
    for line in ("install", "servers import"):
        assert "directories" not in user.run(f"{line} --help").output
        ended = user.run(f"{line} nope")
        assert ended.exit_code == 2


# --- take-over ---


@pytest.mark.parametrize("client", PROGRAMS)
def test_a_clients_servers_move_behind_the_bridge_and_back(user, client):
    path = user.file(client, busy(client))
    user.config.parent.mkdir(parents=True)
    user.config.write_text("# mine\ntimeout = 5\n")
    user.config.chmod(0o644)
    said = user.done(f"install {client} --take-over --yes")
    assert "s3cret-of-mine" not in said
    assert set(user.servers(client)) == {"bridge"}
    spec = user.found(client).servers["git"]
    assert (spec.command, spec.args, dict(spec.env)) == ("uvx", ("mcp-server-git",), {"TOKEN": "s3cret-of-mine"})
    assert spec.scope == "config"
    assert user.config.read_text().startswith("# mine\ntimeout = 5\n")
    assert stat.S_IMODE(user.config.stat().st_mode) == 0o640, "what the group couldn't read it still can't"
    assert "has the bridge already" in user.done(f"install {client} --take-over --yes")
    user.done(f"install {client} --uninstall --yes")
    assert path.read_text() == busy(client)
    assert tomllib.loads(user.config.read_text()) == {"timeout": 5}
    assert user.config.read_text().startswith("# mine\n")


@pytest.mark.parametrize("mine", ["timeout = 5\n", "# mine\r\n[servers.own]\r\ncommand = 'x'\r\n", "timeout = 5\n\n\n"])
def test_the_own_configuration_is_what_it_was_however_often_servers_come_and_go(user, mine):
    user.file(
        "cursor", '{"mcpServers": {"git": {"command": "git-server"}, "b": {"command": "cat", "env": {"A": "b"}}}}'
    )
    user.config.parent.mkdir(parents=True)
    user.config.write_bytes(mine.encode())
    for _ in range(2):
        user.done("install cursor --take-over --yes")
        user.done("install cursor --uninstall --yes")
        assert user.config.read_bytes() == mine.encode()


def test_first_the_entry_and_then_the_servers_is_taken_back_as_a_whole(user):
    path = user.file("cursor", busy("cursor"))
    user.done("install cursor --yes")
    user.done("install cursor --take-over --yes")
    user.done("install cursor --uninstall --yes")
    assert path.read_text() == busy("cursor")
    assert not user.found("cursor").servers["git"].source.endswith(".toml")


def test_what_cannot_move_stays_and_is_told(user):
    entries = {
        "asks": {"command": "x", "env": {"K": "${input:key}"}},
        "folder": {"command": "x", "args": ["${workspaceFolder}"]},
        "broken": {"args": []},
        "moves": {"command": "${userHome}/x", "args": ["${env:A}"], "env": {"N": "5"}},
        "remote": {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${env:TOKEN}"}},
        "taken": {"command": "other"},
    }
    user.file("cursor", json.dumps({"mcpServers": entries}))
    user.config.parent.mkdir(parents=True)
    user.config.write_text('[servers.taken]\ncommand = "mine"\n')
    said = user.done("install cursor --take-over --yes")
    for name in ("asks", "folder", "broken", "taken"):
        assert f"'{name}' stays with Cursor: " in said
    assert set(user.servers("cursor")) == {"bridge", "asks", "folder", "broken", "taken"}
    own = tomllib.loads(user.config.read_text())["servers"]
    assert own["moves"] == {"command": "${HOME}/x", "args": ["${A}"], "env": {"N": "5"}}
    assert own["remote"] == {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}}
    assert own["taken"] == {"command": "mine"}


def local_scope(user):
    """A file of Claude Code's with servers of every scope that it has there, as it writes them."""
    git = {"type": "stdio", "command": "uvx", "args": ["mcp-server-git"], "env": {"TOKEN": "s3cret-of-mine"}}
    here = {"git": git, "both": {"command": "here"}}
    content = {
        "projects": {
            str(user.folder): {"allowedTools": [], "mcpServers": here, "history": ["x"]},
            "/elsewhere": {"mcpServers": {"db": {"command": "db"}}},
            "/empty": {"mcpServers": {}},
        },
        "mcpServers": {"both": {"command": "everywhere"}},
    }
    return user.file("claude-code", json.dumps(content, indent=2))


def test_servers_of_this_folder_alone_move_too_and_those_of_others_are_told(user):
    path = local_scope(user)
    before = path.read_text()
    said = user.done("install claude-code --yes")
    assert "keeps its other servers (both, git)" in said
    assert "stay there: /elsewhere (db)." in said
    said = user.done("install claude-code --take-over --yes")
    assert f"'git' was for {user.folder} alone, and will be there in every folder." in said
    assert "'both' stays with Claude Code" in said
    assert "stay there: /elsewhere (db)." in said
    assert "s3cret-of-mine" not in said
    content = json.loads(path.read_text())
    assert set(content["mcpServers"]) == {"bridge"}
    here = content["projects"][str(user.folder)]
    assert here == {"allowedTools": [], "mcpServers": {"both": {"command": "here"}}, "history": ["x"]}
    own = tomllib.loads(user.config.read_text())["servers"]
    assert own == {
        "both": {"command": "everywhere"},
        "git": {"command": "uvx", "args": ["mcp-server-git"], "env": {"TOKEN": "s3cret-of-mine"}},
    }
    assert "has the bridge already" in user.done("install claude-code --take-over --yes")
    user.done("install claude-code --uninstall --yes")
    assert path.read_text() == before
    assert "servers" not in tomllib.loads(user.config.read_text())


def test_servers_of_this_folder_alone_return_to_a_file_that_was_changed_since(user, monkeypatch):
    path = local_scope(user)
    before = json.loads(path.read_text())
    user.done("install claude-code --take-over --yes")
    there = user.folder.parent / "there"
    there.mkdir()
    content = json.loads(path.read_text())
    content["numStartups"] = 5
    content["projects"][str(there)] = {"mcpServers": {"other": {"command": "y"}}}
    path.write_text(json.dumps(content))
    monkeypatch.chdir(there)
    user.done("install claude-code --take-over --yes")
    assert set(tomllib.loads(user.config.read_text())["servers"]) == {"git", "both", "other"}
    user.done("install claude-code --uninstall --yes")
    after = json.loads(path.read_text())
    assert after["projects"].pop(str(there)) == {"mcpServers": {"other": {"command": "y"}}}
    assert after == before | {"numStartups": 5}
    assert "servers" not in tomllib.loads(user.config.read_text())


def test_servers_of_this_folder_alone_are_copied_too(user):
    path = local_scope(user)
    before = path.read_text()
    said = user.done("servers import claude-code --yes")
    assert f"'git' is for {user.folder} alone, and will be there in every folder." in said
    assert f"'both' of {user.folder} alone is left out" in said
    assert "stay there: /elsewhere (db)." in said
    assert {name: table["command"] for name, table in tomllib.loads(user.config.read_text())["servers"].items()} == {
        "both": "everywhere",
        "git": "uvx",
    }
    assert "nothing to import" in user.done("servers import claude-code --yes")
    user.config.unlink()
    user.done("servers import claude-code git --yes")
    assert set(tomllib.loads(user.config.read_text())["servers"]) == {"git"}
    assert path.read_text() == before


def test_what_is_broken_for_another_folder_stops_nothing_here(user):
    projects = {"/old": {"mcpServers": []}, "/older": []}
    user.file("claude-code", json.dumps({"projects": projects, "mcpServers": {"git": {"command": "uvx"}}}))
    user.done("servers import claude-code --yes")
    user.done("install claude-code --take-over --yes")
    assert set(user.servers("claude-code")) == {"bridge"}
    user.done("install claude-code --uninstall --yes")
    user.file("claude-code", json.dumps({"projects": {str(user.folder): {"mcpServers": []}}}))
    assert "bad_client_config" in user.run("install claude-code --yes").output


def test_the_bridge_for_this_folder_alone_is_the_bridge_here(user):
    projects = {str(user.folder): {"mcpServers": {"mine": OVER_HTTP["claude-code"]}}}
    path = user.file("claude-code", json.dumps({"projects": projects}))
    before = path.read_text()
    said = user.done("install claude-code --yes")
    assert f"has the bridge for {user.folder} alone" in said
    assert path.read_text() == before
    # What is taken over is gone from every folder.
    user.file("claude-code", json.dumps({"projects": projects, "mcpServers": {"git": {"command": "uvx"}}}))
    user.done("install claude-code --take-over --yes")
    assert set(user.servers("claude-code")) == {"bridge"}
    assert json.loads(path.read_text())["projects"] == projects


def test_another_bridge_for_this_folder_alone_is_copied_if_it_is_named(user):
    team = {"type": "http", "url": "https://team.example.com/mcp", "headers": {"Authorization": f"Bearer {TOKEN}"}}
    user.file("claude-code", json.dumps({"projects": {str(user.folder): {"mcpServers": {"team": team}}}}))
    assert "nothing to import" in user.done("servers import claude-code --yes")
    user.done("servers import claude-code team --yes")
    assert tomllib.loads(user.config.read_text())["servers"]["team"]["url"] == team["url"]


TOKEN = f"mcpb_{'0' * 16}_{'x' * 43}"

OVER_HTTP = {
    "claude-code": {
        "type": "http",
        "url": "http://127.0.0.1:8350/mcp",
        "headers": {"Authorization": f"Bearer {TOKEN}"},
    },
    "claude-desktop": {"command": "npx", "args": ["mcp-remote", "http://127.0.0.1:8350/mcp"]},
    "cursor": {"url": "http://localhost:8350/mcp", "headers": {"Authorization": "Bearer ${env:BRIDGE_TOKEN}"}},
    "codex": {"url": "http://localhost:8350/mcp", "bearer_token_env_var": "BRIDGE_TOKEN"},
    "gemini": {"httpUrl": "http://127.0.0.1:8350/mcp"},
    "windsurf": {"serverUrl": "http://127.0.0.1:8350/mcp"},
}


@pytest.mark.parametrize("client", OVER_HTTP)
def test_the_bridge_over_http_is_the_bridge_and_is_neither_moved_nor_copied(user, client, monkeypatch):
    monkeypatch.setenv("BRIDGE_TOKEN", TOKEN)
    key, entry = CLIENTS[client].servers[0], OVER_HTTP[client]
    entries = {"ours": entry, "git": {"command": "uvx"}}
    text = json.dumps({key: entries})
    if client == "codex":
        lines = [f"{name} = {json.dumps(value)}" for name, value in entry.items()]
        text = "\n".join([f"[{key}.ours]", *lines, f"[{key}.git]", 'command = "uvx"', ""])
    path = user.file(client, text)
    assert "has the bridge already" in user.done(f"install {client} --yes")
    user.done(f"servers import {client} --yes")
    assert set(tomllib.loads(user.config.read_text())["servers"]) == {"git"}
    assert "server_not_configured" in user.run(f"servers import {client} ours --yes").output
    user.config.unlink()
    user.done(f"install {client} --take-over --yes")
    assert user.servers(client) == {"ours": entry}
    assert set(tomllib.loads(user.config.read_text())["servers"]) == {"git"}
    user.done(f"install {client} --uninstall --yes")
    assert user.servers(client) == {"git": entries["git"]}
    path.write_text(text)
    user.done(f"install {client} --uninstall --yes")
    assert user.servers(client) == {"git": entries["git"]}, "without an installation, too"


def test_another_bridges_entry_and_its_token_stay_at_uninstall(user):
    tunnel = {"type": "http", "url": "http://127.0.0.1:9350/mcp", "headers": {"Authorization": f"Bearer {TOKEN}"}}
    wrapped = {"command": "npx", "args": ["mcp-remote", tunnel["url"], "--header", f"Authorization: Bearer {TOKEN}"]}
    content = {
        "projects": {str(user.folder): {"mcpServers": {"team": tunnel}}},
        "mcpServers": {"mine": {"command": COMMAND}, "team": tunnel, "wrapped": wrapped},
    }
    path = user.file("claude-code", json.dumps(content))
    said = user.done("install claude-code --uninstall --yes")
    assert json.loads(path.read_text()) == content | {"mcpServers": {"team": tunnel, "wrapped": wrapped}}
    backup = Path(said.partition("As it was: ")[2].strip())
    assert json.loads(backup.read_text()) == content


def test_uninstall_removes_the_bridge_for_the_folder_and_for_its_repository_past_what_is_broken(user, monkeypatch):
    (user.folder / ".git").mkdir()
    inside = user.folder / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    entries = {"mcpServers": {"bridge": {"command": COMMAND}, "git": {"command": "uvx"}}}
    left = {"mcpServers": {"git": {"command": "uvx"}}}
    path = user.file("claude-code", json.dumps({"projects": dict.fromkeys((str(inside), str(user.folder)), entries)}))
    user.done("install claude-code --uninstall --yes")
    assert json.loads(path.read_text())["projects"] == {str(inside): left, str(user.folder): left}
    projects = {str(inside): {"mcpServers": []}, str(user.folder): entries}
    path.write_text(json.dumps({"projects": projects}))
    user.done("install claude-code --uninstall --yes")
    assert json.loads(path.read_text())["projects"] == projects | {str(user.folder): left}


def test_the_bridge_that_claude_code_has_for_this_folder_alone_goes_with_uninstall(user):
    entries = {"bridge": {"command": COMMAND}, "git": {"command": "uvx"}}
    elsewhere = {"mcpServers": {"bridge": {"command": COMMAND}}}
    projects = {str(user.folder): {"mcpServers": entries}, "/elsewhere": elsewhere}
    path = user.file("claude-code", json.dumps({"projects": projects}))
    assert "has the bridge for" in user.done("install claude-code --yes")
    assert "Taken back" in user.done("install claude-code --uninstall --yes")
    left = json.loads(path.read_text())["projects"]
    assert left == {str(user.folder): {"mcpServers": {"git": entries["git"]}}, "/elsewhere": elsewhere}


def test_a_bridge_that_serves_at_another_port_is_the_bridge_while_it_serves(user):
    entry, git = {"type": "http", "url": "http://127.0.0.1:8353/mcp"}, {"command": "uvx"}
    user.file("claude-code", json.dumps({"mcpServers": {"code": entry, "git": git}}))
    presence = Presence(user.home / ".state/mcp-bridge", "another bridge")
    presence.serve_at(8353)
    user.done("servers import claude-code --yes")
    assert set(tomllib.loads(user.config.read_text())["servers"]) == {"git"}
    user.config.unlink()
    assert "the address of a bridge on this machine" in user.done("servers list --json")
    user.done("install claude-code --take-over --yes")
    assert user.servers("claude-code") == {"code": entry}
    presence.leave()
    user.done("servers import claude-code --yes")
    assert set(tomllib.loads(user.config.read_text())["servers"]) == {"git", "code"}, "it is somebody else's now"


@pytest.mark.parametrize(
    ("client", "entry"),
    [
        ("cursor", {"command": "bash", "args": ["-lc", "exec mcp-bridge"]}),
        ("cursor", {"command": "sh", "args": ["-c", "cd /x && exec mcp-bridge"]}),
        ("opencode", {"type": "local", "command": ["bash", "-lc", "exec mcp-bridge"]}),
        ("zed", {"command": {"path": COMMAND, "args": []}}),
    ],
)
def test_the_bridge_in_a_wrapper_is_the_bridge_and_is_not_put_behind_itself(user, client, entry):
    other = {"type": "local", "command": ["git-server"]} if client == "opencode" else {"command": "git-server"}
    before = json.dumps({CLIENTS[client].servers[0]: {"mine": entry, "git": other}})
    user.file(client, before)
    user.done(f"install {client} --take-over --yes")
    assert user.servers(client) == {"mine": entry}
    assert list(tomllib.loads(user.config.read_text())["servers"]) == ["git"]
    user.done(f"install {client} --uninstall --yes")
    assert user.servers(client) == {"git": other}


def test_another_bridge_stays_with_its_client_unless_it_is_named(user):
    team = {"url": "https://team.example.com/mcp", "headers": {"Authorization": f"Bearer {TOKEN}"}}
    user.file("cursor", json.dumps({"mcpServers": {"team": team}}))
    said = user.done("install cursor --take-over --yes")
    assert "'team' stays with Cursor: it is another bridge" in said
    assert TOKEN not in said
    assert set(user.servers("cursor")) == {"team", "bridge"}
    assert "nothing to import" in user.done("servers import cursor --yes")
    user.done("servers import cursor team --yes")
    assert tomllib.loads(user.config.read_text())["servers"]["team"] == team


def test_filters_time_outs_and_switches_move_along(user):
    user.file("codex", """
[mcp_servers.a]
command = "x"
env_vars = ["TOKEN"]
startup_timeout_sec = 5
tool_timeout_sec = 7
enabled_tools = ["read"]
disabled_tools = ["write"]
[mcp_servers.b]
command = "y"
enabled = false
[mcp_servers.c]
url = "https://example.com/mcp"
bearer_token_env_var = "TOKEN"
env_http_headers = { X-A = "A" }
[mcp_servers.d]
command = "${LITERAL}"
""")  # fmt: skip
    before = user.found("codex").servers
    said = user.done("install codex --take-over --yes")
    assert "'d' stays with Codex: it has ${…} as it is" in said
    after = user.found().servers
    for name in ("a", "b"):
        for key in (
            "command",
            "env_pass",
            "start_timeout",
            "call_timeout",
            "include_tools",
            "exclude_tools",
            "enabled",
        ):
            assert getattr(after[name], key) == getattr(before[name], key), (name, key)
    own = tomllib.loads(user.config.read_text())["servers"]
    assert own["c"]["headers"] == {"X-A": "${A:-}", "Authorization": "Bearer ${TOKEN}"}


def test_a_server_that_was_changed_behind_the_bridge_stays_there_too(user):
    user.file("cursor", busy("cursor"))
    user.done("install cursor --take-over --yes")
    user.config.write_text(user.config.read_text() + "call_timeout = 5\n")
    assert "'git' stays in" in user.done("install cursor --uninstall --yes")
    assert "git" in user.servers("cursor")
    assert tomllib.loads(user.config.read_text())["servers"]["git"]["call_timeout"] == 5


def test_a_server_that_two_clients_have_had_goes_with_the_last_of_them(user):
    text = '{"mcpServers": {"a": {"command": "a"}}}'
    for client in ("cursor", "windsurf"):
        user.file(client, text)
        user.done(f"install {client} --take-over --yes")
    assert "'a' stays in" in user.done("install cursor --uninstall --yes")
    assert "a" in tomllib.loads(user.config.read_text())["servers"]
    assert user.servers("cursor") == {"a": {"command": "a"}}
    user.done("install windsurf --uninstall --yes")
    assert user.servers("windsurf") == {"a": {"command": "a"}}
    assert user.config.read_text() == ""


REFUSED = [
    ("gemini", '{"mcpServers": {"git": {"command": "x"}}, "mcp": {"allowed": ["git"]}}'),
    ("gemini", '{"mcpServers": {"git": {"command": "x"}}, "mcp": {"excluded": ["bridge"]}}'),
    ("cursor", '{"mcpServers": {"git": {"command": "x"}, "bridge": {"command": "mcp-bridge", "disabled": true}}}'),
    ("opencode", '{"mcp": {"git": {"type": "local", "command": ["x"]}}, "tools": {"bridge*": false}}'),
    ("opencode", '{"mcp": {"mine": {"type": "local", "command": ["mcp-bridge"], "enabled": false}}}'),
    ("opencode", '{"mcp": {"git": {"type": "local", "command": ["x"]}}, "permission": {"bridge_*": "deny"}}'),
    ("codex", '[mcp_servers.bridge]\ncommand = "mcp-bridge"\nenabled = false\n'),
    ("codex", '[mcp_servers.bridge]\ncommand = "mcp-bridge"\ndisabled_tools = ["run_python"]\n'),
]
"""Files of clients that wouldn't start the bridge, or not show its tool."""


SWITCHES = [
    ("claude-code", ".claude.json", '{"projects": {"%s": {"disabledMcpServers": ["bridge"]}}}'),
    ("claude-code", ".claude/settings.json", '{"deniedMcpServers": [{"serverName": "bridge"}]}'),
    ("gemini", ".gemini/mcp-server-enablement.json", '{"bridge": {"enabled": false}}'),
    ("opencode", ".config/opencode/config.json", '{"tools": {"bridge*": false}}'),
]
"""Where else clients keep what a person has switched off, and in what."""


@pytest.mark.parametrize(("client", "path", "text"), SWITCHES)
@pytest.mark.parametrize("option", ["", "--take-over", "--project"])
def test_a_bridge_that_another_file_switches_off_is_not_put_there(user, client, path, text, option):
    if client == "opencode":
        user.file(client).parent.mkdir(parents=True)
        (user.file(client).parent / "opencode.json").write_text("{}")
    (user.home / path).parent.mkdir(parents=True, exist_ok=True)
    (user.home / path).write_text(text.replace("%s", str(user.folder)))
    before = {path: path.read_bytes() for path in user.home.rglob("*.json")}
    ended = user.run(f"install {client} {option} --yes")
    assert ended.exit_code == 1
    assert "wouldn't use the bridge" in ended.output
    assert {path: path.read_bytes() for path in user.home.rglob("*.json")} == before
    assert list(user.folder.rglob("*.*")) == []


def test_the_bridge_for_the_folder_alone_that_is_switched_off_there_is_none(user):
    part = {"mcpServers": {"b": {"command": "mcp-bridge"}}, "disabledMcpServers": ["b"]}
    user.file("claude-code", json.dumps({"projects": {str(user.folder): part}}))
    ended = user.run("install claude-code --yes")
    assert (ended.exit_code, "'b' is switched off there for" in ended.output) == (1, True)


@pytest.mark.parametrize("command", ["install claude-code --take-over", "servers import claude-code"])
def test_a_server_that_claude_code_has_switched_off_somewhere_stays(user, command):
    entries = {name: {"command": name} for name in ("a", "b", "c", "d")}
    here = {"disabledMcpServers": ["a", "e"], "mcpServers": {"e": {"command": "e"}, "f": {"command": "f"}}}
    projects = {str(user.folder): here, "/elsewhere": {"disabledMcpServers": ["b", "f"]}}
    user.file("claude-code", json.dumps({"mcpServers": entries, "projects": projects}))
    (user.home / ".claude").mkdir()
    (user.home / ".claude/settings.json").write_text('{"deniedMcpServers": [{"serverName": "c"}]}')
    said = user.done(f"{command} --yes")
    for part in (f"it is switched off there for {user.folder}", "for /elsewhere", "it is denied there"):
        assert part in said
    assert set(tomllib.loads(user.config.read_text())["servers"]) == {"d", "f"}


def test_what_geminis_command_has_switched_off_moves_as_it_is(user):
    user.file("gemini", '{"mcpServers": {"a": {"command": "a"}, "u": {"url": "https://x.example/mcp"}}}')
    (user.home / ".gemini/mcp-server-enablement.json").write_text('{"a": {"enabled": false}}')
    user.done("install gemini --take-over --yes")
    own = tomllib.loads(user.config.read_text())["servers"]
    assert own == {"a": {"command": "a", "enabled": False}, "u": {"url": "https://x.example/mcp"}}


def test_of_opencodes_files_a_whole_server_is_copied_and_a_part_stays(user):
    part = '{"mcp": {"a": {"environment": {"B": "2"}}, "b": {"type": "local", "command": ["b"]}}}'
    user.file("opencode", part)
    whole = {"mcp": {"a": {"type": "local", "command": ["a"], "environment": {"A": "1"}}}, "tools": {"b_x": False}}
    (user.home / ".config/opencode/config.json").write_text(json.dumps(whole))
    user.done("servers import opencode --yes")
    own = tomllib.loads(user.config.read_text())["servers"]
    assert own["a"] == {"command": "a", "env": {"A": "1", "B": "2"}}
    assert own["b"] == {"command": "b", "exclude_tools": ["x"]}
    user.config.unlink()
    said = user.done("install opencode --take-over --yes")
    assert f"'a' stays with opencode: {user.home / '.config/opencode/config.json'} has a part of it, too." in said
    assert tomllib.loads(user.config.read_text())["servers"] == {"b": {"command": "b", "exclude_tools": ["x"]}}


def test_a_server_that_is_to_lack_a_variable_stays(user):
    user.file("vscode", '{"servers": {"a": {"command": "a", "env": {"X": null}}, "b": {"command": "b"}}}')
    assert "its env unsets X" in user.done("install vscode --take-over --yes")
    assert set(tomllib.loads(user.config.read_text())["servers"]) == {"b"}


@pytest.mark.parametrize(("client", "text"), REFUSED)
@pytest.mark.parametrize("option", ["", "--take-over"])
def test_nothing_moves_behind_a_bridge_that_its_client_would_not_use(user, client, text, option):
    path = user.file(client, text)
    ended = user.run(f"install {client} {option} --yes")
    assert ended.exit_code == 1
    assert "bad_client_config" in ended.output
    assert "wouldn't use the bridge" in ended.output
    assert path.read_text() == text
    assert not user.config.exists()


def test_the_bridge_that_is_allowed_by_name_is_used(user):
    user.file("gemini", '{"mcpServers": {"git": {"command": "x"}}, "mcp": {"allowed": ["git", "bridge"]}}')
    user.done("install gemini --take-over --yes")
    assert set(user.servers("gemini")) == {"bridge"}


USED = [
    ('"permission": {"*": "deny", "bridge_*": "allow"}', ""),
    ('"permission": {"bridge_run_python": "allow", "bridge_*": "deny"}', "MCP_BRIDGE_LANGUAGES=python"),
    ('"permission": {"*": {"*": "deny"}, "bridge_run_*": {"*": "allow"}}', ""),
    ('"tools": {"*": false, "bridge_*": true}', ""),
    ('"tools": {"*": false, "*_python": true}', ""),
    ('"tools": {"bridge_*": false, "bridge_run_javascript": true}', "MCP_BRIDGE_LANGUAGES=python,javascript"),
    ('"tools": {"bridge_run_python": false}', "MCP_BRIDGE_LANGUAGES=python,javascript"),
]
"""What opencode is told, of which the last that fits counts, and the languages of the bridge."""


@pytest.mark.parametrize(("told", "variable"), USED)
def test_the_bridge_is_used_if_the_last_that_fits_lets_one_of_its_tools_through(user, monkeypatch, told, variable):
    if variable:
        monkeypatch.setenv(*variable.split("="))
    user.file("opencode", f'{{"mcp": {{"git": {{"type": "local", "command": ["x"]}}}}, {told}}}')
    user.done("install opencode --yes")
    user.done("install opencode --uninstall --yes")
    for more in ('"permission": "deny"', '"tools": {"*": false}', '"permission": {"bridge_*": "allow", "br*": "deny"}'):
        user.file("opencode", f'{{"mcp": {{"git": {{"type": "local", "command": ["x"]}}}}, {more}}}')
        assert "bad_client_config" in user.run("install opencode --yes").output


def test_the_bridges_tools_are_those_of_its_languages(user, monkeypatch):
    entry = '{"command": "mcp-bridge", "includeTools": ["run_javascript"], "excludeTools": ["run_%s"]}'
    monkeypatch.setenv("MCP_BRIDGE_LANGUAGES", "javascript")
    user.file("gemini", f'{{"mcpServers": {{"bridge": {entry % "python"}}}}}')
    user.done("install gemini --yes")
    user.file("gemini", f'{{"mcpServers": {{"bridge": {entry % "javascript"}}}}}')
    assert "may not show its tool run_javascript" in user.run("install gemini --yes").output


def test_what_opencode_lets_be_after_all_is_neither_told_nor_left_out_when_its_server_moves(user):
    servers = {name: {"type": "local", "command": [name]} for name in ("gh", "db", "fs")}
    tools = {"gh_*": False, "gh_get": True, "*_drop": False, "db*": True, "fs_*": False, "fs_r*": True, "fs_rm": False}
    permission = {"*": "deny", "gh_*": "ask", "db_*": "allow", "*_push": "deny", "fs_get": "allow"}
    permission |= {"bridge_*": "allow"}
    user.file("opencode", json.dumps({"mcp": servers, "tools": tools, "permission": permission}))
    said = user.done("install opencode --take-over --yes")
    own = tomllib.loads(user.config.read_text())["servers"]
    assert own["gh"] == {"command": "gh", "include_tools": ["get"], "exclude_tools": ["*_drop", "drop"]}
    assert own["db"] == {"command": "db"}
    assert own["fs"] == {"command": "fs", "include_tools": ["r*"], "exclude_tools": ["rm"]}
    for rule in (
        'tools = ["gh.*"] and effect = "approve"',
        'tools = ["gh.*_push", "gh.push"] and effect = "deny"',
        'tools = ["db.*_push", "db.push"] and effect = "deny"',
        'tools = ["fs.*"] and effect = "deny"',
    ):
        assert rule in said, said
    assert said.count("[[policy.rules]]") == 4


def test_what_a_client_asks_about_or_denies_is_told_when_its_server_moves(user):
    user.file("codex", """
[mcp_servers.gh]
command = "x"
default_tools_approval_mode = "prompt"
[mcp_servers.git]
command = "y"
[mcp_servers.git.tools.push]
approval_mode = "prompt"
[mcp_servers.git.tools.log]
approval_mode = "approve"
""")  # fmt: skip
    said = user.done("install codex --take-over --yes")
    assert "asks before it calls every tool of 'gh'" in said
    assert 'tools = ["gh.*"] and effect = "approve"' in said
    assert 'tools = ["git.push"] and effect = "approve"' in said
    permission = '"permission": {"db_drop": "deny", "db_*": "ask", "bash": "deny"}'
    user.file("opencode", f'{{"mcp": {{"db": {{"type": "local", "command": ["x"]}}}}, {permission}}}')
    said = user.done("install opencode --take-over --yes")
    assert 'tools = ["db.drop"] and effect = "deny"' in said
    assert 'tools = ["db.*"] and effect = "approve"' in said
    user.file("claude-code", '{"mcpServers": {"gh2": {"command": "x"}, "gh3": {"command": "y"}}}')
    settings = user.home / ".claude/settings.json"
    settings.parent.mkdir()
    settings.write_text('{"permissions": {"deny": ["mcp__gh2__delete_repo", "Bash"], "ask": ["mcp__gh2"]}}')
    said = user.done("install claude-code --take-over --yes")
    assert "Claude Code denies delete_repo of 'gh2', and has no say behind the bridge" in said
    assert 'tools = ["gh2.*"] and effect = "approve"' in said
    assert "gh3." not in said


def test_what_the_bridge_could_not_use_stays_with_its_client(user):
    entries = {
        "user": {"url": "https://user:longpass@example.com/mcp"},
        "fragment": {"url": "https://example.com/mcp#part"},
        "header": {"url": "https://example.com/mcp", "headers": {"Host": "other.example.com"}},
        "line": {"command": "sh -c true"},
        "port": {"url": "https://${env:HOST}:${env:PORT}/mcp"},
        "any": {"url": "${env:BASE}/mcp"},
    }
    user.file("cursor", json.dumps({"mcpServers": entries}))
    said = user.done("install cursor --take-over --yes")
    left = ["user", "fragment", "header", "line"]
    for name in left:
        assert f"'{name}' stays with Cursor: " in said
    assert set(user.servers("cursor")) == {"bridge", *left}
    assert set(tomllib.loads(user.config.read_text())["servers"]) == {"port", "any"}
    assert "longpass" not in said


SECRET = "s3cret-of-the-app"  # noqa: S105 - of these tests alone
REMOTE = {"url": "https://example.com/mcp"}


@pytest.mark.parametrize(
    ("client", "entry", "oauth"),
    [
        (
            "opencode",
            {"type": "remote", "oauth": {"clientId": "id", "clientSecret": SECRET, "scope": "read write"}},
            {
                "client_id": "id",
                "client_secret": SECRET,
                "scopes": ["read", "write"],
                "redirect_uri": "http://127.0.0.1:19876/mcp/oauth/callback",
            },
        ),
        ("opencode", {"type": "remote", "oauth": False}, None),
        (
            "claude-code",
            {"type": "http", "oauth": {"clientId": "id", "callbackPort": 8080}},
            {"client_id": "id", "redirect_uri": "http://localhost:8080/callback"},
        ),
        (
            "gemini",
            {"oauth": {"enabled": True, "clientId": "id", "clientSecret": "$APP", "scopes": ["read"]}},
            {"client_id": "id", "client_secret": "${APP:-$APP}", "scopes": ["read"]},
        ),
    ],
)
def test_settings_of_oauth_move_along_and_return(user, client, entry, oauth):
    servers = {"mine": REMOTE | entry}
    path = user.file(client, json.dumps({CLIENTS[client].servers[0]: servers}))
    before = path.read_text()
    said = user.done(f"install {client} --take-over --yes")
    assert "stays" not in said
    assert SECRET not in said
    assert tomllib.loads(user.config.read_text())["servers"]["mine"].get("oauth") == oauth
    assert user.found().servers["mine"].problem is None
    user.done(f"install {client} --uninstall --yes")
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("client", "entry"),
    [
        ("opencode", {"type": "remote", "url": "http://example.com/mcp", "oauth": {"clientId": "id"}}),
        ("claude-code", REMOTE | {"type": "http", "headers": {"Authorization": "x"}, "oauth": {"clientId": "${CID}"}}),
        ("cursor", REMOTE | {"headers": {"authorization": "x"}, "auth": {"CLIENT_ID": "id"}}),
    ],
)
def test_a_server_that_takes_no_login_moves_without_the_settings_of_one(user, client, entry):
    user.file(client, json.dumps({CLIENTS[client].servers[0]: {"mine": entry}}))
    user.done(f"install {client} --take-over --yes")
    assert "oauth" not in tomllib.loads(user.config.read_text())["servers"]["mine"]
    assert user.found().servers["mine"].problem is None


@pytest.mark.parametrize(
    ("client", "entry", "why"),
    [
        ("cursor", REMOTE | {"auth": {"CLIENT_ID": "id", "CLIENT_SECRET": SECRET}}, "registered for Cursor"),
        ("vscode", REMOTE | {"type": "http", "oauth": {"clientId": "id"}}, "registered for VS Code"),
        ("vscode", {"type": "stdio", "command": "x", "sandboxEnabled": True}, "without that sandbox"),
        ("gemini", REMOTE | {"authProviderType": "google_credentials"}, "authProviderType"),
        ("gemini", REMOTE | {"oauth": {"clientId": "id", "authorizationUrl": "https://e.com/a"}}, "authorizationUrl"),
        ("cursor", {"command": "x", "sandbox": True}, "it uses sandbox"),
        ("claude-desktop", {"command": "x", "disabledTools": ["a"]}, "it uses disabledTools"),
        ("claude-code", {"command": "x", "enabled": False}, "it uses enabled"),
        ("gemini", {"command": "x", "tcp": "ws://x", "enabled": False}, "it uses enabled"),
        ("gemini", REMOTE | {"targetAudience": "x"}, "it uses targetAudience"),
        ("zed", {"command": "x", "remote": True}, "it uses remote"),
        ("zed", {"command": "x", "settings": {"a": 1}}, "it uses settings"),
        ("vscode", {"command": "x", "sandbox": {"a": 1}}, "it uses sandbox"),
    ],
)
def test_what_the_bridge_has_no_like_of_keeps_a_server_with_its_client(user, client, entry, why):
    user.file(client, json.dumps({CLIENTS[client].servers[0]: {"mine": entry}}))
    said = user.done(f"install {client} --take-over --yes")
    [line] = [line for line in said.splitlines() if line.startswith("'mine' stays with ")]
    assert why in line
    assert SECRET not in said
    assert "mine" in user.servers(client)
    assert not user.config.exists()
    said = user.done(f"servers import {client}")
    assert "'mine' is left out: " in said
    assert why in said


@pytest.mark.parametrize(
    ("client", "entry", "dropped"),
    [
        ("zed", {"settings": {}, "remote": False}, ""),
        ("claude-desktop", {"timeout": 60}, "timeout is"),
        ("cursor", {"timeout": 60, "runsIn": "a jail"}, "timeout, runsIn are"),
        ("windsurf", {"user": "other"}, "user is"),
        ("cursor", {"transport": "stdio", "enabled": True}, ""),
        ("claude-code", {"transportType": "stdio", "$schema": "https://e.com"}, ""),
        ("claude-desktop", {"icons": ["i"], "tags": ["t"], "disabledTools": [], "envFile": ""}, ""),
        ("vscode", {"icons": ["i"], "sandbox": {}, "sandboxEnabled": False}, ""),
        ("gemini", {"extensionName": "e", "tcp": None}, ""),
    ],
)
def test_what_says_nothing_to_its_client_keeps_no_server(user, client, entry, dropped):
    user.file(client, json.dumps({CLIENTS[client].servers[0]: {"mine": {"command": "x"} | entry}}))
    said = user.done(f"servers import {client} --yes")
    assert "left out" not in said
    assert ("not carried over" in said) == bool(dropped)
    assert not dropped or f"of 'mine', {dropped} not carried over." in said
    said = user.done(f"install {client} --take-over --yes")
    assert "stays with" not in said
    assert not dropped or f"of 'mine', {dropped} not carried over." in said
    assert set(tomllib.loads(user.config.read_text())["servers"]) == {"mine"}


def test_codexs_settings_of_oauth_move_along_or_keep_the_server(user):
    user.file("codex", """
[mcp_servers.moves]
url = "https://example.com/mcp"
scopes = ["read"]
required = true
[mcp_servers.stays]
url = "https://example.com/mcp2"
oauth_resource = "https://example.com"
[mcp_servers.here]
command = "x"
experimental_environment = "local"
[mcp_servers.elsewhere]
command = "x"
environment_id = "remote"
""")  # fmt: skip
    said = user.done("install codex --take-over --yes")
    assert "'stays' stays with Codex: it uses oauth_resource" in said
    assert "'elsewhere' stays with Codex: it uses environment_id" in said
    own = tomllib.loads(user.config.read_text())["servers"]
    assert own.pop("here")["command"] == "x"
    assert own == {"moves": {"url": "https://example.com/mcp", "type": "http", "oauth": {"scopes": ["read"]}}}


def test_claude_codes_time_out_and_what_it_alone_shows_move_along(user):
    entry = {"type": "stdio", "command": "x", "timeout": 120_000, "alwaysLoad": True}
    user.file("claude-code", json.dumps({"mcpServers": {"mine": entry}}))
    user.done("install claude-code --take-over --yes")
    own = tomllib.loads(user.config.read_text())["servers"]
    assert own == {"mine": {"command": "x", "call_timeout": 120.0}}


@pytest.mark.parametrize("client", ["cursor", "codex", "opencode"])
def test_many_servers_are_moved_in_one_edit_of_each_file(user, client, monkeypatch):
    text = busy(client)
    if client == "codex":
        text += "".join(f'[mcp_servers.s{number}]\ncommand = "x{number}"\n' for number in range(50))
    else:
        entry = {"type": "local", "command": ["x"]} if client == "opencode" else {"command": "x"}
        many = "".join(f', "s{number}": {json.dumps(entry)}' for number in range(50))
        text = text.replace("} // why", "}" + many).replace("}, // why", "}" + many)
    path = user.file(client, text)
    edits, apply = [], file_edits.ConfigurationFile._apply

    def counted(self, *arguments):
        edits.append(self.path)
        return apply(self, *arguments)

    monkeypatch.setattr(file_edits.ConfigurationFile, "_apply", counted)
    user.done(f"install {client} --take-over --yes")
    # The bridge's entry, and the servers.
    assert sorted(edits) == sorted([path, path, user.config])
    assert set(user.servers(client)) == {"bridge"}
    assert len(tomllib.loads(user.config.read_text())["servers"]) == 51
    user.done(f"install {client} --uninstall --yes")
    assert path.read_text() == text


@pytest.mark.parametrize("written", ["$TOK", "${TOK}"])
def test_a_variable_of_gemini_that_is_not_set_stays_as_its_name_when_it_moves(user, written):
    user.file("gemini", json.dumps({"mcpServers": {"git": {"command": "x", "env": {"K": f"a-{written}-b"}}}}))
    user.done("install gemini --take-over --yes")
    found = user.found().servers["git"]
    assert (found.problem, found.env) == (None, {"K": "a-$TOK-b"})
    own = tomllib.loads(user.config.read_text())["servers"]
    environ = {"HOME": str(user.home), "TOK": "5"}
    [spec] = discover(own, config_file=user.config, environ=environ, cwd=user.folder, home=user.home).servers.values()
    assert spec.env == {"K": "a-5-b"}


# --- what goes wrong ---


@pytest.mark.parametrize("client", PROGRAMS)
@pytest.mark.parametrize("data", [b"{", b"\xff{}", b"[1, 2]", b'{"%s": 3}', b"\x00", b"[" * 100_000])
def test_a_broken_file_is_not_written(user, client, data):
    path = user.file(client, data.replace(b"%s", CLIENTS[client].servers[0].encode()))
    before = path.read_bytes()
    ended = user.run(f"install {client} --yes")
    assert ended.exit_code == 1
    assert "bad_client_config" in ended.output
    assert "Nothing was written" in ended.output
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir() if not entry.is_dir()] == [path.name]


@pytest.mark.parametrize("client", PROGRAMS)
def test_a_file_that_says_nothing_yet_is_given_back_as_it_was(user, client):
    commented = {"jsonc": [b"// mine", b"\xef\xbb\xbf// mine", b"/* mine */", b"// mine\n"], "toml": [b"# mine"]}
    for content in [b"", *commented.get(CLIENTS[client].syntax, [])]:
        path = user.file(client, content)
        user.done(f"install {client} --yes")
        assert starts_the_bridge(user.servers(client)["bridge"])
        user.done(f"install {client} --uninstall --yes")
        assert path.read_bytes() == content


def test_a_server_that_is_nested_too_deeply_is_refused_before_anything_is_written(user):
    deep = '{"a":' * 400 + "1" + "}" * 400
    for entry in ('"x": {"command": "true", "more": %s}', '"bridge": {"command": "/gone/mcp-bridge", "more": %s}'):
        path = user.file("cursor", text := f'{{"mcpServers": {{{entry % deep}}}}}')
        ended = user.run("install cursor --take-over --yes")
        assert ended.exit_code != 0
        assert "bad_client_config" in ended.output
        assert "nested deeper" in ended.output
        assert path.read_text() == text
        assert not user.config.exists()


def test_of_gemini_cli_it_is_said_that_a_folder_has_to_be_trusted_there_unless_none_has_to(user):
    said = "only in folders that you trust there"
    assert said in user.done("install gemini --yes")
    assert said in user.done("install gemini --project --yes")
    user.file("gemini", '{"security": {"folderTrust": {"enabled": false}}}')
    assert said not in user.done("install gemini --yes")
    assert said not in user.done("install cursor --yes")


def test_a_byte_order_mark_line_ends_and_a_link_stay(user, tmp_path):
    real = tmp_path / "dotfiles/mcp.json"
    real.parent.mkdir()
    text = '\ufeff{\r\n  "mcpServers": {\r\n    "a": {"command": "x"}\r\n  }\r\n}\r\n'
    real.write_bytes(text.encode())
    path = user.file("cursor")
    path.parent.mkdir()
    path.symlink_to(real)
    user.done("install cursor --yes")
    assert path.is_symlink()
    data = real.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf{\r\n")
    assert data.count(b"\n") == data.count(b"\r\n")
    assert set(user.servers("cursor")) == {"a", "bridge"}
    assert "\ufeff" not in (said := user.done("install cursor --uninstall --yes"))
    assert "\\ufeff" not in said
    assert real.read_bytes() == text.encode()
    real.unlink()
    ended = user.run("install cursor --yes")
    assert "it is a link to a file that isn't there" in ended.output


def test_a_long_file_is_compared_where_it_differs_and_lines_keep_their_numbers(user):
    history = ",\n".join(f'"h{number % 7}{number}": "same"' for number in range(20_000))
    user.file(
        "claude-code",
        f'{{\n{history},\n"mcpServers": {{\n"a": {{"command": "x"}}\n}},\n{history.replace("h", "k")}\n}}\n',
    )
    said = user.done("install claude-code --yes").splitlines()
    assert any(line.startswith("@@ -20000,") for line in said), said[:5]
    assert [line for line in said if line.startswith("-") and not line.startswith("---")] == ['-"a": {"command": "x"}']
    assert len(said) < 30


def test_a_key_that_is_there_twice_is_not_edited(user):
    text = '{"mcpServers": {"a": {"command": "x"}}, "mcpServers": {"b": {"command": "y"}}}'
    path = user.file("cursor", text)
    assert "it can't be edited ('mcpServers' is there twice)" in user.run("install cursor --yes").output
    assert path.read_text() == text


def test_what_the_client_writes_meanwhile_is_not_lost(user, monkeypatch):
    path = user.file("claude-code", '{"a": 1}')
    monkeypatch.setattr(file_edits.ConfigurationFile, "diff", lambda self: path.write_text('{"a": 2}') and [])
    ended = user.run("install claude-code --yes")
    assert "client_file_changed" in ended.output
    assert path.read_text() == '{"a": 2}'


def test_nothing_is_written_without_a_yes(user, monkeypatch):
    path = user.file("zed", busy("zed"))
    ended = user.run("install zed")
    assert (ended.exit_code, "not_asked" in ended.output) == (4, True)
    monkeypatch.setattr(terminal_prompts, "confirm", lambda question, refusal: False)
    ended = user.run("install zed --take-over")
    assert (ended.exit_code, "nothing was written" in ended.output) == (4, True)
    assert path.read_text() == busy("zed")
    assert not user.config.exists()
    assert not (user.home / ".state/mcp-bridge/client-setup").exists()


def test_a_file_that_cannot_be_written_loses_no_server(user, monkeypatch):
    path = user.file("cursor", busy("cursor"))
    write = file_edits.ConfigurationFile._write

    def refuse(self, mode):
        if self.path == path:
            raise OSError(28, "No space left on device")
        write(self, mode)

    monkeypatch.setattr(file_edits.ConfigurationFile, "_write", refuse)
    assert "No space left on device" in user.run("install cursor --take-over --yes").output
    assert path.read_text() == busy("cursor")
    assert user.found("cursor").servers["git"].scope == "config"
    monkeypatch.setattr(file_edits.ConfigurationFile, "_write", write)
    user.done("install cursor --take-over --yes")
    user.done("install cursor --uninstall --yes")
    assert set(user.servers("cursor")) == {"git"}
    assert not user.found().servers


def test_a_file_that_is_read_only_is_not_replaced(user):
    path = user.file("cursor", busy("cursor"))
    path.chmod(0o444)
    for line in ("install cursor --yes", "install cursor --take-over --yes"):
        ended = user.run(line)
        assert "it is read-only" in ended.output
        assert "Nothing was written" in ended.output
    assert user.found("cursor").servers["git"].scope != "config"
    assert (path.read_text(), path.stat().st_mode & 0o777) == (busy("cursor"), 0o444)
    path.chmod(0o644)
    user.done("install cursor --take-over --yes")
    taken = path.read_text()
    path.chmod(0o444)
    assert "it is read-only" in user.run("install cursor --uninstall --yes").output
    assert path.read_text() == taken
    path.chmod(0o644)
    user.done("install cursor --uninstall --yes")
    assert path.read_text() == busy("cursor")


def test_a_name_that_is_taken_and_a_bridge_that_has_another(user):
    user.file("cursor", '{"mcpServers": {"bridge": {"command": "other"}}}')
    ended = user.run("install cursor --yes")
    assert "server_exists" in ended.output
    user.done("install cursor --name mcp --yes")
    assert set(user.servers("cursor")) == {"bridge", "mcp"}
    assert "has the bridge already" in user.done("install cursor --yes"), "under whatever name"


def test_an_entry_whose_program_is_gone_is_mended_and_keeps_what_the_user_has_written(user):
    entry = {"command": "/gone/bin/mcp-bridge", "args": ["serve"], "env": {"A": "1"}}
    user.file("cursor", json.dumps({"mcpServers": {"mine": entry}}))
    user.done("install cursor --yes")
    assert user.servers("cursor") == {"mine": {"command": COMMAND, "args": ["serve"], "env": {"A": "1"}}}


@pytest.mark.parametrize(
    "words",
    [
        ["/gone/mcp-bridge"],
        ["/gone/bin/python", "-m", "mcp_bridge"],
        ["/gone/uvx", "mcp-code-bridge@latest"],
        ["/gone/uvx", "--from", "/src/mcp-code-bridge", "mcp-bridge"],
    ],
)
def test_an_entry_whose_program_is_gone_starts_the_bridge_with_the_same_configuration(user, words):
    program, *args = words
    strict = ["--config", str(user.folder / "mcp-bridge")]
    user.file("cursor", json.dumps({"mcpServers": {"mine": {"command": program, "args": [*args, *strict]}}}))
    user.done("install cursor --yes")
    assert user.servers("cursor") == {"mine": {"command": COMMAND, "args": strict}}


@pytest.mark.parametrize("option", ["--config={}", "--config {}"])
@pytest.mark.parametrize("program", [COMMAND, "/gone/mcp-bridge"])
def test_servers_are_taken_over_to_the_configuration_of_the_bridge_that_the_client_starts(user, option, program):
    other = user.folder / "other.toml"
    other.write_text("timeout = 5\n")
    args = option.format(other).split(" ")
    entries = {"mine": {"command": program, "args": args}, "git": {"command": "mcp-server-git"}}
    before = json.dumps({"mcpServers": entries})
    user.file("cursor", before)
    user.done("install cursor --take-over --yes")
    assert user.servers("cursor") == {"mine": {"command": COMMAND, "args": args}}
    assert "git" in tomllib.loads(other.read_text())["servers"]
    assert not user.config.exists()
    user.done("install cursor --uninstall --yes")
    assert "git" in user.servers("cursor")
    assert other.read_text() == "timeout = 5\n"


@pytest.mark.parametrize("args", [[], ["--config", "folder.toml"], ["--config", "/one/strict.toml"]])
def test_servers_are_not_taken_over_to_a_configuration_that_the_bridge_there_does_not_have(user, args):
    other = user.folder / "other.toml"
    other.write_text("timeout = 5\n")
    entries = {"mine": {"command": COMMAND, "args": args}, "git": {"command": "mcp-server-git"}}
    path = user.file("cursor", json.dumps({"mcpServers": entries}))
    before = path.read_text()
    ended = user.run("--config other.toml install cursor --take-over --yes")
    assert ended.exit_code != 0
    assert "bad_client_config" in ended.output
    assert (path.read_text(), other.read_text()) == (before, "timeout = 5\n")


def test_the_configuration_that_is_named_is_named_in_the_entry(user):
    other = user.folder / "other.toml"
    other.write_text("timeout = 5\n")
    user.file("cursor", busy("cursor"))
    user.done("--config other.toml install cursor --take-over --yes")
    assert user.servers("cursor")["bridge"]["args"] == ["--config", str(other)]
    assert "git" in tomllib.loads(other.read_text())["servers"]
    assert not user.config.exists()


def test_what_is_kept_goes_with_the_rest_of_the_state(user):
    user.file("cursor", busy("cursor"))
    user.done("install cursor --take-over --yes")
    said = user.done("uninstall --state --yes")
    assert "which no bridge has made" not in said
    assert "`mcp-bridge install CLIENT --uninstall`" not in said, "Cursor's files aren't read"
    assert not (user.home / ".state/mcp-bridge/client-setup").exists()


@pytest.mark.parametrize("state", ["", "--state"])
def test_what_uninstall_leaves_of_clients_is_named_with_what_takes_it_back(user, state):
    path = user.file("cursor", busy("cursor"))
    user.done("install cursor --take-over --yes")
    user.done("install vscode --project --yes")
    said = user.done(f"uninstall {state} --yes")
    before, _, left = said.partition("left: ")
    assert ("Restore the file first: `mcp-bridge install cursor --uninstall`" in before) == bool(state)
    assert f"the bridge's entry in {path}, Cursor's. `mcp-bridge install cursor --uninstall` removes it" in left
    assert ("doesn't return what was moved" in left) == bool(state)
    assert "`mcp-bridge install vscode --project --uninstall`, in its folder, removes it" in left
    user.done("install cursor --uninstall --yes")
    assert set(user.servers("cursor")) == (set() if state else {"git"})
    assert "Cursor's" not in user.done("uninstall --yes")


# --- servers add, remove, import ---


def test_servers_are_added_and_removed(user):
    user.config.parent.mkdir(parents=True)
    user.config.write_text('# mine\n[servers.a] # first\ncommand = "x"\n\n[policy]\npreset = "open" # all\n')
    user.config.chmod(0o600)
    said = user.done("servers add git --env TOKEN=s3cret --cwd /srv -- uvx mcp-server-git -v")
    assert "s3cret" not in said
    said = user.done("servers add api --url https://example.com/mcp --header 'Authorization=Bearer ${TOKEN}'")
    assert "vault://" not in said
    said = user.done("servers add plain --url https://example.com/mcp --header X-Api-Key=s3cret --header X-Mode=fast")
    assert ("vault://secret/NAME" in said, "The header X-Api-Key is" in said) == (True, True)
    assert ("The header X-Mode" in said, "s3cret" in said) == (False, False)
    table = tomllib.loads(user.config.read_text())
    assert table["servers"]["git"] == {
        "command": "uvx", "args": ["mcp-server-git", "-v"], "env": {"TOKEN": "s3cret"}, "cwd": "/srv",
    }  # fmt: skip
    assert table["servers"]["api"]["headers"] == {"Authorization": "Bearer ${TOKEN}"}
    assert user.config.read_text().startswith(
        '# mine\n[servers.a] # first\ncommand = "x"\n\n[policy]\npreset = "open" # all\n'
    )
    assert "has it already" in user.done("servers add git --env TOKEN=s3cret --cwd /srv -- uvx mcp-server-git -v")
    ended = user.run("servers add git -- other")
    assert (ended.exit_code, "server_exists" in ended.output) == (2, True)
    for name in ("git", "api", "plain", "a"):
        user.done(f"servers remove {name}")
    assert tomllib.loads(user.config.read_text()) == {"policy": {"preset": "open"}}
    assert "# mine" in user.config.read_text()
    assert "# all" in user.config.read_text()
    assert "server_not_configured" in user.run("servers remove git").output


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_comment_on_what_follows_a_server_stays_when_the_server_goes(user, end):
    user.config.parent.mkdir(parents=True)
    before = '# mine\n[servers.a]\ncommand = "a" # of a\n# env = {}\n\n'
    between = "# the policy\n# of all\n[policy]\npreset = 'open'\n\n"
    last = '# of b\n[servers.b]\ncommand = "b"\n[servers.b.env]\nX = "# not a comment"\n# [servers.old]\n[install]\n'
    then = "allow = ['numpy']\n[servers.c]\ncommand = 'c'\n# of c\n\n# the end\n"
    user.config.write_bytes((before + between + last + then).replace("\n", end).encode())
    for name in ("a", "b", "c"):
        user.done(f"servers remove {name}")
    left = user.config.read_bytes().decode()
    assert left.count(end) == left.count("\n")
    assert left.replace(end, "\n") == (
        f"# mine\n\n{between}# of b\n# [servers.old]\n[install]\nallow = ['numpy']\n\n# the end\n"
    )


def test_servers_that_are_added_at_once_are_all_there(user):
    env = os.environ | user.env
    added = [
        subprocess.Popen([COMMAND, "servers", "add", f"s{number}", "--", "x"], env=env, stdout=subprocess.PIPE)
        for number in range(4)
    ]
    for process in added:
        process.communicate(timeout=DEADLINE_SECONDS)
    assert [process.returncode for process in added] == [0] * 4
    assert set(tomllib.loads(user.config.read_text())["servers"]) == {f"s{number}" for number in range(4)}


def test_commands_that_change_the_same_files_wait_for_each_other_and_not_for_a_person(user, monkeypatch):
    """Nothing that one has written is lost, whichever is the first."""
    lock = user.home / ".state/mcp-bridge/client-setup/lock"
    seen = []

    def planned(*arguments):
        with lock.open() as file:
            seen.append(try_lock(file.fileno()))
        return install_planned(*arguments)

    def asked(*_):
        user.done(f"servers add while-asked-{len(seen)} -- x")
        return True

    install_planned = install.planned
    monkeypatch.setattr(install, "planned", planned)
    monkeypatch.setattr(terminal_prompts, "confirm", asked)
    user.file("cursor", busy("cursor"))
    user.done("install cursor --take-over --yes")
    assert seen == [False]
    user.file("windsurf", busy("windsurf"))
    assert "client_file_changed" in user.run("install windsurf --take-over").output
    assert user.servers("windsurf") == loads(busy("windsurf").encode(), "json")["mcpServers"]
    user.file("gemini", json.dumps({"mcpServers": {"other": {"command": "x"}}}))
    seen.append(True)
    assert "client_file_changed" in user.run("servers import gemini").output
    assert set(tomllib.loads(user.config.read_text())["servers"]) == {"git", "while-asked-2", "while-asked-3"}


def test_what_is_left_to_a_client_while_a_person_is_asked_is_not_forgotten(user, monkeypatch):
    for client in ("cursor", "windsurf"):
        user.file(client, busy(client))
        user.done(f"install {client} --take-over --yes")
    user.file("windsurf", json.dumps({"mcpServers": {}}))

    def asked(*_):
        user.done("install cursor --uninstall --yes")
        return True

    monkeypatch.setattr(terminal_prompts, "confirm", asked)
    assert "client_file_changed" in user.run("install windsurf").output
    user.done("install windsurf --uninstall --yes")
    assert user.config.read_text() == ""


def test_the_broken_record_of_another_client_does_not_keep_the_bridge(user):
    text = busy("cursor")
    user.file("cursor", text)
    user.done("install cursor --take-over --yes")
    other = user.home / ".state/mcp-bridge/client-setup/0123.json"
    other.write_text('{"client": "zed", "file": "/x", "made_by_a_later_version": 1}')
    assert f"{other} is damaged. Which servers" in user.done("install cursor --uninstall --yes")
    assert user.file("cursor").read_text() == text
    assert user.config.read_text() == ""


def test_a_long_text_in_a_clients_file_is_looked_at_once(user):
    user.file("claude-code", json.dumps({"history": ["0af" * 100_000, "a://" * 50_000], "mcpServers": {}}))
    user.done("install claude-code --yes")


BAD_NAMES = ["", " ", "a\nb", "a\x1b[2Jb", "a\u202eb", "n" * 300, " a"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_cannot_be_read_is_refused(user, name):
    ended = user.run(f"servers add {shlex.quote(name)} -- x")
    assert (ended.exit_code, "A server can't be called" in ended.output) == (2, True)
    assert "A server can't be called" in user.run(f"install cursor --yes --name {shlex.quote(name)}").output
    user.file("cursor", json.dumps({"mcpServers": {name: {"command": "x"}, "My Git": {"command": "y"}}}))
    said = user.done("servers import cursor --yes")
    assert "is left out: its name" in said
    assert "\x1b" not in said
    assert set(tomllib.loads(user.config.read_text())["servers"]) == {"My Git"}
    user.done("install cursor --take-over --yes")
    assert set(user.servers("cursor")) == {"bridge", name}


def test_a_service_is_added_by_its_document(user):
    document = "https://api.example.com/openapi.json"
    user.done(f"servers add api --openapi {document} --base-url https://api.example.com/v1 --operation 'GET /pets/*'")
    table = tomllib.loads(user.config.read_text())["servers"]["api"]
    assert table == {
        "openapi": document,
        "base_url": "https://api.example.com/v1",
        "operations": ["GET /pets/*"],
    }
    said = user.done("servers add local --openapi openapi.yaml")
    assert f"There is no {user.folder / 'openapi.yaml'} yet." in said
    assert Path(tomllib.loads(user.config.read_text())["servers"]["local"]["openapi"]).is_absolute()
    assert user.run("servers add both --openapi a.json --url https://api.example.com/mcp").exit_code == 2


@pytest.mark.parametrize(
    "line", [
        "servers add x --url ftp://x",
            "servers add x --url https://u:p@example.com",
                "servers add x --openapi https://example.com/a#b",
                    "servers add x --url https://example.com --header 'Host=x'",
                        "servers add x",
                            "servers add x --env A -- y",
                                "servers add x --url u -- y", "servers add x --url u --env A=1"])  # fmt: skip
def test_what_is_no_server_is_not_added(user, line):
    assert user.run(line).exit_code == 2
    assert not user.config.exists()


def test_a_clients_servers_are_copied_and_stay_there(user):
    path = user.file("gemini", busy("gemini"), mode=0o600)
    user.config.parent.mkdir(parents=True)
    user.config.write_text("")
    user.config.chmod(0o644)
    assert "server_not_configured" in user.run("servers import gemini nope --yes").output
    said = user.done("servers import gemini --yes")
    assert "s3cret-of-mine" not in said
    assert path.read_text() == busy("gemini")
    assert user.found().servers["git"].env == {"TOKEN": "s3cret-of-mine"}
    assert stat.S_IMODE(user.config.stat().st_mode) == 0o600, "as private as it was"
    assert "nothing to import" in user.done("servers import gemini --yes")
    assert "nothing to import" in user.done("servers import zed --yes")


@pytest.mark.parametrize("secret", ["pa$$word-of-mine", "${A}pa55word-of-mine", "-----BEGIN\nof-mine\n", "a/b+of-mine"])
def test_secrets_are_not_shown_however_they_are_written(user, secret):
    written = json.dumps({"mcpServers": {"git": {"command": "x", "env": {"K": secret}}}}, indent=1)
    user.file("cursor", written.replace("/", "\\/").replace("+", "\\u002b"))
    assert "of-mine" not in user.done("install cursor --yes")
    multiline = f'"""{secret}"""' if "\n" in secret else f"'{secret}'"
    user.file("codex", f"[mcp_servers.git]\ncommand = 'x'\n[mcp_servers.git.env]\nK = {multiline}\n")
    assert "of-mine" not in user.done("install codex --take-over --yes")


@pytest.mark.parametrize(
    "address",
    [
        "https://example.com/mcp?key=pa55word-of-mine",
        "https://me:pa55word-of-mine@example.com/mcp",
        "https://example.com/mcp#pa55word-of-mine",
        "${BASE}?key=pa55word-of-mine",
        "postgresql://appuser:pa55word-of-mine@db.example.com/prod",
        "mongodb+srv://me:p@55word-of-mine@cluster.example.com/?w=majority",
        "redis://:of-mine@cache.example.com:6379/0",
        "postgresql://me:of-mine#pa55/word@db.example.com/prod",
        "-x1https://me/of-mine:?@db.example.com/prod",
    ],
)
def test_an_addresses_query_and_user_are_not_shown(user, address):
    servers = {"a": {"type": "http", "url": address}, "b": {"command": "npx", "args": ["mcp-remote", address]}}
    user.file("claude-code", json.dumps({"mcpServers": servers}, indent=1).replace("=", "\\u003d"))
    said = user.done("servers import claude-code --yes")
    assert "of-mine" not in said
    assert "…" in said
    assert "of-mine" not in user.done("install claude-code --yes")
    assert tomllib.loads(user.config.read_text())["servers"]["a"]["url"] == address


def test_a_short_user_of_an_address_is_not_shown_and_the_host_is(user):
    args = ["https://u:p@a.example.com/x", "https://tok@b.example.com", "https://c.example.com/x?k"]
    user.file("cursor", json.dumps({"mcpServers": {"a": {"command": "npx", "args": args}}}, indent=1))
    said = user.done("install cursor --take-over --yes")
    for shown in ("https://…@a.example.com/x", "https://…@b.example.com", "https://c.example.com/x?…"):
        assert said.count(shown) == 2, "where it goes, and where it comes"
    assert tomllib.loads(user.config.read_text())["servers"]["a"]["args"] == args


@pytest.mark.parametrize("client", [client for client in PROGRAMS if CLIENTS[client].syntax != "toml"])
def test_a_null_in_place_of_servers_takes_the_bridge_and_returns(user, client):
    text = f'{{"{CLIENTS[client].servers[0]}": null, "x": 1}}'
    path = user.file(client, text)
    user.done(f"install {client} --yes")
    assert starts_the_bridge(user.servers(client)["bridge"])
    user.done(f"install {client} --uninstall --yes")
    assert path.read_text() == text


def test_files_are_written_where_the_clients_variables_say(user, tmp_path, monkeypatch):
    for client, variable, file in (
        ("claude-code", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("gemini", "GEMINI_CLI_HOME", ".gemini/settings.json"),
    ):
        user.env[variable] = str(tmp_path / client)
        monkeypatch.setenv(variable, user.env[variable])
        path = user.file(client, busy(client))
        assert path == tmp_path / client / file
        user.done(f"install {client} --take-over --yes")
        assert set(user.servers(client, path)) == {"bridge"}
        user.done(f"install {client} --uninstall --yes")
        assert path.read_text() == busy(client)
        assert not (user.home / file).exists()


def test_a_folders_link_to_a_file_elsewhere_is_told(user):
    elsewhere = user.file("cursor", "{}")
    (user.folder / ".cursor").symlink_to(elsewhere.parent)
    assert f"leads out of the folder: {elsewhere} is changed" in user.done("install cursor --project --yes")


def test_a_variable_is_shown_by_its_name(user):
    user.file("cursor", json.dumps({"mcpServers": {"git": {"command": "x", "env": {"K": "${env:TOKEN}"}}}}))
    assert "${env:TOKEN}" in user.done("install cursor --yes")


def test_a_dollar_that_begins_no_name_stays_one(user):
    user.file("gemini", json.dumps({"mcpServers": {"git": {"command": "x", "env": {"A": "pa$5word", "B": "$TOKEN"}}}}))
    user.done("servers import gemini --yes")
    assert tomllib.loads(user.config.read_text())["servers"]["git"]["env"] == {
        "A": "pa$5word",
        "B": "${TOKEN:-$TOKEN}",
    }


def test_what_was_moved_is_recorded_before_it_leaves_its_client(user, monkeypatch):
    path = user.file("cursor", busy("cursor"))
    user.done("servers import cursor --yes")

    def killed(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mcp_bridge.cli.configuration_edits.file_edits.sync_directory", killed)
        CliRunner().invoke(app, shlex.split("install cursor --take-over --yes"))
    assert "git" not in user.servers("cursor"), "the kill came after the client's file was replaced"
    user.done("install cursor --uninstall --yes")
    assert loads(path.read_bytes(), "jsonc") == loads(busy("cursor").encode(), "jsonc")


# --- clients that nobody here wrote ---


def listed(user, package, *arguments):
    """What a client says of its servers."""
    env = user.env | {"CI": "1", "DISABLE_AUTOUPDATER": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    env |= {
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
    env |= {
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "https_proxy": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
    }
    env = {name: value for name, value in env.items() if value}
    ended = subprocess.run(
        [*program(package), *arguments],
        capture_output=True,
        text=True,
        env=env,
        cwd=user.folder,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    return ended.stdout + ended.stderr


REAL = {
    "claude-code": ("@anthropic-ai/claude-code/cli-wrapper.cjs", ["mcp", "get", "bridge"]),
    "codex": ("@openai/codex/bin/codex.js", ["mcp", "list", "--json"]),
    "gemini": ("@google/gemini-cli/bundle/gemini.js", ["mcp", "list"]),
    "opencode": ("opencode-linux-x64-baseline/bin/opencode", ["mcp", "list"]),
}


@pytest.mark.parametrize("client", REAL)
def test_a_real_client_reads_what_was_written_and_what_is_left(user, client):
    text = {"codex": '# mine\nmodel = "x"\n', "gemini": "{\n  // mine\n}\n", "opencode": "{\n  // mine\n}\n"}.get(
        client
    )
    if text is not None:
        user.file(client, text)
    user.done(f"install {client} --yes")
    package, arguments = REAL[client]
    said = listed(user, package, *arguments)
    assert "bridge" in said, said
    assert COMMAND in said, said
    user.done(f"install {client} --uninstall --yes")
    said = listed(user, package, *arguments)
    assert COMMAND not in said, said


@pytest.mark.parametrize(("client", "variable"), [("claude-code", "CLAUDE_CONFIG_DIR"), ("gemini", "GEMINI_CLI_HOME")])
def test_a_real_client_reads_what_was_written_where_its_variable_says(user, tmp_path, monkeypatch, client, variable):
    user.env[variable] = str(tmp_path / "elsewhere")
    monkeypatch.setenv(variable, user.env[variable])
    user.done(f"install {client} --yes")
    package, arguments = REAL[client]
    said = listed(user, package, *arguments)
    assert COMMAND in said, said


def test_what_claude_code_adds_without_a_scope_moves_and_returns(user):
    package, look = REAL["claude-code"][0], ["mcp", "get", "git"]
    # A command that ends at once: `mcp get` starts it, and `uvx` would look for the server first.
    said = listed(user, package, "mcp", "add", "git", "-e", "TOKEN=x", "--", "false", "mcp-server-git")
    assert "local" in said, said
    assert "mcp-server-git" in listed(user, package, *look)
    user.done("install claude-code --take-over --yes")
    assert tomllib.loads(user.config.read_text())["servers"]["git"]["env"] == {"TOKEN": "x"}
    said = listed(user, package, *look)
    assert "mcp-server-git" not in said, said
    user.done("install claude-code --uninstall --yes")
    said = listed(user, package, *look)
    assert "mcp-server-git" in said, said
    assert "servers" not in tomllib.loads(user.config.read_text())


def test_what_of_an_entry_is_not_used_is_told_at_its_server_and_not_of_its_file(user):
    mine = REMOTE | {"type": "http", "oauth": {"authServerMetadataUrl": "https://e.com/x"}}
    servers = {"mine": mine, "off": mine | {"url": "https://example.com/off", "disabled": True}}
    user.file("claude-code", json.dumps({"mcpServers": servers}))
    # Of a client whose files aren't read, nothing is told.
    user.file("cursor", json.dumps({"mcpServers": {"other": REMOTE | {"auth": {"CLIENT_ID": "id"}}}}))
    why = "oauth uses authServerMetadataUrl"
    said = user.done("servers list")
    assert f"mine: not used: {why}" in said
    assert said.count(why) == 1
    assert json.loads(user.done("servers list --json"))["problems"] == []
    said = user.run("doctor").output
    assert said.count(why) == 1
    assert "registered for Cursor" not in said
    assert "bad_client_config" not in user.run("servers status").output


def test_many_servers_return_in_one_edit(user, monkeypatch):
    servers = {f"s{number}": {"command": "x"} for number in range(60)}
    path = user.file("cursor", json.dumps({"mcpServers": servers}, indent=2))
    user.done("install cursor --take-over --yes")
    # Changed since, it isn't put back as a whole.
    path.write_text(path.read_text() + "\n")
    looks, plain = [], jsonc.plain
    monkeypatch.setattr(jsonc, "plain", lambda text, **how: looks.append(1) or plain(text, **how))
    user.done("install cursor --uninstall --yes")
    assert user.servers("cursor") == servers
    assert len(looks) < len(servers)
