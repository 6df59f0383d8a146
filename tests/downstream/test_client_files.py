"""Servers from every client's files: read as their client reads them, and never written."""

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.downstream.configuration import jsonc
from mcp_bridge.downstream.configuration.client_entries import CODEX_VARIABLES
from mcp_bridge.downstream.configuration.client_file_reading import loads
from mcp_bridge.downstream.configuration.discovery import discover, entries_beneath, folder_table, user_servers
from mcp_bridge.downstream.configuration.known_clients import CLIENT_NAMES, CLIENTS
from mcp_bridge.downstream.configuration.self_reference.addresses import OwnAddress
from mcp_bridge.downstream.configuration.spec import CALL_TIMEOUT, ServerSpec
from mcp_bridge.downstream.configuration.tool_filter import lets_through
from mcp_bridge.workspace.folder_content import (
    CLIENT_FILES,
    MAX_DIRECTORY_ENTRIES,
    content_of,
    folder_of,
)
from mcp_bridge.workspace.trust import TrustStore

LOCAL = {"command": "/opt/server", "args": ["-v", "x"], "env": {"A": "1"}}


def local(client):
    """A file's text with one server, `mine`, as the client's documentation has it."""
    if client == "codex":
        return '[mcp_servers.mine]\ncommand = "/opt/server"\nargs = ["-v", "x"]\nenv = { A = "1" }\n'
    entry = LOCAL
    if client == "opencode":
        entry = {"type": "local", "command": ["/opt/server", "-v", "x"], "environment": {"A": "1"}}
    if client == "vscode":
        entry = {"type": "stdio"} | LOCAL
    return json.dumps({CLIENTS[client].servers[0]: {"mine": entry}})


class User:
    """A home directory and a folder, with files of clients."""

    def __init__(self, tmp_path):
        self.home, self.folder, self.state = tmp_path / "home", tmp_path / "folder", tmp_path / "state"
        for path in (self.home, self.folder):
            path.mkdir()
        self.trust = TrustStore(self.state)
        self.environ = {}

    def file(self, client):
        return CLIENTS[client].user_path(self.home, self.environ)

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def find(self, *clients, cwd=None, **options):
        return discover(
            {}, config_file="bridge.toml", environ=self.environ, cwd=cwd or self.folder, home=self.home,
            clients=clients, trust=self.trust, **options,
        )  # fmt: skip

    def trusted(self, client, path, folder=None):
        """Trust a folder's file as `mcp-bridge trust` does."""
        file = (folder or self.folder).resolve() / path
        data = file.read_bytes()
        of = CLIENTS[client]
        beneath = entries_beneath(of, file, environ=self.environ, home=self.home, trust=self.trust)
        self.trust.record(content_of(file, data, folder_table(of, loads(data, of.syntax), file, beneath)))


@pytest.fixture
def user(tmp_path):
    return User(tmp_path)


def one(user, client, entry, **settings):
    """The server of one JSON entry in a client's file."""
    user.write(user.file(client), json.dumps({CLIENTS[client].servers[0]: {"mine": entry}} | settings))
    return user.find(client).servers["mine"]


# --- which files are read ---


@pytest.mark.parametrize("client", CLIENT_NAMES)
def test_a_client_that_is_named_has_its_users_servers_read(user, client):
    path = user.write(user.file(client), local(client))
    spec = user.find(client).servers["mine"]
    assert (spec.command, spec.args, dict(spec.env)) == ("/opt/server", ("-v", "x"), {"A": "1"})
    assert (spec.scope, spec.source, spec.problem, spec.enabled) == ("user", str(path), None, True)


def test_no_other_clients_are_read(user):
    for client in CLIENT_NAMES:
        user.write(user.file(client), local(client))
    assert list(user.find("claude-code").servers) == ["mine"]
    assert not user.find().servers


def test_the_first_client_named_wins_and_what_it_shadows_is_told(user):
    cursor = user.write(user.file("cursor"), json.dumps({"mcpServers": {"a": {"command": "one"}}}))
    zed = user.write(user.file("zed"), json.dumps({"context_servers": {"a": {"command": "two"}}}))
    found = user.find("zed", "cursor")
    assert found.servers["a"].command == "two"
    assert [(row.name, row.file, row.reason) for row in found.skipped] == [
        ("a", str(cursor), f"user scope ({zed}) has a server of this name.")
    ]
    assert user.find("cursor", "zed").servers["a"].command == "one"


def test_a_server_that_two_clients_have_is_one_under_whatever_name(user):
    same = {"command": "npx", "args": ["-y", "thing"], "env": {"K": "v"}}
    user.write(user.file("cursor"), json.dumps({"mcpServers": {"mine": same, "copy": same}}))
    other = same | {"env": {"K": "another account"}}
    user.write(user.file("gemini"), json.dumps({"mcpServers": {"theirs": same, "other": other}}))
    found = user.find("cursor", "gemini", safe_directory=user.home)
    assert set(found.servers) == {"mine", "copy", "other"}, "in one file, two names are meant"
    [skipped] = found.skipped
    assert skipped.name == "theirs"
    assert skipped.reason == f"it is the same server as mine of user scope ({user.file('cursor')})."


def test_a_server_that_is_switched_off_in_one_client_hides_none_in_another(user):
    user.write(user.file("cursor"), json.dumps({"mcpServers": {"a": LOCAL | {"disabled": True}}}))
    user.write(user.file("windsurf"), json.dumps({"mcpServers": {"b": LOCAL}}))
    found = user.find("cursor", "windsurf").servers
    assert (found["a"].enabled, found["b"].enabled) == (False, True)


@pytest.mark.parametrize("client", CLIENT_NAMES)
def test_the_bridge_itself_is_left_out_of_every_clients_servers(user, client):
    text = local(client).replace("/opt/server", "/usr/bin/mcp-bridge").replace('"-v", "x"', '"serve"')
    user.write(user.file(client), text)
    found = user.find(client)
    assert not found.servers
    assert [row.is_self for row in found.skipped] == [True]
    found = user_servers(client, environ={}, cwd=user.folder, home=user.home, own_address=OwnAddress())
    assert found == ([], [])


def test_files_are_where_the_environment_has_put_them(user, tmp_path):
    user.environ = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "CODEX_HOME": str(tmp_path / "codex")}
    user.write(tmp_path / "xdg/zed/settings.json", local("zed"))
    user.write(tmp_path / "codex/config.toml", local("codex"))
    assert [spec.source for spec in user.find("zed", "codex").servers.values()] == [
        str(tmp_path / "xdg/zed/settings.json")
    ]
    user.environ = {"CODEX_HOME": "codex"}
    assert not user.find("codex").servers, "a relative path is none"


def test_claude_code_and_gemini_have_their_files_where_their_variables_say(user, tmp_path):
    claude, gemini = tmp_path / "claude", tmp_path / "gemini"
    for client in ("claude-code", "gemini"):
        user.write(user.file(client), '{"mcpServers": {"old": {"command": "x"}}}')
    assert {spec.source for spec in user.find("claude-code").servers.values()} == {str(user.home / ".claude.json")}
    user.environ = {"CLAUDE_CONFIG_DIR": str(claude), "GEMINI_CLI_HOME": str(gemini)}
    servers = {"mcpServers": {"here": LOCAL}, "hasTrustDialogAccepted": True}
    user.write(
        claude / ".claude.json",
        json.dumps({"mcpServers": {"mine": LOCAL | {"args": []}}, "projects": {str(user.folder): servers}}),
    )
    user.write(claude / "settings.json", '{"enabledMcpjsonServers": ["approved"]}')
    user.write(user.home / ".claude/settings.json", '{"enableAllProjectMcpServers": true}')
    entries = {name: {"command": name} for name in ("approved", "stranger")}
    user.write(user.folder / ".mcp.json", json.dumps({"mcpServers": entries}))
    assert set(user.find("claude-code").servers) == {"here", "approved", "mine"}
    user.write(gemini / ".gemini/settings.json", local("gemini"))
    assert [spec.source for spec in user.find("gemini").servers.values()] == [str(gemini / ".gemini/settings.json")]
    user.write(user.folder / "rel/.claude.json", '{"mcpServers": {"stranger": {"command": "x"}}}')
    user.environ = {"CLAUDE_CONFIG_DIR": "rel"}
    assert "stranger" not in user.find("claude-code", cwd=user.folder).servers, "a folder's file is not the user's"


