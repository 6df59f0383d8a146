"""Wrong credentials are counted by the address that they come from: some a minute are answered as such, then by 429."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.server.http.rate_limits import RateLimits, client_site
from mcp_bridge.server.http.refusals import Unauthenticated

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

FAILURES_PER_MINUTE = 10
"""Wrong credentials from one address that are answered as such; then 429. Right ones always
pass: an address may be a proxy's, and whoever guesses behind it must not keep the others out."""

MAX_ADDRESSES = 10_000
"""How many addresses' failures are remembered."""


class WrongCredentials:
    """The requests with wrong credentials that have come lately."""

    def __init__(self) -> None:
        self._failures = RateLimits(MAX_ADDRESSES)

    def count(self, request: HTTPConnection, refusal: Unauthenticated) -> Unauthenticated:
        """Count one; what is answered.

        Args:
            request: The request.
            refusal: Why its credentials aren't good.
        """
        address = client_site(request.client.host if request.client else "")
        wait = self._failures.take(address, FAILURES_PER_MINUTE)
        if not wait:
            return refusal
        error = BridgeError(
            "too_many_failures", "There were too many wrong credentials from this address.", hint="Wait a minute."
        )
        return Unauthenticated(429, error, retry_after=str(math.ceil(wait)))
