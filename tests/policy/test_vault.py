"""Secrets: where they come from, who may receive them, and that nothing else tells of them."""

import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import threading
import traceback
import types

import pytest

from mcp_bridge.errors import BridgeError
from mcp_bridge.policy.rules.globs import ToolNames
from mcp_bridge.policy.secrets import secret_stores
from mcp_bridge.policy.secrets.secret_stores import SecretFile
from mcp_bridge.policy.secrets.vault import SecretConfig, Vault, check_secret, secrets_from_toml

VALUE = "plaintext-Qx82kd91"
CREATE = ToolNames("github", "create_issue", "github", "create_issue")
READ = ToolNames("files", "read", "files", "read")


def failure(function, *arguments, **keywords):
    with pytest.raises(BridgeError) as caught:
        function(*arguments, **keywords)
    shown = "".join(traceback.format_exception(caught.value)) + json.dumps(caught.value.record())
    assert VALUE not in shown + repr(caught.value.private)
    return caught.value


def config(**keys):
    return SecretConfig.model_validate(keys)


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def keyring(monkeypatch):
    """The part of the `keyring` library that is used, with a keyring in memory."""
    kept = {}
    module = types.ModuleType("keyring")
    module.get_password = lambda service, user: kept.get((service, user))
    module.set_password = lambda service, user, value: kept.update({(service, user): value})
    module.delete_password = lambda service, user: kept.pop((service, user))
    module.kept = kept
    monkeypatch.setitem(sys.modules, "keyring", module)
    return module


# --- configuration ---


def test_each_secret_has_one_source_and_the_tools_that_may_receive_it():
    configs = secrets_from_toml(
        {
            "a": {"env": "A", "tools": ["github.*"]},
            "b.c-d_e": {"file": True},
            "9": {"keyring": True, "tools": ["*.*"]},
        },
        None,
    )
    assert [configs[name].source for name in configs] == ["env", "file", "keyring"]
    assert configs["a"].tools == ("github.*",)
    assert configs["b.c-d_e"].tools == ()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"a": {}}, "one source is needed"),
        ({"a": {"env": "A", "file": True}}, "one source is needed"),
        ({"a": {"file": True, "keyring": True}}, "one source is needed"),
        ({"a": {"file": False}}, "one source is needed"),
        ({"a": {"env": ""}}, "no name of an environment variable"),
        ({"a": {"env": "A=B"}}, "no name of an environment variable"),
        ({"a": {"env": 5}}, "a text in quotes"),
        ({"a": {"file": "yes"}}, "true or false"),
        ({"a": {"env": "A", "tools": "github.*"}}, "must be an array of texts"),
        ({"a": {"env": "A", "tools": ["github"]}}, "with a dot between"),
        ({"a": {"env": "A", "tools": [" github.*"]}}, "begins or ends with a space"),
        ({"a": {"env": "A", "tool": ["github.*"]}}, "secrets.a.tool is no key that there is"),
        ({"a": 5}, "secrets.a is a table"),
        ({"a": VALUE}, "holds a value"),
        ({"a": {"value": VALUE}}, "holds a value"),
        ({"a": {"token": VALUE}}, "secrets.a.token is no key that there is"),
        ({"-a": {"env": "A"}}, "is no name for a secret"),
        ({"": {"env": "A"}}, "is no name for a secret"),
        ({"a/b": {"env": "A"}}, "is no name for a secret"),
        ({"é": {"env": "A"}}, "is no name for a secret"),
        ({"a" * 101: {"env": "A"}}, "is no name for a secret"),
        ([], "secrets is a table of tables"),
    ],
)
def test_a_wrong_configuration_is_refused_and_never_repeated(table, said):
    error = failure(secrets_from_toml, table, None)
    assert error.code == "bad_config"
    assert said in str(error)


def test_an_error_in_the_configuration_names_file_and_line(tmp_path):
    file = tmp_path / "mcp-bridge.toml"
    file.write_text('[secrets.ok]\nenv = "A"\n\n[secrets.key]\nenv = "KEY"\ntoools = ["a.*"]\n')
    error = failure(secrets_from_toml, {"key": {"env": "KEY", "toools": ["a.*"]}}, file)
    assert error.details["line"] == 6
    assert error.message == f"{file}, line 6: secrets.key.toools is no key that there is."
    assert error.hint == "Did you mean tools?"


def test_a_configuration_cant_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        config(env="A").tools = ("*.*",)


