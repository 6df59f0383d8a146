"""What registered tools print goes to standard error: on standard output there may be somebody's protocol.

Python's own `sys.stdout` is covered, in tools on the event loop and in their threads. Not covered are threads that a
tool starts itself (they inherit no context before Python 3.14), child processes and C code, which write to
descriptor 1. The MCP server moves that one out of the way as well (`server/stdio.py`).
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

_in_tool: ContextVar[bool] = ContextVar("mcp_bridge_in_tool", default=False)


class _Divided:
    """Standard error for a tool's context, and what standard output was for everything else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if _in_tool.get() else self._stream, name)


@contextmanager
def as_tool() -> Iterator[None]:
    """A tool's code runs, or a task or thread is given its context, in here."""
    # Looked at each time: whoever captures output replaces sys.stdout, ours included, and puts it back.
    if not isinstance(sys.stdout, _Divided):
        sys.stdout = cast("TextIO", _Divided(sys.stdout))
    token = _in_tool.set(True)
    try:
        yield
    finally:
        _in_tool.reset(token)