def test_opencodes_files_are_one_and_a_later_one_changes_a_part(user):
    user.write(user.home / ".config/opencode/opencode.json", local("opencode"))
    user.write(user.home / ".config/opencode/opencode.jsonc", '{"mcp": {"mine": {"enabled": false}} /* off */}')
    spec = user.find("opencode").servers["mine"]
    assert (spec.command, spec.enabled) == ("/opt/server", False)


# --- what is switched off, whichever file says so ---


def test_what_claude_codes_user_has_switched_off_for_the_folder_is_not_started(user):
    entries = {name: {"command": name} for name in ("a", "b", "c")}
    projects = {
        str(user.folder): {"disabledMcpServers": ["a", "d"], "mcpServers": {"d": {"command": "d"}}},
        "/elsewhere": {"disabledMcpServers": ["b"]},
    }
    user.write(user.file("claude-code"), json.dumps({"mcpServers": entries, "projects": projects}))
    denied = [{"serverName": "c"}, {"serverUrl": "https://*.example.com/*"}, {"serverCommand": ["e", "x"]}]
    user.write(user.home / ".claude/settings.json", json.dumps({"deniedMcpServers": denied}))
    theirs = {
        "a": {"command": "a", "args": ["of the folder"]},
        "e": {"command": "e", "args": ["x"]},
        "f": {"command": "e"},
        "g": {"url": "https://a.example.com/mcp"},
    }
    user.write(user.folder / ".mcp.json", json.dumps({"mcpServers": theirs}))
    user.trusted("claude-code", ".mcp.json")
    found = {name: spec.enabled for name, spec in user.find("claude-code").servers.items()}
    assert found == {"a": False, "b": True, "c": False, "d": False, "e": False, "f": True, "g": False}


def gemini_file(*names, **mcp):
    return json.dumps({"mcpServers": {name: {"command": name} for name in names}, "mcp": mcp})


def test_geminis_lists_hold_for_the_servers_of_every_file(user):
    user.write(user.file("gemini"), gemini_file("u", "v", "w", excluded=["p"]))
    path = user.write(user.folder / ".gemini/settings.json", gemini_file("p", "q", excluded=["u"], allowed=["q", "v", "p", "u"]))  # fmt: skip
    before = user.find("gemini")
    assert {name: spec.enabled for name, spec in before.servers.items()} == {"u": True, "v": True, "w": True}
    assert [row.file for row in before.ignored_files] == [str(path)]
    user.trusted("gemini", ".gemini/settings.json")
    found = {name: spec.enabled for name, spec in user.find("gemini").servers.items()}
    assert found == {"u": False, "v": True, "w": False, "p": False, "q": True}


def test_a_folder_gives_nothing_back_that_the_user_has_excluded(user):
    user.write(user.file("gemini"), gemini_file("u", "v", allowed=["v"]))
    user.write(user.folder / ".gemini/settings.json", gemini_file("p", excluded=[], allowed=["u", "v", "p"]))
    user.trusted("gemini", ".gemini/settings.json")
    found = {name: spec.enabled for name, spec in user.find("gemini").servers.items()}
    assert found == {"u": False, "v": True, "p": False}


def test_what_is_switched_off_with_geminis_own_command_is_not_started(user):
    user.write(user.file("gemini"), gemini_file("Mine", "other"))
    switches = user.write(user.home / ".gemini/mcp-server-enablement.json", '{"mine": {"enabled": false}, "other": {}}')
    found = {name: spec.enabled for name, spec in user.find("gemini").servers.items()}
    assert found == {"Mine": False, "other": True}
    assert switches in set(CLIENTS["gemini"].watched_paths(user.home, user.environ, [user.folder]))


def test_a_file_that_only_switches_off_takes_part_once_it_is_trusted_and_is_told_before(user):
    user.write(user.file("gemini"), gemini_file("u"))
    user.write(user.folder / ".gemini/settings.json", '{"mcp": {"excluded": ["u"]}}')
    found = user.find("gemini")
    assert found.servers["u"].enabled
    assert [(row.code, row.servers) for row in found.ignored_files] == [("untrusted_file", ())]
    user.trusted("gemini", ".gemini/settings.json")
    assert not user.find("gemini").servers["u"].enabled


def opencode_file(*names, **settings):
    return json.dumps({"mcp": {name: {"type": "local", "command": [name]} for name in names}} | settings)


def test_what_opencodes_files_switch_off_is_off_whichever_has_the_server(user):
    user.write(user.file("opencode"), opencode_file("op", "u", tools={"op_out*": False, "u_*": False, "u_r*": True}))
    tools = {"u_read": False, "u_write": True, "op_in": False, "op_out_x": True}
    user.write(user.folder / "opencode.json", opencode_file("op", tools=tools))
    user.trusted("opencode", "opencode.json")
    found = user.find("opencode").servers

    def there(name, *tools):
        return [tool for tool in tools if lets_through(found[name], tool)]

    assert there("op", "out", "out_x", "in", "on") == ["on"], "a folder takes away, and gives nothing back"
    assert there("u", "read", "run", "write") == ["run"]


# --- files of which one changes a part of another ---


def test_a_trusted_folders_part_changes_the_users_entry_of_codex(user):
    user.write(user.file("codex"), '[mcp_servers.cx]\ncommand = "x"\nargs = ["y"]\nenv = { A = "1", B = "2" }\n')
    path = user.write(user.folder / ".codex/config.toml", '[mcp_servers.cx]\ntool_timeout_sec = 5\nenv = { B = "3" }\n')
    found = user.find("codex")
    assert (found.servers["cx"].call_timeout, dict(found.servers["cx"].env)) == (CALL_TIMEOUT, {"A": "1", "B": "2"})
    assert [row.file for row in found.ignored_files] == [str(path)]
    user.trusted("codex", ".codex/config.toml")
    found = user.find("codex")
    spec = found.servers["cx"]
    assert (spec.command, spec.args, dict(spec.env)) == ("x", ("y",), {"A": "1", "B": "3"})
    assert (spec.call_timeout, spec.scope, spec.source, spec.problem) == (5, "project", str(path), None)
    assert not found.skipped, "the user's entry is in it"


