"""Captures descriptors 1 and 2: what Python, C code or a child process writes there is sent as output messages.

Each stream is one pipe, so the order within a stream is the order of the writes. Between the two streams Python's own
writes are ordered by emptying the pipes at each switch.
"""

import _thread
import io
import os
import select
import sys
from time import sleep

from mcp_bridge.guest.channel import Channel
from mcp_bridge.guest.unsent_output import Unsent
from mcp_bridge.wire.annotations import Any
from mcp_bridge.wire.messages import OutputWrite

COALESCE_SECONDS = 0.002
"""How long the pump waits for more small writes: a loop of prints then gives a few messages instead of thousands."""

HELD_BYTES = 16 << 10
"""The most of standard error that is held back."""


class Capture:
    """Sends what is written to descriptors 1 and 2 as messages.

    Args:
        channel: The channel for the messages.
        readers: The read ends of the pipes behind descriptors 1 and 2, non-blocking.
        unsent: Shared memory in which process 1 finds unsent output if this process dies.
    """

    def __init__(self, channel: Channel, readers: tuple[int, int], unsent: tuple[Unsent, Unsent]) -> None:
        self._channel = channel
        self._readers = readers
        self._unsent = unsent
        self._sent = [0, 0]
        self._lock = _thread.allocate_lock()
        self._pending = [b"", b""]
        self._pid = os.getpid()
        self._pollers = (select.poll(), select.poll())
        """Of one stream each: the pump has its own, which waits."""
        self.current = 1
        self.last_words: tuple[bytes, ...] = ()
        """Texts at which standard error is held back, as long as little follows: maybe an interpreter's own report of
        its death."""
        for reader, poller in zip(readers, self._pollers, strict=True):
            os.set_blocking(reader, False)
            poller.register(reader, select.POLLIN)

    def start(self) -> None:
        """Replace `sys.stdout` and `sys.stderr`, and start the pump."""
        sys.stdout = self._text(1)
        sys.stderr = self._text(2)
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
        _thread.start_new_thread(self._pump, ())

    def drain(self) -> None:
        """Send everything written so far."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            for index in (0, 1):
                while self._forward(index):
                    pass

    def finish(self) -> None:
        """Flush C's and Python's buffers and send everything, including an incomplete character at the end."""
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

    def report_replaced(self) -> None:
        """Say on standard error where a cell has left another `sys.stdout`, unless what it has printed came here, too.

        Later cells have it as well, and their answers would be empty for no visible reason.
        """
        own = sys.stdout
        if own is sys.__stdout__:
            return
        try:
            own.flush()
            is_here = own.fileno() == 1
        except Exception:  # noqa: BLE001  (the script may have put anything there, or nothing)
            is_here = False
        self.drain()
        if not is_here and not self._sent[0] and not self._pending[0]:
            said = f"sys.stdout is a {type(own).__name__} now: what cells of this session print goes there"
            os.write(2, f"{said}; write: sys.stdout = sys.__stdout__\n".encode(errors="backslashreplace"))

    def take_held(self, text: bytes) -> bool:
        """Drop what is held back of standard error if a text is in it; return whether it was."""
        self.drain()
        with self._lock:
            is_in = text in self._pending[1]
            if is_in:
                self._sent[1] += len(self._pending[1])
                self._pending[1] = b""
                # Else process 1 would find it there.
                self._unsent[1].forget()
        return is_in

    def begin_cell(self) -> None:
        """Send what was written before, which belongs to no cell, and count offsets anew."""
        self.finish()
        with self._lock:
            self._sent = [0, 0]
            for unsent in self._unsent:
                unsent.forget()
        self.current = 1

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
                # The script has closed its own descriptors: nothing more can arrive.
                for fd, event in events:
                    if event & (select.POLLHUP | select.POLLNVAL):
                        poller.unregister(fd)
                continue
            sleep(COALESCE_SECONDS)
            self.drain()

    def _forward(self, index: int) -> bool:
        if not self._pollers[index].poll(0):
            # The pages that a read prepares are fresh, and take longer than all else at the end of a script.
            return False
        try:
            held = self._pending[index]
            data = self._unsent[index].read(self._readers[index], self._sent[index], held)
        except OSError:
            return False
        if len(data) == len(held):
            return False
        self._pending[index] = data
        self._send(index)
        return True

    def _send(self, index: int, *, final: bool = False) -> None:
        data = self._pending[index]
        if not data:
            return
        stream: Any = ("stdout", "stderr")[index]
        # A character that is cut by a read waits for its remaining bytes, so that text stays text.
        cut = len(data) if final else len(data) - _incomplete_tail(data)
        if index and not final:
            for words in self.last_words:
                found = data.find(words)
                if 0 <= found < cut and len(data) - found <= HELD_BYTES:
                    cut = found
        whole = data[:cut]
        if not whole:
            return
        try:
            self._channel.notify(OutputWrite(stream, text=whole.decode("utf-8")))
        except UnicodeDecodeError:
            import binascii

            self._channel.notify(OutputWrite(stream, base64=binascii.b2a_base64(whole, newline=False).decode("ascii")))
        # Only now: unsent bytes stay in shared memory, where process 1 finds them.
        self._pending[index] = data[cut:]
        self._sent[index] += cut


class _Stream(io.FileIO):
    """Descriptor 1 or 2 as Python's own stream: unbuffered, and ordered relative to the other."""

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
    """The number of bytes of an incomplete UTF-8 sequence at the end (0 to 3)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if need > back else 0
        if byte < 0x80:
            return 0
    return 0


def _flush_c() -> None:
    """Flush C's standard streams if code is loaded that could write to them."""
    # Nothing can have come from a folder in which nothing was looked for: that spares a look at each module.
    if "ctypes" in sys.modules or (
        any(path.startswith("/opt/") for path in list(sys.path_importer_cache))
        and any(str(getattr(module, "__file__", "") or "").startswith("/opt/") for module in list(sys.modules.values()))
    ):
        try:
            import ctypes

            ctypes.CDLL(None).fflush(None)
        except (ImportError, OSError, AttributeError):
            pass


def closed_outputs() -> list[int] | None:
    """Which of descriptors 1 and 2 the script has closed; None for neither."""
    closed = []
    for fd in (1, 2):
        try:
            os.fstat(fd)
        except OSError:
            closed.append(fd)
    return closed or None


def unbuffer_c() -> None:
    """Make C's standard output unbuffered, so that it is ordered correctly among Python's writes."""
    import ctypes

    libc = ctypes.CDLL(None)
    unbuffered = 2  # _IONBF
    try:
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, unbuffered, 0)
    except (ValueError, AttributeError):
        pass
