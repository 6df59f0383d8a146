"""A tool described at four levels: one line, a Python signature, all that its server says of it, its schemas."""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from mcp_bridge.downstream.catalog.aliases import assign
from mcp_bridge.downstream.catalog.results import is_wrapped
from mcp_bridge.downstream.catalog.schema_types import TypeRenderer, object_shape, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.downstream.catalog.tools import ToolInfo

# Renderings are read by models that pay for every token.
_LINE_PARAMS = 8
_LINE_SUMMARY = 90
_DOC = 400
_PARAM_DOC = 100
_DEFAULT = 40
_RENDERED_PARAMS = 40
_CALL = 1_500

# References that are followed for a default.
_HOPS = 8

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
        required: Whether a call without it is refused. One that the schema requires and has a default for may be left
            out: the host sends the default then.
        default: The schema's default, where `has_default`; else it is shown and not sent.
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
    """A tool as a Python function: required parameters first, then those with a default that the schema requires.

    Each group is in the schema's order.
    """

    params: list[Param]
    returns: str
    doc: str

    def record(self) -> dict[str, Any]:
        """The signature as a JSON object."""
        return asdict(self)


def line(tool: ToolInfo) -> str:
    """`git.git_status(repo_path) — Shows the working tree status`; optional parameters follow as `name=`."""
    return _line(tool)[0]


def _line(tool: ToolInfo) -> tuple[str, bool]:
    """The line, and whether something is cut in it."""
    params = signature(tool).params
    shown = [_short(param) for param in params[:_LINE_PARAMS]]
    if len(params) > _LINE_PARAMS:
        shown.append("…")
    summary = _summary(tool)
    head = f"{tool.server_alias}.{tool.alias}({', '.join(shown)})"
    text = f"{head} — {summary}" if summary else head
    return text, len(params) > _LINE_PARAMS or summary.endswith("…") or any(map(_leaves_out, params[:_LINE_PARAMS]))


def signature(tool: ToolInfo) -> Signature:
    """The tool's signature; never raises, whatever its schemas are."""
    renderer = TypeRenderer(tool.input_schema)
    shape = object_shape(tool.input_schema)
    names = list(shape.properties)[:_MAX_PARAMS]
    python_names = assign(names)
    params = []
    given = {name: _given(tool.input_schema, shape.properties[name]) for name in names}
    # A default of null is none that is sent.
    needed = {name for name in names if name in shape.required and given[name].get("default") is None}
    for name in sorted(names, key=lambda name: (name not in needed, name not in shape.required)):
        schema = shape.properties[name]
        plain = schema if isinstance(schema, dict) else {}
        params.append(
            Param(
                py_name=python_names[name],
                json_name=name,
                annotation=renderer.render(schema),
                required=name in needed,
                default=given[name].get("default"),
                has_default="default" in given[name],
                description=_flat(plain.get("description"), 4 * _PARAM_DOC),
            )
        )
    if shape.extra is not None:
        rest = next(name for name in ("kwargs", "extra_kwargs", "extra_kwargs_") if name not in python_names.values())
        params.append(Param(rest, "", renderer.render(shape.extra), False, None, False, "", "var_keyword"))  # noqa: FBT003
    return Signature(params, _returns(tool), tool.description.strip() or (tool.title or ""))


def render(tool: ToolInfo) -> str:
    """The signature as text for a model: one line of code, the description, and the parameters that are described.

    What is cut ends in `…`, and the last line says how all of it is read.
    """
    text, is_cut = _rendered(tool)
    return f"{text}\n  … all of it: {_way(tool, 'full')}" if is_cut else text


def render_all(tools: Sequence[ToolInfo], detail: Literal["line", "signature", "full"]) -> str:
    """All tools of a server as text; the last line says how what is cut is read."""
    if detail == "full":
        return "\n".join(map(full, tools))
    rows = [_rendered(tool) if detail == "signature" else _line(tool) for tool in tools]
    texts = [text for text, _ in rows]
    if any(is_cut for _, is_cut in rows):
        texts.append(f'… all of a tool: await runtime.describe("{tools[0].server_alias}.TOOL", "full")')
    return "\n".join(texts)


