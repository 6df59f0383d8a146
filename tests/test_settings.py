"""Settings: where they come from, which one wins, and what is said about a wrong one."""

import os
import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.engine_errors import start_failure
from mcp_bridge.sandbox.image.image import ImageRequest, ensure_image
from mcp_bridge.sandbox.image.store import EngineImages
from mcp_bridge.settings import ENV_ALIASES, FILE_NAME, NESTED, Loaded, Settings, checked, load, parse_size
from mcp_bridge.workspace.folder_content import content_of, real_folder


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A directory without a configuration, of a user who has none."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    directory = tmp_path / "work"
    directory.mkdir()
    return directory


def named(cwd, environ=None):
    """The configuration with the folder's file, named by somebody: unnamed it takes no part before it is trusted."""
    return load(cwd / FILE_NAME, environ=environ or {}, cwd=cwd)


def error(cwd, explicit=None, **environ):
    explicit = explicit or (cwd / FILE_NAME if (cwd / FILE_NAME).exists() else None)
    with pytest.raises(BridgeError) as caught:
        load(explicit, environ=environ, cwd=cwd)
    return caught.value


# --- slips ---


@pytest.mark.parametrize("line", [
    "timeout = true", "wall_timeout = true", "cpus = true", "max_concurrent = true", "max_calls = false", "pool_min = true",
    "memory = true", "[ledger]\nkeep_payloads_days = true", "[ledger]\npublish_interval = true", "[http]\nmax_sessions = true",
    "[sessions]\nmax_idle = true", "[install]\nmax_packages = true", "[telemetry]\nsample = true",
    '[[ledger.publish]]\nfile = "x"\ntimeout = true',
])  # fmt: skip
def test_a_flag_is_no_number(nowhere, line):
    (nowhere / FILE_NAME).write_text(line)
    failure = error(nowhere)
    assert failure.code == "bad_config"
    assert str(nowhere / FILE_NAME) in failure.message


@pytest.mark.parametrize("line", [
    'image = ""', 'oci_runtime = " "', 'profile = ""', 'state_dir = ""', 'log_file = ""', '[ledger]\nmaster_key = ""',
    "[ledger]\nmaster_key = []", '[ledger]\nmaster_key = [""]', '[search]\nembeddings = ""',
    '[[ledger.publish]]\nfile = ""',
])  # fmt: skip
def test_an_empty_text_is_no_value(nowhere, line):
    (nowhere / FILE_NAME).write_text(line)
    failure = error(nowhere)
    assert failure.code == "bad_config"
    assert "is empty" in failure.message


def test_an_empty_list_is_one(nowhere):
    (nowhere / FILE_NAME).write_text('packages = ""\nclient_configs = []\n')
    assert (named(nowhere).settings.packages, named(nowhere).settings.clients) == ((), ())


def test_less_of_a_processor_than_the_kernel_can_give_is_refused(nowhere):
    (nowhere / FILE_NAME).write_text("cpus = 0.009")
    assert "cpus: " in error(nowhere).message
    (nowhere / FILE_NAME).write_text("cpus = 0.01")
    assert named(nowhere).settings.cpus == 0.01


def test_a_list_in_the_environment_is_shown_as_it_is_written_there(nowhere):
    environ = {"MCP_BRIDGE_ENV_PASS": '["A","B"]'}
    failure = error(nowhere, **environ)
    assert "MCP_BRIDGE_ENV_PASS=KUBECONFIG,SSL_CERT_*" in failure.hint
    assert "[" not in failure.message
    assert load(environ={"MCP_BRIDGE_ENV_PASS": "A,B_*"}, cwd=nowhere).settings.env_pass == ("A", "B_*")


# --- sizes ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("1k", 1024),
        ("512m", 512 << 20),
        ("512M", 512 << 20),
        ("64 MiB", 64 << 20),
        ("64mb", 64 << 20),
        ("1.5g", 3 << 29),
        (" 2T ", 2 << 40),
    ],
)
def test_a_size_is_bytes_or_text_with_a_unit(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "m", "-1", "1x", "1 2", "1e3", "0x10", "1,5g", "inf", True, None, 1.5j])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="a size is"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=1 << 20), st.sampled_from(["", "k", "M", "gb", "TiB", " kb"]))
def test_a_whole_number_of_any_unit_is_exact(number, unit):
    power = " kmgt".index(unit.strip().lower()[:1] or " ")
    assert parse_size(f"{number}{unit}") == number << (10 * power)


