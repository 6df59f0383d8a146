"""Runs sandboxes by an OCI runtime on bundles of our own.

A supervisor (`supervisor.py`), one for each bridge, starts the runtime and is the parent of the sandboxes. The
sandboxes' streams are pipes of this process, with nothing in between. Each sandbox has a socket to the supervisor. The
supervisor says on it how the sandbox has ended, and kills and removes the sandbox when it is closed. No wait polls.

Everything about a sandbox is in one folder of the state directory, `oci/containers/ID`, and one of the runtime's,
`oci/runtime/ID`. A supervisor's sandboxes never outlive it. So what is found there of a bridge that has died is files
and empty control groups, or a supervisor that still hangs, and is killed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import random
import shutil
import signal
import socket
import time
import uuid
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import anyio
import anyio.lowlevel
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.private_files import state_directory
from mcp_bridge.sandbox.engine import (
    OWNER_LABEL,
    ContainerInfo,
    Engine,
    ExitStatus,
    SandboxSpec,
)
from mcp_bridge.sandbox.engine_errors import os_failure, start_failure
from mcp_bridge.sandbox.oci import bundle_config, host_resources
from mcp_bridge.sandbox.oci.images import BundleImages
from mcp_bridge.sandbox.oci.supervisor_client import (
    EXIT_SECONDS,
    MESSAGE_BYTES,
    Supervisor,
    SupervisorEndedError,
    start_supervisor,
)
from mcp_bridge.sandbox.ownership import Owner
from mcp_bridge.sandbox.pipes import PipedProcess, drain, pipe_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcp_bridge.sandbox.isolation_flags import RuntimeChoice

SUPERVISOR_LABEL = "mcp-bridge.supervisor"
"""The annotation with the supervisor, as an `Owner`."""

OOM_SCORE = 300
"""The least `oom_score_adj` of a sandbox: if the machine runs out of memory, a script is killed before the bridge."""

NAME_LABEL = "mcp-bridge.name"

UNFINISHED_SECONDS = 3600.0
"""Age from which on a sandbox's folder without a description isn't being made any more."""

BUSY_ATTEMPTS, BUSY_SECONDS = 50, 0.002
"""For a control group whose last process the kernel has just ended."""

_SUPERVISOR_ENDED = "was lost with the supervisor of the sandboxes, which has ended"

_ATTEMPTS = 3

_processes: weakref.WeakValueDictionary[str, OciProcess] = weakref.WeakValueDictionary()
"""The sandboxes of this process by id, of all its engines: any of them can kill each."""


class OciEngine(Engine):
    """An OCI runtime, driven without a container engine.

    Args:
        choice: The runtime, and the features that work on this host.
        state_dir: The state directory.

    Raises:
        BridgeError: `disk_full`, `state_unwritable`.
    """

    def __init__(self, choice: RuntimeChoice, state_dir: Path) -> None:
        self.choice = choice
        self._directory = state_dir.absolute() / "oci"
        self._containers = self._directory / "containers"
        self._runtime = self._directory / "runtime"
        state_directory(state_dir)
        try:
            for path in (self._directory, self._containers, self._runtime):
                path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise os_failure(error, f"The directory {self._directory} can't be made") from error
        self._remove_unfinished()
        self._images = BundleImages(self._directory)
        self._on_image: dict[str, WeakSet[OciProcess]] = {}
        """The sandboxes that were started on each image, by its folder's name."""
        self._users = _users(rootless=choice.rootless)
        self._supervisor: Supervisor | None = None
        self._starting = anyio.Lock()

    def _remove_unfinished(self) -> None:
        """Remove folders that a killed bridge hasn't described yet: they name no owner, so no sweep knows them."""
        horizon = time.time() - UNFINISHED_SECONDS
        for folder in self._containers.iterdir():
            container = _read(folder)
            with contextlib.suppress(OSError):
                if (container is None or not container.labels) and folder.stat().st_mtime < horizon:
                    shutil.rmtree(folder)

    @property
    def name(self) -> str:
        """`oci`."""
        return self.choice.engine

    async def start(self, spec: SandboxSpec) -> OciProcess:
        """Start a sandbox.

        Raises:
            BridgeError: `no_runtime`, `sandbox_start_failed`, `disk_full`.
        """
        for _ in range(_ATTEMPTS):
            # A supervisor that is about to end may accept or refuse a request.
            with contextlib.suppress(SupervisorEndedError):
                return await self._start(spec, await self._ready_supervisor())
        raise BridgeError("sandbox_start_failed", "The sandboxes' supervisor has ended.", hint="Try again.")

    async def _start(self, spec: SandboxSpec, supervisor: Supervisor) -> OciProcess:
        identity = uuid.uuid4().hex
        folder = self._containers / identity
        try:
            image = await self._images.open(spec.image)
            events, their_events = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with contextlib.ExitStack() as opened:
                opened.enter_context(events)
                opened.enter_context(their_events)
                ours, theirs = pipe_pairs()
                opened.pop_all()
        except OSError as error:
            raise os_failure(error, "A sandbox can't be started") from error
        events.setblocking(False)  # noqa: FBT003 - positional only
        process = OciProcess(self, identity, spec.name, ours, events.detach(), supervisor)
        try:
            if image is None:
                # As with an engine, the sandbox's end says why.
                process.fail(f"{spec.image}: image not known")
                return process
            self._on_image.setdefault(image.name, WeakSet()).add(process)
            annotated = {**spec.labels, NAME_LABEL: spec.name, SUPERVISOR_LABEL: str(supervisor.owner)}
            text = bundle_config.render(
                self.choice,
                spec,
                annotations=annotated,
                root=f"{host_resources.MOUNTS}/{image.name}",
                users=next(self._users),
                cgroup=f"/mcp-bridge-{identity}",
                cgroup_version=host_resources.cgroup_version(),
                oom_score=max(host_resources.oom_score(), OOM_SCORE),
            )
            folder.mkdir(mode=0o700)
            (folder / "config.json").write_text(text)
            request = {"id": identity, "folder": str(folder), "image": str(image.root), "name": image.name}
            await supervisor.send(request, [*theirs, their_events.fileno()])
            _processes[identity] = process
        except OSError as error:
            process.abandon()
            shutil.rmtree(folder, ignore_errors=True)
            raise os_failure(error, "A sandbox can't be started") from error
        except BaseException:
            process.abandon()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            their_events.close()
            for descriptor in theirs:
                os.close(descriptor)
        return process

    def release_image(self, reference: str) -> None:
        """As `Engine.release_image`."""
        image = self._images.opened(reference)
        if image is not None and all(process.has_ended() for process in self._on_image.get(image.name, ())):
            self._on_image.pop(image.name, None)
            self._images.release(image)

    async def _ready_supervisor(self) -> Supervisor:
        async with self._starting:
            if self._supervisor is None or self._supervisor.has_ended:
                self._supervisor = await start_supervisor(self.choice, self._directory)
            return self._supervisor

    async def kill(self, container_id: str) -> None:
        """SIGKILL by id or name.

        Raises:
            BridgeError: `engine_failed`.
        """
        if (process := _find(container_id)) is not None:
            process.kill()
            return
        for container in self._read_all():
            if container_id in {container.id, container.name}:
                await container.kill()

    async def remove(self, container_id: str) -> None:
        """Remove by id or name, running or not.

        Raises:
            BridgeError: `engine_failed`.
        """
        if (process := _find(container_id)) is not None:
            process.kill()
            await process.removed()
            return
        for container in await anyio.to_thread.run_sync(self._read_all):
            if container_id in {container.id, container.name}:
                await container.kill()
                await anyio.to_thread.run_sync(self._remove_left, container.id)

    def has_files(self, identity: str) -> bool:
        """Whether any files of a sandbox exist."""
        return os.path.lexists(self._containers / identity) or os.path.lexists(self._runtime / identity)

    def _remove_left(self, identity: str) -> None:
        """Remove what an ended supervisor has left of a sandbox."""
        groups = [Path(mount, f"mcp-bridge-{identity}") for mount in host_resources.cgroup_mounts(self.choice)]
        are_gone = [_remove_group(group) for group in groups]
        shutil.rmtree(self._runtime / identity, ignore_errors=True)
        # The next sweep finds the groups by the folder.
        if all(are_gone):
            shutil.rmtree(self._containers / identity, ignore_errors=True)

    async def list(self, label: str) -> Sequence[ContainerInfo]:
        """All sandboxes of this state directory with a label."""
        name, _, value = label.partition("=")
        return [
            ContainerInfo(container.id, container.name, container.labels, running=container.is_running())
            for container in await anyio.to_thread.run_sync(self._read_all)
            if name in container.labels and ("=" not in label or container.labels[name] == value)
        ]

    def _read_all(self) -> Sequence[_Container]:
        return [container for folder in self._containers.iterdir() if (container := _read(folder)) is not None]


