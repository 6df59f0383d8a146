"""Which servers there are, and what they are called."""

import hashlib
import json
import keyword
import os
import random
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge.downstream.catalog.aliases import assign, derive
from mcp_bridge.downstream.configuration.discovery import discover
from mcp_bridge.downstream.configuration.expansion import expand
from mcp_bridge.downstream.configuration.own_entries import spec_from_toml
from mcp_bridge.downstream.configuration.self_reference.addresses import OwnAddress
from mcp_bridge.downstream.configuration.self_reference.command_lines import runs_the_bridge
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.errors import BridgeError
from mcp_bridge.guest.near_names import near
from mcp_bridge.near_names import nearest
from mcp_bridge.workspace.folder_content import Content, changed, content_of
from mcp_bridge.workspace.trust import TrustStore


@pytest.fixture
def find(tmp_path):
    """Run discovery over a home and a working directory made from dicts (or texts)."""
    home, cwd = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    cwd.mkdir()

    def run(tables=None, *, user=None, project=None, environ=None, **options):
        for path, content in ((home / ".claude.json", user), (cwd / ".mcp.json", project)):
            if content is not None:
                text = content if isinstance(content, str) else json.dumps(content).replace("CWD", str(cwd))
                path.write_text(text)
        return discover(tables or {}, config_file="bridge.toml", environ=environ or {}, cwd=cwd, home=home, **options)

    return run


def servers(**commands):
    return {"mcpServers": {name: {"command": command} for name, command in commands.items()}}


def test_our_toml_wins_over_local_over_project_over_user_scope(find):
    user = servers(a="user", b="user", c="user", d="user") | {
        "projects": {"CWD": servers(a="local", b="local") | {"enabledMcpjsonServers": ["a", "b", "c"]}}
    }
    found = find({"a": {"command": "own"}}, user=user, project=servers(a="project", b="project", c="project"))
    commands = {name: (spec.command, spec.scope) for name, spec in found.servers.items()}
    assert commands == {
        "a": ("own", "config"),
        "b": ("local", "local"),
        "c": ("project", "project"),
        "d": ("user", "user"),
    }
    assert {(skip.name, skip.file.rsplit("/", 1)[1]) for skip in found.skipped} == {
        ("a", ".claude.json"), ("a", ".mcp.json"), ("b", ".mcp.json"), ("b", ".claude.json"), ("c", ".claude.json"),
    }  # fmt: skip


def test_another_projects_servers_do_not_count(find):
    assert not find(user={"projects": {"/somewhere/else": servers(a="x")}}).servers


def test_client_files_are_left_alone_when_they_are_switched_off(find):
    assert list(find({"own": {"command": "x"}}, user=servers(a="x"), clients=()).servers) == ["own"]


def test_a_project_server_that_was_refused_in_the_client_is_disabled(find):
    user = {"projects": {"CWD": {"enableAllProjectMcpServers": True, "disabledMcpjsonServers": ["a"]}}}
    found = find(user=user, project=servers(a="x", b="x"))
    assert {name: spec.enabled for name, spec in found.servers.items()} == {"a": False, "b": True}


def test_braced_variables_are_expanded_everywhere_and_bare_ones_nowhere(find):
    entry = {
        "command": "${BIN}/server",
        "args": ["$BIN", "${MISSING:-fallback}", "${EMPTY:-unused}", "${MISSING:-}", "${BIN"],
        "env": {"TOKEN": "t-${SECRET}"},
        "cwd": "${BIN}",
    }
    remote = {"type": "http", "url": "https://${HOST}/mcp", "headers": {"Authorization": "Bearer ${SECRET}"}}
    environ = {"BIN": "/opt", "SECRET": "${BIN}", "EMPTY": "", "HOST": "h"}
    found = find(user={"mcpServers": {"s": entry, "r": remote}}, environ=environ).servers
    assert found["s"].command == "/opt/server"
    assert found["s"].args == ("$BIN", "fallback", "", "", "${BIN")
    assert found["s"].env == {"TOKEN": "t-${BIN}"}
    assert found["s"].cwd == "/opt"
    assert found["r"].url == "https://h/mcp"
    assert found["r"].headers == {"Authorization": "Bearer ${BIN}"}


def test_a_missing_variable_is_a_problem_of_its_server_alone(find):
    tables = {
        "bad": {"command": "x", "env": {"KEY": "${NOT_SET}"}},
        "good": {"command": "y"},
    }
    found = find(tables, user=servers(also="${NOT_SET_EITHER}"))
    assert found.servers["bad"].problem == (
        "env.KEY uses ${NOT_SET}, which is not set in the environment and has no default."
    )
    assert "NOT_SET_EITHER" in found.servers["also"].problem
    assert found.servers["good"].problem is None


