"""A script's output while it runs, for whoever watches: whole lines, projected as the answer is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp_bridge.executions.scripts.limited_output import Outputs
    from mcp_bridge.wire.messages import Stream

logger = logging.getLogger(__name__)

STREAMS: tuple[Stream, ...] = ("stdout", "stderr")

CONTEXT_BYTES = 8 << 10
"""How much of what was sent before is looked at again: a secret may have more than one line."""


class LiveOutput:
    """Sends one script's output on. What a sandbox prints again that takes the place of a lost one is not sent twice.

    Args:
        tell: Is given what was printed since the last time: a stream, and whole lines of it.
        interval: Seconds between two times, at least.
    """

    def __init__(self, tell: Callable[[Stream, str], None], interval: float) -> None:
        self._tell = tell
        self._interval = interval
        self._sent = dict.fromkeys(STREAMS, 0)
        self._news = anyio.Event()

    def printed(self) -> None:
        """There is something new."""
        self._news.set()

    async def follow(self, outputs: Outputs, project: Callable[[Any], Awaitable[Any]]) -> None:
        """Tell until cancelled.

        Args:
            outputs: Where the script's output is gathered.
            project: Hides in a text what must not be shown.
        """
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            try:
                for stream in STREAMS:
                    await self._tell_lines(stream, outputs, project)
            except BridgeError as exc:
                # What can't be hidden isn't shown. The run's own end says why.
                logger.debug("a script's output isn't shown while it runs: %s", exc)
                return
            await anyio.sleep(self._interval)

    async def _tell_lines(self, stream: Stream, outputs: Outputs, project: Callable[[Any], Awaitable[Any]]) -> None:
        sent = self._sent[stream]
        end = outputs.lines_end(stream, sent)
        if end <= sent:
            return
        before = outputs.part(stream, max(0, sent - CONTEXT_BYTES), sent)
        known = await project(_text(before))
        projected = await project(_text(before + outputs.part(stream, sent, end)))
        self._sent[stream] = end
        if not projected.startswith(known):
            # A value that is hidden goes on in the new lines: from the first line that is another now.
            pairs = enumerate(zip(known, projected, strict=False))
            same = next((at for at, (old, new) in pairs if old != new), min(len(known), len(projected)))
            known = known[: known.rfind("\n", 0, same) + 1]
        if news := projected[len(known) :]:
            self._tell(stream, news)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
