"""Requests to a server that don't pass the SDK's session, and the correlation of their answers.

The session does what a connection needs now and then: negotiation, listings, subscriptions. For each request it makes
a span, a memory stream, scopes and tasks, which takes the event loop about as long as all that the bridge does for a
call. So calls of tools, which are many, get their ids here, and the transport gives them their answers when it has
read them. The messages on the wire are the same.

Loads the MCP SDK: import this module only where a server is started.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, JSONRPCError, JSONRPCResponse

from mcp_bridge.downstream.client.log_tail import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Progressed = Callable[[float, float | None, str | None], None]

FIRST_ID = 1 << 30
"""The first id. The session counts from 1 and doesn't come near it; servers whose ids are 32-bit integers can take it,
and a billion after it."""


class _Pending(NamedTuple):
    answer: asyncio.Future[dict[str, Any] | MCPError]
    progressed: Progressed | None


class PendingRequests:
    """The requests of one connection that wait for their answers. One event loop uses it."""

    def __init__(self) -> None:
        self._next = FIRST_ID
        self._pending: dict[int, _Pending] = {}
        self._is_closed = False

    def begin(self, progressed: Progressed | None = None) -> tuple[int, asyncio.Future[dict[str, Any] | MCPError]]:
        """Register a request.

        Args:
            progressed: Called with the server's progress: how much is done, of how much, and a message.

        Returns:
            Its id, which is its progress token too, and the future of its result; an error of the server, and the end
            of the connection, are results as well. Whoever waits for it calls `end`.

        Raises:
            MCPError: The connection has ended.
        """
        if self._is_closed:
            raise connection_closed()
        number, self._next = self._next, self._next + 1
        answer: asyncio.Future[dict[str, Any] | MCPError] = asyncio.get_running_loop().create_future()
        self._pending[number] = _Pending(answer, progressed)
        return number, answer

    def end(self, number: int) -> None:
        """Forget a request: a late answer to it is dropped."""
        self._pending.pop(number, None)

    def settle(self, message: JSONRPCResponse | JSONRPCError) -> bool:
        """Take an answer; return whether it is for a request of this kind, perhaps one that is over."""
        number = number_of(message.id)
        if number is None or number < FIRST_ID:
            return False
        pending = self._pending.get(number)
        if pending is None or pending.answer.done():
            logger.debug("dropped an answer to the request %s, which isn't pending", number)
        elif isinstance(message, JSONRPCResponse):
            pending.answer.set_result(message.result)
        else:
            error = message.error
            pending.answer.set_result(MCPError(code=error.code, message=error.message, data=error.data))
        return True

    def progress(self, params: Mapping[str, Any] | None) -> bool:
        """Take a progress notification; return whether it is about a request of this kind."""
        token = None if params is None else number_of(params.get("progressToken"))
        if params is None or token is None or token < FIRST_ID:
            return False
        done, total, message = _number(params.get("progress")), _number(params.get("total")), params.get("message")
        pending = self._pending.get(token)
        if pending is None or pending.progressed is None or done is None:
            return True
        try:
            pending.progressed(done, total, message if isinstance(message, str) else None)
        except Exception:  # noqa: BLE001 - logged
            # It is called by the reader of the connection, which others need.
            logger.exception("a server's progress notification was not forwarded")
        return True

    def close(self) -> None:
        """Fail all requests: no further answer will arrive."""
        self._is_closed = True
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_result(connection_closed())


def connection_closed() -> MCPError:
    """The error of a request whose connection has ended, as the session raises it."""
    return MCPError(code=CONNECTION_CLOSED, message="Connection closed")


def given_up(number: int) -> dict[str, Any]:
    """The notification that nobody waits for a request any more, as the session sends it."""
    abandoned = {"requestId": number, "reason": "caller cancelled"}
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": abandoned}


def number_of(request_id: object) -> int | None:
    """The number that an id or a progress token stands for; some servers return it as text."""
    if isinstance(request_id, bool) or not isinstance(request_id, int | str):
        return None
    number = coerce_request_id(request_id)
    return number if isinstance(number, int) else None


def _number(value: object) -> float | None:
    """A number; None for any other value, and for an integer of more than 308 digits."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