def test_a_header_that_lacks_the_value_of_a_variable_names_it(find):
    def remote(value):
        return {"type": "http", "url": "https://h/mcp", "headers": {"Authorization": value}}

    tables = {
        "missing": remote("Bearer ${TOKEN:-}"),
        "empty": remote("${KIND:-secret} x ${TOKEN}"),
        "own": remote(" Bearer ${TOKEN:-}x"),
        "whole": remote("${TOKEN:-}"),
    }
    found = find(tables, environ={"KIND": ""}).servers
    assert found["missing"].problem == "headers.Authorization begins or ends with a space, because TOKEN is empty."
    found = find(tables, environ={"KIND": "", "TOKEN": ""}).servers
    assert (
        found["empty"].problem == "headers.Authorization begins or ends with a space, because KIND and TOKEN are empty."
    )
    assert found["own"].problem == "headers.Authorization begins or ends with a space."
    assert found["whole"].problem is None


def test_expand_names_the_missing_variable():
    with pytest.raises(KeyError, match="NOPE"):
        expand("${NOPE}", {})


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ('{"mcpServers": {\n  "a": \n}}', 3, "not valid JSON"),
        ("[]", None, "not a JSON object"),
        ('{"mcpServers": []}', None, "mcpServers is not an object"),
        ("[" * 100_000, None, "nested too deeply"),
    ],
)
def test_a_broken_client_file_is_reported_with_its_place_and_is_not_fatal(find, text, line, part):
    found = find({"own": {"command": "x"}}, project=text)
    [problem] = found.problems
    assert (problem.code, problem.line) == ("bad_client_config", line)
    assert problem.file.endswith(".mcp.json")
    assert part in problem.message
    assert list(found.servers) == ["own"]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ({"x": {}}, 'so it has no server. Write {"mcpServers"'),
        ({"servers": {"git": {"command": "uvx"}}}, '"servers" is VS Code\'s key. Call it "mcpServers".'),
        ({"git": {"command": "uvx"}}, 'Write {"mcpServers": {…}} around them.'),
        ({"git": {"url": "https://x"}}, 'Write {"mcpServers": {…}} around them.'),
    ],
)
def test_a_file_without_its_key_is_said_to_be_one(find, content, part):
    found = find(project=content)
    [problem] = found.problems
    assert part in problem.message
    [sentence] = found.missing
    assert sentence.startswith("Servers of .mcp.json are missing")
    assert part in sentence
    assert not find(project={}).problems, "an empty one is one"


def test_a_client_file_that_is_no_text_is_reported(find, tmp_path):
    (tmp_path / "work" / ".mcp.json").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in find().problems[0].message


@pytest.mark.parametrize(
    ("entry", "part"),
    [
        (7, "not an object"),
        ({"args": []}, "command is missing"),
        ({"command": "x", "args": "y"}, "args"),
        ({"command": "x", "env": {"A": []}}, "env"),
        ({"command": "x", "cwd": 1}, "cwd"),
        ({"type": "carrier-pigeon", "command": "x"}, "carrier-pigeon"),
        ({"type": "sse"}, "url"),
    ],
)
def test_a_broken_entry_is_a_problem_of_its_server_alone(find, entry, part):
    found = find(user={"mcpServers": {"bad": entry, "good": {"command": "x"}}})
    assert part in found.servers["bad"].problem
    assert found.servers["good"].problem is None


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            {"command": "sh -c secret-word"},
            "command is a whole command line, and has to be the program alone: write 'sh' there, and what follows it in "
            "args, each word by itself.",
        ),
        ({"command": "~/bin/x"}, "command begins with ~, which only a shell takes for the home directory: write ${HOME}/bin/x."),
        ({"command": "sh", "cwd": "~"}, "cwd begins with ~, which only a shell takes for the home directory: write ${HOME}."),
        ({"command": "no-such-program-anywhere -x"}, None),
        ({"command": "sh", "args": ["~/x", "a b"]}, None),
    ],
)  # fmt: skip
def test_a_command_as_a_shell_has_it_is_a_problem_that_says_what_to_write(find, entry, problem):
    for found in (find({"s": entry}), find(user={"mcpServers": {"s": entry}})):
        told = found.servers["s"].problem
        assert (told is None) is (problem is None)
        assert problem is None or problem in told
        assert "secret-word" not in str(told)


def test_a_program_whose_name_has_a_space_is_one(find, tmp_path, monkeypatch):
    program = tmp_path / "sh there"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find({"s": {"command": str(program)}}).servers["s"].problem is None
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find({"s": {"command": "sh there"}}).servers["s"].problem is None


def test_remote_servers_are_kept_with_their_type(find):
    entries = {
        "a": {"url": "https://x/mcp"},
        "b": {"type": "sse", "url": "https://x"},
        "c": {"type": "streamable-http", "url": "https://u"},
    }
    found = find(user={"mcpServers": entries})
    assert {name: spec.type for name, spec in found.servers.items()} == {"a": "auto", "b": "sse", "c": "http"}


