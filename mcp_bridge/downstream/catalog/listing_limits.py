"""Limits on a listing, applied while it arrives, page by page: a server may send pages without end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

# A longer listing is cut; no model or person could choose among more tools.
MAX_TOOLS = 5_000
MAX_PAGES = 500
MAX_LISTING_BYTES = 4 << 20

# A larger tool is left out: validating its schema would take seconds, and no model could read it.
MAX_TOOL_BYTES = 256 << 10
MAX_TOOL_NAME_CHARS = 500

# The estimated size of a value that isn't text, in JSON and in memory.
_VALUE_BYTES = 4

# How many of the omitted tools are named, and of how many tools it is told what is wrong with them.
_NAMED = 3
_TOLD_FAULTS = 10

# What an omitted tool counts for: a server may send nothing else.
_LEFT_OUT_BYTES = 80


def size_of(value: Any, limit: int) -> int:
    """The approximate size of a JSON value in bytes; counting stops above the limit."""
    size = 0
    stack = [value]
    while stack and size <= limit:
        node = stack.pop()
        size += _VALUE_BYTES
        if isinstance(node, str):
            size += len(node)
        elif isinstance(node, dict):
            size += sum(map(len, node)) + _VALUE_BYTES * len(node)
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)
    return size


@dataclass(slots=True)
class BoundedListing:
    """The part of a listing that has arrived and fits within the limits.

    Attributes:
        tools: Tools as JSON objects with wire names.
        size: Their approximate size in bytes.
        full: Whether a limit was reached.
    """

    tools: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0
    full: bool = False
    _left_out: list[str] = field(default_factory=list)
    _faults: list[str] = field(default_factory=list)
    _more_faults: int = 0

    def add(self, tools: Iterable[dict[str, Any]]) -> None:
        """Add a page, up to the limits."""
        for tool in tools:
            size = size_of(tool, MAX_TOOL_BYTES)
            name = tool.get("name")
            name = name if isinstance(name, str) else ""
            if size > MAX_TOOL_BYTES or len(name) > MAX_TOOL_NAME_CHARS:
                self._left_out.append(name[:_LEFT_OUT_BYTES])
                self.size += _LEFT_OUT_BYTES
            elif self.size + size > MAX_LISTING_BYTES or len(self.tools) >= MAX_TOOLS:
                self.full = True
            else:
                self.size += size
                self.tools.append(tool)
            if self.full or len(self._left_out) > MAX_TOOLS:
                self.full = True
                return

    def fault(self, name: str, wrong: str) -> None:
        """Note what is wrong with a tool; nothing, if nobody wants to know."""
        self.size += _LEFT_OUT_BYTES
        self.full = self.full or self.size > MAX_LISTING_BYTES
        if wrong and len(self._faults) < _TOLD_FAULTS:
            self._faults.append(f"tool {name[:_LEFT_OUT_BYTES]!r}: {wrong}")
        elif wrong:
            self._more_faults += 1

    def notices(self, server: str) -> list[str]:
        """What was left out or isn't used, in plain language."""
        notices = [f"server {server!r}, {fault}" for fault in self._faults]
        if self._more_faults:
            notices.append(f"server {server!r} has {self._more_faults} more tools with such faults")
        if self._left_out:
            names = ", ".join(map(repr, self._left_out[:_NAMED])) + (", …" if len(self._left_out) > _NAMED else "")
            notices.append(
                f"server {server!r} lists {len(self._left_out)} tools that are left out, since one may have"
                f" {MAX_TOOL_BYTES} bytes and a name of {MAX_TOOL_NAME_CHARS} characters: {names}"
            )
        if self.full:
            notices.append(
                f"server {server!r} lists more than is stored, {MAX_TOOLS} tools of {MAX_LISTING_BYTES} bytes together;"
                f" cut after {len(self.tools)} tools"
            )
        return notices
