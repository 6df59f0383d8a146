"""Requests that are answered with an error status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import mcp_types as types
from starlette.responses import Response

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from mcp_bridge.error_codes import Code


RETRY_SECONDS = 5
"""When a client that was refused for a lack of room, or for now, may try again."""


class RefusedRequest(Exception):  # noqa: N818 - it is an answer
    """A request that is answered with an error status.

    Args:
        status: The HTTP status.
        error: The error.
        headers: Further headers of the response.
    """

    def __init__(self, status: int, error: BridgeError, **headers: str) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = headers

    def response(self) -> Response:
        """The response: a JSON-RPC error without an id. It ends the connection, whose body may not have been read."""
        data = {"code": self.error.code}
        error = {"code": types.INVALID_REQUEST, "message": str(self.error), "data": data}
        headers = {name.replace("_", "-"): value for name, value in self.headers.items()}
        return Response(
            json.dumps({"jsonrpc": "2.0", "id": None, "error": error}),
            self.status,
            {"connection": "close", "cache-control": "no-store"} | headers,
            media_type="application/json",
        )


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
