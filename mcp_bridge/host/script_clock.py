"""The script's own time: it stands still while the script waits for the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ScriptClock:
    """Counts the seconds in which no request to the host is under way.

    A hostile guest can keep a request under way to stop its clock: the bound on the whole run is for that.

    Args:
        now: A monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._counted = 0.0
        self._since: float | None = None
        self._waiting = 0

    def start(self) -> None:
        """The script begins to run."""
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

    @property
    def seconds(self) -> float:
        """The script's own time so far."""
        return self._counted + (self._now() - self._since if self._since is not None else 0.0)
