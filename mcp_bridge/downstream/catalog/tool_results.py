"""Converts a tool's result into the value that Python code receives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp_bridge.offload import is_large

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from mcp_bridge.downstream.catalog.tools import ToolInfo


FEW_BLOCKS = 100


def is_wrapped(output_schema: dict[str, Any] | None) -> bool:
    """Whether results of this schema are values that an SDK wrapped in an object under `result`.

    SDKs wrap values that aren't objects; the schema is then an object whose only property is a required `result`.
    """
    if output_schema is None:
        return False
    if output_schema.get("x-fastmcp-wrap-result") is True:
        return True
    properties = output_schema.get("properties")
    return (
        output_schema.get("type") == "object"
        and isinstance(properties, dict)
        and list(properties) == ["result"]
        and output_schema.get("required") == ["result"]
    )


def is_slow_to_convert(result: CallToolResult) -> bool:
    """Whether `convert` takes more than a few milliseconds."""
    return (
        len(result.content) > FEW_BLOCKS
        or is_large(result.structured_content)
        or any(is_large(getattr(block, "text", None) or getattr(block, "data", None)) for block in result.content)
    )


def convert(result: CallToolResult, tool: ToolInfo | None = None, *, raw: bool = True) -> dict[str, Any]:
    """Convert a result into JSON-compatible data.

    Args:
        result: The server's answer.
        tool: The tool that was called; without it nothing is unwrapped.
        raw: Whether the whole result is wanted; it is there for an error in any case.

    Returns:
        `value`: the structured content (unwrapped if an SDK wrapped it); else the text blocks joined by newlines; else,
        if there is anything but text, the list of all blocks, with text as strings and others as objects with a `type`;
        None for no content. For an error always the content, and never the structured content.
        `is_error`: whether the tool reports a failure.
        `raw`: the whole result with wire names, limited to the members that the server sent; or empty.
    """
    # Structured content is JSON as decoded. Copying it would block the interpreter.
    structured = result.structured_content
    whole: dict[str, Any] = {}
    if raw or structured is None or result.is_error:
        whole = result.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"structured_content"})
        if "structured_content" in result.model_fields_set:
            whole["structuredContent"] = structured
    if structured is None or result.is_error:
        value = _content(whole.get("content") or [])
    elif (
        is_wrapped(tool.output_schema if tool else None)
        and isinstance(structured, dict)
        and set(structured) == {"result"}
    ):
        value = structured["result"]
    else:
        value = structured
    return {"value": value, "is_error": result.is_error, "raw": whole}


def _content(blocks: list[dict[str, Any]]) -> Any:
    if not blocks:
        return None
    values = [_block(block) for block in blocks]
    if all(isinstance(value, str) for value in values):
        return "\n".join(values)
    return values


def _block(block: dict[str, Any]) -> Any:
    kind = block.get("type")
    if kind == "text" or (kind is None and "text" in block):
        return block["text"]
    if kind in {"image", "audio"}:
        return {"type": kind, "mime_type": block.get("mimeType"), "data": block.get("data")}
    if kind == "resource":
        resource = block.get("resource") or {}
        body = {"text": resource["text"]} if "text" in resource else {"data": resource.get("blob")}
        return {"type": kind, "uri": resource.get("uri"), "mime_type": resource.get("mimeType"), **body}
    if kind == "resource_link":
        out = {
            "type": kind,
            "uri": block.get("uri"),
            "name": block.get("name"),
            "mime_type": block.get("mimeType"),
        }
        return out | {key: block[key] for key in ("title", "description", "size") if block.get(key) is not None}
    return block
