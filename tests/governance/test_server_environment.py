"""What servers are given of the bridge's environment, and what is told of what they print."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from bridge_fixtures import until
from downstream_calls import call_tool
from servers.specs import faulty

from mcp_bridge import settings
from mcp_bridge.downstream.catalog.tool_results import convert
from mcp_bridge.downstream.client.fleet import Fleet
from mcp_bridge.downstream.configuration.env_pass import MINIMAL, env_pass
from mcp_bridge.downstream.configuration.inherited_environment import InheritedEnvironment
from mcp_bridge.downstream.configuration.own_entries import spec_from_toml
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.errors import BridgeError
from mcp_bridge.gate import call_notifications
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.governance.server_environment import environment, withheld
from mcp_bridge.governance.server_output_masking import shown_output

pytestmark = pytest.mark.timeout(120)

PERSONS = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/ada",
    "USER": "ada",
    "SSL_CERT_FILE": "/etc/ssl/company.pem",
    "NODE_EXTRA_CA_CERTS": "/etc/ssl/company.pem",
    "HTTPS_PROXY": "http://proxy.example.com:3128",
    "https_proxy": "http://proxy.example.com:3128",
    "NO_PROXY": "localhost",
    "KUBECONFIG": "/home/ada/.kube/config",
    "GITHUB_TOKEN": "an-exported-token-1234",
    "LANG": "de_DE.UTF-8",
}
BRIDGES = {"MCP_BRIDGE_STATE_DIR": "/state", "MCP_BRIDGE_BACKUP_PASSPHRASE": "of the bridge alone"}


@pytest.fixture
def governed(tmp_path):
    def make(**tables):
        return load_governance(tables, None, tmp_path, tmp_path)

    return make


async def child_environment(fleet, name):
    tool = await fleet.server(name).find_tool("environment")
    return json.loads(convert(await call_tool(fleet, name, "environment"), tool)["value"])


async def test_a_server_has_what_a_client_would_give_it_and_nothing_of_the_bridges_own(monkeypatch):
    for name, value in {**PERSONS, **BRIDGES}.items():
        if name not in {"PATH", "HOME"}:
            monkeypatch.setenv(name, value)
    async with Fleet([faulty(env={"ADDED": "a", "LANG": "C"})]) as fleet:
        given = await child_environment(fleet, "faulty")
    for name, value in {**PERSONS, "PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}.items():
        assert given[name] == {"LANG": "C"}.get(name, value), name
    assert given["ADDED"] == "a"
    assert [name for name in given if name.startswith("MCP_BRIDGE_")] == ["MCP_BRIDGE_NESTED"]


@pytest.mark.parametrize(
    ("choice", "more"),
    [
        ("minimal", set()),
        (("KUBECONFIG", "SSL_CERT_*"), {"KUBECONFIG", "SSL_CERT_FILE"}),
        (("*",), set(PERSONS)),
        ("all", set(PERSONS)),
    ],
)
def test_an_operator_says_which_variables_servers_get(choice, more):
    few = {name for name in PERSONS if name in MINIMAL}
    variables = {**PERSONS, **BRIDGES}
    assert set(InheritedEnvironment(variables, choice).of(ServerSpec(name="s"))) == few | more
    assert set(InheritedEnvironment(variables).of(ServerSpec(name="s", env_pass=choice))) == few | more


@pytest.mark.parametrize("scope", ["folder", "project"])
def test_what_comes_with_a_folder_gets_no_more_than_the_user_lets_servers_have(scope):
    spec = ServerSpec(name="s", env_pass="all", scope=scope)  # noqa: S106
    few = {name for name in PERSONS if name in MINIMAL}
    assert set(InheritedEnvironment(PERSONS, "minimal").of(spec)) == few
    assert set(InheritedEnvironment(PERSONS, ("KUBECONFIG",)).of(spec)) == few | {"KUBECONFIG"}
    less = ServerSpec(name="s", env_pass=("LANG",), scope=scope)
    assert set(InheritedEnvironment(PERSONS, ("KUBECONFIG",)).of(less)) == few
    assert set(InheritedEnvironment(PERSONS, "minimal").of(ServerSpec(name="s", env_pass="all"))) == set(PERSONS)  # noqa: S106


def test_what_secrets_come_from_and_the_models_key_are_given_to_nobody(governed, monkeypatch):
    for name, value in {**PERSONS, "OPENAI_API_KEY": "sk-x", "ANTHROPIC_API_KEY": "sk-y"}.items():
        monkeypatch.setenv(name, value)
    keys = {"GITHUB_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"}
    secrets = {"github": {"env": "GITHUB_TOKEN", "tools": ["github.*"]}}

    def given(choice="all", **tables):
        found = environment(settings.Settings(env_pass=choice), governed(**tables))
        return keys & set(found.of(ServerSpec(name="s", env_pass=("*",))))

    assert given() == keys
    assert given(secrets=secrets) == keys - {"GITHUB_TOKEN"}
    assert given(secrets=secrets, choice="minimal") == keys - {"GITHUB_TOKEN"}
    assert given(model={"provider": "litellm", "name": "openai/gpt-5"}) == keys - {"OPENAI_API_KEY"}
    assert given(model={"provider": "litellm", "name": "gpt-5"}) == keys - {"OPENAI_API_KEY"}
    assert given(model={"provider": "litellm", "name": "claude-sonnet-4-5"}) == keys - {"ANTHROPIC_API_KEY"}
    reference = {"provider": "litellm", "name": "openai/gpt-5", "api_key": "vault://secret/github"}
    assert given(secrets=secrets, model=reference) == keys - {"GITHUB_TOKEN"}
    assert withheld(None, PERSONS) == frozenset()

    def beside(embeddings):
        found = environment(settings.Settings(search={"embeddings": embeddings}), governed())
        return keys & set(found.of(ServerSpec(name="s", env_pass=("*",))))

    assert beside("openai/text-embedding-3-small") == keys - {"OPENAI_API_KEY"}
    assert beside("/models/openai") == keys


def test_a_runners_environment_of_the_bridge_is_not_first_on_a_servers_path(monkeypatch):
    """As `uvx` starts the bridge: a server's `python` is the person's own all the same."""
    ours = os.path.join(sys.prefix, "bin")  # noqa: PTH118
    variables = {"PATH": f"{ours}:/usr/bin:/bin"}
    assert InheritedEnvironment(variables).of(ServerSpec(name="s"))["PATH"] == "/usr/bin:/bin"
    activated = variables | {"VIRTUAL_ENV": sys.prefix}
    assert InheritedEnvironment(activated).of(ServerSpec(name="s"))["PATH"] == variables["PATH"]
    later = {"PATH": f"/usr/bin:{ours}"}
    assert InheritedEnvironment(later).of(ServerSpec(name="s"))["PATH"] == later["PATH"]


def test_no_environment_shows_a_value():
    assert "an-exported-token" not in repr(InheritedEnvironment(PERSONS))


@pytest.mark.parametrize("value", ["everything", "", ["no name"], [1], 7, ["A="], True, "FOO BAR,"])
def test_what_is_no_choice_of_variables_is_refused(value, tmp_path):
    with pytest.raises(ValueError, match='must be "all", "minimal"'):
        env_pass(value)
    with pytest.raises(BridgeError, match=r"servers\.x\.env_pass must be"):
        spec_from_toml("x", {"command": "y", "env_pass": value}, tmp_path / "x.toml")


def test_a_choice_is_written_for_all_servers_and_for_one(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text('env_pass = ["KUBECONFIG"]\n[servers.s]\ncommand = "x"\nenv_pass = "minimal"\n')
    found = settings.load(file, environ={})
    assert found.settings.env_pass == ("KUBECONFIG",)
    assert spec_from_toml("s", found.layers[0].servers["s"], file).env_pass == "minimal"  # noqa: S105


# --- what they print ---


def printed(error):
    return error.details.get("output", [])


async def failure(spec, governance=None, **env):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MCP_BRIDGE_")} | env
    async with Fleet(
        [spec], environment=InheritedEnvironment(variables), mask_output=shown_output(governance)
    ) as fleet:
        with pytest.raises(BridgeError) as caught:
            await fleet.server(spec.name).start()
        status = fleet.server(spec.name).status()
        with pytest.raises(BridgeError) as again:
            await fleet.server(spec.name).start()
    assert "\n" not in status.error
    assert again.value.details["reason"] == "backoff"
    return caught.value


def script(text, **options):
    return ServerSpec(name="s", command=sys.executable, args=("-c", text), **options)


async def test_what_a_server_prints_while_it_does_not_start_is_in_the_error():
    error = await failure(faulty("dead"))
    assert printed(error) == ["cannot find my configuration"]
    assert error.message == (
        "server 'faulty' did not start: it ended with exit code 3 before it was ready. It printed:\n"
        "  cannot find my configuration\n"
    )
    slow = await failure(
        script("import sys, time; print('waiting for the proxy', file=sys.stderr, flush=True); time.sleep(99)",
               start_timeout=1.5)
    )  # fmt: skip
    assert "it was not ready after 1.5 s (its start_timeout). It printed:\n  waiting for the proxy\n" in slow.message
    there = await failure(script("print('on standard output'); raise SystemExit(4)"))
    assert printed(there) == ["(stdout) on standard output"]


async def test_of_a_stack_the_error_has_what_has_happened():
    frames = "    at next (node:internal)\n" * 30
    stack = f"\x1b[31mError: no token\n    at Object.<anonymous> (/srv/index.js:3:7)\n{frames}Node.js v24"
    error = await failure(script(f"import sys; sys.exit({stack!r})"))
    assert printed(error) == ["Error: no token", "Node.js v24"]
    many = await failure(script("import sys; sys.exit('\\n'.join('line %d ' % n + 'x' * 1000 for n in range(5000)))"))
    assert [line[:9] for line in printed(many)] == [f"line {n}" for n in range(4992, 5000)]
    assert max(map(len, printed(many))) <= 240


LEAK = """
import base64, json, os, sys
for name in ("DB_PASSWORD", "PGPASSWORD", "MY_API_KEY", "OWN_TOKEN"):
    print(name, os.environ[name], json.dumps(os.environ[name]), base64.b64encode(os.environ[name].encode()).decode(), file=sys.stderr)
