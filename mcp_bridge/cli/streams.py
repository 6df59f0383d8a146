"""The process's three standard streams."""

from __future__ import annotations

import atexit
import collections
import io
import logging
import os
import select
import sys
import threading
from contextlib import suppress
from typing import TextIO, cast

logger = logging.getLogger(__name__)

MAX_WAITING_CHARS = 1 << 20
"""What may wait for a reader of standard error; what comes beyond it is lost."""

LAST_SECONDS = 2.0
"""How long the end of a process waits for such a reader."""


class QueuedStream(io.TextIOBase):
    """Has a thread write to a stream: whoever prints or logs waits for no reader, the event loop least of all.

    What doesn't fit is lost until the rest has been read, and then the log says how much.

    Args:
        stream: Where to. It stays in blocking mode, which it may share with other processes.
        max_waiting: How many characters may wait.
    """

    def __init__(self, stream: TextIO, max_waiting: int = MAX_WAITING_CHARS) -> None:
        self._stream = stream
        self._max_waiting = max_waiting
        self._parts: collections.deque[str] = collections.deque()
        self._waiting = self._lost_lines = 0
        self._is_full = self._is_over = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The stream's."""
        return self._stream.encoding or "utf-8"

    def fileno(self) -> int:
        """The stream's, which children inherit."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Have a text written, if there is room for it."""
        with self._changed:
            if self._is_over:
                return self._stream.write(text)
            # Parts of a line come one by one: none is written after one that was lost.
            self._is_full = self._is_full or self._waiting + len(text) > self._max_waiting
            if self._is_full:
                self._lost_lines += text.count("\n")
                return len(text)
            self._parts.append(text)
            self._waiting += len(text)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="stderr", daemon=True)
                self._thread.start()
        return len(text)

    def drain(self, seconds: float) -> None:
        """Wait until everything is written, but no longer than this. If it is, what comes later is written at once."""
        with self._changed:
            self._is_over = self._changed.wait_for(lambda: not self._waiting, seconds)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._parts)
                text = self._parts.popleft()
            with suppress(OSError):
                self._put(text.encode(self.encoding, "backslashreplace"))
            lost = 0
            with self._changed:
                self._waiting -= len(text)
                if self._is_full and not self._parts:
                    lost, self._lost_lines, self._is_full = self._lost_lines, 0, False
            if lost:
                logger.warning("%d lines were lost here, because nobody read standard error", lost)
            with self._changed:
                self._changed.notify_all()

    def _put(self, data: bytes) -> None:
        # Not by the stream: the process's end would wait for the lock of its buffer.
        descriptor = self._stream.fileno()
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                # Another process has made the shared description so.
                select.select([], [descriptor], [])


def queue_errors() -> None:
    """Have standard error hold up nobody from now on, for a process that serves.

    At the process's end what is waiting has `LAST_SECONDS` to be read.
    """
    if sys.stderr is None or isinstance(sys.stderr, QueuedStream):
        return
    queued = QueuedStream(sys.stderr)
    sys.stderr = cast("TextIO", queued)
    atexit.register(queued.drain, LAST_SECONDS)


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
