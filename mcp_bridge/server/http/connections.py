"""Bounds on HTTP connections: how many there are, and how long a client may take to send and to read.

uvicorn bounds none of these by itself: a connection that sends nothing, or half a header, stays open, and so does one
whose client doesn't read its answer. Nor does it, or h11, refuse a message whose end a proxy may see elsewhere.
"""

from __future__ import annotations

import collections
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mcp_bridge.server.http.rate_limits import client_site

if TYPE_CHECKING:
    import asyncio

LOOK_SECONDS = 1.0
"""How often connections are checked."""

LEAST_READ_BYTES = 32 << 10
"""How much of a waiting answer a client has to read within the write time-out."""

MAX_HEADER_BYTES = 32 << 10
"""The head of a request: request line and headers."""

_STATUS_LINES = {
    400: b"400 Bad Request",
    408: b"408 Request Timeout",
    431: b"431 Request Header Fields Too Large",
    503: b"503 Service Unavailable",
    505: b"505 HTTP Version Not Supported",
}


def _response(status: int) -> bytes:
    """A whole response without a body, after which the connection is closed."""
    retry = b"retry-after: 1\r\n" if status == 503 else b""  # noqa: PLR2004
    return b"HTTP/1.1 " + _STATUS_LINES[status] + b"\r\n" + retry + b"content-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(slots=True)
class ConnectionLimits:
    """The limits, and the open connections that they hold for.

    Attributes:
        total: Open connections.
        per_address: Open connections from one IP address, or from one site of IPv6.
        read_seconds: How long the head of a request may take, from its first byte or the connection's start.
        write_seconds: How long a client may go without reading.
    """

    total: int
    per_address: int
    read_seconds: float
    write_seconds: float
    open: set[BoundedConnection] = field(default_factory=set)
    _addresses: collections.Counter[str] = field(default_factory=collections.Counter)

    def admit(self, connection: BoundedConnection, address: str) -> bool:
        """Count a connection; False if there are too many."""
        if len(self.open) >= self.total or self._addresses[address] >= self.per_address:
            return False
        self.open.add(connection)
        self._addresses[address] += 1
        return True

    def release(self, connection: BoundedConnection, address: str) -> None:
        """Forget a connection that was admitted."""
        self.open.discard(connection)
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]

    async def watch(self) -> None:
        """Close connections whose clients are too slow. Runs until cancelled."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            for connection in list(self.open):
                connection.close_if_slow()

    def protocol(self) -> type[BoundedConnection]:
        """The protocol class for uvicorn, whose connections have these limits."""
        return type("Connection", (BoundedConnection,), {"limits": self})


class _Parser(h11.Connection):
    """Refuses requests with two lengths, and those of versions in which a length means something else.

    A proxy in front that goes by the other length takes what follows for a part of the body, and here it would be a
    request of its own, from whoever its headers say (RFC 9112, sections 2.5 and 6.1).
    """

    def next_event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        """As `h11.Connection.next_event`."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if event.http_version not in {b"1.0", b"1.1"}:
                raise h11.RemoteProtocolError("the version isn't one of HTTP/1", error_status_hint=505)
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version == b"1.0"):
                raise h11.RemoteProtocolError("two lengths")
        return event


class BoundedConnection(H11Protocol):
    """One connection. `ConnectionLimits.protocol` makes the class that uvicorn instantiates."""

    limits: ConnectionLimits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Parser(h11.SERVER, MAX_HEADER_BYTES)
        self._address: str | None = None
        """The client's address, once the connection was admitted."""
        self._head_since: float | None = None
        """Since when the head of a request is awaited, or None. The endpoint bounds the time of bodies."""
        self._unread: tuple[float, int] | None = None
        """When unread bytes were first seen, and how many, or None."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, or close it."""
        super().connection_made(transport)
        address = client_site(self.client[0] if self.client else "")
        if self.limits.admit(self, address):
            self._address = address
            self._head_since = self.loop.time()
            return
        transport.write(_response(503))
        transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._address is not None:
            self.limits.release(self, self._address)
            self._address = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        theirs = self.conn.their_state
        # A body that goes on after the response is awaited like a head: nothing reads it.
        awaited = self.conn.our_state is h11.DONE if theirs is h11.SEND_BODY else theirs is h11.IDLE
        if not awaited or (theirs is h11.IDLE and not self.conn.trailing_data[0]):
            self._head_since = None
        elif self._head_since is None:
            self._head_since = self.loop.time()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - it is uvicorn's
        """Refuse what is not HTTP, with the status that h11 suggests.

        uvicorn's own method always sends 400, and raises an exception if a response has begun.
        """
        error = sys.exc_info()[1]
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.abort()
            return
        self.transport.write(_response(status if status in _STATUS_LINES else 400))
        self.transport.close()

    def close_if_slow(self) -> None:
        """Close the connection if its client takes too long to send a head, or to read."""
        now = self.loop.time()
        if self._head_since is not None and now - self._head_since > self.limits.read_seconds:
            self._head_since = None
            if not self.transport.is_closing():
                self.transport.write(_response(408))
                self.transport.close()
        unread = self.transport.get_write_buffer_size()
        if not unread:
            self._unread = None
        elif self._unread is None:
            self._unread = now, unread
        elif now - self._unread[0] > self.limits.write_seconds:
            if unread > self._unread[1] - LEAST_READ_BYTES:
                # Closing would wait until the client has read the rest.
                self.transport.abort()
            self._unread = now, unread