@pytest.mark.parametrize(
    "line",
    [
        "mcp-bridge serve",
        "/usr/local/bin/mcp-code-bridge",
        "mcp-server-code-execution-mode",
        "python -m mcp_bridge serve",
        "python3.12 -X dev -m mcp_bridge.cli",
        "/venv/bin/python /venv/bin/mcp-bridge",
        "uvx mcp-code-bridge",
        "uvx mcp-code-bridge@latest serve",
        "uvx --from mcp-code-bridge==1.0 mcp-bridge",
        "uvx --from ./mcp-code-bridge something",
        "uvx --python 3.12 --with numpy mcp-code-bridge",
        "uvx --from git+https://example.org/x/mcp-code-bridge.git tool",
        "uv run --directory /x mcp-bridge",
        "uv tool run mcp-code-bridge",
        "uv run python -m mcp_bridge",
        "pipx run --spec mcp-code-bridge mcp-bridge",
        "env A=1 mcp-bridge",
        "env -u A -C /x mcp-bridge",
        "env -S 'A=1 mcp-bridge serve'",
        "nice -n 5 mcp-bridge",
        "timeout 1h nohup mcp-bridge",
        "sh -c 'exec mcp-bridge serve'",
        "bash -lc 'exec mcp-bridge'",
        "bash -l -o pipefail -c 'A=1 exec mcp-bridge 2>/x/log'",
        "sh -ec 'cd /x && . ./env; exec mcp-bridge'",
        "zsh -lc '. ./env\nexec mcp-bridge'",
    ],
)
def test_every_way_to_run_the_bridge_itself_is_skipped(find, line):
    import shlex

    command, *args = shlex.split(line)
    assert runs_the_bridge(command, args)
    found = find({"self": {"command": command, "args": args}, "other": {"command": "x"}})
    assert list(found.servers) == ["other"]
    assert found.skipped[0].name == "self"
    kept = find({"self": {"command": command, "args": args}}, allow_self_server=True)
    assert list(kept.servers) == ["self"]


TOKEN = f"mcpb_{'0' * 16}_{'x' * 43}"


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "http", "url": "http://127.0.0.1:8350/mcp", "headers": {"Authorization": f"Bearer {TOKEN}"}},
        {"type": "http", "url": "http://localhost:8350/mcp/"},
        {"type": "http", "url": "http://[::1]:8350/mcp"},
        {"type": "http", "url": "http://0.0.0.0:8350/mcp"},
        {"type": "http", "url": f"http://{socket.gethostname()}:8350/mcp"},
        {"type": "http", "url": "http://127.0.0.1:9000/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
        {"command": "npx", "args": ["mcp-remote", "http://127.0.0.1:8350/mcp"]},
        {
            "command": "npx",
            "args": ["mcp-remote", "http://127.0.0.1:9000/mcp", "--header", "Authorization:${SENT}"],
            "env": {"SENT": f"Bearer {TOKEN}"},
        },
    ],
)
def test_the_bridges_own_address_in_a_clients_file_is_left_out(find, entry):
    environ = {"TOKEN": TOKEN, "SENT": ""}
    found = find(user={"mcpServers": {"bridge": entry}}, environ=environ)
    assert not found.servers
    assert [row.is_self for row in found.skipped] == [True]
    local = find(user={"projects": {"CWD": {"mcpServers": {"bridge": entry}}}}, environ=environ)
    assert not local.servers
    # In our own file it is meant: what it leads to is known when it is connected to.
    own = {key: value for key, value in entry.items() if key != "type"}
    assert find({"bridge": own}, user={}, environ=environ).servers["bridge"].may_be_bridge
    kept = find(user={"mcpServers": {"bridge": entry}}, environ=environ, allow_self_server=True)
    assert kept.servers["bridge"].may_be_bridge


def test_a_bridge_elsewhere_is_left_out_of_a_clients_file_if_there_is_a_token_for_it(find):
    team = {"type": "http", "url": "https://team.example.com/mcp", "headers": {"Authorization": f"Bearer {TOKEN}"}}
    found = find(user={"mcpServers": {"team": team, "other": team | {"headers": {"Authorization": "Bearer x"}}}})
    assert list(found.servers) == ["other"]
    assert not found.servers["other"].may_be_bridge
    [skipped] = found.skipped
    assert (skipped.name, skipped.is_self) == ("team", False)
    assert "mcpb_" not in skipped.reason


@pytest.mark.parametrize(
    ("url", "address", "is_own"),
    [
        ("http://127.0.0.1:8350/mcp", OwnAddress((9000,)), False),
        ("http://127.0.0.1:9000/mcp", OwnAddress((9000,)), True),
        ("http://127.0.0.1:8350/other", OwnAddress(), False),
        ("http://127.0.0.1:8350/other", OwnAddress(path="/other"), True),
        ("http://192.0.2.1:8350/mcp", OwnAddress(), False),
        ("https://Bridge.example.com/mcp", OwnAddress(names=("bridge.example.com",)), True),
        ("https://bridge.example.com/mcp?x=1", OwnAddress(names=("bridge.example.com",)), True),
        ("https://example.com/mcp", OwnAddress(names=("bridge.example.com",)), False),
        ("http://[::1/mcp", OwnAddress(), False),
        ("http://127.0.0.1:99999/mcp", OwnAddress(), False),
    ],
)
def test_an_address_is_the_bridges_own_by_its_host_port_and_path(find, url, address, is_own):
    found = find(user={"mcpServers": {"bridge": {"type": "http", "url": url}}}, own_address=address)
    assert [row.is_self for row in found.skipped] == ([True] if is_own else [])


