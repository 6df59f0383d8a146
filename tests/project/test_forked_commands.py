"""What tests start is forked; it has what it would have if it were started as anybody else starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import forked_commands
import pytest

LOOKING = Path(forked_commands.__file__).with_name("looking_around.py")


def looked(monkeypatch, start, *arguments, **options):
    monkeypatch.setattr(subprocess, "_fork_exec", start)
    with subprocess.Popen(
        [sys.executable, LOOKING, *arguments], stdin=subprocess.PIPE, text=True, **options
    ) as process:
        said, _ = process.communicate("read \xe9")
    return json.loads(said), process.returncode


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"start_new_session": True, "umask": 0o27},
        {"env": {"A": "1", "LC_ALL": "C.UTF-8"}, "cwd": "/"},
        {"env": {"LC_ALL": "POSIX"}, "stderr": subprocess.STDOUT},
    ],
)
def test_a_forked_process_has_what_an_ordinary_one_has(monkeypatch, tmp_path, options):
    began = []

    def start(*given):
        began.append(forked_commands._request(*given) is not None)
        return forked_commands._start(*given)

    with (tmp_path / "kept").open("w") as file:
        kept = file.fileno()
        # Without one of its own, a process also has what C libraries have put into this one's: LINES of readline.
        env = {key: value for key, value in os.environ.items() if not forked_commands._changes_start({key: value})}
        given = {"pass_fds": (kept,), "stdout": subprocess.PIPE, "env": env, **options}
        forked = looked(monkeypatch, start, "an argument", "", **given)
        ordinary = looked(monkeypatch, forked_commands._start_process, "an argument", "", **given)
    assert began == [True]
    (found, status), (expected, expected_status) = forked, ordinary
    assert [(name, found[name], expected[name]) for name in expected if found[name] != expected[name]] == []
    assert (status, expected_status) == (7, 7)
    assert (found["read"], found["parent"]) == ("read \xe9", os.getpid())
    assert found["descriptors"] == [0, 1, 2, kept]


def test_a_forked_process_is_killed_and_waited_for_as_any_child(monkeypatch):
    monkeypatch.setattr(subprocess, "_fork_exec", forked_commands._start)
    with subprocess.Popen([sys.executable, LOOKING], stdin=subprocess.PIPE) as process:
        assert process.poll() is None
        process.kill()
        assert process.wait() == -9
    assert not Path(f"/proc/{process.pid}").exists()


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_PRELOAD", "PYTHONUNBUFFERED"])
def test_what_is_read_before_a_program_begins_has_it_started_in_the_ordinary_way(monkeypatch, name):
    asked = []

    def start(*given):
        asked.append(forked_commands._request(*given))
        return forked_commands._start_process(*given)

    monkeypatch.setattr(subprocess, "_fork_exec", start)
    # Whether this process has it, too, or not.
    monkeypatch.setenv(name, "")
    env = {"PATH": os.environ["PATH"], name: ""}
    subprocess.run([forked_commands.COMMAND, "version"], env=env, check=True, stdout=subprocess.DEVNULL)
    assert asked == [None]
