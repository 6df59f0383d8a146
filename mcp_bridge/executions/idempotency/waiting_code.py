"""The code of which a run was last seen to wait: a hint that spares a sandbox, and decides nothing."""

from __future__ import annotations

MAX_NAMES = 1000
"""Most names that are kept, of all principals together."""


class WaitingCodeCache:
    """The first names of such code (`names_of_code`); the one that was added longest ago is dropped for another."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        """A run of it waits."""
        self.remove(name)
        self._names[name] = None
        if len(self._names) > MAX_NAMES:
            del self._names[next(iter(self._names))]

    def remove(self, name: str) -> None:
        """None of it is known to wait."""
        self._names.pop(name, None)