@pytest.mark.parametrize(
    "line",
    [
        "mcp-server-filesystem /home/me/mcp-bridge",
        "npx -y @modelcontextprotocol/server-filesystem /src/mcp-code-bridge",
        "uvx mcp-server-git --repository /src/mcp-bridge",
        "uvx --directory /src/mcp-bridge mcp-server-git",
        "python server.py mcp-bridge",
        "python -m mcp_server_git",
        "python -c 'import mcp_bridge'",
        "sh -c 'cat mcp-bridge'",
        "bash -lc 'cat x | grep mcp-bridge'",
        "bash run.sh -c mcp-bridge",
        "sh -c \"echo 'a; mcp-bridge'\"",
        "nice -n 5",
        "bash -lc",
        'sh -c "unclosed \'quote"',
        "env",
        "uvx",
        "git",
    ],
)
def test_a_server_that_only_mentions_the_bridge_is_kept(line):
    command, *args = line.split(" ", 3)
    assert not runs_the_bridge(command, args)


@pytest.mark.parametrize("words", [["env"], ["nohup"], ["uv", "run"], ["env", "nice", "-n", "1"]])
def test_programs_that_start_one_another_without_end_harm_nothing(find, words):
    line = words * 3000
    found = find(user={"mcpServers": {"many": {"command": line[0], "args": line[1:]}}})
    assert list(found.servers) == ["many"]


@pytest.mark.timeout(60)
def test_a_long_command_of_a_shell_takes_no_time():
    assert not runs_the_bridge("sh", ["-c", "a" * (1 << 20)])


# Specs.


def test_a_toml_table_is_read_with_its_defaults():
    table = {"command": "x", "args": ["a"], "env": {"K": "v"}, "call_timeout": 5, "era": "legacy", "enabled": False}
    spec = spec_from_toml("s", table, "bridge.toml")
    assert (spec.command, spec.args, spec.env, spec.call_timeout, spec.start_timeout) == (
        "x",
        ("a",),
        {"K": "v"},
        5,
        30,
    )
    assert (spec.era, spec.enabled, spec.type, spec.source) == ("legacy", False, "stdio", "bridge.toml")
    assert spec_from_toml("s", {"url": "https://x"}, "f").type == "auto"


@pytest.mark.parametrize(
    ("table", "message", "hint"),
    [
        ({"command": "x", "argz": []}, "bridge.toml: servers.s.argz is not a known key.", "Did you mean args?"),
        ({"cmd": "x"}, "servers.s.cmd is not a known key.", "Did you mean command?"),
        ({"command": "x", "environment": {}}, "servers.s.environment", "Did you mean env?"),
        ({"command": "x", "zzz": 1}, "servers.s.zzz", "Known keys"),
        ({}, "servers.s.command is missing", "Give the executable"),
        ({"command": 7}, "servers.s.command must be a string", None),
        ({"command": "x", "args": [1]}, "servers.s.args must be an array of strings", None),
        ({"command": "x", "env": {"A": 1}}, "servers.s.env must be a table of strings", None),
        ({"command": "x", "call_timeout": 0}, "servers.s.call_timeout must be a number", None),
        ({"command": "x", "call_timeout": True}, "servers.s.call_timeout must be a number", None),
        ({"command": "x", "era": "new"}, "servers.s.era must be one of auto, legacy", None),
        ({"command": "x", "enabled": "yes"}, "servers.s.enabled must be true or false", None),
        ({"command": "x", "type": "http", "url": "u"}, "servers.s.command has no meaning", None),
        ({"type": "http"}, "servers.s.url is missing", None),
        ({"type": "stdio", "command": "x", "url": "u"}, "servers.s.url has no meaning", "Set type"),
        ("x", "servers.s must be a table", None),
    ],
)
def test_a_mistake_in_our_toml_names_its_key_and_file(table, message, hint):
    with pytest.raises(BridgeError) as caught:
        spec_from_toml("s", table, "bridge.toml")
    assert caught.value.code == "bad_config"
    assert message in caught.value.message
    assert hint is None or hint in caught.value.hint


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("[servers.a]\ncommand = 'x'\n\n[servers.s]\ncommand = 'x'\nera = 'new'\n", 6),
        ("[servers.a]\nera = 'auto'\ncommand = 'x'\n[servers.'s']\ncommand = 'x'\n\"era\" = 3\n", 6),
        ("era = 1\n[servers]\na = {command = 'x'}\ns.command = 'x'\ns.era = 3\n", 5),
        ("[servers]\ns = {command = 'x', era = 'new'}\n", 2),
        ("# [servers.s]\n[ servers . s ] # here\n", 2),
        ("[servers.s]\ncommand = 'x'\n[servers.s.env]\nA = 1\n", 3),
        ("[servers.s]\ncommand = '''\nera = 1\n'''\nera = 'new'\n", 5),
        ("[servers.s]\nargs = [\n'era = 1',\n]\ncommand = 'x'\nera = 'new'\n", 6),
    ],
)
def test_a_mistake_in_our_toml_names_its_line(tmp_path, content, line):
    file = tmp_path / "bridge.toml"
    file.write_text(content)
    with pytest.raises(BridgeError) as caught:
        spec_from_toml("s", tomllib.loads(content)["servers"]["s"], file)
    assert caught.value.message.startswith(f"{file}, line {line}: servers.s.")
    assert (caught.value.details["file"], caught.value.details["line"]) == (str(file), line)


