"""Who receives what a server says while its tools are called: its progress with a call, and what it logs.

A log message may be about any call in flight, so each call gets all of them. Once calls have been made for a second
principal, log messages are told to nobody: they may be about an earlier call, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp_bridge.downstream.client.log_tail import logger

if TYPE_CHECKING:
    from mcp_types import LoggingLevel

    from mcp_bridge.downstream.catalog.bound_tool import Listener, MessageSink
    from mcp_bridge.downstream.transports.pending_requests import Progressed

LOG_LEVELS: tuple[LoggingLevel, ...] = (
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency",
)  # fmt: skip
"""From the least severe to the most."""

MIN_SHARED_PRINCIPALS = 2
"""From so many principals on, log messages of a server can't be attributed to one."""


class CallListeners:
    """Who the calls of one connection are made for.

    Args:
        server: The server's name.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._listeners: list[Listener] = []
        self._principals: set[str] = set()
        """Who has called a tool over this connection: one, or two of several."""

    def add(self, listener: Listener) -> Progressed | None:
        """A call begins. Returns what takes the server's progress with it, if its listener is told."""
        if len(self._principals) < MIN_SHARED_PRINCIPALS:
            self._principals.add(listener.principal)
        self._listeners.append(listener)
        return None if listener.on_message is None else _progress_reporter(listener.on_message)

    def remove(self, listener: Listener) -> None:
        """A call has ended."""
        self._listeners.remove(listener)

    @property
    def serves_several(self) -> bool:
        """Whether calls have been made for several principals."""
        return len(self._principals) >= MIN_SHARED_PRINCIPALS

    def on_log(self, level: LoggingLevel, data: Any) -> None:
        """Take a log message of the server."""
        if level == "debug":
            return
        said = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        # Treated like stderr output: the operator's log is masked.
        logger.info("server %r logs (%s): %s", self._server, level, said)
        if self.serves_several:
            return
        for listener in list(self._listeners):
            if listener.on_message is not None:
                listener.on_message(said if level == "info" else f"{level}: {said}", LOG_LEVELS.index(level))


def _progress_reporter(on_message: MessageSink) -> Progressed:
    def progressed(progress: float, total: float | None, message: str | None) -> None:
        done = f"{progress:g}/{total:g}" if total else f"{progress:g}"
        on_message(f"{done} {message}" if message else done, None)

    return progressed
