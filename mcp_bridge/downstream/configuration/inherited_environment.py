"""The environment variables that a server receives: what its client would pass on, without the bridge's own.

Clients pass their whole environment to the servers that they start: a company's certificate authorities and proxies,
`KUBECONFIG`, exported tokens. An entry that works in the client works here unchanged. Variables for the bridge alone
are always withheld: its settings, the sources of its secrets, the API keys of its model. A server that needs one of
them names it in its own `env`, as `${NAME}`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_bridge.downstream.configuration.env_pass import passes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_bridge.downstream.configuration.env_pass import EnvPass
    from mcp_bridge.downstream.configuration.spec import ServerSpec

OWN_PREFIX = "MCP_BRIDGE_"
"""Prefix of the bridge's own variables."""


@dataclass(frozen=True, slots=True)
class InheritedEnvironment:
    """The environment that servers are given. `repr` shows no values.

    Attributes:
        variables: The bridge's environment at its start. Variables that it sets later are its own.
        choice: Which variables servers receive unless their entry says otherwise.
        withheld: Names that no server receives.
    """

    variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    choice: EnvPass = "all"
    withheld: frozenset[str] = frozenset()

    def of(self, spec: ServerSpec) -> dict[str, str]:
        """The variables for one server, without the `env` of its own entry."""
        own = self.choice if spec.env_pass is None else spec.env_pass
        # An entry of the folder can restrict the user's choice, and not widen it.
        choices = (own, self.choice) if spec.comes_with_folder else (own,)
        variables = {
            name: value
            for name, value in self.variables.items()
            if not name.startswith(OWN_PREFIX)
            and name not in self.withheld
            and name not in spec.unset
            and all(passes(choice, name) for choice in choices)
        }
        if "PATH" in variables:
            variables["PATH"] = _without_own_virtualenv(variables["PATH"], self.variables)
        return variables


def _without_own_virtualenv(path: str, variables: Mapping[str, str]) -> str:
    """PATH without the bridge's own virtual environment, if that comes first and the user hasn't activated it.

    `uvx` prepends it: a server with the command `python` would be started with the bridge's packages instead of its
    own.
    """
    first, separator, rest = path.partition(os.pathsep)
    ours = sys.prefix != sys.base_prefix and first == os.path.join(sys.prefix, "bin")  # noqa: PTH118 - as it is written
    return rest if separator and ours and variables.get("VIRTUAL_ENV") != sys.prefix else path
