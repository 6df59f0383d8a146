"""What the guest has taken out of an output pipe, in memory that process 1 shares.

The guest may be killed at any moment between its read of a pipe and the end of its write to the channel. Process 1
then sends what is here once more, with its place in the stream; the host drops what it has already.
"""

import mmap
import os
import struct

CHUNK_BYTES = 65_536
"""Most that is read at once: a pipe's usual capacity."""

_HEADER = struct.Struct("<QII")
_SLOT_BYTES = _HEADER.size + CHUNK_BYTES
_BLANK = b"\xff"
"""Fills a slot before a read, so that the end of what was read shows even if its length was never noted. UTF-8 has
no such byte."""

_UNKNOWN = 2**32 - 1
"""A slot's length while a read into it is under way."""

_MAX_OFFSET = 2**62


class Unsent:
    """One stream's bytes, taken and perhaps not sent.

    Two slots in turn: one is made ready while the other is valid, and a single byte says which one is. A slot is the
    place of its first byte in the stream, how many bytes it began with, its length, and the bytes.
    """

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 1 + 2 * _SLOT_BYTES)
        self._view = memoryview(self._page)

    def read(self, fd: int, start: int, held: bytes) -> bytes:
        """Read what is in the pipe, after `held`, which stands at `start` in the stream; return both together.

        Raises:
            BlockingIOError: There is nothing. OSError: As `read`.
        """
        slot = 1 - self._page[0]
        base = 1 + slot * _SLOT_BYTES
        first = base + _HEADER.size
        end = base + _SLOT_BYTES
        self._view[first:end] = held + _BLANK * (CHUNK_BYTES - len(held))
        _HEADER.pack_into(self._page, base, start, len(held), _UNKNOWN)
        self._page[0] = slot
        count = os.readv(fd, [self._view[first + len(held) : end]])
        _HEADER.pack_into(self._page, base, start, len(held), len(held) + count)
        return bytes(self._view[first : first + len(held) + count])

    def rest(self) -> tuple[int, bytes]:
        """What may not have been sent, with its place in the stream (called by process 1 when the guest is dead).

        The guest could write anything here: whatever it is, it is no more than output at some place.
        """
        base = 1 + (self._page[0] & 1) * _SLOT_BYTES
        start, held, length = _HEADER.unpack_from(self._page, base)
        data = self._page[base + _HEADER.size : base + _SLOT_BYTES]
        found = data[:held] + data[held:].rstrip(_BLANK) if length == _UNKNOWN else data[:length]
        return start % _MAX_OFFSET, found
