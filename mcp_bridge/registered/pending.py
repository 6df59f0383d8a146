"""The value that a registered tool returns if its outcome arrives later."""

from __future__ import annotations

from typing import Any, Final, Self

PENDING_TEXT: Final = "PENDING"
"""The equivalent string, as returned by tools written for llm-nano-vm."""


class _Pending:
    """The type of `PENDING`, a singleton that survives copying and pickling."""

    __slots__ = ()
    _only: _Pending | None = None

    def __new__(cls) -> Self:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only  # type: ignore[return-value]

    def __repr__(self) -> str:
        return "mcp_bridge.PENDING"

    def __reduce__(self) -> str:
        # A string is the name of a global: pickle looks it up, and copy returns the object itself.
        return "PENDING"


PENDING: Final[Any] = _Pending()
"""Returned by a tool, it suspends the calling program. Typed `Any`, so that it fits every return annotation."""


def is_pending(value: object) -> bool:
    """Whether a tool's result says that the outcome arrives later."""
    return value is PENDING or (isinstance(value, str) and value == PENDING_TEXT)
