"""What is known around a script that has failed."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple


class World(NamedTuple):
    """The surroundings of a script.

    Attributes:
        code: Its text.
        servers: `{name, alias}` each.
        tools: Tools by their server's alias, of the servers whose tools are known without starting one.
        packages: Where the image's packages are.
    """

    code: str
    servers: list[dict[str, Any]]
    tools: Callable[[], dict[str, list[str]]]
    packages: str

    @property
    def aliases(self) -> dict[str, str]:
        """Every name of every server → its alias."""
        return {row[key]: row["alias"] for key in ("name", "alias") for row in self.servers}

    @property
    def example(self) -> str:
        """A server's alias, to show how one is imported."""
        return str(self.servers[0]["alias"]) if self.servers else "NAME"

    def installed(self) -> list[str]:
        """The packages of the image beside the standard library."""
        try:
            found = os.listdir(self.packages)
        except OSError:
            return []
        return sorted({name.partition(".")[0] for name in found if name[:1].isalpha() and not name.endswith("-info")})
