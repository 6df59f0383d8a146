"""Sandboxes that say what a test has them say."""

import json
import time
from types import SimpleNamespace

import anyio
import anyio.lowlevel
from anyio.abc import ByteReceiveStream, ByteSendStream

from mcp_bridge.host.channel import ChannelLimits
from mcp_bridge.host.sandbox_run import RunLimits, SandboxRun
from mcp_bridge.sandbox.engine import ExitStatus


class Pipe(ByteReceiveStream):
    """Bytes to receive, then the end."""

    def __init__(self, *chunks):
        self._chunks = list(chunks)
        self.is_over = anyio.Event()

    async def receive(self, max_bytes=65536):
        await anyio.lowlevel.checkpoint()
        if not self._chunks:
            self.is_over.set()
            raise anyio.EndOfStream
        return self._chunks.pop(0)

    async def aclose(self):
        pass


class Silent(Pipe):
    """Bytes to receive, then nothing more."""

    async def receive(self, max_bytes=65536):
        if not self._chunks:
            await anyio.sleep_forever()
        return await super().receive(max_bytes)


class Last(Pipe):
    """Bytes to receive, and the end when all of the reports were received."""

    def __init__(self, reports, *chunks):
        super().__init__(*chunks)
        self._reports = reports

    async def receive(self, max_bytes=65536):
        if not self._chunks:
            await self._reports.is_over.wait()
        return await super().receive(max_bytes)


class Sink(ByteSendStream):
    async def send(self, item):
        await anyio.lowlevel.checkpoint()

    async def aclose(self):
        pass


class Claimed:
    """A container that says what a test has it say."""

    def __init__(self, reports, stdout=b"", code=5):
        self.stdin, self.stderr = Sink(), Pipe(*reports)
        self.stdout = Last(self.stderr, *([stdout] if stdout else []))
        self._code = code

    async def wait(self):
        return ExitStatus(self._code)

    async def aclose(self):
        pass


async def _takes_no_note(_request, _context):
    pass


async def told(process, answer=None):
    """The record of an execution in that container."""
    limits = RunLimits(60, 60, 5, 1 << 20, ChannelLimits(1, 10, 1000))
    requests = SimpleNamespace(
        answer=answer,
        begun=lambda: None,
        cancelled_before_start=_takes_no_note,
        on_hold=anyio.sleep_forever,
        divergence=anyio.sleep_forever,
        principal="local",
    )
    with anyio.fail_after(30):
        return await SandboxRun(process, "e", b"", limits, requests, None, time.monotonic()).run()


def report(method, **params):
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n"


READY = report("execution.begun")
