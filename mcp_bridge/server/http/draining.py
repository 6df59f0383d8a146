"""The end of a server over HTTP: running calls have a limited time to be answered.

Meanwhile calls and sessions that begin are refused with 503. What belongs to one that is there already is let in.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import anyio

from mcp_bridge.server.http.refusals import RETRY_SECONDS, refused

if TYPE_CHECKING:
    import signal
    from collections.abc import AsyncIterator, Callable

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from mcp_bridge.server.http.refusals import RefusedRequest

logger = logging.getLogger(__name__)

QUIET_SECONDS = 0.5
"""How long nothing must have been running: a client asks for the tool's schema once it has the answer of its call."""

ANSWER_SECONDS = 5.0
"""How long calls that were cancelled may take to say so."""

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
    calls: RunningCalls, is_idle: Callable[[], bool], seconds: float, signals: AsyncIterator[signal.Signals]
) -> None:
    """Wait until the running calls have been answered, and the executions that the bridge resumed by itself have ended.

    Args:
        calls: The calls.
        is_idle: Whether no request is in progress that could be one, and nothing runs that no request has asked for.
        seconds: The longest to wait.
        signals: The next one ends the wait, too.
    """
    with anyio.move_on_after(seconds) as limit:
        async with anyio.create_task_group() as tasks:

            async def finish() -> None:
                idle_since = anyio.current_time()
                while anyio.current_time() < idle_since + QUIET_SECONDS:
                    await anyio.sleep(LOOK_SECONDS)
                    if calls.count or not is_idle():
                        idle_since = anyio.current_time()
                tasks.cancel_scope.cancel()

            tasks.start_soon(finish)
            await anext(signals)
            tasks.cancel_scope.cancel()
    if limit.cancelled_caught:
        logger.warning("calls that were running after %g s are ended", seconds)


async def until_answered(calls: RunningCalls, is_idle: Callable[[], bool]) -> None:
    """Wait until calls that were cancelled have been answered so; not for long.

    Args:
        calls: The calls.
        is_idle: Whether no request is in progress that could be one.
    """
    with anyio.move_on_after(ANSWER_SECONDS):
        while calls.count or not is_idle():  # noqa: ASYNC110 - uvicorn has no event for it
            await anyio.sleep(LOOK_SECONDS)


def refuse_new_work(body: bytes) -> None:
    """Refuse a message that begins a call or a session.

    Raises:
        RefusedRequest: 503.
    """
    if _begins(body):
        raise ending()


def _begins(body: bytes) -> bool:
    """Whether a message begins a call or a session. All others belong to what is there already, or take no time.

    A call with a request state goes on with one that has asked its client something.
    """
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        return False
    method = message.get("method") if isinstance(message, dict) else None
    if method == "tools/call":
        params = message.get("params")
        return not isinstance(params, dict) or "requestState" not in params
    return method == "initialize"


def ending() -> RefusedRequest:
    """The refusal of a request because the bridge is being stopped."""
    return refused(503, "bridge_ending", "The bridge is being stopped.", "Ask again.", retry_after=str(RETRY_SECONDS))
