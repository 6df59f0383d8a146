"""The small verifier is small, shares no code with the large one, and says the same of every file."""

import ast
import base64
import dataclasses
import hashlib
import random
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from fuzz_ledger import fuzz
from hypothesis import given
from hypothesis import strategies as st
from ledger_fixtures import (
    CALM,
    ORIGIN,
    SMALL,
    Log,
    erased,
    large_says,
    lost,
    private_key,
    rotated,
    signer,
    simple,
    small,
    small_says,
    witness,
)

from mcp_bridge.cli import audit_verification
from mcp_bridge.errors import BridgeError
from mcp_bridge.ledger.log.log_payloads import KeyEvent
from mcp_bridge.ledger.proofs import notes, signing, tlog_proof

FIRST, THIRD = signer("first").vkey, signer("third").vkey
ORDER = 2**252 + 27742317777372353535851937790883648493


def run(*arguments, python=sys.executable):
    command = [python, "-I", SMALL, *arguments]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=60)


def test_it_has_less_than_200_lines():
    assert len(SMALL.read_text().splitlines()) < 200


def test_a_file_may_have_several_checkpoints(tmp_path):
    log = simple()
    notes_kept = [log.checkpoint(), log.checkpoint(), log.checkpoint()]
    log.checkpoints = log.checkpoints[:1]
    (tmp_path / "export").write_bytes(log.export())
    kept = tmp_path / "kept"
    command = [tmp_path / "export", "--key", log.key.vkey, "--checkpoint", kept]
    kept.write_text("\n".join(notes_kept) + "\n")
    assert run(*command).returncode == 0
    wrong = notes_kept[1].replace("\n", "\n1", 1)
    kept.write_text("\n".join([notes_kept[0], wrong, notes_kept[2]]) + "\n")
    assert run(*command).returncode == 1


NOTE = simple().checkpoints[0]
PARTS = (
    NOTE,
    NOTE[:40],
    NOTE[:-20],
    "\n",
    "\n\n",
    "\n\n\n",
    "\u2014 a AAAAAAA=\n",
    "\u2014",
    "\u2014 x\n",
    "text\n",
    "\ufffd",
    "",
)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (NOTE.encode(), 1),
        (f"{NOTE}{NOTE}".encode(), 2),
        (f"{NOTE}\n\n\n{NOTE}\n".encode(), 2),
        (f"{NOTE}\u2014 x\n{NOTE}\u2014\n".encode(), 2),
        (f"{NOTE}\u2014 x y\n\u2014 \n{NOTE[:40]}".encode(), 1),
        (f"{NOTE}\u2014 a AAAAAAA=\n".encode(), 1),
        (f"{NOTE}\u2014 a {'A' * 91}\n{NOTE}".encode(), 2),
        (f"{NOTE}\n{NOTE[:60]}\n\n{NOTE}".encode(), 2),
        (f"{NOTE}\n{NOTE[:30]}\n\n{NOTE}".encode(), 2),
        (NOTE.encode() + b"\n" + NOTE.encode()[:60] + b"\xff\xfe\n\n" + NOTE.encode(), 2),
        (b"\xe2\x80\n\n" + NOTE.encode(), 1),
        (NOTE.replace("\n\n", "\n\n\n").encode(), 1),
        (b"\n" + NOTE.encode(), 1),
        (NOTE[:-1].encode(), 1),
        (b"", 0),
        (NOTE[:80].encode(), 0),
    ],
)
def test_both_find_the_same_notes_in_a_file(tmp_path, data, count):
    kept, export = tmp_path / "kept", tmp_path / "export"
    kept.write_bytes(data)
    export.write_bytes(simple().export())
    assert len(found_by_both(kept)) == count
    assert run(export, "--key", FIRST, "--checkpoint", kept).returncode == (0 if count else 2)


@CALM
@given(st.lists(st.sampled_from(PARTS), max_size=8).map("".join))
def test_both_find_the_same_notes_in_any_file(tmp_path_factory, text):
    kept = tmp_path_factory.getbasetemp() / "any"
    kept.write_bytes(text.encode())
    found_by_both(kept)


