"""Stops a server that hasn't been used for `runtime_idle_timeout`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable


async def closed_or_idle(
    closed: anyio.Event, timeout: float, last_used: Callable[[], float], is_busy: Callable[[], bool]
) -> bool:
    """Wait until a connection is closed, or hasn't been used for a time.

    Args:
        closed: Set when the connection is closed.
        timeout: Seconds without a request; 0 or less for no limit.
        last_used: When the last request ended, on the event loop's clock.
        is_busy: Whether a request is in flight.

    Returns:
        Whether the connection is idle, and not closed.
    """
    while not closed.is_set():
        if timeout <= 0:
            await closed.wait()
            continue
        left = last_used() + timeout - anyio.current_time()
        if left <= 0 and not is_busy():
            return True
        with anyio.move_on_after(left if left > 0 else timeout):
            await closed.wait()
    return False
