"""Which OCI runtimes this host has, and whether the OCI driver could use them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_bridge.sandbox import subordinate_ids
from mcp_bridge.sandbox.engine_info import EngineInfo, nofile_max, nproc_max
from mcp_bridge.sandbox.image.host_tools import run_tool
from mcp_bridge.sandbox.isolation_flags import RuntimeChoice
from mcp_bridge.sandbox.oci import host_resources
from mcp_bridge.sandbox.probe_report import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNTIMES = ("crun", "runc")
"""The runtimes that the driver knows, the faster one first."""

VERSION_SECONDS = 10.0
"""How long a runtime may take to print its version."""

ELSEWHERE = ("CONTAINER_HOST", "CONTAINER_CONNECTION", "DOCKER_HOST", "DOCKER_CONTEXT")
"""Variables by which a user says that containers run elsewhere, or in an engine of their choice."""

_VERSION = re.compile(r"\bversion (\S+)")


def not_wanted(oci_runtime: str, image: str | None) -> str | None:
    """Why `auto` doesn't try this driver; None if it does."""
    if image is not None:
        return f"the configured image {image} is a container engine's"
    if oci_runtime not in {"auto", *RUNTIMES}:
        return f"it doesn't know the configured OCI runtime {oci_runtime}"
    return next((f"{name} names a container engine" for name in ELSEWHERE if os.environ.get(name)), None)


async def candidates(oci_runtime: str, state_dir: Path) -> list[EngineInfo] | Finding:
    """The runtimes to try, or a finding if there is none or this host lacks something else.

    Args:
        oci_runtime: A runtime's name, or `auto`.
        state_dir: The state directory.
    """
    rootless = os.geteuid() != 0
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):
        return Finding("error", "engine_silent", "OCI runtimes without a container engine need Linux.")
    names = [name for name in (RUNTIMES if oci_runtime == "auto" else (oci_runtime,)) if shutil.which(name)]
    if not names:
        said = (
            f"neither {' nor '.join(RUNTIMES)} is installed" if oci_runtime == "auto" else f"no {oci_runtime} is there"
        )
        return Finding("warning", "engine_absent", f"{said}.", "On Debian: `apt-get install crun`.")
    if rootless:
        if (lacking := subordinate_ids.missing()) is not None:
            return lacking
        try:
            subordinate_ids.ranges()
        except LookupError as error:
            return Finding("error", "no_subordinate_ids", f"{error.args[0]}.")
    if (hindered := _hindered_mounts(state_dir, names)) is not None:
        return hindered
    return [await _info(name, rootless=rootless) for name in names]


def _hindered_mounts(state_dir: Path, names: list[str]) -> Finding | None:
    """A finding if images can't be mounted in a mount namespace, or would hide something that is needed there."""
    mounts = Path(host_resources.MOUNTS)
    hidden = next((path for path in _needed(state_dir, names) if mounts in path.parents), None)
    if mounts.is_dir() and hidden is None:
        return None
    return Finding(
        "error",
        "engine_silent",
        f"An OCI runtime by itself needs {mounts} for mounts in a namespace of its own, "
        + (f"where {hidden} is." if hidden else "which is no directory."),
    )


def _needed(state_dir: Path, names: list[str]) -> Iterator[Path]:
    """What must not be hidden from the supervisor."""
    yield state_dir.resolve()
    yield Path(sys.executable).resolve()
    yield Path(__file__).resolve()
    for name in names:
        yield Path(shutil.which(name) or name).resolve()


async def _info(name: str, *, rootless: bool) -> EngineInfo:
    path = shutil.which(name) or name
    try:
        result = await run_tool([path, "--version"], seconds=VERSION_SECONDS)
        found = _VERSION.search(result.stdout)
    except (OSError, TimeoutError):
        found = None
    choice = RuntimeChoice(
        engine="oci",
        path=path,
        version=found[1] if found else "",
        rootless=rootless,
        oci_runtime=name,
        nofile_max=nofile_max(),
        nproc_max=nproc_max(),
    )
    return EngineInfo(choice, name, host_resources.cgroup_version(), remote=False, findings=())