def test_opencodes_files_of_the_user_and_of_folders_are_one_from_the_users_up(user):
    (user.folder / "repository/.git").mkdir(parents=True)
    inner = user.folder / "repository/src"
    inner.mkdir()
    mine = {"type": "local", "command": ["/opt/server"], "enabled": False, "environment": {"A": "1"}}
    user.write(user.home / ".config/opencode/opencode.json", json.dumps({"mcp": {"mine": mine}}))
    user.write(user.home / ".config/opencode/opencode.jsonc", '{"mcp": {"mine": {"environment": {"B": "2"}}}}')
    user.write(
        user.folder / "repository/opencode.json", '{"mcp": {"mine": {"enabled": true, "environment": {"C": "3"}}}}'
    )
    user.write(inner / "opencode.json", '{"mcp": {"mine": {"environment": {"C": "4"}}}}')
    spec = user.find("opencode", cwd=inner).servers["mine"]
    assert (dict(spec.env), spec.enabled) == ({"A": "1", "B": "2"}, False), "an untrusted folder changes nothing"
    user.trusted("opencode", "opencode.json", inner)
    spec = user.find("opencode", cwd=inner).servers["mine"]
    assert (dict(spec.env), spec.enabled) == ({"A": "1", "B": "2", "C": "4"}, False)
    user.trusted("opencode", "opencode.json", user.folder / "repository")
    spec = user.find("opencode", cwd=inner).servers["mine"]
    assert (dict(spec.env), spec.enabled) == ({"A": "1", "B": "2", "C": "3"}, True), "the inner part was another whole"
    user.trusted("opencode", "opencode.json", inner)
    spec = user.find("opencode", cwd=inner).servers["mine"]
    assert (dict(spec.env), spec.enabled, spec.problem) == ({"A": "1", "B": "2", "C": "4"}, True, None)


BEARER = "s3cret"
OPENCODE = ("opencode", "opencode.json", json.dumps({"mcp": {"gh": {"type": "remote", "url": "https://theirs.example/"}}}),
    json.dumps({"mcp": {"gh": {"type": "remote", "url": "https://mine.example/", "headers": {"Authorization": BEARER}}}}))  # fmt: skip
CODEX = ("codex", ".codex/config.toml", '[mcp_servers.gh]\nurl = "https://theirs.example/"\n',
    '[mcp_servers.gh]\nurl = "https://mine.example/"\nbearer_token_env_var = "TOKEN"\n')  # fmt: skip


def forget_entries(user, file):
    """Make the record of a file one of an earlier version."""
    [path] = [
        path for path in (user.state / "trust").glob("*.json") if json.loads(path.read_text())["file"] == str(file)
    ]
    record = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in record.items() if key != "entries"}))


@pytest.mark.parametrize(("client", "name", "theirs", "mine"), [OPENCODE, CODEX])
def test_credentials_that_the_user_adds_later_dont_go_to_a_trusted_folders_address(user, client, name, theirs, mine):
    user.environ["TOKEN"] = BEARER
    path = user.write(user.folder / name, theirs)
    user.trusted(client, name)
    assert (user.find(client).servers["gh"].url, user.find(client).ignored_files) == ("https://theirs.example/", [])
    user.write(user.file(client), mine)
    found = user.find(client)
    assert (found.servers["gh"].url, found.servers["gh"].scope) == ("https://mine.example/", "user")
    assert [(row.code, row.file) for row in found.ignored_files] == [("changed_file", str(path))]
    user.trusted(client, name)
    spec = user.find(client).servers["gh"]
    assert (spec.url, BEARER in str(dict(spec.headers))) == ("https://theirs.example/", True), "as it was shown then"
    user.file(client).unlink()
    assert "gh" not in user.find(client).servers, "without the user's it is another whole again"


@pytest.mark.parametrize(("client", "name", "theirs", "mine"), [OPENCODE, CODEX])
def test_a_record_that_says_nothing_of_what_is_beneath_counts_for_no_part_of_it(user, client, name, theirs, mine):
    user.environ["TOKEN"] = BEARER
    path = user.write(user.folder / name, theirs)
    user.trusted(client, name)
    forget_entries(user, path)
    assert user.find(client).servers["gh"].url == "https://theirs.example/", "nothing is beneath"
    user.write(user.file(client), mine)
    user.trusted(client, name)
    forget_entries(user, path)
    found = user.find(client)
    assert (found.servers["gh"].url, [row.code for row in found.ignored_files]) == (
        "https://mine.example/",
        ["changed_file"],
    )


def test_a_part_that_was_trusted_over_an_outer_folders_entry_isnt_put_over_the_users(user):
    outer, inner = user.folder / "repository", user.folder / "repository/src"
    (outer / ".git").mkdir(parents=True)
    inner.mkdir()
    user.write(user.file("opencode"), OPENCODE[3])
    user.write(outer / "opencode.json", '{"mcp": {"gh": {"headers": {"Authorization": "none"}}}}')
    user.write(inner / "opencode.json", OPENCODE[2])
    for folder in (outer, inner):
        user.trusted("opencode", "opencode.json", folder)
    spec = user.find("opencode", cwd=inner).servers["gh"]
    assert (spec.url, dict(spec.headers)) == ("https://theirs.example/", {"Authorization": "none"})
    user.write(outer / "opencode.json", "{}")
    assert user.find("opencode", cwd=inner).servers["gh"].url == "https://mine.example/"


def test_a_record_of_when_a_command_counted_before_an_address_doesnt_count_for_the_address(user):
    entry = {"command": "harmless", "url": "https://theirs.example/", "headers": {"K": "$TOKEN"}}
    path = user.write(user.folder / ".gemini/settings.json", json.dumps({"mcpServers": {"g": entry}}))
    user.trusted("gemini", ".gemini/settings.json")
    assert user.find("gemini").servers["g"].url == "https://theirs.example/"
    forget_entries(user, path)
    found = user.find("gemini")
    assert (found.servers, [row.code for row in found.ignored_files]) == ({}, ["changed_file"])


def test_a_command_over_the_users_address_is_a_problem_as_it_is_for_codex(user):
    user.write(user.file("codex"), CODEX[3])
    user.write(user.folder / ".codex/config.toml", '[mcp_servers.gh]\ncommand = "x"\n')
    user.trusted("codex", ".codex/config.toml")
    assert user.find("codex").servers["gh"].problem == "command and url are both set, and Codex takes one of them."


def test_the_users_part_has_files_read_and_the_folders_has_not(user):
    user.write(user.home / ".config/opencode/key", "k3y\n")
    mine = {"type": "local", "command": ["x"], "environment": {"KEY": "{file:key}"}}
    user.write(user.file("opencode"), json.dumps({"mcp": {"mine": mine}}))
    user.write(user.folder / "opencode.json", '{"mcp": {"mine": {"timeout": 5000}}}')
    user.trusted("opencode", "opencode.json")
    spec = user.find("opencode").servers["mine"]
    assert (dict(spec.env), spec.call_timeout) == ({"KEY": "k3y"}, 5)
    user.write(user.folder / "opencode.json", '{"mcp": {"mine": {"environment": {"X": "{file:~/.ssh/id}"}}}}')
    user.trusted("opencode", "opencode.json")
    assert "a folder's entry can't have files read" in user.find("opencode").servers["mine"].problem


def test_a_command_of_the_users_is_kept_from_the_folders_code_though_the_folder_changes_a_part(user, tmp_path):
    user.write(user.file("codex"), '[mcp_servers.cx]\ncommand = "npx"\nargs = ["-y", "thing"]\n')
    before = user.find("codex", safe_directory=tmp_path).servers["cx"]
    assert before != user.find("codex").servers["cx"]
    user.write(user.folder / ".codex/config.toml", "[mcp_servers.cx]\ntool_timeout_sec = 5\n")
    user.trusted("codex", ".codex/config.toml")
    spec = user.find("codex", safe_directory=tmp_path).servers["cx"]
    assert (spec.args, spec.env, spec.cwd, spec.call_timeout) == (before.args, before.env, before.cwd, 5)
    user.write(user.folder / ".codex/config.toml", '[mcp_servers.cx]\ncommand = "npx"\n')
    user.trusted("codex", ".codex/config.toml")
    spec = user.find("codex", safe_directory=tmp_path).servers["cx"]
    assert spec == user.find("codex").servers["cx"], "the folder's own command is for the folder"


