"""Descriptions of a tool at four levels, as text: one line, a signature, the full documentation, its schemas."""

from __future__ import annotations

import re
import sys
import textwrap
from typing import TYPE_CHECKING, Any, Literal

from mcp_bridge.downstream.catalog.nested_documentation import NestedDocumentation
from mcp_bridge.downstream.catalog.schema_types import (
    BRIEF,
    WHOLE,
    WHOLE_CHARS,
    alternatives,
    needed_text,
    object_shape,
)
from mcp_bridge.downstream.catalog.signatures import Param, documentation, one_line, result_schema, signature
from mcp_bridge.escaping import escape_controls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_bridge.downstream.catalog.tools import ToolInfo

# Limits on renderings, in characters or parameters: models pay for every token.
_LINE_PARAMS = 8
_LINE_SUMMARY = 65
_DOC = 140
_PARAM_DOC = 80
# The parameters of a signature together: required ones are shown in any case.
_PARAMS = 250
# A rendering. Where a signature takes most of it, descriptions are shorter: of the tool so much is shown in any case,
# and of a required parameter while there is room for it.
_RENDERED = 460
_LEAST_DOC = 80
_LEAST_PARAM_DOC = 40
_DEFAULT = 40
_RENDERED_PARAMS = 40
_CALL = 1_500

# How many of the parameters that are left out in part are named.
_CUT_NAMED = 10

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|\n")


def line(tool: ToolInfo) -> str:
    """`git.git_status(repo_path) — Shows the working tree status`; optional parameters appear as `name=`."""
    return _line(tool)[0]


def search_result_line(tool: ToolInfo) -> str:
    """As `line`, with what a call needs alone: `git.git_log(repo_path, …) — Shows the commit logs`."""
    params = signature(tool).params
    texts = [param.py_name for param in params if param.required][:_LINE_PARAMS]
    if len(params) > len(texts):
        texts.append("…")
    summary = _summary(tool)
    head = f"{tool.server_alias}.{tool.alias}({', '.join(texts)})"
    return f"{head} — {summary}" if summary else head


def _line(tool: ToolInfo) -> tuple[str, bool]:
    """The line, and whether anything was cut."""
    params = signature(tool).params
    texts = [_short(param) for param in params[:_LINE_PARAMS]]
    if len(params) > _LINE_PARAMS:
        texts.append("…")
    summary = _summary(tool)
    head = f"{tool.server_alias}.{tool.alias}({', '.join(texts)})"
    text = f"{head} — {summary}" if summary else head
    return text, len(params) > _LINE_PARAMS or summary.endswith("…") or any(map(_elides_default, params[:_LINE_PARAMS]))


def render(tool: ToolInfo) -> str:
    """The signature as text for a model: one line of code, the description, and the documented parameters.

    Cut text ends in `…`, and the last line says how to read the rest.
    """
    text, is_cut = _rendered(tool)
    return f"{text}\n  … all of it: {_detail_hint(tool, 'full')}" if is_cut else text


def render_all(tools: Sequence[ToolInfo], detail: Literal["line", "signature", "full"]) -> str:
    """All tools of a server as text; the last line says how to read what was cut."""
    if detail == "full":
        return "\n".join(map(full, tools))
    rows = [_rendered(tool) if detail == "signature" else _line(tool) for tool in tools]
    texts = [text for text, _ in rows]
    if any(is_cut for _, is_cut in rows):
        texts.append(f'… all of a tool: await runtime.describe("{tools[0].server_alias}.TOOL", "full")')
    return "\n".join(texts)


