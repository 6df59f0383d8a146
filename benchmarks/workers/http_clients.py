"""Many clients of one MCP server over HTTP: `python -m benchmarks.workers.http_clients URL CLIENTS SECONDS [TOKEN...]`.

Each has a connection that stays open, and asks for `tools/list` (2026-07-28) over and over; with tokens, they have them
in turn. They know no more of HTTP than the end of an answer, so that most of the time is the server's. Prints a JSON
object: `requests`, `seconds`, `p50` and `p99` (in milliseconds).
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from urllib.parse import urlsplit

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
BODY = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}})


def _request(url: str, token: str | None) -> bytes:
    parts = urlsplit(url)
    lines = [
        f"POST {parts.path} HTTP/1.1",
        f"host: {parts.netloc}",
        "accept: application/json, text/event-stream",
        "content-type: application/json",
        "mcp-protocol-version: 2026-07-28",
        "mcp-method: tools/list",
        f"content-length: {len(BODY)}",
    ]
    lines += [f"authorization: Bearer {token}"] if token else []
    return ("\r\n".join(lines) + "\r\n\r\n" + BODY).encode()


async def _answered(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(head.decode())
    if b"transfer-encoding: chunked" in head:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
        return
    length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
    await reader.readexactly(int(length))


async def _client(url: str, token: str | None, until: float, took: list[float]) -> None:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    request = _request(url, token)
    ended = 0.0
    # Each asks once at least: on a busy machine the time may be over before all are connected.
    while ended < until:
        began = time.perf_counter()
        writer.write(request)
        await _answered(reader)
        ended = time.perf_counter()
        took.append((ended - began) * 1000)
    writer.close()


async def main(url: str, clients: int, seconds: float, tokens: list[str]) -> dict[str, float]:
    """Have so many clients ask for so long."""
    took: list[float] = []
    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(clients):
            token = tokens[number % len(tokens)] if tokens else None
            tasks.create_task(_client(url, token, began + seconds, took))
    elapsed = time.perf_counter() - began
    cuts = statistics.quantiles(took, n=100)
    return {"requests": len(took), "seconds": elapsed, "p50": cuts[49], "p99": cuts[98]}


if __name__ == "__main__":
    place, count, duration, *given = sys.argv[1:]
    print(json.dumps(asyncio.run(main(place, int(count), float(duration), given))))
