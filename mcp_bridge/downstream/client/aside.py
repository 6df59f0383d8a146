"""The large parts of a server's messages, kept aside while the SDK is busy with the rest.

The SDK copies and checks a whole message several times, on the event loop: a tenth of a second for the largest that is
taken. So the transport gives it a message without its large parts, with a mark in their place, and they are checked
off the loop, a part at a time.

Loads the MCP SDK: import it only where a server is started.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mcp_types import CallToolResult, ContentBlock, ListToolsResult, Tool
from pydantic import TypeAdapter

from mcp_bridge.offload import is_large

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE_CHARS = 256 << 10
LARGE_VALUES = 2000
"""From which a message isn't the SDK's to copy: it would take some milliseconds."""

_KEY = "mcp_bridge/aside"

_PARTS = {"content": list, "structuredContent": object, "tools": list}
"""Members of results that are kept aside, and what stands there meanwhile."""

_blocks: TypeAdapter[list[ContentBlock]] = TypeAdapter(list[ContentBlock])
_object: TypeAdapter[dict[str, Any] | None] = TypeAdapter(dict[str, Any] | None)
_BLOCKS_AT_ONCE = 50


class _Aside(str):
    """Stands in a message's `_meta` for what it goes without. Nothing that comes over the wire can be one."""

    __slots__ = ("parts",)

    parts: dict[str, Any]


def is_long(value: Any) -> bool:
    """Whether a message with this value is not for the SDK."""
    return is_large(value, chars=LARGE_CHARS, values=LARGE_VALUES)


def set_aside(result: Any) -> Any:
    """A result without its large parts; the same one where it has none, or is none of ours.

    Args:
        result: As it was read. It isn't changed.
    """
    if not isinstance(result, dict) or not is_long(result):
        return result
    meta = result.get("_meta")
    if not (meta is None or isinstance(meta, dict)):
        return result
    mark = _Aside("")
    mark.parts = {
        name: result[name] for name, kind in _PARTS.items() if name in result and isinstance(result[name], kind)
    }
    if not mark.parts:
        return result
    rest = {name: kind() if kind is list else {} for name, kind in _PARTS.items() if name in mark.parts}
    return result | rest | {"_meta": (meta or {}) | {_KEY: mark}}


def taken_back(result: CallToolResult | ListToolsResult) -> dict[str, Any]:
    """What was kept aside of a result, by its names on the wire."""
    mark = (result.meta or {}).get(_KEY)
    return mark.parts if isinstance(mark, _Aside) else {}


def whole(result: CallToolResult, parts: dict[str, Any], *, objects_only: bool) -> CallToolResult:
    """A call's result with what was kept aside of it.

    Args:
        result: Of the SDK.
        parts: What was kept aside.
        objects_only: Whether structured content is an object, as it was before the modern versions of the protocol.

    Raises:
        pydantic.ValidationError: That is no content.
    """
    found: dict[str, Any] = {}
    if "content" in parts:
        blocks = parts["content"]
        found["content"] = [
            block
            for start in range(0, len(blocks), _BLOCKS_AT_ONCE)
            for block in _blocks.validate_python(blocks[start : start + _BLOCKS_AT_ONCE], by_name=False)
        ]
    if "structuredContent" in parts:
        structured = found["structured_content"] = parts["structuredContent"]
        if objects_only and not isinstance(structured, dict):
            _object.validate_python(structured)
    meta = {name: value for name, value in (result.meta or {}).items() if name != _KEY}
    copy = result.model_copy(update=found)
    copy.meta = meta or None
    if not meta:
        copy.model_fields_set.discard("meta")
    return copy


def tools_of(page: ListToolsResult) -> Iterator[dict[str, Any]]:
    """The tools of a page, by their names on the wire, as the SDK takes them.

    Raises:
        pydantic.ValidationError: One of them is none.
    """
    for raw in taken_back(page).get("tools", ()):
        yield _dumped(Tool.model_validate(raw, by_name=False))
    for tool in page.tools:
        yield _dumped(tool)


def _dumped(tool: Tool) -> dict[str, Any]:
    return tool.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Outgoing:
    """Arguments that are too large for the SDK, by the mark that stands for them in a request."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {}

    @contextmanager
    def kept(self, arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What the SDK is given for these arguments, until their request has been answered or given up."""
        if not is_long(arguments):
            yield arguments
            return
        mark = secrets.token_hex(16)
        self._kept[mark] = arguments
        try:
            yield {mark: True}
        finally:
            del self._kept[mark]

    def whole(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """A request's parameters with the arguments that were kept; None if none were."""
        arguments = message.get("arguments")
        if self._kept and isinstance(arguments, dict) and len(arguments) == 1:
            (mark,) = arguments
            if (kept := self._kept.get(mark)) is not None:
                return message | {"arguments": kept}
        return None
