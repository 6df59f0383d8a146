"""The script's own time: it stands still while the script waits for the host and does nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ScriptClock:
    """Counts the seconds in which no request to the host is under way, or in which the script computes all the same.

    What it computes beside a request is known from process 1, every few seconds.

    Args:
        now: A monotonic clock, in seconds.
        processor: The processor time that the sandbox has used at the start, as process 1 counts it; None if that isn't
            known: the first report tells.
    """

    def __init__(self, now: Callable[[], float], processor: float | None = 0.0) -> None:
        self._now = now
        self._processor = processor
        self._reported_at: float | None = None
        self._seconds_then = 0.0
        """`seconds` when the processor time was reported last."""
        self._counted = 0.0
        self._since: float | None = None
        self._waiting = 0

    def start(self) -> None:
        """The script begins to run."""
        self._reported_at = self._now()
        if self._since is None and self._waiting == 0:
            self._since = self._now()

    def pause(self) -> None:
        """A request to the host begins."""
        if self._since is not None:
            self._counted += self._now() - self._since
            self._since = None
        self._waiting += 1

    def resume(self) -> None:
        """A request to the host was answered."""
        self._waiting -= 1
        if self._waiting == 0:
            self._since = self._now()

    def computed(self, processor: float) -> None:
        """Process 1 has reported the processor time that the sandbox has used so far."""
        if self._reported_at is None:
            return
        now = self._now()
        if self._processor is not None:
            # Several processors compute in the same seconds.
            computed = min(processor - self._processor, now - self._reported_at)
            self._counted += max(0.0, computed - (self.seconds - self._seconds_then))
        self._processor, self._reported_at, self._seconds_then = processor, now, self.seconds

    @property
    def seconds(self) -> float:
        """The script's own time so far."""
        return self._counted + (self._now() - self._since if self._since is not None else 0.0)
