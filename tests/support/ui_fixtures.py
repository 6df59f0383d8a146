"""A store with executions of every kind, most of them hostile to whoever looks at them; and the viewer in front of it."""

import contextlib
import dataclasses
import logging.handlers
import os
import re
import secrets
import shutil
import subprocess
import sys
import textwrap
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from cli_fixtures import run_in_thread

from mcp_bridge.cli.listen_addresses import listening
from mcp_bridge.executions.sessions.cell import Cell
from mcp_bridge.governance.governance import load_governance
from mcp_bridge.governance.principals import LOCAL_PRINCIPAL
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.ledger.erasure.execution_erasure import erase
from mcp_bridge.ledger.log.entries import Entry
from mcp_bridge.ledger.log.recorder import SqliteRecorder
from mcp_bridge.ledger.log.session_store import SessionStore
from mcp_bridge.ledger.storage.database import Database
from mcp_bridge.ledger.storage.execution_store import ProgramStore, StoredExecution
from mcp_bridge.ledger.storage.schema import FILE_NAME
from mcp_bridge.private_files import state_directory
from mcp_bridge.sandbox.ownership import owner_label
from mcp_bridge.server.ui.app import Address, build, serve
from mcp_bridge.server.ui.change_notifications import Live
from mcp_bridge.settings import Settings

COMMAND = str(Path(sys.executable).parent / "mcp-bridge")

EVIL = "<img src=x onerror=\"document.title='owned';alert(1)\"><script>document.title='owned';alert(2)</script>"
TURNED = "\u202egnp.exe\u2066"
"""Text that is shown in another order than it has."""

TOOLS = """
import mcp_bridge

@mcp_bridge.tool
def look(name: str) -> dict:
    return {"saw": name}

@mcp_bridge.tool
def delete(name: str) -> str:
    return f"deleted {name}"

@mcp_bridge.tool
def forbidden(name: str) -> str:
    return name

@mcp_bridge.tool
def broken(name: str) -> str:
    raise ValueError(f"it broke: {name}")
"""

RULES = {"rules": [{"tools": ["local.forbidden"], "effect": "deny", "reason": "never"}]}


def tool(name, step=None, **fields):
    return {"id": step or name, "type": "tool", "tool": name, "args": {"name": "$name"}, **fields}


ASKS = {
    "name": f"clean {EVIL}",
    "steps": [
        tool("look"),
        {"id": "ask", "type": "approval", "message": f"Delete $name? {EVIL}{TURNED}\nWhy: harmless", "details": {"seen": "$look"}},
        tool("delete"),
    ],
}  # fmt: skip

WORKS = {
    "name": "refund",
    "steps": [
        tool("look", output_key="seen"),
        {"id": "check", "type": "condition", "condition": "$name == 'b'", "then": "fan", "otherwise": "refuse"},
        {"id": "refuse", "type": "tool", "tool": "delete", "args": {"name": "none"}, "is_terminal": True},
        {"id": "fan", "type": "parallel", "parallel_steps": [tool("look", "left"), tool("forbidden", on_error="skip")], "next_step": "each"},
        {"id": "each", "type": "map", "over": ["x", "y"], "as": "row", "step": {"type": "tool", "tool": "look", "args": {"name": "$row"}}},
        {"id": "inner", "type": "program", "context": {"name": "$name"}, "program": {"name": "twice", "steps": [tool("look", "one"), tool("look", "two")]}},
        tool("delete"),
    ],
}  # fmt: skip

FAILS = {"name": "fails", "steps": [tool("look"), tool("broken")]}


@dataclass
class Store:
    """A state directory, and the ids of what is in it."""

    state: Path
    asks: str
    works: str
    fails: str
    script: str
    running: str
    erased: str
    others: str

    @property
    def file(self):
        return self.state / FILE_NAME

    def config(self):
        path = self.state.parent / f"{self.state.name}.toml"
        path.write_text(f'state_dir = "{self.state}"\nclient_configs = false\n')
        return path

    @contextlib.asynccontextmanager
    async def open(self):
        async with Database(self.file) as database:
            yield database

    def do(self, work):
        """Something with the store, from outside of the viewer's process."""

        async def opened():
            async with self.open() as database:
                return await work(database)

        # In a thread of its own: in a browser's test this one has a loop already.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(anyio.run, opened).result()


