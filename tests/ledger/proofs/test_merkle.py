"""The tree is that of RFC 6962: known vectors, the definitions themselves, and another implementation agree."""

import hashlib
import random

import pymerkle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_fixtures import CALM

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.proofs import merkle

# The tree of Certificate Transparency's own tests: eight leaves, the roots of 1 to 8 of them, and some of its proofs.
LEAVES = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
A = "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7"
B = "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e"
C = "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"
D = "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"
E = "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0"
F = "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a"
INCLUSION = [(0, 8, [A, B, C]), (5, 8, [D, E, ROOTS[3]]), (2, 3, [ROOTS[1]]), (1, 5, [ROOTS[0], B, D])]
CONSISTENCY = [(1, 1, []), (1, 8, [A, B, C]), (6, 8, [F, E, ROOTS[3]]), (2, 5, [B, D])]


def leaf(data):
    return hashlib.sha256(b"\0" + data).digest()


class Tree:
    """A tree's stored nodes, by leaf."""

    def __init__(self, leaves):
        self.leaves, self.rows, frontier = list(leaves), [], merkle.Frontier()
        self.roots = [merkle.empty_root()]
        for each in self.leaves:
            self.rows.append(frontier.append(each))
            self.roots.append(frontier.root())
        self.reads = 0

    def read(self, level, index):
        self.reads += 1
        return self.rows[((index + 1) << level) - 1][32 * level :][:32]


TREE = Tree(leaf(b"%d" % number) for number in range(300))
KNOWN = Tree(leaf(bytes.fromhex(each)) for each in LEAVES)
PAIRS = st.integers(1, 300).flatmap(lambda size: st.tuples(st.integers(0, size - 1), st.just(size)))


# The definitions of section 2.1, as they are written there.
def split(size):
    half = 1
    while half * 2 < size:
        half *= 2
    return half


def mth(leaves):
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    k = split(len(leaves))
    return hashlib.sha256(b"\1" + mth(leaves[:k]) + mth(leaves[k:])).digest()


def path(m, leaves):
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    return [*path(m, leaves[:k]), mth(leaves[k:])] if m < k else [*path(m - k, leaves[k:]), mth(leaves[:k])]


def subproof(m, leaves, *, whole):
    if m == len(leaves):
        return [] if whole else [mth(leaves)]
    k = split(len(leaves))
    if m <= k:
        return [*subproof(m, leaves[:k], whole=whole), mth(leaves[k:])]
    return [*subproof(m - k, leaves[k:], whole=False), mth(leaves[:k])]


def test_the_known_roots():
    assert [each.hex() for each in KNOWN.roots[1:]] == ROOTS
    assert merkle.Frontier().root().hex() == hashlib.sha256(b"").hexdigest() == merkle.root(0, KNOWN.read).hex()


@pytest.mark.parametrize(("index", "size", "expected"), INCLUSION)
def test_the_known_inclusion_proofs(index, size, expected):
    assert [each.hex() for each in merkle.inclusion_proof(index, size, KNOWN.read)] == expected


@pytest.mark.parametrize(("old", "new", "expected"), CONSISTENCY)
def test_the_known_consistency_proofs(old, new, expected):
    assert [each.hex() for each in merkle.consistency_proof(old, new, KNOWN.read)] == expected


def test_all_proofs_of_small_trees_are_those_of_the_definitions_and_hold():
    for size in range(1, 35):
        leaves = TREE.leaves[:size]
        assert merkle.root(size, TREE.read) == TREE.roots[size] == mth(leaves)
        for index in range(size):
            proof = merkle.inclusion_proof(index, size, TREE.read)
            assert proof == path(index, leaves)
            merkle.verify_inclusion(leaves[index], index, size, proof, TREE.roots[size])
        for old in range(1, size + 1):
            proof = merkle.consistency_proof(old, size, TREE.read)
            assert proof == subproof(old, leaves, whole=True)
            merkle.verify_consistency(old, size, TREE.roots[old], TREE.roots[size], proof)


def some(below, start=0):
    """All numbers of a small range, some of a larger one."""
    every = range(start, below)
    return every if below <= 71 else random.Random(below).sample(every, 10)  # noqa: S311 - they are to be the same


SIZES = [*range(1, 71), *some(300, 71)]


@pytest.fixture(scope="module")
def other():
    tree = pymerkle.InmemoryTree(algorithm="sha256")
    for number in range(300):
        tree.append_entry(b"%d" % number)
    return tree


def test_another_implementation_agrees_about_roots_and_inclusion(other):
    for size in SIZES:
        assert other.get_root(size) == merkle.root(size, TREE.read)
        for index in some(size):
            theirs = other.prove_inclusion(index + 1, size).path
            assert theirs == [TREE.leaves[index], *merkle.inclusion_proof(index, size, TREE.read)]