def test_a_spec_never_shows_what_may_be_secret():
    spec = ServerSpec(
        name="s",
        command="x",
        args=("--key=hunter2",),
        env={"K": "hunter2"},
        url="https://hunter2",
        headers={"H": "hunter2"},
    )
    assert "hunter2" not in repr(spec) + str(spec) + f"{spec}" + spec.fingerprint()
    assert "'K'" in repr(spec)


def test_a_fingerprint_changes_with_what_decides_the_tools_and_with_nothing_else():
    spec = ServerSpec(name="s", command="x", env={"A": "1", "B": "2"})
    assert (
        spec.fingerprint() == ServerSpec(name="s", command="x", env={"B": "2", "A": "1"}, call_timeout=3).fingerprint()
    )
    assert spec.fingerprint() != ServerSpec(name="s", command="x", env={"A": "1", "B": "3"}).fingerprint()


# Aliases.


@pytest.mark.parametrize(
    ("name", "alias"),
    [("Foo-Bar", "foo_bar"), ("123x", "_123x"), ("class", "class_"), ("git", "git"), ("@org/pkg", "_org_pkg")],
)
def test_server_aliases_follow_the_rules(name, alias):
    assert assign([name], lower=True) == {name: alias}


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("getUser", "getUser"),
        ("get-user", "get_user"),
        ("Foo-Bar", "Foo_Bar"),
        ("from", "from_"),
        ("__init__", "_init__"),
        ("", "unnamed"),
        ("---", "unnamed"),
        ("größe", "größe"),
        ("ﬁle", "_le"),
        ("match", "match"),
    ],
)
def test_tool_aliases_keep_what_is_an_identifier(name, alias):
    assert assign([name]) == {name: alias}


def test_names_that_collide_once_made_identifiers_stay_distinct():
    assert assign(["a-b", "a_b", "a_b_2"]) == {"a-b": "a_b_3", "a_b": "a_b", "a_b_2": "a_b_2"}
    assert assign(["class", "class_"]) == {"class": "class_2", "class_": "class_"}
    assert assign(["Foo", "foo"], lower=True) == {"Foo": "foo_2", "foo": "foo"}
    assert assign(["a-b", "a_b-2"]) == {"a-b": "a_b", "a_b-2": "a_b_2"}
    assert assign(["a-b", "a_b", "a_b-2"]) == {"a-b": "a_b_3", "a_b": "a_b", "a_b-2": "a_b_2"}


def test_of_several_names_that_become_the_same_each_keeps_its_alias_when_another_comes():
    hashed = {name: f"del_user_{hashlib.sha256(name.encode()).hexdigest()[:8]}" for name in ("del-user", "del user")}
    assert assign(hashed) == hashed
    more = assign([*hashed, "del!user", "del_user", "del_user_2", "other"])
    assert {name: more[name] for name in hashed} == hashed
    assert more["del_user"] == "del_user"


def test_reserved_identifiers_are_not_given_out():
    assert assign(["raw", "x"], reserved=frozenset({"raw"})) == {"raw": "raw_", "x": "x"}


names = st.one_of(st.text(max_size=12), st.text(alphabet="ab-_. 12A", max_size=6), st.sampled_from(keyword.kwlist))


@given(st.lists(names, max_size=30), st.booleans(), st.randoms(use_true_random=False))
def test_aliases_are_injective_valid_and_independent_of_order(given_names, lower, rng: random.Random):
    import unicodedata

    aliases = assign(given_names, lower=lower)
    assert set(aliases) == set(given_names)
    assert len(set(aliases.values())) == len(aliases)
    # Python folds identifiers to NFKC: they must be distinct after that too.
    assert len({unicodedata.normalize("NFKC", alias) for alias in aliases.values()}) == len(aliases)
    for name, alias in aliases.items():
        assert alias.isidentifier()
        assert not keyword.iskeyword(alias)
        assert not alias.startswith("__")
        assert derive(alias, lower=lower) == alias
        if derive(name, lower=lower) == name:
            assert alias == name
    shuffled = list(given_names)
    rng.shuffle(shuffled)
    assert assign(shuffled, lower=lower) == aliases


similar = st.text(alphabet="ab-. !A", max_size=4)


@given(st.lists(similar, max_size=12), similar, st.booleans())
def test_a_further_name_moves_no_alias_to_another_tool(given_names, further, lower):
    before, after = assign(given_names, lower=lower), assign([*given_names, further], lower=lower)
    owners = {alias: name for name, alias in before.items()}
    for name, alias in after.items():
        assert owners.get(alias, name) == name or name == alias


