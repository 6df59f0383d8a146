"""The command line that starts a sandbox: all isolation that an engine's flags provide, in one place.

Pure functions: a runtime choice and a specification go in, an argument vector comes out. The table `DIFFERENCES` holds
what differs between Podman and Docker; everything else is common.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_bridge.sandbox.engine import SandboxSpec

EngineName = Literal["oci", "podman", "docker"]
"""`oci` is an OCI runtime without a container engine."""

MASKED = (
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/kallsyms",
    "/proc/key-users",  # counts the keyrings of the sandboxes with the same users
    "/proc/modules",
    "/proc/partitions",
    "/proc/pressure",  # anyone may write triggers here
    "/proc/version",
    "/sys/devices/virtual/dmi",
)
"""Files that reveal the host and that scripts don't need; the engines mask further ones themselves."""

PODMAN = (
    # Otherwise /run and /var/tmp are writable, executable and unlimited. From 4.7 on it makes /dev and /dev/shm
    # read-only, too: /dev/shm is mounted like the other scratch directories.
    "--read-only-tmpfs=false",
    "--no-hosts",  # otherwise /etc/hosts names the host
    "--http-proxy=false",  # otherwise the host's proxy variables, with passwords, are passed on
    "--systemd=false",  # otherwise a command called init gets writable mounts
    "--sdnotify=ignore",
    "--image-volume=ignore",  # otherwise an image's VOLUME is a writable directory on the host's disk
    "--detach-keys=",  # no byte on stdin may detach the client
    "--security-opt=mask=" + ":".join(MASKED),
    # Process 1 is hidden: its start would tell the script how long its container has waited. Docker has no such flag.
    "--security-opt=proc-opts=hidepid=2",
)

PODMAN_4 = (
    "--unsetenv-all",
    "--passwd=false",  # otherwise it adds a line for the user, with the host's shell and home directory
)
"""From Podman 4.2 on."""

DOCKER = (
    "--dns=127.0.0.1",  # otherwise /etc/resolv.conf names the host's name servers
    "--dns-search=.",
)

DIFFERENCES: Mapping[EngineName, tuple[str, ...]] = {"podman": PODMAN, "docker": DOCKER}
"""Flags of one engine only. Docker can't mask /proc/cmdline, hide process 1, ignore an image's VOLUME, or map
users per container."""

COMMON = (
    "--rm",
    "--interactive",
    "--pull=never",
    "--entrypoint=",
    "--network=none",
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--cgroupns=private",
    "--ipc=private",  # with `none`, multiprocessing.Lock would lack its /dev/shm
    "--hostname=sandbox",
    "--log-driver=none",  # output is the channel: no second copy on disk
    "--no-healthcheck",
    "--workdir=/workspace",
    "--ulimit=core=0:0",
    "--ulimit=msgqueue=0:0",  # limits the size of /dev/mqueue, which is writable
)


LEAST_DATA = 192 * 1024 * 1024
"""The least RLIMIT_DATA. It applies to the OCI runtime's start too: runc 1.1.5 fails with 64 MiB and starts with 96."""


@dataclass(frozen=True, slots=True)
class Enforced:
    """Which limits the control groups enforce on this host, as the trial has shown.

    The command inside must enforce the others: `guest/init.py` lowers its rlimits.
    """

    memory: bool
    pids: bool
    cpus: bool

    def more_than(self, other: Enforced) -> bool:
        """Whether these are all of another's limits, and further ones."""
        return self != other and all(
            ours or not theirs for ours, theirs in zip(astuple(self), astuple(other), strict=True)
        )


