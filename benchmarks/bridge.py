"""Our server and the other servers as processes, reached with the SDK's client."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from mcp_bridge.host import pool_report, warm_pool
from mcp_bridge.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

REPOSITORY = Path(__file__).resolve().parent.parent
CACHE = REPOSITORY / ".cache"
COMMAND = str(Path(sys.executable).with_name("mcp-bridge"))

SETTLE_SECONDS = 20.0
"""For a finished container to be gone."""

REPORTS_WITHIN = 1.5
"""A bridge that has written no report for so many of its intervals has nothing new to say."""


def without_pool() -> str:
    """A line of configuration for a bridge that keeps no container ready."""
    return "pool_max = 0" if "pool_max" in Settings.model_fields else ""


@dataclass(frozen=True)
class Bench:
    """What every benchmark gets.

    Attributes:
        state_dir: The bridge's; a probe's result is in it.
        work: A directory for anything else.
        quick: A fifth of everything.
        smoke: Next to nothing of everything, for a test that it works.
    """

    state_dir: Path
    work: Path
    quick: bool
    smoke: bool = False

    def rounds(self, usual: int) -> int:
        """How often to repeat."""
        if self.smoke:
            return 1
        return max(3, usual // 5) if self.quick else usual

    def count(self, usual: int) -> int:
        """How many of something a sample has."""
        if self.smoke:
            return max(1, usual // 50)
        return max(1, usual // 5) if self.quick else usual

    def seconds(self, usual: float) -> float:
        """How long to do something over and over."""
        if self.smoke:
            return usual / 50
        return usual / 5 if self.quick else usual

    def environment(
        self, servers: Mapping[str, Sequence[str] | str] | None = None, *, tables: str = ""
    ) -> dict[str, str]:
        """For a bridge over these servers (name → command line, or the address of one over HTTP), and no others.

        Args:
            servers: By name.
            tables: The rest of its configuration, as TOML.
        """
        lines = ["client_configs = false", tables]
        for name, command in (servers or {}).items():
            lines.append(f"[servers.{name}]")
            if isinstance(command, str):
                lines.append(f"url = {json.dumps(command)}")
            else:
                lines += [f"command = {json.dumps(command[0])}", f"args = {json.dumps(command[1:])}"]
        config = self.work / f"config-{abs(hash(tuple(lines)))}.toml"
        config.write_text("\n".join(lines) + "\n")
        return {
            **os.environ,
            "MCP_BRIDGE_CONFIG": str(config),
            "MCP_BRIDGE_STATE_DIR": str(self.state_dir),
            "PYTHONPATH": str(REPOSITORY),
        }

    @property
    def pool(self) -> int:
        """How many containers an idle bridge keeps ready; 0 for a version without a pool."""
        defaults = Settings()
        return int(getattr(defaults, "pool_min", 0)) if getattr(defaults, "pool_max", 0) else 0

    async def settled(self, ready: int | None = None) -> float:
        """Wait until every finished container has been removed: what follows is measured without its end.

        Where a pool keeps some, wait until as many as it keeps are ready, their guests loaded. A bridge writes what its
        pool is doing within a second of a change, so this takes up to a second longer than what it waits for.

        Args:
            ready: How many the bridge keeps ready, where that isn't the default.

        Returns:
            When the last change was seen, by `time.perf_counter`.
        """
        ready = self.pool if ready is None else ready
        began, count, changed = time.time(), -1, time.perf_counter()
        with anyio.move_on_after(SETTLE_SECONDS):
            while True:
                if (found := self.containers()) != count:
                    began, count, changed = time.time(), found, time.perf_counter()
                if count == 0 if ready == 0 else self._are_ready(ready, count, began):
                    break
                await anyio.sleep(0.01)
        return changed

    def _are_ready(self, least: int, count: int, since: float) -> bool:
        """Whether all containers are ready, by reports that were written after a time, or would have been by now."""
        reports = pool_report.pool_reports(self.state_dir)
        if count < least or sum(report.ready for report in reports) != count:
            return False
        if any(report.starting or report.ready != report.target for report in reports):
            return False
        with contextlib.suppress(FileNotFoundError):
            written = [file.stat().st_mtime for file in self.state_dir.glob("run/pool-*.json")]
            return min(written) > since or time.time() - since > REPORTS_WITHIN * warm_pool.REPORT_SECONDS
        return False

    def containers(self) -> int:
        """How many there are of the state directory's bridges, whatever driver they have."""
        return sum(len(list(self.state_dir.glob(pattern))) for pattern in ("run/*.cid", "oci/containers/*"))


def ours(name: str) -> list[str]:
    """The command line of one of `benchmarks.servers`."""
    return [sys.executable, "-m", f"benchmarks.servers.{name}"]


@asynccontextmanager
async def client(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: Path,
    mode: Any = "auto",
    read_timeout: float = 60,
) -> AsyncGenerator[Client]:
    """The SDK's client on a server that it starts; the server's stderr goes to `log`."""
    params = StdioServerParameters(command=command[0], args=list(command[1:]), env=dict(environment), cwd=log.parent)
    with log.open("ab") as errors:
        transport = stdio_client(params, errlog=errors)  # type: ignore[arg-type]  # only its descriptor is used
        async with Client(transport, mode=mode, read_timeout_seconds=read_timeout) as connected:
            yield connected


@asynccontextmanager
async def over_http(name: str) -> AsyncGenerator[str]:
    """One of `benchmarks.servers`, over HTTP; its address."""
    async with _listening([*ours(name), "http"]) as port:
        yield f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def service() -> AsyncGenerator[str]:
    """A service that OpenAPI describes; its address."""
    async with _listening(ours("service")) as port:
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def _listening(command: Sequence[str]) -> AsyncGenerator[int]:
    """A process that prints the port it listens on."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = await anyio.open_process(command, stderr=subprocess.DEVNULL, env=environment)
    try:
        assert process.stdout is not None
        yield int(await process.stdout.receive())
    finally:
        process.kill()
        await process.aclose()


async def run_python(connected: Client, code: str, **arguments: Any) -> str:
    """The text that a model would read.

    Raises:
        RuntimeError: The run failed.
    """
    result = await connected.call_tool("run_python", {"code": code, **arguments})
    text = "\n".join(getattr(block, "text", "") for block in result.content)
    if result.is_error:
        raise RuntimeError(text)
    return text
