"""Podman and Docker by their command lines.

One `run` client a container, attached to its three streams. Ending the client does not end the container, so every
way out of here kills by id; and every wait is bounded, so a cancelled caller can neither leave a live container
behind nor hang on one.
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
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.private_files import state_directory
from mcp_bridge.sandbox import seccomp
from mcp_bridge.sandbox.engine import (
    EXECUTION_LABEL,
    OWNER_LABEL,
    ContainerInfo,
    Engine,
    ExitStatus,
    SandboxProcess,
    SandboxSpec,
)
from mcp_bridge.sandbox.failures import TAIL_BYTES, start_failure
from mcp_bridge.sandbox.flags import RuntimeChoice, run_argv
from mcp_bridge.sandbox.image.tool import ToolResult, disk_full, run_tool
from mcp_bridge.sandbox.pipes import Child, PipeReader, PipeWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from anyio.abc import ByteReceiveStream, ByteSendStream

COMMAND_SECONDS = 20.0
"""For `kill`, `rm` and `ps` to answer: the engine may be waiting for its store's lock."""

CREATION_SECONDS = 15.0
"""For a starting engine to name its container once we want it gone: until then there is no id to kill."""

EXIT_SECONDS = 10.0
"""For the client to end, and `--rm` to remove, after its container was killed, or has ended. One whose monitor was
killed would take 20 s."""

RETRY_SECONDS = 0.25
"""Between two attempts to kill a container that exists but does not run yet."""

ID_POLL_SECONDS = 0.004
"""How often to look for the file with the id. Creation takes 100 ms and more."""

MONITOR_POLL_SECONDS = 0.05
"""How often to look for the file with the monitor's process id, until the container is there."""

OOM_SECONDS = 10.0
"""How long before its end a container was first out of memory, if that is why it has ended."""

_ID_LENGTH = 64
_SIGKILL_CODE = 137
_ENGINE_CODES = frozenset({125, 126, 127})
"""How `run` ends when it failed itself, or could not start the command."""

_ID_FILE_SECONDS = 24 * 3600.0
"""Longer than any container of ours lives."""

_REMOTE_VARIABLES = ("CONTAINER_HOST", "CONTAINER_CONNECTION")
_REMOTE_ARGUMENTS = ("--remote", "--url", "--connection", "-r", "-c")
"""By which podman drives one of another machine, where its monitors are."""

_FIRST_UID, _LAST_UID = 20_000, 60_000
"""Within the 65,536 subordinate ids that a rootless user has, and away from the ids that images use."""

_INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "DBUS_SESSION_BUS_ADDRESS", "SSH_AUTH_SOCK",
    "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME",
    "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY",
    "CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINER_SSHKEY", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF",
    "CONTAINERS_REGISTRIES_CONF", "STORAGE_DRIVER", "STORAGE_OPTS",
)  # fmt: skip
"""What a `run` client may have of our environment: it lives as long as the sandbox; our keys are not its business."""

MONITOR_NAME = "monitor.pid"
MONITOR_SECONDS = 2.0
"""For a container's monitor to leave, once that was removed."""

OOM_NAME = "oom"
"""What podman's monitor leaves in the directory that it works in, when the control group was out of memory."""

_MISSING = ("no such container", "no container with", "does not exist", "is already in progress")
_NOT_RUNNING = ("is not running", "can only kill running containers", "container state improper")


