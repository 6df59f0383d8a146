"""A bound on what a server sends before its response: the library reads interim responses (1xx) without end.

It parses all of them that are in one read without letting others run, so less is read at once meanwhile, too.

Installed by the library's `trace` extension, which has the streams of connections that were made.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import httpcore2

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_HEAD_BYTES = 128 << 10
"""More than the head of a response may have by itself."""

READ_BYTES = 4 << 10
"""How much is read at once before a response: some 150 interim ones."""


class HeadBound:
    """Counts what one request gets before its response.

    Attributes:
        received: The bytes.
    """

    __slots__ = ("received",)

    def __init__(self) -> None:
        self.received = 0

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """The `trace` extension of a request, which is called in the task that reads its response."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            _bound(info["return_value"])
        elif event.endswith(".receive_response_headers.started"):
            self.received = 0
            _awaited.set(self)
        elif event.endswith((".receive_response_headers.complete", ".receive_response_headers.failed")):
            _awaited.set(None)


_awaited: ContextVar[HeadBound | None] = ContextVar("awaited_head", default=None)
"""The bound of the request whose response's head this task reads."""


def _bound(stream: httpcore2.AsyncNetworkStream) -> None:
    read = stream.read

    async def bounded(max_bytes: int, timeout: float | None = None) -> bytes:
        bound = _awaited.get()
        if bound is None:
            return await read(max_bytes, timeout)
        if bound.received > MAX_HEAD_BYTES:
            raise httpcore2.RemoteProtocolError("too much comes before a response")
        data = await read(min(max_bytes, READ_BYTES), timeout)
        bound.received += len(data)
        return data

    stream.read = bounded  # type: ignore[method-assign]
