"""A temporary directory for an image build, with a lock that allows one build at a time."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from mcp_bridge.errors import BridgeError
from mcp_bridge.file_locks import try_lock
from mcp_bridge.private_files import state_directory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

LOCK_SECONDS = 1200.0
"""How long to wait for another process's build."""

_POLL_SECONDS = 0.1
_PREFIX = "image-build-work-"


@asynccontextmanager
async def build_directory(state_dir: Path, progress: Callable[[str], None]) -> AsyncGenerator[Path]:
    """Hold the build lock and provide an empty directory, which is removed afterwards.

    Directories that killed builds have left behind are removed first.

    Args:
        state_dir: The state directory; created if missing.
        progress: Called once if another process holds the lock.

    Raises:
        BridgeError: `image_build_failed` if the lock isn't free within LOCK_SECONDS.
        OSError: The state directory can't be used.
    """
    lock = await anyio.to_thread.run_sync(_open_lock, state_dir)
    try:
        await _acquire(lock, progress)
        try:
            yield await anyio.to_thread.run_sync(_make, state_dir)
        finally:
            # Shielded: a cancelled build would otherwise leave half a gigabyte behind.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_sweep, state_dir)
    finally:
        os.close(lock)


def _open_lock(state_dir: Path) -> int:
    state_directory(state_dir)
    return os.open(state_dir / "image-build.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


async def _acquire(lock: int, progress: Callable[[str], None]) -> None:
    told = False
    with anyio.move_on_after(LOCK_SECONDS):
        while True:
            # The kernel releases the lock when the process ends, so a killed build blocks nobody.
            if try_lock(lock):
                return
            if not told:
                progress("Waiting for another process that is building an image.")
                told = True
            await anyio.sleep(_POLL_SECONDS)
    raise BridgeError("image_build_failed", f"Another process has been building for {LOCK_SECONDS:.0f} s.")


def _make(state_dir: Path) -> Path:
    _sweep(state_dir)
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=state_dir.resolve()))


def _sweep(state_dir: Path) -> None:
    for left in state_dir.glob(f"{_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)