class CliEngine(Engine):
    """An engine driven by its command line.

    Args:
        choice: Which engine, and what works on this host.
        state_dir: Holds the files with the ids of starting containers, under `run/`, which is made with mode 0700.

    Raises:
        BridgeError: `disk_full`, `state_unwritable`.
    """

    def __init__(self, choice: RuntimeChoice, state_dir: Path) -> None:
        self.choice = choice
        # The client works there: what it leaves is in nobody's way.
        self._run_dir = state_dir.absolute() / "run"
        state_directory(state_dir)
        try:
            self._run_dir.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise _os_error(error, f"The directory {self._run_dir} can't be made") from error
        self._uids = _uids()
        self._image_variables: dict[str, tuple[str, ...]] = {}
        self._killed: set[str] = set()
        self._forget_killed()

    @property
    def name(self) -> str:
        """`podman` or `docker`."""
        return self.choice.engine

    def _forget_killed(self) -> None:
        """Remove what bridges that were killed have left: id files and directories, and what engines wrote there."""
        # An empty file, of podman's monitor for a container that died of memory, where earlier versions started it.
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
        name = uuid.uuid4().hex
        cidfile, folder = self._run_dir / f"{name}.cid", self._run_dir / name
        uid = next(self._uids) if choice.uid_per_container else None
        argv = run_argv(
            choice,
            spec,
            cidfile=cidfile,
            profile=seccomp.PROFILE,
            user=None if uid is None else f"{uid}:{uid}",
            unset=await self._variables_of(spec.image),
            monitor=folder / MONITOR_NAME if self.has_monitors else None,
        )
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise _os_error(error, f"The directory {folder} can't be made") from error
        try:
            child = Child(argv, _environment(choice.environment), folder)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise self._unstarted(error) from error
        return CliProcess(self, child, spec.name, cidfile, folder)

    def _unstarted(self, error: OSError) -> BridgeError:
        if isinstance(error, FileNotFoundError):
            return BridgeError(
                "no_runtime",
                f"The container engine {self.choice.path} is gone.",
                hint="Run `mcp-bridge doctor` to choose another.",
            )
        return _os_error(error, f"{self.choice.path} can't be started")

    @property
    def has_monitors(self) -> bool:
        """Whether a process of this machine holds each container's streams, and is told by its id: podman's conmon."""
        return (
            self.name == "podman"
            and sys.platform == "linux"
            and not any(os.environ.get(name) for name in _REMOTE_VARIABLES)
            and not any(argument.startswith(_REMOTE_ARGUMENTS) for argument in self.choice.global_args)
        )

    async def kill(self, container_id: str) -> None:
        """SIGKILL by id or name.

        Raises:
            BridgeError: `engine_failed`.
        """
        self._killed.add(container_id)
        result = await self._command("kill", "--signal=KILL", container_id)
        if result.returncode and not _says(result, _MISSING + _NOT_RUNNING):
            raise self._failed(result)

    async def remove(self, container_id: str) -> None:
        """Remove by id or name, running or not.

        Raises:
            BridgeError: `engine_failed`.
        """
        self._killed.add(container_id)
        # Podman's `rm --force` asks politely for ten seconds first unless told otherwise.
        at_once = ("--time=0",) if self.name == "podman" and self.choice.at_least(4) else ()
        result = await self._command("rm", "--force", *at_once, container_id)
        if result.returncode and not _says(result, _MISSING):
            raise self._failed(result)

    async def list(self, label: str) -> Sequence[ContainerInfo]:
        """Every container that carries the label. From Docker only our own two labels come with the answer.

        Raises:
            BridgeError: `engine_failed`.
        """
        name, _, value = label.partition("=")
        # By name only: Podman splits a filter's value at commas.
        result = await self._command(
            "ps", "--all", "--no-trunc", f"--filter=label={name}", "--format", _LIST_FORMAT[self.name]
        )
        if result.returncode:
            raise self._failed(result)
        try:
            found = _decode_podman(result.stdout) if self.name == "podman" else _decode_docker(result.stdout)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BridgeError("engine_failed", f"{self.name} ps can't be understood: {error!r}.") from error
        return [container for container in found if "=" not in label or container.labels.get(name) == value]

    def was_killed(self, container_id: str) -> bool:
        """Whether this object was asked to kill it; asking forgets it."""
        known = container_id in self._killed
        self._killed.discard(container_id)
        return known

    async def was_out_of_memory(self, container_id: str, since: float) -> bool:
        """Whether Docker has told of a container that it was out of memory; False where it can't be asked.

        Args:
            container_id: Id or name; it may be gone.
            since: In seconds since 1970.
        """
        period = (f"--since={since:.9f}", f"--until={time.time():.9f}")
        only = (f"--filter=container={container_id}", "--filter=event=oom")
        try:
            result = await self._command("events", *period, *only, "--format={{.ID}}")
        except BridgeError:
            return False
        return result.returncode == 0 and bool(result.stdout.strip())

    async def _variables_of(self, image: str) -> tuple[str, ...]:
        """The variables an image sets; Docker keeps them unless told their names. Asked once an image."""
        if self.name == "podman":
            return ()
        if image not in self._image_variables:
            result = await self._command("image", "inspect", "--format={{json .Config.Env}}", image)
            if result.returncode:
                # The run that follows fails for the same reason and says so better.
                return ()
            with contextlib.suppress(ValueError):
                found = json.loads(result.stdout) or []
                names = (str(entry).partition("=")[0] for entry in found)
                # `--env NAME` drops the variable only where the client has none of that name; else it hands ours in.
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

    def _failed(self, result: ToolResult) -> BridgeError:
        return BridgeError("engine_failed", f"{self.name} failed: {result.tail()}", output=result.tail())


