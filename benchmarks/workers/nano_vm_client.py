"""The MCP SDK's client of nano-vm-mcp's own environment, on its server."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from benchmarks.workers import work


async def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds of calls one by one, and calls a second of so many at once."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "benchmarks.workers.nano_vm_server"], env=dict(os.environ)
    )
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()

        async def call() -> float:
            began = time.perf_counter()
            result = await session.call_tool("run_program", {"program": work.REFUND_WITHOUT_CONTEXT})
            took = time.perf_counter() - began
            assert "SUCCESS" in str(result.content), result.content
            return took * 1000

        await call()
        alone = [await call() for _ in range(asked["count"])]
        began = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(asked["width"])))
        return {"alone": alone, "together": (time.perf_counter() - began) * 1000 / asked["width"]}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """See `benchmarks.worker.Worker`."""
    return asyncio.run(_answer(asked))


if __name__ == "__main__":
    work.serve(answer)
