"""Room for the bodies of requests, of which one principal can't take what the others need.

Bodies that arrive share one room: a principal may have as much of it as stays free for the others beside it (dynamic
thresholds, Choudhury and Hahne, 1998). One alone gets half, two get a third each, and some is always free.

A body that was handed on takes nothing from others, however long its call runs. Until the request is over it is counted
for its principal, because the call has it in memory. A session's call may go on without its connection, and is then not
counted any more.
"""

from __future__ import annotations

from collections import Counter
from typing import Self

MAX_ARRIVING_BYTES = 64 << 20
"""Bodies of all requests that are arriving; more where `max_body_size` needs it."""

MAX_BYTES_PER_PRINCIPAL = 64 << 20
"""Bodies of one principal's open requests: as many of the largest scripts as run at once by default."""


class BodyRoom:
    """The room.

    Args:
        max_body_size: Most bytes of one body. A principal that is alone always has room for one.

    Attributes:
        arriving: Bytes of the bodies that are arriving.
    """

    def __init__(self, max_body_size: int) -> None:
        self._most = max(MAX_ARRIVING_BYTES, 2 * max_body_size)
        self._most_each = max(MAX_BYTES_PER_PRINCIPAL, max_body_size)
        self.arriving = 0
        self._arriving: Counter[str] = Counter()
        self._in_progress: Counter[str] = Counter()

    def take(self, principal: str, size: int) -> bool:
        """Take room for a part that has arrived; False if there is none, and nothing is taken."""
        own, all_together = self._arriving[principal] + size, self.arriving + size
        if own > self._most - all_together or self._in_progress[principal] + size > self._most_each:
            return False
        self.arriving = all_together
        self._arriving[principal] = own
        self._in_progress[principal] += size
        return True

    def hand_on(self, principal: str, size: int) -> None:
        """Give back what others may need: a body is handed on, or is no more."""
        self.arriving -= size
        _give_back(self._arriving, principal, size)

    def end(self, principal: str, size: int) -> None:
        """Give back the rest: the request is over."""
        _give_back(self._in_progress, principal, size)


class Body:
    """The room of one request's body, a context manager that gives it back.

    Args:
        room: All room.
        principal: The name of whoever the request is from.

    Attributes:
        size: The bytes that have arrived.
    """

    def __init__(self, room: BodyRoom, principal: str) -> None:
        self._room = room
        self._principal = principal
        self.size = 0
        self._arriving = 0

    def take(self, size: int) -> bool:
        """As `BodyRoom.take`."""
        if not self._room.take(self._principal, size):
            return False
        self.size += size
        self._arriving += size
        return True

    def hand_on(self) -> None:
        """The body is handed on. Does nothing the second time."""
        self._room.hand_on(self._principal, self._arriving)
        self._arriving = 0

    def __enter__(self) -> Self:
        """Nothing has arrived yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """The request is over."""
        self.hand_on()
        self._room.end(self._principal, self.size)


def _give_back(taken: Counter[str], principal: str, size: int) -> None:
    taken[principal] -= size
    if not taken[principal]:
        del taken[principal]