# --- the environment ---

OTHER_VALUES = {
    "image": ("localhost/mine:1", "localhost/mine:1"),
    "profile": ("data", "data"),
    "packages": ("rich, attrs", ("rich", "attrs")),
    "languages": ("python, javascript", ("python", "javascript")),
    "runtime": ("docker", "docker"),
    "oci_runtime": ("runc", "runc"),
    "container_user": ("1000:1000", "1000:1000"),
    "output": ("toon", "toon"),
    "structured": ("never", "never"),
    "client_configs": ("false", False),
    "logins": ("keyring", "keyring"),
    "allow_self_server": ("1", True),
    "resume_waits": ("no", False),
    "state_dir": ("/somewhere", Path("/somewhere")),
    "log_level": ("DEBUG", "debug"),
    "log_format": ("JSON", "json"),
    "log_file": ("/somewhere/log", Path("/somewhere/log")),
    "max_output_chars": ("5000", 5000),
    "env_pass": ("KUBECONFIG, SSL_CERT_*", ("KUBECONFIG", "SSL_CERT_*")),
}


@pytest.mark.parametrize("field", [name for name in Settings.model_fields if name not in NESTED])
def test_every_setting_can_be_set_in_the_environment(nowhere, field):
    text, expected = OTHER_VALUES.get(field, ("33", 33))
    settings = load(environ={f"MCP_BRIDGE_{field.upper()}": text}, cwd=nowhere).settings
    assert getattr(settings, field) == expected
    assert getattr(settings, field) != getattr(load(environ={}, cwd=nowhere).settings, field)


@pytest.mark.parametrize("name", sorted(NESTED))
def test_a_setting_that_is_a_table_is_no_variable(nowhere, name):
    variable = f"MCP_BRIDGE_{name.upper()}"
    found = error(nowhere, **{variable: "{}"})
    assert (found.code, found.details["variable"]) == ("bad_config", variable)


def test_the_ledger_is_a_table_of_the_file(nowhere):
    (nowhere / FILE_NAME).write_text("[ledger]\nmaster_key = ['pass', 'show', 'x']\nkeep_payloads_days = 30\n")
    ledger = named(nowhere).settings.ledger
    assert (ledger.master_key, ledger.retry_failed, ledger.keep_payloads_days) == (("pass", "show", "x"), False, 30)


def test_how_long_is_kept_is_said_where_it_is_too_short(nowhere):
    (nowhere / FILE_NAME).write_text("[ledger]\nkeep_payloads_days = 0.00001\n")
    assert "at least 0.042 (an hour)" in error(nowhere).message
    for days in (0.042, 1, 30, "'forever'"):
        (nowhere / FILE_NAME).write_text(f"[ledger]\nkeep_payloads_days = {days}\n")
        assert named(nowhere).settings.ledger.keep_payloads_days == (
            days if isinstance(days, float | int) else "forever"
        )


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("master = 'file'", "ledger.master"),
        ("master_key = ['a', 1]", "ledger.master_key"),
        ("keep_payloads_days = 0", "ledger.keep_payloads_days"),
        ("keep_payloads_days = inf", "ledger.keep_payloads_days"),
        ("keep_payloads_days = 0.00001", "ledger.keep_payloads_days"),
        ("keep_payloads_days = 0.0416", "ledger.keep_payloads_days"),
        ("keep_payloads_days = -1", "ledger.keep_payloads_days"),
        ("keep_payloads_days = nan", "ledger.keep_payloads_days"),
        ("keep_files_days = 0.00001", "ledger.keep_files_days"),
    ],
)
def test_what_is_wrong_in_a_table_is_named_with_its_line(nowhere, line, key):
    (nowhere / FILE_NAME).write_text(f"timeout = 5\n[ledger]\nretry_failed = true\n{line}\n")
    found = error(nowhere)
    assert (found.code, found.details["line"]) == ("bad_config", 4)
    assert f"{key}: " in found.message


