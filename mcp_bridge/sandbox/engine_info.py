"""An engine's description of itself, and how it must be called on this host."""

from __future__ import annotations

import json
import os
import resource
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp_bridge.sandbox import subordinate_ids
from mcp_bridge.sandbox.image.host_tools import ToolResult, run_tool
from mcp_bridge.sandbox.isolation_flags import RuntimeChoice
from mcp_bridge.sandbox.probe_report import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.sandbox.isolation_flags import EngineName

INFO_SECONDS = 60.0
"""How long the engine may take to answer: after a boot Podman checks its store, and a daemon may be starting."""

_NPROC_MOST = 32768
"""Podman's own default, to which conmon is limited without CAP_SYS_RESOURCE, whatever our hard limit is."""

_NOFILE_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """An engine that answers.

    Attributes:
        choice: How to call it, before an OCI runtime is chosen and features are tried.
        default_runtime: Its default OCI runtime.
        cgroup_version: `1` or `2`.
        remote: Whether containers run on another machine, or in a virtual machine.
        findings: Findings that require no container.
    """

    choice: RuntimeChoice
    default_runtime: str
    cgroup_version: str
    remote: bool
    findings: tuple[Finding, ...]


async def engine_info(name: EngineName, path: str) -> EngineInfo | Finding:
    """Query the engine at `path`; returns a finding if it doesn't answer."""
    findings: list[Finding] = []
    environment = _environment(findings) if name == "podman" else {}
    logging = ("--log-level=error",) if name == "podman" else ()
    try:
        result = await run_tool(
            [path, *logging, "info", "--format={{json .}}"], seconds=INFO_SECONDS, environment=environment
        )
    except TimeoutError:
        return Finding("error", "engine_silent", f"{name} did not answer within {INFO_SECONDS:.0f} s.")
    except OSError as error:
        return Finding("error", "engine_broken", f"{path} can't be started: {error.strerror}.")
    try:
        facts: dict[str, Any] = json.loads(result.stdout)
        if name == "podman":
            return _podman(path, facts, environment, findings)
        if "host" in facts:
            return Finding("warning", "engine_alias", "The docker command is an alias of podman.")
        if facts.get("ServerErrors") or not facts.get("ServerVersion"):
            return _no_answer(name, result, str((facts.get("ServerErrors") or [""])[0]))
        return _docker(path, facts, findings)
    except (ValueError, KeyError, TypeError, AttributeError):
        return _no_answer(name, result, "")


def _no_answer(name: EngineName, result: ToolResult, said: str) -> Finding:
    if name == "podman" and os.getuid() != 0 and sys.platform == "linux" and not os.environ.get("CONTAINER_HOST"):
        # By far the most frequent cause, for which the engine's own message isn't helpful.
        lacking = subordinate_ids.missing()
        if lacking is not None:
            return lacking
    hints = {
        "podman": "Run `podman info` and see; on macOS `podman machine start`; a rootless user needs ranges in "
        "/etc/subuid and /etc/subgid and the package uidmap.",
        "docker": "Start the Docker daemon, and see that this user may speak to it (group docker, or DOCKER_HOST).",
    }
    return Finding("error", "engine_silent", f"{name} does not work: {said or result.tail()}", hints[name])


