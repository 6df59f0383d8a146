"""Blind indexes: MACs by which rows are found whose idempotency keys and subjects aren't stored in the clear.

MACs of what contains a sensitive value are marked (FORGETTABLE). They are removed when the value is erased: otherwise a
guess of the value could be tested on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from mcp_bridge.ledger.storage.sealing import MasterKey

FORGETTABLE = "v"
"""The prefix of the MAC of an idempotency key, or of a subject's name, that contains sensitive values."""

OF_REQUEST = "r"
"""The prefix of the MAC by which a waiting script without a key is found by its request."""

KeySpace: TypeAlias = Literal["", "agent", "operator", "call"]
"""The space of an idempotency key: equal keys in two spaces are two keys. `call` is for keys that are derived from the
place of a call in a script; the empty space is the only one that version 0.1.0 had."""


def key_mac(master: MasterKey, principal: str, key: str, space: KeySpace) -> str:
    """The MAC of an idempotency key."""
    return master.mac("idempotency key", principal, key, *((space,) if space else ())).hex()


def subject_macs(master: MasterKey, subject: str) -> tuple[str, str]:
    """The two possible MACs of a subject: without sensitive values in its name, and with."""
    name = master.subject(subject)
    return name, FORGETTABLE + name


def subject_mac(master: MasterKey, subject: str, *, is_value: bool) -> str:
    """The MAC of a subject; empty for none. `is_value` says whether a sensitive value is a part of its name."""
    return subject_macs(master, subject)[is_value] if subject else ""


def held_execution_mac(master: MasterKey, execution: str) -> str:
    """The MAC that stands for an execution, as a subject, in the rows of those that hold its data."""
    return master.mac("held execution", execution).hex()
