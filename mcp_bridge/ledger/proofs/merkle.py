"""The Merkle tree over the entries' hashes (RFC 6962, section 2.1): roots, proofs, and their verification.

Hashes only, no I/O. A node has a level (0 for a leaf) and an index within its level; node (level, index) is the hash of
the complete subtree over the leaves index·2^level to (index + 1)·2^level - 1. Only complete subtrees are ever stored,
so that nothing stored changes when the tree grows.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from mcp_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    NodeReader = Callable[[int, int], bytes]
    """Returns the hash of the node at a level and an index."""

HASH_BYTES = 32

MAX_PROOF_HASHES = 64
"""No proof for a tree of less than 2^63 leaves is longer."""


def empty_root() -> bytes:
    """The root of the empty tree: the hash of the empty string."""
    return hashlib.sha256(b"").digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node; its first byte differs from that of a leaf's input."""
    return hashlib.sha256(b"\1" + left + right).digest()


class Frontier:
    """The roots of the largest complete subtrees of a growing tree, which is all that appending needs.

    Attributes:
        size: The number of leaves.
    """

    __slots__ = ("_peaks", "size")

    def __init__(self, size: int = 0, read: NodeReader | None = None) -> None:
        """The frontier of a tree of that size whose nodes can be read; of the empty tree without any."""
        self.size = size
        self._peaks = [read(*peak) for peak in _peaks(0, size)] if read is not None else []
        if len(self._peaks) != size.bit_count():
            raise ValueError("a tree that isn't empty needs its nodes")

    def append(self, leaf: bytes) -> bytes:
        """Take one more leaf's hash.

        Returns:
            The hashes of all complete subtrees that end at this leaf, from the leaf's own hash up, 32 bytes each: the
            node (level, index) is at offset 32·level of what the leaf ((index + 1) << level) - 1 gave.
        """
        nodes, ends = [leaf], self.size
        while ends & 1:
            leaf = node_hash(self._peaks.pop(), leaf)
            nodes.append(leaf)
            ends >>= 1
        self._peaks.append(leaf)
        self.size += 1
        return b"".join(nodes)

    def append_subtree(self, level: int, root: bytes) -> bytes:
        """Take the root of a complete subtree, where one of its level begins.

        Returns:
            What `append` would have given for its last leaf from the level above its root on.
        """
        nodes, ends = [], self.size >> level
        while ends & 1:
            root = node_hash(self._peaks.pop(), root)
            nodes.append(root)
            ends >>= 1
        self._peaks.append(root)
        self.size += 1 << level
        return b"".join(nodes)

    def copy(self) -> Frontier:
        """Another one, of the same leaves."""
        copied = Frontier()
        copied.size, copied._peaks = self.size, self._peaks[:]
        return copied

    def root(self) -> bytes:
        """The current root."""
        return _folded(self._peaks) if self._peaks else empty_root()


def root(size: int, read: NodeReader) -> bytes:
    """The root of the tree of the first `size` leaves, by O(log size) nodes."""
    return _range_hash(0, size, read) if size else empty_root()


def inclusion_proof(index: int, size: int, read: NodeReader) -> list[bytes]:
    """The audit path of a leaf, from its sibling up (RFC 6962, section 2.1.1), by O(log size) nodes.

    Raises:
        BridgeError: `bad_proof`: the tree of that size has no such leaf.
    """
    if not 0 <= index < size:
        raise BridgeError("bad_proof", f"A tree of {size} entries has no entry {index}.")
    proof, start, end = [], 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            proof.append(_range_hash(middle, end, read))
            end = middle
        else:
            proof.append(_range_hash(start, middle, read))
            start = middle
    return proof[::-1]


