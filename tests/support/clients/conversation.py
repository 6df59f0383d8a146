"""One conversation of a client with the bridge: the scripts of all checks, and Ctrl-C in the last."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import pytest
from bridge_fixtures import COMMAND, DEADLINE_SECONDS, descendants, is_gone, until
from clients.command_lines import CLIENTS
from clients.scripted_model import ScriptedModel, Shown, Tool
from server_fixtures import REPOSITORY, cached

from mcp_bridge.downstream.configuration.spec import ServerSpec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from bridge_fixtures import Setup

LIMIT = 5000
"""`max_output_chars` of the bridge."""

IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG of one pixel, in base64."""

# What a script prints isn't in its text: some clients show that, too.
SCRIPTS = {
    "calls": "from mcp.servers import recording\nprint('answered:', await recording.note(text='from a script'))",
    "errors": "print('before')\n{}['a key']",
    "images": f"import base64\nprint('an ' + 'image:')\ndisplay(base64.b64decode('{IMAGE}'))",
    "image_of_error": f"import base64\ndisplay(base64.b64decode('{IMAGE}'))\n1 / 0",
    "long_output": "print('begin' + 'x' * 3_000_000 + 'end')",
    "progress": "import time\nprogress(1, 2, 'half ' + 'of it')\ntime.sleep(0.5)\nprint('all ' + 'of it')",
    "cancellation": (
        "from mcp.servers import recording\nprogress(1, 2, 'running')\n"
        "await recording.note(text='endless')\nwhile True: pass"
    ),
}
"""What the model has run, in this order; the person in front of the client interrupts the last."""

NOTE = {"name": "note", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}

WRAPPER = """#!/usr/bin/env bash
exec 3<&0
exec env {environment} {command} < <(exec tee -a {sent} <&3) 3<&-
"""
"""The bridge in the process that a client starts, with what it reads copied to a file."""


@dataclass
class Conversation:
    """What was seen.

    Attributes:
        tool: As the model was told of it; with the SDK and the Inspector, as the program was.
        shown: What it was shown of the answer to each script but the last.
        told: All that it was told and shown, as JSON.
        sent: What the client sent the bridge.
        printed: What the client printed.
        left: What was there after the last script was cancelled and should not have been: containers, processes.
    """

    tool: Tool
    shown: dict[str, Shown]
    told: str
    sent: list[dict[str, Any]]
    printed: str
    left: list[str]

    def sent_of(self, method: str) -> list[dict[str, Any]]:
        """The messages of a method."""
        return [message for message in self.sent if message.get("method") == method]


@dataclass
class Place:
    """A bridge for one client, and where the client is started.

    Attributes:
        setup: The bridge, with a server that writes down its calls.
        folder: Theirs alone.
        url: Where the bridge is over HTTP; None where the client starts it.
    """

    setup: Setup
    folder: Path
    url: str | None = None

    @property
    def sent(self) -> Path:
        """What the client has sent, a line a message."""
        return self.folder / "sent.jsonl"

    @property
    def command(self) -> str:
        """The bridge, as the client starts it, or its address."""
        if self.url is not None:
            return self.url
        file = self.folder / "bridge"
        environment = shlex.join(f"{name}={value}" for name, value in self.setup.env.items())
        command = shlex.join([COMMAND, "--config", str(self.setup.config)])
        file.write_text(WRAPPER.format(environment=environment, command=command, sent=shlex.quote(str(self.sent))))
        file.chmod(0o700)
        return str(file)

    def environment(self, proxy: str = "") -> dict[str, str]:
        """For a client: a home directory of its own, and no way out."""
        # What is said of XDG is for podman; a client would find its user's own files by it.
        env = {name: value for name, value in self.setup.env.items() if not name.startswith("XDG_")}
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        env |= {name: proxy for upper in names for name in (upper, upper.lower())} if proxy else {}
        return env | dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")

    def is_endless(self) -> bool:
        """Whether the last script runs."""
        calls = self.folder / "calls.jsonl"
        return calls.exists() and "endless" in calls.read_text()


