"""Rows 10 and 11: from the start to the first answer, and memory while nothing happens."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any, cast

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks.bridge import COMMAND, Bench, ours
from benchmarks.measure import Row, interleaved
from mcp_bridge import settings
from mcp_bridge.host import guest_bundle
from mcp_bridge.host.bridge import open_bridge
from mcp_bridge.host.engine_setup import prepare
from mcp_bridge.sandbox.oci.engine import OciProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_bridge.sandbox.cli_engine import CliProcess

MEBIBYTE = 1 << 20

AT_REST_SECONDS = 0.5

CALL = {"name": "run_python", "arguments": {"code": "pass"}}


class Server:
    """A server process spoken to in plain JSON lines: a client's own start is not what is measured."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        self.process = process
        self._lines = BufferedByteReceiveStream(process.stdout)
        self._id = 0

    @classmethod
    async def start(cls, command: Sequence[str], bench: Bench, environment: Mapping[str, str] | None = None) -> Server:
        environment = dict(environment or bench.environment())
        # What is installed has its bytecode; without it a start would be a measure of Python's compiler.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = await anyio.open_process(
            command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment, cwd=bench.work
        )
        return cls(process)

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a request."""
        self._id += 1
        await self.tell(method, id=self._id, params=params)
        while True:
            answer: dict[str, Any] = json.loads(await self._lines.receive_until(b"\n", 1 << 20))
            if answer.get("id") == self._id:
                return answer

    async def tell(self, method: str, **fields: Any) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send(json.dumps({"jsonrpc": "2.0", "method": method} | fields).encode() + b"\n")

    async def list_tools(self) -> None:
        """As a client begins."""
        about = {"name": "bench", "version": "1"}
        await self.ask("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=about)
        await self.tell("notifications/initialized")
        answer = await self.ask("tools/list")
        assert "result" in answer, answer

    async def end(self) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.aclose()
        await self.process.wait()
        await self.process.aclose()


async def start(bench: Bench) -> list[Row]:
    """Row 10: process start to tools/list and to run_python answered, on a state directory that knows the engine."""
    await prepare(settings.Settings(state_dir=bench.state_dir))

    def once(command: list[str], call: dict[str, Any] | None = None) -> Any:
        async def work() -> float:
            began = time.perf_counter()
            server = await Server.start(command, bench)
            await server.list_tools()
            if call is not None:
                answer = await server.ask("tools/call", **call)
                assert not answer["result"].get("isError"), answer
            took = (time.perf_counter() - began) * 1000
            await server.end()
            return took

        return work

    p50 = await interleaved(bench.rounds(25), {"bridge": once([COMMAND]), "empty": once(ours("empty"))})
    answered = {"bridge": once([COMMAND], CALL), "bare": once(ours("bare"), CALL)}
    p50 |= {f"{name}, call": value for name, value in (await interleaved(bench.rounds(15), answered)).items()}
    met, called = p50["bridge"] <= 1.1 * p50["empty"], p50["bridge, call"] <= 1.3 * p50["bare, call"]
    note = "The peer's run_python starts a bare interpreter for the code: no sandbox, no record."
    return [
        Row("10 start to tools/list", p50["bridge"], p50["empty"], "ms", "SDK's empty server", "≤ 1.1", met),
        Row(
            '10 start to the answer of run_python("pass")',
            p50["bridge, call"],
            p50["bare, call"],
            "ms",
            "SDK's server, bare interpreter",
            "≤ 1.3",
            called,
            note,
        ),
    ]


async def memory(bench: Bench) -> list[Row]:
    """Row 11: the host after its first call, and a container that waits for a script.

    On a state directory that knows the engine and has the image, as of every start but the first one; then that one.
    """
    await prepare(settings.Settings(state_dir=bench.state_dir))
    new = dataclasses.replace(bench, state_dir=bench.work / "new-state")
    new.state_dir.mkdir(mode=0o700)
    empty = await Server.start(ours("empty"), bench)
    try:
        await empty.list_tools()
        peer = _memory(empty.process.pid)
    finally:
        await empty.end()
    fresh, host = await _idle_host(bench)
    _, first = await _idle_host(new)
    inside, cgroup, beside = await _idle_container(bench)
    note = f"PSS {host['Pss']:.1f} MiB; before the first call RSS {fresh['Rss']:.1f}, PSS {fresh['Pss']:.1f} MiB."
    against, goal = "SDK's empty server", "≤ 75 MiB"
    rows = [Row("11 host, idle, RSS", host["Rss"], peer["Rss"], "MiB", against, goal, host["Rss"] <= 75, note)]
    note = "It has tried the engine and built the image itself."
    rows.append(Row("11 … the first on its state directory", first["Rss"], peer["Rss"], "MiB", against, note=note))
    goal = "≤ 12 MiB"
    counted = "Process 1 and the guest; pages shared between them are counted once."
    rows.append(Row("11 idle container, PSS", inside, None, "MiB", "", goal, inside <= 12, counted))
    if cgroup is not None:
        rows.append(
            Row("11 … by its control group", cgroup, None, "MiB", "", goal, cgroup <= 12, "With kernel memory.")
        )
    note = "The engine's client and monitor, one of each a container; without an engine one supervisor for all (PSS)."
    rows.append(Row("11 … beside it on the host", beside, None, "MiB", note=note))
    return rows


async def _idle_host(bench: Bench) -> tuple[dict[str, float], dict[str, float]]:
    """A bridge's memory before its first call, and after it, when nothing is under way any more."""
    bridge = await Server.start([COMMAND], bench)
    try:
        await bridge.list_tools()
        await anyio.sleep(AT_REST_SECONDS)
        fresh = _memory(bridge.process.pid)
        answer = await bridge.ask("tools/call", **CALL)
        assert not answer["result"].get("isError"), answer
        await bench.settled()
        await anyio.sleep(AT_REST_SECONDS)
        return fresh, _memory(bridge.process.pid)
    finally:
        await bridge.end()