def _rendered(tool: ToolInfo) -> tuple[str, bool]:
    """The text, and whether anything was cut."""
    sig = signature(tool)
    params = sig.params[:_RENDERED_PARAMS]
    shown = [_full(param) for param in params]
    del shown[_fitting(shown, [param.required for param in params], _PARAMS) :]
    params = params[: len(shown)]
    if more := len(sig.params) - len(params) + sig.left_out:
        shown.append(f"… {more} more")
    lines = [f"await {tool.server_alias}.{tool.alias}({', '.join(shown)}) -> {sig.returns}"]
    room = _RENDERED - len(lines[0])
    doc = one_line(sig.doc, max(_LEAST_DOC, min(_DOC, room)))
    if doc:
        lines.append(f"  {doc}")
    room -= len(doc)
    lines += _needs(tool, params)
    is_cut = bool(more) or doc.endswith("…") or sig.is_cut or _says_more(tool, params)
    is_cut = is_cut or any(param.is_cut or _elides_default(param) for param in params)
    for param in params:
        text = _param_doc(param, _PARAM_DOC)
        if len(text) > room:
            text = _param_doc(param, _LEAST_PARAM_DOC) if param.required else ""
            text = text if len(text) <= room else ""
        room -= len(text)
        if text:
            lines.append(text)
        is_cut = is_cut or text != _param_doc(param, sys.maxsize)
    return "\n".join(lines), is_cut


def _param_doc(param: Param, most: int) -> str:
    about = one_line(param.description, most)
    return f"  {param.py_name}: {about}" if about else ""


def _fitting(texts: Sequence[str], needed: Sequence[bool], most: int) -> int:
    """How many of the texts are shown: those that are needed, which are first, and others while there is room."""
    shown = size = 0
    for text, is_needed in zip(texts, needed, strict=True):
        size += len(text)
        if not is_needed and size > most:
            break
        shown += 1
    return shown


def _needs(tool: ToolInfo, params: Sequence[Param]) -> list[str]:
    """What a call needs in one of several ways, a line each."""
    names = {param.json_name: param.py_name for param in params}
    texts = [
        needed_text(keyword, [[names.get(name, name) for name in way] for way in ways])
        for keyword, ways in alternatives(tool.input_schema, tool.input_schema)
    ]
    return [f"  {text[0].upper()}{text[1:]}." for text in texts]


def _says_more(tool: ToolInfo, params: Sequence[Param]) -> bool:
    """Whether the types of parameters have descriptions within them."""
    within = NestedDocumentation(tool.input_schema, _PARAM_DOC)
    properties = object_shape(tool.input_schema).properties
    for param in params:
        within.add(properties.get(param.json_name), "")
        if within.texts or within.is_cut:
            return True
    return False


def full(tool: ToolInfo) -> str:
    """A server's whole documentation of a tool: signature, description, parameters, defaults, and all within types.

    Of a type it has at most WHOLE_CHARS characters, and as many of the descriptions within types; a type that contains
    itself isn't repeated. The last line says where anything is left out.
    """
    sig = signature(tool, WHOLE)
    texts = [_full(param, sys.maxsize) for param in sig.params]
    if sig.left_out:
        texts.append(f"… {sig.left_out} more")
    lines = [f"await {tool.server_alias}.{tool.alias}({', '.join(texts)}) -> {sig.returns}"]
    if sig.doc:
        lines.append(textwrap.indent(sig.doc, "  "))
    lines += _needs(tool, sig.params)
    shape = object_shape(tool.input_schema)
    cut = [param.py_name for param in sig.params if param.is_cut]
    within = NestedDocumentation(tool.input_schema, WHOLE_CHARS)
    for param in sig.params:
        schema = shape.others if param.kind == "var_keyword" else shape.properties.get(param.json_name)
        about = documentation(tool.input_schema, schema).get("description")
        if isinstance(about, str) and about.strip():
            lines.append(_hanging("  ", param.py_name, about))
        within.add(schema, param.py_name)
        lines += [_hanging("    ", place, text) for place, text in within.texts]
        cut += [param.py_name] if within.is_cut else []
    result = NestedDocumentation(tool.output_schema, within.chars)
    result.add(result_schema(tool), "result")
    lines += [_hanging("  ", place, text) for place, text in result.texts]
    cut += ["the result"] if sig.is_cut or result.is_cut else []
    lines.append(f"  {_left_out(cut)}As JSON Schema: {_detail_hint(tool, 'schema')}")
    return "\n".join(lines)


