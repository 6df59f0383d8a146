"""The command line: every command and option, its exit status, and what it says to bad input."""

import asyncio
import contextlib
import errno
import io
import json
import logging
import os
import re
import resource
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from bridge_fixtures import COMMAND, DEADLINE_SECONDS, descendants, is_gone, until
from sandbox_fixtures import knows_the_sandbox
from server_fixtures import cached
from typer.main import get_command
from typer.testing import CliRunner

from mcp_bridge import __version__, cli, escaping
from mcp_bridge.cli import configuration_loading, exit_statuses, log_file, terminal_output
from mcp_bridge.cli.app import app
from mcp_bridge.cli.commands import doctor, run, servers
from mcp_bridge.cli.commands.run import read_script
from mcp_bridge.downstream.configuration.client_file_reading import Problem
from mcp_bridge.downstream.configuration.discovery import Discovery, Skipped
from mcp_bridge.downstream.configuration.spec import ServerSpec
from mcp_bridge.errors import BridgeError
from mcp_bridge.executions.record import ExecutionRecord
from mcp_bridge.file_locks import locked_directory
from mcp_bridge.host import engine_setup
from mcp_bridge.ledger.storage.storage_errors import unusable
from mcp_bridge.settings import Settings
from mcp_bridge.telemetry.log_format import TextFormatter

pytestmark = pytest.mark.timeout(180)


def says(ended, status, *words):
    """It ended with this status and says so on standard error, in words for a user."""
    complaint = ended.stderr.decode()
    assert ended.returncode == status, complaint
    assert "Traceback" not in complaint
    for word in words:
        assert word in complaint
    return complaint


# --- run ---


@pytest.mark.parametrize("way", ["-c", "file", "-", "stdin"])
def test_run_takes_a_script_from_each_place(setup, way):
    script = b"import sys\nprint('hello')\nsys.exit(7)"
    file = setup.home / "script.py"
    file.write_bytes(script)
    arguments = {"-c": ["-c", script.decode()], "file": [str(file)], "-": ["-"], "stdin": []}[way]
    ended = setup.run("run", *arguments, stdin=script if way in {"-", "stdin"} else b"")
    assert ended.stdout == b"hello\n"
    assert ended.returncode == 7
    assert _said(ended.stderr) == b""


def _said(stderr):
    """What was written there by a run, but for the one line with which the first run of all begins the ledger."""
    return b"".join(line for line in stderr.splitlines(keepends=True) if b"a ledger begins" not in line)


def test_run_passes_output_on_byte_for_byte_and_ends_with_the_scripts_status(setup):
    ended = setup.run(
        "run", "-c", "import os\nos.write(1, b'\\xff\\xfe\\x00 caf\\xc3\\n\\n')\n_ = os.write(2, b'\\x80!')"
    )
    assert (ended.returncode, ended.stdout, _said(ended.stderr)) == (0, b"\xff\xfe\x00 caf\xc3\n\n", b"\x80!")
    assert setup.run("run", "-c", "6 * 7").stdout == b"42\n"
    failed = setup.run("run", "-c", "print('before')\n1/0")
    assert (failed.returncode, failed.stdout) == (1, b"before\n")
    assert failed.stderr.decode().endswith("    1/0\n    ~^~\nZeroDivisionError: division by zero\n")
    assert "mcp_bridge" not in failed.stderr.decode()
    late = setup.run("run", "--timeout", "0.5", "-c", "while True: pass")
    says(late, 124, "script_timeout")


def test_run_leaves_nothing_in_the_working_directory(setup, tmp_path):
    # A state directory may be given from there.
    work = tmp_path / "work"
    work.mkdir()
    shutil.copytree(setup.state_dir, work / "state", symlinks=True, ignore=shutil.ignore_patterns("run", "files"))
    ended = setup.run("run", "-c", "print('ok')", cwd=work, env={"MCP_BRIDGE_STATE_DIR": "state"})
    assert ended.stdout == b"ok\n"
    assert [path.name for path in work.iterdir()] == ["state"]


def test_run_gives_the_whole_record_as_json(setup):
    ended = setup.run("run", "--json", "-c", "import sys\nprint('x')\nprint('e', file=sys.stderr)\n5")
    record = json.loads(ended.stdout)
    assert ended.returncode == 0
    shown = {key: record[key] for key in ("status", "exit_code", "stdout", "stderr", "value", "calls")}
    assert shown == {"status": "success", "exit_code": 0, "stdout": "x\n", "stderr": "e\n", "value": "5", "calls": 0}
    assert record["duration_ms"] >= record["start_ms"] > 0
    failed = setup.run("run", "--json", "-c", "x = 1\nx.y")
    record = json.loads(failed.stdout)
    assert failed.returncode == record["exit_code"] == 1
    assert (record["error"]["type"], record["error"]["line"]) == ("AttributeError", 2)
    refused = setup.run("run", "--json", "-c", "")
    assert refused.returncode == 2
    assert json.loads(refused.stdout)["error"]["code"] == "empty_code"


def test_run_allows_only_the_named_servers(configure, time_server, git_server):
    setup = configure(time_server, git_server)
    code = "from mcp import runtime\nprint(sorted(runtime.discovered_servers()))"
    assert setup.run("run", "-c", code).stdout == b"['git', 'time']\n"
    assert setup.run("run", "--server", "time", "-c", code).stdout == b"['time']\n"
    assert setup.run("run", "--server", "time", "--server", "git", "-c", code).stdout == b"['git', 'time']\n"
    says(setup.run("run", "--server", "tmie", "-c", code), 2, "unknown_server", "Did you mean time?")


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
async def test_a_signal_during_run_leaves_no_container(configure, time_server, number, status):
    setup = configure(time_server)
    code = "from mcp.servers import time\nawait time.get_current_time('UTC')\nwhile True: pass"
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        "--config",
        str(setup.config),
        "run",
        "-c",
        code,
        env=setup.env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )

    async def running():
        # A server, and an engine's client.
        processes = 2 - (setup.engine.name == "oci")
        return bool(await setup.containers(process.pid)) and len(descendants(process.pid)) >= processes

    await until(running)
    everything = descendants(process.pid)
    process.send_signal(number)
    with anyio.fail_after(20):
        _, complaint = await process.communicate()
    assert process.returncode == status
    assert b"Traceback" not in complaint
    assert await setup.containers(process.pid) == []
    await until(lambda: all(is_gone(pid) for pid in everything), 10)


