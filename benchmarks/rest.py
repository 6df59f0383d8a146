"""An engine's REST API beside its command line and beside our driver without an engine.

A container is created, attached to and started, says one line, ends, and is removed: by the requests of Docker's API,
which podman has, too; by the engine's `run`, as our driver of that engine does it; and by our driver without an engine
(OCI). The first two have no mapping of users, since that API hasn't; the last always has one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio

from benchmarks.measure import Row, interleaved
from benchmarks.runtime import sandbox_spec
from mcp_bridge import settings
from mcp_bridge.errors import BridgeError
from mcp_bridge.host.engine_setup import Prepared, prepare
from mcp_bridge.sandbox import seccomp_profile
from mcp_bridge.sandbox.isolation_flags import run_argv

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from typing import Literal

    from benchmarks.bridge import Bench
    from mcp_bridge.sandbox.engine import SandboxSpec

API = "/v1.40"
"""The oldest that has what is needed here."""

LINE = ("python3", "-c", "print(1)")

START_SECONDS = 20.0
"""For podman's service to answer."""

NOTE = "Both without a mapping of users, which that API hasn't; the driver without an engine has one."

Times = dict[str, list[float]]


async def rest(bench: Bench) -> list[Row]:
    """Both engines' APIs, where there are these engines."""
    rows = []
    for engine in ("podman", "docker"):
        try:
            rows += await _engine(bench, engine)
        except (BridgeError, OSError) as exc:
            rows.append(Row(f"{engine}'s REST API", None, None, "ms", note=f"Not measured here: {exc}"))
    return rows