class _Container:
    """A sandbox as its folder describes it."""

    def __init__(self, folder: Path, annotations: dict[str, str]) -> None:
        self.folder = folder
        self.id = folder.name
        self.name = annotations.pop(NAME_LABEL, "")
        self.supervisor = Owner.parse(annotations.pop(SUPERVISOR_LABEL, ""))
        self.labels = annotations

    def is_running(self) -> bool:
        return (self.folder / "pid").exists() and not self.supervisor_has_ended()

    def supervisor_has_ended(self) -> bool:
        return self.supervisor is None or self.supervisor.is_orphaned()

    async def kill(self) -> None:
        """Kill a sandbox of another process, which is possible if that has died, with all its sandboxes.

        Raises:
            BridgeError: `engine_failed`.
        """
        if self.supervisor is None or self.supervisor_has_ended():
            return
        owner = Owner.parse(self.labels.get(OWNER_LABEL, ""))
        if owner is None or not owner.is_orphaned():
            raise BridgeError("engine_failed", f"The sandbox {self.id} belongs to another bridge, which is running.")
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.supervisor.pid)
            try:
                if not self.supervisor_has_ended():
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    with anyio.move_on_after(EXIT_SECONDS):
                        await anyio.wait_readable(descriptor)
            finally:
                os.close(descriptor)


