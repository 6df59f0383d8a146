"""What a container engine must offer, and nothing more.

Podman and Docker implement it by their command lines; a remote engine (a Kubernetes pod with an attach stream) can
too: nothing here names a process id, a file path of the host or a unix socket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from anyio.abc import ByteReceiveStream, ByteSendStream

OWNER_LABEL = "mcp-bridge.owner"
"""`<host id>:<pid>:<start time>` of the process that started the container."""

EXECUTION_LABEL = "mcp-bridge.execution"
"""The id of the execution that the container serves."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use. Sizes in bytes."""

    memory: int = 512 * 1024 * 1024
    pids: int = 128
    cpus: float = 1.0
    tmp: int = 64 * 1024 * 1024
    workspace: int = 128 * 1024 * 1024
    shm: int = 16 * 1024 * 1024
    nofile: int = 1024


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """One container to start.

    Attributes:
        image: A local image reference; never pulled.
        name: Unique on this engine.
        argv: The command, the image's own entry point is not used.
        user: `uid:gid` inside the container. An engine that must tell containers apart by uid takes another.
        labels: Merged with nothing: the caller gives OWNER_LABEL and EXECUTION_LABEL.
        environment: All of the container's environment; engines add HOSTNAME. Give PATH, or the command is not found.
    """

    image: str
    name: str
    argv: Sequence[str]
    limits: Limits = field(default_factory=Limits)
    user: str = "65534:65534"
    labels: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a container ended.

    Attributes:
        code: Exit status of its PID 1 (128 + n for signal n), or None when the engine could not tell: it has lost sight
            of the container, which may live on.
        oom_killed: Whether it ended by SIGKILL that we did not send, and the engine says that it was out of memory.
    """

    code: int | None
    oom_killed: bool = False


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """A row of the engine's list; `running` may become true a little after the container's first output."""

    id: str
    name: str
    labels: Mapping[str, str]
    running: bool


class SandboxProcess(Protocol):
    """A started container: three byte streams and an identity."""

    @property
    def stdin(self) -> ByteSendStream:
        """To the container's standard input; closing it is the guest's EOF. Read `stdout` while you send."""

    @property
    def stdout(self) -> ByteReceiveStream:
        """The channel."""

    @property
    def stderr(self) -> ByteReceiveStream:
        """PID 1's own reports, and the engine's complaints when a start fails."""

    async def container_id(self) -> str:
        """The engine's full id of the container.

        Raises:
            BridgeError: The codes of `wait`, when the engine ended without making one.
        """

    async def wait(self) -> ExitStatus:
        """Wait until the container has ended, or the engine has lost sight of it.

        The container may still be listed until it is removed. When the engine has lost sight of it, `stdout` may stay
        open.

        Raises:
            BridgeError: The engine ended without ever running PID 1: `sandbox_start_failed`, `image_missing`,
                `no_runtime` or `disk_full`, with the engine's last lines as `details["output"]`.
        """

    async def aclose(self) -> None:
        """Kill by id if still running, remove, close the streams. Idempotent; bounded in time; shielded."""


class Engine(Protocol):
    """A container engine."""

    @property
    def name(self) -> str:
        """`podman` or `docker`."""

    async def start(self, spec: SandboxSpec) -> SandboxProcess:
        """Start a container. Returns as soon as its streams exist, which is before the container does.

        Raises:
            BridgeError: `no_runtime`, `sandbox_start_failed`, `disk_full`.
        """

    async def kill(self, container_id: str) -> None:
        """SIGKILL by id or name; a container that is gone already is no error.

        Raises:
            BridgeError: `engine_failed`.
        """

    async def remove(self, container_id: str) -> None:
        """Remove by id or name, running or not; a container that is gone already is no error.

        Raises:
            BridgeError: `engine_failed`.
        """

    async def list(self, label: str) -> Sequence[ContainerInfo]:
        """Every container, running or not, that carries the label (`name` or `name=value`).

        Raises:
            BridgeError: `engine_failed`.
        """
