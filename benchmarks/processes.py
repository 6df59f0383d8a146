"""A bridge as its host sees it: memory, processor time, disk, what it has started, what it logs of its event loop."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from benchmarks.bridge import COMMAND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

MEBIBYTE = 1 << 20

SAMPLE_SECONDS = 1.0


HELD = re.compile(
    r"the event loop was held for (\d+) ms \((\d+) ms of processor time\), the (\d+)\. time by (.*)", re.MULTILINE
)
"""What the bridge logs of its event loop (`mcp_bridge.host.loop_watch`), once a cause and minute."""


@dataclass
class Hold:
    """What the bridge's log says of one cause that has held its event loop.

    Attributes:
        times: How often at least.
        longest: Milliseconds by the clock, of those that were logged.
        busiest: Milliseconds of processor time, of those that were logged.
    """

    times: int = 0
    longest: int = 0
    busiest: int = 0


def holds(log: str) -> dict[str, Hold]:
    """What has held the event loop, by its cause: the functions that were seen at work."""
    found: dict[str, Hold] = {}
    for longest, busy, times, cause in HELD.findall(log):
        hold = found.setdefault(cause, Hold())
        hold.times = max(hold.times, int(times))
        hold.longest = max(hold.longest, int(longest))
        hold.busiest = max(hold.busiest, int(busy))
    return found


class ProcessMonitor:
    """The bridge's process, its state, and everything that it has started."""

    def __init__(self, pid: int, state_dir: Path) -> None:
        self.pid = pid
        self._state_dir = state_dir
        self._began = time.monotonic()
        self._seen: dict[int, str] = {}
        self.disk: list[tuple[float, float]] = []
        self.rss: list[tuple[float, float]] = []

    async def watch(self) -> None:
        """Sample until cancelled."""
        while True:
            await anyio.to_thread.run_sync(self.sample)
            await anyio.sleep(SAMPLE_SECONDS)

    def sample(self) -> None:
        now = round(time.monotonic() - self._began, 1)
        self.rss.append((now, self.status("VmRSS")))
        self.disk.append((now, _used(self._state_dir)))
        for pid in descendants(self.pid):
            if pid not in self._seen and (started := _started(pid)):
                self._seen[pid] = started

    def status(self, name: str) -> float:
        """MiB of a line of its `/proc/PID/status`; 0 if it is gone."""
        try:
            found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
        except OSError:
            return 0.0
        return int(found[1]) / 1024 if found else 0.0

    def processor_seconds(self) -> float:
        """Of the bridge's own process; of those that it starts, not."""
        try:
            values = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")

    def forget_peak(self) -> None:
        """Begin the mark of the highest memory anew (proc(5), clear_refs)."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def left(self) -> list[str]:
        """Processes that it has started, at any depth, and that are still there; those with its own among them."""
        seen = {**self._seen, self.pid: ""}
        return [
            f"process {pid}" for pid, started in seen.items() if (now := _started(pid)) and started in {now, ""} and now
        ]


def _started(pid: int) -> str:
    """When a process was started, by which it is told from another of its number; empty if it is gone."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if values[0] in {"Z", "X"} else values[19]


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(path.name))
    found, todo = [], [pid]
    while todo:
        found += (more := children.get(todo.pop(), []))
        todo += more
    return found


def bridge_among(pids: Iterable[int]) -> int:
    """The process of `mcp-bridge` among some; there has to be one."""
    (found,) = [pid for pid in pids if runs(pid, COMMAND)]
    return found


def runs(pid: int, command: str) -> bool:
    """Whether a process has been started with a text in its command line."""
    try:
        return command.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


async def processor_ms(pid: int, work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of processor time that a process takes, in all its threads, until some work is done."""
    # A process's clock as clock_getcpuclockid(3) names it: to the nanosecond.
    clock = ~pid << 3 | 2
    began = time.clock_gettime(clock)
    await work()
    return (time.clock_gettime(clock) - began) * 1000


def _used(folder: Path) -> float:
    """MiB of the disk that a folder takes."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except OSError:
            continue
    return total / MEBIBYTE
