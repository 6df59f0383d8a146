"""The processes by which Podman watches containers (conmon): their end is seen, and those left behind are ended."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import shutil
import signal
from pathlib import Path

import anyio
import anyio.to_thread

MONITOR_POLL_SECONDS = 0.05
"""How often to poll for the file with the monitor's process id until the container exists."""

MONITOR_NAME = "monitor.pid"

MONITOR_SECONDS = 2.0
"""How long a container's monitor may take to exit after the container was removed."""


async def process_ended(pid: str) -> None:
    """Wait for a process's end; wait forever if it can't be observed."""
    try:
        pidfd = os.pidfd_open(int(pid))
    except ProcessLookupError:
        return
    except (AttributeError, OSError, ValueError):
        await anyio.sleep_forever()
    try:
        await anyio.wait_readable(pidfd)
    finally:
        os.close(pidfd)


async def remove_orphaned(folder: Path) -> None:
    """End the monitor of a removed container, and remove the container's directory."""
    await end_monitor(folder / MONITOR_NAME)
    folder.with_name(f"{folder.name}.cid").unlink(missing_ok=True)
    await anyio.to_thread.run_sync(functools.partial(shutil.rmtree, folder, ignore_errors=True))


async def end_monitor(file: Path) -> None:
    """End a removed container's monitor, and the OCI runtime that it has started, if they don't end by themselves.

    If the client is killed while the monitor starts the container, the engine removes the container without knowing of
    these processes, and both would wait forever.
    """
    with anyio.move_on_after(MONITOR_SECONDS):
        await process_ended(text_of(file))
        return
    _kill_monitor(file)


def _kill_monitor(file: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        pid = int(text_of(file))
        # The process id may have been reused.
        if str(file).encode() not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for process in (*map(int, children), pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def is_gone(pid: str) -> bool:
    """Whether a process has ended, even if nobody has reaped it."""
    try:
        pidfd = os.pidfd_open(int(pid))
    except ProcessLookupError:
        return True
    except (AttributeError, OSError, ValueError):
        return False
    try:
        return bool(select.select([pidfd], [], [], 0)[0])
    finally:
        os.close(pidfd)


def text_of(file: Path) -> str:
    """A file's text without white space around it; empty if it can't be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
