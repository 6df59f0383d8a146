"""Waits of programs: a short one is waited out, a longer one suspends the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from mcp_bridge.kernel.events import Outcome

if TYPE_CHECKING:
    from mcp_bridge.kernel.events import Effect

LONGEST_WAIT_SECONDS = 30.0
"""A wait up to this is waited out; a longer one suspends the program, and `readiness` says when it is over."""


async def wait(effect: Effect) -> Outcome:
    """The outcome of a wait: `ok` when its time has passed, or `pending` at once if it is long.

    Raises:
        TimeoutError: The step's `timeout` is shorter than the wait.
    """
    seconds = effect.arguments["seconds"]
    if seconds > LONGEST_WAIT_SECONDS:
        return Outcome(effect.id, "pending")
    with anyio.fail_after(effect.timeout):
        await anyio.sleep(seconds)
    return Outcome(effect.id, "ok")
