"""The kinds of traffic of a soak, each with how it may end.

Most are for the bridge on standard input and output; some for one that serves two principals over HTTP, and some for
bridges that are started beside both.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from benchmarks.bridge import COMMAND
from benchmarks.start import Server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from benchmarks.bridge import Bench

READ_SECONDS = 240.0
"""For an answer of the bridge."""

IDLE_SECONDS = 3
"""After which a session's sandbox is put away."""

ERAS = ("legacy", "2026-07-28")

SCRIPT = """
import asyncio
from mcp.servers import good, local
echoed = await asyncio.gather(*(good.echo(text="t" * {size}) for _ in range(8)))
for number in range(8):
    await local.audit(step=f"s{{number}}")
print(sum(map(len, echoed)))
"""

JAVASCRIPT = """
import { good } from "mcp/servers";
const echoed = await Promise.all([..."12345678"].map((digit) => good.echo({ text: digit.repeat(1000) })));
console.log(echoed.join("").length);
"""

PROGRAM = """
from mcp import programs
steps = [{"id": f"s{n}", "type": "tool", "tool": "audit", "args": {"step": f"s{n}"}} for n in range(10)]
print((await programs.run({"name": "soaked", "steps": steps})).status)
"""

ENDLESS = "while True: pass"
ASLEEP = "import time\ntime.sleep(60)"
ASLEEP_BRIEFLY = "import time\ntime.sleep(1)"
"""What goes on without its client, in the era of sessions, until it is over."""

CRASH = "import os\nos.kill(os.getpid(), 9)"
FAULT = "def deep(n): return deep(n + 1)\ndeep(0)"

CELL = """
from mcp.servers import good
seen = globals().get("seen", []) + [await good.echo(text="t" * 1000)]
print(len(seen))
"""

NAMED = "open('/proc/self/comm', 'w').write({name!r})"
"""A cell that names its process, so that it is found from outside the sandbox."""

DRY = """
from mcp.servers import good, local
for number in range(8):
    await good.echo(text="t")
    await local.audit(step=f"s{number}")
"""

KEEPING = """
from pathlib import Path
Path("/workspace/data").write_bytes(b"x" * 300_000)
print(artifact("/workspace/data"))
"""
KEPT_BYTES = 300_000

WAITING = """
print(await runtime.wait_event({name!r}))
"""

NO_ANSWER = "no answer"

EXPECTED = {
    "run": {"success"},
    "large run": {"success"},
    "JavaScript": {"success"},
    "program": {"success"},
    "dry run": {"suspended"},
    "time-out": {"timeout"},
    "cancellation": {"cancelled"},
    "crash": {"killed"},
    "fault": {"error"},
    "session": {"success"},
    "session that expires": {"success"},
    "session whose sandbox is killed": {"success"},
    "wait for an event": {"success"},
    "artifact read as a resource": {"success"},
    "run over HTTP": {"success"},
    "session over HTTP": {"success"},
    "cancellation over HTTP": {"cancelled"},
    "client over HTTP that vanishes": {"vanished"},
    "client that vanishes": {"success"},
    "kill -9 and restart": {"success"},
}
"""How each kind may end."""


