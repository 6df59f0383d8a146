"""The project's two verifiers and a third one that shares no code with them (`peers.ledger_peer`) come to the same verdict.

On what bridges have written, 0.1.0 as well; on the same with damage; and on what a holder of the keys could make.
`MCP_BRIDGE_TEST_LONG=1` asks for many more of them.
"""

import base64
import collections
import io
import json
import logging
import os
import random
import re
import shutil
import time
import uuid
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from cli_fixtures import TOOLS, Desk, tool
from ledger_fixtures import large_says, small, small_says
from pages import text_of
from peers import ledger_peer
from peers.ledger_peer import COSIGNATURE, Refused, parse_vkey
from peers.mutants import OTHER_WITNESS, STRANGER, WITNESS, Case, a_book, forged, in_notes, mutant
from peers.tlog_peer import COSIGNED, Book, Witness, checkpoint_text, serving, signed, to_base64

from mcp_bridge.ledger.log.entries import Kind
from mcp_bridge.ledger.proofs import export_verification
from mcp_bridge.ledger.proofs import tlog_proof as proofs
from mcp_bridge.ledger.proofs.note_files import notes_in
from mcp_bridge.ledger.proofs.signing import Verifier

# One worker's, which writes the ledgers that they share.
pytestmark = pytest.mark.xdist_group("verifiers")

LONG = bool(os.environ.get("MCP_BRIDGE_TEST_LONG"))

MUTANTS = 12_000 if LONG else 350
"""Of one seed, a test."""

SEEDS = [1, 2, 3]

GOLDEN = Path(__file__).parents[2] / "golden" / "ledger-0.1.0.zip"

PEEK = {"name": "peek", "steps": [tool("look"), tool("delete")]}


def peer_says(case):
    """Why the third verifier refuses a file, or None."""
    try:
        ledger_peer.verify(case.data, case.vkeys or (), case.kept)
    except Refused as refused:
        return str(refused)
    return None


def verdicts(case):
    """What the three say, by name; None for nothing."""
    return {
        "large": large_says(case.data, case.vkeys, case.kept, proof=case.is_proof),
        "small": small_says(case.data, case.vkeys, case.kept),
        "peer": peer_says(case),
    }


def agreed(case):
    """What all three say: whether it is genuine."""
    found = verdicts(case)
    accepted = {said is None for said in found.values()}
    assert len(accepted) == 1, told(case, found)
    return accepted.pop()


def told(case, found):
    return f"{case.kind}: {found}\nby {case.vkeys}, kept {case.kept}\n{case.data.decode(errors='backslashreplace')}"


# What bridges have written.


class Story:
    """A real ledger at several times of its life, and what is expected of each file by each reader.

    Attributes:
        genuine: Cases that have to be accepted.
        others: Cases that have to be refused.
    """

    def __init__(self, folder):
        self.desk = Desk(folder)
        self.desk.write(f"tools/desk_{uuid.uuid4().hex}.py", TOOLS)
        self.desk.write("programs/peek.yaml", PEEK)
        self.desk.configure()
        self.genuine, self.others = [], []
        self._files = 0

    def run(self):
        return self.desk.run("program", "run", "peek", "--context", '{"name": "a"}', "--json").json["trace_id"]

    def said(self, *arguments):
        return self.desk.run("audit", *arguments).out.rstrip("\n")

    def export(self, *options):
        self._files += 1
        path = self.desk.folder / f"{self._files}.jsonl"
        self.desk.run("audit", "export", path, *options)
        return path.read_bytes()

    def proof(self, entry, *options):
        return self.desk.run("audit", "prove", str(entry), *options).out.encode()

    def accept(self, kind, data, *vkeys, kept=()):
        self.genuine.append(Case(kind, data, vkeys, tuple(kept)))

    def refuse(self, kind, data, *vkeys, kept=()):
        self.others.append(Case(kind, data, vkeys, tuple(kept)))