def test_another_implementation_proves_consistency_with_the_same_nodes(other):
    # Its path begins at the first leaf that the old tree hasn't, whereas the RFC's begins at a complete subtree.
    for size in SIZES:
        for old in some(size, 1):
            proof = other.prove_consistency(old, size)
            ours = merkle.consistency_proof(old, size, TREE.read)
            proof.verify(TREE.roots[old], TREE.roots[size], old, size)
            merkle.verify_consistency(old, size, TREE.roots[old], TREE.roots[size], ours)
            if old % 2 and old > 1:
                assert sorted(proof.path) == sorted(ours)
            else:
                assert set(ours[1 if old.bit_count() == 1 else 2 :]) <= set(proof.path)


@CALM
@given(PAIRS)
def test_a_frontier_can_be_taken_up_from_stored_nodes(pair):
    size, more = pair
    frontier = merkle.Frontier(size, TREE.read)
    assert frontier.root() == TREE.roots[size]
    assert [frontier.append(each) for each in TREE.leaves[size:more]] == TREE.rows[size:more]
    assert (frontier.size, frontier.root()) == (more, TREE.roots[more])


@CALM
@given(PAIRS)
def test_proofs_read_few_nodes_and_each_no_more_than_once(pair):
    index, size = pair
    most = 2 * size.bit_length()
    for prove in (merkle.inclusion_proof, merkle.consistency_proof):
        TREE.reads = 0
        prove(index, size, TREE.read)
        assert TREE.reads <= most


@CALM
@given(PAIRS, st.data())
def test_a_changed_inclusion_proof_is_refused(pair, data):
    index, size = pair
    proof, root = merkle.inclusion_proof(index, size, TREE.read), TREE.roots[size]
    at = data.draw(st.integers(0, len(proof)))
    wrong = [
        (leaf(b"other"), index, size, proof, root),
        (TREE.leaves[index], index, size, proof, leaf(b"other")),
        (TREE.leaves[index], index, size, [*proof[:at], leaf(b"other"), *proof[at:]], root),
        (TREE.leaves[index], size, size, proof, root),
        (TREE.leaves[index], -1, size, proof, root),
    ]
    if at < len(proof):
        wrong.append((TREE.leaves[index], index, size, proof[:at] + proof[at + 1 :], root))
        wrong.append((TREE.leaves[index], index, size, [*proof[:at], leaf(b"other"), *proof[at + 1 :]], root))
        wrong.append((TREE.leaves[index], index, size, [*proof[:at], proof[at][:31], *proof[at + 1 :]], root))
        wrong.append((TREE.leaves[index], index ^ (1 << at), size, proof, root))
    for each in wrong:
        with pytest.raises(BridgeError) as caught:
            merkle.verify_inclusion(*each)
        assert caught.value.code == "bad_proof"


@CALM
@given(PAIRS, st.data())
def test_a_changed_consistency_proof_is_refused(pair, data):
    old, new = pair
    proof = merkle.consistency_proof(old, new, TREE.read)
    merkle.verify_consistency(old, new, TREE.roots[old], TREE.roots[new], proof)
    at = data.draw(st.integers(0, len(proof)))
    wrong = [
        (old, new, leaf(b"other"), TREE.roots[new], proof),
        (old, new, TREE.roots[old], TREE.roots[new], [*proof[:at], leaf(b"other"), *proof[at:]]),
        (new + 1, new, TREE.roots[new], TREE.roots[new], proof),
    ]
    if old:
        wrong.append((old, new, TREE.roots[old], leaf(b"other"), proof))
    if at < len(proof):
        wrong.append((old, new, TREE.roots[old], TREE.roots[new], proof[:at] + proof[at + 1 :]))
        wrong.append((old, new, TREE.roots[old], TREE.roots[new], [*proof[:at], leaf(b"other"), *proof[at + 1 :]]))
    for each in wrong:
        with pytest.raises(BridgeError) as caught:
            merkle.verify_consistency(*each)
        assert caught.value.code == "bad_proof"


@pytest.mark.parametrize("prove", [merkle.inclusion_proof, merkle.consistency_proof])
@pytest.mark.parametrize(("first", "size"), [(4, 3), (-1, 3)])
def test_no_proof_of_what_is_not_in_the_tree(prove, first, size):
    with pytest.raises(BridgeError, match="A tree of 3 entries"):
        prove(first, size, KNOWN.read)


def test_a_proof_longer_than_any_is_not_even_looked_at():
    with pytest.raises(BridgeError, match="no 100000 hashes"):
        merkle.verify_inclusion(KNOWN.leaves[0], 0, 8, [b""] * 100_000, KNOWN.roots[8])


def test_the_empty_tree_is_the_beginning_of_every_tree():
    for size in (0, 1, 8):
        assert merkle.consistency_proof(0, size, KNOWN.read) == []
        merkle.verify_consistency(0, size, merkle.empty_root(), KNOWN.roots[size], [])
    with pytest.raises(BridgeError):
        merkle.verify_consistency(0, 8, KNOWN.roots[1], KNOWN.roots[8], [])