async def _engine(bench: Bench, engine: Literal["podman", "docker"]) -> list[Row]:
    async with AsyncExitStack() as stack:
        theirs, config = await _prepared(bench, engine)
        ours, _ = await _prepared(bench, "oci")
        address = await stack.enter_async_context(_socket(bench, theirs))
        took: Times = {}

        def measured(
            name: str, once: Callable[[SandboxSpec], Awaitable[float]], prepared: Prepared
        ) -> Callable[[], Awaitable[float]]:
            async def work() -> float:
                """Milliseconds until it is gone; those to the first line are kept beside."""
                spec = sandbox_spec(prepared, config, LINE)
                began = time.perf_counter()
                first = await once(spec)
                took.setdefault(name, []).append((first - began) * 1000)
                return (time.perf_counter() - began) * 1000

            return work

        gone = await interleaved(
            bench.rounds(25),
            {
                "REST": measured(
                    "REST", lambda spec: _by_requests(address, _creation(engine, spec, config), spec.name), theirs
                ),
                "command": measured("command", lambda spec: _by_command(bench, theirs, spec), theirs),
                "ours": measured("ours", lambda spec: _by_driver(ours, spec), ours),
            },
        )
        first = {name: sorted(values[1:])[len(values[1:]) // 2] for name, values in took.items()}
    rows = []
    against = f"{engine}'s REST API"
    for what, figures in (("to the first line", first), ("until it is removed", gone)):
        rows.append(Row(f"a container without an engine, {what}", figures["ours"], figures["REST"], "ms", against))
        rows.append(Row(f"… by `{engine} run`", figures["command"], figures["REST"], "ms", against, note=NOTE))
    return rows


async def _prepared(bench: Bench, runtime: Literal["podman", "docker", "oci"]) -> tuple[Prepared, settings.Settings]:
    folder = bench.work / f"{runtime}-state"
    folder.mkdir(mode=0o700, exist_ok=True)
    config = settings.Settings(state_dir=folder, runtime=runtime)
    return await prepare(config), config


@asynccontextmanager
async def _socket(bench: Bench, prepared: Prepared) -> AsyncGenerator[str]:
    """The path of the socket at which the engine serves its API."""
    choice = prepared.report.choice
    if choice.engine == "docker":
        yield os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")
        return
    path = str(bench.work / "podman.sock")
    command = [*choice.command, "system", "service", "--time=0", f"unix://{path}"]
    environment = {**os.environ, **choice.environment}
    process = await anyio.open_process(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        with anyio.fail_after(START_SECONDS):
            while not await anyio.Path(path).exists():  # noqa: ASYNC110  (the service tells nobody)
                await anyio.sleep(0.05)
        yield path
    finally:
        process.terminate()
        await process.wait()
        await process.aclose()


# One container, each; the time of its first line.


async def _by_requests(address: str, creation: dict[str, Any], name: str) -> float:
    made = json.loads(await _request(address, "POST", f"/containers/create?name={name}", creation))
    container = made["Id"]
    try:
        reader, writer = await asyncio.open_unix_connection(address)
        try:
            streams = "stream=1&stdin=1&stdout=1&stderr=1"
            writer.write(_head("POST", f"/containers/{container}/attach?{streams}", b"", upgrade=True))
            await reader.readuntil(b"\r\n\r\n")
            await _request(address, "POST", f"/containers/{container}/start")
            line = await reader.read(4096)
            first = time.perf_counter()
            assert b"1\n" in line + await reader.read(), line
        finally:
            writer.close()
    finally:
        await _request(address, "DELETE", f"/containers/{container}?force=1")
    return first


async def _by_command(bench: Bench, prepared: Prepared, spec: SandboxSpec) -> float:
    # What is compared has the same flags.
    choice = dataclasses.replace(prepared.report.choice, userns="")
    cidfile = bench.work / f"{spec.name}.cid"
    argv = run_argv(choice, spec, cidfile=cidfile, profile=seccomp_profile.PROFILE)
    process = await anyio.open_process(argv, stdin=subprocess.DEVNULL, env={**os.environ, **choice.environment})
    async with process:
        assert process.stdout is not None
        line = await process.stdout.receive()
        first = time.perf_counter()
        assert line == b"1\n", line
        await process.wait()
    return first


async def _by_driver(prepared: Prepared, spec: SandboxSpec) -> float:
    process = await prepared.engine.start(spec)
    try:
        line = await process.stdout.receive()
        first = time.perf_counter()
        assert line == b"1\n", line
        await process.wait()
        await prepared.engine.remove(await process.container_id())
    finally:
        await process.aclose()
    return first


# The API.


def _creation(engine: str, spec: SandboxSpec, config: settings.Settings) -> dict[str, Any]:
    """What `isolation_flags.run_argv` says, as far as the API has it."""
    limits, profile = spec.limits, seccomp_profile.PROFILE
    tmpfs = "rw,noexec,nosuid,nodev,mode=1777,size="
    return {
        "Image": spec.image,
        "Cmd": list(spec.argv),
        "Entrypoint": [],
        "Env": [f"{name}={value}" for name, value in spec.environment.items()],
        "User": config.container_user,
        "WorkingDir": "/workspace",
        "Hostname": "sandbox",
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": {
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", f"seccomp={profile if engine == 'podman' else profile.read_text()}"],
            "CgroupnsMode": "private",
            "IpcMode": "private",
            "LogConfig": {"Type": "none"},
            "Memory": limits.memory,
            "MemorySwap": limits.memory,
            "PidsLimit": limits.pids,
            "NanoCpus": int(limits.cpus * 1e9),
            "ShmSize": limits.shm,
            "Tmpfs": {"/tmp": f"{tmpfs}{limits.tmp}", "/workspace": f"{tmpfs}{limits.workspace}"},  # noqa: S108
            "Ulimits": [{"Name": name, "Soft": 0, "Hard": 0} for name in ("core", "msgqueue")]
            + [{"Name": name, "Soft": 1024, "Hard": 1024} for name in ("nofile", "nproc")],
        },
    }


def _head(method: str, path: str, body: bytes, *, upgrade: bool = False) -> bytes:
    lines = [f"{method} {API}{quote(path, safe='/?&=')} HTTP/1.1", "Host: engine", f"Content-Length: {len(body)}"]
    lines += ["Connection: Upgrade", "Upgrade: tcp"] if upgrade else ["Connection: close"]
    lines += ["Content-Type: application/json"] if body else []
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _request(address: str, method: str, path: str, content: dict[str, Any] | None = None) -> bytes:
    """The body of the answer.

    Raises:
        OSError: The engine has refused.
    """
    reader, writer = await asyncio.open_unix_connection(address)
    try:
        writer.write(_head(method, path, b"" if content is None else json.dumps(content).encode()))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if not head.split(b" ", 2)[1].startswith(b"2"):
        raise OSError(f"{method} {path}: {head[:100]!r} {body[:500]!r}")
    if b"chunked" in head.lower():
        size, _, rest_of_it = body.partition(b"\r\n")
        return rest_of_it[: int(size or b"0", 16)]
    return body