# --- what may be a secret ---


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "is empty"),
        (" \n\t ", "is empty"),
        ("abc", "shorter than 4"),
        (" abc\n", "shorter than 4"),
        ("x" * 70_000, "longer than"),
        ("--------", "one character repeated"),
        ("vault", "what references look like"),
        ("secret", "what references look like"),
        ("my vault://secret/a", "what references look like"),
        ("abcd\ud800", "not Unicode"),
    ],
)
def test_what_cant_be_masked_is_refused(value, said):
    error = failure(check_secret, "key", value)
    assert error.code == "bad_secret"
    assert said in error.message


GUESSED = [
    "4711",
    "482913",
    "12345678901234567890",
    "2026-11-22",
    "hunter2",
    "deadbeef",
    "abcabcabcabcabc",
    "aaaaaaaaaaaaab",
]


@pytest.mark.parametrize("value", GUESSED)
def test_what_can_be_guessed_is_refused_unless_it_is_not_to_be_masked(value, state):
    error = failure(check_secret, "key", value)
    assert (error.code, value in str(error)) == ("bad_secret", False)
    assert "masked = false" in str(error)
    environ = {"KEY": value}
    secrets = Vault({"key": config(env="KEY", tools=["a.*"])}, state, environ).load()
    assert secrets.plaintexts == {}
    assert secrets.problems["key"].code == "bad_secret"
    secrets = Vault({"key": config(env="KEY", tools=["a.*"], masked=False)}, state, environ).load()
    assert secrets.reveal("key", ToolNames("a", "b", "a", "b")) == value
    assert secrets.hidden == {}


@pytest.mark.parametrize(
    "value",
    [
        "Zq9!kQ7t",
        "k3Jd82LmQz",
        "03f8a91b2c4d7",
        "9f86d081884c7d65",
        "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
        "correct-horse",
    ],
)
def test_what_takes_years_to_guess_is_a_secret(value):
    check_secret("key", value)


@pytest.mark.parametrize("value", ["pässword", "-----BEGIN PRIVATE KEY-----\nMII=\n", "日本語の秘密"])
def test_other_values_are_accepted(value):
    check_secret("key", value)


def test_a_name_that_no_reference_could_have_is_refused():
    assert failure(check_secret, "a b", VALUE).code == "bad_secret"


# --- sources ---


def test_secrets_come_from_environment_file_and_keyring(state, keyring):
    vault = Vault(
        {"e": config(env="KEY"), "f": config(file=True), "k": config(keyring=True)}, state, {"KEY": VALUE + "1"}
    )
    assert vault.set("f", VALUE + "2") == "file"
    assert vault.set("k", VALUE + "3") == "keyring"
    assert vault.load().plaintexts == {"e": VALUE + "1", "f": VALUE + "2", "k": VALUE + "3"}
    assert keyring.kept == {("mcp-bridge", "k"): VALUE + "3"}


def test_a_secret_that_cant_be_had_stops_no_other_and_says_why_to_the_operator_alone(state, monkeypatch):
    monkeypatch.setitem(sys.modules, "keyring", None)
    vault = Vault(
        {
            "unset": config(env="UNSET", tools=["*.*"]),
            "empty": config(env="EMPTY", tools=["*.*"]),
            "short": config(env="SHORT", tools=["*.*"]),
            "unkept": config(file=True, tools=["*.*"]),
            "locked": config(keyring=True, tools=["*.*"]),
            "good": config(env="GOOD", tools=["*.*"]),
        },
        state,
        {"EMPTY": "", "SHORT": "ab", "GOOD": VALUE},
    )
    secrets = vault.load()
    assert secrets.plaintexts == {"good": VALUE}
    assert {name: error.code for name, error in secrets.problems.items()} == {
        "unset": "secret_missing",
        "empty": "secret_missing",
        "short": "bad_secret",
        "unkept": "secret_missing",
        "locked": "keyring_missing",
    }
    error = failure(secrets.reveal, "unset", CREATE)
    assert error.code == "secret_missing"
    assert "UNSET" not in json.dumps(error.record())
    assert "UNSET" in error.private["reason"]


def test_secrets_are_as_they_were_when_loaded(state):
    environ = {"KEY": VALUE}
    vault = Vault({"key": config(env="KEY", tools=["*.*"])}, state, environ)
    secrets = vault.load()
    environ["KEY"] = "another-plaintext"
    assert secrets.reveal("key", CREATE) == VALUE
    assert vault.load().reveal("key", CREATE) == "another-plaintext"


