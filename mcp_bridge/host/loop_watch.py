"""What has held the event loop: one loop serves every execution, so what holds it holds up all of them.

Each turn of the loop is measured from the end of one wait for events to the beginning of the next. A turn over
`HELD_SECONDS` is counted and logged, once a cause and minute and when it is much longer than those before it (as a
warning, if it was busy and comes again), with the functions that a thread saw on the loop's stack meanwhile: names
only, no values. While the loop waits for events, neither it nor the thread wakes up.

A turn is also long where something else holds the interpreter, or the machine has no processor left: `busy_seconds` of
a hold is the processor time that the loop's own thread has had.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import math
import os
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


logger = logging.getLogger(__name__)

HELD_SECONDS = 0.1
"""A turn of the loop that takes longer is a hold."""

FIRST_WARNING_SECONDS = 0.5
"""One of so much processor time is warned of the first time, and a shorter one when its cause comes again."""

LOG_AGAIN_SECONDS = 60.0
"""A cause that was logged is counted, and not logged again, for so long."""

_LONGER = 1.5
"""Unless it takes so many times the processor time of any that was logged."""

MAX_CAUSES = 200
"""Causes that are told apart; later ones are counted together."""

KEPT_HOLDS = 100
"""The latest holds, for whoever asks."""

_STALE = 0.05
"""The part of a hold's least length that its processor time may contain of the turns just before it."""

_LOOK_SECONDS = 0.03
"""How often the thread looks at a loop that is at work: more often than a hold is long."""

_QUIET_LOOKS = 20
"""Looks that find the loop waiting before the thread sleeps until it is woken."""

_FRAMES = 6
"""Functions of a stack that are named, the innermost first."""

_PACKAGE = "mcp_bridge"

_UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class LoopStall:
    """One turn of the loop that took too long.

    Attributes:
        seconds: How long.
        busy_seconds: Processor time of the loop's thread in it.
        cause: The functions that were seen at work, the innermost first; `unseen` where none was.
    """

    seconds: float
    busy_seconds: float
    cause: str


_TIMER_CLOEXEC = 0o2000000
_CLOCK_MONOTONIC = 1


class _Alarm:
    """Lets a thread sleep until a while after somebody has said so.

    An event would wake it at once, and it would take the interpreter from whoever has just begun with its work. A timer
    of the kernel (timerfd_create(2), Linux) is set by one system call. Without one, the thread is woken at once.
    """

    def __init__(self) -> None:
        # It keeps the interpreter lock: the call takes less than to give it up.
        self._library = ctypes.PyDLL(None)
        self._timer = -1
        self._event = threading.Event()

    def open(self) -> None:
        """Make the timer; on the thread, before it waits."""
        make = getattr(self._library, "timerfd_create", None)
        self._timer = -1 if make is None else make(_CLOCK_MONOTONIC, _TIMER_CLOEXEC)

    def set(self, seconds: float) -> None:
        """Wake the thread after this time."""
        if self._timer < 0:
            self._event.set()
            return
        # Of an interval, which there isn't, and of the time until the end: seconds and nanoseconds.
        times = (ctypes.c_long * 4)(0, 0, int(seconds), max(1, int(seconds % 1 * 1e9)))
        self._library.timerfd_settime(self._timer, 0, times, None)

    def wait(self) -> None:
        """Sleep until then."""
        if self._timer < 0:
            self._event.wait()
            self._event.clear()
            return
        os.read(self._timer, 8)

    def close(self) -> None:
        """Nobody sets it any more."""
        if self._timer >= 0:
            os.close(self._timer)
            self._timer = -1


