"""Normalises a tool's arguments as scripts pass them."""

from mcp_bridge.guest.values.jsontext import JsonText
from mcp_bridge.wire.annotations import Any

ARGUMENTS = frozenset({"args", "arguments", "input", "kwargs", "parameters", "params"})
"""Parameter names that other clients use for the dict of a tool's arguments."""


def takes_besides(row: dict[str, Any], name: str) -> bool:
    """Whether a tool may take an argument of this name, which is no parameter's."""
    return bool(row["extra"]) and name.startswith(tuple(row.get("beginnings", [""])))


def spread(
    row: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Turn a single dict of arguments, as in JSON, into keywords; other arguments are returned unchanged.

    A dict is taken for that if all of its keys are parameters, or begin as additional ones do, and it can't be a value
    for the first parameter. Of parameters that are known from recorded calls, those may be missing that were None.

    Args:
        row: The tool's row in the result of `catalog.tools`.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    if row["extra"] and "beginnings" not in row:
        return args, kwargs
    params = row["params"]
    names = {param[key] for param in params for key in ("json", "name")}
    given: Any = None
    if len(args) == 1 and not kwargs and params and not _takes_dict(params[0]["type"]):
        given = args[0]
    elif not args and len(kwargs) == 1:
        [(name, value)] = kwargs.items()
        given = value if name in ARGUMENTS - names and not takes_besides(row, name) else None
    if type(given) is not dict:
        return args, kwargs
    # What begins with nothing may be any name, as one that is within an argument.
    is_telling = not takes_besides(row, "")
    for name, value in given.items():
        is_left_out = value is None and "recorded" in row
        if not (name in names or is_left_out or (is_telling and isinstance(name, str) and takes_besides(row, name))):
            return args, kwargs
    return (), dict(given)


def normalise(params: list[dict[str, Any]], bound: dict[str, Any]) -> dict[str, Any]:
    """Arguments by their JSON names, corrected where the schema allows only one interpretation.

    None for an optional parameter that can't be null is left out. Text that contains a JSON object or array is decoded
    for a parameter that accepts one and no text. The host reports all other faults.
    """
    made = dict(bound)
    for param in params:
        name = param["json"]
        if name not in bound:
            continue
        value = bound[name]
        if value is None:
            if not param["required"] and not _types(param["type"]) & {"Any", "None"}:
                del made[name]
        elif isinstance(value, str) and value[:1] in {"{", "["} and _types(param["type"]) <= {"dict", "list", "None"}:
            document = JsonText(value).document()
            if type(document).__name__ in _types(param["type"]):
                made[name] = document
    return made


def _takes_dict(shown: str) -> bool:
    """Whether a parameter's annotation accepts a dict."""
    return bool(_types(shown) & {"dict", "Any"})


def _types(shown: str) -> set[str]:
    """The top-level types of an annotation: `list[str] | None` is `{"list", "None"}`."""
    import re

    # Quoted values of a `Literal` may contain any of the separators.
    shown = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "", shown)
    while shown != (shown := re.sub(r"\[[^][]*\]|\([^()]*\)", "", shown)):
        pass
    return {kind.strip() for kind in shown.split("|")}
