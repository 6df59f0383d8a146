"""YAML for program files: what JSON has, each name once, and no more of it than its text could hold.

PyYAML's safe loaders call nothing, but nesting of some ten thousand brackets ends the process in libyaml's composer,
aliases of aliases stand for more than any memory holds, of a key that is there twice the first is dropped, what a model
may answer, `[yes, no]`, is two booleans, and the postcode 01234 is 668.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from mcp_bridge.escaping import escape_controls, escape_line
from mcp_bridge.kernel.language.program_parser import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from yaml.nodes import Node

MAX_DEPTH = 64
"""Nesting of lists and mappings, aliases included; values may have less."""

_LINE_CHARS = 110
"""After how many characters a line is broken where it can be."""

_TAG = "tag:yaml.org,2002:"
_BOOLEAN, _INTEGER, _FLOAT, _DATE = (f"{_TAG}{name}" for name in ("bool", "int", "float", "timestamp"))

_WORDS = re.compile("(?:true|True|TRUE|false|False|FALSE)$")
_WHOLE = re.compile("-?(?:0|[1-9][0-9]*)$")
# Infinity and what is no number are read as such, and refused later, like any other value that JSON hasn't.
_ANY = re.compile(r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$")
_OF_A_NUMBER = list("-+.0123456789")


def _loader() -> Any:
    """A safe loader to which a number is written as in JSON, and `yes`, `no`, `on`, `off` and dates are text.

    So it is in YAML 1.2 (section 10.2). What is written otherwise is text: `01234`, `1_000`, `12:30:00`, `0x1F`.
    """
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers = {
        first: [(tag, regex) for tag, regex in known if tag not in {_BOOLEAN, _INTEGER, _FLOAT, _DATE}]
        for first, known in base.yaml_implicit_resolvers.items()
    }
    loader: Any = type("Loader", (base,), {"yaml_implicit_resolvers": resolvers})
    loader.add_implicit_resolver(_BOOLEAN, _WORDS, list("tTfF"))
    loader.add_implicit_resolver(_INTEGER, _WHOLE, _OF_A_NUMBER)
    loader.add_implicit_resolver(_FLOAT, _ANY, _OF_A_NUMBER)
    return loader


_Loader = _loader()


class _Dumper(yaml.SafeDumper):
    """Quotes what either version of YAML takes for something else than text."""


_Dumper.add_implicit_resolver(_FLOAT, _ANY, _OF_A_NUMBER)


class _Extent(NamedTuple):
    """What a node stands for: characters and values together, and levels."""

    size: int
    height: int


def load(text: str) -> Any:
    """The one document in a text; None for an empty one.

    Raises:
        ValueError: It is none, nests deeper than `MAX_DEPTH`, has a name twice, or would be larger than a program may
            be once its aliases are written out. The message has the line.
    """
    try:
        _check_depth(text)
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _extent(node, {})
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as exc:
        raise ValueError(f"not YAML: {_message(exc, text)}") from None


def _message(error: yaml.YAMLError, text: str) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error).replace('in "<unicode string>", ', "at ")
    mark = error.problem_mark
    line = (text.split("\n")[mark.line : mark.line + 1] or [""])[0]
    begun = error.context_mark
    within = f", {error.context} of line {begun.line + 1}" if begun and begun.line < mark.line else ""
    tab = "; YAML is indented with spaces, not with tabs" if line[: mark.column + 1].endswith("\t") else ""
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}{within}{tab}"


def _check_depth(text: str) -> None:
    """Before anything is composed, which recurses."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _fault(event, f"nested deeper than {MAX_DEPTH} levels")


def _extent(node: Node, known: dict[int, _Extent | None]) -> _Extent:
    """What a node stands for. An anchor comes before its aliases, so this recurses no deeper than the text nests."""
    if id(node) in known:
        found = known[id(node)]
        if found is None:
            raise _fault(node, "an alias stands inside of what it stands for")
        return found
    known[id(node)] = None
    if isinstance(node, yaml.ScalarNode):
        size, height = len(node.value) + 1, 0
    else:
        children = list(node.value)
        if isinstance(node, yaml.MappingNode):
            _check_names(node)
            children = [part for pair in children for part in pair]
        extents = [_extent(child, known) for child in children]
        size = 1 + sum(extent.size for extent in extents)
        height = 1 + max((extent.height for extent in extents), default=0)
    if size > MAX_BYTES:
        raise _fault(node, f"with its aliases written out it has more than {MAX_BYTES} characters")
    if height > MAX_DEPTH:
        raise _fault(node, f"nested deeper than {MAX_DEPTH} levels with its aliases written out")
    known[id(node)] = extent = _Extent(size, height)
    return extent


def _check_names(node: yaml.MappingNode) -> None:
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            name = (key.tag, key.value)
            if name in seen:
                raise _fault(key, f"{key.value[:60]!r} is there twice")
            seen.add(name)


def _fault(at: Any, message: str) -> ValueError:
    return ValueError(f"line {at.start_mark.line + 1}: {message}")


def dump(data: Any, comments: Sequence[str] = ()) -> str:
    """A text of which `load` makes this value: readable, with small lists and mappings on a line.

    Args:
        data: Normal JSON.
        comments: Lines for people, first.
    """
    text = _dumped(data, allow_unicode=True)
    if escape_controls(text) != text or load(text) != data:
        text = _dumped(data, allow_unicode=False)
    return "".join(f"# {escape_line(comment)}\n" for comment in comments) + text


def _dumped(data: Any, *, allow_unicode: bool) -> str:
    written: str = yaml.dump(
        data, Dumper=_Dumper, default_flow_style=None, sort_keys=False, width=_LINE_CHARS, allow_unicode=allow_unicode
    )
    return written