def test_a_script_of_the_folder_that_a_part_leads_to_is_trusted_with_it(user):
    user.write(user.file("codex"), '[mcp_servers.cx]\ncommand = "python3"\nargs = ["server.py"]\n')
    script = user.write(user.folder / "tools/server.py", "1")
    user.write(user.folder / ".codex/config.toml", '[mcp_servers.cx]\ncwd = "tools"\n')
    user.trusted("codex", ".codex/config.toml")
    assert list(user.find("codex").servers["cx"].scripts) == [str(script)]
    script.write_text("evil")
    found = user.find("codex")
    assert [row.code for row in found.ignored_files] == ["changed_file"]
    assert found.servers["cx"].cwd is None


# --- directories of servers ---


def listing(**commands):
    return json.dumps({"mcpServers": {name: {"command": command} for name, command in commands.items()}})


def test_directories_list_servers_in_files_by_name_the_first_counts(user):
    user.environ = {"VALUE": "x"}
    user.write(user.home / "MCPs/b.json", listing(one="MCPs/b", two="${VALUE}"))
    user.write(user.home / "MCPs/a.json", listing(one="MCPs/a"))
    user.write(user.home / "MCPs/notes.txt", "no file of servers")
    user.write(user.home / "MCPs/.hidden.json", "{")
    user.write(user.home / "MCPs/broken.json", "{")
    user.write(user.home / ".config/mcp/servers/c.json", listing(one="config", two="config", three="config"))
    found = user.find("directories")
    commands = {name: (spec.command, Path(spec.source).name, spec.scope) for name, spec in found.servers.items()}
    assert commands == {
        "one": ("MCPs/a", "a.json", "user"),
        "two": ("x", "b.json", "user"),
        "three": ("config", "c.json", "user"),
    }
    assert [Path(problem.file).name for problem in found.problems] == ["broken.json"]
    assert not user.find("claude-code").servers, "only where they are named"


def test_a_folders_directory_counts_before_the_users_file_by_file_once_it_is_trusted(user):
    user.write(user.home / "MCPs/a.json", listing(one="mine"))
    for name in ("a", "b"):
        user.write(user.folder / f"mcp-servers/{name}.json", listing(one=f"folder {name}", other="x"))
    found = user.find("directories")
    assert found.servers["one"].command == "mine"
    assert [(Path(row.file).name, row.servers) for row in found.ignored_files] == [
        ("a.json", ("one", "other")),
        ("b.json", ("one", "other")),
    ]
    user.trusted("directories", "mcp-servers/b.json")
    found = user.find("directories")
    assert (found.servers["one"].command, found.servers["one"].scope) == ("folder b", "project")
    assert [Path(row.file).name for row in found.ignored_files] == ["a.json"]


def test_a_file_that_is_a_clients_in_the_directory_itself_lists_nothing_for_the_folder_above(user):
    """What is trusted of it, as that client's, is something else."""
    inner = user.folder / "mcp-servers"
    for name in CLIENT_FILES:
        user.write(inner / name, listing(evil="evil"))
    user.trusted("opencode", "opencode.json", inner)
    user.trusted("claude-code", ".mcp.json", inner)
    found = user.find("directories")
    assert (found.servers, found.ignored_files) == ({}, [])


def test_a_file_that_comes_into_a_directory_is_seen(user):
    path = user.write(user.folder / "mcp-servers/a.json", listing(one="x"))
    watched = set(CLIENTS["directories"].watched_paths(user.home, user.environ, [user.folder]))
    assert watched == {path, path.parent, user.home / "MCPs", user.home / ".config/mcp/servers"}
    assert CLIENTS["cursor"].project_paths(user.folder) == [user.folder / ".cursor/mcp.json"]


def test_of_a_directory_without_end_the_beginning_is_looked_at(user):
    directory = user.folder / "mcp-servers"
    directory.mkdir()
    for number in range(MAX_DIRECTORY_ENTRIES + 50):
        (directory / f"{number}.json").write_text(listing(a="x"))
    assert len(user.find("directories").ignored_files) == MAX_DIRECTORY_ENTRIES


# --- what a folder brings ---

FOLDER_FILES = [
    (client.name, name.replace("*", "mine")) for client in CLIENTS.values() for name in client.project_files
]


def test_every_file_of_a_folder_is_known_to_the_workspace(tmp_path):
    assert {name for _, name in FOLDER_FILES} == {*CLIENT_FILES, "mcp-servers/mine.json"}
    assert {folder_of(tmp_path / name) for _, name in FOLDER_FILES} == {tmp_path}


@pytest.mark.parametrize(("client", "name"), FOLDER_FILES)
def test_a_folders_file_starts_nothing_before_it_is_trusted(user, client, name):
    script = user.write(user.folder / "run.sh", "#!/bin/sh\n")
    user.write(user.folder / name, local(client).replace("/opt/server", "./run.sh"))
    found = user.find(client)
    assert not found.servers
    named = ("mine",) if client != "codex" else ()  # TOML isn't parsed before it is trusted
    assert [(row.name, row.file) for row in found.skipped] == [(name_, str(user.folder / name)) for name_ in named]
    [ignored] = found.ignored_files
    assert (ignored.code, ignored.file, ignored.servers) == ("untrusted_file", str(user.folder / name), named)
    user.trusted(client, name)
    spec = user.find(client).servers["mine"]
    assert (spec.command, spec.scope) == ("./run.sh", "project")
    assert dict(spec.scripts) == {str(script): hashlib.sha256(b"#!/bin/sh\n").hexdigest()}
    script.write_text("#!/bin/sh\nevil\n")
    assert [row.code for row in user.find(client).ignored_files] == ["changed_file"]
    user.trusted(client, name)
    assert user.find(client).servers
    user.write(user.folder / name, local(client).replace("/opt/server", "./run.sh") + " ")
    assert [row.code for row in user.find(client).ignored_files] == ["changed_file"]


@pytest.mark.parametrize(("client", "name"), FOLDER_FILES)
def test_a_folders_file_is_not_even_opened_for_a_client_that_is_not_named(user, client, name):
    os.mkfifo(user.write(user.folder / name, "").with_suffix(".pipe"))
    (user.folder / name).unlink()
    (user.folder / name).symlink_to((user.folder / name).with_suffix(".pipe"))
    others = [other for other in CLIENT_NAMES if other != client]
    found = user.find(*others)
    assert not found.problems
    assert [problem.message for problem in user.find(client).problems] == ["cannot be read: it is no regular file."]


def test_a_folders_command_is_seen_where_the_editor_puts_the_folder_in(user):
    script = user.write(user.folder / "tools/server.py", "1")
    entry = {"command": "python3", "args": ["${workspaceFolder}/tools/server.py"]}
    user.write(user.folder / ".vscode/mcp.json", json.dumps({"servers": {"mine": entry}}))
    user.trusted("vscode", ".vscode/mcp.json")
    spec = user.find("vscode").servers["mine"]
    assert spec.args == (str(script),)
    assert list(spec.scripts) == [str(script)]


@pytest.mark.parametrize("client", ["codex", "opencode"])
def test_files_above_count_up_to_the_repositorys_root_and_no_further(user, client):
    name = CLIENTS[client].project_files[-1]
    (user.folder / "repository/.git").mkdir(parents=True)
    inner = user.folder / "repository/src"
    inner.mkdir()
    user.write(user.folder / name, local(client).replace("mine", "outside"))
    user.write(user.folder / "repository" / name, local(client))
    found = user.find(client, cwd=inner)
    assert [(row.file, row.above) for row in found.ignored_files] == [(str(user.folder / "repository" / name), True)]
    assert f"trust {user.folder / 'repository'}`" in found.ignored_files[0].hint
    if client == "opencode":
        [skipped] = found.skipped
        assert f"(`mcp-bridge trust {user.folder / 'repository'}`)" in skipped.reason
    user.trusted(client, name, user.folder / "repository")
    assert list(user.find(client, cwd=inner).servers) == ["mine"]