@dataclass
class Traffic:
    """What the kinds of traffic need.

    Attributes:
        bench: Where.
        environment: Of a bridge.
        bridge: A client of the bridge on standard input and output.
        url: The address of the one over HTTP.
        tokens: One of each of its principals.
    """

    bench: Bench
    environment: Mapping[str, str]
    bridge: Client
    url: str
    tokens: Sequence[str]
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def kinds(self) -> dict[str, Callable[[], Awaitable[str]]]:
        """What each kind does; it returns how that has ended."""
        bridge = self.bridge
        return {
            "run": lambda: run(bridge, SCRIPT.format(size=1000)),
            "large run": lambda: run(bridge, SCRIPT.format(size=200_000)),
            "JavaScript": lambda: run(bridge, JAVASCRIPT, tool="run_javascript"),
            "program": lambda: run(bridge, PROGRAM),
            "dry run": lambda: run(bridge, DRY, dry_run=True),
            "time-out": lambda: run(bridge, ENDLESS, 0.5),
            "cancellation": lambda: _cancelled(lambda: run(bridge, ASLEEP)),
            "crash": lambda: run(bridge, CRASH),
            "fault": lambda: run(bridge, FAULT),
            "session": lambda: self._session(bridge),
            "session that expires": self._expiring_session,
            "session whose sandbox is killed": self._killed_session,
            "wait for an event": self._waiting,
            "artifact read as a resource": lambda: self._artifact(bridge),
            "run over HTTP": lambda: self._over_http(lambda client: run(client, SCRIPT.format(size=1000))),
            "session over HTTP": lambda: self._over_http(self._session),
            "cancellation over HTTP": self._cancelled_over_http,
            "client over HTTP that vanishes": self._vanishing_over_http,
            "client that vanishes": lambda: self._second(kill=False),
            "kill -9 and restart": lambda: self._second(kill=True),
        }

    def _name(self, what: str) -> str:
        return f"{what}-{next(self._numbers)}"

    # Sessions.

    async def _session(self, client: Client) -> str:
        """Cells, a fork that goes on from the first, another cell of each, and the end of both."""
        name, fork = self._name("cells"), self._name("fork")
        cells = [{"session": name}, {"session": name}, {"session": fork, "fork": f"{name}@1"}, {"session": name}]
        return await self._cells(client, [(CELL, cell) for cell in cells], ["1", "2", "2", "3"])

    async def _expiring_session(self) -> str:
        """A session whose sandbox is put away, and whose next cell rebuilds it."""
        name = self._name("expiring")
        first = await self._cells(self.bridge, [(CELL, {"session": name})], ["1"], end=False)
        if first != "success":
            return first
        return await self._rebuilt(name)

    async def _killed_session(self) -> str:
        """A session whose interpreter is killed from outside while it is idle; its next cell rebuilds it."""
        name = self._name("killed")
        # What the kernel keeps of a process's name is 15 characters.
        mark = f"soak{os.getpid() % 10000}-{next(self._numbers)}"[:15]
        cells = [(CELL, {"session": name}), (NAMED.format(name=mark), {"session": name})]
        first = await self._cells(self.bridge, cells, ["1", None], end=False)
        if first != "success":
            return first
        found = _named(mark)
        if not found:
            return "its process isn't found"
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return await self._rebuilt(name)

    async def _rebuilt(self, name: str) -> str:
        """Wait until a session has no sandbox, run its second `CELL`, and end it."""
        with anyio.move_on_after(READ_SECONDS):
            while await self._state(name) != "idle":  # noqa: ASYNC110  (the host tells nobody)
                await anyio.sleep(0.2)
        return await self._cells(self.bridge, [(CELL, {"session": name})], ["2"], rebuilt=True)

    async def _state(self, name: str) -> str:
        read = await self.bridge.read_resource("sessions://all")
        listed = json.loads(getattr(read.contents[0], "text", "{}"))
        return next((each["state"] for each in listed["sessions"] if each["name"] == name), "absent")

    async def _cells(
        self,
        client: Client,
        cells: Sequence[tuple[str, dict[str, Any]]],
        printed: Sequence[str | None],
        *,
        end: bool = True,
        rebuilt: bool = False,
    ) -> str:
        """Run cells, and end their sessions. What isn't printed as it should be is how it ended."""
        try:
            for (code, where), wanted in zip(cells, printed, strict=True):
                record = await asked(client, code, **where)
                if status(record) != "success":
                    return status(record)
                if wanted is not None and str(record.get("stdout")).strip() != wanted:
                    return f"a cell printed {record.get('stdout')!r} instead of {wanted}"
                if rebuilt and not (record.get("session") or {}).get("rebuilt"):
                    return "it wasn't rebuilt"
        finally:
            if end:
                names = sorted({where["session"] for _, where in cells})
                ended = await run(client, f"for name in {names!r}: await runtime.end_session(name)")
        return ended if end else "success"

    # Waits, and what is kept.

    async def _waiting(self) -> str:
        """A script that is suspended until an event comes, sent by a command; then its result, by its key."""
        name = self._name("event")
        code = WAITING.format(name=name)
        first = await run(self.bridge, code, idempotency_key=name)
        if first != "suspended":
            return f"{first} instead of suspended"
        command = [COMMAND, "event", "send", name, "--payload", "42"]
        await anyio.run_process(command, env=dict(self.environment), cwd=self.bench.work)
        record: dict[str, Any] = {}
        with anyio.move_on_after(READ_SECONDS):
            while status(record) in {"no record", "suspended", "refused: execution_running"}:
                await anyio.sleep(0.2)
                record = await asked(self.bridge, code, idempotency_key=name)
        return status(record)

    async def _artifact(self, client: Client) -> str:
        """A file that a script has kept, read by the client."""
        record = await asked(client, KEEPING)
        if status(record) != "success":
            return status(record)
        read = await client.read_resource(f"artifact://{record['execution']}/data")
        size = sum(len(getattr(content, "text", "")) or len(getattr(content, "blob", "")) for content in read.contents)
        return "success" if size >= KEPT_BYTES else f"{size} characters were read"

    # Over HTTP.

    async def _over_http(self, work: Callable[[Client], Awaitable[str]]) -> str:
        """Of one of the principals, in one of the eras."""
        async with self._client() as client:
            return await work(client)

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[Client]:
        token = random.choice(self.tokens)  # noqa: S311
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=READ_SECONDS) as http,
            Client(
                streamable_http_client(self.url, http_client=http),
                mode=random.choice(ERAS),  # noqa: S311
                read_timeout_seconds=READ_SECONDS,
            ) as client,
        ):
            yield client

    async def _cancelled_over_http(self) -> str:
        return await self._over_http(lambda client: _cancelled(lambda: run(client, ASLEEP)))

    async def _vanishing_over_http(self) -> str:
        """A client whose connections are closed at any moment, and that ends no session."""
        with anyio.move_on_after(random.uniform(0.0, 0.5)):  # noqa: S311
            await self._over_http(lambda client: run(client, ASLEEP_BRIEFLY))
        return "vanished"

    # Bridges beside them.

    async def _second(self, *, kill: bool) -> str:
        """Another bridge on the same state, which is ended while its script runs; then one that starts after it."""
        first = await Server.start([COMMAND], self.bench, self.environment)
        await first.list_tools()
        await first.tell("tools/call", id=99, params={"name": "run_python", "arguments": {"code": ASLEEP}})
        # At any moment: before its container is there, while it starts, while it runs.
        await anyio.sleep(random.uniform(0.0, 1.0))  # noqa: S311
        if kill:
            first.process.kill()
            await first.process.wait()
            await first.process.aclose()
        else:
            await first.end()
        second = await Server.start([COMMAND], self.bench, self.environment)
        await second.list_tools()
        answer = await second.ask("tools/call", name="run_python", arguments={"code": "print(6 * 7)"})
        await second.end()
        return status(answer.get("result", {}).get("structuredContent"))


