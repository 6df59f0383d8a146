"""Drives Podman and Docker through their command lines.

Each container has one `run` client attached to its three streams. The client's end doesn't end the container, so every
exit path kills the container by id. Every wait is bounded: a cancelled caller can neither leave a running container
behind nor hang on one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import random
import shutil
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.private_files import state_directory
from mcp_bridge.sandbox import seccomp_profile
from mcp_bridge.sandbox.container_monitors import (
    MONITOR_NAME,
    MONITOR_POLL_SECONDS,
    end_monitor,
    is_gone,
    process_ended,
    remove_orphaned,
    text_of,
)
from mcp_bridge.sandbox.engine import (
    EXECUTION_LABEL,
    OWNER_LABEL,
    ContainerInfo,
    Engine,
    ExitStatus,
    SandboxSpec,
)
from mcp_bridge.sandbox.engine_errors import os_failure, start_failure
from mcp_bridge.sandbox.image.host_tools import ToolResult, run_tool
from mcp_bridge.sandbox.isolation_flags import RuntimeChoice, run_argv
from mcp_bridge.sandbox.ownership import Owner
from mcp_bridge.sandbox.pipes import Child, PipedProcess, drain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

COMMAND_SECONDS = 20.0
"""How long `kill`, `rm` and `ps` may take: the engine may be waiting for the lock of its store."""

CREATION_SECONDS = 15.0
"""How long a starting engine may take to report the id of a container that we want to kill: `kill` needs the id."""

EXIT_SECONDS = 10.0
"""How long the client may take to end, and `--rm` to remove, after its container was killed or has ended. A container
whose monitor was killed would take 20 s."""

RETRY_SECONDS = 0.25
"""Pause between two attempts to kill a container that exists but isn't running yet."""

REMOVALS = 3
"""How often to try to remove a container: it may end at the same moment, or the engine's store be locked for long."""

ID_POLL_SECONDS = 0.004
"""How often to poll for the id file. Creation takes 100 ms and more."""

OOM_SECONDS = 10.0
"""How long before its end a container may have run out of memory for that to count as the cause."""

_ID_LENGTH = 64
_SIGKILL_CODE = 137
_ENGINE_CODES = frozenset({125, 126, 127})
"""Exit codes of `run` if the engine itself failed or could not start the command."""

_ID_FILE_SECONDS = 24 * 3600.0
"""Age above which an id file is stale. No container of ours lives so long."""

_REMOTE_VARIABLES = ("CONTAINER_HOST", "CONTAINER_CONNECTION")
_REMOTE_ARGUMENTS = ("--remote", "--url", "--connection", "-r", "-c")
"""Settings that make podman use another machine, on which its monitors run."""

_FIRST_UID, _LAST_UID = 20_000, 60_000
"""A range within the 65,536 subordinate ids of a rootless user, away from the ids that images use."""

_INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK",
    "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME",
    "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY",
    "CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINER_SSHKEY", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF",
    "CONTAINERS_REGISTRIES_CONF", "STORAGE_DRIVER", "STORAGE_OPTS",
)  # fmt: skip
"""The variables that a `run` client inherits. It lives as long as the sandbox, and must not hold our API keys."""

OOM_NAME = "oom"
"""The file that podman's monitor writes to its working directory when the control group runs out of memory. Later
versions (2.1.13 does) write it only where `--rm` removes it at once: with them, such an end is one by SIGKILL."""

_MISSING = ("no such container", "no container with", "does not exist", "is already in progress")
_NOT_RUNNING = ("is not running", "can only kill running containers", "container state improper")


