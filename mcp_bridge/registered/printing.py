"""Redirects output of registered tools to standard error, because standard output may carry the MCP protocol.

This covers Python's own `sys.stdout`, in tools on the event loop and in their threads. It doesn't cover threads that a
tool starts itself (they inherit no context before Python 3.14), child processes, and C code, which write to descriptor
1. The MCP server redirects that descriptor as well (`server/messages/stdio.py`).
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import Any, TextIO, cast

_in_tool: ContextVar[bool] = ContextVar("mcp_bridge_in_tool", default=False)


class _Divided:
    """Standard error in a tool's context, and the previous standard output everywhere else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if _in_tool.get() else self._stream, name)


class as_tool:  # noqa: N801 - a context manager; as a generator it would take twice as long, twice a call
    """The context in which a tool's code runs, or its task or thread is created."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        """Enter it."""
        # Checked each time: code that captures output replaces sys.stdout, including our replacement, and restores it.
        if not isinstance(sys.stdout, _Divided):
            sys.stdout = cast("TextIO", _Divided(sys.stdout))
        self._token = _in_tool.set(True)

    def __exit__(self, *_: object) -> None:
        """Leave it."""
        _in_tool.reset(self._token)