def _tell(story):  # noqa: PLR0915  (a long story, told once)
    desk = story.desk
    erased = story.run()
    first = story.said("key")
    noted = ledger_peer.notes_in(story.said("checkpoint") + "\n")
    story.accept("new", story.export(), first, kept=noted)
    story.accept("with payloads", story.export("--payloads"), first)
    fork = Story(desk.folder / "fork")
    shutil.copytree(desk.state, fork.desk.state, symlinks=True)

    witness = Witness(WITNESS, [parse_vkey(first)], lambda: int(time.time()))
    with serving(witness.answer) as url:
        witnessed = f'[[ledger.publish]]\nwitness = "{url}"\nkey = "{WITNESS.vkey}"\n'
        desk.configure(f'{witnessed}[[ledger.publish]]\nfile = "notes.txt"')
        desk.run("audit", "publish")
        story.accept("cosigned", story.export(), first, WITNESS.vkey, kept=noted)
        story.accept("cosigned", story.proof(2), first, WITNESS.vkey)
        story.run()
        story.accept("grown since", story.export("--payloads"), first, kept=noted)
        desk.run("audit", "publish")
    desk.configure()
    noted = ledger_peer.notes_in((desk.folder / "notes.txt").read_text())
    # Those of `audit publish`, and what the script's bridge has published when it began: of the one log as it grew.
    grown = [int(note.splitlines()[1]) for note in noted]
    assert len(noted) in {2, 3}
    assert grown == sorted(set(grown))
    cosigned = story.export("--payloads")
    story.accept("cosigned again", cosigned, first, WITNESS.vkey, kept=noted)
    size = json.loads(cosigned.split(b"\n")[0])["size"]
    for entry in range(size):
        story.accept("proof", story.proof(entry, *(["--no-payload"] if entry % 2 else [])), first, kept=noted[-1:])
    story.refuse("proof of another size", story.proof(1), first, kept=noted[:1])

    # Two histories under one key, each of them genuine for who has seen no other.
    fork.run()
    fork.run()
    forked = fork.export("--payloads")
    story.accept("fork", forked, first)
    story.refuse("fork", forked, first, kept=noted)
    story.refuse("fork", cosigned, first, kept=ledger_peer.notes_in(fork.said("checkpoint") + "\n"))
    story.refuse("fork", fork.proof(size - 1), first, kept=noted[-1:])
    story.refuse("rolled back", story.genuine[0].data, first, kept=noted)

    second = json.loads(desk.run("audit", "rotate-key", "--json").out)["key"]
    story.accept("rotated", story.export(), first)
    story.run()
    rotated = story.export("--payloads")
    for keys in ((first,), (second,), (first, second), (second, WITNESS.vkey)):
        story.accept("rotated", rotated, *keys, kept=noted)
    story.accept("rotated", story.proof(3), second)
    story.refuse("rotated", story.proof(3), first)
    desk.run("erase", "--execution", erased)
    story.accept("erased", story.export("--payloads"), first, second)
    assert b'"payload":null' in story.genuine[-1].data
    (desk.state / "checkpoint.key").unlink()
    third = json.loads(desk.run("audit", "rotate-key", "--lost", "--json").out)["key"]
    story.run()
    lost = story.export("--payloads")
    story.accept("lost", lost, third, kept=noted)
    story.accept("lost", story.proof(1), third)
    story.refuse("lost", lost, first, second)
    desk.run("audit", "rotate-key")
    story.run()
    story.accept("lost and rotated", story.export(), third)
    story.refuse("lost and rotated", story.export(), second, kept=noted)
    desk.run("backup", "--without-keys", "backup")
    story.run()
    later = ledger_peer.notes_in(story.said("checkpoint") + "\n")
    desk.state.rename(desk.folder / "away")
    story.restored = desk.run("restore", "backup", "--keys", "away", "--json").json["entry"]
    story.run()
    story.accept("restored", story.export(), third, kept=noted)
    story.refuse("restored", story.export(), third, kept=later)


def test_what_a_log_lacks_by_its_own_word_all_three_tell(story):
    (case,) = [each for each in story.genuine if each.kind == "restored"]
    found = export_verification.verify_export(io.BytesIO(case.data), [Verifier.parse(vkey) for vkey in case.vkeys])
    assert [(loss.entry, loss.restored) for loss in found.losses] == [(story.restored, True)]
    assert ledger_peer.verify(case.data, case.vkeys).losses == ((story.restored, True),)
    said = small().verify(io.BytesIO(case.data))
    assert f"; entry {story.restored}: its end was lost, or a backup was restored" in said


def test_a_kind_of_entry_is_one_to_all_three_and_to_the_page():
    kinds = set(get_args(Kind))
    (row,) = (line for line in text_of("docs/ledger-format.md").splitlines() if line.startswith("| `kind` |"))
    assert set(re.findall(r"`(\w+)`", row)) - {"kind"} == ledger_peer.KINDS == set(small().KINDS.split("|")) == kinds


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A real ledger's life, told by the command line alone."""
    folder = tmp_path_factory.mktemp("story")
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("MCP_BRIDGE_"):
                patch.delenv(name)
        patch.setattr(logging, "basicConfig", lambda **_: None)
        patch.chdir(folder)
        told = Story(folder)
        _tell(told)
    return told


