"""Which operations of a document become tools, and what they are called. Runs in the compiler's process."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

METHODS = ("get", "head", "query", "post", "put", "patch", "delete", "options")
"""The methods of operations; `query` is of OpenAPI 3.2.

`trace` is left out: it has the service repeat a request with its credentials.
"""

READING = frozenset({"get", "head", "query"})
"""Methods by which nothing is changed, and which have a use for an agent (RFC 9110, section 9.2.1;
draft-ietf-httpbis-safe-method-w-body)."""

_MAX_NAME = 120


class Selection:
    """Which operations become tools.

    Args:
        patterns: Each an operation's id, or a method and a path, with `*`, `?` and `[…]`: `get*`, `GET /pets/*`,
            `* /pets`. None for all that only read.
    """

    def __init__(self, patterns: Sequence[str] | None) -> None:
        self._patterns = patterns
        self._unused = set(patterns or ())
        self.left_out = 0

    def has(self, method: str, path: str, operation_id: str | None) -> bool:
        """Whether an operation becomes a tool."""
        if self._patterns is None:
            chosen = method in READING
        else:
            matching = {each for each in self._patterns if _matches(each, method, path, operation_id)}
            self._unused -= matching
            chosen = bool(matching)
        self.left_out += not chosen
        return chosen

    def notices(self) -> list[str]:
        """What was left out."""
        if self._patterns is None and self.left_out:
            hint = 'name those that are wanted in operations, such as ["createPet", "DELETE /pets/*"]'
            return [f"{self.left_out} operations that may change something are left out: {hint}"]
        return [f"no operation matches {pattern!r} of operations" for pattern in sorted(self._unused)]


def _matches(pattern: str, method: str, path: str, operation_id: str | None) -> bool:
    # An operation's id may have spaces, too.
    if fnmatchcase(operation_id, pattern) if operation_id else pattern == "*":
        return True
    wanted, space, place = pattern.strip().partition(" ")
    return bool(space) and fnmatchcase(method.upper(), wanted.upper()) and fnmatchcase(path, place.strip())


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