def recording(folder: Path) -> ServerSpec:
    """A server with one tool that writes down its calls."""
    (folder / "listing.json").write_text(json.dumps([NOTE]))
    server = REPOSITORY / "tests/support/servers/recording.py"
    arguments = (str(server), str(folder / "listing.json"), str(folder / "calls.jsonl"))
    return ServerSpec(name="recording", command=sys.executable, args=arguments)


def program(relative: str) -> list[str]:
    """How a program of the npm packages is started."""
    path = str(cached(f"clients/node_modules/{relative}"))
    node = shutil.which("node") or pytest.fail("node is not on the PATH", pytrace=False)
    return [node, path] if path.endswith("js") else [path]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def interrupted(place: Place, argv: list[str], env: dict[str, str]) -> tuple[str, list[str]]:
    """Run a client until the endless script runs, and interrupt it. What it printed, and what was left of it."""
    printed, work = place.folder / "printed.txt", place.folder / "work"
    work.mkdir()
    with printed.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=work,
            env=env,
            start_new_session=True,
        )

    def text() -> str:
        return printed.read_text("utf-8", "replace")

    async def ends() -> list[str]:
        def is_endless() -> bool:
            assert process.poll() is None, f"the client ended: {text()[-3000:]}"
            return place.is_endless()

        await until(is_endless, 3 * DEADLINE_SECONDS)
        bridge = place.setup.server_pid()
        assert len(await place.setup.containers(bridge)) == 1
        ours = [process.pid, *descendants(process.pid)]
        if place.url is not None:
            # As a terminal does it.
            os.killpg(process.pid, signal.SIGINT)
            await until(lambda: process.poll() is not None)
            return await left(place, bridge, ours)
        assert bridge in ours
        # A client that is started by a script of node's: the interrupt is for the one that has started the bridge.
        os.kill(parent(bridge), signal.SIGINT)
        await until(lambda: process.poll() is not None)
        return await left(place, bridge, ours)

    try:
        remaining = anyio.run(ends)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_SECONDS)
    return text(), remaining


async def left(place: Place, bridge: int, processes: list[int]) -> list[str]:
    """Which of these processes, and of the bridge's containers, don't go.

    Over HTTP the bridge goes on, and so does a call in a session whose client has gone without a word.
    """
    found: list[str] = []
    with anyio.move_on_after(DEADLINE_SECONDS):
        while True:
            found = [f"process {pid}" for pid in processes if not is_gone(pid)]
            if place.url is None:
                found += [f"container {row.name}" for row in await place.setup.containers(bridge)]
            if not found:
                break
            await anyio.sleep(0.05)
    return found


def with_model(client: str) -> Callable[[Place], Conversation]:
    """The conversation of a client that has a model."""

    def held(place: Place) -> Conversation:
        model = ScriptedModel(list(SCRIPTS.values()))
        with model.served() as address:
            start = CLIENTS[client](place.setup.home, place.command, address)
            argv = [*program(start.program), *start.arguments]
            printed, remaining = interrupted(place, argv, place.environment(address) | start.env)
        shown = dict(zip(SCRIPTS, model.results(), strict=False))
        return Conversation(model.tool(), shown, json.dumps(model.requests[-1]), sent(place), printed, remaining)

    return held