@pytest.fixture(scope="module")
def golden():
    """What version 0.1.0 has written."""
    with zipfile.ZipFile(GOLDEN) as archive:
        vkey, export, proof = map(archive.read, ("vkey", "export.jsonl", "entry-5.tlog-proof"))
    second = vkey.decode().strip()
    first = json.loads(json.loads(export.split(b"\n")[1])["payload"])["vkey"]
    return [Case("0.1.0", export, (key,)) for key in (first, second)] + [Case("0.1.0", proof, (second,))]


def test_the_three_agree_on_what_bridges_write(story, golden):
    for case in [*story.genuine, *golden]:
        assert agreed(case), case.kind
        # Nobody needs a key to see that it agrees with itself; who trusts another key is told so.
        assert agreed(replace(case, vkeys=None))
        assert agreed(replace(case, vkeys=(STRANGER.vkey,))) is False
    for case in story.others:
        assert agreed(case) is False, case.kind


def test_the_three_agree_on_who_has_cosigned(story):
    cosigned = [case for case in story.genuine if WITNESS.vkey in case.vkeys]
    assert cosigned
    for case in cosigned:
        found = ledger_peer.verify(case.data, case.vkeys, case.kept)
        assert WITNESS.vkey in found.cosigned or case.kind == "rotated"
        # A cosignature that isn't the witness's is one of nobody's, and one that says to be and isn't is refused.
        lines = case.data.decode()
        assert agreed(replace(case, data=lines.replace(f"{WITNESS.name} ", "witness.example/w9 ").encode()))
        if WITNESS.vkey not in found.cosigned:
            continue
        signatures = [each for text in _notes(lines) for each in ledger_peer.Note(text).signatures]
        ident, signature = next((ident, signature) for name, ident, signature in signatures if name == WITNESS.name)
        one, other = (to_base64(ident + each) for each in (signature, signature[:-1] + bytes([signature[-1] ^ 1])))
        assert agreed(replace(case, data=lines.replace(one, other).encode())) is False


def _notes(text):
    if text.startswith("c2sp.org/"):
        return [text.partition("\n\n")[2]]
    return [line["checkpoint"] for line in map(json.loads, text.splitlines()) if "checkpoint" in line]


def test_a_proof_proves_no_other_entry(story):
    proofs = [case for case in story.genuine if case.kind == "proof"]
    parts = [case.data.partition(b"\nindex ") for case in proofs]
    for case, (_, _, rest) in zip(proofs, parts, strict=True):
        for extra, word, _ in parts:
            swapped = replace(case, data=extra + word + rest)
            assert agreed(swapped) is (swapped.data == case.data)


# Damaged by somebody without a key.


def entries(data):
    return [line["entry"] for line in map(json.loads, data.splitlines()) if "entry" in line]


def same(case, genuine):
    """Whether what is accepted has the entries of the genuine file. That what is told of them is right, the three have seen."""
    if case.is_proof:
        extras = [base64.b64decode(each.data.split(b"\n")[1].removeprefix(b"extra ")) for each in (case, genuine)]
        one, other = (json.loads(extra)["entry"] for extra in extras)
        return one == other
    return entries(case.data) == entries(genuine.data)


@pytest.mark.timeout(3600 if LONG else 180)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_three_agree_on_damaged_files(story, golden, seed):
    chance = random.Random(seed)  # noqa: S311
    bases = [*story.genuine, *golden]
    files = [case.data for case in bases]
    found = collections.Counter()
    for _ in range(MUTANTS):
        base = chance.choice(bases)
        case = mutant(chance, base, files)
        verdict = agreed(case)
        found[case.kind, verdict] += 1
        assert not verdict or same(case, base), told(case, "accepted")
    print(dict(found))
    assert sum(count for (_, verdict), count in found.items() if verdict is False) > 0.8 * MUTANTS


@pytest.mark.timeout(3600 if LONG else 180)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_three_agree_on_what_the_holder_of_the_keys_makes(seed):
    chance = random.Random(seed)  # noqa: S311
    found = collections.Counter()
    for _ in range(MUTANTS):
        case = forged(chance)
        found[case.kind, agreed(case)] += 1
    print(dict(found))
    assert sum(count for (_, verdict), count in found.items() if verdict) > 0.1 * MUTANTS