def test_in_the_home_directory_the_folders_file_is_the_users_own(user):
    user.write(user.file("cursor"), local("cursor"))
    found = user.find("cursor", cwd=user.home)
    assert (found.servers["mine"].scope, found.ignored_files) == ("user", [])


def test_the_records_of_trust_may_not_be_in_the_folder_of_a_file_that_is_in_a_folder_of_it(user):
    user.trust = TrustStore(user.folder / "state")
    user.write(user.folder / ".cursor/mcp.json", local("cursor"))
    [ignored] = user.find("cursor").ignored_files
    assert (ignored.code, "in the folder itself" in ignored.message) == ("unusable_file", True)
    assert "can't judge the file before" in ignored.hint, "it would end in the same error"


def test_a_huge_file_of_a_folder_that_nobody_trusts_is_refused_soon(user):
    user.write(user.folder / ".cursor/mcp.json", '"' + '\\"' * (600 << 10))
    user.write(user.folder / ".vscode/mcp.json", "/*" * (500 << 10))
    user.write(user.folder / "opencode.json", json.dumps({"mcp": {str(n): {"command": []} for n in range(20_000)}, "tools": {f"{n}*": False for n in range(20_000)}}))  # fmt: skip
    user.write(user.folder / ".codex/config.toml", "mcp_servers." * 80_000 + "a = 1")
    found = user.find("cursor", "vscode", "opencode", "codex")
    assert [problem.message.partition(":")[0] for problem in found.problems] == ["cannot be read", "not valid JSON"]
    assert [Path(row.file).name for row in found.ignored_files] == ["opencode.json", "config.toml"]


# --- broken files ---

BROKEN = {
    "nothing at all": (b"", "json", "not valid JSON: Expecting value"),
    "half of it": (b'{"mcpServers": {\n"a": ', "json", "not valid JSON"),
    "another encoding": ('{"mcpServers": {"ä": 1}}'.encode("latin-1"), "json", "not valid UTF-8 at byte 17"),
    "deep nesting": (b"[" * 100_000, "json", "nested too deeply"),
    "a huge number": (b'{"a": ' + b"1" * 5000 + b"}", "json", "not readable: Exceeds"),
    "comments where there are none": (b"{} // x\n", "strict", "not valid JSON"),
    "a trailing comma where there is none": (b'{"a": 1,}', "no trailing commas", "not valid JSON"),
    "a comment without an end": (b"{} /* x", "json", "not valid JSON"),
    "another kind of value": (b"[1]", "json", "not a JSON object"),
    "servers of another kind": (b'{"mcpServers": [], "servers": [], "mcp": [], "context_servers": []}', "json", "is not an object"),
    "a key twice": (b"[mcp_servers.a]\n[mcp_servers.a]\n", "toml", "not valid TOML: Cannot declare"),
    "no TOML": (b"mcp_servers = [\n", "toml", "not valid TOML"),
}  # fmt: skip


def broken(client, kind):
    syntax = CLIENTS[client].syntax
    if kind == "toml" or syntax == "toml":
        return kind == "toml" and syntax == "toml"
    if kind == "strict":
        return syntax == "json"
    return kind != "no trailing commas" or syntax in {"json", "commented json"}


@pytest.mark.parametrize(("client", "what"), [
    (client, what) for client in CLIENT_NAMES for what, (_, kind, _) in BROKEN.items() if broken(client, kind)
])  # fmt: skip
def test_a_broken_file_is_a_finding_and_is_left_as_it_is(user, client, what):
    data, _, message = BROKEN[what]
    path = user.write(user.file(client), data)
    found = user.find(client)
    assert not found.servers
    if what == "nothing at all" and CLIENTS[client].syntax == "jsonc":
        assert not found.problems, "an editor reads an empty file as empty"
        return
    [problem] = found.problems
    assert (problem.code, problem.file) == ("bad_client_config", str(path))
    assert message in problem.message
    assert path.read_bytes() == data
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("client", CLIENT_NAMES)
def test_a_byte_order_mark_is_no_part_of_the_file(user, client):
    user.write(user.file(client), b"\xef\xbb\xbf" + local(client).encode())
    assert "mine" in user.find(client).servers


@pytest.mark.parametrize("client", [name for name in CLIENT_NAMES if "comment" in CLIENTS[name].syntax or CLIENTS[name].syntax == "jsonc"])  # fmt: skip
def test_comments_are_read_where_the_client_has_them(user, client):
    text = "// mine\n" + local(client).replace("{", "{ /* a // b */\n", 1) + " // end"
    user.write(user.file(client), text.replace('"1"', '"http://x/*y*/"'))
    assert user.find(client).servers["mine"].env["A"] == "http://x/*y*/"


@pytest.mark.parametrize("client", [name for name in CLIENT_NAMES if CLIENTS[name].syntax != "toml"])
def test_of_a_key_that_is_there_twice_the_last_one_counts(user, client):
    user.write(user.file(client), f'{{"{CLIENTS[client].servers[0]}": {{}}, {local(client)[1:]}')
    assert "mine" in user.find(client).servers


@pytest.mark.parametrize("client", CLIENT_NAMES)
def test_what_is_no_file_is_a_finding_and_blocks_nothing(user, client):
    path = user.write(user.file(client), "")
    path.unlink()
    path.symlink_to(user.home / "nowhere")
    assert ["is a link to a file" in problem.message for problem in user.find(client).problems] == [True]
    os.mkfifo(user.home / "nowhere")
    assert [problem.message for problem in user.find(client).problems] == ["cannot be read: it is no regular file."]
    assert stat.S_ISFIFO((user.home / "nowhere").stat().st_mode)


# --- what an entry says ---


def test_editors_variables(user):
    user.environ = {"TOKEN": "${userHome}"}
    for client in ("cursor", "vscode"):
        entry = {
            "command": "${userHome}/bin/server",
            "args": [
                "${workspaceFolder}",
                "${workspaceFolderBasename}",
                "a${/}b${pathSeparator}c",
                "${TOKEN}",
                "$TOKEN",
            ],
            "env": {"KEY": "t-${env:TOKEN}"},
        }
        spec = one(user, client, entry)
        assert spec.command == f"{user.home}/bin/server"
        assert spec.args == (str(user.folder), "folder", "a/b/c", "${TOKEN}", "$TOKEN")
        assert spec.env["KEY"] == "t-${userHome}", "once"
        assert one(user, client, {"command": "${env:NOPE}"}).problem == (
            "command uses ${env:NOPE}, which is not set in the environment and has no default."
        )


def test_what_an_editor_asks_for_is_a_problem_that_says_what_to_do(user):
    spec = one(user, "vscode", {"command": "x", "env": {"KEY": "${input:key}"}}, inputs=[{"id": "key"}])
    assert spec.problem.startswith("env.KEY uses ${input:key}, which the editor asks you for: put the value into")
    for variable in ("${command:pick}", "${workspaceFolder:proj}", "${workspaceFolderBasename:proj}", "${cwd:proj}"):
        assert "only the editor knows" in one(user, "vscode", {"command": "x", "args": [variable]}).problem
    assert "envFile is not read" in one(user, "cursor", {"command": "x", "envFile": ".env"}).problem


def test_null_takes_a_variable_away_from_vs_codes_server(user):
    spec = one(user, "vscode", {"command": "x", "env": {"A": None, "N": 5, "B": "b"}})
    assert (dict(spec.env), spec.unset, spec.problem) == ({"N": "5", "B": "b"}, ("A",), None)
    other = one(user, "vscode", {"command": "x", "env": {"N": 5, "B": "b"}})
    assert (spec.identity == other.identity, spec.fingerprint() == other.fingerprint()) == (False, False)
    assert "env is not an object" in one(user, "cursor", {"command": "x", "env": {"A": None}}).problem


