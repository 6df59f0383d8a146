"""Waits of programs: a short one is waited out, a longer one suspends the program."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio

from mcp_bridge.kernel.events import Outcome

if TYPE_CHECKING:
    from mcp_bridge.kernel.events import Effect

LONGEST_WAIT_SECONDS = 30.0
"""A wait up to this is waited out; a longer one suspends the program, and `readiness` says when it is over."""


def due(effect: Effect, since: float | None) -> float:
    """When a wait is over, in seconds since 1970.

    Args:
        effect: The wait.
        since: When an earlier run began it; None if this one begins it now.
    """
    now = time.time()
    # A clock that was set back makes no wait longer.
    return (now if since is None else min(since, now)) + float(effect.arguments["seconds"])


async def wait(effect: Effect, since: float | None = None) -> Outcome:
    """The outcome of a wait: `ok` when its time has passed, or `pending` at once if it is long.

    Args:
        effect: The wait.
        since: As `due`.

    Raises:
        TimeoutError: The step's `timeout` is shorter than the wait.
    """
    seconds = effect.arguments["seconds"] if since is None else max(0, due(effect, since) - time.time())
    if seconds > LONGEST_WAIT_SECONDS:
        return Outcome(effect.id, "pending")
    with anyio.fail_after(effect.timeout):
        await anyio.sleep(seconds)
    return Outcome(effect.id, "ok")
