"""An export verifies with nothing but itself and a key; each thing that can be wrong with it is found, and where."""

import dataclasses
import io
import itertools
import json
import time
import tracemalloc

import pytest
import rfc8785
from ledger_fixtures import (
    ORIGIN,
    TIME,
    Log,
    erased,
    large_says,
    lost,
    rotated,
    signer,
    simple,
    small,
    small_says,
    witness,
)

from mcp_bridge.cli import verdicts
from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.audit import proving
from mcp_bridge.ledger.log import entry_encoding, key_history
from mcp_bridge.ledger.log.log_payloads import KeyEvent
from mcp_bridge.ledger.proofs import disclosures, export_format, export_verification, notes, signing, tlog_proof
from mcp_bridge.ledger.proofs.notes import Checkpoint

FIRST, SECOND, THIRD = (signer(seed).vkey for seed in ("first", "second", "third"))


def keys(*vkeys):
    return [signing.Verifier.parse(vkey) for vkey in vkeys]


def verify(data, vkeys=(FIRST,), against=()):
    return export_verification.verify_export(io.BytesIO(data), keys(*vkeys) if vkeys is not None else None, against)


def refused(data, code, vkeys=(FIRST,), against=(), line=None):
    """Both refuse it, the large one with that code and line."""
    with pytest.raises(BridgeError) as caught:
        verify(data, vkeys, against)
    assert caught.value.code == code, str(caught.value)
    found = caught.value.details.get("line")
    assert caught.value.message.startswith("A checkpoint kept elsewhere" if found is None else f"Line {found}: ")
    assert line in {None, found}
    assert small_says(data, vkeys, against)


def accepted(data, vkeys=(FIRST,), against=()):
    assert small_says(data, vkeys, against) is None
    return verify(data, vkeys, against)


@pytest.mark.parametrize(
    ("payload", "says", "words"),
    [
        (b'{"by":"anna","has":4,"restored":true}', (True, None), "from a backup of its first 4 entries"),
        (b'{"by":"anna","had":9,"has":4}', (False, 9), "its end was lost: 4 entries were left; it had 9;"),
        (b'{"by":"anna","has":4}', (False, None), "its end was lost: 4 entries were left;"),
        (b'{"had":-1,"restored":"true"}', (False, None), "its end was lost: 4 entries were left;"),
        (b'{"had":true,"restored":1}', (False, None), "its end was lost: 4 entries were left;"),
        (b"[" * 60_000, (None, None), "its end was lost, or it was restored from a backup"),
        (b'{"restored":true}' + b" " * (64 << 10), (None, None), "its end was lost, or it was restored from a backup"),
        (None, (None, None), "its end was lost, or it was restored from a backup"),
    ],
)
def test_a_log_that_says_what_it_lacks_is_told_of_and_refuted_by_no_way_of_saying_it(payload, says, words):
    log = simple(3)
    log.append(kind="loss", execution=entry_encoding.LEDGER, payload=payload or b"{}", disclose=payload is not None)
    log.append(kind="loss", execution="e1")
    log.checkpoint()
    found = accepted(log.export())
    (loss,) = found.losses
    assert (loss.entry, (loss.restored, loss.had)) == (4, says)
    (line,) = verdicts._loss_lines({"losses": [loss._asdict()]})
    assert words in line


def test_a_verdict_says_what_was_found():
    log = simple(6)
    found = accepted(log.export())
    assert (found.origin, found.size, found.root) == (ORIGIN, 7, log.state().root)
    assert (found.authenticated, found.keys) == (True, (FIRST,))
    assert (found.executions, found.disclosed, found.undisclosed) == (3, 6, 1)
    assert (found.checkpoints, found.compared, found.witnesses) == (1, 0, ())


def test_without_a_key_nothing_is_authenticated():
    found = accepted(simple().export(), None)
    assert (found.authenticated, found.keys) == (False, ())


def test_a_verdict_tells_what_is_withheld_from_what_is_erased():
    log = Log().fill(8, disclose=False)
    log.append(kind="erasure", execution=entry_encoding.LEDGER, payload=b'{"executions":["e1","e7"],"by":"age"}')
    log.checkpoint()
    found = accepted(log.export())
    of = [entry_encoding.decode(entry).execution for entry in log.entries]
    assert (found.undisclosed, found.withheld, found.erased) == (8, 8 - of.count("e1"), 1)


