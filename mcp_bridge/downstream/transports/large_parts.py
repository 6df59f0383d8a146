"""Detaches the large parts of a server's messages, and lists of tools, before the SDK processes the rest.

The SDK copies and validates a whole message several times on the event loop, which takes a tenth of a second for the
largest accepted message. So the transport passes it a message without its large parts, which a marker stands for. The
parts are validated off the event loop, one at a time. A list of tools is detached whatever its size: the SDK refuses it
as a whole if one tool is malformed (`client/listed_tools.py`).

Loads the MCP SDK: import this module only where a server is started.
"""

from __future__ import annotations

from typing import Any

from mcp_types import CallToolResult, ContentBlock, ListToolsResult
from pydantic import TypeAdapter

from mcp_bridge.offload import is_large

LARGE_CHARS = 256 << 10
LARGE_VALUES = 2000
"""Limits above which a part is detached: the SDK would take some milliseconds to copy it."""

_KEY = "mcp_bridge/detached"

_PARTS = {
    "content": list,
    "structuredContent": object,
    "tools": list,
    "contents": list,
    "resources": list,
    "resourceTemplates": list,
}
"""Members of results that can be detached, and their types. An empty value replaces a detached one."""

_blocks: TypeAdapter[list[ContentBlock]] = TypeAdapter(list[ContentBlock])
_object: TypeAdapter[dict[str, Any] | None] = TypeAdapter(dict[str, Any] | None)
_BLOCKS_AT_ONCE = 50

_KNOWN_TYPES = frozenset({"text", "image", "audio", "resource_link", "resource"})
"""Types of content blocks, in all versions of the protocol that are spoken."""

_SHOWN_TYPE_CHARS = 40


class _Detached(str):
    """The marker in a message's `_meta` that carries the detached parts. No message from a peer can contain one."""

    __slots__ = ("parts",)

    parts: dict[str, Any]


def is_oversized(value: Any) -> bool:
    """Whether a value is too large for the SDK to copy on the event loop."""
    return is_large(value, chars=LARGE_CHARS, values=LARGE_VALUES)


def has_tools(result: dict[str, Any]) -> bool:
    """Whether a result is a page of a list of tools."""
    return isinstance(result.get("tools"), list)


def detach(result: Any) -> Any:
    """The result without its large parts, and its tools; the same object if it has none or isn't a result.

    Args:
        result: A decoded JSON-RPC result. It isn't modified.
    """
    if not isinstance(result, dict) or not (has_tools(result) or is_oversized(result)):
        return result
    meta = result.get("_meta")
    if not (meta is None or isinstance(meta, dict)):
        return result
    mark = _Detached("")
    mark.parts = {
        name: result[name] for name, kind in _PARTS.items() if name in result and isinstance(result[name], kind)
    }
    if not mark.parts:
        return result
    rest = {name: kind() if kind is list else {} for name, kind in _PARTS.items() if name in mark.parts}
    return result | rest | {"_meta": (meta or {}) | {_KEY: mark}}


def detached_parts(result: CallToolResult | ListToolsResult) -> dict[str, Any]:
    """The parts detached from a result, by their wire names."""
    mark = (result.meta or {}).get(_KEY)
    return mark.parts if isinstance(mark, _Detached) else {}


def whole(raw: dict[str, Any]) -> dict[str, Any]:
    """A decoded result with its detached parts restored; the same object if it has none."""
    meta = raw.get("_meta")
    mark = meta.get(_KEY) if isinstance(meta, dict) else None
    if not isinstance(meta, dict) or not isinstance(mark, _Detached):
        return raw
    rest = {name: value for name, value in meta.items() if name != _KEY}
    return {**raw, "_meta": rest, **mark.parts}


def reattach(result: CallToolResult, parts: dict[str, Any], *, objects_only: bool) -> CallToolResult:
    """A copy of a tool call's result with its detached parts restored.

    Args:
        result: The result as the SDK decoded it.
        parts: The detached parts.
        objects_only: Whether structured content must be an object, as in protocol versions before 2026-07-28.

    Raises:
        pydantic.ValidationError: A part is not valid content.
    """
    fields: dict[str, Any] = {}
    if "content" in parts:
        blocks = known_blocks(parts["content"])
        fields["content"] = [
            block
            for start in range(0, len(blocks), _BLOCKS_AT_ONCE)
            for block in _blocks.validate_python(blocks[start : start + _BLOCKS_AT_ONCE], by_name=False)
        ]
    if "structuredContent" in parts:
        structured = fields["structured_content"] = parts["structuredContent"]
        if objects_only and not isinstance(structured, dict):
            _object.validate_python(structured)
    meta = {name: value for name, value in (result.meta or {}).items() if name != _KEY}
    copy = result.model_copy(update=fields)
    copy.meta = meta or None
    if not meta:
        copy.model_fields_set.discard("meta")
    return copy


def known_blocks(blocks: list[Any]) -> list[Any]:
    """Content blocks, with a text in place of each of a type that isn't known, such as a later version's.

    The call has been made: what else it has answered is passed on.
    """
    return [_named(block) if _is_unknown(block) else block for block in blocks]


def _is_unknown(block: Any) -> bool:
    kind = block.get("type") if isinstance(block, dict) else None
    return isinstance(kind, str) and kind not in _KNOWN_TYPES


def _named(block: dict[str, Any]) -> dict[str, str]:
    text = (
        f"[a content block of the type {block['type'][:_SHOWN_TYPE_CHARS]!r} is left out: the bridge doesn't know it]"
    )
    return {"type": "text", "text": text}
