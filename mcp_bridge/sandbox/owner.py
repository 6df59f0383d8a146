"""Whose container is this, and is its owner still alive?

Every container carries `<host id>:<pid>:<start>` of the bridge that started it. A bridge that is killed with -9 can't
clean up; the next one on the same host sweeps. It removes only what it can prove to be orphaned: the label is
from this host, in this pid namespace, and no process with that id and that start is alive. A label of another host,
or one that can't be read (another version's, another tool's), proves nothing, and its container is left alone: a
leftover wastes some memory, a wrong removal destroys somebody's work.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.sandbox.engine import OWNER_LABEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.sandbox.engine import ContainerInfo, Engine

PS_SECONDS = 5.0
"""For macOS's `ps` to look up one process."""

_START_FIELD = 22 - 3
"""`starttime` of /proc/<pid>/stat, counted after the command's closing parenthesis (proc(5))."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told apart from every other before and after it on any host.

    Attributes:
        host: Hash of the machine's id and the pid namespace.
        pid: In that namespace.
        start: When it began: `<boot>.<ticks>` on Linux, a date on macOS.
    """

    host: str
    pid: int
    start: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.start}"

    @classmethod
    def parse(cls, label: str) -> Owner | None:
        """The owner a label names, or None when it is none of ours."""
        parts = label.split(":")
        if len(parts) != len(cls.__slots__) or not all(parts) or not (parts[1].isascii() and parts[1].isdigit()):
            return None
        return cls(parts[0], int(parts[1]), parts[2])

    def is_here(self) -> bool:
        """Whether this owner lived on this host, in this pid namespace: then it can be looked up."""
        return self.host == host_id()

    def is_orphan_here(self) -> bool:
        """Whether this owner lived on this host and is certainly dead."""
        if not self.is_here():
            return False
        start = _start_of(self.pid)
        return start is None or (start != self.start and _UNKNOWN not in {start, self.start})


def owner_label() -> str:
    """The value of OWNER_LABEL for this process."""
    return _label_of(os.getpid())


async def sweep(engine: Engine) -> list[str]:
    """Remove every container whose owner was on this host and is dead.

    Safe to run at any time and by several bridges at once: a container that another sweep removed first is no error.

    Returns:
        The ids of the containers removed.

    Raises:
        BridgeError: `engine_failed`, `no_runtime` when the engine can't list. A container that can't be removed is
            left for the next sweep.
    """
    containers = await engine.list(OWNER_LABEL)
    # In a thread: where there is no /proc, `ps` is asked.
    orphans = await anyio.to_thread.run_sync(_orphans, containers)
    removed: list[str] = []

    async def remove(container_id: str) -> None:
        try:
            await engine.remove(container_id)
        except BridgeError:
            return
        removed.append(container_id)

    async with anyio.create_task_group() as group:
        for orphan in orphans:
            group.start_soon(remove, orphan)
    return removed


def _orphans(containers: Sequence[ContainerInfo]) -> list[str]:
    out = []
    for container in containers:
        owner = Owner.parse(container.labels.get(OWNER_LABEL, ""))
        if owner is not None and owner.is_orphan_here():
            out.append(container.id)
    return out


@cache
def host_id() -> str:
    """Sixteen hexadecimal digits for this machine and pid namespace, the same after a reboot."""
    parts = [_first_of(Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")) or platform.node()]
    try:
        # A bridge in a container sees other pids than its neighbours, though it may share their machine-id.
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    except OSError:
        parts.append(platform.system())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


_UNKNOWN = "?"
"""Instead of a start that can't be looked up: the process may be alive."""


@cache
def _label_of(pid: int) -> str:
    # Cached by pid: a fork is an owner of its own.
    return str(Owner(host_id(), pid, _start_of(pid) or _UNKNOWN))


def _start_of(pid: int) -> str | None:
    """When the process began, None for no such process or a zombie, `_UNKNOWN` when there is no telling."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        # Alive, and somebody else's; /proc may hide it (hidepid), which must not pass for death.
        pass
    if not Path("/proc/self/stat").exists():
        return _start_by_ps(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _UNKNOWN
    if fields[0] in {"Z", "X"}:
        return None
    return f"{_boot()}.{fields[_START_FIELD]}"


def _start_by_ps(pid: int) -> str | None:
    try:
        result = subprocess.run(
            ["ps", "-o", "state=,lstart=", "-p", str(pid)],
            capture_output=True,
            text=True,
            timeout=PS_SECONDS,
            check=False,
            env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        )
    except (OSError, subprocess.SubprocessError):
        return _UNKNOWN
    state, _, start = result.stdout.strip().partition(" ")
    if result.returncode or state.startswith("Z"):
        return None
    return start.strip().replace(":", ".").replace(" ", "-") or _UNKNOWN


@cache
def _boot() -> str:
    """Ticks count from the boot, so they need its id beside them."""
    return _first_of(Path("/proc/sys/kernel/random/boot_id")).replace("-", "")[:12] or "0"


def _first_of(*paths: Path) -> str:
    for path in paths:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text:
            return text
    return ""
