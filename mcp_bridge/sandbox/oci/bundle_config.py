"""The `config.json` of a bundle: what an OCI runtime is told about one sandbox.

It gives what the flags of `isolation_flags.py` give through an engine. What the engines add by themselves (masked
paths, mounts of /proc, /dev and /sys, the devices control group) is spelled out here.

Source: OCI Runtime Specification 1.0.2, config.md and config-linux.md.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from mcp_bridge.sandbox import seccomp_profile
from mcp_bridge.sandbox.isolation_flags import LEAST_DATA, MASKED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.sandbox.engine import Limits, SandboxSpec
    from mcp_bridge.sandbox.isolation_flags import RuntimeChoice

HOST_NAME = "sandbox"

_CPU_PERIOD = 100_000
"""Microseconds; the kernel's default."""

_MASKED_BY_ENGINES = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/dev/block",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/selinux",
)
"""What podman and Docker mask by default, in any of their versions."""

_READ_ONLY = (
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
)

_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


@dataclass(frozen=True, slots=True)
class Users:
    """The host ids of a sandbox's two users, seen from the namespace in which the runtime runs.

    Attributes:
        root: User 0 of the sandbox, as which only the runtime works while it builds the sandbox.
        own: The sandbox's user and group. No other sandbox of the bridge has it, because the kernel counts by user.
    """

    root: int
    own: int


def render(
    choice: RuntimeChoice,
    spec: SandboxSpec,
    *,
    annotations: Mapping[str, str],
    root: str,
    users: Users,
    cgroup: str,
    cgroup_version: str,
    oom_score: int,
) -> str:
    """The text of `config.json`.

    Args:
        choice: The runtime, and the limits that control groups enforce.
        spec: The sandbox.
        annotations: The labels by which the driver knows the sandbox.
        root: The absolute path of the image's root file system.
        users: The host's ids for the sandbox's users.
        cgroup: The path of the sandbox's control group, from the root of each hierarchy.
        cgroup_version: As `host.cgroup_version`.
        oom_score: Its `oom_score_adj`, which only a privileged process may set below its own.
    """
    uid, gid = (int(number) for number in spec.user.split(":"))
    has_cgroup = any((choice.enforced.memory, choice.enforced.pids, choice.enforced.cpus))
    linux: dict[str, Any] = {
        "uidMappings": _mapping(users, uid),
        "gidMappings": _mapping(users, gid),
        "namespaces": [{"type": kind} for kind in ("user", "pid", "network", "ipc", "uts", "mount", "cgroup")],
        "maskedPaths": sorted({*MASKED, *_MASKED_BY_ENGINES}),
        "readonlyPaths": list(_READ_ONLY),
        "resources": _resources(choice, spec.limits),
    }
    if has_cgroup:
        linux["cgroupsPath"] = cgroup
    if choice.seccomp:
        linux["seccomp"] = seccomp()
    return json.dumps(
        {
            "ociVersion": "1.0.2",
            "hostname": HOST_NAME,
            "root": {"path": root, "readonly": True},
            "mounts": _mounts(spec.limits, cgroup_version if has_cgroup else ""),
            "process": {
                "terminal": False,
                "user": {"uid": uid, "gid": gid},
                "args": list(spec.argv),
                "env": [f"{name}={value}" for name, value in {**spec.environment, "HOSTNAME": HOST_NAME}.items()],
                "cwd": "/workspace",
                "capabilities": {kind: [] for kind in _CAPABILITY_SETS},
                "noNewPrivileges": True,
                "oomScoreAdj": oom_score,
                "rlimits": _rlimits(choice, spec.limits),
            },
            "annotations": dict(annotations),
            "linux": linux,
        }
    )


_CAPABILITY_SETS = ("bounding", "effective", "inheritable", "permitted", "ambient")


def _mapping(users: Users, own: int) -> list[dict[str, int]]:
    rows = [{"containerID": 0, "hostID": users.root, "size": 1}]
    if own:
        rows.append({"containerID": own, "hostID": users.own, "size": 1})
    return rows


def _mounts(limits: Limits, cgroups: str) -> list[dict[str, Any]]:
    safe = ["nosuid", "noexec", "nodev"]
    return [
        # Process 1, whose memory is closed to the script, is hidden from it: its start tells how long it has waited.
        _mount("/proc", "proc", [*safe, "hidepid=2"]),
        _mount("/dev", "tmpfs", ["nosuid", "noexec", "strictatime", "mode=755", "size=65536k"]),
        # No `gid=5`: the group tty has no number in the sandbox's user namespace.
        _mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
        _mount("/dev/mqueue", "mqueue", safe),
        _mount("/dev/shm", "tmpfs", [*safe, "mode=1777", f"size={limits.shm}"]),  # noqa: S108 - the sandbox's
        _mount("/sys", "sysfs", [*safe, "ro"]),
        # Without a group of its own a sandbox would see the bridge's, and those below it.
        *([_mount("/sys/fs/cgroup", "cgroup", [*safe, "ro"])] if cgroups else []),
        # Otherwise anyone may write to the tmpfs on which crun mounts the hierarchies of version 1.
        *([_mount("/sys/fs/cgroup", "tmpfs", [*safe, "ro", "remount"])] if cgroups == "1" else []),
        _mount("/tmp", "tmpfs", [*safe, "mode=1777", f"size={limits.tmp}"]),  # noqa: S108
        _mount("/workspace", "tmpfs", [*safe, "mode=1777", f"size={limits.workspace}"]),
    ]


def _mount(destination: str, kind: str, options: list[str]) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": kind, "options": options}


def _rlimits(choice: RuntimeChoice, limits: Limits) -> list[dict[str, Any]]:
    nofile = min(limits.nofile, choice.nofile_max)
    values = {"NOFILE": nofile, "NPROC": choice.nproc_max, "CORE": 0, "MSGQUEUE": 0}
    if not choice.enforced.memory:
        # For each process by itself: the best that there is without a control group.
        values["DATA"] = max(limits.memory + limits.reserved, LEAST_DATA)
    return [{"type": f"RLIMIT_{name}", "soft": value, "hard": value} for name, value in values.items()]


def _resources(choice: RuntimeChoice, limits: Limits) -> dict[str, Any]:
    enforced = choice.enforced
    out: dict[str, Any] = {"devices": [{"allow": False, "access": "rwm"}]}
    if enforced.memory:
        out["memory"] = {"limit": limits.memory, "swap": limits.memory}
    if enforced.pids:
        out["pids"] = {"limit": limits.pids}
    if enforced.cpus:
        out["cpu"] = {"quota": int(limits.cpus * _CPU_PERIOD), "period": _CPU_PERIOD}
    return out


@cache
def seccomp() -> dict[str, Any]:
    """The seccomp profile for this machine's architecture, in the specification's format.

    The engines' format differs by its `archMap`, from which they choose. No other system call table is admitted, so a
    call through one (i386, x32) kills the process. libseccomp skips calls that it has no number for: such a call gets
    the default action, EPERM, or ENOSYS if it is newer than all that libseccomp knows.
    """
    profile = seccomp_profile.profile()
    machine = _ARCHITECTURES.get(platform.machine())
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": [machine] if machine else [],
        "syscalls": profile["syscalls"],
    }