def _read(folder: Path) -> _Container | None:
    """The sandbox in a folder. None if it has just been removed; without a label if its description isn't whole."""
    try:
        annotations: dict[str, str] = json.loads((folder / "config.json").read_text())["annotations"]
    except FileNotFoundError:
        annotations = {}
    except (OSError, ValueError, KeyError):
        return None
    return _Container(folder, annotations)


def _remove_group(group: Path) -> bool:
    """Remove an empty control group. Returns whether it is gone."""
    for _ in range(BUSY_ATTEMPTS):
        try:
            group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                break
            time.sleep(BUSY_SECONDS)
    return not group.exists()


def _find(identity: str) -> OciProcess | None:
    known = _processes.get(identity)
    if known is None:
        known = next((process for process in list(_processes.values()) if process.name == identity), None)
    return known


class OciProcess(PipedProcess):
    """A sandbox; created by `OciEngine.start`."""

    def __init__(
        self,
        engine: OciEngine,
        identity: str,
        name: str,
        pipes: tuple[int, int, int],
        events: int,
        supervisor: Supervisor,
    ) -> None:
        super().__init__(pipes)
        self.name = name
        self._engine = engine
        self._supervisor = supervisor
        """Held, because it ends when nothing refers to it."""
        self._id = identity
        self._events = events
        self._turn = anyio.Lock()
        self._closing = anyio.Lock()
        self._closed = False
        self._killed = False
        self._is_removed = False
        self._started = False
        self._failure: str | None = None
        self._status: ExitStatus | None = None

    async def container_id(self) -> str:
        """The container's id.

        Raises:
            BridgeError: As `wait`, if the container was never created.
        """
        while not self._started and await self._next_event():
            pass
        if not self._started:
            await self._require_start()
        return self._id

    async def wait(self) -> ExitStatus:
        """Wait until the container has ended, or its supervisor has.

        Raises:
            BridgeError: `sandbox_start_failed`, `image_missing`, `no_runtime`, `disk_full`: PID 1 never ran.
        """
        while self._status is None and await self._next_event():
            pass
        if self._status is None:
            await self._require_start()
            self._status = ExitStatus(None, lost=_SUPERVISOR_ENDED)
        return self._status

    def has_ended(self) -> bool:
        """Whether its end was reported, or its supervisor has ended, which ends it too."""
        return self._is_removed or self._status is not None or self._events < 0 or self._supervisor.has_ended

    async def _require_start(self) -> None:
        """Raise the error that kept it from starting, if any."""
        if self._failure is None:
            return
        with anyio.move_on_after(EXIT_SECONDS):
            await drain(self._stderr)
        raise start_failure(self._engine.choice.oci_runtime, self._failure + self._tail.decode(errors="replace"))

    async def _next_event(self) -> bool:
        """Wait for a message of the supervisor and handle it; False at the end of the stream."""
        before = (self._started, self._status, self._failure, self._is_removed)
        async with self._turn:
            while before == (self._started, self._status, self._failure, self._is_removed):
                if self._is_removed or self._events < 0:
                    return False
                if not self._read_event():
                    await anyio.wait_readable(self._events)
        return not self._is_removed

    def _read_event(self) -> bool:
        """Handle a message, if one is there."""
        try:
            data = os.read(self._events, MESSAGE_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            self._is_removed = True
            return True
        message: dict[str, Any] = json.loads(data)
        if "started" in message:
            self._started = True
        elif "failed" in message:
            self._failure = ""
        else:
            code = int(message["ended"])
            oom_kills = int(message["oom_kills"])
            is_oom = oom_kills > 0 and code == 128 + signal.SIGKILL and not self._killed
            self._status = ExitStatus(code, oom_killed=is_oom, oom_kills=oom_kills)
        return True

    def kill(self) -> None:
        """Have the supervisor kill it."""
        self._killed = True
        if self._events >= 0:
            with contextlib.suppress(OSError):
                os.write(self._events, b"kill")

    async def removed(self) -> None:
        """Wait until nothing is left of it. If its supervisor doesn't remove it in time, remove it by force."""
        with anyio.move_on_after(EXIT_SECONDS):
            while await self._next_event():
                pass
        if not self._is_removed:
            # The kernel kills the sandbox with it, and closes its end of the socket.
            self._supervisor.kill()
            with anyio.move_on_after(EXIT_SECONDS):
                while await self._next_event():
                    pass
        if self._supervisor.has_ended:
            # Its files are closed before the kernel kills its namespace.
            await self._supervisor.wait()
        if self._engine.has_files(self._id):
            await anyio.to_thread.run_sync(self._engine._remove_left, self._id)  # noqa: SLF001 - its own

    async def aclose(self) -> None:
        """Kill the container if it is running, remove it, close the streams. Idempotent, bounded and shielded."""
        with anyio.CancelScope(shield=True):
            async with self._closing:
                if self._closed:
                    return
                self._stdin.close()
                try:
                    if self._events >= 0:
                        self.kill()
                        await self.removed()
                finally:
                    self._closed = True
                    self.abandon()
                    await anyio.lowlevel.checkpoint()

    def fail(self, said: str) -> None:
        """Mark it as never created."""
        self._failure = f"{said}\n"
        self._stderr.close()
        self._is_removed = True

    def abandon(self) -> None:
        """Close all of its descriptors, on which the supervisor kills and removes it."""
        self._stdin.close()
        self._stdout.close()
        self._stderr.close()
        if self._events >= 0:
            anyio.notify_closing(self._events)
            os.close(self._events)
            self._events = -1
        _processes.pop(self._id, None)


def _users(*, rootless: bool) -> Iterator[bundle_config.Users]:
    """Users for one sandbox after the other, from a random start: this user's other bridges start elsewhere."""
    root, first, last = host_resources.user_range(rootless=rootless)
    start = random.SystemRandom().randrange(first, last)
    for own in itertools.cycle(itertools.chain(range(start, last), range(first, start))):
        yield bundle_config.Users(root, own)
