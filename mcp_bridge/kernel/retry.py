"""Whether a failed step is tried again, and how long it waits before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from mcp_bridge.kernel.values import normal

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    @staticmethod
    def of(row: Mapping[str, Any]) -> Retry:
        """When the step that a program's row describes is tried again: its `on_error`, `retry` and `max_retries`."""
        given = row.get("retry")
        if given is None:
            if row.get("on_error") != "retry":
                return _NEVER
            attempts = row.get("max_retries")
            return Retry(3 if attempts is None else max(attempts, 1))
        schedule = tuple(given.get("schedule", ()))
        if schedule:
            return Retry(len(schedule) + 1, schedule)
        return Retry(
            given.get("max_attempts", 3),
            (),
            given.get("delay_seconds", 1),
            given.get("multiplier", 2),
            given.get("max_delay_seconds", BACKOFF_SECONDS),
        )

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


_NEVER = Retry()