@pytest.mark.parametrize("payload", [b"[]", b"{", b'{"executions":{}}', b'{"executions":[["e1"]]}', b"[" * 200_000])
def test_an_erasure_that_says_nothing_erases_nothing(payload):
    log = Log().fill(8, disclose=False)
    log.append(kind="erasure", execution=entry_encoding.LEDGER, payload=payload)
    log.checkpoint()
    found = accepted(log.export())
    assert (found.undisclosed, found.withheld, found.erased) == (8, 8, 0)


def test_what_each_witness_has_cosigned_is_told_of_every_checkpoint():
    log, other = Log().fill(2), witness("other")
    log.checkpoint(log.key, witness())
    log.fill(1).checkpoint(log.key, other)
    log.fill(1).checkpoint(log.key, witness(), other)
    log.fill(1).checkpoint()
    found = accepted(log.export(), (FIRST, witness().vkey, other.vkey))
    one, two = witness().verifier, other.verifier
    at = 1_790_000_000
    assert found.cosigned == ((3, at, one), (4, at, two), (5, at, one), (5, at, two))
    assert {(row.size, row.by) for row in found.newest_cosigned} == {(5, one), (5, two)}
    # Who doesn't know a witness is told nothing of it.
    assert accepted(log.export()).cosigned == ()


YEAR = 31_557_600


@pytest.mark.parametrize(
    ("seconds", "counts"),
    [
        (0, False),
        (1, False),
        (86_400 * 364, False),
        (1_672_531_199, False),
        (1_672_531_200, True),
        (1_679_315_147, True),
        (lambda: int(time.time()) + 3600, True),
        (lambda: int(time.time()) + 2 * 86_400, False),
        (lambda: int(time.time()) + 10 * YEAR, False),
        (2**63 - 1, False),
    ],
)
def test_a_cosignature_of_a_time_that_cannot_be_counts_for_nothing(seconds, counts):
    seconds = seconds() if callable(seconds) else seconds
    log = Log().fill(3)
    note = log.checkpoint()
    log.checkpoints = [note + witness().cosign(notes.split_note(note)[0], seconds)]
    for proof, data in ((False, log.export()), (True, proof_by(log))):
        assert large_says(data, (FIRST, witness().vkey), proof=proof) is None
        assert small_says(data, (FIRST, witness().vkey)) is None
        told = small().verify(io.BytesIO(data), small_keys(FIRST, witness().vkey))
        assert ("cosigned" in told) == counts
    assert bool(verify(log.export(), (FIRST, witness().vkey)).cosigned) == counts
    proved = tlog_proof.verify(proof_by(log), keys(FIRST, witness().vkey))
    assert any(seen is not None for _, seen in proved.signatures) == counts


def proof_by(log):
    """The proof of entry 1 by the log's last checkpoint, as it is kept."""
    found = tlog_proof.decode(log.proof(1))
    return tlog_proof.encode(dataclasses.replace(found, note=log.checkpoints[-1]))


def small_keys(*vkeys):
    known = {}
    for vkey in vkeys:
        small().add_key(known, vkey)
    return known


def test_a_proof_is_made_from_the_checkpoint_that_says_most_to_who_asks():
    log = Log().fill(2)
    log.checkpoint(log.key, witness())
    log.fill(1)
    log.replace_key("second").fill(1)
    log.checkpoint(log.key, witness("other"))
    log.fill(2).checkpoint()
    cosigned_by_first, rotation, cosigned_by_second, newest = (
        notes.parse_checkpoint(notes.split_note(note)[0]).size for note in log.checkpoints
    )

    def size(entry, *vkeys):
        proof = proving.prove_by(io.BytesIO(log.export()), keys(*vkeys) if vkeys else None, entry, payload=True).data
        verified = tlog_proof.verify(proof, None)
        assert verified.leaf.sequence == entry
        return verified.checkpoint.size

    assert size(1, FIRST) == cosigned_by_first
    assert size(1, FIRST, witness().vkey) == cosigned_by_first
    assert size(3, FIRST) == rotation
    assert size(1, SECOND) == size(1, SECOND, witness("other").vkey) == cosigned_by_second
    assert size(5, FIRST) == size(5, SECOND) == cosigned_by_second
    assert size(6, FIRST) == size(6, SECOND) == newest
    assert size(1) == cosigned_by_second