@pytest.mark.timeout(3600 if LONG else 180)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_three_agree_on_damaged_files_of_checkpoints(seed):
    chance = random.Random(seed)  # noqa: S311
    book = Book().fill(6).checkpoint()
    case = Case("checkpoints", book.export(), (book.vkey,))
    found = collections.Counter()
    for _ in range(MUTANTS):
        text = in_notes(chance, [book.note(size) for size in chance.sample(range(1, book.size + 1), 3)])
        if not all(map(_is_whole, re.findall("^\u2014 .*$", text, re.MULTILINE))):
            # What a crash has left of a line of signatures is passed over, and what that takes with it is nobody's promise.
            continue
        said = [read(text, case) for read in (_large_notes, _small_notes, _peer_notes)]
        assert len({each is None for each in said}) == 1, (said, text)
        found[said[2]] += 1
    assert found[None] > 0.05 * MUTANTS
    print(dict(found))


def _is_whole(line):
    name, _, signature = line[2:].partition(" ")
    return ledger_peer.is_name(name) and re.fullmatch("[A-Za-z0-9+/]{91}=|[A-Za-z0-9+/]{102}==", signature) is not None


def _large_notes(text, case):
    notes = notes_in(text)
    return large_says(case.data, case.vkeys, notes) if notes else "there is none"


def _small_notes(text, case):
    try:
        return small_says(case.data, case.vkeys, small().notes_in(text))
    except ValueError as error:
        return str(error)


def _peer_notes(text, case):
    try:
        return peer_says(replace(case, kept=tuple(ledger_peer.notes_in(text))))
    except Refused as refused:
        return str(refused)


# What a key may sign.


def handed_over(event):
    """A log of two keys, and entries of each."""
    return Book().fill(3).checkpoint().fill(1).replace_key("second", event).fill(2)


@pytest.mark.parametrize("event", ["rotated", "lost"])
def test_a_key_signs_until_it_is_replaced(event):
    book = handed_over(event).checkpoint()
    first, second = book.signers
    rotation = 6
    for size in range(1, rotation):
        assert agreed(Case("before", book.export(), (second.vkey,), (book.note(size, first),)))
        assert agreed(Case("before", book.proof(0, first, size=size), (first.vkey,)))
    for size in range(rotation, book.size + 1):
        assert agreed(Case("after", book.export(), (second.vkey,), (book.note(size, second),)))
    assert agreed(Case("chain", book.export(), (first.vkey,))) is (event == "rotated")


def after_it_was_replaced():
    for event in ("rotated", "lost"):
        book = handed_over(event)
        first, second = book.signers
        size = book.size
        book.checkpoint(first)
        for reader in ((first,), (second,), (first, second)):
            yield f"the end, {event}, trusting {len(reader)}", book, reader, ()
        book = handed_over(event).checkpoint()
        # The checkpoint that has the rotation is still the old key's, a lost key has no such.
        for later in range(7 if event == "rotated" else 6, size + 1):
            yield f"kept, {event}, {later}", book, (second,), (book.note(later, first),)
        book = handed_over(event)
        book.points.append((7, (first,)))
        yield f"in between, {event}", book.checkpoint(), (second,), ()
    book = handed_over("lost").checkpoint(*handed_over("lost").signers)
    yield "beside the new one", book, (book.signers[0],), ()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(name, book.export(), tuple(signer.vkey for signer in reader), kept), id=name)
        for name, book, reader, kept in after_it_was_replaced()
    ],
)
def test_a_key_that_was_replaced_signs_nothing_that_came_later(case):
    assert agreed(case) is False


YEARS = 365 * 24 * 3600


def cosigned(kind, moment):
    """A file whose checkpoint a witness has cosigned at a moment."""
    book = Book().fill(3)
    text = checkpoint_text(book.origin, book.size, book.tree().root())
    note = signed(text, *book.signers) + WITNESS.line(text, moment)
    if kind == "export":
        data = book.export() + ledger_peer.canonical({"checkpoint": note}).encode() + b"\n"
    else:
        data = book.proof(1).partition(b"\n\n")[0] + b"\n\n" + note.encode()
    return Case("cosigned", data, (book.vkey, WITNESS.vkey))


def who_cosigned(case):
    """By all three: the witnesses that have cosigned, and up to what size."""
    keys = [Verifier.parse(vkey) for vkey in case.vkeys]
    if case.is_proof:
        found = proofs.verify(case.data, keys, case.kept)
        large = {key.vkey: found.checkpoint.size for key, *_ in found.signatures if key.kind == COSIGNATURE}
    else:
        large = {
            each.by.vkey: each.size
            for each in export_verification.verify_export(io.BytesIO(case.data), keys, case.kept).cosigned
        }
    known = {}
    for vkey in case.vkeys:
        small().add_key(known, vkey)
    told = str(small().verify(io.BytesIO(case.data), known, case.kept))
    by_small = {name: int(size) for name, size in re.findall(r"(\S+) cosigned (\d+) of them", told)}
    peer = ledger_peer.verify(case.data, case.vkeys, case.kept).cosigned
    assert large == peer
    assert by_small == {vkey.partition("+")[0]: size for vkey, size in peer.items()}
    return peer


