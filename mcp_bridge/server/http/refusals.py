"""Requests that are answered with an error status."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server.streamable_http import REQUEST_CANCELLED
from starlette.responses import JSONResponse

from mcp_bridge.errors import BridgeError
from mcp_bridge.server.http.rate_limits import RateLimits, client_site
from mcp_bridge.server.principal_calls import cancelled_call

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from mcp_bridge.error_codes import Code
    from mcp_bridge.server.messages.decoding import UnreadableMessage

logger = logging.getLogger(__name__)

HTTP_OK, HTTP_BAD_REQUEST = 200, 400

LOGGED_PER_MINUTE = 10
"""Requests from one address that are refused with the same code, and logged one by one; further ones aren't."""

_NOT_LOGGED = {"unknown_path", "internal_error"}
"""Browsers ask for paths of their own; an internal error has been logged with its traceback."""

_logged = RateLimits(10_000)
"""By address and code. Of the process, as its log is."""

RETRY_SECONDS = 5
"""When a client that was refused for a lack of room, or for now, may try again."""


class RefusedRequest(Exception):  # noqa: N818 - it is an answer
    """A request that is answered with an error status.

    Args:
        status: The HTTP status.
        error: The error.
        headers: Further headers of the response.

    Attributes:
        request_id: The request's id, as far as it was read: most are refused before.
    """

    def __init__(self, status: int, error: BridgeError, **headers: str) -> None:
        super().__init__(str(error))
        self.request_id: types.RequestId | None = None
        self.status = status
        self.error = error
        self.headers = headers

    def response(self) -> Response:
        """The response: a JSON-RPC error. It ends the connection, whose body may not have been read."""
        data = {"code": self.error.code}
        error = {"code": types.INVALID_REQUEST, "message": str(self.error), "data": data}
        return RefusalResponse(self, {"jsonrpc": "2.0", "id": self.request_id, "error": error})


class RefusalResponse(JSONResponse):
    """The response to a refused request, which is logged with its address when it is sent.

    Args:
        refusal: The refusal.
        content: The response's body, as JSON.
    """

    def __init__(self, refusal: RefusedRequest, content: Any) -> None:
        headers = {name.replace("_", "-"): value for name, value in refusal.headers.items()}
        super().__init__(content, refusal.status, {"connection": "close", "cache-control": "no-store"} | headers)
        self._code = refusal.error.code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Log the refusal, and send the response."""
        client = scope.get("client")
        address = client_site(client[0] if client else "")
        if self._code not in _NOT_LOGGED and not _logged.take(f"{address} {self._code}", LOGGED_PER_MINUTE):
            logger.warning("a request from %s is refused (%d %s)", address, self.status_code, self._code)
        await super().__call__(scope, receive, send)


class Unreadable(RefusedRequest):
    """A request of a session that can't be read: 400. Its answer has its id if that can be told.

    A call whose arguments alone are wrong is answered by 200, as a tool answers: so a model learns it.

    Args:
        message: Why it can't be read.
    """

    def __init__(self, message: UnreadableMessage) -> None:
        status = HTTP_OK if message.is_call else HTTP_BAD_REQUEST
        super().__init__(status, BridgeError(message.error_code, str(message)))
        self._message = message
        self.request_id = message.request_id

    def response(self) -> Response:
        """The response."""
        answer = self._message.answer()
        if answer is None:
            return super().response()
        return RefusalResponse(self, answer.model_dump(mode="json", by_alias=True))


class Ended(RefusedRequest):
    """A request that was begun, and is answered before its end: 200, and an error under its id.

    With a status that refuses it, its client would take it for one that was never begun, and send it again.

    Args:
        request_id: Its id.
        message: Why it is.
        execution: As `cancelled_call`.
        goes_on: As `cancelled_call`.
    """

    def __init__(
        self, request_id: types.RequestId, message: str, *, execution: str | None, goes_on: bool = False
    ) -> None:
        super().__init__(HTTP_OK, cancelled_call("cancelled", message, execution=execution, goes_on=goes_on))
        self.request_id: types.RequestId = request_id

    def _answer(self) -> types.JSONRPCError:
        data = {"code": self.error.code} | self.error.details
        error = types.ErrorData(code=REQUEST_CANCELLED, message=str(self.error), data=data)
        return types.JSONRPCError(jsonrpc="2.0", id=self.request_id, error=error)

    def response(self) -> Response:
        """The response."""
        return RefusalResponse(self, self._answer().model_dump(mode="json", by_alias=True, exclude_none=True))

    def event(self) -> bytes:
        """The answer as the last event of a stream that has begun."""
        return f"event: message\r\ndata: {self._answer().model_dump_json(by_alias=True)}\r\n\r\n".encode()


class Unauthenticated(RefusedRequest):
    """A request that isn't known to be from a principal, or not allowed to be.

    `status` is 400 (contradictory credentials), 401 (none, or wrong ones), 403 (right ones that are not enough), 429
    (too many wrong ones) or 503 (they can't be verified now). 401 and 403 have the header `WWW-Authenticate`.
    """


class UnknownSigningKey(Unauthenticated):
    """A request whose token names a key that the issuer may have by now: 503, which counts as a wrong credential.

    Anybody can name a key that there isn't.
    """


class EndedToken(Unauthenticated):
    """A request with a right token that has ended: no guess, and its client gets a new one when it is told so (401)."""


def refused(status: int, code: Code, message: str, hint: str | None = None, **headers: str) -> RefusedRequest:
    """A refusal with a new error."""
    return RefusedRequest(status, BridgeError(code, message, hint=hint), **headers)
