"""A bridge that serves MCP over HTTP, as a process; a test module asks for it with `pytest_plugins`."""

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import httpx2
from bridge_fixtures import COMMAND, DEADLINE_SECONDS, MAX_LINE_BYTES, Setup
from ledger_looks import verify_ledgers
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

LISTENS = r"MCP over HTTP: (\S+)\n"

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@dataclass
class HttpBridge:
    """A bridge that listens on loopback."""

    setup: Setup
    process: asyncio.subprocess.Process | subprocess.Popen
    url: str
    log: Callable[[], bytes]

    @property
    def logged(self):
        """What it has written to standard error."""
        return self.log()

    @property
    def pid(self):
        return self.process.pid

    @property
    def base(self):
        return self.url.removesuffix("/mcp")

    @property
    def port(self):
        return int(self.base.rpartition(":")[2])

    @contextlib.asynccontextmanager
    async def client(self, mode="legacy", **options):
        """The SDK's own client, connected."""
        # The SDK's own limit of 1 MiB for an event is less than an answer may have.
        target = streamable_http_client(self.url, max_sse_event_size=MAX_LINE_BYTES)
        async with Client(target, mode=mode, read_timeout_seconds=DEADLINE_SECONDS, **options) as client:
            yield client

    @contextlib.asynccontextmanager
    async def http(self, **headers):
        """A client of plain HTTP."""
        async with httpx2.AsyncClient(base_url=self.base, timeout=DEADLINE_SECONDS, headers=headers) as client:
            yield client

    @contextlib.asynccontextmanager
    async def connection(self):
        """A connection that is spoken to in bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def ended(self, seconds=DEADLINE_SECONDS):
        """The exit status."""
        with anyio.fail_after(seconds):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def serving(setup, *arguments, env=None, log=None, command=(COMMAND,)):
    """A bridge of this configuration. Whatever the test does to it, nothing of it is left.

    Args:
        setup: The configuration.
        arguments: Further options of `serve`.
        env: Further variables.
        log: A file for what it writes to standard error; by default that is in `logged`.
        command: What starts it.
    """
    process = await asyncio.create_subprocess_exec(
        *_line(setup, arguments, command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE if log is None else log,
        env=setup.env | (env or {}),
        cwd=setup.home,
    )
    logged = bytearray()
    reading = asyncio.ensure_future(_read(process.stderr, logged))
    try:
        with anyio.fail_after(DEADLINE_SECONDS):
            line = (await process.stdout.readline()).decode()
        url = re.fullmatch(LISTENS, line)
        assert url, (line, bytes(logged).decode())
        yield HttpBridge(setup, process, url[1], lambda: bytes(logged))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()
        await reading
        # A test that fails shows it.
        print(f"the bridge ended with {process.returncode}:", bytes(logged).decode(errors="replace"), file=sys.stderr)


@contextlib.contextmanager
def kept_serving(setup, *arguments):
    """A bridge of this configuration for the tests of a module, whose event loops come and go."""
    log = setup.config.with_suffix(".log")
    with log.open("wb") as errors:
        process = subprocess.Popen(
            _line(setup, arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=setup.env,
            cwd=setup.home,
        )
    with process:
        try:
            url = re.fullmatch(LISTENS, process.stdout.readline().decode())
            assert url, log.read_text()
            yield HttpBridge(setup, process, url[1], log.read_bytes)
        finally:
            process.kill()
    verify_ledgers(setup.state_dir)
    assert "Traceback" not in log.read_text()


def _line(setup, arguments, command=(COMMAND,)):
    return [*command, "--config", str(setup.config), "serve", "--transport", "http", "--port", "0", *arguments]


async def _read(stream, into):
    while stream is not None and (part := await stream.read(1 << 16)):
        into.extend(part)
