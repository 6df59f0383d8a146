"""The bridge as its users have it: a process with a configuration file of its own.

The probe's findings and the image are shared by a whole run of the tests; everything else, the home directory
included, is the one test's.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import anyio
import anyio.to_thread
import pytest
from cli_fixtures import run_here, run_in_thread
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from sandbox_fixtures import RUNTIME, knows_the_sandbox

from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.sandbox.engine import OWNER_LABEL
from mcp_bridge.sandbox.open_driver import open_engine
from mcp_bridge.sandbox.ownership import Owner

COMMAND = str(Path(sys.executable).parent / "mcp-bridge")

DEADLINE_SECONDS = 60.0
"""For anything a test waits for; far above what any of it takes, on a slow machine too."""

MAX_LINE_BYTES = 64 << 20


def toml(settings, servers):
    """A configuration file's text. JSON's strings, numbers, truth values and arrays are TOML's too."""
    plain = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in plain.items()]
    for name, table in settings.items():
        if isinstance(table, dict):
            plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
            lines += [f"\n[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in plain.items())]
            for inner in table.keys() - plain.keys():
                lines += [f"\n[{name}.{inner}]", *(f"{key} = {json.dumps(v)}" for key, v in table[inner].items())]
    for spec in servers:
        lines.append(f"\n[servers.{json.dumps(spec.name)}]")
        table = {"type": spec.type, "command": spec.command, "args": list(spec.args), "cwd": spec.cwd}
        table |= {"url": spec.url, "enabled": spec.enabled, "call_timeout": spec.call_timeout}
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items() if value not in (None, "", [])]
        for name in ("env", "headers"):
            if values := getattr(spec, name):
                lines.append(f"[servers.{json.dumps(spec.name)}.{name}]")
                lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


async def until(condition, seconds=DEADLINE_SECONDS, every=0.05):
    """Wait until a condition holds; the test fails when it doesn't in time."""
    with anyio.move_on_after(seconds):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await anyio.sleep(every)
    return pytest.fail(f"this did not become true in {seconds} s: {condition.__name__}")


def is_gone(pid):
    """Whether a process has ended; a zombie has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in {"Z", "X"}


def children(pid):
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
    return [int(child) for child in found.split()]


def descendants(pid):
    direct = children(pid)
    return direct + [one for child in direct for one in descendants(child)]


@dataclass
class Wire:
    """A running bridge, spoken to in bytes: for what a well-behaved client never does."""

    process: asyncio.subprocess.Process
    lines: list[bytes] = field(default_factory=list)
    notifications: list[dict] = field(default_factory=list)
    answers: dict = field(default_factory=dict)
    ids: itertools.count = field(default_factory=itertools.count)

    @property
    def pid(self):
        return self.process.pid

    async def send(self, message):
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.process.stdin.write(data + b"\n")
        await self.process.stdin.drain()

    async def ask(self, method, params=None):
        """Send a request; its id."""
        number = next(self.ids)
        await self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}})
        return number

    async def call(self, code, *, token=None, **arguments):
        """Send a call of run_python; its id."""
        params = {"name": "run_python", "arguments": {"code": code, **arguments}}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        return await self.ask("tools/call", params)

    async def read(self):
        """The next message, whatever it is; None at the end."""
        with anyio.fail_after(DEADLINE_SECONDS):
            line = await self.process.stdout.readline()
        if not line:
            return None
        self.lines.append(line)
        message = json.loads(line)
        if "id" in message:
            self.answers[message["id"]] = message
        else:
            self.notifications.append(message)
        return message

    async def answer(self, number):
        while number not in self.answers:
            assert await self.read() is not None, f"the bridge ended without an answer: {await self.errors()}"
        return self.answers.pop(number)

    async def notification(self, method):
        """The next notification of that method."""
        while True:
            message = await self.read()
            assert message is not None, "the bridge ended"
            if message.get("method") == method:
                return message["params"]

    async def started(self, code, **arguments):
        """Call run_python and wait until its script runs; the request's id."""
        number = await self.call(f"progress(0, 1, 'running')\n{code}", token=1, **arguments)
        while (await self.notification("notifications/progress")).get("message") != "running":
            pass
        return number

    async def errors(self):
        return (await self.process.stderr.read()).decode()

    async def ended(self, seconds):
        """The exit status."""
        with anyio.fail_after(seconds):
            # Read to the end: a process whose pipe is full can't leave.
            while await self.read() is not None:
                pass
            return await self.process.wait()

    async def initialize(self):
        parameters = {"protocolVersion": "2025-11-25", "capabilities": {}}
        parameters["clientInfo"] = {"name": "a-test", "version": "1"}
        answer = await self.answer(await self.ask("initialize", parameters))
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]