@pytest.mark.parametrize(
    ("kind", "moment"),
    [(kind, moment) for kind in ("export", "proof") for moment in (0, 1, 3600, COSIGNED, "now", "ahead", 2**63 - 1)],
)
def test_a_cosignature_counts_if_its_time_is_possible(kind, moment):
    real = {"now": int(time.time()), "ahead": int(time.time()) + 10 * YEARS}.get(moment, moment)
    case = cosigned(kind, real)
    # It says nothing against what is signed: whoever doesn't know the witness can't tell.
    assert agreed(case)
    assert agreed(replace(case, vkeys=case.vkeys[:1]))
    assert who_cosigned(case) == ({WITNESS.vkey: 4} if moment in (COSIGNED, "now") else {})


def test_a_cosignature_of_more_than_63_bits_is_refused():
    for kind in ("export", "proof"):
        assert agreed(cosigned(kind, 2**63)) is False


def test_the_three_say_the_same_of_who_has_cosigned_a_log_that_has_grown():
    book = Book().fill(2)
    first = book.signers[0]
    book.checkpoint(first, WITNESS).fill(2).checkpoint(first, OTHER_WITNESS).fill(2).checkpoint(first, WITNESS).fill(1)
    case = Case("grown", book.checkpoint().export(), (book.vkey, WITNESS.vkey, OTHER_WITNESS.vkey))
    assert who_cosigned(case) == {WITNESS.vkey: 7, OTHER_WITNESS.vkey: 5}
    assert who_cosigned(replace(case, vkeys=(book.vkey, STRANGER.vkey))) == {}


# The third verifier itself.


def test_the_peer_accepts_what_the_peer_writes_and_the_project_too():
    chance = random.Random(7)  # noqa: S311
    for _ in range(20):
        book = a_book(chance)
        assert agreed(Case("book", book.export(), (book.vkey,)))
        for index in range(book.size):
            assert agreed(Case("book", book.proof(index), (book.vkey,)))
            assert agreed(Case("book", book.proof(index, told=False), (book.vkey,)))


def test_the_peer_computes_the_proofs_of_rfc_6962():
    """The tree of seven leaves of section 2.1.3."""
    tree = ledger_peer.Tree(ledger_peer.leaf_hash(b"%d" % number) for number in range(7))
    leaf, node = tree.leaves, ledger_peer.node_hash
    g, h, i, j = node(leaf[0], leaf[1]), node(leaf[2], leaf[3]), node(leaf[4], leaf[5]), leaf[6]
    k, m = node(g, h), node(i, j)
    assert tree.root() == node(k, m)
    assert tree.inclusion(0) == [leaf[1], h, m]
    assert tree.inclusion(3) == [leaf[2], g, m]
    assert tree.inclusion(4) == [leaf[5], j, k]
    assert tree.inclusion(6) == [i, k]
    assert tree.consistency(3) == [leaf[2], leaf[3], g, m]
    assert tree.consistency(4) == [m]
    assert tree.consistency(6) == [i, j, k]
    for old in range(1, 7):
        for new in range(old + 1, 8):
            path = tree.consistency(old, new)
            assert ledger_peer.roots_of_consistency(old, new, tree.root(old), path) == (tree.root(old), tree.root(new))
    for size in range(1, 8):
        for index in range(size):
            path = tree.inclusion(index, size)
            assert ledger_peer.root_of_inclusion(index, size, leaf[index], path) == tree.root(size)


def test_the_peer_writes_json_as_rfc_8785_has_it():
    value = {
        "\u20ac": "Euro",
        "\r": "CR",
        "\ufb33": "Dalet",
        "1": 1,
        "\U0001f600": "smile",
        "\u0080": "control",
        "\u00f6": [],
    }
    names = ["\\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    text = ledger_peer.canonical(value)
    assert [text.index(f'"{name}":') for name in names] == sorted(text.index(f'"{name}":') for name in names)
    assert ledger_peer.canonical('\u20ac$\u000f\nA\'B"\\\\"/') == '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'


def test_the_peer_takes_the_keys_and_notes_of_the_specifications():
    """The examples of signed-note and tlog-cosignature."""
    key = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
    note = (
        "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n\n"
        "\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
    )
    assert ledger_peer.Note(note).signed_by(parse_vkey(key))
    with pytest.raises(Refused):
        ledger_peer.Note(note.replace("answer", "Answer")).signed_by(parse_vkey(key))