def _hanging(indent: str, name: str, text: str) -> str:
    return f"{indent}{name}: {textwrap.indent(escape_controls(text.strip()), f'{indent}  ').strip()}"


def _left_out(names: Sequence[str]) -> str:
    if not names:
        return ""
    names = list(dict.fromkeys(names))
    shown = ", ".join([*names[:_CUT_NAMED], *([f"{len(names) - _CUT_NAMED} more"] if len(names) > _CUT_NAMED else [])])
    return f"… left out: parts of {shown} (more than {WHOLE_CHARS:,} characters, or a type within itself). "


def call_hint(tool: ToolInfo) -> str:
    """One short sentence that shows how to call a tool, for an error message."""
    sig = signature(tool)
    texts: list[str] = []
    size = 0
    for param in sig.params:
        text = _full(param)
        size += len(text)
        if size > _CALL:
            texts.append(f"… {len(sig.params) - len(texts)} more: {_detail_hint(tool, 'full')}")
            break
        texts.append(text)
    renamed = [param for param in sig.params[: len(texts)] if param.json_name not in {"", param.py_name}]
    names = ", ".join(f"{param.json_name!r} for {param.py_name}" for param in renamed)[:_CALL]
    also = f" In a dict of arguments: {names}." if names else ""
    return f"It is {tool.server_alias}.{tool.alias}({', '.join(texts)}) -> {sig.returns}.{also}"


def _detail_hint(tool: ToolInfo, detail: str) -> str:
    return f'await runtime.describe("{tool.server_alias}.{tool.alias}", "{detail}")'


def proxy_row(tool: ToolInfo, *, is_whole: bool = False) -> dict[str, Any]:
    """The data from which the guest builds a proxy function, as a JSON object.

    Args:
        tool: The tool.
        is_whole: Whether its types are as `full` has them.

    Returns:
        `name`, `alias`, `params` (each `name`, `json`, `type`, `required`, and `default` if the schema has one),
        `returns`, `doc` (description and parameters), and `extra`: whether additional arguments may be sent; where
        expressions tell their names, `beginnings` has how these begin.
    """
    sig = signature(tool, WHOLE if is_whole else BRIEF)
    params = []
    for param in sig.params:
        if param.kind == "var_keyword":
            continue
        row = {"name": param.py_name, "json": param.json_name, "type": param.annotation, "required": param.required}
        params.append(row | ({"default": param.default} if param.has_default else {}))
    about = [line.strip() for line in _needs(tool, sig.params)]
    about += [f"{param.py_name}: {param.description}" for param in sig.params if param.description]
    row = {
        "name": tool.name,
        "alias": tool.alias,
        "params": params,
        "returns": sig.returns,
        "doc": "\n\n".join(part for part in (sig.doc, "\n".join(about)) if part),
        "extra": any(param.kind == "var_keyword" for param in sig.params),
    }
    return row | ({"beginnings": sig.beginnings} if sig.beginnings else {})


def call_row(tool: ToolInfo, *, is_whole: bool = False) -> dict[str, Any]:
    """As `proxy_row`, with what a call looks like alone."""
    return {key: value for key, value in proxy_row(tool, is_whole=is_whole).items() if key != "doc"}


def schemas(tool: ToolInfo) -> dict[str, Any]:
    """`{"input": …, "output": …}` as the server sent them; output is None if there is none."""
    return {"input": tool.input_schema, "output": tool.output_schema}


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


def _elides_default(param: Param) -> bool:
    """Whether a default is too long to show."""
    return param.has_default and not param.required and _default(param) != _default(param, sys.maxsize)


def _summary(tool: ToolInfo) -> str:
    text = tool.description.strip() or (tool.title or "")
    first = _SENTENCE_END.split(text, maxsplit=1)[0] if text else ""
    return one_line(first, _LINE_SUMMARY).rstrip(".")
