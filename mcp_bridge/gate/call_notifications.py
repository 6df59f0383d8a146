"""What a server says while it works on a call, passed on projected and at a limited rate: the last word isn't lost.

Progress and log messages are limited apart, so that neither hides the other.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from mcp_bridge.policy.redaction.projection import Projector

NOTIFICATION_SECONDS = 0.25
"""Least interval between two times that something about one call is passed on. What comes meanwhile is kept until then,
or the call's end, as far as there is room."""

KEPT_LOGS = 4
"""How many log messages are kept meanwhile: the most severe ones, and of these the latest. Of progress, the latest."""

MAX_NOTIFICATION_CHARS = 300

MAX_PROJECTED_CHARS = 16 << 10
"""A longer message isn't shown: it would be projected whole on the event loop."""


class _Kept(NamedTuple):
    severity: int
    text: str


class _Paced:
    """Messages of one kind.

    Args:
        room: How many are kept.
        pass_on: Called with each that is passed on.
    """

    def __init__(self, room: int, pass_on: Callable[[str], None]) -> None:
        self._room = room
        self._pass_on = pass_on
        self._kept: list[_Kept] = []
        self._passed_at = -NOTIFICATION_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def take(self, text: str, severity: int) -> None:
        self._kept.append(_Kept(severity, text))
        if len(self._kept) > self._room:
            # The first of the least severe ones.
            self._kept.remove(min(self._kept, key=lambda kept: kept.severity))
        if self._timer is None:
            left = self._passed_at + NOTIFICATION_SECONDS - time.monotonic()
            if left <= 0:
                self.flush()
            else:
                self._timer = asyncio.get_running_loop().call_later(left, self.flush)

    def flush(self) -> None:
        """Pass on what is kept."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept = self._kept, []
        if kept:
            self._passed_at = time.monotonic()
        for each in kept:
            self._pass_on(each.text)


class CallNotifications:
    """What is said about one call; a context manager, whose end is the call's. One event loop uses it.

    Args:
        name: The tool's, with its server's.
        projector: What the agent may see of it.
        on_server_message: Told each message.
    """

    def __init__(self, name: str, projector: Projector, on_server_message: Callable[[str], None]) -> None:
        self._name = name
        self._projector = projector
        self._on_server_message = on_server_message
        self._progress = _Paced(1, self._pass_on)
        self._logs = _Paced(KEPT_LOGS, self._pass_on)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.flush()
        self._logs.flush()

    def on_message(self, text: str, severity: int | None) -> None:
        """Take a message, as `Listener.on_message`."""
        if len(text) > MAX_PROJECTED_CHARS:
            text = f"(a message of {len(text):,} characters)"
        if severity is None:
            self._progress.take(text, 0)
        else:
            self._logs.take(text, severity)

    def _pass_on(self, text: str) -> None:
        # Projected before it is truncated: a truncated secret isn't found.
        shown = " ".join(str(self._projector.answer(text)).split())
        if shown:
            self._on_server_message(f"{self._name}: {shown[:MAX_NOTIFICATION_CHARS]}")
