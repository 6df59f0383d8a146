"""Capture of descriptors 1 and 2: whatever writes there, Python, C or a child process, arrives as output messages.

Everything goes through one pipe a stream, so the order within a stream is the order of the writes. Between the two
streams Python's own writes are put in order by emptying the pipes at each switch.
"""

import binascii
import io
import os
import select
import sys
import threading
from time import sleep
from typing import Any

from mcp_bridge.guest.channel import Channel
from mcp_bridge.guest.unsent import Unsent
from mcp_bridge.wire.messages import OutputWrite

COALESCE_SECONDS = 0.002
"""How long the pump lets small writes gather: a loop of prints is then a few messages, not thousands."""


class Capture:
    """Moves what is written to descriptors 1 and 2 into messages.

    Args:
        channel: Where the messages go.
        readers: The read ends of the pipes behind descriptors 1 and 2, non-blocking.
        unsent: Where process 1 finds what was read from them, should this process die.
    """

    def __init__(self, channel: Channel, readers: tuple[int, int], unsent: tuple[Unsent, Unsent]) -> None:
        self._channel = channel
        self._readers = readers
        self._unsent = unsent
        self._sent = [0, 0]
        self._lock = threading.Lock()
        self._held = [b"", b""]
        self._pid = os.getpid()
        self.current = 1
        for reader in readers:
            os.set_blocking(reader, False)

    def start(self) -> None:
        """Replace `sys.stdout` and `sys.stderr` and begin to pump."""
        sys.stdout = self._text(1)
        sys.stderr = self._text(2)
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
        threading.Thread(target=self._pump, name="bridge-output", daemon=True).start()

    def drain(self) -> None:
        """Send all that has been written so far."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            for index in (0, 1):
                while self._forward(index):
                    pass

    def finish(self) -> None:
        """Flush C's and Python's buffers and send everything, an incomplete character at the end included."""
        for name in ("stdout", "stderr"):
            try:
                getattr(sys, name).flush()
            except Exception:  # noqa: BLE001, S110  (the script may have put anything there, or nothing)
                pass
        _flush_c()
        self.drain()
        with self._lock:
            for index in (0, 1):
                self._send(index, final=True)

    def _text(self, fd: int) -> io.TextIOWrapper:
        return io.TextIOWrapper(
            _Stream(fd, self),
            encoding="utf-8",
            errors="backslashreplace",
            newline="\n",
            write_through=True,
        )

    def _pump(self) -> None:
        poller = select.poll()
        for reader in self._readers:
            poller.register(reader, select.POLLIN)
        while True:
            events = poller.poll()
            if any(event & (select.POLLHUP | select.POLLNVAL) and not event & select.POLLIN for _, event in events):
                # Every write end is closed: the script closed its own descriptors. Nothing more can come.
                for fd, event in events:
                    if event & (select.POLLHUP | select.POLLNVAL):
                        poller.unregister(fd)
                continue
            sleep(COALESCE_SECONDS)
            self.drain()

    def _forward(self, index: int) -> bool:
        try:
            held = self._held[index]
            data = self._unsent[index].read(self._readers[index], self._sent[index], held)
        except OSError:
            return False
        if len(data) == len(held):
            return False
        self._held[index] = data
        self._send(index)
        return True

    def _send(self, index: int, *, final: bool = False) -> None:
        data = self._held[index]
        if not data:
            return
        stream: Any = ("stdout", "stderr")[index]
        # A character cut by the end of a read waits for its rest, so that text stays text.
        cut = len(data) if final else len(data) - _incomplete_tail(data)
        whole = data[:cut]
        if not whole:
            return
        try:
            self._channel.notify(OutputWrite(stream, text=whole.decode("utf-8")))
        except UnicodeDecodeError:
            self._channel.notify(OutputWrite(stream, base64=binascii.b2a_base64(whole, newline=False).decode("ascii")))
        # Only now: what could not be sent is still held, and process 1 finds it.
        self._held[index] = data[cut:]
        self._sent[index] += cut


class _Stream(io.FileIO):
    """Descriptor 1 or 2 as Python's own stream: unbuffered, and ordered against the other one."""

    def __init__(self, fd: int, capture: Capture) -> None:
        super().__init__(fd, "w", closefd=False)
        self._fd = fd
        self._capture = capture

    def write(self, data: Any, /) -> int:
        if self._capture.current != self._fd:
            self._capture.drain()
            self._capture.current = self._fd
        view = memoryview(data).cast("B")
        total = len(view)
        while view:
            view = view[super().write(view) or 0 :]
        return total


def _incomplete_tail(data: bytes) -> int:
    """How many bytes at the end begin a UTF-8 sequence that isn't complete (0 to 3)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if need > back else 0
        if byte < 0x80:
            return 0
    return 0


def _flush_c() -> None:
    """Flush C's standard streams, if anything that could write to them was loaded."""
    if "_ctypes" in sys.modules or any(
        str(getattr(module, "__file__", "") or "").startswith("/opt/") for module in list(sys.modules.values())
    ):
        try:
            import ctypes

            ctypes.CDLL(None).fflush(None)
        except (ImportError, OSError, AttributeError):
            pass


def unbuffer_c() -> None:
    """Make C's standard output unbuffered, so that its order among Python's writes is true."""
    import ctypes

    libc = ctypes.CDLL(None)
    unbuffered = 2  # _IONBF
    try:
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, unbuffered, 0)
    except (ValueError, AttributeError):
        pass
