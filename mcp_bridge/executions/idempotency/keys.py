"""Idempotency keys: those that clients choose, and those generated for a script that is suspended without one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_bridge.ledger.storage.blind_indexes import KeySpace

MAX_KEY_CHARS = 1000
"""Longest idempotency key."""

MAX_ALIKE = 8
"""Most suspended runs of the same code without a key that are found by the code alone."""

_GENERATED = re.compile(r"waits-[0-9a-f]{16}")


class Key(NamedTuple):
    """An idempotency key.

    Attributes:
        text: The key as the client chose it, with references for sensitive values.
        space: The key's space: the same text in two spaces is two keys.
        whole: The text with its sensitive values; empty if it has none. Nothing of such a key is stored any more once
            its execution is erased.
        before: The texts by which version 0.1.0 may have stored it, with its references to the values.
    """

    text: str
    space: KeySpace
    whole: str = ""
    before: tuple[str, ...] = ()


def generated_key(execution: str) -> str:
    """The key for a run that is suspended without one."""
    return f"waits-{execution}"


def execution_of(key: str) -> str | None:
    """The execution that a key was generated for; None for a key that a client chose."""
    return key.removeprefix("waits-") if _GENERATED.fullmatch(key) else None


def if_generated(key: str | None) -> str | None:
    """The key, if it was generated; else None."""
    return key if key is not None and execution_of(key) is not None else None


def names_of_code(request: str, servers: Iterable[str] | None) -> list[str]:
    """The names under which suspended runs of the same code with the same servers are stored, one for each run.

    Args:
        request: The MAC of the code. No key that a client chooses equals one of these names.
        servers: The servers' configured names; None for all.
    """
    among = "" if servers is None else " ".join(sorted(servers))
    return [f"waits {number} {request} {among}" for number in range(MAX_ALIKE)]