def _rendered(tool: ToolInfo) -> tuple[str, bool]:
    """The text, and whether something is cut in it."""
    sig = signature(tool)
    params = sig.params[:_RENDERED_PARAMS]
    shown = [_full(param) for param in params]
    if len(sig.params) > _RENDERED_PARAMS:
        shown.append(f"… {len(sig.params) - _RENDERED_PARAMS} more")
    lines = [f"await {tool.server_alias}.{tool.alias}({', '.join(shown)}) -> {sig.returns}"]
    doc = _flat(sig.doc, _DOC)
    if doc:
        lines.append(f"  {doc}")
    abouts = [(param, _flat(param.description, _PARAM_DOC)) for param in params]
    lines += [f"  {param.py_name}: {about}" for param, about in abouts if about]
    texts = [doc, *(about for _, about in abouts)]
    is_cut = len(params) < len(sig.params) or any(text.endswith("…") for text in texts)
    return "\n".join(lines), is_cut or any(map(_leaves_out, params))


def full(tool: ToolInfo) -> str:
    """All that a server says of a tool, uncut: the signature, the description, each parameter's, and its default."""
    sig = signature(tool)
    shown = [_full(param, sys.maxsize) for param in sig.params]
    lines = [f"await {tool.server_alias}.{tool.alias}({', '.join(shown)}) -> {sig.returns}"]
    if sig.doc:
        lines.append(textwrap.indent(sig.doc, "  "))
    shape = object_shape(tool.input_schema)
    for param in sig.params:
        about = _given(tool.input_schema, shape.properties.get(param.json_name)).get("description")
        if isinstance(about, str) and about.strip():
            lines.append(f"  {param.py_name}: {textwrap.indent(about.strip(), '    ').strip()}")
    lines.append(f"  As JSON Schema: {_way(tool, 'schema')}")
    return "\n".join(lines)


def called_as(tool: ToolInfo) -> str:
    """One sentence on how a tool is called, for whoever has called it otherwise; never long."""
    sig = signature(tool)
    shown: list[str] = []
    size = 0
    for param in sig.params:
        text = _full(param)
        size += len(text)
        if size > _CALL:
            shown.append(f"… {len(sig.params) - len(shown)} more: {_way(tool, 'full')}")
            break
        shown.append(text)
    renamed = [param for param in sig.params[: len(shown)] if param.json_name not in {"", param.py_name}]
    names = ", ".join(f"{param.json_name!r} for {param.py_name}" for param in renamed)[:_CALL]
    also = f" In a dict of arguments: {names}." if names else ""
    return f"It is {tool.server_alias}.{tool.alias}({', '.join(shown)}) -> {sig.returns}.{also}"


def _way(tool: ToolInfo, detail: str) -> str:
    return f'await runtime.describe("{tool.server_alias}.{tool.alias}", "{detail}")'


def _given(root: dict[str, Any], schema: Any) -> dict[str, Any]:
    """The default and the description of a parameter, its own or those of what it refers to."""
    found: dict[str, Any] = {}
    for _ in range(_HOPS):
        if not isinstance(schema, dict):
            break
        for name in {"default", "description"} & schema.keys():
            found.setdefault(name, schema[name])
        reference = schema.get("$ref")
        schema = resolve(root, reference) if isinstance(reference, str) else None
    return found


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


def _full(param: Param, most: int = _DEFAULT) -> str:
    if param.kind == "var_keyword":
        return f"**{param.py_name}: {param.annotation}"
    head = f"{param.py_name}: {param.annotation}"
    return head if param.required else f"{head} = {_default(param, most)}"


def _default(param: Param, most: int = _DEFAULT) -> str:
    if not param.has_default:
        return "..."
    try:
        text = repr(param.default)
    except RecursionError:
        return "..."
    return text if len(text) <= most else "..."


def _leaves_out(param: Param) -> bool:
    """Whether a default is too long to be shown."""
    return param.has_default and not param.required and _default(param) != _default(param, sys.maxsize)


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