class CliProcess(SandboxProcess):
    """A container and the client attached to it; made by `CliEngine.start`."""

    def __init__(self, engine: CliEngine, child: Child, name: str, cidfile: Path, folder: Path) -> None:
        self._engine = engine
        self._child = child
        self._name = name
        self._cidfile = cidfile
        self._folder = folder
        self._severed = False
        self._monitor_left: float | None = None
        """When the container's monitor was seen to have ended, in seconds since 1970."""
        self._id: str | None = None
        self._tail = bytearray()
        self._spoke = False
        self._status: ExitStatus | None = None
        self._closing = anyio.Lock()
        self._closed = False
        stdin, stdout, stderr = child.descriptors()
        self._stdin = PipeWriter(stdin)
        self._stdout = PipeReader(stdout, on_data=self._on_output)
        self._stderr = PipeReader(stderr, on_data=self._on_complaint)

    @property
    def stdin(self) -> ByteSendStream:
        """To the container's standard input."""
        return self._stdin

    @property
    def stdout(self) -> ByteReceiveStream:
        """The channel."""
        return self._stdout

    @property
    def stderr(self) -> ByteReceiveStream:
        """PID 1's own reports, and the engine's complaints."""
        return self._stderr

    async def container_id(self) -> str:
        """The engine's full id of the container.

        Raises:
            BridgeError: As `wait`, when the engine ended without making a container.
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
        """Wait until the container has ended, or nobody can tell any more.

        Raises:
            BridgeError: `sandbox_start_failed`, `image_missing`, `no_runtime`, `disk_full`: PID 1 never ran.
        """
        code = await self._ended()
        if code is None:
            return ExitStatus(None)
        if self._status is None:
            # PID 1 may choose these statuses too, but then it has spoken before, or has nothing to tell anyway.
            if code in _ENGINE_CODES and not self._spoke:
                raise await self._failure()
            self._status = await self._judge(code)
        return self._status

    async def _ended(self) -> int | None:
        """The client's exit status; None if it waits in vain for a container whose monitor has ended."""
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
            self._monitor_left = self._monitor_left or time.time()
            await anyio.sleep(EXIT_SECONDS)
            tasks.cancel_scope.cancel()
        self._severed = code is None
        return code

    async def _monitor_ended(self) -> None:
        """Wait for the end of the container's monitor; for ever, where nobody can tell of it."""
        if not self._engine.has_monitors:
            await anyio.sleep_forever()
        file = self._folder / MONITOR_NAME
        while not (text := _text_of(file)):  # noqa: ASYNC110  (of a file there is no event)
            await anyio.sleep(MONITOR_POLL_SECONDS)
        try:
            pidfd = os.pidfd_open(int(text))
        except ProcessLookupError:
            return
        except (AttributeError, OSError, ValueError):
            await anyio.sleep_forever()
        try:
            await anyio.wait_readable(pidfd)
        finally:
            os.close(pidfd)

    async def aclose(self) -> None:
        """Kill by id if still running, remove, close the streams. Idempotent, bounded and shielded."""
        with anyio.CancelScope(shield=True):
            async with self._closing:
                if self._closed:
                    return
                try:
                    self._stdin.close()
                    if self._severed:
                        # Podman can't kill what it has lost, and its client hangs.
                        self._child.kill_session()
                        await self._remove()
                    elif self._child.returncode is None:
                        await self._end()
                    elif self._child.returncode < 0 or self._child.returncode in _ENGINE_CODES:
                        # Somebody killed the client, or it has lost its container, which may live on.
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
        """From a running client to none, and no container."""
        async with anyio.create_task_group() as group:
            # The client blocks on a full pipe, and must be able to end.
            group.start_soon(_drain, self._stdout)
            group.start_soon(_drain, self._stderr)
            with anyio.move_on_after(CREATION_SECONDS):
                while self._read_id() is None and self._child.returncode is None:
                    with anyio.move_on_after(ID_POLL_SECONDS):
                        await self._child.wait()
            if self._child.returncode is None and not (self._id and await self._kill(self._id)):
                # The client first: while it lives it may still make the container that we are about to remove.
                self._child.kill_session()
                await self._remove()
            group.cancel_scope.cancel()

    async def _remove(self) -> None:
        """By id, and by name for a container that never got to tell its id."""
        with contextlib.suppress(BridgeError):
            await self._engine.remove(self._read_id() or self._name)
        if self._engine.has_monitors and _text_of(file := self._folder / MONITOR_NAME):
            # One that has seen its container end tidies up, and leaves.
            with anyio.move_on_after(MONITOR_SECONDS) as waiting:
                await self._monitor_ended()
            if waiting.cancelled_caught:
                _end_monitor(file, self._name)

    async def _kill(self, container_id: str) -> bool:
        """Whether the client ended after a kill: then the engine has removed the container as well."""
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
            # The engine may be in the midst of writing it.
            if len(text) == _ID_LENGTH:
                self._id = text
        return self._id

    def _on_output(self, _: bytes) -> None:
        self._spoke = True

    def _on_complaint(self, data: bytes) -> None:
        self._tail += data
        del self._tail[:-TAIL_BYTES]

    async def _judge(self, code: int) -> ExitStatus:
        if code < 0:
            # The client was killed, not the container.
            return ExitStatus(None)
        asked = self._engine.was_killed(self._read_id() or self._name)
        if code != _SIGKILL_CODE or asked:
            return ExitStatus(code)
        # Nobody inside can send SIGKILL to PID 1: somebody outside did, or the kernel for its memory. What `inspect`
        # would say of that is gone with `--rm`.
        since = (self._monitor_left or time.time()) - OOM_SECONDS
        if self._engine.name == "podman":
            return ExitStatus(code, oom_killed=_changed(self._folder / OOM_NAME) > since)
        return ExitStatus(code, oom_killed=await self._engine.was_out_of_memory(self._read_id() or self._name, since))

    async def _failure(self) -> BridgeError:
        with anyio.move_on_after(EXIT_SECONDS):
            await _drain(self._stderr)
        return start_failure(self._engine.name, bytes(self._tail).decode(errors="replace"))


