"""What of a tool is indexed, as text by field."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_bridge.downstream.catalog.tools import ToolInfo

FIELDS = ("name", "server", "summary", "description", "parameters", "parameter_descriptions", "values")
"""The fields of a tool: `summary` is its title and its description's beginning, `values` are enumerated ones."""

# How much of a field is indexed, so that one tool neither dominates the index nor takes long.
_CHARS = 10_000
_SUMMARY_CHARS = 200
_PARAMETERS = 500
_DEPTH = 4
_VALUES = 200
_NODES = 2_000


def fields(tool: ToolInfo) -> dict[str, str]:
    """The text of each of a tool's fields (`FIELDS`). Never raises, whatever its schema is."""
    names: list[str] = []
    descriptions: list[str] = []
    values: list[str] = []
    for name, schema in islice(_parameters(tool.input_schema), _PARAMETERS):
        names.append(name)
        description = schema.get("description")
        if isinstance(description, str):
            descriptions.append(description)
        values += _enumerated(schema)
    description = tool.description.strip()[:_CHARS]
    cut = _summary_end(description)
    return {
        "name": tool.name,
        "server": tool.server if tool.server == tool.server_alias else f"{tool.server} {tool.server_alias}",
        "summary": f"{tool.title or ''} {description[:cut]}",
        "description": description[cut:],
        "parameters": " ".join(names)[:_CHARS],
        "parameter_descriptions": " ".join(descriptions)[:_CHARS],
        "values": " ".join(values[:_VALUES])[:_CHARS],
    }


def meaning_text(tool: ToolInfo) -> str:
    """A tool as one short text for an embedding model."""
    texts = fields(tool)
    name = tool.name.replace("_", " ").replace("-", " ")
    parameters = ", ".join(texts["parameters"].replace("_", " ").split()[:20])
    return f"{name}: {texts['summary'].strip()} {texts['description'].strip()[:300]} ({parameters})"[:1000]


def _summary_end(description: str) -> int:
    """Where the first sentence or line of a description ends, at most `_SUMMARY_CHARS` on."""
    ends = [position + 1 for end in (". ", "\n") if (position := description.find(end, 0, _SUMMARY_CHARS)) > 0]
    if ends:
        return min(ends)
    if len(description) <= _SUMMARY_CHARS:
        return len(description)
    return description.rfind(" ", 0, _SUMMARY_CHARS) + 1 or _SUMMARY_CHARS


def _parameters(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The properties of a schema and of the objects in it, outermost first, each with its schema."""
    level: list[Any] = [schema]
    visited = 0
    for _ in range(_DEPTH):
        inner: list[Any] = []
        for node in level:
            visited += 1
            if not isinstance(node, dict) or visited > _NODES:
                continue
            properties = node.get("properties")
            if isinstance(properties, dict):
                for name, value in properties.items():
                    yield str(name), value if isinstance(value, dict) else {}
                inner += properties.values()
            for key in ("items", "additionalProperties"):
                inner.append(node.get(key))
            for key in ("anyOf", "oneOf", "allOf"):
                options = node.get(key)
                inner += options if isinstance(options, list) else ()
            definitions = node.get("$defs")
            inner += definitions.values() if isinstance(definitions, dict) else ()
        level = inner


def _enumerated(schema: dict[str, Any]) -> list[str]:
    """The texts that a parameter may be, of its own schema, its items' and its alternatives'."""
    options = schema.get("anyOf")
    found: list[str] = []
    for node in (schema, schema.get("items"), *(options if isinstance(options, list) else ())[:20]):
        values = node.get("enum") if isinstance(node, dict) else None
        if isinstance(values, list):
            found += [value for value in values[:_VALUES] if isinstance(value, str)]
    return found
