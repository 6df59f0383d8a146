"""How the server's process shares its interpreter among its threads, and gives memory back.

The event loop serves everybody, on one thread; large values are worked on in others (`offload`), under the same
interpreter lock. What is set here is for a process that serves, not for a command.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import sys
from pathlib import Path

import anyio
import anyio.to_thread

from mcp_bridge import offload

logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long another thread goes on when the loop's wants the interpreter. Python's own 5 ms would be paid at each of the
several times that the loop wakes up for one call."""

COLLECT_SECONDS = 60.0
"""How often the garbage collector looks through everything. By its own count it would in the midst of a large value,
which holds up the loop for a quarter of a second, again and again; what has no cycles, as JSON has none, is freed
without it."""

GROWN_COLLECT_SECONDS = 20.0
"""The same, when the process has grown since."""

QUIET_SECONDS = 10.0
"""How long that is put off while large values are worked on. What is in memory then has to be looked through, too."""

LOOK_SECONDS = 10.0
"""How often the process's memory is looked at."""

GROWTH_BYTES = 32 << 20
"""What it has to have grown by, for memory that is free to be given back."""

# From malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_ARENAS = 2
_MMAPPED_BYTES = 256 << 10
_KEPT_BYTES = 1 << 20


def share() -> None:
    """Let the loop have the interpreter soon, and have large blocks of memory given back when they are free."""
    sys.setswitchinterval(SWITCH_SECONDS)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 1 << 30)
    library = _c_library()
    if library is not None:
        # Else every thread has an arena of its own, and a large block that is freed raises the size from which blocks
        # are given back.
        library.mallopt(_M_ARENA_MAX, _ARENAS)
        library.mallopt(_M_MMAP_THRESHOLD, _MMAPPED_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


async def give_back() -> None:
    """Collect garbage now and then, and give memory back when the process has grown; runs until it is cancelled."""
    library = _c_library()
    least = kept = _resident_bytes()
    collected = anyio.current_time()
    while True:
        await anyio.sleep(LOOK_SECONDS)
        has_grown = _resident_bytes() > kept + GROWTH_BYTES
        if anyio.current_time() - collected > (GROWN_COLLECT_SECONDS if has_grown else COLLECT_SECONDS):
            with anyio.move_on_after(QUIET_SECONDS):
                while not offload.is_idle():  # noqa: ASYNC110  (to be told costs each piece of work more)
                    await anyio.sleep(QUIET_SECONDS / 1000)
            gc.collect()
            collected = anyio.current_time()
            kept = _resident_bytes()
        if library is not None and _resident_bytes() > least + GROWTH_BYTES:
            await anyio.to_thread.run_sync(library.malloc_trim, 0)
        least = min(least, _resident_bytes())


def _c_library() -> ctypes.CDLL | None:
    """The GNU C library; None with another one, which has no such functions."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        if library.mallopt and library.malloc_trim:
            return library
    return None


def _resident_bytes() -> int:
    """What the process has in memory (proc_pid_statm(5)); 0 where that can't be told."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except (OSError, ValueError, IndexError):
        return 0
