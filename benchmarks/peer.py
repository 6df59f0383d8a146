"""The bridge that came before this one, as published: mseep-code-execution 0.3.0.

It is installed into an environment of its own and only run, over MCP: none of it is read or imported here.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks.bridge import CACHE, COMMAND, Bench, client, ours, run_python
from benchmarks.calls import INSIDE
from benchmarks.measure import Row, interleaved, timed
from mcp_bridge import settings
from mcp_bridge.host.engine_setup import prepare

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_bridge.sandbox.isolation_flags import RuntimeChoice

ANSWER_SECONDS = 30.0

MARK = "MCP_BRIDGE_BENCHMARK"

NAME = "mseep-code-execution 0.3.0"


async def peer(bench: Bench) -> list[Row]:
    """Rows 2 and 4 of the earlier bridge, on our image and with the OCI runtime that works here."""
    if not (CACHE / "bench/mseep/bin/mcp-server-code-execution-mode").exists():
        return [Row(f"peer {NAME}", None, None, "ms", note="It isn't installed here: make setup-bench does it.")]
    command = str(CACHE / "bench/mseep/bin/mcp-server-code-execution-mode")
    prepared = await prepare(settings.Settings(state_dir=bench.state_dir))
    choice = prepared.report.choice
    home = bench.work / "peer"
    (home / "MCPs").mkdir(parents=True, exist_ok=True)
    noop = ours("noop")
    servers = {"mcpServers": {"target": {"command": noop[0], "args": noop[1:], "env": {"PYTHONPATH": _repository()}}}}
    (home / "MCPs/target.json").write_text(json.dumps(servers))
    ulimits = [f"nofile={choice.nofile_max}:{choice.nofile_max}", f"nproc={choice.nproc_max}:{choice.nproc_max}"]
    engine = f'runtime = "{choice.oci_runtime}"\n' if choice.oci_runtime else ""
    # What it leaves behind is known by this variable, and removed at the end.
    mark = f'env = ["{MARK}={home}"]\n'
    containers = home / "containers.conf"
    containers.write_text(f"[engine]\n{engine}[containers]\ndefault_ulimits = {json.dumps(ulimits)}\n{mark}")
    environment = {
        **os.environ,
        "HOME": str(home),
        "CONTAINERS_CONF": str(containers),
        "MCP_BRIDGE_IMAGE": prepared.image.reference,
        "MCP_BRIDGE_RUNTIME": choice.engine,
        "MCP_BRIDGE_STATE_DIR": str(home / "state"),
    }
    rows = []
    for measure in (_cold, _warm, _proxied):
        what = (measure.__doc__ or "").rstrip(".")
        try:
            rows.append(await measure(bench, [command], environment, home / "peer.log"))
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - whatever it does is the result
            reason = f"It did not run here: {_said(home / 'peer.log', error)}."
            rows.append(Row(what, None, None, "ms", NAME, note=reason))
    left = await _remove_left(choice, f"{MARK}={home}")
    if left:
        rows[-1].note = f"{rows[-1].note} It left {left} container{'s' * (left > 1)} running.".strip()
    return rows


async def _remove_left(choice: RuntimeChoice, mark: str) -> int:
    """Remove the peer's own containers, those with our mark in their environment; how many there were."""
    listed = await anyio.run_process([*choice.command, "ps", "--all", "--quiet", "--no-trunc"])
    removed = 0
    for container in listed.stdout.decode().split():
        argv = [*choice.command, "inspect", "--format", "{{json .Config.Env}}", container]
        shown = await anyio.run_process(argv, check=False)
        if shown.returncode == 0 and mark in (json.loads(shown.stdout) or []):
            await anyio.run_process([*choice.command, "rm", "--force", container], check=False)
            removed += 1
    return removed


async def _cold(bench: Bench, command: list[str], environment: dict[str, str], log: Path) -> Row:
    """2 first run_python("pass") after a server's start."""

    async def theirs() -> float:
        async with client(command, environment, log=log, mode="legacy") as connected:
            await connected.list_tools()
            return await timed(lambda: run_python(connected, "pass"))

    async def mine() -> float:
        async with client([COMMAND], bench.environment(), log=bench.work / "bridge.log", mode="legacy") as connected:
            await connected.list_tools()
            return await timed(lambda: run_python(connected, "pass"))

    p50 = await interleaved(bench.rounds(10), {"ours": mine, "peer": theirs})
    return Row((_cold.__doc__ or "").rstrip("."), p50["ours"], p50["peer"], "ms", NAME)


async def _warm(bench: Bench, command: list[str], environment: dict[str, str], log: Path) -> Row:
    """1 later run_python("pass")."""
    async with (
        client(command, environment, log=log, mode="legacy") as theirs,
        client([COMMAND], bench.environment(), log=bench.work / "bridge.log") as mine,
    ):

        async def one_of_ours() -> float:
            await bench.settled()
            return await timed(lambda: run_python(mine, "pass"))

        async def one_of_theirs() -> float:
            return await timed(lambda: run_python(theirs, "pass"))

        p50 = await interleaved(bench.rounds(20), {"ours": one_of_ours, "peer": one_of_theirs})
    note = "Ours is a fresh container each time; the peer goes on in one container, with the state of earlier calls."
    return Row((_warm.__doc__ or "").rstrip("."), p50["ours"], p50["peer"], "ms", NAME, note=note)


async def _proxied(bench: Bench, command: list[str], environment: dict[str, str], log: Path) -> Row:
    """4 proxied call, no-op of the SDK, one by one."""
    code = INSIDE.format(tool="noop", arguments="", count=320, width=32)

    async def theirs() -> float:
        async with client(command, environment, log=log, mode="legacy") as connected:
            with anyio.fail_after(ANSWER_SECONDS):
                text = await run_python(
                    connected, code.replace("from mcp.servers import target", "target = mcp_target"), servers=["target"]
                )
        return float(json.loads(text)[0])

    async def mine() -> float:
        async with client(
            [COMMAND], bench.environment({"target": ours("noop")}), log=bench.work / "bridge.log"
        ) as connected:
            return float(json.loads(await run_python(connected, code))[0])

    p50 = await interleaved(bench.rounds(5), {"peer": theirs, "ours": mine}, warm_up=0)
    return Row((_proxied.__doc__ or "").rstrip("."), p50["ours"], p50["peer"], "ms", NAME)


def _repository() -> str:
    return str(CACHE.parent)


def _said(log: Path, error: BaseException) -> str:
    """The last error in its log, else ours."""
    innermost: Any = error
    while isinstance(innermost, BaseExceptionGroup):
        innermost = innermost.exceptions[0]
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    errors = [line.strip(" |") for line in lines if "Error: " in line]
    ours_ = f"{type(innermost).__name__} {innermost}".strip()
    return f"{ours_}; its log: {errors[-1][:200]}" if errors else ours_
