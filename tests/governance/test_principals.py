"""`[principals.NAME]`: who may use a bridge, and only by the user's own word."""

import pytest

from mcp_bridge import settings
from mcp_bridge.errors import BridgeError
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL, Principal, PrincipalLimits, load_principals
from mcp_bridge.workspace.folder_content import content_of

WHOLE = """
[secrets.github]
file = true

[principals.anna]
approver = true
sees_all = true
secrets = ["github"]
max_concurrent = 2
max_queued = 0
requests_per_minute = 120

[principals.anna.policy]
preset = "read-only"

[principals."build-7.ci"]
"""


def load(tmp_path, text):
    file = tmp_path / "config.toml"
    file.write_text(text)
    return load_principals(settings.load(file, environ={}).layers)


def test_a_table_says_what_a_principal_may(tmp_path):
    anna, robot = load(tmp_path, WHOLE).values()

    assert anna.may_approve
    assert anna.may_see_all
    assert anna.secrets == {"github"}
    assert anna.policy == {"preset": "read-only"}
    assert anna.limits == PrincipalLimits(max_concurrent=2, max_queued=0, requests_per_minute=120)
    assert robot == Principal("build-7.ci")


def test_without_tables_there_are_no_principals(tmp_path):
    assert load(tmp_path, "") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[principals.Anna]", "principals.Anna is no name for a principal"),
        ('[principals."anna\\nb"]', "no name for a principal"),
        ('[principals."än"]', "no name for a principal"),
        (f"[principals.{'a' * 65}]", "no name for a principal"),
        ('[principals.""]', "no name for a principal"),
        ("[principals.local]", "uses the command line"),
        ("[principals]\nanna = 3", "principals.anna is a table"),
        ("principals = 3", "principals is a table"),
        ("[principals.anna]\napprovr = true", "Did you mean approver?"),
        ("[principals.anna]\napprover = 1", "principals.anna.approver"),
        ('[principals.anna]\nsecrets = "github"', "principals.anna.secrets"),
        ("[principals.anna]\nsecrets = [3]", "principals.anna.secrets"),
        ("[principals.anna]\nmax_concurrent = 0", "principals.anna.max_concurrent"),
        ("[principals.anna]\nmax_queued = -1", "principals.anna.max_queued"),
        ("[principals.anna]\nrequests_per_minute = 0.5", "principals.anna.requests_per_minute"),
        ('[principals.anna.policy]\npreset = "alow"', "policy.preset"),
        ("[principals.anna]\npolicy = 3", "principals.anna.policy"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, text, said):
    with pytest.raises(BridgeError) as raised:
        load(tmp_path, f"timeout = 5\n{text}" if not text.startswith("principals =") else text)

    assert raised.value.code == "bad_config"
    assert said in str(raised.value)
    assert "config.toml, line" in str(raised.value)


@pytest.mark.parametrize("table", ["[principals.anna]\napprover = true", "[authentication.proxy]"])
def test_a_folder_makes_no_principals_even_if_it_is_trusted(tmp_path, monkeypatch, table):
    home, folder = tmp_path / "home", tmp_path / "checkout"
    home.mkdir()
    folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    file = folder / "mcp-bridge.toml"
    file.write_text(table)

    def load():
        return settings.load(environ={}, cwd=folder)

    loaded = load()
    assert [ignored.code for ignored in loaded.ignored_files] == ["untrusted_file"]
    assert load_principals(loaded.layers) == {}
    data = file.read_bytes()
    loaded.trust.record(content_of(file, data, settings.checked(data, file)))
    with pytest.raises(BridgeError, match="not a folder's to set") as raised:
        load()
    assert raised.value.code == "bad_config"


def test_the_local_principal_has_all_rights():
    assert LOCAL_PRINCIPAL.may_approve
    assert LOCAL_PRINCIPAL.may_see_all
    assert LOCAL_PRINCIPAL.secrets is None
    assert LOCAL_PRINCIPAL.limits == PrincipalLimits()
