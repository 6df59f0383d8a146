"""What servers print and log: the last of it is kept for errors, and a logger takes it for the operator.

The logger is masked while a bridge is open (`governance/log_masking.py`).
"""

import logging
from collections import deque

logger = logging.getLogger(__name__)

LOG_BYTES = 64 * 1024
"""How much of a server's stderr (and of what isn't a message on its stdout) is kept."""


_FIRST_LINES = 4
"""How many of the first lines are shown beside the last ones: many programs print an error first, and then how they are
used."""


class LogRing:
    """The last bytes of a log."""

    def __init__(self, limit: int = LOG_BYTES) -> None:
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._forgot = False

    def add(self, chunk: bytes) -> None:
        """Append a chunk; the oldest bytes above the limit are dropped."""
        self._forgot = self._forgot or len(chunk) > self._limit
        chunk = chunk[-self._limit :]
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size > self._limit:
            oldest, over = self._chunks.popleft(), self._size - self._limit
            self._size -= len(oldest)
            if len(oldest) > over:
                self._chunks.appendleft(oldest[over:])
                self._size += len(oldest) - over
            self._forgot = True

    def text(self) -> str:
        """The whole lines that are kept: the beginning of the first may have been dropped."""
        text = b"".join(self._chunks).decode("utf-8", "replace")
        return text.partition("\n")[2] if self._forgot else text

    def tail(self, lines: int = 20, columns: int = 400) -> list[str]:
        """The first lines that are kept and the last ones, each cut to `columns` characters."""
        text = b"".join(self._chunks).decode("utf-8", "replace")
        return self.excerpt([line[:columns] for line in text.splitlines() if line.strip()], lines)

    def excerpt(self, lines: list[str], last: int) -> list[str]:
        """The first and so many of the last of this log's lines, with … between; the last if the first are lost."""
        first = 0 if self._forgot else _FIRST_LINES
        if len(lines) <= first + last + (first > 0):
            return lines
        return [*lines[:first], *(["…"] if first else []), *lines[-last:]]
