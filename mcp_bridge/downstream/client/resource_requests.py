"""A server's resources, listed and read by the protocol's requests, with the results of tools.

Loads the MCP SDK: import this module only where a server is connected to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    InputRequiredResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextContent,
)
from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from mcp_bridge.downstream.catalog.listing_limits import size_of
from mcp_bridge.downstream.transports.large_parts import is_oversized, whole
from mcp_bridge.offload import on_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp_bridge.downstream.catalog.resource_tools import Method

    Request = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]

# The longest pagination cursor that is accepted; a longer one costs more than the page.
MAX_CURSOR_CHARS = 16 << 10

# What one call lists: it ends with the page that reaches one of these, and says how to go on. A page that doesn't fit
# into the bytes beside others is left to the next call.
MAX_PAGES_LISTED = 20
MAX_RESOURCES_LISTED = 1_000
MAX_BYTES_LISTED = 1 << 20

_LISTS = {"resources": "resources/list", "templates": "resources/templates/list"}
"""What is listed, in this order, and by which request. A cursor of ours is one of these, a colon and the server's."""


async def call(
    method: Method, arguments: dict[str, Any], request: Request, version: str
) -> CallToolResult | InputRequiredResult:
    """The result of one of the tools for resources.

    Args:
        method: What the tool does.
        arguments: Its arguments, which fit its schema.
        request: Sends a request, and gives its result as it is on the wire.
        version: The protocol version of the connection.

    Raises:
        MCPError: The server answered with an error, it lists without end, or the connection ended.
        ValueError: The cursor is none of ours.
        pydantic.ValidationError: The server's answer is no result.
    """
    if method == "list":
        return await _list(request, version, arguments.get("cursor"))
    return await _read(request, version, arguments["uri"])


async def has_any(request: Request, version: str) -> bool:
    """Whether a server lists a resource or a template, or more than a page of them.

    Raises:
        MCPError, pydantic.ValidationError: As `call`.
    """
    for kind in _LISTS:
        rows, following = await _page(request, version, kind)
        if rows or (following is not None and following.startswith(f"{kind}:") and following != f"{kind}:"):
            return True
    return False


async def _read(request: Request, version: str, uri: str) -> CallToolResult | InputRequiredResult:
    result = await _result(request, version, "resources/read", {"uri": uri})
    if not isinstance(result, ReadResourceResult):
        return result  # type: ignore[no-any-return]  # the other result of this method
    content: list[ContentBlock]
    match result.contents:
        case [one] if not isinstance(one, BlobResourceContents):
            content = [TextContent(type="text", text=one.text)]
        case several:
            content = [EmbeddedResource(type="resource", resource=each) for each in several]
    return CallToolResult(content=content)


async def _list(request: Request, version: str, cursor: str | None) -> CallToolResult:
    kind, theirs = "resources", None
    if cursor is not None:
        kind, _, theirs = cursor.partition(":")
        if kind not in _LISTS or len(theirs) > MAX_CURSOR_CHARS:
            raise ValueError("invalid cursor: pass the next_cursor of the previous call")
    resources: list[dict[str, Any]] = []
    templates: list[dict[str, Any]] = []
    position: str | None = kind if theirs is None else cursor
    seen: set[str] = set()
    pages = size = 0
    while position is not None and pages < MAX_PAGES_LISTED and len(resources) + len(templates) < MAX_RESOURCES_LISTED:
        try:
            rows, following = await _page(request, version, position)
        except (MCPError, ValidationError) as error:
            if not pages or (isinstance(error, MCPError) and error.code == CONNECTION_CLOSED):
                raise
            # What is listed already is told; the next call begins with the page that fails.
            break
        added = size_of(rows, MAX_BYTES_LISTED)
        if pages and size + added > MAX_BYTES_LISTED:
            break
        (resources if position.startswith("resources") else templates).extend(rows)
        size += added
        pages += 1
        seen.add(position)
        if following in seen:
            raise MCPError(code=0, message="it lists its resources without end")
        position = following
    structured = {"resources": resources, "resource_templates": templates, "next_cursor": position}
    return CallToolResult(content=[], structured_content=structured)


async def _page(request: Request, version: str, position: str) -> tuple[list[dict[str, Any]], str | None]:
    """A page of a list, and the position after it; None at the end of the last list."""
    kind, _, cursor = position.partition(":")
    after = "templates:" if kind == "resources" else None
    try:
        result = await _result(request, version, _LISTS[kind], {"cursor": cursor} if cursor else {})
    except MCPError as error:
        if error.code == METHOD_NOT_FOUND and not cursor:
            # A server of resources only, or of templates only.
            return [], after
        raise
    if following := result.next_cursor:
        if len(following) > MAX_CURSOR_CHARS:
            raise MCPError(code=0, message=f"a cursor of its list has more than {MAX_CURSOR_CHARS} characters")
        after = f"{kind}:{following}"
    if isinstance(result, ListResourcesResult):
        return [_row(each, uri=each.uri, size=each.size) for each in result.resources], after
    assert isinstance(result, ListResourceTemplatesResult)  # the other list's
    return [_row(each, uri_template=each.uri_template) for each in result.resource_templates], after


def _row(item: Resource | ResourceTemplate, **more: Any) -> dict[str, Any]:
    row = {"name": item.name, "title": item.title, "description": item.description, "mime_type": item.mime_type}
    return {name: value for name, value in (more | row).items() if value is not None}


async def _result(request: Request, version: str, method: str, params: dict[str, Any]) -> Any:
    raw = whole(await request(method, params))
    if is_oversized(raw):
        return await on_thread(parse_server_result, method, version, raw)
    return parse_server_result(method, version, raw)