print(sys.argv[1:], file=sys.stderr)
print("postgres://ada:pa55-of-the-url@db/x", "Authorization: Bearer abcdefgh.12345678", file=sys.stderr)
print("found ghp_" + "a1B2" * 9, os.environ["HOME"] + "/.config", "in", os.environ["LANG"], file=sys.stderr)
sys.exit(2)
"""


async def test_no_secret_of_a_server_is_in_its_error(governed, monkeypatch):
    values = {
        "DB_PASSWORD": 'pass"word-of-the-db',
        "PGPASSWORD": "hunter2-hunter2",
        "MY_API_KEY": "an-exported-key-987",
        "FOR_THE_VAULT": "of-the-vault-alone-55",
        "LANG": "de_DE.UTF-8",
    }
    monkeypatch.setenv("FOR_THE_VAULT", values["FOR_THE_VAULT"])
    spec = ServerSpec(
        name="s",
        command=sys.executable,
        args=("-c", LEAK, "--api-key", "of-an-argument-1", "--token=of-an-argument-2", "--port", "8080",
              "given " + values["FOR_THE_VAULT"]),
        env={"OWN_TOKEN": "of-its-own-entry-3"},
    )  # fmt: skip
    governance = governed(secrets={"v": {"env": "FOR_THE_VAULT", "tools": []}})
    error = await failure(spec, governance, **values)
    told = "\n".join(printed(error))
    secrets = [values[name] for name in values if name != "LANG"]
    secrets += ["of-an-argument", "of-its-own", "pa55", "abcdefgh", "ghp_", "cGFzc", "b2YtaXRz", 'pass\\"word']
    for secret in secrets:
        assert secret not in f"{error.message} {error.record()}", secret
    assert "PGPASSWORD [PGPASSWORD]" in told
    assert "--port" in told
    assert "8080" in told
    assert f"~/.config in {values['LANG']}" in told
    assert Path.home().as_posix() + "/" not in told


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("npx", "npm error code E404\nnpm error 404 Not Found - GET https://registry.npmjs.org/no-such"),
        ("npx", "npm error code SELF_SIGNED_CERT_IN_CHAIN\nnpm error errno SELF_SIGNED_CERT_IN_CHAIN"),
        ("uvx", "  No solution found when resolving tool dependencies:"),
    ],
)
async def test_a_package_that_cannot_be_fetched_is_said_to_be_one(tmp_path, command, output):
    runner = tmp_path / command
    runner.write_text(f"#!/bin/sh\ncat >&2 <<'EOF'\n{output}\nEOF\nexit 1\n")
    runner.chmod(0o755)
    error = await failure(ServerSpec(name="s", command=str(runner), args=("-y", "no-such-server")))
    assert f"server 's' did not start: {command} could not fetch its package (exit code 1)." in error.message
    assert output.splitlines()[0].strip() in error.message
    assert "proxy" in error.hint


# --- what they say while they work ---


async def test_what_a_server_says_of_a_call_is_told_without_secrets(sandboxes, governed, monkeypatch):
    monkeypatch.setenv("FOR_THE_VAULT", "of-the-vault-alone-55")
    governance = governed(secrets={"v": {"env": "FOR_THE_VAULT", "tools": []}})
    spec = faulty("talkative", "leak", env={"TOKEN": "of-the-vault-alone-55"})
    heard = []
    async with sandboxes.open(spec, governance=governance) as bridge:
        record = await bridge.run("from mcp.servers import faulty\nawait faulty.talk()", on_server_message=heard.append)
        assert record.status == "success", record.error
    assert heard == ["faulty.talk: with vault://secret/v", "faulty.talk: warning: slow", 'faulty.talk: {"rows": 3}']


async def test_of_what_a_server_says_at_once_the_worst_and_the_last_is_told(sandboxes, monkeypatch):
    monkeypatch.setattr(call_notifications, "NOTIFICATION_SECONDS", 3600)
    heard = []
    code = "from mcp.servers import faulty\nawait faulty.say()"
    async with sandboxes.open(faulty("talkative")) as bridge:
        record = await bridge.run(code, on_server_message=lambda text: heard.append(text.removeprefix("faulty.say: ")))
        assert record.status == "success", record.error
    assert [text for text in heard if "/" in text] == ["0/40", "39/40"]
    logs = [text for text in heard if "/" not in text]
    assert logs == ["log 0", "error: log 7", "log 37", "log 38", "log 39"]


async def test_what_is_kept_is_told_when_the_interval_has_passed(monkeypatch):
    monkeypatch.setattr(call_notifications, "NOTIFICATION_SECONDS", 0.05)
    heard = []
    projector = SimpleNamespace(answer=lambda text: text)
    with call_notifications.CallNotifications("s.t", projector, heard.append) as on_server_message:
        for number in range(3):
            on_server_message.on_message(f"{number}/3", None)
        await until(lambda: len(heard) == 2)
    assert heard == ["s.t: 0/3", "s.t: 2/3"]


async def test_a_message_too_long_to_be_looked_through_is_not_shown():
    heard, looked_at = [], []
    projector = SimpleNamespace(answer=lambda text: looked_at.append(len(text)) or text)
    with call_notifications.CallNotifications("s.t", projector, heard.append) as on_server_message:
        on_server_message.on_message("x" * 1_000_000, 7)
    assert heard == ["s.t: (a message of 1,000,000 characters)"]
    assert max(looked_at) < 100


# --- what they print before they die in a call ---


async def died(fleet, principal, *, caplog):
    """The error of a call that the server dies in, and what the operator is warned of meanwhile."""
    caplog.clear()
    with pytest.raises(BridgeError) as caught:
        await call_tool(fleet, "faulty", "die", principal=principal)
    assert caught.value.code == "server_died"
    await until(lambda: any(record.levelname == "WARNING" for record in caplog.records))
    return caught.value, caplog.text


async def test_what_a_server_printed_before_it_died_in_a_call_is_in_the_error_without_secrets(caplog):
    spec = faulty("leak-die", env={"TOKEN": "of-its-own-entry-3"})
    async with Fleet([spec], mask_output=shown_output(None)) as fleet:
        error, warned = await died(fleet, "ada", caplog=caplog)
        assert printed(error) == ["no use of [TOKEN]"]
        assert error.message == (
            "server 'faulty' died in the middle of die (exit code 7). It printed:\n  no use of [TOKEN]\n"
        )
        assert "no use of [TOKEN]" in warned
        assert "of-its-own" not in f"{warned} {error.record()}"


async def test_what_a_server_printed_that_works_for_several_is_told_to_none_of_them(caplog):
    async with Fleet([faulty()], mask_output=shown_output(None)) as fleet:
        await call_tool(fleet, "faulty", "echo", {"text": "x"}, principal="anna")
        error, warned = await died(fleet, "ben", caplog=caplog)
        assert (printed(error), "dying as told" in warned) == ([], False)
        assert error.private["stderr"] == ["dying as told"], "the operator's"
        # The next processes have worked for one alone.
        for _ in range(2):
            error, _ = await died(fleet, "ben", caplog=caplog)
            assert printed(error) == ["dying as told"]
        with pytest.raises(BridgeError) as caught:
            await call_tool(fleet, "faulty", "echo", {"text": "x"}, principal="anna")
        assert caught.value.details["reason"] == "backoff"
        assert "dying as told" not in str(caught.value.record()), "it is another's"
