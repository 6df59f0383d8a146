"""Determines which bridge owns a container, and whether that bridge is alive.

Every container has a label `<host id>:<pid>:<start>` of the bridge that started it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PS_SECONDS = 5.0
"""How long macOS's `ps` may take to look up a process."""

_START_FIELD = 22 - 3
"""`starttime` in /proc/<pid>/stat, counted from the command's closing parenthesis (proc(5))."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, identified uniquely over time and hosts.

    Attributes:
        host: A hash of the machine's id and the pid namespace.
        pid: The process id in that namespace.
        start: The start time: `<boot>.<ticks>` on Linux, a date on macOS.
    """

    host: str
    pid: int
    start: str

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.start}"

    @classmethod
    def parse(cls, label: str) -> Owner | None:
        """The owner in a label, or None if the label isn't ours."""
        parts = label.split(":")
        if len(parts) != len(cls.__slots__) or not all(parts) or not (parts[1].isascii() and parts[1].isdigit()):
            return None
        return cls(parts[0], int(parts[1]), parts[2])

    def is_of_this_host(self) -> bool:
        """Whether the owner is of this host and pid namespace, so that it can be looked up."""
        return self.host == host_id()

    def is_orphaned(self) -> bool:
        """Whether the owner is of this host and certainly dead."""
        if not self.is_of_this_host():
            return False
        start = start_time(self.pid)
        return start is None or (start != self.start and UNKNOWN not in {start, self.start})


def owner_label() -> str:
    """The value of OWNER_LABEL for the current process."""
    return _label_of(os.getpid())


@cache
def host_id() -> str:
    """Sixteen hexadecimal digits that identify the machine and pid namespace; stable across reboots."""
    parts = [_first_of(Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")) or platform.node()]
    try:
        # A bridge in a container sees different pids than its neighbours, but may share their machine-id.
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    except OSError:
        parts.append(platform.system())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


UNKNOWN = "?"
"""Replaces an unknown start time: the process may be alive."""


@cache
def _label_of(pid: int) -> str:
    # Cached by pid, because a forked process is an owner of its own.
    return str(Owner(host_id(), pid, start_time(pid) or UNKNOWN))


def start_time(pid: int) -> str | None:
    """A process's start time, as in `Owner`.

    Returns:
        None if the process doesn't exist or is a zombie, `UNKNOWN` if its start time can't be determined.
    """
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        # The process is alive and another user's. /proc may hide it (hidepid), which must not count as dead.
        pass
    if not Path("/proc/self/stat").exists():
        return _start_by_ps(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return UNKNOWN
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
        return UNKNOWN
    state, _, start = result.stdout.strip().partition(" ")
    if result.returncode or state.startswith("Z"):
        return None
    return start.strip().replace(":", ".").replace(" ", "-") or UNKNOWN


@cache
def _boot() -> str:
    """The boot id: start times are ticks since the boot."""
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
