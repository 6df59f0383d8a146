"""Signed notes, checkpoints and cosignatures as C2SP has them; what is not exactly one is refused."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_fixtures import CALM, ORIGIN, private_key, signer, small, witness

from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.proofs import notes, signing
from mcp_bridge.ledger.proofs.notes import Checkpoint
from mcp_bridge.ledger.proofs.signing import COSIGNATURE, Signer, Verifier

ROOT = hashlib.sha256(b"root").digest()
STATE = Checkpoint(ORIGIN, 5, ROOT)

# The documentation of Go's golang.org/x/mod/sumdb/note has this key and this note.
GO_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
GO_NOTE = (
    f"{GO_TEXT}\n\u2014 PeterNeumann "
    "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)

# Examples of the specifications, which don't have the keys.
SPEC_NOTE = (
    "Ognuno sta solo sul cuor della terra\ntrafitto da un raggio di sole:\n\ned \u00e8 subito sera.\n\n"
    "\u2014 quasimodo.example/salvatore "
    "NnugSzTjtVAewIS+Z/iJhUPeFDkO/5QQ2i5ddnGITLlC+EhfLW9oJKONrMouFSQU0xMcXxj99ihAQwaqP3ZekRwNtIc=\n"
)
SPEC_CHECKPOINT = (
    "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
    "\u2014 example.com/behind-the-sofa "
    "Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
    "\u2014 witness.example.com/w1 "
    "jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==\n"
)


def code_of(call, *arguments):
    with pytest.raises(BridgeError) as caught:
        call(*arguments)
    return caught.value.code


def test_the_note_of_another_implementation_is_opened():
    text, found = notes.open_note(GO_NOTE, [Verifier.parse(GO_KEY)])
    assert (text, [by.name for by, _ in found]) == (GO_TEXT, ["PeterNeumann"])


@pytest.mark.parametrize("at", range(0, len(GO_NOTE), 3))
def test_a_changed_note_of_another_implementation_is_refused(at):
    changed = GO_NOTE[:at] + chr(ord(GO_NOTE[at]) ^ 1) + GO_NOTE[at + 1 :]
    assert code_of(notes.open_note, changed, [Verifier.parse(GO_KEY)]) in {"bad_note", "bad_signature", "unknown_key"}


def test_the_specifications_examples_are_taken_apart():
    text, [(name, signature)] = notes.split_note(SPEC_NOTE)
    assert (text[-6:], name, len(signature)) == ("sera.\n", "quasimodo.example/salvatore", 68)
    text, [_, (name, signature)] = notes.split_note(SPEC_CHECKPOINT)
    assert notes.parse_checkpoint(text).size == 20852163
    assert (name, int.from_bytes(signature[4:12], "big")) == ("witness.example.com/w1", 1679315147)
    assert code_of(notes.open_note, SPEC_NOTE, [Verifier.parse(GO_KEY)]) == "unknown_key"


def test_a_checkpoint_is_signed_and_opened():
    mine = signer()
    note = notes.sign_checkpoint(STATE, mine)
    assert note.startswith(f"{ORIGIN}\n5\n{base64.b64encode(ROOT).decode()}\n\n\u2014 {ORIGIN} ")
    assert notes.open_checkpoint(note, [Verifier.parse(mine.vkey)]) == (STATE, [(mine.verifier, None)])


def test_a_witness_adds_its_signature_and_its_time():
    mine, other = signer(), witness()
    note = notes.sign_checkpoint(STATE, mine)
    note = notes.add_signature(note, notes.cosign(note, other, 1679315147))
    text, (_, (_, signature)) = notes.split_note(note)
    other.verifier._key.verify(signature[12:], b"cosignature/v1\ntime 1679315147\n" + text.encode())
    assert notes.open_checkpoint(note, [other.verifier]) == (STATE, [(other.verifier, 1679315147)])
    assert len(notes.open_checkpoint(note, [mine.verifier, other.verifier])[1]) == 2


def test_unknown_signatures_say_nothing_and_a_known_one_has_to_be_right():
    note = notes.sign_checkpoint(STATE, signer())
    strange = signer("second").sign(notes.checkpoint_text(STATE))
    both = notes.add_signature(note, strange)
    assert notes.open_checkpoint(both, [signer().verifier])[1] == [(signer().verifier, None)]
    assert code_of(notes.open_checkpoint, both, [signer("third").verifier]) == "unknown_key"
    wrong = notes.add_signature(note, signer("second").sign("another text\n"))
    assert notes.open_checkpoint(wrong, [signer().verifier])
    assert code_of(notes.open_checkpoint, wrong, [signer().verifier, signer("second").verifier]) == "bad_signature"


def test_a_signature_of_one_kind_is_none_of_the_other():
    key = private_key("both")
    log, wit = Signer("same.example", key), Signer("same.example", key, COSIGNATURE)
    assert log.verifier.key_id != wit.verifier.key_id
    with pytest.raises(ValueError, match="cosigns"):
        wit.sign("text\n")
    with pytest.raises(ValueError, match="doesn't cosign"):
        log.cosign("text\n", 1)
    with pytest.raises(ValueError, match="2\\^63"):
        wit.cosign("text\n", 2**63)


def test_keys_of_one_name_and_id_are_not_confused():
    one = signer().verifier
    other = signer("second").verifier
    other.key_id = one.key_id
    assert code_of(notes.keyring, [one, one, other]) == "bad_key"


VKEY = signer().vkey
NAME, ID, MATERIAL = VKEY.split("+", 2)


def vkey_of(public, name="x.example", kind=1):
    material = bytes([kind]) + public
    digest = hashlib.sha256(name.encode() + b"\n" + material).digest()[:4].hex()
    return f"{name}+{digest}+{base64.b64encode(material).decode()}"


LOW_ORDER = [y.to_bytes(32, "little") for y in sorted(signing._LOW_ORDER)]


@pytest.mark.parametrize(
    "vkey",
    [
        "",
        "x",
        "x+y",
        f"{NAME}+{ID}",
        f"{NAME}+{ID}+",
        f"{NAME}+{ID.upper()}+{MATERIAL}",
        f"{NAME}+00000000+{MATERIAL}",
        f"{NAME}x+{ID}+{MATERIAL}",
        f"{NAME}+{ID}+{MATERIAL}\n",
        f"{NAME}+{ID}+{MATERIAL[:-1]}=",
        f"{NAME}+{ID}+{MATERIAL}=",
        vkey_of(b"\0" * 31),
        vkey_of(b"\x05" * 33),
        vkey_of(b"\x05" * 32, kind=2),
        vkey_of(b"\x05" * 32, name=""),
        vkey_of(b"\x05" * 32, name="a b"),
        vkey_of(b"\x05" * 32, name="a\u00a0b"),
        vkey_of(b"\x05" * 32, name="a\nb"),
        vkey_of(b"\x05" * 32, name="a" * 256),
        vkey_of((2**255 - 19 + 3).to_bytes(32, "little")),
        *map(vkey_of, LOW_ORDER),
        *(vkey_of(each[:31] + bytes([each[31] | 128])) for each in LOW_ORDER),
    ],
)
def test_what_is_no_key_is_refused_by_both_verifiers(vkey):
    assert code_of(Verifier.parse, vkey) == "bad_key"
    with pytest.raises(ValueError, match=r"."):
        small().add_key({}, vkey)


def test_points_of_low_order_are_exactly_those_that_eight_times_are_nothing():
    add, p = small().add, 2**255 - 19
    for each in LOW_ORDER:
        y = int.from_bytes(each, "little")
        square = (y * y - 1) * pow(small().D * y * y + 1, p - 2, p) % p
        x = next(
            x for x in (pow(square, (p + 3) // 8, p) * root % p for root in (1, small().ROOT)) if x * x % p == square
        )
        point = (x, y, 1, x * y % p)
        for _ in range(3):
            point = add(point, point)
        assert (point[0], (point[1] - point[2]) % p) == (0, 0)
    assert len(set(LOW_ORDER)) == 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "o\n5\n",
        f"o\n5\n{base64.b64encode(ROOT).decode()}",
        f"\n5\n{base64.b64encode(ROOT).decode()}\n",
        f"o\n05\n{base64.b64encode(ROOT).decode()}\n",
        f"o\n-5\n{base64.b64encode(ROOT).decode()}\n",
        f"o\n\u0665\n{base64.b64encode(ROOT).decode()}\n",
        f"o\n{2**63}\n{base64.b64encode(ROOT).decode()}\n",
        f"o\n5\n{base64.b64encode(ROOT[1:]).decode()}\n",
        f"o\n5\n{base64.b64encode(ROOT).decode()} \n",
        f"o\n5\n{base64.b64encode(ROOT).decode()[:-2]}B=\n",
        f"o\n5\n{base64.b64encode(ROOT).decode()}\n\nextension\n",
    ],
)
def test_what_is_no_checkpoint_is_refused(text):
    assert code_of(notes.parse_checkpoint, text) == "bad_note"


def test_extension_lines_are_passed_over():
    assert notes.parse_checkpoint(notes.checkpoint_text(STATE) + "more\n") == STATE


GOOD = notes.sign_checkpoint(STATE, signer())
LINE = signer().sign(notes.checkpoint_text(STATE))


@pytest.mark.parametrize(
    "note",
    [
        "",
        "\n\n",
        GOOD[:-1],
        GOOD + "\n",
        GOOD.replace("\n\n", "\n"),
        GOOD.replace("\u2014 ", "- "),
        GOOD.replace("\u2014 ", "\u2014  "),
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("5", "5\t", 1),
        GOOD.replace("5", "\ud800", 1),
        GOOD.replace("=\n", "\n"),
        GOOD.replace("=\n", "==\n"),
        GOOD + "\u2014 a+b AAAAAAA=\n",
        GOOD + "\u2014 a AAAAAA==\n",
        GOOD + LINE * 64,
        GOOD.replace("5", "5" * (256 << 10), 1),
    ],
)
def test_what_is_no_note_is_refused(note):
    assert code_of(notes.open_note, note, [signer().verifier]) == "bad_note"


def test_as_many_signatures_as_a_reader_must_accept_are_accepted():
    assert len(notes.open_note(GOOD + LINE * 63, [signer().verifier])[1]) == 64


@pytest.mark.parametrize("line", ["", "x\n", LINE[:-1], LINE * 2, "\n" + LINE])
def test_only_a_signature_line_is_added(line):
    assert code_of(notes.add_signature, GOOD, line) == "bad_note"


@CALM
@given(st.text(), st.sampled_from([GO_KEY, VKEY]))
def test_no_text_is_a_note_or_a_key(text, vkey):
    for call in (lambda: notes.open_note(text, [Verifier.parse(vkey)]), lambda: Verifier.parse(text)):
        with pytest.raises(BridgeError):
            call()


@CALM
@given(st.binary(max_size=80))
def test_base64_has_one_form(data):
    text = base64.b64encode(data).decode()
    assert signing.decode_base64(text) == data
    for wrong in (
        text + "=",
        text + "A",
        text + "\n",
        " " + text,
        text.replace("=", "", 1),
        text.replace("A", "\u0410"),
    ):
        assert wrong == text or signing.decode_base64(wrong) != data
