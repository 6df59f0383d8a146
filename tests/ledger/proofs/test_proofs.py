"""A proof is one file that proves one entry; what is not exactly that is refused, by both verifiers."""

import base64

import pytest
from fuzz_ledger import Case, shows
from ledger_fixtures import ORIGIN, Log, erased, large_says, rotated, signer, simple, small_says, witness

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log import entry_encoding
from mcp_bridge.ledger.proofs import disclosures, merkle, notes, tlog_proof
from mcp_bridge.ledger.proofs.notes import Checkpoint

FIRST = signer().verifier


def parts(data):
    """A proof taken apart, to be changed."""
    proof = tlog_proof.decode(data)
    return {"index": proof.index, "hashes": proof.hashes, "note": proof.note, "extra": proof.extra}


def test_every_entry_of_a_log_is_proved():
    log = simple(8)
    for index in range(len(log.entries)):
        proved = tlog_proof.verify(log.proof(index), [FIRST])
        assert proved.authenticated
        assert proved.leaf.sequence == index
        assert proved.disclosed.entry == log.entries[index]
        assert proved.disclosed.payload == log.payloads[index][0]
        assert (proved.checkpoint, proved.signatures) == (log.state(), ((FIRST, None),))
        assert small_says(log.proof(index), [FIRST.vkey]) is None


def test_the_form_is_the_specifications():
    log = simple(4)
    lines = log.proof(3, disclose=False).decode().split("\n")
    assert lines[0] == "c2sp.org/tlog-proof@v1"
    assert base64.b64decode(lines[1].removeprefix("extra ")) == disclosures.encode(
        disclosures.Disclosed(log.entries[3])
    )
    assert lines[2] == "index 3"
    assert [base64.b64decode(line) for line in lines[3:6]] == merkle.inclusion_proof(3, 5, log.read)
    assert (lines[6], lines[7], lines[8]) == ("", log.origin, "5")


def test_a_proof_holds_after_its_payload_was_erased_and_its_log_has_grown():
    log = simple(4)
    data = log.proof(2)
    log.payloads[2] = (None, None)
    log.fill(5)
    assert tlog_proof.verify(data, [FIRST]).disclosed.payload == log.whole[2]
    assert tlog_proof.verify(log.proof(2), [FIRST]).disclosed.payload is None


def test_a_witness_is_told_with_its_time():
    log = erased()
    changed = parts(log.proof(1)) | {"note": log.checkpoints[-1]}
    proved = tlog_proof.verify(tlog_proof.encode(tlog_proof.Proof(**changed)), [FIRST, witness().verifier])
    assert proved.signatures == ((FIRST, None), (witness().verifier, 1_790_000_000))


def test_a_witness_alone_is_not_the_log():
    log = erased()
    data = tlog_proof.encode(tlog_proof.Proof(**(parts(log.proof(1)) | {"note": log.checkpoints[-1]})))
    assert large_says(data, [witness().vkey], proof=True) == "unknown_key"
    assert small_says(data, [witness().vkey])


def test_a_key_of_another_name_is_not_the_logs():
    log = simple(2)
    strange = signer("first", "another.example")
    note = notes.sign_checkpoint(log.state(), strange)
    data = tlog_proof.encode(tlog_proof.Proof(**(parts(log.proof(1)) | {"note": note})))
    assert large_says(data, [strange.vkey], proof=True) == "unknown_key"
    assert small_says(data, [strange.vkey])


def test_without_a_key_a_proof_is_not_authenticated():
    assert not tlog_proof.verify(simple(3).proof(1), None).authenticated
    assert small_says(simple(3).proof(1), None) is None


def test_after_a_rotation_the_key_of_the_time_is_needed():
    data = rotated().proof(2)
    assert large_says(data, [signer("third").vkey], proof=True) is None
    assert large_says(data, [signer("first").vkey], proof=True) == "unknown_key"


def other_root(log):
    """What the log's key signed of as many entries, others among them."""
    return notes.sign_checkpoint(Checkpoint(log.origin, len(log.entries), b"r" * 32), log.key)


def of_another_log(log):
    strange = signer("first", "another.example")
    return notes.sign_checkpoint(Checkpoint(strange.name, len(log.entries), log.state().root), strange)


@pytest.mark.parametrize(
    ("kept", "code"),
    [
        (lambda log: log.checkpoint(), None),
        (lambda log: log.checkpoint(log.key, witness()), None),
        (other_root, "tampered"),
        (lambda log: log.checkpoint(size=4), "bad_argument"),
        (lambda log: log.fill(1).checkpoint(), "bad_argument"),
        (lambda log: log.checkpoint(signer("stranger")), "unknown_key"),
        (lambda log: log.checkpoint().replace("\n8\n", "\n9\n"), "bad_signature"),
        (of_another_log, "other_log"),
        (lambda log: "", "bad_note"),
    ],
)
@pytest.mark.parametrize("more", [0, 1])
def test_a_proof_is_held_against_checkpoints_kept_elsewhere(kept, code, more):
    log = simple(7)
    data, against = log.proof(4), [log.checkpoint()] * more
    against.append(kept(log))
    keys = [FIRST.vkey, witness().vkey, signer("first", "another.example").vkey]
    if more and code == "bad_argument":
        code = None  # of a file with all that was kept, the one that can be compared counts
    assert large_says(data, keys, against, proof=True) == code
    assert (small_says(data, keys, against) is None) == (code is None)


