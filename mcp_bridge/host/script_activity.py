"""Whether a script that waits is still busy: its sandbox is ended only once nothing runs in it.

It is busy while it asks the host for something; and while it waits for a time or an event, also while it computes, and
while a timer of its own is about to end. The guest is asked for these (`guest.waits.activity`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import anyio

from mcp_bridge.wire import messages

if TYPE_CHECKING:
    from mcp_bridge.host.channel import HostChannel
    from mcp_bridge.host.request_handlers import Requests

QUIET_SECONDS = 1.0
"""How long a script that waits has to ask for nothing more before its sandbox is ended: what it does at once, in tasks
and threads, a person is asked about at once."""

LOOK_SECONDS = 1.0
"""How long a guest may take to tell what its script does while it waits. One that takes longer computes."""

BUSY_SHARE = 0.05
TICKS_SECONDS = 0.02
"""A script that has used a larger part of one processor, and more than a tick or two, has computed."""

OWN_TIMER_SECONDS = 60.0
"""A script that waits keeps its sandbox if a timer of its own ends this soon."""


class _ActivitySample(NamedTuple):
    """What a script does while it waits.

    Attributes:
        at: On the monotonic clock.
        processor, timer: As in `messages.ActivityReport`.
    """

    at: float
    processor: float
    timer: float | None

    def is_busy_since(self, before: _ActivitySample) -> bool:
        """Whether it has computed since an earlier look, or soon goes on by itself."""
        used = self.processor - before.processor
        is_computing = used > max(TICKS_SECONDS, BUSY_SHARE * (self.at - before.at))
        return is_computing or (self.timer is not None and self.timer <= OWN_TIMER_SECONDS)


class ScriptActivity:
    """What a script does while it waits.

    Args:
        channel: The channel to its guest.
        requests: Knows whether it waits.
    """

    def __init__(self, channel: HostChannel, requests: Requests) -> None:
        self._channel = channel
        self._requests = requests
        self._asked = 0
        """The number of the last question about it."""
        self._report: messages.ActivityReport | None = None
        self._told = anyio.Event()
        """The last question is answered, by `_report`."""

    def told(self, report: messages.ActivityReport) -> None:
        """Take the guest's answer."""
        if report.number == self._asked:
            self._report = report
            self._told.set()

    async def wait_until_idle(self) -> None:
        """Return when the script waits for what nobody can give it now, and has come to rest."""
        looked: _ActivitySample | None = None
        while True:
            await self._requests.on_hold()
            if (left := QUIET_SECONDS - self._channel.quiet_seconds) > 0:
                looked = await self._look()
                await anyio.sleep(left)
                continue
            if self._requests.only_waits:
                before, looked = looked, await self._look()
                if before is None or looked is None or looked.is_busy_since(before):
                    await anyio.sleep(QUIET_SECONDS)
                    continue
                if self._channel.quiet_seconds < QUIET_SECONDS or not self._requests.is_on_hold:
                    continue
            return

    async def _look(self) -> _ActivitySample | None:
        """Ask the guest what the script does while it waits; None if it can't answer, because it computes."""
        self._asked += 1
        self._told = anyio.Event()
        self._channel.notify(messages.ActivityAsk(self._asked))
        with anyio.move_on_after(LOOK_SECONDS):
            await self._told.wait()
            assert self._report is not None  # it is told
            return _ActivitySample(time.monotonic(), self._report.processor, self._report.timer)
        return None
