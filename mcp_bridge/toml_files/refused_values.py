"""What is wrong with a value of the operator's configuration, and what to write, in TOML's words.

Pydantic, which finds it, speaks of Python's types.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ARRAYS = frozenset({"tuple_type", "list_type", "set_type", "frozen_set_type"})

_MEANT = {
    **dict.fromkeys(_ARRAYS, "must be an array of texts"),
    "path_type": "must be a path, as a text in quotes",
    **dict.fromkeys(("string_type", "string_sub_type"), "must be a text in quotes"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be a table"),
    "missing": "is missing",
}
"""By pydantic's types of errors."""

_ARRAYS_OF_TABLES = frozenset({"publish"})

_EXAMPLES: Mapping[str, list[str]] = MappingProxyType(
    {
        "algorithms": ["ES256"],
        "files": ["reports"],
        "glob": ["*.csv"],
        "modules": ["my_tools"],
        "packages": ["requests>=2,<3"],
        "path": ["./folder"],
        "patterns": ["email"],
        "secrets": ["STRIPE_KEY"],
        "servers": ["github"],
        "tools": ["github.*"],
    }
)
"""An array for each key that is one in several tables."""


def said(error: Mapping[str, object]) -> str:
    """What is wrong, to follow the key and a colon.

    Args:
        error: As pydantic's `ErrorDetails`. Its input is not looked at: it may be a secret.
    """
    message = str(error["msg"]).removeprefix("Value error, ")
    if message.startswith("Input should be "):
        message = f"must be {message.removeprefix('Input should be ')}"
    message = _MEANT.get(str(error["type"]), message)
    place = error["loc"]
    if error["type"] in _ARRAYS and isinstance(place, tuple) and place and place[-1] in _ARRAYS_OF_TABLES:
        message = "must be an array of tables"
    is_entry = isinstance(place, tuple) and place and isinstance(place[-1], int)
    return f"each of its entries {message}" if is_entry and message.startswith("must be ") else message


def union_error_message(errors: Iterable[Mapping[str, object]]) -> str:
    """What is wrong with one value, to follow its key and a colon, where the value may be of several kinds.

    Args:
        errors: Each kind's, as `said` takes them; one at least.
    """
    # Of each kind once, in order: entries of an array are refused one by one.
    first, *others = dict.fromkeys(map(said, errors))
    meant = [other.removeprefix("must be ").removeprefix("a size is ") for other in others]
    return " or ".join([first, *meant])


def example(error: Mapping[str, object]) -> str | None:
    """A hint with an array to write, where one is wanted; None where the message says enough."""
    place = error["loc"]
    keys = [part for part in place if isinstance(part, str)] if isinstance(place, tuple) else []
    if not keys or error["type"] not in _ARRAYS:
        return None
    return f"Write {keys[-1]} = {json.dumps(_EXAMPLES.get(keys[-1], ['…']), ensure_ascii=False)}."