def _memory(pid: int) -> dict[str, float]:
    """MiB of a process by kind."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {name: int(size) * 1024 / MEBIBYTE for name, size in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}


async def _idle_container(bench: Bench) -> tuple[float, float | None, float]:
    """A guest that was sent everything but a script: its PSS, its control group's count, its helpers' PSS."""
    config = settings.Settings(state_dir=bench.state_dir)
    async with open_bridge(config, []) as bridge:
        prepared = await bridge.sandboxes.prepare()
        process = await prepared.engine.start(bridge.sandboxes.spec("bench", prepared))
        try:
            await process.stdin.send(guest_bundle.bundle(prepared.image.magic))
            await process.stdout.receive()  # it is ready
            await anyio.sleep(1)
            choice = prepared.report.choice
            name = await process.container_id()
            if isinstance(process, OciProcess):
                supervisor = process._supervisor.owner.pid  # noqa: SLF001
                number = (bench.state_dir / "oci/containers" / name / "pid").read_text()
                first = next(pid for pid in _tree(supervisor) if _number_below(pid, supervisor) == number)
                helpers = [supervisor]
            else:
                argv = [*choice.command, "inspect", "--format", "{{.State.Pid}}", name]
                first = int((await anyio.run_process(argv)).stdout)
                helpers = [pid for pid in _pids() if name in _command_line(pid)]
                helpers.append(cast("CliProcess", process)._child._process.pid)  # noqa: SLF001
            inside = _tree(first)
            group = _control_group(first)
            return (
                sum(_memory(pid)["Pss"] for pid in inside),
                group,
                sum(_memory(pid)["Pss"] for pid in dict.fromkeys(helpers) if pid not in inside),
            )
        finally:
            await process.aclose()


def _number_below(pid: int, supervisor: int) -> str:
    """A process's number in the namespace whose process 1 the supervisor is."""
    (numbers,) = re.findall(r"^NSpid:\t(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return "" if pid == supervisor else str(numbers.split("\t")[1])


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _tree(pid: int) -> set[int]:
    found = {pid}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found |= _tree(int(child))
    return found


def _control_group(pid: int) -> float | None:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for file in (f"/sys/fs/cgroup/{path}/memory.current", f"/sys/fs/cgroup/memory/{path}/memory.usage_in_bytes"):
            if controllers in {"", "memory"} and Path(file).exists():
                return int(Path(file).read_text()) / MEBIBYTE
    return None
