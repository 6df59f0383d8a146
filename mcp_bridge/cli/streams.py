"""The process's three standard streams."""

from __future__ import annotations

import atexit
import collections
import io
import logging
import math
import os
import select
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)

MAX_WAITING_BYTES = 1 << 20
"""What may wait for a reader of standard error; what comes beyond it is lost."""

LAST_SECONDS = 2.0
"""How long the end of a process waits for such a reader."""


class QueuedStream(io.RawIOBase):
    """Has a thread write to a stream: whoever prints or logs waits for no reader, the event loop least of all.

    What doesn't fit is lost until the rest has been read, and then the log says how much.

    Args:
        stream: Where to. It stays in blocking mode, which it may share with other processes.
        max_waiting: How many bytes may wait. What comes while nothing waits is taken whatever its size.
    """

    def __init__(self, stream: TextIO, max_waiting: int = MAX_WAITING_BYTES) -> None:
        self._stream = stream
        self._max_waiting = max_waiting
        # Until when a writer waits for the reader itself; None while the thread does.
        self._direct_until: float | None = None
        self._begin()

    def _begin(self) -> None:
        self._parts: collections.deque[bytes] = collections.deque()
        self._waiting = self._lost_lines = 0
        self._is_full = self._is_telling = False
        self._is_line_whole = self._is_lost_line_whole = True
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The stream's."""
        return self._stream.name

    def fileno(self) -> int:
        """The stream's, which children inherit."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Have bytes written, if there is room for them."""
        given = memoryview(data).tobytes()
        # Without the lock: at the process's end a thread may have stopped for good while it had it.
        if self._direct_until is not None:
            self._put(given, self._direct_until)
        elif given and not self._take(given):
            self._put(given)
        return len(given)

    def text(self) -> io.TextIOWrapper:
        """The stream's like that writes here: it has all that code may expect of standard error, its buffer too."""
        return io.TextIOWrapper(
            cast("io.BufferedWriter", self),
            self._stream.encoding or "utf-8",
            "backslashreplace",
            line_buffering=True,
            write_through=getattr(self._stream, "write_through", False),
        )

    def drain(self, seconds: float) -> None:
        """Wait until everything is written, but no longer than this. What comes later is written at once, or lost."""
        until = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_telling, seconds)
        self._direct_until = until

    def write_directly(self) -> None:
        """Have each writer wait for the reader itself, in a child that was forked: the thread is its parent's.

        So is what waits; and whoever holds the lock may be in the parent alone.
        """
        self._begin()
        self._direct_until = math.inf

    def _take(self, data: bytes) -> bool:
        """Queue bytes, or count them as lost; False if there can't be a thread that would write them."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._write_all, name="stderr", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return False
                self._thread = thread
            # A large line's end may come by itself.
            is_end = data == b"\n" and not self._is_line_whole
            fits = is_end or not self._waiting or self._waiting + len(data) <= self._max_waiting
            # Parts of a line come one by one: none is written after one that was lost.
            self._is_full = self._is_full or not fits
            if self._is_full:
                self._lost_lines += data.count(b"\n")
                self._is_lost_line_whole = data.endswith(b"\n")
                return True
            self._parts.append(data)
            self._waiting += len(data)
            self._is_line_whole = data.endswith(b"\n")
            self._changed.notify_all()
        return True

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._parts)
                data = self._parts.popleft()
            # Whatever it is: nobody else would write what comes later.
            with suppress(Exception):
                self._put(data)
            with self._changed:
                self._waiting -= len(data)
                self._is_telling = self._is_full and not self._parts
            if self._is_telling:
                with suppress(Exception):
                    self._tell_lost()
            with self._changed:
                self._is_telling = False
                self._changed.notify_all()

    def _tell_lost(self) -> None:
        with self._changed:
            lost = self._lost_lines + (not self._is_lost_line_whole)
            is_line_whole, self._is_line_whole = self._is_line_whole, True
            self._lost_lines, self._is_lost_line_whole, self._is_full = 0, True, False
        if not is_line_whole:
            self._put(b"\n")
        logger.warning("%d lines were lost here, because nobody read standard error", lost)

    def _put(self, data: bytes, until: float = math.inf) -> None:
        # Not by the stream: the process's end would wait for the lock of its buffer.
        descriptor = self._stream.fileno()
        rest = memoryview(data)
        # A pipe with any room takes this much without waiting.
        size = len(data) if until == math.inf else select.PIPE_BUF
        while rest:
            seconds = None if until == math.inf else max(0.0, until - time.monotonic())
            if not select.select([], [descriptor], [], seconds)[1]:
                return
            # Another process may have made the shared description non-blocking.
            with suppress(BlockingIOError):
                rest = rest[os.write(descriptor, rest[:size]) :]


def queue_errors() -> None:
    """Have standard error hold up nobody from now on, for a process that serves.

    At the process's end what is waiting has `LAST_SECONDS` to be read.
    """
    if sys.stderr is None or isinstance(getattr(sys.stderr, "buffer", None), QueuedStream):
        return
    try:
        sys.stderr.fileno()
    except (OSError, ValueError):
        # Such as text in memory, which nobody has to read.
        return
    queue = QueuedStream(sys.stderr)
    text = sys.stderr = queue.text()
    os.register_at_fork(after_in_child=queue.write_directly)

    def drain() -> None:
        # A line that has no end yet, too.
        with suppress(OSError, ValueError):
            text.flush()
        queue.drain(LAST_SECONDS)

    atexit.register(drain)


def hold_streams() -> None:
    """Open the null device for every closed standard stream.

    Otherwise the next opened file would get its number, and be read or written as that stream: a database with
    descriptor 2 would receive all error messages of child processes.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # This returns the lowest free descriptor, which is the closed stream's.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        # As standard error: what the locale has no letter for is escaped.
        sys.stdout.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Redirect standard output to the null device, so that buffered data isn't flushed again at exit."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.close(sink)