# --- who may receive one ---


def test_a_tool_receives_a_secret_that_names_it(state):
    secrets = Vault({"key": config(env="KEY", tools=["gitlab.*", "github.create_*"])}, state, {"KEY": VALUE}).load()
    assert secrets.reveal("key", CREATE) == VALUE
    error = failure(secrets.reveal, "key", READ)
    assert error.record() == {
        "code": "secret_denied",
        "message": "The tool files.read may not receive the secret 'key'.",
        "secret": "key",
        "tool": "files.read",
    }


def test_no_tool_receives_a_secret_that_names_none(state):
    secrets = Vault({"key": config(env="KEY")}, state, {"KEY": VALUE}).load()
    assert failure(secrets.reveal, "key", CREATE).code == "secret_denied"


def test_neither_an_alias_nor_a_dot_in_a_name_wins_a_secret(state):
    secrets = Vault({"key": config(env="KEY", tools=["a.b.*"])}, state, {"KEY": VALUE}).load()
    assert secrets.reveal("key", ToolNames("a", "b.x", "a", "b_x")) == VALUE
    assert failure(secrets.reveal, "key", ToolNames("a.b", "x", "a_b", "x")).code == "secret_denied"
    assert failure(secrets.reveal, "key", ToolNames("z", "z", "a", "b.x")).code == "secret_denied"


def test_whether_a_denied_secret_has_a_value_isnt_told(state):
    vault = Vault({"a": config(env="A"), "b": config(env="B")}, state, {"A": VALUE})
    secrets = vault.load()
    assert failure(secrets.reveal, "a", CREATE).code == failure(secrets.reveal, "b", CREATE).code == "secret_denied"


def test_a_secret_that_isnt_configured_is_missing(state):
    vault = Vault({}, state, {})
    vault.set("key", VALUE)
    error = failure(vault.load().reveal, "key", CREATE)
    assert error.code == "secret_missing"
    assert error.details == {"secret": "key", "tool": "github.create_issue"}


def test_nothing_shows_the_values(state):
    vault = Vault({"key": config(file=True, tools=["*.*"])}, state, {})
    vault.set("key", VALUE)
    secrets = vault.load()
    shown = (
        repr(secrets)
        + str(secrets)
        + repr(vault)
        + repr(vault.status())
        + json.dumps([row.record() for row in vault.status()])
    )
    assert VALUE not in shown


# --- set, list, remove ---


def test_the_list_says_where_each_secret_comes_from_and_what_is_wrong_with_it(state, keyring):
    vault = Vault(
        {"b": config(env="B", tools=["x.*"]), "a": config(file=True), "c": config(keyring=True)}, state, {"B": VALUE}
    )
    vault.set("a", VALUE)
    vault.set("stray", VALUE)
    rows = vault.status()
    assert [(row.id, row.source, row.variable, row.configured) for row in rows] == [
        ("a", "file", None, True),
        ("b", "env", "B", True),
        ("c", "keyring", None, True),
        ("stray", "file", None, False),
    ]
    assert [row.problem for row in rows if row.id != "c"] == [None] * 3
    assert "secret set c" in rows[2].problem


def test_the_list_of_a_file_that_cant_be_read_says_so(state):
    vault = Vault({"a": config(file=True)}, state, {})
    vault.set("a", VALUE)
    (state / "secrets.json").chmod(0o644)
    assert "chmod 600" in vault.status()[0].problem


def test_a_secret_goes_where_the_configuration_says(state, keyring):
    vault = Vault({"e": config(env="KEY"), "k": config(keyring=True)}, state, {})
    assert vault.set("k", VALUE) == "keyring"
    assert vault.set("new", VALUE) == "file"
    assert vault.set("new", VALUE, "keyring") == "keyring"
    error = failure(vault.set, "e", VALUE)
    assert (error.code, "KEY" in error.message) == ("secret_elsewhere", True)
    assert failure(vault.set, "k", VALUE, "file").code == "secret_elsewhere"
    assert not (state / "secrets.json").read_text().count('"k"')


def test_removing_says_whether_there_was_one(state, keyring):
    vault = Vault({"k": config(keyring=True)}, state, {})
    vault.set("a", VALUE)
    vault.set("k", VALUE)
    assert (vault.remove("a"), vault.remove("a")) == (True, False)
    assert (vault.remove("k"), vault.remove("k")) == (True, False)
    assert SecretFile(state).read() == {}
    assert keyring.kept == {}