def test_without_a_key_a_proof_is_held_against_what_kept_checkpoints_say():
    log = simple(7)
    data = log.proof(4)
    for note, code in (
        (log.checkpoint(signer("stranger")), None),
        (other_root(log), "tampered"),
        (of_another_log(log), "other_log"),
        (log.checkpoint(size=4), "bad_argument"),
    ):
        assert large_says(data, None, [note], proof=True) == code
        assert (small_says(data, None, [note]) is None) == (code is None)


LOG = simple(7)
GOOD = LOG.proof(4)
HIDDEN = disclosures.encode(disclosures.Disclosed(LOG.entries[4]))
OTHER = disclosures.encode(disclosures.Disclosed(LOG.entries[3]))
FALSE = disclosures.encode(disclosures.Disclosed(LOG.entries[4], b"{}", b"\0" * 32))
OLDER = notes.sign_checkpoint(LOG.state(6), LOG.key)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"index": 3}, "bad_proof"),
        ({"index": 8}, "bad_proof"),
        ({"extra": None}, "bad_proof"),
        ({"extra": b""}, "bad_entry"),
        ({"extra": OTHER}, "bad_proof"),
        ({"extra": OTHER, "index": 3}, "bad_proof"),
        ({"extra": FALSE}, "tampered"),
        ({"extra": HIDDEN + b"\n"}, "bad_entry"),
        ({"extra": b"[" * 100_000}, "bad_entry"),
        ({"hashes": ()}, "bad_proof"),
        ({"hashes": tlog_proof.decode(GOOD).hashes[:2]}, "bad_proof"),
        ({"hashes": (*tlog_proof.decode(GOOD).hashes, b"\0" * 32)}, "bad_proof"),
        ({"hashes": tlog_proof.decode(GOOD).hashes[::-1]}, "bad_proof"),
        ({"hashes": (b"\0" * 32,) * 65}, "bad_proof"),
        ({"hashes": (b"\0" * 31, *tlog_proof.decode(GOOD).hashes[1:])}, "bad_proof"),
        ({"note": OLDER}, "bad_proof"),
        ({"note": OLDER.replace("\n6\n", "\n8\n")}, "bad_signature"),
        ({"note": ""}, "bad_note"),
        ({"note": "\n" + OLDER}, "bad_note"),
    ],
)
def test_a_changed_proof_is_refused_and_why(change, code):
    data = tlog_proof.encode(tlog_proof.Proof(**(parts(GOOD) | change)))
    assert large_says(data, [FIRST.vkey], proof=True) == code
    assert small_says(data, [FIRST.vkey])


def test_an_entry_beyond_the_signed_tree_is_not_proved():
    log = Log()
    log.append(sequence=5)
    tree = Checkpoint(ORIGIN, 1, entry_encoding.leaf_hash(log.entries[1]))
    extra = disclosures.encode(disclosures.Disclosed(log.entries[1]))
    data = tlog_proof.encode(tlog_proof.Proof(5, (), notes.sign_checkpoint(tree, log.key), extra))
    assert large_says(data, [FIRST.vkey], proof=True) == "bad_proof"
    assert small_says(data, [FIRST.vkey])


@pytest.mark.parametrize("length", [31, 33])
def test_a_hash_has_32_bytes_even_if_the_root_is_made_of_it(length):
    log = Log()
    log.append()
    strange = b"x" * length
    tree = Checkpoint(ORIGIN, 2, merkle.node_hash(strange, entry_encoding.leaf_hash(log.entries[1])))
    extra = disclosures.encode(disclosures.Disclosed(log.entries[1]))
    data = tlog_proof.encode(tlog_proof.Proof(1, (strange,), notes.sign_checkpoint(tree, log.key), extra))
    assert large_says(data, [FIRST.vkey], proof=True) == "bad_proof"
    assert small_says(data, [FIRST.vkey])


def test_only_what_is_left_out_may_differ():
    data = tlog_proof.encode(tlog_proof.Proof(**(parts(GOOD) | {"extra": HIDDEN})))
    assert large_says(data, [FIRST.vkey], proof=True) is None
    assert small_says(data, [FIRST.vkey]) is None


@pytest.mark.parametrize("wrong", [b"", b"\xff", GOOD[:-1], GOOD + b"\n", GOOD.replace(b"\n", b"\r\n"), b" " + GOOD])
def test_what_has_not_the_form_of_a_proof_is_refused(wrong):
    assert large_says(wrong, [FIRST.vkey], proof=True)
    assert small_says(wrong, [FIRST.vkey])


def test_a_proof_of_too_many_bytes_is_not_read():
    with pytest.raises(BridgeError, match="more than 100663296 bytes"):
        tlog_proof.decode(bytes(tlog_proof.MAX_PROOF_BYTES + 1))


def test_every_changed_byte_is_found_by_both():
    log = Log().fill(2)
    data = log.proof(1)
    case = Case("a proof", data, (FIRST.vkey,), log.entries, log.whole)
    for at in range(len(data)):
        for byte in {data[at] ^ 1, data[at] ^ 0x80, ord("A")} - {data[at]}:
            changed = data[:at] + bytes([byte]) + data[at + 1 :]
            assert large_says(changed, case.keys, proof=True), at
            assert small_says(changed, case.keys), at
    assert shows(case, 1, tlog_proof.verify(data, [FIRST]).disclosed)