def test_the_lines_of_an_export_are_canonical_json():
    lines = rotated().lines()
    for line in lines:
        assert rfc8785.dumps(json.loads(line)) + b"\n" == line
    for entry in rotated().entries:
        assert rfc8785.dumps(json.loads(entry)) == entry
    assert json.loads(lines[0]) == {"format": "mcp-code-bridge-ledger/1", "origin": ORIGIN, "size": 13}


def test_lines_can_come_from_anywhere():
    lines = simple().lines()
    assert export_verification.verify_export(iter(lines), keys(FIRST)) == verify(b"".join(lines))


def test_a_witness_is_told_with_its_time():
    found = accepted(erased().export(), (FIRST, witness().vkey))
    assert found.witnesses == ((witness().verifier, 1_790_000_000),)
    refused(erased().export(), "untrusted_key", (witness().vkey,))


# What the file says of its keys, and what can be trusted by it.


@pytest.mark.parametrize(
    ("given", "trusted"), [(FIRST, [FIRST, SECOND, THIRD]), (SECOND, [SECOND, THIRD]), (THIRD, [THIRD])]
)
def test_a_key_vouches_for_the_next_one(given, trusted):
    assert accepted(rotated().export(), (given,)).keys == tuple(trusted)


def test_a_key_that_was_lost_vouches_for_none():
    data = lost().export()
    refused(data, "untrusted_key", (FIRST,))
    assert accepted(data, (SECOND,)).keys == (SECOND,)
    assert accepted(data, (FIRST, SECOND)).keys == tuple(sorted((FIRST, SECOND)))


def test_an_entry_alone_vouches_for_no_key():
    log = Log().fill(3)
    log.checkpoint()
    log.replace_key("second", vouched=False).fill(2).checkpoint()
    refused(log.export(), "untrusted_key", (FIRST,))
    accepted(log.export(), (SECOND,))


def test_a_checkpoint_before_the_rotation_doesnt_vouch_and_a_later_one_does():
    log = Log().fill(2)
    log.checkpoint()
    first = log.key
    log.replace_key("second", vouched=False).fill(2)
    early = [*log.checkpoints, notes.sign_checkpoint(log.state(3), first)]
    log.checkpoints = [early[0]]
    log.checkpoint(log.key)
    refused(log.export(), "untrusted_key", (FIRST,))
    log.checkpoints = [early[0], notes.sign_checkpoint(log.state(4), first), log.checkpoints[-1]]
    accepted(log.export(), (FIRST,))


def test_one_checkpoint_can_be_signed_by_both_keys():
    log = Log().fill(2)
    first = log.key
    log.replace_key("second", vouched=False)
    log.checkpoint(first, log.key)
    assert accepted(log.export(), (FIRST,)).keys == (FIRST, SECOND)


def test_a_thief_of_nothing_cant_name_a_key():
    log = Log().fill(2)
    log.checkpoint()
    thief = signer("thief")
    log.append(
        kind="key", execution=entry_encoding.LEDGER, payload=KeyEvent("rotated", thief.vkey, log.key.vkey).to_bytes()
    )
    log.checkpoint(thief)
    refused(log.export(), "untrusted_key")
    log.checkpoints.pop()
    log.checkpoint(signer("someone"))
    refused(log.export(), "unknown_key", line=7)


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (KeyEvent("made", SECOND).to_bytes(), "tampered"),
        (KeyEvent("rotated", SECOND, THIRD).to_bytes(), "tampered"),
        (KeyEvent("rotated", SECOND[:-1] + "A", FIRST).to_bytes(), "bad_key"),
        (KeyEvent("rotated", signer("second", "another.example").vkey, FIRST).to_bytes(), "bad_key"),
        (KeyEvent("rotated", witness().vkey, FIRST).to_bytes(), "bad_key"),
        (b'{"event":"given","from":"%s","vkey":"%s"}' % (FIRST.encode(), SECOND.encode()), "bad_entry"),
        (b'{"event":"rotated","vkey":"%s"}' % SECOND.encode(), "bad_entry"),
        (b'{"event":"rotated","from":"%s","vkey":1}' % FIRST.encode(), "bad_entry"),
        (b'{"event":"rotated", "from":"%s","vkey":"%s"}' % (FIRST.encode(), SECOND.encode()), "bad_entry"),
        (b"{}", "bad_entry"),
    ],
)
def test_an_entry_that_names_a_key_names_it_after_the_one_before(payload, code):
    log = Log()
    log.append(kind="key", execution=entry_encoding.LEDGER, payload=payload)
    log.checkpoint()
    refused(log.export(), code, line=3)


