"""Bytes that the guest has read from an output pipe, in memory shared with process 1.

The guest may be killed at any moment between reading a pipe and writing to the channel. Process 1 then sends these
bytes again, with their offset in the stream; the host drops those that it has already received.
"""

import mmap
import os
import struct

CHUNK_BYTES = 65_536
"""The most that is read at once: a pipe's usual capacity."""

_HEADER = struct.Struct("<QII")
_SLOT_BYTES = _HEADER.size + CHUNK_BYTES
_BLANK = b"\xff"
"""Fills a slot before a read, so that the end of the data can be found even if its length was never recorded. UTF-8
never contains this byte."""

_UNKNOWN = 2**32 - 1
"""A slot's length while a read into it is in progress."""

_MAX_OFFSET = 2**62


class Unsent:
    """One stream's bytes that were read and possibly not sent.

    There are two slots: one is prepared while the other is valid, and a single byte tells which one is valid. A slot
    consists of its offset in the stream, the number of bytes held at the beginning, its length, and the bytes.
    """

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 1 + 2 * _SLOT_BYTES)
        self._view = memoryview(self._page)

    def read(self, fd: int, start: int, pending: bytes) -> bytes:
        """Read what is in the pipe, after the bytes `pending` at offset `start`; return both together.

        Raises:
            BlockingIOError: The pipe is empty. OSError: As `read`.
        """
        slot = 1 - self._page[0]
        base = 1 + slot * _SLOT_BYTES
        first = base + _HEADER.size
        end = base + _SLOT_BYTES
        self._view[first:end] = pending + _BLANK * (CHUNK_BYTES - len(pending))
        _HEADER.pack_into(self._page, base, start, len(pending), _UNKNOWN)
        self._page[0] = slot
        count = os.readv(fd, [self._view[first + len(pending) : end]])
        _HEADER.pack_into(self._page, base, start, len(pending), len(pending) + count)
        return bytes(self._view[first : first + len(pending) + count])

    def forget(self) -> None:
        """Hold nothing: what was read is sent, and what follows counts its offsets anew."""
        slot = 1 - self._page[0]
        _HEADER.pack_into(self._page, 1 + slot * _SLOT_BYTES, 0, 0, 0)
        self._page[0] = slot

    def rest(self) -> tuple[int, bytes]:
        """The bytes that may be unsent, and their offset (called by process 1 after the guest's death).

        The guest could write anything here: in any case, it is treated as output at some offset.
        """
        base = 1 + (self._page[0] & 1) * _SLOT_BYTES
        start, pending, length = _HEADER.unpack_from(self._page, base)
        data = self._page[base + _HEADER.size : base + _SLOT_BYTES]
        found = data[:pending] + data[pending:].rstrip(_BLANK) if length == _UNKNOWN else data[:length]
        return start % _MAX_OFFSET, found