def _end_monitor(file: Path, name: str) -> None:
    """End a container's monitor, and what that has begun to start.

    A client that is killed between the two doesn't say that they are there: the engine removes a container of which it
    knows no process, and both would wait for ever.
    """
    with contextlib.suppress(OSError, ValueError):
        pid = int(_text_of(file))
        # The number may be another process's by now.
        if name.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for process in (*map(int, children), pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _changed(file: Path) -> float:
    """When a file was changed last, in seconds since 1970; 0 if it isn't there."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def _text_of(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


async def _drain(stream: ByteReceiveStream) -> None:
    """Read to the end, unless somebody else is reading: what passes is in the tail either way."""
    with contextlib.suppress(anyio.BusyResourceError, anyio.ClosedResourceError):
        async for _ in stream:
            pass


def _environment(additions: Mapping[str, str]) -> dict[str, str]:
    return {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(additions)


def _uids() -> Iterator[int]:
    """Each container its own, from a random start: other bridges of this user count from elsewhere."""
    first = random.SystemRandom().randrange(_FIRST_UID, _LAST_UID)
    return itertools.cycle(itertools.chain(range(first, _LAST_UID), range(_FIRST_UID, first)))


_LABELS = (OWNER_LABEL, EXECUTION_LABEL)
_LIST_FORMAT = {
    "podman": "json",
    # Docker's own JSON joins the labels with commas, which a value may contain.
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


def _says(result: ToolResult, phrases: Sequence[str]) -> bool:
    text = result.stderr.lower()
    return any(phrase in text for phrase in phrases)


def _os_error(error: OSError, what: str) -> BridgeError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return disk_full(f"{what}.")
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return BridgeError("state_unwritable", f"{what}: {error.strerror}.", hint="Check its owner and its mode.")
    return BridgeError("sandbox_start_failed", f"{what}: {error.strerror}.")
