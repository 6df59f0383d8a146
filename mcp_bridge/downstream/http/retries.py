"""When a request to a remote server is sent again: it certainly wasn't read, or was refused as too many (429)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import anyio

from mcp_bridge.downstream.http.http_client import RequestFailedError
from mcp_bridge.offload import time_left

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

# How often a request that certainly wasn't sent is sent again, and the first wait; each further one doubles it.
_SEND_AGAIN = 2
_SEND_AGAIN_WAIT = 0.2

# How often a request is sent again that was refused by 429, the wait if the server names none, and the longest wait. A
# server that wants more than that is not waited for.
_BUSY_AGAIN = 4
_BUSY_WAIT = 1.0
MAX_BUSY_WAIT = 30.0

# What a wait has to leave of a call's time, for the answer. A request that is sent with less would likely end as one
# that may have happened, while it is certain of those before it that they haven't.
_ANSWER_SECONDS = 1.0


async def sent_until_read(send: Callable[[], Awaitable[T]]) -> T:
    """Send a request until the server has read it, or the next wait would take what is left of the call's time.

    Args:
        send: Sends it once, and returns what came of it.

    Raises:
        RequestFailedError: As the last `send`; with the seconds to wait if a refusal by 429 isn't waited out because of
            the call's time.
    """
    unsent = busy = 0
    while True:
        try:
            return await send()
        except RequestFailedError as error:
            failure = error.failure
            if failure.kind == "unsent" and not failure.lasting and unsent < _SEND_AGAIN:
                wait = _SEND_AGAIN_WAIT * 2**unsent
                unsent += 1
            elif failure.kind == "busy" and busy < _BUSY_AGAIN:
                wait = _BUSY_WAIT * 2**busy if failure.retry_after is None else failure.retry_after
                busy += 1
                if wait > MAX_BUSY_WAIT:
                    raise
            else:
                raise
            # Spread, since all calls of a server may have been refused at once.
            spread = wait + random.uniform(0, min(1.0, wait / 4))  # noqa: S311
            if spread + _ANSWER_SECONDS > time_left():
                if failure.kind == "busy":
                    raise RequestFailedError(replace(failure, retry_after=wait)) from None
                raise
        await anyio.sleep(spread)
