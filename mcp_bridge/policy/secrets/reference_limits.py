"""How many references one execution may have. A value beyond is blanked: hidden all the same, and without one.

Code that can have text projected can have a guess projected, too, and compare the references: the limits bound that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from mcp_bridge.errors import BridgeError
from mcp_bridge.policy.secrets.vault_uris import REDACTED

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MAX_REFERENCES = 100_000
MAX_REFERENCE_CHARS = 64 << 20
"""The limits of one execution: the number of values, and their characters together."""


def check_room(values: int, chars: int) -> None:
    """Refuse a value for which there is no room.

    Args:
        values: How many values the execution has without it.
        chars: The characters of all, with it.

    Raises:
        BridgeError: `too_many_references`.
    """
    if values >= MAX_REFERENCES or chars > MAX_REFERENCE_CHARS:
        raise BridgeError(
            "too_many_references",
            f"An execution may have {MAX_REFERENCES} sensitive values of {MAX_REFERENCE_CHARS} characters together.",
        )


def reference_or_blank(put: Callable[[T, str | None], str], value: T, subject: str | None) -> str:
    """A value's reference, or `[REDACTED]` where it can have none.

    Args:
        put: As `References.put`.
        value: The value.
        subject: As `References.put`.
    """
    try:
        return put(value, subject)
    except BridgeError:
        return REDACTED
