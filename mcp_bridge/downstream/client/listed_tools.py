"""The tools of a listing page, one by one: a malformed one is mended or left out, and the others are there.

The SDK's model refuses a page as a whole, so the transport detaches its tools (`large_parts`).

Loads the MCP SDK: import this module only where a server is started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types import ListToolsResult, Tool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcp_bridge.downstream.configuration.tool_filter import lets_through
from mcp_bridge.downstream.transports.large_parts import detached_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.downstream.catalog.listing_limits import BoundedListing
    from mcp_bridge.downstream.configuration.spec import ServerSpec

_OBJECT = {"type": "object"}

_TASK_ONLY = "it can only be called as a task, which the bridge doesn't do"


def add_page(gathered: BoundedListing, page: ListToolsResult, spec: ServerSpec, version: str) -> None:
    """Add the tools of a page, and what is wrong with some.

    Args:
        gathered: Where they are added.
        page: The page, as the SDK decoded it.
        spec: Its server.
        version: The version of the protocol.
    """
    gathered.add(_usable(gathered, page, spec, version))


def _usable(
    gathered: BoundedListing, page: ListToolsResult, spec: ServerSpec, version: str
) -> Iterator[dict[str, Any]]:
    for raw in detached_parts(page).get("tools", ()):
        name = raw.get("name") if isinstance(raw, dict) else None
        if not isinstance(name, str) or not name:
            # Counted where the listing is decoded.
            yield {}
            continue
        tool, wrong = _mended(raw)
        if tool is not None and version not in MODERN_PROTOCOL_VERSIONS and _is_task_only(tool):
            tool, wrong = None, _TASK_ONLY
        if wrong:
            told = wrong if tool is not None else f"it is left out, since {wrong}"
            # Whoever excludes the tool has no use for the notice.
            gathered.fault(name, told if lets_through(spec, name) else "")
        if tool is not None:
            yield tool


def _mended(raw: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """A tool as the SDK's model has it, with wire names, and what is wrong with it; None if it can't be called."""
    schema = raw.get("inputSchema")
    if schema is None or schema is True:
        # A tool without parameters. Arguments are an object, whatever their schema leaves open.
        schema = _OBJECT
    kind = schema.get("type") if isinstance(schema, dict) else False
    if kind is None or (isinstance(kind, list) and "object" in kind):
        schema = schema | _OBJECT
    elif kind != "object":
        return None, "its inputSchema is not one of an object"
    raw = raw | {"inputSchema": schema}
    wrong = ""
    try:
        tool = Tool.model_validate(raw, by_name=False)
    except ValidationError as error:
        malformed = sorted({str(each["loc"][0]) for each in error.errors(include_url=False, include_input=False)})
        wrong = f"what it has as {' and '.join(malformed)} is malformed, and not used"
        tool = Tool.model_validate({key: value for key, value in raw.items() if key not in malformed}, by_name=False)
    return tool.model_dump(mode="json", by_alias=True, exclude_unset=True), wrong


def _is_task_only(tool: dict[str, Any]) -> bool:
    return (tool.get("execution") or {}).get("taskSupport") == "required"


def with_headers(tools: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, dict[Any, Any]], list[str]]:
    """The tools that can be called over HTTP, which arguments of each are headers, and what is wrong with the others.

    Protocol version 2026-07-28 has a client leave out a tool whose `x-mcp-header` annotations are invalid.
    """
    kept, headers, notices = [], {}, []
    for tool in tools:
        schema = tool.get("inputSchema") or {}
        if wrong := find_invalid_x_mcp_header(schema):
            notices.append(f"tool {tool.get('name')!r} is left out: its x-mcp-header is invalid ({wrong})")
            continue
        kept.append(tool)
        if found := x_mcp_header_map(schema):
            headers[str(tool.get("name"))] = found
    return kept, headers, notices
