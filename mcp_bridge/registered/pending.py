"""What a registered tool returns when its outcome comes later."""

from __future__ import annotations

from typing import Any, Final, Self

PENDING_TEXT: Final = "PENDING"
"""The same said as a string, as tools written for llm-nano-vm say it."""


class _Pending:
    """The type of `PENDING`, of which there is one instance, through copies and pickles too."""

    __slots__ = ()
    _only: _Pending | None = None

    def __new__(cls) -> Self:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only  # type: ignore[return-value]

    def __repr__(self) -> str:
        return "mcp_bridge.PENDING"

    def __reduce__(self) -> str:
        # A string is the name of a global: pickle looks it up, and copy gives back the object itself.
        return "PENDING"


PENDING: Final[Any] = _Pending()
"""Returned by a tool, it suspends the program that called it. `Any`, so that it fits every return annotation."""


def is_pending(value: object) -> bool:
    """Whether a tool's result says that the outcome comes later."""
    return value is PENDING or (isinstance(value, str) and value == PENDING_TEXT)