def _podman(
    path: str, facts: dict[str, Any], environment: Mapping[str, str], findings: list[Finding]
) -> EngineInfo | Finding:
    host = facts["host"]
    rootless = bool(host["security"]["rootless"])
    remote = bool(host.get("serviceIsRemote"))
    # Warnings would appear on stderr, which is for PID 1's reports.
    arguments = ["--log-level=error"]
    if not remote:
        if host.get("cgroupManager") == "systemd" and not _systemd_session(rootless=rootless):
            arguments.append("--cgroup-manager=cgroupfs")
        if host.get("eventLogger") == "journald" and not Path("/run/systemd/journal/socket").exists():
            arguments.append("--events-backend=file")
    driver = str(facts["store"]["graphDriverName"])
    if driver == "vfs":
        findings.append(
            Finding(
                "warning",
                "storage_vfs",
                "Podman's storage driver is vfs: every start copies the whole image.",
                'Install fuse-overlayfs, put `[storage]` and `driver = "overlay"` into '
                f"{facts['store'].get('configFile', 'storage.conf')}, then `podman system reset`, "
                "which removes this user's images and containers.",
            )
        )
    if rootless and not remote and not _maps_users(host) and (lacking := subordinate_ids.missing()):
        # Checked before an image is built, which would fail with a less clear message.
        return lacking
    return EngineInfo(
        RuntimeChoice(
            engine="podman",
            path=path,
            version=str(facts["version"]["Version"]),
            rootless=rootless,
            global_args=tuple(arguments),
            nofile_max=nofile_max(),
            nproc_max=nproc_max(),
            environment=environment,
        ),
        default_runtime=str(host["ociRuntime"]["name"]),
        cgroup_version=str(host.get("cgroupVersion", "")).removeprefix("v"),
        remote=remote,
        findings=tuple(findings),
    )


def _maps_users(host: dict[str, Any]) -> bool:
    """Whether the engine can map other users than its own into a sandbox."""
    rows = (host.get("idMappings") or {}).get("uidmap") or ()
    return sum(int(row["size"]) for row in rows) > 1


def _docker(path: str, facts: dict[str, Any], findings: list[Finding]) -> EngineInfo:
    options = " ".join(facts.get("SecurityOptions") or ())
    if facts.get("Driver") == "vfs":
        findings.append(
            Finding(
                "warning",
                "storage_vfs",
                "Docker's storage driver is vfs: every start copies the whole image.",
                'Set `"storage-driver": "overlay2"` in /etc/docker/daemon.json.',
            )
        )
    return EngineInfo(
        RuntimeChoice(
            engine="docker",
            path=path,
            version=str(facts["ServerVersion"]),
            rootless="name=rootless" in options,
            # Our own limits don't apply to the daemon, but it can grant at least as much.
            nofile_max=nofile_max(),
            nproc_max=nproc_max(),
        ),
        default_runtime=str(facts.get("DefaultRuntime") or ""),
        cgroup_version=str(facts.get("CgroupVersion") or ""),
        remote=str(facts.get("Name")) != os.uname().nodename,
        findings=tuple(findings),
    )


def _environment(findings: list[Finding]) -> dict[str, str]:
    """A replacement for an XDG_RUNTIME_DIR of another user, with which Podman refuses to start (after `su`, `sudo`)."""
    named = os.environ.get("XDG_RUNTIME_DIR")
    if not named or _is_ours(Path(named)):
        return {}
    own = Path(tempfile.gettempdir()) / f"mcp-bridge-run-{os.getuid()}"
    try:
        own.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return {}
    if not _is_ours(own):
        return {}
    findings.append(
        Finding(
            "warning",
            "runtime_directory",
            f"XDG_RUNTIME_DIR is {named}, which this user can't use; {own} stands in.",
            "Log in directly rather than by `su`, or unset XDG_RUNTIME_DIR.",
        )
    )
    return {"XDG_RUNTIME_DIR": str(own)}


def _is_ours(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and os.access(path, os.W_OK | os.X_OK)


def _systemd_session(*, rootless: bool) -> bool:
    if not rootless:
        return Path("/run/systemd/system").exists()
    return Path(os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}"), "systemd", "private").exists()


def nofile_max() -> int:
    """The most open files that this process may allow a sandbox."""
    return _hard(resource.RLIMIT_NOFILE, _NOFILE_MOST)


def nproc_max() -> int:
    """The most processes that this process may allow a sandbox's user."""
    return _hard(resource.RLIMIT_NPROC, _NPROC_MOST)


def _hard(limit: int, most: int) -> int:
    value = resource.getrlimit(limit)[1]
    return most if value == resource.RLIM_INFINITY else min(value, most)