def test_every_setting_has_a_description():
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_the_names_of_the_earlier_bridge_work(nowhere):
    environ = {
        "MCP_BRIDGE_IMAGE": "localhost/x:1",
        "MCP_BRIDGE_RUNTIME": "podman",
        "MCP_BRIDGE_TIMEOUT": "45",
        "MCP_BRIDGE_MAX_TIMEOUT": "180",
        "MCP_BRIDGE_MEMORY": "256m",
        "MCP_BRIDGE_PIDS": "64",
        "MCP_BRIDGE_CPUS": "2",
        "MCP_BRIDGE_CONTAINER_USER": "1001:1002",
        "MCP_BRIDGE_RUNTIME_IDLE_TIMEOUT": "10",
        "MCP_BRIDGE_STATE_DIR": "/state",
        "MCP_BRIDGE_OUTPUT_MODE": "toon",
        "MCP_BRIDGE_LOG_LEVEL": "INFO",
        "MCP_BRIDGE_ALLOW_SELF_SERVER": "1",
    }
    settings = load(environ=environ, cwd=nowhere).settings
    shown = settings.model_dump(include={*(name[11:].lower() for name in environ), *ENV_ALIASES.values()})
    assert shown == {
        "image": "localhost/x:1",
        "runtime": "podman",
        "timeout": 45,
        "max_timeout": 180,
        "memory": 256 << 20,
        "pids": 64,
        "cpus": 2,
        "container_user": "1001:1002",
        "runtime_idle_timeout": 10,
        "state_dir": Path("/state"),
        "output": "toon",
        "log_level": "info",
        "allow_self_server": True,
    }


@pytest.mark.parametrize("value", ['"root"', "0", '"1000:"', '"0:0"', '"-1"', "true", '"1000:users"'])
def test_a_user_that_is_none_is_told_what_to_write(nowhere, value):
    (nowhere / FILE_NAME).write_text(f"container_user = {value}\n")
    found = error(nowhere)
    assert (found.code, found.details["line"]) == ("bad_config", 1)
    if value != "true":
        assert "container_user: must be the number of a user, or of a user and a group, such as 1000" in found.message
    (nowhere / FILE_NAME).write_text("container_user = 1000\n")
    assert named(nowhere).settings.container_user == "1000"


def test_an_empty_variable_counts_as_none_and_a_foreign_one_is_left_alone(nowhere):
    environ = {"MCP_BRIDGE_TIMEOUT": "", "MCP_BRIDGE_NESTED": "1", "MCP_BRIDGE_TEST_X": "y", "PATH": "/bin"}
    assert load(environ=environ, cwd=nowhere).settings == load(environ={}, cwd=nowhere).settings


def test_a_misspelt_variable_names_the_nearest(nowhere):
    found = error(nowhere, MCP_BRIDGE_TIMEOUTS="3")
    assert found.code == "bad_config"
    assert found.details["variable"] == "MCP_BRIDGE_TIMEOUTS"
    assert found.hint == "Did you mean MCP_BRIDGE_TIMEOUT?"


@pytest.mark.parametrize("short", ["FOO", "X", "SECRET_TOKEN"])
def test_a_variable_that_is_like_no_setting_is_answered_with_all_of_them(nowhere, short):
    found = error(nowhere, **{f"MCP_BRIDGE_{short}": "3"})
    assert "Did you mean" not in found.hint
    assert found.hint.startswith("Settings: MCP_BRIDGE_")
    assert "MCP_BRIDGE_OUTPUT_MODE" in found.hint


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TIMEOUT", "soon"),
        ("TIMEOUT", "0"),
        ("TIMEOUT", "inf"),
        ("MEMORY", "much"),
        ("MEMORY", "0"),
        ("PIDS", "2"),
        ("OUTPUT_MODE", "yaml"),
        ("OUTPUT", "yaml"),
        ("RUNTIME", "lxc"),
        ("CONTAINER_USER", "0:0"),
        ("CONTAINER_USER", "root"),
        ("LOG_LEVEL", "loud"),
        ("CLIENT_CONFIGS", "perhaps"),
        ("CPUS", "nan"),
        ("CPUS", "inf"),
        ("RUNTIME_IDLE_TIMEOUT", "nan"),
    ],
)
def test_a_wrong_value_in_the_environment_names_its_variable(nowhere, variable, text):
    found = error(nowhere, **{f"MCP_BRIDGE_{variable}": text})
    assert found.code == "bad_config"
    assert found.message.startswith(f"MCP_BRIDGE_{variable}: ")