def test_headers_that_a_program_of_claude_codes_gives_are_a_problem_that_says_what_to_do(user):
    entry = {"type": "http", "url": "https://example.com/mcp", "headersHelper": "/opt/token.sh"}
    assert one(user, "claude-code", entry).problem == (
        "headersHelper is not read: write its headers into headers, for example as ${NAME}."
    )


def test_a_null_in_place_of_servers_is_none(user):
    user.write(user.file("claude-code"), json.dumps({"mcpServers": None, "projects": {str(user.folder): None}}))
    user.write(user.folder / ".mcp.json", '{"mcpServers": null}')
    found = user.find("claude-code")
    # Claude Code, too, takes it as an error in the folder's file alone.
    assert [(row.file, "has no mcpServers" in row.message) for row in found.problems] == [
        (str(user.folder / ".mcp.json"), True)
    ]


def test_the_variables_of_gemini_opencode_and_windsurf(user):
    user.environ = {"A": "1", "B_2": "$A"}
    spec = one(user, "gemini", {"command": "x", "args": ["$A", "${B_2}", "${NO:-else}", "$NO-${NO}"]})
    assert spec.args == ("1", "$A", "else", "$NO-${NO}")
    (user.file("opencode").parent).mkdir(parents=True)
    (user.file("opencode").parent / "key").write_text("secret\n")
    entry = {"type": "local", "command": ["x", "{env:A}", "{env:NO}", "{file:key}", "${A}"]}
    assert one(user, "opencode", entry).args == ("1", "", "secret", "${A}")
    missing = one(user, "opencode", {"type": "local", "command": ["{file:~/nope}"]})
    assert "which can't be read: No such file" in missing.problem
    assert one(user, "windsurf", {"command": "${env:A}", "args": ["${userHome}"]}).args == ("${userHome}",)


@pytest.mark.parametrize("client", ["claude-desktop", "zed"])
def test_clients_without_variables_have_their_texts_as_they_are(user, client):
    assert one(user, client, {"command": "${A}", "args": ["$A", "${env:A}"]}).args == ("$A", "${env:A}")


def test_a_folders_entry_has_no_file_of_the_users_read(user):
    (user.home / "secret").write_text("x")
    entry = {"type": "local", "command": ["x", "{file:%s}" % (user.home / "secret")]}
    user.write(user.folder / "opencode.json", json.dumps({"mcp": {"mine": entry}}))
    user.trusted("opencode", "opencode.json")
    assert "a folder's entry can't have files read" in user.find("opencode").servers["mine"].problem


def test_what_codex_says_of_a_server(user):
    user.write(user.file("codex"), """
[mcp_servers.mine]
command = "x"
args = ["${HOME}"]
cwd = "/srv"
env_vars = ["TOKEN", { name = "OTHER", source = "local" }]
startup_timeout_sec = 12.5
tool_timeout_sec = 90
enabled_tools = ["read", "list[1]"]
disabled_tools = ["list[1]"]
[mcp_servers.off]
command = "y"
enabled = false
startup_timeout_ms = 2500
[mcp_servers.remote]
url = "https://example.com/mcp"
bearer_token_env_var = "TOKEN"
http_headers = { X-A = "1" }
env_http_headers = { X-B = "B", X-C = "C" }
[mcp_servers.lacking]
url = "https://example.com/mcp"
bearer_token_env_var = "NOPE"
""")  # fmt: skip
    user.environ = {"TOKEN": "t", "B": "b"}
    found = user.find("codex").servers
    mine = found["mine"]
    assert (mine.args, mine.cwd, mine.start_timeout, mine.call_timeout) == (("${HOME}",), "/srv", 12.5, 90)
    assert mine.env_pass == (*CODEX_VARIABLES, "TOKEN", "OTHER")
    assert [lets_through(mine, name) for name in ("read", "list[1]", "list1", "write")] == [True, False, False, False]
    assert (found["off"].enabled, found["off"].start_timeout) == (False, 2.5)
    assert dict(found["remote"].headers) == {"X-A": "1", "X-B": "b", "Authorization": "Bearer t"}
    assert found["remote"].variables == {"TOKEN", "B"}
    assert found["lacking"].problem == "bearer_token_env_var names NOPE, which is not set in the environment."


def test_what_gemini_says_of_a_server(user):
    entry = {"command": "x", "timeout": 5000, "includeTools": ["read(path)", "write"], "excludeTools": ["write"]}
    spec = one(user, "gemini", entry, mcp={"excluded": ["other"]})
    assert (spec.call_timeout, spec.enabled) == (5, True)
    assert [lets_through(spec, name) for name in ("read", "write", "list")] == [True, False, False]
    assert not one(user, "gemini", entry, mcp={"excluded": ["mine"]}).enabled
    assert not one(user, "gemini", entry, mcp={"allowed": ["other"]}).enabled
    assert one(user, "gemini", entry, mcp={"excluded": ["MINE"]}).enabled, "case counts"
    assert not one(user, "gemini", entry, mcp={"allowed": ["MINE"]}).enabled
    assert one(user, "gemini", entry, mcp={"allowed": []}).enabled, "an empty list allows all"
    assert one(user, "gemini", entry, **{"switched off": ["mine"]}).enabled, "no key of a file's"


@pytest.mark.parametrize(
    ("entry", "kind", "url"),
    [
        ({"url": "https://x/"}, "auto", "https://x/"),
        ({"url": "https://x/", "type": "http"}, "http", "https://x/"),
        ({"url": "https://x/", "type": "sse"}, "sse", "https://x/"),
        ({"httpUrl": "https://x/"}, "http", "https://x/"),
        ({"httpUrl": "https://x/", "url": "https://y/", "type": "sse", "command": "y"}, "http", "https://x/"),
        ({"url": "https://x/", "command": "y"}, "auto", "https://x/"),
        ({"url": "", "command": "y"}, "stdio", ""),
    ],
)
def test_geminis_address_counts_before_a_command_and_speaks_either_protocol(user, entry, kind, url):
    spec = one(user, "gemini", entry)
    assert (spec.type, spec.url, spec.problem) == (kind, url, None)
    assert spec.command == ("y" if kind == "stdio" else "")


def test_what_opencode_says_of_a_server(user):
    entry = {"type": "local", "command": ["x"], "timeout": 7000, "enabled": True}
    spec = one(
        user, "opencode", entry, tools={"mine_delete_*": False, "mine_read": True, "other_*": False, "write": False}
    )
    assert (spec.call_timeout, spec.start_timeout) == (7, 7)
    assert [lets_through(spec, name) for name in ("delete_all", "read", "write")] == [False, True, True]
    assert not lets_through(one(user, "opencode", entry, tools={"mi*": False}), "read")
    split = one(user, "opencode", {"type": "local", "command": ["x"], "timeout": {"startup": 1000, "request": 2000}})
    assert (split.start_timeout, split.call_timeout) == (1, 2)
    user.write(user.file("opencode"), json.dumps({"mcp": {"servers": {"mine": entry | {"disabled": True}}}}))
    assert not user.find("opencode").servers["mine"].enabled
    assert "type 'stdio' is not one of local, remote." in one(user, "opencode", LOCAL | {"type": "stdio"}).problem


