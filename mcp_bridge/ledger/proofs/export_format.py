"""Exports: a log as one file that can be verified with a public key alone.

JSON Lines, each line in canonical form (RFC 8785) and ended by a newline: a header with the log's origin and size N;
its N entries in order, each with its payload unless that is erased or withheld; then one or more signed checkpoints of
growing sizes, the last one of size N: those of key rotations, those that witnesses have cosigned, and the newest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from mcp_bridge.ledger.proofs import disclosures
from mcp_bridge.ledger.proofs.disclosures import Disclosed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcp_bridge.ledger.log.entry_encoding import Leaf

FORMAT = "mcp-code-bridge-ledger/1"

MAX_LINE_BYTES = 64 << 20
"""Longest line, with its newline."""

BATCH_LEVEL = 10
BATCH_ENTRIES = 1 << BATCH_LEVEL
"""The number of entries of a batch."""


class ReadEntry(NamedTuple):
    """An entry with its payload, after all checks that need no other entry.

    Attributes:
        leaf: The decoded entry.
        data: The entry's bytes.
        payload, salt: The payload's bytes and its salt; None if they are erased, or sealed and no key is given.
        nodes: What `merkle.Frontier.append` gives for it; empty if its reader hasn't computed that.
    """

    leaf: Leaf
    data: bytes
    payload: bytes | None
    salt: bytes | None
    nodes: bytes = b""


class EntryBatch(NamedTuple):
    """What the other entries of a log depend on of BATCH_ENTRIES entries, none of them about the log itself.

    They have passed all checks that need no entry before them.

    Attributes:
        root: The root of their subtree.
        above: What `merkle.Frontier.append_subtree` gives for it, as it is stored.
        nodes: What `merkle.Frontier.append` gives for each, joined.
        begins: Of each execution, the `previous` of its first entry among them.
        ends: Of each execution, the hash of its last entry among them, in hex.
        began, last: The times of the first and the last.
        undisclosed: Of each execution, how many have no payload that is shown; only of those that have such.
        log_entries: Those that tell of other tables: execution, kind, sequence, and the payload unless it is erased.
    """

    root: bytes
    above: bytes
    nodes: bytes
    begins: dict[str, str | None]
    ends: dict[str, str]
    began: int
    last: int
    undisclosed: dict[str, int]
    log_entries: list[tuple[str, str, int, bytes | None]]


class VerifiedBatch(NamedTuple):
    """A batch in the place of its entries.

    Attributes:
        batch: The batch.
        accept: Called once, if it follows the entries before it.
        entries: Gives its entries one by one, if it doesn't.
    """

    batch: EntryBatch
    accept: Callable[[], None]
    entries: Callable[[], Iterator[bytes | ReadEntry]]


Line: TypeAlias = "bytes | ReadEntry | VerifiedBatch"
"""A line of an export, or what is in the place of one or more."""


def header_line(origin: str, size: int) -> bytes:
    """The first line of an export of the log's first `size` entries."""
    return disclosures.encode_object(format=FORMAT, origin=origin, size=size) + b"\n"


def entry_line(entry: bytes, payload: bytes | None = None, salt: bytes | None = None) -> bytes:
    """The line of an entry, with its payload and salt, or without both."""
    return disclosures.encode(Disclosed(entry, payload, salt)) + b"\n"


def checkpoint_line(note: str) -> bytes:
    """The line of a signed checkpoint."""
    return disclosures.encode_object(checkpoint=note) + b"\n"
