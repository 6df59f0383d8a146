"""A tool as listed by its server, decoded once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mcp_bridge.downstream.catalog.aliases import assign
from mcp_bridge.large_json import is_same_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInfo:  # noqa: PLW1641 - a schema is a dictionary, which has no hash
    """A tool as its server describes it, with its names in Python.

    Attributes:
        server: The name of its server in the configuration.
        server_alias: The server's Python identifier.
        name: The tool's name on the wire.
        alias: Its Python identifier, unique within the server.
        title: A title for people, or None.
        description: A description for models; may be empty.
        input_schema: The JSON Schema of the arguments, from a half-trusted server: any part may be malformed.
        output_schema: The JSON Schema of the structured result, or None.
        annotations: Hints by their wire names (`readOnlyHint`, `idempotentHint`…), which are unverified claims.
    """

    server: str
    server_alias: str
    name: str
    alias: str
    title: str | None = None
    description: str = ""
    input_schema: dict[str, Any] = field(default_factory=dict)
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        # A default or a constant that was 1 and is `true` now is another one.
        return self is other or (
            isinstance(other, ToolInfo)
            and type(self) is type(other)
            and all(is_same_json(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))
        )

    def record(self) -> dict[str, Any]:
        """The tool as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Listing:
    """A server's tools in the server's order, and notices about what was left out."""

    tools: tuple[ToolInfo, ...]
    notices: tuple[str, ...] = ()


def listing_from_wire(server: str, server_alias: str, raw_tools: list[dict[str, Any]]) -> Listing:
    """Decode tools from wire format. Malformed tools are left out and malformed members emptied; nothing is raised.

    Of a repeated name only the first tool is kept: the server can only run one of them.
    """
    seen: dict[str, dict[str, Any]] = {}
    repeated: list[str] = []
    nameless = 0
    for raw in raw_tools:
        name = raw.get("name") if isinstance(raw, dict) else None
        if not isinstance(name, str) or not name:
            nameless += 1
        elif name in seen:
            repeated.append(name)
        else:
            seen[name] = raw
    aliases = assign(seen)
    notices = []
    if repeated:
        notices.append(f"server {server!r} lists more than one tool of the name {', '.join(sorted(set(repeated)))}")
    if nameless:
        notices.append(f"server {server!r} lists tools without a name, which are left out: {nameless}")
    return Listing(
        tuple(_tool(server, server_alias, name, aliases[name], raw) for name, raw in seen.items()),
        tuple(notices),
    )


def _tool(server: str, server_alias: str, name: str, alias: str, raw: dict[str, Any]) -> ToolInfo:
    title, description = raw.get("title"), raw.get("description")
    schema, output, annotations = raw.get("inputSchema"), raw.get("outputSchema"), raw.get("annotations")
    if not isinstance(title, str) and isinstance(annotations, dict):
        title = annotations.get("title")
    return ToolInfo(
        server=server,
        server_alias=server_alias,
        name=name,
        alias=alias,
        title=title if isinstance(title, str) else None,
        description=description if isinstance(description, str) else "",
        input_schema=schema if isinstance(schema, dict) else {},
        output_schema=output if isinstance(output, dict) else None,
        annotations=annotations if isinstance(annotations, dict) else {},
    )