def test_nearest_names_ignore_case():
    assert nearest("GIT_STATSU", ["git_status", "unrelated"]) == ["git_status"]


@pytest.mark.parametrize(
    "find", [lambda name, known: nearest(name, known)[0], lambda name, known: near(name, known)[0]]
)
def test_names_are_near_whatever_the_order_and_the_case_of_their_words(find):
    known = ["read_text_file", "write_file", "list_directory", "file_status", "getUser"]
    asked = {"textFileRead": "read_text_file", "directory_list": "list_directory", "user_get": "getUser"}
    assert {name: find(name, known) for name in asked} == asked
    assert find("write_fiel", known) == "write_file"


# --- what comes with the folder ---


def local(**project):
    return {"projects": {"CWD": project}}


@pytest.mark.parametrize(
    ("user", "general", "allowed"),
    [
        ({}, {}, []),
        (local(enabledMcpjsonServers=["a"]), {}, ["a"]),
        (local(enableAllProjectMcpServers=True), {}, ["a", "b"]),
        (local(enableAllProjectMcpServers="true"), {}, []),
        (local(enabledMcpjsonServers="a"), {}, []),
        ({"projects": {"/elsewhere": {"enableAllProjectMcpServers": True}}}, {}, []),
        ({"enableAllProjectMcpServers": True, "enabledMcpjsonServers": ["a"]}, {}, []),
        # What is said for all projects counts where the folder itself was accepted.
        ({}, {"enableAllProjectMcpServers": True}, []),
        (local(hasTrustDialogAccepted=True), {"enableAllProjectMcpServers": True}, ["a", "b"]),
        (local(hasTrustDialogAccepted=True), {"enabledMcpjsonServers": ["b"]}, ["b"]),
        (local(hasTrustDialogAccepted=True), {}, []),
        (local(hasTrustDialogAccepted=True), {"enableAllProjectMcpServers": True, "disabledMcpjsonServers": ["a"]}, ["b"]),
    ],
)  # fmt: skip
def test_a_projects_servers_take_part_once_they_are_approved_in_claude_code(find, tmp_path, user, general, allowed):
    (tmp_path / "home/.claude").mkdir()
    (tmp_path / "home/.claude/settings.json").write_text(json.dumps(general))
    (tmp_path / "work/.claude").mkdir()
    for name in ("settings.json", "settings.local.json"):
        # The folder's own word counts for nothing.
        (tmp_path / "work/.claude" / name).write_text(json.dumps({"enableAllProjectMcpServers": True}))
    found = find(user=user, project=servers(a="x", b="y"))
    assert [name for name, spec in found.servers.items() if spec.enabled] == allowed
    left_out = {name for file in found.ignored_files for name in file.servers}
    assert left_out == {"a", "b"} - set(allowed) - set(general.get("disabledMcpjsonServers", ()))


@pytest.fixture
def tree(tmp_path):
    """A home, and folders of a project in it: `tree(user=…, files={folder: content}, cwd=folder)`."""
    home = tmp_path / "home"
    home.mkdir()

    def run(*, user=None, files=None, cwd="src", **options):
        (home / ".claude.json").write_text(json.dumps(user or {}).replace("HOME", str(home)))
        for folder, content in (files or {}).items():
            (home / folder).mkdir(parents=True, exist_ok=True)
            (home / folder / ".mcp.json").write_text(json.dumps(content))
        (home / cwd).mkdir(parents=True, exist_ok=True)
        return discover({}, config_file="x.toml", environ={}, cwd=home / cwd, home=home, **options)

    run.home = home
    return run


def commands(found):
    return {name: spec.command for name, spec in found.servers.items() if spec.enabled}


def test_files_of_folders_above_count_and_the_nearest_first(tree):
    files = {"src": servers(a="near", b="near"), "src/deep/er": servers(a="nearest"), ".": servers(c="far")}
    user = {"projects": {"HOME/src/deep/er": {"enableAllProjectMcpServers": True}}}
    found = tree(user=user, files=files, cwd="src/deep/er")
    assert commands(found) == {"a": "nearest", "b": "near", "c": "far"}
    assert {spec.scope for spec in found.servers.values()} == {"project"}
    assert commands(tree(user={"projects": {"HOME": {"enableAllProjectMcpServers": True}}}, cwd="src/deep/er")) == {}


def test_a_file_above_starts_nothing_before_it_is_trusted_by_itself(tree, tmp_path):
    file = tree.home / "src/.mcp.json"
    store = TrustStore(tmp_path / "state")
    found = tree(files={"src": servers(a="x")}, cwd="src/deep", trust=store)
    assert not found.servers
    [over] = found.ignored_files
    assert (over.code, over.file, over.servers) == ("untrusted_file", str(file), ("a",))
    assert f"`mcp-bridge trust {tree.home}/src`" in over.hint
    store.record(content_of(file, file.read_bytes(), json.loads(file.read_bytes())))
    assert commands(tree(cwd="src/deep", trust=store)) == {"a": "x"}
    tree(files={"src/deep": servers(b="y")}, cwd="src/deep", trust=store)
    assert commands(tree(cwd="src/deep", trust=store)) == {"a": "x"}, "each file by itself"
    tree(files={"src": servers(a="another")})
    assert commands(tree(cwd="src/deep", trust=store)) == {}


