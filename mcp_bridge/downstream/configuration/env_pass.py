"""The setting `env_pass`: which variables of the bridge's environment servers are given."""

from __future__ import annotations

import re
from typing import Any, Literal

EnvPass = Literal["all", "minimal"] | tuple[str, ...]
"""All variables, only `MINIMAL`, or those and the named ones; a name may end with `*`."""

MINIMAL = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?|\*")

_WRONG = 'must be "all", "minimal", or a list of names of variables'


def env_pass(value: Any) -> EnvPass:
    """Decode a choice of variables, from TOML or (names with commas between them) from the environment.

    Raises:
        ValueError: It is not a valid choice.
    """
    if value == "all" or value == "minimal":  # noqa: PLR1714 - mypy narrows by this
        return value  # type: ignore[no-any-return]
    if isinstance(value, str) and "," in value:
        value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) and _NAME.fullmatch(item) for item in value):
        return tuple(value)
    raise ValueError(_WRONG)


def passes(choice: EnvPass, name: str) -> bool:
    """Whether a choice lets servers have the variable of a name."""
    if choice == "all" or name in MINIMAL:
        return True
    if choice == "minimal":
        return False
    return any(name.startswith(each[:-1]) if each.endswith("*") else name == each for each in choice)