def script(ident, code, status="success", record=None, principal=LOCAL_PRINCIPAL.name):
    return StoredExecution(
        id=ident,
        kind="script",
        principal=principal,
        key=None,
        request="",
        status=status,
        program="0" * 64,
        bundle={"code": code, "servers": None, "timeout": None},
        origin="agent",
        owner=owner_label(),
        state=None,
        record=record,
        due=None,
        started=time.time(),
    )


async def add_session(database, name, cells, after="", number=1, principal=LOCAL_PRINCIPAL.name):
    """A session of this many cells, the first of which comes after an execution and has this number; their ids."""
    store, heads, ids = ProgramStore(database), SessionStore(database), []
    for place in range(number, number + cells):
        ident = uuid.uuid4().hex
        cell = Cell(name, place, ids[-1] if ids else after, "0" * 64)
        row = script(ident, f"x = {place}", record={"value": f"value {place}"}, principal=principal)
        # What a cell that can run again has.
        row = dataclasses.replace(row, request="1", bundle=row.bundle | {"cell": cell.to_bundle()})
        await store.add(row, {}, Entry("start", ident, {"code": f"x = {place}", **cell.ref(name).encode()}))
        assert await heads.begin_move(principal, name, ids[-1] if ids else "", ident)()
        ids.append(ident)
    return ids


async def add_dry_run(database, session):
    """A script that was run dry, perhaps as the first cell of a session; its id."""
    ident = uuid.uuid4().hex
    row, started = script(ident, "1", record={"value": "1", "dry_run": True}), {"code": "1", "dry_run": True}
    if session is not None:
        cell = Cell(session, 1, "", "0" * 64)
        row = dataclasses.replace(row, request="1", bundle=row.bundle | {"cell": cell.to_bundle()})
        started |= cell.ref(session).encode()
    await ProgramStore(database).add(row, {}, Entry("start", ident, started))
    return ident


CODE = f"# {EVIL}\nfrom mcp.servers import local\nprint(await local.look(name='</script>{EVIL}'))\n"


async def _scripts(database):
    """A script that has ended, one under way, one that is erased, and one of somebody else; their ids."""
    store, recorder = ProgramStore(database), SqliteRecorder(database)
    ids = {name: uuid.uuid4().hex for name in ("script", "running", "erased", "others")}
    record = {"execution": ids["script"], "status": "success", "stdout": f"{EVIL}\n", "stderr": "", "value": repr(EVIL)}
    for name, ident in ids.items():
        status = "running" if name == "running" else "success"
        whose = "somebody else" if name == "others" else LOCAL_PRINCIPAL.name
        code = CODE if name == "script" else f"'{name}'"
        row = script(ident, f"{code}# a secret that the record doesn't show", status, record, whose)
        if name == "running":
            row = dataclasses.replace(row, key="nightly")
        await store.add(row, {}, Entry("start", ident, {"code": code}))
        await recorder.append(
            Entry("intent", ident, {"kind": "tool", "tool": f"local.{EVIL}", "arguments": {EVIL: EVIL}})
        )
        if name == "running":
            continue
        done = {"tool": f"local.{EVIL}", "status": "ok"}
        await recorder.append(
            Entry("outcome", ident, done),
            Entry("denial", ident, {"tool": "local.forbidden", "by": f"rule {EVIL}"}),
            Entry("violation", ident, {"message": f"effect 7 {EVIL}"}),
            Entry("end", ident, {"status": "success"}),
        )
    await store.ask(ids["others"], 1, {"message": "Not yours"})
    await erase(database, "execution", ids["erased"], by="a test", reason=None, under_way=lambda *_: False)
    return ids


