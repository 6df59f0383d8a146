"""The pipe on which Node reads frames. A write to it never blocks.

Node reads nothing while it computes, or waits for an answer at once (`askNow` of channel.js), which may need the host's
answer: the thread that reads the host's frames must not be blocked by those that are for Node.
"""

import _thread
import os
import select
from time import monotonic

from mcp_bridge.wire.annotations import NoReturn

MAX_UNREAD = 16 << 20
"""From here on unread frames stay in the host, as long as Node reads: they would take the sandbox's memory."""

READS_SECONDS = 0.3
"""When Node has read nothing for so long, it is not waited for: an interruption of the cell may be the next frame."""


class NodePipe:
    """The write end of that pipe.

    Args:
        fd: The descriptor.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._lock = _thread.allocate_lock()
        self._unwritten = bytearray()
        """A deletion at its front doesn't move the rest."""
        self._read_at = 0.0
        """When the pipe last took something, by `monotonic`."""
        self._some = _thread.allocate_lock()
        """Held while nothing is unwritten: the thread that writes waits for it."""
        self._some.acquire()
        self._less = _thread.allocate_lock()
        """Released when something was written: `wait` may be over."""
        self._less.acquire()
        # Started now: when it is needed, the script may have taken all the processes that the sandbox may have.
        _thread.start_new_thread(self._write_rest, ())

    def write(self, data: bytes) -> None:
        """Write now what the pipe takes, and the rest as Node reads. All is lost once Node has ended."""
        with self._lock:
            view = memoryview(data)
            if not self._unwritten:
                view = view[self._try(view) :]
            if view:
                self._unwritten += view
                if self._some.locked():
                    self._some.release()

    def write_first(self, frame: bytes) -> None:
        """As `write`, before the frames of which nothing is written yet: Node may take seconds to read those."""
        with self._lock:
            begun = self._unwritten.find(b"\n") + 1
            if begun:
                self._unwritten[begun:begun] = frame
        if not begun:
            self.write(frame)

    def wait(self) -> None:
        """Wait while much is unwritten and Node reads. For the one thread that reads the host's frames."""
        while len(self._unwritten) > MAX_UNREAD and (left := self._read_at + READS_SECONDS - monotonic()) > 0:
            self._less.acquire(timeout=left)

    def _write_rest(self) -> NoReturn:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while True:
            self._some.acquire()
            while self._unwritten:
                poll.poll()
                with self._lock:
                    del self._unwritten[: self._try(self._unwritten)]
                    if self._less.locked():
                        self._less.release()

    def _try(self, data: memoryview | bytearray) -> int:
        """Write what the pipe takes; return how much is done with."""
        try:
            written = os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError:
            # Node has ended: how, is told where its own frames end.
            return len(data)
        self._read_at = monotonic()
        return written