# --- what `run` shows of a record; no sandbox needed ---

PIXEL = "iVBORw0KGgo="


@pytest.fixture
def ran(monkeypatch, capfdbinary):
    """`ran(record, json?)`: the exit status, standard output and standard error of a run that ended so."""

    def make(record, *, as_json=False):
        async def ended(*_arguments):
            return record

        monkeypatch.setattr(
            configuration_loading,
            "configure",
            lambda _: configuration_loading.Configuration(Settings(), None, Discovery()),
        )
        monkeypatch.setattr(run, "_run", ended)
        monkeypatch.setattr(sys, "stdout", open(1, "w", closefd=False))  # noqa: SIM115
        monkeypatch.setattr(sys, "stderr", open(2, "w", closefd=False))  # noqa: SIM115
        status = run.run(None, None, "1", servers=[], timeout=None, as_json=as_json)
        return status, *capfdbinary.readouterr()

    return make


def test_run_shows_what_was_displayed(ran):
    shown = [{"text/markdown": "# one"}, {"image/png": PIXEL}, {"image/png": "AAAA"}, {"image/svg+xml": "<svg/>\n"}]
    record = ExecutionRecord("0" * 16, stdout=b"printed\n", value="5", displays=shown)
    status, out, err = ran(record)
    assert (status, out) == (0, b"printed\n# one\n<svg/>\n5\n")
    image, other = err.decode().splitlines()
    assert image == "[image/png, 8 bytes: --json has it]"
    assert "left out" in other
    assert json.loads(ran(record, as_json=True)[1])["displays"] == shown


def test_run_says_what_there_is_to_notice(ran):
    record = ExecutionRecord("0" * 16, notices=["1 file was lost with the sandbox", f"a server {EVIL}"])
    status, out, err = ran(record)
    assert (status, out) == (0, b"")
    assert err.decode() == f"mcp-bridge: 1 file was lost with the sandbox\nmcp-bridge: a server {TAMED}\n"


def test_run_says_the_hint_of_an_error(ran):
    error = BridgeError("call_limit", "Too many calls.", hint="Raise max_calls.").record()
    status, _, err = ran(ExecutionRecord("0" * 16, "call_limit", 137, error=error))
    assert (status, err) == (137, b"mcp-bridge: call_limit: Too many calls. Raise max_calls.\n")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_sandbox_that_never_answered_is_no_working_sandbox(ran, as_json):
    error = BridgeError("sandbox_start_timeout", "The sandbox did not answer within 60 s.").record()
    status, out, _ = ran(ExecutionRecord("0" * 16, "timeout", 124, error=error), as_json=as_json)
    assert status == exit_statuses.NO_SANDBOX
    assert not as_json or json.loads(out)["exit_code"] == status


def test_limits_that_do_not_hold_are_in_the_record_and_the_log_but_no_noise(ran, caplog):
    record = ExecutionRecord("0" * 16, limits_not_enforced=["memory"])
    with caplog.at_level("INFO"):
        assert ran(record) == (0, b"", b"")
    assert "memory" in caplog.text
    assert json.loads(ran(record, as_json=True)[1])["limits_not_enforced"] == ["memory"]


# --- what others' words may do to a terminal ---

EVIL = "a\x1b]0;x\x07\x7f\x9b31m\u202e\u2066\r\ud800z"
TAMED = r"a\x1b]0;x\x07\x7f\x9b31m\u202e\u2066\r\ud800z"


def test_controls_are_escaped_and_words_are_not():
    assert escaping.escape_controls(EVIL) == TAMED
    assert escaping.escape_controls("Blåbær 漢字 😀\n\ttab") == "Blåbær 漢字 😀\n\ttab"
    for number in [*range(32), *range(127, 160), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]:
        assert (escaping.escape_controls(chr(number)) == chr(number)) == (chr(number) in "\n\t"), hex(number)


def test_run_prints_no_controls_but_the_scripts_own(ran):
    artifact = {"name": EVIL, "path": EVIL, "uri": "", "size": 1}
    for error in ({"code": "script_error", "message": EVIL}, {"code": "e", "message": "", "traceback": EVIL}):
        record = ExecutionRecord("0" * 16, "error", 1, b"\x1b[1m", b"\x1b[2m", EVIL, error, [{"text/plain": EVIL}])
        record.artifacts = [artifact]
        _, out, err = ran(record)
        assert out.decode() == f"\x1b[1m{TAMED}\n{TAMED}\n"
        assert err.startswith(b"\x1b[2m")
        assert err.count(b"\x1b") == 1
        assert err.decode().count(TAMED) == 3
        assert json.loads(ran(record, as_json=True)[1])["value"] == EVIL


