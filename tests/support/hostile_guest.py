"""Hostile code inside a real container, and what the host has seen of it.

`GUEST` is source text for `run_python`: it takes over the channel's descriptors, sends whatever frames it likes, and
reads the answers. `Desk` is a payment desk to be robbed: tools that write down every call, a program that alone may
use some of them, and the bridge's own record of what was tried.
"""

from __future__ import annotations

import json
import textwrap
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from execution_fixtures import printed

from mcp_bridge.governance.governance import load_governance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from execution_fixtures import Sandboxes

    from mcp_bridge.downstream.configuration.spec import ServerSpec
    from mcp_bridge.host.bridge import Bridge
    from mcp_bridge.ledger.log.entries import Entry
    from mcp_bridge.ledger.storage.execution_store import StoredExecution

GUEST = """
import gc, hashlib, itertools, json, os, threading, time
from mcp_bridge.guest.channel import Channel
from mcp_bridge.wire import jsonrpc

CHANNEL = next(each for each in gc.get_objects() if isinstance(each, Channel))
WRITE, READ = next(
    (int(name), CHANNEL._read_fd) for name in os.listdir("/proc/self/fd")
    if int(name) >= 100 and os.path.exists(f"/proc/self/fdinfo/{name}")
    and int(open(f"/proc/self/fdinfo/{name}").read().split("flags:")[1].split()[0], 8) & 3 == os.O_WRONLY
)
FIRST = 1 << 40
numbers = itertools.count(FIRST)
answers, news, theirs = {}, threading.Condition(), CHANNEL._dispatch

def dispatch(message, loop):
    if getattr(message, "id", 0) < FIRST:
        return theirs(message, loop)
    with news:
        answers.setdefault(message.id, []).append(message)
        news.notify_all()

CHANNEL._dispatch = dispatch
# The answers to what is sent by hand are waited for outside of the event loop: it never reads.
CHANNEL._outside.add(FIRST)

def raw(data):
    with CHANNEL._write_lock:
        view = memoryview(data)
        while view: view = view[os.write(WRITE, view):]

def send(**frame):
    raw(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\\n")

def send_all(frames):
    raw(b"".join(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\\n" for frame in frames))

def ask(method, number=None, **params):
    number = next(numbers) if number is None else number
    send(id=number, method=method, params=params)
    return number

def answer(number):
    with news:
        while not answers.get(number): news.wait()
        return answers[number].pop(0)

def told(message):
    if isinstance(message, jsonrpc.ErrorResponse):
        return {"code": message.data.get("code"), "message": message.message}
    return message.result

def call(method, **params):
    return told(answer(ask(method, **params)))

def start(program, context=None, key=None):
    more = {} if key is None else {"idempotency_key": key}
    return call("program.start", program=program, context=context or {}, **more)

def effect(execution, number):
    return call("program.effect", execution=execution, effect=number)

def finish(execution, state="0" * 64):
    return call("program.finish", execution=execution, state=state)

class Twin:
    # The machine that an honest guest would have, for the digest that the host expects.

    def __init__(self, started):
        from mcp_bridge.kernel import state
        from mcp_bridge.kernel.machine import Machine
        from mcp_bridge.kernel.language.program_parser import unbundle
        self.state, self.execution = state, started["execution"]
        program = unbundle(started)
        if "state" in started: self.machine = state.restore(program, started["state"].encode())
        else: self.machine = Machine(program, started["context"])

    def take(self, number):
        from mcp_bridge.kernel.events import Outcome
        got = effect(self.execution, number)
        if "status" in got:
            self.machine.apply(
                Outcome(number, got["status"], got.get("value"), got.get("code", ""), got.get("message", ""))
            )
        return got

    def finish(self):
        return finish(self.execution, hashlib.sha256(self.state.dump(self.machine)).hexdigest())

def stay():
    while True: time.sleep(1)

def tell(value):
    print(json.dumps(value))
"""

