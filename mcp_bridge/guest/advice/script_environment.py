"""The environment of a script that has failed."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple


class ScriptEnvironment(NamedTuple):
    """The environment of a script.

    Attributes:
        code: The script's text.
        servers: A dict `{name, alias}` for each server.
        tools: Returns tools by server alias, for the servers whose tools are already listed.
        packages: The directory of the image's packages.
        kept: The names that a session has; None for a script of its own.
        runs_both: Whether scripts in JavaScript run here, too.
        has_inputs: Whether there are files that the operator hands in.
    """

    code: str
    servers: list[dict[str, Any]]
    tools: Callable[[], dict[str, list[str]]]
    packages: str
    kept: list[str] | None = None
    runs_both: bool = False
    has_inputs: bool = False

    @property
    def aliases(self) -> dict[str, str]:
        """Maps every server's name and alias to its alias."""
        return {row[key]: row["alias"] for key in ("name", "alias") for row in self.servers}

    @property
    def example(self) -> str:
        """A server's alias, for examples of imports."""
        return str(self.servers[0]["alias"]) if self.servers else "NAME"

    def installed(self) -> list[str]:
        """The image's packages besides the standard library."""
        try:
            found = os.listdir(self.packages)
        except OSError:
            return []
        return sorted({name.partition(".")[0] for name in found if name[:1].isalpha() and not name.endswith("-info")})
