"""One tool as listed by its server, decoded once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from mcp_bridge.downstream.catalog.aliases import assign


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInfo:
    """A tool in the words of its server, with the names it has in Python.

    Attributes:
        server: Name of its server in the configuration.
        server_alias: Python identifier of the server.
        name: The name the server knows it by.
        alias: Python identifier, unique in its server.
        title: For people, or None.
        description: For models; may be empty.
        input_schema: JSON Schema of the arguments. Data from a half-trusted server: read it defensively.
        output_schema: JSON Schema of the structured result, or None.
        annotations: Hints by their names on the wire (`readOnlyHint`, `idempotentHint`…); claims, not facts.
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

    def record(self) -> dict[str, Any]:
        """The tool as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a server listed: its tools in its own order, and what had to be left out."""

    tools: tuple[ToolInfo, ...]
    notices: tuple[str, ...] = ()


def listing_from_wire(server: str, server_alias: str, raw_tools: list[dict[str, Any]]) -> Listing:
    """Decode tools by their names on the wire; what has the wrong shape is left out or emptied, never raised.

    A repeated name keeps its first tool: the server could only ever run one of them.
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
        notices.append(f"server {server!r} lists {nameless} tools without a name")
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