def test_complaints_logs_and_lists_print_no_controls(monkeypatch, capsys):
    exit_statuses.print_error(BridgeError("bad_config", EVIL, hint=EVIL))
    assert capsys.readouterr().err.count(TAMED) == 2
    doctor._print([{"level": "error", "code": "x", "message": EVIL, "hint": EVIL}])
    assert capsys.readouterr().out.count(TAMED) == 2
    logged = logging.LogRecord("x", logging.WARNING, "", 1, "%s", (EVIL,), None)
    assert TextFormatter(dated=False).format(logged) == f"mcp-bridge: WARNING: {TAMED}"

    async def rows(*_):
        return [
            dict.fromkeys(("name", "alias", "state", "error", "source", "scope"), EVIL)
            | {"tools": None, "details": {"stderr": [EVIL]}}
        ]

    found = Discovery(skipped=[Skipped(EVIL, EVIL, EVIL)], problems=[Problem("x", EVIL, None, EVIL)])
    monkeypatch.setattr(
        configuration_loading, "configure", lambda _, **__: configuration_loading.Configuration(Settings(), None, found)
    )
    monkeypatch.setattr(servers, "_rows", rows)
    shown = CliRunner().invoke(app, ["servers", "list"], env={"COLUMNS": "1000"})
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    assert shown.stdout.count(r"\x1b]0;x") == 11


# --- where --config is given ---

