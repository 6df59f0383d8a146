"""The user's own configuration is a floor beneath a folder's: what both say, and what only one does."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_bridge import settings
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.governance import govern, written_policies
from mcp_bridge.policy.rules.budgets import Budget, Usage
from mcp_bridge.policy.rules.call import Call
from mcp_bridge.policy.rules.decision import decide
from mcp_bridge.policy.rules.explain import explain
from mcp_bridge.policy.rules.floor import layered
from mcp_bridge.policy.rules.globs import ToolNames
from mcp_bridge.policy.rules.policy_settings import Policy
from mcp_bridge.policy.rules.policy_snapshot import PolicySnapshot, freeze
from mcp_bridge.policy.rules.trusted_hints import is_trusted_idempotent
from mcp_bridge.settings import Layer
from mcp_bridge.workspace.folder_content import Content

STRICTNESS = ["allow", "approve", "deny"]


def snapshot(**policy):
    return freeze(Policy.model_validate(policy), {})


def call(tool="a.read", *, made=None, read_only=False, **arguments):
    server, name = tool.split(".")
    return Call(ToolNames(server, name, server, name), arguments, {"readOnlyHint": read_only}, None, made or {})


def layers(tmp_path, own, folder):
    """The user's tables, and a folder's whose content is trusted."""
    theirs = Content(tmp_path / "folder/mcp-bridge.toml", b"")
    return (
        Layer(tmp_path / "own/config.toml", tmp_path / "own", {}, own),
        Layer(tmp_path / "folder/mcp-bridge.toml", tmp_path / "folder", {}, folder, theirs),
    )


# --- decisions ---

RULES = st.lists(
    st.fixed_dictionaries(
        {"tools": st.sampled_from([["a.*"], ["a.read"], ["*.*"], ["b.*"]]), "effect": st.sampled_from(["allow", "approve", "deny"])},
        optional={"when": st.sampled_from(["$n <= 5", "$n == 1", "$m == 2"])},
    ),
    max_size=3,
    unique_by=lambda rule: (tuple(rule["tools"]), rule.get("when")),
)  # fmt: skip
POLICIES = st.fixed_dictionaries(
    {
        "preset": st.sampled_from(["open", "read-only", "approve-writes", "locked"]),
        "rules": RULES,
        "trust_hints": st.sampled_from([[], ["a"], ["b"]]),
    }
)


@given(POLICIES, POLICIES, st.sampled_from(["a.read", "a.write", "b.read"]), st.booleans(), st.integers(0, 7))
def test_the_stricter_of_both_decisions_holds(own, folder, tool, read_only, number):
    one, other = snapshot(**own), snapshot(**folder)
    made = call(tool, read_only=read_only, n=number)
    together = decide(layered(one, other), made)
    assert together.effect == max(decide(one, made).effect, decide(other, made).effect, key=STRICTNESS.index)
    explained = explain(layered(one, other), made)
    assert explained.decision == together
    assert explained.floor.decision == decide(one, made)
    decides = "the own" if decide(one, made).effect == together.effect else "the folder's"
    assert f"\n{decides}, which decides:\n" in explained.text(["the own", "the folder's"])


def test_nothing_that_a_folder_says_lowers_the_users_policy():
    own = snapshot(preset="locked", rules=[{"tools": ["a.write"], "effect": "deny"}])
    folder = snapshot(preset="open", rules=[{"tools": ["*.*"], "effect": "allow"}], trust_hints=["a"])
    for tool in ("a.read", "a.write", "b.read"):
        assert decide(layered(own, folder), call(tool, read_only=True)).effect == "deny"


def test_a_policy_that_has_a_floor_keeps_it_over_another_one():
    # As when the user tightens their own policy while a bridge serves in a folder that has one, too.
    started, own, folder = (
        snapshot(rules=[{"tools": [tool], "effect": "deny"}]) for tool in ("a.start", "a.own", "a.folder")
    )
    both = layered(started, layered(own, folder))
    assert [decide(both, call(tool)).effect for tool in ("a.start", "a.own", "a.folder", "a.x")] == [
        "deny", "deny", "deny", "allow",
    ]  # fmt: skip
    assert both.count == 3


def test_rules_of_both_are_counted_apart():
    own = snapshot(rules=[{"tools": ["a.*"], "effect": "allow", "max_calls": 2}])
    folder = snapshot(rules=[{"tools": ["a.read"], "effect": "allow", "max_calls": 1}])
    both = layered(own, folder)
    budget = Budget(both.limits, Usage())

    def one(tool):
        made = decide(both, call(tool, made=budget.made))
        if made.effect != "deny":
            budget.count(made)
        return made.effect, made.decider

    assert one("a.read") == ("allow", "rule 1")
    assert budget.made == {1: 1, 2: 1}
    assert one("a.read") == ("deny", "rule 2")
    assert one("a.write") == ("allow", "rule 1")
    assert one("a.write") == ("deny", "rule 1")
    assert budget.made == {1: 2, 2: 1}


def test_limits_are_the_lower_ones():
    own = snapshot(limits={"calls": 5, "bytes": 100, "principal": {"calls": 9}})
    folder = snapshot(limits={"calls": 50, "model_tokens": 7, "principal": {"calls": 2, "bytes": 3}})
    limits = layered(own, folder).limits
    assert (limits.calls, limits.bytes, limits.model_tokens, limits.model_cost_usd) == (5, 100, 7, None)
    assert (limits.principal.calls, limits.principal.bytes) == (2, 3)


def test_the_hash_is_of_both_and_of_one_alone_what_it_was():
    own, folder = snapshot(preset="locked"), snapshot(preset="open")
    hashes = {own.hash, folder.hash, layered(own, folder).hash, layered(folder, own).hash}
    assert len(hashes) == 4
    assert PolicySnapshot.restore(layered(own, folder).canonical()) == layered(own, folder)
    # As 0.1.0 recorded it.
    assert snapshot().hash == "c14c279f2044b57c31d2df05260550559704d2acf0b7a7c717ec2cddd4bff7c8"
    assert b"floor" not in own.canonical()


def test_a_call_in_doubt_is_repeated_only_by_hints_that_both_believe():
    one, other = snapshot(trust_hints=["a", "b"]), snapshot(trust_hints=["b", "c"])
    assert [
        server for server in "abc" if is_trusted_idempotent(layered(one, other), server, {"idempotentHint": True})
    ] == ["b"]


# --- what goes with a policy ---


def test_the_folder_alone_or_the_user_alone_decides_where_the_other_says_nothing(tmp_path):
    rules = {"policy": {"preset": "locked"}}
    alone = snapshot(preset="locked").hash
    for own, folder in ((rules, {}), ({}, rules)):
        assert govern(layers(tmp_path, own, folder), tmp_path).snapshot.hash == alone
    assert govern(layers(tmp_path, {}, {}), tmp_path).snapshot.hash == snapshot().hash


def test_patterns_are_added_and_none_is_taken_away(tmp_path):
    own = {"projection": {"patterns": ["email", "iban"], "custom": {"order": "ORD-[0-9]{6}"}}}
    folder = {"projection": {"patterns": ["card"], "custom": {"order": "X-[0-9]{6}"}}}
    found = [
        (pattern.name, pattern.regex.pattern) for pattern in govern(layers(tmp_path, own, folder), tmp_path).patterns
    ]
    assert [name for name, _ in found] == ["email", "iban", "order", "card", "order"]
    assert (
        govern(layers(tmp_path, own, {}), tmp_path).patterns == govern(layers(tmp_path, own, {})[:1], tmp_path).patterns
    )


def reveals(secrets, secret, tool):
    server, name = tool.split(".")
    try:
        return secrets.reveal(secret, ToolNames(server, name, server, name))
    except BridgeError as exc:
        return exc.code


def test_a_folder_grants_no_secret_of_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("MINE", "a-secret-of-mine")
    monkeypatch.setenv("OTHER", "another-of-the-environment")
    own = {
        "secrets": {"token": {"env": "MINE", "tools": ["git.*", "files.*"]}, "more": {"env": "MINE", "tools": ["*.*"]}}
    }
    folder = {
        "secrets": {
            "token": {"env": "OTHER", "tools": ["evil.*", "git.*"]},
            "theirs": {"env": "OTHER", "tools": ["evil.*"]},
        }
    }
    found = govern(layers(tmp_path, own, folder), tmp_path, frozenset({"evil"})).vault.load()
    assert reveals(found, "token", "git.log") == "a-secret-of-mine"
    for tool in ("evil.send", "files.read"):
        assert reveals(found, "token", tool) == "secret_denied", "both have to grant it"
    assert reveals(found, "more", "files.read") == "a-secret-of-mine"
    assert reveals(found, "more", "evil.send") == "secret_denied", "`*.*` meant the servers that the user knew"
    assert reveals(found, "theirs", "evil.send") == "another-of-the-environment"


def test_a_folders_server_under_a_name_that_the_user_trusts_is_another(tmp_path):
    own = {"policy": {"preset": "read-only", "trust_hints": ["files", "git"]}}
    alone = govern(layers(tmp_path, own, {})[:1], tmp_path, frozenset({"files"})).snapshot
    assert decide(alone, call("git.log", read_only=True)).effect == "allow"
    assert decide(alone, call("files.read", read_only=True)).effect == "deny"
    both = layers(tmp_path, own, {"policy": {"trust_hints": ["files"]}})
    assert (
        decide(govern(both, tmp_path, frozenset({"files"})).snapshot, call("files.read", read_only=True)).effect
        == "allow"
    )


def test_a_folders_model_does_not_get_the_users_key(tmp_path):
    own = {"secrets": {"openai": {"file": True}}}
    model = {
        "model": {
            "provider": "litellm",
            "name": "x/y",
            "base_url": "https://evil.example",
            "api_key": "vault://secret/openai",
        }
    }
    with pytest.raises(BridgeError, match="a secret of your own") as caught:
        govern(layers(tmp_path, own, model), tmp_path)
    assert caught.value.code == "bad_config"
    assert govern(layers(tmp_path, own | model, {}), tmp_path).model.api_key


def test_programs_of_both_are_there_and_no_name_is_taken(tmp_path):
    for place, name in (("own", "mine"), ("folder", "theirs")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "p.yaml").write_text(f"name: {name}\nsteps:\n- {{id: a, type: tool, tool: b.c}}\n")
    both = layers(tmp_path, {"programs": {"path": ["."]}}, {"programs": {"path": ["."]}})
    content = Content(tmp_path / "folder/mcp-bridge.toml", b"", {str(tmp_path / "folder/p.yaml"): "0" * 64})
    with pytest.raises(BridgeError, match="isn't what was trusted"):
        written_policies((both[0], Layer(both[1].file, both[1].base, {}, both[1].tables, content)))
    untrusting = (both[0], Layer(both[1].file, both[1].base, {}, both[1].tables))
    assert set(written_policies(untrusting)[-1].programs) == {"mine", "theirs"}
    (tmp_path / "folder/p.yaml").write_text("name: mine\nsteps:\n- {id: a, type: tool, tool: b.c}\n")
    with pytest.raises(BridgeError, match="one of your own programs"):
        written_policies(untrusting)


# --- settings ---


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    own, folder = tmp_path / "config/mcp-bridge/config.toml", tmp_path / "work/mcp-bridge.toml"

    def write(of_user, of_folder):
        for file, text in ((own, of_user), (folder, of_folder)):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        loaded = settings.load(environ={}, cwd=folder.parent)
        loaded.trust.record(Content(folder.resolve(), of_folder.encode()))
        return settings.load(environ={}, cwd=folder.parent)

    return write


def test_a_folder_raises_no_bound_of_the_users(files):
    found = files(
        "memory = '64m'\nmax_calls = 10\npids = 90\ntimeout = 3\n", "memory = '2g'\nmax_calls = 5\ntimeout = 4\n"
    )
    assert (found.settings.memory, found.settings.max_calls, found.settings.pids) == (64 << 20, 5, 90)
    assert found.settings.timeout == 4, "a default, which bounds nothing"
    assert files("", "memory = '2g'").settings.memory == 2 << 30
    found = files("max_timeout = 60", "max_timeout = 600\ntimeout = 300")
    assert (found.settings.timeout, found.settings.max_timeout) == (60, 60)


@pytest.mark.parametrize(
    ("own", "folder", "found"),
    [
        ("['python']", "['python', 'javascript']", ("python",)),
        ("'python'", "['javascript']", ("python",)),
        ("['python', 'javascript']", "'javascript'", ("javascript",)),
        ("['javascript', 'python']", None, ("javascript", "python")),
        (None, "['python', 'javascript']", ("python", "javascript")),
    ],
)
def test_a_folder_adds_no_language_to_those_that_the_user_has_set(files, own, folder, found):
    texts = ["" if value is None else f"languages = {value}" for value in (own, folder)]
    assert files(*texts).settings.languages == found


@pytest.mark.parametrize("own", ["", "file", "keyring"])
def test_a_folder_doesnt_say_where_the_users_logins_are_kept(files, own):
    for folder in ("file", "keyring"):
        lines = [f'logins = "{own}"' if own else "", f'logins = "{folder}"']
        assert files(*lines).settings.logins == (own or "file")


@pytest.mark.parametrize(("own", "folder"), list(itertools.product(["true", "false", "'0'"], ["true", "false"])))
def test_a_folder_permits_nothing_that_the_user_forbids(files, own, folder):
    found = files(
        f"client_configs = {own}\nallow_self_server = {own}", f"client_configs = {folder}\nallow_self_server = {folder}"
    )
    permitted = own == folder == "true"
    assert (bool(found.settings.clients), found.settings.allow_self_server) == (permitted, permitted)


@pytest.mark.parametrize(
    ("own", "folder", "read"),
    [
        ("['cursor', 'claude-code']", "['claude-code', 'zed', 'cursor']", ("claude-code", "cursor")),
        ("['cursor']", "true", ()),
        ("['cursor']", None, ("cursor",)),
        (None, "['codex', 'claude-code']", ("claude-code",)),
        ("true", "['codex']", ()),
    ],
)
def test_a_folder_has_no_clients_read_whose_files_the_user_does_not_have_read(files, own, folder, read):
    texts = ["" if value is None else f"client_configs = {value}" for value in (own, folder)]
    assert files(*texts).settings.clients == read


@pytest.mark.parametrize(
    ("own", "folder", "found"),
    [
        ("", '"minimal"', "minimal"),
        ('"all"', '["A"]', ("A",)),
        ('"minimal"', '"all"', "minimal"),
        ('["A"]', '"all"', ("A",)),
        ('["A"]', '["B"]', ("A",)),
    ],
)
def test_a_folder_gives_servers_no_variable_that_the_user_keeps_from_them(files, own, folder, found):
    lines = [f"env_pass = {text}" if text else "" for text in (own, folder)]
    assert files(*lines).settings.env_pass == found


def test_where_checkpoints_go_is_told_from_the_file_that_says_so(files, tmp_path):
    found = files("[ledger]\npublish = [{file = 'kept.txt'}]\nretry_failed = true", "[ledger]\nkeep_payloads_days = 3")
    assert found.settings.ledger.publish[0].file == tmp_path / "config/mcp-bridge/kept.txt"
    assert (found.settings.ledger.retry_failed, found.settings.ledger.keep_payloads_days) == (True, 3)


def test_the_folders_state_directory_is_its_own_and_trust_is_not_looked_for_there(files, tmp_path):
    found = files("", f"state_dir = '{tmp_path}/elsewhere'")
    assert found.settings.state_dir == tmp_path / "elsewhere"
    assert not found.trust.directory.is_relative_to(tmp_path / "elsewhere")


@pytest.mark.parametrize("told", ["state", "./state", "~/state"])
def test_a_relative_state_directory_is_no_place_for_trust(files, told, monkeypatch):
    found = settings.load(environ={"MCP_BRIDGE_STATE_DIR": told}, cwd=Path.cwd())
    assert found.trust.directory.is_absolute()
    assert not found.trust.directory.is_relative_to(Path.cwd())
