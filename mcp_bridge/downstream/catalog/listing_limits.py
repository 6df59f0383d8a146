"""How large a listing may be: bounded while it arrives, page by page, since a server may go on for ever."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

# A listing that goes on beyond these is cut; no model or person could choose among more.
MAX_TOOLS = 5_000
MAX_PAGES = 500
MAX_LISTING_BYTES = 4 << 20

# A larger tool is left out: to see whether its schema is valid would take seconds, and no model could read it.
MAX_TOOL_BYTES = 256 << 10
MAX_TOOL_NAME_CHARS = 500

# Of a value that is no text: in JSON, and about what it takes in memory by the byte of that.
_VALUE_BYTES = 4

# How many tools that were left out are named.
_NAMED = 3


def size_of(value: Any, limit: int) -> int:
    """About the bytes of a JSON value; not counted on, once they are over the limit."""
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
class Gathered:
    """What of a listing has arrived, and is kept.

    Attributes:
        tools: By their names on the wire.
        size: About their bytes.
        full: Whether no more is kept.
    """

    tools: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0
    full: bool = False
    _left_out: list[str] = field(default_factory=list)

    def add(self, tools: Iterable[dict[str, Any]]) -> None:
        """Take a page, as far as there is room."""
        for tool in tools:
            size = size_of(tool, MAX_TOOL_BYTES)
            name = tool.get("name")
            name = name if isinstance(name, str) else ""
            if size > MAX_TOOL_BYTES or len(name) > MAX_TOOL_NAME_CHARS:
                # Their number is bounded like that of the others: a server can send nothing else.
                self._left_out.append(name[:80])
                self.size += 80
            elif self.size + size > MAX_LISTING_BYTES or len(self.tools) >= MAX_TOOLS:
                self.full = True
            else:
                self.size += size
                self.tools.append(tool)
            if self.full or len(self._left_out) > MAX_TOOLS:
                self.full = True
                return

    def notices(self, server: str) -> list[str]:
        """What was left out, in plain words."""
        found = []
        if self._left_out:
            names = ", ".join(map(repr, self._left_out[:_NAMED])) + (", …" if len(self._left_out) > _NAMED else "")
            found.append(
                f"server {server!r} lists {len(self._left_out)} tools that are left out, since one may have"
                f" {MAX_TOOL_BYTES} bytes and a name of {MAX_TOOL_NAME_CHARS} characters: {names}"
            )
        if self.full:
            found.append(
                f"server {server!r} lists more than is kept, {MAX_TOOLS} tools of {MAX_LISTING_BYTES} bytes together;"
                f" cut after {len(self.tools)} tools"
            )
        return found