def test_of_a_trusted_file_above_a_folder_gives_no_other_code(tree, tmp_path):
    """Its servers are started in the working directory, where a file of the same name is not what was trusted."""
    entries = {"mcpServers": {"a": {"command": "./run.sh"}, "b": {"command": "npx", "args": ["x"]}}}
    tree(files={"src": entries}, cwd="src/deep")
    (tree.home / "src/run.sh").write_text("trusted")
    (tree.home / "src/deep/run.sh").write_text("of somebody else")
    file, store = tree.home / "src/.mcp.json", TrustStore(tmp_path / "state")
    store.record(content_of(file, file.read_bytes(), entries))
    found = tree(cwd="src/deep", trust=store, safe_directory=tmp_path / "ours").servers
    assert found["a"].scripts == {f"{tree.home}/src/deep/run.sh": "not there"}
    assert changed(found["a"].scripts)
    assert found["b"].args == ("--prefix", str(tmp_path / "ours"), "x")
    here = tree(cwd="src", trust=store, safe_directory=tmp_path / "ours").servers
    assert not changed(here["a"].scripts)
    assert here["b"].args == ("x",)


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"command": "python3", "args": ["link/../server.py"]}, "evil/server.py"),
        ({"command": "link/../server.py"}, "evil/server.py"),
        ({"command": "python3", "args": ["server.py"], "cwd": "link/.."}, "evil/server.py"),
        ({"command": "python3", "args": ["evil/../server.py"]}, "server.py"),
        ({"command": "python3", "args": ["deep/server.py"]}, "deep/server.py"),
        ({"command": "python3", "args": ["${NOT_SET:-./server.py}"]}, "server.py"),
        ({"command": "${NOT_SET:-./evil}/server.py"}, "evil/server.py"),
        ({"command": "node", "args": ["--import=./server.py"]}, "server.py"),
        ({"command": "node", "args": ["--import=${NOT_SET:-.}/evil/server.py"]}, "evil/server.py"),
        ({"command": "${NOT_SET:-python3}", "args": ["-c", "a/" * 500_000, "/a" * 500_000]}, None),
    ],
)
def test_what_a_command_names_is_the_file_that_is_started(tmp_path, entry, named):
    """After a link, `..` leads out of the folder that the link leads to; a default is a part of the trusted text."""
    folder = tmp_path.resolve()
    (folder / "evil/inner").mkdir(parents=True)
    (folder / "link").symlink_to("evil/inner")
    (folder / "deep").symlink_to("evil")
    for place in (".", "evil"):
        (folder / place / "server.py").write_text(f"print({place!r})")
    found = content_of(folder / ".mcp.json", b"", {"mcpServers": {"a": entry}}).files
    assert list(found) == ([] if named is None else [str(folder / named)])


def test_an_approval_is_of_no_file_above_that_others_could_have_written(tree):
    user = {"projects": {"HOME/src/deep": {"enableAllProjectMcpServers": True}}}
    (tree.home / "src").mkdir()
    for place, mode in ((tree.home / "src", 0o777), (tree.home / "src/.mcp.json", 0o666)):
        found = tree(user=user, files={"src": servers(a="x")}, cwd="src/deep")
        assert commands(found) == {"a": "x"}
        before = place.stat().st_mode
        place.chmod(mode)
        found = tree(user=user, cwd="src/deep")
        assert commands(found) == {}
        assert found.ignored_files[0].servers == ("a",)
        place.chmod(before)


def git(*words, cwd):
    subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x@y", *words], cwd=cwd, check=True, capture_output=True
    )


def test_local_scope_and_approvals_are_those_of_the_git_repository(tree):
    user = {"projects": {"HOME/src": servers(mine="local") | {"enabledMcpjsonServers": ["a"]}}}
    files = {"src": servers(a="x", b="y")}
    tree(files=files, cwd="src/deep/er")
    assert commands(tree(user=user, cwd="src/deep/er")) == {}
    git("init", "-q", cwd=tree.home / "src")
    assert commands(tree(user=user, cwd="src/deep/er")) == {"mine": "local", "a": "x"}
    nearer = user["projects"] | {"HOME/src/deep/er": servers(mine="of the folder")}
    assert commands(tree(user={"projects": nearer}, cwd="src/deep/er"))["mine"] == "of the folder"
    git("commit", "-q", "--allow-empty", "-m", "x", cwd=tree.home / "src")
    git("worktree", "add", "-q", str(tree.home / "elsewhere/tree"), cwd=tree.home / "src")
    assert commands(tree(user=user, cwd="elsewhere/tree")) == {"mine": "local"}
    git("init", "-q", cwd=tree.home / "src/deep")
    assert "mine" not in commands(tree(user=user, cwd="src/deep/er")), "a repository in it is another"