SWEPT = re.compile(rb"^mcp-bridge: WARNING: removed the container [0-9a-f]+ of a bridge that is gone\n", re.MULTILINE)


@dataclass
class Setup:
    """A configuration and its surroundings."""

    config: Path
    state_dir: Path
    home: Path
    env: dict
    engine: object
    transport: str = "stdio"
    """How `client` reaches the bridge: over `stdio`, or `http`."""

    def run(self, *arguments, stdin=b"", config=True, env=None, cwd=None, timeout=DEADLINE_SECONDS):
        """Run the command to its end."""
        named = ["--config", str(self.config)] if config else []
        ended = subprocess.run(
            [COMMAND, *named, *arguments],
            input=stdin,
            capture_output=True,
            env=self.env | (env or {}),
            cwd=cwd or self.home,
            timeout=timeout,
            check=False,
        )
        # Another test's bridge may have been killed a moment ago: whoever comes next removes what it has left.
        ended.stderr = SWEPT.sub(b"", ended.stderr)
        return ended

    def invoke(self, *arguments, stdin=b"", config=True, env=None):
        """As `run`, in this process: for what ends before a bridge would be opened."""
        environment = mock.patch.dict(os.environ, self.env | (env or {}), clear=True)
        with environment, contextlib.chdir(self.home):
            ended = run_here(self.config if config else None, *arguments, stdin=stdin)
        return subprocess.CompletedProcess(arguments, ended.code, ended.out.encode(), ended.err.encode())

    def command(self, *arguments, code=0):
        """Run the command in this process, which takes a small part of what a new one takes.

        Not for commands that handle signals: what opens a bridge or serves.
        """
        ended = run_in_thread(self.config, *arguments, env={"HOME": str(self.home)})
        assert ended.code == code, ended
        return ended

    async def told(self, *arguments):
        """What the command prints as JSON."""
        return (await anyio.to_thread.run_sync(functools.partial(self.command, *arguments, "--json"))).json

    def begin_ledger(self):
        """Make the ledger, with its keys, as one process did that has run something."""

        async def begin():
            async with Database(self.state_dir / FILE_NAME) as database:
                await SqliteRecorder(database).append(Entry("start", uuid.uuid4().hex, {"code": "1"}))

        with ThreadPoolExecutor(1) as thread:
            thread.submit(anyio.run, begin).result(DEADLINE_SECONDS)

    def parameters(self, **env):
        return StdioServerParameters(
            command=COMMAND, args=["--config", str(self.config)], env=self.env | env, cwd=self.home
        )

    @contextlib.asynccontextmanager
    async def client(self, mode="legacy", *, log=None, env=None, **options):
        """The SDK's own client, connected."""
        if self.transport == "http":
            from http_bridge import serving

            async with serving(self, env=env, log=log) as bridge, bridge.client(mode, **options) as client:
                yield client
            return
        target = self.parameters(**(env or {}))
        if log is not None:
            target = stdio_client(target, errlog=log)
        async with Client(target, mode=mode, read_timeout_seconds=DEADLINE_SECONDS, **options) as client:
            yield client

    def over(self, transport):
        """The same, reached over `stdio` or `http`."""
        return replace(self, transport=transport)

    def server_pid(self):
        """The process that serves this configuration."""
        listed = subprocess.run(["pgrep", "-f", str(self.config)], capture_output=True, text=True, check=True)
        pids = [int(pid) for pid in listed.stdout.split()]
        assert len(pids) == 1
        return pids[0]

    @contextlib.asynccontextmanager
    async def wire(self, *arguments, env=None):
        """A bridge that is spoken to in bytes. Whatever the test does to it, nothing of it is left."""
        process = await asyncio.create_subprocess_exec(
            COMMAND,
            "--config",
            str(self.config),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.env | (env or {}),
            cwd=self.home,
            limit=MAX_LINE_BYTES,
        )
        wire = Wire(process)
        try:
            yield wire
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.stdin.close()
            await process.communicate()

    @property
    def own_engine(self):
        """The bridge's driver: without an engine, it knows the containers of one state directory."""
        return open_engine(self.engine.choice, self.state_dir)

    async def containers(self, pid):
        """The containers that the bridge with this process id has started, ended ones included."""
        found = await self.own_engine.list(OWNER_LABEL)
        owners = [(row, Owner.parse(row.labels.get(OWNER_LABEL, ""))) for row in found]
        return [row for row, owner in owners if owner is not None and owner.pid == pid]

    async def no_container_of(self, pid, seconds=DEADLINE_SECONDS):
        async def none_left():
            return not await self.containers(pid)

        await until(none_left, seconds)


