"""Processes to measure in, ours and a peer's, asked in turn: only one of them works at a time."""

from __future__ import annotations

import json
import os
import sys
from contextlib import asynccontextmanager
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks.bridge import CACHE, REPOSITORY, Bench

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

PEER = "llm-nano-vm 0.8.9"
GATEWAY = "nano-vm-mcp 0.4.6"

MAX_ANSWER_BYTES = 1 << 20


class Worker:
    """One of `benchmarks.workers`."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def ask(self, **asked: Any) -> dict[str, Any]:
        """Have it do something, such as `do="run", program="refund", seconds=0.3`, and wait for the answer."""
        await self._stdin.send(json.dumps(asked).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._lines.receive_until(b"\n", MAX_ANSWER_BYTES))
        return answer


def peer_python() -> str:
    """Of the environment with both peers.

    Raises:
        RuntimeError: It isn't there.
    """
    python = CACHE / "peers/llm-nano-vm/bin/python"
    if not python.exists():
        raise RuntimeError(f"there is no {python}, to compare with: make setup-test makes it")
    return str(python)


@asynccontextmanager
async def worker(name: str, bench: Bench, *, python: str = sys.executable) -> AsyncGenerator[Worker]:
    """Start `benchmarks.workers.NAME` with a Python; it ends with the block."""
    with (bench.work / f"{name}.log").open("ab") as log:
        process = await anyio.open_process(
            [python, "-m", f"benchmarks.workers.{name}"],
            stdin=PIPE,
            stdout=PIPE,
            stderr=log,
            cwd=bench.work,
            env=peer_environment(bench),
        )
        async with process:
            yield Worker(process)


def peer_environment(bench: Bench) -> dict[str, str]:
    """For a peer's process: its database is a file beside ours, on the same disk."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "NANO_VM_MCP_DB": str(bench.work / "nano_vm_mcp.db")}