def found_by_both(path):
    """The notes that the large verifier finds in a file, if the small one finds the same."""
    large, little = [], []
    with suppress(BridgeError):
        large = audit_verification.read_notes(path)
    with suppress(ValueError):
        little = small().notes_in(path.read_bytes().decode(errors="replace"))
    assert large == little
    return large


def test_it_imports_nothing_but_the_standard_library():
    imported = set()
    for each in ast.walk(ast.parse(SMALL.read_text())):
        if isinstance(each, ast.Import):
            imported |= {name.name for name in each.names}
        assert not isinstance(each, ast.ImportFrom)
    assert imported <= sys.stdlib_module_names


def test_it_says_how_far_it_is_where_that_takes_long(tmp_path):
    export = tmp_path / "export"
    export.write_bytes(simple(7).export())
    text = SMALL.read_text()
    assert text.count("100_000") == 1
    often = tmp_path / "often.py"
    often.write_text(text.replace("100_000", "3"))
    done = subprocess.run([sys.executable, often, export, "--key", FIRST], check=True, capture_output=True, text=True)
    assert done.stderr == "3 of 8 entries\n6 of 8 entries\n"
    assert done.stdout.startswith("genuine: 8 entries")


@pytest.fixture
def files(tmp_path):
    """Genuine files and others, by name."""
    log = rotated()
    (tmp_path / "log").write_bytes(log.export())
    (tmp_path / "proof").write_bytes(log.proof(3))
    (tmp_path / "wrong").write_bytes(log.export().replace(b'\\"n\\":1', b'\\"n\\":2'))
    (tmp_path / "wrong proof").write_bytes(log.proof(3).replace(b"index 3", b"index 4"))
    (tmp_path / "kept").write_text(log.checkpoints[0], encoding="utf-8")
    (tmp_path / "whole").write_text(log.checkpoint(), encoding="utf-8")
    other = notes.Checkpoint(ORIGIN, 13, b"r" * 32)
    (tmp_path / "other").write_text(notes.sign_checkpoint(other, log.key), encoding="utf-8")
    log.fill(1)
    (tmp_path / "later").write_text(log.checkpoint(), encoding="utf-8")
    (tmp_path / "keys").write_text(f"\n{THIRD}\r\n{FIRST}\n", encoding="utf-8")
    (tmp_path / "empty").write_text(" \n", encoding="utf-8")
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    (tmp_path / "strange").write_bytes(of_a_stranger("a\x9b2J\u202eb\u2028"))
    return tmp_path


def of_a_stranger(origin):
    """A proof from a log whose name no log has, so that no key can be its."""
    log = Log().fill(1)
    proof = tlog_proof.decode(log.proof(1))
    return tlog_proof.encode(dataclasses.replace(proof, note=proof.note.replace(ORIGIN, origin, 1)))


