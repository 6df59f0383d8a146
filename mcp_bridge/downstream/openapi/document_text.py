"""The text of a document as JSON data. Runs in the compiler's process, whose memory and time are limited.

YAML is read as YAML 1.2 has it (section 10.3.2): `no` is a text, and so is a date. Keys are texts: `200:` is `"200"`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

MAX_DEPTH = 200
"""Levels of nesting; libyaml and the compiler recurse."""
_MAX_DIGITS = 1000
"""Of an integer. Python converts no more than 4,300 of them, in either direction."""


class DocumentError(ValueError):
    """A document can't be used. The message says why, and follows its name."""


_TAG = "tag:yaml.org,2002:"
_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", list("-+.")),
    # Of YAML 1.1, but documents have it.
    ("merge", r"<<", ["<"]),
)
"""What a plain scalar is, and the first letters that it may have: the core schema. Anything else is a text."""


def _loader() -> Any:
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    def flatten_mapping(self: Any, node: Any) -> None:
        base.flatten_mapping(self, node)
        # Keys are texts: a number, `null` or `true` is one as it is written.
        node.value = [(_as_text(key), value) for key, value in node.value]

    loader: Any = type("Loader", (base,), {"yaml_implicit_resolvers": {}, "flatten_mapping": flatten_mapping})
    for kind, expression, first in _SCALARS:
        loader.add_implicit_resolver(_TAG + kind, re.compile(rf"(?:{expression})\Z"), first)
    loader.add_constructor(f"{_TAG}int", _integer)
    for kind in ("binary", "timestamp"):
        # JSON has none of them.
        loader.add_constructor(_TAG + kind, base.construct_yaml_str)
    return loader


def _as_text(key: Any) -> Any:
    is_other = isinstance(key, yaml.ScalarNode) and key.tag.removeprefix(_TAG) in {"int", "float", "bool", "null"}
    return yaml.ScalarNode(f"{_TAG}str", key.value, key.start_mark, key.end_mark) if is_other else key


def _integer(_loader: Any, node: Any) -> int:
    if len(node.value) > _MAX_DIGITS:
        raise ValueError(f"has a number of more than {_MAX_DIGITS} digits")
    return int(node.value, {"0o": 8, "0x": 16}.get(node.value[:2], 10))


_Loader = _loader()


def parse(text: str) -> Any:
    """The data in a text of JSON or YAML. What YAML's aliases stand for is there once, however often they are used.

    Raises:
        DocumentError: It is neither; the message has the line.
    """
    text = text.removeprefix("\ufeff")
    if text.lstrip()[:1] in {"{", "["}:
        try:
            return json.loads(_without_lone_surrogates(text))
        except RecursionError:
            raise DocumentError(f"is nested deeper than {MAX_DEPTH} levels") from None
        except json.JSONDecodeError as error:
            problem = f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        except ValueError as error:
            problem = f"is not JSON: {str(error)[:200]}"
        # Flow style of YAML looks like JSON, too.
        try:
            return _yaml(text)
        except DocumentError:
            raise DocumentError(problem) from None
    return _yaml(text)


_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape of JSON: a pair of surrogates, a lone one, or another."""


def _without_lone_surrogates(text: str) -> str:
    """JSON with replacement characters in their place: what was cut in two has them, and UTF-8 can't carry them."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    return _ESCAPE.sub(lambda match: r"\ufffd" if match["lone"] else match[0], text)


def _yaml(text: str) -> Any:
    try:
        depth = 0
        event: Any
        for event in yaml.parse(text, _Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise DocumentError(f"line {event.start_mark.line + 1}: is nested deeper than {MAX_DEPTH} levels")
        return _with_text_keys(yaml.load(text, _Loader), {})  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise DocumentError(f"is not YAML: line {line}: {error.problem}") from None
    except yaml.YAMLError as error:
        raise DocumentError(f"is not YAML: {str(error)[:200]}") from None
    except DocumentError:
        raise
    except (ValueError, IndexError) as error:
        # Of a number that is too long, or of a tag that its value doesn't fit.
        raise DocumentError(f"is not YAML: {str(error)[:200]}") from None


def _with_text_keys(value: Any, seen: dict[int, Any]) -> Any:
    """The value with texts for keys, changed in place. Visits what an alias stands for once."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if isinstance(node, dict):
            for key in [key for key in node if not isinstance(key, str)]:
                node.setdefault(str(key), node.pop(key))
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return value
