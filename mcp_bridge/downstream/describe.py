"""A tool described at three levels: one line, a Python signature, its schemas."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from mcp_bridge.downstream.aliases import assign
from mcp_bridge.downstream.results import is_wrapped
from mcp_bridge.downstream.schema_types import TypeRenderer, object_shape

if TYPE_CHECKING:
    from mcp_bridge.downstream.tools import ToolInfo

# Renderings are read by models that pay for every token.
_LINE_PARAMS = 8
_LINE_SUMMARY = 90
_DOC = 400
_PARAM_DOC = 100
_DEFAULT = 40
_RENDERED_PARAMS = 40

# More parameters than these are left out of a signature; they can still be sent through `.raw`.
_MAX_PARAMS = 200

# A value no schema describes: text, or a list of blocks when there is anything but text, or nothing.
_UNSTRUCTURED = "str | list | None"

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|\n")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter.

    Attributes:
        py_name: As written in Python.
        json_name: As sent to the server; differs where that is no identifier, or a keyword.
        annotation: Type, as text.
        required: Whether a call without it is refused.
        default: The schema's default, where `has_default`; it is shown, not sent: omitted arguments are not sent.
        has_default: Whether the schema gives one. If not, an optional parameter shows `...`.
        description: For people and models.
        kind: `positional_or_keyword`, or `var_keyword` for what the schema allows besides.
    """

    py_name: str
    json_name: str
    annotation: str
    required: bool
    default: Any
    has_default: bool
    description: str
    kind: Literal["positional_or_keyword", "var_keyword"] = "positional_or_keyword"


@dataclass(frozen=True, slots=True)
class Signature:
    """A tool as a Python function: required parameters first, each group in the schema's order."""

    params: list[Param]
    returns: str
    doc: str

    def record(self) -> dict[str, Any]:
        """The signature as a JSON object."""
        return asdict(self)


def line(tool: ToolInfo) -> str:
    """`git.git_status(repo_path) — Shows the working tree status`; optional parameters follow as `name=`."""
    params = signature(tool).params
    shown = [_short(param) for param in params[:_LINE_PARAMS]]
    if len(params) > _LINE_PARAMS:
        shown.append("…")
    summary = _summary(tool)
    head = f"{tool.server_alias}.{tool.alias}({', '.join(shown)})"
    return f"{head} — {summary}" if summary else head


def signature(tool: ToolInfo) -> Signature:
    """The tool's signature; never raises, whatever its schemas are."""
    renderer = TypeRenderer(tool.input_schema)
    shape = object_shape(tool.input_schema)
    names = list(shape.properties)[:_MAX_PARAMS]
    python_names = assign(names)
    params = []
    for name in sorted(names, key=lambda name: name not in shape.required):
        schema = shape.properties[name]
        plain = schema if isinstance(schema, dict) else {}
        params.append(
            Param(
                py_name=python_names[name],
                json_name=name,
                annotation=renderer.render(schema),
                required=name in shape.required,
                default=plain.get("default"),
                has_default="default" in plain,
                description=_flat(plain.get("description"), 4 * _PARAM_DOC),
            )
        )
    if shape.extra is not None:
        rest = next(name for name in ("kwargs", "extra_kwargs", "extra_kwargs_") if name not in python_names.values())
        params.append(Param(rest, "", renderer.render(shape.extra), False, None, False, "", "var_keyword"))  # noqa: FBT003
    return Signature(params, _returns(tool), tool.description.strip() or (tool.title or ""))


def render(tool: ToolInfo) -> str:
    """The signature as text for a model: one line of code, the description, and the parameters that are described."""
    sig = signature(tool)
    shown = [_full(param) for param in sig.params[:_RENDERED_PARAMS]]
    if len(sig.params) > _RENDERED_PARAMS:
        shown.append(f"… {len(sig.params) - _RENDERED_PARAMS} more")
    lines = [f"await {tool.server_alias}.{tool.alias}({', '.join(shown)}) -> {sig.returns}"]
    doc = _flat(sig.doc, _DOC)
    if doc:
        lines.append(f"  {doc}")
    for param in sig.params[:_RENDERED_PARAMS]:
        about = _flat(param.description, _PARAM_DOC)
        if about:
            lines.append(f"  {param.py_name}: {about}")
    return "\n".join(lines)


def proxy_row(tool: ToolInfo) -> dict[str, Any]:
    """What a proxy function in the container is made from, as a JSON object.

    Returns:
        `name`, `alias`, `params` (each `name`, `json`, `type`, `required`, and `default` where the schema has one),
        `returns`, `doc` (description and parameters), and `extra`: whether arguments of other names may be sent.
    """
    sig = signature(tool)
    params = []
    for param in sig.params:
        if param.kind == "var_keyword":
            continue
        row = {"name": param.py_name, "json": param.json_name, "type": param.annotation, "required": param.required}
        params.append(row | ({"default": param.default} if param.has_default else {}))
    about = [f"{param.py_name}: {param.description}" for param in sig.params if param.description]
    return {
        "name": tool.name,
        "alias": tool.alias,
        "params": params,
        "returns": sig.returns,
        "doc": "\n\n".join(part for part in (sig.doc, "\n".join(about)) if part),
        "extra": any(param.kind == "var_keyword" for param in sig.params),
    }


def schemas(tool: ToolInfo) -> dict[str, Any]:
    """`{"input": …, "output": …}` as the server gave them; output None where there is none."""
    return {"input": tool.input_schema, "output": tool.output_schema}


def _returns(tool: ToolInfo) -> str:
    output = tool.output_schema
    if output is None:
        return _UNSTRUCTURED
    if is_wrapped(output):
        properties = output.get("properties")
        inner = properties.get("result", True) if isinstance(properties, dict) else True
        return TypeRenderer(output).render(inner)
    return TypeRenderer(output).render(output)


def _short(param: Param) -> str:
    if param.kind == "var_keyword":
        return f"**{param.py_name}"
    return param.py_name if param.required else f"{param.py_name}={_default(param)}"


def _full(param: Param) -> str:
    if param.kind == "var_keyword":
        return f"**{param.py_name}: {param.annotation}"
    head = f"{param.py_name}: {param.annotation}"
    return head if param.required else f"{head} = {_default(param)}"


def _default(param: Param) -> str:
    if not param.has_default:
        return "..."
    try:
        text = repr(param.default)
    except RecursionError:
        return "..."
    return text if len(text) <= _DEFAULT else "..."


def _summary(tool: ToolInfo) -> str:
    text = tool.description.strip() or (tool.title or "")
    first = _SENTENCE_END.split(text, maxsplit=1)[0] if text else ""
    return _flat(first, _LINE_SUMMARY).rstrip(".")


def _flat(text: Any, limit: int) -> str:
    if not isinstance(text, str):
        return ""
    # Cut before folding white space: the text may be megabytes of it.
    flat = _SPACE.sub(" ", text[: 4 * limit]).strip()
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"
