"""Which operations of a document become tools. Runs in the compiler's process."""

from __future__ import annotations

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
    wanted, space, place = pattern.strip().partition(" ")
    if space:
        return fnmatchcase(method.upper(), wanted.upper()) and fnmatchcase(path, place.strip())
    return fnmatchcase(operation_id or "", pattern) if operation_id else pattern == "*"