class LoopStallMonitor:
    """Counts what holds one event loop.

    Attributes:
        count: Holds so far.
        longest: The longest, in seconds.
        busiest: The most processor time of one, in seconds.
        causes: How often each cause was seen.
        latest: The last of them.
    """

    def __init__(self, held_seconds: float = HELD_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self.longest = 0.0
        self.busiest = 0.0
        self.causes: dict[str, int] = {}
        self.latest: deque[LoopStall] = deque(maxlen=KEPT_HOLDS)
        self._held = held_seconds
        self._clock = clock
        self._logged: dict[tuple[str, int], float] = {}
        self._longest: dict[str, float] = {}
        self._began: float | None = None
        self._began_busy = 0.0
        self._counted = -math.inf
        """When the processor time was read last, which takes longer than all else that is done for a turn."""
        self._seen: tuple[float, str] | None = None
        """What the thread saw last, and when the turn had begun in which it did."""
        self._alarm = _Alarm()
        self._is_asleep = False
        """Whether the thread sleeps until it is woken."""
        self._over = False
        self._thread_id = threading.get_ident()

    def summary(self) -> dict[str, Any]:
        """Counts for a report: `holds`, `longest_ms`, and `causes` with the most frequent first."""
        causes = sorted(self.causes.items(), key=lambda each: -each[1])
        return {"holds": self.count, "longest_ms": round(self.longest * 1000), "causes": dict(causes[:10])}

    # --- on the loop's thread ---

    def begin(self) -> None:
        """The loop has events to work on."""
        self._began = began = self._clock()
        if began - self._counted > _STALE * self._held:
            self._began_busy = time.thread_time()
            self._counted = began
        if self._is_asleep:
            self._is_asleep = False
            self._alarm.set(_LOOK_SECONDS)

    def end(self) -> None:
        """The loop has done what there was."""
        began, self._began = self._began, None
        if began is None:
            return
        took = self._clock() - began
        if took > self._held:
            seen = self._seen
            # What was seen as the turn before ended says nothing of this one.
            cause = seen[1] if seen is not None and seen[0] == began else _UNSEEN
            self._note(LoopStall(took, time.thread_time() - self._began_busy, cause))

    def _note(self, hold: LoopStall) -> None:
        self.count += 1
        self.longest = max(self.longest, hold.seconds)
        self.busiest = max(self.busiest, hold.busy_seconds)
        self.latest.append(hold)
        cause = hold.cause if hold.cause in self.causes or len(self.causes) < MAX_CAUSES else "others"
        self.causes[cause] = self.causes.get(cause, 0) + 1
        now = self._clock()
        # What is done once in a process (an import), or on a machine that has no processor left, is nobody's attack.
        is_grave = hold.busy_seconds > self._held and (
            self.causes[cause] > 1 or hold.busy_seconds > FIRST_WARNING_SECONDS
        )
        level = logging.WARNING if is_grave else logging.INFO
        # Of less processor time than makes a hold, a longer one says nothing of its cause.
        is_longest = hold.busy_seconds > max(self._held, _LONGER * self._longest.get(cause, 0.0))
        if is_longest or now - self._logged.get((cause, level), -LOG_AGAIN_SECONDS) >= LOG_AGAIN_SECONDS:
            self._logged[cause, level] = now
            self._longest[cause] = max(hold.busy_seconds, self._longest.get(cause, 0.0))
            logger.log(
                level,
                "the event loop was held for %.0f ms (%.0f ms of processor time), the %d. time by %s",
                hold.seconds * 1000,
                hold.busy_seconds * 1000,
                self.causes[cause],
                cause,
            )

    # --- on the thread that looks ---

    def look(self) -> None:
        """Look at the loop while it is at work, until the watch is over."""
        self._alarm.open()
        quiet = 0
        while not self._over:
            began = self._began
            if began is None:
                quiet += 1
                if quiet > _QUIET_LOOKS:
                    self._is_asleep = True
                    # Else it has begun in between, and need not have seen that.
                    if self._began is None and not self._over:
                        self._alarm.wait()
                    self._is_asleep = False
                    quiet = 0
                    continue
            else:
                quiet = 0
                if self._clock() - began > self._held / 2:
                    seen = self._stack()
                    if self._began == began:
                        self._seen = (began, seen)
            time.sleep(_LOOK_SECONDS)
        self._alarm.close()

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - the documented way to a thread's frame
        return _names(frame)

    def stop(self) -> None:
        """End the thread that looks."""
        self._over = True
        self._alarm.set(0.0)


def _names(frame: FrameType | None) -> str:
    """The innermost functions of a stack, and those of ours that have called them."""
    found: list[str] = []
    ours = False
    # Of a thread that goes on meanwhile, CPython 3.11 may give something else as the frame before.
    while isinstance(frame, FrameType) and len(found) < _FRAMES:
        module = str(frame.f_globals.get("__name__", "?"))
        if module.startswith(_PACKAGE):
            ours = True
            found.append(f"{module}.{frame.f_code.co_qualname}")
        elif not ours and len(found) < 2:  # noqa: PLR2004 - what it is at, and for whom
            found.append(f"{module}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return " < ".join(found) or _UNSEEN


@contextmanager
def watched(watch: LoopStallMonitor | None = None) -> Iterator[LoopStallMonitor]:
    """Watch the running event loop; a loop that isn't asyncio's own is not watched, and counts nothing."""
    watch = watch or LoopStallMonitor()
    try:
        selector: Any = getattr(asyncio.get_running_loop(), "_selector", None)
    except RuntimeError:
        selector = None
    if selector is None:
        yield watch
        return
    select = selector.select

    def watching(timeout: float | None = None) -> Any:
        watch.end()
        try:
            return select(timeout)
        finally:
            watch.begin()

    watch.begin()
    selector.select = watching
    thread = threading.Thread(target=watch.look, name="loop watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.stop()
        # Where another watch has come on top, this one's part stays, and passes everything on.
        if selector.select is watching:
            selector.select = select