# --- what an engine says of settings that it can't follow ---


@pytest.mark.parametrize("said", ["Error: nonexistent: image not known", "docker: No such image: nonexistent."])
def test_a_configured_image_that_is_missing_is_to_be_loaded_or_unset(said):
    found = start_failure("podman", f"Trying…\n{said}")
    assert found.code == "image_missing"
    assert str(found).endswith(f"{said.rstrip('.')}. Load it into the engine, or unset `image` and one is built.")


def test_an_image_of_ours_that_is_missing_is_to_be_built():
    found = start_failure("podman", "Error: localhost/mcp-code-bridge:base-1: image not known")
    assert found.hint == "Build one with `mcp-bridge image build`."


async def test_a_configured_image_is_looked_up_with_the_same_advice(tmp_path):
    engine = tmp_path / "podman"
    engine.write_text("#!/bin/sh\necho '[]'\necho 'Error: nonexistent: image not known' >&2\nexit 125\n")
    engine.chmod(0o755)
    with pytest.raises(BridgeError) as caught:
        await ensure_image(EngineImages(str(engine)), ImageRequest(), configured="nonexistent")
    assert caught.value.code == "image_missing"
    assert caught.value.hint == "Load it into the engine, or unset `image` and one is built."


def test_of_an_engines_lines_the_one_that_tells_is_quoted():
    full = "Error: write /state/x: no space left on device"
    found = start_failure("podman", f"{full}\nError: OCI runtime error: crun: cgroups in hybrid mode not supported\n")
    assert found.code == "disk_full"
    assert found.message == f"The disk is full. podman says: {full}."


# --- files ---


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(nowhere):
    (nowhere / FILE_NAME).write_text("timeout = 40\npids = 50\n")
    loaded = named(nowhere, {"MCP_BRIDGE_PIDS": "60"})
    assert loaded.file == nowhere / FILE_NAME
    assert (loaded.settings.timeout, loaded.settings.pids, loaded.settings.max_timeout) == (40, 60, 120)


def trust(nowhere):
    """Trust the folder's file, as `mcp-bridge trust` does."""
    loaded = load(environ={}, cwd=nowhere)
    file = real_folder(nowhere) / FILE_NAME
    data = file.read_bytes()
    loaded.trust.record(content_of(file, data, checked(data, file)))


def test_a_named_file_counts_alone_and_a_trusted_one_of_the_folder_lies_over_the_users(nowhere, tmp_path):
    named, other = tmp_path / "named.toml", tmp_path / "other.toml"
    users = tmp_path / "config" / "mcp-bridge" / "config.toml"
    users.parent.mkdir(parents=True)
    for number, file in enumerate((named, other, nowhere / FILE_NAME, users), 1):
        file.write_text(f"timeout = {number}\n")
    environ = {"MCP_BRIDGE_CONFIG": str(other)}
    assert load(named, environ=environ, cwd=nowhere).settings.timeout == 1
    assert load(environ=environ, cwd=nowhere).settings.timeout == 2
    assert load(environ={}, cwd=nowhere).settings.timeout == 4
    trust(nowhere)
    assert load(environ={}, cwd=nowhere).settings.timeout == 3
    (nowhere / FILE_NAME).unlink()
    assert load(environ={}, cwd=nowhere).settings.timeout == 4
    users.unlink()
    assert load(environ={}, cwd=nowhere).file is None


def test_a_named_file_must_be_there(nowhere):
    assert error(nowhere, nowhere / "gone.toml").code == "config_missing"
    assert error(nowhere, MCP_BRIDGE_CONFIG=str(nowhere / "gone.toml")).code == "config_missing"
    assert error(nowhere, MCP_BRIDGE_CONFIG="~nobody-of-that-name/x.toml").code == "config_missing"


def test_the_null_device_is_a_configuration_with_nothing_in_it(nowhere):
    (nowhere / FILE_NAME).write_text("timeout = 40\n")
    loaded = load(Path(os.devnull), environ={}, cwd=nowhere)
    assert (loaded.named, loaded.settings.timeout) == (True, 30)