def test_a_bad_secret_is_refused_before_anything_is_written(state):
    assert failure(Vault({}, state, {}).set, "key", "ab").code == "bad_secret"
    assert not state.exists()


# --- the file ---


def test_the_file_is_its_owners_alone_whatever_the_umask(state):
    before = os.umask(0)
    try:
        SecretFile(state).set("key", VALUE)
    finally:
        os.umask(before)
    assert stat.S_IMODE((state / "secrets.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    for path in state.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_values_come_back_as_they_were(state):
    values = {"a": "日本語\n\t\"\\'", "b": "x" * 10_000, "c": "\x00\x7f\u2028"}
    file = SecretFile(state)
    for name, value in values.items():
        file.set(name, value)
    assert file.read() == values


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601, 0o666])
def test_a_file_that_others_can_get_at_is_refused_with_what_mends_it(state, mode):
    file = SecretFile(state)
    file.set("key", VALUE)
    file.path.chmod(mode)
    for use in (file.read, lambda: file.set("b", VALUE), lambda: file.remove("key")):
        error = failure(use)
        assert error.code == "secrets_file_unsafe"
        assert f"{mode:04o}" in error.message
        assert f"chmod 600 {file.path}" in error.hint
    file.path.chmod(0o600)
    assert file.read() == {"key": VALUE}


def test_a_file_of_somebody_else_is_refused(state, monkeypatch):
    file = SecretFile(state)
    file.set("key", VALUE)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    error = failure(file.read)
    assert error.code == "secrets_file_unsafe"
    assert f"user id {owner}" in error.message


def test_a_link_or_a_pipe_in_the_files_place_is_refused(state, tmp_path):
    file = SecretFile(state)
    state.mkdir(mode=0o700)
    SecretFile(tmp_path / "other").set("key", VALUE)
    file.path.symlink_to(tmp_path / "other" / "secrets.json")
    assert failure(file.read).code == "secrets_file_unsafe"
    file.path.unlink()
    os.mkfifo(file.path, 0o600)
    assert failure(file.read).code == "secrets_file_unsafe"
    file.path.unlink()
    file.path.mkdir(mode=0o700)
    assert failure(file.read).code in {"secrets_file_unsafe", "secrets_file_unreadable"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"format": 2, "secrets": {}}',
        b'{"format": 1, "secrets": {"a": 1}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_an_error_and_is_kept(state, content):
    file = SecretFile(state)
    file.set("key", VALUE)
    file.path.write_bytes(content)
    assert failure(file.read).code == "secrets_file_damaged"
    assert failure(file.set, "b", VALUE).code == "secrets_file_damaged"
    assert file.path.read_bytes() == content


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(state, monkeypatch):
    file = SecretFile(state)
    file.set("key", VALUE)
    before = file.path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    error = failure(file.set, "other", VALUE + "2")
    assert error.code == "secrets_file_unwritable"
    assert "No space left" in error.message
    assert "Free the disk." in error.hint
    assert "MCP_BRIDGE_STATE_DIR" not in error.hint, "what is to be changed is here"
    assert file.path.read_bytes() == before
    assert not [path for path in state.iterdir() if ".new" in path.name]


def test_what_a_killed_writer_left_is_replaced(state):
    file = SecretFile(state)
    state.mkdir(mode=0o700)
    (state / ".secrets.json.new").write_text('{"format": 1, "secr')
    file.set("key", VALUE)
    assert file.read() == {"key": VALUE}
    assert not (state / ".secrets.json.new").exists()