def test_a_log_that_names_too_many_keys_is_refused(monkeypatch):
    monkeypatch.setattr(key_history, "MAX_KEYS", 2)
    with pytest.raises(BridgeError, match="more than 2 keys"):
        verify(rotated().export())


def test_a_key_entry_is_the_logs_own_and_shows_its_payload():
    log = Log()
    log.append(kind="key", execution="e1", payload=KeyEvent("rotated", SECOND, FIRST).to_bytes())
    log.checkpoint()
    refused(log.export(), "bad_entry", line=3)
    log = simple(2)
    log.payloads[0] = (None, None)
    refused(log.export(), "bad_entry", line=2)
    log = Log()
    log.entries, log.payloads, log.rows, log.heads = [], [], [], {}
    log.frontier = type(log.frontier)()
    log.fill(2).checkpoint()
    refused(log.export(), "bad_entry", line=2)


# Checkpoints that were kept elsewhere.


def test_checkpoints_kept_elsewhere_agree():
    log = rotated()
    assert accepted(log.export(), (FIRST,), log.checkpoints).compared == len(log.checkpoints)
    assert accepted(log.export(), (THIRD,), log.checkpoints[:1]).compared == 1
    assert accepted(log.export(), None, log.checkpoints[:1]).compared == 1


def test_a_roll_back_is_found_by_a_checkpoint_kept_elsewhere():
    log = simple(3)
    before = log.export()
    later = log.fill(2).checkpoint()
    accepted(before)
    refused(before, "rolled_back", against=(later,))


def test_another_history_is_found_by_a_checkpoint_kept_elsewhere():
    kept = simple(3).checkpoints[0]
    log = Log()
    log.append(payload=b'{"another":1}')
    log.fill(5).checkpoint()
    accepted(log.export())
    refused(log.export(), "tampered", against=(kept,))


@pytest.mark.parametrize(
    ("note", "code"),
    [
        ("", "bad_checkpoint"),
        (notes.sign_checkpoint(Checkpoint("another.example", 1, b"\0" * 32), signer()), "other_log"),
        (notes.sign_checkpoint(simple().state(3), signer("second")), "unknown_key"),
        (notes.sign_checkpoint(simple().state(3), signer()).replace("\n3\n", "\n4\n"), "bad_signature"),
        (notes.sign_checkpoint(Checkpoint(ORIGIN, 0, b"\0" * 32), signer()), "tampered"),
    ],
)
def test_what_is_no_checkpoint_of_the_log_is_no_comparison(note, code):
    refused(simple().export(), code, against=(note,))


def test_the_beginning_of_all_logs_agrees():
    accepted(simple().export(), against=(notes.sign_checkpoint(simple().state(0), signer()),))


# Lines.


def test_every_removed_swapped_repeated_or_cut_line_is_found_by_both():
    lines = rotated().lines()
    last = len(lines) - 1
    wrong = [lines[:at] + lines[at + 1 :] for at in range(len(lines)) if not lines[at].startswith(b'{"checkpoint"')]
    wrong += [lines[:at] for at in range(len(lines))]
    wrong += [[*lines[:at], lines[at], *lines[at:]] for at in range(len(lines))]
    wrong += [[*lines[:at], lines[at][:-1]] for at in range(len(lines))]
    for i, j in itertools.combinations(range(len(lines)), 2):
        swapped = list(lines)
        swapped[i], swapped[j] = swapped[j], swapped[i]
        wrong.append(swapped)
    wrong += [[*lines, b"\n"], [*lines, lines[last]], lines[:last], [b"\n", *lines]]
    for each in wrong:
        data = b"".join(each)
        assert large_says(data, [FIRST]), each
        assert small_says(data, [FIRST]), each


def test_every_changed_byte_is_found_by_both():
    log = Log().fill(1).replace_key("second")
    log.checkpoints.pop()
    log.checkpoint(signer())
    data = log.export()
    accepted(data)
    for at in range(len(data)):
        for byte in {data[at] ^ 1, data[at] ^ 0x80, ord("0")} - {data[at]}:
            changed = data[:at] + bytes([byte]) + data[at + 1 :]
            assert large_says(changed, [FIRST]), at
            assert small_says(changed, [FIRST]), at


