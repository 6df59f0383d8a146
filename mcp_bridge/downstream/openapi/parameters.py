"""Parameters of an operation as arguments of a tool. Runs in the compiler's process."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from mcp_bridge.downstream.configuration.remote_entries import RESERVED_HEADERS, is_header_name
from mcp_bridge.downstream.openapi.compiled_service import ParameterPlan, is_json
from mcp_bridge.downstream.openapi.document_references import Node
from mcp_bridge.downstream.openapi.document_text import DocumentError

if TYPE_CHECKING:
    from mcp_bridge.downstream.openapi.compiled_service import Location, Style
    from mcp_bridge.downstream.openapi.document_parts import Document
    from mcp_bridge.downstream.openapi.schemas import SchemaSet

_MAX_PARAMETERS = 200

_DEFAULT_STYLE: dict[str, Style] = {"path": "simple", "header": "simple", "query": "form", "cookie": "form"}
_STYLES: dict[str, frozenset[str]] = {
    "path": frozenset({"simple", "label", "matrix"}),
    "header": frozenset({"simple"}),
    "query": frozenset({"form", "spaceDelimited", "pipeDelimited", "deepObject"}),
    "cookie": frozenset({"form"}),
}

TEMPLATE = re.compile(r"\{([^{}]*)\}")
"""A parameter's place in a path."""

_CREDENTIAL_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie"})


class Argument(NamedTuple):
    """A parameter as an argument: how it is sent, its schema, and whether it has to be there."""

    plan: ParameterPlan
    schema: Any
    required: bool


def arguments_of(document: Document, path: str, item: Node, operation: Node, schemas: SchemaSet) -> list[Argument]:
    """The parameters of an operation that an agent may set, those of its path among them.

    Args:
        document: The document.
        path: The template.
        item: The path item.
        operation: The operation.
        schemas: Receives the schemas.

    Raises:
        DocumentError: One of them can't be sent as it is described, or only the configuration may set it.
    """
    found: dict[tuple[str, str], Node] = {}
    for holder in (item, operation):
        listed = holder.value.get("parameters", [])
        if not isinstance(listed, list):
            raise DocumentError("has parameters that are no list")
        for each in listed:
            node = document.references.resolved(Node(each, holder.uri))
            if not isinstance(node.value, dict):
                raise DocumentError("has a parameter that is no mapping")
            # An operation's replaces the one of its path.
            found[str(node.value.get("in")), str(node.value.get("name"))] = node
    if len(found) > _MAX_PARAMETERS:
        raise DocumentError(f"has more than {_MAX_PARAMETERS} parameters")
    in_path = set(TEMPLATE.findall(path))
    if unknown := in_path - {name for place, name in found if place == "path"}:
        raise DocumentError(f"has no parameter for {{{min(unknown)}}} of its path")
    kept = [node for (place, name), node in found.items() if place != "path" or name in in_path]
    parameters = [_parameter(document, node) for node in kept]
    names = _argument_names([each for each in parameters if each is not None])
    return [
        _argument(parameter, names[parameter.param_in.value, parameter.name], node, schemas)
        for parameter, node in zip(parameters, kept, strict=True)
        if parameter is not None
    ]


_PARAMETER_FIELDS = frozenset(
    {"name", "in", "description", "required", "deprecated", "style", "explode", "allowReserved", "allowEmptyValue"}
)


def _parameter(document: Document, node: Node) -> Any:
    """A parameter's model; None for one that isn't the agent's to set."""
    if node.value.get("in") == "querystring":
        raise DocumentError("has a parameter that is the whole query, which isn't supported")
    parameter = document.decoded("Parameter", node.value, _PARAMETER_FIELDS)
    name, place = parameter.name, parameter.param_in.value
    if is_credential(document, name, place):
        if parameter.required and place != "path" and not _is_set_elsewhere(document, name, place):
            raise DocumentError(f"needs the {place} parameter {name!r}, which only the configuration may set")
        return None
    if place == "header" and not is_header_name(name):
        raise DocumentError(f"has a parameter {name[:60]!r} that no header may be called")
    if not name or not name.isprintable() or (place == "cookie" and not is_header_name(name)):
        raise DocumentError("has a parameter with an invalid name")
    return parameter


def is_credential(document: Document, name: str, place: str) -> bool:
    """Whether a parameter carries credentials, is set by the configuration, or frames the message."""
    if place == "header":
        lower = name.lower()
        if lower in RESERVED_HEADERS or lower in _CREDENTIAL_HEADERS or lower in document.own_headers:
            return True
    if place == "cookie" and "cookie" in document.own_headers:
        return True
    return any(
        scheme.place == place and (scheme.name.lower() == name.lower() if place == "header" else scheme.name == name)
        for scheme in document.schemes.values()
    )


def _is_set_elsewhere(document: Document, name: str, place: str) -> bool:
    """Whether a parameter that the agent may not set gets its value from the configuration or the bridge itself."""
    lower = name.lower()
    if place != "header":
        return True
    ours = {"accept", "authorization", "content-type", "content-length", "host", "cookie"}
    return (
        lower in ours
        or lower in document.own_headers
        or any(scheme.place == "header" and scheme.name.lower() == lower for scheme in document.schemes.values())
    )


def _argument_names(parameters: list[Any]) -> dict[tuple[str, str], str]:
    """The arguments' names: the parameter's; for one of a name that another place has, too, with its place."""
    names: dict[tuple[str, str], str] = {}
    order = sorted(parameters, key=lambda each: ("path", "query", "header", "cookie").index(each.param_in.value))
    for parameter in order:
        place, name = parameter.param_in.value, parameter.name
        wanted, number = name, 1
        while wanted in names.values():
            wanted = f"{name}_in_{place}" if number == 1 else f"{name}_in_{place}_{number}"
            number += 1
        names[place, name] = wanted
    return names


def _argument(parameter: Any, argument: str, node: Node, schemas: SchemaSet) -> Argument:
    place: Location = parameter.param_in.value
    content = node.value.get("content")
    as_json = False
    schema: Any = {}
    if isinstance(content, dict) and content:
        media, described = next(iter(content.items()))
        if not is_json(str(media)) and not str(media).startswith("text/"):
            raise DocumentError(f"has a parameter {parameter.name!r} of type {media!r}, which isn't supported")
        as_json = is_json(str(media))
        schema = described.get("schema", {}) if isinstance(described, dict) else {}
    elif "schema" in node.value:
        schema = node.value["schema"]
    converted = schemas.add(Node(schema, node.uri))
    if parameter.description and isinstance(converted, dict):
        converted = converted | {"description": str(parameter.description)[:600]}
    style = parameter.style or _DEFAULT_STYLE[place]
    if style not in _STYLES[place]:
        raise DocumentError(f"has a {place} parameter {parameter.name!r} of the style {style!r}, which it can't have")
    explode = parameter.explode if parameter.explode is not None else style == "form"
    plan = ParameterPlan(
        argument=argument,
        name=parameter.name,
        location=place,
        style=style,
        explode=explode,
        allow_reserved=bool(parameter.allowReserved) and place == "query",
        as_json=as_json,
    )
    return Argument(plan, converted, required=place == "path" or bool(parameter.required))