class CliEngine(Engine):
    """An engine driven through its command line.

    Args:
        choice: The engine, and the features that work on this host.
        state_dir: The state directory. Its subdirectory `run`, created with mode 0700, holds the id files of starting
            containers.

    Raises:
        BridgeError: `disk_full`, `state_unwritable`.
    """

    def __init__(self, choice: RuntimeChoice, state_dir: Path) -> None:
        self.choice = choice
        # The client's working directory: files that it leaves there disturb nobody.
        self._run_dir = state_dir.absolute() / "run"
        state_directory(state_dir)
        try:
            self._run_dir.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise os_failure(error, f"The directory {self._run_dir} can't be made") from error
        self._uids = _uids()
        self._image_variables: dict[str, tuple[str, ...]] = {}
        self._killed: set[str] = set()
        self._remove_stale_files()

    @property
    def name(self) -> str:
        """`podman` or `docker`."""
        return self.choice.engine

    def _remove_stale_files(self) -> None:
        """Remove the id files and directories of killed bridges, and the files that engines wrote there."""
        # Podman's monitor writes an empty file `oom` to its working directory, which earlier versions did not set.
        with contextlib.suppress(OSError):
            (self._run_dir / "oom").unlink()
        horizon = time.time() - _ID_FILE_SECONDS
        for path in self._run_dir.glob("*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < horizon:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    async def start(self, spec: SandboxSpec) -> CliProcess:
        """Start a container.

        Raises:
            BridgeError: `no_runtime`, `sandbox_start_failed`, `disk_full`.
        """
        choice = self.choice
        # By the owner's name a sweep knows what a killed bridge has left here.
        name = f"{owner}-{uuid.uuid4().hex}" if (owner := _owner_of(spec)) else uuid.uuid4().hex
        cidfile, folder = self._run_dir / f"{name}.cid", self._run_dir / name
        uid = next(self._uids) if choice.uid_per_container else None
        argv = run_argv(
            choice,
            spec,
            cidfile=cidfile,
            profile=seccomp_profile.PROFILE,
            user=None if uid is None else f"{uid}:{uid}",
            unset=await self._variables_of(spec.image),
            monitor=folder / MONITOR_NAME if self.has_monitors else None,
        )
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise os_failure(error, f"The directory {folder} can't be made") from error
        try:
            child = Child(argv, _environment(choice.environment), folder)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise self._start_error(error) from error
        return CliProcess(self, child, spec.name, cidfile, folder)

    def _start_error(self, error: OSError) -> BridgeError:
        if isinstance(error, FileNotFoundError):
            return BridgeError(
                "no_runtime",
                f"The container engine {self.choice.path} is gone.",
                hint="Run `mcp-bridge doctor` to choose another.",
            )
        return os_failure(error, f"{self.choice.path} can't be started")

    @property
    def has_monitors(self) -> bool:
        """Whether each container has a monitor process on this machine that can be found by container id (conmon)."""
        return (
            self.name == "podman"
            and sys.platform == "linux"
            and not any(os.environ.get(name) for name in _REMOTE_VARIABLES)
            and not any(argument.startswith(_REMOTE_ARGUMENTS) for argument in self.choice.global_args)
        )

    @contextlib.asynccontextmanager
    async def sweeping(self) -> AsyncIterator[None]:
        """As `Engine.sweeping`: ends monitors whose containers are gone, and removes their directories.

        A client that is killed while a monitor starts its container leaves that monitor waiting forever.
        """
        # A container is created before its monitor starts: those of the monitors found here are listed after this.
        folders = await anyio.to_thread.run_sync(self._orphaned_folders)
        yield
        async with anyio.create_task_group() as tasks:
            for folder in folders:
                tasks.start_soon(remove_orphaned, folder)

    def _orphaned_folders(self) -> list[Path]:
        """Directories of dead bridges' containers whose monitor has been started."""
        found = []
        for folder in self._run_dir.iterdir():
            owner = Owner.parse(folder.name.rpartition("-")[0])
            if owner is not None and owner.is_orphaned() and text_of(folder / MONITOR_NAME):
                found.append(folder)
        return found

    async def kill(self, container_id: str) -> None:
        """SIGKILL by id or name.

        Raises:
            BridgeError: `engine_failed`.
        """
        self._killed.add(container_id)
        result = await self._command("kill", "--signal=KILL", container_id)
        if result.returncode and not _mentions(result, _MISSING + _NOT_RUNNING):
            raise self._error(result)

    async def remove(self, container_id: str) -> None:
        """Remove by id or name, running or not.

        Raises:
            BridgeError: `engine_failed`.
        """
        self._killed.add(container_id)
        # By default Podman's `rm --force` sends SIGTERM first and waits for ten seconds.
        at_once = ("--time=0",) if self.name == "podman" and self.choice.at_least(4) else ()
        for attempt in range(1, REMOVALS + 1):
            try:
                result = await self._command("rm", "--force", *at_once, container_id)
            except BridgeError as error:
                if error.code != "engine_failed" or attempt == REMOVALS:
                    raise
            else:
                if not result.returncode or _mentions(result, _MISSING):
                    return
                if attempt == REMOVALS:
                    raise self._error(result)
            await anyio.sleep(RETRY_SECONDS * attempt)

    async def list(self, label: str) -> Sequence[ContainerInfo]:
        """All containers with a label. For Docker, `labels` contains only our own two labels.

        Raises:
            BridgeError: `engine_failed`.
        """
        name, _, value = label.partition("=")
        # Filter by name only: Podman splits a filter's value at commas.
        result = await self._command(
            "ps", "--all", "--no-trunc", f"--filter=label={name}", "--format", _LIST_FORMAT[self.name]
        )
        if result.returncode:
            raise self._error(result)
        try:
            found = _decode_podman(result.stdout) if self.name == "podman" else _decode_docker(result.stdout)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BridgeError("engine_failed", f"{self.name} ps can't be understood: {error!r}.") from error
        return [container for container in found if "=" not in label or container.labels.get(name) == value]

    def was_killed(self, container_id: str) -> bool:
        """Whether this object was asked to kill a container. The first query clears the record."""
        known = container_id in self._killed
        self._killed.discard(container_id)
        return known

    async def was_out_of_memory(self, container_id: str, since: float) -> bool:
        """Whether Docker reported that a container ran out of memory; False if that can't be determined.

        Args:
            container_id: Id or name. The container may have been removed.
            since: Unix time in seconds from which events are searched.
        """
        period = (f"--since={since:.9f}", f"--until={time.time():.9f}")
        only = (f"--filter=container={container_id}", "--filter=event=oom")
        try:
            result = await self._command("events", *period, *only, "--format={{.ID}}")
        except BridgeError:
            return False
        return result.returncode == 0 and bool(result.stdout.strip())

    async def _variables_of(self, image: str) -> tuple[str, ...]:
        """The variables that an image sets, which Docker keeps unless they are unset by name. Cached by image."""
        if self.name == "podman":
            return ()
        if image not in self._image_variables:
            result = await self._command("image", "inspect", "--format={{json .Config.Env}}", image)
            if result.returncode:
                # The `run` that follows fails for the same reason, with a better message.
                return ()
            with contextlib.suppress(ValueError):
                found = json.loads(result.stdout) or []
                names = (str(entry).partition("=")[0] for entry in found)
                # `--env NAME` unsets a variable only if the client has no variable of this name; else it passes ours
                # on.
                self._image_variables[image] = tuple(name for name in names if name not in _INHERITED)
        return self._image_variables.get(image, ())

    async def _command(self, *arguments: str) -> ToolResult:
        try:
            return await run_tool(
                [*self.choice.command, *arguments],
                seconds=COMMAND_SECONDS,
                environment=self.choice.environment,
            )
        except TimeoutError:
            raise BridgeError(
                "engine_failed", f"{self.name} {arguments[0]} did not end within {COMMAND_SECONDS:.0f} s."
            ) from None
        except OSError as error:
            raise BridgeError("no_runtime", f"{self.choice.path} can't be started: {error.strerror}.") from error

    def _error(self, result: ToolResult) -> BridgeError:
        return BridgeError("engine_failed", f"{self.name} failed: {result.tail()}", output=result.tail())


class CliProcess(PipedProcess):
    """A container and the client attached to it; created by `CliEngine.start`."""

    def __init__(self, engine: CliEngine, child: Child, name: str, cidfile: Path, folder: Path) -> None:
        super().__init__(child.descriptors(), self._on_output)
        self._engine = engine
        self._child = child
        self._name = name
        self._cidfile = cidfile
        self._folder = folder
        self._severed = False
        self._monitor_ended_at: float | None = None
        """When the end of the container's monitor was noticed (Unix time in seconds)."""
        self._id: str | None = None
        self._spoke = False
        self._status: ExitStatus | None = None
        self._closing = anyio.Lock()
        self._closed = False

    async def container_id(self) -> str:
        """The engine's full container id.

        Raises:
            BridgeError: As `wait`, if the engine ended without creating a container.
        """
        while (known := self._read_id()) is None:
            if self._child.returncode is not None:
                if known := self._read_id():
                    return known
                raise await self._failure()
            with anyio.move_on_after(ID_POLL_SECONDS):
                await self._child.wait()
        return known

    async def wait(self) -> ExitStatus:
        """Wait until the container has ended, or its end can no longer be observed.

        Raises:
            BridgeError: `sandbox_start_failed`, `image_missing`, `no_runtime`, `disk_full`: PID 1 never ran.
        """
        code = await self._ended()
        if code is None:
            return ExitStatus(None)
        if self._status is None:
            # PID 1 may exit with these codes too, but then it has written output before, or has nothing to report.
            if code in _ENGINE_CODES and not self._spoke:
                raise await self._failure()
            self._status = await self._exit_status(code)
        return self._status

    def has_ended(self) -> bool:
        """Whether the client or the container's monitor is known to have ended."""
        return self._child.returncode is not None or self._severed or self._has_lost_monitor()

    def _has_lost_monitor(self) -> bool:
        text = text_of(self._folder / MONITOR_NAME) if self._engine.has_monitors else ""
        return bool(text) and is_gone(text)

    async def _ended(self) -> int | None:
        """The client's exit status; None if it hangs because its container's monitor has ended."""
        if self._severed:
            return None
        code: int | None = None

        async def client() -> None:
            nonlocal code
            code = await self._child.wait()
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client)
            await self._monitor_ended()
            self._monitor_ended_at = self._monitor_ended_at or time.time()
            await anyio.sleep(EXIT_SECONDS)
            tasks.cancel_scope.cancel()
        self._severed = code is None
        return code

    async def _monitor_ended(self) -> None:
        """Wait for the end of the container's monitor; wait forever if it can't be observed."""
        if not self._engine.has_monitors:
            await anyio.sleep_forever()
        file = self._folder / MONITOR_NAME
        while not (text := text_of(file)):  # noqa: ASYNC110  (of a file there is no event)
            await anyio.sleep(MONITOR_POLL_SECONDS)
        await process_ended(text)

    async def aclose(self) -> None:
        """Kill the container if it is running, remove it, close the streams. Idempotent, bounded and shielded."""
        with anyio.CancelScope(shield=True):
            async with self._closing:
                if self._closed:
                    return
                try:
                    self._stdin.close()
                    if self._severed or (self._child.returncode is None and self._has_lost_monitor()):
                        # Podman can't kill a container without its monitor, and its client hangs.
                        self._child.kill_session()
                        await self._remove()
                    elif self._child.returncode is None:
                        await self._end()
                    elif self._child.returncode < 0 or self._child.returncode in _ENGINE_CODES:
                        # The client was killed, or has lost its container, which may still be running.
                        await self._remove()
                finally:
                    self._closed = True
                    self._child.kill_session()
                    self._stdout.close()
                    self._stderr.close()
                    with anyio.move_on_after(EXIT_SECONDS):
                        await self._child.wait()
                    if self._id is not None:
                        self._engine.was_killed(self._id)
                    self._cidfile.unlink(missing_ok=True)
                    shutil.rmtree(self._folder, ignore_errors=True)

    async def _end(self) -> None:
        """End the client and its container."""
        async with anyio.create_task_group() as group:
            # The client blocks on a full pipe; draining it lets the client end.
            group.start_soon(drain, self._stdout)
            group.start_soon(drain, self._stderr)
            with anyio.move_on_after(CREATION_SECONDS):
                while self._read_id() is None and self._child.returncode is None:
                    with anyio.move_on_after(ID_POLL_SECONDS):
                        await self._child.wait()
            if self._child.returncode is None and not (self._id and await self._kill(self._id)):
                # Kill the client first: it could still create the container that is removed next.
                self._child.kill_session()
                await self._remove()
            group.cancel_scope.cancel()

    async def _remove(self) -> None:
        """Remove the container by id, and by name in case its id was never reported."""
        container = self._read_id() or self._name
        try:
            await self._engine.remove(container)
        except BridgeError as error:
            logger.warning(
                "the container %s may be left behind until a bridge starts, which removes it then: %s", container, error
            )
        if self._engine.has_monitors and text_of(file := self._folder / MONITOR_NAME):
            # A client that has seen its container end removes it and exits.
            await end_monitor(file)

    async def _kill(self, container_id: str) -> bool:
        """Kill the container; return whether the client ended, which implies that the engine has removed it."""
        with anyio.move_on_after(EXIT_SECONDS):
            while True:
                with contextlib.suppress(BridgeError):
                    await self._engine.kill(container_id)
                with anyio.move_on_after(RETRY_SECONDS):
                    await self._child.wait()
                    return True
        return False

    def _read_id(self) -> str | None:
        if self._id is None:
            try:
                text = self._cidfile.read_text().strip()
            except OSError:
                return None
            # The engine may be writing the file at this moment.
            if len(text) == _ID_LENGTH:
                self._id = text
        return self._id

    def _on_output(self, _: bytes) -> None:
        self._spoke = True

    async def _exit_status(self, code: int) -> ExitStatus:
        if code < 0:
            # The client was killed, and not the container.
            return ExitStatus(None)
        asked = self._engine.was_killed(self._read_id() or self._name)
        if code != _SIGKILL_CODE or asked:
            return ExitStatus(code)
        # No process inside can send SIGKILL to PID 1: it came from outside, or from the kernel's OOM killer. `--rm` has
        # removed what `inspect` would show about it.
        since = (self._monitor_ended_at or time.time()) - OOM_SECONDS
        if self._engine.name == "podman":
            return ExitStatus(code, oom_killed=_modified_at(self._folder / OOM_NAME) > since)
        return ExitStatus(code, oom_killed=await self._engine.was_out_of_memory(self._read_id() or self._name, since))

    async def _failure(self) -> BridgeError:
        with anyio.move_on_after(EXIT_SECONDS):
            await drain(self._stderr)
        return start_failure(self._engine.name, bytes(self._tail).decode(errors="replace"))


