"""The rule for the times of the log's entries: none is earlier than the one before, unless a person has accepted that.

The machine's clock may go back: by a little, since clocks are adjusted, or by much, if it was wrong. Then nothing is
appended until it is right, or a person has accepted it, which an entry of the kind `clock` records.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.ledger.log.entry_encoding import Leaf

CLOCK_STEP_SECONDS = 60
"""Seconds that the clock may be behind the last entry, since clocks are adjusted. The new entry gets its time."""

_SECOND = 1_000_000


class LogClock:
    """Gives the writer the times of new entries.

    Attributes:
        last: The time of the last entry, in microseconds since 1970.
    """

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def next(self, posted: int) -> int:
        """The time of an entry, and of none before it any more.

        Args:
            posted: When the entry was posted, in microseconds since 1970.

        Raises:
            BridgeError: `clock_went_back`.
        """
        if posted < self.last:
            # An entry that has waited (its process was stopped, another wrote meanwhile) says nothing about the clock.
            behind = (self.last - max(posted, time.time_ns() // 1000)) / _SECOND
            if behind > CLOCK_STEP_SECONDS:
                raise BridgeError(
                    "clock_went_back",
                    f"The clock is {behind:.0f} s behind the last entry of the record.",
                    hint="Set the clock; if it is right now and was wrong before: mcp-bridge audit accept-clock."
                    " Then restart the bridge.",
                )
            return self.last
        self.last = posted
        return posted

    def accept(self, time: int) -> None:
        """Accept a time that is earlier than the last entry's."""
        self.last = min(self.last, time)


def is_out_of_order(entry: Leaf, before: int) -> bool:
    """Whether an entry is earlier than the one before it, without a person's having accepted that.

    Args:
        entry: The entry.
        before: The time of the entry before it, in microseconds since 1970.
    """
    return entry.time < before and entry.kind != "clock"
