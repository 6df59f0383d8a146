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
    """When a wait is over, or its step's `timeout` has passed, in seconds since 1970.

    Args:
        effect: The wait.
        since: When it was asked for; None for now.
    """
    now = time.time()
    seconds = float(effect.arguments["seconds"])
    # A clock that was set back makes no wait longer.
    return (now if since is None else min(since, now)) + (
        seconds if effect.timeout is None else min(seconds, effect.timeout)
    )


def over(effect: Effect) -> Outcome:
    """The outcome of a wait that is due. It depends on the whole wait, and not on what was left of it after a crash."""
    times_out = effect.timeout is not None and effect.timeout < effect.arguments["seconds"]
    return Outcome(effect.id, "timeout" if times_out else "ok")


async def wait(effect: Effect, since: float | None = None) -> Outcome:
    """The outcome of a wait when it is due, or `pending` at once if that is long.

    Args:
        effect: The wait.
        since: As `due`.
    """
    seconds = max(0, due(effect, since) - time.time())
    if seconds > LONGEST_WAIT_SECONDS:
        return Outcome(effect.id, "pending")
    await anyio.sleep(seconds)
    return over(effect)
