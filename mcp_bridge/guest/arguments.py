"""A tool's arguments as scripts give them."""

from typing import Any

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


def _takes_dict(shown: str) -> bool:
    """Whether a dict is among the types of a parameter, as its annotation has them."""
    import re

    while shown != (shown := re.sub(r"\[[^][]*\]|\([^()]*\)", "", shown)):
        pass
    return any(kind.strip() in {"dict", "Any"} for kind in shown.split("|"))