@pytest.mark.parametrize(
    ("name", "arguments", "status", "says"),
    [
        ("log", ["--key", FIRST], 0, "genuine: 13 entries of mcp-code-bridge/0123456789abcdef"),
        ("log", ["--key", FIRST, "--checkpoint", "kept"], 0, "genuine: 13 entries"),
        ("log", [], 0, "agrees with itself, signed by nobody who is known: 13 entries"),
        ("log", ["--key", signer("other").vkey], 1, "not genuine: the last checkpoint is signed by no trusted key"),
        (
            "log",
            ["--key", FIRST, "--checkpoint", "later"],
            1,
            "not genuine: rolled back: a checkpoint is of 14 entries",
        ),
        ("wrong", ["--key", FIRST], 1, "not genuine: the payload of entry 1 is not what it commits to"),
        ("proof", ["--key", THIRD], 0, "genuine: entry 3 of mcp-code-bridge/0123456789abcdef, one of 13"),
        ("proof", ["--key", FIRST], 1, "not genuine: no known key of the log has signed a checkpoint"),
        ("proof", ["--key", THIRD, "--checkpoint", "whole"], 0, "genuine: entry 3 of mcp-code-bridge/0123456789abcdef"),
        ("proof", ["--key", THIRD, "--checkpoint", "other"], 1, "not genuine: the root of 13 entries is not the one"),
        (
            "proof",
            ["--key", THIRD, "--checkpoint", "later"],
            2,
            "a proof from 13 entries says nothing of checkpoints of",
        ),
        ("log", ["--key", "keys"], 0, "genuine: 13 entries"),
        ("log", ["--key", "empty"], 2, "there is no key in"),
        ("log", ["--key", "bytes"], 2, "verify_ledger.py: error: "),
        ("log", ["--key", "log"], 2, "verify_ledger.py: error: "),
        ("log", ["--key", "."], 2, "Is a directory"),
        ("log", ["--key", FIRST, "--key", "empty"], 2, "there is no key in"),
        ("log", ["--key", f"{'x' * 300}+c2d3e4f5+AAAA"], 2, "verify_ledger.py: error: a key is none"),
        ("log", ["--key", FIRST, "--checkpoint", "empty"], 2, "there is no checkpoint in the file"),
        ("log", ["--key", FIRST, "--checkpoint", "bytes"], 2, "there is no checkpoint in the file"),
        ("log", ["--key", FIRST, "--checkpoint", "."], 2, "Is a directory"),
        (".", ["--key", FIRST], 2, "Is a directory"),
        (
            "strange",
            [],
            0,
            "agrees with itself, signed by nobody who is known: entry 1 of a\\x9b2J\\u202eb\\u2028, one of 2",
        ),
        ("wrong proof", ["--key", THIRD], 1, "not genuine: the proof is of another entry"),
        ("later", ["--key", THIRD], 1, "not genuine: "),
        ("missing", ["--key", FIRST], 2, "No such file"),
        ("log", ["--key", "x"], 2, "verify_ledger.py: error: "),
        ("log", ["--checkpoint", "missing"], 2, "No such file"),
        ("log", ["--other"], 2, "unrecognized arguments"),
    ],
)
def test_it_says_in_one_line_and_by_its_status_what_a_file_is(files, name, arguments, status, says):
    arguments = [
        each if each.startswith("--") or len(each) > 20 or each == "x" else str(files / each) for each in arguments
    ]
    done = run(files / name, *arguments)
    assert done.returncode == status, done
    assert says in (done.stderr if status == 2 else done.stdout)
    assert "Traceback" not in done.stderr
    assert status == 2 or (done.stdout.count("\n"), done.stderr) == (1, "")


def test_it_runs_with_the_oldest_python_that_it_names(files):
    python = shutil.which("python3.9")
    if python is None or subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("there is no Python 3.9 here")
    assert run(files / "log", "--key", FIRST, python=python).stdout.startswith("genuine: 13 entries")
    assert run(files / "wrong", "--key", FIRST, python=python).returncode == 1


@pytest.mark.parametrize("make", [simple, rotated, lost, erased])
@pytest.mark.parametrize("given", [None, ["first"], ["second"], ["third"], ["first", "third"], ["second", "witness"]])
def test_both_say_the_same_of_genuine_files(make, given):
    log = make()
    vkeys = given and [witness().vkey if seed == "witness" else signer(seed).vkey for seed in given]
    for data, proof in ((log.export(), False), (log.proof(2), True)):
        assert (large_says(data, vkeys, proof=proof) is None) == (small_says(data, vkeys) is None)


def test_both_say_the_same_of_thousands_of_mutants():
    found = fuzz(3000, seed=20)
    assert found["accepted"] > 10
    assert len(found) > 8


