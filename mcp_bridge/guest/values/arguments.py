"""Normalises a tool's arguments as scripts pass them."""

from mcp_bridge.guest.values.jsontext import JsonText
from mcp_bridge.wire.annotations import Any

ARGUMENTS = frozenset({"args", "arguments", "input", "kwargs", "parameters", "params"})
"""Parameter names that other clients use for the dict of a tool's arguments."""


def spread(
    params: list[dict[str, Any]], args: tuple[Any, ...], kwargs: dict[str, Any], *, is_recorded: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Turn a single dict of arguments, as in JSON, into keywords; other arguments are returned unchanged.

    A dict is taken for that if all of its keys are parameters, and it can't be a value for the first parameter. Of
    parameters that are known from recorded calls, those may be missing that were None.
    """
    names = {param[key] for param in params for key in ("json", "name")}
    given: Any = None
    if len(args) == 1 and not kwargs and params and not _takes_dict(params[0]["type"]):
        given = args[0]
    elif not args and len(kwargs) == 1 and not names & (kwargs.keys() & ARGUMENTS):
        given = next((value for name, value in kwargs.items() if name in ARGUMENTS), None)
    if type(given) is dict and names.issuperset(
        name for name, value in given.items() if value is not None or not is_recorded
    ):
        return (), dict(given)
    return args, kwargs


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
