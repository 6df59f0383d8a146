"""The command line over a folder of its own: tools, programs, a policy; no engine and no network."""

import contextlib
import fcntl
import functools
import json
import logging
import os
import pty
import subprocess
import sys
import termios
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import anyio
import pytest
import typer.testing
import yaml
from typer.testing import CliRunner

from mcp_bridge.cli.app import app
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.schema import FILE_NAME

# `CliRunner` has typer make all commands of the app at each call, which takes longer than what most of them do.
typer.testing._get_command = functools.cache(typer.testing._get_command)

COMMAND = str(Path(sys.executable).parent / "mcp-bridge")

DEADLINE_SECONDS = 100.0
"""For anything a test waits for; far above what any of it takes, on a slow machine too."""

TOOLS = '''
import os
import signal

import anyio

import mcp_bridge


@mcp_bridge.tool
def look(name: str) -> str:
    """Look at something."""
    return f"saw {name}"


@mcp_bridge.tool
def delete(name: str) -> str:
    return f"deleted {name}"


@mcp_bridge.tool
def undelete(name: str) -> str:
    print("undeleted", name)
    return f"undeleted {name}"


@mcp_bridge.tool
def order(name: str) -> str:
    return mcp_bridge.PENDING


@mcp_bridge.tool
def broken(name: str) -> str:
    raise ValueError("it broke")


@mcp_bridge.tool
def crash(name: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@mcp_bridge.tool
async def meet(name: str) -> str:
    open(name, "w").close()
    await anyio.sleep_forever()
'''

CONFIG = """
client_configs = false

[tools]
path = ["tools"]
entry_points = false

[programs]
path = ["programs"]
"""


def tool(name, step=None, **fields):
    """A step that calls a tool with the context's name."""
    return {"id": step or name, "type": "tool", "tool": name, "args": {"name": "$name"}, **fields}


CLEAN = {
    "name": "clean",
    "description": "Look, ask, delete.",
    "steps": [
        tool("look"),
        {"id": "ask", "type": "approval", "message": "Delete $name?", "details": {"seen": "$look"}},
        tool("delete"),
    ],
}


@dataclass
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def run_here(config, *arguments, stdin=b"", env=None):
    """The command in this process, to its end; without a configuration file if that is None."""
    named = [] if config is None else ["--config", str(config)]
    # What it would log goes to the runner's streams, which are closed after each command.
    with mock.patch.object(logging, "basicConfig"):
        ended = CliRunner().invoke(
            app, [*named, *map(str, arguments)], input=stdin, env={"COLUMNS": "1000", **(env or {})}
        )
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert "Traceback" not in ended.stderr
    return Ended(ended.exit_code, ended.stdout, ended.stderr)


def run_in_thread(config, *arguments, env=None):
    """The same in a thread of its own, where a loop runs in this one. Not for commands that handle signals."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run_here, config, *arguments, env=env).result(DEADLINE_SECONDS)


@dataclass
class Desk:
    """An operator's folder.

    `run` works in the test's process, `start` in one of its own.
    """

    folder: Path
    env: dict = field(default_factory=dict)

    @property
    def config(self):
        return self.folder / "mcp-bridge.toml"

    @property
    def state(self):
        return self.folder / "state"

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, (dict, list)):
            content = yaml.safe_dump(content) if path.suffix in {".yaml", ".yml"} else json.dumps(content)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def configure(self, more=""):
        """Write the configuration; `more` goes after its tables."""
        self.write("mcp-bridge.toml", f'state_dir = "{self.state}"\n{CONFIG}\n{more}')

    def run(self, *arguments, stdin=b"", code=0, config=True):
        ended = run_here(self.config if config else None, *arguments, stdin=stdin)
        assert ended.code == code, ended
        return ended

    def says(self, *arguments, code, words=(), **options):
        """It ends so, and says these words on standard error."""
        ended = self.run(*arguments, code=code, **options)
        for word in words:
            assert word in ended.err, ended.err
        return ended

    def process(self, *arguments, **options):
        """The command in a process of its own, started."""
        return subprocess.Popen(
            [COMMAND, "--config", str(self.config), *map(str, arguments)],
            env=self.env,
            cwd=self.folder,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )

    def start(self, *arguments, code=0, stdin=b""):
        """The command in a process of its own, to its end."""
        process = self.process(*arguments, stdin=subprocess.PIPE)
        out, err = process.communicate(stdin, timeout=DEADLINE_SECONDS)
        assert process.returncode == code, (process.returncode, out, err)
        assert b"Traceback" not in err
        return Ended(process.returncode, out.decode(), err.decode())

    def at_a_terminal(self, *arguments, typed):
        """The command as a person starts it, who types a line at each question: its exit status, and what was shown."""
        here, there = pty.openpty()
        terminal = {"stdin": there, "stdout": there, "stderr": there, "start_new_session": True}
        process = self.process(*arguments, **terminal, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(there)
        shown, left = b"", list(typed)
        # The other end hangs up.
        with contextlib.suppress(OSError), closing(os.fdopen(here, "r+b", buffering=0)) as terminal_end:
            while piece := terminal_end.read(4096):
                shown += piece
                if left and shown.endswith((b": ", b"] ")):
                    terminal_end.write(left.pop(0).encode(errors="surrogateescape") + b"\n")
        return process.wait(DEADLINE_SECONDS), shown.decode(errors="replace")

    def in_record(self, work):
        """What some work with the open record gives."""

        async def opened():
            async with Database(self.state / FILE_NAME) as database:
                return await work(database)

        return anyio.run(opened)

    def entries(self, execution):
        """What is recorded of an execution."""
        return [row.entry for row in self.in_record(lambda database: SqliteRecorder(database).read(execution))]

    def suspended(self, program="clean", name="a", **context):
        """Run a program that suspends; its execution's id."""
        values = json.dumps({"name": name, **context})
        return self.run("program", "run", program, "--context", values, "--json", code=5).json["trace_id"]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """An operator's folder with some tools, and the program `clean`, which asks before it deletes."""
    for name in list(os.environ):
        if name.startswith("MCP_BRIDGE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "USER", "LOGNAME", "PYTHONPATH") if name in os.environ}
    desk = Desk(tmp_path, kept | {"HOME": str(tmp_path)})
    # Modules are the process's: each test has its own.
    desk.write(f"tools/desk_{uuid.uuid4().hex}.py", TOOLS)
    desk.write("programs/clean.yaml", CLEAN)
    desk.configure()
    return desk