@contextlib.asynccontextmanager
async def recorded(url: str, file: Path) -> AsyncGenerator[str]:
    """An address that passes everything on to a bridge over HTTP, and writes what clients post to a file."""
    parts = urlsplit(url)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Callable[[bytes], None]) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                note(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(parts.hostname, parts.port)
        buffer = bytearray()

        def note(data: bytes) -> None:
            buffer.extend(data)
            while (body := _taken(buffer)) is not None:
                if body:
                    with file.open("ab") as lines:
                        lines.write(body.replace(b"\n", b" ") + b"\n")

        await asyncio.gather(copy(reader, back, note), copy(there, writer, lambda _: None))

    server = await asyncio.start_server(passed_on, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}{parts.path}"


def _taken(buffer: bytearray) -> bytes | None:
    """The body of the first request in a buffer, which is taken out of it; None if it isn't whole yet."""
    head, end, rest = bytes(buffer).partition(b"\r\n\r\n")
    if not end:
        return None
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
    body = b""
    if fields.get(b"transfer-encoding", b"").strip() == b"chunked":
        while True:
            line, end, rest = rest.partition(b"\r\n")
            size = int(line, 16) if end else 0
            if not end or len(rest) < size + 2:
                return None
            body, rest = body + rest[:size], rest[size + 2 :]
            if not size:
                break
    else:
        size = int(fields.get(b"content-length", b"0"))
        if len(rest) < size:
            return None
        body, rest = rest[:size], rest[size:]
    buffer[:] = rest
    return body


def sent(place: Place) -> list[dict[str, Any]]:
    return [json.loads(line) for line in place.sent.read_text().splitlines()]


# --- clients that hand everything to a program ---


def as_shown(result: dict[str, Any]) -> Shown:
    """A result as a program gets it; the structured content is the last of its texts."""
    texts = [block["text"] for block in result["content"] if block["type"] == "text"]
    if "structuredContent" in result:
        texts.append(json.dumps(result["structuredContent"], ensure_ascii=False, separators=(",", ":")))
    images = [block["mimeType"] for block in result["content"] if block["type"] == "image"]
    return Shown(texts, images, failed=result.get("isError", False))


def typescript_sdk(place: Place) -> Conversation:
    """A program with the SDK's client, which cancels the last script."""
    node = shutil.which("node") or pytest.fail("node is not on the PATH", pytrace=False)
    server = {"command": place.command} if place.url is None else {"url": place.url}
    asked = {"server": server, "scripts": SCRIPTS}
    packages = cached("clients/node_modules/@modelcontextprotocol/sdk").parent.parent.parent
    script = Path(__file__).parent / "sdk_client.mjs"
    process = subprocess.Popen(
        [node, str(script), str(packages), json.dumps(asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place.setup.home,
        env=place.environment(),
    )
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        bridge = place.setup.server_pid()
        remaining = anyio.run(left, place, bridge, [])
        processes = [process.pid, *descendants(process.pid)]
        process.communicate(timeout=DEADLINE_SECONDS)
        remaining += anyio.run(left, place, bridge, processes)
    finally:
        process.kill()
        process.communicate()
    seen = json.loads(line)
    (tool,) = seen["tools"]
    shown = {name: as_shown(result) for name, result in seen["results"].items() if "content" in result}
    return Conversation(as_told(tool), shown, line, sent(place), line, remaining)


def inspector(place: Place) -> Conversation:
    """The Inspector's command line, which is started for each thing that is asked of it."""
    launcher = program("@modelcontextprotocol/inspector/clients/launcher/build/index.js")
    begin = [*launcher, "--cli", place.command, *(() if place.url is None else ("--transport", "http"))]
    call = ["--method", "tools/call", "--tool-name", "run_python", "--tool-arg"]
    printed = []

    def said(*arguments: str) -> Any:
        ended = subprocess.run(
            [*begin, *arguments],
            capture_output=True,
            text=True,
            env=place.environment(),
            cwd=place.setup.home,
            stdin=subprocess.DEVNULL,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        printed.append(ended.stdout + ended.stderr)
        return json.loads(ended.stdout)

    (tool,) = said("--method", "tools/list")["tools"]
    names = list(SCRIPTS)[:-1]
    shown = {name: as_shown(said(*call, f"code={SCRIPTS[name]}")) for name in names}
    last, remaining = interrupted(place, [*begin, *call, f"code={SCRIPTS['cancellation']}"], place.environment())
    told = "".join(printed)
    return Conversation(as_told(tool), shown, told, sent(place), told + last, remaining)


def as_told(tool: dict[str, Any]) -> Tool:
    return Tool(tool["name"], tool["description"], tool["inputSchema"])
