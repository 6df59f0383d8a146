"""Progress notifications of a call: what the script reports and prints, what the bridge does, and signs of life."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from mcp_bridge.server.questions import Questions

HEARTBEAT_SECONDS = 5.0
"""Interval of signs of life to a client with a progress token; clients time out after sixty seconds."""

LIVE_SECONDS = 1.0
"""Interval of new script output to a client with a progress token."""

MAX_LISTED = 32
"""How many messages are kept while the client takes none; the oldest ones are dropped."""

FINISH_SECONDS = 1.0
"""How long the end of a call waits for what is still to be sent."""

LIVE_CHARS = 2000
"""How much of the new output, from its end, one message contains."""


class ProgressReporter:
    """Sends progress notifications of one call, whose value must always increase."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._last = 0.0
        self._total: float | None = None
        self._scripted = False
        self._message: str | None = None
        """What was reported last, by the script or the bridge."""
        self._told: deque[str] = deque(maxlen=MAX_LISTED)
        """What the bridge has reported, and servers, since it was last sent."""
        self._reported: str | None = None
        self._has_reported = False
        """Whether the script has reported anything since it was last sent."""
        self._printed = ""
        self._news = anyio.Event()
        self._is_over = False
        self._has_ended = anyio.Event()
        self._began = time.monotonic()

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        """Report the script's own progress."""
        self._scripted = True
        self._last, self._total = max(done, self._last), total
        self._message = self._reported = message
        self._has_reported = True
        self._news.set()

    def printed(self, _stream: str, text: str) -> None:
        """Report new output of the script."""
        self._printed = (self._printed + text)[-LIVE_CHARS - 1 :]
        self._news.set()

    def notify(self, message: str) -> None:
        """Report what the bridge does before the script runs, or what a server says meanwhile."""
        self._message = message
        self._told.append(message)
        self._news.set()

    async def report(self) -> None:
        """Send notifications until `finish`: news at once, otherwise signs of life at intervals."""
        sent = -1.0
        while True:
            with anyio.move_on_after(HEARTBEAT_SECONDS):
                await self._news.wait()
            # Before anything is sent: what comes meanwhile is news.
            self._news = anyio.Event()
            printed, self._printed = self._printed, ""
            has_news = bool(self._told or self._has_reported)
            while self._told:
                sent = await self._send(sent, self._told.popleft())
            if self._has_reported:
                self._has_reported = False
                sent = await self._send(sent, self._reported)
            if self._told or self._has_reported:
                # It came while the last was being sent.
                continue
            if self._is_over:
                # What was printed is in the answer.
                break
            if not (printed or has_news):
                sent = await self._send(sent, self._message)
            if printed:
                shown = printed.rstrip("\n") if len(printed) <= LIVE_CHARS else "…" + printed[1:].rstrip("\n")
                sent = await self._send(sent, shown)
        self._has_ended.set()

    async def finish(self) -> None:
        """Have what is reported sent, if the client takes it: the call ends."""
        self._is_over = True
        self._news.set()
        with anyio.move_on_after(FINISH_SECONDS):
            await self._has_ended.wait()

    async def _send(self, sent: float, message: str | None) -> float:
        value = self._last if self._scripted else time.monotonic() - self._began
        # The protocol requires an increase even if the script repeats its value, or reports nothing.
        sent = value if value > sent else sent + 1e-6
        if (ctx := self._questions.ctx) is not None:
            await ctx.session.report_progress(sent, self._total, message)
        return sent
