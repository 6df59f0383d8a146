"""Who is told what a server says while its tools are called: its progress with a call, and what it logs.

A log message may be about any call in flight, so each call gets all of them. Once calls have been made for a second
principal, log messages are told to nobody: they may be about an earlier call, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mcp_bridge.downstream.client.log_tail import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from mcp_types import LoggingMessageNotificationParams

    from mcp_bridge.downstream.catalog.bound_tool import Listener
    from mcp_bridge.downstream.transports.pending_requests import Progressed

SEVERAL = 2
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
        if len(self._principals) < SEVERAL:
            self._principals.add(listener.principal)
        self._listeners.append(listener)
        return None if listener.tell is None else _progress_teller(listener.tell)

    def remove(self, listener: Listener) -> None:
        """A call has ended."""
        self._listeners.remove(listener)

    async def on_log(self, params: LoggingMessageNotificationParams) -> None:
        """Take a log message of the server."""
        if params.level == "debug":
            return
        said = params.data if isinstance(params.data, str) else json.dumps(params.data, ensure_ascii=False)
        # Treated like stderr output: the operator's log is masked.
        logger.info("server %r logs (%s): %s", self._server, params.level, said)
        if len(self._principals) >= SEVERAL:
            return
        for listener in list(self._listeners):
            if listener.tell is not None:
                listener.tell(said if params.level == "info" else f"{params.level}: {said}")


def _progress_teller(on_message: Callable[[str], None]) -> Progressed:
    def progressed(progress: float, total: float | None, message: str | None) -> None:
        done = f"{progress:g}/{total:g}" if total else f"{progress:g}"
        on_message(f"{done} {message}" if message else done)

    return progressed