def forged(rng):
    """A log that its key's owner has signed, however wrong it is."""
    log = Log()
    for _ in range(rng.randrange(1, 6)):
        before, event = log.key.vkey, rng.choice(("rotated", "lost", "rotated", "made"))
        change = rng.randrange(12)
        over = {
            0: {"time": rng.choice((0, 10**15, 2**53 - 1, 2**53))},
            1: {"previous": rng.choice((None, "0" * 64, "g" * 64))},
            2: {"sequence": rng.randrange(4)},
            3: {"step": rng.choice(("", "\u2028", "\x1f", "x" * 4096, "\U0001f600" * 4096))},
            4: {"execution": rng.choice(("", "ledger", "e1", "e9"))},
            5: {"kind": rng.choice(("key", "erasure", "made up", "END"))},
        }.get(change, {})
        if change in {6, 7, 8}:
            if rng.random() < 0.8:
                log.key = signer(rng.choice(("first", "second", "third")), rng.choice((log.origin,) * 9 + ("other",)))
            payload = KeyEvent(event, log.key.vkey, None if event == "made" else before).to_bytes()
            over = {"kind": "key", "execution": rng.choice(("ledger",) * 9 + ("e1",))}
            log.append(payload=payload, disclose=rng.random() < 0.9, **over)
            if rng.random() < 0.7:
                log.checkpoint(signer(rng.choice(("first", "second", "third"))))
        else:
            log.append(payload=b'"p"', disclose=rng.random() < 0.7, **over)
    log.checkpoint(*rng.choice(([log.key], [signer(), log.key], [log.key, witness()], [signer("third"), witness()])))
    return log


def test_both_say_the_same_of_logs_that_are_wrong_and_signed():
    rng, said = random.Random(5), Counter()  # noqa: S311 - it is to be repeated
    vkeys = [signer(seed).vkey for seed in ("first", "second", "third")]
    for _ in range(400):
        log = forged(rng)
        for trusted in (None, [vkeys[0]], [rng.choice(vkeys), witness().vkey]):
            data, against = log.export(), rng.choice(((), tuple(log.checkpoints[:1])))
            large, little = large_says(data, trusted, against), small_says(data, trusted, against)
            assert (large is None) == (little is None), (large, little, data)
            said[large] += 1
    assert said[None] > 50
    assert {"tampered", "bad_entry", "untrusted_key", "unknown_key", "bad_key"} <= set(said)


ROOT = base64.b64encode(simple().state(3).root).decode()
LINE = signer().sign(f"{ORIGIN}\n3\n{ROOT}\n")


def by_witness(text, time):
    """A cosignature with any time, by the witness's own key."""
    signature = private_key("witness").sign(f"cosignature/v1\ntime {time}\n{text}".encode())
    data = witness().verifier.key_id + time.to_bytes(8, "big") + signature
    return f"\u2014 {witness().name} {base64.b64encode(data).decode()}\n"


