"""The calls that are under way, by whose they are: they end with their principal, and with the bridge.

A request ends with its credential, but a call may go on without one: a session's does, and so does one that waits for
answers of its client (`Conversations`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp_bridge.error_codes import Code

T = TypeVar("T")


def cancelled_call(code: Code, why: str, *, execution: str | None, goes_on: bool = False) -> BridgeError:
    """The error for a call that is answered before its end.

    Args:
        code: The error's code.
        why: Why it is: a sentence.
        execution: The id of its execution, as far as is known; that may still have waited for its turn.
        goes_on: Whether that goes on without the call.
    """
    subject = "The call" if execution is None else f"The call (execution {execution})"
    what = "continues" if goes_on else "was cancelled. What it had done stays done"
    has_it = f"show {execution}" if execution else "list"
    hint = f"`mcp-bridge execution {has_it}` has it. Ask again where it may be done again."
    error = BridgeError(code, f"{why} {subject} had begun, and {what}.", hint=hint)
    if execution is not None:
        error.details["execution"] = execution
    return error


class PrincipalCalls:
    """The calls of one server."""

    def __init__(self) -> None:
        self._scopes: dict[str, set[anyio.CancelScope]] = {}
        self.is_over = False
        """Whether all were ended, since the bridge is being stopped."""

    @property
    def principals(self) -> tuple[str, ...]:
        """The names of the principals that have calls under way."""
        return tuple(self._scopes)

    async def run(self, principal: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """Do a call's work; None if it was ended meanwhile.

        Args:
            principal: The name of whose call it is.
            work: What the call does.
        """
        scope = anyio.CancelScope()
        scopes = self._scopes.setdefault(principal, set())
        scopes.add(scope)
        try:
            with scope:
                return await work()
        finally:
            scopes.discard(scope)
            if not scopes:
                self._scopes.pop(principal, None)
        return None

    def end(self, principal: str) -> None:
        """Cancel what a principal has under way: what runs, and what waits for a place or for its client's answers."""
        for scope in self._scopes.get(principal, ()):
            scope.cancel()

    def end_all(self) -> None:
        """Cancel what everybody has under way: the bridge is being stopped, and waits no longer for it."""
        self.is_over = True
        for name in self.principals:
            self.end(name)
