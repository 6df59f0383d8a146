"""Splits bytes into lines, with a limit on incomplete lines."""

from mcp_bridge.wire.errors import WireError

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""The longest line that either side accepts, without its newline."""

EXCERPT_BYTES = 120


def excerpt(line: bytes | bytearray) -> str:
    """The start of `line` as printable ASCII, safe for logs, errors and terminals."""
    shown = line[:EXCERPT_BYTES].decode("ascii", "backslashreplace").encode("unicode_escape").decode("ascii")
    return shown + ("…" if len(line) > EXCERPT_BYTES else "")


class LineDecoder:
    """Collects bytes and returns whole lines.

    Linear in the number of bytes, however they are divided into chunks.
    """

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max = max_bytes
        # One buffer, and not a list of chunks: a line that arrives in chunks of two bytes would take 30 times its size.
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add received bytes; return the lines that they complete, without their newlines.

        Raises:
            WireError: `frame_too_large`, as soon as a complete or incomplete line exceeds the limit.
        """
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._buffer:
            self._buffer += lines[0]
            lines[0] = bytes(self._buffer)
            self._buffer = bytearray()
        self._buffer += rest
        for line in lines:
            if len(line) > self._max:
                raise self._too_large(line)
        if len(self._buffer) > self._max:
            raise self._too_large(self._buffer)
        return lines

    @property
    def incomplete(self) -> bytes:
        """The bytes after the last newline: a truncated frame if the stream has ended."""
        return bytes(self._buffer)

    def _too_large(self, line: bytes | bytearray) -> WireError:
        return WireError("frame_too_large", f"a frame is over the limit of {self._max} bytes", excerpt(line))