def test_the_state_directory_is_the_same_in_whatever_folder_one_is(nowhere, tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    file = tmp_path / "elsewhere" / FILE_NAME
    file.parent.mkdir()
    users = tmp_path / "config" / "mcp-bridge" / "config.toml"
    users.parent.mkdir(parents=True)
    for written, meant in (("~/state", home / "state"), ("state", None), ("/state", Path("/state"))):
        file.write_text(f'state_dir = "{written}"\n')
        assert load(file, environ={}, cwd=nowhere).settings.state_dir == (meant or file.parent / "state")
        users.write_text(file.read_text())
        loaded = load(environ={}, cwd=nowhere)
        assert loaded.settings.state_dir == (meant or users.parent / "state")
        assert loaded.trust.directory.parent == loaded.settings.state_dir
    assert load(file, environ={"MCP_BRIDGE_STATE_DIR": "~/s"}, cwd=nowhere).settings.state_dir == home / "s"


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        ("a = = 1", 1, ["not TOML"]),
        ("\ufefftimeout = 5", 1, ["not TOML", "byte order mark"]),
        ('timeout = 5\nstate_dir = "a\\u0000b"', 2, ["state_dir holds a NUL"]),
        ('log_file = "\\u0000"', 1, ["log_file holds a NUL"]),
        ('log_file = "~nobody-of-that-name/x"', 1, ["log_file", "no home folder for '~nobody-of-that-name'"]),
        ('state_dir = "~nobody-of-that-name/x"', 1, ["state_dir", "no home folder for '~nobody-of-that-name'"]),
        ('[search]\nembeddings = "~nobody-of-that-name/m"', 2, ["embeddings", "no home folder"]),
        ('memory = "9999999t"', 1, ["memory", "less than or equal"]),
        (f'memory = "{"9" * 400}"', 1, ["memory", "too many digits"]),
        ("pids = 99999999", 1, ["pids", "less than or equal"]),
        ("cpus = 1e300", 1, ["cpus", "less than or equal"]),
        ("\n\ntimeout 5", 3, ["not TOML"]),
        ("\ntimeouts = 5", 2, ["'timeouts'", "Did you mean timeout?"]),
        ("# timeout = 1\ntimeout = 'x'", 2, ["timeout"]),
        ('"timeout" = -1', 1, ["timeout"]),
        ("memory = '1x'", 1, ["memory", "512m"]),
        ("[server.a]\ncommand = 'x'", 1, ["'server'", "Did you mean servers?"]),
        ("timeout = 500", None, ["max_timeout", "500"]),
        ("servers = []", 1, ["[servers.NAME]"]),
        ("packages = 3", 1, ["packages"]),
        ("'packages' = [\n'timeout = 5', 7]", 1, ["packages"]),
        ("[servers.a]\ntimeout = 5\n[timeout]", 3, ["timeout"]),
        ('[http]\npath = "/health"', 1, ["path: /health has something else"]),
        ('[http]\npath = "/metrics"', 1, ["path: /metrics has something else"]),
    ],
)
def test_an_error_in_a_file_names_file_line_and_key(nowhere, content, line, words):
    file = nowhere / FILE_NAME
    file.write_text(content)
    found = error(nowhere)
    assert found.code == "bad_config"
    assert found.details["file"] == str(file)
    assert found.details.get("line") == line
    assert all(word in str(found) for word in [str(file), *words])


def test_a_wrong_value_in_the_file_is_not_blamed_on_the_environment(nowhere):
    (nowhere / FILE_NAME).write_text("timeout = 500\n")
    found = error(nowhere, MCP_BRIDGE_PIDS="60")
    assert str(nowhere / FILE_NAME) in found.message


@pytest.mark.parametrize(
    ("text", "read"),
    [("true", ("claude-code",)), ("0", ()), ("cursor", ("cursor",)), (" codex, claude-code", ("codex", "claude-code"))],
)
def test_clients_are_chosen_by_name_or_by_a_flag(nowhere, text, read):
    assert load(environ={"MCP_BRIDGE_CLIENT_CONFIGS": text}, cwd=nowhere).settings.clients == read


def test_a_client_that_there_is_not_is_an_error_that_names_those_that_there_are(nowhere):
    found = error(nowhere, MCP_BRIDGE_CLIENT_CONFIGS="cursor,emacs")
    assert "there is no client 'emacs'" in found.message
    assert "claude-code" in found.message


