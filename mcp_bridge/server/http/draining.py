"""The end of a server over HTTP: running calls have a limited time to be answered."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from mcp_bridge.server.http.request_admission import Endpoint

logger = logging.getLogger(__name__)

QUIET_SECONDS = 0.5
"""How long nothing must have been running: a client asks for the tool's schema once it has the answer of its call."""

LOOK_SECONDS = 0.05
"""How often the end of the running calls is looked for."""


class RunningCalls:
    """Counts the MCP requests that are being handled, as a middleware of the MCP server.

    A request of a session is handled to its end even if its connection is gone.
    """

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Handle a message."""
        if ctx.request_id is None:
            return await call_next(ctx)
        self.count += 1
        try:
            return await call_next(ctx)
        finally:
            self.count -= 1


async def drain(
    calls: RunningCalls, endpoint: Endpoint, seconds: float, signals: AsyncIterator[signal.Signals]
) -> None:
    """Wait until the running calls have been answered, at most so long, and at most until another signal."""
    with anyio.move_on_after(seconds) as limit:
        async with anyio.create_task_group() as tasks:

            async def finish() -> None:
                idle_since = anyio.current_time()
                while anyio.current_time() < idle_since + QUIET_SECONDS:
                    await anyio.sleep(LOOK_SECONDS)
                    if calls.count or not endpoint.is_idle:
                        idle_since = anyio.current_time()
                tasks.cancel_scope.cancel()

            tasks.start_soon(finish)
            await anext(signals)
            tasks.cancel_scope.cancel()
    if limit.cancelled_caught:
        logger.warning("calls that were running after %g s are ended", seconds)
