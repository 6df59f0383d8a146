"""A tool's signature as a Python function: its parameters with names, types and defaults, made of its schemas."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from mcp_bridge.downstream.catalog.aliases import assign
from mcp_bridge.downstream.catalog.schema_types import BRIEF, TypeRenderer, object_shape, resolve
from mcp_bridge.downstream.catalog.tool_results import is_wrapped
from mcp_bridge.escaping import escape_controls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.downstream.catalog.schema_types import Bounds
    from mcp_bridge.downstream.catalog.tools import ToolInfo

# What is kept of a parameter's description, for proxies.
_PARAM_DESCRIPTION = 400

# How many references are followed to find a default.
_HOPS = 8

# Further parameters are left out of the signature; `.raw` can still send them.
_MAX_PARAMS = 200

# The type of a result without a schema: text, a list of blocks if there is anything but text, or nothing.
_UNSTRUCTURED = "str | list | None"

_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter.

    Attributes:
        py_name: Name in Python.
        json_name: Name on the wire; differs if that isn't a Python identifier or is a keyword.
        annotation: Type, as text.
        required: Whether a call without it is refused. A parameter that the schema requires may be omitted if it has a
            default: the host then sends the default.
        default: The schema's default if `has_default`. It is shown, and sent only for required parameters.
        has_default: Whether the schema has a default. If not, an optional parameter shows `...`.
        description: For people and models.
        kind: `positional_or_keyword`, or `var_keyword` for additional names that the schema allows.
        is_cut: Whether `…` stands for a part of the annotation.
    """

    py_name: str
    json_name: str
    annotation: str
    required: bool
    default: Any
    has_default: bool
    description: str
    kind: Literal["positional_or_keyword", "var_keyword"] = "positional_or_keyword"
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """A tool as a Python function.

    Required parameters come first, then those that are required and have a default, then optional ones, each group in
    the schema's order.

    Attributes:
        params: The parameters.
        returns: The type of the result, as text.
        doc: The tool's description.
        left_out: How many further parameters the schema has.
        is_cut: Whether `…` stands for a part of the result's type.
        beginnings: How the names of additional arguments begin, in one way or another; empty if any name may be sent.
    """

    params: list[Param]
    returns: str
    doc: str
    left_out: int = 0
    is_cut: bool = False
    beginnings: Sequence[str] = ()

    def record(self) -> dict[str, Any]:
        """The signature as a JSON object."""
        return asdict(self)


def signature(tool: ToolInfo, bounds: Sequence[Bounds] = BRIEF) -> Signature:
    """The tool's signature; never raises, whatever its schemas are.

    Args:
        tool: The tool.
        bounds: Bounds on the types in it.
    """
    renderer = TypeRenderer(tool.input_schema, bounds)
    shape = object_shape(tool.input_schema)
    names = list(shape.properties)[:_MAX_PARAMS]
    python_names = assign(names)
    params = []
    documented = {name: documentation(tool.input_schema, shape.properties[name]) for name in names}
    # A null default is not sent.
    needed = {name for name in names if name in shape.required and documented[name].get("default") is None}
    for name in sorted(names, key=lambda name: (name not in needed, name not in shape.required)):
        schema = shape.properties[name]
        params.append(
            Param(
                py_name=python_names[name],
                json_name=name,
                annotation=renderer.render(schema),
                required=name in needed,
                default=documented[name].get("default"),
                has_default="default" in documented[name],
                description=one_line(documented[name].get("description"), _PARAM_DESCRIPTION),
                is_cut=renderer.is_cut,
            )
        )
    if shape.others is not None:
        rest = next(name for name in ("kwargs", "extra_kwargs", "extra_kwargs_") if name not in python_names.values())
        annotation = renderer.render(shape.others)
        params.append(Param(rest, "", annotation, False, None, False, "", "var_keyword", renderer.is_cut))  # noqa: FBT003
    returns, is_cut = _returns(tool, bounds)
    doc = escape_controls(tool.description.strip() or (tool.title or ""))
    return Signature(params, returns, doc, len(shape.properties) - len(names), is_cut, shape.beginnings)


def documentation(root: dict[str, Any], schema: Any) -> dict[str, Any]:
    """The default and description of a parameter, its own or those of the schema that it refers to."""
    keywords: dict[str, Any] = {}
    for _ in range(_HOPS):
        if not isinstance(schema, dict):
            break
        for name in {"default", "description"} & schema.keys():
            keywords.setdefault(name, schema[name])
        reference = schema.get("$ref")
        schema = resolve(root, reference) if isinstance(reference, str) else None
    return keywords


def result_schema(tool: ToolInfo) -> Any:
    """The schema of what a call of the tool returns, or None if it isn't known."""
    output = tool.output_schema
    if output is not None and is_wrapped(output):
        properties = output.get("properties")
        return properties.get("result", True) if isinstance(properties, dict) else True
    return output


def _returns(tool: ToolInfo, bounds: Sequence[Bounds]) -> tuple[str, bool]:
    """The type of the result, and whether it is cut."""
    if tool.output_schema is None:
        return _UNSTRUCTURED, False
    renderer = TypeRenderer(tool.output_schema, bounds)
    return renderer.render(result_schema(tool)), renderer.is_cut


def one_line(text: Any, limit: int) -> str:
    """A text without line breaks, cut to so many characters, controls escaped; empty if it is none."""
    if not isinstance(text, str):
        return ""
    # Cut before white space is folded: the text may contain megabytes of it.
    flat = escape_controls(_SPACE.sub(" ", text[: 4 * limit]).strip())
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"