def test_a_value_of_the_wrong_type_in_the_file_is_refused_not_bent(nowhere):
    for content in ("client_configs = 3", "pids = 1.5", "image = 5", "timeout = []", "runtime = ['podman']"):
        (nowhere / FILE_NAME).write_text(content)
        assert error(nowhere).code == "bad_config", content


def test_servers_are_handed_on_as_they_are(nowhere):
    (nowhere / FILE_NAME).write_text("timeout = 5\n[servers.a]\ncommand = 'x'\n[servers.'b c']\nurl = 'y'\n")
    assert named(nowhere).layers[0].servers == {"a": {"command": "x"}, "b c": {"url": "y"}}


@given(st.text(max_size=30), st.sampled_from(sorted(Settings.model_fields)))
def test_no_text_in_the_environment_gives_anything_but_settings_or_an_error_of_ours(text, field):
    try:
        loaded = load(environ={f"MCP_BRIDGE_{field.upper()}": text}, cwd=Path("/nonexistent"))
    except BridgeError as found:
        loaded = found
    assert isinstance(loaded, Loaded) or loaded.code == "bad_config"


def test_settings_do_not_change(nowhere):
    settings = load(environ={}, cwd=nowhere).settings
    with pytest.raises(ValidationError):
        typing.cast("typing.Any", settings).timeout = 1


def test_only_the_users_own_file_names_an_embedding_model(tmp_path, monkeypatch):
    file = tmp_path / "mine.toml"
    file.write_text('[search]\nembeddings = "./model"\ntimeout = 2\n')
    search = load(file, environ={}, cwd=tmp_path).settings.search
    assert (search.embeddings, search.timeout) == (str(tmp_path / "model"), 2.0)
    for wrong in (
        'embedding = "x"',
        "embeddings = ''",
        "timeout = 0",
        'base_url = "ftp://x"',
        'base_url = "http://me:pw@x"',
    ):
        file.write_text(f"[search]\n{wrong}\n")
        with pytest.raises(BridgeError) as caught:
            load(file, environ={}, cwd=tmp_path)
        assert caught.value.code == "bad_config"


def test_a_folders_file_sets_no_telemetry(nowhere):
    file = nowhere / FILE_NAME
    file.write_text('[telemetry]\notlp = "https://collector.example"\n')
    with pytest.raises(BridgeError) as caught:
        trust(nowhere)
        load(environ={}, cwd=nowhere)
    assert caught.value.code == "bad_config"
    assert "telemetry is not a folder's to set" in caught.value.message


@pytest.mark.parametrize(
    "line",
    [
        'otlp = "collector.example"',
        'otlp = "https://user:pass@collector.example"',
        'otlp = "https://collector.example/?key=1"',
        "otlp = 1",
        "sample = 1.5",
        "sample = -1",
        "interval = -1",
        "interval = inf",
        'listen = "0.0.0.0:9464"',
        'listen = "192.0.2.1:9464"',
        'listen = "localhost"',
        'listen = ":9464"',
        'other = "x"',
    ],
)
def test_a_bad_line_about_telemetry_is_told_with_its_place(tmp_path, line):
    file = tmp_path / "telemetry.toml"
    file.write_text(f"[telemetry]\n{line}\n")
    with pytest.raises(BridgeError) as caught:
        load(file, environ={}, cwd=tmp_path)
    assert (caught.value.code, caught.value.details["line"]) == ("bad_config", 2)


def test_a_folder_names_no_embedding_model(nowhere):
    file = nowhere / FILE_NAME
    file.write_text('[search]\nembeddings = "openai/m"\n')
    with pytest.raises(BridgeError) as caught:
        trust(nowhere)
        load(environ={}, cwd=nowhere)
    assert caught.value.code == "bad_config"
    assert "not a folder's to set" in caught.value.message


def test_a_folder_lists_no_package_that_scripts_may_have_installed(nowhere):
    file = nowhere / FILE_NAME
    file.write_text('[install]\nallow = ["evil"]\n')
    with pytest.raises(BridgeError) as caught:
        trust(nowhere)
        load(environ={}, cwd=nowhere)
    assert caught.value.code == "bad_config"
    assert "not a folder's to set" in caught.value.message