COMMANDS = [
    ("run", "-c", "1"),
    ("doctor",),
    ("demo",),
    ("image", "build"),
    ("image", "list"),
    ("image", "inspect"),
    ("servers", "list"),
    ("servers", "search", "x"),
    ("program", "run", "x"),
    ("program", "list"),
    ("program", "plan", "x"),
    ("execution", "list"),
    ("execution", "resume", "x"),
    ("approvals", "list"),
    ("approvals", "approve", "x"),
    ("secret", "list"),
    ("policy", "show"),
    ("policy", "check"),
    ("policy", "explain", "a.b"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_config_is_taken_before_and_after_a_command_and_the_later_wins(command, tmp_path):
    early, late = str(tmp_path / "early.toml"), str(tmp_path / "late.toml")
    invoke = CliRunner().invoke
    for arguments, named in (
        ([*command, "--config", late], late),
        (["--config", early, *command], early),
        (["--config", early, *command, "--config", late], late),
    ):
        ended = invoke(app, arguments, env={"COLUMNS": "1000"})
        assert ended.exit_code == 2
        assert named in ended.output.replace("\n", "")


def test_the_fast_way_in_is_for_no_arguments_and_serve_alone(monkeypatch):
    served = []
    monkeypatch.setattr(
        "mcp_bridge.cli.commands.serve.serve", lambda config, **options: served.append((config, options["bare"])) or 0
    )
    later = ["--config", "y", "serve", "--config", "x"]
    for arguments in ([], ["serve"], ["serve", "--config", "x"], ["--config", "x", "serve"], later, ["--config", "x"]):
        monkeypatch.setattr(sys, "argv", ["mcp-bridge", *arguments])
        with pytest.raises(SystemExit):
            cli.main()
    x = Path("x")
    assert served == [(None, True), (None, False), (x, False), (x, False), (x, False), (x, True)]


# --- bad input ---


def test_a_script_in_python_is_in_the_encoding_that_it_names(tmp_path):
    latin, wide = tmp_path / "latin.py", tmp_path / "wide.js"
    latin.write_bytes(b"#!/usr/bin/python\n# -*- coding: latin-1 -*-\nprint('caf\xe9')\n")
    assert read_script(str(latin), None).endswith("print('caf\xe9')\n")
    wide.write_bytes("// coding: latin-1\n'\xe9'".encode())
    assert read_script(str(wide), None, "javascript").endswith("'\xe9'")


def test_a_script_that_is_none_is_a_usage_error(setup):
    binary = setup.home / "binary"
    binary.write_bytes(b"\x7fELF\xff\xfe")
    empty = setup.home / "empty.py"
    empty.write_bytes(b"")
    says(setup.invoke("run", "nowhere.py"), 2, "script_missing", "nowhere.py", "No such file")
    says(setup.invoke("run", str(setup.home)), 2, "script_missing", "directory")
    says(setup.invoke("run", str(binary)), 2, "bad_code", "not UTF-8")
    says(setup.invoke("run", "-", stdin=b"\xff"), 2, "bad_code", "not UTF-8")
    (setup.home / "ascii.py").write_bytes(b"# coding: ascii\n'\xe9'\n")
    says(setup.invoke("run", "ascii.py"), 2, "bad_code", "not ASCII text")
    (setup.home / "unknown.py").write_bytes(b"#!python\n# coding: nothing\n")
    says(setup.invoke("run", "unknown.py"), 2, "bad_code", "unknown encoding: nothing", "PEP 263")
    for encoding in ("hex", "rot13", "undefined", "utf-16"):
        (setup.home / "odd.py").write_bytes(f"# coding: {encoding} \nprint(12)\n".encode())
        says(setup.invoke("run", "odd.py"), 2, "bad_code", "names an encoding that source can't have", "PEP 263")
    says(setup.invoke("run", str(empty)), 2, "empty_code")
    says(setup.invoke("run", "-c", "1", str(binary)), 2, "script_missing", "not both")
    says(setup.invoke("run", "-c", "1", "--timeout", "0"), 2, "bad_timeout")
    says(setup.invoke("run", "-c", "1", "--timeout", "1e9"), 2, "bad_timeout", "120")
    says(setup.invoke("run", "-c", "1", "--timeout", "nan"), 2, "bad_timeout")
    says(setup.invoke("run", "-c", "1", "--timeout", "soon"), 2, "--timeout")
    says(setup.invoke("run", "-c", "print('\udcff')"), 2, "bad_code")


@pytest.mark.parametrize(
    "command", [("run", "-c", "1"), ("servers", "list"), ("doctor",), ("image", "list"), ("serve",)]
)
def test_a_broken_configuration_is_a_usage_error_of_every_command(setup, command):
    setup.config.write_text("# a comment\nmemory = = 3\n")
    ended = setup.run(*command)
    assert ended.returncode == 2
    complaint = (ended.stdout + ended.stderr).decode()
    assert "Traceback" not in complaint
    assert "line 2" in complaint.replace("\n", " ")


def test_what_is_wrong_in_the_configuration_is_named(setup):
    def complaint_about(content, *words):
        setup.config.write_bytes(content)
        says(setup.invoke("run", "-c", "1"), 2, "bad_config", str(setup.config), *words)

    complaint_about(b"timeout = 5\ntimout = 6\n", "line 2", "'timout'", "Did you mean timeout?")
    complaint_about(b"timeout = 'long'\n", "line 1", "timeout")
    complaint_about(b"output = 'yaml'\n", "line 1", "output", "compact")
    complaint_about(b"servers = 3\n", "[servers.NAME]")
    complaint_about(b"[servers.a]\ncomand = 'x'\n", "servers.a.comand", "Did you mean command?")
    complaint_about(b"\xff\xfe", "not UTF-8")
    setup.config.write_text("")
    says(
        setup.invoke("run", "-c", "1", env={"MCP_BRIDGE_TIMEOUTT": "3"}),
        2,
        "MCP_BRIDGE_TIMEOUTT",
        "MCP_BRIDGE_TIMEOUT?",
    )
    says(setup.invoke("run", "-c", "1", env={"MCP_BRIDGE_MEMORY": "much"}), 2, "MCP_BRIDGE_MEMORY", "512m")
    setup.config.unlink()
    says(setup.invoke("run", "-c", "1"), 2, "config_missing", str(setup.config))
    setup.config.mkdir()
    says(setup.invoke("run", "-c", "1"), 2, "config_missing", str(setup.config))


def test_an_unreadable_configuration_in_its_usual_place_is_named(setup):
    # Root reads whatever the mode says: what only looks like TOML stands for it there.
    file = setup.home / ".config/mcp-bridge/config.toml"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"\x00")
    file.chmod(0)
    env = {"XDG_CONFIG_HOME": str(setup.home / ".config")}
    says(setup.run("run", "-c", "1", config=False, env=env), 2, "bad_config", "config.toml")


def test_without_an_engine_it_says_what_is_missing(setup, tmp_path):
    env = {"PATH": str(tmp_path), "MCP_BRIDGE_STATE_DIR": str(tmp_path / "state"), "MCP_BRIDGE_RUNTIME": "auto"}
    complaint = says(setup.run("run", "-c", "1", env=env), 3, "no_runtime")
    assert "podman" in complaint.lower()
    ended = setup.run("doctor", "--json", env=env)
    assert ended.returncode == 3
    report = json.loads(ended.stdout)
    assert report["ok"] is False
    assert [row for row in report["findings"] if row["level"] == "error" and row.get("hint")]
    assert setup.run("doctor", env=env).returncode == 3
    says(setup.run("image", "list", env=env), 3, "no_runtime")


def test_an_engine_that_is_asked_for_and_does_not_answer_is_named_with_a_hint(setup, tmp_path):
    state = str(tmp_path / "state")
    env = {"MCP_BRIDGE_RUNTIME": "docker", "DOCKER_HOST": "unix:///nowhere.sock", "MCP_BRIDGE_STATE_DIR": state}
    ended = setup.run("doctor", "--json", env=env)
    assert ended.returncode == 3, ended.stderr
    (error,) = [row for row in json.loads(ended.stdout)["findings"] if row["code"] == "no_runtime"]
    assert "docker" in (error["message"] + error["hint"]).lower()


def test_a_state_directory_that_cannot_be_made_is_said(setup, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    says(setup.run("run", "-c", "1", env={"MCP_BRIDGE_STATE_DIR": str(blocked / "state")}), 3, "MCP_BRIDGE_STATE_DIR")


def test_a_nested_bridge_is_refused(setup):
    says(setup.run("run", "-c", "1", env={"MCP_BRIDGE_NESTED": "1"}), 4, "nested_bridge")
    ended = setup.run("run", "--json", "-c", "1", env={"MCP_BRIDGE_NESTED": "1"})
    assert (ended.returncode, json.loads(ended.stdout)["error"]["code"]) == (4, "nested_bridge")


# --- standard streams that aren't there ---


@pytest.mark.parametrize(
    "words",
    [
        ("execution", "list", "--json", "--limit", "0"),
        ("approvals", "approve", "--json"),
        ("audit", "stats", "--json", "--nothing"),
        ("image", "inspect", "no such image", "--json"),
        ("image", "build", "--profile", "no such profile", "--json"),
    ],
)
def test_an_error_is_json_wherever_a_commands_json_was_asked_for(setup, words):
    ended = setup.run(*words)
    record = json.loads(ended.stdout)
    assert (record["status"], record["exit_code"], ended.stderr) == ("refused", ended.returncode, b"")
    assert record["error"]["message"]


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("replay --json >/dev/full", 1, "output_unwritable"),
        ("run - <&-", 2, "empty_code: There is no code to run."),
        ("version >/dev/full", 1, "output_unwritable: Standard output can't be written: No space left on device."),
        ("execution list --json >/dev/full", 1, "output_unwritable"),
        ("run /dev/zero", 2, "code_too_large"),
        ("run - </dev/zero", 2, "code_too_large"),
        ("version >&-", 0, ""),
        (f"{'x' * 300}", 2, "Commands: "),
        (f'"print({"1" * 300})"', 2, "Code goes after -c"),
        ("execution list <&- >&-", 0, ""),
        ("policy show --json | head -c 1", 0, "{"),
    ],
)
def test_a_stream_that_is_closed_or_full_ends_in_no_traceback(setup, tmp_path, line, status, words):
    env = setup.env | {"MCP_BRIDGE_STATE_DIR": str(tmp_path / "state"), "MCP_BRIDGE_CONFIG": str(setup.config)}
    ended = subprocess.run(["bash", "-c", f"{COMMAND} {line}"], env=env, capture_output=True, timeout=60, check=False)
    said = (ended.stdout + ended.stderr).decode()
    assert ended.returncode == status, said
    assert words in said
    assert "Traceback" not in said