@pytest.mark.parametrize(
    ("text", "more", "right"),
    [
        (f"{ORIGIN}\n3\n{ROOT}\n", "", True),
        (f"{ORIGIN}\n3\n{ROOT}\nmore\nand more\n", "", True),
        (f"{ORIGIN}\n3\n{ROOT}\nmore\n\nand more\n", "", False),
        (f"{ORIGIN}\n3\n{ROOT}\n\n", "", False),
        (f"{ORIGIN}\n3\n{ROOT}\nm\tore\n", "", False),
        (f"{ORIGIN}\n3\n{ROOT}\nm\rore\n", "", False),
        (f"{ORIGIN}\n3\n{ROOT}\nm\x7fore\u2028\n", "", True),
        (f"{ORIGIN}\n3\n{ROOT}\n{'m' * (255 << 10)}\n", "", True),
        (f"{ORIGIN}\n3\n{ROOT}\n{'m' * (256 << 10)}\n", "", False),
        (f"{ORIGIN}\n3\n{ROOT}\n{chr(252) * (128 << 10)}\n", "", False),
        (f"{ORIGIN}\n03\n{ROOT}\n", "", False),
        (f"{ORIGIN}\n\u0663\n{ROOT}\n", "", False),
        (f"{ORIGIN}\n+3\n{ROOT}\n", "", False),
        (f"{ORIGIN}\n{2**63}\n{ROOT}\n", "", False),
        (f"{ORIGIN}\n{2**63 - 1}\n{ROOT}\n", "", False),
        (f"{ORIGIN}\n{'9' * 5000}\n{ROOT}\n", "", False),
        (f"{ORIGIN}\n3\n{ROOT[:-4]}\n", "", False),
        (f"{ORIGIN}\n3\n{ROOT[:-1]}\n", "", False),
        (f"{ORIGIN}\n3\n", "", False),
        (f"\n{ORIGIN}\n3\n{ROOT}\n", "", False),
        (f"{ORIGIN}\n3\n{ROOT}\n", LINE * 63, True),
        (f"{ORIGIN}\n3\n{ROOT}\n", LINE * 64, False),
        (f"{ORIGIN}\n3\n{ROOT}\n", LINE[:-1], False),
        (f"{ORIGIN}\n3\n{ROOT}\n", LINE.replace("\u2014", "-"), False),
        (f"{ORIGIN}\n3\n{ROOT}\n", "\u2014 a AAAAAAA=\n", True),
        (f"{ORIGIN}\n3\n{ROOT}\n", "\u2014 a AAAAAA==\n", False),
        (f"{ORIGIN}\n3\n{ROOT}\n", "\u2014 a+a AAAAAAA=\n", False),
        (f"{ORIGIN}\n3\n{ROOT}\n", "\u2014 a\u00a0a AAAAAAA=\n", False),
        (f"{ORIGIN}\n3\n{ROOT}\n", f"\u2014 {'a' * 256} AAAAAAA=\n", False),
        (f"{ORIGIN}\n3\n{ROOT}\n", "\u2014 a AAAAAAB=\n", False),
        (f"{ORIGIN}\n3\n{ROOT}\n", "\u2014 a AAAAAAA= \n", False),
        (f"{ORIGIN}\n3\n{ROOT}\n", "\u2014  AAAAAAA=\n", False),
        (f"{ORIGIN}\n3\n{ROOT}\n", by_witness(f"{ORIGIN}\n3\n{ROOT}\n", 2**63 - 1), True),
        (f"{ORIGIN}\n3\n{ROOT}\n", by_witness(f"{ORIGIN}\n3\n{ROOT}\n", 2**63), False),
        (f"{ORIGIN}\n3\n{ROOT}\n", by_witness("another text\n", 1), False),
    ],
)
def test_both_say_the_same_of_checkpoints_of_odd_forms(text, more, right):
    note, vkeys = f"{text}\n{signer().sign(text)}{more}", [FIRST, witness().vkey]
    assert (large_says(simple().export(), vkeys, [note]) is None) == right
    assert (small_says(simple().export(), vkeys, [note]) is None) == right


@CALM
@given(st.binary(min_size=0, max_size=40), st.integers(0, 600), st.integers(0, 7))
def test_a_signature_holds_for_it_where_it_does_for_openssl(message, at, bit):
    key = private_key("agreement")
    public, signature = key.public_key().public_bytes_raw(), key.sign(message)
    small().check_signature(public, message, signature)
    parts = bytearray(public + signature + message)
    parts[at % len(parts)] ^= 1 << bit
    agree(bytes(parts[:32]), bytes(parts[96:]), bytes(parts[32:96]))


def agree(public, message, signature):
    """Both verifiers say the same of a signature; returns what."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
        right = True
    except InvalidSignature:
        right = False
    try:
        small().check_signature(public, message, signature)
        also = True
    except ValueError:
        also = False
    assert right == also
    return right


def test_a_signature_has_one_form():
    key = private_key("form")
    public, signature = key.public_key().public_bytes_raw(), key.sign(b"text")
    s = int.from_bytes(signature[32:], "little")
    assert agree(public, b"text", signature)
    for wrong in (s + ORDER, s + 2 * ORDER, ORDER, 0, 2**256 - 1):
        assert not agree(public, b"text", signature[:32] + (wrong % 2**256).to_bytes(32, "little"))
    for wrong in (b"", signature[:-1], signature + b"\0", bytes(64), b"\xff" * 64):
        assert not agree(public, b"text", wrong)


def test_a_public_key_that_is_no_point_signs_nothing_for_either():
    rng = random.Random(7)  # noqa: S311 - it is to be repeated
    for _ in range(20):
        public = rng.randbytes(31) + bytes([rng.randrange(127)])
        signing.Verifier("x.example", public)
        assert not agree(public, b"text", hashlib.sha512(public).digest()[:63] + b"\0")