@dataclass(frozen=True, slots=True)
class RuntimeChoice:
    """The engine to use and how to call it; the result of the probe.

    Attributes:
        engine: The engine's name.
        path: Its executable; without an engine, the OCI runtime's.
        version: The version that it reports, for example `4.3.1`.
        rootless: Whether it runs without root on the host.
        global_args: Arguments before the sub-command, for every call.
        oci_runtime: The chosen OCI runtime; empty for the engine's default.
        seccomp: Whether our seccomp profile is applied.
        userns: A mapping for `--uidmap` and `--gidmap`; empty for none, and without an engine, which always maps users.
        enforced: The limits that control groups enforce.
        nofile_max: The maximum for RLIMIT_NOFILE.
        nproc_max: The maximum for RLIMIT_NPROC.
        environment: Variables to set for every call of the engine.
    """

    engine: EngineName
    path: str
    version: str
    rootless: bool
    global_args: tuple[str, ...] = ()
    oci_runtime: str = ""
    seccomp: bool = True
    userns: str = ""
    enforced: Enforced = Enforced(memory=True, pids=True, cpus=True)
    nofile_max: int = 1024
    nproc_max: int = 4096
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> tuple[str, ...]:
        """The engine's executable and its global arguments."""
        return (self.path, *self.global_args)

    @property
    def invocation(self) -> tuple[str, tuple[str, ...]]:
        """An executable and arguments that call the engine in its environment, for callers that can't set variables."""
        if not self.environment:
            return self.path, self.global_args
        assignments = (f"{name}={value}" for name, value in self.environment.items())
        return "/usr/bin/env", (*assignments, *self.command)

    @property
    def uid_per_container(self) -> bool:
        """Whether RLIMIT_NPROC, which counts per uid, must replace the pids limit.

        Without an engine each container has a uid of its own on the host already, and the same one inside.
        """
        return self.engine != "oci" and not self.enforced.pids

    @property
    def maps_users(self) -> bool:
        """Whether the container's users are others than the host's of the same numbers."""
        return self.engine == "oci" or self.rootless or bool(self.userns)

    @property
    def title(self) -> str:
        """The engine's name as people know it; without an engine, the OCI runtime's."""
        return self.oci_runtime if self.engine == "oci" else self.engine

    def at_least(self, *version: int) -> bool:
        """Whether the engine has this version or a later one; an unparsable version counts as old."""
        try:
            return tuple(int(part) for part in self.version.split(".")[: len(version)]) >= version
        except ValueError:
            return False


def run_argv(
    choice: RuntimeChoice,
    spec: SandboxSpec,
    *,
    cidfile: Path,
    profile: Path,
    user: str | None = None,
    unset: Sequence[str] = (),
    monitor: Path | None = None,
) -> list[str]:
    """The argument vector that starts `spec`.

    Args:
        choice: The engine, and the features that work on this host.
        spec: The container.
        cidfile: The file to which the engine writes the container's id; must not exist.
        profile: The seccomp profile.
        user: Replaces the specification's user, for a uid per container.
        unset: Variables of the image to unset (Docker; Podman drops all of them itself).
        monitor: The file to which Podman writes the process id of the container's monitor; None if the monitor isn't on
            this machine.
    """
    return [
        *choice.command,
        "run",
        *COMMON,
        *DIFFERENCES[choice.engine],
        *(PODMAN_4 if choice.engine == "podman" and choice.at_least(4, 2) else ()),
        f"--cidfile={cidfile}",
        *([f"--conmon-pidfile={monitor}"] if monitor is not None and choice.engine == "podman" else ()),
        f"--name={spec.name}",
        *(f"--label={name}={value}" for name, value in sorted(spec.labels.items())),
        f"--user={user or spec.user}",
        *_isolation(choice, profile),
        *_limits(choice, spec),
        *_tmpfs("/tmp", spec.limits.tmp),  # noqa: S108 - the container's
        *_tmpfs("/workspace", spec.limits.workspace),
        *_tmpfs("/dev/shm", spec.limits.shm),  # noqa: S108 - the container's
        *(f"--env={name}" for name in unset if name not in spec.environment and choice.engine == "docker"),
        *(f"--env={name}={value}" for name, value in spec.environment.items()),
        spec.image,
        *spec.argv,
    ]


def _isolation(choice: RuntimeChoice, profile: Path) -> list[str]:
    out = []
    if choice.seccomp:
        out.append(f"--security-opt=seccomp={profile}")
    if choice.userns:
        out += [f"--uidmap={choice.userns}", f"--gidmap={choice.userns}"]
    if choice.oci_runtime and choice.engine == "docker":
        # For Podman it is a global argument, so that kill and rm use the same runtime.
        out.append(f"--runtime={choice.oci_runtime}")
    return out


def _limits(choice: RuntimeChoice, spec: SandboxSpec) -> list[str]:
    limits, enforced = spec.limits, choice.enforced
    nofile = min(limits.nofile, choice.nofile_max)
    # RLIMIT_NPROC is high here because it counts per user. If it has to replace the control group's limit, process 1
    # lowers it: the OCI runtime runs as the engine's user, and would fail beside a few other containers.
    nproc = choice.nproc_max
    out = [f"--ulimit=nofile={nofile}:{nofile}", f"--ulimit=nproc={nproc}:{nproc}"]
    if enforced.pids:
        out.append(f"--pids-limit={limits.pids}")
    if enforced.memory:
        out += [f"--memory={limits.memory}", f"--memory-swap={limits.memory}"]
    else:
        # Applies to each process separately: the best available without a control group.
        data = max(limits.memory + limits.reserved, LEAST_DATA)
        out.append(f"--ulimit=data={data}:{data}")
    if enforced.cpus:
        out.append(f"--cpus={limits.cpus:g}")
    return out


def _tmpfs(path: str, size: int) -> list[str]:
    return [f"--tmpfs={path}:rw,noexec,nosuid,nodev,size={size},mode=1777"]