def test_help_is_shown_where_the_locale_lacks_its_letters(setup):
    for command in ("backup", "erase", "witness"):
        shown = setup.run(command, "--help", env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"})
        assert (shown.returncode, b"Usage" in shown.stdout, shown.stderr) == (0, True, b"")


def test_a_database_is_never_opened_in_the_place_of_a_closed_stream(setup, tmp_path):
    """What a child writes to its standard error would go into it."""
    env = setup.env | {"MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")}
    look = "import os; from mcp_bridge.cli.streams import hold_streams; hold_streams(); hold_streams(); "
    look += "assert os.open('/dev/null', os.O_RDONLY) > 2; "
    look += "assert os.get_inheritable(0) and os.get_inheritable(2); print(os.readlink('/proc/self/fd/2'))"
    ended = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "{look}" <&- 2>&-'], env=env, capture_output=True, timeout=60, check=True
    )
    assert ended.stdout == b"/dev/null\n"


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        (("execution", "list", "--json"), 0, '{"executions": []}'),
        (("session", "list", "--json"), 0, '{"sessions": []}'),
        (("approvals", "list", "--all", "--json"), 0, '{"approvals": []}'),
        (("program", "list", "--json"), 0, '{"programs": []}'),
        (("execution", "show", "abc"), 2, "unknown_trace"),
        (("session", "show", "nobody"), 2, "unknown_session"),
        (("replay", "abc"), 2, "unknown_trace"),
        (("execution", "resume", "abc"), 2, "unknown_trace"),
        (("execution", "settle", "abc", "--not-done"), 2, "unknown_trace"),
        (("execution", "cancel", "abc"), 2, "unknown_trace"),
        (("session", "end", "nobody"), 2, "unknown_session"),
        (("approvals", "approve", "abc"), 2, "unknown_trace"),
        (("approvals", "deny", "abc.1", "--resume"), 2, "unknown_trace"),
        (("program", "delete", "nothing"), 2, "unknown_program"),
        (("erase", "--execution", "abc"), 2, "unknown_trace"),
        (("erase", "--subject", "anna"), 1, "nothing_to_erase"),
        (("ui",), 1, "There is no ledger"),
        (("audit", "compact"), 1, "There is no ledger"),
        (("audit", "rotate-key"), 1, "There is no ledger"),
        (("audit", "rotate-key", "--lost"), 1, "There is no ledger"),
        (("audit", "publish", "--acknowledge"), 1, "There is no ledger"),
        (("audit", "accept-clock"), 1, "There is no ledger"),
        (("audit", "accept-loss"), 1, "There is no ledger"),
        (("principal", "revoke", "anna"), 2, "unknown_principal"),
        (("principal", "rotate", "anna"), 2, "unknown_principal"),
        (("secret", "remove", "github"), 2, "unknown_secret"),
        (("event", "send", "paid", "--json"), 1, "nobody_waits"),
        (("event", "send", "paid", "--execution", "abc"), 2, "unknown_trace"),
    ],
)
def test_a_command_that_only_reads_or_finds_nothing_begins_no_ledger(setup, tmp_path, command, status, words):
    state = tmp_path / "state"
    env = {"MCP_BRIDGE_STATE_DIR": str(state)}
    ended = setup.run(*command, env=env)
    assert (ended.returncode, words in (ended.stdout + ended.stderr).decode()) == (status, True), ended
    assert not state.exists()
    # A secret was set there before the first run.
    state.mkdir(0o700)
    (state / "secrets.json").write_text('{"format": 1, "secrets": {}}')
    (state / "secrets.json").chmod(0o600)
    ended = setup.run(*command, env=env)
    assert (ended.returncode, words in (ended.stdout + ended.stderr).decode()) == (status, True), ended
    assert [path.name for path in state.iterdir()] == ["secrets.json"]


def test_a_command_that_only_reads_says_where_no_directory_can_be_written(setup, monkeypatch):
    def nowhere():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.TemporaryDirectory", nowhere)
    ended = setup.invoke("execution", "list")
    says(ended, exit_statuses.FAILED, "database_unusable", "No usable temporary directory", "TMPDIR")


def test_what_is_logged_is_in_the_file_that_is_configured_too(configure, tmp_path):
    setup = configure(log_file="bridge.log", log_level="info")
    env = {"MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")}
    (tmp_path / "program.json").write_text('{"name": "p", "steps": [{"id": "a", "type": "wait", "seconds": 1}]}')
    assert b"a ledger begins" in setup.run("program", "save", "p", str(tmp_path / "program.json"), env=env).stderr
    file = tmp_path / "bridge.log"
    assert file.stat().st_mode & 0o777 == 0o600
    (line,) = (line for line in file.read_text().splitlines() if "a ledger begins" in line)
    assert re.match(r"\d{4}-\d\d-\d\d [\d:,]+ \d+ WARNING mcp_bridge\.host\.bridge: ", line)
    setup = configure(log_file=str(tmp_path))
    says(setup.run("execution", "list", env=env), 2, "log_unwritable", str(tmp_path), "Is a directory")


def test_a_log_file_is_put_aside_when_it_is_large_and_others_words_begin_no_line(tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "MAX_BYTES", 1000)
    handler = log_file.LogFile(tmp_path / "bridge.log")
    other = log_file.LogFile(tmp_path / "bridge.log")
    handler.setFormatter(TextFormatter(dated=True))
    for number in range(100):
        for each in (handler, other):
            each.handle(logging.LogRecord("x", logging.INFO, "", 1, f"number {number}\nERROR: not one", (), None))
    handler.close()
    other.close()
    text = (tmp_path / "bridge.log").read_text()
    assert "number 99" in text
    assert {path.name for path in tmp_path.iterdir()} == {"bridge.log", "bridge.log.1"}
    assert all(path.stat().st_size < 1200 for path in tmp_path.iterdir())
    handler.handle(logging.LogRecord("x", logging.INFO, "", 1, "a\nERROR: not one", (), None))
    assert (tmp_path / "bridge.log").read_text().endswith("INFO x: a\n    ERROR: not one\n")
    handler.close()