async def make_store(folder):
    """Executions of every kind, in a new state directory."""
    (folder / "tools").mkdir(parents=True)
    (folder / "tools" / f"ui_{uuid.uuid4().hex}.py").write_text(textwrap.dedent(TOOLS))
    state = folder / "state"
    tables = {"tools": {"path": ["tools"], "entry_points": False}, "policy": RULES}
    governance = load_governance(tables, None, folder, state)
    async with open_bridge(Settings(state_dir=state, client_configs=False), (), governance) as bridge:
        fails = await bridge.run_program(FAILS, {"name": EVIL})
        works = await bridge.run_program(WORKS, {"name": "b"}, "order 7")
        asks = await bridge.run_program(ASKS, {"name": EVIL})
    assert [record["status"] for record in (fails, works, asks)] == ["failed", "success", "suspended"]
    async with Database(state / FILE_NAME) as database:
        scripts = await _scripts(database)
    return Store(state, asks["trace_id"], works["trace_id"], fails["trace_id"], **scripts)


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """The same store again and again, each time another copy."""
    made = anyio.run(make_store, tmp_path_factory.mktemp("viewed"))

    def copy():
        folder = tmp_path_factory.mktemp("copy") / "state"
        shutil.copytree(made.state, folder, symlinks=True)
        return dataclasses.replace(made, state=folder)

    return copy


@dataclass
class Viewer:
    """`mcp-bridge ui`, or a bridge with a viewer, running."""

    process: subprocess.Popen | None
    """None in the test's own process."""
    url: str

    @property
    def base(self):
        return self.url.partition("#")[0].rstrip("/")

    @property
    def token(self):
        return self.url.partition("#token=")[2]


@contextlib.contextmanager
def viewing(store, *options, browser=None, stderr=subprocess.PIPE):
    """The viewer of a store, in a process of its own.

    Args:
        store: It.
        options: More of the command's.
        browser: A program to be started as the user's browser.
        stderr: As `subprocess.Popen` has it.
    """
    how = {"DISPLAY": ":0", "BROWSER": f"{browser} %s"} if browser else {}
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    command = [COMMAND, "--config", str(store.config()), "ui", *([] if browser else ["--no-browser"]), *options]
    environment |= how | {"HOME": str(store.state.parent)}
    with started(command, environment, stderr) as (process, url):
        yield Viewer(process, url)


@contextlib.contextmanager
def viewing_here(store):
    """The viewer of a store, served by this process: for what its pages show."""

    @contextlib.asynccontextmanager
    async def served():
        state_directory(store.state, durable=True)
        with listening("127.0.0.1", 0) as listener:
            token = secrets.token_urlsafe(32)
            async with Database(store.file, owner=owner_label()) as database, anyio.create_task_group() as tasks:
                live = Live(database)
                tasks.start_soon(serve, build(live, token, LOCAL_PRINCIPAL.name), live, listener)
                yield Viewer(None, Address("127.0.0.1", listener.getsockname()[1]).url(token))
                tasks.cancel_scope.cancel()

    faults = logging.handlers.BufferingHandler(1000)
    faults.setLevel(logging.ERROR)
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(faults)
    try:
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(served()) as viewer:
            yield viewer
    finally:
        logger.removeHandler(faults)
    assert not faults.buffer, [record.getMessage() for record in faults.buffer]


@contextlib.contextmanager
def serving_viewer(store, principals):
    """The viewer of a bridge over HTTP for these principals, of `[principals]`; yields it, and a token of each."""
    config = store.config()
    tables = "".join(f"[principals.{name}]\n{rights}\n" for name, rights in principals.items())
    config.write_text(f"{config.read_text()}pool_max = 0\n[http]\nviewer = true\n{tables}")
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    environment["HOME"] = str(store.state.parent)
    command = [COMMAND, "--config", str(config)]

    def token(name):
        added = run_in_thread(config, "principal", "add", name)
        assert added.code == 0, added
        return added.out.strip()

    tokens = {name: token(name) for name in principals}
    serve = [*command, "serve", "--transport", "http", "--port", "0"]
    with started(serve, environment, subprocess.DEVNULL) as (process, url):
        yield Viewer(process, url), tokens


@contextlib.contextmanager
def started(command, environment, stderr):
    """A process that has a viewer; yields it, and the viewer's address."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
    )
    try:
        line = process.stdout.readline()
        if line.startswith("MCP over HTTP: "):
            line = process.stdout.readline()
        found = re.fullmatch(r"The trace viewer: (http://\S+)\n", line)
        assert found, line + (process.communicate(timeout=30)[1] or "")
        yield process, found[1]
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert "Traceback" not in (errors or ""), errors
