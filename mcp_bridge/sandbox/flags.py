"""The command line of one run: every wall of the sandbox that an engine's flags can build, in one place.

Pure: a runtime choice and a specification in, an argument vector out. Where Podman and Docker differ is the table
`DIFFERENCES`; everything else is the same for both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_bridge.sandbox.engine import SandboxSpec

EngineName = Literal["podman", "docker"]

MASKED = (
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/kallsyms",
    "/proc/modules",
    "/proc/partitions",
    "/proc/pressure",  # everybody may write triggers there
    "/proc/version",
    "/sys/devices/virtual/dmi",
)
"""What tells about the host and is no use to a script; the engines mask more themselves."""

PODMAN = (
    "--read-only-tmpfs=false",  # else /run and /var/tmp are writable, executable and without a size
    "--no-hosts",  # else /etc/hosts names the host
    "--http-proxy=false",  # else the host's proxy variables, with their passwords, come along
    "--systemd=false",  # a command called init would get writable mounts
    "--sdnotify=ignore",
    "--image-volume=ignore",  # an image's VOLUME would be a writable directory of the host's disk
    "--detach-keys=",  # a lone byte of stdin must not detach the client
    "--security-opt=mask=" + ":".join(MASKED),
)

PODMAN_4 = (
    "--unsetenv-all",
    "--passwd=false",  # else a line for the user, with the host's idea of a shell and home
)
"""From Podman 4.2 on."""

DOCKER = (
    "--dns=127.0.0.1",  # else /etc/resolv.conf tells the host's name servers
    "--dns-search=.",
)

DIFFERENCES: Mapping[EngineName, tuple[str, ...]] = {"podman": PODMAN, "docker": DOCKER}
"""What only one engine has. Docker can't mask /proc/cmdline, drop an image's VOLUME, nor map users a container."""

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
    "--ipc=private",  # `none` would leave multiprocessing.Lock without its /dev/shm
    "--hostname=sandbox",
    "--log-driver=none",  # output is the channel: never a second copy on disk
    "--no-healthcheck",
    "--workdir=/workspace",
    "--ulimit=core=0:0",
    "--ulimit=msgqueue=0:0",  # /dev/mqueue is writable, and this is its size
)


LEAST_DATA = 192 * 1024 * 1024
"""RLIMIT_DATA binds the OCI runtime's own start as well: runc 1.1.5 fails at 64 MiB and starts at 96."""


@dataclass(frozen=True, slots=True)
class Enforced:
    """Which limits the control groups were seen to hold on this host.

    What they don't hold is up to the command inside: `guest/init.py` lowers its rlimits.
    """

    memory: bool
    pids: bool
    cpus: bool


@dataclass(frozen=True, slots=True)
class RuntimeChoice:
    """The engine to use and how to call it; what the probe found out.

    Attributes:
        engine: Which one.
        path: Its executable.
        version: As it says itself, `4.3.1`.
        rootless: Whether it runs without root on the host.
        global_args: Before the sub-command, for every call.
        oci_runtime: The low-level runtime chosen, empty for the engine's default.
        seccomp: Whether our profile is in force.
        userns: A mapping for `--uidmap` and `--gidmap`, empty for none.
        enforced: Limits that control groups hold.
        nofile_max: The most that RLIMIT_NOFILE may be set to.
        nproc_max: The most that RLIMIT_NPROC may be set to.
        environment: To be set for every call of the engine.
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
        """An executable and arguments that call the engine in its environment, for those who can't set one."""
        if not self.environment:
            return self.path, self.global_args
        assignments = (f"{name}={value}" for name, value in self.environment.items())
        return "/usr/bin/env", (*assignments, *self.command)

    @property
    def uid_per_container(self) -> bool:
        """Whether RLIMIT_NPROC, which counts per uid, must stand in for the pids limit."""
        return not self.enforced.pids

    def at_least(self, *version: int) -> bool:
        """Whether the engine's version is this or later; an unreadable one is taken for old."""
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
        choice: The engine and what works on this host.
        spec: The container.
        cidfile: Where the engine writes the container's id; must not exist.
        profile: The seccomp profile.
        user: Instead of the specification's, for a uid per container.
        unset: Variables the image sets that the container must not have (Docker; Podman drops all by itself).
        monitor: Where Podman writes the process id of the container's monitor; None where that isn't on this machine.
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
        *_walls(choice, profile),
        *_limits(choice, spec),
        *_tmpfs("/tmp", spec.limits.tmp),  # noqa: S108 - the container's
        *_tmpfs("/workspace", spec.limits.workspace),
        f"--shm-size={spec.limits.shm}",
        *(f"--env={name}" for name in unset if name not in spec.environment and choice.engine == "docker"),
        *(f"--env={name}={value}" for name, value in spec.environment.items()),
        spec.image,
        *spec.argv,
    ]


def _walls(choice: RuntimeChoice, profile: Path) -> list[str]:
    out = []
    if choice.seccomp:
        out.append(f"--security-opt=seccomp={profile}")
    if choice.userns:
        out += [f"--uidmap={choice.userns}", f"--gidmap={choice.userns}"]
    if choice.oci_runtime and choice.engine == "docker":
        # Podman takes it as a global argument, so that kill and rm speak to the same runtime.
        out.append(f"--runtime={choice.oci_runtime}")
    return out


def _limits(choice: RuntimeChoice, spec: SandboxSpec) -> list[str]:
    limits, enforced = spec.limits, choice.enforced
    nofile = min(limits.nofile, choice.nofile_max)
    # RLIMIT_NPROC is out of the way here, since it counts by user. Where it has to stand in for the control group,
    # process 1 lowers it: the OCI runtime, which starts as the engine's user, would fail beside a few other containers.
    nproc = choice.nproc_max
    out = [f"--ulimit=nofile={nofile}:{nofile}", f"--ulimit=nproc={nproc}:{nproc}"]
    if enforced.pids:
        out.append(f"--pids-limit={limits.pids}")
    if enforced.memory:
        out += [f"--memory={limits.memory}", f"--memory-swap={limits.memory}"]
    else:
        # For each process by itself: the best that is left without a control group.
        data = max(limits.memory, LEAST_DATA)
        out.append(f"--ulimit=data={data}:{data}")
    if enforced.cpus:
        out.append(f"--cpus={limits.cpus:g}")
    return out


def _tmpfs(path: str, size: int) -> list[str]:
    return [f"--tmpfs={path}:rw,noexec,nosuid,nodev,size={size},mode=1777"]