def changed(line, **values):
    """An entry's line with other values in it, in canonical form."""
    found = json.loads(line)
    entry = entry_encoding.decode(found["entry"].encode())
    leaf = entry_encoding.Leaf(**({name: getattr(entry, name) for name in entry.__dataclass_fields__} | values))
    return (
        disclosures.encode_object(
            entry=entry_encoding.encode(leaf).decode(), payload=found["payload"], salt=found["salt"]
        )
        + b"\n"
    )


@pytest.mark.parametrize(
    ("at", "values", "code"),
    [
        (3, {"sequence": 5}, "tampered"),
        (3, {"time": 1}, "tampered"),
        (3, {"previous": "0" * 64}, "tampered"),
        (3, {"execution": "new"}, "tampered"),
        (3, {"commitment": "0" * 64}, "tampered"),
        (3, {"policy": "other"}, "tampered"),
        (3, {"kind": "nothing"}, "bad_entry"),
        (3, {"execution": ""}, "bad_entry"),
        (3, {"step": "\u0085"}, "bad_entry"),
        (3, {"step": "x" * 4097}, "bad_entry"),
        (3, {"time": 2**53}, "bad_entry"),
        (1, {"kind": "start"}, "bad_entry"),
    ],
)
def test_a_changed_entry_is_refused_and_why(at, values, code):
    lines = simple().lines()
    lines[at] = changed(lines[at], **values)
    refused(b"".join(lines), code)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"sequence": 5}, "tampered"),
        ({"time": 1}, "tampered"),
        ({"previous": None}, "tampered"),
        ({"previous": "0" * 64}, "tampered"),
        ({"previous": "0" * 63}, "bad_entry"),
        ({"commitment": "0" * 64}, "tampered"),
        ({"commitment": "A" * 64}, "bad_entry"),
        ({"kind": "nothing"}, "bad_entry"),
        ({"execution": "", "previous": None}, "bad_entry"),
        ({"execution": "x" * 4097, "previous": None}, "bad_entry"),
        ({"policy": None}, "bad_entry"),
        ({"policy": "a\nb"}, "bad_entry"),
        ({"program": "\x7f"}, "bad_entry"),
        ({"step": "\u0085"}, "bad_entry"),
        ({"step": "x" * 4097}, "bad_entry"),
        ({"time": 2**53}, "bad_entry"),
        ({"time": 10**16}, "bad_entry"),
        ({"time": -1}, "bad_entry"),
        ({"policy": "\U0001f600" * 4096, "program": "\U0001f600" * 4096}, "bad_entry"),
    ],
)
def test_an_entry_that_breaks_a_rule_is_refused_even_if_it_is_signed(values, code):
    log = Log().fill(3)
    log.append(**values)
    log.checkpoint()
    refused(log.export(), code, line=6)


@pytest.mark.parametrize(
    "values", [{"time": TIME + 3000}, {"step": "\u202e\U0001f600"}, {"policy": ""}, {"program": '"\\'}]
)
def test_an_unusual_entry_is_accepted(values):
    log = Log().fill(3)
    log.append(**values)
    log.checkpoint()
    accepted(log.export())


def test_time_goes_back_where_a_person_has_accepted_it_and_nowhere_else():
    log = Log().fill(3)
    log.append(kind="clock", execution="ledger", time=TIME - 5000)
    log.append(time=TIME - 4000)
    log.checkpoint()
    accepted(log.export())
    log.append(time=TIME - 4001)
    log.checkpoint()
    refused(log.export(), "tampered", line=8)


