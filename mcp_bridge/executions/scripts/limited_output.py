"""What a script prints and shows, gathered in order up to a limit: a script that goes beyond it is ended."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from mcp_bridge.wire.errors import WireError

if TYPE_CHECKING:
    from mcp_bridge.wire.messages import OutputDisplay, OutputWrite

MAX_DISPLAYS = 100


class OutputLimitError(Exception):
    """The script printed or showed more than it may; the text says what."""


class Outputs:
    """Gathers output.

    Args:
        limit: The most bytes kept, all streams and displays together.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        # Not lists of pieces: a piece of one byte would take fifty in memory, and an empty one is a piece too.
        self._streams = {"stdout": bytearray(), "stderr": bytearray()}
        self.displays: list[dict[str, str]] = []

    def write(self, message: OutputWrite) -> None:
        """Take a piece.

        Raises:
            WireError: `bad_params`: neither text nor base64, or both, or invalid base64.
            OutputLimitError: It is too much; what fits was kept.
        """
        if (message.text is None) == (message.base64 is None):
            raise WireError("bad_params", "output.write needs either 'text' or 'base64'")
        if message.text is not None:
            data = message.text.encode("utf-8")
        else:
            try:
                data = base64.b64decode(message.base64 or "", validate=True)
            except (binascii.Error, ValueError):
                raise WireError("bad_params", "output.write: 'base64' is invalid") from None
        stored = self._streams[message.stream]
        if message.offset is not None and message.offset < len(stored):
            data = data[len(stored) - message.offset :]
        room = max(0, self._limit - self._size)
        stored += data[:room]
        self._size += len(data)
        if len(data) > room:
            raise OutputLimitError(f"The script printed more than {self._limit} bytes")

    def display(self, message: OutputDisplay) -> None:
        """Take a shown object.

        Raises:
            WireError: `bad_params`.
            OutputLimitError: It is too much.
        """
        if not message.data or not all(isinstance(value, str) for value in message.data.values()):
            raise WireError("bad_params", "output.display: 'data' maps MIME types to text")
        self._size += sum(len(kind) + len(value) for kind, value in message.data.items())
        if self._size > self._limit:
            raise OutputLimitError(f"The script printed and showed more than {self._limit} bytes")
        if len(self.displays) >= MAX_DISPLAYS:
            raise OutputLimitError(f"The script showed more than {MAX_DISPLAYS} objects")
        self.displays.append(dict(message.data))

    def lines_end(self, name: str, start: int) -> int:
        """Where the last whole line of a stream from a byte on ends; a progress bar's ends with a carriage return."""
        stored = self._streams[name]
        return max(stored.rfind(b"\n", start), stored.rfind(b"\r", start)) + 1

    def part(self, name: str, start: int, end: int) -> bytes:
        """Some bytes of a stream."""
        return bytes(self._streams[name][start:end])

    def stream(self, name: str) -> bytes:
        """All of one stream, which is given away: it is empty then."""
        # One copy of what may be the most that anybody prints is enough.
        data, self._streams[name] = self._streams[name], bytearray()
        return bytes(data)