def test_a_folder_that_says_it_belongs_to_a_repository_is_believed_if_that_says_so_too(tree):
    user = {"projects": {"HOME/src": servers(mine="local") | {"enableAllProjectMcpServers": True}}}
    tree(files={"strange": servers(evil="evil")}, cwd="src")
    git("init", "-q", cwd=tree.home / "src")
    git("commit", "-q", "--allow-empty", "-m", "x", cwd=tree.home / "src")
    git("worktree", "add", "-q", str(tree.home / "tree"), cwd=tree.home / "src")
    assert commands(tree(user=user, cwd="tree")) == {"mine": "local"}
    (tree.home / "strange/.git").write_bytes((tree.home / "tree/.git").read_bytes())
    assert commands(tree(user=user, cwd="strange")) == {}
    (tree.home / "strange/.git").unlink()
    own = tree.home / "strange/common/worktrees/x"
    own.mkdir(parents=True)
    (own / "commondir").write_text(str(tree.home / "src/.git"))
    (own / "gitdir").write_text(str(tree.home / "strange/.git"))
    for text in (f"gitdir: {own}", "gitdir: \0", "gitdir: /dev/zero", "", "gitdir: .git"):
        (tree.home / "strange/.git").write_text(text)
        assert commands(tree(user=user, cwd="strange")) == {}


def test_a_project_that_names_the_bridge_alone_is_nothing_to_speak_of(find):
    assert not find(project=servers(bridge="mcp-bridge")).ignored_files


def test_the_users_toml_goes_before_the_folders_and_the_folders_servers_are_told_apart(find):
    own, folder = {"a": {"command": "own"}}, {"a": {"command": "theirs"}, "b": {"command": "theirs"}}
    found = find(own, folder=folder, trusted=Content(Path("/folder/mcp-bridge.toml"), b""))
    assert {name: spec.command for name, spec in found.servers.items()} == {"a": "own", "b": "theirs"}
    assert found.folder_servers == {"b"}


@pytest.mark.parametrize(
    ("command", "args", "sheltered"),
    [
        ("npx", ("-y", "x"), ("--prefix", "SHELTER", "-y", "x")),
        ("/usr/bin/npx", ("x",), ("--prefix", "SHELTER", "x")),
        ("npx", ("--prefix", "/mine", "x"), None),
        ("python3", ("-m", "x"), "PYTHONSAFEPATH"),
        ("python", ("-u", "-W", "ignore", "-mx"), "PYTHONSAFEPATH"),
        ("/venv/bin/python3.12", ("-um", "x"), "PYTHONSAFEPATH"),
        ("python3", ("server.py", "-m"), None),
        ("python3", ("-I", "server.py"), None),
        ("uvx", ("x",), None),
        ("server", ("-m",), None),
    ],
)
def test_what_is_configured_for_every_folder_is_not_taken_from_one(find, tmp_path, command, args, sheltered):
    user = {"mcpServers": {"s": {"command": command, "args": list(args)}}}
    spec = find(user=user, safe_directory=tmp_path / "ours").servers["s"]
    wanted = (
        args
        if not isinstance(sheltered, tuple)
        else tuple(word.replace("SHELTER", str(tmp_path / "ours")) for word in sheltered)
    )
    assert spec.args == wanted
    assert ("PYTHONSAFEPATH" in spec.env) is (sheltered == "PYTHONSAFEPATH")
    entry = {"s": {"command": command, "args": list(args)}}
    assert find(entry, safe_directory=tmp_path / "ours").servers["s"].args == args, (
        "of a file that was named: as it is written"
    )
    assert find(entry, safe_directory=tmp_path / "ours", for_every_folder=True).servers["s"] == spec.__class__(
        name="s", command=command, args=wanted, env=spec.env, source="bridge.toml"
    )


def test_npx_and_python_start_what_they_would_start_elsewhere(find, tmp_path, monkeypatch):
    """The real runners, in a folder with something of the same name."""
    work, ours, mark = tmp_path / "work", tmp_path / "ours", tmp_path / "mark"
    script = f"#!/bin/sh\necho folder >> '{mark}'\n"
    for place, text in ((work, script), (ours, "#!/bin/sh\necho ours\n")):
        package = place / "node_modules/some-server"
        package.mkdir(parents=True)
        (place / "node_modules/.bin").mkdir()
        (package / "package.json").write_text('{"name": "some-server", "version": "1.0.0", "bin": "run.sh"}')
        for file in (package / "run.sh", place / "node_modules/.bin/some-server"):
            file.write_text(text)
            file.chmod(0o755)
    (work / "this.py").write_text(f"open({str(mark)!r}, 'a')")
    for command, args in (("npx", ["--no", "some-server"]), (sys.executable, ["-m", "this"])):
        monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
        user = {"mcpServers": {"s": {"command": command, "args": args}}}
        spec = find(user=user, safe_directory=ours).servers["s"]
        subprocess.run([spec.command, *spec.args], cwd=work, env=os.environ | spec.env, capture_output=True, check=True)
        assert not mark.exists()