def consistency_proof(old: int, new: int, read: NodeReader) -> list[bytes]:
    """The nodes that show that the tree of size `new` begins with that of size `old` (RFC 6962, section 2.1.2).

    Empty where both are equal or the old one has no leaf: there is nothing to show.

    Raises:
        BridgeError: `bad_proof`: the new tree is smaller than the old one.
    """
    if not 0 <= old <= new:
        raise BridgeError("bad_proof", f"A tree of {new} entries does not begin with one of {old}.")
    if old in {0, new}:
        return []
    proof, start, end = [], 0, new
    while end != old:
        middle = start + _split(end - start)
        if old <= middle:
            proof.append(_range_hash(middle, end, read))
            end = middle
        else:
            proof.append(_range_hash(start, middle, read))
            start = middle
    if start:
        # The verifier knows the old root. The node is needed unless it is that root.
        proof.append(_range_hash(start, end, read))
    return proof[::-1]


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Check that the tree of that size and root has the leaf's hash at the index (RFC 9162, section 2.1.3.2).

    Raises:
        BridgeError: `bad_proof`: it is not shown.
    """
    _check_hashes([leaf, root, *proof[: MAX_PROOF_HASHES + 1]], len(proof))
    if not 0 <= index < size:
        raise BridgeError("bad_proof", f"A tree of {size} entries has no entry {index}.")
    node, last, computed = index, size - 1, leaf
    for sibling in proof:
        if not last:
            raise BridgeError("bad_proof", f"The proof of entry {index} has too many hashes.")
        if node & 1 or node == last:
            computed = node_hash(sibling, computed)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            computed = node_hash(computed, sibling)
        node, last = node >> 1, last >> 1
    if last or computed != root:
        raise BridgeError("bad_proof", f"The proof of entry {index} does not lead to the root of {size} entries.")


def verify_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Check that the tree of size and root `new` begins with that of `old` (RFC 9162, section 2.1.4.2).

    Raises:
        BridgeError: `bad_proof`: it is not shown.
    """
    _check_hashes([old_root, new_root, *proof[: MAX_PROOF_HASHES + 1]], len(proof))
    if not 0 <= old <= new:
        raise BridgeError("bad_proof", f"A tree of {new} entries does not begin with one of {old}.")
    wrong = BridgeError("bad_proof", f"It is not shown that the tree of {new} entries begins with that of {old}.")
    if old in {0, new}:
        if proof or old_root != (new_root if old else empty_root()) or (not new and new_root != empty_root()):
            raise wrong
        return
    path = [old_root, *proof] if old.bit_count() == 1 else list(proof)
    if not proof:
        raise wrong
    node, last = old - 1, new - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    found_old = found_new = path[0]
    for sibling in path[1:]:
        if not last:
            raise wrong
        if node & 1 or node == last:
            found_old, found_new = node_hash(sibling, found_old), node_hash(sibling, found_new)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            found_new = node_hash(found_new, sibling)
        node, last = node >> 1, last >> 1
    if last or found_old != old_root or found_new != new_root:
        raise wrong


def _check_hashes(hashes: Iterable[bytes], length: int) -> None:
    if length > MAX_PROOF_HASHES:
        raise BridgeError("bad_proof", f"A proof has no {length} hashes.")
    if any(len(each) != HASH_BYTES for each in hashes):
        raise BridgeError("bad_proof", f"A hash of a proof has not {HASH_BYTES} bytes.")


def _split(size: int) -> int:
    """The largest power of two that is less than the size: how many leaves are on the left of the root."""
    return 1 << ((size - 1).bit_length() - 1)


def _peaks(start: int, end: int) -> list[tuple[int, int]]:
    """The largest complete subtrees of a range that starts where a subtree of its length would, from the left."""
    peaks = []
    for level in reversed(range((end - start).bit_length())):
        if (end - start) >> level & 1:
            peaks.append((level, start >> level))
            start += 1 << level
    return peaks


def _range_hash(start: int, end: int, read: NodeReader) -> bytes:
    return _folded([read(level, index) for level, index in _peaks(start, end)])


def _folded(peaks: Sequence[bytes]) -> bytes:
    sha256, folded = hashlib.sha256, peaks[-1]
    for peak in reversed(peaks[:-1]):
        # `node_hash`, without the call: it is done for each commit.
        folded = sha256(b"\1" + peak + folded).digest()
    return folded