# --- the other commands ---


def test_doctor_finds_a_working_sandbox(configure, tmp_path):
    setup = configure(client_configs=True)
    (setup.home / ".mcp.json").write_text('{\n"mcpServers": [\n')
    (setup.home / ".cursor").mkdir()
    (setup.home / ".cursor/mcp.json").write_text('{"mcpServers": {"mine": {"command": "uvx"}}}')
    ended = setup.run("doctor", "--json", env={"SSL_CERT_DIR": "/nowhere"})
    report = json.loads(ended.stdout)
    assert b".mcp.json" not in ended.stderr, "it is named once"
    messages = {row["code"]: row["message"] for row in report["findings"]}
    assert "SSL_CERT_DIR is /nowhere, which is no folder" in messages["certificates"]
    assert "doesn't read: mine" in messages["client_not_read"]
    assert ended.returncode == 0
    assert report["ok"] is True
    assert report["engine"] in {"oci", "podman", "docker"}
    assert report["image"]
    assert set(report["limits_not_enforced"]) <= {"memory", "pids", "cpus"}
    assert {row["level"] for row in report["findings"]} <= {"ok", "warning"}
    assert any(row["code"] == "ledger_room" and "30 days" in row["message"] for row in report["findings"])
    assert any(row["code"] == "client_config" and ".mcp.json" in row["message"] for row in report["findings"])
    shown = setup.run("doctor")
    assert shown.returncode == 0
    assert b"A script ran in a fresh container" in shown.stdout