@asynccontextmanager
async def serving_over_http(
    command: Sequence[str], bench: Bench, environment: Mapping[str, str], log: Path
) -> AsyncGenerator[tuple[int, str]]:
    """A bridge over HTTP: its process, and its address."""
    with log.open("ab") as errors:
        process = await anyio.open_process(
            [*command, "--transport", "http", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stderr=errors,
            env=dict(environment),
            cwd=bench.work,
        )
    try:
        assert process.stdout is not None
        yield process.pid, (await process.stdout.receive()).decode().split()[-1]
    finally:
        process.terminate()
        await process.wait()
        await process.aclose()


async def _cancelled(work: Callable[[], Awaitable[str]]) -> str:
    with anyio.move_on_after(random.uniform(0.1, 1.0)):  # noqa: S311
        return await work()
    return "cancelled"


def _named(name: str) -> list[int]:
    """The processes with this name."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and (path / "comm").read_text().strip() == name:
                found.append(int(path.name))
        except OSError:
            continue
    return found


async def asked(
    client: Client, code: str, seconds: float = 60.0, *, tool: str = "run_python", **arguments: Any
) -> dict[str, Any]:
    """The record of a script."""
    try:
        result = await client.call_tool(tool, {"code": code, "timeout": seconds, **arguments})
    except MCPError as exc:
        return {"status": f"{NO_ANSWER}: {exc}"}
    return result.structured_content or {}


async def run(client: Client, code: str, seconds: float = 60.0, *, tool: str = "run_python", **arguments: Any) -> str:
    """How a script has ended."""
    return status(await asked(client, code, seconds, tool=tool, **arguments))


def status(record: dict[str, Any] | None) -> str:
    """A record's status; of one that was refused, why."""
    if not record:
        return "no record"
    found = str(record.get("status"))
    return found if found != "refused" else f"refused: {(record.get('error') or {}).get('code')}"
