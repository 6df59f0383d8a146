"""What a log's entry has to be in its place, as anybody can check who has the entries before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.clock import is_out_of_order
from mcp_bridge.ledger.log.entry_encoding import LEDGER

if TYPE_CHECKING:
    from mcp_bridge.ledger.log.entry_encoding import Leaf


def check_place(entry: Leaf, sequence: int, previous: str | None, before: int) -> None:
    """Check that an entry follows those before it.

    Args:
        entry: The entry.
        sequence: The number of its place.
        previous: The hash of its execution's entry before it, in hex, or None.
        before: The time of the log's entry before it, in microseconds since 1970.

    Raises:
        BridgeError: `tampered`.
    """
    if entry.sequence != sequence:
        raise BridgeError("tampered", f"Entry {entry.sequence} is in the place of entry {sequence}.")
    if entry.previous != previous:
        raise BridgeError("tampered", f"Entry {sequence} doesn't follow its execution's entry before it.")
    if is_out_of_order(entry, before):
        raise BridgeError("tampered", f"Entry {sequence} has an earlier time than the entry before it.")


def names_key(entry: Leaf, payload: bytes | None) -> bytes | None:
    """The payload of an entry that names a key of the log; None for any other.

    Raises:
        BridgeError: `bad_entry`: the log's first entry names none, or one that is to name a key doesn't.
    """
    if entry.kind != "key":
        if entry.sequence == 0:
            raise BridgeError("bad_entry", "The first entry doesn't name the log's key.")
        return None
    if entry.execution != LEDGER or payload is None:
        raise BridgeError("bad_entry", f"Entry {entry.sequence} is to name a key: it doesn't, or is not the log's own.")
    return payload
