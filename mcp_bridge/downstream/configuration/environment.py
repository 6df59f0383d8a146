"""Which variables of the bridge's environment a server is given: what its client would give it, not the bridge's own.

Clients hand their whole environment on to the servers that they start: the authorities and proxies of a company's
network, `KUBECONFIG`, exported tokens. An entry that works there works here with the same. Held back in any case is
what is for the bridge alone: its own settings, the variables that its secrets come from, the keys of its model. A
server that needs one of those names it in its own `env`, as `${NAME}`.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.downstream.configuration.spec import ServerSpec

EnvPass = Literal["all", "minimal"] | tuple[str, ...]
"""All variables, only `MINIMAL`, or those and the named ones; a name may end with `*`."""

MINIMAL = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")

OWN_PREFIX = "MCP_BRIDGE_"
"""Of the bridge's own variables."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\*?|\*")

_WRONG = 'must be "all", "minimal", or names of variables such as ["KUBECONFIG", "SSL_CERT_*"]'


def env_pass(value: Any) -> EnvPass:
    """Decode a choice of variables, from TOML or (names with commas between them) from the environment.

    Raises:
        ValueError: It is none.
    """
    if value == "all" or value == "minimal":  # noqa: PLR1714 - mypy narrows by this
        return value  # type: ignore[no-any-return]
    if isinstance(value, str) and "," in value:
        value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) and _NAME.fullmatch(item) for item in value):
        return tuple(value)
    raise ValueError(_WRONG)


def _passes(choice: EnvPass, name: str) -> bool:
    if choice == "all" or name in MINIMAL:
        return True
    if choice == "minimal":
        return False
    return any(name.startswith(each[:-1]) if each.endswith("*") else name == each for each in choice)


@dataclass(frozen=True, slots=True)
class Environment:
    """What servers are given of it. No `repr` shows a value.

    Attributes:
        variables: The bridge's environment, as it was when it was started: what it sets for itself later is its own.
        choice: Which of them servers are given, unless an entry says otherwise.
        withheld: Names that no server is given.
    """

    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    choice: EnvPass = "all"
    withheld: frozenset[str] = frozenset()

    def of(self, spec: ServerSpec) -> dict[str, str]:
        """The variables for one server, without those of its own entry."""
        own = self.choice if spec.env_pass is None else spec.env_pass
        # What comes with a folder can ask for less than the user lets servers have, and not for more.
        choices = (own, self.choice) if spec.scope in {"folder", "project"} else (own,)
        given = {
            name: value
            for name, value in self.variables.items()
            if not name.startswith(OWN_PREFIX)
            and name not in self.withheld
            and all(_passes(choice, name) for choice in choices)
        }
        if "PATH" in given:
            given["PATH"] = _without_our_own(given["PATH"], self.variables)
        return given


def _without_our_own(path: str, variables: Mapping[str, str]) -> str:
    """PATH without this bridge's own environment, if that stands first in it and nobody has activated it.

    `uvx` puts it there: a server whose command is `python` would be started with the bridge's packages in place of
    its own.
    """
    first, separator, rest = path.partition(os.pathsep)
    ours = sys.prefix != sys.base_prefix and first == os.path.join(sys.prefix, "bin")  # noqa: PTH118 - as it is written
    return rest if separator and ours and variables.get("VIRTUAL_ENV") != sys.prefix else path
