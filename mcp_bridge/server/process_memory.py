"""Configures a serving process: how threads share its interpreter, when memory is returned.

The event loop serves all requests on one thread. Large values are processed on other threads (`offload`) under the same
interpreter lock. These settings are for a process that serves, and not for commands.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import anyio
import anyio.to_thread

from mcp_bridge import offload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long another thread continues when the event loop wants the interpreter lock. Python's default of 5 ms would be
paid several times during each call."""

COLLECT_SECONDS = 60.0
"""Interval of full garbage collections. By default they would happen during the processing of a large value, each of
which blocks the loop for a quarter of a second. Objects without cycles, such as JSON, are freed anyway."""

GROWN_COLLECT_SECONDS = 20.0
"""The same interval if the process has grown since the last collection."""

QUIET_SECONDS = 10.0
"""How long a collection is postponed while large values are processed, which it would have to scan."""

LOOK_SECONDS = 10.0
"""How often the process's memory usage is checked."""

GROWTH_BYTES = 32 << 20
"""Growth after which free memory is returned to the system."""

# From malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_ARENAS = 2
_MMAPPED_BYTES = 256 << 10
_KEPT_BYTES = 1 << 20


def configure_interpreter() -> None:
    """Let the event loop get the interpreter lock soon, and return large freed blocks to the system.

    It also enables garbage collection, which the command line disables while it imports.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 1 << 30)
    # What was imported stays, and is never scanned again.
    gc.freeze()
    gc.enable()
    library = _c_library()
    if library is not None:
        # Otherwise every thread has an arena of its own, and freeing a large block raises the size above which blocks
        # are returned.
        library.mallopt(_M_ARENA_MAX, _ARENAS)
        library.mallopt(_M_MMAP_THRESHOLD, _MMAPPED_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


@contextmanager
def missing(*names: str) -> Iterator[None]:
    """Have modules count as not installed, as long as this lasts: for what a package imports only if it is there.

    Args:
        names: Top-level modules. One that is imported already stays.
    """
    absent = [name for name in names if name not in sys.modules]
    modules = cast("dict[str, ModuleType | None]", sys.modules)
    for name in absent:
        # What Python refuses to import, without looking for it.
        modules[name] = None
    try:
        yield
    finally:
        for name in absent:
            if modules.get(name) is None:
                modules.pop(name, None)


def return_memory() -> None:
    """Return free memory to the system. Call it on a thread: it takes milliseconds, without the interpreter lock."""
    if (library := _c_library()) is not None:
        library.malloc_trim(0)


async def release_memory() -> None:
    """Collect garbage at intervals, and return memory to the system if the process has grown. Runs until cancelled."""
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
        if _resident_bytes() > least + GROWTH_BYTES:
            await anyio.to_thread.run_sync(return_memory)
        least = min(least, _resident_bytes())


def _c_library() -> ctypes.CDLL | None:
    """The GNU C library; None for other C libraries, which lack these functions."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        if library.mallopt and library.malloc_trim:
            return library
    return None


def _resident_bytes() -> int:
    """The process's resident memory (proc_pid_statm(5)); 0 if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except (OSError, ValueError, IndexError):
        return 0
