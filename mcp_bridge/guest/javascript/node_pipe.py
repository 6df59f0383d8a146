"""The pipe on which Node reads frames. To write there blocks nobody.

Node reads nothing while it waits for an answer at once (`askNow` of channel.js), and that answer may need the host's:
whoever reads the host's frames must not be blocked by those that are for Node.
"""

import _thread
import os
import select

from mcp_bridge.wire.annotations import NoReturn


class NodePipe:
    """The write end of that pipe.

    Args:
        fd: The descriptor.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._lock = _thread.allocate_lock()
        self._unwritten: list[memoryview] = []
        self._some = _thread.allocate_lock()
        """Held while nothing is unwritten: the thread that writes waits for it."""
        self._some.acquire()
        self._less = _thread.allocate_lock()
        """Released when `wait` may be over."""
        self._less.acquire()
        self._is_awaited = False
        # Started now: when it is needed, the script may have taken all the processes that the sandbox may have.
        _thread.start_new_thread(self._write_rest, ())

    def write(self, data: bytes) -> None:
        """Write now what the pipe takes, and the rest as Node reads. All is lost once Node has ended."""
        with self._lock:
            view = memoryview(data)
            if not self._unwritten:
                view = view[self._try(view) :]
            if view:
                self._unwritten.append(view)
                if self._some.locked():
                    self._some.release()

    def wait(self) -> None:
        """Wait until all is written: so unread frames stay in the host. Returns at once while Node awaits an answer.

        For the one thread that reads the host's frames. What comes meanwhile was asked for by Node before: the host's
        limit of calls that are under way bounds it.
        """
        while self._unwritten and not self._is_awaited:
            self._less.acquire()

    def node_awaits(self, *, answer: bool) -> None:
        """Node waits for an answer at once, and reads nothing; or it has it."""
        with self._lock:
            self._is_awaited = answer
            self._end_wait()

    def _end_wait(self) -> None:
        if self._less.locked():
            self._less.release()

    def _write_rest(self) -> NoReturn:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while True:
            self._some.acquire()
            while self._unwritten:
                poll.poll()
                with self._lock:
                    view = self._unwritten[0]
                    self._unwritten[:1] = [rest] if (rest := view[self._try(view) :]) else []
            with self._lock:
                self._end_wait()

    def _try(self, view: memoryview) -> int:
        """Write what the pipe takes; return how much is done with."""
        try:
            return os.write(self._fd, view)
        except BlockingIOError:
            return 0
        except OSError:
            # Node has ended: how, is told where its own frames end.
            return len(view)
