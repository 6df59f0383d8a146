"""Clients of one principal, in a process of their own: `team_clients.py`, with an order as JSON on standard input.

The order has `url`, `token`, `mark` (what this principal's texts begin with), `clients` (how many) and `round`. What each
client has done and seen goes to standard output, as one JSON object a line.
"""

import asyncio
import contextlib
import json
import sys

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

KINDS = ("whole", "fails", "is cancelled", "times out", "is cut", "goes at once")
ERAS = ("legacy", "2026-07-28")
SECONDS = 240

CODE = """
from mcp.sync import programs
from mcp.sync.servers import faulty
mark = MARK
progress(1, 2, mark)
runtime.save_memory_sync("last", mark)
open("a.txt", "w").write(mark)
artifact("a.txt")
programs.save("mine", {"name": "mine", "description": mark, "steps": [{"id": "s", "type": "wait", "event": mark}]})
print(faulty.echo(mark), runtime.load_memory_sync("last"), [row["description"] for row in programs.list()])
"""
FAILS = """
try:
    faulty.refuse(**{mark: 1})
except Exception as exc:
    print(exc)
raise ValueError(mark)
"""
ENDLESS = "import time\ntime.sleep(1000)\n"

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


class OneClient:
    """One client, of one kind.

    Args:
        order: The principal's.
        number: Which of its clients it is.
    """

    def __init__(self, order, number):
        self.url, self.token = order["url"], order["token"]
        self.kind = KINDS[number % len(KINDS)]
        self.mode = ERAS[(number // len(KINDS) + number + order["round"]) % 2]
        self.mark = f"{order['mark']}-{number}-{order['round']}"
        # The same for all principals.
        self.key = f"key {number} {order['round']}"
        self.code = CODE.replace("MARK", repr(self.mark))
        self.seen, self.ended = [], "not begun"
        self.heard = anyio.Event()

    async def run(self):
        if self.kind == "is cut":
            await self.cut()
        async with self.connected() as client:
            await {
                "whole": self.whole,
                "fails": self.fails,
                "is cancelled": self.cancelled,
                "times out": self.times_out,
                "is cut": self.comes_again,
                "goes at once": self.goes_at_once,
            }[self.kind](client)

    @contextlib.asynccontextmanager
    async def connected(self):
        headers = {"authorization": f"Bearer {self.token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=SECONDS) as http:
            target = streamable_http_client(self.url, http_client=http)
            async with Client(target, mode=self.mode, read_timeout_seconds=SECONDS) as client:
                self.seen.append(client.instructions or "")
                yield client

    async def progress(self, *values):
        self.seen.append(repr(values))
        if self.mark in repr(values):
            self.heard.set()

    async def call(self, client, code, **arguments):
        result = await client.call_tool("run_python", {"code": code, **arguments}, progress_callback=self.progress)
        self.seen.append(result.model_dump_json())
        return result

    async def whole(self, client):
        first = await self.call(client, self.code, idempotency_key=self.key)
        again = await self.call(client, self.code, idempotency_key=self.key)
        same = first.structured_content["execution"] == again.structured_content["execution"]
        self.ended = "whole" if self.mark in first.content[0].text and same else "wrong"
        for row in (await client.list_resources()).resources:
            self.seen.append(row.model_dump_json())
            # Another client of this principal may have replaced what it names.
            with contextlib.suppress(MCPError):
                self.seen.append((await client.read_resource(row.uri)).model_dump_json())

    async def fails(self, client):
        result = await self.call(client, self.code + FAILS)
        self.ended = "failed" if f"ValueError: {self.mark}" in result.content[0].text else "wrong"

    async def cancelled(self, client):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.call, client, self.code + ENDLESS)
            await self.heard.wait()
            tasks.cancel_scope.cancel()
        self.ended = "cancelled"
        # The session goes on.
        assert [tool.name for tool in (await client.list_tools()).tools] == ["run_python"]

    async def times_out(self, client):
        result = await self.call(client, f"print({self.mark!r})\nwhile True: pass", timeout=2)
        told = result.content[0].text
        self.ended = "timed out" if told.startswith(f"{self.mark}\n[script_timeout] ") else "wrong"

    async def goes_at_once(self, client):
        with anyio.move_on_after(0.05):
            await self.call(client, self.code + ENDLESS)
        self.ended = "gone"

    async def cut(self):
        """Call in a session of 2025-11-25, and break the connection without a word once the script runs."""
        host, _, port = self.url.removeprefix("http://").partition("/")[0].partition(":")
        headers = ACCEPT | {"authorization": f"Bearer {self.token}"}
        info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "cut", "version": "1"}}
        async with httpx2.AsyncClient(timeout=SECONDS) as http:
            request = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": info}
            opened = await http.post(self.url, json=request, headers=headers)
            assert opened.status_code == 200, opened.text
        headers |= {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        arguments = {"code": self.code, "idempotency_key": self.key}
        call = {"name": "run_python", "arguments": arguments, "_meta": {"progressToken": 1}}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
        lines = [f"POST /mcp HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-length: {len(body)}\r\n"]
        lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write("".join(lines).encode() + b"\r\n" + body)
        received = b""
        with anyio.fail_after(SECONDS):
            while self.mark.encode() not in received:
                part = await reader.read(1 << 16)
                assert part, received
                received += part
        writer.transport.abort()
        self.seen.append(received.decode())

    async def comes_again(self, client):
        """What was cut is still done, and the same key gets it."""
        result = await self.call(client, self.code, idempotency_key=self.key)
        self.ended = "came again" if self.mark in result.content[0].text else "wrong"


async def main(order):
    async def one(number):
        client = OneClient(order, number)
        try:
            await client.run()
        except (Exception, BaseExceptionGroup) as exc:  # noqa: BLE001 - the test judges it
            client.ended = f"{type(exc).__name__}: {exc!r}"
        told = {"kind": client.kind, "mode": client.mode, "mark": client.mark, "ended": client.ended}
        print(json.dumps(told | {"seen": client.seen}), flush=True)

    async with anyio.create_task_group() as tasks:
        for number in range(order["clients"]):
            tasks.start_soon(one, number)


if __name__ == "__main__":
    anyio.run(main, json.loads(sys.stdin.readline()))