TOOLS = """
import asyncio, json, pathlib
import mcp_bridge

TILL = pathlib.Path({till!r})

def note(name, value):
    with TILL.open("a") as file:
        file.write(json.dumps([name, value]) + chr(10))
    return f"{{name}} {{value}}"

@mcp_bridge.tool
def reserve(amount: int) -> str:
    return note("reserve", amount)

@mcp_bridge.tool
def capture(amount: int) -> str:
    return note("capture", amount)

@mcp_bridge.tool
def release(amount: int) -> str:
    return note("release", amount)

@mcp_bridge.tool
def delete(name: str) -> str:
    return note("delete", name)

@mcp_bridge.tool
def look(what: str) -> str:
    return note("look", what)

@mcp_bridge.tool
def fail(what: str) -> str:
    note("fail", what)
    raise ValueError(what)

@mcp_bridge.tool
async def hang(what: str) -> str:
    note("hang", what)
    await asyncio.sleep(3600)
    return what

@mcp_bridge.tool
def later(what: str):
    note("later", what)
    return mcp_bridge.PENDING
"""


def tool(name: str, number: str, /, **more: Any) -> dict[str, Any]:
    """A step that calls a tool of one argument."""
    parameter = {"delete": "name"}.get(name, "what")
    parameter = "amount" if name in {"reserve", "capture", "release"} else parameter
    args = {parameter: more.pop("value", "$amount" if parameter == "amount" else number)}
    return {"id": number, "type": "tool", "tool": name, "args": args, **more}


PIPELINE = {
    "name": "payment_pipeline",
    "steps": [
        tool("reserve", "reserve", compensate={"tool": "release", "args": {"amount": "$amount"}}),
        {"id": "small", "type": "condition", "condition": "$amount <= 500", "then": "capture", "otherwise": "refuse"},
        tool("look", "refuse", value="too much", is_terminal=True),
        tool("capture", "capture"),
    ],
}
"""The operator's: it alone may reserve and capture. Effect 1 reserves, effect 2 captures."""

POLICY = {
    "rules": [
        {"tools": ["local.reserve", "local.capture"], "effect": "program", "programs": ["payment_pipeline"]},
        {"tools": ["local.delete"], "effect": "approve", "reason": "deletions are final"},
    ]
}


@dataclass
class Desk:
    """A bridge with the desk's tools and program."""

    bridge: Bridge
    till: Path

    def did(self) -> list[list[Any]]:
        """Every call that reached a tool: `[name, argument]`."""
        return [json.loads(line) for line in self.till.read_text().splitlines()] if self.till.exists() else []

    async def attack(self, code: str, **options: Any) -> Any:
        """What the attack told, in a line of JSON."""
        return json.loads(printed(await self.bridge.run(GUEST + textwrap.dedent(code), **options)))

    async def entries(self, execution: str, *kinds: str) -> list[Entry]:
        """What is recorded of an execution."""
        rows = await self.bridge.programs.recorder.read(execution)
        return [row.entry for row in rows if not kinds or row.entry.kind in kinds]

    async def violations(self, execution: str) -> list[str]:
        """The violations that are recorded of an execution."""
        return [entry.payload["message"] for entry in await self.entries(execution, "violation")]

    async def stored(self, execution: str) -> StoredExecution:
        """An execution as it is kept."""
        found = await self.bridge.programs.store.execution(execution)
        assert found is not None
        return found

    async def latest(self) -> StoredExecution:
        """The execution that began last."""
        return (await self.bridge.programs.store.executions(None, 1))[0]

    async def still_pays(self) -> None:
        """The desk goes on working for an honest script."""
        before = len(self.did())
        code = "from mcp import programs\nprint((await programs.run('payment_pipeline', {'amount': 77})).status)"
        assert printed(await self.bridge.run(code)) == "success\n"
        assert self.did()[before:] == [["reserve", 77], ["capture", 77]]


@asynccontextmanager
async def open_desk(
    sandboxes: Sandboxes,
    folder: Path,
    *specs: ServerSpec,
    policy: Mapping[str, Any] | None = None,
    **changes: Any,
) -> AsyncIterator[Desk]:
    """A desk of its own, in a state directory of its own."""
    till = folder / "till"
    (folder / "tools").mkdir()
    (folder / "tools" / f"desk_{uuid.uuid4().hex}.py").write_text(TOOLS.format(till=str(till)))
    (folder / "programs").mkdir()
    (folder / "programs" / "payment_pipeline.json").write_text(json.dumps(PIPELINE))
    tables = {
        "tools": {"path": ["tools"], "entry_points": False},
        "programs": {"path": ["programs"]},
        "policy": POLICY if policy is None else policy,
    }
    governance = load_governance(tables, None, folder, folder / "state")
    async with sandboxes.open(*specs, governance=governance, state_dir=folder / "state", **changes) as bridge:
        yield Desk(bridge, till)
