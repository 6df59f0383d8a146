"""What the operations of a document are called as tools. Runs in the compiler's process."""

from __future__ import annotations

import re

_MAX_NAME = 120


class Names:
    """Gives each operation a name that no other has."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def name(self, operation_id: str | None, method: str, path: str) -> str:
        """The operation's id; where it has none, or another has it, a name made of its method and path."""
        wanted = operation_id if operation_id and len(operation_id) <= _MAX_NAME else None
        if wanted is None or wanted in self._taken:
            words = re.findall(r"[A-Za-z0-9]+", path)
            wanted = "_".join([method, *words])[:_MAX_NAME]
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name
