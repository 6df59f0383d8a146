"""The interface of a container engine.

Podman and Docker implement it through their command lines. A remote engine (a Kubernetes pod with an attach stream)
could implement it too: the interface has no process ids, host paths or Unix sockets.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import ByteReceiveStream, ByteSendStream

OWNER_LABEL = "mcp-bridge.owner"
"""`<host id>:<pid>:<start time>` of the process that started the container."""

EXECUTION_LABEL = "mcp-bridge.execution"
"""The id of the execution for which the container was started, or STARTED_AHEAD."""

STARTED_AHEAD = "ahead"
"""The value of EXECUTION_LABEL for a container that was started before there was an execution for it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of one sandbox. Sizes are in bytes.

    `reserved` is memory beyond the limit that a process may reserve where only rlimits hold the memory.
    """

    memory: int = 512 * 1024 * 1024
    reserved: int = 0
    pids: int = 128
    cpus: float = 1.0
    tmp: int = 64 * 1024 * 1024
    workspace: int = 128 * 1024 * 1024
    shm: int = 16 * 1024 * 1024
    nofile: int = 1024


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The specification of one container.

    Attributes:
        image: A local image reference; never pulled.
        name: A name that is unique on this engine.
        argv: The command; the image's entry point is not used.
        user: `uid:gid` inside the container. An engine that distinguishes containers by uid uses another one.
        labels: All labels, which must include OWNER_LABEL and EXECUTION_LABEL.
        environment: The whole environment; engines add HOSTNAME. Without PATH the command isn't found.
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
        code: Exit status of PID 1 (128 + n for signal n), or None if the engine has lost track of the container, which
            may still be running.
        oom_killed: Whether it ended by a SIGKILL that we did not send, and the engine reports that it was out of
            memory. Docker's daemon may not: it drops what it hears of the memory after the end. (Process 1 counts what
            the kernel kills beside it, and says so itself.)
        oom_kills: How many of its processes the kernel killed for memory, at any time; None if the engine doesn't count
            them.
        lost: With `code` None: what has ended, so that the engine has lost track; empty if it isn't known.
    """

    code: int | None
    oom_killed: bool = False
    oom_kills: int | None = None
    lost: str = ""


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """A container in the engine's listing. `running` may become true shortly after the container's first output."""

    id: str
    name: str
    labels: Mapping[str, str]
    running: bool


class SandboxProcess(Protocol):
    """A started container: three byte streams and an id."""

    @property
    def stdin(self) -> ByteSendStream:
        """The container's standard input; closing it is EOF for the guest. Read `stdout` while sending."""

    @property
    def stdout(self) -> ByteReceiveStream:
        """The container's standard output: the channel."""

    @property
    def stderr(self) -> ByteReceiveStream:
        """The container's standard error: PID 1's reports, and the engine's messages if the start fails."""

    async def container_id(self) -> str:
        """The engine's full container id.

        Raises:
            BridgeError: As `wait`, if the engine ended without creating a container.
        """

    async def wait(self) -> ExitStatus:
        """Wait until the container has ended, or the engine has lost track of it.

        The container may still be listed until it is removed. If the engine has lost track of it, `stdout` may stay
        open.

        Raises:
            BridgeError: The engine ended without running PID 1: `sandbox_start_failed`, `image_missing`, `no_runtime`
                or `disk_full`, with the engine's last lines as `details["output"]`.
        """

    def has_ended(self) -> bool:
        """Whether the container, or what observes it, is known to have ended. Doesn't wait; False if unknown."""
        return False

    async def aclose(self) -> None:
        """Kill the container if it is running, remove it, close the streams. Idempotent, bounded and shielded."""


class Engine(Protocol):
    """A container engine."""

    @property
    def name(self) -> str:
        """`podman` or `docker`."""

    async def start(self, spec: SandboxSpec) -> SandboxProcess:
        """Start a container. Returns once its streams exist, which is before the container exists.

        Raises:
            BridgeError: `no_runtime`, `sandbox_start_failed`, `disk_full`.
        """

    async def kill(self, container_id: str) -> None:
        """Send SIGKILL by id or name. A container that no longer exists is not an error.

        Raises:
            BridgeError: `engine_failed`.
        """

    async def remove(self, container_id: str) -> None:
        """Remove by id or name, whether running or not. A container that no longer exists is not an error.

        Raises:
            BridgeError: `engine_failed`.
        """

    def sweeping(self) -> AbstractAsyncContextManager[None]:
        """Entered before containers of dead bridges are listed and removed.

        Removes, at its exit, what those bridges had left besides containers when it was entered.
        """
        return nullcontext()

    def release_image(self, reference: str) -> None:  # noqa: ARG002 - an engine knows by itself
        """Let an image be removed, unless a sandbox of this driver runs on it."""
        return

    async def list(self, label: str) -> Sequence[ContainerInfo]:
        """All containers, running or not, that have a label (`name` or `name=value`).

        Raises:
            BridgeError: `engine_failed`.
        """
