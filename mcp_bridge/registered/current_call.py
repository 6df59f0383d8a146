"""Whose call of a registered tool is being made, for the tool's own code."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import NamedTuple


class CurrentCall(NamedTuple):
    """A call of a registered tool.

    Attributes:
        principal: Who has the tool called: a name of `[principals]`, or `local` for whoever started the bridge and uses
            the command line.
        execution: The id of the execution that calls it.
    """

    principal: str
    execution: str


_current: ContextVar[CurrentCall] = ContextVar("mcp_bridge_current_call")


def current_call() -> CurrentCall:
    """The call that the running tool was called by. It says who authenticated, and nothing that a script could forge.

    Known in the tool's function and what that calls, in its task or thread and in tasks that it starts; not in threads
    that it starts itself.

    Raises:
        LookupError: No tool is being called.
    """
    return _current.get()


class made_for:  # noqa: N801 - a context manager; as a generator it would take twice as long
    """The context in which a registered tool is called.

    Args:
        principal: As `CurrentCall`.
        execution: As `CurrentCall`.
    """

    __slots__ = ("_call", "_token")

    def __init__(self, principal: str, execution: str) -> None:
        self._call = CurrentCall(principal, execution)

    def __enter__(self) -> None:
        """Enter it."""
        self._token: Token[CurrentCall] = _current.set(self._call)

    def __exit__(self, *_: object) -> None:
        """Leave it."""
        _current.reset(self._token)