def test_doctor_begins_no_ledger_and_goes_on_where_one_cant_be_opened(configure, tmp_path, monkeypatch, capsys):
    setup = configure()
    state = tmp_path / "state"
    knows_the_sandbox(state, setup.state_dir)
    env = {"MCP_BRIDGE_STATE_DIR": str(state)}
    # Of a doctor that was killed, and of one that is at work.
    (state / "doctor-killed").mkdir()
    (state / "doctor-killed/ledger.sqlite").touch()
    (state / "doctor-busy").mkdir()
    (state / "doctor-begun").mkdir()
    for made in ("doctor-killed", "doctor-busy"):
        os.utime(state / made, (1, 1))
    with locked_directory(state / "doctor-busy"):
        assert setup.run("doctor", env=env).returncode == 0
    names = {path.name for path in state.iterdir() if path.suffix in {".sqlite", ".key"} or "doctor" in path.name}
    assert names == {"doctor-busy", "doctor-begun"}
    (state / "checkpoint.key").write_bytes(bytes(32))
    (state / "ledger.sqlite").write_bytes(b"damaged" * 1000)
    ended = setup.run("doctor", "--json", env=env)
    report = json.loads(ended.stdout)
    assert ended.returncode != 0
    assert report["ok"] is False
    (error,) = [row for row in report["findings"] if row["level"] == "error"]
    assert "ledger.sqlite" in error["message"]
    assert "with a ledger of its own" in error["hint"]
    assert report["findings"][-1]["code"] == "script"

    def no_room(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(doctor, "TemporaryDirectory", no_room)
    monkeypatch.setenv("MCP_BRIDGE_STATE_DIR", str(state))
    assert doctor.doctor(setup.config, as_json=True) == ended.returncode
    codes = [row["code"] for row in json.loads(capsys.readouterr().out)["findings"] if row["level"] == "error"]
    assert codes == [error["code"], "state_unusable"]


def test_doctor_tries_the_rest_where_the_state_directory_cant_be_used(configure, tmp_path, monkeypatch, capsys):
    setup = configure()
    (tmp_path / "file").touch()

    def elsewhere(settings, directory):
        # The image isn't built again for this.
        knows_the_sandbox(directory, setup.state_dir)
        return _elsewhere(settings, directory)

    _elsewhere = doctor._elsewhere
    monkeypatch.setattr(doctor, "_elsewhere", elsewhere)
    monkeypatch.setenv("MCP_BRIDGE_STATE_DIR", str(tmp_path / "file"))
    assert doctor.doctor(setup.config, as_json=True) == exit_statuses.exit_code(BridgeError("state_unusable", ""))
    report = json.loads(capsys.readouterr().out)
    (error,) = [row for row in report["findings"] if row["level"] == "error"]
    assert error["code"] == "state_unusable"
    assert "The rest is tried in a temporary directory" in error["hint"]
    assert "ledger_room" not in {row["code"] for row in report["findings"]}
    assert report["findings"][-1]["code"] == "script"


LOGGING_DOCTOR = """
import logging, sys
from mcp_bridge.cli import main
from mcp_bridge.cli.commands import doctor

prepare = doctor._prepare

def logged(settings):
    logging.getLogger("mcp_bridge").info("it is so")
    return prepare(settings)

doctor._prepare = logged
main()
"""


def test_doctor_shows_nothing_that_is_logged_for_information_between_its_findings(configure, tmp_path):
    setup = configure(log_level="info", log_file=str(tmp_path / "bridge.log"))
    command = [sys.executable, "-c", LOGGING_DOCTOR, "--config", str(setup.config), "doctor"]
    shown = subprocess.run(command, env=setup.env, cwd=setup.home, capture_output=True, check=True, timeout=100)
    assert b"INFO" not in shown.stdout + shown.stderr
    assert "INFO mcp_bridge: it is so" in (tmp_path / "bridge.log").read_text()


def test_doctor_says_that_the_ledger_has_no_room(configure):
    setup = configure(ledger={"min_free": "99999g"})
    ended = setup.run("doctor", "--json")
    report = json.loads(ended.stdout)
    assert report["ok"] is False
    assert [row["code"] for row in report["findings"] if row["level"] == "error"] == ["ledger_full"]
    shown = setup.run("doctor")
    assert shown.returncode == ended.returncode == exit_statuses.exit_code(BridgeError("ledger_full", ""))
    assert b"Traceback" not in shown.stdout + shown.stderr


@pytest.mark.xdist_group("images")
def test_images_are_built_listed_and_inspected(setup, image):
    built = json.loads(setup.run("image", "build", "--profile", "base", "--json").stdout)
    assert built["reference"] == image
    listed = json.loads(setup.run("image", "list", "--json").stdout)
    assert image in [row["reference"] for row in listed]
    inspected = json.loads(setup.run("image", "inspect", "--json").stdout)
    assert (inspected["reference"], inspected["profile"], inspected["packages"]) == (image, "base", [])
    assert inspected["python"].startswith("3.")
    assert image.encode() in setup.run("image", "inspect", image).stdout
    assert setup.run("image", "list").returncode == 0
    says(setup.run("image", "inspect", "no/such:image"), 3, "image_missing", "no/such:image")
    says(setup.run("image", "build", "--profile", "bsae"), 2, "unknown_profile", "base")


def test_tools_are_searched_on_the_command_line_as_scripts_search_them(configure, time_server):
    dead = ServerSpec(name="dead", command="/nowhere/at-all")
    setup = configure(time_server, dead)
    ended = setup.run("servers", "search", "what", "tiem", "is", "it", "in", "Tokyo")
    assert ended.returncode == 0
    assert ended.stdout.decode().splitlines()[0].startswith("time.")
    assert "dead" in ended.stderr.decode(), "what couldn't be searched is said"
    found = json.loads(setup.run("servers", "search", "--json", "--limit", "1", "convert timezones").stdout)
    [row] = found["matches"]
    assert (row["server"], row["tool"], row["name"]) == ("time", "convert_time", "time.convert_time")
    assert row["line"].startswith("time.convert_time(source_timezone, time, target_timezone) — ")
    assert setup.run("servers", "search", "xyzzyplugh").stdout.decode() == "No tool was found.\n"


def test_servers_are_listed_with_what_is_wrong_and_what_was_left_out(configure, time_server):
    dead = ServerSpec(name="dead", command="/nowhere/at-all")
    setup = configure(time_server, dead, client_configs=True)
    (setup.home / ".mcp.json").write_text('{\n"mcpServers": {\n')
    (setup.home / ".claude.json").write_text(json.dumps({"mcpServers": {"me": {"command": "mcp-bridge"}}}))
    ended = setup.run("servers", "list", "--json")
    assert ended.returncode == 0
    listed = json.loads(ended.stdout)
    assert [row["name"] for row in listed["servers"]] == ["dead", "time"]
    assert {row["tools"] for row in listed["servers"]} <= {None, 2}, "nothing is started to list it"
    # Named once, in the answer.
    assert b".mcp.json" not in ended.stderr
    (problem,) = listed["problems"]
    assert problem["file"].endswith(".mcp.json")
    assert problem["line"]
    assert [(row["name"], row["file"].rpartition("/")[2]) for row in listed["skipped"]] == [("me", ".claude.json")]
    again = setup.run("servers", "list", "--start", "--json")
    assert again.returncode == 1, "one that can't be started"
    started = json.loads(again.stdout)
    rows = {row["name"]: row for row in started["servers"]}
    assert rows["time"]["tools"] == 2
    assert "at-all" in rows["dead"]["error"]
    assert rows["dead"]["details"]["command"] == "/nowhere/at-all"
    shown = setup.run("servers", "list")
    assert shown.returncode == 0
    assert b"time" in shown.stdout


def test_lines_are_wrapped_at_a_terminal_alone_and_never_within_a_word(configure):
    path = "/nowhere/" + "a-long-folder/" * 12 + "server"
    setup = configure(ServerSpec(name="dead", command=path))
    shown = setup.run("servers", "list", "--start").stdout.decode()
    assert f"dead: command: {path}\n" in shown

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for kind, is_wrapped in ((io.StringIO, False), (Terminal, True)):
        written = kind()
        terminal_output.print_styled(f"{'of many words ' * 12}{path} :x: [red]", "dim", mark="warn", stream=written)
        lines = re.sub(r"\x1b\[[\d;]*m", "", written.getvalue()).splitlines()
        assert " ".join(line.strip() for line in lines) == f"warn {'of many words ' * 12}{path} :x: [red]"
        assert (len(lines) > 1) == is_wrapped


def test_a_server_whose_tools_are_known_is_started_all_the_same(configure, tmp_path):
    script = tmp_path / "server.py"
    shutil.copy(Path(__file__).parents[1] / "support/servers/faulty.py", script)
    setup = configure(ServerSpec(name="mine", command=sys.executable, args=(str(script),)))
    env = {"MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")}
    started = setup.run("servers", "list", "--start", "--json", env=env)
    (row,) = json.loads(started.stdout)["servers"]
    assert (started.returncode, row["state"]) == (0, "ready"), started.stderr
    assert row["tools"]
    script.write_text("raise SystemExit('it is broken now')")
    (idle,) = json.loads(setup.run("servers", "list", "--json", env=env).stdout)["servers"]
    assert idle["tools"] == row["tools"], "its tools are known"
    again = setup.run("servers", "list", "--start", "--json", env=env)
    (row,) = json.loads(again.stdout)["servers"]
    assert (again.returncode, row["state"]) == (1, "failed")
    assert "did not start" in row["error"]


def test_no_server_at_all_is_no_error(setup):
    assert b"No server is configured" in setup.invoke("servers", "list").stdout
    assert json.loads(setup.invoke("servers", "list", "--json").stdout) == {
        "servers": [],
        "skipped": [],
        "problems": [],
    }


