"""Change notifications of the viewer's pages: one query to the store a second, however many pages are open."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.audit import execution_queries

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mcp_bridge.ledger.storage.database import Database

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0

TICK_SECONDS = 20.0
"""Interval of unconditional notifications: when an execution's process dies, the store doesn't change."""

BEAT_SECONDS = 5.0
"""Interval of signs of life: a connection whose other end has stopped, or is gone without a word, looks open. A page
takes three that are missing for its end (`static/api.js`)."""

MAX_VIEWERS = 64


class Live:
    """Change notifications for viewers.

    Args:
        database: The database to watch.

    Attributes:
        database: The database to watch.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._changed = anyio.Event()
        self._viewers = 0
        self._seen: int | None = None
        self._has_ended = False
        self._reported = ""

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of viewers is reached."""
        return self._viewers >= MAX_VIEWERS

    def end(self) -> None:
        """End all streams."""
        self._has_ended = True
        self._changed.set()

    async def watch(self) -> None:
        """Watch for changes until cancelled, or until the database can't be used any more."""
        while self.database.failure is None:
            await self.look()
            await anyio.sleep(POLL_SECONDS)

    async def look(self) -> None:
        """Notify the streams if anything has changed since the last check."""
        try:
            now = await execution_queries.version(self.database)
        except BridgeError as exc:
            if str(exc) != self._reported:
                self._reported = str(exc)
                logger.warning("changes of executions could not be looked for: %s", exc)
            return
        self._reported = ""
        if self._seen not in {None, now}:
            self._changed.set()
            self._changed = anyio.Event()
        self._seen = now

    async def events(self) -> AsyncGenerator[str]:
        """Server-sent events (HTML standard, section 9.2) without any content.

        After the event `open` no change is missed: data fetched before it must be fetched again.
        """
        self._viewers += 1
        # Taken before anything is sent: a change meanwhile sets it.
        seen = self._changed
        try:
            yield "retry: 1000\n\ndata: open\n\n"
            tick = anyio.current_time() + TICK_SECONDS
            while not self._has_ended:
                with anyio.move_on_after(BEAT_SECONDS):
                    await seen.wait()
                has_changed = seen.is_set()
                if has_changed:
                    seen = self._changed
                if not has_changed and anyio.current_time() < tick:
                    # A comment, which is no event.
                    yield ": beat\n\n"
                    continue
                tick = anyio.current_time() + TICK_SECONDS
                yield f"data: {'changed' if has_changed else 'tick'}\n\n"
        finally:
            self._viewers -= 1