def test_what_zed_and_windsurf_say_of_a_server(user):
    assert one(user, "zed", LOCAL | {"timeout": 5}).call_timeout == 5
    assert one(user, "zed", LOCAL, context_server_timeout=9).call_timeout == 9
    assert not one(user, "zed", LOCAL | {"enabled": False}).enabled
    assert one(user, "zed", {"command": {"path": "x", "args": ["y"], "env": {}}}).args == ("y",)
    assert "an extension of Zed's" in one(user, "zed", {"settings": {}}).problem
    assert not lets_through(one(user, "windsurf", LOCAL | {"disabledTools": ["a"]}), "a")
    assert one(user, "windsurf", {"serverUrl": "https://x/"}).url == "https://x/"


@pytest.mark.parametrize(
    ("client", "entry", "problem"),
    [
        ("gemini", {"command": "x", "excludeTools": "all"}, "excludeTools is not an array of strings."),
        ("windsurf", {"command": "x", "disabledTools": [1]}, "disabledTools is not an array of strings."),
        ("gemini", {"command": "x", "timeout": -1}, "timeout is not a number above 0."),
        ("zed", {"command": "x", "timeout": True}, "timeout is not a number above 0."),
        ("opencode", {"type": "local", "command": "x"}, "command is not an array of strings."),
        ("cursor", [], "the entry is not an object."),
        ("cursor", {"command": "x", "args": "y"}, "args is not an array of strings."),
    ],
)
def test_a_broken_entry_is_a_problem_of_its_server_alone(user, client, entry, problem):
    assert one(user, client, entry).problem == problem


def test_tools_that_the_configuration_leaves_out_make_another_listing():
    plain = ServerSpec(name="a", command="x")
    kept = {plain.fingerprint(), ServerSpec(name="a", command="x", include_tools=("a",)).fingerprint()}
    assert len({*kept, ServerSpec(name="a", command="x", exclude_tools=("a",)).fingerprint()}) == 3


# --- JSON with comments ---

TEXTS = st.text(alphabet='ab"/*\\,{}[]: \n', max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
TABLES = st.dictionaries(TEXTS, VALUES | st.dictionaries(TEXTS, VALUES, max_size=3), max_size=4)
INDENTS = st.sampled_from([None, 2, 4, "\t"])

COMMENT = "// , } x\n"
"""No text has an `x`."""


def written(table, indent, rng):
    """JSON with comments and trailing commas at random places between its tokens."""
    out, before = [], ""
    for part in _tokens(json.dumps(table, indent=indent)):
        if part in {"}", "]"} and before not in {"{", "["} and rng.random() < 0.3:
            out.append(",")
        out.append(part)
        before = part if part.strip() else before
        if part in set("{}[],:") and rng.random() < 0.3:
            out.append(rng.choice([COMMENT, "/* { , */", " /* \n */ "]))
    return "".join(out)


def _tokens(text):
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        end = decoder.raw_decode(text, at)[1] if text[at] == '"' else at + 1
        yield text[at:end]
        at = end


@given(TABLES, INDENTS, st.randoms(use_true_random=False))
def test_comments_change_nothing(table, indent, rng):
    text = written(table, indent, rng)
    assert jsonc.loads(text) == table
    assert len(jsonc.plain(text)) == len(text)


@given(TABLES, INDENTS, st.randoms(use_true_random=False), TEXTS, TEXTS, VALUES)
def test_an_edit_changes_its_member_and_nothing_else(table, indent, rng, outer, key, value):
    text = written(table, indent, rng)
    inside = table.get(outer)
    inside = {} if inside is None else inside
    if not isinstance(inside, dict):
        with pytest.raises(ValueError, match="no object"):
            jsonc.insert(text, (outer, key), value)
        return
    changed = jsonc.insert(text, (outer, key), value)
    assert jsonc.loads(changed) == table | {outer: inside | {key: value}}
    # Those inside of a list or an object that was replaced go with it, and no other.
    gone = text.count(COMMENT) - changed.count(COMMENT)
    assert gone >= 0 if isinstance(inside.get(key), dict | list) else gone == 0
    removed = jsonc.remove(changed, (outer,), [key])
    assert jsonc.loads(removed) == table | {outer: {name: item for name, item in inside.items() if name != key}}


@given(TABLES, INDENTS, st.randoms(use_true_random=False), TEXTS, st.dictionaries(TEXTS, VALUES, min_size=1), st.data())
def test_members_that_are_set_at_once_are_what_they_are_one_by_one(table, indent, rng, outer, values, data):
    text = written(table, indent, rng)
    inside = table.get(outer)
    if isinstance(inside, dict) and inside:
        values |= dict.fromkeys(data.draw(st.sets(st.sampled_from(sorted(inside)))), 1)
    if inside is not None and not isinstance(inside, dict):
        with pytest.raises(ValueError, match="no object"):
            jsonc.insert_all(text, (outer,), values)
        return
    changed = jsonc.insert_all(text, (outer,), values)
    assert jsonc.loads(changed) == table | {outer: (inside or {}) | values}
    assert changed.count(COMMENT) == text.count(COMMENT) or any(
        isinstance(v, dict | list) for v in (inside or {}).values()
    )
    inner = jsonc.insert_all(text, (), values)
    assert jsonc.loads(inner) == table | values


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{\n  "s": {}\n}\n',
        '{"s": {"a": 1}}',
        '{"s": {"a": 1,}}',
        '{\n\t"s": {\n\t\t"a": 1, // first\n\t},\n}\n',
        '{\n  "s": {\n    "a": 1 // first\n  }\n}\n',
    ],
)
def test_members_that_are_set_at_once_are_written_as_one_by_one(text):
    values = {"b": {"x": [1]}, "a": 2, "c": "d"}
    one_by_one = text
    for key, value in values.items():
        one_by_one = jsonc.insert(one_by_one, ("s", key), value)
    assert jsonc.insert_all(text, ("s",), values) == one_by_one


@given(TABLES, INDENTS, st.randoms(use_true_random=False), st.data())
def test_members_that_are_removed_at_once_are_removed_and_nothing_else(table, indent, rng, data):
    text = written(table, indent, rng)
    gone = data.draw(st.sets(st.sampled_from(sorted(table)))) if table else set()
    removed = jsonc.remove(text, (), gone)
    assert jsonc.loads(removed) == {name: item for name, item in table.items() if name not in gone}


def test_a_key_that_is_there_twice_is_not_edited():
    with pytest.raises(ValueError, match="twice"):
        jsonc.insert('{"a": {}, "a": {}}', ("a", "b"), 1)
    with pytest.raises(ValueError, match="'b' is there twice"):
        jsonc.insert_all('{"a": {"b": 1, "c": 1, "b": 2}}', ("a",), {"b": 1, "d": 1})
    with pytest.raises(ValueError, match="'a' is there twice"):
        jsonc.remove('{"a": {}, "a": {}, "b": 1}', (), ["a", "b"])
    with pytest.raises(KeyError):
        jsonc.remove('{"a": {}}', (), ["b"])


@pytest.mark.parametrize("client", ["gemini", "opencode", "zed"])
def test_a_number_too_large_to_be_a_time_is_a_problem_of_its_entry(user, client):
    entry = json.loads(local(client))[CLIENTS[client].servers[0]]["mine"] | {"timeout": 10**400}
    user.write(user.file(client), json.dumps({CLIENTS[client].servers[0]: {"mine": entry}}))
    assert "too large" in user.find(client).servers["mine"].problem


def test_a_file_of_no_possible_name_is_a_problem_of_its_entry(user):
    entry = {"type": "local", "command": ["x", "{file:a\0b}"]}
    user.write(user.file("opencode"), json.dumps({"mcp": {"mine": entry}}))
    assert "no path" in user.find("opencode").servers["mine"].problem


