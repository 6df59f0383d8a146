"""The OCI runtime alone: `runc run` on a bundle with our image's files and what podman tells it of a sandbox."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from benchmarks.measure import timed
from mcp_bridge import settings
from mcp_bridge.host.engine_setup import prepare
from mcp_bridge.sandbox import seccomp_profile
from mcp_bridge.sandbox.engine import Limits, SandboxSpec
from mcp_bridge.sandbox.image.store import ENVIRONMENT
from mcp_bridge.sandbox.isolation_flags import run_argv

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from benchmarks.bridge import Bench
    from mcp_bridge.host.engine_setup import Prepared

NOTHING = ("python3", "-c", "pass")


ONLY_OF_RUN = {"--rm", "--detach-keys", "--passwd"}
"""Flags that `podman run` has and `podman create` lacks."""


class UnavailableError(Exception):
    """A peer can't be had on this machine; the message says why."""


def sandbox_spec(prepared: Prepared, config: settings.Settings, argv: Sequence[str]) -> SandboxSpec:
    """A sandbox as the bridge has it, with a command of one's own."""
    return SandboxSpec(
        image=prepared.image.reference,
        name=f"mcp-bridge-bench-{time.monotonic_ns()}",
        argv=list(argv),
        limits=Limits(
            memory=config.memory,
            pids=config.pids,
            cpus=config.cpus,
            tmp=config.tmp_size,
            workspace=config.workspace_size,
        ),
        user=config.container_user,
        environment=ENVIRONMENT,
    )


def sandbox_argv(prepared: Prepared, config: settings.Settings, bench: Bench) -> list[str]:
    """The engine's `run` with the flags of a sandbox, whose command does nothing."""
    spec = sandbox_spec(prepared, config, NOTHING)
    cidfile = bench.work / f"{spec.name}.cid"
    return run_argv(prepared.report.choice, spec, cidfile=cidfile, profile=seccomp_profile.PROFILE)


async def prepared_engine(bench: Bench) -> tuple[Prepared, settings.Settings]:
    """Podman with the bridge's image, whatever driver a bridge takes here; Docker where there is no podman.

    In a state directory of its own: what is found out for one driver isn't found out for another.
    """
    folder = bench.work / "engine-state"
    folder.mkdir(mode=0o700, exist_ok=True)
    config = settings.Settings(state_dir=folder, runtime="podman" if shutil.which("podman") else "docker")
    return await prepare(config), config


@dataclass
class Bundle:
    """A bundle, shared by all containers that are made of it.

    Attributes:
        name: Of the runtime, with its version.
    """

    name: str
    _command: tuple[str, ...]
    _folder: Path
    _numbers: itertools.count[int]

    async def run(self) -> float:
        """Milliseconds from the start of `runc run` to its end: the container is gone then."""
        identity = f"mcp-bridge-bench-{os.getpid()}-{next(self._numbers)}"
        argv = [*self._command, "run", "--bundle", str(self._folder), identity]
        return await timed(lambda: anyio.run_process(argv, stdin=subprocess.DEVNULL))


@asynccontextmanager
async def bundle(bench: Bench) -> AsyncGenerator[Bundle]:
    """A bundle of our image, removed with the block.

    Raises:
        UnavailableError: There is no runtime, or no podman to make the configuration.
    """
    if shutil.which("podman") is None:
        raise UnavailableError("podman, which makes the bundle's configuration, isn't installed")
    prepared, config = await prepared_engine(bench)
    choice = prepared.report.choice
    runtime = shutil.which(choice.oci_runtime or "runc") or shutil.which("crun")
    if runtime is None:
        raise UnavailableError("neither runc nor crun is installed")
    if choice.rootless:
        raise UnavailableError("only measured as root: podman's rootless configuration is made for its own namespace")
    version = (await anyio.run_process([runtime, "--version"])).stdout.decode().split()[2]
    # Root in the container's user namespace has to get through to the files.
    folder = Path(await anyio.to_thread.run_sync(tempfile.mkdtemp, "-bundle", "mcp-bridge-bench-"))
    try:
        await anyio.Path(folder).chmod(0o711)
        await _export(list(choice.command), sandbox_argv(prepared, config, bench), folder)
        command = (runtime, "--root", str(folder / "state"))
        yield Bundle(f"{Path(runtime).name} {version}", command, folder, itertools.count())
    finally:
        await anyio.to_thread.run_sync(shutil.rmtree, folder)


async def _export(podman: list[str], run: list[str], folder: Path) -> None:
    """Write the files and the configuration of the container that podman makes of an argument vector."""
    flags = (part for part in run[len(podman) + 1 :] if part.split("=")[0] not in ONLY_OF_RUN)
    create = [*podman, "create", *flags]
    container = (await anyio.run_process(create)).stdout.decode().strip()
    try:
        await anyio.run_process([*podman, "init", container])
        shown = await anyio.run_process([*podman, "inspect", "--format", "{{.OCIConfigPath}}", container])
        found = json.loads(await anyio.Path(shown.stdout.decode().strip()).read_text())
        (folder / "rootfs").mkdir()
        tar = folder / "root.tar"
        await anyio.run_process([*podman, "export", "--output", str(tar), container])
        await anyio.run_process(["tar", "-x", "-f", str(tar), "-C", str(folder / "rootfs")])
        tar.unlink()
    finally:
        await anyio.run_process([*podman, "rm", "--force", container])
    (folder / "config.json").write_text(json.dumps(_configuration(found, folder)))


def _configuration(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What podman tells the runtime, without what only podman has: its files, hooks and network."""
    made = found | {"root": found["root"] | {"path": str(folder / "rootfs")}}
    made.pop("hooks", None)
    made["process"]["terminal"] = False
    made["mounts"] = [_mount(mount) for mount in found["mounts"] if mount["type"] != "bind" or _is_shm(mount)]
    for namespace in made["linux"]["namespaces"]:
        namespace.pop("path", None)
    made["linux"].pop("cgroupsPath", None)
    return made


def _is_shm(mount: dict[str, Any]) -> bool:
    return bool(mount["destination"] == "/dev/shm")  # noqa: S108 - in the container


def _mount(mount: dict[str, Any]) -> dict[str, Any]:
    if not _is_shm(mount):
        return mount
    options = ["nosuid", "noexec", "nodev", "mode=1777", "size=16m"]
    return {"destination": mount["destination"], "type": "tmpfs", "source": "shm", "options": options}