def test_help_names_every_command_and_option(setup):
    root = setup.run("--help", config=False).stdout.decode()
    for command in (
        "serve",
        "run",
        "doctor",
        "image",
        "servers",
        "demo",
        "version",
        "program",
        "execution",
        "--config",
    ):
        assert command in root
    of = {
        ("run",): ("-c", "--server", "--timeout", "--json", "FILE"),
        ("doctor",): ("--json",),
        ("image",): ("build", "list", "inspect"),
        ("image", "build"): ("--profile", "--with", "--json"),
        ("servers", "list"): ("--start", "--json"),
        ("version",): ("--json",),
    }
    for command, options in of.items():
        shown = setup.invoke(*command, "--help", config=False)
        assert shown.returncode == 0
        assert all(option in shown.stdout.decode() for option in options), command
    says(setup.invoke("rnu", config=False), 2, "rnu")
    says(setup.invoke("run", "--jsn", config=False), 2, "--jsn")


def described(command, path=()):
    """Every command's path, and the texts that describe it and its options."""
    yield path, [command.help or "", *(getattr(each, "help", None) or "" for each in command.params)]
    for name, each in getattr(command, "commands", {}).items():
        yield from described(each, (*path, name))


def test_help_takes_no_word_in_brackets_for_markup():
    for path, texts in described(get_command(app)):
        shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"}).output
        for word in re.findall(r"\S*\[[^\s.,;:]*", " ".join(texts)):
            assert word in shown, (path, word)


def test_version_is_told_by_both_names_of_the_command(setup):
    for asked in ("version", "--version", "-V"):
        assert setup.run(asked, config=False).stdout.decode() == f"mcp-bridge {__version__}\n"
    facts = json.loads(setup.run("version", "--json").stdout)
    assert facts["version"] == __version__
    other = Path(sys.executable).parent / "mcp-code-bridge"
    assert os.access(other, os.X_OK)
    assert other.read_text().splitlines()[-1] == Path(COMMAND).read_text().splitlines()[-1]


def test_the_demonstration_works(setup):
    bins = [cached("npm/node_modules/.bin"), cached("mcp-server-git/bin"), cached("mcp-server-time/bin")]
    path = os.pathsep.join([*map(str, bins), setup.env["PATH"]])
    ended = setup.run("demo", env={"PATH": path}, timeout=2 * DEADLINE_SECONDS)
    shown = ended.stdout.decode()
    assert ended.returncode == 0, shown + ended.stderr.decode()
    assert "HISTORY.md" in shown
    words = shlex.split(shown.splitlines()[-1])
    assert words[:7] == ["claude", "mcp", "add", "--scope", "user", "bridge", "--"]
    again = subprocess.run([*words[7:], "--version"], cwd="/", env={}, capture_output=True, timeout=60, check=True)
    assert again.stdout.decode() == f"mcp-bridge {__version__}\n"
    assert "this should not have worked" not in shown.replace('print("this should not have worked")', "")


def test_a_small_limit_on_open_files_is_named(desk):
    process = desk.process("doctor", "--json", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)))
    out, _ = process.communicate(timeout=DEADLINE_SECONDS)
    (few,) = [row for row in json.loads(out)["findings"] if row["code"] == "too_few_descriptors"]
    assert "64 open files" in few["message"]
    assert "ulimit -n" in few["hint"]


UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((64, 4096), (1024, 4096)),
        ((64, 256), (256, 256)),
        ((64, UNLIMITED), (1024, UNLIMITED)),
        ((1024, 4096), None),
        ((UNLIMITED, UNLIMITED), None),
    ],
)
def test_a_small_soft_limit_on_open_files_is_raised(monkeypatch, limits, raised):
    made = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: made.append(new))
    engine_setup.require_descriptors()
    assert made == ([raised] if raised else [])


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("-n 30", ["too_few_descriptors: The bridge may have 30 open files", "Raise the hard limit: ulimit -n"]),
        ("-f 10", ["database_unusable", "may write no file larger than 10240 bytes: raise ulimit -f"]),
    ],
)
def test_a_limit_of_the_shell_that_is_too_low_for_a_ledger_is_named(tmp_path, limit, said):
    shell = ["bash", "-c", f'ulimit {limit}; exec "$@"', "bash"]
    environment = os.environ | {"MCP_BRIDGE_STATE_DIR": str(tmp_path / "state"), "HOME": str(tmp_path)}
    done = subprocess.run(
        [*shell, COMMAND, "run", "-c", "1"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode
    assert [words for words in said if words not in done.stderr] == [], done.stderr


def test_a_file_that_cant_be_opened_for_want_of_open_files_says_so(tmp_path, monkeypatch):
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(tmp_path / "none" / "file")
    assert "see to their owner and mode" in unusable(tmp_path / "file", caught.value).hint
    monkeypatch.setattr(resource, "getrlimit", lambda _: (11, 11))
    assert "only 11 open files: raise ulimit -n" in unusable(tmp_path / "file", caught.value).hint


async def test_a_script_of_the_doctors_that_fails_is_told_with_the_way_out(tmp_path, monkeypatch):
    error = {"code": "out_of_memory", "message": "It used too much.", "hint": "Raise memory."}

    async def nothing(*_):
        return SimpleNamespace(stdout=b"", error=error)

    bridge = SimpleNamespace(
        measured=lambda: None,
        files=SimpleNamespace(used=lambda: 0),
        sandboxes=SimpleNamespace(prepare=nothing),
        run=nothing,
    )

    @contextlib.asynccontextmanager
    async def opened(*_, **__):
        yield bridge

    monkeypatch.setattr(doctor, "open_bridge", opened)
    monkeypatch.setattr(doctor, "_room", lambda *_: ("ok", "ledger_room", "room", None))
    with pytest.raises(BridgeError) as caught:
        await doctor._tried(SimpleNamespace(ledger=None), lambda *_: None)
    assert (caught.value.code, caught.value.hint) == ("sandbox_broken", "Raise memory.")
