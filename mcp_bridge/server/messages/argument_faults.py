"""What is wrong with the arguments of a call of one of the bridge's own tools, in words for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from pydantic import ValidationError

_WANTED = {
    "string_type": "a text",
    "dict_type": "an object",
    "list_type": "a list",
    "bool_type": "true or false",
    "float_type": "a number",
    "finite_number": "a finite number",
}
"""By pydantic's type of an error."""

_GIVEN = {str: "a text", dict: "an object", list: "a list", bool: "true or false", int: "a number", float: "a number"}

_MAX_NAMED = 5
_MAX_NAME_CHARS = 100


def argument_faults(error: ValidationError, known: Collection[str]) -> str:
    """All faults, each with the name of its argument. What was given for it isn't repeated.

    Args:
        error: What decoding the arguments raised.
        known: The names of the tool's arguments.
    """
    unknown: dict[str, str] = {}
    others: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    for fault in error.errors(include_url=False, include_context=False):
        kind, name = fault["type"], _place(fault["loc"])
        if kind == "extra_forbidden":
            unknown[name] = f"there is no such argument; there are: {', '.join(known) or 'none'}"
        elif kind in _WANTED:
            others.setdefault(name, []).append(_WANTED[kind])
            given[name] = _GIVEN.get(type(fault["input"]), "null")
        else:
            others.setdefault(name, []).append("is required" if kind == "missing" else str(fault["msg"]))
    # An unknown name comes first: it may be why another one is missing.
    named = [f"{name}: {said}" for name, said in unknown.items()]
    for name, said in others.items():
        wanted = " or ".join(dict.fromkeys(said))
        named.append(f"{name}: must be {wanted}, not {given[name]}" if name in given else f"{name}: {wanted}")
    return "; ".join(named[:_MAX_NAMED]) + ("; …" if len(named) > _MAX_NAMED else "")


def _place(loc: tuple[int | str, ...]) -> str:
    """An argument's name, with the numbers of entries in it; after these, pydantic names the kind that was tried."""
    parts = [loc[0], *(part for part in loc[1:] if isinstance(part, int))] if loc else ["arguments"]
    return ".".join(str(part)[:_MAX_NAME_CHARS] for part in parts)
