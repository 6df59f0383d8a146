"""The tools that the bridge adds to a server which has resources: one that lists them, and one that reads one.

They are tools of that server in every other respect: rules, approvals, the record and limits apply to them as to its
own. What the protocol says of reading is said as a server's hints are, and believed where these are (`trust_hints`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from mcp_bridge.downstream.catalog.tools import ToolInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Method = Literal["list", "read"]

_NAMES: dict[Method, tuple[str, str]] = {
    "list": ("list_resources", "list_mcp_resources"),
    "read": ("read_resource", "read_mcp_resource"),
}
"""The name of each, and the one that it has where the server's own tools have the first."""

_NO_LETTER = re.compile(r"[\W_]+")

_HINTS = {"readOnlyHint": True, "destructiveHint": False, "idempotentHint": True}

_DESCRIPTIONS: dict[Method, str] = {
    "list": (
        "Lists resources to read, and templates of further URIs. next_cursor is the cursor of the next call, and null"
        " at the end."
    ),
    "read": (
        "Reads a resource by its URI, such as a link in a tool's result. A text stays text; anything else is a list of"
        " blocks."
    ),
}

_TEXT = {"type": "string"}


def _rows(uri: str, *more: str) -> dict[str, Any]:
    properties: dict[str, Any] = dict.fromkeys((uri, "name", "title", "description", "mime_type"), _TEXT)
    properties |= {name: {"type": "integer"} for name in more}
    return {"type": "array", "items": {"type": "object", "properties": properties, "required": [uri, "name"]}}


_INPUT: dict[Method, dict[str, Any]] = {
    "list": {"type": "object", "properties": {"cursor": _TEXT}, "additionalProperties": False},
    "read": {"type": "object", "properties": {"uri": _TEXT}, "required": ["uri"], "additionalProperties": False},
}

_OUTPUT: dict[Method, dict[str, Any] | None] = {
    "list": {
        "type": "object",
        "properties": {
            "resources": _rows("uri", "size"),
            "resource_templates": _rows("uri_template"),
            "next_cursor": {"type": ["string", "null"]},
        },
        "required": ["resources", "resource_templates", "next_cursor"],
    },
    "read": None,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResourceTool(ToolInfo):
    """A tool that the bridge has added to a server.

    A class of its own, and no member of `ToolInfo`: the hash of a server's own tool, which an approved plan has, stays
    what it was in earlier versions.

    Attributes:
        method: What it does with the server's resources.
    """

    method: Method


def free_names(own: Iterable[str]) -> dict[Method, str]:
    """The names of the two tools, neither of which is one that the server's own tools have, or may be called by.

    Args:
        own: The names and aliases of the server's own tools.
    """
    # Scripts find `readResource` by `read_resource`, too.
    taken = {_folded(name) for name in own}
    names: dict[Method, str] = {}
    for method, (first, other) in _NAMES.items():
        name, number = first, 1
        while _folded(name) in taken:
            name = other if number == 1 else f"{other}_{number}"
            number += 1
        names[method] = name
    return names


def resource_tools(server: str, server_alias: str, names: Mapping[Any, Any]) -> tuple[ResourceTool, ...]:
    """The tools of these names, by what they do; anything else among the names is left out."""
    return tuple(
        ResourceTool(
            server=server,
            server_alias=server_alias,
            name=name,
            alias=name,
            description=_DESCRIPTIONS[method],
            input_schema=_INPUT[method],
            output_schema=_OUTPUT[method],
            annotations=_HINTS,
            method=method,
        )
        for method in get_args(Method)
        if isinstance(name := names.get(method), str)
    )


def _folded(name: str) -> str:
    return _NO_LETTER.sub("", name).casefold()
