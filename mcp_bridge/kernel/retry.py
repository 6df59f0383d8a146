"""How long a step waits before its next attempt."""

from typing import NamedTuple, cast

from mcp_bridge.kernel.values import normal

BACKOFF_SECONDS = 30.0
"""Longest wait before another attempt, where a step doesn't set its own."""


class Retry(NamedTuple):
    """When to try again.

    Attributes:
        attempts: In all, the first included.
        schedule: Seconds before the second, third… attempt; empty for exponential backoff.
        delay, multiplier, most: Of exponential backoff: the first wait, the factor, the longest wait.
    """

    attempts: int = 1
    schedule: tuple[float, ...] = ()
    delay: float = 1
    multiplier: float = 2
    most: float = BACKOFF_SECONDS

    def seconds(self, attempt: int) -> float:
        """How long to wait after attempt number `attempt` (from 1) has failed."""
        if self.schedule:
            return self.schedule[attempt - 1]
        seconds = self.delay
        # Not `**`: with a fraction it is the C library's power, whose last digit differs between libraries.
        for _ in range(attempt - 1):
            if seconds >= self.most:
                break
            seconds *= self.multiplier
        return cast("float", normal(min(seconds, self.most)))
