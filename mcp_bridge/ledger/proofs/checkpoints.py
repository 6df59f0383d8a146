"""Checkpoints compared with a log: whether one is the log's, by origin, size and root; and which proves an entry best.

Signatures are checked before (`notes`): these say who has signed a checkpoint, not whether it is of this log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.proofs import merkle, notes

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mcp_bridge.ledger.proofs.notes import Checkpoint
    from mcp_bridge.ledger.proofs.signing import Verifier


def check_against_log(checkpoint: Checkpoint, origin: str, size: int, node: merkle.NodeReader) -> None:
    """Check that a checkpoint is of a log's beginning, or of all of it.

    Args:
        checkpoint: The checkpoint.
        origin: The log's.
        size: The number of its entries.
        node: Reads its tree.

    Raises:
        BridgeError: `other_log`, `rolled_back`, `tampered`.
    """
    check_origin(checkpoint, origin)
    if checkpoint.size > size:
        raise BridgeError("rolled_back", f"A checkpoint is of {checkpoint.size} entries; the log here has {size}.")
    if checkpoint.root != merkle.root(checkpoint.size, node):
        raise BridgeError("tampered", f"The first {checkpoint.size} entries have another root than was signed.")


def check_origin(checkpoint: Checkpoint, origin: str) -> None:
    """Check that a checkpoint is of the log of that origin. Keys are looked up by it, so it is checked before them.

    Raises:
        BridgeError: `other_log`.
    """
    if checkpoint.origin != origin:
        raise BridgeError("other_log", f"This is a checkpoint of the log {checkpoint.origin!a}, not of {origin!a}.")


class Signed(NamedTuple):
    """A checkpoint, its note, and whose signatures of it hold; a witness's with its time."""

    checkpoint: Checkpoint
    note: str
    signers: tuple[tuple[Verifier, int | None], ...]


def best_note(checkpoints: Sequence[Signed], trusted: Collection[str] | None) -> Signed:
    """The best checkpoint for a proof, of those that include its entry.

    Preferred are those signed by a key that the reader trusts rather than by one that it vouches for, then those
    cosigned by a known witness, then those cosigned by any, then the largest.

    Args:
        checkpoints: The checkpoints, by size; at least one.
        trusted: The verifier keys that the reader has named; None for none.
    """

    def worth(signed: Signed) -> tuple[bool, bool, bool, int]:
        origin = signed.checkpoint.origin
        by_given = trusted is None or any(by.is_of_log(origin) and by.vkey in trusted for by, _ in signed.signers)
        by_witness = any(time is not None for _, time in signed.signers)
        others = any(name != origin for name, _ in notes.split_note(signed.note)[1])
        return by_given, by_witness, others, signed.checkpoint.size

    return max(checkpoints, key=worth)
