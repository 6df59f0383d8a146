"""Why a service's document can't be used."""

from __future__ import annotations

from typing import Any


class UnusableDocumentError(Exception):
    """A service's document can't be used.

    Args:
        reason: Why, in a sentence for scripts, too.
        hint: What to do, or None.
        private: What only the operator may see.
    """

    def __init__(self, reason: str, hint: str | None = None, private: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.private = private or {}