def test_a_writer_killed_before_the_replacement_leaves_the_old_file(state):
    SecretFile(state).set("key", VALUE)
    script = (
        "import os, sys, pathlib\n"
        "from mcp_bridge.policy.secrets.secret_stores import SecretFile\n"
        "pathlib.Path.replace = lambda *_: os._exit(9)\n"
        f"SecretFile(pathlib.Path({str(state)!r})).set('other', 'value-of-it')\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    file = SecretFile(state)
    assert file.read() == {"key": VALUE}
    # The lock went with its holder.
    file.set("third", VALUE)
    assert set(file.read()) == {"key", "third"}


def test_writers_at_the_same_time_lose_nothing(state):
    names = [f"s{index}" for index in range(24)]
    script = (
        "import sys, pathlib\n"
        "from mcp_bridge.policy.secrets.secret_stores import SecretFile\n"
        f"file = SecretFile(pathlib.Path({str(state)!r}))\n"
        "for name in sys.argv[1:]: file.set(name, 'value of ' + name)\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script, *names[part::4]]) for part in range(2)]
    threads = [
        threading.Thread(
            target=lambda part=part: [SecretFile(state).set(name, f"value of {name}") for name in names[part::4]]
        )
        for part in (2, 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait() for process in processes] == [0, 0]
    assert SecretFile(state).read() == {name: f"value of {name}" for name in names}


def test_a_writer_that_never_ends_makes_others_fail_and_not_hang(state, monkeypatch):
    monkeypatch.setattr(secret_stores, "LOCK_SECONDS", 0.05)
    file = SecretFile(state)
    file.set("key", VALUE)
    with (state / ".secrets.json.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert failure(file.set, "other", VALUE).code == "secrets_file_busy"
        assert file.read() == {"key": VALUE}
    file.set("other", VALUE)


def test_a_directory_that_cant_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    error = failure(SecretFile(tmp_path / "file" / "state").set, "key", VALUE)
    assert (error.code, "Free the disk" in error.hint) == ("secrets_file_unwritable", False)
    assert "set MCP_BRIDGE_STATE_DIR to" in error.hint
    error = failure(SecretFile(tmp_path / "file").read)
    assert (error.code, "to a directory." in error.hint) == ("secrets_file_unreadable", True)


def test_a_file_on_a_read_only_file_system_is_to_be_mounted_writable(state, monkeypatch):
    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    file = SecretFile(state)
    monkeypatch.setattr("mcp_bridge.policy.secrets.secret_stores.state_directory", read_only)
    assert "Mount it writable, or set MCP_BRIDGE_STATE_DIR" in failure(file.set, "key", VALUE).hint
    monkeypatch.undo()
    file.set("key", VALUE)
    monkeypatch.setattr("mcp_bridge.policy.secrets.secret_stores.state_directory", read_only)
    assert failure(file.set, "key", "x" * 40).hint == "Nothing has changed. Mount it writable."


def test_a_file_that_would_be_too_large_is_not_written(state, monkeypatch):
    monkeypatch.setattr(secret_stores, "MAX_FILE_BYTES", 1000)
    file = SecretFile(state)
    file.set("key", VALUE)
    error = failure(file.set, "other", "x" * 1000)
    assert (error.code, "it would be over 1000 bytes" in error.message) == ("secrets_file_unwritable", True)
    assert "Shorten" in error.hint
    assert "MCP_BRIDGE_STATE_DIR" not in error.hint, "another directory has the same limit"
    assert file.read() == {"key": VALUE}


# --- the keyring ---


@pytest.mark.parametrize("use", ["get_password", "set_password", "delete_password"])
def test_a_keyring_that_fails_is_an_error_without_its_words(state, keyring, use):
    vault = Vault({"key": config(keyring=True)}, state, {})
    vault.set("key", VALUE)

    class NoKeyringError(RuntimeError):
        pass

    def fail(*arguments):
        raise NoKeyringError(f"can't do {arguments} with {VALUE}")

    setattr(keyring, use, fail)
    if use == "get_password":
        error = vault.load().problems["key"]
    elif use == "set_password":
        error = failure(vault.set, "key", VALUE)
    else:
        error = failure(vault.remove, "key")
    assert error.code == "keyring_unusable"
    assert "NoKeyringError" in error.message
    assert "Unlock it, or keep the secret in the file." in error.hint
    assert VALUE not in str(error) + repr(error.private)


def test_without_the_library_the_error_says_what_to_install(state, monkeypatch):
    monkeypatch.setitem(sys.modules, "keyring", None)
    vault = Vault({"key": config(keyring=True)}, state, {})
    for error in (failure(vault.set, "key", VALUE), failure(vault.remove, "key"), vault.load().problems["key"]):
        assert error.code == "keyring_missing"
        assert "mcp-code-bridge[keyring]" in error.hint


def test_the_library_is_imported_for_secrets_in_the_keyring_only(state, monkeypatch):
    monkeypatch.delitem(sys.modules, "keyring", raising=False)
    vault = Vault({"e": config(env="KEY"), "f": config(file=True)}, state, {"KEY": VALUE})
    vault.set("f", VALUE)
    vault.load()
    vault.status()
    assert "keyring" not in sys.modules