def test_windsurfs_switched_off_tools_are_names(user):
    user.write(user.file("windsurf"), json.dumps({"mcpServers": {"mine": LOCAL | {"disabledTools": ["a[b]", "c*"]}}}))
    spec = user.find("windsurf").servers["mine"]
    assert [lets_through(spec, name) for name in ("a[b]", "ab", "c*", "cd")] == [False, True, False, True]


def put(user, client, entry):
    """Write a client's file with one entry, as JSON or TOML."""
    if CLIENTS[client].syntax == "toml":
        inline = "".join(f"{key} = {json.dumps(value)}\n" for key, value in entry.items() if key != "oauth")
        inline += "".join(
            f"oauth = {{ {key} = {json.dumps(value)} }}\n" for key, value in entry.get("oauth", {}).items()
        )
        user.write(user.file(client), f"[mcp_servers.mine]\n{inline}")
    else:
        user.write(user.file(client), json.dumps({CLIENTS[client].servers[0]: {"mine": entry}}))


SECRET = "s3cret-of-the-app"  # noqa: S105 - of these tests alone
REMOTE = {"url": "https://example.com/mcp"}
SCOPES = ("read", "write")


@pytest.mark.parametrize(
    ("client", "entry", "expected"),
    [
        (
            "opencode",
            {"type": "remote", "oauth": {"clientId": "id", "clientSecret": SECRET, "scope": "read write"}},
            ("id", SECRET, SCOPES, "http://127.0.0.1:19876/mcp/oauth/callback"),
        ),
        (
            "opencode",
            {"type": "remote", "oauth": {"clientId": "id", "callbackPort": 7000}},
            ("id", None, (), "http://127.0.0.1:7000/mcp/oauth/callback"),
        ),
        (
            "claude-code",
            {"type": "http", "oauth": {"clientId": "id", "callbackPort": 8080, "scopes": "read write"}},
            ("id", None, SCOPES, "http://localhost:8080/callback"),
        ),
        (
            "gemini",
            {"oauth": {"enabled": True, "clientId": "id", "clientSecret": "$APP", "scopes": ["read", "write"]}},
            ("id", SECRET, SCOPES, None),
        ),
        ("codex", {"scopes": ["read", "write"]}, (None, None, SCOPES, None)),
        ("cursor", {"auth": {"scopes": ["read", "write"]}}, (None, None, SCOPES, None)),
    ],
)
def test_a_clients_settings_of_oauth_are_the_servers(user, client, entry, expected):
    put(user, client, REMOTE | entry)
    user.environ["APP"] = SECRET
    spec = user.find(client).servers["mine"]
    assert spec.problem is None
    oauth = spec.oauth
    assert (oauth.client_id, oauth.client_secret, oauth.scopes, oauth.redirect_uri) == expected


@pytest.mark.parametrize(
    ("client", "entry"),
    [
        ("opencode", {"type": "remote", "oauth": False}),
        ("gemini", {"oauth": {"enabled": True}}),
        ("gemini", {"oauth": {"enabled": False, "clientId": "id"}}),
        ("gemini", {"authProviderType": "dynamic_discovery"}),
        ("claude-code", {"type": "http", "oauth": {}}),
    ],
)
def test_what_says_nothing_of_oauth_leaves_it_to_the_server(user, client, entry):
    put(user, client, REMOTE | entry)
    found = user.find(client)
    assert (found.servers["mine"].problem, found.servers["mine"].oauth, found.problems) == (None, None, [])
    assert found.servers["mine"].unused is None


@pytest.mark.parametrize(
    ("client", "entry"),
    [
        ("gemini", {"httpUrl": "http://10.0.0.2/mcp", "oauth": {"enabled": True, "scopes": ["a"]}}),
        ("gemini", {"httpUrl": "https://e.com/m", "headers": {"authorization": "x"}, "oauth": {"scopes": ["a"]}}),
        ("claude-code", {"type": "http", "url": "http://10.0.0.2/mcp", "oauth": {"scopes": "a b"}}),
    ],
)
def test_settings_of_oauth_take_no_server_away_that_takes_no_login(user, client, entry):
    put(user, client, entry)
    spec = user.find(client).servers["mine"]
    assert (spec.problem, spec.oauth) == (None, None)


def test_an_unset_variable_in_settings_of_oauth_takes_no_server_away(user):
    entry = REMOTE | {"type": "http", "oauth": {"clientId": "${CID}"}}
    put(user, "claude-code", entry | {"headers": {"Authorization": "Bearer x"}})
    spec = user.find("claude-code").servers["mine"]
    assert (spec.problem, spec.oauth, spec.unused) == (None, None, None)
    put(user, "claude-code", entry)
    spec = user.find("claude-code").servers["mine"]
    assert (spec.problem, spec.oauth) == (None, None)
    assert "CID" in spec.unused


def test_an_id_that_is_empty_where_its_variable_is_unset_is_none(user):
    put(user, "opencode", REMOTE | {"type": "remote", "oauth": {"clientId": "{env:UNSET}", "clientSecret": SECRET}})
    spec = user.find("opencode").servers["mine"]
    assert (spec.problem, spec.oauth.client_id, spec.oauth.client_secret) == (None, None, None)


LEFT = [
    ("cursor", {"auth": {"CLIENT_ID": "id", "CLIENT_SECRET": SECRET}}, "registered for Cursor"),
    ("vscode", {"type": "http", "oauth": {"clientId": "id"}}, "registered for VS Code"),
    ("zed", {"oauth": {"client_id": "id"}}, "registered for Zed"),
    ("codex", {"oauth_resource": "https://example.com"}, "oauth_resource"),
    ("codex", {"oauth": {"client_id": "id"}}, "oauth uses client_id"),
    ("gemini", {"oauth": {"clientId": "id", "tokenUrl": "https://example.com/t"}}, "oauth uses tokenUrl"),
    ("claude-code", {"type": "http", "oauth": {"authServerMetadataUrl": "https://e.com/x"}}, "authServerMetadataUrl"),
    ("opencode", {"type": "remote", "oauth": {"clientSecret": SECRET}}, "client_id is missing"),
]
"""What the bridge has no like of: the server is there without it, and stays with its client."""


@pytest.mark.parametrize(("client", "entry", "why"), LEFT)
def test_settings_of_oauth_that_cannot_be_used_are_told_and_the_server_is_there(user, client, entry, why):
    put(user, client, REMOTE | entry)
    found = user.find(client)
    spec = found.servers["mine"]
    assert spec.problem is None
    assert why in spec.unused
    assert SECRET not in spec.unused
    # The file can be read, and none of its servers is missing.
    assert (found.problems, found.missing) == ([], ())


@pytest.mark.parametrize(
    ("client", "entry", "why"),
    [
        ("gemini", REMOTE | {"authProviderType": "google_credentials"}, "authProviderType"),
        ("vscode", {"type": "stdio", "command": "x", "sandboxEnabled": True}, "without that sandbox"),
    ],
)
def test_a_server_that_would_be_another_one_with_the_bridge_is_not_started(user, client, entry, why):
    put(user, client, entry)
    assert why in user.find(client).servers["mine"].problem


def test_claude_codes_time_out_of_a_server_holds(user):
    put(user, "claude-code", {"command": "x", "timeout": 120_000})
    assert user.find("claude-code").servers["mine"].call_timeout == 120


@pytest.mark.parametrize("timeout", [60, 999.9, 0, -1, "60000", True, None, 10**400], ids=lambda it: repr(it)[:8])
def test_what_claude_code_takes_for_no_time_out_is_none(user, timeout):
    put(user, "claude-code", {"command": "x", "timeout": timeout})
    spec = user.find("claude-code").servers["mine"]
    assert (spec.problem, spec.call_timeout) == (None, CALL_TIMEOUT)
