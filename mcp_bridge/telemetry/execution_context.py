"""Which execution the current task works for: log records and spans name it, without each caller passing it on."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class ExecutionContext(NamedTuple):
    """An execution, and whose it is.

    Attributes:
        execution: Its id.
        principal: The principal's name.
    """

    execution: str
    principal: str


current: ContextVar[ExecutionContext | None] = ContextVar("mcp_bridge_execution", default=None)
"""The innermost execution: a program that a script runs is named instead of the script. None outside of executions."""


@contextmanager
def execution_scope(execution: str, principal: str) -> Iterator[None]:
    """Name an execution in everything that is logged or traced meanwhile by this task, and by tasks that it starts."""
    token = current.set(ExecutionContext(execution, principal))
    try:
        yield
    finally:
        current.reset(token)
