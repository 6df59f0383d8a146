"""A tool's arguments as scripts give them."""

from typing import Any

from mcp_bridge.guest.jsontext import JsonText

ARGUMENTS = frozenset({"args", "arguments", "input", "kwargs", "parameters", "params"})
"""How other clients call the dict of a tool's arguments."""


def spread(
    params: list[dict[str, Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments that came as one dict, as in JSON, as keywords; others as they are.

    A dict is taken for that if all of its keys are parameters, and it can't be meant for the first of them.
    """
    names = {param[key] for param in params for key in ("json", "name")}
    given: Any = None
    if len(args) == 1 and not kwargs and params and not _takes_dict(params[0]["type"]):
        given = args[0]
    elif not args and len(kwargs) == 1 and not names & (kwargs.keys() & ARGUMENTS):
        given = next((value for name, value in kwargs.items() if name in ARGUMENTS), None)
    if type(given) is dict and names.issuperset(given):
        return (), dict(given)
    return args, kwargs


def meant(params: list[dict[str, Any]], bound: dict[str, Any]) -> dict[str, Any]:
    """Arguments by their JSON names, as a schema can only mean them; what else is wrong with them the host tells.

    None for an optional parameter that can't be null is left out, and text that holds an object or an array is
    read where a parameter takes that and no text.
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
    """Whether a dict is among the types of a parameter, as its annotation has them."""
    return bool(_types(shown) & {"dict", "Any"})


def _types(shown: str) -> set[str]:
    """The types of an annotation, without what is within them: `list[str] | None` is `{"list", "None"}`."""
    import re

    # What is quoted in a `Literal` may hold any of the marks.
    shown = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "", shown)
    while shown != (shown := re.sub(r"\[[^][]*\]|\([^()]*\)", "", shown)):
        pass
    return {kind.strip() for kind in shown.split("|")}