def state_directory(folder, sandbox_state_dir):
    """A state directory that knows what the probe found, and nothing of other tests."""
    return knows_the_sandbox(folder / "bridge-state", sandbox_state_dir)


def setups(folder, engine, state_dir, transport="stdio"):
    """Makes a `Setup` in a folder: `setups(…)(SERVER…, setting=value…)`."""
    home = folder / "home"
    home.mkdir()
    env = {name: os.environ[name] for name in ("PATH", "USER", "LOGNAME", "XDG_RUNTIME_DIR") if name in os.environ}
    # Podman keeps a user's images there: HOME alone must not move them.
    env |= {
        "HOME": str(home),
        "XDG_DATA_HOME": os.environ.get("XDG_DATA_HOME", str(Path.home() / ".local/share")),
        "XDG_CONFIG_HOME": os.environ.get("XDG_CONFIG_HOME", str(Path.home() / ".config")),
    }
    env |= {name: value for name, value in os.environ.items() if name.startswith(("DOCKER_", "CONTAINER"))}

    def make(*servers, **settings):
        file = folder / "mcp-bridge.toml"
        # Without containers that are started ahead: tests count what their own calls start.
        base = {"state_dir": str(state_dir), "client_configs": False, "runtime": RUNTIME, "pool_max": 0}
        file.write_text(toml(base | settings, servers))
        return Setup(file, state_dir, home, env, engine, transport)

    return make


@pytest.fixture
def bridge_state_dir(tmp_path, probed, image, sandbox_state_dir):
    """One test's."""
    return state_directory(tmp_path, sandbox_state_dir)


@pytest.fixture(scope="module")
def configure_for_module(tmp_path_factory, engine, image, sandbox_state_dir):
    """Makes a `Setup` for the tests of a module, each in a folder of its own: `configure_for_module(SERVER…, setting=value…)`."""

    def make(*servers, **settings):
        folder = tmp_path_factory.mktemp("bridge")
        return setups(folder, engine, state_directory(folder, sandbox_state_dir))(*servers, **settings)

    return make


OVER_BOTH = pytest.mark.parametrize("transport", ["stdio", "http"], indirect=True)
"""For tests whose clients see the same over stdio and over HTTP."""


@pytest.fixture
def transport(request):
    """How clients reach the bridge of the test."""
    return getattr(request, "param", "stdio")


@pytest.fixture
def configure(tmp_path, engine, bridge_state_dir, transport):
    """Makes the one test's `Setup`: `configure(SERVER…, setting=value…)`."""
    return setups(tmp_path, engine, bridge_state_dir, transport)


@pytest.fixture
def setup(configure):
    """A bridge without servers."""
    return configure()