@pytest.mark.parametrize(
    ("at", "old", "new", "code"),
    [
        (0, b"ledger/1", b"ledger/2", "bad_export"),
        (0, b'"size":7', b'"size":0', "bad_export"),
        (0, b'"size":7', b'"size":07', "bad_export"),
        (0, b'"size":7', b'"size":"7"', "bad_export"),
        (0, b'"size":7', b'"size":6', "bad_checkpoint"),
        (0, b'"size":7', b'"size":8', "bad_entry"),
        (0, b'"size":7', b'"size":9007199254740992', "bad_export"),
        (0, b'"size":7', b'"size":' + b"9" * 100_000, "bad_export"),
        (0, b'"origin":"m', b'"origin":"m m', "bad_export"),
        (0, b'"origin":"m', b'"origin":"n', "bad_key"),
        (0, b'"format"', b' "format"', "bad_export"),
        (3, b'"payload":', b'"payload": ', "bad_entry"),
        (3, b"\xc3\xbc", b"\\u00fc", "bad_entry"),
        (3, b"\xc3\xbc", b"\xfc", "bad_entry"),
        (3, b"\xc3\xbc", b"\\ud800", "bad_entry"),
        (3, b"\xc3\xbc", b"u", "tampered"),
        (3, b'"salt":"', b'"salt":"0', "bad_entry"),
        (3, b'"salt":', b'"salt":null,"salt":', "bad_entry"),
        (3, b'"payload":', b'"payload":' + b"[" * 100_000, "bad_entry"),
        (3, b'"payload":', b'"payload":' + b"9" * 100_000, "bad_entry"),
        (3, b'"payload":', b'"more":1,"payload":', "bad_entry"),
        (3, b"}\n", b"}}\n", "bad_entry"),
        (8, b'{"checkpoint"', b'{"Checkpoint"', "bad_checkpoint"),
        (8, b'{"checkpoint":', b'{"checkpoint":null}', "bad_checkpoint"),
        (8, b"\\n7\\n", b"\\n07\\n", "bad_checkpoint"),
        (8, b"\\n7\\n", b"\\n6\\n", "bad_signature"),
        (8, b"\\n7\\n", b"\\n8\\n", "bad_signature"),
        (8, b'checkpoint":"m', b'checkpoint":"n', "other_log"),
        (8, b"ef\\n7", b"ef\\n\\n7", "bad_checkpoint"),
    ],
)
def test_a_changed_line_is_refused_and_why(at, old, new, code):
    lines = simple().lines()
    assert old in lines[at]
    lines[at] = lines[at].replace(old, new, 1)
    refused(b"".join(lines), code)


def test_each_checkpoint_needs_a_greater_size():
    log = simple(4)
    log.checkpoints = [notes.sign_checkpoint(log.state(size), log.key) for size in (3, 3, 5)]
    refused(log.export(), "bad_checkpoint", line=8)
    log.checkpoints[1] = notes.sign_checkpoint(log.state(4), log.key)
    assert accepted(log.export()).checkpoints == 3
    log.checkpoints[0] = notes.sign_checkpoint(Checkpoint(ORIGIN, 0, log.state(0).root), log.key)
    refused(log.export(), "bad_checkpoint")
    log.checkpoints[0] = notes.sign_checkpoint(Checkpoint(ORIGIN, 3, log.state(4).root), log.key)
    refused(log.export(), "tampered", line=7)


@pytest.mark.parametrize("value", [None, 5])
def test_a_checkpoint_is_a_text(value):
    lines = simple().lines()
    lines[-1] = disclosures.encode_object(checkpoint=value) + b"\n"
    refused(b"".join(lines), "bad_checkpoint", line=9)


def test_a_witness_alone_signs_no_checkpoint_of_a_log():
    log = simple()
    text = notes.checkpoint_text(log.state(3))
    alone = f"{text}\n{witness().cosign(text, 5)}"
    refused(log.export(), "unknown_key", (FIRST, witness().vkey), (alone,))
    log.checkpoints.insert(0, alone)
    refused(log.export(), "unknown_key", (FIRST, witness().vkey), line=9)


def test_a_longer_log_than_is_signed_is_refused():
    log = simple(4)
    log.fill(1)
    refused(log.export(), "bad_export")


def test_a_line_of_too_many_bytes_is_refused():
    header = export_format.header_line(ORIGIN, 1)
    long = io.BytesIO(header + b" " * export_format.MAX_LINE_BYTES + b"\n")
    with pytest.raises(BridgeError, match="more than 67108864 bytes"):
        export_verification.verify_export(long, keys(FIRST))
    long.seek(0)
    with pytest.raises(ValueError, match="a line is too long"):
        small().verify(long)
    with pytest.raises(BridgeError, match="more than 67108864 bytes"):
        export_verification.verify_export([header, b" " * export_format.MAX_LINE_BYTES + b"\n"], keys(FIRST))


def test_memory_doesnt_grow_with_the_entries(monkeypatch):
    monkeypatch.setattr(export_verification, "_IN_MEMORY_BYTES", 1 << 14)

    def peak(count):
        data = b"".join(simple(count).lines())
        tracemalloc.start()
        try:
            verify(data)
            return tracemalloc.get_traced_memory()[1] - len(data)
        finally:
            tracemalloc.stop()

    peak(10)
    assert peak(1000) < peak(10) + (1 << 17)