def _owner_of(spec: SandboxSpec) -> str:
    """The owner in a container's labels; empty if it has none of ours."""
    label = spec.labels.get(OWNER_LABEL, "")
    return label if Owner.parse(label) is not None and "/" not in label else ""


def _modified_at(file: Path) -> float:
    """A file's modification time (Unix time in seconds); 0 if it doesn't exist."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _environment(additions: Mapping[str, str]) -> dict[str, str]:
    return {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(additions)


def _uids() -> Iterator[int]:
    """A distinct uid for each container, from a random start: the user's other bridges start elsewhere."""
    first = random.SystemRandom().randrange(_FIRST_UID, _LAST_UID)
    return itertools.cycle(itertools.chain(range(first, _LAST_UID), range(_FIRST_UID, first)))


_LABELS = (OWNER_LABEL, EXECUTION_LABEL)
_LIST_FORMAT = {
    "podman": "json",
    # Docker's own JSON joins labels with commas, which a value may contain.
    "docker": "\t".join(["{{.ID}}", "{{.Names}}", "{{.State}}", *(f'{{{{.Label "{name}"}}}}' for name in _LABELS)]),
}


def _decode_podman(text: str) -> list[ContainerInfo]:
    rows: list[dict[str, Any]] = json.loads(text or "[]") or []
    return [
        ContainerInfo(
            id=str(row["Id"]),
            name=str((row.get("Names") or [""])[0]),
            labels={str(key): str(value) for key, value in (row.get("Labels") or {}).items()},
            running=row["State"] == "running",
        )
        for row in rows
    ]


def _decode_docker(text: str) -> list[ContainerInfo]:
    out = []
    for line in text.splitlines():
        identity, name, state, *values = line.split("\t")
        labels = {key: value for key, value in zip(_LABELS, values, strict=True) if value}
        out.append(ContainerInfo(identity, name, labels, running=state == "running"))
    return out


def _mentions(result: ToolResult, phrases: Sequence[str]) -> bool:
    text = result.stderr.lower()
    return any(phrase in text for phrase in phrases)
