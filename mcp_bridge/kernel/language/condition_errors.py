"""Why a condition, a map or a wait failed, or a missing value was compared: what references stand for, in words.

These texts are for people. They aren't part of a state, so that they may change without changing its bytes.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from mcp_bridge.kernel.json_parsing import NotJSONError, parsed
from mcp_bridge.kernel.language.conditions import ConditionError, Reference
from mcp_bridge.kernel.language.references import MISSING, Lookup, Template, written_path
from mcp_bridge.kernel.language.value_texts import quoted
from mcp_bridge.kernel.values import canonical

_SHOWN_CHARS = 60
_SHOWN_NAMES = 10

_MAX_NAMES = 50
"""Of a path that is followed."""

_TRIED_CHARS = 10_000
"""Of a text that is parsed to see whether it is JSON."""

Advice: TypeAlias = Callable[[str, tuple[str, ...]], str]
"""From a reference to a text that is JSON to what makes a value of it; empty where nothing does."""


def reason(error: ConditionError, lookup: Lookup, advice: Advice) -> str:
    """A sentence on each reference of the comparison; empty if it had none.

    Args:
        error: What the condition raised.
        lookup: What it was evaluated with.
        advice: On texts that are JSON.
    """
    return "; ".join(dict.fromkeys(_stands_for(root, path, lookup, advice) for root, path in error.references))


def counted_as_none(references: Iterable[Reference], lookup: Lookup, advice: Advice) -> str:
    """A sentence on each reference that leads nowhere and was counted as None by a condition.

    Args:
        references: Those references.
        lookup: What the condition was evaluated with.
        advice: On texts that are JSON.
    """
    return "; ".join(
        f"{_written(root, path[:_MAX_NAMES])} counts as None: {_stands_for(root, path, lookup, advice)}"
        for root, path in dict.fromkeys(references)
    )


def behind(template: Template, lookup: Lookup, advice: Advice) -> str:
    """A sentence on what a template that is one reference stands for; empty for any other.

    Args:
        template: The template.
        lookup: What it was filled with.
        advice: On texts that are JSON.
    """
    return "" if template.reference is None else _stands_for(*template.reference, lookup, advice)


def _stands_for(root: str, path: tuple[str, ...], lookup: Lookup, advice: Advice) -> str:
    value = lookup(root, ())
    if value is MISSING:
        return f"there is no {_written(root, ())}, neither in the context nor as a step that has an output"
    for count in range(1, min(len(path), _MAX_NAMES) + 1):
        inner = lookup(root, path[:count])
        if inner is MISSING:
            known = path[: count - 1]
            what = f"{_written(root, known)} is {_kind(value)}, and has no {path[count - 1]}"
            return what + (_clause(advice(root, known)) if _is_json(value) else "")
        value = inner
    path = path[:_MAX_NAMES]
    return f"{_written(root, path)} is {_kind(value)}" + (_clause(advice(root, path)) if _is_json(value) else "")


def _clause(text: str) -> str:
    return text and f": {text}"


def _written(root: str, path: tuple[str, ...]) -> str:
    return written_path((root, *path))


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f"the text {quoted(value[:_SHOWN_CHARS])}{'…' if len(value) > _SHOWN_CHARS else ''}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        names = [name[:_SHOWN_CHARS] for name in list(value)[:_SHOWN_NAMES]]
        more = ", …" if len(value) > _SHOWN_NAMES else ""
        return f"an object with {', '.join(map(quoted, names))}{more}" if names else "an empty object"
    return canonical(value).decode()[:_SHOWN_CHARS]


def _is_json(value: Any) -> bool:
    """Whether a value is a text of another value."""
    if not isinstance(value, str) or len(value) > _TRIED_CHARS:
        return False
    try:
        return not isinstance(parsed(value), str)
    except NotJSONError:
        return False
